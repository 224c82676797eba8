package rt

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"tenon.dev/internal/alloc"
	"tenon.dev/profile"
)

// MemoryUse is how an operation uses memory.
type MemoryUse uint8

// The uses: the operation reads the memory; the memory is a parameter's, or a gradient of one; the operation creates the content, or
// changes it; bytes of the host are copied there; a forward operation that autograd records makes the content.
const (
	UseRead MemoryUse = iota
	UseParameter
	UseGradient
	UseMake
	UseChange
	UseCopy
	UseActivation
)

// Uses notes how o uses the memory at an address, if a block begins there.
func (o *ProfiledOp) Uses(addr uint64, use MemoryUse) {
	p := o.p
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.live[addr]
	if b == nil || p.ended {
		return
	}
	b.used = true
	optimizes := o.op.Phase == profile.Optimizer
	switch use {
	case UseParameter:
		b.parameter = true
	case UseGradient:
		b.gradient = true
	case UseMake:
		b.maker = o
	case UseCopy:
		b.copied = b.maker == nil
	case UseActivation:
		b.activation = true
	case UseChange:
		b.state = b.state || optimizes
		if b.maker == nil && !b.copied {
			b.maker = o
		}
	}
}

// BecameGradient tells the profiler, if there is one, that the block at an address holds a gradient.
func (d *Device) BecameGradient(addr uint64) {
	d.inProfile(addr, func(_ *Profiler, b *profiledBlock) { b.gradient = true })
}

// inProfile calls f, with the profiler's mu held, if the profiler knows a live block at an address.
func (d *Device) inProfile(addr uint64, f func(p *Profiler, b *profiledBlock)) {
	p := d.Profiler()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.live[addr]; b != nil && !p.ended {
		f(p, b)
	}
}

// category returns what a block was used for. The caller holds the profiler's mu.
func (p *Profiler) category(b *profiledBlock) profile.Category {
	switch {
	case b.parameter:
		return profile.Parameters
	case b.gradient:
		return profile.Gradients
	case b.state && (b.before || b.outlives(p.ops)):
		return profile.OptimizerState
	case b.before && !b.used:
		return profile.Other
	case b.before || b.copied:
		return profile.Inputs
	case b.activation, b.maker != nil && b.maker.saves():
		return profile.Activations
	}
	return profile.Temporaries
}

// saves is Saves for callers that hold o.p.mu.
func (o *ProfiledOp) saves() bool { return o.recorded && o.op.Phase == profile.Forward }

// Saves reports whether o, which may be nil, is a forward operation whose outputs autograd records.
func (o *ProfiledOp) Saves() bool {
	if o == nil {
		return false
	}
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	return o.saves()
}

// Doer returns the entry whose kernel does the work of o, which may be nil: that of its group, or o.
func (o *ProfiledOp) Doer() *ProfiledOp {
	if o == nil {
		return nil
	}
	if f := o.Fused(); f != nil {
		return f
	}
	return o
}

// LentBlock is memory of a pool that a run of a graph uses, of which the allocator knows nothing.
type LentBlock struct {
	Addr, Size uint64
	// From and To are when the run begins and ceases to use it, as fractions of the run. If Stays is true, it is in use until Returned or,
	// if Owned is true too, until the allocator frees it.
	From, To     float64
	Stays, Owned bool
	// Maker is the operation that makes its contents, or nil. Gradient, Activation and Copy say what it is, as MemoryUse does.
	Maker                      *ProfiledOp
	Gradient, Activation, Copy bool
}

// Lent adds the memory of a run that the host has queued from began until now.
func (p *Profiler) Lent(began time.Time, all []LentBlock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	begin := max(began.Sub(p.began), 0)
	took := float64(time.Since(p.began) - begin)
	inUse := slices.SortedFunc(maps.Values(p.live), func(a, b *profiledBlock) int { return cmp.Compare(a.addr, b.addr) })
	at := func(part float64) time.Duration { return begin + time.Duration(part*took) }
	for i := range all {
		l := &all[i]
		b := &profiledBlock{addr: l.Addr, size: l.Size, at: at(l.From), freed: at(l.To), used: true, lent: !l.Owned, gradient: l.Gradient,
			activation: l.Activation, copied: l.Copy}
		if l.Maker.Index(p) >= 0 {
			b.maker = l.Maker
		}
		p.overwrite(inUse, b)
		if l.Stays {
			p.add(b)
		} else {
			p.blocks = append(p.blocks, b)
		}
	}
}

// overwrite ends the memory among inUse, in order of the addresses, that b uses again: the run may use inputs' memory after their last use,
// which the allocator sees only after the run. The caller holds p.mu.
func (p *Profiler) overwrite(inUse []*profiledBlock, b *profiledBlock) {
	i, _ := slices.BinarySearchFunc(inUse, b.addr, func(o *profiledBlock, addr uint64) int { return cmp.Compare(o.addr, addr) })
	for i = max(i-1, 0); i < len(inUse) && inUse[i].addr < b.addr+b.size; i++ {
		if old := inUse[i]; old.freed < 0 && b.addr < old.addr+old.size {
			p.retire(old.addr, b.at)
		}
	}
}

// retire ends a block that is in use. The caller holds p.mu.
func (p *Profiler) retire(addr uint64, at time.Duration) {
	if b := p.live[addr]; b != nil {
		b.freed = max(at, b.at)
		delete(p.live, addr)
	}
}

// Returned ends lent memory that stayed in use after its run.
func (p *Profiler) Returned(addr uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.live[addr]; b != nil && b.lent {
		p.retire(addr, time.Since(p.began))
	}
}

// restored notes what the allocator freed and allocated without an action.
func (p *Profiler) restored(freed []uint64, made map[uint64]*alloc.Block) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	now := time.Since(p.began)
	for _, addr := range freed {
		if b := p.live[addr]; b != nil && !b.lent && made[addr] == nil {
			p.retire(addr, now)
		}
	}
	for _, addr := range slices.Sorted(maps.Keys(made)) {
		if p.live[addr] == nil {
			p.add(&profiledBlock{addr: addr, size: made[addr].Size(), at: now, before: true})
		}
	}
}

// owned notes that lent memory has a block of the allocator, whose end that will report. The caller does not hold p.mu.
func (p *Profiler) owned(addr uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.live[addr]; b != nil {
		b.lent = false
	}
}

// MovedLent tells the profiler, if there is one, that the block at to has the contents of the lent memory at from. If gradient is true,
// they are a parameter's gradient.
func (d *Device) MovedLent(from, to uint64, gradient bool) {
	p := d.Profiler()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, old := p.live[to], p.live[from]
	if b == nil || p.ended {
		return
	}
	b.used, b.gradient = true, gradient
	if old == nil { // it was made before the profile
		b.copied = true
		return
	}
	b.maker, b.copied, b.activation, b.state = old.maker, old.copied, old.activation, old.state
}

// ReturnedLent tells the profiler, if there is one, that nobody uses lent memory any more.
func (d *Device) ReturnedLent(addr uint64) {
	if p := d.Profiler(); p != nil {
		p.Returned(addr)
	}
}

// Reused tells the profiler, if there is one, that the block at an address belongs to another tensor from now on.
func (d *Device) Reused(addr uint64) {
	d.inProfile(addr, func(p *Profiler, b *profiledBlock) {
		now := time.Since(p.began)
		p.retire(addr, now)
		p.add(&profiledBlock{addr: addr, size: b.size, at: now})
	})
}

// outlives reports whether b was still in use after the optimizer step that made it: when an operation outside of optimizers began, or at
// the end.
func (b *profiledBlock) outlives(ops []*ProfiledOp) bool {
	if b.freed < 0 {
		return true
	}
	i, _ := slices.BinarySearchFunc(ops, b.at, func(o *ProfiledOp, at time.Duration) int { return cmp.Compare(o.op.Begin, at) })
	for ; i < len(ops) && ops[i].op.Begin < b.freed; i++ {
		if ops[i].op.Phase != profile.Optimizer {
			return true
		}
	}
	return false
}

// history returns the memory's events. The caller holds p.mu.
func (p *Profiler) history() []profile.MemoryEvent {
	var out []profile.MemoryEvent
	for _, b := range p.blocks {
		e := profile.MemoryEvent{At: b.at, Addr: b.addr, Bytes: int64(b.size), Category: p.category(b), Op: b.maker.Index(p)}
		out = append(out, e)
		if b.freed >= 0 {
			e.At, e.Bytes = b.freed, -e.Bytes
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b profile.MemoryEvent) int { return cmp.Compare(a.At, b.At) })
	return out
}

// segmentLog is what the allocator takes from the device and gives back. It has a lock of its own, since the allocator calls with its lock
// held.
type segmentLog struct {
	mu     sync.Mutex
	begun  bool              // before has run
	sizes  map[uint64]uint64 // of the segments in use, by address
	events []profile.SegmentEvent
}

// before adds the segments that exist already. The allocator's lock is held, so that none of them goes or comes meanwhile.
func (l *segmentLog) before(segments []alloc.SegmentInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var old []profile.SegmentEvent
	for _, g := range segments {
		if _, ok := l.sizes[g.Addr]; !ok { // otherwise it was taken since the profile began
			l.set(g.Addr, g.TotalSize)
			old = append(old, profile.SegmentEvent{Addr: g.Addr, Bytes: int64(g.TotalSize)})
		}
	}
	l.events, l.begun = append(old, l.events...), true
}

// set notes the size of a segment. The caller holds l.mu.
func (l *segmentLog) set(addr, size uint64) {
	if l.sizes == nil {
		l.sizes = map[uint64]uint64{}
	}
	l.sizes[addr] = size
}

// taken notes memory that was taken from the device.
func (l *segmentLog) taken(at time.Duration, addr, size uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(addr, size)
	l.events = append(l.events, profile.SegmentEvent{At: at, Addr: addr, Bytes: int64(size)})
}

// given notes memory that is given back, and returns its size, which is 0 if the log does not know the segment: before has not run, and
// will not see it. A size of 0 stands for that of the whole segment.
func (l *segmentLog) given(at time.Duration, addr, size uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.sizes[addr]
	switch {
	case !ok && !l.begun:
		return 0
	case size == 0:
		size = known
	}
	delete(l.sizes, addr)
	if size > 0 {
		l.events = append(l.events, profile.SegmentEvent{At: at, Addr: addr, Bytes: -int64(size)})
	}
	return size
}

// end returns the events and forgets them.
func (l *segmentLog) end() []profile.SegmentEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	events := l.events
	l.events, l.sizes = nil, nil
	return events
}

// takes tells the profiler of memory that the allocator took from the device.
func (d *Device) takes(addr, size uint64) {
	if p := d.Profiler(); p != nil {
		p.segments.taken(time.Since(p.began), addr, size)
	}
}

// gives runs free, which gives memory of the allocator back to the device, and tells the profiler. It does so before, since someone else
// may take the same address right afterwards. A size of 0 stands for the whole segment.
func (d *Device) gives(addr, size uint64, free func() error) error {
	p := d.Profiler()
	if p == nil {
		return free()
	}
	size = p.segments.given(time.Since(p.began), addr, size)
	err := free()
	if err != nil && size > 0 {
		p.segments.taken(time.Since(p.began), addr, size)
	}
	return err
}
