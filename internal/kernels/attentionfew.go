package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// Attention of few queries, as when a model writes one token after the other: it only has to read the keys and values once, with all of the
// device. The queries that share keys are rows of a block, each lane has eight elements of the vectors of one key at a time, and the keys
// are divided among lanes, warps and, if there are many, blocks (Dao et al., "Flash-Decoding for long-context inference", 2023). Each part
// has its own greatest score; at the end the parts are added up in their order.

const (
	// Fewer than fewQueries queries of a head are few if at most fewRows share keys, or if there are fewer than manyHeads heads: then tiles
	// would leave most of a GPU idle.
	fewQueries, fewRows, manyHeads = 16, 8, 132
	// fewKeysPart is the minimum number of keys of a part, and fewParts the maximum number of parts of a head.
	fewKeysPart, fewParts = 64, 64

	fewThreads, fewWarps = 256, 8
	// fewWidth is the number of elements of a vector that a lane has.
	fewWidth = 8
	// joinLoads is the number of parts that a thread of attentionJoin loads together.
	joinLoads = 4
)

// joinThreads is the number of threads per block of attentionJoin, which have an element of a result each.
func (s *attentionSpec) joinThreads() int { return max(mostColumns, 8*s.lanes()) }

// isFew reports whether the queries are few.
func (a *attention) isFew() bool {
	return !a.opt.Causal && a.opt.Kept.Ptr == 0 && a.queries < fewQueries &&
		(a.shared*a.queries <= fewRows || a.batch*a.heads < manyHeads)
}

// fewSpec returns what the kernel is specialised on, and into how many parts of how many keys the keys of a head are divided. The numbers
// do not depend on the device, so that the results do not either.
func (a *attention) fewSpec() (s attentionSpec, parts, part int) {
	s = attentionSpec{Groups: uint8(a.width / 8), Rows: 1, Loads: 8}
	most := fewRows
	if a.width > mostColumns { // what warps leave has to fit into shared memory
		most /= 2
	}
	for int(s.Rows) < min(a.shared*a.queries, most) {
		s.Rows *= 2
	}
	if s.Rows == fewRows {
		s.Loads = 4
	}
	if m := &a.mask; m.Ptr != 0 {
		if m.Stride[1] == 0 && (m.Stride[2] == 0 || a.queries == 1) {
			s.Padding = maskSame
		}
	}
	step, together := s.fewStep(), 2 // the blocks that have room on a multiprocessor
	if s.Rows > 2 {
		together = 1
	}
	parts = max(1, min(ceilDiv(a.keys, max(step, fewKeysPart)), together*manyHeads/a.fewBlocks(&s), fewParts))
	part = ceilDiv(ceilDiv(a.keys, parts), step) * step
	parts = ceilDiv(a.keys, part)
	s.Divided = parts > 1
	return s, parts, part
}

// fewBlocks is the number of blocks for each part of the keys.
func (a *attention) fewBlocks(s *attentionSpec) int {
	return a.batch * a.heads / a.shared * ceilDiv(a.shared*a.queries, int(s.Rows))
}

// fewStep is the number of keys that a block loads together.
func (s *attentionSpec) fewStep() int { return fewThreads / s.lanes() * int(s.Loads) }

// issueFew launches attention of few queries.
func (a *attention) issueFew(is Issuer) error {
	s, all, part := a.fewSpec()
	rows := a.batch * a.heads * a.queries
	if all > 1 {
		var err error
		if a.delta, err = is.Workspace(4 * rows * all * (a.width + 2)); err != nil {
			return err
		}
		a.sums = a.delta + uint64(4*rows*all*a.width)
	}
	launch := func(stage attentionStage, spec attentionSpec, blocks, parts, threads int) error {
		l := is.NewLaunch()
		var args attentionArgs
		a.fill(&l.Spec, stage, spec, &args)
		args.rows.host, args.parts.host, args.part.host = rows, all, part
		args.layout(packing(l))
		l.Grid, l.Block = [3]uint32{uint32(blocks), uint32(parts), 1}, [3]uint32{uint32(threads), 1, 1}
		return is.Issue(l)
	}
	if err := launch(attentionFew, s, a.fewBlocks(&s), all, fewThreads); err != nil || all == 1 {
		return err
	}
	return launch(attentionJoin, attentionSpec{Groups: s.Groups}, ceilDiv(rows, s.joinThreads()/a.width), 1, s.joinThreads())
}

// partSums are the sums over some keys for a query: the greatest score, in base 2, and relative to it the sum of weights and elements of
// the sum of weighted values.
type partSums struct {
	top, total kernel.Var
	out        []kernel.Var
}

func newPartSums(k *kernel.Builder, width int) partSums {
	zero := k.Const(dtype.Float32, 0)
	p := partSums{top: k.Var(zero.Like(gomath.Inf(-1))), total: k.Var(zero)}
	for range width {
		p.out = append(p.out, k.Var(zero))
	}
	return p
}

// relative returns the greatest score that others are relative to: 0 in place of minus infinity, so that differences are infinite and not
// NaN.
func relative(top kernel.Value) kernel.Value {
	return top.Eq(top.Like(gomath.Inf(-1))).Select(top.Like(0), top)
}

// add adds other sums.
func (p *partSums) add(top, total kernel.Value, out []kernel.Value) {
	next := p.top.Get().Max(top)
	base := relative(next)
	own, other := p.top.Get().Sub(base).Exp2(), top.Sub(base).Exp2()
	p.top.Set(next)
	p.total.Set(other.FMA(total, p.total.Get().Mul(own)))
	for e, v := range out {
		p.out[e].Set(other.FMA(v, p.out[e].Get().Mul(own)))
	}
}

// few computes a part of the keys of a head for some rows, which are its queries: those of the first head of queries, then the next one's.
func (a *attentionKernel) few() {
	k, s, f := a.k, &a.s.Attention, dtype.Float32
	k.FixedThreads(fewThreads)
	rows, width, lanes := int(s.Rows), s.width(), s.lanes()
	tid, id := k.ThreadIdx(kernel.X), k.BlockIdx(kernel.X)
	warp, lane := tid.Div(k.I32(32)), tid.Rem(k.I32(32))
	group, own := lane.Div(k.I32(lanes)), lane.Rem(k.I32(lanes)).Mul(k.I32(fewWidth))
	element := own
	var has kernel.Value // whether the lane has a part of the vector, absent if all do
	if lanes*fewWidth > width {
		element = own.Min(k.I32(width - fewWidth))
		has = own.Eq(element)
	}
	all := a.shared.Mul(a.queries.Value)
	tiles, heads := a.tiles(all, rows), a.heads.Div(a.shared.Value)
	matrix := id.Div(tiles)
	a.first = id.Sub(matrix.Mul(tiles)).Mul(k.I32(rows))
	a.batch = matrix.Div(heads)
	kvHead := matrix.Sub(a.batch.Mul(heads))
	k.Wait()
	scale := a.scores()
	var q [][]kernel.Value
	var masks []kernel.Buffer
	var sums []partSums
	for i := range rows {
		head, query := a.queryOf(kvHead, a.first.Add(k.I32(i)).Min(all.Sub(k.I32(1))))
		at := query.Convert(dtype.Int64).Mul(a.stride[atQ].Get(2)).Add(element.Convert(dtype.Int64))
		of := wide(a.matrix(atQ, head).LoadVec(at, fewWidth))
		for e, v := range of {
			of[e] = v.Mul(scale)
		}
		q, sums = append(q, of), append(sums, newPartSums(k, fewWidth))
		if a.s.masked() && (i == 0 || s.Padding == 0) {
			masks = append(masks, a.maskRow(head, query))
		}
	}
	keys, values := a.matrix(atK, kvHead), a.matrix(atV, kvHead)
	begin := k.BlockIdx(kernel.Y).Mul(a.part.Value)
	end := begin.Add(a.part.Value).Min(a.keys.Value)
	step := s.fewStep()
	some := func(first kernel.Value, checked bool) {
		var of fewKeys
		for u := range int(s.Loads) {
			key := first.Add(k.I32(u * fewWarps * (32 / lanes))).Add(warp.Mul(k.I32(32 / lanes))).Add(group)
			var inside kernel.Value
			if checked {
				inside = key.Lt(end)
				key = key.Min(end.Sub(k.I32(1)))
			}
			at := func(i int) kernel.Value {
				return key.Convert(dtype.Int64).Mul(a.stride[i].Get(2)).Add(element.Convert(dtype.Int64))
			}
			of.load(keys.LoadVec(at(atK), fewWidth), values.LoadVec(at(atV), fewWidth), inside, masks, key)
		}
		for i := range sums {
			a.weighKeys(&of, q[i], min(i, len(masks)-1), lanes, has, &sums[i])
		}
	}
	whole := begin.Add(end.Sub(begin).Div(k.I32(step)).Mul(k.I32(step)))
	k.For(begin, whole, k.I32(step), func(j kernel.Value) { some(j, false) })
	k.If(whole.Lt(end), func() { some(whole, true) })
	// The parts of a block: those of lanes through registers, those of warps through shared memory.
	tops, totals := k.Shared("tops", f, fewWarps*rows), k.Shared("totals", f, fewWarps*rows)
	outs := k.Shared("outs", f, fewWarps*rows*width)
	for i := range sums {
		p := &sums[i]
		for d := lanes; d < 32; d *= 2 {
			var out []kernel.Value
			for e := range p.out {
				out = append(out, p.out[e].Get().ShuffleXor(d))
			}
			p.add(p.top.Get().ShuffleXor(d), p.total.Get().ShuffleXor(d), out)
		}
		at := warp.Mul(k.I32(rows)).Add(k.I32(i))
		holds := lane.Lt(k.I32(lanes))
		if has.Builder() != nil {
			holds = holds.And(has)
		}
		k.If(holds, func() {
			for e := range p.out {
				outs.Store(at.Mul(k.I32(width)).Add(element).Add(k.I32(e)), p.out[e].Get())
			}
		})
		k.If(lane.Eq(k.I32(0)), func() {
			tops.Store(at, p.top.Get())
			totals.Store(at, p.total.Get())
		})
	}
	k.Barrier()
	k.For(tid, k.I32(rows*width), k.I32(fewThreads), func(n kernel.Value) {
		i := n.Div(k.I32(width))
		e := n.Sub(i.Mul(k.I32(width)))
		p := newPartSums(k, 1)
		for w := range fewWarps {
			at := i.Add(k.I32(w * rows))
			p.add(tops.Load(at), totals.Load(at), []kernel.Value{outs.Load(at.Mul(k.I32(width)).Add(e))})
		}
		row := a.first.Add(i)
		k.If(row.Lt(all), func() {
			head, query := a.queryOf(kvHead, row)
			if !s.Divided {
				a.finish(&p, head, query, e)
				return
			}
			at := a.lineOf(head, query).Mul(a.parts.Convert(dtype.Int64)).Add(k.BlockIdx(kernel.Y).Convert(dtype.Int64))
			a.delta.Store(at.Mul(k.I64(int64(width))).Add(e.Convert(dtype.Int64)), p.out[0].Get())
			k.If(e.Eq(k.I32(0)), func() {
				at := at.Mul(k.I64(2))
				a.sums.Store(at, p.top.Get())
				a.sums.Store(at.Add(k.I64(1)), p.total.Get())
			})
		})
	})
}

// queryOf returns the head and the query of a row of the queries that share a head of keys.
func (a *attentionKernel) queryOf(kvHead, row kernel.Value) (head, query kernel.Value) {
	of := row.Div(a.queries.Value)
	return kvHead.Mul(a.shared.Value).Add(of), row.Sub(of.Mul(a.queries.Value))
}

// lineOf returns the number of a query among all of them (Int64).
func (a *attentionKernel) lineOf(head, query kernel.Value) kernel.Value {
	return a.batch.Mul(a.heads.Value).Add(head).MulWide(a.queries.Value).Add(query.Convert(dtype.Int64))
}

// maskRow returns the elements of the mask for a query.
func (a *attentionKernel) maskRow(head, query kernel.Value) kernel.Buffer {
	at := a.batch.Convert(dtype.Int64).Mul(a.maskStride.Get(0))
	for d, v := range []kernel.Value{head, query} {
		at = at.Add(v.Convert(dtype.Int64).Mul(a.maskStride.Get(1 + d)))
	}
	return a.mask.Offset(at)
}

// fewKeys are keys that a lane loaded together: eight elements of each key and of its value, elements of the rows of the mask, and whether
// there is such a key, which is absent if there is.
type fewKeys struct {
	keys, values, masks [][]kernel.Value
	inside              []kernel.Value
}

// load adds a key. Values of keys that are not there become 0, since 0 times an infinity would be NaN.
func (of *fewKeys) load(key, value []kernel.Value, inside kernel.Value, masks []kernel.Buffer, at kernel.Value) {
	value = wide(value)
	if inside.Builder() != nil {
		for e, v := range value {
			value[e] = inside.Select(v, v.Like(0))
		}
	}
	var mask []kernel.Value
	for _, m := range masks {
		mask = append(mask, m.Load(at.Convert(dtype.Int64)))
	}
	of.keys, of.values, of.masks = append(of.keys, wide(key)), append(of.values, value), append(of.masks, mask)
	of.inside = append(of.inside, inside)
}

// weighKeys adds keys to the sums of a query q, whose row of the mask, if there is one, is the given one. The lanes that share a key all
// have its score; has says whether a lane has a part of the key.
func (a *attentionKernel) weighKeys(of *fewKeys, q []kernel.Value, row, lanes int, has kernel.Value, p *partSums) {
	next := p.top.Get()
	var scores []kernel.Value
	for u, key := range of.keys {
		score := q[0].Mul(key[0])
		for e := 1; e < fewWidth; e++ {
			score = q[e].FMA(key[e], score)
		}
		if has.Builder() != nil {
			score = has.Select(score, score.Like(0))
		}
		for d := lanes / 2; d > 0; d /= 2 {
			score = score.Add(score.ShuffleXor(d))
		}
		least := score.Like(gomath.Inf(-1))
		switch {
		case a.s.added():
			score = a.plus(score, score.Like(1), of.masks[u][row])
		case a.s.masked():
			score = of.masks[u][row].Select(score, least)
		}
		if in := of.inside[u]; in.Builder() != nil {
			score = in.Select(score, least)
		}
		scores, next = append(scores, score), next.Max(score)
	}
	base := relative(next)
	fix := p.top.Get().Sub(base).Exp2()
	p.top.Set(next)
	total := p.total.Get().Mul(fix)
	out := make([]kernel.Value, fewWidth)
	for e := range out {
		out[e] = p.out[e].Get().Mul(fix)
	}
	for u, score := range scores {
		weight := score.Sub(base).Exp2()
		total = total.Add(weight)
		for e := range out {
			out[e] = weight.FMA(of.values[u][e], out[e])
		}
	}
	p.total.Set(total)
	for e := range out {
		p.out[e].Set(out[e])
	}
}

// finish stores element e of the result of a query and, with its first element, the logarithm of its sum. As in forward, a greatest score
// that is infinite or NaN makes the whole row NaN, and a row that sees no key is 0.
func (a *attentionKernel) finish(p *partSums, head, query, e kernel.Value) {
	k, top, total, u := a.k, p.top.Get(), p.total.Get(), a.matrix(atOut, head)
	whole := total.Like(1).Div(total).Add(top.Sub(top))
	lse := math.Log2(k, total).Add(top)
	v := p.out[0].Get().Mul(whole)
	if a.s.masked() {
		v = a.unseen(top).Select(v.Like(0), v)
		lse = a.unseen(top).Select(lse.Like(gomath.Inf(1)), lse)
	}
	u.Store(query.Convert(dtype.Int64).Mul(a.stride[atOut].Get(2)).Add(e.Convert(dtype.Int64)), v.Convert(u.Type()))
	k.If(e.Eq(k.I32(0)), func() { a.lse.Store(a.lineOf(head, query), lse) })
}

// join adds up the parts of the keys.
func (a *attentionKernel) join() {
	k, width, threads := a.k, a.s.Attention.width(), a.s.Attention.joinThreads()
	k.FixedThreads(threads)
	perBlock := threads / width
	own := k.ThreadIdx(kernel.X).Div(k.I32(width))
	n := k.BlockIdx(kernel.X).Mul(k.I32(perBlock)).Add(own)
	e := k.ThreadIdx(kernel.X).Rem(k.I32(width))
	k.Wait()
	k.If(n.Lt(a.rows.Value).And(own.Lt(k.I32(perBlock))), func() {
		line := n.Div(a.queries.Value)
		query := n.Sub(line.Mul(a.queries.Value))
		a.batch = line.Div(a.heads.Value)
		head := line.Sub(a.batch.Mul(a.heads.Value))
		first := n.MulWide(a.parts.Value)
		p := newPartSums(k, 1)
		some := func(j kernel.Value, count int) {
			var all [][3]kernel.Value
			for u := range count {
				at := first.Add(j.Convert(dtype.Int64)).Add(k.I64(int64(u)))
				two := at.Mul(k.I64(2))
				all = append(all, [3]kernel.Value{a.sums.Load(two), a.sums.Load(two.Add(k.I64(1))),
					a.delta.Load(at.Mul(k.I64(int64(width))).Add(e.Convert(dtype.Int64)))})
			}
			for _, v := range all {
				p.add(v[0], v[1], v[2:])
			}
		}
		whole := a.parts.Div(k.I32(joinLoads)).Mul(k.I32(joinLoads))
		k.For(k.I32(0), whole, k.I32(joinLoads), func(j kernel.Value) { some(j, joinLoads) })
		k.For(whole, a.parts.Value, k.I32(1), func(j kernel.Value) { some(j, 1) })
		a.finish(&p, head, query, e)
	})
}
