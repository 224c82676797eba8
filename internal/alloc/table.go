package alloc

import (
	"slices"
	"sync"

	"tenon.dev/fault"
)

// shards is the number of locks of a Table; a prime, since addresses share their low bits.
const shards = 67

// Table finds live raw allocations by address. Devices may share one: addresses are unique among them.
type Table struct {
	shards [shards]shard
}

type shard struct {
	mu     sync.Mutex
	blocks map[uint64]tableEntry
}

type tableEntry struct {
	device *Device
	block  *Block
}

func (t *Table) shard(addr uint64) *shard { return &t.shards[addr/minBlockSize%shards] }

func (t *Table) add(d *Device, b *Block) {
	s := t.shard(b.addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blocks == nil {
		s.blocks = make(map[uint64]tableEntry)
	}
	s.blocks[b.addr] = tableEntry{d, b}
}

func (t *Table) remove(addr uint64) (tableEntry, bool) {
	s := t.shard(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.blocks[addr]
	delete(s.blocks, addr)
	return e, ok
}

// Find returns the raw allocation that begins at addr and its device.
func (t *Table) Find(addr uint64) (*Device, *Block, bool) {
	s := t.shard(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.blocks[addr]
	return e.device, e.block, ok
}

// RawAlloc is Alloc for callers that keep only the address; RawFree ends it. Size 0 gives address 0.
func (d *Device) RawAlloc(size uint64, s Stream) (uint64, error) {
	b, err := d.Alloc(size, s)
	if b == nil {
		return 0, err
	}
	b.inTable = true
	d.options.Table.add(d, b)
	return b.addr, nil
}

// RawHeld reports whether addr is a live raw allocation, of any device that shares d's Table.
func (d *Device) RawHeld(addr uint64) bool {
	_, _, ok := d.options.Table.Find(addr)
	return ok
}

// RawFree ends a raw allocation, of any device that shares d's Table. Address 0 does nothing.
func (d *Device) RawFree(addr uint64) error {
	if addr == 0 {
		return nil
	}
	e, ok := d.options.Table.remove(addr)
	if !ok {
		return fault.New(fault.Invalid, "invalid device pointer: %#x; free only what RawAlloc returned, and once", addr)
	}
	e.block.inTable = false
	uncached := e.block.seg == nil && !e.block.async
	err := e.device.Free(e.block)
	if err != nil && uncached && e.block.allocated { // a failed free leaves the block live; any other is dead
		e.block.inTable = true
		e.device.options.Table.add(e.device, e.block)
	}
	return err
}

// SetCaching switches the cache off or on again. While it is off, allocations go straight to the device and back, and count in
// no statistics. What a capture allocates then is of its private pool all the same: once freed, it goes back to the device when no one holds the pool.
// Blocks keep the way they were allocated.
func (d *Device) SetCaching(on bool) { d.uncached.Store(!on) }

// Caching reports whether the cache is on.
func (d *Device) Caching() bool { return !d.uncached.Load() }

// allocUncached is Alloc with caching off.
func (d *Device) allocUncached(size uint64, s Stream, context any) (*Block, error) {
	var private *privatePool
	if _, capturing := d.backend.Capturing(s); capturing {
		if private = d.diverts(s); private == nil {
			return nil, fault.New(fault.Capture, "memory cannot be allocated in a capture that has no pool while caching is off; capture with Exec.Capture")
		}
	}
	addr, err := d.backend.Malloc(size)
	if err != nil {
		if isOutOfMemory(err) {
			return nil, fault.Wrap(fault.OutOfMemory, err, "CUDA out of memory. Tried to allocate %s: close tensors that are done with, or make the batch smaller", FormatSize(size))
		}
		return nil, err
	}
	b := &Block{addr: addr, size: size, requested: size, silo: &silo{pool: &pool{private: private}, stream: s}, mapped: true, allocated: true,
		context: context}
	if private != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		private.uncached = append(private.uncached, b)
	}
	return b, nil
}

// diverts returns the private pool to which allocations of s are diverted, or nil.
func (d *Device) diverts(s Stream) *privatePool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.diversions {
		if d.diversions[i].filter(s) {
			return d.diversions[i].pool
		}
	}
	return nil
}

// freeUncached frees a block of allocUncached. The device waits for its work by itself. A block that graphs write to stays until no one holds its pool.
func (d *Device) freeUncached(b *Block) error {
	if p := b.silo.pool.private; p != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.forgetRaw(b)
		b.allocated = false
		if p.uses > 0 {
			return nil
		}
		return d.freeHeld(p)
	}
	if err := d.backend.Free(b.addr); err != nil {
		return err
	}
	d.forgetRaw(b)
	b.allocated = false
	return nil
}

// forgetRaw takes a block out of the table.
func (d *Device) forgetRaw(b *Block) {
	if b.inTable {
		b.inTable = false
		d.options.Table.remove(b.addr)
	}
}

// FreeHeld gives back what captures allocated with caching off and freed, of a device that goes away with the graphs that write to it.
func (d *Device) FreeHeld() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.private {
		if err := d.freeHeld(p); err != nil {
			return err
		}
	}
	return nil
}

// freeHeld gives the freed blocks that captures allocated with caching off back to the device, when no graph writes to them any more. After an error of the
// backend those not yet returned stay.
func (d *Device) freeHeld(p *privatePool) error {
	for i := len(p.uncached) - 1; i >= 0; i-- {
		b := p.uncached[i]
		if b.allocated {
			continue
		}
		if err := d.backend.Free(b.addr); err != nil {
			return err
		}
		p.uncached = slices.Delete(p.uncached, i, i+1)
	}
	return nil
}
