package alloc

import (
	"slices"

	"tenon.dev/fault"
)

// Adopt takes over segments that the device holds already, block for block as Segments describes them, and returns their live
// blocks in order: a replay of a history that begins in the middle starts so. The backend is not called, and nothing enters the
// trace; the statistics count what is adopted as if it had just been allocated. Blocks pending free are taken as live. A run of
// pages of an expandable segment becomes an ordinary segment. Each private pool gains one use. Segments that do not fit
// together, or overlap what is held, are an error; those before them are kept.
func (d *Device) Adopt(segments []SegmentInfo) ([]*Block, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var live []*Block
	retained := map[PoolID]*privatePool{}
	for i := range segments {
		s := &segments[i]
		if err := d.adoptable(s); err != nil {
			return live, err
		}
		var private *privatePool
		if s.Pool != (PoolID{}) {
			if private = retained[s.Pool]; private == nil {
				var err error
				if private, err = d.retain(s.Pool); err != nil {
					return live, err
				}
				retained[s.Pool] = private
			}
		}
		live = d.adopt(s, private, live)
	}
	return live, nil
}

// adoptable checks that the blocks of s fill it and that it overlaps no other segment.
func (d *Device) adoptable(s *SegmentInfo) error {
	at := s.Addr
	for i := range s.Blocks {
		b := &s.Blocks[i]
		if b.Addr != at || b.Size == 0 || b.Size%minBlockSize != 0 || b.State != Inactive && (b.Requested == 0 || b.Requested > b.Size) {
			return fault.New(fault.Invalid, "block %#x of %d bytes does not fit into the segment at %#x, which goes on at %#x", b.Addr, b.Size, s.Addr, at)
		}
		at += b.Size
	}
	if at != s.Addr+s.TotalSize || at == s.Addr {
		return fault.New(fault.Invalid, "the blocks of the segment at %#x hold %d bytes, the segment %d", s.Addr, at-s.Addr, s.TotalSize)
	}
	i, ok := slices.BinarySearchFunc(d.segments, s.Addr, segmentByAddr)
	if ok || i > 0 && d.segments[i-1].addr+d.segments[i-1].size > s.Addr || i < len(d.segments) && d.segments[i].addr < at {
		return fault.New(fault.Invalid, "the segment of %d bytes at %#x overlaps another", s.TotalSize, s.Addr)
	}
	return nil
}

// adopt makes one segment and appends its live blocks.
func (d *Device) adopt(s *SegmentInfo, private *privatePool, live []*Block) []*Block {
	kind, p := smallPool, &d.small
	switch {
	case private != nil && s.Large:
		p = &private.large
	case private != nil:
		p = &private.small
	case s.Large:
		p = &d.large
	}
	if s.Large {
		kind = largePool
	}
	l, st := p.silo(s.Stream), &d.stats
	seg := &segment{addr: s.Addr, size: s.TotalSize, silo: l, context: s.Context}
	d.addSegment(seg)
	d.reserved += s.TotalSize
	st.Segment.add(kind, 1)
	st.ReservedBytes.add(kind, int64(s.TotalSize))
	if private != nil {
		private.reserved += s.TotalSize
	}
	if s.TotalSize >= d.settings.MaxSplitSize {
		st.OversizeSegments.add(1)
	}
	var last *Block
	for i := range s.Blocks {
		info := &s.Blocks[i]
		b := d.newBlock(seg, l, info.Addr, info.Size)
		b.requested, b.context, b.prev = info.Requested, info.Context, last
		if last == nil {
			seg.head = b
		} else {
			last.next = b
		}
		last = b
		n := int64(b.size)
		if info.State == Inactive {
			l.insertFree(b)
			if len(s.Blocks) > 1 {
				st.InactiveSplit.add(kind, 1)
				st.InactiveSplitBytes.add(kind, n)
			}
			continue
		}
		b.allocated = true
		st.Allocation.add(kind, 1)
		st.AllocatedBytes.add(kind, n)
		st.Active.add(kind, 1)
		st.ActiveBytes.add(kind, n)
		st.RequestedBytes.add(kind, int64(b.requested))
		if b.size >= d.settings.MaxSplitSize {
			st.OversizeAllocations.add(1)
		}
		live = append(live, b)
	}
	return live
}
