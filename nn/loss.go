package nn

import "tenon.dev"

// CrossEntropyLoss is the cross-entropy between logits and targets.
type CrossEntropyLoss struct {
	// Weight has one element for each class, or is nil.
	Weight *Buffer `torch:"weight"`
	// Opt are the reduction, the ignored class and smoothing.
	Opt tenon.CrossEntropyOpt `torch:"-"`
}

// Forward returns the loss of logits [N, C, …] or [C] for target: class numbers (Int64) of that shape without C, or probabilities of the same shape.
func (l CrossEntropyLoss) Forward(x *tenon.Exec, logits, target *tenon.Tensor) *tenon.Tensor {
	return x.CrossEntropy(logits, target, l.Weight.Tensor(), l.Opt)
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
	return x.NLLLoss(logProbs, target, l.Weight.Tensor(), l.Opt)
}
