package alloc

import "slices"

// PoolID names a private pool: (0, n) from NewPoolID, (n, 0) from NewCapturePoolID. The zero value is the default pool.
type PoolID [2]uint64

// pool holds free blocks of one size kind, small or large: of the default pool or of a private one.
type pool struct {
	of      Allocator    // the strategy whose blocks these are
	kind    int          // smallPool or largePool, the index of its statistics
	private *privatePool // nil for the default pool
	silos   []*silo      // by stream
	last    *silo        // the one found last: most programs rarely change streams
	lookups uint64       // searches of the free list, counted while garbage collection is on
}

func (p *pool) id() PoolID {
	if p.private == nil {
		return PoolID{}
	}
	return p.private.id
}

// source returns the Source of the pool's segments, or nil if they come from the device.
func (p *pool) source() Source {
	if p.private == nil {
		return nil
	}
	return p.private.source
}

// expands reports whether new memory of the pool comes in expandable segments.
func (c *caching) expands(p *pool) bool {
	return c.expand || p.expandsAlone()
}

// expandsAlone reports whether the pool has expandable segments whatever the settings say.
func (p *pool) expandsAlone() bool { return p.private != nil && p.private.expand }

// silo returns the stream's silo and creates it on first use.
func (p *pool) silo(s Stream) *silo {
	if l := p.last; l != nil && l.stream == s {
		return l
	}
	i, ok := slices.BinarySearchFunc(p.silos, s, func(l *silo, s Stream) int {
		switch {
		case l.stream < s:
			return -1
		case l.stream > s:
			return 1
		}
		return 0
	})
	if !ok {
		p.silos = slices.Insert(p.silos, i, &silo{pool: p, stream: s})
	}
	p.last = p.silos[i]
	return p.last
}

// freeBlocks returns the pool's free blocks ordered by stream, size and address.
func (p *pool) freeBlocks() []*Block {
	var s []*Block
	for _, l := range p.silos {
		s = l.free.appendAll(s)
	}
	return s
}

// freeBytes returns the bytes in the pool's free lists.
func (p *pool) freeBytes() uint64 {
	var n uint64
	for _, b := range p.freeBlocks() {
		n += b.size
	}
	return n
}

// privatePool is a pair of pools, used only by allocations that name it or are diverted to it.
type privatePool struct {
	id           PoolID
	uses         int      // graphs and diversions that hold it; at 0 the flush step may take its memory and delete it
	reserved     uint64   // bytes that its segments have from the device
	source       Source   // where its memory comes from; nil: from the device
	uncached     []*Block // blocks allocated with caching off, until they are back at the device
	expand       bool     // its memory comes in expandable segments, whatever the settings say
	small, large pool
}

// ofSize returns the small or large pool for a rounded size.
func (c *caching) ofSize(p *privatePool, size uint64) *pool {
	small, large := &c.small, &c.large
	if p != nil {
		small, large = &p.small, &p.large
	}
	if size <= smallSize {
		return small
	}
	return large
}
