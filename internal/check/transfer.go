package check

import (
	"fmt"

	"tenon.dev/internal/checklog"
)

// each calls f for the pages of the live memory at addr, with the address of the page and the range in it. Adjacent mappings count as one
// range.
func (c *Checker) each(addr, n uint64, f func(p *page, at, lo, hi uint64)) {
	for n > 0 {
		r := c.find(addr)
		if r == nil {
			return
		}
		part := min(n, r.size-(addr-r.base))
		r.each(addr-r.base, part, func(p *page, base, lo, hi uint64) { f(p, r.base+base, lo, hi) })
		addr, n = addr+part, n-part
	}
}

// Fill records that t writes n bytes at dst.
func (c *Checker) Fill(t *Task, dst, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.transfer(t, dst, n, true, c.begin(t, nil))
	c.each(dst, n, func(p *page, _, lo, hi uint64) { p.set(lo, hi) })
}

// Read records that t copies n bytes at src to the host.
func (c *Checker) Read(t *Task, src, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.transfer(t, src, n, false, c.begin(t, nil))
	if !c.log.look(checklog.Uninitialized) {
		return
	}
	var at uint64
	missing := false
	c.each(src, n, func(p *page, base, lo, hi uint64) {
		if i, ok := p.missing(lo, hi); ok && !missing {
			at, missing = base+i, true
		}
	})
	if missing {
		r := c.find(at)
		c.log.add(&checklog.Finding{Class: checklog.Uninitialized, Message: fmt.Sprintf("Host API memory access error at host access to "+
			"%s of size %d bytes", hex(src), n),
			Details: []string{fmt.Sprintf("Uninitialized access to %s on access by %s source", hex(at), t.name)}, Kernel: t.name,
			Access: "read", Space: "global",
			Address: hex(at), Stack: frames(t.pcs), Allocation: &checklog.Allocation{Address: hex(r.base), Size: r.size,
				Relation: "inside the allocation", Stack: frames(r.made)}})
	}
}

// Copy records that t copies n bytes on the device; unwritten bytes stay unwritten.
func (c *Checker) Copy(t *Task, dst, src, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch := c.begin(t, nil)
	c.transfer(t, src, n, false, epoch)
	c.transfer(t, dst, n, true, epoch)
	overlaps := dst < src+n && src < dst+n
	c.each(dst, n, func(p *page, at, lo, hi uint64) {
		p.set(lo, hi)
		if overlaps {
			return
		}
		c.each(at+lo-dst+src, hi-lo, func(q *page, qat, qlo, qhi uint64) { // not called for page-locked memory, which counts as written
			for i := qlo; i < qhi; {
				miss, ok := q.missing(i, qhi)
				if !ok {
					return
				}
				end := miss + 1
				for end < qhi && q.written[end/64]>>(end%64)&1 == 0 {
					end++
				}
				p.unset(qat+miss-src+dst-at, qat+end-src+dst-at)
				i = end
			}
		})
	})
}

// transfer looks for races of a copy or fill with other accesses, and records it.
func (c *Checker) transfer(t *Task, addr, n uint64, write bool, epoch uint32) {
	if c.find(addr) == nil {
		if !c.elsewhere(addr, n) {
			c.stale(t, addr, n, write)
		}
		return
	}
	if !c.log.look(checklog.StreamRace) {
		return
	}
	c.each(addr, n, func(p *page, at, lo, hi uint64) {
		if lo == 0 && hi == pageBytes {
			if p.cells == nil {
				c.passing(t, &p.all, write, at, epoch)
				return
			}
			if write {
				for i := range p.cells {
					c.passing(t, &p.cells[i], true, at+uint64(i)<<p.shift, epoch)
				}
				p.cells, p.shift, p.all = nil, coarse, cell{w: side{epoch: epoch}}
				return
			}
		}
		cells := p.at(lo, hi)
		for i := range cells {
			c.passing(t, &cells[i], write, at+lo+uint64(i)<<p.shift, epoch)
		}
	})
}

// stale reports a copy or fill of memory that another stream's operation freed before it ran, or has not allocated yet.
func (c *Checker) stale(t *Task, addr, n uint64, write bool) {
	f := &checklog.Finding{Class: checklog.OutOfBounds, Message: fmt.Sprintf("Invalid %s of %d bytes by %s", access(write, false), n,
		t.name), Kernel: t.name,
		Access: access(write, false), Space: "global", Address: hex(addr), Stack: frames(t.pcs)}
	c.relate(f, addr, n)
	c.log.add(f)
}

// conflict looks for a race of t with one earlier access, and reports it.
func (c *Checker) conflict(t *Task, o side, write, wrote bool, at uint64, epoch uint32) bool {
	if o.epoch == 0 || o.epoch == epoch {
		return false
	}
	run := c.runOf(o.epoch)
	if run.task.before(t) {
		return false
	}
	c.crossing(t, run, o, write, wrote, at)
	return true
}

// passing looks for races of t with a cell's accesses, at most one, and records that t reads or writes it.
func (c *Checker) passing(t *Task, b *cell, write bool, at uint64, epoch uint32) {
	now := side{epoch: epoch}
	raced := c.conflict(t, b.w, write, true, at, epoch)
	if write {
		_ = raced || c.conflict(t, b.r, true, false, at, epoch) || c.conflict(t, b.r2, true, false, at, epoch)
		*b = cell{w: now}
		return
	}
	if o := b.r; o.epoch != 0 && o.epoch != epoch && !c.runOf(o.epoch).task.before(t) {
		b.r2 = o
	}
	b.r = now
}

// raceText is the message for a race of two operations on memory of a space.
func raceText(second, first, space, why string) string {
	article := func(verb string) string {
		if verb == "allocation" || verb == "atomic" {
			return "an " + verb
		}
		return "a " + verb
	}
	return fmt.Sprintf("Race: %s after %s of __%s__ memory, %s", article(second), article(first), space, why)
}

// crossing reports that t and an access of another stream are not ordered.
func (c *Checker) crossing(t *Task, o *run, s side, write, wrote bool, at uint64) {
	f := &checklog.Finding{Class: checklog.StreamRace, Kernel: t.name, Access: access(write, false), Space: "global", Address: hex(at),
		Other: []checklog.Frame{o.frame(s)}}
	f.Device = []checklog.Frame{(&run{task: t}).frame(side{})}
	if c.log.known(keyOf(f)) {
		return
	}
	f.Stack = frames(t.pcs)
	f.Message = raceText(t.verb(write), o.task.verb(wrote), f.Space, fmt.Sprintf("by %s and %s, which are not ordered", o.name(), t.name))
	f.Details = []string{"Address " + f.Address, fmt.Sprintf("%s at %s", o.task.verb(wrote), f.Other[0].Text)}
	c.log.add(f)
}
