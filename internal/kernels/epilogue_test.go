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

// epilogueWithBias is epilogueOf for a convolution to which a bias, one more input, is added first.
func epilogueWithBias(t dtype.DType) *PointOp {
	f, bf := dtype.Float32, dtype.BFloat16
	return Fuse([]dtype.DType{t, f, bf, t}, []FusedStep{
		BiasStep(t, 3),
		{Op: Add, Compute: f, Ins: []FusedIn{{Value: 4}, {Value: 1}}, Outs: []FusedOut{{DType: bf}}},
		{Op: GELUTanh, Compute: bf, Ins: []FusedIn{{Value: 5}}, Outs: []FusedOut{{DType: bf}}},
		{Op: Mul, Compute: f, Ins: []FusedIn{{Value: 6}, {Value: 2}}, Outs: []FusedOut{{DType: f}}},
		{Op: Lt, Compute: f, Ins: []FusedIn{{Value: 7}, {Value: ScalarIn}}, Outs: []FusedOut{{DType: dtype.Bool}}},
	}, []int{4, 5, 8})
}

// small and hopper are devices for which products are planned differently.
var (
	small  = Limits{Multiprocessors: 4, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 48 << 10, Major: 8}
	hopper = Limits{Multiprocessors: 33, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 227 << 10, Major: 9}
)

// TestEpilogues: a product with an epilogue has the bits of the product and the operation after it, with the same number of launches less
// one.
func TestEpilogues(t *testing.T) {
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
		{"one row of a large device", dtype.BFloat16, hopper, 1, 104, 200, true, 0, 0},
		{"three rows of a large device", dtype.Float32, hopper, 3, 72, 50, true, 0, 0},
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
			e := &Epilogue{Op: op, Scalars: numbers, Ins: []Operand{column, last}}
			compareEpilogue(t, h, h.empty(c.t, c.m, c.n), e, make3, []Operand{wide, last}, func(out Operand, e *Epilogue) {
				opt.Epilogue = e
				check(t, Matmul(h, out, a, b, opt))
			})
		})
	}
}

// compareEpilogue compares what run does without an epilogue, and then e's operation alone, with what it does with e: the bits of e's
// outputs, which outs makes, and the number of launches. ins are the inputs besides the result in its shape. It returns the number of
// launches of run alone.
func compareEpilogue(t *testing.T, h *host, result Operand, e *Epilogue, outs func() []Operand, ins []Operand,
	run func(out Operand, e *Epilogue)) int {
	t.Helper()
	want, got := outs(), outs()
	h.launches = 0
	run(result, nil)
	alone := h.launches
	check(t, Pointwise(h, e.Op, dtype.Float32, e.Scalars, want, append([]Operand{result}, ins...)))
	apart := h.launches
	e.Outs, result.Ptr, h.launches = got, 0, 0
	run(result, e)
	if h.launches != apart-1 {
		t.Errorf("%d launches, and %d without an epilogue", h.launches, apart)
	}
	for o := range got {
		if g, w := h.read(got[o]), h.read(want[o]); !slices.EqualFunc(g, w, same) {
			t.Errorf("output %d: got %v, want %v", o, g[:8], w[:8])
		}
	}
	return alone
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

// TestConvEpilogues: a convolution with an epilogue has the bits of the convolution and the operation after it, with the same number of
// launches less one.
func TestConvEpilogues(t *testing.T) {
	half, single := dtype.BFloat16, dtype.Float32
	for _, c := range []struct {
		name                    string
		t                       dtype.DType
		lim                     Limits
		in, out, taps, step, hw int
		turn                    ConvTurn
		split, bias             bool
	}{
		{"one tap", half, hopper, 32, 48, 1, 1, 9, TurnWhereGood, false, false},
		{"one tap and a bias", half, hopper, 32, 48, 1, 1, 9, TurnWhereGood, false, true},
		{"one tap of float32", single, small, 16, 24, 1, 1, 5, TurnWhereGood, false, false},
		{"one tap, odd channels", half, small, 7, 13, 1, 1, 5, TurnWhereGood, false, false},
		{"one tap, parts", half, hopper, 4096, 32, 1, 1, 4, TurnWhereGood, true, false},
		{"one tap, parts and a bias", half, hopper, 4096, 32, 1, 1, 4, TurnWhereGood, true, true},
		{"nine taps", half, hopper, 16, 64, 3, 1, 8, TurnWherePossible, false, false},
		{"nine taps and a bias", half, hopper, 16, 64, 3, 1, 8, TurnWherePossible, false, true},
		{"nine taps of float32", single, small, 8, 24, 3, 1, 7, TurnWherePossible, false, false},
		{"nine taps of float32 and a bias", single, small, 8, 24, 3, 1, 7, TurnWherePossible, false, true},
		{"nine taps of float64 and a bias", dtype.Float64, small, 8, 24, 3, 1, 5, TurnWherePossible, false, true},
		{"a step of two", half, small, 16, 40, 3, 2, 9, TurnWherePossible, false, false},
		{"three colours", half, small, 3, 32, 3, 2, 9, TurnWherePossible, false, true},
		{"odd channels", half, small, 8, 33, 3, 1, 5, TurnWherePossible, false, false},
		{"parts", half, hopper, 264, 32, 3, 1, 4, TurnWherePossible, true, false},
		{"parts and a bias", half, hopper, 264, 32, 3, 1, 4, TurnWherePossible, true, true},
		{"gathered", half, hopper, 32, 64, 3, 2, 9, TurnWherePossible, false, false},
		{"gathered, parts", half, hopper, 256, 32, 3, 1, 4, TurnWherePossible, true, false},
		{"gathered, parts and a bias", half, hopper, 256, 32, 3, 1, 4, TurnWherePossible, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, rng := newHost(t), rand.New(rand.NewPCG(1, 2))
			h.limits = c.lim
			conv := &Conv{Batch: 2, In: c.in, H: c.hw, W: c.hw, Out: c.out, KH: c.taps, KW: c.taps, StrideH: c.step, StrideW: c.step,
				PadH: c.taps / 2, PadW: c.taps / 2, DilationH: 1, DilationW: 1, Groups: 1, LastX: true, LastY: true, LastW: true,
				Turn: c.turn}
			conv.OH = (c.hw+2*conv.PadH-c.taps)/c.step + 1
			conv.OW = conv.OH
			if !conv.FitsEpilogue(c.t) {
				t.Fatal("it does not fit")
			}
			pixels := conv.Batch * conv.OH * conv.OW
			x, w := h.normal(rng, c.t, conv.Batch*c.hw*c.hw, c.in), h.normal(rng, c.t, c.out, c.taps*c.taps*c.in)
			op, numbers := epilogueOf(c.t), []Scalar{FloatScalar(0.25)}
			var bias Operand
			if c.bias {
				bias = h.normal(rng, c.t, c.out)
			}
			channel, last := h.normal(rng, single, c.out), h.normal(rng, half, pixels, c.out)
			wide := Operand{Ptr: channel.Ptr, DType: channel.DType, Shape: []int{pixels, c.out}, Stride: []int{0, 1}}
			make3 := func() []Operand {
				return []Operand{h.empty(c.t, pixels, c.out), h.empty(half, pixels, c.out), h.empty(dtype.Bool, pixels, c.out)}
			}
			e := &Epilogue{Op: op, Scalars: numbers, Ins: []Operand{channel, last}}
			alone := compareEpilogue(t, h, h.empty(c.t, pixels, c.out), e, make3, []Operand{wide, last}, func(out Operand, e *Epilogue) {
				if e == nil {
					check(t, ConvForward(h, conv, out, x, w, bias))
					if c.bias && c.split && c.taps > 1 && conv.walks(h.Limits(), convForward, c.t) == nil {
						h.launches-- // that which adds the bias
					}
					return
				}
				if c.bias {
					e = &Epilogue{Op: epilogueWithBias(c.t), Scalars: e.Scalars, Outs: e.Outs, Ins: append(e.Ins, bias)}
				}
				check(t, ConvForwardWith(h, conv, out, x, w, e))
			})
			if split := alone > 1; split != c.split && c.in != 3 {
				t.Errorf("%d launches of the convolution", alone)
			}
		})
	}
}

func TestConvEpilogueErrors(t *testing.T) {
	h := newHost(t)
	f := dtype.Float32
	conv := Conv{Batch: 1, In: 8, H: 4, W: 4, Out: 8, KH: 1, KW: 1, StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1,
		OH: 4, OW: 4, LastX: true, LastY: true, LastW: true}
	neg := Fuse([]dtype.DType{f}, []FusedStep{{Op: Neg, Compute: f, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: f}}}}, []int{1})
	fits := Epilogue{Op: neg, Outs: []Operand{h.empty(f, 16, 8)}}
	for _, c := range []struct {
		change func(c *Conv, e *Epilogue)
		want   string
	}{
		{func(c *Conv, _ *Epilogue) { c.LastX, c.LastY, c.LastW = false, false, false }, "with its channels last"},
		{func(c *Conv, _ *Epilogue) { c.Groups = 2 }, "without groups"},
		{func(c *Conv, _ *Epilogue) { c.In, c.KH, c.PadH = 7, 3, 1 }, "whose one product"}, // seven channels are gathered one by one
		{func(_ *Conv, e *Epilogue) { e.Outs = []Operand{h.empty(f, 16, 4)} }, "operand 0 of epilogue"},
		{func(_ *Conv, e *Epilogue) { e.Ins = []Operand{h.empty(f, 8)} }, "takes 1 outputs, 0 inputs"},
	} {
		v, e := conv, fits
		c.change(&v, &e)
		x, w := h.empty(f, 16, 8), h.empty(f, 8*v.KH*8)
		if err := ConvForwardWith(h, &v, h.empty(f, 16, 8), x, w, &e); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
