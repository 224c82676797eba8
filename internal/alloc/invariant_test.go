package alloc

import (
	"fmt"
	"slices"
)

// check verifies every invariant of the allocator, and that its accounting agrees with the device's.
func check(d *Device, f *fakeDevice) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.misuse != nil {
		return fmt.Errorf("device: %w", f.misuse)
	}
	c := checker{d: d, f: f, free: map[*Block]bool{}, privateBytes: map[*privatePool]uint64{}}
	for _, p := range []*pool{&d.small, &d.large} {
		if err := c.pool(p); err != nil {
			return err
		}
	}
	for _, p := range d.private {
		if err := c.pool(&p.small); err != nil {
			return err
		}
		if err := c.pool(&p.large); err != nil {
			return err
		}
	}
	for i, g := range d.segments {
		if i > 0 && d.segments[i-1].addr+d.segments[i-1].size > g.addr {
			return fmt.Errorf("segments at %#x and %#x overlap or are out of order", d.segments[i-1].addr, g.addr)
		}
		if err := c.segment(g); err != nil {
			return fmt.Errorf("segment %#x: %w", g.addr, err)
		}
	}
	return c.totals()
}

type checker struct {
	d                *Device
	f                *fakeDevice
	free             map[*Block]bool // in a free list or list of unmapped space
	events           int
	deferred         int
	segments, ranges int
	pages            uint64 // mapped bytes of expandable segments
	reserved         uint64
	want             Stats
	privateBytes     map[*privatePool]uint64
}

func (c *checker) pool(p *pool) error {
	for i, l := range p.silos {
		if i > 0 && p.silos[i-1].stream >= l.stream {
			return fmt.Errorf("silos out of order")
		}
		if l.pool != p {
			return fmt.Errorf("silo of another pool")
		}
		if err := c.tree(l.free.root); err != nil {
			return err
		}
		blocks := l.free.appendAll(nil)
		for j, b := range blocks {
			if j > 0 && !before(blocks[j-1], b) {
				return fmt.Errorf("free blocks %#x and %#x out of order", blocks[j-1].addr, b.addr)
			}
			if b.silo != l || !b.isFree() || !b.mapped {
				return fmt.Errorf("block %#x does not belong in the free list", b.addr)
			}
			c.free[b] = true
		}
		for j, b := range l.unmapped {
			if j > 0 && l.unmapped[j-1].addr >= b.addr {
				return fmt.Errorf("unmapped blocks out of order")
			}
			if b.silo != l || b.mapped || !b.isFree() {
				return fmt.Errorf("block %#x does not belong among the unmapped", b.addr)
			}
			c.free[b] = true
		}
	}
	return nil
}

func (c *checker) tree(n *Block) error {
	if n == nil {
		return nil
	}
	if n.left != nil && n.left.rank >= n.rank || n.right != nil && n.right.rank > n.rank {
		return fmt.Errorf("block %#x lies above one of higher rank", n.addr)
	}
	if err := c.tree(n.left); err != nil {
		return err
	}
	return c.tree(n.right)
}

func (c *checker) segment(g *segment) error {
	kind := g.silo.pool.kind
	at := g.addr
	var prev *Block
	var mapped uint64
	for b := g.head; b != nil; prev, b = b, b.next {
		if b.addr != at || b.prev != prev || b.seg != g || b.silo != g.silo || b.size == 0 || b.size%minBlockSize != 0 {
			return fmt.Errorf("block %#x of %d bytes is linked wrongly, %#x expected", b.addr, b.size, at)
		}
		at += b.size
		if !b.mapped && (g.page == 0 || b.size%g.page != 0 || (b.addr-g.addr)%g.page != 0) {
			return fmt.Errorf("block %#x of %d bytes cannot be unmapped", b.addr, b.size)
		}
		if b.isFree() != c.free[b] {
			return fmt.Errorf("block %#x: free %v, in a list %v", b.addr, b.isFree(), c.free[b])
		}
		delete(c.free, b)
		if prev != nil && prev.isFree() && b.isFree() && prev.mapped == b.mapped {
			return fmt.Errorf("free blocks %#x and %#x are not merged", prev.addr, b.addr)
		}
		if b.mapped {
			mapped += b.size
			if err := c.pagesOf(g, b); err != nil {
				return err
			}
		}
		if err := c.block(b, kind); err != nil {
			return err
		}
	}
	if at != g.addr+g.size {
		return fmt.Errorf("the blocks end at %#x", at)
	}
	c.reserved += mapped
	if p := g.silo.pool.private; p != nil {
		if !slices.Contains(c.d.private, p) {
			return fmt.Errorf("its pool is gone")
		}
		c.privateBytes[p] += mapped
	}
	c.want.ReservedBytes[1+kind].Current += int64(mapped)
	if g.page != 0 {
		c.ranges++
		c.pages += mapped
		if c.f.ranges[g.addr] != g.size {
			return fmt.Errorf("the device has no such range")
		}
		return nil
	}
	c.segments++
	c.want.Segment[1+kind].Current++
	if c.f.segments[g.addr] != g.size {
		return fmt.Errorf("the device has no such segment")
	}
	return nil
}

func (c *checker) pagesOf(g *segment, b *Block) error {
	if g.page == 0 {
		return nil
	}
	for at := g.addr + (b.addr-g.addr)/g.page*g.page; at < b.addr+b.size; at += g.page {
		if c.f.pages[at] != g.page {
			return fmt.Errorf("page %#x of block %#x is not mapped", at, b.addr)
		}
	}
	return nil
}

func (c *checker) block(b *Block, kind int) error {
	c.events += int(b.events)
	w := &c.want
	if !b.allocated && len(b.uses) > 0 {
		c.deferred++
		if !slices.Contains(c.d.deferred, b) {
			return fmt.Errorf("block %#x is freed, used by streams and not deferred", b.addr)
		}
	}
	if b.allocated {
		if b.events > 0 || b.requested == 0 || b.requested > b.size {
			return fmt.Errorf("block %#x is live with %d events, %d of %d bytes requested", b.addr, b.events, b.requested, b.size)
		}
		w.Allocation[1+kind].Current++
		w.AllocatedBytes[1+kind].Current += int64(b.size)
	}
	if b.active() {
		w.Active[1+kind].Current++
		w.ActiveBytes[1+kind].Current += int64(b.size)
		w.RequestedBytes[1+kind].Current += int64(b.requested)
	} else if b.isSplit() && b.seg.page == 0 {
		w.InactiveSplit[1+kind].Current++
		w.InactiveSplitBytes[1+kind].Current += int64(b.size)
	}
	return nil
}

func (c *checker) totals() error {
	d, f := c.d, c.f
	for b := range c.free {
		return fmt.Errorf("block %#x is in a list, but in no segment", b.addr)
	}
	if c.reserved != d.reserved || c.reserved != f.used {
		return fmt.Errorf("blocks hold %d bytes, the allocator says %d, the device %d", c.reserved, d.reserved, f.used)
	}
	if c.segments != len(f.segments) || c.ranges != len(f.ranges) {
		return fmt.Errorf("%d segments and %d ranges; the device has %d and %d", c.segments, c.ranges, len(f.segments), len(f.ranges))
	}
	queued := 0
	for _, q := range d.queues {
		queued += len(q.pending) - q.head
	}
	acquired := 0
	for _, e := range f.events {
		if e.acquired {
			acquired++
		}
	}
	if c.events != queued || queued != d.outstanding || queued != acquired {
		return fmt.Errorf("blocks wait for %d events, %d are queued, %d counted, %d acquired", c.events, queued, d.outstanding, acquired)
	}
	if c.deferred != len(d.deferred) {
		return fmt.Errorf("%d blocks are deferred, the list has %d", c.deferred, len(d.deferred))
	}
	for _, p := range d.private {
		if c.privateBytes[p] != p.reserved {
			return fmt.Errorf("pool %v holds %d bytes, says %d", p.id, c.privateBytes[p], p.reserved)
		}
	}
	stats := d.stats.read()
	have, want := stats.families(), c.want.families()
	for i := range have {
		all := Stat{}
		for k := 1; k < len(have[i]); k++ {
			s := have[i][k]
			if s.Current != want[i][k].Current {
				return fmt.Errorf("%s[%d] is %d, blocks say %d", familyNames[i], k, s.Current, want[i][k].Current)
			}
			all.Current, all.Allocated, all.Freed = all.Current+s.Current, all.Allocated+s.Allocated, all.Freed+s.Freed
		}
		a := have[i][0]
		if a.Current != all.Current || a.Allocated != all.Allocated || a.Freed != all.Freed || a.Peak < a.Current {
			return fmt.Errorf("%s: all is %+v, the sum of pools %+v", familyNames[i], a, all)
		}
		if a.Current != a.Allocated-a.Freed && a.Allocated != 0 {
			return fmt.Errorf("%s: %+v does not add up", familyNames[i], a)
		}
	}
	return nil
}
