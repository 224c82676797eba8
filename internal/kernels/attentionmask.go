package kernels

import (
	gomath "math"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Masks of attention. Threads read their elements of the mask where they hide scores.

// masked reports whether the scores have a mask, and added whether it is added to them.
func (s *Spec) masked() bool { return s.Ins > 1 }
func (s *Spec) added() bool  { return s.masked() && s.DTypes[2] != dtype.Bool }

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
