package vexec

import (
	"unsafe"
)

// inst is one compiled operation.
type inst struct {
	exec func(w *worker, in *inst)
	k    kern
	// d, a, b, c index the pointer table; ds … cs are byte strides between lanes, 0 for scalars.
	d, a, b, c     int32
	ds, as, bs, cs int32
	// wide is the number of elements per lane that the operation computes.
	wide int32
	// lanewise: an operation on lanes, which may write to a variable, alt, instead of d.
	lanewise bool
	alt      int32
	// leaves: a continue; ctl is its loop.
	leaves bool
	acc    *access
	ctl    *control
	aff    *affineOp
	tile   *tileOp
	load   *tileLoad
}

// worker is the state of a goroutine that runs passes of a plan.
type worker struct {
	plan *plan
	env  *Env
	// fault stops the worker.
	fault *Fault
	// m is the active mask; lanes is the number of lanes in this pass.
	m     mask
	lanes int
	// p points at scalars and registers.
	p       []unsafe.Pointer
	scalars []uint64
	aff     []affinity
	spans   []lanespan
	sites   []site
	// masks are the buffers that control instructions own; dead marks returned lanes; cont holds the continued lanes of each loop.
	masks [][]uint8
	dead  []uint8
	cont  []mask
	// ext is the extent of a pass: the block in x, y, z and the number of blocks in the pass. cta is its first block, grid the launch's
	// grid.
	ext       [4]int64
	cta, grid [3]uint32
	pass      int
	args      []byte
	shared    []byte
	// touch is what the watcher gets; it is here so that a report allocates nothing.
	touch Touch
	// region counts the runs of tiles' regions.
	region int
	// from and step are operands of counting; they are here so that taking their addresses allocates nothing.
	from, step int64
	// stored: the operation before a store has already stored its result.
	stored bool
	// tile names the tile whose region runs, for faults.
	tile string
	// arena is the memory of the registers; it is laid out for room lanes.
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
