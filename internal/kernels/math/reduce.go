package math

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// reduceTrig returns n modulo 4 (Int32) and r with a = n π/2 + r, |r| <= π/4 rounded up a little, for finite a >= 0.
//
// Below 2^17 (2^28 in float64) it subtracts n times π/2 in three parts with fused multiply-adds, the first of which is exact (W. J. Cody
// and W. Waite, Software Manual for the Elementary Functions, 1980). Above, it multiplies by the relevant bits of 2/π (M. H. Payne and R.
// N. Hanek, SIGNUM Newsletter 18, 1983).
func (f float) reduceTrig(a kernel.Value) (kernel.Value, word) {
	k := f.k
	n := a.Mul(f.part(twoOverPi, 0)).Rint()
	r1 := n.FMA(f.minus(halfPi, 0), a)
	p := twoProd(n, f.minus(halfPi, 1))
	s := twoSum(r1, p.hi) // either may be the larger
	lo := s.lo.Add(n.FMA(f.minus(halfPi, 2), p.lo))
	vn, vhi, vlo := k.Var(n.Convert(dtype.Int32)), k.Var(s.hi), k.Var(lo)
	k.Rarely(a.Ge(f.either(1<<17, 1<<28)), func() {
		var q kernel.Value
		var r word
		if f.wide() {
			q, r = f.payneHanek64(a)
		} else {
			q, r = f.payneHanek32(a, false, 0)
		}
		vn.Set(q)
		vhi.Set(r.hi)
		vlo.Set(r.lo)
	})
	return vn.Get(), word{vhi.Get(), vlo.Get()}
}

// reduceTurn returns an integer whose lowest bit is that of n, and r with x = n π + r, or x = (n - 1/2) π + r for the cosine, in float32.
// |r| is at most π/2 rounded up a little. It is a NaN for infinities and NaNs. No low word is needed, since the last of three products
// rounds to within a unit in the last place.
func (f float) reduceTurn(x kernel.Value, cosine bool) (n, r kernel.Value) {
	k := f.k
	shift := f.c(0x1.8p23) // the sum has the nearest integer in its low bits
	w, turns := f.c(float64(twoOverPi.f32[0])/2), kernel.Value{}
	var t kernel.Value
	if cosine {
		t = x.FMA(w, f.c(0.5)).Add(shift)
		turns = t.Sub(shift).Sub(f.c(0.5))
	} else {
		t = x.FMA(w, shift)
		turns = t.Sub(shift)
	}
	// If x is -0, so are all products and r.
	r = turns.FMA(f.minus(piDown, 2), turns.FMA(f.minus(piDown, 1), turns.FMA(f.minus(piDown, 0), x)))
	vn, vr := k.Var(t.Bitcast(dtype.Int32)), k.Var(r)
	k.Rarely(x.Abs().Ge(f.c(1<<17)), func() {
		a := x.Abs()
		q, w := f.payneHanek32(a, cosine, 1)
		sum := w.hi.Add(w.lo)
		if !cosine {
			sum = f.withSign(sum, f.sign(x))
		}
		vn.Set(q)
		vr.Set(sum.Add(x.Sub(x))) // NaN for infinities
	})
	return vn.Get(), vr.Get()
}

// payneHanek32 is for a >= 2^17; for infinity and NaN the result is arbitrary. It reduces by π/2 2^halved, after adding π/2 if ahead is
// set, and returns n modulo 4/2^halved.
func (f float) payneHanek32(a kernel.Value, ahead bool, halved int) (kernel.Value, word) {
	k := f.k
	u32, u64 := dtype.Uint32, dtype.Uint64
	var words []uint64
	for _, w := range twoOverPiBits[:5] { // the last load is that of word 167/32+3
		words = append(words, w>>32, w&math.MaxUint32)
	}
	table := k.Table("math_two_over_pi_32", u32, words)
	b := a.Bitcast(dtype.Int32)
	m := b.And(k.I32(1<<23 - 1)).Or(k.I32(1 << 23)).Bitcast(u32).Convert(u64)
	// a = m 2^e. Bits of 2/π before position e-1 contribute multiples of 4. The table begins with 64 zeros.
	o := b.Shr(k.I32(23)).Sub(k.I32(150 + 2 - 64)) // at most 255-88
	i, s := o.Shr(k.I32(5)), o.And(k.I32(31))
	back := k.I32(32).Sub(s)
	load := func(j int) kernel.Value { return table.Load(i.Add(k.I32(j))) }
	w0, w1, w2, w3 := load(0), load(1), load(2), load(3)
	join := func(x, y kernel.Value) kernel.Value { return x.Shl(s).Or(y.Shr(back)).Convert(u64) }
	p := m.Mul(join(w0, w1)).Shl(k.I32(32)).Add(m.Mul(join(w1, w2))).Add(m.Mul(join(w2, w3)).Shr(k.I32(32)))
	// p is the angle as a fraction of 4 quadrants.
	if ahead {
		p = p.Add(k.U64(1 << 62))
	}
	n := p.Add(k.U64(1 << (61 + halved))).Shr(k.I32(62 + halved)).Convert(dtype.Int32)
	frac := p.Shl(k.I32(2 - halved)).Bitcast(dtype.Int64)
	neg := frac.Lt(k.I64(0))
	mag := frac.Abs().Bitcast(u64)
	hi := mag.Convert(f.t)
	lo := mag.Sub(hi.Convert(u64)).Bitcast(dtype.Int64).Convert(f.t)
	c0, c1 := f.c(math.Ldexp(float64(halfPi.f32[0]), halved-64)), f.c(math.Ldexp(float64(halfPi.f32[1]), halved-64))
	r := hi.Mul(c0)
	rlo := hi.FMA(c0, r.Neg()).Add(hi.FMA(c1, lo.Mul(c0)))
	return n, word{neg.Select(r.Neg(), r), neg.Select(rlo.Neg(), rlo)}
}

// payneHanek64 is for a >= 2^28; for infinity and NaN the result is arbitrary.
func (f float) payneHanek64(a kernel.Value) (kernel.Value, word) {
	k := f.k
	u64 := dtype.Uint64
	table := k.Table("math_two_over_pi_64", u64, twoOverPiBits[:])
	b := a.Bitcast(dtype.Int64)
	m := b.And(k.I64(1<<52 - 1)).Or(k.I64(1 << 52)).Bitcast(u64)
	o := b.Shr(k.I32(52)).Convert(dtype.Int32).Sub(k.I32(1075 + 2 - 64)) // at most 2047-1013
	i, s := o.Shr(k.I32(6)), o.And(k.I32(63))
	back := k.I32(64).Sub(s)
	load := func(j int) kernel.Value { return table.Load(i.Add(k.I32(j))) }
	w0, w1, w2, w3 := load(0), load(1), load(2), load(3)
	join := func(x, y kernel.Value) kernel.Value { return x.Shl(s).Or(y.Shr(back)) }
	v1 := join(w1, w2)
	mid := m.Mul(v1)
	low := mid.Add(m.MulHi(join(w2, w3)))
	carry := low.Lt(mid).Select(k.U64(1), k.U64(0))
	high := m.Mul(join(w0, w1)).Add(m.MulHi(v1)).Add(carry)
	n := high.Add(k.U64(1 << 61)).Shr(k.I32(62)).Convert(dtype.Int32)
	fh, fl := high.Shl(k.I32(2)).Or(low.Shr(k.I32(62))), low.Shl(k.I32(2))
	neg := fh.Bitcast(dtype.Int64).Lt(k.I64(0))
	fh, fl = neg.Select(fh.Not(), fh), neg.Select(fl.Not(), fl)
	z := fh.Clz()
	top := fh.Shl(z).Or(fl.Shr(k.I32(64).Sub(z)))
	hi := top.Convert(f.t)
	lo := top.Sub(hi.Convert(u64)).Bitcast(dtype.Int64).Convert(f.t)
	scale := f.pow2(z.Convert(f.bits).Neg())
	c0, c1 := f.c(math.Ldexp(halfPi.f64[0], -64)), f.c(math.Ldexp(halfPi.f64[1], -64))
	r := hi.Mul(c0)
	rlo := hi.FMA(c0, r.Neg()).Add(hi.FMA(c1, lo.Mul(c0)))
	r, rlo = r.Mul(scale), rlo.Mul(scale)
	return n, word{neg.Select(r.Neg(), r), neg.Select(rlo.Neg(), rlo)}
}
