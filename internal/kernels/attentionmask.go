package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Masks and dropout of attention. Threads read their elements of a mask where they hide scores, and the bits of the weights that are kept
// where they have computed weights.

// maskType and keptType are the places of the types of the mask and of the bits in a Spec.
const maskType, keptType = 2, 3

// masked reports whether the scores have a mask, added whether it is added to them, and drops whether weights are dropped.
func (s *Spec) masked() bool { return s.Ins > 1 && s.DTypes[maskType] != dtype.Invalid }
func (s *Spec) added() bool  { return s.masked() && s.DTypes[maskType] != dtype.Bool }
func (s *Spec) drops() bool  { return s.Ins > 2 }

// layMask copies a mask whose rows are not contiguous.
func (a *attention) layMask(is Issuer) (err error) {
	m := &a.mask
	if *m = a.opt.Mask; m.Ptr == 0 || m.Stride[3] == 1 {
		return nil
	}
	shape, stride, size := append([]int(nil), m.Shape...), make([]int, 4), 1
	for d := 3; d >= 0; d-- {
		if m.Stride[d] == 0 && d < 3 {
			shape[d] = 1
			continue
		}
		stride[d] = size
		size *= shape[d]
	}
	*m, err = layOut(is, Operand{Ptr: m.Ptr, DType: m.DType, Shape: shape, Stride: m.Stride}, stride, size)
	return err
}

// maskOf returns the elements of a head's mask by query and key, which may be outside of it.
func (a *attentionKernel) maskOf(head kernel.Value) func(query, key kernel.Value) kernel.Value {
	k, st := a.k, &a.maskStride
	u := a.mask.Offset(a.batch.Convert(dtype.Int64).Mul(st.Get(0)).Add(head.Convert(dtype.Int64).Mul(st.Get(1))))
	lastQuery, lastKey := a.queries.Sub(k.I32(1)), a.keys.Sub(k.I32(1))
	return func(query, key kernel.Value) kernel.Value {
		return u.Load(query.Min(lastQuery).Convert(dtype.Int64).Mul(st.Get(2)).Add(key.Min(lastKey).Convert(dtype.Int64)))
	}
}

// plus returns a score, times the factor scale, plus an element of a mask that is added, in base 2.
func (a *attentionKernel) plus(score, scale, mask kernel.Value) kernel.Value {
	return score.FMA(scale, mask.Convert(dtype.Float32).Mul(a.k.Const(dtype.Float32, gomath.Log2E)))
}

// hideMasked is hide with a mask. Scores that are added to one get the factor scale.
func (a *attentionKernel) hideMasked(s kernel.Tile, query, key, scale kernel.Value) {
	at := a.maskOf(a.head)
	s.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value {
		j := key.Add(col)
		seen, mask := j.Lt(a.keys.Value), at(query.Add(row), j)
		if a.s.added() {
			v = a.plus(v, scale, mask)
		} else {
			seen = seen.And(mask)
		}
		return seen.Select(v, v.Like(gomath.Inf(-1)))
	})
}

// factor returns what is left to multiply scores by once they are hidden: scale, or 1 if a mask was added to them.
func (a *attentionKernel) factor(scale kernel.Value) kernel.Value {
	if a.s.added() {
		return scale.Like(1)
	}
	return scale
}

// unseen reports that a row, which has the maximum top, sees no key.
func (a *attentionKernel) unseen(top kernel.Value) kernel.Value {
	return top.Eq(top.Like(gomath.Inf(-1)))
}

// finite returns the maximum of a row, or a number in its place if a mask hides all keys so far: differences to that are still infinite.
func (a *attentionKernel) finite(top kernel.Value) kernel.Value {
	if !a.s.masked() {
		return top
	}
	return a.unseen(top).Select(top.Like(0), top)
}

// weigh turns a tile of scores, a row for each key, into weights. sums are the logarithms of the sums of queries from first on.
func (a *attentionKernel) weigh(score, sums kernel.Tile, scale, head, first kernel.Value) {
	if !a.s.masked() {
		score.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.FMA(scale, o[0].Neg()).Exp2() }, sums)
		return
	}
	at := a.maskOf(head)
	score.Map(func(row, col, v kernel.Value, o []kernel.Value) kernel.Value {
		query := first.Add(col)
		seen, mask := query.Lt(a.queries.Value), at(query, a.first.Add(row))
		if a.s.added() {
			v = a.plus(v, scale, mask).Sub(o[0])
		} else {
			v, seen = v.FMA(scale, o[0].Neg()), seen.And(mask)
		}
		return seen.Select(v.Exp2(), v.Like(0))
	}, sums)
}

// keptOf returns whether a head keeps a weight, by query and key, which may be outside of it.
func (a *attentionKernel) keptOf(head kernel.Value) func(query, key kernel.Value) kernel.Value {
	k := a.k
	line := a.batch.Mul(a.heads.Value).Add(head).MulWide(a.queries.Value)
	lastQuery, lastWord := a.queries.Sub(k.I32(1)), a.keptWords.Sub(k.I32(1))
	return func(query, key kernel.Value) kernel.Value {
		row := line.Add(query.Min(lastQuery).Convert(dtype.Int64)).Mul(a.keptWords.Convert(dtype.Int64))
		word := a.kept.Load(row.Add(key.Shr(k.I32(5)).Min(lastWord).Convert(dtype.Int64)))
		return word.Shr(key.And(k.I32(31))).And(k.U32(1)).Ne(k.U32(0))
	}
}

// drop sets the dropped weights of a tile to 0, which has keys from key on.
func (a *attentionKernel) drop(weights kernel.Tile, key kernel.Value) {
	if !a.s.drops() {
		return
	}
	kept := a.keptOf(a.head)
	weights.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value {
		return kept(a.first.Add(row), key.Add(col)).Select(v, v.Like(0))
	})
}

// dropChange turns the gradients of a tile's dropped weights, which has keys from key on, into those of its weights.
func (a *attentionKernel) dropChange(by kernel.Tile, key kernel.Value) {
	if !a.s.drops() {
		return
	}
	scale := a.keptScale.Convert(dtype.Float32)
	a.drop(by, key)
	by.Map(func(_, _, v kernel.Value, _ []kernel.Value) kernel.Value { return v.Mul(scale) })
}

// dropKeys is what attentionKeys does in a tile of queries from first on: by, the gradients of the dropped weights, become those of the
// scores, and the dropped weights become 0. In between, their sign says which are dropped, so that what is kept is loaded once.
func (a *attentionKernel) dropKeys(weights, by, delta kernel.Tile, head, first kernel.Value) {
	kept, scale := a.keptOf(head), a.keptScale.Convert(dtype.Float32)
	weights.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value {
		return kept(first.Add(col), a.first.Add(row)).Select(v, v.Neg())
	})
	by.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value {
		zero := v.Like(0)
		return o[0].Gt(zero).Select(v.Mul(scale), zero).Add(o[1]).Mul(o[0].Abs())
	}, weights, delta)
	weights.Map(func(_, _, v kernel.Value, _ []kernel.Value) kernel.Value { return v.Maximum(v.Like(0)) })
}
