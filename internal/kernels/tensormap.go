package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// mappable reports whether the device's copy engine can load the tiles of a product: it permutes their chunks as wgmma reads them, so wgmma must
// compute the product, and it wants lines of 16-byte chunks and matrices at positive distances.
func (p *product) mappable(lim *Limits, s *Spec) bool {
	if lim.Major != 9 || lim.Minor != 0 || p.batch.nd > 1 || p.k == 0 {
		return false
	}
	size := p.a.DType.Size()
	switch along, bAlong := s.Attr[2]>>8 == layoutDepth, s.Attr[3]>>8 == layoutDepth; {
	case size == 2:
	case size == 4 && s.Attr[1]&gemmTF32 != 0:
		if !along {
			return false
		}
	case size == 4:
		if along || bAlong {
			return false
		}
	default:
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

// mapPlain reports whether the tiles of a product are read by plain arithmetic: lines are then copied as they lie in memory.
func mapPlain(t dtype.DType, tf32 bool) bool { return t.Size() == 4 && !tf32 }

// tensorMap appends the tensor map of operand o, product.s[i], for tiles of places x depth.
func (p *product) tensorMap(l *Launch, i int, o *Operand, count, places, depth int, plain bool) {
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
	m := kir.TensorMap{Addr: o.Ptr, Dims: dims, Strides: [2]int{across, matrices}, Tile: kir.MapTile{Type: o.DType, Line: line, Lines: lines, Plain: plain}}
	for len(l.Args)%kir.MapAlign != kir.MapPlace {
		l.Args = append(l.Args, 0)
	}
	l.Args = m.Append(l.Args)
}
