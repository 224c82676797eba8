package ptx

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// dot writes OpTileDot.
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
		f.dotGroup(acc, a, b)
	default:
		f.dotMatrix(acc, a, b)
	}
	f.placeIf(past)
	f.loadAhead()
	if acc.arr.unit == wgmma {
		f.tiles.inflight = true
		if a.loop == nil {
			f.drain()
		}
	}
}

// loadAhead writes the loads that a pipelined loop runs ahead, once the first products of a turn are under way.
func (f *function) loadAhead() {
	if load := f.tiles.ahead; load != nil {
		f.tiles.ahead = nil
		load()
	}
}

// A reader reads fragments of an operand for the matrix units.
//
// With the inner axis along the lines, or with halves, ldmatrix does it: four 8 x 8 matrices of 16-bit elements (or 8 x 4 of 32 bits) whose
// rows are 16-byte chunks; lane l names the l%8-th row of matrix l/8. Where the lines lie across the inner axis it transposes, which it
// can do with 16-bit elements only; 32-bit ones are then loaded one by one.
type reader struct {
	t *tile
	// inner says that lines run along the inner axis.
	inner bool
	// at is the address of the lane's line, and chunk the bits of the lane's first element within the line, permuted.
	at, chunk string
	// offset is the tile's own offset within what at holds.
	offset int
}

// newReader prepares reading of t by a warp whose share begins at element begin (a register) of the outer axis. left says that t is the
// product's left operand.
func (f *function) newReader(t *tile, left bool, begin string) *reader {
	inner := t.along == kir.AlongRows
	if left {
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
		// Matrices in the order (outer, inner): (0,0), (8,0), (0,8), (8,8) on the left; transposed on the right the same lines serve.
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

// place returns the address operand of what lies lines lines and elements elements further; elements is a power of two times a constant
// that does not carry into the lane's own bits, lines a multiple of the permutation's period.
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

// fragment reads the registers of the operand at (outer, inner): on the left 16 x step elements as 4 registers (or 2 words a lane of 32
// bits), on the right step x 16 as 2 registers for each 8 columns, or step x 8 as 2 if narrow.
func (f *function) fragment(r *reader, left bool, outer, inner int, narrow bool, cache map[int]string) []string {
	n := 4
	if narrow {
		n = 2
	}
	lines, elements := outer, inner
	if !r.inner {
		lines, elements = inner, outer
	}
	regs := make([]string, n)
	for i := range regs {
		regs[i] = f.reg(word)
	}
	size := r.t.Type.Size()
	if size == 4 && !r.inner {
		for i, x := range regs {
			// Registers go outer first on the left, inner first on the right.
			o, k := 8*(i%2), 4*(i/2)
			if !left {
				o, k = 8*(i/2), 4*(i%2)
			}
			f.op("ld.shared.b32", x, f.placeOf(r, lines+k, elements+o, cache))
		}
		return regs
	}
	name := "ldmatrix.sync.aligned.m8n8.x" + itoa(n)
	if !r.inner {
		name += ".trans"
	}
	f.m.need(65)
	operand, _ := vector(regs)
	f.op(name+".shared.b16", operand, f.placeOf(r, lines, elements, cache))
	return regs
}

// dotMatrix computes a product on the matrix units. The fragments of a step are read before the products of the step before, so that
// the units need not wait for shared memory.
func (f *function) dotMatrix(acc, a, b *tile) {
	arr := acc.arr
	step := 32 / a.Type.Size() // elements of the inner axis in one instruction: 32 bytes
	left := f.newReader(a, true, f.mulImm(arr.y, arr.rows))
	right := f.newReader(b, false, f.mulImm(arr.x, arr.cols))
	leftPlaces, rightPlaces := map[int]string{}, map[int]string{}
	type fragments struct{ left, right [][]string }
	read := func(k int) (out fragments) {
		for i := range arr.rows / 16 {
			out.left = append(out.left, f.fragment(left, true, 16*i, k, false, leftPlaces))
		}
		for j := 0; j < arr.cols; j += 16 {
			regs := f.fragment(right, false, j, k, arr.cols == 8, rightPlaces)
			for len(regs) > 0 {
				out.right = append(out.right, regs[:2])
				regs = regs[2:]
			}
		}
		if arr.unit == mma8 {
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
	f.m.need(70)
	name := matrixInstruction(arr.unit, a.Type)
	next := read(0)
	for k := 0; k < a.Cols; k += step {
		now := next
		if k+step < a.Cols {
			next = read(k + step)
		}
		for i, x := range now.left {
			for j, y := range now.right {
				n := (i*len(now.right) + j) * 4
				d, _ := vector(acc.regs[n : n+4])
				l, _ := vector(x)
				r, _ := vector(y)
				f.op(name, d, l, r, d)
			}
		}
		if acc.arr.idle == "" { // else threads jump over this place
			f.loadAhead()
		}
	}
}

func matrixInstruction(u unit, t kir.Type) string {
	switch {
	case u == mma8:
		return "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
	case t == dtype.BFloat16:
		return "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
	}
	return "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
}
