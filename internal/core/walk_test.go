package core

import (
	"errors"
	goflag "flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/rt"
)

var long = goflag.Bool("long", false, "fail every driver call of a walk with each of its codes")

// codes is the option of walks that says which codes a driver call fails with.
func codes() faults.Option {
	if *long {
		return faults.Recovered()
	}
	return faults.OneCode()
}

// unclosed keeps a device open while runtimes are opened over it repeatedly, to reveal what a runtime does not free itself.
type unclosed struct{ driver.Device }

func (unclosed) Close() error { return nil }

// program is what a walk runs in a session.
type program struct {
	name string
	run  func(x *Exec) error
	// memory is the simulated device's capacity; 0 is the default.
	memory uint64
	// recovered are the driver calls whose failure the program may survive, besides allocation, which the allocator retries.
	recovered []string
}

func ones(x *Exec, shape ...int) *Tensor { return x.Ones(shape, dtype.Float32) }

var programs = []program{
	{name: "Open", run: func(x *Exec) error { return nil }},
	{name: "Create", run: func(x *Exec) error {
		return Try(func() { ones(x, 8); x.Empty([]int{1 << 20}, dtype.Float32); From(x, []float32{1, 2, 3}) })
	}},
	{name: "LoadKernels", run: func(x *Exec) error {
		a := ones(x, 4, 4)
		return Try(func() { x.Add(a, a); x.MM(a, a); x.Sum(x.ToDType(a, dtype.Float64), []int{0}, SumOpt{}) })
	}},
	{name: "Convolution", run: func(x *Exec) error {
		return Try(func() {
			in, w := x.Full([]int{1, 2, 4, 4}, 1, dtype.Complex64), x.Full([]int{1, 2, 3, 3}, 1, dtype.Complex64)
			x.Conv2d(in, w, nil, Conv2dOpt{}) // takes workspace
		})
	}},
	{name: "Pinned", run: func(x *Exec) error {
		host := x.Host()
		return Try(func() {
			p := x.PinMemory(From(host, []float32{1, 2}))
			a := x.To(p, ToOpt{NonBlocking: true})
			x.CopyAsyncInto(p, a)
			x.CopyAsyncInto(x.ToDType(a, dtype.Float64), p)
			host.CopyInto(p, host.To(a, ToOpt{NonBlocking: true}))
			r := From(host, []float32{1, 2})
			x.check("RegisterHost", x.RegisterHost(r))
			defer func() { x.check("UnregisterHost", x.UnregisterHost(r)) }()
			x.To(r, ToOpt{})
		})
	}, recovered: []string{"HostAlloc"}},
	{name: "Add", run: func(x *Exec) error {
		return Try(func() { a := ones(x, 3); x.AddInto(a, x.Add(a, a), a) })
	}},
	{name: "Read", run: func(x *Exec) error {
		var err error
		if e := Try(func() {
			a := x.Transpose(ones(x, 2, 3), 0, 1)
			if _, err = Read[float32](x, a); err == nil {
				_, err = x.Item(x.Sum(a, nil, SumOpt{}))
			}
		}); e != nil {
			return e
		}
		return err
	}},
	{name: "ReadLengths", run: func(x *Exec) error {
		return Try(func() {
			a := ones(x, 3)
			x.MaskedSelect(a, x.GtS(a, 0))
		})
	}},
	{name: "HostScalar", run: func(x *Exec) error {
		return Try(func() {
			a := ones(x, 3)
			x.Add(a, x.Host().Full(nil, 2, dtype.Float32))
			x.Autocast(dtype.Float16).MM(ones(x, 2, 2), ones(x, 2, 2))
		})
	}},
	{name: "Backward", run: func(x *Exec) (err error) {
		if e := Try(func() {
			a, w := ones(x, 2, 3).SetRequiresGrad(true), ones(x, 3, 2).SetRequiresGrad(true)
			a.RegisterHook(func(x *Exec, g *Tensor) *Tensor { return x.MulS(g, 2) })
			var loss *Tensor
			x.SavedTensorHooks(func(x *Exec, t *Tensor) any {
				return x.Clone(t)
			}, func(x *Exec, v any) *Tensor { return v.(*Tensor) }, func(x *Exec) {
				y := x.Apply(square{}, x.MM(a, w))[0]
				y.RetainGrad()
				loss = x.Sum(x.Mul(y, y), nil, SumOpt{})
			})
			if err = x.Backward(loss, BackwardOpt{RetainGraph: true}); err == nil {
				_, err = x.Grad([]*Tensor{loss}, []*Tensor{a}, GradOpt{CreateGraph: true})
			}
		}); e != nil {
			return e
		}
		return err
	}},
	{name: "InPlace", run: func(x *Exec) (err error) {
		if e := Try(func() {
			a := ones(x, 4, 3).SetRequiresGrad(true)
			b := x.MulS(a, 2)
			turned, row, next := x.Transpose(b, 0, 1), x.Select(b, 0, 0), x.Select(b, 0, 1)
			x.MulInto(row, row, next) // keeps a copy of row
			y := x.Add(sumOf(x, turned), x.Add(sumOf(x, x.Exp(row)), sumOf(x, x.Exp(next))))
			err = x.Backward(x.Add(y, sumOf(x, x.Exp(x.Select(b, 0, 2)))), BackwardOpt{})
		}); e != nil {
			return e
		}
		return err
	}},
	{name: "Streams", recovered: []string{"EventCreate"}, run: func(x *Exec) error {
		st, err := x.Device().Stream()
		if err != nil {
			return err
		}
		if err := x.WaitStream(st); err != nil {
			return err
		}
		if err := x.On(st).WaitStream(x.Stream()); err != nil {
			return err
		}
		if _, err := st.Query(); err != nil {
			return err
		}
		y, err := x.Fork()
		if err != nil {
			return err
		}
		return errors.Join(x.Synchronize(), y.Synchronize())
	}},
	{name: "CrossStream", recovered: []string{"EventCreate"}, run: func(x *Exec) error {
		st, err := x.Device().Stream()
		if err != nil {
			return err
		}
		side := x.On(st)
		return Try(func() {
			a := ones(x, 100)
			b := side.MulS(a, 2) // waits; a is used on st
			x.AddInto(a, a, b)
			a.Close() // held back by an event
			x.check("RecordStream", side.RecordStream(b, x.Stream()))
			b.Close()
			side.Neg(ones(x, 100))
		})
	}},
	{name: "EmptyCache", recovered: []string{"EventCreate"}, run: func(x *Exec) error {
		st, err := x.Device().Stream()
		if err != nil {
			return err
		}
		err = Try(func() {
			a := ones(x, 1<<20)
			x.On(st).Neg(a)
			a.Close()
		})
		if err != nil {
			return err
		}
		return x.Device().EmptyCache()
	}},
	{name: "OutOfMemory", memory: 64 << 20, recovered: []string{"EventCreate"}, run: func(x *Exec) error {
		err := Try(func() {
			x.Scope(func(x *Exec) {
				for range 3 { // cached afterwards
					x.Empty([]int{4 << 20}, dtype.Float32)
				}
			})
		})
		if err != nil {
			return err
		}
		if err := Try(func() {
			x.Scope(func(x *Exec) {
				x.Empty([]int{12 << 20}, dtype.Float32) // fits once the cache is freed
			})
		}); err != nil {
			return err
		}
		err = Try(func() { x.Empty([]int{20 << 20}, dtype.Float32) })
		if fault.KindOf(err) != fault.OutOfMemory {
			return errors.Join(errors.New("80 MiB fit in 64"), err)
		}
		var e *fault.Error
		if errors.As(err, &e) && e.Cause == nil {
			return errors.New("the error does not say what the driver said")
		}
		if strings.Contains(err.Error(), "MemAlloc") {
			return fmt.Errorf("the error says it twice: %v", err)
		}
		return nil
	}},
	{name: "Capture", run: func(x *Exec) error {
		a := ones(x, 8)
		g, err := x.Capture(func(x *Exec) { x.AddInto(a, a, a) }, CaptureOpt{})
		if err != nil {
			return err
		}
		err = x.Replay(g)
		return errors.Join(err, x.Synchronize(), g.Close())
	}},
	{name: "CaptureOfDraws", run: func(x *Exec) error { // on two streams, in a pool of two graphs, with the recorded tensors kept
		a := ones(x, 8)
		side, err := x.Device().Stream()
		if err != nil {
			return err
		}
		f := func(x *Exec) { x.AddInto(a, a, x.Keep(x.On(side).Add(x.Rand([]int{8}, dtype.Float32), a))) }
		g, err := x.Capture(f, CaptureOpt{Debug: true})
		if err != nil {
			return err
		}
		h, err := x.Capture(f, CaptureOpt{Share: g})
		if err != nil {
			return errors.Join(err, g.Close())
		}
		err = errors.Join(x.Replay(g), x.Replay(h))
		return errors.Join(err, x.Synchronize(), g.Close(), h.Close())
	}, recovered: []string{"EventCreate", "EventRecord"}}, // of frees, which the allocator retries later
}

// simulated returns a simulated device of the given capacity.
func simulated(t *testing.T, memory uint64) driver.Device {
	d, err := hostsim.New(hostsim.Options{Capacity: memory}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// overlay opens the runtime over d.
func overlay(d driver.Device, memory uint64) (*rt.Device, error) {
	return rt.Open(rt.Selector{Kind: rt.Sim, Memory: memory, Wrap: func(own driver.Device) driver.Device {
		own.Close()
		return unclosed{d}
	}})
}

// settled waits until the tensors that earlier tests dropped are collected, and prevents garbage collection during the test, so that it can
// count storages.
func settled(t *testing.T) {
	for same, last := 0, live.Load(); same < 3; {
		runtime.GC()
		time.Sleep(time.Millisecond)
		if n := live.Load(); n == last {
			same++
		} else {
			same, last = 0, n
		}
	}
	old := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(old) })
}

// TestWalks opens a device, runs a program and closes the device, for every driver call and every code that it can fail with, device faults
// included: a device with a fault must also free everything.
func TestWalks(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	settled(t)
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			faults.Walk(t, simulated(t, p.memory), func(d driver.Device) error {
				dev, err := overlay(d, p.memory)
				if err != nil {
					return err
				}
				before := live.Load()
				x := New(dev, host)
				err = p.inScope(x)
				if n := live.Load() - before; n != 0 {
					t.Errorf("%d storages are left: %v", n, err)
				}
				return errors.Join(err, dev.Close())
			}, faults.Recovered(append(p.recovered, "MemAlloc")...), codes())
		})
	}
}

// inScope runs the program in a scope and checks that the session is afterwards as before.
func (p *program) inScope(x *Exec) (err error) {
	if e := Try(func() { x.Scope(func(x *Exec) { err = p.run(x) }) }); e != nil {
		err = e
	}
	if x.s.depth != 0 || x.s.scope != nil || len(x.s.doing) != 0 || x.s.run != nil || x.s.capture != nil {
		err = errors.Join(err, errors.New("the session is left in the middle of something"))
	}
	return err
}

// TestWalksOfOneSession runs each program repeatedly in one session, for every call and every code except device faults.
func TestWalksOfOneSession(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	settled(t)
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			var x *Exec
			faults.Walk(t, simulated(t, p.memory), func(d driver.Device) error {
				if x == nil {
					dev, err := overlay(d, p.memory)
					if err != nil {
						return err
					}
					for range 32 { // the whole pool, which only grows
						if _, err := dev.Stream(); err != nil {
							return err
						}
					}
					x = New(dev, host)
				}
				before := live.Load()
				err := p.inScope(x)
				if n := live.Load() - before; n != 0 {
					t.Errorf("%d storages are left: %v", n, err)
				}
				// Memory that the program cached is not a leak; the walk counts it.
				return errors.Join(err, x.Device().EmptyCache())
			}, faults.WithoutFaults(), faults.Recovered(append(p.recovered, "MemAlloc")...), codes())
			if x != nil {
				if err := x.Device().Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestWalksOfLooseCalls fails calls outside of any scope, where only the call itself can close what it made.
func TestWalksOfLooseCalls(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	settled(t)
	type operands struct{ a, s, c, leaf *Tensor }
	for name, call := range map[string]func(x *Exec, o *operands) *Tensor{
		"From":       func(x *Exec, o *operands) *Tensor { return From(x, []float32{1, 2}) },
		"HostScalar": func(x *Exec, o *operands) *Tensor { return x.Add(o.a, o.s) },
		"Autocast":   func(x *Exec, o *operands) *Tensor { return x.Autocast(dtype.Float16).MM(o.a, o.a) },
		"Composite":  func(x *Exec, o *operands) *Tensor { return x.Linear(o.a, o.a, nil) },
		"Lengths":    func(x *Exec, o *operands) *Tensor { return x.Unique(o.a) },
		"Selected": func(x *Exec, o *operands) *Tensor {
			mask := x.GtS(o.a, 0)
			defer mask.Close()
			return x.MaskedSelect(o.leaf, mask)
		},
		"Workspace": func(x *Exec, o *operands) *Tensor { return x.Conv2d(o.c, o.c, nil, Conv2dOpt{}) },
		"Recorded":  func(x *Exec, o *operands) *Tensor { return x.Exp(o.leaf) },
		"Function":  func(x *Exec, o *operands) *Tensor { return x.Apply(square{}, o.leaf)[0] },
		"ToHost":    func(x *Exec, o *operands) *Tensor { return x.Host().To(o.a, ToOpt{}) },
	} {
		t.Run(name, func(t *testing.T) {
			var x *Exec
			var o operands
			faults.Walk(t, simulated(t, 0), func(d driver.Device) error {
				if x == nil {
					dev, err := overlay(d, 0)
					if err != nil {
						return err
					}
					x = New(dev, host)
					o = operands{ones(x, 2, 2), x.Host().Full(nil, 2, dtype.Float32), x.Full([]int{1, 1, 3, 3}, 1, dtype.Complex64),
						ones(x, 2, 2).SetRequiresGrad(true)}
				}
				stats := x.Device().Memory().Stats()
				storages, blocks := live.Load(), stats.Allocation.All().Current
				err := Try(func() { call(x, &o).Close() })
				stats = x.Device().Memory().Stats()
				if n, b := live.Load()-storages, stats.Allocation.All().Current-blocks; n != 0 || b != 0 {
					t.Errorf("%d storages and %d blocks are left: %v", n, b, err)
				}
				if x.s.depth != 0 || x.s.scope != nil || len(x.s.doing) != 0 {
					t.Errorf("the session is left in the middle of something: %v", err)
				}
				return err
			}, faults.WithoutFaults(), faults.Recovered("MemAlloc"))
			for _, t := range []*Tensor{o.a, o.s, o.c, o.leaf} {
				t.Close()
			}
			if err := x.Device().Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
