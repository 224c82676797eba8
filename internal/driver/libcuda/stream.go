//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"math"
	"time"

	"tenon.dev/internal/driver"
)

// pollTime is how long a wait polls before it blocks: blocking costs a wake-up by interrupt, tens of microseconds on an H200.
const pollTime = 20 * time.Microsecond

// StreamCreate makes a stream.
func (d *Device) StreamCreate(t driver.Thread, nonBlocking bool, priority int) (driver.Stream, error) {
	th, err := d.token("StreamCreate", t)
	if err != nil {
		return 0, err
	}
	flags := uintptr(0)
	if nonBlocking {
		flags = 1 // CU_STREAM_NON_BLOCKING
	}
	if err := d.do("StreamCreate", procStreamCreate, th.out.at(0), flags, uintptr(uint32(int32(priority)))); err != nil {
		return 0, err
	}
	d.hold(heldStream, uintptr(th.out[0]))
	return driver.Stream(th.out[0]), nil
}

// StreamDestroy releases a stream; its work still completes.
func (d *Device) StreamDestroy(t driver.Thread, s driver.Stream) error {
	if _, err := d.token("StreamDestroy", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.release("StreamDestroy", heldStream, uintptr(s), procStreamDestroy)
}

// StreamQuery reports whether s is idle.
func (d *Device) StreamQuery(t driver.Thread, s driver.Stream) (bool, error) {
	return d.query("StreamQuery", t, procStreamQuery, uintptr(s))
}

// StreamSynchronize blocks until s is idle.
func (d *Device) StreamSynchronize(t driver.Thread, s driver.Stream) error {
	return d.wait("StreamSynchronize", t, procStreamQuery, procStreamSynchronize, uintptr(s))
}

// StreamWait makes s wait for e.
func (d *Device) StreamWait(s driver.Stream, e driver.Event) error {
	return d.do("StreamWait", procStreamWaitEvent, uintptr(s), uintptr(e), 0)
}

// EventCreate makes an event.
func (d *Device) EventCreate(t driver.Thread, timing bool) (driver.Event, error) {
	th, err := d.token("EventCreate", t)
	if err != nil {
		return 0, err
	}
	flags := uintptr(1) // CU_EVENT_BLOCKING_SYNC
	if !timing {
		flags |= 2 // CU_EVENT_DISABLE_TIMING
	}
	if err := d.do("EventCreate", procEventCreate, th.out.at(0), flags); err != nil {
		return 0, err
	}
	d.hold(heldEvent, uintptr(th.out[0]))
	return driver.Event(th.out[0]), nil
}

// EventDestroy releases an event.
func (d *Device) EventDestroy(t driver.Thread, e driver.Event) error {
	if _, err := d.token("EventDestroy", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.release("EventDestroy", heldEvent, uintptr(e), procEventDestroy)
}

// EventRecord records e on s.
func (d *Device) EventRecord(e driver.Event, s driver.Stream) error {
	return d.do("EventRecord", procEventRecord, uintptr(e), uintptr(s))
}

// EventQuery reports whether the work before e's last record is done.
func (d *Device) EventQuery(t driver.Thread, e driver.Event) (bool, error) {
	return d.query("EventQuery", t, procEventQuery, uintptr(e))
}

// EventSynchronize blocks until that work is done.
func (d *Device) EventSynchronize(t driver.Thread, e driver.Event) error {
	return d.wait("EventSynchronize", t, procEventQuery, procEventSynchronize, uintptr(e))
}

// EventElapsed returns the milliseconds from a to b, with the resolution of the device's timer (about half a microsecond).
func (d *Device) EventElapsed(t driver.Thread, a, b driver.Event) (float32, error) {
	th, err := d.token("EventElapsed", t)
	if err != nil {
		return 0, err
	}
	if err := d.do("EventElapsed", procEventElapsedTime, th.out.at(0), uintptr(a), uintptr(b)); err != nil {
		return 0, err
	}
	return math.Float32frombits(uint32(th.out[0])), nil
}

// query asks whether a stream or event is done.
func (d *Device) query(op string, t driver.Thread, p proc, handle uintptr) (bool, error) {
	if _, err := d.token(op, t); err != nil {
		return false, err
	}
	if lost := d.lost.Load(); lost != nil {
		return false, &driver.Error{Call: op, Code: lost.Code, Detail: lost.Detail}
	}
	switch code := d.lib.call(p, handle); code {
	case driver.Success:
		return true, nil
	case driver.NotReady:
		return false, nil
	default:
		return false, d.failure(op, code)
	}
}

// wait polls for pollTime and then blocks.
func (d *Device) wait(op string, t driver.Thread, ask, block proc, handle uintptr) error {
	for start := time.Now(); ; {
		done, err := d.query(op, t, ask, handle)
		if done || err != nil {
			return err
		}
		if time.Since(start) > pollTime {
			return d.do(op, block, handle)
		}
	}
}
