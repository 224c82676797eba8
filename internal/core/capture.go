package core

import (
	"errors"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/rt"
)

// capture is the session's state while it records a graph.
type capture struct {
	x       *Exec
	pool    alloc.PoolID
	async   bool             // the driver's pool gives the memory, and blocks name no pool
	uses    map[*storage]use // what recorded work touches
	streams map[*rt.Stream]bool
	// generators are those that recorded work draws from.
	generators []*captured
	// refused is the first call that could not be recorded, in case f passes over its error.
	refused error
	// counted are the storages whose versions recorded work counted, as often as it did; undo is what a capture that fails takes back besides.
	counted []*storage
	undo    []func()
}

// Graph is captured work: Replay runs it again on the same memory. Tensors made while it was captured belong to it and are closed with it, unless
// Keep took them out; those it read live at least as long as it does.
type Graph struct {
	g     *rt.Graph
	uses  []use
	scope *scope
	// generators are those whose states the graph holds; draws are those among them that it draws from.
	generators, draws []*captured
	closed            bool
}

// use is how the graph touches a storage.
type use struct {
	st     *storage
	writes bool
	// held says that the graph keeps a reference, since the memory is not its own: the storage may be closed while the capture goes on.
	held bool
}

// CaptureOpt are the options of Capture.
type CaptureOpt struct {
	// Share lets the graph use the memory of another one: running one may overwrite what the other made, and the graph that was captured first should
	// run first. Runs of graphs that share memory wait for each other.
	Share *Graph
	// Pool is the id of the private pool for the graph's memory, from NewPoolID: graphs of one pool share memory as by Share. Zero is a new pool.
	Pool alloc.PoolID
	// Stream is where f's work is recorded: not the default stream. Nil is one that nobody else has.
	Stream *rt.Stream
	// Mode says which calls that could disturb the capture end it: of its own thread, of all, or none.
	Mode rt.CaptureMode
	// Debug keeps the graph as it was recorded, for Dump.
	Debug bool
}

// spec returns how the capture is to be made.
func (opt *CaptureOpt) spec(dev *rt.Device) (spec rt.CaptureSpec, err error) {
	spec = rt.CaptureSpec{Pool: opt.Pool, Mode: opt.Mode, Source: opt.Debug}
	if opt.Share != nil {
		if err := opt.Share.usable(); err != nil {
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
		return spec, fault.New(fault.Invalid, "the stream to capture is of %s, and this Exec works on %s", opt.Stream.Device().Info().Name, dev.Info().Name)
	}
	return spec, nil
}

// Capture records the work of f as a graph and returns it; nothing runs until Replay. Operands must be on x's device. What waits for the device or
// reads or brings host data (Item, Read, From, Synchronize) is an error that names the call's line: in f, and of Capture, also if f passes over it. The
// device stays usable.
func (x *Exec) Capture(f func(x *Exec), opt CaptureOpt) (g *Graph, err error) {
	s := x.s
	if s.capture != nil {
		return nil, fault.New(fault.Capture, "a graph is being captured already; end that capture first")
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
	rc, err := dev.BeginCapture(st, spec)
	if err != nil {
		return nil, err
	}
	y := x.On(st)
	c := &capture{x: y, pool: rc.Pool(), async: dev.Memory().Settings().Backend == alloc.BackendAsync, uses: map[*storage]use{}, streams: map[*rt.Stream]bool{}}
	outer := s.scope
	s.push()
	mine := s.scope
	s.capture = c
	returned := false
	defer func() {
		s.capture = nil
		if !returned { // a panic that is no error of ours goes on, but leaves the device usable
			c.takeBack()
			s.popTo(outer)
			_ = c.leaveGenerators(true)
			_ = errors.Join(c.letGo(), rc.Abort())
		}
	}()
	err = Try(func() {
		c.generator(y.Generator())
		f(y)
	})
	returned = true
	if err == nil {
		err = c.refused
	}
	if err == nil {
		err = c.join(st)
	}
	if err == nil {
		err = Try(c.advance)
	}
	err = errors.Join(err, c.leaveGenerators(err != nil))
	if err != nil {
		c.takeBack()
		s.popTo(outer)
		return nil, errors.Join(err, c.letGo(), rc.Abort())
	}
	s.capture = nil
	s.scope = mine.parent
	rg, err := rc.End()
	g = &Graph{g: rg, scope: mine, generators: c.generators, draws: slices.DeleteFunc(slices.Clone(c.generators), (*captured).idle)}
	if err != nil {
		c.takeBack()
		g.drop()
		return nil, errors.Join(err, c.letGo())
	}
	for _, u := range c.uses {
		g.uses = append(g.uses, u)
	}
	return g, nil
}

// takeBack undoes what a capture that failed has done besides its work, none of which ran.
func (c *capture) takeBack() {
	uncount(c.counted)
	undo(c.undo)
}

// letGo gives up the references of a capture that failed.
func (c *capture) letGo() (err error) {
	for _, u := range c.uses {
		if u.held {
			err = errors.Join(err, u.st.release())
		}
	}
	return err
}

// join makes the capturing stream wait for every stream that the capture spread to.
func (c *capture) join(st *rt.Stream) error {
	for o := range c.streams {
		if o != st {
			if err := st.WaitAll(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// reach makes the operation's stream part of the capture where an operand depends on captured work, before outputs are allocated: their memory must be the
// graph's too.
func (c *capture) reach(f *frame) {
	st := f.x.m.stream
	if c.streams[st] || st == c.x.m.stream || f.x.m.manual || f.row.flags&flagForeign != 0 {
		return
	}
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.many} {
		for _, t := range ts {
			if t != nil && c.uses[t.st].writes {
				f.check(t.st.after(&t.st.writer, st))
			}
		}
	}
}

// note keeps what an operation touches.
func (c *capture) note(f *frame) {
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.many} {
		for _, t := range ts {
			if t != nil {
				c.touch(t.st, false, false)
			}
		}
	}
	for i := 0; i < f.outs; i++ {
		c.touch(f.out[i].st, true, f.to(i) == nil)
	}
	c.streams[f.x.m.stream] = true
}

// touch notes an access; fresh says that the operation under way made the storage.
func (c *capture) touch(st *storage, writes, fresh bool) {
	u, ok := c.uses[st]
	if !ok && st.block != nil && st.block.Pool() != c.pool && !(fresh && c.async) {
		st.retain()
		u.held = true
	}
	u.st, u.writes = st, u.writes || writes
	c.uses[st] = u
}

// refuse fails a call that cannot be recorded.
func (c *capture) refuse(what string) error {
	if c == nil {
		return nil
	}
	e := fault.New(fault.Capture, "%s cannot be captured: it needs the device to have run; do it before or after the capture", what)
	e.File, e.Line = caller()
	if c.refused == nil {
		c.refused = e
	}
	return e
}

// Replay queues one run of the graph on x's stream, after all earlier work on what it reads and writes. Device tensors only change; host code of
// the captured function does not run.
func (x *Exec) Replay(g *Graph) error {
	if err := g.usable(); err != nil {
		return err
	}
	if err := x.s.capture.refuse("Replay"); err != nil {
		return err
	}
	if len(g.draws) == 0 {
		return x.replay(g)
	}
	generatorMu.Lock()
	defer generatorMu.Unlock()
	err := Try(func() {
		for _, r := range g.draws {
			r.refill(x)
		}
	})
	if err == nil {
		err = x.replay(g)
	}
	if err != nil {
		for _, r := range slices.Backward(g.draws) {
			r.drawn.takeBack()
			r.state.known = false
		}
	}
	return err
}

// replay queues a run of g, whose generators' numbers are on the device.
func (x *Exec) replay(g *Graph) error {
	st := x.m.stream
	seq := st.Next()
	for _, u := range g.uses {
		var err error
		switch {
		case x.m.manual:
			err = u.st.recordStream(st)
		case u.writes:
			err = u.st.write(st, seq)
		default:
			err = u.st.read(st, seq)
		}
		if err != nil {
			return err
		}
	}
	return g.g.Launch(st, seq, !x.m.manual)
}

// usable returns why the graph cannot be used, or nil.
func (g *Graph) usable() error {
	switch {
	case g == nil || g.g == nil:
		return fault.New(fault.Invalid, "the graph is nil or a zero value; use one that Capture returned")
	case g.closed:
		return fault.New(fault.Closed, "the graph was closed; capture it again")
	}
	return nil
}

// Nodes returns how many operations the graph has, 0 for none.
func (g *Graph) Nodes() int {
	if g == nil || g.g == nil {
		return 0
	}
	return g.g.Nodes()
}

// Pool returns the id of the pool of the graph's memory, by which other captures can share it; zero if g is not a graph that Capture returned.
func (g *Graph) Pool() [2]uint64 {
	if g == nil || g.g == nil {
		return [2]uint64{}
	}
	return g.g.Pool()
}

// Dump writes the graph to a file in the DOT language, with what the driver knows of each node. It needs CaptureOpt.Debug.
func (g *Graph) Dump(path string) error {
	if err := g.usable(); err != nil {
		return err
	}
	return g.g.Dump(path)
}

// Capturing reports whether the work of x's stream is being recorded as a graph.
func (x *Exec) Capturing() bool { return x.m.stream.Capturing() }

// Close releases the graph, its memory and the tensors that were made while it was captured. Closing twice does nothing.
func (g *Graph) Close() error {
	if g == nil || g.g == nil || g.closed {
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
			t.Close()
		}
	}
	g.scope.list = nil
}
