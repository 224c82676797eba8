package core

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

// opened runs f on the processor, on a simulated device and, if there is one, on a GPU, and checks that f left nothing behind.
func opened(t *testing.T, f func(t *testing.T, x *Exec)) {
	t.Helper()
	kinds := []rt.Selector{{Kind: rt.CPU}, {Kind: rt.Sim}}
	if rt.GPUs() > 0 {
		kinds = append(kinds, rt.Selector{Kind: rt.CUDA})
	}
	for _, sel := range kinds {
		name := map[rt.Kind]string{rt.CPU: "cpu", rt.Sim: "sim", rt.CUDA: "cuda"}[sel.Kind]
		t.Run(name, func(t *testing.T) {
			host, err := rt.Host()
			if err != nil {
				t.Fatal(err)
			}
			dev, err := rt.Open(sel)
			if err != nil {
				t.Fatal(err)
			}
			before := live.Load()
			x := New(dev, host)
			x.Scope(func(x *Exec) { f(t, x) })
			if n := live.Load() - before; n > 0 { // loose storages of other tests may have been collected
				t.Errorf("%d storages are left after the scope", n)
			}
			if x.s.depth != 0 || x.s.scope != nil || len(x.s.doing) != 0 {
				t.Errorf("the session is left at depth %d", x.s.depth)
			}
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func floats(t *testing.T, x *Exec, a *Tensor) []float32 {
	t.Helper()
	v, err := Read[float32](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func want(t *testing.T, x *Exec, a *Tensor, w ...float32) {
	t.Helper()
	if a == nil {
		t.Fatalf("got nil, want %v", w)
	}
	got := floats(t, x, a)
	if len(got) != len(w) {
		t.Fatalf("got %v, want %v", got, w)
	}
	for i := range w {
		if math.Abs(float64(got[i]-w[i])) > 1e-6*math.Abs(float64(w[i])) {
			t.Fatalf("got %v, want %v", got, w)
		}
	}
}

func wantError(t *testing.T, err error, kind fault.Kind, parts ...string) {
	t.Helper()
	var e *fault.Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v, want one of kind %v", err, kind)
	}
	if e.Kind != kind {
		t.Errorf("got kind %v, want %v: %v", e.Kind, kind, err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error lacks %q: %v", p, err)
		}
	}
}

func leafOf(x *Exec, v ...float32) *Tensor { return From(x, v).SetRequiresGrad(true) }

func TestIntegersRequireNoGrad(t *testing.T) {
	x := processor(t)
	n := From(x, []int64{1})
	wantError(t, Try(func() { n.SetRequiresGrad(true) }), fault.Invalid, "SetRequiresGrad: ",
		"only tensors of floating point or complex dtype can require gradients, not int64; convert it with x.ToDType")
	wantError(t, Try(func() { x.Multinomial(n, 1, MultinomialOpt{}) }), fault.Invalid,
		"multinomial only supports floating-point dtypes for input, got: int64; convert it with x.ToDType")
}

// A gradient of another shape is refused, and the leaf keeps the one that it has.
func TestSetGradRefuses(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, g := leafOf(x, 1, 2), From(x, []float32{5, 6})
		a.SetGrad(g)
		wantError(t, Try(func() { a.SetGrad(From(x, []float32{1, 2, 3})) }), fault.Invalid, "SetGrad: ",
			"the gradient float32[3] on ", " does not fit the tensor float32[2] on ", "; it must have the same shape and device")
		want(t, x, a.Grad(), 5, 6)
	})
}

func TestAccumulate(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1, 2, 3)
		for i := range 3 {
			y := x.Sum(x.Mul(a, a), nil, SumOpt{})
			if err := x.Backward(y, BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			k := float32(i + 1)
			want(t, x, a.Grad(), 2*k, 4*k, 6*k)
		}
	})
}

// TestSignedZeroIsKept checks that a number that is a negative zero is kept for the derivative: the gradient of b in a + alpha·b is
// g·alpha.
func TestSignedZeroIsKept(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		b := leafOf(x, 1, 2)
		y := x.AddScaled(leafOf(x, 3, 4), b, math.Copysign(0, -1))
		if err := x.Backward(x.Sum(y, nil, SumOpt{}), BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		for _, g := range floats(t, x, b.Grad()) {
			if g != 0 || !math.Signbit(float64(g)) {
				t.Errorf("the gradient is %v, want -0", g)
			}
		}
	})
}

// TestSharedGradient checks that a gradient that reaches several inputs through one handle is not freed by the first.
func TestSharedGradient(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, b := leafOf(x, 1, 2), leafOf(x, 3, 4)
		y := x.Add(x.Add(a, b), a)
		if err := x.Backward(y, BackwardOpt{Gradient: From(x, []float32{1, 10})}); err != nil {
			t.Fatal(err)
		}
		want(t, x, a.Grad(), 2, 20)
		want(t, x, b.Grad(), 1, 10)
	})
}

func TestBroadcastGradient(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3).SetRequiresGrad(true)
		b := leafOf(x, 1, 2, 4)
		y := x.Sum(x.Div(a, b), nil, SumOpt{})
		if err := x.Backward(y, BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		want(t, x, a.Grad(), 1, 0.5, 0.25, 1, 0.5, 0.25)
		want(t, x, b.Grad(), -5, -7.0/4, -9.0/16)
	})
}

func TestDoubleBackward(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 2, 3)
		y := x.Sum(x.Mul(x.Mul(a, a), a), nil, SumOpt{})
		g, err := x.Grad([]*Tensor{y}, []*Tensor{a}, GradOpt{CreateGraph: true})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, g[0], 12, 27)
		gg, err := x.Grad([]*Tensor{x.Sum(g[0], nil, SumOpt{})}, []*Tensor{a}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, gg[0], 12, 18)
		if a.Grad() != nil {
			t.Error("Grad accumulated into a leaf")
		}
	})
}

func TestViewsGradient(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3).SetRequiresGrad(true)
		y := x.Slice(x.Transpose(a, 0, 1), 0, 1, 3, 1) // columns 1 and 2
		y = x.Mul(y, y)
		y = x.Select(y, 0, 0)
		if err := x.Backward(x.Sum(y, nil, SumOpt{}), BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		want(t, x, a.Grad(), 0, 4, 0, 0, 10, 0)
		b := leafOf(x, 1, 2)
		e := x.Expand(x.View(b, 2, 1), 2, 3)
		if err := x.Backward(x.Sum(x.Mul(e, a), nil, SumOpt{}), BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		want(t, x, b.Grad(), 6, 15)
	})
}

func TestBackwardTwice(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1)
		y := x.Mul(a, a)
		if err := x.Backward(y, BackwardOpt{RetainGraph: true}); err != nil {
			t.Fatal(err)
		}
		if err := x.Backward(y, BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		want(t, x, a.Grad(), 4)
		err := x.Backward(y, BackwardOpt{})
		wantError(t, err, fault.Invalid, "a second time", "autograd_test.go")
	})
}

func TestInPlaceRefusals(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1, 2)
		wantError(t, Try(func() { x.AddInto(a, a, a) }), fault.Invalid, "leaf", "in-place")
		b := x.MulS(a, 2)
		y := x.Mul(b, b)
		x.NoGrad().AddInto(b, b, b)
		wantError(t, x.Backward(x.Sum(y, nil, SumOpt{}), BackwardOpt{}), fault.Invalid, "modified by an inplace operation", "Mul")
		e := x.Expand(x.Zeros([]int{1}, dtype.Float32), 3)
		wantError(t, Try(func() { x.AddInto(e, e, e) }), fault.Invalid, "repeats elements")
		z := x.Zeros([]int{4}, dtype.Float32)
		wantError(t, Try(func() { x.AddInto(x.Slice(z, 0, 0, 3, 1), x.Slice(z, 0, 1, 4, 1), x.Slice(z, 0, 1, 4, 1)) }),
			fault.Invalid, "overlaps")
	})
}

func TestInPlaceGradient(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1, 2)
		b := x.MulS(a, 2)
		x.MulInto(b, b, From(x, []float32{5, 7}))
		if err := x.Backward(x.Sum(b, nil, SumOpt{}), BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		want(t, x, a.Grad(), 10, 14)
	})
}

type square struct{ fail bool }

func (square) Forward(x *Exec, c *FunctionContext, in ...*Tensor) []*Tensor {
	c.Save(in[0])
	return []*Tensor{x.Mul(in[0], in[0])}
}

func (s square) Backward(x *Exec, c *FunctionContext, g ...*Tensor) ([]*Tensor, error) {
	if s.fail {
		return nil, errors.New("no luck")
	}
	return []*Tensor{x.Mul(x.MulS(g[0], 2), c.Saved()[0])}, nil
}

func TestFunction(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 3, 4)
		y := x.Apply(square{}, a)[0]
		want(t, x, y, 9, 16)
		g, err := x.Grad([]*Tensor{x.Sum(y, nil, SumOpt{})}, []*Tensor{a}, GradOpt{CreateGraph: true})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, g[0], 6, 8)
		gg, err := x.Grad([]*Tensor{x.Sum(g[0], nil, SumOpt{})}, []*Tensor{a}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, gg[0], 2, 2)
		z := x.Apply(square{fail: true}, a)[0]
		wantError(t, x.Backward(x.Sum(z, nil, SumOpt{}), BackwardOpt{}), fault.Invalid, "no luck", "Function")
	})
}

func TestUnused(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, b := leafOf(x, 1), leafOf(x, 2)
		y := x.Mul(a, a)
		_, err := x.Grad([]*Tensor{y}, []*Tensor{b}, GradOpt{RetainGraph: true})
		wantError(t, err, fault.Invalid, "appears to not have been used")
		g, err := x.Grad([]*Tensor{y}, []*Tensor{b, a}, GradOpt{AllowUnused: true})
		if err != nil || g[0] != nil {
			t.Fatal(g, err)
		}
		want(t, x, g[1], 2)
	})
}

func TestScopes(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1, 2})
		before := live.Load()
		y := x.Within(func(x *Exec) *Tensor { return x.Add(x.Add(a, a), a) })
		if n := live.Load() - before; n != 1 {
			t.Errorf("%d storages for one result", n)
		}
		want(t, x, y, 3, 6)
		err := Try(func() {
			x.Within(func(x *Exec) *Tensor { x.Add(a, a); return x.Add(a, x.Zeros([]int{3}, dtype.Float32)) })
		})
		wantError(t, err, fault.Invalid, "must match the size")
		if n := live.Load() - before; n != 1 {
			t.Errorf("%d storages are left after the panic", n-1)
		}
		y.Close()
		y.Close()
		wantError(t, Try(func() { x.Add(y, a) }), fault.Closed, "closed")
	})
}

// TestGraphDropped checks that the saved tensors of a graph that nobody can reach any more are freed with its last handle.
func TestGraphDropped(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1, 2)
		before := live.Load()
		y := x.Within(func(x *Exec) *Tensor {
			y := x.Mul(a, a)
			for range 1000 {
				y = x.Mul(y, a)
			}
			return y
		})
		if n := live.Load() - before; n < 1000 {
			t.Errorf("only %d storages live with the graph", n)
		}
		y.Close()
		if n := live.Load() - before; n != 0 {
			t.Errorf("%d storages are left after the graph", n)
		}
	})
}

func TestLooseTensorsAreCollected(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Memory: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	x := New(dev, host)
	// 100 dropped tensors of 32 MiB do not fit into 256 MiB unless garbage is collected.
	for range 100 {
		x.Empty([]int{8 << 20}, dtype.Float32)
	}
	runtime.GC()
	time.Sleep(10 * time.Millisecond)
	if _, err := dev.FreeLoose(); err != nil {
		t.Fatal(err)
	}
}

func TestStreamsAreOrdered(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	x := New(dev, host)
	x.Scope(func(x *Exec) {
		st, err := dev.Stream()
		if err != nil {
			t.Fatal(err)
		}
		side := x.On(st)
		a := From(x, []float32{1, 2, 3})
		for range 50 {
			b := side.MulS(a, 2)                                  // reads after a write on another stream
			x.AddInto(a, a, b)                                    // reads b, and writes after a read on another stream
			side.NoGrad().AddInto(b, a, a)                        // and back
			want(t, side, x.MulS(b, 0.5), floats(t, x, a)...)     // equal at every turn
			x.MulInto(a, a, From(side, []float32{0.4, 0.4, 0.4})) // keeps the size
		}
	})
}

func TestGradNeedsOneForEachOutput(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := x.Ones([]int{2}, dtype.Float32).SetRequiresGrad(true)
		y := x.Sum(a, nil, SumOpt{})
		for _, grads := range [][]*Tensor{{nil}, {nil, nil, nil}} {
			_, err := x.Grad([]*Tensor{y, y}, []*Tensor{a}, GradOpt{Gradients: grads})
			wantError(t, err, fault.Invalid, "got 2 tensors and", "autograd_test.go")
		}
	})
}
