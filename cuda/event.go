package cuda

import (
	"fmt"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

// Event marks a point in a stream's work, for waiting and, if it was made with timing, for measuring. The first Record creates the driver's
// event. An Event is safe for concurrent use.
type Event rt.Event

func (e *Event) rt() *rt.Event { return receiver((*rt.Event)(e)) }

// open is rt for a call that a closed event refuses.
func (e *Event) open() *rt.Event {
	r := e.rt()
	if r.Closed() {
		panic(misused(fault.New(fault.Closed, "the event was closed; close it after the last use of it, or make another with NewEvent")))
	}
	return r
}

// EventOpt are the options of NewEvent.
type EventOpt struct {
	// Timing makes an event with which Elapsed can measure. Others are cheaper to record.
	Timing bool
}

// NewEvent returns an event that was never recorded.
func (d *Device) NewEvent(opts ...EventOpt) *Event {
	opt, err := only(opts)
	if err != nil {
		panic(err)
	}
	return (*Event)(d.rt().NewEvent(opt.Timing))
}

// Handle is the driver's handle, 0 before the first Record.
func (e *Event) Handle() uint64 { return e.rt().Handle() }

// Record makes e mark the point after all work that s has now, instead of what it marked before; it returns at once. The stream must belong
// to the event's device. In a capture e marks the captured work, which only other streams' Wait can use.
func (e *Event) Record(s *Stream) (err error) {
	defer returned(&err)
	r := e.open()
	if err := s.settle("Record"); err != nil {
		return err
	}
	return r.Record((*rt.Stream)(s))
}

// Query reports whether the work that e marks is done; true if e was never recorded. The function of a capture must not call it, unless the
// capture's mode is CaptureRelaxed; other goroutines may at any time.
func (e *Event) Query() (ok bool, err error) {
	defer returned(&err)
	return e.open().Query()
}

// Synchronize waits until the work that e marks is done, and returns its fault, if any. It may be called where Query may.
func (e *Event) Synchronize() (err error) {
	defer returned(&err)
	return e.open().Synchronize()
}

// Elapsed returns the device's time from e to end, with a resolution of about half a microsecond. Both must have timing, be recorded and be
// complete.
func (e *Event) Elapsed(end *Event) (t time.Duration, err error) {
	defer returned(&err)
	r := e.open()
	if (*rt.Event)(end).Usable() == nil {
		end.open()
	}
	return r.Elapsed((*rt.Event)(end))
}

// Close gives the driver's event back; waits that were made with e stay. Without Close, the garbage collector gives it back. A second Close
// does nothing.
func (e *Event) Close() { e.rt().Close() }

// String describes the event, such as "cuda.Event(NVIDIA H200, not recorded)".
func (e *Event) String() string {
	if err := (*rt.Event)(e).Usable(); err != nil {
		return fmt.Sprintf("cuda.Event(%v)", err)
	}
	state := "not recorded"
	if h := e.Handle(); h != 0 {
		state = fmt.Sprintf("%#x", h)
	}
	return fmt.Sprintf("cuda.Event(%s, %s)", e.rt().Device().Info().Name, state)
}
