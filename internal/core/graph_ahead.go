package core

import (
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// BuildAhead begins to build the kernels that the calls need, side by side: a run waits for each in turn where the driver takes long to
// compile. It learns which they are by running the calls with no work for the device, on memory that is not there, and leaves the segment
// as it was. What fails here fails again in the run. on is a stream that nobody else uses, on the device of all calls.
func (g *Segment) BuildAhead(on *rt.Stream) {
	dev := on.Device()
	if !dev.BuildsAhead() {
		return
	}
	g.full()
	d, s := g.d, g.d.s
	d.prepare(g.plans)
	l := &lending{run: on, of: g.Stream(), manual: true, fixed: true, learns: true, stand: g.standIns()}
	launches, mark := s.launches, s.mark()
	s.lent = l
	defer func() { s.lent, s.launches = nil, launches }()
	for step, i := range d.plan.units(len(d.calls)) {
		if Try(func() { d.runUnit(step, i) }) != nil {
			s.restore(mark)
		}
	}
	dev.BuildAhead(l.needs)
}

// nowhere is an address that is aligned like memory of the allocator.
const nowhere = 1 << 30

// standIns returns a function that gives storages without memory an address.
func (g *Segment) standIns() func(st *storage) *storage {
	stands := make([]*storage, len(g.d.touched))
	return func(st *storage) *storage {
		if st.ptr != 0 || st.bytes == 0 {
			return st
		}
		if stands[st.slot] == nil {
			stands[st.slot] = &storage{dev: st.dev, bytes: st.bytes, ptr: nowhere}
		}
		return stands[st.slot]
	}
}

// learn is issue for a call that only learns which kernels it needs. Operations of other packages are left out, since they may do more than
// issue kernels.
func (f *frame) learn() {
	switch r := f.row; {
	case r.flags&flagIdle != 0 || r.pkg != ownPackage:
	case r.run != nil:
		f.check(r.run(f))
	default:
		f.check(f.runPoint())
	}
}

// learn notes that the calls need the kernel of s, in place of a launch.
func (l *lending) learn(s *kernels.Spec) {
	if _, known := l.needed[*s]; known {
		return
	}
	if l.needed == nil {
		l.needed = map[kernels.Spec]struct{}{}
	}
	l.needed[*s] = struct{}{}
	l.needs = append(l.needs, *s)
}
