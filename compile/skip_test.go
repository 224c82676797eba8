package compile_test

import (
	"math"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A backward pass that changes memory which only it uses is no change of an input that a graph must see, though another graph may have made
// that memory: nothing is skipped, and no advice about arguments is given.
func TestBackwardChangesItsOwnMemory(t *testing.T) {
	x := open(t)
	w := x.RandN([]int{1, 4}, tenon.Float32).SetRequiresGrad(true)
	u := x.RandN([]int{4, 4}, tenon.Float32).SetRequiresGrad(true)
	loss := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		v0, v1 := x.Expand(w, 4, 4), x.Linear(a, u, nil)
		o := x.AddS(v0, 1)
		v := x.Narrow(o, 1, 1, 2)
		x.AddInto(v, v, x.Narrow(v1, 1, 0, 2))
		l := x.Sum(x.Tanh(o), nil)
		p := x.Narrow(x.Cat([]*tenon.Tensor{o, v1}, 1), 1, 2, 4)
		return x.Add(l, x.Mean(x.Mul(x.Tanh(p), v0), nil))
	}
	grads := func(f func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor) (got string) {
		x.Scope(func(x *tenon.Exec) {
			must(t, x.Backward(f(x, x.Ones([]int{4, 4}, tenon.Float32))))
			got = read(t, x, w.Grad()) + read(t, x, u.Grad())
			w.SetGrad(nil)
			u.SetGrad(nil)
		})
		return got
	}
	want, c := grads(loss), compile.Func(loss)
	warned := warnings(func() {
		for run := range 6 {
			if got := grads(c.Call); got != want {
				t.Errorf("run %d: the gradients are %s, want %s", run, got, want)
			}
		}
	})
	if e := c.Explain(x); warned != "" || len(e.Skips) > 0 {
		t.Errorf("skips %v, warnings: %s", e.Skips, warned)
	}
	if s := c.Stats(x); s.Replays != 4 {
		t.Errorf("%+v", s)
	}
}

// A hook of a backward pass may change a tensor of the program, as the function may change what it captured.
func TestHookChangesCapturedTensor(t *testing.T) {
	x := openSim(t)
	w := x.RandN([]int{8, 8}, tenon.Float32).SetRequiresGrad(true)
	sum, in := x.Zeros(nil, tenon.Float32), x.RandN([]int{4, 8}, tenon.Float32)
	remove := w.RegisterHook(func(x *tenon.Exec, g *tenon.Tensor) *tenon.Tensor {
		x.NoGrad().AddInto(sum, sum, x.Mean(x.Abs(g), nil))
		return nil
	})
	defer remove()
	net := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		return x.Mean(x.Tanh(x.MatMul(a, w)), nil)
	}, compile.Opt{Must: true})
	want := 0.0
	for i := range 6 {
		must(t, x.Do(func(x *tenon.Exec) error {
			w.SetGrad(nil)
			return x.Backward(net.Call(x, x.AddS(in, float64(i))))
		}))
		v, err := x.Item(x.Mean(x.Abs(w.Grad()), nil))
		must(t, err)
		want += v
	}
	if got, err := x.Item(sum); err != nil || math.Abs(got-want) > 1e-6 {
		t.Errorf("the hook has added up %v, %v; want %v", got, err, want)
	}
	w.SetGrad(nil)
}
