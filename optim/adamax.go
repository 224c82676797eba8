package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// AdamaxOpt are the options of Adamax. The zero value is PyTorch's default.
type AdamaxOpt struct {
	// LR is the learning rate; the default is 2e-3.
	LR tenon.Scalar `json:"lr"`
	// Betas are the decay rates of the running mean of the gradient and of its largest magnitude; the defaults are 0.9 and 0.999.
	Betas []float64 `json:"betas"`
	// Eps is added to the magnitude; the default is 1e-8.
	Eps tenon.Scalar `json:"eps"`
	// WeightDecay is the multiple of the parameter that is added to the gradient.
	WeightDecay tenon.Scalar `json:"weight_decay"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// Adamax is Adam with the largest magnitude in place of the mean of squares (D. Kingma, J. Ba, ICLR 2015), as torch.optim.Adamax does. It
// has the methods of [Optimizer] and Add.
type Adamax struct{ optimizer[AdamaxOpt] }

var _ Optimizer = (*Adamax)(nil)

// NewAdamax returns an optimizer of params, such as nn.Params(m).
func NewAdamax(params iter.Seq2[string, *nn.Param], opts ...AdamaxOpt) (*Adamax, error) {
	o := &Adamax{newAdamax()}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewAdamax], flags included.
func (o *Adamax) Add(params iter.Seq2[string, *nn.Param], opts ...AdamaxOpt) error {
	if o == nil {
		return missing("Adamax")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *Adamax) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("Adamax")
	}
	return o.step(x, nil)
}

func newAdamax() optimizer[AdamaxOpt] {
	return optimizer[AdamaxOpt]{name: "Adamax", seen: map[*nn.Param]bool{}, lr: func(o *AdamaxOpt) *tenon.Scalar { return &o.LR },
		resolve: func(o *AdamaxOpt, refuse refusal) error {
			o.WeightDecay = or(o.WeightDecay, 0)
			o.LR, o.Eps = or(o.LR, 2e-3), or(o.Eps, 1e-8)
			if err := checkBetas(&o.Betas, refuse); err != nil {
				return err
			}
			return notNegative(refuse, "epsilon value", o.Eps, "weight_decay value", o.WeightDecay)
		},
		plan: func(o *AdamaxOpt) plan {
			return plan{core.Adamax, []float64{num(o.LR), signOf(o.Maximize), num(o.WeightDecay), o.Betas[0], o.Betas[1], num(o.Eps)},
				[]slot{{name: "exp_avg"}, {name: "exp_inf"}}, stepOnly}
		},
	}
}
