package core

import (
	"iter"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// fusionLimits bound groups by what a kernel has room for, and by its length, since building a kernel takes milliseconds. A group that
// saves only a few numbers of memory traffic is not worth a kernel. A cast that moves more than 32 MiB takes several times as long as its
// launch. Joined casts may raise the peak by 4 MiB, which gave the fastest inference of ResNet-50 on one image, and so may the results
// of reductions in each group.
var fusionLimits = fuse.Limits{Calls: 32, Span: 128, Heavy: 8, Operands: kernels.MaxFusedOperands, Outs: maxOut, Values: 32,
	States: kernels.MaxStates, Saves: 64, Joined: 32 << 20, Together: kernels.MultiTensors, Slack: 4 << 20}

// reduceRounds is the maximum number of rounds of reductions in a kernel. Each makes it longer, and repeats scalars of work that is done
// again: with 32 of them, float64 and the most dimensions, three rounds take 4040 of a kernel's 4096 bytes of parameters.
const reduceRounds = 3

// pointCall describes a call that runs on the pointwise engine.
type pointCall struct {
	op      *kernels.PointOp
	compute dtype.DType
	scalars []kernels.Scalar
	via     []dtype.DType // of outputs, then inputs
	held    []bool        // inputs that are numbers
	numbers []numberAt
	// seen has the forms of inputs that the operation sees in a form other than their own, and given that of its output.
	seen  [maxIn]*form
	given *form
	// rows is set in place of all of the above if the call works by rows. operands tells which of the call's operands the row call's
	// operands are (outputs from maxIn on), or that they are absent.
	rows     *kernels.RowCall
	operands []int
	// reduce is set in place of all of the above but numbers if the call is a reduction.
	reduce *kernels.ReduceCall
}

// pointwise runs op on the operands, or describes the call.
func (f *frame) pointwise(op *kernels.PointOp, compute dtype.DType, scalars []kernels.Scalar, outs, ins []kernels.Operand) error {
	d := f.described
	if d == nil {
		return kernels.Pointwise(f, op, compute, scalars, outs, ins)
	}
	d.op, d.compute, d.scalars = op, compute, slices.Clone(scalars)
	for i := range outs {
		d.via = append(d.via, outs[i].Via)
	}
	for i := range ins {
		d.via = append(d.via, ins[i].Via)
		d.held = append(d.held, ins[i].Ptr == 0)
	}
	return nil
}

// describe returns a description of call i if it is one operation of the pointwise or the row-wise engine or a reduction, and a group can
// contain it, and nil otherwise.
func (d *deferral) describe(i int) *pointCall {
	c := &d.calls[i]
	one := c.row.point != nil || c.row.points || c.row.byRows || c.row.reduces
	if !one || c.out[0].form.numel == 0 || c.part != 0 || len(c.many) > 0 {
		return nil
	}
	p, mark := &pointCall{}, d.s.mark()
	if err := Try(func() { d.describeTo(p, c) }); err != nil {
		d.s.restore(mark)
		return nil
	}
	switch {
	case p.rows != nil:
		return d.rowsFound(p, i)
	case p.reduce != nil:
		return d.reduceFound(p, i)
	}
	if p.op == nil || p.op.BuildAt != nil || p.op.Asserts || p.op.Outs != int(c.outs) {
		return nil
	}
	if p.op == kernels.Copy && turns(c.in[0].form, c.out[0].form) {
		return nil
	}
	return d.numbersFound(p, i)
}

// apart is the distance between the addresses given to operands without memory, which tell them apart.
const apart = 1 << 40

// somewhere stands for the memory of operands that have none yet.
var somewhere = func() (all [maxIn + maxOut]*storage) {
	for i := range all {
		all[i] = &storage{ptr: uint64(1+i) * apart}
	}
	return all
}()

// describeTo runs the row of c for p, on operands without memory.
func (d *deferral) describeTo(p *pointCall, c *deferred) {
	f := d.s.enter(c.x, c.row)
	f.attrs, f.ins, f.again, f.described = *c.attrs, int(c.ins), true, p
	f.dims = append(f.dimsB[:0], c.dims.ints()...)
	handle := func(i int, e *element) *Tensor {
		t := d.handle(e, &d.bare[i])
		t.st = somewhere[i]
		return t
	}
	for i := range c.in[:c.ins] {
		if c.in[i].st != nil {
			f.in[i] = handle(i, &c.in[i])
		}
	}
	for i := range c.out[:c.outs] {
		if t := handle(maxIn+i, &c.out[i]); c.dsts>>i&1 != 0 {
			f.dst[i] = t
		}
	}
	f.row.infer(f)
	for i := range c.out[:c.outs] {
		f.setOut(i, &d.bare[maxIn+i])
	}
	if f.row.run != nil {
		f.check(f.row.run(f))
	} else {
		f.check(f.runPoint())
	}
	d.s.leave(f)
}

// turns reports whether a copy reorders dimensions such that elements next to each other in the output are not so in the input. There are
// separate kernels for that.
func turns(in, out *form) bool {
	lead, near, reorders := len(out.shape)-len(in.shape), false, false
	for i, n := range in.shape {
		if n > 1 && in.stride[i] != 0 && in.stride[i] != out.stride[lead+i] {
			reorders = true
		}
		near = near || n > 1 && in.stride[i] == 1 && out.stride[lead+i] == 1
	}
	return reorders && !near
}

// numbersFound fills in where the scalars come from, or returns nil if they are not the call's own in order.
func (d *deferral) numbersFound(p *pointCall, i int) *pointCall {
	c := &d.calls[i]
	half := dtype.Invalid
	if infer.Accumulated(p.compute) != p.compute {
		half = p.compute
	}
	for k := range p.op.Scalars {
		p.numbers = append(p.numbers, numberAt{call: i, index: k})
	}
	for k, held := range p.held {
		switch {
		case held != (c.in[k].st == nil):
			return nil // an absent operand came before
		case !held:
			continue
		case c.row.affine:
			if len(p.numbers) == len(p.scalars) {
				return nil
			}
			p.numbers = append(p.numbers, numberAt{fixed: true, is: p.scalars[len(p.numbers)]})
			continue
		case k >= len(c.hole):
			return nil
		}
		n := numberAt{call: i, index: k, hole: true}
		if c.row.wideNumbers&(in0<<k) == 0 {
			n.half = half
		}
		p.numbers = append(p.numbers, n)
	}
	if len(p.numbers) != len(p.scalars) {
		return nil
	}
	for k, n := range p.numbers {
		if v := n.of(d.calls); numberOf(&v) != numberOf(&p.scalars[k]) {
			return nil
		}
	}
	return p
}

// planning is the state while a plan is made.
type planning struct {
	d        *deferral
	g        fuse.Graph
	points   []*pointCall
	storages map[*storage]int
	// fresh are the storages that the calls make. made are these and those that the calls change; the value is true if somebody may use the
	// storage afterwards. Storages that existed before count as used, whoever holds them: a graph of the plan may run again when they have
	// holders.
	fresh map[*storage]bool
	made  map[*storage]bool
	// makers has the last call that wrote a storage, if it may be in a group of element-wise ones.
	makers  map[*storage]maker
	attrs   map[attrKey]int
	streams []*rt.Stream
	reduces []*kernels.ReduceCall
	// narrowed has the operands that are given as they were before a call widened them.
	narrowed map[at]*narrowing
	// folded has the calls that also do what another one did.
	folded map[int]int
	// broken says that a call's own kernels cannot take the narrowed operands of a group that was not made.
	broken bool
}

// maker is a call: the form in which it wrote a storage, and whether it put tensors side by side.
type maker struct {
	form *form
	cat  bool
}

// attrKey is what calls share that compute the same from the same operands, except for values.
type attrKey struct {
	row *row
	structure
	dims         *intList
	tf32         bool
	scalar, hole [4]number
}

// newPlan returns the plan for the calls.
func (d *deferral) newPlan() *plan {
	b := &planning{d: d, storages: map[*storage]int{}, fresh: map[*storage]bool{}, made: map[*storage]bool{},
		makers: map[*storage]maker{}, attrs: map[attrKey]int{}}
	p := &plan{n: len(d.calls), live: slices.Clone(d.fusing.live), plain: true}
	bit := 0
	for i := range d.calls {
		c := &d.calls[i]
		for j := range c.out[:c.outs] {
			if c.dsts>>j&1 == 0 {
				b.fresh[c.out[j].st] = true
				b.made[c.out[j].st] = p.live[bit/64]>>(bit%64)&1 != 0
				bit++
			}
		}
		for _, st := range c.wrote {
			if _, ok := b.made[st]; !ok {
				b.made[st] = true
			}
		}
	}
	for i := range d.calls {
		b.add(i)
	}
	if len(b.storages) > fuse.MaxStorage || b.g.Number() != nil {
		return p
	}
	b.g.Dead()
	b.g.Common()
	defer b.layOut(p)()
	b.folded = b.g.Fold()
	widened := b.g.Narrow()
	b.regroup()
	b.g.Join(fusionLimits)
	if p.plain = len(b.g.Calls) == p.n && len(b.g.Groups)+len(p.laid) == 0; p.plain {
		return p
	}
	if b.fill(p, widened); b.broken {
		return &plan{n: p.n, live: p.live, plain: true}
	}
	return p
}

// add adds call i to the graph.
func (b *planning) add(i int) {
	c, p := &b.d.calls[i], b.d.describe(i)
	b.points = append(b.points, p)
	if p != nil && p.op == kernels.Copy && len(p.held) == 1 {
		b.turn(p, c)
	}
	call := b.call(i)
	for j := range c.out[:c.outs] {
		st := c.out[j].st
		if delete(b.makers, st); call.Point || call.Cat {
			b.makers[st] = maker{c.out[j].form, call.Cat}
		}
	}
	b.g.Calls = append(b.g.Calls, call)
}

// call describes call i for the graph.
func (b *planning) call(i int) fuse.Call {
	c, p := &b.d.calls[i], b.points[i]
	call := fuse.Call{At: i, Op: c.row.Name, Attrs: b.attrsOf(c), Lane: b.lane(c.x.m.stream), Into: uint(c.dsts),
		Checks: c.row.flags&flagAsserts != 0}
	call.Effect = c.row.flags&(flagMutates|flagWaits|flagUser|flagForeign) != 0 || c.row.draws != nil || c.row.alters != nil || c.part != 0
	ins := int(c.ins)
	switch {
	case p != nil && p.rows != nil:
		call.Row, call.Sums, call.Narrow.To = true, p.rows.Sums(), ins
	case p != nil && p.reduce != nil:
		call.Reduce, call.States, call.Values = b.reduceNumber(p.reduce), p.reduce.States(), len(p.numbers)
		limits := c.x.m.stream.Device().Limits()
		if call.Stores = p.reduce.Fills(limits); p.reduce.Again(limits) {
			call.Rounds = reduceRounds
		}
	case p != nil:
		call.Point, call.Heavy, call.Values, ins = true, p.op.Heavy, len(p.numbers), len(p.held)
		if p.op == kernels.Copy { // a copy could not keep a NaN's bits
			call.Widens = c.ins == 1 && c.dsts == 0 && c.in[0].form == c.out[0].form && c.in[0].offset%8 == 0 && c.in[0].form.plain &&
				c.in[0].dt.IsFloat() && c.in[0].dt.Size() == 2 && c.out[0].dt == dtype.Float32
			call.Converts = c.ins == 1 && c.dsts == 0 && len(p.numbers) == 0 && c.in[0].form.lies(c.out[0].form) &&
				c.out[0].form.extent == c.out[0].form.numel
		} else {
			call.Narrow.To = ins
		}
	default:
		if c.row.narrows != nil {
			call.Narrow = c.row.narrows(c)
		}
		if c.row.scaling != nil {
			call.Scales, call.Scaled = c.row.scaling(c)
		}
		call.Values = c.values()
		b.joins(&call, i)
		b.cats(&call, i)
	}
	for j := range c.in[:ins] {
		e := c.in[j]
		b.see(&e, at{i, j})
		call.Ins = append(call.Ins, b.value(&e))
	}
	for j := range c.many {
		call.Ins = append(call.Ins, b.value(&c.many[j]))
	}
	for j := range c.out[:c.outs] {
		e := c.out[j]
		b.see(&e, at{i, maxIn + j})
		call.Outs = append(call.Outs, b.value(&e))
	}
	for _, st := range c.wrote {
		if n := b.number(st); !slices.ContainsFunc(call.Outs, func(v fuse.Value) bool { return v.Storage == n }) {
			call.Into |= ^uint(0) << c.outs
			call.Outs = append(call.Outs, fuse.Value{Storage: n})
		}
	}
	b.lays(&call)
	return call
}

// value describes an operand for the graph.
func (b *planning) value(e *element) (v fuse.Value) {
	if e.st == nil {
		return v
	}
	return fuse.Value{Storage: b.number(e.st), Place: fuse.Place{DType: e.dt, Shape: e.form.shape, Stride: e.form.stride, Offset: e.offset}}
}

func (b *planning) number(st *storage) int {
	n := b.storages[st]
	if n == 0 {
		n = len(b.storages) + 1
		b.storages[st] = n
		if held, made := b.made[st]; held || !made && !st.unheld() {
			b.g.Live = append(b.g.Live, n)
		}
	}
	return n
}

func (b *planning) lane(st *rt.Stream) int {
	i := slices.Index(b.streams, st)
	if i < 0 {
		i = len(b.streams)
		b.streams = append(b.streams, st)
	}
	return i
}

// attrsOf numbers the attributes of calls.
func (b *planning) attrsOf(c *deferred) int {
	k := attrKey{row: c.row, structure: c.structure, dims: c.dims, tf32: c.x.m.tf32, scalar: numbersOf4(&c.scalar),
		hole: numbersOf4(&c.hole)}
	k.list = nil
	for i := range k.scalar {
		if c.row.decides>>i&1 == 0 {
			k.scalar[i] = number{}
		}
		if c.row.decides>>(4+i)&1 == 0 {
			k.hole[i] = number{}
		}
	}
	if b.attrs[k] == 0 {
		b.attrs[k] = len(b.attrs) + 1
	}
	return b.attrs[k]
}

// values counts the numbers of c that are values.
func (c *deferred) values() (n int) {
	for _, v := range c.row.sig.numbers {
		if !v.decides {
			n++
		}
	}
	for i, in := range c.row.sig.ins {
		if i < maxIn && c.holes>>i&1 != 0 && !in.decides {
			n++
		}
	}
	return n
}

// fill makes the steps of the plan from the graph's.
func (b *planning) fill(p *plan, widened map[fuse.Ref]int) {
	of := make([]*fuse.Set, len(b.g.Calls))
	for k := range b.g.Groups {
		for _, i := range b.g.Groups[k].Calls {
			of[i] = &b.g.Groups[k]
		}
	}
	scaled := map[int]bool{}
	for i := range b.g.Calls {
		if by, ok := b.folded[b.g.Calls[i].At]; ok {
			p.folds = append(p.folds, fold{b.g.Calls[i].At, by})
			scaled[by] = true
		}
	}
	b.rename(p, widened)
	b.narrowed = map[at]*narrowing{}
	for i := range p.narrow {
		b.narrowed[p.narrow[i].what] = &p.narrow[i]
	}
	p.fused = len(p.folds) + len(scaled)
	p.dropped = p.n - len(b.g.Calls) - len(scaled)
	for i := range b.g.Calls {
		if c := &b.g.Calls[i]; c.Again || c.Left {
			p.dropped++
		}
	}
	for i := range b.g.Calls {
		s := of[i]
		n := b.g.Calls[i].At
		part := b.d.calls[n].part
		switch {
		case b.g.Calls[i].Left:
		case s == nil && part != 0 && n > 0 && b.d.calls[n-1].part == part: // all or nothing
			last := &p.steps[len(p.steps)-1]
			last.calls = append(last.calls, n)
		case s == nil:
			c := &b.g.Calls[i]
			b.broken = b.broken || c.Narrowed && (c.Point || c.Row)
			p.steps = append(p.steps, planStep{calls: []int{n}})
		case i == s.At:
			p.steps = append(p.steps, b.group(p, s)...)
		}
	}
	b.findEnds(p)
}

// element returns operand a as it is in the plan.
func (b *planning) element(a at) element {
	e := *a.of(b.d.calls)
	if n := b.narrowed[a]; n != nil {
		e = n.of(b.d.calls)
	}
	b.see(&e, a)
	return e
}

// listed returns how many operands call n has in its list, with the factor that it was given.
func (b *planning) listed(n int) int {
	listed := len(b.d.calls[n].many)
	if _, ok := b.folded[n]; ok {
		listed++
	}
	return listed
}

// of returns operand a, which may be a factor that the call has not got yet.
func (b *planning) of(a at) *element {
	if c := &b.d.calls[a.call]; a.operand == maxIn+maxOut+len(c.many) {
		from := b.d.calls[b.folded[a.call]].many
		return &from[len(from)-1]
	}
	return a.of(b.d.calls)
}

// see gives e, which is operand a, the form in which its call sees it.
func (b *planning) see(e *element, a at) {
	switch p := b.points[a.call]; {
	case p == nil:
	case a.operand < maxIn && p.seen[a.operand] != nil:
		e.form = p.seen[a.operand]
	case a.operand == maxIn && p.given != nil:
		e.form = p.given
	}
}

// turn lets c, a copy, go through its elements in the order of the call that made them, so that it can be in a group with that, if it reads
// a view whose dimensions have another order, or one of tensors side by side whose last dimensions are one.
func (b *planning) turn(p *pointCall, c *deferred) {
	by := b.makers[c.in[0].st]
	made, in, out := by.form, c.in[0].form, c.out[0].form
	if made == nil || in == made || c.in[0].offset != 0 || !infer.Same(in.shape, out.shape) {
		return
	}
	if by.cat && in.contiguous && out.contiguous && made.contiguous && in.numel == made.numel {
		p.seen[0], p.given = made, made
		return
	}
	if len(in.shape) != len(made.shape) {
		return
	}
	shape, stride := make([]int, len(in.shape)), make([]int, len(in.shape))
	used := make([]bool, len(in.shape))
	for d, n := range made.shape {
		for e := range in.shape {
			if !used[e] && in.shape[e] == n && (in.stride[e] == made.stride[d] || n == 1) {
				used[e], shape[d], stride[d] = true, n, out.stride[e]
				break
			}
		}
	}
	if !slices.Contains(used, false) && infer.Same(shape, made.shape) {
		p.seen[0], p.given = made, b.d.s.made.form(shape, stride)
	}
}

// rename notes the operands whose storages another one replaced.
func (b *planning) rename(p *plan, widened map[fuse.Ref]int) {
	made := map[int]at{} // where a storage was before the renames
	for i := range b.d.calls {
		for j := range b.d.calls[i].out[:b.d.calls[i].outs] {
			n := b.storages[b.d.calls[i].out[j].st]
			if _, ok := made[n]; !ok {
				made[n] = at{i, maxIn + j}
			}
		}
	}
	renamed := map[at]bool{}
	for i := range b.g.Calls {
		c := &b.g.Calls[i]
		d := &b.d.calls[c.At]
		ins := len(c.Ins) - b.listed(c.At)
		for j := range c.Ins {
			a := at{c.At, j}
			if j >= ins {
				a.operand = maxIn + maxOut + j - ins
			}
			s := c.Ins[j].Storage
			if by, ok := widened[fuse.Ref{Call: c.At, Index: j}]; ok {
				from, ok := made[s]
				if !ok {
					from = at{by, 0}
				}
				wide := c.Ins[j].Place
				wide.DType = b.of(a).dt
				p.narrow = append(p.narrow, narrowing{a, from, by, wide.Bytes() - c.Ins[j].Bytes()})
				continue
			}
			// A group may do a call again with operands that the call itself has from a group.
			if s != 0 && s != b.storages[b.of(a).st] && !b.g.Internal(s) && !renamed[a] {
				renamed[a] = true
				p.renames = append(p.renames, rename{a, made[s]})
			}
		}
		if c.Again {
			continue
		}
		for j := range c.Outs[:d.outs] {
			if s := c.Outs[j].Storage; s != b.storages[d.out[j].st] {
				p.renames = append(p.renames, rename{at{c.At, maxIn + j}, made[s]})
			}
		}
	}
}

// group returns the step of a group or, if its kernel cannot be made, the steps of its calls.
func (b *planning) group(p *plan, s *fuse.Set) (steps []planStep) {
	step := planStep{}
	for _, i := range s.Calls {
		if c := &b.g.Calls[i]; c.Again {
			step.again = append(step.again, c.At)
		} else {
			step.calls = append(step.calls, c.At)
		}
	}
	var g *fusedGroup
	cat, wide := b.g.Cat(s)
	switch row, after := b.g.Rows(s); {
	case s.Join:
		g = b.joinGroup(s)
	case cat >= 0:
		g = b.catGroup(s, cat, wide)
	case row >= 0:
		g = b.rowGroup(s, row, after)
	case b.g.Product(s) >= 0:
		g = b.productGroup(s, b.g.Product(s))
	case b.g.Reduction(s) != nil:
		g = b.reduceGroup(s)
	default:
		g = b.pointGroup(s)
	}
	if g != nil {
		g.about = b.g.Only(s)
		for slot := range len(s.Outs) + len(s.Ins) {
			if slot < len(s.Outs) {
				g.outs = append(g.outs, b.refOf(s, slot))
			} else {
				g.ins = append(g.ins, b.refOf(s, slot))
			}
		}
		if !s.Join {
			g.fresh = b.freshOf(s)
		}
	}
	if allow := b.d.fusing.allow; g == nil || allow != nil && !allow(g.planned(step.calls)) {
		b.broken = b.broken || slices.ContainsFunc(s.Calls, func(i int) bool { return b.g.Calls[i].Narrowed || b.g.Calls[i].Again })
		for _, i := range step.calls {
			steps = append(steps, planStep{calls: []int{i}})
		}
		return steps
	}
	step.group = g
	p.fused += len(step.calls)
	return []planStep{step}
}

// pointGroup makes the group of s, whose calls are all element-wise, or returns nil if no kernel can do it.
func (b *planning) pointGroup(s *fuse.Set) *fusedGroup {
	w := b.side(s, -1, func(int) bool { return true }, none)
	g := &fusedGroup{op: kernels.Fuse(w.types, w.steps, w.outs), numbers: w.numbers}
	if g.op == nil {
		return nil
	}
	var all []element
	for slot := range len(s.Outs) + len(s.Ins) {
		all = append(all, b.element(b.refOf(s, slot)))
	}
	first := b.g.Calls[s.Calls[0]].Outs[0].Shape
	if slices.ContainsFunc(s.Calls, func(i int) bool { return !infer.Same(b.g.Calls[i].Outs[0].Shape, first) }) {
		b.lieIn(g, s, all)
	} else {
		g.lie(all, len(s.Outs))
	}
	return g
}

// lieIn fills in the layout of the operands of g, the group of s, whose calls have several shapes: all in the one in which the kernel sees
// them.
func (b *planning) lieIn(g *fusedGroup, s *fuse.Set, all []element) {
	shape := b.g.SeenIn(s)
	for slot := range all {
		e := &all[slot]
		o := kernels.Operand{DType: e.dt, Shape: shape, Stride: e.form.stride}
		switch {
		case slot >= len(s.Outs):
			r := s.Ins[slot-len(s.Outs)]
			o.Stride, _ = b.g.Seen(r.Call, r.Index, shape)
		case !infer.Same(e.form.shape, shape):
			o.Stride = b.g.Stored(s.Outs[slot], shape)
		}
		g.operands = append(g.operands, o)
	}
}

// joinGroup makes the group of s, whose calls copy different arrays, each without gaps.
func (b *planning) joinGroup(s *fuse.Set) *fusedGroup {
	first := b.points[b.g.Calls[s.Calls[0]].At]
	g := &fusedGroup{op: first.op, join: true, compute: first.compute}
	for slot := range len(s.Outs) + len(s.Ins) {
		e := b.element(b.refOf(s, slot))
		via := first.via[0]
		if slot >= len(s.Outs) {
			via = first.via[1]
		}
		g.operands = append(g.operands, kernels.Operand{DType: e.dt, Via: via, Shape: []int{e.form.numel}, Stride: adjacent})
	}
	return g
}

// freshOf returns a bit for each output of a group that the group makes.
func (b *planning) freshOf(s *fuse.Set) (bits uint8) {
	for k, r := range s.Outs {
		for _, i := range s.Calls {
			c := &b.g.Calls[i]
			for j := range c.Outs {
				if c.Outs[j].Storage == b.g.Calls[r.Call].Outs[r.Index].Storage && c.Into>>j&1 == 0 {
					bits |= 1 << k
				}
			}
		}
	}
	return bits
}

// body returns the kernel step of a member of a group.
func (b *planning) body(c *fuse.Call, from []fuse.Source, first []int) kernels.FusedStep {
	p := b.points[c.At]
	step := kernels.FusedStep{Op: p.op, Compute: p.compute}
	for j, f := range from {
		in := kernels.FusedIn{Value: f.Index, Via: p.via[len(c.Outs)+j]}
		switch {
		case p.held[j]:
			in = kernels.FusedIn{Value: kernels.ScalarIn}
		case f.Member >= 0:
			in.Value += first[f.Member]
		}
		step.Ins = append(step.Ins, in)
	}
	for j := range c.Outs {
		step.Outs = append(step.Outs, kernels.FusedOut{DType: c.Outs[j].DType, Via: p.via[j]})
	}
	return step
}

// findEnds notes the last uses of storages.
func (b *planning) findEnds(p *plan) {
	is := map[at]*storage{} // as apply will set them
	for _, r := range p.renames {
		is[r.what] = r.is.of(b.d.calls).st
	}
	for _, n := range p.narrow {
		is[n.what] = n.from.of(b.d.calls).st
	}
	seen := map[*storage]bool{}
	used := func(ends *[]at, a at) {
		st := is[a]
		if st == nil {
			st = b.of(a).st
		}
		if st != nil && !seen[st] {
			seen[st] = true
			*ends = append(*ends, a)
		}
	}
	for i := len(p.steps) - 1; i >= 0; i-- {
		s := &p.steps[i]
		if s.group != nil {
			for _, a := range slices.Concat(s.group.outs, s.group.ins) {
				used(&s.ends, a)
			}
			continue
		}
		for _, n := range slices.Backward(s.calls) {
			for a := range b.operands(n) {
				used(&s.ends, a)
			}
		}
	}
	for n := range b.d.calls {
		for a := range b.operands(n) {
			if st := b.of(a).st; st != nil && !b.fresh[st] {
				used(&p.unused, a)
			}
		}
	}
}

// operands yields the operands of call n.
func (b *planning) operands(n int) iter.Seq[at] {
	c := &b.d.calls[n]
	return func(yield func(at) bool) {
		for _, l := range [][2]int{{maxIn, int(c.outs)}, {0, int(c.ins)}, {maxIn + maxOut, b.listed(n)}} {
			for j := range l[1] {
				if !yield(at{n, l[0] + j}) {
					return
				}
			}
		}
	}
}
