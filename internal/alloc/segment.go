package alloc

import (
	"cmp"
	"slices"
)

// segment is one allocation of the device, or one range of addresses whose pages are mapped on demand.
type segment struct {
	addr    uint64
	size    uint64 // bytes; for an expandable segment those of its address range
	page    uint64 // bytes of one page of an expandable segment; 0 for any other
	silo    *silo
	head    *Block // the block at addr
	context any    // of the allocation that made it

	oversize bool // counted in Stats.OversizeSegments
}

func segmentByAddr(s *segment, addr uint64) int { return cmp.Compare(s.addr, addr) }

func (c *caching) addSegment(s *segment) {
	i, _ := slices.BinarySearchFunc(c.segments, s.addr, segmentByAddr)
	c.segments = slices.Insert(c.segments, i, s)
}

func (c *caching) dropSegment(s *segment) {
	if i, ok := slices.BinarySearchFunc(c.segments, s.addr, segmentByAddr); ok {
		c.segments = slices.Delete(c.segments, i, i+1)
	}
}

// blockAt returns the allocated block that holds addr, or nil.
func (c *caching) blockAt(addr uint64) *Block {
	i, ok := slices.BinarySearchFunc(c.segments, addr, segmentByAddr)
	if !ok {
		i--
	}
	if i < 0 || addr-c.segments[i].addr >= c.segments[i].size {
		return nil
	}
	b := c.segments[i].head
	for addr >= b.addr+b.size {
		b = b.next
	}
	if !b.allocated {
		return nil
	}
	return b
}

// BlockAt returns the live block that holds the device address addr, which need not be its first byte.
func (c *caching) BlockAt(addr uint64) (*Block, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blockAt(addr)
	return b, b != nil
}

// newSegment asks the device for a segment for r. nil without an error means there is no room, in the device or within the
// memory fraction. It may drop the lock.
func (c *caching) newSegment(r *request) (*Block, error) {
	if r.silo.pool.expandsAlone() {
		return c.growExpandable(r) // which looks at the fraction itself
	}
	if c.expand && r.silo.pool.source() == nil {
		if c.fractionSet && c.reserved+r.segment > c.allowed { // as PyTorch counts, which is not what pages hold
			return nil, nil
		}
		return c.growExpandable(r)
	}
	return c.ordinarySegment(r)
}

// ordinarySegment is newSegment where memory does not come in expandable segments.
func (c *caching) ordinarySegment(r *request) (*Block, error) {
	if c.fractionSet && c.reserved+r.segment > c.allowed {
		return nil, nil
	}
	source := r.silo.pool.source()
	addr, err := c.malloc(source, r.segment, r.silo.stream)
	if isOutOfMemory(err) {
		r.refusal = err
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	seg := &segment{addr: addr, size: r.segment, silo: r.silo, context: r.context, oversize: r.segment >= c.settings.MaxSplitSize}
	seg.head = c.newBlock(seg, r.silo, addr, r.segment)
	c.addSegment(seg)
	kind := r.silo.pool.kind
	if p := r.silo.pool.private; p != nil {
		p.reserved += r.segment
	}
	c.reserved += r.segment
	c.stats.add(statSegments, kind, 1)
	c.stats.add(statReservedBytes, kind, int64(r.segment))
	if seg.oversize {
		c.stats.OversizeSegments.add(1)
	}
	c.stats.DeviceAllocs++
	c.record(ActionSegmentAlloc, addr, r.segment, r.silo.stream, r.context)
	return seg.head, nil
}

// malloc calls the backend or the pool's source, without the lock if the settings say so.
func (c *caching) malloc(source Source, size uint64, s Stream) (uint64, error) {
	if c.settings.ReleaseLock {
		c.mu.Unlock()
		defer c.mu.Lock()
	}
	if source != nil {
		return source.Malloc(size, s)
	}
	return c.backend.Malloc(size)
}

// release returns the segment of b, which is free and not split, to the device.
func (c *caching) release(b *Block, context any) error {
	p := b.silo.pool
	var err error
	if source := p.source(); source != nil {
		err = source.Free(b.addr, b.size, b.silo.stream)
	} else {
		err = c.backend.Free(b.addr)
	}
	if err != nil {
		return err
	}
	c.record(ActionSegmentFree, b.addr, b.size, b.silo.stream, either(context, b.seg.context))
	b.silo.free.remove(b)
	c.dropSegment(b.seg)
	if p.private != nil {
		p.private.reserved -= b.size
	}
	c.reserved -= b.size
	c.stats.sub(statSegments, p.kind, 1)
	c.stats.sub(statReservedBytes, p.kind, int64(b.size))
	if b.seg.oversize {
		c.stats.OversizeSegments.sub(1)
	}
	c.stats.DeviceFrees++
	c.retire(b)
	return nil
}

// releasePool returns every unsplit free block of p, and every whole free page, to the device.
func (c *caching) releasePool(p *pool, context any) error {
	var pages []*Block
	for _, b := range p.freeBlocks() {
		if b.expandable() {
			pages = append(pages, b) // later: unmapping merges blocks
		} else if !b.isSplit() {
			if err := c.release(b, context); err != nil {
				return err
			}
		}
	}
	for _, b := range pages {
		if err := c.unmapBlock(b, context); err != nil {
			return err
		}
	}
	for _, l := range p.silos {
		for _, b := range slices.Clone(l.unmapped) {
			if err := c.releaseRange(b.seg); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush is EmptyCache under the lock, and a rung of the ladder.
func (c *caching) flush(context any) error {
	if len(c.diversions) == 0 {
		if err := c.synchronize(nil, context); err != nil {
			return err
		}
	}
	if err := c.releasePool(&c.large, context); err != nil {
		return err
	}
	if err := c.releasePool(&c.small, context); err != nil {
		return err
	}
	for _, p := range slices.Clone(c.private) {
		if p.uses > 0 {
			continue
		}
		if err := c.releasePrivate(p, context); err != nil {
			return err
		}
	}
	return nil
}

// releasePrivate returns the free memory of p to the device, and deletes p if no one holds it and nothing is left in it.
func (c *caching) releasePrivate(p *privatePool, context any) error {
	if err := c.releasePool(&p.small, context); err != nil {
		return err
	}
	if err := c.releasePool(&p.large, context); err != nil {
		return err
	}
	if err := c.freeUncached(p, p.uses == 0); err != nil || p.uses > 0 {
		return err
	}
	if p.reserved == 0 && len(p.uncached) == 0 && c.divertedTo(p.id) < 0 {
		c.dropPrivate(p)
	}
	return nil
}
