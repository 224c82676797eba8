package kernels

import (
	"fmt"
	"math/cmplx"
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// addressed returns o with dimension d addressed by indexes.
func addressed(o Operand, d int) Indexed {
	r := Indexed{Operand: o, Step: o.Stride[d], Size: o.Shape[d]}
	r.Stride = append([]int(nil), o.Stride...)
	r.Stride[d] = 0
	return r
}

// indexCase is an array, an index along dimension dim, and a third array of the index's shape.
type indexCase struct {
	whole, index, part Operand
	dim                int
}

// place calls f for each element of the index with its number and the row-major number of the element in the whole array that it addresses.
func (c *indexCase) place(h *host, f func(n, to int)) {
	index := h.read(c.index)
	walkIndex(c.index.Shape, func(n int, ix []int) {
		to := 0
		for d, s := range c.whole.Shape {
			i := ix[d]
			if d == c.dim {
				if i = int(index[n]); i < 0 {
					i += s
				}
			}
			to = to*s + i
		}
		f(n, to)
	})
}

// indexCases are arrays that are dense, permuted, with gaps, and broadcast.
func indexCases(h *host, rng *rand.Rand, t, it dtype.DType) []indexCase {
	index := func(size int, shape ...int) Operand {
		o := h.empty(it, shape...)
		h.write(o, func(int) complex128 { return complex(float64(rng.IntN(size)), 0) })
		return o
	}
	return []indexCase{
		{h.random(rng, t, 4, 5), index(5, 4, 7), h.random(rng, t, 4, 7), 1},
		{h.random(rng, t, 4, 5), index(4, 300, 5), h.random(rng, t, 300, 5), 0},
		{permuted(h.random(rng, t, 3, 4, 5), 2, 0, 1), permuted(index(3, 6, 4, 5), 2, 0, 1), h.random(rng, t, 5, 6, 4), 1},
		{sliced(h.random(rng, t, 3, 8), 1, 0, 8, 2), sliced(index(4, 3, 9), 1, 1, 9, 3), h.random(rng, t, 3, 3), 1},
		{h.random(rng, t, 6, 3), expanded(index(6, 1000, 1), 1000, 3), h.random(rng, t, 1000, 3), 0},
		{h.random(rng, t, 7), index(7, 2000), h.random(rng, t, 2000), 0},
		{h.random(rng, t, 70), h.distinct(h.empty(it, 50), 0, 70), h.random(rng, t, 50), 0},
		{h.random(rng, t, 9, 70), h.distinct(h.empty(it, 9, 50), 1, 70), h.random(rng, t, 9, 50), 1},
		{permuted(h.random(rng, t, 3, 4, 5), 2, 0, 1), permuted(h.distinct(h.empty(it, 3, 4, 5), 1, 3), 2, 0, 1),
			h.random(rng, t, 5, 3, 4), 1},
		{sliced(h.random(rng, t, 6, 8), 1, 0, 8, 2), sliced(h.distinct(h.empty(it, 5, 9), 0, 6), 1, 1, 9, 3), h.random(rng, t, 5, 3), 0},
	}
}

// distinct sets the indexes o along dimension d to values below size, without repetitions in a line.
func (h *host) distinct(o Operand, d, size int) Operand {
	inner := 1
	for _, s := range o.Shape[d+1:] {
		inner *= s
	}
	h.write(o, func(n int) complex128 {
		line := n/(inner*o.Shape[d]) + n%inner
		return complex(float64((n/inner%o.Shape[d]+line)%size), 0)
	})
	return o
}

func TestIndexing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.Float64, dtype.Int64, dtype.Uint8, dtype.Bool, dtype.Complex64} {
		for _, it := range []dtype.DType{dtype.Int64, dtype.Int32} {
			for _, wide := range []bool{false, true} {
				h := newHost(t)
				if wide {
					h.index32 = 10
				}
				for _, c := range indexCases(h, rng, dt, it) {
					out := h.empty(dt, c.index.Shape...)
					check(t, Gather(h, out, c.index, addressed(c.whole, c.dim)))
					whole, got := h.readComplex(c.whole), h.readComplex(out)
					c.place(h, func(n, to int) {
						if got[n] != whole[to] {
							t.Fatalf("%v: gathered %d is %v, want %v", dt, n, got[n], whole[to])
						}
					})
					c.scatters(t, h)
				}
			}
		}
	}
}

// scatters checks the three write operations.
func (c *indexCase) scatters(t *testing.T, h *host) {
	dt := c.whole.DType
	part := h.readComplex(c.part)
	for name, f := range map[string]struct {
		run  func(dst Indexed) error
		join func(old, v complex128) complex128
	}{
		"set": {func(dst Indexed) error { return Scatter(h, dst, c.index, c.part) }, nil},
		"add": {func(dst Indexed) error {
			return ScatterAdd(h, dst, c.index, c.part, c.dim)
		}, func(a, b complex128) complex128 { return a + b }},
		"multiply": {func(dst Indexed) error {
			return ScatterMultiply(h, dst, c.index, c.part, c.dim)
		}, func(a, b complex128) complex128 { return a * b }},
	} {
		if name != "set" && dt != dtype.Float64 && dt != dtype.Int64 && dt != dtype.Complex64 || name == "multiply" && dt != dtype.Float64 {
			continue // sums of other types round or wrap
		}
		choices := map[int][]complex128{}
		several := false
		c.place(h, func(n, to int) {
			several = several || choices[to] != nil
			choices[to] = append(choices[to], part[n])
		})
		if name == "set" && several && h.check != nil {
			continue // it is undefined which of them stays: a race that a memory checker reports
		}
		dst := h.empty(dt, c.whole.Shape...)
		before := h.readComplex(c.whole)
		h.write(dst, func(n int) complex128 { return before[n] })
		check(t, f.run(addressed(dst, c.dim)))
		got, want := h.readComplex(dst), append([]complex128(nil), before...)
		c.place(h, func(n, to int) {
			if f.join != nil {
				want[to] = f.join(want[to], part[n])
			}
		})
		for i := range got {
			if f.join != nil || choices[i] == nil {
				if got[i] != want[i] && !(cmplx.IsNaN(got[i]) && cmplx.IsNaN(want[i])) &&
					!(name == "multiply" && cmplx.Abs(got[i]/want[i]-1) < 1e-13) {
					t.Fatalf("%v %s: element %d is %v, want %v", dt, name, i, got[i], want[i])
				}
				continue
			}
			found := false
			for _, v := range choices[i] {
				found = found || v == got[i]
			}
			if !found {
				t.Fatalf("%v set: element %d is %v, none of %v", dt, i, got[i], choices[i])
			}
		}
	}
}

func TestIndexErrors(t *testing.T) {
	h := newHost(t)
	whole, out := h.of(dtype.Float32, []float64{1, 2, 3}, 3), h.empty(dtype.Float32, 1)
	src := addressed(whole, 0)
	for _, i := range []float64{3, -1} {
		err := Gather(h, out, h.of(dtype.Int64, []float64{i}, 1), src)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("index %v is out of range for size 3", i)) {
			t.Errorf("index %v gives the error %v", i, err)
		}
	}
	src.Wrap = true
	check(t, Gather(h, out, h.of(dtype.Int64, []float64{-1}, 1), src))
	if v := h.read(out)[0]; v != 3 {
		t.Errorf("index -1 gives %v", v)
	}
	if err := Gather(h, out, h.of(dtype.Int64, []float64{-4}, 1), src); err == nil {
		t.Error("index -4 of 3 gives no error")
	}
	many := Operand{Ptr: 1, DType: dtype.Float32}
	for range maxDims + 1 {
		many.Shape, many.Stride = append(many.Shape, 2), append(many.Stride, 1)
	}
	if err := Gather(h, many, many, Indexed{Operand: many}); err == nil || !strings.Contains(err.Error(), "dimensions") {
		t.Errorf("too many dimensions give the error %v", err)
	}
}
