package kernels

import (
	"fmt"
	"math/bits"

	"tenon.dev/dtype"
)

// pointPlan is the iteration space of a pointwise launch.
type pointPlan struct {
	space
	ptr   [maxOperands]uint64
	bytes [maxOperands]int
	// base is the linear index of the first element, for ops that see indexes.
	base int
}

func pointStrided(is Issuer, op *PointOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand) error {
	var p pointPlan
	if err := p.init(op.Name, op.BuildAt != nil, outs, ins); err != nil {
		return err
	}
	return p.run(is, op, compute, scalars, outs, ins)
}

// init gathers the dimensions, ordered by the operands' strides, or in row-major order if rowMajor is set. name is the op's, for errors.
func (p *pointPlan) init(name string, rowMajor bool, outs, ins []Operand) error {
	p.count = len(outs) + len(ins)
	shape := outs[0].Shape
	for i := range p.count {
		o := operandAt(outs, ins, i)
		scalar := o.Ptr == 0 && i >= len(outs)
		if !scalar && len(o.Stride) != len(shape) {
			return fmt.Errorf("%s: operand %d has %d dimensions where the first output has %d", name, i, len(o.Stride), len(shape))
		}
		p.ptr[i], p.bytes[i] = o.Ptr, max(1, o.DType.Size())
		if !scalar && o.Ptr%uint64(p.bytes[i]) != 0 {
			return misaligned(name, o)
		}
	}
	for d := len(shape) - 1; d >= 0; d-- {
		if shape[d] == 1 {
			continue
		}
		at := p.nd
		if !rowMajor {
			for at > 0 && p.before(outs, ins, d, at-1) {
				at--
			}
		}
		if err := p.insert(name, outs, ins, d, at); err != nil {
			return err
		}
	}
	return nil
}

// before reports whether dimension d of the operands should be further in than the one at position at: it has the smaller stride in the
// first operand with nonzero strides for both.
func (p *pointPlan) before(outs, ins []Operand, d, at int) bool {
	for i := range p.count {
		o := operandAt(outs, ins, i)
		if p.ptr[i] == 0 {
			continue
		}
		a, b := abs(o.Stride[d]), abs(p.stride[i][at])
		if a != 0 && b != 0 && a != b {
			return a < b
		}
	}
	return false
}

// insert inserts dimension d at position at.
func (p *pointPlan) insert(name string, outs, ins []Operand, d, at int) error {
	if !p.open(at, outs[0].Shape[d]) {
		return fmt.Errorf("%s: %s", name, spaceFull)
	}
	for i := range p.count {
		if o := operandAt(outs, ins, i); o.Ptr != 0 || i < len(outs) {
			p.stride[i][at] = o.Stride[d]
		}
	}
	return nil
}

// run merges dimensions, splits what 32-bit indexes cannot reach, and launches.
func (p *pointPlan) run(is Issuer, op *PointOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand) error {
	p.merge()
	n := p.numel()
	if n == 0 {
		return nil
	}
	if repeat, ok := p.oneRun(len(outs)); ok {
		return issueContiguous(is, op, compute, scalars, outs, ins, &p.ptr, p.base, n, repeat)
	}
	if limit := min(is.Index32(), lane32); p.reach() > limit {
		return p.split(is, op, compute, scalars, outs, ins)
	}
	if d := p.turned(op, outs, ins); d > 0 {
		return p.turn(is, d)
	}
	return p.issue(is, op, compute, scalars, outs, ins, n)
}

// oneRun reports whether everything is a single dimension with strides of 1, or 0 for inputs.
func (p *pointPlan) oneRun(outs int) (repeat operandSet, ok bool) {
	if p.nd != 1 {
		return 0, false
	}
	for i := range p.count {
		switch {
		case p.ptr[i] == 0 || p.stride[i][0] == 1 || p.size[0] == 1:
		case p.stride[i][0] == 0 && i >= outs:
			repeat.add(i)
		default:
			return 0, false
		}
	}
	return repeat, true
}

// split halves the dimension with the largest extent and runs both halves.
func (p *pointPlan) split(is Issuer, op *PointOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand) error {
	at, far := p.nd-1, -1
	if op.BuildAt == nil {
		for d := range p.nd {
			e := p.size[d] - 1
			for i := range p.count {
				e = max(e, (p.size[d]-1)*abs(p.stride[i][d]))
			}
			if p.size[d] > 1 && e >= far {
				at, far = d, e
			}
		}
	}
	first, second := *p, *p
	half := p.size[at] / 2
	first.size[at] = half
	second.size[at] = p.size[at] - half
	for i := range p.count {
		if p.ptr[i] != 0 {
			second.ptr[i] += uint64(half * p.stride[i][at] * p.bytes[i])
		}
	}
	inner := 1
	for _, s := range p.size[:at] {
		inner *= s
	}
	second.base += half * inner
	if err := first.run(is, op, compute, scalars, outs, ins); err != nil {
		return err
	}
	return second.run(is, op, compute, scalars, outs, ins)
}

// vector returns the maximum number of elements per access along the innermost dimension, and the operands that repeat along it.
func (p *pointPlan) vector(outs, most int) (vec int, repeat operandSet) {
	places := uint64(p.size[0]) | uint64(most)
	for i := range p.count {
		if p.ptr[i] == 0 {
			continue
		}
		switch {
		case p.stride[i][0] == 1 || p.size[0] == 1:
			places |= p.ptr[i] / uint64(p.bytes[i])
			for d := 1; d < p.nd; d++ {
				places |= uint64(p.stride[i][d])
			}
		case p.stride[i][0] == 0 && i >= outs:
			repeat.add(i)
		default:
			return 1, 0
		}
	}
	if vec = 1 << bits.TrailingZeros64(places); vec == 1 {
		repeat = 0
	}
	return vec, repeat
}

func (p *pointPlan) issue(is Issuer, op *PointOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand, n int) error {
	l := is.NewLaunch()
	s := &l.Spec
	setPoint(s, op, compute, outs, ins)
	vec, repeat := p.vector(len(outs), widest(outs, ins))
	s.Vec = uint8(vec)
	s.Point.Dims, s.Point.Repeat = uint8(dimsClass(p.nd)), repeat
	if op.BuildAt != nil && p.base+n > is.Index32() {
		s.Index = 64
	}
	var a pointArgs
	a.op, a.base.host, a.n.host, a.operands.host = op, p.base, n/vec, &p.ptr
	a.scalars.host, a.dims.host = scalars, &p.space
	s.Back = startsBack(is, s, n)
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(ceilDiv(n/vec, pointThreads*op.items())), 1, 1}
	l.Block = [3]uint32{pointThreads, 1, 1}
	return is.Issue(l)
}
