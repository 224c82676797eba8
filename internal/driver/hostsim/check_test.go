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
	"tenon.dev/internal/checklog"
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
	d.m.watched(log)
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
			Finding *checklog.Finding `json:"finding"`
		}
		must(w.t, json.Unmarshal(line, &e))
		if e.Finding != nil {
			classes = append(classes, e.Finding.Class)
		}
	}
	slices.Sort(classes)
	return classes
}

// TestCheckedOrder tries every way to order two streams, and no order: the second fill races with the first unless something orders it.
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
		"event that was never recorded": {order: func(w *watched, a, b driver.Stream) {
			must(w.t, w.StreamWait(b, event(w)))
		}, races: true},
		"stream synchronize":       {order: func(w *watched, a, b driver.Stream) { must(w.t, w.StreamSynchronize(w.th, a)) }},
		"wrong stream synchronize": {order: func(w *watched, a, b driver.Stream) { must(w.t, w.StreamSynchronize(w.th, b)) }, races: true},
		"device synchronize":       {order: func(w *watched, a, b driver.Stream) { must(w.t, w.Synchronize(w.th)) }},
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
		"legacy stream between": {first: blocking, second: blocking, order: func(w *watched, a, b driver.Stream) {
			must(w.t, w.Memset(w.p+2048, 1, 4, 1, 0))
		}},
		"legacy stream beside": {order: func(w *watched, a, b driver.Stream) {
			must(w.t, w.Memset(w.p+2048, 1, 4, 1, 0))
		}, races: true},
		"legacy first":  {first: legacy, second: blocking, order: func(*watched, driver.Stream, driver.Stream) {}},
		"legacy second": {first: blocking, second: legacy, order: func(*watched, driver.Stream, driver.Stream) {}},
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
		if got := slices.Contains(w.found(), checklog.StreamRace); got != c.races || len(w.found()) > 1 {
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

// TestCheckedGraph checks that launches of one executable are ordered, and launches of two are not.
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
	if got := w.found(); !slices.Equal(got, []string{checklog.StreamRace}) {
		t.Errorf("two executables: %v", got)
	}
}

// TestCheckedCalls checks the findings for calls that the driver refuses, and those made when the device closes.
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
	if want := []string{checklog.InvalidFree, checklog.Leak, checklog.OutOfBounds, checklog.OutOfBounds, checklog.Uninitialized,
		checklog.UseAfterFree, checklog.UseAfterFree, checklog.UseAfterFree}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

// TestCheckedFault checks that a fault is reported with its kernel, and that the memory of a lost device is not a leak. The CPU device
// reports the same.
func TestCheckedFault(t *testing.T) {
	for name, d := range map[string]*Driver{"simulated": New(Options{}), "inline": CPU()} {
		w := watch(t, d)
		f := kernel(t, w.Device, w.th, drivertest.KIR().Illegal, "illegal")
		s := streams(t, w.Device, w.th, 1)[0]
		err := w.Launch(&driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
			Args: binary.LittleEndian.AppendUint64(nil, uint64(w.p)+4096)})
		if err == nil {
			err = w.StreamSynchronize(w.th, s)
		}
		if !errors.Is(err, driver.IllegalAddress) {
			t.Errorf("%s: %v", name, err)
		}
		if !d.m.inline { // otherwise the device is not lost, and has leaked
			must(t, w.Close())
		}
		if got := w.found(); !slices.Equal(got, []string{checklog.OutOfBounds}) ||
			!strings.Contains(w.log.String(), `"kernel":"illegal"`) ||
			!strings.Contains(w.log.String(), "1 bytes after the nearest allocation") {
			t.Errorf("%s: %v\n%s", name, got, w.log.String())
		}
	}
}

// TestCheckedHostView checks that memory that the host has seen counts as written.
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

// TestCheckerThatCannotBe checks that a bad setting makes Open fail.
func TestCheckerThatCannotBe(t *testing.T) {
	d := New(Options{})
	d.m.checkErr = errors.New("no such tool")
	if _, err := d.Open(0); err == nil || !strings.Contains(err.Error(), "no such tool") {
		t.Errorf("%v", err)
	}
}

// pooled allocates n bytes in the order of s.
func (w *watched) pooled(n uint64, s driver.Stream) driver.Ptr {
	w.t.Helper()
	p, err := w.MemAllocAsync(w.th, n, s)
	must(w.t, err)
	return p
}

// TestCheckedPool checks what stream-ordered memory may be used for, by which stream, and until when.
func TestCheckedPool(t *testing.T) {
	event := func(w *watched, from, to driver.Stream) {
		e, err := w.EventCreate(w.th, false)
		must(w.t, err)
		must(w.t, w.EventRecord(e, from))
		must(w.t, w.StreamWait(to, e))
	}
	const n = 1000 // not a multiple of the pool's rounding
	for name, c := range map[string]struct {
		do   func(w *watched, a, b driver.Stream)
		want []string
	}{
		"used in order": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.Memset(p, 1, 1, n, a))
			event(w, a, b)
			must(w.t, w.CopyDtoD(w.p, p, n, b))
			event(w, b, a)
			must(w.t, w.MemFreeAsync(w.th, p, a))
		}},
		"freed on another stream in order": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.Memset(p, 1, 1, n, a))
			event(w, a, b)
			must(w.t, w.MemFreeAsync(w.th, p, b))
		}},
		"used before the allocation": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.Memset(p, 1, 1, n, b))
			event(w, b, a)
			must(w.t, w.MemFreeAsync(w.th, p, a))
		}, want: []string{checklog.StreamRace}},
		"freed once the host saw the use end": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.Memset(p, 1, 1, n, a))
			event(w, a, b)
			must(w.t, w.CopyDtoD(w.p, p, n, b))
			must(w.t, w.StreamSynchronize(w.th, b))
			must(w.t, w.MemFreeAsync(w.th, p, a))
		}},
		"freed while another stream may use it": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.Memset(p, 1, 1, n, a))
			event(w, a, b)
			must(w.t, w.CopyDtoD(w.p, p, n, b))
			must(w.t, w.MemFreeAsync(w.th, p, a))
		}, want: []string{checklog.StreamRace}},
		"used by another stream that may come after the free": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.Memset(p, 1, 1, n, a))
			event(w, a, b)
			must(w.t, w.MemFreeAsync(w.th, p, a))
			must(w.t, w.CopyDtoD(w.p, p, n, b))
		}, want: []string{checklog.UseAfterFree}},
		"allocated and freed with nothing to order it": {do: func(w *watched, a, b driver.Stream) {
			must(w.t, w.MemFreeAsync(w.th, w.pooled(n, a), b))
		},
			want: []string{checklog.StreamRace}},
		"never written": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.CopyDtoH(make([]byte, n), p, a))
			must(w.t, w.MemFreeAsync(w.th, p, a))
		}, want: []string{checklog.Uninitialized}},
		"what an earlier one wrote": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.Memset(p, 1, 1, n, a))
			must(w.t, w.MemFreeAsync(w.th, p, a))
			q := w.pooled(n, a)
			must(w.t, w.CopyDtoH(make([]byte, n), q, a))
			must(w.t, w.MemFreeAsync(w.th, q, a))
		}, want: []string{checklog.Uninitialized}},
		"freed before": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.MemFreeAsync(w.th, p, a))
			must(w.t, w.Memset(p, 1, 1, n, a))
			must(w.t, w.StreamSynchronize(w.th, a))
			must(w.t, w.CopyDtoH(make([]byte, n), p, a))
		}, want: []string{checklog.UseAfterFree, checklog.UseAfterFree}},
		"past its end": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			want(w.t, w.Memset(p, 1, 1, n+1, a), "Memset", driver.InvalidValue)
			must(w.t, w.MemFreeAsync(w.th, p, a))
		}, want: []string{checklog.OutOfBounds}},
		"freed twice, and what is no pool's": {do: func(w *watched, a, b driver.Stream) {
			p := w.pooled(n, a)
			must(w.t, w.MemFreeAsync(w.th, p, a))
			must(w.t, w.StreamSynchronize(w.th, a))
			want(w.t, w.MemFreeAsync(w.th, p, a), "MemFreeAsync", driver.InvalidValue)
			want(w.t, w.MemFreeAsync(w.th, w.p, a), "MemFreeAsync", driver.InvalidValue)
		}, want: []string{checklog.InvalidFree, checklog.InvalidFree}},
		"never freed":    {do: func(w *watched, a, b driver.Stream) { w.pooled(n, a) }, want: []string{checklog.Leak}},
		"freed by force": {do: func(w *watched, a, b driver.Stream) { must(w.t, w.MemFree(w.th, w.pooled(n, a))) }},
	} {
		w := newWatched(t, Options{Addresses: NeverReuse(), Capacity: 1 << 30})
		s := streams(t, w.Device, w.th, 2)
		c.do(w, s[0], s[1])
		must(t, w.Synchronize(w.th))
		must(t, w.MemFree(w.th, w.p))
		must(t, w.Close())
		if got := w.found(); !slices.Equal(got, c.want) {
			t.Errorf("%s: found %v, want %v\n%s", name, got, c.want, w.log.String())
		}
	}
}

// TestCheckedPoolIsBounded checks that freed memory is released, though its addresses are not, and that memory freed on one stream waits
// for it.
func TestCheckedPoolIsBounded(t *testing.T) {
	w := newWatched(t, Options{Addresses: NeverReuse(), Capacity: 64 << 20})
	s := streams(t, w.Device, w.th, 1)[0]
	seen := map[driver.Ptr]bool{}
	for range 20 {
		p := w.pooled(20<<20, s)
		if seen[p] {
			t.Errorf("%#x came twice", p)
		}
		seen[p] = true
		must(t, w.Memset(p, 1, 1, 20<<20, s))
		must(t, w.MemFreeAsync(w.th, p, s))
	}
	if _, err := w.MemAllocAsync(w.th, 80<<20, s); err == nil {
		t.Error("80 MiB of 64 were allocated")
	}
	must(t, w.Synchronize(w.th))
	if u, err := w.PoolUsage(w.th); err != nil || u.Used != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	if got := w.found(); len(got) != 0 {
		t.Errorf("found %v", got)
	}
}

// TestCheckedGraphMemory checks that each launch of a graph allocates anew, and that nothing owns the memory between its free and the next
// launch.
func TestCheckedGraphMemory(t *testing.T) {
	const n = 1000
	for name, c := range map[string]struct {
		write, free   bool
		late          bool // used after the graph's end
		before, after func(w *watched, p driver.Ptr, s driver.Stream)
		want          []string
	}{
		"as it should be": {write: true, free: true},
		"left to the next launch": {write: true, after: func(w *watched, p driver.Ptr, s driver.Stream) {
			must(w.t, w.CopyDtoH(make([]byte, n), p, s))
		}},
		"freed after the launch": {write: true, after: func(w *watched, p driver.Ptr, s driver.Stream) {
			must(w.t, w.MemFreeAsync(w.th, p, s))
		}},
		"used after the graph's end":     {write: true, late: true, want: []string{checklog.UseAfterFree}},
		"read in the graph, not written": {free: true, want: []string{checklog.Uninitialized}},
		"used after the graph's own free": {write: true, free: true, after: func(w *watched, p driver.Ptr, s driver.Stream) {
			must(w.t, w.Memset(p, 0, 1, n, s))
		}, want: []string{checklog.UseAfterFree}},
		"on a stream without order": {write: true, after: func(w *watched, p driver.Ptr, s driver.Stream) {
			b := streams(w.t, w.Device, w.th, 1)[0]
			release := w.Hold(b)
			must(w.t, w.Memset(p, 0, 1, n, b))
			must(w.t, w.StreamSynchronize(w.th, s))
			release()
		}, want: []string{checklog.StreamRace}},
		"on a stream that comes before": {write: true, free: true, before: func(w *watched, p driver.Ptr, s driver.Stream) {
			must(w.t, w.Memset(p, 0, 1, n, s))
		},
			want: []string{checklog.OutOfBounds}},
	} {
		w := newWatched(t, Options{Addresses: NeverReuse(), Capacity: 1 << 30})
		s := streams(t, w.Device, w.th, 1)[0]
		host, err := w.HostAlloc(w.th, n)
		must(t, err)
		must(t, w.CaptureBegin(w.th, s, driver.CaptureThreadLocal))
		p := w.pooled(n, s)
		if c.write {
			must(t, w.Memset(p, 1, 1, n, s))
		}
		must(t, w.CopyDtoH(host, p, s))
		if c.free {
			must(t, w.MemFreeAsync(w.th, p, s))
		}
		g, err := w.CaptureEnd(w.th, s)
		must(t, err)
		e, err := w.GraphInstantiate(w.th, g)
		must(t, err)
		if c.before != nil {
			c.before(w, p, s)
		}
		for range 2 {
			must(t, w.GraphLaunch(e, s))
		}
		if c.after != nil {
			c.after(w, p, s)
		}
		must(t, w.Synchronize(w.th))
		must(t, w.HostFree(w.th, host))
		must(t, w.GraphExecDestroy(w.th, e))
		must(t, w.GraphDestroy(w.th, g))
		must(t, w.MemFree(w.th, w.p))
		if c.late {
			want(t, w.Memset(p, 0, 1, n, s), "Memset", driver.InvalidValue)
		}
		must(t, w.Close())
		if got := w.found(); !slices.Equal(got, c.want) {
			t.Errorf("%s: found %v, want %v\n%s", name, got, c.want, w.log.String())
		}
	}
}

// TestCheckedMappings checks that a mapping is an allocation, and that adjacent ones form one block.
func TestCheckedMappings(t *testing.T) {
	w := newWatched(t, Options{Addresses: NeverReuse(), Capacity: 1 << 30})
	if !w.Info().VirtualMemory {
		t.Skip("the simulator has virtual memory on Linux only")
	}
	s := streams(t, w.Device, w.th, 2)
	base, err := w.MemReserve(w.th, 8<<20)
	must(t, err)
	must(t, w.MemMap(w.th, base, 2<<20))
	must(t, w.MemMap(w.th, base+2<<20, 2<<20))
	must(t, w.MemFree(w.th, w.p))
	host := make([]byte, 2<<20)
	must(t, w.Memset(base+1<<20, 1, 4, 1<<19, s[0]))       // across both
	must(t, w.CopyDtoH(host, base+1<<20, s[0]))            // all of it
	must(t, w.CopyDtoH(host[:512], base+2<<20, s[0]))      // in the second only
	must(t, w.CopyDtoD(base+2<<20, base, 1<<20+512, s[0])) // mostly unwritten
	must(t, w.CopyDtoH(host[:512], base+3<<20, s[0]))      // written
	if got := w.found(); len(got) != 0 {
		t.Errorf("found %v", got)
	}
	must(t, w.CopyDtoH(host[:512], base+3<<20-512, s[0])) // not
	if got := w.found(); !slices.Equal(got, []string{checklog.Uninitialized}) {
		t.Errorf("found %v", got)
	}
	must(t, w.Memset(base, 1, 4, 16, s[1]))
	must(t, w.Memset(base, 2, 4, 16, s[0]))
	must(t, w.Synchronize(w.th))
	must(t, w.MemUnmap(w.th, base, 2<<20))
	want(t, w.Memset(base, 1, 4, 16, s[0]), "Memset", driver.InvalidValue)
	must(t, w.Close())
	if got, want := w.found(), []string{checklog.Leak, checklog.StreamRace, checklog.Uninitialized, checklog.UseAfterFree}; !slices.Equal(
		got, want) {
		t.Errorf("found %v, want %v\n%s", got, want, w.log.String())
	}
}

// A gap that belongs to no allocation follows every allocation, whatever its size, and the device reports the same memory as without a
// checker.
func TestCheckedGaps(t *testing.T) {
	const capacity = 256 << 20
	w, plain := newWatched(t, Options{Capacity: capacity}), New(Options{Capacity: capacity})
	other, th := enter(t, plain, 0)
	_, err := other.MemAlloc(th, 4096) // like the watched one
	must(t, err)
	var ends []driver.Ptr
	var all, others []driver.Ptr
	for round := range 3 {
		for _, n := range []uint64{1, 511, 512, 513, 1024, 64 << 10, smallest - 512, smallest, step, 2 * step, 2*step + 1} {
			p, err1 := w.MemAlloc(w.th, n)
			q, err2 := other.MemAlloc(th, n)
			must(t, errors.Join(err1, err2))
			if p%alignment != 0 {
				t.Errorf("%d bytes begin at %#x", n, p)
			}
			all, others, ends = append(all, p), append(others, q), append(ends, p+driver.Ptr(n))
		}
		for i, end := range ends {
			for at := end; at < end+alignment; at++ {
				if mem := w.mem.bytes(at, 1); mem != nil {
					t.Fatalf("round %d: allocation %d ends at %#x, and %#x is another's", round, i, end, at)
				}
			}
		}
		same := func(when string) {
			t.Helper()
			free, total, err1 := w.MemInfo(w.th)
			free2, total2, err2 := other.MemInfo(th)
			if err := errors.Join(err1, err2); err != nil || free != free2 || total != total2 {
				t.Errorf("%s: %d of %d bytes are free, %d of %d without a checker, %v", when, free, total, free2, total2, err)
			}
		}
		same("allocated")
		for i := 0; i < len(all); i += 2 { // the others stay
			must(t, errors.Join(w.MemFree(w.th, all[i]), other.MemFree(th, others[i])))
		}
		same("freed")
		var kept, keptOthers, keptEnds []driver.Ptr
		for i := 1; i < len(all); i += 2 {
			kept, keptOthers, keptEnds = append(kept, all[i]), append(keptOthers, others[i]), append(keptEnds, ends[i])
		}
		all, others, ends = kept, keptOthers, keptEnds
	}
}
