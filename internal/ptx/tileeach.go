package ptx

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// A passage moves an accumulator from registers through shared memory to the threads that run the region of a TileEach, so that each thread
// gets adjacent columns and neighbouring threads get neighbouring groups. Each pass handles part of the rows of every thread (or warp).
type passage struct {
	// rows is the number of rows per pass, passes the number of passes. The rows of a pass are adjacent in the tile, except with mma: there
	// the share rows of each warp are adjacent, and the shares are as far apart as the warps' own rows.
	rows, passes, share int
	// cols is the number of columns per pass; if it is not all of them, several passes have the same rows.
	cols int
	// stride is the distance between rows in bytes. The padding spreads the rows that a warp stores together over the banks.
	stride int
	// as is the type in which the elements pass. rounds are the region's conversions to it, which happen before.
	as     kir.Type
	rounds []*kir.Instr
	// crossed says that the halves of every 32 bytes are exchanged wherever bit 5 of the column is set. Lanes that read 32 adjacent bytes
	// each, in two steps, then use all banks in both.
	crossed bool
}

// passage returns the passage for in, an OpTileEach, with the fewest passes that needs at most room bytes.
func (plan *tilePlan) passage(in *kir.Instr, room int) passage {
	t := plan.tiles[in.Sym]
	a, p := t.arr, passage{as: t.Type}
	if plan.sm >= 80 && t.Type == dtype.Float32 && t.InParts() == 1 {
		if to, by := roundsFirst(in); by != nil {
			p.as, p.rounds = to, by
		}
	}
	size := p.as.Size()
	p.crossed = size == 4 && in.Width == 8 && t.Cols >= 64 && t.InParts() == 1 && a.unit != plain && !a.turned &&
		(a.across == 1 || a.cols%64 == 0)
	unit, parts, down, padding := 16, a.rows/16, a.down, 32
	switch {
	case a.turned:
		unit, parts, down, padding = 8, t.Rows/8, 1, 16
	case a.unit == plain:
		unit, parts = a.rowGroup, a.rows/a.rowGroup
	}
	if size == 2 {
		padding = 16
	}
	width := func(cols int) { p.cols, p.stride = cols, (cols*size+15)&^15+padding }
	width(t.Cols)
	for n := parts; n > 0; n-- {
		p.rows, p.passes = unit*n*down, parts/n
		if a.unit.fragments() {
			p.share = unit * n
		}
		if parts%n == 0 && p.bytes() <= room {
			return p
		}
	}
	if len(plan.around) > 0 && a.unit == wgmma && !a.turned { // whose warps have whole rows
		for n := 2; p.bytes() > room && n <= t.Cols/64; n++ {
			if t.Cols%(64*n) == 0 {
				width(t.Cols / n)
			}
		}
	}
	return p
}

// roundsFirst returns the conversions of a region's elements, and their type, if all that the region does with an element is to round it to
// one type of halves.
func roundsFirst(in *kir.Instr) (to kir.Type, by []*kir.Instr) {
	elements := in.Blocks[0].Params[2:]
	by = make([]*kir.Instr, len(elements))
	only := true
	var visit func(b *kir.Block)
	visit = func(b *kir.Block) {
		for _, x := range b.Instrs {
			for _, v := range x.Args {
				i := slices.Index(elements, v)
				if i < 0 {
					continue
				}
				only = only && x.Op == kir.OpCvt && classOf(x.Type) == half && by[i] == nil && (to == dtype.Invalid || x.Type == to)
				by[i], to = x, x.Type
			}
			for _, sub := range x.Blocks {
				if sub != nil {
					visit(sub)
				}
			}
		}
	}
	visit(in.Blocks[0])
	if !only || slices.Contains(by, nil) {
		return dtype.Invalid, nil
	}
	return to, by
}

func (p passage) bytes() int { return p.rows * p.stride }

// each emits OpTileEach on an accumulator.
func (f *function) each(in *kir.Instr, t *tile) {
	a, plan := t.arr, f.tiles
	if d := plan.lateOf(in); d != nil {
		f.leave(d)
		return
	}
	p := plan.passage(in, plan.stageBytes/t.InParts())
	to := f.passageAt(t, p)
	span := p.rows
	if p.share > 0 {
		span = p.share
	}
	into := in.Blocks[0].Params[2:]
	if p.rounds != nil {
		into = p.into()
		plan.roundEarly(p)
	}
	split := t.Cols / p.cols
	for n := range p.passes * split {
		pass, left := n/split, n%split*p.cols
		f.barrier()
		first := pass * span
		f.leaveRegisters(t, p, to, first, left)
		f.barrier()
		values := func(row, col string) []string { return f.passed(in, t, p, into, row, col) }
		f.groups(in, p.rows, p.cols, into, values, func(row, col string) (string, string) {
			col = f.addImm(col, left)
			if p.share == 0 || a.down == 1 {
				return f.addImm(row, first), col
			}
			return f.madImm(f.divImm(row, p.share), a.rows, f.addImm(f.remImm(row, p.share), first)), col
		})
	}
}

// roundEarly notes that the conversions of p happen before the elements pass.
func (plan *tilePlan) roundEarly(p passage) {
	for _, x := range p.rounds {
		plan.rounded[x] = true
	}
}

// into returns the values of the region in which the rounded elements are.
func (p passage) into() (vs []kir.Value) {
	for _, x := range p.rounds {
		vs = append(vs, x.Res[0])
	}
	return vs
}

// passageAt returns registers with the address at which the thread's first element of t passes, the second one where the halves of 32 bytes
// are exchanged.
func (f *function) passageAt(t *tile, p passage) (to [2]string) {
	a, size := t.arr, p.as.Size()
	row := a.row // the rows of a pass are in shared memory in the same order as in the tile
	if p.share > 0 {
		row = f.madImm(a.y, p.share, a.inner)
	}
	at := f.madImm(a.col, size, f.madImm(row, p.stride, f.tiles.memory))
	if a.part != "" {
		at = f.madImm(a.part, p.bytes(), at)
	}
	if !p.crossed {
		return [2]string{at, at}
	}
	second := f.to(word, "bfe.u32", a.col, "2", "1")
	return [2]string{at, f.to(word, "mad.lo.s32", second, "-32", f.addImm(at, 16))}
}

// leaveRegisters stores the elements of the pass that begins at row first and column left of the thread's. Idle threads have none.
func (f *function) leaveRegisters(t *tile, p passage, to [2]string, first, left int) {
	past := ""
	if t.arr.idle != "" {
		past = f.label()
		f.when(t.arr.idle, "bra", past)
	}
	defer f.placeIf(past)
	span, size := p.rows, p.as.Size()
	if p.share > 0 {
		span = p.share
	}
	for _, it := range t.items() {
		if it.row >= first && it.row < first+span && it.col >= left && it.col < left+p.cols {
			at := to[0]
			if p.crossed {
				at = to[it.col>>5&1]
			}
			f.pass(p.as, it.regs, at, f.tiles.stageAt+(it.row-first)*p.stride+(it.col-left)*size)
		}
	}
}

// pass stores adjacent elements of an accumulator, in regs, as elements of type as.
func (f *function) pass(as kir.Type, regs []string, to string, offset int) {
	kind := classType[classOf(as)]
	switch {
	case classOf(as) != half:
	case len(regs)%2 == 0:
		kind = ".b32"
		words := make([]string, len(regs)/2)
		for i := range words {
			words[i] = f.roundPair(as, regs[2*i], regs[2*i+1])
		}
		regs = words
	default:
		rounded := make([]string, len(regs))
		for i, r := range regs {
			rounded[i] = f.reg(half)
			f.toHalf(as, rounded[i], r)
		}
		regs = rounded
	}
	operand, v := vector(regs)
	f.op("st.shared"+v+kind, location(to, int64(offset)), operand)
}

// roundPair returns a word with two float32 values rounded to halves of type to, low first. It needs capability 8.0.
func (f *function) roundPair(to kir.Type, low, high string) string {
	f.m.need(70)
	return f.to(word, "cvt.rn."+to.Short()+"x2.f32", high, low)
}

// sums are the instructions that add the types of accumulators.
var sums = map[kir.Type]string{dtype.Float32: "add.rn.f32", dtype.Float64: "add.rn.f64", dtype.Int32: "add.s32"}

// passed loads the group at row and col of a pass, which the region has as the values into, and adds up its parts.
func (f *function) passed(in *kir.Instr, t *tile, p passage, into []kir.Value, row, col string) []string {
	from := f.madImm(col, p.as.Size(), f.madImm(row, p.stride, f.tiles.memory))
	if p.rounds != nil {
		count, each := vectors(in.Width, p.as.Size())
		for c := range count {
			f.loadVector(p.as, "ld.shared", location(from, int64(f.tiles.stageAt+c*each*p.as.Size())), into[c*each:(c+1)*each])
		}
		var rs []string
		for _, v := range into {
			rs = append(rs, f.names[v])
		}
		return rs
	}
	if p.crossed {
		shift := f.to(word, "and.b32", f.to(word, "shr.u32", col, "1"), "16")
		low, high := f.to(word, "add.s32", from, shift), f.to(word, "sub.s32", from, shift)
		return append(f.passedPart(4, t.Type, low, 0), f.passedPart(4, t.Type, high, 16)...)
	}
	sum := f.passedPart(in.Width, t.Type, from, 0)
	for n := 1; n < t.InParts(); n++ {
		for i, r := range f.passedPart(in.Width, t.Type, from, n*p.bytes()) {
			f.op(sums[t.Type], sum[i], sum[i], r)
		}
	}
	return sum
}

// passedPart loads width adjacent elements of type t, offset bytes after from.
func (f *function) passedPart(width int, t kir.Type, from string, offset int) (rs []string) {
	size := t.Size()
	count, each := vectors(width, size)
	for c := range count {
		var part []string
		for range each {
			part = append(part, f.reg(classOf(t)))
		}
		operand, v := vector(part)
		f.op("ld.shared"+v+classType[classOf(t)], operand, location(from, int64(f.tiles.stageAt+offset+c*each*size)))
		rs = append(rs, part...)
	}
	return rs
}
