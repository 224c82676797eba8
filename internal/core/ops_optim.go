package core

import (
	"math"

	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// The steps of optimizers, for package optim. They change lists of tensors in place, in one launch for every 32 tensors that lie without gaps, and
// record nothing.

var rowForeach *row

func init() {
	rowForeach = define(row{Name: "Foreach", meta: func(*frame) {}, run: runForeach})
}

// foreach is a call of rowForeach: the lists of operands, which are the frame's many in order, and which of them the outputs are.
type foreach struct {
	op      *kernels.PointOp
	lists   int
	outs    []int
	scalars []kernels.Scalar
}

// runForeach: of a call over n tensors the frame's many holds n first operands, then n second ones, and so on.
func runForeach(f *frame) error {
	c := f.opt.(*foreach)
	n := len(f.many) / c.lists
	outs, ins := make([][]kernels.Operand, n), make([][]kernels.Operand, n)
	all := make([]kernels.Operand, n*(len(c.outs)+c.lists))
	for i := range n {
		outs[i], all = all[:len(c.outs):len(c.outs)], all[len(c.outs):]
		ins[i], all = all[:c.lists:c.lists], all[c.lists:]
		for j := range c.lists {
			ins[i][j] = operand(f.many[j*n+i])
		}
		for o, j := range c.outs {
			t := f.many[j*n+i]
			f.writes(t)
			outs[i][o] = ins[i][j]
		}
	}
	return kernels.MultiTensor(f, c.op, f.many[0].dt, c.scalars, outs, ins)
}

// foreach runs c over the lists, whose tensors at one place have one shape and whose every list has one type.
func (x *Exec) foreach(name string, c *foreach, lists [][]*Tensor) {
	if len(lists[0]) == 0 {
		return
	}
	c.lists = len(lists)
	f := x.NoGrad().op(rowForeach)
	for _, l := range lists {
		f.many = append(f.many, l...)
	}
	for j, l := range lists {
		for i, t := range l {
			if !sameShape(t.shape, lists[0][i].shape) {
				f.fail(fault.Invalid, "%s: list %d has a tensor of shape %v where the parameter has shape %v", name, j, t.shape, lists[0][i].shape)
			}
		}
	}
	f.opt = c
	f.call()
	x.s.leave(f)
}

func floatScalars(vs ...float64) []kernels.Scalar {
	out := make([]kernels.Scalar, len(vs))
	for i, v := range vs {
		out[i] = kernels.FloatScalar(v)
	}
	return out
}

// signOf is the factor of the gradient.
func signOf(maximize bool) float64 {
	if maximize {
		return -1
	}
	return 1
}

// StepSGD does a step of stochastic gradient descent as torch.optim.SGD does. lists are parameters, gradients and, if momentum is not 0, buffers,
// which hold zeros before the first step.
func StepSGD(x *Exec, lists [][]*Tensor, lr, momentum, dampening, decay float64, nesterov, maximize, first bool) {
	c := &foreach{op: kernels.SGD, outs: []int{0}, scalars: floatScalars(signOf(maximize), decay, -lr)}
	if momentum != 0 {
		c.op, c.outs = kernels.SGDMomentum, []int{0, 2}
		keep, take := momentum, 1-dampening
		if first {
			keep, take = 0, 1
		}
		c.scalars = append(c.scalars, floatScalars(keep, take)...)
		if nesterov {
			c.op = kernels.SGDNesterov
			c.scalars = append(c.scalars, floatScalars(momentum)...)
		}
	}
	x.foreach("SGD", c, lists)
}

// StepAdam does step number step, from 1 on, of Adam, or of AdamW if the decay is decoupled, as torch.optim does. lists are parameters, gradients,
// means and means of squares, and for AMSGrad the largest of the latter; all but the first two hold zeros before the first step.
func StepAdam(x *Exec, lists [][]*Tensor, lr, beta1, beta2, eps, decay float64, decoupled, maximize bool, step int) {
	c := &foreach{op: kernels.Adam, outs: []int{0, 2, 3}}
	amsgrad := len(lists) == 5
	switch {
	case decoupled && amsgrad:
		c.op = kernels.AdamWAMS
	case decoupled:
		c.op = kernels.AdamW
	case amsgrad:
		c.op = kernels.AdamAMSGrad
	}
	if amsgrad {
		c.outs = append(c.outs, 4)
	}
	if decoupled {
		decay = 1 - lr*decay
	}
	correction1, correction2 := 1-math.Pow(beta1, float64(step)), 1-math.Pow(beta2, float64(step))
	c.scalars = floatScalars(signOf(maximize), decay, 1-beta1, beta2, 1-beta2, -lr/correction1, math.Sqrt(correction2), eps)
	x.foreach("Adam", c, lists)
}
