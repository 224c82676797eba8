package core

import (
	"runtime"
	"testing"
	"time"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

// toSim runs f with an Exec of a simulated device and one of the processor, of one session.
func toSim(t *testing.T, f func(t *testing.T, x, host *Exec)) {
	pair(t, rt.Selector{Kind: rt.Sim}, rt.Selector{Kind: rt.CPU}, f)
}

// count returns 0, 1, … n-1.
func count(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i)
	}
	return v
}

func TestPinMemory(t *testing.T) {
	toSim(t, func(t *testing.T, x, host *Exec) {
		a := From(host, count(6), 2, 3)
		p := x.PinMemory(a)
		want(t, host, p, count(6)...)
		if !p.IsPinned() || a.IsPinned() || p.Device() != host.Device() || x.PinMemory(p) != p {
			t.Errorf("pinned %v and %v, on %s", p.IsPinned(), a.IsPinned(), p.Device().Info().Name)
		}
		// The processor's kernels and plain copies can use it.
		host.AddInto(p, p, p)
		want(t, host, host.AddS(p, 1), 1, 3, 5, 7, 9, 11)
		big := x.PinMemory(host.Full([]int{1 << 19}, 3, dtype.Float32))
		if v, err := host.Item(host.AMin(big, nil, DimOpt{})); err != nil || v != 3 {
			t.Errorf("the least element is %v: %v", v, err)
		}
		if e := x.PinMemory(host.Empty([]int{0, 2}, dtype.Float32)); e.Numel() != 0 || e.IsPinned() {
			t.Errorf("an empty tensor became %v", e)
		}
		// Gradients flow through it.
		w := leafOf(host, 1, 2)
		g, err := host.Grad([]*Tensor{host.Sum(host.MulS(x.PinMemory(w), 3), nil, SumOpt{})}, []*Tensor{w}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, host, g[0], 3, 3)
		wantError(t, Try(func() { x.PinMemory(ones(x, 2)) }), fault.Invalid, "cannot pin")
		wantError(t, Try(func() { host.PinMemory(a) }), fault.Invalid, "pinned for a GPU")
		a.Close()
		wantError(t, Try(func() { x.PinMemory(a) }), fault.Closed, "was closed")
	})
}

func TestCopyAsyncInto(t *testing.T) {
	toSim(t, func(t *testing.T, x, host *Exec) {
		side, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		a := From(x, count(4))
		p, q := x.PinMemory(From(host, []float32{9, 9, 9, 9})), x.PinMemory(From(host, []float32{7, 7, 7, 7}))
		// Chains of copies over both tensors and two streams, without waiting.
		x.CopyAsyncInto(p, a)          // p = a
		x.On(side).CopyAsyncInto(a, q) // a = q
		host.CopyAsyncInto(q, a)       // q = a = 7
		x.CopyAsyncInto(a, p)          // a = the first a
		want(t, x, a, count(4)...)
		want(t, host, p, count(4)...)
		want(t, host, q, 7, 7, 7, 7)
		// Writes by the processor come after copies that read.
		x.CopyAsyncInto(a, q)
		host.CopyInto(q, From(host, []float32{1, 1, 1, 1}))
		x.CopyAsyncInto(q, From(x, count(4)))
		want(t, x, a, 7, 7, 7, 7)
		want(t, host, q, count(4)...)
		// Types, shapes and gaps.
		d := x.Zeros([]int{2, 4}, dtype.Float64)
		x.CopyAsyncInto(d, q)
		want(t, x, x.ToDType(d, dtype.Float32), 0, 1, 2, 3, 0, 1, 2, 3)
		i := x.PinMemory(host.Zeros([]int{4}, dtype.Int64))
		host.CopyAsyncInto(i, x.MulS(a, 2))
		want(t, host, host.ToDType(i, dtype.Float32), 14, 14, 14, 14)
		m := x.PinMemory(host.Zeros([]int{4, 2}, dtype.Float32))
		x.CopyAsyncInto(host.Select(m, 1, 1), a)
		want(t, host, m, 0, 7, 0, 7, 0, 7, 0, 7)
		// On one device it is CopyInto, as it is for pageable memory.
		x.CopyAsyncInto(d, a)
		host.CopyAsyncInto(host.Empty([]int{4}, dtype.Float32), q)
		y := host.Zeros([]int{4}, dtype.Float32)
		x.CopyAsyncInto(y, a)
		want(t, host, y, 7, 7, 7, 7)
		// Gradients flow through the copy.
		w := leafOf(x, 1, 2, 3, 4)
		r := x.PinMemory(host.Zeros([]int{4}, dtype.Float32))
		host.CopyAsyncInto(r, w)
		g, err := host.Grad([]*Tensor{host.Sum(host.Mul(r, r), nil, SumOpt{})}, []*Tensor{w}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, g[0], 2, 4, 6, 8)
		_, err = x.Capture(func(x *Exec) { x.CopyAsyncInto(a, q) }, CaptureOpt{})
		wantError(t, err, fault.Capture, "CopyAsyncInto cannot be captured")
		q.Close()
		wantError(t, Try(func() { x.CopyAsyncInto(a, q) }), fault.Closed, "was closed")
	})
}

// TestPinnedForAnother checks that memory pinned for one device works as plain memory for another.
func TestPinnedForAnother(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	pair(t, rt.Selector{Kind: rt.Sim}, rt.Selector{Kind: rt.Sim}, func(t *testing.T, x, y *Exec) {
		h := x.On(host.DefaultStream())
		p := x.PinMemory(From(h, count(3)))
		b := y.To(p, ToOpt{NonBlocking: true})
		h.CopyInto(p, From(h, []float32{4, 4, 4}))
		want(t, y, b, count(3)...)
		y.CopyAsyncInto(p, y.AddS(b, 1))
		want(t, h, p, 1, 2, 3)
	})
}

func TestRegisterHost(t *testing.T) {
	toSim(t, func(t *testing.T, x, host *Exec) {
		a := From(host, count(100), 10, 10)
		b := host.Select(a, 0, 5)
		if err := x.RegisterHost(b); err != nil {
			t.Fatal(err)
		}
		if !a.IsPinned() || !b.IsPinned() {
			t.Error("the storage is not pinned")
		}
		wantError(t, x.RegisterHost(a), fault.System, "already")
		want(t, x, x.To(b, ToOpt{NonBlocking: true}), count(100)[50:60]...)
		b.Close()
		if err := x.UnregisterHost(a); err != nil {
			t.Fatal(err)
		}
		wantError(t, x.UnregisterHost(a), fault.Invalid, "not registered")
		wantError(t, x.RegisterHost(ones(x, 2)), fault.Invalid, "memory of the processor is registered for a GPU")
		wantError(t, host.RegisterHost(a), fault.Invalid, "memory of the processor is registered for a GPU")
		wantError(t, x.RegisterHost(host.Empty([]int{0}, dtype.Float32)), fault.Invalid, "no memory")
		a.Close()
		wantError(t, x.UnregisterHost(a), fault.Closed, "was closed")
	})
}

// TestPinnedDropped checks that dropped pinned tensors return to the cache once the garbage collector has found them.
func TestPinnedDropped(t *testing.T) {
	settled(t)
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim})
	if err != nil {
		t.Fatal(err)
	}
	before := live.Load()
	x := New(dev, host)
	func() {
		p := x.PinMemory(x.Host().Full([]int{100}, 1, dtype.Float32))
		a := x.To(p, ToOpt{NonBlocking: true})
		x.Host().To(a, ToOpt{NonBlocking: true})
	}()
	for range 100 {
		if runtime.GC(); live.Load() == before {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if n := live.Load() - before; n != 0 {
		t.Fatalf("%d storages are left", n)
	}
	if err := dev.Synchronize(); err != nil {
		t.Error(err)
	}
	if err := dev.EmptyHostCache(); err != nil {
		t.Error(err)
	}
	if n := dev.PinnedStats().Allocations.Current; n != 0 {
		t.Errorf("%d pieces of page-locked memory are left", n)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// TestPinnedOutlivesDevice checks that page-locked memory is lost when its device is closed, and that the processor's operations on tensors
// in it fail.
func TestPinnedOutlivesDevice(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim})
	if err != nil {
		t.Fatal(err)
	}
	x := New(dev, host)
	x.Scope(func(x *Exec) {
		p := x.PinMemory(x.Host().Full([]int{100}, 1, dtype.Float32))
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		_, err := x.Host().Bytes(p)
		if err == nil {
			t.Error("memory of a closed device was read")
		}
	})
}
