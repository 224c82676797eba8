package alloc

import (
	"maps"
	"slices"
	"sync"
)

// Leaks is an Allocator that tracks live blocks, for a checker that looks for leaks. A program gives up its tensors by closing the device,
// so Close frees them; memory that is left then was taken by address and never freed.
type Leaks struct {
	Allocator

	mu     sync.Mutex
	live   map[uint64]*Block // by address
	closed bool
}

// NewLeaks returns a leak check over a.
func NewLeaks(a Allocator) *Leaks { return &Leaks{Allocator: a, live: map[uint64]*Block{}} }

// AllocFrom allocates a block and tracks it.
func (l *Leaks) AllocFrom(id PoolID, size uint64, s Stream) (*Block, error) {
	b, err := l.Allocator.AllocFrom(id, size, s)
	if err == nil {
		l.Own(b)
	}
	return b, err
}

// Own tracks a block that was not allocated here but has an owner, such as one that Restore made.
func (l *Leaks) Own(b *Block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.live[b.addr] = b
	}
}

// Free ends an allocation. After Close it does nothing: all blocks were freed.
func (l *Leaks) Free(b *Block) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	delete(l.live, b.addr)
	l.mu.Unlock()
	return l.Allocator.Free(b)
}

// Forget drops blocks at these addresses that were freed without the check, as Restore does.
func (l *Leaks) Forget(addrs []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range addrs {
		delete(l.live, a)
	}
}

// Live describes the live blocks, in the order of their addresses.
func (l *Leaks) Live() []BlockInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return described(l.live)
}

// described describes allocated blocks, in the order of their addresses.
func described(blocks map[uint64]*Block) []BlockInfo {
	infos := make([]BlockInfo, 0, len(blocks))
	for _, addr := range slices.Sorted(maps.Keys(blocks)) {
		b := blocks[addr]
		infos = append(infos, BlockInfo{Addr: addr, Size: b.size, Requested: b.requested, State: ActiveAllocated, Context: b.context})
	}
	return infos
}

// Closed reports whether Close was called.
func (l *Leaks) Closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// PoolOf is b.Pool, or the zero PoolID after Close, which freed b.
func (l *Leaks) PoolOf(b *Block) PoolID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return PoolID{}
	}
	return b.Pool()
}

// Close frees the live blocks, in the order of addresses, and calls freed with each address and the error of its free.
func (l *Leaks) Close(freed func(addr uint64, err error)) {
	l.mu.Lock()
	live := l.live
	l.live, l.closed = nil, true
	l.mu.Unlock()
	for _, addr := range slices.Sorted(maps.Keys(live)) {
		freed(addr, l.Allocator.Free(live[addr]))
	}
}
