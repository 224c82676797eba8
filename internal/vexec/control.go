package vexec

import (
	"fmt"
	"math"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// control is an instruction that decides which lanes are active.
type control struct {
	args      [3]ref
	then, els []inst
	// The mask buffers of an if are tb and eb for its regions and mb for the mask after it. Those of a loop are tb for the lanes of an
	// iteration, eb for continued lanes, mb for the lanes of the next iteration, lb for the mask after it and cb for the lanes' conditions.
	tb, eb, mb, lb, cb int
	// loop distinguishes a loop from an if.
	loop bool
	// kills: the regions may lose lanes; returns: by OpReturn.
	kills, returns bool
	// cont indexes the loop's continued lanes.
	cont    int
	counter ref
	// text is an assertion's text, and numbers how many numbers it has.
	text    string
	numbers int
	loc     int
}

func (e *emitter) maskBuffer() int {
	e.nMasks++
	return e.nMasks - 1
}

// control emits control flow.
func (e *emitter) control(in *kir.Instr) {
	c := &control{loc: in.Loc, text: in.Text}
	for i, v := range in.Args {
		c.args[i] = e.ref(v)
	}
	i := inst{ctl: c}
	switch in.Op {
	case kir.OpAssert:
		i.exec = execAssert
		c.numbers = len(in.Args) - 1
		e.spell(in.Args...)
	case kir.OpIf:
		i.exec = execIf
		c.kills = contains(in.Blocks[0], kir.OpBreak, kir.OpContinue, kir.OpReturn) ||
			contains(in.Blocks[1], kir.OpBreak, kir.OpContinue, kir.OpReturn)
		c.tb, c.eb, c.mb = e.maskBuffer(), e.maskBuffer(), e.maskBuffer()
		e.within(&c.then, in.Blocks[0])
		e.within(&c.els, in.Blocks[1])
		e.expire(e.l.end[in])
	case kir.OpFor, kir.OpLoop:
		i.exec = execLoop
		c.loop = true
		c.returns = contains(in.Blocks[0], kir.OpReturn)
		e.returns = e.returns || c.returns
		c.cont, c.tb, c.eb, c.mb, c.lb, c.cb = e.nConts, e.maskBuffer(), e.maskBuffer(), e.maskBuffer(), e.maskBuffer(), e.maskBuffer()
		e.nConts++
		e.loops = append(e.loops, c)
		if in.Op == kir.OpFor {
			i.exec = e.forLoop(in, c)
		}
		e.within(&c.then, in.Blocks[0])
		e.loops = e.loops[:len(e.loops)-1]
		e.expire(e.l.end[in])
	case kir.OpBreak:
		i.exec = execBreak
	case kir.OpContinue:
		i.exec = execContinue
		i.ctl, i.leaves = e.loops[len(e.loops)-1], true
	case kir.OpReturn:
		i.exec = execReturn
	}
	e.add(i)
}

// forLoop prepares a for loop's bounds and counter and returns its executor.
func (e *emitter) forLoop(in *kir.Instr, c *control) func(*worker, *inst) {
	c.counter = e.define(in.Blocks[0].Params[0])
	if c.counter.class == uniform && c.args[1].class == uniform {
		return execForUniform
	}
	e.spell(in.Args...)
	return execForLanes
}

func execAssert(w *worker, in *inst) {
	c := in.ctl
	p := w.p[c.args[0].p]
	if c.args[0].class == uniform {
		if *(*uint8)(p) == 0 {
			w.assertFailed(c, w.m.lo)
		}
		return
	}
	b := lanes[uint8](p, w.m.hi)
	for i := w.m.lo; i < w.m.hi; i++ {
		if b[i] == 0 && (w.m.b == nil || w.m.b[i] != 0) {
			w.assertFailed(c, i)
			return
		}
	}
}

// assertFailed stops the worker because the condition of lane i is false.
func (w *worker) assertFailed(c *control, i int) {
	said := c.text
	if n := c.numbers; n > 0 {
		var numbers [len(c.args)]any
		for j := range n {
			numbers[j] = w.number(&c.args[1+j], i)
		}
		said = fmt.Sprintf(said, numbers[:n]...)
	}
	first := w.fault == nil
	w.fail(codeAssert, c.loc, i, "assertion failed: %s,", said)
	if first {
		w.fault.Said = said
	}
}

// number returns lane i of an operand whose register holds the lanes.
func (w *worker) number(r *ref, i int) any {
	p := w.p[r.p]
	if r.class != uniform {
		p = unsafe.Add(p, i*r.t.Size())
	}
	switch r.t {
	case dtype.Float64:
		return *(*float64)(p)
	case dtype.Float32:
		return *(*float32)(p)
	case dtype.Float16:
		return (*(*dtype.F16)(p)).Float32()
	case dtype.BFloat16:
		return (*(*dtype.BF16)(p)).Float32()
	case dtype.Bool:
		return *(*uint8)(p) != 0
	}
	return readInt(p, r.t)
}

func execIf(w *worker, in *inst) {
	c := in.ctl
	r := &c.args[0]
	if r.class == uniform {
		if *(*uint8)(w.p[r.p]) != 0 {
			w.run(c.then)
		} else {
			w.run(c.els)
		}
		return
	}
	m := w.m
	var t, f mask
	if s, ok := w.spanOf(r); ok {
		t = m.cut(s.from, s.to)
		if t.hi == 0 {
			f = m
		} else {
			f = m.without(s.from, s.to, w.masks[c.eb])
		}
	} else {
		t, f = m.split(lanes[uint8](w.p[r.p], w.m.hi), w.masks[c.tb], w.masks[c.eb])
	}
	after := t
	if t.hi != 0 && len(c.then) > 0 {
		w.m = t
		w.run(c.then)
		after = w.m
	}
	if w.fault != nil {
		return
	}
	afterElse := f
	if f.hi != 0 && len(c.els) > 0 {
		w.m = f
		w.run(c.els)
		afterElse = w.m
	}
	switch {
	case w.fault != nil:
	case !c.kills || after.same(t) && afterElse.same(f):
		w.m = m
	default:
		w.m = union(w.masks[c.mb], after, afterElse)
	}
}

// turn runs a loop's body once. It adds the continued lanes to w.m and returns false if no lanes are left.
func (w *worker) turn(c *control) bool {
	w.run(c.then)
	if again := w.cont[c.cont]; again.hi != 0 {
		w.cont[c.cont] = mask{}
		if w.fault == nil {
			w.m = union(w.masks[c.mb], w.m, again)
		}
	}
	return w.m.hi != 0
}

// leave restores the lanes that entered a loop, except those that returned.
func (w *worker) leave(c *control, entry mask) {
	switch {
	case w.fault != nil:
		w.m = mask{}
	case c.returns:
		w.m = entry.minus(w.dead, w.masks[c.lb])
	default:
		w.m = entry
	}
}

func execLoop(w *worker, in *inst) {
	entry := w.m
	for w.turn(in.ctl) {
	}
	w.leave(in.ctl, entry)
}

func execBreak(w *worker, _ *inst) { w.m = mask{} }

func execContinue(w *worker, in *inst) {
	c := in.ctl
	w.cont[c.cont] = union(w.masks[c.eb], w.cont[c.cont], w.m)
	w.m = mask{}
}

func execReturn(w *worker, _ *inst) {
	if w.plan.returns {
		m := w.m
		if m.b == nil {
			for i := m.lo; i < m.hi; i++ {
				w.dead[i] = 1
			}
		} else {
			orBytes(w.dead[m.lo:m.hi], m.b[m.lo:m.hi])
		}
	}
	w.m = mask{}
}

// writeInt stores an integer of 4 or 8 bytes.
func writeInt(p unsafe.Pointer, size int32, v int64) {
	if size == 4 {
		*(*int32)(p) = int32(v)
	} else {
		*(*int64)(p) = v
	}
}

// execForUniform runs a loop whose bounds are scalars.
func execForUniform(w *worker, in *inst) {
	c := in.ctl
	entry := w.m
	i, end, step := readInt(w.p[c.args[0].p], c.args[0].t), readInt(w.p[c.args[1].p], c.args[1].t), readInt(w.p[c.args[2].p], c.args[2].t)
	for i < end {
		writeInt(w.p[c.counter.p], c.counter.size, i)
		if !w.turn(c) || i > math.MaxInt64-step {
			break
		}
		i += step
	}
	w.leave(c, entry)
}

// execForLanes runs a loop whose counter or bounds differ between lanes: by formula if that is exact, otherwise lane by lane.
func execForLanes(w *worker, in *inst) {
	c := in.ctl
	entry := w.m
	if !w.forAffine(c) {
		for i := range c.args {
			w.spell(&c.args[i])
		}
		w.forSpelled(c)
	}
	w.leave(c, entry)
}

// forAffine runs the loop with an affine counter. It does nothing and returns false if the counter is not affine.
func (w *worker) forAffine(c *control) bool {
	var x, end formula
	if !w.formulaOf(&c.args[0], &x) || !w.formulaOf(&c.args[1], &end) || c.args[2].class != uniform || c.counter.class == varying ||
		!w.comparable(&x, dtype.Int64) || !w.comparable(&end, dtype.Int64) {
		return false
	}
	step := readInt(w.p[c.args[2].p], c.args[2].t)
	_, most, _ := w.bounds(&end)
	if step > huge/8 || c.counter.size == 4 && most+step > math.MaxInt32 {
		return false
	}
	d := x // start - end; if the first iteration finds a range of lanes, all do
	combine(kir.OpSub, &d, &end, dtype.Int64)
	if _, ok := w.linear(&d); !ok {
		return false
	}
	for {
		from, to, ok := w.solve(&d, math.MinInt64, -1)
		if !ok {
			panic("vexec: a loop's lanes stopped being a range")
		}
		w.m = w.m.cut(from, to)
		if w.m.hi == 0 {
			return true
		}
		if c.counter.class == uniform {
			writeInt(w.p[c.counter.p], c.counter.size, x.base)
		} else {
			w.keep(c.counter.k, &x)
		}
		if !w.turn(c) {
			return true
		}
		x.base += step
		d.base += step
	}
}

// forSpelled runs the loop with the counter and the bounds in lanes.
func (w *worker) forSpelled(c *control) {
	if c.counter.size == 4 {
		forLanes[int32](w, c)
	} else {
		forLanes[int64](w, c)
	}
}

func forLanes[T int32 | int64](w *worker, c *control) {
	n := w.m.hi
	at := func(r *ref, i int) T {
		if r.class == uniform {
			i = 0
		}
		return *(*T)(unsafe.Add(w.p[r.p], i*int(r.size)))
	}
	var counter []T
	first := at(&c.args[0], 0)
	if c.counter.class != uniform {
		counter = lanes[T](w.p[c.counter.p], n)
		for i := w.m.lo; i < n; i++ {
			counter[i] = at(&c.args[0], i)
		}
		if c.counter.class == affine {
			w.aff[c.counter.k] = affinity{lo: w.m.lo, hi: n}
		}
	}
	going, rest := w.masks[c.tb], w.masks[c.eb]
	cond := w.masks[c.cb]
	for {
		for i := w.m.lo; i < w.m.hi; i++ {
			v := first
			if counter != nil {
				v = counter[i]
			}
			cond[i] = bit(v < at(&c.args[1], i))
		}
		w.m, _ = w.m.split(cond, going, rest)
		if w.m.hi == 0 {
			return
		}
		if counter == nil {
			writeInt(w.p[c.counter.p], c.counter.size, int64(first))
		}
		if !w.turn(c) {
			return
		}
		if counter == nil {
			step := at(&c.args[2], 0)
			if first+step < first {
				return
			}
			first += step
			continue
		}
		for i := w.m.lo; i < w.m.hi; i++ {
			next := counter[i] + at(&c.args[2], i)
			if next < counter[i] { // beyond the maximum of the type
				next = at(&c.args[1], i)
			}
			counter[i] = next
		}
	}
}
