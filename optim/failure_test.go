package optim_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/data"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/rt"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// world is everything that a call may change. A call that fails must leave all of it unchanged.
type world struct {
	params  []*nn.Param
	buffers map[string]*tenon.Tensor
	opt     optim.Optimizer
	scaler  *optim.GradScaler
	sched   *optim.Schedule
	gen     *cuda.Generator
	loader  *data.Loader
	extra   struct{ Losses []float64 }
	file    string // a file name in a separate folder
	own     func() // closes whatever else the scenario made
	more    any    // other values of the scenario
}

// look returns the complete state of the world, to the bit.
func (w *world) look(t *testing.T, x *tenon.Exec) string {
	t.Helper()
	var b strings.Builder
	x.NoGrad().Scope(func(x *tenon.Exec) {
		show := func(name string, a *tenon.Tensor) {
			if a == nil {
				fmt.Fprintf(&b, "%s: none\n", name)
				return
			}
			bytes, err := x.Bytes(a)
			if err != nil {
				t.Fatal(err)
			}
			if len(bytes) > 1<<10 {
				sum := sha256.Sum256(bytes)
				bytes = sum[:]
			}
			fmt.Fprintf(&b, "%s: version %d, %v %x\n", name, a.Version(), a, bytes)
		}
		for i, p := range w.params {
			show(fmt.Sprintf("parameter %d", i), p.Tensor())
			show(fmt.Sprintf("gradient %d", i), p.Grad())
		}
		for _, name := range slices.Sorted(maps.Keys(w.buffers)) {
			show(name, w.buffers[name])
		}
		if w.gen != nil {
			fmt.Fprintf(&b, "generator: %x\n", w.gen.State())
		}
		if w.opt != nil {
			d, err := optim.StateDict(x, w.opt)
			if err != nil {
				t.Fatal(err)
			}
			state, _ := d.Get("state")
			for i, k := range state.(*torchfile.Dict).Keys {
				s := state.(*torchfile.Dict).Values[i].(*torchfile.Dict)
				for j, what := range s.Keys {
					show(fmt.Sprintf("state %v.%v", k, what), s.Values[j].(*tenon.Tensor))
				}
			}
			groups, _ := d.Get("param_groups")
			for _, g := range groups.([]any) {
				fmt.Fprintln(&b, g.(*torchfile.Dict).Keys, g.(*torchfile.Dict).Values)
			}
		}
		if w.scaler != nil {
			st, err := w.scaler.State(x)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&b, st)
		}
		if w.sched != nil {
			st, err := w.sched.State()
			fmt.Fprintln(&b, st, err)
		}
		fmt.Fprintln(&b, w.loader.State(), w.extra)
		if w.file != "" {
			files, err := os.ReadDir(filepath.Dir(w.file))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				bytes, err := os.ReadFile(filepath.Join(filepath.Dir(w.file), f.Name()))
				fmt.Fprintf(&b, "%s: %x %v\n", f.Name(), bytes, err)
			}
		}
	})
	return b.String()
}

func (w *world) close() {
	for _, p := range w.params {
		p.Close()
	}
	if w.own != nil {
		w.own()
	}
	if w.opt != nil {
		w.opt.Close()
	}
	if w.scaler != nil {
		w.scaler.Close()
	}
}

// failing is a call to be failed at each of its points.
type failing struct {
	name  string
	begin func(t *testing.T, x *tenon.Exec) *world
	act   func(x *tenon.Exec, w *world) error
	// ownMemory says that the world has a graph's memory, which the driver's own pool maps only while the graph runs.
	ownMemory bool
	// region is where act runs, or nil.
	region *compile.Region
}

// open returns a session of a simulated device whose calls can be failed.
func openFailing(t *testing.T) (*tenon.Exec, *faults.Device) {
	t.Helper()
	var d *faults.Device
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Memory: 1 << 30, Wrap: func(own driver.Device) driver.Device {
		d = faults.New(own)
		d.SpareFaults()
		return d
	}})
	if err != nil {
		t.Fatal(err)
	}
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Arm(0, 0)
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return (*tenon.Exec)(core.New(dev, host)), d
}

// sweep fails the call at the n-th point that arm names, from 1 on in steps of stride, until no point is left, and returns the number of
// failures. After each failure the world must be as before the call, or as after it if the call succeeded anyway; the next try must bring
// it to the state that a run without failures reaches.
func (f *failing) sweep(t *testing.T, x *tenon.Exec, d *faults.Device, stride int, arm func(n int)) (failures int) {
	t.Helper()
	never := f.never(t, x)
	for n := 1; ; n += stride {
		reached := false
		x.Scope(func(x *tenon.Exec) {
			w := f.begin(t, x)
			defer w.close()
			before := w.look(t, x)
			arm(n)
			err := f.try(x, w)
			method, code := d.Fired()
			d.Arm(0, 0)
			at := fmt.Sprintf("point %d, %s, %v: %v", n, method, code, err)
			reached = method != ""
			if err == nil {
				same(t, at, w.look(t, x), never)
				return
			}
			if !reached {
				t.Fatalf("it fails by itself: %v", err)
			}
			failures++
			same(t, at, w.look(t, x), before)
			if err = f.try(x, w); err != nil {
				t.Errorf("%s: and again: %v", at, err)
			}
			same(t, "again after "+at, w.look(t, x), never)
		})
		if !reached || t.Failed() {
			return failures
		}
	}
}

// never returns the look of the world after a call without failures.
func (f *failing) never(t *testing.T, x *tenon.Exec) (seen string) {
	t.Helper()
	x.Scope(func(x *tenon.Exec) {
		w := f.begin(t, x)
		defer w.close()
		if err := f.try(x, w); err != nil {
			t.Fatal(err)
		}
		seen = w.look(t, x)
	})
	return seen
}

func (f *failing) try(x *tenon.Exec, w *world) (err error) {
	if f.region != nil {
		return f.region.Do(x, func(x *tenon.Exec) error { return f.act(x, w) })
	}
	if e := tenon.Try(func() { x.Scope(func(x *tenon.Exec) { err = f.act(x, w) }) }); e != nil {
		return e
	}
	return err
}

// same compares two looks line by line.
func same(t *testing.T, at, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		a, b := "", ""
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			t.Errorf("%s:\n%.200s\nwant\n%.200s", at, a, b)
			return
		}
	}
}

var long = flag.Bool("long", false, "fail every point of a step in every way, not only those that an ordinary run has time for")

// TestFailures fails the calls of training at every other driver call (all with -long), with an error code that is no device fault (two
// codes with -long), and by letting the device run out of memory from such a point on.
func TestFailures(t *testing.T) {
	before := core.LiveStorages()
	picks, stride := 1, 2
	if *long {
		picks, stride = 2, 1
	}
	for _, f := range failings() {
		t.Run(f.name, func(t *testing.T) {
			t.Run("Calls", func(t *testing.T) {
				x, d := openFailing(t)
				n := 0
				for pick := range picks {
					n += f.sweep(t, x, d, stride, func(n int) { d.Arm(n, pick) })
				}
				if t.Logf("%d failures", n); n == 0 {
					t.Error("nothing failed")
				}
			})
			t.Run("Memory", func(t *testing.T) {
				if f.ownMemory {
					return
				}
				t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync") // each tensor is one driver call
				x, d := openFailing(t)
				n := f.sweep(t, x, d, stride, d.Starve)
				t.Logf("%d failures", n)
			})
			t.Run("Loading", func(t *testing.T) { // kernels load on first use, so each call gets a new device
				if testing.Short() {
					t.Skip("takes long")
				}
				const stride = 7
				for n := 1; n < 60 && !t.Failed(); n += stride {
					x, d := openFailing(t)
					f.cold(t, x, d, n)
				}
			})
		})
	}
	if n := core.LiveStorages() - before; n > 0 && !t.Failed() {
		t.Errorf("%d storages are left", n)
	}
}

// TestFailuresInRegion is TestFailures for deferred calls, which fail at the region's end, at every third point (all with -long).
func TestFailuresInRegion(t *testing.T) {
	putOff, stride := 0, 3
	if *long {
		stride = 1
	}
	for _, f := range failings() {
		t.Run(f.name, func(t *testing.T) {
			f.region = compile.New()
			x, d := openFailing(t)
			for range 2 { // the first run defers nothing
				f.never(t, x)
			}
			f.sweep(t, x, d, stride, func(n int) { d.Arm(n, 0) })
			s := f.region.Stats(x)
			putOff += s.Deferred
			t.Logf("%+v", s)
		})
		t.Run(f.name+"Memory", func(t *testing.T) {
			if f.ownMemory {
				return
			}
			t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
			f.region = compile.New()
			x, d := openFailing(t)
			for range 2 {
				f.never(t, x)
			}
			f.sweep(t, x, d, stride, d.Starve)
		})
	}
	if putOff == 0 {
		t.Error("nothing was deferred")
	}
}

// cold fails point n of a call that is the first one on its device.
func (f *failing) cold(t *testing.T, x *tenon.Exec, d *faults.Device, n int) {
	x.Scope(func(x *tenon.Exec) {
		w := f.begin(t, x)
		defer w.close()
		before := w.look(t, x)
		d.Arm(n, 0)
		err := f.try(x, w)
		method, code := d.Fired()
		d.Arm(0, 0)
		after := w.look(t, x)
		at := fmt.Sprintf("point %d, %s, %v: %v", n, method, code, err)
		if err != nil {
			same(t, at, after, before)
			if err = f.try(x, w); err != nil {
				t.Errorf("%s: and again: %v", at, err)
			}
			after = w.look(t, x)
		}
		same(t, at, after, f.never(t, x))
	})
}

// weights makes parameters with gradients: a matrix whose gradient has other strides, a half-precision one, and count vectors.
func weights(x *tenon.Exec, count int) []*nn.Param {
	var ps []*nn.Param
	add := func(p *nn.Param, g *tenon.Tensor) {
		p.SetGrad(g)
		ps = append(ps, p)
	}
	for i := range count {
		add(nn.NewParam(x.AddS(x.Arange(5, tenon.Float32), float64(i))), x.SubS(x.Arange(5, tenon.Float32), 2))
	}
	add(nn.NewParam(x.Full([]int{2, 3}, .5, tenon.Float32)), x.Clone(x.Transpose(x.Reshape(x.Arange(6, tenon.Float32), 3, 2), 0, 1)))
	add(nn.NewParam(x.Full([]int{4}, 2, tenon.BFloat16)), x.Full([]int{4}, .25, tenon.BFloat16))
	return ps
}

// optimizers are all optimizers, with the options that give them the most state.
var optimizers = map[string]func(ps ...*nn.Param) (optim.Optimizer, error){
	"SGD": func(ps ...*nn.Param) (optim.Optimizer, error) { return optim.NewSGD(list(ps...), optim.SGDOpt{LR: .1}) },
	"Momentum": func(ps ...*nn.Param) (optim.Optimizer, error) {
		return optim.NewSGD(list(ps...), optim.SGDOpt{LR: .1, Momentum: .9, Nesterov: true})
	},
	"Adam": func(ps ...*nn.Param) (optim.Optimizer, error) { return optim.NewAdam(list(ps...)) },
	"AdamW": func(ps ...*nn.Param) (optim.Optimizer, error) {
		return optim.NewAdamW(list(ps...), optim.AdamOpt{AMSGrad: true})
	},
	"Adamax": func(ps ...*nn.Param) (optim.Optimizer, error) { return optim.NewAdamax(list(ps...)) },
	"NAdam":  func(ps ...*nn.Param) (optim.Optimizer, error) { return optim.NewNAdam(list(ps...)) },
	"RAdam":  func(ps ...*nn.Param) (optim.Optimizer, error) { return optim.NewRAdam(list(ps...)) },
	"Adagrad": func(ps ...*nn.Param) (optim.Optimizer, error) {
		return optim.NewAdagrad(list(ps...))
	},
	"Adadelta": func(ps ...*nn.Param) (optim.Optimizer, error) {
		return optim.NewAdadelta(list(ps...))
	},
	"RMSprop": func(ps ...*nn.Param) (optim.Optimizer, error) {
		return optim.NewRMSprop(list(ps...), optim.RMSpropOpt{Centered: true, Momentum: .9})
	},
	"Rprop": func(ps ...*nn.Param) (optim.Optimizer, error) { return optim.NewRprop(list(ps...)) },
	"ASGD": func(ps ...*nn.Param) (optim.Optimizer, error) {
		return optim.NewASGD(list(ps...), optim.ASGDOpt{T0: 1})
	},
}

// stepped makes a world whose optimizer took the given number of steps.
func stepped(name string, count, steps int) func(t *testing.T, x *tenon.Exec) *world {
	return func(t *testing.T, x *tenon.Exec) *world {
		w := &world{params: weights(x, count), buffers: map[string]*tenon.Tensor{"rate": x.Full(nil, .125, tenon.Float64)}}
		var err error
		if w.opt, err = optimizers[name](w.params...); err != nil {
			t.Fatal(err)
		}
		if err := w.opt.(interface {
			SetLRTensor(group int, t *tenon.Tensor) error
		}).SetLRTensor(0, w.buffers["rate"]); err != nil {
			t.Fatal(err)
		}
		for range steps {
			if err := w.opt.Step(x); err != nil {
				t.Fatal(err)
			}
		}
		return w
	}
}

func takeStep(x *tenon.Exec, w *world) error { return w.opt.Step(x) }

func failings() []*failing {
	var fs []*failing
	for _, name := range slices.Sorted(maps.Keys(optimizers)) {
		fs = append(fs, &failing{name: name + "First", begin: stepped(name, 1, 0), act: takeStep},
			&failing{name: name + "Later", begin: stepped(name, 1, 1), act: takeStep})
	}
	fs = append(fs, &failing{name: "ManyTensors", begin: stepped("Momentum", 65, 1), act: takeStep})
	return append(fs, trainingFailings()...)
}
