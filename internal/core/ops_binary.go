package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

var rowAddScaled, rowDivTrunc, rowFloorDivide, rowPow, rowRemainder, rowFMod, rowAtan2, rowHypot, rowLogAddExp, rowLogAddExp2 *row

func init() {
	rowAddScaled = define(row{Name: "AddScaled", takes: "a b; alpha", Torch: "add", wideHosts: in0 | in1, point: kernels.AddScaled,
		rule: scaledRule, back: backAddScaled})
	rowDivTrunc = define(row{Name: "DivTrunc", Torch: "div", wideHosts: in1, point: kernels.DivTrunc, run: runDivTrunc, rule: rounded,
		back: flatPair})
	rowFloorDivide = define(row{Name: "FloorDivide", takes: "a b#", Torch: "floor_divide", wideNumbers: in1, wideHosts: in1,
		point: kernels.DivFloor, rule: rounded, back: flatPair})
	rowPow = define(row{Name: "Pow", takes: "base exponent#!", Torch: "pow", point: kernels.Pow, run: runPow, rule: powerRule,
		cast: castFloat32, saves: in0 | in1 | out0, back: backPow})
	rowRemainder = define(row{Name: "Remainder", takes: "a b#", Torch: "remainder", point: kernels.Remainder, rule: rounded,
		saves: in0 | in1, back: func(b *back) {
			b.set(0, b.grad(0))
			if b.need(1) {
				b.set(1, b.x.Neg(b.x.Mul(b.grad(0), b.x.FloorDivide(b.term(0), b.in(1)))))
			}
		}})
	rowFMod = define(row{Name: "FMod", takes: "a b#", Torch: "fmod", point: kernels.Fmod, rule: rounded, saves: in0 | in1,
		back: func(b *back) {
			b.set(0, b.grad(0))
			if b.need(1) {
				b.set(1, b.x.Neg(b.x.Mul(b.grad(0), b.x.DivTrunc(b.term(0), b.in(1)))))
			}
		}})
	rowAtan2 = define(row{Name: "Atan2", Torch: "atan2", point: kernels.Atan2, rule: realFloating, cast: castWidest, saves: in0 | in1,
		back: backAtan2})
	rowHypot = define(row{Name: "Hypot", Torch: "hypot", point: kernels.Hypot, rule: realFloat, saves: in0 | in1 | out0,
		back: func(b *back) {
			for i := range 2 {
				if b.need(i) {
					b.set(i, b.x.Mul(b.grad(0), b.x.Div(b.in(i), b.out(0))))
				}
			}
		}})
	rowLogAddExp = define(row{Name: "LogAddExp", Torch: "logaddexp", point: kernels.LogAddExp, rule: realFloat, saves: in0 | in1,
		back: func(b *back) {
			for i := range 2 {
				if b.need(i) {
					b.set(i, b.x.Div(b.grad(0), b.x.AddS(b.x.Exp(b.x.Sub(b.in(1-i), b.in(i))), 1)))
				}
			}
		}})
	rowLogAddExp2 = define(row{Name: "LogAddExp2", Torch: "logaddexp2", point: kernels.LogAddExp2, rule: realFloat, saves: in0 | in1,
		back: func(b *back) {
			for i := range 2 {
				if b.need(i) {
					b.set(i, b.x.Div(b.grad(0), b.x.AddS(b.x.Exp2(b.x.Sub(b.in(1-i), b.in(i))), 1)))
				}
			}
		}})
}

// runDivTrunc rounds the quotient of halves to a half before it rounds toward zero, unless PyTorch treats the divisor as a number.
func runDivTrunc(f *frame) error {
	switch {
	case f.hosts&2 != 0:
	case f.compute == dtype.Float16:
		return f.runOp(kernels.DivTruncF16)
	case f.compute == dtype.BFloat16:
		return f.runOp(kernels.DivTruncBF16)
	}
	return f.runPoint()
}

// flatPair is flat for operations with two inputs.
func flatPair(b *back) {
	for i := range 2 {
		if b.need(i) {
			b.set(i, b.x.Full(b.shape(i), 0, b.n.edges[i].dt))
		}
	}
}

// term returns saved input i, or a 0-d tensor of the scalar in its place.
func (b *back) term(i int) *Tensor {
	if b.n.holes&(1<<i) == 0 {
		return b.in(i)
	}
	return b.x.Full(nil, b.n.hole[i].F, b.n.output(0).dt)
}

// scaledRule is same, but the factor must be whole for integers.
func scaledRule(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	if v := f.scalar[0].F; v != math.Trunc(v) && !p.IsFloat() && !p.IsComplex() {
		f.fail(fault.Invalid, "For integral input tensors, argument alpha must not be a floating point number")
	}
	return p, p
}

func backAddScaled(b *back) {
	b.set(0, b.grad(0))
	if b.need(1) {
		b.set(1, b.x.MulS(b.grad(0), b.n.scalar[0].F))
	}
}

// powerRule is numeric, but an exponent that is a number must be representable in the promoted type.
func powerRule(f *frame) (compute, out dtype.DType) {
	p, out := numeric(f)
	if f.holes&2 != 0 {
		f.fits(complex(f.hole[1].F, f.hole[1].Im), p)
	}
	return p, out
}

// runPow computes powers that are roots, quotients or short products as such, as PyTorch does, and gets PyTorch's bits.
func runPow(f *frame) error {
	op := powerOp(f)
	if op == nil || f.out[0].Numel() == 0 {
		return f.runPoint()
	}
	outs, ins := f.operandsOf()
	return f.pointwise(op, f.compute, nil, outs, ins[:1])
}

// powerOp returns the unary operation on input 0 that replaces the power, or nil.
func powerOp(f *frame) *kernels.PointOp {
	if f.holes&2 == 0 || f.hole[1].Im != 0 || !f.compute.IsFloat() && !f.compute.IsComplex() {
		return nil
	}
	switch f.hole[1].F {
	case 0.5:
		return kernels.Sqrt
	case -0.5:
		return kernels.Rsqrt
	case -1:
		return kernels.Reciprocal
	}
	if f.compute.IsComplex() {
		return nil
	}
	half := 0
	switch f.compute {
	case dtype.Float16:
		half = 1
	case dtype.BFloat16:
		half = 2
	}
	switch f.hole[1].F {
	case 2:
		return kernels.Square
	case 3:
		return [...]*kernels.PointOp{kernels.Cube, kernels.CubeF16, kernels.CubeBF16}[half]
	case -2:
		return [...]*kernels.PointOp{kernels.InvSquare, kernels.InvSquareF16, kernels.InvSquareBF16}[half]
	}
	return nil
}

func backPow(b *back) {
	x, g := b.x, b.grad(0)
	if b.n.holes&2 != 0 {
		e := b.n.hole[1].F
		if e == 0 {
			flat(b)
			return
		}
		b.set(0, x.Mul(g, x.conjugate(x.MulS(x.PowS(b.in(0), e-1), e))))
		return
	}
	e := b.in(1)
	if b.need(0) {
		slope := x.Mul(e, x.Pow(b.in(0), x.SubS(e, 1)))
		b.set(0, x.Mul(g, x.conjugate(x.pick(x.EqS(e, 0), nil, 0, slope, 0))))
	}
	if b.need(1) {
		a := b.term(0)
		right := e
		if e.dt.IsComplex() {
			right = x.RealPart(e)
		}
		gone := x.LogicalAnd(x.EqS(a, 0), x.GeS(right, 0))
		b.set(1, x.Mul(g, x.conjugate(x.pick(gone, nil, 0, x.Mul(b.out(0), x.Log(a)), 0))))
	}
}

func backAtan2(b *back) {
	x, p, q := b.x, b.term(0), b.term(1)
	d := x.Add(x.Mul(p, p), x.Mul(q, q))
	share := x.pick(x.EqS(d, 0), nil, 0, x.Div(b.grad(0), d), 0)
	b.set(0, x.Mul(share, q))
	if b.need(1) {
		b.set(1, x.Neg(x.Mul(share, p)))
	}
}

// AddScaled returns a + alpha*b, broadcast, in the promoted type; floats round once. For integers alpha must be whole.
func (x *Exec) AddScaled(a, b *Tensor, alpha float64) *Tensor { return x.scaledOp(a, b, alpha).call1() }

// AddScaledInto sets dst to a + alpha*b; dst may be a or b.
func (x *Exec) AddScaledInto(dst, a, b *Tensor, alpha float64) {
	x.scaledOp(a, b, alpha).call1Into(dst)
}

func (x *Exec) scaledOp(a, b *Tensor, alpha float64) *frame {
	f := x.op(rowAddScaled, a, b)
	f.scalar[0] = kernels.Scalar{F: alpha, I: int64(alpha)}
	return f
}

// RSubS returns v - a.
func (x *Exec) RSubS(a *Tensor, v float64) *Tensor {
	f := x.op(rowSub, nil, a)
	f.setHole(0, v)
	return f.call1()
}

// RDivS returns v / a; integers become float32.
func (x *Exec) RDivS(a *Tensor, v float64) *Tensor {
	f := x.op(rowDiv, nil, a)
	f.setHole(0, v)
	return f.call1()
}

// DivTrunc returns a / b rounded toward zero, broadcast, in the promoted type; not for bool.
//
//tenon:into
func (x *Exec) DivTrunc(a, b *Tensor) *Tensor { return x.op(rowDivTrunc, a, b).call1() }

// FloorDivide returns a / b rounded down, broadcast, in the promoted type; not for bool. For floats it equals Python's //.
//
//tenon:into
func (x *Exec) FloorDivide(a, b *Tensor) *Tensor { return x.op(rowFloorDivide, a, b).call1() }

// FloorDivideS returns a / v rounded down.
//
//tenon:into
func (x *Exec) FloorDivideS(a *Tensor, v float64) *Tensor {
	return x.withScalar(rowFloorDivide, a, v).call1()
}

// Pow returns a to the power b, broadcast, in the promoted type. For integers, negative powers give 0 unless the base is 1 or -1.
//
//tenon:into
func (x *Exec) Pow(a, b *Tensor) *Tensor { return x.op(rowPow, a, b).call1() }

// PowS returns a to the power v. Integers have no negative whole powers. For floats the powers 2, 3, 1/2, -1/2, -1 and -2 have the bits of
// the products, roots and quotients that they are.
//
//tenon:into
func (x *Exec) PowS(a *Tensor, v float64) *Tensor {
	f := x.withScalar(rowPow, a, v)
	if (a.dt.IsInt() || a.dt == dtype.Bool) && v < 0 && v == math.Trunc(v) && !math.IsInf(v, 0) {
		f.fail(fault.Invalid, "Integers to negative integer powers are not allowed")
	}
	return f.call1()
}

// FloatPower returns a to the power b, broadcast, computed in float64, or complex128 if either is complex.
//
//tenon:into
func (x *Exec) FloatPower(a, b *Tensor) *Tensor {
	dt := dtype.Float64
	if a.dt.IsComplex() || b.dt.IsComplex() {
		dt = dtype.Complex128
	}
	return x.composite("FloatPower", func(x *Exec) *Tensor { return x.Pow(x.ToDType(a, dt), x.ToDType(b, dt)) })
}

// Remainder returns the remainder of a by b under floor division, with b's sign, broadcast, in the promoted type; not for bool.
//
//tenon:into
func (x *Exec) Remainder(a, b *Tensor) *Tensor { return x.op(rowRemainder, a, b).call1() }

// RemainderS returns Remainder by v.
//
//tenon:into
func (x *Exec) RemainderS(a *Tensor, v float64) *Tensor {
	return x.withScalar(rowRemainder, a, v).call1()
}

// FMod returns the remainder of a by b under division rounded toward zero, with a's sign, broadcast, in the promoted type; not for bool.
//
//tenon:into
func (x *Exec) FMod(a, b *Tensor) *Tensor { return x.op(rowFMod, a, b).call1() }

// FModS returns FMod by v.
//
//tenon:into
func (x *Exec) FModS(a *Tensor, v float64) *Tensor { return x.withScalar(rowFMod, a, v).call1() }

// Atan2 returns the angle of the point (b, a) from the first axis, between -π and π, broadcast; integers become float32.
//
//tenon:into
func (x *Exec) Atan2(a, b *Tensor) *Tensor { return x.op(rowAtan2, a, b).call1() }

// Hypot returns √(a²+b²) without intermediate overflow, broadcast; for floating-point tensors.
//
//tenon:into
func (x *Exec) Hypot(a, b *Tensor) *Tensor { return x.op(rowHypot, a, b).call1() }

// LogAddExp returns log(exp(a) + exp(b)) without intermediate overflow, broadcast; for floating-point and complex tensors.
//
//tenon:into
func (x *Exec) LogAddExp(a, b *Tensor) *Tensor {
	if !a.dt.IsComplex() && !b.dt.IsComplex() {
		return x.op(rowLogAddExp, a, b).call1()
	}
	return x.composite("LogAddExp", func(x *Exec) *Tensor {
		dt := dtype.Promote(a.dt, b.dt)
		a, b := x.ToDType(a, dt), x.ToDType(b, dt)
		first := x.Ge(x.RealPart(a), x.RealPart(b))
		top, low := x.Where(first, a, b), x.Where(first, b, a)
		return x.Add(top, x.Log1p(x.Exp(x.Sub(low, top))))
	})
}

// LogAddExp2 returns log2(2^a + 2^b) without intermediate overflow, broadcast; for floating-point tensors.
//
//tenon:into
func (x *Exec) LogAddExp2(a, b *Tensor) *Tensor { return x.op(rowLogAddExp2, a, b).call1() }
