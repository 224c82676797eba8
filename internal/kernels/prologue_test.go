package kernels

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// prologueOf returns an operation that makes a matrix of type t from whole numbers, a factor of type t and a number to add:
// (whole·factor, rounded, + number)·scalar.
func prologueOf(t dtype.DType) *PointOp {
	f := dtype.Float32
	return Fuse([]dtype.DType{dtype.Int8, t, f}, []FusedStep{
		{Op: Mul, Compute: t, Ins: []FusedIn{{Value: 0, Via: t}, {Value: 1}}, Outs: []FusedOut{{DType: t}}},
		{Op: Add, Compute: f, Ins: []FusedIn{{Value: 3}, {Value: 2}}, Outs: []FusedOut{{DType: f}}},
		{Op: Mul, Compute: f, Ins: []FusedIn{{Value: 4}, {Value: ScalarIn}}, Outs: []FusedOut{{DType: t}}},
	}, []int{5})
}

// TestPrologues: a product whose kernel makes the matrix has the bits of the product of a matrix that was made before, with one launch less
// if there are few rows.
func TestPrologues(t *testing.T) {
	for _, c := range []struct {
		name    string
		t       dtype.DType
		lim     Limits
		m, n, k int
		depth   bool // the matrix lies along the depth
		// of are the factor and the number: 0 is one for all, 1 one for each line, 2 one for each place in a line, 3 one for each element.
		of       [2]int
		epilogue bool
		off      int // elements by which the whole numbers are off alignment
		fused    bool
	}{
		{"a factor for each column", dtype.BFloat16, hopper, 1, 72, 264, true, [2]int{1, 0}, false, 0, true},
		{"a factor for each depth", dtype.Float16, hopper, 2, 72, 264, true, [2]int{2, 3}, false, 0, true},
		{"columns beside each other", dtype.BFloat16, hopper, 1, 264, 96, false, [2]int{2, 0}, false, 0, true},
		{"columns beside each other, a factor for each depth", dtype.BFloat16, hopper, 3, 264, 96, false, [2]int{1, 3}, false, 0, true},
		{"with an epilogue", dtype.BFloat16, hopper, 1, 72, 520, true, [2]int{1, 2}, true, 0, true},
		{"with an epilogue, columns beside each other", dtype.Float32, hopper, 4, 264, 100, false, [2]int{2, 1}, true, 0, true},
		{"float32", dtype.Float32, hopper, 2, 68, 1028, true, [2]int{1, 0}, false, 0, true},
		{"off alignment", dtype.BFloat16, hopper, 1, 72, 264, true, [2]int{3, 1}, false, 2, true},
		{"off alignment by one, columns beside each other", dtype.BFloat16, hopper, 1, 264, 96, false, [2]int{0, 2}, true, 1, true},
		{"many rows", dtype.BFloat16, hopper, 40, 72, 264, true, [2]int{1, 0}, true, 0, false},
		{"few multiprocessors", dtype.BFloat16, small, 1, 72, 264, true, [2]int{1, 0}, false, 0, false},
		{"narrow accesses", dtype.BFloat16, hopper, 1, 72, 266, true, [2]int{1, 0}, false, 0, false},
	} {
		for _, bias := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bias %v", c.name, bias), func(t *testing.T) {
				h, rng := newHost(t), rand.New(rand.NewPCG(1, 2))
				h.limits = c.lim
				lines, length := c.n, c.k
				if !c.depth {
					lines, length = c.k, c.n
				}
				lie := func(o Operand, line, place int) Operand { // o in the shape of the matrix
					o.Shape, o.Stride = []int{c.k, c.n}, []int{line, place}
					if c.depth {
						o.Stride = []int{place, line}
					}
					return o
				}
				operand := func(t dtype.DType, kind, off int) Operand {
					line, place := kind&1*max(1, kind>>1*length), kind>>1
					o := h.normal(rng, t, off+lines*length)
					o.Ptr += uint64(off * t.Size())
					return lie(o, line, place)
				}
				whole := h.empty(dtype.Int8, c.off+lines*length)
				for i, b := 0, h.view(whole.Ptr); i < c.off+lines*length; i++ {
					b[i] = byte(rng.IntN(256))
				}
				h.written(whole.Ptr, 0)
				whole.Ptr += uint64(c.off)
				p := &Prologue{Op: prologueOf(c.t), Scalars: []Scalar{FloatScalar(0.01)},
					Ins: []Operand{lie(whole, length, 1), operand(c.t, c.of[0], 0), operand(dtype.Float32, c.of[1], 0)}}
				a := h.normal(rng, c.t, c.m, c.k)
				opt := MatmulOpt{Alpha: 1}
				if bias {
					v := h.normal(rng, c.t, c.n)
					opt.Beta, opt.Bias = 1, Operand{Ptr: v.Ptr, DType: c.t, Shape: []int{c.m, c.n}, Stride: []int{0, 1}}
				}
				results := func() []Operand { return []Operand{h.empty(c.t, c.m, c.n)} }
				if c.epilogue {
					column, last := h.normal(rng, dtype.Float32, c.n), h.normal(rng, dtype.BFloat16, c.m, c.n)
					opt.Epilogue = &Epilogue{Op: epilogueOf(c.t), Scalars: []Scalar{FloatScalar(0.25)}, Ins: []Operand{column, last}}
					results = func() []Operand {
						return []Operand{h.empty(c.t, c.m, c.n), h.empty(dtype.BFloat16, c.m, c.n), h.empty(dtype.Bool, c.m, c.n)}
					}
				}
				run := func(b Operand, opt MatmulOpt) []Operand {
					all := results()
					out := all[0]
					if opt.Epilogue != nil {
						e := *opt.Epilogue
						e.Outs, opt.Epilogue, out.Ptr = all, &e, 0
					}
					check(t, Matmul(h, out, a, b, opt))
					return all
				}
				b := lie(h.empty(c.t, lines*length), length, 1)
				check(t, Pointwise(h, p.Op, dtype.Float32, p.Scalars, []Operand{b}, p.Ins))
				want := run(b, opt)
				apart := h.launches
				h.launches, b.Ptr = 0, 0
				opt.Prologue = p
				if got := MakesMatrix(&h.limits, want[0], a, b, MatmulOpt{Alpha: 1}); got != c.fused {
					t.Errorf("MakesMatrix says %v", got)
				}
				got := run(b, opt)
				if n := apart - h.launches; n != 1 && c.fused || n != 0 && !c.fused {
					t.Errorf("%d launches, and %d with the matrix made before", h.launches, apart)
				}
				for o := range got {
					if g, w := h.read(got[o]), h.read(want[o]); !slices.EqualFunc(g, w, same) {
						t.Errorf("output %d: got %v, want %v", o, g[:8], w[:8])
					}
				}
			})
		}
	}
}

func TestPrologueErrors(t *testing.T) {
	h := newHost(t)
	half := dtype.BFloat16
	of := func(t dtype.DType, stride ...int) Operand {
		o := h.empty(t, 16, 8)
		if len(stride) > 0 {
			o.Stride = stride
		}
		return o
	}
	f := dtype.Float32
	op := Fuse([]dtype.DType{dtype.Int8, half}, []FusedStep{
		{Op: Mul, Compute: half, Ins: []FusedIn{{Value: 0, Via: half}, {Value: 1}}, Outs: []FusedOut{{DType: half}}}}, []int{2})
	two := Fuse([]dtype.DType{f, f}, []FusedStep{
		{Op: Add, Compute: f, Ins: []FusedIn{{Value: 0}, {Value: 1}}, Outs: []FusedOut{{DType: f}}},
		{Op: Mul, Compute: f, Ins: []FusedIn{{Value: 0}, {Value: 1}}, Outs: []FusedOut{{DType: f}}}}, []int{2, 3})
	none := Fuse(nil, []FusedStep{{Op: Fill, Compute: half, Ins: []FusedIn{{Value: ScalarIn}}, Outs: []FusedOut{{DType: half}}}}, []int{0})
	ok := []Operand{of(dtype.Int8), of(half, 0, 1)}
	small := h.empty(half, 8, 8)
	for _, c := range []struct {
		b    Operand
		p    Prologue
		want string
	}{
		{of(half), Prologue{Op: op, Ins: ok[:1]}, "makes 1 outputs of 2 inputs and 0 scalars; got 1, 1 and 0"},
		{of(half), Prologue{Op: op, Ins: ok, Scalars: []Scalar{FloatScalar(1)}}, "got 1, 2 and 1"},
		{of(half), Prologue{Op: two, Ins: ok}, "makes 2 outputs"},
		{of(half), Prologue{Op: none}, "has no inputs"},
		{of(half), Prologue{Op: Mul, Ins: ok}, "not of the kind that Fuse makes"},
		{of(half, 16, 1), Prologue{Op: op, Ins: ok}, "without gaps, not [16 8] with strides [16 1]"},
		{of(half, 16, 2), Prologue{Op: op, Ins: ok}, "without gaps"},
		{of(half), Prologue{Op: op, Ins: []Operand{ok[0], of(half, 1, 16)}}, "input 1 of prologue"},
		{of(half), Prologue{Op: op, Ins: []Operand{ok[0], small}}, "is bfloat16 [8 8] with strides [8 1]"},
		{of(half), Prologue{Op: op, Ins: []Operand{of(dtype.Complex64), ok[1]}}, "input 0 of prologue"},
	} {
		err := Matmul(h, h.empty(half, 1, 8), h.empty(half, 1, 16), c.b, MatmulOpt{Alpha: 1, Prologue: &c.p})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
