package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// AdadeltaOpt are the options of Adadelta. The zero value is PyTorch's default.
type AdadeltaOpt struct {
	// LR is the learning rate; the default is 1.
	LR tenon.Scalar `json:"lr"`
	// Rho is the decay rate of the running means; the default is 0.9.
	Rho tenon.Scalar `json:"rho"`
	// Eps is added to the means before their roots are taken; the default is 1e-6.
	Eps tenon.Scalar `json:"eps"`
	// WeightDecay is the multiple of the parameter that is added to the gradient.
	WeightDecay tenon.Scalar `json:"weight_decay"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// Adadelta scales each step by the ratio of the sizes of past steps and gradients (M. Zeiler, arXiv:1212.5701), as torch.optim.Adadelta
// does. It has the methods of [Optimizer] and Add.
type Adadelta struct{ optimizer[AdadeltaOpt] }

var _ Optimizer = (*Adadelta)(nil)

// NewAdadelta returns an optimizer of params, such as nn.Params(m).
func NewAdadelta(params iter.Seq2[string, *nn.Param], opts ...AdadeltaOpt) (*Adadelta, error) {
	o := &Adadelta{newAdadelta()}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewAdadelta], flags included.
func (o *Adadelta) Add(params iter.Seq2[string, *nn.Param], opts ...AdadeltaOpt) error {
	if o == nil {
		return missing("Adadelta")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *Adadelta) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("Adadelta")
	}
	return o.step(x, nil)
}

func newAdadelta() optimizer[AdadeltaOpt] {
	return optimizer[AdadeltaOpt]{name: "Adadelta", seen: map[*nn.Param]bool{}, lr: func(o *AdadeltaOpt) *tenon.Scalar { return &o.LR },
		resolve: func(o *AdadeltaOpt, refuse refusal) error {
			o.WeightDecay = or(o.WeightDecay, 0)
			o.LR, o.Rho, o.Eps = or(o.LR, 1), or(o.Rho, 0.9), or(o.Eps, 1e-6)
			if rho := num(o.Rho); !(0 <= rho && rho <= 1) {
				return refuse(fault.Invalid, "Invalid rho value: %v; give a number from 0 to 1", rho)
			}
			return notNegative(refuse, "epsilon value", o.Eps, "weight_decay value", o.WeightDecay)
		},
		plan: func(o *AdadeltaOpt) plan {
			return plan{core.Adadelta, []float64{num(o.LR), signOf(o.Maximize), num(o.WeightDecay), num(o.Rho), num(o.Eps)},
				[]slot{{name: "square_avg"}, {name: "acc_delta"}}, stepOnly}
		},
	}
}
