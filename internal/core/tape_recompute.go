package core

import (
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// recomputePlan says which values of a callable's run are not saved, and how they are computed from others.
type recomputePlan struct {
	calls   []recomputeCall
	sources []recomputeSource
	values  []recomputeValue
}

// recomputeCall is a call that may run again. at is its index among the run's calls.
type recomputeCall struct {
	at       int
	row      *row
	dims     *intList
	ins      int
	operands []recomputeOperand
	// remakes says that row stands for the row of the run's call, which draws.
	remakes bool
	// values are the indexes of the outputs that are values, or -1.
	values [maxOut]int
}

// recomputeOperand is an operand of a call: output number from of a call or, if call is -1, source number from. It is absent without a
// form.
type recomputeOperand struct {
	call, from int
	form       *form
	offset     int
	dt         dtype.DType
}

// recomputeSource is a storage that the calls read, by its slot. made says that the run has made it. form and dt are those of one operand.
// The offsets of operands are those of a run that used the storage from byte base on: others may use another part of theirs.
type recomputeSource struct {
	slot int32
	made bool
	form *form
	dt   dtype.DType
	base int
}

// recomputeValue is a value that is not saved, by its storage's slot and the call that makes it.
type recomputeValue struct {
	slot int32
	call int
}

// anyWriter stands for the latest write of a source for which it does not matter.
const anyWriter = ^uint64(0)

// omission is what one run of a callable does not save for its backward pass, which computes it again from what is saved.
type omission struct {
	plan *recomputePlan
	// mu is held while values are computed or given up: the backward pass may run in another session. It does not guard sources, which stay
	// the same.
	mu sync.Mutex
	// execs and attrs are those of the plan's calls in the run.
	execs []*Exec
	attrs []*attrs
	// sources are what the calls read from outside, shifts how many bytes after the plan's the run's parts of them begin, and writers the
	// latest writes of those that the run did not make.
	sources []slot
	shifts  []int
	writers []uint64
	values  []omittedValue
	// left counts the saved tensors that are omitted and still on the tape.
	left int
	// ended says that no value will be computed any more.
	ended atomic.Bool
}

// omittedValue is a value that was not saved. t is what has been computed in its place, or nil, and left counts the saved tensors that it
// stands for.
type omittedValue struct {
	t    *Tensor
	left int
}

// omitted is what a node keeps in place of a saved tensor that lies in value i.
type omitted struct {
	of *omission
	i  int
}

// drop notes that the tape no longer needs the saved tensor.
func (v omitted) drop() {
	o := v.of
	o.mu.Lock()
	defer o.mu.Unlock()
	val := &o.values[v.i]
	if val.left--; val.left == 0 {
		o.drop(v.i)
	}
	if o.left--; o.left == 0 {
		o.end()
	}
}

// end gives up the sources. A free can fail only on a lost device, which the next operation reports.
func (o *omission) end() {
	o.ended.Store(true)
	for i := range o.sources {
		_ = o.sources[i].st.release()
	}
	o.execs, o.attrs = nil, nil
}

// again returns a handle of the saved tensor s, which lies in the value, in x's scope.
func (v omitted) again(x *Exec, s *slot) *Tensor {
	o := v.of
	o.mu.Lock()
	defer o.mu.Unlock()
	val := &o.values[v.i]
	if o.has(v.i) == nil {
		if x.recording() != nil { // a later replay would read the sources as they are then
			panicAt(o.plan.calls[o.plan.values[v.i].call].row.Name, fault.Capture, computedInCapture, s.dt, s.form.shape)
		}
		o.compute(x, v.i)
		if r := x.s.run; r != nil && r.opt.RetainGraph { // the next pass computes it again
			r.callbacks = append(r.callbacks, func(*Exec) { v.forget() })
		}
	}
	val.t.st.retain()
	return &Tensor{st: val.t.st, dt: s.dt, offset: s.offset, form: s.form}
}

// has returns what was computed in place of value i, or nil. If that was deferred and failed, it has to be computed again: a change of a
// source that came after it has failed too.
func (o *omission) has(i int) *Tensor {
	v := &o.values[i]
	if v.t != nil && v.t.st.deferral() == lost {
		o.drop(i)
	}
	return v.t
}

// drop closes what was computed in place of value i.
func (o *omission) drop(i int) {
	o.values[i].t.close()
	o.values[i].t = nil
}

// forget closes what was computed, unless the sources have changed since.
func (v omitted) forget() {
	o := v.of
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed() == nil {
		o.drop(v.i)
	}
}

// changed returns a source that is not any more what the run read, or nil.
func (o *omission) changed() *slot {
	for k := range o.sources {
		s := &o.sources[k]
		if s.st.version.Load() != s.version || o.writers[k] != anyWriter && s.st.writer.Load() != o.writers[k] {
			return s
		}
	}
	return nil
}

const (
	sourceChanged = "one of the variables needed for gradient computation has been modified by an inplace operation: %v%v is at " +
		"version %d; expected version %d. The backward pass of a compiled function computes values again from it; change it " +
		"after that pass, or set compile.Opt.NoRecompute, which saves the values"
	sourceOverwritten = "the backward pass of a compiled function computes values again from %v%v, which a graph that the program " +
		"captured has changed since; set compile.Opt.NoRecompute, which saves the values"
	computedInCapture = "the backward pass of a compiled function that another session ran computes %v%v again, which cannot be " +
		"captured; set compile.Opt.NoRecompute, which saves it"
)

// compute makes value i again, on x's stream, without recording gradients.
func (o *omission) compute(x *Exec, i int) {
	if s := o.changed(); s != nil {
		name := o.plan.calls[o.plan.values[i].call].row.Name
		if v := s.st.version.Load(); v != s.version {
			panicAt(name, fault.Invalid, sourceChanged, s.dt, s.form.shape, v, s.version)
		}
		panicAt(name, fault.Invalid, sourceOverwritten, s.dt, s.form.shape)
	}
	x.scoped(func(x *Exec) {
		made := make([][]*Tensor, len(o.plan.calls))
		o.run(x, made, o.plan.values[i].call)
	})
}

// run runs call k of the plan again, after those whose results it needs.
func (o *omission) run(x *Exec, made [][]*Tensor, k int) {
	c := &o.plan.calls[k]
	operands := make([]*Tensor, len(c.operands))
	for i := range c.operands {
		if e := &c.operands[i]; e.form != nil {
			offset := e.offset
			if e.call < 0 {
				offset += o.shifts[e.from] / e.dt.Size()
			}
			operands[i] = handleOf(o.storageOf(x, made, e), e.form, offset, e.dt)
			x.s.adopt(operands[i])
		}
	}
	y := o.exec(x, o.execs[k])
	f := y.s.enter(y, c.row)
	f.attrs = *o.attrs[k]
	f.dims = append(f.dimsB[:0], c.dims.ints()...)
	f.ins = copy(f.in[:], operands[:c.ins])
	f.many = append(f.many[:0], operands[c.ins:]...)
	made[k] = f.callMany()
	for j, t := range made[k] {
		if v := c.values[j]; v >= 0 && o.has(v) == nil && o.values[v].left > 0 {
			h := t.alias()
			h.own()
			o.values[v].t = h
		}
	}
}

// storageOf returns the storage of an operand, which is computed first if necessary.
func (o *omission) storageOf(x *Exec, made [][]*Tensor, e *recomputeOperand) *storage {
	if e.call < 0 {
		return o.sources[e.from].st
	}
	if v := o.plan.calls[e.call].values[e.from]; v >= 0 {
		if t := o.has(v); t != nil {
			return t.st
		}
	}
	if made[e.call] == nil {
		o.run(x, made, e.call)
	}
	return made[e.call][e.from].st
}

// exec returns the Exec of x's session that runs a call which ran on c: on x's stream, if that is on the same device.
func (o *omission) exec(x, c *Exec) *Exec {
	m := c.m
	m.noGrad, m.autocast, m.casts, m.saved, m.pool, m.manual = true, dtype.Invalid, nil, nil, x.m.pool, false
	if x.m.stream.Device() == m.stream.Device() {
		m.stream = x.m.stream
	}
	return x.with(m)
}

// keepSources computes, before the call changes an operand, what would have to be computed from it later.
func (f *frame) keepSources() {
	s := f.x.s
	if len(f.altered) == 0 && f.dst == [maxOut]*Tensor{} || s.capture != nil { // a capture begins with keepOmissions
		return
	}
	for _, o := range s.openOmissions() {
		if o.reads(f) {
			f.nested(func() { o.keep(f.x) })
		}
	}
}

// openOmissions returns the omissions of the session's runs whose tapes still need them.
func (s *session) openOmissions() []*omission {
	var open []*omission
	s.omissions = slices.DeleteFunc(s.omissions, func(p weak.Pointer[omission]) bool {
		o := p.Value()
		if o == nil || o.ended.Load() {
			return true
		}
		open = append(open, o)
		return false
	})
	return open
}

// keepOmissions computes all values that the tape still needs, before a graph is captured: its replays would compute them from what the
// sources are by then.
func (s *session) keepOmissions(x *Exec) {
	for _, o := range s.openOmissions() {
		o.keep(x)
	}
}

// reads reports whether a source of o is changed by the call.
func (o *omission) reads(f *frame) bool {
	is := func(t *Tensor) bool {
		if t != nil && t.st.marks.Load()&ofOmission != 0 {
			for i := range o.sources {
				if o.sources[i].st == t.st {
					return true
				}
			}
		}
		return false
	}
	return slices.ContainsFunc(f.altered, is) || slices.ContainsFunc(f.dst[:], is)
}

// keep computes all values that are still needed, so that the sources may change. If another session is computing some, that is not waited
// for, since it may wait for this one; it gets an error if a source changes first.
func (o *omission) keep(x *Exec) {
	if !o.mu.TryLock() {
		return
	}
	defer o.mu.Unlock()
	for i := range o.values {
		if o.values[i].left == 0 || o.has(i) != nil || o.changed() != nil {
			continue
		}
		o.compute(x, i)
		if c := x.s.change; c != nil { // if it fails, nothing of it has run
			c.undo = append(c.undo, func() {
				o.mu.Lock()
				defer o.mu.Unlock()
				o.drop(i)
			})
		}
	}
}
