package vexec

import "tenon.dev/internal/kir"

// Watcher is notified before the threads of a launch access global or shared memory. Calls come one at a time, block by block. A launch
// with a watcher runs a plan of its own in which an instruction before each access reports it; other plans have no overhead.
type Watcher interface {
	// Block says that the launch continues with the block at these coordinates. Its shared memory has shared bytes, none of them written
	// yet.
	Block(x, y, z uint32, shared int)
	// Barrier says that all threads of the block have met at a barrier.
	Barrier()
	// Touch says that a thread is about to access memory. The caller owns t and changes it after the call.
	Touch(t *Touch)
}

// Several is the Lane of accesses by several threads and of tile loads. Smaller lanes are visits of a tile's elements. The back end chooses
// which thread makes a visit, so two visits may be by one thread or by two; equal lanes are the same visit.
const Several = -1

// visits is the maximum number of lanes of a tile's region at a time.
const visits = 1 << 16

// Touch is one access by one thread.
type Touch struct {
	// Space is kir.Global or kir.Shared. Addr is the address, or the offset in shared memory; Size is in bytes.
	Space kir.Space
	Addr  uint64
	Size  int
	// Write and Atomic give the kind of access; a read has neither. Outside: the access is beyond the shared array.
	Write, Atomic, Outside bool
	// Lane is the thread's number in its block, counted along x first, or Several, or less than that.
	Lane int
	// Loc identifies the source location, see [Kernel.Place].
	Loc int
}

// Name returns the program's name.
func (k *Kernel) Name() string { return k.p.Name }

// Place returns the source location of a Touch's Loc; "" and 0 if unknown.
func (k *Kernel) Place(loc int) (file string, line int) {
	if loc <= 0 || loc >= len(k.p.Locs) {
		return "", 0
	}
	return k.p.Locs[loc].File, k.p.Locs[loc].Line
}

// Atomics reports whether threads of the program may synchronize through atomic operations on global memory.
func (k *Kernel) Atomics() bool { return k.atomics }

func hasGlobalAtomics(b *kir.Block) bool {
	for _, in := range b.Instrs {
		if in.Op == kir.OpAtomic && in.Space == kir.Global {
			return true
		}
		for _, r := range in.Blocks {
			if hasGlobalAtomics(r) {
				return true
			}
		}
	}
	return false
}

// watch emits the report of an access.
func (e *emitter) watch(c *access) {
	if e.watched && (c.space == kir.Global || c.space == kir.Shared) {
		e.add(inst{exec: execWatch, acc: c})
	}
}

// execWatch reports the accesses of the active lanes.
func execWatch(w *worker, in *inst) {
	c := in.acc
	w.spell(&c.idx)
	if c.space == kir.Global {
		w.spell(&c.base)
	}
	t := &w.touch
	*t = Touch{Space: c.space, Size: c.width * int(c.size), Write: c.store, Atomic: c.atomic != nil, Loc: c.loc}
	m, left := w.m, w.m.hi
	if c.idx.class == uniform && (c.space != kir.Global || c.base.class == uniform) {
		// If all lanes access one address, one report stands for all, or two where it matters that there are several threads. If all lanes
		// write equal values, that counts as one write.
		left = 2
		if c.atomic != nil || c.store && c.vals[0].class == uniform {
			left = 1
		}
	}
	limit := uint64(0)
	if c.space == kir.Shared {
		limit = uint64(len(w.array(c)))
	}
	for i := m.lo; i < m.hi && left > 0; i++ {
		if m.b != nil && m.b[i] == 0 {
			continue
		}
		left--
		t.Addr, t.Lane = w.laneAddr(c, i), i
		if w.tile != "" {
			t.Lane = Several - 1 - w.region%(1<<14)*visits - i
		}
		if c.space == kir.Shared {
			t.Outside = t.Addr >= limit || uint64(t.Size) > limit-t.Addr
			t.Addr += uint64(c.offset)
		}
		w.env.Watch.Touch(t)
	}
}

// watchRows reports the groups that rows of a tile load read.
func (l *tileLoad) watchRows(w *worker, m mask) {
	c := &l.acc
	saved := w.m
	w.m = m
	w.spell(&l.index)
	w.spell(&c.base)
	w.m = saved
	w.touch = Touch{Space: kir.Global, Size: int(c.size), Loc: c.loc, Lane: Several}
	for i := m.lo; i < m.hi; i++ {
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
		w.touch.Addr = *(*uint64)(base) + uint64(*(*int64)(idx))*uint64(c.scale)
		w.env.Watch.Touch(&w.touch)
	}
}

func execBarrier(w *worker, _ *inst) { w.env.Watch.Barrier() }
