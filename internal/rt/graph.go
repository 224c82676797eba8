package rt

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// CaptureMode says which threads must not make calls that could disturb a capture; such a call ends the capture.
type CaptureMode int

const (
	// CaptureThreadLocal forbids such calls to the thread that captures.
	CaptureThreadLocal CaptureMode = iota
	// CaptureGlobal forbids them to all threads of the process.
	CaptureGlobal
	// CaptureRelaxed forbids them to none.
	CaptureRelaxed
)

// driverModes are the driver's names for the modes.
var driverModes = [...]driver.CaptureMode{driver.CaptureThreadLocal, driver.CaptureGlobal, driver.CaptureRelaxed}

// CaptureSpec says how a capture is made.
type CaptureSpec struct {
	// Pool is the private pool; zero means a new one.
	Pool alloc.PoolID
	Mode CaptureMode
	// Source keeps the graph as it was recorded, for Dump.
	Source bool
	// Track gives each kernel, copy and fill that Stream.Launch, Copy and Fill record an index, so that runs of the graph can have other
	// arguments: see Change. It also keeps the graph as it was recorded.
	Track bool
	// At is the file and line of the capture, for the error messages of other calls.
	At string
}

// Capture is a capture under way: the work of its stream, and of streams that join it, is recorded instead of run. The goroutine that began
// it is bound to its thread until End or Abort.
type Capture struct {
	dev    *Device
	stream *Stream
	thread driver.Thread
	owner  uint64 // the thread's number, which only the thread itself can ask for
	spec   CaptureSpec
	// refused is the error of the first wait for the device in the captured function.
	refused atomic.Pointer[fault.Error]
	// streams are the streams that it records, in the order in which they joined. Any goroutine may make one join, with mu held.
	mu      sync.Mutex
	streams []*Stream
	ended   bool
	tracked tracked // under mu
	// work is what Stream.Launch, Copy and Fill recorded, in this order, under mu.
	work works
	args []byte // the rest of a piece of memory for their arguments
	// events are held until the graph is executable, under mu.
	events []driver.Event
	// before has the operations that each stream had before.
	before [MaxStreams]uint64
	// waited has, for a pair of streams, the latest captured operation of the second that the first waits for.
	waited map[[2]int]uint64
	// runs are the runs of the graph that may have failures not yet reported, on a device that recovers; under failures.mu.
	runs []run
}

// Graph is recorded work, ready to run again and again. It holds the private pool of its capture.
type Graph struct {
	dev    *Device
	of     *Capture
	exec   driver.GraphExec
	source driver.Graph // 0 unless it is kept
	pool   alloc.PoolID
	shared *graphPool // its mu guards exec and source, and is held while tracked work is changed
	nodes  int
	// tracked are the nodes of the work that the capture tracked; they live as long as source.
	tracked []driver.Node
	// work is what the graph does, as recorded and then changed; twin measures its times while there is a profiler. Both are under
	// shared.mu.
	work works
	twin *twin
}

// graphPool orders the runs of graphs that share a pool, since a run may overwrite what the one before left in the memory.
type graphPool struct {
	graphs int // under the device's mu

	mu   sync.Mutex
	last *Stream // of the latest run
	seq  uint64
}

// sharedPool returns the graphPool of the pool and counts one more graph in it.
func (d *Device) sharedPool(id alloc.PoolID) *graphPool {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.graphPools[id]
	if p == nil {
		p = &graphPool{}
		d.graphPools[id] = p
	}
	p.graphs++
	return p
}

// leavePool counts one graph of the pool less.
func (d *Device) leavePool(id alloc.PoolID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.graphPools[id]
	if p.graphs--; p.graphs == 0 {
		delete(d.graphPools, id)
	}
}

// BeginCapture waits for the device, returns to it the memory of pools whose graphs are gone, directs the capture's allocations to the
// private pool and begins to record the work of st, which must not be the default stream. Other threads may allocate meanwhile.
func (d *Device) BeginCapture(st *Stream, spec CaptureSpec) (*Capture, error) {
	switch {
	case st == d.DefaultStream():
		return nil, fault.New(fault.Capture, "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to "+
			"replay them on the default stream.)")
	case spec.Mode < 0 || int(spec.Mode) >= len(driverModes):
		return nil, fault.New(fault.Invalid, "%d is not a capture mode; use cuda.CaptureThreadLocal, CaptureGlobal or CaptureRelaxed",
			spec.Mode)
	case st.Capturing():
		return nil, fault.New(fault.Capture, "the stream is being captured already; end that capture first")
	}
	if err := d.gate.enter(); err != nil {
		return nil, err
	}
	defer d.gate.leave()
	issued, err := d.synchronize()
	if err != nil {
		return nil, err
	}
	d.settle(&issued)
	if err := d.mem.EmptyReleased(); err != nil { // or graphs captured one after another would each leave a pool's memory behind
		return nil, d.checkAlloc(err, "memory of earlier graphs could not be given back")
	}
	if spec.Pool == (alloc.PoolID{}) {
		spec.Pool = alloc.NewCapturePoolID()
	} else if err := d.ownsPool(spec.Pool); err != nil {
		return nil, err
	}
	pool := spec.Pool
	var id atomic.Uint64
	b := &backend{d}
	err = d.mem.BeginAllocateToPool(pool, func(s alloc.Stream) bool {
		got, ok := b.Capturing(s)
		return ok && got == id.Load()
	})
	if err != nil {
		return nil, d.checkAlloc(err, "the capture's memory could not be set apart")
	}
	c := &Capture{dev: d, stream: st, thread: d.dev.Enter(), spec: spec, waited: map[[2]int]uint64{}, before: issued}
	c.owner = c.thread.ID()
	if err = c.begin(&id); err == nil {
		return c, nil
	}
	return nil, Also(wrap(err, "the capture could not begin"), c.leave(true))
}

// begin begins to record the capture's stream, and stores the capture's id.
func (c *Capture) begin(id *atomic.Uint64) error {
	d, st := c.dev, c.stream
	v, err := st.take()
	if err != nil {
		return err
	}
	defer st.giveBack(v)
	d.quiet.Lock()
	defer d.quiet.Unlock()
	err = c.add(st, func() error { return d.dev.CaptureBegin(c.thread, st.handle, driverModes[c.spec.Mode]) })
	if err != nil {
		return err
	}
	d.enlist(c)
	_, n, err := d.dev.CaptureInfo(st.handle)
	if err != nil {
		c.drop(c.thread)
		return err
	}
	id.Store(n)
	return nil
}

// add makes s one of the capture's streams; join does so in the driver. The caller has the turn of s.
func (c *Capture) add(s *Stream, join func() error) error {
	d := c.dev
	e, err := d.AcquireEvent(false)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.mark.Lock()
	defer s.mark.Unlock()
	if c.ended && d.closing.Load() {
		err = d.errClosed()
	} else if c.ended {
		err = fault.New(fault.Capture, "the capture has ended; begin it again")
	} else if err = d.dev.EventRecord(e, s.handle); err == nil {
		err = join()
	}
	if err != nil {
		d.ReleaseEvent(e, false)
		return err
	}
	s.eager = e
	s.capture.Store(c)
	c.streams = append(c.streams, s)
	return nil
}

// Join makes s one of the capture's streams, if it is not, by waiting for what its stream o has recorded.
func (c *Capture) Join(s, o *Stream) error {
	if s.capture.Load() == c {
		return nil
	}
	v, err := s.take()
	if err != nil {
		return err
	}
	defer s.giveBack(v)
	return c.after(s, o)
}

// after makes later work of s come after what the capture's stream o has recorded; s joins the capture. The caller has the turn of s.
func (c *Capture) after(s, o *Stream) error {
	d := c.dev
	e, err := d.AcquireEvent(false)
	if err != nil {
		return err
	}
	c.hold(e)
	join := func() error {
		if err := d.dev.EventRecord(e, o.handle); err != nil {
			return err
		}
		return d.dev.StreamWait(s.handle, e)
	}
	switch s.capture.Load() {
	case nil:
		err = c.add(s, join)
	case c:
		err = join()
	default:
		return s.isolated()
	}
	if err != nil {
		return d.Check(err, "a stream could not be made to wait for another")
	}
	d.traceWait(uint64(e), uint64(o.handle), uint64(s.handle))
	return nil
}

// Mark is a place in what a stream of a capture has recorded.
type Mark struct {
	event  driver.Event
	stream *Stream
}

// Mark returns the place after what the capture's stream o has recorded.
func (c *Capture) Mark(o *Stream) (*Mark, error) {
	d := c.dev
	v, err := o.take()
	if err != nil {
		return nil, err
	}
	defer o.giveBack(v)
	e, err := d.AcquireEvent(false)
	if err != nil {
		return nil, err
	}
	if err := d.dev.EventRecord(e, o.handle); err != nil {
		d.ReleaseEvent(e, false)
		return nil, d.Check(err, "a place in a capture could not be marked")
	}
	c.hold(e)
	return &Mark{e, o}, nil
}

// Await makes later work of the capture's stream s come after m.
func (c *Capture) Await(s *Stream, m *Mark) error {
	v, err := s.take()
	if err != nil {
		return err
	}
	defer s.giveBack(v)
	if err := c.dev.dev.StreamWait(s.handle, m.event); err != nil {
		return c.dev.Check(err, "a stream could not be made to wait for another")
	}
	c.dev.traceWait(uint64(m.event), uint64(m.stream.handle), uint64(s.handle))
	return nil
}

// hold keeps an event that belongs to the capture until its graph is executable: the driver crashed when another thread recorded one
// again meanwhile.
func (c *Capture) hold(e driver.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
}

// releaseEvents gives the held events back.
func (c *Capture) releaseEvents() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.events {
		c.dev.ReleaseEvent(e, false)
	}
	c.events = nil
}

// WaitFor makes later captured work of s come after the captured operation seq of o, unless it already does.
func (c *Capture) WaitFor(s, o *Stream, seq uint64) error {
	pair := [2]int{s.id, o.id}
	if s == o || c.waited[pair] >= seq {
		return nil
	}
	c.waited[pair] = max(o.Seq(), seq)
	return c.after(s, o)
}

// Stream returns the stream on which the capture began.
func (c *Capture) Stream() *Stream { return c.stream }

// Records reports whether the capture, which may be nil, records s.
func (c *Capture) Records(s *Stream) bool { return c != nil && s.capture.Load() == c }

// where says where the capture began, if that is known.
func (c *Capture) where() string {
	if c == nil || c.spec.At == "" {
		return ""
	}
	return " at " + c.spec.At
}

// settle notes that every stream has waited for what every other had issued before a synchronisation of the device.
func (d *Device) settle(issued *[MaxStreams]uint64) {
	for s := range d.allStreams {
		for id, seq := range issued {
			if seq > 0 {
				s.inherits(id, seq)
			}
		}
	}
}

// Also joins more, a further error or nil, to err.
func Also(err, more error) error {
	if more == nil {
		return err
	}
	return errors.Join(err, more)
}

// leave ends the diversion of allocations and unbinds the thread; with release it also releases the pool. If the device is being closed,
// the diversion has ended already, and errors are dropped.
func (c *Capture) leave(release bool) error {
	c.thread.Leave()
	d := c.dev
	err := d.checkAlloc(d.mem.EndAllocateToPool(c.spec.Pool), "the capture's memory could not be closed")
	if release {
		err = errors.Join(err, d.checkAlloc(d.mem.ReleasePool(c.spec.Pool), "the capture's memory could not be given back"))
	}
	if c.dev.closing.Load() {
		return nil
	}
	return err
}

// end ends the driver's capture on thread t, once, and releases its streams.
func (c *Capture) end(t driver.Thread) (g driver.Graph, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return 0, c.dev.errClosed()
	}
	c.ended = true
	d := c.dev
	g, err = d.dev.CaptureEnd(t, c.stream.handle)
	d.delist(c) // only now, since until here a wait breaks the capture
	for _, s := range c.streams {
		s.mark.Lock()
		s.capture.Store(nil)
		d.ReleaseEvent(s.eager, false)
		s.eager = 0
		s.mark.Unlock()
	}
	return g, err
}

// drop ends the driver's capture on thread t and discards what it recorded, complete or broken.
func (c *Capture) drop(t driver.Thread) {
	defer c.releaseEvents()
	// The capture is being abandoned for an error that is reported already.
	if g, err := c.end(t); err == nil && g != 0 {
		_ = c.dev.dev.GraphDestroy(t, g)
	}
}

// Pool returns the id of the private pool.
func (c *Capture) Pool() alloc.PoolID { return c.spec.Pool }

// Abort ends the capture and discards what it recorded.
func (c *Capture) Abort() error {
	if c.dev.gate.enter() == nil { // else it has ended
		c.drop(c.thread)
		c.dev.gate.leave()
	}
	return c.leave(true)
}

// JoinAll makes the capture's stream come after all that the capture recorded.
func (c *Capture) JoinAll() error {
	v, err := c.stream.take()
	if err != nil {
		return err
	}
	defer c.stream.giveBack(v)
	c.mu.Lock()
	streams := slices.Clone(c.streams)
	c.mu.Unlock()
	for _, o := range streams {
		if o == c.stream {
			continue
		}
		if err := c.after(c.stream, o); err != nil {
			return err
		}
	}
	return nil
}

// End ends the capture and makes its work executable.
func (c *Capture) End() (*Graph, error) {
	d := c.dev
	if err := d.gate.enter(); err != nil {
		_ = c.leave(true) // nothing of a device that is gone can be given back
		return nil, err
	}
	defer d.gate.leave()
	defer c.releaseEvents()
	g, err := c.end(c.thread)
	if err != nil {
		return nil, Also(wrap(err, "the capture is broken: something in it cannot be recorded"), c.leave(true))
	}
	out := &Graph{dev: d, pool: c.spec.Pool, tracked: c.tracked.nodes, work: c.work, of: c}
	c.args = nil
	if err = c.tracked.err; err == nil {
		out.nodes, err = d.dev.GraphNodes(g)
	}
	if err == nil {
		// Relaxed: because of another thread's capture a driver refused a graph with programmatic edges, and crashed.
		err = d.relaxed(c.thread, func() (err error) {
			out.exec, err = d.dev.GraphInstantiate(c.thread, g)
			return err
		})
	}
	if err == nil && (c.spec.Source || c.spec.Track) {
		out.source = g
	} else {
		err = errors.Join(err, d.dev.GraphDestroy(c.thread, g))
	}
	if err != nil {
		if out.exec != 0 {
			_ = d.dev.GraphExecDestroy(c.thread, out.exec)
		}
		return nil, Also(wrap(err, "the graph could not be made executable"), c.leave(true))
	}
	if out.nodes == 0 && !c.spec.Track { // calls on nothing may well be a region of their own
		slog.Warn("The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream." +
			c.elsewhere())
	}
	d.openGraphs.add(c.spec.At, 1)
	out.shared = d.sharedPool(out.pool)
	return out, c.leave(false)
}

// elsewhere says, for a graph that is empty, which work was issued outside during the capture, or returns "".
func (c *Capture) elsewhere() string {
	for s := range c.dev.allStreams {
		n := s.Seq() - c.before[s.id]
		names, _ := s.Recent()
		if n == 0 || len(names) == 0 || slices.Contains(c.streams, s) {
			continue
		}
		return fmt.Sprintf(" During the capture%s, stream %d got %d operations, the last of them %s: the function must use the Exec that "+
			"it is given.", c.where(), s.id, n, names[len(names)-1])
	}
	return ""
}

// openGraphs counts the graphs that are open by the lines that captured them.
type openGraphs struct {
	mu sync.Mutex
	at map[string]int
}

func (o *openGraphs) add(at string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at == nil {
		o.at = map[string]int{}
	}
	if o.at[at] += n; o.at[at] == 0 {
		delete(o.at, at)
	}
}

// lines returns the lines that are known, sorted.
func (o *openGraphs) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(o.at)), func(at string) bool { return at == "" })
}

// Launch queues one run on s as operation seq; the caller has the turn of s. If ordered, the run waits for the latest run of a graph of the
// same pool on another stream. The changes apply to this run and to later ones; no other caller's changes come between them and the run. On
// error nothing runs, but some changes may have been made.
func (g *Graph) Launch(s *Stream, seq uint64, ordered bool, changes ...Change) error {
	return g.LaunchFor(nil, s, seq, ordered, changes...)
}

// LaunchFor is Launch for work that belongs to other operations than the capture's: those that owners returns, by index. A profiler calls
// owners when the run is queued; nil means the capture's operations.
func (g *Graph) LaunchFor(owners func() []*ProfiledOp, s *Stream, seq uint64, ordered bool, changes ...Change) error {
	p := g.shared
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.exec == 0 {
		return fault.New(fault.Closed, "the graph was closed")
	}
	if ordered && p.last != nil {
		if err := s.WaitFor(p.last, p.seq); err != nil {
			return err
		}
	}
	if err := g.change(changes); err != nil {
		return err
	}
	if err := g.launch(s, owners); err != nil {
		return g.dev.Check(err, "the graph could not be launched")
	}
	p.last, p.seq = s, seq
	g.of.ran(s, seq)
	return nil
}

// launch is the driver's part of Launch, which a profiler may see.
func (g *Graph) launch(s *Stream, owners func() []*ProfiledOp) error {
	if p := g.dev.profiler.Load(); p != nil {
		return g.profiled(p, s, owners)
	}
	return g.dev.dev.GraphLaunch(g.exec, s.handle)
}

// Dump writes the graph as it was recorded to a file, in the DOT language, with all that the driver knows about each node.
func (g *Graph) Dump(path string) error {
	g.shared.mu.Lock()
	defer g.shared.mu.Unlock()
	switch {
	case g.exec == 0:
		return fault.New(fault.Closed, "the graph was closed")
	case g.source == 0:
		return fault.New(fault.Invalid, "the graph was not kept as it was recorded; capture it with CaptureOpt{Debug: true}")
	}
	t, err := g.dev.enter()
	if err != nil {
		return err
	}
	defer g.dev.leave(t)
	return wrap(g.dev.dev.GraphDot(t, g.source, path), "the graph could not be written to "+path)
}

// Nodes returns how many operations the graph has.
func (g *Graph) Nodes() int { return g.nodes }

// Device returns the device that the graph runs on.
func (g *Graph) Device() *Device { return g.dev }

// Pool returns the id of the private pool.
func (g *Graph) Pool() alloc.PoolID { return g.pool }

// Close releases the graph and its use of the pool. Runs that are under way complete. The second call does nothing.
func (g *Graph) Close() error {
	done, err := g.destroy()
	if !done {
		return nil
	}
	g.dev.leavePool(g.pool)
	d := g.dev
	return errors.Join(wrap(err, "the graph could not be released"),
		d.checkAlloc(d.mem.ReleasePool(g.pool), "the graph's memory could not be given back"))
}

// destroy releases the driver's graph while no run is being queued; done is false if that was done before.
func (g *Graph) destroy() (done bool, err error) {
	g.shared.mu.Lock()
	defer g.shared.mu.Unlock()
	exec, source := g.exec, g.source
	if exec == 0 {
		return false, nil
	}
	g.exec, g.source = 0, 0
	g.dev.openGraphs.add(g.of.spec.At, -1)
	t, err := g.dev.enter()
	if err != nil {
		return true, nil // it went with the device
	}
	defer g.dev.leave(t)
	// Relaxed, since a capture of another thread may forbid it in this one.
	err = g.dev.relaxed(t, func() error { return g.dev.dev.GraphExecDestroy(t, exec) })
	if g.twin != nil {
		err = errors.Join(err, g.twin.destroy(g.dev))
		g.twin.of.forget(g)
		g.twin = nil
	}
	if source != 0 {
		err = errors.Join(err, g.dev.dev.GraphDestroy(t, source))
	}
	return true, err
}
