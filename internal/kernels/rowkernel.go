package kernels

import (
	"fmt"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// rowKernel builds the kernel of one row-wise spec. For a rowOp's build function it works the same whether threads hold their part of the
// row in registers (held) or read it again in every pass.
type rowKernel struct {
	k  *kernel.Builder
	s  *Spec
	op *rowOp
	// t is the compute type, ix the index type.
	t, ix dtype.DType
	// group is the number of threads that share a row, of the block's threads. Each processes vec adjacent elements at a time and, if held,
	// does so chunks times. In a general kernel group is 0 and sharing, Int32, has the number; threads is the most that a block has.
	group, chunks, vec int
	threads            int
	sharing            kernel.Value
	rows, n            kernel.Value
	arrays             []array
	steps              []kernel.Value // strides along the row; the zero Value means 1
	scalars            []kernel.Value
	nums               []Num
	before             map[int][][]Num  // by chunk
	ahead              map[[2]int][]Num // by operand and chunk
	repeated           map[int]Num      // elements of the inputs that have one for the whole row
	kept               map[int]source   // inputs that are read more than once; nil if none are
	where              *strider
	bases              []kernel.Value
	lane               kernel.Value
	// inside is false in groups beyond the last row; it is the zero Value if there are none.
	inside kernel.Value
	shared int
	// readings counts the vectors that the kernel reads from rows that are read again, as emitted.
	readings int
}

var _ = register(FamilyRows, buildRows)

func buildRows(s *Spec) *kernel.Kernel {
	op := rowOpOf(s)
	return kernel.Build(s.name("row_"+op.name), func(k *kernel.Builder) {
		r := &rowKernel{k: k, s: s, op: op, t: s.Compute, ix: indexType(int(s.Index)), group: int(s.Rows.Group),
			chunks: int(s.Rows.Chunks), vec: int(s.Vec)}
		a, slot := r.params()
		if op.sums != nil {
			r.sumRows(a, slot)
			return
		}
		if s.Rows.Ahead == 1 {
			r.ofInputs(r.prefetch)
			k.Wait()
		}
		r.loadRepeated()
		if s.Rows.Ahead == 1 {
			r.loadAhead()
		}
		op.build(r)
	})
}

func (r *rowKernel) absent(operand int) bool { return r.s.Rows.Absent.has(operand) }

// params declares the parameters. It computes this thread's row or, if blocks have rows to add up, which group of its block it belongs to.
func (r *rowKernel) params() (a *rowArgs, slot kernel.Value) {
	k, s := r.k, r.s
	a = &rowArgs{op: r.op, operands: operandArgs{arrays: new([maxOperands]array)}, steps: make([]kernel.Value, s.Outs+s.Ins),
		scalars: scalarArgs{nums: make([]Num, r.op.scalars)}}
	a.layout(declaring(k, s))
	r.rows, r.n, r.arrays, r.steps = a.rows.Value, a.n.Value, a.operands.arrays[:s.Outs+s.Ins], a.steps
	r.nums, r.where = a.scalars.nums, a.kept.strider
	for _, v := range a.scalars.nums[r.op.firstScalar():][:r.op.ownScalars()] {
		r.scalars = append(r.scalars, v.Re)
	}
	tid := k.ThreadIdx(kernel.X)
	if r.group == 0 {
		r.sharing = a.group.Value
		r.anyGroup(tid)
		return a, slot
	}
	r.threads = 32 * int(s.Rows.Warps)
	k.FixedThreads(r.threads)
	if r.op.sums != nil {
		r.lane = tid.And(k.I32(r.group - 1))
		return a, tid.Shr(k.I32(bits.TrailingZeros(uint(r.group))))
	}
	block := s.block(k).Convert(r.ix)
	var row kernel.Value
	switch r.group {
	case r.threads:
		row, r.lane = block, tid
	case 1:
		row, r.lane = block.Mul(k.Int(r.ix, int64(r.threads))).Add(tid.Convert(r.ix)), k.I32(0)
	default:
		row, r.lane = block.Mul(k.Int(r.ix, int64(r.threads/32))).Add(tid.Shr(k.I32(5)).Convert(r.ix)), tid.And(k.I32(31))
	}
	if r.threads > r.group {
		r.inside = row.Lt(r.rows)
		row = row.Min(r.rows.Sub(k.Int(r.ix, 1)))
	}
	r.locate(row)
	return a, slot
}

// anyGroup computes the thread's row in a general kernel. A row has a warp or the whole block.
func (r *rowKernel) anyGroup(tid kernel.Value) {
	k := r.k
	r.threads = rowLongThreads
	k.Threads(r.threads)
	r.lane = tid.And(r.sharing.Sub(k.I32(1)))
	alone := r.sharing.Gt(k.I32(32)) // in the block
	rows := alone.Select(k.I32(1), k.BlockDim(kernel.X).Shr(k.I32(5)))
	row := r.s.block(k).Convert(r.ix).Mul(rows.Convert(r.ix)).Add(alone.Select(k.I32(0), tid.Shr(k.I32(5))).Convert(r.ix))
	r.inside = row.Lt(r.rows)
	r.locate(row.Min(r.rows.Sub(k.Int(r.ix, 1))))
}

// locate finds where a row begins in every operand.
func (r *rowKernel) locate(row kernel.Value) {
	at := r.where.locate(row)
	r.bases = r.bases[:0]
	for i := range r.arrays {
		var base kernel.Value
		if !r.absent(i) {
			base, at = at[0], at[1:]
		}
		r.bases = append(r.bases, base)
	}
}

// loadRepeated loads the inputs that have one element for the whole row.
func (r *rowKernel) loadRepeated() {
	r.repeated = map[int]Num{}
	for i := range r.arrays {
		if r.s.Rows.Repeat.has(i) {
			r.repeated[i] = r.arrays[i].load(r.bases[i], 1)[0]
		}
	}
}

// loadAhead loads the thread's part of all inputs.
func (r *rowKernel) loadAhead() {
	ahead := map[[2]int][]Num{}
	r.ofInputs(func(o int, p spot) { ahead[[2]int{o, p.chunk}] = r.loadAt(o, p) })
	r.ahead = ahead
}

// ofInputs calls f for all vectors of this thread in all inputs with elements along the row.
func (r *rowKernel) ofInputs(f func(o int, p spot)) {
	for o := len(r.op.outs); o < len(r.arrays); o++ {
		if !r.absent(o) && !r.s.Rows.Repeat.has(o) && r.op.kind(o) == rowFull {
			r.walk(func(ps []spot) { f(o, ps[0]) })
		}
	}
}

// prefetch asks for the cache line that begins at p of operand o, if one does: inputs that kernels before this one have not written, such
// as weights, are then in the cache.
func (r *rowKernel) prefetch(o int, p spot) {
	if r.steps[o].Builder() != nil {
		return
	}
	k, ask := r.k, func() { r.arrays[o].prefetch(r.index(o, p.i.Min(r.n.Sub(r.k.Int(r.ix, int64(r.vec)))))) }
	if lanes := lineBytes / (r.vec * r.arrays[o].t.Size()); lanes > 1 {
		k.If(r.lane.And(k.I32(lanes-1)).Eq(k.I32(0)), ask)
		return
	}
	ask()
}

// spot is a vector of a row: the position of its first element, and whether it is inside the row (the zero Value: always). chunk is its
// number. In a row that is read again, every reading of a vector has a different number. from is the position that a vector beyond the end
// is loaded from.
type spot struct {
	chunk       int
	i, ok, from kernel.Value
}

// walk calls body for all vectors of this thread, in order. Held vectors are passed one at a time; for long rows that are read again it
// passes several, so that as many loads are in flight at once.
func (r *rowKernel) walk(body func(ps []spot)) {
	k := r.k
	start, step := r.lane.Mul(k.I32(r.vec)).Convert(r.ix), r.group*r.vec
	if r.group == 0 {
		r.walkAny(start, body)
		return
	}
	if r.chunks == 0 {
		unroll := r.unroll()
		some := func(i kernel.Value, n int) {
			ps := make([]spot, n)
			for u := range ps {
				ps[u] = spot{chunk: r.readings, i: r.plus(i, u*step)}
				r.readings++
			}
			body(ps)
		}
		if unroll > 1 {
			at := k.Var(start)
			k.For(start, r.n.Sub(k.Int(r.ix, int64((unroll-1)*step))), k.Int(r.ix, int64(unroll*step)), func(i kernel.Value) {
				some(i, unroll)
				at.Set(r.plus(i, unroll*step))
			})
			start = at.Get()
		}
		k.For(start, r.n, k.Int(r.ix, int64(step)), func(i kernel.Value) { some(i, 1) })
		return
	}
	_, whole := chunkClass(r.chunks)
	for c := range r.chunks {
		p := spot{chunk: c, i: start.Add(k.Int(r.ix, int64(c*step)))}
		if !r.s.Rows.Exact && c >= whole {
			p.ok = p.i.Lt(r.n)
		}
		body([]spot{p})
	}
}

// walkAny is walk in a general kernel. In place of a vector beyond the end, a thread loads the one before
// again: another thread may have changed the last vector of the row by then.
func (r *rowKernel) walkAny(start kernel.Value, body func(ps []spot)) {
	step := r.sharing.Mul(r.k.I32(r.vec)).Convert(r.ix)
	from := start.Min(r.n.Sub(r.k.Int(r.ix, int64(r.vec))))
	for c := range r.chunks {
		p := spot{chunk: c, i: start, ok: start.Lt(r.n)}
		if c > 0 {
			from = p.ok.Select(p.i, from)
		}
		p.from = from
		body([]spot{p})
		start = start.Add(step)
	}
}

// unroll is how many vectors a thread takes at a time from a row that is read again.
func (r *rowKernel) unroll() int {
	switch {
	case r.group < rowLongThreads:
		return 1
	case r.vec < 4:
		return 8
	}
	return 4
}

// source returns the elements of a vector.
type source func(p spot) []kernel.Value

// memo caches the results of a source for each chunk.
func (r *rowKernel) memo(f source) source {
	held := map[int][]kernel.Value{}
	return func(p spot) []kernel.Value {
		if held[p.chunk] == nil {
			held[p.chunk] = f(p)
		}
		return held[p.chunk]
	}
}

// hold loads a source of a held row. Loads must not come after a store that might write the same memory: an op that stored before it has
// read the whole row would wait for each vector.
func (r *rowKernel) hold(s source) {
	if r.chunks > 0 {
		r.walk(func(ps []spot) { s(ps[0]) })
	}
}

// index returns the index in an operand of position i of the row.
func (r *rowKernel) index(operand int, i kernel.Value) kernel.Value {
	if step := r.steps[operand]; step.Builder() != nil {
		i = i.Mul(step)
	}
	return r.bases[operand].Add(i)
}

// in returns the source of input number i, converted to the compute type. Beyond the row's end it repeats the last vector.
func (r *rowKernel) in(i int) source {
	if s := r.kept[i]; s != nil {
		return s
	}
	o := len(r.op.outs) + i
	s := r.memo(func(p spot) []kernel.Value {
		var vs []kernel.Value
		for _, v := range r.input(i, o, p) {
			vs = append(vs, v.Convert(r.t).Re)
		}
		return vs
	})
	if r.kept != nil {
		r.kept[i] = s
	}
	return s
}

// has reports whether input number i is present.
func (r *rowKernel) has(i int) bool { return !r.absent(len(r.op.outs) + i) }

// one returns input number i of this row, which has one element per row.
func (r *rowKernel) one(i int) kernel.Value {
	o := len(r.op.outs) + i
	return r.arrays[o].load(r.bases[o], 1)[0].Convert(r.t).Re
}

// integer is one for a target or another integer, which the compute type might not be able to hold.
func (r *rowKernel) integer(i int) kernel.Value {
	o := len(r.op.outs) + i
	return r.arrays[o].load(r.bases[o], 1)[0].Re.Convert(dtype.Int64)
}

// changed returns the elements of a source at ps, with f applied to column c of the row, of type ix; there need not be such a column. Few
// vectors have the column, so there is one test for all of ps.
func (r *rowKernel) changed(c kernel.Value, ps []spot, s source, f func(v kernel.Value) kernel.Value) [][]kernel.Value {
	k, unsigned := r.k, dtype.Uint32
	if r.ix.Size() == 8 {
		unsigned = dtype.Uint64
	}
	var any kernel.Value
	var vars [][]kernel.Var
	for i, p := range ps {
		here := c.Sub(p.i).Bitcast(unsigned).Lt(k.Int(unsigned, int64(r.vec)))
		if i > 0 {
			here = here.Or(any)
		}
		any = here
		vars = append(vars, nil)
		for _, v := range s(p) {
			vars[i] = append(vars[i], k.Var(v))
		}
	}
	k.If(any, func() {
		for i, p := range ps {
			d := c.Sub(p.i)
			for j, v := range vars[i] {
				v.Set(d.Eq(k.Int(r.ix, int64(j))).Select(f(v.Get()), v.Get()))
			}
		}
	})
	var out [][]kernel.Value
	for _, vs := range vars {
		out = append(out, get(vs))
	}
	return out
}

// each returns the source that applies f to corresponding elements of sources.
func (r *rowKernel) each(f func(vs ...kernel.Value) kernel.Value, from ...source) source {
	return r.memo(func(p spot) []kernel.Value {
		var in [][]kernel.Value
		for _, s := range from {
			in = append(in, s(p))
		}
		out := make([]kernel.Value, r.vec)
		for j := range out {
			var vs []kernel.Value
			for _, v := range in {
				vs = append(vs, v[j])
			}
			out[j] = f(vs...)
		}
		return out
	})
}

// fold reduces a source over the row. step adds an element to a state that starts as init; combine combines two states, in any order. Every
// thread gets the result.
func (r *rowKernel) fold(init []kernel.Value, s source, step func(a []kernel.Value, x kernel.Value) []kernel.Value,
	combine func(a, b []kernel.Value) []kernel.Value) []kernel.Value {
	return r.foldSome(init, s, func(a, xs []kernel.Value) []kernel.Value {
		for _, x := range xs {
			a = step(a, x)
		}
		return a
	}, combine)
}

// foldSome is fold with a step that adds several elements at once: as many as the thread has available.
func (r *rowKernel) foldSome(init []kernel.Value, s source, step, combine func(a, b []kernel.Value) []kernel.Value) []kernel.Value {
	k := r.k
	var acc []kernel.Var
	for _, v := range init {
		acc = append(acc, k.Var(v))
	}
	r.walk(func(ps []spot) {
		old := get(acc)
		var xs []kernel.Value
		for _, p := range ps {
			xs = append(xs, s(p)...)
		}
		next := step(old, xs)
		if ok := ps[0].ok; ok.Builder() != nil { // a vector is either inside the row or beyond it
			for i := range next {
				next[i] = ok.Select(next[i], old[i])
			}
		}
		set(acc, next)
	})
	state := get(acc)
	if r.group == 1 {
		return state
	}
	state = r.butterfly(state, 32, combine)
	if r.group == 32 {
		return state
	}
	if r.group == 0 {
		return r.acrossAny(state, combine)
	}
	n := r.group / 32
	var shared []kernel.Array
	for _, v := range state {
		shared = append(shared, k.Shared(fmt.Sprintf("fold%d", r.shared), v.Type(), r.threads/32))
		r.shared++
	}
	lane, first := r.lane.And(k.I32(31)), k.I32(0) // the place of the group's first warp
	if r.threads > r.group {
		first = k.ThreadIdx(kernel.X).Shr(k.I32(5)).And(k.I32(-n))
	}
	k.If(lane.Eq(k.I32(0)), func() {
		for i, v := range state {
			shared[i].Store(first.Add(r.lane.Shr(k.I32(5))), v)
		}
	})
	k.Barrier()
	for i := range state {
		state[i] = shared[i].Load(first.Add(lane.And(k.I32(n - 1))))
	}
	return r.butterfly(state, n, combine)
}

// acrossAny combines the states of a row's warps in a general kernel, in the order of foldSome.
func (r *rowKernel) acrossAny(state []kernel.Value, combine func(a, b []kernel.Value) []kernel.Value) []kernel.Value {
	k := r.k
	var shared []kernel.Array
	for _, v := range state {
		shared = append(shared, k.Shared(fmt.Sprintf("fold%d", r.shared), v.Type(), r.threads/32))
		r.shared++
	}
	warp, lane, n := k.ThreadIdx(kernel.X).Shr(k.I32(5)), r.lane.And(k.I32(31)), r.sharing.Shr(k.I32(5))
	k.If(lane.Eq(k.I32(0)), func() {
		for i, v := range state {
			shared[i].Store(warp, v)
		}
	})
	k.Barrier()
	at := n.Eq(k.I32(1)).Select(warp, lane.And(n.Sub(k.I32(1)))) // a warp that has a row alone gets its own state
	for i := range state {
		state[i] = shared[i].Load(at)
	}
	for h := r.threads / 64; h > 0; h /= 2 {
		for i, v := range r.butterflyStep(state, h, combine) {
			state[i] = n.Gt(k.I32(h)).Select(v, state[i])
		}
	}
	return state
}

// butterfly combines states over groups of n threads; all of them get the result.
func (r *rowKernel) butterfly(state []kernel.Value, n int, combine func(a, b []kernel.Value) []kernel.Value) []kernel.Value {
	for h := n / 2; h > 0; h /= 2 {
		state = r.butterflyStep(state, h, combine)
	}
	return state
}

// butterflyStep combines each thread's state with that of the thread whose number differs in bit h.
func (r *rowKernel) butterflyStep(state []kernel.Value, h int, combine func(a, b []kernel.Value) []kernel.Value) []kernel.Value {
	other := make([]kernel.Value, len(state))
	for i, v := range state {
		other[i] = v.ShuffleXor(h)
	}
	return combine(state, other)
}

// sum returns the sum of a source over the row.
func (r *rowKernel) sum(s source) kernel.Value {
	return r.fold([]kernel.Value{r.k.Const(r.t, 0)}, s,
		func(a []kernel.Value, x kernel.Value) []kernel.Value { return []kernel.Value{a[0].Add(x)} },
		func(a, b []kernel.Value) []kernel.Value { return []kernel.Value{a[0].Add(b[0])} })[0]
}

// mean returns the mean of a source over the row.
func (r *rowKernel) mean(s source) kernel.Value { return r.sum(s).Div(r.n.Convert(r.t)) }

// put stores a source to output number o.
func (r *rowKernel) put(o int, s source) {
	r.putSome(o, func(ps []spot) (all [][]kernel.Value) {
		for _, p := range ps {
			all = append(all, s(p))
		}
		return all
	})
}

// putSome stores the elements that f returns for vectors to output number o.
func (r *rowKernel) putSome(o int, f func(ps []spot) [][]kernel.Value) {
	r.walk(func(ps []spot) {
		made := make([][]Num, len(ps))
		for i, vs := range f(ps) {
			for _, v := range vs {
				made[i] = append(made[i], realNum(v))
			}
		}
		ok := ps[0].ok
		switch {
		case ok.Builder() == nil:
			ok = r.inside
		case r.inside.Builder() != nil:
			ok = ok.And(r.inside)
		}
		store := func() {
			all := make([][]result, len(ps))
			for i, ns := range made {
				if all[i] = []result{{o, ns}}; r.op.around != nil && o == 0 {
					all[i] = r.results(ps[i], ns)
				}
			}
			for i, p := range ps {
				for _, s := range all[i] {
					r.store(s, p)
				}
			}
		}
		if ok.Builder() == nil {
			store()
			return
		}
		r.k.If(ok, store)
	})
}

// putOne stores v to output number o, which has one element per row, if it is present.
func (r *rowKernel) putOne(o int, v kernel.Value) {
	if !r.absent(o) {
		r.once(func() { r.arrays[o].store(r.bases[o], realNum(v)) })
	}
}

// once runs f in one thread per row.
func (r *rowKernel) once(f func()) {
	first := r.lane.Eq(r.k.I32(0))
	if r.inside.Builder() != nil {
		first = first.And(r.inside)
	}
	r.k.If(first, f)
}
