package alloc

import (
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
	if err != nil && uncached { // a failed free leaves the block live; any other is dead
		e.block.inTable = true
		e.device.options.Table.add(e.device, e.block)
	}
	return err
}

// SetCaching switches the cache off or on again. While it is off, allocations go straight to the device and back, count in
// no statistics, and are an error in a capture. Blocks keep the way they were allocated.
func (d *Device) SetCaching(on bool) { d.uncached.Store(!on) }

// allocUncached is Alloc with caching off.
func (d *Device) allocUncached(size uint64, s Stream, context any) (*Block, error) {
	if _, capturing := d.backend.Capturing(s); capturing {
		return nil, fault.New(fault.Capture, "memory cannot be allocated in a capture while caching is off; switch it on with SetCaching")
	}
	addr, err := d.backend.Malloc(size)
	if err != nil {
		if isOutOfMemory(err) {
			return nil, fault.Wrap(fault.OutOfMemory, err, "CUDA out of memory. Tried to allocate %s", FormatSize(size))
		}
		return nil, err
	}
	return &Block{addr: addr, size: size, requested: size, silo: &silo{pool: &pool{}, stream: s}, mapped: true, allocated: true,
		context: context}, nil
}

// freeUncached frees a block of allocUncached. The device waits for its work by itself.
func (d *Device) freeUncached(b *Block) error {
	if err := d.backend.Free(b.addr); err != nil {
		return err
	}
	if b.inTable {
		b.inTable = false
		d.options.Table.remove(b.addr)
	}
	b.allocated = false
	return nil
}
