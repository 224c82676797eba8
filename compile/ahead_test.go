package compile_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/dtype"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/rt"
	"tenon.dev/kernel"
)

// openAhead opens a device that builds the kernels of a segment before its first run and, with wait, does nothing else meanwhile.
func openAhead(t *testing.T, wait bool, wrap func(driver.Device) driver.Device) (*tenon.Exec, *rt.Device) {
	t.Helper()
	sel := rt.Selector{Kind: rt.Sim, Wrap: wrap}
	if onGPU() {
		sel.Kind = rt.CUDA
	}
	dev, err := rt.Open(sel)
	must(t, err)
	dev.SetBuildsAhead(wait)
	host, err := rt.Host()
	must(t, err)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return (*tenon.Exec)(core.New(dev, host)), dev
}

func item(t *testing.T, x *tenon.Exec, y *tenon.Tensor) float64 {
	t.Helper()
	v, err := x.Item(y)
	must(t, err)
	return v
}

// The kernels that a region's first run needs are known before it starts: of a training step with fused groups, products with epilogues,
// a batch norm, dropout, clipping and an optimizer none is missing. Nor are those that draw in a graph; only the two that set the graph's
// generator are built later.
func TestFirstRunBuildsAhead(t *testing.T) {
	for _, c := range []struct {
		opt              compile.Opt
		first, recording int64
	}{
		{compile.Opt{}, 0, 2}, {compile.Opt{NoFusion: true}, 0, 2}, {compile.Opt{NoGraphs: true}, 0, 0},
		{compile.Opt{NoWarmup: true}, 2, 2},
	} {
		x, dev := openAhead(t, true, nil)
		w := gpt2Training(t, x)
		half := func(n ...int) *tenon.Tensor { return x.RandN(n, tenon.BFloat16).SetRequiresGrad(true) }
		image, weight, bias := half(4, 3, 5, 5), half(3), half(3)
		r := compile.New(c.opt)
		before := dev.KernelsBuilt()
		for run := range 4 {
			var kept *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error {
				h := x.Dropout(x.Softmax(x.RandN([]int{8, 40}, tenon.BFloat16), 1), 0.5)
				x.MulInto(h, h, h)
				kept = x.Keep(x.Cat([]*tenon.Tensor{h, h}, 0))
				must(t, x.Backward(x.Sum(x.BatchNorm(image, weight, bias, nil, nil, tenon.BatchNormOpt{Training: true}), nil)))
				return w.Step(x)
			}))
			kept.Close()
			late := c.first
			if run >= 2 { // the second run differs from the first, which makes the state of the optimizer
				late = c.recording
			}
			if built, ahead := dev.KernelsBuilt()-before, dev.KernelsBuiltAhead(); ahead != built-late || built < 40 {
				t.Errorf("%+v: after run %d, %d of %d kernels were built ahead; want all but %d, and at least 40", c.opt, run, ahead, built,
					late)
			}
		}
		if err := dev.Unlearned(); err != nil {
			t.Errorf("%+v: %v", c.opt, err)
		}
	}
}

// failingLoads fails to load modules while it is on.
type failingLoads struct {
	driver.Device
	on atomic.Bool
}

func (d *failingLoads) LoadModule(t driver.Thread, text []byte) (driver.Module, error) {
	if d.on.Load() {
		return 0, &driver.Error{Call: "LoadModule", Code: driver.OutOfMemory}
	}
	return d.Device.LoadModule(t, text)
}

// If no kernel can be loaded in a run, only that run fails.
func TestFailedBuildsAreForgotten(t *testing.T) {
	for _, wait := range []bool{true, false} {
		var d *failingLoads
		x, _ := openAhead(t, wait, func(own driver.Device) driver.Device { d = &failingLoads{Device: own}; return d })
		a := x.Full([]int{8, 8}, 0.25, tenon.Float32)
		must(t, x.Synchronize())
		r := compile.New()
		run := func() error {
			var made []*tenon.Tensor
			defer func() {
				for _, m := range made {
					m.Close()
				}
			}()
			return r.Do(x, func(x *tenon.Exec) error {
				y := x.Sum(x.Tanh(x.Softmax(x.MatMul(x.Exp(a), x.MulS(a, 0.5)), 1)), nil)
				made = append(made, x.Keep(y), x.Keep(x.Cos(a)))
				return nil
			})
		}
		d.on.Store(true)
		if err := run(); err == nil {
			t.Error("no kernel can be loaded, and the run succeeds")
		}
		d.on.Store(false)
		for i := range 4 {
			if err := run(); err != nil {
				t.Errorf("run %d after the loads work: %v", i+1, err)
			}
		}
		if s := r.Stats(x); s.Replays == 0 || s.Plain != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// What learns which kernels calls need leaves their work out: a large copy, which no kernel does, and a program's own kernel, which here
// counts how often it runs.
func TestLearningDoesNoWork(t *testing.T) {
	count := kernel.Build("count", func(k *kernel.Builder) {
		k.Threads(1)
		n := k.Buffer("n", dtype.Float32)
		n.Store(k.I32(0), n.Load(k.I32(0)).Add(k.Const(dtype.Float32, 1)))
	})
	x, dev := openAhead(t, true, nil)
	x = x.NoGrad()
	n, large := x.Zeros([]int{1}, tenon.Float32), x.Ones([]int{1 << 19}, tenon.Float32)
	r := compile.New()
	for run := range 3 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			x.Launch(count, one, tenon.Out(n))
			y = x.Keep(x.Clone(large))
			return nil
		}))
		if got := item(t, x, n); got != float64(run+1) {
			t.Errorf("after run %d the kernel has run %v times", run, got)
		}
		if got := item(t, x, x.Sum(y, nil)); got != 1<<19 {
			t.Errorf("the sum of a copy of 2¹⁹ ones is %v", got)
		}
		y.Close()
	}
	if err := dev.Unlearned(); err != nil {
		t.Error(err)
	}
}

// A graph may be recorded while kernels are built.
func TestRecordingBesideBuilders(t *testing.T) {
	for range 3 {
		x, _ := openAhead(t, false, nil)
		x = x.NoGrad()
		a := x.Full([]int{64, 64}, 0.25, tenon.Float32)
		program := func(x *tenon.Exec) *tenon.Tensor {
			return x.Sum(x.Tanh(x.Softmax(x.MatMul(x.Exp(a), x.LayerNorm(x.Cos(a), nil, nil, []int{64})), 1)), nil)
		}
		var want string
		x.Scope(func(x *tenon.Exec) { want = fmt.Sprint(item(t, x, program(x))) })
		r := compile.New(compile.Opt{NoWarmup: true})
		for range 3 {
			var y *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error { y = x.Keep(program(x)); return nil }))
			if got := fmt.Sprint(item(t, x, y)); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			y.Close()
		}
	}
}

// If any driver call fails in a run that builds ahead, the next runs are right.
func TestBuildAheadFails(t *testing.T) {
	for _, wait := range []bool{true, false} {
		for k := 0; failedAhead(t, wait, k); k++ {
			if !wait && k == 15 { // which calls come until then depends on the builders
				break
			}
		}
	}
}

// failedAhead fails driver call k of a run that builds ahead, none if k is 0. It reports whether there was one.
func failedAhead(t *testing.T, wait bool, k int) bool {
	var d *faults.Device
	x, dev := openAhead(t, wait, func(own driver.Device) driver.Device {
		d = faults.New(own)
		d.SpareFaults()
		return d
	})
	a := x.Full([]int{8, 8}, 0.25, tenon.Float32)
	must(t, x.Synchronize())
	r := compile.New()
	var y *tenon.Tensor
	run := func(x *tenon.Exec) error {
		y = x.Keep(x.Sum(x.Softmax(x.MatMul(x.Exp(a), x.MulS(a, 0.5)), 1), nil))
		return nil
	}
	if k > 0 {
		d.Arm(k, 0)
	}
	_ = r.Do(x, run)
	fired, _ := d.Fired()
	d.Arm(0, 0)
	if k > 0 && fired == "" {
		if k < 15 && wait {
			t.Errorf("only %d calls were failed", k-1)
		}
		return !wait
	}
	for range 3 {
		must(t, r.Do(x, run))
		if got := fmt.Sprint(item(t, x, y)); got != "8" {
			t.Errorf("after call %d, %s, failed: %s, want 8", k, fired, got)
		}
	}
	if k == 0 && wait && dev.KernelsBuiltAhead() == 0 { // else a busy machine may start no builder before the run needs the kernels
		t.Error("nothing was built ahead")
	}
	return true
}
