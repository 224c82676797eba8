package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

var rowAbs, rowAngle, rowSgn, rowRoundDecimals *row

func init() {
	rowAbs = define(row{Name: "Abs", Torch: "abs", point: kernels.Abs, rule: absRule, saves: in0, back: func(b *back) {
		b.set(0, b.x.Mul(b.grad(0), b.x.Sgn(b.in(0))))
	}})
	rowAngle = define(row{Name: "Angle", Torch: "angle", point: kernels.Angle, rule: angleRule, saves: in0, back: backAngle})
	rowSgn = define(row{Name: "Sgn", Torch: "sgn", point: kernels.Sgn, rule: same, saves: in0 | out0, back: backSgn})
	rowRoundDecimals = define(row{Name: "RoundDecimals", takes: "t; scale decimals", Torch: "round", point: kernels.RoundDecimals,
		rule: rounded, back: flat})
}

// absRule is same, but the magnitudes of complex numbers are real.
func absRule(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	return p, p.Real()
}

// angleRule is floating, but the angles of complex numbers are real.
func angleRule(f *frame) (compute, out dtype.DType) {
	p, _ := floating(f)
	return p, p.Real()
}

// backAngle: the angle of z grows along i·z, by 1/|z|; at 0 its derivative is 0, as for real numbers.
func backAngle(b *back) {
	x := b.x
	if !b.n.edges[0].dt.IsComplex() {
		flat(b)
		return
	}
	z := b.in(0)
	m := x.Abs(z)
	turned := x.Mul(z, x.FullC(nil, 1i, z.dt))
	b.set(0, x.Mul(b.grad(0), x.pick(x.EqS(m, 0), nil, 0, x.Div(turned, x.Mul(m, m)), 0)))
}

// backSgn: for s = z/|z|, ds = (dz - s·Re(s̄ dz)) / |z|, which is its own adjoint.
func backSgn(b *back) {
	x := b.x
	if !b.n.edges[0].dt.IsComplex() {
		flat(b)
		return
	}
	g, z, s := b.grad(0), b.in(0), b.out(0)
	along := x.RealPart(x.Mul(x.Conj(s), g))
	m := x.Abs(z)
	b.set(0, x.pick(x.EqS(m, 0), nil, 0, x.Div(x.Sub(g, x.Mul(s, along)), m), 0))
}

// Abs returns the magnitude, which is real for a complex tensor.
//
//tenon:into
func (x *Exec) Abs(t *Tensor) *Tensor { return x.op(rowAbs, t).call1() }

// Angle returns the angle from the positive real axis, from -π to π. For real numbers it is 0, or π for negative ones. The result is real;
// integers become float32.
//
//tenon:into
func (x *Exec) Angle(t *Tensor) *Tensor { return x.op(rowAngle, t).call1() }

// Sgn returns t/|t|, and 0 for 0: it is Sign for complex numbers too.
//
//tenon:into
func (x *Exec) Sgn(t *Tensor) *Tensor { return x.op(rowSgn, t).call1() }

// Positive returns t itself; it fails for bool.
func (x *Exec) Positive(t *Tensor) *Tensor {
	if t.dt == dtype.Bool {
		x.fail("Positive", fault.Unsupported, []*Tensor{t}, "The `+` operator, on a bool tensor is not supported")
	}
	return t
}

// RoundDecimals rounds to the given number of decimals, ties to the even digit; -1 rounds to tens, and so on. Integers stay the same. Half
// types round after each of the three steps.
//
//tenon:into
func (x *Exec) RoundDecimals(t *Tensor, decimals int) *Tensor {
	if t.dt.IsFloat() && t.dt.Size() == 2 {
		ten := math.Pow(10, math.Abs(float64(decimals)))
		return x.composite("RoundDecimals", func(x *Exec) *Tensor {
			if decimals < 0 {
				return x.MulS(x.Round(x.DivS(t, ten)), ten)
			}
			return x.DivS(x.Round(x.MulS(t, ten)), ten)
		})
	}
	f := x.op(rowRoundDecimals, t)
	f.scalar[0] = kernels.Scalar{F: math.Pow(10, math.Abs(float64(decimals)))}
	f.scalar[1] = kernels.Scalar{I: int64(decimals)}
	return f.call1()
}
