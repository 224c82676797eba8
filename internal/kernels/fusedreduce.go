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

// States returns how many values the state of the reduction has. A kernel has room for MaxStates.
func (c *ReduceCall) States() int { return len(c.op.states[opmath(c.Compute)]) }

// Like reports whether c and e reduce the same dimensions of inputs of one type and layout, in the same order and type.
func (c *ReduceCall) Like(e *ReduceCall) bool {
	a, b := &c.Operands[c.Outs()], &e.Operands[e.Outs()]
	return opmath(c.Compute) == opmath(e.Compute) && c.op.Indexed == e.op.Indexed && slices.Equal(c.Dims, e.Dims) && a.DType == b.DType &&
		slices.Equal(a.Shape, b.Shape) && slices.Equal(a.Stride, b.Stride)
}

// fewElements is the number of elements up to which a thread takes about as long as an element-wise kernel that has as many threads as it
// needs.
const fewElements = 32

// alone plans the reduction by itself, with results at outs. It reports whether there are elements, and room for their dimensions.
func (c *ReduceCall) alone(lim *Limits, outs []Operand) (p reducePlan, ok bool) {
	p = reducePlan{op: c.op, compute: c.Compute, outs: outs, ins: c.Operands[c.Outs():], parts: 1}
	if !p.gather(c.Dims) || p.red.numel()*p.kept.numel() == 0 {
		return p, false
	}
	p.n, p.outputs = p.red.numel(), p.kept.numel()
	p.lie(lim)
	return p, true
}

// Fills reports whether the reduction alone has a block for every multiprocessor, or few elements for each thread, so that its kernel can
// do element-wise work as fast as one of its own.
func (c *ReduceCall) Fills(lim *Limits) bool {
	p, ok := c.alone(lim, c.Operands[:c.Outs()])
	if !ok {
		return false
	}
	_, blocks := p.firstGrid()
	blocks *= p.parts
	return blocks >= lim.Multiprocessors || p.n*p.outputs <= fewElements*blocks*p.firstThreads()
}

// Again reports whether the kernel of the reduction can go through the elements again once it has the results: each output is that of a
// row, adjacent elements which a warp or a block takes.
func (c *ReduceCall) Again(lim *Limits) bool {
	last := len(c.Dims) - 1
	if last < 0 || !c.Dims[last] || slices.Contains(c.Dims[:last], true) || c.op.Settle != nil || !c.Fills(lim) {
		return false
	}
	p, ok := c.alone(lim, c.Operands[:c.Outs()])
	return ok && p.wholeRows()
}

// wholeRows reports whether threads have whole rows together.
func (p *reducePlan) wholeRows() bool { return p.n > 1 && p.shape == reduceRow && p.parts == 1 }

// ReduceThen is element-wise work that reads the results of reductions.
type ReduceThen struct {
	// Row is done once for each row. Its first inputs are the outputs of the reductions, all of them, call by call. Its first outputs are
	// the first inputs of Each, and the others are stored.
	Row *PointOp
	// Each, if not nil, is done for each element. Its outputs are stored.
	Each *PointOp
	// Given is how many outputs of Row are inputs of Each. Same has, for each other input of Each, the number of the input of what comes
	// before the reductions that is the same, or -1.
	Given int
	Same  []int
	// Outs are the stored outputs of Row, with an element for each row; their Ptrs do not matter.
	Outs []Operand
}

// FusedReduce is one or more reductions of what element-wise work makes, in one kernel. It takes the elements in the order in which each
// reduction alone takes those of an array, so the bits are the same.
type FusedReduce struct {
	calls []*ReduceCall
	outs  []int // how many outputs of each call are stored
	fused *ReduceOp
}

// FuseReduce returns the reductions of calls, which are alike, with before, whose first outputs are their inputs, call by call, and then,
// which may be nil. ins are the inputs of before, arrays for its other outputs, which the kernel also writes, the other inputs of then.Row,
// those of then.Each that are not the same as others, and arrays for the outputs of then.Each. All have the shape of what is reduced, and
// their Ptrs do not matter yet. keeps has a bit for every output of a call that is stored. FuseReduce returns nil if that cannot be one
// kernel: a call has no elements or, without then, no output, before has no input, there are too many operands, states or operations, an
// operand does not have the elements of a vector side by side, two calls alone would take their elements in different orders, or the
// kernel cannot go through them again, or it would not be worth it.
func FuseReduce(calls []*ReduceCall, keeps []uint, before *PointOp, then *ReduceThen, ins []Operand, lim *Limits) *FusedReduce {
	f, outs, states := &FusedReduce{calls: calls}, []Operand(nil), 0
	parts := &reduceParts{before: before, keeps: keeps}
	if then != nil {
		parts.row, parts.each, parts.given, parts.same = then.Row, then.Each, then.Given, then.Same
	}
	for i, c := range calls {
		if c.op.Settle != nil || keeps[i] == 0 && then == nil {
			return nil
		}
		parts.bases = append(parts.bases, c.op)
		f.outs = append(f.outs, bits.OnesCount(keeps[i]))
		for k := range c.op.Outs {
			if keeps[i]>>k&1 != 0 {
				outs = append(outs, c.Operands[k])
			}
		}
		states += c.States()
	}
	if then != nil {
		outs = append(outs, then.Outs...)
	}
	if parts.operands() != len(ins) || before.Ins == 0 || len(outs)+len(ins) > maxOperands || states > MaxStates {
		return nil
	}
	if f.fused = fuseReduce(parts); f.fused == nil {
		return nil
	}
	if _, ok := f.plan(lim, nil, outs, ins); !ok {
		return nil
	}
	return f
}

// Name is the prefix of the kernel's name.
func (f *FusedReduce) Name() string { return "red_" + f.fused.Name }

// Outs returns how many outputs of the reductions are stored.
func (f *FusedReduce) Outs() int { return f.fused.Outs }

// Apart reports whether no thread reads elements at which another one writes an array of the given shape. That array may then be the same
// as an input. A kernel that writes results alone has threads that read the last elements again.
func (f *FusedReduce) Apart(shape []int) bool {
	in, p := &f.calls[0].Operands[f.calls[0].Outs()], f.fused.fused
	return p.stores() > 0 && p.row == nil && (&Operand{Shape: shape}).Numel() == in.Numel()
}

// Run launches the kernel. The outputs are those of the reductions that are stored and those of ReduceThen.Row, the inputs those that
// FuseReduce had, and the scalars those of before, the reductions, Row and Each. No output may overlap an input; an array that is written
// may be an input if Apart says so, but not overlap others.
func (f *FusedReduce) Run(is Issuer, scalars []Scalar, outs, ins []Operand) error {
	if err := f.fused.check(scalars, outs, ins, f.calls[0].Dims); err != nil {
		return err
	}
	p, ok := f.plan(is.Limits(), scalars, outs, ins)
	if !ok {
		return fmt.Errorf("%s: the operands have other layouts than those that it was made for", f.fused.Name)
	}
	return p.run(is)
}

// plan plans the kernel as each reduction alone would be planned for an array of its own.
func (f *FusedReduce) plan(lim *Limits, scalars []Scalar, outs, ins []Operand) (p reducePlan, ok bool) {
	first := f.calls[0]
	p = reducePlan{op: f.fused, compute: first.Compute, scalars: scalars, outs: outs, ins: ins, order: first.Operands[first.Outs()].Stride}
	for i, c := range f.calls {
		e, ok := c.alone(lim, outs[:f.outs[i]])
		outs = outs[f.outs[i]:]
		if !ok || i > 0 && p.arrangement() != e.arrangement() {
			return p, false
		}
		p.n, p.items, p.outputs, p.vec, p.shape = e.n, e.items, e.outputs, e.vec, e.shape
		p.wide, p.deep, p.parts, p.chunk = e.wide, e.deep, e.parts, e.chunk
	}
	if !p.gather(first.Dims) || f.fused.fused.row != nil && !p.wholeRows() {
		return p, false
	}
	ok = p.vec == 1 || p.access()
	return p, p.hold(lim) && ok
}

// arrangement is what decides in which order elements are taken.
func (p *reducePlan) arrangement() [9]int {
	return [...]int{p.n, p.items, p.outputs, p.vec, int(p.shape), p.wide, p.deep, p.parts, p.chunk}
}

// access chooses how vectors of the inputs are loaded. It reports whether all of them can be.
func (p *reducePlan) access() bool {
	along, across, first, other := &p.red, &p.kept, 0, len(p.outs)
	if p.shape == reduceColumn {
		along, across, first, other = across, along, other, first
	}
	if along.nd > 1 && along.size[0]%p.vec != 0 {
		return false
	}
	for i := range p.ins {
		in, steps, written := &p.ins[i], along.stride[first+i][:along.nd], p.op.fused.written(i)
		switch {
		case steps[0] == 0 && !written:
			p.repeat.add(i)
			continue
		case steps[0] != 1:
			return false
		}
		places := in.Ptr / uint64(in.DType.Size())
		for _, list := range [...][]int{steps[1:], across.stride[other+i][:across.nd]} {
			for _, s := range list {
				places |= uint64(s)
			}
		}
		if 1<<bits.TrailingZeros64(places|1<<62) < min(p.vec, 16/in.DType.Size()) {
			if written { // an array of its own has room for wide accesses
				return false
			}
			p.single.add(i)
		}
	}
	return true
}

// reduceParts is what a fused reduction is made of. The first outputs of before are the inputs of the bases, in order, and keeps[i] has a
// bit for each output of base i that is stored. The other outputs of before, stores of them, are written to arrays, which follow the
// inputs. The scalars are those of before and then of each base; the states and outputs are those of the bases, in order. row, each, given
// and same are those of ReduceThen.
type reduceParts struct {
	before    *PointOp
	bases     []*ReduceOp
	keeps     []uint
	row, each *PointOp
	given     int
	same      []int
}

// taken is the number of outputs of before that the bases take.
func (p *reduceParts) taken() (n int) {
	for _, base := range p.bases {
		n += base.Ins
	}
	return n
}

func (p *reduceParts) stores() int { return p.before.Outs - p.taken() }

// results is the number of outputs of the bases, also of those that are not stored.
func (p *reduceParts) results() (n int) {
	for _, base := range p.bases {
		n += base.Outs
	}
	return n
}

// offsets returns where the operands of row and each begin among the inputs, and where the outputs of each do. All are the number of inputs
// without row.
func (p *reduceParts) offsets() (row, each, outs int) {
	row = p.before.Ins + p.stores()
	if p.row == nil {
		return row, row, row
	}
	each = row + p.row.Ins - p.results()
	outs = each
	for _, same := range p.same {
		if same < 0 {
			outs++
		}
	}
	return row, each, outs
}

// operands is the number of inputs with the arrays that are written.
func (p *reduceParts) operands() int {
	_, _, outs := p.offsets()
	if p.each != nil {
		outs += p.each.Outs
	}
	return outs
}

// written reports whether input i is an array that is written.
func (p *reduceParts) written(i int) bool {
	row, _, outs := p.offsets()
	return i >= p.before.Ins && i < row || i >= outs
}

// key says what the parts compute.
func (p *reduceParts) key() string {
	var b strings.Builder
	for i, base := range p.bases {
		fmt.Fprintf(&b, "%s %b ", base.Name, p.keeps[i])
	}
	b.WriteString("of " + p.before.group)
	if p.row != nil {
		fmt.Fprintf(&b, " row %d %v %s each %s", p.given, p.same, p.row.group, groupOf(p.each))
	}
	return b.String()
}

// fusedReduces holds the fused reductions by their keys.
var fusedReduces = map[string]*ReduceOp{}

// fuseReduce returns the operation of p. The same parts give the same operation. It returns nil if there are too many operations.
func fuseReduce(p *reduceParts) *ReduceOp {
	reduceMutex.Lock()
	defer reduceMutex.Unlock()
	key := p.key()
	if op := fusedReduces[key]; op != nil {
		return op
	}
	if len(reduceOps) == maxFused {
		return nil
	}
	op := &ReduceOp{Ins: p.operands(), InTypes: p.before.InTypes, Scalars: p.before.Scalars, fused: p,
		id: uint16(len(reduceOps)), Indexed: p.bases[0].Indexed, Init: p.init, Step: p.step, Combine: p.combine, Finish: p.finish}
	if p.before.steps > 0 {
		op.Name = p.before.begin() + "_"
	}
	for i, base := range p.bases {
		op.Name += base.Name + "_"
		op.Outs += bits.OnesCount(p.keeps[i])
		op.Scalars += base.Scalars
		for t := range op.states {
			op.states[t] = slices.Concat(op.states[t], base.states[t])
		}
	}
	if p.row != nil {
		op.Outs += p.row.Outs - p.given
		op.Scalars += p.row.Scalars
		if p.row.steps > 0 {
			op.Name += p.row.begin() + "_"
		}
	}
	if p.each != nil {
		op.Scalars += p.each.Scalars
		op.Name += p.each.begin() + "_"
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	op.Name += fmt.Sprintf("%016x", h.Sum64())
	op.State = func(t dtype.DType) []dtype.DType { return op.states[t] }
	reduceOps = append(reduceOps, op)
	fusedReduces[key] = op
	return op
}

func (p *reduceParts) scalarType(i int, t dtype.DType) dtype.DType {
	if i < p.before.Scalars {
		return p.before.scalarType(i, t)
	}
	i -= p.before.Scalars
	for _, base := range p.bases {
		if i < base.Scalars {
			return base.scalarType(i, t)
		}
		i -= base.Scalars
	}
	if i < p.row.Scalars {
		return p.row.scalarType(i, t)
	}
	return p.each.scalarType(i-p.row.Scalars, t)
}

// ofBases calls f for every base, with its context and with where its state begins and ends.
func (p *reduceParts) ofBases(r *Reduction, f func(i int, base *ReduceOp, own *Reduction, from, to int)) {
	scalars, at := r.S[p.before.Scalars:], 0
	for i, base := range p.bases {
		n := len(base.states[r.T])
		f(i, base, &Reduction{r.K, r.T, scalars[:base.Scalars], r.N}, at, at+n)
		scalars, at = scalars[base.Scalars:], at+n
	}
}

func (p *reduceParts) init(r *Reduction) (state []kernel.Value) {
	p.ofBases(r, func(_ int, base *ReduceOp, own *Reduction, _, _ int) { state = append(state, base.Init(own)...) })
	return state
}

func (p *reduceParts) step(r *Reduction, a []kernel.Value, in []Num, place kernel.Value) (state []kernel.Value) {
	return p.take(r, a, p.make(r, in), place)
}

// make returns the outputs of before for an element.
func (p *reduceParts) make(r *Reduction, in []Num) []Num {
	return p.before.Build(r.K, r.T, in, r.S[:p.before.Scalars])
}

// take adds what make made to state a.
func (p *reduceParts) take(r *Reduction, a []kernel.Value, made []Num, place kernel.Value) (state []kernel.Value) {
	p.ofBases(r, func(_ int, base *ReduceOp, own *Reduction, from, to int) {
		in := make([]Num, base.Ins)
		for i := range in {
			in[i] = made[i].Convert(base.inType(i, r.T))
		}
		state, made = append(state, base.Step(own, a[from:to], in, place)...), made[base.Ins:]
	})
	return state
}

func (p *reduceParts) combine(r *Reduction, a, b []kernel.Value) (state []kernel.Value) {
	p.ofBases(r, func(_ int, base *ReduceOp, own *Reduction, from, to int) {
		state = append(state, base.Combine(own, a[from:to], b[from:to])...)
	})
	return state
}

func (p *reduceParts) finish(r *Reduction, a []kernel.Value) []Num {
	all := p.finishAll(r, a)
	return p.kept(all)
}

// finishAll returns the outputs of all bases.
func (p *reduceParts) finishAll(r *Reduction, a []kernel.Value) (all []Num) {
	p.ofBases(r, func(_ int, base *ReduceOp, own *Reduction, from, to int) {
		all = append(all, base.Finish(own, a[from:to])...)
	})
	return all
}

// kept returns those of all outputs of the bases that are stored.
func (p *reduceParts) kept(all []Num) (outs []Num) {
	for i, base := range p.bases {
		for k := range base.Outs {
			if p.keeps[i]>>k&1 != 0 {
				outs = append(outs, all[k])
			}
		}
		all = all[base.Outs:]
	}
	return outs
}
