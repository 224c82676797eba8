package math

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// mantissaExponent returns m and e with x = m 2^e and √½ <= m < √2, for normal x > 0.
func (f float) mantissaExponent(x kernel.Value) (m, e kernel.Value) {
	root, unit := int64(math.Float32bits(math.Sqrt2/2)), int64(math.Float32bits(1))
	if f.wide() {
		root, unit = int64(math.Float64bits(math.Sqrt2/2)), int64(math.Float64bits(1))
	}
	i := x.Bitcast(f.bits).Add(f.i(unit - root))
	e = i.Shr(f.k.I32(f.mantissa)).Sub(f.i(int64(f.bias)))
	m = i.And(f.i(1<<f.mantissa - 1)).Add(f.i(root)).Bitcast(f.t)
	return m, e
}

// normalize returns x scaled so that it is normal, and the exponent of the power of two that it was multiplied by.
func (f float) normalize(x kernel.Value) (y, shift kernel.Value) {
	small := x.Lt(f.c(math.Ldexp(1, 1-f.bias)))
	n := f.mantissa + 1
	return small.Select(x.Mul(f.c(math.Ldexp(1, n))), x), small.Select(f.i(int64(n)), f.i(0))
}

// logTail returns w with log(1 + a.hi + a.lo) = a.hi + w, for √½ <= 1+a < √2.
func (f float) logTail(a word) kernel.Value {
	w := a.hi.Mul(a.hi).Mul(a.hi.FMA(f.poly(logPoly, a.hi), f.c(-0.5)))
	return w.Add(a.hi.Neg().FMA(a.lo, a.lo))
}

// logWord returns log(x) + e log 2 for a double word x of normal hi > 0 and a small integer e, as a double word.
func (f float) logWord(x word, e kernel.Value) word {
	m, n := f.mantissaExponent(x.hi)
	// The low part matters only if its scale is representable.
	lo := x.lo.Mul(f.pow2(n.Min(f.i(int64(f.bias - 1))).Neg()))
	a := fastTwoSum(m.Sub(f.c(1)), lo)
	return f.addExponent(n.Add(e), a.hi, f.logTail(a))
}

// addExponent returns n log 2 + a + w.
func (f float) addExponent(n, a, w kernel.Value) word {
	nf := n.Convert(f.t)
	s := fastTwoSum(nf.Mul(f.part(ln2Short, 0)), a)
	return fastTwoSum(s.hi, s.lo.Add(nf.FMA(f.part(ln2Short, 1), w)))
}

// saturateLog returns y with the values for x = 0, +∞, x < 0 and NaN put in.
func (f float) saturateLog(x, y kernel.Value) kernel.Value {
	y = x.Lt(f.inf()).Select(y, x) // +∞ and NaN
	y = x.Eq(f.c(0)).Select(f.inf().Neg(), y)
	return x.Lt(f.c(0)).Select(f.nan(), y)
}

// log returns the natural logarithm.
func (f float) log(x kernel.Value) kernel.Value {
	y, shift := f.normalize(x)
	m, e := f.mantissaExponent(y)
	a := m.Sub(f.c(1))
	w := a.Mul(a).Mul(a.FMA(f.poly(logPoly, a), f.c(-0.5)))
	r := f.addExponent(e.Sub(shift), a, w)
	return f.saturateLog(x, r.hi)
}

// Log returns the natural logarithm.
func Log(k *kernel.Builder, x kernel.Value) kernel.Value { return of(k, x).log(x) }

// LogPositive returns the natural logarithm of a normal number above 0, times scale, a power of two of either sign. In float32 it takes
// half the instructions of Log.
func LogPositive(k *kernel.Builder, x kernel.Value, scale float64) kernel.Value {
	f := of(k, x)
	if f.wide() {
		return f.log(x).Mul(f.c(scale))
	}
	// The exponent stays in its place in the number's bits; the constant accounts for its unit: x = m 2^e, 2/3 <= m < 4/3.
	bits := x.Bitcast(f.bits)
	e := bits.Sub(f.i(int64(math.Float32bits(2.0 / 3)))).And(f.i(-1 << f.mantissa))
	m := bits.Sub(e).Bitcast(f.t)
	// The coefficients of the series in scale (m-1) are scaled exactly.
	a := m.FMA(f.c(scale), f.c(-scale))
	var tail coefficients
	power := scale
	for _, c := range append([]float32{-0.5}, logShortPoly.f32...) {
		tail.f32 = append(tail.f32, c/float32(power))
		power *= scale
	}
	w := a.Mul(a).FMA(f.poly(tail, a), a)
	return e.Convert(f.t).FMA(f.c(scale*math.Ldexp(math.Ln2, -f.mantissa)), w)
}

// SqrtPositive returns the square root of 0 or of a positive normal number. In float32 its error is within 1.5 units in the last place, and
// it only uses operations that need no branch on any device. The exact root is as long and has a branch, to a subroutine that takes
// registers from the whole kernel.
func SqrtPositive(k *kernel.Builder, x kernel.Value) kernel.Value {
	f := of(k, x)
	if f.wide() {
		return x.Sqrt()
	}
	// A linear approximation in the logarithms, then a step of Newton's iteration with constants that halve its maximum error, give r with
	// r√x = 1 to 2^-10.5. The difference from 1, e, is computed from the rounded s, and a series in e gives the rest.
	r := f.i(0x5f1fe100).Sub(x.Bitcast(dtype.Uint32).Shr(k.I32(1)).Bitcast(f.bits)).Bitcast(f.t)
	p := x.Mul(r)
	t := p.Mul(r).FMA(f.c(-0.70520884), f.c(1.6829124))
	s := p.Mul(t)
	e := s.Neg().FMA(r.Mul(t), f.c(1))
	return s.Mul(e).FMA(e.FMA(f.c(0.375), f.c(0.5)), s)
}

// logBase returns e*s + (a+w)*c for log(m) = a + w, where s is the logarithm of 2 and c the logarithm of e, both in the base.
func (f float) logBase(x kernel.Value, s, c split) kernel.Value {
	y, shift := f.normalize(x)
	m, e := f.mantissaExponent(y)
	a := m.Sub(f.c(1))
	w := a.Mul(a).Mul(a.FMA(f.poly(logPoly, a), f.c(-0.5)))
	p := twoProd(a, f.part(c, 0))
	lo := w.FMA(f.part(c, 0), a.FMA(f.part(c, 1), p.lo))
	n := e.Sub(shift).Convert(f.t)
	t := fastTwoSum(n.Mul(f.part(s, 0)), p.hi)
	return f.saturateLog(x, t.hi.Add(t.lo.Add(n.FMA(f.part(s, 1), lo))))
}

var unity = split{f32: [3]float32{1, 0, 0}, f64: [3]float64{1, 0, 0}}

// Log2 returns the logarithm to base 2; it is exact for powers of two.
func Log2(k *kernel.Builder, x kernel.Value) kernel.Value {
	return of(k, x).logBase(x, unity, log2eConst)
}

// Log10 returns the logarithm to base 10.
func Log10(k *kernel.Builder, x kernel.Value) kernel.Value {
	return of(k, x).logBase(x, log10Two, log10e)
}

func (f float) log1p(x kernel.Value) kernel.Value {
	y := f.logWord(twoSum(f.c(1), x), f.i(0)).hi
	y = x.Lt(f.inf()).Select(y, x)
	y = x.Eq(f.c(-1)).Select(f.inf().Neg(), y)
	y = x.Lt(f.c(-1)).Select(f.nan(), y)
	return x.Abs().Lt(f.c(math.Ldexp(1, -f.mantissa-2))).Select(x, y)
}

// Log1p returns log(1+x).
func Log1p(k *kernel.Builder, x kernel.Value) kernel.Value { return of(k, x).log1p(x) }
