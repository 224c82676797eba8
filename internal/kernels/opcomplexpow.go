package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// complexPow is e^(b log a). 0 to the power 0 is 1; 0 to another power is 0, or infinite with an undefined angle if b's real part is
// negative. The result multiplies the rounding error of the real part of b log a by its size, so that part is kept with its rounding error.
// Angles round as in other libraries: a base's angle times a large power has the same error in every library that computes in the type
// itself.
func complexPow(k *kernel.Builder, a, b Num) Num {
	l, t := logMagnitude(k, a), angle(k, a)
	w := b.Im.Mul(t)
	p := b.Re.FMA(l, w.Neg())
	lo := b.Re.FMA(l, p.Neg()).Sub(w)
	q := b.Im.FMA(l, b.Re.Mul(t))
	m := math.Exp(k, p)
	m = m.Mul(lo).Abs().Lt(m.Like(gomath.Inf(1))).Select(m.FMA(lo, m), m)
	flat := q.Eq(q.Like(0))
	r := Num{flat.Select(m, m.Mul(math.Cos(k, q))), flat.Select(q, m.Mul(math.Sin(k, q)))}
	pole := b.Re.Lt(b.Re.Like(0))
	zero := Num{pole.Select(m.Like(gomath.Inf(1)), m.Like(0)), pole.Select(m.Like(gomath.NaN()), m.Like(0))}
	return choose(b.Eq(b.like(0)), a.like(1), choose(a.Eq(a.like(0)), zero, r))
}

// anglePoly is (atan(t) - t)/t³ at z = t², for 0 <= t <= 1; the error relative to atan is 2^-25.8. It was computed by Remez's algorithm,
// like the polynomials of package math.
var anglePoly = [...]float64{
	-0x1.5554dcp-02, 0x1.9978ecp-03, -0x1.230a9cp-03, 0x1.b4df76p-04, -0x1.355424p-04, 0x1.61fb3ap-05, -0x1.0c2dcep-06, 0x1.7ee046p-09,
}

// angle returns the angle of z in [-π, π]. In float32 it uses one polynomial and rounds at each step.
func angle(k *kernel.Builder, z Num) kernel.Value {
	if z.Re.Type() != dtype.Float32 {
		return math.Atan2(k, z.Im, z.Re)
	}
	x, y := z.Re.Abs(), z.Im.Abs()
	swap := y.Gt(x)
	num, den := x.Min(y), x.Max(y)
	t := num.Eq(num.Like(gomath.Inf(1))).Select(num.Like(1), den.Eq(den.Like(0)).Select(num.Like(0), num.Div(den)))
	s := t.Mul(t)
	p := t.Like(anglePoly[len(anglePoly)-1])
	for i := len(anglePoly) - 2; i >= 0; i-- {
		p = p.FMA(s, t.Like(anglePoly[i]))
	}
	v := t.Add(t.Mul(s).Mul(p))
	v = swap.Select(below(gomath.Pi/2, v), v)
	left := z.Re.Bitcast(dtype.Int32).Lt(k.I32(0)) // -0 counts as negative
	v = copySign(left.Select(below(gomath.Pi, v), v), z.Im)
	return z.IsNaN().Select(v.Like(gomath.NaN()), v)
}

// below returns c - v for a float32 v in [0, c], rounded once or almost so; c is split into two parts.
func below(c float64, v kernel.Value) kernel.Value {
	hi := float64(float32(c))
	s := v.Like(hi).Sub(v)
	return s.Add(v.Like(hi).Sub(s).Sub(v).Add(v.Like(c - hi)))
}
