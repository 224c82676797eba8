package compile_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/fault"
)

// TestLooksAtTheDevice checks that what looks at the device without the session finds the work of the region's calls so far: each look
// makes them run, whether the region's calls are new or known.
func TestLooksAtTheDevice(t *testing.T) {
	x := open(t)
	dev, s := x.Device(), x.Stream()
	e := dev.NewEvent()
	defer e.Close()
	side, err := dev.Stream()
	must(t, err)
	nothing := func(any) {}
	for name, look := range map[string]func() error{
		"Event.Record":        func() error { return e.Record(s) },
		"Stream.Query":        func() error { _, err := s.Query(); return err },
		"Stream.Synchronize":  s.Synchronize,
		"Stream.WaitStream":   func() error { return side.WaitStream(s) },
		"Device.Synchronize":  dev.Synchronize,
		"Device.MemInfo":      func() error { _, _, err := dev.MemInfo(); return err },
		"Device.Stats":        func() error { nothing(dev.Stats()); return nil },
		"MemoryAllocated":     func() error { nothing(dev.MemoryAllocated()); return nil },
		"MaxMemoryAllocated":  func() error { nothing(dev.MaxMemoryAllocated()); return nil },
		"MemoryReserved":      func() error { nothing(dev.MemoryReserved()); return nil },
		"MaxMemoryReserved":   func() error { nothing(dev.MaxMemoryReserved()); return nil },
		"MemorySummary":       func() error { nothing(dev.MemorySummary(cuda.SummaryOpt{Abbreviated: true})); return nil },
		"ResetPeakStats":      func() error { dev.ResetPeakStats(); return nil },
		"Device.Snapshot":     func() error { _, err := dev.Snapshot(); return err },
		"Device.DumpSnapshot": func() error { return dev.DumpSnapshot(t.TempDir() + "/s.pickle") },
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
	start, end := x.Device().NewEvent(cuda.EventOpt{Timing: true}), x.Device().NewEvent(cuda.EventOpt{Timing: true})
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

// TestLooksOfOtherGoroutines checks that what other goroutines look at, on the region's own stream too, neither cuts nor tears a region,
// nor takes an error that belongs to it.
func TestLooksOfOtherGoroutines(t *testing.T) {
	x := open(t)
	other, err := x.Fork()
	must(t, err)
	defer other.Close()
	dev, s, done, looked := x.Device(), x.Stream(), make(chan struct{}), make(chan error)
	e := dev.NewEvent()
	defer e.Close()
	go func() {
		var err error
		for stop := false; !stop && err == nil; {
			select {
			case <-done:
				stop = true
			default:
				dev.Stats()
				err = errors.Join(e.Record(s), e.Record(other.Stream()), dev.Synchronize(), other.Stream().Synchronize())
			}
		}
		looked <- err
	}()
	r := compile.New()
	a := x.Full([]int{64, 64}, 1.0/64, tenon.Float32)
	for i := range 60 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			b := a
			for range 20 {
				b = x.MatMul(a, b)
			}
			y = x.Keep(b)
			return nil
		}))
		if got, err := x.Item(x.Select(x.Select(y, 0, 63), 0, 5)); err != nil || got != 1.0/64 {
			t.Fatal(i, got, err)
		}
		y.Close()
	}
	if s := r.Stats(x); s.Recordings != 1 || s.WarmUps != 1 || s.Replays != 58 {
		t.Errorf("%+v", s)
	}
	err = r.Do(x, func(x *tenon.Exec) error {
		x.Keep(x.Ones([]int{1 << 50}, tenon.Float32))
		c := make(chan error)
		go func() { c <- other.Stream().Synchronize() }()
		return <-c
	})
	if fault.KindOf(err) != fault.OutOfMemory {
		t.Errorf("the region returns %v", err)
	}
	close(done)
	must(t, <-looked)
}

// TestClosedForksAreForgotten checks that a device keeps no session whose calls could not be deferred.
func TestClosedForksAreForgotten(t *testing.T) {
	x := open(t)
	shared := x.Ones([]int{4}, tenon.Float32)
	var gone atomic.Int32
	r := compile.New()
	must(t, r.Do(x, func(x *tenon.Exec) error {
		y := x.Keep(x.MulS(shared, 2))
		defer y.Close()
		for range 8 {
			fork, err := x.Fork()
			if err != nil {
				return err
			}
			f := compile.New()
			if err := f.Do(fork, func(z *tenon.Exec) error { z.MulS(shared, 3); return nil }); err != nil {
				return err
			}
			runtime.AddCleanup(fork, func(n int) { gone.Add(1) }, 0)
			if err := fork.Close(); err != nil {
				return err
			}
		}
		return nil
	}))
	for range 20 {
		runtime.GC()
		runtime.Gosched()
	}
	if n := gone.Load(); n < 7 {
		t.Errorf("%d of 8 closed forks were collected", n)
	}
}
