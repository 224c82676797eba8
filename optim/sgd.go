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
	// LR is the learning rate; the default is 1e-3.
	LR tenon.Scalar `json:"lr"`
	// Momentum is the fraction of the last step that is kept, and Dampening the fraction of the gradient that is left out of it.
	Momentum  tenon.Scalar `json:"momentum"`
	Dampening tenon.Scalar `json:"dampening"`
	// WeightDecay is the multiple of the parameter that is added to the gradient.
	WeightDecay tenon.Scalar `json:"weight_decay"`
	// Nesterov uses Nesterov's momentum, which takes the gradient where the momentum leads; it needs Momentum and no Dampening.
	Nesterov bool `json:"nesterov"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// SGD is stochastic gradient descent, with momentum as in torch.optim.SGD. It has the methods of [Optimizer] and Add.
type SGD struct{ optimizer[SGDOpt] }

var _ Optimizer = (*SGD)(nil)

func newSGD() optimizer[SGDOpt] {
	return optimizer[SGDOpt]{name: "SGD", seen: map[*nn.Param]bool{}, lr: func(o *SGDOpt) *tenon.Scalar { return &o.LR },
		resolve: func(o *SGDOpt, refuse refusal) error {
			o.Momentum, o.Dampening, o.WeightDecay = or(o.Momentum, 0), or(o.Dampening, 0), or(o.WeightDecay, 0)
			o.LR = or(o.LR, 1e-3)
			if o.Nesterov && (num(o.Momentum) == 0 || num(o.Dampening) != 0) {
				return refuse(fault.Invalid, "Nesterov momentum requires a momentum and zero dampening")
			}
			return notNegative(refuse, "momentum value", o.Momentum, "weight_decay value", o.WeightDecay)
		},
		plan: func(o *SGDOpt) plan {
			p := plan{op: core.SGD, numbers: []float64{num(o.LR), signOf(o.Maximize), num(o.WeightDecay)}, counts: stepOnly}
			if num(o.Momentum) != 0 {
				p.op, p.slots = core.SGDMomentum, []slot{{name: "momentum_buffer"}}
				p.numbers = append(p.numbers, num(o.Momentum), 1-num(o.Dampening))
			}
			if o.Nesterov {
				p.op = core.SGDNesterov
			}
			return p
		}}
}

// NewSGD returns an optimizer of params, such as nn.Params(m).
func NewSGD(params iter.Seq2[string, *nn.Param], opts ...SGDOpt) (*SGD, error) {
	o := &SGD{newSGD()}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewSGD], flags included.
func (o *SGD) Add(params iter.Seq2[string, *nn.Param], opts ...SGDOpt) error {
	if o == nil {
		return missing("SGD")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *SGD) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("SGD")
	}
	return o.step(x, nil)
}
