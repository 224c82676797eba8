package linalg

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
)

func numbers(r *rand.Rand, n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = 2*r.Float64() - 1
	}
	return v
}

// devices selects the processor, the simulator and, if there is one, the GPU.
func devices() []tenon.Selector {
	all := []tenon.Selector{tenon.CPU(), tenon.Sim(0)}
	if tenon.GPUs() > 0 {
		all = append(all, tenon.CUDA(0))
	}
	return all
}

// byRolls computes the cross product of operands of one shape with core's operations.
func byRolls(x *tenon.Exec, a, b *tenon.Tensor, dim int) *tenon.Tensor {
	by := func(t *tenon.Tensor, n int) *tenon.Tensor { return x.Roll(t, []int{n}, dim) }
	return x.Sub(x.Mul(by(a, -1), by(b, -2)), x.Mul(by(a, -2), by(b, -1)))
}

// TestCross compares Cross with products and differences of core's operations: the same bits in every type, whatever the layout.
func TestCross(t *testing.T) {
	for _, sel := range devices() {
		x := testdevice.Open(t, sel)
		r := rand.New(rand.NewPCG(1, 2))
		for _, dt := range []tenon.DType{tenon.Float32, tenon.Float64, tenon.Float16, tenon.BFloat16, tenon.Int32, tenon.Uint8,
			tenon.Complex64, tenon.Complex128} {
			x.Scope(func(x *tenon.Exec) {
				some := func(shape ...int) *tenon.Tensor {
					n := 1
					for _, d := range shape {
						n *= d
					}
					v := x.MulS(tenon.From(x, numbers(r, n), shape...), 50)
					if dt.IsComplex() {
						return x.Mul(x.ToDType(v, dt), tenon.From(x, []complex64{complex(1, 2)}))
					}
					return x.ToDType(x.Abs(v), dt)
				}
				for _, c := range []struct {
					a, b *tenon.Tensor
					dim  int
				}{
					{some(3), some(3), 0}, {some(2, 3), some(2, 3), -1}, {some(3, 4, 2), some(3, 4, 2), 0},
					{x.Transpose(some(3, 5), 0, 1), some(5, 3), 1}, {some(1, 3), some(4, 3), 1}, {some(2, 3, 1), some(1, 3, 5), 1},
					{some(0, 3), some(0, 3), 1},
				} {
					got := Cross(x, c.a, c.b, c.dim)
					shape := got.Shape()
					want := byRolls(x, x.Expand(c.a, shape...), x.Expand(c.b, shape...), c.dim)
					if got.DType() != dt || !slices.Equal(shape, want.Shape()) {
						t.Fatalf("%v of %v and %v is %v", dt, c.a, c.b, got)
					}
					g, err := x.Bytes(got)
					w, err2 := x.Bytes(want)
					if err != nil || err2 != nil || !slices.Equal(g, w) {
						t.Errorf("%v of %v and %v along %d: %v, %v\n%v, want\n%v", dt, c.a, c.b, c.dim, err, err2, g, w)
					}
				}
			})
		}
	}
}

func TestRefusals(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	a, b := x.Ones([]int{2, 3}, tenon.Float32), x.Ones([]int{2, 2}, tenon.Float32)
	closed := x.Ones([]int{3}, tenon.Float32)
	closed.Close()
	for text, c := range map[string]struct {
		kind fault.Kind
		op   string
		f    func()
	}{
		"inputs must have the same number of dimensions": {
			fault.Invalid, "Cross", func() { Cross(x, a, x.Ones([]int{3}, tenon.Float32), -1) },
		},
		"inputs dimension 0 must have length 3. Got [2 3] and [2 3]": {
			fault.Invalid, "Cross", func() { Cross(x, a, a, 0) },
		},
		"Dimension out of range (expected to be in range of [-2, 1], but got 2)": {
			fault.Invalid, "Cross", func() { Cross(x, a, a, 2) },
		},
		"must match the size of tensor b (4) at non-singleton dimension 0": {
			fault.Invalid, "Cross", func() { Cross(x, a, x.Ones([]int{4, 3}, tenon.Float32), 1) },
		},
		"Cross is not defined for bool tensors": {
			fault.Unsupported, "Cross", func() { Cross(x, x.ToDType(a, tenon.Bool), x.ToDType(a, tenon.Bool), 1) },
		},
		"operand 1 is nil": {
			fault.Invalid, "Cross", func() { Cross(x, a, nil, 1) },
		},
		"operand 0 is a zero Tensor": {
			fault.Invalid, "Cross", func() { Cross(x, &tenon.Tensor{}, a, 1) },
		},
		"was closed": {
			fault.Closed, "VecDot", func() { VecDot(x, closed, a, 0) },
		},
		"the Exec is nil": {
			fault.Invalid, "VecDot", func() { VecDot(nil, a, a, 0) },
		},
		"expected to be in range of [-2, 1], but got -3": {
			fault.Invalid, "VecDot", func() { VecDot(x, a, a, -3) },
		},
		"Expected x and y to have the same dtype, but found x of type float32 and y of type float64": {
			fault.Invalid, "VecDot", func() { VecDot(x, a, x.ToDType(a, tenon.Float64), -1) },
		},
		"Expected a floating point or complex tensor as input. Got int64": {
			fault.Unsupported, "VecDot", func() { VecDot(x, x.ToDType(a, tenon.Int64), x.ToDType(a, tenon.Int64), -1) },
		},
		"Got bool": {
			fault.Unsupported, "VecDot", func() { VecDot(x, x.ToDType(a, tenon.Bool), x.ToDType(a, tenon.Bool), -1) },
		},
		"found x of type float16 and y of type float64": { // autocast does not convert float64
			fault.Invalid, "VecDot", func() { VecDot(x.Autocast(tenon.Float16), a, x.ToDType(a, tenon.Float64), -1) },
		},
		"expected at least 2 tensors but got 1": {
			fault.Invalid, "MultiDot", func() { MultiDot(x, []*tenon.Tensor{a}) },
		},
		"tensors 0 and 1 with shapes [2 3] and [2 2] cannot be multiplied": {
			fault.Invalid, "MultiDot", func() { MultiDot(x, []*tenon.Tensor{a, b}) },
		},
		"tensor 1 must be 2D, or 1D where it is the first or last, but": {
			fault.Invalid, "MultiDot", func() { MultiDot(x, []*tenon.Tensor{a, x.Ones([]int{3}, tenon.Float32), b}) },
		},
		"nuclear norm can only be computed over exactly two dimensions of a tensor": {
			fault.Invalid, "NuclearNorm", func() { NuclearNorm(x, x.Ones([]int{3}, tenon.Float32), nil) },
		},
		"the nuclear norm is not implemented for float16; convert the tensor to float32 ": {
			fault.Unsupported, "NuclearNorm", func() { NuclearNorm(x, x.ToDType(a, tenon.Float16), nil) },
		},
	} {
		e, ok := tenon.Try(c.f).(*fault.Error)
		if !ok || e.Kind != c.kind || e.Op != c.op || !strings.Contains(e.Msg, text) || !strings.HasSuffix(e.File, "linalg_test.go") {
			t.Errorf("got %v (%+v), want one of %s with %q at the caller's line", e, e, c.op, text)
		}
	}
}

// TestDerivatives compares first and second derivatives with finite differences.
func TestDerivatives(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	r := rand.New(rand.NewPCG(3, 4))
	for name, c := range map[string]struct {
		shapes [][]int
		f      func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor
	}{
		"Cross":     {[][]int{{2, 3}, {2, 3}}, func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor { return Cross(x, in[0], in[1], 1) }},
		"broadcast": {[][]int{{3, 1}, {3, 2}}, func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor { return Cross(x, in[0], in[1], 0) }},
		"VecDot":    {[][]int{{2, 3}, {3}}, func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor { return VecDot(x, in[0], in[1], -1) }},
		"MultiDot":  {[][]int{{2}, {2, 3}, {3, 2}}, func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor { return MultiDot(x, in) }},
		"NuclearNorm": {[][]int{{3, 2}}, func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
			return NuclearNorm(x, in[0], nil, tenon.SumOpt{KeepDim: true})
		}},
	} {
		x.Scope(func(x *tenon.Exec) {
			var in []*tenon.Tensor
			var at [][]float64
			for _, s := range c.shapes {
				n := 1
				for _, d := range s {
					n *= d
				}
				at = append(at, numbers(r, n))
				in = append(in, tenon.From(x, at[len(at)-1], s...).SetRequiresGrad(true))
			}
			weights := tenon.From(x, numbers(r, 8))
			value := func(in []*tenon.Tensor) *tenon.Tensor {
				y := c.f(x, in)
				return x.Sum(x.Mul(x.Square(y), x.View(x.Slice(weights, 0, 0, y.Numel(), 1), y.Shape()...)), nil)
			}
			gradients := func() ([]*tenon.Tensor, []float64) {
				g, err := x.Grad([]*tenon.Tensor{value(in)}, in, tenon.GradOpt{CreateGraph: true})
				if err != nil {
					t.Fatal(name, err)
				}
				var all []float64
				for _, g := range g {
					all = append(all, testdevice.Read[float64](t, x, g)...)
				}
				return g, all
			}
			gs, first := gradients()
			// The second derivative along the direction of ones.
			var flow *tenon.Tensor
			for _, g := range gs {
				if s := x.Sum(g, nil); flow == nil {
					flow = s
				} else {
					flow = x.Add(flow, s)
				}
			}
			second, err := x.Grad([]*tenon.Tensor{flow}, in)
			if err != nil {
				t.Fatal(name, err)
			}
			const h = 1e-5
			k := 0
			for i, v := range at {
				got := testdevice.Read[float64](t, x, second[i])
				for j := range v {
					ends := [2]float64{}
					flows := [2]float64{}
					for e, d := range []float64{-h, h} {
						moved := slices.Clone(v)
						moved[j] += d
						keep := in[i]
						in[i] = tenon.From(x, moved, c.shapes[i]...).SetRequiresGrad(true)
						ends[e] = testdevice.Read[float64](t, x, value(in))[0]
						_, all := gradients()
						for _, g := range all {
							flows[e] += g
						}
						in[i] = keep
					}
					if want := (ends[1] - ends[0]) / (2 * h); math.Abs(first[k]-want) > 1e-6 {
						t.Errorf("%s: input %d, element %d: the derivative is %v, differences give %v", name, i, j, first[k], want)
					}
					if want := (flows[1] - flows[0]) / (2 * h); math.Abs(got[j]-want) > 1e-5 {
						t.Errorf("%s: input %d, element %d: the second derivative is %v, differences give %v", name, i, j, got[j], want)
					}
					k++
				}
			}
		})
	}
}

// TestComplexCross compares the gradients of complex factors with those of core's operations.
func TestComplexCross(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	z := []complex128{1 + 2i, -1i, 3, 2 - 1i, 1i, -2 + 1i}
	grads := func(f func(x *tenon.Exec, a, b *tenon.Tensor, dim ...int) *tenon.Tensor) (all []complex128) {
		a, b := tenon.From(x, z[:3]).SetRequiresGrad(true), tenon.From(x, z[3:]).SetRequiresGrad(true)
		if err := x.Backward(f(x, a, b, 0), tenon.BackwardOpt{Gradient: tenon.From(x, []complex128{1 - 1i, 2i, 3 + 1i})}); err != nil {
			t.Fatal(err)
		}
		return append(testdevice.Read[complex128](t, x, a.Grad()), testdevice.Read[complex128](t, x, b.Grad())...)
	}
	rolled := func(x *tenon.Exec, a, b *tenon.Tensor, dim ...int) *tenon.Tensor { return byRolls(x, a, b, dim[0]) }
	if got, want := grads(Cross), grads(rolled); !slices.Equal(got, want) {
		t.Errorf("gradients %v, want %v", got, want)
	}
}

// TestVecDot compares VecDot with core's operations in every type, whatever the layout, with gradients.
func TestVecDot(t *testing.T) {
	for _, sel := range devices() {
		x := testdevice.Open(t, sel)
		r := rand.New(rand.NewPCG(7, 8))
		for dt, near := range map[tenon.DType]float64{tenon.Float32: 1e-5, tenon.Float64: 1e-12, tenon.Float16: 2e-2, tenon.BFloat16: 0.2,
			tenon.Complex64: 1e-5, tenon.Complex128: 1e-12} {
			x.Scope(func(x *tenon.Exec) {
				some := func(shape ...int) *tenon.Tensor {
					n := 1
					for _, d := range shape {
						n *= d
					}
					v := tenon.From(x, numbers(r, n), shape...)
					if dt.IsComplex() {
						v = x.Mul(v, tenon.From(x, []complex128{complex(1, 2)}))
					}
					return x.ToDType(v, dt)
				}
				for _, c := range []struct {
					a, b *tenon.Tensor
					dim  int
				}{
					{some(5), some(5), 0}, {some(2, 300), some(2, 300), -1}, {some(3, 4, 2), some(4, 2), 1}, {some(3, 1), some(3, 4), 0},
					{x.Transpose(some(6, 5), 0, 1), some(5, 6), 1}, {some(0, 3), some(0, 3), 0}, {some(0, 3), some(0, 3), 1},
					{some(4, 1), some(4, 7), 1},
				} {
					var outs [2]*tenon.Tensor
					var grads [2][2]*tenon.Tensor
					for i, f := range []func(a, b *tenon.Tensor) *tenon.Tensor{
						func(a, b *tenon.Tensor) *tenon.Tensor { return VecDot(x, a, b, c.dim) },
						func(a, b *tenon.Tensor) *tenon.Tensor {
							if dt.IsComplex() {
								a = x.Conj(a)
							}
							return x.Sum(x.Mul(a, b), []int{c.dim})
						},
					} {
						a, b := x.Detach(c.a).SetRequiresGrad(true), x.Detach(c.b).SetRequiresGrad(true)
						outs[i] = f(a, b)
						g, err := x.Grad([]*tenon.Tensor{outs[i]}, []*tenon.Tensor{a, b},
							tenon.GradOpt{Gradients: []*tenon.Tensor{x.MulS(x.OnesLike(outs[i]), 0.5)}})
						if err != nil {
							t.Fatal(err)
						}
						grads[i] = [2]*tenon.Tensor{g[0], g[1]}
					}
					for i, pair := range [][2]*tenon.Tensor{outs, {grads[0][0], grads[1][0]}, {grads[0][1], grads[1][1]}} {
						got, want := pair[0], pair[1]
						if got.DType() != dt || !slices.Equal(got.Shape(), want.Shape()) {
							t.Fatalf("%v of %v and %v: %d is %v, want %v", dt, c.a, c.b, i, got, want)
						}
						if got.Numel() == 0 {
							continue
						}
						wide := tenon.Float64
						if dt.IsComplex() {
							wide = tenon.Complex128
						}
						apart, err := x.Item(x.AMax(x.Abs(x.Sub(x.ToDType(got, wide), x.ToDType(want, wide))), nil))
						if err != nil || apart > near {
							t.Errorf("%v of %v and %v: %d is %v apart, %v", dt, c.a, c.b, i, apart, err)
						}
					}
				}
			})
		}
	}
}

// callsSeen is a tap that records the calls.
type callsSeen struct{ calls []core.Call }

func (c *callsSeen) Before(f *core.Frame) bool { c.calls = append(c.calls, f.Call()); return false }
func (c *callsSeen) After(*core.Frame)         {}

// TestRow checks that a row outside core behaves like core's: a tap sees one call of it, which prints, is inferred without a device and
// runs again; it can be captured, and autocast converts its operands to one type.
func TestRow(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	a, b := tenon.From(x, []float32{1, 2, 3}), tenon.From(x, []float32{4, 5, 6})
	seen := &callsSeen{}
	core.SetTap((*core.Exec)(x), seen)
	y := Cross(x, a, b, -1)
	core.SetTap((*core.Exec)(x), nil)
	if len(seen.calls) != 1 || seen.calls[0].Op() != "Cross" || !strings.HasPrefix(seen.calls[0].String(), "Cross(float32[3]") ||
		!strings.HasSuffix(seen.calls[0].String(), " i0=-1") {
		t.Fatal("a tap saw", seen.calls)
	}
	outs, err := seen.calls[0].Infer()
	if err != nil || len(outs) != 1 || outs[0].DType != tenon.Float32 || !slices.Equal(outs[0].Shape, []int{3}) {
		t.Error("Infer gives", outs, err)
	}
	again := core.Again((*core.Exec)(x), seen.calls[0], []*core.Tensor{(*core.Tensor)(b), (*core.Tensor)(a)})
	if got, turned := testdevice.Read[float32](t, x, y), testdevice.Read[float32](t, x, (*tenon.Tensor)(again[0])); !slices.Equal(got,
		[]float32{-3, 6, -3}) ||
		!slices.Equal(turned, []float32{3, -6, 3}) {
		t.Error("it gives", got, "and again, turned around,", turned)
	}
	var z *tenon.Tensor
	g, err := x.Capture(func(x *tenon.Exec) { z = Cross(x, a, b, 0) })
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	x.CopyInto(a, tenon.From(x, []float32{0, 0, 1}))
	if err := x.Replay(g); err != nil {
		t.Fatal(err)
	}
	if got := testdevice.Read[float32](t, x, z); !slices.Equal(got, []float32{-5, 4, 0}) {
		t.Error("a replay gives", got)
	}
	half := x.ToDType(b, tenon.Float16)
	y16 := x.Autocast(tenon.Float16)
	if low, wide := Cross(y16, half, half, 0), Cross(y16, half, b, 0); low.DType() != tenon.Float16 || wide.DType() != tenon.Float32 {
		t.Error("under autocast it is", low, "and", wide)
	}
}

// TestChainOrder compares chainOrder with the cheapest of all orders.
func TestChainOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		sizes := make([]int, 3+r.IntN(4))
		for i := range sizes {
			sizes[i] = 1 + r.IntN(9)
		}
		split := chainOrder(sizes)
		var cost, least func(i, j int) int
		cost = func(i, j int) int {
			if i == j {
				return 0
			}
			k := split[i][j]
			return cost(i, k) + cost(k+1, j) + sizes[i]*sizes[k+1]*sizes[j+1]
		}
		least = func(i, j int) int {
			if i == j {
				return 0
			}
			best := math.MaxInt
			for k := i; k < j; k++ {
				best = min(best, least(i, k)+least(k+1, j)+sizes[i]*sizes[k+1]*sizes[j+1])
			}
			return best
		}
		if n := len(sizes) - 2; cost(0, n) != least(0, n) {
			t.Errorf("%v takes %d multiplications, and could take %d", sizes, cost(0, n), least(0, n))
		}
	}
	if triple(1<<40, 1<<40, 2) != 1<<56 || triple(2, 3, 4) != 24 {
		t.Error("triple overflows")
	}
}
