package hostsim

import (
	"sort"
	"sync"
)

// region is one live allocation: its bytes, its device address, and the device that made it or, if foreign, registered it.
type region struct {
	base    uint64
	bytes   []byte
	owner   *device
	foreign bool
}

// regions finds live allocations by address. It is safe for concurrent use.
type regions struct {
	mu   sync.RWMutex
	live []region // by base
}

// find returns the index of the first region whose base is above addr; mu is held.
func (r *regions) find(addr uint64) int {
	return sort.Search(len(r.live), func(i int) bool { return r.live[i].base > addr })
}

// add registers b at base; a device's own memory needs no owner.
func (r *regions) add(base uint64, b []byte, owner *device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.insert(region{base: base, bytes: b, owner: owner})
}

func (r *regions) insert(g region) {
	i := r.find(g.base)
	r.live = append(r.live, region{})
	copy(r.live[i+1:], r.live[i:])
	r.live[i] = g
}

// register registers memory allocated elsewhere at its own address, unless it overlaps a live region.
func (r *regions) register(b []byte, owner *device) bool {
	base := hostAddress(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.find(base+uint64(len(b))-1) - 1; i >= 0 && r.live[i].base+uint64(len(r.live[i].bytes)) > base {
		return false
	}
	r.insert(region{base: base, bytes: b, owner: owner, foreign: true})
	return true
}

// foreign reports whether the region that begins at base is registered memory; ok is false if none begins there.
func (r *regions) foreign(base uint64) (foreign, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	i := r.find(base) - 1
	if i < 0 || r.live[i].base != base {
		return false, false
	}
	return r.live[i].foreign, true
}

// remove removes the region that begins at base.
func (r *regions) remove(base uint64) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.find(base) - 1
	if i < 0 || r.live[i].base != base {
		return nil, false
	}
	b := r.live[i].bytes
	r.live = append(r.live[:i], r.live[i+1:]...)
	return b, true
}

// removeAll removes what owner made or registered and returns what it made.
func (r *regions) removeAll(owner *device) (removed [][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.live[:0]
	for _, g := range r.live {
		switch {
		case g.owner != owner:
			kept = append(kept, g)
		case !g.foreign:
			removed = append(removed, g.bytes)
		}
	}
	clear(r.live[len(kept):])
	r.live = kept
	return removed
}

// resolve returns the region that contains addr.
func (r *regions) resolve(addr uint64) (mem []byte, base uint64, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	i := r.find(addr) - 1
	if i < 0 || addr-r.live[i].base >= uint64(len(r.live[i].bytes)) {
		return nil, 0, false
	}
	return r.live[i].bytes, r.live[i].base, true
}

// overlaps reports whether [base, base+n) overlaps a live region.
func (r *regions) overlaps(base, n uint64) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	i := r.find(base+n-1) - 1
	return i >= 0 && r.live[i].base+uint64(len(r.live[i].bytes)) > base
}

// spans is a set of free address ranges, sorted and never adjacent.
type spans []span

type span struct{ lo, hi uint64 }

// take removes n bytes at a multiple of align from the lowest range with room for them.
func (s *spans) take(n, align uint64) (uint64, bool) {
	for i, r := range *s {
		lo := (r.lo + align - 1) &^ (align - 1)
		if lo+n > r.hi {
			continue
		}
		switch {
		case lo == r.lo && lo+n == r.hi:
			*s = append((*s)[:i], (*s)[i+1:]...)
		case lo == r.lo:
			(*s)[i].lo = lo + n
		case lo+n == r.hi:
			(*s)[i].hi = lo
		default:
			*s = append(*s, span{})
			copy((*s)[i+2:], (*s)[i+1:])
			(*s)[i].hi = lo
			(*s)[i+1] = span{lo + n, r.hi}
		}
		return lo, true
	}
	return 0, false
}

// put adds [lo, hi), which must not be in the set.
func (s *spans) put(lo, hi uint64) {
	i := sort.Search(len(*s), func(i int) bool { return (*s)[i].lo >= lo })
	before := i > 0 && (*s)[i-1].hi == lo
	after := i < len(*s) && (*s)[i].lo == hi
	switch {
	case before && after:
		(*s)[i-1].hi = (*s)[i].hi
		*s = append((*s)[:i], (*s)[i+1:]...)
	case before:
		(*s)[i-1].hi = hi
	case after:
		(*s)[i].lo = lo
	default:
		*s = append(*s, span{})
		copy((*s)[i+1:], (*s)[i:])
		(*s)[i] = span{lo, hi}
	}
}
