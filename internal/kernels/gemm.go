package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// gemmTile is the shape of the block tile of a matrix product: rows x cols of the result, depth of each step, threads a block, and stages of
// the software pipeline.
type gemmTile struct{ rows, cols, depth, threads, stages int }

// shared returns the shared memory that the tile takes with elements of size bytes.
func (g *gemmTile) shared(size int) int { return (g.rows + g.cols) * g.depth * size * g.stages }

// The tiles. Those of halves and tf32 were chosen by products of 8192³ on an H200: 128x256x64 in four stages gives 797 TFLOP/s in bf16.
var gemmTiles = [...]gemmTile{
	tileHalf:   {128, 128, 32, 256, 4}, // halves
	1:          {128, 64, 32, 128, 4},
	2:          {64, 64, 32, 128, 4},
	tileSingle: {128, 128, 16, 256, 3}, // float32
	4:          {64, 64, 16, 128, 2},
	5:          {32, 32, 16, 64, 2},    // small results of any type
	6:          {64, 64, 16, 64, 3},    // float64
	7:          {32, 128, 16, 128, 2},  // few rows
	tileLarge:  {128, 256, 64, 256, 4}, // halves, results that fill the device many times
	tileTF32:   {128, 256, 32, 256, 4},
	tileWide:   {128, 256, 16, 256, 3},
	// For operands that tensor maps fetch: halves,
	11: {128, 128, 64, 256, 3},
	12: {128, 192, 64, 256, 5},
	13: {64, 128, 64, 128, 4},
	14: {64, 64, 64, 128, 4},
	15: {64, 64, 64, 128, 8},
	// tf32,
	16: {128, 192, 32, 256, 5},
	17: {128, 128, 32, 256, 3},
	18: {64, 128, 32, 128, 4},
	19: {64, 64, 32, 128, 6},
	20: {256, 128, 32, 256, 4},
	21: {192, 128, 32, 256, 5},
	// float32.
	22: {128, 64, 32, 128, 3},
	23: {128, 256, 32, 256, 3},
	24: {128, 192, 16, 256, 3},
	25: {128, 128, 32, 128, 3},
	26: {64, 64, 16, 128, 4},
	27: {64, 128, 16, 128, 4},
}

// tileTF32 is the tile of tf32 for results that fill the device many times; wgmma computes it where both operands lie along the depth.
const tileTF32 = 9

// tileSingle is the large tile of exact float32, and tileWide that of products that fill the device many times: 8 x 16 sums a thread read less shared
// memory for each than 8 x 8, which gave 45 instead of 40 TFLOP/s for 8192³ on an H200. Convolutions find their addresses by more arithmetic and
// have no registers left for it.
const (
	tileSingle = 3
	tileWide   = 10
)

// tileLarge is the largest tile of halves, tileHalf the next of those that fetch operands by cp.async.
const (
	tileLarge = 8
	tileHalf  = 0
)

// The orders in which tiles are tried: the largest first.
var (
	tilesDouble = []int{6, 5}
	tilesHalf   = []int{tileLarge, tileHalf, 1, 2, 5}
	tilesTF32   = []int{tileTF32, 0, 1, 2, 5}
	tilesFew    = []int{7, 5}
	tilesSingle = []int{tileSingle, 4, 5}
)

// splitLong is how deep each part of a split product must be for large tiles to be worth the partial sums, by an estimate.
const splitLong = 2048

// pickTile chooses the tile for a result of m x n in each of batch products: the first that is not mostly outside the result, whose blocks fill the
// device and whose stages fit in shared memory. depth is what may be split over blocks, 0 if it may not.
func pickTile(lim *Limits, t dtype.DType, tf32 bool, m, n, depth, batch int) int {
	order := tilesSingle
	switch {
	case t == dtype.Float64:
		order = tilesDouble
	case t == dtype.Float32 && tf32:
		order = tilesTF32
	case t != dtype.Float32:
		order = tilesHalf
	case m <= 32:
		order = tilesFew
	}
	return fitTile(order, lim, t, m, n, depth, batch)
}

// fitTile chooses among the tiles of order.
func fitTile(order []int, lim *Limits, t dtype.DType, m, n, depth, batch int) int {
	for _, c := range order[:len(order)-1] {
		g := gemmTiles[c]
		want := lim.Multiprocessors
		if c >= 8 {
			want *= 2
		}
		blocks := ceilDiv(m, g.rows) * ceilDiv(n, g.cols) * batch
		// Parts of the depth fill the device too, but for a fifth at most.
		parts := min(lim.Multiprocessors/blocks, depth/splitLong, mostSplits)
		fills := blocks >= want || parts > 1 && 5*parts*blocks >= 4*lim.Multiprocessors
		if m > g.rows/2 && n > g.cols/2 && fills && g.shared(t.Size()) <= lim.SharedPerBlock {
			return c
		}
	}
	return order[len(order)-1]
}

// gemm builds the body of a tiled matrix product: the block computes tile (by, bx) of the result over depths k0 to k1.
type gemm struct {
	k    *kernel.Builder
	tile gemmTile
	in   dtype.DType
	acc  dtype.DType
	tf32 bool
	// m0 and n0 (Int32) are the first row and column of the block's tile.
	m0, n0 kernel.Value
}

// accumulator returns the type that products of t are summed in.
func accumulator(t dtype.DType) dtype.DType {
	if t == dtype.Float64 {
		return t
	}
	return dtype.Float32
}

func newGemm(k *kernel.Builder, s *Spec) *gemm {
	g := &gemm{k: k, tile: gemmTiles[s.Attr[0]], in: s.Compute, acc: accumulator(s.Compute), tf32: s.Attr[1]&gemmTF32 != 0}
	k.FixedThreads(g.tile.threads)
	return g
}

// blocks sets the block's tile from the block's number: neighbours in launch order share operands, so that they meet in the cache. rowTiles and
// colTiles (Int32) count the tiles of the result.
func (g *gemm) blocks(rowTiles, colTiles kernel.Value) {
	k := g.k
	const group = 8
	id := k.BlockIdx(kernel.X)
	span := colTiles.Mul(k.I32(group))
	band := id.Div(span)
	first := band.Mul(k.I32(group))
	height := rowTiles.Sub(first).Min(k.I32(group))
	in := id.Sub(band.Mul(span))
	col := in.Div(height)
	g.m0 = first.Add(in.Sub(col.Mul(height))).Mul(k.I32(g.tile.rows))
	g.n0 = col.Mul(k.I32(g.tile.cols))
}

// side is how one operand's tile is loaded.
type side struct {
	groups kernel.Groups
	width  int
	// at gives the element of a tile that begins at depth k0: p is the place along the operand's own axis, d the depth, both within the tile.
	at func(k0, p, d kernel.Value) (u kernel.Buffer, index, inside kernel.Value)
	// place, if there is one, gives the place of the tile that begins at depth k0 in a matrix of the array that the tensor map describes.
	place     func(k0 kernel.Value) (along, across kernel.Value)
	tensorMap kernel.TensorMap
	matrix    kernel.Value
}

// load loads a tile of the operand; at is at by the tile's rows and columns.
func (s *side) load(t kernel.Tile, k0 kernel.Value, at func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value)) {
	if s.place == nil {
		t.Load(s.groups, s.width, at)
		return
	}
	along, across := s.place(k0)
	t.LoadMapped(s.tensorMap, along, across, s.matrix, s.groups, s.width, at)
}

// run computes the tile and hands it to store in groups of width columns.
func (g *gemm) run(begin, end kernel.Value, a, b side, width int, store func(row, col kernel.Value, vs []kernel.Value)) {
	k, t := g.k, g.tile
	ta := k.Tile("a", g.in, t.rows, t.depth)
	tb := k.Tile("b", g.in, t.depth, t.cols)
	acc := k.Tile("acc", g.acc, t.rows, t.cols)
	acc.Zero()
	k.Pipelined(t.stages, begin, end, k.I32(t.depth), func(k0 kernel.Value) {
		a.load(ta, k0, func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) { return a.at(k0, row, col) })
		b.load(tb, k0, func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) { return b.at(k0, col, row) })
		acc.Dot(ta, tb, g.tf32)
	})
	acc.Each(width, store)
}

// flags of Spec.Attr[1].
const (
	gemmTF32 = 1 << iota
	// gemmBias: the result is alpha*product + beta*bias.
	gemmBias
	// gemmSplit: the depth is split over blocks in z, and partial sums go to workspace.
	gemmSplit
	// gemmScale: the result is alpha*product.
	gemmScale
	// gemmMapped: tensor maps describe the operands.
	gemmMapped
)

// A side's layout, in Spec.Attr[2] (a) and Attr[3] (b): the axis along which elements are adjacent, and the width of accesses.
const (
	layoutDepth = iota // adjacent along the depth
	layoutOwn          // adjacent along the operand's own axis
	layoutNone         // neither
)

func packSide(layout, width int) uint16 { return uint16(layout<<8 | width) }

// mapped gives s, a strided side of the given layout whose tile begins at p0, its tensor map.
func (s *side) mapped(attr uint16, m kernel.TensorMap, p0, matrix kernel.Value) {
	s.tensorMap, s.matrix = m, matrix
	s.place = func(k0 kernel.Value) (along, across kernel.Value) {
		if attr>>8 == layoutDepth {
			return k0, p0
		}
		return p0, k0
	}
}

// strided is a side whose element (p, d) lies at p*ps + d*ds, one of which is 1 where the layout says so. own is how many places there
// are from the tile's first, depth how many depths in all.
func (g *gemm) strided(attr uint16, own bool, u kernel.Buffer, p0, ps, ds, places, depth kernel.Value) side {
	layout, width := int(attr>>8), int(attr&255)
	s := side{width: width, groups: kernel.AlongCols}
	// The depth is the column of a and the row of b.
	if (layout == layoutDepth) != own {
		s.groups = kernel.AlongRows
	}
	if layout == layoutNone {
		s.groups = kernel.AlongCols
	}
	base := u.Offset(p0.Convert(dtype.Int64).Mul(ps))
	left := places.Sub(p0)
	s.at = func(k0, p, d kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
		d64, p64 := k0.Add(d).Convert(dtype.Int64), p.Convert(dtype.Int64)
		if layout != layoutDepth {
			d64 = d64.Mul(ds)
		}
		if layout != layoutOwn {
			p64 = p64.Mul(ps)
		}
		inside := p.Lt(left).And(k0.Add(d).Lt(depth))
		return base, d64.Add(p64), inside
	}
	return s
}
