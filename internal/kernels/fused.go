package kernels

import (
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// FusedStep is one operation of a group that runs as one kernel. It computes what a launch of Pointwise computes with the same operation
// and types, and rounds its results to their types.
type FusedStep struct {
	Op *PointOp
	// Compute is the compute type given to Pointwise.
	Compute dtype.DType
	Ins     []FusedIn
	// Outs are the types of the results.
	Outs []FusedOut
}

// FusedIn is an input of a step: the number of a value of the group, which counts the group's inputs first and then the results of its
// steps, or ScalarIn. Via is as in Operand.
type FusedIn struct {
	Value int
	Via   dtype.DType
}

// ScalarIn stands for an input of a step that is a scalar.
const ScalarIn = -1

// FusedOut is the type of a result; Via is as in Operand.
type FusedOut struct{ DType, Via dtype.DType }

// fusedBody is the computation of a fused operation.
type fusedBody struct {
	ins   []dtype.DType
	steps []FusedStep
	outs  []int
}

// fusedOps holds the fused operations of the process by their computation and by their ids.
var fusedOps struct {
	sync.RWMutex
	by  map[string]*PointOp
	all []*PointOp
}

// maxFused is the maximum number of fused operations.
const maxFused = 1 << 16

// MaxFusedOperands is the maximum number of inputs and outputs of a fused operation.
const MaxFusedOperands = maxOperands

// lightSteps is the maximum number of steps of a fused operation that is not Heavy.
const lightSteps = 8

// pairedOperands is the maximum number of operands of a fused operation that is paired: more take too many registers.
const pairedOperands = 4

// Fuse returns the operation on inputs of the given types that runs steps one after the other for each element; its outputs are the values
// outs. Its scalars are those of the steps, in order; a step's own scalars come before those that stand for its inputs. The same group
// gives the same operation. Fuse returns nil if the steps cannot be one kernel: one of them sees indexes or has assertions, there are too
// many operands, or too many groups have been made.
func Fuse(ins []dtype.DType, steps []FusedStep, outs []int) *PointOp {
	if len(ins)+len(outs) > maxOperands {
		return nil
	}
	return FuseWork(ins, steps, outs)
}

// FuseWork is Fuse for work in a kernel of reductions, which takes most outputs itself, so that they are no operands. FuseReduce counts the
// others.
func FuseWork(ins []dtype.DType, steps []FusedStep, outs []int) *PointOp {
	for _, s := range steps {
		if s.Op.BuildAt != nil || s.Op.Asserts || s.Op.fused {
			return nil
		}
	}
	key := fusedKey(ins, steps, outs)
	f := &fusedOps
	f.Lock()
	defer f.Unlock()
	if op := f.by[key]; op != nil {
		return op
	}
	if len(f.all) == maxFused {
		return nil
	}
	body := &fusedBody{ins, steps, outs}
	op := &PointOp{Name: fusedName(key, steps), Ins: len(ins), Outs: len(outs), InTypes: ins, Build: body.build, group: key,
		fused: true, steps: len(steps), id: uint16(len(f.all))}
	heavy := 0
	for _, s := range steps {
		if s.Op.Heavy {
			heavy++
		}
		op.Heavy = op.Heavy || s.Op.Heavy || len(steps) > lightSteps
		compute := opmath(s.Compute)
		for i := range s.Op.Scalars {
			op.ScalarTypes = append(op.ScalarTypes, s.Op.scalarType(i, compute))
		}
		for i, in := range s.Ins {
			if in.Value == ScalarIn {
				op.ScalarTypes = append(op.ScalarTypes, s.Op.inType(i, compute))
			}
		}
	}
	op.paired = heavy > 1 && len(ins)+len(outs) <= pairedOperands
	op.Scalars = len(op.ScalarTypes)
	if f.by == nil {
		f.by = map[string]*PointOp{}
	}
	f.by[key] = op
	f.all = append(f.all, op)
	return op
}

// fusedKey describes what the operation computes.
func fusedKey(ins []dtype.DType, steps []FusedStep, outs []int) string {
	var b strings.Builder
	fmt.Fprint(&b, ins)
	for _, s := range steps {
		fmt.Fprintf(&b, " %s %v %v %v", s.Op.Name, s.Compute, s.Ins, s.Outs)
	}
	fmt.Fprint(&b, outs)
	return b.String()
}

// fusedName returns a name made of the first steps and a hash of key.
func fusedName(key string, steps []FusedStep) string {
	var b strings.Builder
	for _, s := range steps[:min(len(steps), 3)] {
		b.WriteString(s.Op.Name + "_")
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	return fmt.Sprintf("%sof%d_%016x", b.String(), len(steps), h.Sum64())
}

// build computes the outputs for one element. Every step gets its inputs as a separate kernel would load them, and its results are those
// that a separate kernel would store.
func (b *fusedBody) build(k *kernel.Builder, _ dtype.DType, in, scalars []Num) []Num {
	values := append([]Num(nil), in...)
	for _, s := range b.steps {
		compute, args := opmath(s.Compute), make([]Num, len(s.Ins))
		own := scalars[:s.Op.Scalars]
		scalars = scalars[s.Op.Scalars:]
		if s.copies(values) {
			values = append(values, values[s.Ins[0].Value])
			continue
		}
		for i, in := range s.Ins {
			if in.Value == ScalarIn {
				args[i], scalars = scalars[0], scalars[1:]
				continue
			}
			v := values[in.Value]
			if in.Via != dtype.Invalid {
				v = v.Convert(in.Via)
			}
			args[i] = v.Convert(s.Op.inType(i, compute))
		}
		for i, r := range s.Op.Build(k, s.Op.buildType(s.Compute), args, own) {
			if via := s.Outs[i].Via; via != dtype.Invalid {
				r = r.Convert(via)
			}
			values = append(values, r.Convert(s.Outs[i].DType))
		}
	}
	outs := make([]Num, len(b.outs))
	for i, v := range b.outs {
		outs[i] = values[v]
	}
	return outs
}

// copies reports whether the step copies its input bit for bit. Going through float32 would lose the bits of a half's NaN, which setPoint
// avoids too.
func (s *FusedStep) copies(values []Num) bool {
	return s.Op == Copy && s.Ins[0].Value != ScalarIn && values[s.Ins[0].Value].Type() == s.Outs[0].DType
}

// opOf returns the operation of a pointwise kernel.
func opOf(s *Spec) *PointOp {
	if s.Family == FamilyPointwise {
		return pointOps[s.Op]
	}
	fusedOps.RLock()
	defer fusedOps.RUnlock()
	return fusedOps.all[s.Op]
}
