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
