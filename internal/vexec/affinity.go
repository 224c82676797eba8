package vexec

import (
	"math"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// affinity is an integer base + c[0]*x + c[1]*y + c[2]*z + c[3]*b, where x, y, z are a lane's thread coordinates and b is its block's place
// in the pass. For 32-bit types the formula is exact for all lanes, without wrapping; for 64-bit types it holds modulo 2^64.
type affinity struct {
	base int64
	c    [4]int64
	// ok: the formula holds; else the register does.
	ok bool
	// lo and hi are the lanes that the register already holds.
	lo, hi int
}

// lanespan is a Bool that is true for the lanes of [from, to).
type lanespan struct {
	from, to int
	ok       bool
	lo, hi   int
}

// ref is an operand as running code sees it.
type ref struct {
	class class
	t     dtype.DType
	size  int32
	p, k  int32
}

// affinityOf returns a uniform or affine operand's formula.
func (w *worker) affinityOf(r *ref) (affinity, bool) {
	switch r.class {
	case uniform:
		return affinity{base: readInt(w.p[r.p], r.t)}, true
	case affine:
		a := w.aff[r.k]
		return a, a.ok
	}
	return affinity{}, false
}

const huge = 1 << 62

// bounds returns the least and greatest value over all lanes of the pass; ok is false if they are not within ±2^62.
func (w *worker) bounds(a *affinity) (lo, hi int64, ok bool) {
	lo, hi = a.base, a.base
	if lo > huge || lo < -huge {
		return 0, 0, false
	}
	for d, c := range a.c {
		n := w.ext[d] - 1
		if n == 0 || c == 0 {
			continue
		}
		if c > huge>>14 || c < -huge>>14 {
			return 0, 0, false
		}
		if c > 0 {
			hi += c * n
		} else {
			lo += c * n
		}
	}
	return lo, hi, lo >= -huge && hi <= huge
}

// fits reports whether all lanes of a lie in type t.
func (w *worker) fits(a *affinity, t dtype.DType) bool {
	var least, most int64
	switch t {
	case dtype.Int32:
		least, most = math.MinInt32, math.MaxInt32
	case dtype.Uint32:
		least, most = 0, math.MaxUint32
	default:
		return true
	}
	lo, hi, ok := w.bounds(a)
	return ok && lo >= least && hi <= most
}

// linear returns the stride between neighbouring lanes, if there is one.
func (w *worker) linear(a *affinity) (int64, bool) {
	s, n := int64(0), int64(1)
	for d, e := range w.ext {
		if e == 1 {
			continue
		}
		if n == 1 {
			s = a.c[d]
		} else if a.c[d] != s*n {
			return 0, false
		}
		n *= e
	}
	return s, true
}

// at returns a's value in a lane.
func (w *worker) at(a *affinity, lane int) int64 {
	x, y, z, b := w.coords(lane)
	return a.base + a.c[0]*int64(x) + a.c[1]*int64(y) + a.c[2]*int64(z) + a.c[3]*int64(b)
}

// affineOp is an operation that may keep its result as a formula.
type affineOp struct {
	op      kir.Op
	t       dtype.DType // of the result, or of the operands for comparisons
	d, a, b ref
	// plain computes the lanes instead.
	plain inst
}

func execAffine(w *worker, in *inst) {
	o := in.aff
	r := &w.aff[o.d.k]
	if x, ok := w.affinityOf(&o.a); ok {
		y, ok := affinity{}, true
		if o.b.class != unused {
			y, ok = w.affinityOf(&o.b)
		}
		if ok && combine(o.op, &x, &y, o.t) && w.fits(&x, o.t) {
			x.ok, x.lo, x.hi = true, 0, 0
			*r = x
			return
		}
	}
	w.spell(&o.a)
	w.spell(&o.b)
	o.plain.exec(w, &o.plain)
	r.ok, r.lo, r.hi = false, w.m.lo, w.m.hi
}

// combine sets x to the result of an operation on formulas; false if it is none. t is the result's type.
func combine(op kir.Op, x, y *affinity, t dtype.DType) bool {
	switch op {
	case kir.OpAdd, kir.OpPtrAdd:
		x.base += y.base
		for d := range x.c {
			x.c[d] += y.c[d]
		}
	case kir.OpSub:
		x.base -= y.base
		for d := range x.c {
			x.c[d] -= y.c[d]
		}
	case kir.OpNeg:
		x.scale(-1)
	case kir.OpMul, kir.OpMulWide:
		if y.c != [4]int64{} {
			*x, *y = *y, *x
		}
		if t.Size() == 4 && !(small(x.base) && small(x.c[0]) && small(x.c[1]) && small(x.c[2]) && small(x.c[3]) && small(y.base)) {
			return false
		}
		x.scale(y.base)
	case kir.OpShl:
		n := uint64(y.base) & math.MaxUint32
		if n >= uint64(8*t.Size()) {
			*x = affinity{}
			return true
		}
		if t.Size() == 4 && !(n < 31 && small(x.base) && small(x.c[0]) && small(x.c[1]) && small(x.c[2]) && small(x.c[3])) {
			return false
		}
		x.scale(1 << n)
	case kir.OpCvt:
	default:
		return false
	}
	return true
}

// small bounds a factor so that products of two do not overflow.
func small(v int64) bool { return v < 1<<31 && v > -1<<31 }

func (a *affinity) scale(f int64) {
	a.base *= f
	for d := range a.c {
		a.c[d] *= f
	}
}

// execAffineCvt converts between 32- and 64-bit integers: the formula stays if it is exact in the wider reading.
func execAffineCvt(w *worker, in *inst) {
	o := in.aff
	if x, ok := w.affinityOf(&o.a); ok {
		if w.fits(&x, o.t) {
			x.ok, x.lo, x.hi = true, 0, 0
			w.aff[o.d.k] = x
			return
		}
	}
	w.spell(&o.a)
	o.plain.exec(w, &o.plain)
	r := &w.aff[o.d.k]
	r.ok, r.lo, r.hi = false, w.m.lo, w.m.hi
}

// execAffineCompare finds the lanes where a comparison of formulas holds.
func execAffineCompare(w *worker, in *inst) {
	o := in.aff
	x, xok := w.affinityOf(&o.a)
	y, yok := w.affinityOf(&o.b)
	r := &w.spans[o.d.k]
	if xok && yok && w.comparable(&x, o.t) && w.comparable(&y, o.t) {
		if o.op == kir.OpGt || o.op == kir.OpGe {
			x, y = y, x
		}
		combine(kir.OpSub, &x, &y, o.t)
		least := int64(math.MinInt64) // the condition is least <= x - y <= most
		most := int64(0)
		switch o.op {
		case kir.OpLt, kir.OpGt:
			most = -1
		case kir.OpEq:
			least = 0
		}
		if from, to, ok := w.solve(&x, least, most); ok {
			*r = lanespan{from: from, to: to, ok: true}
			return
		}
	}
	w.spell(&o.a)
	w.spell(&o.b)
	o.plain.exec(w, &o.plain)
	*r = lanespan{lo: w.m.lo, hi: w.m.hi}
}

// comparable reports whether the formula's numbers compare as the type's.
func (w *worker) comparable(a *affinity, t dtype.DType) bool {
	lo, hi, ok := w.bounds(a)
	return ok && (t != dtype.Uint64 || lo >= 0) && hi < huge/8 && lo > -huge/8
}

// solve returns the lanes where least <= a <= most, if they are a range.
func (w *worker) solve(a *affinity, least, most int64) (from, to int, ok bool) {
	n := w.lanes
	lo, hi, ok := w.bounds(a)
	if !ok {
		return 0, 0, false
	}
	if lo >= least && hi <= most {
		return 0, n, true
	}
	if lo > most || hi < least {
		return 0, 0, true
	}
	s, ok := w.linear(a)
	if !ok || s == 0 {
		return 0, 0, false
	}
	below, above := most, least // least <= base + s*i <= most
	if s < 0 {
		below, above = least, most
	}
	// lanes up to (below-base)/s and from (above-base)/s on
	to = n
	if below != math.MinInt64 {
		to = int(min(max(floorDiv(below-a.base, s)+1, 0), int64(n)))
	}
	if above != math.MinInt64 {
		from = int(min(max(-floorDiv(-(above-a.base), s), 0), int64(n)))
	}
	if from >= to {
		from, to = 0, 0
	}
	return from, to, true
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

// execSpanAnd intersects Bools that are spans or uniform.
func execSpanAnd(w *worker, in *inst) {
	o := in.aff
	r := &w.spans[o.d.k]
	x, xok := w.spanOf(&o.a)
	y, yok := w.spanOf(&o.b)
	if xok && yok {
		from, to := max(x.from, y.from), min(x.to, y.to)
		if from >= to {
			from, to = 0, 0
		}
		*r = lanespan{from: from, to: to, ok: true}
		return
	}
	w.spell(&o.a)
	w.spell(&o.b)
	o.plain.exec(w, &o.plain)
	*r = lanespan{lo: w.m.lo, hi: w.m.hi}
}

// spanOf returns the range of a Bool operand.
func (w *worker) spanOf(r *ref) (lanespan, bool) {
	switch r.class {
	case uniform:
		if *(*uint8)(w.p[r.p]) != 0 {
			return lanespan{to: w.lanes}, true
		}
		return lanespan{}, true
	case span:
		s := w.spans[r.k]
		return s, s.ok
	}
	return lanespan{}, false
}

// execSpell makes sure that an operand's register holds the active lanes.
func execSpell(w *worker, in *inst) { w.spell(&in.aff.a) }

func (w *worker) spell(r *ref) {
	switch r.class {
	case affine:
		a := &w.aff[r.k]
		if a.ok && (a.lo > w.m.lo || a.hi < w.m.hi) {
			a.lo, a.hi = w.m.lo, w.m.hi
			if r.size == 4 {
				spellAffine[uint32](w, a, w.p[r.p])
			} else {
				spellAffine[uint64](w, a, w.p[r.p])
			}
		}
	case span:
		s := &w.spans[r.k]
		if s.ok && (s.lo > w.m.lo || s.hi < w.m.hi) {
			s.lo, s.hi = w.m.lo, w.m.hi
			b := lanes[uint8](w.p[r.p], w.m.hi)
			clear(b[w.m.lo:])
			for i := max(s.from, w.m.lo); i < min(s.to, w.m.hi); i++ {
				b[i] = 1
			}
		}
	}
}

// spellAffine writes lanes [a.lo, a.hi).
func spellAffine[T uint32 | uint64](w *worker, a *affinity, p unsafe.Pointer) {
	d := lanes[T](p, a.hi)
	if s, ok := w.linear(a); ok {
		v, step := T(a.base+s*int64(a.lo)), T(s)
		for i := a.lo; i < a.hi; i++ {
			d[i] = v
			v += step
		}
		return
	}
	nx := int(w.ext[0])
	for i := a.lo; i < a.hi; {
		v, step := T(w.at(a, i)), T(a.c[0])
		for end := min(a.hi, i-i%nx+nx); i < end; i++ {
			d[i] = v
			v += step
		}
	}
}
