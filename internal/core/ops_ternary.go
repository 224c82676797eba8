package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// Operations of three inputs that multiply and add.
var rowAddCMul, rowAddCDiv, rowLerp *row

func init() {
	rowAddCMul = define(row{Name: "AddCMul", takes: "t a b; value", Torch: "addcmul", point: kernels.AddCMul, rule: numeric,
		cast: castWidest, saves: in1 | in2, back: func(b *back) {
			x, g := b.x, b.grad(0)
			b.set(0, g)
			for i := 1; i <= 2; i++ {
				if b.need(i) {
					b.set(i, x.Mul(g, x.conjugate(x.MulS(b.in(3-i), b.n.scalar[0].F))))
				}
			}
		}})
	rowAddCDiv = define(row{Name: "AddCDiv", takes: "t a b; value", Torch: "addcdiv", point: kernels.AddCDiv, rule: quotientRule,
		cast: castWidest, saves: in1 | in2, back: backAddCDiv})
	rowLerp = define(row{Name: "Lerp", takes: "a b weight#", Torch: "lerp", wideNumbers: in2, point: kernels.Lerp, rule: divided,
		saves: in0 | in1 | in2, back: backLerp})
}

// divided is same for floating-point and complex types.
func divided(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	if !p.IsComplex() {
		return realFloat(f)
	}
	return p, p
}

// quotientRule is divided, but refuses to divide integers by integers.
func quotientRule(f *frame) (compute, out dtype.DType) {
	if whole := func(t *Tensor) bool {
		return t.dt.IsInt() || t.dt == dtype.Bool
	}; f.in[1] != nil && f.in[2] != nil && whole(f.in[1]) && whole(f.in[2]) {
		f.fail(fault.Unsupported,
			"Integer division with addcdiv is no longer supported; convert one of the tensors to a floating-point type first")
	}
	return divided(f)
}

func backAddCDiv(b *back) {
	x, g, v := b.x, b.grad(0), b.n.scalar[0].F
	b.set(0, g)
	if b.need(1) {
		b.set(1, x.Mul(g, x.conjugate(x.RDivS(b.in(2), v))))
	}
	if b.need(2) {
		d := b.in(2)
		b.set(2, x.Mul(x.Neg(g), x.conjugate(x.Div(x.MulS(b.in(1), v), x.Mul(d, d)))))
	}
}

func backLerp(b *back) {
	x, g := b.x, b.grad(0)
	if b.need(0) {
		b.set(0, x.Mul(g, x.conjugate(x.RSubS(b.term(2), 1))))
	}
	if b.need(1) {
		b.set(1, x.Mul(g, x.conjugate(b.term(2))))
	}
	if b.need(2) {
		b.set(2, x.Mul(g, x.conjugate(x.Sub(b.in(1), b.in(0)))))
	}
}

func (x *Exec) fusedOp(r *row, t, a, b *Tensor, opt AddCMulOpt) *frame {
	value := Or(r.Name, "Value", opt.Value, 1)
	f := x.op(r, t, a, b)
	f.scalar[0] = kernels.FloatScalar(value)
	return f
}

// AddCMulOpt are the options of AddCMul and AddCDiv. The zero value is PyTorch's default.
type AddCMulOpt struct {
	// Value is the factor of the product or quotient; the default is 1.
	Value Scalar
}

// AddCMul returns t + value*a*b, broadcast, in the promoted type.
func (x *Exec) AddCMul(t, a, b *Tensor, opt AddCMulOpt) *Tensor {
	return x.fusedOp(rowAddCMul, t, a, b, opt).call1()
}

// AddCMulInto sets dst to t + value*a*b; dst may be an operand.
func (x *Exec) AddCMulInto(dst, t, a, b *Tensor, opt AddCMulOpt) {
	x.fusedOp(rowAddCMul, t, a, b, opt).call1Into(dst)
}

// AddCDiv returns t + value*a/b, broadcast, in the promoted type, which must be floating-point or complex.
func (x *Exec) AddCDiv(t, a, b *Tensor, opt AddCMulOpt) *Tensor {
	return x.fusedOp(rowAddCDiv, t, a, b, opt).call1()
}

// AddCDivInto sets dst to t + value*a/b; dst may be an operand.
func (x *Exec) AddCDivInto(dst, t, a, b *Tensor, opt AddCMulOpt) {
	x.fusedOp(rowAddCDiv, t, a, b, opt).call1Into(dst)
}

// Lerp returns a + w*(b - a), broadcast, for floating-point and complex tensors.
//
//tenon:into
func (x *Exec) Lerp(a, b, w *Tensor) *Tensor { return x.op(rowLerp, a, b, w).call1() }

// LerpS returns a + w*(b - a).
func (x *Exec) LerpS(a, b *Tensor, w float64) *Tensor { return x.lerpOp(a, b, w).call1() }

// LerpSInto sets dst to a + w*(b - a); dst may be a or b.
func (x *Exec) LerpSInto(dst, a, b *Tensor, w float64) { x.lerpOp(a, b, w).call1Into(dst) }

func (x *Exec) lerpOp(a, b *Tensor, w float64) *frame {
	f := x.op(rowLerp, a, b)
	f.setHole(2, w)
	return f
}
