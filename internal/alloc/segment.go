package alloc

import (
	"cmp"
	"slices"
)

// segment is one allocation of the device, or one range of addresses whose pages are mapped on demand.
type segment struct {
	addr    uint64
	size    uint64 // bytes; of an expandable segment those of its address range
	page    uint64 // bytes of one page of an expandable segment; 0 for any other
	silo    *silo
	head    *Block // the block at addr
	context any    // of the allocation that made it

	oversize bool // counted in Stats.OversizeSegments
}

func segmentByAddr(s *segment, addr uint64) int { return cmp.Compare(s.addr, addr) }

func (d *Device) addSegment(s *segment) {
	i, _ := slices.BinarySearchFunc(d.segments, s.addr, segmentByAddr)
	d.segments = slices.Insert(d.segments, i, s)
}

func (d *Device) dropSegment(s *segment) {
	if i, ok := slices.BinarySearchFunc(d.segments, s.addr, segmentByAddr); ok {
		d.segments = slices.Delete(d.segments, i, i+1)
	}
}

// blockAt returns the allocated block that holds addr, or nil.
func (d *Device) blockAt(addr uint64) *Block {
	i, ok := slices.BinarySearchFunc(d.segments, addr, segmentByAddr)
	if !ok {
		i--
	}
	if i < 0 || addr-d.segments[i].addr >= d.segments[i].size {
		return nil
	}
	b := d.segments[i].head
	for addr >= b.addr+b.size {
		b = b.next
	}
	if !b.allocated {
		return nil
	}
	return b
}

// BlockAt returns the live block that holds the device address addr, which need not be its first byte.
func (d *Device) BlockAt(addr uint64) (*Block, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.blockAt(addr)
	return b, b != nil
}

// newSegment asks the device for a segment for r. nil without an error means there is no room, in the device or within the
// memory fraction. It may drop the lock.
func (d *Device) newSegment(r *request) (*Block, error) {
	if d.fractionSet && d.reserved+r.segment > d.allowed {
		return nil, nil
	}
	source := r.silo.pool.source()
	if d.expand && source == nil {
		return d.growExpandable(r)
	}
	addr, err := d.malloc(source, r.segment, r.silo.stream)
	if isOutOfMemory(err) {
		r.refusal = err
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	seg := &segment{addr: addr, size: r.segment, silo: r.silo, context: r.context, oversize: r.segment >= d.settings.MaxSplitSize}
	seg.head = d.newBlock(seg, r.silo, addr, r.segment)
	d.addSegment(seg)
	kind := r.silo.pool.kind
	if p := r.silo.pool.private; p != nil {
		p.reserved += r.segment
	}
	d.reserved += r.segment
	d.stats.Segment.add(kind, 1)
	d.stats.ReservedBytes.add(kind, int64(r.segment))
	if seg.oversize {
		d.stats.OversizeSegments.add(1)
	}
	d.stats.DeviceAllocs++
	d.record(ActionSegmentAlloc, addr, r.segment, r.silo.stream, r.context)
	return seg.head, nil
}

// malloc calls the backend or the pool's source, without the lock if the settings say so.
func (d *Device) malloc(source Source, size uint64, s Stream) (uint64, error) {
	if d.settings.ReleaseLock {
		d.mu.Unlock()
		defer d.mu.Lock()
	}
	if source != nil {
		return source.Malloc(size, s)
	}
	return d.backend.Malloc(size)
}

// release returns the segment of b, which is free and not split, to the device.
func (d *Device) release(b *Block, context any) error {
	p := b.silo.pool
	var err error
	if source := p.source(); source != nil {
		err = source.Free(b.addr, b.size, b.silo.stream)
	} else {
		err = d.backend.Free(b.addr)
	}
	if err != nil {
		return err
	}
	d.record(ActionSegmentFree, b.addr, b.size, b.silo.stream, either(context, b.seg.context))
	b.silo.free.remove(b)
	d.dropSegment(b.seg)
	if p.private != nil {
		p.private.reserved -= b.size
	}
	d.reserved -= b.size
	d.stats.Segment.sub(p.kind, 1)
	d.stats.ReservedBytes.sub(p.kind, int64(b.size))
	if b.seg.oversize {
		d.stats.OversizeSegments.sub(1)
	}
	d.stats.DeviceFrees++
	d.retire(b)
	return nil
}

// releasePool returns every unsplit free block of p, and every whole free page, to the device.
func (d *Device) releasePool(p *pool, context any) error {
	var pages []*Block
	for _, b := range p.freeBlocks() {
		if b.expandable() {
			pages = append(pages, b) // later: unmapping merges blocks
		} else if !b.isSplit() {
			if err := d.release(b, context); err != nil {
				return err
			}
		}
	}
	for _, b := range pages {
		if err := d.unmapBlock(b, context); err != nil {
			return err
		}
	}
	for _, l := range p.silos {
		for _, b := range slices.Clone(l.unmapped) {
			if err := d.releaseRange(b.seg); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush is EmptyCache under the lock, and a rung of the ladder.
func (d *Device) flush(context any) error {
	if len(d.diversions) == 0 {
		if err := d.synchronize(nil, context); err != nil {
			return err
		}
	}
	if err := d.releasePool(&d.large, context); err != nil {
		return err
	}
	if err := d.releasePool(&d.small, context); err != nil {
		return err
	}
	for _, p := range slices.Clone(d.private) {
		if p.uses > 0 {
			continue
		}
		if err := d.releasePrivate(p, context); err != nil {
			return err
		}
	}
	return nil
}

// releasePrivate returns what p has free to the device, and deletes p if no one holds it and nothing is left in it.
func (d *Device) releasePrivate(p *privatePool, context any) error {
	if err := d.releasePool(&p.small, context); err != nil {
		return err
	}
	if err := d.releasePool(&p.large, context); err != nil {
		return err
	}
	if p.uses > 0 {
		return nil
	}
	if err := d.freeHeld(p); err != nil {
		return err
	}
	if p.reserved == 0 && d.divertedTo(p.id) < 0 {
		d.dropPrivate(p)
	}
	return nil
}
