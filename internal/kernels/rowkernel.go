package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// rowKernel builds the kernel of one row-wise spec. What it gives a rowOp's build function works the same whether threads hold their part
// of the row in registers (held) or read it again for every pass.
type rowKernel struct {
	k  *kernel.Builder
	s  *Spec
	op *rowOp
	// t is the compute type, ix that of indexes.
	t, ix dtype.DType
	// group threads share a row; each does vec adjacent elements at a time, chunks times if held.
	group, chunks, vec int
	threads            int
	rows, n            kernel.Value
	arrays             []array
	steps              []kernel.Value // strides along the row; the zero Value is 1
	scalars            []kernel.Value
	nums               []Num
	before             func(p spot) [][]Num
	bases              []kernel.Value
	lane               kernel.Value
	// inside is false in groups beyond the last row; the zero Value if there are none.
	inside kernel.Value
	shared int
}

var _ = register(FamilyRows, buildRows)

func buildRows(s *Spec) *kernel.Kernel {
	rowMutex.RLock()
	op := rowOps[s.Op]
	rowMutex.RUnlock()
	return kernel.Build(s.name("row_"+op.name), func(k *kernel.Builder) {
		r := &rowKernel{k: k, s: s, op: op, t: s.Compute, ix: indexType(int(s.Index)), group: int(s.Rows.Group), chunks: int(s.Rows.Chunks), vec: int(s.Vec)}
		r.params()
		op.build(r)
	})
}

func (r *rowKernel) absent(operand int) bool { return r.s.Rows.Absent.has(operand) }

// params declares the parameters and finds this thread's row.
func (r *rowKernel) params() {
	k, s := r.k, r.s
	a := rowArgs{op: r.op, operands: operandArgs{arrays: new([maxOperands]array)}, steps: make([]kernel.Value, s.Outs+s.Ins), scalars: scalarArgs{nums: make([]Num, r.op.scalars)}}
	a.layout(declaring(k, s))
	r.rows, r.n, r.arrays, r.steps = a.rows.Value, a.n.Value, a.operands.arrays[:s.Outs+s.Ins], a.steps
	r.nums = a.scalars.nums
	for _, v := range a.scalars.nums[r.op.firstScalar():][:r.op.ownScalars()] {
		r.scalars = append(r.scalars, v.Re)
	}
	tid := k.ThreadIdx(kernel.X)
	block := k.BlockIdx(kernel.X).Convert(r.ix)
	var row kernel.Value
	r.threads = 32 * int(s.Rows.Warps)
	switch r.group {
	case r.threads:
		row, r.lane = block, tid
	case 1:
		row, r.lane = block.Mul(k.Int(r.ix, int64(r.threads))).Add(tid.Convert(r.ix)), k.I32(0)
	default:
		row, r.lane = block.Mul(k.Int(r.ix, int64(r.threads/32))).Add(tid.Shr(k.I32(5)).Convert(r.ix)), tid.And(k.I32(31))
	}
	k.FixedThreads(r.threads)
	if r.threads > r.group {
		r.inside = row.Lt(r.rows)
		row = row.Min(r.rows.Sub(k.Int(r.ix, 1)))
	}
	at := a.kept.locate(row)
	for i := range r.arrays {
		var base kernel.Value
		if !r.absent(i) {
			base, at = at[0], at[1:]
		}
		r.bases = append(r.bases, base)
	}
}

// spot is a vector of a row: its first element's place, and whether it lies within (the zero Value: always).
type spot struct {
	chunk int
	i, ok kernel.Value
}

// walk calls body for every vector of this thread.
func (r *rowKernel) walk(body func(p spot)) {
	k := r.k
	start := r.lane.Mul(k.I32(r.vec)).Convert(r.ix)
	if r.chunks == 0 {
		k.For(start, r.n, k.Int(r.ix, int64(r.group*r.vec)), func(i kernel.Value) { body(spot{i: i}) })
		return
	}
	for c := range r.chunks {
		i := start.Add(k.Int(r.ix, int64(c*r.group*r.vec)))
		p := spot{chunk: c, i: i}
		if !r.s.Rows.Exact {
			p.ok = i.Lt(r.n)
		}
		body(p)
	}
}

// source gives the elements of a vector.
type source func(p spot) []kernel.Value

// memo keeps what a source gave for each held chunk, so that it is computed once.
func (r *rowKernel) memo(f source) source {
	if r.chunks == 0 {
		return f
	}
	held := make([][]kernel.Value, r.chunks)
	return func(p spot) []kernel.Value {
		if held[p.chunk] == nil {
			held[p.chunk] = f(p)
		}
		return held[p.chunk]
	}
}

// index returns where place i of the row lies in an operand.
func (r *rowKernel) index(operand int, i kernel.Value) kernel.Value {
	if step := r.steps[operand]; step.Builder() != nil {
		i = i.Mul(step)
	}
	return r.bases[operand].Add(i)
}

// in is the source of input number i, converted to the compute type. Beyond the row's end it repeats the last vector.
func (r *rowKernel) in(i int) source {
	o := len(r.op.outs) + i
	return r.memo(func(p spot) []kernel.Value {
		var vs []kernel.Value
		for _, v := range r.input(i, o, p) {
			vs = append(vs, v.Convert(r.t).Re)
		}
		return vs
	})
}

// has reports whether input number i is present.
func (r *rowKernel) has(i int) bool { return !r.absent(len(r.op.outs) + i) }

// one returns input number i of this row, of which there is one element.
func (r *rowKernel) one(i int) kernel.Value {
	o := len(r.op.outs) + i
	return r.arrays[o].load(r.bases[o], 1)[0].Convert(r.t).Re
}

// each is the source that applies f to corresponding elements of sources.
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

// fold reduces a source over the row: step adds an element to a state that begins at init, combine joins two states and must not mind
// their order. Every thread gets the result.
func (r *rowKernel) fold(init []kernel.Value, s source, step func(a []kernel.Value, x kernel.Value) []kernel.Value, combine func(a, b []kernel.Value) []kernel.Value) []kernel.Value {
	k := r.k
	var acc []kernel.Var
	for _, v := range init {
		acc = append(acc, k.Var(v))
	}
	r.walk(func(p spot) {
		old := get(acc)
		next := old
		for _, x := range s(p) {
			next = step(next, x)
		}
		if p.ok.Builder() != nil { // a vector lies within the row or beyond it
			for i := range next {
				next[i] = p.ok.Select(next[i], old[i])
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
	n := r.group / 32
	var shared []kernel.Array
	for _, v := range state {
		shared = append(shared, k.Shared(fmt.Sprintf("fold%d", r.shared), v.Type(), n))
		r.shared++
	}
	lane := r.lane.And(k.I32(31))
	k.If(lane.Eq(k.I32(0)), func() {
		for i, v := range state {
			shared[i].Store(r.lane.Shr(k.I32(5)), v)
		}
	})
	k.Barrier()
	for i := range state {
		state[i] = shared[i].Load(lane.And(k.I32(n - 1)))
	}
	return r.butterfly(state, n, combine)
}

// butterfly combines states over groups of n threads so that all have the result.
func (r *rowKernel) butterfly(state []kernel.Value, n int, combine func(a, b []kernel.Value) []kernel.Value) []kernel.Value {
	for h := n / 2; h > 0; h /= 2 {
		other := make([]kernel.Value, len(state))
		for i, v := range state {
			other[i] = v.ShuffleXor(h)
		}
		state = combine(state, other)
	}
	return state
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
	r.walk(func(p spot) {
		vs := s(p)
		ok := p.ok
		switch {
		case ok.Builder() == nil:
			ok = r.inside
		case r.inside.Builder() != nil:
			ok = ok.And(r.inside)
		}
		ns := make([]Num, len(vs))
		for i, v := range vs {
			ns[i] = realNum(v)
		}
		store := func() {
			results := []result{{o, ns}}
			if r.op.around != nil && o == 0 {
				results = r.results(p, ns)
			}
			for _, s := range results {
				r.store(s, p)
			}
		}
		if ok.Builder() == nil {
			store()
			return
		}
		r.k.If(ok, store)
	})
}

// putOne stores v to output number o, which has one element a row, where it is present.
func (r *rowKernel) putOne(o int, v kernel.Value) {
	if r.absent(o) {
		return
	}
	first := r.lane.Eq(r.k.I32(0))
	if r.inside.Builder() != nil {
		first = first.And(r.inside)
	}
	r.k.If(first, func() { r.arrays[o].store(r.bases[o], realNum(v)) })
}
