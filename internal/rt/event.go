package rt

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/origin"
)

// Event marks a point in a stream's work. The driver's event is made by the first Record, and goes back to the device's pool with Close or
// the garbage collector. It is safe for concurrent use.
type Event struct {
	dev    *Device
	timing bool // Elapsed works; recording is slower

	mu      sync.Mutex
	handle  driver.Event // 0 before the first Record
	stream  *Stream      // of the latest Record
	seq     uint64       // the last operation of stream that it covers
	capture *Capture     // the capture of the latest Record, or nil
	closed  bool
	cleanup runtime.Cleanup
}

// Usable returns why the event cannot be used, or nil.
func (e *Event) Usable() error {
	if e == nil || e.dev == nil {
		return fault.New(fault.Invalid, "the event is nil or a zero value; use one that the device's NewEvent returned")
	}
	return nil
}

// Closed reports whether the event was closed.
func (e *Event) Closed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// Device returns the event's device.
func (e *Event) Device() *Device { return e.dev }

// NewEvent returns an event that was never recorded.
func (d *Device) NewEvent(timing bool) *Event { return &Event{dev: d, timing: timing} }

// Handle returns the driver's event, 0 before the first Record.
func (e *Event) Handle() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return uint64(e.handle)
}

// Record makes e mark the point after all work that s has now.
func (e *Event) Record(s *Stream) error {
	if err := s.Usable(); err != nil {
		return err
	}
	if s.dev != e.dev {
		return apart(e.dev, s.dev, "an event of %s cannot be recorded on a stream of %s; make it with that device's NewEvent")
	}
	if err := e.dev.gate.enter(); err != nil {
		return err
	}
	defer e.dev.gate.leave()
	e.mu.Lock()
	created := e.handle == 0
	if created {
		if err := e.create(); err != nil {
			e.mu.Unlock()
			return err
		}
	}
	s.mark.Lock()
	h, seq := e.handle, s.Seq() // before the driver's call, which may not cover what others issue meanwhile
	err := e.dev.dev.EventRecord(h, s.handle)
	if err == nil {
		e.stream, e.seq, e.capture = s, seq, s.capture.Load()
	}
	s.mark.Unlock()
	e.mu.Unlock()
	if created {
		e.dev.trace(eventCreation, uint64(h), 0)
	}
	if err != nil {
		return e.dev.Check(err, "an event could not be recorded")
	}
	e.dev.trace(eventRecord, uint64(h), uint64(s.handle))
	return nil
}

func (e *Event) create() error {
	if e.closed {
		return fault.New(fault.Closed, "the event was closed")
	}
	h, err := e.dev.AcquireEvent(e.timing)
	if err != nil {
		return err
	}
	e.handle = h
	d, timing := e.dev, e.timing
	e.cleanup = runtime.AddCleanup(e, func(h driver.Event) { d.deleteEvent(h, timing) }, h)
	return nil
}

// deleteEvent gives the driver's event of an Event back to the pool. It traces the deletion first, since the next Event may get the same
// one.
func (d *Device) deleteEvent(h driver.Event, timing bool) {
	d.trace(eventDeletion, uint64(h), 0)
	d.ReleaseEvent(h, timing)
}

// Wait makes later work of s wait for what e marks. It returns at once, unless e belongs to a device that is not a peer: then the host
// waits. An event that was never recorded marks nothing.
func (s *Stream) Wait(e *Event) error {
	if err := e.Usable(); err != nil {
		return err
	}
	v, err := s.take()
	if err != nil {
		return err
	}
	defer s.giveBack(v)
	return s.WaitInTurn(e)
}

// WaitInTurn is Wait for a caller that has the turn of s.
func (s *Stream) WaitInTurn(e *Event) error {
	h, err := s.wait(e)
	if h != 0 && err == nil {
		s.dev.trace(eventWait, uint64(h), uint64(s.handle))
	}
	return err
}

// wait also returns the driver's event.
func (s *Stream) wait(e *Event) (driver.Event, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.handle == 0 || e.stream == s {
		return e.handle, nil
	}
	c, now := e.capture, s.capture.Load()
	if d := e.dev; d != s.dev {
		switch {
		case c != nil:
			return e.handle, fault.New(fault.Capture, "the event was recorded in the capture%s, which a stream of %s cannot join; "+
				"record it outside", c.where(), s.dev)
		case now != nil:
			return e.handle, s.isolated()
		case !d.Peer(s.dev): // such as the processor's: the device cannot wait for it, so the host does
			return e.handle, d.synchronizeEvent(e.handle, e.stream, e.seq)
		}
	}
	if err := e.dev.gate.enter(); err != nil { // another device's, which may be gone
		return e.handle, err
	}
	defer e.dev.gate.leave()
	var err error
	wait := func() error { return s.dev.dev.StreamWait(s.handle, e.handle) }
	switch {
	case now != nil && c != now:
		return e.handle, s.isolated()
	case c != nil && now == nil:
		err = c.add(s, wait)
	default:
		err = wait()
	}
	if err == nil && c == nil && e.stream.dev == s.dev {
		s.inherits(e.stream.id, e.seq)
	}
	return e.handle, s.dev.Check(err, "a stream could not be made to wait for an event")
}

// Query reports whether the work that e marks is done; true if e was never recorded.
func (e *Event) Query() (done bool, err error) {
	h, s, seq, err := e.point()
	if h == 0 || err != nil {
		return err == nil, err
	}
	err = e.dev.ask("Query", func(t driver.Thread) (err error) {
		done, err = e.dev.dev.EventQuery(t, h)
		return err
	})
	if done {
		s.finished(seq)
	}
	return done, e.dev.Check(err, "an event could not be queried")
}

// Synchronize waits until the work that e marks is done.
func (e *Event) Synchronize() error {
	h, s, seq, err := e.point()
	if h == 0 || err != nil {
		return err
	}
	return e.dev.synchronizeEvent(h, s, seq)
}

// synchronizeEvent waits for what the driver's event marks, operation seq of s.
func (d *Device) synchronizeEvent(h driver.Event, s *Stream, seq uint64) error {
	d.trace(eventSynchronization, uint64(h), 0)
	if err := d.ask("Synchronize", func(t driver.Thread) error { return d.dev.EventSynchronize(t, h) }); err != nil {
		return d.Check(err, "an event could not be waited for")
	}
	s.finished(seq)
	return d.failed(func() error { return d.dev.EventFailed(h) }, func(o *Stream) uint64 {
		if o == s {
			return seq
		}
		return 0
	})
}

// point returns the driver's event, the stream and the operation that e marks. An event that a capture recorded is an error.
func (e *Event) point() (driver.Event, *Stream, uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.capture != nil {
		return 0, nil, 0,
			fault.New(fault.Capture, "the event was recorded in the capture%s, whose work only replays run; record it outside",
				e.capture.where())
	}
	return e.handle, e.stream, e.seq, nil
}

// untimed returns the error, at the program's line, of events between which no time can be given until they are what it says.
func untimed(cause error, what, remedy string) error {
	e := fault.Wrap(fault.Invalid, cause, "Both events must be %s before calculating elapsed time; %s", what, remedy)
	e.Op = "Elapsed"
	e.File, e.Line = origin.Here()
	return e
}

// Elapsed returns the device's time from e to end, with a resolution of about half a microsecond.
func (e *Event) Elapsed(end *Event) (time.Duration, error) {
	if err := end.Usable(); err != nil {
		return 0, err
	}
	if !e.timing || !end.timing {
		return 0, untimed(nil, "made with timing", "give NewEvent the option cuda.EventOpt{Timing: true}")
	}
	if e.dev != end.dev {
		return 0, apart(e.dev, end.dev, "Both events must be on the same device, but one is on %s and the other on %s")
	}
	a, _, _, err := e.point()
	b, _, _, endErr := end.point()
	if err != nil || endErr != nil {
		return 0, errors.Join(err, endErr)
	}
	if a == 0 || b == 0 {
		return 0, untimed(nil, "recorded", "call Record of each")
	}
	t, err := e.dev.enter()
	if err != nil {
		return 0, err
	}
	defer e.dev.leave(t)
	ms, err := e.dev.dev.EventElapsed(t, a, b)
	if errors.Is(err, driver.NotReady) {
		return 0, untimed(err, "completed", "call Synchronize of the later one")
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), e.dev.Check(err, "the time between two events could not be read")
}

// Close gives the driver's event back to the pool; waits that were made with it stay. Closing twice does nothing.
func (e *Event) Close() {
	if h := e.take(); h != 0 {
		e.dev.deleteEvent(h, e.timing)
	}
}

// take takes the driver's event away for good and returns it.
func (e *Event) take() (h driver.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.handle != 0 {
		e.cleanup.Stop()
		h, e.handle, e.stream = e.handle, 0, nil
	}
	return h
}
