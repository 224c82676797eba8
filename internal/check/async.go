package check

import (
	"maps"
	"slices"

	"tenon.dev/internal/checklog"
)

// The operations that allocate and free in stream order, by the driver's names.
const (
	allocAsync = "MemAllocAsync"
	freeAsync  = "MemFreeAsync"
)

// AllocAsync records n fresh bytes at addr that operation t allocates in stream order: any use not ordered after t races with it. For a
// graph launch t that repeats a captured allocation, at is the place of the captured call; otherwise it is nil. A graph's memory is not a
// leak.
func (c *Checker) AllocAsync(t *Task, addr, n uint64, at *Site) {
	r := &region{base: addr, size: n, made: t.pcs, pages: map[uint64]*page{}}
	if at != nil {
		r.made = at.pcs
	} else {
		r.id = c.log.born(addr, n, t.pcs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.live.remove(addr); old != nil { // allocated by the graph's last launch and freed by the next one
		c.last = nil
	}
	r.birth = c.begin(t, nil)
	c.live.insert(r)
}

// FreeAsync records that operation t frees the allocation at addr, if it is live: any use not ordered before t races with it.
func (c *Checker) FreeAsync(t *Task, addr uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.live.remove(addr)
	if r == nil {
		return
	}
	if epoch := c.begin(t, nil); c.log.look(checklog.StreamRace) {
		if r.birth != 0 { // even if no page was touched
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
