package linalg

import (
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/testdevice"
)

// scaling is an attribute of a row outside core.
type scaling struct {
	by    int
	twice bool
}

// The test's rows have one property each.
var (
	rowDrawn = core.Define(core.Op{Name: "TestDrawn", Package: "linalg", Takes: "p", Draws: func(*core.Frame) uint64 {
		return kernels.BernoulliAdvance
	}, Infer: like, Run: func(f *core.Frame) error {
		return kernels.Bernoulli(f, core.ElementsOf(f.Out(0)), core.ElementsOf(f.In(0)), f.Philox())
	}})
	rowWaiting = core.Define(core.Op{Name: "TestWaiting", Package: "linalg", Takes: "t", Waits: true, Infer: like,
		Run: func(f *core.Frame) error {
			if err := f.Exec().Stream().Synchronize(); err != nil {
				return err
			}
			return copied(f)
		}})
	_ = core.Define(core.Op{Name: "TestVarying", Package: "linalg", Takes: "t", Varies: true, Infer: like,
		Run: func(f *core.Frame) error { return copied(f) }})
	rowScaled = core.Define(core.Op{Name: "TestScaled", Package: "linalg", Takes: "t; factor; options", Infer: like,
		Run: func(f *core.Frame) error {
			out, in := core.ElementsOf(f.Out(0)), core.ElementsOf(f.In(0))
			by := kernels.FloatScalar(core.OptionsOf[scaling](f).times(f.Number(0)))
			return kernels.Pointwise(f, kernels.AddScaled, out.DType, []kernels.Scalar{by}, []kernels.Operand{out},
				[]kernels.Operand{in, in})
		}})
)

// rowCounted counts in ran how often its Run function runs.
var (
	ran        int
	rowCounted = core.Define(core.Op{Name: "TestCounted", Package: "linalg", Takes: "t", Infer: like,
		Run: func(f *core.Frame) error { ran++; return copied(f) }})
)

func init() {
	rowScaled.SetBack(func(b *core.Back) {
		x := b.Exec()
		b.Set(0, x.AddScaled(b.Grad(0), b.Grad(0), core.OptionsOf[scaling](b).times(b.Number(0))))
	})
}

func (s scaling) times(factor float64) float64 {
	if s.twice {
		factor *= 2
	}
	return factor * float64(s.by)
}

// scaled returns t + factor*s*t.
func scaled(x *tenon.Exec, t *tenon.Tensor, s scaling, factor float64) *tenon.Tensor {
	f := core.Begin((*core.Exec)(x), rowScaled, (*core.Tensor)(t))
	core.SetOptions(f, s)
	f.SetNumber(0, factor)
	return (*tenon.Tensor)(f.Do())
}

func call(x *tenon.Exec, r *core.Row, t *tenon.Tensor) *tenon.Tensor {
	return (*tenon.Tensor)(core.Begin((*core.Exec)(x), r, (*core.Tensor)(t)).Do())
}

func like(f *core.Frame) { f.NewOut(0, f.In(0).DType(), f.In(0).Shape(), nil) }

func copied(f *core.Frame) error {
	out, in := core.ElementsOf(f.Out(0)), core.ElementsOf(f.In(0))
	return kernels.Pointwise(f, kernels.Copy, out.DType, nil, []kernels.Operand{out}, []kernels.Operand{in})
}

// TestDrawnOutside checks that a row outside core draws like core's own rows: the same numbers, in graphs too.
func TestDrawnOutside(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	p := x.Full([]int{300}, 0.5, tenon.Float32)
	gen := x.Device().Generator()
	gen.SetSeed(5)
	want := [][]float32{testdevice.Read[float32](t, x, x.Bernoulli(p)), testdevice.Read[float32](t, x, x.Bernoulli(p))}
	if slices.Equal(want[0], want[1]) {
		t.Fatal("draws are alike")
	}
	gen.SetSeed(5)
	if got := testdevice.Read[float32](t, x, call(x, rowDrawn, p)); !slices.Equal(got, want[0]) {
		t.Error("it draws other numbers")
	}
	var y *tenon.Tensor
	g, err := x.Capture(func(x *tenon.Exec) { y = call(x, rowDrawn, p) })
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	gen.SetSeed(5)
	for _, w := range want {
		if err := x.Replay(g); err != nil {
			t.Fatal(err)
		}
		if got := testdevice.Read[float32](t, x, y); !slices.Equal(got, w) {
			t.Error("a replay draws other numbers")
		}
	}
}

// TestWaitingOutside checks that a row that waits is refused in a capture, which then fails, and runs outside of one.
func TestWaitingOutside(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	a := tenon.From(x, []float32{1, 2})
	if got := testdevice.Read[float32](t, x, call(x, rowWaiting, a)); !slices.Equal(got, []float32{1, 2}) {
		t.Error("it gives", got)
	}
	_, err := x.Capture(func(x *tenon.Exec) { call(x, rowWaiting, a) })
	if fault.KindOf(err) != fault.Capture || !strings.Contains(err.Error(), "TestWaiting cannot be captured") {
		t.Error("in a capture:", err)
	}
}

// TestSaidOutside checks that Ops reports the rows' properties.
func TestSaidOutside(t *testing.T) {
	seen := 0
	for _, o := range core.Ops() {
		if !strings.HasPrefix(o.Name, "Test") {
			continue
		}
		seen++
		if o.Draws != (o.Name == "TestDrawn") || o.Waits != (o.Name == "TestWaiting") || o.Varies != (o.Name == "TestVarying") {
			t.Errorf("%+v", o)
		}
		if o.Name == "TestScaled" && (!slices.Equal(o.Values, []string{"factor"}) || !slices.Equal(o.Structure, []string{"options"})) {
			t.Errorf("it has the values %v and the structure %v", o.Values, o.Structure)
		}
	}
	if seen != 6 {
		t.Error(seen, "rows")
	}
}

// TestOptionsOutside checks that an attribute of another package's type decides the call: equal attributes make equal calls, and a call
// prints, is differentiated, and runs again.
func TestOptionsOutside(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	seen := &callsSeen{}
	core.SetTap((*core.Exec)(x), seen)
	a := tenon.From(x, []float32{1, 2}).SetRequiresGrad(true)
	seen.calls = nil
	y := scaled(x, a, scaling{3, true}, 0.5)
	scaled(x, a, scaling{3, true}, 0.5)
	scaled(x, a, scaling{3, false}, 0.5)
	scaled(x, a, scaling{3, true}, 0.25)
	core.SetTap((*core.Exec)(x), nil)
	c := seen.calls
	if len(c) != 4 || c[0] != c[1] || c[0] == c[2] || c[0] == c[3] {
		t.Fatal("calls:", c)
	}
	if text := c[0].String(); !strings.HasSuffix(text, " s0=0.5 linalg.scaling{by:3 twice:true}") {
		t.Error("it prints as", text)
	}
	if got := testdevice.Read[float32](t, x, y); !slices.Equal(got, []float32{4, 8}) {
		t.Error("it gives", got)
	}
	again := core.Again((*core.Exec)(x), c[2], []*core.Tensor{(*core.Tensor)(a)})
	if got := testdevice.Read[float32](t, x, (*tenon.Tensor)(again[0])); !slices.Equal(got, []float32{2.5, 5}) {
		t.Error("again it gives", got)
	}
	g, err := x.Grad([]*tenon.Tensor{x.Sum(y, nil)}, []*tenon.Tensor{a})
	if err != nil {
		t.Fatal(err)
	}
	if got := testdevice.Read[float32](t, x, g[0]); !slices.Equal(got, []float32{4, 4}) {
		t.Error("its derivative is", got)
	}
}

// rowDoubled changes its operand, which is no destination.
var rowDoubled = core.Define(core.Op{Name: "TestDoubled", Package: "linalg", Takes: "t^ ->", Infer: func(*core.Frame) {},
	Run: func(f *core.Frame) error {
		t := core.ElementsOf(f.In(0))
		return kernels.Pointwise(f, kernels.AddScaled, t.DType, []kernels.Scalar{kernels.FloatScalar(1)}, []kernels.Operand{t},
			[]kernels.Operand{t, t})
	}})

// TestChangingOutside checks that a row outside core that changes an operand counts as a change of it: in its version, for derivatives
// that saved it, and for leaves.
func TestChangingOutside(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	double := func(x *tenon.Exec, t *tenon.Tensor) { core.Begin((*core.Exec)(x), rowDoubled, (*core.Tensor)(t)).Do() }
	a := tenon.From(x, []float32{1, 2})
	double(x, a)
	if got := testdevice.Read[float32](t, x, a); !slices.Equal(got, []float32{2, 4}) || a.Version() != 1 {
		t.Errorf("it gives %v, version %d", got, a.Version())
	}
	leaf := tenon.From(x, []float32{1, 2}).SetRequiresGrad(true)
	b := x.MulS(leaf, 1)
	loss := x.Sum(x.Mul(b, b), nil)
	double(x.NoGrad(), b)
	if err := x.Backward(loss); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "modified") {
		t.Error("the gradient of a value that was changed:", err)
	}
	if err := tenon.Try(func() { double(x, leaf) }); fault.KindOf(err) != fault.Invalid {
		t.Error("a leaf that requires grad was changed:", err)
	}
}

// multiplying is a tap that multiplies where the program adds.
type multiplying struct{ wrong, fails bool }

func (p multiplying) Before(f *core.Frame) bool {
	if f.Op() != "Add" {
		return false
	}
	var y *core.Tensor
	f.Nested(func() {
		x := f.Exec().NoGrad()
		if y = x.Mul(f.In(0), f.In(1)); p.wrong {
			y = x.ToDType(y, tenon.Int32)
		}
		if p.fails {
			x.MM(y, y)
		}
	})
	f.Give(0, y)
	return true
}

func (multiplying) After(*core.Frame) {}

// TestTapOutsideTakesCallsOver checks that a tap outside core may make the outputs of a call: its results, their derivative and their
// lifetime are those of the call, an output of another type is refused, and a call of the tap that fails undoes the
// call that it was made for.
func TestTapOutsideTakesCallsOver(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	x.Ones([]int{1}, tenon.Float32).Close()
	before := testdevice.Storages()
	x.Scope(func(x *tenon.Exec) {
		a, b := tenon.From(x, []float32{2, 3}).SetRequiresGrad(true), tenon.From(x, []float32{5, 7})
		core.SetTap((*core.Exec)(x), multiplying{})
		defer core.SetTap((*core.Exec)(x), nil)
		y := x.Add(a, b)
		if got := testdevice.Read[float32](t, x, y); !slices.Equal(got, []float32{10, 21}) {
			t.Error("the tap's call gives", got)
		}
		g, err := x.Grad([]*tenon.Tensor{x.Sum(y, nil)}, []*tenon.Tensor{a})
		if err != nil {
			t.Fatal(err)
		}
		if got := testdevice.Read[float32](t, x, g[0]); !slices.Equal(got, []float32{1, 1}) { // of the sum that the program wrote
			t.Error("its derivative is", got)
		}
		core.SetTap((*core.Exec)(x), multiplying{wrong: true})
		if err := tenon.Try(func() { x.Add(a, b) }); err == nil || !strings.Contains(err.Error(), "must be float32 of shape [2]") {
			t.Error("an output of another type:", err)
		}
		core.SetTap((*core.Exec)(x), multiplying{fails: true})
		err = tenon.Try(func() { x.Add(a, b) })
		if err == nil || !strings.HasPrefix(err.Error(), "Add(") {
			t.Error("a call of the tap that fails:", err)
		}
		core.SetTap((*core.Exec)(x), nil)
		if got := testdevice.Read[float32](t, x, x.Add(a, b)); !slices.Equal(got, []float32{7, 10}) {
			t.Error("after it, without the tap, the sum is", got)
		}
	})
	if n := core.LiveStorages() - before; n != 0 {
		t.Error(n, "storages are left")
	}
}

// TestLearningOutside checks that a region which finds out what kernels it needs does not run a row outside core for that.
func TestLearningOutside(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	(*core.Exec)(x).Stream().Device().SetBuildsAhead(true)
	a := tenon.From(x, []float32{1, 2})
	ran = 0
	var y *tenon.Tensor
	err := compile.New(compile.Opt{NoGraphs: true}).Do(x, func(x *tenon.Exec) error {
		y = x.Keep(call(x, rowCounted, x.Exp(a)))
		return nil
	})
	if err != nil || ran != 1 {
		t.Errorf("it ran %d times in one run, and the run returned %v", ran, err)
	}
	y.Close()
}
