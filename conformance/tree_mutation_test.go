package conformance

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

var _ = registerTrees(
	treeTest{name: "TREE-004_test_mutation_reinplaced", run: testTreeMutationReinplaced},
	treeTest{name: "TREE-005_test_multiple_devices_msg", run: testTreeDevices, both: true},
	treeTest{name: "TREE-007_test_mutation_on_inp", run: testTreeMutationOfInput, both: true},
	treeTest{name: "TREE-008_test_mutation_cudagraph_managed_tensors_config", run: testTreeMutationOff, both: true},
	treeTest{name: "TREE-009_test_mutation_cudagraph_managed_tensors", run: testTreeMutationOfManaged, both: true},
	treeTest{name: "TREE-010_test_mutation_cudagraph_managed_tensor_warn", run: testTreeMutationWarns, both: true},
	treeTest{name: "TREE-011_test_mutation_cudagraph_managed_tensor_warn_only_once", run: testTreeMutationWarnsOnce, both: true},
)

const mutatedText = "skipping cudagraphs due to mutated inputs (1 instances). Found from"

func testTreeMutationReinplaced(t *testing.T, x *tenon.Exec, o compile.Opt) {
	shape := []int{1, 2, 1, 4, 9, 7}
	f := compile.Func(func(x *tenon.Exec, a, b, out *tenon.Tensor) *tenon.Tensor {
		b = x.LogicalNot(x.LogicalNot(b))
		x.LogicalXorInto(out, a, b)
		return out
	}, o)
	w := catchWarnings(t)
	for i := range 3 {
		a, b := x.RandInt(2, shape, tenon.Float32), x.RandInt(2, shape, tenon.Float32)
		out := x.Rand(shape, tenon.Float16)
		got := f.Call(x, a, b, out)
		check(t, "the result is what was given for it", got.SharesStorage(out), true)
		check(t, "the result is right", equal(t, x, out, x.ToDType(x.LogicalXor(a, b), tenon.Float16)), true)
		if i == 0 {
			w.want(t, 1, mutatedText, "LogicalXor")
		}
	}
	w.want(t, 0)
	check(t, "skips", treesOf(t, x).Skips, 1)
	check(t, "graphs", treesOf(t, x).Graphs, 0)
}

func testTreeDevices(t *testing.T, x *tenon.Exec, o compile.Opt) {
	on := x.Host() // where y is
	foo := func(x *tenon.Exec, a, y *tenon.Tensor) (b, c *tenon.Tensor) { return x.AddS(a, 1), on.AddS(y, 2) }
	f := compile.Func(foo, o)
	a, y := x.Full([]int{10}, 1, tenon.Float32), x.Host().Full([]int{10}, 1, tenon.Float32)
	w := catchWarnings(t)
	for i := range 3 {
		x.Scope(func(x *tenon.Exec) {
			b, c := f.Call(x, a, y)
			allAre(t, x, "of the device", b, 2)
			allAre(t, x, "of the processor", c, 3)
		})
		if i == 0 {
			w.want(t, 1, "skipping cudagraphs due to cpu device (arg1). Found from", "AddS(y, 2)")
		}
	}
	w.want(t, 0)
	check(t, "skips", treesOf(t, x).Skips, 1)
	t.Run("two", func(t *testing.T) {
		on = x.On(secondDevice(t).Stream())
		defer func() { must(t, compile.Reset(on)) }()
		y := on.Full([]int{10}, 1, tenon.Float32)
		defer y.Close()
		for i := range 3 {
			x.Scope(func(x *tenon.Exec) {
				b, c := f.Call(x, a, y)
				allAre(t, x, "of the first device", b, 2)
				allAre(t, on, "of the second device", c, 3)
				check(t, "the second result is on the second device", c.Device() == on.Device(), true)
			})
			if i == 0 {
				w.want(t, 1, "skipping cudagraphs due to multiple devices: device 0 (", "device 1 (")
			}
		}
		w.want(t, 0)
		check(t, "skips in all", treesOf(t, x).Skips, 2)
		check(t, "graphs", treesOf(t, x).Graphs, 1) // of the first device, for the first half
	})
}

// addTwo changes its argument.
func addTwo(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
	x.AddSInto(a, a, 2)
	return a
}

func addOne(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) }

func testTreeMutationOfInput(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	f := compile.Func(addTwo, o)
	for range 3 {
		allAre(t, x, "the changed input", f.Call(x, x.Ones([]int{10}, tenon.Float32)), 3)
	}
	w.want(t, 1, mutatedText+" : ", "x.AddSInto(a, a, 2)")
	check(t, "skips", treesOf(t, x).Skips, 1)
	check(t, "roots", len(treesOf(t, x).Roots), 0)

	module := func() (*tenon.Tensor, treeFn) {
		buf := x.Ones([]int{10}, tenon.Float32)
		return buf, func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
			x.AddInto(buf, buf, a)
			return x.Add(buf, a)
		}
	}
	buf, forward := module()
	buf2, want := module()
	m := compile.Func(forward, o)
	for range 3 {
		sameAs(t, "the module", x, m.Call, want, x.Ones([]int{10}, tenon.Float32))
		check(t, "the buffer is right", equal(t, x, buf, buf2), true)
	}
	w.want(t, 0)
	check(t, "graphs", treesOf(t, x).Graphs, 1)
	check(t, "replays", m.Stats(x).Replays, 1)
}

func testTreeMutationOff(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	o.PlainMutation = true
	mut, foo := compile.Func(addTwo, o), compile.Func(addOne, o)
	for range 4 {
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) {
			a := x.Rand([]int{4}, tenon.Float32)
			out := mut.Call(x, foo.Call(x, a))
			check(t, "the result is right", equal(t, x, out, x.AddS(foo.Call(x, a), 2)), true)
		})
	}
	w.want(t, 1, mutatedText)
	check(t, "mut's graphs", mut.Stats(x).WarmUps+mut.Stats(x).Recordings, 0)
	if foo.Stats(x).Replays == 0 {
		t.Error("the function that changes nothing has no graph")
	}
}

func testTreeMutationOfManaged(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	mut, foo := compile.Func(addTwo, o), compile.Func(addOne, o)
	three := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(foo.Call(x, a), 2) }
	for range 4 {
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) {
			a := x.Rand([]int{4}, tenon.Float32)
			tmp := foo.Call(x, a)
			out := mut.Call(x, tmp)
			check(t, "it is the same memory", out.SharesStorage(tmp), true)
			check(t, "the result is right", equal(t, x, out, three(x, a)), true)
		})
	}
	w.want(t, 0)
	check(t, "skips", treesOf(t, x).Skips, 0)
	check(t, "mut's replays", mut.Stats(x).Replays, 2)

	must(t, compile.MarkStep(x))
	a := x.Rand([]int{4}, tenon.Float32)
	in := x.Clone(foo.Call(x, a))
	mut.Call(x, in)
	w.want(t, 1, mutatedText, "x.AddSInto(a, a, 2)")
	check(t, "the changed tensor is right", equal(t, x, in, three(x, a)), true)
	check(t, "skips in the end", treesOf(t, x).Skips, 1)
}

func testTreeMutationWarns(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	foo := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { x.AddSInto(a, a, 1); return a }, o)
	fee := compile.Func(func(x *tenon.Exec, y, z *tenon.Tensor) *tenon.Tensor { return x.AddS(z, 3) }, o)
	for i := range 3 {
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) {
			a, b := x.Rand([]int{4}, tenon.Float32), x.Full([]int{4}, float64(i), tenon.Float32)
			allAre(t, x, "the result", fee.Call(x, a, foo.Call(x, b)), float64(i+4))
		})
	}
	w.want(t, 1, mutatedText)
	check(t, "skips", treesOf(t, x).Skips, 1)
}

func testTreeMutationWarnsOnce(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	mut, foo := compile.Func(addTwo, o), compile.Func(addOne, o)
	mut.Call(x, x.Rand([]int{4}, tenon.Float32))
	w.want(t, 1, mutatedText)
	for range 3 {
		must(t, compile.MarkStep(x))
		tmp := foo.Call(x, x.Ones([]int{4}, tenon.Float32))
		mut.Call(x, tmp)
		allAre(t, x, "the managed tensor", tmp, 4)
		in := x.Clone(tmp)
		mut.Call(x, in)
		allAre(t, x, "the copy", in, 6)
	}
	w.want(t, 0)
	check(t, "skips", treesOf(t, x).Skips, 1)
}
