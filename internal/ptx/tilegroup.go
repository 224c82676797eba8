package ptx

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// A descriptor tells wgmma where an operand is in shared memory (PTX ISA, "Matrix Descriptor Format"): bits 0-13 are its address, 16-29 the
// leading and 32-45 the stride byte offset, all divided by 16. Bits 62-63 are the swizzle: 1 for lines of 128 bytes, 2 for 64, 3 for 32.
//
// If lines run along the inner axis, the stride offset is that of 8 lines and the leading offset is unused. If they run across it, the
// stride offset is again that of 8 lines, which are now 8 steps of the inner axis, and the leading offset is that of the parts of a line.
type descriptor struct {
	t     *tile
	inner bool
	// low holds bits 0-31 for the first element; high is bits 32-63.
	low  string
	high int
}

// describe makes the descriptor of the part of t that begins at 64-row block number block (a register, or "" for the first). turned says
// that t is the left operand, or the right operand stored transposed.
func (f *function) describe(t *tile, turned bool, block string) *descriptor {
	d := &descriptor{t: t, inner: t.along == kir.AlongRows}
	if turned {
		d.inner = !d.inner
	}
	address := f.addImm(f.operand(t), t.offset)
	if block != "" {
		step := 64 * t.stride
		if !d.inner {
			step = t.cut
			if step == 0 {
				step = 64 * t.Type.Size()
			}
		}
		address = f.madImm(block, step, address)
	}
	leading := 1
	if !d.inner && t.cut > 0 {
		leading = t.cut / 16
	}
	// Shared addresses have 18 bits.
	d.low = f.to(word, "or.b32", f.divImm(address, 16), itoa(leading<<16))
	d.high = 8*t.stride/16 | map[int]int{8: 1, 4: 2, 2: 3}[t.chunks]<<30
	return d
}

// descriptorAt returns the descriptor of the elements that are blocks 64-row blocks and k elements of the inner axis further.
func (f *function) descriptorAt(d *descriptor, blocks, k int) string {
	t, size := d.t, d.t.Type.Size()
	var bytes int
	if d.inner {
		bytes = blocks * 64 * t.stride
		if t.cut > 0 {
			bytes += k * size / t.stride * t.cut
		}
		bytes += k * size % t.stride
	} else {
		bytes = k*t.stride + blocks*t.cut
	}
	low := f.addImm(d.low, bytes/16)
	return f.to(long, "mov.b64", "{"+low+", "+f.to(word, "mov.b32", fmt.Sprintf("0x%08X", uint32(d.high)))+"}")
}

// dotGroup starts a product on the matrix units by wgmma. Four warps issue it together, and it reads its right operand, and the left one
// unless that is in registers, from shared memory in the background.
func (f *function) dotGroup(in *kir.Instr, acc, a, b *tile) {
	arr := acc.arr
	if arr.turned {
		f.dotTurned(acc, a, b)
		return
	}
	groups := arr.down / 4
	var left *descriptor
	if !a.held {
		left = f.describe(a, true, arr.block)
	}
	right := f.describe(b, in.Sub == kir.DotTransposed, "")
	name := fmt.Sprintf("wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s", acc.Cols, a.Type.Short(), b.Type.Short())
	step := 16
	extra := []string{"1", "1", itoa(b2i(left != nil && !left.inner)), itoa(b2i(!right.inner))}
	if a.held {
		extra = append(extra[:2], extra[3])
	}
	switch a.Type {
	case dtype.Int8:
		name, step, extra = fmt.Sprintf("wgmma.mma_async.sync.aligned.m64n%dk32.s32.s8.s8", acc.Cols), 32, nil
	case dtype.Float32:
		name, step, extra = fmt.Sprintf("wgmma.mma_async.sync.aligned.m64n%dk8.f32.tf32.tf32", acc.Cols), 8, extra[:2]
	}
	add := f.to(pred, "setp.ne.b32", "1", "0")
	// wgmma instructions wait until the units accept them; if the loads came after them, the units would be idle during the loads.
	if a.loop != nil && a.loop.reuse != nil {
		f.loadAhead()
	}
	f.op("wgmma.fence.sync.aligned")
	count := acc.Cols / 2
	for k := 0; k < a.Cols; k += step {
		y := f.descriptorAt(right, 0, k)
		for i := range arr.rows / 16 {
			d, _ := vector(acc.regs[i*count : (i+1)*count])
			x := ""
			if a.held {
				x, _ = vector(a.heldAt(i, k))
			} else {
				x = f.descriptorAt(left, i*groups, k)
			}
			f.op(name, append([]string{d, x, y, add}, extra...)...)
		}
	}
	f.op("wgmma.commit_group.sync.aligned")
}

// dotTurned starts a product that wgmma computes transposed. Its left operand is the columns of b, which each thread reads from shared
// memory into registers, and its right operand is the rows of a. It first waits for the products of the preceding iteration, which may
// still be reading the same registers; other warps' products keep the unit busy meanwhile.
func (f *function) dotTurned(acc, a, b *tile) {
	const step = 8
	arr := acc.arr
	right := f.describe(a, true, "")
	lane := f.remImm(f.lane(), 4)
	low := f.to(word, "add.s32", f.operand(b), f.offset(b, lane, arr.col))
	high := f.to(word, "add.s32", f.operand(b), f.offset(b, f.addImm(lane, step/2), arr.col))
	f.drain()
	var left []string
	for k := 0; k < a.Cols; k += step {
		for i := range arr.rows / 16 {
			at := int64(b.offset + k*b.stride + i*arr.rowStep*b.Type.Size()/b.stride*b.cut)
			regs := []string{f.reg(word), f.reg(word), f.reg(word), f.reg(word)}
			for half, from := range []string{low, high} {
				operand, _ := vector(regs[2*half : 2*half+2])
				f.op("ld.shared.v2.b32", operand, location(from, at))
			}
			operand, _ := vector(regs)
			left = append(left, operand)
		}
	}
	name := fmt.Sprintf("wgmma.mma_async.sync.aligned.m64n%dk8.f32.tf32.tf32", a.Rows)
	add := f.to(pred, "setp.ne.b32", "1", "0")
	count := a.Rows / 2
	f.op("wgmma.fence.sync.aligned")
	for k := 0; k < a.Cols; k += step {
		y := f.descriptorAt(right, 0, k)
		for i := range arr.rows / 16 {
			d, _ := vector(acc.regs[i*count : (i+1)*count])
			f.op(name, d, left[0], y, add, "1", "1")
			left = left[1:]
		}
	}
	f.op("wgmma.commit_group.sync.aligned")
}
