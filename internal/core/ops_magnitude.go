package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

var rowAbs, rowSgn, rowRoundDecimals *row

func init() {
	rowAbs = define(row{Name: "Abs", Torch: "abs", point: kernels.Abs, rule: absRule, saves: in0, back: func(b *back) {
		b.set(0, b.x.Mul(b.grad(0), b.x.Sgn(b.in(0))))
	}})
	rowSgn = define(row{Name: "Sgn", Torch: "sgn", point: kernels.Sgn, rule: same, saves: in0 | out0, back: backSgn})
	rowRoundDecimals = define(row{Name: "RoundDecimals", Torch: "round", point: kernels.RoundDecimals, rule: rounded, back: flat})
}

// absRule is same; magnitudes of complex numbers are real.
func absRule(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	return p, p.Real()
}

// backSgn: for s = z/|z|, ds = (dz - s·Re(s̄ dz)) / |z|, which is its own adjoint.
func backSgn(b *back) {
	x := b.x
	if !b.n.edges[0].meta.dt.IsComplex() {
		flat(b)
		return
	}
	g, z, s := b.grad(0), b.in(0), b.out(0)
	along := x.RealPart(x.Mul(x.Conj(s), g))
	m := x.Abs(z)
	b.set(0, x.pick(x.EqS(m, 0), nil, 0, x.Div(x.Sub(g, x.Mul(s, along)), m), 0))
}

// Abs returns the magnitude; of a complex tensor it is real.
func (x *Exec) Abs(t *Tensor) *Tensor { return x.op(rowAbs, t).call1() }

// Sgn returns t/|t|, 0 for 0: Sign for complex numbers too.
func (x *Exec) Sgn(t *Tensor) *Tensor { return x.op(rowSgn, t).call1() }

// Positive returns t itself; it fails for bool.
func (x *Exec) Positive(t *Tensor) *Tensor {
	if t.dt == dtype.Bool {
		x.fail("Positive", fault.Unsupported, []*Tensor{t}, "The `+` operator, on a bool tensor is not supported")
	}
	return t
}

// RoundDecimals rounds to the given number of decimals, halves to the even digit; with -1 to tens and so on. Integers stay.
// Half types round after each of the three steps.
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
