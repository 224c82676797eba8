package tenon_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

var long = flag.Bool("long", false, "run 1000 rounds of TestSharedExec")

const once, after = "two goroutines use one Exec at once", "two goroutines used this Exec at once"

// here matches a line of this file.
var here = regexp.MustCompile(`concurrency_test\.go:\d+`)

// session returns the Exec of a new session on x's default stream.
func session(t *testing.T, x *tenon.Exec) *tenon.Exec {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	return (*tenon.Exec)(core.New((*core.Exec)(x).Device(), host))
}

// ours fails the test unless err is the error of a call that shared an Exec and names two lines of the program.
func ours(t *testing.T, err error) {
	t.Helper()
	var e *tenon.Error
	switch {
	case !errors.As(err, &e) || e.Kind != tenon.Invalid:
		t.Errorf("%T: %v", err, err)
	case !strings.Contains(err.Error(), once) && !strings.Contains(err.Error(), after):
		t.Error(err)
	case len(here.FindAllString(err.Error(), -1)) < 2:
		t.Errorf("not both lines are named: %v", err)
	}
}

// attempt runs f and returns its error. A panic with anything but an error fails the test.
func attempt(t *testing.T, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("a panic goes past Try: %v\n%s", r, debug.Stack())
		}
	}()
	var res error
	if err := tenon.Try(func() { res = f() }); err != nil {
		return err
	}
	return res
}

// watch calls f in the middle of each operation of x's session.
type watch func()

func (w watch) Before(*core.Frame) bool { w(); return false }
func (watch) After(*core.Frame)         {}

// The second of two goroutines gets an error at its line, which names the other's line. So does every later call.
func TestTwoGoroutines(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		y := session(t, x)
		a := x.Ones([]int{3}, tenon.Float32)
		inside, proceed := make(chan bool), make(chan bool)
		core.SetTap((*core.Exec)(y), watch(func() {
			inside <- true
			<-proceed
		}))
		var b *tenon.Tensor
		var all sync.WaitGroup
		all.Go(func() { b = y.Neg(a) })
		<-inside
		err := attempt(t, func() error { y.Add(a, a); return nil })
		ours(t, err)
		if s := err.Error(); !strings.Contains(s, once) || !strings.HasPrefix(s, "Add(") && !strings.HasPrefix(s, "Add:") {
			t.Error(s)
		}
		proceed <- true
		all.Wait()
		if v, err := tenon.Read[float32](x, b); err != nil || !slices.Equal(v, []float32{-1, -1, -1}) {
			t.Errorf("the first operation gave %v, %v", v, err)
		}
		refused(t, y, a)
		b.Close()
	})
}

// refused checks that y's session refuses every call, and that other Execs and Close still work.
func refused(t *testing.T, y *tenon.Exec, a *tenon.Tensor) {
	t.Helper()
	z := session(t, y)
	o := sgd(t, z.Ones([]int{3}, tenon.Float32), z.Ones([]int{3}, tenon.Float32))
	calls := map[string]func() error{
		"Add":         func() error { y.Add(a, a); return nil },
		"AddInto":     func() error { y.AddInto(a, a, a); return nil },
		"Scope":       func() error { y.Scope(func(*tenon.Exec) { t.Error("a scope is opened") }); return nil },
		"Within":      func() error { y.Within(func(*tenon.Exec) *tenon.Tensor { return nil }); return nil },
		"Keep":        func() error { y.Keep(a); return nil },
		"NoGrad":      func() error { y.NoGrad(); return nil },
		"Autocast":    func() error { y.Autocast(tenon.Float16); return nil },
		"On":          func() error { y.On(y.Stream()); return nil },
		"Fork":        func() error { _, err := y.Fork(); return err },
		"Backward":    func() error { return y.Backward(a) },
		"Item":        func() error { _, err := y.Item(a); return err },
		"Read":        func() error { _, err := tenon.Read[float32](y, a); return err },
		"From":        func() error { tenon.From(y, []float32{1}); return nil },
		"Synchronize": func() error { return y.Synchronize() },
		"Capture":     func() error { _, err := y.Capture(func(*tenon.Exec) {}); return err },
		"Apply":       func() error { y.Apply(double{}, a); return nil },
		"Step":        func() error { return o.Step(y) },
	}
	for name, call := range calls {
		err := attempt(t, call)
		if ours(t, err); err == nil || !strings.Contains(err.Error(), after) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type double struct{}

func (double) Forward(x *tenon.Exec, _ *tenon.FunctionContext, ins ...*tenon.Tensor) []*tenon.Tensor {
	return []*tenon.Tensor{x.MulS(ins[0], 2)}
}

func (double) Backward(x *tenon.Exec, _ *tenon.FunctionContext, gs ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	return []*tenon.Tensor{x.MulS(gs[0], 2)}, nil
}

// sgd returns an optimizer for the parameter p, whose gradient is grad. It takes p over.
func sgd(t *testing.T, p, grad *tenon.Tensor) *optim.SGD {
	q := nn.NewParam(p)
	q.Tensor().SetGrad(grad)
	o, err := optim.NewSGD(func(yield func(string, *nn.Param) bool) { yield("p", q) }, optim.SGDOpt{LR: 1, Momentum: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Two goroutines whose scopes do not end in the reverse order of their beginning are detected when the first scope ends, and everything
// made in both is freed.
func TestTornScopes(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		y, a := session(t, x), x.Ones([]int{3}, tenon.Float32)
		before := core.LiveStorages()
		inside, proceed := make(chan bool), make(chan bool)
		var first, second error
		var all sync.WaitGroup
		all.Go(func() {
			first = attempt(t, func() error {
				y.Scope(func(y *tenon.Exec) {
					y.Add(a, a)
					inside <- true
					<-proceed
					y.Add(a, a)
				})
				return nil
			})
			close(proceed)
		})
		<-inside
		second = attempt(t, func() error {
			y.Scope(func(y *tenon.Exec) {
				y.NoGrad().Within(func(y *tenon.Exec) *tenon.Tensor {
					b := y.Add(a, a)
					proceed <- true
					<-proceed
					b.Close()
					return b
				})
			})
			return nil
		})
		all.Wait()
		ours(t, first)
		ours(t, second)
		if n := core.LiveStorages() - before; n > 0 { // negative where garbage of other tests was collected
			t.Errorf("%d storages are left", n)
		}
		refused(t, y, a)
	})
}

// A callback may use the Exec that called it, from any operation, and so may a goroutine that the callback waits for.
func TestCallbacksUseTheExec(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		w := tenon.From(x, []float32{1, 2}).SetRequiresGrad(true)
		calls := 0
		use := func(x *tenon.Exec) {
			calls++
			var all sync.WaitGroup
			all.Go(func() { x.Scope(func(x *tenon.Exec) { x.Neg(w) }) })
			all.Wait()
			x.NoGrad().Neg(w)
		}
		defer w.RegisterHook(func(x *tenon.Exec, g *tenon.Tensor) *tenon.Tensor { use(x); return nil })()
		defer w.RegisterPostAccumulateGradHook(func(x *tenon.Exec, _ *tenon.Tensor) { use(x) })()
		x.Scope(func(x *tenon.Exec) {
			use(x)
			err := tenon.Try(func() { x.Scope(func(x *tenon.Exec) { use(x); x.Add(w, x.Ones([]int{3}, tenon.Float32)) }) })
			if err == nil {
				t.Error("the shapes do not fit")
			}
			pack := func(x *tenon.Exec, t *tenon.Tensor) any { use(x); return t.Shape() }
			unpack := func(x *tenon.Exec, v any) *tenon.Tensor { use(x); return x.Ones(v.([]int), tenon.Float32) }
			var y *tenon.Tensor
			x.SavedTensorHooks(pack, unpack, func(x *tenon.Exec) { use(x); y = x.Square(w) })
			y = x.Apply(function(use), y)[0]
			y = x.Checkpoint(func(x *tenon.Exec, ins []*tenon.Tensor) []*tenon.Tensor {
				use(x)
				return []*tenon.Tensor{x.Exp(ins[0])}
			}, y)[0]
			y = x.WithinMany(func(x *tenon.Exec) []*tenon.Tensor { use(x); return []*tenon.Tensor{x.Sum(y, nil)} })[0]
			if err := x.Backward(y); err != nil {
				t.Fatal(err)
			}
		})
		if calls < 12 {
			t.Errorf("%d calls", calls)
		}
	})
}

// An observer of the allocator runs in the middle of an operation and cannot use that operation's Exec. Its attempt does no harm.
func TestObserverCannotUseTheExec(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(8 << 20))
	must(t, err)
	y, err := x.Fork()
	must(t, err)
	small := x.Ones([]int{1}, tenon.Float32)
	var own, other error
	x.Device().OnOutOfMemory(func(cuda.OOM) {
		own = attempt(t, func() error { x.NoGrad(); return nil })
		other = attempt(t, func() error { y.NoGrad(); return nil })
	})
	if tenon.Try(func() { x.Zeros([]int{1 << 30}, tenon.Float32) }) == nil {
		t.Error("there is no memory for it")
	}
	if own == nil || !strings.Contains(own.Error(), "in the middle of an operation") || other != nil {
		t.Errorf("%v, %v", own, other)
	}
	x.Neg(small)
	must(t, x.Close())
}

// function is a Function whose Forward and Backward call it.
type function func(x *tenon.Exec)

func (f function) Forward(x *tenon.Exec, c *tenon.FunctionContext, ins ...*tenon.Tensor) []*tenon.Tensor {
	f(x)
	c.Save(ins[0])
	return []*tenon.Tensor{x.Square(ins[0])}
}

func (f function) Backward(x *tenon.Exec, c *tenon.FunctionContext, gs ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	f(x)
	x.QueueCallback(f)
	return []*tenon.Tensor{x.Mul(gs[0], c.Saved()[0])}, nil
}

// uses are the ways in which goroutines use an Exec, one after the other; w is a leaf.
var uses = map[string]func(x *tenon.Exec, a, w *tenon.Tensor, r *rand.Rand) error{
	"ops": func(x *tenon.Exec, a, _ *tenon.Tensor, _ *rand.Rand) error {
		y := x.Add(a, a)
		defer y.Close()
		z := x.Mul(y, a)
		z.Close()
		return nil
	},
	"read": func(x *tenon.Exec, a, _ *tenon.Tensor, _ *rand.Rand) error {
		v, err := tenon.Read[float32](x, a)
		if err == nil && !slices.Equal(v, []float32{1, 2, 3, 4}) {
			return fmt.Errorf("read %v", v)
		}
		return err
	},
	"item": func(x *tenon.Exec, a, _ *tenon.Tensor, _ *rand.Rand) error {
		_, err := x.Item(x.Sum(a, nil))
		return err
	},
	"within": func(x *tenon.Exec, a, _ *tenon.Tensor, _ *rand.Rand) error {
		x.Within(func(x *tenon.Exec) *tenon.Tensor { return x.Mul(x.Add(a, a), x.Sub(a, a)) }).Close()
		return nil
	},
	"scopes": func(x *tenon.Exec, a, _ *tenon.Tensor, _ *rand.Rand) error {
		x.Scope(func(x *tenon.Exec) {
			x.Add(a, a)
			x.Scope(func(x *tenon.Exec) { x.Keep(x.Add(a, a)) })
		})
		return nil
	},
	"derived": func(x *tenon.Exec, a, _ *tenon.Tensor, r *rand.Rand) error {
		y := x.NoGrad().TF32(r.IntN(2) == 0).Autocast([]tenon.DType{tenon.Float16, 0}[r.IntN(2)])
		y.Add(a, a).Close()
		y.Host().EnableGrad()
		return nil
	},
	"backward": func(x *tenon.Exec, _, w *tenon.Tensor, _ *rand.Rand) (err error) {
		x.Scope(func(x *tenon.Exec) {
			err = x.Backward(x.Sum(x.Mul(w, w), nil))
		})
		return err
	},
	"hooks": func(x *tenon.Exec, _, w *tenon.Tensor, _ *rand.Rand) (err error) {
		x.SavedTensorHooks(
			func(x *tenon.Exec, t *tenon.Tensor) any { return x.Clone(t) },
			func(_ *tenon.Exec, v any) *tenon.Tensor { return v.(*tenon.Tensor) },
			func(x *tenon.Exec) {
				x.Scope(func(x *tenon.Exec) {
					_, err = x.Grad([]*tenon.Tensor{x.Sum(x.Square(w), nil)}, []*tenon.Tensor{w})
				})
			})
		return err
	},
	"function": func(x *tenon.Exec, _, w *tenon.Tensor, _ *rand.Rand) (err error) {
		x.Scope(func(x *tenon.Exec) {
			y := x.Apply(function(func(x *tenon.Exec) { x.NoGrad().Neg(w) }), w)[0]
			_, err = x.Grad([]*tenon.Tensor{x.Sum(y, nil)}, []*tenon.Tensor{w})
		})
		return err
	},
	"checkpoint": func(x *tenon.Exec, _, w *tenon.Tensor, _ *rand.Rand) (err error) {
		x.Scope(func(x *tenon.Exec) {
			y := x.Checkpoint(func(x *tenon.Exec, ins []*tenon.Tensor) []*tenon.Tensor {
				return []*tenon.Tensor{x.Exp(x.Square(ins[0]))}
			}, w)[0]
			_, err = x.Grad([]*tenon.Tensor{x.Sum(y, nil)}, []*tenon.Tensor{w})
		})
		return err
	},
	"capture": func(x *tenon.Exec, a, _ *tenon.Tensor, _ *rand.Rand) error {
		g, err := x.Capture(func(x *tenon.Exec) { x.Add(x.Neg(a), a) })
		if err != nil {
			return err
		}
		return errors.Join(x.Replay(g), x.Synchronize(), g.Close())
	},
	"step": func(x *tenon.Exec, _, _ *tenon.Tensor, _ *rand.Rand) (err error) {
		x.Scope(func(x *tenon.Exec) {
			p := nn.NewParam(x.Ones([]int{4}, tenon.Float32))
			p.Tensor().SetGrad(x.NoGrad().Ones([]int{4}, tenon.Float32))
			o, e := optim.NewSGD(func(yield func(string, *nn.Param) bool) { yield("p", p) }, optim.SGDOpt{LR: 1, Momentum: 0.5})
			if err = e; err == nil {
				err = o.Step(x)
			}
		})
		return err
	},
}

// held is a device whose waits for a stream last until release is closed.
type held struct {
	driver.Device
	waiting chan bool
	release chan bool
	// mine is the stream whose wait is at line.
	mine *uint64
	line *int
}

func (d held) StreamSynchronize(t driver.Thread, s driver.Stream) error {
	d.waiting <- true
	if uint64(s) == *d.mine {
		await := func() { _, _, *d.line, _ = runtime.Caller(0); <-d.release }
		await()
	} else {
		<-d.release
	}
	return d.Device.StreamSynchronize(t, s)
}

// openHeld opens such a device until the test ends; mine is the stream of its Exec. Waits after the test's own are let go.
func openHeld(t *testing.T) (*tenon.Exec, held) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	d := held{waiting: make(chan bool), release: make(chan bool), mine: new(uint64), line: new(int)}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(own driver.Device) driver.Device {
		d.Device = own
		return d
	}})
	if err != nil {
		t.Fatal(err)
	}
	x := (*tenon.Exec)(core.New(dev, host))
	*d.mine = x.Stream().Handle()
	t.Cleanup(func() {
		go func() {
			for range d.waiting {
			}
		}()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x, d
}

// A goroutine that has waited in vain for another one to leave their Exec names its line, also if others wait for the device in theirs.
func TestSharedWait(t *testing.T) {
	x, d := openHeld(t)
	ones := x.Ones([]int{2}, tenon.Float32)
	y, err := x.Fork()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, wait := range []func() error{x.NoGrad().Synchronize, y.Synchronize} {
		all.Go(func() {
			if err := wait(); err != nil {
				t.Error(err)
			}
		})
	}
	for range 2 {
		<-d.waiting
	}
	err = attempt(t, func() error { x.AddS(ones, 1); return nil })
	close(d.release)
	all.Wait()
	ours(t, err)
	if want := fmt.Sprintf("concurrency_test.go:%d; give each", *d.line); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// A function that the library calls, through closures of its own, is told of another goroutine in its Exec like any other caller. It was
// once taken for an observer in the middle of an operation.
func TestSharedCheckpoint(t *testing.T) {
	x, d := openHeld(t)
	w := x.Ones([]int{2}, tenon.Float32).SetRequiresGrad(true)
	var all sync.WaitGroup
	err := attempt(t, func() error {
		x.Checkpoint(func(x *tenon.Exec, ins []*tenon.Tensor) []*tenon.Tensor {
			all.Go(func() {
				_ = attempt(t, x.Synchronize) // the other call may be the one that is told
			})
			<-d.waiting
			defer close(d.release)
			return []*tenon.Tensor{x.Square(ins[0])}
		}, w)
		return nil
	})
	all.Wait()
	if ours(t, err); err == nil || !strings.Contains(err.Error(), once) {
		t.Errorf("%v, want %q", err, once)
	}
}

// inAnothersFunction reports whether e may come from a whole call while a function of another goroutine is under way, which Tenon cannot
// detect: what such a call made ends with the other's scope, and some calls are refused in a capture or while changes are put together.
func inAnothersFunction(e *tenon.Error) bool {
	return e.Kind == tenon.Closed && strings.Contains(e.Error(), "closed at the end of its scope") || e.Kind == tenon.CaptureFault ||
		strings.Contains(e.Error(), "while changes are put together")
}

// Goroutines that share an Exec get errors of this library, whatever they do: no panic escapes Try, nothing hangs, and other Execs of the
// device keep working.
func TestSharedExec(t *testing.T) {
	kinds := make([]string, 0, len(uses))
	for name := range uses {
		kinds = append(kinds, name)
	}
	slices.Sort(kinds)
	x := openSim(t)
	met := 0
	rounds := 40
	if *long {
		rounds = 1000
	}
	for round := range rounds {
		y := session(t, x)
		a := tenon.From(x, []float32{1, 2, 3, 4})
		w := tenon.From(x, []float32{1, 2, 3, 4}).SetRequiresGrad(true)
		begin := make(chan bool)
		var refused atomic.Int64
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(g), uint64(round)))
				some := r.Perm(len(kinds))[:1+r.IntN(3)]
				<-begin
				for range 20 {
					use := uses[kinds[some[r.IntN(len(some))]]]
					if err := attempt(t, func() error { return use(y, a, w, r) }); err != nil {
						var e *tenon.Error
						switch {
						case !errors.As(err, &e):
							t.Errorf("%T: %v", err, err)
						case strings.Contains(err.Error(), once) || strings.Contains(err.Error(), after):
							ours(t, err)
							refused.Add(1)
							if strings.Contains(err.Error(), after) {
								return
							}
						case !inAnothersFunction(e):
							t.Error(err)
						}
					}
				}
			})
		}
		close(begin)
		all.Wait()
		// The session notes an overlap. Then at least one of the two got the error, and only then.
		over := attempt(t, func() error { y.Neg(a); return nil })
		switch {
		case over == nil && refused.Load() > 0:
			t.Errorf("%d goroutines were told of another one, but the Exec still works", refused.Load())
		case over != nil && refused.Load() == 0:
			t.Errorf("two goroutines have met, and none was told: %v", over)
		case over != nil:
			ours(t, over)
			met++
		}
		if v, err := tenon.Read[float32](x, a); err != nil || !slices.Equal(v, []float32{1, 2, 3, 4}) {
			t.Fatalf("round %d: another Exec read %v, %v", round, v, err)
		}
		a.Close()
		w.Close()
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	if met == 0 {
		t.Error("no goroutine met another one")
	}
}

// Four goroutines open scopes in one Exec. A pointer into a scope that another goroutine had closed once crashed the process here. Close
// still works on the Exec.
func TestSharedScopes(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(64 << 20))
	must(t, err)
	y := session(t, x)
	errs := make([]error, 4)
	var all sync.WaitGroup
	for g := range errs {
		all.Go(func() {
			errs[g] = attempt(t, func() error {
				for range 200 {
					y.Scope(func(y *tenon.Exec) { y.Add(y.Ones([]int{1000}, tenon.Float32), y.Ones([]int{1000}, tenon.Float32)) })
				}
				return nil
			})
		})
	}
	all.Wait()
	for _, err := range errs {
		if e := (*tenon.Error)(nil); err != nil && !errors.As(err, &e) {
			t.Errorf("%T: %v", err, err)
		}
	}
	must(t, y.Close())
}
