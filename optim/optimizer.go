// Package optim provides optimizers, which update the parameters of modules by their gradients, with PyTorch's formulas, defaults and
// messages. It must not depend on losses or on what a module computes: it sees only parameters and gradients. Of package data it uses
// only the loader's position, for [Checkpoint].
package optim

import (
	"cmp"
	"iter"
	"maps"
	"reflect"
	"slices"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// Optimizer is the interface of all optimizers. Only one goroutine may use an optimizer at a time.
type Optimizer interface {
	// Step changes every parameter that has a gradient, on x's stream, and records nothing; it never waits for the device. Parameters,
	// gradients and state must be on x's device. In a capture it becomes part of the graph, once the first step has made the state; each
	// replay is then a step. An error leaves parameters, state and counts as they were.
	Step(x *tenon.Exec) error
	// ZeroGrad drops the gradients of all parameters, as PyTorch's zero_grad does by default.
	ZeroGrad()
	// LR returns the learning rate of a group; groups are numbered from 0 in the order in which they were added.
	LR(group int) float64
	// SetLR sets the learning rate of a group from the next step on, and fills the tensor that steps read it from, if one is set. It
	// refuses a rate that is negative, infinite or NaN.
	SetLR(group int, lr float64)
	// Groups returns the number of groups.
	Groups() int
	// Close frees the optimizer's state, not the parameters. Afterwards the optimizer cannot step, be saved or get other rates.
	Close()
}

// group is a set of parameters with options O and, for each parameter, state.
type group[O any] struct {
	opt    O
	names  []string
	params []*nn.Param
	// lr, if not nil, replaces the learning rate of opt. captured are the tensors that captured steps read theirs from, in place of lr.
	lr       *tenon.Tensor
	captured []*tenon.Tensor
	// rows [parameters, core.StepRow] counts the steps of each parameter on the device; nil before the first step. states holds the
	// tensors of each parameter that plan names; they are nil for a parameter that was never stepped.
	rows   *tenon.Tensor
	states [][]*tenon.Tensor
	// batches are the emptied batches of the previous step, for reuse.
	batches []*batch
}

// plan says how a group is stepped.
type plan struct {
	op *core.StepOp
	// numbers are the options in the form that op takes.
	numbers []float64
	// slots are the state tensors of each parameter, in op's order.
	slots []slot
	// counts names the entries of a row, as PyTorch does: "step" first.
	counts []string
}

// slot is a tensor of a parameter's state: PyTorch's name for it and its initial value.
type slot struct {
	name  string
	start float64
}

// optimizer holds the groups.
type optimizer[O any] struct {
	name   string
	groups []*group[O]
	seen   map[*nn.Param]bool
	closed bool
	// given are the options that the constructor got, which later groups have where they are given none.
	given O
	lr    func(o *O) *tenon.Scalar
	plan  func(o *O) plan
	// resolve fills in the defaults of options and refuses invalid ones, except for the learning rate, which checkRate checks.
	resolve func(o *O, refuse refusal) error
}

// refusal returns an error of the optimizer.
type refusal func(kind fault.Kind, format string, args ...any) error

// add appends a group.
func (o *optimizer[O]) add(params iter.Seq2[string, *nn.Param], opts []O) error {
	opt, err := core.Only(o.name, opts)
	if err != nil {
		return err
	}
	if params == nil {
		return o.refuse(fault.Invalid, "the parameters are nil; give those of a module with nn.Params")
	}
	if o.seen == nil {
		return o.refuse(fault.Invalid, "the optimizer is a zero value; use one that its New function returned")
	}
	if err := o.open(o.name); err != nil {
		return err
	}
	var names []string
	var list []*nn.Param
	err = tenon.Try(func() { // panics if a module's parameters cannot be found
		for name, p := range params {
			names, list = append(names, name), append(list, p)
		}
	})
	if err != nil {
		return err
	}
	if bad := numbers(&opt); bad != "" {
		return o.refuse(fault.Invalid, "%s", bad)
	}
	given := opt
	if len(o.groups) > 0 {
		inherit(&opt, &o.given)
	}
	if err := o.resolve(&opt, o.refuse); err != nil {
		return err
	}
	if err := o.checkRate(*o.lr(&opt)); err != nil {
		return err
	}
	g := &group[O]{opt: opt, names: names}
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
		return o.refuse(fault.Invalid, "optimizer got an empty parameter list; parameters of a module are exported fields "+
			"of type *nn.Param, which nn.NewParam makes of tensors")
	}
	g.states = make([][]*tenon.Tensor, len(g.params))
	if len(o.groups) == 0 {
		o.given = given
	}
	o.groups = append(o.groups, g)
	maps.Copy(o.seen, fresh)
	return nil
}

// inherit sets the options that were left out to those of from.
func inherit[O any](opt, from *O) {
	to, f := reflect.ValueOf(opt).Elem(), reflect.ValueOf(from).Elem()
	for i := range to.NumField() {
		if v := to.Field(i); v.IsZero() {
			v.Set(f.Field(i))
		}
	}
}

// LR returns the learning rate of a group; groups are numbered from 0 in the order in which they were added.
func (o *optimizer[O]) LR(group int) float64 { return num(*o.rate(group)) }

// rate returns a pointer to the learning rate of a group.
func (o *optimizer[O]) rate(group int) *tenon.Scalar {
	if group < 0 || group >= len(o.groups) {
		core.Fail(cmp.Or(o.name, "Optimizer"), fault.Invalid, "there is no group %d; the optimizer has %d, numbered from 0",
			group, len(o.groups))
	}
	return o.lr(&o.groups[group].opt)
}

// SetLR sets the learning rate of a group from the next step on. It refuses a rate that is negative, infinite or NaN. A captured step keeps
// its rate, unless it reads a tensor: see SetLRTensor, whose tensor SetLR fills.
func (o *optimizer[O]) SetLR(group int, lr float64) {
	core.Check(o.name, o.open(o.name))
	rate := o.rate(group)
	core.Check(o.name, o.checkRate(lr))
	ts := o.groups[group].lrTensors()
	core.Check(o.name, core.Assign(o.name, ts, slices.Repeat([]float64{lr}, len(ts))))
	*rate = lr
}

// checkRate refuses a learning rate that a program gives. Those that schedules compute may be below 0, as in PyTorch, and so may those of
// the states that are saved then.
func (o *optimizer[O]) checkRate(lr tenon.Scalar) error {
	return notNegative(o.refuse, "learning rate", lr)
}

// setRates sets the rates of all groups and fills their tensors; an error changes nothing.
func (o *optimizer[O]) setRates(rates []float64) error {
	if err := o.open(o.name); err != nil {
		return err
	}
	if err := o.fillRates(rates); err != nil {
		return err
	}
	for i := range o.groups {
		*o.rate(i) = rates[i]
	}
	return nil
}

// lrTensors returns the tensors from which the group's steps, in graphs too, read their rate.
func (g *group[O]) lrTensors() (ts []*core.Tensor) {
	g.captured = slices.DeleteFunc(g.captured, func(t *tenon.Tensor) bool { return core.Closed((*core.Tensor)(t)) })
	for _, t := range g.captured {
		ts = append(ts, (*core.Tensor)(t))
	}
	if g.lr != nil && !slices.Contains(g.captured, g.lr) {
		ts = append(ts, (*core.Tensor)(g.lr))
	}
	return ts
}

// noteCapture notes that a graph reads lr, if x's session is capturing one.
func (g *group[O]) noteCapture(x *core.Exec) {
	lr := g.lr
	if lr == nil || slices.Contains(g.captured, lr) || !core.SessionCaptures(x) {
		return
	}
	g.captured = append(g.captured, lr)
	core.Undo(x, func() { g.captured = slices.DeleteFunc(g.captured, func(t *tenon.Tensor) bool { return t == lr }) })
}

// rateFills returns the tensors from which groups read their rates, and what to fill them with.
func (o *optimizer[O]) rateFills(rates []float64) (ts []*core.Tensor, vs []float64) {
	for i, g := range o.groups {
		for _, t := range g.lrTensors() {
			ts, vs = append(ts, t), append(vs, rates[i])
		}
	}
	return ts, vs
}

// fillRates fills the tensors from which groups read their rates.
func (o *optimizer[O]) fillRates(rates []float64) error {
	ts, vs := o.rateFills(rates)
	return core.Assign(o.name, ts, vs)
}

// SetLRTensor makes the steps of a group read their learning rate from t: a floating-point tensor of one element on the parameters' device,
// which a captured step reads at each replay. SetLR, a schedule's Step and loading fill it with the rate that they set, on the device's
// default stream, in order with other work except that of ManualStreams. LR returns the number that was set last, whatever else t was
// filled with. The optimizer does not own t, which must stay open while it is in use. If t is nil, later steps again use the number that LR
// returns. A graph that captured a step goes on reading the tensor that was set then, which is filled as before while it is open, whatever
// was set since.
func (o *optimizer[O]) SetLRTensor(group int, t *tenon.Tensor) error {
	if err := tenon.Try(func() {
		o.rate(group)
		core.Check(o.name, o.open(o.name))
		if t != nil {
			core.Given(o.name, 0, (*core.Tensor)(t))
		}
	}); err != nil {
		return err
	}
	if t == nil {
		o.groups[group].lr = nil
		return nil
	}
	if t.Numel() != 1 || !t.DType().IsFloat() {
		return o.refuse(fault.Invalid, "a learning rate is one floating-point number, not %v of type %v", t.Shape(), t.DType())
	}
	o.groups[group].lr = t
	return nil
}

// Groups returns the number of groups.
func (o *optimizer[O]) Groups() int { return len(o.groups) }

// Params yields the parameters of all groups.
func (o *optimizer[O]) Params() iter.Seq[*nn.Param] {
	return func(yield func(*nn.Param) bool) {
		for _, g := range o.groups {
			for _, p := range g.params {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// ZeroGrad drops the gradients of all parameters.
func (o *optimizer[O]) ZeroGrad() {
	for _, g := range o.groups {
		for _, p := range g.params {
			if t := p.Tensor(); t.RequiresGrad() && !core.Closed((*core.Tensor)(t)) {
				p.SetGrad(nil)
			}
		}
	}
}

// Close frees the state, not the parameters. Afterwards the optimizer cannot step, be saved or get other rates.
func (o *optimizer[O]) Close() {
	o.closed = true
	for _, g := range o.groups {
		g.close()
	}
}

// open returns the error of operation op on an optimizer that was closed, or nil.
func (o *optimizer[O]) open(op string) error {
	if o.closed {
		return core.Refusal(cmp.Or(op, "Optimizer"), fault.Closed,
			"the optimizer was closed; close it after the last use of it, or make another")
	}
	return nil
}

// openParams panics with an error of op if a parameter was closed.
func (o *optimizer[O]) openParams(op string) {
	for _, g := range o.groups {
		for i, p := range g.params {
			core.OpenParam(op, g.names[i], (*core.Tensor)(p.Tensor()))
		}
	}
}

func (g *group[O]) close() {
	g.rows.Close()
	g.rows = nil
	for i := range g.states {
		g.closeState(i)
	}
}

func (g *group[O]) closeState(i int) {
	for _, t := range g.states[i] {
		t.Close()
	}
	g.states[i] = nil
}

// batch is a set of parameters of one type that are updated together.
type batch struct {
	dt    tenon.DType
	which []int32
	lists [][]*core.Tensor
}

// step changes every parameter that has a gradient, unless found is neither nil nor 0; see [Optimizer].
func (o *optimizer[O]) step(x *tenon.Exec, found *tenon.Tensor) error {
	if o == nil || len(o.groups) == 0 {
		err := o.refuse(fault.Invalid, "the optimizer has no parameters; use one that its New function returned")
		return core.Spoil((*core.Exec)(x), err)
	}
	return core.Spoil((*core.Exec)(x), tenon.Try(func() {
		core.Made((*core.Exec)(x), o.name)
		core.Check(o.name, o.open(o.name))
		core.Together((*core.Exec)(x), o.name, func(cx *core.Exec) {
			for _, g := range o.groups {
				plan := o.plan(&g.opt)
				g.noteCapture(cx)
				defer g.empty() // drops references, above all to gradients
				o.gather((*tenon.Exec)(cx), g, &plan)
				for _, b := range g.batches {
					core.TakeStep(cx, o.name, &core.Step{Op: plan.op, Numbers: plan.numbers, Rows: (*core.Tensor)(g.rows), Which: b.which,
						LR: (*core.Tensor)(g.lr), Found: (*core.Tensor)(found), Lists: b.lists})
				}
			}
		})
	}))
}

// empty takes the tensors out of the batches.
func (g *group[O]) empty() {
	for _, b := range g.batches {
		b.which = b.which[:0]
		for j, l := range b.lists {
			clear(l)
			b.lists[j] = l[:0]
		}
	}
}

// gather puts the parameters to step into batches and makes missing state.
func (o *optimizer[O]) gather(x *tenon.Exec, g *group[O], plan *plan) {
	var b *batch
	for i, p := range g.params {
		t := core.MadeTensor((*core.Tensor)(p.Tensor()), o.name) // once for all of its methods
		core.OpenParam(o.name, g.names[i], t)
		grad := t.Grad()
		if !t.RequiresGrad() || grad == nil {
			continue
		}
		o.check(x, t, grad)
		if g.rows == nil || g.states[i] == nil {
			o.makeState(x, g, plan, i)
		}
		if dt := t.DType(); b == nil || b.dt != dt {
			b = g.batch(dt, 2+len(plan.slots))
		}
		b.which = append(b.which, int32(i))
		b.lists[0], b.lists[1] = append(b.lists[0], t), append(b.lists[1], grad)
		for j, s := range g.states[i] {
			b.lists[2+j] = append(b.lists[2+j], (*core.Tensor)(s))
		}
	}
}

// batch returns the batch of a type with the given number of lists.
func (g *group[O]) batch(dt tenon.DType, lists int) *batch {
	for _, b := range g.batches {
		if b.dt == dt && len(b.lists) == lists {
			return b
		}
	}
	b := &batch{dt: dt, lists: make([][]*core.Tensor, lists)}
	g.batches = append(g.batches, b)
	return b
}

// makeState makes the rows of a group and the state of one of its parameters, for a step that undoes both if it fails.
func (o *optimizer[O]) makeState(x *tenon.Exec, g *group[O], plan *plan, i int) {
	if core.SessionCaptures((*core.Exec)(x)) {
		core.Fail(o.name, fault.Capture, "the first step makes the optimizer's state and cannot be captured; run a step before the capture")
	}
	if g.rows == nil {
		g.rows = o.made(x, func(x *core.Exec) *core.Tensor { return x.Zeros([]int{len(g.params), core.StepRow}, tenon.Float64) })
		core.Undo((*core.Exec)(x), func() {
			g.rows.Close()
			g.rows = nil
		})
	}
	if g.states[i] == nil {
		g.states[i] = make([]*tenon.Tensor, len(plan.slots))
		core.Undo((*core.Exec)(x), func() { g.closeState(i) })
		for j, s := range plan.slots {
			like := (*core.Tensor)(g.params[i].Tensor())
			g.states[i][j] = o.made(x, func(x *core.Exec) *core.Tensor { return x.FullLike(like, s.start, core.LikeOpt{}) })
		}
	}
}

// made returns what f makes, for the optimizer to own; errors name the optimizer.
func (o *optimizer[O]) made(x *tenon.Exec, f func(x *core.Exec) *core.Tensor) *tenon.Tensor {
	create := func(cx *core.Exec) *core.Tensor {
		core.Enter(cx, o.name)
		defer core.Leave(cx)
		return core.Composite(cx, o.name, f)
	}
	return own((*tenon.Tensor)(create((*core.Exec)(x))))
}

// check refuses parameters and gradients that the kernel cannot handle.
func (o *optimizer[O]) check(x *tenon.Exec, t, grad *core.Tensor) {
	if t.Device() != (*core.Exec)(x).Device() {
		core.Fail(o.name, fault.Invalid,
			"a %v parameter of shape %v is on %v, but the step runs on %v; move the module with nn.To, step on its device, or give each "+
				"device an optimizer of its own", t.DType(), t.Shape(), t.Device(), (*core.Exec)(x).Device())
	}
	if grad.DType() != t.DType() {
		core.Fail(o.name, fault.Invalid, "a parameter of type %v has a gradient of type %v; convert it", t.DType(), grad.DType())
	}
}

// missing returns the error of a call on a nil optimizer, as happens when the constructor's error was ignored.
func missing(name string) error {
	return core.Refusal(name, fault.Invalid, "the optimizer is nil; look at the error of the function that was to make it")
}

// isNil reports whether o is nil or a nil pointer, whose methods cannot be called.
func isNil(o Optimizer) bool {
	v := reflect.ValueOf(o)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// refuse returns an error of the optimizer at the caller's line.
func (o *optimizer[O]) refuse(kind fault.Kind, format string, args ...any) error {
	return core.Refusal(cmp.Or(o.name, "Optimizer"), kind, format, args...)
}

func own(t *tenon.Tensor) *tenon.Tensor { return (*tenon.Tensor)(core.Own((*core.Tensor)(t))) }

// stepOnly is the counts of most optimizers.
var stepOnly = []string{"step"}

// signOf returns the factor of the gradient.
func signOf(maximize bool) float64 {
	if maximize {
		return -1
	}
	return 1
}
