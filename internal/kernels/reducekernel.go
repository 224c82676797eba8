package kernels

import (
	"fmt"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// reduceUnroll is the number of vectors that a thread loads before it folds them. Fused reductions load half as many of each input.
const reduceUnroll = 4

// reduceKernel builds the kernel of one reduction spec.
type reduceKernel struct {
	k *kernel.Builder
	// op is what is reduced: of a fused reduction that of its present round, whose context is r. types are those of its state.
	op    *ReduceOp
	s     *Spec
	r     *Reduction
	ix    dtype.DType
	types []dtype.DType
	// fused, if not nil, says what a fused reduction is made of, and round which round is being built; given is what that gets for the row.
	// scalars are all scalars of the kernel.
	fused   *reduceParts
	round   *reduceRound
	given   []Num
	scalars []Num
	// wide, deep and stage are those of reduceSpec. In a general kernel sharing, Int32, is how many threads share an output.
	wide, deep int
	sharing    kernel.Value
	stage      reduceStage
	// outputs, items and perBlock, the number of items of a block, are of type ix; tail is Int32.
	outputs, items, perBlock, tail kernel.Value
	states                         []kernel.Buffer
	outs, ins                      []array
	kept, red                      *strider
	// readsKept and reads are the numbers of what is kept and of the inputs that are folded, stored those of the arrays that are written
	// meanwhile. keeps is the number of the first value that is kept meanwhile, of those that the round keeps.
	readsKept, reads, stored []int
	keeps                    int
	// inside says that the thread's output exists.
	inside kernel.Value
	// held is where rows are held, as elements of heldType, and heldAt the place (Int32) of the thread's first row there; the others are
	// heldRow elements apart. heldIn and keptIn are those of places.
	heldIn          map[int]int
	keptIn          []int
	held            kernel.Array
	heldType        dtype.DType
	heldAt, heldRow kernel.Value
	// chunks is that of reduceSpec. registers has what the thread holds: elements of inputs, by the input and the item, and what is kept,
	// whose numbers follow the inputs'.
	chunks    int
	registers map[[2]int][]Num
	// steady has the elements of the inputs that are the same for all items.
	steady map[int][]Num
	// accs is the number of elements of an item. Each is folded into a state of its own, but of value i of the state there are only
	// folds[i] copies: element j uses copy j mod folds[i].
	accs  int
	folds []int
	// flat says that items are vectors of adjacent elements of each input, or of one that repeats. They then have places at constant
	// distances.
	flat bool
	// shared is the number of shared arrays for states.
	shared int
}

var _ = register(FamilyReduce, buildReduce)

func buildReduce(s *Spec) *kernel.Kernel {
	op := reduceOpOf(s)
	return kernel.Build(s.name("red_"+op.Name), func(k *kernel.Builder) {
		b := &reduceKernel{k: k, op: op, s: s, ix: indexType(int(s.Index)), types: op.State(s.Compute), accs: int(s.Vec),
			wide: int(s.Reduce.Wide), deep: int(s.Reduce.Deep), stage: s.Reduce.Stage, chunks: int(s.Reduce.Chunks),
			registers: map[[2]int][]Num{}}
		b.flat = s.Reduce.Shape == reduceRow && s.Reduce.Reduced == 1 && b.accs > 1 && b.stage != reduceFinal
		b.foldsOf(op)
		b.params()
		if s.Reduce.Shape == reduceRow {
			b.row()
		} else {
			b.column()
		}
	})
}

// params declares the parameters.
func (b *reduceKernel) params() {
	k, s := b.k, b.s
	a := reduceArgs{op: b.op, operands: operandArgs{arrays: new([maxOperands]array)}, buffers: make([]kernel.Buffer, MaxStates),
		scalars: scalarArgs{nums: make([]Num, b.op.Scalars)}}
	a.layout(declaring(k, s))
	b.r, b.scalars = &Reduction{K: k, T: s.Compute, N: a.n.Value, S: a.scalars.nums}, a.scalars.nums
	b.outputs, b.items, b.perBlock, b.tail = a.outputs.Value, a.items.Value, a.chunk.Value, a.tail.Value
	b.heldRow, b.sharing = a.row.Value, a.wide.Value
	b.states, b.outs, b.ins = a.buffers[:len(b.types)], a.operands.arrays[:s.Outs], a.operands.arrays[s.Outs:s.Outs+s.Ins]
	b.kept, b.red, b.reads = a.kept.strider, a.red.strider, upTo(0, len(b.ins))
	if b.fused = b.op.fused; b.fused != nil && b.stage != reduceFinal {
		b.enter(b.fused.rounds[0])
		if b.fused.each.none() {
			b.stored = upTo(b.fused.read, len(b.ins))
		}
	}
}

// upTo returns the numbers from first up to, but not including, end.
func upTo(first, end int) (all []int) {
	for i := first; i < end; i++ {
		all = append(all, i)
	}
	return all
}

// enter begins round r. The scalars of those before it come first.
func (b *reduceKernel) enter(r *reduceRound) {
	scalars := b.scalars
	b.keeps = 0
	for _, q := range b.fused.rounds {
		n := q.scalars()
		if q == r {
			b.r = &Reduction{b.k, b.r.T, scalars[:n], b.r.N}
			break
		}
		scalars = scalars[n:]
		b.keeps += len(q.keeps)
	}
	b.round, b.op, b.readsKept, b.reads = r, r.op(), r.before.Kept, r.before.From
	b.types = b.op.State(b.s.Compute)
	b.foldsOf(r.bases...)
}

// foldsOf sets folds for the present round, whose reductions are ops.
func (b *reduceKernel) foldsOf(ops ...*ReduceOp) {
	b.folds = b.folds[:0]
	for _, op := range ops {
		n := b.accs
		if b.s.Reduce.Shape == reduceRow {
			n = op.folds(b.s.Compute, b.accs)
		}
		b.folds = append(b.folds, slices.Repeat([]int{n}, len(op.states[b.s.Compute]))...)
	}
}

// newStates returns a state for each element of an item, of which some share values, as folds says.
func (b *reduceKernel) newStates() (accs [][]kernel.Var) {
	for j := range b.accs {
		var acc []kernel.Var
		for i, v := range b.op.Init(b.r) {
			if n := b.folds[i]; j < n {
				acc = append(acc, b.k.Var(v))
			} else {
				acc = append(acc, accs[j%n][i])
			}
		}
		accs = append(accs, acc)
	}
	return accs
}

// firstRound reports whether the elements are gone through for the first time.
func (b *reduceKernel) firstRound() bool { return b.fused == nil || b.round == b.fused.rounds[0] }

// index converts an Int32 to the index type.
func (b *reduceKernel) index(v kernel.Value) kernel.Value { return v.Convert(b.ix) }

// lit returns a constant of the index type.
func (b *reduceKernel) lit(v int) kernel.Value { return b.k.Int(b.ix, int64(v)) }

func get(vars []kernel.Var) []kernel.Value {
	out := make([]kernel.Value, len(vars))
	for i, v := range vars {
		out[i] = v.Get()
	}
	return out
}

func set(vars []kernel.Var, vs []kernel.Value) {
	for i, v := range vs {
		vars[i].Set(v)
	}
}

// element is what a thread folds at once: accs elements of every input, or a state. at are the places of the first of them in the arrays
// that are written. own are the elements in the inputs' types.
type element struct {
	own   [][]Num
	in    [][]Num
	state []kernel.Value
	item  item
	at    []kernel.Value
}

// item is the number of an item: at, of the index type, plus off. In a flat kernel it is the number of the item's first element. ok is set
// if the thread may be without the item, and says whether it has it; without, at is the row's last item. nth counts the items that the
// thread holds in registers.
type item struct {
	at  kernel.Value
	off int
	ok  kernel.Value
	nth int
}

// number returns it as one value.
func (b *reduceKernel) number(it item) kernel.Value {
	if it.off == 0 {
		return it.at
	}
	return it.at.Add(b.lit(it.off))
}

// firstOf returns the number of the first element of an item of vectors.
func (b *reduceKernel) firstOf(it item) kernel.Value {
	if b.flat {
		return b.number(it)
	}
	return b.number(it).Mul(b.lit(b.accs))
}

// placesOf returns where an item is in the inputs, which begin at base.
func (b *reduceKernel) placesOf(it item, base []kernel.Value) (all []kernel.Value) {
	if !b.flat {
		for i, at := range b.red.locate(b.number(it)) {
			all = append(all, base[i].Add(at))
		}
		return all
	}
	for i, at := range base {
		if !b.s.Reduce.Repeat.has(i) {
			at = at.Add(it.at).Add(b.lit(it.off))
		}
		all = append(all, at)
	}
	return all
}

// load loads an item for an output whose inputs begin at base.
func (b *reduceKernel) load(base []kernel.Value, output kernel.Value, it item) element {
	e := element{item: it}
	if b.stage == reduceFinal {
		at := b.number(it).Mul(b.outputs).Add(output)
		for _, s := range b.states {
			e.state = append(e.state, s.Load(at))
		}
		return e
	}
	at := b.placesOf(it, base)
	e.own = b.elementsFor(b.readsKept, b.reads, at, it)
	for j, vs := range e.own {
		e.in = append(e.in, b.converted(j, vs))
	}
	for _, i := range b.stored {
		e.at = append(e.at, at[i])
	}
	return e
}

// width is the number of elements per access to ins[i].
func (b *reduceKernel) width(i int) int {
	if b.s.Reduce.Single.has(i) {
		return 1
	}
	return min(b.accs, 16/b.ins[i].t.Size())
}

// converted returns elements of input i of the operation as it takes them.
func (b *reduceKernel) converted(i int, vs []Num) []Num {
	out := make([]Num, len(vs))
	for j, v := range vs {
		out[j] = v.Convert(b.op.inType(i, b.s.Compute))
	}
	return out
}

// elementsAt loads the accs elements of input i at an index.
func (b *reduceKernel) elementsAt(i int, at kernel.Value) (vs []Num) {
	a := b.ins[i]
	if b.s.Reduce.Repeat.has(i) {
		return slices.Repeat(a.load(at, 1), b.accs)
	}
	w := b.width(i)
	vs = a.load(at, w)
	for j := w; j < b.accs; j += w {
		vs = append(vs, a.load(at.Add(b.lit(j)), w)...)
	}
	return vs
}

// fold adds e to the accumulators.
func (b *reduceKernel) fold(accs [][]kernel.Var, e element) {
	if b.stage == reduceFinal {
		set(accs[0], b.op.Combine(b.r, get(accs[0]), e.state))
		return
	}
	for j, i := range b.reads {
		if nth, ok := b.heldIn[i]; ok && b.firstRound() { // which reads nothing that is kept
			b.hold(nth, e.item, e.own[j])
		}
	}
	keeps := b.roundKeeps()
	stored := make([][]Num, keeps+len(e.at))
	for j := range b.accs {
		in := make([]Num, len(e.in))
		for i := range in {
			in[i] = e.in[i][j]
		}
		var place kernel.Value
		if b.op.Indexed {
			place = b.number(e.item).Convert(dtype.Int64)
			if b.s.Reduce.Shape == reduceRow && b.accs > 1 {
				if !b.flat {
					place = place.Mul(b.k.I64(int64(b.accs)))
				}
				place = place.Add(b.k.I64(int64(j)))
			}
		}
		for i, n := range b.step(accs[j], in, place, e.item.ok) {
			stored[i] = append(stored[i], n)
		}
	}
	for i, ns := range stored[:keeps] {
		b.keep(b.keeps+i, e.item, ns)
	}
	for i, ns := range stored[keeps:] {
		b.storeItem(b.stored[i], e.at[i], ns, e.item)
	}
}

// roundKeeps is the number of values that the present round keeps for each element.
func (b *reduceKernel) roundKeeps() int {
	if b.round == nil {
		return 0
	}
	return len(b.round.keeps)
}

// step adds an element to acc, unless ok says that the thread does not have it. It returns what is kept and what is stored of it.
func (b *reduceKernel) step(acc []kernel.Var, in []Num, place, ok kernel.Value) (rest []Num) {
	old := get(acc)
	var state []kernel.Value
	if b.round == nil {
		state = b.op.Step(b.r, old, in, place)
	} else {
		made := b.round.make(b.r, b.given, in)
		state, rest = b.round.take(b.r, old, made, place), made[b.round.taken():]
	}
	if ok.Builder() != nil {
		for i := range state {
			state[i] = ok.Select(state[i], old[i])
		}
	}
	set(acc, state)
	return rest
}

// walk folds the items begin+lane, begin+lane+step, … below end.
func (b *reduceKernel) walk(accs [][]kernel.Var, base []kernel.Value, output, lane, begin, end kernel.Value, step int) {
	unrolls := []int{reduceUnroll, 1}
	switch {
	case len(b.heldIn) > 0 && b.firstRound():
		unrolls = []int{2 * reduceUnroll, reduceUnroll, 1}
	case b.round != nil && !b.fused.again():
		unrolls[0] /= 2
	}
	b.inTurn(lane, begin, end, step, unrolls, func(items []item) {
		var es []element
		for _, i := range items {
			es = append(es, b.load(base, output, i))
		}
		for _, e := range es {
			b.fold(accs, e)
		}
	})
}

// inTurn calls some for the items begin+lane, begin+lane+step, … below end: for unrolls[0] of them at a time, for the rest unrolls[1] at
// a time, and so on.
func (b *reduceKernel) inTurn(lane, begin, end kernel.Value, step int, unrolls []int, some func(items []item)) {
	k, start := b.k, begin.Add(lane)
	if b.flat { // in elements
		start, end, step = start.Mul(b.lit(b.accs)), end.Mul(b.lit(b.accs)), step*b.accs
	}
	if b.chunks > 0 {
		some(b.chunkItems(start, end, step))
		return
	}
	pos := k.Var(start)
	for _, unroll := range unrolls {
		last := end
		if unroll > 1 {
			last = end.Sub(b.lit((unroll - 1) * step))
		}
		k.For(pos.Get(), last, b.lit(unroll*step), func(i kernel.Value) {
			var items []item
			for u := range unroll {
				items = append(items, item{at: i, off: u * step})
			}
			some(items)
			if unroll > 1 {
				pos.Set(i.Add(b.lit(unroll * step)))
			}
		})
	}
}

// chunkItems returns the items start, start+step, … that the thread holds in registers. It has those below end.
func (b *reduceKernel) chunkItems(start, end kernel.Value, step int) (items []item) {
	last := b.items.Sub(b.lit(1))
	if b.flat {
		last = last.Mul(b.lit(b.accs))
	}
	if b.wide == 0 {
		return b.chunkItemsAny(start, end, last, step)
	}
	_, whole := chunkClass(b.chunks)
	for c := range b.chunks {
		it := item{at: start, off: c * step, nth: c}
		if !b.s.Reduce.Exact && c >= whole || b.stores() && rowGroups(b.fused, b.wide, b.chunks*b.accs) > 1 {
			at := b.number(it)
			it.ok = at.Lt(end)
			it.at, it.off = at.Min(last), 0
		}
		items = append(items, it)
	}
	return items
}

// chunkItemsAny is chunkItems in a general kernel, where step is for one thread. In place of a item beyond the end, a thread loads the one
// before again: another thread may have changed the last item of the row by then.
func (b *reduceKernel) chunkItemsAny(start, end, last kernel.Value, step int) (items []item) {
	apart := b.index(b.sharing.Mul(b.k.I32(step)))
	from := start.Min(last)
	for c := range b.chunks {
		it := item{ok: start.Lt(end), nth: c}
		if c > 0 {
			from = it.ok.Select(start, from)
		}
		it.at = from
		items = append(items, it)
		start = start.Add(apart)
	}
	return items
}

// settle applies the op's Settle to the accumulators before they are combined.
func (b *reduceKernel) settle(accs [][]kernel.Var) {
	for _, a := range accs {
		if b.op.Settle != nil {
			set(a, b.op.Settle(b.r, get(a)))
		}
	}
}

// part returns the range of items of this block.
func (b *reduceKernel) part() (begin, end kernel.Value) {
	begin = b.index(b.k.BlockIdx(kernel.Y)).Mul(b.perBlock)
	return begin, begin.Add(b.perBlock).Min(b.items)
}

// stores reports whether arrays are written. If they may be inputs too (Apart), threads without an output read nothing.
func (b *reduceKernel) stores() bool {
	return b.stage != reduceFinal && b.fused != nil && b.fused.read < len(b.ins)
}

// block returns this block's first output, given perBlock outputs per block.
func (b *reduceKernel) block(perBlock int) kernel.Value {
	return b.index(b.k.BlockIdx(kernel.X)).Mul(b.lit(perBlock))
}

// bases returns the indexes of an output's inputs and of its results.
func (b *reduceKernel) bases(output kernel.Value) (outs, ins []kernel.Value) {
	at := b.kept.locate(output)
	return at[:len(b.outs)], at[len(b.outs):]
}

// row: groups of wide threads share an output.
func (b *reduceKernel) row() {
	k := b.k
	tid := k.ThreadIdx(kernel.X)
	var output kernel.Value
	lane, group := tid, k.I32(0)
	if b.wide == 0 {
		output, lane = b.anyWide(tid)
	} else {
		groups := rowGroups(b.fused, b.wide, b.chunks*b.accs)
		k.FixedThreads(groups * b.wide)
		output = b.block(groups)
		if groups > 1 {
			group = tid.Shr(k.I32(5))
			output = output.Add(b.index(group))
			lane = tid.And(k.I32(31))
		}
	}
	b.holdRows(group)
	b.inside = output.Lt(b.outputs)
	clamped := output.Min(b.outputs.Sub(b.lit(1)))
	outs, ins := b.bases(clamped)
	b.loadSteady(ins)
	begin, end := b.part()
	stop := end
	if b.stores() {
		stop = b.inside.Select(end, begin)
	}
	reduced := func() []kernel.Value { return b.reduced(ins, clamped, tid, lane, begin, stop, end) }
	state, first := reduced(), lane.Eq(k.I32(0)).And(b.inside)
	if b.round == nil || !b.fused.again() {
		k.If(first, func() { b.finish(state, output, outs, 0) })
		return
	}
	arrays := b.outs
	for n, r := range b.fused.rounds {
		if n > 0 {
			b.enter(r)
			state = reduced()
		}
		b.ofRow(state, first, arrays, outs, ins)
		done := b.op.Outs + r.rows()
		arrays, outs = arrays[done:], outs[done:]
	}
	if b.round = nil; !b.fused.each.none() {
		b.elements(ins, b.index(lane), begin, stop)
	}
}

// anyWide returns the thread's output in a general kernel, and its number among those that share it: a warp or the whole block.
func (b *reduceKernel) anyWide(tid kernel.Value) (output, lane kernel.Value) {
	k := b.k
	k.Threads(reduceRowThreads)
	alone := b.sharing.Gt(k.I32(32)) // in the block
	groups := alone.Select(k.I32(1), k.BlockDim(kernel.X).Shr(k.I32(5)))
	output = b.index(k.BlockIdx(kernel.X)).Mul(b.index(groups)).Add(b.index(alone.Select(k.I32(0), tid.Shr(k.I32(5)))))
	return output, tid.And(b.sharing.Sub(k.I32(1)))
}

// loadSteady loads the elements of the inputs, which begin at base, that are the same for all items.
func (b *reduceKernel) loadSteady(base []kernel.Value) {
	b.steady = map[int][]Num{}
	for i, at := range base {
		if b.s.Reduce.Steady.has(i) {
			b.steady[i] = b.elementsAt(i, at)
		}
	}
}

// reduced folds the elements begin, … below stop of a row whose part ends at end, and returns the state, which the first thread of each
// warp has.
func (b *reduceKernel) reduced(ins []kernel.Value, output, tid, lane, begin, stop, end kernel.Value) []kernel.Value {
	accs := b.newStates()
	b.walk(accs, ins, output, b.index(lane), begin, stop, max(b.wide, 1))
	if b.accs > 1 && b.s.Reduce.Reduced == 1 && b.chunks == 0 {
		b.rest(accs[0], ins, lane, end)
	}
	accs = accs[:slices.Max(b.folds)]
	b.settle(accs)
	state := get(accs[0])
	for j, a := range accs[1:] {
		for i, v := range b.op.Combine(b.r, state, get(a)) {
			if j+1 < b.folds[i] {
				state[i] = v
			}
		}
	}
	if b.wide == 0 {
		return b.acrossAny(b.warp(state, 32), tid)
	}
	state = b.warp(state, min(b.wide, 32))
	if b.wide > 32 {
		state = b.across(state, tid)
	}
	return state
}

// rest folds the elements beyond the last vector of a run, in the block whose part ends with that vector.
func (b *reduceKernel) rest(acc []kernel.Var, base []kernel.Value, lane, end kernel.Value) {
	k := b.k
	takes := lane.Lt(b.tail).And(end.Eq(b.items))
	if b.stores() {
		takes = takes.And(b.inside)
	}
	k.If(takes, func() {
		at := b.items.Mul(b.lit(b.accs)).Add(b.index(lane))
		own := b.elementFor(b.readsKept, b.reads, base, at)
		for j, i := range b.reads {
			if nth, ok := b.heldIn[i]; ok && b.firstRound() {
				b.held.Store(b.heldPlace(nth, at), own[j].Re)
			}
		}
		var in []Num
		for j, v := range own {
			in = append(in, v.Convert(b.op.inType(j, b.s.Compute)))
		}
		made, keeps := b.step(acc, in, at.Convert(dtype.Int64), kernel.Value{}), b.roundKeeps()
		for j, n := range made[:keeps] {
			b.held.Store(b.heldPlace(b.keptIn[b.keeps+j], at), n.Convert(b.heldType).Re)
		}
		for j, n := range made[keeps:] {
			i := b.stored[j]
			b.ins[i].store(base[i].Add(at), n)
		}
	})
}

// warp combines the states of n neighbouring threads; the first one gets the result.
func (b *reduceKernel) warp(state []kernel.Value, n int) []kernel.Value {
	for h := n / 2; h > 0; h /= 2 {
		state = b.warpStep(state, h)
	}
	return state
}

// warpStep combines each thread's state with that of the thread h further on.
func (b *reduceKernel) warpStep(state []kernel.Value, h int) []kernel.Value {
	other := make([]kernel.Value, len(state))
	for i, v := range state {
		other[i] = v.ShuffleDown(h)
	}
	return b.op.Combine(b.r, state, other)
}

// across combines the states in the first threads of the block's warps; thread 0 gets the result.
func (b *reduceKernel) across(state []kernel.Value, tid kernel.Value) []kernel.Value {
	k, n := b.k, b.wide/32
	lane := tid.And(k.I32(31))
	var shared []kernel.Array
	for _, t := range b.types { // of its own for each round, whose warps may not have read those of the one before
		shared = append(shared, k.Shared(fmt.Sprintf("shared%d", b.shared), t, n))
		b.shared++
	}
	k.If(lane.Eq(k.I32(0)), func() {
		for i, v := range state {
			shared[i].Store(tid.Shr(k.I32(5)), v)
		}
	})
	k.Barrier()
	for i := range state {
		state[i] = shared[i].Load(lane.Min(k.I32(n - 1)))
	}
	return b.warp(state, n)
}

// acrossAny combines the states in the first threads of an output's warps in a general kernel, in the order of across; the first thread of
// each warp gets the result.
func (b *reduceKernel) acrossAny(state []kernel.Value, tid kernel.Value) []kernel.Value {
	k, most := b.k, reduceRowThreads/32
	lane, warp, n := tid.And(k.I32(31)), tid.Shr(k.I32(5)), b.sharing.Shr(k.I32(5))
	var shared []kernel.Array
	for _, t := range b.types {
		shared = append(shared, k.Shared(fmt.Sprintf("shared%d", b.shared), t, most))
		b.shared++
	}
	k.If(lane.Eq(k.I32(0)), func() {
		for i, v := range state {
			shared[i].Store(warp, v)
		}
	})
	k.Barrier()
	at := n.Eq(k.I32(1)).Select(warp, lane.Min(n.Sub(k.I32(1)))) // a warp that has an output alone gets its own state
	for i := range state {
		state[i] = shared[i].Load(at)
	}
	for h := most / 2; h > 0; h /= 2 {
		for i, v := range b.warpStep(state, h) {
			state[i] = n.Gt(k.I32(h)).Select(v, state[i])
		}
	}
	return state
}

// column: thread (x, y) folds the items y, y+deep, … of the accs outputs at x.
func (b *reduceKernel) column() {
	k := b.k
	threads := b.wide * b.deep
	k.FixedThreads(threads)
	x, y := k.ThreadIdx(kernel.X), k.I32(0)
	if b.deep > 1 {
		tid := x
		x = tid.Rem(k.I32(b.wide))
		y = tid.Div(k.I32(b.wide))
	}
	output := b.block(b.wide).Add(b.index(x))
	b.inside = output.Lt(b.outputs)
	clamped := output.Min(b.outputs.Sub(b.lit(1)))
	outs, ins := b.bases(clamped)
	b.loadSteady(ins)
	accs := b.newStates()
	begin, end := b.part()
	if b.stores() {
		end = b.inside.Select(end, begin)
	}
	b.walk(accs, ins, clamped, b.index(y), begin, end, b.deep)
	b.settle(accs)
	if b.deep > 1 {
		b.stack(accs, x, y)
	}
	k.If(y.Eq(k.I32(0)).And(b.inside), func() {
		for j, a := range accs {
			b.finish(get(a), output, outs, j)
		}
	})
}

// stack combines the states of threads with equal x; those with y = 0 get the results.
func (b *reduceKernel) stack(accs [][]kernel.Var, x, y kernel.Value) {
	k := b.k
	var shared []kernel.Array
	for i, t := range b.types {
		shared = append(shared, k.Shared(fmt.Sprintf("shared%d", i), t, b.wide*b.deep*b.accs/2))
	}
	for h := b.deep / 2; h > 0; h /= 2 {
		slot := func(y kernel.Value, j int) kernel.Value {
			return y.Mul(k.I32(b.accs)).Add(k.I32(j)).Mul(k.I32(b.wide)).Add(x)
		}
		k.If(y.Ge(k.I32(h)).And(y.Lt(k.I32(2*h))), func() {
			for j, a := range accs {
				for i, v := range get(a) {
					shared[i].Store(slot(y.Sub(k.I32(h)), j), v)
				}
			}
		})
		k.Barrier()
		k.If(y.Lt(k.I32(h)), func() {
			for j, a := range accs {
				var other []kernel.Value
				for i := range shared {
					other = append(other, shared[i].Load(slot(y, j)))
				}
				set(a, b.op.Combine(b.r, get(a), other))
			}
		})
		k.Barrier()
	}
}

// finish stores the results, or the state of this part, for output number output*accs + j (columns) or output (rows).
func (b *reduceKernel) finish(state []kernel.Value, output kernel.Value, outs []kernel.Value, j int) {
	if b.stage != reducePartial {
		for i, n := range b.op.Finish(b.r, state) {
			b.outs[i].store(outs[i].Add(b.lit(j)), n)
		}
		return
	}
	width := b.outputs
	if b.s.Reduce.Shape == reduceColumn {
		output = output.Mul(b.lit(b.accs)).Add(b.lit(j))
		width = width.Mul(b.lit(b.accs))
	}
	at := b.index(b.k.BlockIdx(kernel.Y)).Mul(width).Add(output)
	if b.op.Settle != nil {
		state = b.op.Settle(b.r, state)
	}
	for i, s := range b.states {
		s.Store(at, state[i])
	}
}
