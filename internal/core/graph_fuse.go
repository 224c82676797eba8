package core

import (
	"errors"
	"iter"
	"slices"
	"time"

	"tenon.dev/dtype"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
	"tenon.dev/internal/stack"
)

// Plans keeps the plans of calls that were deferred along one path of calls; the number of waiting calls tells how far along the path they
// go. One session owns it.
type Plans struct {
	all  []*plan
	took time.Duration
}

// Took returns how long it took to make the plans.
func (p *Plans) Took() time.Duration { return p.took }

// maxPlans is how many plans are kept, for calls that began to wait in different places, or whose results are needed differently.
const maxPlans = 8

// fusing is a deferral's state for fusion.
type fusing struct {
	// live has a bit for every new output that somebody may still use.
	live []uint64
	// moved are the storages that the plan has replaced, taken those whose memory outputs of the group under way have taken over.
	moved, taken []moved
	// group is what runFused runs next, with these operands and numbers, and blamed the call that its errors name.
	group   *fusedGroup
	blamed  *deferred
	handles []Tensor
	numbers []kernels.Scalar
	// lists are the operands of each conversion of a join, and rows as many zeros.
	lists [][]kernels.Operand
	rows  []int32
	stats FusionStats
	// allow, unless it is nil, decides whether a new group is made.
	allow func(PlannedStep) bool
}

// moved is a storage, and the one that replaces it in all calls or takes over its memory.
type moved struct{ from, to *storage }

// FusionStats counts what happened to deferred calls.
type FusionStats struct {
	// Kernels are the built-in kernels that ran for them, Fused the calls that ran in a kernel with others, and Dropped those that did not
	// run, since nobody needed their results or another call computed the same.
	Kernels, Fused, Dropped int
	// Compared is 1 if what they made was compared with what they make one by one.
	Compared int
}

// plan is how to run deferred calls.
type plan struct {
	n    int
	live []uint64
	// plain says that they run one by one in their order.
	plain   bool
	folds   []fold
	renames []rename
	// laid are the operands that are laid out anew, and anew the number of their storages.
	laid   []relaying
	anew   int
	narrow []narrowing
	steps  []planStep
	// unused are operands whose storages no step uses.
	unused  []at
	fused   int
	dropped int
	// compared says that what it makes has been compared with what its calls make by themselves.
	compared bool
}

// fold lets call do what call by, which the plan leaves out, does to its operands.
type fold struct{ call, by int }

// rename gives an operand the storage of another one.
type rename struct{ what, is at }

// narrowing replaces an operand by the input of call by, which widened it and which the plan leaves out: in the storage of from, with the
// type and place that by reads. So call what reads fewer bytes, by saves.
type narrowing struct {
	what, from at
	by, saves  int
}

func (n *narrowing) of(calls []deferred) element {
	e, w := *n.what.of(calls), &calls[n.by]
	e.st, e.dt, e.offset = n.from.of(calls).st, w.in[0].dt, w.in[0].offset+e.offset-w.out[0].offset
	return e
}

// at identifies an operand of a deferred call: an input or, from maxIn on, an output or, from maxIn+maxOut on, one of its list.
type at struct{ call, operand int }

func (a at) of(calls []deferred) *element {
	switch c := &calls[a.call]; {
	case a.operand < maxIn:
		return &c.in[a.operand]
	case a.operand < maxIn+maxOut:
		return &c.out[a.operand-maxIn]
	default:
		return &c.many[a.operand-maxIn-maxOut]
	}
}

// planStep is one call, those of a Together, or a group. again has the calls of other steps that a group does again.
type planStep struct {
	calls []int
	again []int
	group *fusedGroup
	// ends are operands whose storages no later step uses.
	ends []at
}

// fusedGroup is a group of calls that run as one kernel.
type fusedGroup struct {
	// join says that the calls copy different arrays, with one output and one input each. op then computes in type compute, and all outputs
	// are new memory.
	join      bool
	compute   dtype.DType
	op        *kernels.PointOp
	outs, ins []at
	// fresh has a bit for every output that the group makes; it changes the others.
	fresh uint8
	// operands are the kernel's, without their addresses. If run is true, they are n elements in one run, except those in repeat, which are
	// one element.
	operands []kernels.Operand
	run      bool
	n        int
	repeat   uint16
	numbers  []numberAt
	// rows replaces op if a call of the group works by rows. slots are the indexes of its operands among the group's, outputs first, and
	// alone those of the call's own; both include absent ones.
	rows         *kernels.FusedRows
	slots, alone []int
	// reduce replaces op if the group has reductions; slots are then the indexes of the kernel's operands among the group's.
	reduce *kernels.FusedReduce
	// offsets, if not nil, says that a call of the group puts tensors side by side. It has the distance in bytes of each of the kernel's
	// operands from the group's operand that slots names; the first results of them are outputs.
	offsets []uint64
	results int
	// product says that op, which may be nil then, is the epilogue of a product.
	product *fusedProduct
	// about describes for people what the group computes.
	about *fuse.Graph
}

// numberAt is a scalar of a call or, if hole is true, the number in place of an operand, rounded to type half if there is one. If fixed is
// true, it is a number of the plan.
type numberAt struct {
	call, index int
	hole, fixed bool
	half        dtype.DType
	is          kernels.Scalar
}

func (n *numberAt) of(calls []deferred) kernels.Scalar {
	if n.fixed {
		return n.is
	}
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

// planned returns the plan for the calls, and makes it if at has none; it is nil if they run one by one.
func (d *deferral) planned(at *Plans) *plan {
	d.findLive()
	for _, p := range at.all {
		if p.n == len(d.thin) && slices.Equal(p.live, d.fusing.live) {
			return p.orNil()
		}
	}
	start := time.Now()
	p := d.newPlan()
	at.took += time.Since(start)
	if len(at.all) == maxPlans {
		at.all = slices.Delete(at.all, 0, 1)
	}
	at.all = append(at.all, p)
	return p.orNil()
}

// needless reports whether a plan in at, or the first one that it gets, says that nobody needs the calls.
func (d *deferral) needless(at *Plans) bool {
	if at == nil {
		return false
	}
	if len(at.all) == 0 {
		d.planned(at)
	}
	for _, p := range at.all {
		if !p.plain && len(p.steps) == 0 && p.n == len(d.thin) {
			d.findLive()
			return slices.Equal(p.live, d.fusing.live)
		}
	}
	return false
}

func (p *plan) orNil() *plan {
	if p.plain {
		return nil
	}
	return p
}

// findLive notes which new outputs of the calls have holders.
func (d *deferral) findLive() {
	d.expand()
	live, bit := d.fusing.live[:0], 0
	for i := range d.calls {
		c := &d.calls[i]
		for j := range c.out[:c.outs] {
			if c.dsts>>j&1 != 0 {
				continue
			}
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

// countPlan counts one whole run of p.
func (d *deferral) countPlan(p *plan) {
	if p != nil {
		d.fusing.stats.Fused += p.fused
		d.fusing.stats.Dropped += p.dropped
	}
}

// units yields what runs separately: the steps that are groups, each with the index of its last call, and single calls, without a step.
// Without a plan, these are all of the n calls.
func (p *plan) units(n int) iter.Seq2[*planStep, int] {
	return func(yield func(*planStep, int) bool) {
		if p == nil {
			for i := range n {
				if !yield(nil, i) {
					return
				}
			}
			return
		}
		for k := range p.steps {
			s := &p.steps[k]
			if s.group != nil {
				if !yield(s, s.last()) {
					return
				}
				continue
			}
			for _, i := range s.calls {
				if !yield(nil, i) {
					return
				}
			}
		}
	}
}

func (s *planStep) last() int { return s.calls[len(s.calls)-1] }

// idle returns operands whose storages no step of p uses.
func (p *plan) idle() []at {
	if p == nil {
		return nil
	}
	return p.unused
}

// replaces reports whether p gives calls other operands than they have.
func (p *plan) replaces() bool {
	return p != nil && len(p.folds)+len(p.renames)+len(p.laid)+len(p.narrow) > 0
}

// unapply gives the calls back what they had before apply.
func (d *deferral) unapply() {
	clear(d.calls)
	d.calls = d.calls[:0]
	clear(d.fusing.moved)
	d.fusing.moved = d.fusing.moved[:0]
	d.expand()
}

// apply sets the calls' storages and forms, and their last uses, to those of p.
func (d *deferral) apply(p *plan) {
	for _, f := range p.folds {
		c := &d.calls[f.call]
		c.row.takeFactor(c, &d.calls[f.by])
	}
	for _, r := range p.renames {
		e, to := r.what.of(d.calls), r.is.of(d.calls).st
		if e.st != to {
			d.fusing.moved = append(d.fusing.moved, moved{e.st, to})
			e.st = to
		}
	}
	for _, r := range p.laid {
		r.what.of(d.calls).form = r.form
	}
	for i := range p.narrow {
		*p.narrow[i].what.of(d.calls) = p.narrow[i].of(d.calls)
	}
	for _, a := range p.unused {
		a.of(d.calls).last = true
	}
	for i := range p.steps {
		if p.steps[i].group != nil { // which may end the use of operands of other steps' calls, see ends
			continue
		}
		for _, a := range p.steps[i].ends {
			a.of(d.calls).last = true
		}
	}
}

// ends yields the operands of the unit with step s and call i, as units yields it, whose storages no later unit uses. Several may have one
// storage, of which one has last set if s is nil.
func (d *deferral) ends(s *planStep, i int) iter.Seq[*element] {
	return func(yield func(*element) bool) {
		if s != nil {
			for _, a := range s.ends {
				if !yield(a.of(d.calls)) {
					return
				}
			}
			return
		}
		c := &d.calls[i]
		for _, es := range [][]element{c.in, c.many, c.out} {
			for j := range es {
				if es[j].last && !yield(&es[j]) {
					return
				}
			}
		}
	}
}

// runPlan runs the steps of the plan that have not run.
func (d *deferral) runPlan() (freed error) {
	p := d.plan
	if d.done == 0 {
		for _, a := range p.unused {
			freed = errors.Join(freed, a.of(d.calls).used(d.number))
		}
	}
	for ; d.done < len(p.steps); d.done++ {
		s := &p.steps[d.done]
		if s.group == nil {
			freed = errors.Join(freed, d.runWhole(d.calls[s.calls[0]:s.last()+1], nil))
			d.compared.compare(s)
			continue
		}
		d.runGroup(s)
		d.compared.compare(s)
		for e := range d.ends(s, 0) {
			freed = errors.Join(freed, e.st.endDeferral(d.number))
		}
	}
	d.ran = len(d.calls)
	d.countPlan(p)
	return freed
}

// dropSteps takes back the calls of the steps that have not run. Undo functions of calls in no step follow the steps around them.
func (d *deferral) dropSteps() {
	lost, first := make([]bool, len(d.calls)), len(d.calls)
	for _, s := range d.plan.steps[d.done:] {
		for _, i := range s.calls {
			lost[i], first = true, min(first, i)
		}
	}
	for i := len(d.calls) - 1; i >= 0; i-- {
		if lost[i] {
			d.calls[i].takeBack()
		}
	}
	for _, u := range d.undo {
		if lost[u.at] || u.at > first && !d.plan.runs(u.at) {
			d.undone = append(d.undone, u.f)
		}
	}
	clear(d.calls)
	clear(d.thin)
	d.calls, d.thin = d.calls[:0], d.thin[:0]
}

// runs reports whether a step contains call i.
func (p *plan) runs(i int) bool {
	return slices.ContainsFunc(p.steps, func(s planStep) bool { return slices.Contains(s.calls, i) })
}

// represent says that what happens next is work for the call that comes from there and for the others, so that memory and findings have
// the lines of these calls.
func (d *deferral) represent(from *Whence, others ...int) {
	if l := d.s.lent; l != nil && l.fixed { // nothing happens
		return
	}
	if d.proxy == nil {
		d.proxy = stack.NewProxy("core.(*deferral)", "core.(*Segment)")
	}
	d.trails = d.trails[:0]
	add := func(from *Whence) {
		if from.trail != nil {
			d.trails = append(d.trails, from.trail)
		}
	}
	for _, i := range others {
		add(d.calls[i].from)
	}
	add(from)
	d.proxy.For(d.trails)
}

// unrepresent ends represent.
func (d *deferral) unrepresent() {
	if d.proxy != nil {
		d.proxy.End()
		d.proxy = nil
	}
}

// runUnit runs one unit, as units yields it.
func (d *deferral) runUnit(s *planStep, i int) {
	if s != nil {
		d.runGroup(s)
	} else {
		d.run(&d.calls[i])
	}
}

// rowFused stands for groups in the launch ring and in errors. Nobody calls it as an operation.
var rowFused = &row{Name: "Fused", run: runFused, id: rt.RegisterOp("Fused"), pkg: ownPackage}

// runGroup runs the group of s.
func (d *deferral) runGroup(s *planStep) {
	g, calls := s.group, d.calls
	if n := len(g.outs) + len(g.ins); n > len(d.fusing.handles) {
		d.fusing.handles = make([]Tensor, n)
	}
	h := d.fusing.handles
	f := d.s.enter(d.s.lent.exec(calls[s.last()].x), rowFused)
	f.again = true
	defer d.returnTaken()
	d.fusing.blamed = d.blamed(s)
	f.telling = d.fusing.blamed.telling
	for i, a := range g.ins {
		f.many = append(f.many, d.handle(a.of(calls), &h[len(g.outs)+i]))
	}
	for i, a := range g.outs {
		e := a.of(calls)
		switch st := e.st; {
		case !g.join && g.fresh>>i&1 == 0:
			f.dst[i] = &h[i]
		case st.bytes > 0 && st.block == nil && !d.s.lent.given():
			if g.elementwise(e.form.shape) && d.takesOver(s, i, e, f.x.m.stream) {
				break
			}
			d.represent(calls[a.call].from)
			b, err := f.x.alloc(st.bytes)
			f.check(err)
			st.block, st.ptr = b, b.Addr()
			live.Add(1)
		}
		f.setOut(i, d.handle(e, &h[i]))
	}
	d.fusing.numbers = d.fusing.numbers[:0]
	for i := range g.numbers {
		d.fusing.numbers = append(d.fusing.numbers, g.numbers[i].of(calls))
	}
	d.fusing.group = g
	d.represent(calls[s.last()].from, s.calls[:len(s.calls)-1]...)
	if n := d.s.lent.noting(); n != nil && g.product != nil {
		n.flops = g.product.flops
	}
	d.issueFused(f, s)
	d.s.leave(f)
	d.fusing.blamed = nil
	for i := range len(g.outs) + len(g.ins) {
		h[i].st = nil
	}
}

// elementwise reports whether each thread of g's kernel reads no elements but those at the places where it writes an output of that shape.
func (g *fusedGroup) elementwise(shape []int) bool {
	return !g.join && g.product == nil && g.offsets == nil && (g.reduce == nil || g.reduce.Apart(shape)) &&
		(g.rows == nil || g.rows.Apart(shape))
}

// takesOver gives e, output number out of the group of s, which runs on st, the memory of an input whose last use this is, if both lie
// alike, also as the kernel sees them: each thread of the kernel reads an element before it writes the one at the same place. It reports
// whether it could. The memory is the output's once the group's work is queued.
func (d *deferral) takesOver(s *planStep, out int, e *element, st *rt.Stream) bool {
	for _, a := range s.ends {
		in := a.of(d.calls)
		from := in.st
		if from.bytes != e.st.bytes || in.offset != 0 || in.dt.Size() != e.dt.Size() || !alike(in.form, e.form) || !d.spare(from, st) {
			continue
		}
		seen := 0
		for _, b := range s.group.ins {
			if b.of(d.calls).st == from {
				seen++
			}
		}
		at := slices.Index(s.group.ins, a)
		if seen != 1 || at < 0 || !s.group.sameOrder(out, at) {
			continue
		}
		from.tighten()
		e.st.block, e.st.ptr = from.block, from.ptr
		from.block = nil
		d.fusing.taken = append(d.fusing.taken, moved{from, e.st})
		return true
	}
	return false
}

// sameOrder reports whether an element-wise kernel goes through an output and an input of the group in the same order.
func (g *fusedGroup) sameOrder(out, in int) bool {
	if g.rows != nil || g.reduce != nil {
		return true
	}
	return infer.Same(g.operands[out].Stride, g.operands[len(g.outs)+in].Stride)
}

// spare reports whether nobody else has the memory of s, it comes from where the calls' memory comes from, and work on st could use it at
// once if it were freed now.
func (d *deferral) spare(s *storage, st *rt.Stream) bool {
	l := d.s.lent
	if s.block == nil || !s.unheld() || s.dev.PoolOf(s.block) != l.poolID() {
		return false
	}
	return l.records() || s.block.Stream() == alloc.Stream(st.Handle()) && s.streams.Load() == 0 // a recording has one order
}

// keepTaken leaves the memory that outputs took over to them.
func (d *deferral) keepTaken() {
	for _, t := range d.fusing.taken {
		if t.to.dev.Reused(t.to.ptr); !d.s.lent.records() { // a recording still asks for the address
			t.from.ptr = 0
		}
	}
	d.forgetTaken()
}

// returnTaken gives the memory that outputs took over back if the group did not run, since it may run again.
func (d *deferral) returnTaken() {
	for _, t := range d.fusing.taken {
		t.from.block = t.to.block
		t.to.block, t.to.ptr = nil, 0
	}
	d.forgetTaken()
}

func (d *deferral) forgetTaken() {
	clear(d.fusing.taken)
	d.fusing.taken = d.fusing.taken[:0]
}

// alike reports whether two forms place the same number of elements in the same order without gaps.
func alike(a, b *form) bool {
	return a.extent == a.numel && infer.Same(a.shape, b.shape) && infer.Same(a.stride, b.stride)
}

// blamed returns the call of s that its errors name: the one that may fail an assertion, or the last.
func (d *deferral) blamed(s *planStep) *deferred {
	for _, i := range s.calls {
		if c := &d.calls[i]; c.row.flags&flagAsserts != 0 {
			return c
		}
	}
	return &d.calls[s.last()]
}

// told returns the operands that errors of the group under way name.
func (d *deferral) told() (ops []Operand) {
	for _, es := range [][]element{d.fusing.blamed.in, d.fusing.blamed.many} {
		for i := range es {
			if e := &es[i]; e.st != nil {
				ops = append(ops, Operand{dt: e.dt, form: e.form})
			}
		}
	}
	return ops
}

func (g *fusedGroup) name() string {
	switch {
	case g.rows != nil:
		return g.rows.Name()
	case g.reduce != nil:
		return g.reduce.Name()
	case g.join:
		return "joined " + g.op.Name
	case g.product != nil:
		return g.product.name(g.op)
	}
	return g.op.Name
}

// runFused launches the group's kernel.
func runFused(f *frame) error {
	d := f.x.s.putOff
	g := d.fusing.group
	f.waits = f.waits || len(d.fusing.taken) > 0 // it changes what it would read if it ran again
	switch {
	case g.rows != nil:
		return g.runRows(f)
	case g.reduce != nil:
		return g.runReduce(f)
	case g.product != nil:
		return g.runProduct(f)
	case g.offsets != nil:
		return g.runCat(f)
	}
	f.opers = append(f.opers[:0], g.operands...)
	for i := range f.opers {
		f.opers[i].Ptr = d.fusing.handles[i].ptr()
	}
	numbers, outs, ins := d.fusing.numbers, f.opers[:len(g.outs)], f.opers[len(g.outs):]
	if g.join {
		return d.runJoin(f, g)
	}
	if g.run {
		return kernels.PointwiseRun(f, g.op, dtype.Float32, numbers, outs, ins, g.n, g.repeat)
	}
	return kernels.Pointwise(f, g.op, dtype.Float32, numbers, outs, ins)
}

// runJoin launches the group's copies.
func (d *deferral) runJoin(f *frame, g *fusedGroup) error {
	n := len(g.outs)
	lists := d.fusing.lists[:0]
	for i := range f.opers {
		lists = append(lists, f.opers[i:i+1])
	}
	d.fusing.lists = lists
	if n > len(d.fusing.rows) {
		d.fusing.rows = make([]int32, n)
	}
	return kernels.MultiTensor(f, g.op, g.compute, kernels.Rows{Which: d.fusing.rows[:n]}, lists[:n], lists[n:])
}

// lie fills in the layout of the group's operands: outputs first, all in the first output's shape.
func (g *fusedGroup) lie(all []element, outs int) {
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
		case i >= outs && e.form.numel == 1 && form.numel > 1:
			g.repeat |= 1 << i
		default:
			g.run = false
		}
		g.operands = append(g.operands, o)
	}
}
