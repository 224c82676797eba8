package alloc

import (
	"math"
	"slices"

	"tenon.dev/fault"
)

// Adopt takes over segments that the device holds already, by address and block for block as Segments describes them, and returns their
// live blocks in order. A replay of a history that begins in the middle starts this way. It does not call the backend and adds nothing to
// the trace; the statistics count the adopted memory as if it had just been allocated. Blocks pending free are treated as live. Runs of
// pages of one stream and pool with no other segment between them become one expandable segment. Its range continues behind them as far as
// a new segment's would, but not into the next segment; a run of 0 bytes marks the start of a range that begins before its first page. If
// the backend maps no pages, the runs become ordinary segments. Each private pool gains one use. Segments that do not fit together, or
// overlap a segment that is held, are an error; those before them are kept.
func (c *caching) Adopt(segments []SegmentInfo) ([]*Block, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var live []*Block
	retained := map[PoolID]*privatePool{}
	for len(segments) > 0 {
		s := &segments[0]
		var private *privatePool
		if s.Pool != (PoolID{}) {
			if private = retained[s.Pool]; private == nil {
				var err error
				if private, err = c.retain(s.Pool); err != nil {
					return live, err
				}
				retained[s.Pool] = private
			}
		}
		l, n, total := c.adoptiveSilo(s, private), 1, uint64(0)
		mapped := s.Expandable && c.virtual != nil
		if mapped {
			var err error
			if total, err = c.deviceTotal(); err != nil {
				return live, err
			}
			n = rangeLength(segments, c.pageSize(l))
		}
		for i := range segments[:n] {
			if err := c.adoptable(&segments[i]); err != nil {
				return live, err
			}
			if i > 0 && segments[i].Addr < segments[i-1].Addr+segments[i-1].TotalSize {
				return live, overlaps(&segments[i])
			}
		}
		if mapped {
			limit := uint64(math.MaxUint64)
			if len(segments) > n {
				limit = segments[n].Addr
			}
			live = c.adoptRange(segments[:n], l, rangeSize(total, c.pageSize(l)), limit, live)
		} else {
			seg := &segment{addr: s.Addr, size: s.TotalSize, silo: l, context: s.Context, oversize: s.TotalSize >= c.settings.MaxSplitSize}
			c.stats.add(statSegments, l.pool.kind, 1)
			if seg.oversize {
				c.stats.OversizeSegments.add(1)
			}
			c.addSegment(seg)
			_, live = c.adopt(seg, nil, s, live)
		}
		segments = segments[n:]
	}
	return live, nil
}

// rangeLength returns how many of the segments, from the first on, are runs of pages of this size in one expandable segment.
func rangeLength(segments []SegmentInfo, page uint64) int {
	first := &segments[0]
	n := 1
	for n < len(segments) {
		s := &segments[n]
		if !s.Expandable || s.Stream != first.Stream || s.Pool != first.Pool || s.Large != first.Large || (s.Addr-first.Addr)%page != 0 {
			break
		}
		n++
	}
	return n
}

// adoptable checks that the blocks of s fill it and that it overlaps no other segment.
func (c *caching) adoptable(s *SegmentInfo) error {
	if s.Expandable && c.virtual != nil && s.TotalSize == 0 && len(s.Blocks) == 0 {
		return nil // where a range begins
	}
	at := s.Addr
	for i := range s.Blocks {
		b := &s.Blocks[i]
		if b.Addr != at || b.Size == 0 || b.Size%minBlockSize != 0 || b.State != Inactive && (b.Requested == 0 || b.Requested > b.Size) {
			return fault.New(fault.Invalid, "block %#x of %d bytes does not fit into the segment at %#x, which goes on at %#x", b.Addr,
				b.Size, s.Addr, at)
		}
		at += b.Size
	}
	if at != s.Addr+s.TotalSize || at == s.Addr {
		return fault.New(fault.Invalid, "the blocks of the segment at %#x hold %d bytes, the segment %d", s.Addr, at-s.Addr, s.TotalSize)
	}
	i, ok := slices.BinarySearchFunc(c.segments, s.Addr, segmentByAddr)
	if ok || i > 0 && c.segments[i-1].addr+c.segments[i-1].size > s.Addr || i < len(c.segments) && c.segments[i].addr < at {
		return overlaps(s)
	}
	return nil
}

func overlaps(s *SegmentInfo) error {
	return fault.New(fault.Invalid, "the segment of %d bytes at %#x overlaps another", s.TotalSize, s.Addr)
}

// adoptiveSilo returns the silo for the blocks of s.
func (c *caching) adoptiveSilo(s *SegmentInfo, private *privatePool) *silo {
	p := &c.small
	switch {
	case private != nil && s.Large:
		p = &private.large
	case private != nil:
		p = &private.small
	case s.Large:
		p = &c.large
	}
	return p.silo(s.Stream)
}

// adoptRange makes one expandable segment of runs of pages. It ends before limit.
func (c *caching) adoptRange(runs []SegmentInfo, l *silo, size, limit uint64, live []*Block) []*Block {
	first, last := &runs[0], &runs[len(runs)-1]
	seg := &segment{addr: first.Addr, page: c.pageSize(l), silo: l, context: first.Context}
	if i, _ := slices.BinarySearchFunc(c.segments, last.Addr, segmentByAddr); i < len(c.segments) {
		limit = min(limit, c.segments[i].addr)
	}
	mapped := last.Addr + last.TotalSize - first.Addr
	seg.size = max(min(size, limit-first.Addr), mapped)
	seg.size -= (seg.size - mapped) % seg.page
	c.addSegment(seg)
	var end *Block
	at := seg.addr
	for i := range runs {
		if s := &runs[i]; s.TotalSize > 0 {
			end = c.adoptUnmapped(seg, end, at, s.Addr)
			end, live = c.adopt(seg, end, s, live)
			at = s.Addr + s.TotalSize
		}
	}
	c.adoptUnmapped(seg, end, at, seg.addr+seg.size)
	return live
}

// adoptUnmapped appends the address space from..to behind block last of seg and returns the segment's last block.
func (c *caching) adoptUnmapped(seg *segment, last *Block, from, to uint64) *Block {
	if from == to {
		return last
	}
	b := c.appendBlock(seg, last, from, to-from)
	b.mapped = false
	seg.silo.insertUnmapped(b)
	return b
}

// appendBlock makes a block behind last, or at the head of seg.
func (c *caching) appendBlock(seg *segment, last *Block, addr, size uint64) *Block {
	b := c.newBlock(seg, seg.silo, addr, size)
	b.prev = last
	if last == nil {
		seg.head = b
	} else {
		last.next = b
	}
	return b
}

// adopt appends the blocks of s to seg, behind last, and returns its last block and the live ones appended to live.
func (c *caching) adopt(seg *segment, last *Block, s *SegmentInfo, live []*Block) (*Block, []*Block) {
	l, st := seg.silo, &c.stats
	kind := l.pool.kind
	c.reserved += s.TotalSize
	st.add(statReservedBytes, kind, int64(s.TotalSize))
	if l.pool.private != nil {
		l.pool.private.reserved += s.TotalSize
	}
	for i := range s.Blocks {
		info := &s.Blocks[i]
		last = c.appendBlock(seg, last, info.Addr, info.Size)
		last.requested, last.context = info.Requested, info.Context
		n := int64(info.Size)
		if info.State == Inactive {
			l.insertFree(last)
			if len(s.Blocks) > 1 && seg.page == 0 {
				st.add(statInactiveSplit, kind, 1)
				st.add(statInactiveSplitBytes, kind, n)
			}
			continue
		}
		last.allocated = true
		st.add(statAllocations, kind, 1)
		st.add(statAllocatedBytes, kind, n)
		st.add(statActive, kind, 1)
		st.add(statActiveBytes, kind, n)
		st.add(statRequestedBytes, kind, int64(info.Requested))
		if last.oversize = last.size >= c.settings.MaxSplitSize; last.oversize {
			st.OversizeAllocations.add(1)
		}
		live = append(live, last)
	}
	return last, live
}
