package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Vectors of queries, keys, values and gradients are rows of tiles. A vector has 8 to 256 elements and a tile a power of two of columns up
// to 128, so some vectors are divided into two pieces.

// mostColumns is the maximum number of columns of a tile of vectors, and longShared the least shared memory for vectors in two such tiles.
const mostColumns, longShared = 128, 160 << 10

// width is the length of a head's vectors.
func (s *attentionSpec) width() int { return 8 * int(s.Groups) }

// lanes is the number of threads that share a vector with 8 elements for each of them, rounded up to a power of two.
func (s *attentionSpec) lanes() int { return max(2, 1<<bits.Len8(s.Groups-1)) }

// pieces returns the numbers of columns of the tiles that vectors are divided into, one or two powers of two from 16 on. Columns beyond the
// vector are 0.
func (s *attentionSpec) pieces() []int {
	width, whole := s.width(), 8*s.lanes()
	if width > mostColumns {
		return []int{mostColumns, max(16, 1<<bits.Len(uint(width-mostColumns-1)))}
	}
	if rest := max(16, 1<<bits.Len(uint(max(1, width-whole/2)-1))); whole/2+rest < whole {
		return []int{whole / 2, rest}
	}
	return []int{whole}
}

// columns is the number of columns of all pieces.
func (s *attentionSpec) columns() (n int) {
	for _, c := range s.pieces() {
		n += c
	}
	return n
}

// vectors are tiles whose rows are vectors, one for each piece.
type vectors []kernel.Tile

// vectors declares tiles of rows vectors.
func (a *attentionKernel) vectors(name string, t dtype.DType, rows int) vectors {
	return a.somePieces(name, t, rows, 0, len(a.s.Attention.pieces()))
}

// somePieces declares the tiles of vectors for the pieces from first to before end.
func (a *attentionKernel) somePieces(name string, t dtype.DType, rows, first, end int) (v vectors) {
	for p := first; p < end; p++ {
		v = append(v, a.k.Tile([...]string{name, name + "_rest"}[p], t, rows, a.s.Attention.pieces()[p]))
	}
	return v
}

func (v vectors) zero() {
	for _, t := range v {
		t.Zero()
	}
}

// dots adds the products of all vectors of v with all of w to score.
func (v vectors) dots(score kernel.Tile, w vectors) {
	for p, t := range v {
		score.DotTransposed(t, w[p])
	}
}

// add adds the sums of vectors w with the given weights to v.
func (v vectors) add(weights kernel.Tile, w vectors) {
	for p, t := range v {
		t.Dot(weights, w[p], false)
	}
}

// scale multiplies the vectors by the elements of a column.
func (v vectors) scale(by kernel.Tile) {
	for _, t := range v {
		t.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.Mul(o[0]) }, by)
	}
}

// pieceAt returns where piece p begins in a vector.
func (a *attentionKernel) pieceAt(p int) int { return p * a.s.Attention.pieces()[0] }

// inVector reports whether inside is true and a column of piece p is an element of a vector.
func (a *attentionKernel) inVector(p int, col, inside kernel.Value) kernel.Value {
	s := &a.s.Attention
	if left := s.width() - a.pieceAt(p); left < s.pieces()[p] {
		return inside.And(col.Lt(a.k.I32(left)))
	}
	return inside
}

// rowsOf fills tiles with rows of u, operand i, from row first on; there are count rows.
func (a *attentionKernel) rowsOf(v vectors, i int, u kernel.Buffer, first, count kernel.Value) {
	for p, t := range v {
		t.Load(kernel.AlongCols, 8, a.element(p, i, u, first, count))
	}
}

// elements locates the elements of a tile.
type elements = func(row, col kernel.Value) (u kernel.Buffer, index, inside kernel.Value)

func (a *attentionKernel) element(p, i int, u kernel.Buffer, first, count kernel.Value) elements {
	return func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
		r := first.Add(row)
		return u, r.Convert(dtype.Int64).Mul(a.stride[i].Get(2)).Add(a.column(p, col)), a.inVector(p, col, r.Lt(count))
	}
}

// column returns which element of a vector (Int64) a column of piece p has.
func (a *attentionKernel) column(p int, col kernel.Value) kernel.Value {
	if p > 0 {
		col = col.Add(a.k.I32(a.pieceAt(p)))
	}
	return col.Convert(dtype.Int64)
}

// walk fills tiles in the loop: like rowsOf, or through maps m.
func (a *attentionKernel) walk(v vectors, m int, i int, head, first, count kernel.Value) {
	u := a.matrix(i, head)
	if !a.s.Attention.Mapped {
		a.rowsOf(v, i, u, first, count)
		return
	}
	for p, t := range v {
		f := a.element(p, i, u, first, count)
		t.LoadMapped(a.maps[m][p].Group(a.batch), a.k.I32(a.pieceAt(p)), first, head, kernel.AlongCols, 8, f)
	}
}

// rowGroup is the number of adjacent elements of a row that are loaded at once.
const rowGroup = 4

// walkRow fills a row in the loop, with values of the queries from first on: those of delta (which 0) or sums (1).
func (a *attentionKernel) walkRow(t kernel.Tile, which int, head, first kernel.Value) {
	k := a.k
	u, line := []kernel.Buffer{a.delta.Buffer, a.sums.Buffer}[which], a.batch.Mul(a.heads.Value).Add(head)
	f := func(_, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
		at := first.Add(col)
		return u, line.MulWide(a.padded.Value).Add(at.Convert(dtype.Int64)), at.Lt(a.padded.Value)
	}
	if !a.s.Attention.Mapped {
		t.Load(kernel.AlongCols, rowGroup, f)
		return
	}
	t.LoadMapped(a.rowMap.TensorMap, first, line, k.I32(which), kernel.AlongCols, rowGroup, f)
}

// store writes tiles of sums, of the pieces from first on, times a factor, to operand i.
func (a *attentionKernel) store(v vectors, first, i int, head, count, factor kernel.Value) {
	for p, t := range v {
		a.storePiece(first+p, t, i, head, count, factor)
	}
}

func (a *attentionKernel) storePiece(p int, t kernel.Tile, i int, head, count, factor kernel.Value) {
	k, u := a.k, a.matrix(i, head)
	t.Each(8, func(row, col kernel.Value, vs []kernel.Value) {
		r := a.first.Add(row)
		k.If(a.inVector(p, col, r.Lt(count)), func() {
			out := make([]kernel.Value, len(vs))
			for j, v := range vs {
				if factor.Builder() != nil {
					v = v.Mul(factor)
				}
				out[j] = v.Convert(u.Type())
			}
			u.StoreVec(r.Convert(dtype.Int64).Mul(a.stride[i].Get(2)).Add(a.column(p, col)), out...)
		})
	})
}
