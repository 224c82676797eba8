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
	blocks map[uint64]*Block
}

func (t *Table) shard(addr uint64) *shard { return &t.shards[addr/minBlockSize%shards] }

func (t *Table) add(b *Block) {
	s := t.shard(b.addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blocks == nil {
		s.blocks = make(map[uint64]*Block)
	}
	s.blocks[b.addr] = b
}

func (t *Table) remove(addr uint64) (*Block, bool) {
	s := t.shard(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.blocks[addr]
	delete(s.blocks, addr)
	return b, ok
}

// Find returns the raw allocation that begins at addr.
func (t *Table) Find(addr uint64) (*Block, bool) {
	s := t.shard(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.blocks[addr]
	return b, ok
}

// RawAlloc is Alloc for callers that keep only the address; RawFree ends it. Size 0 gives address 0.
func (d *Device) RawAlloc(size uint64, s Stream) (uint64, error) {
	b, err := d.Alloc(size, s)
	if b == nil {
		return 0, err
	}
	b.inTable = true
	d.options.Table.add(b)
	return b.addr, nil
}

// RawHeld reports whether addr is a live raw allocation, of any device that shares d's Table.
func (d *Device) RawHeld(addr uint64) bool {
	_, ok := d.options.Table.Find(addr)
	return ok
}

// RawLive describes the live raw allocations, of all devices that share d's Table.
func (d *Device) RawLive() (infos []BlockInfo) {
	for i := range d.options.Table.shards {
		infos = append(infos, d.options.Table.shards[i].live()...)
	}
	return infos
}

func (s *shard) live() []BlockInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return described(s.blocks)
}

// RawFree ends a raw allocation, of any device that shares d's Table. Address 0 does nothing.
func (d *Device) RawFree(addr uint64) error {
	if addr == 0 {
		return nil
	}
	b, ok := d.options.Table.remove(addr)
	if !ok {
		return fault.New(fault.Invalid, "invalid device pointer: %#x; free only what RawAlloc returned, and once", addr)
	}
	b.inTable = false
	of := b.silo.pool.of // d's or another device's
	n, uncached := of.(*direct)
	err := of.Free(b)
	if err != nil && uncached && n.live(b) { // any other block is dead after a failed free
		b.inTable = true
		d.options.Table.add(b)
	}
	return err
}
