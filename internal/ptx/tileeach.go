package ptx

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// A passage moves an accumulator from registers through shared memory to the threads that run the region of a TileEach, so that each thread
// gets adjacent columns and neighbouring threads get neighbouring groups. Each pass handles part of the rows of every thread (or warp).
type passage struct {
	// rows is the number of rows per pass, passes the number of passes. The rows of a pass are adjacent in the tile, except with mma: there
	// the share rows of each warp are adjacent, and the shares are as far apart as the warps' own rows.
	rows, passes, share int
	// stride is the distance between rows in bytes. The padding of 32 bytes spreads the rows that a warp stores together over the banks.
	stride int
}

// newPassage finds the passage with the fewest passes that needs at most room bytes.
func newPassage(t *tile, room int) passage {
	a := t.arr
	unit, parts := 16, a.rows/16
	stride, down := (t.Cols*t.Type.Size()+15)&^15+32, a.down
	switch {
	case a.turned:
		unit, parts, down = 8, t.Rows/8, 1
		stride -= 16
	case a.unit == plain:
		unit, parts = a.rowGroup, a.rows/a.rowGroup
	}
	for n := parts; ; n-- {
		p := passage{rows: unit * n * down, passes: parts / n, stride: stride}
		if a.unit.fragments() {
			p.share = unit * n
		}
		if parts%n == 0 && (n == 1 || p.bytes() <= room) {
			return p
		}
	}
}

func (p passage) bytes() int { return p.rows * p.stride }

// each emits OpTileEach on an accumulator.
func (f *function) each(in *kir.Instr, t *tile) {
	a, plan := t.arr, f.tiles
	p := newPassage(t, plan.stageBytes/t.InParts())
	// The rows of a pass are in shared memory in the same order as in the tile.
	row, span := a.row, p.rows
	if p.share > 0 {
		row, span = f.madImm(a.y, p.share, a.inner), p.share
	}
	to := f.madImm(a.col, t.Type.Size(), f.madImm(row, p.stride, plan.memory))
	if a.part != "" {
		to = f.madImm(a.part, p.bytes(), to)
	}
	for pass := range p.passes {
		f.barrier()
		past := ""
		if a.idle != "" {
			past = f.label()
			f.when(a.idle, "bra", past)
		}
		first, last := pass*span, (pass+1)*span
		for _, it := range t.items() {
			if it.row >= first && it.row < last {
				operand, v := vector(it.regs)
				f.op("st.shared"+v+classType[classOf(t.Type)],
					location(to, int64(plan.stageAt+(it.row-first)*p.stride+it.col*t.Type.Size())), operand)
			}
		}
		f.placeIf(past)
		f.barrier()
		f.groups(in, p.rows, func(row, col string) []string { return f.passed(in, t, p, row, col) }, func(row string) string {
			if p.share == 0 || a.down == 1 {
				return f.addImm(row, first)
			}
			return f.madImm(f.divImm(row, p.share), a.rows, f.addImm(f.remImm(row, p.share), first))
		})
	}
}

// sums are the instructions that add the types of accumulators.
var sums = map[kir.Type]string{dtype.Float32: "add.rn.f32", dtype.Float64: "add.rn.f64", dtype.Int32: "add.s32"}

// passed loads the group at row and col of a pass, and adds up its parts.
func (f *function) passed(in *kir.Instr, t *tile, p passage, row, col string) []string {
	from := f.madImm(col, t.Type.Size(), f.madImm(row, p.stride, f.tiles.memory))
	sum := f.passedPart(in, t, from, 0)
	for n := 1; n < t.InParts(); n++ {
		for i, r := range f.passedPart(in, t, from, n*p.bytes()) {
			f.op(sums[t.Type], sum[i], sum[i], r)
		}
	}
	return sum
}

// passedPart loads a part's group, which is offset bytes after from.
func (f *function) passedPart(in *kir.Instr, t *tile, from string, offset int) (rs []string) {
	size := t.Type.Size()
	count, each := vectors(in.Width, size)
	for c := range count {
		var part []string
		for range each {
			part = append(part, f.reg(classOf(t.Type)))
		}
		operand, v := vector(part)
		f.op("ld.shared"+v+classType[classOf(t.Type)], operand, location(from, int64(f.tiles.stageAt+offset+c*each*size)))
		rs = append(rs, part...)
	}
	return rs
}
