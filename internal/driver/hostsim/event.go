package hostsim

import (
	"tenon.dev/internal/check"
	"tenon.dev/internal/driver"
)

// event marks a point in a stream: its most recent record, or a point in a capture.
type event struct {
	dev    *device
	timing bool
	rec    *record
	cap    *capture
	deps   []int32
}

// record is one record of an event. Waits refer to it, so that recording the event again or destroying it does not affect them.
type record struct {
	refs int
	done bool  // it has run
	at   int64 // when it is complete on the device clock
	// failure is the failed assertion that precedes it, or nil.
	failure *assertFailure
	// point is the point in the order of work, for a checker.
	point *check.Point
}

// record returns a record with one reference; mu is held.
func (m *machine) record() *record {
	if n := len(m.records); n > 0 {
		r := m.records[n-1]
		m.records = m.records[:n-1]
		*r = record{refs: 1}
		return r
	}
	return &record{refs: 1}
}

// unref releases one reference; mu is held.
func (m *machine) unref(r *record) {
	if r.refs--; r.refs == 0 {
		m.records = append(m.records, r)
	}
}

// forget drops the event's record; mu is held.
func (e *event) forget(m *machine) {
	if e.rec != nil {
		m.unref(e.rec)
	}
	e.rec, e.cap, e.deps = nil, nil, nil
}

// reached records the event at a node of e that a run has reached; mu is held. For a checker, all runs of e come before it.
func (e *event) reached(m *machine, x *graphExec, at int64) *record {
	e.forget(m)
	e.rec = m.record()
	e.rec.done, e.rec.at, e.rec.point = true, at, x.point
	return e.rec
}

// EventCreate returns an event.
func (d *device) EventCreate(t driver.Thread, timing bool) (driver.Event, error) {
	if _, err := d.lockThread("EventCreate", t); err != nil {
		return 0, err
	}
	defer d.m.mu.Unlock()
	return driver.Event(d.m.events.add(&event{dev: d, timing: timing})), nil
}

// EventDestroy releases the handle; waits for a record of it continue.
func (d *device) EventDestroy(t driver.Thread, e driver.Event) error {
	if d.lost() {
		return nil
	}
	if _, err := d.lockThread("EventDestroy", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	ev := d.m.events.remove(uintptr(e))
	if ev == nil {
		return fail("EventDestroy", driver.InvalidHandle, "")
	}
	ev.forget(d.m)
	return nil
}

// EventRecord records e after all work queued on s so far.
func (d *device) EventRecord(e driver.Event, s driver.Stream) error {
	const call = "EventRecord"
	st, err := d.admit(call, s)
	if err != nil {
		return err
	}
	m := d.m
	defer m.mu.Unlock()
	ev := m.events.get(uintptr(e))
	if ev == nil || ev.dev != d {
		return fail(call, driver.InvalidHandle, "")
	}
	if st.cap != nil {
		ev.forget(m)
		ev.cap, ev.deps = st.cap, append([]int32(nil), st.deps...)
		return nil
	}
	ev.forget(m)
	ev.rec = m.record()
	ev.rec.point = st.mark()
	if m.inline {
		ev.rec.done, ev.rec.at = true, m.clock()
		return nil
	}
	ev.rec.refs++
	st.push(&op{kind: opRecord, rec: ev.rec})
	return nil
}

// lockEvent is lockThread for a call that queries e; mu is held on success. A capture that forbids the call is invalidated.
func (d *device) lockEvent(call string, t driver.Thread, e driver.Event) (*event, error) {
	tok, err := d.lockThread(call, t)
	if err != nil {
		return nil, err
	}
	ev := d.m.events.get(uintptr(e))
	code := driver.Success
	switch {
	case ev == nil:
		code = driver.InvalidHandle
	case ev.cap != nil && ev.cap.invalid:
		code = driver.InvalidValue
	case ev.cap != nil:
		ev.cap.invalid = !ev.cap.ended
		code = driver.CapturedEvent
	default:
		code = d.m.forbidden(tok)
	}
	if code != driver.Success {
		d.m.mu.Unlock()
		return nil, fail(call, code, "")
	}
	return ev, nil
}

// EventQuery reports whether the work before e's most recent record is done.
func (d *device) EventQuery(t driver.Thread, e driver.Event) (bool, error) {
	ev, err := d.lockEvent("EventQuery", t, e)
	if err != nil {
		return false, err
	}
	defer d.m.mu.Unlock()
	if ev.rec == nil {
		return true, nil
	}
	r := ev.rec
	r.refs++
	done := d.m.poll(target{rec: r})
	d.m.unref(r)
	return done, d.gone("EventQuery")
}

// EventSynchronize blocks until that work is done.
func (d *device) EventSynchronize(t driver.Thread, e driver.Event) error {
	ev, err := d.lockEvent("EventSynchronize", t, e)
	if err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	if ev.rec == nil {
		return nil
	}
	r := ev.rec
	r.refs++
	d.m.await(target{rec: r})
	d.m.unref(r)
	return d.gone("EventSynchronize")
}

// EventElapsed returns the milliseconds from a to b on the device clock.
func (d *device) EventElapsed(t driver.Thread, a, b driver.Event) (float32, error) {
	const call = "EventElapsed"
	if _, err := d.lockThread(call, t); err != nil {
		return 0, err
	}
	defer d.m.mu.Unlock()
	var at [2]int64
	if x, y := d.m.events.get(uintptr(a)), d.m.events.get(uintptr(b)); x != nil && y != nil && x.dev != y.dev {
		return 0, fail(call, driver.InvalidHandle, "events of two devices")
	}
	for i, h := range []driver.Event{a, b} {
		ev := d.m.events.get(uintptr(h))
		switch {
		case ev == nil || !ev.timing:
			return 0, fail(call, driver.InvalidHandle, "an event without timing")
		case ev.cap != nil:
			return 0, fail(call, driver.CapturedEvent, "")
		case ev.rec == nil:
			return 0, fail(call, driver.InvalidHandle, "an event that was never recorded")
		}
		if !d.m.poll(target{rec: ev.rec}) {
			if err := d.gone(call); err != nil {
				return 0, err
			}
			return 0, fail(call, driver.NotReady, "")
		}
		at[i] = ev.rec.at
	}
	return float32(at[1]-at[0]) / 1e6, nil
}
