package core

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"weak"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
	"tenon.dev/internal/stack"
)

// deferral holds the calls of a session that a tap has deferred: they were checked and inferred, the tape and the versions include them,
// and their outputs have handles without memory. force runs them in order.
type deferral struct {
	s *session
	// door is the session's, which other goroutines may read.
	door *door
	// thin are the calls, and calls what expand has made of them; it may be behind. ops and more are what thin refers to.
	thin  []thin
	ops   []int32
	more  []thinMore
	calls []deferred
	// path is that of the tap that deferred the calls, or nil; mixed says that other calls are before them. places has the places of
	// touched on it.
	path   *Path
	epoch  uint32 // of the path's slots
	mixed  bool
	places []whereabouts
	// elements, attrs and wrote are the backing arrays for the calls' lists.
	elements []element
	attrs    []attrs
	wrote    []*storage
	// undo is what is taken back if calls do not run.
	undo []undoing
	// touched are the storages that the calls use. Their ids name this deferral (see storage.deferral), and their slots are their indexes
	// here.
	touched []*storage
	// seen is findLast's: by index in touched, whether a use was found.
	seen []bool
	// sharing are the indexes in touched of storages that other sessions' calls read too.
	sharing map[*storage]int32
	// nextNumber and lastNumber bound the numbers reserved for new storages.
	nextNumber, lastNumber uint64
	bare                   [maxIn + maxOut]Tensor
	list                   []Tensor
	// together is the change of a Together that was deferred and runs now.
	together change
	// failed is why calls did not run, and undone what is taken back for it, until the session learns of the error.
	failed error
	undone []func()
	// devices are those on which the calls are to run, which know that.
	devices []*rt.Device
	// forces counts how often calls were run.
	forces int
	// at is the line of the first call. Other goroutines read it.
	at      atomic.Pointer[Whence]
	number  uint64
	running bool
	// runner decides how the calls run; without one they run one by one. ran is how many have run, and segment is what the runner sees.
	runner  Runner
	ran     int
	segment Segment
	// inputs copies those of graphs.
	inputs inputCopies
	// handles are allocated and unused.
	handles []fresh
	// settled says that a graph has run the calls, so that nothing is left to do for storages that nobody holds.
	settled bool
	// prepared is set once it has been decided how the calls run: by plan, of which the first done steps have run, or one by one.
	prepared bool
	plan     *plan
	done     int
	fusing   fusing
	// compared is what the plan's steps are compared with, or nil.
	compared *comparison
	// proxy says that the goroutine which runs the calls works for trails, or is nil.
	proxy  *stack.Proxy
	trails []rt.Trail
}

// deferred is a call that waits to run.
type deferred struct {
	x   *Exec
	row *row
	*attrs
	telling
	dims *intList
	// in has ins elements and out has outs; st is nil for an absent one.
	in, out   []element
	ins, outs uint8
	// dsts has a bit for every output that the caller gave.
	dsts uint8
	// many are the operands of a list, and wrote the storages that the call changes, whose versions were counted.
	many  []element
	wrote []*storage
	// drawn is what the call took from a generator.
	drawn taken
	// op is the call as a profiler records it, or nil.
	op *rt.ProfiledOp
	// part is the number of the call's Together, or 0.
	part uint64
}

// undoing is a function to call if call number at does not run.
type undoing struct {
	at int
	f  func()
}

// element is where an operand's elements are. It holds no reference: a storage that its holders release meanwhile is freed after its last
// use.
type element struct {
	st     *storage
	form   *form
	offset int
	dt     dtype.DType
	// last says that no later call uses the storage.
	last bool
	slot int32 // the storage's
}

// deferrals are those of all sessions, by number from 1 on. A session gets one with its first deferred call.
var deferrals struct {
	sync.Mutex
	all []weak.Pointer[deferral]
}

// newDeferral returns the deferral of s with a number of its own, or nil if no number is left.
func newDeferral(s *session) *deferral {
	deferrals.Lock()
	defer deferrals.Unlock()
	d := &deferral{s: s, door: s.gate.door}
	for i, p := range deferrals.all {
		if p.Value() == nil {
			d.number = uint64(i + 1)
			deferrals.all[i] = weak.Make(d)
			return d
		}
	}
	if len(deferrals.all) == several-1 {
		return nil
	}
	deferrals.all = append(deferrals.all, weak.Make(d))
	d.number = uint64(len(deferrals.all))
	return d
}

// by returns the deferral whose calls use s, or nil; if several do, one besides that with the number not.
func (s *storage) by(not uint64) *deferral {
	n := s.deferral()
	if n == several {
		n = s.rare.Load().sharers.other(not)
	}
	if n == 0 || n == lost || n == not {
		return nil
	}
	deferrals.Lock()
	defer deferrals.Unlock()
	return deferrals.all[n-1].Value()
}

// barred returns why the session must not use t, or not write it, or nil. Either calls that another session deferred write t, or read it
// while this one wants to write, or the call that should have made t failed.
func (s *session) barred(t *Tensor, write bool) error {
	id := t.st.id.Load()
	n, own := id&deferralsOf>>numberBits, uint64(0)
	if s.putOff != nil {
		own = s.putOff.number
	}
	switch {
	case n == 0 || n == own:
		return nil
	case n == lost:
		if err := errOverwritten(t.st); err != nil {
			return err
		}
		return fault.New(fault.Invalid, "the tensor %s was never made, since a deferred call failed; make it again", describe(t))
	case !write && id&writtenBit == 0:
		return nil // both read
	}
	d := t.st.by(own)
	if d == nil { // its calls have run meanwhile
		return nil
	}
	return fault.New(fault.Invalid, "the tensor %s is used in a compiled region of another Exec, whose calls since %s have not run yet; "+
		"use it after that Do has returned",
		describe(t), d.at.Load())
}

// forceOwner runs the calls that use s, whichever session deferred them, for op. Calls of several sessions only read s, and go on waiting.
func (s *storage) forceOwner(op string) {
	if s.deferral() == several {
		return
	}
	if d := s.by(0); d != nil {
		d.s.in(op)
		defer d.s.out()
		Check(op, d.s.force(op))
	}
}

// Deferrable reports whether the call may be deferred: its work consists of a row's launches on this device's memory, in the order of one
// stream.
func (f *frame) Deferrable() bool { return f.Hindrance() == "" }

// Hindrance says why the call may not be deferred: "it waits for the device". It is empty if the call may be deferred.
func (f *frame) Hindrance() string {
	switch s := f.x.s; {
	case f.row.flags&flagForeign != 0:
		return "an operand is on another device"
	case f.row.flags&flagWaits != 0:
		return "it waits for the device"
	case f.x.m.manual:
		return "its Exec is of ManualStreams"
	case f.x.m.pool != nil:
		return "its Exec is of UsePool"
	case s.capture != nil:
		return "it is captured"
	case s.atOnce:
		return "its result is needed at once"
	case s.change != nil && len(s.change.turns) > 0: // the rest of the Together comes after it
		return "a part of its operation has run"
	case f.row.flags&flagView != 0:
		return "its results are views"
	case f.outs > maxOut:
		return "it has too many results"
	case f.hosts > 0:
		return "an operand is in the processor's memory"
	}
	for i := 0; i < f.outs; i++ {
		if f.to(i) == nil && f.specs[i].kind != outNew {
			return "its results share memory with its operands"
		}
	}
	for _, t := range f.temps {
		if t.st.locked() != nil {
			return "an operand is in the processor's memory"
		}
	}
	return ""
}

// Defer adds the call to the deferred ones and makes its outputs, which have no memory yet. It returns false if calls that another session
// deferred use an operand. A tap calls it in Before, with its path at the call, and returns its result.
func (f *frame) Defer(p *Path) bool {
	s := f.x.s
	d := s.putOff
	if d == nil {
		if d = newDeferral(s); d == nil {
			return false
		}
		s.putOff = d
	}
	d.follow(p)
	e, from := p.expectation(f), len(d.ops)
	if !d.takeOperands(f, e) {
		d.ops = d.ops[:from]
		return false
	}
	grads := f.WillRecord()
	p.recorded = p.recorded || grads
	d.put(f, e, f.specs, from)
	m := thinMore{blame: f.blame, op: f.op}
	if s.change != nil {
		m.part = s.change.part
	}
	if f.row.draws != nil {
		m.drawn = take(f.x.Generator(), f.row.draws(f))
	}
	if m != (thinMore{}) {
		d.more = append(d.more, m)
		d.thin[len(d.thin)-1].more = uint32(len(d.more))
	}
	return true
}

// next returns a call at the end of the list. Elements beyond the list's end are zero.
func (d *deferral) next() *deferred {
	n := len(d.calls)
	if n == cap(d.calls) {
		d.calls = append(d.calls, deferred{})
	} else {
		d.calls = d.calls[:n+1]
	}
	return &d.calls[n]
}

// attrsOf copies the attributes of f for a deferred call.
func (d *deferral) attrsOf(f *frame) *attrs {
	if f.hasNone() {
		return &noAttrs
	}
	d.attrs = append(d.attrs, f.attrs)
	return &d.attrs[len(d.attrs)-1]
}

// newNumber returns the number of a new storage. It reserves many at a time.
func (d *deferral) newNumber() uint64 {
	const many = 64
	if d.nextNumber == d.lastNumber {
		d.lastNumber = storageNumbers.Add(many)
		d.nextNumber = d.lastNumber - many
	}
	d.nextNumber++
	return d.nextNumber
}

// placeLater makes output i of f without memory. dies says that nobody is expected to hold it when the calls run.
func (d *deferral) placeLater(f *frame, i int, sp *spec, dies bool) {
	if dst := f.to(i); dst != nil {
		f.setOut(i, dst)
		return
	}
	n := d.newHandle(dies)
	n.dt, n.st, n.form = sp.dt, &n.own, sp.form
	n.own.dev = f.x.m.stream.Device()
	n.own.bytes = f.bytes(sp)
	n.own.id.begin(d.newNumber() | d.number<<numberBits | writtenBit)
	n.own.slot = int32(len(d.touched))
	d.touch(&n.own)
	f.setOut(i, &n.Tensor)
}

// handlesAtOnce is how many handles newHandle allocates together: with them, an object of 1792 bytes is almost full.
const handlesAtOnce = 11

// newHandle returns a new handle with its storage. Those that die are allocated together, which costs a third. A handle that the program
// drops is collected with the others that it was allocated with, so one that may get memory of its own is not among them.
func (d *deferral) newHandle(dies bool) *fresh {
	if !dies {
		return &fresh{}
	}
	if len(d.handles) == 0 {
		d.handles = make([]fresh, handlesAtOnce)
	}
	n := &d.handles[0]
	d.handles = d.handles[1:]
	return n
}

// bytes returns the size of an output's memory.
func (f *frame) bytes(sp *spec) int {
	if !sp.dt.Valid() {
		f.fail(fault.Invalid, "%v is not an element type; give one such as tenon.Float32", sp.dt)
	}
	n := sp.form.extent
	if n < 0 || n > math.MaxInt/maxElement && n > math.MaxInt/sp.dt.Size() { // the second division is slow
		f.fail(fault.Invalid, "a tensor of shape %v has more bytes than addresses", sp.form.shape)
	}
	return n * sp.dt.Size()
}

// Deferred returns how many calls of x's session are deferred.
func Deferred(x *Exec) int {
	Enter(x, "Deferred")
	defer Leave(x)
	if d := x.s.putOff; d != nil {
		return len(d.thin)
	}
	return 0
}

// Forces returns how often deferred calls of x's session have been run. The caller is inside.
func Forces(x *Exec) int {
	if d := x.s.putOff; d != nil {
		return d.forces
	}
	return 0
}

// Force runs the deferred calls of x's session.
func Force(x *Exec) (err error) {
	stopped := Try(func() {
		Enter(x, "Do")
		defer Leave(x)
		err = x.s.force("")
	})
	return errors.Join(err, stopped)
}

// force runs the deferred calls, in order, for the operation cause, or "". After an error the remaining calls are dropped, and their
// outputs are lost.
func (s *session) force(cause string) error {
	s.forceQuietly(cause)
	if s.putOff == nil || s.putOff.running || s.gate.lent.Load() {
		return nil
	}
	return s.putOff.tell()
}

// forceQuietly is force, but leaves the error to the session's next one.
func (s *session) forceQuietly(cause string) {
	if cause != "" && s.tap != nil {
		if r, ok := s.tap.(Runner); ok {
			within := ""
			if n := len(s.doing); n > 0 {
				within = s.doing[n-1]
			}
			r.Cut(cause, within)
		}
	}
	d := s.putOff
	if d == nil || d.running || len(d.thin)+len(d.touched) == 0 {
		return
	}
	if len(d.thin) > 0 {
		d.forces++
	}
	d.running = true
	tap, under, mark, done := s.tap, s.change, s.mark(), false
	s.tap, s.change, d.ran = nil, nil, 0
	defer func() {
		s.tap, s.change, d.running = tap, under, false
		if !done { // a panic that is not our error goes on
			s.restore(mark)
			_ = errors.Join(d.end(), d.tell())
		}
	}()
	var failed error
	err := Try(func() {
		if d.runner == nil || under != nil || len(d.thin) == 0 || s.gate.lent.Load() {
			d.prepare(nil)
			failed = d.runAll(under)
			return
		}
		d.segment.d = d
		d.segment.scan()
		failed = d.runner.RunSegment(&d.segment)
	})
	done = true
	d.failed = errors.Join(d.failed, err, failed, d.end())
}

// RunDeferred runs the calls for op, which looks at the device without the session, if the calling goroutine is in the function that makes
// the calls: only it can tell when they have to be seen, and another one would cut them anywhere. With later, the session's next call gets
// an error.
func (d *deferral) RunDeferred(op string, later bool) error {
	if !d.door.within() || !d.s.gate.free() {
		return nil
	}
	defer d.s.out()
	if later {
		d.s.forceQuietly(op)
		return nil
	}
	return d.s.force(op)
}

// prepare decides how the calls run: by a plan in at or, if at is nil, one by one.
func (d *deferral) prepare(at *Plans) {
	if d.prepared {
		return
	}
	d.prepared = true
	d.expand()
	if at != nil {
		d.plan = d.planned(at)
	}
	if d.plan == nil {
		d.findLast()
	} else {
		d.apply(d.plan)
	}
}

// runAll runs the calls that have not run yet, by the plan or one by one, with the calls of a Together together; under is the Together
// under way, or nil. The error is about memory that could not be freed.
func (d *deferral) runAll(under *change) (freed error) {
	defer d.count(d.s.launches)
	defer d.unrepresent()
	if d.plan != nil {
		return d.runPlan()
	}
	for d.ran < len(d.calls) {
		next := d.whole(d.ran)
		freed = errors.Join(freed, d.runWhole(d.calls[d.ran:next], under))
		d.ran = next
	}
	return freed
}

// runFor runs the calls for another session, if d's own session is in no call meanwhile, and reports whether it did. d's session gets the
// errors.
func (d *deferral) runFor() bool {
	g := &d.s.gate
	if !g.free() {
		return false
	}
	g.lent.Store(true)
	defer func() {
		g.lent.Store(false)
		g.open()
	}()
	_ = d.s.force("") // the session gets the error later
	return true
}

// tell returns why calls did not run, and takes back what was done for them.
func (d *deferral) tell() error {
	err, undone := d.failed, d.undone
	d.failed, d.undone = nil, nil
	undo(undone)
	return err
}

// whole returns the index after the call from and the calls that must run together with it: of a Together, all run or none.
func (d *deferral) whole(from int) int {
	next := from + 1
	for part := d.calls[from].part; part != 0 && next < len(d.calls) && d.calls[next].part == part; {
		next++
	}
	return next
}

// runWhole runs the calls: one, or those of a Together. If that Together is still under way, the launches wait for the rest of it.
func (d *deferral) runWhole(calls []deferred, under *change) (freed error) {
	s := d.s
	switch part := calls[0].part; {
	case part == 0:
	case under != nil && under.part == part:
		s.change = under
	default:
		s.change = &d.together
	}
	defer func() {
		if s.change == &d.together {
			d.together.reset()
		}
		s.change = nil
	}()
	for i := range calls {
		d.run(&calls[i])
		if s.change == nil {
			freed = errors.Join(freed, calls[i].used(d.number))
		}
	}
	switch s.change {
	case nil:
		return freed
	case under:
		for i := range calls { // what is taken back if it fails
			under.counted = append(under.counted, calls[i].wrote...)
			if calls[i].drawn.g != nil {
				under.draws = append(under.draws, calls[i].drawn)
			}
		}
	default:
		(*Exec)(nil).check(calls[0].row.Name, d.together.handOver())
	}
	for i := range calls { // not before: until then other sessions must not come between
		freed = errors.Join(freed, calls[i].used(d.number))
	}
	return freed
}

// used ends the call's uses of storages that no later call uses.
func (c *deferred) used(by uint64) (err error) {
	for _, es := range [][]element{c.in[:c.ins], c.many, c.out[:c.outs]} {
		for i := range es {
			err = errors.Join(err, es[i].used(by))
		}
	}
	return err
}

// drop takes back call number from and all later ones: their outputs are lost, and versions and generators are restored.
func (d *deferral) drop(from int) {
	d.expand()
	for i := len(d.calls) - 1; i >= from; i-- {
		d.calls[i].takeBack()
	}
	for _, u := range d.undo {
		if u.at >= from {
			d.undone = append(d.undone, u.f)
		}
	}
	clear(d.calls[from:])
	clear(d.thin[from:])
	d.calls, d.thin = d.calls[:from], d.thin[:from]
}

// takeBack marks the call's new outputs as lost, and undoes what the call did when it was deferred.
func (c *deferred) takeBack() {
	for j := range c.out[:c.outs] {
		if c.dsts>>j&1 == 0 {
			c.out[j].st.id.Or(deferralsOf) // lost
		}
	}
	uncount(c.wrote)
	c.drawn.takeBack()
}

// dropPart drops the calls of the Together under way.
func (d *deferral) dropPart(part uint64) {
	d.expand()
	from := len(d.calls)
	for from > 0 && d.calls[from-1].part == part {
		from--
	}
	d.drop(from)
}

// undoLater has f called if the last deferred call does not run.
func (d *deferral) undoLater(f ...func()) {
	for _, f := range f {
		d.undo = append(d.undo, undoing{len(d.thin) - 1, f})
	}
}

// end forgets all calls. The outputs of calls that have not run are lost.
func (d *deferral) end() (err error) {
	switch {
	case d.ran == len(d.thin): // the usual case, in which nothing has to be expanded
	case d.plan != nil:
		d.dropSteps()
	default:
		d.drop(d.ran)
	}
	for i, dev := range d.devices {
		dev.DefersNoMore(d)
		d.devices[i] = nil
	}
	d.devices = d.devices[:0]
	d.prepared, d.plan, d.done = false, nil, 0
	clear(d.fusing.moved)
	d.fusing.moved = d.fusing.moved[:0]
	err = errors.Join(err, d.endUses())
	d.segment.forget()
	clear(d.thin)
	clear(d.more)
	clear(d.calls)
	clear(d.touched)
	clear(d.sharing)
	clear(d.elements)
	clear(d.attrs)
	clear(d.wrote)
	clear(d.undo)
	d.thin, d.ops, d.more, d.calls, d.touched, d.places = d.thin[:0], d.ops[:0], d.more[:0], d.calls[:0], d.touched[:0], d.places[:0]
	d.elements, d.attrs, d.wrote, d.undo, d.settled = d.elements[:0], d.attrs[:0], d.wrote[:0], d.undo[:0], false
	for _, list := range [][]Tensor{d.bare[:], d.list} {
		for i := range list {
			list[i].st = nil
		}
	}
	return err
}

// findLast marks the last use of every storage, also of those that other sessions' calls read.
func (d *deferral) findLast() {
	d.seen = append(d.seen[:0], make([]bool, len(d.touched))...)
	mark := func(e *element) {
		if e.st == nil || d.seen[e.slot] {
			return
		}
		if n := e.st.deferral(); n == d.number || n == several {
			d.seen[e.slot], e.last = true, true
		}
	}
	for i := len(d.calls) - 1; i >= 0; i-- {
		c := &d.calls[i]
		for _, es := range [][]element{c.out[:c.outs], c.many, c.in[:c.ins]} {
			for j := range es {
				mark(&es[j])
			}
		}
	}
}

// used ends the use of e's storage if no later call uses it.
func (e *element) used(by uint64) error {
	if !e.last {
		return nil
	}
	return e.st.endDeferral(by)
}

// run runs one call.
func (d *deferral) run(c *deferred) {
	d.represent(c.from)
	f := d.s.enter(d.s.lent.exec(c.x), c.row)
	f.attrs, f.ins, f.telling = *c.attrs, int(c.ins), c.telling
	f.dims = append(f.dimsB[:0], c.dims.ints()...)
	for i := 0; i < f.ins; i++ {
		if c.in[i].st != nil {
			f.in[i] = d.handle(&c.in[i], &d.bare[i])
		}
	}
	for i := 0; i < int(c.outs); i++ {
		t := d.handle(&c.out[i], &d.bare[maxIn+i])
		if c.dsts>>i&1 != 0 {
			f.dst[i] = t
		}
	}
	if len(d.list) < len(c.many) {
		d.list = make([]Tensor, len(c.many))
	}
	for i := range c.many {
		f.many = append(f.many, d.handle(&c.many[i], &d.list[i]))
	}
	f.again, f.drawn, f.op = true, c.drawn, c.op
	if f.row.alters != nil {
		f.row.alters(f)
	}
	f.row.infer(f)
	for i := 0; i < int(c.outs); i++ {
		st := c.out[i].st
		if c.dsts>>i&1 == 0 && st.bytes > 0 && st.block == nil && !d.s.lent.given() {
			b, err := f.x.alloc(st.bytes)
			f.check(err)
			st.block, st.ptr = b, b.Addr()
			live.Add(1)
		}
		f.setOut(i, &d.bare[maxIn+i])
	}
	if n := d.s.lent.noting(); n != nil && f.row.flops != nil {
		n.flops = f.row.flops(f)
	}
	switch {
	case d.s.learning():
		f.learn()
	case f.row.flags&flagIdle != 0:
		f.idle()
	default:
		f.issue()
	}
	if f.op != nil {
		f.tellRun()
	}
	f.closeTemps()
	d.s.leave(f)
}

// handle makes t a handle of e, or of its stand-in, that is in no scope and not counted.
func (d *deferral) handle(e *element, t *Tensor) *Tensor {
	t.st, t.form, t.dt, t.offset = e.st, e.form, e.dt, e.offset
	if l := d.s.lent; l != nil && l.stand != nil {
		t.st = l.stand(e.st)
	}
	return t
}
