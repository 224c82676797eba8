package core

import (
	"errors"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// Place keeps the plans of calls that were put off, up to one call of a path of calls: the path and how many calls wait say which. Its
// owner is one session, and it belongs to the tap that remembers the path.
type Place struct{ plans []*plan }

// maxPlans is how many plans a place keeps, for calls that began to wait in different places, or whose results are needed otherwise.
const maxPlans = 8

// fusing is what a deferral knows of fusion.
type fusing struct {
	// place is that of the last call, and placed counts the calls that have one.
	place  *Place
	placed int
	// live has a bit for every output that somebody may use afterwards.
	live []uint64
	// group is what runFused is to run, on these operands and numbers.
	group   *fusedGroup
	handles [kernels.MaxFusedOperands]Tensor
	numbers []kernels.Scalar
	stats   FusionStats
}

// FusionStats counts what became of calls that were put off.
type FusionStats struct {
	// Kernels are the built-in kernels that were launched for them, Fused the calls that ran in kernels of several, and Dropped those that
	// did not run, since nobody needed what they make or another call made it too.
	Kernels, Fused, Dropped int
}

// Fusion returns the counts of x's session.
func Fusion(x *Exec) FusionStats {
	if d := x.s.putOff; d != nil {
		return d.fusing.stats
	}
	return FusionStats{}
}

// PlanAt says where the plans of calls up to this one are kept, which was put off. A tap calls it for every call that it puts off, or the
// calls run one by one.
func (f *frame) PlanAt(p *Place) {
	d := &f.x.s.putOff.fusing
	d.place = p
	d.placed++
}

// plan is how calls that were put off run.
type plan struct {
	n    int
	live []uint64
	// plain says that they run one by one as they came.
	plain   bool
	renames []rename
	steps   []planStep
	fused   int
	dropped int
}

// rename lets an operand have the storage of another one.
type rename struct{ what, is at }

// at is an operand of a call that was put off: an input or, from maxIn on, an output.
type at struct{ call, operand int }

func (a at) of(calls []deferred) *element {
	if a.operand < maxIn {
		return &calls[a.call].in[a.operand]
	}
	return &calls[a.call].out[a.operand-maxIn]
}

// planStep is one call, or a group.
type planStep struct {
	calls []int
	group *fusedGroup
	// ends are operands whose storages no later step uses.
	ends []at
}

// fusedGroup is calls that run as one kernel.
type fusedGroup struct {
	op        *kernels.PointOp
	outs, ins []at
	// operands are the kernel's, but for their addresses: n elements in one run, where run says so, of which those in repeat are one.
	operands []kernels.Operand
	run      bool
	n        int
	repeat   uint16
	numbers  []numberAt
}

// numberAt is a scalar of a call or, where hole says so, the number in place of an operand, which is made a number of type half if there is
// one.
type numberAt struct {
	call, index int
	hole        bool
	half        dtype.DType
}

func (n numberAt) of(calls []deferred) kernels.Scalar {
	c := &calls[n.call]
	if !n.hole {
		return c.scalar[n.index]
	}
	v := c.hole[n.index]
	if n.half != dtype.Invalid {
		v.F = halved(v.F, n.half)
	}
	return v
}

// planned returns the plan for the calls, which it makes if there is none, or nil where they run one by one.
func (d *deferral) planned() *plan {
	f := &d.fusing
	if f.place == nil || f.placed != len(d.calls) {
		return nil
	}
	d.findLive()
	for _, p := range f.place.plans {
		if p.n == len(d.calls) && slices.Equal(p.live, f.live) {
			return p.orNil()
		}
	}
	p := d.newPlan()
	if len(f.place.plans) == maxPlans {
		f.place.plans = slices.Delete(f.place.plans, 0, 1)
	}
	f.place.plans = append(f.place.plans, p)
	return p.orNil()
}

func (p *plan) orNil() *plan {
	if p.plain {
		return nil
	}
	return p
}

// findLive notes which outputs of the calls have holders.
func (d *deferral) findLive() {
	live, bit := d.fusing.live[:0], 0
	for i := range d.calls {
		c := &d.calls[i]
		for j := range c.out[:c.outs] {
			if bit%64 == 0 {
				live = append(live, 0)
			}
			if c.out[j].st.others.Load() != abandoned {
				live[bit/64] |= 1 << (bit % 64)
			}
			bit++
		}
	}
	d.fusing.live = live
}

// count counts the kernels that were launched since there were n.
func (d *deferral) count(n int64) { d.fusing.stats.Kernels += int(d.s.launches - n) }

// runPlan runs the calls. What an error keeps it from making is lost.
func (d *deferral) runPlan(p *plan) (freed error) {
	calls := d.calls
	for _, r := range p.renames {
		r.what.of(calls).st = r.is.of(calls).st
	}
	ran := 0
	defer func() {
		for _, s := range p.steps[ran:] {
			for _, i := range s.calls {
				calls[i].lose()
			}
		}
	}()
	for ; ran < len(p.steps); ran++ {
		s := &p.steps[ran]
		if s.group != nil {
			d.runGroup(s, calls)
		} else {
			d.run(&calls[s.calls[0]])
		}
		for _, a := range s.ends {
			freed = errors.Join(freed, a.of(calls).st.endDeferral())
		}
	}
	d.fusing.stats.Fused += p.fused
	d.fusing.stats.Dropped += p.dropped
	return freed
}

// rowFused is what a group is to the launch ring and to errors. It is no operation that anybody calls.
var rowFused = &row{Name: "Fused", run: runFused, id: rt.RegisterOp("Fused")}

// runGroup runs the group of s, on the operands and with the numbers of calls.
func (d *deferral) runGroup(s *planStep, calls []deferred) {
	g, h := s.group, &d.fusing.handles
	f := d.s.enter(calls[s.calls[len(s.calls)-1]].x, rowFused)
	f.again = true
	for i, a := range g.ins {
		f.many = append(f.many, setHandle(&h[len(g.outs)+i], a.of(calls)))
	}
	for i, a := range g.outs {
		e := a.of(calls)
		if st := e.st; st.bytes > 0 && st.block == nil && st.locked == nil {
			b, err := f.x.alloc(st.bytes)
			f.check(err)
			st.block, st.ptr = b, b.Addr()
			live.Add(1)
		} else {
			f.dst[i] = &h[i]
		}
		f.setOut(i, setHandle(&h[i], e))
	}
	d.fusing.numbers = d.fusing.numbers[:0]
	for _, n := range g.numbers {
		d.fusing.numbers = append(d.fusing.numbers, n.of(calls))
	}
	d.fusing.group = g
	f.issue(false)
	d.s.leave(f)
	for i := range len(g.outs) + len(g.ins) {
		h[i].st = nil
	}
}

func setHandle(t *Tensor, e *element) *Tensor {
	t.st, t.form, t.dt, t.offset = e.st, e.form, e.dt, e.offset
	return t
}

// runFused launches the group's kernel.
func runFused(f *frame) error {
	d := f.x.s.putOff
	g := d.fusing.group
	f.opers = append(f.opers[:0], g.operands...)
	for i := range f.opers {
		f.opers[i].Ptr = d.fusing.handles[i].ptr()
	}
	numbers, outs, ins := d.fusing.numbers, f.opers[:len(g.outs)], f.opers[len(g.outs):]
	if g.run {
		return kernels.PointwiseRun(f, g.op, dtype.Float32, numbers, outs, ins, g.n, g.repeat)
	}
	return kernels.Pointwise(f, g.op, dtype.Float32, numbers, outs, ins)
}

// lie fills in how the group's operands lie: outputs first, all in the first output's shape.
func (g *fusedGroup) lie(all []element) {
	form := all[0].form
	g.run, g.n = form.plain, form.numel
	for i := range all {
		e := &all[i]
		o := kernels.Operand{DType: e.dt, Shape: form.shape, Stride: e.form.stride}
		if !infer.Same(e.form.shape, form.shape) {
			o.Stride = make([]int, len(form.shape))
			infer.BroadcastStrides(o.Stride, e.form.shape, e.form.stride, form.shape)
		}
		switch {
		case e.form == form:
		case i >= len(g.outs) && e.form.numel == 1 && form.numel > 1:
			g.repeat |= 1 << i
		default:
			g.run = false
		}
		g.operands = append(g.operands, o)
	}
}
