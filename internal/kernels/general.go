package kernels

// Kernels that hold rows in registers are made for the number of threads that share a row and for the number of vectors that each holds,
// so rows of many lengths need many kernels. A general kernel does the work of all of them, with the same arguments and launches and the
// same bits: the number of threads is an argument, and there are as many vectors as a thread may have. It is slower, because threads load
// and compute vectors that they do not have.

// General returns the kernel that stands for that of s if rows have many lengths, if ok. kin is the same for all kernels that differ from s
// only in what follows from the lengths and the addresses of rows.
func (s *Spec) General() (general, kin Spec, ok bool) {
	general, kin = *s, *s
	kin.Vec, kin.Back = 0, 0
	switch {
	case s.Family == FamilyRows && s.Rows.Chunks > 0 && rowOpOf(s).sums == nil:
		r := &general.Rows
		r.Group, r.Warps, r.Exact, r.Ahead, r.Chunks = 0, 0, false, 0, uint8(mostChunks(int(s.Vec)))
		general.Back = 0
		kin.Rows = rowSpec{Absent: s.Rows.Absent, Kept: s.Rows.Kept, Repeat: s.Rows.Repeat}
		return general, kin, s.Rows.Chunks <= r.Chunks
	case s.Family == FamilyReduce && s.Reduce.Shape == reduceRow && s.Reduce.Chunks > 0:
		r := &general.Reduce
		most := generalHeld / s.heldRegisters()
		r.Wide, r.Exact, r.Chunks = 0, false, uint8(min(rowHeld, most)/int(s.Vec))
		kin.Reduce = reduceSpec{Shape: reduceRow, Stage: s.Reduce.Stage, Kept: s.Reduce.Kept, Reduced: s.Reduce.Reduced}
		return general, kin, s.Reduce.Chunks <= r.Chunks
	}
	return general, kin, false
}

// generalHeld is the maximum number of registers for the elements that a thread of a general kernel of a reduction holds.
const generalHeld = 64

// heldRegisters is the number of registers for an element of all that a thread of a reduction holds.
func (s *Spec) heldRegisters() (n int) {
	ins := s.DTypes[s.Outs : s.Outs+s.Ins]
	f := reduceOpOf(s).fused
	if f == nil {
		return registersOf(ins[0])
	}
	for _, t := range f.kept {
		n += registersOf(t)
	}
	for i, t := range ins[:f.read] {
		if !s.Reduce.Repeat.has(i) {
			n += registersOf(t)
		}
	}
	return max(1, n)
}
