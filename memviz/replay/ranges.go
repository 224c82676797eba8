package replay

import (
	"cmp"
	"slices"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/ordered"
)

// extent is the part of an expandable segment's address range that is mapped at some time in the trace.
type extent struct{ from, to uint64 }

// owner is the stream and pool of an expandable segment, as far as the trace tells.
type owner struct {
	stream alloc.Stream
	large  bool
}

// rangeMemory returns the memory of a device, in bytes, whose expandable segments have room for everything that the trace maps without
// overlapping each other's address ranges. A range is an eighth longer than the device's memory, which no trace tells. With fewer than
// two ranges it returns Unlimited.
func rangeMemory(start []alloc.SegmentInfo, steps []driverStep) uint64 {
	seen := map[owner]*ordered.List[extent]{}
	list := func(o owner) *ordered.List[extent] {
		if seen[o] == nil {
			seen[o] = ordered.New(func(e extent) uint64 { return e.from })
		}
		return seen[o]
	}
	var last extent // extent of the segment before
	for i := range start {
		s := &start[i]
		if !s.Expandable {
			continue
		}
		o := owner{s.Stream, s.Large}
		if i > 0 && start[i-1].Expandable && start[i-1].Pool == s.Pool && (owner{start[i-1].Stream, start[i-1].Large}) == o {
			e := list(o).Value(list(o).Last(last.from))
			e.to = s.Addr + s.TotalSize // Adopt merges them
			last = *e
			continue
		}
		last = extent{s.Addr, s.Addr + s.TotalSize}
		list(o).Add(last)
	}
	for i := range steps {
		n := &steps[i]
		if !n.mapped {
			continue
		}
		l := list(owner{n.stream, n.size%largePage == 0})
		if e := l.Value(l.Last(n.addr)); e != nil && n.addr <= e.to {
			e.to = max(e.to, n.addr+n.size)
		} else {
			l.Add(extent{n.addr, n.addr + n.size})
		}
	}
	var all []extent
	for _, l := range seen {
		for e := range l.All() {
			all = append(all, *e)
		}
	}
	slices.SortFunc(all, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
	apart, longest := uint64(Unlimited), uint64(0)
	for i, e := range all {
		longest = max(longest, e.to-e.from)
		if i > 0 && e.from > all[i-1].from {
			apart = min(apart, e.from-all[i-1].from)
		}
	}
	if apart == Unlimited {
		return Unlimited
	}
	return max(apart-min(apart, largePage), longest)/9*8 + 9 // a range is rounded up to a page
}
