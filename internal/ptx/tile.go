package ptx

import (
	"math/bits"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// A tile is an operand or an accumulator.
//
// An operand is stored in shared memory as lines of elements that are adjacent in global memory: rows, or columns if it is loaded along
// rows. For the matrix units the 16-byte chunks of each line are swizzled, so that the eight lines that one instruction reads are in
// different banks. For plain arithmetic each line is followed by 16 bytes of padding, for the same purpose. Instructions that read shared
// memory themselves require lines of at most 128 bytes. Longer lines are cut: first come the first parts of all lines, then their second
// parts, and so on.
//
// An accumulator is in registers, as described by its arrangement.
type tile struct {
	kir.Tile
	acc bool
	// held says that it is an operand in registers, the left one of products. Each fragment of 16 x 16 has 4 words in the order that the
	// instructions require.
	held bool
	// along is the axis of a line, per the number of elements in a line, and lines the number of lines.
	along      kir.Sub
	per, lines int
	// stride is the distance between lines in bytes, chunks the number of chunks that are swizzled together (1 for none), and turn the
	// factor of the line number in the swizzle.
	stride, chunks, turn int
	// cut is the distance between the parts of a line, or 0 if lines are not cut.
	cut int
	// arch says that wgmma reads it, mapped that a tensor map describes its source, plainly that a plain tensor map does, and bare that the
	// copy engine brings its lines as they are, without padding, for plain arithmetic or for maps.
	arch, mapped, plainly, bare bool
	// offset is the offset in the tiles' shared memory, or within a stage of loop.
	offset int
	loop   *pipeline
	// arr and regs belong to an accumulator.
	arr  *arrangement
	regs []string
}

// bytes returns how much shared memory one copy of an operand takes.
func (t *tile) bytes() int {
	if t.cut > 0 {
		return t.cut * (t.per * t.Type.Size() / t.stride)
	}
	align := 16
	switch {
	case t.arch:
		align = tileAlign
	case t.bare:
		align = bareAlign
	}
	return (t.lines*t.stride + align - 1) &^ (align - 1)
}

// tileAlign is the alignment of wgmma operands: wgmma derives the swizzle of chunks from their addresses, and it repeats every 1024 bytes.
const tileAlign = 1024

// bareAlign is the alignment of what the copy engine writes without a swizzle.
const bareAlign = 128

// unit says how an accumulator's products are computed.
type unit uint8

const (
	// plain: fused multiply-adds on blocks of registers, one block per thread.
	plain unit = iota
	// mma16: mma.m16n8k16 on halves, or m16n8k32 on bytes. mma8: mma.m16n8k8 on tf32.
	mma16
	mma8
	// wgmma: wgmma.m64nNk16 on halves, m64nNk32 on bytes or m64nNk8 on tf32, by four warps together.
	wgmma
)

// fragments reports whether warps read operands from shared memory themselves, in fragments of 16 x 32 bytes.
func (u unit) fragments() bool { return u == mma16 || u == mma8 }

// arrangement says which thread holds which elements of an accumulator.
//
// For the matrix units the block's warps form a grid of down x across. Each holds rows x cols elements as fragments of 16 x 8, in which
// lane l has columns 2(l%4) and the next, in rows l/4 and l/4+8 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
//
// For wgmma all warps are stacked vertically and take 16 rows each in turn, so that four hold 64 adjacent ones.
//
// If turned, wgmma computes the transposed product, because it takes 32-bit elements that do not lie along the inner axis only from
// registers, and only as the left operand. Rows and columns of the arrangement are then the tile's columns and rows. The rows of fragments
// are distributed over the columns so that the lanes of a warp access different banks (turnedCol).
//
// For plain arithmetic the threads form a grid of down x across. Each holds rows x cols elements in groups of rowGroup adjacent rows and
// colGroup adjacent columns; groups of neighbouring threads are adjacent.
type arrangement struct {
	unit               unit
	turned             bool
	down, across       int
	rows, cols         int
	rowGroup, colGroup int
	// rowStep is the distance between a warp's fragments.
	rowStep int
	// row and col are registers with the position of the thread's first element. idle is a predicate that is true in threads that hold no
	// elements, or empty.
	row, col, idle string
	// y and x are registers with the thread's (or warp's) position in the grid. inner is the row within the warp's share.
	y, x, inner string
	// block is a register with the index of the thread's group of four warps, if wgmma has several such groups; part is one with the index
	// of the part of the sum that the thread's group adds up, if there are several.
	block, part string
}

// item is a run of adjacent columns of an accumulator in one thread's registers, at a constant distance from the thread's first element.
type item struct {
	row, col int
	regs     []string
}

// items lists an accumulator's registers.
func (t *tile) items() []item {
	var out []item
	a := t.arr
	if a.unit != plain && t.Cols == 1 { // each of four lanes has the row's only element
		for i := range a.rows / 16 {
			for h := range 2 {
				out = append(out, item{a.rowStep*i + 8*h, 0, t.regs[2*i+h : 2*i+h+1]})
			}
		}
		return out
	}
	if a.turned {
		for i := range a.rows / 16 {
			for j := range a.cols / 8 {
				for e := range 2 {
					n := (i*(a.cols/8)+j)*4 + e
					out = append(out, item{8*j + e, a.rowStep * i, []string{t.regs[n], t.regs[n+2]}})
				}
			}
		}
		return out
	}
	if a.unit != plain {
		for i := range a.rows / 16 {
			for h := range 2 {
				for j := range a.cols / 8 {
					n := (i*(a.cols/8)+j)*4 + 2*h
					out = append(out, item{a.rowStep*i + 8*h, 8 * j, t.regs[n : n+2]})
				}
			}
		}
		return out
	}
	for i := range a.rows {
		for j := 0; j < a.cols; j += a.colGroup {
			n := i*a.cols + j
			out = append(out, item{a.rowAt(i), a.colAt(j), t.regs[n : n+a.colGroup]})
		}
	}
	return out
}

// rowAt returns the distance of a thread's i-th row from its first row in plain arithmetic.
func (a *arrangement) rowAt(i int) int { return i/a.rowGroup*a.rowGroup*a.down + i%a.rowGroup }

// colAt returns the distance of a thread's j-th column from its first column in plain arithmetic.
func (a *arrangement) colAt(j int) int { return j/a.colGroup*a.colGroup*a.across + j%a.colGroup }

// arrange chooses the arrangement of an accumulator of rows x cols over the block. If whole is set, each warp has whole rows.
func arrange(u unit, rows, cols, threads int, a, b *tile, whole bool) *arrangement {
	if u == plain {
		return arrangePlain(rows, cols, threads, a, b)
	}
	warps := threads / 32
	if u == wgmma {
		turned := a.Type.Size() == 4 && b.along == kir.AlongCols
		if turned {
			rows, cols = cols, rows
		}
		down := min(warps, rows/16)
		return &arrangement{unit: u, turned: turned, down: down, across: 1, rows: rows / down, cols: cols, rowStep: 16 * down}
	}
	// A warp's shared memory traffic grows with the sum of the sides of its share, so the share closest to a square is best.
	var best *arrangement
	for down := 1; down <= warps; down *= 2 {
		for across := 1; down*across <= warps; across *= 2 {
			r, c := rows/down, cols/across
			if r%16 != 0 || c%8 != 0 || whole && across > 1 {
				continue
			}
			n := &arrangement{unit: u, down: down, across: across, rows: r, cols: c, rowStep: 16}
			if best == nil || r*c < best.rows*best.cols || r*c == best.rows*best.cols && r+c <= best.rows+best.cols {
				best = n
			}
		}
	}
	return best
}

// arrangePlain chooses blocks of registers that are nearly square. Operands whose lines run along the product's own axis are read four
// neighbours at a time. Others are read four steps of the inner axis at a time, one line per row or column.
func arrangePlain(rows, cols, threads int, a, b *tile) *arrangement {
	group := func(t *tile, along kir.Sub, n int) int {
		if t.along != along {
			return 1
		}
		return min(n&-n, 16/t.Type.Size(), 4)
	}
	best := &arrangement{down: 1, across: 1, rows: rows, cols: cols}
	for down := 1; down <= threads && down <= rows; down *= 2 {
		across := min(threads/down, cols&-cols)
		if rows%down != 0 || across*down > threads {
			continue
		}
		n := &arrangement{down: down, across: across, rows: rows / down, cols: cols / across}
		if s, o := n.rows*n.cols, best.rows*best.cols; s < o || s == o && n.rows+n.cols <= best.rows+best.cols {
			best = n
		}
	}
	best.rowGroup = group(a, kir.AlongRows, best.rows)
	best.colGroup = group(b, kir.AlongCols, best.cols)
	return best
}

// unitFor returns the best way to compute a product.
func (plan *tilePlan) unitFor(in *kir.Instr, a, b *tile) unit {
	size := a.Type.Size()
	cols := b.Cols
	if in.Sub == kir.DotTransposed {
		cols = b.Rows
	}
	if plan.sm < 80 || !isPower(a.Cols) || a.Rows < 16 || cols < 8 || a.Cols*size < 32 || a.Type != b.Type ||
		plan.tiles[in.Sym].InParts() > 1 {
		return plain
	}
	// Only 16-bit elements can be transposed while the matrix units read them.
	inner := a.along == kir.AlongCols && b.along == kir.AlongRows
	best := mma16
	turned := size == 4 && a.along == kir.AlongCols && b.along == kir.AlongCols && b.mapped && isPower(b.Cols) &&
		b.Cols >= max(64, plan.threads/2)
	switch {
	case classOf(a.Type) == half:
		inner = true
	case a.Type == dtype.Int8 && inner:
	case a.Type == dtype.Float32 && in.Sub == kir.DotTF32:
		best = mma8
		inner = inner || turned
	default:
		return plain
	}
	// Warps share the rows, so their number must be a power of two. Lines are cut into parts of 128 bytes, which also fit a right operand
	// of 192 columns.
	rows := a.Rows
	if turned {
		rows, cols = cols, rows
	}
	if plan.arch && plan.threads >= 128 && isPower(rows) && rows >= 64 && cols >= 16 && cols <= 256 && (isPower(cols) || cols == 192) &&
		inner {
		return wgmma
	}
	if !isPower(a.Rows) || !isPower(cols) {
		return plain
	}
	return best
}

func isPower(n int) bool { return n > 0 && n&(n-1) == 0 }

func log2(n int) int { return bits.Len(uint(n)) - 1 }
