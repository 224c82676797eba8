package rt

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
)

// builds sees the kernels that are loaded. meet, if not nil, is called within each load.
type builds struct {
	driver.Device
	mu    sync.Mutex
	loads int
	fail  error
	meet  func()
}

func (b *builds) LoadModule(t driver.Thread, text []byte) (driver.Module, error) {
	if b.meet != nil {
		b.meet()
	}
	b.mu.Lock()
	b.loads++
	err := b.fail
	b.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return b.Device.LoadModule(t, text)
}

func openBuilding(t *testing.T) (*Device, *builds) {
	t.Helper()
	var b *builds
	d := openSim(t, func(d driver.Device) driver.Device { b = &builds{Device: d}; return b })
	b.loads = 0
	d.SetBuildsAhead(true)
	return d, b
}

// unaries returns the kernels of four operations.
func unaries(t *testing.T, d *Device) (all []kernels.Spec) {
	t.Helper()
	for _, op := range []*kernels.PointOp{kernels.Exp, kernels.Tanh, kernels.Neg, kernels.Sqrt} {
		all = append(all, *unary(t, d, op))
	}
	return all
}

// Kernels are built side by side, each once, and Func finds them.
func TestBuildAhead(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	d, b := openBuilding(t)
	all := unaries(t, d)
	var inside sync.WaitGroup
	inside.Add(2)
	var alone sync.Once
	both := make(chan struct{})
	go func() { inside.Wait(); close(both) }()
	entered := 0
	b.meet = func() {
		b.mu.Lock()
		entered++
		if entered <= 2 {
			inside.Done()
		}
		b.mu.Unlock()
		select {
		case <-both:
		case <-time.After(20 * time.Second):
			alone.Do(func() { t.Error("kernels are built one after the other") })
		}
	}
	d.BuildAhead(all)
	d.BuildAhead(all)
	for i := range all {
		_, err := d.Func(&all[i])
		ok(t, err)
	}
	if b.loads != len(all) || d.KernelsBuilt() != int64(len(all)) || d.KernelsBuiltAhead() != int64(len(all)) {
		t.Errorf("%d loads, %d built, %d of them ahead; want %d each", b.loads, d.KernelsBuilt(), d.KernelsBuiltAhead(), len(all))
	}
}

// What goes wrong in BuildAhead is no error of a later call: that call builds the kernel itself.
func TestBuildAheadFails(t *testing.T) {
	d, b := openBuilding(t)
	all := unaries(t, d)
	b.fail = &driver.Error{Call: "LoadModule", Code: driver.OutOfMemory}
	d.BuildAhead(all)
	if b.loads != len(all) {
		t.Fatalf("%d loads, want %d", b.loads, len(all))
	}
	if _, err := d.Func(&all[0]); !errors.Is(err, driver.OutOfMemory) {
		t.Errorf("while loads fail, Func returned %v", err)
	}
	b.fail = nil
	for i := range all {
		_, err := d.Func(&all[i])
		ok(t, err)
	}
	if n := len(all); b.loads != 2*n+1 || d.KernelsBuilt() != int64(n) {
		t.Errorf("%d loads, want %d; %d kernels built", b.loads, 2*n+1, d.KernelsBuilt())
	}
}

// A fault that only BuildAhead has met is not told yet.
func TestBuildAheadTellsNobody(t *testing.T) {
	var b *builds
	dev, err := Open(Selector{Kind: Sim, Wrap: func(d driver.Device) driver.Device { b = &builds{Device: d}; return b }})
	ok(t, err)
	dev.SetBuildsAhead(true)
	b.fail = &driver.Error{Call: "LoadModule", Code: driver.IllegalAddress}
	dev.BuildAhead(unaries(t, dev))
	if dev.told.Load() {
		t.Error("the fault counts as told")
	}
	b.fail = nil
	ok(t, dev.Close())
}

// wantPanic fails unless Func panics with what meet panics with.
func wantPanic(t *testing.T, d *Device, s *kernels.Spec) {
	t.Helper()
	defer func() {
		if r := recover(); r != "broken" {
			t.Errorf("Func panicked with %v", r)
		}
	}()
	_, _ = d.Func(s)
}

// After a panic in a call that builds a kernel, the next call builds it.
func TestBuildPanics(t *testing.T) {
	d, b := openBuilding(t)
	s := unary(t, d, kernels.Exp)
	b.meet = func() { panic("broken") }
	wantPanic(t, d, s)
	b.meet = nil
	f, err := d.Func(s)
	if ok(t, err); f.Handle == 0 {
		t.Error("the kernel has no handle")
	}
}

// A panic in BuildAhead is met by the call that needs the kernel.
func TestBuildAheadPanics(t *testing.T) {
	d, b := openBuilding(t)
	s := unary(t, d, kernels.Exp)
	b.meet = func() { panic("broken") }
	d.BuildAhead([]kernels.Spec{*s})
	if d.KernelsBuiltAhead() != 1 || d.KernelsBuilt() != 0 {
		t.Fatalf("%d kernels begun ahead, want 1, and %d built, want none", d.KernelsBuiltAhead(), d.KernelsBuilt())
	}
	wantPanic(t, d, s)
	b.meet = nil
	_, err := d.Func(s)
	ok(t, err)
}

// Builders pass over a kernel that others have begun to build.
func TestBuildAheadPassesOver(t *testing.T) {
	d, b := openBuilding(t)
	d.SetBuildsAhead(false)
	all := unaries(t, d)
	inside, leave := make(chan struct{}), make(chan struct{})
	var first sync.Once
	b.meet = func() {
		stays := false
		first.Do(func() { stays = true })
		if stays {
			close(inside)
			<-leave
		}
	}
	d.BuildAhead(all[:1])
	<-inside
	d.SetBuildsAhead(true)
	d.BuildAhead(all) // and waits
	if n := d.KernelsBuilt(); n != int64(len(all)-1) {
		t.Errorf("%d kernels were built beside the first, want %d", n, len(all)-1)
	}
	close(leave)
}

// Close waits for the kernel that is being built, and no other is begun.
func TestCloseWhileBuilding(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // one builder
	for i := range 20 {
		var b *builds
		dev, err := Open(Selector{Kind: Sim, Wrap: func(d driver.Device) driver.Device { b = &builds{Device: d}; return b }})
		ok(t, err)
		dev.SetBuildsAhead(false)
		all := unaries(t, dev)
		inside, began := make(chan struct{}), 0
		var done atomic.Bool
		b.meet = func() {
			if began++; began == 1 {
				close(inside)
				for !dev.closing.Load() {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(5 * time.Millisecond)
				done.Store(true)
			}
		}
		if i%2 == 0 {
			b.meet = nil
			_, err := dev.Func(&all[i%len(all)])
			ok(t, err)
			close(inside)
		}
		dev.BuildAhead(all)
		<-inside
		ok(t, dev.Close())
		if i%2 == 1 && !done.Load() {
			t.Error("Close has not waited for the kernel that is being built")
		}
		if i%2 == 1 && began != 1 {
			t.Errorf("%d kernels were begun, and the device was being closed during the first", began)
		}
		dev.BuildAhead(all)
		if n := dev.KernelsBuiltAhead(); i%2 == 1 && n != 1 {
			t.Errorf("%d kernels were begun after Close", n-1)
		}
	}
}

// Callers that need a kernel at the same time get the one that is built.
func TestFuncBuildsOnce(t *testing.T) {
	d, b := openBuilding(t)
	s := unary(t, d, kernels.Exp)
	var wg sync.WaitGroup
	handles := make([]driver.Func, 8)
	for i := range handles {
		wg.Go(func() {
			f, err := d.Func(s)
			if err != nil {
				t.Error(err)
			}
			handles[i] = f.Handle
		})
	}
	wg.Wait()
	for _, h := range handles {
		if h != handles[0] || h == 0 {
			t.Errorf("the kernels are %v", handles)
			break
		}
	}
	if b.loads != 1 {
		t.Errorf("%d loads, want 1", b.loads)
	}
}

// A simulated device builds nothing ahead.
func TestBuildAheadOfSimulatedDevices(t *testing.T) {
	var b *builds
	d := openSim(t, func(d driver.Device) driver.Device { b = &builds{Device: d}; return b })
	d.BuildAhead(unaries(t, d))
	if d.BuildsAhead() || d.KernelsBuiltAhead() != 0 || b.loads != 0 {
		t.Errorf("%d kernels were built ahead", d.KernelsBuiltAhead())
	}
}
