package core

import (
	"slices"

	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// slots numbers storages by first use, from 1 on, and generators. A key with slots in their place is the same for every run of a program
// that uses other tensors and generators in the same way.
type slots struct {
	table []slotEntry
	epoch uint32
	// n is the latest slot, and used counts the entries of the table.
	n, used    uint32
	generators []*rt.Generator
}

type slotEntry struct {
	id          uint64
	base        int // the byte of the storage that was used first
	epoch, slot uint32
}

// reset forgets all storages.
func (s *slots) reset() {
	s.epoch++
	s.n, s.used = 0, 0
	clear(s.generators)
	s.generators = s.generators[:0]
	if s.epoch == 0 {
		clear(s.table)
		s.epoch = 1
	}
}

// of returns the slot of the storage with that number.
func (s *slots) of(id uint64) uint64 {
	slot, _ := s.at(id, 0)
	return slot
}

// baseClass is the alignment in bytes to which the first used bytes must agree, since kernels depend on it.
const baseClass, baseShift = 16, 4

// put gives the storage with that number, which has none, a slot that at has not given.
func (s *slots) put(id uint64, slot uint32) {
	e, _ := s.entry(id)
	*e = slotEntry{id, 0, s.epoch, slot}
}

// base returns the byte that was used first of the storage with that number, which has a slot.
func (s *slots) base(id uint64) int {
	e, _ := s.entry(id)
	return e.base
}

// at returns the slot of the storage with that number, and the distance of byte off from the byte that was used first, combined with that
// byte's alignment: so it does not matter which part of a storage a region uses.
func (s *slots) at(id uint64, off int) (slot uint64, place int) {
	e, known := s.entry(id)
	if !known {
		s.n++
		*e = slotEntry{id, off, s.epoch, s.n}
		return uint64(s.n), off % baseClass
	}
	return uint64(e.slot), (off-e.base)*baseClass + e.base%baseClass
}

// entry returns the entry of the storage with that number or, if it has none, the place for it, which the caller fills.
func (s *slots) entry(id uint64) (e *slotEntry, known bool) {
	if int(s.used)*2 >= len(s.table) {
		s.grow()
	}
	mask := uint64(len(s.table) - 1)
	for i := id * 0x9e3779b97f4a7c15 >> 32 & mask; ; i = (i + 1) & mask {
		e := &s.table[i]
		if e.epoch != s.epoch {
			s.used++
			return e, false
		}
		if e.id == id {
			return e, true
		}
	}
}

// ofGenerator returns the slot of g, or 0 for the device's own.
func (s *slots) ofGenerator(g *rt.Generator) int {
	if g == nil {
		return 0
	}
	i := slices.Index(s.generators, g)
	if i < 0 {
		i = len(s.generators)
		s.generators = append(s.generators, g)
	}
	return i + 1
}

func (s *slots) grow() {
	old := s.table
	s.table = make([]slotEntry, max(64, 2*len(old)))
	mask := uint64(len(s.table) - 1)
	for _, e := range old {
		if e.epoch != s.epoch {
			continue
		}
		i := e.id * 0x9e3779b97f4a7c15 >> 32 & mask
		for s.table[i].epoch == s.epoch {
			i = (i + 1) & mask
		}
		s.table[i] = e
	}
}

// Key returns the call with slots in place of storages and the generator, and without the numbers that are values.
func (f *frame) Key(p *Path) Call {
	c := f.Call()
	c.source, c.generator = p.slots.ofGenerator(c.generator), nil
	var rest []Operand
	for i, t := range f.Operands() {
		o := operandOf(t)
		if t != nil {
			o.storage, o.offset = f.x.s.putOff.slotOf(p, t)
		}
		if i < len(c.first) {
			c.first[i] = o
		} else {
			rest = append(rest, o)
		}
	}
	c.rest = restOf(rest)
	for i := range c.scalar {
		if f.row.decides>>i&1 == 0 {
			c.scalar[i] = number{}
		}
		if f.row.decides>>(4+i)&1 == 0 {
			c.hole[i] = number{}
		}
	}
	return c
}

// Matches reports whether Key would return e's call. It allocates nothing.
func (f *frame) Matches(e *Expected, p *Path) bool {
	c, m := &e.Call, &f.x.m
	if f.row != c.row || m.stream != c.stream || p.slots.ofGenerator(m.generator) != c.source || m.pool != c.pool ||
		m.noGrad != c.noGrad || m.tf32 != c.tf32 || m.manual != c.byHand || f.ins != int(c.ins) || len(f.many) != int(c.many) ||
		!f.sameAttrs(c) {
		return false
	}
	n := 0
	for i := 0; i < f.ins; i++ {
		if !f.matchesOperand(c, n, f.in[i], p) {
			return false
		}
		n++
	}
	for _, t := range f.many {
		if !f.matchesOperand(c, n, t, p) {
			return false
		}
		n++
	}
	dsts := 0
	for i := 0; i < maxOut && i < f.outs; i++ {
		if f.dst[i] != nil {
			dsts = i + 1
		}
	}
	if dsts != int(c.dsts) {
		return false
	}
	for i := range dsts {
		if !f.matchesOperand(c, n, f.dst[i], p) {
			return false
		}
		n++
	}
	return true
}

// sameAttrs reports whether f has the attributes of c, a key of the same row.
func (f *frame) sameAttrs(c *Call) bool {
	if f.holes != c.holes || f.holeFloat != c.holeFloat || f.hosts != c.hosts {
		return false
	}
	if !f.row.bare && (f.structure.i != c.i || f.structure.dt != c.dt || f.opt != c.opt || !infer.Same(f.dims, c.list.ints())) {
		return false
	}
	if d := f.row.decides; d != 0 {
		for i := range c.scalar {
			if d>>i&1 != 0 && numberOf(&f.scalar[i]) != c.scalar[i] || d>>(4+i)&1 != 0 && numberOf(&f.hole[i]) != c.hole[i] {
				return false
			}
		}
	}
	return true
}

func (f *frame) matchesOperand(c *Call, n int, t *Tensor, p *Path) bool {
	var o *Operand
	if n < len(c.first) {
		o = &c.first[n]
	} else {
		o = &c.rest.all[n-len(c.first)]
	}
	if t == nil {
		return o.form == nil
	}
	if t.form != o.form || t.dt != o.dt {
		return false
	}
	slot, place := f.x.s.putOff.slotOf(p, t)
	return slot == o.storage && place == o.offset
}

// Made gives the outputs of a call that has ended their slots, unless they are views or have them.
func (f *frame) Made(p *Path) {
	if f.row.flags&flagView != 0 {
		return
	}
	for i := 0; i < f.outs; i++ {
		if _, known := f.x.s.putOff.knows(f.out[i].st, p); !known {
			p.slots.of(f.out[i].st.number())
		}
	}
}

// MadeNow appends the number of each storage that the call has made and that already has memory.
func (f *frame) MadeNow(to []uint64) []uint64 {
	for i := 0; i < f.outs; i++ {
		if st := f.out[i].st; f.to(i) == nil && f.specs[i].kind == outNew && !st.waits() {
			to = append(to, st.number())
		}
	}
	return to
}
