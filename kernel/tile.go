package kernel

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// Tile is a matrix that the threads of a block own together. All of them must execute every tile operation.
type Tile struct {
	b          *Builder
	i          int
	t          dtype.DType
	rows, cols int
}

// Tile declares a rows x cols tile of type t.
func (b *Builder) Tile(name string, t dtype.DType, rows, cols int) Tile {
	b.own()
	b.prog.Tiles = append(b.prog.Tiles, kir.Tile{Name: name, Type: t, Rows: rows, Cols: cols})
	return Tile{b, len(b.prog.Tiles) - 1, t, rows, cols}
}

// TileInParts declares a tile for sums of products in which the block's threads form parts equal groups. Each group adds up an equal share
// of the inner axis of every product, which the parts must divide, and Each sees the sum of the parts, added in their order. More threads
// then share a small tile. Such a tile can only be zeroed, added to by Dot, and visited by Each; parts must divide the block's threads into
// groups of a multiple of 32.
func (b *Builder) TileInParts(name string, t dtype.DType, rows, cols, parts int) Tile {
	tile := b.Tile(name, t, rows, cols)
	if parts < 1 {
		b.fail("tile %s is summed in %d parts; give at least 1", name, parts)
		return tile
	}
	b.prog.Tiles[tile.i].Parts = parts
	return tile
}

// Zero sets all elements to 0.
func (t Tile) Zero() { t.b.add(&kir.Instr{Op: kir.OpTileZero, Type: t.t, Sym: t.i}) }

// Groups says along which axis neighbouring elements of a tile are adjacent in memory.
type Groups = kir.Sub

// The axes of groups.
const (
	AlongRows = kir.AlongRows
	AlongCols = kir.AlongCols
)

// Load fills the tile. At (row, col), Int32, f returns the buffer, the element's index (Int64) and whether it is inside (Bool); elements
// that are not become 0. Groups of width elements along the axis g promise consecutive aligned addresses and the same value of inside, and
// f runs once per group.
func (t Tile) Load(g Groups, width int, f func(row, col Value) (u Buffer, index, inside Value)) {
	t.load(&kir.Instr{}, g, width, f)
}

// TensorMap is a launch parameter that describes an array of matrices to a device's copy engine. The launch fills it in from a tensor,
// given with tenon.Mapped. The tensor's last dimension is the position in a line, the one before it the line of a matrix, a third one the
// matrix, and a fourth one the group of matrices.
type TensorMap struct {
	b     *Builder
	i     int
	group Value
}

// Group returns m with the index (Int32) of the group of matrices to load from. All loads by a map of four dimensions need one.
func (m TensorMap) Group(group Value) TensorMap {
	m.b.ids(group)
	m.group = group
	return m
}

// TensorMap declares a tensor map. All tiles loaded by it have the same shape.
func (b *Builder) TensorMap(name string) TensorMap {
	return b.tensorMap(name, false)
}

func (b *Builder) tensorMap(name string, plain bool) TensorMap {
	p := kir.Param{Name: name, Kind: kir.ParamArray, Type: dtype.Uint64, Count: kir.MapWords, Align: kir.MapAlign, Plain: plain}
	return TensorMap{b: b, i: b.param(p)}
}

// PlainTensorMap is TensorMap for tiles that plain arithmetic reads, such as exact products of float32 and maps of rows: their lines are
// copied as they lie in memory. Using the wrong kind gives correct results but is slower, because the tile is then loaded as by Load.
func (b *Builder) PlainTensorMap(name string) TensorMap {
	return b.tensorMap(name, true)
}

// LoadMapped is Load for a tile whose first element is at (along, across), Int32, in a matrix of the array that m describes: along the
// groups and across them. Elements outside the array are 0. A device may copy the tile from there instead of running f. Both must give the
// same tile: the simulator runs f and stops if they differ. GPUs of compute capability 9.0 copy in a Pipelined loop of at least two
// stages in which all loads have maps, if the matrix units read the tiles from shared memory (blocks of at least 128 threads, products of
// at least 64 rows and 16 columns) or, with plain maps, if exact products of float32 do, the left tile along its rows and the right one
// along its columns, or if the tiles are rows that a Map reads.
func (t Tile) LoadMapped(m TensorMap, along, across, matrix Value, g Groups, width int,
	f func(row, col Value) (u Buffer, index, inside Value)) {
	t.b.mine("tensor map", m.b)
	place := t.b.ids(along, across, matrix)
	if m.group.Builder() != nil {
		place = append(place, t.b.ids(m.group)...)
	}
	t.load(&kir.Instr{Args: place, Imm: uint64(m.i)}, g, width, f)
}

// Patch says where a part of the lines of a tile of pixels begins.
type Patch struct {
	// Channel, Int32, is the first channel.
	Channel Value
	// Col and Row, Int32 from 0 to 255, are the distances from the pixels of the tile's walk.
	Col, Row Value
}

// Pixels says where a tile of pixels begins in the walk over images that its map describes.
type Pixels struct {
	// Col, Row and Image, Int32, are the place of the walk's first pixel. It may lie outside of the image.
	Col, Row, Image Value
	// Patches has an entry for each part of a line. Parts have 128 bytes; shorter lines are one part.
	Patches []Patch
}

// LoadPixels is LoadMapped for a tile of pixels, which convolutions load: m describes images, and each line of the tile has channels of a
// pixel of the map's walk over the images, from at on. Only the kernels of this module can be launched with such maps.
func (t Tile) LoadPixels(m TensorMap, at Pixels, g Groups, width int, f func(row, col Value) (u Buffer, index, inside Value)) {
	t.b.mine("tensor map", m.b)
	place := t.b.ids(at.Col, at.Row, at.Image)
	for _, p := range at.Patches {
		place = append(place, t.b.ids(p.Channel, p.Col, p.Row)...)
	}
	t.load(&kir.Instr{Args: place, Imm: uint64(m.i)}, g, width, f)
}

func (t Tile) load(in *kir.Instr, g Groups, width int, f func(row, col Value) (u Buffer, index, inside Value)) {
	t.b.own()
	if f == nil {
		t.b.fail(noBody)
		return
	}
	in.Op, in.Type, in.Sym, in.Sub, in.Width, in.Loc = kir.OpTileLoad, t.t, t.i, g, width, t.b.loc()
	row, col := t.b.value(dtype.Int32), t.b.value(dtype.Int32)
	in.Blocks = []*kir.Block{t.b.region(func() {
		u, index, inside := f(row, col)
		yield := t.b.ids(u.addr, index, inside)
		if u.t != t.t {
			t.b.fail("a tile of %v is loaded from a buffer of %v; declare both with one type", t.t, u.t)
		}
		t.b.add(&kir.Instr{Op: kir.OpYield, Args: yield})
	}, row, col)}
	t.b.add(in)
}

// uses rejects operands that do not belong to t's kernel.
func (t Tile) uses(others ...Tile) {
	for _, o := range others {
		t.b.mine("tile", o.b)
	}
}

// Dot adds the product a x c to the tile: [M,N] += [M,K] x [K,N]. With tf32, float32 operands may be rounded to 10 fraction bits.
func (t Tile) Dot(a, c Tile, tf32 bool) {
	t.uses(a, c)
	in := &kir.Instr{Op: kir.OpTileDot, Type: a.t, Sym: t.i, Imm: uint64(a.i)<<32 | uint64(c.i)}
	if tf32 {
		in.Sub = kir.DotTF32
	}
	t.b.add(in)
}

// DotTransposed adds the product a x cᵀ of two tiles of halves to the tile: [M,N] += [M,K] x [N,K]ᵀ.
func (t Tile) DotTransposed(a, c Tile) {
	t.uses(a, c)
	t.b.add(&kir.Instr{Op: kir.OpTileDot, Type: a.t, Sym: t.i, Sub: kir.DotTransposed, Imm: uint64(a.i)<<32 | uint64(c.i)})
}

// Map sets every element v at (row, col), Int32, of a sum of products to f's result, which has the tile's type. f also gets the elements at
// the same position of up to three other tiles. These are sums of products with as many rows, and as many columns or one. They can also be
// rows: tiles of Float32 with one row and as many columns, loaded AlongCols and used for nothing else; all rows of the map get the same
// element of a column. f may load but must not store. The map itself reads no memory but that of rows, so it may be used in a Pipelined
// loop.
func (t Tile) Map(f func(row, col, v Value, others []Value) Value, others ...Tile) {
	t.b.own()
	if f == nil {
		t.b.fail(noBody)
		return
	}
	if len(others) > kir.MapTilesMost {
		t.b.fail("a map reads %d other tiles; the limit is %d", len(others), kir.MapTilesMost)
		return
	}
	t.uses(others...)
	in := &kir.Instr{Op: kir.OpTileMap, Type: t.t, Sym: t.i, Loc: t.b.loc()}
	params := []Value{t.b.value(dtype.Int32), t.b.value(dtype.Int32), t.b.value(t.t)}
	var tiles []int
	for _, o := range others {
		tiles = append(tiles, o.i)
		params = append(params, t.b.value(o.t))
	}
	in.Imm = kir.MapImm(tiles...)
	in.Blocks = []*kir.Block{t.b.region(func() {
		y := f(params[0], params[1], params[2], params[3:])
		yield := t.b.ids(y)
		if y.t != t.t {
			t.b.fail("a map of a tile of %v results in %v; convert it", t.t, y.t)
		}
		t.b.add(&kir.Instr{Op: kir.OpYield, Args: yield})
	}, params...)}
	t.b.add(in)
}

// AddRows adds all of row r of from, a sum of products in Float32, to element r of the tile, which has one column and as many rows. The
// device chooses the order of the additions.
func (t Tile) AddRows(from Tile) { t.combineRows(kir.RowsSum, from) }

// MaxRows sets element r of the tile, which has one column, to the maximum of its value and row r of from. See AddRows for the tiles.
func (t Tile) MaxRows(from Tile) { t.combineRows(kir.RowsMax, from) }

func (t Tile) combineRows(s kir.Sub, from Tile) {
	t.uses(from)
	t.b.add(&kir.Instr{Op: kir.OpTileRows, Type: t.t, Sym: t.i, Sub: s, Imm: uint64(from.i)})
}

// Round sets the tile, of halves, to the elements of from, a sum of products in Float32 of the same shape. The tile can then only be the
// left operand of products.
func (t Tile) Round(from Tile) {
	t.uses(from)
	t.b.add(&kir.Instr{Op: kir.OpTileCopy, Type: t.t, Sym: t.i, Imm: uint64(from.i)})
}

// Each runs f once for every group of width adjacent columns (1, 2, 4, 8 or 16). The group begins at (row, col), Int32; col is a multiple
// of width.
func (t Tile) Each(width int, f func(row, col Value, vs []Value)) {
	t.b.own()
	if f == nil {
		t.b.fail(noBody)
		return
	}
	if width < 1 || width > maxWidth {
		t.b.fail("a tile cannot be visited %d elements at a time; give 1 to %d", width, maxWidth)
		return
	}
	in := &kir.Instr{Op: kir.OpTileEach, Type: t.t, Sym: t.i, Width: width, Loc: t.b.loc()}
	params := []Value{t.b.value(dtype.Int32), t.b.value(dtype.Int32)}
	for range width {
		params = append(params, t.b.value(t.t))
	}
	in.Blocks = []*kir.Block{t.b.region(func() { f(params[0], params[1], params[2:]) }, params...)}
	t.b.add(in)
}
