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
		if !s.Padding {
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

// weigh turns a tile of scores, a row for each key, into weights. sums are the logarithms of the sums of queries from first on.
func (a *attentionKernel) weigh(score, sums kernel.Tile, scale, head, first kernel.Value) {
	if !a.s.masked() {
		score.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.FMA(scale, o[0].Neg()).Exp2() }, sums)
		return
	}
	at := a.maskOf(head)
	score.Map(func(row, col, v kernel.Value, o []kernel.Value) kernel.Value {
		query := first.Add(col)
		seen, mask := query.Lt(a.queries.Value), at(query, a.first, row)
		if a.s.added() {
			v = a.plus(v, scale, mask).Sub(o[0])
		} else {
			v, seen = v.FMA(scale, o[0].Neg()), seen.And(mask)
		}
		return seen.Select(v.Exp2(), v.Like(0))
	}, sums)
}

// keptOf returns whether a head keeps a weight. Query and key are the sums of a tile's first one, which is a multiple of 32 for keys, and a
// row or column of the tile; they may be outside of the head.
func (a *attentionKernel) keptOf(head kernel.Value) func(query, key, keyIn kernel.Value) kernel.Value {
	k := a.k
	rows := k.I32(keptRows)
	line := a.batch.Mul(a.heads.Value).Add(head).MulWide(a.tiles(a.queries.Value, keptRows).Mul(rows))
	u := a.kept.Offset(line.Mul(a.keptWords.Convert(dtype.Int64)))
	five := k.I32(5)
	return func(query, key, keyIn kernel.Value) kernel.Value {
		word := u.Load(query.MulWide(a.keptWords.Value).Add(key.Shr(five).Add(keyIn.Shr(five)).Convert(dtype.Int64)))
		return word.Shr(keyIn.And(k.I32(31))).And(k.U32(1)).Ne(k.U32(0))
	}
}

// drop sets the dropped weights of a tile to 0, which has keys from key on.
func (a *attentionKernel) drop(weights kernel.Tile, key kernel.Value) {
	if !a.s.drops() {
		return
	}
	kept := a.keptOf(a.head)
	weights.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value {
		return kept(a.first.Add(row), key, col).Select(v, v.Like(0))
	})
}

// dropChange turns the gradients of a tile's dropped weights, which has keys from key on, into those of its weights.
func (a *attentionKernel) dropChange(by kernel.Tile, key kernel.Value) {
	if !a.s.drops() {
		return
	}
	kept, scale := a.keptOf(a.head), a.keptScale.Convert(dtype.Float32)
	by.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value {
		return kept(a.first.Add(row), key, col).Select(v.Mul(scale), v.Like(0))
	})
}

// dropKeys is what attentionKeys does in a tile of queries from first on: by, the gradients of the dropped weights, become those of the
// scores, and the dropped weights become 0. In between, their sign says which are dropped, so that what is kept is loaded once.
func (a *attentionKernel) dropKeys(weights, by, delta kernel.Tile, head, first kernel.Value) {
	kept, scale := a.keptOf(head), a.keptScale.Convert(dtype.Float32)
	weights.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value {
		return kept(first.Add(col), a.first, row).Select(v, v.Neg())
	})
	by.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value {
		zero := v.Like(0)
		return o[0].Gt(zero).Select(v.Mul(scale), zero).Add(o[1]).Mul(o[0].Abs())
	}, weights, delta)
	weights.Map(func(_, _, v kernel.Value, _ []kernel.Value) kernel.Value { return v.Maximum(v.Like(0)) })
}
