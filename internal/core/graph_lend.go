package core

import (
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
	"tenon.dev/profile"
)

// lending says where the calls of a segment run and where their memory comes from.
type lending struct {
	run, of *rt.Stream // where they run; whose memory they use
	pool    *rt.MemPool
	manual  bool
	// stand returns the stand-in for a storage; it may be nil.
	stand func(st *storage) *storage
	// notes are what the session gave the recorded call under way. If fixed is true, the call gets the same again, and no memory.
	notes *callNotes
	fixed bool
	// learns says that the calls' work is dropped, and their kernels are noted in needs: see Segment.BuildAhead. next is the next address
	// of memory that is not there.
	learns bool
	// graphed says that the call which learns draws as it will in a graph.
	graphed bool
	needs   map[*rt.Device]*needs
	next    uint64
}

// callNotes are a recorded call's data apart from the memory of its operands.
type callNotes struct {
	// from and to bound the indexes of its work in the graph.
	from, to int
	// work and room are the addresses and sizes of its workspace, flops are its operations, and philox is its generator state, if it draws.
	work   []uint64
	room   []int
	flops  int64
	philox kernels.Philox
	about  *profile.Op // describes a group, for profiles
	// works counts the workspace addresses that were given out again.
	works int
}

// given reports whether outputs have their addresses already.
func (l *lending) given() bool { return l != nil && l.fixed }

// poolID returns the pool that outputs get their memory from; the zero id is the device's own.
func (l *lending) poolID() (id alloc.PoolID) {
	if l == nil {
		return id
	}
	return l.pool.ID()
}

// records reports whether the calls are recorded with memory of a pool, for the first time.
func (l *lending) records() bool { return l != nil && l.pool != nil && l.manual }

// workspace returns the next address of the call's workspace, which has that size.
func (l *lending) workspace(size int) uint64 {
	if l.learns {
		return l.space(size)
	}
	n := l.notes
	if n.works >= len(n.work) {
		return 0 // more than at the recording: its work then differs in number too
	}
	n.works++
	return n.work[n.works-1]
}

// philox returns the generator state of the recorded call.
func (l *lending) philox(f *frame) kernels.Philox {
	if l.graphed {
		return kernels.Philox{SeedPtr: nowhere, OffsetPtr: nowhere + 8}
	}
	if !l.fixed {
		l.notes.philox = f.x.s.capture.generator(f.drawn.g).take(f.drawn.to - f.drawn.at)
	}
	return l.notes.philox
}

// exec returns the Exec that a call of x runs on.
func (l *lending) exec(x *Exec) *Exec {
	if l == nil || l.learns || x.m.stream == l.run && x.m.manual == l.manual {
		return x
	}
	m := x.m
	m.stream, m.manual = l.run, l.manual
	return x.with(m)
}

// noting returns the notes of the call under way if they are being made, and otherwise nil.
func (l *lending) noting() *callNotes {
	if l == nil || l.fixed {
		return nil
	}
	return l.notes
}
