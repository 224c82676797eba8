package tenon_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
)

// The examples cover PyTorch's indexing rules, each with the result of PyTorch 2.11 for t = arange(24).view(2, 3, 4).
func TestIndex(t *testing.T) {
	for _, sel := range []tenon.Selector{tenon.Sim(0), tenon.CPU()} {
		x := testdevice.Open(t, sel)
		a := x.Reshape(x.Arange(24, tenon.Float32), 2, 3, 4)
		is := func(v []int64, shape ...int) *tenon.Tensor { return tenon.From(x, v, shape...) }
		mask := x.GtS(a, 20)
		rows := tenon.From(x, []bool{true, false, true})
		for _, c := range []struct {
			at   []any
			want string
		}{
			{nil, "[2 3 4]"},
			{[]any{1}, "[3 4] 12 13 14 15 16 17 18 19 20 21 22 23"},
			{[]any{-1, 0, 2}, "[] 14"},
			{[]any{tenon.All, 1}, "[2 4] 4 5 6 7 16 17 18 19"},
			{[]any{tenon.Ellipsis, 3}, "[2 3] 3 7 11 15 19 23"},
			{[]any{0, tenon.Span(1, tenon.End), tenon.Span(0, 4, 3)}, "[2 2] 4 7 8 11"},
			{[]any{0, tenon.Span(-2, -1), tenon.Span(-9, 9, 2)}, "[1 2] 4 6"},
			{[]any{1, tenon.NewAxis, 2}, "[1 4] 20 21 22 23"},
			{[]any{0, 1, tenon.Ellipsis, tenon.NewAxis}, "[4 1] 4 5 6 7"},
			{[]any{tenon.Span(2, 2)}, "[0 3 4]"},
			{[]any{is([]int64{1, 0, -1})}, "[3 3 4] 12 13 14 15 16 17 18 19 20 21 22 23 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 " +
				"19 20 21 22 23"},
			{[]any{is([]int64{1, 0}), is([]int64{2, 0})}, "[2 4] 20 21 22 23 0 1 2 3"},
			{[]any{0, is([]int64{0, 2}), is([]int64{1})}, "[2] 1 9"},
			{[]any{tenon.All, is([]int64{2, 0}), is([]int64{-1, 1})}, "[2 2] 11 1 23 13"},
			{[]any{is([]int64{1}), tenon.All, is([]int64{3, 0})}, "[2 3] 15 19 23 12 16 20"},
			{[]any{tenon.All, is([]int64{0, 2, 1, 1}, 2, 2), 0}, "[2 2 2] 0 8 4 4 12 20 16 16"},
			{[]any{is([]int64{0, 1}, 2, 1), is([]int64{1, 2}, 2), 0}, "[2 2] 4 8 16 20"},
			{[]any{is([]int64{}, 0)}, "[0 3 4]"},
			{[]any{mask}, "[3] 21 22 23"},
			{[]any{1, rows, tenon.Span(0, 2)}, "[2 2] 12 13 20 21"},
			{[]any{tenon.All, rows, is([]int64{3, 0})}, "[2 2] 3 8 15 20"},
			{[]any{tenon.All, []bool{true, false, true}, []int{3, 0}}, "[2 2] 3 8 15 20"},
			{[]any{[]int{1, 0}, []int{2, 0}}, "[2 4] 20 21 22 23 0 1 2 3"},
			{[]any{tenon.All, [][]int{{0, 2}, {1, 1}}, 0}, "[2 2 2] 0 8 4 4 12 20 16 16"},
			{[]any{[][]int{{0}, {-1}}, []int{1, 2}, 0}, "[2 2] 4 8 16 20"},
			{[]any{[][]int{}, 0}, "[0 4]"},
			{[]any{1, 2, true}, "[1 4] 20 21 22 23"},
			{[]any{1, tenon.All, false}, "[3 0 4]"},
			{[]any{true, 1, 2}, "[1 4] 20 21 22 23"},
			{[]any{false}, "[0 2 3 4]"},
			{[]any{true, []int{1, 0}, 0, 3}, "[2] 15 3"},
		} {
			got := x.Index(a, c.at...)
			text := fmt.Sprint(got.Shape())
			for _, v := range testdevice.Read[float32](t, x, got) {
				text += fmt.Sprint(" ", v)
			}
			if c.at == nil {
				text = fmt.Sprint(got.Shape())
			}
			if text != c.want {
				t.Errorf("%v: %s, want %s", c.at, text, c.want)
			}
		}
		view := x.Index(a, 0, tenon.All, 1)
		x.FillInto(view, -1)
		if got := testdevice.Read[float32](t, x, x.Index(a, 0, 2)); fmt.Sprint(got) != "[8 -1 10 11]" {
			t.Errorf("a view's write shows as %v", got)
		}
	}
}

// Random indexes read, write, add and pass gradients back as a loop over the elements does.
func TestIndexRandom(t *testing.T) {
	for _, sel := range []tenon.Selector{tenon.Sim(0), tenon.CPU()} {
		x := testdevice.Open(t, sel)
		for seed := range uint64(300) {
			rng := rand.New(rand.NewPCG(seed, 7))
			x.Scope(func(x *tenon.Exec) { indexRandom(t, x, rng) })
			if t.Failed() {
				t.Fatalf("with seed %d", seed)
			}
		}
	}
}

func indexRandom(t *testing.T, x *tenon.Exec, rng *rand.Rand) {
	shape := make([]int, 1+rng.IntN(4))
	total := 1
	for i := range shape {
		shape[i] = 1 + rng.IntN(4)
		total *= shape[i]
	}
	base := make([]float32, total)
	for i := range base {
		base[i] = float32(rng.IntN(1000))
	}
	a := tenon.From(x, base, shape...)
	number := tenon.From(x, sequence(total), shape...) // which elements an index names
	var at []any
	for d := 0; d < len(shape) && rng.IntN(5) > 0; {
		n := shape[d]
		switch rng.IntN(7) {
		case 0:
			at = append(at, rng.IntN(2*n)-n)
		case 1:
			at = append(at, tenon.Span(rng.IntN(2*n)-n, rng.IntN(3*n)-n, 1+rng.IntN(2)))
		case 2:
			at = append(at, tenon.NewAxis)
			continue
		case 3:
			m := make([]bool, n)
			for i := range m {
				m[i] = i == 0 || i == 1 // true as often as the other index tensors broadcast
			}
			if n < 2 {
				m[0] = true
			}
			at = append(at, tenon.From(x, m, n))
		case 4:
			at = append(at, tenon.All)
		default:
			m := make([]int64, 2)
			for i := range m {
				m[i] = int64(rng.IntN(2*n) - n)
			}
			at = append(at, tenon.From(x, m, 2))
		}
		d++
	}
	text := fmt.Sprint(shape, at)
	named := x.Index(number, at...)
	got, places := testdevice.Read[float32](t, x, x.Index(a, at...)), testdevice.Read[float32](t, x, named)
	values := make([]float32, len(got))
	put, added, grad := slices.Clone(base), slices.Clone(base), make([]float32, total)
	for i, p := range places {
		if got[i] != base[int(p)] {
			t.Errorf("%s: element %d is %v, want %v", text, i, got[i], base[int(p)])
		}
		values[i] = float32(int(p)*3 + 1) // equal where an element is named twice
		put[int(p)] = values[i]
		added[int(p)] += values[i]
		grad[int(p)] += values[i]
	}
	src := tenon.From(x, values, named.Shape()...)
	check := func(what string, got *tenon.Tensor, want []float32) {
		t.Helper()
		if v := testdevice.Read[float32](t, x, got); !slices.Equal(v, want) {
			t.Errorf("%s: %s gives %v, want %v", text, what, v, want)
		}
	}
	c := x.Clone(a)
	x.IndexPutInto(c, src, at...)
	check("IndexPutInto", c, put)
	c = x.Clone(a)
	x.IndexPutAddInto(c, src, at...)
	check("IndexPutAddInto", c, added)
	leaf := x.Clone(a).SetRequiresGrad(true)
	must(t, x.Backward(x.Sum(x.Mul(x.Index(leaf, at...), src), nil)))
	check("the gradient", leaf.Grad(), grad)
	// An in-place change of a tensor with a history: elements that were put pass their gradient to src, the others to the tensor.
	leaf, from := x.Clone(a).SetRequiresGrad(true), x.Clone(src).SetRequiresGrad(true)
	y := x.MulS(leaf, 1)
	x.IndexPutAddInto(y, from, at...)
	must(t, x.Backward(x.Sum(x.Mul(y, number), nil)))
	check("the gradient of an addition's tensor", leaf.Grad(), sequence(total))
	check("the gradient of what was added", from.Grad(), places)
	x.IndexPutSInto(c, 5, at...)
	for _, p := range places {
		added[int(p)] = 5
	}
	check("IndexPutSInto", c, added)
	x.IndexPutAddSInto(c, 2, at...)
	for _, p := range places {
		added[int(p)] += 2
	}
	check("IndexPutAddSInto", c, added)
}

func sequence(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i)
	}
	return v
}

// A wrong index is an error of one sentence, and nothing changes.
func TestIndexErrors(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	a := x.Reshape(x.Arange(6, tenon.Float32), 2, 3)
	for _, c := range []struct {
		at   []any
		want string
	}{
		{[]any{2}, "index 2 is out of range for dimension 0 of size 2; give a number from -2 to 1"},
		{[]any{0, -4}, "index -4 is out of range for dimension 1 of size 3; give a number from -3 to 2"},
		{[]any{0, 0, 0}, "there are indexes for 3 dimensions, and the tensor [2 3] has 2"},
		{[]any{tenon.Ellipsis, tenon.Ellipsis}, "there are two ellipses; give one"},
		{[]any{tenon.Span(0, 2, -1)}, "step -1"},
		{[]any{"rows"}, "index 0 is of type string; give an int"},
		{[]any{nil}, "index 0 is nil; give an int"},
		{[]any{[][]int{{0, 1}, {1}}}, "index 0 has rows of 2 and 1 numbers; give rows of the same length"},
		{[]any{false, []int{0, 1}}, "do not broadcast together"},
		{[]any{x.Zeros([]int{2}, tenon.Float32)}, "an index has type float32; give int64, int32 or bool"},
		{[]any{x.Zeros([]int{3}, tenon.Bool)}, "the mask has shape [3], and the dimensions that it is for have sizes [2]"},
		{[]any{x.Zeros([]int{2}, tenon.Int64), x.Zeros([]int{3}, tenon.Int64)}, "do not broadcast together"},
	} {
		for _, f := range []func(){func() { x.Index(a, c.at...) }, func() { x.IndexPutSInto(a, 1, c.at...) }} {
			err := tenon.Try(f)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "index_test.go:") {
				t.Errorf("%v: %v, want %s", c.at, err, c.want)
			}
		}
	}
	err := tenon.Try(func() {
		x.Index(a, tenon.From(x, []int64{0, 2}), tenon.From(x, []int64{0, 0}))
		if err := x.Synchronize(); err != nil {
			panic(err)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "2") {
		t.Errorf("a number out of range: %v", err)
	}
	if got := testdevice.Read[float32](t, x, a); fmt.Sprint(got) != "[0 1 2 3 4 5]" {
		t.Errorf("the tensor is %v", got)
	}
}
