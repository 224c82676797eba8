package vexec

import (
	"unsafe"
)

// inst is one compiled operation.
type inst struct {
	exec func(w *worker, in *inst)
	k    kern
	// d, a, b, c index the pointer table; ds … cs are bytes from lane to lane, 0 for scalars.
	d, a, b, c     int32
	ds, as, bs, cs int32
	// wide is how many elements of a lane the operation computes.
	wide int32
	// lanewise: an operation on lanes, which may be made to write a variable, alt, instead of d.
	lanewise bool
	alt      int32
	// leaves: a continue, whose ctl is the loop it stands in.
	leaves bool
	acc    *access
	ctl    *control
	aff    *affineOp
	tile   *tileOp
	load   *tileLoad
}

// worker is the state of one goroutine that runs passes of a plan.
type worker struct {
	plan *plan
	env  *Env
	// fault stops the worker.
	fault *Fault
	// m is the active mask; lanes is the number of lanes of this pass.
	m     mask
	lanes int
	// p points at scalars and registers.
	p       []unsafe.Pointer
	scalars []uint64
	aff     []affinity
	spans   []lanespan
	sites   []site
	// masks are the buffers that control instructions own; dead marks returned lanes; cont holds each loop's continued lanes.
	masks [][]uint8
	dead  []uint8
	cont  []mask
	// ext are the extents of a pass: block x, y, z and blocks in the pass; cta is its first block; grid the launch's.
	ext       [4]int64
	cta, grid [3]uint32
	pass      int
	args      []byte
	shared    []byte
	// touch is what the watcher is told, here so that telling allocates nothing.
	touch Touch
	// region counts the runs of tiles' regions.
	region int
	// from and step are operands of counting; they are here so that taking their addresses allocates nothing.
	from, step int64
	// stored: the last operation before a store has done it.
	stored bool
	// tile names the tile whose region runs, for faults.
	tile string
	// arena backs the registers; its layout is for room lanes.
	arena []uint64
	room  int
}

// run executes code until no lane is active.
func (w *worker) run(code []inst) {
	for i := range code {
		in := &code[i]
		in.exec(w, in)
		if w.m.hi == 0 {
			return
		}
	}
}

// execLanes computes an operation on the active range of lanes.
func execLanes(w *worker, in *inst) {
	lo := w.m.lo
	in.k(unsafe.Add(w.p[in.d], lo*int(in.ds)), unsafe.Add(w.p[in.a], lo*int(in.as)), unsafe.Add(w.p[in.b], lo*int(in.bs)),
		unsafe.Add(w.p[in.c], lo*int(in.cs)), (w.m.hi-lo)*int(in.wide))
}

// execScalar computes an operation on scalars.
func execScalar(w *worker, in *inst) { in.k(w.p[in.d], w.p[in.a], w.p[in.b], w.p[in.c], 1) }
