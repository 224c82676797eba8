package replay

import (
	"maps"
	"slices"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/ordered"
	"tenon.dev/internal/snapshot"
)

// The sizes of PyTorch's allocator that matter for a layout.
const (
	mib       = 1 << 20
	unit      = 512      // blocks are multiples of it
	smallSize = 1 * mib  // larger requests are served by the large pools
	smallPage = 2 * mib  // segments and pages of the small pools
	largePage = 20 * mib // pages of the large pools
)

// region is memory held from the driver at a point in time: a segment, or a run of mapped pages of an expandable one.
type region struct {
	addr, size uint64
	stream     uint64
	large      bool
	sure       bool // large is known, not guessed from the size
	expandable bool
	pool       alloc.PoolID
}

// holding is a block in use.
type holding struct {
	size      uint64 // of the block; 0 if only the request is known
	requested uint64
	pending   bool // freed, while other streams use it
}

// layout is the memory held and in use; it goes backwards in time from a snapshot through its trace.
type layout struct {
	regions *ordered.List[region] // by address
	live    map[uint64]holding
	odd     int // events that contradict the layout
}

// newLayout returns the layout at the snapshot.
func newLayout(s *snapshot.Snapshot, device int) *layout {
	l := &layout{live: map[uint64]holding{}, regions: ordered.New(func(r region) uint64 { return r.addr })}
	for i := range s.Segments {
		g := &s.Segments[i]
		if g.Device != device {
			continue
		}
		if g.TotalSize == 0 || g.TotalSize > Unlimited || g.Addr+g.TotalSize < g.Addr {
			l.odd++
			continue
		}
		l.regions.Add(region{g.Addr, g.TotalSize, g.Stream, g.Type == "large", true, g.Expandable, g.Pool})
		for _, b := range g.Blocks {
			if b.State != snapshot.Inactive {
				l.live[b.Addr] = holding{b.Size, b.Requested, b.State == snapshot.ActivePendingFree}
			}
		}
	}
	return l
}

// at returns the region that holds addr and its position, or nil.
func (l *layout) at(addr uint64) (*region, ordered.At) {
	at := l.regions.Last(addr)
	if r := l.regions.Value(at); r != nil && addr-r.addr < r.size {
		return r, at
	}
	return nil, at
}

// undo reverses one event. For an allocation it returns the block's pool.
func (l *layout) undo(e *snapshot.Event) alloc.PoolID {
	switch e.Action {
	case snapshot.ActionAlloc:
		if _, ok := l.live[e.Addr]; !ok {
			l.odd++
		}
		delete(l.live, e.Addr)
		if r, _ := l.at(e.Addr); r != nil {
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

// add restores a region. A run of pages is merged with its neighbours.
func (l *layout) add(r region) {
	place := l.regions.Last(r.addr)
	before, next := l.regions.Value(place), l.regions.Value(l.regions.Next(place))
	if r.size == 0 || r.size > Unlimited || r.addr+r.size < r.addr || before != nil && before.addr+before.size > r.addr || next != nil &&
		next.addr < r.addr+r.size {
		l.odd++
		return
	}
	joins := func(a, b *region) bool {
		return a.expandable && b.expandable && a.addr+a.size == b.addr && a.stream == b.stream && (a.large == b.large || !a.sure || !b.sure)
	}
	if before != nil && joins(before, &r) {
		before.size += r.size
	} else {
		l.regions.Add(r)
		place = l.regions.Last(r.addr)
		before = l.regions.Value(place)
	}
	place = l.regions.Next(place)
	if next = l.regions.Value(place); next != nil && joins(before, next) {
		before.size += next.size
		if next.sure {
			before.large, before.sure, before.pool = next.large, true, next.pool
		}
		l.regions.Remove(place)
	}
}

// remove removes a region, or pages of one.
func (l *layout) remove(addr, size uint64) {
	r, place := l.at(addr)
	if r == nil || addr+size > r.addr+r.size || addr+size < addr {
		l.odd++
		return
	}
	front, back := *r, *r
	front.size = addr - r.addr
	back.addr, back.size = addr+size, r.addr+r.size-addr-size
	l.regions.Remove(place)
	for _, rest := range []region{front, back} {
		if rest.size > 0 {
			l.regions.Add(rest)
		}
	}
}

// ends maps each live block that the trace allocates behind, while the block is still live, to the first address allocated there.
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

// mapping identifies the segment of mapped pages: a stream, a page size, and the remainder of the addresses modulo that size.
type mapping struct {
	stream alloc.Stream
	large  bool
	rest   uint64
}

func pageOf(large bool) uint64 {
	if large {
		return largePage
	}
	return smallPage
}

// addBegins adds empty runs where the trace maps pages in the range of an expandable segment before its first page.
func addBegins(segments []alloc.SegmentInfo, events []snapshot.Event) []alloc.SegmentInfo {
	mapped := map[mapping][]uint64{}
	for i := range events {
		if e := &events[i]; e.Action == snapshot.ActionSegmentMap {
			large := e.Size%largePage == 0
			m := mapping{alloc.Stream(e.Stream), large, e.Addr % pageOf(large)}
			mapped[m] = append(mapped[m], e.Addr)
		}
	}
	for _, addrs := range mapped {
		slices.Sort(addrs)
	}
	var out []alloc.SegmentInfo
	end := uint64(0)
	for i := range segments {
		s := &segments[i]
		lowest := s.Addr
		if addrs := mapped[mapping{s.Stream, s.Large, s.Addr % pageOf(s.Large)}]; s.Expandable {
			if k, _ := slices.BinarySearch(addrs, end); k < len(addrs) {
				lowest = min(lowest, addrs[k])
			}
		}
		if before := len(out) - 1; lowest < s.Addr && (before < 0 || out[before].Stream != s.Stream || out[before].Large != s.Large ||
			out[before].Pool != s.Pool) {
			out = append(out, alloc.SegmentInfo{Addr: lowest, Stream: s.Stream, Large: s.Large, Pool: s.Pool, Expandable: true})
		}
		out = append(out, *s)
		end = s.Addr + s.TotalSize
	}
	return out
}

// segments returns the layout in the allocator's form. A block whose size the snapshot does not show gets its request rounded by round,
// plus any remainder that would not be split off: PyTorch leaves the remainder of a large block in the block unless it exceeds 1 MiB, and
// does not split blocks from maxSplit on. ends gives the ends of some blocks.
func (l *layout) segments(round func(uint64) uint64, maxSplit uint64, ends map[uint64]uint64) []alloc.SegmentInfo {
	addrs := slices.Sorted(maps.Keys(l.live))
	var out []alloc.SegmentInfo
	for r := range l.regions.All() {
		s := alloc.SegmentInfo{Addr: r.addr, TotalSize: r.size, Stream: alloc.Stream(r.stream), Large: r.large, Pool: r.pool,
			Expandable: r.expandable}
		end, at := r.addr+r.size, r.addr
		for ; len(addrs) > 0 && addrs[0] < end; addrs = addrs[1:] {
			a := addrs[0]
			h := l.live[a]
			if a < at { // in no region, or inside the block before it
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
