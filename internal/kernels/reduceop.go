package kernels

import (
	"fmt"
	"sync"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// ReduceOp is a reduction, run by [Reduce]: a state is initialized, takes elements one by one, is combined with others and finished.
type ReduceOp struct {
	// Name is the op's name in kernel names and messages.
	Name string
	// Ins, Outs and Scalars are the numbers of operands and scalars.
	Ins, Outs, Scalars int
	// InTypes and ScalarTypes give the types of leading inputs and scalars. Invalid means the compute type, which also applies to those
	// beyond the end.
	InTypes, ScalarTypes []dtype.DType
	// State returns the types of a state's values if the op computes in t: 32- or 64-bit numbers.
	State func(t dtype.DType) []dtype.DType
	// Init returns the state of no elements, the identity of Combine.
	Init func(r *Reduction) []kernel.Value
	// Step adds an element to state a. i is the element's row-major position among the reduced ones, Int64; it is only set if Indexed is.
	Step func(r *Reduction, a []kernel.Value, in []Num, i kernel.Value) []kernel.Value
	// Combine combines two states.
	Combine func(r *Reduction, a, b []kernel.Value) []kernel.Value
	// Settle, if not nil, converts a state that took elements, or that a block has combined, to the form in which it is combined with many
	// others.
	Settle func(r *Reduction, a []kernel.Value) []kernel.Value
	// Finish returns the outputs.
	Finish func(r *Reduction, a []kernel.Value) []Num
	// Indexed says that Step uses i; dimensions then keep their order.
	Indexed bool
	// Unordered says that the bits of the result do not depend on the order in which elements are taken, except in float64, where NaNs keep
	// theirs.
	Unordered bool
	// Dear says that Combine takes as long as several Steps. Few threads then share a row.
	Dear bool

	id     uint16
	states [16][]dtype.DType
	// fused, if not nil, says what the operation is made of.
	fused *reduceParts
}

// Reduction is the context that a ReduceOp's functions get from the kernel under construction.
type Reduction struct {
	K *kernel.Builder
	// T is the compute type, never a half.
	T dtype.DType
	// S holds the scalars, N the number of elements reduced to one output, Int64.
	S []Num
	N kernel.Value
}

// reduceOps are the operations by their ids; fusedReduces follow those that the package defines. reduceMutex is for these.
var (
	reduceOps   []*ReduceOp
	reduceMutex sync.RWMutex
)

// reduceOpOf returns the operation of the kernel of s.
func reduceOpOf(s *Spec) *ReduceOp {
	reduceMutex.RLock()
	defer reduceMutex.RUnlock()
	return reduceOps[s.Op]
}

// reduction registers op; the id is its index in the table.
func reduction(op ReduceOp) *ReduceOp {
	if op.Ins == 0 {
		op.Ins = 1
	}
	if op.Outs == 0 {
		op.Outs = 1
	}
	op.id = uint16(len(reduceOps))
	for t := range op.states {
		if d := dtype.DType(t); d.Valid() {
			if op.states[t] = op.State(d); len(op.states[t]) > MaxStates {
				panic(fmt.Sprintf("kernels: the state of %s has more than %d values", op.Name, MaxStates))
			}
		}
	}
	reduceOps = append(reduceOps, &op)
	return &op
}

// ReduceOps returns the reductions that the package defines, in the order of their ids.
func ReduceOps() (all []*ReduceOp) {
	reduceMutex.RLock()
	defer reduceMutex.RUnlock()
	for _, op := range reduceOps {
		if op.fused == nil {
			all = append(all, op)
		}
	}
	return all
}

// folds is the number of states that a thread keeps side by side for the vec elements of a vector. States of several values take long to
// combine, so there are fewer: with two of them, VarMean of rows of 256 bf16 takes 84 µs on an H200 instead of 104. One would make that 79,
// but then every element waits for the one before.
func (op *ReduceOp) folds(t dtype.DType, vec int) int {
	if len(op.states[t]) > 1 {
		return min(vec, 2)
	}
	return vec
}

func (op *ReduceOp) inType(i int, t dtype.DType) dtype.DType { return pick(op.InTypes, i, t) }

func (op *ReduceOp) scalarType(i int, t dtype.DType) dtype.DType {
	if op.fused != nil {
		return op.fused.scalarType(i, t)
	}
	return pick(op.ScalarTypes, i, t)
}

// check returns an error if the numbers or shapes of a call do not match op.
func (op *ReduceOp) check(scalars []Scalar, outs, ins []Operand, dims []bool) error {
	if len(outs) != op.Outs || len(ins) != op.Ins || len(scalars) != op.Scalars {
		return fmt.Errorf("%s takes %d outputs, %d inputs and %d scalars; got %d, %d and %d",
			op.Name, op.Outs, op.Ins, op.Scalars, len(outs), len(ins), len(scalars))
	}
	kept := 0
	for _, r := range dims {
		if !r {
			kept++
		}
	}
	for i := range ins {
		if len(ins[i].Shape) != len(dims) {
			return fmt.Errorf("%s: input %d has %d dimensions where %d are marked", op.Name, i, len(ins[i].Shape), len(dims))
		}
	}
	for i := range outs {
		if n := len(outs[i].Shape); n != kept && n != len(dims) {
			return fmt.Errorf("%s: output %d has %d dimensions; want %d, or %d with the reduced ones kept", op.Name, i, n, kept, len(dims))
		}
	}
	return nil
}

// stateType returns the type in which a state holds a value of type t.
func stateType(t dtype.DType) dtype.DType {
	if t == dtype.Bool || t.IsInt() && t.Size() < 4 {
		return dtype.Int32
	}
	return opmath(t)
}

// parts returns the state types of a number of type t.
func parts(t dtype.DType) []dtype.DType {
	if t.IsComplex() {
		return []dtype.DType{t.Real(), t.Real()}
	}
	return []dtype.DType{stateType(t)}
}

func pack(n Num) []kernel.Value {
	if n.IsComplex() {
		return []kernel.Value{n.Re, n.Im}
	}
	return []kernel.Value{n.Re.Convert(stateType(n.Re.Type()))}
}

func unpack(a []kernel.Value) Num {
	if len(a) == 2 {
		return Num{a[0], a[1]}
	}
	return Num{Re: a[0]}
}
