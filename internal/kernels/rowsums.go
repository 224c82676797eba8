package kernels

import (
	"errors"
	"fmt"
	"slices"

	"tenon.dev/kernel"
)

const (
	// rowSumShare is how many columns a thread of a row-wise operation with sums has, at most: it keeps their sums in registers.
	rowSumShare = 16
	// rowSumThreads is the number of threads per block if fewer share a row. rowSumBlocks is the number of blocks for each multiprocessor,
	// so that one loads while another computes; each thread may then have 128 registers.
	rowSumThreads, rowSumBlocks = 128, 4
	// rowSumRows is the minimum number of rows that a thread adds up.
	rowSumRows = 8
	// rowSumMost is the maximum number of columns.
	rowSumMost = rowSumShare * rowLongThreads
)

// rowSumGroup returns how many threads share a row of n columns.
func rowSumGroup(n int) int {
	threads := 32
	for threads*rowSumShare < n {
		threads *= 2
	}
	return threads
}

// rowSumParts returns how many rows a block adds up, and how many blocks there are. There are too few rows if a multiprocessor would have
// no block.
func rowSumParts(lim *Limits, rows, n int) (chunk, parts int, ok bool) {
	if n > rowSumMost || n == 0 || lim.Multiprocessors < fewMultiprocessors {
		return 0, 0, false
	}
	deep := max(1, rowSumThreads/rowSumGroup(n))
	chunk = max(ceilDiv(ceilDiv(rows, rowSumBlocks*lim.Multiprocessors), deep)*deep, rowSumRows*deep)
	parts = ceilDiv(rows, chunk)
	return chunk, parts, parts >= lim.Multiprocessors
}

// SumsByRows reports whether one kernel computes all gradients of a normalisation of rows of n elements.
func SumsByRows(lim *Limits, rows, n int) bool {
	_, _, ok := rowSumParts(lim, rows, n)
	return ok
}

var errFewRows = errors.New("the sums over rows are of too few rows, or of too many columns, for their kernel")

// issueSums launches the kernel of an operation with sums, whose group threads share a row, and one that combines the sums of the blocks.
func (p *rowPlan) issueSums(is Issuer, l *Launch, a *rowArgs) error {
	sums, s := p.op.sums, &l.Spec
	chunk, parts, ok := rowSumParts(is.Limits(), p.rows, p.n)
	if !ok {
		return errFewRows
	}
	f := reducePlan{op: sums, compute: s.Compute, n: p.rows, outputs: p.n, parts: parts, index: int(s.Index)}
	spare, types := 8*p.n, sums.states[s.Compute] // spare is for sums that nobody needs
	size := spare
	for _, t := range types {
		size += f.stateBytes(t)
	}
	ws, err := is.Workspace(size)
	if err != nil {
		return err
	}
	at := ws
	for i, t := range types {
		a.states[i] = at
		at += uint64(f.stateBytes(t))
	}
	var outs [MaxStates]Operand
	f.outs = outs[:sums.Outs]
	f.kept.count = sums.Outs
	f.kept.open(0, p.n)
	for i := range f.outs {
		o := &p.sums[i]
		f.outs[i], f.kept.stride[i][0] = Operand{Ptr: o.Ptr, DType: o.DType}, o.Stride[len(o.Stride)-1]
		if o.Ptr == 0 {
			f.outs[i], f.kept.stride[i][0] = Operand{Ptr: at, DType: types[i]}, 1
		}
	}
	a.chunk.host = chunk
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(parts), 1, 1}
	if err := is.Issue(l); err != nil {
		return err
	}
	return f.issue(is, reduceFinal, ws)
}

// sumRows runs the operation on the rows of this block and adds up, by columns, what op.sums takes of them. Groups of threads take the rows
// in turn.
func (r *rowKernel) sumRows(a *rowArgs, slot kernel.Value) {
	k, sums := r.k, r.op.sums
	red := &Reduction{K: k, T: r.t}
	var accs [][]kernel.Var // for every column of this thread
	for range r.chunks * r.vec {
		var acc []kernel.Var
		for _, v := range sums.Init(red) {
			acc = append(acc, k.Var(v))
		}
		accs = append(accs, acc)
	}
	part := r.s.block(k)
	deep := r.threads / r.group
	first := part.Convert(r.ix).Mul(a.chunk.Value)
	last := r.rows.Sub(k.Int(r.ix, 1))
	begin := first.Add(slot.Convert(r.ix))
	// The next row is loaded while one is computed.
	var next [][]kernel.Var
	for _, ns := range r.loadRow(begin.Min(last)) {
		var vs []kernel.Var
		for _, n := range ns {
			vs = append(vs, k.Var(n.Re))
		}
		next = append(next, vs)
	}
	k.For(first, first.Add(a.chunk.Value), k.Int(r.ix, int64(deep)), func(at kernel.Value) {
		row := at.Add(slot.Convert(r.ix))
		ahead, i := map[[2]int][]Num{}, 0
		r.ofRow(func(o int, p spot) {
			for _, v := range next[i] {
				ahead[[2]int{o, p.chunk}] = append(ahead[[2]int{o, p.chunk}], Num{Re: v.Get()})
			}
			i++
		})
		loaded := r.loadRow(row.Add(k.Int(r.ix, int64(deep))).Min(last))
		r.inside = row.Lt(r.rows)
		r.locate(row.Min(last))
		r.loadRepeated()
		r.ahead, r.kept = ahead, map[int]source{}
		r.addRow(red, accs)
		r.op.build(r)
		r.ahead = nil
		for i, ns := range loaded {
			for j, n := range ns {
				next[i][j].Set(n.Re)
			}
		}
		if r.group > 32 {
			k.Barrier() // what the threads of a row shared is used again
		}
	})
	r.stack(accs, slot, deep)
	k.If(slot.Eq(k.I32(0)), func() { r.putSums(a, accs, part) })
}

// ofRow calls f for all vectors of this thread in inputs but the operation's last one, a weight that all rows have in common.
func (r *rowKernel) ofRow(f func(o int, p spot)) {
	ins := r.op.ins
	if a := r.op.around; a != nil {
		ins = a.base.ins
	}
	common := len(r.op.outs) + len(ins) - 1
	r.ofInputs(func(o int, p spot) {
		if o != common {
			f(o, p)
		}
	})
}

// loadRow loads them for a row.
func (r *rowKernel) loadRow(row kernel.Value) (all [][]Num) {
	r.locate(row)
	r.ofRow(func(o int, p spot) { all = append(all, r.loadAt(o, p)) })
	return all
}

// addRow adds what op.sums takes of this row.
func (r *rowKernel) addRow(red *Reduction, accs [][]kernel.Var) {
	sums := r.op.sums
	var ones [maxOperands]kernel.Value
	for i := range sums.Ins {
		if r.op.ins[i] == rowOne {
			ones[i] = r.one(i)
		}
	}
	r.walk(func(ps []spot) {
		p := ps[0]
		var ins [][]kernel.Value
		for i := range sums.Ins {
			if r.op.ins[i] == rowFull {
				ins = append(ins, r.in(i)(p))
			} else {
				ins = append(ins, slices.Repeat([]kernel.Value{ones[i]}, r.vec))
			}
		}
		for j := range r.vec { // columns beyond the last are added up for nothing
			acc, in := accs[p.chunk*r.vec+j], make([]Num, len(ins))
			for i := range ins {
				in[i] = realNum(ins[i][j])
			}
			old := get(acc)
			for i, v := range sums.Step(red, old, in, kernel.Value{}) {
				acc[i].Set(r.inside.Select(v, old[i]))
			}
		}
	})
}

// stack combines the states of a block's groups of threads, as a reduction by columns does; those in slot 0 get the results.
func (r *rowKernel) stack(accs [][]kernel.Var, slot kernel.Value, deep int) {
	k, sums := r.k, r.op.sums
	red := &Reduction{K: k, T: r.t}
	if deep == 1 {
		return
	}
	var shared []kernel.Array
	for i, t := range sums.states[r.t] {
		shared = append(shared, k.Shared(fmt.Sprintf("sums%d", i), t, deep/2*r.group*len(accs)))
	}
	place := func(slot kernel.Value, column int) kernel.Value {
		return slot.Mul(k.I32(len(accs))).Add(k.I32(column)).Mul(k.I32(r.group)).Add(r.lane)
	}
	for h := deep / 2; h > 0; h /= 2 {
		k.If(slot.Ge(k.I32(h)).And(slot.Lt(k.I32(2*h))), func() {
			for c, acc := range accs {
				for i, v := range get(acc) {
					shared[i].Store(place(slot.Sub(k.I32(h)), c), v)
				}
			}
		})
		k.Barrier()
		k.If(slot.Lt(k.I32(h)), func() {
			for c, acc := range accs {
				var other []kernel.Value
				for i := range shared {
					other = append(other, shared[i].Load(place(slot, c)))
				}
				set(acc, sums.Combine(red, get(acc), other))
			}
		})
		k.Barrier()
	}
}

// putSums stores the states of the block's columns.
func (r *rowKernel) putSums(a *rowArgs, accs [][]kernel.Var, part kernel.Value) {
	k := r.k
	first := part.Convert(r.ix).Mul(r.n)
	r.walk(func(ps []spot) {
		p := ps[0]
		store := func() {
			for i, t := range r.op.sums.states[r.t] {
				to, w := array{a.buffers[i], t}, min(r.vec, 16/t.Size())
				for j := 0; j < r.vec; j += w {
					var ns []Num
					for _, acc := range accs[p.chunk*r.vec+j:][:w] {
						ns = append(ns, realNum(acc[i].Get()))
					}
					to.store(first.Add(r.plus(p.i, j)), ns...)
				}
			}
		}
		if p.ok.Builder() == nil {
			store()
			return
		}
		k.If(p.ok, store)
	})
}
