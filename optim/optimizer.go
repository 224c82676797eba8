// Package optim is optimizers: they change the parameters of modules by their gradients, with PyTorch's formulas, defaults and messages.
// It may not know losses or data, nor what a module computes: it sees boxes with parameters and gradients.
package optim

import (
	"cmp"
	"iter"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// Optimizer is what all optimizers have in common. An optimizer serves one goroutine.
type Optimizer interface {
	// Step changes every parameter that has a gradient, on x's stream, and records nothing. Parameters, gradients and state must lie on x's
	// device. After an error some parameters may be changed and others not.
	Step(x *tenon.Exec) error
	// ZeroGrad drops the gradients of all parameters, as PyTorch's zero_grad does by default.
	ZeroGrad()
	// LR returns the learning rate of a group; groups are numbered from 0 in the order they were added.
	LR(group int) float64
	// SetLR sets the learning rate of a group from the next step on.
	SetLR(group int, lr float64)
	// Groups returns the number of groups.
	Groups() int
	// Close frees the optimizer's state, not the parameters.
	Close()
}

// group is a set of parameters with options O and, for each parameter, state.
type group[O any] struct {
	opt    O
	params []*nn.Param
	states []state
}

// state is what an optimizer remembers of one parameter. Tensors that the optimizer has no use for are nil.
type state struct {
	// step counts the steps of this parameter.
	step int
	// first and second are momentum buffer, or mean and mean of squares; most is the largest mean of squares.
	first, second, most *tenon.Tensor
}

func (s *state) close() {
	for _, t := range []*tenon.Tensor{s.first, s.second, s.most} {
		t.Close()
	}
	*s = state{}
}

// optimizer holds the groups.
type optimizer[O any] struct {
	name string
	// counts says that a step depends on how many came before it, so that a captured one could not be repeated.
	counts bool
	groups []*group[O]
	seen   map[*nn.Param]bool
	lr     func(o *O) *float64
}

// add appends a group.
func (o *optimizer[O]) add(params iter.Seq2[string, *nn.Param], opt O) error {
	if params == nil {
		return o.refuse(fault.Invalid, "the parameters are nil; give those of a module with nn.Params")
	}
	if o.seen == nil {
		return o.refuse(fault.Invalid, "the optimizer is a zero value; use one that its New function returned")
	}
	var names []string
	var list []*nn.Param
	err := tenon.Try(func() { // a module whose parameters cannot be found stops
		for name, p := range params {
			names, list = append(names, name), append(list, p)
		}
	})
	if err != nil {
		return err
	}
	g := &group[O]{opt: opt}
	fresh := map[*nn.Param]bool{}
	for i, p := range list {
		t, name := p.Tensor(), names[i]
		if err := tenon.Try(func() { core.Given(o.name, len(g.params), (*core.Tensor)(t)) }); err != nil {
			return o.refuse(fault.KindOf(err), "parameter %s has no tensor, or one that was closed", name)
		}
		switch {
		case o.seen[p] || fresh[p]:
			return o.refuse(fault.Invalid, "some parameters appear in more than one parameter group: %s", name)
		case !t.IsLeaf():
			return o.refuse(fault.Invalid, "can't optimize a non-leaf Tensor: %s", name)
		case !t.DType().IsFloat():
			return o.refuse(fault.Unsupported, "%s is %v; %s updates floating-point parameters only", name, t.DType(), o.name)
		}
		fresh[p] = true
		g.params = append(g.params, p)
	}
	if len(g.params) == 0 {
		return o.refuse(fault.Invalid, "optimizer got an empty parameter list")
	}
	g.states = make([]state, len(g.params))
	o.groups = append(o.groups, g)
	for p := range fresh {
		o.seen[p] = true
	}
	return nil
}

// LR returns the learning rate of a group; groups are numbered from 0 in the order they were added.
func (o *optimizer[O]) LR(group int) float64 { return *o.rate(group) }

// rate is where the learning rate of a group stands.
func (o *optimizer[O]) rate(group int) *float64 {
	if group < 0 || group >= len(o.groups) {
		core.Fail(cmp.Or(o.name, "Optimizer"), fault.Invalid, "there is no group %d; the optimizer has %d, numbered from 0", group, len(o.groups))
	}
	return o.lr(&o.groups[group].opt)
}

// SetLR sets the learning rate of a group from the next step on.
func (o *optimizer[O]) SetLR(group int, lr float64) { *o.rate(group) = lr }

// Groups returns the number of groups.
func (o *optimizer[O]) Groups() int { return len(o.groups) }

// ZeroGrad drops the gradients of all parameters.
func (o *optimizer[O]) ZeroGrad() {
	for _, g := range o.groups {
		for _, p := range g.params {
			if p.Tensor().RequiresGrad() {
				p.SetGrad(nil)
			}
		}
	}
}

// Close frees the state, not the parameters.
func (o *optimizer[O]) Close() {
	for _, g := range o.groups {
		for i := range g.states {
			g.states[i].close()
		}
	}
}

// batch is a set of parameters that are updated together: equal in type and number of steps.
type batch struct {
	dt    tenon.DType
	step  int
	lists [][]*core.Tensor
}

// Step changes every parameter that has a gradient; see [Optimizer].
func (o *optimizer[O]) step(x *tenon.Exec, need func(opt *O, s *state) []**tenon.Tensor, update func(opt *O, x *core.Exec, b *batch)) error {
	if len(o.groups) == 0 {
		return o.refuse(fault.Invalid, "the optimizer has no parameters; use one that its New function returned")
	}
	return tenon.Try(func() {
		core.Made((*core.Exec)(x), o.name)
		capturing := core.Capturing((*core.Exec)(x))
		if capturing && o.counts {
			core.Fail(o.name, fault.Capture, "Attempting CUDA graph capture of step() for an instance of %s, whose bias correction is computed on the host; step outside of the capture", o.name)
		}
		for _, g := range o.groups {
			var batches []*batch
			for i, p := range g.params {
				t := p.Tensor()
				if !t.RequiresGrad() || p.Grad() == nil {
					continue
				}
				o.check(x, t, p.Grad())
				s := &g.states[i]
				if capturing && s.step == 0 && len(need(&g.opt, s)) > 0 {
					core.Fail(o.name, fault.Capture, "the first step makes the optimizer's state and cannot be captured; take it before the capture")
				}
				s.step++
				b := find(&batches, t.DType(), s.step)
				row := []*tenon.Tensor{t, p.Grad()}
				for _, slot := range need(&g.opt, s) {
					if *slot == nil {
						*slot = own(x.NoGrad().Zeros(t.Shape(), t.DType()))
					}
					row = append(row, *slot)
				}
				b.add(row)
			}
			for _, b := range batches {
				update(&g.opt, (*core.Exec)(x), b)
			}
		}
	})
}

// check refuses what a kernel could not update.
func (o *optimizer[O]) check(x *tenon.Exec, t, grad *tenon.Tensor) {
	if t.Device() != x.Device() {
		core.Fail(o.name, fault.Invalid, "a parameter %v does not lie on %s, where the step runs; move the module with nn.To, or step on its device", t, x.Device().Name())
	}
	if grad.DType() != t.DType() {
		core.Fail(o.name, fault.Invalid, "a parameter of type %v has a gradient of type %v; convert it", t.DType(), grad.DType())
	}
}

func find(batches *[]*batch, dt tenon.DType, step int) *batch {
	for _, b := range *batches {
		if b.dt == dt && b.step == step {
			return b
		}
	}
	b := &batch{dt: dt, step: step}
	*batches = append(*batches, b)
	return b
}

// add appends one parameter with what belongs to it.
func (b *batch) add(row []*tenon.Tensor) {
	if b.lists == nil {
		b.lists = make([][]*core.Tensor, len(row))
	}
	for j, t := range row {
		b.lists[j] = append(b.lists[j], (*core.Tensor)(t))
	}
}

// missing is the error of a call of a nil optimizer, such as one whose constructor's error nobody looked at.
func missing(name string) error {
	return core.Refusal(name, fault.Invalid, "the optimizer is nil; look at the error of the function that was to make it")
}

// refuse returns an error of the optimizer at the caller's line.
func (o *optimizer[O]) refuse(kind fault.Kind, format string, args ...any) error {
	return core.Refusal(cmp.Or(o.name, "Optimizer"), kind, format, args...)
}

func own(t *tenon.Tensor) *tenon.Tensor { return (*tenon.Tensor)(core.Own((*core.Tensor)(t))) }

// or returns v, or def if v is 0.
func or(v, def float64) float64 {
	if v == 0 {
		return def
	}
	return v
}
