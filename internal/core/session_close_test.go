package core

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
)

// toClose opens a simulated device that the test closes itself.
func toClose(t *testing.T, wrap func(d driver.Device) driver.Device) *Exec {
	t.Helper()
	t.Cleanup(func() { settled(t) }) // tensors dropped here would be counted by other tests
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Memory: 128 << 20, Wrap: wrap})
	if err != nil {
		t.Fatal(err)
	}
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	return New(dev, host)
}

func forkOf(t *testing.T, x *Exec) *Exec {
	t.Helper()
	y, err := x.Fork()
	if err != nil {
		t.Fatal(err)
	}
	return y
}

// closedOnce returns what is wrong with the error of a call that met a closed device: it must be of kind Closed and say so once, in our
// words.
func closedOnce(err error) string {
	switch s := fmt.Sprint(err); {
	case fault.KindOf(err) != fault.Closed:
		return "is not of kind Closed"
	case strings.Count(s, " was closed") != 1:
		return "does not say once what was closed"
	case strings.Contains(s, "driver") || strings.Contains(s, "\n"):
		return "says more than that"
	}
	return ""
}

// returning is Try for functions that also return errors.
func returning(f func() error) (err error) {
	if e := Try(func() { err = f() }); e != nil {
		return e
	}
	return err
}

// inUse are actions of goroutines that have forks of one Exec.
var inUse = map[string]func(x *Exec, w *Tensor, g *Graph) error{
	"Read": func(x *Exec, w *Tensor, g *Graph) error { _, err := Read[float32](x, x.MatMul(w, w)); return err },
	"Backward": func(x *Exec, w *Tensor, g *Graph) error {
		return x.Backward(sumOf(x, x.Mul(x.Clone(w), w)), BackwardOpt{})
	},
	"Replay": func(x *Exec, w *Tensor, g *Graph) error { return x.Replay(g) },
	"Capture": func(x *Exec, w *Tensor, g *Graph) error {
		own, err := x.Capture(func(x *Exec) { x.NoGrad().Add(w, w) }, CaptureOpt{})
		if err != nil {
			return err
		}
		err = x.Replay(own)
		if e := own.Close(); e != nil {
			return e
		}
		return err
	},
	"EmptyCache": func(x *Exec, w *Tensor, g *Graph) error {
		if _, err := x.Device().Snapshot(); err != nil {
			return err
		}
		return x.Device().EmptyCache()
	},
	"Fork": func(x *Exec, w *Tensor, g *Graph) error {
		y, err := x.Fork()
		if err != nil {
			return err
		}
		y.Rand([]int{100}, dtype.Float32).Close()
		if err := y.Synchronize(); err != nil {
			return err
		}
		return y.Close()
	},
	"Event": func(x *Exec, w *Tensor, g *Graph) error {
		e := x.Device().NewEvent(true)
		defer e.Close()
		if err := e.Record(x.Stream()); err != nil {
			return err
		}
		if err := x.Device().DefaultStream().Wait(e); err != nil {
			return err
		}
		return e.Synchronize()
	},
	"Pinned": func(x *Exec, w *Tensor, g *Graph) error {
		p := x.PinMemory(From(x.Host(), []float32{1, 2}))
		defer p.Close()
		q := x.To(p, ToOpt{NonBlocking: true})
		defer q.Close()
		x.Host().To(q, ToOpt{}).Close()
		return nil
	},
}

// TestCloseWhileOthersWork closes a device that goroutines are working on, and checks that their calls succeed until they fail with an
// error that says once that the device was closed.
func TestCloseWhileOthersWork(t *testing.T) {
	for range 8 {
		x := toClose(t, nil)
		w := ones(x, 32, 32).SetRequiresGrad(true)
		g, err := x.Capture(func(x *Exec) { x.NoGrad().Mul(w, w) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Synchronize(); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var done atomic.Int64
		for name, use := range inUse {
			y := forkOf(t, x)
			wg.Go(func() {
				for ended := 0; ended < 3; {
					err := returning(func() (err error) {
						y.Scope(func(y *Exec) { err = use(y, w, g) })
						return err
					})
					if err == nil {
						err = y.Synchronize() // bounds the queue
					}
					done.Add(1)
					if err == nil {
						continue
					}
					ended++
					if wrong := closedOnce(err); wrong != "" {
						t.Errorf("%s: the error %s: %v", name, wrong, err)
					}
				}
				if err := y.Close(); err != nil {
					t.Errorf("%s: Close of the fork: %v", name, err)
				}
			})
		}
		for done.Load() < 60 {
			runtime.Gosched()
		}
		if err := x.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		wg.Wait()
		if err := g.Close(); err != nil {
			t.Errorf("Close of the graph: %v", err)
		}
		w.Close()
		if t.Failed() {
			return
		}
	}
}

// TestCloseEndsCaptures closes a device during a capture, and checks that the capture fails only for that reason.
func TestCloseEndsCaptures(t *testing.T) {
	for name, after := range map[string]func(x *Exec, w *Tensor){
		"Nothing":   func(x *Exec, w *Tensor) {},
		"Operation": func(x *Exec, w *Tensor) { x.MulS(w, 3) },
		"Passed":    func(x *Exec, w *Tensor) { _ = Try(func() { x.MulS(w, 3) }) },
	} {
		t.Run(name, func(t *testing.T) {
			x := toClose(t, nil)
			y, w := forkOf(t, x), ones(x, 1<<10)
			settled(t)
			before := live.Load()
			captured := make(chan error)
			in, out := make(chan struct{}), make(chan struct{})
			go func() {
				_, err := y.Capture(func(y *Exec) {
					y.Rand([]int{4}, dtype.Float32)
					y.MulS(w, 2)
					close(in)
					<-out
					after(y, w)
				}, CaptureOpt{})
				captured <- err
			}()
			<-in
			if err := x.Close(); err != nil {
				t.Error(err)
			}
			close(out)
			err := <-captured
			if wrong := closedOnce(err); wrong != "" {
				t.Errorf("the error %s: %v", wrong, err)
			}
			if n := live.Load(); n != before {
				t.Errorf("%d storages are left of the capture", n-before)
			}
			w.Close()
		})
	}
}

// launches is a device that detects when a graph is destroyed during its launch.
type launches struct {
	driver.Device
	during   func() // called within GraphLaunch
	inside   atomic.Bool
	violated atomic.Bool
}

func (d *launches) GraphLaunch(e driver.GraphExec, s driver.Stream) error {
	d.inside.Store(true)
	defer d.inside.Store(false)
	d.during()
	return d.Device.GraphLaunch(e, s)
}

func (d *launches) GraphExecDestroy(t driver.Thread, e driver.GraphExec) error {
	if d.inside.Load() {
		d.violated.Store(true)
	}
	return d.Device.GraphExecDestroy(t, e)
}

// TestGraphCloseWaitsForReplay closes a graph in the middle of a replay's launch.
func TestGraphCloseWaitsForReplay(t *testing.T) {
	var d *launches
	x := toClose(t, func(dev driver.Device) driver.Device {
		d = &launches{Device: dev}
		return d
	})
	w := From(x, []float32{1, 2})
	defer w.Close()
	var out *Tensor
	g, err := x.Capture(func(x *Exec) { out = x.Keep(x.MulS(w, 2)) }, CaptureOpt{})
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	d.during = func() {
		go func() { closed <- g.Close() }()
		for i := 0; i < 10000 && !d.violated.Load(); i++ {
			runtime.Gosched()
		}
	}
	if err := x.Replay(g); err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if d.violated.Load() {
		t.Error("the graph was destroyed while it was being launched")
	}
	if wrong := closedOnce(x.Replay(g)); wrong != "" {
		t.Errorf("the error of a Replay after Close %s", wrong)
	}
	if v, err := Read[float32](x, out); err != nil || v[1] != 4 {
		t.Errorf("the replay gave %v, %v", v, err)
	}
	out.Close()
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// TestGraphCloseMeetsReplays closes graphs in one goroutine while another replays them.
func TestGraphCloseMeetsReplays(t *testing.T) {
	x := toClose(t, nil)
	w, y := ones(x, 4), forkOf(t, x)
	defer w.Close()
	for range 200 {
		g, err := x.Capture(func(x *Exec) { out := x.MulS(w, 2); x.AddInto(out, out, w) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			for range 3 {
				if err := y.Replay(g); err != nil && closedOnce(err) != "" {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		if err := y.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// TestForkClose closes forks, and checks that their parent and siblings stay usable.
func TestForkClose(t *testing.T) {
	x := toClose(t, nil)
	w := ones(x, 4)
	defer w.Close()
	var wg sync.WaitGroup
	for range 4 {
		y := forkOf(t, x)
		wg.Go(func() {
			for range 20 {
				y.Scope(func(y *Exec) {
					if v, err := Read[float32](y, y.MulS(w, 2)); err != nil || v[3] != 2 {
						t.Error(v, err)
					}
				})
			}
			if err := y.NoGrad().Close(); err != nil { // any Exec of the session
				t.Error(err)
			}
			for name, use := range map[string]func() error{
				"op":          func() error { y.MulS(w, 2); return nil },
				"view":        func() error { y.View(w, 2, 2); return nil },
				"Read":        func() error { _, err := Read[float32](y, w); return err },
				"From":        func() error { From(y, []float32{1}); return nil },
				"Synchronize": y.Synchronize,
				"Fork":        func() error { _, err := y.Fork(); return err },
				"Capture":     func() error { _, err := y.Capture(func(*Exec) {}, CaptureOpt{}); return err },
				"WaitStream":  func() error { return y.WaitStream(x.Stream()) },
			} {
				if err := returning(use); closedOnce(err) != "" {
					t.Errorf("%s after Close: %v", name, err)
				}
			}
			if err := y.Close(); err != nil {
				t.Errorf("a second Close: %v", err)
			}
		})
	}
	wg.Wait()
	x.Scope(func(x *Exec) {
		if v, err := Read[float32](x, x.MulS(w, 3)); err != nil || v[0] != 3 {
			t.Errorf("the parent has %v, %v after the forks closed", v, err)
		}
	})
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// TestCloseFreedTensors: if leaks are looked for, tensors that outlive their device, whose memory Close freed, can be used by other streams
// before, and be closed or dropped after it.
func TestCloseFreedTensors(t *testing.T) {
	t.Setenv("TENON_CHECK_TOOLS", "leaks,cached")
	x := toClose(t, nil)
	st, err := x.Device().Stream()
	if err != nil {
		t.Fatal(err)
	}
	settled(t)
	before := live.Load()
	w := ones(x, 4)
	x.On(st).MulS(w, 2)
	ones(x, 1<<10)
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	w.Close()
	settled(t)
	if n := live.Load(); n != before {
		t.Errorf("%d storages are left", n-before)
	}
}

// TestCloseOfProcessor: Close leaves the processor open, and returns once what its memory checks found.
func TestCloseOfProcessor(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	host.SetMemoryChecks(rt.MemoryChecks{Guard: true})
	defer host.SetMemoryChecks(rt.MemoryChecks{})
	x := New(host, host)
	a := ones(x, 128)
	if err := host.Driver().Memset(driver.Ptr(a.st.ptr), 1, 1, 515, x.Stream().Handle()); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if err := x.Close(); err == nil || !strings.Contains(err.Error(), "behind the 512 bytes") {
		t.Errorf("the error is %v", err)
	}
	if err := x.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	ones(x, 4).Close()
}

// TestClosedExecsRunNothing checks that methods that only run a function or return another Exec fail on a closed Exec like all others.
func TestClosedExecsRunNothing(t *testing.T) {
	x := toClose(t, nil)
	nothing := func(*Exec) { t.Error("a function ran on a closed Exec") }
	calls := map[string]func(x *Exec){
		"Scope":         func(x *Exec) { x.Scope(nothing) },
		"Within":        func(x *Exec) { x.Within(func(x *Exec) *Tensor { nothing(x); return nil }) },
		"WithinMany":    func(x *Exec) { x.WithinMany(func(x *Exec) []*Tensor { nothing(x); return nil }) },
		"NoGrad":        func(x *Exec) { x.NoGrad() },
		"EnableGrad":    func(x *Exec) { x.EnableGrad() },
		"TF32":          func(x *Exec) { x.TF32(true) },
		"WithGenerator": func(x *Exec) { x.WithGenerator(nil) },
		"UsePool":       func(x *Exec) { x.UsePool(nil) },
		"ManualStreams": func(x *Exec) { x.ManualStreams() },
	}
	refused := func(what string, x *Exec) {
		t.Helper()
		for name, f := range calls {
			err := Try(func() { f(x) })
			if wrong := closedOnce(err); wrong != "" {
				t.Errorf("%s: the error of %s %s: %v", what, name, wrong, err)
				continue
			}
			wantError(t, err, fault.Closed, name+": ", "close_test.go")
		}
	}
	y := forkOf(t, x)
	st := x.Stream()
	y.On(st) // which y remembers
	if err := y.Close(); err != nil {
		t.Fatal(err)
	}
	refused("a fork", y)
	wantError(t, Try(func() { y.On(st) }), fault.Closed, "On: the Exec was closed")
	wantError(t, Try(func() { y.Host() }), fault.Closed, "the Exec was closed")
	x.Scope(func(x *Exec) { x.NoGrad() })
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	refused("the device's Exec", x)
	want(t, x.Host(), From(x.Host(), []float32{1}), 1)
}

func TestScopeAllocatesNothing(t *testing.T) {
	x := processor(t)
	st := x.Stream()
	f := func(*Exec) {}
	if n := testing.AllocsPerRun(100, func() { x.Scope(f); x.NoGrad(); x.On(st) }); n > 0 {
		t.Errorf("Scope, NoGrad and On make %v objects", n)
	}
}
