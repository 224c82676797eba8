package optim

import (
	"iter"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// RpropOpt are the options of Rprop. The zero value is PyTorch's default.
type RpropOpt struct {
	// LR is the first step size; the default is 1e-2.
	LR tenon.Scalar `json:"lr"`
	// Etas multiply the step size where the gradient changed its sign and where it kept it; the defaults are 0.5 and 1.2.
	Etas []float64 `json:"etas"`
	// StepSizes are the smallest and the largest step size; the defaults are 1e-6 and 50.
	StepSizes []float64 `json:"step_sizes"`
	// Maximize maximizes the objective instead of minimizing it.
	Maximize bool `json:"maximize"`
}

// Rprop steps by the signs of the gradient, with a separate step size for each element (M. Riedmiller, H. Braun, ICNN 1993), as
// torch.optim.Rprop does. It has the methods of [Optimizer] and Add.
type Rprop struct{ optimizer[RpropOpt] }

var _ Optimizer = (*Rprop)(nil)

// NewRprop returns an optimizer of params, such as nn.Params(m).
func NewRprop(params iter.Seq2[string, *nn.Param], opts ...RpropOpt) (*Rprop, error) {
	o := &Rprop{newRprop()}
	if err := o.Add(params, opts...); err != nil {
		return nil, err
	}
	return o, nil
}

// Add appends a group of parameters. The options that it is not given are those of [NewRprop], flags included.
func (o *Rprop) Add(params iter.Seq2[string, *nn.Param], opts ...RpropOpt) error {
	if o == nil {
		return missing("Rprop")
	}
	return o.add(params, opts)
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *Rprop) Step(x *tenon.Exec) error {
	if o == nil {
		return missing("Rprop")
	}
	return o.step(x, nil)
}

func newRprop() optimizer[RpropOpt] {
	return optimizer[RpropOpt]{name: "Rprop", seen: map[*nn.Param]bool{}, lr: func(o *RpropOpt) *tenon.Scalar { return &o.LR },
		resolve: func(o *RpropOpt, refuse refusal) error {
			o.LR = or(o.LR, 1e-2)
			if err := resolvePair("Etas", &o.Etas, 0.5, 1.2, refuse); err != nil {
				return err
			}
			if err := resolvePair("StepSizes", &o.StepSizes, 1e-6, 50, refuse); err != nil {
				return err
			}
			if !(0 < o.Etas[0] && o.Etas[0] < 1 && 1 < o.Etas[1]) {
				return refuse(fault.Invalid, "Invalid eta values: %v, %v; give one between 0 and 1 and one above 1", o.Etas[0], o.Etas[1])
			}
			return nil
		},
		plan: func(o *RpropOpt) plan {
			return plan{core.Rprop, []float64{num(o.LR), signOf(o.Maximize), 0, o.Etas[0], o.Etas[1], o.StepSizes[0], o.StepSizes[1]},
				[]slot{{name: "prev"}, {"step_size", num(o.LR)}}, stepOnly}
		},
	}
}
