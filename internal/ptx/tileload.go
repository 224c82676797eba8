package ptx

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// tileInstr emits the tile operations.
func (f *function) tileInstr(in *kir.Instr) {
	t := (*tile)(nil)
	if in.Op != kir.OpYield {
		t = f.tiles.tiles[in.Sym]
	}
	switch in.Op {
	case kir.OpTileZero:
		if t.acc {
			f.await(t)
		} else {
			f.drain()
		}
		f.zero(t)
	case kir.OpTileLoad:
		f.overwrite()
		f.fill(in, f.tiles.memory)
	case kir.OpTileDot:
		f.settle()
		f.dot(in)
	case kir.OpTileMap:
		f.settle()
		f.mapTile(in, t)
	case kir.OpTileRows:
		f.settle()
		f.await(f.tiles.touched(in)...)
		f.combineRows(in, t)
	case kir.OpTileCopy:
		f.settle()
		f.await(f.tiles.touched(in)...)
		f.hold(t, f.tiles.tiles[in.Imm])
	case kir.OpTileEach:
		f.settle()
		f.drain()
		switch {
		case t.acc && t.Cols == 1 && t.arr.unit != plain:
			f.eachRow(in, t)
		case t.acc:
			f.each(in, t)
		default:
			f.eachOperand(in, t)
		}
	case kir.OpYield:
		f.tiles.yield = in.Args
	default:
		f.fail(in, "operation %v is not one of the kernel IR", in.Op)
	}
}

// zero emits OpTileZero.
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

// skipBeyond emits a jump for threads whose number is n or more, if any of count threads are, and returns its label or "".
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

// filling says how a thread fills its share of a tile. groups are the groups that it loads. start is the register with the offset of the
// first group in the tile's memory if the others are at constant distances from it, otherwise "".
type filling struct {
	start  string
	groups []fillGroup
}

// fillGroup is a group of a filling. place emits registers with its line and its first element; distance is its distance from the start.
// Only threads with numbers below before have such a group.
type fillGroup struct {
	place            func() (line, element string)
	distance, before int
}

// share distributes the groups of a tile load. The threads take them in turn, so that neighbours read neighbouring addresses: line by line
// or, if lines are cut, all lines of one part and then those of the next. The latter gives each thread the fewest lines and offsets, at
// constant distances.
func (f *function) share(in *kir.Instr) *filling {
	t, plan := f.tiles.tiles[in.Sym], f.tiles
	length, lines := t.Cols, t.Rows
	if in.Sub == kir.AlongRows {
		length, lines = t.Rows, t.Cols
	}
	per, parts := length/in.Width, 1 // groups in a part of a line; parts of a line
	if t.cut > 0 && in.Sub == t.along {
		n := t.stride / (in.Width * t.Type.Size())
		if step := plan.threads / n; step <= lines && step%8 == 0 {
			per, parts = n, per/n
		}
	}
	count := per * lines // groups in one part of all lines
	s := &filling{}
	if !isPower(per) || per > plan.threads {
		for i := 0; i*plan.threads < count; i++ {
			s.groups = append(s.groups, fillGroup{func() (line, element string) {
				g := f.addImm(plan.tid, i*plan.threads)
				return f.divImm(g, per), f.mulImm(f.remImm(g, per), in.Width)
			}, 0, count - i*plan.threads})
		}
		return s
	}
	first, place := f.divImm(plan.tid, per), f.mulImm(f.remImm(plan.tid, per), in.Width)
	step := plan.threads / per                               // lines between successive groups of a thread
	if in.Sub == t.along && (t.chunks == 1 || step%8 == 0) { // the swizzle repeats every 8 lines
		s.start = f.offset(t, first, place)
	}
	elements := make([]string, parts) // emitted for the first lines and used for all
	for i := 0; i*plan.threads < count; i++ {
		line := ""
		for j := range parts {
			s.groups = append(s.groups, fillGroup{func() (string, string) {
				if j == 0 {
					line = f.addImm(first, i*step)
				}
				if i == 0 {
					elements[j] = f.addImm(place, j*per*in.Width)
				}
				return line, elements[j]
			}, i*step*t.stride + j*t.cut, count - i*plan.threads})
		}
	}
	return s
}

// fill emits the loads of a tile into the copy at register base.
func (f *function) fill(in *kir.Instr, base string) {
	t := f.tiles.tiles[in.Sym]
	s := f.tiles.reuse.filling(in)
	if s == nil {
		s = f.share(in)
	}
	start := ""
	if s.start != "" {
		start = f.to(word, "add.s32", base, s.start)
	}
	for _, g := range s.groups {
		past := f.skipBeyond(f.tiles.tid, g.before, f.tiles.threads)
		line, element := g.place()
		source, inside := f.region(in, line, element)
		f.at(in)
		switch {
		case in.Sub != t.along:
			f.scatter(in, t, base, source, inside, line, element)
		case start != "":
			f.copyGroup(in, location(start, int64(t.offset+g.distance)), source, inside)
		default:
			at := f.to(word, "add.s32", base, f.offset(t, line, element))
			f.copyGroup(in, location(at, int64(t.offset)), source, inside)
		}
		f.placeIf(past)
	}
}

// begin names the parameters of a tile load's region for one group.
func (f *function) begin(in *kir.Instr, line, element string) {
	row, col := line, element
	if in.Sub == kir.AlongRows {
		row, col = element, line
	}
	b := in.Blocks[0]
	f.names[b.Params[0]], f.names[b.Params[1]] = row, col
}

// region emits the region of a tile load for one group. It returns the address of the group and its predicate, "" if that is always true.
func (f *function) region(in *kir.Instr, line, element string) (source, inside string) {
	b := in.Blocks[0]
	f.begin(in, line, element)
	if r := f.tiles.reuse; r != nil {
		f.reused(b, r)
	} else {
		f.block(b)
	}
	y := f.tiles.yield
	source = f.elementAddress(b, y[0], y[1], in.Type.Size())
	inside = f.names[y[2]]
	if c, ok := f.constant(y[2]); ok && c != 0 {
		return source, f.tiles.guard
	}
	if f.tiles.guard != "" {
		inside = f.to(pred, "and.pred", inside, f.tiles.guard)
	}
	return source, inside
}

// elementAddress returns base + index*size at the end of region b.
func (f *function) elementAddress(b *kir.Block, base, index kir.Value, size int) string {
	if r := f.tiles.reuse; r != nil {
		if add, still, moving := r.split(b, base, index); add != nil {
			start := r.starts[reuseKey{add, f.names[base] + " " + f.names[still]}]
			step := reuseKey{add, f.names[moving]}
			if r.fresh[step] == nil {
				r.fresh[step] = []string{f.scaled(b, "", moving, size)}
			}
			return f.to(long, "add.s64", start, r.fresh[step][0])
		}
	}
	return f.scaled(b, f.names[base], index, size)
}

// scaled returns base + index*size, or just the product if base is empty. An index widened from a 32-bit value is widened and multiplied in
// one instruction.
func (f *function) scaled(b *kir.Block, base string, index kir.Value, size int) string {
	for _, in := range b.Instrs {
		if in.Op == kir.OpCvt && in.Res[0] == index && f.p.Values[in.Args[0]] == dtype.Int32 {
			if base == "" {
				return f.to(long, "mul.wide.s32", f.names[in.Args[0]], itoa(size))
			}
			return f.to(long, "mad.wide.s32", f.names[in.Args[0]], itoa(size), base)
		}
	}
	bytes := f.names[index]
	if size > 1 {
		bytes = f.to(long, "shl.b64", bytes, itoa(log2(size)))
	}
	if base == "" {
		return bytes
	}
	return f.to(long, "add.s64", base, bytes)
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

// loadInside loads operand, which consists of the registers rs, or zeros where inside is false.
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

// eachOperand emits a TileEach over an operand, from shared memory.
func (f *function) eachOperand(in *kir.Instr, t *tile) {
	f.groups(in, t.Rows, t.Cols, in.Blocks[0].Params[2:], func(row, col string) []string {
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
	}, func(row, col string) (string, string) { return row, col })
}

// groups emits a loop over the groups of in.Width columns in rows x cols of a tile. Its body is the region, in which the values into are
// the registers that values returns. place maps a row and column of the loop to the tile's. If all threads have several groups, the
// registers of some, up to 32 elements, are filled together, so that the thread waits for them once.
func (f *function) groups(in *kir.Instr, rows, cols int, into []kir.Value, values func(row, col string) []string,
	place func(row, col string) (string, string)) {
	const most = 4
	plan, b := f.tiles, in.Blocks[0]
	per := cols / in.Width
	count := rows * per
	turns := (count + plan.threads - 1) / plan.threads
	together := 1
	if len(into) > 0 && count%plan.threads == 0 {
		for together < most && turns%(2*together) == 0 && 2*together*in.Width <= 32 {
			together *= 2
		}
	}
	var done map[*kir.Instr]bool
	if turns > 1 && plan.threads%per == 0 { // all groups of a thread are in the same columns
		done = f.aheadOf(b, func() string {
			_, col := place(f.to(word, "mov.b32", "0"), f.mulImm(f.remImm(plan.tid, per), in.Width))
			return col
		})
	}
	g := f.reg(word)
	f.op("mov.b32", g, plan.tid)
	head, past := f.label(), ""
	if turns > together {
		f.place(head)
	}
	if count%plan.threads != 0 {
		past = f.label()
		f.when(f.to(pred, "setp.ge.u32", g, itoa(count)), "bra", past)
	}
	var at [most][2]string
	var regs [most][]string
	for i := range together {
		turn := f.addImm(g, i*plan.threads)
		row, col := f.divImm(turn, per), f.mulImm(f.remImm(turn, per), in.Width)
		at[i], regs[i] = [2]string{row, col}, values(row, col)
	}
	for i := range together {
		for j, v := range into {
			f.names[v] = regs[i][j]
		}
		f.names[b.Params[0]], f.names[b.Params[1]] = place(at[i][0], at[i][1])
		f.blockBut(b, done)
	}
	if turns > together {
		f.op("add.s32", g, g, itoa(together*plan.threads))
		f.when(f.to(pred, "setp.lt.u32", g, itoa(count)), "bra", head)
	}
	f.placeIf(past)
}

// aheadOf emits the instructions of b, a region whose second parameter is a column, that depend on the column alone, if they load memory
// that nothing writes. It returns them, nil if there are no such loads. Those after an assertion, which may guard them, are not among them.
// col returns a register with the column.
func (f *function) aheadOf(b *kir.Block, col func() string) map[*kir.Instr]bool {
	made := map[kir.Value]bool{} // in b, and not from the column alone
	for _, v := range b.Params {
		made[v] = v != b.Params[1]
	}
	done, loads := map[*kir.Instr]bool{}, false
	for _, in := range b.Instrs {
		if in.Op == kir.OpAssert {
			break
		}
		load := in.Op == kir.OpLoad && in.Space == kir.Global && (in.Cache == kir.CacheReadOnly || f.readOnly(in.Args[0]))
		ahead := load || in.Op == kir.OpConst || in.Op == kir.OpParam || in.Op == kir.OpPtrAdd ||
			in.Op >= kir.OpAdd && in.Op <= kir.OpBitcast
		for _, v := range in.Args {
			ahead = ahead && !made[v]
		}
		for _, v := range in.Res {
			made[v] = !ahead
		}
		if ahead {
			done[in], loads = true, loads || load
		}
	}
	if !loads {
		return nil
	}
	f.names[b.Params[1]] = col()
	for _, in := range b.Instrs {
		if done[in] {
			f.at(in)
			f.instr(in)
		}
	}
	return done
}
