package conformance

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

// The behaviours of steps: which generation a call belongs to, what backward passes keep, and which calls are warm-ups.
var _ = registerTrees(
	treeTest{name: "TREE-051_test_unstable_ptr", run: testTreeUnstablePointer},
	treeTest{name: "TREE-053_test_error_on_dealloc_use", run: testTreeOverwritten},
	treeTest{name: "TREE-054_test_conv_benchmark", run: testTreeConvolution},
	treeTest{name: "TREE-055_test_single_stream_use", run: testTreeSingleStream},
	treeTest{name: "TREE-056_test_dynamic_backward", run: testTreeDynamicBackward},
	treeTest{name: "TREE-057_test_dynamic_warmup", run: testTreeDynamicWarmup},
	treeTest{name: "TREE-058_test_forward_generation", run: testTreeForwardGeneration},
	treeTest{name: "TREE-059_test_warn_on_pending_backward", run: testTreePendingBackward},
	treeTest{name: "TREE-060_test_mark_step", run: testTreeMarkStep},
	treeTest{name: "TREE-062_test_compiled_autograd_static_input_params", run: testTreeStaticParameters},
)

// backwardOfSum runs the backward pass of the sum of y.
func backwardOfSum(t *testing.T, x *tenon.Exec, y *tenon.Tensor) {
	t.Helper()
	x.Scope(func(x *tenon.Exec) { must(t, x.Backward(x.Sum(y, nil))) })
}

// cubeOf is PyTorch's x * x * x, of which the graph keeps a factor.
func cubeOf(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(x.Mul(a, a), a) }

func testTreeUnstablePointer(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.FixedStatic = true
	l := nn.NewLinear(x, 20, 20)
	defer nn.Close(l)
	f := compile.Func(l.Forward, o)
	calls := 0
	err := tenon.Try(func() {
		for range 4 {
			f.Call(x, x.RandN([]int{20, 20}, tenon.Float32)).Close()
			calls++
			l.Weight.Set(x.RandN([]int{20, 20}, tenon.Float32).SetRequiresGrad(true))
		}
	})
	wantError(t, err, "static input data pointer changed")
	check(t, "calls before the error", calls, 2) // the warm-up and the recording
}

func testTreeOverwritten(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(cubeOf, o)
	in := x.RandN([]int{4}, tenon.Float32)
	pc := reflect.ValueOf(cubeOf).Pointer()
	file, line := runtime.FuncForPC(pc).FileLine(pc)
	text := fmt.Sprintf("overwritten by a subsequent run. Made at %s:%d in %s. ", file, line, // cubeOf has one line
		runtime.FuncForPC(pc).Name())
	for i := range 3 { // after a warm-up, a recording and a replay
		y := f.Call(x, in)
		z := f.Call(x, in)
		wantError(t, tenon.Try(func() { x.Add(y, y) }), text)
		u := f.Call(x, in)
		wantError(t, tenon.Try(func() { x.Add(z, z) }), text)
		_, err := x.Bytes(y)
		wantError(t, err, text)
		check(t, fmt.Sprintf("round %d: the latest output is right", i), equal(t, x, u, cubeOf(x, in)), true)
		for _, v := range []*tenon.Tensor{y, z, u} {
			v.Close()
		}
	}
}

func testTreeConvolution(t *testing.T, x *tenon.Exec, o compile.Opt) {
	n := sized(32, 8)
	w, b := x.RandN([]int{6, 5, 3, 3}, tenon.Float32), x.RandN([]int{6}, tenon.Float32)
	forward := func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.Conv2d(in, w, b) }
	f := compile.Func(forward, o)
	for range 3 {
		x.Scope(func(x *tenon.Exec) {
			in := x.RandN([]int{1, 5, n, n}, tenon.Float32)
			check(t, "equal to eager", equal(t, x, f.Call(x, in), forward(x, in)), true)
		})
	}
	check(t, "recordings", treesOf(t, x).Graphs, 1)
}

func testTreeSingleStream(t *testing.T, x *tenon.Exec, o compile.Opt) {
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.ReLU(cubeOf(x, a)) }, o)
	in := x.RandN([]int{4}, tenon.Float32).SetRequiresGrad(true)
	for range 4 {
		y := f.Call(x, in)
		backwardOfSum(t, x, y)
		y.Close()
		in.SetGrad(nil)
	}
	snap, err := x.Device().Snapshot()
	must(t, err)
	var streams []uint64
	for _, s := range snap.Segments() {
		if s.Pool != [2]uint64{} && !slices.Contains(streams, s.Stream) {
			streams = append(streams, s.Stream)
		}
	}
	check(t, "streams of private segments", len(streams), 1)
	check(t, "recordings", treesOf(t, x).Graphs, 2)
}

func testTreeDynamicBackward(t *testing.T, x *tenon.Exec, o compile.Opt) {
	forward := func(x *tenon.Exec, in, w, b *tenon.Tensor) *tenon.Tensor {
		c := x.Cat([]*tenon.Tensor{in, in}, 0)
		return x.ReLU(x.AddMM(b, c, w))
	}
	f := compile.Func(forward, o)
	for _, size := range [][2]int{{2, 4}, {3, 6}} {
		in, w, b := x.RandN([]int{size[0], size[1]}, tenon.Float32), x.RandN([]int{size[1], 5}, tenon.Float32),
			x.RandN([]int{5}, tenon.Float32)
		leaves := []*tenon.Tensor{in, w, b}
		for _, l := range leaves {
			l.SetRequiresGrad(true)
		}
		step := func(f func(x *tenon.Exec, in, w, b *tenon.Tensor) *tenon.Tensor) (got [][]float32) {
			x.Scope(func(x *tenon.Exec) {
				y := f(x, in, w, b)
				check(t, "rows of the output", y.Size(0), 2*size[0])
				backwardOfSum(t, x, y)
				got = append(got, testdevice.Read[float32](t, x, y))
			})
			for _, l := range leaves {
				got = append(got, testdevice.Read[float32](t, x, l.Grad()))
				l.SetGrad(nil)
			}
			return got
		}
		want := step(forward)
		for i := range 3 {
			for k, got := range step(f.Call) {
				if !slices.Equal(got, want[k]) {
					t.Errorf("size %v, run %d: value %d is %v; want %v", size, i, k, got, want[k])
				}
			}
		}
	}
	check(t, "recordings: a forward and a backward pass for each size", treesOf(t, x).Graphs, 4)
	if s := f.Stats(x); s.Eager > 0 || s.Plain > 0 || s.Replays != 2 {
		t.Errorf("the forward passes are %+v; want all of each in a graph, with a replay for each size", s)
	}
}

// testTreeDynamicWarmup counts how often the function's body is run eagerly.
func testTreeDynamicWarmup(t *testing.T, x *tenon.Exec, o compile.Opt) {
	issued := 0
	plantedRun = func(f *core.Frame) error {
		issued++
		return f.Memset(core.ElementsOf(f.Out(0)).Ptr, 0, 16)
	}
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor, n int) *tenon.Tensor { return x.AddS(plant(x, a, n), float64(n)) }, o)
	for i, key := range []int{2, 3} {
		for range 4 {
			y := f.Call(x, x.RandN([]int{4}, tenon.Float32), key)
			allAre(t, x, "the result", y, float64(key))
			y.Close()
		}
		check(t, "runs of the body", issued, 2*(i+1))
		check(t, "functions", treesOf(t, x).Functions, i+1)
	}
}

func testTreeForwardGeneration(t *testing.T, x *tenon.Exec, o compile.Opt) {
	first := compile.Func(cubeOf, o)
	second := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MulS(a, 12) }, o)
	pending := func(want bool) {
		t.Helper()
		check(t, "a backward pass is pending", treesOf(t, x).Pending, want)
	}
	ones := x.Ones([]int{4, 4}, tenon.Float32).SetRequiresGrad(true)
	y := first.Call(x, ones)
	z := second.Call(x, y)
	check(t, "live blocks after two functions", treeBlocks(t, x), 2)
	pending(true)
	backwardOfSum(t, x, z)
	pending(false)
	allAre(t, x, "the gradient", ones.Grad(), 36)
	ones.SetGrad(nil)
	y.Close()
	z.Close()
	y = first.Call(x, ones)
	z = second.Call(x, y)
	pending(true)
	backwardOfSum(t, x, z)
	pending(false)
	y.Close()
	z.Close()
	if n := treesOf(t, x).Graphs; n == 0 {
		t.Error("nothing is recorded")
	}
	d := first.Call(x, x.Detach(ones))
	pending(false)
	d.Close()
	pending(false)
	allAre(t, x, "the gradient of the step before", ones.Grad(), 36) // it is no longer in the pool
	ones.SetGrad(nil)
}

func testTreePendingBackward(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	f := compile.Func(cubeOf, o)
	var y *tenon.Tensor
	call := func() {
		z := f.Call(x, x.RandN([]int{4, 4}, tenon.Float32).SetRequiresGrad(true))
		if y != nil {
			y.Close()
		}
		y = z
	}
	call()
	call()
	w.want(t, 0)
	call()
	w.want(t, 1, "Unable to hit fast path of CUDAGraphs because of pending",
		"That concerns the calls of tenon.dev/conformance.cubeOf from ")
	call()
	w.want(t, 0)
	check(t, "recordings", treesOf(t, x).Graphs, 0)
	y.Close()
}

func testTreeMarkStep(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	f := compile.Func(cubeOf, o)
	for range 2 {
		must(t, compile.MarkStep(x))
		f.Call(x, x.RandN([]int{4, 4}, tenon.Float32).SetRequiresGrad(true))
	}
	check(t, "recordings", treesOf(t, x).Graphs, 1)
	w.want(t, 0)
}

// testTreeStaticParameters has the backward pass in a region: its inputs are the tensors that the forward pass saved and the weight,
// whose address is fixed.
func testTreeStaticParameters(t *testing.T, x *tenon.Exec, o compile.Opt) {
	l := nn.NewLinear(x, 10, 10, nn.LinearOpt{NoBias: true})
	defer nn.Close(l)
	r := compile.New(o)
	var kept []*tenon.Tensor
	for i := range 5 {
		in := x.RandN([]int{10, 10}, tenon.Float32).SetRequiresGrad(true)
		y := l.Forward(x, in)
		kept = append(kept, in, y) // so that the next ones have other addresses
		loss := x.Sum(x.Mul(y, y), nil)
		must(t, r.Do(x, func(x *tenon.Exec) error { return x.Backward(loss, tenon.BackwardOpt{RetainGraph: true}) }))
		got := testdevice.Read[float32](t, x, l.Weight.Grad())
		l.Weight.SetGrad(nil)
		in.SetGrad(nil)
		must(t, x.Backward(loss))
		if !slices.Equal(got, testdevice.Read[float32](t, x, l.Weight.Grad())) {
			t.Errorf("step %d: the weight's gradient differs", i)
		}
		l.Weight.SetGrad(nil)
		in.SetGrad(nil)
	}
	check(t, "inputs of recordings that are copied", treesOf(t, x).Copied, 2)
	check(t, "recordings", treesOf(t, x).Graphs, 1)
	for _, k := range kept {
		k.Close()
	}
}
