package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A function that takes a gradient of its own does not end the step of an earlier call, whose backward pass is still to come.
func TestPendingOutlastsGradientsWithin(t *testing.T) {
	x := open(t)
	w := x.Full([]int{4}, 3, tenon.Float32).SetRequiresGrad(true)
	a := x.Ones([]int{4}, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		v := x.AddS(a, 1).SetRequiresGrad(true)
		g, err := x.Grad([]*tenon.Tensor{x.Sum(x.Square(v), nil)}, []*tenon.Tensor{v})
		must(t, err)
		return x.Exp(x.Mul(g[0], w))
	})
	for range 4 {
		x.Scope(func(x *tenon.Exec) {
			y := x.Sum(f.Call(x, a), nil)
			z := x.Sum(f.Call(x, a), nil)
			must(t, x.Backward(x.Add(y, z)))
		})
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
			w := x.Full([]int{4}, 3, tenon.Float32).SetRequiresGrad(true)
			f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Exp(a) })
			g := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Tanh(a) })
			for range 4 {
				x.Scope(func(x *tenon.Exec) { must(t, x.Backward(x.Sum(last.Call(x, g.Call(x, f.Call(x, w))), nil))) })
				x.Scope(func(x *tenon.Exec) { // two passes
					y, z := x.Sum(f.Call(x, w), nil), x.Sum(g.Call(x, w), nil)
					last.Call(x, w)
					must(t, x.Backward(z))
					must(t, x.Backward(y))
				})
				w.SetGrad(nil)
			}
		})
	}
}

// Nor does the step end where a backward pass within a region waits between the runs of two functions.
func TestPendingUntilThePassEndsWithinRegion(t *testing.T) {
	x := open(t)
	w := x.Full([]int{4}, 3, tenon.Float32).SetRequiresGrad(true)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Exp(a) })
	g := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Tanh(a) })
	r := compile.New()
	for range 4 {
		x.Scope(func(x *tenon.Exec) {
			y := f.Call(x, w)
			y.RegisterHook(func(x *tenon.Exec, grad *tenon.Tensor) *tenon.Tensor {
				_, err := x.Item(x.Sum(grad, nil))
				must(t, err)
				return nil
			})
			loss := x.Sum(g.Call(x, y), nil)
			must(t, r.Do(x, func(x *tenon.Exec) error { return x.Backward(loss) }))
		})
		w.SetGrad(nil)
	}
}
