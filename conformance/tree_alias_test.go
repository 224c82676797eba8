package conformance

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

var _ = registerTrees(
	treeTest{name: "TREE-024_test_constant_output", run: testTreeConstantOutput},
	treeTest{name: "TREE-028_test_aliased_storage_single_weakref", run: testTreeSingleRef},
	treeTest{name: "TREE-029_test_aliasing_static_ref", run: testTreeAliasOfStatic},
	treeTest{name: "TREE-030_test_checkpointing_resets_persistent_refs", run: testTreeCheckpointResets},
	treeTest{name: "TREE-031_test_aliased_static_parameter", run: testTreeViewOfParameter},
	treeTest{name: "TREE-039_test_empty_cpu_tensor", run: testTreeEmptyOfProcessor},
	treeTest{name: "TREE-040_test_output_alias", run: testTreeOutputAlias},
	treeTest{name: "TREE-041_test_empty_storage", run: testTreeEmptyStorage},
)

// pathRefs counts the recordings' outputs that are in use, and all of their outputs.
func pathRefs(t *testing.T, x *tenon.Exec) (inUse, outputs int) {
	t.Helper()
	var count func(trees []compile.Tree)
	count = func(trees []compile.Tree) {
		for _, tree := range trees {
			outputs += len(tree.Outputs)
			for _, addr := range tree.Outputs {
				if addr != 0 {
					inUse++
				}
			}
			count(tree.Children)
		}
	}
	count(treesOf(t, x).Roots)
	return inUse, outputs
}

// refs fails unless the recordings have the given number of outputs, of which inUse are in use.
func refs(t *testing.T, x *tenon.Exec, when string, inUse, outputs int) {
	t.Helper()
	n, all := pathRefs(t, x)
	check(t, "outputs in use "+when, n, inUse)
	check(t, "outputs "+when, all, outputs)
}

func testTreeConstantOutput(t *testing.T, x *tenon.Exec, o compile.Opt) {
	param := x.Arange(10, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (b, c, d *tenon.Tensor) {
		return param, x.Narrow(param, 0, 0, 2), x.AddS(a, 2)
	}, o)
	for i := range 4 {
		x.Scope(func(x *tenon.Exec) {
			a := x.Full([]int{1}, float64(i), tenon.Float32)
			b, c, d := f.Call(x.NoGrad(), a)
			check(t, "the parameter is itself", b == param, true)
			check(t, "its slice is of it", c.SharesStorage(param) && equal(t, x, c, x.Arange(2, tenon.Float32)), true)
			allAre(t, x, "the sum", d, float64(i+2))
		})
	}
	check(t, "the parameter is right", equal(t, x, param, x.Arange(10, tenon.Float32)), true)
	refs(t, x, "after all", 0, 1)
}

func testTreeSingleRef(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoWarmup = true
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) []*tenon.Tensor {
		a = x.MulS(a, 20)
		b := x.MulS(a, 10)
		must(t, compile.Break(x))
		return []*tenon.Tensor{a, x.Select(a, 0, 0), x.Narrow(a, 0, 4, 16), x.Select(b, 0, 0), x.Narrow(b, 0, 4, 16)}
	}, o)
	for i := range 4 {
		x.Scope(func(x *tenon.Exec) {
			a := x.Full([]int{20, 20}, float64(i), tenon.Float32)
			outs := f.Call(x, a)
			for k, out := range outs {
				base := outs[k/3*3]
				check(t, "it shares its storage", out.SharesStorage(base), true)
				check(t, "it shares that of the others", out.SharesStorage(outs[3-k/3*3]), false)
				allAre(t, x, "an output", out, float64(i)*[]float64{20, 200}[k/3])
			}
			refs(t, x, "with the outputs", 2, 2)
		})
		refs(t, x, "without the outputs", 0, 2)
	}
}

func testTreeAliasOfStatic(t *testing.T, x *tenon.Exec, o compile.Opt) {
	weight := withGrad(x, 10, 10)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (b, c, d *tenon.Tensor) {
		return x.MM(x.T(weight), a), x.T(weight), x.Narrow(weight, 0, 0, 4)
	}, o)
	g := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Narrow(a, 0, 2, 8) }, o)
	for range 4 {
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) {
			a := withGrad(x, 10, 10)
			b, c, d := f.Call(x, a)
			check(t, "views of the weight are of its storage", c.SharesStorage(weight) && d.SharesStorage(weight), true)
			e := g.Call(x, b)
			check(t, "a view of the result is of its storage", e.SharesStorage(b), true)
			must(t, x.Backward(x.Sum(e, nil)))
			isGradient(t, x, a, func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
				return x.Narrow(x.MM(x.T(x.Detach(weight)), a), 0, 2, 8)
			})
			weight.SetGrad(nil)
		})
	}
	trees := treesOf(t, x)
	check(t, "outputs of the first graph: the weight is none", len(trees.Roots[0].Outputs), 1)
}

func testTreeCheckpointResets(t *testing.T, x *tenon.Exec, o compile.Opt) {
	square := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MM(a, a) }
	f := compile.Func(square, o)
	g := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (b, c *tenon.Tensor) { return x.Select(a, 0, 0), x.MM(a, a) }, o)
	var addr uint64
	for i := range 5 {
		x.Scope(func(x *tenon.Exec) {
			out := f.Call(x, x.Rand([]int{20, 20}, tenon.Float32))
			if i > 2 {
				check(t, "the address", out.DataPtr(), addr)
			}
			addr = out.DataPtr()
		})
	}
	check(t, "checkpoints", treesOf(t, x).Checkpoints, 0)
	for i := range 4 { // a warm-up, a recording, and replays
		must(t, compile.MarkStep(x))
		a := x.Rand([]int{20, 20}, tenon.Float32)
		out := f.Call(x, a)
		check(t, "the address before the second function", out.DataPtr(), addr)
		alias, out2 := g.Call(x, out)
		check(t, "the alias is one", alias.SharesStorage(out), true)
		alias.Close()
		blocks := []int{2, 1}
		if i > 1 {
			blocks = []int{0, 0} // both are replays
		}
		check(t, "live blocks", treeBlocks(t, x), blocks[0])
		check(t, "the product is right", equal(t, x, out2, square(x, square(x, a))), true)
		out.Close()
		check(t, "live blocks without the first output", treeBlocks(t, x), blocks[1])
		out2.Close()
		check(t, "live blocks without both", treeBlocks(t, x), 0)
		check(t, "checkpoints after the second function", treesOf(t, x).Checkpoints, min(i+1, 2))
		if i > 0 {
			must(t, compile.MarkStep(x))
			fresh := f.Call(x, a)
			check(t, "the product of a new step is right", equal(t, x, fresh, square(x, a)), true)
			fresh.Close()
		}
	}
}

func testTreeViewOfParameter(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.Static = []int{0}
	a := x.Rand([]int{20, 20}, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Select(a, 0, 0) }, o)
	g := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (b, c *tenon.Tensor) { return x.Select(a, 0, 0), x.AddS(a, 1) }, o)
	for range 4 {
		x.Scope(func(x *tenon.Exec) {
			check(t, "the row is of the input", f.Call(x, a).SharesStorage(a), true)
			b, c := g.Call(x, a)
			check(t, "the row is of the input, in a graph", b.SharesStorage(a) && equal(t, x, b, x.Select(a, 0, 0)), true)
			check(t, "the sum is right", equal(t, x, c, x.AddS(a, 1)), true)
			must(t, x.Synchronize())
		})
	}
	trees := treesOf(t, x)
	check(t, "graphs", trees.Graphs, 1)
	check(t, "copied inputs", trees.Copied, 0)
	check(t, "outputs: the row is none", len(trees.Roots[0].Outputs), 1)
}

func testTreeEmptyOfProcessor(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (b, c *tenon.Tensor) {
		return x.Dot(a, a), x.Host().Zeros([]int{0}, tenon.Float32)
	}, o)
	a := x.Rand([]int{4}, tenon.Float32)
	for range 4 {
		x.Scope(func(x *tenon.Exec) {
			b, c := f.Call(x, a)
			check(t, "the product is right", equal(t, x, b, x.Dot(a, a)), true)
			check(t, "elements of the empty tensor", c.Numel(), 0)
		})
	}
	w.want(t, 0)
	check(t, "graphs", treesOf(t, x).Graphs, 1)
	check(t, "skips", treesOf(t, x).Skips, 0)
}

func testTreeOutputAlias(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (b, c, d *tenon.Tensor) {
		e := x.Add(a, a)
		return a, x.Select(a, 0, 0), x.Select(e, 0, 0)
	}, o)
	for i := range 4 {
		x.Scope(func(x *tenon.Exec) {
			a := x.Full([]int{20, 20}, float64(i), tenon.Float32)
			b, c, d := f.Call(x, a)
			check(t, "they share a storage", b.SharesStorage(c), true)
			allAre(t, x, "the row", c, float64(i))
			allAre(t, x, "the other row", d, float64(2*i))
		})
		if i > 0 {
			refs(t, x, "without the tensors", 0, 1)
		}
	}
}

func testTreeEmptyStorage(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (b, c, d *tenon.Tensor) {
		none := x.Narrow(x.Zeros([]int{100}, tenon.Float32), 0, 0, 0)
		return x.Add(x.Add(a, a), a), x.Zeros([]int{0}, tenon.Float32), x.Clone(none)
	}, o)
	g := compile.Func(func(x *tenon.Exec, a, b *tenon.Tensor) (c, d *tenon.Tensor) { return x.AddS(a, 1), x.AddS(b, 1) }, o)
	for i := range 4 {
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) {
			a := x.Full([]int{4}, float64(i), tenon.Float32)
			b, c, d := f.Call(x, a)
			allAre(t, x, "the sum", b, float64(3*i))
			check(t, "elements of the empty ones", c.Numel()+d.Numel(), 0)
			if i > 0 {
				refs(t, x, "with empty outputs", 1, min(i, 2))
			}
		})
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) {
			c, d := g.Call(x, x.Full([]int{4}, float64(i), tenon.Float32), x.Zeros([]int{0}, tenon.Float32))
			allAre(t, x, "the sum of the second function", c, float64(i+1))
			check(t, "elements of the empty one", d.Numel(), 0)
			if i > 0 {
				refs(t, x, "with an empty input", 1, 2)
			}
		})
	}
}
