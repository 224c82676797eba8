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
	// Ins, Outs and Scalars are the numbers of operands and scalars.
	Ins, Outs, Scalars int
	// Build returns the outputs for one element. t is the compute type, a half only if Halves is set; in and s are of that type unless
	// InTypes and ScalarTypes say otherwise. Outputs may have any type and are converted to the operands'.
	Build func(k *kernel.Builder, t dtype.DType, in, s []Num) []Num
	// BuildAt replaces Build if the element's position matters: i is its row-major linear index, Int32 or Int64.
	BuildAt func(k *kernel.Builder, t dtype.DType, i kernel.Value, in, s []Num) []Num
	// InTypes and ScalarTypes give the types of leading inputs and scalars. Invalid means the compute type, which also applies to those
	// beyond the end.
	InTypes, ScalarTypes []dtype.DType
	// Halves says that Build distinguishes half types: if the call's compute type is one, so is t, and operands are Float32. Results are
	// then rounded to that type, so Build need not be as accurate as for Float32.
	Halves bool
	// Heavy says that the op takes many instructions, so that its kernels process fewer elements per thread.
	Heavy bool
	// Raise, if not nil, returns for an element whether MultiTensor sets the flag of the call. Other engines ignore it.
	Raise func(in []Num) kernel.Value
	// Asserts says that the op's kernels have assertions.
	Asserts bool

	// id is the op's index in the table or, if it is fused, among the fused ops.
	id    uint16
	fused bool
	// group describes the computation of a fused op, and steps is the number of its steps. paired says that a thread has two vectors though
	// the op is Heavy: several steps of many instructions each leave a GPU waiting for results unless there is more independent work.
	group  string
	steps  int
	paired bool
}

var pointOps []*PointOp

// point registers op; the id is its index in the table.
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

// buildType returns the type t that Build gets if compute is the call's compute type.
func (op *PointOp) buildType(compute dtype.DType) dtype.DType {
	if op.Halves {
		return compute
	}
	return opmath(compute)
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

// check returns an error if the numbers of a call do not match op.
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
