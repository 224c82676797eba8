package core

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/knob"
	"tenon.dev/internal/rt"
)

// Programs that lose their device: what they launch, and the codes that report the loss. Under compute-sanitizer every fault is a failed
// launch.
var faulty = map[string]struct {
	code   driver.Code
	launch func(x *Exec, t *Tensor)
}{
	"Assert": {driver.Assert, func(x *Exec, t *Tensor) { x.Gather(t, 0, From(x, []int64{7})) }},
	"Address": {driver.IllegalAddress, func(x *Exec, t *Tensor) {
		st := &storage{dev: t.st.dev, ptr: 0x10, bytes: 12}
		bad := &Tensor{st: st, dt: dtype.Float32}
		bad.form = formOf([]int{3}, nil)
		x.Neg(bad)
	}},
}

var faultyOps = map[string]string{"Assert": "Gather", "Address": "Neg"}

// faultChild is the argument with which this binary is started to lose a GPU.
const faultChild = "-test.run=^TestLostGPU$/^"

// TestLostGPU loses the GPU with each program in a separate process.
func TestLostGPU(t *testing.T) {
	if rt.GPUs() == 0 {
		t.Skip("needs an NVIDIA GPU")
	}
	for name := range faulty {
		t.Run(name, func(t *testing.T) {
			if slices.Contains(os.Args, faultChild+name+"$") {
				loseDevice(t, rt.Selector{Kind: rt.CUDA}, name)
				return
			}
			out, err := exec.Command(os.Args[0], faultChild+name+"$", "-test.v").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestLostGPU/"+name) {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}

// TestLostSimulator loses a simulated device, which survives only failed assertions.
func TestLostSimulator(t *testing.T) { loseDevice(t, rt.Selector{Kind: rt.Sim}, "Address") }

// TestLostLines checks that the suspects have lines too.
func TestLostLines(t *testing.T) {
	t.Setenv("TENON_LAUNCH_LINES", "1")
	err := loseDevice(t, rt.Selector{Kind: rt.Sim}, "Address")
	if !strings.Contains(err.Error(), "lost_test.go:") || !strings.Contains(err.Suspects[0], "lost_test.go:") {
		t.Errorf("the suspects have no lines: %v", err)
	}
}

// loseDevice checks the rules of a lost device and returns the fault.
func loseDevice(t *testing.T, sel rt.Selector, name string) *fault.Error {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(sel)
	if err != nil {
		t.Fatal(err)
	}
	p := faulty[name]
	x := New(dev, host)
	before := live.Load()
	var first *fault.Error
	x.Scope(func(x *Exec) {
		a := From(x, []float32{1, 2, 3}).SetRequiresGrad(true)
		y := sumOf(x, x.Mul(a, a))
		st, err := dev.Stream()
		if err != nil {
			t.Fatal(err)
		}
		side := x.On(st)
		b := side.Neg(a)
		if err := dev.Synchronize(); err != nil {
			t.Fatal(err)
		}
		p.launch(x.NoGrad(), a)
		err = x.Synchronize()
		if !errors.As(err, &first) || first.Kind != fault.Device || !errors.Is(err, p.code) && !errors.Is(err, driver.LaunchFailed) {
			t.Fatalf("the first call gave %v, want a device fault with code %d", err, p.code)
		}
		named := strings.Contains(first.Error(), "kernel pw_neg_") // by the simulated device, which then needs no suspects
		switch {
		case named != (sel.Kind == rt.Sim):
			t.Errorf("the kernel is named: %t: %v", named, first)
		case named && !knob.LaunchLines.Get():
			if len(first.Suspects) > 0 || !strings.Contains(first.Error(), "lost to this process: kernel pw_neg_") {
				t.Errorf("%v, with the suspects %q; want the kernel alone", first, first.Suspects)
			}
		case len(first.Suspects) == 0, !strings.HasPrefix(first.Suspects[0], faultyOps[name]+", operation "),
			!strings.Contains(first.Suspects[0], "of stream 0"):
			t.Errorf("the suspects are %q; want %s first", first.Suspects, faultyOps[name])
		}
		for _, s := range first.Suspects {
			if strings.HasPrefix(s, "Mul") || strings.Contains(s, "of stream 1") {
				t.Errorf("%q is a suspect, though it was waited for", s)
			}
		}
		for what, call := range map[string]func() error{
			"Add":         func() error { return Try(func() { x.Add(a, a) }) },
			"Empty":       func() error { return Try(func() { x.Empty([]int{1}, dtype.Float32) }) },
			"Zeros":       func() error { return Try(func() { side.Zeros([]int{1 << 22}, dtype.Float32) }) },
			"From":        func() error { return Try(func() { From(x, []float32{1}) }) },
			"Item":        func() error { _, err := x.Item(x.Select(a, 0, 0)); return err },
			"Backward":    func() error { return x.Backward(y, BackwardOpt{}) },
			"Synchronize": side.Synchronize,
			"Device":      dev.Synchronize,
			"Query":       func() error { _, err := st.Query(); return err },
			"WaitStream":  func() error { return side.WaitStream(x.Stream()) },
			"Stream":      func() error { _, err := dev.Stream(); return err },
		} {
			err := call()
			var e *fault.Error
			if !errors.As(err, &e) || fault.KindOf(err) != fault.Device || !errors.Is(err, first.Cause) {
				t.Errorf("%s on the lost device: %v", what, err)
			}
		}
		b.Close() // used on two streams
		if err := dev.EmptyCache(); err != nil {
			t.Errorf("EmptyCache is not silent: %v", err)
		}
	})
	if n := live.Load() - before; n != 0 {
		t.Errorf("%d storages are left", n)
	}
	if err := dev.Close(); err != nil {
		t.Errorf("Close is not silent: %v", err)
	}
	stats := dev.Memory().Stats()
	if n := stats.ReservedBytes.All().Current; n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
	return first
}

// TestLostUnseen checks that Close reports a fault that no call has reported.
func TestLostUnseen(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim})
	if err != nil {
		t.Fatal(err)
	}
	x := New(dev, host)
	x.Scope(func(x *Exec) { faulty["Address"].launch(x, From(x, []float32{1, 2, 3})) })
	wantError(t, dev.Close(), fault.Device, "illegal memory access", "kernel pw_neg_")
}

// TestInlineFault checks that a fault on the inline device affects only one call.
func TestInlineFault(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	x := New(host, host)
	x.Scope(func(x *Exec) {
		a := From(x, []float32{1, 2, 3})
		before := live.Load()
		for range 2 {
			wantError(t, Try(func() { x.Scope(func(x *Exec) { faulty["Assert"].launch(x, a) }) }), fault.Invalid,
				"Gather(float32[3], int64[1]): index 7 is out of range for size 3, in the operand index; give numbers from 0 to "+
					"size-1 (at ", "lost_test.go")
			wantError(t, Try(func() { x.Scope(func(x *Exec) { faulty["Address"].launch(x, a) }) }), fault.Device,
				"illegal memory access", "Neg(")
		}
		if n := live.Load() - before; n != 0 {
			t.Errorf("%d storages are left", n)
		}
		if err := host.Lost(); err != nil {
			t.Errorf("the processor is lost: %v", err)
		}
		want(t, x, x.Neg(a), -1, -2, -3)
	})
}
