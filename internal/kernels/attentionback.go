package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The backward pass of attention.

// rowsOfHead returns the index of a head's first query in delta and sums.
func (a *attentionKernel) rowsOfHead(head kernel.Value) kernel.Value {
	return a.batch.Mul(a.heads.Value).Add(head).MulWide(a.padded.Value)
}

// rowProducts computes the negated dot products of results and gradients; each thread takes 8 elements of a row. Of the rows that only
// fill up a head the logarithms are 0, as the loads of the other stages give beyond them. The queries and gradients of such rows are loaded
// as zeros, so they contribute nothing.
func (a *attentionKernel) rowProducts() {
	k := a.k
	k.FixedThreads(deltaThreads)
	lanes, most := a.s.Attention.lanes(), k.I32(int(a.s.Attention.Groups)-1)
	lane := k.ThreadIdx(kernel.X).Rem(k.I32(lanes))
	at := k.BlockIdx(kernel.X).Mul(k.I32(deltaThreads / lanes)).Add(k.ThreadIdx(kernel.X).Div(k.I32(lanes)))
	row := at.Min(a.rows.Sub(k.I32(1))) // all lanes must take part
	matrix := row.Div(a.padded.Value)
	a.batch = matrix.Div(a.heads.Value)
	a.head = matrix.Sub(a.batch.Mul(a.heads.Value))
	query := row.Sub(matrix.Mul(a.padded.Value))
	inside := query.Lt(a.queries.Value)
	r := query.Min(a.queries.Sub(k.I32(1))).Convert(dtype.Int64)
	part := func(i int) []kernel.Value {
		at := lane.Min(most).Mul(k.I32(8)).Convert(dtype.Int64)
		return a.matrix(i, a.head).LoadVec(r.Mul(a.stride[i].Get(2)).Add(at), 8)
	}
	sum := k.Const(dtype.Float32, 0)
	x, y := part(atOut), part(atG)
	for j := range x {
		sum = x[j].Convert(dtype.Float32).FMA(y[j].Convert(dtype.Float32), sum)
	}
	if lanes > int(a.s.Attention.Groups) {
		sum = lane.Le(most).Select(sum, sum.Like(0))
	}
	for d := lanes / 2; d > 0; d /= 2 {
		sum = sum.Add(sum.ShuffleXor(d))
	}
	k.If(lane.Eq(k.I32(0)).And(at.Lt(a.rows.Value)), func() {
		i := row.Convert(dtype.Int64)
		a.delta.Store(i, sum.Neg())
		lse := a.lse.Load(matrix.MulWide(a.queries.Value).Add(r))
		a.sums.Store(i, inside.Select(lse, lse.Like(0)))
	})
}

func (a *attentionKernel) gradQueries() {
	k := a.k
	rows, step := a.begin(a.queries.Value, a.heads.Value)
	kvHead, scale := a.head.Div(a.shared.Value), a.scores()
	t, f := a.s.Compute, dtype.Float32
	factor := a.factor(scale)
	q, g, key, v := a.vectors("q", t, rows), a.vectors("g", t, rows), a.vectors("k", t, step), a.vectors("v", t, step)
	score, by := k.Tile("score", f, rows, step), k.Tile("by", f, rows, step)
	weight, out := k.Tile("weight", t, rows, step), a.vectors("out", f, rows)
	a.rowsOf(q, atQ, a.matrix(atQ, a.head), a.first, a.queries.Value)
	a.rowsOf(g, atG, a.matrix(atG, a.head), a.first, a.queries.Value)
	out.zero()
	lse, delta := a.rowTiles(rows)
	kept := a.keptTiles(rows, step)
	k.Pipelined(int(a.s.Attention.Stages), a.keysFrom(step), a.keysSeen(), k.I32(step), func(j kernel.Value) {
		kept.load(j)
		a.walk(key, 0, atK, kvHead, j, a.keys.Value)
		a.walk(v, 1, atV, kvHead, j, a.keys.Value)
		score.Zero()
		q.dots(score, key)
		by.Zero()
		g.dots(by, v)
		a.hide(score, a.first, j, scale, rows, step)
		kept.changeScores(score, by, lse, delta, factor)
		weight.Round(score)
		out.add(weight, key)
	})
	a.store(out, 0, atDQ, a.head, a.queries.Value, a.scale.Convert(f))
}

// rowTiles returns columns with the logarithms of the sums of the block's queries, and with delta.
func (a *attentionKernel) rowTiles(rows int) (lse, delta kernel.Tile) {
	k, at := a.k, a.rowsOfHead(a.head)
	lse, delta = k.Tile("lse", dtype.Float32, rows, 1), k.Tile("delta", dtype.Float32, rows, 1)
	for _, x := range []struct {
		t    kernel.Tile
		from kernel.Buffer
	}{{lse, a.sums.Buffer}, {delta, a.delta.Buffer}} {
		x.t.Zero()
		x.t.Map(func(row, _, _ kernel.Value, _ []kernel.Value) kernel.Value {
			return x.from.Load(at.Add(a.first.Add(row).Min(a.queries.Sub(k.I32(1))).Convert(dtype.Int64)))
		})
	}
	return lse, delta
}

// changeScores turns hidden scores, times a factor, into their gradients: the weights times by, the gradients of the weights, plus delta.
func (t *keptTiles) changeScores(score, by, lse, delta kernel.Tile, factor kernel.Value) {
	score.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.FMA(factor, o[0].Neg()).Exp2() }, lse)
	if t == nil {
		score.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.Mul(o[0].Add(o[1])) }, by, delta)
		return
	}
	t.change(by, delta)
	score.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.Mul(o[0]) }, by)
}

// gradMask computes the gradients of a tile of scores, which are those of what a mask adds to them. Scores that a mask hides have none.
func (a *attentionKernel) gradMask() {
	k, t, f := a.k, a.s.Compute, dtype.Float32
	rows, step := a.begin(a.queries.Value, a.heads.Value)
	kvHead, scale, j := a.head.Div(a.shared.Value), a.scores(), k.BlockIdx(kernel.Y).Mul(k.I32(step))
	q, g, key, v := a.vectors("q", t, rows), a.vectors("g", t, rows), a.vectors("k", t, step), a.vectors("v", t, step)
	score, by := k.Tile("score", f, rows, step), k.Tile("by", f, rows, step)
	a.rowsOf(q, atQ, a.matrix(atQ, a.head), a.first, a.queries.Value)
	a.rowsOf(g, atG, a.matrix(atG, a.head), a.first, a.queries.Value)
	a.rowsOf(key, atK, a.matrix(atK, kvHead), j, a.keys.Value)
	a.rowsOf(v, atV, a.matrix(atV, kvHead), j, a.keys.Value)
	lse, delta := a.rowTiles(rows)
	kept := a.keptTiles(rows, step)
	kept.load(j)
	score.Zero()
	q.dots(score, key)
	by.Zero()
	g.dots(by, v)
	a.hide(score, a.first, j, scale, rows, step)
	kept.changeScores(score, by, lse, delta, a.factor(scale))
	line := a.tiles(a.keys.Value, 8).Mul(k.I32(8))
	at := a.batch.Mul(a.heads.Value).Add(a.head).MulWide(a.queries.Value)
	score.Each(8, func(row, col kernel.Value, vs []kernel.Value) {
		query, first := a.first.Add(row), j.Add(col)
		k.If(query.Lt(a.queries.Value).And(first.Lt(line)), func() {
			out := make([]kernel.Value, len(vs))
			for i, v := range vs {
				out[i] = v.Convert(t)
			}
			a.maskGrad.StoreVec(at.Add(query.Convert(dtype.Int64)).Mul(line.Convert(dtype.Int64)).Add(first.Convert(dtype.Int64)), out...)
		})
	})
}

// gradKeys has a row for each key: its scores are transposed.
func (a *attentionKernel) gradKeys() {
	k := a.k
	rows, step := a.begin(a.keys.Value, a.heads.Div(a.shared.Value))
	kvHead, scale := a.head, a.scores()
	t, f := a.s.Compute, dtype.Float32
	key, v, q, g := a.vectors("k", t, rows), a.vectors("v", t, rows), a.vectors("q", t, step), a.vectors("g", t, step)
	score, by := k.Tile("score", f, rows, step), k.Tile("by", f, rows, step)
	weight, change := k.Tile("weight", t, rows, step), k.Tile("change", t, rows, step)
	piece, end := 0, len(q)
	if n := int(a.s.Attention.Piece); n > 0 {
		piece, end = n-1, n
	}
	dk, dv := a.somePieces("dk", f, rows, piece, end), a.somePieces("dv", f, rows, piece, end)
	sums, delta := k.Tile("sums", f, 1, step), k.Tile("delta", f, 1, step)
	a.rowsOf(key, atK, a.matrix(atK, kvHead), a.first, a.keys.Value)
	a.rowsOf(v, atV, a.matrix(atV, kvHead), a.first, a.keys.Value)
	dk.zero()
	dv.zero()
	tiles := a.tiles(a.queries.Value, step)
	begin := k.I32(0)
	if a.s.Attention.Causal { // earlier queries see none of the keys
		begin = a.first.Div(k.I32(step)).Min(tiles)
	}
	tiles = tiles.Sub(begin)
	turns := tiles
	if a.s.Attention.Grouped {
		turns = tiles.Mul(a.shared.Value)
	}
	if a.s.spanned() {
		some := a.first.Lt(a.to).And(a.first.Add(k.I32(rows)).Gt(a.from))
		turns = some.Select(turns, k.I32(0))
	}
	k.Pipelined(int(a.s.Attention.Stages), k.I32(0), turns, k.I32(1), func(j kernel.Value) {
		head, tile := kvHead, j
		if a.s.Attention.Grouped {
			n := j.Div(tiles)
			head, tile = kvHead.Mul(a.shared.Value).Add(n), j.Sub(n.Mul(tiles))
		}
		first := begin.Add(tile).Mul(k.I32(step))
		a.walk(q, 0, atQ, head, first, a.queries.Value)
		a.walk(g, 1, atG, head, first, a.queries.Value)
		a.walkRow(sums, 1, head, first)
		a.walkRow(delta, 0, head, first)
		score.Zero()
		key.dots(score, q)
		if a.s.drops() { // delta is added to what is kept
			by.Zero()
		} else { // with delta added at the end, both would take registers at once
			by.Map(func(_, _, _ kernel.Value, o []kernel.Value) kernel.Value { return o[0] }, delta)
		}
		v.dots(by, g)
		a.weigh(score, sums, scale, head, first)
		if a.s.Attention.Causal {
			k.If(first.Lt(a.first.Add(k.I32(rows-1))), func() {
				score.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value {
					return a.first.Add(row).Le(first.Add(col)).Select(v, v.Like(0))
				})
			})
		}
		if a.s.drops() {
			a.dropKeys(score, by, delta)
		}
		weight.Round(score)
		dv.add(weight, g[piece:end])
		if !a.s.drops() {
			by.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.Mul(o[0]) }, score)
		}
		change.Round(by)
		dk.add(change, q[piece:end])
	})
	a.store(dk, piece, atDK, kvHead, a.keys.Value, a.scale.Convert(f))
	var kept kernel.Value
	if a.s.drops() {
		kept = a.keptScale.Convert(f)
	}
	a.store(dv, piece, atDV, kvHead, a.keys.Value, kept)
}
