package conformance

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/rt"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

var (
	stressFlag = flag.Duration("stress", 5*time.Second, "how long TestStress works")
	seedFlag   = flag.Uint64("seed", 0, "seed of TestStress; 0 is one from the time")
)

// stressKind says what may go wrong in a round.
type stressKind int

const (
	stressClean  stressKind = iota // nothing
	stressSmall                    // the device has too little memory
	stressFaults                   // calls of the driver fail
	stressLost                     // calls of the driver fail, and the device with them
	stressKinds
)

func (k stressKind) String() string { return [...]string{"clean", "small", "faults", "lost"}[k] }

// stressJobs are programs whose results depend only on their seed, whatever others do. w is shared by all and never changes.
var stressJobs = []struct {
	name string
	run  func(x *tenon.Exec, w *tenon.Tensor, seed uint64) ([]float32, error)
}{
	{"train", stressTrain},
	{"capture", stressCapture},
	{"shared", func(x *tenon.Exec, w *tenon.Tensor, seed uint64) ([]float32, error) {
		return tenon.Read[float32](x, x.MatMul(x.Tanh(x.MatMul(stressInput(x, seed, 4, 16), w)), w))
	}},
	{"pinned", func(x *tenon.Exec, w *tenon.Tensor, seed uint64) ([]float32, error) {
		p := x.PinMemory(stressInput(x.Host(), seed, 64))
		y := x.Add(x.To(p, tenon.ToOpt{NonBlocking: true}), x.Sum(w, nil))
		return tenon.Read[float32](x.Host(), x.Host().To(y))
	}},
	{"streams", func(x *tenon.Exec, w *tenon.Tensor, seed uint64) ([]float32, error) {
		a := stressInput(x, seed, 32, 16)
		for range 3 {
			s, err := x.Device().Stream()
			if err != nil {
				return nil, err
			}
			a = x.On(s).MatMul(x.Sin(a), w)
		}
		return tenon.Read[float32](x, a)
	}},
}

// stressSeeds is the number of the jobs' seeds.
const stressSeeds = 4

func stressInput(x *tenon.Exec, seed uint64, shape ...int) *tenon.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	r, v := rand.New(rand.NewPCG(seed, 1)), make([]float32, n)
	for i := range v {
		v[i] = r.Float32() - 0.5
	}
	return tenon.From(x, v, shape...)
}

func stressTrain(x *tenon.Exec, w *tenon.Tensor, seed uint64) ([]float32, error) {
	m := nn.Sequential{nn.NewLinear(x, 8, 16), nn.Tanh{}, nn.NewLinear(x, 16, 2)}
	defer nn.Close(m)
	i := seed
	for _, p := range nn.Params(m) {
		i++
		x.NoGrad().CopyInto(p.Tensor(), stressInput(x, i, p.Tensor().Shape()...))
	}
	o, err := optim.NewSGD(nn.Params(m), optim.SGDOpt{LR: 0.1, Momentum: 0.9})
	if err != nil {
		return nil, err
	}
	defer o.Close()
	in, target := stressInput(x, seed, 8, 8), stressInput(x, seed+1, 8, 2)
	for range 3 {
		o.ZeroGrad()
		x.Scope(func(x *tenon.Exec) {
			err = x.Backward(nn.MSELoss{}.Forward(x, m.Forward(x, in), target))
		})
		if err != nil {
			return nil, err
		}
		if err := o.Step(x); err != nil {
			return nil, err
		}
	}
	return tenon.Read[float32](x, m.Forward(x.NoGrad(), in))
}

func stressCapture(x *tenon.Exec, w *tenon.Tensor, seed uint64) (v []float32, err error) {
	a := stressInput(x, seed, 16, 16)
	var out *tenon.Tensor
	g, err := x.Capture(func(x *tenon.Exec) { out = x.MatMul(x.Cos(a), w) })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	for range 3 {
		if err := x.Replay(g); err != nil {
			return nil, err
		}
		x.NoGrad().AddInto(a, a, out)
	}
	return tenon.Read[float32](x, a)
}

// stressRound is one device with goroutines that use it.
type stressRound struct {
	t    *testing.T
	kind stressKind
	want map[string][]float32
	// storages and goroutines count those alive outside the round.
	storages, goroutines int

	x      *tenon.Exec
	faults *faults.Device

	w, leaf, sum  *tenon.Tensor
	graph         *tenon.Graph
	added, runs   atomic.Int64 // gradients added to leaf, and replays of graph
	results, errs atomic.Int64
	closing       atomic.Bool
	lost          atomic.Bool
}

// stressOpen opens a device of the kind that the flag names, whose calls can be made to fail. The simulator runs its streams in a random
// order.
func stressOpen(t *testing.T, kind stressKind, seed uint64) (*tenon.Exec, *faults.Device) {
	t.Helper()
	var f *faults.Device
	sel := rt.Selector{Kind: rt.Sim, Wrap: func(other driver.Device) driver.Device {
		if *deviceFlag != "cuda" {
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			o := hostsim.Options{Policy: hostsim.Random(seed)}
			if kind == stressSmall {
				o.Capacity = 24 << 20
			}
			d, err := hostsim.New(o).Open(0)
			if err != nil {
				t.Fatal(err)
			}
			other = d
		}
		f = faults.New(other)
		return f
	}}
	if *deviceFlag == "cuda" {
		sel.Kind = rt.CUDA
	}
	dev, err := rt.Open(sel)
	if err != nil {
		t.Fatal(err)
	}
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	x := (*tenon.Exec)(core.New(dev, host))
	if kind == stressSmall && *deviceFlag == "cuda" {
		if err := x.Device().SetMemoryFraction(24 * (1 << 20) / float64(x.Device().TotalMemory())); err != nil {
			t.Fatal(err)
		}
	}
	return x, f
}

// TestStress lets 16 goroutines open, fork, train, capture, replay, read, share weights, run out of memory, meet failing driver calls and
// close, randomly and concurrently. Every result is that of a sequential run, or an error of ours that fits the faults of the round; at
// the end nothing is live.
func TestStress(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	fmt.Fprintf(os.Stderr, "TestStress: -seed %d\n", seed) // printed at once, in case the test ends in a panic
	if _, err := rt.Host(); err != nil {
		t.Fatal(err)
	}
	want := map[string][]float32{}
	x, _ := stressOpen(t, stressClean, seed)
	x.Scope(func(x *tenon.Exec) {
		w := stressInput(x, 1000, 16, 16)
		for _, j := range stressJobs {
			for s := range uint64(stressSeeds) {
				x.Scope(func(x *tenon.Exec) {
					v, err := j.run(x, w, s)
					if err != nil {
						t.Fatal(j.name, err)
					}
					want[fmt.Sprint(j.name, s)] = v
				})
			}
		}
	})
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	stressSettled(0, 0)
	storages, goroutines := core.LiveStorages(), runtime.NumGoroutine()
	rounds, results, errs := 0, int64(0), int64(0)
	for end := time.Now().Add(*stressFlag); time.Now().Before(end) && !t.Failed(); rounds++ {
		r := rand.New(rand.NewPCG(seed, uint64(rounds)))
		k := &stressRound{t: t, kind: stressKind(r.IntN(int(stressKinds))), want: want, storages: storages, goroutines: goroutines}
		k.run(r)
		results, errs = results+k.results.Load(), errs+k.errs.Load()
		if n, g := stressSettled(storages, goroutines); n > storages || g > goroutines {
			t.Errorf("%d storages and %d goroutines are left", n-storages, g-goroutines)
		}
		if t.Failed() {
			t.Logf("in round %d of kind %v, where the device was closed early: %v", rounds, k.kind, k.closing.Load())
		}
	}
	t.Logf("%d rounds, %d results, %d errors", rounds, results, errs)
}

// stressSettled collects garbage until no more storages and goroutines are live than given, or for a second their numbers have not fallen.
// After other tests the heap holds many kernels, and a collection takes a quarter of a second.
func stressSettled(storages, goroutines int) (int, int) {
	n, g := core.LiveStorages(), runtime.NumGoroutine()
	for fell := time.Now(); (n > storages || g > goroutines) && time.Since(fell) < time.Second; {
		runtime.GC()
		for range 20 { // for cleanups, and goroutines that are about to end
			time.Sleep(time.Millisecond)
			if now, running := core.LiveStorages(), runtime.NumGoroutine(); now < n || running < g {
				n, g, fell = now, running, time.Now()
				break
			}
		}
	}
	return n, g
}

// run opens the device, lets the goroutines work and closes it, in every other round while they still work.
func (k *stressRound) run(r *rand.Rand) {
	t := k.t
	k.x, k.faults = stressOpen(t, k.kind, r.Uint64())
	if k.kind != stressLost {
		k.faults.SpareFaults()
	}
	k.x.Scope(func(x *tenon.Exec) {
		k.w = stressInput(x, 1000, 16, 16)
		k.leaf = stressInput(x, 1, 8).SetRequiresGrad(true)
		k.sum = x.Zeros([]int{8}, tenon.Float32)
		var err error
		k.graph, err = x.Capture(func(x *tenon.Exec) { x.NoGrad().AddSInto(k.sum, k.sum, 1) })
		if err != nil {
			t.Fatal(err)
		}
		early, seeds := r.IntN(2) == 0, make([]uint64, 16)
		for i := range seeds {
			seeds[i] = r.Uint64()
		}
		var wg sync.WaitGroup
		for _, s := range seeds {
			y, err := x.Fork()
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { k.work(y, rand.New(rand.NewPCG(s, 0))) })
		}
		stop := make(chan struct{})
		var injector sync.WaitGroup
		if k.kind == stressFaults || k.kind == stressLost {
			injector.Go(func() { k.inject(rand.New(rand.NewPCG(seeds[0], 1)), stop) })
		}
		if early {
			for n := int64(r.IntN(60)); k.results.Load()+k.errs.Load() < n; {
				runtime.Gosched()
			}
			k.closing.Store(true)
			if err := x.Close(); err != nil && k.kind != stressLost && k.kind != stressFaults {
				t.Errorf("Close: %v", err)
			}
		}
		wg.Wait()
		close(stop)
		injector.Wait()
		if k.kind != stressLost {
			k.faults.Arm(0, 0)
		}
		k.sums(x)
		if err := k.graph.Close(); err != nil && k.kind != stressLost {
			t.Errorf("Close of the graph: %v", err)
		}
	})
	stressSettled(k.storages, k.goroutines) // modules that were not finished
	err := k.x.Close()
	if err != nil && k.kind != stressLost && !k.lost.Load() { // it reports a fault that nothing else has reported
		t.Errorf("Close: %v", err)
	}
	if live := k.faults.Live(); live != (faults.Live{}) && !k.closing.Load() {
		t.Errorf("the device was closed with %+v live", live)
	}
}

// sums compares the tensors that goroutines added to with the number of additions.
func (k *stressRound) sums(x *tenon.Exec) {
	if k.closing.Load() || k.lost.Load() {
		return
	}
	check := func(what string, t *tenon.Tensor, n int64) {
		if t == nil && n == 0 {
			return
		}
		v, err := tenon.Read[float32](x, t)
		if err != nil && !k.fits(err) || err == nil && v[7] != float32(n) {
			k.t.Errorf("%s is %v, %v; want %d", what, v, err, n)
		}
	}
	check("the sum of the replays", k.sum, k.runs.Load())
	check("the gradient of the shared leaf", k.leaf.Grad(), k.added.Load())
}

// inject makes driver calls fail, one after the other.
func (k *stressRound) inject(r *rand.Rand, stop chan struct{}) {
	for {
		k.faults.Arm(1+r.IntN(300), r.IntN(3))
		for range 200 {
			select {
			case <-stop:
				return
			default:
			}
			if method, _ := k.faults.Fired(); method != "" {
				if k.kind == stressLost && r.IntN(4) > 0 {
					<-stop // a lost device stays lost
					return
				}
				break
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// work does jobs on forks, one after the other.
func (k *stressRound) work(y *tenon.Exec, r *rand.Rand) {
	for range 12 {
		seed := uint64(r.IntN(stressSeeds))
		job := stressJobs[r.IntN(len(stressJobs))]
		other := r.IntN(12)
		err := tenon.Try(func() {
			y.Scope(func(y *tenon.Exec) {
				var err error
				if other < 6 {
					err = k.together(y, other)
				} else {
					var v []float32
					if v, err = job.run(y, k.w, seed); err == nil && !slices.Equal(v, k.want[fmt.Sprint(job.name, seed)]) {
						k.t.Errorf("%s gave %v, want %v", job.name, v, k.want[fmt.Sprint(job.name, seed)])
					}
				}
				k.done(fmt.Sprint(job.name, other), err)
			})
		})
		if err != nil {
			k.done(fmt.Sprint(job.name, other), err)
		}
		if r.IntN(4) > 0 {
			continue
		}
		z, err := y.Fork()
		k.done("Fork", err)
		if err == nil {
			k.done("Close of a fork", y.Close())
			y = z
		}
	}
	k.done("Close of a fork", y.Close())
}

// together uses the objects that all goroutines share.
func (k *stressRound) together(y *tenon.Exec, what int) error {
	switch what {
	case 0:
		err := y.Backward(y.Sum(y.MulS(k.leaf, 1), nil))
		if err == nil {
			k.added.Add(1)
		}
		return err
	case 1:
		err := y.Replay(k.graph)
		if err == nil {
			k.runs.Add(1)
		}
		return err
	case 2:
		y.Ones([]int{1 << 19}, tenon.Float32)
		y.Ones([]int{3 << 19}, tenon.Float32)
		return y.Synchronize()
	case 3:
		e := y.Device().NewEvent()
		defer e.Close()
		if err := e.Record(y.Stream()); err != nil {
			return err
		}
		if err := y.Device().DefaultStream().Wait(e); err != nil {
			return err
		}
		return e.Synchronize()
	case 4:
		return y.Device().EmptyCache()
	}
	g, err := y.Capture(func(y *tenon.Exec) { y.Exp(k.w) }, tenon.CaptureOpt{Mode: cuda.CaptureThreadLocal})
	if err != nil {
		return err
	}
	closed := make(chan error)
	go func() { closed <- g.Close() }()
	err = y.Replay(g)
	if fault.KindOf(err) == fault.Closed && strings.Contains(err.Error(), "the graph was closed") {
		err = nil
	}
	return errors.Join(err, <-closed)
}

// done counts a finished job and judges its error.
func (k *stressRound) done(what string, err error) {
	if err == nil {
		k.results.Add(1)
		return
	}
	k.errs.Add(1)
	if fault.KindOf(err) == fault.Device {
		k.lost.Store(true)
	}
	if !k.fits(err) {
		k.t.Errorf("%s: %v", what, err)
	}
}

// fits reports whether the error is ours and a possible result of the round's faults.
func (k *stressRound) fits(err error) bool {
	var e *fault.Error
	if !errors.As(err, &e) {
		return false
	}
	switch {
	case k.closing.Load() && fault.KindOf(err) == fault.Closed:
		return true
	case k.kind == stressSmall:
		return fault.KindOf(err) == fault.OutOfMemory
	}
	return k.kind == stressFaults || k.kind == stressLost
}
