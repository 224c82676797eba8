package conformance

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/recorded"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

// autocastTests are the behaviours of autocast.
var autocastTests = []cudaTest{
	{name: "CUDA-065__run_autocast_outofplace", run: testAutocastChecker},
	{name: "CUDA-066_test_autocast_torch_fp16", run: autocastList(tenon.Float16, 14, "torch_fp16")},
	{name: "CUDA-067_test_autocast_torch_bf16", run: autocastList(tenon.BFloat16, 14, "torch_fp16")},
	{name: "CUDA-068_test_autocast_torch_fp32", run: autocastList(tenon.Float16, 39, "torch_fp32")},
	{name: "CUDA-069_test_autocast_torch_need_autocast_promote", run: autocastList(tenon.Float16, 10, "torch_need_autocast_promote")},
	{name: "CUDA-070_test_autocast_torch_expect_builtin_promote", run: autocastList(tenon.Float16, 12, "torch_expect_builtin_promote")},
	{name: "CUDA-071_test_autocast_nn_fp16", run: autocastList(tenon.Float16, 1, "nn_fp16")},
	{name: "CUDA-072_test_autocast_nn_bf16", run: autocastList(tenon.BFloat16, 1, "nn_fp16")},
	{name: "CUDA-073_test_autocast_nn_fp32", run: autocastList(tenon.Float16, 8, "nn_fp32")},
	{name: "CUDA-074_test_autocast_linalg_fp16", run: autocastList(tenon.Float16, 2, "linalg_fp16")},
	{name: "CUDA-075_test_autocast_methods_fp16", run: autocastList(tenon.Float16, 1, "methods_fp16")},
	{name: "CUDA-076_test_autocast_methods_fp32", run: autocastList(tenon.Float16, 1, "methods_fp32")},
	{name: "CUDA-077_test_autocast_methods_expect_builtin_promote", run: autocastList(tenon.Float16, 9, "methods_expect_builtin_promote")},
	{name: "CUDA-078_test_autocast_banned", run: testAutocastBanned},
	{name: "CUDA-079_test_autocast_ignored_types", run: testAutocastIgnoredTypes},
	{name: "CUDA-080_test_autocast_custom_enabled", run: testAutocastCustom},
	{name: "CUDA-081_test_autocast_custom_cast_inputs", run: testAutocastCastInputs},
	{name: "CUDA-083_test_autocast_cat_jit", run: testAutocastHost},
	{name: "CUDA-085_test_autocast_cache_leak", run: testAutocastCacheLeak},
	{name: "CUDA-086_test_autocast_checkpointing", run: testAutocastCheckpointing},
}

// autocastCalls returns the recorded calls, or those of one list.
func autocastCalls(t *testing.T, list string) []autocastCall {
	t.Helper()
	text, err := os.ReadFile("testdata/autocast.json")
	must(t, err)
	var calls []autocastCall
	must(t, json.Unmarshal(text, &calls))
	if list == "" {
		return calls
	}
	return slices.DeleteFunc(calls, func(c autocastCall) bool { return c.List != list })
}

// registered returns the registry's name of the call's operation, or "" if it is not registered.
func (c *autocastCall) registered() string {
	name := c.Op
	if n := autocastNames[name]; n != "" {
		name = n
	}
	for _, n := range []string{name, "linalg." + strings.TrimPrefix(name, "linalg_"), "nn.functional." + name} {
		if registry[n] != nil {
			return n
		}
	}
	return ""
}

// recordedCase returns the call as a case of TestOps.
func (c *autocastCall) recordedCase(t *testing.T) *recorded.Case {
	r := &recorded.Case{Op: c.registered(), Kwargs: recorded.Dict{}}
	for i, v := range c.Args {
		if i == 0 {
			r.Input = autocastArg(t, v)
		} else {
			r.Args = append(r.Args, autocastArg(t, v))
		}
	}
	return r
}

// each replaces every tensor t of a with f(t).
func (a *args) each(f func(t *tenon.Tensor) *tenon.Tensor) {
	var walk func(v any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case *tenon.Tensor:
			return f(v)
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		}
		return v
	}
	for i := range a.at {
		a.at[i] = walk(a.at[i])
	}
}

// runAutocast runs the call on its arguments.
func (c *autocastCall) runAutocast(x *tenon.Exec, a *args) any {
	name := c.registered()
	if power, number := a.get(1, "exponent").(float64); number && name == "pow" {
		return x.PowS(a.tensor(0, "input"), power)
	}
	return registry[name](x, a)
}

// floating reports whether autocast may convert t.
func floating(t *tenon.Tensor) bool {
	switch t.DType() {
	case tenon.Float16, tenon.BFloat16, tenon.Float32:
		return true
	}
	return false
}

// check runs the call as PyTorch's checker does: under autocast to low its results have the recorded type, or low where that is float16;
// and they equal, bit for bit, the results without autocast on operands converted to runAs. Float operands are random, of the recorded
// types with low for float16. Tensors require gradients, which come back in the tensors' own types.
func (c *autocastCall) check(t *testing.T, x *tenon.Exec, low, runAs tenon.DType) {
	t.Helper()
	r := c.recordedCase(t)
	rng := rand.New(rand.NewPCG(1, 2))
	a := newArgs(x, r)
	var given []*tenon.Tensor
	a.each(func(v *tenon.Tensor) *tenon.Tensor {
		if !floating(v) {
			return x.OnesLike(v)
		}
		d := v.DType()
		if d == tenon.Float16 {
			d = low
		}
		data := make([]float32, v.Numel())
		for i := range data {
			data[i] = 0.1 + 0.8*rng.Float32()
		}
		v = x.ToDType(tenon.From(x, data, v.Shape()...), d).SetRequiresGrad(true)
		given = append(given, v)
		return v
	})
	y := x.Autocast(low)
	got := c.runAutocast(y, a)
	if y.AutocastDType() != low || x.AutocastDType() != 0 {
		t.Errorf("%s: autocast is %v within, and %v outside", c.Op, y.AutocastDType(), x.AutocastDType())
	}
	b := &args{c: a.c, kw: a.kw, used: a.used, grads: a.grads, at: slices.Clone(a.at)}
	b.each(func(v *tenon.Tensor) *tenon.Tensor {
		if floating(v) {
			return x.Detach(x.ToDType(v, runAs))
		}
		return v
	})
	wanted := c.runAutocast(x, b)
	outs, wants := tensorsOf(got), tensorsOf(wanted)
	if len(outs) == 0 {
		check(t, c.Op, got, wanted)
		return
	}
	want := c.Out
	if want == "float16" {
		want = low.String()
	}
	for i, o := range outs {
		if o.DType().String() != want {
			t.Errorf("%s gives %v, want %v", c.Op, o.DType(), want)
			continue
		}
		g, err := x.Bytes(x.Contiguous(x.Detach(o)))
		must(t, err)
		w, err := x.Bytes(x.Contiguous(wants[i]))
		must(t, err)
		if !bytes.Equal(g, w) {
			t.Errorf("%s: the result is not that of operands of type %v", c.Op, runAs)
		}
	}
	o := outs[0]
	if !o.RequiresGrad() {
		return
	}
	grads, err := x.Grad([]*tenon.Tensor{x.Sum(o, nil)}, given, tenon.GradOpt{AllowUnused: true})
	if err != nil {
		t.Errorf("%s: %v", c.Op, err)
		return
	}
	for i, g := range grads {
		if g != nil && g.DType() != given[i].DType() {
			t.Errorf("%s: the gradient of operand %d is %v, and the operand %v", c.Op, i, g.DType(), given[i].DType())
		}
	}
}

// autocastList checks the calls of a list that are in the registry, of which there must be offered.
func autocastList(low tenon.DType, offered int, list string) func(t *testing.T, x *tenon.Exec) {
	return func(t *testing.T, x *tenon.Exec) {
		n := 0
		for _, c := range autocastCalls(t, list) {
			if c.registered() == "" {
				continue
			}
			n++
			if err := tenon.Try(func() { x.Scope(func(x *tenon.Exec) { c.check(t, x, low, runAs(list, low)) }) }); err != nil {
				t.Errorf("%s: %v", c.Op, err)
			}
		}
		check(t, "calls", n, offered)
	}
}

// The assumptions of the checker: autocast is a mode of one Exec and of those derived from it, it is off within an operation that
// autocast treats as a whole, and gradients flow back through the conversions.
func testAutocastChecker(t *testing.T, x *tenon.Exec) {
	y := x.Autocast(tenon.Float16)
	check(t, "on", y.AutocastDType(), tenon.Float16)
	check(t, "on, on another stream", y.NoGrad().AutocastDType(), tenon.Float16)
	check(t, "off again", y.Autocast(0).AutocastDType(), 0)
	check(t, "outside", x.AutocastDType(), 0)
	// Products are in float16, except the one that is part of a sum of float32 products.
	m := x.Full([]int{4, 4}, 0.3, tenon.Float32)
	check(t, "a product's type", y.MM(m, m).DType(), tenon.Float16)
	check(t, "a sum of products' type", y.TensorDot(m, m, []int{1}, []int{0}).DType(), tenon.Float32)
	in, w := x.Full([]int{2, 8}, 0.3, tenon.Float32).SetRequiresGrad(true), x.Full([]int{8}, 0.7, tenon.Float32).SetRequiresGrad(true)
	bias := x.Full(nil, 0.1, tenon.Float32).SetRequiresGrad(true)
	out := y.Linear(in, w, bias)
	check(t, "a linear's type", out.DType(), tenon.Float16)
	// A cross-entropy of losses of elements: mean and weights are float32 too.
	loss := y.BCEWithLogits(out, x.ZerosLike(out), tenon.BCEWithLogitsOpt{Weight: x.Full(nil, 0.5, tenon.Float16)})
	check(t, "a loss's type", loss.DType(), tenon.Float32)
	must(t, x.Backward(loss))
	for _, p := range []*tenon.Tensor{in, w, bias} {
		check(t, "a gradient's type", p.Grad().DType(), tenon.Float32)
	}
	// The gradient passed through a half type.
	v := testdevice.Read[float32](t, x, w.Grad())
	r := testdevice.Read[float32](t, x, x.ToDType(x.ToDType(w.Grad(), tenon.Float16), tenon.Float32))
	check(t, "the gradient", v[0], r[0])
}

func testAutocastBanned(t *testing.T, x *tenon.Exec) {
	for _, c := range autocastCalls(t, "banned") {
		want, _ := strings.CutPrefix(c.Out, "error: ")
		for _, low := range []tenon.DType{tenon.Float16, tenon.BFloat16} {
			err := tenon.Try(func() { c.runAutocast(x.Autocast(low), newArgs(x, c.recordedCase(t))) })
			wantError(t, err, want, "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
				"BCEWithLogits")
		}
		must(t, tenon.Try(func() { c.runAutocast(x.Autocast(tenon.Float16).Autocast(0), newArgs(x, c.recordedCase(t))) }))
	}
}

// Float64 and integers are left as they are, by every way to convert.
func testAutocastIgnoredTypes(t *testing.T, x *tenon.Exec) {
	y := x.Autocast(tenon.Float16)
	half := x.Ones([]int{8, 8}, tenon.Float16)
	for _, d := range []tenon.DType{tenon.Float64, tenon.Int32} {
		a, b := x.Ones([]int{8, 8}, d), x.Ones([]int{8, 8}, d)
		if d == tenon.Float64 {
			wantError(t, tenon.Try(func() { y.MM(a, half) }), "expected m1 and m2 to have the same dtype")
			check(t, "a product", y.MM(a, b).DType(), x.MM(a, b).DType())
			check(t, "a norm", y.VectorNorm(a, nil).DType(), tenon.Float64)
			check(t, "a promotion", y.AddCMul(a, b, half).DType(), tenon.Float64)
		}
		check(t, "a power", y.PowS(a, 2).DType(), x.PowS(a, 2).DType())
		check(t, "a sum", y.Sum(a, nil).DType(), x.Sum(a, nil).DType())
		check(t, "an exponential", y.Exp(a).DType(), x.Exp(a).DType())
	}
}

// product is a matrix product with a custom derivative; seen is called with the Exec and tensors of forward and backward.
type product struct {
	seen func(way string, x *tenon.Exec, ts ...*tenon.Tensor)
}

func (p product) Forward(x *tenon.Exec, c *tenon.FunctionContext, in ...*tenon.Tensor) []*tenon.Tensor {
	p.seen("forward", x, in...)
	c.Save(in[0], in[1])
	return []*tenon.Tensor{x.MM(in[0], in[1])}
}

func (p product) Backward(x *tenon.Exec, c *tenon.FunctionContext, g ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	s := c.Saved()
	a, b := x.MM(g[0], x.Transpose(s[1], 0, 1)), x.MM(x.Transpose(s[0], 0, 1), g[0])
	p.seen("backward", x, a, b)
	return []*tenon.Tensor{a, b}, nil
}

// widened is a product that gets its inputs as float32.
type widened struct{ product }

func (widened) CastInputs() tenon.DType { return tenon.Float32 }

// A function's forward and backward both run under the autocast of its call, though the backward pass is outside.
func testAutocastCustom(t *testing.T, x *tenon.Exec) {
	for _, low := range []tenon.DType{tenon.Float16, tenon.BFloat16} {
		a, b := x.RandN([]int{8, 8}, tenon.Float32).SetRequiresGrad(true), x.RandN([]int{8, 8}, tenon.Float32).SetRequiresGrad(true)
		ways := 0
		f := product{func(way string, x *tenon.Exec, ts ...*tenon.Tensor) {
			ways++
			check(t, way+"'s autocast", x.AutocastDType(), low)
			want := tenon.Float32
			if way == "backward" {
				want = low
			}
			for _, v := range ts {
				check(t, way+"'s tensors", v.DType(), want)
			}
		}}
		y := x.Autocast(low)
		out := y.Apply(f, a, b)[0]
		check(t, "the output", out.DType(), low)
		must(t, x.Backward(y.Sum(out, nil)))
		check(t, "ways", ways, 2)
		check(t, "the gradient", a.Grad().DType(), tenon.Float32)
		check(t, "the gradient", b.Grad().DType(), tenon.Float32)
	}
	// The derivative of a function called without autocast runs without it, even in a backward pass under autocast.
	a := x.RandN([]int{8, 8}, tenon.Float32).SetRequiresGrad(true)
	out := x.Apply(product{func(way string, x *tenon.Exec, ts ...*tenon.Tensor) {
		check(t, way+"'s autocast", x.AutocastDType(), 0)
	}}, a, a)[0]
	must(t, x.Autocast(tenon.Float16).Backward(x.Sum(out, nil)))
}

func testAutocastCastInputs(t *testing.T, x *tenon.Exec) {
	a := x.RandN([]int{8, 8}, tenon.Float16).SetRequiresGrad(true)
	b, n := x.RandN([]int{8, 8}, tenon.Float16), x.Ones([]int{2}, tenon.Int64)
	double := x.Ones([]int{2}, tenon.Float64)
	ways, want := 0, tenon.Float32
	f := widened{product{func(way string, x *tenon.Exec, ts ...*tenon.Tensor) {
		ways++
		check(t, way+"'s autocast", x.AutocastDType(), 0)
		check(t, way+"'s first", ts[0].DType(), want)
		check(t, way+"'s second", ts[1].DType(), want)
		if way == "forward" {
			check(t, "integers", ts[2].DType(), tenon.Int64)
			check(t, "doubles", ts[3].DType(), tenon.Float64)
		}
	}}}
	apply := func(x *tenon.Exec) *tenon.Tensor {
		return x.Apply(quiet{f}, a, b, n, double)[0]
	}
	out := apply(x.Autocast(tenon.Float16))
	check(t, "the output", out.DType(), tenon.Float32)
	must(t, x.Backward(x.Sum(out, nil)))
	check(t, "the gradient", a.Grad().DType(), tenon.Float16)
	// Without autocast nothing is converted.
	want = tenon.Float16
	out = apply(x)
	check(t, "the output without autocast", out.DType(), tenon.Float16)
	must(t, x.Backward(x.Sum(out, nil)))
	check(t, "ways", ways, 4)
	wantError(t, tenon.Try(func() { x.Autocast(tenon.Float16).Apply(counted{}, a) }), "not a floating-point type")
}

// quiet has no gradients of the inputs after the first.
type quiet struct{ widened }

func (q quiet) Backward(x *tenon.Exec, c *tenon.FunctionContext, g ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	ts, err := q.widened.Backward(x, c, g...)
	return []*tenon.Tensor{ts[0], nil, nil, nil}, err
}

// counted asks for a type that autocast cannot convert to.
type counted struct{ product }

func (counted) CastInputs() tenon.DType { return tenon.Int32 }

// Tensors of the processor are joined on an Exec of the processor that was derived from one under autocast.
func testAutocastHost(t *testing.T, x *tenon.Exec) {
	h := x.Autocast(tenon.Float16).Host()
	a, b := h.RandN([]int{1}, tenon.Float32), h.RandN([]int{1}, tenon.Float32)
	c := h.Cat([]*tenon.Tensor{a, b}, 0)
	d := h.Stack([]*tenon.Tensor{c, c}, 0)
	check(t, "the type", d.DType(), tenon.Float32)
	v := testdevice.Read[float32](t, h, d)
	check(t, "the elements", len(v) == 4 && v[0] == v[2] && v[1] == v[3] && v[0] == testdevice.Read[float32](t, h, a)[0], true)
	// On the GPU a 0-d tensor of the processor is a number, and no operand that autocast looks at.
	g := x.Autocast(tenon.Float16)
	check(t, "a product with a number", g.Mul(x.Ones([]int{2}, tenon.Float16), h.Full(nil, 2, tenon.Float32)).DType(), tenon.Float16)
}

func testAutocastCacheLeak(t *testing.T, x *tenon.Exec) {
	l := nn.NewLinear(x, 10, 10)
	defer nn.Close(l)
	in := x.RandN([]int{1, 10}, tenon.Float32)
	dev := x.Device()
	before := dev.MemoryAllocated()
	x.Scope(func(x *tenon.Exec) {
		y := x.Autocast(tenon.Float16).NoGrad()
		l.Forward(y, in).Close()
		first := dev.MemoryAllocated()
		check(t, "the copies' bytes", first-before, 2*512)
		for range 3 {
			l.Forward(y, in).Close()
		}
		check(t, "bytes after three more calls", dev.MemoryAllocated(), first)
		// Copies made where gradients are recorded replace these.
		y = y.EnableGrad()
		for range 3 {
			l.Forward(y, in).Close()
		}
		check(t, "bytes after recorded calls", dev.MemoryAllocated(), first)
		// So do those of a changed parameter.
		for range 3 {
			w := l.Weight.Tensor()
			x.NoGrad().AddInto(w, w, w)
			l.Forward(y, in).Close()
		}
		check(t, "bytes after changes", dev.MemoryAllocated(), first)
	})
	check(t, "bytes after the scope", dev.MemoryAllocated(), before)
	x.Scope(func(x *tenon.Exec) {
		y := x.Autocast(tenon.Float16).AutocastCache(false)
		l.Forward(y, in).Close()
		check(t, "bytes without copies", dev.MemoryAllocated(), before)
	})
}

func testAutocastCheckpointing(t *testing.T, x *tenon.Exec) {
	net := nn.Sequential{nn.NewLinear(x, 8, 8), nn.NewLinear(x, 8, 8), nn.NewLinear(x, 8, 8)}
	defer nn.Close(net)
	in := x.Rand([]int{8, 8}, tenon.Float16).SetRequiresGrad(true)
	y := x.Autocast(tenon.Float16)
	gradients := func(forward func() *tenon.Tensor) (all []float32) {
		out := forward()
		check(t, "the output", out.DType(), tenon.Float16)
		check(t, "requires grad", out.RequiresGrad(), true)
		must(t, x.Backward(x.Sum(out, nil)))
		check(t, "the input's gradient", in.Grad().DType(), tenon.Float16)
		all = testdevice.Read[float32](t, x, x.ToDType(in.Grad(), tenon.Float32))
		in.SetGrad(nil)
		for _, p := range nn.Params(net) {
			check(t, "a parameter's gradient", p.Grad().DType(), tenon.Float32)
			all = append(all, testdevice.Read[float32](t, x, p.Grad())...)
			p.SetGrad(nil)
		}
		return all
	}
	plain := gradients(func() *tenon.Tensor { return net.Forward(y, in) })
	segments := gradients(func() *tenon.Tensor { return nn.CheckpointSequential(y, net, 2, in) })
	check(t, "gradients are equal", slices.Equal(plain, segments), true)
	// The second run is under the first one's autocast.
	var seen []tenon.DType
	spy := nn.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
		seen = append(seen, x.AutocastDType())
		return net[0].Forward(x, in)
	})
	out := nn.Checkpoint(y, nn.Sequential{spy, net[1]}, in)
	must(t, x.Backward(x.Sum(out, nil)))
	check(t, "runs under autocast", slices.Equal(seen, []tenon.DType{tenon.Float16, tenon.Float16}), true)
	in.SetGrad(nil)
}
