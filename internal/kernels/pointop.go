package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// PointOp is an operation on corresponding elements, run by [Pointwise].
type PointOp struct {
	// Name is the op's name in kernel names and messages.
	Name string
	// Ins, Outs and Scalars count the operands and the scalars.
	Ins, Outs, Scalars int
	// Build gives the outputs for one element. t is the type that it computes in, never a half; in and s are of that type unless InTypes
	// and ScalarTypes say otherwise. Outputs may have any type and are converted to the operands'.
	Build func(k *kernel.Builder, t dtype.DType, in, s []Num) []Num
	// BuildAt stands in for Build where the element's place counts: i is its row-major linear index, Int32 or Int64.
	BuildAt func(k *kernel.Builder, t dtype.DType, i kernel.Value, in, s []Num) []Num
	// InTypes and ScalarTypes fix the types of leading inputs and scalars; Invalid and what is beyond their end is the compute type.
	InTypes, ScalarTypes []dtype.DType
	// Heavy says that the op takes many instructions, so that its kernels do fewer elements a thread.
	Heavy bool
	// Raise, if there is one, says of an element whether MultiTensor sets the flag of the call. Other engines leave it out.
	Raise func(in []Num) kernel.Value
	// Asserts says that the op's kernels have assertions.
	Asserts bool

	// id is the op's place among those of the table or, if it is fused, among the fused ones.
	id    uint16
	fused bool
	// group says what a fused op computes.
	group string
}

var pointOps []*PointOp

// point registers op; the id is its place in the table.
func point(op PointOp) *PointOp {
	if op.Outs == 0 {
		op.Outs = 1
	}
	op.id = uint16(len(pointOps))
	pointOps = append(pointOps, &op)
	return &op
}

// PointOps returns all pointwise ops, in the order of their ids.
func PointOps() []*PointOp { return pointOps }

func pick(ts []dtype.DType, i int, t dtype.DType) dtype.DType {
	if i < len(ts) && ts[i] != dtype.Invalid {
		return ts[i]
	}
	return t
}

func (op *PointOp) inType(i int, t dtype.DType) dtype.DType     { return pick(op.InTypes, i, t) }
func (op *PointOp) scalarType(i int, t dtype.DType) dtype.DType { return pick(op.ScalarTypes, i, t) }

// unary registers an op of one input; f may rely on equal types.
func unary(name string, f func(k *kernel.Builder, t dtype.DType, x Num) Num) *PointOp {
	return point(PointOp{Name: name, Ins: 1, Build: func(k *kernel.Builder, t dtype.DType, in, _ []Num) []Num {
		return []Num{f(k, t, in[0])}
	}})
}

// unaryHeavy is unary for ops of many instructions.
func unaryHeavy(name string, f func(k *kernel.Builder, t dtype.DType, x Num) Num) *PointOp {
	op := unary(name, f)
	op.Heavy = true
	return op
}

// pairwise registers an op of two inputs.
func pairwise(name string, f func(k *kernel.Builder, t dtype.DType, a, b Num) Num) *PointOp {
	return point(PointOp{Name: name, Ins: 2, Build: func(k *kernel.Builder, t dtype.DType, in, _ []Num) []Num {
		return []Num{f(k, t, in[0], in[1])}
	}})
}

// pairwiseHeavy is pairwise for ops of many instructions.
func pairwiseHeavy(name string, f func(k *kernel.Builder, t dtype.DType, a, b Num) Num) *PointOp {
	op := pairwise(name, f)
	op.Heavy = true
	return op
}

// check reports a call whose counts do not fit op.
func (op *PointOp) check(scalars []Scalar, outs, ins []Operand) error {
	held := 0
	for i := range ins {
		if ins[i].Ptr == 0 {
			held++
		}
	}
	if len(outs) > 0 && hasZero(outs[0].Shape) {
		return nil // empty operands have no address either
	}
	if len(outs) != op.Outs || len(ins) != op.Ins || len(scalars) != op.Scalars+held || len(outs)+len(ins) > maxOperands {
		return fmt.Errorf(
			"%s takes %d outputs, %d inputs and %d scalars besides those that stand for inputs; got %d, %d and %d for %d such inputs",
			op.Name, op.Outs, op.Ins, op.Scalars, len(outs), len(ins), len(scalars), held)
	}
	return nil
}
