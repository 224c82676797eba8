package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// Operations whose results are elements of their inputs.
var rowWhere, rowMaskedFill, rowMaximum, rowMinimum, rowFMax, rowFMin, rowClampMin, rowClampMax, rowClamp, rowNanToNum *row

func init() {
	rowWhere = define(row{Name: "Where", takes: "condition a# b#", Torch: "where", point: kernels.Where, rule: whereRule, saves: in0,
		back: backWhere})
	// rowMaskedFill is Where with the mask, the value and the input, in the input's type and row-major.
	rowMaskedFill = define(row{Name: "MaskedFill", takes: "mask value# t", Torch: "masked_fill", point: kernels.Where,
		infer: inferMaskedFill, saves: in0, back: backWhere})
	rowMaximum = define(row{Name: "Maximum", Torch: "maximum", point: kernels.Maximum, rule: realOnly, saves: in0 | in1,
		back: func(b *back) { backExtremes(b, b.x.Lt) }})
	rowMinimum = define(row{Name: "Minimum", Torch: "minimum", point: kernels.Minimum, rule: realOnly, saves: in0 | in1,
		back: func(b *back) { backExtremes(b, b.x.Gt) }})
	rowFMax = define(row{Name: "FMax", Torch: "fmax", point: kernels.FMax, rule: realOnly, saves: in0 | in1,
		back: func(b *back) { backFExtremes(b, b.x.Ge) }})
	rowFMin = define(row{Name: "FMin", Torch: "fmin", point: kernels.FMin, rule: realOnly, saves: in0 | in1,
		back: func(b *back) { backFExtremes(b, b.x.Le) }})
	rowClampMin = define(row{Name: "ClampMin", takes: "t bound#", Torch: "clamp_min", point: kernels.Maximum, rule: boundRule,
		saves: in0 | in1, back: func(b *back) { backBound(b, b.x.Ge, b.x.Lt) }})
	rowClampMax = define(row{Name: "ClampMax", takes: "t bound#", Torch: "clamp_max", point: kernels.Minimum, rule: boundRule,
		saves: in0 | in1, back: func(b *back) { backBound(b, b.x.Le, b.x.Gt) }})
	rowClamp = define(row{Name: "Clamp", takes: "t lo# hi#", Torch: "clamp", point: kernels.Clamp, rule: clampRule, saves: in0 | in1 | in2,
		back: backClamp})
	rowNanToNum = define(row{Name: "NanToNum", takes: "t; nan inf negativeInf", Torch: "nan_to_num", point: kernels.NanToNum, rule: same,
		saves: in0, back: func(b *back) {
			b.set(0, b.x.pick(b.x.IsFinite(b.in(0)), b.grad(0), 0, nil, 0))
		}})
}

// whereRule is same for the second and third operands; the first is the condition.
func whereRule(f *frame) (compute, out dtype.DType) {
	if f.in[0].dt != dtype.Bool {
		f.fail(fault.Invalid, "where expected condition to be a boolean tensor, but got a tensor with dtype %v; make one with a "+
			"comparison, such as x.NeS(t, 0)", f.in[0].dt)
	}
	p := f.promotedFrom(1)
	return p, p
}

func backWhere(b *back) {
	g, c := b.grad(0), b.in(0)
	if b.need(1) {
		b.set(1, b.x.pick(c, g, 0, nil, 0))
	}
	if b.need(2) {
		b.set(2, b.x.pick(c, nil, 0, g, 0))
	}
}

// boundRule is realOnly, but numbers must be representable in the promoted type, or in the type that it is computed in.
func boundRule(f *frame) (compute, out dtype.DType) {
	p, out := realOnly(f)
	for i := 1; i < f.ins; i++ {
		if f.in[i] == nil && f.holes&(1<<i) != 0 {
			f.fits(complex(f.hole[i].F, 0), infer.Accumulated(p))
		}
	}
	return p, out
}

// clampRule is boundRule without bool: only a single bound may be for bool, as in PyTorch.
func clampRule(f *frame) (compute, out dtype.DType) {
	compute, out = boundRule(f)
	f.check(infer.Numeric(f.row.Name, out))
	return compute, out
}

func inferMaskedFill(f *frame) {
	mask, v, t := f.in[0], f.in[1], f.in[2]
	if mask.dt != dtype.Bool {
		f.fail(fault.Invalid, "masked_fill only supports boolean masks, but got mask with dtype %v; make one with a comparison, such as "+
			"x.NeS(mask, 0)", mask.dt)
	}
	if v != nil && len(v.shape) != 0 {
		f.fail(fault.Invalid, "masked_fill only supports a 0-dimensional value tensor, but got tensor with %d dimension(s)", len(v.shape))
	}
	switch {
	case v == nil:
		f.fits(complex(f.hole[1].F, f.hole[1].Im), t.dt)
	case v.dt.IsComplex() && !t.dt.IsComplex():
		f.fail(fault.Invalid, "value cannot be converted to type %v without loss of its imaginary part", t.dt)
	}
	f.compute = t.dt
	f.newOut(0, t.dt, f.broadcast(f.lists[:0]), nil)
}

// backExtremes gives the gradient to the operand that is not worse than the other; equal operands share it.
func backExtremes(b *back, worse func(a, b *Tensor) *Tensor) {
	x, g := b.x, b.grad(0)
	half := x.pick(x.Eq(b.in(0), b.in(1)), x.MulS(g, 0.5), 0, g, 0)
	for i := range 2 {
		if b.need(i) {
			b.set(i, x.pick(worse(b.in(i), b.in(1-i)), nil, 0, half, 0))
		}
	}
}

// backFExtremes gives the gradient to the first operand if it is not worse than the second or the second is a NaN, else to the second.
func backFExtremes(b *back, notWorse func(a, b *Tensor) *Tensor) {
	x, g := b.x, b.grad(0)
	first := x.LogicalOr(notWorse(b.in(0), b.in(1)), x.IsNaN(b.in(1)))
	b.set(0, x.pick(first, g, 0, nil, 0))
	if b.need(1) {
		b.set(1, x.pick(first, nil, 0, g, 0))
	}
}

// backBound gives the gradient to the input where it is within the bound, and to the bound where the input is beyond it.
func backBound(b *back, within, beyond func(a, b *Tensor) *Tensor) {
	x, g := b.x, b.grad(0)
	t, bound := b.in(0), b.term(1)
	b.set(0, x.pick(within(t, bound), g, 0, nil, 0))
	if b.need(1) {
		b.set(1, x.pick(beyond(t, bound), g, 0, nil, 0))
	}
}

func backClamp(b *back) {
	x, g := b.x, b.grad(0)
	t, lo, hi := b.in(0), b.term(1), b.term(2)
	if b.need(0) {
		b.set(0, x.pick(x.LogicalAnd(x.Ge(t, lo), x.Le(t, hi)), g, 0, nil, 0))
	}
	if b.need(1) {
		b.set(1, x.pick(x.LogicalAnd(x.Lt(t, lo), x.Lt(lo, hi)), g, 0, nil, 0))
	}
	if b.need(2) {
		b.set(2, x.pick(x.LogicalOr(x.Gt(t, hi), x.Gt(lo, hi)), g, 0, nil, 0))
	}
}

// pick is Where with numbers: av and bv replace a and b if they are nil.
func (x *Exec) pick(cond, a *Tensor, av float64, b *Tensor, bv float64) *Tensor {
	f := x.op(rowWhere, cond, a, b)
	if a == nil {
		f.setHole(1, av)
	}
	if b == nil {
		f.setHole(2, bv)
	}
	return f.call1()
}

// Where returns a where the bool tensor cond is true, else b, broadcast, in the type that a and b promote to.
//
//tenon:into
func (x *Exec) Where(cond, a, b *Tensor) *Tensor { return x.op(rowWhere, cond, a, b).call1() }

// MaskedFill returns t, broadcast with mask, with the elements where the bool tensor mask is true replaced by the 0-d tensor v.
func (x *Exec) MaskedFill(t, mask, v *Tensor) *Tensor { return x.op(rowMaskedFill, mask, v, t).call1() }

// MaskedFillS returns t, broadcast with mask, with the elements where the bool tensor mask is true replaced by v.
func (x *Exec) MaskedFillS(t, mask *Tensor, v float64) *Tensor {
	f := x.op(rowMaskedFill, mask, nil, t)
	f.setHole(1, v)
	f.hole[1] = fillScalar(complex(v, 0), t.dt)
	return f.call1()
}

// MaskedFillSInto sets dst to MaskedFillS; dst may be t.
func (x *Exec) MaskedFillSInto(dst, t, mask *Tensor, v float64) {
	f := x.op(rowMaskedFill, mask, nil, t)
	f.setHole(1, v)
	f.hole[1] = fillScalar(complex(v, 0), t.dt)
	f.call1Into(dst)
}

// Maximum returns the greater of a and b, broadcast, or a NaN if either is one. Equal operands share the gradient.
//
//tenon:into
func (x *Exec) Maximum(a, b *Tensor) *Tensor { return x.op(rowMaximum, a, b).call1() }

// Minimum returns the lesser of a and b, broadcast, or a NaN if either is one. Equal operands share the gradient.
//
//tenon:into
func (x *Exec) Minimum(a, b *Tensor) *Tensor { return x.op(rowMinimum, a, b).call1() }

// FMax returns the greater of a and b, broadcast; if one of them is a NaN, it returns the other.
//
//tenon:into
func (x *Exec) FMax(a, b *Tensor) *Tensor { return x.op(rowFMax, a, b).call1() }

// FMin returns the lesser of a and b, broadcast; if one of them is a NaN, it returns the other.
//
//tenon:into
func (x *Exec) FMin(a, b *Tensor) *Tensor { return x.op(rowFMin, a, b).call1() }

// Clamp returns t limited to the range from lo to hi, broadcast; either may be nil. Where lo > hi the result is hi. With both it does not
// support bool.
//
//tenon:into
func (x *Exec) Clamp(t, lo, hi *Tensor) *Tensor {
	switch {
	case lo == nil && hi == nil:
		x.fail("Clamp", fault.Invalid, []*Tensor{t}, "at least one of min and max must not be nil")
	case hi == nil:
		return x.ClampMin(t, lo)
	case lo == nil:
		return x.ClampMax(t, hi)
	}
	return x.op(rowClamp, t, lo, hi).call1()
}

// ClampS returns t limited to the range from lo to hi. Where lo > hi the result is hi.
func (x *Exec) ClampS(t *Tensor, lo, hi float64) *Tensor { return x.clampOp(t, lo, hi).call1() }

// ClampSInto sets dst to t limited to the range from lo to hi; dst may be t.
func (x *Exec) ClampSInto(dst, t *Tensor, lo, hi float64) { x.clampOp(t, lo, hi).call1Into(dst) }

func (x *Exec) clampOp(t *Tensor, lo, hi float64) *frame {
	f := x.op(rowClamp, t)
	f.setHole(1, lo)
	f.setHole(2, hi)
	return f
}

// ClampMin returns the greater of t and lo, broadcast.
//
//tenon:into
func (x *Exec) ClampMin(t, lo *Tensor) *Tensor { return x.op(rowClampMin, t, lo).call1() }

// ClampMinS returns the greater of t and lo.
//
//tenon:into
func (x *Exec) ClampMinS(t *Tensor, lo float64) *Tensor {
	return x.withScalar(rowClampMin, t, lo).call1()
}

// ClampMax returns the lesser of t and hi, broadcast.
//
//tenon:into
func (x *Exec) ClampMax(t, hi *Tensor) *Tensor { return x.op(rowClampMax, t, hi).call1() }

// ClampMaxS returns the lesser of t and hi.
//
//tenon:into
func (x *Exec) ClampMaxS(t *Tensor, hi float64) *Tensor {
	return x.withScalar(rowClampMax, t, hi).call1()
}

// NanToNumOpt are the options of NanToNum.
type NanToNumOpt struct {
	// NaN replaces NaN; the default is 0. PosInf and NegInf replace +∞ and -∞; the defaults are the greatest and the least number of the
	// type.
	NaN, PosInf, NegInf Scalar
}

// NanToNum returns t with NaN and infinities replaced by numbers; integers stay the same.
//
//tenon:into
func (x *Exec) NanToNum(t *Tensor, opt NanToNumOpt) *Tensor {
	most := greatest(t.dt.Real())
	by := [...]float64{Or("NanToNum", "NaN", opt.NaN, 0), Or("NanToNum", "PosInf", opt.PosInf, most),
		Or("NanToNum", "NegInf", opt.NegInf, -most)}
	f := x.op(rowNanToNum, t)
	for i, v := range by {
		f.scalar[i] = kernels.FloatScalar(v)
	}
	return f.call1()
}

// greatest returns the greatest finite number of a floating-point type.
func greatest(dt dtype.DType) float64 {
	switch dt {
	case dtype.Float16:
		return 65504
	case dtype.BFloat16:
		return 0x1.fep127
	case dtype.Float32:
		return math.MaxFloat32
	}
	return math.MaxFloat64
}
