package ptx

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// plainSteps is the usual maximum number of inner-axis steps per iteration of the loop of a product in plain arithmetic.
const plainSteps = 16

// dotPlain computes a product by fused multiply-adds (or multiply-adds of integers), in the order of the inner axis.
func (f *function) dotPlain(acc, a, b *tile) {
	arr := acc.arr
	share := a.Cols / acc.InParts()
	steps := share
	for steps > plainSteps && steps%2 == 0 {
		steps /= 2
	}
	if steps > 2*plainSteps { // the length has a large odd factor
		steps = 1
	}
	aInner, bInner := a.along == kir.AlongCols, b.along == kir.AlongRows
	// Operands whose lines run along the inner axis are read several steps at a time.
	run := 1
	if aInner || bInner {
		for run < 4 && steps%(2*run) == 0 && 2*run*max(a.Type.Size(), b.Type.Size()) <= 16 {
			run *= 2
		}
	}
	left, leftStep := f.plainStart(a, aInner, arr.row, steps)
	right, rightStep := f.plainStart(b, bInner, arr.col, steps)
	turns := share / steps
	if arr.part != "" {
		f.op("mad.lo.s32", left, arr.part, itoa(turns*leftStep), left)
		f.op("mad.lo.s32", right, arr.part, itoa(turns*rightStep), right)
	}
	count, head := "", ""
	if turns > 1 {
		count, head = f.reg(word), f.label()
		f.op("mov.b32", count, itoa(turns))
		if a.loop != nil && a.loop.mapped && arr.idle == "" {
			f.loadAhead()
		}
		f.place(head)
	}
	read := func(k int) (x, y [][]string) {
		x = f.plainRead(a, acc.Type, aInner, left, k, run, arr.rows, arr.rowGroup, arr.rowAt)
		return x, f.plainRead(b, acc.Type, bInner, right, k, run, arr.cols, arr.colGroup, arr.colAt)
	}
	// Threads meet at a barrier where they start copies by tensor maps, and should have the operands of the next step by then.
	meets := a.loop != nil && a.loop.mapped
	x, y := read(0)
	for k := 0; k < steps; k += run {
		nowX, nowY := x, y
		if meets && k+run < steps {
			x, y = read(k + run)
		}
		f.multiplyAdd(acc, nowX, nowY, run)
		if turns == 1 && arr.idle == "" {
			f.loadAhead()
		}
		if !meets && k+run < steps {
			x, y = read(k + run)
		}
	}
	if turns > 1 {
		f.op("add.s32", left, left, itoa(leftStep))
		f.op("add.s32", right, right, itoa(rightStep))
		f.op("sub.s32", count, count, "1")
		f.when(f.to(pred, "setp.ne.s32", count, "0"), "bra", head)
	}
}

// plainStart returns a register with the address of the thread's first element, and the step to add to it per iteration.
func (f *function) plainStart(t *tile, inner bool, first string, steps int) (at string, step int) {
	scale := t.Type.Size()
	step = steps * t.stride
	if inner {
		scale, step = t.stride, steps*t.Type.Size()
	}
	return f.to(word, "mad.lo.s32", first, itoa(scale), f.operand(t)), step
}

// plainRead reads the thread's n rows (or columns) of steps k … k+run-1 and returns them by step and row, in the type of the sum. Rows are
// in groups of adjacent ones; row i is at distance place(i) from the first.
func (f *function) plainRead(t *tile, to kir.Type, inner bool, at string, k, run, n, group int, place func(int) int) [][]string {
	size := t.Type.Size()
	out := make([][]string, run)
	for s := range out {
		out[s] = make([]string, n)
	}
	if inner {
		for i := range n {
			for s, x := range f.plainVector(t, to, location(at, int64(t.offset+place(i)*t.stride+k*size)), run) {
				out[s][i] = x
			}
		}
		return out
	}
	for s := range run {
		for i := 0; i < n; i += group {
			copy(out[s][i:], f.plainVector(t, to, location(at, int64(t.offset+(k+s)*t.stride+place(i)*size)), group))
		}
	}
	return out
}

// plainVector loads n adjacent elements and converts them to the type of the sum.
func (f *function) plainVector(t *tile, to kir.Type, from string, n int) []string {
	kind, _ := element(t.Type, n)
	rs := make([]string, n)
	for i := range rs {
		rs[i] = f.reg(classOf(t.Type))
	}
	operand, v := vector(rs)
	f.op("ld.shared"+v+kind, operand, from)
	if classOf(t.Type) == half {
		for i, r := range rs {
			rs[i] = f.toSingle(t.Type, r)
		}
	}
	return rs
}

func (f *function) multiplyAdd(acc *tile, x, y [][]string, run int) {
	name := map[kir.Type]string{dtype.Float32: "fma.rn.f32", dtype.Float64: "fma.rn.f64", dtype.Int32: "mad.lo.s32"}[acc.Type]
	for s := range run {
		for i := range acc.arr.rows {
			for j := range acc.arr.cols {
				r := acc.regs[i*acc.arr.cols+j]
				f.op(name, r, x[s][i], y[s][j], r)
			}
		}
	}
}
