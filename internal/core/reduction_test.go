package core

import (
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// TestReductionsOfNothing checks that reductions of no elements have the right value, or are refused.
func TestReductionsOfNothing(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		none := x.Zeros([]int{2, 0}, dtype.Float32)
		rows := []int{1}
		want(t, x, x.Sum(none, rows, SumOpt{}), 0, 0)
		want(t, x, x.Prod(none, rows, SumOpt{}), 1, 1)
		want(t, x, x.ToDType(x.All(none, rows, DimOpt{}), dtype.Float32), 1, 1)
		want(t, x, x.ToDType(x.Any(none, rows, DimOpt{}), dtype.Float32), 0, 0)
		want(t, x, x.ToDType(x.CountNonzero(none, nil), dtype.Float32), 0)
		want(t, x, x.VectorNorm(none, rows, VectorNormOpt{}), 0, 0)
		want(t, x, x.LogSumExp(none, rows, DimOpt{}), float32(math.Inf(-1)), float32(math.Inf(-1)))
		if m := x.AMax(none, []int{0}, DimOpt{}); m.Numel() != 0 {
			t.Errorf("the extremes of no columns have shape %v", m.shape)
		}
		for name, f := range map[string]func(){
			"AMax": func() {
				x.AMax(none, rows, DimOpt{})
			}, "MaxDim": func() { x.MaxDim(none, 1, DimOpt{}) }, "ArgMin": func() { x.ArgMin(none, rows, DimOpt{}) },
		} {
			wantError(t, Try(f), fault.Invalid, name+"(float32[2 0]): Expected reduction dim 1 to have non-zero size")
		}
		for name, f := range map[string]func(){
			"AMin": func() { x.AMin(none, nil, DimOpt{}) }, "Min": func() { x.Min(none) },
			"ArgMax": func() { x.ArgMax(none, nil, DimOpt{}) }} {
			wantError(t, Try(f), fault.Invalid, name+"(float32[2 0]): Expected reduction dim to be specified for input.numel() == 0")
		}
	})
}

func TestExtremes(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		nan := float32(math.NaN())
		a := From(x, []float32{1, 3, 3, 0, nan, 5}, 2, 3)
		v, i := x.MaxDim(a, 1, DimOpt{})
		if got := floats(t, x, v); got[0] != 3 || got[1] == got[1] {
			t.Errorf("got %v", got)
		}
		want(t, x, x.ToDType(i, dtype.Float32), 1, 1)
		want(t, x, x.ToDType(x.ArgMax(a, nil, DimOpt{}), dtype.Float32), 4)
		want(t, x, x.ToDType(x.ArgMin(x.Slice(a, 0, 0, 1, 1), nil, DimOpt{KeepDim: true}), dtype.Float32), 0)
		zero := From(x, []float32{7})
		v, i = x.MinDim(x.Select(zero, 0, 0), -1, DimOpt{KeepDim: true})
		want(t, x, v, 7)
		want(t, x, x.ToDType(i, dtype.Float32), 0)

		// Equal extremes share the gradient of Max; MaxDim gives it to the first.
		l := leafOf(x, 2, 5, 5, 1)
		backward(t, x, x.Max(l), BackwardOpt{})
		want(t, x, l.Grad(), 0, 0.5, 0.5, 0)
		l = leafOf(x, 2, 5, 5, 1)
		v, _ = x.MaxDim(l, 0, DimOpt{})
		backward(t, x, v, BackwardOpt{})
		want(t, x, l.Grad(), 0, 1, 0, 0)
	})
}

func TestVarianceCorrections(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1, 2, 3, 6})
		want(t, x, x.Var(a, nil, VarOpt{}), 14.0/3)
		for c, w := range map[float64]float32{0: 3.5, 2: 7, 3.5: 28, 4: float32(math.Inf(1)), 5: float32(math.Inf(1))} {
			got := floats(t, x, x.Var(a, nil, VarOpt{Correction: c}))[0]
			if math.Abs(float64(got-w)) > 1e-5 {
				t.Errorf("with correction %v the variance is %v, want %v", c, got, w)
			}
		}
		if got := floats(t, x, x.Std(x.Slice(a, 0, 0, 1, 1), nil, VarOpt{}))[0]; got == got {
			t.Errorf("the standard deviation of one element is %v", got)
		}
		// If all elements equal the mean, the deviation has gradient 0, not NaN.
		l := leafOf(x, 2, 2, 2)
		backward(t, x, x.Std(l, nil, VarOpt{}), BackwardOpt{})
		want(t, x, l.Grad(), 0, 0, 0)
	})
}

// TestProductGradientAtZeros checks that the gradient of a product with zeros is the product of the other elements.
func TestProductGradientAtZeros(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, c := range []struct{ at, grad []float32 }{
			{[]float32{2, 3, 4}, []float32{12, 8, 6}}, {[]float32{2, 0, 4}, []float32{0, 8, 0}}, {[]float32{0, 0, 4}, []float32{0, 0, 0}},
			{[]float32{5}, []float32{1}},
		} {
			for _, create := range []bool{false, true} {
				l := leafOf(x, c.at...)
				backward(t, x, x.Prod(l, nil, SumOpt{}), BackwardOpt{CreateGraph: create})
				want(t, x, l.Grad(), c.grad...)
				l.SetGrad(nil) // a gradient with a history would keep its own leaf
			}
		}
	})
}

func TestReductionRefusals(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		f, n, z := From(x, []float32{1, 2}), From(x, []int32{1, 2}), From(x, []complex64{1, 2i})
		refused := func(kind fault.Kind, part string, f func()) {
			t.Helper()
			wantError(t, Try(f), kind, part, "reduction_test.go")
		}
		refused(fault.Invalid, "could not infer output dtype", func() { x.Mean(n, nil, SumOpt{}) })
		refused(fault.Invalid, "Dimension out of range", func() { x.Sum(f, []int{1}, SumOpt{}) })
		refused(fault.Invalid, "dim 0 appears multiple times in the list of dims", func() { x.Sum(f, []int{0, -1}, SumOpt{}) })
		refused(fault.Unsupported, "AMax is not defined for complex", func() { x.AMax(z, nil, DimOpt{}) })
		refused(fault.Unsupported, "ArgMax is not defined for complex", func() { x.ArgMax(z, nil, DimOpt{}) })
		refused(fault.Invalid, "only floating point and complex dtypes are supported, not int32", func() { x.Var(n, nil, VarOpt{}) })
		refused(fault.Invalid, "Expected a floating point or complex tensor as input. Got int32; convert it with x.ToDType", func() {
			x.VectorNorm(n, nil, VectorNormOpt{})
		})
	})
}
