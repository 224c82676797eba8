package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// Reductions with transcendental functions.
var (
	// NormP is (Σ|x|^p)^(1/p) for p = scalar 0, neither 0 nor infinite.
	NormP = reduction(ReduceOp{Name: "normp", Scalars: 1,
		State: parts,
		Init:  func(r *Reduction) []kernel.Value { return []kernel.Value{r.K.Const(stateType(r.T), 0)} },
		Step: func(r *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
			return []kernel.Value{a[0].Add(math.Pow(r.K, in[0].Re.Abs(), r.S[0].Re))}
		},
		Combine: func(_ *Reduction, a, b []kernel.Value) []kernel.Value { return []kernel.Value{a[0].Add(b[0])} },
		Finish: func(r *Reduction, a []kernel.Value) []Num {
			return []Num{realNum(math.Pow(r.K, a[0], r.S[0].Re.Like(1).Div(r.S[0].Re)))}
		},
	})
	// LogSumExp is log Σ e^x, kept as the greatest element and the sum of exponentials relative to it (M. Milakov, N. Gimelshein, "Online
	// normalizer calculation for softmax", arXiv 1805.02867).
	LogSumExp = logSumExp("logsumexp", func(k *kernel.Builder, m, s kernel.Value) kernel.Value { return m.Add(math.Log(k, s)) })
	// LogNormalizer is what LogSoftmax subtracts: LogSumExp, but NaN if the greatest element is infinite, as infinity minus itself is.
	LogNormalizer = logSumExp("log_normalizer", func(k *kernel.Builder, m, s kernel.Value) kernel.Value {
		return m.Add(math.Log(k, s.Add(m.Sub(m))))
	})
	// Sums and means of the pointwise ops of these names, with their scalars.
	SquaredErrorSum   = errorReduction("squared_error_sum", 0, squaredError, nil)
	SquaredErrorMean  = errorReduction("squared_error_mean", 0, squaredError, meanOf)
	AbsoluteErrorSum  = errorReduction("absolute_error_sum", 0, absoluteError, nil)
	AbsoluteErrorMean = errorReduction("absolute_error_mean", 0, absoluteError, meanOf)
	SmoothL1Sum       = errorReduction("smooth_l1_sum", 1, smoothL1, nil)
	SmoothL1Mean      = errorReduction("smooth_l1_mean", 1, smoothL1, meanOf)
	HuberSum          = errorReduction("huber_sum", 1, huber, nil)
	HuberMean         = errorReduction("huber_mean", 1, huber, meanOf)
	// PReLUSlopeSum is the gradient of PReLU's slope: the sum of in0·in1 over the elements where in1 is not above 0. in0 is the gradient
	// and in1 the input.
	PReLUSlopeSum = errorReduction("prelu_slope_sum", 0, func(in, _ []kernel.Value) kernel.Value {
		return in[1].Gt(in[1].Like(0)).Select(in[0].Like(0), in[0].Mul(in[1]))
	}, nil)
)

// logSumExp registers a reduction to the greatest element m and the sum s of exponentials relative to it; f computes the result.
func logSumExp(name string, f func(k *kernel.Builder, m, s kernel.Value) kernel.Value) *ReduceOp {
	return reduction(ReduceOp{Name: name, Dear: true,
		State: func(t dtype.DType) []dtype.DType { return []dtype.DType{opmath(t), opmath(t)} },
		Init:  func(r *Reduction) []kernel.Value { return onlineInit(r.K, r.T) },
		Step: func(r *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
			return onlineStep(r.K, a, in[0].Re)
		},
		Combine: func(r *Reduction, a, b []kernel.Value) []kernel.Value { return onlineCombine(r.K, a, b) },
		Finish:  func(r *Reduction, a []kernel.Value) []Num { return []Num{realNum(f(r.K, a[0], a[1]))} },
	})
}

// onlineInit, onlineStep and onlineCombine keep (m, s): the greatest number so far and Σ e^(x-m). Without elements m is -∞.
func onlineInit(k *kernel.Builder, t dtype.DType) []kernel.Value {
	return []kernel.Value{k.Const(t, gomath.Inf(-1)), k.Const(t, 0)}
}

func onlineStep(k *kernel.Builder, a []kernel.Value, x kernel.Value) []kernel.Value {
	m, s := a[0], a[1]
	up := x.Gt(m)
	// The difference of equal infinities is taken as 0, not NaN.
	d := x.Eq(m).Select(x.Like(0), x.Sub(m).Abs().Neg())
	e := math.ExpDifference(k, d)
	return []kernel.Value{up.Select(x, m), up.Select(s.FMA(e, s.Like(1)), s.Add(e))}
}

// onlineSome is onlineStep for several numbers: the sum is scaled to the new greatest number once for all of them. If that number is
// infinite, the sum is meaningless or NaN.
func onlineSome(k *kernel.Builder, a, xs []kernel.Value) []kernel.Value {
	if len(xs) == 1 {
		return onlineStep(k, a, xs[0])
	}
	m := xs[0]
	for _, x := range xs[1:] {
		m = m.Max(x)
	}
	m = a[0].Max(m)
	from := m.Eq(m.Like(gomath.Inf(-1))).Select(m.Like(0), m) // -∞ minus itself is NaN
	s := a[1].Mul(math.ExpDifference(k, a[0].Sub(from)))
	for _, x := range xs {
		s = s.Add(math.ExpDifference(k, x.Sub(from)))
	}
	return []kernel.Value{m, s}
}

func onlineCombine(k *kernel.Builder, a, b []kernel.Value) []kernel.Value {
	up := b[0].Gt(a[0])
	m := up.Select(b[0], a[0])
	d := a[0].Eq(b[0]).Select(m.Like(0), b[0].Sub(a[0]).Abs().Neg())
	e := math.ExpDifference(k, d)
	large, small := up.Select(b[1], a[1]), up.Select(a[1], b[1])
	return []kernel.Value{m, small.FMA(e, large)}
}

// errorReduction registers the sum of f of two inputs and scalars, followed by finish.
func errorReduction(name string, scalars int, f func(in, s []kernel.Value) kernel.Value, finish func(r *Reduction, a Num) Num) *ReduceOp {
	op := simple(name, zeroInit, nil, addNum, finish)
	op.Ins, op.Scalars = 2, scalars
	op.Step = func(r *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
		return []kernel.Value{a[0].Add(f(realParts(in), realParts(r.S)))}
	}
	return op
}
