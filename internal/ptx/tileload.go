package ptx

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// tileInstr writes the tile operations.
func (f *function) tileInstr(in *kir.Instr) {
	t := (*tile)(nil)
	if in.Op != kir.OpYield {
		t = f.tiles.tiles[in.Sym]
	}
	switch in.Op {
	case kir.OpTileZero:
		f.drain()
		f.zero(t)
	case kir.OpTileLoad:
		f.overwrite()
		f.fill(in, f.tiles.memory)
	case kir.OpTileDot:
		f.settle()
		f.dot(in)
	case kir.OpTileEach:
		f.settle()
		f.drain()
		if t.acc {
			f.each(in, t)
		} else {
			f.eachOperand(in, t)
		}
	case kir.OpYield:
		f.tiles.yield = in.Args
	default:
		f.fail(in, "operation %v is not one of the kernel IR", in.Op)
	}
}

// zero writes OpTileZero.
func (f *function) zero(t *tile) {
	if t.acc {
		for _, r := range t.regs {
			f.op(move(classOf(t.Type)), r, literal(t.Type, 0))
		}
		return
	}
	f.overwrite()
	words := t.bytes() / 16
	at := f.madImm(f.tiles.tid, 16, f.tiles.memory)
	for done := 0; done < words; done += f.tiles.threads {
		past := f.skipBeyond(f.tiles.tid, words-done, f.tiles.threads)
		f.op("st.shared.v4.b32", location(at, int64(t.offset+16*done)), "{0, 0, 0, 0}")
		f.placeIf(past)
	}
}

// skipBeyond jumps in threads whose number is n or more, if there are such among count, and returns the label or "".
func (f *function) skipBeyond(number string, n, count int) string {
	if n >= count {
		return ""
	}
	past := f.label()
	f.when(f.to(pred, "setp.ge.u32", number, itoa(n)), "bra", past)
	return past
}

func (f *function) placeIf(label string) {
	if label != "" {
		f.place(label)
	}
}

// fill writes the copy of a tile load to the memory at register base. The threads take the groups in turn, so that neighbours read
// neighbouring addresses.
func (f *function) fill(in *kir.Instr, base string) {
	t, plan := f.tiles.tiles[in.Sym], f.tiles
	line, lines := t.Cols, t.Rows
	if in.Sub == kir.AlongRows {
		line, lines = t.Rows, t.Cols
	}
	per := line / in.Width // groups of a line
	count := per * lines
	simple := isPower(per) && per <= plan.threads
	var first, place, start string
	if simple {
		first, place = f.divImm(plan.tid, per), f.mulImm(f.remImm(plan.tid, per), in.Width)
		if in.Sub == t.along {
			start = f.to(word, "add.s32", base, f.offset(t, first, place))
		}
	}
	step := plan.threads / max(1, min(per, plan.threads)) // lines from one turn to the next
	for i := 0; i*plan.threads < count; i++ {
		past := f.skipBeyond(plan.tid, count-i*plan.threads, plan.threads)
		l, e := first, place
		if simple {
			l = f.addImm(first, i*step)
		} else {
			g := f.addImm(plan.tid, i*plan.threads)
			l, e = f.divImm(g, per), f.mulImm(f.remImm(g, per), in.Width)
		}
		row, col := l, e
		if in.Sub == kir.AlongRows {
			row, col = e, l
		}
		source, inside := f.region(in, row, col)
		f.at(in)
		switch {
		case in.Sub != t.along:
			f.scatter(in, t, base, source, inside, l, e)
		case simple && (t.chunks == 1 || step%8 == 0): // the permutation repeats every 8 lines
			f.copyGroup(in, location(start, int64(t.offset+i*step*t.stride)), source, inside)
		default:
			at := f.to(word, "add.s32", base, f.offset(t, l, e))
			f.copyGroup(in, location(at, int64(t.offset)), source, inside)
		}
		f.placeIf(past)
	}
}

// region writes the region of a tile load for one group and returns the address of the group and the predicate, "" if it is always true.
func (f *function) region(in *kir.Instr, row, col string) (source, inside string) {
	b := in.Blocks[0]
	f.names[b.Params[0]], f.names[b.Params[1]] = row, col
	f.block(b)
	y := f.tiles.yield
	base, index := f.names[y[0]], f.names[y[1]]
	if size := in.Type.Size(); size > 1 {
		index = f.to(long, "shl.b64", index, itoa(log2(size)))
	}
	source = f.to(long, "add.s64", base, index)
	inside = f.names[y[2]]
	if c, ok := f.constant(y[2]); ok && c != 0 {
		return source, f.tiles.guard
	}
	if f.tiles.guard != "" {
		inside = f.to(pred, "and.pred", inside, f.tiles.guard)
	}
	return source, inside
}

// copyGroup copies a group to shared memory, or zeros where inside is false.
func (f *function) copyGroup(in *kir.Instr, to, source, inside string) {
	bytes := in.Width * in.Type.Size()
	if f.tiles.async && bytes >= 4 {
		name := "cp.async.ca.shared.global"
		if bytes == 16 {
			name = "cp.async.cg.shared.global"
		}
		operands := []string{to, "[" + source + "]", itoa(bytes)}
		if inside != "" { // bytes beyond the source size are zeroed
			operands = append(operands, f.to(word, "selp.b32", itoa(bytes), "0", inside))
		}
		f.m.need(70)
		f.op(name, operands...)
		return
	}
	kind := map[int]string{1: ".u8", 2: ".u16"}[bytes]
	rs := []string{f.reg(word)}
	if bytes >= 4 {
		kind = ".b32"
		for len(rs) < bytes/4 {
			rs = append(rs, f.reg(word))
		}
	}
	operand, v := vector(rs)
	f.loadInside("ld.global"+v+kind, operand, "["+source+"]", inside, rs)
	f.op("st.shared"+v+kind, to, operand)
}

// loadInside loads operand, made of registers rs, or zeros where inside is false.
func (f *function) loadInside(name, operand, source, inside string, rs []string) {
	if inside == "" {
		f.op(name, operand, source)
		return
	}
	for _, r := range rs {
		f.op("mov.b"+map[bool]string{true: "64", false: "32"}[r[:3] == "%rd"], r, "0")
	}
	f.when(inside, name, operand, source)
}

// scatter copies a group whose elements lie across the tile's lines, one by one.
func (f *function) scatter(in *kir.Instr, t *tile, base, source, inside, line, element string) {
	size := in.Type.Size()
	async := f.tiles.async && size >= 4
	c, kind := word, map[int]string{1: ".u8", 2: ".u16", 4: ".b32", 8: ".b64"}[size]
	if size == 8 {
		c = long
	}
	count := ""
	if async && inside != "" {
		count = f.to(word, "selp.b32", itoa(size), "0", inside)
	}
	first := ""
	if t.chunks == 1 && t.cut == 0 {
		first = f.to(word, "add.s32", base, f.offset(t, element, line))
	}
	for e := range in.Width {
		to := location(first, int64(t.offset+e*t.stride))
		if first == "" {
			to = location(f.to(word, "add.s32", base, f.offset(t, f.addImm(element, e), line)), int64(t.offset))
		}
		from := location(source, int64(e*size))
		if async {
			operands := []string{to, from, itoa(size)}
			if count != "" {
				operands = append(operands, count)
			}
			f.op("cp.async.ca.shared.global", operands...)
			continue
		}
		r := f.reg(c)
		f.loadInside("ld.global"+kind, r, from, inside, []string{r})
		f.op("st.shared"+kind, to, r)
	}
}

// eachOperand runs the region of a TileEach over an operand, from shared memory.
func (f *function) eachOperand(in *kir.Instr, t *tile) {
	f.groups(in, t.Rows, func(row, col string) []string {
		var rs []string
		for e := range in.Width {
			l, at := row, f.addImm(col, e)
			if t.along == kir.AlongRows {
				l, at = at, l
			}
			from := location(f.to(word, "add.s32", f.tiles.memory, f.offset(t, l, at)), int64(t.offset))
			kind, _ := element(t.Type, 1)
			if t.Type == dtype.Bool {
				rs = append(rs, f.to(pred, "setp.ne.u32", f.to(word, "ld.shared.u8", from), "0"))
				continue
			}
			rs = append(rs, f.to(classOf(t.Type), "ld.shared"+kind, from))
		}
		return rs
	}, func(row string) string { return row })
}

// groups writes a loop over the groups of in.Width columns of rows rows of a tile, and in it the region with the registers that values
// returns. place gives the tile's row for a row of the loop.
func (f *function) groups(in *kir.Instr, rows int, values func(row, col string) []string, place func(row string) string) {
	plan, b := f.tiles, in.Blocks[0]
	per := plan.tiles[in.Sym].Cols / in.Width
	count := rows * per
	turns := (count + plan.threads - 1) / plan.threads
	g := f.reg(word)
	f.op("mov.b32", g, plan.tid)
	head, past := f.label(), ""
	if turns > 1 {
		f.place(head)
	}
	if count%plan.threads != 0 {
		past = f.label()
		f.when(f.to(pred, "setp.ge.u32", g, itoa(count)), "bra", past)
	}
	row, col := f.divImm(g, per), f.mulImm(f.remImm(g, per), in.Width)
	for i, r := range values(row, col) {
		f.names[b.Params[2+i]] = r
	}
	f.names[b.Params[0]], f.names[b.Params[1]] = place(row), col
	f.block(b)
	if turns > 1 {
		f.op("add.s32", g, g, itoa(plan.threads))
		f.when(f.to(pred, "setp.lt.u32", g, itoa(count)), "bra", head)
	}
	f.placeIf(past)
}
