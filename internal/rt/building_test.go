package rt

import (
	"errors"
	"runtime"
	"sync"
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
	d.SetBuildsAhead()
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

// What goes wrong in BuildAhead is the error of the call that needs the kernel, once; the next call builds it.
func TestBuildAheadFails(t *testing.T) {
	d, b := openBuilding(t)
	all := unaries(t, d)[:1]
	b.fail = &driver.Error{Call: "LoadModule", Code: driver.OutOfMemory}
	d.BuildAhead(all)
	if b.loads != 1 {
		t.Fatalf("%d loads, want 1", b.loads)
	}
	b.fail = nil
	if _, err := d.Func(&all[0]); !errors.Is(err, driver.OutOfMemory) {
		t.Errorf("Func returned %v; want the error of the build", err)
	}
	_, err := d.Func(&all[0])
	ok(t, err)
	if b.loads != 2 {
		t.Errorf("%d loads, want 2", b.loads)
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

// Without a device whose driver takes long, nothing is built that nobody asked for.
func TestBuildAheadOfSimulatedDevices(t *testing.T) {
	var b *builds
	d := openSim(t, func(d driver.Device) driver.Device { b = &builds{Device: d}; return b })
	d.BuildAhead(unaries(t, d))
	if d.BuildsAhead() || d.KernelsBuiltAhead() != 0 || b.loads != 0 {
		t.Errorf("%d kernels were built ahead", d.KernelsBuiltAhead())
	}
}
