package vexec

import (
	"encoding/binary"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// access describes a memory instruction.
type access struct {
	space  kir.Space
	t      dtype.DType
	scale  int32 // size in bytes of an element, which the index counts
	size   int32 // bytes per lane of a value: one element, or all of a wide value
	width  int   // adjacent values
	imm    int64 // elements added to the index
	base   ref   // global only
	idx    ref
	vals   []ref // loads: results; stores: values; atomics: operands
	dst    ref   // atomics: the old value; class unused if it is not used
	site   int   // index of the cached allocation
	sub    kir.Sub
	loc    int
	offset int // shared arrays and parameters: offset in bytes
	bytes  int // size in bytes of an array; -1: to the end of shared memory
	table  []byte
	store  bool
	gather gatherFunc
	// scatter is also used for masked moves between registers.
	scatter scatterFunc
	strided stridedFunc
	atomic  atomicFunc
}

// site caches the allocation that an instruction last accessed: mem is its bytes, which begin at address base.
type site struct {
	mem  []byte
	base uint64
}

// find makes s the allocation that contains addr.
func (w *worker) find(s *site, addr uint64) bool {
	if addr-s.base < uint64(len(s.mem)) {
		return true
	}
	mem, base, ok := w.env.Mem.Resolve(addr)
	if !ok || addr-base >= uint64(len(mem)) {
		return false
	}
	s.mem, s.base = mem, base
	return true
}

// array returns the bytes of a shared array, a table or a parameter.
func (w *worker) array(c *access) []byte {
	switch c.space {
	case kir.Shared:
		if c.bytes < 0 {
			return w.shared[c.offset:]
		}
		return w.shared[c.offset : c.offset+c.bytes]
	case kir.Const:
		return c.table
	}
	return w.args[c.offset : c.offset+c.bytes]
}

var spaceNames = [...]string{kir.Global: "global", kir.Shared: "shared", kir.Local: "local", kir.Const: "table",
	kir.ParamSpace: "parameter"}

// bad reports an out-of-bounds or misaligned access by a lane.
func (w *worker) bad(c *access, lane int, addr uint64) {
	n := c.width * int(c.size)
	verb := "read"
	if c.store {
		verb = "write"
	}
	if addr%uint64(n) != 0 {
		w.fail(codeMisalignedAddress, c.loc, lane, "misaligned %d-byte %s %s at %#x", n, spaceNames[c.space], verb, addr)
		return
	}
	w.fail(codeIllegalAddress, c.loc, lane, "invalid %d-byte %s %s at %#x", n, spaceNames[c.space], verb, addr)
}

// place returns a pointer to a lane's elements at addr (an offset, in arrays), or stops the worker.
func (w *worker) place(c *access, s *site, lane int, addr uint64) unsafe.Pointer {
	n := uint64(c.width) * uint64(c.size)
	if addr%n == 0 {
		if off := addr - s.base; off < uint64(len(s.mem)) && n <= uint64(len(s.mem))-off {
			return unsafe.Pointer(&s.mem[off])
		}
		if c.space == kir.Global && w.find(s, addr) {
			if off := addr - s.base; n <= uint64(len(s.mem))-off {
				return unsafe.Pointer(&s.mem[off])
			}
		}
	}
	w.bad(c, lane, addr)
	return nil
}

// execParam reads a scalar parameter or a buffer's address.
func execParam(w *worker, in *inst) {
	b := w.args[in.acc.offset : in.acc.offset+int(in.acc.size)]
	var v uint64
	switch len(b) {
	case 1:
		v = uint64(b[0])
		if in.acc.t == dtype.Bool && v != 0 {
			v = 1
		}
	case 2:
		v = uint64(binary.LittleEndian.Uint16(b))
	case 4:
		v = uint64(binary.LittleEndian.Uint32(b))
	default:
		v = binary.LittleEndian.Uint64(b)
	}
	*(*uint64)(w.p[in.d]) = v
}

// start prepares a site: for arrays it is the array, with base address 0.
func (w *worker) start(c *access) *site {
	s := &w.sites[c.site]
	if c.space != kir.Global {
		s.mem, s.base = w.array(c), 0
	}
	return s
}

// execLoadUniform loads from one address for all lanes.
func execLoadUniform(w *worker, in *inst) {
	c := in.acc
	s := w.start(c)
	addr := uint64(readInt(w.p[c.idx.p], c.idx.t)+c.imm) * uint64(c.scale)
	if c.space == kir.Global {
		addr += *(*uint64)(w.p[c.base.p])
	}
	p := w.place(c, s, w.m.lo, addr)
	if p == nil {
		return
	}
	for i := range c.vals {
		d, from := w.p[c.vals[i].p], unsafe.Add(p, i*int(c.size))
		switch c.size {
		case 1:
			*(*uint8)(d) = *(*uint8)(from)
			if c.t == dtype.Bool {
				*(*uint8)(d) = bit(*(*uint8)(from) != 0)
			}
		case 2:
			*(*uint16)(d) = *(*uint16)(from)
		case 4:
			*(*uint32)(d) = *(*uint32)(from)
		default:
			*(*uint64)(d) = *(*uint64)(from)
		}
	}
}

// execAccess loads or stores lanes.
func execAccess(w *worker, in *inst) {
	c := in.acc
	s := w.start(c)
	if w.accessAffine(c, s) {
		return
	}
	w.spell(&c.idx)
	if c.idx.class == uniform || c.space == kir.Global && c.base.class != uniform {
		w.spell(&c.base)
		w.accessScattered(c, s)
		return
	}
	w.accessIndexed(c, s)
}

// stretch is the memory that the active lanes of an access touch. If linear is set, lane i of them is at off + i*stride.
type stretch struct {
	off    uint64
	stride int64
	linear bool
	f      formula // the lanes' addresses
}

// locate finds the location of the active lanes' elements, if their addresses are a formula, aligned, and all in one allocation, which
// becomes s.
func (w *worker) locate(c *access, s *site, at *stretch) bool {
	a := &at.f
	if !w.formulaOf(&c.idx, a) {
		return false
	}
	a.base += c.imm
	a.scale(int64(c.scale))
	if c.space == kir.Global {
		var b formula
		if !w.formulaOf(&c.base, &b) {
			return false
		}
		combine(kir.OpAdd, a, &b, dtype.Uint64)
	}
	n := int64(c.width) * int64(c.size)
	at.stride, at.linear = w.linear(a)
	least, most := a.base, a.base
	if at.linear {
		least += at.stride * int64(w.m.lo)
		most += at.stride * int64(w.m.hi-1)
		if at.stride < 0 {
			least, most = most, least
		}
		if (least|at.stride)&(n-1) != 0 {
			return false
		}
	} else {
		e := &w.ext
		if !(reach(&least, &most, a.x, e[0]) && reach(&least, &most, a.y, e[1]) && reach(&least, &most, a.z, e[2]) &&
			reach(&least, &most, a.b, e[3])) {
			return false
		}
		if a.base&(n-1) != 0 || e[0] > 1 && a.x&(n-1) != 0 || e[1] > 1 && a.y&(n-1) != 0 || e[2] > 1 && a.z&(n-1) != 0 ||
			e[3] > 1 && a.b&(n-1) != 0 {
			return false
		}
	}
	if uint64(most) < uint64(least) || c.space == kir.Global && !w.find(s, uint64(least)) {
		return false
	}
	if off := uint64(most) - s.base; uint64(least) < s.base || off >= uint64(len(s.mem)) || uint64(n) > uint64(len(s.mem))-off {
		return false
	}
	at.off = uint64(a.base+at.stride*int64(w.m.lo)) - s.base
	return true
}

// accessAffine handles addresses that are a formula if all of them are in one allocation; otherwise it returns false.
func (w *worker) accessAffine(c *access, s *site) bool {
	var at stretch
	if !w.locate(c, s, &at) {
		return false
	}
	lo, hi := w.m.lo, w.m.hi
	if at.linear {
		w.run1(c, s, at.off, at.stride, lo, hi)
		return true
	}
	nx := int(w.ext[0])
	for i := lo; i < hi; {
		end := min(hi, i-i%nx+nx)
		w.run1(c, s, uint64(w.at(&at.f, i))-s.base, at.f.x, i, end)
		i = end
	}
	return true
}

// direct returns a pointer to the active lanes' elements if operations can use their memory instead of a register. The lanes must begin at
// lane 0, their elements must be adjacent, and their number must be a multiple of the number that kernels take at a time, so that kernels
// do not go beyond them. wide is the number of elements per lane.
func (w *worker) direct(c *access, wide int) unsafe.Pointer {
	if w.m.lo != 0 || w.m.hi*wide%laneSlack != 0 {
		return nil
	}
	s := &w.sites[c.site]
	var at stretch
	if !w.locate(c, s, &at) || !at.linear || at.stride != int64(c.size) {
		return nil
	}
	return unsafe.Pointer(&s.mem[at.off])
}

// execLoadDirect makes a value be read directly from memory if possible; otherwise it loads it.
func execLoadDirect(w *worker, in *inst) {
	if p := w.direct(in.acc, int(in.wide)); p != nil {
		w.p[in.alt] = p
		return
	}
	w.p[in.alt] = w.p[in.d]
	execAccess(w, in)
}

// execLanesStore computes an operation directly into memory if possible, and sets w.stored for the store that follows.
func execLanesStore(w *worker, in *inst) {
	w.stored = false
	if w.m.b == nil {
		if p := w.direct(in.acc, int(in.wide)); p != nil {
			in.k(p, w.p[in.a], w.p[in.b], w.p[in.c], w.m.hi*int(in.wide))
			w.stored = true
			return
		}
	}
	execLanes(w, in)
}

// execStoreRest is execAccess after execLanesStore.
func execStoreRest(w *worker, in *inst) {
	if !w.stored {
		execAccess(w, in)
	}
}

// run1 moves lanes [lo, hi) between registers and memory at off, off+stride, …, all of it in s.
func (w *worker) run1(c *access, s *site, off uint64, stride int64, lo, hi int) {
	size := int(c.size)
	n := hi - lo
	mem := unsafe.Pointer(&s.mem[off])
	if !c.store {
		for j := range c.vals {
			d := unsafe.Add(w.p[c.vals[j].p], lo*size)
			from := unsafe.Add(mem, j*size)
			if stride == int64(size) {
				copy(lanes[byte](d, n*size), lanes[byte](from, n*size))
			} else {
				c.strided(d, from, size, int(stride), n)
			}
			if c.t == dtype.Bool {
				normalize(lanes[uint8](d, n*size))
			}
		}
		return
	}
	for j := range c.vals {
		v := &c.vals[j]
		to := unsafe.Add(mem, j*size)
		from, step := w.p[v.p], 0
		if v.class != uniform {
			from, step = unsafe.Add(from, lo*size), size
		}
		switch {
		case w.m.b != nil:
			b := w.m.b[lo:hi]
			storeMasked(c.size, to, from, int(stride), step, b)
		case stride == int64(size) && step == size:
			copy(lanes[byte](to, n*size), lanes[byte](from, n*size))
		default:
			c.strided(to, from, int(stride), step, n)
		}
	}
}

func normalize(b []uint8) {
	for i, v := range b {
		b[i] = bit(v != 0)
	}
}

// accessIndexed handles a uniform base with an index per lane.
func (w *worker) accessIndexed(c *access, s *site) {
	lo, hi := w.m.lo, w.m.hi
	base := uint64(0)
	if c.space == kir.Global {
		base = *(*uint64)(w.p[c.base.p])
		w.find(s, base) // if nothing is there, each lane looks for its own
	}
	size := int(c.size)
	if c.width == 1 && (base-s.base)%uint64(size) == 0 && len(s.mem) >= size {
		off := int64(base-s.base) + c.imm*int64(c.scale)
		var b []uint8
		if w.m.b != nil {
			b = w.m.b
		}
		v := &c.vals[0]
		for lo < hi {
			idx := unsafe.Add(w.p[c.idx.p], lo*int(c.idx.size))
			if c.store {
				from, step := w.p[v.p], 0
				if v.class != uniform {
					from, step = unsafe.Add(from, lo*size), size
				}
				lo += c.gather(nil, from, step, idx, s.mem, off, int64(c.scale), tail(b, lo, hi), hi-lo)
			} else {
				lo += c.gather(unsafe.Add(w.p[v.p], lo*size), nil, 0, idx, s.mem, off, int64(c.scale), tail(b, lo, hi), hi-lo)
			}
			if lo < hi { // this lane is in another allocation or invalid
				if !w.one(c, s, lo, base+uint64(readInt(unsafe.Add(w.p[c.idx.p], lo*int(c.idx.size)), c.idx.t)+c.imm)*uint64(c.scale)) {
					return
				}
				lo++
				if c.space == kir.Global && w.find(s, base) {
					off = int64(base-s.base) + c.imm*int64(c.scale)
				} else if lo < hi {
					w.accessEach(c, s, lo, hi)
					return
				}
			}
		}
		if c.t == dtype.Bool && !c.store {
			normalize(lanes[uint8](w.p[v.p], hi*size)[w.m.lo*size:])
		}
		return
	}
	if !c.store && c.space == kir.Global && w.gatherVectors(c, s, base) {
		return
	}
	w.accessEach(c, s, lo, hi)
}

// gatherVectors loads vectors that are not kept as wide values, element by element. It returns false if any vector is invalid; registers
// then hold arbitrary values.
func (w *worker) gatherVectors(c *access, s *site, base uint64) bool {
	lo, hi := w.m.lo, w.m.hi
	size := int64(c.size)
	n := size * int64(c.width)
	if base-s.base >= uint64(len(s.mem)) || (base-s.base)%uint64(size) != 0 {
		return false
	}
	off := int64(base-s.base) + c.imm*size
	idx := unsafe.Add(w.p[c.idx.p], lo*int(c.idx.size))
	b := tail(w.m.b, lo, hi)
	misaligned := int64(0)
	if c.idx.size == 4 {
		misaligned = unevenIndex(lanes[int32](idx, hi-lo), b, off/size, int64(c.width-1))
	} else {
		misaligned = unevenIndex(lanes[int64](idx, hi-lo), b, off/size, int64(c.width-1))
	}
	if misaligned != 0 || s.base%uint64(n) != 0 {
		return false
	}
	for j := range c.vals {
		if c.gather(unsafe.Add(w.p[c.vals[j].p], lo*int(size)), nil, 0, idx, s.mem, off+int64(j)*size, size, b, hi-lo) < hi-lo {
			return false
		}
	}
	return true
}

// unevenIndex returns the bits of mask that are set in any active index plus off.
func unevenIndex[T int32 | int64](idx []T, b []uint8, off, mask int64) int64 {
	bits := int64(0)
	for i, v := range idx {
		if b == nil || b[i] != 0 {
			bits |= int64(v) + off
		}
	}
	return bits & mask
}

func tail(b []uint8, lo, hi int) []uint8 {
	if b == nil {
		return nil
	}
	return b[lo:hi]
}

// accessEach handles lanes one at a time, with a uniform base.
func (w *worker) accessEach(c *access, s *site, lo, hi int) {
	base := uint64(0)
	if c.space == kir.Global {
		base = *(*uint64)(w.p[c.base.p])
	}
	b := w.m.b
	for i := lo; i < hi; i++ {
		if b != nil && b[i] == 0 {
			continue
		}
		if !w.one(c, s, i, base+uint64(readInt(unsafe.Add(w.p[c.idx.p], i*int(c.idx.size)), c.idx.t)+c.imm)*uint64(c.scale)) {
			return
		}
	}
}

// accessScattered handles bases that differ between lanes.
func (w *worker) accessScattered(c *access, s *site) {
	b := w.m.b
	for i, hi := w.m.lo, w.m.hi; i < hi; i++ {
		if b != nil && b[i] == 0 {
			continue
		}
		if !w.one(c, s, i, w.laneAddr(c, i)) {
			return
		}
	}
}

// laneAddr returns a lane's address. index and base must be uniform or in lanes.
func (w *worker) laneAddr(c *access, i int) uint64 {
	var idx int64
	if c.idx.class == uniform {
		idx = readInt(w.p[c.idx.p], c.idx.t)
	} else {
		idx = readInt(unsafe.Add(w.p[c.idx.p], i*int(c.idx.size)), c.idx.t)
	}
	addr := uint64(idx+c.imm) * uint64(c.scale)
	if c.space == kir.Global {
		if c.base.class == uniform {
			addr += *(*uint64)(w.p[c.base.p])
		} else {
			addr += *(*uint64)(unsafe.Add(w.p[c.base.p], i*8))
		}
	}
	return addr
}

// one moves the elements of one lane.
func (w *worker) one(c *access, s *site, lane int, addr uint64) bool {
	p := w.place(c, s, lane, addr)
	if p == nil {
		return false
	}
	size := int(c.size)
	for j := range c.vals {
		v := &c.vals[j]
		r := w.p[v.p]
		if v.class != uniform {
			r = unsafe.Add(r, lane*size)
		}
		m := unsafe.Add(p, j*size)
		if c.store {
			c.strided(m, r, size, size, 1)
		} else {
			c.strided(r, m, size, size, 1)
			if c.t == dtype.Bool {
				normalize(lanes[uint8](r, size))
			}
		}
	}
	return true
}

// execLocal loads or stores an element of every lane's own array. The arrays are stored by element: element e of lane i is at e*room + i.
func execLocal(w *worker, in *inst) {
	c := in.acc
	arr := w.p[in.a]
	size := int(c.size)
	count := c.bytes / size
	room := w.room + laneSlack
	if c.idx.class == uniform {
		e := readInt(w.p[c.idx.p], c.idx.t) + c.imm
		if e < 0 || e+int64(c.width) > int64(count) || e%int64(c.width) != 0 {
			w.bad(c, w.m.lo, uint64(e)*uint64(size))
			return
		}
		for j := range c.vals {
			w.localRow(c, &c.vals[j], unsafe.Add(arr, (int(e)+j)*room*size))
		}
		return
	}
	w.spell(&c.idx)
	b := w.m.b
	for i, hi := w.m.lo, w.m.hi; i < hi; i++ {
		if b != nil && b[i] == 0 {
			continue
		}
		e := readInt(unsafe.Add(w.p[c.idx.p], i*int(c.idx.size)), c.idx.t) + c.imm
		if e < 0 || e+int64(c.width) > int64(count) || e%int64(c.width) != 0 {
			w.bad(c, i, uint64(e)*uint64(size))
			return
		}
		for j := range c.vals {
			m := unsafe.Add(arr, ((int(e)+j)*room+i)*size)
			r := w.p[c.vals[j].p]
			if c.vals[j].class != uniform {
				r = unsafe.Add(r, i*size)
			}
			if c.store {
				c.strided(m, r, size, size, 1)
			} else {
				c.strided(r, m, size, size, 1)
				if c.t == dtype.Bool {
					normalize(lanes[uint8](r, 1))
				}
			}
		}
	}
}

// localRow moves one element of all active lanes.
func (w *worker) localRow(c *access, v *ref, m unsafe.Pointer) {
	size := int(c.size)
	lo, n := w.m.lo, w.m.hi-w.m.lo
	m = unsafe.Add(m, lo*size)
	r, step := w.p[v.p], 0
	if v.class != uniform {
		r, step = unsafe.Add(r, lo*size), size
	}
	switch {
	case !c.store:
		c.strided(r, m, size, size, n)
		if c.t == dtype.Bool {
			normalize(lanes[uint8](r, n))
		}
	case w.m.b != nil:
		storeMasked(c.size, m, r, size, step, w.m.b[lo:w.m.hi])
	default:
		c.strided(m, r, size, step, n)
	}
}

// memory emits a load, store or atomic.
func (e *emitter) memory(in *kir.Instr, pos int) {
	size := int32(in.Type.Size())
	c := &access{space: in.Space, t: in.Type, scale: size, size: size, width: max(in.Width, 1), imm: int64(in.Imm), loc: in.Loc,
		site: e.nSites, store: in.Op == kir.OpStore, sub: in.Sub}
	e.nSites++
	args := in.Args
	if in.Space == kir.Global {
		c.base = e.ref(args[0])
		args = args[1:]
	}
	c.idx = e.ref(args[0])
	if n := len(args) - 1 + len(in.Res); in.Op != kir.OpAtomic && n == 1 && c.width > 1 { // one wide value
		c.size, c.width = size*int32(c.width), 1
	}
	c.strided = stridedMoves[c.size]
	switch in.Space {
	case kir.Shared:
		c.offset, c.bytes = e.shared[in.Sym], e.p.Shared[in.Sym].Count*int(c.size)
		if c.bytes < 0 {
			c.bytes = -1
		}
	case kir.Const:
		c.table = e.p.Tables[in.Sym].Data
	case kir.ParamSpace:
		c.offset, c.bytes = e.offsets[in.Sym], e.p.Params[in.Sym].Count*int(c.size)
	case kir.Local:
		c.bytes = e.p.Local[in.Sym].Count * int(c.size)
	}
	e.watch(c)
	i := inst{exec: execAccess, acc: c}
	if in.Space == kir.Local {
		i.exec, i.a = execLocal, e.arrays[in.Sym]
	}
	switch in.Op {
	case kir.OpStore:
		e.spell(args[1:]...)
		c.vals = e.refs(args[1:])
		c.gather = scatters[c.size][b2i(c.idx.size == 8)]
		if in.Space == kir.Global && len(c.vals) == 1 && e.storeDirect(args[1], c) {
			i.exec = execStoreRest
		}
	case kir.OpAtomic:
		e.atomic(in, c, args, pos)
		return
	default:
		for _, v := range in.Res {
			c.vals = append(c.vals, e.define(v))
		}
		c.gather = gathers[c.size][b2i(c.idx.size == 8)]
		if c.vals[0].class == uniform {
			i.exec = execLoadUniform
		} else if in.Space == kir.Global && e.loadDirect(in) {
			x := &e.a.values[in.Res[0]]
			i.exec, i.d, i.wide = execLoadDirect, x.p, int32(x.wide)
			x.p = e.alias()
			i.alt = x.p
		}
	}
	e.add(i)
}

// alias returns a pointer that is set at run time.
func (e *emitter) alias() int32 {
	e.pointers = append(e.pointers, pointer{scalar: aliasPointer})
	p := int32(len(e.pointers) - 1)
	e.aliases = append(e.aliases, p)
	return p
}

// loadDirect reports whether the single value of a load may stay in memory: all its uses must come, in the same region, before anything
// that could change the memory.
func (e *emitter) loadDirect(in *kir.Instr) bool {
	if len(in.Res) != 1 || in.Type == dtype.Bool || e.load != nil || e.watched {
		return false
	}
	left := e.a.values[in.Res[0]].uses
	for _, next := range e.rest {
		if !e.a.live(next) {
			continue
		}
		for _, v := range next.Args {
			left -= b2i(v == in.Res[0])
		}
		if left == 0 {
			return true
		}
		if hasEffect(next.Op) && next.Op != kir.OpSet && next.Op != opSetElement {
			return false
		}
	}
	return false
}

// storeDirect makes the operation before a store of its result write directly to memory, if possible.
func (e *emitter) storeDirect(v kir.Value, c *access) bool {
	code := *e.code
	x := &e.a.values[v]
	if len(code) == 0 || e.watched || x.uses != 1 || x.class != varying || e.load != nil {
		return false
	}
	op := &code[len(code)-1]
	if !op.lanewise || op.d != x.p || int(op.wide) != x.wide {
		return false
	}
	op.exec, op.acc = execLanesStore, c
	return true
}
