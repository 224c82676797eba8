package kernels

import (
	"math"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Multinomial draws categories: P [Rows, N] has a row of probabilities each, in any scale, and Out [Rows, Samples], of Int64, gets the categories drawn from
// it; both lie without gaps.
type Multinomial struct {
	Rows, N, Samples int
	P, Out           Operand
}

// The stages of FamilyMultinomial (Spec.Op).
const (
	// multinomialSums adds up the parts of each row.
	multinomialSums uint16 = iota
	// multinomialRunning checks the probabilities and writes the sum of each with those before it in its row.
	multinomialRunning
	// multinomialDraw looks for where a uniform number falls among the running sums.
	multinomialDraw
	// multinomialKeys writes sort keys: the row, and under it the rank of a quotient, greatest first.
	multinomialKeys
)

var multinomialNames = []string{"multinomial_sums", "multinomial_running", "multinomial_draw", "multinomial_keys"}

const (
	multinomialThreads = 256
	// multinomialItems is how many elements of a row a thread takes, multinomialPart a block.
	multinomialItems = 8
	multinomialPart  = multinomialThreads * multinomialItems
	// multinomialBlock and multinomialGrid are the launch from which PyTorch's draws take their place in the generator's sequence: so many samples of a row a
	// block, and so many rows at once.
	multinomialBlock = 128
	multinomialGrid  = 1<<16 - 1
)

// Advance returns by how much Draw moves the generator's offset on.
func (m *Multinomial) Advance() uint64 {
	return uint64(ceilDiv(m.Rows, min(m.Rows, multinomialGrid)) * randomStep)
}

// Draw draws with replacement: the first category whose running sum is no less than a uniform number in (0, 1] of the row's sum. A probability that is negative,
// infinite or NaN, or a row of zeros, stops the kernel; categories of probability 0 are never drawn. Sums are taken in float64 in an order that depends
// on N alone. Uniform numbers are those of PyTorch on the same rows and samples.
func (m *Multinomial) Draw(is Issuer, ph Philox) error {
	parts := ceilDiv(m.N, multinomialPart)
	running, err := is.Workspace(8 * m.Rows * m.N)
	if err != nil {
		return err
	}
	sums := uint64(0)
	if parts > 1 {
		if sums, err = is.Workspace(8 * m.Rows * parts); err != nil {
			return err
		}
		l := m.launch(is, multinomialSums, m.P)
		l.u64(sums)
		l.i64(m.N)
		l.i32(parts)
		if err := m.issue(is, l, m.Rows*parts); err != nil {
			return err
		}
	}
	l := m.launch(is, multinomialRunning, m.P)
	l.u64(sums)
	l.u64(running)
	l.i64(m.N)
	l.i32(parts)
	if err := m.issue(is, l, m.Rows*parts); err != nil {
		return err
	}
	return m.pick(is, running, ph)
}

// pick draws by the running sums.
func (m *Multinomial) pick(is Issuer, running uint64, ph Philox) error {
	l := m.launch(is, multinomialDraw, m.P)
	if ph.captured() {
		l.Spec.Attr[0] = 1
	}
	l.u64(running)
	l.u64(m.Out.Ptr)
	for _, v := range []int{m.Rows * m.Samples, m.N, m.Samples, min(m.Rows, multinomialGrid), ceilDiv(m.Samples, multinomialBlock) * multinomialBlock} {
		l.i64(v)
	}
	l.philox(&ph)
	return m.issue(is, l, ceilDiv(m.Rows*m.Samples, multinomialThreads))
}

// Greatest sets Out to the places of the greatest elements of each row, greatest first and equal ones in their order: P holds no negative numbers and no NaN,
// of Float32 or Float64. Of the latter, rows of several take the last bits from the comparison.
func (m *Multinomial) Greatest(is Issuer) error {
	whole := 8*m.P.DType.Size() - 1 // of a number without its sign
	rows := bits.Len(uint(m.Rows - 1))
	kept := min(whole, 63-rows)
	s := keySort{count: m.Rows * m.N, bits: kept + rows, index: 64}
	if err := s.prepare(is); err != nil {
		return err
	}
	l := m.launch(is, multinomialKeys, m.P)
	l.u64(s.keys[0])
	l.u64(s.with[0])
	l.i64(s.count)
	l.i64(m.N)
	l.i32(kept)
	l.i32(whole - kept)
	if err := m.issue(is, l, ceilDiv(s.count, multinomialThreads)); err != nil {
		return err
	}
	if err := s.sort(is); err != nil {
		return err
	}
	shape := [2]int{m.Rows, m.Samples}
	from, to := [2]int{m.N, 1}, [2]int{m.Samples, 1}
	ins := [1]Operand{{Ptr: s.with[0], DType: dtype.Int64, Shape: shape[:], Stride: from[:]}}
	outs := [1]Operand{{Ptr: m.Out.Ptr, DType: dtype.Int64, Shape: shape[:], Stride: to[:]}}
	return Pointwise(is, Copy, dtype.Int64, nil, outs[:], ins[:])
}

func (m *Multinomial) launch(is Issuer, stage uint16, p Operand) *Launch {
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyMultinomial, Op: stage, Compute: dtype.Float64, Ins: 1}
	l.Spec.DTypes[0] = p.DType
	l.u64(p.Ptr)
	return l
}

func (m *Multinomial) issue(is Issuer, l *Launch, blocks int) error {
	l.Grid, l.Block = [3]uint32{uint32(blocks), 1, 1}, [3]uint32{multinomialThreads, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyMultinomial, buildMultinomial)

func buildMultinomial(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name(multinomialNames[s.Op]), func(k *kernel.Builder) {
		k.FixedThreads(multinomialThreads)
		p := arrayParam(k, "p", s.DTypes[0])
		switch s.Op {
		case multinomialSums:
			buildMultinomialSums(k, p)
		case multinomialRunning:
			buildMultinomialRunning(k, p)
		case multinomialDraw:
			buildMultinomialDraw(k, p, s.Attr[0] != 0)
		case multinomialKeys:
			buildMultinomialKeys(k, p)
		}
	})
}

// rowPartOf returns, for a block, its row, its part of it, and where the elements of the thread begin; those of a thread lie 32 apart.
func rowPartOf(k *kernel.Builder, n, parts kernel.Value) (row, part, first kernel.Value) {
	block, tid := k.BlockIdx(kernel.X), k.ThreadIdx(kernel.X)
	row = block.Div(parts)
	part = block.Sub(row.Mul(parts))
	own := tid.Shr(k.I32(5)).Mul(k.I32(32 * multinomialItems)).Add(k.LaneID())
	return row, part, part.MulWide(k.I32(multinomialPart)).Add(own.Convert(dtype.Int64))
}

// probability returns the thread's element j, a Float64, or 0 beyond the row.
func probability(k *kernel.Builder, p array, row, at, n kernel.Value) kernel.Value {
	v := k.Var(k.F64(0))
	k.If(at.Lt(n), func() { v.Set(p.load(row.Convert(dtype.Int64).Mul(n).Add(at), 1)[0].Convert(dtype.Float64).Re) })
	return v.Get()
}

// blockSum returns, to thread 0, the sum of v over the block's threads, by halves.
func blockSum(k *kernel.Builder, v kernel.Value) kernel.Value {
	tid, sums := k.ThreadIdx(kernel.X), k.Shared("halves", v.Type(), multinomialThreads)
	sums.Store(tid, v)
	for h := multinomialThreads / 2; h > 0; h /= 2 {
		k.Barrier()
		k.If(tid.Lt(k.I32(h)), func() { sums.Store(tid, sums.Load(tid).Add(sums.Load(tid.Add(k.I32(h))))) })
	}
	k.Barrier()
	return sums.Get(0)
}

func buildMultinomialSums(k *kernel.Builder, p array) {
	sums := k.Buffer("sums", dtype.Float64)
	n, parts := k.Scalar("n", dtype.Int64), k.Scalar("parts", dtype.Int32)
	row, _, first := rowPartOf(k, n, parts)
	own := k.F64(0)
	for j := range multinomialItems {
		own = own.Add(probability(k, p, row, first.Add(k.I64(int64(32*j))), n))
	}
	sum := blockSum(k, own)
	k.If(k.ThreadIdx(kernel.X).Eq(k.I32(0)), func() { sums.Store(k.BlockIdx(kernel.X), sum) })
}

func buildMultinomialRunning(k *kernel.Builder, p array) {
	sums, running := k.BufferRO("sums", dtype.Float64), k.Buffer("running", dtype.Float64)
	n, parts := k.Scalar("n", dtype.Int64), k.Scalar("parts", dtype.Int32)
	row, part, first := rowPartOf(k, n, parts)
	tid, lane := k.ThreadIdx(kernel.X), k.LaneID()
	before := k.Var(k.F64(0))
	k.For(tid, part, k.I32(multinomialThreads), func(i kernel.Value) {
		before.Set(before.Get().Add(sums.Load(row.Mul(parts).Add(i))))
	})
	base := blockSum(k, before.Get())
	// A group of 32 threads goes along its elements; then the groups' sums are added up.
	var own [multinomialItems]kernel.Value
	sum := k.F64(0)
	for j := range own {
		v := probability(k, p, row, first.Add(k.I64(int64(32*j))), n)
		k.Assert(v.Ge(k.F64(0)).And(v.Lt(k.F64(math.Inf(1)))), "probability %v is negative, infinite or NaN", v)
		own[j] = sumUpTo(k, v).Add(sum)
		sum = own[j].Shuffle(k.I32(31))
	}
	groups := k.Shared("groups", dtype.Float64, multinomialThreads/32)
	group := tid.Shr(k.I32(5))
	k.If(lane.Eq(k.I32(0)), func() { groups.Store(group, sum) })
	k.Barrier()
	for g := range multinomialThreads/32 - 1 {
		base = base.Add(k.I32(g).Lt(group).Select(groups.Get(g), k.F64(0)))
	}
	for j, v := range own {
		at, upTo := first.Add(k.I64(int64(32*j))), base.Add(v)
		k.If(at.Lt(n), func() { running.Store(row.Convert(dtype.Int64).Mul(n).Add(at), upTo) })
		k.Assert(at.Ne(n.Sub(k.I64(1))).Or(upTo.Gt(k.F64(0))), "the probabilities of a row are all 0")
	}
}

func buildMultinomialDraw(k *kernel.Builder, p array, captured bool) {
	running, out := k.BufferRO("running", dtype.Float64), k.Buffer("out", dtype.Int64)
	wide := func(name string) kernel.Value { return k.Scalar(name, dtype.Int64) }
	count, n, samples, rows, apart := wide("count"), wide("n"), wide("samples"), wide("rows"), wide("apart")
	i := k.BlockIdx(kernel.X).MulWide(k.I32(multinomialThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
	row := i.Div(samples)
	turn := row.Div(rows)
	state := philoxParams(k, captured, row.Sub(turn.Mul(rows)).Mul(apart).Add(i.Sub(row.Mul(samples))).Convert(dtype.Int32))
	k.If(i.Lt(count), func() {
		w := state.words(state.block.Add(turn.Convert(dtype.Uint64)), state.keys())
		first := row.Mul(n)
		last := first.Add(n).Sub(k.I64(1))
		mark := uniform32(w[0]).Convert(dtype.Float64).Mul(running.Load(last))
		low, high := k.Var(first), k.Var(last) // the category is from low to high
		k.Loop(func() {
			k.If(low.Get().Ge(high.Get()), func() { k.Break() })
			middle := low.Get().Add(high.Get()).Shr(k.I32(1))
			less := running.Load(middle).Lt(mark)
			low.Set(less.Select(middle.Add(k.I64(1)), low.Get()))
			high.Set(less.Select(high.Get(), middle))
		})
		// Where sums are added in another order, that of a category of probability 0 may be the greater by its rounding.
		k.Loop(func() {
			at := low.Get()
			k.If(at.Eq(first).Or(p.load(at, 1)[0].NonZero()), func() { k.Break() })
			low.Set(at.Sub(k.I64(1)))
		})
		out.Store(i, low.Get().Sub(first))
	})
}

func buildMultinomialKeys(k *kernel.Builder, p array) {
	keys, places := k.Buffer("keys", dtype.Int64), k.Buffer("places", dtype.Int64)
	count, n := k.Scalar("count", dtype.Int64), k.Scalar("n", dtype.Int64)
	kept, cut := k.Scalar("kept", dtype.Int32), k.Scalar("cut", dtype.Int32)
	i := k.BlockIdx(kernel.X).MulWide(k.I32(multinomialThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
	k.If(i.Lt(count), func() {
		row := i.Div(n)
		v := p.load(i, 1)[0].Re.Abs() // without the sign of a zero
		whole, most := dtype.Int32, int64(math.MaxInt32)
		if p.t == dtype.Float64 {
			whole, most = dtype.Int64, math.MaxInt64
		}
		rank := k.Int(whole, most).Sub(v.Bitcast(whole)).Convert(dtype.Int64).Shr(cut)
		keys.Store(i, row.Shl(kept).Or(rank))
		places.Store(i, i.Sub(row.Mul(n)))
	})
}
