package core

import (
	"slices"

	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// TakeReduce describes the call as a reduction.
func (f *frame) TakeReduce(c *kernels.ReduceCall) { f.described.reduce = c }

// reduceFound completes the description of call i, a reduction, or returns nil if a group cannot contain it.
func (d *deferral) reduceFound(p *pointCall, i int) *pointCall {
	c, r := &d.calls[i], p.reduce
	outs := r.Outs()
	if outs != int(c.outs) || len(r.Operands) != outs+int(c.ins) {
		return nil
	}
	for k := range r.Operands {
		at := maxIn + k
		if k >= outs {
			at = k - outs
			if c.in[at].st == nil || p.seen[at] == nil && !infer.Same(c.in[at].form.shape, r.Operands[k].Shape) {
				return nil
			}
		}
		if r.Operands[k].Ptr != somewhere[at].ptr {
			return nil
		}
	}
	for k := range r.Scalars {
		n := numberAt{call: i, index: k}
		if v := n.of(d.calls); numberOf(&v) != numberOf(&r.Scalars[k]) {
			return nil
		}
		p.numbers = append(p.numbers, n)
	}
	if c.values() > len(p.numbers) {
		return nil
	}
	return p
}

// regroup groups the calls. Reductions whose kernel cannot go through the elements so often, or write what others need, are tried without
// that, those that no kernel can do together are tried one by one, and one that no kernel can do with its input runs alone, so that the
// others keep their groups. Groups whose kernel cannot do calls again are tried without that first.
func (b *planning) regroup() {
	for again := true; again; {
		again = false
		b.g.Group(fusionLimits)
		for k := range b.g.Groups {
			s := &b.g.Groups[k]
			reduces, repeats := b.g.Reduction(s) != nil, b.g.Repeats(s)
			if reduces && b.reduceGroup(s) != nil || !reduces && (!repeats || b.pointGroup(s) != nil) {
				continue
			}
			switch again = true; {
			case repeats:
				b.repeatNothing(s)
			case !b.fewerRounds(s) && !b.keepToResults(s):
				b.separate(s)
			}
		}
	}
}

// repeatNothing lets s do no calls again.
func (b *planning) repeatNothing(s *fuse.Set) {
	for _, i := range s.Calls {
		b.g.Calls[i].NoAgain = true
	}
}

// fewerRounds allows the reductions of s one round less than s has. Without any, no group has reductions and what reads their results.
// fewerRounds reports whether s has both.
func (b *planning) fewerRounds(s *fuse.Set) bool {
	phases := b.g.Phases(s)
	if phases == nil {
		return false
	}
	for _, i := range s.Calls {
		c := &b.g.Calls[i]
		c.Rounds = min(c.Rounds, fuse.Rounds(phases)-1)
	}
	return true
}

// keepToResults lets the reductions of s write nothing but their results. It reports whether s writes more.
func (b *planning) keepToResults(s *fuse.Set) bool {
	if !slices.ContainsFunc(s.Outs, func(r fuse.Ref) bool { return b.g.Calls[r.Call].Reduce == 0 }) {
		return false
	}
	for _, i := range s.Calls {
		b.g.Calls[i].Stores = false
	}
	return true
}

// separate gives each reduction of s a number of its own or, if there is one, none.
func (b *planning) separate(s *fuse.Set) {
	var all []*fuse.Call
	for _, i := range s.Calls {
		if c := &b.g.Calls[i]; c.Reduce != 0 {
			all = append(all, c)
		}
	}
	for _, c := range all {
		if c.Reduce = 0; len(all) > 1 {
			b.reduces = append(b.reduces, nil)
			c.Reduce = len(b.reduces)
		}
	}
}

// reduceNumber numbers reductions: those that may run together have one number.
func (b *planning) reduceNumber(c *kernels.ReduceCall) int {
	i := slices.IndexFunc(b.reduces, c.Like)
	switch {
	case i < 0:
		i = len(b.reduces)
		b.reduces = append(b.reduces, c)
	case b.reduces[i].Unordered(): // further ones must be like c
		b.reduces[i] = c
	}
	return i + 1
}

// reduceGroup makes the group of s, reductions with what makes their inputs and what reads their results, or returns nil if no kernel can
// do it. The kernel keeps the results of heavy work that it needs again, if there is room.
func (b *planning) reduceGroup(s *fuse.Set) *fusedGroup {
	if kept := b.worthKeeping(s); kept != nil {
		if g := b.reduceGroupWith(s, kept); g != nil {
			return g
		}
	}
	return b.reduceGroupWith(s, nil)
}

// reduceGroupWith is reduceGroup for a kernel that keeps the results of the members kept, which has the round for each. The operands are
// the results of the reductions and of what goes by rows, what the kernel reads, and what else it writes.
func (b *planning) reduceGroupWith(s *fuse.Set, kept map[int]int) *fusedGroup {
	g, p := &fusedGroup{}, &reducePlanning{planning: b, s: s, phases: b.g.Phases(s), kept: kept}
	if p.again = p.phases != nil; !p.again {
		p.phases = make([]fuse.Phase, len(s.Calls))
		for k, i := range s.Calls {
			if b.g.Calls[i].Reduce != 0 {
				p.phases[k].Kind = fuse.Reducing
			}
		}
	}
	n := fuse.Rounds(p.phases)
	var rounds []kernels.ReduceRound
	var rows []int // slots
	for round := range n {
		r, slots := p.round(round)
		if r == nil {
			return nil
		}
		rounds, rows = append(rounds, *r), append(rows, slots...)
	}
	each, ok := p.each(n)
	if !ok {
		return nil
	}
	for _, slot := range rows {
		v := &b.g.Calls[s.Outs[slot].Call].Outs[s.Outs[slot].Index]
		g.operands = append(g.operands, kernels.Operand{DType: v.DType, Shape: v.Shape, Stride: v.Stride})
	}
	in := &b.g.Reduction(s).Ins[0]
	for _, slot := range p.read {
		stride, _ := b.g.Reducible(s, s.Ins[slot-len(s.Outs)])
		g.operands = append(g.operands, kernels.Operand{DType: b.element(b.refOf(s, slot)).dt, Shape: in.Shape, Stride: stride})
	}
	for _, slot := range p.written { // they lie alike
		g.operands = append(g.operands, kernels.Operand{DType: b.element(b.refOf(s, slot)).dt, Shape: in.Shape, Stride: in.Stride})
	}
	g.slots, g.numbers = slices.Concat(rows, p.read, p.written), p.numbers
	if g.reduce = kernels.FuseReduce(rounds, each, g.operands[len(rows):], b.limitsOf(s)); g.reduce == nil {
		return nil
	}
	return g
}

// limitsOf returns those of the device on which s runs.
func (b *planning) limitsOf(s *fuse.Set) *kernels.Limits {
	return b.d.calls[b.g.Calls[s.At].At].x.m.stream.Device().Limits()
}

// reducePlanning makes the parts of the kernel of s, a group with reductions. again says that members read their results. read and written
// are the slots of what is read, and of what is written for each element. kept has the rounds in which the results of members are made that
// are then kept.
type reducePlanning struct {
	*planning
	s             *fuse.Set
	phases        []fuse.Phase
	again         bool
	kept          map[int]int
	read, written []int
	numbers       []numberAt
}

// at selects the members of one phase.
func (p *reducePlanning) at(kind fuse.PhaseKind, round int) func(k int) bool {
	return func(k int) bool { return p.phases[k] == fuse.Phase{Kind: kind, Round: round} }
}

func (p *reducePlanning) elements(k int) bool { return p.phases[k].Kind == fuse.Element }

// given returns the members of earlier rounds whose results for rows are needed in this round or later: by work for rows, or by any work
// for elements, since each round may do that again.
func (p *reducePlanning) given(round int) (all []int) {
	for k, phase := range p.phases {
		later := func(q int) bool {
			return p.elements(q) || p.phases[q].Kind == fuse.OfRow && p.phases[q].Round >= round
		}
		if phase.Kind != fuse.Element && phase.Round < round && p.used(p.s, k, later) {
			all = append(all, k)
		}
	}
	return all
}

// work returns w, whose results are outs and then others that are stored, as part of the kernel. Its Op is nil if that is too much.
func (p *reducePlanning) work(w *rowSide, outs []int) kernels.PointWork {
	work := kernels.PointWork{Op: kernels.FuseWork(w.types, w.steps, append(outs, w.outs...))}
	for _, slot := range w.read {
		i := slices.Index(p.read, slot)
		if i < 0 {
			i = len(p.read)
			p.read = append(p.read, slot)
		}
		work.From = append(work.From, i)
	}
	p.numbers = append(p.numbers, w.numbers...)
	return work
}

// results returns the results of members as values of w.
func (p *reducePlanning) results(w *rowSide, members []int) (all []int) {
	for _, k := range members {
		for i := range p.g.Calls[p.s.Calls[k]].Outs {
			all = append(all, w.first[k]+i)
		}
	}
	return all
}

// round returns a round of the kernel, and the slots of what is stored in it for each row. It returns nil if that is too much.
func (p *reducePlanning) round(round int) (r *kernels.ReduceRound, slots []int) {
	r = &kernels.ReduceRound{}
	s, reduces, given := p.s, p.at(fuse.Reducing, round), p.given(round)
	elements := p.elements
	if !p.storesOnTheWay() {
		elements = s.Makers(reduces, p.madeIn(round))
	}
	before, numbers := p.keptBefore(round, func(k int) bool { return elements(k) || reduces(k) }, none)
	w := p.side(s, -1, elements, reduces, append(slices.Clone(given), before...)...)
	if p.storesOnTheWay() {
		p.written = w.written
	} else {
		w.outs = nil
	}
	var made, reductions []int
	var scalars []numberAt
	for k, i := range s.Calls {
		if !reduces(k) {
			continue
		}
		c := p.points[p.g.Calls[i].At]
		r.Calls, r.Results = append(r.Calls, c.reduce), append(r.Results, 0)
		scalars, reductions = append(scalars, c.numbers...), append(reductions, k)
		for slot, ref := range s.Outs {
			if ref.Call == i {
				r.Results[len(r.Results)-1] |= 1 << ref.Index
				slots = append(slots, slot)
			}
		}
		for _, f := range s.From[k] {
			if f.Member < 0 {
				made = append(made, w.value[f.Index])
			} else {
				made = append(made, w.first[f.Member]+f.Index)
			}
		}
	}
	for k := range s.Calls {
		if in, ok := p.kept[k]; ok && in == round {
			made, r.Keeps = append(made, w.first[k]), append(r.Keeps, p.g.Calls[s.Calls[k]].Outs[0].DType)
		}
	}
	r.Before = p.work(w, made)
	r.Before.Kept, p.numbers = numbers, append(p.numbers, scalars...)
	if r.Before.Op == nil {
		return nil, nil
	}
	if !p.again {
		return r, slots
	}
	rows := p.side(s, -1, p.at(fuse.OfRow, round), none, append(given, reductions...)...)
	gives := p.results(rows, p.given(round+1))
	if r.Row = p.work(rows, gives); r.Row.Op == nil {
		return nil, nil
	}
	r.Given = len(gives)
	for _, slot := range rows.written {
		v := &p.g.Calls[s.Outs[slot].Call].Outs[s.Outs[slot].Index]
		r.Outs = append(r.Outs, kernels.Operand{DType: v.DType, Shape: v.Shape, Stride: v.Stride})
	}
	return r, append(slots, rows.written...)
}

// isWritten reports whether member k has a result that is written.
func (p *reducePlanning) isWritten(k int) bool {
	return slices.ContainsFunc(p.s.Outs, func(r fuse.Ref) bool { return r.Call == p.s.Calls[k] })
}

// storesOnTheWay reports whether what is written for each element is written before it is reduced: there is one round, and nothing comes
// after it for elements.
func (p *reducePlanning) storesOnTheWay() bool {
	return !slices.ContainsFunc(p.phases, func(q fuse.Phase) bool { return q.Round > 0 })
}

// each returns the work for each element after n rounds: what is written, and what makes that. It reports whether that is not too much.
func (p *reducePlanning) each(n int) (work kernels.PointWork, ok bool) {
	written := func(k int) bool { return p.elements(k) && p.isWritten(k) }
	makes := p.madeIn(n)
	elements := p.s.Makers(func(k int) bool { return written(k) && makes(k) }, makes)
	before, numbers := p.keptBefore(n, elements, written)
	w := p.side(p.s, -1, elements, none, append(p.given(n), before...)...)
	for slot, r := range p.s.Outs {
		if k := slices.Index(p.s.Calls, r.Call); slices.Contains(before, k) && written(k) {
			w.outs, w.written = append(w.outs, w.first[k]), append(w.written, slot)
		}
	}
	if p.storesOnTheWay() || len(w.outs) == 0 {
		return work, true
	}
	p.written = w.written
	work = p.work(w, nil)
	work.Kept = numbers
	return work, work.Op != nil
}

// madeIn selects the members that are made for elements in a round if they are needed: those that have not been kept before.
func (p *reducePlanning) madeIn(round int) func(k int) bool {
	return func(k int) bool {
		in, ok := p.kept[k]
		return p.elements(k) && !(ok && in < round)
	}
}

// keptBefore returns the members kept in earlier rounds that wants selects, or that a member reads that reads selects, and their numbers
// among all that are kept, round by round.
func (p *reducePlanning) keptBefore(round int, reads, wants func(k int) bool) (members, numbers []int) {
	n := 0
	for r := range round {
		for k := range p.s.Calls {
			if in, ok := p.kept[k]; ok && in == r {
				if wants(k) || p.used(p.s, k, reads) {
					members, numbers = append(members, k), append(numbers, n)
				}
				n++
			}
		}
	}
	return members, numbers
}

// worthKeeping returns the heavy members of s whose results are needed in several rounds, or after one, with the first of these rounds.
// What only makes such a member is not among them.
func (b *planning) worthKeeping(s *fuse.Set) (kept map[int]int) {
	p := &reducePlanning{planning: b, s: s, phases: b.g.Phases(s), kept: map[int]int{}}
	if p.phases == nil || p.storesOnTheWay() || !kernels.KeepsResults(b.limitsOf(s)) {
		return nil
	}
	n := fuse.Rounds(p.phases)
	// needs selects what a round needs, which may have been kept before.
	needs := func(round int) func(k int) bool {
		from := p.at(fuse.Reducing, round)
		if round == n {
			from = func(k int) bool { return p.elements(k) && p.isWritten(k) }
		}
		made := p.madeIn(round)
		start := func(k int) bool { return from(k) && (made(k) || !p.elements(k)) }
		makes := p.s.Makers(start, made)
		return func(k int) bool {
			return makes(k) || p.elements(k) && (from(k) || p.used(s, k, func(q int) bool { return makes(q) || start(q) }))
		}
	}
	for round := range n {
		for k, i := range slices.Backward(s.Calls) {
			c := &b.g.Calls[i]
			if _, ok := p.kept[k]; ok || !c.Heavy || len(c.Outs) != 1 || !c.Outs[0].DType.IsFloat() || !needs(round)(k) {
				continue
			}
			for later := round + 1; later <= n; later++ {
				if needs(later)(k) {
					p.kept[k] = round
				}
			}
		}
	}
	if len(p.kept) == 0 {
		return nil
	}
	return p.kept
}

// runReduce launches the kernel of a group with reductions.
func (g *fusedGroup) runReduce(f *frame) error {
	d, outs := f.x.s.putOff, g.reduce.Outs()
	f.opers = append(f.opers[:0], g.operands...)
	for i, slot := range g.slots {
		f.opers[i].Ptr = d.fusing.handles[slot].ptr()
	}
	return g.reduce.Run(f, d.fusing.numbers, f.opers[:outs], f.opers[outs:])
}
