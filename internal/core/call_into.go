package core

import (
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// landing is where the results of a method whose name ends in Into go. The session has one while the plain method runs: the call that
// makes the results takes the destinations in place of new memory, if it can.
type landing struct {
	dst [2]*Tensor
	n   int
	// doing is how many composites are under way while the plain method runs: a call inside another composite or call does not make the
	// result.
	doing int
}

// Into runs plain, which makes one tensor, and puts the result in dst. An element-wise operation writes to dst whatever its layout, and is
// recorded as a change of dst. Any other operation writes to dst if dst has the layout of a new tensor and its storage is not one that the
// operation reads; otherwise it makes a new tensor, which is copied.
func Into(x *Exec, op string, dst *Tensor, plain func(x *Exec) *Tensor) {
	x, m := x.intend(op, dst, nil, 1)
	defer x.s.landed(m)
	x.arrive(op, dst, plain(x))
}

// IntoPair is Into for two tensors.
func IntoPair(x *Exec, op string, a, b *Tensor, plain func(x *Exec) (a, b *Tensor)) {
	x, m := x.intend(op, a, b, 2)
	defer x.s.landed(m)
	if sharing(a, b) {
		x.fail(op, fault.Invalid, []*Tensor{a, b}, "the two destinations share memory; give tensors of their own")
	}
	ra, rb := plain(x)
	x.arrive(op, a, ra)
	x.arrive(op, b, rb)
}

// intend begins the method op, with a scope for everything else that it makes.
func (x *Exec) intend(op string, a, b *Tensor, n int) (*Exec, mark) {
	s, m := x.s, x.s.mark()
	s.doing = append(s.doing, op)
	s.push()
	s.landing = landing{dst: [2]*Tensor{a, b}, n: n, doing: len(s.doing)}
	return x.uncast(), m // autocast leaves out= alone in PyTorch too
}

// landed ends the method that intend began.
func (s *session) landed(m mark) {
	if !s.torn() {
		s.landing = landing{}
		s.restore(m)
	}
}

// arrive puts the result t in dst, unless it is there already.
func (x *Exec) arrive(op string, dst, t *Tensor) {
	if t == dst {
		return
	}
	x.s.landing = landing{}
	dev := x.m.stream.Device()
	refuse := func(format string, args ...any) { x.fail(op, fault.Invalid, []*Tensor{dst}, format, args...) }
	switch {
	case !x.m.noGrad && (t.RequiresGrad() || dst.inherits()):
		refuse("functions with out=... arguments don't support automatic differentiation, but one of the arguments requires grad; " +
			"call it on x.NoGrad()")
	case dst.st.dev != dev:
		here, there := rt.Apart(dev, dst.st.dev)
		refuse("Expected all tensors to be on the same device, but the destination %s is on %s and the operation runs on %s", describe(dst),
			there, here)
	case !infer.Same(dst.shape, t.shape):
		refuse("the destination has shape %v, but the result has shape %v", dst.shape, t.shape)
	case dst.dt != t.dt:
		refuse("the destination is %v, but the result is %v; give a destination of that type", dst.dt, t.dt)
	}
	x.CopyInto(dst, t)
}

// sharing reports whether a and b have an element's memory in common.
func sharing(a, b *Tensor) bool {
	if a.st != b.st || a.Numel() == 0 || b.Numel() == 0 {
		return false
	}
	return overlaps(a, b) || a.offset*a.dt.Size() == b.offset*b.dt.Size()
}

// lands reports whether the session's landing is for this call, whose result is the plain method's.
func (f *frame) lands() bool {
	s := f.x.s
	return s.landing.n > 0 && len(s.doing) == s.landing.doing
}

// landPoint gives an element-wise call its destination, before anything asks for it.
func (f *frame) landPoint() {
	if l := &f.x.s.landing; f.row.point != nil && l.n == 1 {
		f.dst[0], f.outs = l.dst[0], 1
		*l = landing{}
	}
}

// outputAlign is the alignment of outputs in bytes: the most that a kernel reads or writes at once.
const outputAlign = 16

// land gives any other call its destinations, once its outputs are known, if they have the layout of the outputs and share no storage with
// operands.
func (f *frame) land(grads bool) {
	l := &f.x.s.landing
	if l.n == 0 || grads || f.outs < l.n {
		return
	}
	for i, d := range l.dst[:l.n] {
		sp := &f.specs[i]
		if sp.kind != outNew || sp.form != d.form || sp.dt != d.dt || d.offset*d.dt.Size()%outputAlign != 0 ||
			d.st.dev != f.x.m.stream.Device() || d.st.locked() != nil || !f.x.m.noGrad && d.inherits() || f.reads(d.st) {
			return
		}
	}
	for i, d := range l.dst[:l.n] {
		f.checkWritten(d)
		f.dst[i] = d
	}
	*l = landing{}
}

// reads reports whether an operand of the call lies in st.
func (f *frame) reads(st *storage) bool {
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.many} {
		for _, t := range ts {
			if t != nil && t.st == st {
				return true
			}
		}
	}
	return false
}
