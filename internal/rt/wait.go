package rt

import (
	"fmt"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/origin"
)

// While a graph is captured, a call that waits for the device breaks the capture, whichever thread makes it. Other threads then wait for
// events of the streams that are not captured.

// disturbs returns the capture of thread t that a device wait on it would break, or nil, and reports whether it would break one of other
// threads.
func (d *Device) disturbs(t driver.Thread) (own *Capture, others bool) {
	d.capturesMu.Lock()
	defer d.capturesMu.Unlock()
	for _, c := range d.captures {
		if c.owner == t.ID() {
			own = c
		} else {
			others = true
		}
	}
	return own, others
}

// refuse returns the error of op, which would wait for what or query it, in the function that c captures. The driver would break the
// capture, without a line; instead the capture fails with this error.
func (c *Capture) refuse(op, what string) error {
	e := fault.New(fault.Capture, "%s cannot be waited for in a capture, whose work only replays run; wait before or after it", what)
	e.Op = op
	e.File, e.Line = origin.Here()
	c.refused.CompareAndSwap(nil, e)
	return e
}

// Refused returns the error of the first wait for the device in the function that c captures, or nil.
func (c *Capture) Refused() error {
	if e := c.refused.Load(); e != nil {
		return e
	}
	return nil
}

// wait waits for all work of the device. On a thread that captures, it returns an error.
func (d *Device) wait(t driver.Thread) error {
	d.quiet.RLock()
	own, others := d.disturbs(t)
	switch {
	case own != nil:
		d.quiet.RUnlock()
		return own.refuse("Synchronize", "the device")
	case !others:
		defer d.quiet.RUnlock()
		return d.dev.Synchronize(t)
	}
	events := make([]driver.Event, 0, MaxStreams)
	defer func() {
		for _, e := range events {
			d.ReleaseEvent(e, false)
		}
	}()
	var err error
	for s := range d.allStreams {
		e, marked, markErr := s.marked()
		if marked {
			events = append(events, e)
		}
		if markErr != nil {
			err = markErr
			break
		}
	}
	d.quiet.RUnlock()
	if err != nil {
		return err
	}
	return (&backend{d}).relaxed(func(t driver.Thread) error {
		for _, e := range events {
			if err := d.dev.EventSynchronize(t, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// marked records an event at the end of the stream's work outside captures. ok is false for a stream that is being captured, whose earlier
// work has been waited for.
func (s *Stream) marked() (e driver.Event, ok bool, err error) {
	s.mark.Lock()
	defer s.mark.Unlock()
	if s.capture.Load() != nil {
		return 0, false, nil
	}
	if e, err = s.dev.AcquireEvent(false); err != nil {
		return 0, false, err
	}
	return e, true, s.dev.dev.EventRecord(e, s.handle)
}

// undisturbed queries s or waits for it, for op, with call or, if that would break a capture of another thread, with like, which does the
// same for an event.
func (d *Device) undisturbed(op string, s *Stream, call func(t driver.Thread) error,
	like func(t driver.Thread, e driver.Event) error) error {
	t, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave(t)
	d.quiet.RLock()
	own, others := d.disturbs(t)
	switch {
	case own != nil && (own.spec.Mode != CaptureRelaxed || s.capture.Load() == own):
		d.quiet.RUnlock()
		return own.refuse(op, fmt.Sprintf("stream %d", s.id))
	case !others:
		defer d.quiet.RUnlock()
		return call(t)
	}
	e, ok, err := s.marked()
	d.quiet.RUnlock()
	if ok {
		defer d.ReleaseEvent(e, false)
	}
	if err != nil || !ok {
		if c := s.capture.Load(); err == nil && c != nil {
			err = fault.New(fault.Capture,
				"stream %d records the graph that is captured%s, and cannot be waited for; wait for the capture's end", s.id, c.where())
		}
		return err
	}
	return (&backend{d}).relaxed(func(t driver.Thread) error { return like(t, e) })
}

// ask queries an event or waits for it, for op, with call. Captures of other threads do not notice.
func (d *Device) ask(op string, call func(t driver.Thread) error) error {
	return (&backend{d}).relaxed(func(t driver.Thread) error {
		if own, _ := d.disturbs(t); own != nil && own.spec.Mode != CaptureRelaxed {
			return own.refuse(op, "the event")
		}
		return call(t)
	})
}

// enlist adds c to the captures under way.
func (d *Device) enlist(c *Capture) {
	d.capturesMu.Lock()
	defer d.capturesMu.Unlock()
	d.captures = append(d.captures, c)
}

// delist removes c from them.
func (d *Device) delist(c *Capture) {
	d.capturesMu.Lock()
	defer d.capturesMu.Unlock()
	d.captures = slices.DeleteFunc(d.captures, func(o *Capture) bool { return o == c })
}
