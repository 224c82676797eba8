package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// TestVectorPlans: products of up to four rows whose matrix allows wide accesses are planned as such, and their order of sums does not
// depend on the number of multiprocessors.
func TestVectorPlans(t *testing.T) {
	planned := func(t dtype.DType, m, n, k, batch, multiprocessors int, depth bool) (vecSpec, bool) {
		p := product{m: m, n: n, k: k, s: [4][2]int{{n, 1}, {k, 1}, {1, n}}}
		p.a.DType, p.b.DType = t, t
		if depth {
			p.s[2] = [2]int{k, 1}
		}
		p.batch.open(0, batch)
		return p.planVector(&Limits{Multiprocessors: multiprocessors})
	}
	half, single := dtype.BFloat16, dtype.Float32
	for _, c := range []struct {
		t              dtype.DType
		m, n, k, batch int
		depth          bool
		want           vecSpec
		ok             bool
	}{
		{half, 1, 768, 768, 1, true, vecSpec{1, 32, 1, 1, 3, 1}, true},
		{half, 1, 2048, 8192, 1, true, vecSpec{1, 32, 1, 8, 2, 0}, true},
		{half, 1, 50304, 768, 1, true, vecSpec{1, 32, 2, 1, 2, 0}, true},
		{half, 1, 1024, 64, 12, true, vecSpec{1, 8, 4, 1, 1, 1}, true},
		{half, 3, 8192, 2048, 1, true, vecSpec{4, 32, 4, 1, 2, 0}, true},
		{single, 1, 768, 384, 1, true, vecSpec{1, 32, 1, 1, 3, 1}, true},
		{half, 1, 64, 1024, 12, false, vecSpec{1, 2, 1, 1, 8, 1}, true},
		{half, 1, 8192, 2048, 1, false, vecSpec{1, 8, 1, 1, 16, 0}, true},
		{half, 1, 1, 8192, 1, true, vecSpec{1, 32, 1, 8, 2, 1}, true},
		{half, 1, 1, 1 << 20, 1, true, vecSpec{}, false},  // one block with a long way
		{half, 1, 2048, 8192, 1, false, vecSpec{}, false}, // few blocks, each with a long way
		{half, 5, 768, 768, 1, true, vecSpec{}, false},
		{half, 1, 768, 769, 1, true, vecSpec{}, false},
		{half, 1, 769, 768, 1, false, vecSpec{}, false},
		{dtype.Float64, 1, 768, 768, 1, true, vecSpec{}, false},
		{half, 1, 768, 0, 1, true, vecSpec{}, false},
	} {
		got, ok := planned(c.t, c.m, c.n, c.k, c.batch, 132, c.depth)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%v %d x %d x %d, batch %d, depth %v: %+v, %v; want %+v, %v", c.t, c.m, c.n, c.k, c.batch, c.depth, got, ok,
				c.want, c.ok)
		}
		for _, n := range []int{fewMultiprocessors, 78, 144} {
			if other, also := planned(c.t, c.m, c.n, c.k, c.batch, n, c.depth); other != got || also != ok {
				t.Errorf("%v %d x %d x %d: %+v on %d multiprocessors, %+v on 132", c.t, c.m, c.n, c.k, other, n, got)
			}
		}
		if _, ok := planned(c.t, c.m, c.n, c.k, c.batch, fewMultiprocessors-1, c.depth); ok {
			t.Error("a vector on few multiprocessors, for which there are flat tiles")
		}
	}
	for _, depth := range []bool{true, false} {
		p := product{m: 1, n: 768, k: 768, s: [4][2]int{{768, 1}, {768, 1}, {1, 768}}}
		p.a.DType, p.b.DType = half, half
		if depth {
			p.s[2] = [2]int{768, 1}
		}
		p.s[1] = [2]int{1, 1}
		if _, ok := p.planVector(&Limits{Multiprocessors: 132}); !ok {
			t.Errorf("a row whose other stride is 1, with the matrix along the depth %v, is not planned", depth)
		}
		p.s[1] = [2]int{768, 1}
		p.a.Ptr = 2
		if _, ok := p.planVector(&Limits{Multiprocessors: 132}); ok == depth {
			t.Errorf("a row that is not aligned, with the matrix along the depth %v: planned is %v", depth, ok)
		}
		p.a.Ptr, p.b.Ptr = 0, 2
		if _, ok := p.planVector(&Limits{Multiprocessors: 132}); ok {
			t.Errorf("a matrix that is not aligned, along the depth %v, is planned", depth)
		}
	}
}

// TestProloguesKeepSums: a prologue changes no number of the plan on which the order of sums depends.
func TestProloguesKeepSums(t *testing.T) {
	for m := 1; m <= vecRows; m++ {
		for _, n := range []int{8, 72, 1024, 2048, 4096, 16384, 28672} {
			for _, k := range []int{8, 264, 768, 2048, 4096, 8192, 1 << 15} {
				for _, b := range [][2]int{{k, 1}, {1, n}} {
					p := product{m: m, n: n, k: k, s: [4][2]int{{n, 1}, {k, 1}, b}}
					p.a.DType, p.b.DType = dtype.BFloat16, dtype.BFloat16
					p.batch.open(0, 1)
					want, planned := p.planVector(&Limits{Multiprocessors: 132})
					p.opt.Prologue = &Prologue{}
					got, ok := p.planVector(&Limits{Multiprocessors: 132})
					if ok != planned || got.Rows != want.Rows || got.Lanes != want.Lanes || got.Parts != want.Parts {
						t.Errorf("%d x %d x %d, strides %v: %+v, %v with a prologue; %+v, %v without", m, n, k, b, got, ok, want, planned)
					}
				}
			}
		}
	}
}

// TestVectorsReadNothingElse: products of few rows read no elements beside their operands. What lies there is NaN.
func TestVectorsReadNothingElse(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct {
		m, n, k int
		depth   bool
	}{{1, 5, 24, true}, {3, 70, 8, true}, {2, 9, 800, true}, {4, 3, 1560, true}, {1, 8, 5, false}, {3, 72, 130, false}, {2, 24, 1, false}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			h := newHost(t)
			h.limits.Multiprocessors, h.limits.SharedPerBlock = 132, 227<<10
			within := func(rows, cols int) Operand {
				const beside = 16
				o := h.empty(dtype.Float32, rows*cols+2*beside)
				h.write(o, func(int) complex128 { return complex(math.NaN(), 0) })
				o.Ptr += beside * 4
				o.Shape, o.Stride = []int{rows, cols}, []int{cols, 1}
				h.write(o, func(int) complex128 { return complex(sample(rng, dtype.Float32), 0) })
				return o
			}
			a, b := within(c.m, c.k), within(c.k, c.n)
			if c.depth {
				b = within(c.n, c.k)
				b.Shape, b.Stride = []int{c.k, c.n}, []int{1, c.k}
			}
			out := h.empty(dtype.Float32, c.m, c.n)
			check(t, Matmul(h, out, a, b, MatmulOpt{Alpha: 1}))
			for s := range h.kernels {
				if s.Family != FamilyMatvec {
					t.Fatalf("it was run by a kernel of family %d", s.Family)
				}
			}
			as, bs, got := h.read(a), h.read(b), h.read(out)
			for i := range c.m {
				for j := range c.n {
					want := 0.0
					for d := range c.k {
						want += as[i*c.k+d] * bs[d*c.n+j]
					}
					if got[i*c.n+j] != want {
						t.Fatalf("[%d, %d] is %v, want %v", i, j, got[i*c.n+j], want)
					}
				}
			}
		})
	}
}
