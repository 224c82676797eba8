package memviz

import (
	"math/bits"
	"slices"
	"sort"
)

// timeline is a set of allocations, each living in the states [start, end), with an index that finds those living in a state or a window
// quickly.
//
// The index is an interval tree without pointers. An allocation's level is the greatest L for which it lives in a state that is a
// multiple of 2^L; two allocations of one level whose multiples differ have disjoint lives, so the allocations of a level, sorted by
// start, are also sorted by the multiple. A state or window meets one run of each level. The same order serves coarse pictures: the
// allocations of level L and above are exactly the ones that cross a column of a tile of level L.
type timeline struct {
	states     int // states of the device's trace
	start, end []uint32
	size       []uint64
	// ids holds the numbers of the allocations in the full timeline, and is nil in the full timeline itself. All slices are indexed by
	// position, in ascending order of start.
	ids []uint32
	// order is the positions by level, highest first, within a level by position; those of level l are order[from[l+1]:from[l]].
	order []uint32
	from  [topLevel + 2]uint32
	// peaks[l][i] is the greatest total of the states [i<<(l+peakBase), (i+1)<<(l+peakBase)).
	peaks [][]uint64
	max   uint64 // greatest total
	peak  int    // first state that has it
	last  uint64 // total of the last state
	// low is max divided by TileStrips, the smallest size that gets a strip.
	low uint64
}

const (
	// topLevel is the level of allocations that live in state 0.
	topLevel = 32
	// peakBase is the level of the finest stored peaks; finer ones are computed from the allocations in the window.
	peakBase = 6
)

// level returns the index level of a life [start, end).
func level(start, end uint32) int {
	if start == 0 {
		return topLevel
	}
	return bits.Len32((start-1)^(end-1)) - 1
}

// newTimeline indexes allocations sorted by start. It keeps the slices.
func newTimeline(states int, start, end []uint32, size []uint64, ids []uint32) *timeline {
	t := &timeline{states: states, start: start, end: end, size: size, ids: ids}
	for i := range start {
		t.from[level(start[i], end[i])]++
	}
	var sum uint32
	for l := topLevel; l >= 0; l-- {
		sum += t.from[l]
		t.from[l] = sum
	}
	t.order = make([]uint32, len(start))
	next := t.from
	copy(next[:], t.from[1:]) // next[l] is where level l begins
	for i := range start {
		l := level(start[i], end[i])
		t.order[next[l]] = uint32(i)
		next[l]++
	}
	t.sum()
	return t
}

// sum computes the totals.
func (t *timeline) sum() {
	delta := make([]int64, t.states+1)
	for i, s := range t.start {
		delta[s] += int64(t.size[i])
		delta[t.end[i]] -= int64(t.size[i])
	}
	var total int64
	base := make([]uint64, (t.states+1<<peakBase-1)>>peakBase)
	for s := range t.states {
		total += delta[s]
		v := uint64(total)
		base[s>>peakBase] = max(base[s>>peakBase], v)
		if v > t.max {
			t.max, t.peak = v, s
		}
	}
	t.last = uint64(total)
	t.low = t.max / TileStrips
	t.peaks = append(t.peaks[:0], base)
	for len(base) > 1 {
		up := make([]uint64, (len(base)+1)/2)
		for i, v := range base {
			up[i/2] = max(up[i/2], v)
		}
		t.peaks, base = append(t.peaks, up), up
	}
}

// id returns the number of the allocation at a position.
func (t *timeline) id(pos uint32) uint32 {
	if t.ids == nil {
		return pos
	}
	return t.ids[pos]
}

// find returns the position of the allocation with a number.
func (t *timeline) find(id uint32) (pos uint32, ok bool) {
	if t.ids == nil {
		return id, int(id) < len(t.start)
	}
	i, ok := slices.BinarySearch(t.ids, id)
	return uint32(i), ok
}

// topTile returns the level at which one tile holds every state.
func (t *timeline) topTile() int {
	l := 0
	for t.states > TileColumns<<l {
		l++
	}
	return l
}

// run returns the positions of one level that may live in the states [from, to), by position; from < to.
func (t *timeline) run(lev int, from, to uint32) []uint32 {
	all := t.order[t.from[lev+1]:t.from[lev]]
	if lev == topLevel {
		return all
	}
	// A life [start, end) of this level has (start-1)>>(lev+1) == (end-1)>>(lev+1), so one that meets from starts after that multiple.
	floor := uint64(from) >> (lev + 1) << (lev + 1)
	lo := sort.Search(len(all), func(i int) bool { return uint64(t.start[all[i]]) > floor })
	hi := lo + sort.Search(len(all)-lo, func(i int) bool { return t.start[all[lo+i]] >= to })
	return all[lo:hi]
}

// live returns the positions of the allocations that live in a state, oldest first.
func (t *timeline) live(state int) []uint32 {
	s := uint32(state)
	var out []uint32
	for lev := topLevel; lev >= 0; lev-- {
		for _, p := range t.run(lev, s, s+1) {
			if t.start[p] <= s && t.end[p] > s {
				out = append(out, p)
			}
		}
	}
	slices.Sort(out)
	return out
}

// total returns the bytes live in a state.
func (t *timeline) total(state int) uint64 {
	var n uint64
	for _, p := range t.live(state) {
		n += t.size[p]
	}
	return n
}

// subset returns the timeline of the allocations for which keep holds.
func (t *timeline) subset(keep func(id uint32) bool) *timeline {
	var start, end, ids []uint32
	var size []uint64
	for i := range t.start {
		if id := t.id(uint32(i)); keep(id) {
			start, end, size, ids = append(start, t.start[i]), append(end, t.end[i]), append(size, t.size[i]), append(ids, id)
		}
	}
	if ids == nil {
		ids = []uint32{}
	}
	return newTimeline(t.states, start, end, size, ids)
}
