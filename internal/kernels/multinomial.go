package kernels

import (
	"math"
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Multinomial draws categories. Each row of P [Rows, N] holds probabilities in any scale, and Out [Rows, Samples], of Int64, gets the
// categories drawn from it; both are dense.
type Multinomial struct {
	Rows, N, Samples int
	P, Out           Operand
}

// The stages of FamilyMultinomial (Spec.Op).
const (
	// multinomialSums adds up each part of each row.
	multinomialSums uint16 = iota
	// multinomialRunning checks the probabilities and writes the running sums of each row.
	multinomialRunning
	// multinomialDraw finds the position of a uniform number among the running sums.
	multinomialDraw
	// multinomialKeys writes sort keys: the row and, in the low bits, the rank of a quotient, greatest first.
	multinomialKeys
)

var multinomialNames = []string{"multinomial_sums", "multinomial_running", "multinomial_draw", "multinomial_keys"}

const (
	multinomialThreads = 256
	// multinomialItems is the number of elements of a row per thread, multinomialPart that per block.
	multinomialItems = 8
	multinomialPart  = multinomialThreads * multinomialItems
	// multinomialBlock and multinomialGrid describe the launch that determines the position of PyTorch's draws in the generator's sequence:
	// the number of samples of a row per block, and the number of rows at once.
	multinomialBlock = 128
	multinomialGrid  = 1<<16 - 1
)

// multinomialSpec is what these kernels are specialised on.
type multinomialSpec struct {
	// Captured: the kernel reads the generator's state.
	Captured bool
}

// The arguments of the stages.
type (
	// sumsArgs are those of multinomialSums and multinomialRunning.
	sumsArgs struct {
		p             arrayArg
		sums, running bufferArg
		n, parts      intArg
	}
	drawArgs struct {
		p            arrayArg
		running, out bufferArg
		count, n     intArg
		// rows is the number of rows that PyTorch's launch takes at once, apart the distance between the subsequences of two rows.
		samples, rows, apart intArg
		philox               philoxArg
	}
	// rankArgs are those of multinomialKeys.
	rankArgs struct {
		p            arrayArg
		keys, places bufferArg
		count, n     intArg
		kept, cut    intArg
	}
)

func (a *sumsArgs) layout(p params) {
	p.array(&a.p, "p", p.s.DTypes[0])
	if p.s.Op == multinomialSums {
		p.buffer(&a.sums, "sums", dtype.Float64)
	} else {
		p.bufferRO(&a.sums, "sums", dtype.Float64)
		p.buffer(&a.running, "running", dtype.Float64)
	}
	p.i64(&a.n, "n")
	p.i32(&a.parts, "parts")
}

func (a *drawArgs) layout(p params) {
	p.array(&a.p, "p", p.s.DTypes[0])
	p.bufferRO(&a.running, "running", dtype.Float64)
	p.buffer(&a.out, "out", dtype.Int64)
	p.i64(&a.count, "count")
	p.i64(&a.n, "n")
	p.i64(&a.samples, "samples")
	p.i64(&a.rows, "rows")
	p.i64(&a.apart, "apart")
	p.philox(&a.philox, p.s.Multinomial.Captured)
}

func (a *rankArgs) layout(p params) {
	p.array(&a.p, "p", p.s.DTypes[0])
	p.buffer(&a.keys, "keys", dtype.Int64)
	p.buffer(&a.places, "places", dtype.Int64)
	p.i64(&a.count, "count")
	p.i64(&a.n, "n")
	p.i32(&a.kept, "kept")
	p.i32(&a.cut, "cut")
}

// Advance returns how far Draw advances the generator's offset.
func (m *Multinomial) Advance() uint64 {
	return uint64(ceilDiv(m.Rows, min(m.Rows, multinomialGrid)) * randomStep)
}

// Draw draws with replacement: the first category whose running sum is at least the row's sum times a uniform number in (0, 1]. A
// probability that is negative, infinite or NaN, or a row of zeros, stops the kernel; categories of probability 0 are never drawn. Sums are
// in float64, in an order that depends only on N. Uniform numbers are those of PyTorch for the same rows and samples.
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
		var a sumsArgs
		a.p.host, a.sums.host, a.n.host, a.parts.host = m.P.Ptr, sums, m.N, parts
		a.layout(packing(l))
		if err := m.issue(is, l, m.Rows*parts); err != nil {
			return err
		}
	}
	l := m.launch(is, multinomialRunning, m.P)
	var a sumsArgs
	a.p.host, a.sums.host, a.running.host, a.n.host = m.P.Ptr, sums, running, m.N
	a.parts.host = parts
	a.layout(packing(l))
	if err := m.issue(is, l, m.Rows*parts); err != nil {
		return err
	}
	return m.pick(is, running, ph)
}

// pick draws using the running sums.
func (m *Multinomial) pick(is Issuer, running uint64, ph Philox) error {
	l := m.launch(is, multinomialDraw, m.P)
	l.Spec.Multinomial.Captured = ph.captured()
	var a drawArgs
	a.p.host, a.running.host, a.out.host, a.count.host = m.P.Ptr, running, m.Out.Ptr, m.Rows*m.Samples
	a.n.host, a.samples.host, a.rows.host = m.N, m.Samples, min(m.Rows, multinomialGrid)
	a.apart.host = ceilDiv(m.Samples, multinomialBlock) * multinomialBlock
	a.philox.give(&ph)
	a.layout(packing(l))
	return m.issue(is, l, ceilDiv(m.Rows*m.Samples, multinomialThreads))
}

// Greatest sets Out to the positions of the greatest elements of each row, greatest first and equal ones in order of position. P must be
// Float32 or Float64 without negative numbers and NaN. For Float64 with several rows, the comparison ignores the last bits.
func (m *Multinomial) Greatest(is Issuer) error {
	whole := 8*m.P.DType.Size() - 1 // of a number without its sign
	rows := bits.Len(uint(m.Rows - 1))
	kept := min(whole, 63-rows)
	s := keySort{count: m.Rows * m.N, bits: kept + rows, index: 64}
	if err := s.prepare(is); err != nil {
		return err
	}
	l := m.launch(is, multinomialKeys, m.P)
	var a rankArgs
	a.p.host, a.keys.host, a.places.host, a.count.host = m.P.Ptr, s.keys[0], s.with[0], s.count
	a.n.host, a.kept.host, a.cut.host = m.N, kept, whole-kept
	a.layout(packing(l))
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
		switch s.Op {
		case multinomialSums:
			buildMultinomialSums(k, s)
		case multinomialRunning:
			buildMultinomialRunning(k, s)
		case multinomialDraw:
			buildMultinomialDraw(k, s)
		case multinomialKeys:
			buildMultinomialKeys(k, s)
		}
	})
}

// rowPartOf returns the block's row, its part of the row, and the first element of the thread; the others of the thread are 32 apart.
func rowPartOf(k *kernel.Builder, n, parts kernel.Value) (row, part, first kernel.Value) {
	block, tid := k.BlockIdx(kernel.X), k.ThreadIdx(kernel.X)
	row = block.Div(parts)
	part = block.Sub(row.Mul(parts))
	own := tid.Shr(k.I32(5)).Mul(k.I32(32 * multinomialItems)).Add(k.LaneID())
	return row, part, part.MulWide(k.I32(multinomialPart)).Add(own.Convert(dtype.Int64))
}

// probability returns the thread's element at position at, as a Float64, or 0 beyond the row.
func probability(k *kernel.Builder, p array, row, at, n kernel.Value) kernel.Value {
	v := k.Var(k.F64(0))
	k.If(at.Lt(n), func() { v.Set(p.load(row.Convert(dtype.Int64).Mul(n).Add(at), 1)[0].Convert(dtype.Float64).Re) })
	return v.Get()
}

// blockSum returns the sum of v over the block's threads, in thread 0, as a halving tree.
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

func buildMultinomialSums(k *kernel.Builder, s *Spec) {
	var a sumsArgs
	a.layout(declaring(k, s))
	row, _, first := rowPartOf(k, a.n.Value, a.parts.Value)
	own := k.F64(0)
	for j := range multinomialItems {
		own = own.Add(probability(k, a.p.array, row, first.Add(k.I64(int64(32*j))), a.n.Value))
	}
	sum := blockSum(k, own)
	k.If(k.ThreadIdx(kernel.X).Eq(k.I32(0)), func() { a.sums.Store(k.BlockIdx(kernel.X), sum) })
}

func buildMultinomialRunning(k *kernel.Builder, s *Spec) {
	var a sumsArgs
	a.layout(declaring(k, s))
	n, parts := a.n.Value, a.parts.Value
	row, part, first := rowPartOf(k, n, parts)
	tid, lane := k.ThreadIdx(kernel.X), k.LaneID()
	before := k.Var(k.F64(0))
	k.For(tid, part, k.I32(multinomialThreads), func(i kernel.Value) {
		before.Set(before.Get().Add(a.sums.Load(row.Mul(parts).Add(i))))
	})
	base := blockSum(k, before.Get())
	// Each warp goes over its elements; then the warps' sums are added up.
	var own [multinomialItems]kernel.Value
	sum := k.F64(0)
	for j := range own {
		v := probability(k, a.p.array, row, first.Add(k.I64(int64(32*j))), n)
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
		k.If(at.Lt(n), func() { a.running.Store(row.Convert(dtype.Int64).Mul(n).Add(at), upTo) })
		k.Assert(at.Ne(n.Sub(k.I64(1))).Or(upTo.Gt(k.F64(0))), "the probabilities of a row are all 0")
	}
}

func buildMultinomialDraw(k *kernel.Builder, s *Spec) {
	var a drawArgs
	a.layout(declaring(k, s))
	n, samples, rows := a.n.Value, a.samples.Value, a.rows.Value
	i := k.BlockIdx(kernel.X).MulWide(k.I32(multinomialThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
	row := i.Div(samples)
	turn := row.Div(rows)
	state := a.philox.state(s.Multinomial.Captured, row.Sub(turn.Mul(rows)).Mul(a.apart.Value).Add(i.Sub(row.Mul(samples))).
		Convert(dtype.Int32))
	k.If(i.Lt(a.count.Value), func() {
		w := state.words(state.block.Add(turn.Convert(dtype.Uint64)), state.keys())
		first := row.Mul(n)
		last := first.Add(n).Sub(k.I64(1))
		mark := uniform32(w[0]).Convert(dtype.Float64).Mul(a.running.Load(last))
		low, high := k.Var(first), k.Var(last) // the category is between low and high
		k.Loop(func() {
			k.If(low.Get().Ge(high.Get()), func() { k.Break() })
			middle := low.Get().Add(high.Get()).Shr(k.I32(1))
			less := a.running.Load(middle).Lt(mark)
			low.Set(less.Select(middle.Add(k.I64(1)), low.Get()))
			high.Set(less.Select(high.Get(), middle))
		})
		// Where sums are added in another order, rounding may make that of a category of probability 0 greater.
		k.Loop(func() {
			at := low.Get()
			k.If(at.Eq(first).Or(a.p.load(at, 1)[0].NonZero()), func() { k.Break() })
			low.Set(at.Sub(k.I64(1)))
		})
		a.out.Store(i, low.Get().Sub(first))
	})
}

func buildMultinomialKeys(k *kernel.Builder, s *Spec) {
	var a rankArgs
	a.layout(declaring(k, s))
	n := a.n.Value
	i := k.BlockIdx(kernel.X).MulWide(k.I32(multinomialThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
	k.If(i.Lt(a.count.Value), func() {
		row := i.Div(n)
		v := a.p.load(i, 1)[0].Re.Abs() // without the sign of a zero
		whole, most := dtype.Int32, int64(math.MaxInt32)
		if a.p.t == dtype.Float64 {
			whole, most = dtype.Int64, math.MaxInt64
		}
		rank := k.Int(whole, most).Sub(v.Bitcast(whole)).Convert(dtype.Int64).Shr(a.cut.Value)
		a.keys.Store(i, row.Shl(a.kept.Value).Or(rank))
		a.places.Store(i, i.Sub(row.Mul(n)))
	})
}
