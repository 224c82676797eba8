package core

import (
	"slices"

	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// BuildAhead begins to build the kernels that the calls need, side by side; otherwise a run builds one after the other and waits for each.
// To learn which they are, it runs the calls with no work for the device, on memory that is not there. No call has run afterwards. A call
// that fails in this, or that asks for another kernel later because of the addresses, builds its kernel in the run. If the calls may be
// recorded, their draws need other kernels then, which are built last.
func (g *Segment) BuildAhead(recorded bool) {
	devices := g.Devices()
	if !slices.ContainsFunc(devices, (*rt.Device).BuildsAhead) {
		return
	}
	g.full()
	d, s := g.d, g.d.s
	d.prepare(g.plans)
	l := &lending{fixed: true, learns: true, next: nowhere, needs: map[*rt.Device]*needs{}}
	l.stand = l.standIns(len(d.touched))
	mark := s.mark()
	s.lent = l
	defer func() { s.lent = nil }()
	for step, i := range d.plan.units(len(d.calls)) {
		if err := Try(func() { d.runUnit(step, i) }); err != nil {
			s.restore(mark)
			devices[0].NotLearned(err)
		}
	}
	l.graphed = true
	for step, i := range d.plan.units(len(d.calls)) {
		if step == nil && recorded && d.calls[i].row.draws != nil && Try(func() { d.runUnit(step, i) }) != nil {
			s.restore(mark)
		}
	}
	for _, dev := range devices {
		if n := l.needs[dev]; n != nil {
			dev.BuildAhead(n.list)
		}
	}
}

// needs are the kernels that calls need on a device, in the order of their first use.
type needs struct {
	list []kernels.Spec
	has  map[kernels.Spec]struct{}
}

// nowhere is where the addresses of memory that is not there begin.
const nowhere = 1 << 40

// space returns an address for n bytes of memory that is not there. It is aligned like memory of the allocator.
func (l *lending) space(n int) uint64 {
	const align = 512
	p := l.next
	l.next += uint64(max(n, 1)+align-1) &^ (align - 1)
	return p
}

// standIns returns a function that gives storages without memory an address; they have slots below n.
func (l *lending) standIns(n int) func(st *storage) *storage {
	stands := make([]*storage, n)
	return func(st *storage) *storage {
		if st.ptr != 0 || st.bytes == 0 {
			return st
		}
		if stands[st.slot] == nil {
			stands[st.slot] = &storage{dev: st.dev, bytes: st.bytes, ptr: l.space(st.bytes)}
		}
		return stands[st.slot]
	}
}

// learn is issue for a call that only learns which kernels it needs. The Run functions of other packages are left out, since they may do
// more than issue kernels.
func (f *frame) learn() {
	switch r := f.row; {
	case r.flags&flagIdle != 0 || r.pkg != ownPackage:
	case r.run != nil:
		f.check(r.run(f))
	default:
		f.check(f.runPoint())
	}
}

// learn notes that the calls need the kernel of s on dev, in place of a launch.
func (l *lending) learn(dev *rt.Device, s *kernels.Spec) {
	n := l.needs[dev]
	if n == nil {
		n = &needs{has: map[kernels.Spec]struct{}{}}
		l.needs[dev] = n
	}
	if _, known := n.has[*s]; !known {
		n.has[*s] = struct{}{}
		n.list = append(n.list, *s)
	}
}
