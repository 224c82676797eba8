package kernels

import (
	"fmt"
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// reduceSpec is what reductions are specialised on.
type reduceSpec struct {
	Shape reduceShape
	Stage reduceStage
	// Kept and Reduced are the classes of the numbers of dimensions, see reduceClass.
	Kept, Reduced uint8
	// Wide is the number of threads that share an output and work side by side along the reduced dimensions. For columns, Wide is the
	// number of outputs per block, and Deep the number of reduced elements that its threads take at a time. Wide is 0 if it is an argument
	// (see General).
	Wide, Deep uint16
	// Repeat is the set of inputs, counted from 0, that are one element along a vector. Single are those whose elements are loaded one by
	// one.
	Repeat, Single operandSet
	// Steady are the inputs besides the first that are the same for all reduced elements, which a thread loads once.
	Steady operandSet
	// Held is the set of inputs that a kernel which goes through the elements again holds in shared memory. They have one type.
	Held operandSet
	// Chunks is the number of vectors that a thread holds in registers, 0 if it goes through them in loops. Exact says that every thread
	// has exactly so many.
	Chunks uint8
	Exact  bool
}

// reduceShape is the arrangement of the threads of a block.
type reduceShape uint8

const (
	reduceRow reduceShape = iota + 1
	reduceColumn
)

type reduceStage uint8

const (
	// reduceWhole: elements to outputs.
	reduceWhole reduceStage = iota
	// reducePartial: elements to states in workspace, one part of the reduced elements per block row.
	reducePartial
	// reduceFinal: states to outputs.
	reduceFinal
)

const (
	reduceRowThreads    = 512 // threads per block if they share one output
	reduceWarpThreads   = 256 // threads per block if each warp has an output
	reduceAgainThreads  = 128 // the same if work reads the results and a thread holds at most half of rowHeld
	reduceColumnThreads = 512 // threads per block of columns
	// reduceAlone is the number of vectors that a thread folds alone; another pass is worth its launch only beyond it. Each part then has
	// at least reduceWork vectors per thread.
	reduceAlone = 64
	reduceWork  = 8
	// reduceNarrow is the minimum number of reduced elements for which columns with few outputs are narrower than 32 threads.
	reduceNarrow = 1024
	// reduceSingle is the maximum number of registers for the elements that a thread of a single reduction holds. reduceHeld and
	// reduceHeldBlock are those of a thread and of a block of a fused one.
	reduceSingle, reduceHeld, reduceHeldBlock = 64, 128, 1 << 15
	// reduceFinalDeep is the number of parts above which more threads share an output in the last stage.
	reduceFinalDeep = 64
)

// reducePlan is a planned reduction. Operands are outputs, then inputs.
type reducePlan struct {
	op        *ReduceOp
	compute   dtype.DType
	scalars   []Scalar
	outs, ins []Operand
	kept, red space
	n, items  int // reduced elements, and vectors along them
	outputs   int
	vec       int
	shape     reduceShape
	wide      int
	deep      int
	index     int
	parts     int
	chunk     int
	// repeat, single, held, chunks and exact are those of reduceSpec.
	repeat, single, held operandSet
	chunks               int
	exact                bool
	// order, if not nil, has the strides that order the dimensions, in place of those of the first input.
	order []int
}

// Reduce reduces ins (of one shape) over the dimensions marked in dims and stores the results to outs, whose shapes are that shape with the
// marked dimensions of size 1 or omitted. Each output is folded in a tree that depends only on the shapes, strides, alignment and the
// device's limits, so results are reproducible. Inputs are converted to the type the op computes in (compute; Float32 for the halves). If
// there are no elements to reduce, the outputs get the result of Finish for the op's identity.
func Reduce(is Issuer, op *ReduceOp, compute dtype.DType, scalars []Scalar, outs, ins []Operand, dims []bool) error {
	if err := op.check(scalars, outs, ins, dims); err != nil {
		return err
	}
	if t, ok := is.(CallTaker); ok && t.TakesCalls() {
		t.TakeReduce(newReduceCall(op, compute, scalars, outs, ins, dims))
		return nil
	}
	p := reducePlan{op: op, compute: compute, scalars: scalars, outs: outs, ins: ins, parts: 1}
	if !p.gather(dims) {
		return fmt.Errorf("%s: %s", op.Name, spaceFull)
	}
	p.n, p.outputs = p.red.numel(), p.kept.numel()
	if p.outputs == 0 {
		return nil
	}
	p.lie(is.Limits())
	return p.run(is)
}

// run launches the stages.
func (p *reducePlan) run(is Issuer) error {
	op, compute := p.op, p.compute
	p.index = 32
	if limit := min(is.Index32(), lane32); p.kept.reach()+p.red.reach() > limit {
		p.index = 64
	}
	if p.parts == 1 {
		return p.issue(is, reduceWhole, 0)
	}
	size := 0
	for _, t := range op.states[opmath(compute)] {
		size += p.stateBytes(t)
	}
	ws, err := is.Workspace(size)
	if err != nil {
		return err
	}
	if err := p.issue(is, reducePartial, ws); err != nil {
		return err
	}
	return p.issue(is, reduceFinal, ws)
}

// stateBytes is the size of one state value of type t for all parts and outputs.
func (p *reducePlan) stateBytes(t dtype.DType) int { return (t.Size()*p.parts*p.outputs + 15) &^ 15 }

// gather divides the dimensions into kept and reduced ones, each ordered by the strides of the first input, or by order, unless the op uses
// indexes. It reports whether there was room for them.
func (p *reducePlan) gather(dims []bool) bool {
	p.kept.count = len(p.outs) + len(p.ins)
	p.red.count = len(p.ins)
	shape, order := p.ins[0].Shape, p.ins[0].Stride
	if p.order != nil {
		order = p.order
	}
	var leads [2][maxDims]int // the strides of order of the kept and of the reduced dimensions
	kept := 0
	for _, r := range dims {
		if !r {
			kept++
		}
	}
	for d := len(dims) - 1; d >= 0; d-- {
		s := &p.kept
		if dims[d] {
			s = &p.red
		} else {
			kept--
		}
		if shape[d] == 1 {
			continue
		}
		first, at, lead := len(p.outs), s.nd, &leads[0]
		if dims[d] {
			first, lead = 0, &leads[1]
		}
		if !dims[d] || !p.op.Indexed {
			for at > 0 && abs(order[d]) < abs(lead[at-1]) {
				at--
			}
		}
		if !s.open(at, shape[d]) {
			return false
		}
		copy(lead[at+1:s.nd], lead[at:])
		lead[at] = order[d]
		for i := range p.ins {
			s.stride[first+i][at] = p.ins[i].Stride[d]
		}
		if dims[d] {
			continue
		}
		for i := range p.outs {
			if o := &p.outs[i]; len(o.Shape) == len(dims) {
				s.stride[i][at] = o.Stride[d]
			} else {
				s.stride[i][at] = o.Stride[kept]
			}
		}
	}
	p.kept.merge()
	p.red.merge()
	return true
}

// lie chooses how blocks are arranged over the work.
func (p *reducePlan) lie(lim *Limits) {
	most := 1
	if p.n > 0 { // otherwise nothing is loaded, and inputs without memory do not count as wide
		most = widest(nil, p.ins)
	}
	along, alongRepeat := p.rowVector(most)
	if p.n < 128 {
		// PyTorch's order of additions, which shows in sums that cancel.
		along, alongRepeat = 1, 0
	}
	across, acrossRepeat := p.columnVector(min(most, 4))
	inner := abs(p.red.stride[0][0])
	rows := p.n > 1 && (p.outputs == 1 || inner != 0 && inner < abs(p.kept.stride[len(p.outs)][0]))
	switch {
	case rows && (p.n/along >= 16 || p.outputs < 64*lim.Multiprocessors):
		p.shape, p.vec, p.repeat = reduceRow, along, alongRepeat
		p.items = p.n / along
		p.wide = p.threadsPerRow(lim)
		p.split(lim, ceilDiv(p.outputs, p.groups()), p.wide)
		p.holdChunks(lim)
	default:
		p.shape, p.vec, p.repeat = reduceColumn, across, acrossRepeat
		if rows {
			p.vec, p.repeat = 1, 0
		}
		p.items = p.n
		p.wide, p.deep = reduceColumnThreads/2, 1
		if p.n >= 32 && !rows {
			p.wide = 32
			for p.n >= reduceNarrow && p.wide > 1 && p.outputs <= p.wide/2*p.vec {
				p.wide /= 2
			}
			p.deep = reduceColumnThreads / p.wide
		}
		p.split(lim, ceilDiv(p.outputs, p.wide*p.vec), p.deep)
	}
}

// threadsPerRow returns how many threads share a row: if there are few rows, many, to fill the device; otherwise as many as can hold it in
// registers, or a warp where that is not possible or would take time to combine.
func (p *reducePlan) threadsPerRow(lim *Limits) int {
	switch {
	case p.items > 128 && p.outputs < 16*lim.Multiprocessors:
		return reduceRowThreads
	case lim.Multiprocessors < fewMultiprocessors || p.red.nd > 1 || p.op.Dear:
		return 32
	}
	wide := 32
	for wide < reduceRowThreads && ceilDiv(p.items, wide)*p.vec > rowHeld {
		wide *= 2
	}
	return wide
}

// holdChunks chooses whether threads hold their part of a row in registers, and as how many vectors. An input of a fused reduction that has
// one element for the whole row is then loaded once. Without a GPU, several rounds take up to 1.6 times as long with the row in registers,
// and one round 0.7 to 0.9 times.
func (p *reducePlan) holdChunks(lim *Limits) {
	need, f := ceilDiv(p.items, p.wide), p.op.fused
	if p.chunks, p.exact = 0, false; p.shape != reduceRow || p.parts > 1 || p.red.nd > 1 || p.items*p.vec != p.n || need == 0 ||
		need*p.vec > rowHeld || f != nil && len(f.rounds) > 1 && lim.Multiprocessors < fewMultiprocessors {
		return
	}
	chunks, _ := chunkClass(need)
	exact := chunks*p.wide == p.items
	if f == nil {
		if chunks*p.vec*registersOf(p.ins[0].DType) > reduceSingle {
			return
		}
	} else {
		held := 0
		for _, t := range f.kept {
			held += registersOf(t)
		}
		for i := range f.read {
			if p.red.stride[i][0] == 0 {
				p.repeat.add(i)
			} else {
				held += registersOf(p.ins[i].DType)
			}
		}
		switch {
		case held*chunks*p.vec > min(reduceHeld, reduceHeldBlock/p.wide):
			return
		case f.stores() > 0 && !f.again() && (!exact || p.wide == 32): // no thread may read what others write
			return
		}
	}
	p.chunks, p.exact = chunks, exact
}

// registersOf is the number of registers of an element.
func registersOf(t dtype.DType) int { return max(1, t.Size()/4) }

// chunkClass returns how many vectors the threads of a kernel for rows hold if those of a row have up to need: as many or, beyond 8, a few
// more, so that there are few kernels. Every thread has whole of them, the others only some.
func chunkClass(need int) (chunks, whole int) {
	grain := 1
	if need > 8 {
		grain = 1 << bits.Len(uint(need-1)) / 4
	}
	chunks = ceilDiv(need, grain) * grain
	return chunks, chunks - grain
}

// groups is the number of outputs per block of reduceRow.
func (p *reducePlan) groups() int { return rowGroups(p.op.fused, p.wide, p.chunks*p.vec) }

// rowGroups is the number of outputs per block if wide threads share one, each of which holds held elements of an input in registers.
func rowGroups(fused *reduceParts, wide, held int) int {
	again := fused != nil && fused.again()
	switch {
	case wide != 32 || again && held > rowHeld/2:
		return 1
	case again:
		return reduceAgainThreads / 32
	}
	return reduceWarpThreads / 32
}

// split divides the reduced elements into parts if there are too few blocks to fill the device; threads is the number of threads of a block
// that share an output.
func (p *reducePlan) split(lim *Limits, blocks, threads int) {
	p.chunk = p.items
	if p.items < threads*reduceAlone {
		return
	}
	want := min(ceilDiv(4*lim.Multiprocessors, blocks), p.items/(threads*reduceWork), 65535)
	if want < 2 {
		return
	}
	p.chunk = ceilDiv(ceilDiv(p.items, want), threads) * threads
	p.parts = ceilDiv(p.items, p.chunk)
}

// rowVector returns the maximum number of elements per access along the reduced dimensions, and the inputs that repeat along them. A single
// run may have a remainder, which is loaded one by one.
func (p *reducePlan) rowVector(most int) (vec int, repeat operandSet) {
	places := uint64(most)
	if p.red.nd > 1 {
		places |= uint64(p.red.size[0])
	}
	for i := range p.ins {
		switch p.red.stride[i][0] {
		case 0:
			repeat.add(i)
			continue
		case 1:
		default:
			return 1, 0
		}
		places |= p.ins[i].Ptr / uint64(p.ins[i].DType.Size())
		for _, s := range p.red.stride[i][1:p.red.nd] {
			places |= uint64(s)
		}
		for _, s := range p.kept.stride[len(p.outs)+i][:p.kept.nd] {
			places |= uint64(s)
		}
	}
	return repeated(places, repeat)
}

// repeated returns the maximum number of elements per access, given the OR of the positions of accesses. If it is 1, no input needs to
// repeat.
func repeated(places uint64, repeat operandSet) (int, operandSet) {
	vec := 1 << bits.TrailingZeros64(places)
	if vec == 1 {
		repeat = 0
	}
	return vec, repeat
}

// columnVector returns the maximum number of adjacent outputs whose elements a thread can load together, and the inputs that repeat along
// them.
func (p *reducePlan) columnVector(most int) (vec int, repeat operandSet) {
	places := uint64(most) | uint64(p.kept.size[0])
	for i := range p.outs {
		if p.kept.stride[i][0] != 1 {
			return 1, 0
		}
	}
	for i := range p.ins {
		stride := p.kept.stride[len(p.outs)+i][:p.kept.nd]
		switch stride[0] {
		case 0:
			repeat.add(i)
			continue
		case 1:
		default:
			return 1, 0
		}
		places |= p.ins[i].Ptr / uint64(p.ins[i].DType.Size())
		for _, s := range stride[1:] {
			places |= uint64(s)
		}
		for _, s := range p.red.stride[i][:p.red.nd] {
			places |= uint64(s)
		}
	}
	return repeated(places, repeat)
}

// firstThreads is the number of threads per block of the first stage.
func (p *reducePlan) firstThreads() int {
	if p.shape == reduceRow {
		return p.wide * p.groups()
	}
	return p.wide * p.deep
}

// firstGrid returns the number of outputs, or of vectors of them, of the first stage, and how many blocks each part has.
func (p *reducePlan) firstGrid() (outputs, blocks int) {
	if p.shape == reduceRow {
		return p.outputs, ceilDiv(p.outputs, p.groups())
	}
	return p.outputs / p.vec, ceilDiv(p.outputs/p.vec, p.wide)
}

// finalShape chooses how blocks are arranged over states: columns of outputs, or a whole block per output if there are few outputs.
func (p *reducePlan) finalShape() (shape reduceShape, wide, deep, threads, grid int) {
	switch {
	case p.outputs >= 64 && p.parts > reduceFinalDeep:
		return reduceColumn, 8, 32, 256, ceilDiv(p.outputs, 8)
	case p.outputs >= 64:
		return reduceColumn, 32, 8, 256, ceilDiv(p.outputs, 32)
	}
	return reduceRow, reduceRowThreads, 0, reduceRowThreads, p.outputs
}

// issue launches one stage; ws is the workspace for the states.
func (p *reducePlan) issue(is Issuer, stage reduceStage, ws uint64) error {
	op, t, scalars := p.op, opmath(p.compute), p.scalars
	if f := op.fused; stage == reduceFinal && f != nil {
		if r := f.rounds[0]; len(r.bases) == 1 && op.Outs == r.bases[0].Outs { // the states are those of the base
			op, scalars = r.bases[0], scalars[r.before.Op.Scalars:]
		}
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Op, s.Compute = FamilyReduce, op.id, t
	s.Vec, s.Index = uint8(p.vec), uint8(p.index)
	s.Reduce = reduceSpec{Shape: p.shape, Stage: stage, Kept: uint8(reduceClass(p.kept.nd)), Reduced: uint8(reduceClass(p.red.nd)),
		Wide: uint16(p.wide), Deep: uint16(p.deep), Repeat: p.repeat, Single: p.single, Steady: p.steady(), Held: p.held,
		Chunks: uint8(p.chunks), Exact: p.exact}
	items, chunk := p.items, p.chunk
	outputs, parts := p.outputs, p.parts
	threads, grid := p.firstThreads(), 0
	if stage == reduceFinal {
		shape, wide, deep, blockThreads, blocks := p.finalShape()
		s.Reduce = reduceSpec{Shape: shape, Stage: stage, Kept: s.Reduce.Kept, Wide: uint16(wide), Deep: uint16(deep)}
		s.Vec, threads, grid = 1, blockThreads, blocks
		items, chunk, parts = p.parts, p.parts, 1
	} else {
		outputs, grid = p.firstGrid()
	}
	var ptr [maxOperands]uint64
	if stage != reducePartial {
		s.Outs = uint8(len(p.outs))
		for i := range p.outs {
			s.DTypes[i], ptr[i] = p.outs[i].DType, p.outs[i].Ptr
		}
	}
	if stage != reduceFinal {
		s.Ins = uint8(len(p.ins))
		for i := range p.ins {
			s.DTypes[int(s.Outs)+i], ptr[int(s.Outs)+i] = p.ins[i].DType, p.ins[i].Ptr
		}
	}
	var a reduceArgs
	a.op, a.n.host, a.outputs.host, a.items.host = op, p.n, outputs, items
	a.wide.host = p.wide
	a.chunk.host, a.tail.host, a.operands.host, a.scalars.host = chunk, p.n-p.items*p.vec, &ptr, scalars
	a.kept.host, a.red.host = &p.kept, &p.red
	if p.sharedRows() {
		a.row.host = p.heldRow()
		l.Shared = uint32(p.heldBytes())
	}
	for i, t := range op.states[t] {
		a.states[i] = ws
		ws += uint64(p.stateBytes(t))
	}
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(grid), uint32(parts), 1}
	l.Block = [3]uint32{uint32(threads), 1, 1}
	return is.Issue(l)
}

// steady returns the inputs besides the first that are the same for all reduced elements, if there are any elements, unless threads hold
// their elements.
func (p *reducePlan) steady() (set operandSet) {
	if p.n == 0 || p.chunks > 0 || p.op.fused != nil && p.op.fused.again() {
		return 0
	}
	for i := 1; i < len(p.ins); i++ {
		moves := func(stride int) bool { return stride != 0 }
		if p.red.nd > 0 && !slices.ContainsFunc(p.red.stride[i][:p.red.nd], moves) {
			set.add(i)
		}
	}
	return set
}

// reduceClass is dimsClass with fewer classes, because a reduction has two spaces.
func reduceClass(nd int) int {
	switch {
	case nd == 1:
		return 1
	case nd <= 3:
		return 3
	}
	return maxDims
}

// MaxStates is the maximum number of values in a state, or in all states of the reductions of a kernel.
const MaxStates = 6

// reduceArgs are the arguments of reductions: n reduced elements, divided into items, of which a block takes chunk, and tail elements
// beyond the last vector. states are the addresses of the states, and buffers what the kernel gets for them.
type reduceArgs struct {
	op                    *ReduceOp
	n                     intArg
	outputs, items, chunk intArg
	tail                  intArg
	// wide is that of reduceSpec, for kernels that hold rows of any length.
	wide intArg
	// row is the number of elements of a row that is held, with what is beside it.
	row       intArg
	states    [MaxStates]uint64
	buffers   []kernel.Buffer
	operands  operandArgs
	scalars   scalarArgs
	kept, red striderArg
}

func (a *reduceArgs) layout(p params) {
	s, r := p.s, &p.s.Reduce
	index, outs, ins := int(s.Index), int(s.Outs), int(s.Ins)
	p.i64(&a.n, "n")
	p.index(&a.outputs, "outputs")
	p.index(&a.items, "items")
	p.index(&a.chunk, "chunk")
	if r.Shape == reduceRow && r.Stage != reduceFinal {
		p.i32(&a.tail, "tail")
	}
	if r.Chunks > 0 {
		p.i32(&a.wide, "wide")
	}
	if r.Chunks == 0 && a.op.fused.holdsRows(r.Held) {
		p.i32(&a.row, "row")
	}
	if r.Stage != reduceWhole {
		for i, t := range a.op.states[s.Compute] {
			var state bufferArg
			state.host = a.states[i]
			if p.buffer(&state, p.number("state", i), t); p.k != nil {
				a.buffers[i] = state.Buffer
			}
		}
	}
	p.operands(&a.operands, operandsFrom(0, outs+ins))
	for i := range a.op.Scalars {
		p.scalarAt(&a.scalars, i, p.number("s", i), a.op.scalarType(i, s.Compute))
	}
	rowVec, columnVec := 1, 1 // elements per item of the reduced and of the kept dimensions
	if r.Shape == reduceRow {
		rowVec = int(s.Vec)
	} else {
		columnVec = int(s.Vec)
	}
	p.strider(&a.kept, "kept", int(r.Kept), columnVec, index, operandsFrom(a.op.Outs-outs, outs+ins))
	if ins > 0 {
		p.strider(&a.red, "red", int(r.Reduced), rowVec, index, operandsFrom(0, ins))
	}
}
