package rt

import (
	"fmt"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
)

// Change is other work in the place of one kernel, copy or fill of a graph whose capture had CaptureSpec.Track. It needs no new recording,
// and is for the runs that are queued after it: those before, under way or not, keep what they had. So a learning rate, a scale or the
// address of an input may be another one in every run. A change that is not made again stays.
//
// Who changes an address answers for what is there: that the run comes after the work that fills it, and that the memory lives until the
// run is done. The graph's own uses of memory, by which its runs are ordered, stay those of the recording.
type Change struct {
	// Node is the index of the work: what was recorded first has 0, and Capture.Tracked gives the next one. It stays what it was: a kernel
	// another kernel, a copy a copy, a fill a fill.
	Node int
	// Launch is the whole of what a kernel is launched with from now on: function, grid, block, shared memory, arguments and Origin. Its
	// stream means nothing. The arguments are copied, so it may be used again at once, by one call at a time. Nil is for a copy or a fill.
	Launch *driver.Launch
	// Where Launch is nil, N > 0 bytes are copied from Src to Dst or, where Src is 0, Dst is filled with Value.
	Dst, Src driver.Ptr
	N        uint64
	Value    byte
}

// tracked is the work that a capture has given indices to.
type tracked struct {
	nodes []driver.Node
	err   error // of the first that could not be found, for which the capture fails
}

// Launch queues a kernel on s, whose turn the caller has, and tracks it if s records a graph with CaptureSpec.Track.
func (s *Stream) Launch(l *driver.Launch) error {
	l.Stream = s.handle
	if s.divert != nil {
		return s.divert(Change{Launch: l})
	}
	if err := s.dev.dev.Launch(l); err != nil {
		return s.dev.Check(err, "the kernel could not be launched")
	}
	s.recorded(Change{Launch: l})
	return nil
}

// Copy queues a copy of n bytes on the device on s, as Launch does a kernel. A copy of no bytes is none, and has no index.
func (s *Stream) Copy(dst, src driver.Ptr, n uint64) error {
	if s.divert != nil && n > 0 {
		return s.divert(Change{Dst: dst, Src: src, N: n})
	}
	if err := s.dev.dev.CopyDtoD(dst, src, n, s.handle); err != nil {
		return s.dev.Check(err, "the copy could not be queued")
	}
	if n > 0 {
		s.recorded(Change{Dst: dst, Src: src, N: n})
	}
	return nil
}

// Fill queues a filling of n bytes with v on s, as Copy does a copy.
func (s *Stream) Fill(dst driver.Ptr, v byte, n uint64) error {
	if s.divert != nil && n > 0 {
		return s.divert(Change{Dst: dst, Value: v, N: n})
	}
	if err := s.dev.dev.Memset(dst, uint32(v), 1, n, s.handle); err != nil {
		return s.dev.Check(err, "memory could not be set")
	}
	if n > 0 {
		s.recorded(Change{Dst: dst, Value: v, N: n})
	}
	return nil
}

// Divert sends the kernels, copies and fills that are queued on s by Launch, Copy and Fill to f, which is to make changes of a graph of
// them; nil ends that. Nobody else may use s meanwhile. What f is given is used again when it returns.
func (s *Stream) Divert(f func(c Change) error) { s.divert = f }

// recorded keeps w, the latest work of s, if s is captured, and gives it an index, if the capture wants that. An error is kept for the end
// of the capture: the work itself was recorded, and who is told that it failed may record it twice.
func (s *Stream) recorded(w Change) {
	c := s.capture.Load()
	if c == nil {
		return
	}
	var n driver.Node
	var err error
	if c.spec.Track {
		n, err = s.dev.dev.CaptureNode(s.handle)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.work = append(c.work, work{})
	c.work[len(c.work)-1].become(&w)
	if !c.spec.Track {
		return
	}
	c.tracked.nodes = append(c.tracked.nodes, n)
	if c.tracked.err == nil {
		c.tracked.err = err
	}
}

// Tracked returns how many kernels, copies and fills have an index so far, and so the index of the next one: work that is recorded between
// two calls has the indices from the first answer on, up to the second. It is 0 without CaptureSpec.Track.
func (c *Capture) Tracked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tracked.nodes)
}

// Tracked returns how many kernels, copies and fills of the graph have an index.
func (g *Graph) Tracked() int { return len(g.tracked) }

// Set makes the changes for all runs from now on. It waits for no run, may be called while others launch, change or close the graph, and
// allocates nothing. On error some of the changes may have been made. Changes that belong to one run are given to Launch, so that nobody
// else's come between.
func (g *Graph) Set(changes ...Change) error {
	g.shared.mu.Lock()
	defer g.shared.mu.Unlock()
	return g.change(changes)
}

// change makes changes. The caller has g.shared.mu.
func (g *Graph) change(changes []Change) error {
	switch {
	case len(changes) == 0:
		return nil
	case g.exec == 0:
		return fault.New(fault.Closed, "the graph was closed")
	}
	for i := range changes {
		if n := changes[i].Node; n < 0 || n >= len(g.tracked) {
			return fault.New(fault.Invalid, "the graph has no tracked work %d: it has %d; capture it with CaptureSpec{Track: true} and "+
				"use the indices of that capture", n, len(g.tracked))
		}
	}
	d := g.dev
	t, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave(t)
	i := 0
	defer func() { g.twin.changed(changes[:i]) }()
	// The driver may count a change among the calls that captures forbid, though it disturbs none.
	err = d.relaxed(t, func() error {
		for i = range changes {
			c := &changes[i]
			if err := changeOne(d.dev, t, g.exec, g.tracked[c.Node], c); err != nil {
				return err
			}
			g.work[c.Node].become(c)
		}
		i = len(changes)
		return nil
	})
	if err != nil {
		return d.Check(err, fmt.Sprintf("work %d of the graph could not be changed", changes[i].Node))
	}
	return nil
}

// changeOne makes node n of e be c.
func changeOne(d driver.Device, t driver.Thread, e driver.GraphExec, n driver.Node, c *Change) error {
	switch {
	case c.Launch != nil:
		return d.GraphSetLaunch(t, e, n, c.Launch)
	case c.Src == 0:
		return d.GraphSetMemset(t, e, n, c.Dst, uint32(c.Value), 1, c.N)
	}
	return d.GraphSetCopy(t, e, n, c.Dst, c.Src, c.N)
}
