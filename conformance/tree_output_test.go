package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

// The behaviours of outputs: how long they live, what they share, and how a checkpoint of the pool affects them.
var _ = registerTrees(
	treeTest{name: "TREE-042_test_aliased_output_checkpoint", run: testTreeAliasedOutputCheckpoint},
	treeTest{name: "TREE-043_test_workspace_allocation_error", run: testTreeWorkspace},
	treeTest{name: "TREE-044_test_persisted_output_livenes", run: testTreePersistedOutput},
	treeTest{name: "TREE-045_test_tensor_no_longer_in_pool", run: testTreeNoLongerInPool},
	treeTest{name: "TREE-046_test_checkpoint_shared_output_storage_deallocation", run: testTreeSharedOutput},
	treeTest{name: "TREE-047_test_cleanup", run: testTreeCleanup},
	treeTest{name: "TREE-048_test_forward_backward", run: testTreeForwardBackward},
	treeTest{name: "TREE-049_test_separate_recordings", run: testTreeSeparateRecordings},
	treeTest{name: "TREE-050_test_alias_of_parameter", run: testTreeOutputsOfParameter},
)

// consumingCube closes its operand, as PyTorch's compiled functions drop their inputs.
func consumingCube(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
	y := x.Mul(x.Mul(a, a), a)
	a.Close()
	return y
}

// liveOutputs counts the outputs of all recordings that are alive.
func liveOutputs(trees []compile.Tree) (n int) {
	for _, r := range trees {
		for _, at := range r.Outputs {
			if at != 0 {
				n++
			}
		}
		n += liveOutputs(r.Children)
	}
	return n
}

// testTreeAliasedOutputCheckpoint closes two outputs that share memory between a replay and a recording, which reads the third.
func testTreeAliasedOutputCheckpoint(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoWarmup = true
	three := compile.Func(func(x *tenon.Exec, in *tenon.Tensor) (sum, y, row *tenon.Tensor) {
		y = x.AddS(in, 2)
		return x.AddS(in, 1), y, x.Select(y, 0, 0)
	}, o)
	cubed := compile.Func(consumingCube, o)
	in := x.RandN([]int{4, 4}, tenon.Float32)
	var sum, y, row *tenon.Tensor
	for i := range 3 {
		must(t, compile.MarkStep(x))
		sum, y, row = three.Call(x, in)
		check(t, "the row shares the output's memory", row.SharesStorage(y), true)
		y.Close()
		row.Close()
		if i < 2 {
			sum.Close()
		}
	}
	check(t, "checkpoints before the second function", treesOf(t, x).Checkpoints, 0)
	w := testdevice.Read[float32](t, x, sum)
	z := cubed.Call(x, sum)
	check(t, "checkpoints after it", treesOf(t, x).Checkpoints, 1)
	check(t, "live blocks", treeBlocks(t, x), 1)
	for i, v := range testdevice.Read[float32](t, x, z) {
		check(t, "element of the result", v, w[i]*w[i]*w[i])
	}
	z.Close()
	check(t, "live blocks at the end", treeBlocks(t, x), 0)
}

// planted is a row of this test: the identity, whose work is done by plantedRun.
var planted = sync.OnceValue(func() *core.Row {
	return core.Define(core.Op{Name: "Planted", Torch: "planted", Package: "conformance", Takes: "t;; key",
		Infer: func(f *core.Frame) { f.NewOut(0, f.In(0).DType(), f.In(0).Shape(), nil) },
		Run:   func(f *core.Frame) error { return plantedRun(f) }})
})

// plantedRun is called when the planted row issues its work.
var plantedRun func(f *core.Frame) error

// plant calls the planted row.
func plant(x *tenon.Exec, a *tenon.Tensor, key int) *tenon.Tensor {
	f := core.Begin((*core.Exec)(x), planted(), (*core.Tensor)(a))
	f.SetWhole(0, key)
	return (*tenon.Tensor)(f.Do())
}

// testTreeWorkspace stands in for a library's workspace: the planted row allocates memory and keeps it. The error names the function
// that allocates and the call of the row, which was made before its work ran.
func testTreeWorkspace(t *testing.T, x *tenon.Exec, o compile.Opt) {
	must(t, x.Device().RecordMemoryHistory())
	defer func() { must(t, x.Device().RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryOff})) }()
	var hog *core.Tensor
	plantedRun = func(f *core.Frame) error {
		plantedWorkspace(f, &hog)
		return nil
	}
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(plant(x, a, 0), 1) }, o)
	in := x.RandN([]int{4}, tenon.Float32)
	err := tenon.Try(func() {
		for range 3 {
			f.Call(x, in).Close()
		}
	})
	if hog == nil {
		t.Fatalf("the planted row took no memory: %v", err)
	}
	wantError(t, err, "These live storage data ptrs are in the cudagraph pool but not accounted for as an output of cudagraph trees: ",
		"Data Pointer: ",
		fmt.Sprintf("%#x", hog.DataPtr()), "history: ", "conformance.plantedWorkspace\n", "conformance.plant\n",
		"conformance.testTreeWorkspace.func3\n")
	(*tenon.Tensor)(hog).Close()
}

// plantedWorkspace takes memory, once.
func plantedWorkspace(f *core.Frame, hog **core.Tensor) {
	if *hog == nil {
		f.Nested(func() { *hog = f.Exec().Empty([]int{1 << 10}, tenon.Float32) })
	}
}

func testTreePersistedOutput(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Add(a, a) }, o)
	call := func() *tenon.Tensor { return f.Call(x, x.RandN([]int{2, 2}, tenon.Float32)) }
	var at []uint64
	for range 4 {
		y := call()
		at = append(at, y.DataPtr())
		y.Close()
	}
	check(t, "live outputs after the calls", liveOutputs(treesOf(t, x).Roots), 0)
	y := call()
	check(t, "the output's address", y.DataPtr(), at[2])
	check(t, "the output's address in the call before", at[3], at[2])
	check(t, "live outputs", liveOutputs(treesOf(t, x).Roots), 1)
	view := x.Narrow(y, 0, 0, 1)
	y.Close()
	check(t, "live outputs while a view is", liveOutputs(treesOf(t, x).Roots), 1)
	view.Close()
	check(t, "live outputs at the end", liveOutputs(treesOf(t, x).Roots), 0)
}

func testTreeNoLongerInPool(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoWarmup = true
	first := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Add(x.Add(a, a), a) }, o)
	second := compile.Func(consumingCube, o)
	in := x.RandN([]int{4}, tenon.Float32)
	v := testdevice.Read[float32](t, x, in)
	step := func(outside bool) {
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) {
			y := first.Call(x, in)
			if outside {
				y = x.Clone(y)
			}
			for i, z := range testdevice.Read[float32](t, x, second.Call(x, y)) {
				w := v[i] + v[i] + v[i]
				check(t, "element of the result", z, w*w*w)
			}
		})
	}
	for range 3 {
		step(false)
	}
	check(t, "checkpoints", treesOf(t, x).Checkpoints, 0)
	step(true)
	check(t, "checkpoints after the tensor from outside", treesOf(t, x).Checkpoints, 1)
	step(true)
	step(false)
	check(t, "checkpoints at the end", treesOf(t, x).Checkpoints, 1)
	if got := descendants(t, x); !slices.Equal(got, []int{2}) {
		t.Errorf("descendants of roots are %v; want [2]", got)
	}
}

func testTreeSharedOutput(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoWarmup = true
	rows := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (first, second *tenon.Tensor) {
		y := x.AddS(a, 1)
		return x.Select(y, 0, 0), x.Select(y, 0, 1)
	}, o)
	squared := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (first, second *tenon.Tensor) {
		y := x.Mul(a, a)
		return x.Select(y, 0, 0), x.Select(y, 0, 1)
	}, o)
	in := x.RandN([]int{2, 2}, tenon.Float32)
	var a, b *tenon.Tensor
	for i := range 3 {
		must(t, compile.MarkStep(x))
		a, b = rows.Call(x, in)
		if i < 2 {
			a.Close()
			b.Close()
		}
	}
	check(t, "the rows share memory", a.SharesStorage(b), true)
	check(t, "how far apart they are", b.DataPtr()-a.DataPtr(), 8)
	want := testdevice.Read[float32](t, x, b)
	check(t, "checkpoints before the second function", treesOf(t, x).Checkpoints, 0)
	x.Scope(func(x *tenon.Exec) { squared.Call(x, a) })
	check(t, "checkpoints after it", treesOf(t, x).Checkpoints, 1)
	check(t, "live blocks", treeBlocks(t, x), 1)
	a.Close()
	check(t, "live blocks without the first row", treeBlocks(t, x), 1)
	if got := testdevice.Read[float32](t, x, b); !slices.Equal(got, want) {
		t.Errorf("the second row is %v after the checkpoint; want %v", got, want)
	}
	b.Close()
	check(t, "live blocks without both", treeBlocks(t, x), 0)
}

func testTreeCleanup(t *testing.T, x *tenon.Exec, o compile.Opt) {
	for _, calls := range []int{1, 2, 3} { // the last one warms up, records, replays
		f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(x.Mul(a, a), a) }, o)
		in := x.Full([]int{4}, 3, tenon.Float32)
		var y *tenon.Tensor
		for range calls {
			y = f.Call(x, in)
		}
		check(t, "recordings are kept", hasTrees(x), true)
		must(t, compile.Reset(x))
		check(t, "recordings are kept after the reset", hasTrees(x), false)
		other := x.Zeros([]int{4}, tenon.Float32)
		allAre(t, x, "the output that is held", y, 27)
		other.Close()
		y.Close()
		settle(t, x.Device())
		check(t, "live blocks after the reset, without the output", treeBlocks(t, x), 0)
	}
}

func testTreeForwardBackward(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoWarmup, o.NoRecompute = true, true
	forward := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Dropout(x.Sin(x.MulS(a, 2)), 0.4) }
	f := compile.Func(forward, o)
	in := x.RandN([]int{4, 4}, tenon.Float32).SetRequiresGrad(true)
	step := func(f treeFn) (y, g []float32) {
		x.Scope(func(x *tenon.Exec) {
			out := f(x, in)
			backwardOfSum(t, x, out)
			y, g = testdevice.Read[float32](t, x, out), testdevice.Read[float32](t, x, in.Grad())
			in.SetGrad(nil)
		})
		return y, g
	}
	run := func(f treeFn) (all [][]float32) {
		must(t, x.Generator().SetSeed(5))
		for range 3 {
			y, g := step(f)
			all = append(all, y, g)
		}
		return all
	}
	want := run(forward)
	for i, v := range run(f.Call) {
		check(t, fmt.Sprintf("value %d is that without a graph", i), slices.Equal(v, want[i]), true)
	}
	check(t, "recordings", treesOf(t, x).Graphs, 2)
	check(t, "replays", f.Stats(x).Replays, 2)
	if got := descendants(t, x); !slices.Equal(got, []int{1}) {
		t.Fatalf("descendants of roots are %v; want [1]", got)
	}
	back := treesOf(t, x).Roots[0].Children[0]
	check(t, "kind of the second recording", back.Kind, "backward")
	check(t, "outputs that are gone before it", len(back.DeadBefore), 0)
	if want := []compile.Index{{0, 1}, {0, 2}}; !slices.Equal(back.DeadAfter, want) {
		t.Errorf("outputs that go with it are %v; want %v", back.DeadAfter, want)
	}
}

func testTreeSeparateRecordings(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(x.Mul(a, a), a) }, o)
	for _, n := range []int{20, 40} {
		for range 3 {
			f.Call(x, x.RandN([]int{n, n}, tenon.Float32)).Close()
		}
	}
	if got := descendants(t, x); !slices.Equal(got, []int{0, 0}) {
		t.Errorf("descendants of roots are %v; want [0 0]", got)
	}
}

func testTreeOutputsOfParameter(t *testing.T, x *tenon.Exec, o compile.Opt) {
	p := nn.NewParam(x.RandN([]int{4, 4}, tenon.Float32))
	defer p.Close()
	forward := func(x *tenon.Exec, a *tenon.Tensor) []*tenon.Tensor {
		return []*tenon.Tensor{x.Select(p.Tensor(), 0, 0), p.Tensor(), x.Add(p.Tensor(), a)}
	}
	f := compile.Func(forward, o)
	for i := range 3 {
		x.Scope(func(x *tenon.Exec) {
			in := x.RandN([]int{4, 4}, tenon.Float32)
			got, want := f.Call(x, in), forward(x, in)
			for k := range want {
				check(t, fmt.Sprintf("run %d: output %d equals eager", i, k), equal(t, x, got[k], want[k]), true)
			}
			check(t, "the row shares the parameter's memory", got[0].SharesStorage(p.Tensor()), true)
			check(t, "the parameter is itself", got[1].SharesStorage(p.Tensor()), true)
			if i > 0 {
				check(t, "live outputs", liveOutputs(treesOf(t, x).Roots), 1)
			}
		})
	}
	if s := fmt.Sprint(testdevice.Read[float32](t, x, p.Tensor())); strings.Contains(s, "NaN") {
		t.Errorf("the parameter is %s", s)
	}
}
