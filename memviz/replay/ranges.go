package replay

import (
	"cmp"
	"slices"

	"tenon.dev/internal/alloc"
)

// extent is the part of an expandable segment's address range that is seen mapped at some time.
type extent struct{ from, to uint64 }

// owner is what an expandable segment belongs to, as far as a trace tells it.
type owner struct {
	stream alloc.Stream
	large  bool
}

// rangeMemory returns the memory of a device, in bytes, whose expandable segments have room for what the trace maps, and do not reach into each
// other's address ranges: those are an eighth longer than the device's memory, which no trace tells. Without two of them it is Unlimited.
func rangeMemory(start []alloc.SegmentInfo, steps []driverStep) uint64 {
	seen := map[owner][]extent{}
	for i := range start {
		s := &start[i]
		if !s.Expandable {
			continue
		}
		o := owner{s.Stream, s.Large}
		list := seen[o]
		if i > 0 && start[i-1].Expandable && start[i-1].Pool == s.Pool && (owner{start[i-1].Stream, start[i-1].Large}) == o {
			list[len(list)-1].to = s.Addr + s.TotalSize // Adopt makes them one
			continue
		}
		seen[o] = append(list, extent{s.Addr, s.Addr + s.TotalSize})
	}
	for i := range steps {
		n := &steps[i]
		if !n.mapped {
			continue
		}
		o := owner{n.stream, n.size%largePage == 0}
		list := seen[o]
		k := slices.IndexFunc(list, func(e extent) bool { return n.addr >= e.from && n.addr <= e.to })
		if k < 0 {
			seen[o] = append(list, extent{n.addr, n.addr + n.size})
		} else {
			list[k].to = max(list[k].to, n.addr+n.size)
		}
	}
	var all []extent
	for _, list := range seen {
		all = append(all, list...)
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
