package conformance

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/record"
	"tenon.dev/internal/recorded"
	"tenon.dev/internal/rt"
	"tenon.dev/kernel"
	"tenon.dev/sparse"
)

// sampled is the number of cases of each operation and type in the tests of work and memory.
const sampled = 2

// sample calls f with some cases of every operation in the registry.
func sample(t *testing.T, f func(c *recorded.Case, call func(x *tenon.Exec, a *args) any)) {
	cases, err := recorded.OpenCases(*opsFlag)
	if err != nil {
		t.Fatal(err)
	}
	match, err := regexp.Compile(*matchFlag)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for c, err := range cases.All() {
		if err != nil {
			t.Fatal(err)
		}
		key := c.Op + "/" + c.Variant + "/" + c.Type
		if offered(c) == nil || seen[key] == sampled || !match.MatchString(c.Op) {
			continue
		}
		seen[key]++
		f(c, offered(c))
	}
}

// try runs f and returns its error, including a bad case.
func try(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			b, ok := r.(badCase)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%s", b.msg)
		}
	}()
	return tenon.Try(f)
}

// watcher observes what each operation does to the memory of an inline device, and which driver calls it makes.
type watcher struct {
	dev   *rt.Device
	inner driver.Device // unrecorded
	rec   *record.Device
	open  []before // of the operations in progress
	// wrong lists the operations that changed memory without a driver call; work counts the others.
	wrong       map[string]bool
	work, views int
	seen        map[string]bool
	// held compares the behaviour of operations with the properties in their rows.
	held *properties
}

// before is the state when an operation began.
type before struct {
	calls  int
	memory map[uint64][]byte
	random []byte
}

// margin is the size of the free memory after a segment's last allocation that is checked: an operation's results are small and lie
// there.
const margin = 64 << 10

// memory returns the contents of the device memory that the allocator has handed out or is about to, by segment.
func (w *watcher) memory() map[uint64][]byte {
	out := map[uint64][]byte{}
	for _, s := range w.dev.Memory().Segments() {
		end := uint64(0)
		for _, b := range s.Blocks {
			if b.State != alloc.Inactive {
				end = b.Addr + b.Size - s.Addr
			}
		}
		b := make([]byte, min(end+margin, s.TotalSize))
		if err := w.inner.CopyDtoH(b, driver.Ptr(s.Addr), driver.Stream(s.Stream)); err != nil {
			panic(err)
		}
		out[s.Addr] = b
	}
	return out
}

// deviceWork are the driver calls by which an operation may change memory.
var deviceWork = []string{"Launch", "CopyDtoD", "CopyHtoD", "Memset", "GraphLaunch"}

func (w *watcher) Before(f *core.Frame) bool {
	b := before{calls: len(w.rec.Calls()), memory: w.memory()}
	if f != nil {
		b.random = f.Exec().Generator().State()
	}
	w.open = append(w.open, b)
	return false
}

func (w *watcher) After(f *core.Frame) {
	w.held.ended(f, &w.open[len(w.open)-1], w)
	w.ended(f.Op(), f.Outs() > 0 && f.Inferred()[0].View)
}

func (w *watcher) ended(op string, view bool) {
	w.seen[op] = true
	b := w.open[len(w.open)-1]
	w.open = w.open[:len(w.open)-1]
	now, changed := w.memory(), false
	for addr, old := range b.memory {
		n := min(len(old), len(now[addr]))
		changed = changed || !bytes.Equal(old[:n], now[addr][:n])
	}
	called := slices.ContainsFunc(w.rec.Calls()[b.calls:], func(c record.Call) bool { return slices.Contains(deviceWork, c.Method) })
	switch {
	case changed && (view || !called):
		w.wrong[op] = true
	case view:
		w.views++
	case changed:
		w.work++
	}
}

// newWatcher opens the processor's device under a recorder, and watches the Exec that it returns.
func newWatcher(t *testing.T) (*watcher, *tenon.Exec) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{wrong: map[string]bool{}, seen: map[string]bool{}, held: newProperties()}
	w.dev, err = rt.Open(rt.Selector{Kind: rt.CPU, Wrap: func(d driver.Device) driver.Device {
		w.inner, w.rec = d, record.New(d)
		return w.rec
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.dev.Close() })
	return w, (*tenon.Exec)(core.New(w.dev, host))
}

// watched runs f with the watcher on.
func (w *watcher) watched(x *tenon.Exec, f func()) error {
	w.rec.Reset()
	w.open = nil
	core.SetTap((*core.Exec)(x), w)
	defer core.SetTap((*core.Exec)(x), nil)
	return try(f)
}

// TestLaunchesOfGradients checks that these functions take one launch, and one for the gradient of each input.
func TestLaunchesOfGradients(t *testing.T) {
	w, x := newWatcher(t)
	count := func(f func()) int {
		w.rec.Reset()
		f()
		n := 0
		for _, m := range deviceWork {
			n += w.rec.Count(m)
		}
		return n
	}
	list := map[string]func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor{
		"PReLU":   func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.PReLU(x.View(a, 2, 4), b) },
		"Dropout": func(x *tenon.Exec, a, _ *tenon.Tensor) *tenon.Tensor { return x.Dropout(a, 0.5) },
	}
	for _, how := range []tenon.Reduction{tenon.ReduceNone, tenon.ReduceSum, tenon.ReduceMean} {
		opt := tenon.LossOpt{Reduction: how}
		list["MSELoss "+how.String()] = func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.MSELoss(a, b, opt) }
		list["L1Loss "+how.String()] = func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.L1Loss(a, b, opt) }
		list["SmoothL1Loss "+how.String()] = func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor {
			return x.SmoothL1Loss(a, b, tenon.SmoothL1LossOpt{Beta: 0.5, Reduction: how})
		}
		list["HuberLoss "+how.String()] = func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor {
			return x.HuberLoss(a, b, tenon.HuberLossOpt{Delta: 0.5, Reduction: how})
		}
	}
	for name, f := range list {
		for inputs := 1; inputs <= 2; inputs++ {
			if name == "Dropout" && inputs == 2 {
				continue
			}
			x.Scope(func(x *tenon.Exec) {
				a, b := tenon.From(x, []float32{-1, 0.25, 2, 3, 1, -0.5, -2, 1}), tenon.From(x, []float32{0.5, 0, 1, 4})
				if name != "PReLU" {
					a = x.Narrow(a, 0, 0, 4)
				}
				of := []*tenon.Tensor{a.SetRequiresGrad(true)}
				if inputs == 2 {
					of = append(of, b.SetRequiresGrad(true))
				}
				var y *tenon.Tensor
				if n := count(func() { y = f(x, a, b) }); n != 1 {
					t.Errorf("%s takes %d launches", name, n)
				}
				g := x.OnesLike(y)
				n := count(func() {
					if _, err := x.Grad([]*tenon.Tensor{y}, of, tenon.GradOpt{Gradients: []*tenon.Tensor{g}}); err != nil {
						t.Error(err)
					}
				})
				if n != inputs {
					t.Errorf("the gradients of %d inputs of %s take %d launches", inputs, name, n)
				}
			})
		}
	}
}

// TestDeviceWork checks that every operation works on the device: none changes memory without a launch, copy or memset, no view changes
// any, and none but those whose result depends on data reads it back to the host.
func TestDeviceWork(t *testing.T) {
	w, x := newWatcher(t)
	readers := map[string]bool{}
	calls := 0
	sample(t, func(c *recorded.Case, call func(x *tenon.Exec, a *args) any) {
		x.Scope(func(x *tenon.Exec) {
			var a *args
			var grads []*tenon.Tensor
			if err := try(func() { a, grads = newArgs(x, c), loadAll(x, c.GradOut) }); err != nil {
				return
			}
			var res any
			if err := w.watched(x, func() { res = call(x, a) }); err != nil {
				t.Errorf("%s: %v", c.Name(), err)
				return
			}
			if w.rec.Count("CopyDtoH") > 0 {
				readers[c.Op] = true
			}
			var err error
			if e := w.watched(x, func() { err = backward(x, res, grads) }); e != nil || err != nil {
				t.Errorf("%s: %v %v", c.Name(), err, e)
			}
			if w.rec.Count("CopyDtoH") > 0 {
				t.Errorf("the derivative of %s reads the device", c.Name())
			}
			calls++
		})
	})
	w.unrecorded(t, x)
	w.held.report(t)
	for op := range w.wrong {
		t.Errorf("%s changes device memory without a launch, copy or memset", op)
	}
	for op := range readers {
		if !dependsOnData[op] {
			t.Errorf("%s reads the device, though its result's shape does not depend on data", op)
		}
	}
	t.Logf("device work: %d calls of %d operations in the registry, %d operations that changed memory, %d views; read back: %s", calls,
		len(registry), w.work, w.views,
		strings.Join(slices.Sorted(maps.Keys(readers)), " "))
	// Users' functions are checked through their operations; tests of graph trees define their own operation.
	own := func(op string) bool { return op == "Function" || op == "Planted" }
	if unseen := slices.DeleteFunc(core.OpNames(), func(op string) bool { return w.seen[op] || own(op) }); len(unseen) > 0 &&
		*matchFlag == "" {
		t.Errorf("these operations were not reached: %s", strings.Join(unseen, " "))
	}
}

// unrecorded runs operations that no recorded case reaches.
func (w *watcher) unrecorded(t *testing.T, x *tenon.Exec) {
	x.Scope(func(x *tenon.Exec) {
		a, b := x.Ones([]int{8}, tenon.Float32), x.Zeros([]int{8}, tenon.Float32)
		add := kernel.Build("add", func(k *kernel.Builder) {
			n, dst, src := k.Scalar("n", tenon.Int64), k.Buffer("dst", tenon.Float32), k.Buffer("src", tenon.Float32)
			k.ForEach(n, func(i kernel.Value) { dst.Store(i, dst.Load(i).Add(src.Load(i))) })
		})
		err := w.watched(x, func() {
			x.CopyInto(b, a)
			x.FillInto(b, 1)
			core.VectorNorms((*core.Exec)(x), []*core.Tensor{(*core.Tensor)(a), (*core.Tensor)(b), (*core.Tensor)(a)}, 2)
			x.Launch(add, tenon.Over(8), tenon.Integer(8), tenon.Out(b), tenon.In(a))
			for _, n := range []float64{1, 2} { // data that decides sizes
				x.RepeatInterleave(a, x.Full([]int{8}, n, tenon.Int64))
				x.Unique(x.MulS(x.Arange(8, tenon.Float32), n-1))
			}
			p := x.Full([]int{8}, 0.5, tenon.Float32)
			x.Bernoulli(p)
			heads := x.Ones([]int{1, 1, 5, 16}, tenon.BFloat16).SetRequiresGrad(true)
			if err := x.Backward(x.Sum(x.ScaledDotProductAttention(heads, heads, heads), nil)); err != nil {
				t.Error(err)
			}
			bias := tenon.AttentionOpt{Mask: x.Zeros([]int{5, 5}, heads.DType()).SetRequiresGrad(true)}
			if err := x.Backward(x.Sum(x.ScaledDotProductAttention(heads, heads, heads, bias), nil)); err != nil {
				t.Error(err)
			}
			dropped := x.ScaledDotProductAttention(heads, heads, heads, tenon.AttentionOpt{Dropout: 0.5})
			if err := x.Backward(x.Sum(dropped, nil)); err != nil {
				t.Error(err)
			}
			packed := x.Split(x.Ones([]int{1, 5, 48}, tenon.BFloat16).SetRequiresGrad(true), 16, 2)
			for i, p := range packed {
				packed[i] = x.Transpose(x.View(p, 1, 5, 1, 16), 1, 2)
			}
			if err := x.Backward(x.Sum(x.ScaledDotProductAttention(packed[0], packed[1], packed[2]), nil)); err != nil {
				t.Error(err)
			}
			x.Rand([]int{8}, tenon.Float32)
			x.AssertAsync(x.Ones([]int{1}, tenon.Float32))
			x.BatchNormGatherStats(x.View(a, 2, 4), x.View(a, 2, 4), x.Full(nil, 3, tenon.Float32), nil, nil, 0.1, 1e-5)
			s := sparse.NewCOO(x, x.Zeros([]int{1, 8}, tenon.Int64), a, []int{9})
			s.ToDense(x)
			// An in-place change of a view, whose derivatives are separate operations.
			w := x.Ones([]int{8}, tenon.Float32).SetRequiresGrad(true)
			y := x.Dropout(w, 0.5)
			v, head := x.View(y, 2, 4), x.Slice(y, 0, 0, 4, 1)
			x.MulInto(head, head, x.Slice(w, 0, 4, 8, 1))
			if err := x.Backward(x.Add(x.Sum(v, nil), x.Sum(y, nil))); err != nil {
				t.Error(err)
			}
			x := (*core.Exec)(x)
			core.TakeStep(x, "SGD", &core.Step{Op: core.SGD, Numbers: []float64{0.5, 1, 0},
				Rows: x.Zeros([]int{1, core.StepRow}, tenon.Float64), Which: []int32{0},
				Lists: [][]*core.Tensor{{(*core.Tensor)(b)}, {(*core.Tensor)(a)}}})
			state, flag := core.From(x, core.ScaleRow(4, 0)), x.Zeros(nil, tenon.Float32)
			core.Unscale(x, []*core.Tensor{(*core.Tensor)(a)}, state, flag)
			core.UpdateScale(x, state, x.Zeros(nil, tenon.Float32), []*core.Tensor{flag}, 2, 0.5, 1)
		})
		if err != nil {
			t.Error(err)
		}
		// The watched device is not the host, so a copy to it crosses devices.
		there := x.Host().Ones([]int{8}, tenon.Float32)
		if err := w.watched(x, func() { x.CopyInto(x.To(there), there) }); err != nil {
			t.Error(err)
		}
		if err := w.watched(x, func() { w.pinned(x) }); err != nil {
			t.Error(err)
		}
		got, err := tenon.Read[float32](x, b)
		if err != nil || got[0] != 1.5 {
			t.Errorf("copy, launch and step give %v, %v; want 1.5", got, err)
		}
	})
}

// pinned runs operations that involve a GPU and the processor. The watched device is the processor; the GPU is simulated beside it.
func (w *watcher) pinned(x *tenon.Exec) {
	gpu, err := rt.Open(rt.Selector{Kind: rt.Sim})
	if err != nil {
		panic(err)
	}
	defer gpu.Close()
	y := x.On((*cuda.Stream)(gpu.DefaultStream()))
	a := y.PinMemory(x.Ones([]int{8}, tenon.Float32))
	y.CopyAsyncInto(a, y.Full([]int{8}, 3, tenon.Float32))
	a.Close()
}

// dependsOnData are the operations that must know data on the host: their result is not on the device, or its shape depends on data, or
// their recorded calls have tensors for arguments that are numbers here.
var dependsOnData = map[string]bool{"argwhere": true, "bincount": true, "equal": true, "linspace": true,
	"masked_select": true, "narrow": true,
	"nn.functional.one_hot": true, "nonzero": true, "repeat_interleave": true, "unique": true}

// TestDeviceWorkSeesHostLoops plants an operation that writes device memory behind the driver's back.
func TestDeviceWorkSeesHostLoops(t *testing.T) {
	w, x := newWatcher(t)
	var err error
	x.Scope(func(x *tenon.Exec) {
		a := x.Zeros([]int{4}, tenon.Float32)
		err = w.watched(x, func() {
			w.Before(nil)
			if err := w.inner.Memset(driver.Ptr(a.DataPtr()), 1, 1, 16, driver.Stream(w.dev.DefaultStream().Handle())); err != nil {
				t.Fatal(err)
			}
			w.ended("Planted", false)
			x.Neg(a)
		})
	})
	if err != nil || len(w.wrong) != 1 || !w.wrong["Planted"] || w.work != 1 {
		t.Errorf("%v, wrong %v, work %d; want the planted operation alone", err, w.wrong, w.work)
	}
}

// TestClosing checks the closing law: an operation leaves its outputs and what the graph saved, a backward pass leaves the leaves'
// gradients, and with its outputs closed nothing is left.
func TestClosing(t *testing.T) {
	x := open(t)
	calls, graphs := 0, 0
	sample(t, func(c *recorded.Case, call func(x *tenon.Exec, a *args) any) {
		x.Scope(func(x *tenon.Exec) {
			var a *args
			var grads []*tenon.Tensor
			if err := try(func() { a, grads = newArgs(x, c), loadAll(x, c.GradOut) }); err != nil {
				return
			}
			l := law{before: core.LiveStorages(), inputs: held(a.tensorsIn())}
			err := try(func() {
				var res any
				x.Scope(func(*tenon.Exec) {
					res = call(x, a)
					l.check("forward", tensorsOf(res))
					if grads != nil {
						graphs++
						if err := backward(x, res, grads); err != nil {
							panic(badCase{err.Error()})
						}
						l.check("backward", append(tensorsOf(res), a.tensorsIn()...))
					}
					for _, o := range tensorsOf(res) {
						if !slices.Contains(a.tensorsIn(), o) {
							o.Close()
						}
					}
				})
				l.check("closing", a.tensorsIn())
			})
			for _, e := range l.broken {
				t.Errorf("%s: %s", c.Name(), e)
			}
			if err != nil {
				t.Errorf("%s: %v", c.Name(), err)
			}
			calls++
		})
	})
	t.Logf("closing law: %d calls, %d of them with a backward pass", calls, graphs)
}

// tensorsIn lists the tensors among the arguments.
func (a *args) tensorsIn() []*tenon.Tensor {
	var out []*tenon.Tensor
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case *tenon.Tensor:
			out = append(out, v)
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	for _, v := range a.at {
		walk(v)
	}
	for _, v := range a.kw {
		walk(v)
	}
	return out
}

// held returns the addresses of the memory that tensors hold.
func held(ts []*tenon.Tensor) map[uint64]bool {
	list := make([]*core.Tensor, len(ts))
	for i, t := range ts {
		list[i] = (*core.Tensor)(t)
	}
	return core.HeldMemory(list...)
}

// law counts the storages of a call.
type law struct {
	before int
	inputs map[uint64]bool
	broken []string
}

// check compares the live storages with those that the tensors hold besides the inputs.
func (l *law) check(when string, ts []*tenon.Tensor) {
	n := 0
	for addr := range held(ts) {
		if !l.inputs[addr] {
			n++
		}
	}
	if live := core.LiveStorages() - l.before; live != n {
		l.broken = append(l.broken, fmt.Sprintf("after %s %d storages live, but results, saved tensors and gradients hold %d", when, live,
			n))
	}
}

// TestClosingSeesLeaks breaks the law on purpose.
func TestClosingSeesLeaks(t *testing.T) {
	x := open(t)
	x.Scope(func(x *tenon.Exec) {
		a := x.Ones([]int{4}, tenon.Float32).SetRequiresGrad(true)
		l := law{before: core.LiveStorages(), inputs: held([]*tenon.Tensor{a})}
		y := x.Mul(x.Exp(a), a) // saves an intermediate result
		l.check("forward", []*tenon.Tensor{y})
		if len(l.broken) != 0 {
			t.Errorf("a lawful call: %v", l.broken)
		}
		x.NoGrad().Neg(a)
		if l.check("leak", []*tenon.Tensor{y}); len(l.broken) != 1 {
			t.Error("a tensor that nobody closes is not seen")
		}
	})
}
