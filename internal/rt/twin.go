package rt

import (
	"errors"
	"slices"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/stack"
	"tenon.dev/profile"
)

// work is a kernel, copy or fill that a capture recorded, with the changes since.
type work struct {
	// A kernel has a grid.
	fn          driver.Func
	grid, block [3]uint32
	shared      uint32
	waits       bool
	value       byte // of a fill
	args        []byte
	origin      any
	dst, src    driver.Ptr
	n           uint64
	// of is the operation that it belongs to: a *ProfiledOp if a profiler recorded that, else what the capture noted, or nil.
	of any
}

// works is a list of work, in pieces that are never copied: a capture is faster that way.
type works struct {
	pieces [][]work
	n      int
}

const worksAtOnce = 32

func (l *works) at(i int) *work { return &l.pieces[i/worksAtOnce][i%worksAtOnce] }

// add makes the list longer and returns its end.
func (l *works) add() *work {
	if l.n%worksAtOnce == 0 {
		l.pieces = append(l.pieces, make([]work, worksAtOnce))
	}
	l.n++
	return l.at(l.n - 1)
}

// Trail is a call stack, from Here.
type Trail = *stack.Stack

// Here returns the stack of the calling function's caller. It takes a fraction of a microsecond, and allocates only for a new stack.
func Here() Trail { return trails.Capture() }

// trails has the stacks from Here.
var trails stack.Table

// Noted is an operation that a capture recorded and no profiler saw, for profiles of the graph's replays.
type Noted interface {
	// About describes the operation in op, except for where it was called, and returns the stack of the call and the operation whose
	// derivative it is, or nil.
	About(op *profile.Op) (at Trail, forward Noted)
}

// Note makes n the operation of the work that s records from now on; nil ends that. Nobody else may use s meanwhile.
func (s *Stream) Note(n Noted) { s.noted = n }

// become replaces w's work by a copy of c's.
func (w *work) become(c *Change) {
	w.dst, w.src, w.n, w.value = c.Dst, c.Src, c.N, c.Value
	if l := c.Launch; l != nil {
		w.fn, w.grid, w.block, w.shared, w.waits, w.origin = l.Func, l.Grid, l.Block, l.Shared, l.Waits, l.Origin
		w.args = append(w.args[:0], l.Args...)
	}
}

// isKernel reports whether w is a kernel.
func (w *work) isKernel() bool { return w.grid != [3]uint32{} }

// change returns the change that makes w's work, with its launch in l.
func (w *work) change(l *driver.Launch) Change {
	c := Change{Dst: w.dst, Src: w.src, N: w.n, Value: w.value}
	if w.isKernel() {
		*l = driver.Launch{Func: w.fn, Grid: w.grid, Block: w.block, Shared: w.shared, Waits: w.waits, Origin: w.origin, Args: w.args}
		c.Launch = l
	}
	return c
}

// name returns the work's name in a profile.
func (w *work) name(d *Device) string {
	switch {
	case w.isKernel():
		return d.KernelName(w.fn)
	case w.src != 0:
		return "copy"
	}
	return "fill"
}

// keep adds w to the recorded work, for a graph whose capture s belongs to. The caller holds c.mu.
func (c *Capture) keep(s *Stream, w *Change) {
	k := c.work.add()
	if s.noted != nil {
		k.of = s.noted
	}
	if w.Launch != nil {
		n := (len(w.Launch.Args) + 15) &^ 15 // aligned like memory of its own
		if len(c.args) < n {
			c.args = make([]byte, max(4096, n))
		}
		k.args, c.args = c.args[:0:n], c.args[n:]
	}
	k.become(w)
}

// recorded returns how much work c has recorded.
func (c *Capture) recorded() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.work.n
}

// own notes that the work with index from and later belongs to o. Tracked work belongs to other operations in each run, see LaunchFor.
func (c *Capture) own(from int, o *ProfiledOp) {
	if c.spec.Track {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := from; i < c.work.n; i++ {
		c.work.at(i).of = o
	}
}

// twin is a graph that a profiler launches in place of another: the same work, one piece after the other in the order of recording, with an
// event before the first and one after each. The mu of the graph's pool guards it.
type twin struct {
	of *Profiler
	// err is why no twin could be made.
	err         error
	graph       driver.Graph
	exec        driver.GraphExec
	work, marks []driver.Node
	names       []string
	// stale has the indexes of the work that was changed since the latest run.
	stale []int
	// entries are the operations of a replay; index has, for each piece of work, its entry or -1.
	entries []entry
	index   []int
}

// entry is an operation that each replay of a graph repeats.
type entry struct {
	op profile.Op
	// forward is the entry whose derivative it is, or -1.
	forward int
}

// mostMarks is the most events in twins that may wait for their times to be read.
const mostMarks = 1 << 16

// changed marks the changed work as stale.
func (t *twin) changed(changes []Change) {
	if t == nil || t.err != nil {
		return
	}
	for i := range changes {
		if n := changes[i].Node; !slices.Contains(t.stale, n) {
			t.stale = append(t.stale, n)
		}
	}
}

// destroy releases the driver's graph of t, which may be nil.
func (t *twin) destroy(d *Device) error {
	if t == nil || t.graph == 0 {
		return nil
	}
	return (&backend{d}).freeing(func(th driver.Thread) error {
		var err error
		if t.exec != 0 {
			err = d.dev.GraphExecDestroy(th, t.exec)
		}
		return errors.Join(err, d.dev.GraphDestroy(th, t.graph))
	})
}

// profiled is launch with profiler p. The caller has the turn of s and holds g.shared.mu.
func (g *Graph) profiled(p *Profiler, s *Stream, owners func() []*ProfiledOp) error {
	o := p.Begin("Replay", profile.KindGraph, profile.Forward, s)
	defer o.End()
	o.Describe(false, func(op *profile.Op) {
		for i := range g.work.n {
			if w := g.work.at(i); w.isKernel() {
				op.Nodes = append(op.Nodes, w.name(g.dev))
			}
		}
	})
	if g.nodes == 0 {
		return o.whole(g, s)
	}
	marks, err := g.prepareTwin(p)
	if c, _ := codeOf(err); c.Sticky() {
		return err
	} else if err != nil {
		o.without(err)
		return o.whole(g, s)
	}
	var ops []*ProfiledOp
	if owners != nil {
		ops = owners()
	} else {
		ops = p.replayed(o, g.twin)
	}
	return o.replay(g, s, marks, ops)
}

// whole queues a run of g that the profiler times as one piece of work.
func (o *ProfiledOp) whole(g *Graph, s *Stream) error {
	return o.Work(s, "graph", func() error { return g.dev.dev.GraphLaunch(g.exec, s.handle) })
}

// without notes why a replay has no times of its kernels.
func (o *ProfiledOp) without(err error) {
	o.Describe(false, func(op *profile.Op) { op.Note = "the replay has one time for all of its kernels: " + err.Error() })
}

// replay queues a run of g's twin. ops has the operation of each piece of its work, nil for o itself. The last two of marks are recorded
// before and after the twin.
func (o *ProfiledOp) replay(g *Graph, s *Stream, marks []driver.Event, ops []*ProfiledOp) error {
	d, p, n := s.dev, o.p, len(marks)-2
	w := timedWork{of: o, stream: s.id, a: marks[n], b: marks[n+1], marks: marks[:n], begin: time.Since(p.began)}
	err := d.dev.EventRecord(w.a, s.handle)
	if err == nil {
		err = d.dev.GraphLaunch(g.twin.exec, s.handle)
	}
	if err != nil {
		d.releaseEvents(marks)
		if c, _ := codeOf(err); c.Sticky() || d.info.Inline { // nothing can run any more, or the twin ran in part
			return err
		}
		o.without(err)
		return o.whole(g, s)
	}
	marked := d.dev.EventRecord(w.b, s.handle)
	p.mu.Lock()
	defer p.mu.Unlock()
	if marked != nil || p.ended {
		p.giveBack(&w)
		if c, _ := codeOf(marked); c.Sticky() {
			return marked
		}
		return nil
	}
	w.kernel = len(o.op.Kernels)
	o.op.Kernels = append(o.op.Kernels, profile.Kernel{Name: "graph", Whole: true})
	w.parts = make([]part, len(ops))
	for i, of := range ops {
		if of.Index(p) < 0 {
			of = o
		}
		w.parts[i] = part{of, len(of.op.Kernels)}
		of.op.Kernels = append(of.op.Kernels, profile.Kernel{Name: g.twin.names[i]})
	}
	p.marks += n
	p.work = append(p.work, w)
	if len(p.work) >= mostPending || p.marks >= mostPending {
		p.read()
	}
	return nil
}

// prepareTwin makes the twin ready for a run and returns the run's events: those in the twin, then one before and one after it. The error
// says why the twin cannot run.
func (g *Graph) prepareTwin(p *Profiler) ([]driver.Event, error) {
	d, n := g.dev, g.work.n
	if t := g.twin; t != nil && t.of != p {
		g.twin = nil
		if err := t.destroy(d); err != nil {
			return nil, err
		}
	}
	switch t := g.twin; {
	case t != nil && t.err != nil:
		return nil, t.err
	case n != g.nodes:
		return nil, fault.New(fault.Unsupported, "%d of its %d nodes are not kernels, copies or fills of operations", g.nodes-n, g.nodes)
	case n >= mostMarks:
		return nil, fault.New(fault.Unsupported, "it has %d nodes; at most %d can have times of their own", n, mostMarks-1)
	case !p.room(n + 1):
		return nil,
			fault.New(fault.Unsupported, "too many replays wait for the device; at most %d kernels at a time can have times of their own",
				mostMarks)
	}
	marks, err := d.acquireEvents(n + 3)
	if err != nil {
		return nil, err
	}
	err = (&backend{d}).relaxed(func(th driver.Thread) error {
		if g.twin == nil {
			return g.makeTwin(th, p, marks)
		}
		return g.setTwin(th, marks)
	})
	if err != nil {
		d.releaseEvents(marks)
		return nil, err
	}
	return marks, nil
}

// makeTwin makes the twin, whose events are the first of marks.
func (g *Graph) makeTwin(th driver.Thread, p *Profiler, marks []driver.Event) error {
	d, n := g.dev, g.work.n
	t := &twin{of: p, work: make([]driver.Node, n), marks: make([]driver.Node, n+1), names: make([]string, n)}
	g.twin = t
	chain, launches := make([]driver.ChainWork, 2*n+1), make([]driver.Launch, n)
	chain[0].Event = marks[0]
	for i := range n {
		w := g.work.at(i)
		c := w.change(&launches[i])
		chain[2*i+1] = driver.ChainWork{Launch: c.Launch, Dst: c.Dst, Src: c.Src, N: c.N, Value: c.Value}
		chain[2*i+2].Event = marks[i+1]
		t.names[i] = w.name(d)
	}
	made, nodes, err := d.dev.GraphChain(th, chain)
	if err == nil {
		t.graph = made
		t.exec, err = d.dev.GraphInstantiate(th, made)
	}
	if err == nil && !p.keep(g) {
		err = fault.New(fault.Invalid, "the profiler was stopped")
	}
	if err != nil {
		err = errors.Join(err, t.destroy(d))
		*t = twin{of: p, err: err}
		return err
	}
	for i, node := range nodes {
		if i%2 == 0 {
			t.marks[i/2] = node
		} else {
			t.work[i/2] = node
		}
	}
	t.describe(&g.work)
	return nil
}

// setTwin gives the twin new events and makes the changes of the graph's work in it.
func (g *Graph) setTwin(th driver.Thread, marks []driver.Event) error {
	d, t := g.dev.dev, g.twin
	var l driver.Launch
	for _, i := range t.stale {
		c := g.work.at(i).change(&l)
		if err := changeOne(d, th, t.exec, t.work[i], &c); err != nil {
			return err
		}
		t.names[i] = g.work.at(i).name(g.dev)
	}
	t.stale = t.stale[:0]
	for i, n := range t.marks {
		if err := d.GraphSetEvent(th, t.exec, n, marks[i]); err != nil {
			return err
		}
	}
	return nil
}

// dropTwin destroys the twin that g has for p.
func (g *Graph) dropTwin(p *Profiler) error {
	g.shared.mu.Lock()
	defer g.shared.mu.Unlock()
	t := g.twin
	if t == nil || t.of != p {
		return nil
	}
	g.twin = nil
	return t.destroy(g.dev)
}

// describe notes the operations of the work, in the order of their first work.
func (t *twin) describe(all *works) {
	at := map[any]int{} // by *ProfiledOp or Noted
	var ops []any
	for i := range all.n {
		k := -1
		if o := all.at(i).of; o != nil {
			var ok bool
			if k, ok = at[o]; !ok {
				k = len(ops)
				at[o] = k
				ops = append(ops, o)
			}
		}
		t.index = append(t.index, k)
	}
	for _, o := range ops {
		t.entries = append(t.entries, t.of.entryOf(o, at))
	}
}

// entryOf returns the entry of an operation. at has the indexes of all entries by their operations.
func (p *Profiler) entryOf(of any, at map[any]int) entry {
	o, ok := of.(*ProfiledOp)
	if !ok {
		return p.entryOfNote(of.(Noted), at)
	}
	forward := -1
	if k, ok := at[o.forward]; ok && o.forward != nil {
		forward = k
	}
	return entry{p.copied(o, forward < 0), forward}
}

// entryOfNote returns the entry of an operation that a capture noted.
func (p *Profiler) entryOfNote(n Noted, at map[any]int) entry {
	e := entry{op: profile.Op{Parent: -1, Forward: -1, Fused: -1}, forward: -1}
	trail, forward := n.About(&e.op)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.came(&e.op, origin.Trail(trail.Calls()).Way())
	if forward == nil {
		return e
	}
	var from profile.Op
	trail, _ = forward.About(&from)
	p.came(&from, origin.Trail(trail.Calls()).Way())
	e.op.Module = from.Module
	if k, ok := at[forward]; ok {
		e.forward = k
	} else {
		e.op.Calls = from.Calls
	}
	return e
}

// copied returns o, which another profiler may have recorded, as an operation of a replay in p. If toForward, it has the calls of its
// forward operation.
func (p *Profiler) copied(o *ProfiledOp, toForward bool) profile.Op {
	op, frames := o.told()
	if toForward && o.forward != nil {
		forward, of := o.forward.told()
		op.Calls, frames = forward.Calls, of
	}
	var calls []int
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range op.Calls {
		calls = append(calls, p.frame(frames[c]))
	}
	op.Calls, op.Kernels, op.Nodes, op.Captured, op.Deferred, op.Forward, op.Fused = calls, nil, nil, false, false, -1, -1
	return op
}

// told returns o's record and the frames that it refers to.
func (o *ProfiledOp) told() (profile.Op, []profile.Frame) {
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	return o.op, o.p.list
}

// replayed adds the operations of a replay to p and returns them by piece of work.
func (p *Profiler) replayed(replay *ProfiledOp, t *twin) []*ProfiledOp {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := len(p.ops)
	made := make([]*ProfiledOp, len(t.entries))
	for i := range t.entries {
		e := &t.entries[i]
		o := &ProfiledOp{p: p, index: first + i, op: e.op}
		o.op.Parent, o.op.Goroutine, o.op.Stream = replay.index, replay.op.Goroutine, replay.op.Stream
		o.op.Begin, o.op.End = replay.op.Begin, replay.op.Begin
		if e.forward >= 0 {
			o.op.Forward = first + e.forward
		}
		made[i] = o
	}
	if !p.ended {
		p.ops = append(p.ops, made...)
	}
	ops := make([]*ProfiledOp, len(t.index))
	for i, k := range t.index {
		if k >= 0 {
			ops[i] = made[k]
		}
	}
	return ops
}

// room reports whether n more events may wait for their times, after reading those that are known if necessary.
func (p *Profiler) room(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.marks+n > mostMarks {
		p.read()
	}
	return p.marks+n <= mostMarks
}

// keep notes that g has a twin for p, and reports whether p is still running.
func (p *Profiler) keep(g *Graph) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.twins = append(p.twins, g)
	}
	return !p.ended
}

// forget notes that g has no twin for p any more.
func (p *Profiler) forget(g *Graph) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.twins = slices.DeleteFunc(p.twins, func(o *Graph) bool { return o == g })
}

// dropTwins destroys all twins for p.
func (p *Profiler) dropTwins() (err error) {
	p.mu.Lock()
	graphs := p.twins
	p.twins = nil
	p.mu.Unlock()
	for _, g := range graphs {
		err = errors.Join(err, g.dropTwin(p))
	}
	return wrap(err, "what the profiler made of graphs could not be released")
}

// ReplaysOn makes o an operation of a replay on s: it drops the kernels that a capture noted.
func (o *ProfiledOp) ReplaysOn(s *Stream) {
	o.Describe(false, func(op *profile.Op) {
		op.Captured, op.Stream = false, s.id
		op.Kernels = slices.DeleteFunc(op.Kernels, func(k profile.Kernel) bool { return !k.Timed })
	})
}

// FusedInto notes that the kernel of f does the work of o, which was deferred.
func (o *ProfiledOp) FusedInto(f *ProfiledOp) {
	if f.Index(o.p) < 0 {
		return
	}
	o.Describe(false, func(op *profile.Op) { op.Deferred, op.Fused = true, f.index })
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	o.fused = f
}

// Fused returns the entry whose kernel does the work of o, or nil.
func (o *ProfiledOp) Fused() *ProfiledOp {
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	return o.fused
}

// acquireEvents takes n events with timing.
func (d *Device) acquireEvents(n int) ([]driver.Event, error) {
	all := make([]driver.Event, 0, n)
	for range n {
		e, err := d.AcquireEvent(true)
		if err != nil {
			d.releaseEvents(all)
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// releaseEvents gives events with timing back.
func (d *Device) releaseEvents(all []driver.Event) {
	for _, e := range all {
		d.ReleaseEvent(e, true)
	}
}
