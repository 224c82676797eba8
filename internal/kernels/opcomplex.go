package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// The complex functions below follow W. Kahan, "Branch cuts for complex elementary functions, or much ado about nothing's sign bit" (1987),
// for cuts and signs; simple products of real functions are as in textbooks.

func complexExp(k *kernel.Builder, z Num) Num {
	e := math.Exp(k, z.Re)
	re, im := e.Mul(math.Cos(k, z.Im)), e.Mul(math.Sin(k, z.Im))
	flat := z.Im.Eq(z.Im.Like(0)) // keeps e^inf real
	return Num{flat.Select(e, re), flat.Select(z.Im, im)}
}

// complexExpm1 is accurate near 0: e^x cos y - 1 = expm1(x) cos y - 2 sin²(y/2).
func complexExpm1(k *kernel.Builder, z Num) Num {
	half := math.Sin(k, z.Im.Mul(z.Im.Like(0.5)))
	re := math.Expm1(k, z.Re).Mul(math.Cos(k, z.Im)).Sub(half.Mul(half).Mul(half.Like(2)))
	return Num{re, math.Exp(k, z.Re).Mul(math.Sin(k, z.Im))}
}

func complexLog(k *kernel.Builder, z Num) Num {
	return Num{logMagnitude(k, z), math.Atan2(k, z.Im, z.Re)}
}

// logMagnitude returns log|z|. Float32 goes through float64, so that it is correct to the last bit also near |z| = 1.
func logMagnitude(k *kernel.Builder, z Num) kernel.Value {
	if z.Re.Type() != dtype.Float32 {
		return math.Log(k, math.Hypot(k, z.Re, z.Im))
	}
	x, y := z.Re.Convert(dtype.Float64), z.Im.Convert(dtype.Float64)
	l := math.Log(k, x.Mul(x).Add(y.Mul(y))).Mul(x.Like(0.5)).Convert(dtype.Float32)
	return isInf(z.Re).Or(isInf(z.Im)).Select(l.Like(gomath.Inf(1)), l)
}

// complexLog1p is accurate near 0: |1+z|² = 1 + (x(2+x) + y²).
func complexLog1p(k *kernel.Builder, z Num) Num {
	x, y := z.Re, z.Im
	one := x.Like(1)
	near := x.Abs().Lt(x.Like(0.5)).And(y.Abs().Lt(y.Like(0.5)))
	small := math.Log1p(k, x.Mul(x.Like(2).Add(x)).Add(y.Mul(y))).Mul(x.Like(0.5))
	large := math.Log(k, math.Hypot(k, x.Add(one), y))
	return Num{near.Select(small, large), math.Atan2(k, y, x.Add(one))}
}

func complexSqrt(k *kernel.Builder, z Num) Num {
	x, y := z.Re, z.Im
	zero, half := x.Like(0), x.Like(0.5)
	m := math.Hypot(k, x, y)
	// t = √((|z|+|x|)/2), halved before the sum so that it does not overflow.
	t := m.Mul(half).Add(x.Abs().Mul(half)).Sqrt()
	other := y.Abs().Mul(half).Div(t)
	right := x.Ge(zero)
	re := right.Select(t, other)
	im := copySign(right.Select(other, t), y)
	none := m.Eq(zero)
	return Num{none.Select(zero, re), none.Select(y, im)}
}

func complexSin(k *kernel.Builder, z Num) Num {
	return Num{math.Sin(k, z.Re).Mul(math.Cosh(k, z.Im)), math.Cos(k, z.Re).Mul(math.Sinh(k, z.Im))}
}

func complexCos(k *kernel.Builder, z Num) Num {
	return Num{math.Cos(k, z.Re).Mul(math.Cosh(k, z.Im)), math.Sin(k, z.Re).Mul(math.Sinh(k, z.Im)).Neg()}
}

// complexTanh computes (b s √(1+s²) + i t) / d with t = tan y, s = sinh x, b = 1+t² and d = 1 + b s². Beyond |x| = 20 the result is ±1 to
// the last bit.
func complexTanh(k *kernel.Builder, z Num) Num {
	x, y := z.Re, z.Im
	one := x.Like(1)
	far := x.Abs().Gt(x.Like(20))
	t, s := math.Tan(k, y), math.Sinh(k, far.Select(x.Like(0), x))
	b := t.FMA(t, one)
	d := b.Mul(s).FMA(s, one)
	re := b.Mul(s).Mul(s.FMA(s, one).Sqrt()).Div(d)
	return Num{far.Select(copySign(one, x), re), far.Select(copySign(x.Like(0), t), t.Div(d))}
}

// roots returns √(1-z) and √(1+z), with the signs of zero parts that the branch cuts require.
func roots(k *kernel.Builder, z Num) (minus, plus Num) {
	one := z.Re.Like(1)
	return complexSqrt(k, Num{one.Sub(z.Re), z.Im.Neg()}), complexSqrt(k, Num{one.Add(z.Re), z.Im})
}

func complexAsin(k *kernel.Builder, z Num) Num {
	m, p := roots(k, z)
	re := math.Atan2(k, z.Re, m.Re.Mul(p.Re).Sub(m.Im.Mul(p.Im)))
	return Num{re, math.Asinh(k, m.Re.Mul(p.Im).Sub(m.Im.Mul(p.Re)))}
}

func complexAcos(k *kernel.Builder, z Num) Num {
	m, p := roots(k, z)
	re := math.Atan2(k, m.Re, p.Re)
	return Num{re.Add(re), math.Asinh(k, p.Re.Mul(m.Im).Sub(p.Im.Mul(m.Re)))}
}

func complexAcosh(k *kernel.Builder, z Num) Num {
	one := z.Re.Like(1)
	m, p := complexSqrt(k, Num{z.Re.Sub(one), z.Im}), complexSqrt(k, Num{z.Re.Add(one), z.Im})
	im := math.Atan2(k, m.Im, p.Re)
	return Num{math.Asinh(k, m.Re.Mul(p.Re).Add(m.Im.Mul(p.Im))), im.Add(im)}
}

func complexAtanh(k *kernel.Builder, z Num) Num {
	x, y := z.Re.Abs(), z.Im // in the right half plane, where log1p's argument is positive
	one := x.Like(1)
	d := one.Sub(x)
	re := math.Log1p(k, x.Mul(x.Like(4)).Div(d.Mul(d).Add(y.Mul(y)))).Mul(x.Like(0.25))
	im := math.Atan2(k, y.Add(y), d.Mul(one.Add(x)).Sub(y.Mul(y))).Mul(x.Like(0.5))
	return Num{copySign(re, z.Re), im}
}
