package kernels

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// epilogueOf returns an operation on a product of type t and two more inputs, the first with an element for each column: its results are
// the product, the sum, rounded to a half, and whether a GELU of that times the last input is less than a number.
func epilogueOf(t dtype.DType) *PointOp {
	f, bf := dtype.Float32, dtype.BFloat16
	return Fuse([]dtype.DType{t, f, bf}, []FusedStep{
		{Op: Add, Compute: f, Ins: []FusedIn{{Value: 0}, {Value: 1}}, Outs: []FusedOut{{DType: bf}}},
		{Op: GELUTanh, Compute: bf, Ins: []FusedIn{{Value: 3}}, Outs: []FusedOut{{DType: bf}}},
		{Op: Mul, Compute: f, Ins: []FusedIn{{Value: 4}, {Value: 2}}, Outs: []FusedOut{{DType: f}}},
		{Op: Lt, Compute: f, Ins: []FusedIn{{Value: 5}, {Value: ScalarIn}}, Outs: []FusedOut{{DType: dtype.Bool}}},
	}, []int{0, 3, 6})
}

// TestEpilogues: a product with an epilogue has the bits of the product and the operation after it, with the same number of launches less
// one.
func TestEpilogues(t *testing.T) {
	small := Limits{Multiprocessors: 4, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 48 << 10, Major: 8}
	hopper := Limits{Multiprocessors: 33, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 227 << 10, Major: 9}
	for _, c := range []struct {
		name    string
		t       dtype.DType
		lim     Limits
		m, n, k int
		bias    bool
		tile    int
		off     int // elements by which the product's own result is off alignment
	}{
		{"small", dtype.Float32, small, 40, 24, 16, true, 0, 0},
		{"odd", dtype.BFloat16, small, 7, 13, 40, false, 0, 0},
		{"one row", dtype.Float32, small, 1, 24, 40, true, 0, 0},
		{"two columns", dtype.Float64, small, 33, 2, 40, true, 0, 0},
		{"split", dtype.BFloat16, hopper, 64, 64, 4096, true, 0, 0},
		{"split of float32", dtype.Float32, small, 32, 32, 2048, true, 0, 0},
		{"mapped", dtype.BFloat16, hopper, 256, 256, 128, true, 0, 0},
		{"misaligned", dtype.BFloat16, hopper, 256, 256, 128, true, 0, 2},
		{"lasting", dtype.BFloat16, hopper, 640, 1792, 64, true, 1, 0},
		{"lasting without a bias", dtype.Float16, hopper, 640, 1792, 64, false, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, rng := newHost(t), rand.New(rand.NewPCG(1, 2))
			h.limits = c.lim
			a, b := h.normal(rng, c.t, c.m, c.k), h.normal(rng, c.t, c.k, c.n)
			opt := MatmulOpt{Alpha: 1, Tile: c.tile}
			if c.bias {
				v := h.normal(rng, c.t, c.n)
				opt.Beta, opt.Bias = 1, Operand{Ptr: v.Ptr, DType: c.t, Shape: []int{c.m, c.n}, Stride: []int{0, 1}}
			}
			op, numbers := epilogueOf(c.t), []Scalar{FloatScalar(0.25)}
			column, last := h.normal(rng, dtype.Float32, c.n), h.normal(rng, dtype.BFloat16, c.m, c.n)
			wide := Operand{Ptr: column.Ptr, DType: column.DType, Shape: []int{c.m, c.n}, Stride: []int{0, 1}}
			make3 := func() []Operand {
				first := h.empty(c.t, c.m*c.n+c.off)
				first.Ptr += uint64(c.off * c.t.Size())
				first.Shape, first.Stride = []int{c.m, c.n}, []int{c.n, 1}
				return []Operand{first, h.empty(dtype.BFloat16, c.m, c.n), h.empty(dtype.Bool, c.m, c.n)}
			}
			plain, want, got := h.empty(c.t, c.m, c.n), make3(), make3()
			h.launches = 0
			check(t, Matmul(h, plain, a, b, opt))
			check(t, Pointwise(h, op, dtype.Float32, numbers, want, []Operand{plain, wide, last}))
			alone := h.launches
			opt.Epilogue = &Epilogue{Op: op, Scalars: numbers, Outs: got, Ins: []Operand{column, last}}
			h.launches = 0
			nowhere := plain
			nowhere.Ptr = 0
			check(t, Matmul(h, nowhere, a, b, opt))
			if h.launches != alone-1 {
				t.Errorf("%d launches, and %d without an epilogue", h.launches, alone)
			}
			for o := range got {
				if g, w := h.read(got[o]), h.read(want[o]); !slices.EqualFunc(g, w, same) {
					t.Errorf("output %d: got %v, want %v", o, g[:8], w[:8])
				}
			}
		})
	}
}

func TestEpilogueErrors(t *testing.T) {
	h := newHost(t)
	f := dtype.Float32
	of := func(shape ...int) Operand { return h.empty(f, shape...) }
	add := FusedStep{Op: Add, Compute: f, Ins: []FusedIn{{Value: 0}, {Value: 1}}, Outs: []FusedOut{{DType: f}}}
	op := Fuse([]dtype.DType{f, f}, []FusedStep{add}, []int{2})
	turned := of(4, 8)
	turned.Shape, turned.Stride = []int{8, 4}, []int{1, 8}
	for _, c := range []struct {
		out, a, b Operand
		e         Epilogue
		want      string
	}{
		{of(2, 8, 4), of(2, 8, 3), of(2, 3, 4), Epilogue{Op: op, Outs: []Operand{of(2, 8, 4)}, Ins: []Operand{of(4)}},
			"one contiguous result"},
		{of(8, 1), of(8, 3), of(3, 1), Epilogue{Op: op, Outs: []Operand{of(8, 1)}, Ins: []Operand{of(8, 1)}}, "one contiguous result"},
		{turned, of(8, 3), of(3, 4), Epilogue{Op: op, Outs: []Operand{of(8, 4)}, Ins: []Operand{of(4)}}, "one contiguous result"},
		{of(8, 4), of(8, 3), of(3, 4), Epilogue{Op: op, Outs: []Operand{of(8, 4)}}, "takes 1 outputs, 1 inputs and 0 scalars"},
		{of(8, 4), of(8, 3), of(3, 4), Epilogue{Op: Add, Outs: []Operand{of(8, 4)}, Ins: []Operand{of(4)}}, "takes 1 outputs"},
		{of(8, 4), of(8, 3), of(3, 4), Epilogue{Op: op, Outs: []Operand{of(4)}, Ins: []Operand{of(4)}}, "operand 0 of epilogue"},
		{of(8, 4), of(8, 3), of(3, 4), Epilogue{Op: op, Outs: []Operand{of(8, 4)}, Ins: []Operand{of(8)}}, "operand 1 of epilogue"},
	} {
		err := Matmul(h, c.out, c.a, c.b, MatmulOpt{Alpha: 1, Epilogue: &c.e})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
