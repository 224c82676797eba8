package vexec

import (
	"maps"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// tileStore describes the storage of a tile: by rows or, with byCols, by columns. Halves and Int8 are kept widened, because tiles are
// mostly operands of products.
type tileStore struct {
	name       string
	t, kept    dtype.DType
	rows, cols int
	byCols     bool
	p          int32
	// parts is the number of parts of a sum, which lie behind one another, and whole the memory for their sum, or that of the only part.
	parts int
	whole int32
}

func keptType(t dtype.DType) dtype.DType {
	switch t {
	case dtype.Float16, dtype.BFloat16:
		return dtype.Float32
	case dtype.Int8:
		return dtype.Int32
	}
	return t
}

// tileOp is any operation on tiles except a load.
type tileOp struct {
	t *tileStore
	// a and b are a product's operands; a is also the source of rows and copies.
	a, b *tileStore
	dot  dotFunc
	// width is the number of adjacent columns visited at a time, and code what a visit runs. row, col and vals are its parameters.
	width    int
	code     []inst
	row, col ref
	vals     []ref
	narrow   kern // from the kept type, if that differs
	// others are the other tiles that a map reads, and result the value it yields, which is repeated if it is a scalar.
	others []*tileStore
	result ref
	// transposed: the right operand of a product is stored as its transpose; buffer holds the operand.
	transposed bool
	buffer     int32
	// max: rows are combined by the maximum. round and widen convert to halves and back.
	max          bool
	round, widen kern
}

// placeTiles gives every tile its memory and layout: by columns if all its loads are along rows and it is only a left operand.
func (e *emitter) placeTiles() {
	if len(e.p.Tiles) == 0 {
		return
	}
	e.least = maxLanes
	e.tiles = make([]tileStore, len(e.p.Tiles))
	loads, other := make([]int, len(e.tiles)), make([]bool, len(e.tiles))
	var visit func(b *kir.Block)
	visit = func(b *kir.Block) {
		for _, in := range b.Instrs {
			switch in.Op {
			case kir.OpTileLoad:
				if in.Sub == kir.AlongRows {
					loads[in.Sym]++
				} else {
					other[in.Sym] = true
				}
			case kir.OpTileDot:
				other[in.Sym], other[in.Imm&0xffffffff] = true, true
			case kir.OpTileEach, kir.OpTileMap, kir.OpTileRows, kir.OpTileCopy:
				other[in.Sym] = true
			}
			for _, c := range in.Blocks {
				visit(c)
			}
		}
	}
	visit(e.p.Body)
	for i, t := range e.p.Tiles {
		kept := keptType(t.Type)
		size, parts := t.Rows*t.Cols*kept.Size(), t.InParts()
		e.pointers = append(e.pointers, pointer{scalar: -1, size: int32(kept.Size()), bytes: parts*size + 8*laneSlack})
		at := int32(len(e.pointers) - 1)
		e.tiles[i] = tileStore{name: t.Name, t: t.Type, kept: kept, rows: t.Rows, cols: t.Cols, byCols: loads[i] > 0 && !other[i],
			p: at, parts: parts, whole: at}
		if parts > 1 {
			e.tiles[i].whole = e.tileBuffer(&e.tiles[i], kept.Size())
		}
		e.least = max(e.least, t.Rows, t.Cols)
	}
}

// tileOp emits a tile operation.
func (e *emitter) tileOp(in *kir.Instr) {
	o := &tileOp{t: &e.tiles[in.Sym]}
	switch in.Op {
	case kir.OpTileZero:
		e.add(inst{exec: execTileZero, tile: o})
	case kir.OpTileDot:
		o.a, o.b = &e.tiles[in.Imm>>32], &e.tiles[in.Imm&0xffffffff]
		o.dot = dots[o.a.kept]
		if o.transposed = in.Sub == kir.DotTransposed; o.transposed {
			o.buffer = e.tileBuffer(o.b, o.b.kept.Size())
		}
		e.add(inst{exec: execTileDot, tile: o})
	case kir.OpTileLoad:
		e.tileLoad(in)
	case kir.OpTileMap:
		e.tileMap(in, o)
	case kir.OpTileRows:
		o.a, o.max = &e.tiles[in.Imm], in.Sub == kir.RowsMax
		e.add(inst{exec: execTileRows, tile: o})
	case kir.OpTileCopy:
		o.a = &e.tiles[in.Imm]
		o.buffer = e.tileBuffer(o.a, o.t.t.Size())
		o.round, o.widen = plainCvts[o.a.kept][o.t.t], laneCvts[o.t.t][o.t.kept]
		e.add(inst{exec: execTileCopy, tile: o})
	case kir.OpTileEach:
		e.tileEach(in, o)
	}
}

func execTileZero(w *worker, in *inst) {
	t := in.tile.t
	clear(lanes[byte](w.p[t.p], t.parts*t.rows*t.cols*t.kept.Size()))
}

// execTileDot adds the product of two tiles to a third.
func execTileDot(w *worker, in *inst) {
	o := in.tile
	rows, cols := o.a.cols, 1
	if o.a.byCols {
		rows, cols = 1, o.a.rows
	}
	b := w.p[o.b.p]
	if o.transposed {
		b = w.p[o.buffer]
		turns[4](b, w.p[o.b.p], o.b.rows, o.b.cols, o.b.rows, o.b.cols)
	}
	a, sum := w.p[o.a.p], w.p[o.t.p]
	size, share := o.a.kept.Size(), o.a.cols/o.t.parts
	for p := range o.t.parts {
		o.dot(at(sum, p*o.t.rows*o.t.cols*o.t.kept.Size()), at(a, p*share*cols*size), at(b, p*share*o.t.cols*size), o.t.rows, o.t.cols,
			share, rows, cols)
	}
}

// addParts adds up the parts of a sum.
func (t *tileStore) addParts(w *worker) {
	switch t.kept {
	case dtype.Float32:
		addParts[float32](w.p[t.whole], w.p[t.p], t.rows*t.cols, t.parts)
	case dtype.Float64:
		addParts[float64](w.p[t.whole], w.p[t.p], t.rows*t.cols, t.parts)
	default:
		addParts[int32](w.p[t.whole], w.p[t.p], t.rows*t.cols, t.parts)
	}
}

func addParts[T float32 | float64 | int32](to, from unsafe.Pointer, n, parts int) {
	sum, all := lanes[T](to, n), lanes[T](from, parts*n)
	copy(sum, all)
	for p := 1; p < parts; p++ {
		for i, v := range all[p*n:][:n] {
			sum[i] += v
		}
	}
}

// tileEach emits a visit of all elements.
func (e *emitter) tileEach(in *kir.Instr, o *tileOp) {
	b := in.Blocks[0]
	o.width = in.Width
	if o.t.kept != o.t.t {
		o.narrow = plainCvts[o.t.kept][o.t.t]
	}
	o.row, o.col = e.define(b.Params[0]), e.define(b.Params[1])
	for _, v := range b.Params[2:] {
		o.vals = append(o.vals, e.define(v))
	}
	e.within(&o.code, b)
	e.expire(e.l.end[in])
	e.add(inst{exec: execTileEach, tile: o})
}

// place is the part of the worker's state that a tile region changes.
type place struct {
	m     mask
	lanes int
	ext   [4]int64
}

// enter makes nx by ny lanes active, as a tile's region sees them.
func (w *worker) enter(nx, ny int) {
	w.region++
	w.lanes = nx * ny
	w.ext = [4]int64{int64(nx), int64(ny), 1, 1}
	w.m = mask{hi: w.lanes}
}

// leaveTile restores the state of the threads, unless a fault stopped the worker.
func (w *worker) leaveTile(p place) {
	w.lanes, w.ext, w.tile = p.lanes, p.ext, ""
	if w.fault == nil {
		w.m = p.m
	}
}

// execTileEach runs the region for as many rows at a time as registers have room for.
func execTileEach(w *worker, in *inst) {
	o := in.tile
	t := o.t
	saved := place{w.m, w.lanes, w.ext}
	w.tile = t.name
	if t.parts > 1 {
		t.addParts(w)
	}
	groups := t.cols / o.width
	step := max(1, w.room/groups)
	size := t.kept.Size()
	for r := 0; r < t.rows && w.fault == nil; r += step {
		n := min(step, t.rows-r)
		w.enter(groups, n)
		w.keep(o.row.k, &formula{base: int64(r), y: 1})
		w.keep(o.col.k, &formula{x: int64(o.width)})
		from := lanes[byte](w.p[t.whole], t.rows*t.cols*size)[r*t.cols*size:]
		for j := range o.vals {
			o.split(w, from, j, groups*n)
		}
		w.run(o.code)
	}
	w.leaveTile(saved)
}

// split fills the register of the j-th column of every group.
func (o *tileOp) split(w *worker, from []byte, j, n int) {
	size := o.t.kept.Size()
	v := &o.vals[j]
	src := lanes[byte](pointerTo(from), len(from))[j*size:]
	switch {
	case o.width > 1 && len(o.vals) == 1: // all in one wide value
		n *= o.width
		if o.narrow == nil {
			copy(lanes[byte](w.p[v.p], n*size), src)
		} else {
			o.narrow(w.p[v.p], pointerTo(src), nil, nil, n)
		}
	case o.narrow == nil:
		stridedMoves[size](w.p[v.p], pointerTo(src), size, o.width*size, n)
	default:
		for i := range n {
			o.narrow(at(w.p[v.p], i*int(v.size)), pointerTo(src[i*o.width*size:]), nil, nil, 1)
		}
	}
}

// tileBuffer returns a buffer for the elements of t, with size bytes each.
func (e *emitter) tileBuffer(t *tileStore, size int) int32 {
	e.pointers = append(e.pointers, pointer{scalar: -1, size: 8, bytes: t.rows*t.cols*size + 8*laneSlack})
	return int32(len(e.pointers) - 1)
}

// tileMap emits a map. Accumulators are never kept widened.
func (e *emitter) tileMap(in *kir.Instr, o *tileOp) {
	b := in.Blocks[0]
	o.row, o.col = e.define(b.Params[0]), e.define(b.Params[1])
	for _, v := range b.Params[2:] {
		o.vals = append(o.vals, e.define(v))
	}
	for _, i := range in.MapOthers() {
		o.others = append(o.others, &e.tiles[i])
	}
	yield := b.Instrs[len(b.Instrs)-1].Args[0]
	code, spelled := e.code, e.spelled
	e.code, e.spelled = &o.code, maps.Clone(spelled)
	e.block(b)
	e.spell(yield)
	o.result = e.ref(yield)
	e.code, e.spelled = code, spelled
	e.expire(e.l.end[in])
	e.add(inst{exec: execTileMap, tile: o})
}

// execTileMap runs the region for as many rows at a time as registers have room for.
func execTileMap(w *worker, in *inst) {
	o := in.tile
	t := o.t
	saved := place{w.m, w.lanes, w.ext}
	w.tile = t.name
	step := max(1, w.room/t.cols)
	size := t.kept.Size()
	for r := 0; r < t.rows && w.fault == nil; r += step {
		n := min(step, t.rows-r)
		w.enter(t.cols, n)
		w.keep(o.row.k, &formula{base: int64(r), y: 1})
		w.keep(o.col.k, &formula{x: 1})
		to := lanes[byte](w.p[t.p], t.rows*t.cols*size)[r*t.cols*size : (r+n)*t.cols*size]
		copy(lanes[byte](w.p[o.vals[0].p], len(to)), to)
		for j, s := range o.others {
			o.other(w, s, w.p[o.vals[1+j].p], r, n)
		}
		w.run(o.code)
		if w.fault != nil {
			break
		}
		from := lanes[byte](w.p[o.result.p], len(to))
		if o.result.class != uniform {
			copy(to, from)
			continue
		}
		for i := 0; i < len(to); i += size {
			copy(to[i:i+size], from)
		}
	}
	w.leaveTile(saved)
}

// other fills a register with n rows of s from row r on; a single column or row is repeated.
func (o *tileOp) other(w *worker, s *tileStore, to unsafe.Pointer, r, n int) {
	size := s.kept.Size()
	cols := o.t.cols
	if s.rows == 1 && o.t.rows > 1 { // a row
		row := lanes[byte](w.p[s.p], cols*size)
		for i := range n {
			copy(lanes[byte](to, n*cols*size)[i*cols*size:], row)
		}
		return
	}
	from := lanes[byte](w.p[s.p], s.rows*s.cols*size)[r*s.cols*size : (r+n)*s.cols*size]
	d := lanes[byte](to, n*cols*size)
	if s.cols == cols {
		copy(d, from)
		return
	}
	for i := range n {
		x := from[i*size : (i+1)*size]
		for j := i * cols * size; j < (i+1)*cols*size; j += size {
			copy(d[j:], x)
		}
	}
}

// execTileRows combines the rows of a into a column.
func execTileRows(w *worker, in *inst) {
	o := in.tile
	to, from := lanes[float32](w.p[o.t.p], o.t.rows), lanes[float32](w.p[o.a.p], o.a.rows*o.a.cols)
	for r := range to {
		v := to[r]
		for _, x := range from[r*o.a.cols:][:o.a.cols] {
			if o.max {
				v = max(v, x)
			} else {
				v += x
			}
		}
		to[r] = v
	}
}

// execTileCopy rounds an accumulator to halves, which are kept widened.
func execTileCopy(w *worker, in *inst) {
	o := in.tile
	n := o.t.rows * o.t.cols
	o.round(w.p[o.buffer], w.p[o.a.p], nil, nil, n)
	o.widen(w.p[o.t.p], w.p[o.buffer], nil, nil, n)
}
