package math

import (
	"math"

	"tenon.dev/kernel"
)

// expLimits returns bounds of x beyond which e^x is infinite or rounds to 0.
func (f float) expLimits() (lo, hi float64) {
	if f.wide() {
		return -745.2, 709.8
	}
	return -104, 88.73
}

// reduceExp returns an integer n and r with x = n log 2 + r, |r| <= 0.3466. If e^x is far outside the range of the type, n is clamped and r
// is meaningless.
func (f float) reduceExp(x kernel.Value) (kernel.Value, word) {
	bound := f.either(200, 1200)
	n := x.Mul(f.part(log2eConst, 0)).Rint().Min(bound).Max(bound.Neg())
	r0 := n.FMA(f.minus(ln2Const, 0), x) // exact
	hi := n.FMA(f.minus(ln2Const, 1), r0)
	lo := n.FMA(f.minus(ln2Const, 1), r0.Sub(hi))
	return n.Convert(f.bits), word{hi, lo}
}

// expTail returns e^r - 1 - r.hi for a reduced argument.
func (f float) expTail(r word) kernel.Value {
	return r.hi.Mul(r.hi).FMA(f.poly(expPoly, r.hi), r.lo)
}

// expWord returns e^r for a reduced argument as a double word.
func (f float) expWord(r word) word {
	e := fastTwoSum(r.hi, f.expTail(r))
	s := fastTwoSum(f.c(1), e.hi)
	return word{s.hi, s.lo.Add(e.lo)}
}

// exp returns e^x.
func (f float) exp(x kernel.Value) kernel.Value {
	n, r := f.reduceExp(x)
	y := f.ldexp(r.hi.Add(f.expTail(r)).Add(f.c(1)), n)
	return f.saturateExp(x, y)
}

// saturateExp returns y = e^x, replaced by 0 or infinity where that is outside the range of the type.
func (f float) saturateExp(x, y kernel.Value) kernel.Value {
	lo, hi := f.expLimits()
	y = x.Gt(f.c(hi)).Select(f.inf(), y)
	return x.Lt(f.c(lo)).Select(f.c(0), y)
}

// Exp returns e^x.
func Exp(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	if f.wide() {
		return f.exp(x)
	}
	return f.expFar(x.Minimum(f.c(89)).Maximum(f.c(-104))) // they give infinity and 0
}

// ExpNonPositive returns e^x for x that is not positive, or NaN. An x slightly above 0 from rounding does no harm: the result is correct up
// to x = 40.
func ExpNonPositive(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	if f.wide() {
		return f.exp(x)
	}
	// 2^(n+64) is a normal number for every nonzero result, and the second product rounds subnormal ones once.
	y, up := f.expNear(x.Maximum(f.c(-104)), 64) // it gives 0
	return y.Mul(up.Shl(k.I32(f.mantissa)).Bitcast(f.t)).Mul(f.c(0x1p-64))
}

// ExpDifference is ExpNonPositive for an x that is a rounded difference, and at most slightly above 0. In float32 it uses the device's own
// exponential: below -87.3 the result is 0, and the relative error is below 2^-21.
func ExpDifference(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	if f.wide() {
		return f.exp(x)
	}
	t := x.Mul(f.part(log2eConst, 0))
	y := t.Exp2()
	rest := t.FMA(f.c(-math.Ln2), x) // of the rounded product
	return x.Lt(f.c(-87.3)).Select(f.c(0), y.FMA(rest, y))
}

// exponentShift returns a number that rounds a float32 n to an integer when it is added to it. The lowest nine bits of the sum are the
// exponent of 2^(n+more).
func (f float) exponentShift(more int) kernel.Value { return f.c(0x1.8p23 + float64(f.bias+more)) }

// expNear returns y and t with e^x = y 2^n in float32. y is near 1, and t 2^mantissa has the bits of 2^(n+more).
func (f float) expNear(x kernel.Value, more int) (y, t kernel.Value) {
	shift := f.exponentShift(more)
	sum := x.FMA(f.part(log2eConst, 0), shift)
	whole := sum.Sub(shift)
	r := whole.FMA(f.minus(ln2Const, 1), whole.FMA(f.minus(ln2Const, 0), x))
	return f.poly(expNearPoly, r).FMA(r, f.c(1)), sum.Bitcast(f.bits)
}

// expFar returns e^x in float32 as y 2^n 2^n, where n is the integer nearest to half the binary logarithm of e^x, for x from -104 to 89.
func (f float) expFar(x kernel.Value) kernel.Value {
	shift := f.exponentShift(0)
	t := x.FMA(f.c(float64(log2eConst.f32[0])/2), shift)
	whole := t.Sub(shift)
	r := whole.FMA(f.c(-2*float64(ln2Const.f32[1])), whole.FMA(f.c(-2*float64(ln2Const.f32[0])), x))
	root := t.Bitcast(f.bits).Shl(f.k.I32(f.mantissa)).Bitcast(f.t)
	return f.poly(expFarPoly, r).FMA(r, f.c(1)).Mul(root).Mul(root)
}

// expBounded returns e^x if that is a normal number.
func (f float) expBounded(x kernel.Value) kernel.Value {
	if f.wide() {
		return f.exp(x)
	}
	y, t := f.expNear(x, -f.bias)
	return y.Bitcast(f.bits).Add(t.Shl(f.k.I32(f.mantissa))).Bitcast(f.t)
}

// ExpNumber returns e^x for x that is not a NaN, in float32 with fewer instructions than Exp.
func ExpNumber(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	if f.wide() {
		return f.exp(x)
	}
	return f.expFar(x.Min(f.c(89)).Max(f.c(-104))) // they give infinity and 0
}

// Exp2 returns 2^x.
func Exp2(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	bound := f.either(200, 1200)
	n := x.Rint().Min(bound).Max(bound.Neg())
	t := x.Sub(n) // exact
	hi := t.Mul(f.part(ln2Const, 0))
	lo := t.FMA(f.part(ln2Const, 1), t.FMA(f.part(ln2Const, 0), hi.Neg()))
	r := word{hi, lo}
	y := f.ldexp(hi.Add(f.expTail(r)).Add(f.c(1)), n.Convert(f.bits))
	y = x.Ge(f.either(128, 1024)).Select(f.inf(), y)
	return x.Lt(f.either(-151, -1076)).Select(f.c(0), y)
}

// Expm1 returns e^x - 1.
func Expm1(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	n, r := f.reduceExp(x)
	n = n.Max(f.i(int64(-f.mantissa - 10)))
	// 2^n (1 + r + tail) - 1 with halved powers, because 2^n may be too large.
	t := f.pow2(n.Sub(f.i(1)))
	y := t.FMA(r.hi, t.Sub(f.c(0.5)))
	y = t.FMA(f.expTail(r), y)
	y = y.Add(y)
	_, hi := f.expLimits()
	y = x.Gt(f.c(hi)).Select(f.inf(), y)
	y = x.Lt(f.either(-20, -40)).Select(f.c(-1), y)
	// Small arguments are their own results, even if half of them is not exact.
	return x.Abs().Lt(f.c(math.Ldexp(1, -f.mantissa-2))).Select(x, y)
}

// exp2Split returns 2^(n+r) in float32 for |r| <= 1/2 and t = n + 1.5 * 2^23, where n is from -125 to 126.
func (f float) exp2Split(t, r kernel.Value) kernel.Value {
	y := f.poly(exp2Poly, r).FMA(r, f.c(1))
	return y.Bitcast(f.bits).Add(t.Bitcast(f.bits).Shl(f.k.I32(f.mantissa))).Bitcast(f.t)
}

// reciprocal returns 1/d for 1 <= d <= 2 in float32, with an error of at most 0.7 units in the last place. A division takes more
// instructions, including jumps.
func (f float) reciprocal(d kernel.Value) kernel.Value {
	// The best parabola has an error of 1/99; a step of Newton's method squares it.
	y := d.FMA(f.c(32./99), f.c(-144./99)).FMA(d, f.c(210./99))
	for range 2 {
		y = y.FMA(y.Neg().FMA(d, f.c(1)), y)
	}
	return y
}

// over returns n/(1+e) for 0 <= e <= 1 in float32, almost as if rounded once.
func (f float) over(n, e kernel.Value) kernel.Value {
	// The best cubic has an error of 1/577.
	y := e.FMA(f.c(-128./577), f.c(384./577)).FMA(e, f.c(-544./577)).FMA(e, f.c(576./577))
	rest := e.Neg().FMA(y, f.c(1).Sub(y)) // the difference is exact
	return n.FMA(y, n.Mul(y).Mul(rest.FMA(rest, rest)))
}

// Sigmoid returns 1/(1+e^-x).
func Sigmoid(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	e := ExpNonPositive(k, x.Abs().Neg())
	// With e <= 1 the result is 1/(1+e), or e/(1+e) for x < 0.
	if !f.wide() {
		return f.over(x.Lt(f.c(0)).Select(e, f.c(1)), e)
	}
	d := fastTwoSum(f.c(1), e) // the sum and the reciprocal are kept in two words
	y := f.c(1).Div(d.hi)
	lo := y.Mul(y.Neg().FMA(d.lo, y.Neg().FMA(d.hi, f.c(1))))
	return x.Lt(f.c(0)).Select(e.FMA(y, e.Mul(lo)), y.Add(lo))
}

// Logistic2 returns e = 2^-|x| and r = 1/(1+e) in float32: 1/(1+2^-x) is r for x >= 0, otherwise e r. The relative error of e is that of x
// times |x|, which suits callers that add the result to something, or have x from a sum. Below 2^-100 e has an absolute error of 2^-125,
// and eventually it is 0. A NaN is treated as infinite.
func Logistic2(k *kernel.Builder, x kernel.Value) (e, r kernel.Value) {
	f := of(k, x)
	const least = 125
	q := x.Abs().Neg().Max(f.c(-least))
	shift := f.c(0x1.8p23)
	t := q.Add(shift)
	// The contribution of the bound is subtracted again, so that the limit is 0.
	e = f.exp2Split(t, q.Sub(t.Sub(shift))).Sub(f.c(math.Ldexp(1, -least)))
	return e, f.reciprocal(e.Add(f.c(1)))
}

// Softplus returns log(1+e^x).
func Softplus(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	e := ExpNonPositive(k, x.Abs().Neg())
	y := x.Max(f.c(0)).Add(f.log1p(e))
	return x.IsNaN().Select(x, y)
}

// LogSigmoid returns log(1/(1+e^-x)) = -Softplus(-x).
func LogSigmoid(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	e := ExpNonPositive(k, x.Abs().Neg())
	y := f.log1p(e).Sub(x.Min(f.c(0))).Neg()
	return x.IsNaN().Select(x, y)
}
