package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A gradient that a backward pass passes to a function is copied, even if the forward pass reads the same tensor in place.
func TestIncomingGradients(t *testing.T) {
	x := open(t)
	w := x.Full([]int{4}, 3, tenon.Float32)
	a := x.Full([]int{4}, 2, tenon.Float32).SetRequiresGrad(true)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Add(x.Mul(a, a), w) }, compile.Opt{FixedStatic: true})
	run := func(g *tenon.Tensor, want string) {
		t.Helper()
		x.Scope(func(x *tenon.Exec) {
			y := f.Call(x, a)
			must(t, x.Backward(y, tenon.BackwardOpt{Gradient: g}))
			if got := read(t, x, a.Grad()); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			a.SetGrad(nil)
		})
	}
	for range 4 {
		run(w, "[12 12 12 12]")
	}
	trees, _ := compile.TreesOf(x)
	for i := range 4 {
		g := x.Full([]int{4}, float64(i), tenon.Float32)
		run(g, read(t, x, x.MulS(g, 4)))
		defer g.Close() // the next one has a different address
	}
	run(w, "[12 12 12 12]")
	if after, _ := compile.TreesOf(x); after.Graphs != trees.Graphs {
		t.Errorf("there were %d recordings, and are %d", trees.Graphs, after.Graphs)
	}
	must(t, compile.Reset(x))
}
