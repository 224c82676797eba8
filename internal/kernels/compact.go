package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Compaction works on the nonzero elements of Mask, of any type, in row-major order; a NaN is nonzero. They are counted first, per block,
// so that Starts tells each block where the elements of its part begin.
type Compaction struct {
	// Starts is a dense vector of CompactStarts numbers of Int64. Count writes it and the others read it. For each block it has the number
	// of nonzero elements before its part, and at the end their total number.
	Mask, Starts Operand
}

const (
	compactThreads = 256
	compactWarps   = compactThreads / 32
	// compactItems is the number of elements per thread, compactPart that per block.
	compactItems = 8
	compactPart  = compactThreads * compactItems
)

// CompactStarts returns the length of Compaction.Starts for a mask of n elements.
func CompactStarts(n int) int { return ceilDiv(n, compactPart) + 1 }

// compactStage is the operation of a kernel of FamilyCompact; it is Spec.Op.
type compactStage uint16

const (
	// compactCount counts the nonzero elements of each block's part.
	compactCount compactStage = iota
	// compactScan replaces each count by the sum of the preceding ones.
	compactScan
	// compactPlaces writes indexes, compactTake the elements of another array.
	compactPlaces
	compactTake
	// compactSpread scatters the elements of a vector to where the mask is nonzero.
	compactSpread
	// compactRanks writes for each element the number of nonzero elements up to and including it, minus one, to the position that another
	// vector gives.
	compactRanks
	// compactSums adds up the nonnegative numbers in each block's part; compactRunning writes their running sums.
	compactSums
	compactRunning
	// compactRepeat looks up each number below the last running sum among the running sums.
	compactRepeat
)

var compactNames = []string{"compact_count", "compact_scan", "compact_places", "compact_take", "compact_spread", "compact_ranks",
	"compact_sums", "compact_running",
	"compact_repeat"}

// compactSpec is what these kernels are specialised on.
type compactSpec struct {
	// Dims is the class of the number of dimensions, see dimsClass.
	Dims uint8
}

// compactArgs are the arguments of these kernels. n is the number of elements, or of blocks for compactScan. most is the length of the
// vector that is written or read, step its stride. An index has rank numbers, which are across apart.
type compactArgs struct {
	mask, other, source, out arrayArg
	starts                   bufferArg
	n, most, step            intArg
	rank, across             intArg
	dims                     striderArg
}

// compactOperands is the number of arrays in the order of the mask, which is the first of them.
var compactOperands = [...]int{compactCount: 1, compactPlaces: 1, compactTake: 2, compactSpread: 3, compactRanks: 2, compactSums: 1,
	compactRunning: 1}

func (a *compactArgs) layout(p params) {
	s, stage := p.s, compactStage(p.s.Op)
	switch stage {
	case compactScan:
		p.buffer(&a.starts, "starts", dtype.Int64)
		p.i64(&a.n, "n")
		return
	case compactRepeat:
		p.bufferRO(&a.starts, "starts", dtype.Int64)
		p.array(&a.out, "out", dtype.Int64)
		p.i64(&a.n, "n")
		p.i64(&a.most, "most")
		return
	}
	p.array(&a.mask, "mask", s.DTypes[0])
	if stage == compactCount || stage == compactSums {
		p.buffer(&a.starts, "starts", dtype.Int64)
	} else {
		p.bufferRO(&a.starts, "starts", dtype.Int64)
		if compactOperands[stage] > 1 {
			p.array(&a.other, "other", s.DTypes[1])
		}
		if stage == compactSpread {
			p.array(&a.source, "source", s.DTypes[1])
		}
		p.array(&a.out, "out", s.DTypes[1])
		p.i64(&a.most, "most")
		p.i64(&a.step, "step")
	}
	p.i64(&a.n, "n")
	if stage == compactPlaces {
		p.i32(&a.rank, "rank")
		p.i64(&a.across, "across")
	}
	p.strider(&a.dims, "dim", int(s.Compact.Dims), 1, int(s.Index), operandsFrom(0, compactOperands[stage]))
}

// Count writes Starts.
func (c *Compaction) Count(is Issuer) error { return c.count(is, compactCount) }

// RunningSums writes to the vector out, of Int64, the running sums of the integer vector counts. A negative element stops the kernel.
func RunningSums(is Issuer, out, counts Operand) error {
	n := CompactStarts(counts.Numel())
	ws, err := is.Workspace(8 * n)
	if err != nil {
		return err
	}
	c := &Compaction{Mask: counts, Starts: Operand{Ptr: ws}}
	if err := c.count(is, compactSums); err != nil {
		return err
	}
	var a compactArgs
	a.out.host, a.most.host, a.step.host = out.Ptr, out.Shape[0], out.Stride[0]
	return c.launch(is, compactRunning, &a, dtype.Int64, counts.Shape)
}

// RepeatIndex writes each index below n to the vector out, repeated as many times as the running sums, a dense vector of n Int64, grow at
// that index. The kernel stops if the length of out is not the last sum.
func RepeatIndex(is Issuer, out, sums Operand) error {
	count := out.Shape[0]
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyCompact, Op: uint16(compactRepeat), Compute: dtype.Int64}
	var a compactArgs
	a.starts.host, a.out.host, a.n.host, a.most.host = sums.Ptr, out.Ptr, sums.Shape[0], count
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(max(ceilDiv(count, compactThreads), 1)), 1, 1}, [3]uint32{compactThreads, 1, 1}
	return is.Issue(l)
}

// count runs compactCount or compactSums and turns the results into sums of the preceding ones.
func (c *Compaction) count(is Issuer, stage compactStage) error {
	n := c.Mask.Numel()
	if n > 0 {
		var a compactArgs
		if err := c.launch(is, stage, &a, dtype.Invalid, c.Mask.Shape); err != nil {
			return err
		}
	}
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyCompact, Op: uint16(compactScan), Compute: dtype.Int64}
	var a compactArgs
	a.starts.host, a.n.host = c.Starts.Ptr, CompactStarts(n)-1
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{1, 1, 1}, [3]uint32{compactThreads, 1, 1}
	return is.Issue(l)
}

// Places writes the indexes of the nonzero elements to the rows of out, of Int64.
func (c *Compaction) Places(is Issuer, out Operand) error {
	var a compactArgs
	a.out.host, a.most.host, a.step.host = out.Ptr, out.Shape[0], out.Stride[0]
	a.rank.host, a.across.host = out.Shape[1], out.Stride[1]
	return c.launch(is, compactPlaces, &a, dtype.Int64, c.Mask.Shape)
}

// Take writes the elements of t, which has the mask's shape, to the vector out where the mask is nonzero. If out is shorter, it gets only
// the first ones; if it is longer, its remaining elements are unchanged.
func (c *Compaction) Take(is Issuer, out, t Operand) error {
	var a compactArgs
	a.other.host, a.out.host, a.most.host, a.step.host = t.Ptr, out.Ptr, out.Shape[0], out.Stride[0]
	return c.launch(is, compactTake, &a, t.DType, c.Mask.Shape, t.Stride)
}

// Spread sets out, which has the mask's shape, to successive elements of the vector source where the mask is nonzero, and to the elements
// of t elsewhere. A source that is too short stops the kernel.
func (c *Compaction) Spread(is Issuer, out, t, source Operand) error {
	var a compactArgs
	a.other.host, a.source.host, a.out.host = t.Ptr, source.Ptr, out.Ptr
	a.most.host, a.step.host = source.Shape[0], source.Stride[0]
	return c.launch(is, compactSpread, &a, t.DType, c.Mask.Shape, t.Stride, out.Stride)
}

// Ranks writes, for each element i of the vector Mask, the number of nonzero elements up to and including it, minus one, to out[order[i]].
// out and order are vectors of Int64 of Mask's length.
func (c *Compaction) Ranks(is Issuer, out, order Operand) error {
	var a compactArgs
	a.other.host, a.out.host, a.most.host, a.step.host = order.Ptr, out.Ptr, out.Shape[0], out.Stride[0]
	return c.launch(is, compactRanks, &a, dtype.Int64, c.Mask.Shape, order.Stride)
}

// launch launches a stage. The arrays other than the mask are of type t; strides are those of the arrays in the mask's order.
func (c *Compaction) launch(is Issuer, stage compactStage, a *compactArgs, t dtype.DType, shape []int, strides ...[]int) error {
	sp := space{count: 1 + len(strides)}
	for d := len(shape) - 1; d >= 0; d-- {
		if !sp.open(sp.nd, shape[d]) {
			return tooManyDims(compactNames[stage])
		}
		sp.stride[0][sp.nd-1] = c.Mask.Stride[d]
		for i, st := range strides {
			sp.stride[i+1][sp.nd-1] = st[d]
		}
	}
	if stage != compactPlaces || sp.nd == 0 { // which needs the original dimensions
		sp.merge()
	}
	n := sp.numel()
	if n == 0 || stage == compactPlaces && a.rank.host == 0 {
		return nil
	}
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyCompact, Op: uint16(stage), Compute: dtype.Int64, Ins: 1, Index: 32,
		Compact: compactSpec{uint8(dimsClass(sp.nd))}}
	if sp.reach() > min(is.Index32(), lane32) {
		l.Spec.Index = 64
	}
	l.Spec.DTypes[0] = c.Mask.DType
	if t != dtype.Invalid {
		l.Spec.DTypes[1], l.Spec.Ins = t, 2
	}
	a.mask.host, a.starts.host, a.n.host, a.dims.host = c.Mask.Ptr, c.Starts.Ptr, n, &sp
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(ceilDiv(n, compactPart)), 1, 1}, [3]uint32{compactThreads, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyCompact, func(s *Spec) *kernel.Kernel {
	stage := compactStage(s.Op)
	return kernel.Build(s.name(compactNames[stage]), func(k *kernel.Builder) {
		k.FixedThreads(compactThreads)
		c := &compactKernel{k: k, s: s, groups: k.Shared("groups", dtype.Int64, compactWarps), lane: k.LaneID()}
		c.layout(declaring(k, s))
		c.group = k.ThreadIdx(kernel.X).Shr(k.I32(5))
		switch stage {
		case compactScan:
			c.scan()
		case compactSums, compactRunning:
			c.sums(stage)
		case compactRepeat:
			c.repeat()
		default:
			c.elements(stage)
		}
	})
})

// compactKernel builds these kernels.
type compactKernel struct {
	compactArgs
	k *kernel.Builder
	s *Spec
	// groups has a number for each warp; group is the thread's warp, lane the thread's index in it.
	groups      kernel.Array
	group, lane kernel.Value
}

// before returns the sum of the values sum of the preceding warps, and of all warps. Each warp's value is in its last thread.
func (c *compactKernel) before(sum kernel.Value) (before, all kernel.Value) {
	k := c.k
	k.If(c.lane.Eq(k.I32(31)), func() { c.groups.Store(c.group, sum) })
	k.Barrier()
	before, all = k.I64(0), k.I64(0)
	for g := range compactWarps {
		v := c.groups.Get(g)
		before = before.Add(k.I32(g).Lt(c.group).Select(v, k.I64(0)))
		all = all.Add(v)
	}
	return before, all
}

// scan goes over the counts, one part of them at a time; each thread takes adjacent ones.
func (c *compactKernel) scan() {
	k := c.k
	carry := k.Var(k.I64(0))
	own := k.ThreadIdx(kernel.X).Mul(k.I32(compactItems)).Convert(dtype.Int64)
	k.For(k.I64(0), c.n.Value, k.I64(compactPart), func(b kernel.Value) {
		var counts [compactItems]kernel.Value
		sum := k.I64(0)
		at := func(j int) kernel.Value { return b.Add(own).Add(k.I64(int64(j))) }
		for j := range counts {
			v := k.Var(k.I64(0))
			k.If(at(j).Lt(c.n.Value), func() { v.Set(c.starts.Load(at(j))) })
			counts[j] = v.Get()
		}
		for _, v := range counts {
			sum = sum.Add(v)
		}
		upTo := sumUpTo(k, sum)
		before, all := c.before(upTo)
		k.Barrier() // of the next part's warps
		next := carry.Get().Add(before).Add(upTo).Sub(sum)
		for j, v := range counts {
			k.If(at(j).Lt(c.n.Value), func() { c.starts.Store(at(j), next) })
			next = next.Add(v)
		}
		carry.Set(carry.Get().Add(all))
	})
	k.If(k.ThreadIdx(kernel.X).Eq(k.I32(0)), func() { c.starts.Store(c.n.Value, carry.Get()) })
}

// first returns the thread's first element in a block's part; its others are 32 apart.
func (c *compactKernel) first(block kernel.Value) kernel.Value {
	k := c.k
	return block.MulWide(k.I32(compactPart)).Add(c.group.Mul(k.I32(32 * compactItems)).Add(c.lane).Convert(dtype.Int64))
}

// sums adds up the numbers of a block's part.
func (c *compactKernel) sums(stage compactStage) {
	k := c.k
	block := k.BlockIdx(kernel.X)
	first := c.first(block)
	var items, upTo [compactItems]kernel.Value
	for j := range items {
		item := first.Add(k.I64(int64(32 * j)))
		v := k.Var(k.I64(0))
		at := c.dims.locate(item.Convert(indexType(int(c.s.Index))))
		k.If(item.Lt(c.n.Value), func() { v.Set(c.mask.load(at[0], 1)[0].Re.Convert(dtype.Int64)) })
		items[j], upTo[j] = item, v.Get()
	}
	sum := k.I64(0)
	for j, v := range upTo {
		k.Assert(v.Ge(k.I64(0)), "the number %v is negative", v)
		upTo[j] = sumUpTo(k, v).Add(sum)
		sum = upTo[j].Shuffle(k.I32(31))
	}
	before, all := c.before(sum)
	if stage == compactSums {
		k.If(k.ThreadIdx(kernel.X).Eq(k.I32(0)), func() { c.starts.Store(block, all) })
		return
	}
	base := c.starts.Load(block).Add(before)
	for j, item := range items {
		k.If(item.Lt(c.n.Value), func() { c.out.store(item.Mul(c.step.Value), Num{Re: base.Add(upTo[j])}) })
	}
}

// repeat finds the first running sum that is greater than the thread's number.
func (c *compactKernel) repeat() {
	k := c.k
	i := k.BlockIdx(kernel.X).MulWide(k.I32(compactThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
	last := c.n.Sub(k.I64(1))
	sum := c.starts.Load(last)
	k.Assert(sum.Eq(c.most.Value), "the repeats sum to %v, and the output size is %v", sum, c.most.Value)
	k.If(i.Lt(c.most.Value.Min(sum)), func() {
		low, high := k.Var(k.I64(0)), k.Var(last)
		k.Loop(func() {
			k.If(low.Get().Ge(high.Get()), func() { k.Break() })
			middle := low.Get().Add(high.Get()).Shr(k.I32(1))
			upTo := c.starts.Load(middle).Le(i)
			low.Set(upTo.Select(middle.Add(k.I64(1)), low.Get()))
			high.Set(upTo.Select(high.Get(), middle))
		})
		c.out.store(i, Num{Re: low.Get()})
	})
}

// elements goes through a block's part. In each step a warp takes adjacent elements, and the warps' elements follow one another.
func (c *compactKernel) elements(stage compactStage) {
	k := c.k
	block := k.BlockIdx(kernel.X)
	first := c.first(block)
	below := k.U32(1).Shl(c.lane).Sub(k.U32(1))
	var items [compactItems]struct{ item, is, rank kernel.Value }
	var at [compactItems][]kernel.Value
	for j := range items {
		item := first.Add(k.I64(int64(32 * j)))
		is := k.Var(k.Bool(false))
		at[j] = c.dims.locate(item.Convert(indexType(int(c.s.Index))))
		k.If(item.Lt(c.n.Value), func() { is.Set(c.mask.load(at[j][0], 1)[0].NonZero()) })
		items[j].item, items[j].is = item, is.Get()
	}
	sum := k.I32(0)
	for j := range items {
		votes := items[j].is.Ballot()
		items[j].rank = sum.Add(votes.And(below).Popc())
		sum = sum.Add(votes.Popc())
	}
	before, all := c.before(sum.Convert(dtype.Int64))
	if stage == compactCount {
		k.If(k.ThreadIdx(kernel.X).Eq(k.I32(0)), func() { c.starts.Store(block, all) })
		return
	}
	base := c.starts.Load(block).Add(before)
	for j, it := range items {
		rank := base.Add(it.rank.Convert(dtype.Int64))
		switch stage {
		case compactPlaces:
			k.If(it.is.And(rank.Lt(c.most.Value)), func() { c.place(it.item, rank) })
		case compactTake:
			k.If(it.is.And(rank.Lt(c.most.Value)), func() { c.out.store(rank.Mul(c.step.Value), c.other.load(at[j][1], 1)...) })
		case compactSpread:
			inside := rank.Lt(c.most.Value)
			k.Assert(it.is.Not().Or(inside), "the mask has more true elements than the %v that the source has", c.most.Value)
			k.If(it.is.And(inside), func() { c.out.store(at[j][2], c.source.load(rank.Mul(c.step.Value), 1)...) })
			k.If(it.item.Lt(c.n.Value).And(it.is.Not()), func() { c.out.store(at[j][2], c.other.load(at[j][1], 1)...) })
		case compactRanks:
			upTo := rank.Add(it.is.Select(k.I64(0), k.I64(-1)))
			k.If(it.item.Lt(c.n.Value), func() {
				to := checkedIndex(c.other.load(at[j][1], 1)[0].Re, c.most.Value, false)
				c.out.store(to.Mul(c.step.Value), Num{Re: upTo})
			})
		}
	}
}

// place writes the index of an item, last number first.
func (c *compactKernel) place(item, rank kernel.Value) {
	k, row := c.k, rank.Mul(c.step.Value)
	left := k.Var(item.Convert(indexType(int(c.s.Index))))
	last := c.rank.Sub(k.I32(1))
	if c.dims.dims > 1 {
		k.For(k.I32(0), last, k.I32(1), func(d kernel.Value) {
			q, r := c.dims.divmod(left.Get(), d)
			to := last.Sub(d).Convert(dtype.Int64).Mul(c.across.Value)
			c.out.store(row.Add(to), Num{Re: r.Convert(dtype.Int64)})
			left.Set(q)
		})
	}
	c.out.store(row, Num{Re: left.Get().Convert(dtype.Int64)})
}
