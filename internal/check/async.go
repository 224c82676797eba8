package check

import (
	"maps"
	"slices"

	"tenon.dev/internal/checklog"
)

// The operations that allocate and free in the order of a stream, by the driver's names.
const (
	allocAsync = "MemAllocAsync"
	freeAsync  = "MemFreeAsync"
)

// AllocAsync notes n fresh bytes at addr that the operation t allocates in the order of its stream: whoever uses them and is not ordered
// after t races with it. at is nil, or where the allocation was asked for that a graph's launch t repeats; a graph's memory is no leak.
func (c *Checker) AllocAsync(t *Task, addr, n uint64, at *Site) {
	r := &region{base: addr, size: n, made: t.pcs, pages: map[uint64]*page{}}
	if at != nil {
		r.made = at.pcs
	} else {
		r.id = c.log.born(addr, n, t.pcs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.live.remove(addr); old != nil { // what the graph's last launch allocated, which the next one frees
		c.last = nil
	}
	r.birth = c.begin(t, nil)
	c.live.insert(r)
}

// FreeAsync notes that the operation t frees the allocation at addr, if it is live: who used it and is not ordered before t races with it.
func (c *Checker) FreeAsync(t *Task, addr uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.live.remove(addr)
	if r == nil {
		return
	}
	if epoch := c.begin(t, nil); c.log.look(checklog.StreamRace) {
		if r.birth != 0 { // also where no page was touched
			c.conflict(t, side{epoch: r.birth}, true, true, addr, epoch)
		}
		for _, i := range slices.Sorted(maps.Keys(r.pages)) {
			p, at := r.pages[i], r.base+i*pageBytes
			if p.cells == nil {
				c.passing(t, &p.all, true, at, epoch)
				continue
			}
			for j := range p.cells {
				c.passing(t, &p.cells[j], true, at+uint64(j)<<p.shift, epoch)
			}
		}
	}
	c.bury(r, t.pcs)
}
