package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/rt"
)

// openAhead opens a device that builds the kernels of a segment before its first run.
func openAhead(t *testing.T, wrap func(driver.Device) driver.Device) (*tenon.Exec, *rt.Device) {
	t.Helper()
	sel := rt.Selector{Kind: rt.Sim, Wrap: wrap}
	if onGPU() {
		sel.Kind = rt.CUDA
	}
	dev, err := rt.Open(sel)
	must(t, err)
	dev.SetBuildsAhead()
	host, err := rt.Host()
	must(t, err)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return (*tenon.Exec)(core.New(dev, host)), dev
}

// The kernels that a region's first run needs are known before it starts: of a training step with fused groups, products with epilogues,
// dropout, clipping and an optimizer none is missing and none too many.
func TestFirstRunBuildsAhead(t *testing.T) {
	for _, opt := range []compile.Opt{{}, {NoFusion: true}} {
		x, dev := openAhead(t, nil)
		w := gpt2Training(t, x)
		r := compile.New(opt)
		before := dev.KernelsBuilt()
		must(t, r.Do(x, func(x *tenon.Exec) error {
			h := x.Dropout(x.Softmax(x.RandN([]int{8, 40}, tenon.BFloat16), 1), 0.5)
			x.MulInto(h, h, h)
			x.Keep(x.Cat([]*tenon.Tensor{h, h}, 0))
			return w.Step(x)
		}))
		built := dev.KernelsBuilt() - before
		if ahead := dev.KernelsBuiltAhead(); ahead != built || built < 20 {
			t.Errorf("%+v: %d of %d kernels were built ahead; want all, and at least 20", opt, ahead, built)
		}
		must(t, r.Do(x, w.Step))
		if n := dev.KernelsBuiltAhead(); n != built {
			t.Errorf("%+v: the second run builds %d kernels ahead", opt, n-built)
		}
	}
}

// If the driver fails to load a kernel that is built ahead, the run that needs it fails or comes around it, and the next run is right.
func TestBuildAheadFails(t *testing.T) {
	program := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		return x.Sum(x.Softmax(x.MatMul(x.Exp(a), x.MulS(a, 0.5)), 1), nil)
	}
	want := ""
	for k := 0; ; k++ {
		var d *faults.Device
		x, dev := openAhead(t, func(own driver.Device) driver.Device {
			d = faults.New(own)
			d.SpareFaults()
			return d
		})
		a := x.Full([]int{8, 8}, 0.25, tenon.Float32)
		must(t, x.Synchronize())
		r := compile.New()
		var y *tenon.Tensor
		run := func(x *tenon.Exec) error { y = x.Keep(program(x, a)); return nil }
		if k > 0 {
			d.Arm(k, 0)
		}
		err := r.Do(x, run)
		fired, _ := d.Fired()
		d.Arm(0, 0)
		if k > 0 && fired == "" {
			if k < 15 {
				t.Errorf("only %d calls were failed", k-1)
			}
			return
		}
		if k > 0 && err == nil && fired == "LoadModule" {
			t.Errorf("call %d, a load, failed, and the run did not", k)
		}
		for range 3 {
			must(t, r.Do(x, run))
			v, err := x.Item(y)
			must(t, err)
			if got := fmt.Sprint(v); want == "" {
				want = got
			} else if got != want {
				t.Errorf("after call %d, %s, failed: %s, want %s", k, fired, got, want)
			}
		}
		if dev.KernelsBuiltAhead() == 0 {
			t.Error("nothing was built ahead")
		}
	}
}
