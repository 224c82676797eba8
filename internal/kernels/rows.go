package kernels

import (
	"fmt"
	"math/bits"
	"sync"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// rowOp is an operation on whole rows, along one dimension of its operands, run by runRows.
type rowOp struct {
	name string
	// outs and ins say for every operand whether it has elements along the row or one element per row.
	outs, ins []rowKind
	scalars   int
	// scalarTypes are the types of the scalars. Invalid means the compute type, which also applies to those beyond the end.
	scalarTypes []dtype.DType
	// freeWidth says that operands with one element per row, such as targets of int64, do not limit the width of accesses along it.
	freeWidth bool
	// halvesToo says that rows of halves are processed in the same order as those of float32, so that they give the same bits as the same
	// numbers in float32.
	halvesToo bool
	// sums, if not nil, adds up by columns over all rows: its inputs are the first ones of the operation, and its outputs come after outs.
	// All rows have the last input in common then.
	sums  *ReduceOp
	build func(r *rowKernel)
	id    uint16
	// around is the work before and after a fused operation.
	around *rowAround
}

type rowKind uint8

const (
	rowFull rowKind = iota // elements along the row
	rowOne                 // one element per row
)

// rowOps holds the operations by their ids. Fused ones are added later.
var (
	rowOps   []*rowOp
	rowMutex sync.RWMutex
)

func rowWise(op rowOp) *rowOp {
	op.id = uint16(len(rowOps))
	rowOps = append(rowOps, &op)
	return &op
}

// rowOpOf returns the operation of a row-wise kernel.
func rowOpOf(s *Spec) *rowOp {
	rowMutex.RLock()
	defer rowMutex.RUnlock()
	return rowOps[s.Op]
}

func (op *rowOp) kind(i int) rowKind {
	if i < len(op.outs) {
		return op.outs[i]
	}
	return op.ins[i-len(op.outs)]
}

// results is the number of outputs, including sums.
func (op *rowOp) results() int {
	if op.sums == nil {
		return len(op.outs)
	}
	return len(op.outs) + op.sums.Outs
}

const (
	rowWarpThreads = 256 // threads per block if each warp has a row
	rowMidThreads  = 256 // threads per block that share a row, if each then has the same number of vectors, two or more
	rowLongThreads = 512 // the maximum, and threads per block if they read the row again in every pass
	rowLoneThreads = 128 // threads per block if each has its own row
	// rowHeld and rowMostChunks are the maximum numbers of elements and of vectors of an operand that a thread holds. rowHeld also applies
	// to reductions.
	rowHeld, rowMostChunks = 32, 8
	// rowsAhead is up to how many warps for each multiprocessor hold all of their inputs, since few others could work while one waits, and
	// rowsHeldAhead is the maximum number of elements that a thread then holds.
	rowsAhead, rowsHeldAhead = 4, 128
)

// rowSpec is what row kernels are specialised on.
type rowSpec struct {
	// Group is the number of threads that share a row, 0 if it is an argument (see General).
	Group  uint16
	Absent operandSet
	// Warps is the number of warps per block, 0 if Group is.
	Warps uint8
	// Kept is the class of the number of kept dimensions, see dimsClass.
	Kept uint8
	// Chunks is the number of vectors that a thread holds, 0 if it reads the row again. Exact: they make up exactly the row.
	Chunks uint8
	Exact  bool
	// Ahead is 1 if a thread loads all of its inputs first. It has two bytes so that there is no gap.
	Ahead uint16
	// Single is the set of operands that are accessed element by element although Vec is more than 1. Repeat is the set of inputs that
	// have one element for the whole row.
	Single, Repeat operandSet
}

// rowArgs are the arguments of row kernels. along are the strides along the row of operands for which these are not 1.
type rowArgs struct {
	op      *rowOp
	rows, n intArg
	// group is that of rowSpec, for kernels that hold rows of any length.
	group    intArg
	operands operandArgs
	along    *[maxOperands]int
	steps    []kernel.Value
	scalars  scalarArgs
	kept     striderArg
	// chunk is the number of rows that a block adds up. states are the addresses of the sums of all blocks, and buffers what the kernel
	// gets for them.
	chunk   intArg
	states  [MaxStates]uint64
	buffers [MaxStates]kernel.Buffer
}

func (a *rowArgs) layout(p params) {
	s := p.s
	p.index(&a.rows, "rows")
	p.index(&a.n, "n")
	if a.op.sums == nil && s.Rows.Chunks > 0 {
		p.i32(&a.group, "group")
	}
	if a.op.sums != nil {
		p.index(&a.chunk, "chunk")
		for i, t := range a.op.sums.states[s.Compute] {
			state := bufferArg{host: a.states[i]}
			if p.buffer(&state, p.number("state", i), t); p.k != nil {
				a.buffers[i] = state.Buffer
			}
		}
	}
	present := operandsFrom(0, int(s.Outs+s.Ins)) &^ s.Rows.Absent
	for i := range int(s.Outs + s.Ins) {
		if !present.has(i) {
			continue
		}
		p.operand(&a.operands, i, p.number("a", i))
		if a.op.kind(i) == rowFull && !s.Rows.Repeat.has(i) && (s.Vec == 1 || s.Rows.Single.has(i)) {
			var step intArg
			if p.l != nil {
				step.host = a.along[i]
			}
			if p.index(&step, p.number("step", i)); p.k != nil {
				a.steps[i] = step.Value
			}
		}
	}
	for i := range a.op.scalars {
		p.scalarAt(&a.scalars, i, p.number("s", i), a.op.scalarType(i, s.Compute))
	}
	p.strider(&a.kept, "kept", int(s.Rows.Kept), 1, int(s.Index), present)
}

// rowPlan is a planned row-wise operation. sums are the outputs of the operation's sums.
type rowPlan struct {
	op        *rowOp
	outs, ins []Operand
	sums      []Operand
	kept      space
	along     [maxOperands]int // strides along the row
	absent    operandSet
	single    operandSet
	repeat    operandSet
	n, rows   int
	vec       int
}

// runRows applies op along dimension dim. Operands have one shape (rowOne operands: size 1 at dim) with any strides. Inputs whose Ptr is 0
// are absent, if op allows that. The first full operand determines the shape.
func runRows(is Issuer, op *rowOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand, dim int) error {
	if len(outs) != op.results() || len(ins) != len(op.ins) || len(scalars) != op.scalars {
		return fmt.Errorf("%s takes %d outputs, %d inputs and %d scalars; got %d, %d and %d", op.name, op.results(), len(op.ins),
			op.scalars, len(outs), len(ins), len(scalars))
	}
	if t, ok := is.(CallTaker); ok && t.TakesCalls() {
		t.TakeRows(newRowCall(op, compute, scalars, outs, ins, dim))
		return nil
	}
	p := rowPlan{op: op, outs: outs[:len(op.outs)], sums: outs[len(op.outs):], ins: ins}
	if problem := p.gather(dim); problem != "" {
		return fmt.Errorf("%s: %s", op.name, problem)
	}
	if p.rows*p.n == 0 {
		return nil
	}
	return p.issue(is, compute, scalars)
}

// gather collects the kept dimensions and the strides along the row. It returns what is wrong, or "". (The caller adds the op's name: if it
// were read here, escape analysis would put the operands' shapes on the heap.)
func (p *rowPlan) gather(dim int) (problem string) {
	count := len(p.outs) + len(p.ins)
	p.kept.count = count
	lead := p.lead()
	shape := operandAt(p.outs, p.ins, lead).Shape
	if dim < 0 || dim >= len(shape) {
		return "the dimension does not exist in the operands' shape"
	}
	for i := range count {
		o := operandAt(p.outs, p.ins, i)
		if o.Ptr == 0 && (i >= len(p.outs) || p.op.around != nil) {
			p.absent.add(i)
			continue
		}
		if len(o.Stride) != len(shape) {
			return "the operands differ in their number of dimensions"
		}
		if p.op.kind(i) == rowFull {
			p.along[i] = o.Stride[dim]
		}
	}
	p.n = shape[dim]
	for d := len(shape) - 1; d >= 0; d-- {
		if d == dim || shape[d] == 1 {
			continue
		}
		ref := operandAt(p.outs, p.ins, lead).Stride
		at := p.kept.nd
		for at > 0 && abs(ref[d]) < abs(p.kept.stride[lead][at-1]) {
			at--
		}
		if !p.kept.open(at, shape[d]) {
			return spaceFull
		}
		for i := range count {
			if !p.absent.has(i) {
				p.kept.stride[i][at] = operandAt(p.outs, p.ins, i).Stride[d]
			}
		}
	}
	p.kept.merge()
	p.rows = p.kept.numel()
	return ""
}

// lead returns the first present operand with elements along the row.
func (p *rowPlan) lead() int {
	i := 0
	for p.op.kind(i) != rowFull || p.op.around != nil && operandAt(p.outs, p.ins, i).Ptr == 0 {
		i++
	}
	return i
}

// vector returns the maximum number of elements per access along the row.
func (p *rowPlan) vector() int {
	places := uint64(p.n) | uint64(p.widest())
	for i := range p.kept.count {
		if p.absent.has(i) || p.op.kind(i) == rowOne {
			continue
		}
		if p.along[i] != 1 {
			return 1
		}
		o := operandAt(p.outs, p.ins, i)
		places |= o.Ptr / uint64(o.DType.Size())
		for _, s := range p.kept.stride[i][:p.kept.nd] {
			places |= uint64(s)
		}
	}
	return 1 << bits.TrailingZeros64(places)
}

// widest returns the maximum number of elements per access that the operands' types allow.
func (p *rowPlan) widest() int {
	if !p.op.freeWidth {
		return widest(p.outs, p.ins)
	}
	size := 1
	if p.op.halvesToo {
		size = 4
	}
	for i := range p.kept.count {
		if p.op.kind(i) == rowFull {
			size = max(size, operandAt(p.outs, p.ins, i).DType.Size())
		}
	}
	return min(8, 16/size)
}

// share chooses the width of accesses along the row, how many threads share a row and how many vectors each of them holds.
func (p *rowPlan) share() (threads, chunks int) {
	p.vec = p.vector()
	return p.group()
}

// group chooses how many threads share a row and how many vectors each of them holds.
func (p *rowPlan) group() (threads, chunks int) {
	lead := p.lead()
	if p.op.sums != nil {
		threads = rowSumGroup(p.n)
		return threads, ceilDiv(p.n, p.vec*threads)
	}
	if p.rows > 1 && p.n > 1 && abs(p.along[lead]) > abs(p.kept.stride[lead][0]) && p.kept.stride[lead][0] != 0 {
		return 1, 0
	}
	return rowThreads(ceilDiv(p.n, p.vec), p.vec)
}

// rowThreads chooses how many threads share a row of vectors of vec elements, and how many of these each holds, 0 if the row is too long:
// few threads, since what they do together takes time. On an H200, a layer norm of 64 Mi bf16 in rows of 2048 takes 66 µs with 64 threads
// and 79 with 128. For longer rows that can be divided among 256 threads, more threads hide more: the layer norm of a sum of two float32
// tensors in rows of 2048 takes 188 µs with 256 threads and 191 with 64.
func rowThreads(vectors, vec int) (threads, chunks int) {
	most := mostChunks(vec)
	if n := vectors / rowMidThreads; n > 1 && n <= most && vectors%rowMidThreads == 0 {
		return rowMidThreads, n
	}
	for threads = 32; threads <= rowLongThreads; threads *= 2 {
		if need := ceilDiv(vectors, threads); need <= most {
			return threads, need
		}
	}
	return rowLongThreads, 0
}

// mostChunks is the maximum number of vectors of vec elements that a thread holds.
func mostChunks(vec int) int { return min(rowMostChunks, rowHeld/vec) }

// threads returns the number of threads per block. Warps with much to read each get their own block, so that a multiprocessor takes the
// next row as soon as one is done (on an H200, layer norm over rows of 1024 float32 moves 4.24 TB/s; with eight warps per block, 4.18).
func (p *rowPlan) threads(group, chunks int) int {
	switch {
	case p.op.sums != nil:
		return max(group, rowSumThreads)
	case group == 1:
		return rowLoneThreads
	case group == 32 && chunks*p.vec < rowHeld/2:
		return rowWarpThreads
	}
	return group
}

// readsAhead reports whether each thread, one of group that share a row, loads all chunks of all inputs first.
func (p *rowPlan) readsAhead(lim *Limits, group, chunks int) bool {
	inputs := 0
	for i := len(p.outs); i < p.kept.count; i++ {
		if !p.absent.has(i) && p.op.kind(i) == rowFull {
			inputs++
		}
	}
	return chunks > 0 && ceilDiv(p.rows*group, 32) <= rowsAhead*lim.Multiprocessors && inputs*chunks*p.vec <= rowsHeldAhead
}

func (p *rowPlan) issue(is Issuer, compute dtype.DType, scalars []Scalar) error {
	group, chunks := p.share()
	return p.issueAs(is, compute, scalars, group, chunks)
}

// issueAs launches the kernel in which group threads share a row.
func (p *rowPlan) issueAs(is Issuer, compute dtype.DType, scalars []Scalar, group, chunks int) error {
	index := 32
	reach := p.kept.reach()
	for i := range p.kept.count {
		reach = max(reach, p.kept.reach()+(p.n-1)*abs(p.along[i]))
	}
	if reach > min(is.Index32(), lane32) {
		index = 64
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute = FamilyRows, p.op.id, opmath(compute)
	s.Outs, s.Ins, s.Index, s.Vec = uint8(len(p.outs)), uint8(len(p.ins)), uint8(index), uint8(p.vec)
	threads := p.threads(group, chunks)
	s.Rows = rowSpec{Group: uint16(group), Warps: uint8(threads / 32), Absent: p.absent, Single: p.single,
		Repeat: p.repeat, Kept: uint8(dimsClass(p.kept.nd)), Chunks: uint8(chunks), Exact: chunks*group*p.vec == p.n}
	if p.op.sums == nil && p.readsAhead(is.Limits(), group, chunks) {
		s.Rows.Ahead = 1
	}
	var ptr [maxOperands]uint64
	for i := range p.kept.count {
		if !p.absent.has(i) {
			o := operandAt(p.outs, p.ins, i)
			s.DTypes[i], ptr[i] = o.DType, o.Ptr
		}
	}
	var a rowArgs
	a.op, a.rows.host, a.n.host, a.group.host, a.operands.host = p.op, p.rows, p.n, group, &ptr
	a.along, a.scalars.host, a.kept.host = &p.along, scalars, &p.kept
	s.Back = startsBack(is, s, p.rows*p.n)
	l.Block = [3]uint32{uint32(threads), 1, 1}
	if p.op.sums != nil {
		return p.issueSums(is, l, &a)
	}
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(ceilDiv(p.rows, threads/group)), 1, 1}
	return is.Issue(l)
}
