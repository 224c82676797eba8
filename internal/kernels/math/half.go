package math

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The functions in this file take and return float32 and are for results that are then rounded to a half type: their relative errors are
// about 2^-17, so few halves differ from the correctly rounded ones, and those by one unit in the last place.

// Short reports whether functions for results of type t may be those for halves.
func Short(t dtype.DType) bool { return t == dtype.Float16 || t == dtype.BFloat16 }

// root2 returns 2^(x rate) for a product between -125 and 127.
func (f float) root2(x, rate kernel.Value) kernel.Value {
	shift := f.c(0x1.8p23)
	t := x.FMA(rate, shift)
	r := x.FMA(rate, shift.Sub(t))
	y := f.poly(exp2HalfPoly, r).FMA(r, f.c(1))
	return y.Bitcast(f.bits).Add(t.Bitcast(f.bits).Shl(f.k.I32(f.mantissa))).Bitcast(f.t)
}

// roughReciprocal returns y and q with 1/d = y q, for 1 <= d < 2^125.
func (f float) roughReciprocal(d kernel.Value) (y, q kernel.Value) {
	y = f.i(0x7ef311c3).Sub(d.Bitcast(f.bits)).Bitcast(f.t) // linear between powers of two, and within 5.1 %
	return y, f.poly(reciprocalHalfPoly, d.Mul(y))
}

// HalfExp returns e^x.
func HalfExp(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	root := f.root2(x.Min(f.c(90)).Max(f.c(-105)), f.c(float64(log2eConst.f32[0])/2))
	return x.Ne(x).Select(x, root.Mul(root))
}

// HalfSigmoid returns 1/(1+e^-x), and any number for a NaN.
func HalfSigmoid(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	root := f.root2(x.Abs().Min(f.c(105)), f.c(-float64(log2eConst.f32[0])/2))
	e := root.Mul(root)
	y, q := f.roughReciprocal(e.Add(f.c(1)))
	return x.Lt(f.c(0)).Select(e, f.c(1)).Mul(y.Mul(q))
}

// HalfLogistic returns y and q with y q = 1/(1+2^(x rate)), for a product between -124 and 124.
func HalfLogistic(k *kernel.Builder, x, rate kernel.Value) (y, q kernel.Value) {
	f := of(k, x)
	return f.roughReciprocal(f.root2(x, rate).Add(f.c(1)))
}
