package math

import "tenon.dev/kernel"

// Fmod returns the exact remainder of x/y with x's sign.
//
// Each iteration subtracts a multiple of y times a power of two such that the quotient is below 2^mantissa, so that the fused multiply-add
// is exact.
func Fmod(k *kernel.Builder, x, y kernel.Value) kernel.Value {
	f := of(k, x)
	a, b := x.Abs(), y.Abs()
	r := k.Var(a)
	eb := f.exponent(b)
	k.If(a.Lt(f.inf()).And(b.Gt(f.c(0))), func() {
		k.Loop(func() {
			v := r.Get()
			k.If(v.Ge(b).Not(), k.Break)
			gap := f.exponent(v).Sub(eb).Sub(f.i(int64(f.mantissa - 2))).Max(f.i(0))
			d := f.scaleUp(b, gap)
			q := v.Div(d).Trunc()
			rest := q.Neg().FMA(d, v)
			// The quotient may have been rounded up to the next integer.
			r.Set(rest.Lt(f.c(0)).Select(rest.Add(d), rest))
		})
	})
	z := f.withSign(r.Get(), f.sign(x))
	bad := a.Lt(f.inf()).And(b.Gt(f.c(0))).Not().Or(y.IsNaN())
	return bad.Select(f.nan(), z)
}

// exponent returns the biased exponent of a > 0, as if exponents had no minimum.
func (f float) exponent(a kernel.Value) kernel.Value {
	i := a.Bitcast(f.bits)
	e := i.Shr(f.k.I32(f.mantissa))
	sub := f.i(int64(f.exponentBits() + 1)).Sub(i.Clz().Convert(f.bits))
	return e.Eq(f.i(0)).Select(sub, e)
}

// scaleUp returns b 2^n for n >= 0 if that is finite.
func (f float) scaleUp(b, n kernel.Value) kernel.Value {
	quarter := n.Shr(f.k.I32(2))
	p := f.pow2(quarter)
	return b.Mul(p).Mul(p).Mul(p).Mul(f.pow2(n.Sub(quarter.Mul(f.i(3)))))
}

// Remainder returns the remainder of x/y with y's sign, as in Python and PyTorch: Fmod's result, plus y if the signs differ.
func Remainder(k *kernel.Builder, x, y kernel.Value) kernel.Value {
	f := of(k, x)
	r := Fmod(k, x, y)
	differ := r.Lt(f.c(0)).Xor(y.Lt(f.c(0))).And(r.Ne(f.c(0)))
	return differ.Select(r.Add(y), r)
}
