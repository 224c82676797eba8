package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A function whose backward pass is still possible keeps the path; once its tape is gone, nothing waits for it.
func TestPendingEndsWithTape(t *testing.T) {
	x := open(t)
	w := x.Full([]int{4}, 3, tenon.Float32).SetRequiresGrad(true)
	a := x.Ones([]int{4}, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(x.Mul(a, w), w) })
	r := compile.New()
	pending := func(want bool) {
		t.Helper()
		trees, ok := compile.TreesOf(x)
		if !ok || trees.Pending != want {
			t.Errorf("a backward pass is pending: %v, want %v", trees.Pending, want)
		}
	}
	var kept *tenon.Tensor
	last := 0
	for i := range 12 {
		y := f.Call(x, a)
		pending(true)
		v := x.MulS(y, 2) // of the function's tape
		y.Close()
		pending(true)
		v.Close()
		pending(false)
		must(t, r.Do(x, func(x *tenon.Exec) error {
			old := kept
			kept = x.Keep(x.AddS(x.Detach(w), 1))
			old.Close()
			return nil
		}))
		if got := read(t, x, kept); got != "[4 4 4 4]" {
			t.Errorf("run %d: %s", i, got)
		}
		trees, _ := compile.TreesOf(x)
		if i >= 6 && trees.Graphs != last {
			t.Errorf("run %d: %d recordings, %d before it", i, trees.Graphs, last)
		}
		last = trees.Graphs
	}
	if s := r.Stats(x); s.Replays < 6 {
		t.Errorf("%+v", s)
	}
	// of several, each counts
	y, z := f.Call(x, a), f.Call(x, a)
	pending(true)
	z.Close()
	pending(true)
	y.Close()
	pending(false)
	y, z = f.Call(x, a), f.Call(x, a)
	x.Scope(func(x *tenon.Exec) { must(t, x.Backward(x.Sum(z, nil))) })
	pending(true) // the pass through the first call may still come
	z.Close()
	y.Close()
	pending(false)
	w.SetGrad(nil)
	for _, v := range []*tenon.Tensor{w, a, kept} {
		v.Close()
	}
	must(t, compile.Reset(x))
}

// Later calls belong to the step of an earlier call as long as a backward pass through that call is possible: until the pass has run, or
// all tensors on the tape of the call are closed.
func TestPendingOfEachCall(t *testing.T) {
	x := open(t)
	w := x.Full([]int{4}, 3, tenon.Float32).SetRequiresGrad(true)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Exp(a) })
	sameGradient(t, x, w, func(x *tenon.Exec) {
		y, z := x.Sum(f.Call(x, w), nil), x.Sum(f.Call(x, w), nil)
		must(t, x.Backward(y))
		f.Call(x, w)
		must(t, x.Backward(z)) // the pass through this call has not run before
	})
}

// Runs whose tensors are closed without a backward pass are forgotten, though steps begin without looking at them.
func TestRunsWithoutBackwardAreForgotten(t *testing.T) {
	x := open(t)
	w := x.Full([]int{4}, 3, tenon.Float32).SetRequiresGrad(true)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Exp(a) })
	for range 20 {
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) { f.Call(x, w) })
	}
	if n := compile.PendingRuns(x); n > 2 {
		t.Errorf("%d runs wait for a backward pass", n)
	}
	must(t, compile.Reset(x))
}

// A function that takes a gradient of its own does not end the step of an earlier call, whose backward pass is still to come.
func TestPendingOutlastsGradientsWithin(t *testing.T) {
	x := open(t)
	w := x.Full([]int{4}, 0.25, tenon.Float32).SetRequiresGrad(true)
	a := x.Ones([]int{4}, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		v := x.AddS(a, 1).SetRequiresGrad(true)
		g, err := x.Grad([]*tenon.Tensor{x.Sum(x.Square(v), nil)}, []*tenon.Tensor{v})
		must(t, err)
		return x.Exp(x.Mul(g[0], w))
	})
	sameGradient(t, x, w, func(x *tenon.Exec) {
		y := x.Sum(f.Call(x, a), nil)
		z := x.Sum(f.Call(x, a), nil)
		must(t, x.Backward(x.Add(y, z)))
	})
}

// sameGradient runs a step once with its callables and regions disabled and four times as it is, and compares w's gradients.
func sameGradient(t *testing.T, x *tenon.Exec, w *tenon.Tensor, step func(x *tenon.Exec)) {
	t.Helper()
	var want string
	for run := range 5 {
		scoped := func(x *tenon.Exec) error {
			x.Scope(step)
			return nil
		}
		if run == 0 {
			must(t, compile.Disable(x, scoped))
			want = read(t, x, w.Grad())
		} else if must(t, scoped(x)); read(t, x, w.Grad()) != want {
			t.Errorf("run %d: the gradient is %s, want %s", run, read(t, x, w.Grad()), want)
		}
		w.SetGrad(nil)
	}
}

// A backward pass through the runs of several functions belongs to their step until it has gone through all of them, though a call after
// them had no work for a graph.
func TestPendingUntilThePassEnds(t *testing.T) {
	for name, last := range map[string]*compile.Callable[func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor]{
		"a view":   compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Reshape(a, 2, 2) }),
		"no graph": compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(a) }, compile.Opt{NoGraphs: true}),
	} {
		t.Run(name, func(t *testing.T) {
			x := open(t)
			w := x.Full([]int{4}, 0.25, tenon.Float32).SetRequiresGrad(true)
			f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Exp(a) })
			g := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Tanh(a) })
			sameGradient(t, x, w, func(x *tenon.Exec) { must(t, x.Backward(x.Sum(last.Call(x, g.Call(x, f.Call(x, w))), nil))) })
			sameGradient(t, x, w, func(x *tenon.Exec) { // two passes
				y, z := x.Sum(f.Call(x, w), nil), x.Sum(g.Call(x, w), nil)
				last.Call(x, w)
				must(t, x.Backward(z))
				must(t, x.Backward(y))
			})
		})
	}
}

// Nor does the step end where a backward pass within a region waits between the runs of two functions.
func TestPendingUntilThePassEndsWithinRegion(t *testing.T) {
	x := open(t)
	w := x.Full([]int{4}, 0.25, tenon.Float32).SetRequiresGrad(true)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Exp(a) })
	g := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Tanh(a) })
	r := compile.New()
	sameGradient(t, x, w, func(x *tenon.Exec) {
		y := f.Call(x, w)
		y.RegisterHook(func(x *tenon.Exec, grad *tenon.Tensor) *tenon.Tensor {
			_, err := x.Item(x.Sum(grad, nil))
			must(t, err)
			return nil
		})
		loss := x.Sum(g.Call(x, y), nil)
		must(t, r.Do(x, func(x *tenon.Exec) error { return x.Backward(loss) }))
	})
}
