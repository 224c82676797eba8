package kernels

import (
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// Element-wise losses. A backward op takes the gradient of the result first.
var (
	// SquaredError is (in0-in1)², AbsoluteError |in0-in1|.
	SquaredError  = difference("squared_error", 0, squaredError)
	AbsoluteError = difference("absolute_error", 0, absoluteError)
	// SmoothL1 is d²/(2b) for d = |in0-in1| < b = scalar 0, otherwise d - b/2. Huber is b times that.
	SmoothL1 = difference("smooth_l1", 1, smoothL1)
	Huber    = difference("huber", 1, huber)
	// Their gradients, given the gradient g of the result and both inputs, times scalar 0. With d = in1-in2 and b = scalar 1 they are d·g
	// (half of it is in the scalar), sign(d)·g, d·g/b clamped to ±g, and d·g clamped to ±b·g.
	SquaredErrorBackward = floats("squared_error_backward", 3, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return in[1].Sub(in[2]).Mul(s[0]).Mul(in[0])
	})
	AbsoluteErrorBackward = floats("absolute_error_backward", 3, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return sign(in[1].Sub(in[2])).Mul(s[0]).Mul(in[0])
	})
	SmoothL1Backward = floats("smooth_l1_backward", 3, 2, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		d, b := in[1].Sub(in[2]), s[1]
		return d.Abs().Gt(b).Select(sign(d).Mul(s[0]).Mul(in[0]), s[0].Mul(d).Mul(in[0]).Div(b))
	})
	HuberBackward = floats("huber_backward", 3, 2, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		d, b := in[1].Sub(in[2]), s[1]
		return d.Abs().Gt(b).Select(sign(d).Mul(s[0]).Mul(in[0]).Mul(b), s[0].Mul(d).Mul(in[0]))
	})
	// BCEWithLogits is the binary cross-entropy of logits in0 and targets in1, with positives weighted by in2. It rounds at every step, as
	// PyTorch's sequence of ops does.
	BCEWithLogits = floats("bce_with_logits", 3, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		x, y, one := in[0], in[1], in[0].Like(1)
		w := in[2].Sub(one).Mul(y).Add(one)
		return one.Sub(y).Mul(x).Sub(w.Mul(math.LogSigmoid(k, x)))
	})
	// BCEWithLogitsBackward takes the gradient, logits, targets and positive weights.
	BCEWithLogitsBackward = floats("bce_with_logits_backward", 4, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		g, x, y, one := in[0], in[1], in[2], in[1].Like(1)
		t := y.Mul(in[3])
		return g.Mul(t.Add(one).Sub(y).FMA(math.Sigmoid(k, x), t.Neg()))
	})
	// BCE is the binary cross-entropy of probabilities in0 and targets in1; logarithms are clamped to at least -100. Values outside 0 … 1
	// stop the kernel.
	BCE = asserting(floats("bce", 2, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		p, y, one, least := in[0], in[1], in[0].Like(1), in[0].Like(-100)
		k.Assert(isProbability(p), "input %v is not from 0 to 1", p)
		k.Assert(isProbability(y), "target %v is not from 0 to 1", y)
		no, yes := maximum(math.Log1p(k, p.Neg()), least), maximum(math.Log(k, p), least)
		return y.Sub(one).Mul(no).Sub(y.Mul(yes))
	}))
	BCEBackward = floats("bce_backward", 3, 0, false, func(_ *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		g, p, y, one := in[0], in[1], in[2], in[1].Like(1)
		return g.Mul(p.Sub(y)).Div(one.Sub(p).Mul(p).Max(p.Like(1e-12)))
	})
)

// asserting marks op as having assertions.
func asserting(op *PointOp) *PointOp {
	op.Asserts = true
	return op
}

// isProbability reports whether x is from 0 to 1; NaN is not.
func isProbability(x kernel.Value) kernel.Value { return x.Ge(x.Like(0)).And(x.Le(x.Like(1))) }

// difference registers a loss of two inputs.
func difference(name string, scalars int, f func(in, s []kernel.Value) kernel.Value) *PointOp {
	return floats(name, 2, scalars, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value { return f(in, s) })
}

func squaredError(in, _ []kernel.Value) kernel.Value {
	d := in[0].Sub(in[1])
	return d.Mul(d)
}

func absoluteError(in, _ []kernel.Value) kernel.Value { return in[0].Sub(in[1]).Abs() }

func smoothL1(in, s []kernel.Value) kernel.Value {
	d, half := in[0].Sub(in[1]).Abs(), in[0].Like(0.5)
	return d.Lt(s[0]).Select(half.Mul(d).Mul(d).Div(s[0]), d.Sub(half.Mul(s[0])))
}

func huber(in, s []kernel.Value) kernel.Value {
	d, half := in[0].Sub(in[1]).Abs(), in[0].Like(0.5)
	return d.Lt(s[0]).Select(half.Mul(d).Mul(d), s[0].Mul(d.Sub(half.Mul(s[0]))))
}
