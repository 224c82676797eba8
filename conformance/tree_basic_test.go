package conformance

import (
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/testdevice"
	"tenon.dev/sparse"
)

var _ = registerTrees(
	treeTest{name: "TREE-001_test_run_simple", run: testTreeRunSimple},
	treeTest{name: "TREE-002_test_rng_trees", run: testTreeRandom},
	treeTest{name: "TREE-003_test_rng_non_trees", run: testTreeRandomPlain},
	treeTest{name: "TREE-006_test_skip_symbolic", run: testTreeSkipSymbolic},
	treeTest{name: "TREE-012_test_function_compiled_multiple_times", run: testTreeCompiledTwice},
	treeTest{name: "TREE-013_test_end_recording_early", run: testTreeEndEarly},
	treeTest{name: "TREE-014_test_execution_into_recording", run: testTreeExecutionIntoRecording},
	treeTest{name: "TREE-019_test_unaligned_static_input_trees", run: testTreeUnalignedInputs},
	treeTest{name: "TREE-020_test_unaligned_static_input_non_trees", run: testTreeUnalignedInDo},
	treeTest{name: "TREE-021_test_unaligned_static_input_no_cudagraphs", run: testTreeUnalignedPlain},
	treeTest{name: "TREE-022_test_sparsity", run: testTreeSparse},
	treeTest{name: "TREE-023_test_accumulate_multiple_recordings", run: testTreeManyRecordings},
	treeTest{name: "TREE-025_test_live_outputs_multiple_graphs", run: testTreeLiveOutputs},
	treeTest{name: "TREE-026_test_expanded_inputs", run: testTreeExpandedInputs},
	treeTest{name: "TREE-027_test_tensor_dies_between_checkpoint", run: testTreeDiesBetween},
	treeTest{name: "TREE-032_test_warmup_stream_sync", run: testTreeWarmupStream},
	treeTest{name: "TREE-033_test_unaligned_static_parameter", run: testTreeUnalignedParameter},
	treeTest{name: "TREE-038_test_frozen_fn", run: testTreeFrozen},
)

// treeFn is a function of one tensor.
type treeFn = func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor

// sameAs fails unless f's result is g's, to the bit.
func sameAs(t *testing.T, what string, x *tenon.Exec, f, g treeFn, a *tenon.Tensor) {
	t.Helper()
	x.Scope(func(x *tenon.Exec) {
		if !equal(t, x, f(x, a), g(x, a)) {
			t.Errorf("%s: the result is not that without a graph", what)
		}
	})
}

// wantRoots fails unless the roots have these numbers of descendants.
func wantRoots(t *testing.T, x *tenon.Exec, want ...int) {
	t.Helper()
	if got := descendants(t, x); !slices.Equal(got, want) {
		t.Errorf("the roots have %v descendants, want %v", got, want)
	}
}

// runTwice runs f twice on values of a shape, for its warm-up and its recording, and returns what the second run returns.
func runTwice(x *tenon.Exec, f treeFn, shape int, v float64) *tenon.Tensor {
	a := x.Full([]int{shape}, v, tenon.Float32)
	defer a.Close()
	f(x, a).Close()
	return f(x, a)
}

func testTreeRunSimple(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(cubeOf, o)
	for _, n := range []int{4, 5} {
		a := x.RandN([]int{n, n}, tenon.Float32)
		for range 2 {
			sameAs(t, "x*x*x", x, f.Call, cubeOf, a)
		}
	}
	wantRoots(t, x, 0, 0)
}

func testTreeRandom(t *testing.T, x *tenon.Exec, o compile.Opt) {
	s := treeRandom(t, x, o)
	check(t, "recordings", treesOf(t, x).Graphs, 1)
	if s.WarmUps != 1 || s.Recordings != 1 || s.Replays != s.Runs-2 {
		t.Errorf("the runs are %+v; want a warm-up, a recording and replays", s)
	}
}

// treeRandom draws three times after each seed, and fails unless the numbers are those without a graph, also with another seed and with
// other draws before each call.
func treeRandom(t *testing.T, x *tenon.Exec, o compile.Opt) compile.Stats {
	draw := func(x *tenon.Exec) *tenon.Tensor { return x.Rand([]int{20}, tenon.Float32) }
	f := compile.Func(draw, o)
	three := func(draw func(x *tenon.Exec) *tenon.Tensor, seed uint64, others int) (all [3][]float32) {
		must(t, x.Generator().SetSeed(seed))
		for i := range all {
			x.Scope(func(x *tenon.Exec) {
				for n := range others {
					x.RandN([]int{1000 * (n + i)}, tenon.Float32)
				}
				all[i] = testdevice.Read[float32](t, x, draw(x))
			})
		}
		return all
	}
	first := three(draw, 0, 0)
	if slices.Equal(first[0], first[1]) || slices.Equal(first[1], first[2]) {
		t.Error("two draws are equal")
	}
	for _, c := range []struct {
		seed   uint64
		others int
	}{{0, 0}, {0, 0}, {0, 2}, {1, 0}, {1, 1}, {0, 0}} {
		want := three(draw, c.seed, c.others)
		for i, v := range three(f.Call, c.seed, c.others) {
			if !slices.Equal(v, want[i]) {
				t.Errorf("seed %d, %d draws of others: draw %d is %v, want %v", c.seed, c.others, i, v, want[i])
			}
		}
	}
	return f.Stats(x)
}

func testTreeRandomPlain(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoGraphs = true
	s := treeRandom(t, x, o)
	check(t, "runs without a graph", s.Plain, s.Runs)
	check(t, "there are recordings", hasTrees(x), false)
}

func testTreeSkipSymbolic(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.SkipDynamic = true
	w := catchWarnings(t)
	sum := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Add(a, a) }
	f := compile.Func(sum, o)
	for n := 10; n < 12; n++ {
		w.want(t, 0)
		a := x.RandN([]int{n}, tenon.Float32)
		for range 3 {
			sameAs(t, "the sum", x, f.Call, sum, a)
		}
	}
	w.want(t, 1, "skipping cudagraphs due to graph with symbolic shapes inputs", "x.Add(a, a)")
	check(t, "skips", treesOf(t, x).Skips, 1)
	check(t, "graphs", treesOf(t, x).Graphs, 1)
}

func testTreeCompiledTwice(t *testing.T, x *tenon.Exec, o compile.Opt) {
	inner := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		must(t, compile.Break(x))
		y := cubeOf(x, a)
		must(t, compile.Break(x))
		return y
	}
	outer := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		y := inner(x, a)
		return x.Add(y, inner(x, y))
	}
	f := compile.Func(outer, o)
	a := x.Full([]int{4, 4}, 1.5, tenon.Float32)
	for range 4 {
		sameAs(t, "the sum of both", x, f.Call, outer, a)
	}
	wantRoots(t, x, 2)
}

func testTreeEndEarly(t *testing.T, x *tenon.Exec, o compile.Opt) {
	two := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		y := cubeOf(x, a)
		must(t, compile.Break(x))
		return x.Add(a, y)
	}
	one := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 4) }
	f, g := compile.Func(two, o), compile.Func(one, o)
	a := x.Full([]int{4, 4}, 1.5, tenon.Float32)
	for i := range 4 {
		must(t, compile.MarkStep(x)) // else the step's second function would continue the path
		sameAs(t, "two graphs", x, f.Call, two, a)
		if i < 3 {
			sameAs(t, "one graph", x, g.Call, one, a)
		}
	}
	wantRoots(t, x, 1, 0)
}

// bySign returns a function with a branch that depends on the elements.
func bySign(t *testing.T) treeFn {
	return func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		y := x.Add(a, a)
		v, err := x.Item(x.Sum(y, nil))
		must(t, err)
		if v > 0 {
			return x.AddS(y, 10)
		}
		return x.SubS(y, 10)
	}
}

func testTreeExecutionIntoRecording(t *testing.T, x *tenon.Exec, o compile.Opt) {
	foo := bySign(t)
	f := compile.Func(foo, o)
	a := x.Zeros([]int{4, 4}, tenon.Float32)
	for range 2 {
		sameAs(t, "below", x, f.Call, foo, a)
	}
	x.AddSInto(a, a, 1)
	warm := f.Call(x, a)
	allAre(t, x, "the warm-up", warm, 12)
	check(t, "live blocks in the warm-up", treeBlocks(t, x), 1)
	live := f.Call(x, a)
	allAre(t, x, "the recording", live, 12)
	check(t, "live blocks in the recording", treeBlocks(t, x), 1)
	warm.Close()
	check(t, "live blocks without the warm-up's output", treeBlocks(t, x), 1)
	live.Close()
	check(t, "live blocks without the recording's output", treeBlocks(t, x), 0)
	out := f.Call(x, a)
	allAre(t, x, "the replay", out, 12)
	check(t, "live blocks in execution", treeBlocks(t, x), 0)
	check(t, "the state", treesOf(t, x).State, "execution")
}

// offsetPair returns inputs whose first elements lie one row after the start of their memory if i is even, and aligned inputs if it is
// odd.
func offsetPair(x *tenon.Exec, i int) (a, b *tenon.Tensor) {
	if i%2 == 1 {
		return x.RandN([]int{5, 5}, tenon.Float32), x.RandN([]int{5, 5}, tenon.Float32)
	}
	return x.Slice(x.RandN([]int{6, 5}, tenon.Float32), 0, 1, 6, 1), x.Slice(x.RandN([]int{6, 5}, tenon.Float32), 0, 1, 6, 1)
}

// unaligned fails unless run adds using memory only for its result. A graph's result has memory from its recording on.
func unaligned(t *testing.T, x *tenon.Exec, graphs bool, run func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor) {
	for i := range 6 {
		for range 3 {
			x.Scope(func(x *tenon.Exec) {
				a, b := offsetPair(x, i)
				want := x.Add(a, b)
				before := stat(t, x.Device(), "allocation.all.allocated")
				got := run(x, a, b)
				made := stat(t, x.Device(), "allocation.all.allocated") - before
				if limit := int64(1); i > 1 && graphs {
					check(t, "allocations of a replay", made, 0)
				} else if !graphs {
					check(t, "allocations", made, limit)
				}
				check(t, "the sum is right", equal(t, x, got, want), true)
			})
		}
	}
}

func testTreeUnalignedInputs(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.Static = []int{0}
	add := func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.Add(a, b) }
	unaligned(t, x, true, compile.Func(add, o).Call)
}

func testTreeUnalignedInDo(t *testing.T, x *tenon.Exec, o compile.Opt) {
	r := compile.New(o)
	unaligned(t, x, true, func(x *tenon.Exec, a, b *tenon.Tensor) (out *tenon.Tensor) {
		must(t, r.Do(x, func(x *tenon.Exec) error { out = x.Keep(x.Add(a, b)); return nil }))
		return out
	})
}

func testTreeUnalignedPlain(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoGraphs = true
	add := func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.Add(a, b) }
	unaligned(t, x, false, compile.Func(add, o).Call)
}

func testTreeManyRecordings(t *testing.T, x *tenon.Exec, o compile.Opt) {
	foo := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		y := x.Add(x.Add(a, a), a)
		must(t, compile.Break(x))
		v, err := x.Item(x.Sum(y, nil))
		must(t, err)
		if v <= 0 {
			return y
		}
		return x.MulS(y, 10)
	}
	f := compile.Func(foo, o)
	out1 := runTwice(x, f.Call, 5, 0)
	out2 := runTwice(x, f.Call, 6, 0)
	check(t, "live blocks after two recordings", treeBlocks(t, x), 1)
	out3 := runTwice(x, f.Call, 5, 1)
	allAre(t, x, "the third", out3, 30)
	check(t, "live blocks after three recordings", treeBlocks(t, x), 1)
	out1.Close()
	out2.Close()
	check(t, "live blocks without the first outputs", treeBlocks(t, x), 1)
	out3.Close()
	check(t, "live blocks at the end", treeBlocks(t, x), 0)
}

func testTreeLiveOutputs(t *testing.T, x *tenon.Exec, o compile.Opt) {
	foo := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		b := x.Add(x.Add(a, a), a)
		y := x.AddS(b, 1)
		must(t, compile.Break(x))
		z := x.Sum(x.Mul(b, b), nil)
		b.Close()
		v, err := x.Item(z)
		must(t, err)
		z.Close()
		if v > 0 {
			return x.AddS(y, 1)
		}
		return y
	}
	f := compile.Func(foo, o)
	runTwice(x, f.Call, 5, 0).Close()
	check(t, "checkpoints of one path", treesOf(t, x).Checkpoints, 0)
	out := runTwice(x, f.Call, 5, 1)
	allAre(t, x, "the other path", out, 5)
	check(t, "live blocks", treeBlocks(t, x), 1)
	out.Close()
	check(t, "live blocks without the output", treeBlocks(t, x), 0)
	check(t, "checkpoints: for the warm-up and the recording", treesOf(t, x).Checkpoints, 2)
}

func testTreeExpandedInputs(t *testing.T, x *tenon.Exec, o compile.Opt) {
	const n = 512
	foo := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		return x.Add(x.AddS(a, 4), x.Ones([]int{4, n}, tenon.Float32))
	}
	f := compile.Func(foo, o)
	a := x.Expand(x.RandN([]int{1, n}, tenon.Float32), 4, n)
	for range 3 {
		sameAs(t, "an expanded input", x, f.Call, foo, a)
	}
	trees := treesOf(t, x)
	check(t, "graphs", trees.Graphs, 1)
	check(t, "copied inputs", trees.Copied, 1)
	// only the row is copied, and the copy is freed after the recording
	check(t, "bytes of the pool in use", trees.Memory, 0)
}

func testTreeDiesBetween(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoWarmup = true
	must(t, compile.MarkStep(x)) // one step
	pair := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (b, c *tenon.Tensor) { return x.AddS(a, 1), x.AddS(a, 2) }, o)
	g := compile.Func(cubeOf, o)
	a := x.Full([]int{4}, 1, tenon.Float32)
	for range 2 {
		b, c := pair.Call(x, a)
		b.Close()
		c.Close()
	}
	b, c := pair.Call(x, a)
	c.Close()
	check(t, "checkpoints", treesOf(t, x).Checkpoints, 0)
	out := g.Call(x, b)
	check(t, "checkpoints after a recording behind a replay", treesOf(t, x).Checkpoints, 1)
	b.Close()
	allAre(t, x, "the cubeOf", out, 8)
	check(t, "live blocks", treeBlocks(t, x), 1)
	out.Close()
	check(t, "live blocks without the output", treeBlocks(t, x), 0)

	// while the second output lives, the recording that assumes it dead cannot run
	b, c = pair.Call(x, a)
	out = g.Call(x, b)
	allAre(t, x, "the cube beside the second output", out, 8)
	allAre(t, x, "the second output", c, 3)
	check(t, "graphs", treesOf(t, x).Graphs, 3)
}

func testTreeWarmupStream(t *testing.T, x *tenon.Exec, o compile.Opt) {
	n := sized(4096, 64)
	powers := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		for range 100 {
			a = x.MulS(x.MM(a, a), 2/float64(n))
		}
		return a
	}
	o.Static = []int{0}
	f := compile.Func(powers, o)
	a := x.Rand([]int{n, n}, tenon.Float32)
	want := x.Within(func(x *tenon.Exec) *tenon.Tensor { return x.AddS(powers(x, a), 1) })
	must(t, x.Synchronize())
	y := x.On(newStream(t, x))
	for range 3 {
		y.Scope(func(y *tenon.Exec) {
			got := y.AddS(f.Call(y, a), 1)
			check(t, "the result on the user's stream", equal(t, y, got, want), true)
		})
	}
	if s := f.Stats(x); s.WarmUps != 1 || s.Recordings != 1 || s.Replays != 1 {
		t.Errorf("the runs are %+v", s)
	}
}

func testTreeUnalignedParameter(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.Static = []int{0}
	double := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Add(a, a) }
	f := compile.Func(double, o)
	var held []*tenon.Tensor // so that each has another address
	for i := range 4 {
		whole := x.Full([]int{20}, float64(i), tenon.Float32)
		held = append(held, whole)
		sameAs(t, "a parameter that is not aligned", x, f.Call, double, x.Narrow(whole, 0, 1, 19))
	}
	check(t, "parameters", len(held), 4)
	trees := treesOf(t, x)
	check(t, "graphs", trees.Graphs, 1)
	check(t, "inputs that have no address of their own", trees.Copied, 1)
}

func testTreeFrozen(t *testing.T, x *tenon.Exec, o compile.Opt) {
	square := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MM(a, a) }
	f := compile.Func(square, o)
	for range 3 {
		sameAs(t, "the product", x, f.Call, square, x.Rand([]int{10, 10}, tenon.Float32))
	}
	check(t, "graphs", treesOf(t, x).Graphs, 1)
	must(t, compile.Frozen(x, func(x *tenon.Exec) error {
		for range 3 {
			sameAs(t, "the frozen product", x, f.Call, square, x.Rand([]int{10, 10}, tenon.Float32))
			sameAs(t, "a frozen product of another size", x, f.Call, square, x.Rand([]int{11, 11}, tenon.Float32))
		}
		return nil
	}))
	check(t, "graphs after frozen runs", treesOf(t, x).Graphs, 1)
	check(t, "replays", f.Stats(x).Replays, 4)
}

// testTreeSparse makes a sparse tensor in a function and converts it to a dense one.
func testTreeSparse(t *testing.T, x *tenon.Exec, o compile.Opt) {
	size, n := sized(1_000_000, 1000), sized(102_397, 103)
	foo := func(x *tenon.Exec, indices, values *tenon.Tensor) (i, v, whole *tenon.Tensor) {
		s := sparse.NewCOO(x, indices, values, []int{size, 64})
		return s.Indices(), s.Values(), s.ToDense(x)
	}
	f := compile.Func(foo, o)
	for range 3 {
		x.Scope(func(x *tenon.Exec) {
			indices, values := x.RandInt(int64(size), []int{1, n}, tenon.Int64), x.Rand([]int{n, 64}, tenon.Float32)
			i, v, whole := f.Call(x, indices, values)
			wantI, wantV, want := foo(x, indices, values)
			check(t, "the indexes equal eager's", equal(t, x, i, wantI), true)
			check(t, "the values equal eager's", equal(t, x, v, wantV), true)
			check(t, "the whole equals eager's", equal(t, x, whole, want), true)
		})
	}
	check(t, "skips", treesOf(t, x).Skips, 0)
	check(t, "recordings", treesOf(t, x).Graphs, 1)
	if s := f.Stats(x); s.Replays != 1 || s.Eager != 0 || s.Plain != 0 {
		t.Errorf("the runs are %+v", s)
	}
}
