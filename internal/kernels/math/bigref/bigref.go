// Package bigref computes the elementary functions to hundreds of bits with plain series over math/big. It is the reference from which the
// polynomials of package math are derived and against which its results are tested. It must not depend on kernels, and only tests and
// generators import it.
package bigref

import (
	"math"
	"math/big"
	"sync"
)

// Prec is the precision of results in bits. They may lose a few bits, as series without cancellation have a few hundred terms.
const Prec = 300

// Float is a number of at least Prec bits. Functions return new numbers and do not modify their operands.
type Float = big.Float

func zero() *Float                 { return new(Float).SetPrec(Prec) }
func add(a, b *Float) *Float       { return zero().Add(a, b) }
func sub(a, b *Float) *Float       { return zero().Sub(a, b) }
func mul(a, b *Float) *Float       { return zero().Mul(a, b) }
func quo(a, b *Float) *Float       { return zero().Quo(a, b) }
func ldexp(a *Float, n int) *Float { return zero().SetMantExp(a, n) }
func quoInt(a *Float, n int) *Float {
	return quo(a, new(Float).SetInt64(int64(n)))
}

// Of returns v, which must not be a NaN.
func Of(v float64) *Float { return zero().SetFloat64(v) }

// Rat returns a/b.
func Rat(a, b int64) *Float { return quo(zero().SetInt64(a), zero().SetInt64(b)) }

// Sqrt returns the square root.
func Sqrt(x *Float) *Float { return zero().Sqrt(x) }

// exponent returns e with 2^(e-1) <= |x| < 2^e, and a very small number for 0.
func exponent(x *Float) int {
	if x.Sign() == 0 {
		return math.MinInt32
	}
	return x.MantExp(nil)
}

// series sums first*(term(1) ... term(n)) for n = 0, 1, …, until the terms are negligible. term(n) multiplies the summand in place.
func series(first *Float, term func(n int, t *Float)) *Float {
	sum, t := zero().Set(first), zero().Set(first)
	for n := 1; t.Sign() != 0 && exponent(t) > exponent(sum)-Prec-8; n++ {
		term(n, t)
		sum.Add(sum, t)
	}
	return sum
}

// atanSeries returns x - x³/3 + … for sign -1 (atan) and x + x³/3 + … for sign 1 (atanh).
func atanSeries(x *Float, sign int) *Float {
	z := mul(x, x)
	if sign < 0 {
		z.Neg(z)
	}
	sum, p := zero().Set(x), zero().Set(x)
	for n := 3; p.Sign() != 0 && exponent(p) > exponent(sum)-Prec-8; n += 2 {
		p.Mul(p, z)
		sum.Add(sum, quoInt(p, n))
	}
	return sum
}

// piPrec is enough to reduce every float64.
const piPrec = 1100 + Prec

// Pi returns π to 1400 bits, by Machin's formula.
var Pi = sync.OnceValue(func() *Float {
	inverse := func(n int64) *Float {
		x := new(Float).SetPrec(piPrec).Quo(big.NewFloat(1), new(Float).SetPrec(piPrec).SetInt64(n))
		z := new(Float).SetPrec(piPrec).SetInt64(-n * n)
		sum, p := new(Float).Copy(x), new(Float).Copy(x)
		for i := int64(3); exponent(p) > -piPrec-8; i += 2 {
			p.Quo(p, z)
			sum.Add(sum, new(Float).SetPrec(piPrec).Quo(p, new(Float).SetInt64(i)))
		}
		return sum
	}
	a, b := inverse(5), inverse(239)
	a.SetMantExp(a, 2)
	a.Sub(a, b)
	return a.SetMantExp(a, 2)
})

// Ln2 returns the natural logarithm of 2.
var Ln2 = sync.OnceValue(func() *Float {
	return ldexp(atanSeries(Rat(1, 3), 1), 1)
})

// Ln10 returns the natural logarithm of 10.
var Ln10 = sync.OnceValue(func() *Float { return Log(Of(10)) })

// Exp returns e^x, 0 below -10^6 and infinity above 10^6.
func Exp(x *Float) *Float {
	if x.Sign() == 0 {
		return Of(1)
	}
	nf, _ := quo(x, Ln2()).Float64()
	switch {
	case nf < -1.5e6:
		return zero()
	case nf > 1.5e6:
		return zero().SetInf(false)
	}
	n := int(math.Round(nf))
	r := sub(x, mul(Ln2(), zero().SetInt64(int64(n))))
	const halvings = 12
	r = ldexp(r, -halvings)
	e := series(Of(1), func(n int, t *Float) { t.Mul(t, r).Quo(t, big.NewFloat(float64(n))) })
	for range halvings {
		e.Mul(e, e)
	}
	return ldexp(e, n)
}

// Exp2 returns 2^x.
func Exp2(x *Float) *Float { return Exp(mul(x, Ln2())) }

// Expm1 returns e^x - 1.
func Expm1(x *Float) *Float {
	if exponent(x) > 0 {
		return sub(Exp(x), Of(1))
	}
	return series(zero().Set(x), func(n int, t *Float) { t.Mul(t, x).Quo(t, big.NewFloat(float64(n+1))) })
}

// Log returns the natural logarithm of x > 0.
func Log(x *Float) *Float {
	m := zero()
	e := x.MantExp(m)
	if m.Cmp(Of(math.Sqrt2/2)) < 0 {
		m = ldexp(m, 1)
		e--
	}
	// log m = 2 atanh((m-1)/(m+1)), after three square roots that bring m close to 1.
	const roots = 3
	for range roots {
		m.Sqrt(m)
	}
	s := quo(sub(m, Of(1)), add(m, Of(1)))
	return add(mul(Ln2(), Of(float64(e))), ldexp(atanSeries(s, 1), 1+roots))
}

// Log1p returns log(1+x), x > -1.
func Log1p(x *Float) *Float {
	if exponent(x) > -8 {
		return Log(new(Float).SetPrec(2*Prec).Add(Of(1), x))
	}
	return ldexp(atanSeries(quo(x, add(x, Of(2))), 1), 1)
}

// Log2 returns the logarithm to base 2.
func Log2(x *Float) *Float { return quo(Log(x), Ln2()) }

// Log10 returns the logarithm to base 10.
func Log10(x *Float) *Float { return quo(Log(x), Ln10()) }

// reduce returns x - n π/2 with the least magnitude, and n modulo 4.
func reduce(x *Float) (*Float, int) {
	wide := new(Float).SetPrec(piPrec)
	half := new(Float).SetPrec(piPrec).SetMantExp(Pi(), -1)
	wide.Quo(x, half)
	if wide.Sign() >= 0 {
		wide.Add(wide, big.NewFloat(0.5))
	} else {
		wide.Sub(wide, big.NewFloat(0.5))
	}
	n, _ := wide.Int(nil)
	nf := new(Float).SetPrec(piPrec).SetInt(n)
	r := new(Float).SetPrec(piPrec).Sub(x, nf.Mul(nf, half))
	q := new(big.Int).And(n, big.NewInt(3)).Int64()
	return zero().Set(r), int(q)
}

// sinSeries returns sin x for n = 0 and cos x for n = 1, |x| < 1.
func sinSeries(x *Float, n int) *Float {
	z := mul(x, x)
	z.Neg(z)
	first, k := zero().Set(x), 1
	if n&1 != 0 {
		first, k = Of(1), 0
	}
	return series(first, func(i int, t *Float) {
		a := float64(k + 2*i)
		t.Mul(t, z).Quo(t, big.NewFloat(a*(a-1)))
	})
}

func quadrant(r *Float, n int) *Float {
	s := sinSeries(r, n)
	if n&2 != 0 {
		s.Neg(s)
	}
	return s
}

// Sin returns the sine.
func Sin(x *Float) *Float { r, n := reduce(x); return quadrant(r, n) }

// Cos returns the cosine.
func Cos(x *Float) *Float { r, n := reduce(x); return quadrant(r, n+1) }

// Tan returns the tangent.
func Tan(x *Float) *Float { return quo(Sin(x), Cos(x)) }

// Atan returns the arc tangent.
func Atan(x *Float) *Float {
	if x.Cmp(Of(1)) > 0 {
		return sub(ldexp(Pi(), -1), Atan(quo(Of(1), x)))
	}
	if x.Cmp(Of(-1)) < 0 {
		return zero().Neg(Atan(zero().Neg(x)))
	}
	n := 0
	for t := x; ; n++ {
		if exponent(t) < -4 {
			return ldexp(atanSeries(t, -1), n)
		}
		t = quo(t, add(Of(1), Sqrt(add(Of(1), mul(t, t)))))
	}
}

// Atan2 returns the angle of the point (x, y), which must not be the origin.
func Atan2(y, x *Float) *Float {
	switch {
	case x.Sign() > 0:
		return Atan(quo(y, x))
	case x.Sign() == 0 || zero().Abs(y).Cmp(zero().Abs(x)) > 0:
		h := ldexp(Pi(), -1)
		if y.Sign() < 0 {
			h.Neg(h)
		}
		return sub(h, Atan(quo(x, y)))
	case y.Sign() >= 0:
		return add(Atan(quo(y, x)), Pi())
	}
	return sub(Atan(quo(y, x)), Pi())
}

// oneMinusSquare returns (1-x)(1+x).
func oneMinusSquare(x *Float) *Float { return mul(sub(Of(1), x), add(Of(1), x)) }

// Asin returns the arc sine, |x| <= 1.
func Asin(x *Float) *Float {
	c := Sqrt(oneMinusSquare(x))
	return Atan2(x, c)
}

// Acos returns the arc cosine, |x| <= 1.
func Acos(x *Float) *Float {
	return ldexp(Atan2(Sqrt(sub(Of(1), x)), Sqrt(add(Of(1), x))), 1)
}

// Sinh returns the hyperbolic sine.
func Sinh(x *Float) *Float {
	if exponent(x) < 0 {
		z := mul(x, x)
		return series(zero().Set(x), func(i int, t *Float) {
			a := float64(2*i + 1)
			t.Mul(t, z).Quo(t, big.NewFloat(a*(a-1)))
		})
	}
	e := Exp(x)
	return ldexp(sub(e, quo(Of(1), e)), -1)
}

// Cosh returns the hyperbolic cosine.
func Cosh(x *Float) *Float {
	e := Exp(x)
	return ldexp(add(e, quo(Of(1), e)), -1)
}

// Tanh returns the hyperbolic tangent.
func Tanh(x *Float) *Float { return quo(Sinh(x), Cosh(x)) }

// Atanh returns the inverse hyperbolic tangent, |x| < 1.
func Atanh(x *Float) *Float {
	if exponent(x) < -4 {
		return atanSeries(x, 1)
	}
	return ldexp(Log(quo(add(Of(1), x), sub(Of(1), x))), -1)
}

// Asinh returns the inverse hyperbolic sine.
func Asinh(x *Float) *Float {
	s := Sqrt(add(Of(1), mul(x, x)))
	if exponent(x) < -4 {
		return Atanh(quo(x, s))
	}
	if x.Sign() < 0 {
		return zero().Neg(Log(sub(s, x)))
	}
	return Log(add(x, s))
}

// Acosh returns the inverse hyperbolic cosine, x >= 1.
func Acosh(x *Float) *Float {
	return ldexp(Asinh(Sqrt(ldexp(sub(x, Of(1)), -1))), 1)
}

// Pow returns x^y, x > 0.
func Pow(x, y *Float) *Float { return Exp(mul(y, Log(x))) }

// Hypot returns sqrt(x²+y²).
func Hypot(x, y *Float) *Float { return Sqrt(add(mul(x, x), mul(y, y))) }

// erfSeries returns erf x to prec bits, by 2/√π exp(-x²) Σ x (2x²)^n / (1·3·…·(2n+1)), whose terms are all positive.
func erfSeries(x *Float, prec uint) *Float {
	z := new(Float).SetPrec(prec).Mul(x, x)
	two := new(Float).SetPrec(prec).SetMantExp(z, 1)
	sum := new(Float).SetPrec(prec).Set(x)
	t := new(Float).SetPrec(prec).Set(x)
	for n := 1; t.Sign() != 0 && exponent(t) > exponent(sum)-int(prec); n++ {
		t.Mul(t, two).Quo(t, big.NewFloat(float64(2*n+1)))
		sum.Add(sum, t)
	}
	return sum
}

// scale returns 2/√π exp(-x²) to Prec bits.
func scale(x *Float) *Float {
	return quo(Exp(zero().Neg(mul(x, x))), Sqrt(ldexp(Pi(), -2)))
}

// Erf returns the error function.
func Erf(x *Float) *Float {
	if f, _ := x.Float64(); math.Abs(f) > 5 {
		s := sub(Of(1), Erfc(zero().Abs(x)))
		if f < 0 {
			s.Neg(s)
		}
		return s
	}
	return mul(erfSeries(x, Prec+16), scale(x))
}

// Erfcx returns exp(x²) erfc(x), x >= 2, from its continued fraction (NIST Handbook of Mathematical Functions, 7.9.1).
func Erfcx(x *Float) *Float {
	f, _ := x.Float64()
	// Backward recurrence from a depth at which the truncation error is below 2^-Prec (the rate is exp(-2x√(2n))).
	n := int(math.Pow(float64(Prec+20)*math.Ln2/(2*math.Sqrt2*f), 2)) + 40
	t := zero().Set(x)
	for ; n > 0; n-- {
		t = add(x, quo(Rat(int64(n), 2), t))
	}
	return quo(Of(1), mul(t, Sqrt(Pi())))
}

// Erfc returns 1 - erf(x).
func Erfc(x *Float) *Float {
	if f, _ := x.Float64(); f >= 2 {
		return mul(Erfcx(x), Exp(zero().Neg(mul(x, x))))
	}
	return sub(Of(1), Erf(x))
}

// Erfinv returns the inverse of Erf, |x| < 1.
func Erfinv(x *Float) *Float {
	if x.Sign() < 0 {
		return zero().Neg(Erfinv(zero().Neg(x)))
	}
	rest := sub(Of(1), x)
	xf, _ := x.Float64()
	rf, _ := rest.Float64()
	y := Of(math.Erfinv(min(xf, 0.999)))
	if xf > 0.999 {
		l := -math.Log(rf)
		y = Of(math.Sqrt(l - 0.5*math.Log(math.Pi*l)))
	}
	// Halley's iteration triples the number of correct digits.
	for range 6 {
		var d *Float
		if xf > 0.5 {
			d = sub(rest, Erfc(y))
		} else {
			d = sub(Erf(y), x)
		}
		d = quo(d, scale(y))
		y = sub(y, quo(d, add(Of(1), mul(y, d))))
	}
	return y
}
