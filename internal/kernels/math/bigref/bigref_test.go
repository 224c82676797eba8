package bigref

import (
	"math"
	"testing"
)

// TestAgainstFloat64 checks every function against Go's, to a few units of float64, at ordinary arguments.
func TestAgainstFloat64(t *testing.T) {
	for _, f := range []struct {
		name string
		big  func(x *Float) *Float
		std  func(x float64) float64
		at   []float64
	}{
		{"exp", Exp, math.Exp, []float64{-700, -1, 1e-9, 0.3, 5, 700}},
		{"exp2", Exp2, math.Exp2, []float64{-700, -1, 1e-9, 0.3, 5, 700}},
		{"expm1", Expm1, math.Expm1, []float64{-30, -1, 1e-300, 0.3, 5, 700}},
		{"log", Log, math.Log, []float64{1e-300, 0.5, 0.999999999, 1, 1.5, 1e300}},
		{"log1p", Log1p, math.Log1p, []float64{-0.999, -1e-300, 1e-9, 0.5, 1e300}},
		{"log2", Log2, math.Log2, []float64{1e-300, 0.3, 3, 1e300}},
		{"log10", Log10, math.Log10, []float64{1e-300, 0.3, 3, 1e300}},
		{"sin", Sin, math.Sin, []float64{-1e300, -3, 1e-300, 0.5, 2, 1e22}},
		{"cos", Cos, math.Cos, []float64{-1e300, -3, 1e-300, 0.5, 2, 1e22}},
		{"tan", Tan, math.Tan, []float64{-1e300, -3, 1e-300, 0.5, 2, 1e22}},
		{"asin", Asin, math.Asin, []float64{-1, -0.5, 1e-300, 0.25, 0.99, 1}},
		{"acos", Acos, math.Acos, []float64{-1, -0.5, 1e-300, 0.25, 0.99}},
		{"atan", Atan, math.Atan, []float64{-1e300, -1, 1e-300, 0.25, 3}},
		{"sinh", Sinh, math.Sinh, []float64{-700, -1, 1e-300, 0.25, 3}},
		{"cosh", Cosh, math.Cosh, []float64{-700, -1, 1e-300, 0.25, 3}},
		{"tanh", Tanh, math.Tanh, []float64{-700, -1, 1e-300, 0.25, 3}},
		{"asinh", Asinh, math.Asinh, []float64{-1e300, -1, 1e-300, 0.25, 3}},
		{"acosh", Acosh, math.Acosh, []float64{1.0001, 2, 1e300}},
		{"atanh", Atanh, math.Atanh, []float64{-0.99, 1e-300, 0.03, 0.25, 0.5}},
		{"erf", Erf, math.Erf, []float64{-6, -4, -1, 1e-300, 0.5, 2, 4.9}},
		{"erfc", Erfc, math.Erfc, []float64{-6, -1, 1e-300, 0.5, 1.9, 2, 4.9, 8, 26}},
		{"erfinv", Erfinv, math.Erfinv, []float64{-0.999, 1e-300, 0.25, 0.7, 0.9999}},
	} {
		for _, x := range f.at {
			got, _ := f.big(Of(x)).Float64()
			want := f.std(x)
			if math.Abs(got-want) > 4e-15*math.Abs(want) {
				t.Errorf("%s(%v) = %v, want %v", f.name, x, got, want)
			}
		}
	}
}

// TestIdentities checks identities between independent series at full precision.
func TestIdentities(t *testing.T) {
	same := func(name string, a, b *Float) {
		t.Helper()
		if d := sub(a, b); d.Sign() != 0 && exponent(d) > exponent(a)-Prec+40 {
			t.Errorf("%s: %v and %v differ", name, a, b)
		}
	}
	for _, v := range []float64{0.01, 0.3, 0.9, 1.7} {
		x := Of(v)
		same("log exp", Log(Exp(x)), x)
		same("log1p expm1", Log1p(Expm1(x)), x)
		same("sin²+cos²", add(mul(Sin(x), Sin(x)), mul(Cos(x), Cos(x))), Of(1))
		same("atan tan", Atan(Tan(Of(v/2))), Of(v/2))
		same("asin sin", Asin(Sin(Of(v/2))), Of(v/2))
		same("acos cos", Acos(Cos(x)), x)
		same("asinh sinh", Asinh(Sinh(x)), x)
		same("acosh cosh", Acosh(Cosh(x)), x)
		same("atanh tanh", Atanh(Tanh(x)), x)
		same("erfinv erf", Erfinv(Erf(x)), x)
		same("pow", Pow(x, Of(3)), mul(x, mul(x, x)))
	}
	same("erfc at 2", Erfc(Of(2)), sub(Of(1), mul(erfSeries(Of(2), Prec+16), scale(Of(2)))))
	same("atan2", add(Atan2(Of(1), Of(-2)), Atan2(Of(1), Of(2))), Pi())
	same("hypot", Hypot(Of(3), Of(4)), Of(5))
}
