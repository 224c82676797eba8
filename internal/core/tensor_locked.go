package core

import (
	"sync"
	"sync/atomic"

	"tenon.dev/internal/rt"
)

// lockedMemory is the page-locked host memory of a storage of the processor's device. Kernels of the processor use it like any other
// memory; a GPU copies from and to it while the host goes on.
type lockedMemory struct {
	memory *rt.Pinned
	// arrival is the end of the copy that fills the memory, until somebody has waited for it.
	arrival atomic.Pointer[rt.Event]

	mu sync.Mutex
	// leaving are the ends of copies that read the memory; the next write waits for them.
	leaving []*rt.Event
}

// free releases the memory, which is reused when the copies that use it are done. A nil receiver stands for no memory.
func (l *lockedMemory) free() error {
	if l == nil {
		return nil
	}
	l.drop()
	return l.memory.Release()
}

// forget is free for cleanups.
func (l *lockedMemory) forget() {
	l.drop()
	l.memory.Forget()
}

// drop closes the events; the memory has its own.
func (l *lockedMemory) drop() {
	live.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.leaving {
		e.Close()
	}
	l.leaving = nil
}

// leaves adds e, the end of a copy that reads the memory.
func (l *lockedMemory) leaves(e *rt.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.leaving[:0]
	for _, o := range l.leaving {
		if done, err := o.Query(); done && err == nil {
			o.Close()
			continue
		}
		kept = append(kept, o)
	}
	clear(l.leaving[len(kept):])
	l.leaving = append(kept, e)
}

// left waits until no copy reads the memory.
func (l *lockedMemory) left() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.leaving {
		if err := e.Synchronize(); err != nil {
			l.leaving = l.leaving[i:]
			return err
		}
		e.Close()
	}
	l.leaving = nil
	return nil
}
