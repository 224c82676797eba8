package kernels

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Dropout of attention's weights.

// keptAccess returns the type in which the bits of DropoutBits are loaded. A thread of attentionKeys has two adjacent queries, the threads
// of the other stages have keys of one query that share a word.
func (s *Spec) keptAccess() dtype.DType {
	if s.Op == attentionKeys {
		return dtype.Uint64
	}
	return dtype.Uint32
}

// keptHead returns the bits of a head, and by how many elements the words of the next 32 keys follow.
func (a *attentionKernel) keptHead(head kernel.Value) (kernel.Buffer, kernel.Value) {
	height := a.tiles(a.queries.Value, keptRows).Mul(a.k.I32(keptRows * 4 / a.s.keptAccess().Size()))
	line := a.batch.Mul(a.heads.Value).Add(head).Mul(a.keptWords.Value)
	return a.kept.Offset(line.MulWide(height)), height
}

// keptTiles are tiles of words of the bits: those of the block's queries, in the order of keys, for a tile of weights.
type keptTiles struct {
	a      *attentionKernel
	words  []kernel.Tile
	u      kernel.Buffer
	height kernel.Value
}

// keptTiles declares the tiles for rows queries by step keys of the block's head. It returns nil if no weights are dropped.
func (a *attentionKernel) keptTiles(rows, step int) *keptTiles {
	if !a.s.drops() {
		return nil
	}
	t := &keptTiles{a: a}
	t.u, t.height = a.keptHead(a.head)
	for i := range step / 32 {
		t.words = append(t.words, a.k.Tile([...]string{"kept0", "kept1", "kept2", "kept3"}[i], dtype.Float32, rows, 1))
	}
	return t
}

// load fills the tiles for keys from key on, a multiple of their step. Keys beyond the last words get the last ones. Whoever loads early
// does not wait for memory later.
func (t *keptTiles) load(key kernel.Value) {
	if t == nil {
		return
	}
	k := t.a.k
	first := key.Shr(k.I32(5)).Min(t.a.keptWords.Sub(k.I32(len(t.words))))
	for i, w := range t.words {
		line := first.Add(k.I32(i)).MulWide(t.height)
		w.Map(func(row, _, _ kernel.Value, _ []kernel.Value) kernel.Value {
			return t.u.Load(line.Add(t.a.first.Add(row).Convert(dtype.Int64))).Bitcast(dtype.Float32)
		})
	}
}

// each sets the elements v of a tile to f of whether a weight is kept, of v, and of the elements of a column.
func (t *keptTiles) each(tile kernel.Tile, f func(kept, v kernel.Value, o []kernel.Value) kernel.Value, columns ...kernel.Tile) {
	k := t.a.k
	for i := 0; i < len(t.words); i += 2 { // a map reads so many tiles at most
		words := t.words[i:min(i+2, len(t.words))]
		tile.Map(func(_, col, v kernel.Value, o []kernel.Value) kernel.Value {
			word := o[0]
			if len(words) > 1 {
				word = col.And(k.I32(32)).Eq(k.I32(0)).Select(o[0], o[1])
			}
			new := f(hasBit(word.Bitcast(dtype.Uint32), col.And(k.I32(6)), col.And(k.I32(25))), v, o[len(words):])
			if len(t.words) > 2 {
				new = col.And(k.I32(64)).Eq(k.I32(32*i)).Select(new, v)
			}
			return new
		}, append(slices.Clone(words), columns...)...)
	}
}

// hasBit reports whether bit lane + n of a word is 1. When the kernel is built, n is known for each element of a thread, and lane is the
// same for all of them, or for all in 16 rows.
func hasBit(word, lane, n kernel.Value) kernel.Value {
	one := word.Like(1)
	return word.Shr(lane).And(one.Shl(n)).Ne(word.Like(0))
}

// drop sets the weights that are not kept to 0.
func (t *keptTiles) drop(weights kernel.Tile) {
	if t != nil {
		t.each(weights, func(kept, v kernel.Value, _ []kernel.Value) kernel.Value { return kept.Select(v, v.Like(0)) })
	}
}

// change turns the gradients of a tile's dropped weights into those of its weights, and adds delta.
func (t *keptTiles) change(by, delta kernel.Tile) {
	scale := t.a.keptScale.Convert(dtype.Float32)
	t.each(by, func(kept, v kernel.Value, o []kernel.Value) kernel.Value {
		return kept.Select(v.FMA(scale, o[0]), o[0])
	}, delta)
}

// keptOf returns whether a head keeps the weight of a row, a key of the block, and a column, a query from first on. first is even.
func (a *attentionKernel) keptOf(head, first kernel.Value) func(row, col kernel.Value) kernel.Value {
	k := a.k
	u, height := a.keptHead(head)
	one, five := k.I32(1), k.I32(5)
	return func(row, col kernel.Value) kernel.Value {
		pair := first.Add(col.And(k.I32(-2))).Shr(one)
		words := u.Load(a.first.Shr(five).Add(row.Shr(five)).MulWide(height).Add(pair.Convert(dtype.Int64)))
		word := words.Shr(col.And(one).Shl(five)).Convert(dtype.Uint32)
		return hasBit(word, row.And(k.I32(23)), row.And(k.I32(8)))
	}
}

// dropKeys is what attentionKeys does with weights whose sign says which are dropped: by, the gradients of the dropped weights, become
// those of the scores, and the dropped weights 0.
func (a *attentionKernel) dropKeys(weights, by, delta kernel.Tile) {
	scale := a.keptScale.Convert(dtype.Float32)
	by.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value {
		return o[0].Gt(v.Like(0)).Select(v.FMA(scale, o[1]), o[1]).Mul(o[0].Abs())
	}, weights, delta)
	weights.Map(func(_, _, v kernel.Value, _ []kernel.Value) kernel.Value { return v.Maximum(v.Like(0)) })
}
