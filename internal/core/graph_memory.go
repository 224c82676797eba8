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

// held returns the number of bytes that what the calls make takes during each unit of p, without workspaces.
func (c *recording) held(p *plan) (held []uint64) {
	d, born, sizes := c.g.d, make([]int, len(c.g.made)), make([]uint64, len(c.g.made))
	units := 0
	of := func(e *element) int { // which of the storages that the calls make, or a negative number
		if e.st == nil {
			return -1
		}
		return ^c.g.indexOf(e.st)
	}
	makes := func(e *element) {
		if m := of(e); m >= 0 && sizes[m] == 0 {
			born[m], sizes[m] = units, uint64(e.st.bytes+sizeOfBlocks-1)/sizeOfBlocks*sizeOfBlocks
		}
	}
	var changes []int64 // of the number of bytes at each unit
	uses := func(e *element) {
		if m := of(e); e.last && m >= 0 && e.st.others.Load() == abandoned && sizes[m] > 0 {
			changes[born[m]] += int64(sizes[m])
			changes[units+1] -= int64(sizes[m])
			sizes[m] = 0
		}
	}
	for step, i := range p.units(len(d.calls)) {
		changes = append(changes, make([]int64, units+2-len(changes))...)
		calls := []int{i}
		if step != nil {
			calls = step.calls
			for _, a := range step.group.outs {
				makes(a.of(d.calls))
			}
		} else {
			for j := range d.calls[i].out {
				makes(&d.calls[i].out[j])
			}
		}
		for _, i := range calls {
			k := &d.calls[i]
			for _, es := range [][]element{k.in, k.many, k.out} {
				for j := range es {
					uses(&es[j])
				}
			}
		}
		units++
	}
	for m, size := range sizes { // what stays
		if size > 0 {
			changes[born[m]] += int64(size)
		}
	}
	sum := int64(0)
	for _, n := range changes[:units] {
		sum += n
		held = append(held, uint64(sum))
	}
	return held
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
