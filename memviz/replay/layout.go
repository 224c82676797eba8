package replay

import (
	"cmp"
	"maps"
	"slices"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
)

// The sizes of PyTorch's allocator that a layout shows.
const (
	mib       = 1 << 20
	unit      = 512      // blocks are multiples of it
	smallSize = 1 * mib  // larger requests are served by the large pools
	smallPage = 2 * mib  // segments and pages of the small pools
	largePage = 20 * mib // pages of the large pools
)

// region is memory held from the driver at one moment: a segment, or a run of mapped pages of an expandable one.
type region struct {
	addr, size uint64
	stream     uint64
	large      bool
	sure       bool // large is known, not guessed from the size
	expandable bool
	pool       alloc.PoolID
}

func regionByAddr(r region, addr uint64) int { return cmp.Compare(r.addr, addr) }

// holding is a block in use.
type holding struct {
	size      uint64 // of the block; 0 where only the request is known
	requested uint64
	pending   bool // freed, while other streams use it
}

// layout is what was held and in use, going backwards in time from a snapshot through its trace.
type layout struct {
	regions []region // by address
	live    map[uint64]holding
	odd     int // events that contradict the layout
}

// newLayout returns the layout at the snapshot.
func newLayout(s *snapshot.Snapshot, device int) *layout {
	l := &layout{live: map[uint64]holding{}}
	for i := range s.Segments {
		g := &s.Segments[i]
		if g.Device != device {
			continue
		}
		if g.TotalSize == 0 || g.TotalSize > Unlimited || g.Addr+g.TotalSize < g.Addr {
			l.odd++
			continue
		}
		l.regions = append(l.regions, region{g.Addr, g.TotalSize, g.Stream, g.Type == "large", true, g.Expandable, g.Pool})
		for _, b := range g.Blocks {
			if b.State != snapshot.Inactive {
				l.live[b.Addr] = holding{b.Size, b.Requested, b.State == snapshot.ActivePendingFree}
			}
		}
	}
	slices.SortFunc(l.regions, func(a, b region) int { return cmp.Compare(a.addr, b.addr) })
	return l
}

// at returns the region that holds addr, or nil.
func (l *layout) at(addr uint64) *region {
	i, ok := slices.BinarySearchFunc(l.regions, addr, regionByAddr)
	if !ok {
		i--
	}
	if i < 0 || addr-l.regions[i].addr >= l.regions[i].size {
		return nil
	}
	return &l.regions[i]
}

// undo goes back over one event. For an allocation it returns the pool that the block is of.
func (l *layout) undo(e *snapshot.Event) alloc.PoolID {
	switch e.Action {
	case snapshot.ActionAlloc:
		if _, ok := l.live[e.Addr]; !ok {
			l.odd++
		}
		delete(l.live, e.Addr)
		if r := l.at(e.Addr); r != nil {
			if !r.sure {
				r.large, r.sure = e.Size > smallSize, true
			}
			return r.pool
		}
	case snapshot.ActionFreeRequested:
		h := l.live[e.Addr]
		l.live[e.Addr] = holding{size: h.size, requested: e.Size}
	case snapshot.ActionFreeCompleted:
		if _, ok := l.live[e.Addr]; ok {
			l.odd++
		}
		l.live[e.Addr] = holding{requested: e.Size, pending: true}
	case snapshot.ActionSegmentFree, snapshot.ActionSegmentUnmap:
		mapped := e.Action == snapshot.ActionSegmentUnmap
		l.add(region{addr: e.Addr, size: e.Size, stream: e.Stream, expandable: mapped,
			large: mapped && e.Size%largePage == 0 || !mapped && e.Size != smallPage})
	case snapshot.ActionSegmentAlloc, snapshot.ActionSegmentMap:
		l.remove(e.Addr, e.Size)
	}
	return alloc.PoolID{}
}

// add brings back a region. A run of pages joins its neighbours.
func (l *layout) add(r region) {
	i, ok := slices.BinarySearchFunc(l.regions, r.addr, regionByAddr)
	if ok || r.size == 0 || r.size > Unlimited || r.addr+r.size < r.addr || i > 0 && l.regions[i-1].addr+l.regions[i-1].size > r.addr || i < len(l.regions) && l.regions[i].addr < r.addr+r.size {
		l.odd++
		return
	}
	joins := func(a, b *region) bool {
		return a.expandable && b.expandable && a.addr+a.size == b.addr && a.stream == b.stream && (a.large == b.large || !a.sure || !b.sure)
	}
	if i > 0 && joins(&l.regions[i-1], &r) {
		p := &l.regions[i-1]
		p.size += r.size
		r = *p
		i--
	} else {
		l.regions = slices.Insert(l.regions, i, r)
	}
	if i+1 < len(l.regions) && joins(&l.regions[i], &l.regions[i+1]) {
		p, next := &l.regions[i], l.regions[i+1]
		p.size += next.size
		if next.sure {
			p.large, p.sure, p.pool = next.large, true, next.pool
		}
		l.regions = slices.Delete(l.regions, i+1, i+2)
	}
}

// remove takes a region away, or pages out of one.
func (l *layout) remove(addr, size uint64) {
	r := l.at(addr)
	if r == nil || addr+size > r.addr+r.size {
		l.odd++
		return
	}
	i, _ := slices.BinarySearchFunc(l.regions, r.addr, regionByAddr)
	front, back := *r, *r
	front.size = addr - r.addr
	back.addr, back.size = addr+size, r.addr+r.size-addr-size
	var rest []region
	if front.size > 0 {
		rest = append(rest, front)
	}
	if back.size > 0 {
		rest = append(rest, back)
	}
	l.regions = slices.Replace(l.regions, i, i+1, rest...)
}

// ends finds where live blocks end, for those behind which the trace allocates while they live: the first address given there.
func (l *layout) ends(events []snapshot.Event) map[uint64]uint64 {
	addrs := slices.Sorted(maps.Keys(l.live))
	dead, ends := map[uint64]bool{}, map[uint64]uint64{}
	for i := range events {
		e := &events[i]
		switch e.Action {
		case snapshot.ActionFreeRequested:
			dead[e.Addr] = true
		case snapshot.ActionAlloc:
			k, found := slices.BinarySearch(addrs, e.Addr)
			if k == 0 || found {
				continue
			}
			before := addrs[k-1]
			if end, ok := ends[before]; !dead[before] && (!ok || e.Addr < end) {
				ends[before] = e.Addr
			}
		}
	}
	return ends
}

// addBegins adds runs of no pages where the trace maps pages into what is the range of an expandable segment before its first page.
func addBegins(segments []alloc.SegmentInfo, events []snapshot.Event) []alloc.SegmentInfo {
	var maps []*snapshot.Event
	for i := range events {
		if events[i].Action == snapshot.ActionSegmentMap {
			maps = append(maps, &events[i])
		}
	}
	var out []alloc.SegmentInfo
	end := uint64(0)
	for i := range segments {
		s := &segments[i]
		page := uint64(smallPage)
		if s.Large {
			page = largePage
		}
		lowest := s.Addr
		for _, e := range maps {
			if s.Expandable && e.Stream == uint64(s.Stream) && (e.Size%largePage == 0) == s.Large &&
				e.Addr >= end && e.Addr < lowest && (s.Addr-e.Addr)%page == 0 {
				lowest = e.Addr
			}
		}
		if before := len(out) - 1; lowest < s.Addr && (before < 0 || out[before].Stream != s.Stream || out[before].Large != s.Large || out[before].Pool != s.Pool) {
			out = append(out, alloc.SegmentInfo{Addr: lowest, Stream: s.Stream, Large: s.Large, Pool: s.Pool, Expandable: true})
		}
		out = append(out, *s)
		end = s.Addr + s.TotalSize
	}
	return out
}

// segments returns the layout as an allocator has it. A block whose size the snapshot does not show has what its request is
// rounded to by round, and what no split would have left over: PyTorch leaves the rest of a large block with it unless it is
// more than 1 MiB, and keeps blocks from maxSplit on whole. ends says where some blocks end.
func (l *layout) segments(round func(uint64) uint64, maxSplit uint64, ends map[uint64]uint64) []alloc.SegmentInfo {
	addrs := slices.Sorted(maps.Keys(l.live))
	var out []alloc.SegmentInfo
	for i := range l.regions {
		r := &l.regions[i]
		s := alloc.SegmentInfo{Addr: r.addr, TotalSize: r.size, Stream: alloc.Stream(r.stream), Large: r.large, Pool: r.pool, Expandable: r.expandable}
		end, at := r.addr+r.size, r.addr
		for ; len(addrs) > 0 && addrs[0] < end; addrs = addrs[1:] {
			a := addrs[0]
			h := l.live[a]
			if a < at { // in no region, or within the block before it
				l.odd++
				delete(l.live, a)
				continue
			}
			if a > at {
				s.Blocks = append(s.Blocks, alloc.BlockInfo{Addr: at, Size: a - at})
			}
			limit := end
			if len(addrs) > 1 && addrs[1] < end {
				limit = addrs[1]
			}
			size := h.size
			if size == 0 {
				size = blockSize(round(h.requested), limit-a, r, maxSplit)
				if e, ok := ends[a]; ok && e < limit && e-a >= size && e-a-size <= smallSize {
					size = e - a
				}
			}
			if size = min(size, limit-a) &^ (unit - 1); size < h.requested || size == 0 {
				l.odd++
				delete(l.live, a)
				if a > at {
					s.Blocks = s.Blocks[:len(s.Blocks)-1]
				}
				continue
			}
			s.Blocks = append(s.Blocks, alloc.BlockInfo{Addr: a, Size: size, Requested: h.requested, State: alloc.ActiveAllocated})
			at = a + size
		}
		if at < end {
			s.Blocks = append(s.Blocks, alloc.BlockInfo{Addr: at, Size: end - at})
		}
		out = append(out, s)
	}
	for _, a := range addrs {
		l.odd++
		delete(l.live, a)
	}
	return out
}

// blockSize returns the size of a block for size bytes that has room up to the next one.
func blockSize(size, room uint64, r *region, maxSplit uint64) uint64 {
	if r.large && !r.expandable && (size >= maxSplit || room-size <= smallSize) && size <= room {
		return room
	}
	return size
}
