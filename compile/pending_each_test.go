package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// Later calls belong to the step of an earlier call as long as a backward pass through that call is possible: until the pass has run, or
// all tensors on the tape of the call are closed.
func TestPendingOfEachCall(t *testing.T) {
	x := open(t)
	w := x.Full([]int{4}, 3, tenon.Float32).SetRequiresGrad(true)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Exp(a) })
	for range 3 {
		x.Scope(func(x *tenon.Exec) {
			y, z := x.Sum(f.Call(x, w), nil), x.Sum(f.Call(x, w), nil)
			must(t, x.Backward(y))
			f.Call(x, w)
			must(t, x.Backward(z)) // the pass through this call has not run before
		})
		w.SetGrad(nil)
	}
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
