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
	LogSumExp = reduction(ReduceOp{Name: "logsumexp",
		State: func(t dtype.DType) []dtype.DType { return []dtype.DType{opmath(t), opmath(t)} },
		Init:  func(r *Reduction) []kernel.Value { return onlineInit(r.K, r.T) },
		Step: func(r *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
			return onlineStep(r.K, a, in[0].Re)
		},
		Combine: func(r *Reduction, a, b []kernel.Value) []kernel.Value { return onlineCombine(r.K, a, b) },
		Finish: func(r *Reduction, a []kernel.Value) []Num {
			return []Num{realNum(a[0].Add(math.Log(r.K, a[1])))}
		},
	})
	// SquaredErrorSum and SquaredErrorMean reduce (in0-in1)², the other two |in0-in1|.
	SquaredErrorSum   = errorReduction("squared_error_sum", squaredError, nil)
	SquaredErrorMean  = errorReduction("squared_error_mean", squaredError, meanOf)
	AbsoluteErrorSum  = errorReduction("absolute_error_sum", absoluteError, nil)
	AbsoluteErrorMean = errorReduction("absolute_error_mean", absoluteError, meanOf)
)

// onlineInit, onlineStep and onlineCombine keep (m, s): the greatest number so far and Σ e^(x-m). Of no elements m is -∞.
func onlineInit(k *kernel.Builder, t dtype.DType) []kernel.Value {
	return []kernel.Value{k.Const(t, gomath.Inf(-1)), k.Const(t, 0)}
}

func onlineStep(k *kernel.Builder, a []kernel.Value, x kernel.Value) []kernel.Value {
	m, s := a[0], a[1]
	up := x.Gt(m)
	// Equal infinities are 0 apart, not NaN.
	d := x.Eq(m).Select(x.Like(0), x.Sub(m).Abs().Neg())
	e := math.ExpNonPositive(k, d)
	return []kernel.Value{up.Select(x, m), up.Select(s.FMA(e, s.Like(1)), s.Add(e))}
}

func onlineCombine(k *kernel.Builder, a, b []kernel.Value) []kernel.Value {
	up := b[0].Gt(a[0])
	m := up.Select(b[0], a[0])
	d := a[0].Eq(b[0]).Select(m.Like(0), b[0].Sub(a[0]).Abs().Neg())
	e := math.ExpNonPositive(k, d)
	large, small := up.Select(b[1], a[1]), up.Select(a[1], b[1])
	return []kernel.Value{m, small.FMA(e, large)}
}

func squaredError(a, b Num) Num {
	d := a.Sub(b)
	return d.Mul(d)
}

func absoluteError(a, b Num) Num { return Num{Re: a.Re.Sub(b.Re).Abs()} }

func errorReduction(name string, f func(a, b Num) Num, finish func(r *Reduction, a Num) Num) *ReduceOp {
	op := simple(name, zeroInit, nil, addNum, finish)
	op.Ins = 2
	op.Step = func(_ *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
		return pack(unpack(a).Add(f(in[0], in[1])))
	}
	return op
}
