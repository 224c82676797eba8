package rt

import (
	"fmt"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
)

// Change replaces one kernel, copy or fill of a graph whose capture had CaptureSpec.Track, without a new capture. It applies to the runs
// that are queued after it; earlier runs, under way or not, keep what they had. So every run can have a different learning rate, scale or
// input address. A change stays until another one replaces it.
//
// A caller that changes an address must see to it that the run comes after the work that fills the memory there, and that the memory lives
// until the run is done. Runs are still ordered by the graph's uses of memory as recorded.
type Change struct {
	// Node is the index of the work: the first that was recorded has 0, and Capture.Tracked returns the next one. The kind of work stays:
	// only a kernel can replace a kernel, a copy a copy, a fill a fill.
	Node int
	// Launch is everything that the kernel is launched with from now on: function, grid, block, shared memory, arguments and Origin. Its
	// stream is ignored. The arguments are copied, so it may be reused at once, by one call at a time. It is nil for a copy or a fill.
	Launch *driver.Launch
	// If Launch is nil, N > 0 bytes are copied from Src to Dst or, if Src is 0, Dst is filled with Value.
	Dst, Src driver.Ptr
	N        uint64
	Value    byte
}

// tracked is the work that has an index in a capture.
type tracked struct {
	nodes []driver.Node
	err   error // of the first node that could not be found; the capture fails with it
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

// Copy queues a copy of n bytes on the device on s, as Launch does a kernel. A copy of 0 bytes has no index.
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

// Fill queues a fill of n bytes with v on s, as Copy does a copy.
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

// Divert passes the kernels, copies and fills of Launch, Copy and Fill on s to f, which makes changes of a graph from them, and queues
// none; nil ends that. Nobody else may use s meanwhile. f must not keep its argument, which is reused when f returns.
func (s *Stream) Divert(f func(c Change) error) { s.divert = f }

// recorded keeps w, the latest work of s, if s is captured, and gives it an index, if the capture wants that. An error is kept for the end
// of the capture: the work itself was recorded, and a caller that saw the error might record it twice.
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
	c.keep(s, &w)
	if !c.spec.Track {
		return
	}
	c.tracked.nodes = append(c.tracked.nodes, n)
	if c.tracked.err == nil {
		c.tracked.err = err
	}
}

// Tracked returns how many kernels, copies and fills have an index so far, which is the index of the next one: work that is recorded
// between two calls has the indices from the first result up to, but not including, the second. It is 0 without CaptureSpec.Track.
func (c *Capture) Tracked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tracked.nodes)
}

// Tracked returns how many kernels, copies and fills of the graph have an index.
func (g *Graph) Tracked() int { return len(g.tracked) }

// Set makes the changes for all runs that are queued from now on. It waits for no run, may be called while others launch, change or close
// the graph, and allocates nothing. On error some of the changes may have been made. Changes for one run are passed to Launch, so that no
// other caller's changes come between.
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
			g.work.at(c.Node).become(c)
		}
		i = len(changes)
		return nil
	})
	if err != nil {
		return d.Check(err, fmt.Sprintf("work %d of the graph could not be changed", changes[i].Node))
	}
	return nil
}

// changeOne replaces the work of node n of e by c.
func changeOne(d driver.Device, t driver.Thread, e driver.GraphExec, n driver.Node, c *Change) error {
	switch {
	case c.Launch != nil:
		return d.GraphSetLaunch(t, e, n, c.Launch)
	case c.Src == 0:
		return d.GraphSetMemset(t, e, n, c.Dst, uint32(c.Value), 1, c.N)
	}
	return d.GraphSetCopy(t, e, n, c.Dst, c.Src, c.N)
}
