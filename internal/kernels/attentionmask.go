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

// spanned reports whether the kernel knows the spans of attentionSpans.
func (s *Spec) spanned() bool { return s.Attention.Padding == maskSpans }

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

// maskInPairs reports whether the elements of two adjacent keys can be loaded together.
func (a *attention) maskInPairs() bool {
	places := a.mask.Ptr/uint64(a.mask.DType.Size()) | uint64(a.keys)
	for d := range 3 {
		places |= uint64(a.mask.Stride[d])
	}
	return places%2 == 0
}

// maskAccess returns the type in which elements of the mask are loaded.
func (s *Spec) maskAccess() dtype.DType {
	t := s.DTypes[maskType]
	switch {
	case !s.Attention.Pairs:
		return t
	case t == dtype.Bool:
		return dtype.Uint16
	}
	return dtype.Uint32
}

// maskOf returns the elements of a head's mask by query and key. The key is the sum of a tile's first one, which is even, and of a row or
// column of the tile. Both may be outside of the head.
func (a *attentionKernel) maskOf(head kernel.Value) func(query, key, keyIn kernel.Value) kernel.Value {
	k, st, s := a.k, &a.maskStride, &a.s.Attention
	one := k.I32(1)
	stride := func(d int) kernel.Value {
		if s.Pairs {
			return st.Get(d).Shr(one)
		}
		return st.Get(d)
	}
	u := a.mask.Offset(a.batch.Convert(dtype.Int64).Mul(stride(0)).Add(head.Convert(dtype.Int64).Mul(stride(1))))
	rowStride, lastQuery, last := stride(2), a.queries.Sub(one), a.keys.Sub(one)
	if s.Pairs {
		last = a.keys.Shr(one).Sub(one)
	}
	return func(query, key, keyIn kernel.Value) kernel.Value {
		place := key.Add(keyIn)
		if s.Pairs {
			place = key.Shr(one).Add(keyIn.And(k.I32(-2)).Shr(one))
		}
		at := place.Min(last).Convert(dtype.Int64)
		if s.Padding == 0 {
			at = query.Min(lastQuery).Convert(dtype.Int64).Mul(rowStride).Add(at)
		}
		v := u.Load(at)
		if !s.Pairs {
			return v
		}
		t := a.s.DTypes[maskType]
		v = v.Shr(keyIn.And(one).Mul(k.I32(8 * t.Size())))
		if t == dtype.Bool {
			return v.And(k.Int(v.Type(), 0xFF)).Ne(k.Int(v.Type(), 0))
		}
		return v.Convert(dtype.Uint16).Bitcast(t)
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
		seen, mask := j.Lt(a.keys.Value), at(query.Add(row), key, col)
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

// weigh turns a tile of scores, a row for each key, into weights. sums are the logarithms of the sums of queries from first on. The weights
// that a dropout does not keep get a negative sign.
func (a *attentionKernel) weigh(score, sums kernel.Tile, scale, head, first kernel.Value) {
	signed := func(_, _, w kernel.Value) kernel.Value { return w }
	if a.s.drops() {
		kept := a.keptOf(head, first)
		signed = func(row, col, w kernel.Value) kernel.Value { return kept(row, col).Select(w, w.Neg()) }
	}
	plain := func(seen func(row kernel.Value) kernel.Value) {
		score.Map(func(row, col, v kernel.Value, o []kernel.Value) kernel.Value {
			w := v.FMA(scale, o[0].Neg()).Exp2()
			if seen != nil {
				w = seen(a.first.Add(row)).Select(w, v.Like(0))
			}
			return signed(row, col, w)
		}, sums)
	}
	masked := func() {
		at := a.maskOf(head)
		score.Map(func(row, col, v kernel.Value, o []kernel.Value) kernel.Value {
			query := first.Add(col)
			seen, mask := query.Lt(a.queries.Value), at(query, a.first, row)
			if a.s.added() {
				v = a.plus(v, scale, mask).Sub(o[0])
			} else {
				v, seen = v.FMA(scale, o[0].Neg()), seen.And(mask)
			}
			return signed(row, col, seen.Select(v.Exp2(), v.Like(0)))
		}, sums)
	}
	switch {
	case !a.s.masked():
		plain(nil)
	case !a.knowsWhole():
		masked()
	default:
		a.k.IfElse(a.whole, func() {
			plain(func(key kernel.Value) kernel.Value { return key.Ge(a.from).And(key.Lt(a.to)) })
		}, masked)
	}
}
