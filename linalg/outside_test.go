package linalg

import (
	"slices"
	"strings"
	"testing"

	"tenon.dev"
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
	if seen != 4 {
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
