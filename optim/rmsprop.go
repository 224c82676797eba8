package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// RMSpropOpt are the options of RMSprop. The zero value is PyTorch's default.
type RMSpropOpt struct {
	// LR is the learning rate; the default is 1e-2.
	LR tenon.Scalar `json:"lr"`
	// Alpha is the decay rate of the running means; the default is 0.99.
	Alpha tenon.Scalar `json:"alpha"`
	// Eps is added to the root of the mean square; the default is 1e-8.
	Eps tenon.Scalar `json:"eps"`
	// Momentum is the fraction of the last step that is kept.
	Momentum tenon.Scalar `json:"momentum"`
	// Centered uses the variance of the gradient in place of its mean square.
	Centered bool `json:"centered"`
	// WeightDecay is the multiple of the parameter that is added to the gradient.
	WeightDecay tenon.Scalar `json:"weight_decay"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// RMSprop scales each step by the root of a running mean of the gradient's squares (T. Tieleman, G. Hinton, 2012; centered: A. Graves,
// arXiv:1308.0850), as torch.optim.RMSprop does. It has the methods of [Optimizer] and Add.
type RMSprop struct{ optimizer[RMSpropOpt] }

var _ Optimizer = (*RMSprop)(nil)

// NewRMSprop returns an optimizer of params, such as nn.Params(m).
func NewRMSprop(params iter.Seq2[string, *nn.Param], opts ...RMSpropOpt) (*RMSprop, error) {
	o := &RMSprop{newRMSprop()}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewRMSprop], flags included.
func (o *RMSprop) Add(params iter.Seq2[string, *nn.Param], opts ...RMSpropOpt) error {
	if o == nil {
		return missing("RMSprop")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *RMSprop) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("RMSprop")
	}
	return o.step(x, nil)
}

func newRMSprop() optimizer[RMSpropOpt] {
	return optimizer[RMSpropOpt]{name: "RMSprop", seen: map[*nn.Param]bool{}, lr: func(o *RMSpropOpt) *tenon.Scalar { return &o.LR },
		resolve: func(o *RMSpropOpt, refuse refusal) error {
			o.Momentum, o.WeightDecay = or(o.Momentum, 0), or(o.WeightDecay, 0)
			o.LR, o.Alpha, o.Eps = or(o.LR, 1e-2), or(o.Alpha, 0.99), or(o.Eps, 1e-8)
			return notNegative(refuse, "alpha value", o.Alpha, "epsilon value", o.Eps, "momentum value", o.Momentum,
				"weight_decay value", o.WeightDecay)
		},
		plan: func(o *RMSpropOpt) plan {
			p := plan{core.RMSprop, []float64{num(o.LR), signOf(o.Maximize), num(o.WeightDecay), num(o.Alpha), num(o.Eps), num(o.Momentum)},
				[]slot{{name: "square_avg"}}, stepOnly}
			if o.Centered {
				p.op, p.slots = core.RMSpropCentered, append(p.slots, slot{name: "grad_avg"})
			}
			if num(o.Momentum) != 0 {
				p.slots = append(p.slots, slot{name: "momentum_buffer"})
				if p.op = core.RMSpropMomentum; o.Centered {
					p.op = core.RMSpropCenteredMomentum
				}
			}
			return p
		},
	}
}
