package optim_test

import (
	"errors"
	"maps"
	"runtime"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// counted is a device that counts the objects that were created and not destroyed.
type counted struct {
	driver.Device
	mu   sync.Mutex
	live map[string]int
}

func (d *counted) add(kind string, by int, err error) {
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live[kind] += by
}

func (d *counted) counts() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.live)
}

func (d *counted) MemAlloc(t driver.Thread, n uint64) (p driver.Ptr, err error) {
	p, err = d.Device.MemAlloc(t, n)
	d.add("memory", 1, err)
	return p, err
}

func (d *counted) MemFree(t driver.Thread, p driver.Ptr) error {
	err := d.Device.MemFree(t, p)
	d.add("memory", -1, err)
	return err
}

func (d *counted) HostAlloc(t driver.Thread, n uint64) (b []byte, err error) {
	b, err = d.Device.HostAlloc(t, n)
	d.add("host memory", 1, err)
	return b, err
}

func (d *counted) HostFree(t driver.Thread, b []byte) error {
	err := d.Device.HostFree(t, b)
	d.add("host memory", -1, err)
	return err
}

func (d *counted) StreamCreate(t driver.Thread, nonBlocking bool, priority int) (s driver.Stream, err error) {
	s, err = d.Device.StreamCreate(t, nonBlocking, priority)
	d.add("streams", 1, err)
	return s, err
}

func (d *counted) StreamDestroy(t driver.Thread, s driver.Stream) error {
	err := d.Device.StreamDestroy(t, s)
	d.add("streams", -1, err)
	return err
}

func (d *counted) EventCreate(t driver.Thread, timing bool) (e driver.Event, err error) {
	e, err = d.Device.EventCreate(t, timing)
	d.add("events", 1, err)
	return e, err
}

func (d *counted) EventDestroy(t driver.Thread, e driver.Event) error {
	err := d.Device.EventDestroy(t, e)
	d.add("events", -1, err)
	return err
}

func (d *counted) CaptureEnd(t driver.Thread, s driver.Stream) (g driver.Graph, err error) {
	g, err = d.Device.CaptureEnd(t, s)
	d.add("graphs", 1, err)
	return g, err
}

func (d *counted) GraphDestroy(t driver.Thread, g driver.Graph) error {
	err := d.Device.GraphDestroy(t, g)
	d.add("graphs", -1, err)
	return err
}

func (d *counted) GraphInstantiate(t driver.Thread, g driver.Graph) (x driver.GraphExec, err error) {
	x, err = d.Device.GraphInstantiate(t, g)
	d.add("executable graphs", 1, err)
	return x, err
}

func (d *counted) GraphExecDestroy(t driver.Thread, x driver.GraphExec) error {
	err := d.Device.GraphExecDestroy(t, x)
	d.add("executable graphs", -1, err)
	return err
}

func (d *counted) LoadModule(t driver.Thread, text []byte) (m driver.Module, err error) {
	m, err = d.Device.LoadModule(t, text)
	d.add("modules", 1, err)
	return m, err
}

// program is the repeated work of a long-running program.
type program struct {
	t        *testing.T
	net      nn.Sequential
	o        optim.Optimizer
	schedule *optim.Schedule
	scaler   *optim.GradScaler
	in       *tenon.Tensor
	target   *tenon.Tensor
}

// loss returns the loss of one forward pass.
func (p *program) loss(x *tenon.Exec) *tenon.Tensor {
	return x.CrossEntropy(p.net.Forward(x, p.in), p.target)
}

// train takes a training step, every fourth one in half precision with scaled gradients.
func (p *program) train(x *tenon.Exec, i int) error {
	p.o.ZeroGrad()
	if i%4 == 3 {
		if err := x.Backward(p.scaler.Scale(x, p.loss(x.Autocast(tenon.Float16)))); err != nil {
			return err
		}
		return errors.Join(p.scaler.Step(x, p.o), p.scaler.Update(x), p.schedule.Step())
	}
	if err := x.Backward(p.loss(x)); err != nil {
		return err
	}
	nn.ClipGradNorm(x, nn.Params(p.net), 1)
	return errors.Join(p.o.Step(x), p.schedule.Step())
}

// capture records a pass, replays it and closes it; every third time the recorded function fails.
func (p *program) capture(x *tenon.Exec, i int) error {
	g, err := x.Capture(func(x *tenon.Exec) {
		p.loss(x.NoGrad())
		if i%3 == 0 {
			x.MatMul(p.in, p.in)
		}
	})
	if i%3 == 0 {
		if err == nil {
			return errors.New("a capture of what fails succeeded")
		}
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(x.Replay(g), x.Replay(g), g.Close())
}

// wrong causes an error in every callback of the program.
func (p *program) wrong(x *tenon.Exec) error {
	w := p.net[0].(*nn.Linear).Weight.Tensor()
	for _, f := range []func(){
		func() { x.MatMul(p.in, p.in) },
		func() {
			x.Scope(func(x *tenon.Exec) { x.Within(func(x *tenon.Exec) *tenon.Tensor { return x.Add(x.Sin(p.in), w) }) })
		},
		func() {
			x.Checkpoint(func(x *tenon.Exec, ins []*tenon.Tensor) []*tenon.Tensor { panic("of the segment") }, p.in)
		},
		func() {
			remove := w.RegisterHook(func(*tenon.Exec, *tenon.Tensor) *tenon.Tensor { panic("of the hook") })
			defer remove()
			panic(x.Backward(p.loss(x)))
		},
		func() {
			fail := func(*tenon.Exec, *tenon.Tensor) any { panic("of the pack hook") }
			x.SavedTensorHooks(fail, func(*tenon.Exec, any) *tenon.Tensor { return nil }, func(x *tenon.Exec) { p.loss(x) })
		},
		func() {
			keep := func(_ *tenon.Exec, t *tenon.Tensor) any { return t }
			x.SavedTensorHooks(keep, func(*tenon.Exec, any) *tenon.Tensor { panic("of the unpack hook") }, func(x *tenon.Exec) {
				panic(x.Backward(p.loss(x)))
			})
		},
	} {
		failed := false
		func() {
			defer func() { failed = recover() != nil }()
			if err := tenon.Try(f); err != nil {
				panic(err)
			}
		}()
		if !failed {
			return errors.New("what is wrong passed")
		}
	}
	return nil
}

// rare uses objects that a program makes anew each time: generators, pools, forks, events, segments.
func (p *program) rare(x *tenon.Exec) error {
	pool, err := cuda.NewMemPool(x.Device())
	if err != nil {
		return err
	}
	x.Scope(func(x *tenon.Exec) {
		y := x.WithGenerator(cuda.NewGenerator(1)).UsePool(pool)
		out := y.Checkpoint(func(x *tenon.Exec, ins []*tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{x.Dropout(p.net.Forward(x, ins[0]), 0.5)}
		}, p.in)
		err = x.Backward(x.CrossEntropy(out[0], p.target))
	})
	if err = errors.Join(err, pool.Close()); err != nil {
		return err
	}
	e := x.Device().NewEvent()
	defer e.Close()
	z, err := x.Fork()
	if err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		done <- tenon.Try(func() { z.Scope(func(z *tenon.Exec) { p.loss(z.NoGrad()) }) })
	}()
	return errors.Join(<-done, e.Record(z.Stream()), e.Synchronize(), z.Synchronize())
}

// round is one round of the program.
func (p *program) round(x *tenon.Exec, i int) {
	x.Scope(func(x *tenon.Exec) {
		err := p.train(x, i)
		if i%4 == 0 {
			err = errors.Join(err, p.capture(x, i/4), p.wrong(x), p.rare(x), x.Synchronize())
		}
		if err != nil {
			p.t.Fatalf("round %d: %v", i, err)
		}
	})
}

// settled collects garbage until all cleanups have run, and returns the objects and bytes left in the heap.
func settled(x *tenon.Exec) (objects, bytes uint64) {
	var m runtime.MemStats
	for range 4 {
		runtime.GC()
		done := make(chan bool)
		runtime.AddCleanup(new([16]byte), func(c chan bool) { close(c) }, done)
		runtime.GC()
		<-done
	}
	x.Synchronize()
	runtime.ReadMemStats(&m)
	return m.HeapObjects, m.HeapAlloc
}

// TestNothingGrows: 2,000 steps of training with captures, errors and panics in between leave heap, goroutines, memory, streams, events,
// graphs and modules where they were.
func TestNothingGrows(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	var d *counted
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Memory: 1 << 30, Wrap: func(own driver.Device) driver.Device {
		d = &counted{Device: own, live: map[string]int{}}
		return d
	}})
	if err != nil {
		t.Fatal(err)
	}
	x := (*tenon.Exec)(core.New(dev, host))
	p := &program{t: t, net: nn.Sequential{nn.NewLinear(x, 4, 8), nn.NewDropout(0.1), nn.NewLinear(x, 8, 3)}}
	p.in, p.target = x.Ones([]int{2, 4}, tenon.Float32), tenon.From(x, []int64{0, 2})
	if p.o, err = optim.NewAdam(nn.Params(p.net)); err != nil {
		t.Fatal(err)
	}
	if p.schedule, err = optim.NewSchedule(p.o, optim.ExponentialLR(0.999)); err != nil {
		t.Fatal(err)
	}
	if p.scaler, err = optim.NewGradScaler(optim.GradScalerOpt{InitScale: 1}); err != nil {
		t.Fatal(err)
	}
	for i := range 160 { // warms up kernels and all 32 streams that forks take
		p.round(x, i)
	}
	objects, bytes := settled(x)
	counts, storages, goroutines := d.counts(), core.LiveStorages(), runtime.NumGoroutine()
	for i := range 2000 {
		p.round(x, i)
	}
	if n, b := settled(x); n > objects+400 || b > bytes+256<<10 {
		t.Errorf("the heap holds %d objects of %d bytes, before 2,000 steps %d of %d", n, b, objects, bytes)
	}
	if n := d.counts(); !maps.Equal(n, counts) {
		t.Errorf("live on the device: %v, before %v", n, counts)
	}
	if n := core.LiveStorages(); n != storages {
		t.Errorf("%d storages are live, before %d", n, storages)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, before %d:\n%s", n, goroutines, buf[:runtime.Stack(buf, true)])
	}
	runtime.KeepAlive(p)
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// TestDevicesComeAndGo: devices that are closed with queued work, open graphs and open tensors, or that are lost, leave nothing in the
// process.
func TestDevicesComeAndGo(t *testing.T) {
	first, err := tenon.Open(tenon.Sim(16 << 20))
	if err != nil {
		t.Fatal(err)
	}
	round := func(i int) {
		x, err := tenon.Open(tenon.Sim(64 << 20))
		if err != nil {
			t.Fatal(err)
		}
		w := x.Ones([]int{8, 8}, tenon.Float32).SetRequiresGrad(true)
		y, err := x.Fork()
		if err != nil {
			t.Fatal(err)
		}
		g, err := x.Capture(func(x *tenon.Exec) { x.NoGrad().Mul(w, w) })
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Replay(g); err != nil {
			t.Fatal(err)
		}
		y.MatMul(w, w)
		away := first.On(x.Device().DefaultStream())
		away.NoGrad().Add(w, away.To(first.Ones([]int{8}, tenon.Float32)))
		if i%2 == 0 {
			if err := x.Backward(x.Sum(x.Exp(w), nil)); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		if err := tenon.Try(func() { x.Add(w, w) }); err == nil {
			t.Fatal("a closed device works")
		}
	}
	for i := range 10 {
		round(i)
	}
	objects, bytes := settled(first)
	goroutines := runtime.NumGoroutine()
	for i := range 100 {
		round(i)
	}
	if n, b := settled(first); n > objects+400 || b > bytes+256<<10 {
		t.Errorf("the heap holds %d objects of %d bytes, before 100 devices %d of %d", n, b, objects, bytes)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, before %d", n, goroutines)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
}
