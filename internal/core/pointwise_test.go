package core

import (
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// TestScalarForms checks that forms with a number give the same as forms with a tensor.
func TestScalarForms(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, v := From(x, []float32{-3.5, -2, -0.5, 0, 0.5, 2, 7}), 2.0
		s := From(x, []float32{2}, 1)
		for name, pair := range map[string][2]*Tensor{
			"add": {x.AddS(a, v), x.Add(a, s)}, "sub": {x.SubS(a, v), x.Sub(a, s)}, "rsub": {x.RSubS(a, v), x.Sub(s, a)},
			"mul": {x.MulS(a, v), x.Mul(a, s)}, "div": {x.DivS(a, v), x.Div(a, s)}, "rdiv": {x.RDivS(a, v), x.Div(s, a)},
			"floor": {x.FloorDivideS(a, v), x.FloorDivide(a, s)}, "pow": {x.PowS(a, v), x.Pow(a, s)},
			"remainder": {x.RemainderS(a, v), x.Remainder(a, s)}, "fmod": {x.FModS(a, v), x.FMod(a, s)},
			"eq": {x.EqS(a, v), x.Eq(a, s)}, "ne": {x.NeS(a, v), x.Ne(a, s)}, "lt": {x.LtS(a, v), x.Lt(a, s)},
			"le": {x.LeS(a, v), x.Le(a, s)}, "gt": {x.GtS(a, v), x.Gt(a, s)}, "ge": {x.GeS(a, v), x.Ge(a, s)},
			"clamp_min": {x.ClampMinS(a, v), x.ClampMin(a, s)}, "clamp_max": {x.ClampMaxS(a, v), x.ClampMax(a, s)},
			"clamp":  {x.ClampS(a, -1, v), x.Clamp(a, x.Neg(x.DivS(s, 2)), s)},
			"lerp":   {x.LerpS(a, s, 0.25), x.Lerp(a, s, x.Full(nil, 0.25, dtype.Float32))},
			"masked": {x.MaskedFillS(a, x.GtS(a, 0), v), x.MaskedFill(a, x.GtS(a, 0), x.Select(s, 0, 0))},
		} {
			if pair[0].dt != pair[1].dt {
				t.Errorf("%s: %v with a number, %v with a tensor", name, pair[0].dt, pair[1].dt)
			}
			got, want := doubles(t, x, pair[0]), doubles(t, x, pair[1])
			for i := range want {
				if got[i] != want[i] && !math.IsNaN(want[i]) {
					t.Errorf("%s of element %d: %v with a number, %v with a tensor", name, i, got[i], want[i])
				}
			}
		}
		n := From(x, []int32{5, -5})
		if d := x.MulS(n, 2); d.dt != dtype.Int32 {
			t.Errorf("int32 times a whole number is %v", d.dt)
		}
		if d := x.MulS(n, 0.5); d.dt != dtype.Float32 {
			t.Errorf("int32 times a half is %v", d.dt)
		}
	})
}

// TestPointwiseInto checks that forms with a destination may write to their operand, and count as a change of it.
func TestPointwiseInto(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		b, c := From(x, []float32{2, 4, -2}), From(x, []float32{1, 2, 4})
		check := func(f func(a *Tensor), w ...float32) {
			t.Helper()
			a := From(x, []float32{-1, 0.5, 3})
			v := a.Version()
			f(a)
			if a.Version() != v+1 {
				t.Errorf("the version went from %d to %d", v, a.Version())
			}
			want(t, x, a, w...)
		}
		check(func(a *Tensor) { x.ReLUInto(a, a) }, 0, 0.5, 3)
		check(func(a *Tensor) { x.ClampSInto(a, a, 0, 1) }, 0, 0.5, 1)
		check(func(a *Tensor) { x.LerpSInto(a, a, b, 0.5) }, 0.5, 2.25, 0.5)
		check(func(a *Tensor) { x.AddScaledInto(a, a, b, 0.5) }, 0, 2.5, 2)
		check(func(a *Tensor) { x.AddCMulInto(a, a, b, c, AddCMulOpt{Value: 2}) }, 3, 16.5, -13)
		check(func(a *Tensor) { x.AddCDivInto(a, a, b, c, AddCMulOpt{Value: 2}) }, 3, 4.5, 2)
		check(func(a *Tensor) { x.MaskedFillSInto(a, a, x.GtS(b, 0), 9) }, 9, 9, 3)
	})
}

func TestPointwiseRefusals(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		f, n, b := From(x, []float32{1, 2}), From(x, []int32{1, 2}), From(x, []bool{true, false})
		z := From(x, []complex64{1, 2i})
		refused := func(kind fault.Kind, part string, f func()) {
			t.Helper()
			wantError(t, Try(f), kind, part, "pointwise_test.go")
		}
		refused(fault.Unsupported, "Neg is not defined for bool", func() { x.Neg(b) })
		refused(fault.Unsupported, "bool", func() { x.Positive(b) })
		refused(fault.Unsupported, "Sign is not defined for complex", func() { x.Sign(z) })
		refused(fault.Unsupported, "Floor is not defined for bool", func() { x.Floor(b) })
		refused(fault.Unsupported, "Round is not defined for complex", func() { x.Round(z) })
		refused(fault.Unsupported, "Frac is defined for floating-point tensors only, not int32", func() { x.Frac(n) })
		refused(fault.Unsupported, "Erf is not defined for complex", func() { x.Erf(z) })
		refused(fault.Unsupported, "BitwiseNot is defined for integer and bool", func() { x.BitwiseNot(f) })
		refused(fault.Unsupported, "BitwiseAnd is defined for integer and bool", func() { x.BitwiseAnd(n, f) })
		refused(fault.Unsupported, "Maximum is not defined for complex", func() { x.Maximum(z, z) })
		refused(fault.Unsupported, "Lt is not defined for complex", func() { x.Lt(z, z) })
		refused(fault.Unsupported, "KLDiv is not defined for complex", func() { x.KLDiv(z, z, KLDivOpt{}) })
		refused(fault.Invalid, "Dropout needs a floating-point tensor", func() { x.Dropout(x.Ones([]int{2}, dtype.Int64), 1) })
		refused(fault.Unsupported, "Ge is not defined for complex", func() { x.GeS(z, 1) })
		refused(fault.Unsupported, "Hypot is defined for floating-point", func() { x.Hypot(n, n) })
		refused(fault.Unsupported, "Lerp is defined for floating-point", func() { x.Lerp(n, n, n) })
		refused(fault.Unsupported, "GELU is defined for floating-point", func() { x.GELU(n) })
		refused(fault.Unsupported, "Hardtanh is not defined for bool", func() { x.Hardtanh(b, HardtanhOpt{}) })
		refused(fault.Invalid, "alpha must not be a floating point number", func() { x.AddScaled(n, n, 0.5) })
		refused(fault.Invalid, "Integers to negative integer powers are not allowed", func() { x.PowS(n, -1) })
		refused(fault.Invalid, "where expected condition to be a boolean tensor, but got a tensor with dtype int32", func() {
			x.Where(n, f, f)
		})
		refused(fault.Invalid, "only supports boolean masks", func() { x.MaskedFillS(f, n, 1) })
		refused(fault.Invalid, "only supports a 0-dimensional value tensor, but got tensor with 1 dimension", func() {
			x.MaskedFill(f, b, f)
		})
		refused(fault.Invalid, "is out of range for int32", func() { x.MaskedFillS(n, b, math.NaN()) })
		refused(fault.Unsupported, "Clamp is not defined for bool", func() { x.Clamp(b, b, b) })
		if y := x.ClampS(b, 0, 1); y.dt != dtype.Int64 || x.ClampMin(b, b).dt != dtype.Bool || x.Clamp(b, n, n).dt != dtype.Int32 {
			t.Errorf("bool limited by integers is %v, by others %v and %v", y.dt, x.ClampMin(b, b).dt, x.Clamp(b, n, n).dt)
		}
		refused(fault.Invalid, "at least one of min and max must not be nil", func() { x.Clamp(f, nil, nil) })
		refused(fault.Invalid, "result type float32 can't be cast to the desired output type int32 of the destination int32[2]; "+
			"give it one of type float32", func() { x.AddScaledInto(n, f, f, 1) })
	})
}

// TestPointwiseCorners checks numbers that are easy to get wrong: NaN, ties, signs and zeros.
func TestPointwiseCorners(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		nan, inf := float32(math.NaN()), float32(math.Inf(1))
		a := From(x, []float32{nan, inf, -inf, 1})
		want(t, x, x.NanToNum(a, NanToNumOpt{}), 0, math.MaxFloat32, -math.MaxFloat32, 1)
		want(t, x, x.NanToNum(a, NanToNumOpt{NaN: -1, PosInf: -1, NegInf: -1}), -1, -1, -1, 1)
		want(t, x, x.NanToNum(a, NanToNumOpt{NaN: 0, PosInf: 0, NegInf: 0}), 0, 0, 0, 1)
		h := x.ToDType(x.NanToNum(x.ToDType(a, dtype.Float16), NanToNumOpt{}), dtype.Float32)
		want(t, x, h, 0, 65504, -65504, 1)
		want(t, x, x.ToDType(x.IsNaN(a), dtype.Float32), 1, 0, 0, 0)
		want(t, x, x.FMax(a, x.Zeros([]int{1}, dtype.Float32)), 0, inf, 0, 1)
		want(t, x, x.ToDType(x.IsNaN(x.Maximum(a, x.Zeros([]int{1}, dtype.Float32))), dtype.Float32), 1, 0, 0, 0)
		want(t, x, x.Round(From(x, []float32{0.5, 1.5, 2.5, -0.5})), 0, 2, 2, 0)
		want(t, x, x.RoundDecimals(From(x, []float32{1.25, 1.35, -0.06, 149}), 1), 1.2, 1.4, -0.1, 149)
		want(t, x, x.RoundDecimals(From(x, []float32{1250, 1350, 149}), -2), 1200, 1400, 100)
		want(t, x, x.Remainder(From(x, []float32{-3, 3, -3}), From(x, []float32{2, -2, -2})), 1, -1, -1)
		want(t, x, x.FMod(From(x, []float32{-3, 3, -3}), From(x, []float32{2, -2, -2})), -1, 1, -1)
		want(t, x, x.FloorDivide(From(x, []float32{-3, 3, -3}), From(x, []float32{2, -2, -2})), -2, -2, 1)
		got, err := Read[uint8](x, x.BitwiseNot(From(x, []uint8{0, 0x0f})))
		if err != nil || got[0] != 0xff || got[1] != 0xf0 {
			t.Errorf("got %v, %v", got, err)
		}
		if p := x.Positive(a); p != a {
			t.Error("Positive made another tensor")
		}
	})
}

// TestAutocastClasses checks the result types of operations on halves under autocast.
func TestAutocastClasses(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := x.Full([]int{2, 2}, 0.5, dtype.Float16)
		x = x.Autocast(dtype.Float16)
		sum := func(t *Tensor) *Tensor { return x.Sum(t, nil, SumOpt{}) }
		for name, f := range map[string]func(t *Tensor) *Tensor{
			"acos": x.Acos, "asin": x.Asin, "cosh": x.Cosh, "erfinv": x.Erfinv, "exp": x.Exp, "expm1": x.Expm1,
			"log": x.Log, "log10": x.Log10,
			"log2": x.Log2, "log1p": x.Log1p, "reciprocal": x.Reciprocal, "rsqrt": x.Rsqrt, "sinh": x.Sinh, "tan": x.Tan, "sum": sum,
			"pow":       func(t *Tensor) *Tensor { return x.PowS(t, 2) },
			"prod":      func(t *Tensor) *Tensor { return x.Prod(t, nil, SumOpt{}) },
			"norm":      func(t *Tensor) *Tensor { return x.VectorNorm(t, nil, VectorNormOpt{}) },
			"logsumexp": func(t *Tensor) *Tensor { return x.LogSumExp(t, []int{0}, DimOpt{}) },
			"softplus":  func(t *Tensor) *Tensor { return x.Softplus(t, SoftplusOpt{}) },
		} {
			if d := f(a).dt; d != dtype.Float32 {
				t.Errorf("%s of float16 gives %v under autocast", name, d)
			}
		}
		for name, f := range map[string]func(t *Tensor) *Tensor{"sin": x.Sin, "tanh": x.Tanh, "relu": x.ReLU, "abs": x.Abs, "max": x.Max} {
			if d := f(a).dt; d != dtype.Float16 {
				t.Errorf("%s of float16 gives %v under autocast", name, d)
			}
		}
	})
}
