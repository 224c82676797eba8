package core

import (
	"slices"

	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// Slots numbers storages by first use, from 1 on, and generators. A key with slots in their place is the same for every run of a program
// that uses other tensors and generators in the same way.
type Slots struct {
	table      []slotEntry
	epoch      uint32
	n          uint32
	generators []*rt.Generator
}

type slotEntry struct {
	id          uint64
	base        int // the byte of the storage that was used first
	epoch, slot uint32
}

// Reset forgets all storages.
func (s *Slots) Reset() {
	s.epoch++
	s.n = 0
	clear(s.generators)
	s.generators = s.generators[:0]
	if s.epoch == 0 {
		clear(s.table)
		s.epoch = 1
	}
}

// of returns the slot of the storage with that number.
func (s *Slots) of(id uint64) uint64 {
	slot, _ := s.at(id, 0)
	return slot
}

// baseClass is the alignment in bytes to which the first used bytes must agree, since kernels depend on it.
const baseClass = 16

// at returns the slot of the storage with that number, and the distance of byte off from the byte that was used first, combined with that
// byte's alignment: so it does not matter which part of a storage a region uses.
func (s *Slots) at(id uint64, off int) (slot uint64, place int) {
	if id == 0 {
		return 0, 0
	}
	if int(s.n)*2 >= len(s.table) {
		s.grow()
	}
	mask := uint64(len(s.table) - 1)
	for i := id * 0x9e3779b97f4a7c15 >> 32 & mask; ; i = (i + 1) & mask {
		e := &s.table[i]
		if e.epoch != s.epoch {
			s.n++
			*e = slotEntry{id, off, s.epoch, s.n}
			return uint64(s.n), off % baseClass
		}
		if e.id == id {
			return uint64(e.slot), (off-e.base)*baseClass + e.base%baseClass
		}
	}
}

// ofGenerator returns the slot of g, or 0 for the device's own.
func (s *Slots) ofGenerator(g *rt.Generator) int {
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

func (s *Slots) grow() {
	old := s.table
	s.table = make([]slotEntry, max(64, 2*len(old)))
	mask := uint64(len(s.table) - 1)
	for _, e := range old {
		if e.epoch != s.epoch || e.id == 0 {
			continue
		}
		i := e.id * 0x9e3779b97f4a7c15 >> 32 & mask
		for s.table[i].epoch == s.epoch && s.table[i].id != 0 {
			i = (i + 1) & mask
		}
		s.table[i] = e
	}
}

// Key returns the call with slots in place of storages and the generator, and without the numbers that are values.
func (f *frame) Key(s *Slots) Call {
	c := f.Call()
	c.source, c.generator = s.ofGenerator(c.generator), nil
	for i := range c.first {
		c.first[i].slotted(s)
	}
	if c.rest != nil {
		rest := append([]Operand(nil), c.rest.all...)
		for i := range rest {
			rest[i].slotted(s)
		}
		c.rest = restOf(rest)
	}
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

// slotted replaces the storage by its slot, and the offset by the distance from the byte that was used first.
func (o *Operand) slotted(s *Slots) {
	if !o.Absent() {
		o.storage, o.offset = s.at(o.storage, o.offset*o.dt.Size())
	}
}

// Matches reports whether Key would return c. It allocates nothing.
func (f *frame) Matches(c *Call, s *Slots) bool {
	m := &f.x.m
	if f.row != c.row || m.stream != c.stream || s.ofGenerator(m.generator) != c.source || m.pool != c.pool || m.noGrad != c.noGrad ||
		m.tf32 != c.tf32 || m.manual != c.byHand ||
		f.ins != int(c.ins) || len(f.many) != int(c.many) || f.structure.i != c.i || f.structure.dt != c.dt || f.holes != c.holes ||
		f.holeFloat != c.holeFloat || f.hosts != c.hosts || f.opt != c.opt ||
		!infer.Same(f.dims, c.list.ints()) {
		return false
	}
	if d := f.row.decides; d != 0 {
		for i := range c.scalar {
			if d>>i&1 != 0 && numberOf(&f.scalar[i]) != c.scalar[i] || d>>(4+i)&1 != 0 && numberOf(&f.hole[i]) != c.hole[i] {
				return false
			}
		}
	}
	n := 0
	for i := 0; i < f.ins; i++ {
		if !f.matchesOperand(c, n, f.in[i], s) {
			return false
		}
		n++
	}
	for _, t := range f.many {
		if !f.matchesOperand(c, n, t, s) {
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
		if !f.matchesOperand(c, n, f.dst[i], s) {
			return false
		}
		n++
	}
	return true
}

func (f *frame) matchesOperand(c *Call, n int, t *Tensor, s *Slots) bool {
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
	off := 0
	if t.offset != 0 {
		off = t.offset * t.dt.Size()
	}
	slot, place := s.at(t.st.number(), off)
	return slot == o.storage && place == o.offset
}

// Made gives the outputs of a call that has ended their slots, unless they are views.
func (f *frame) Made(s *Slots) {
	if f.row.flags&flagView != 0 {
		return
	}
	for i := 0; i < f.outs; i++ {
		s.of(f.out[i].st.number())
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
