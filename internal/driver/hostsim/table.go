package hostsim

// table gives objects handles that are never zero and never reused: the low 32 bits are a slot, the high 32 count its uses.
type table[T any] struct {
	slots []slot[T]
	free  []uint32
}

type slot[T any] struct {
	value *T
	uses  uint32
}

// add returns v's new handle.
func (t *table[T]) add(v *T) uintptr {
	var i uint32
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		i = uint32(len(t.slots))
		t.slots = append(t.slots, slot[T]{uses: 1})
	}
	t.slots[i].value = v
	return uintptr(t.slots[i].uses)<<32 | uintptr(i)
}

// get returns the object of handle h, or nil.
func (t *table[T]) get(h uintptr) *T {
	i := uint32(h)
	if uint(i) >= uint(len(t.slots)) || t.slots[i].uses != uint32(h>>32) {
		return nil
	}
	return t.slots[i].value
}

// remove removes handle h and returns its object, or nil.
func (t *table[T]) remove(h uintptr) *T {
	v := t.get(h)
	if v != nil {
		s := &t.slots[uint32(h)]
		s.value = nil
		s.uses++
		t.free = append(t.free, uint32(h))
	}
	return v
}
