package check

import (
	"fmt"
	"slices"
	"sort"
	"sync"

	"tenon.dev/internal/checklog"
	"tenon.dev/internal/vexec"
)

// Checker watches one machine, whose devices have distinct memory addresses. Memory and accesses may be reported from any goroutine; order
// ([Stream]) only under the machine's lock.
type Checker struct {
	log       *Log
	elsewhere func(addr, n uint64) bool
	// Lasting is set if the machine's memory lives as long as the process, and so is never a leak.
	Lasting bool

	// The machine's lock guards these.
	streams int
	host    clock
	version uint64

	// mu guards the fields below. A launch holds it from begin to end.
	mu    sync.Mutex
	live  regions
	freed []*region // oldest first
	// epoch is the last one assigned; runs tells which operation each belongs to.
	epoch uint32
	runs  []run
	last  *region // the last one found
}

// run is a range of epochs, from first to the start of the next run.
type run struct {
	first uint32
	task  *Task
	// kernel is nil for copies and fills.
	kernel *vexec.Kernel
}

// freedLimit is the number of freed regions remembered.
const freedLimit = 1 << 14

// New returns a checker whose findings go to log. elsewhere reports whether n bytes at addr are memory that the checker is not told about,
// such as page-locked host memory.
func New(log *Log, elsewhere func(addr, n uint64) bool) *Checker {
	return &Checker{log: log, elsewhere: elsewhere}
}

// Alloc records n fresh bytes at addr.
func (c *Checker) Alloc(addr, n uint64) {
	pcs, id := called().pcs, uint64(0)
	if !c.Lasting {
		id = c.log.born(addr, n, pcs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live.insert(&region{base: addr, size: n, id: id, made: pcs, pages: map[uint64]*page{}})
}

// Free records that the allocation at addr is freed.
func (c *Checker) Free(addr uint64) {
	pcs := called().pcs
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.live.remove(addr); r != nil {
		c.bury(r, pcs)
	}
}

// bury remembers a region that was freed at pcs; mu is held.
func (c *Checker) bury(r *region, pcs []uintptr) {
	c.log.died(r.id)
	c.last = nil
	r.pages, r.gone = nil, pcs
	if len(c.freed) == freedLimit {
		c.freed = slices.Delete(c.freed, 0, freedLimit/2)
	}
	c.freed = append(c.freed, r)
}

// Written records that the host may have written n bytes at addr or, if n is 0, all of the allocation that contains addr.
func (c *Checker) Written(addr, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.live.find(addr)
	if r == nil {
		return
	}
	if n == 0 {
		addr, n = r.base, r.size
	}
	r.each(addr-r.base, min(n, r.size-(addr-r.base)), func(p *page, _, lo, hi uint64) { p.set(lo, hi) })
}

// Close records that a device is gone, with the memory for which holds returns true. If the device was not lost to a fault, what is still
// live there is a leak.
func (c *Checker) Close(holds func(addr uint64) bool, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
	kept := c.live[:0]
	for _, r := range c.live {
		if !holds(r.base) {
			kept = append(kept, r)
			continue
		}
		c.log.died(r.id)
		if lost || c.Lasting || !c.log.look(checklog.Leak) {
			continue
		}
		c.log.add(&checklog.Finding{Class: checklog.Leak, Message: fmt.Sprintf("Leaked %d bytes at %s", r.size, hex(r.base)),
			Allocation: &checklog.Allocation{Address: hex(r.base), Size: r.size, Stack: frames(r.made)}})
	}
	clear(c.live[len(kept):])
	c.live = kept
}

// BadFree reports a free of an address at which no live allocation begins.
func (c *Checker) BadFree(call string, addr uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &checklog.Finding{Class: checklog.InvalidFree, Message: fmt.Sprintf("Invalid free of %s by %s", hex(addr), call),
		Address: hex(addr), Stack: frames(called().pcs)}
	c.relate(f, addr, 1)
	c.log.add(f)
}

// Refused reports a driver call on n bytes at addr that do not lie in one allocation.
func (c *Checker) Refused(call string, write bool, addr, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &checklog.Finding{Class: checklog.OutOfBounds, Message: fmt.Sprintf("Invalid %s of %d bytes by %s", access(write, false), n,
		call), Kernel: call,
		Access: access(write, false), Space: "global", Address: hex(addr), Stack: frames(called().pcs)}
	c.relate(f, addr, n)
	c.log.add(f)
}

// Divergent reports a kernel that the verifier refuses because not all threads reach an operation.
func (c *Checker) Divergent(kernel, file string, line int, why string) {
	c.log.add(&checklog.Finding{Class: checklog.Barrier, Message: "Barrier error detected. " + why, Kernel: kernel,
		Device: []checklog.Frame{newFrame(kernel, file, line)}, Stack: frames(called().pcs)})
}

func access(write, atomic bool) string {
	switch {
	case atomic:
		return "atomic"
	case write:
		return "write"
	}
	return "read"
}

// relate adds to f where a bad address lies relative to allocations, and makes f a use after free if the memory was freed; mu is held.
func (c *Checker) relate(f *checklog.Finding, addr, n uint64) {
	if r := c.live.find(addr); r != nil {
		f.Details = append(f.Details, fmt.Sprintf("Access to %s is out of bounds", hex(addr)))
		f.Allocation = &checklog.Allocation{Address: hex(r.base), Size: r.size, Stack: frames(r.made),
			Relation: fmt.Sprintf("%d bytes beyond the end of the allocation", addr+n-r.base-r.size)}
		if addr+n <= r.base+r.size {
			f.Allocation.Relation = "inside the allocation"
		}
		return
	}
	for _, r := range slices.Backward(c.freed) {
		if addr-r.base < r.size {
			if f.Class == checklog.OutOfBounds {
				f.Class = checklog.UseAfterFree
			}
			f.Details = append(f.Details, fmt.Sprintf("Access to %s is to freed memory", hex(addr)))
			f.Allocation = &checklog.Allocation{Address: hex(r.base), Size: r.size, Relation: "inside the freed allocation",
				Stack: frames(r.made), Freed: frames(r.gone)}
			return
		}
	}
	f.Details = append(f.Details, fmt.Sprintf("Access to %s is out of bounds", hex(addr)))
	i := c.live.after(addr)
	var best *region
	var gap uint64
	where := "after"
	if i > 0 {
		best = c.live[i-1]
		gap = addr - (best.base + best.size) + 1
	}
	if i < len(c.live) && (best == nil || c.live[i].base-addr < gap) {
		best, where = c.live[i], "before"
		gap = best.base - addr
	}
	if best != nil {
		f.Allocation = &checklog.Allocation{Address: hex(best.base), Size: best.size, Stack: frames(best.made),
			Relation: fmt.Sprintf("%d bytes %s the nearest allocation", gap, where)}
	}
}

// begin starts a run of epochs for t; mu is held.
func (c *Checker) begin(t *Task, k *vexec.Kernel) (first uint32) {
	c.epoch++
	c.runs = append(c.runs, run{c.epoch, t, k})
	return c.epoch
}

// runOf returns the run of an epoch; mu is held.
func (c *Checker) runOf(epoch uint32) *run {
	return &c.runs[sort.Search(len(c.runs), func(i int) bool { return c.runs[i].first > epoch })-1]
}

// find returns the live region that contains addr; mu is held.
func (c *Checker) find(addr uint64) *region {
	if r := c.last; r != nil && addr-r.base < r.size {
		return r
	}
	if r := c.live.find(addr); r != nil {
		c.last = r
		return r
	}
	return nil
}
