package vexec

import (
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// tileLoad fills a tile. Its region is taken apart by the axes that values depend on: what depends on the inner one runs once over its
// lanes, what depends on the outer one once over its places, and only what mixes them runs again for every place of the outer axis.
type tileLoad struct {
	t *tileStore
	// inner and outer count groups along the one axis and places along the other; width elements are in a group.
	inner, outer, width int
	// phase is the axes of the instruction being emitted.
	phase                   uint8
	pre, onIn, onOut, mixed []inst
	in, out                 ref
	// crossing values of the outer axis are uniform on the inner.
	crossing []crossing
	// index and inside have a part on the inner axis (or both) and one on the outer.
	index, indexOut   ref
	inside, insideOut ref
	// acc has the base, and what faults say.
	acc access
	// transposed: the rows that are loaded are the tile's columns; rows are put together in a buffer first.
	transposed bool
	buffer     int32
	// raw is a buffer for elements that are then widened.
	raw   int32
	widen kern
	// tb and eb are mask buffers.
	tb, eb int
}

type crossing struct {
	v    kir.Value
	from ref
	to   int32
}

// cross returns the scalar of a value of the outer axis.
func (l *tileLoad) cross(e *emitter, v kir.Value) int32 {
	for _, c := range l.crossing {
		if c.v == v {
			return c.to
		}
	}
	x := &e.a.values[v]
	to := e.scalarPointer()
	l.crossing = append(l.crossing, crossing{v, ref{class: x.class, t: x.t, size: int32(x.size), p: x.p, k: x.k}, to})
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
	bytes := func(n int) int32 {
		e.pointers = append(e.pointers, pointer{scalar: -1, size: 8, bytes: n + 8*laneSlack})
		return int32(len(e.pointers) - 1)
	}
	if l.transposed {
		l.buffer = bytes(l.t.rows * l.t.cols * l.t.kept.Size())
	}
	if l.t.kept != l.t.t {
		l.raw, l.widen = bytes(l.inner*l.width*l.t.t.Size()), laneCvts[l.t.t][l.t.kept]
	}
	e.load = l
	inner, outer := loadAxes(in)
	l.in, l.out = e.define(inner), e.define(outer)
	yield := b.Instrs[len(b.Instrs)-1].Args
	apart := map[*kir.Instr]bool{}
	for _, v := range yield[1:] {
		if d := e.a.values[v].def; e.apart(b, d) {
			apart[d] = true
		}
	}
	e.phases(b, apart)
	l.phase = depBoth
	l.acc = access{t: in.Type, scale: int32(in.Type.Size()), size: int32(in.Type.Size()), width: l.width, site: e.nSites, loc: in.Loc, base: e.ref(yield[0]), strided: stridedMoves[in.Type.Size()],
		gather: gathers[in.Type.Size()][1]}
	e.nSites++
	l.index, l.indexOut = e.parts(yield[1], apart)
	l.inside, l.insideOut = e.parts(yield[2], apart)
	e.load = nil
	for _, p := range e.held {
		e.release(p)
	}
	e.held = e.held[:0]
	e.expire(e.l.end[in])
	e.add(inst{exec: execTileLoad, load: l})
}

// apart reports whether d, an instruction of region b, only joins a value of the outer axis to one of the inner.
func (e *emitter) apart(b *kir.Block, d *kir.Instr) bool {
	if d == nil || d.Op != kir.OpAdd && (d.Op != kir.OpAnd || d.Type != dtype.Bool) || e.a.values[d.Res[0]].uses != 1 {
		return false
	}
	for _, in := range b.Instrs {
		if in == d {
			x, y := e.a.values[d.Args[0]].dep, e.a.values[d.Args[1]].dep
			return x|y == depBoth && x != depBoth && y != depBoth
		}
	}
	return false
}

// parts returns a yielded value's part on the inner axis, and its part on the outer (class unused: none).
func (e *emitter) parts(v kir.Value, apart map[*kir.Instr]bool) (in, out ref) {
	x := &e.a.values[v]
	if !apart[x.def] {
		return e.ref(v), ref{}
	}
	i, o := x.def.Args[0], x.def.Args[1]
	if e.a.values[i].dep == depOuter {
		i, o = o, i
	}
	return e.ref(i), e.ref(o)
}

// phases emits the region's instructions, each where its axes say, but for those that the load does itself.
func (e *emitter) phases(b *kir.Block, apart map[*kir.Instr]bool) {
	l := e.load
	outer := e.code
	spelled := e.spelled
	maps := map[uint8]map[kir.Value]bool{}
	for _, in := range b.Instrs {
		if e.err != nil || apart[in] || !e.a.live(in) {
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
	n := l.inner * l.width
	size := l.t.kept.Size()
	to := w.p[l.t.p]
	if l.transposed {
		to = w.p[l.buffer]
	}
	first := 0
	if w.fault == nil && len(l.mixed) == 0 && l.widen == nil {
		first = l.dense(w, to)
	}
	for o := first; o < l.outer && w.fault == nil; o++ {
		for i := range l.crossing {
			w.crossOver(&l.crossing[i], o)
		}
		w.m = mask{hi: l.inner}
		w.run(l.mixed)
		row := at(to, o*n*size)
		if l.widen != nil {
			l.row(w, w.p[l.raw])
			l.widen(row, w.p[l.raw], nil, nil, n)
		} else {
			l.row(w, row)
		}
	}
	if l.transposed && w.fault == nil {
		if size == 8 {
			transpose[uint64](w.p[l.t.p], to, l.outer, n)
		} else {
			transpose[uint32](w.p[l.t.p], to, l.outer, n)
		}
	}
	w.leaveTile(saved)
}

// crossOver sets a scalar to the value at a place of the outer axis.
func (w *worker) crossOver(c *crossing, o int) {
	d := w.p[c.to]
	switch c.from.class {
	case affine:
		if a := &w.aff[c.from.k]; a.ok {
			*(*int64)(d) = a.base + a.x*int64(o)
			return
		}
	case span:
		if s := &w.spans[c.from.k]; s.ok {
			*(*uint8)(d) = bit(o >= s.from && o < s.to)
			return
		}
	case uniform:
		o = 0
	}
	from := at(w.p[c.from.p], o*int(c.from.size))
	switch c.from.size {
	case 1:
		*(*uint8)(d) = *(*uint8)(from)
	case 2:
		*(*uint16)(d) = *(*uint16)(from)
	case 4:
		*(*uint32)(d) = *(*uint32)(from)
	default:
		*(*uint64)(d) = *(*uint64)(from)
	}
}

// strip reads a value of the outer axis place by place.
type strip struct {
	base, step int64 // if lanes is nil
	lanes      []int64
}

func (s *strip) at(o int) int64 {
	if s.lanes != nil {
		return s.lanes[o]
	}
	return s.base + s.step*int64(o)
}

// outward returns the strip of a part on the outer axis, an Int64 whose scalar is r.
func (l *tileLoad) outward(w *worker, r *ref) strip {
	if r.class == unused {
		return strip{}
	}
	for i := range l.crossing {
		c := &l.crossing[i]
		if c.to != r.p {
			continue
		}
		if c.from.class == affine && w.aff[c.from.k].ok {
			a := &w.aff[c.from.k]
			return strip{base: a.base, step: a.x}
		}
		if c.from.class == uniform {
			return strip{base: *(*int64)(w.p[c.from.p])}
		}
		return strip{lanes: lanes[int64](w.p[c.from.p], l.outer)}
	}
	return strip{base: *(*int64)(w.p[r.p])}
}

// outside fills d with 1 for the places of the outer axis whose rows are not loaded, if any; it returns nil if all are.
func (l *tileLoad) outside(w *worker, d []uint8) []uint8 {
	if l.insideOut.class == unused {
		return nil
	}
	for i := range l.crossing {
		c := &l.crossing[i]
		if c.to != l.insideOut.p {
			continue
		}
		if s, ok := w.spanOf(&c.from); ok && c.from.class == span && s.from == 0 && s.to >= l.outer {
			return nil
		}
		for o := range l.outer {
			w.crossOver(c, o)
			d[o] = *(*uint8)(w.p[c.to]) ^ 1
		}
		return d[:l.outer]
	}
	if *(*uint8)(w.p[l.insideOut.p]) != 0 {
		return nil
	}
	for o := range d[:l.outer] {
		d[o] = 1
	}
	return d[:l.outer]
}

// dense loads the rows of the common case: elements adjacent along a row, rows anywhere, the same range inside in all of them that
// are. It returns how many rows it did: it leaves off where an address is bad, and does none if the case is another.
func (l *tileLoad) dense(w *worker, to unsafe.Pointer) int {
	var x, base formula
	inside, ok := w.spanOf(&l.inside)
	if !ok || !w.formulaOf(&l.index, &x) || !w.formulaOf(&l.acc.base, &base) || base.x != 0 || x.x != int64(l.width) && l.inner > 1 {
		return 0
	}
	size := l.t.t.Size()
	group := l.width * size
	lo, hi := inside.from*group, min(inside.to, l.inner)*group
	n := l.inner * group
	all := lanes[byte](to, l.outer*n)
	if lo >= hi {
		clear(all)
		return l.outer
	}
	out := l.outside(w, w.masks[l.tb])
	shift := l.outward(w, &l.indexOut)
	start := uint64(base.base) + uint64(x.base)*uint64(size) + uint64(lo)
	s := &w.sites[l.acc.site]
	for o := range l.outer {
		row := all[o*n:][:n]
		if out != nil && out[o] != 0 {
			clear(row)
			continue
		}
		from := start + uint64(shift.at(o))*uint64(size)
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

// row loads one row of groups to d: zeros where not inside.
func (l *tileLoad) row(w *worker, d unsafe.Pointer) {
	size := l.t.t.Size()
	group := l.width * size
	whole := lanes[byte](d, l.inner*group)
	m := mask{hi: l.inner}
	if l.insideOut.class != unused && *(*uint8)(w.p[l.insideOut.p]) == 0 {
		clear(whole)
		return
	}
	if s, ok := w.spanOf(&l.inside); ok {
		m = m.cut(s.from, s.to)
	} else {
		m, _ = m.split(lanes[uint8](w.p[l.inside.p], l.inner), w.masks[l.tb], w.masks[l.eb])
	}
	if m.hi == 0 {
		clear(whole)
		return
	}
	shift := int64(0)
	if l.indexOut.class != unused {
		shift = *(*int64)(w.p[l.indexOut.p])
	}
	if l.contiguous(w, whole, m, shift) {
		return
	}
	clear(whole)
	l.scattered(w, d, m, shift)
}

// contiguous loads a row whose active elements are adjacent in memory; false if they are not, or not all in one allocation.
func (l *tileLoad) contiguous(w *worker, whole []byte, m mask, shift int64) bool {
	var x, base formula
	if m.b != nil || !w.formulaOf(&l.index, &x) || x.x != int64(l.width) && l.inner > 1 || !w.formulaOf(&l.acc.base, &base) || base.x != 0 {
		return false
	}
	size := l.t.t.Size()
	group := l.width * size
	from := uint64(base.base) + uint64(x.base+shift+x.x*int64(m.lo))*uint64(size)
	n := (m.hi - m.lo) * group
	s := &w.sites[l.acc.site]
	if from%uint64(group) != 0 || !w.find(s, from) {
		return false
	}
	off := from - s.base
	if uint64(n) > uint64(len(s.mem))-off {
		return false
	}
	clear(whole[:m.lo*group])
	copy(whole[m.lo*group:m.hi*group], s.mem[off:])
	clear(whole[m.hi*group:])
	return true
}

// scattered loads the active groups of a row one by one.
func (l *tileLoad) scattered(w *worker, d unsafe.Pointer, m mask, shift int64) {
	c := &l.acc
	s := &w.sites[c.site]
	w.m = m
	w.spell(&l.index)
	w.spell(&c.base)
	group := l.width * int(c.size)
	lo := m.lo
	if l.width == 1 && c.base.class == uniform && l.index.class != uniform {
		base := *(*uint64)(w.p[c.base.p])
		if w.find(s, base) && (base-s.base)%uint64(c.size) == 0 && len(s.mem) >= int(c.size) {
			off := int64(base-s.base) + shift*int64(c.size)
			lo += c.gather(at(d, lo*group), nil, 0, at(w.p[l.index.p], lo*8), s.mem, off, int64(c.scale), tail(m.b, lo, m.hi), m.hi-lo)
		}
	}
	for i := lo; i < m.hi; i++ { // what is left, up to the first fault
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
		p := w.place(c, s, i, *(*uint64)(base)+uint64(*(*int64)(idx)+shift)*uint64(c.size))
		if p == nil {
			return
		}
		copy(lanes[byte](at(d, i*group), group), lanes[byte](p, group))
	}
}

// transpose sets d, cols rows of rows elements, to the transpose of a, rows rows of cols elements.
func transpose[T raw](d, a unsafe.Pointer, rows, cols int) {
	const block = 8
	ds, as := lanes[T](d, rows*cols), lanes[T](a, rows*cols)
	for i0 := 0; i0 < rows; i0 += block {
		for j := range cols {
			out := ds[j*rows:][:rows]
			for i := i0; i < min(i0+block, rows); i++ {
				out[i] = as[i*cols+j]
			}
		}
	}
}
