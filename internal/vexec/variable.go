package vexec

import (
	"unsafe"

	"tenon.dev/internal/kir"
)

// get reads a variable, directly from its own register if nothing sets it while the value is live.
func (e *emitter) get(in *kir.Instr) {
	v, x := &e.a.vars[in.Sym], &e.a.values[in.Res[0]]
	t := e.p.Vars[in.Sym]
	if e.l.readsVar(in) {
		x.p, x.k = v.p, v.k
		if v.class != x.class {
			e.fail("variable %d has two classes", in.Sym)
		}
		return
	}
	d := e.define(in.Res[0])
	if x.class == uniform {
		e.add(inst{exec: execScalar, k: plainOps[kir.OpGet][t][0], d: d.p, a: v.p})
		return
	}
	move := inst{exec: execLanes, k: laneOps[kir.OpGet][t][0], d: d.p, ds: d.size, a: v.p, as: d.size, wide: int32(v.wide)}
	if x.class == affine {
		e.add(inst{exec: execAffine, aff: &affineOp{op: kir.OpCvt, t: t, d: d, a: ref{class: affine, t: t, size: d.size, p: v.p, k: v.k},
			plain: move}})
		return
	}
	e.add(move)
}

// set writes a variable in the active lanes.
func (e *emitter) set(in *kir.Instr) {
	v, t := &e.a.vars[in.Sym], e.p.Vars[in.Sym]
	r := e.ref(in.Args[0])
	if v.class == uniform {
		e.add(inst{exec: execScalar, k: plainOps[kir.OpGet][t][0], d: v.p, a: r.p})
		return
	}
	if v.class == affine {
		e.add(inst{exec: execSetAffine, aff: &affineOp{a: r, d: ref{class: affine, t: t, size: r.size, p: v.p, k: v.k}}})
		return
	}
	e.spell(in.Args[0])
	size := int32(v.wide * t.Size())
	i := inst{exec: execSet, wide: int32(v.wide), k: plainOps[kir.OpGet][t][b2i(r.class == uniform && v.wide == 1)], d: v.p,
		ds: size, a: r.p, as: size,
		acc: &access{scatter: maskedMoves[size]}}
	var temp int32
	switch {
	case v.wide == 1 && r.class == uniform:
		i.as = 0
	case r.class == uniform:
		temp = e.fill(in.Args[0], v.wide)
	case r.size < size:
		temp = e.repeat(in.Args[0], v.wide)
	}
	if temp != 0 {
		i.a = temp
		e.release(temp)
	}
	e.forward(in, &i)
	e.add(i)
}

// forward makes the operation before a write of its result write directly to the variable if all lanes from the first active one to the
// last are active; set then handles only the other cases.
func (e *emitter) forward(in *kir.Instr, set *inst) {
	code := *e.code
	if len(code) == 0 || e.a.values[in.Args[0]].uses != 1 {
		return
	}
	if op := &code[len(code)-1]; op.lanewise && op.d == set.a && op.wide == set.wide {
		op.exec, op.alt = execLanesForward, set.d
		set.exec = execSetRest
	}
}

// setElement writes element Imm of a wide variable.
func (e *emitter) setElement(in *kir.Instr) {
	v, r := &e.a.vars[in.Sym], e.ref(in.Args[0])
	e.spell(in.Args...)
	i := inst{exec: execSetElement, d: v.p, ds: int32(v.wide) * r.size, a: r.p, as: r.size, bs: int32(in.Imm) * r.size, cs: r.size}
	if r.class == uniform {
		i.as = 0
	}
	e.add(i)
}

func execSetElement(w *worker, in *inst) {
	lo, n := w.m.lo, w.m.hi-w.m.lo
	to, from := unsafe.Add(w.p[in.d], lo*int(in.ds)+int(in.bs)), unsafe.Add(w.p[in.a], lo*int(in.as))
	if w.m.b == nil {
		stridedMoves[in.cs](to, from, int(in.ds), int(in.as), n)
		return
	}
	storeMasked(in.cs, to, from, int(in.ds), int(in.as), w.m.b[lo:w.m.hi])
}

// execSet writes a variable's lanes.
func execSet(w *worker, in *inst) {
	if w.m.b == nil {
		execLanes(w, in)
		return
	}
	lo := w.m.lo
	in.acc.scatter(unsafe.Add(w.p[in.d], lo*int(in.ds)), unsafe.Add(w.p[in.a], lo*int(in.as)), int(in.as), w.m.b[lo:w.m.hi])
}

// execSetAffine writes a variable that may have a formula. It gets one if all lanes of the pass set it to a formula, and stays as it is if
// nothing changes; otherwise its lanes are written.
func execSetAffine(w *worker, in *inst) {
	o := in.aff
	v := &w.aff[o.d.k]
	var f formula
	ok := w.formulaOf(&o.a, &f)
	all := w.m.b == nil && w.m.hi-w.m.lo == w.lanes
	if ok && all {
		w.keep(o.d.k, &f)
		return
	}
	if v.ok && !all {
		if ok && v.formula == f {
			return
		}
		m := w.m
		w.m = mask{hi: w.lanes}
		w.spell(&o.d)
		w.m = m
	}
	v.ok = false
	w.spell(&o.a)
	size := int(o.d.size)
	lo := w.m.lo
	from, step := w.p[o.a.p], 0
	if o.a.class != uniform {
		from, step = unsafe.Add(from, lo*size), size
	}
	to := unsafe.Add(w.p[o.d.p], lo*size)
	if w.m.b == nil {
		stridedMoves[size](to, from, size, step, w.m.hi-lo)
	} else {
		maskedMoves[size](to, from, step, w.m.b[lo:w.m.hi])
	}
}

// whole reports whether all lanes from the first active one to the pass's last are active, so that a kernel that computes lanes beyond the
// last does no harm to a variable.
func (w *worker) whole() bool { return w.m.b == nil && w.m.hi == w.lanes }

// execLanesForward is execLanes, but writes to the variable if possible.
func execLanesForward(w *worker, in *inst) {
	if !w.whole() {
		execLanes(w, in)
		return
	}
	lo := w.m.lo
	in.k(unsafe.Add(w.p[in.alt], lo*int(in.ds)), unsafe.Add(w.p[in.a], lo*int(in.as)), unsafe.Add(w.p[in.b], lo*int(in.bs)),
		unsafe.Add(w.p[in.c], lo*int(in.cs)), (w.m.hi-lo)*int(in.wide))
}

// execSetRest is execSet after execLanesForward.
func execSetRest(w *worker, in *inst) {
	if !w.whole() {
		execSet(w, in)
	}
}
