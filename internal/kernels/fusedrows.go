package kernels

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// rowAround is the element-wise work that a fused row-wise operation does before and after a plain one. Both parts come from Fuse, and
// either may be nil. The operands are those of base, with the first input of before in place of base's first input; then the outputs of
// before except its first, and those of after; then the other inputs of before, and those of after except its first. The scalars are those
// of before, base and after.
type rowAround struct {
	base *rowOp
	// before makes base's first input; after reads base's first output, which may then be absent.
	before, after *PointOp
}

// CallTaker is an Issuer that may accept row-wise operations and reductions instead of their launches.
type CallTaker interface {
	// TakesCalls reports whether it does so now.
	TakesCalls() bool
	// TakeRows and TakeReduce accept a call that would have been launched.
	TakeRows(c *RowCall)
	TakeReduce(c *ReduceCall)
}

// RowCall is the arguments of a row-wise operation, outputs first. The first input and output have one shape; the operation works along
// dimension Dim.
type RowCall struct {
	Compute  dtype.DType
	Scalars  []Scalar
	Operands []Operand
	Dim      int
	op       *rowOp
}

// newRowCall copies all its arguments, so that callers may keep their operands on the stack.
func newRowCall(op *rowOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand, dim int) *RowCall {
	return &RowCall{Compute: compute, Scalars: slices.Clone(scalars), Operands: keptOperands(outs, ins), Dim: dim, op: op}
}

// keptOperands copies outs and ins.
func keptOperands(outs, ins []Operand) (all []Operand) {
	for i := range len(outs) + len(ins) {
		o := operandAt(outs, ins, i)
		all = append(all, Operand{Ptr: o.Ptr, DType: o.DType, Via: o.Via, Shape: slices.Clone(o.Shape), Stride: slices.Clone(o.Stride)})
	}
	return all
}

// Outs returns the number of outputs among the operands.
func (c *RowCall) Outs() int { return c.op.results() }

// Sums returns how many outputs, the last ones, are sums over the rows.
func (c *RowCall) Sums() int { return c.op.results() - len(c.op.outs) }

// one reports whether operand i has one element for each row.
func (c *RowCall) one(i int) bool {
	switch outs := len(c.op.outs); {
	case i < outs:
		return c.op.outs[i] == rowOne
	case i < c.Outs():
		return false
	default:
		return c.op.ins[i-c.Outs()] == rowOne
	}
}

// Shaped gives the operands the given shape if they are its rows: a matrix whose first dimension is the product of all dimensions of shape
// but the last. It reports whether it could.
func (c *RowCall) Shaped(shape []int) bool {
	last := len(shape) - 1
	if last < 0 {
		return false
	}
	lead, dim := shape[:last], c.Dim
	for i := range c.Operands {
		o := &c.Operands[i]
		if o.Ptr == 0 {
			continue
		}
		n := shape[last]
		if c.one(i) {
			n = 1
		}
		switch {
		case slices.Equal(c.shapeOf(i, shape), o.Shape):
		case c.Dim == 1 && slices.Equal(o.Shape, []int{(&Operand{Shape: lead}).Numel(), n}):
			row, along := o.Stride[0], o.Stride[1]
			o.Shape, o.Stride = append(slices.Clone(lead), n), make([]int, last+1)
			o.Stride[last] = along
			for d := last - 1; d >= 0; d-- {
				o.Stride[d] = row
				row *= shape[d]
			}
			dim = last
		default:
			return false
		}
	}
	c.Dim = dim
	return true
}

// shapeOf returns the shape of operand i if the first input has the given shape.
func (c *RowCall) shapeOf(i int, shape []int) []int {
	if !c.one(i) || c.Dim >= len(shape) {
		return shape
	}
	one := slices.Clone(shape)
	one[c.Dim] = 1
	return one
}

// FusedRows is a row-wise operation with element-wise work before it, which makes its first input, and after it, which reads its first
// output.
type FusedRows struct {
	*RowCall
	fused *rowOp
}

// FuseRows returns c with before and after, either of which may be nil. It returns nil if they cannot be one kernel: there are too many
// operands or operations, before has no input, or each thread has its own row, since the elements of a row are then far apart.
func FuseRows(c *RowCall, before, after *PointOp) *FusedRows {
	e := rowPlan{op: c.op, outs: c.Operands[:len(c.op.outs)], ins: c.Operands[c.Outs():]}
	if e.gather(c.Dim) != "" || e.rows*e.n == 0 {
		return nil
	}
	if group, _ := e.share(); group == 1 {
		return nil
	}
	op := fuseRows(c.op, before, after)
	if op == nil {
		return nil
	}
	return &FusedRows{c, op}
}

// Name is the prefix of the kernel's name.
func (f *FusedRows) Name() string { return "row_" + f.fused.name }

// Counts returns the numbers of outputs and inputs that Run takes.
func (f *FusedRows) Counts() (outs, ins int) { return len(f.fused.outs), len(f.fused.ins) }

// Apart reports whether, wherever the operands lie, no thread reads elements at which another one writes an output of the given shape. That
// output may then be the same array as an input. A thread that holds its part of a row in registers but has no elements, in the row or at
// all, reads the last ones again, so there must be none, whatever width of accesses the addresses allow.
func (f *FusedRows) Apart(shape []int) bool {
	if f.fused.sums != nil { // a row is loaded while the one before is written
		return false
	}
	in := &f.Operands[f.Outs()]
	n := in.Shape[f.Dim]
	if !slices.Equal(shape, in.Shape) {
		return false
	}
	for vec := 1; vec <= 8 && n%vec == 0; vec *= 2 {
		threads, chunks := rowThreads(n/vec, vec)
		if chunks > 0 && (chunks*threads*vec != n || threads == 32 && in.Numel()/n%(rowWarpThreads/32) != 0) {
			return false
		}
	}
	return true
}

// Run launches the kernel. The operands of the operation come first, with the first input of before in place of its first input; then the
// other outputs or inputs of before, and those of after except its first input. Absent ones have no Ptr. No output may overlap an input,
// except as Apart allows. The scalars come in the same order. alone are the operands that the operation has when it runs alone, outputs
// first: they determine which elements a thread adds up in which order, and so the bits.
func (f *FusedRows) Run(is Issuer, scalars []Scalar, outs, ins, alone []Operand) error {
	ok, err := runFusedRows(is, f.fused, f.Compute, scalars, outs, ins, f.Dim, alone)
	if err == nil && !ok {
		err = fmt.Errorf("%s: a thread has a row for itself", f.fused.name)
	}
	return err
}

// fusedRows holds the fused row-wise operations by their parts.
var fusedRows = map[rowAround]*rowOp{}

// fuseRows returns base with before and after. The same parts give the same operation. It returns nil if there are too many operands or
// operations, or before has no input.
func fuseRows(base *rowOp, before, after *PointOp) *rowOp {
	key := rowAround{base, before, after}
	op := &rowOp{name: base.name, scalars: base.scalars, sums: base.sums, build: base.build, around: &key}
	op.outs, op.ins = slices.Clone(base.outs), slices.Clone(base.ins)
	if before != nil && before.Ins == 0 {
		return nil
	}
	if before != nil {
		op.name = before.begin() + "_" + op.name
		op.outs = append(op.outs, make([]rowKind, before.Outs-1)...)
		op.ins = append(op.ins, make([]rowKind, before.Ins-1)...)
		op.scalars += before.Scalars
	}
	if after != nil {
		op.name += "_" + after.begin()
		op.outs = append(op.outs, make([]rowKind, after.Outs)...)
		op.ins = append(op.ins, make([]rowKind, after.Ins-1)...)
		op.scalars += after.Scalars
	}
	if len(op.outs)+len(op.ins) > maxOperands {
		return nil
	}
	op.name += fmt.Sprintf("_%016x", hashOf(before, after))
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

// begin is the operation's name without the number that distinguishes fused ones.
func (op *PointOp) begin() string {
	name, _, _ := strings.Cut(op.Name, "_of")
	return name
}

// hashOf distinguishes the work around row-wise operations.
func hashOf(parts ...*PointOp) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		h.Write([]byte(groupOf(p)))
		h.Write([]byte{0})
	}
	return h.Sum64()
}

// groupOf says what a part computes, and is empty for nil.
func groupOf(p *PointOp) string {
	if p == nil {
		return ""
	}
	return p.group
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

// runFusedRows applies a fused operation along dimension dim, see FusedRows.Run. If each thread would have its own row, it launches nothing
// and returns false.
func runFusedRows(is Issuer, op *rowOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand, dim int,
	alone []Operand) (bool, error) {
	base := op.around.base
	if len(outs) != len(op.outs) || len(ins) != len(op.ins) || len(scalars) != op.scalars {
		return false, fmt.Errorf("%s takes %d outputs, %d inputs and %d scalars; got %d, %d and %d", op.name,
			len(op.outs), len(op.ins), op.scalars, len(outs), len(ins), len(scalars))
	}
	e := rowPlan{op: base, outs: alone[:len(base.outs)], ins: alone[base.results():]}
	if problem := e.gather(dim); problem != "" {
		return false, fmt.Errorf("%s: %s", op.name, problem)
	}
	if e.rows*e.n == 0 {
		return true, nil
	}
	group, chunks := e.share()
	if group == 1 {
		return false, nil
	}
	p := rowPlan{op: op, outs: outs, sums: alone[len(base.outs):base.results()], ins: ins, vec: e.vec}
	if problem := p.gather(dim); problem != "" {
		return false, fmt.Errorf("%s: %s", op.name, problem)
	}
	for i := range p.kept.count {
		switch {
		case p.absent.has(i) || op.kind(i) != rowFull:
		case i >= len(outs) && p.along[i] == 0:
			p.repeat.add(i)
		case p.vec > 1 && !p.aligned(i):
			p.single.add(i)
		}
	}
	return true, p.issueAs(is, compute, scalars, group, chunks)
}

// aligned reports whether operand i can be accessed as wide as its type allows.
func (p *rowPlan) aligned(i int) bool {
	o := operandAt(p.outs, p.ins, i)
	places := o.Ptr / uint64(o.DType.Size())
	for _, s := range p.kept.stride[i][:p.kept.nd] {
		places |= uint64(s)
	}
	return p.along[i] == 1 && 1<<bits.TrailingZeros64(places|1<<62) >= min(p.vec, 16/o.DType.Size())
}

// width is the number of elements per access to an operand.
func (r *rowKernel) width(o int) int {
	if r.s.Rows.Single.has(o) {
		return 1
	}
	return min(r.vec, 16/r.s.DTypes[o].Size())
}

// loadAt loads the vector of an operand at p. Beyond the row's end it repeats the last vector.
func (r *rowKernel) loadAt(o int, p spot) (ns []Num) {
	if n, ok := r.repeated[o]; ok {
		return slices.Repeat([]Num{n}, r.vec)
	}
	if ns, ok := r.ahead[[2]int{o, p.chunk}]; ok {
		return ns
	}
	at := p.i
	switch {
	case p.from.Builder() != nil:
		at = p.from
	case p.ok.Builder() != nil:
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

// input returns the elements of input i, which is operand o, at p.
func (r *rowKernel) input(i, o int, p spot) []Num {
	if i == 0 && r.op.around != nil && r.op.around.before != nil {
		return r.made(p)[0]
	}
	return r.loadAt(o, p)
}

// inputAt returns the element of input i at one position of the row.
func (r *rowKernel) inputAt(i int, at kernel.Value) kernel.Value {
	load := func(o int) []Num {
		if n, ok := r.repeated[o]; ok {
			return []Num{n}
		}
		return r.arrays[o].load(r.index(o, at), 1)
	}
	if i == 0 && r.op.around != nil && r.op.around.before != nil {
		return r.runBefore(load)[0][0].Convert(r.t).Re
	}
	return load(len(r.op.outs) + i)[0].Convert(r.t).Re
}

// made returns the results of before at p. If a thread reads its part of the row in every pass, it recomputes them in each.
func (r *rowKernel) made(p spot) [][]Num {
	if r.before == nil {
		r.before = map[int][][]Num{}
	}
	if r.before[p.chunk] == nil {
		r.before[p.chunk] = r.runBefore(func(o int) []Num { return r.loadAt(o, p) })
	}
	return r.before[p.chunk]
}

// runBefore applies before to the elements of operands that load returns.
func (r *rowKernel) runBefore(load func(o int) []Num) [][]Num {
	op, base := r.op.around.before, r.op.around.base
	in := [][]Num{load(len(r.op.outs))}
	for i := range op.Ins - 1 {
		in = append(in, load(len(r.op.outs)+len(base.ins)+i))
	}
	return r.elements(op, in, r.nums[:op.Scalars])
}

// elements applies op to elements of its inputs, the same number of each.
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

// result is a value that is stored to an output at a spot.
type result struct {
	out int
	ns  []Num
}

// results returns everything that is stored where base stores its first output.
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
