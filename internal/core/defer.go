package core

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"weak"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// deferral holds the calls of a session that a tap has put off: they were checked and inferred, the tape and the versions know them, and
// their outputs have handles without memory. force runs them in order.
type deferral struct {
	s     *session
	calls []deferred
	// touched are the storages that the calls use. Their ids say so, see storage.deferral.
	touched []*storage
	bare    [maxIn + maxOut]Tensor
	// at is the line of the first call. Other goroutines read it.
	at      atomic.Pointer[string]
	number  uint64
	running bool
	fusing  fusing
}

// deferred is a call that was put off.
type deferred struct {
	x   *Exec
	row *row
	attrs
	dims      *intList
	in        [maxIn]element
	out       [maxOut]element
	ins, outs uint8
	// dsts has a bit for every output that the caller gave.
	dsts uint8
}

// element is where the elements of an operand lie. It holds no reference: a storage that its holders gave up meanwhile is freed after its
// last use.
type element struct {
	st     *storage
	form   *form
	offset int
	dt     dtype.DType
	// last says that no later call uses the storage.
	last bool
}

// A storage's id has its number in the low bits. Above is the number of the deferral whose calls use it, 0 if there is none, or lost; then
// bits that say that the calls write it, that a cleanup is to come with the memory, and, while force runs, that its last use was found.
const (
	numberBits  = 48
	numberMask  = 1<<numberBits - 1
	writtenBit  = 1 << 61
	looseBit    = 1 << 62
	walkedBit   = 1 << 63
	lost        = 1<<13 - 1
	deferralsOf = lost << numberBits
)

// deferral returns the number of the deferral whose calls use s, 0 if there is none, or lost if the call that was to make its elements
// failed.
func (s *storage) deferral() uint64 { return s.id.Load() & deferralsOf >> numberBits }

// waits reports whether calls that use s have been put off.
func (s *storage) waits() bool {
	n := s.deferral()
	return n != 0 && n != lost
}

// deferrals are those of all sessions, by number from 1 on. One is there from its session's first deferred call on.
var deferrals struct {
	sync.Mutex
	all []weak.Pointer[deferral]
}

// newDeferral returns the deferral of s with a number of its own, or nil if there is none left.
func newDeferral(s *session) *deferral {
	deferrals.Lock()
	defer deferrals.Unlock()
	d := &deferral{s: s}
	for i, p := range deferrals.all {
		if p.Value() == nil {
			d.number = uint64(i + 1)
			deferrals.all[i] = weak.Make(d)
			return d
		}
	}
	if len(deferrals.all) == lost-1 {
		return nil
	}
	deferrals.all = append(deferrals.all, weak.Make(d))
	d.number = uint64(len(deferrals.all))
	return d
}

// by returns the deferral whose calls use s, or nil.
func (s *storage) by() *deferral {
	n := s.deferral()
	if n == 0 || n == lost {
		return nil
	}
	deferrals.Lock()
	defer deferrals.Unlock()
	return deferrals.all[n-1].Value()
}

// barred returns why the session may not use t, or may not write it, or nil: calls of another session that were put off write it, or read
// what is to be written, or the call that was to make it failed.
func (s *session) barred(t *Tensor, write bool) error {
	id := t.st.id.Load()
	n := id & deferralsOf >> numberBits
	switch {
	case n == 0 || s.putOff != nil && s.putOff.number == n:
		return nil
	case n == lost:
		return fault.New(fault.Invalid, "the tensor %s was never made, since a call that was put off failed; make it again", describe(t))
	case !write && id&writtenBit == 0:
		return nil // both read
	}
	d := t.st.by()
	if d == nil { // its calls have run meanwhile
		return nil
	}
	return fault.New(fault.Invalid, "the tensor %s is used in a compiled region of another Exec, whose calls since %s have not run yet; use it after that Do has returned",
		describe(t), *d.at.Load())
}

// forceOwner runs the calls that use s, of whatever session, for op.
func (s *storage) forceOwner(op string) {
	if d := s.by(); d != nil {
		d.s.in(op)
		defer d.s.out()
		Check(op, d.s.force())
	}
}

// Deferrable reports whether the call may be put off: its work is the launches of a row on this device's memory, in the order of one
// stream.
func (f *frame) Deferrable() bool {
	const not = flagView | flagForeign | flagIdle | flagDraws | flagWaits | flagMutates | flagUser
	if f.row.flags&not != 0 || len(f.many) > 0 || f.outs > maxOut || f.x.m.manual || f.x.m.pool != nil || f.x.s.change != nil || f.x.s.capture != nil {
		return false
	}
	for i := 0; i < f.outs; i++ {
		if f.to(i) == nil && f.specs[i].kind != outNew {
			return false
		}
		if d := f.to(i); d != nil && f.row.saves != 0 && !f.x.m.noGrad {
			return false // what the derivative reads may have to be kept first
		}
	}
	for _, t := range f.temps { // a number of the processor, which is on its way
		if t.st.locked != nil {
			return false
		}
	}
	return f.hosts == 0
}

// Defer puts the call off and makes its outputs, which have no memory yet, or returns false: then calls that another session put off use an
// operand. A tap calls it in Before, and returns the same.
func (f *frame) Defer() bool {
	s := f.x.s
	d := s.putOff
	if d == nil {
		if d = newDeferral(s); d == nil {
			return false
		}
		s.putOff = d
	}
	if len(d.calls) == 0 {
		file, line := caller()
		at := fmt.Sprintf("%s:%d", file, line)
		d.at.Store(&at)
	}
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil && !d.take(t.st, false) {
			return false
		}
	}
	for i := 0; i < f.outs; i++ {
		if t := f.to(i); t != nil && !d.take(t.st, true) {
			return false
		}
	}
	f.checkWrites(!f.x.m.noGrad && f.row.back != nil && f.anyRequiresGrad())
	for i := 0; i < f.outs; i++ {
		f.placeLater(i, &f.specs[i])
	}
	d.calls = append(d.calls, deferred{})
	c := &d.calls[len(d.calls)-1]
	c.x, c.row, c.attrs, c.dims = f.x, f.row, f.attrs, s.made.list(f.dims)
	c.ins, c.outs = uint8(f.ins), uint8(f.outs)
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil {
			c.in[i] = elementOf(t)
		}
	}
	for i := 0; i < f.outs; i++ {
		c.out[i] = elementOf(f.out[i])
		if f.to(i) != nil {
			c.dsts |= 1 << i
		} else {
			d.take(f.out[i].st, true)
		}
	}
	f.countVersions()
	return true
}

// take notes that the session's calls use s, unless another session's do.
func (d *deferral) take(s *storage, write bool) bool {
	s.number()
	bits := d.number << numberBits
	if write {
		bits |= writtenBit
	}
	for {
		id := s.id.Load()
		switch id & deferralsOf >> numberBits {
		case 0:
			if s.id.CompareAndSwap(id, id|bits) {
				d.touched = append(d.touched, s)
				return true
			}
		case d.number:
			s.id.Or(bits)
			return true
		default:
			return false
		}
	}
}

func elementOf(t *Tensor) element {
	return element{st: t.st, form: t.form, offset: t.offset, dt: t.dt}
}

// placeLater makes output i without memory.
func (f *frame) placeLater(i int, sp *spec) {
	if d := f.to(i); d != nil {
		f.checkDst(d, sp.dt, sp.form.shape)
		f.setOut(i, d)
		return
	}
	n := &fresh{}
	n.dt, n.st, n.form = sp.dt, &n.own, sp.form
	n.own.dev = f.x.m.stream.Device()
	n.own.bytes = f.bytes(sp)
	f.setOut(i, &n.Tensor)
}

// bytes returns the size of an output's memory.
func (f *frame) bytes(sp *spec) int {
	if !sp.dt.Valid() {
		f.fail(fault.Invalid, "%v is no element type; give one such as tenon.Float32", sp.dt)
	}
	n := sp.form.extent
	if n < 0 || n > math.MaxInt/maxElement && n > math.MaxInt/sp.dt.Size() { // the second division is slow
		f.fail(fault.Invalid, "a tensor of shape %v has more bytes than addresses", sp.form.shape)
	}
	return n * sp.dt.Size()
}

// Deferred reports how many calls of x's session are put off.
func Deferred(x *Exec) int {
	if d := x.s.putOff; d != nil {
		return len(d.calls)
	}
	return 0
}

// Force runs the calls of x's session that were put off.
func Force(x *Exec) (err error) {
	stopped := Try(func() {
		Enter(x, "Do")
		defer Leave(x)
		err = x.s.force()
	})
	return errors.Join(err, stopped)
}

// force runs what was put off, in order. After an error the rest is dropped, and its outputs are lost.
func (s *session) force() error {
	d := s.putOff
	if d == nil || d.running || len(d.calls)+len(d.touched) == 0 {
		return nil
	}
	d.running = true
	tap, mark, ran, done := s.tap, s.mark(), 0, false
	s.tap = nil
	defer func() {
		s.tap, d.running = tap, false
		if !done { // a panic that is no error of ours goes on
			s.restore(mark)
			_ = d.end(ran)
		}
	}()
	var freed error
	err := Try(func() {
		defer d.count(s.launches)
		if p := d.planned(); p != nil {
			ran = len(d.calls) // the plan says itself what it did not make
			freed = d.runPlan(p)
			return
		}
		d.findLast()
		for ; ran < len(d.calls); ran++ {
			c := &d.calls[ran]
			d.run(c)
			for j := range c.in[:c.ins] {
				freed = errors.Join(freed, c.in[j].used())
			}
			for j := range c.out[:c.outs] {
				freed = errors.Join(freed, c.out[j].used())
			}
		}
	})
	done = true
	return errors.Join(err, freed, d.end(ran))
}

// end forgets all calls, of which the first ran have been run. What the others were to make is lost.
func (d *deferral) end(ran int) (err error) {
	for i := ran; i < len(d.calls); i++ {
		d.calls[i].lose()
	}
	for _, st := range d.touched {
		if st.deferral() != 0 {
			err = errors.Join(err, st.endDeferral())
		}
	}
	d.fusing.place, d.fusing.placed = nil, 0
	clear(d.calls)
	clear(d.touched)
	d.calls, d.touched = d.calls[:0], d.touched[:0]
	return err
}

// lose says that what the call was to make is lost.
func (c *deferred) lose() {
	for j := range c.out[:c.outs] {
		if c.dsts>>j&1 == 0 {
			c.out[j].st.id.Or(deferralsOf)
		}
	}
}

// findLast marks the last use of every storage.
func (d *deferral) findLast() {
	mark := func(e *element) {
		if e.st != nil && e.st.id.Load()&walkedBit == 0 {
			e.st.id.Or(walkedBit)
			e.last = true
		}
	}
	for i := len(d.calls) - 1; i >= 0; i-- {
		c := &d.calls[i]
		for j := range c.out[:c.outs] {
			mark(&c.out[j])
		}
		for j := range c.in[:c.ins] {
			mark(&c.in[j])
		}
	}
}

// used ends a use of the storage that was the last one.
func (e *element) used() error {
	if !e.last {
		return nil
	}
	return e.st.endDeferral()
}

// endDeferral makes s a storage that no deferred call uses, and frees it if its holders gave it up meanwhile. A lost one stays so.
func (s *storage) endDeferral() error {
	keep := uint64(numberMask)
	if s.deferral() == lost {
		keep |= deferralsOf
	}
	old := s.id.And(keep)
	switch {
	case s.others.CompareAndSwap(abandoned, abandoned-1):
		return s.free()
	case old&looseBit != 0:
		s.loosen()
	}
	return nil
}

// run runs one call.
func (d *deferral) run(c *deferred) {
	f := d.s.enter(c.x, c.row)
	f.attrs, f.ins = c.attrs, int(c.ins)
	f.dims = append(f.dimsB[:0], c.dims.ints()...)
	for i := 0; i < f.ins; i++ {
		if c.in[i].st != nil {
			f.in[i] = d.tensor(i, &c.in[i])
		}
	}
	for i := 0; i < int(c.outs); i++ {
		t := d.tensor(maxIn+i, &c.out[i])
		if c.dsts>>i&1 != 0 {
			f.dst[i] = t
		}
	}
	f.again = true
	f.row.infer(f)
	for i := 0; i < int(c.outs); i++ {
		st := c.out[i].st
		if c.dsts>>i&1 == 0 && st.bytes > 0 && st.block == nil {
			b, err := f.x.alloc(st.bytes)
			f.check(err)
			st.block, st.ptr = b, b.Addr()
			live.Add(1)
		}
		f.setOut(i, &d.bare[maxIn+i])
	}
	f.issue(false)
	f.closeTemps()
	d.s.leave(f)
}

// tensor returns a handle of e that is in no scope and counted nowhere.
func (d *deferral) tensor(i int, e *element) *Tensor {
	t := &d.bare[i]
	t.st, t.form, t.dt, t.offset = e.st, e.form, e.dt, e.offset
	return t
}
