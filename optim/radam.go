package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// RAdamOpt are the options of RAdam. The zero value is PyTorch's default.
type RAdamOpt struct {
	// LR is the learning rate; the default is 1e-3.
	LR tenon.Scalar `json:"lr"`
	// Betas are the decay rates of the running means of the gradient and its square; the defaults are 0.9 and 0.999.
	Betas []float64 `json:"betas"`
	// Eps is added to the root of the mean square; the default is 1e-8.
	Eps tenon.Scalar `json:"eps"`
	// WeightDecay is the multiple of the parameter that is added to the gradient. If DecoupledWeightDecay is set, the parameter instead
	// shrinks by LR·WeightDecay of itself.
	WeightDecay          tenon.Scalar `json:"weight_decay"`
	DecoupledWeightDecay bool         `json:"decoupled_weight_decay"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// RAdam is Adam with rectified first steps, in which the mean of squares is still unreliable (L. Liu and others, ICLR 2020), as
// torch.optim.RAdam does. It has the methods of [Optimizer] and Add.
type RAdam struct{ optimizer[RAdamOpt] }

var _ Optimizer = (*RAdam)(nil)

// NewRAdam returns an optimizer of params, such as nn.Params(m).
func NewRAdam(params iter.Seq2[string, *nn.Param], opts ...RAdamOpt) (*RAdam, error) {
	o := &RAdam{newRAdam()}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewRAdam], flags included.
func (o *RAdam) Add(params iter.Seq2[string, *nn.Param], opts ...RAdamOpt) error {
	if o == nil {
		return missing("RAdam")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *RAdam) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("RAdam")
	}
	return o.step(x, nil)
}

func newRAdam() optimizer[RAdamOpt] {
	return optimizer[RAdamOpt]{name: "RAdam", seen: map[*nn.Param]bool{}, lr: func(o *RAdamOpt) *tenon.Scalar { return &o.LR },
		resolve: func(o *RAdamOpt, refuse refusal) error {
			o.WeightDecay = or(o.WeightDecay, 0)
			o.LR, o.Eps = or(o.LR, 1e-3), or(o.Eps, 1e-8)
			if err := checkBetas(&o.Betas, refuse); err != nil {
				return err
			}
			return notNegative(refuse, "epsilon value", o.Eps, "weight_decay value", o.WeightDecay)
		},
		plan: func(o *RAdamOpt) plan {
			p := plan{core.RAdam, []float64{num(o.LR), signOf(o.Maximize), num(o.WeightDecay), o.Betas[0], o.Betas[1], num(o.Eps)},
				moments, stepOnly}
			if o.DecoupledWeightDecay {
				p.op = core.RAdamW
			}
			return p
		},
	}
}
