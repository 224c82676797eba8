package kernels

import (
	"fmt"
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// ReduceCall is the arguments of a reduction, outputs first.
type ReduceCall struct {
	Compute  dtype.DType
	Scalars  []Scalar
	Operands []Operand
	Dims     []bool
	op       *ReduceOp
}

// newReduceCall copies all its arguments, so that callers may keep their operands on the stack.
func newReduceCall(op *ReduceOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand, dims []bool) *ReduceCall {
	return &ReduceCall{compute, slices.Clone(scalars), keptOperands(outs, ins), slices.Clone(dims), op}
}

// Outs returns the number of outputs among the operands.
func (c *ReduceCall) Outs() int { return c.op.Outs }

// FusedReduce is a reduction of what element-wise work makes, in one kernel. It takes the elements in the order in which the reduction
// alone takes those of an array, so the bits are the same.
type FusedReduce struct {
	*ReduceCall
	fused *ReduceOp
}

// FuseReduce returns c with before, which makes its input from ins. Their Ptrs do not matter yet. It returns nil if that cannot be one
// kernel: c has several inputs or no elements, before has several outputs or no input, there are too many operands or operations, or an
// operand does not have the elements of a vector side by side.
func FuseReduce(c *ReduceCall, before *PointOp, ins []Operand, lim *Limits) *FusedReduce {
	if c.op.Ins != 1 || before.Outs != 1 || before.Ins == 0 || c.op.Outs+before.Ins > maxOperands {
		return nil
	}
	f := &FusedReduce{c, fuseReduce(c.op, before)}
	if f.fused == nil {
		return nil
	}
	if _, ok := f.plan(lim, nil, c.Operands[:c.Outs()], ins); !ok {
		return nil
	}
	return f
}

// Name is the prefix of the kernel's name.
func (f *FusedReduce) Name() string { return "red_" + f.fused.Name }

// Run launches the kernel. The inputs are those of before, and the scalars those of before and the reduction. No output may overlap an
// input.
func (f *FusedReduce) Run(is Issuer, scalars []Scalar, outs, ins []Operand) error {
	if err := f.fused.check(scalars, outs, ins, f.Dims); err != nil {
		return err
	}
	p, ok := f.plan(is.Limits(), scalars, outs, ins)
	if !ok {
		return fmt.Errorf("%s: the operands lie otherwise than those that it was made for", f.fused.Name)
	}
	return p.run(is)
}

// plan plans the kernel as the reduction alone would be planned for an array of its own.
func (f *FusedReduce) plan(lim *Limits, scalars []Scalar, outs, ins []Operand) (p reducePlan, ok bool) {
	alone := f.Operands[f.Outs():]
	e := reducePlan{op: f.op, compute: f.Compute, outs: outs, ins: alone, parts: 1}
	if !e.gather(f.Dims) {
		return p, false
	}
	if e.n, e.outputs = e.red.numel(), e.kept.numel(); e.n*e.outputs == 0 {
		return p, false
	}
	e.lie(lim)
	p = reducePlan{op: f.fused, compute: f.Compute, scalars: scalars, outs: outs, ins: ins, n: e.n, items: e.items, outputs: e.outputs,
		vec: e.vec, shape: e.shape, wide: e.wide, deep: e.deep, parts: e.parts, chunk: e.chunk, order: alone[0].Stride}
	if !p.gather(f.Dims) {
		return p, false
	}
	if p.vec == 1 {
		return p, true
	}
	along, across, first, other := &p.red, &p.kept, 0, len(outs)
	if p.shape == reduceColumn {
		along, across, first, other = across, along, other, first
	}
	if along.nd > 1 && along.size[0]%p.vec != 0 {
		return p, false
	}
	for i := range ins {
		steps := along.stride[first+i][:along.nd]
		switch steps[0] {
		case 0:
			p.repeat.add(i)
			continue
		case 1:
		default:
			return p, false
		}
		places := ins[i].Ptr / uint64(ins[i].DType.Size())
		for _, s := range slices.Concat(steps[1:], across.stride[other+i][:across.nd]) {
			places |= uint64(s)
		}
		if 1<<bits.TrailingZeros64(places|1<<62) < min(p.vec, 16/ins[i].DType.Size()) {
			p.single.add(i)
		}
	}
	return p, true
}

// reduceAround is a reduction and the work before it.
type reduceAround struct {
	base   *ReduceOp
	before *PointOp
}

// fusedReduces holds the fused reductions by their parts.
var fusedReduces = map[reduceAround]*ReduceOp{}

// fuseReduce returns base with before. The same parts give the same operation. It returns nil if there are too many operations.
func fuseReduce(base *ReduceOp, before *PointOp) *ReduceOp {
	reduceMutex.Lock()
	defer reduceMutex.Unlock()
	key := reduceAround{base, before}
	if op := fusedReduces[key]; op != nil {
		return op
	}
	if len(reduceOps) == maxFused {
		return nil
	}
	op := *base
	op.Name = fmt.Sprintf("%s_%s_%016x", before.begin(), base.Name, hashOf(before))
	op.Ins, op.InTypes, op.Scalars = before.Ins, before.InTypes, before.Scalars+base.Scalars
	op.before, op.base, op.id = before, base, uint16(len(reduceOps))
	own := func(r *Reduction) *Reduction { return &Reduction{r.K, r.T, r.S[before.Scalars:], r.N} }
	op.Init = func(r *Reduction) []kernel.Value { return base.Init(own(r)) }
	op.Step = func(r *Reduction, a []kernel.Value, in []Num, i kernel.Value) []kernel.Value {
		made := before.Build(r.K, r.T, in, r.S[:before.Scalars])[0]
		return base.Step(own(r), a, []Num{made.Convert(base.inType(0, r.T))}, i)
	}
	op.Combine = func(r *Reduction, a, b []kernel.Value) []kernel.Value { return base.Combine(own(r), a, b) }
	if base.Settle != nil {
		op.Settle = func(r *Reduction, a []kernel.Value) []kernel.Value { return base.Settle(own(r), a) }
	}
	op.Finish = func(r *Reduction, a []kernel.Value) []Num { return base.Finish(own(r), a) }
	reduceOps = append(reduceOps, &op)
	fusedReduces[key] = &op
	return &op
}
