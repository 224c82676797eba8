package math

import (
	"math"

	"tenon.dev/kernel"
)

// sinhCosh returns the parts of sinh and cosh of a >= 0. With a = n log 2 + r, these are half of sh = sinh(n log 2) and of ch = cosh(n log
// 2), and s = sinh(r) - r.hi and c = cosh(r) - 1, so that sinh(a) = r.hi ch + sh + (s ch + c sh) and cosh(a) = r.hi sh + ch + (s sh + c
// ch).
func (f float) sinhCosh(a kernel.Value) (sh, ch word, r, s, c kernel.Value) {
	n, red := f.reduceExp(a.Min(f.either(90, 712)))
	up := f.pow2(n.Sub(f.i(2)))
	down := f.pow2(n.Min(f.i(int64(f.mantissa + 20))).Neg().Sub(f.i(2)))
	r = red.hi
	z := r.Mul(r)
	s = r.Mul(z).FMA(f.poly(sinhPoly, z), red.lo)
	c = z.FMA(f.c(0.5), z.Mul(z).FMA(f.poly(coshPoly, z), r.Mul(red.lo)))
	return fastTwoSum(up, down.Neg()), fastTwoSum(up, down), r, s, c
}

// Sinh returns the hyperbolic sine.
func Sinh(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	a := x.Abs()
	sh, ch, r, s, c := f.sinhCosh(a)
	y := ch.hi.FMA(r, sh.hi).Add(ch.hi.FMA(s, c.FMA(sh.hi, sh.lo)))
	y = f.withSign(y.Add(y), f.sign(x))
	_, limit := f.expLimits()
	y = a.Gt(f.c(limit+1)).Select(f.withSign(f.inf(), f.sign(x)), y)
	y = a.Lt(f.c(math.Ldexp(1, -f.mantissa/2-1))).Select(x, y)
	return x.IsNaN().Select(x, y)
}

// Cosh returns the hyperbolic cosine.
func Cosh(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	a := x.Abs()
	sh, ch, r, s, c := f.sinhCosh(a)
	y := sh.hi.FMA(r, ch.hi).Add(sh.hi.FMA(s, c.FMA(ch.hi, ch.lo)))
	y = y.Add(y)
	_, limit := f.expLimits()
	y = a.Gt(f.c(limit+1)).Select(f.inf(), y)
	return x.IsNaN().Select(x, y)
}

// Tanh returns the hyperbolic tangent.
func Tanh(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	a := x.Abs()
	z := a.Mul(a)
	small := a.Mul(z).FMA(f.poly(tanhPoly, z), a)
	var large kernel.Value
	if f.wide() {
		e := f.exp(a.Add(a))
		large = f.c(1).Sub(f.c(2).Div(e.Add(f.c(1))))
	} else {
		// 1 - 2e/(1+e) with e = e^-2a, which is negligible compared with 1 from the bound on.
		b, rate, shift := a.Min(f.c(40)), f.c(-2*math.Log2E), f.c(0x1.8p23)
		t := b.FMA(rate, shift)
		e := f.exp2Split(t, b.FMA(rate, shift.Sub(t)))
		large = e.Mul(f.c(-2)).FMA(f.reciprocal(e.Add(f.c(1))), f.c(1))
	}
	return f.withSign(a.Ge(f.c(0.8)).Select(large, small), f.sign(x)) // a NaN makes small a NaN
}

// rootTail returns sqrt(q.hi + q.lo) - s, where s is the rounded root of q.hi.
func (f float) rootTail(q word, s kernel.Value) kernel.Value {
	rest := s.Neg().FMA(s, q.hi).Add(q.lo)
	return s.Eq(f.c(0)).Select(f.c(0), rest.Div(s.Add(s)))
}

// squarePlus returns x² + c as a double word, c = ±1.
func (f float) squarePlus(x kernel.Value, c float64) word {
	p := twoProd(x, x)
	q := twoSum(p.hi, f.c(c))
	return fastTwoSum(q.hi, q.lo.Add(p.lo))
}

// areaLog returns log(a + sqrt(a² + c)) for a >= 0.
func (f float) areaLog(a kernel.Value, c float64) kernel.Value {
	// Beyond 2^31 the constant is negligible, and the square might overflow.
	large := a.Gt(f.c(1 << 31))
	q := f.squarePlus(large.Select(f.c(1), a), c)
	s := q.hi.Sqrt()
	lo := f.rootTail(q, s)
	t := twoSum(a, s)
	t.lo = t.lo.Add(lo)
	hi := large.Select(a, t.hi)
	return f.logWord(word{hi, large.Select(f.c(0), t.lo)}, large.Select(f.i(1), f.i(0))).hi
}

// Asinh returns the inverse hyperbolic sine.
func Asinh(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	a := x.Abs()
	y := f.withSign(f.areaLog(a, 1), f.sign(x))
	small := a.Lt(f.c(math.Ldexp(1, -f.mantissa/2-1)))
	return a.Lt(f.inf()).And(small.Not()).Select(y, x)
}

// Acosh returns the inverse hyperbolic cosine.
func Acosh(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	y := f.areaLog(x, -1)
	y = x.Lt(f.inf()).Select(y, x)
	return x.Lt(f.c(1)).Select(f.nan(), y)
}

// Atanh returns the inverse hyperbolic tangent.
func Atanh(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	a := x.Abs()
	// atanh(a) = log(1+u)/2 with u = 2a/(1-a); 1/(1-a) = 1 + u/2 is used for the rounding errors.
	d := f.c(1).Sub(a)
	dl := f.c(1).Sub(d).Sub(a)
	u := a.Add(a).Div(d)
	rest := u.Neg().FMA(dl, u.Neg().FMA(d, a.Add(a)))
	t := twoSum(f.c(1), u)
	t.lo = rest.FMA(u.FMA(f.c(0.5), f.c(1)), t.lo)
	y := f.logWord(t, f.i(0)).hi.Mul(f.c(0.5))
	y = f.withSign(y, f.sign(x))
	y = a.Eq(f.c(1)).Select(f.withSign(f.inf(), f.sign(x)), y)
	y = a.Gt(f.c(1)).Select(f.nan(), y)
	y = a.Lt(f.c(math.Ldexp(1, -f.mantissa/2-1))).Select(x, y)
	return x.IsNaN().Select(x, y)
}
