package core

import (
	"time"

	"tenon.dev/internal/rt"
)

// poolUse is memory of the pool that a recorded segment uses in each run, without the allocator: what its calls make, their workspaces and
// the copies of inputs.
type poolUse struct {
	addr, size uint64
	// made is the index of a storage that the calls make, or -1, and maker the call that makes it. copied is the index of an input, or -1.
	made, maker, copied int
	// from and to are the first and the last unit of the plan that uses it; to is stays for what is wanted after the run.
	from, to int
}

const stays = -1

// sizeOfBlocks divides the sizes of the allocator's blocks.
const sizeOfBlocks = 512

// held returns the number of bytes that the calls' results and the inputs in the pool take during each unit of p, at most, and a number
// that their peak reaches. It knows nothing of workspaces. A result may take over the memory of an operand, so both bounds are safe.
func (c *recording) held(p *plan) (held []uint64, peak uint64) {
	d, sizes, now := c.g.d, make([]uint64, len(c.g.made)), uint64(0)
	inputs := make([]uint64, len(c.g.inputs))
	for i, b := range c.copies {
		if st := c.g.inputs[i].st; b != nil {
			inputs[i] = b.Size()
		} else if b := st.block; b != nil && st.dev.PoolOf(b) == c.pool.ID() {
			inputs[i] = b.Size()
		}
		now += inputs[i]
	}
	makes := func(e *element) {
		if e.st == nil {
			return
		}
		if m := ^c.g.indexOf(e.st); m >= 0 && sizes[m] == 0 {
			sizes[m] = (uint64(e.st.bytes) + sizeOfBlocks - 1) / sizeOfBlocks * sizeOfBlocks
			now += sizes[m]
		}
	}
	ends := func(e *element) {
		i := c.g.indexOf(e.st)
		switch unheld := e.st.unheld(); {
		case i >= 0 && (unheld || c.copies[i] != nil):
			now, inputs[i] = now-inputs[i], 0
		case i < 0 && unheld:
			now, sizes[^i] = now-sizes[^i], 0
		}
	}
	for _, a := range p.idle() {
		ends(a.of(d.calls))
	}
	for step, i := range p.units(len(d.calls)) {
		if step != nil {
			for _, a := range step.group.outs {
				makes(a.of(d.calls))
			}
		} else {
			for j := range d.calls[i].out {
				makes(&d.calls[i].out[j])
			}
		}
		held = append(held, now)
		for e := range d.ends(step, i) {
			ends(e)
		}
		peak = max(peak, now)
	}
	return held, peak
}

// begins notes the memory that the calls of a unit have taken.
func (c *recording) begins(n *callNotes, calls ...int) {
	for _, i := range calls {
		k := &c.g.d.calls[i]
		for j := range k.out {
			st := k.out[j].st
			if st == nil || st.block == nil {
				continue
			}
			if m := ^c.g.indexOf(st); m >= 0 && !c.begun[m] {
				c.begun[m] = true
				c.uses = append(c.uses, poolUse{st.ptr, st.block.Size(), m, i, -1, c.unit, stays})
			}
		}
	}
	for k, addr := range n.work {
		size := uint64(n.room[k]+sizeOfBlocks-1) / sizeOfBlocks * sizeOfBlocks
		c.uses = append(c.uses, poolUse{addr, size, -1, -1, -1, c.unit, c.unit})
	}
}

// ends notes that unit last was the last to use the memory of storage made of those that the calls make, or of the copy of input copied.
func (c *recording) ends(made, copied, last int) {
	for i := range c.uses {
		if u := &c.uses[i]; u.to == stays && (made >= 0 && u.made == made || copied >= 0 && u.copied == copied) {
			u.to = last
		}
	}
}

// tellMemory tells the profiler, if there is one, which memory the run of r uses that began at a time. If owned is true, the outputs have
// blocks of the allocator.
func (g *Segment) tellMemory(r *Recorded, began time.Time, owned bool) {
	p := g.Stream().Device().Profiler()
	if p == nil || began.IsZero() {
		return
	}
	g.full()
	all := make([]rt.LentBlock, 0, len(r.uses))
	units := float64(r.units)
	for i := range r.uses {
		u := &r.uses[i]
		b := rt.LentBlock{Addr: u.addr, Size: u.size, From: (float64(u.from) + 0.25) / units, To: (float64(u.to) + 0.75) / units,
			Copy: u.copied >= 0}
		if u.made >= 0 {
			st, op := g.madeAt(u.made), g.d.calls[u.maker].op
			b.Gradient = st.marks.Load()&ofLeaf != 0
			b.Maker, b.Activation = op.Doer(), op.Saves()
		}
		switch {
		case u.to != stays:
		case u.made >= 0 && g.Wanted(u.made):
			b.Stays, b.Owned = true, owned
		default:
			b.To = 1
		}
		all = append(all, b)
	}
	p.Lent(began, all)
}
