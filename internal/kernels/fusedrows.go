package kernels

import (
	"fmt"
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// rowAround is what a fused row-wise operation computes element by element around one of its own. Both parts come from Fuse, and either
// may be nil. The operands are those of base, where the first input of before stands for the first of base; then the outputs of before but
// for its first and those of after, and the other inputs of before and those of after but for its first. The scalars are those of before,
// base and after. Nothing but the tests makes such operations yet.
type rowAround struct {
	base *rowOp
	// before gives base its first input; after takes base's first output, which may then be absent.
	before, after *PointOp
}

// fusedRows has the fused row-wise operations by what they are.
var fusedRows = map[rowAround]*rowOp{}

// fuseRows returns base with what is before and after it. The same parts give the same operation. It is nil where there are too many
// operands or operations, or before has no input.
func fuseRows(base *rowOp, before, after *PointOp) *rowOp {
	key := rowAround{base, before, after}
	op := &rowOp{name: base.name, scalars: base.scalars, build: base.build, around: &key}
	op.outs, op.ins = slices.Clone(base.outs), slices.Clone(base.ins)
	if before != nil && before.Ins == 0 {
		return nil
	}
	if before != nil {
		op.name = before.Name + "_" + op.name
		op.outs = append(op.outs, make([]rowKind, before.Outs-1)...)
		op.ins = append(op.ins, make([]rowKind, before.Ins-1)...)
		op.scalars += before.Scalars
	}
	if after != nil {
		op.name += "_" + after.Name
		op.outs = append(op.outs, make([]rowKind, after.Outs)...)
		op.ins = append(op.ins, make([]rowKind, after.Ins-1)...)
		op.scalars += after.Scalars
	}
	if len(op.outs)+len(op.ins) > maxOperands {
		return nil
	}
	rowMutex.Lock()
	defer rowMutex.Unlock()
	if f := fusedRows[key]; f != nil {
		return f
	}
	if len(rowOps) == maxFused {
		return nil
	}
	op.id = uint16(len(rowOps))
	rowOps = append(rowOps, op)
	fusedRows[key] = op
	return op
}

func (op *rowOp) firstScalar() int {
	if op.around == nil || op.around.before == nil {
		return 0
	}
	return op.around.before.Scalars
}

func (op *rowOp) ownScalars() int {
	if op.around == nil {
		return op.scalars
	}
	return op.around.base.scalars
}

func (op *rowOp) scalarType(i int, t dtype.DType) dtype.DType {
	first, own := op.firstScalar(), op.ownScalars()
	switch {
	case i < first:
		return op.around.before.scalarType(i, t)
	case i < first+own:
		if op.around != nil {
			op = op.around.base
		}
		return pick(op.scalarTypes, i-first, t)
	}
	return op.around.after.scalarType(i-first-own, t)
}

// runFusedRows applies a fused operation along dimension dim. The operands are as in runRows; those that are absent have no Ptr. alone are
// the operands of base where it runs alone, outputs first: they decide which elements a thread adds up in which order, and so the bits.
// It reports false where one thread has a row for itself, and launches nothing: the elements of a row then lie far apart.
func runFusedRows(is Issuer, op *rowOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand, dim int, alone []Operand) (bool, error) {
	base := op.around.base
	if len(outs) != len(op.outs) || len(ins) != len(op.ins) || len(scalars) != op.scalars {
		return false, fmt.Errorf("%s takes %d outputs, %d inputs and %d scalars; got %d, %d and %d", op.name, len(op.outs), len(op.ins), op.scalars, len(outs), len(ins), len(scalars))
	}
	e := rowPlan{op: base, outs: alone[:len(base.outs)], ins: alone[len(base.outs):]}
	if problem := e.gather(dim); problem != "" {
		return false, fmt.Errorf("%s: %s", op.name, problem)
	}
	if e.rows*e.n == 0 {
		return true, nil
	}
	e.vec = e.vector()
	group, chunks := e.group()
	if group == 1 {
		return false, nil
	}
	p := rowPlan{op: op, outs: outs, ins: ins, vec: e.vec}
	if problem := p.gather(dim); problem != "" {
		return false, fmt.Errorf("%s: %s", op.name, problem)
	}
	for i := range p.kept.count {
		if !p.absent.has(i) && op.kind(i) == rowFull && p.vec > 1 && !p.aligned(i) {
			p.single.add(i)
		}
	}
	return true, p.issueAs(is, compute, scalars, group, chunks)
}

// aligned reports whether operand i can be accessed as widely as its type allows.
func (p *rowPlan) aligned(i int) bool {
	o := operandAt(p.outs, p.ins, i)
	places := o.Ptr / uint64(o.DType.Size())
	for _, s := range p.kept.stride[i][:p.kept.nd] {
		places |= uint64(s)
	}
	return p.along[i] == 1 && 1<<bits.TrailingZeros64(places|1<<62) >= min(p.vec, 16/o.DType.Size())
}

// width is how many elements an access to an operand has.
func (r *rowKernel) width(o int) int {
	if r.s.Rows.Single.has(o) {
		return 1
	}
	return min(r.vec, 16/r.s.DTypes[o].Size())
}

// loadAt loads the vector of an operand at p. Beyond the row's end it repeats the last one.
func (r *rowKernel) loadAt(o int, p spot) (ns []Num) {
	at := p.i
	if p.ok.Builder() != nil {
		at = at.Min(r.n.Sub(r.k.Int(r.ix, int64(r.vec))))
	}
	w := r.width(o)
	for j := 0; j < r.vec; j += w {
		ns = append(ns, r.arrays[o].load(r.index(o, r.plus(at, j)), w)...)
	}
	return ns
}

func (r *rowKernel) plus(at kernel.Value, j int) kernel.Value {
	if j == 0 {
		return at
	}
	return at.Add(r.k.Int(r.ix, int64(j)))
}

// input gives the elements of input i, which is operand o, at p.
func (r *rowKernel) input(i, o int, p spot) []Num {
	if i == 0 && r.op.around != nil && r.op.around.before != nil {
		return r.made(p)[0]
	}
	return r.loadAt(o, p)
}

// inputAt gives the element of input i at one place of the row.
func (r *rowKernel) inputAt(i int, at kernel.Value) kernel.Value {
	load := func(o int) []Num { return r.arrays[o].load(r.index(o, at), 1) }
	if i == 0 && r.op.around != nil && r.op.around.before != nil {
		return r.runBefore(load)[0][0].Convert(r.t).Re
	}
	return load(len(r.op.outs) + i)[0].Convert(r.t).Re
}

// made gives the results of what runs before, element by element, at p. Where a thread reads its part of the row for every pass it computes
// them again in each.
func (r *rowKernel) made(p spot) [][]Num {
	if r.before == nil {
		r.before = map[int][][]Num{}
	}
	if r.before[p.chunk] == nil {
		r.before[p.chunk] = r.runBefore(func(o int) []Num { return r.loadAt(o, p) })
	}
	return r.before[p.chunk]
}

// runBefore applies what runs before to the elements that load gives of operands.
func (r *rowKernel) runBefore(load func(o int) []Num) [][]Num {
	op, base := r.op.around.before, r.op.around.base
	in := [][]Num{load(len(r.op.outs))}
	for i := range op.Ins - 1 {
		in = append(in, load(len(r.op.outs)+len(base.ins)+i))
	}
	return r.elements(op, in, r.nums[:op.Scalars])
}

// elements applies op to elements of its inputs, equally many of each.
func (r *rowKernel) elements(op *PointOp, in [][]Num, scalars []Num) [][]Num {
	out := make([][]Num, op.Outs)
	for j := range in[0] {
		args := make([]Num, len(in))
		for i := range in {
			args[i] = in[i][j]
		}
		for i, n := range op.Build(r.k, r.t, args, scalars) {
			out[i] = append(out[i], n)
		}
	}
	return out
}

// result is what is stored to an output at a spot.
type result struct {
	out int
	ns  []Num
}

// results gives all that is stored where base stores its first output. It is computed before any of it is stored: an output may lie
// where an input does.
func (r *rowKernel) results(p spot, ns []Num) (all []result) {
	a := r.op.around
	if !r.absent(0) {
		all = append(all, result{0, ns})
	}
	out, in := len(a.base.outs), len(r.op.outs)+len(a.base.ins)
	if a.before != nil {
		for _, made := range r.made(p)[1:] {
			all = append(all, result{out, made})
			out++
		}
		in += a.before.Ins - 1
	}
	if a.after == nil {
		return all
	}
	rounded := make([]Num, len(ns))
	for i, n := range ns {
		rounded[i] = n.Convert(a.after.InTypes[0])
	}
	args := [][]Num{rounded}
	for i := range a.after.Ins - 1 {
		args = append(args, r.loadAt(in+i, p))
	}
	for _, made := range r.elements(a.after, args, r.nums[r.op.scalars-a.after.Scalars:]) {
		all = append(all, result{out, made})
		out++
	}
	return all
}

func (r *rowKernel) store(s result, p spot) {
	w := r.width(s.out)
	for j := 0; j < r.vec; j += w {
		r.arrays[s.out].store(r.index(s.out, r.plus(p.i, j)), s.ns[j:j+w]...)
	}
}
