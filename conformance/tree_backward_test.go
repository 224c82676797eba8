package conformance

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

var _ = registerTrees(
	treeTest{name: "TREE-015_test_forward_with_skipped_cudagraphed_backward", run: testTreeSkippedBackward},
	treeTest{name: "TREE-016_test_forward_backward_cache_hit_forward_miss_backward", run: testTreeSkippedForward},
	treeTest{name: "TREE-017_test_backward_gets_cached_cudagraphs", run: testTreeProcessor},
	treeTest{name: "TREE-018_test_forward_backward_not_called", run: testTreeBackwardNotCalled, both: true},
	treeTest{name: "TREE-034_test_amp_cache_disabled", run: testTreeCastCache},
	treeTest{name: "TREE-035_test_remove_hooks_on_cached_tensors", run: testTreeHooks},
	treeTest{name: "TREE-037_test_accumulate_grad", run: testTreeAccumulate},
)

// withGrad returns random elements that require grad.
func withGrad(x *tenon.Exec, shape ...int) *tenon.Tensor {
	return x.Rand(shape, tenon.Float32).SetRequiresGrad(true)
}

// isGradient fails unless a has the gradient of sum(f(a)) without graphs.
func isGradient(t *testing.T, x *tenon.Exec, a *tenon.Tensor, f treeFn) {
	t.Helper()
	x.Scope(func(x *tenon.Exec) {
		b := x.Detach(a).SetRequiresGrad(true)
		must(t, x.Backward(x.Sum(f(x, b), nil)))
		if a.Grad() == nil || !equal(t, x, a.Grad(), b.Grad()) {
			t.Error("the gradient is not that without a graph")
		}
	})
}

func testTreeSkippedBackward(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(cubeOf, o)
	for range 3 {
		x.Scope(func(x *tenon.Exec) {
			a := withGrad(x, 20, 20)
			loss := x.Sum(f.Call(x, a), nil)
			check(t, "a backward pass is to come", treesOf(t, x).Pending, true)
			must(t, compile.Frozen(x, func(x *tenon.Exec) error { return x.Backward(loss) }))
			check(t, "a backward pass is to come after it", treesOf(t, x).Pending, false)
			isGradient(t, x, a, cubeOf)
		})
	}
	check(t, "graphs", treesOf(t, x).Graphs, 1)
}

func testTreeSkippedForward(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	f := compile.Func(func(x *tenon.Exec, a, n *tenon.Tensor) *tenon.Tensor {
		x.AddSInto(n, n, 1)
		return cubeOf(x, a)
	}, o)
	for i := range 4 {
		x.Scope(func(x *tenon.Exec) {
			a, n := withGrad(x, 20, 20), x.Zeros([]int{1}, tenon.Float32)
			must(t, x.Backward(x.Sum(f.Call(x, a, n), nil)))
			isGradient(t, x, a, cubeOf)
			allAre(t, x, fmt.Sprint("the count of run ", i), n, 1)
		})
	}
	w.want(t, 1, mutatedText)
	trees := treesOf(t, x)
	check(t, "graphs", trees.Graphs, 0)
	check(t, "roots", len(trees.Roots), 0)
	check(t, "skips", trees.Skips, 1)
	check(t, "a backward pass is to come", trees.Pending, false)
	check(t, "private segments", privateSegments(t, x), 0)
}

func testTreeProcessor(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(cubeOf, o)
	h := x.Host()
	for range 4 {
		h.Scope(func(h *tenon.Exec) {
			a := withGrad(h, 20, 20)
			must(t, h.Backward(h.Sum(f.Call(h, a), nil)))
			isGradient(t, h, a, cubeOf)
		})
	}
	check(t, "there are recordings of the device", hasTrees(x), false)
	check(t, "there are recordings of the processor", hasTrees(h), false)
}

func testTreeBackwardNotCalled(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(func(x *tenon.Exec, a, b *tenon.Tensor) (c, d *tenon.Tensor) {
		c = cubeOf(x, a)
		must(t, compile.Break(x))
		return c, cubeOf(x, b)
	}, o)
	for range 3 {
		x.Scope(func(x *tenon.Exec) {
			a, b := withGrad(x, 20, 20), withGrad(x, 20, 20)
			c, d := f.Call(x, a, b)
			must(t, x.Backward(x.Sum(c, nil)))
			isGradient(t, x, a, cubeOf)
			check(t, "the other has a gradient", b.Grad() != nil, false)
			check(t, "the other result is right", equal(t, x, d, cubeOf(x, b)), true)
		})
	}
	trees := treesOf(t, x)
	check(t, "a backward pass is to come", trees.Pending, false)
	check(t, "graphs", trees.Graphs, 3)
}

func testTreeCastCache(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Add(a, a) }, o)
	b := x.Ones([]int{4, 4}, tenon.Float32)
	for range 4 {
		x.Scope(func(x *tenon.Exec) {
			out := f.Call(x, withGrad(x, 4, 4))
			leaf := f.Call(x.NoGrad(), x.Ones([]int{4, 4}, tenon.Float32)).SetRequiresGrad(true)
			y := x.Autocast(tenon.Float16)
			once, onceLeaf := y.MM(out, b), y.MM(leaf, b)
			x.NoGrad().FillInto(x.Detach(out), 0)
			x.NoGrad().FillInto(x.Detach(leaf), 0)
			twice, twiceLeaf := y.MM(out, b), y.MM(leaf, b)
			check(t, "the product is of autocast", once.DType(), tenon.Float16)
			check(t, "the product is that of a stale cast", equal(t, x, once, twice) || equal(t, x, onceLeaf, twiceLeaf), false)
			allAre(t, x, "the product with zeros", twice, 0)
			allAre(t, x, "the leaf's product with zeros", twiceLeaf, 0)
		})
	}
	// the graph's next run rewrites the elements of a leaf
	y := x.Autocast(tenon.Float16)
	for i := range 6 {
		x.Scope(func(x *tenon.Exec) {
			leaf := f.Call(x.NoGrad(), x.Full([]int{4, 4}, float64(i), tenon.Float32)).SetRequiresGrad(true)
			allAre(t, x, "the product of a new run", y.MM(leaf, b), float64(8*i))
		})
	}
}

func testTreeHooks(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := withGrad(x, 4)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(a, a) }, o)
	leaf := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1).SetRequiresGrad(true) }, o)
	hooked, accumulated := 0, 0
	var addr, leafAddr uint64
	for i := range 6 {
		x.Scope(func(x *tenon.Exec) {
			out := f.Call(x, w)
			out.RegisterHook(func(x *tenon.Exec, g *tenon.Tensor) *tenon.Tensor { hooked++; return nil })
			must(t, x.Backward(x.Sum(out, nil)))
			if i > 2 {
				check(t, "the address", out.DataPtr(), addr)
			}
			addr = out.DataPtr()
			w.SetGrad(nil)
		})
		check(t, "hooks that ran", hooked, i+1)
		x.Scope(func(x *tenon.Exec) {
			out := leaf.Call(x, x.Detach(w))
			check(t, "the result is a leaf", out.IsLeaf() && out.RequiresGrad(), true)
			out.RegisterPostAccumulateGradHook(func(*tenon.Exec, *tenon.Tensor) { accumulated++ })
			must(t, x.Backward(x.Sum(x.Mul(out, out), nil)))
			if i > 2 {
				check(t, "the leaf's address", out.DataPtr(), leafAddr)
			}
			leafAddr = out.DataPtr()
		})
		check(t, "hooks after accumulation that ran", accumulated, i+1)
	}
}

func testTreeAccumulate(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 2) }, o)
	grads := func(x *tenon.Exec, create bool) (first, clone, second *tenon.Tensor) {
		a := x.RandN([]int{5, 5}, tenon.Float32).SetRequiresGrad(true)
		out := f.Call(x, a)
		opt := tenon.BackwardOpt{Gradient: x.Ones([]int{5, 5}, tenon.Float32), RetainGraph: true, CreateGraph: create}
		must(t, x.Backward(out, opt))
		first = x.Detach(a.Grad())
		clone = x.Clone(first)
		must(t, x.Backward(out, opt))
		return first, clone, a.Grad()
	}
	for range 4 {
		x.Scope(func(x *tenon.Exec) {
			first, clone, second := grads(x, false)
			check(t, "the gradient is added to in place", second.SharesStorage(first), true)
			check(t, "the first gradient is twice what it was", equal(t, x, first, x.MulS(clone, 2)), true)
			allAre(t, x, "the gradient", second, 2)
			first, clone, second = grads(x, true)
			check(t, "the gradient of a derivative is added to in place", second.SharesStorage(first), false)
			check(t, "the first gradient is as it was", equal(t, x, first, clone), true)
			allAre(t, x, "the gradient of a derivative", second, 2)
		})
	}
}
