package kernels

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"tenon.dev/dtype"
)

// pointThreads is the block size of pointwise kernels.
const pointThreads = 128

// pointSpec is what pointwise kernels are specialised on.
type pointSpec struct {
	// Repeat is the set of operands that are one element repeated along the innermost dimension, Via that of those that go through the type
	// Half.
	Repeat, Via operandSet
	// Scalar is the set of inputs that are scalars, counted from 0.
	Scalar operandSet
	Half   dtype.DType
	// Dims is the class of the number of dimensions, see dimsClass. It is 0 for a single run, along which every operand has stride 1 or
	// repeats.
	Dims uint8
}

// Pointwise applies op to corresponding elements of ins and stores the results to outs. All have one shape and any strides; a stride of 0
// repeats an input. Inputs are converted to the type op computes in (compute; Float32 for the halves), and results to the outputs' types.
// An output may be the same array as an input, but must not overlap one otherwise. An input whose Ptr is 0 is a scalar: its value follows
// op's own scalars, in the order of such inputs. Nothing is launched for empty outputs.
func Pointwise(is Issuer, op *PointOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand) error {
	if err := op.check(scalars, outs, ins); err != nil {
		return err
	}
	if n, repeat, ok := contiguous(outs, ins); ok {
		if n == 0 {
			return nil
		}
		var ptr [maxOperands]uint64
		for i := range len(outs) + len(ins) {
			ptr[i] = operandAt(outs, ins, i).Ptr
		}
		return issueContiguous(is, op, compute, scalars, outs, ins, &ptr, 0, n, repeat)
	}
	return pointStrided(is, op, compute, scalars, outs, ins)
}

// PointwiseRun is Pointwise for dense row-major arrays of n elements; n must not be 0. repeat has the bits of the inputs that have only one
// element, which is repeated; outputs count first. Shapes and strides are ignored.
func PointwiseRun(is Issuer, op *PointOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand, n int, repeat uint16) error {
	var ptr [maxOperands]uint64
	for i := range len(outs) + len(ins) {
		ptr[i] = operandAt(outs, ins, i).Ptr
	}
	return issueContiguous(is, op, compute, scalars, outs, ins, &ptr, 0, n, operandSet(repeat))
}

// contiguous reports whether outs[0] is dense in row-major order and every other operand has its strides or is one element. repeat has the
// bits of the latter; n is the number of elements.
func contiguous(outs, ins []Operand) (n int, repeat operandSet, ok bool) {
	shape, ref := outs[0].Shape, outs[0].Stride
	n = 1
	for d := len(shape) - 1; d >= 0; d-- {
		if shape[d] != 1 && ref[d] != n {
			if hasZero(shape) {
				return 0, 0, true
			}
			return n, 0, false
		}
		n *= shape[d]
	}
	if n == 0 {
		return 0, 0, true
	}
	for i := 1; i < len(outs)+len(ins); i++ {
		o := operandAt(outs, ins, i)
		if o.Ptr == 0 {
			continue
		}
		if len(o.Stride) != len(shape) {
			return n, 0, false
		}
		same, zero := true, i >= len(outs)
		for d, s := range o.Stride {
			if shape[d] == 1 {
				continue
			}
			same = same && s == ref[d]
			zero = zero && s == 0
		}
		switch {
		case same:
		case zero:
			repeat.add(i)
		default:
			return n, 0, false
		}
	}
	return n, repeat, true
}

func hasZero(shape []int) bool {
	for _, s := range shape {
		if s == 0 {
			return true
		}
	}
	return false
}

func operandAt(outs, ins []Operand, i int) *Operand {
	if i < len(outs) {
		return &outs[i]
	}
	return &ins[i-len(outs)]
}

// widest returns the number of elements of the largest operand type in a 16-byte access, at most 8.
func widest(outs, ins []Operand) int {
	size := 1
	for i := range outs {
		size = max(size, outs[i].DType.Size())
	}
	for i := range ins {
		if ins[i].Ptr != 0 {
			size = max(size, ins[i].DType.Size())
		}
	}
	return min(8, 16/size)
}

// setPoint sets the fields that all pointwise specs share.
func setPoint(s *Spec, op *PointOp, compute dtype.DType, outs, ins []Operand) {
	s.Family, s.Op = FamilyPointwise, op.id
	if op.fused {
		s.Family = FamilyFused
	}
	s.Compute = op.buildType(compute)
	s.Outs, s.Ins = uint8(len(outs)), uint8(len(ins))
	for i := range outs {
		s.DTypes[i] = outs[i].DType
		if via := outs[i].Via; via != dtype.Invalid {
			s.Point.Via.add(i)
			s.Point.Half = via
		}
	}
	for i := range ins {
		if ins[i].Ptr == 0 {
			s.Point.Scalar.add(i)
		} else {
			s.DTypes[len(outs)+i] = ins[i].DType
		}
		if via := ins[i].Via; via != dtype.Invalid {
			s.Point.Via.add(len(outs) + i)
			s.Point.Half = via
		}
	}
	if op == Copy && s.DTypes[0] == s.DTypes[1] && s.DTypes[0] != opmath(s.DTypes[0]) {
		s.Compute = dtype.Uint16 // going through float32 would lose bits of a NaN
		s.DTypes[0], s.DTypes[1] = s.Compute, s.Compute
	}
	s.Index = 32
}

// pointArgs are the arguments of pointwise kernels. Scalars that stand for inputs follow the op's own.
type pointArgs struct {
	op *PointOp
	// base is the linear index of the launch's first element, for ops that see indexes. n is the number of elements of a run, otherwise
	// that of vectors.
	base, n  intArg
	operands operandArgs
	scalars  scalarArgs
	dims     striderArg
}

func (a *pointArgs) layout(p params) {
	s := p.s
	if a.op.BuildAt != nil {
		p.i64(&a.base, "base")
	}
	if s.Point.Dims == 0 {
		p.i64(&a.n, "n")
	} else {
		p.i32(&a.n, "items")
	}
	present := operandsFrom(0, int(s.Outs+s.Ins)) &^ (s.Point.Scalar << s.Outs)
	p.operands(&a.operands, present)
	next := a.op.Scalars
	for i := range next {
		p.scalarAt(&a.scalars, i, p.number("s", i), a.op.scalarType(i, opmath(s.Compute)))
	}
	if s.Point.Scalar != 0 {
		for i := range int(s.Ins) {
			if s.Point.Scalar.has(i) {
				p.scalarAt(&a.scalars, next, p.number("in", i), a.op.inType(i, opmath(s.Compute)))
				next++
			}
		}
	}
	if s.Point.Dims > 0 {
		p.strider(&a.dims, "dim", int(s.Point.Dims), int(s.Vec), 32, present)
	}
}

// PackRun packs the arguments of a PointwiseRun into l, without the rest of the launch, in the order of pointArgs.layout and in a fraction
// of its time. ptrs are the operands' addresses, outputs first; an input of 0 is a scalar. The op must not see indexes.
func PackRun(l *Launch, op *PointOp, compute dtype.DType, n int, ptrs []uint64, scalars []Scalar) {
	b := binary.LittleEndian.AppendUint64(l.Args[:0], uint64(n))
	for _, p := range ptrs {
		if p != 0 {
			b = binary.LittleEndian.AppendUint64(b, p)
		}
	}
	l.Args = b
	if len(scalars) == 0 {
		return
	}
	t, next := opmath(compute), op.Scalars
	for i := range next {
		l.scalar(&scalars[i], op.scalarType(i, t))
	}
	for i, p := range ptrs[op.Outs:] {
		if p == 0 {
			l.scalar(&scalars[next], op.inType(i, t))
			next++
		}
	}
}

// backFrom is the number of bytes from which on element-wise and row kernels begin at the end of their operands: much of what the kernel
// before wrote last is still in the cache then, and what it wrote first is not. With all kernels backwards, GPT-2's step took 0.6 % less on
// an H200 and ResNet-50's 0.8 %, but ResNet-50's inference on one image 1.6 % more: small kernels find everything in the cache. The number
// itself is an estimate.
const backFrom = 16 << 20

// startsBack returns 1 if the kernel s, for n elements of each operand, is to begin at the end, and 0 otherwise.
func startsBack(is Issuer, s *Spec, n int) uint16 {
	bytes := 0
	for _, t := range s.DTypes[:s.Outs+s.Ins] {
		if t != dtype.Invalid {
			bytes += t.Size()
		}
	}
	if n*bytes < backFrom || is.Limits().Multiprocessors < fewMultiprocessors {
		return 0
	}
	return 1
}

// items returns the number of vectors per thread of a pointwise kernel.
func (op *PointOp) items() int {
	if op.Heavy && !op.paired {
		return 1
	}
	return 2
}

func misaligned(name string, o *Operand) error {
	return fmt.Errorf("%s: an operand of %v lies at %#x, which is not a multiple of its element size; copy it to aligned memory first",
		name, o.DType, o.Ptr)
}

// issueContiguous launches op over one run of n elements; base is the linear index of the first one, for ops that see indexes.
func issueContiguous(is Issuer, op *PointOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand, ptr *[maxOperands]uint64, base,
	n int, repeat operandSet) error {
	l := is.NewLaunch()
	s := &l.Spec
	setPoint(s, op, compute, outs, ins)
	s.Point.Repeat = repeat
	if op.BuildAt != nil && base+n > is.Index32() {
		s.Index = 64
	}
	places := uint64(8)
	for i := range len(outs) + len(ins) {
		o := operandAt(outs, ins, i)
		if ptr[i] == 0 && i >= len(outs) {
			continue
		}
		size := uint64(o.DType.Size()) // a power of two
		if ptr[i]&(size-1) != 0 {
			return misaligned(op.Name, o)
		}
		if !repeat.has(i) {
			places |= ptr[i] >> bits.TrailingZeros64(size)
		}
	}
	vec := min(widest(outs, ins), 1<<bits.TrailingZeros64(places))
	s.Vec = uint8(vec)
	var a pointArgs
	a.op, a.base.host, a.n.host, a.operands.host = op, base, n, ptr
	a.scalars.host = scalars
	s.Back = startsBack(is, s, n)
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(ceilDiv(n, pointThreads*vec*op.items())), 1, 1}
	l.Block = [3]uint32{pointThreads, 1, 1}
	return is.Issue(l)
}
