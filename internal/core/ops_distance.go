package core

import (
	"math"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// Distances, and losses that are composed of other operations.

// DistOpt are the options of Dist. The zero value is PyTorch's default.
type DistOpt struct {
	// P is the order of the norm; the default is 2.
	P Scalar
}

// Dist returns the vector norm of all elements of a - b, broadcast.
func (x *Exec) Dist(a, b *Tensor, opt DistOpt) *Tensor {
	p := Or("Dist", "P", opt.P, 2)
	return x.composite("Dist", func(x *Exec) *Tensor {
		x = x.casting("Dist", castFloat32, &a, &b)
		return x.vectorNorm(x.Sub(a, b), nil, p, SumOpt{})
	})
}

// PairwiseDistanceOpt are the options of PairwiseDistance. The zero value is PyTorch's default.
type PairwiseDistanceOpt struct {
	// P is the order of the norm; the default is 2. Eps is added to differences; the default is 1e-6.
	P, Eps Scalar
	// KeepDim keeps the last dimension with size 1.
	KeepDim bool
}

// PairwiseDistance returns the vector norms of a - b + eps over the last dimension, broadcast.
func (x *Exec) PairwiseDistance(a, b *Tensor, opt PairwiseDistanceOpt) *Tensor {
	p, eps := Or("PairwiseDistance", "P", opt.P, 2), OrFinite("PairwiseDistance", "Eps", opt.Eps, 1e-6)
	return x.composite("PairwiseDistance", func(x *Exec) *Tensor {
		d := x.AddS(x.fractional(x.Sub(a, b)), eps)
		if len(d.shape) == 0 {
			x.fail("PairwiseDistance", fault.Invalid, []*Tensor{a, b}, "pairwise distances are those of vectors; give tensors of one "+
				"dimension or more")
		}
		return x.vectorNorm(d, []int{-1}, p, SumOpt{KeepDim: opt.KeepDim})
	})
}

// fractional returns t, converted to float32 if it is integer or bool.
func (x *Exec) fractional(t *Tensor) *Tensor {
	if t.dt.IsInt() || t.dt == dtype.Bool {
		return x.ToDType(t, dtype.Float32)
	}
	return t
}

// NormalizeOpt are the options of Normalize. The zero value is PyTorch's default.
type NormalizeOpt struct {
	// P is the order of the norm; the default is 2. Eps is the least number to divide by; the default is 1e-12.
	P, Eps Scalar
	// Dim is the dimension of the vectors; nil means 1.
	Dim *int
}

// Normalize divides t by its vector norms over one dimension, but at least by eps.
//
//tenon:into
func (x *Exec) Normalize(t *Tensor, opt NormalizeOpt) *Tensor {
	p, eps := Or("Normalize", "P", opt.P, 2), OrFinite("Normalize", "Eps", opt.Eps, 1e-12)
	return x.composite("Normalize", func(x *Exec) *Tensor {
		norms := x.vectorNorm(t, []int{whole(opt.Dim, 1)}, p, SumOpt{KeepDim: true})
		return x.Div(t, x.ClampMinS(norms, eps))
	})
}

// CosineSimilarityOpt are the options of CosineSimilarity. The zero value is PyTorch's default.
type CosineSimilarityOpt struct {
	// Dim is the dimension of the vectors; nil means 1.
	Dim *int
	// Eps is the least norm, which smaller ones count as; the default is 1e-8.
	Eps Scalar
}

// CosineSimilarity returns the cosines of the angles between the vectors along one dimension of a and b, broadcast; norms below eps count
// as eps.
func (x *Exec) CosineSimilarity(a, b *Tensor, opt CosineSimilarityOpt) *Tensor {
	dim, eps := whole(opt.Dim, 1), OrFinite("CosineSimilarity", "Eps", opt.Eps, 1e-8)
	return x.composite("CosineSimilarity", func(x *Exec) *Tensor {
		x = x.casting("CosineSimilarity", castFloat32, &a, &b)
		a, b := x.alike(a, b)
		unit := func(t *Tensor) *Tensor {
			n := x.Clone(x.VectorNorm(t, []int{dim}, VectorNormOpt{KeepDim: true}))
			x.noGrad().ClampSInto(n, n, eps, math.Inf(1)) // without recording, so that the gradient ignores it
			return x.Div(t, n)
		}
		return x.Sum(x.Mul(unit(a), unit(b)), []int{dim}, SumOpt{})
	})
}

// Renorm returns t with each of its slices along dimension dim scaled so that its vector norm of order p is at most maxNorm.
//
//tenon:into
func (x *Exec) Renorm(t *Tensor, p float64, dim int, maxNorm float64) *Tensor {
	n := len(t.shape)
	switch {
	case n < 2:
		x.fail("Renorm", fault.Invalid, []*Tensor{t}, "renorm: input needs at least 2 dimensions, got %d dimensions", n)
	case !(p > 0):
		x.fail("Renorm", fault.Invalid, []*Tensor{t}, "renorm: non-positive-norm not supported")
	case !(maxNorm >= 0):
		x.fail("Renorm", fault.Invalid, []*Tensor{t}, "renorm: expected maxnorm to be >= 0 but got %v", maxNorm)
	}
	over := infer.OtherDims(n, x.dimsOf("Renorm", t, []int{dim}))
	return x.composite("Renorm", func(x *Exec) *Tensor {
		x = x.casting("Renorm", castFloat32, &t)
		wide := dtype.Invalid
		if t.dt != infer.Accumulated(t.dt) {
			wide = infer.Accumulated(t.dt)
		}
		norm := x.vectorNorm(t, over, p, SumOpt{KeepDim: true, DType: wide})
		factor := x.pick(x.GtS(norm, maxNorm), x.RDivS(x.AddS(norm, 1e-7), maxNorm), 0, nil, 1)
		if !t.dt.IsComplex() {
			factor = x.ToDType(factor, t.dt)
		}
		return x.Mul(t, factor)
	})
}

// marginLoss runs an element-wise loss, under autocast on float32 operands, and reduces it.
func (x *Exec) marginLoss(op string, by Reduction, ts []**Tensor, each func(x *Exec) *Tensor) *Tensor {
	how := x.reductionOf(op, by)
	return x.composite(op, func(x *Exec) *Tensor {
		x = x.casting(op, castFloat32, ts...)
		return x.reduceLoss(each(x), how)
	})
}

// MarginLossOpt are the options of losses with a margin. The zero value is PyTorch's default.
type MarginLossOpt struct {
	// Margin is by how much things should differ; the default is 0, and 1 for HingeEmbeddingLoss.
	Margin Scalar
	// Reduction is ReduceMean (the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// CosineEmbeddingLoss returns the mean (or the reduction in opt) of 1 - c where target is 1, and of c - margin, or 0 if that is negative,
// where target is -1; c are the cosines between the vectors of a and b [N, D], with target [N], or [D] with target [].
func (x *Exec) CosineEmbeddingLoss(a, b, target *Tensor, opt MarginLossOpt) *Tensor {
	n := len(a.shape)
	if n != 1 && n != 2 || len(b.shape) != n || len(target.shape) != n-1 {
		x.fail("CosineEmbeddingLoss", fault.Invalid, []*Tensor{a, b, target}, "%dD target tensor expects %dD input tensors, but found "+
			"inputs with sizes %v and %v", len(target.shape), len(target.shape)+1, a.shape, b.shape)
	}
	margin := Or("CosineEmbeddingLoss", "Margin", opt.Margin, 0)
	return x.marginLoss("CosineEmbeddingLoss", opt.Reduction, []**Tensor{&a, &b, &target}, func(x *Exec) *Tensor {
		dims := []int{n - 1}
		sum := func(a, b *Tensor) *Tensor { return x.Sum(x.Mul(a, b), dims, SumOpt{}) }
		const least = 1e-12
		norms := x.Sqrt(x.Mul(x.AddS(sum(a, a), least), x.AddS(sum(b, b), least)))
		c := x.Div(sum(a, b), norms)
		like := x.pick(x.EqS(target, 1), x.RSubS(c, 1), 0, nil, 0)
		unlike := x.pick(x.EqS(target, -1), x.ClampMinS(x.SubS(c, margin), 0), 0, nil, 0)
		return x.Add(like, unlike)
	})
}

// HingeEmbeddingLoss returns the mean (or the reduction in opt) of t where target is 1, and of margin - t, or 0 if that is negative, where
// target is -1; broadcast.
func (x *Exec) HingeEmbeddingLoss(t, target *Tensor, opt MarginLossOpt) *Tensor {
	margin := Or("HingeEmbeddingLoss", "Margin", opt.Margin, 1)
	return x.marginLoss("HingeEmbeddingLoss", opt.Reduction, []**Tensor{&t, &target}, func(x *Exec) *Tensor {
		t := x.fractional(t)
		apart := x.Sub(x.Full(nil, margin, t.dt), t) // PyTorch rounds the margin too
		far := x.pick(x.NeS(target, 1), x.ClampMinS(apart, 0), 0, nil, 0)
		near := x.pick(x.NeS(target, -1), t, 0, nil, 0)
		return x.Add(far, near)
	})
}

// PoissonNLLLossOpt are the options of PoissonNLLLoss. The zero value is PyTorch's default.
type PoissonNLLLossOpt struct {
	// Plain says that the input is the rate itself, not its logarithm; Eps is then added to it, whose default is 1e-8.
	Plain bool
	Eps   Scalar
	// Full adds Stirling's approximation of log(target!) where target is above 1.
	Full bool
	// Reduction is ReduceMean (the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// PoissonNLLLoss returns the mean (or the reduction in opt) of exp(t) - target·t, broadcast: the negative log-likelihood of target under
// Poisson distributions whose log rates are t, without its last term.
func (x *Exec) PoissonNLLLoss(t, target *Tensor, opt PoissonNLLLossOpt) *Tensor {
	eps := OrFinite("PoissonNLLLoss", "Eps", opt.Eps, 1e-8)
	return x.marginLoss("PoissonNLLLoss", opt.Reduction, []**Tensor{&t, &target}, func(x *Exec) *Tensor {
		var y *Tensor
		if opt.Plain {
			y = x.Sub(t, x.Mul(target, x.Log(x.AddS(t, eps))))
		} else {
			y = x.Sub(x.Exp(t), x.Mul(target, t))
		}
		if opt.Full {
			s := x.Add(x.Sub(x.Mul(target, x.Log(target)), target), x.MulS(x.Log(x.MulS(target, 2*math.Pi)), 0.5))
			y = x.Add(y, x.pick(x.LeS(target, 1), nil, 0, s, 0))
		}
		return y
	})
}

// MarginRankingLoss returns the mean (or the reduction in opt) of margin - target·(a - b), or 0 if that is negative; broadcast. target is 1
// where a should be greater, and -1 where b should.
func (x *Exec) MarginRankingLoss(a, b, target *Tensor, opt MarginLossOpt) *Tensor {
	margin := Or("MarginRankingLoss", "Margin", opt.Margin, 0)
	return x.marginLoss("MarginRankingLoss", opt.Reduction, []**Tensor{&a, &b, &target}, func(x *Exec) *Tensor {
		return x.ClampMinS(x.AddS(x.fractional(x.Mul(x.Neg(target), x.Sub(a, b))), margin), 0)
	})
}

// TripletMarginLossOpt are the options of TripletMarginLoss. The zero value is PyTorch's default.
type TripletMarginLossOpt struct {
	// Margin is by how much the distances should differ; the default is 1. P is the order of the norm; the default is 2. Eps is added to
	// differences; the default is 1e-6.
	Margin, P, Eps Scalar
	// Swap takes the distance from positive to negative where it is less than that from the anchor to negative.
	Swap bool
	// Reduction is ReduceMean (the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// TripletMarginLoss returns the mean (or the reduction in opt) of margin + d(anchor, positive) - d(anchor, negative), or 0 if that is
// negative; d is PairwiseDistance, over vectors in the last dimension, broadcast.
func (x *Exec) TripletMarginLoss(anchor, positive, negative *Tensor, opt TripletMarginLossOpt) *Tensor {
	margin, eps := Or("TripletMarginLoss", "Margin", opt.Margin, 1), OrFinite("TripletMarginLoss", "Eps", opt.Eps, 1e-6)
	how := PairwiseDistanceOpt{P: opt.P, Eps: eps}
	if !(margin >= 0) {
		panicAt("TripletMarginLoss", fault.Invalid, "Margin is %v; give a number that is not negative", margin)
	}
	return x.marginLoss("TripletMarginLoss", opt.Reduction, []**Tensor{&anchor, &positive, &negative},
		func(x *Exec) *Tensor {
			near, far := x.PairwiseDistance(anchor, positive, how), x.PairwiseDistance(anchor, negative, how)
			if opt.Swap {
				far = x.Minimum(far, x.PairwiseDistance(positive, negative, how))
			}
			return x.ClampMinS(x.Sub(x.AddS(near, margin), far), 0)
		})
}

// SoftMarginLoss returns the mean (or the reduction in opt) of log(1 + exp(-target·t)); broadcast. Targets are 1 and -1.
func (x *Exec) SoftMarginLoss(t, target *Tensor, opt LossOpt) *Tensor {
	return x.marginLoss("SoftMarginLoss", opt.Reduction, []**Tensor{&t, &target}, func(x *Exec) *Tensor {
		return x.Log1p(x.Exp(x.Mul(x.Neg(t), target)))
	})
}

// MultiMarginLossOpt are the options of MultiMarginLoss. The zero value is PyTorch's default.
type MultiMarginLossOpt struct {
	// Weight [C] multiplies the terms of a sample by the weight of its target; nil means 1.
	Weight *Tensor
	// Squared squares the terms before summing. The default of Margin is 1.
	Squared bool
	Margin  Scalar
	// Reduction is ReduceMean (the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// MultiMarginLoss returns the mean (or the reduction in opt) of the sums over classes j other than the target y of margin - t_y + t_j, or 0
// if that is negative, divided by the number of classes; t is [N, C] with targets [N], integers in 0 … C-1, or [C] with a target [].
func (x *Exec) MultiMarginLoss(t, target *Tensor, opt MultiMarginLossOpt) *Tensor {
	weight := opt.Weight
	all, n := []*Tensor{t, target, weight}, len(t.shape)
	want, c := []int{}, 1 // a tensor without dimensions has one class
	if n > 0 {
		want, c = t.shape[:n-1], t.shape[n-1]
	}
	if n > 2 || n == 2 && !infer.Same(target.shape, want) || len(target.shape) > 1 || n < 2 && target.Numel() != 1 {
		x.fail("MultiMarginLoss", fault.Invalid, all, "inconsistent target size, expected %v but got %v", want, target.shape)
	}
	if !t.dt.IsFloat() || !target.dt.IsInt() {
		x.fail("MultiMarginLoss", fault.Invalid, all, "the input must be of a floating-point type and the targets integers, not %v and "+
			"%v; convert them with x.ToDType", t.dt, target.dt)
	}
	if weight != nil && !infer.Same(weight.shape, []int{c}) {
		x.fail("MultiMarginLoss", fault.Invalid, all, "inconsistent weight size, expected %d but got %v", c, weight.shape)
	}
	margin, out := Or("MultiMarginLoss", "Margin", opt.Margin, 1), t.dt
	how := x.reductionOf("MultiMarginLoss", opt.Reduction)
	return x.composite("MultiMarginLoss", func(x *Exec) *Tensor {
		if x.m.autocast != dtype.Invalid && out != dtype.Float64 {
			out = dtype.Float32
		}
		x = x.casting("MultiMarginLoss", castFloat32, &t, &weight)
		in, y := x.Reshape(x.widened(t), append(slices.Clone(want), c)...), x.Reshape(target, append(slices.Clone(want), 1)...)
		z := x.ClampMinS(x.AddS(x.Sub(in, x.Gather(in, -1, y)), margin), 0)
		if opt.Squared {
			z = x.Square(z)
		}
		if weight != nil {
			z = x.Mul(z, x.Reshape(x.IndexSelect(x.widened(weight), 0, x.Reshape(target, -1)), y.shape...))
		}
		own := x.Eq(y, x.Arange(float64(c), target.dt, ArangeOpt{}))
		z = x.DivS(x.Sum(x.pick(own, nil, 0, z, 0), []int{-1}, SumOpt{}), float64(c))
		return x.ToDType(x.reduceLoss(z, how), out)
	})
}
