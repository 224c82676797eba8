package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// AdagradOpt are the options of Adagrad. The zero value is PyTorch's default.
type AdagradOpt struct {
	// LR is the learning rate; the default is 1e-2.
	LR tenon.Scalar `json:"lr"`
	// LRDecay lowers the rate: at step t it is LR/(1+(t-1)·LRDecay).
	LRDecay tenon.Scalar `json:"lr_decay"`
	// WeightDecay is the multiple of the parameter that is added to the gradient.
	WeightDecay tenon.Scalar `json:"weight_decay"`
	// InitialAccumulator is the initial value of the sums of squares.
	InitialAccumulator tenon.Scalar `json:"initial_accumulator_value"`
	// Eps is added to the root of the sum; the default is 1e-10.
	Eps tenon.Scalar `json:"eps"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// Adagrad scales each step by the root of the sum of all squares of the gradient (J. Duchi, E. Hazan, Y. Singer, JMLR 2011), as
// torch.optim.Adagrad does. It has the methods of [Optimizer] and Add.
type Adagrad struct{ optimizer[AdagradOpt] }

var _ Optimizer = (*Adagrad)(nil)

// NewAdagrad returns an optimizer of params, such as nn.Params(m).
func NewAdagrad(params iter.Seq2[string, *nn.Param], opts ...AdagradOpt) (*Adagrad, error) {
	o := &Adagrad{newAdagrad()}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewAdagrad], flags included.
func (o *Adagrad) Add(params iter.Seq2[string, *nn.Param], opts ...AdagradOpt) error {
	if o == nil {
		return missing("Adagrad")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *Adagrad) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("Adagrad")
	}
	return o.step(x, nil)
}

func newAdagrad() optimizer[AdagradOpt] {
	return optimizer[AdagradOpt]{name: "Adagrad", seen: map[*nn.Param]bool{}, lr: func(o *AdagradOpt) *tenon.Scalar { return &o.LR },
		resolve: func(o *AdagradOpt, refuse refusal) error {
			o.WeightDecay, o.LRDecay, o.InitialAccumulator = or(o.WeightDecay, 0), or(o.LRDecay, 0),
				or(o.InitialAccumulator, 0)
			o.LR, o.Eps = or(o.LR, 1e-2), or(o.Eps, 1e-10)
			return notNegative(refuse, "lr_decay value", o.LRDecay, "weight_decay value", o.WeightDecay,
				"initial_accumulator_value value", o.InitialAccumulator, "epsilon value", o.Eps)
		},
		plan: func(o *AdagradOpt) plan {
			return plan{core.Adagrad, []float64{num(o.LR), signOf(o.Maximize), num(o.WeightDecay), num(o.LRDecay), num(o.Eps)},
				[]slot{{"sum", num(o.InitialAccumulator)}}, stepOnly}
		},
	}
}
