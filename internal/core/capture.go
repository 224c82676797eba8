package core

import (
	"errors"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/rt"
)

// capture is the session's state while it records a graph.
type capture struct {
	x       *Exec
	uses    map[*storage]bool // the storages that recorded work touches; true if it writes them
	streams map[*rt.Stream]bool
	// generators are those that recorded work draws from.
	generators []*captured
	// refused is the first call that could not be recorded, in case f passes over its error.
	refused error
}

// Graph is captured work: Replay runs it again on the same memory. Tensors made while it was captured belong to it and are closed with it;
// those it read live at least as long as it does.
type Graph struct {
	g     *rt.Graph
	uses  []use
	scope *scope
	// generators are written to the device before every run.
	generators []*captured
	closed     bool
}

// use is a storage that the graph touches; held says that the graph keeps a reference to it.
type use struct {
	st     *storage
	writes bool
	held   bool
}

// CaptureOpt are the options of Capture.
type CaptureOpt struct {
	// Share lets the graph use the memory of another one: both may then not run at the same time, and running one may overwrite what the other made.
	Share *Graph
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
	st, err := dev.Stream()
	if err != nil {
		return nil, err
	}
	var pool alloc.PoolID
	if opt.Share != nil {
		if err := opt.Share.usable(); err != nil {
			return nil, err
		}
		pool = opt.Share.g.Pool()
	}
	rc, err := dev.BeginCapture(st, pool)
	if err != nil {
		return nil, err
	}
	y := x.On(st)
	c := &capture{x: y, uses: map[*storage]bool{}, streams: map[*rt.Stream]bool{}}
	outer := s.scope
	s.push()
	mine := s.scope
	s.capture = c
	returned := false
	defer func() {
		s.capture = nil
		if !returned { // a panic that is no error of ours goes on, but leaves the device usable
			s.popTo(outer)
			_ = rc.Abort()
		}
	}()
	err = Try(func() { f(y) })
	returned = true
	if err == nil {
		err = c.refused
	}
	if err == nil {
		err = c.join(st)
	}
	if err != nil {
		s.popTo(outer)
		return nil, errors.Join(err, rc.Abort())
	}
	s.capture = nil
	s.scope = mine.parent
	rg, err := rc.End()
	g = &Graph{g: rg, scope: mine, generators: c.generators}
	if err != nil {
		g.drop()
		return nil, err
	}
	for storage, writes := range c.uses {
		u := use{st: storage, writes: writes}
		if storage.block != nil && storage.block.Pool() != rg.Pool() {
			storage.retain()
			u.held = true
		}
		g.uses = append(g.uses, u)
	}
	return g, nil
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

// note keeps what an operation touches.
func (c *capture) note(f *frame) {
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil {
			c.touch(t.st)
		}
	}
	for _, t := range f.many {
		c.touch(t.st)
	}
	for i := 0; i < f.outs; i++ {
		c.uses[f.out[i].st] = true
	}
	c.streams[f.x.m.stream] = true
}

// touch notes a read.
func (c *capture) touch(st *storage) {
	if _, ok := c.uses[st]; !ok {
		c.uses[st] = false
	}
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
	for _, r := range g.generators {
		if err := r.refill(x); err != nil {
			return err
		}
	}
	st := x.m.stream
	seq := st.Next()
	for _, u := range g.uses {
		var err error
		if u.writes {
			err = u.st.write(st, seq)
		} else {
			err = u.st.read(st, seq)
		}
		if err != nil {
			return err
		}
	}
	err := g.g.Launch(st)
	st.Issued(seq)
	return err
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
		r.state.Close()
	}
	g.generators = nil
	for _, t := range g.scope.list {
		if t.scope == g.scope {
			t.Close()
		}
	}
	g.scope.list = nil
}
