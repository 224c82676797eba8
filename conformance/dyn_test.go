package conformance

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

var _ = registerTrees(
	treeTest{name: "DYN-001_test_basic", run: testDynBasic},
	treeTest{name: "DYN-002_test_dtoh", run: testDynToHost},
	treeTest{name: "DYN-003_test_htod", run: testDynFromHost},
	treeTest{name: "DYN-004_test_mutate_input", run: testDynMutateInput},
	treeTest{name: "DYN-005_test_mutate_constant", run: testDynMutateConstant},
	treeTest{name: "DYN-006_test_factory", run: testDynFactory},
	treeTest{name: "DYN-007_test_mutated_metadata", run: testDynMetadata},
	treeTest{name: "DYN-008_test_dead_fill", run: testDynDeadFill},
	treeTest{name: "DYN-009_test_inference_mode_does_not_need_mark_step_begin", run: testDynInference},
)

const dynIterations = 5

// dynModel is a model with two inputs.
type dynModel = func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor

// dynTrain runs model with its backward pass, compiled as a function and eagerly. The leaf is a, or b if a is nil, and each is called
// after each iteration. Both ways must give the same losses and gradients.
func dynTrain(t *testing.T, x *tenon.Exec, o compile.Opt, model dynModel, a, b *tenon.Tensor,
	each func(x *tenon.Exec, loss *tenon.Tensor)) compile.Stats {
	t.Helper()
	o.NoFusion = true
	f := compile.Func(model, o)
	run := func(x *tenon.Exec, model dynModel, a, b *tenon.Tensor) (loss *tenon.Tensor) {
		leaf := a
		if leaf == nil {
			leaf = b
		}
		leaf.SetRequiresGrad(true)
		y := model(x, a, b)
		on := x
		if y.Device() != x.Device() {
			on = x.Host()
		}
		loss = on.Sum(y, nil)
		must(t, on.Backward(loss))
		return loss
	}
	copyOf := func(v *tenon.Tensor) *tenon.Tensor {
		if v == nil {
			return nil
		}
		on := x
		if v.Device() != x.Device() {
			on = x.Host()
		}
		return on.Clone(on.Detach(v))
	}
	ea, eb := copyOf(a), copyOf(b)
	leaf, eagerLeaf := a, ea
	if a == nil {
		leaf, eagerLeaf = b, eb
	}
	for range dynIterations {
		x.Scope(func(x *tenon.Exec) {
			loss := run(x, f.Call, a, b)
			want := run(x, model, ea, eb)
			check(t, "the loss is right", equal(t, x, loss, want), true)
			check(t, "the gradient is right", equal(t, x, leaf.Grad(), eagerLeaf.Grad()), true)
			each(x, loss)
		})
	}
	return f.Stats(x)
}

// graphed fails unless there are graphs and nothing was skipped.
func graphed(t *testing.T, x *tenon.Exec, s compile.Stats, graphs int) {
	t.Helper()
	trees := treesOf(t, x)
	check(t, "graphs", trees.Graphs, graphs)
	check(t, "skips", trees.Skips, 0)
	check(t, "runs without a graph", s.Plain, 0)
	check(t, "replays of the forward pass", s.Replays, dynIterations-2)
}

func nothing(*tenon.Exec, *tenon.Tensor) {}

func testDynBasic(t *testing.T, x *tenon.Exec, o compile.Opt) {
	model := func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.Mul(x.Add(a, b), b) }
	s := dynTrain(t, x, o, model, x.RandN([]int{3}, tenon.Float32), x.RandN([]int{3}, tenon.Float32), nothing)
	graphed(t, x, s, 2)
}

func testDynToHost(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	model := func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor {
		h := x.Host()
		return h.MulS(h.To(x.Add(a, b)), 3)
	}
	dynTrain(t, x, o, model, x.RandN([]int{3}, tenon.Float32), x.RandN([]int{3}, tenon.Float32), nothing)
	w.mu.Lock()
	n := len(w.texts)
	w.mu.Unlock()
	check(t, "there are warnings", n > 0, true)
	check(t, "warnings are skips", treesOf(t, x).Skips, n)
}

func testDynFromHost(t *testing.T, x *tenon.Exec, o compile.Opt) {
	model := func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.MulS(x.Add(a, b), 3) }
	y := x.Host().Full([]int{}, 0.25, tenon.Float32)
	w := catchWarnings(t)
	s := dynTrain(t, x, o, model, x.RandN([]int{3}, tenon.Float32), y, nothing)
	w.want(t, 0)
	check(t, "skips", treesOf(t, x).Skips, 0)
	check(t, "replays of what follows the sum", s.Replays, dynIterations-2)
}

func testDynMutateInput(t *testing.T, x *tenon.Exec, o compile.Opt) {
	model := func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor {
		x.AddSInto(b, b, 3)
		return x.Mul(a, b)
	}
	b := x.Ones([]int{3}, tenon.Float32)
	want := 1.
	dynTrain(t, x, o, model, x.RandN([]int{3}, tenon.Float32), b, func(x *tenon.Exec, _ *tenon.Tensor) {
		want += 3
		allAre(t, x, "the changed input", b, want)
	})
	check(t, "skips", treesOf(t, x).Skips, 1)
}

func testDynMutateConstant(t *testing.T, x *tenon.Exec, o compile.Opt) {
	a, b := x.RandN([]int{1}, tenon.Float32), x.RandN([]int{1}, tenon.Float32)
	train := func(where func(x *tenon.Exec) *tenon.Exec) compile.Stats {
		model := func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor {
			y := where(x)
			c := y.Ones(nil, tenon.Int64)
			y.AddSInto(c, c, 2)
			return x.Add(x.MulS(x.Mul(a, b), 0), c)
		}
		return dynTrain(t, x, o, model, a, b, func(x *tenon.Exec, loss *tenon.Tensor) { allAre(t, x, "the loss", loss, 3) })
	}
	graphed(t, x, train(func(x *tenon.Exec) *tenon.Exec { return x }), 2)
	a.SetGrad(nil)
	w := catchWarnings(t)
	s := train((*tenon.Exec).Host)
	w.want(t, 2, "skipping cudagraphs due to cpu device (a tensor of the processor). Found from", "y.Ones(nil, tenon.Int64)")
	check(t, "skips", treesOf(t, x).Skips, 2)
	check(t, "replays of what follows on the device", s.Replays, dynIterations-2)
}

func testDynFactory(t *testing.T, x *tenon.Exec, o compile.Opt) {
	model := func(x *tenon.Exec, _, b *tenon.Tensor) *tenon.Tensor {
		z := x.Zeros([]int{3}, tenon.Float32)
		x.AddSInto(z, z, 3)
		return x.Mul(z, b)
	}
	s := dynTrain(t, x, o, model, nil, x.RandN([]int{3}, tenon.Float32), nothing)
	graphed(t, x, s, 2)
}

func testDynMetadata(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoFusion = true
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		x.Clone(a)
		b := x.Empty([]int{20}, tenon.Float32)
		x.FillInto(b, 2)
		return b
	}, o)
	a := x.Empty([]int{0}, tenon.Float32)
	for range dynIterations {
		x.Scope(func(x *tenon.Exec) {
			b := f.Call(x, a)
			check(t, "elements", b.Numel(), 20)
			allAre(t, x, "the result", b, 2)
		})
	}
	check(t, "elements of the input", a.Numel(), 0)
	graphed(t, x, f.Stats(x), 1)
}

func testDynDeadFill(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoFusion = true
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) (b, c *tenon.Tensor) {
		b = x.Clone(a)
		c = x.Narrow(b, 0, 0, 0)
		x.FillInto(b, 2)
		x.FillInto(c, 3)
		return b, c
	}, o)
	a := x.Full([]int{20}, 1, tenon.Float32)
	for range dynIterations {
		x.Scope(func(x *tenon.Exec) {
			b, c := f.Call(x, a)
			allAre(t, x, "the result", b, 2)
			check(t, "elements of the view", c.Numel(), 0)
		})
	}
	allAre(t, x, "the input", a, 1)
	graphed(t, x, f.Stats(x), 1)
}

func testDynInference(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.NoFusion = true
	w := catchWarnings(t)
	weight := withGrad(x, 8, 8)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.ReLU(x.MM(a, weight)) }, o)
	var held []*tenon.Tensor
	for range 2 * dynIterations {
		held = append(held, f.Call(x.NoGrad(), x.Rand([]int{8, 8}, tenon.Float32)))
		check(t, "a backward pass is to come", treesOf(t, x).Pending, false)
	}
	w.want(t, 0)
	check(t, "results", len(held), 2*dynIterations)
	check(t, "graphs", treesOf(t, x).Graphs, 1)
	check(t, "replays", f.Stats(x).Replays, 2*dynIterations-2)
}
