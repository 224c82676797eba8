package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// broadcast returns the shape to which the operands' shapes broadcast, in dst.
func (f *frame) broadcast(dst []int) []int {
	n := 0
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil {
			n = max(n, len(t.shape))
		}
	}
	dst = infer.Ones(dst[:0], n)
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil {
			if err := infer.Join(dst, t.shape); err != nil {
				f.check(err)
			}
		}
	}
	return dst
}

// promoted returns the type that the operands promote to.
func (f *frame) promoted() dtype.DType { return f.promotedFrom(0) }

// promotedFrom is promoted without the inputs before first.
func (f *frame) promotedFrom(first int) dtype.DType {
	var p infer.Promotion
	for i := first; i < f.ins; i++ {
		t := f.in[i]
		switch {
		case t != nil:
			p.Tensor(t.dt, len(t.shape))
		case f.holes&(1<<i) == 0:
		case f.holeFloat&(1<<i) == 0:
			p.Number(dtype.Int64)
		case f.hole[i].Im != 0:
			p.Number(dtype.Complex64)
		default:
			p.Number(dtype.Float32)
		}
	}
	return p.Type()
}

// The type rules of pointwise operations.

// same computes in and returns the promoted type.
func same(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	return p, p
}

// floating is same, but integers become float32.
func floating(f *frame) (compute, out dtype.DType) {
	p := infer.Floating(f.promoted())
	return p, p
}

// boolean computes in the promoted type and returns bool.
func boolean(f *frame) (compute, out dtype.DType) { return f.promoted(), dtype.Bool }

// ordered is boolean without complex types, which have no order.
func ordered(f *frame) (compute, out dtype.DType) {
	p, _ := realOnly(f)
	return p, dtype.Bool
}

// only is same, restricted to the types that admit accepts for the operation.
func (f *frame) only(admit func(op string, dt dtype.DType) error) (compute, out dtype.DType) {
	p := f.promoted()
	f.check(admit(f.row.Name, p))
	return p, p
}

// numeric is same without bool.
func numeric(f *frame) (compute, out dtype.DType) { return f.only(infer.Numeric) }

// realOnly is same without complex types.
func realOnly(f *frame) (compute, out dtype.DType) { return f.only(infer.Real) }

// realFloating is floating without complex types.
func realFloating(f *frame) (compute, out dtype.DType) {
	p, out := floating(f)
	f.check(infer.Real(f.row.Name, p))
	return p, out
}

// integral is same for integers and bool only.
func integral(f *frame) (compute, out dtype.DType) { return f.only(infer.Integral) }

// realFloat is same for real floating-point types only.
func realFloat(f *frame) (compute, out dtype.DType) { return f.only(infer.RealFloat) }

// sharedForm returns the operands' form if they all have the same one, in row-major order: a pointwise operation's outputs have it too.
// Most calls are like this.
func (f *frame) sharedForm() *form {
	var shared *form
	for i := 0; i < f.ins; i++ {
		t := f.in[i]
		if t == nil {
			continue
		}
		if shared == nil {
			shared = t.form
		}
		if t.form != shared || shared == nil || !shared.plain {
			return nil
		}
	}
	return shared
}

// inferPoint decides the outputs of a pointwise operation: the broadcast shape, in the memory order of the inputs.
func inferPoint(f *frame) {
	form, shape := f.sharedForm(), []int(nil)
	if form == nil {
		shape = f.broadcast(f.lists[:0])
	}
	compute, out := f.row.rule(f)
	f.compute = compute
	n := 1
	if f.row.point != nil {
		n = f.row.point.Outs
	}
	if form != nil {
		for i := range n {
			*f.spec(i) = spec{form: form, dt: out}
		}
		return
	}
	for i := range n {
		f.newOut(i, out, shape, f.layout(shape))
	}
}

// runPoint launches the pointwise engine on the frame's operands.
func (f *frame) runPoint() error { return f.runOp(f.row.point) }

// runOp is runPoint with an operation other than the row's.
func (f *frame) runOp(op *kernels.PointOp) error {
	n := f.out[0].numel
	if n == 0 {
		return nil
	}
	half := infer.Accumulated(f.compute) != f.compute
	sc := f.scalarB[:0]
	for i := range op.Scalars {
		sc = append(sc, f.scalar[i])
	}
	for i := 0; i < f.ins; i++ {
		if f.in[i] == nil && f.holes&(1<<i) != 0 {
			sc = append(sc, f.hole[i])
			if half && f.row.wideNumbers&(in0<<i) == 0 {
				sc[len(sc)-1].F = halved(f.hole[i].F, f.compute)
			}
		}
	}
	kind, ptrs, repeats := f.repeatKind(op, n)
	repeats = repeats && !f.x.s.learning()
	last := f.repeatSlot(&kind)
	if repeats && last.kind == kind {
		return f.relaunch(last, &ptrs, sc)
	}
	outs, ins, repeat, run := f.oneRun(op)
	if !run || f.described != nil {
		outs, ins = f.operandsOf()
	}
	if half {
		f.viaHalf(op, outs, ins)
	}
	if run && f.described == nil {
		err := kernels.PointwiseRun(f, op, f.compute, sc, outs, ins, n, repeat)
		if repeats && err == nil {
			last.keep(&kind, f.dl)
		}
		return err
	}
	err := f.pointwise(op, f.compute, sc, outs, ins)
	for i := 0; err != nil && i < f.ins; i++ {
		if f.in[i] == nil && f.holes&(1<<i) == 0 {
			f.fail(fault.Invalid, "operand %d is nil", i)
		}
	}
	return err
}

// viaHalf converts operands and results of other types through the half type that the operands promote to, as PyTorch does, though the
// computation is in float32.
func (f *frame) viaHalf(op *kernels.PointOp, outs, ins []kernels.Operand) {
	for i := range outs {
		if t := outs[i].DType; t != f.compute && t != dtype.Bool {
			outs[i].Via = f.compute
		}
	}
	for i := range ins {
		switch t := ins[i].DType; {
		case ins[i].Ptr == 0 || t == f.compute || i < len(op.InTypes) && op.InTypes[i] != dtype.Invalid:
		case t == dtype.Bool || t == dtype.Int8 || t == dtype.Uint8: // a half represents these exactly
		case f.hosts&(1<<i) != 0 && f.row.wideHosts&(in0<<i) != 0:
		default:
			ins[i].Via = f.compute
		}
	}
}

// halved returns v rounded to the half type dt, through float32 as in PyTorch.
func halved(v float64, dt dtype.DType) float64 {
	if dt == dtype.Float16 {
		return float64(dtype.F16FromFloat32(float32(v)).Float32())
	}
	return float64(dtype.BF16FromFloat32(float32(v)).Float32())
}

// layout returns strides for a result of the given shape in the memory order of the inputs, or nil for row-major.
func (f *frame) layout(shape []int) []int {
	if len(shape) < 2 {
		return nil
	}
	var b [maxIn]infer.Strided
	ins, plain := b[:0], true
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil {
			plain = plain && t.plain && infer.Same(t.shape, shape)
			ins = append(ins, infer.Strided{Shape: t.shape, Stride: t.stride})
		}
	}
	if plain { // the most frequent case
		return nil
	}
	return infer.Layout(shape, ins, f.perm[:0])
}
