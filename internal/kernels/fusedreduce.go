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

// Unordered reports whether the bits of the result do not depend on the order in which elements are taken.
func (c *ReduceCall) Unordered() bool { return c.op.Unordered && c.Compute != dtype.Float64 }

// Like reports whether c and e reduce the same dimensions of inputs of one layout, in the same order and type. The inputs have one type
// too, which decides the order, unless that does not matter to one of them.
func (c *ReduceCall) Like(e *ReduceCall) bool {
	a, b := &c.Operands[c.Outs()], &e.Operands[e.Outs()]
	return opmath(c.Compute) == opmath(e.Compute) && c.op.Indexed == e.op.Indexed && c.op.Dear == e.op.Dear &&
		slices.Equal(c.Dims, e.Dims) && (a.DType == b.DType || c.Unordered() || e.Unordered()) &&
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

// PointWork is element-wise work. Its inputs are, in this order: what it is given for the row; values that earlier rounds have kept for
// each element, whose numbers are Kept; and inputs of the kernel, whose numbers are From.
type PointWork struct {
	Op         *PointOp
	Kept, From []int
}

// none reports whether there is no work.
func (w *PointWork) none() bool { return w.Op == nil }

// given is the number of inputs that the work is given for the row.
func (w *PointWork) given() int { return w.Op.Ins - len(w.Kept) - len(w.From) }

// ReduceRound is one round of a kernel with reductions: element-wise work, reductions of what it makes, and work with their results.
type ReduceRound struct {
	// Before is done for each element. It is given what Row of the round before gives. Its first outputs are the inputs of Calls, call by
	// call. The next, whose types are Keeps, are kept for later work, and counted through all rounds. It may have more in a kernel of one
	// round without work for elements after it; these are stored.
	Before PointWork
	Keeps  []dtype.DType
	// Calls are alike, also in all rounds. Results has a bit for every output of each call that is stored.
	Calls   []*ReduceCall
	Results []uint
	// Row is done once for each row. It is given what Before is given, and then all outputs of Calls. Its first Given outputs are given to
	// later work, and the others are stored, at Outs, which have an element for each row and whose Ptrs do not matter. A kernel of one
	// round may be without Row.
	Row   PointWork
	Given int
	Outs  []Operand
}

// FusedReduce is one or more reductions of what element-wise work makes, in one kernel, perhaps in several rounds. It takes the elements in
// the order in which each reduction alone takes those of an array, except one that is unordered, so the bits are the same.
type FusedReduce struct {
	rounds []ReduceRound
	fused  *ReduceOp
}

// FuseReduce returns rounds as one kernel. each, if it is not none, is done for each element after them; it is given what the last Row
// gives, and its outputs are stored. ins are the inputs of all work, and then arrays for what is stored for each element. All have the
// shape of what is reduced, and their Ptrs do not matter yet. FuseReduce returns nil if that cannot be one kernel: a call has no elements
// or, without Row, no output, the first Before has no input, there are too many operands, states or operations, an operand does not have
// the elements of a vector side by side, two calls to which it matters would alone take their elements in different orders, or the
// kernel cannot go through them again, or it would not be worth it.
func FuseReduce(rounds []ReduceRound, each PointWork, ins []Operand, lim *Limits) *FusedReduce {
	f, outs, states := &FusedReduce{rounds: rounds}, []Operand(nil), 0
	parts := &reduceParts{each: each}
	for n := range rounds {
		r := &rounds[n]
		round := &reduceRound{before: r.Before, row: r.Row, keeps: r.Keeps, results: r.Results, given: r.Given}
		for i, c := range r.Calls {
			if c.op.Settle != nil || r.Results[i] == 0 && r.Row.none() {
				return nil
			}
			round.bases = append(round.bases, c.op)
			for k := range c.op.Outs {
				if r.Results[i]>>k&1 != 0 {
					outs = append(outs, c.Operands[k])
				}
			}
			states += c.States()
		}
		outs, parts.rounds, parts.kept = append(outs, r.Outs...), append(parts.rounds, round), append(parts.kept, r.Keeps...)
	}
	first := parts.rounds[0]
	parts.read = len(ins) - parts.stores()
	if first.before.Op.Ins == 0 || len(outs)+len(ins) > maxOperands || states > MaxStates {
		return nil
	}
	f.fused = parts.op()
	if _, ok := f.plan(lim, nil, outs, ins); !ok {
		return nil
	}
	if f.fused = fuseReduce(f.fused); f.fused == nil {
		return nil
	}
	return f
}

// Name is the prefix of the kernel's name.
func (f *FusedReduce) Name() string { return "red_" + f.fused.Name }

// Outs returns how many outputs there are with an element for each row: what is stored of the reductions, and of each Row after them.
func (f *FusedReduce) Outs() int { return f.fused.Outs }

// Apart reports whether no thread reads elements at which another one writes an array of the given shape. That array may then be the same
// as an input. A kernel that writes results alone has threads that read the last elements again, and so has one that reduces one element to
// each.
func (f *FusedReduce) Apart(shape []int) bool {
	call, p := f.rounds[0].Calls[0], f.fused.fused
	all := call.Operands[call.Outs()].Numel()
	return p.stores() > 0 && !p.again() && (&Operand{Shape: shape}).Numel() == all && call.Operands[0].Numel() < all
}

// Run launches the kernel. The outputs are those that Outs counts, round by round, the inputs those that FuseReduce had, and the scalars
// those of Before, Calls and Row of each round and then those of each. No output may overlap an input; an array that is written may be an
// input if Apart says so, but not overlap others.
func (f *FusedReduce) Run(is Issuer, scalars []Scalar, outs, ins []Operand) error {
	if err := f.fused.check(scalars, outs, ins, f.rounds[0].Calls[0].Dims); err != nil {
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
	first := f.rounds[0].Calls[0]
	p = reducePlan{op: f.fused, compute: first.Compute, scalars: scalars, outs: outs, ins: ins, order: first.Operands[first.Outs()].Stride}
	ordered := false // whether the order of p matters to a call
	for n := range f.rounds {
		r := &f.rounds[n]
		for i, c := range r.Calls {
			stored := bits.OnesCount(r.Results[i])
			e, ok := c.alone(lim, outs[:stored])
			outs = outs[stored:]
			begins, rows := n+i == 0, p.shape == reduceRow && e.shape == reduceRow
			if !ok || !begins && p.arrangement() != e.arrangement() && !(rows && (c.Unordered() || !ordered)) {
				return p, false
			}
			if begins || !ordered && !c.Unordered() {
				p.n, p.items, p.outputs, p.vec, p.shape = e.n, e.items, e.outputs, e.vec, e.shape
				p.wide, p.deep, p.parts, p.chunk = e.wide, e.deep, e.parts, e.chunk
				ordered = !c.Unordered()
			}
		}
		outs = outs[len(r.Outs):]
	}
	if !p.gather(first.Dims) || f.fused.fused.again() && !p.wholeRows() {
		return p, false
	}
	ok = p.vec == 1 || p.access()
	p.holdChunks(lim)
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
		in, steps, written := &p.ins[i], along.stride[first+i][:along.nd], i >= p.op.fused.read
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

// reduceParts is what a fused reduction is made of: the work of ReduceRounds, and that for each element after them. read is the number of
// inputs that are read; those that follow are written. kept has the types of what the rounds keep. The scalars and outputs are those of the
// rounds, in order, and then those of each.
type reduceParts struct {
	rounds []*reduceRound
	each   PointWork
	read   int
	kept   []dtype.DType
}

// reduceRound is a ReduceRound, with the operations of its calls in place of these. Its scalars are those of before, of each base and of
// row, its states those of the bases.
type reduceRound struct {
	before, row PointWork
	keeps       []dtype.DType
	bases       []*ReduceOp
	results     []uint
	given       int
}

// again reports whether the kernel goes on once it has the results of the first round.
func (p *reduceParts) again() bool { return !p.rounds[0].row.none() }

// stores is the number of arrays that are written.
func (p *reduceParts) stores() int {
	if !p.each.none() {
		return p.each.Op.Outs
	}
	first := p.rounds[0]
	return first.before.Op.Outs - first.taken() - len(first.keeps)
}

// readsInput reports whether the work for elements of a round, or that after all rounds, reads input i.
func (p *reduceParts) readsInput(round, i int) bool {
	if round == len(p.rounds) {
		return slices.Contains(p.each.From, i)
	}
	return slices.Contains(p.rounds[round].before.From, i)
}

// last returns the last round in which work for elements reads input i; their number if that after all rounds does.
func (p *reduceParts) last(i int) (last int) {
	for round := range len(p.rounds) + 1 {
		if p.readsInput(round, i) {
			last = round
		}
	}
	return last
}

// holdsRows reports whether rows are held if the inputs in held are. p may be nil.
func (p *reduceParts) holdsRows(held operandSet) bool {
	return held != 0 || p != nil && len(p.kept) > 0
}

// passes returns how often work for elements reads input i.
func (p *reduceParts) passes(i int) (n int) {
	for round := range len(p.rounds) + 1 {
		if p.readsInput(round, i) {
			n++
		}
	}
	return n
}

// key says what the parts compute.
func (p *reduceParts) key() string {
	var b strings.Builder
	for _, r := range p.rounds {
		for i, base := range r.bases {
			fmt.Fprintf(&b, "%s %b ", base.Name, r.results[i])
		}
		fmt.Fprintf(&b, "of %v %v %v %s ", r.before.Kept, r.before.From, r.keeps, r.before.Op.group)
		if !r.row.none() {
			fmt.Fprintf(&b, "row %d %v %s ", r.given, r.row.From, r.row.Op.group)
		}
	}
	fmt.Fprintf(&b, "each %v %v %s", p.each.Kept, p.each.From, groupOf(p.each.Op))
	return b.String()
}

// fusedReduces holds the fused reductions by their keys.
var fusedReduces = map[string]*ReduceOp{}

// fuseReduce returns op, which reduceParts.op has made, or the same one made before, with its id and name. It returns nil if there
// are too many operations.
func fuseReduce(op *ReduceOp) *ReduceOp {
	reduceMutex.Lock()
	defer reduceMutex.Unlock()
	key := op.fused.key()
	if op := fusedReduces[key]; op != nil {
		return op
	}
	if len(reduceOps) == maxFused {
		return nil
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	op.Name, op.id = fmt.Sprintf("%s%016x", op.Name, h.Sum64()), uint16(len(reduceOps))
	reduceOps = append(reduceOps, op)
	fusedReduces[key] = op
	return op
}

// op returns the operation of p, without an id, and with a name that other operations may have too.
func (p *reduceParts) op() *ReduceOp {
	op := p.rounds[0].op()
	op.Ins, op.fused = p.read+p.stores(), p
	names := &strings.Builder{}
	name := func(w *PointWork) {
		if !w.none() && w.Op.steps > 0 {
			names.WriteString(w.Op.begin() + "_")
		}
	}
	op.Outs, op.Scalars = 0, p.each.scalars()
	for _, r := range p.rounds {
		op.Scalars += r.scalars()
		if name(&r.before); len(r.keeps) > 0 {
			names.WriteString("keep_")
		}
		for i, base := range r.bases {
			names.WriteString(base.Name + "_")
			op.Outs += bits.OnesCount(r.results[i])
		}
		name(&r.row)
		op.Outs += r.rows()
	}
	name(&p.each)
	op.Name = names.String()
	op.State = func(t dtype.DType) []dtype.DType { return op.states[t] }
	return op
}

// scalars is the number of scalars.
func (w *PointWork) scalars() int {
	if w.none() {
		return 0
	}
	return w.Op.Scalars
}

func (p *reduceRound) scalars() int {
	n := p.before.scalars() + p.row.scalars()
	for _, base := range p.bases {
		n += base.Scalars
	}
	return n
}

func (p *reduceParts) scalarType(i int, t dtype.DType) dtype.DType {
	for _, r := range p.rounds {
		n := r.scalars()
		if i < n {
			return r.scalarType(i, t)
		}
		i -= n
	}
	return p.each.Op.scalarType(i, t)
}

func (p *reduceRound) scalarType(i int, t dtype.DType) dtype.DType {
	if i < p.before.Op.Scalars {
		return p.before.Op.scalarType(i, t)
	}
	i -= p.before.Op.Scalars
	for _, base := range p.bases {
		if i < base.Scalars {
			return base.scalarType(i, t)
		}
		i -= base.Scalars
	}
	return p.row.Op.scalarType(i, t)
}

// op returns the reductions of the round as one. Its inputs are what before reads for each element.
func (p *reduceRound) op() *ReduceOp {
	types := p.before.Op.InTypes[p.before.given():]
	op := &ReduceOp{Ins: len(types), InTypes: types, Indexed: p.bases[0].Indexed, Init: p.init, Combine: p.combine, Finish: p.finish}
	for i, base := range p.bases {
		op.Outs += bits.OnesCount(p.results[i])
		for t := range op.states {
			op.states[t] = slices.Concat(op.states[t], base.states[t])
		}
	}
	op.State = func(t dtype.DType) []dtype.DType { return op.states[t] }
	return op
}

// rows is the number of outputs of row that are stored.
func (p *reduceRound) rows() int {
	if p.row.none() {
		return 0
	}
	return p.row.Op.Outs - p.given
}

// taken is the number of outputs of before that the bases take.
func (p *reduceRound) taken() (n int) {
	for _, base := range p.bases {
		n += base.Ins
	}
	return n
}

// ofBases calls f for every base, with its context and with where its state begins and ends.
func (p *reduceRound) ofBases(r *Reduction, f func(i int, base *ReduceOp, own *Reduction, from, to int)) {
	scalars, at := r.S[p.before.Op.Scalars:], 0
	for i, base := range p.bases {
		n := len(base.states[r.T])
		f(i, base, &Reduction{r.K, r.T, scalars[:base.Scalars], r.N}, at, at+n)
		scalars, at = scalars[base.Scalars:], at+n
	}
}

func (p *reduceRound) init(r *Reduction) (state []kernel.Value) {
	p.ofBases(r, func(_ int, base *ReduceOp, own *Reduction, _, _ int) { state = append(state, base.Init(own)...) })
	return state
}

// make returns the outputs of before for an element.
func (p *reduceRound) make(r *Reduction, given, in []Num) []Num {
	return p.before.Op.Build(r.K, r.T, slices.Concat(given, in), r.S[:p.before.Op.Scalars])
}

// take adds what make made to state a.
func (p *reduceRound) take(r *Reduction, a []kernel.Value, made []Num, place kernel.Value) (state []kernel.Value) {
	p.ofBases(r, func(_ int, base *ReduceOp, own *Reduction, from, to int) {
		in := make([]Num, base.Ins)
		for i := range in {
			in[i] = made[i].Convert(base.inType(i, r.T))
		}
		state, made = append(state, base.Step(own, a[from:to], in, place)...), made[base.Ins:]
	})
	return state
}

func (p *reduceRound) combine(r *Reduction, a, b []kernel.Value) (state []kernel.Value) {
	p.ofBases(r, func(_ int, base *ReduceOp, own *Reduction, from, to int) {
		state = append(state, base.Combine(own, a[from:to], b[from:to])...)
	})
	return state
}

func (p *reduceRound) finish(r *Reduction, a []kernel.Value) []Num {
	all := p.finishAll(r, a)
	return p.stored(all)
}

// finishAll returns the outputs of all bases.
func (p *reduceRound) finishAll(r *Reduction, a []kernel.Value) (all []Num) {
	p.ofBases(r, func(_ int, base *ReduceOp, own *Reduction, from, to int) {
		all = append(all, base.Finish(own, a[from:to])...)
	})
	return all
}

// stored returns those of all outputs of the bases that are stored.
func (p *reduceRound) stored(all []Num) (outs []Num) {
	for i, base := range p.bases {
		for k := range base.Outs {
			if p.results[i]>>k&1 != 0 {
				outs = append(outs, all[k])
			}
		}
		all = all[base.Outs:]
	}
	return outs
}
