package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/rt"
	"tenon.dev/profile"
)

// profiled is call while a profiler watches the device: it reports the call and its launches to p.
func (f *frame) profiled(p *rt.Profiler) {
	op := f.beginProfiled(p)
	defer func() {
		f.op = nil
		op.End()
	}()
	f.stages()
	f.endProfiled()
	f.tellUses()
}

// beginProfiled reports the start of the call to p.
func (f *frame) beginProfiled(p *rt.Profiler) *rt.ProfiledOp {
	s := f.x.s
	phase := profile.Forward
	if s.run != nil {
		phase = profile.Backward
	}
	op := p.Begin(f.row.Name, profile.KindOp, phase, f.x.m.stream)
	if s.run != nil && s.run.node != nil && s.run.node.extra != nil {
		op.Stands(s.run.node.extra.op)
	}
	f.op = op
	return op
}

// endProfiled reports the results of the call.
func (f *frame) endProfiled() {
	s, op := f.x.s, f.op
	recorded := f.outs > 0 && f.out[0].node != nil && f.to(0) == nil
	if recorded && s.run == nil {
		f.out[0].node.more().op = op
	}
	op.Describe(recorded, func(o *profile.Op) {
		o.Parent = f.under().Index(op.Profiler())
		if o.Within = f.Within(); len(s.doing) > 0 {
			o.Within = s.doing[0]
		}
		f.describe(o)
	})
}

// under returns the operation that f's is a part of, or nil.
func (f *frame) under() *rt.ProfiledOp {
	frames := f.x.s.frames[:f.x.s.depth]
	for _, o := range slices.Backward(frames[:slices.Index(frames, f)]) {
		if o.op != nil {
			return o.op
		}
	}
	return nil
}

// describe fills in the operands, and the bytes and FLOPs of the call.
func (f *frame) describe(o *profile.Op) {
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.many} {
		for _, t := range ts {
			if t != nil {
				o.Inputs = append(o.Inputs, tensorOf(t))
			}
		}
	}
	for _, ts := range [][]*Tensor{f.out[:f.outs], f.altered} {
		for _, t := range ts {
			o.Outputs = append(o.Outputs, tensorOf(t))
		}
	}
	c := f.cost()
	c.tell(o)
}

// cost is what a call must do at least: the bytes that it reads and writes, and the FLOPs in a type.
type cost struct {
	bytes, flops int64
	compute      dtype.DType // or 0
	tf32         bool
}

// tell sets the cost of o to c.
func (c *cost) tell(o *profile.Op) {
	o.Bytes, o.FLOPs = c.bytes, c.flops
	switch {
	case c.tf32:
		o.Compute = "tf32"
	case c.compute != 0:
		o.Compute = c.compute.String()
	}
}

// cost returns the cost of the call, which has its results.
func (f *frame) cost() (c cost) {
	if f.row.flags&(flagView|flagIdle) != 0 {
		return c
	}
	if f.outs > 0 {
		c.compute = f.out[0].dt
	}
	c.bytes = f.bytesMoved()
	switch {
	case f.outs == 0:
	case f.row.flops != nil:
		c.flops = f.row.flops(f)
		c.tf32 = f.x.m.tf32 && f.out[0].dt == dtype.Float32
	case f.row.point != nil || f.row.points:
		c.flops = int64(f.out[0].numel)
	}
	return c
}

// bytesMoved returns how many bytes the call, which has its results, reads and writes at least.
func (f *frame) bytesMoved() (n int64) {
	switch {
	case f.row.flags&(flagView|flagIdle) != 0:
		return 0
	case f.outs > 0 && f.row.moves != nil:
		return f.row.moves(f)
	}
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.many, f.out[:f.outs], f.altered} {
		for _, t := range ts {
			if t != nil {
				n += bytesOnce(t)
			}
		}
	}
	return n
}

func tensorOf(t *Tensor) profile.Tensor { return profile.Tensor{DType: t.dt.String(), Shape: t.shape} }

// tellUses tells the profiler which memory the call uses. A deferred call has no memory yet, and reports it when it runs.
func (f *frame) tellUses() {
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.many} {
		for _, t := range ts {
			switch {
			case t == nil:
			case t.leaf != nil:
				f.op.Uses(t.st.ptr, rt.UseParameter)
				if g := t.leaf.grad.Load(); g != nil {
					f.op.Uses(g.st.ptr, rt.UseGradient)
				}
			default:
				f.tellUse(t, rt.UseRead)
			}
		}
	}
	for i, t := range f.out[:f.outs] {
		switch {
		case f.to(i) != nil:
			f.tellUse(t, rt.UseChange)
		case f.row.flags&(flagView|flagIdle) == 0:
			f.tellUse(t, rt.UseMake)
		}
	}
	for _, t := range f.altered {
		f.tellUse(t, rt.UseChange)
	}
}

// tellUse tells the profiler that the call uses t. The handles of a deferred call do not know that they are gradients, nor those of a
// frozen module that they are parameters; their storages do.
func (f *frame) tellUse(t *Tensor, use rt.MemoryUse) {
	f.op.Uses(t.st.ptr, use)
	marks := t.st.marks.Load()
	if marks&ofLeaf != 0 {
		f.op.Uses(t.st.ptr, rt.UseGradient)
	}
	if marks&ofParam != 0 {
		f.op.Uses(t.st.ptr, rt.UseParameter)
	}
}

// tellRun tells the profiler that a deferred call runs now.
func (f *frame) tellRun() {
	f.op.Describe(false, func(o *profile.Op) { o.Deferred = true })
	if l := f.x.s.lent; l == nil || !l.fixed { // else it uses no memory now
		f.tellUses()
	}
}

// issueFused is issue for the group of s. A profiler records the group if it recorded one of its calls.
func (d *deferral) issueFused(f *frame, s *planStep) {
	if n := d.s.lent.noting(); n != nil {
		n.about = &profile.Op{} // for replays, which have no frame
		f.describe(n.about)
	}
	switch l := d.s.lent; {
	case l != nil && l.learns:
		f.learn()
		return
	case l != nil && l.fixed: // the recording's entry stands for it
		d.issueGroup(f)
		return
	}
	op := d.fusedEntry(s, f.x.m.stream)
	if op == nil {
		d.issueGroup(f)
		return
	}
	f.op = op
	defer func() {
		f.op = nil
		op.End()
	}()
	d.issueGroup(f)
	op.Describe(false, func(o *profile.Op) {
		flops := o.FLOPs
		f.describe(o)
		o.FLOPs = flops
	})
	f.tellUses()
	for i, a := range s.group.outs {
		if d.calls[a.call].op.Saves() {
			op.Uses(f.out[i].st.ptr, rt.UseActivation)
		}
	}
}

// issueGroup is issue for a group, whose outputs keep the memory that they took over if it succeeds.
func (d *deferral) issueGroup(f *frame) {
	f.issue()
	d.keepTaken()
}

// fusedEntry begins the profiler's entry for the group of s on st, or returns nil if no profiler recorded one of its calls.
func (d *deferral) fusedEntry(s *planStep, st *rt.Stream) *rt.ProfiledOp {
	p := st.Device().Profiler()
	var part *rt.ProfiledOp
	for _, i := range s.calls {
		if o := d.calls[i].op; o != nil && o.Profiler() == p {
			part = o
		}
	}
	if part == nil {
		return nil
	}
	op := p.Begin("Fused", profile.KindFused, profile.Forward, st)
	var flops int64
	for _, i := range s.calls {
		if o := d.calls[i].op; o.Index(p) >= 0 {
			o.FusedInto(op)
			o.Describe(false, func(o *profile.Op) { flops += o.FLOPs })
		}
	}
	op.Stands(part)
	op.Describe(false, func(o *profile.Op) { o.FLOPs = flops })
	return op
}

// ownersOf returns owners for r, or nil if no profiler watches the device.
func (g *Segment) ownersOf(r *Recorded) func() []*rt.ProfiledOp {
	if g.Stream().Device().Profiler() == nil {
		return nil
	}
	return func() []*rt.ProfiledOp { return g.owners(r) }
}

// owners returns the profiled operation of each piece of work in r: the call itself or, for a group, the group's entry.
func (g *Segment) owners(r *Recorded) []*rt.ProfiledOp {
	g.full()
	d := g.d
	all := make([]*rt.ProfiledOp, r.g.Tracked())
	for step, i := range r.plan.units(len(d.calls)) {
		n := &r.notes[i]
		op := d.calls[i].op
		if step != nil {
			op = g.ownerOf(step, n)
		}
		if op == nil || op.Profiler() != g.Stream().Device().Profiler() {
			continue
		}
		op.ReplaysOn(g.Stream())
		for k := n.from; k < n.to; k++ {
			all[k] = op
		}
	}
	return all
}

// ownerOf returns the entry of the group of s: the recording's, if that is for this replay, or a new one.
func (g *Segment) ownerOf(s *planStep, n *callNotes) *rt.ProfiledOp {
	d := g.d
	for _, i := range s.calls {
		if o := d.calls[i].op; o != nil && o.Fused() != nil {
			return o.Fused()
		}
	}
	op := d.fusedEntry(s, g.Stream())
	if op == nil {
		return nil
	}
	defer op.End()
	op.Describe(false, func(o *profile.Op) {
		a := n.about
		o.Deferred, o.Inputs, o.Outputs, o.Bytes, o.Compute = false, a.Inputs, a.Outputs, a.Bytes, a.Compute
	})
	return op
}

// transfer copies n bytes from or to the host by do, and reports the copy to p as the operation name.
func transfer(p *rt.Profiler, st *rt.Stream, name string, t *Tensor, n int, do func() error) error {
	op := p.Begin(name, profile.KindCopy, profile.Forward, st)
	defer op.End()
	op.Describe(false, func(o *profile.Op) {
		o.Bytes = int64(n)
		if name == "Read" {
			o.Inputs = []profile.Tensor{tensorOf(t)}
		} else {
			o.Outputs = []profile.Tensor{tensorOf(t)}
		}
	})
	use := rt.UseRead
	if name != "Read" {
		use = rt.UseCopy
	}
	op.Uses(t.st.ptr, use)
	return op.Work(st, name, do)
}
