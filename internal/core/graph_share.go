package core

import "slices"

// slot returns the index in d.touched of a storage that d's calls use, and whether they do.
func (d *deferral) slot(st *storage) (int32, bool) {
	switch st.deferral() {
	case d.number:
		return st.slot, true
	case several:
		if i, ok := d.sharing[st]; ok {
			return i, true
		}
		s := &st.rare.Load().sharers
		s.Lock()
		defer s.Unlock()
		if s.first == d.number {
			d.share(st, st.slot)
			return st.slot, true
		}
	}
	return 0, false
}

// slotIn is slot for a storage that d's calls use, or used until they ran.
func (d *deferral) slotIn(st *storage) int32 {
	if i, ok := d.sharing[st]; ok {
		return i
	}
	return st.slot
}

// share notes the index of a storage that is shared.
func (d *deferral) share(st *storage, slot int32) {
	if d.sharing == nil {
		d.sharing = map[*storage]int32{}
	}
	d.sharing[st] = slot
}

// take notes that the session's calls use s, and returns its index in d.touched. It returns false if another session's calls use s, unless
// all of them only read it.
func (d *deferral) take(s *storage, write bool) (slot int32, ok bool) {
	bits := d.number << numberBits
	if write {
		bits |= writtenBit
	}
	for {
		id := s.id.Load()
		switch n := id & deferralsOf >> numberBits; {
		case id == 0:
			s.number()
		case n == 0:
			if s.id.CompareAndSwap(id, id|bits) {
				s.slot = int32(len(d.touched))
				d.touch(s)
				return s.slot, true
			}
		case n == d.number:
			if id&bits == bits || s.id.CompareAndSwap(id, id|bits) {
				return s.slot, true
			}
		case write && n == several && d.reclaim(s):
		case n == lost || write || id&writtenBit != 0:
			return 0, false
		default:
			if slot, ok := d.takePart(s, id); ok {
				return slot, true
			}
		}
	}
}

// takePart is take for a storage with that id, which other sessions' calls only read. It returns false if the id has changed.
func (d *deferral) takePart(s *storage, id uint64) (slot int32, ok bool) {
	n := id & deferralsOf >> numberBits
	if n == several {
		if slot, ok := d.slot(s); ok {
			return slot, true
		}
	}
	sh := &s.uncommon().sharers
	sh.Lock()
	defer sh.Unlock()
	if n == several {
		if s.id.Load() != id {
			return 0, false
		}
		sh.of = append(sh.of, d.number)
	} else {
		if !s.id.CompareAndSwap(id, id&^deferralsOf|several<<numberBits) {
			return 0, false
		}
		sh.of, sh.first = append(sh.of[:0], n, d.number), n
	}
	slot = int32(len(d.touched))
	d.touch(s)
	d.share(s, slot)
	return slot, true
}

// reclaim makes a shared storage that no other deferral's calls read any more d's own again, and reports whether it could.
func (d *deferral) reclaim(s *storage) bool {
	slot, ok := d.slot(s)
	if !ok {
		return false
	}
	sh := &s.rare.Load().sharers
	sh.Lock()
	defer sh.Unlock()
	if len(sh.of) != 1 || sh.of[0] != d.number {
		return false
	}
	s.slot = slot
	delete(d.sharing, s)
	sh.of, sh.first = sh.of[:0], 0
	for {
		id := s.id.Load()
		if s.id.CompareAndSwap(id, id&^deferralsOf|d.number<<numberBits) {
			return true
		}
	}
}

// touch adds s to the storages that the calls use. The caller gives it its slot.
func (d *deferral) touch(s *storage) {
	d.touched = append(d.touched, s)
	d.places = append(d.places, whereabouts{})
}

// unheld reports whether the holders of s, which a session's calls use, have released it, and no other session's calls read it. Since there
// is no reference to copy, none can begin to.
func (s *storage) unheld() bool { return s.others.Load() == abandoned && s.deferral() != several }

// endDeferral ends the use of s by calls of the deferral with that number, and frees s if its holders have released it. A lost storage
// stays lost. If the calls' last use has ended already, another session's calls may use s by now.
func (s *storage) endDeferral(by uint64) error {
	var old uint64
	for {
		old = s.id.Load()
		keep := uint64(numberMask)
		switch old & deferralsOf >> numberBits {
		case by:
			if s.others.Load() == abandoned && s.block == nil && s.ptr == 0 && s.locked() == nil {
				return nil // nothing to free, and nobody looks
			}
		case lost:
			keep |= deferralsOf
		case several:
			if !s.endShare(by) {
				return nil
			}
			return s.ended(old)
		default:
			return nil
		}
		if s.id.CompareAndSwap(old, old&keep) {
			return s.ended(old)
		}
	}
}

// endShare ends the reads of one of several deferrals, and reports whether it was the last.
func (s *storage) endShare(by uint64) (last bool) {
	sh := &s.rare.Load().sharers
	sh.Lock()
	defer sh.Unlock()
	i := slices.Index(sh.of, by)
	if i < 0 || s.deferral() != several {
		return false
	}
	sh.of = slices.Delete(sh.of, i, i+1)
	if sh.first == by {
		sh.first = 0
	}
	if len(sh.of) > 0 {
		return false
	}
	for {
		id := s.id.Load()
		if s.id.CompareAndSwap(id, id&numberMask) {
			return true
		}
	}
}

// ended does what had to wait for the calls that used s. old is its id before.
func (s *storage) ended(old uint64) error {
	switch {
	case s.others.Load() == abandoned && s.others.CompareAndSwap(abandoned, abandoned-1):
		return s.free()
	case old&looseBit != 0:
		s.loosen()
	}
	return nil
}
