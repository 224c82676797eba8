package kernels

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// mappable reports whether the device's copy engine can load the tiles of a product: it permutes their chunks as wgmma reads them, so wgmma must
// compute the product, and it wants lines of 16-byte chunks and matrices at positive distances.
func (p *product) mappable(lim *Limits, s *Spec, t gemmTile) bool {
	if lim.Major != 9 || lim.Minor != 0 || t.threads < 128 || t.rows < 64 || p.batch.nd > 1 {
		return false
	}
	size := p.a.DType.Size()
	along := s.Attr[2]>>8 == layoutDepth && s.Attr[3]>>8 == layoutDepth
	if size != 2 && (s.Attr[1]&gemmTF32 == 0 || !along) {
		return false
	}
	for i := 1; i <= 2; i++ {
		if int(s.Attr[i+1]&255)*size != 16 || s.Attr[i+1]>>8 == layoutNone || p.lineStride(i)*size >= 1<<40 || p.lineStride(i) <= 0 {
			return false
		}
		if p.batch.numel() > 1 && (p.batch.stride[i][0] <= 0 || p.batch.stride[i][0]*size >= 1<<40) {
			return false
		}
	}
	return true
}

// lineStride returns the distance of operand i's lines of adjacent elements.
func (p *product) lineStride(i int) int {
	if p.s[i][1] == 1 {
		return p.s[i][0]
	}
	return p.s[i][1]
}

// Fields of the third word of a tensor map.
const (
	mapRank      = 4  // the number of dimensions less 1
	mapTypeShift = 7  // the type of elements
	mapSwizzle   = 13 // 1, 2, 3: chunks are permuted within 32, 64, 128 bytes
	mapPromote   = 17 // 2: the L2 cache fetches 128 bytes
)

// mapType returns the number of an element type.
func mapType(t dtype.DType) uint32 {
	switch t {
	case dtype.Float16:
		return 6
	case dtype.BFloat16:
		return 10
	}
	return 7 // float32
}

// mapLine is the longest line in bytes of a box; tiles with longer ones are copied in parts.
const mapLine = 128

// tensorMap appends the tensor map of operand o, product.s[i], for tiles of places x depth. The format is that of sm_90, as
// cuTensorMapEncodeTiled writes it: a call of the driver for each launch would give the same 128 bytes.
func (p *product) tensorMap(l *Launch, i int, o *Operand, count, places, depth int) {
	size := o.DType.Size()
	// Dimensions and box: along lines, across them, matrices.
	dims := [3]int{p.k, count, p.batch.numel()}
	line, lines := depth, places
	if p.s[i][1] != 1 {
		dims[0], dims[1] = dims[1], dims[0]
		line, lines = lines, line
	}
	across := max(p.lineStride(i)*size, 16)
	matrices := across
	if dims[2] > 1 {
		matrices = p.batch.stride[i][0] * size
	}
	line = min(line, mapLine/size)
	swizzle := bits.TrailingZeros(uint(line*size)) - 4
	var w [2 * kir.MapWords]uint32
	w[0], w[1] = uint32(o.Ptr), uint32(o.Ptr>>32)
	w[2] = 2<<mapRank | mapType(o.DType)<<mapTypeShift | uint32(swizzle)<<mapSwizzle | 2<<mapPromote
	// Distances of lines and of matrices, in 16 bytes; the seventh word holds the bits that have no room.
	w[3], w[4], w[7] = uint32(across>>4), uint32(matrices>>4), uint32(across>>36|matrices>>36<<4)
	for d, n := range dims {
		w[8+d] = uint32(n - 1)
	}
	w[13], w[14] = uint32(line-1)<<24, uint32(lines-1)
	// What the driver adds: the bytes of a box, and the alignment that its permutation wants.
	w[16], w[18] = uint32(line*lines*size), uint32(8*line*size)
	for len(l.Args)%kir.MapAlign != kir.MapPlace {
		l.Args = append(l.Args, 0)
	}
	for _, v := range w {
		l.u32(v)
	}
}
