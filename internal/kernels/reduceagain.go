package kernels

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// A kernel that goes through the elements of a row again would find them in the cache only if the rows that all warps have at a time fit
// there: on an H200, 8192 rows of 4096 bf16 do not. So a thread holds its part of the row, and results that are dear to make again: in
// registers, if its part is small (reduceSpec.Chunks), otherwise in shared memory, if enough warps then still run at a time. It finds there
// what it has put there itself.

const (
	// heldWarps is the minimum number of warps that a multiprocessor must have room for if rows are held, and heldElements the maximum
	// number of elements of a row that a thread goes through again: with 256 of them, and with so few warps, separate kernels took 90 to
	// 100 % of the time of one on an H200.
	heldWarps, heldElements = 12, 128
	// heldBeside is room for the kernel's other arrays: those of across, and what is lost by alignment.
	heldBeside = 2 << 10
	// readAgain is the maximum number of bytes of an input that is read again instead. They are then still in the cache.
	readAgain = 32 << 20
	// shortRow is the number of elements of a row below which separate kernels are faster on the processor than several rounds, by 15 % for
	// rows of 128 and 256, unless there are at most smallRows elements in all.
	shortRow, smallRows = 512, 1 << 14
)

// hold chooses which inputs of p are held: of those that are read in the first round and again. It reports whether there is room for what
// is kept, and whether going through the elements again is worth it.
func (p *reducePlan) hold(lim *Limits) bool {
	f := p.op.fused
	others := slices.ContainsFunc(f.kept, func(t dtype.DType) bool { return t != f.kept[0] })
	switch {
	case p.chunks > 0:
		return len(f.kept) == 0 || KeepsResults(lim)
	case len(f.kept) > 0 && (!KeepsResults(lim) || others || p.n > heldElements*p.wide || !p.holds(lim)):
		return false
	case f.each.none() && len(f.rounds) == 1:
		return true
	case lim.Multiprocessors < fewMultiprocessors:
		return p.n >= shortRow || p.n*p.outputs <= smallRows
	}
	for i := range f.read {
		passes := f.passes(i)
		if passes < 2 || p.repeat.has(i) || p.red.stride[i][0] == 0 {
			continue
		}
		if p.n > heldElements*p.wide {
			return false
		}
		of, before := p.ins[i].DType, p.held
		t := p.heldType()
		if f.readsInput(0, i) && !of.IsComplex() && of != dtype.Bool && (t == dtype.Invalid || of == t) {
			if p.held.add(i); p.holds(lim) {
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

// KeepsResults reports whether kernels on the device may keep results. A softmax that keeps its exponentials takes the processor 3 times as
// long.
func KeepsResults(lim *Limits) bool { return lim.Multiprocessors >= fewMultiprocessors }

// holds reports whether enough warps run at a time if rows are held.
func (p *reducePlan) holds(lim *Limits) bool {
	return (lim.SharedPerBlock-heldBeside)/p.heldBytes()*p.firstThreads() >= heldWarps*32
}

// heldType is the type of what is held, or Invalid if nothing is.
func (p *reducePlan) heldType() dtype.DType {
	switch kept := p.op.fused.kept; {
	case len(kept) > 0:
		return kept[0]
	case p.held == 0:
		return dtype.Invalid
	}
	return p.ins[p.held.first()].DType
}

// places returns where inputs and what is kept are held: the first has the number of each input in held among the rows that are held, the
// second those of what is kept. n is the number of such rows. A kept value takes the first place of an input that nothing reads any more,
// and is held to the end.
func (p *reduceParts) places(held operandSet) (inputs map[int]int, kept []int, n int) {
	inputs, free := map[int]int{}, map[int]int{} // the round after which a place is free
	for i := range p.read {
		if held.has(i) {
			inputs[i], free[n] = n, p.last(i)
			n++
		}
	}
	for round, r := range p.rounds {
		for range r.keeps {
			place := 0
			for ; place < n; place++ {
				if last, ok := free[place]; ok && last <= round {
					break
				}
			}
			n = max(n, place+1)
			delete(free, place)
			kept = append(kept, place)
		}
	}
	return inputs, kept, n
}

// sharedRows reports whether rows are held in shared memory.
func (p *reducePlan) sharedRows() bool { return p.chunks == 0 && p.op.fused.holdsRows(p.held) }

// heldRow is the number of elements of a row that is held.
func (p *reducePlan) heldRow() int { return ceilDiv(p.n, p.vec) * p.vec }

// heldBytes is the number of bytes that a block holds.
func (p *reducePlan) heldBytes() int {
	n := p.held.count()
	if len(p.op.fused.kept) > 0 {
		_, _, n = p.op.fused.places(p.held)
	}
	return n * p.groups() * p.heldRow() * p.heldType().Size()
}

// holdRows declares where rows are held, of which group, the number of the row in the block, is the thread's.
func (b *reduceKernel) holdRows(group kernel.Value) {
	if b.fused == nil || b.stage == reduceFinal || b.chunks > 0 {
		return
	}
	held, n := b.s.Reduce.Held, 0
	if b.heldIn, b.keptIn, n = b.fused.places(held); n == 0 {
		return
	}
	if kept := b.fused.kept; len(kept) > 0 {
		b.heldType = kept[0]
	} else {
		b.heldType = b.ins[held.first()].t
	}
	b.held = b.k.Shared("held", b.heldType, -1)
	b.heldAt = group.Mul(b.k.I32(n)).Mul(b.heldRow)
}

// heldPlace returns the place of element at in the row with number nth of those that are held for the thread.
func (b *reduceKernel) heldPlace(nth int, at kernel.Value) kernel.Value {
	return b.heldAt.Add(b.heldRow.Mul(b.k.I32(nth))).Add(at.Convert(dtype.Int32))
}

// heldItemAt returns where an item is held in the row with number nth.
func (b *reduceKernel) heldItemAt(nth int, it item) kernel.Value {
	if !b.flat {
		return b.heldPlace(nth, b.firstOf(it))
	}
	return b.heldPlace(nth, it.at).Add(b.k.I32(it.off))
}

// hold stores vs, the elements of an item, to the row with number nth.
func (b *reduceKernel) hold(nth int, it item, vs []Num) {
	at := b.heldItemAt(nth, it)
	w := min(b.accs, 16/b.heldType.Size())
	for j := 0; j < len(vs); j += w {
		var re []kernel.Value
		for _, v := range vs[j : j+w] {
			re = append(re, v.Convert(b.heldType).Re)
		}
		b.held.StoreVec(at.Add(b.k.I32(j)), re...)
	}
}

// heldItem returns the elements of an item that are in the row with number nth.
func (b *reduceKernel) heldItem(nth int, it item) (vs []Num) {
	at := b.heldItemAt(nth, it)
	w := min(b.accs, 16/b.heldType.Size())
	for j := 0; j < b.accs; j += w {
		for _, v := range b.held.LoadVec(at.Add(b.k.I32(j)), w) {
			vs = append(vs, Num{Re: v})
		}
	}
	return vs
}

// ofRow does the work for the row of the kernel's present round in all threads, with the results that the first thread of each warp can
// compute from state. It sets what later work is given. first says that the thread stores what there is once for the row, at outs, and ins
// are where the row begins in the arrays.
func (b *reduceKernel) ofRow(state []kernel.Value, first kernel.Value, outs []array, at, ins []kernel.Value) {
	k, r := b.k, b.round
	for i, v := range state {
		state[i] = v.Shuffle(k.I32(0))
	}
	all := r.finishAll(b.r, state)
	args := slices.Clone(b.given)
	for _, n := range all {
		args = append(args, n.Convert(r.row.Op.InTypes[len(args)]))
	}
	for _, i := range r.row.From {
		args = append(args, b.ins[i].load(ins[i], 1)[0].Convert(r.row.Op.InTypes[len(args)]))
	}
	made := r.row.Op.Build(k, b.s.Compute, args, b.r.S[len(b.r.S)-r.row.Op.Scalars:])
	k.If(first, func() {
		for i, n := range append(r.stored(all), made[r.given:]...) {
			outs[i].store(at[i], n)
		}
	})
	b.given = made[:r.given]
}

// elements does the work for the thread's elements of a row after all rounds.
func (b *reduceKernel) elements(ins []kernel.Value, lane, begin, end kernel.Value) {
	k, f, each := b.k, b.fused, &b.fused.each
	scalars := b.scalars[len(b.scalars)-each.Op.Scalars:]
	// run does it for n elements at once.
	run := func(n int, in [][]Num) (results [][]Num) {
		results = make([][]Num, each.Op.Outs)
		for j := range n {
			args := slices.Clone(b.given)
			for _, vs := range in {
				args = append(args, vs[j].Convert(each.Op.InTypes[len(args)]))
			}
			for i, v := range each.Op.Build(k, b.s.Compute, args, scalars) {
				results[i] = append(results[i], v)
			}
		}
		return results
	}
	b.inTurn(lane, begin, end, max(b.wide, 1), []int{reduceUnroll, 1}, func(items []item) {
		var at [][]kernel.Value
		var loaded [][][]Num
		for _, it := range items {
			place := b.placesOf(it, ins)
			at, loaded = append(at, place), append(loaded, b.elementsFor(each.Kept, each.From, place, it))
		}
		for u := range items {
			for o, ns := range run(b.accs, loaded[u]) {
				to := f.read + o
				b.storeItem(to, at[u][to], ns, items[u])
			}
		}
	})
	if b.accs == 1 || b.s.Reduce.Reduced != 1 || b.chunks > 0 {
		return
	}
	k.If(lane.Lt(b.index(b.tail)).And(b.inside), func() {
		at := b.items.Mul(b.lit(b.accs)).Add(lane)
		var in [][]Num
		for _, v := range b.elementFor(each.Kept, each.From, ins, at) {
			in = append(in, []Num{v})
		}
		for o, ns := range run(1, in) {
			b.ins[f.read+o].store(ins[f.read+o].Add(at), ns[0])
		}
	})
}

// storeItem stores ns, the elements of an item, to ins[i] at an index, if the thread has the item.
func (b *reduceKernel) storeItem(i int, at kernel.Value, ns []Num, it item) {
	store := func() {
		a, w := b.ins[i], b.width(i)
		for j := 0; j < b.accs; j += w {
			a.store(at.Add(b.lit(j)), ns[j:j+w]...)
		}
	}
	if it.ok.Builder() == nil {
		store()
		return
	}
	b.k.If(it.ok, store)
}

// elementsFor returns the elements of an item that work reads: of what is kept, and of inputs: those that are held, if the thread goes
// through them again, or those at place.
func (b *reduceKernel) elementsFor(kept, from []int, place []kernel.Value, it item) (all [][]Num) {
	for _, n := range kept {
		if b.chunks > 0 {
			all = append(all, b.registers[[2]int{len(b.ins) + n, it.nth}])
		} else {
			all = append(all, b.heldItem(b.keptIn[n], it))
		}
	}
	for _, i := range from {
		nth, ok := b.heldIn[i]
		switch {
		case b.chunks > 0:
			all = append(all, b.inRegisters(i, place[i], it))
		case ok && !b.firstRound():
			all = append(all, b.heldItem(nth, it))
		case b.s.Reduce.Steady.has(i):
			all = append(all, b.steady[i])
		default:
			all = append(all, b.elementsAt(i, place[i]))
		}
	}
	return all
}

// inRegisters is elementsAt for an item that the thread holds in registers: it is loaded where it is needed first.
func (b *reduceKernel) inRegisters(i int, at kernel.Value, it item) []Num {
	key := [2]int{i, it.nth}
	if b.s.Reduce.Repeat.has(i) { // one element for the whole row
		key[1] = 0
	}
	if b.registers[key] == nil {
		b.registers[key] = b.elementsAt(i, at)
	}
	return b.registers[key]
}

// keep keeps ns, what has been made for the elements of an item, as value number n.
func (b *reduceKernel) keep(n int, it item, ns []Num) {
	if b.chunks == 0 {
		b.hold(b.keptIn[n], it, ns)
		return
	}
	var kept []Num
	for _, v := range ns {
		kept = append(kept, v.Convert(b.fused.kept[n]))
	}
	b.registers[[2]int{len(b.ins) + n, it.nth}] = kept
}

// elementFor is elementsFor for element at of the thread's row.
func (b *reduceKernel) elementFor(kept, from []int, base []kernel.Value, at kernel.Value) (all []Num) {
	held := func(nth int) { all = append(all, Num{Re: b.held.Load(b.heldPlace(nth, at))}) }
	for _, n := range kept {
		held(b.keptIn[n])
	}
	for _, i := range from {
		nth, ok := b.heldIn[i]
		switch {
		case ok && !b.firstRound():
			held(nth)
		case b.s.Reduce.Repeat.has(i):
			all = append(all, b.ins[i].load(base[i], 1)[0])
		default:
			all = append(all, b.ins[i].load(base[i].Add(at), 1)[0])
		}
	}
	return all
}
