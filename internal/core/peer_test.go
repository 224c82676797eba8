package core

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/rt"
)

// twoDevices opens the devices of a machine of two, and a session on each, until the test ends.
func twoDevices(t *testing.T, wrap func(d driver.Device) driver.Device) (x, y *Exec) {
	t.Helper()
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	m := rt.NewMachine(2, 0)
	var execs [2]*Exec
	for i := range execs {
		d, err := rt.Open(rt.Selector{Kind: rt.Sim, Machine: m, Ordinal: i, Wrap: wrap})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		execs[i] = New(d, host)
	}
	return execs[0], execs[1]
}

// reordering makes the machine run streams in an order that the seed decides.
func reordering(seed uint64) func(d driver.Device) driver.Device {
	return func(d driver.Device) driver.Device {
		d.(*hostsim.Device).SetPolicy(hostsim.Random(seed))
		return d
	}
}

// TestPeersInOrder passes tensors between two devices and changes them before and after, on several streams, under many schedules. Nobody
// waits but the reads at the end.
func TestPeersInOrder(t *testing.T) {
	for seed := range uint64(30) {
		x, y := twoDevices(t, reordering(seed))
		x.Scope(func(x *Exec) {
			y := y.On(y.Stream())
			streams := [][]*Exec{{x}, {x.On(y.Stream())}}
			for i, e := range []*Exec{x, x.On(y.Stream())} {
				st, err := e.Device().Stream()
				if err != nil {
					t.Fatal(err)
				}
				streams[i] = append(streams[i], e.On(st))
			}
			const n = 100
			here, total := x.Full([]int{n}, 1, dtype.Float32), streams[1][0].Zeros([]int{n}, dtype.Float32)
			want := 0.0
			for k := range 12 {
				a, b := streams[0][k%2], streams[1][k/2%2]
				// The value goes over, is overwritten at once, and comes back changed.
				there := b.To(here, ToOpt{})
				a.FillInto(here, -5)
				b.AddInto(total, total, there)
				want += float64(k + 1)
				back := a.To(b.AddS(there, 1), ToOpt{})
				there.Close()
				a.CopyInto(here, back)
				back.Close()
			}
			for _, v := range floats(t, streams[1][0], total) {
				if float64(v) != want {
					t.Fatalf("seed %d: the sum is %v, want %v", seed, v, want)
				}
			}
			for _, v := range floats(t, x, here) {
				if v != 13 {
					t.Fatalf("seed %d: the last value is %v, want 13", seed, v)
				}
			}
		})
	}
}

// A copy to a peer is queued: it waits for nothing.
func TestToPeerIsQueued(t *testing.T) {
	x, y := twoDevices(t, nil)
	a := ones(x, 100)
	defer a.Close()
	if err := x.Synchronize(); err != nil {
		t.Fatal(err)
	}
	release := x.Device().Driver().(*hostsim.Device).Hold(x.Stream().Handle())
	b := y.To(a, ToOpt{})
	defer b.Close()
	if done, err := y.Stream().Query(); done || err != nil {
		t.Errorf("done %v, %v; the copy should wait for the other device", done, err)
	}
	release()
	want(t, y, y.Sum(b, nil, SumOpt{}), 100)
}

// A gradient goes back over the devices, from several uses, and into the leaf of each.
func TestPeersGradient(t *testing.T) {
	x, y := twoDevices(t, reordering(3))
	x.Scope(func(x *Exec) {
		y := x.On(y.Stream())
		w, v := leafOf(x, 1, 2, 3), leafOf(y, 4, 5, 6)
		there := y.To(x.Mul(w, w), ToOpt{})
		back := x.To(y.Mul(there, v), ToOpt{}) // w²·v
		loss := x.Sum(x.Add(back, w), nil, SumOpt{})
		if err := x.Backward(loss, BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		want(t, x, w.Grad(), 2*1*4+1, 2*2*5+1, 2*3*6+1)
		want(t, y, v.Grad(), 1, 4, 9)
		if w.Grad().Device() != x.Device() || v.Grad().Device() != y.Device() {
			t.Error("a gradient is on another device than its leaf")
		}
	})
}

// Operands of two devices are named by these.
func TestPeersErrors(t *testing.T) {
	x, y := twoDevices(t, nil)
	a, b := ones(x, 2), ones(y, 2)
	defer a.Close()
	defer b.Close()
	const here, there = "device 0 (Simulated GPU)", "device 1 (Simulated GPU)"
	for name, f := range map[string]func(){
		"Add":     func() { x.Add(a, b) },
		"AddInto": func() { x.AddInto(b, a, a) },
		"Equal":   func() { _, err := x.Equal(a, b); x.check("Equal", err) },
		"Checkpoint": func() {
			x.Checkpoint(func(x *Exec, ins []*Tensor) []*Tensor { return ins }, b)
		},
	} {
		err := Try(f)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), here) || !strings.Contains(err.Error(), there) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := b.String(); s != "float32[2] on "+there {
		t.Errorf("the tensor calls itself %q", s)
	}
}

// A failed assertion goes along with the copy: who reads on the other device is told, once.
func TestPeersAssert(t *testing.T) {
	x, y := twoDevices(t, nil)
	x.Scope(func(x *Exec) {
		y := x.On(y.Stream())
		bad := x.Gather(From(x, []float32{1, 2, 3}), 0, From(x, []int64{7}))
		there := y.MulS(y.To(bad, ToOpt{}), 2)
		_, err := Read[float32](y, there)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "index 7 is out of range for size 3") {
			t.Errorf("the other device reads with %v", err)
		}
		if err := x.Synchronize(); err != nil {
			t.Errorf("the device tells again: %v", err)
		}
	})
}

// The statistics of two devices are apart.
func TestPeersMemory(t *testing.T) {
	x, y := twoDevices(t, nil)
	allocated := func(x *Exec) int64 {
		s := x.Device().Memory().Stats()
		return s.AllocatedBytes.All().Current
	}
	a := ones(x, 1<<20)
	defer a.Close()
	if n, m := allocated(x), allocated(y); n != 4<<20 || m != 0 {
		t.Errorf("4 MiB on device 0 are %d bytes there and %d on device 1", n, m)
	}
	b := y.To(a, ToOpt{})
	if n, m := allocated(x), allocated(y); n != 4<<20 || m != 4<<20 {
		t.Errorf("with a copy there are %d and %d bytes", n, m)
	}
	b.Close()
	if n, m := allocated(x), allocated(y); n != 4<<20 || m != 0 {
		t.Errorf("without the copy there are %d and %d bytes", n, m)
	}
	if n := x.Device().PinnedStats().AllocatedBytes.Peak + y.Device().PinnedStats().AllocatedBytes.Peak; n != 0 {
		t.Errorf("the copies took %d bytes of page-locked memory", n)
	}
}

// Two sessions copy in opposite directions at once, each the other's tensors, and change many in one step.
func TestPeersTwoSessions(t *testing.T) {
	x, y := twoDevices(t, nil)
	a, b := ones(x, 1000), ones(y, 1000)
	defer a.Close()
	defer b.Close()
	var all sync.WaitGroup
	for _, c := range []struct {
		x        *Exec
		own, far *Tensor
	}{{x, a, b}, {y, b, a}} {
		for range 2 {
			e, err := c.x.Fork()
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				for range 100 {
					e.On(c.x.Stream()).Scope(func(e *Exec) { // on the streams that the others read from
						far := e.To(c.far, ToOpt{})
						e.together("Step", func(e *Exec) { e.AddInto(c.own, c.own, e.MulS(far, 0)) })
					})
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	want(t, x, x.Sum(a, nil, SumOpt{}), 1000)
	want(t, y, y.Sum(b, nil, SumOpt{}), 1000)
}

// One device is closed while copies from it and to it go on: they end with an error that names it, and the other device works on.
func TestClosePeerAtWork(t *testing.T) {
	for round := range 20 {
		x, y := twoDevices(t, reordering(uint64(round)))
		gone, left := x, y
		if round%2 == 1 {
			gone, left = y, x
		}
		a := ones(gone, 1000)
		kept := ones(left, 1000)
		e, err := left.Fork()
		if err != nil {
			t.Fatal(err)
		}
		worked := make(chan struct{}, 1000)
		var end error
		var all sync.WaitGroup
		all.Go(func() {
			for end == nil {
				end = Try(func() {
					e.Scope(func(e *Exec) {
						e.AddInto(kept, kept, e.MulS(e.To(a, ToOpt{}), 0))
						e.On(gone.Stream()).To(kept, ToOpt{})
					})
				})
				select {
				case worked <- struct{}{}:
				default:
				}
			}
		})
		<-worked
		if err := gone.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
		text := fmt.Sprintf("device %d (Simulated GPU) was closed", gone.Device().Info().Ordinal)
		if fault.KindOf(end) != fault.Closed || !strings.Contains(end.Error(), text) {
			t.Errorf("the copies end with %v, want %q", end, text)
		}
		want(t, left, left.Sum(kept, nil, SumOpt{}), 1000)
		a.Close()
		kept.Close()
	}
}

// TestWalksOfPeers fails each call of a program on two devices, on the one and on the other: the error names it, and nothing stays behind.
func TestWalksOfPeers(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	settled(t)
	program := func(x *Exec, far *rt.Stream) error {
		y := x.On(far)
		w := leafOf(x, 1, 2)
		b := y.To(x.Mul(w, w), ToOpt{})
		if err := y.Backward(y.Sum(y.Mul(b, b), nil, SumOpt{}), BackwardOpt{}); err != nil {
			return err
		}
		got, err := Read[float32](x, w.Grad())
		if err == nil && (got[0] != 4 || got[1] != 32) {
			err = fmt.Errorf("the gradient is %v, want 4 and 32", got)
		}
		return errors.Join(err, y.Synchronize())
	}
	for walked := range 2 {
		t.Run(fmt.Sprint("device ", walked), func(t *testing.T) {
			m := hostsim.New(hostsim.Options{Devices: 2})
			var base [2]driver.Device
			for i := range base {
				if base[i], err = m.Open(i); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { base[i].Close() })
			}
			faults.Walk(t, base[walked], func(dd driver.Device) (err error) {
				machine := rt.NewMachine(2, 0)
				devs := base
				devs[walked] = dd
				var open [2]*rt.Device
				for i := range open {
					d, e := rt.Open(rt.Selector{Kind: rt.Sim, Machine: machine, Ordinal: i, Wrap: func(own driver.Device) driver.Device {
						own.Close()
						return unclosed{devs[i]}
					}})
					if e != nil {
						return errors.Join(err, e)
					}
					defer func() { err = errors.Join(err, d.Close()) }()
					open[i] = d
				}
				before := live.Load()
				x := New(open[0], host)
				if e := Try(func() { x.Scope(func(x *Exec) { err = program(x, open[1].DefaultStream()) }) }); e != nil {
					err = e
				}
				if n := live.Load() - before; n != 0 {
					t.Errorf("%d storages are left: %v", n, err)
				}
				for _, d := range base { // one that is lost works no more, which the injected fault does not see to
					th := d.Enter()
					if e := d.Synchronize(th); e != nil {
						t.Error(e)
					}
					th.Leave()
				}
				return err
			}, faults.Recovered("MemAlloc"))
		})
	}
}
