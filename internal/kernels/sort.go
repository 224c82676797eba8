package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The sort of indexes: a stable radix sort of keys with their positions, from the lowest digit on. A pass counts the digits in each block's
// part, turns the counts into positions by running sums over blocks and then digits, and moves the elements there. (Satish, Harris and
// Garland, “Designing efficient sorting algorithms for manycore GPUs”, 2009.)
const (
	// sortDigitLeast and sortDigitMost are the minimum and maximum number of bits per digit.
	sortDigitLeast, sortDigitMost = 5, 8
	sortThreads                   = 512
	sortWarps                     = sortThreads / 32
	// sortCounts is the number of keys that a counting thread has in flight at a time.
	sortCounts = 8
)

// sortItems is the number of elements of a tile per thread: a block's tile is exchanged in 16 KiB of shared memory.
func sortItems(index int) int { return 8 * 32 / index }

// sortStage is the operation of a kernel of FamilySort; it is Spec.Op.
type sortStage uint16

const (
	sortCount sortStage = iota
	sortScan
	sortPlace
)

// sortSpec is what these kernels are specialised on: the number of bits per digit.
type sortSpec struct{ Digit uint8 }

// sortArgs are the arguments of these kernels: arrays of keys, of the numbers sorted with them and of counts; then the number of elements
// n, the number per block, and the position of the digit in a key. sortScan has only the table and the number of blocks.
type sortArgs struct {
	keys, with, toKeys, toWith, table bufferArg
	n, per, shift, mask               intArg
	blocks                            intArg
}

func (a *sortArgs) layout(p params) {
	ix := p.s.Compute
	switch sortStage(p.s.Op) {
	case sortCount:
		p.bufferRO(&a.keys, "keys", ix)
		p.buffer(&a.table, "table", ix)
	case sortScan:
		p.buffer(&a.table, "table", ix)
		p.i32(&a.blocks, "blocks")
		return
	case sortPlace:
		p.bufferRO(&a.keys, "keys", ix)
		p.bufferRO(&a.with, "with", ix)
		p.buffer(&a.toKeys, "to_keys", ix)
		p.buffer(&a.toWith, "to_with", ix)
		p.bufferRO(&a.table, "table", ix)
	}
	p.i64(&a.n, "n")
	p.i64(&a.per, "per")
	p.i32(&a.shift, "shift")
	p.i32(&a.mask, "mask")
}

// keySort sorts count keys by their low bits, together with a number for each, such as its position.
type keySort struct {
	count, bits int
	// index is the width of keys and numbers in bits, 32 or 64.
	index int
	// digit is the number of bits that a pass sorts by.
	digit int
	// per is the number of elements per block, blocks the number of blocks.
	per, blocks int
	// keys and with hold two arrays of count keys and numbers each. The first one is the input and, after sort, the result. If given is not
	// 0, the numbers there are the input instead, and are not modified.
	keys, with [2]uint64
	given      uint64
	// table has a count for each digit and block, and then one for each digit.
	table uint64
}

// prepare allocates workspace.
func (s *keySort) prepare(is Issuer) error {
	tile := sortThreads * sortItems(s.index)
	tiles := ceilDiv(s.count, tile)
	s.per = tile * ceilDiv(tiles, min(1024/sortThreads*is.Limits().Multiprocessors, tiles))
	s.blocks = ceilDiv(s.count, s.per)
	// Digits of equal length: the fewer values a digit has, the longer the runs that are written.
	s.digit = max(ceilDiv(s.bits, max(ceilDiv(s.bits, sortDigitMost), 1)), sortDigitLeast)
	part := ceilDiv(s.count*s.index/8, 512) * 512
	ws, err := is.Workspace(4*part + (s.blocks+1)<<s.digit*s.index/8)
	s.keys = [2]uint64{ws, ws + uint64(part)}
	s.with = [2]uint64{ws + 2*uint64(part), ws + 3*uint64(part)}
	s.table = ws + 4*uint64(part)
	return err
}

// sort sorts the first arrays.
func (s *keySort) sort(is Issuer) error {
	for shift := 0; shift < s.bits; shift += s.digit {
		mask := 1<<min(s.digit, s.bits-shift) - 1
		with := s.with[0]
		if s.given != 0 {
			with, s.given = s.given, 0
		}
		var a sortArgs
		a.keys.host, a.with.host, a.toKeys.host, a.toWith.host = s.keys[0], with, s.keys[1], s.with[1]
		a.table.host, a.n.host, a.per.host, a.shift.host = s.table, s.count, s.per, shift
		a.mask.host, a.blocks.host = mask, s.blocks
		if err := s.launch(is, sortCount, s.blocks, &a); err != nil {
			return err
		}
		if err := s.launch(is, sortScan, 1<<s.digit/sortWarps, &a); err != nil {
			return err
		}
		if err := s.launch(is, sortPlace, s.blocks, &a); err != nil {
			return err
		}
		s.keys[0], s.keys[1] = s.keys[1], s.keys[0]
		s.with[0], s.with[1] = s.with[1], s.with[0]
	}
	if s.given != 0 {
		s.with[0] = s.given
	}
	return nil
}

func (s *keySort) launch(is Issuer, stage sortStage, blocks int, a *sortArgs) error {
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilySort, Op: uint16(stage), Compute: indexType(s.index), Index: uint8(s.index), Sort: sortSpec{uint8(s.digit)}}
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(blocks), 1, 1}, [3]uint32{sortThreads, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilySort, buildSort)

func buildSort(s *Spec) *kernel.Kernel {
	build := func(name string, f func(k *kernel.Builder, a *sortArgs, ix dtype.DType, s *Spec)) *kernel.Kernel {
		return kernel.Build(s.name(name), func(k *kernel.Builder) {
			k.FixedThreads(sortThreads)
			var a sortArgs
			a.layout(declaring(k, s))
			f(k, &a, s.Compute, s)
		})
	}
	switch sortStage(s.Op) {
	case sortCount:
		return build("sort_count", buildSortCount)
	case sortScan:
		return build("sort_scan", buildSortScan)
	}
	return build("sort_place", buildSortPlace)
}

// sumUpTo returns, in each lane, the sum of v over the lanes up to and including it.
func sumUpTo(k *kernel.Builder, v kernel.Value) kernel.Value {
	lane := k.LaneID()
	for h := 1; h < 32; h *= 2 {
		v = v.Add(lane.Ge(k.I32(h)).Select(v.ShuffleUp(h), v.Like(0)))
	}
	return v
}

// buildSortCount counts the digits in each block's part.
func buildSortCount(k *kernel.Builder, a *sortArgs, ix dtype.DType, s *Spec) {
	bins, per := 1<<s.Sort.Digit, a.per.Value
	counts := k.Shared("counts", dtype.Int32, bins)
	tid, block := k.ThreadIdx(kernel.X), k.BlockIdx(kernel.X)
	mine := tid.Lt(k.I32(bins))
	k.If(mine, func() { counts.Store(tid, k.I32(0)) })
	k.Barrier()
	count := func(key kernel.Value) {
		counts.Atomic(kernel.AtomicAdd, key.Shr(a.shift.Value).Convert(dtype.Int32).And(a.mask.Value), k.I32(1))
	}
	start := block.Convert(dtype.Int64).Mul(per)
	end := start.Add(per).Min(a.n.Value)
	const step = sortThreads * sortCounts
	whole := end.Sub(end.Sub(start).And(k.I64(step - 1)))
	wide := tid.Convert(dtype.Int64)
	k.For(start, whole, k.I64(step), func(i kernel.Value) {
		var at [sortCounts]kernel.Value
		for j := range at {
			at[j] = a.keys.LoadAt(i.Add(wide), j*sortThreads)
		}
		for _, key := range at {
			count(key)
		}
	})
	k.For(whole.Add(wide), end, k.I64(sortThreads), func(i kernel.Value) { count(a.keys.Load(i)) })
	k.Barrier()
	k.If(mine, func() { a.table.Store(tid.Mul(k.GridDim(kernel.X)).Add(block), counts.Load(tid).Convert(ix)) })
}

// buildSortScan replaces each count of a digit by the sum of those of the preceding blocks, and writes the digit's sum; each warp handles a
// digit.
func buildSortScan(k *kernel.Builder, a *sortArgs, ix dtype.DType, s *Spec) {
	table, blocks, bins := a.table, a.blocks.Value, 1<<s.Sort.Digit
	lane := k.LaneID()
	digit := k.BlockIdx(kernel.X).Mul(k.I32(sortWarps)).Add(k.ThreadIdx(kernel.X).Shr(k.I32(5)))
	row := digit.Mul(blocks)
	sum := k.Var(k.Int(ix, 0))
	const per = 8 // adjacent counts per thread
	k.For(k.I32(0), blocks, k.I32(32*per), func(b kernel.Value) {
		first := b.Add(lane.Mul(k.I32(per)))
		var own [per]kernel.Value
		sums := k.Int(ix, 0)
		for j := range own {
			v, at := k.Var(k.Int(ix, 0)), first.Add(k.I32(j))
			k.If(at.Lt(blocks), func() { v.Set(table.Load(row.Add(at))) })
			own[j] = v.Get()
		}
		for _, v := range own {
			sums = sums.Add(v)
		}
		upTo := sumUpTo(k, sums).Add(sum.Get())
		next := upTo.Sub(sums)
		for j, v := range own {
			at := first.Add(k.I32(j))
			k.If(at.Lt(blocks), func() { table.Store(row.Add(at), next) })
			next = next.Add(v)
		}
		sum.Set(upTo.Shuffle(k.I32(31)))
	})
	k.If(lane.Eq(k.I32(0)), func() { table.Store(blocks.Mul(k.I32(bins)).Add(digit), sum.Get()) })
}

// sortItem is an element of a tile in a thread's registers.
type sortItem struct{ inside, key, digit, rank kernel.Value }

// rankInGroup gives each item its rank among those with its digit in the warp, by item and then by thread, with the digit in the bits above
// it, so that both take one register. add adds to the warp's count of a digit and returns the previous count. The first thread with each
// digit calls it. The votes of the next item come between that call and the use of its result, and keep the additions in order.
func rankInGroup(k *kernel.Builder, its []sortItem, bits int, add func(digit, n kernel.Value) kernel.Value) {
	one := k.U32(1)
	below := one.Shl(k.LaneID()).Sub(one)
	var old kernel.Var
	var same kernel.Value
	hear := func(it *sortItem) {
		leader := same.And(same.Not().Add(one)).Sub(one).Popc().And(k.I32(31))
		it.rank = old.Get().Shuffle(leader).Add(it.rank).Or(it.digit.Shl(k.I32(16)))
	}
	for j := range its {
		it := &its[j]
		peers := it.inside.Ballot() // the threads with this thread's digit
		for b := range bits {
			set := it.digit.And(k.I32(1 << b)).Ne(k.I32(0))
			votes := set.Ballot()
			peers = peers.And(set.Select(votes, votes.Not()))
		}
		if j > 0 {
			hear(&its[j-1])
		}
		it.rank = peers.And(below).Popc()
		same, old = peers, k.Var(k.I32(0))
		k.If(it.inside.And(it.rank.Eq(k.I32(0))), func() { old.Set(add(it.digit, peers.Popc())) })
	}
	hear(&its[len(its)-1])
}

// buildSortPlace moves each element to the position given by the table and the number of preceding elements with its digit. It works one
// tile at a time, of which each warp has adjacent elements. The tile is first sorted in shared memory, so that neighbouring threads write
// neighbouring elements.
func buildSortPlace(k *kernel.Builder, a *sortArgs, ix dtype.DType, s *Spec) {
	digit, items := int(s.Sort.Digit), sortItems(int(s.Index))
	tile, bins := sortThreads*items, 1<<digit
	places := k.Shared("places", dtype.Int32, sortWarps*bins) // in the tile, for each warp and digit
	moves := k.Shared("moves", ix, bins)                      // from there to the result, for each digit
	sums := k.Shared("sums", ix, bins/32)
	exchange := k.Shared("exchange", ix, tile)
	tid, block, lane := k.ThreadIdx(kernel.X), k.BlockIdx(kernel.X), k.LaneID()
	warp := tid.Shr(k.I32(5))
	row := warp.Mul(k.I32(bins))
	digitOf := func(key kernel.Value) kernel.Value {
		return key.Shr(a.shift.Value).Convert(dtype.Int32).And(a.mask.Value)
	}
	clear := func() {
		k.For(tid, k.I32(sortWarps*bins), k.I32(sortThreads), func(i kernel.Value) { places.Store(i, k.I32(0)) })
	}
	// before returns, in the first threads, the sum of v over the digits below the thread's.
	mine := tid.Lt(k.I32(bins))
	before := func(v kernel.Value) kernel.Value {
		upTo := sumUpTo(k, v)
		k.If(mine.And(lane.Eq(k.I32(31))), func() { sums.Store(warp, upTo) })
		k.Barrier()
		sum := upTo.Sub(v)
		for w := range bins/32 - 1 {
			sum = sum.Add(warp.Gt(k.I32(w)).Select(sums.Load(k.I32(w)), sum.Like(0)))
		}
		k.Barrier()
		return sum
	}
	began, total := k.Var(k.Int(ix, 0)), k.Var(k.Int(ix, 0))
	k.If(mine, func() {
		total.Set(a.table.Load(k.GridDim(kernel.X).Mul(k.I32(bins)).Add(tid)))
		began.Set(a.table.Load(tid.Mul(k.GridDim(kernel.X)).Add(block)))
	})
	next := k.Var(before(total.Get()).Add(began.Get()))
	clear()
	k.Barrier()
	first := block.Convert(dtype.Int64).Mul(a.per.Value)
	keys, with := a.keys.Offset(first), a.with.Offset(first)
	count := a.n.Sub(first).Min(a.per.Value).Convert(dtype.Int32)
	k.For(k.I32(0), count, k.I32(tile), func(start kernel.Value) {
		inTile := count.Sub(start).Min(k.I32(tile))
		from := warp.Mul(k.I32(32 * items)).Add(lane)
		its := make([]sortItem, items)
		own := start.Add(from)
		load := func(b kernel.Buffer, j int) kernel.Value {
			v := k.Var(k.Int(ix, 0))
			k.If(from.Add(k.I32(32*j)).Lt(inTile), func() { v.Set(b.LoadAt(own, 32*j)) })
			return v.Get()
		}
		for j := range its {
			its[j].key = load(keys, j)
		}
		for j := range its {
			its[j].inside, its[j].digit = from.Add(k.I32(32*j)).Lt(inTile), digitOf(its[j].key)
		}
		rankInGroup(k, its, digit, func(digit, n kernel.Value) kernel.Value {
			return places.Atomic(kernel.AtomicAdd, row.Add(digit), n)
		})
		k.Barrier()
		inDigit := k.Var(k.I32(0))
		k.If(mine, func() {
			k.For(tid, k.I32(sortWarps*bins), k.I32(bins), func(at kernel.Value) { inDigit.Set(inDigit.Get().Add(places.Load(at))) })
		})
		began := before(inDigit.Get().Convert(ix))
		k.If(mine, func() { // counts become positions, one digit per thread; unrolled, these loops would need too many registers
			moves.Store(tid, next.Get().Sub(began))
			next.Set(next.Get().Add(inDigit.Get().Convert(ix)))
			to := k.Var(began.Convert(dtype.Int32))
			k.For(tid, k.I32(sortWarps*bins), k.I32(bins), func(at kernel.Value) {
				v := places.Load(at)
				places.Store(at, to.Get())
				to.Set(to.Get().Add(v))
			})
		})
		k.Barrier()
		for j := range its {
			it := &its[j]
			it.rank = it.rank.And(k.I32(1<<16 - 1)).Add(places.Load(row.Add(it.rank.Shr(k.I32(16)))))
			k.If(it.inside, func() { exchange.Store(it.rank, it.key) })
		}
		k.Barrier()
		// The numbers are loaded while the keys are stored.
		numbers, to := make([]kernel.Value, items), make([]kernel.Value, items)
		for j := range numbers {
			numbers[j] = load(with, j)
		}
		for j := range to {
			at := tid.Add(k.I32(j * sortThreads))
			key := exchange.Load(at.Min(inTile.Sub(k.I32(1))))
			to[j] = at.Convert(ix).Add(moves.Load(digitOf(key)))
			k.If(at.Lt(inTile), func() { a.toKeys.Store(to[j], key) })
		}
		k.Barrier()
		for j, it := range its {
			k.If(it.inside, func() { exchange.Store(it.rank, numbers[j]) })
		}
		clear()
		k.Barrier()
		for j := range to {
			at := tid.Add(k.I32(j * sortThreads))
			k.If(at.Lt(inTile), func() { a.toWith.Store(to[j], exchange.Load(at)) })
		}
	})
}
