package alloc

import (
	"slices"

	"tenon.dev/fault"
)

// Checkpoint is the layout of a private pool at one moment. Restore brings the pool back to it, so that a graph recorded later finds the
// same addresses free and taken.
type Checkpoint struct {
	pool     PoolID
	segments [][]blockState // by segment the blocks, by address; for expandable ones by run of mapped blocks
}

type blockState struct {
	addr, size, requested uint64
	allocated             bool
	uses                  []Stream
	context               any
}

// Live returns the addresses of the blocks that were live at the checkpoint, in order of segments and addresses.
func (c *Checkpoint) Live() []uint64 {
	var s []uint64
	for _, g := range c.segments {
		for _, b := range g {
			if b.allocated {
				s = append(s, b.addr)
			}
		}
	}
	return s
}

// Checkpoint records the layout of the private pool id. It is an error if a block of the pool waits for events and, of kind Unsupported, if
// one was allocated with caching off.
func (d *Device) Checkpoint(id PoolID) (*Checkpoint, error) {
	if err := d.strategy.lacks("getCheckpointState"); err != nil {
		return nil, err
	}
	return d.checkpoint(id)
}

func (c *caching) checkpoint(id PoolID) (*Checkpoint, error) {
	context := c.gather(LevelAll)
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.findPrivate(id)
	if p == nil {
		return nil, fault.New(fault.Invalid, "Could not find pool of id (%d, %d)", id[0], id[1])
	}
	if p.uses == 0 {
		return nil, fault.New(fault.Invalid, "Not expected to checkpoint freeable graph")
	}
	if err := p.allCached(); err != nil {
		return nil, err
	}
	if len(c.diversions) == 0 {
		if err := c.recordDeferred(context); err != nil {
			return nil, err
		}
	}
	k := &Checkpoint{pool: id}
	for _, g := range c.segmentsOf(p) {
		var blocks []blockState
		for b := g.head; b != nil; b = b.next {
			if !b.allocated && b.active() {
				return nil, fault.New(fault.Invalid, "Events should have synchronized when checkpointing block")
			}
			if b.mapped {
				blocks = append(blocks, blockState{b.addr, b.size, b.requested, b.allocated, slices.Clone(b.uses), b.context})
			}
			if len(blocks) > 0 && (b.next == nil || !b.next.mapped) {
				k.segments = append(k.segments, blocks)
				blocks = nil
			}
		}
	}
	return k, nil
}

// allCached returns an error if the pool has memory that was allocated with caching off: once it is freed, anything may be at its address.
func (p *privatePool) allCached() error {
	if len(p.uncached) == 0 {
		return nil
	}
	return fault.New(fault.Unsupported,
		"the private pool (%d, %d) has memory that was allocated with caching off, of which there are no checkpoints; leave caching on",
		p.id[0], p.id[1])
}

// Restored is the result of Restore.
type Restored struct {
	Freed []uint64 // addresses of the blocks that were live before, all of them freed
	Made  []*Block // the blocks live at the checkpoint, live again; RawFree frees those that no one takes over
}

// Restore brings the pool of k back to its layout: it frees every live block of the pool, whose handles are dead from then on, and
// allocates those that were live at the checkpoint again. Segments made since stay, as free ones. The caller must make sure that no one
// frees the dead handles (BlockAt finds the new ones by address). No diversion to the pool may be active, and diversions to other pools
// only if no event must be waited for.
func (c *caching) Restore(k *Checkpoint) (Restored, error) {
	context := c.gather(LevelAll)
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.findPrivate(k.pool)
	if p == nil {
		return Restored{}, fault.New(fault.Invalid, "Could not find private pool id (%d, %d)", k.pool[0], k.pool[1])
	}
	if len(c.diversions) > 0 && (c.diverted(p) || c.waits(p)) {
		return Restored{}, fault.New(fault.Capture, "a pool cannot be restored while allocations are diverted; end the capture first")
	}
	if err := p.allCached(); err != nil {
		return Restored{}, err
	}
	if err := c.restorable(p, k); err != nil {
		return Restored{}, err
	}
	var r Restored
	var err error
	if r.Freed, err = c.freeAll(p, context); err != nil {
		return r, err
	}
	for _, blocks := range k.segments {
		made, err := c.restoreSegment(p, blocks)
		r.Made = append(r.Made, made...)
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// diverted reports whether allocations are diverted to p.
func (c *caching) diverted(p *privatePool) bool {
	return slices.ContainsFunc(c.diversions, func(v diversion) bool { return v.pool == p })
}

// waits reports whether freeing all of p needs events, which captures forbid.
func (c *caching) waits(p *privatePool) bool {
	for _, g := range c.segmentsOf(p) {
		for b := g.head; b != nil; b = b.next {
			if len(b.uses) > 0 || !b.allocated && b.active() {
				return true
			}
		}
	}
	return false
}

// restorable checks that the memory of every segment of k is still there, before anything is freed.
func (c *caching) restorable(p *privatePool, k *Checkpoint) error {
	for _, blocks := range k.segments {
		addr, last := blocks[0].addr, blocks[len(blocks)-1]
		if c.mappedEnd(p, addr) < last.addr+last.size {
			return fault.New(fault.Invalid, " could not find %#x", addr)
		}
	}
	return nil
}

// mappedEnd returns the end of the run of p's mapped blocks that holds addr, 0 if there is none.
func (c *caching) mappedEnd(p *privatePool, addr uint64) uint64 {
	var end uint64
	for _, g := range c.segmentsOf(p) {
		if addr < g.addr || addr >= g.addr+g.size {
			continue
		}
		for b := g.head; b != nil; b = b.next {
			if b.addr+b.size <= addr {
				continue
			}
			if !b.mapped {
				break
			}
			end = b.addr + b.size
		}
	}
	return end
}

// freeAll frees every live block of p and waits until all are free.
func (c *caching) freeAll(p *privatePool, context any) ([]uint64, error) {
	var live []*Block
	for _, g := range c.segmentsOf(p) {
		for b := g.head; b != nil; b = b.next {
			if b.allocated {
				live = append(live, b)
			}
		}
	}
	var freed []uint64
	pending := false
	for _, b := range live {
		freed = append(freed, b.addr)
		if err := c.free(b, context); err != nil {
			return freed, err
		}
	}
	for _, g := range c.segmentsOf(p) {
		for b := g.head; b != nil; b = b.next {
			pending = pending || b.active()
		}
	}
	if pending {
		return freed, c.synchronize(p, context)
	}
	return freed, nil
}

// restoreSegment carves one free segment into the blocks of the checkpoint.
func (c *caching) restoreSegment(p *privatePool, states []blockState) ([]*Block, error) {
	rest := c.freeBlockAt(p, states[0].addr)
	if rest == nil {
		return nil, fault.New(fault.Invalid, " could not find %#x", states[0].addr)
	}
	var made, spare []*Block
	for _, s := range states {
		if rest == nil || rest.addr != s.addr || rest.size < s.size {
			return made, fault.New(fault.System, "the pool's segment at %#x no longer has the checkpoint's layout", states[0].addr)
		}
		rest.silo.free.remove(rest)
		b := c.carve(rest, s.size, s.requested, rest.size > s.size, s.context)
		if s.allocated {
			b.uses = append(b.uses, s.uses...)
			b.inTable = true
			c.options.Table.add(b)
			made = append(made, b)
		} else {
			spare = append(spare, b)
		}
		if rest = b.next; rest != nil && (rest.allocated || !rest.mapped) {
			rest = nil
		}
	}
	for _, b := range spare {
		if err := c.free(b, nil); err != nil {
			return made, err
		}
	}
	return made, nil
}

// freeBlockAt returns the free block of p that begins at addr, or nil. Pages that an expandable segment has mapped before it since the
// checkpoint are split off.
func (c *caching) freeBlockAt(p *privatePool, addr uint64) *Block {
	for _, g := range c.segmentsOf(p) {
		for b := g.head; b != nil; b = b.next {
			if addr < b.addr || addr >= b.addr+b.size || !b.isFree() || !b.mapped {
				continue
			}
			if b.addr < addr {
				b.silo.free.remove(b)
				b.silo.insertFree(c.splitFront(b, addr-b.addr))
				b.silo.insertFree(b)
			}
			return b
		}
	}
	return nil
}
