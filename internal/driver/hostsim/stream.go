package hostsim

import (
	"sync"

	"tenon.dev/internal/check"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/vexec"
)

// stream is an in-order queue. The machine's mu guards it, except for what perform uses.
type stream struct {
	dev      *device
	handle   driver.Stream
	legacy   bool
	blocking bool // synchronises with the legacy stream

	queue []op // queue[first:] is pending; its head may be running
	first int
	args  []byte     // the arguments of queued launches, until the queue is empty
	busy  bool       // the head, not a graph, is running
	graph *graphExec // the head's graph, while it runs
	ready int64      // when all work that has run is complete
	turn  uint64     // when it was last served
	held  int        // gates
	// failure is the latest failed assertion that the finished work comes after, or nil.
	failure *assertFailure

	cap  *capture
	deps []int32 // the captured nodes that the next one depends on

	order *check.Stream // its order relative to other streams, once a checker asked; task is the running operation
	task  *check.Task

	inline sync.Mutex // held while the call runs work on an inline device
	env    vexec.Env  // of the running kernel
	clk    kernelClock
}

// stream returns the stream of a handle, or nil; mu is held.
func (d *device) stream(s driver.Stream) *stream {
	if s == driver.StreamLegacy {
		return d.legacy
	}
	return d.streams.get(uintptr(s))
}

// head returns the oldest pending operation.
func (s *stream) head() *op { return &s.queue[s.first] }

// idleTo reports whether all work queued up to seq has run.
func (s *stream) idleTo(seq uint64) bool { return s.first == len(s.queue) || s.head().seq > seq }

// queueLimit is how many operations a stream holds; a call that reaches the limit waits for the device, as with CUDA's launch queue.
const queueLimit = 1024

// push queues o; mu is held, and may be unlocked while the device makes room.
func (s *stream) push(o *op) {
	m := s.dev.m
	if s.first == len(s.queue) {
		s.queue, s.first, s.args = s.queue[:0], 0, s.args[:0]
		m.active = append(m.active, s)
	}
	m.seq++
	s.queue = append(s.queue, *o)
	q := &s.queue[len(s.queue)-1]
	q.seq, q.issued = m.seq, m.clock()
	if len(o.args) > 0 {
		at := len(s.args)
		s.args = append(s.args, o.args...)
		q.args = s.args[at:len(s.args):len(s.args)]
	}
	if m.opts.RealTime {
		m.poke()
	}
	if len(s.queue)-s.first >= queueLimit {
		s.drain()
	}
}

// drain halves the queue: it runs work, or waits for the goroutine that does. It gives up if none of the earlier work can proceed, so that
// a host that has yet to open a gate or answer a callback can do so. mu is held before and after, and unlocked in between.
func (s *stream) drain() {
	m := s.dev.m
	for last := m.seq; len(s.queue)-s.first > queueLimit/2 && m.moves(last); {
		if m.running != 0 || m.opts.RealTime {
			m.changed.Wait()
		} else {
			m.run(farFuture)
		}
	}
	if !m.opts.RealTime {
		m.now = max(m.now, s.ready)
	}
}

// pop removes the head, which has run.
func (s *stream) pop(m *machine) {
	o := s.head()
	if o.rec != nil {
		m.unref(o.rec)
	}
	*o = op{}
	s.first++
	if s.first < len(s.queue) {
		if s.first >= queueLimit {
			s.compact()
		}
		return
	}
	for i, a := range m.active {
		if a == s {
			m.active = append(m.active[:i], m.active[i+1:]...)
			break
		}
	}
}

// compact moves the pending operations to the front, so that a stream that is never idle reuses its space.
func (s *stream) compact() {
	n := copy(s.queue, s.queue[s.first:])
	clear(s.queue[n:])
	s.queue, s.first = s.queue[:n], 0
	args := s.args[:0]
	for i := range s.queue {
		// In order, so that no argument is overwritten before it is moved.
		o, at := &s.queue[i], len(args)
		args = append(args, o.args...)
		o.args = args[at:len(args):len(args)]
	}
	s.args = args
}

// drop removes all pending work of a lost device.
func (s *stream) drop(m *machine) {
	for s.first < len(s.queue) {
		o := s.head()
		switch o.kind {
		case opRecord:
			o.rec.done, o.rec.at = true, m.clock()
		case opCallback:
			m.heard(1)
		case opGraph:
			left := o.exec.callbacks
			if s.graph == o.exec {
				left -= o.exec.heard
			}
			m.heard(left)
			o.exec.done = o.ticket + 1
		}
		s.pop(m)
	}
	s.busy, s.graph = false, nil
}

// StreamCreate returns a stream. Priorities are hints and are ignored.
func (d *device) StreamCreate(t driver.Thread, nonBlocking bool, priority int) (driver.Stream, error) {
	if _, err := d.lockThread("StreamCreate", t); err != nil {
		return 0, err
	}
	defer d.m.mu.Unlock()
	s := &stream{dev: d, blocking: !nonBlocking}
	s.handle = driver.Stream(d.streams.add(s))
	return s.handle, nil
}

// StreamDestroy releases the handle; outstanding work completes. A capture that includes s is invalidated.
func (d *device) StreamDestroy(t driver.Thread, s driver.Stream) error {
	if d.lost() {
		return nil
	}
	if _, err := d.lockThread("StreamDestroy", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	st := d.streams.remove(uintptr(s))
	if st == nil {
		return fail("StreamDestroy", driver.InvalidHandle, "")
	}
	if c := st.cap; c != nil {
		c.invalid = true
		c.drop(st)
		if c.origin == st {
			d.m.leave(c)
			c.memory.release()
		}
	}
	return nil
}

// lockStream is lockThread for a call that queries s; mu is held on success. A capture that forbids the call is invalidated.
func (d *device) lockStream(call string, t driver.Thread, s driver.Stream) (*stream, error) {
	tok, err := d.lockThread(call, t)
	if err != nil {
		return nil, err
	}
	st := d.stream(s)
	code := driver.Success
	switch {
	case st == nil:
		code = driver.InvalidHandle
	case st.cap != nil:
		st.cap.invalid = true
		code = driver.StreamCaptureUnsupported
	case st.legacy && d.m.implicit(d, true):
		code = driver.StreamCaptureImplicit
	default:
		code = d.m.forbidden(tok)
	}
	if code != driver.Success {
		d.m.mu.Unlock()
		return nil, fail(call, code, "")
	}
	return st, nil
}

// target returns what waiting for s means at this point.
func (s *stream) target() target { return target{dev: s.dev, s: s, seq: s.dev.m.seq} }

// StreamQuery reports whether all work of s is done.
func (d *device) StreamQuery(t driver.Thread, s driver.Stream) (bool, error) {
	st, err := d.lockStream("StreamQuery", t, s)
	if err != nil {
		return false, err
	}
	defer d.m.mu.Unlock()
	done := d.m.poll(st.target())
	return done, d.gone("StreamQuery")
}

// StreamSynchronize blocks until all work of s is done.
func (d *device) StreamSynchronize(t driver.Thread, s driver.Stream) error {
	st, err := d.lockStream("StreamSynchronize", t, s)
	if err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	d.m.await(st.target())
	return d.gone("StreamSynchronize")
}

// StreamWait makes later work of s wait for e's most recent record.
func (d *device) StreamWait(s driver.Stream, e driver.Event) error {
	const call = "StreamWait"
	if err := d.lock(call); err != nil {
		return err
	}
	m := d.m
	defer m.mu.Unlock()
	st, ev := d.stream(s), m.events.get(uintptr(e))
	if st == nil || ev == nil {
		return fail(call, driver.InvalidHandle, "")
	}
	if st.legacy && !d.entered() {
		return fail(call, driver.InvalidContext, "")
	}
	if ev.cap != nil {
		if code := m.join(st, ev); code != driver.Success {
			return fail(call, code, "")
		}
		return nil
	}
	if c := st.cap; c != nil {
		if c.invalid {
			return fail(call, driver.StreamCaptureInvalidated, "")
		}
		if ev.rec == nil {
			return nil
		}
		c.invalid = true
		return fail(call, driver.StreamCaptureIsolation, "the event was not recorded in the capture")
	}
	if st.legacy && m.implicit(d, true) {
		return fail(call, driver.StreamCaptureImplicit, "")
	}
	if ev.rec == nil || m.inline {
		return nil
	}
	ev.rec.refs++
	st.follow(ev.rec.point)
	st.push(&op{kind: opWait, rec: ev.rec})
	return nil
}
