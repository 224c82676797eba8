package compile_test

import (
	"runtime"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/fault"
)

// TestLooksAtTheDevice checks that what looks at the device without the session finds the work of the region's calls so far: each look
// makes them run, whether the region's calls are new or known.
func TestLooksAtTheDevice(t *testing.T) {
	x := open(t)
	dev, s := x.Device(), x.Stream()
	e := dev.NewEvent(false)
	defer e.Close()
	side, err := dev.Stream()
	must(t, err)
	nothing := func(any) {}
	for name, look := range map[string]func() error{
		"Event.Record":         func() error { return e.Record(s) },
		"Stream.Record":        func() error { return s.Record(e) },
		"Stream.Query":         func() error { _, err := s.Query(); return err },
		"Stream.Synchronize":   s.Synchronize,
		"Stream.WaitStream":    func() error { return side.WaitStream(s) },
		"Device.Synchronize":   dev.Synchronize,
		"Device.MemInfo":       func() error { _, _, err := dev.MemInfo(); return err },
		"Device.Stats":         func() error { nothing(dev.Stats()); return nil },
		"MemoryAllocated":      func() error { nothing(dev.MemoryAllocated()); return nil },
		"MaxMemoryAllocated":   func() error { nothing(dev.MaxMemoryAllocated()); return nil },
		"MemoryReserved":       func() error { nothing(dev.MemoryReserved()); return nil },
		"MaxMemoryReserved":    func() error { nothing(dev.MaxMemoryReserved()); return nil },
		"MemorySummary":        func() error { nothing(dev.MemorySummary(true)); return nil },
		"ResetPeakStats":       func() error { dev.ResetPeakStats(); return nil },
		"Device.Snapshot":      func() error { _, err := dev.Snapshot(); return err },
		"Device.DumpSnapshot":  func() error { return dev.DumpSnapshot(t.TempDir() + "/s.pickle") },
		"from a goroutine too": func() error { c := make(chan error); go func() { c <- e.Record(s) }(); return <-c },
	} {
		r := compile.New()
		for i := range 4 {
			must(t, r.Do(x, func(x *tenon.Exec) error {
				x.Exp(x.Ones([]int{64}, tenon.Float32))
				if n := deferred(x); n == 0 {
					t.Errorf("%s, run %d: no call is deferred", name, i)
				}
				must(t, look())
				if n := deferred(x); n != 0 {
					t.Errorf("%s, run %d: %d calls are still deferred", name, i, n)
				}
				return nil
			}))
		}
	}
}

// TestEventsInRegionsTime checks that two events around a region's calls time them as they do without the region.
func TestEventsInRegionsTime(t *testing.T) {
	x := open(t)
	start, end := x.Device().NewEvent(true), x.Device().NewEvent(true)
	defer start.Close()
	defer end.Close()
	timed := func(x *tenon.Exec) error {
		a := x.Ones([]int{1 << 16}, tenon.Float32)
		if err := start.Record(x.Stream()); err != nil {
			return err
		}
		x.Sin(x.Exp(a))
		if err := end.Record(x.Stream()); err != nil {
			return err
		}
		return end.Synchronize()
	}
	elapsed := func() int64 {
		d, err := start.Elapsed(end)
		must(t, err)
		return d.Nanoseconds()
	}
	r := compile.New(compile.Opt{NoFusion: true})
	for i := range 4 {
		must(t, r.Do(x, timed))
		if got := elapsed(); got == 0 {
			t.Errorf("run %d: the calls took no time", i)
		}
	}
}

// TestMemoryInRegions checks that memory statistics within a region count what its calls have made, and that a look that makes a call fail
// leaves the error to the region.
func TestMemoryInRegions(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{NoGraphs: true}) // a replay takes no new memory
	for i := range 4 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			before := x.Device().MemoryAllocated()
			x.Exp(x.Ones([]int{1 << 16}, tenon.Float32))
			if got := x.Device().MemoryAllocated() - before; got < 1<<18 {
				t.Errorf("run %d: the calls made %d bytes", i, got)
			}
			return nil
		}))
	}
	var stats map[string]int64
	err := r.Do(x, func(x *tenon.Exec) error {
		x.Ones([]int{1 << 50}, tenon.Float32)
		stats = x.Device().Stats()
		return nil
	})
	if fault.KindOf(err) != fault.OutOfMemory || stats == nil {
		t.Errorf("the region returns %v, and the statistics have %d entries", err, len(stats))
	}
	must(t, r.Do(x, func(x *tenon.Exec) error { x.Ones([]int{4}, tenon.Float32); return nil }))
}

// TestLooksFromBusyRegions checks that looks from other goroutines at any time neither wait for a region nor disturb it.
func TestLooksFromBusyRegions(t *testing.T) {
	x := open(t)
	dev, done := x.Device(), make(chan struct{})
	looked := make(chan error)
	go func() {
		for {
			select {
			case <-done:
				looked <- nil
				return
			default:
				dev.Stats()
				if err := dev.Synchronize(); err != nil {
					looked <- err
					return
				}
				runtime.Gosched()
			}
		}
	}()
	r := compile.New()
	for range 50 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			a := x.Ones([]int{64}, tenon.Float32)
			for range 10 {
				a = x.AddS(a, 1)
			}
			y = x.Keep(a)
			return nil
		}))
		if got, err := x.Item(x.Select(y, 0, 63)); err != nil || got != 11 {
			t.Fatal(got, err)
		}
		y.Close()
	}
	close(done)
	must(t, <-looked)
}
