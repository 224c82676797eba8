package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

var (
	// normStats returns the mean, 1/√(biased variance + scalar 0) and the unbiased variance.
	normStats = shiftedNorm("norm_stats", 3)
	// normMoments returns the first two of those.
	normMoments = shiftedNorm("norm_moments", 2)
	// normGather is normStats of parts. in: mean, 1/√(biased variance + scalar 0) and number of elements of each part.
	normGather = gatherNorm()
	// in: two arrays and weight; out: the sums of both, times weight.
	groupGradSums = sums("group_grad_sums", 3, 2, func(in []kernel.Value) []kernel.Value {
		return []kernel.Value{in[0].Mul(in[2]), in[1].Mul(in[2])}
	})
	// in: two arrays; out: their sums.
	pairSums = sums("pair_sums", 2, 2, func(in []kernel.Value) []kernel.Value { return in })
	// Normalize is (x - mean)·rstd·weight + bias. in: x, mean, rstd, weight, bias.
	Normalize = floats("normalize", 5, 0, false, func(_ *kernel.Builder, in, _ []kernel.Value) kernel.Value {
		return in[0].Sub(in[1]).Mul(in[2]).FMA(in[3], in[4])
	})
	// NormalizeVariance is (x - mean)/√(variance + eps)·weight + bias. in: x, mean, variance, weight, bias; scalar: eps.
	NormalizeVariance = floats("normalize_variance", 5, 1, true, func(k *kernel.Builder, in, s []kernel.Value) kernel.Value {
		return in[0].Sub(in[1]).Mul(math.Rsqrt(k, in[2].Add(s[0]))).FMA(in[3], in[4])
	})
	// NormalizeGrad is the gradient of a batch norm's x. in: dy, x, mean, rstd, weight, Σ dy·(x-mean)·rstd, Σ dy; scalar: 1/n.
	NormalizeGrad = floats("batch_norm_grad", 7, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		h := in[1].Sub(in[2]).Mul(in[3])
		return in[0].Sub(in[6].Mul(s[0])).Sub(h.Mul(in[5].Mul(s[0]))).Mul(in[3].Mul(in[4]))
	})
	// in: dy, x, mean, rstd, weight, Σ dy·w, Σ dy·w·(x-mean)·rstd; scalar: 1/n.
	groupNormGrad = floats("group_norm_grad", 7, 1, false, func(_ *kernel.Builder, in, s []kernel.Value) kernel.Value {
		h := in[1].Sub(in[2]).Mul(in[3])
		return in[0].Mul(in[4]).Sub(in[5].Mul(s[0])).Sub(h.Mul(in[6].Mul(s[0]))).Mul(in[3])
	})
	// in: running mean, running variance, mean, variance; scalar: momentum; out: both running values.
	runningUpdate = point(PointOp{Name: "running_update", Ins: 4, Outs: 2, Scalars: 1, Build: func(_ *kernel.Builder, _ dtype.DType,
		in, s []Num) []Num {
		m := s[0].Re
		step := func(old, now kernel.Value) Num { return realNum(m.FMA(now, old.Mul(m.Like(1).Sub(m)))) }
		return []Num{step(in[0].Re, in[2].Re), step(in[1].Re, in[3].Re)}
	}})
)

// shiftedNorm sums the differences of the elements from the first one, and their squares, which needs no division per element: T. F. Chan,
// G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample variance", The American Statistician 37 (1983). The results of a
// thread or a block are shifted to their mean, so that a single outlier does not cause cancellation in the sums of many others. The state
// is the shift, both sums and the number of elements.
func shiftedNorm(name string, outs int) *ReduceOp {
	return reduction(ReduceOp{Name: name, Scalars: 1, Outs: outs,
		State: func(t dtype.DType) []dtype.DType { return []dtype.DType{opmath(t), opmath(t), opmath(t), opmath(t)} },
		Init: func(r *Reduction) []kernel.Value {
			zero := r.K.Const(opmath(r.T), 0)
			return []kernel.Value{zero, zero, zero, zero}
		},
		Step: func(_ *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
			x := in[0].Re
			shift := a[3].Eq(a[3].Like(0)).Select(x, a[0])
			d := x.Sub(shift)
			return []kernel.Value{shift, a[1].Add(d), d.FMA(d, a[2]), a[3].Add(a[3].Like(1))}
		},
		Combine: func(_ *Reduction, a, b []kernel.Value) []kernel.Value {
			shift := a[3].Eq(a[3].Like(0)).Select(b[0], a[0])
			d := b[0].Sub(shift)
			sum := d.FMA(b[3], b[1]) // of b's elements, relative to the shift
			return []kernel.Value{shift, a[1].Add(sum), a[2].Add(b[2]).Add(d.Mul(b[1].Add(sum))), a[3].Add(b[3])}
		},
		Settle: func(_ *Reduction, a []kernel.Value) []kernel.Value {
			m := momentsOf(a)
			return []kernel.Value{m[0], m[0].Like(0), m[1], m[2]}
		},
		Finish: func(r *Reduction, a []kernel.Value) []Num { return normOf(r, momentsOf(a))[:outs] },
	})
}

// momentsOf turns a state of shiftedNorm into the mean, the sum of squared deviations and the number of elements.
func momentsOf(a []kernel.Value) []kernel.Value {
	zero := a[3].Like(0)
	share := a[3].Eq(zero).Select(zero, a[1].Div(a[3]))
	m2 := a[2].Sub(a[1].Mul(share))
	return []kernel.Value{a[0].Add(share), m2.Lt(zero).Select(zero, m2), a[3]} // a NaN stays a NaN
}

// normOf returns the mean, 1/√(biased variance + scalar 0) and the unbiased variance.
func normOf(r *Reduction, a []kernel.Value) []Num {
	rstd := math.Rsqrt(r.K, a[1].Div(a[2]).Add(r.S[0].Re))
	return []Num{{Re: a[0]}, {Re: rstd}, {Re: a[1].Div(a[2].Sub(a[2].Like(1)))}}
}

func gatherNorm() *ReduceOp {
	op := *Var
	op.Name, op.Outs, op.Ins = "norm_gather", 3, 3
	op.Step = func(r *Reduction, a []kernel.Value, in []Num, _ kernel.Value) []kernel.Value {
		mean, deviation, n := in[0].Re, in[1].Reciprocal().Re, in[2].Re
		return welfordCombine(a, []kernel.Value{mean, deviation.Mul(deviation).Sub(r.S[0].Re).Mul(n), n})
	}
	op.Finish = normOf
	return reduction(op)
}

// maxRank is the maximum number of dimensions of a batch norm's input.
const maxRank = 8

// perChannel is storage for the strides of a vector broadcast to the shape of an array with as many channels.
type perChannel [maxRank]int

// see returns the vector o, with one element per channel (dimension 1 of x), broadcast to x's shape; an absent o stays absent.
func (p *perChannel) see(o, x Operand) Operand {
	if o.Ptr == 0 {
		return o
	}
	*p = perChannel{}
	p[1] = 1
	if len(o.Stride) > 0 {
		p[1] = o.Stride[0]
	}
	return Operand{Ptr: o.Ptr, DType: o.DType, Shape: x.Shape, Stride: p[:len(x.Shape)]}
}

func checkChannels(name string, x Operand) error {
	if n := len(x.Shape); n < 2 || n > maxRank {
		return fmt.Errorf("%s takes inputs of 2 to %d dimensions; got %d", name, maxRank, n)
	}
	return nil
}

// allButChannels marks the dimensions over which statistics are taken.
func allButChannels(rank int) [maxRank]bool {
	var dims [maxRank]bool
	for d := range rank {
		dims[d] = d != 1
	}
	return dims
}

// BatchNormStats stores the mean, 1/√(variance + eps) and the unbiased variance of every channel (dimension 1) of x. They are vectors, of
// float32 for half inputs.
func BatchNormStats(is Issuer, compute dtype.DType, mean, rstd, variance, x Operand, eps float64) error {
	if err := checkChannels("batch_norm", x); err != nil {
		return err
	}
	dims := allButChannels(len(x.Shape))
	outs, ins, s := [...]Operand{mean, rstd, variance}, [...]Operand{x}, [...]Scalar{FloatScalar(eps)}
	return Reduce(is, normStats, compute, s[:], outs[:], ins[:], dims[:len(x.Shape)])
}

// BatchNormGather stores what BatchNormStats would store for the whole batch, given the statistics and the number of elements per channel
// of its parts, one row of the matrices means, rstds and counts per part. The order of additions depends only on the shape.
func BatchNormGather(is Issuer, compute dtype.DType, mean, rstd, variance, means, rstds, counts Operand, eps float64) error {
	outs, ins, s := [...]Operand{mean, rstd, variance}, [...]Operand{means, rstds, counts}, [...]Scalar{FloatScalar(eps)}
	return Reduce(is, normGather, compute, s[:], outs[:], ins[:], []bool{true, false})
}

// BatchNormUpdate moves the running statistics, in place, by momentum towards mean and variance.
func BatchNormUpdate(is Issuer, runningMean, runningVar, mean, variance Operand, momentum float64) error {
	outs, ins := [...]Operand{runningMean, runningVar}, [...]Operand{runningMean, runningVar, mean, variance}
	s := [...]Scalar{FloatScalar(momentum)}
	return Pointwise(is, runningUpdate, opmath(mean.DType), s[:], outs[:], ins[:])
}

// AffineScalars appends to s the values of an absent weight and bias: 1 and 0.
func AffineScalars(s []Scalar, weight, bias Operand) []Scalar {
	if weight.Ptr == 0 {
		s = append(s, FloatScalar(1))
	}
	if bias.Ptr == 0 {
		s = append(s, FloatScalar(0))
	}
	return s
}

// BatchNorm stores (x - mean)·rstd·weight + bias. The last four are vectors with one element per channel (dimension 1); weight and bias may
// be absent (Ptr 0).
func BatchNorm(is Issuer, compute dtype.DType, y, x, mean, rstd, weight, bias Operand) error {
	if err := checkChannels("batch_norm", x); err != nil {
		return err
	}
	var p [4]perChannel
	var room [2]Scalar
	outs, ins := [...]Operand{y}, [...]Operand{x, p[0].see(mean, x), p[1].see(rstd, x), p[2].see(weight, x), p[3].see(bias, x)}
	return Pointwise(is, Normalize, compute, AffineScalars(room[:0], weight, bias), outs[:], ins[:])
}

// BatchNormInference is BatchNorm with 1/√(variance + eps) as rstd.
func BatchNormInference(is Issuer, compute dtype.DType, y, x, mean, variance, weight, bias Operand, eps float64) error {
	if err := checkChannels("batch_norm", x); err != nil {
		return err
	}
	var p [4]perChannel
	room := [3]Scalar{FloatScalar(eps)}
	outs, ins := [...]Operand{y}, [...]Operand{x, p[0].see(mean, x), p[1].see(variance, x), p[2].see(weight, x), p[3].see(bias, x)}
	return Pointwise(is, NormalizeVariance, compute, AffineScalars(room[:1], weight, bias), outs[:], ins[:])
}

// BatchNormSums stores Σ dy·(x-mean)·rstd and Σ dy of every channel (dimension 1), which are also the gradients of BatchNorm's weight and
// bias. All operands but dy and x are vectors, the sums of the type in which they are added up: float32 for half inputs.
func BatchNormSums(is Issuer, compute dtype.DType, weighted, plain, dy, x, mean, rstd Operand) error {
	if err := checkChannels("batch_norm", x); err != nil {
		return err
	}
	var p [2]perChannel
	dims := allButChannels(len(x.Shape))
	outs, ins := [...]Operand{weighted, plain}, [...]Operand{dy, x, p[0].see(mean, x), p[1].see(rstd, x)}
	return Reduce(is, normAffineGrad, compute, nil, outs[:], ins[:], dims[:len(x.Shape)])
}

// BatchNormGrad stores the gradient of BatchNorm's x, which includes the paths through mean and rstd. weight may be absent (Ptr 0);
// weighted and plain are what BatchNormSums stores, and share is 1 divided by the number of elements of a channel.
func BatchNormGrad(is Issuer, compute dtype.DType, dx, dy, x, mean, rstd, weight, weighted, plain Operand, share float64) error {
	if err := checkChannels("batch_norm", x); err != nil {
		return err
	}
	var p [5]perChannel
	room := [2]Scalar{FloatScalar(share)}
	s := room[:1]
	if weight.Ptr == 0 {
		s = append(s, FloatScalar(1))
	}
	outs, ins := [...]Operand{dx}, [...]Operand{dy, x, p[0].see(mean, x), p[1].see(rstd, x), p[2].see(weight, x), p[3].see(weighted, x),
		p[4].see(plain, x)}
	return Pointwise(is, NormalizeGrad, compute, s, outs[:], ins[:])
}
