package alloc

import (
	"slices"

	"tenon.dev/fault"
)

// direct is the strategy without a cache: every allocation is one of the device, so that a memory checker sees it, and no statistics count
// it. A private pool is a list of such allocations, from its Source if it has one. Freed memory goes back at once, except memory that was
// allocated in a capture: the graph writes to it in every run, so it stays until no one holds the pool.
type direct struct {
	*books
	beneath Allocator // the strategy that it replaces, which keeps what it holds
	none    pool      // of the blocks outside private pools
}

func newDirect(m *books, beneath Allocator) *direct {
	n := &direct{books: m, beneath: beneath}
	n.none = pool{of: n}
	return n
}

// AllocFrom is Device.AllocFrom with the cache off.
func (n *direct) AllocFrom(id PoolID, size uint64, s Stream) (*Block, error) {
	b := &Block{size: size, requested: size, mapped: true, allocated: true, context: n.gather(LevelState)}
	_, b.captured = n.backend.Capturing(s)
	private, err := n.allocPrivate(b, id, s)
	switch {
	case private || err != nil:
	case b.captured:
		err = fault.New(fault.Capture,
			"memory cannot be allocated in a capture that has no pool while caching is off; capture with Exec.Capture")
	default:
		b.silo = &silo{pool: &n.none, stream: s}
		b.addr, err = n.backend.Malloc(size)
	}
	if err != nil {
		return nil, noRoom(err, size)
	}
	return b, nil
}

// allocPrivate gives b memory from a private pool, if one applies, and reports whether it did.
func (n *direct) allocPrivate(b *Block, id PoolID, s Stream) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, err := n.choosePrivate(id, s)
	if p == nil {
		return false, err
	}
	if err := n.freeUncached(p, false); err != nil {
		return false, err
	}
	if p.source == nil {
		b.addr, err = n.backend.Malloc(b.size)
	} else {
		b.size = (b.size + roundLarge - 1) &^ (roundLarge - 1)
		b.addr, err = p.source.Malloc(b.size, s)
	}
	if err != nil {
		return false, err
	}
	b.silo = &silo{pool: &pool{of: n, private: p}, stream: s}
	p.uncached = append(p.uncached, b)
	return true, nil
}

// noRoom turns an allocation's out-of-memory error into one with a message.
func noRoom(err error, size uint64) error {
	if !isOutOfMemory(err) {
		return err
	}
	return fault.Wrap(fault.OutOfMemory, err,
		"CUDA out of memory. Tried to allocate %s: close tensors that are done with, or make the batch smaller", FormatSize(size))
}

// Free is Device.Free of a block that AllocFrom made. The device's own free waits for its work. After an error of the device, a block
// outside private pools is still live; any other is dead, and goes back with the next call that frees memory of its pool.
func (n *direct) Free(b *Block) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !b.allocated {
		return freedBefore(b)
	}
	raw := b.inTable
	n.forgetRaw(b) // before its address can be reused
	b.allocated = false
	p := b.silo.pool.private
	if p != nil {
		return n.freeUncached(p, p.uses == 0)
	}
	err := n.unlocked(func() error { return n.backend.Free(b.addr) })
	if err != nil {
		b.allocated = true
		if raw {
			b.inTable = true
			n.options.Table.add(b)
		}
	}
	return err
}

// unlocked calls f without the lock, which others need while the device's free waits.
func (n *direct) unlocked(f func() error) error {
	n.mu.Unlock()
	defer n.mu.Lock()
	return f()
}

// live reports whether b is allocated.
func (n *direct) live(b *Block) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return b.allocated
}

// EmptyCache empties the cache of the strategy that n replaces.
func (n *direct) EmptyCache() error { return n.beneath.EmptyCache() }

// FreeHeld gives back the memory that captures allocated with caching off and freed. It is for a device that is being closed, together with
// the graphs that write to that memory.
func (m *books) FreeHeld() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.private {
		if err := m.freeUncached(p, true); err != nil {
			return err
		}
	}
	return nil
}

// freeUncached gives back the freed blocks of p that were allocated with caching off; with graphs also those that graphs write to, since
// none will any more. After an error those not yet returned stay.
func (m *books) freeUncached(p *privatePool, graphs bool) error {
	for i := len(p.uncached) - 1; i >= 0; i-- {
		b := p.uncached[i]
		if b.allocated || b.captured && !graphs {
			continue
		}
		if back, err := m.giveBack(p, b); err != nil {
			return err
		} else if back {
			p.uncached = slices.Delete(p.uncached, i, i+1)
		}
	}
	return nil
}

// giveBack returns a block of p that was allocated with caching off, and reports whether it did. The device's free waits for all work; a
// Source only waits for the block's own stream, so giveBack waits for the others, unless a capture forbids that.
func (m *books) giveBack(p *privatePool, b *Block) (bool, error) {
	if p.source == nil {
		err := m.backend.Free(b.addr)
		return err == nil, err
	}
	for len(b.uses) > 0 {
		if len(m.diversions) > 0 {
			return false, nil
		}
		if err := m.await(b.uses[0]); err != nil {
			return false, err
		}
		b.uses = b.uses[1:]
	}
	err := p.source.Free(b.addr, b.size, b.silo.stream)
	return err == nil, err
}

// await waits for the work that s has now.
func (m *books) await(s Stream) error {
	e, err := m.backend.AcquireEvent()
	if err != nil {
		return err
	}
	defer m.backend.ReleaseEvent(e)
	if err := m.backend.RecordEvent(e, s); err != nil {
		return err
	}
	return m.backend.SyncEvent(e)
}

// uncachedIn returns the memory of p that was allocated with caching off, as segments of one block each.
func uncachedIn(p *privatePool, device int) []SegmentInfo {
	var infos []SegmentInfo
	for _, b := range p.uncached {
		s := SegmentInfo{Device: device, Addr: b.addr, Stream: b.silo.stream, Large: b.requested > smallSize, Pool: p.id,
			Context: b.context}
		s.add(b)
		infos = append(infos, s)
	}
	return infos
}
