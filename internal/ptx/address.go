package ptx

// These functions emit 32-bit integer arithmetic with a constant, and nothing if the constant is neutral.

func (f *function) addImm(a string, n int) string {
	if n == 0 {
		return a
	}
	return f.to(word, "add.s32", a, itoa(n))
}

func (f *function) mulImm(a string, n int) string {
	switch {
	case n == 1:
		return a
	case isPower(n):
		return f.to(word, "shl.b32", a, itoa(log2(n)))
	}
	return f.to(word, "mul.lo.s32", a, itoa(n))
}

func (f *function) madImm(a string, n int, c string) string {
	return f.to(word, "mad.lo.s32", a, itoa(n), c)
}

// divImm divides a nonnegative value.
func (f *function) divImm(a string, n int) string {
	switch {
	case n == 1:
		return a
	case isPower(n):
		return f.to(word, "shr.u32", a, itoa(log2(n)))
	}
	return f.to(word, "div.u32", a, itoa(n))
}

// remImm returns the remainder of a nonnegative value.
func (f *function) remImm(a string, n int) string {
	if isPower(n) {
		return f.to(word, "and.b32", a, itoa(n-1))
	}
	return f.to(word, "rem.u32", a, itoa(n))
}

// lane and warp return the thread's index in its warp, and the warp's index in the block.
func (f *function) lane() string { return f.remImm(f.tiles.tid, 32) }
func (f *function) warp() string { return f.divImm(f.tiles.tid, 32) }

// tilePrologue computes, at the start of the kernel, what tiles need throughout.
func (f *function) tilePrologue() {
	plan := f.tiles
	if len(plan.tiles) == 0 {
		return
	}
	plan.tid = f.to(word, "mov.u32", "%tid.x")
	symbol := tileSymbol
	if plan.isDynamic {
		symbol = f.m.dynamicShared()
	}
	if plan.total > 0 {
		plan.memory = f.to(word, "mov.u32", symbol)
	}
	for _, t := range plan.tiles {
		switch {
		case t.acc:
			f.arrangeRegisters(t)
		case t.held:
			for range t.arr.rows / 16 * (t.Cols / 16) * 4 {
				t.regs = append(t.regs, f.reg(word))
			}
		}
	}
	f.mapPrologue()
}

// arrangeRegisters makes an accumulator's registers and computes the thread's position in it.
func (f *function) arrangeRegisters(t *tile) {
	a, plan := t.arr, f.tiles
	count := a.rows * a.cols
	switch {
	case a.unit == plain:
	case t.Cols == 1:
		count = a.rows / 8
	default:
		count /= 32
	}
	for range count {
		t.regs = append(t.regs, f.reg(classOf(t.Type)))
	}
	places := a.down * a.across
	if a.unit != plain {
		lane, warp := f.lane(), f.warp()
		if places < plan.threads/32 {
			a.idle = f.to(pred, "setp.ge.u32", warp, itoa(places))
		}
		a.y, a.x = f.divImm(warp, a.across), f.remImm(warp, a.across)
		a.inner = f.divImm(lane, 4)
		share := a.rows
		if a.unit == wgmma {
			share = 16
			if a.down > 4 { // uniform over the warp; the assembler recognizes this only from a shuffle
				a.block = f.to(word, "shfl.sync.idx.b32", f.divImm(plan.tid, 128), "0", "0x1F", allLanes)
			}
		}
		if a.turned {
			a.row, a.col = f.mulImm(f.remImm(lane, 4), 2), f.turnedCol(a)
			return
		}
		a.row = f.madImm(a.y, share, a.inner)
		a.col = f.madImm(a.x, a.cols, f.mulImm(f.remImm(lane, 4), 2))
		return
	}
	tid, team := plan.tid, plan.threads/t.InParts()
	if t.InParts() > 1 {
		tid, a.part = f.remImm(tid, team), f.divImm(tid, team)
	}
	if places < team {
		a.idle = f.to(pred, "setp.ge.u32", tid, itoa(places))
	}
	if a.down%4 == 0 && a.across%8 == 0 { // groups of 4 x 8 threads read the fewest lines
		lane, warp := f.lane(), f.divImm(tid, 32)
		a.y = f.madImm(f.divImm(warp, a.across/8), 4, f.divImm(lane, 8))
		a.x = f.madImm(f.remImm(warp, a.across/8), 8, f.remImm(lane, 8))
	} else {
		a.y, a.x = f.divImm(tid, a.across), f.remImm(tid, a.across)
	}
	a.row, a.col = f.mulImm(a.y, a.rowGroup), f.mulImm(a.x, a.colGroup)
	a.inner = a.row
}

// turnedCol returns the column of a tile that is the lane's first row of fragments, in the arrangement in which wgmma computes the
// transposed product. The next row, 8 further in the fragment, is the next column. The lowest bit of lane/4 counts for 2 columns, the
// second for 16 and the third for 4. The 16 lanes that together read two columns each of four lines, and whose chunks differ in the lowest
// bits of their positions, then have no bank conflicts.
func (f *function) turnedCol(a *arrangement) string {
	n := f.mulImm(f.remImm(a.inner, 2), 2)
	n = f.madImm(f.remImm(f.divImm(a.inner, 2), 2), 16, n)
	n = f.madImm(f.divImm(a.inner, 4), 4, n)
	n = f.madImm(f.remImm(a.y, 2), 8, n)
	return f.madImm(f.divImm(a.y, 2), 32, n)
}

// turned returns the swizzle of a tile's line as the bits that it flips in an offset: ((line*turn) / (8/chunks)) % chunks, in chunks.
func (f *function) turned(t *tile, line string) string {
	s := line
	switch shift := log2(8/t.chunks) - log2(t.turn); {
	case shift > 0:
		s = f.to(word, "shr.u32", s, itoa(shift))
	case shift < 0:
		s = f.to(word, "shl.b32", s, itoa(-shift))
	}
	return f.to(word, "shl.b32", f.remImm(s, t.chunks), "4")
}

// offset returns the offset of an element within a tile's memory. line, and element, its index in the line, are registers.
func (f *function) offset(t *tile, line, element string) string {
	bytes := f.mulImm(element, t.Type.Size())
	part := ""
	if t.cut > 0 {
		part = f.mulImm(f.divImm(bytes, t.stride), t.cut)
		bytes = f.remImm(bytes, t.stride)
	}
	if t.chunks > 1 {
		bytes = f.to(word, "xor.b32", bytes, f.turned(t, line))
	}
	if part != "" {
		bytes = f.to(word, "add.s32", bytes, part)
	}
	return f.madImm(line, t.stride, bytes)
}

// operand returns the address of the copy of a tile that products read now, without the tile's own offset.
func (f *function) operand(t *tile) string {
	if t.loop != nil {
		return t.loop.read
	}
	return f.tiles.memory
}

// settle ends a run of operand loads: it makes their results readable by all threads.
func (f *function) settle() {
	if !f.tiles.writing {
		return
	}
	f.tiles.writing = false
	if f.tiles.async {
		f.op("cp.async.wait_all")
	}
	f.publish()
	f.barrier()
}

// publish makes this thread's writes to shared memory visible to wgmma and the copy engine, which use the async proxy.
func (f *function) publish() {
	if f.tiles.usesArch || len(f.tiles.mapped) > 0 {
		f.op("fence.proxy.async.shared::cta")
	}
}

// overwrite begins a run of operand loads: it waits until no thread still reads the old contents.
func (f *function) overwrite() {
	if !f.tiles.writing {
		f.tiles.writing = true
		f.barrier()
	}
}
