package vexec

import (
	"fmt"
	"maps"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// plan is a program compiled for passes of one block, of several blocks (fused), or of one block that is watched.
type plan struct {
	k     *Kernel
	fused bool
	// watched: each access to global and shared memory, and each barrier, is reported to Env.Watch.
	watched bool
	// prologue runs once per launch in every worker; body runs once per pass.
	prologue, body []inst
	// pointers describes the pointer table: scalars and registers.
	pointers []pointer
	// consts are the initial scalars.
	consts                               []uint64
	nAff, nSpans, nSites, nMasks, nConts int
	// returns: lanes may return, so returned lanes must be recorded.
	returns bool
	// least is the minimum number of lanes that registers must have room for.
	least int
	// aliases are the pointers that loads set.
	aliases []int32
	// bools are the registers of the Bool variables.
	bools []int32
	// cost is roughly the number of operations per lane.
	cost float64
	pool workerPool
}

// pointer is an entry of the pointer table: a scalar with number scalar, or (scalar -1) a register of size bytes per lane, or count such
// registers, or (aliasPointer) a pointer that loads set.
type pointer struct {
	scalar int32
	size   int32
	count  int32
	// bytes, if not 0, is the size of memory that is not a register: a tile or a buffer.
	bytes int
}

const aliasPointer = -2

// emitter turns a program into a plan.
type emitter struct {
	*plan
	p    *kir.Program
	a    *analysis
	l    *liveness
	code *[]inst
	// free lists registers by lane size. expiring lists registers by the position of the last use of their value; those up to released have
	// been freed.
	free     map[int32][]int32
	expiring map[int][]int32
	released int
	// spelled are the affine and span values whose registers are known to hold the active lanes at this point.
	spelled map[kir.Value]bool
	// rest are the instructions that follow in the region.
	rest []*kir.Instr
	// loops are the open loops, innermost last.
	loops []*control
	// arrays are the pointer indexes of local arrays.
	arrays  []int32
	offsets []int // of parameters in the packed arguments
	shared  []int // of shared arrays
	tiles   []tileStore
	// load is the tile load whose region is being emitted, if any. Meanwhile registers are not reused, because its instructions do not run
	// in program order. held are the registers to release after it.
	load *tileLoad
	held []int32
	err  error
}

// newPlan makes the plan with the given number of k's optimized program, whose wide values are wide.
func newPlan(k *Kernel, q *kir.Program, wide *widths, number int) (*plan, error) {
	fused, watched := number == fusedPlan, number == watchedPlan
	a := analyze(q, fused, wide)
	e := &emitter{plan: &plan{k: k, fused: fused, watched: watched}, p: q, a: a, l: a.liveness(), free: map[int32][]int32{},
		expiring: map[int][]int32{},
		spelled:  map[kir.Value]bool{}}
	e.pointers = append(e.pointers, pointer{scalar: e.scalar()}) // index 0: no operand
	e.offsets, _ = q.ArgLayout()
	e.shared, _ = sharedLayout(q)
	for i := range a.vars {
		if v := &a.vars[i]; v.class == uniform {
			v.p = e.scalarPointer()
		} else {
			v.p = e.register(q.Vars[i].Size()*v.wide, 1)
		}
		if a.vars[i].class == affine {
			a.vars[i].k = int32(e.nAff)
			e.nAff++
		}
		if p := a.vars[i].p; q.Vars[i] == dtype.Bool && e.pointers[p].scalar < 0 {
			e.bools = append(e.bools, p)
		}
	}
	for _, l := range q.Local {
		e.arrays = append(e.arrays, e.register(l.Type.Size(), l.Count))
	}
	e.placeTiles()
	e.code = &e.body
	e.block(q.Body)
	e.cost = cost(e.body)
	return e.plan, e.err
}

// cost counts operations; a loop counts as that many iterations.
func cost(code []inst) float64 {
	const turns = 16
	var n float64
	for i := range code {
		n++
		if c := code[i].ctl; c != nil && !code[i].leaves {
			x := cost(c.then) + cost(c.els)
			if c.loop {
				x *= turns
			}
			n += x
		}
	}
	return n
}

func (e *emitter) scalar() int32 {
	e.consts = append(e.consts, 0)
	return int32(len(e.consts) - 1)
}

func (e *emitter) scalarPointer() int32 {
	e.pointers = append(e.pointers, pointer{scalar: e.scalar()})
	return int32(len(e.pointers) - 1)
}

// register returns a new register, or an array of count registers.
func (e *emitter) register(size, count int) int32 {
	e.pointers = append(e.pointers, pointer{scalar: -1, size: int32(size), count: int32(count)})
	return int32(len(e.pointers) - 1)
}

// alloc returns a free register for lanes of the given size.
func (e *emitter) alloc(size int) int32 {
	if f := e.free[int32(size)]; len(f) > 0 {
		e.free[int32(size)] = f[:len(f)-1]
		return f[len(f)-1]
	}
	return e.register(size, 1)
}

func (e *emitter) release(p int32) {
	if e.load != nil {
		e.held = append(e.held, p)
		return
	}
	s := e.pointers[p].size
	e.free[s] = append(e.free[s], p)
}

// expire frees the registers of values that are not used after pos.
func (e *emitter) expire(pos int) {
	for ; e.released < pos && e.load == nil; e.released++ {
		for _, p := range e.expiring[e.released+1] {
			e.release(p)
		}
		delete(e.expiring, e.released+1)
	}
}

// define gives v its scalar or register.
func (e *emitter) define(v kir.Value) ref {
	x := &e.a.values[v]
	switch x.class {
	case uniform:
		x.p = e.scalarPointer()
	case affine:
		x.k = int32(e.nAff)
		e.nAff++
		x.p = e.lanesUntil(x)
	case span:
		x.k = int32(e.nSpans)
		e.nSpans++
		x.p = e.lanesUntil(x)
	default:
		x.p = e.lanesUntil(x)
	}
	delete(e.spelled, v)
	return e.ref(v)
}

// lanesUntil returns a register that is reserved until x's last use; a hoisted value keeps its own for all passes.
func (e *emitter) lanesUntil(x *value) int32 {
	if x.hoist {
		return e.register(x.size, 1)
	}
	p := e.alloc(x.size)
	e.expiring[x.last] = append(e.expiring[x.last], p)
	return p
}

func (e *emitter) ref(v kir.Value) ref {
	x := &e.a.values[v]
	if e.crosses(v) {
		return e.load.cross(e, v)
	}
	return ref{class: x.class, t: x.t, size: int32(x.size), p: x.p, k: x.k}
}

// crosses reports whether v depends on one axis of a tile load while instructions that combine both axes are being emitted.
func (e *emitter) crosses(v kir.Value) bool {
	x := &e.a.values[v]
	return e.load != nil && e.load.phase == depBoth && x.class > uniform && (x.dep == depOuter || x.dep == depInner)
}

func (e *emitter) refs(vs []kir.Value) []ref {
	out := make([]ref, len(vs))
	for i, v := range vs {
		out[i] = e.ref(v)
	}
	return out
}

func (e *emitter) add(in inst) { *e.code = append(*e.code, in) }

func (e *emitter) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf("vexec: kernel %s: %s", e.p.Name, fmt.Sprintf(format, args...))
	}
}

// isUniform reports whether v is a scalar.
func (e *emitter) isUniform(v kir.Value) bool { return e.a.values[v].class == uniform }

// spell makes v's register hold the active lanes at this point.
func (e *emitter) spell(vs ...kir.Value) {
	for _, v := range vs {
		if c := e.a.values[v].class; (c == affine || c == span) && !e.spelled[v] {
			e.spelled[v] = true
			e.add(inst{exec: execSpell, aff: &affineOp{a: e.ref(v)}})
		}
	}
}

// within emits a region into code. Values written out to lanes there do not count as such outside.
func (e *emitter) within(code *[]inst, b *kir.Block) {
	outer, spelled := e.code, e.spelled
	e.code, e.spelled = code, map[kir.Value]bool{}
	maps.Copy(e.spelled, spelled)
	e.block(b)
	e.code, e.spelled = outer, spelled
}

func (e *emitter) block(b *kir.Block) {
	for i, in := range b.Instrs {
		if e.err != nil {
			return
		}
		e.rest = b.Instrs[i+1:]
		pos := e.l.at[in]
		e.expire(pos - 1)
		if e.a.live(in) {
			e.instr(in, pos)
		}
	}
}

// instr emits one live instruction.
func (e *emitter) instr(in *kir.Instr, pos int) {
	if e.a.hoistable(in) {
		x := &e.a.values[in.Res[0]]
		x.hoist = true
		outer := e.code
		e.code = &e.prologue
		switch {
		case x.class == uniform:
			e.scalarInstr(in)
		case in.Op == kir.OpSpecial:
			e.special(in)
		default:
			e.affine(in, pos)
		}
		e.code = outer
		return
	}
	switch in.Op {
	case kir.OpGet:
		e.get(in)
	case kir.OpSet:
		e.set(in)
	case kir.OpSpecial:
		e.special(in)
	case kir.OpLoad, kir.OpStore, kir.OpAtomic:
		e.memory(in, pos)
	case kir.OpShuffle, kir.OpVote:
		e.exchange(in)
	case kir.OpBarrier:
		if e.watched { // lanes already advance together
			e.add(inst{exec: execBarrier})
		}
	case kir.OpFence:
		// Lanes already access memory in program order.
	case kir.OpAssert, kir.OpIf, kir.OpFor, kir.OpLoop, kir.OpBreak, kir.OpContinue, kir.OpReturn:
		e.control(in)
	case opExtract:
		x := e.ref(in.Args[0])
		e.extract(in, x.p, x.size)
	case opGetElement:
		v := &e.a.vars[in.Sym]
		e.extract(in, v.p, int32(v.wide*in.Type.Size()))
	case opSetElement:
		e.setElement(in)
	case kir.OpClock:
		e.add(inst{exec: execClock, d: e.define(in.Res[0]).p})
	case kir.OpTileZero, kir.OpTileLoad, kir.OpTileDot, kir.OpTileMap, kir.OpTileRows, kir.OpTileCopy, kir.OpTileEach:
		e.tileOp(in)
	case kir.OpYield:
		// The tile operation around it reads the operands.
	default:
		switch e.a.values[in.Res[0]].class {
		case uniform:
			e.scalarInstr(in)
		case affine, span:
			e.affine(in, pos)
		default:
			e.add(e.lanewise(in, pos, nil))
		}
	}
}

// scalarInstr emits an operation whose operands and result are scalars.
func (e *emitter) scalarInstr(in *kir.Instr) {
	d := e.define(in.Res[0])
	switch in.Op {
	case kir.OpConst:
		e.consts[e.pointers[d.p].scalar] = in.Imm
		return
	case kir.OpParam:
		e.add(inst{exec: execParam, d: d.p, acc: &access{offset: e.offsets[in.Sym], size: d.size, t: d.t}})
		return
	case kir.OpSpecial:
		e.special(in)
		return
	}
	i := inst{exec: execScalar, d: d.p, k: e.kernels(in, true)[0]}
	for j, v := range in.Args {
		*[]*int32{&i.a, &i.b, &i.c}[j] = e.ref(v).p
	}
	if i.k == nil {
		e.fail("%v of %v is not an operation", in.Op, in.Type)
	}
	e.add(i)
}

// kernels returns the kernels for the forms of in's operation: those exact in length, for scalars, or the fastest.
func (e *emitter) kernels(in *kir.Instr, exact bool) [4]kern {
	ops, cvts := &laneOps, &laneCvts
	if exact {
		ops, cvts = &plainOps, &plainCvts
	}
	switch in.Op {
	case kir.OpCvt:
		return [4]kern{cvts[e.a.values[in.Args[0]].t][in.Type]}
	case kir.OpBitcast:
		return ops[kir.OpGet][in.Type]
	case kir.OpPtrAdd:
		return ops[kir.OpAdd][dtype.Uint64]
	}
	return ops[in.Op][in.Type]
}

// lanewise returns the instruction for an operation on lanes; d, if not nil, is the result's place.
func (e *emitter) lanewise(in *kir.Instr, pos int, d *ref) inst {
	wide := e.a.values[in.Res[0]].wide
	i := inst{exec: execLanes, wide: int32(wide), lanewise: true}
	args := append([]kir.Value(nil), in.Args...)
	if len(args) == 3 && in.Op != kir.OpSelect && e.isUniform(args[0]) { // the factors commute
		args[0], args[1] = args[1], args[0]
	}
	scalar := make([]bool, 3)
	for j, v := range args {
		scalar[j] = e.isUniform(v) && (j > 0 || len(args) == 2)
	}
	form := b2i(scalar[1]) + 2*b2i(scalar[2])
	if len(args) == 2 {
		form = b2i(scalar[1]) + 2*b2i(scalar[0])
	}
	e.spell(args...)
	i.k = e.kernels(in, false)[form]
	var temps []int32
	for j, v := range args {
		r := e.ref(v)
		p, s := r.p, r.size
		switch {
		case scalar[j]:
			s = 0
		case e.isUniform(v):
			p, s = e.fill(v, wide), r.size*int32(wide)
			temps = append(temps, p)
		case wide > 1 && e.a.values[v].wide == 1:
			p, s = e.repeat(v, wide), r.size*int32(wide)
			temps = append(temps, p)
		}
		*[]*int32{&i.a, &i.b, &i.c}[j] = p
		*[]*int32{&i.as, &i.bs, &i.cs}[j] = s
	}
	if d == nil {
		e.expire(pos) // the result may take an operand's register
		r := e.define(in.Res[0])
		d = &r
	}
	for _, p := range temps {
		e.release(p)
	}
	i.d, i.ds = d.p, d.size
	if i.k == nil {
		e.fail("%v of %v is not an operation", in.Op, in.Type)
	}
	return i
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fill emits a register that repeats a scalar; the caller releases it.
func (e *emitter) fill(v kir.Value, wide int) int32 {
	r := e.ref(v)
	p := e.alloc(int(r.size) * wide)
	e.add(inst{exec: execLanes, k: laneOps[kir.OpGet][r.t][1], d: p, ds: r.size * int32(wide), a: r.p, wide: int32(wide)})
	return p
}

// repeat emits a register with wide copies of every lane's element; the caller releases it.
func (e *emitter) repeat(v kir.Value, wide int) int32 {
	r := e.ref(v)
	p := e.alloc(int(r.size) * wide)
	e.add(inst{exec: execRepeat, d: p, ds: r.size, a: r.p, as: r.size, wide: int32(wide), acc: &access{strided: stridedMoves[r.size]}})
	return p
}

func execRepeat(w *worker, in *inst) {
	lo, size, wide := w.m.lo, int(in.ds), int(in.wide)
	for j := range wide {
		in.acc.strided(unsafe.Add(w.p[in.d], (lo*wide+j)*size), unsafe.Add(w.p[in.a], lo*size), size*wide, size, w.m.hi-lo)
	}
}

// extract emits element Imm of every lane of register p, which has size bytes per lane.
func (e *emitter) extract(in *kir.Instr, p, size int32) {
	d := e.define(in.Res[0])
	e.add(inst{exec: execExtract, d: d.p, ds: d.size, a: p, as: size, bs: int32(in.Imm), acc: &access{strided: stridedMoves[d.size]}})
}

func execExtract(w *worker, in *inst) {
	lo := w.m.lo
	in.acc.strided(unsafe.Add(w.p[in.d], lo*int(in.ds)), unsafe.Add(w.p[in.a], lo*int(in.as)+int(in.bs*in.ds)), int(in.ds),
		int(in.as), w.m.hi-lo)
}

// affine emits an operation whose result may be a formula or a span.
func (e *emitter) affine(in *kir.Instr, pos int) {
	o := &affineOp{op: in.Op, t: e.a.values[in.Res[0]].t, a: e.ref(in.Args[0])}
	if len(in.Args) > 1 {
		o.b = e.ref(in.Args[1])
	}
	i := inst{exec: execAffine, aff: o}
	switch in.Op {
	case kir.OpLt, kir.OpLe, kir.OpGt, kir.OpGe, kir.OpEq:
		i.exec, o.t = execAffineCompare, in.Type
	case kir.OpAnd:
		if in.Type == dtype.Bool {
			i.exec = execSpanAnd
		}
	}
	// The plain form writes its operands out to lanes itself, so nothing is emitted for them here.
	outer, spelled := e.code, e.spelled
	var dropped []inst
	e.code, e.spelled = &dropped, map[kir.Value]bool{}
	e.expire(pos)
	o.d = e.define(in.Res[0])
	o.plain = e.lanewise(in, pos, &o.d)
	e.code, e.spelled = outer, spelled
	delete(e.spelled, in.Res[0])
	e.add(i)
}

// special emits a read of a special register.
func (e *emitter) special(in *kir.Instr) {
	d := e.ref(in.Res[0])
	if d.p == 0 {
		d = e.define(in.Res[0])
	}
	i := inst{exec: execSpecial, d: d.p, acc: &access{sub: in.Sub}}
	switch d.class {
	case affine:
		i.exec, i.aff = execThreadIdx, &affineOp{d: d}
	case varying:
		i.exec = execLaneID
	}
	e.add(i)
}
