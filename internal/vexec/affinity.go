package vexec

import (
	"math"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// formula is an integer base + x*tx + y*ty + z*tz + b*block, where tx, ty, tz are a lane's thread coordinates and block is the index of its
// block in the pass. For 32-bit types it is exact for all lanes, without wrapping; for 64-bit types it holds modulo 2^64. Fields are copied
// one by one, because a wider copy of fields that were just stored separately would have to wait for the stores.
type formula struct{ base, x, y, z, b int64 }

// affinity is a value that may have a formula.
type affinity struct {
	formula
	// ok: the formula holds; otherwise the register does.
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

// ref is an operand at run time.
type ref struct {
	class class
	t     dtype.DType
	size  int32
	p, k  int32
}

// formulaOf sets f to the formula of a uniform or affine operand, if it has one.
func (w *worker) formulaOf(r *ref, f *formula) bool {
	switch r.class {
	case uniform:
		f.base = readInt(w.p[r.p], r.t)
		f.x, f.y, f.z, f.b = 0, 0, 0, 0
		return true
	case affine:
		a := &w.aff[r.k]
		f.base, f.x, f.y, f.z, f.b = a.base, a.x, a.y, a.z, a.b
		return a.ok
	}
	return false
}

// keep makes f the value of affinity k.
func (w *worker) keep(k int32, f *formula) {
	a := &w.aff[k]
	a.base, a.x, a.y, a.z, a.b = f.base, f.x, f.y, f.z, f.b
	a.ok, a.lo, a.hi = true, 0, 0
}

const huge = 1 << 62

// reach adds the range of a term with coefficient c over n places to lo or hi. ok is false if c is too large.
func reach(lo, hi *int64, c, n int64) bool {
	if c == 0 || n == 1 {
		return true
	}
	if c > huge>>14 || c < -huge>>14 {
		return false
	}
	if c > 0 {
		*hi += c * (n - 1)
	} else {
		*lo += c * (n - 1)
	}
	return true
}

// bounds returns the minimum and maximum over all lanes of the pass; ok is false if they are not within ±2^62.
func (w *worker) bounds(f *formula) (lo, hi int64, ok bool) {
	if f.base > huge || f.base < -huge {
		return 0, 0, false
	}
	lo, hi = f.base, f.base
	e := &w.ext
	ok = reach(&lo, &hi, f.x, e[0]) && reach(&lo, &hi, f.y, e[1]) && reach(&lo, &hi, f.z, e[2]) && reach(&lo, &hi, f.b, e[3])
	return lo, hi, ok && lo >= -huge && hi <= huge
}

// fits reports whether the values of f in all lanes fit in type t.
func (w *worker) fits(f *formula, t dtype.DType) bool {
	var least, most int64
	switch t {
	case dtype.Int32:
		least, most = math.MinInt32, math.MaxInt32
	case dtype.Uint32:
		least, most = 0, math.MaxUint32
	default:
		return true
	}
	lo, hi, ok := w.bounds(f)
	return ok && lo >= least && hi <= most
}

// linear returns the stride between neighbouring lanes, if it is constant.
func (w *worker) linear(f *formula) (int64, bool) {
	e := &w.ext
	if e[1] == 1 && e[2] == 1 { // the usual case: one-dimensional blocks
		if e[0] == 1 {
			return f.b, true
		}
		return f.x, e[3] == 1 || f.b == f.x*e[0]
	}
	s, n := int64(0), int64(1)
	for d, c := range [4]int64{f.x, f.y, f.z, f.b} {
		if e[d] == 1 {
			continue
		}
		if n == 1 {
			s = c
		} else if c != s*n {
			return 0, false
		}
		n *= e[d]
	}
	return s, true
}

// at returns f's value in a lane.
func (w *worker) at(f *formula, lane int) int64 {
	x, y, z, b := w.coords(lane)
	return f.base + f.x*int64(x) + f.y*int64(y) + f.z*int64(z) + f.b*int64(b)
}

// affineOp is an operation whose result may be kept as a formula.
type affineOp struct {
	op      kir.Op
	t       dtype.DType // of the result, or of the operands of comparisons
	d, a, b ref
	// plain computes lanes instead.
	plain inst
}

func execAffine(w *worker, in *inst) {
	o := in.aff
	var x, y formula
	if w.formulaOf(&o.a, &x) && (o.b.class == unused || w.formulaOf(&o.b, &y)) && combine(o.op, &x, &y, o.t) && w.fits(&x, o.t) {
		w.keep(o.d.k, &x)
		return
	}
	w.plainly(o)
}

// plainly computes the lanes of an operation whose result has no formula.
func (w *worker) plainly(o *affineOp) {
	w.spell(&o.a)
	w.spell(&o.b)
	o.plain.exec(w, &o.plain)
	if o.d.class == affine {
		r := &w.aff[o.d.k]
		r.ok, r.lo, r.hi = false, w.m.lo, w.m.hi
	} else {
		r := &w.spans[o.d.k]
		r.ok, r.lo, r.hi = false, w.m.lo, w.m.hi
	}
}

// combine sets x to the result of an operation on formulas; it returns false if the result is not a formula. t is the result's type.
func combine(op kir.Op, x, y *formula, t dtype.DType) bool {
	switch op {
	case kir.OpAdd, kir.OpPtrAdd:
		x.base += y.base
		x.x += y.x
		x.y += y.y
		x.z += y.z
		x.b += y.b
	case kir.OpSub:
		x.base -= y.base
		x.x -= y.x
		x.y -= y.y
		x.z -= y.z
		x.b -= y.b
	case kir.OpNeg:
		x.scale(-1)
	case kir.OpMul, kir.OpMulWide:
		if y.x|y.y|y.z|y.b != 0 {
			*x, *y = *y, *x
		}
		if t.Size() == 4 && !(x.small() && small(y.base)) {
			return false
		}
		x.scale(y.base)
	case kir.OpShl:
		n := uint64(y.base) & math.MaxUint32
		if n >= uint64(8*t.Size()) {
			*x = formula{}
			return true
		}
		if t.Size() == 4 && !(n < 31 && x.small()) {
			return false
		}
		x.scale(1 << n)
	case kir.OpCvt: // sign- or zero-extended exactly; otherwise it does not fit
	default:
		return false
	}
	return true
}

// small bounds factors so that the product of two does not overflow.
func small(v int64) bool { return v < 1<<31 && v > -1<<31 }

func (f *formula) small() bool {
	return small(f.base) && small(f.x) && small(f.y) && small(f.z) && small(f.b)
}

func (f *formula) scale(k int64) {
	f.base *= k
	f.x *= k
	f.y *= k
	f.z *= k
	f.b *= k
}

// execAffineCompare computes the range of lanes where a comparison of formulas holds.
func execAffineCompare(w *worker, in *inst) {
	o := in.aff
	var x, y formula
	if w.formulaOf(&o.a, &x) && w.formulaOf(&o.b, &y) && w.comparable(&x, o.t) && w.comparable(&y, o.t) {
		least := int64(math.MinInt64) // the condition is least <= x - y <= most
		most := int64(0)
		switch o.op {
		case kir.OpLt:
			most = -1
		case kir.OpGt:
			least, most = 1, math.MaxInt64
		case kir.OpGe:
			least, most = 0, math.MaxInt64
		case kir.OpEq:
			least = 0
		}
		combine(kir.OpSub, &x, &y, o.t)
		if from, to, ok := w.solve(&x, least, most); ok {
			w.spans[o.d.k] = lanespan{from: from, to: to, ok: true}
			return
		}
	}
	w.plainly(o)
}

// comparable reports whether comparing the formula's numbers gives the same result as comparing values of type t.
func (w *worker) comparable(f *formula, t dtype.DType) bool {
	lo, hi, ok := w.bounds(f)
	return ok && (t != dtype.Uint64 || lo >= 0) && hi < huge/8 && lo > -huge/8
}

// solve returns the lanes where least <= f <= most, if they form a range.
func (w *worker) solve(f *formula, least, most int64) (from, to int, ok bool) {
	n := w.lanes
	lo, hi, ok := w.bounds(f)
	if !ok {
		return 0, 0, false
	}
	if lo >= least && hi <= most {
		return 0, n, true
	}
	if lo > most || hi < least {
		return 0, 0, true
	}
	s, ok := w.linear(f)
	if !ok || s == 0 {
		return 0, 0, false
	}
	below, above := most, least // least <= base + s*i <= most
	if s < 0 {
		below, above = least, most
	}
	// lanes up to (below-base)/s and from (above-base)/s
	to = n
	if below != math.MinInt64 && below != math.MaxInt64 {
		to = int(min(max(floorDiv(below-f.base, s)+1, 0), int64(n)))
	}
	if above != math.MinInt64 && above != math.MaxInt64 {
		from = int(min(max(-floorDiv(-(above-f.base), s), 0), int64(n)))
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
	x, xok := w.spanOf(&o.a)
	y, yok := w.spanOf(&o.b)
	if xok && yok {
		from, to := max(x.from, y.from), min(x.to, y.to)
		if from >= to {
			from, to = 0, 0
		}
		w.spans[o.d.k] = lanespan{from: from, to: to, ok: true}
		return
	}
	w.plainly(o)
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

// execSpell makes the register of an operand hold the active lanes.
func execSpell(w *worker, in *inst) { w.spell(&in.aff.a) }

func (w *worker) spell(r *ref) {
	switch r.class {
	case affine:
		a := &w.aff[r.k]
		if a.ok && (a.lo > w.m.lo || a.hi < w.m.hi) {
			a.lo, a.hi = w.m.lo, w.m.hi
			w.spellFormula(a, r)
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

// spellFormula writes lanes [a.lo, a.hi).
func (w *worker) spellFormula(a *affinity, r *ref) {
	k := laneOps[kir.OpSpecial][r.t][0]
	size := int(r.size)
	if s, ok := w.linear(&a.formula); ok {
		w.from, w.step = a.base+s*int64(a.lo), s
		k(unsafe.Add(w.p[r.p], a.lo*size), unsafe.Pointer(&w.from), unsafe.Pointer(&w.step), nil, a.hi-a.lo)
		return
	}
	nx := int(w.ext[0])
	w.step = a.x
	plane := w.ext[2] == 1 && w.ext[3] == 1
	for i := a.lo; i < a.hi; { // row by row: what a kernel writes beyond a row, the next row overwrites
		y := i / nx
		end := min(a.hi, y*nx+nx)
		if plane {
			w.from = a.base + a.y*int64(y) + a.x*int64(i-y*nx)
		} else {
			w.from = w.at(&a.formula, i)
		}
		k(unsafe.Add(w.p[r.p], i*size), unsafe.Pointer(&w.from), unsafe.Pointer(&w.step), nil, end-i)
		i = end
	}
}
