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
			if c.in[at].st == nil || !infer.Same(c.in[at].form.shape, r.Operands[k].Shape) {
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

// regroup groups the calls. Reductions whose kernel cannot go through the elements again, or write what others need, are tried without
// that, those that no kernel can do together are tried one by one, and one that no kernel can do with its input runs alone, so that the
// others keep their groups.
func (b *planning) regroup() {
	for again := true; again; {
		again = false
		b.g.Group(fusionLimits)
		for k := range b.g.Groups {
			if s := &b.g.Groups[k]; b.g.Reduction(s) != nil && b.reduceGroup(s) == nil {
				if !b.onePass(s) && !b.keepToResults(s) {
					b.separate(s)
				}
				again = true
			}
		}
	}
}

// onePass lets the reductions of s go through their elements once, without what reads their results. It reports whether that is in s.
func (b *planning) onePass(s *fuse.Set) bool {
	if b.g.Phases(s) == nil {
		return false
	}
	for _, i := range s.Calls {
		b.g.Calls[i].Again = false
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
	if i < 0 {
		i = len(b.reduces)
		b.reduces = append(b.reduces, c)
	}
	return i + 1
}

// reduceGroup makes the group of s, reductions with what makes their inputs and what reads their results, or returns nil if no kernel can
// do it. The operands are the results of the reductions and of what goes by rows, what the kernel reads, and what else it writes.
func (b *planning) reduceGroup(s *fuse.Set) *fusedGroup {
	phases, reduces := b.g.Phases(s), func(k int) bool { return b.g.Calls[s.Calls[k]].Reduce != 0 }
	before := func(k int) bool { return !reduces(k) }
	var then *reduceThen
	if phases != nil {
		before = func(k int) bool { return phases[k] == fuse.Before }
		if slices.Contains(phases, fuse.After) {
			before = s.Makers(reduces, before)
		}
		then = b.then(s, phases)
	}
	w := b.side(s, -1, before, reduces)
	if then != nil && then.each != nil { // it writes whatever there is to write for each element
		w.outs, w.written = nil, nil
	}
	g := &fusedGroup{}
	var calls []*kernels.ReduceCall
	var made []int
	var keeps []uint
	var numbers []numberAt
	for k, i := range s.Calls {
		if !reduces(k) {
			continue
		}
		p := b.points[b.g.Calls[i].At]
		calls, numbers, keeps = append(calls, p.reduce), append(numbers, p.numbers...), append(keeps, 0)
		for _, r := range s.Outs {
			if r.Call == i {
				keeps[len(keeps)-1] |= 1 << r.Index
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
	op := kernels.Fuse(w.types, w.steps, append(made, w.outs...))
	if op == nil || then != nil && (then.Row == nil || then.each != nil && then.Each == nil) {
		return nil
	}
	g.numbers = append(w.numbers, numbers...)
	add := func(slot int, shape, stride []int) {
		g.operands = append(g.operands, kernels.Operand{DType: b.element(b.refOf(s, slot)).dt, Shape: shape, Stride: stride})
		g.slots = append(g.slots, slot)
	}
	in := &b.g.Reduction(s).Ins[0]
	result := func(slot int) {
		v := &b.g.Calls[s.Outs[slot].Call].Outs[s.Outs[slot].Index]
		add(slot, v.Shape, v.Stride)
	}
	read := func(w *rowSide) {
		for _, slot := range w.read {
			stride, _ := b.g.Reducible(s, s.Ins[slot-len(s.Outs)])
			add(slot, in.Shape, stride)
		}
	}
	write := func(w *rowSide) {
		for _, slot := range w.written {
			add(slot, in.Shape, in.Stride) // they lie alike
		}
	}
	for slot, r := range s.Outs {
		if reduces(slices.Index(s.Calls, r.Call)) {
			result(slot)
		}
	}
	outs := len(g.slots)
	if then != nil {
		for _, slot := range then.row.written {
			result(slot)
		}
		then.Outs = g.operands[outs:]
		g.numbers = append(g.numbers, then.row.numbers...)
		outs = len(g.slots)
	}
	read(w)
	write(w)
	var rest *kernels.ReduceThen
	if then != nil {
		rest = &then.ReduceThen
		read(then.row)
		if then.each != nil {
			g.numbers = append(g.numbers, then.each.numbers...)
			for _, slot := range then.each.read {
				then.Same = append(then.Same, slices.Index(w.read, slot))
			}
			then.each.read = slices.DeleteFunc(then.each.read, func(slot int) bool { return slices.Contains(w.read, slot) })
			read(then.each)
			write(then.each)
		}
	}
	limits := b.d.calls[b.g.Calls[s.At].At].x.m.stream.Device().Limits()
	if g.reduce = kernels.FuseReduce(calls, keeps, op, rest, g.operands[outs:], limits); g.reduce == nil {
		return nil
	}
	return g
}

// reduceThen is the work that reads the results of reductions. each is nil if there is none for each element.
type reduceThen struct {
	kernels.ReduceThen
	row, each *rowSide
}

// then returns the work of the members of s that reads the results of its reductions. Row or Each is nil if it cannot be one kernel.
func (b *planning) then(s *fuse.Set, phases []fuse.Phase) *reduceThen {
	t := &reduceThen{}
	of := func(p fuse.Phase) func(k int) bool { return func(k int) bool { return phases[k] == p } }
	var reduces, given []int
	for k, p := range phases {
		if p == fuse.Reducing {
			reduces = append(reduces, k)
		}
		if (p == fuse.Reducing || p == fuse.OfRow) && b.used(s, k, of(fuse.After)) {
			given = append(given, k)
		}
	}
	t.row = b.side(s, -1, of(fuse.OfRow), none, reduces...)
	var outs []int
	for _, k := range given {
		for i := range b.g.Calls[s.Calls[k]].Outs {
			outs = append(outs, t.row.first[k]+i)
		}
	}
	t.Given = len(outs)
	t.Row = kernels.Fuse(t.row.types, t.row.steps, append(outs, t.row.outs...))
	if !slices.Contains(phases, fuse.After) {
		return t
	}
	written := func(k int) bool {
		return phases[k] == fuse.After ||
			phases[k] == fuse.Before && slices.ContainsFunc(s.Outs, func(r fuse.Ref) bool { return r.Call == s.Calls[k] })
	}
	elements := func(k int) bool { return phases[k] == fuse.Before || phases[k] == fuse.After }
	t.each = b.side(s, -1, s.Makers(written, elements), none, given...)
	t.Each = kernels.Fuse(t.each.types, t.each.steps, t.each.outs)
	return t
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
