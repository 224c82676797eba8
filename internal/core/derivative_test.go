package core

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// differentiable is a function whose derivatives are compared with finite differences.
type differentiable struct {
	name string
	// lo and hi bound the inputs, ins is their number (0 means 1), shape their shape (nil means [3]).
	lo, hi float64
	ins    int
	shape  []int
	// complex says that the function is also defined for complex inputs.
	complex bool
	f       func(x *Exec, in []*Tensor) *Tensor
}

func of1(f func(x *Exec, t *Tensor) *Tensor) func(x *Exec, in []*Tensor) *Tensor {
	return func(x *Exec, in []*Tensor) *Tensor { return f(x, in[0]) }
}

func of2(f func(x *Exec, a, b *Tensor) *Tensor) func(x *Exec, in []*Tensor) *Tensor {
	return func(x *Exec, in []*Tensor) *Tensor { return f(x, in[0], in[1]) }
}

// pointwise lists element-wise functions.
func pointwise() []differentiable {
	one := func(name string, lo, hi float64, complex bool, f func(x *Exec, t *Tensor) *Tensor) differentiable {
		return differentiable{name: name, lo: lo, hi: hi, complex: complex, f: of1(f)}
	}
	two := func(name string, lo, hi float64, complex bool, f func(x *Exec, a, b *Tensor) *Tensor) differentiable {
		return differentiable{name: name, lo: lo, hi: hi, ins: 2, complex: complex, f: of2(f)}
	}
	return []differentiable{
		one("abs", 0.5, 2, true, (*Exec).Abs), one("neg", -1, 1, true, (*Exec).Neg), one("sgn", 0.5, 2, true, (*Exec).Sgn),
		one("sign", 0.5, 2, false, (*Exec).Sign), one("reciprocal", 0.5, 2, true, (*Exec).Reciprocal),
		one("sqrt", 0.5, 2, true, (*Exec).Sqrt),
		one("rsqrt", 0.5, 2, true, (*Exec).Rsqrt), one("square", -1, 1, true, (*Exec).Square), one("exp", -1, 1, true, (*Exec).Exp),
		one("exp2", -1, 1, true, (*Exec).Exp2), one("expm1", -1, 1, true, (*Exec).Expm1), one("log", 0.5, 2, true, (*Exec).Log),
		one("log2", 0.5, 2, true, (*Exec).Log2), one("log10", 0.5, 2, true, (*Exec).Log10), one("log1p", 0.5, 2, true, (*Exec).Log1p),
		one("sin", -1, 1, true, (*Exec).Sin), one("cos", -1, 1, true, (*Exec).Cos), one("tan", -1, 1, true, (*Exec).Tan),
		one("asin", -0.7, 0.7, true, (*Exec).Asin), one("acos", -0.7, 0.7, true, (*Exec).Acos), one("atan", -0.7, 0.7, true, (*Exec).Atan),
		one("sinh", -1, 1, true, (*Exec).Sinh), one("cosh", -1, 1, true, (*Exec).Cosh), one("tanh", -1, 1, true, (*Exec).Tanh),
		one("asinh", -0.7, 0.7, true, (*Exec).Asinh), one("acosh", 1.5, 3, true, (*Exec).Acosh),
		one("atanh", -0.7, 0.7, true, (*Exec).Atanh),
		one("sigmoid", -1, 1, true, (*Exec).Sigmoid), one("erf", -1, 1, false, (*Exec).Erf), one("erfc", -1, 1, false, (*Exec).Erfc),
		one("erfinv", -0.7, 0.7, false, (*Exec).Erfinv), one("floor", 0.1, 0.9, false, (*Exec).Floor),
		one("frac", 0.1, 0.9, false, (*Exec).Frac),
		one("relu", -1, 1, false, (*Exec).ReLU), one("gelu", -2, 2, false, (*Exec).GELU), one("gelu tanh", -2, 2, false, (*Exec).GELUTanh),
		one("silu", -2, 2, true, (*Exec).SiLU), one("logsigmoid", -2, 2, false, (*Exec).LogSigmoid),
		one("nan_to_num", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.NanToNum(t, NanToNumOpt{}) }),
		one("leaky_relu", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.LeakyReLU(t, LeakyReLUOpt{Slope: 0.1}) }),
		one("elu", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.ELU(t, ELUOpt{Alpha: 1.5}) }),
		one("hardtanh", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.Hardtanh(t, HardtanhOpt{Min: -0.3, Max: 0.4}) }),
		one("softplus", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.Softplus(t, SoftplusOpt{Beta: 2, Threshold: 1}) }),
		one("clamp", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.ClampS(t, -0.3, 0.4) }),
		one("pow 3", 0.5, 2, true, func(x *Exec, t *Tensor) *Tensor { return x.PowS(t, 3) }),
		one("pow 0", 0.5, 2, true, func(x *Exec, t *Tensor) *Tensor { return x.PowS(t, 0) }),
		one("rsub", -1, 1, true, func(x *Exec, t *Tensor) *Tensor { return x.RSubS(t, 2) }),
		one("rdiv", 0.5, 1, true, func(x *Exec, t *Tensor) *Tensor { return x.RDivS(t, 2) }),
		two("add scaled", -1, 1, true, func(x *Exec, a, b *Tensor) *Tensor { return x.AddScaled(a, b, -1.5) }),
		two("mul", -1, 1, true, (*Exec).Mul), two("div", 0.5, 1, true, (*Exec).Div), two("pow", 0.5, 2, true, (*Exec).Pow),
		two("float_power", 0.5, 2, true, (*Exec).FloatPower), two("remainder", 0.5, 2, false, (*Exec).Remainder),
		two("fmod", 0.5, 2, false, (*Exec).FMod),
		two("floor_divide", 0.5, 2, false, (*Exec).FloorDivide), two("div trunc", 0.5, 2, false, (*Exec).DivTrunc),
		two("maximum", -1, 1, false, (*Exec).Maximum), two("minimum", -1, 1, false, (*Exec).Minimum),
		two("fmax", -1, 1, false, (*Exec).FMax),
		two("fmin", -1, 1, false, (*Exec).FMin), two("atan2", 0.5, 2, false, (*Exec).Atan2), two("hypot", 0.5, 2, false, (*Exec).Hypot),
		one("angle", 0.5, 2, true, (*Exec).Angle), two("logaddexp2", -1, 1, false, (*Exec).LogAddExp2),
		two("prelu", -1, 1, false, func(x *Exec, a, b *Tensor) *Tensor { return x.PReLU(x.Unsqueeze(a, 0), b) }),
		two("prelu of one", -1, 1, false, func(x *Exec, a, b *Tensor) *Tensor { return x.PReLU(a, x.Select(b, 0, 1)) }),
		two("smooth l1", -1, 1, false, func(x *Exec, a, b *Tensor) *Tensor { return x.SmoothL1Loss(a, b, SmoothL1LossOpt{Beta: 0.5}) }),
		two("huber", -1, 1, false, func(x *Exec, a, b *Tensor) *Tensor {
			return x.HuberLoss(a, b, HuberLossOpt{Delta: 0.5, Reduction: ReduceNone})
		}),
		two("bce", 0.2, 0.8, false, func(x *Exec, a, b *Tensor) *Tensor {
			return x.BCE(a, b, BCEOpt{Weight: From(x, []float64{1, 2, 3})})
		}),
		two("kl_div", 0.2, 0.8, false, func(x *Exec, a, b *Tensor) *Tensor { return x.KLDiv(a, b, KLDivOpt{Reduction: ReduceBatchMean}) }),
		two("kl_div of logarithms", -1, 1, false, func(x *Exec, a, b *Tensor) *Tensor {
			return x.KLDiv(a, b, KLDivOpt{LogTarget: true, Reduction: ReduceNone})
		}),
		two("logaddexp", -1, 1, true, (*Exec).LogAddExp), two("clamp_min", -1, 1, false, (*Exec).ClampMin),
		two("clamp_max", -1, 1, false, (*Exec).ClampMax),
		{name: "clamp tensors", lo: -1, hi: 1, ins: 3, f: func(x *Exec, in []*Tensor) *Tensor { return x.Clamp(in[0], in[1], in[2]) }},
		{name: "lerp", lo: -1, hi: 1, ins: 3, complex: true, f: func(x *Exec, in []*Tensor) *Tensor { return x.Lerp(in[0], in[1], in[2]) }},
		{name: "addcmul", lo: -1, hi: 1, ins: 3, complex: true, f: func(x *Exec, in []*Tensor) *Tensor {
			return x.AddCMul(in[0], in[1], in[2], AddCMulOpt{Value: 1.5})
		}},
		{name: "addcdiv", lo: 0.5, hi: 1, ins: 3, complex: true, f: func(x *Exec, in []*Tensor) *Tensor {
			return x.AddCDiv(in[0], in[1], in[2], AddCMulOpt{Value: 1.5})
		}},
		{name: "where", lo: -1, hi: 1, ins: 2, complex: true, f: func(x *Exec, in []*Tensor) *Tensor {
			return x.Where(From(x, []bool{true, false, true}), in[0], in[1])
		}},
		{name: "masked_fill", lo: -1, hi: 1, ins: 2, complex: true, f: func(x *Exec, in []*Tensor) *Tensor {
			return x.MaskedFill(in[0], From(x, []bool{true, false, true}), x.Select(in[1], 0, 1))
		}},
		{name: "masked_select", lo: -1, hi: 1, complex: true, f: func(x *Exec, in []*Tensor) *Tensor {
			return x.Square(x.MaskedSelect(in[0], x.View(From(x, []bool{true, false, true, true, false, false}), 2, 3)))
		}},
		{name: "repeat_interleave", lo: -1, hi: 1, complex: true, f: func(x *Exec, in []*Tensor) *Tensor {
			return x.Square(x.RepeatInterleave(in[0], From(x, []int64{2, 0, 1}), RepeatInterleaveOpt{}))
		}},
		{name: "masked_scatter", lo: -1, hi: 1, ins: 2, complex: true, f: func(x *Exec, in []*Tensor) *Tensor {
			return x.Square(x.MaskedScatter(in[0], From(x, []bool{true, false, true}), x.Mul(in[1], in[0])))
		}},
	}
}

// reductions lists functions over dimensions.
func reductions() []differentiable {
	over := func(name string, lo, hi float64, complex bool, f func(x *Exec, t *Tensor) *Tensor) differentiable {
		return differentiable{name: name, lo: lo, hi: hi, shape: []int{2, 3}, complex: complex, f: of1(f)}
	}
	rows, keep := []int{1}, SumOpt{KeepDim: true}
	list := []differentiable{
		over("sum", -1, 1, true, func(x *Exec, t *Tensor) *Tensor { return x.Sum(t, rows, SumOpt{}) }),
		over("mean", -1, 1, true, func(x *Exec, t *Tensor) *Tensor { return x.Mean(t, nil, SumOpt{}) }),
		over("prod", 0.5, 2, true, func(x *Exec, t *Tensor) *Tensor { return x.Prod(t, rows, keep) }),
		over("prod all", 0.5, 2, true, func(x *Exec, t *Tensor) *Tensor { return x.Prod(t, nil, SumOpt{}) }),
		over("prod with zeros", 0.5, 2, true, func(x *Exec, t *Tensor) *Tensor {
			return x.Prod(x.Sub(t, x.Select(x.Select(t, 0, 0), 0, 1)), []int{0}, SumOpt{})
		}),
		over("amax", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.AMax(t, rows, DimOpt{}) }),
		over("amin", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.AMin(t, nil, DimOpt{KeepDim: true}) }),
		over("max", -1, 1, false, (*Exec).Max), over("min", -1, 1, false, (*Exec).Min),
		over("max dim", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { v, _ := x.MaxDim(t, -1, DimOpt{}); return v }),
		over("min dim", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { v, _ := x.MinDim(t, 0, DimOpt{KeepDim: true}); return v }),
		over("var", -1, 1, true, func(x *Exec, t *Tensor) *Tensor { return x.Var(t, rows, VarOpt{}) }),
		over("std", -1, 1, true, func(x *Exec, t *Tensor) *Tensor { return x.Std(t, nil, VarOpt{Correction: 0}) }),
		over("nansum", -1, 1, true, func(x *Exec, t *Tensor) *Tensor { return x.NanSum(t, rows, SumOpt{}) }),
		over("var_mean", -1, 1, true, func(x *Exec, t *Tensor) *Tensor {
			v, m := x.VarMean(t, rows, VarOpt{})
			return x.Add(x.Mul(v, v), x.Mul(m, m))
		}),
		over("mean of var_mean", -1, 1, false, func(x *Exec, t *Tensor) *Tensor {
			_, m := x.VarMean(t, nil, VarOpt{KeepDim: true})
			return m
		}),
		over("logsumexp", -1, 1, true, func(x *Exec, t *Tensor) *Tensor { return x.LogSumExp(t, rows, DimOpt{}) }),
		over("softmax", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.Softmax(t, 1, SoftmaxOpt{}) }),
		over("log_softmax", -1, 1, false, func(x *Exec, t *Tensor) *Tensor { return x.LogSoftmax(t, 0, SoftmaxOpt{}) }),
	}
	for _, p := range []float64{0, 0.5, 1, 1.5, 2, 3, math.Inf(1), math.Inf(-1)} {
		list = append(list, over(fmt.Sprintf("norm %v", p), 0.5, 2, true, func(x *Exec, t *Tensor) *Tensor {
			return x.VectorNorm(t, rows, VectorNormOpt{Ord: p})
		}))
	}
	return list
}

// TestDerivatives compares first and second derivatives with finite differences of values and of first derivatives.
func TestDerivatives(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	x := New(host, host)
	for _, d := range append(pointwise(), reductions()...) {
		d.ins = max(d.ins, 1)
		if d.shape == nil {
			d.shape = []int{3}
		}
		t.Run(d.name, func(t *testing.T) { d.check(t, x, dtype.Float64) })
		if d.complex {
			t.Run(d.name+" complex", func(t *testing.T) { d.check(t, x, dtype.Complex128) })
		}
	}
}

// draw returns the parts of n random numbers of type dt, each part in [lo, hi].
func draw(r *rand.Rand, dt dtype.DType, n int, lo, hi float64) []float64 {
	v := make([]float64, n*dt.Size()/8)
	for i := range v {
		v[i] = lo + (hi-lo)*r.Float64()
	}
	return v
}

// made returns a tensor with the given real and imaginary parts.
func made(x *Exec, dt dtype.DType, parts []float64, shape []int) *Tensor {
	return x.FromBytes(dtype.AsBytes(parts), dt, shape...)
}

// gradients returns the parts of the first gradients, of f weighted by w, and of the second, of the first gradients weighted by v.
func (d *differentiable) gradients(t *testing.T, x *Exec, dt dtype.DType, at [][]float64, w func(out *Tensor) *Tensor, v [][]float64) (
	first, second [][]float64) {
	t.Helper()
	x.Scope(func(x *Exec) {
		ins := make([]*Tensor, d.ins)
		for i := range ins {
			ins[i] = made(x, dt, at[i], d.shape).SetRequiresGrad(true)
		}
		y := d.f(x, ins)
		g, err := x.Grad([]*Tensor{y}, ins, GradOpt{Gradients: []*Tensor{w(y)}, CreateGraph: true})
		if err != nil {
			t.Fatal(err)
		}
		var outs, weights []*Tensor
		for i := range g {
			first = append(first, doubles(t, x, x.NoGrad().viewParts(g[i])))
			if g[i].RequiresGrad() {
				outs, weights = append(outs, g[i]), append(weights, made(x, dt, v[i], d.shape))
			}
		}
		h := make([]*Tensor, d.ins)
		if len(outs) > 0 {
			if h, err = x.Grad(outs, ins, GradOpt{Gradients: weights, AllowUnused: true}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range h {
			if h[i] == nil {
				second = append(second, make([]float64, len(at[i])))
				continue
			}
			second = append(second, doubles(t, x, x.NoGrad().viewParts(h[i])))
		}
	})
	return first, second
}

// viewParts returns the real numbers that t consists of, as a vector.
func (x *Exec) viewParts(t *Tensor) *Tensor {
	if !t.dt.IsComplex() {
		return x.Reshape(t, -1)
	}
	return x.Reshape(x.Stack([]*Tensor{x.RealPart(t), x.ImagPart(t)}, -1), -1)
}

func (d *differentiable) check(t *testing.T, x *Exec, dt dtype.DType) {
	r := rand.New(rand.NewPCG(1, uint64(len(d.name))))
	n := infer.Numel(d.shape)
	at, v := make([][]float64, d.ins), make([][]float64, d.ins)
	for i := range at {
		at[i], v[i] = draw(r, dt, n, d.lo, d.hi), draw(r, dt, n, -1, 1)
	}
	var weights []float64
	w := func(out *Tensor) *Tensor {
		if weights == nil {
			weights = draw(r, out.dt, infer.Numel(out.shape), -1, 1)
		}
		return made(x, out.dt, weights, out.shape)
	}
	// value is the weighted sum of f; flow is the weighted sum of the first derivatives.
	value := func() (sum float64) {
		x.Scope(func(x *Exec) {
			ins := make([]*Tensor, d.ins)
			for i := range ins {
				ins[i] = made(x, dt, at[i], d.shape)
			}
			y := d.f(x, ins)
			w(y)
			for i, p := range doubles(t, x, x.viewParts(y)) {
				sum += p * weights[i]
			}
		})
		return sum
	}
	flow := func() (sum float64) {
		first, _ := d.gradients(t, x, dt, at, w, v)
		for i := range first {
			for j := range first[i] {
				sum += first[i][j] * v[i][j]
			}
		}
		return sum
	}
	first, second := d.gradients(t, x, dt, at, w, v)
	const h = 1e-5
	for i := range at {
		for j := range at[i] {
			a := at[i][j]
			slope := func(f func() float64) float64 {
				at[i][j] = a + h
				up := f()
				at[i][j] = a - h
				down := f()
				at[i][j] = a
				return (up - down) / (2 * h)
			}
			if want := slope(value); math.Abs(first[i][j]-want) > 1e-6*(1+math.Abs(want)) {
				t.Errorf("input %d, part %d at %v: the derivative is %v, differences give %v", i, j, a, first[i][j], want)
			}
			if want := slope(flow); math.Abs(second[i][j]-want) > 1e-6*(1+math.Abs(want)) {
				t.Errorf("input %d, part %d at %v: the second derivative is %v, differences give %v", i, j, a, second[i][j], want)
			}
		}
	}
}
