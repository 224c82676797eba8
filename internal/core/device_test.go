package core

import (
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// pair opens two devices and passes f an Exec on each, of one session.
func pair(t *testing.T, a, b rt.Selector, f func(t *testing.T, x, y *Exec)) {
	t.Helper()
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	var devs [2]*rt.Device
	for i, sel := range []rt.Selector{a, b} {
		if devs[i], err = rt.Open(sel); err != nil {
			t.Fatal(err)
		}
	}
	before := live.Load()
	x := New(devs[0], host)
	x.Scope(func(x *Exec) { f(t, x, x.On(devs[1].DefaultStream())) })
	if n := live.Load() - before; n > 0 {
		t.Errorf("%d storages are left after the scope", n)
	}
	for _, d := range devs {
		if err := d.Synchronize(); err != nil {
			t.Error(err)
		}
		p, err := d.AllocPinned(1) // also checks which streams are done
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Free(); err != nil {
			t.Error(err)
		}
		if n := d.PinnedStats().ActiveRequests.Current; n != 0 {
			t.Errorf("%d pieces of page-locked memory are left", n)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// pairs runs f over every kind of pair of devices.
func pairs(t *testing.T, f func(t *testing.T, x, y *Exec)) {
	cpu, sim := rt.Selector{Kind: rt.CPU}, rt.Selector{Kind: rt.Sim}
	list := map[string][2]rt.Selector{"cpu to sim": {cpu, sim}, "sim to cpu": {sim, cpu}, "sim to sim": {sim, sim}}
	m := rt.NewMachine(2, 0)
	first, second := rt.Selector{Kind: rt.Sim, Machine: m}, rt.Selector{Kind: rt.Sim, Machine: m, Ordinal: 1}
	list["sim 0 to sim 1"], list["sim 1 to sim 0"], list["sim 0 to sim 0"] = [2]rt.Selector{first, second}, [2]rt.Selector{second, first},
		[2]rt.Selector{first, first}
	if rt.GPUs() > 1 {
		first, second := rt.Selector{Kind: rt.CUDA}, rt.Selector{Kind: rt.CUDA, Ordinal: 1}
		list["cuda 0 to cuda 1"], list["cuda 1 to cuda 0"] = [2]rt.Selector{first, second}, [2]rt.Selector{second, first}
	}
	if rt.GPUs() > 0 {
		gpu := rt.Selector{Kind: rt.CUDA}
		list["cpu to cuda"], list["cuda to cpu"], list["cuda to sim"] = [2]rt.Selector{cpu, gpu}, [2]rt.Selector{gpu, cpu},
			[2]rt.Selector{gpu, sim}
	}
	for name, p := range list {
		t.Run(name, func(t *testing.T) { pair(t, p[0], p[1], f) })
	}
}

func TestTo(t *testing.T) {
	pairs(t, func(t *testing.T, x, y *Exec) {
		for _, wait := range []bool{true, false} {
			opt := ToOpt{NonBlocking: !wait}
			a := x.MulS(From(x, numbers(24), 2, 3, 4), 2)
			if x.To(a, opt) != a {
				t.Error("a copy was made on the tensor's own device")
			}
			b := y.To(a, opt)
			if b.Device() != y.Device() {
				t.Fatalf("the result is on %s", b.Device().Info().Name)
			}
			twice := floats(t, y, y.Add(b, b))
			for i, v := range numbers(24) {
				if twice[i] != 4*v {
					t.Fatalf("element %d is %v, want %v", i, twice[i], 4*v)
				}
			}
			// The memory order is kept if it has no gaps.
			p := y.To(x.Permute(a, 2, 0, 1), opt)
			if !infer.Same(p.Stride(), []int{1, 12, 4}) {
				t.Errorf("strides %v", p.Stride())
			}
			want(t, y, p, floats(t, x, x.Permute(a, 2, 0, 1))...)
			s := y.To(x.Slice(a, 2, 0, 4, 2), opt)
			if !s.IsContiguous() {
				t.Errorf("strides %v", s.Stride())
			}
			want(t, y, s, floats(t, x, x.Slice(a, 2, 0, 4, 2))...)
			if e := y.To(x.Empty([]int{0, 3}, dtype.Float32), opt); e.Numel() != 0 {
				t.Errorf("an empty tensor became %v", e)
			}
			// One that nobody waits for.
			y.To(a, opt).Close()
		}
	})
}

func TestToGradient(t *testing.T) {
	pairs(t, func(t *testing.T, x, y *Exec) {
		for _, wait := range []bool{true, false} {
			a := leafOf(x, 1, 2, 3)
			b := y.To(a, ToOpt{NonBlocking: !wait})
			g, err := y.Grad([]*Tensor{y.Sum(y.Mul(y.Mul(b, b), b), nil, SumOpt{})}, []*Tensor{a}, GradOpt{CreateGraph: true})
			if err != nil {
				t.Fatal(err)
			}
			want(t, x, g[0], 3, 12, 27)
			h, err := x.Grad([]*Tensor{x.Sum(g[0], nil, SumOpt{})}, []*Tensor{a}, GradOpt{})
			if err != nil {
				t.Fatal(err)
			}
			want(t, x, h[0], 6, 12, 18)
		}
	})
}

func TestCopyIntoFromOtherDevice(t *testing.T) {
	pairs(t, func(t *testing.T, x, y *Exec) {
		dst := y.Zeros([]int{2, 3}, dtype.Float64)
		y.CopyInto(dst, From(x, []float32{1, 2, 3}))
		want(t, y, y.ToDType(dst, dtype.Float32), 1, 2, 3, 1, 2, 3)
	})
}

// TestToLarge copies more than one piece of page-locked memory holds.
func TestToLarge(t *testing.T) {
	pair(t, rt.Selector{Kind: rt.CPU}, rt.Selector{Kind: rt.Sim}, func(t *testing.T, x, y *Exec) {
		n := 33 << 20
		a := y.ToDType(y.Arange(float64(n), dtype.Int64, ArangeOpt{}), dtype.Uint8)
		b := x.To(a, ToOpt{})
		c := y.To(b, ToOpt{NonBlocking: true})
		same, err := y.Item(y.AMin(y.ToDType(y.Eq(a, c), dtype.Uint8), nil, DimOpt{}))
		if err != nil || same != 1 {
			t.Fatalf("not all elements came back: %v %v", same, err)
		}
	})
}

func TestToErrors(t *testing.T) {
	pair(t, rt.Selector{Kind: rt.CPU}, rt.Selector{Kind: rt.Sim}, func(t *testing.T, x, y *Exec) {
		a := From(x, []float32{1})
		_, err := y.Capture(func(y *Exec) { y.To(a, ToOpt{}) }, CaptureOpt{})
		wantError(t, err, fault.Capture, "To cannot be captured")
		a.Close()
		wantError(t, Try(func() { y.To(a, ToOpt{}) }), fault.Closed, "was closed")
	})
}
