package math

import "tenon.dev/kernel"

// Erf returns the error function.
func Erf(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	a := x.Abs()
	z := x.Mul(x)
	small := f.poly(erfPoly, z).FMA(x, x)
	// 1 - exp(log(erfc(a))); the clamped argument is constant where erf rounds to 1.
	g := f.poly(erfTail, a.Min(f.either(4, 6)).Sub(f.c(1)))
	large := f.withSign(f.c(1).Sub(f.expBounded(g.Neg())), f.sign(x))
	return a.Ge(f.c(1)).Select(large, small) // a NaN makes small a NaN
}

// Erfc returns 1 - erf(x), accurate also where that is small.
func Erfc(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	z := x.Mul(x)
	near := f.c(1).Sub(f.poly(erfPoly, z).FMA(x, x))

	// erfc(a) = exp(-a²) (5/4 + p(q)) / (1+2a) with q = (a-3)/(a+3).
	limit := f.either(10.2, 27.5)
	a := x.Abs().Min(limit)
	q := a.Sub(f.c(3)).Div(a.Add(f.c(3)))
	p := fastTwoSum(f.c(1.25), f.poly(erfcPoly, q))
	d := fastTwoSum(a.Add(a), f.c(1)) // a >= 1/2
	v := p.hi.Div(d.hi)
	rest := v.Neg().FMA(d.lo, v.Neg().FMA(d.hi, p.hi)).Add(p.lo)
	quotient := word{v, rest.Div(d.hi)}
	s := twoProd(a, a)
	n, r := f.reduceExp(s.hi.Neg())
	r = twoSum(r.hi, r.lo.Sub(s.lo))
	e := f.expWord(r).mul(quotient)
	far := f.ldexpWord(e, n)
	far = x.Lt(f.c(0)).Select(f.c(2).Sub(far), far)
	y := x.Abs().Lt(f.c(0.5)).Select(near, far)
	return x.IsNaN().Select(x, y)
}

// ldexpWord returns (e.hi + e.lo) 2^n for |e.hi| of 2^-10 or more. Subnormal results are rounded twice.
func (f float) ldexpWord(e word, n kernel.Value) kernel.Value {
	half := n.Shr(f.k.I32(1))
	return e.sum().Mul(f.pow2(half)).Mul(f.pow2(n.Sub(half)))
}

// Erfinv returns the inverse of Erf, for -1 <= x <= 1.
//
// Like M. Giles, "Approximating the erfinv function" (GPU Computing Gems Jade, 2011), it expands erfinv(x)/x in w = -log(1-x²) and, for
// larger w, in √w.
func Erfinv(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	w := f.log(x.Neg().FMA(x, f.c(1))).Neg()
	piece := func(p coefficients, at0 split, t kernel.Value) word {
		return word{f.part(at0, 0), t.FMA(f.poly(p, t), f.part(at0, 1))}
	}
	q := piece(erfinvPoly0, erfinvAt0, w.Sub(f.c(1.5)))
	hi, lo := k.Var(q.hi), k.Var(q.lo)
	set := func(q word) {
		hi.Set(q.hi)
		lo.Set(q.lo)
	}
	k.If(w.Gt(f.c(5)), func() {
		s := w.Sqrt()
		if !f.wide() {
			set(piece(erfinvPoly1, erfinvAt1, s.Sub(f.c(3.125))))
			return
		}
		k.IfElse(w.Lt(f.c(16)), func() {
			set(piece(erfinvPoly1, erfinvAt1, s.Sub(f.c(3.125))))
		}, func() {
			set(piece(erfinvPoly2, erfinvAt2, s.Sub(f.c(5))))
		})
	})
	a := x.Abs()
	y := a.FMA(hi.Get(), a.Mul(lo.Get()))
	y = f.withSign(a.Eq(f.c(1)).Select(f.inf(), y), f.sign(x))
	return a.Le(f.c(1)).Select(y, f.nan())
}
