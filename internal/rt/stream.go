package rt

import (
	"errors"
	"slices"
	"sync/atomic"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// Stream is an in-order queue of a device's work. Seq counts the operations issued to it, so that an access to memory is named by a stream
// and a number; waited remembers, for every other stream, up to which number this one already waits.
type Stream struct {
	dev    *Device
	handle driver.Stream
	id     int
	seq    atomic.Uint64
	issued atomic.Uint64
	waited [maxStreams]atomic.Uint64
	done   atomic.Uint64 // up to which operation the stream is known to be complete
	ring   ring
	lines  *lineRing // nil unless the device keeps calls
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

// Next counts one operation and returns its number, starting at 1.
func (s *Stream) Next() uint64 { return s.seq.Add(1) }

// Issued says that operation seq has been handed to the driver: from now on an event recorded on s covers it.
func (s *Stream) Issued(seq uint64) { raise(&s.issued, seq) }

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
func (s *Stream) Seq() uint64 { return s.issued.Load() }

// WaitFor makes later work of s wait for operation seq of o, unless it already does.
func (s *Stream) WaitFor(o *Stream, seq uint64) error {
	if s == o || s.waited[o.id].Load() >= seq {
		return nil
	}
	return s.WaitAll(o)
}

// WaitAll makes later work of s wait for all work that o has now.
func (s *Stream) WaitAll(o *Stream) error {
	if s == o {
		return nil
	}
	if err := o.Usable(); err != nil {
		return err
	}
	if s.dev != o.dev {
		return fault.New(fault.Unsupported, "streams of different devices wait through copies only; copy what is to be shared with To or CopyInto")
	}
	now := o.Seq()
	e, err := s.dev.AcquireEvent(false)
	if err != nil {
		return err
	}
	defer s.dev.ReleaseEvent(e, false)
	if err := s.dev.dev.EventRecord(e, o.handle); err != nil {
		return s.dev.Check(err, "a stream could not be made to wait for another")
	}
	if err := s.dev.dev.StreamWait(s.handle, e); err != nil {
		return s.dev.Check(err, "a stream could not be made to wait for another")
	}
	s.waited[o.id].Store(now)
	s.dev.traceWait(uint64(e), uint64(o.handle), uint64(s.handle))
	return nil
}

// Capturing reports whether the work of s is being recorded as a graph.
func (s *Stream) Capturing() bool {
	_, capturing := (&backend{s.dev}).Capturing(alloc.Stream(s.handle))
	return capturing
}

// Query reports whether all work of s is done.
func (s *Stream) Query() (bool, error) {
	seq := s.Seq()
	t := s.dev.dev.Enter()
	defer t.Leave()
	ok, err := s.dev.dev.StreamQuery(t, s.handle)
	if ok {
		s.finished(seq)
	}
	return ok, s.dev.Check(err, "the stream could not be queried")
}

// Synchronize waits until all work of s is done.
func (s *Stream) Synchronize() error {
	s.dev.trace(streamSynchronization, uint64(s.handle), 0)
	seq := s.Seq()
	t := s.dev.dev.Enter()
	defer t.Leave()
	if err := s.dev.dev.StreamSynchronize(t, s.handle); err != nil {
		return s.dev.Check(err, "the stream could not be waited for")
	}
	s.finished(seq)
	return nil
}

func (d *Device) newStream(id int) (*Stream, error) {
	t := d.dev.Enter()
	defer t.Leave()
	h, err := d.dev.StreamCreate(t, true, 0)
	if err != nil {
		return nil, d.Check(err, "a stream could not be created")
	}
	s := &Stream{dev: d, handle: h, id: id}
	if d.lines {
		s.lines = &lineRing{}
	}
	d.streams[s.id].Store(s)
	return s, nil
}

// DefaultStream is where work goes unless told otherwise.
func (d *Device) DefaultStream() *Stream { return d.streams[0].Load() }

// Stream returns a stream of the device's pool of 32, handed out in turn, so that streams far apart in time may be one.
func (d *Device) Stream() (*Stream, error) {
	s, created, err := d.nextStream()
	if created {
		d.trace(streamCreation, uint64(s.handle), 0)
	}
	return s, err
}

// nextStream also returns whether the stream was made for this.
func (d *Device) nextStream() (s *Stream, created bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
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

// nextCaptureStream also returns whether the stream was made for this.
func (d *Device) nextCaptureStream() (s *Stream, created bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.idle); n > 0 {
		s := d.idle[n-1]
		d.idle = d.idle[:n-1]
		return s, false, nil
	}
	if d.capturing == capturesAtOnce {
		return nil, false, fault.New(fault.Capture, "%d captures are under way on the device, and there are streams for no more; end one first, or name a stream", capturesAtOnce)
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
	t := d.dev.Enter()
	defer t.Leave()
	e, err := d.dev.EventCreate(t, timing)
	return e, d.Check(err, "an event could not be created")
}

// KeepEvent makes sure that the pool has an event, so that the next wait between streams does not fail for want of one.
func (d *Device) KeepEvent() error {
	e, err := d.AcquireEvent(false)
	if err == nil {
		d.ReleaseEvent(e, false)
	}
	return err
}

// ReleaseEvent gives it back.
func (d *Device) ReleaseEvent(e driver.Event, timing bool) {
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	pool := d.eventPool(timing)
	*pool = append(*pool, e)
}

// takeEvents empties the pool, to which the collector may be giving events back.
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
