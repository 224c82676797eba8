package nn

import (
	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// weightOf returns the weight of a loss, from its buffer or its options.
func weightOf(op string, b *Buffer, opt *tenon.Tensor) *tenon.Tensor {
	switch {
	case b == nil:
		return opt
	case opt != nil:
		core.Fail(op, fault.Invalid, "the weight is given twice; give it as Weight, which moves with the module, or in Opt")
	}
	return b.Tensor()
}

// CrossEntropyLoss is the cross-entropy between logits and targets.
type CrossEntropyLoss struct {
	// Weight has one element for each class, or is nil.
	Weight *Buffer `torch:"weight"`
	// Opt are the reduction, the ignored class and smoothing.
	Opt tenon.CrossEntropyOpt `torch:"-"`
}

// Forward returns the loss of logits [N, C, …] or [C] for target: class numbers (Int64) of that shape without C, or probabilities of the
// same shape.
func (l CrossEntropyLoss) Forward(x *tenon.Exec, logits, target *tenon.Tensor) *tenon.Tensor {
	opt := l.Opt
	opt.Weight = weightOf("CrossEntropyLoss", l.Weight, opt.Weight)
	return x.CrossEntropy(logits, target, opt)
}

// NLLLoss is the negative log-likelihood.
type NLLLoss struct {
	// Weight has one element for each class, or is nil.
	Weight *Buffer `torch:"weight"`
	// Opt are the reduction and the ignored class.
	Opt tenon.NLLLossOpt `torch:"-"`
}

// Forward returns the loss of log-probabilities [N, C, …] or [C] for target: class numbers (Int64) of that shape without C.
func (l NLLLoss) Forward(x *tenon.Exec, logProbs, target *tenon.Tensor) *tenon.Tensor {
	opt := l.Opt
	opt.Weight = weightOf("NLLLoss", l.Weight, opt.Weight)
	return x.NLLLoss(logProbs, target, opt)
}

// MSELoss is the mean of squared differences.
type MSELoss struct {
	// Opt is the reduction.
	Opt tenon.LossOpt
}

// Forward returns the loss of in for target, of shapes that broadcast.
func (l MSELoss) Forward(x *tenon.Exec, in, target *tenon.Tensor) *tenon.Tensor {
	return x.MSELoss(in, target, l.Opt)
}

// L1Loss is the mean of absolute differences.
type L1Loss struct {
	// Opt is the reduction.
	Opt tenon.LossOpt
}

// Forward returns the loss of in for target, of shapes that broadcast.
func (l L1Loss) Forward(x *tenon.Exec, in, target *tenon.Tensor) *tenon.Tensor {
	return x.L1Loss(in, target, l.Opt)
}

// BCEWithLogitsLoss is the binary cross-entropy of logits.
type BCEWithLogitsLoss struct {
	// Weight weights the elements, and PosWeight those whose target is 1; each broadcasts to the target's shape, or is nil.
	Weight    *Buffer `torch:"weight"`
	PosWeight *Buffer `torch:"pos_weight"`
	// Opt is the reduction.
	Opt tenon.LossOpt `torch:"-"`
}

// Forward returns the loss of logits for target, probabilities of their shape.
func (l BCEWithLogitsLoss) Forward(x *tenon.Exec, logits, target *tenon.Tensor) *tenon.Tensor {
	return x.BCEWithLogits(logits, target,
		tenon.BCEWithLogitsOpt{Weight: l.Weight.Tensor(), PositiveWeight: l.PosWeight.Tensor(), Reduction: l.Opt.Reduction})
}

// SmoothL1Loss is the mean of absolute differences, squared where they are small.
type SmoothL1Loss struct {
	// Beta is the difference up to which the loss is quadratic; the default is 1. With 0 there is no quadratic part, as in L1Loss.
	Beta tenon.Scalar
	// Opt is the reduction.
	Opt tenon.LossOpt
}

// Forward returns the loss of in for target, of shapes that broadcast.
func (l SmoothL1Loss) Forward(x *tenon.Exec, in, target *tenon.Tensor) *tenon.Tensor {
	return x.SmoothL1Loss(in, target, tenon.SmoothL1LossOpt{Beta: l.Beta, Reduction: l.Opt.Reduction})
}

// HuberLoss is SmoothL1Loss times Delta.
type HuberLoss struct {
	// Delta is the difference up to which the loss is quadratic; the default is 1.
	Delta tenon.Scalar
	// Opt is the reduction.
	Opt tenon.LossOpt
}

// Forward returns the loss of in for target, of shapes that broadcast.
func (l HuberLoss) Forward(x *tenon.Exec, in, target *tenon.Tensor) *tenon.Tensor {
	return x.HuberLoss(in, target, tenon.HuberLossOpt{Delta: l.Delta, Reduction: l.Opt.Reduction})
}

// BCELoss is the binary cross-entropy of probabilities. BCEWithLogitsLoss, which takes the input of the sigmoid, is more accurate.
type BCELoss struct {
	// Weight weights the elements; it broadcasts to the target's shape, or is nil.
	Weight *Buffer `torch:"weight"`
	// Opt is the reduction.
	Opt tenon.LossOpt `torch:"-"`
}

// Forward returns the loss of probabilities for target, also probabilities, of the same shape.
func (l BCELoss) Forward(x *tenon.Exec, probabilities, target *tenon.Tensor) *tenon.Tensor {
	return x.BCE(probabilities, target, tenon.BCEOpt{Weight: l.Weight.Tensor(), Reduction: l.Opt.Reduction})
}

// KLDivLoss is the Kullback-Leibler divergence.
type KLDivLoss struct {
	// Opt are the reduction and whether the target holds logarithms.
	Opt tenon.KLDivOpt
}

// Forward returns the divergence of log-probabilities from target, of shapes that broadcast.
func (l KLDivLoss) Forward(x *tenon.Exec, logProbs, target *tenon.Tensor) *tenon.Tensor {
	return x.KLDiv(logProbs, target, l.Opt)
}
