package core

import (
	"slices"
	"weak"

	"tenon.dev/internal/fuse"
)

// recomputeChoice is a plan with what it was made for: the calls' operands, and who holds the storages. valueAt has the index of each
// storage's value by the storage's slot, or -1.
type recomputeChoice struct {
	ops     []int32
	states  []holding
	valueAt []int32
	omitted []Omitted
	*recomputePlan
}

// Omitted is a value that is not saved: the call that makes it, and its size.
type Omitted struct {
	Call  *Expected
	Bytes int
}

// holding says who holds a storage when the calls are about to run.
type holding uint8

const (
	// heldByNone: only the deferred calls use it.
	heldByNone holding = iota
	// heldBySaves: only saved tensors of the run do.
	heldBySaves
	// heldAndSaved: others hold it, and the run has saved it.
	heldAndSaved
	// heldByOthers: the run has not saved it.
	heldByOthers
	// passing is a bit for an input that the program may drop before the backward pass, lentInput one for an input whose memory a graph
	// overwrites.
	passing
	lentInput = 2 * passing
)

// recomputeState is for reuse: how often storages are saved and who holds them, by slot.
type recomputeState struct {
	saves  []int32
	states []holding
}

// maxRecomputes is how many plans are kept for the calls that end with the same one, and maxChain how many calls, one after the other, may
// be needed for a value.
const maxRecomputes, maxChain = 8, 100

// Recompute is called when the run sp of a callable has made its last call and the calls are deferred. Of the values that the run has saved
// for its backward pass, it drops those that can be computed again at little cost: what is saved in the end is a minimum cut, with the
// fewest bytes, between what the run reads and what the derivatives read. It returns the values that it has dropped. drops reports whether
// the program may drop the input with that storage number before the backward pass.
func Recompute(x *Exec, sp *Span, drops func(number uint64) bool) (omitted []Omitted, err error) {
	defer func() {
		clear(sp.list)
		sp.list = sp.list[:0]
	}()
	err = Try(func() {
		Enter(x, "Func")
		defer Leave(x)
		d := x.s.putOff
		if d == nil || len(d.thin) == 0 || d.path == nil || !d.on(d.path) || d.mixed || len(sp.list) == 0 {
			return
		}
		if states := d.holdings(sp, drops); slices.Contains(states, heldBySaves) {
			c := d.recomputing(states)
			d.omit(sp, c)
			omitted = c.omitted
		}
	})
	return omitted, err
}

// savedHere calls f for each saved tensor of the run whose storage the deferred calls use.
func (d *deferral) savedHere(sp *Span, f func(n *node, i int, slot int32)) {
	for _, n := range sp.list {
		if n.refs.Load() <= 0 || n.m.saved != nil {
			continue
		}
		for i := range n.saved {
			if st := n.saved[i].st; st != nil {
				if slot, ok := d.slot(st); ok {
					f(n, i, slot)
				}
			}
		}
	}
}

// holdings returns who holds the storages that the calls use, by slot.
func (d *deferral) holdings(sp *Span, drops func(number uint64) bool) []holding {
	r := &d.s.recomputed
	r.saves = append(r.saves[:0], make([]int32, len(d.touched))...)
	d.savedHere(sp, func(_ *node, _ int, slot int32) { r.saves[slot]++ })
	r.states = r.states[:0]
	for slot, st := range d.touched {
		h, saves, holders := heldByOthers, r.saves[slot], st.others.Load()+1
		made := d.places[slot].fresh
		switch {
		case holders <= 0:
			h = heldByNone
		case saves > 0 && saves == holders && made:
			h = heldBySaves
		case saves > 0:
			h = heldAndSaved
		}
		if !made && drops(st.number()) {
			h |= passing
		}
		if !made && st.lent() {
			h |= lentInput
		}
		r.states = append(r.states, h)
	}
	return r.states
}

// recomputing returns the plan for the calls, which is new if there is none yet.
func (d *deferral) recomputing(states []holding) *recomputeChoice {
	last := d.thin[len(d.thin)-1].e
	for _, p := range last.recomputes {
		if slices.Equal(p.ops, d.ops) && slices.Equal(p.states, states) {
			return p
		}
	}
	p := d.newRecomputeChoice(states)
	if len(last.recomputes) == maxRecomputes {
		last.recomputes = slices.Delete(last.recomputes, 0, 1)
	}
	last.recomputes = append(last.recomputes, p)
	return p
}

// repeats reports whether output i of the call has the same bits, and costs little, when the call runs again. The statistics of a norm cost
// too much for their size.
func (c *deferred) repeats(i int) bool {
	const not = flagView | flagForeign | flagIdle | flagInto | flagWaits | flagVaries | flagMutates | flagUser | flagSized | flagAsserts
	r := c.row
	if r.flags&not != 0 || c.dsts != 0 || len(c.wrote) > 0 || c.part != 0 || c.x.m.manual {
		return false
	}
	if r.draws != nil {
		return r.remake != nil && i == 0 && c.in[0].form == c.out[0].form && c.in[0].form == c.out[1].form
	}
	return r.point != nil || r.points || r.byRows && i == 0
}

// recomputeFinder makes a plan.
type recomputeFinder struct {
	d      *deferral
	states []holding
	// makers are the calls that make the storages, by slot, or -1, and from which output. changed says which of them calls change.
	makers, outs []int
	changed      []bool
	// chain is how many calls make a storage from what is not made by calls that repeat.
	chain []int
	saved []bool
	plan  *recomputeChoice
	// calls are the indexes of the plan's calls by the calls' indexes.
	calls map[int]int
}

func (d *deferral) newRecomputeChoice(states []holding) *recomputeChoice {
	d.expand()
	n := len(d.touched)
	plan := &recomputeChoice{slices.Clone(d.ops), slices.Clone(states), slices.Repeat([]int32{-1}, n), nil,
		&recomputePlan{}}
	r := &recomputeFinder{d: d, states: states, makers: slices.Repeat([]int{-1}, n), outs: make([]int, n), changed: make([]bool, n),
		chain: make([]int, n), saved: make([]bool, n), plan: plan, calls: map[int]int{}}
	for i := range d.calls {
		c := &d.calls[i]
		for _, st := range c.wrote {
			r.changed[st.slot] = true
		}
		for j := range c.out[:c.outs] {
			if slot := c.out[j].slot; c.dsts>>j&1 == 0 {
				r.makers[slot], r.outs[slot] = i, j
			}
		}
	}
	for i := range d.calls {
		c := &d.calls[i]
		long := 0
		for e := range c.operands {
			long = max(long, r.chain[e.slot])
			if r.changed[e.slot] {
				long = maxChain
			}
		}
		for j := range c.out[:c.outs] {
			if slot := c.out[j].slot; r.makers[slot] == i && c.repeats(j) && long < maxChain && !r.changed[slot] {
				r.chain[slot] = long + 1
			}
		}
	}
	if r.cut() {
		for slot, h := range states {
			if h == heldBySaves && !r.saved[slot] {
				r.add(int32(slot))
			}
		}
	}
	return r.plan
}

// operands yields what the call reads when it runs again.
func (c *deferred) operands(yield func(e *element) bool) {
	lists := [][]element{c.in[:c.ins], c.many}
	if c.row.remake != nil {
		lists = [][]element{c.in[:1], c.out[1:2]}
	}
	for _, es := range lists {
		for i := range es {
			if es[i].st != nil && !yield(&es[i]) {
				return
			}
		}
	}
}

// cost returns what saving a storage costs in bytes.
func (r *recomputeFinder) cost(slot int32) int64 {
	st, h := r.d.touched[slot], r.states[slot]
	leaves, lends := h&passing != 0, h&lentInput != 0
	h &= passing - 1
	made := r.makers[slot] >= 0
	switch {
	case h == heldBySaves:
	case r.changed[slot]:
		return fuse.Never
	case h == heldAndSaved:
		return 0
	case lends: // the memory of another run's result
		return fuse.Never
	case !made && !leaves:
		return 0
	case made && h == heldByOthers: // the program may change it
		return fuse.Never
	}
	return int64(st.bytes)
}

// cut finds what to save, and reports whether that is less than all that was saved.
func (r *recomputeFinder) cut() bool {
	var c fuse.Cut
	in := func(slot int32) int { return fuse.CutNodes + 2*int(slot) }
	out := func(slot int32) int { return in(slot) + 1 }
	seen := make([]bool, len(r.states))
	var queue []int32
	visit := func(slot int32) {
		if !seen[slot] {
			seen[slot] = true
			queue = append(queue, slot)
		}
	}
	all := int64(0)
	for slot, h := range r.states {
		if h == heldBySaves {
			visit(int32(slot))
			c.To(out(int32(slot)))
			all += int64(r.d.touched[slot].bytes)
		}
	}
	for i := 0; i < len(queue); i++ {
		slot := queue[i]
		c.Edge(in(slot), out(slot), r.cost(slot))
		if r.chain[slot] == 0 {
			c.From(in(slot))
			continue
		}
		for e := range r.d.calls[r.makers[slot]].operands {
			visit(e.slot)
			c.Edge(out(e.slot), in(slot), fuse.Never)
		}
	}
	least, behind := c.Min()
	if least >= all {
		return false
	}
	for _, slot := range queue {
		r.saved[slot] = !behind[in(slot)] && behind[out(slot)]
	}
	return true
}

// add adds a value to the plan, with the calls that make it.
func (r *recomputeFinder) add(slot int32) {
	p := r.plan
	k := r.call(r.makers[slot])
	p.valueAt[slot] = int32(len(p.values))
	p.calls[k].values[r.outs[slot]] = len(p.values)
	p.values = append(p.values, recomputeValue{slot, k})
	p.omitted = append(p.omitted, Omitted{r.d.thin[r.makers[slot]].e, r.d.touched[slot].bytes})
}

// call returns the index of a call in the plan, and adds it if it is not there.
func (r *recomputeFinder) call(at int) int {
	if k, ok := r.calls[at]; ok {
		return k
	}
	c := &r.d.calls[at]
	n := recomputeCall{at: at, row: c.row, dims: c.dims, ins: int(c.ins), values: [maxOut]int{-1, -1, -1, -1}}
	operands := slices.Concat(c.in[:c.ins], c.many)
	if c.row.remake != nil {
		n.ins, n.remakes = 2, true
		n.row = c.row.remake(new(*c.attrs), c.in[0].dt)
		operands = []element{c.in[0], c.out[1]}
	}
	for i := range operands {
		e := &operands[i]
		o := recomputeOperand{call: -1, form: e.form, offset: e.offset, dt: e.dt}
		switch {
		case e.st == nil:
			o.form = nil
		case r.chain[e.slot] == 0 || r.saved[e.slot]:
			o.from = r.source(e)
		default:
			o.call, o.from = r.call(r.makers[e.slot]), r.outs[e.slot]
		}
		n.operands = append(n.operands, o)
	}
	r.calls[at] = len(r.plan.calls)
	r.plan.calls = append(r.plan.calls, n)
	return r.calls[at]
}

// source returns the index of e's storage among the sources.
func (r *recomputeFinder) source(e *element) int {
	p := r.plan
	i := slices.IndexFunc(p.sources, func(s recomputeSource) bool { return s.slot == e.slot })
	if i < 0 {
		i = len(p.sources)
		p.sources = append(p.sources, recomputeSource{e.slot, r.makers[e.slot] >= 0, e.form, e.dt, r.d.places[e.slot].base})
	}
	return i
}

// omit drops the saved tensors of the run that lie in the plan's values.
func (d *deferral) omit(sp *Span, p *recomputeChoice) {
	if len(p.values) == 0 {
		return
	}
	o := &omission{plan: p.recomputePlan, values: make([]omittedValue, len(p.values))}
	for i := range p.sources {
		s := &p.sources[i]
		st, writer := d.touched[s.slot], anyWriter
		if !s.made && !st.lent() {
			writer = st.writer.Load()
		}
		st.retain()
		st.marks.Or(ofOmission)
		o.sources = append(o.sources, slot{st: st, form: s.form, version: st.version.Load(), dt: s.dt})
		o.shifts, o.writers = append(o.shifts, d.places[s.slot].base-s.base), append(o.writers, writer)
	}
	for i := range p.calls {
		c := &p.calls[i]
		t := &d.thin[c.at]
		a := t.attrs
		if a != &noAttrs || c.remakes {
			a = new(*a)
		}
		if c.remakes {
			t.e.row.remake(a, c.operands[0].dt)
		}
		o.execs, o.attrs = append(o.execs, t.x), append(o.attrs, a)
	}
	d.savedHere(sp, func(n *node, i int, slot int32) {
		st := n.saved[i].st
		v := p.valueAt[slot]
		if v < 0 {
			return
		}
		n.saved[i].st = nil
		n.setPacked(i, omitted{o, int(v)})
		o.values[v].left++
		o.left++
		_ = st.release() // it has no memory yet
	})
	d.s.openOmissions() // forgets the others
	d.s.omissions = append(d.s.omissions, weak.Make(o))
}
