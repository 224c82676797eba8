package conformance

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

var _ = registerTrees(
	treeTest{name: "TREE-001_test_run_simple", run: testTreeRunSimple},
)

func testTreeRunSimple(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(x.Mul(a, a), a) }, o)
	for _, n := range []int{4, 5} {
		a := x.RandN([]int{n, n}, tenon.Float32)
		want := x.Mul(x.Mul(a, a), a)
		for range 2 {
			x.Scope(func(x *tenon.Exec) { check(t, "equal to eager", equal(t, x, f.Call(x, a), want), true) })
		}
	}
	got := descendants(t, x)
	if len(got) != 2 || got[0] != 0 || got[1] != 0 {
		t.Errorf("descendants of roots are %v; want [0 0]", got)
	}
}
