package core

import (
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// einsumSlowly evaluates an equation with an arrow and without ellipses element by element.
func einsumSlowly(equation string, sizes map[rune]int, shapes [][]int, data [][]float32) []float32 {
	in, out, _ := strings.Cut(equation, "->")
	terms := strings.Split(in, ",")
	var labels []rune
	for _, l := range out + strings.ReplaceAll(in, ",", "") {
		if !slices.Contains(labels, l) {
			labels = append(labels, l)
		}
	}
	at := map[rune]int{}
	offset := func(term string, shape []int) (o int) {
		for i, l := range term {
			o *= shape[i]
			if shape[i] > 1 {
				o += at[l]
			}
		}
		return o
	}
	total := 1
	var outShape []int
	for _, l := range out {
		outShape = append(outShape, sizes[l])
		total *= sizes[l]
	}
	res := make([]float32, total)
	var loop func(n int)
	loop = func(n int) {
		if n < len(labels) {
			for i := range sizes[labels[n]] {
				at[labels[n]] = i
				loop(n + 1)
			}
			return
		}
		p := float32(1)
		for i, term := range terms {
			p *= data[i][offset(term, shapes[i])]
		}
		res[offset(out, outShape)] += p
	}
	loop(0)
	return res
}

func TestEinsum(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		sizes := map[rune]int{'a': 2, 'b': 3, 'c': 4, 'd': 2, 'B': 3}
		run := func(equation string, ones string) {
			t.Helper()
			in, _, _ := strings.Cut(equation, "->")
			var ts []*Tensor
			var shapes [][]int
			var data [][]float32
			for i, term := range strings.Split(in, ",") {
				shape, n := []int{}, 1
				for _, l := range term {
					size := sizes[l]
					if i == 0 && strings.ContainsRune(ones, l) {
						size = 1
					}
					shape, n = append(shape, size), n*size
				}
				v := make([]float32, n)
				for j := range v {
					v[j] = float32((j*7+i*3)%5 - 2)
				}
				ts, shapes, data = append(ts, x.View(From(x, v), shape...)), append(shapes, shape), append(data, v)
			}
			got := x.Einsum(equation, ts...)
			if want := einsumSlowly(equation, sizes, shapes, data); !slices.Equal(floats(t, x, got), want) {
				t.Errorf("%s gives %v, want %v", equation, floats(t, x, got), want)
			}
		}
		for _, equation := range []string{"ab,bc->ac", "ab,bc->ca", "ab,cb->", "a,b->ba", "abc,ac->b", "abc,abd->acd", "abc,abd->bdc",
			"abc,bd,ca->d", "aa->a", "aa->", "aba->ba",
			"adb,ad->bda", "a,a,a->a", "a,ab,abc->c", "aBb,Bc->bac", "aa,ad->d", "ab->ab", "ab->ba", "abc->b", ",ab->ba"} {
			run(equation, "")
		}
		run("ab,bc->ac", "b")
		run("abc,abd->acd", "b")
		run("abc,b->abc", "b")
		run("ab->ba", "")

		a, b := x.View(x.Arange(24, dtype.Float32, ArangeOpt{}), 2, 3, 4), x.View(x.Arange(8, dtype.Float32, ArangeOpt{}), 4, 2)
		product := floats(t, x, x.MatMul(a, b))
		same := func(what string, got *Tensor, want []float32) {
			t.Helper()
			if !slices.Equal(floats(t, x, got), want) {
				t.Errorf("%s gives %v, want %v", what, floats(t, x, got), want)
			}
		}
		same("an ellipsis", x.Einsum("...ij,...jk->...ik", a, b), product)
		same("an ellipsis without an arrow", x.Einsum("... ij, ...jk", a, b), product)
		same("no arrow", x.Einsum("ba", b), floats(t, x, x.Transpose(b, 0, 1)))
		same("a summed ellipsis", x.Einsum("...j->j", a), floats(t, x, x.Sum(a, []int{0, 1}, SumOpt{})))
		same("an ellipsis broadcast", x.Einsum("...,...", b, x.Full(nil, 3, dtype.Float32)), floats(t, x, x.MulS(b, 3)))
		for equation, want := range map[string]string{"ij": "3 dimensions", "ij,jk": "2, must be equal to the number of operands, 1",
			"i1k->i": "letters", "ijk->l": "no operand has",
			"ijk->ii": "twice", "iik->k": "sizes 2 and 3", "i...": ""} {
			err := Try(func() { x.Einsum(equation, a) })
			if want == "" {
				if err != nil {
					t.Errorf("%s: %v", equation, err)
				}
				continue
			}
			wantError(t, err, fault.Invalid, "Einsum", want)
		}
		wantError(t, Try(func() { x.Einsum("ij,jk", a, b) }), fault.Invalid, "3 dimensions")
		wantError(t, Try(func() { x.Einsum("ij,ik->j", b, x.Ones([]int{3, 3}, dtype.Float32)) }), fault.Invalid, "sizes 4 and 3")
		h := x.Autocast(dtype.Float16).Einsum("bkhd,bqhd->bqkh", x.Ones([]int{2, 3, 1, 2}, dtype.Float32),
			x.Ones([]int{2, 4, 1, 2}, dtype.Float32))
		if h.dt != dtype.Float16 || !infer.Same(h.shape, []int{2, 4, 3, 1}) {
			t.Errorf("under autocast: %v", h)
		}
	})
}
