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
	// LR is the learning rate; 0 is 1e-3.
	LR float64
	// Betas are the parts that the running means of gradient and square keep in each step; both 0 stand for 0.9 and 0.999.
	Betas [2]float64
	// Eps is added to the root of the mean square; 0 is 1e-8.
	Eps float64
	// WeightDecay is added to the gradient as that multiple of the parameter by Adam, and shrinks the parameter by that part of the learning rate
	// in AdamW, where 0 is 1e-2.
	WeightDecay float64
	// NoWeightDecay switches AdamW's weight decay off.
	NoWeightDecay bool
	// AMSGrad divides by the largest mean square so far (S. Reddi, S. Kale, S. Kumar, ICLR 2018).
	AMSGrad bool
	// Maximize goes up the gradient.
	Maximize bool
}

// resolve fills in the defaults and refuses what cannot be.
func (opt *AdamOpt) resolve(refuse func(kind fault.Kind, format string, args ...any) error, decay float64) error {
	opt.LR, opt.Eps = or(opt.LR, 1e-3), or(opt.Eps, 1e-8)
	if opt.Betas == [2]float64{} {
		opt.Betas = [2]float64{0.9, 0.999}
	}
	if opt.NoWeightDecay && opt.WeightDecay != 0 {
		return refuse(fault.Invalid, "NoWeightDecay is set beside a WeightDecay of %v; leave one out", opt.WeightDecay)
	}
	if !opt.NoWeightDecay {
		opt.WeightDecay = or(opt.WeightDecay, decay)
	}
	for i, b := range opt.Betas {
		if !(0 <= b && b < 1) {
			return refuse(fault.Invalid, "Invalid beta parameter at index %d: %v; give a number from 0 to below 1", i, b)
		}
	}
	switch {
	case !(opt.LR >= 0):
		return refuse(fault.Invalid, "Invalid learning rate: %v; give a number that is not negative", opt.LR)
	case !(opt.Eps >= 0):
		return refuse(fault.Invalid, "Invalid epsilon value: %v; give a number that is not negative", opt.Eps)
	case !(opt.WeightDecay >= 0):
		return refuse(fault.Invalid, "Invalid weight_decay value: %v; give a number that is not negative", opt.WeightDecay)
	}
	return nil
}

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

func newAdam(name string) optimizer[AdamOpt] {
	return optimizer[AdamOpt]{name: name, counts: true, seen: map[*nn.Param]bool{}, lr: func(o *AdamOpt) *float64 { return &o.LR }}
}

// NewAdam returns an optimizer of params, such as nn.Params(m).
func NewAdam(params iter.Seq2[string, *nn.Param], opt AdamOpt) (*Adam, error) {
	o := &Adam{newAdam("Adam")}
	if err := o.Add(params, opt); err != nil {
		return nil, err
	}
	return o, nil
}

// NewAdamW returns an optimizer of params, such as nn.Params(m).
func NewAdamW(params iter.Seq2[string, *nn.Param], opt AdamOpt) (*AdamW, error) {
	o := &AdamW{newAdam("AdamW")}
	if err := o.Add(params, opt); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters with options of its own.
func (o *Adam) Add(params iter.Seq2[string, *nn.Param], opt AdamOpt) error {
	if o == nil {
		return missing("Adam")
	}
	if err := opt.resolve(o.refuse, 0); err != nil {
		return err
	}
	return o.add(params, opt)
}

// Add appends a group of parameters with options of its own.
func (o *AdamW) Add(params iter.Seq2[string, *nn.Param], opt AdamOpt) error {
	if o == nil {
		return missing("AdamW")
	}
	if err := opt.resolve(o.refuse, 1e-2); err != nil {
		return err
	}
	return o.add(params, opt)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *Adam) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("Adam")
	}
	return stepAdam(&o.optimizer, x, false)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *AdamW) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("AdamW")
	}
	return stepAdam(&o.optimizer, x, true)
}

func stepAdam(o *optimizer[AdamOpt], x *tenon.Exec, decoupled bool) error {
	return o.step(x, func(opt *AdamOpt, s *state) []**tenon.Tensor {
		if opt.AMSGrad {
			return []**tenon.Tensor{&s.first, &s.second, &s.most}
		}
		return []**tenon.Tensor{&s.first, &s.second}
	}, func(opt *AdamOpt, x *core.Exec, b *batch) {
		core.StepAdam(x, b.lists, opt.LR, opt.Betas[0], opt.Betas[1], opt.Eps, opt.WeightDecay, decoupled, opt.Maximize, b.step)
	})
}
