package kir

import (
	"encoding/binary"
	"math/bits"

	"tenon.dev/dtype"
)

// A tensor map describes an array to the copy engine of sm_90 and is opaque to programs. It has MapWords elements of Uint64 and must be
// aligned to MapAlign bytes in the constant bank. The parameters of sm_90 begin there at 0x210, so in the packed arguments a map lies at
// MapPlace modulo MapAlign.
const (
	MapWords = 16
	MapAlign = 64
	MapPlace = 48
)

// IsMap reports whether p can hold a tensor map.
func (p *Param) IsMap() bool {
	return p.Kind == ParamArray && p.Type == dtype.Uint64 && p.Count == MapWords && p.Align == MapAlign
}

// TensorMap is the content of a tensor map: an array of matrices, or of groups of matrices, whose lines are adjacent elements, and the tile
// that is loaded from it.
type TensorMap struct {
	// Addr is the address of the array, a multiple of 16.
	Addr uint64
	// Dims are the numbers of elements per line, lines per matrix, matrices per group, and groups, each from 1 to 1<<32.
	Dims [4]int
	// Strides are the byte strides of lines, matrices and groups, multiples of 16 below 1<<40.
	Strides [3]int
	// Tile is the tile that is loaded; lines longer than mapLine bytes are copied in parts.
	Tile MapTile
	// Pixels says which pixels of images a tile of them has.
	Pixels MapPixels
}

// MapPixels describes the walk over images [groups, matrices, lines, elements], whose elements are a pixel's channels, that a tile takes:
// from First on, every Step-th column up to Last, then every Step-th row likewise, then the next image. The load says where in the walk
// the tile begins, and how far from the pixels of the walk its elements lie. Positions are {column, row}, from -128 to 127; Last is that
// much beyond the last column and row. Steps are at most 8.
type MapPixels struct{ First, Last, Step [2]int }

// MapFarthest is the largest distance of a load's elements from the pixels of the walk, in columns and in rows.
const MapFarthest = 255

// Fields of the third word of a tensor map.
const (
	mapImages    = 0  // 1: tiles are walks over pixels
	mapRank      = 4  // the number of dimensions minus 1
	mapTypeShift = 7  // the element type
	mapSwizzle   = 13 // 1, 2, 3: chunks are swizzled within 32, 64, 128 bytes
	mapPromote   = 17 // 2: the L2 cache fetches 128 bytes
)

// mapTypes are the format's numbers for the element types.
var mapTypes = map[Type]uint32{dtype.Float16: 6, dtype.Float32: 7, dtype.BFloat16: 10}

// Mappable reports whether tensor maps support elements of type t: Float16, BFloat16 and Float32.
func Mappable(t Type) bool { return mapTypes[t] != 0 }

// mapLine is the maximum line length in bytes of a swizzled box; tiles with longer lines are copied in parts.
const mapLine = 128

// maxBox is the maximum number of elements of one copy along each axis.
const maxBox = 256

// Append appends the map in the format of sm_90, which cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col also write: calling the driver
// for each launch would give the same 128 bytes.
func (m *TensorMap) Append(b []byte) []byte {
	size := m.Tile.Type.Size()
	line, swizzle, align := min(m.Tile.Line, maxBox), 0, 16 // tiles with longer lines are not copied this way
	if !m.Tile.Plain {
		line = min(line, mapLine/size)
		swizzle, align = max(bits.TrailingZeros(uint(line*size))-4, 0), 8*line*size // nor are those with shorter ones
	}
	var w [2 * MapWords]uint32
	w[0], w[1] = uint32(m.Addr), uint32(m.Addr>>32)
	rank, images := 3, 0
	if m.Tile.Groups {
		rank = 4
	}
	if m.Tile.Pixels {
		rank, images = 4, 1
	}
	w[2] = uint32(images)<<mapImages | uint32(rank-1)<<mapRank | mapTypes[m.Tile.Type]<<mapTypeShift |
		uint32(swizzle)<<mapSwizzle | 2<<mapPromote
	// Strides of lines, matrices and groups, in units of 16 bytes; the seventh word holds their high bits.
	for d, n := range m.Strides[:rank-1] {
		w[3+d] = uint32(n >> 4)
		w[7] |= uint32(n>>36) << (4 * d)
	}
	for d, n := range m.Dims[:rank] {
		w[8+d] = uint32(n - 1)
	}
	w[13], w[14] = uint32(line-1)<<24, uint32(m.Tile.Lines-1)
	if m.Tile.Pixels {
		x := &m.Pixels
		w[13] |= uint32(x.Step[0]-1)<<3 | uint32(x.Step[1]-1)<<6
		w[14] = uint32(uint8(x.First[0])) | uint32(uint8(x.First[1]))<<8 | uint32(uint8(x.Last[0]))<<16 | uint32(uint8(x.Last[1]))<<24
		w[15] = uint32(m.Tile.Lines - 1)
	}
	// What the driver adds: the size of a box in bytes, and the alignment that its swizzle requires.
	w[16], w[18] = uint32(line*m.Tile.Lines*size), uint32(align)
	for _, v := range w {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// ParseTensorMap returns the address, dimensions, strides and walk of a map that Append wrote, and false for a map that was not filled in.
func ParseTensorMap(b []byte) (m TensorMap, ok bool) {
	word := func(i int) int { return int(binary.LittleEndian.Uint32(b[4*i:])) }
	if word(2) == 0 {
		return m, false
	}
	m.Addr = binary.LittleEndian.Uint64(b)
	for d := range m.Strides {
		m.Strides[d] = word(3+d)<<4 | word(7)>>(4*d)&15<<36
	}
	for d := range m.Dims {
		m.Dims[d] = word(8+d) + 1
	}
	m.Tile.Pixels = word(2)>>mapImages&1 == 1
	m.Tile.Groups = word(2)>>mapRank&7 == 3 && !m.Tile.Pixels
	if m.Tile.Pixels {
		signed := func(byte int) int { return int(int8(word(14) >> (8 * byte))) }
		m.Pixels = MapPixels{[2]int{signed(0), signed(1)}, [2]int{signed(2), signed(3)}, [2]int{word(13)>>3&7 + 1, word(13)>>6&7 + 1}}
	}
	return m, true
}

// MapTile is the shape of the tiles that a tensor map loads: lines, and elements per line, which are adjacent in memory.
type MapTile struct {
	Type        Type
	Line, Lines int
	// Plain: chunks of lines are not swizzled, see Param. Groups: the array has groups of matrices. Pixels: the array is of images, and
	// lines are pixels.
	Plain, Groups, Pixels bool
}

// mapPlaces is how many coordinates locate a tile in an array that has groups of matrices; other arrays have one fewer.
const mapPlaces = 4

// Places in images are the column, row and image of the first pixel, and for each part of a line the first channel and the distances, not
// negative, in columns and rows.
const (
	ImagePlaces = 3
	PartPlaces  = 3
)

// ImageParts returns the number of parts in which a load with that many coordinates copies the lines of a tile of pixels, 0 for others.
func ImageParts(places int) int {
	if places <= mapPlaces {
		return 0
	}
	return (places - ImagePlaces) / PartPlaces
}

// MapParts returns the number of parts in which swizzled lines of n elements of t are copied.
func MapParts(t Type, n int) int { return max(1, n*t.Size()/mapLine) }

// mapTile returns the shape of the tile that a load fills.
func (p *Program) mapTile(in *Instr) MapTile {
	t := &p.Tiles[in.Sym]
	m := MapTile{t.Type, t.Cols, t.Rows, p.Params[in.Imm].Plain, len(in.Args) == mapPlaces, len(in.Args) > mapPlaces}
	if in.Sub == AlongRows {
		m.Line, m.Lines = m.Lines, m.Line
	}
	return m
}

// MapTiles returns, for each parameter, the shape of the tiles that it loads as a tensor map, or zero if it loads none.
func (p *Program) MapTiles() []MapTile {
	out := make([]MapTile, len(p.Params))
	var visit func(b *Block)
	visit = func(b *Block) {
		for _, in := range b.Instrs {
			if in.Op == OpTileLoad && len(in.Args) > 0 {
				out[in.Imm] = p.mapTile(in)
			}
			for _, inner := range in.Blocks {
				visit(inner)
			}
		}
	}
	visit(p.Body)
	return out
}
