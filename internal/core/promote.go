package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// broadcast computes the shape to which the operands' shapes broadcast, into dst.
func (f *frame) broadcast(dst []int) []int {
	n := 0
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil {
			n = max(n, len(t.shape))
		}
	}
	dst = dst[:0]
	for range n {
		dst = append(dst, 1)
	}
	for i := 0; i < f.ins; i++ {
		t := f.in[i]
		if t == nil {
			continue
		}
		lead := n - len(t.shape)
		for j, d := range t.shape {
			switch have := dst[lead+j]; {
			case d == have || d == 1:
			case have == 1:
				dst[lead+j] = d
			default:
				f.fail(fault.Invalid, "The size of tensor a (%d) must match the size of tensor b (%d) at non-singleton dimension %d", have, d, lead+j)
			}
		}
	}
	return dst
}

// promoted returns the type that the operands promote to, as PyTorch's rules have it: tensors with dimensions come before 0-d tensors,
// and those before scalars; the lower standing counts only where its category is higher.
func (f *frame) promoted() dtype.DType { return f.promotedFrom(0) }

// promotedFrom is promoted without the inputs before the given one.
func (f *frame) promotedFrom(first int) dtype.DType {
	var dims, zero, wrapped dtype.DType
	for i := first; i < f.ins; i++ {
		t := f.in[i]
		switch {
		case t == nil && f.holeFloat&(1<<i) != 0:
			if f.hole[i].Im != 0 {
				wrapped = dtype.Promote(wrapped, dtype.Complex64)
			} else {
				wrapped = dtype.Promote(wrapped, dtype.Float32)
			}
		case t == nil && f.holes&(1<<i) != 0:
			wrapped = dtype.Promote(wrapped, dtype.Int64)
		case t == nil:
		case len(t.shape) == 0:
			zero = dtype.Promote(zero, t.dt)
		default:
			dims = dtype.Promote(dims, t.dt)
		}
	}
	return higher(dims, higher(zero, wrapped))
}

// higher returns a, unless b's category is above a's. A complex b over a float a keeps the precision of a.
func higher(a, b dtype.DType) dtype.DType {
	switch {
	case a == dtype.Invalid:
		return b
	case b == dtype.Invalid || b.Category() <= a.Category():
		return a
	case b.IsComplex() && a.IsFloat():
		if a == dtype.Float64 {
			return dtype.Complex128
		}
		return dtype.Complex64
	}
	return b
}

// The type rules of pointwise operations.

// same computes in and returns the promoted type.
func same(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	return p, p
}

// floating is same, but integers become float32.
func floating(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	if p.IsInt() || p == dtype.Bool {
		p = dtype.Float32
	}
	return p, p
}

// boolean computes in the promoted type and returns bool.
func boolean(f *frame) (compute, out dtype.DType) { return f.promoted(), dtype.Bool }

// numeric is same without bool.
func numeric(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	if p == dtype.Bool {
		f.fail(fault.Unsupported, "%s is not defined for bool tensors; convert them first", f.row.Name)
	}
	return p, p
}

// realOnly is same without complex types.
func realOnly(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	if p.IsComplex() {
		f.fail(fault.Unsupported, "%s is not defined for complex tensors", f.row.Name)
	}
	return p, p
}

// realFloating is floating without complex types.
func realFloating(f *frame) (compute, out dtype.DType) {
	p, out := floating(f)
	if p.IsComplex() {
		f.fail(fault.Unsupported, "%s is not defined for complex tensors", f.row.Name)
	}
	return p, out
}

// integral is same for integers and bool only.
func integral(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	if p.IsFloat() || p.IsComplex() {
		f.fail(fault.Unsupported, "%s is defined for integer and bool tensors only, not %v", f.row.Name, p)
	}
	return p, p
}

// inferPoint decides the outputs of a pointwise operation: the broadcast shape, in the memory order of the inputs.
func inferPoint(f *frame) {
	shape := f.broadcast(f.lists[:0])
	compute, out := f.row.rule(f)
	f.compute = compute
	n := 1
	if f.row.point != nil {
		n = f.row.point.Outs
	}
	for i := range n {
		f.newOut(i, out, shape, f.layout(shape))
	}
}

// runPoint launches the pointwise engine on the frame's operands.
func (f *frame) runPoint() error { return f.runOp(f.row.point) }

// runOp is runPoint with another operation than the row's.
func (f *frame) runOp(op *kernels.PointOp) error {
	if numel(f.out[0].shape) == 0 {
		return nil
	}
	outs, ins := f.operandsOf()
	half := accumulated(f.compute) != f.compute
	if half {
		f.viaHalf(op, outs, ins)
	}
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
	err := kernels.Pointwise(f, op, f.compute, sc, outs, ins)
	for i := 0; err != nil && i < f.ins; i++ {
		if f.in[i] == nil && f.holes&(1<<i) == 0 {
			f.fail(fault.Invalid, "operand %d is nil", i)
		}
	}
	return err
}

// viaHalf makes operands and results of other types go via the half type that the operands promote to, as PyTorch's conversions do, though the
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
		case t == dtype.Bool || t == dtype.Int8 || t == dtype.Uint8: // which a half holds
		case f.hosts&(1<<i) != 0 && f.row.wideHosts&(in0<<i) != 0:
		default:
			ins[i].Via = f.compute
		}
	}
}

// halved returns v as the half type dt has it, by way of float32 as in PyTorch.
func halved(v float64, dt dtype.DType) float64 {
	if dt == dtype.Float16 {
		return float64(dtype.F16FromFloat32(float32(v)).Float32())
	}
	return float64(dtype.BF16FromFloat32(float32(v)).Float32())
}

// layout returns strides for a result of the given shape in the memory order of the inputs, or nil for row-major. PyTorch's rule: the
// layout of the inputs where they agree and are dense; else dimensions sorted by the strides of the inputs, earlier inputs first.
func (f *frame) layout(shape []int) []int {
	n := len(shape)
	if n < 2 {
		return nil
	}
	plain, agree := true, true
	var first *Tensor
	for i := 0; i < f.ins; i++ {
		t := f.in[i]
		if t == nil {
			continue
		}
		if !sameShape(t.shape, shape) {
			agree = false
		}
		if first == nil {
			first = t
		}
		plain = plain && (contiguous(t.shape, t.stride) || len(t.shape) == 0)
		agree = agree && sameShape(t.stride, first.stride)
	}
	if first == nil || plain && agree {
		return nil
	}
	if agree && dense(first.shape, first.stride) {
		return first.stride
	}
	perm := f.permBuf(n)
	for i := range perm {
		perm[i] = n - 1 - i
	}
	for i := 1; i < n; i++ {
		d1 := i
		for d0 := i - 1; d0 >= 0; d0-- {
			c := f.compareDims(shape, perm[d0], perm[d1])
			if c > 0 {
				perm[d0], perm[d1] = perm[d1], perm[d0]
				d1 = d0
			} else if c < 0 {
				break
			}
		}
	}
	plain = true
	for i, d := range perm {
		plain = plain && d == n-1-i
	}
	if plain {
		return nil
	}
	out := make([]int, n)
	step := 1
	for _, d := range perm {
		out[d] = step
		step *= shape[d]
	}
	return out
}

// compareDims says whether dimension a must lie outside b (positive: a has the larger stride), by the first input that tells.
func (f *frame) compareDims(shape []int, a, b int) int {
	for i := 0; i < f.ins; i++ {
		t := f.in[i]
		if t == nil || len(t.shape) == 0 {
			continue
		}
		sa, sb := f.strideAt(t, shape, a), f.strideAt(t, shape, b)
		switch {
		case sa == 0 || sb == 0:
			continue
		case sa < sb:
			return -1
		case sa > sb:
			return 1
		case shape[a] > shape[b]:
			return 1
		}
	}
	return 0
}

func (f *frame) strideAt(t *Tensor, shape []int, d int) int {
	i := d - (len(shape) - len(t.shape))
	if i < 0 || t.shape[i] == 1 && shape[d] != 1 {
		return 0
	}
	return t.stride[i]
}

func (f *frame) permBuf(n int) []int {
	if n <= len(f.perm) {
		return f.perm[:n]
	}
	return make([]int, n)
}

// dense reports whether the elements fill their extent without gaps or overlap, in any order of dimensions.
func dense(shape, stride []int) bool {
	left := numel(shape)
	if left == 0 {
		return true
	}
	step := 1
	for step < left {
		found := false
		for i, d := range shape {
			if d != 1 && stride[i] == step {
				step *= d
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	return extent(shape, stride) == left
}
