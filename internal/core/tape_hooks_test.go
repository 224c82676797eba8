package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

func backward(t *testing.T, x *Exec, y *Tensor, opt BackwardOpt) {
	t.Helper()
	if err := x.Backward(y, opt); err != nil {
		t.Fatal(err)
	}
}

func sumOf(x *Exec, t *Tensor) *Tensor { return x.Sum(t, nil, SumOpt{}) }

func TestHookOfLeaf(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1, 2)
		var seen [][]float32
		remove := a.RegisterHook(func(x *Exec, g *Tensor) *Tensor {
			seen = append(seen, floats(t, x, g))
			return nil
		})
		double := a.RegisterHook(func(x *Exec, g *Tensor) *Tensor { return x.MulS(g, 2) })
		// Two uses of a: the hook sees their sum, once.
		backward(t, x, sumOf(x, x.Add(x.Mul(a, a), a)), BackwardOpt{})
		want(t, x, a.Grad(), 6, 10)
		if len(seen) != 1 || !slices.Equal(seen[0], []float32{3, 5}) {
			t.Errorf("the hook saw %v, want [[3 5]]", seen)
		}
		double()
		remove()
		remove()
		backward(t, x, sumOf(x, a), BackwardOpt{})
		want(t, x, a.Grad(), 7, 11)
		if len(seen) != 1 {
			t.Errorf("a removed hook saw %v", seen[1:])
		}
	})
}

func TestHookOfResult(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 3)
		b := x.MulS(a, 2)
		c := x.Add(x.Mul(b, b), b) // b is used three times
		var order []string
		b.RegisterHook(func(x *Exec, g *Tensor) *Tensor {
			order = append(order, fmt.Sprint("b", floats(t, x, g)))
			return x.MulS(g, 10)
		})
		b.RegisterHook(func(x *Exec, g *Tensor) *Tensor {
			order = append(order, fmt.Sprint("b again", floats(t, x, g)))
			return g
		})
		c.RegisterHook(func(x *Exec, g *Tensor) *Tensor {
			order = append(order, fmt.Sprint("c", floats(t, x, g)))
			return nil
		})
		b.RetainGrad()
		b.RetainGrad()
		if !b.RetainsGrad() || a.RetainsGrad() || b.Grad() != nil {
			t.Error("RetainsGrad is wrong")
		}
		backward(t, x, sumOf(x, c), BackwardOpt{RetainGraph: true})
		if got, want := fmt.Sprint(order), "[c[1] b[13] b again[130]]"; got != want {
			t.Errorf("hooks saw %s, want %s", got, want)
		}
		want(t, x, b.Grad(), 130)
		want(t, x, a.Grad(), 260)
		backward(t, x, sumOf(x, c), BackwardOpt{})
		want(t, x, b.Grad(), 260)
	})
}

// TestHooksOfGrad checks that Grad runs the hooks of its inputs, even where their own derivatives do not run, and otherwise only hooks on
// the way to them.
func TestHooksOfGrad(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, other := leafOf(x, 3), leafOf(x, 5)
		b := x.MulS(a, 2)
		c := x.Mul(b, other)
		b.RegisterHook(func(x *Exec, g *Tensor) *Tensor { return x.MulS(g, 7) })
		a.RegisterHook(func(x *Exec, g *Tensor) *Tensor { t.Error("a's hook ran, though no one asked for a"); return nil })
		other.RegisterHook(func(x *Exec, g *Tensor) *Tensor { t.Error("other's hook ran"); return nil })
		g, err := x.Grad([]*Tensor{c}, []*Tensor{b}, GradOpt{RetainGraph: true})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, g[0], 35)
		d := leafOf(x, 1)
		d.RegisterHook(func(x *Exec, g *Tensor) *Tensor { return x.Neg(g) })
		g, err = x.Grad([]*Tensor{x.Mul(c, d)}, []*Tensor{d, b}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, g[0], -30)
		want(t, x, g[1], 35)
	})
}

func TestRetainGradInPlace(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1, 2)
		b := x.MulS(a, 1)
		b.RetainGrad()
		b.RegisterHook(func(x *Exec, g *Tensor) *Tensor { want(t, x, g, 15, 15); return nil }) // of the value before
		x.MulInto(b, b, From(x, []float32{3, 3}))
		saw := false
		b.RegisterHook(func(x *Exec, g *Tensor) *Tensor { saw = true; want(t, x, g, 5, 5); return nil })
		backward(t, x, sumOf(x, x.MulS(b, 5)), BackwardOpt{})
		want(t, x, b.Grad(), 5, 5)
		want(t, x, a.Grad(), 15, 15)
		if !saw {
			t.Error("the later hook did not run")
		}
	})
}

func TestHookRefusals(t *testing.T) {
	settled(t)
	opened(t, func(t *testing.T, x *Exec) {
		plain := From(x, []float32{1})
		wantError(t, Try(func() { plain.RegisterHook(nil) }), fault.Invalid, "doesn't require gradient", "hooks_test.go")
		wantError(t, Try(func() { plain.RetainGrad() }), fault.Invalid, "does not require grad")
		wantError(t, Try(func() { plain.RegisterPostAccumulateGradHook(nil) }), fault.Invalid, "doesn't require gradient")
		a := leafOf(x, 1, 2)
		wantError(t, Try(func() { x.MulS(a, 2).RegisterPostAccumulateGradHook(nil) }), fault.Invalid, "non-leaf")
		a.RetainGrad()
		for text, h := range map[string]func(x *Exec, g *Tensor) *Tensor{
			"changed the size of value": func(x *Exec, g *Tensor) *Tensor { return x.Select(g, 0, 0) },
			"changed the type of value": func(x *Exec, g *Tensor) *Tensor { return x.ToDType(g, dtype.Float64) },
			"was closed":                func(x *Exec, g *Tensor) *Tensor { y := x.Neg(g); y.Close(); return y },
			"must match the size":       func(x *Exec, g *Tensor) *Tensor { return x.Add(g, x.Zeros([]int{3}, dtype.Float32)) },
		} {
			before := live.Load()
			remove := a.RegisterHook(h)
			x.Scope(func(x *Exec) {
				err := x.Backward(sumOf(x, a), BackwardOpt{})
				wantError(t, err, fault.KindOf(err), text, "a hook of a leaf failed")
			})
			remove()
			if n := live.Load() - before; n != 0 || a.Grad() != nil {
				t.Errorf("%s: %d storages are left, gradient %v", text, n, a.Grad())
			}
		}
	})
}

func TestPostAccumulateHook(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1, 2)
		remove := a.RegisterPostAccumulateGradHook(func(x *Exec, p *Tensor) {
			if p != a || x.GradEnabled() {
				t.Error("the hook gets another tensor, or an Exec that records")
			}
			x.AddInto(x.Detach(p), x.Detach(p), x.MulS(p.Grad(), -0.5)) // a step of gradient descent
			p.SetGrad(nil)
		})
		backward(t, x, sumOf(x, x.Mul(a, a)), BackwardOpt{})
		want(t, x, a, 0, 0)
		if a.Grad() != nil {
			t.Error("the gradient is still there")
		}
		remove()
		a.RegisterPostAccumulateGradHook(func(x *Exec, p *Tensor) { x.Add(p, x.Zeros([]int{3}, dtype.Float32)) })
		wantError(t, x.Backward(sumOf(x, a), BackwardOpt{}), fault.Invalid, "a post-accumulate hook failed", "must match")
	})
}

// TestSavedTensorHooks keeps saved tensors as bytes on the host and restores them, and checks that the gradients do not change and that the
// device holds none of them in between.
func TestSavedTensorHooks(t *testing.T) {
	settled(t)
	opened(t, func(t *testing.T, x *Exec) {
		type packed struct {
			data  []byte
			dt    dtype.DType
			shape []int
		}
		packs, unpacks := 0, 0
		pack := func(x *Exec, t *Tensor) any {
			packs++
			b, err := x.Bytes(t)
			if err != nil {
				panic(err)
			}
			return packed{b, t.DType(), slices.Clone(t.Shape())}
		}
		unpack := func(x *Exec, v any) *Tensor {
			unpacks++
			p := v.(packed)
			return x.FromBytes(p.data, p.dt, p.shape...)
		}
		a, b := leafOf(x, 2, 3), leafOf(x, 5, 7)
		x.NoGrad() // the hooks run on it
		before, derived := live.Load(), len(x.s.derived)
		var y *Tensor
		x.SavedTensorHooks(pack, unpack, func(hooked *Exec) {
			y = hooked.Within(func(x *Exec) *Tensor { return sumOf(x, x.Mul(x.Mul(a, b), b)) })
		})
		if n := live.Load() - before; n != 1 {
			t.Errorf("%d storages live for the result alone", n)
		}
		if len(x.s.derived) != derived {
			t.Errorf("the session keeps %d derived Execs, before %d", len(x.s.derived), derived)
		}
		backward(t, x, y, BackwardOpt{RetainGraph: true})
		want(t, x, a.Grad(), 25, 49)
		want(t, x, b.Grad(), 20, 42)
		if packs != 4 || unpacks != 4 {
			t.Errorf("%d packs and %d unpacks, want 4 each", packs, unpacks)
		}
		// Second derivatives flow through unpacked tensors.
		g, err := x.Grad([]*Tensor{y}, []*Tensor{a}, GradOpt{CreateGraph: true})
		if err != nil {
			t.Fatal(err)
		}
		gg, err := x.Grad([]*Tensor{sumOf(x, g[0])}, []*Tensor{b}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, gg[0], 10, 14)
	})
}

// TestSavedTensorOwnership checks that a tensor that pack returns belongs to the graph, whether it is new, the argument itself or somebody
// else's.
func TestSavedTensorOwnership(t *testing.T) {
	settled(t)
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 2, 3)
		mine := From(x, []float32{10, 10})
		for name, c := range map[string]struct {
			pack func(x *Exec, t *Tensor) any
			held int64
			grad []float32
		}{
			"itself": {func(x *Exec, t *Tensor) any { return t }, 0, []float32{4, 6}},
			"new":    {func(x *Exec, t *Tensor) any { return x.MulS(t, 2) }, 2, []float32{8, 12}},
			"other":  {func(x *Exec, t *Tensor) any { return mine }, 0, []float32{20, 20}},
		} {
			x.Scope(func(x *Exec) {
				before := live.Load()
				var y *Tensor
				x.SavedTensorHooks(c.pack, func(x *Exec, v any) *Tensor { return v.(*Tensor) }, func(x *Exec) { y = x.Mul(a, a) })
				if n := live.Load() - before; n != 1+c.held {
					t.Errorf("%s: %d storages live, want %d", name, n, 1+c.held)
				}
				g, err := x.Grad([]*Tensor{sumOf(x, y)}, []*Tensor{a}, GradOpt{})
				if err != nil {
					t.Fatal(err)
				}
				want(t, x, g[0], c.grad...)
				g[0].Close()
			})
		}
		want(t, x, mine, 10, 10)
	})
}

func TestSavedTensorHookFailures(t *testing.T) {
	settled(t)
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 2, 3)
		same := func(x *Exec, v any) *Tensor { return v.(*Tensor) }
		for text, pack := range map[string]func(x *Exec, t *Tensor) any{
			"modifying its input in place": func(x *Exec, t *Tensor) any { x.AddInto(t, t, t); return t },
			"must match the size":          func(x *Exec, t *Tensor) any { return x.Add(t, x.Zeros([]int{3}, dtype.Float32)) },
			"pack hook returned":           func(x *Exec, t *Tensor) any { t.Close(); return t },
		} {
			before := live.Load()
			x.SavedTensorHooks(pack, same, func(x *Exec) {
				err := Try(func() { x.Mul(a, a) })
				wantError(t, err, fault.KindOf(err), text)
			})
			if n := live.Load() - before; n != 0 || x.s.depth != 0 {
				t.Errorf("%s: %d storages are left, depth %d", text, n, x.s.depth)
			}
		}
		for text, unpack := range map[string]func(x *Exec, v any) *Tensor{
			"no tensor":           func(x *Exec, v any) *Tensor { return nil },
			"float64[2]":          func(x *Exec, v any) *Tensor { return x.ToDType(v.(*Tensor), dtype.Float64) },
			"float32[] ":          func(x *Exec, v any) *Tensor { return x.Select(v.(*Tensor), 0, 0) },
			"must match the size": func(x *Exec, v any) *Tensor { return x.Add(v.(*Tensor), x.Zeros([]int{3}, dtype.Float32)) },
		} {
			x.Scope(func(x *Exec) {
				x.SavedTensorHooks(func(x *Exec, t *Tensor) any { return t }, unpack, func(x *Exec) {
					err := x.Backward(sumOf(x, x.Mul(a, a)), BackwardOpt{})
					wantError(t, err, fault.KindOf(err), text, "the derivative of Mul failed")
				})
			})
		}
		if a.Grad() != nil {
			t.Error("a failed pass accumulated")
		}
	})
}

// rebuilt computes its gradient by its own backward pass over a graph that it builds again, as checkpointing does.
type rebuilt struct {
	depth int
	log   *[]int
}

func (rebuilt) Forward(x *Exec, c *FunctionContext, in ...*Tensor) []*Tensor {
	c.Save(in[0])
	return []*Tensor{x.Mul(in[0], in[0])}
}

func (f rebuilt) Backward(x *Exec, c *FunctionContext, g ...*Tensor) ([]*Tensor, error) {
	*f.log = append(*f.log, f.depth)
	x = x.EnableGrad()
	in := x.Detach(c.Saved()[0]).SetRequiresGrad(true)
	y := in
	if f.depth > 0 {
		y = x.Apply(rebuilt{f.depth - 1, f.log}, in)[0]
	} else {
		y = x.Mul(in, in)
	}
	if err := x.Backward(y, BackwardOpt{Gradient: g[0]}); err != nil {
		return nil, err
	}
	return []*Tensor{x.Clone(in.Grad())}, nil
}

func TestReentrantBackward(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		var log []int
		a := leafOf(x, 3, 4)
		y := x.Apply(rebuilt{200, &log}, a)[0]
		backward(t, x, sumOf(x, x.MulS(y, 2)), BackwardOpt{})
		want(t, x, a.Grad(), 12, 16)
		if len(log) != 201 {
			t.Errorf("%d nested passes, want 201", len(log))
		}
	})
}

// TestReentrantSameLeaf checks that a nested pass may add to the same leaf.
func TestReentrantSameLeaf(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 3)
		b := x.MulS(a, 2)
		b.RegisterHook(func(x *Exec, g *Tensor) *Tensor {
			y := x.EnableGrad()
			if err := y.Backward(y.MulS(a, 100), BackwardOpt{}); err != nil {
				t.Error(err)
			}
			return nil
		})
		backward(t, x, b, BackwardOpt{})
		want(t, x, a.Grad(), 102)
	})
}

func TestQueueCallback(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		wantError(t, Try(func() { x.QueueCallback(func(*Exec) {}) }), fault.Invalid,
			"Final callbacks can only be installed during backward pass")
		a := leafOf(x, 3)
		ran := 0
		a.RegisterHook(func(hx *Exec, g *Tensor) *Tensor {
			hx.QueueCallback(func(x *Exec) {
				ran++
				want(t, x, a.Grad(), 6)
			})
			return nil
		})
		backward(t, x, x.Mul(a, a), BackwardOpt{})
		if ran != 1 {
			t.Errorf("the callback ran %d times", ran)
		}
		wantError(t, x.Backward(func() *Tensor {
			b := x.MulS(a, 2)
			b.RegisterHook(func(hx *Exec, g *Tensor) *Tensor {
				hx.QueueCallback(func(x *Exec) { x.fail("Test", fault.Invalid, nil, "callback") })
				return nil
			})
			return b
		}(), BackwardOpt{}), fault.Invalid, "callback")
	})
}

// TestHookClosesRoot checks that hooks may close tensors that the pass works on.
func TestHookClosesRoot(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 3)
		y := x.Mul(x.Mul(a, a), a)
		y.RegisterHook(func(x *Exec, g *Tensor) *Tensor { y.Close(); return nil })
		backward(t, x, y, BackwardOpt{})
		want(t, x, a.Grad(), 27)
	})
}

// TestClosedLeaf checks that a leaf that was closed while its graph lives on takes no gradient.
func TestClosedLeaf(t *testing.T) {
	settled(t)
	opened(t, func(t *testing.T, x *Exec) {
		b := leafOf(x, 2)
		y := x.Within(func(x *Exec) *Tensor { return x.Mul(leafOf(x, 3), b) })
		before := live.Load()
		backward(t, x, y, BackwardOpt{})
		want(t, x, b.Grad(), 3)
		if n := live.Load() - before; n != 0 { // the saved leaf was freed, b's gradient was made
			t.Errorf("%d storages more", n)
		}
	})
}

// TestHookStreams checks that hooks run on the stream of the tensor's operation or, for a leaf, of its first use.
func TestHookStreams(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		st, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		side := x.On(st)
		for _, manual := range []bool{false, true} {
			a := leafOf(x, 2, 3)
			first, second := side, x
			if manual {
				first, second = side.ManualStreams(), x.ManualStreams()
				if err := first.WaitStream(x.Stream()); err != nil {
					t.Fatal(err)
				}
			}
			b := first.MulS(a, 2)
			if manual {
				if err := second.WaitStream(st); err != nil {
					t.Fatal(err)
				}
			}
			c := second.Mul(b, a)
			var at []*rt.Stream
			note := func(x *Exec, g *Tensor) *Tensor { at = append(at, x.Stream()); return nil }
			a.RegisterHook(note)
			b.RegisterHook(note)
			c.RegisterHook(note)
			if err := second.Backward(second.Sum(c, nil, SumOpt{}), BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(at, []*rt.Stream{x.Stream(), st, st}) {
				t.Errorf("hooks ran on %v", at)
			}
			got, err := Read[float32](second, a.Grad())
			if err != nil || !slices.Equal(got, []float32{8, 12}) {
				t.Errorf("gradient %v, %v", got, err)
			}
		}
	})
}

// TestGradientAcrossDevices checks that gradients cross devices with the copies, and accumulate on the leaf's device.
func TestGradientAcrossDevices(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		host := x.Host()
		a, b := From(host, []float32{1, 2}).SetRequiresGrad(true), leafOf(x, 3, 4)
		for i := range 2 {
			y := x.Mul(x.Mul(x.To(a, ToOpt{}), b), x.To(a, ToOpt{}))
			loss := host.Sum(host.To(y, ToOpt{}), nil, SumOpt{})
			backward(t, host, loss, BackwardOpt{})
			k := float32(i + 1)
			want(t, host, a.Grad(), 6*k, 16*k)
			want(t, x, b.Grad(), 1*k, 4*k)
			if a.Grad().Device() != a.Device() || b.Grad().Device() != x.Device() {
				t.Error("a gradient is on another device than its leaf")
			}
		}
	})
}

// TestTemporariesOfTheFunnel checks that the temporaries of autocast and of host scalars are closed with the call.
func TestTemporariesOfTheFunnel(t *testing.T) {
	settled(t)
	opened(t, func(t *testing.T, x *Exec) {
		a, w := From(x, []float32{1, 2, 3, 4}, 2, 2), From(x, []float32{1, 0, 0, 1}, 2, 2)
		before := live.Load()
		y := x.Autocast(dtype.BFloat16).MM(a, w)
		if n := live.Load() - before; n != 1 || y.DType() != dtype.BFloat16 {
			t.Errorf("%d storages for one %v result", n, y.DType())
		}
		s := x.Host().Full(nil, 3, dtype.Float32)
		before = live.Load()
		z := x.Add(a, s)
		want(t, x, z, 4, 5, 6, 7)
		if n := live.Load() - before; n != 1 {
			t.Errorf("%d storages for one result", n)
		}
		if x.Device().Host {
			return
		}
		s.SetRequiresGrad(true)
		wantError(t, Try(func() { x.Add(a, s) }), fault.Invalid, "requires grad")
		want(t, x, x.NoGrad().Add(a, s), 4, 5, 6, 7)
	})
}

func TestFunctionMisuse(t *testing.T) {
	settled(t)
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 3)
		before := live.Load()
		for text, f := range map[string]Function{
			"nil tensor was given to Save": funcOf(func(x *Exec, c *FunctionContext, in ...*Tensor) []*Tensor {
				c.Save(in[0], nil)
				return []*Tensor{x.Neg(in[0])}
			}),
			"no tensor": funcOf(func(x *Exec, c *FunctionContext, in ...*Tensor) []*Tensor { return []*Tensor{x.Neg(in[0]), nil} }),
		} {
			wantError(t, Try(func() { x.Apply(f, a) }), fault.Invalid, text)
			if n := live.Load() - before; n != 0 {
				t.Errorf("%s: %d storages are left", text, n)
			}
		}
		// A tensor that Forward returns without having made it gets a handle of its own.
		other := From(x, []float32{5})
		y := x.Apply(funcOf(func(x *Exec, c *FunctionContext, in ...*Tensor) []*Tensor { return []*Tensor{other, in[0]} }), a)
		if y[0] == other || y[1] == a || other.RequiresGrad() || !y[0].RequiresGrad() {
			t.Error("a result is somebody else's handle")
		}
	})
}

// funcOf is a Function without a derivative.
type funcOf func(x *Exec, c *FunctionContext, in ...*Tensor) []*Tensor

func (f funcOf) Forward(x *Exec, c *FunctionContext, in ...*Tensor) []*Tensor { return f(x, c, in...) }

func (funcOf) Backward(x *Exec, c *FunctionContext, g ...*Tensor) ([]*Tensor, error) {
	return nil, errors.New("no derivative")
}
