package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// AdamOpt are the options of Adam and AdamW. The zero value is PyTorch's default.
type AdamOpt struct {
	// LR is the learning rate; the default is 1e-3.
	LR tenon.Scalar `json:"lr"`
	// Betas are the decay rates of the running means of the gradient and its square; the defaults are 0.9 and 0.999.
	Betas []float64 `json:"betas"`
	// Eps is added to the root of the mean square; the default is 1e-8.
	Eps tenon.Scalar `json:"eps"`
	// WeightDecay is, in Adam, the multiple of the parameter that is added to the gradient. AdamW instead shrinks the parameter by
	// LR·WeightDecay of itself, and there the default is 1e-2.
	WeightDecay tenon.Scalar `json:"weight_decay"`
	// AMSGrad divides by the largest mean square so far (S. Reddi, S. Kale, S. Kumar, ICLR 2018).
	AMSGrad bool `json:"amsgrad"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// resolveAdam fills in the defaults and refuses invalid options.
func resolveAdam(decay float64) func(opt *AdamOpt, refuse refusal) error {
	return func(opt *AdamOpt, refuse refusal) error {
		opt.LR, opt.Eps = or(opt.LR, 1e-3), or(opt.Eps, 1e-8)
		opt.WeightDecay = or(opt.WeightDecay, decay)
		if err := checkBetas(&opt.Betas, refuse); err != nil {
			return err
		}
		return notNegative(refuse, "epsilon value", opt.Eps, "weight_decay value", opt.WeightDecay)
	}
}

// checkBetas fills in and checks the decay rates of the running means.
func checkBetas(betas *[]float64, refuse refusal) error {
	if err := resolvePair("Betas", betas, 0.9, 0.999, refuse); err != nil {
		return err
	}
	for i, b := range *betas {
		if err := checkBeta(i, b, refuse); err != nil {
			return err
		}
	}
	return nil
}

func checkBeta(i int, b float64, refuse refusal) error {
	if !(0 <= b && b < 1) {
		return refuse(fault.Invalid, "Invalid beta parameter at index %d: %v; give a number from 0 to below 1", i, b)
	}
	return nil
}

// notNegative refuses negative numbers and those that are not finite; what alternates names and numbers.
func notNegative(refuse refusal, what ...any) error {
	for i := 0; i < len(what); i += 2 {
		if v := what[i+1].(float64); !finite(v) || v < 0 {
			return refuse(fault.Invalid, "Invalid %s: %v; give a finite number that is not negative", what[i], v)
		}
	}
	return nil
}

// numbersOfAdam returns the options in the form that the step's operation takes.
func numbersOfAdam(opt *AdamOpt) []float64 {
	return []float64{num(opt.LR), signOf(opt.Maximize), num(opt.WeightDecay), opt.Betas[0], opt.Betas[1], num(opt.Eps)}
}

// moments are the state of Adam and most of its variants.
var moments = []slot{{name: "exp_avg"}, {name: "exp_avg_sq"}}

// Adam scales each step by running means of the gradient and of its square (D. Kingma, J. Ba, ICLR 2015), as torch.optim.Adam does. It has
// the methods of [Optimizer] and Add.
type Adam struct{ optimizer[AdamOpt] }

// AdamW is Adam whose weight decay shrinks the parameters themselves (I. Loshchilov, F. Hutter, ICLR 2019), as torch.optim.AdamW does.
// It has the methods of [Optimizer] and Add.
type AdamW struct{ optimizer[AdamOpt] }

var (
	_ Optimizer = (*Adam)(nil)
	_ Optimizer = (*AdamW)(nil)
)

func newAdam(name string, decay float64, op, amsgrad *core.StepOp) optimizer[AdamOpt] {
	return optimizer[AdamOpt]{name: name, seen: map[*nn.Param]bool{}, lr: func(o *AdamOpt) *tenon.Scalar {
		return &o.LR
	}, resolve: resolveAdam(decay),
		plan: func(o *AdamOpt) plan {
			if o.AMSGrad {
				return plan{amsgrad, numbersOfAdam(o), append(moments[:2:2], slot{name: "max_exp_avg_sq"}), stepOnly}
			}
			return plan{op, numbersOfAdam(o), moments, stepOnly}
		}}
}

// NewAdam returns an optimizer of params, such as nn.Params(m).
func NewAdam(params iter.Seq2[string, *nn.Param], opts ...AdamOpt) (*Adam, error) {
	o := &Adam{newAdam("Adam", 0, core.Adam, core.AdamAMSGrad)}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// NewAdamW returns an optimizer of params, such as nn.Params(m).
func NewAdamW(params iter.Seq2[string, *nn.Param], opts ...AdamOpt) (*AdamW, error) {
	o := &AdamW{newAdam("AdamW", 1e-2, core.AdamW, core.AdamWAMSGrad)}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewAdam], flags included.
func (o *Adam) Add(params iter.Seq2[string, *nn.Param], opts ...AdamOpt) error {
	if o == nil {
		return missing("Adam")
	}
	return o.add(params, opts)
}

// Add appends a group of parameters. The options that it is not given are those of [NewAdamW], flags included.
func (o *AdamW) Add(params iter.Seq2[string, *nn.Param], opts ...AdamOpt) error {
	if o == nil {
		return missing("AdamW")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *Adam) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("Adam")
	}
	return o.step(x, nil)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *AdamW) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("AdamW")
	}
	return o.step(x, nil)
}
