package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// SGDOpt are the options of SGD. The zero value is PyTorch's default.
type SGDOpt struct {
	// LR is the learning rate; 0 is 1e-3.
	LR float64
	// Momentum keeps that part of the last step, and Dampening leaves that part of the gradient out of it.
	Momentum, Dampening float64
	// WeightDecay adds that multiple of the parameter to the gradient.
	WeightDecay float64
	// Nesterov takes the gradient at the place where the momentum leads; it needs Momentum and no Dampening.
	Nesterov bool
	// Maximize goes up the gradient.
	Maximize bool
}

// SGD is stochastic gradient descent, with momentum as torch.optim.SGD has it. It has the methods of [Optimizer] and Add.
type SGD struct{ optimizer[SGDOpt] }

var _ Optimizer = (*SGD)(nil)

// NewSGD returns an optimizer of params, such as nn.Params(m).
func NewSGD(params iter.Seq2[string, *nn.Param], opt SGDOpt) (*SGD, error) {
	o := &SGD{optimizer[SGDOpt]{name: "SGD", seen: map[*nn.Param]bool{}, lr: func(o *SGDOpt) *float64 { return &o.LR }}}
	if err := o.Add(params, opt); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters with options of its own.
func (o *SGD) Add(params iter.Seq2[string, *nn.Param], opt SGDOpt) error {
	if o == nil {
		return missing("SGD")
	}
	opt.LR = or(opt.LR, 1e-3)
	switch {
	case !(opt.LR >= 0):
		return o.refuse(fault.Invalid, "Invalid learning rate: %v; give a number that is not negative", opt.LR)
	case !(opt.Momentum >= 0):
		return o.refuse(fault.Invalid, "Invalid momentum value: %v; give a number that is not negative", opt.Momentum)
	case !(opt.WeightDecay >= 0):
		return o.refuse(fault.Invalid, "Invalid weight_decay value: %v; give a number that is not negative", opt.WeightDecay)
	case opt.Nesterov && (opt.Momentum == 0 || opt.Dampening != 0):
		return o.refuse(fault.Invalid, "Nesterov momentum requires a momentum and zero dampening")
	}
	return o.add(params, opt)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *SGD) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("SGD")
	}
	return o.step(x, func(opt *SGDOpt, s *state) []**tenon.Tensor {
		if opt.Momentum == 0 {
			return nil
		}
		return []**tenon.Tensor{&s.first}
	}, func(opt *SGDOpt, x *core.Exec, b *batch) {
		core.StepSGD(x, b.lists, opt.LR, opt.Momentum, opt.Dampening, opt.WeightDecay, opt.Nesterov, opt.Maximize, b.step == 1)
	})
}
