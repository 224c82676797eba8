package rt

import (
	"errors"
	"sync/atomic"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// Capture is a capture under way: the work of its stream, and of streams that join it, is recorded instead of run. The goroutine that began
// it is bound to its thread until End or Abort.
type Capture struct {
	dev    *Device
	stream *Stream
	thread driver.Thread
	pool   alloc.PoolID
}

// Graph is recorded work, ready to run again and again. It holds the private pool of its capture.
type Graph struct {
	dev   *Device
	exec  driver.GraphExec
	pool  alloc.PoolID
	nodes int
}

// BeginCapture waits for the device, sends the allocations of the capture to the private pool, a new one if pool is zero, and begins
// to record the work of st. Other threads may go on allocating meanwhile.
func (d *Device) BeginCapture(st *Stream, pool alloc.PoolID) (*Capture, error) {
	if err := d.Synchronize(); err != nil {
		return nil, err
	}
	d.settle()
	if pool == (alloc.PoolID{}) {
		pool = alloc.NewCapturePoolID()
	}
	var id atomic.Uint64
	b := &backend{d}
	err := d.mem.BeginAllocateToPool(pool, func(s alloc.Stream) bool {
		got, ok := b.Capturing(s)
		return ok && got == id.Load()
	})
	if err != nil {
		return nil, err
	}
	c := &Capture{dev: d, stream: st, thread: d.dev.Enter(), pool: pool}
	err = d.dev.CaptureBegin(c.thread, st.handle, driver.CaptureThreadLocal)
	if err == nil {
		var n uint64
		if _, n, err = d.dev.CaptureInfo(st.handle); err == nil {
			id.Store(n)
			return c, nil
		}
		c.drop()
	}
	return nil, errors.Join(wrap(err, "the capture could not begin"), c.leave(true))
}

// settle notes that every stream has waited for all work of every other, which holds after a synchronisation of the device.
func (d *Device) settle() {
	for i := range d.streams {
		s := d.streams[i].Load()
		for j := range d.streams {
			if o := d.streams[j].Load(); s != nil && o != nil {
				s.waited[o.id].Store(o.Seq())
			}
		}
	}
}

// leave ends the diversion and the thread's hold; release gives the pool up as well.
func (c *Capture) leave(release bool) error {
	c.thread.Leave()
	err := c.dev.mem.EndAllocateToPool(c.pool)
	if release {
		err = errors.Join(err, c.dev.mem.ReleasePool(c.pool))
	}
	return err
}

// drop ends the driver's capture and forgets what it recorded, be it whole or broken.
func (c *Capture) drop() {
	// The capture is being abandoned for an error that is reported already.
	if g, err := c.dev.dev.CaptureEnd(c.thread, c.stream.handle); err == nil && g != 0 {
		_ = c.dev.dev.GraphDestroy(c.thread, g)
	}
}

// Abort ends the capture and forgets what it recorded.
func (c *Capture) Abort() error {
	c.drop()
	return c.leave(true)
}

// End ends the capture and makes its work executable.
func (c *Capture) End() (*Graph, error) {
	d := c.dev
	g, err := d.dev.CaptureEnd(c.thread, c.stream.handle)
	if err != nil {
		return nil, errors.Join(wrap(err, "the capture is broken: something in it cannot be recorded"), c.leave(true))
	}
	out := &Graph{dev: d, pool: c.pool}
	if out.nodes, err = d.dev.GraphNodes(g); err == nil {
		out.exec, err = d.dev.GraphInstantiate(c.thread, g)
	}
	err = errors.Join(err, d.dev.GraphDestroy(c.thread, g))
	if err != nil {
		return nil, errors.Join(wrap(err, "the graph could not be made executable"), c.leave(true))
	}
	return out, c.leave(false)
}

// Launch queues one run on s.
func (g *Graph) Launch(s *Stream) error {
	if g.exec == 0 {
		return fault.New(fault.Closed, "the graph was closed")
	}
	return wrap(g.dev.dev.GraphLaunch(g.exec, s.handle), "the graph could not be launched")
}

// Nodes returns how many operations the graph has.
func (g *Graph) Nodes() int { return g.nodes }

// Pool returns the id of the private pool.
func (g *Graph) Pool() alloc.PoolID { return g.pool }

// Close releases the graph and its use of the pool. Runs that are under way complete. The second call does nothing.
func (g *Graph) Close() error {
	if g.exec == 0 {
		return nil
	}
	t := g.dev.dev.Enter()
	err := g.dev.dev.GraphExecDestroy(t, g.exec)
	t.Leave()
	g.exec = 0
	return errors.Join(wrap(err, "the graph could not be released"), g.dev.mem.ReleasePool(g.pool))
}
