package math

import (
	"math"

	"tenon.dev/kernel"
)

// log2Word returns log2(x) for finite x > 0 as a double word with a relative error below 2^-32 (2^-64 in float64).
//
// log(m) = 2 atanh(s) with s = (m-1)/(m+1). s, s² and the coefficient of the cubic term are double words; the rest is one word.
func (f float) log2Word(x kernel.Value) word {
	x, shift := f.normalize(x)
	m, e := f.mantissaExponent(x)
	num, den := m.Sub(f.c(1)), twoSum(m, f.c(1)) // m-1 is exact
	s := num.Div(den.hi)
	lo := s.Neg().FMA(den.lo, s.Neg().FMA(den.hi, num)).Div(den.hi)
	sw := word{s, lo}
	z := sw.mul(sw)
	// 1/3 + z p(z)
	c := fastTwoSum(f.part(oneThird, 0), z.hi.Mul(f.poly(powPoly, z.hi)))
	c.lo = c.lo.Add(f.part(oneThird, 1))
	t := z.mul(c) // atanh(s)/s - 1
	a := sw.mul(t)
	sum := fastTwoSum(sw.hi, a.hi)
	l := fastTwoSum(sum.hi, sum.lo.Add(a.lo.Add(sw.lo)))
	l = l.mul(f.word(log2eConst))
	l = word{l.hi.Add(l.hi), l.lo.Add(l.lo)}
	r := fastTwoSum(e.Sub(shift).Convert(f.t), l.hi)
	return fastTwoSum(r.hi, r.lo.Add(l.lo))
}

// exp2Word returns 2^(t.hi + t.lo), or 0 or infinity if that is outside the range of the type.
func (f float) exp2Word(t word) kernel.Value {
	bound := f.either(200, 1200)
	n := t.hi.Rint().Min(bound).Max(bound.Neg())
	d := t.hi.Sub(n) // exact
	hi := d.Mul(f.part(ln2Const, 0))
	lo := d.FMA(f.part(ln2Const, 1), d.FMA(f.part(ln2Const, 0), hi.Neg()))
	r := twoSum(hi, t.lo.FMA(f.part(ln2Const, 0), lo))
	y := f.ldexp(r.hi.Add(f.expTail(r)).Add(f.c(1)), n.Convert(f.bits))
	y = t.hi.Ge(f.either(129, 1025)).Select(f.inf(), y)
	return t.hi.Lt(f.either(-151, -1076)).Select(f.c(0), y)
}

// Pow returns x^y with the special cases of C's pow: 1 for any 1^y and x^0, even if the other operand is a NaN.
func Pow(k *kernel.Builder, x, y kernel.Value) kernel.Value {
	f := of(k, x)
	a := x.Abs()
	l := f.log2Word(a)
	// |y| beyond this overflows or underflows unless a = 1.
	limit := f.c(math.Ldexp(1, 2*f.mantissa))
	t := l.scale(y.Min(limit).Max(limit.Neg()))
	r := f.exp2Word(t)

	infinite := a.Eq(f.c(0)).Or(a.Eq(f.inf()))
	up := a.Gt(f.c(1)).Xor(y.Lt(f.c(0))) // a^y grows with |y|
	r = infinite.Select(up.Select(f.inf(), f.c(0)), r)
	// An odd integer exponent keeps the sign of x; every float of 2^(mantissa+1) or more is even.
	half := y.Mul(f.c(0.5))
	whole := y.Trunc().Eq(y)
	odd := whole.And(half.Trunc().Ne(half)).And(y.Abs().Lt(f.c(math.Ldexp(1, f.mantissa+1))))
	negative := x.Bitcast(f.bits).Lt(f.i(0))
	r = negative.And(odd).Select(r.Neg(), r)
	r = x.Lt(f.c(0)).And(a.Lt(f.inf())).And(whole.Not()).Select(f.nan(), r)
	r = x.IsNaN().Or(y.IsNaN()).Select(f.nan(), r)
	one := x.Eq(f.c(1)).Or(y.Eq(f.c(0))).Or(a.Eq(f.c(1)).And(y.Abs().Eq(f.inf())))
	return one.Select(f.c(1), r)
}

// Hypot returns sqrt(x²+y²) without overflow or underflow in between.
func Hypot(k *kernel.Builder, x, y kernel.Value) kernel.Value {
	f := of(k, x)
	ax, ay := x.Abs(), y.Abs()
	hi, lo := ax.Max(ay), ax.Min(ay)
	// Scale by a power of two near hi such that it and its inverse are representable.
	e := hi.Bitcast(f.bits).Shr(k.I32(f.mantissa)).Sub(f.i(int64(f.bias)))
	e = e.Max(f.i(int64(-f.bias + 1))).Min(f.i(int64(f.bias - 1)))
	up, down := f.pow2(e), f.pow2(e.Neg())
	a, b := hi.Mul(down), lo.Mul(down)
	p, q := twoProd(a, a), twoProd(b, b)
	h := fastTwoSum(p.hi, q.hi)
	h = fastTwoSum(h.hi, h.lo.Add(p.lo.Add(q.lo)))
	s := h.hi.Sqrt()
	r := s.Add(f.rootTail(h, s)).Mul(up)
	r = x.IsNaN().Or(y.IsNaN()).Select(f.nan(), r)
	return hi.Eq(f.inf()).Select(f.inf(), r)
}

// Rsqrt returns 1/sqrt(x).
func Rsqrt(k *kernel.Builder, x kernel.Value) kernel.Value {
	return of(k, x).c(1).Div(x.Sqrt())
}
