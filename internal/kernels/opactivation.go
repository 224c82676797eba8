package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// floats registers an op on real floats with scalars.
func floats(name string, ins, scalars int, heavy bool, f func(k *kernel.Builder, in, s []kernel.Value) kernel.Value) *PointOp {
	return point(PointOp{Name: name, Ins: ins, Scalars: scalars, Heavy: heavy, Build: func(k *kernel.Builder, _ dtype.DType,
		in, s []Num) []Num {
		return []Num{realNum(f(k, realParts(in), realParts(s)))}
	}})
}

// activationBackward registers an op that takes the gradient of a result and the argument, with another form for halves.
func activationBackward(name string, f func(k *kernel.Builder, t dtype.DType, g, x kernel.Value) kernel.Value) *PointOp {
	return forHalves(point(PointOp{Name: name, Ins: 2, Heavy: true, Build: func(k *kernel.Builder, t dtype.DType, in, _ []Num) []Num {
		return []Num{realNum(f(k, t, in[0].Re, in[1].Re))}
	}}))
}

// forHalves returns op with Halves set.
func forHalves(op *PointOp) *PointOp {
	op.Halves = true
	return op
}

// realParts returns the real parts.
func realParts(ns []Num) []kernel.Value {
	vs := make([]kernel.Value, len(ns))
	for i := range ns {
		vs[i] = ns[i].Re
	}
	return vs
}

// Activations. A backward op takes the gradient of the result first.
var (
	// ReLU is max(x, 0) and keeps NaN; it works on any real type.
	ReLU = unary("relu", func(_ *kernel.Builder, _ dtype.DType, x Num) Num {
		return realNum(x.Re.Le(x.Re.Like(0)).Select(x.Re.Like(0), x.Re))
	})
	// ThresholdBackward is in0 where in1 > scalar 0, otherwise 0. With 0 it is the gradient of ReLU, given its input or result.
	ThresholdBackward = floats("threshold_backward", 2, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return in[1].Le(s[0]).Select(in[0].Like(0), in[0])
	})
	// LeakyReLU is x where x > 0, otherwise scalar·x. PReLU has the slope as in1.
	LeakyReLU = floats("leaky_relu", 1, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return in[0].Gt(in[0].Like(0)).Select(in[0], in[0].Mul(s[0]))
	})
	LeakyReLUBackward = floats("leaky_relu_backward", 2, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return in[1].Gt(in[1].Like(0)).Select(in[0], in[0].Mul(s[0]))
	})
	PReLU = floats("prelu", 2, 0, false, func(_ *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		return in[0].Gt(in[0].Like(0)).Select(in[0], in[0].Mul(in[1]))
	})
	// PReLUBackward is the gradient of the input, given the gradient, input and slope.
	PReLUBackward = floats("prelu_backward", 3, 0, false, func(_ *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		return in[1].Gt(in[1].Like(0)).Select(in[0], in[0].Mul(in[2]))
	})
	// MaskedScale is in0·scalar where in1 is 1, and in0·0 where it is 0.
	MaskedScale = floats("masked_scale", 2, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return in[0].Mul(in[1]).Mul(s[0])
	})
	// ELU has scalars (a, s, i): s·x where x > 0, otherwise a·s·(e^(i·x) - 1).
	ELU = floats("elu", 1, 3, true, func(k *kernel.Builder, in, s []kernel.Value) kernel.Value {
		x := in[0]
		return x.Gt(x.Like(0)).Select(x.Mul(s[1]), math.Expm1(k, x.Mul(s[2])).Mul(s[0].Mul(s[1])))
	})
	// ELUBackward takes the input.
	ELUBackward = floats("elu_backward", 2, 3, true, func(k *kernel.Builder, in, s []kernel.Value) kernel.Value {
		g, x := in[0], in[1]
		below := g.Mul(s[2]).Mul(s[0].Mul(s[1])).Mul(math.Exp(k, x.Mul(s[2])))
		return x.Gt(x.Like(0)).Select(g.Mul(s[1]), below)
	})
	// HardtanhBackward is in0 where scalar 0 < in1 < scalar 1, otherwise 0. Hardtanh is Clamp.
	HardtanhBackward = floats("hardtanh_backward", 2, 2, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return in[1].Le(s[0]).Or(in[1].Ge(s[1])).Select(in[0].Like(0), in[0])
	})
	// Softplus is log(1+e^(b·x))/b with scalars (b, threshold), and x where b·x > threshold.
	Softplus = floats("softplus", 1, 2, true, func(k *kernel.Builder, in, s []kernel.Value) kernel.Value {
		bx := in[0].Mul(s[0])
		return bx.Gt(s[1]).Select(in[0], math.Softplus(k, bx).Div(s[0]))
	})
	SoftplusBackward = floats("softplus_backward", 2, 2, true, func(k *kernel.Builder, in, s []kernel.Value) kernel.Value {
		bx := in[1].Mul(s[0])
		return bx.Gt(s[1]).Select(in[0], in[0].Mul(math.Sigmoid(k, bx)))
	})
	// LogSigmoid is log(1/(1+e^-x)).
	LogSigmoid = floats("logsigmoid", 1, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		return math.LogSigmoid(k, in[0])
	})
	// LogSigmoidBackward takes the input.
	LogSigmoidBackward = floats("logsigmoid_backward", 2, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		return in[0].Mul(math.Sigmoid(k, in[1].Neg()))
	})
	// SigmoidBackward and TanhBackward take the result.
	SigmoidBackward = point(PointOp{Name: "sigmoid_backward", Ins: 2, Build: func(_ *kernel.Builder, _ dtype.DType, in, _ []Num) []Num {
		y := in[1].Conj()
		return []Num{in[0].Mul(y.like(1).Sub(y)).Mul(y)}
	}})
	TanhBackward = point(PointOp{Name: "tanh_backward", Ins: 2, Build: func(_ *kernel.Builder, _ dtype.DType, in, _ []Num) []Num {
		y := in[1].Conj()
		return []Num{in[0].Mul(y.like(1).Sub(y.Mul(y)))}
	}})
	// SiLU is x/(1+e^-x); its backward op takes the input.
	SiLU = forHalves(unaryHeavy("silu", func(k *kernel.Builder, t dtype.DType, x Num) Num {
		switch {
		case t.IsComplex():
			return x.Div(complexExp(k, x.Neg()).Add(x.like(1)))
		case math.Short(t):
			return realNum(x.Re.Mul(math.HalfSigmoid(k, x.Re)))
		}
		return realNum(x.Re.Mul(math.Sigmoid(k, x.Re)))
	}))
	SiLUBackward = activationBackward("silu_backward", func(k *kernel.Builder, t dtype.DType, g, x kernel.Value) kernel.Value {
		sigmoid, one := math.Sigmoid, x.Like(1)
		if math.Short(t) {
			sigmoid = math.HalfSigmoid
		}
		y := sigmoid(k, x)
		return g.Mul(y).Mul(x.FMA(one.Sub(y), one))
	})
	// GELU is x·Φ(x); GELUTanh is its approximation with tanh (D. Hendrycks, K. Gimpel, arXiv 1606.08415). Their backward ops take the
	// input.
	GELU = floats("gelu", 1, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		return in[0].Mul(normalCDF(k, in[0]))
	})
	GELUBackward = floats("gelu_backward", 2, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		x := in[1]
		density := math.ExpNonPositive(k, x.Mul(x).Mul(x.Like(-0.5))).Mul(x.Like(rsqrt2Pi))
		return in[0].Mul(x.FMA(density, normalCDF(k, x)))
	})
	// GELUTanh is x/(1+e^-2u), where u is the argument of tanh: this avoids cancellation and tanh itself.
	GELUTanh = forHalves(unaryHeavy("gelu_tanh", func(k *kernel.Builder, t dtype.DType, n Num) Num {
		x := n.Re
		if math.Short(t) {
			y, _ := halfGELUGate(x)
			return realNum(x.Mul(y))
		}
		e, r, _ := geluGate(k, x)
		return realNum(x.Mul(r).Mul(x.Lt(x.Like(0)).Select(e, e.Like(1))))
	}))
	// With s = 1/(1+e^-2u) the derivative is s + 2x u' s(1-s).
	GELUTanhBackward = activationBackward("gelu_tanh_backward", func(k *kernel.Builder, t dtype.DType, g, x kernel.Value) kernel.Value {
		slope := func(square kernel.Value) kernel.Value {
			return square.FMA(x.Like(6*geluCubic*sqrt2OverPi), x.Like(2*sqrt2OverPi))
		}
		if math.Short(t) {
			y, square := halfGELUGate(x)
			return g.Mul(x.Mul(y.Neg().FMA(y, y)).FMA(slope(square), y))
		}
		e, r, square := geluGate(k, x)
		er := e.Mul(r)
		return g.Mul(x.Mul(er.Mul(r)).FMA(slope(square), x.Lt(x.Like(0)).Select(er, r)))
	})
)

const (
	rsqrt2      = 0.707106781186547524400844362104849039284835937688474036588339869
	rsqrt2Pi    = 0.398942280401432677939946059934381868475858631164934657665925830
	sqrt2OverPi = 0.797884560802865355879892119868763736951717262329869315331851659
	geluCubic   = 0.044715
)

// halfGELUGate returns 1/(1+e^-2u), where u is the argument of tanh in GELUTanh, for results that are halves, and x².
func halfGELUGate(x kernel.Value) (y, square kernel.Value) {
	square = x.Mul(x)
	rate := square.FMA(x.Like(-geluCubic*sqrt2OverPi*2*gomath.Log2E), x.Like(-sqrt2OverPi*2*gomath.Log2E))
	return math.HalfLogistic(x, rate), square
}

// normalCDF is the cumulative distribution function of the standard normal distribution.
func normalCDF(k *kernel.Builder, x kernel.Value) kernel.Value {
	return math.Erf(k, x.Mul(x.Like(rsqrt2))).Add(x.Like(1)).Mul(x.Like(0.5))
}

// geluGate returns e = e^-2|u| and r = 1/(1+e), where u is the argument of tanh in GELUTanh, and x².
func geluGate(k *kernel.Builder, x kernel.Value) (e, r, square kernel.Value) {
	square = x.Mul(x)
	scaled := func(c float64) kernel.Value {
		return square.FMA(x.Like(geluCubic*sqrt2OverPi*2*c), x.Like(sqrt2OverPi*2*c)).Mul(x)
	}
	if x.Type() == dtype.Float64 {
		e = math.ExpNonPositive(k, scaled(1).Abs().Neg())
		return e, e.Like(1).Div(e.Add(e.Like(1))), square
	}
	e, r = math.Logistic2(k, scaled(gomath.Log2E))
	return e, r, square
}
