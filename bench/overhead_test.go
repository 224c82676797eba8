package bench

import (
	"sync/atomic"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
	"tenon.dev/kernel"
)

var emptyKernel = kernel.Build("empty", func(k *kernel.Builder) {
	n := k.Scalar("n", dtype.Int64)
	y := k.Buffer("y", dtype.Float32)
	k.ForEach(n, func(i kernel.Value) { y.Store(i, k.F32(0)) })
})

func TestOverhead(t *testing.T) {
	x := onGPU(t)
	dev := coreExec(x).Device()
	overhead(t, "", x, dev)
	t.Run("Driver", func(t *testing.T) { driverOverhead(t, dev) })
	streams(t, x)
}

// streams measures what ordering between streams costs.
func streams(t *testing.T, x *tenon.Exec) {
	dev, st := x.Device(), x.Stream()
	e := dev.NewEvent()
	defer e.Close()
	perCall(t, "event.record", 500, true, dev.Synchronize, func() {
		if err := e.Record(st); err != nil {
			t.Fatal(err)
		}
	})
	side, err := dev.Stream()
	if err != nil {
		t.Fatal(err)
	}
	var on *tenon.Exec
	perCall(t, "stream.switch", 10000, true, dev.Synchronize, func() { on = x.On(side) })
	if on.Stream() != side {
		t.Error("the Exec is on another stream")
	}
}

// The Go part of operations, on a driver that does nothing.
func TestGoOverhead(t *testing.T) {
	x := onNull(t)
	overhead(t, ".go", x, coreExec(x).Device())
}

// TestGoGate measures what guarding a session against a second goroutine costs: entering and leaving the gate with nothing in between, and
// an atomic operation for comparison.
func TestGoGate(t *testing.T) {
	x := coreExec(onNull(t))
	sync := func() error { return nil }
	perOp(t, "gate.go", 10000, 1, true, sync, func() {
		for range 10000 {
			core.Enter(x, "Bench")
			core.Leave(x)
		}
	})
	var word uint64
	perOp(t, "gate.go.cas", 10000, 1, true, sync, func() {
		for i := range uint64(10000) {
			atomic.CompareAndSwapUint64(&word, i, i+1)
		}
		word = 0
	})
}

func overhead(t *testing.T, part string, x *tenon.Exec, dev *rt.Device) {
	sync := func() error { return dev.Synchronize() }
	for range 100_000 { // until the heap no longer grows: a new page takes longer than several calls
		x.Empty([]int{16}, tenon.Float32).Close()
	}
	// A GPU's queue holds about a thousand launches: with 500, as in the bare measurement, issuing never waits for it.
	add, grad, empty := "add"+part, "add"+part+".grad", "empty"+part
	x.Scope(func(x *tenon.Exec) {
		a, b := x.Ones([]int{16}, tenon.Float32), x.Ones([]int{16}, tenon.Float32)
		ng := x.NoGrad()
		perOp(t, add, 50, 10, true, sync, func() {
			x.Scope(func(*tenon.Exec) {
				for range 50 {
					ng.Add(a, b)
				}
			})
		})
		g := x.Ones([]int{16}, tenon.Float32).SetRequiresGrad(true)
		perOp(t, grad, 50, 10, true, sync, func() {
			x.Scope(func(x *tenon.Exec) {
				for range 50 {
					x.Add(g, b)
				}
			})
		})
		allocs := testing.AllocsPerRun(200, func() { ng.Add(a, b).Close() })
		recordFigure(add+".allocs", "allocs/op", []float64{allocs})
		perCall(t, empty+".scoped", 1000, true, sync, func() { x.Empty([]int{16}, tenon.Float32).Close() })
	})
	perCall(t, empty+".loose", 1000, true, sync, func() { x.Empty([]int{16}, tenon.Float32).Close() })
}

func driverOverhead(t *testing.T, dev *rt.Device) {
	f, err := dev.Load(emptyKernel)
	if err != nil {
		t.Fatal(err)
	}
	d := dev.Driver()
	th := d.Enter()
	defer th.Leave()
	p, err := d.MemAlloc(th, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer d.MemFree(th, p)
	args := make([]byte, 16)
	args[0] = 16
	for i := range 8 {
		args[8+i] = byte(p >> (8 * i))
	}
	st := dev.DefaultStream()
	l := &driver.Launch{Func: f.Handle, Stream: st.Handle(), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Args: args}
	sync := func() error { return d.Synchronize(th) }
	launch := func() {
		if err := d.Launch(l); err != nil {
			t.Fatal(err)
		}
	}
	perCall(t, "launch", 500, true, sync, launch)
	recordFigure("launch.allocs", "allocs/op", []float64{testing.AllocsPerRun(100, launch)})
	e, err := dev.AcquireEvent(false)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.ReleaseEvent(e, false)
	rec := func() {
		if err := d.EventRecord(e, st.Handle()); err != nil {
			t.Fatal(err)
		}
	}
	perCall(t, "event", 500, true, sync, rec)
	recordFigure("event.allocs", "allocs/op", []float64{testing.AllocsPerRun(100, rec)})
}
