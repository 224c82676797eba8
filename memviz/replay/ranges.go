package replay

import (
	"cmp"
	"slices"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/ordered"
)

// extent is the part of an expandable segment's address range that is seen mapped at some time.
type extent struct{ from, to uint64 }

// owner is what an expandable segment belongs to, as far as a trace tells it.
type owner struct {
	stream alloc.Stream
	large  bool
}

// rangeMemory returns the memory of a device, in bytes, whose expandable segments have room for what the trace maps, and do not reach into
// each other's address ranges: those are an eighth longer than the device's memory, which no trace tells. Without two of them it is
// Unlimited.
func rangeMemory(start []alloc.SegmentInfo, steps []driverStep) uint64 {
	seen := map[owner]*ordered.List[extent]{}
	list := func(o owner) *ordered.List[extent] {
		if seen[o] == nil {
			seen[o] = ordered.New(func(e extent) uint64 { return e.from })
		}
		return seen[o]
	}
	var last extent // of the segment before
	for i := range start {
		s := &start[i]
		if !s.Expandable {
			continue
		}
		o := owner{s.Stream, s.Large}
		if i > 0 && start[i-1].Expandable && start[i-1].Pool == s.Pool && (owner{start[i-1].Stream, start[i-1].Large}) == o {
			e := list(o).Value(list(o).Last(last.from))
			e.to = s.Addr + s.TotalSize // Adopt makes them one
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
