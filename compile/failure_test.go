package compile_test

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/rt"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// openFailing returns a session on a device whose calls can be made to fail.
func openFailing(t *testing.T) (*tenon.Exec, *faults.Device) {
	t.Helper()
	var d *faults.Device
	sel := rt.Selector{Kind: rt.Sim, Memory: 256 << 20, Wrap: func(own driver.Device) driver.Device {
		d = faults.New(own)
		d.SpareFaults()
		return d
	}}
	if onGPU() {
		sel.Kind, sel.Memory = rt.CUDA, 0
	}
	dev, err := rt.Open(sel)
	must(t, err)
	host, err := rt.Host()
	must(t, err)
	t.Cleanup(func() {
		d.Arm(0, 0)
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return (*tenon.Exec)(core.New(dev, host)), d
}

// If a training step fails at any of its driver calls, or runs out of memory at any of its tensors, the parameters with the optimizer's
// state, and the scaler, are as before or as after their change, and the next step works.
func TestTrainingStepFails(t *testing.T) {
	for _, in := range []int{0, 1, 4} {
		t.Run(fmt.Sprint("Calls after ", in), func(t *testing.T) { failSteps(t, in, func(d *faults.Device, n int) { d.Arm(n, 0) }) })
	}
	t.Run("Memory", func(t *testing.T) {
		t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync") // each tensor is a driver call
		failSteps(t, 4, func(d *faults.Device, n int) { d.Starve(n) })
	})
}

// failSteps fails a step that comes after others steps in the region: 0, so that it runs without a graph, 1, so that it is recorded, or
// more.
func failSteps(t *testing.T, others int, arm func(d *faults.Device, n int)) {
	x, d := openFailing(t)
	r := compile.New()
	var before, after [2]string // of the training state, and of the scaler
	live, used := core.LiveStorages(), x.Device().MemoryAllocated()
	seen := map[[2]bool]int{} // which of the two had changed
	for n, done := 0, false; !done; n++ {
		x.Scope(func(x *tenon.Exec) {
			w := newTraining(t, x)
			defer w.close()
			step := func() error { return r.Do(x, w.step) }
			for i := range 5 {
				if i < 5-others {
					must(t, tenon.Try(func() { x.Scope(func(x *tenon.Exec) { must(t, w.step(x)) }) }))
				} else {
					must(t, step())
				}
			}
			if n == 0 {
				before = w.sections(t, x)
				must(t, step())
				after = w.sections(t, x)
				return
			}
			arm(d, n)
			err := step()
			method, code := d.Fired()
			d.Arm(0, 0)
			done = method == ""
			now := w.sections(t, x)
			changed := [2]bool{now[0] == after[0], now[1] == after[1]}
			at := fmt.Sprintf("point %d, %s, %v: %v", n, method, code, err)
			switch {
			case err == nil && now == after:
				return
			case err == nil || done:
				t.Fatalf("%s: without an error or a failure the step gives\n%v\nwant\n%v", at, now, after)
			case !changed[0] && now[0] != before[0] || !changed[1] && now[1] != before[1] || changed[1] && !changed[0]:
				t.Fatalf("%s: it leaves\n%v\nwhich is neither\n%v\nnor\n%v", at, now, before, after)
			}
			seen[changed]++
			if rate, err := x.Item(w.rate); err != nil || rate != w.opt.LR(0) {
				t.Errorf("%s: the tensor of the rate has %v, the optimizer %v: %v", at, rate, w.opt.LR(0), err)
			}
			if err := step(); err != nil { // it stopped between Unscale and Update
				must(t, w.scaler.Update(x))
				must(t, step())
			}
		})
		must(t, compile.Reset(x))
		if n, m := core.LiveStorages()-live, x.Device().MemoryAllocated()-used; n > 0 || m != 0 {
			t.Fatalf("%d storages and %d bytes are left", n, m)
		}
	}
	if t.Logf("%v, %+v", seen, r.Stats(x)); seen[[2]bool{}] < 1 || r.Stats(x).Eager > 0 {
		t.Error("too little failed")
	}
}

// sections returns the training state and the scaler's state.
func (w *training) sections(t *testing.T, x *tenon.Exec) [2]string {
	learnt, rest, _ := strings.Cut(w.look(t, x), "rate: ")
	_, rest, _ = strings.Cut(rest, "\n")
	scaler, _, _ := strings.Cut(rest, "\n")
	return [2]string{learnt, scaler}
}

// What was done for a call that nobody needs is undone if calls before it fail, and only then.
func TestUndoAtDeadCall(t *testing.T) {
	x, d := openFailing(t)
	in := tenon.From(x, []float32{1, 2})
	fails := 0
	for n, done := 1, false; !done; n++ {
		undone := false
		d.Arm(n, 0)
		err := compile.New().Do(x, func(x *tenon.Exec) error {
			needed := x.AddS(x.MulS(in, 2), 1)
			defer needed.Close()
			x.Exp(in).Close()
			core.Undo((*core.Exec)(x), func() { undone = true })
			return x.Synchronize()
		})
		method, _ := d.Fired()
		d.Arm(0, 0)
		if done = method == ""; undone != (err != nil) {
			t.Errorf("%s fails: undone is %v, the error %v", method, undone, err)
		}
		if err != nil {
			fails++
		}
		must(t, compile.Reset(x))
	}
	if fails == 0 {
		t.Error("no step fails")
	}
}

// If a recording that has freed an input fails, tensors of earlier recordings keep their memory.
func TestFailedRecordingKeepsOutputs(t *testing.T) {
	x, d := openFailing(t)
	in := tenon.From(x, []float32{1, 2})
	live, used, fails := core.LiveStorages(), x.Device().MemoryAllocated(), 0
	for n, done := 1, false; !done; n++ {
		r := compile.New()
		var kept []*tenon.Tensor
		step := func(arm int) error {
			return r.Do(x, func(x *tenon.Exec) error {
				kept = append(kept, x.Keep(x.AddS(in, 1)))
				z := x.MulS(in, 2)
				must(t, x.Synchronize())
				w := x.MulS(z, 2)
				z.Close()
				defer w.Close()
				d.Arm(arm, 0)
				return x.Synchronize()
			})
		}
		must(t, step(0))
		must(t, step(n))
		method, _ := d.Fired()
		d.Arm(0, 0)
		done = method == ""
		fails += r.Stats(x).Plain
		for range 3 {
			must(t, step(0))
		}
		for i, y := range kept {
			if got := testdevice.Read[float32](t, x, y); got[0] != 2 || got[1] != 3 {
				t.Errorf("after a failure of %s, output %d is %v", method, i, got)
			}
			y.Close()
		}
		must(t, compile.Reset(x))
		if n, m := core.LiveStorages()-live, x.Device().MemoryAllocated()-used; n > 0 || m != 0 {
			t.Fatalf("after a failure of %s, %d storages and %d bytes are left", method, n, m)
		}
	}
	if fails == 0 {
		t.Error("no recording fails")
	}
}

// Every driver call of a small program of two runs fails once, with each of its codes: nothing is leaked, and the next attempt succeeds.
func TestWalk(t *testing.T) {
	host, err := rt.Host()
	must(t, err)
	sim, err := hostsim.New(hostsim.Options{}).Open(0)
	must(t, err)
	defer sim.Close()
	for n := -1; n != core.LiveStorages(); { // what other tests dropped is freed after the collection that finds it
		n = core.LiveStorages()
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	faults.Walk(t, sim, func(d driver.Device) error {
		dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(own driver.Device) driver.Device {
			own.Close()
			return unclosed{d}
		}})
		if err != nil {
			return err
		}
		live := core.LiveStorages()
		x := (*tenon.Exec)(core.New(dev, host))
		failed := tenon.Try(func() {
			x.Scope(func(x *tenon.Exec) {
				p := nn.NewParam(x.Ones([]int{2, 2}, tenon.Float32))
				defer p.Close()
				var o *optim.SGD
				if o, err = optim.NewSGD(func(yield func(string, *nn.Param) bool) {
					yield("p", p)
				}, optim.SGDOpt{LR: 0.1, Momentum: 0.5}); err != nil {
					return
				}
				defer o.Close()
				r := compile.New()
				for i := 0; i < 2 && err == nil; i++ {
					err = r.Do(x, func(x *tenon.Exec) error {
						y := x.MulS(p.Tensor(), 2)
						x.MulInto(y, y, y) // keeps a copy
						if err := x.Backward(x.Sum(x.Dropout(y, 0.5), nil)); err != nil {
							return err
						}
						if err := o.Step(x); err != nil {
							return err
						}
						o.ZeroGrad()
						return nil
					})
				}
				err = errors.Join(err, x.Synchronize())
			})
		})
		if n := core.LiveStorages() - live; n != 0 {
			t.Errorf("%d storages are left: %v", n, errors.Join(failed, err))
		}
		return errors.Join(failed, err, dev.Close())
	}, faults.Recovered("MemAlloc", "MemReserve", "MemMap", "EventCreate", "EventRecord",
		"Launch")) // a Together repeats launches that the driver refused
}

// unclosed is a device that outlives those who open it.
type unclosed struct{ driver.Device }

func (unclosed) Close() error { return nil }

// Whichever driver call fails at the end of Do or in Break, the error names an operation and a line of the program.
func TestFailedRunsAreLocated(t *testing.T) {
	x, d := openFailing(t)
	a := x.Ones([]int{8, 8}, tenon.Float32)
	defer a.Close()
	failed, value := 0, 1.0
	for _, breaks := range []bool{false, true} {
		for others := range 4 { // a warm-up, a recording, or a replay fails
			for n := range 30 {
				r := compile.New()
				step := func() error {
					return r.Do(x, func(x *tenon.Exec) error {
						x.NoGrad().MulSInto(a, a, value) // a replay has to change it
						value++
						x.NoGrad().MatMulInto(a, a, x.AddS(a, value))
						if breaks {
							return compile.Break(x)
						}
						return nil
					})
				}
				for range others {
					must(t, step())
				}
				d.Arm(n+1, 0)
				err := step()
				method, _ := d.Fired()
				d.Arm(0, 0)
				if err != nil {
					failed++
				}
				var e *fault.Error
				if err != nil && (!errors.As(err, &e) || e.Op == "" || !strings.HasSuffix(e.File, "failure_test.go") || e.Line == 0) {
					t.Errorf("Break %v, run %d, call %d, %s: %v", breaks, others, n+1, method, err)
				}
				must(t, compile.Reset(x))
			}
		}
	}
	if failed < 10 {
		t.Errorf("only %d runs failed", failed)
	}
}
