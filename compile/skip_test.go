package compile_test

import (
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
