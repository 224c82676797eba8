package vexec

import (
	"math"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// tileLoad fills a tile. Its region is split by the axes that values depend on. Values that depend only on the inner axis are computed once
// along it, values that depend only on the outer axis once along that, and only values that combine both are computed over both, many rows
// at a time.
type tileLoad struct {
	t *tileStore
	// inner is the number of groups of width elements along one axis, outer the number of positions along the other.
	inner, outer, width int
	// phase is the set of axes of the instruction being emitted.
	phase                   uint8
	pre, onIn, onOut, mixed []inst
	in, out                 ref
	crossing                []crossing
	// index and inside are the region's results over both axes; base is in acc, as is what faults need.
	index, inside ref
	acc           access
	apart         *apart
	// transposed: the loaded rows are columns of the stored tile; they are assembled in a buffer first.
	transposed bool
	buffer     int32
	// raw is a buffer for elements before they are widened.
	raw   int32
	widen kern
	// tb and eb are mask buffers.
	tb, eb int
	// watched: rows report what they read.
	watched bool
	// mapped describes the load's tensor map, if it has one.
	mapped *mappedLoad
}

// crossing is a value that depends on one axis, as instructions that combine both axes see it.
type crossing struct {
	v        kir.Value
	inner    bool
	from, to ref
}

// cross returns v as instructions that combine both axes see it.
func (l *tileLoad) cross(e *emitter, v kir.Value) ref {
	for _, c := range l.crossing {
		if c.v == v {
			return c.to
		}
	}
	x := &e.a.values[v]
	from := ref{class: x.class, t: x.t, size: int32(x.size), p: x.p, k: x.k}
	to := from
	to.p = e.alloc(x.size)
	e.release(to.p) // after the load
	switch x.class {
	case affine:
		to.k = int32(e.nAff)
		e.nAff++
	case span:
		to.k = int32(e.nSpans)
		e.nSpans++
	}
	l.crossing = append(l.crossing, crossing{v, x.dep == depInner, from, to})
	return to
}

func pointerTo(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func at(p unsafe.Pointer, bytes int) unsafe.Pointer { return unsafe.Add(p, bytes) }

// tileLoad emits a tile load.
func (e *emitter) tileLoad(in *kir.Instr) {
	b := in.Blocks[0]
	l := &tileLoad{t: &e.tiles[in.Sym], width: in.Width, tb: e.maskBuffer(), eb: e.maskBuffer()}
	l.inner, l.outer = l.t.cols/l.width, l.t.rows
	if in.Sub == kir.AlongRows {
		l.inner, l.outer = l.t.rows/l.width, l.t.cols
	}
	l.transposed = (in.Sub == kir.AlongRows) != l.t.byCols
	if l.transposed {
		l.buffer = e.tileBuffer(l.t, l.t.kept.Size())
	}
	if l.t.kept != l.t.t {
		l.raw, l.widen = e.tileBuffer(l.t, l.t.t.Size()), laneCvts[l.t.t][l.t.kept]
	}
	e.load = l
	inner, outer := loadAxes(in)
	l.in, l.out = e.define(inner), e.define(outer)
	e.phases(b)
	yield := b.Instrs[len(b.Instrs)-1].Args
	if l.watched = e.watched; !l.watched { // a watched load goes row by row
		l.apart = e.takeApart(yield)
	}
	l.phase = depBoth
	size := int32(in.Type.Size())
	group := size * int32(l.width)
	l.acc = access{t: in.Type, scale: size, size: group, width: 1, site: e.nSites, loc: in.Loc, base: e.ref(yield[0]),
		strided: stridedMoves[group], gather: gathers[group][1]}
	e.nSites++
	l.index, l.inside = e.ref(yield[1]), e.ref(yield[2])
	e.load = nil
	l.mapped = e.mappedLoad(in)
	for _, p := range e.held {
		e.release(p)
	}
	e.held = e.held[:0]
	e.expire(e.l.end[in])
	e.add(inst{exec: execTileLoad, load: l})
}

// phases emits each of the region's instructions into the code for its axes.
func (e *emitter) phases(b *kir.Block) {
	l := e.load
	outer, spelled := e.code, e.spelled
	var maps [4]map[kir.Value]bool
	for _, in := range b.Instrs {
		if e.err != nil || !e.a.live(in) {
			continue
		}
		l.phase = depBoth
		if len(in.Res) > 0 {
			l.phase = e.a.values[in.Res[0]].dep
		}
		e.code = []*[]inst{&l.pre, &l.onIn, &l.onOut, &l.mixed}[l.phase]
		if maps[l.phase] == nil {
			maps[l.phase] = map[kir.Value]bool{}
		}
		e.spelled = maps[l.phase]
		e.instr(in, e.l.at[in])
	}
	e.code, e.spelled = outer, spelled
}

// execTileLoad fills the tile.
func execTileLoad(w *worker, in *inst) {
	l := in.load
	saved := place{w.m, w.lanes, w.ext}
	w.run(l.pre)
	w.tile = l.t.name
	if w.fault == nil {
		w.enter(l.outer, 1)
		w.keep(l.out.k, &formula{x: 1})
		w.run(l.onOut)
	}
	if w.fault == nil {
		w.enter(l.inner, 1)
		w.keep(l.in.k, &formula{x: int64(l.width)})
		w.run(l.onIn)
	}
	n, size := l.inner*l.width, l.t.kept.Size()
	kept := w.p[l.t.p]
	if l.transposed {
		kept = w.p[l.buffer]
	}
	to := kept
	if l.widen != nil {
		to = w.p[l.raw]
	}
	done := 0
	if w.fault == nil && l.apart != nil {
		done = l.dense(w, to)
	}
	step := max(1, w.room/l.inner)
	for r := done; r < l.outer && w.fault == nil; r += step {
		l.rows(w, to, r, min(step, l.outer-r), r == done)
	}
	if w.fault == nil && l.mapped != nil {
		l.compare(w, to)
	}
	if w.fault == nil && l.widen != nil {
		l.widen(kept, to, nil, nil, n*l.outer)
	}
	if w.fault == nil && l.transposed {
		turns[size](w.p[l.t.p], kept, l.outer, n, l.outer, n)
	}
	w.leaveTile(saved)
}

// rows loads n rows from row r on; first says whether they are the first.
func (l *tileLoad) rows(w *worker, to unsafe.Pointer, r, n int, first bool) {
	w.enter(l.inner, n)
	for i := range l.crossing {
		c := &l.crossing[i]
		if !c.inner {
			w.crossOuter(c, r, n, l.inner)
		} else if first {
			w.crossInner(c, n, l.inner)
		}
	}
	w.run(l.mixed)
	if w.fault != nil {
		return
	}
	w.m = mask{hi: w.lanes}
	group := int(l.acc.size)
	whole := lanes[byte](to, l.outer*l.inner*group)[r*l.inner*group:][:n*l.inner*group]
	m := w.m
	if s, ok := w.spanOf(&l.inside); ok {
		m = m.cut(s.from, s.to)
	} else {
		m, _ = m.split(lanes[uint8](w.p[l.inside.p], w.lanes), w.masks[l.tb], w.masks[l.eb])
	}
	if l.watched {
		l.watchRows(w, m)
	}
	if m.hi == 0 || m.b != nil || !l.adjacent(w, whole, m) {
		clear(whole)
		l.scattered(w, whole, m)
	}
}

// crossInner repeats a value of the inner axis for n rows.
func (w *worker) crossInner(c *crossing, n, inner int) {
	size := int(c.from.size)
	d := lanes[byte](w.p[c.to.p], n*inner*size)
	switch c.from.class {
	case affine:
		if a := &w.aff[c.from.k]; a.ok {
			w.keep(c.to.k, &a.formula)
			return
		}
		w.aff[c.to.k] = affinity{hi: n * inner}
	case span:
		s := &w.spans[c.from.k]
		if s.ok && (s.from >= s.to || s.from == 0 && s.to >= inner) {
			w.spans[c.to.k] = lanespan{to: min(s.to, inner) * n, ok: true}
			return
		}
		w.spans[c.to.k] = lanespan{hi: n * inner}
		if s.ok {
			clear(d[:inner])
			for i := s.from; i < min(s.to, inner); i++ {
				d[i] = 1
			}
			break
		}
		copy(d[:inner], lanes[byte](w.p[c.from.p], inner))
	}
	if c.from.class != span {
		copy(d[:inner*size], lanes[byte](w.p[c.from.p], inner*size))
	}
	for have := inner * size; have < len(d); have *= 2 {
		copy(d[have:], d[:have])
	}
}

// crossOuter repeats elements r to r+n of a value of the outer axis, each over a row.
func (w *worker) crossOuter(c *crossing, r, n, inner int) {
	switch c.from.class {
	case affine:
		if a := &w.aff[c.from.k]; a.ok {
			w.keep(c.to.k, &formula{base: a.base + a.x*int64(r), y: a.x})
			return
		}
		w.aff[c.to.k] = affinity{hi: n * inner}
	case span:
		if s := &w.spans[c.from.k]; s.ok {
			from, to := min(max(s.from-r, 0), n), min(max(s.to-r, 0), n)
			w.spans[c.to.k] = lanespan{from: from * inner, to: max(from, to) * inner, ok: true}
			return
		}
		w.spans[c.to.k] = lanespan{hi: n * inner}
	}
	size := int(c.from.size)
	fill := laneOps[kir.OpGet][c.from.t][1] // what it writes beyond a row, the next row overwrites
	for i := range n {
		fill(at(w.p[c.to.p], i*inner*size), at(w.p[c.from.p], (r+i)*size), nil, nil, inner)
	}
}

// adjacent loads rows whose groups are adjacent in memory. It returns false if they are not adjacent, or not all aligned and inside
// allocations.
func (l *tileLoad) adjacent(w *worker, whole []byte, m mask) bool {
	c := &l.acc
	var x, base formula
	if !w.formulaOf(&l.index, &x) || !w.formulaOf(&c.base, &base) {
		return false
	}
	x.scale(int64(c.scale))
	combine(kir.OpAdd, &x, &base, dtype.Uint64)
	group := int(c.size)
	if x.x != int64(group) && l.inner > 1 {
		return false
	}
	s := &w.sites[c.site]
	clear(whole[:m.lo*group])
	for i := m.lo; i < m.hi; {
		end := min(m.hi, i-i%l.inner+l.inner)
		from, n := uint64(w.at(&x, i)), (end-i)*group
		if from%uint64(group) != 0 || !w.find(s, from) || uint64(n) > uint64(len(s.mem))-(from-s.base) {
			return false
		}
		copy(whole[i*group:end*group], s.mem[from-s.base:])
		i = end
	}
	clear(whole[m.hi*group:])
	return true
}

// scattered loads the active groups one by one, up to the first fault.
func (l *tileLoad) scattered(w *worker, whole []byte, m mask) {
	c := &l.acc
	if m.hi == 0 {
		return
	}
	s := &w.sites[c.site]
	w.m = m
	w.spell(&l.index)
	w.spell(&c.base)
	group := int(c.size)
	lo := m.lo
	if c.base.class == uniform && l.index.class != uniform {
		base := *(*uint64)(w.p[c.base.p])
		if w.find(s, base) && (base-s.base)%uint64(group) == 0 && len(s.mem) >= group {
			lo += c.gather(pointerTo(whole[lo*group:]), nil, 0, at(w.p[l.index.p], lo*8), s.mem, int64(base-s.base), int64(c.scale),
				tail(m.b, lo, m.hi), m.hi-lo)
		}
	}
	for i := lo; i < m.hi; i++ {
		if m.b != nil && m.b[i] == 0 {
			continue
		}
		idx, base := w.p[l.index.p], w.p[c.base.p]
		if l.index.class != uniform {
			idx = at(idx, i*8)
		}
		if c.base.class != uniform {
			base = at(base, i*8)
		}
		p := w.place(c, s, i, *(*uint64)(base)+uint64(*(*int64)(idx))*uint64(c.scale))
		if p == nil {
			return
		}
		copy(whole[i*group:(i+1)*group], lanes[byte](p, group))
	}
}

// apart describes a load whose index is a sum of a part that depends on the inner axis and one that depends on the outer axis, and whose
// inside is a conjunction of two such parts. In this common case nothing has to be computed over both axes. Absent parts have class unused.
type apart struct {
	indexIn, indexOut   ref
	insideIn, insideOut ref
	// narrow: the sum is an Int32 and must not wrap.
	narrow bool
}

// takeApart returns the parts of the values that the region yields, or nil if they do not have this form.
func (e *emitter) takeApart(yield []kir.Value) *apart {
	p := &apart{}
	if e.a.values[yield[0]].class != uniform || e.a.values[yield[0]].dep != 0 {
		return nil
	}
	index := yield[1]
	if d := e.a.values[index].def; e.a.values[index].dep == depBoth && d.Op == kir.OpCvt && e.a.values[d.Args[0]].t == dtype.Int32 {
		index, p.narrow = d.Args[0], true
	}
	var ok, both bool
	p.indexIn, p.indexOut, ok = e.parts(index, kir.OpAdd)
	p.insideIn, p.insideOut, both = e.parts(yield[2], kir.OpAnd)
	if !ok || !both {
		return nil
	}
	return p
}

// parts returns the parts of v that op combines.
func (e *emitter) parts(v kir.Value, op kir.Op) (in, out ref, ok bool) {
	x := &e.a.values[v]
	args := []kir.Value{v}
	if x.dep == depBoth {
		if x.def == nil || x.def.Op != op {
			return in, out, false
		}
		args = x.def.Args
	}
	for _, a := range args {
		d := e.a.values[a].dep
		e.load.phase = d // as instructions of its own axis see it
		switch r := e.ref(a); {
		case d == depBoth:
			return in, out, false
		case d == depOuter:
			out = r
		default:
			in = r
		}
	}
	return in, out, true
}

// strip reads a part on the outer axis element by element.
type strip struct {
	base, step int64 // if p is nil
	p          unsafe.Pointer
	size       int
	t          dtype.DType
}

func (s *strip) at(o int) int64 {
	if s.p == nil {
		return s.base + s.step*int64(o)
	}
	return readInt(at(s.p, o*s.size), s.t)
}

func (w *worker) stripOf(r *ref) strip {
	switch {
	case r.class == unused:
		return strip{}
	case r.class == affine && w.aff[r.k].ok:
		a := &w.aff[r.k]
		return strip{base: a.base, step: a.x}
	}
	return strip{p: w.p[r.p], size: int(r.size), t: r.t}
}

// outside fills d with 1 for the rows that are not loaded; it returns nil if all are loaded.
func (l *tileLoad) outside(w *worker, d []uint8) []uint8 {
	r := &l.apart.insideOut
	if r.class == unused {
		return nil
	}
	d = d[:l.outer]
	if r.class == span && w.spans[r.k].ok {
		s := &w.spans[r.k]
		if s.from == 0 && s.to >= l.outer {
			return nil
		}
		for o := range d {
			d[o] = bit(o < s.from || o >= s.to)
		}
		return d
	}
	notBytes(d, lanes[uint8](w.p[r.p], l.outer))
	return d
}

// dense loads the rows of the common case: groups adjacent along a row, rows anywhere, and the same range inside for all rows that are
// inside. It returns how many rows it loaded. It stops at an invalid address, and loads none if this is not the common case.
func (l *tileLoad) dense(w *worker, to unsafe.Pointer) int {
	a, c := l.apart, &l.acc
	var x formula
	inside := lanespan{to: l.inner}
	if a.indexIn.class != unused && !w.formulaOf(&a.indexIn, &x) || x.x != int64(l.width) && l.inner > 1 {
		return 0
	}
	if a.insideIn.class != unused {
		var ok bool
		if inside, ok = w.spanOf(&a.insideIn); !ok {
			return 0
		}
	}
	group := int(c.size)
	lo, hi, n := inside.from*group, min(inside.to, l.inner)*group, l.inner*group
	all := lanes[byte](to, l.outer*n)
	if lo >= hi {
		clear(all)
		return l.outer
	}
	out := l.outside(w, w.masks[l.tb])
	shift := w.stripOf(&a.indexOut)
	start := *(*uint64)(w.p[c.base.p]) + uint64(x.base)*uint64(c.scale) + uint64(lo)
	last := x.base + x.x*int64(l.inner-1)
	s := &w.sites[c.site]
	for o := range l.outer {
		row := all[o*n:][:n]
		if out != nil && out[o] != 0 {
			clear(row)
			continue
		}
		sh := shift.at(o)
		if a.narrow && (x.base+sh < math.MinInt32 || last+sh > math.MaxInt32) {
			return o
		}
		from := start + uint64(sh)*uint64(c.scale)
		off := from - s.base
		if off >= uint64(len(s.mem)) {
			if !w.find(s, from) {
				return o
			}
			off = from - s.base
		}
		if uint64(hi-lo) > uint64(len(s.mem))-off || from%uint64(group) != 0 {
			return o
		}
		if hi-lo == n {
			copy(row, s.mem[off:])
			continue
		}
		clear(row[:lo])
		copy(row[lo:hi], s.mem[off:])
		clear(row[hi:])
	}
	return l.outer
}
