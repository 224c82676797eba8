package core

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/rt"
)

// capture is the session's state while it records a graph.
type capture struct {
	x  *Exec
	rc *rt.Capture
	// outer is the stream of the Exec that Capture was called on.
	outer *rt.Stream
	// inner is the session's own tap, or nil.
	inner Tap
	pool  alloc.PoolID
	// linear says that everything is recorded on one stream, with memory that the graph does not hold, so that there is nothing to order.
	linear bool
	async  bool // the driver's pool gives the memory, and blocks name no pool
	// uses are the storages that recorded work accesses, in the order of first access; index finds them.
	uses  []capturedUse
	index map[*storage]int
	// generators are the ones that recorded work draws from.
	generators []*captured
	// refused is the first error that a call returned and f may ignore.
	refused error
	// counted are the storages whose versions recorded work counted, once for each count; undo is what else a failed capture takes back.
	counted []*storage
	undo    []func()
	notes   notes
}

// capturedUse is a use with the recorded accesses that later ones must come after. Other streams do not know these accesses: nothing runs
// before the graph is replayed, and then they count as one access of the replay.
type capturedUse struct {
	use
	writer  access
	readers []access
}

// access is recorded operation seq of a stream; the zero value is none.
type access struct {
	by  *rt.Stream
	seq uint64
}

// Graph is captured work: Replay runs it again on the same memory. Tensors made during the capture belong to the graph and are closed with
// it, unless Keep took them out; tensors that it reads live at least as long as the graph.
type Graph struct {
	g *rt.Graph

	// mu is held for reading while a run is being queued, and for writing while the graph is closed.
	mu    sync.RWMutex
	uses  []use
	scope *scope
	// generators are those whose states the graph holds; draws are the ones among them that it draws from.
	generators, draws []*captured
	closed            bool
}

// use is how the graph accesses a storage.
type use struct {
	st *storage
	// dt and form are those of the tensor by which it first did.
	dt     dtype.DType
	form   *form
	writes bool
	// held says that the graph keeps a reference, because the memory is not its own: the storage may be closed before the capture ends.
	held bool
}

// CaptureOpt are the options of Capture.
type CaptureOpt struct {
	// Share lets the graph use the memory of another one: running one may overwrite the results of the other, and the graph that was
	// captured first should run first. Runs of graphs that share memory wait for each other.
	Share *Graph
	// Pool is the id of the private pool for the graph's memory, from NewPoolID: graphs of one pool share memory as with Share. Zero is a
	// new pool. The id of another device's pool is refused.
	Pool alloc.PoolID
	// Stream is where f's work is recorded. It must not be the default stream. If it is nil, the capture uses a stream of its own.
	Stream *rt.Stream
	// Mode says which threads must not make calls that could disturb the capture; such a call ends it.
	Mode rt.CaptureMode
	// Debug keeps the graph as it was recorded, for Dump.
	Debug bool
}

// spec returns the parameters of the capture.
func (opt *CaptureOpt) spec(dev *rt.Device) (spec rt.CaptureSpec, err error) {
	spec = rt.CaptureSpec{Pool: opt.Pool, Mode: opt.Mode, Source: opt.Debug}
	if opt.Share != nil {
		if err := opt.Share.begin(); err != nil {
			return spec, err
		}
		defer opt.Share.mu.RUnlock()
		if err := opt.Share.on(dev); err != nil {
			return spec, err
		}
		if opt.Pool != (alloc.PoolID{}) && opt.Pool != opt.Share.g.Pool() {
			return spec, fault.New(fault.Invalid, "the options Share and Pool name two pools; give one of them")
		}
		spec.Pool = opt.Share.g.Pool()
	}
	if opt.Stream == nil {
		return spec, nil
	}
	if err := opt.Stream.Usable(); err != nil {
		return spec, err
	}
	if opt.Stream.Device() != dev {
		here, there := rt.Apart(dev, opt.Stream.Device())
		return spec, fault.New(fault.Invalid, "the stream to capture is of %s, and this Exec works on %s", there, here)
	}
	return spec, nil
}

// Capture records the work of f as a graph and returns it; nothing runs until Replay. Operands must be on x's device. A call that waits for
// the device or transfers host data (Item, Read, From, Synchronize) fails with an error that names its line. Capture returns that error,
// and that of a backward pass, even if f ignores it. The device stays usable.
func (x *Exec) Capture(f func(x *Exec), opt CaptureOpt) (g *Graph, err error) {
	s := x.s
	if err := s.open(); err != nil {
		return nil, err
	}
	if s.capture != nil {
		return nil, fault.New(fault.Capture, "a graph is being captured already; end that capture first")
	}
	if err := s.apart("a graph cannot be captured"); err != nil {
		return nil, err
	}
	if err := s.force("Capture"); err != nil {
		return nil, err
	}
	if err := Try(func() { s.keepOmissions(x) }); err != nil {
		return nil, err
	}
	dev := x.m.stream.Device()
	spec, err := opt.spec(dev)
	if err != nil {
		return nil, err
	}
	st := opt.Stream
	if st == nil {
		if st, err = dev.CaptureStream(); err != nil {
			return nil, err
		}
		defer dev.ReturnCaptureStream(st)
	}
	if file, line := caller(); line > 0 {
		spec.At = fmt.Sprintf("%s:%d", file, line)
	}
	rc, err := dev.BeginCapture(st, spec)
	if err != nil {
		return nil, err
	}
	y := x.On(st)
	c := &capture{x: y, rc: rc, outer: x.m.stream, pool: rc.Pool(), async: dev.Memory().Settings().Backend == alloc.BackendAsync,
		index: map[*storage]int{}}
	outer := s.scope
	s.push()
	mine := s.scope
	s.capture, s.tap, c.inner = c, c, s.tap
	returned := false
	defer func() {
		c.end(s)
		if !returned { // a panic that is not our error goes on, but leaves the device usable
			c.takeBack()
			s.popTo(outer)
			_ = c.leaveGenerators(true)
			_ = errors.Join(c.letGo(), rc.Abort())
		}
	}()
	err = Try(func() {
		c.generator(y.Generator())
		s.outside("Capture", func() { f(y) })
	})
	returned = true
	if err == nil {
		err = c.refused
	}
	if err == nil {
		err = rc.Refused()
	}
	if err == nil {
		err = rc.JoinAll()
	}
	if err == nil {
		err = Try(c.advance)
	}
	err = rt.Also(err, c.leaveGenerators(err != nil))
	if err != nil {
		c.takeBack()
		s.popTo(outer)
		return nil, rt.Also(err, errors.Join(c.letGo(), rc.Abort()))
	}
	c.end(s)
	s.scope = mine.parent
	rg, err := rc.End()
	g = &Graph{g: rg, scope: mine, generators: c.generators, draws: slices.DeleteFunc(slices.Clone(c.generators), (*captured).idle)}
	if err != nil {
		c.takeBack()
		g.drop()
		return nil, rt.Also(err, c.letGo())
	}
	for _, u := range c.uses {
		g.uses = append(g.uses, u.use)
	}
	return g, nil
}

// end ends the session's part in the capture. It may be called twice.
func (c *capture) end(s *session) {
	if s.capture == c {
		s.capture, s.tap = nil, c.inner
	}
}

// Before brings the call's stream into the capture. A capture is a tap, in front of the session's own.
func (c *capture) Before(f *Frame) bool {
	switch {
	case c.x.m.stream.Device() == f.x.m.stream.Device():
		c.reach(f)
		if f.op == nil {
			c.notes.begin(f)
		}
	case f.row.flags&flagForeign == 0:
		c.outside(f.fail, f.x.m.stream)
	}
	return c.inner != nil && c.inner.Before(f)
}

// After passes the call on to the session's own tap.
func (c *capture) After(f *Frame) {
	if f.note != nil {
		c.notes.end(f)
	}
	if c.inner != nil {
		c.inner.After(f)
	}
}

// takeBack undoes what a failed capture did besides its work, none of which ran.
func (c *capture) takeBack() {
	uncount(c.counted)
	undo(c.undo)
}

// letGo releases the references of a failed capture.
func (c *capture) letGo() (err error) {
	for _, u := range c.uses {
		if u.held {
			err = errors.Join(err, u.st.release())
		}
	}
	return err
}

// recording returns the capture under way on x's device, or nil.
func (x *Exec) recording() *capture {
	if c := x.s.capture; c != nil && c.x.m.stream.Device() == x.m.stream.Device() {
		return c
	}
	return nil
}

// rt returns the capture in the form that streams use, or nil.
func (c *capture) rt() *rt.Capture {
	if c == nil {
		return nil
	}
	return c.rc
}

// reach makes the operation's stream part of the capture if an operand depends on captured work. It runs before outputs are allocated,
// since their memory must be the graph's too. Work that depends on no captured work would run now, and is refused. So is all that the
// captured function does on the Exec outside, which is a mistake even where the graph could have it, but not the derivatives of calls that
// were made there before.
func (c *capture) reach(f *frame) {
	st := f.x.m.stream
	if c.rc.Records(st) || f.row.flags&flagForeign != 0 {
		return
	}
	f.check(st.Device().Lost()) // which ends the capture
	from := c.source(f)
	if from == nil || f.x.m.manual || st == c.outer && f.x.s.run == nil {
		c.outside(f.fail, st)
	}
	f.check(c.rc.Join(st, from))
}

// outside makes the capture, and by fail the call, fail with the error of a call whose work is on st.
func (c *capture) outside(fail func(kind fault.Kind, format string, args ...any), st *rt.Stream) {
	err := Try(func() {
		if st.Device() != c.x.m.stream.Device() {
			fail(fault.Capture, "the operation is on %s, which is not part of the graph that is captured, so that it would run now; do it "+
				"before or after the capture", st.Device())
		}
		fail(fault.Capture, "the operation is on stream %d, which is not part of the graph that is captured, so that it would run now; "+
			"use the Exec that the captured function is given", st.ID())
	})
	if c.refused == nil {
		c.refused = err
	}
	panic(err)
}

// source returns a stream with recorded work that the operation must come after, or nil.
func (c *capture) source(f *frame) *rt.Stream {
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.many, f.dst[:]} {
		for _, t := range ts {
			if t == nil {
				continue
			}
			if i, ok := c.index[t.st]; ok && c.uses[i].writer.by != nil {
				return c.uses[i].writer.by
			}
		}
	}
	for _, t := range f.dst {
		if t == nil {
			continue
		}
		if i, ok := c.index[t.st]; ok && len(c.uses[i].readers) > 0 {
			return c.uses[i].readers[0].by
		}
	}
	return nil
}

// order makes the operation come after the recorded ones that it depends on, and notes its accesses.
func (c *capture) order(f *frame) {
	if c.linear {
		return
	}
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil {
			c.reads(f, t)
		}
	}
	for _, t := range f.many {
		c.reads(f, t)
	}
	for i := 0; i < f.outs; i++ {
		c.writes(f, f.out[i], f.to(i) == nil)
	}
}

func (c *capture) reads(f *frame, t *Tensor) {
	u, st := c.touch(t, false), f.x.m.stream
	c.after(f, u.writer)
	for i := range u.readers {
		if u.readers[i].by == st {
			u.readers[i].seq = f.seq
			return
		}
	}
	u.readers = append(u.readers, access{st, f.seq})
	c.record(f, t)
}

// writes notes a write; fresh says that the operation under way made the storage.
func (c *capture) writes(f *frame, t *Tensor, fresh bool) {
	if c.linear {
		return
	}
	u := c.touch(t, fresh)
	c.after(f, u.writer)
	for _, r := range u.readers {
		c.after(f, r)
	}
	c.wrote(t, f.x.m.stream, f.seq, fresh)
	c.record(f, t)
}

func (c *capture) wrote(t *Tensor, st *rt.Stream, seq uint64, fresh bool) {
	if c.linear {
		return
	}
	u := c.touch(t, fresh)
	u.use.writes, u.writer, u.readers = true, access{st, seq}, u.readers[:0]
}

// after makes the operation come after a.
func (c *capture) after(f *frame, a access) {
	if a.by != nil && !f.x.m.manual {
		f.check(c.rc.WaitFor(f.x.m.stream, a.by, a.seq))
	}
}

// record tells the allocator that a stream other than the block's own uses the graph's own memory. Memory that the graph holds is not
// freed.
func (c *capture) record(f *frame, t *Tensor) {
	s, st := t.st, f.x.m.stream
	if s.block != nil && s.block.Stream() != alloc.Stream(st.Handle()) && !c.touch(t, false).held {
		f.check(s.dev.Memory().RecordStream(s.block, alloc.Stream(st.Handle())))
	}
}

// touch returns the record of t's storage; fresh says that the operation under way made it.
func (c *capture) touch(t *Tensor, fresh bool) *capturedUse {
	s := t.st
	i, ok := c.index[s]
	if !ok {
		i = len(c.uses)
		c.index[s] = i
		c.uses = append(c.uses, capturedUse{use: use{st: s, dt: t.dt, form: t.form}})
		lent := s.lent()
		if lent {
			s.expose()
		}
		if lent || s.block != nil && s.dev.PoolOf(s.block) != c.pool && !(fresh && c.async) {
			s.retain()
			c.uses[i].held = true
		}
	}
	return &c.uses[i]
}

// refuse fails a call that cannot be recorded.
func (c *capture) refuse(what string) error {
	if c == nil {
		return nil
	}
	e := fault.New(fault.Capture, "%s cannot be captured: it needs the device to have run; do it before or after the capture", what)
	e.File, e.Line = caller()
	if c.refused == nil {
		r := *e // with the name of the call, which e gets where it is returned
		if doing := c.x.s.doing; len(doing) > 0 {
			r.Op = doing[0]
		}
		locate(&r)
		c.refused = &r
	}
	return e
}

// Spoil makes the capture under way in x's session, if there is one, fail with err, even if its function ignores err. It returns err.
func Spoil(x *Exec, err error) error {
	if err == nil || x == nil || x.s == nil {
		return err
	}
	_ = Try(func() {
		Enter(x, "Capture")
		defer Leave(x)
		x.spoil(err)
	})
	return err
}

// spoil is Spoil within the session.
func (x *Exec) spoil(err error) error {
	if err == nil || x.s.torn() {
		return err
	}
	if c := x.s.capture; c != nil && c.refused == nil {
		c.refused = err
	}
	return err
}

// Replay queues one run of the graph on x's stream, after all earlier work on the memory that it reads and writes. Only device tensors
// change; host code of the captured function does not run.
func (x *Exec) Replay(g *Graph) error {
	if err := g.begin(); err != nil {
		return err
	}
	defer g.mu.RUnlock()
	if err := x.s.open(); err != nil {
		return err
	}
	if err := g.on(x.m.stream.Device()); err != nil {
		return err
	}
	if err := x.s.capture.refuse("Replay"); err != nil {
		return err
	}
	if err := x.s.apart("a graph cannot be replayed"); err != nil {
		return err
	}
	if err := x.s.force("Replay"); err != nil {
		return err
	}
	if len(g.draws) == 0 {
		return g.run(x)
	}
	generatorMu.Lock()
	defer generatorMu.Unlock()
	err := Try(func() {
		for _, r := range g.draws {
			r.refill(x)
		}
	})
	if err == nil {
		err = x.s.force("") // a tap may have deferred the fillings
	}
	if err == nil {
		err = g.run(x)
	}
	if err != nil {
		for _, r := range slices.Backward(g.draws) {
			r.drawn.takeBack()
			r.state.known = false
		}
	}
	return err
}

// opReplay is the name of replays in the launch ring.
var opReplay = rt.RegisterOp("Replay")

// run queues one run on x's stream.
func (g *Graph) run(x *Exec) error {
	st := x.m.stream
	seq, err := st.Begin(opReplay, nil)
	if err != nil {
		return err
	}
	defer st.Issued(seq)
	for _, u := range g.uses {
		if u.st.deferral() != 0 {
			if err := x.s.barred(&Tensor{st: u.st, dt: dtype.Uint8, form: x.s.made.form([]int{u.st.bytes}, nil)}, u.writes); err != nil {
				return err
			}
		}
	}
	for _, u := range g.uses {
		if u.held || !u.writes { // otherwise it is the graph's own
			if cause := u.st.spoilt(); cause != nil {
				return rt.SpoiltError(cause, "the tensor "+describe(&Tensor{dt: u.dt, form: u.form})+", which the graph uses,")
			}
		}
		switch {
		case x.m.manual:
			err = u.st.recordStream(st)
		case u.writes:
			err = u.st.beforeWrite(st)
		default:
			err = u.st.beforeRead(st)
		}
		if err != nil {
			return err
		}
	}
	if err := g.g.Launch(st, seq, !x.m.manual); err != nil || x.m.manual {
		return err
	}
	for _, u := range g.uses {
		if u.writes {
			u.st.didWrite(st, seq)
		} else {
			u.st.didRead(st, seq)
		}
	}
	return nil
}

// begin prevents the graph from being closed until g.mu.RUnlock. The error says why it cannot be used.
func (g *Graph) begin() error {
	if g == nil || g.g == nil {
		return fault.New(fault.Invalid, "the graph is nil or a zero value; use one that Capture returned")
	}
	g.mu.RLock()
	if g.closed {
		g.mu.RUnlock()
		return fault.New(fault.Closed, "the graph was closed; capture it again")
	}
	return nil
}

// on returns an error unless the graph is dev's.
func (g *Graph) on(dev *rt.Device) error {
	if g.g.Device() == dev {
		return nil
	}
	here, there := rt.Apart(dev, g.g.Device())
	return fault.New(fault.Invalid, "the graph was captured on %s, and this Exec works on %s", there, here)
}

// Nodes returns how many operations the graph has, 0 for none.
func (g *Graph) Nodes() int {
	if g == nil || g.g == nil {
		return 0
	}
	return g.g.Nodes()
}

// Pool returns the id of the pool of the graph's memory, with which other captures can share it; zero if g is not a graph that Capture
// returned.
func (g *Graph) Pool() [2]uint64 {
	if g == nil || g.g == nil {
		return [2]uint64{}
	}
	return g.g.Pool()
}

// Dump writes the graph to a file in the DOT language, with the driver's details of each node. It needs CaptureOpt.Debug.
func (g *Graph) Dump(path string) error {
	if err := g.begin(); err != nil {
		return err
	}
	defer g.mu.RUnlock()
	return g.g.Dump(path)
}

// Capturing reports whether the work of x's stream is being recorded as a graph.
func (x *Exec) Capturing() bool { return x.m.stream.Capturing() }

// Close releases the graph, its memory and the tensors that were made during its capture. It waits while a run is being queued. Closing
// twice does nothing.
func (g *Graph) Close() error {
	if g == nil || g.g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	g.drop()
	for _, u := range g.uses {
		if u.held {
			// A free can fail only on a lost device, which the next operation reports.
			_ = u.st.release()
		}
	}
	g.uses = nil
	return g.g.Close()
}

// drop closes the graph's tensors.
func (g *Graph) drop() {
	for _, r := range g.generators {
		r.state.leave()
	}
	g.generators, g.draws = nil, nil
	for _, t := range g.scope.list {
		if t.scope == g.scope {
			t.close()
		}
	}
	g.scope.list = nil
}
