package tenon_test

import (
	"strings"
	"sync"
	"testing"

	"tenon.dev"
)

// pairOf opens two devices until the test ends: two GPUs if the machine has them, else those of a simulated machine.
func pairOf(t *testing.T) (x, y *tenon.Exec) {
	t.Helper()
	sel := tenon.SimMachine(2, 1<<30)
	if tenon.GPUs() > 1 {
		sel = tenon.Best()
	}
	var execs [2]*tenon.Exec
	for i := range execs {
		e, err := tenon.Open(sel.At(i))
		must(t, err)
		t.Cleanup(func() { must(t, e.Close()) })
		if n := e.Device().Ordinal(); n != i {
			t.Fatalf("device %d calls itself %d", i, n)
		}
		execs[i] = e
	}
	return execs[0], execs[1]
}

func TestSelectorCount(t *testing.T) {
	for _, c := range []struct {
		sel  tenon.Selector
		want int
	}{{tenon.SimMachine(3, 0), 3}, {tenon.SimMachine(3, 0).At(2), 3}, {tenon.Sim(0), 1}, {tenon.CPU(), 1}} {
		if n, err := c.sel.Count(); n != c.want || err != nil {
			t.Errorf("%+v: %d, %v, want %d", c.sel, n, err, c.want)
		}
	}
	t.Setenv("TENON_SIM_DEVICES", "4")
	if n, err := tenon.Sim(1 << 20).Count(); n != 4 || err != nil {
		t.Errorf("with TENON_SIM_DEVICES=4: %d, %v", n, err)
	}
	if n, err := tenon.SimMachine(2, 0).Count(); n != 2 || err != nil {
		t.Errorf("a machine of 2 with TENON_SIM_DEVICES=4: %d, %v", n, err)
	}
	for _, sel := range []tenon.Selector{tenon.SimMachine(0, 0), tenon.SimMachine(9, 0), tenon.SimMachine(2, 0).At(2), tenon.Sim(0).At(-1),
		tenon.CPU().At(1)} {
		if _, err := tenon.Open(sel); err == nil {
			t.Errorf("%+v could be opened", sel)
		}
	}
}

// TestTwoDevices trains on two devices with two sessions: a layer on each, the gradient goes back through the copy.
func TestTwoDevices(t *testing.T) {
	x, y := pairOf(t)
	w := tenon.From(x, []float32{1, 2, 3, 4}, 2, 2).SetRequiresGrad(true)
	v := tenon.From(y, []float32{1, 0, 0, 1}, 2, 2).SetRequiresGrad(true)
	in := tenon.From(x, []float32{1, 1}, 1, 2)
	var last float64
	for step := range 20 {
		y.Scope(func(y *tenon.Exec) {
			x := y.On(x.Stream())
			out := y.MM(y.To(x.MM(in, w)), v)
			loss := y.Sum(y.Square(out), nil)
			must(t, y.Backward(loss))
			x.NoGrad().AddInto(w, w, x.NoGrad().MulS(w.Grad(), -0.005))
			y.NoGrad().AddInto(v, v, y.NoGrad().MulS(v.Grad(), -0.005))
			w.SetGrad(nil)
			v.SetGrad(nil)
			now, err := y.Item(loss)
			must(t, err)
			if step > 0 && now >= last {
				t.Fatalf("step %d: the loss rose from %v to %v", step, last, now)
			}
			last = now
		})
	}
	if w.Device() != x.Device() || v.Device() != y.Device() {
		t.Error("a parameter has moved")
	}
	err := tenon.Try(func() { x.Add(w, v) })
	if err == nil || !strings.Contains(err.Error(), "is on device 1 (") || !strings.Contains(err.Error(), "runs on device 0 (") {
		t.Errorf("operands of two devices: %v", err)
	}
}

// TestTwoDevicesEvents orders sessions of two devices by events and streams, with tensors that the program orders by hand.
func TestTwoDevicesEvents(t *testing.T) {
	x, y := pairOf(t)
	a := x.Full([]int{1000}, 1, tenon.Float32)
	e := x.Device().NewEvent()
	defer e.Close()
	for range 50 {
		x.AddInto(a, a, a)
		x.MulInto(a, a, x.Full(nil, 0.5, tenon.Float32))
	}
	must(t, e.Record(x.Stream()))
	must(t, y.Stream().Wait(e))
	must(t, y.Synchronize())
	if done, err := e.Query(); !done || err != nil {
		t.Errorf("the other device waited for the event, which is done: %v, %v", done, err)
	}
	x.AddInto(a, a, a)
	must(t, y.WaitStream(x.Stream()))
	must(t, y.Synchronize())
	if done, err := x.Stream().Query(); !done || err != nil {
		t.Errorf("the other device waited for the stream, which is done: %v, %v", done, err)
	}
	wantItem(t, y, y.Select(y.To(a), 0, 0), 2)
}

// TestTwoDevicesGoroutines passes tensors between two goroutines, each with a session on its own device.
func TestTwoDevicesGoroutines(t *testing.T) {
	x, y := pairOf(t)
	there, back := make(chan *tenon.Tensor), make(chan *tenon.Tensor)
	var all sync.WaitGroup
	all.Go(func() {
		defer close(back)
		for a := range there {
			back <- y.Within(func(y *tenon.Exec) *tenon.Tensor { return y.AddS(y.To(a), 1) })
			a.Close()
		}
	})
	a := x.Zeros([]int{100}, tenon.Float32)
	for range 100 {
		there <- a
		b := <-back
		a = x.Within(func(x *tenon.Exec) *tenon.Tensor { return x.AddS(x.To(b), 1) })
		b.Close()
	}
	close(there)
	all.Wait()
	wantItem(t, x, x.Select(a, 0, 99), 200)
	for i, e := range []*tenon.Exec{x, y} {
		if n := e.Device().MemoryAllocated(); n != int64(512*(1-i)) {
			t.Errorf("device %d holds %d bytes at the end", i, n)
		}
	}
}
