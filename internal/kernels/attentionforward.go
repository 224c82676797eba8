package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// The forward pass of attention.

// scores returns scale times log2 e, so that 2^(score times that) is e^(score times scale).
func (a *attentionKernel) scores() kernel.Value {
	return a.scale.Convert(dtype.Float32).Mul(a.k.Const(dtype.Float32, gomath.Log2E))
}

// hide gives the hidden scores of a tile, which has queries from query on and keys from key on, the weight 0. Few tiles have any without a
// mask.
func (a *attentionKernel) hide(s kernel.Tile, query, key, scale kernel.Value, rows, cols int) {
	k := a.k
	if a.s.masked() && !a.knowsWhole() {
		a.hideMasked(s, query, key, scale)
		return
	}
	some := key.Add(k.I32(cols)).Gt(a.to)
	if a.s.spanned() {
		some = some.Or(key.Lt(a.from))
	}
	if a.s.Attention.Causal {
		some = some.Or(key.Add(k.I32(cols - 1)).Gt(query))
	}
	ends := func() {
		k.If(some, func() {
			s.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value {
				j := key.Add(col)
				seen := j.Lt(a.to)
				if a.s.spanned() {
					seen = seen.And(j.Ge(a.from))
				}
				if a.s.Attention.Causal {
					seen = seen.And(j.Le(query.Add(row)))
				}
				return seen.Select(v, v.Like(gomath.Inf(-1)))
			})
		})
	}
	if !a.s.masked() {
		ends()
		return
	}
	k.IfElse(a.whole, ends, func() { a.hideMasked(s, query, key, scale) })
}

// keysFrom returns the first key of the first tile of step keys of which the block's queries may see any.
func (a *attentionKernel) keysFrom(step int) kernel.Value {
	if !a.s.spanned() {
		return a.k.I32(0)
	}
	return a.from.And(a.k.I32(-step))
}

// keysSeen returns where the keys end that the block's queries may see.
func (a *attentionKernel) keysSeen() kernel.Value {
	if !a.s.Attention.Causal {
		return a.to
	}
	return a.to.Min(a.first.Add(a.k.I32(int(a.s.Attention.Rows))))
}

// forward overlaps products and exponentials: while the values of one tile of keys are multiplied by their weights, those of the next tile
// are computed.
func (a *attentionKernel) forward() {
	k := a.k
	rows, step := a.begin(a.queries.Value, a.heads.Value)
	kvHead, scale := a.head.Div(a.shared.Value), a.scores()
	t, f := a.s.Compute, dtype.Float32
	q, first, key, v := a.vectors("q", t, rows), a.vectors("first", t, step), a.vectors("k", t, step), a.vectors("v", t, step)
	score, weight, out := k.Tile("score", f, rows, step), k.Tile("weight", t, rows, step), a.vectors("out", f, rows)
	// For each row: the maximum score before this tile and including it, the factor that corrects earlier sums, and the sum of weights.
	top, next, fix, sum := k.Tile("top", f, rows, 1), k.Tile("next", f, rows, 1), k.Tile("fix", f, rows, 1), k.Tile("sum", f, rows, 1)
	a.rowsOf(q, atQ, a.matrix(atQ, a.head), a.first, a.queries.Value)
	a.rowsOf(first, atK, a.matrix(atK, kvHead), a.keysFrom(step), a.keys.Value)
	kept := a.keptTiles(rows, step)
	out.zero()
	sum.Zero()
	lowest := func(_, _, v kernel.Value, _ []kernel.Value) kernel.Value { return v.Like(gomath.Inf(-1)) }
	next.Zero()
	next.Map(lowest)
	top.Zero()
	top.Map(lowest)
	factor := a.factor(scale)
	powers := func(j kernel.Value) {
		a.hide(score, a.first, j, scale, rows, step)
		next.MaxRows(score)
		fix.Map(func(_, _, _ kernel.Value, o []kernel.Value) kernel.Value {
			return o[0].Sub(a.finite(o[1])).Mul(factor).Exp2()
		}, top, next)
		top.Map(func(_, _, _ kernel.Value, o []kernel.Value) kernel.Value { return o[0] }, next)
		score.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value {
			return v.FMA(factor, a.finite(o[0]).Mul(factor).Neg()).Exp2()
		}, top)
		sum.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.Mul(o[0]) }, fix)
		sum.AddRows(score)
		kept.drop(score)
	}
	kept.load(a.keysFrom(step))
	score.Zero()
	q.dots(score, first)
	powers(a.keysFrom(step))
	weight.Round(score)
	seen := a.keysSeen()
	k.Pipelined(int(a.s.Attention.Stages), a.keysFrom(step), seen, k.I32(step), func(j kernel.Value) {
		following := j.Add(k.I32(step))
		kept.load(following)
		a.walk(key, 0, atK, kvHead, following, a.keys.Value)
		a.walk(v, 1, atV, kvHead, j, a.keys.Value)
		score.Zero()
		q.dots(score, key)
		out.add(weight, v)
		more := following.Lt(seen)
		k.If(more, func() { powers(following) })
		k.If(more, func() {
			weight.Round(score)
			out.scale(fix)
		})
	})
	// A maximum that is infinite or NaN makes the whole row NaN, because top - top is NaN then.
	fix.Map(func(_, _, _ kernel.Value, o []kernel.Value) kernel.Value {
		one := k.Const(f, 1)
		whole := one.Div(o[0]).Add(o[1].Sub(o[1]))
		if a.s.drops() {
			whole = whole.Mul(a.keptScale.Convert(f))
		}
		if a.s.masked() {
			return a.unseen(o[1]).Select(whole.Like(0), whole)
		}
		return whole
	}, sum, top)
	out.scale(fix)
	a.store(out, 0, atOut, a.head, a.queries.Value, kernel.Value{})
	sum.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value {
		lse := math.Log2(k, v).Add(o[0].Mul(factor))
		if a.s.masked() { // then all weights are 0 in the backward pass too
			return a.unseen(o[0]).Select(lse.Like(gomath.Inf(1)), lse)
		}
		return lse
	}, top)
	at := a.batch.Mul(a.heads.Value).Add(a.head).MulWide(a.queries.Value)
	sum.Each(1, func(row, _ kernel.Value, vs []kernel.Value) {
		r := a.first.Add(row)
		k.If(r.Lt(a.queries.Value), func() { a.lse.Store(at.Add(r.Convert(dtype.Int64)), vs[0]) })
	})
}
