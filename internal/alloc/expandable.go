package alloc

// An expandable segment is a large range of addresses, one per stream and pool, in which physical pages are mapped as blocks
// need them. What is not mapped yet is a block too, with mapped false, so that a free block before it can grow into it.
// (PyTorch: c10/cuda/CUDACachingAllocator.cpp, Note [expandable_segments].)

// fitExpandable returns the best fit among expandable blocks, where a block's size includes the address space behind it into which it can
// grow. b is the smallest block that is large enough. If the setting has been switched off since, it skips expandable blocks.
func (c *caching) fitExpandable(l *silo, b *Block) *Block {
	if !c.expands(l.pool) {
		for b != nil && b.expandable() {
			b = l.free.over(b)
		}
		return b
	}
	room := func(b *Block) uint64 {
		if b.next != nil && !b.next.mapped {
			return b.size + b.next.size
		}
		return b.size
	}
	for b.expandable() {
		next := l.free.over(b)
		if next == nil || room(next) >= room(b) {
			break
		}
		b = next
	}
	return b
}

// growExpandable maps pages until there is a block of r.size, and returns it, in no list. nil without an error means that the device has no
// room; the pages mapped so far stay in the cache.
func (c *caching) growExpandable(r *request) (*Block, error) {
	b, err := c.findGrowable(r)
	if isOutOfMemory(err) {
		if !c.expand { // a program with a thousand compiled regions may have no addresses left for another range
			return c.ordinarySegment(r)
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if b.seg.addr+b.seg.size-b.addr < r.size { // more than the device has
		return nil, nil
	}
	if !b.mapped {
		if ok, err := c.mapBlock(b, min(b.size, r.size), r.context); !ok {
			return nil, err
		}
	}
	for b.size < r.size { // b is free, and what follows is not mapped
		next := b.next
		if ok, err := c.mapBlock(next, min(r.size-b.size, next.size), r.context); !ok {
			return nil, err
		}
		b = next // it has absorbed the old b
	}
	b.silo.free.remove(b)
	return b, nil
}

// findGrowable returns the lowest block at which free and unmapped space together hold r.size, and makes a segment if there is none.
func (c *caching) findGrowable(r *request) (*Block, error) {
	for _, b := range r.silo.unmapped {
		if b.prev != nil && b.prev.isFree() {
			b = b.prev
		}
		var room uint64
		for n := b; n != nil && n.isFree() && room < r.size; n = n.next {
			room += n.size
		}
		if room >= r.size {
			return b, nil
		}
	}
	total, err := c.deviceTotal()
	if err != nil {
		return nil, err
	}
	page := c.pageSize(r.silo)
	size := rangeSize(total, page)
	addr, err := c.virtual.Reserve(size)
	if err != nil {
		return nil, err
	}
	seg := &segment{addr: addr, size: size, page: page, silo: r.silo}
	seg.head = c.newBlock(seg, r.silo, addr, size)
	seg.head.mapped = false
	r.silo.insertUnmapped(seg.head)
	c.addSegment(seg)
	return seg.head, nil
}

// pageSize returns the bytes of a page of l's expandable segments.
func (c *caching) pageSize(l *silo) uint64 {
	if l.pool.kind == smallPool || l.pool.expandsAlone() && c.total < smallDevice {
		return smallBuffer
	}
	return largeBuffer
}

// smallDevice is the memory below which a device, which is a simulated one, has no large pages to spare for pools that expand alone.
const smallDevice = 2 << 30

// rangeSize returns the bytes of the address range of an expandable segment on a device of total bytes.
func rangeSize(total, page uint64) uint64 { return (total + total/8 + page - 1) / page * page }

// mapBlock maps the pages that hold the first size bytes of b, which is unmapped, and returns it merged with its free
// neighbours to the free list. false without an error means that the device has no room; nothing has changed then.
func (c *caching) mapBlock(b *Block, size uint64, context any) (bool, error) {
	page := b.seg.page
	size = (size + page - 1) / page * page
	addr := b.addr
	if c.fractionSet && b.silo.pool.expandsAlone() && c.reserved+size > c.allowed {
		return false, nil
	}
	for at := addr; at < addr+size; at += page {
		err := c.virtual.MapPage(at, page)
		if err == nil {
			continue
		}
		for undo := addr; undo < at; undo += page {
			if e := c.virtual.UnmapPage(undo, page); e != nil {
				c.mapped(b, undo, at-undo, context) // pages that cannot be unmapped are cached
				return false, e
			}
		}
		if isOutOfMemory(err) {
			return false, nil
		}
		return false, err
	}
	c.mapped(b, addr, size, context)
	return true, nil
}

// mapped turns size bytes at addr of b, which is unmapped, into a free block, merged with its free neighbours.
func (c *caching) mapped(b *Block, addr, size uint64, context any) {
	l := b.silo
	l.removeUnmapped(b)
	if addr > b.addr {
		l.insertUnmapped(c.splitFront(b, addr-b.addr))
	}
	if b.size > size {
		l.insertUnmapped(c.splitBack(b, size))
	}
	b.mapped = true
	c.absorb(b, b.prev)
	c.absorb(b, b.next)
	l.insertFree(b)
	if b.seg.context == nil {
		b.seg.context = context
	}
	if p := l.pool.private; p != nil {
		p.reserved += size
	}
	c.reserved += size
	c.stats.add(statReservedBytes, l.pool.kind, int64(size))
	c.stats.DeviceAllocs++
	c.record(ActionSegmentMap, addr, size, l.stream, context)
}

// unmapBlock gives the whole pages of b, a free block of an expandable segment, back to the device.
func (c *caching) unmapBlock(b *Block, context any) error {
	seg := b.seg
	page := seg.page
	from := seg.addr + (b.addr-seg.addr+page-1)/page*page
	to := seg.addr + (b.addr+b.size-seg.addr)/page*page
	if from >= to {
		return nil
	}
	if err := c.virtual.SyncStream(b.silo.stream); err != nil {
		return err
	}
	var failed error
	for at := from; at < to; at += page {
		if failed = c.virtual.UnmapPage(at, page); failed != nil {
			to = at
		}
	}
	if from < to {
		c.unmapped(b, from, to-from, context)
	}
	return failed
}

// unmapped turns size bytes at addr of b, which is free, into address space, merged with its neighbours.
func (c *caching) unmapped(b *Block, addr, size uint64, context any) {
	l := b.silo
	l.free.remove(b)
	if addr > b.addr {
		l.insertFree(c.splitFront(b, addr-b.addr))
	}
	if b.size > size {
		l.insertFree(c.splitBack(b, size))
	}
	b.mapped = false
	c.absorb(b, b.prev)
	c.absorb(b, b.next)
	l.insertUnmapped(b)
	if p := l.pool.private; p != nil {
		p.reserved -= size
	}
	c.reserved -= size
	c.stats.sub(statReservedBytes, l.pool.kind, int64(size))
	c.stats.DeviceFrees++
	c.record(ActionSegmentUnmap, addr, size, l.stream, either(context, b.seg.context))
}

// releaseRange gives the address range of seg, an expandable segment, back if nothing is mapped in it.
func (c *caching) releaseRange(seg *segment) error {
	b := seg.head
	if b.mapped || b.isSplit() {
		return nil
	}
	if err := c.virtual.Unreserve(seg.addr, seg.size); err != nil {
		return err // the range stays usable
	}
	b.silo.removeUnmapped(b)
	c.dropSegment(seg)
	c.retire(b)
	return nil
}
