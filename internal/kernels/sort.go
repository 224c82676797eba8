package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The sort of indexes: keys with their positions, stable, by digits from the lowest on. A pass counts the digits of each block's part, turns
// the counts into places by a running sum over digits and then blocks, and moves the elements there. (Satish, Harris and Garland, “Designing
// efficient sorting algorithms for manycore GPUs”, 2009.)
const (
	sortDigit   = 8
	sortBins    = 1 << sortDigit
	sortThreads = 512
	sortWarps   = sortThreads / 32
	scanThreads = 1024
)

// sortStage is what a kernel of FamilySort does; it is Spec.Op.
type sortStage uint16

const (
	sortCount sortStage = iota
	sortScan
	sortPlace
)

// keySort sorts count keys in 0 … size-1.
type keySort struct {
	count, size int
	// index is the width of keys and positions in bits, 32 or 64.
	index int
	// per is how many elements a group of 32 threads has, blocks how many blocks there are.
	per, blocks int
	// keys and at hold two arrays of count keys and positions each, of which the first is the input and, after sort, the result; table
	// has a count for each digit and block.
	keys, at [2]uint64
	table    uint64
}

// prepare takes workspace.
func (s *keySort) prepare(is Issuer) error {
	lim := is.Limits()
	s.per = 32 * ceilDiv(s.count, 32*sortWarps*min(2*lim.Multiprocessors, ceilDiv(s.count, 4*sortThreads)))
	s.blocks = ceilDiv(s.count, s.per*sortWarps)
	part := ceilDiv(s.count*s.index/8, 512) * 512
	ws, err := is.Workspace(4*part + sortBins*s.blocks*s.index/8)
	s.keys = [2]uint64{ws, ws + uint64(part)}
	s.at = [2]uint64{ws + 2*uint64(part), ws + 3*uint64(part)}
	s.table = ws + 4*uint64(part)
	return err
}

// sort sorts the first arrays.
func (s *keySort) sort(is Issuer) error {
	for shift := 0; shift < bits.Len(uint(max(s.size-1, 0))); shift += sortDigit {
		l := s.launch(is, sortCount, s.blocks, sortThreads)
		l.u64(s.keys[0])
		l.u64(s.table)
		l.i64(s.count)
		l.i64(s.per * sortWarps)
		l.i32(shift)
		if err := is.Issue(l); err != nil {
			return err
		}
		l = s.launch(is, sortScan, 1, scanThreads)
		l.u64(s.table)
		l.i32(sortBins * s.blocks)
		if err := is.Issue(l); err != nil {
			return err
		}
		l = s.launch(is, sortPlace, s.blocks, sortThreads)
		for _, p := range []uint64{s.keys[0], s.at[0], s.keys[1], s.at[1], s.table} {
			l.u64(p)
		}
		l.i64(s.count)
		l.i64(s.per)
		l.i32(shift)
		if err := is.Issue(l); err != nil {
			return err
		}
		s.keys[0], s.keys[1] = s.keys[1], s.keys[0]
		s.at[0], s.at[1] = s.at[1], s.at[0]
	}
	return nil
}

func (s *keySort) launch(is Issuer, stage sortStage, blocks, threads int) *Launch {
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilySort, Op: uint16(stage), Compute: indexType(s.index), Index: uint8(s.index)}
	l.Grid, l.Block = [3]uint32{uint32(blocks), 1, 1}, [3]uint32{uint32(threads), 1, 1}
	return l
}

var _ = register(FamilySort, buildSort)

func buildSort(s *Spec) *kernel.Kernel {
	ix := s.Compute
	switch sortStage(s.Op) {
	case sortCount:
		return kernel.Build(s.name("sort_count"), func(k *kernel.Builder) { buildSortCount(k, ix) })
	case sortScan:
		return kernel.Build(s.name("sort_scan"), func(k *kernel.Builder) { buildSortScan(k, ix) })
	}
	return kernel.Build(s.name("sort_place"), func(k *kernel.Builder) { buildSortPlace(k, ix) })
}

// digitOf returns the digit of a key from bit shift on, Int32.
func digitOf(k *kernel.Builder, key, shift kernel.Value) kernel.Value {
	return key.Shr(shift).Convert(dtype.Int32).And(k.I32(sortBins - 1))
}

// buildSortCount counts the digits in each block's part.
func buildSortCount(k *kernel.Builder, ix dtype.DType) {
	k.FixedThreads(sortThreads)
	keys, table := k.BufferRO("keys", ix), k.Buffer("table", ix)
	n, per, shift := k.Scalar("n", dtype.Int64), k.Scalar("per", dtype.Int64), k.Scalar("shift", dtype.Int32)
	counts := k.Shared("counts", dtype.Int32, sortBins)
	tid, block := k.ThreadIdx(kernel.X), k.BlockIdx(kernel.X)
	mine := tid.Lt(k.I32(sortBins))
	k.If(mine, func() { counts.Store(tid, k.I32(0)) })
	k.Barrier()
	start := block.Convert(dtype.Int64).Mul(per)
	k.For(start.Add(tid.Convert(dtype.Int64)), start.Add(per).Min(n), k.I64(sortThreads), func(i kernel.Value) {
		counts.Atomic(kernel.AtomicAdd, digitOf(k, keys.Load(i), shift), k.I32(1))
	})
	k.Barrier()
	k.If(mine, func() { table.Store(tid.Mul(k.GridDim(kernel.X)).Add(block), counts.Load(tid).Convert(ix)) })
}

// buildSortScan replaces each of n numbers by the sum of those before it, in one block.
func buildSortScan(k *kernel.Builder, ix dtype.DType) {
	k.FixedThreads(scanThreads)
	table, n := k.Buffer("table", ix), k.Scalar("n", dtype.Int32)
	sums := k.Shared("sums", ix, scanThreads/32)
	zero := k.Int(ix, 0)
	tid, lane := k.ThreadIdx(kernel.X), k.LaneID()
	per := n.Add(k.I32(scanThreads - 1)).Div(k.I32(scanThreads))
	start := tid.Mul(per)
	end := start.Add(per).Min(n)
	own := k.Var(zero)
	k.For(start, end, k.I32(1), func(i kernel.Value) { own.Set(own.Get().Add(table.Load(i))) })
	before := func(v kernel.Value) kernel.Value { // the sum over the lanes up to this one
		for h := 1; h < 32; h *= 2 {
			v = v.Add(lane.Ge(k.I32(h)).Select(v.ShuffleUp(h), zero))
		}
		return v
	}
	upTo := before(own.Get())
	warp := tid.Shr(k.I32(5))
	k.If(lane.Eq(k.I32(31)), func() { sums.Store(warp, upTo) })
	k.Barrier()
	warps := before(sums.Load(lane))
	// The lane below this thread's group has the sum of all groups before it.
	last := warps.Shuffle(warp.Sub(k.I32(1)).Max(k.I32(0)))
	run := k.Var(upTo.Sub(own.Get()).Add(warp.Gt(k.I32(0)).Select(last, zero)))
	k.For(start, end, k.I32(1), func(i kernel.Value) {
		v := table.Load(i)
		table.Store(i, run.Get())
		run.Set(run.Get().Add(v))
	})
}

// buildSortPlace moves each element to where the table and those before it of its digit say. A group of 32 threads has adjacent elements, and
// takes 32 of them at a time.
func buildSortPlace(k *kernel.Builder, ix dtype.DType) {
	k.FixedThreads(sortThreads)
	keys, at := k.BufferRO("keys", ix), k.BufferRO("at", ix)
	toKeys, toAt, table := k.Buffer("to_keys", ix), k.Buffer("to_at", ix), k.BufferRO("table", ix)
	n, per, shift := k.Scalar("n", dtype.Int64), k.Scalar("per", dtype.Int64), k.Scalar("shift", dtype.Int32)
	places := k.Shared("places", ix, sortWarps*sortBins)
	tid, block, lane := k.ThreadIdx(kernel.X), k.BlockIdx(kernel.X), k.LaneID()
	warp := tid.Shr(k.I32(5))
	bins := warp.Mul(k.I32(sortBins))
	k.For(tid, k.I32(sortWarps*sortBins), k.I32(sortThreads), func(i kernel.Value) { places.Store(i, k.Int(ix, 0)) })
	k.Barrier()
	start := block.Mul(k.I32(sortWarps)).Add(warp).Convert(dtype.Int64).Mul(per)
	lane64 := lane.Convert(dtype.Int64)
	k.For(start.Add(lane64), start.Add(per).Min(n), k.I64(32), func(i kernel.Value) {
		places.Atomic(kernel.AtomicAdd, bins.Add(digitOf(k, keys.Load(i), shift)), k.Int(ix, 1))
	})
	k.Barrier()
	k.If(tid.Lt(k.I32(sortBins)), func() { // counts become places, for one digit a thread
		next := k.Var(table.Load(tid.Mul(k.GridDim(kernel.X)).Add(block)))
		k.For(tid, k.I32(sortWarps*sortBins), k.I32(sortBins), func(i kernel.Value) {
			v := places.Load(i)
			places.Store(i, next.Get())
			next.Set(next.Get().Add(v))
		})
	})
	k.Barrier()
	one := k.U32(1)
	below := one.Shl(lane).Sub(one)
	k.For(k.I64(0), per, k.I64(32), func(r kernel.Value) {
		i := start.Add(r).Add(lane64)
		inside := i.Lt(n)
		from := i.Min(n.Sub(k.I64(1)))
		key := keys.Load(from)
		digit := digitOf(k, key, shift)
		same := inside.Ballot() // the threads with this thread's digit
		for b := range sortDigit {
			set := digit.And(k.I32(1 << b)).Ne(k.I32(0))
			votes := set.Ballot()
			same = same.And(set.Select(votes, votes.Not()))
		}
		rank := same.And(below).Popc()
		first := k.Var(k.Int(ix, 0))
		k.If(inside.And(rank.Eq(k.I32(0))), func() {
			first.Set(places.Atomic(kernel.AtomicAdd, bins.Add(digit), same.Popc().Convert(ix)))
		})
		leader := same.And(same.Not().Add(one)).Sub(one).Popc().And(k.I32(31))
		to := first.Get().Shuffle(leader).Add(rank.Convert(ix))
		k.If(inside, func() {
			toKeys.Store(to, key)
			toAt.Store(to, at.Load(from))
		})
	})
}
