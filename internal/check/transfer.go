package check

import "fmt"

// Fill notes that t writes n bytes at dst.
func (c *Checker) Fill(t *Task, dst, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.transfer(t, dst, n, true, c.begin(t, nil))
	if r := c.find(dst); r != nil {
		r.each(dst-r.base, n, func(p *page, _, lo, hi uint64) { p.set(lo, hi) })
	}
}

// Read notes that t copies n bytes at src to the host.
func (c *Checker) Read(t *Task, src, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.transfer(t, src, n, false, c.begin(t, nil))
	r := c.find(src)
	if r == nil || !c.log.look(Uninitialized) {
		return
	}
	var at uint64
	missing := false
	r.each(src-r.base, n, func(p *page, base, lo, hi uint64) {
		if i, ok := p.missing(lo, hi); ok && !missing {
			at, missing = r.base+base+i, true
		}
	})
	if missing {
		c.log.add(&Finding{Class: Uninitialized, Message: fmt.Sprintf("Host API memory access error at host access to %s of size %d bytes", hex(src), n),
			Details: []string{fmt.Sprintf("Uninitialized access to %s on access by %s source", hex(at), t.name)}, Kernel: t.name, Access: "read", Space: "global",
			Address: hex(at), Stack: frames(t.pcs), Allocation: &Allocation{Address: hex(r.base), Size: r.size, Relation: "inside the allocation", Stack: frames(r.made)}})
	}
}

// Copy notes that t copies n bytes on the device: what was not written stays unwritten.
func (c *Checker) Copy(t *Task, dst, src, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	epoch := c.begin(t, nil)
	c.transfer(t, src, n, false, epoch)
	c.transfer(t, dst, n, true, epoch)
	from, to := c.live.find(src), c.live.find(dst)
	if from == nil || to == nil {
		if to != nil { // from page-locked memory
			to.each(dst-to.base, n, func(p *page, _, lo, hi uint64) { p.set(lo, hi) })
		}
		return
	}
	if from == to && dst < src+n && src < dst+n {
		to.each(dst-to.base, n, func(p *page, _, lo, hi uint64) { p.set(lo, hi) })
		return
	}
	shift := src - from.base - (dst - to.base)
	to.each(dst-to.base, n, func(p *page, base, lo, hi uint64) {
		p.set(lo, hi)
		from.each(base+lo+shift, hi-lo, func(q *page, qbase, qlo, qhi uint64) {
			for i := qlo; i < qhi; {
				miss, ok := q.missing(i, qhi)
				if !ok {
					return
				}
				end := miss + 1
				for end < qhi && q.written[end/64]>>(end%64)&1 == 0 {
					end++
				}
				p.unset(qbase+miss-shift-base, qbase+end-shift-base)
				i = end
			}
		})
	})
}

// transfer looks for races of a copy or fill with what others did, and notes it.
func (c *Checker) transfer(t *Task, addr, n uint64, write bool, epoch uint32) {
	r := c.find(addr)
	if r == nil || !c.log.look(StreamRace) {
		return
	}
	now := side{epoch: epoch}
	conflict := func(o side, wrote bool, at uint64) bool {
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
	look := func(b *cell, at uint64) {
		raced := conflict(b.w, true, at)
		if write {
			_ = raced || conflict(b.r, false, at) || conflict(b.r2, false, at) // one finding a cell
			*b = cell{w: now}
			return
		}
		if o := b.r; o.epoch != 0 && o.epoch != epoch && !c.runOf(o.epoch).task.before(t) {
			b.r2 = o
		}
		b.r = now
	}
	r.each(addr-r.base, min(n, r.size-(addr-r.base)), func(p *page, base, lo, hi uint64) {
		if lo == 0 && hi == pageBytes {
			if p.cells == nil {
				look(&p.all, r.base+base)
				return
			}
			if write {
				for i := range p.cells {
					look(&p.cells[i], r.base+base+uint64(i)<<p.shift)
				}
				p.cells, p.shift, p.all = nil, coarse, cell{w: now}
				return
			}
		}
		cells := p.at(lo, hi)
		for i := range cells {
			look(&cells[i], r.base+base+lo+uint64(i)<<p.shift)
		}
	})
}

// crossing reports that t and an access of another stream have no order.
func (c *Checker) crossing(t *Task, o *run, s side, write, wrote bool, at uint64) {
	f := &Finding{Class: StreamRace, Kernel: t.name, Access: access(write, false), Space: "global", Address: hex(at), Other: []Frame{o.frame(s)}}
	f.Device = []Frame{(&run{task: t}).frame(side{})}
	if c.log.known(f.key()) {
		return
	}
	f.Stack = frames(t.pcs)
	f.Message = fmt.Sprintf("Race: a %s after a %s of __global__ memory, by %s and %s, which nothing orders", f.Access, access(wrote, false), o.name(), t.name)
	f.Details = []string{"Address " + f.Address, fmt.Sprintf("%s at %s", access(wrote, false), f.Other[0].Text)}
	c.log.add(f)
}
