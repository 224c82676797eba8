package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

// The behaviours of memory at fixed addresses that change after all: recording again, and giving up.
var _ = registerTrees(
	treeTest{name: "TREE-067_test_static_inputs_address_mutation_log", run: testTreeAddressLog},
	treeTest{name: "TREE-068_test_multi_dispatch_single_compile_param_inputs", run: testTreeParamInputs},
	treeTest{name: "TREE-069_test_multi_dispatch_single_compile_builtin_module", run: testTreeBuiltinModule},
	treeTest{name: "TREE-070_test_multi_dispatch_single_compile_builtin_module_buffers", run: testTreeBuiltinBuffers},
	treeTest{name: "TREE-071_test_multi_dispatch_custom_module", run: testTreeCustomModule},
	treeTest{name: "TREE-072_test_multi_dispatch_custom_module_buffer", run: testTreeCustomBuffer},
	treeTest{name: "TREE-073_test_multi_dispatch_child_node", run: testTreeChildNode},
	treeTest{name: "TREE-074_test_multi_dispatch_parent_node", run: testTreeParentNode},
	treeTest{name: "TREE-075_test_fallback_to_eager_if_recompiling_too_many_times", run: testTreeTooManyRecordings},
	treeTest{name: "TREE-076_test_fallback_to_eager_if_recompiling_too_many_times_warn_only_once", run: testTreeTooManyWarnOnce},
	treeTest{name: "TREE-077_test_fallback_to_eager_if_recompiling_too_many_times_due_to_cudagraph_managed_tensor",
		run: testTreeTooManyManaged},
	treeTest{name: "TREE-078_test_not_fallback_to_eager_if_have_not_recompiling_too_many_times", run: testTreeNotTooMany},
	treeTest{name: "TREE-079_test_tensor_constant_mutation", run: testTreeConstantMutation},
	treeTest{name: "TREE-080_test_rerecord_if_static_input_address_changed", run: testTreeAddressChanged},
)

// layerFunc is a function of one tensor.
type layerFunc func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor

// dispatch trains with one tensor, with another, and with the first again, five times each, forward and backward, and compares with eager
// training; functions and graphs are their numbers at the end: nothing is compiled again for another tensor. use makes the functions read a
// tensor. grads are the tensors whose gradients are compared.
func dispatch(t *testing.T, x *tenon.Exec, eager, compiled layerFunc, use func(p *tenon.Tensor), grads []*tenon.Tensor,
	functions, graphs int, ps ...*tenon.Tensor) {
	t.Helper()
	iteration := func(f layerFunc) (got [][]float32) {
		in := x.Ones([]int{2, 2}, tenon.Float32) // it stays, so that each lies elsewhere
		x.Scope(func(x *tenon.Exec) {
			y := f(x, in)
			backwardOfSum(t, x, y)
			got = append(got, testdevice.Read[float32](t, x, y))
		})
		for _, g := range grads {
			if g.Grad() != nil {
				got = append(got, testdevice.Read[float32](t, x, g.Grad()))
				g.SetGrad(nil)
			}
		}
		return got
	}
	for n, p := range ps {
		use(p)
		want := iteration(eager)
		for i := range 5 {
			got := iteration(compiled)
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("tensor %d, run %d: %v; want %v", n, i, got, want)
			}
		}
	}
	check(t, "functions", treesOf(t, x).Functions, functions)
	check(t, "recordings", treesOf(t, x).Graphs, graphs)
}

// parameter returns a leaf that requires a gradient.
func parameter(x *tenon.Exec, shape ...int) *tenon.Tensor {
	return x.RandN(shape, tenon.Float32).SetRequiresGrad(true)
}

// twoParameters returns the parameters of a dispatch in order, and all distinct ones.
func twoParameters(x *tenon.Exec, shape ...int) (order, all []*tenon.Tensor) {
	all = []*tenon.Tensor{parameter(x, shape...), parameter(x, shape...)}
	return []*tenon.Tensor{all[0], all[1], all[0]}, all
}

func testTreeParamInputs(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	testTreeStaticArgument(t, x, o)
	w.want(t, 0)
}

// testTreeStaticArgument dispatches a function whose second argument is a parameter.
func testTreeStaticArgument(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.Static = []int{1}
	mul := func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor { return x.Mul(a, b) }
	f := compile.Func(mul, o)
	order, all := twoParameters(x, 2, 2)
	var p *tenon.Tensor
	dispatch(t, x, func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return mul(x, a, p) },
		func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return f.Call(x, a, p) }, func(q *tenon.Tensor) { p = q }, all, 2, 4, order...)
}

func testTreeBuiltinModule(t *testing.T, x *tenon.Exec, o compile.Opt) {
	l := nn.NewLinear(x, 2, 3)
	defer nn.Close(l)
	order, all := twoParameters(x, 3, 2)
	params := map[*tenon.Tensor]*nn.Param{}
	for _, p := range all {
		params[p] = nn.NewParam(p)
		defer params[p].Close()
	}
	first := l.Weight
	defer func() { l.Weight = first }()
	dispatch(t, x, l.Forward, compile.Func(l.Forward, o).Call, func(p *tenon.Tensor) {
		l.Weight = params[p]
	}, append(all, l.Bias.Tensor()), 2, 4, order...)
}

// testTreeBuiltinBuffers normalises by the batch's statistics, updating the running ones, and by the running statistics, whose mean is
// replaced.
func testTreeBuiltinBuffers(t *testing.T, x *tenon.Exec, o compile.Opt) {
	for i, eval := range []bool{false, true} {
		replaceMeans(t, x, o, eval)
		check(t, "functions", treesOf(t, x).Functions, 2*(i+1))
		check(t, "recordings", treesOf(t, x).Graphs, 4*(i+1))
	}
}

// replaceMeans trains with one running mean, with another and with the first again, five times each, and compares results, gradients and
// statistics with those of the same module without recordings.
func replaceMeans(t *testing.T, x *tenon.Exec, o compile.Opt, eval bool) {
	type module struct {
		*nn.BatchNorm
		forward treeFn
		means   []*nn.Buffer
	}
	newModule := func() *module {
		m := &module{BatchNorm: nn.NewBatchNorm1d(x, 2)}
		if m.forward = m.Forward; eval {
			nn.Eval(m.BatchNorm)
		}
		m.means = []*nn.Buffer{m.RunningMean, nn.NewBuffer(x.Full([]int{2}, 3, tenon.Float32))}
		t.Cleanup(func() {
			m.RunningMean = m.means[0]
			m.means[1].Close()
			nn.Close(m.BatchNorm)
		})
		return m
	}
	eager, m := newModule(), newModule()
	m.forward = compile.Func(m.Forward, o).Call
	weights := x.RandN([]int{4, 2}, tenon.Float32)
	iteration := func(m *module, in *tenon.Tensor) (all [][]float32) {
		x.Scope(func(x *tenon.Exec) {
			y := m.forward(x, in)
			must(t, x.Backward(x.Sum(x.Mul(y, weights), nil)))
			all = append(all, testdevice.Read[float32](t, x, y))
		})
		for _, v := range []*tenon.Tensor{m.Weight.Grad(), m.Bias.Grad(), m.RunningMean.Tensor(), m.RunningVar.Tensor()} {
			all = append(all, testdevice.Read[float32](t, x, v))
		}
		m.Weight.SetGrad(nil)
		m.Bias.SetGrad(nil)
		return append(all, []float32{float32(testdevice.Read[int64](t, x, m.NumBatchesTracked.Tensor())[0])})
	}
	for _, n := range []int{0, 1, 0} {
		eager.RunningMean, m.RunningMean = eager.means[n], m.means[n]
		for i := range 5 {
			in := x.RandN([]int{4, 2}, tenon.Float32) // it stays, so that each lies elsewhere
			before := testdevice.Read[float32](t, x, m.RunningMean.Tensor())
			want, got := iteration(eager, in), iteration(m, in)
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("mean %d, run %d: %v; want %v", n, i, got, want)
			}
			check(t, "the mean changes", !slices.Equal(got[3], before), !eval)
		}
	}
}

// scaleModule multiplies by its weight, and then by a second one if it has it.
type scaleModule struct {
	weight, other *tenon.Tensor
	// cut ends the graph between the two.
	cut bool
}

func (m *scaleModule) forward(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
	y := x.Mul(a, m.weight)
	if m.cut {
		if err := compile.Break(x); err != nil {
			panic(err)
		}
	}
	if m.other != nil {
		y = x.Mul(y, m.other)
	}
	return y
}

func testTreeCustomModule(t *testing.T, x *tenon.Exec, o compile.Opt) {
	m := &scaleModule{}
	order, all := twoParameters(x, 2, 2)
	dispatch(t, x, m.forward, compile.Func(m.forward, o).Call, func(p *tenon.Tensor) { m.weight = p }, all, 2, 4, order...)
}

func testTreeCustomBuffer(t *testing.T, x *tenon.Exec, o compile.Opt) {
	m := &scaleModule{weight: parameter(x, 2, 2)}
	a, b := x.RandN([]int{2, 2}, tenon.Float32), x.RandN([]int{2, 2}, tenon.Float32)
	use := func(p *tenon.Tensor) { m.other = p }
	dispatch(t, x, m.forward, compile.Func(m.forward, o).Call, use, []*tenon.Tensor{m.weight}, 2, 4, a, b, a)
}

// testTreeChildNode: the first graph stays, and two come after it.
func testTreeChildNode(t *testing.T, x *tenon.Exec, o compile.Opt) {
	m := &scaleModule{weight: parameter(x, 2, 2), cut: true}
	order, all := twoParameters(x, 2, 2)
	dispatch(t, x, m.forward, compile.Func(m.forward, o).Call, func(p *tenon.Tensor) { m.other = p }, append(all, m.weight), 3, 5, order...)
	if got := descendants(t, x); !slices.Equal(got, []int{4}) {
		t.Errorf("descendants of roots are %v; want [4]", got)
	}
}

func testTreeParentNode(t *testing.T, x *tenon.Exec, o compile.Opt) {
	m := &scaleModule{other: parameter(x, 2, 2), cut: true}
	order, all := twoParameters(x, 2, 2)
	dispatch(t, x, m.forward, compile.Func(m.forward, o).Call, func(p *tenon.Tensor) { m.weight = p }, append(all, m.other), 3, 6, order...)
	if got := descendants(t, x); !slices.Equal(got, []int{2, 2}) {
		t.Errorf("descendants of roots are %v; want [2 2]", got)
	}
}

const exceeded = "skipping cudagraph due to function %d exceeding max re-recording limit (=0) on cudagraph node %s due to %s."

func testTreeTooManyRecordings(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	o.RerecordLimit = -1
	m := &scaleModule{}
	order, all := twoParameters(x, 2, 2)
	dispatch(t, x, m.forward, compile.Func(m.forward, o).Call, func(p *tenon.Tensor) { m.weight = p }, all, 2, 3, order...)
	w.want(t, 1, fmt.Sprintf(exceeded, 0, "None", "static input data pointer changed"))
	check(t, "skips", treesOf(t, x).Skips, 1)
}

func testTreeTooManyWarnOnce(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	o.RerecordLimit = -1
	m := &scaleModule{}
	f := compile.Func(m.forward, o)
	for i := range 5 {
		m.weight = parameter(x, 2, 2)
		for range 3 {
			x.Scope(func(x *tenon.Exec) {
				in := parameter(x, 2, 2)
				y := f.Call(x, in)
				check(t, "equal to eager", equal(t, x, y, m.forward(x, in)), true)
				backwardOfSum(t, x, y)
				check(t, "the input's gradient is the weight", equal(t, x, in.Grad(), m.weight), true)
				check(t, "the weight's gradient is the input", equal(t, x, m.weight.Grad(), in), true)
				in.SetGrad(nil)
				m.weight.SetGrad(nil)
			})
		}
		switch i {
		case 1:
			w.want(t, 1, fmt.Sprintf(exceeded, 0, "None", "static input data pointer changed"))
		case 2:
			w.want(t, 1, fmt.Sprintf(exceeded, 1, "None", "static input data pointer changed"))
		default:
			w.want(t, 0)
		}
	}
	check(t, "skips", treesOf(t, x).Skips, 2)
}

func testTreeTooManyManaged(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	o.RerecordLimit = -1
	first := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) }, o)
	second := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.MulS(a, 2) }, o)
	step := func(clone bool) {
		must(t, compile.MarkStep(x))
		x.Scope(func(x *tenon.Exec) {
			in := x.RandN([]int{2, 3}, tenon.Float32)
			y := first.Call(x, in)
			if clone {
				y = x.Clone(y)
			}
			z := second.Call(x, y)
			check(t, "equal to eager", equal(t, x, z, x.MulS(x.AddS(in, 1), 2)), true)
		})
	}
	for range 3 {
		step(false)
	}
	w.want(t, 0)
	for range 5 {
		step(true)
	}
	w.want(t, 1, fmt.Sprintf(exceeded, 1, "0", "cudagraph managed tensor data pointer changed"))
	for range 5 {
		step(true)
	}
	w.want(t, 0)
	check(t, "recordings", treesOf(t, x).Graphs, 2)
	check(t, "skips", treesOf(t, x).Skips, 1)
}

func testTreeNotTooMany(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	o.RerecordLimit = 1
	testTreeStaticArgument(t, x, o)
	check(t, "skips", treesOf(t, x).Skips, 0)
	w.want(t, 0)
}

func testTreeConstantMutation(t *testing.T, x *tenon.Exec, o compile.Opt) {
	w := catchWarnings(t)
	constant := x.Ones([]int{2, 3}, tenon.Float32)
	f := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		x.AddSInto(constant, constant, 1)
		return a
	}, o)
	in := x.Ones([]int{2, 3}, tenon.Float32)
	for i := range 3 {
		y := f.Call(x, in)
		check(t, "the argument comes back", y.SharesStorage(in), true)
		allAre(t, x, "the constant", constant, float64(i+2))
	}
	w.want(t, 0)
	check(t, "recordings", treesOf(t, x).Graphs, 1)
}

// staticModule counts in a buffer and adds a linear layer.
type staticModule struct {
	static *tenon.Tensor
	ones   *tenon.Tensor
	linear *nn.Linear
}

func newStaticModule(x *tenon.Exec) *staticModule {
	return &staticModule{x.Zeros([]int{2, 2}, tenon.Float32), x.Ones([]int{2, 2}, tenon.Float32), nn.NewLinear(x, 2, 2)}
}

func (m *staticModule) forward(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
	x.AddInto(m.static, m.static, m.ones)
	return x.Add(x.Add(m.static, a), m.linear.Forward(x, a))
}

// move replaces the buffer and the bias.
func (m *staticModule) move(x *tenon.Exec) {
	m.static = x.Ones([]int{2, 2}, tenon.Float32)
	m.linear.Bias.Set(x.Ones([]int{2}, tenon.Float32).SetRequiresGrad(true))
}

func testTreeAddressLog(t *testing.T, x *tenon.Exec, o compile.Opt) {
	o.FixedStatic = true
	m := newStaticModule(x)
	defer nn.Close(m.linear)
	f := compile.Func(m.forward, o)
	in := x.RandN([]int{2, 2}, tenon.Float32)
	for range 3 {
		f.Call(x, in).Close()
	}
	buffer, bias := m.static.DataPtr(), m.linear.Bias.Tensor().DataPtr()
	m.move(x)
	err := tenon.Try(func() { f.Call(x, in) })
	wantError(t, err, "static input data pointer changed.\n")
	line := func(name string, from, to uint64, text string) string {
		return fmt.Sprintf(`input name: %s\. data pointer changed from %#x to %#x\. `, name, from, to) +
			`input stack trace: .*tree_address_test\.go:[0-9]+\n    ` + regexp.QuoteMeta(text) + "\n"
	}
	// The inputs are, in the order of their first use, the buffer, the ones, the argument, the weight and the bias.
	want := regexp.MustCompile(`static input data pointer changed\.\n` +
		line("input0", buffer, m.static.DataPtr(), "x.AddInto(m.static, m.static, m.ones)") +
		line("input4", bias, m.linear.Bias.Tensor().DataPtr(), "return x.Add(x.Add(m.static, a), m.linear.Forward(x, a))"))
	if err != nil && !want.MatchString(err.Error()) {
		t.Errorf("the error is %q; want one like %s", err, want)
	}
}

func testTreeAddressChanged(t *testing.T, x *tenon.Exec, o compile.Opt) {
	m := newStaticModule(x)
	defer nn.Close(m.linear)
	f := compile.Func(m.forward, o)
	in := x.RandN([]int{2, 2}, tenon.Float32)
	run := func(from float64) {
		for i := range 3 {
			y := f.Call(x, in)
			allAre(t, x, "the buffer", m.static, from+float64(i+1))
			want := x.Add(x.Add(m.static, in), m.linear.Forward(x, in))
			check(t, "equal to eager", equal(t, x, y, want), true)
			y.Close()
			want.Close()
		}
	}
	run(0)
	check(t, "recordings before", treesOf(t, x).Graphs, 1)
	m.move(x)
	run(1)
	check(t, "recordings", treesOf(t, x).Graphs, 2)
}
