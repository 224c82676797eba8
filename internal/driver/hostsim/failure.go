package hostsim

import "tenon.dev/internal/driver"

// assertFailure is a failed assertion that the device survived. It follows the order of streams through records and waits, so that it can
// be reported to whoever waits for later work. The machine's mu guards told and the references to it.
type assertFailure struct {
	err  *driver.Error
	told bool
}

// untold reports whether f is not yet reported.
func (f *assertFailure) untold() bool { return f != nil && !f.told }

// tell returns f's error if it was not reported yet, and marks it as reported.
func (f *assertFailure) tell() error {
	if !f.untold() {
		return nil
	}
	f.told = true
	return f.err
}

// failed records that an assertion failed in the work of s, unless an earlier failure there is still unreported; mu is held.
func (s *stream) failed(err *driver.Error) {
	if s.failure.untold() {
		return
	}
	s.failure = &assertFailure{err: err}
	d := s.dev
	left := d.failures[:0]
	for _, f := range d.failures {
		if f.untold() {
			left = append(left, f)
		}
	}
	clear(d.failures[len(left):])
	d.failures = append(left, s.failure)
}

// inherits records that the work of s comes after that of f; mu is held.
func (s *stream) inherits(f *assertFailure) {
	if !s.failure.untold() {
		s.failure = f
	}
}

// StreamFailed returns the failure that s has reached, once.
func (d *device) StreamFailed(s driver.Stream) error {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if st := d.stream(s); st != nil {
		return st.failure.tell()
	}
	return nil
}

// EventFailed returns the failure before e's most recent record, once.
func (d *device) EventFailed(e driver.Event) error {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if ev := d.m.events.get(uintptr(e)); ev != nil && ev.rec != nil {
		return ev.rec.failure.tell()
	}
	return nil
}

// DeviceFailed returns the oldest failure on any stream, once.
func (d *device) DeviceFailed() error {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	for _, f := range d.failures {
		if err := f.tell(); err != nil {
			return err
		}
	}
	return nil
}
