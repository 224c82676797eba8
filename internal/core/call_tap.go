package core

import (
	"weak"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// Tap sees the calls of a session.
type Tap interface {
	// Before sees a call whose outputs are decided, but have no memory yet; nothing has changed. It returns true if it takes the call over:
	// then it has made the outputs, with Give or Defer, and no work is issued.
	Before(f *Frame) bool
	// After sees a call at its end. A call that fails ends without After.
	After(f *Frame)
}

// SetTap makes t the tap of x's session and returns the one that it replaces; nil means none.
func SetTap(x *Exec, t Tap) (old Tap) {
	at := &x.s.tap
	if c := x.s.capture; c != nil { // which is itself the session's tap
		at = &c.inner
	}
	old, *at = *at, t
	x.s.path = nil
	if p, ok := t.(Pather); ok {
		x.s.path = p.Path()
	}
	return old
}

// Frame is a call under way, as a tap sees it. It must not be kept.
type Frame = frame

// Op returns the operation's name.
func (f *frame) Op() string { return f.row.Name }

// Within returns the name of the innermost Together around the call that a package above the face began, such as AdamW, or "".
func (f *frame) Within() string {
	if c := f.x.s.change; c != nil {
		return c.name
	}
	return ""
}

// Together reports whether the call's work waits with that of other calls, until all of it can be handed over. Until then nothing can be
// read.
func (f *frame) Together() bool { return f.x.s.change != nil }

// Give makes t output i of a call that a tap takes over, in Before. t is a handle that nobody else has, of the type and shape that Inferred
// gives, and was made in Nested on an Exec of NoGrad. The tape records the call of the program.
func (f *frame) Give(i int, t *Tensor) {
	switch sp := &f.specs[i]; {
	case t.dt != sp.dt || !infer.Same(t.Shape(), sp.form.shape):
		f.fail(fault.Invalid, "the tap gives %s as output %d, which must be %v of shape %v", describe(t), i, sp.dt, sp.form.shape)
	case t.node != nil || t.leaf != nil:
		f.fail(fault.Invalid, "the tap gives output %d a history of its own; make it on an Exec of NoGrad", i)
	}
	f.setOut(i, t)
}

// Out returns output i of a call that has ended.
func (f *frame) Out(i int) *Tensor { return f.out[i] }

// Outs returns how many outputs the call has.
func (f *frame) Outs() int { return f.outs }

// Into reports whether output i is a destination that the caller gave.
func (f *frame) Into(i int) bool { return f.to(i) != nil }

// Inferred returns the types and forms of the outputs.
func (f *frame) Inferred() []Spec {
	out := make([]Spec, f.outs)
	for i := range out {
		out[i] = f.specs[i].public()
	}
	return out
}

// Spec is the type, shape and strides of an output, and where a view's first element lies in its storage, in elements.
type Spec struct {
	DType         dtype.DType
	Shape, Stride []int
	Offset        int
	View          bool
}

func (sp *spec) public() Spec {
	return Spec{sp.dt, sp.form.shape, sp.form.stride, sp.offset, sp.kind == outView}
}

// Call returns the call as a value.
func (f *frame) Call() Call {
	f.list = f.x.s.made.list(f.dims)
	m := &f.x.m
	c := Call{row: f.row, callMode: callMode{m.stream, m.generator, m.pool, m.noGrad, m.tf32, m.manual}, structure: f.structure,
		scalar: numbersOf4(&f.scalar), hole: numbersOf4(&f.hole), ins: uint8(f.ins)}
	for i := 0; i < maxOut && i < f.outs; i++ {
		if f.dst[i] != nil {
			c.dsts = uint8(i + 1)
		}
	}
	var rest []Operand
	add := func(i int, t *Tensor) {
		switch o := operandOf(t); {
		case i < len(c.first):
			c.first[i] = o
		default:
			rest = append(rest, o)
		}
	}
	n := 0
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.many, f.dst[:c.dsts]} {
		for _, t := range ts {
			add(n, t)
			n++
		}
	}
	c.many = uint32(len(f.many))
	c.rest = restOf(rest)
	return c
}

// Operands returns the call's operands in the order of Call.Operands.
func (f *frame) Operands() []*Tensor {
	ts := append(append([]*Tensor(nil), f.in[:f.ins]...), f.many...)
	n := 0
	for i := 0; i < maxOut && i < f.outs; i++ {
		if f.dst[i] != nil {
			n = i + 1
		}
	}
	return append(ts, f.dst[:n]...)
}

// Exec returns the Exec that the call runs on.
func (f *frame) Exec() *Exec { return f.x }

// Nested runs g, whose operations are not the call's own. A tap must run its own operations this way.
func (f *frame) Nested(g func()) {
	tap := SetTap(f.x, nil)
	defer SetTap(f.x, tap)
	f.nested(g)
}

// Changes reports whether the call changes operands.
func (f *frame) Changes() bool { return f.to(0) != nil || f.row.flags&flagMutates != 0 }

// Draws reports whether the call takes numbers from a generator.
func (f *frame) Draws() bool { return f.row.draws != nil }

// Asserted reports whether a call of the operation has launched a kernel with assertions on a device that does not survive their failure.
func (f *frame) Asserted() bool { return rt.MayAssert(f.row.id) }

// Works reports whether the call has work for the device: a view has none.
func (f *frame) Works() bool { return f.row.flags&(flagView|flagIdle) == 0 }

// Views reports whether the call makes views, which have no work.
func (f *frame) Views() bool { return f.row.flags&flagView != 0 }

// Depth returns how many calls are under way in the session, including this one.
func (f *frame) Depth() int { return f.x.s.depth }

// SessionOf returns a key for the session of x and all Execs derived from it. The key does not keep the session alive.
func SessionOf(x *Exec) any { return x.s.key }

// sessionOf returns the session of a key, or nil if it was collected.
func sessionOf(key any) *session { return key.(weak.Pointer[session]).Value() }

// SessionEnded reports whether the session of a key from SessionOf was closed or collected.
func SessionEnded(key any) bool {
	s := sessionOf(key)
	return s == nil || s.closed.Load()
}
