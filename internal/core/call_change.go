package core

import (
	"slices"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
)

// A change of existing tensors happens completely or not at all. Its launches wait until its last operation has its memory, its kernels and
// its place in the order of streams, so that a lack of memory leaves every tensor as it was. So does a driver that refuses the first
// launch. If it refuses a later one, it is asked again; if it refuses again, the device is given up, because nobody can restore what the
// earlier launches have overwritten.

// change is the work of one or several operations that waits to be handed to the driver. Each session has two, which it reuses: one for the
// operation under way, and one for a Together.
type change struct {
	calls []driverCall
	args  []byte // of the calls
	// What an abandoned change takes back: version counts, and draws of random numbers.
	counted []*storage
	draws   []taken
	undo    []func()
	// turns are the streams that the operations use, each with its latest number. The Together holds their turns until everything is handed
	// over.
	turns   []place
	ordered bool // whether it holds turnsMu
	// name is what the innermost Together of a package above the face is called, such as AdamW, or "".
	name string
	// part is the number of the latest Together, from 1 on.
	part uint64
	// What happens once the work is handed over: its accesses are noted, and its workspace and the held storages are released.
	notes   []noted
	touched []*storage // by notes
	work    []workspace
	held    []*storage
}

// driverCall is a waiting call of the driver: a launch, or a fill or a write from the host of n bytes.
type driverCall struct {
	kind     callKind
	row      *row
	st       *rt.Stream
	launch   driver.Launch
	from, to int // the launch's arguments
	dst      driver.Ptr
	n        int
	value    byte
	host     []byte         // not page-locked
	op       *rt.ProfiledOp // or nil
	note     *callNote      // or nil
}

type callKind uint8

const (
	callLaunch callKind = iota
	callFill
	callWrite
)

// place identifies an operation.
type place struct {
	st  *rt.Stream
	seq uint64
}

// noted says that an operation reads and then writes the next storages of change.touched.
type noted struct {
	place
	reads, writes int
}

// begin returns the number of the next operation on st.
func (c *change) begin(op rt.OpID, st *rt.Stream, in *rt.Capture) (uint64, error) {
	for i := range c.turns {
		if t := &c.turns[i]; t.st == st {
			t.seq++
			st.Began(op, t.seq)
			return t.seq, nil
		}
	}
	if !c.ordered && !st.Device().Info().Inline {
		c.ordered = true
		turnsMu.Lock()
	}
	seq, err := st.Begin(op, in)
	if err == nil {
		c.turns = append(c.turns, place{st, seq})
	}
	return seq, err
}

// turnsMu is held by the Together that has turns, since it may want more, and while two turns are taken: without it two goroutines could
// each hold the turn that the other wants, and deadlock.
var turnsMu sync.Mutex

// workspace is memory that is freed once the work is handed over.
type workspace struct {
	dev *rt.Device
	b   *alloc.Block
}

// taken is a draw from a generator with that seed, which moved its offset from at to to.
type taken struct {
	g            *rt.Generator
	seed, at, to uint64
}

// together runs f, whose operations change all of their tensors or none: if one fails, or f panics, the tensors, their versions and the
// generators are as before. No operation of f runs before f returns, so f must not read a tensor back, and must use each tensor on one
// stream only. Within another Together it becomes a part of that. Operations that a tap defers run together too, later, unless one of f's
// cannot be deferred.
func (x *Exec) together(op string, f func(x *Exec)) {
	s := x.s
	if s.change != nil {
		f(x)
		return
	}
	c, done := &s.together, false
	c.part++
	s.change = c
	defer func() { // also for a torn session: nobody else touches c, which holds the turns of streams
		s.change = nil
		if !done {
			if s.putOff != nil && !s.torn() {
				s.putOff.dropPart(c.part)
			}
			c.takeBack()
		}
		c.reset()
	}()
	f(x)
	s.change = nil
	x.check(op, c.handOver())
	if d := s.putOff; d != nil && len(d.thin) > 0 { // nothing has run, if anything was deferred
		d.undoLater(c.undo...)
	}
	if s.capture != nil {
		s.capture.counted = append(s.capture.counted, c.counted...)
	}
	done = true
}

// apart refuses an action that cannot be a part of the Together under way, which holds the turns of its streams until everything is handed
// over.
func (s *session) apart(what string) error {
	if s.change == nil {
		return nil
	}
	return fault.New(fault.Invalid, "%s while changes are put together that wait for each other; do it before or after", what)
}

// named is together, whose operations profiles and explanations name after op.
func (x *Exec) named(op string, f func(x *Exec)) {
	x.together(op, func(x *Exec) {
		c := x.s.change
		was := c.name
		c.name = op
		defer func() { c.name = was }()
		f(x)
	})
}

// hand gives the launch in f.dl to the driver, or holds it if the call waits.
func (f *frame) hand() error {
	if f.waits {
		f.held = true
		return nil
	}
	if f.op != nil {
		return f.launchProfiled()
	}
	if f.note != nil {
		return f.launchNoted()
	}
	return f.x.m.stream.Launch(f.dl)
}

// launchNoted is hand where a capture notes the call.
func (f *frame) launchNoted() error {
	st := f.x.m.stream
	st.Note(f.note)
	defer st.Note(nil)
	return st.Launch(f.dl)
}

// launchProfiled is hand where a profiler sees the call.
func (f *frame) launchProfiled() error {
	st := f.x.m.stream
	return f.op.Work(st, st.Device().KernelName(f.dl.Func), func() error { return st.Launch(f.dl) })
}

// waiting returns the change in which the frame's calls wait.
func (f *frame) waiting() *change {
	if c := f.x.s.change; c != nil {
		return c
	}
	return &f.x.s.alone
}

// spill moves the launch in f.dl to the calls that wait, to make room for another one.
func (f *frame) spill() {
	c := f.waiting()
	from := len(c.args)
	c.args = append(c.args, f.dl.Args...)
	c.calls = append(c.calls, driverCall{kind: callLaunch, row: f.row, st: f.x.m.stream, launch: *f.dl, from: from,
		to: len(c.args), op: f.op, note: f.note})
	f.held = false
}

// queue makes the call, or lets it wait.
func (f *frame) queue(d driverCall) error {
	if f.x.s.learning() {
		return nil
	}
	d.row, d.st, d.op, d.note = f.row, f.x.m.stream, f.op, f.note
	if !f.waits {
		return d.do(nil)
	}
	if f.held {
		f.spill()
	}
	c := f.waiting()
	c.calls = append(c.calls, d)
	return nil
}

// handOver gives the operation's waiting calls to the driver, or leaves them to the surrounding Together.
func (f *frame) handOver() error {
	c := f.waiting()
	if c == &f.x.s.alone {
		if f.held && len(c.calls) == 0 {
			f.waits, f.held = false, false
			return f.hand()
		}
		if f.held {
			f.spill()
		}
		f.waits = false
		defer c.reset()
		return c.handOver()
	}
	if f.held {
		f.spill()
	}
	f.waits = false
	st := f.x.m.stream
	if !f.x.m.manual && !st.Recording() {
		c.note(f, place{st, f.seq})
	}
	dev := st.Device()
	for i, b := range f.work {
		c.work = append(c.work, workspace{dev, b})
		f.work[i] = nil
	}
	f.work = f.work[:0]
	for i := 0; i < f.ins; i++ {
		if f.in[i] != nil {
			c.hold(f.in[i].st)
		}
	}
	for i := 0; i < f.outs; i++ {
		c.hold(f.out[i].st)
	}
	if f.row != rowForeach || f.again { // the caller of a Foreach holds its lists
		for _, t := range f.many {
			c.hold(t.st)
		}
	}
	if f.drawn.g != nil && !f.again {
		c.draws = append(c.draws, f.drawn)
		f.drawn.g = nil
	}
	return nil
}

// note keeps the accesses of f's operation, which is at, until it is launched.
func (c *change) note(f *frame, at place) {
	from := len(c.touched)
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil && f.row.flags&flagForeign == 0 {
			c.touched = append(c.touched, t.st)
		}
	}
	for t := range f.onlyRead {
		c.touched = append(c.touched, t.st)
	}
	reads := len(c.touched) - from
	for i := 0; i < f.outs; i++ {
		c.touched = append(c.touched, f.out[i].st)
	}
	for _, t := range f.altered {
		c.touched = append(c.touched, t.st)
	}
	c.notes = append(c.notes, noted{at, reads, len(c.touched) - from - reads})
}

func (c *change) hold(st *storage) {
	st.retain()
	c.held = append(c.held, st)
}

// handOver gives all calls to the driver.
func (c *change) handOver() error {
	for i := range c.calls {
		d := &c.calls[i]
		err := d.do(c.args)
		if err != nil && i > 0 && !d.st.Device().Info().Inline {
			if err = d.do(c.args); err != nil {
				return d.st.Device().GiveUp(err)
			}
		}
		if err != nil {
			return err
		}
	}
	next := c.touched
	for _, n := range c.notes {
		for _, s := range next[:n.reads] {
			s.didRead(n.st, n.seq)
		}
		next = next[n.reads:]
		for _, s := range next[:n.writes] {
			s.didWrite(n.st, n.seq)
		}
		next = next[n.writes:]
	}
	return nil
}

// do calls the driver; args holds the launches' arguments.
func (d *driverCall) do(args []byte) error {
	if d.note != nil {
		d.st.Note(d.note)
		defer d.st.Note(nil)
	}
	if d.op == nil {
		return d.call(args)
	}
	name := "copy"
	switch d.kind {
	case callFill:
		name = "fill"
	case callLaunch:
		name = d.st.Device().KernelName(d.launch.Func)
	}
	return d.op.Work(d.st, name, func() error { return d.call(args) })
}

// call is do without a profiler.
func (d *driverCall) call(args []byte) error {
	switch d.kind {
	case callFill:
		return d.st.Fill(d.dst, d.value, uint64(d.n))
	case callWrite:
		return d.st.Write(d.dst, d.host)
	}
	d.launch.Args = args[d.from:d.to]
	return d.st.Launch(&d.launch)
}

// count increments the storage's version, and notes that for a change or capture that may fail.
func (s *session) count(st *storage) {
	st.version.Add(1)
	switch {
	case s.change != nil:
		s.change.counted = append(s.change.counted, st)
	case s.capture != nil:
		s.capture.counted = append(s.capture.counted, st)
	}
}

// uncount takes version counts back.
func uncount(list []*storage) {
	for _, st := range list {
		st.version.Add(^uint32(0))
	}
}

// takeBack undoes what an abandoned change has done besides its work.
func (c *change) takeBack() {
	uncount(c.counted)
	for i := len(c.draws) - 1; i >= 0; i-- {
		c.draws[i].takeBack()
	}
	undo(c.undo)
}

// undo calls the functions in reverse order.
func undo(list []func()) {
	for _, f := range slices.Backward(list) {
		f()
	}
}

// Undo has f called if the Together under way in x's session, the capture under way or the deferred calls fail. Then the work never runs,
// and f takes back what the host noted about it. If several of them fail, f is called several times.
func Undo(x *Exec, f func()) {
	Enter(x, "Undo")
	defer Leave(x)
	if c := x.s.change; c != nil {
		c.undo = append(c.undo, f)
	} else if d := x.s.putOff; d != nil && len(d.thin) > 0 {
		d.undoLater(f)
	}
	if c := x.s.capture; c != nil {
		c.undo = append(c.undo, f)
	}
}

func (d *taken) takeBack() {
	if d.g != nil {
		d.g.Untake(d.seed, d.at, d.to)
		d.g = nil
	}
}

// reset empties c. A free can fail only on a lost device, which the next operation reports.
func (c *change) reset() {
	for _, t := range c.turns {
		t.st.Issued(t.seq)
	}
	if c.ordered {
		c.ordered = false
		turnsMu.Unlock()
	}
	for _, w := range c.work {
		_ = w.dev.Free(w.b)
	}
	for _, st := range c.held {
		_ = st.release()
	}
	clear(c.calls)
	clear(c.counted)
	clear(c.draws)
	clear(c.undo)
	clear(c.turns)
	clear(c.notes)
	clear(c.touched)
	clear(c.work)
	clear(c.held)
	c.calls, c.args, c.counted, c.draws, c.undo, c.turns = c.calls[:0], c.args[:0], c.counted[:0], c.draws[:0], c.undo[:0], c.turns[:0]
	c.notes, c.touched, c.work, c.held = c.notes[:0], c.touched[:0], c.work[:0], c.held[:0]
}
