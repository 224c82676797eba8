package alloc

// Block is a piece of one segment: the handle of an allocation. The device's lock guards its fields, but Addr, Size, Requested, Stream and
// Pool may be read without it by the block's owner, from Alloc until Free. After Free the handle is dead: the allocator gives the same
// Block to later callers.
type Block struct {
	addr      uint64
	size      uint64 // bytes, rounded; more if the block was not split
	requested uint64 // the caller's bytes; in a free block those of its last owner

	silo       *silo    // the free list it belongs to for life: pool and stream
	seg        *segment // nil with caching off and under the back end cudaMallocAsync
	prev, next *Block   // neighbours in the segment, by address

	left, right *Block // children in the silo's tree while free
	rank        uint8  // height in that tree, drawn once

	allocated bool
	oversize  bool // counted in Stats.OversizeAllocations while allocated
	mapped    bool // false only for the address space of an expandable segment without memory behind it
	inTable   bool // reachable by address through the Table
	captured  bool // under cudaMallocAsync the graph owns it, with caching off the graph writes to it

	events      int32    // recorded and not yet seen complete
	uses        []Stream // further streams that use it, to be waited for after Free
	captureUses []Stream // those of them that were being captured
	ageBase     uint64   // the pool's lookup count when it entered the free list

	context any // of the allocation; nil where none is recorded
}

// Addr returns the device address.
func (b *Block) Addr() uint64 { return b.addr }

// Size returns the bytes the block spans, at least Requested and a multiple of 512.
func (b *Block) Size() uint64 { return b.size }

// Requested returns the bytes the caller asked for.
func (b *Block) Requested() uint64 { return b.requested }

// Stream returns the stream the block's segment was allocated for, on which it may be used without RecordStream.
func (b *Block) Stream() Stream { return b.silo.stream }

// Pool returns the id of the private pool the block belongs to, or the zero PoolID for the default pool.
func (b *Block) Pool() PoolID { return b.silo.pool.id() }

// Context returns what the context collector returned when the block was allocated, or nil.
func (b *Block) Context() any { return b.context }

// isSplit says whether the block shares its segment with others. Only an unsplit block can go back to the device.
func (b *Block) isSplit() bool { return b.prev != nil || b.next != nil }

// isFree says whether the block can be handed out or merged: not allocated and not waiting for another stream.
func (b *Block) isFree() bool { return !b.allocated && b.events == 0 && len(b.uses) == 0 }

// active says whether the block counts as active in snapshots.
func (b *Block) active() bool { return !b.isFree() }

// expandable says whether the block belongs to an expandable segment.
func (b *Block) expandable() bool { return b.seg.page != 0 }

// newBlock returns a cleared block, and reuses a dead one if there is one: splitting must not allocate.
func (m *books) newBlock(seg *segment, l *silo, addr, size uint64) *Block {
	b := m.spare
	if b != nil {
		m.spare = b.next
		b.next = nil
	} else {
		b = &Block{rank: m.drawRank()}
	}
	b.seg, b.silo, b.addr, b.size, b.mapped = seg, l, addr, size, true
	return b
}

// retire puts a block that left its segment on the list of spare ones.
func (m *books) retire(b *Block) {
	*b = Block{rank: b.rank, uses: b.uses[:0], captureUses: b.captureUses[:0], next: m.spare}
	m.spare = b
}

// splitFront cuts the first size bytes off b, which is in no free list, and returns them as a new block before it.
// b keeps its requested size, as in PyTorch, where snapshots show it.
func (c *caching) splitFront(b *Block, size uint64) *Block {
	front := c.newBlock(b.seg, b.silo, b.addr, size)
	front.mapped = b.mapped
	front.prev, front.next = b.prev, b
	if front.prev != nil {
		front.prev.next = front
	} else {
		b.seg.head = front
	}
	b.prev = front
	b.addr += size
	b.size -= size
	return front
}

// splitBack cuts b down to its first size bytes and returns the rest as a new block after it. Neither is in a free list.
func (c *caching) splitBack(b *Block, size uint64) *Block {
	back := c.newBlock(b.seg, b.silo, b.addr+size, b.size-size)
	back.mapped = b.mapped
	back.prev, back.next = b, b.next
	if back.next != nil {
		back.next.prev = back
	}
	b.next = back
	b.size = size
	return back
}

// absorb merges neighbour o into b, which is in no free list, if o is free and equally mapped. It returns the bytes won.
func (c *caching) absorb(b, o *Block) uint64 {
	if o == nil || !o.isFree() || o.mapped != b.mapped {
		return 0
	}
	if o.mapped {
		o.silo.free.remove(o)
	} else {
		o.silo.removeUnmapped(o)
	}
	if b.prev == o {
		b.addr = o.addr
		b.prev = o.prev
		if b.prev != nil {
			b.prev.next = b
		} else {
			b.seg.head = b
		}
	} else {
		b.next = o.next
		if b.next != nil {
			b.next.prev = b
		}
	}
	size := o.size
	b.size += size
	c.retire(o)
	return size
}
