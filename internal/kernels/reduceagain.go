package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// A kernel that goes through the elements of a row again would find them in the cache only if the rows that all warps have at a time fit
// there: on an H200, 8192 rows of 4096 bf16 do not. So it keeps them in shared memory, if enough warps then still run at a time. A thread
// finds there what it has put there itself.

const (
	// heldWarps is the minimum number of warps that a multiprocessor must have room for if rows are held, and heldElements the maximum
	// number of elements of a row that a thread goes through again: with 256 of them, and with so few warps, separate kernels took 90 to
	// 100 % of the time of one on an H200.
	heldWarps, heldElements = 12, 128
	// heldBeside is room for the kernel's other arrays: those of across, and what is lost by alignment.
	heldBeside = 2 << 10
	// readAgain is the maximum number of bytes of an input that is read again instead. They are then still in the cache.
	readAgain = 32 << 20
	// shortRow is the number of elements of a row below which separate kernels are faster on the processor, by 15 % for rows of 128 and
	// 256, unless there are at most smallRows elements in all.
	shortRow, smallRows = 512, 1 << 14
)

// hold chooses which inputs of p are held. It reports whether going through the elements again is worth it.
func (p *reducePlan) hold(lim *Limits) bool {
	f := p.op.fused
	switch {
	case f == nil || f.each == nil:
		return true
	case lim.Multiprocessors < fewMultiprocessors:
		return p.n >= shortRow || p.n*p.outputs <= smallRows
	}
	var t dtype.DType
	for _, i := range f.same {
		if i < 0 || p.repeat.has(i) || p.held.has(i) || p.red.stride[i][0] == 0 {
			continue
		}
		if p.n > heldElements*p.wide {
			return false
		}
		of, before := p.ins[i].DType, p.held
		if !of.IsComplex() && of != dtype.Bool && (t == dtype.Invalid || of == t) {
			p.held.add(i)
			if blocks := (lim.SharedPerBlock - heldBeside) / p.heldBytes(); blocks*p.firstThreads() >= heldWarps*32 {
				t = of
				continue
			}
			p.held = before
		}
		if p.n*p.outputs*of.Size() > readAgain {
			return false
		}
	}
	return true
}

// heldRow is the number of elements of a row that is held.
func (p *reducePlan) heldRow() int { return ceilDiv(p.n, p.vec) * p.vec }

// heldBytes is the number of bytes that a block holds of the inputs in held, of which there is one.
func (p *reducePlan) heldBytes() int {
	size := p.ins[bits.TrailingZeros16(uint16(p.held))].DType.Size()
	return bits.OnesCount16(uint16(p.held)) * p.groups() * p.heldRow() * size
}

// holdRows declares where rows are held, of which group, the number of the row in the block, is the thread's.
func (b *reduceKernel) holdRows(group kernel.Value) {
	held := b.s.Reduce.Held
	if held == 0 {
		return
	}
	k, n := b.k, bits.OnesCount16(uint16(held))
	b.heldType = b.ins[bits.TrailingZeros16(uint16(held))].t
	b.held = k.Shared("held", b.heldType, -1)
	b.heldAt = group.Mul(k.I32(n)).Mul(b.heldRow)
}

// heldPlace returns where element at of the row of input i is held.
func (b *reduceKernel) heldPlace(i int, at kernel.Value) kernel.Value {
	nth := bits.OnesCount16(uint16(b.s.Reduce.Held) & (1<<i - 1))
	return b.heldAt.Add(b.heldRow.Mul(b.k.I32(nth))).Add(at.Convert(dtype.Int32))
}

// hold keeps vs, the elements of an item of input i.
func (b *reduceKernel) hold(i int, item kernel.Value, vs []Num) {
	at := b.heldPlace(i, item.Mul(b.lit(b.accs)))
	w := min(b.accs, 16/b.heldType.Size())
	for j := 0; j < len(vs); j += w {
		var re []kernel.Value
		for _, v := range vs[j : j+w] {
			re = append(re, v.Re)
		}
		b.held.StoreVec(at.Add(b.k.I32(j)), re...)
	}
}

// heldItem returns the elements of an item of input i that hold has kept.
func (b *reduceKernel) heldItem(i int, item kernel.Value) (vs []Num) {
	at := b.heldPlace(i, item.Mul(b.lit(b.accs)))
	w := min(b.accs, 16/b.heldType.Size())
	for j := 0; j < b.accs; j += w {
		for _, v := range b.held.LoadVec(at.Add(b.k.I32(j)), w) {
			vs = append(vs, Num{Re: v})
		}
	}
	return vs
}

// secondPass does what reads the results of the reductions, which the first thread of each warp can compute from state: the work for the
// row in all threads, and then that for the thread's elements. outs and ins are where the row's begin in the arrays, and first says that
// the thread stores what there is once for the row.
func (b *reduceKernel) secondPass(state []kernel.Value, first kernel.Value, outs, ins []kernel.Value,
	lane, begin, end kernel.Value) {
	k, f := b.k, b.op.fused
	for i, v := range state {
		state[i] = v.Shuffle(k.I32(0))
	}
	all := f.finishAll(b.r, state)
	scalars := b.r.S[len(b.r.S)-f.thenScalars():]
	row, each, _ := f.offsets()
	args := make([]Num, 0, f.row.Ins)
	for i, n := range all {
		args = append(args, n.Convert(f.row.InTypes[i]))
	}
	for i := row; i < each; i++ {
		args = append(args, b.ins[i].load(ins[i], 1)[0].Convert(f.row.InTypes[len(args)]))
	}
	made := f.row.Build(k, b.s.Compute, args, scalars[:f.row.Scalars])
	k.If(first, func() {
		for i, n := range append(f.kept(all), made[f.given:]...) {
			b.outs[i].store(outs[i], n)
		}
	})
	if f.each != nil {
		b.elements(made[:f.given], scalars[f.row.Scalars:], ins, lane, begin, end)
	}
}

// thenScalars is the number of scalars of row and each.
func (p *reduceParts) thenScalars() (n int) {
	if p.row != nil {
		n = p.row.Scalars
	}
	if p.each != nil {
		n += p.each.Scalars
	}
	return n
}

// elements does the work for the thread's elements of a row. given are what it gets of the row.
func (b *reduceKernel) elements(given, scalars []Num, ins []kernel.Value, lane, begin, end kernel.Value) {
	k, f := b.k, b.op.fused
	_, own, to := f.offsets()
	from := make([]int, len(f.same)) // the number of each input
	for i, same := range f.same {
		if from[i] = same; same < 0 {
			from[i] = own
			own++
		}
	}
	// run does it for n elements at once. load loads those of input i.
	run := func(n int, load func(i int) []Num) (results [][]Num) {
		var in [][]Num
		for _, i := range from {
			in = append(in, load(i))
		}
		results = make([][]Num, f.each.Outs)
		for j := range n {
			args := append([]Num(nil), given...)
			for _, vs := range in {
				args = append(args, vs[j].Convert(f.each.InTypes[len(args)]))
			}
			for i, v := range f.each.Build(k, b.s.Compute, args, scalars) {
				results[i] = append(results[i], v)
			}
		}
		return results
	}
	b.inTurn(lane, begin, end, b.wide, []int{reduceUnroll, 1}, func(items []kernel.Value) {
		var at [][]kernel.Value
		var loaded []map[int][]Num
		for _, item := range items {
			place, vs := b.red.locate(item), map[int][]Num{}
			for _, i := range from {
				switch {
				case vs[i] != nil:
				case b.s.Reduce.Held.has(i):
					vs[i] = b.heldItem(i, item)
				default:
					vs[i] = b.elementsAt(i, ins[i].Add(place[i]))
				}
			}
			at, loaded = append(at, place), append(loaded, vs)
		}
		for u := range items {
			for o, ns := range run(b.accs, func(i int) []Num { return loaded[u][i] }) {
				a, w := b.ins[to+o], b.width(to+o)
				for j := 0; j < b.accs; j += w {
					a.store(ins[to+o].Add(at[u][to+o]).Add(b.lit(j)), ns[j:j+w]...)
				}
			}
		}
	})
	if b.accs == 1 || b.s.Reduce.Reduced != 1 {
		return
	}
	k.If(lane.Lt(b.index(b.tail)).And(b.inside), func() {
		at := b.items.Mul(b.lit(b.accs)).Add(lane)
		place := func(i int) kernel.Value {
			if b.s.Reduce.Repeat.has(i) {
				return ins[i]
			}
			return ins[i].Add(at)
		}
		for o, ns := range run(1, func(i int) []Num {
			if b.s.Reduce.Held.has(i) {
				return []Num{{Re: b.held.Load(b.heldPlace(i, at))}}
			}
			return b.ins[i].load(place(i), 1)
		}) {
			b.ins[to+o].store(place(to+o), ns[0])
		}
	})
}
