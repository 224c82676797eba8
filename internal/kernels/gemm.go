package kernels

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// gemmTile is the block tile of a matrix product: rows x cols of the result, the depth of each step, the threads per block, the stages of
// the software pipeline, and the number of parts of a step's depth, each added up by its own group of threads.
type gemmTile struct{ rows, cols, depth, threads, stages, parts int }

// shared returns how much shared memory the tile takes for elements of size bytes.
func (g *gemmTile) shared(size int) int { return (g.rows + g.cols) * g.depth * size * g.stages }

// large reports whether the tile is one of those for results that fill the device many times.
func (g *gemmTile) large() bool { return g.rows*g.cols >= 128*256 }

// TileSpec is a gemmTile in a Spec.
type TileSpec struct {
	Rows, Cols    uint16
	Warps         uint8
	Depth, Stages uint8
	// Parts is 0 for one part.
	Parts uint8
}

func (g *gemmTile) spec() TileSpec {
	s := TileSpec{uint16(g.rows), uint16(g.cols), uint8(g.threads / 32), uint8(g.depth), uint8(g.stages), uint8(g.parts)}
	if g.parts == 1 {
		s.Parts = 0
	}
	return s
}

func (t *TileSpec) tile() gemmTile {
	return gemmTile{int(t.Rows), int(t.Cols), int(t.Depth), 32 * int(t.Warps), int(t.Stages), max(1, int(t.Parts))}
}

// The tiles that are tried based on sizes alone, the largest first. The large ones for halves and tf32 were chosen with products of 8192³
// on an H200, where the one for halves reaches 797 TFLOP/s in bf16. In tf32, wgmma computes the large one if both operands lie along the
// depth.
var (
	tilesDouble = []gemmTile{{64, 64, 16, 64, 3, 1}, tileSmall}
	tilesHalf   = []gemmTile{{128, 256, 64, 256, 4, 1}, {128, 128, 32, 256, 4, 1}, {128, 64, 32, 128, 4, 1}, {64, 64, 32, 128, 4, 1},
		tileSmall}
	tilesTF32 = []gemmTile{{128, 256, 32, 256, 4, 1}, {128, 128, 32, 256, 4, 1}, {128, 64, 32, 128, 4, 1}, {64, 64, 32, 128, 4, 1},
		tileSmall}
	tilesFew    = []gemmTile{{32, 128, 16, 128, 2, 1}, tileSmall} // few rows
	tilesSingle = []gemmTile{{128, 128, 16, 256, 3, 1}, {64, 64, 16, 128, 2, 1}, tileSmall}
)

var (
	// tileSmall is the tile for small results of any type.
	tileSmall = gemmTile{32, 32, 16, 64, 2, 1}
	// tileShared is the tile for small results of exact products whose depth is worth sharing: each warp adds up a quarter of every step. A
	// thread has 8 x 4 sums, for which it reads three quarters of the shared memory that 4 x 4 need for each.
	tileShared = gemmTile{32, 32, 64, 128, 3, 4}
)

// flatTile returns the tile for results of m rows, up to 16, on devices of few multiprocessors. They would take longer for the rows of a
// higher tile that are outside of the result than for reading the matrix. Sums are in the order of the tile that it replaces.
func flatTile(m, parts int) gemmTile {
	g := gemmTile{8, 64, 64, 128, 2, parts}
	if m > g.rows {
		g.rows = 16
	}
	return g
}

// ProductTiles returns the tiles of products with operands of type t, for tests.
func ProductTiles(t dtype.DType, tf32 bool) []TileSpec {
	orders, costs := [][]gemmTile{tilesHalf}, [][]gemmCost{costsHalf, costsNarrow}
	switch {
	case t == dtype.Float64:
		orders, costs = [][]gemmTile{tilesDouble}, nil
	case t == dtype.Float32 && tf32:
		orders, costs = [][]gemmTile{tilesTF32}, [][]gemmCost{costsTF32, costsAcross}
	case t == dtype.Float32:
		orders, costs = [][]gemmTile{tilesSingle, tilesFew}, [][]gemmCost{costsSingle, costsPlain}
	}
	var out []TileSpec
	add := func(g *gemmTile) {
		if s := g.spec(); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	if t == dtype.Float32 && !tf32 {
		orders = append(orders, []gemmTile{tileShared})
	}
	for _, order := range orders {
		for i := range order {
			add(&order[i])
		}
	}
	for _, list := range costs {
		for i := range list {
			add(&list[i].tile)
		}
	}
	for _, m := range []int{8, 16} {
		for _, parts := range []int{1, tileShared.parts} {
			if g := flatTile(m, parts); parts == 1 || t == dtype.Float32 && !tf32 {
				add(&g)
			}
		}
	}
	return out
}

// WalkTiles returns the tiles of products whose operand is gathered from images, in the order of Conv.Tile, for tests.
func WalkTiles() (out []TileSpec) {
	for i := range costsWalk {
		out = append(out, costsWalk[i].tile.spec())
	}
	return out
}

// splitLong is how deep each part of a split product must be for large tiles to be worth the partial sums, an estimate.
const splitLong = 2048

// pickTile chooses the tile for a result of m x n in each of batch products: the first tile that is not mostly outside the result, whose
// blocks fill the device and whose stages fit in shared memory. depth is the depth that may be split over blocks, 0 if it may not be split.
func pickTile(lim *Limits, t dtype.DType, tf32 bool, m, n, depth, batch int) gemmTile {
	return fitTile(tileOrder(t, tf32, m), lim, t, m, n, depth, batch)
}

// tileOrder returns the tiles for results of m rows, the largest first.
func tileOrder(t dtype.DType, tf32 bool, m int) []gemmTile {
	switch {
	case t == dtype.Float64:
		return tilesDouble
	case t == dtype.Float32 && tf32:
		return tilesTF32
	case t != dtype.Float32:
		return tilesHalf
	case m <= 32:
		return tilesFew
	}
	return tilesSingle
}

// fitTile chooses among the tiles of order.
func fitTile(order []gemmTile, lim *Limits, t dtype.DType, m, n, depth, batch int) gemmTile {
	for _, g := range order[:len(order)-1] {
		want := lim.Multiprocessors
		if g.large() {
			want *= 2
		}
		blocks := ceilDiv(m, g.rows) * ceilDiv(n, g.cols) * batch
		// Parts of the depth may fill the device too, with at most a fifth of it idle.
		parts := min(lim.Multiprocessors/blocks, depth/splitLong, mostSplits)
		fills := blocks >= want || parts > 1 && 5*parts*blocks >= 4*lim.Multiprocessors
		if m > g.rows/2 && n > g.cols/2 && fills && g.shared(t.Size()) <= lim.SharedPerBlock {
			return g
		}
	}
	return order[len(order)-1]
}

// gemm builds the body of a tiled matrix product. The block computes tile (by, bx) of the result over depths k0 to k1.
type gemm struct {
	k    *kernel.Builder
	tile gemmTile
	in   dtype.DType
	acc  dtype.DType
	tf32 bool
	// m0 and n0 (Int32) are the first row and column of the block's tile.
	m0, n0 kernel.Value
}

// accumulator returns the type in which products of t are summed.
func accumulator(t dtype.DType) dtype.DType {
	if t == dtype.Float64 {
		return t
	}
	return dtype.Float32
}

func newGemm(k *kernel.Builder, s *Spec) *gemm {
	g := &gemm{k: k, tile: s.Product.Tile.tile(), in: s.Compute, acc: accumulator(s.Compute), tf32: s.Product.TF32}
	k.FixedThreads(g.tile.threads)
	return g
}

// blocks computes the tile with number id. Tiles with close numbers share operands, so that they find them in the cache. rowTiles and
// colTiles (Int32) are the numbers of tiles of the result.
func (g *gemm) blocks(id, rowTiles, colTiles kernel.Value) {
	k := g.k
	const group = 8
	span := colTiles.Mul(k.I32(group))
	band := id.Div(span)
	first := band.Mul(k.I32(group))
	height := rowTiles.Sub(first).Min(k.I32(group))
	in := id.Sub(band.Mul(span))
	col := in.Div(height)
	g.m0 = first.Add(in.Sub(col.Mul(height))).Mul(k.I32(g.tile.rows))
	g.n0 = col.Mul(k.I32(g.tile.cols))
}

// side describes how one operand's tile is loaded.
type side struct {
	groups kernel.Groups
	width  int
	// at returns the element of a tile that begins at depth k0. p is the position along the operand's own axis and d the depth, both within
	// the tile.
	at func(k0, p, d kernel.Value) (u kernel.Buffer, index, inside kernel.Value)
	// place, if not nil, returns the position of the tile that begins at depth k0, in a matrix of the array that the tensor map describes.
	place     func(k0 kernel.Value) (along, across kernel.Value)
	tensorMap kernel.TensorMap
	matrix    kernel.Value
	// pixels, if not nil, loads the tile that begins at depth k0 from images.
	pixels func(t kernel.Tile, k0 kernel.Value, at func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value))
}

// load loads a tile of the operand; at takes the tile's rows and columns.
func (s *side) load(t kernel.Tile, k0 kernel.Value, at func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value)) {
	switch {
	case s.pixels != nil:
		s.pixels(t, k0, at)
		return
	case s.place == nil:
		t.Load(s.groups, s.width, at)
		return
	}
	along, across := s.place(k0)
	t.LoadMapped(s.tensorMap, along, across, s.matrix, s.groups, s.width, at)
}

// run computes the tile and passes it to store in groups of width columns. after, if not nil, is applied to every sum first.
func (g *gemm) run(begin, end kernel.Value, a, b side, after func(row, col, v kernel.Value) kernel.Value, width int,
	store func(row, col kernel.Value, vs []kernel.Value)) {
	k, t := g.k, g.tile
	ta := k.Tile("a", g.in, t.rows, t.depth)
	tb := k.Tile("b", g.in, t.depth, t.cols)
	acc := k.TileInParts("acc", g.acc, t.rows, t.cols, t.parts)
	acc.Zero()
	k.Pipelined(t.stages, begin, end, k.I32(t.depth), func(k0 kernel.Value) {
		a.load(ta, k0, func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) { return a.at(k0, row, col) })
		b.load(tb, k0, func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) { return b.at(k0, col, row) })
		acc.Dot(ta, tb, g.tf32)
	})
	if after != nil {
		acc.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value { return after(row, col, v) })
	}
	acc.Each(width, store)
}

// productSpec is what products, including those of convolutions, are specialised on.
type productSpec struct {
	Tile TileSpec
	// Vector is set in place of Tile if there are few rows.
	Vector vecSpec
	// Left and Right describe the layouts of the operands.
	Left, Right sideSpec
	TF32        bool
	// Bias is the number of adjacent elements of the bias in a row that are loaded together if the result is alpha*product + beta*bias, and
	// 0 without a bias. Scale: alpha or beta is not 1.
	Bias   uint8
	Scale  bool
	Blocks blocksKind
	// Mapped says what tensor maps describe.
	Mapped mapKind
	// Batch is the number of batch dimensions.
	Batch uint8
	// Results is the number of outputs of the epilogue, which is operation Op of the Spec, or 0 without one. Columns has a bit for each of
	// its inputs, besides the product, that has an element for each column.
	Results, Columns uint8
	// Made is the prologue.
	Made madeSpec
}

// blocksKind says what a block computes.
type blocksKind uint8

const (
	blocksOnce    blocksKind = iota // a tile
	blocksSplit                     // the sums of a tile over part of the depth, which go to workspace; z is the part
	blocksLasting                   // one tile after the other; it computes the next one while it stores a tile
)

// Split and Lasting report whether blocks are of that kind.
func (p *productSpec) Split() bool   { return p.Blocks == blocksSplit }
func (p *productSpec) Lasting() bool { return p.Blocks == blocksLasting }

// sideSpec describes the layout of an operand: the axis along which elements are adjacent, and the width of accesses.
type sideSpec struct {
	Layout sideLayout
	Width  uint8
}

type sideLayout uint8

const (
	layoutDepth sideLayout = iota // adjacent along the depth
	layoutOwn                     // adjacent along the operand's own axis
	layoutNone                    // neither
)

// mapped gives s, a strided side of the given layout whose tile begins at p0, a tensor map.
func (s *side) mapped(layout sideLayout, m kernel.TensorMap, p0, matrix kernel.Value) {
	s.tensorMap, s.matrix = m, matrix
	s.place = func(k0 kernel.Value) (along, across kernel.Value) {
		if layout == layoutDepth {
			return k0, p0
		}
		return p0, k0
	}
}

// strided returns a side whose element (p, d) is at p*ps + d*ds; the layout says which of these is 1. own says that it is the left operand.
// places is the total number of positions, depth that of depths.
func (g *gemm) strided(spec sideSpec, own bool, u kernel.Buffer, p0, ps, ds, places, depth kernel.Value) side {
	layout := spec.Layout
	s := side{width: int(spec.Width), groups: kernel.AlongCols}
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
