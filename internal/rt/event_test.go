package rt

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
)

// An event says that work is done when it is, and not before, and makes streams wait.
func TestEvent(t *testing.T) {
	d := openSim(t, nil)
	sim := d.Driver().(*hostsim.Device)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	query := func(e *Event, want bool) {
		t.Helper()
		if got, err := e.Query(); got != want || err != nil {
			t.Errorf("query gave %v, %v", got, err)
		}
	}
	a, err := d.Stream()
	must(err)
	b, err := d.Stream()
	must(err)
	e, end := d.NewEvent(true), d.NewEvent(true)
	query(e, true)
	must(e.Synchronize())
	must(a.Wait(e)) // marks nothing
	if h := e.Handle(); h != 0 {
		t.Errorf("an event that was never recorded has the handle %#x", h)
	}
	if _, err := e.Elapsed(end); err == nil || !strings.Contains(err.Error(),
		"Both events must be recorded before calculating elapsed time; call Record of each (at ") {
		t.Errorf("elapsed time of nothing: %v", err)
	}
	release := sim.Hold(a.handle)
	issue(t, a, 0)
	must(e.Record(a))
	query(e, false)
	if _, err := e.Elapsed(e); err == nil || !strings.Contains(err.Error(),
		"Both events must be completed before calculating elapsed time; call Synchronize of the later one: ") {
		t.Errorf("elapsed time of work under way: %v", err)
	}
	must(b.Wait(e))
	if done, err := b.Query(); done || err != nil {
		t.Errorf("a stream that waits for a held one is done: %v, %v", done, err)
	}
	if b.waited[a.id].Load() != 1 {
		t.Error("the wait is not remembered")
	}
	release()
	must(b.Synchronize())
	query(e, true)
	if a.done.Load() != 1 {
		t.Error("the event's work is not known to be done")
	}
	must(end.Record(a))
	must(end.Synchronize())
	if dt, err := e.Elapsed(end); dt < 0 || err != nil {
		t.Errorf("elapsed time is %v, %v", dt, err)
	}
	if _, err := e.Elapsed(d.NewEvent(false)); err == nil || !strings.Contains(err.Error(), "with timing") {
		t.Errorf("elapsed time without timing: %v", err)
	}
	if n := testing.AllocsPerRun(100, func() { must(errors.Join(e.Record(a), a.Synchronize())) }); n != 0 {
		t.Errorf("recording allocates %v times", n)
	}
	h := e.Handle()
	e.Close()
	e.Close()
	query(e, true)
	var f *fault.Error
	if err := e.Record(a); !errors.As(err, &f) || f.Kind != fault.Closed {
		t.Errorf("recording a closed event: %v", err)
	}
	again := d.NewEvent(true)
	must(again.Record(b))
	if again.Handle() != h {
		t.Error("the closed event's handle was not used again")
	}
}

// Events that become garbage go back to the pool.
func TestEventDropped(t *testing.T) {
	d := openSim(t, nil)
	if err := d.NewEvent(false).Record(d.DefaultStream()); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		runtime.GC()
		d.eventMu.Lock()
		n := len(d.events)
		d.eventMu.Unlock()
		if n == 1 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the event did not come back")
}

func TestEventOfAnotherDevice(t *testing.T) {
	a, b := openSim(t, nil), openSim(t, nil)
	e := a.NewEvent(true)
	if err := e.Record(b.DefaultStream()); err == nil || !strings.Contains(err.Error(), "cannot be recorded on a stream of") {
		t.Errorf("recording on another device's stream: %v", err)
	}
	if _, err := e.Elapsed(b.NewEvent(true)); err == nil || !strings.Contains(err.Error(), "must be on the same device") {
		t.Errorf("the time between devices: %v", err)
	}
}

// walkFailures runs f on a simulated device once for each call that f makes, and lets that call fail. f gets a Device with nothing but the
// driver's device, a stream, and a function that waits for that stream without being walked.
func walkFailures(t *testing.T, f func(d *Device, s *Stream, th driver.Thread, wait func() error) error, opts ...faults.Option) {
	base, err := hostsim.New(hostsim.Options{Devices: 1}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	th := base.Enter()
	defer th.Leave()
	h, err := base.StreamCreate(th, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	faults.Walk(t, base, func(dd driver.Device) error {
		d := &Device{dev: dd, info: dd.Info()}
		return f(d, &Stream{dev: d, handle: h, id: 1}, th, func() error { return base.StreamSynchronize(th, h) })
	}, opts...)
}

// Whichever call fails, the error names it and the event can be used afterwards.
func TestEventFailures(t *testing.T) {
	walkFailures(t, func(d *Device, s *Stream, th driver.Thread, _ func() error) error {
		defer func() {
			for _, e := range d.timing {
				d.dev.EventDestroy(th, e)
			}
		}()
		o := &Stream{dev: d, id: 0}
		e := d.NewEvent(true)
		defer e.Close()
		if err := e.Record(s); err != nil {
			return err
		}
		if err := o.Wait(e); err != nil {
			return err
		}
		if err := e.Synchronize(); err != nil {
			return err
		}
		if _, err := e.Query(); err != nil {
			return err
		}
		_, err := e.Elapsed(e)
		return err
	})
}
