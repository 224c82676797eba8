package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// Losses element by element. A backward op takes the gradient of the result first.
var (
	// SquaredError is (in0-in1)², AbsoluteError |in0-in1|.
	SquaredError = pairwise("squared_error", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num {
		d := a.Sub(b)
		return d.Mul(d)
	})
	AbsoluteError = pairwise("absolute_error", func(_ *kernel.Builder, _ dtype.DType, a, b Num) Num { return realNum(a.Re.Sub(b.Re).Abs()) })
	// SquaredErrorBackward is scalar·in0·(in1-in2), AbsoluteErrorBackward scalar·in0·sign(in1-in2).
	SquaredErrorBackward = floats("squared_error_backward", 3, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return in[1].Sub(in[2]).Mul(s[0]).Mul(in[0])
	})
	AbsoluteErrorBackward = floats("absolute_error_backward", 3, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return sign(in[1].Sub(in[2])).Mul(s[0]).Mul(in[0])
	})
	// SmoothL1 is d²/(2b) for d = |in0-in1| < b = scalar 0, else d - b/2. Huber is the same times b.
	SmoothL1 = floats("smooth_l1", 2, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		d, half := in[0].Sub(in[1]).Abs(), in[0].Like(0.5)
		return d.Lt(s[0]).Select(half.Mul(d).Mul(d).Div(s[0]), d.Sub(half.Mul(s[0])))
	})
	Huber = floats("huber", 2, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		d, half := in[0].Sub(in[1]).Abs(), in[0].Like(0.5)
		return d.Lt(s[0]).Select(half.Mul(d).Mul(d), s[0].Mul(d.Sub(half.Mul(s[0]))))
	})
	// BCEWithLogits is the binary cross-entropy of logits in0 and targets in1, with positives weighted by in2. It rounds at every step, as
	// PyTorch's sequence of ops does.
	BCEWithLogits = floats("bce_with_logits", 3, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		x, y, one := in[0], in[1], in[0].Like(1)
		w := in[2].Sub(one).Mul(y).Add(one)
		return one.Sub(y).Mul(x).Sub(w.Mul(math.LogSigmoid(k, x)))
	})
	// BCEWithLogitsBackward is of gradient, logits, targets and positive weights.
	BCEWithLogitsBackward = floats("bce_with_logits_backward", 4, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		g, x, y, one := in[0], in[1], in[2], in[1].Like(1)
		t := y.Mul(in[3])
		return g.Mul(t.Add(one).Sub(y).FMA(math.Sigmoid(k, x), t.Neg()))
	})
	// BCE is the binary cross-entropy of probabilities in0 and targets in1, logarithms held above -100.
	BCE = floats("bce", 2, 0, true, func(k *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		p, y, one, least := in[0], in[1], in[0].Like(1), in[0].Like(-100)
		no, yes := maximum(math.Log1p(k, p.Neg()), least), maximum(math.Log(k, p), least)
		return y.Sub(one).Mul(no).Sub(y.Mul(yes))
	})
	BCEBackward = floats("bce_backward", 3, 0, false, func(_ *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		g, p, y, one := in[0], in[1], in[2], in[1].Like(1)
		return g.Mul(p.Sub(y)).Div(one.Sub(p).Mul(p).Max(p.Like(1e-12)))
	})
)
