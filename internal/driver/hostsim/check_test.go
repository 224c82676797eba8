package hostsim

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"tenon.dev/internal/check"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
)

// watched is a device with a checker.
type watched struct {
	*Device
	t   *testing.T
	th  driver.Thread
	log bytes.Buffer
	p   driver.Ptr // 4 KiB of zeros
}

func newWatched(t *testing.T, o Options) *watched {
	return watch(t, New(o))
}

func watch(t *testing.T, d *Driver) *watched {
	t.Helper()
	w := &watched{t: t}
	log, err := check.NewLog(&w.log, nil, check.Tools...)
	must(t, err)
	d.m.check = check.New(log)
	w.Device, w.th = enter(t, d, 0)
	w.p, err = w.MemAlloc(w.th, 4096)
	must(t, err)
	must(t, w.Memset(w.p, 0, 4, 1024, 0))
	must(t, w.Synchronize(w.th))
	return w
}

// found returns the classes of all findings so far, sorted.
func (w *watched) found() (classes []string) {
	w.t.Helper()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for line := range bytes.Lines(w.log.Bytes()) {
		var e struct {
			Finding *check.Finding `json:"finding"`
		}
		must(w.t, json.Unmarshal(line, &e))
		if e.Finding != nil {
			classes = append(classes, e.Finding.Class)
		}
	}
	slices.Sort(classes)
	return classes
}

// TestCheckedOrder holds every way to order two streams, and the lack of one: the second fill races with the first unless something orders it.
func TestCheckedOrder(t *testing.T) {
	event := func(w *watched) driver.Event {
		e, err := w.EventCreate(w.th, false)
		must(w.t, err)
		return e
	}
	for name, c := range map[string]struct {
		first, second func(w *watched) driver.Stream // nil: a stream of its own
		order         func(w *watched, a, b driver.Stream)
		races         bool
	}{
		"nothing": {order: func(*watched, driver.Stream, driver.Stream) {}, races: true},
		"event": {order: func(w *watched, a, b driver.Stream) {
			e := event(w)
			must(w.t, w.EventRecord(e, a))
			must(w.t, w.StreamWait(b, e))
		}},
		"event that was never recorded": {order: func(w *watched, a, b driver.Stream) { must(w.t, w.StreamWait(b, event(w))) }, races: true},
		"stream synchronize":            {order: func(w *watched, a, b driver.Stream) { must(w.t, w.StreamSynchronize(w.th, a)) }},
		"wrong stream synchronize":      {order: func(w *watched, a, b driver.Stream) { must(w.t, w.StreamSynchronize(w.th, b)) }, races: true},
		"device synchronize":            {order: func(w *watched, a, b driver.Stream) { must(w.t, w.Synchronize(w.th)) }},
		"event synchronize": {order: func(w *watched, a, b driver.Stream) {
			e := event(w)
			must(w.t, w.EventRecord(e, a))
			must(w.t, w.EventSynchronize(w.th, e))
		}},
		"query": {order: func(w *watched, a, b driver.Stream) {
			for done := false; !done; {
				var err error
				done, err = w.StreamQuery(w.th, a)
				must(w.t, err)
			}
		}},
		"query too early": {order: func(w *watched, a, b driver.Stream) {
			release := w.Hold(a)
			if done, err := w.StreamQuery(w.th, a); done || err != nil {
				w.t.Errorf("%v, %v", done, err)
			}
			release()
		}, races: true},
		"copy to pageable memory": {order: func(w *watched, a, b driver.Stream) { must(w.t, w.CopyDtoH(make([]byte, 4), w.p, a)) }},
		"free, which promises no order": {order: func(w *watched, a, b driver.Stream) {
			p, err := w.MemAlloc(w.th, 64)
			must(w.t, err)
			must(w.t, w.MemFree(w.th, p))
		}, races: true},
		"callback": {order: func(w *watched, a, b driver.Stream) {
			heard := make(chan bool)
			id := w.RegisterCallback(func() { close(heard) })
			must(w.t, w.Callback(a, id))
			<-heard
		}},
		"legacy stream between":                   {first: blocking, second: blocking, order: func(w *watched, a, b driver.Stream) { must(w.t, w.Memset(w.p+2048, 1, 4, 1, 0)) }},
		"legacy stream beside":                    {order: func(w *watched, a, b driver.Stream) { must(w.t, w.Memset(w.p+2048, 1, 4, 1, 0)) }, races: true},
		"legacy first":                            {first: legacy, second: blocking, order: func(*watched, driver.Stream, driver.Stream) {}},
		"legacy second":                           {first: blocking, second: legacy, order: func(*watched, driver.Stream, driver.Stream) {}},
		"legacy and a stream that does not block": {first: legacy, order: func(*watched, driver.Stream, driver.Stream) {}, races: true},
	} {
		w := newWatched(t, Options{})
		s := [2]driver.Stream{}
		for i, f := range []func(w *watched) driver.Stream{c.first, c.second} {
			if f == nil {
				f = func(w *watched) driver.Stream { return streams(w.t, w.Device, w.th, 1)[0] }
			}
			s[i] = f(w)
		}
		must(t, w.Memset(w.p, 1, 4, 256, s[0]))
		c.order(w, s[0], s[1])
		must(t, w.Memset(w.p+512, 2, 4, 256, s[1]))
		must(t, w.Synchronize(w.th))
		if got := slices.Contains(w.found(), check.StreamRace); got != c.races || len(w.found()) > 1 {
			t.Errorf("%s: found %v, want a race: %v", name, w.found(), c.races)
		}
	}
}

func blocking(w *watched) driver.Stream {
	s, err := w.StreamCreate(w.th, false, 0)
	must(w.t, err)
	return s
}

func legacy(*watched) driver.Stream { return driver.StreamLegacy }

// TestCheckedGraph: launches of one executable are ordered, of two are not.
func TestCheckedGraph(t *testing.T) {
	w := newWatched(t, Options{})
	s := streams(t, w.Device, w.th, 3)
	must(t, w.CaptureBegin(w.th, s[0], driver.CaptureThreadLocal))
	must(t, w.Memset(w.p, 3, 4, 16, s[0]))
	g, err := w.CaptureEnd(w.th, s[0])
	must(t, err)
	e, err := w.GraphInstantiate(w.th, g)
	must(t, err)
	other, err := w.GraphInstantiate(w.th, g)
	must(t, err)
	must(t, w.GraphLaunch(e, s[0]))
	must(t, w.GraphLaunch(e, s[1]))
	must(t, w.StreamSynchronize(w.th, s[0]))
	if got := w.found(); len(got) != 0 {
		t.Errorf("one executable: %v", got)
	}
	must(t, w.GraphLaunch(other, s[2]))
	must(t, w.Synchronize(w.th))
	if got := w.found(); !slices.Equal(got, []string{check.StreamRace}) {
		t.Errorf("two executables: %v", got)
	}
}

// TestCheckedCalls: what the driver refuses is told, and what closing finds.
func TestCheckedCalls(t *testing.T) {
	w := newWatched(t, Options{Addresses: NeverReuse()})
	q, err := w.MemAlloc(w.th, 64)
	must(t, err)
	want(t, w.MemFree(w.th, q+8), "MemFree", driver.InvalidValue)
	host := make([]byte, 128)
	want(t, w.CopyHtoD(q, host, 0), "CopyHtoD", driver.InvalidValue)
	must(t, w.MemFree(w.th, q))
	want(t, w.CopyDtoH(host[:64], q, 0), "CopyDtoH", driver.InvalidValue)
	want(t, w.CopyDtoD(w.p, q, 64, 0), "CopyDtoD", driver.InvalidValue)
	want(t, w.CopyDtoD(w.p+4090, w.p, 64, 0), "CopyDtoD", driver.InvalidValue)
	want(t, w.Memset(q, 0, 1, 1, 0), "Memset", driver.InvalidValue)
	raw, err := w.MemAlloc(w.th, 64)
	must(t, err)
	must(t, w.CopyDtoH(host[:64], raw, 0))
	must(t, w.MemFree(w.th, raw))
	if _, err := w.LoadModule(w.th, []byte("nonsense")); err == nil {
		t.Error("nonsense was loaded")
	}
	must(t, w.Close())
	got := w.found()
	if want := []string{check.InvalidFree, check.Leak, check.OutOfBounds, check.OutOfBounds, check.Uninitialized, check.UseAfterFree, check.UseAfterFree, check.UseAfterFree}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

// TestCheckedFault: a fault is told with its kernel, and the memory of a lost device is no leak. The processor's device tells the same.
func TestCheckedFault(t *testing.T) {
	for name, d := range map[string]*Driver{"simulated": New(Options{}), "inline": CPU()} {
		w := watch(t, d)
		f := kernel(t, w.Device, w.th, drivertest.KIR().Illegal, "illegal")
		s := streams(t, w.Device, w.th, 1)[0]
		err := w.Launch(&driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Args: binary.LittleEndian.AppendUint64(nil, uint64(w.p)+4096)})
		if err == nil {
			err = w.StreamSynchronize(w.th, s)
		}
		if !errors.Is(err, driver.IllegalAddress) {
			t.Errorf("%s: %v", name, err)
		}
		if !d.m.inline { // else the device is not lost, and has leaked
			must(t, w.Close())
		}
		if got := w.found(); !slices.Equal(got, []string{check.OutOfBounds}) || !strings.Contains(w.log.String(), `"kernel":"illegal"`) ||
			!strings.Contains(w.log.String(), "1 bytes after the nearest allocation") {
			t.Errorf("%s: %v\n%s", name, got, w.log.String())
		}
	}
}

// TestCheckedHostView: memory that the host has seen counts as written.
func TestCheckedHostView(t *testing.T) {
	w := watch(t, CPU())
	p, err := w.MemAlloc(w.th, 64)
	must(t, err)
	if len(w.HostView(p, 64)) != 64 {
		t.Error("no view")
	}
	must(t, w.CopyDtoH(make([]byte, 64), p, 0))
	if got := w.found(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestCheckerThatCannotBe: a bad setting is an error of opening.
func TestCheckerThatCannotBe(t *testing.T) {
	d := New(Options{})
	d.m.checkErr = errors.New("no such tool")
	if _, err := d.Open(0); err == nil || !strings.Contains(err.Error(), "no such tool") {
		t.Errorf("%v", err)
	}
}
