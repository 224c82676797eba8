package conformance

import (
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

// The behaviours of operations that no graph can hold, of messages about memory of another graph, and of too many shapes.
var _ = registerTrees(
	treeTest{name: "TREE-061_test_incompatible_cudagraph_ops_item", run: testTreeItem},
	treeTest{name: "TREE-063_test_incompatible_cudagraph_ops_nonzero", run: testTreeNonzero},
	treeTest{name: "TREE-064_test_incompatible_cudagraph_ops_nonzero_graph_breaks", run: testTreeNonzeroBreaks},
	treeTest{name: "TREE-065_test_incompatible_cudagraph_ops_nonzero_backend", run: testTreeNonzeroBackend},
	treeTest{name: "TREE-066_test_storage_access_error", run: testTreeStorageAccess},
	treeTest{name: "TREE-081_test_skip_if_dynamic_shape_limit_reached1", run: testTreeShapeLimit},
	treeTest{name: "TREE-082_test_skip_if_dynamic_shape_limit_reached2", run: testTreeShapeLimitAttention},
)

func testTreeItem(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) float64 {
		v, err := x.Item(a)
		must(t, err)
		return v
	}, o)
	check(t, "the first number", f.Call(x, x.Full(nil, 3, tenon.Int64)), 3)
	check(t, "the second number", f.Call(x, x.Full(nil, 6, tenon.Int64)), 6)
	w.want(t, 1, "skipping cudagraphs due to cpu device (_local_scalar_dense). Found from : \n", "x.Item(a)")
	trees, ok := compile.TreesOf(x)
	check(t, "recordings are kept", ok, false)
	check(t, "skips", trees.Skips, 1)
}

func nonzeroOf(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Nonzero(a) }

// testTreeLengths calls a function whose result's length depends on data.
func testTreeLengths(t *testing.T, x *tenon.Exec, o compile.Opt, text string) {
	w := catchWarnings(t)
	f := compile.Func(nonzeroOf, o)
	for _, c := range []struct{ in, want []int64 }{{[]int64{1, 0, 2}, []int64{0, 2}}, {[]int64{1, 0, 0}, []int64{0}},
		{[]int64{1, 0, 2}, []int64{0, 2}}} {
		x.Scope(func(x *tenon.Exec) {
			got := f.Call(x, tenon.From(x, c.in, 3))
			check(t, "the shape is right", slices.Equal(got.Shape(), []int{len(c.want), 1}), true)
			check(t, "the indexes are right", slices.Equal(testdevice.Read[int64](t, x, got), c.want), true)
		})
	}
	w.want(t, 1, "skipping cudagraphs due to "+text)
	check(t, "skips", treesOf(t, x).Skips, 1)
}

func testTreeNonzero(t *testing.T, x *tenon.Exec, o compile.Opt) {
	testTreeLengths(t, x, o, "['incompatible ops']")
}

func testTreeNonzeroBackend(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoFusion = true
	testTreeLengths(t, x, o, "incompatible op (nonzero)")
}

// testTreeNonzeroBreaks: the second operation's operand has another length in the second call.
func testTreeNonzeroBreaks(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	twice := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		y := nonzeroOf(x, a)
		must(t, compile.Break(x))
		return nonzeroOf(x, y)
	}
	f := compile.Func(twice, o)
	for range 2 {
		for _, v := range [][]int64{{1, 0, 2}, {1, 0, 0}} {
			sameAs(t, "twice", x, f.Call, twice, tenon.From(x, v, 3))
		}
	}
	w.want(t, 3, "['incompatible ops']")
	check(t, "skips", treesOf(t, x).Skips, 3)
}

func testTreeStorageAccess(t *testing.T, x *tenon.Exec, _ compile.Opt) {
	a := x.RandN([]int{4}, tenon.Float32)
	v := x.Narrow(a, 0, 1, 2)
	must(t, core.Overwrite(core.StoreOf((*core.Tensor)(a)), "custom error msg"))
	const text = "custom error msg"
	for _, u := range []*tenon.Tensor{a, v} {
		check(t, "elements, which need no storage", u.Numel() > 0, true)
		wantError(t, tenon.Try(func() { u.DataPtr() }), text)
		_, err := x.Bytes(u)
		wantError(t, err, text)
		wantError(t, tenon.Try(func() { x.Add(u, u) }), text)
		wantError(t, tenon.Try(func() { x.FillInto(u, 1) }), text)
	}
	v.Close()
	a.Close()
}

// What comes between the two is the line where the sizes differ.
const (
	shapesText = "CUDAGraph supports dynamic shapes by recording a new graph for each distinct input size. " +
		"Recording too many CUDAGraphs may lead to extra overhead. We have observed 2 distinct sizes. " +
		"Please consider the following options for better performance: a) padding inputs to a few fixed number of shapes; or b) " +
		"set compile.Opt.SkipDynamic. The sizes differ first at "
	shapesHushedText = "A negative DynamicLimit silences this warning."
)

func testTreeShapeLimit(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	o.DynamicLimit = 1
	l := nn.NewLinear(x, 3, 10)
	defer nn.Close(l)
	f := compile.Func(l.Forward, o)
	for n := 10; n < 40; n += 10 {
		in := x.RandN([]int{n, 3}, tenon.Float32)
		for range 3 {
			sameAs(t, "the layer", x, f.Call, l.Forward, in)
		}
		if n == 10 {
			w.want(t, 0)
		}
	}
	w.want(t, 1, shapesText, "_test.go:", shapesHushedText)
	check(t, "recordings", treesOf(t, x).Graphs, 3)
}

// attention is one attention head with projections.
type attention struct{ q, k, v, out *nn.Linear }

func (a *attention) forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	q, k, v := a.q.Forward(x, in), a.k.Forward(x, in), a.v.Forward(x, in)
	weights := x.Softmax(x.MulS(x.BMM(q, x.Transpose(k, 1, 2)), 0.25), 2)
	return a.out.Forward(x, x.BMM(weights, v))
}

func testTreeShapeLimitAttention(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	o.DynamicLimit = 1
	linear := func() *nn.Linear { return nn.NewLinear(x, 16, 16) }
	a := &attention{linear(), linear(), linear(), linear()}
	defer func() {
		for _, l := range []*nn.Linear{a.q, a.k, a.v, a.out} {
			nn.Close(l)
		}
	}()
	f := compile.Func(a.forward, o)
	for batch := 10; batch < 40; batch += 10 {
		for length := 10; length < 30; length += 10 {
			in := x.RandN([]int{batch, length, 16}, tenon.Float32)
			for range 3 {
				sameAs(t, "the attention", x, f.Call, a.forward, in)
			}
		}
	}
	w.want(t, 1, shapesText, "_test.go:", shapesHushedText)
	check(t, "recordings", treesOf(t, x).Graphs, 6)
}
