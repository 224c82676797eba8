package rt

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// Stream is an in-order queue of a device's work. Operations are numbered, so that an access to memory is named by a stream and a number;
// waited is, for every other stream, the latest operation that this one waits for already.
type Stream struct {
	divert func(c Change) error // called instead of the driver, see Divert
	noted  Noted                // the operation of the work that is recorded, see Note
	dev    *Device
	handle driver.Stream
	id     int
	// turn is the number of the latest operation handed to the driver, above the bits turnBusy and the like.
	turn   atomic.Uint64
	waited [MaxStreams]atomic.Uint64
	done   atomic.Uint64 // up to which operation the stream is known to be complete
	ring   ring
	lines  *lineRing // nil unless the device keeps lines

	// queue wakes the callers that wait for their turn.
	queueMu sync.Mutex
	queue   *sync.Cond

	// capture is the capture that records the stream's work, or nil. It changes in the stream's turn and under mark, which is also held
	// while an event is recorded for another stream: so work outside a capture never waits for an event of it. During a capture, eager
	// marks the end of the work before it.
	mark    sync.Mutex
	capture atomic.Pointer[Capture]
	eager   driver.Event
}

// Usable returns why the stream cannot be used, or nil.
func (s *Stream) Usable() error {
	if s == nil || s.dev == nil {
		return fault.New(fault.Invalid, "the stream is nil or a zero value; use one that the device's Stream or DefaultStream returned")
	}
	return nil
}

// Device returns the stream's device.
func (s *Stream) Device() *Device { return s.dev }

// Handle returns the driver's stream.
func (s *Stream) Handle() driver.Stream { return s.handle }

// ID returns the stream's number in its device; 0 is the default stream.
func (s *Stream) ID() int { return s.id }

// An operation gets its number and is launched in one step: from Begin to Issued nobody else issues to the stream. So once an operation has
// a number, all before it have been launched. A device that runs each call before it returns has nothing to wait for, and no turns.
const (
	turnBusy   = 1 << iota // somebody issues
	turnWanted             // others wait
	turnClosed             // the device is closed, and the turn is never given back
	turnBits   = 3
)

// Begin takes the turn for an operation op of the capture in, which is nil outside captures, and returns the operation's number, starting
// at 1. Issued gives the turn back.
func (s *Stream) Begin(op OpID, in *Capture) (uint64, error) {
	v, err := s.take()
	if err != nil {
		return 0, err
	}
	if s.capture.Load() != in {
		s.giveBack(v)
		return 0, s.foreign(in)
	}
	seq := v>>turnBits + 1
	s.Began(op, seq)
	return seq, nil
}

// Issued gives the turn back once operation seq has been handed to the driver, or has failed: from now on an event recorded on s covers it.
func (s *Stream) Issued(seq uint64) {
	if !s.dev.info.Inline {
		s.giveBack(seq << turnBits)
	}
}

// take takes the turn and returns the value of s.turn before it.
func (s *Stream) take() (uint64, error) {
	if s.dev.info.Inline {
		return s.turn.Add(1<<turnBits) - 1<<turnBits, nil
	}
	v := s.turn.Load()
	if v&turnBusy == 0 && s.turn.CompareAndSwap(v, v|turnBusy) {
		return v, nil
	}
	return s.await()
}

// await is take when somebody else may have the turn.
func (s *Stream) await() (uint64, error) {
	s.queueMu.Lock()
	defer s.queueMu.Unlock()
	for {
		switch v := s.turn.Load(); {
		case v&turnClosed != 0:
			return 0, s.dev.errClosed()
		case v&turnBusy == 0:
			if s.turn.CompareAndSwap(v, v|turnBusy) {
				return v, nil
			}
		case v&turnWanted != 0 || s.turn.CompareAndSwap(v, v|turnWanted):
			s.queue.Wait()
		}
	}
}

// giveBack ends the turn and sets s.turn to v.
func (s *Stream) giveBack(v uint64) {
	if s.dev.info.Inline {
		return
	}
	if s.turn.Swap(v)&turnWanted != 0 {
		s.queueMu.Lock()
		defer s.queueMu.Unlock()
		s.queue.Broadcast()
	}
}

// close takes the turn for good.
func (s *Stream) close() {
	if v, err := s.take(); err == nil {
		s.giveBack(v | turnBusy | turnClosed)
	}
}

// foreign returns the error for work of the capture in, or outside any if nil, on a stream that is not part of it.
func (s *Stream) foreign(in *Capture) error {
	if c := s.capture.Load(); c != nil {
		return fault.New(fault.Capture, "stream %d records the graph that is captured%s, and this work is not part of it; use another "+
			"stream, or wait for the capture's end", s.id, c.where())
	}
	return fault.New(fault.Capture,
		"stream %d is not part of the graph that is captured%s: use the Exec that the captured function is given", s.id, in.where())
}

// raise makes a at least v.
func raise(a *atomic.Uint64, v uint64) {
	for {
		old := a.Load()
		if old >= v || a.CompareAndSwap(old, v) {
			return
		}
	}
}

// Seq returns the number of the latest operation handed to the driver.
func (s *Stream) Seq() uint64 { return s.turn.Load() >> turnBits }

// WaitFor makes later work of s, which is not being captured, wait for operation seq of o, unless it already does. The operation must have
// been launched.
func (s *Stream) WaitFor(o *Stream, seq uint64) error {
	if s.Covers(o.id, seq) {
		return nil
	}
	return s.waitMark(o, seq)
}

// Covers reports whether later work of s comes after operation seq of the stream with number id.
func (s *Stream) Covers(id int, seq uint64) bool {
	return s.id == id || s.waited[id].Load() >= seq
}

// waitMark makes later work of s wait for all work that o has outside captures, including operation seq.
func (s *Stream) waitMark(o *Stream, seq uint64) error {
	d := s.dev
	e, err := d.AcquireEvent(false)
	if err != nil {
		return err
	}
	defer d.ReleaseEvent(e, false)
	o.mark.Lock()
	defer o.mark.Unlock()
	now, from := o.Seq(), e
	if o.capture.Load() == nil {
		err = d.dev.EventRecord(e, o.handle)
	} else {
		now, from = 0, o.eager
	}
	if err == nil {
		err = d.dev.StreamWait(s.handle, from)
	}
	if err != nil {
		return d.Check(err, "a stream could not be made to wait for another")
	}
	s.inherits(o.id, max(now, seq))
	d.traceWait(uint64(from), uint64(o.handle), uint64(s.handle))
	return nil
}

// WaitAll makes later work of s wait for all work that o has now. If o is being captured, s becomes part of the capture. It returns at
// once, unless o belongs to another device that is not a peer: then the host waits.
func (s *Stream) WaitAll(o *Stream) error { return s.waitAll(o, func(*Capture) bool { return true }) }

// WaitIn is WaitAll for work of the capture in, or outside any if nil: s does not join another capture.
func (s *Stream) WaitIn(o *Stream, in *Capture) error {
	return s.waitAll(o, func(c *Capture) bool { return c == in })
}

func (s *Stream) waitAll(o *Stream, join func(c *Capture) bool) error {
	if s == o {
		return nil
	}
	if err := o.Usable(); err != nil {
		return err
	}
	if !s.dev.Peer(o.dev) && s.dev != o.dev && s.capture.Load() == nil {
		if c := o.capture.Load(); c != nil {
			return s.outside(o, c)
		}
		return o.Synchronize()
	}
	v, err := s.take()
	if err != nil {
		return err
	}
	defer s.giveBack(v)
	switch c := o.capture.Load(); {
	case c != nil && s.dev != o.dev:
		return s.outside(o, c)
	case c != nil && !join(c):
		return fault.New(fault.Capture, "stream %d records the graph that is captured%s, whose work only replays run; wait for the "+
			"stream after the capture", o.id, c.where())
	case c != nil:
		return c.after(s, o)
	case s.capture.Load() != nil:
		return s.isolated()
	case s.dev != o.dev:
		return s.waitPeer(o)
	}
	return s.waitMark(o, 0)
}

// waitPeer is waitMark for a stream of a peer, which may be closed or captured meanwhile.
func (s *Stream) waitPeer(o *Stream) error {
	if err := o.dev.gate.enter(); err != nil {
		return err
	}
	defer o.dev.gate.leave()
	e, err := o.dev.AcquireEvent(false)
	if err != nil {
		return err
	}
	defer o.dev.ReleaseEvent(e, false)
	o.mark.Lock()
	defer o.mark.Unlock()
	if c := o.capture.Load(); c != nil {
		return s.outside(o, c)
	}
	return waitAcross(s, o, e)
}

// outside returns the error for a stream that is made to wait for a capture of another device.
func (s *Stream) outside(o *Stream, c *Capture) error {
	return fault.New(fault.Capture, "stream %d of %s records the graph that is captured%s, which a stream of %s cannot join; wait for "+
		"it after the capture",
		o.id, o.dev, c.where(), s.dev)
}

// isolated returns the error for captured work that is made to wait for work outside the capture.
func (s *Stream) isolated() error {
	return fault.New(fault.Capture, "stream %d records the graph that is captured%s, and cannot wait for work that is not part of it; "+
		"wait before the capture", s.id, s.capture.Load().where())
}

// Capturing reports whether the work of s is being recorded as a graph.
func (s *Stream) Capturing() bool {
	_, capturing := (&backend{s.dev}).Capturing(alloc.Stream(s.handle))
	return capturing
}

// Recording reports whether s is one of the streams of a capture. While the caller has the turn of s, that does not change.
func (s *Stream) Recording() bool { return s.capture.Load() != nil }

// Query reports whether all work of s is done.
func (s *Stream) Query() (ok bool, err error) {
	seq := s.Seq()
	d := s.dev
	err = d.undisturbed("Query", s, func(t driver.Thread) error {
		ok, err = d.dev.StreamQuery(t, s.handle)
		return err
	}, func(t driver.Thread, e driver.Event) error {
		ok, err = d.dev.EventQuery(t, e)
		return err
	})
	if ok {
		s.finished(seq)
	}
	return ok, d.checkAlloc(err, "the stream could not be queried")
}

// Synchronize waits until all work of s is done.
func (s *Stream) Synchronize() error {
	d := s.dev
	d.trace(streamSynchronization, uint64(s.handle), 0)
	seq := s.Seq()
	wait := func(t driver.Thread) error { return d.dev.StreamSynchronize(t, s.handle) }
	err := d.undisturbed("Synchronize", s, wait, d.dev.EventSynchronize)
	if err != nil {
		return d.checkAlloc(err, "the stream could not be waited for")
	}
	s.finished(seq)
	return d.failed(func() error { return d.dev.StreamFailed(s.handle) }, func(o *Stream) uint64 {
		if o == s {
			return seq
		}
		return 0
	})
}

func (d *Device) newStream(id int) (*Stream, error) {
	t, err := d.enter()
	if err != nil {
		return nil, err
	}
	defer d.leave(t)
	h, err := d.dev.StreamCreate(t, true, 0)
	if err != nil {
		return nil, d.Check(err, "a stream could not be created")
	}
	s := &Stream{dev: d, handle: h, id: id}
	s.queue = sync.NewCond(&s.queueMu)
	if d.lines {
		s.lines = &lineRing{}
	}
	d.streams[s.id].Store(s)
	return s, nil
}

// DefaultStream returns the stream that work goes to by default.
func (d *Device) DefaultStream() *Stream { return d.streams[0].Load() }

// Stream returns a stream of the device's pool of 32, handed out round-robin, so two calls may return the same stream.
func (d *Device) Stream() (*Stream, error) {
	s, created, err := d.nextStream()
	if created {
		d.trace(streamCreation, uint64(s.handle), 0)
	}
	return s, err
}

// nextStream also reports whether it created the stream.
func (d *Device) nextStream() (s *Stream, created bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Lost(); err != nil {
		return nil, false, err
	}
	i := 1 + d.next%userStreams
	if i < d.made {
		d.next++
		return d.streams[i].Load(), false, nil
	}
	if s, err = d.newStream(i); err != nil {
		return nil, false, err
	}
	d.made++
	d.next++
	return s, true, nil
}

// CaptureStream returns a stream that nobody else has until ReturnCaptureStream gives it back.
func (d *Device) CaptureStream() (*Stream, error) {
	s, created, err := d.nextCaptureStream()
	if created {
		d.trace(streamCreation, uint64(s.handle), 0)
	}
	return s, err
}

// nextCaptureStream also reports whether it created the stream.
func (d *Device) nextCaptureStream() (s *Stream, created bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Lost(); err != nil {
		return nil, false, err
	}
	if n := len(d.idle); n > 0 {
		s := d.idle[n-1]
		d.idle = d.idle[:n-1]
		return s, false, nil
	}
	if d.capturing == capturesAtOnce {
		return nil, false, fault.New(fault.Capture, "%d captures are under way on the device, and there are streams for no more; end "+
			"one first, or name a stream", capturesAtOnce)
	}
	if s, err = d.newStream(firstCapture + d.capturing); err != nil {
		return nil, false, err
	}
	d.capturing++
	return s, true, nil
}

// ReturnCaptureStream gives a stream of CaptureStream back.
func (d *Device) ReturnCaptureStream(s *Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle = append(d.idle, s)
}

// AcquireEvent takes an event from the device's pool, with timing or without.
func (d *Device) AcquireEvent(timing bool) (driver.Event, error) {
	d.eventMu.Lock()
	pool := d.eventPool(timing)
	if n := len(*pool); n > 0 {
		e := (*pool)[n-1]
		*pool = (*pool)[:n-1]
		d.eventMu.Unlock()
		return e, nil
	}
	d.eventMu.Unlock()
	t, err := d.enter()
	if err != nil {
		return 0, err
	}
	defer d.leave(t)
	e, err := d.dev.EventCreate(t, timing)
	return e, d.Check(err, "an event could not be created")
}

// KeepEvent makes sure that the pool has an event, so that the next wait between streams does not fail for lack of one.
func (d *Device) KeepEvent() error {
	e, err := d.AcquireEvent(false)
	if err == nil {
		d.ReleaseEvent(e, false)
	}
	return err
}

// ReleaseEvent gives an event back to the pool.
func (d *Device) ReleaseEvent(e driver.Event, timing bool) {
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	pool := d.eventPool(timing)
	*pool = append(*pool, e)
}

// takeEvents empties the pool. Cleanups may be giving events back meanwhile.
func (d *Device) takeEvents() []driver.Event {
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	all := slices.Concat(d.events, d.timing)
	d.events, d.timing = nil, nil
	return all
}

func (d *Device) eventPool(timing bool) *[]driver.Event {
	if timing {
		return &d.timing
	}
	return &d.events
}

func codeOf(err error) (driver.Code, bool) {
	var e *driver.Error
	if errors.As(err, &e) {
		return e.Code, true
	}
	return 0, false
}

// StreamByID returns the stream with that number.
func (d *Device) StreamByID(id int) *Stream { return d.streams[id].Load() }
