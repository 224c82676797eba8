package math

import (
	"math"

	"tenon.dev/kernel"
)

// sinWord returns sin(r) for |r| <= π/4.
func (f float) sinWord(r word, z kernel.Value) kernel.Value {
	lo := z.Mul(f.c(-0.5)).FMA(r.lo, r.lo) // r.lo cos(r)
	return r.hi.Add(r.hi.Mul(z).FMA(f.poly(sinPoly, z), lo))
}

// cosWord returns cos(r) for |r| <= π/4.
func (f float) cosWord(r word, z kernel.Value) kernel.Value {
	h := z.Mul(f.c(0.5))
	s := f.c(1).Sub(h)
	rest := f.c(1).Sub(s).Sub(h) // exact
	return s.Add(z.Mul(z).FMA(f.poly(cosPoly, z), r.hi.Neg().FMA(r.lo, rest)))
}

// quadrant returns sin(|x| + q π/2) in float64, NaN for infinities and NaNs.
func (f float) quadrant(x, q kernel.Value) kernel.Value {
	a := x.Abs()
	n, r := f.reduceTrig(a)
	n = n.Add(q)
	z := r.hi.Mul(r.hi)
	y := n.And(f.k.I32(1)).Ne(f.k.I32(0)).Select(f.cosWord(r, z), f.sinWord(r, z))
	flip := n.And(f.k.I32(2)).Ne(f.k.I32(0))
	y = flip.Select(y.Neg(), y)
	return a.Lt(f.inf()).Select(y, f.nan())
}

// turn returns sin(x) or cos(x) in float32. With the period π, one polynomial serves for all arguments.
func (f float) turn(x kernel.Value, cosine bool) kernel.Value {
	n, r := f.reduceTurn(x, cosine)
	z := r.Mul(r)
	y := r.Mul(z).FMA(f.poly(sinTurnPoly, z), r)
	// y has the sign of r, except that it is never -0.
	bits := y.Bitcast(f.bits) // a GPU has one instruction for both Xors and the And
	return n.Shl(f.k.I32(31)).Add(r.Bitcast(f.bits)).Xor(bits).And(f.i(math.MinInt32)).Xor(bits).Bitcast(f.t)
}

// Sin returns the sine of x in radians, accurate for all x.
func Sin(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	if !f.wide() {
		return f.turn(x, false)
	}
	return f.withSign(f.quadrant(x, k.I32(0)), f.sign(x))
}

// Cos returns the cosine of x in radians, accurate for all x.
func Cos(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	if !f.wide() {
		return f.turn(x, true)
	}
	return f.quadrant(x, k.I32(1))
}

// SinCosSmall returns the sine and cosine of |x| <= π/4.
func SinCosSmall(k *kernel.Builder, x kernel.Value) (sin, cos kernel.Value) {
	f := of(k, x)
	z := x.Mul(x)
	sin = x.Mul(z).FMA(f.poly(sinPoly, z), x)
	cos = f.poly(cosPoly, z).FMA(z, f.c(-0.5)).FMA(z, f.c(1))
	return sin, cos
}

// Tan returns the tangent of x in radians, accurate for all x.
func Tan(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	a := x.Abs()
	n, r := f.reduceTrig(a)
	z := r.hi.Mul(r.hi)
	t := fastTwoSum(r.hi, r.hi.Mul(z).FMA(f.poly(tanPoly, z), z.FMA(r.lo, r.lo)))
	// -1/t, with one step of Newton's iteration for the low part.
	y := f.c(-1).Div(t.hi)
	e := y.FMA(t.lo, y.FMA(t.hi, f.c(1)))
	y = y.FMA(e, y)
	odd := n.And(k.I32(1)).Ne(k.I32(0))
	y = odd.Select(y, t.hi)
	return f.withSign(a.Lt(f.inf()).Select(y, f.nan()), f.sign(x))
}

// TanHalfTurn returns the tangent of |x| < π/2, in float32 without the reduction that larger x need and without a branch.
func TanHalfTurn(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	if f.wide() {
		return Tan(k, x)
	}
	a := x.Abs()
	far := a.Gt(f.c(math.Pi / 4))
	r := word{far.Select(f.part(halfPi, 0).Sub(a), a), far.Select(f.part(halfPi, 1), f.c(0))}
	z := r.hi.Mul(r.hi)
	t := fastTwoSum(r.hi, r.hi.Mul(z).FMA(f.poly(tanPoly, z), r.lo))
	// 1/t: a linear approximation in the logarithms, two steps that cube the relative error, and one step for the low part.
	y := f.i(0x7ef311c3).Sub(t.hi.Bitcast(f.bits)).Bitcast(f.t)
	missing := func() kernel.Value { return t.hi.Neg().FMA(y, f.c(1)) }
	for range 2 {
		e := missing()
		y = y.FMA(e.FMA(e, e), y)
	}
	y = y.FMA(t.lo.Neg().FMA(y, missing()), y)
	return f.withSign(far.Select(y, t.hi), f.sign(x))
}

// asinTail returns s and w with asin(a) = s + w for a <= 1/2 (big false), otherwise π/2 - 2(s + w).
func (f float) asinTail(a kernel.Value) (big, s, w kernel.Value) {
	big = a.Gt(f.c(0.5))
	z := big.Select(f.c(1).Sub(a).Mul(f.c(0.5)), a.Mul(a))
	s = big.Select(z.Sqrt(), a)
	return big, s, s.Mul(z).Mul(f.poly(asinPoly, z))
}

// from returns c - (s + w) for a constant c >= s.
func (f float) from(c split, s, w kernel.Value) kernel.Value {
	t := fastTwoSum(f.part(c, 0), s.Neg())
	return t.hi.Add(t.lo.Add(f.part(c, 1).Sub(w)))
}

// Asin returns the arc sine.
func Asin(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	big, s, w := f.asinTail(x.Abs())
	y := big.Select(f.from(halfPi, s.Add(s), w.Add(w)), s.Add(w))
	return f.withSign(y, f.sign(x))
}

// Acos returns the arc cosine.
func Acos(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	big, s, w := f.asinTail(x.Abs())
	sign := f.sign(x)
	middle := f.from(halfPi, f.withSign(s, sign), f.withSign(w, sign))
	s, w = s.Add(s), w.Add(w)
	edge := x.Lt(f.c(0)).Select(f.from(piConst, s, w), s.Add(w))
	return big.Select(edge, middle)
}

// atanTail returns atan(t) - t for 0 <= t <= 1.
func (f float) atanTail(t kernel.Value) kernel.Value {
	z := t.Mul(t)
	return t.Mul(z).Mul(f.poly(atanPoly, z))
}

// Atan returns the arc tangent.
func Atan(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	a := x.Abs()
	inverse := a.Gt(f.c(1))
	t := inverse.Select(f.c(1).Div(a), a)
	// The division's rounding error, which matters only near 1.
	lo := inverse.And(a.Lt(f.c(1<<30))).Select(t.Neg().FMA(a, f.c(1)).Mul(t), f.c(0))
	w := f.atanTail(t).Add(lo)
	y := inverse.Select(f.from(halfPi, t, w), t.Add(w))
	return f.withSign(y, f.sign(x))
}

// Atan2 returns the angle of the point (x, y) in (-π, π].
func Atan2(k *kernel.Builder, y, x kernel.Value) kernel.Value {
	f := of(k, x)
	ay, ax := y.Abs(), x.Abs()
	swap := ay.Gt(ax)
	num, den := ay.Min(ax), ay.Max(ax)
	t := num.Div(den)
	t = den.Eq(f.c(0)).Select(f.c(0), t)
	t = num.Eq(f.inf()).Select(f.c(1), t)
	w := f.atanTail(t)
	left := x.Bitcast(f.bits).Lt(f.i(0)) // -0 counts as negative
	// The angle is t+w, π/2-(t+w), π-(t+w) or π/2+(t+w).
	base := func(j int) kernel.Value {
		return swap.Select(f.part(halfPi, j), left.Select(f.part(piConst, j), f.c(0)))
	}
	minus := swap.Xor(left)
	st, sw := minus.Select(t.Neg(), t), minus.Select(w.Neg(), w)
	s := fastTwoSum(base(0), st)
	r := s.hi.Add(s.lo.Add(base(1).Add(sw)))
	r = f.withSign(r, f.sign(y))
	return x.IsNaN().Or(y.IsNaN()).Select(f.nan(), r)
}
