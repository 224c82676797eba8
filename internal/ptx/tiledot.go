package ptx

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// dot emits OpTileDot.
func (f *function) dot(in *kir.Instr) {
	acc := f.tiles.tiles[in.Sym]
	i, j := dotOperands(in)
	a, b := f.tiles.tiles[i], f.tiles.tiles[j]
	past := ""
	if acc.arr.idle != "" {
		past = f.label()
		f.when(acc.arr.idle, "bra", past)
	}
	switch acc.arr.unit {
	case plain:
		f.dotPlain(acc, a, b)
	case wgmma:
		f.dotGroup(in, acc, a, b)
		f.tiles.flight = append(f.tiles.flight, [2]*tile{acc, a})
	default:
		f.dotMatrix(in, acc, a, b)
	}
	f.placeIf(past)
	f.loadAhead()
	if a.loop == nil && b.loop == nil {
		f.drain()
	}
}

// loadAhead emits the loads that a pipelined loop runs ahead, after the first products of an iteration have started.
func (f *function) loadAhead() {
	if load := f.tiles.ahead; load != nil {
		f.tiles.ahead = nil
		load()
	}
}

// A reader reads fragments of an operand for the matrix units.
//
// If the inner axis is along the lines, or for halves, it uses ldmatrix: four 8 x 8 matrices of 16-bit elements (or 8 x 4 of 32-bit ones)
// whose rows are 16-byte chunks; lane l gives the address of row l%8 of matrix l/8. If the lines run across the inner axis, ldmatrix
// transposes, but only 16-bit elements; 32-bit ones are then loaded one by one.
type reader struct {
	t *tile
	// inner says that lines run along the inner axis.
	inner bool
	// at is the address of the lane's line, and chunk the swizzled byte offset of the lane's first element within the line.
	at, chunk string
	// offset is the tile's own offset, which is added to at.
	offset int
}

// newReader prepares reading t by a warp whose share begins at element begin (a register) of the outer axis. left says that t is the
// product's left operand, transposed that it is the right operand and stored transposed.
func (f *function) newReader(t *tile, left, transposed bool, begin string) *reader {
	inner := t.along == kir.AlongRows
	if left != transposed {
		inner = !inner
	}
	r := &reader{t: t, inner: inner, offset: t.offset}
	lane := f.lane()
	size := t.Type.Size()
	var line, element string
	switch {
	case size == 4 && !inner: // lane l has element (l/4, l%4) of each matrix
		line = f.remImm(lane, 4)
		element = f.to(word, "add.s32", begin, f.divImm(lane, 4))
	case left == inner:
		// The order of the matrices as (outer, inner) is (0,0), (8,0), (0,8), (8,8) on the left; the same lines serve on the right if it is
		// transposed.
		line, element = f.remImm(lane, 16), f.mulImm(f.divImm(lane, 16), 16/size)
	default:
		line = f.madImm(f.divImm(lane, 16), 8, f.remImm(lane, 8))
		element = f.mulImm(f.remImm(f.divImm(lane, 8), 2), 16/size)
	}
	if !(size == 4 && !inner) {
		if inner {
			line = f.to(word, "add.s32", begin, line)
		} else {
			element = f.to(word, "add.s32", begin, element)
		}
	}
	bytes := f.mulImm(element, size)
	if t.chunks > 1 {
		bytes = f.to(word, "xor.b32", bytes, f.turned(t, line))
	}
	r.chunk = bytes
	r.at = f.madImm(line, t.stride, f.operand(t))
	return r
}

// placeOf returns the address operand of the element that is lines lines and elements elements further. elements must be a power of two
// times a constant that does not carry into the lane's own bits, and lines a multiple of the period of the swizzle.
func (f *function) placeOf(r *reader, lines, elements int, cache map[int]string) string {
	bits := elements * r.t.Type.Size()
	a, ok := cache[bits]
	if !ok {
		c := r.chunk
		if bits != 0 {
			c = f.to(word, "xor.b32", c, itoa(bits))
		}
		a = f.to(word, "add.s32", r.at, c)
		cache[bits] = a
	}
	return location(a, int64(r.offset+lines*r.t.stride))
}

// fragment reads the registers of the operand at (outer, inner): on the left 4 registers for 16 rows of one step, on the right 4 registers
// for 16 columns or 2 for 8.
func (f *function) fragment(r *reader, left bool, outer, inner int, regs []string, cache map[int]string) {
	lines, elements := outer, inner
	if !r.inner {
		lines, elements = inner, outer
	}
	if r.t.Type.Size() == 4 && !r.inner {
		for i, x := range regs {
			// Registers are in outer-first order on the left, inner-first on the right.
			o, k := 8*(i%2), 4*(i/2)
			if !left {
				o, k = 8*(i/2), 4*(i%2)
			}
			f.op("ld.shared.b32", x, f.placeOf(r, lines+k, elements+o, cache))
		}
		return
	}
	name := "ldmatrix.sync.aligned.m8n8.x" + itoa(len(regs))
	if !r.inner {
		name += ".trans"
	}
	f.m.need(65)
	operand, _ := vector(regs)
	f.op(name+".shared.b16", operand, f.placeOf(r, lines, elements, cache))
}

// fragments are the registers of one step of a product by mma, for each 16 rows and for each 8 columns.
type fragments struct{ left, right [][]string }

// matrixReader reads the fragments of a product.
type matrixReader struct {
	arr         *arrangement
	left, right *reader // left is nil if the operand is in registers
	// leftPlaces and rightPlaces hold the address registers of each operand.
	leftPlaces, rightPlaces map[int]string
}

func (f *function) newMatrixReader(in *kir.Instr, acc, a, b *tile) *matrixReader {
	m := &matrixReader{arr: acc.arr, leftPlaces: map[int]string{}, rightPlaces: map[int]string{}}
	if !a.held {
		m.left = f.newReader(a, true, false, f.mulImm(acc.arr.y, acc.arr.rows))
	}
	m.right = f.newReader(b, false, in.Sub == kir.DotTransposed, f.mulImm(acc.arr.x, acc.arr.cols))
	return m
}

// read reads the fragments at k of the inner axis, into the registers of old unless it is nil.
func (f *function) read(m *matrixReader, k int, old *fragments) *fragments {
	out := old
	if out == nil {
		out = &fragments{}
		if m.left != nil {
			for range m.arr.rows / 16 {
				out.left = append(out.left, []string{f.reg(word), f.reg(word), f.reg(word), f.reg(word)})
			}
		}
		for range m.arr.cols / 8 {
			out.right = append(out.right, []string{f.reg(word), f.reg(word)})
		}
	}
	for i, regs := range out.left {
		f.fragment(m.left, true, 16*i, k, regs, m.leftPlaces)
	}
	for j := 0; j < len(out.right); j += 2 {
		regs := out.right[j]
		if j+1 < len(out.right) {
			regs = append(regs[:2:2], out.right[j+1]...)
		}
		f.fragment(m.right, false, 8*j, k, regs, m.rightPlaces)
	}
	if m.arr.unit == mma8 {
		for _, set := range [][][]string{out.left, out.right} {
			for _, regs := range set {
				for _, x := range regs {
					f.op("cvt.rna.tf32.f32", x, x)
				}
			}
		}
	}
	return out
}

// firstFragments reads the first fragments of a rotated product before its loop.
func (f *function) firstFragments(in *kir.Instr) {
	i, j := dotOperands(in)
	a, b := f.tiles.tiles[i], f.tiles.tiles[j]
	a.loop.first = f.read(f.newMatrixReader(in, f.tiles.tiles[in.Sym], a, b), 0, nil)
}

// dotMatrix computes a product on the matrix units. The fragments of a step are read before the products of the preceding step, so that the
// units need not wait for shared memory. Those of a rotated product's first step are read even before the last products of the preceding
// iteration.
func (f *function) dotMatrix(in *kir.Instr, acc, a, b *tile) {
	step := 32 / a.Type.Size() // elements of the inner axis per instruction: 32 bytes
	rotated := a.loop != nil && a.loop.rotated == in
	m := f.newMatrixReader(in, acc, a, b)
	var next *fragments
	if rotated {
		next = a.loop.first
	} else {
		next = f.read(m, 0, nil)
	}
	for k := 0; k < a.Cols; k += step {
		now, last := next, k+step >= a.Cols
		if !last {
			next = f.read(m, k+step, nil)
		}
		if rotated && last && k > 0 {
			f.tiles.turn()
			f.read(f.newMatrixReader(in, acc, a, b), 0, a.loop.first)
		}
		if a.held {
			now.left = nil
			for i := range acc.arr.rows / 16 {
				now.left = append(now.left, a.heldAt(i, k))
			}
		}
		f.multiply(acc, a.Type, now)
		if acc.arr.idle == "" { // otherwise threads jump over this point
			f.loadAhead()
		}
		if rotated && last && k == 0 {
			f.tiles.turn()
			f.read(f.newMatrixReader(in, acc, a, b), 0, a.loop.first)
		}
	}
}

// multiply adds the products of one step.
func (f *function) multiply(acc *tile, t kir.Type, x *fragments) {
	f.m.need(70)
	name := matrixInstruction(acc.arr.unit, t)
	for i, l := range x.left {
		left, _ := vector(l)
		for j, r := range x.right {
			right, _ := vector(r)
			n := (i*len(x.right) + j) * 4
			d, _ := vector(acc.regs[n : n+4])
			f.op(name, d, left, right, d)
		}
	}
}

func matrixInstruction(u unit, t kir.Type) string {
	switch {
	case u == mma8:
		return "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
	case t == dtype.Int8:
		return "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
	case t == dtype.BFloat16:
		return "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
	}
	return "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
}
