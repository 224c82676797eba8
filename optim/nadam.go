package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// NAdamOpt are the options of NAdam. The zero value is PyTorch's default.
type NAdamOpt struct {
	// LR is the learning rate; the default is 2e-3.
	LR tenon.Scalar `json:"lr"`
	// Betas are the decay rates of the running means of the gradient and its square; the defaults are 0.9 and 0.999.
	Betas []float64 `json:"betas"`
	// Eps is added to the root of the mean square; the default is 1e-8.
	Eps tenon.Scalar `json:"eps"`
	// WeightDecay is the multiple of the parameter that is added to the gradient. If DecoupledWeightDecay is set, the parameter instead
	// shrinks by LR·WeightDecay of itself.
	WeightDecay          tenon.Scalar `json:"weight_decay"`
	DecoupledWeightDecay bool         `json:"decoupled_weight_decay"`
	// MomentumDecay says how fast the momentum grows to its full size; the default is 4e-3.
	MomentumDecay tenon.Scalar `json:"momentum_decay"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// NAdam is Adam with Nesterov's momentum (T. Dozat, ICLR Workshop 2016), as torch.optim.NAdam does. It has the methods of [Optimizer] and
// Add.
type NAdam struct{ optimizer[NAdamOpt] }

var _ Optimizer = (*NAdam)(nil)

// NewNAdam returns an optimizer of params, such as nn.Params(m).
func NewNAdam(params iter.Seq2[string, *nn.Param], opts ...NAdamOpt) (*NAdam, error) {
	o := &NAdam{newNAdam()}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewNAdam], flags included.
func (o *NAdam) Add(params iter.Seq2[string, *nn.Param], opts ...NAdamOpt) error {
	if o == nil {
		return missing("NAdam")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *NAdam) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("NAdam")
	}
	return o.step(x, nil)
}

func newNAdam() optimizer[NAdamOpt] {
	return optimizer[NAdamOpt]{name: "NAdam", seen: map[*nn.Param]bool{}, lr: func(o *NAdamOpt) *tenon.Scalar { return &o.LR },
		resolve: func(o *NAdamOpt, refuse refusal) error {
			o.WeightDecay = or(o.WeightDecay, 0)
			o.LR, o.Eps, o.MomentumDecay = or(o.LR, 2e-3), or(o.Eps, 1e-8), or(o.MomentumDecay, 4e-3)
			if err := checkBetas(&o.Betas, refuse); err != nil {
				return err
			}
			return notNegative(refuse, "epsilon value", o.Eps, "weight_decay value", o.WeightDecay,
				"momentum_decay value", o.MomentumDecay)
		},
		plan: func(o *NAdamOpt) plan {
			p := plan{core.NAdam, []float64{num(o.LR), signOf(o.Maximize), num(o.WeightDecay), o.Betas[0], o.Betas[1], num(o.Eps),
				num(o.MomentumDecay)}, moments, []string{"step", "mu_product"}}
			if o.DecoupledWeightDecay {
				p.op = core.NAdamW
			}
			return p
		},
	}
}
