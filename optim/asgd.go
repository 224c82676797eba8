package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// ASGDOpt are the options of ASGD. The zero value is PyTorch's default.
type ASGDOpt struct {
	// LR is the learning rate; the default is 1e-2.
	LR tenon.Scalar `json:"lr"`
	// Lambda is the decay of parameters and rate in each step; the default is 1e-4.
	Lambda tenon.Scalar `json:"lambd"`
	// Alpha is the exponent of the rate's decay; the default is 0.75.
	Alpha tenon.Scalar `json:"alpha"`
	// T0 is the step after which averaging starts; the default is 1e6.
	T0 tenon.Scalar `json:"t0"`
	// WeightDecay is the multiple of the parameter that is added to the gradient.
	WeightDecay tenon.Scalar `json:"weight_decay"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// ASGD is stochastic gradient descent that also keeps the averages of the parameters (B. Polyak, A. Juditsky, SIAM J. Control Optim. 1992),
// as torch.optim.ASGD does; they are its state "ax". It has the methods of [Optimizer] and Add.
type ASGD struct{ optimizer[ASGDOpt] }

var _ Optimizer = (*ASGD)(nil)

// NewASGD returns an optimizer of params, such as nn.Params(m).
func NewASGD(params iter.Seq2[string, *nn.Param], opts ...ASGDOpt) (*ASGD, error) {
	o := &ASGD{newASGD()}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewASGD], flags included.
func (o *ASGD) Add(params iter.Seq2[string, *nn.Param], opts ...ASGDOpt) error {
	if o == nil {
		return missing("ASGD")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *ASGD) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("ASGD")
	}
	return o.step(x, nil)
}

func newASGD() optimizer[ASGDOpt] {
	return optimizer[ASGDOpt]{name: "ASGD", seen: map[*nn.Param]bool{}, lr: func(o *ASGDOpt) *tenon.Scalar { return &o.LR },
		resolve: func(o *ASGDOpt, refuse refusal) error {
			o.WeightDecay = or(o.WeightDecay, 0)
			o.LR, o.Lambda, o.Alpha, o.T0 = or(o.LR, 1e-2), or(o.Lambda, 1e-4), or(o.Alpha, 0.75), or(o.T0, 1e6)
			return notNegative(refuse, "weight_decay value", o.WeightDecay)
		},
		plan: func(o *ASGDOpt) plan {
			return plan{core.ASGD,
				[]float64{num(o.LR), signOf(o.Maximize), num(o.WeightDecay), num(o.Lambda), num(o.Alpha), num(o.T0)},
				[]slot{{name: "ax"}}, []string{"step", "eta", "mu"}}
		},
	}
}
