package vexec

import "tenon.dev/internal/kir"

// shadow watches shared memory for what the lanes' lockstep hides: accesses that no barrier orders, and reads of what was never written.
// Time is counted in epochs, which barriers and passes end.
type shadow struct {
	epoch, first uint32 // first is the pass's
	cells        []cell // one a byte
}

// cell is what happened to a byte: the epoch and thread of the last write and read.
type cell struct {
	wrote, read    uint32
	writer, reader int32
	atomic         bool // the last write was
}

// several stands for more than one thread, and for the threads of a tile's region, which are the back end's choice.
const several = -1

// next begins an epoch.
func (s *shadow) next() {
	s.epoch++
}

// begin begins a pass: nothing in shared memory is written.
func (s *shadow) begin(bytes int) {
	s.epoch++
	s.first = s.epoch
	if len(s.cells) < bytes {
		s.cells = make([]cell, bytes)
	}
}

// watch checks the active lanes' access to shared memory, before it is made. Lanes out of bounds are left to the access itself.
func (w *worker) watch(c *access) {
	s := w.shadow
	w.spell(&c.idx)
	n := c.width * int(c.size)
	limit := len(w.array(c))
	m := w.m
	for i := m.lo; i < m.hi; i++ {
		if m.b != nil && m.b[i] == 0 {
			continue
		}
		at := int(w.laneAddr(c, i))
		if at < 0 || at+n > limit {
			continue
		}
		thread := int32(i)
		if w.tile != "" {
			thread = several
		}
		for k := range n {
			b := &s.cells[c.offset+at+k]
			if what := b.touch(s, thread, c.store || c.atomic != nil, c.atomic != nil); what != "" {
				w.fail(codeLaunchFailed, c.loc, i, "%s byte %d of shared memory", what, c.offset+at+k)
				return
			}
		}
	}
}

// touch notes an access and says what is wrong with it, or nothing.
func (b *cell) touch(s *shadow, thread int32, write, atomic bool) string {
	other := func(t int32) bool { return t != thread || t == several }
	switch {
	case !write && b.wrote < s.first:
		return "uninitialised: a read of unwritten"
	case b.wrote == s.epoch && other(b.writer) && !(atomic && b.atomic):
		if write {
			return "race: a write, with no barrier since another thread's write, of"
		}
		return "race: a read, with no barrier since another thread's write, of"
	case write && !atomic && b.read == s.epoch && other(b.reader):
		return "race: a write, with no barrier since another thread's read, of"
	}
	if write {
		b.writer, b.atomic = thread, atomic
		b.wrote = s.epoch
		return ""
	}
	if b.read == s.epoch && b.reader != thread {
		thread = several
	}
	b.read, b.reader = s.epoch, thread
	return ""
}

func execBarrier(w *worker, _ *inst) {
	if w.shadow != nil {
		w.shadow.next()
	}
}

// watched reports whether an access of shared memory may go on.
func (w *worker) watched(c *access) bool {
	if w.shadow == nil || c.space != kir.Shared {
		return true
	}
	w.watch(c)
	return w.fault == nil
}
