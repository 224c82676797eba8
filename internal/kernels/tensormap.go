package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// mappable reports whether the device's copy engine can load the tiles of a product. For halves and tf32 it swizzles chunks as wgmma reads
// them, so wgmma must compute the product; exact float32 operands must lie along their own axes. It needs lines of 16-byte chunks and
// positive strides.
func (p *product) mappable(lim *Limits, s *Spec) bool {
	if lim.Major != 9 || lim.Minor != 0 || p.batch.nd > 2 || p.k == 0 {
		return false
	}
	size := p.a.DType.Size()
	switch along, bAlong := s.Product.Left.Layout == layoutDepth, s.Product.Right.Layout == layoutDepth; {
	case size == 2:
	case size == 4 && s.Product.TF32:
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
		side := s.Product.Left
		if i == 2 {
			side = s.Product.Right
		}
		if int(side.Width)*size != 16 || side.Layout == layoutNone || p.lineStride(i)*size >= 1<<40 || p.lineStride(i) <= 0 {
			return false
		}
		for d, s := range p.batch.stride[i][:p.batch.nd] {
			if p.batch.size[d] > 1 && (s <= 0 || s*size >= 1<<40) {
				return false
			}
		}
	}
	return true
}

// lineStride returns the distance between operand i's lines of adjacent elements.
func (p *product) lineStride(i int) int {
	if p.s[i][1] == 1 {
		return p.s[i][0]
	}
	return p.s[i][1]
}

// mapPlain reports whether plain arithmetic reads the tiles of a product: lines are then copied as they lie in memory.
func mapPlain(t dtype.DType, tf32 bool) bool { return t.Size() == 4 && !tf32 }

// tensorMap returns the tensor map of operand o with strides product.s[i], for tiles of places x depth.
func (p *product) tensorMap(i int, o *Operand, count, places, depth int) kir.TensorMap {
	size := o.DType.Size()
	// The order of dimensions and of the box: along lines, across them, matrices, groups of matrices.
	dims := [4]int{p.k, count, p.batch.size[0], 1}
	line, lines := depth, places
	if p.s[i][1] != 1 {
		dims[0], dims[1] = dims[1], dims[0]
		line, lines = lines, line
	}
	across := max(p.lineStride(i)*size, 16)
	strides := [3]int{across, across, across}
	for d := range p.batch.nd {
		if dims[2+d] = p.batch.size[d]; dims[2+d] > 1 {
			strides[1+d] = p.batch.stride[i][d] * size
		}
	}
	tile := kir.MapTile{Type: o.DType, Line: line, Lines: lines, Groups: p.batchDims() == 2}
	return kir.TensorMap{Addr: o.Ptr, Dims: dims, Strides: strides, Tile: tile}
}
