package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// TakesCalls reports whether the call is only described, not run.
func (f *frame) TakesCalls() bool { return f.described != nil }

// TakeRows describes the call as one that works by rows.
func (f *frame) TakeRows(c *kernels.RowCall) { f.described.rows = c }

// rowsFound completes the description of call i, which works by rows, or returns nil if a group cannot contain it.
func (d *deferral) rowsFound(p *pointCall, i int) *pointCall {
	c := &d.calls[i]
	shape := c.in[0].form.shape
	if c.values() > 0 || !infer.Same(shape, c.out[0].form.shape) || !p.rows.Shaped(shape) || kernels.FuseRows(p.rows, nil, nil) == nil {
		return nil
	}
	for k, o := range p.rows.Operands {
		at := int(o.Ptr/apart) - 1
		if first := k == 0 && at != maxIn || k == p.rows.Outs() && at != 0; first {
			return nil
		}
		p.operands = append(p.operands, at)
	}
	return p
}

// rowGroup makes the group of s, one of whose calls works by rows, or returns nil if no kernel can do it.
func (b *planning) rowGroup(s *fuse.Set, row int, after []bool) *fusedGroup {
	c, p := &b.g.Calls[s.Calls[row]], b.points[b.g.Calls[s.Calls[row]].At]
	shape := c.Ins[0].Shape
	g := &fusedGroup{}
	var parts [2]*kernels.PointOp
	var beside [2][]int // the operands of each part that are not the call's, outputs first
	var outs [2]int
	numbers := make([][]numberAt, 2)
	for side := range parts {
		w := b.side(s, row, func(k int) bool { return k != row && after[k] == (side == 1) }, none)
		if len(w.steps) == 0 {
			continue
		}
		if side == 0 {
			f := s.From[row][0]
			if f.Member < 0 {
				return nil
			}
			w.outs = slices.Insert(w.outs, 0, w.first[f.Member]+f.Index)
		}
		parts[side], numbers[side] = kernels.Fuse(w.types, w.steps, w.outs), w.numbers
		if parts[side] == nil {
			return nil
		}
		beside[side], outs[side] = append(w.written, w.read...), len(w.written)
	}
	if g.rows = kernels.FuseRows(p.rows, parts[0], parts[1]); g.rows == nil {
		return nil
	}
	own := b.rowOperands(s, row, p)
	g.alone = slices.Clone(own)
	of := func(slot int) kernels.Operand {
		e := b.element(b.refOf(s, slot))
		o := kernels.Operand{DType: e.dt, Shape: shape, Stride: make([]int, len(shape))}
		infer.BroadcastStrides(o.Stride, e.form.shape, e.form.stride, shape)
		return o
	}
	lies := slices.Clone(p.rows.Operands)
	if n, sums := p.rows.Outs(), p.rows.Sums(); sums > 0 { // only the operands of the call alone have these
		own, lies = slices.Delete(own, n-sums, n), slices.Delete(lies, n-sums, n)
	}
	n := p.rows.Outs() - p.rows.Sums()
	for k, slot := range own[n:] {
		if slot != absent {
			lies[n+k].DType = of(slot).DType
		}
	}
	if parts[0] != nil { // its first input stands for the call's
		own[n] = beside[0][outs[0]]
		lies[n] = of(own[n])
		beside[0] = slices.Delete(beside[0], outs[0], outs[0]+1)
	}
	add := func(slots []int) {
		for _, slot := range slots {
			g.slots, g.operands = append(g.slots, slot), append(g.operands, of(slot))
		}
	}
	g.slots, g.operands = slices.Clone(own[:n]), slices.Clone(lies[:n])
	add(beside[0][:outs[0]])
	add(beside[1][:outs[1]])
	g.slots, g.operands = append(g.slots, own[n:]...), append(g.operands, lies[n:]...)
	add(beside[0][outs[0]:])
	add(beside[1][outs[1]:])
	g.numbers = numbers[0]
	for _, v := range p.rows.Scalars {
		g.numbers = append(g.numbers, numberAt{fixed: true, is: v})
	}
	g.numbers = append(g.numbers, numbers[1]...)
	return g
}

// absent stands for the index of an operand that is absent.
const absent = -1

// rowOperands returns, for each operand of the group's row-wise call, its index among the group's operands, outputs first.
func (b *planning) rowOperands(s *fuse.Set, row int, p *pointCall) (slots []int) {
	for _, at := range p.operands {
		slot := absent
		switch {
		case at >= maxIn:
			slot = slices.Index(s.Outs, fuse.Ref{Call: s.Calls[row], Index: at - maxIn})
		case at >= 0 && s.From[row][at].Member < 0:
			slot = len(s.Outs) + s.From[row][at].Index
		}
		slots = append(slots, slot)
	}
	return slots
}

// refOf returns an operand of the group, outputs first.
func (b *planning) refOf(s *fuse.Set, slot int) at {
	if slot < len(s.Outs) {
		return at{b.g.Calls[s.Outs[slot].Call].At, maxIn + s.Outs[slot].Index}
	}
	r := s.Ins[slot-len(s.Outs)]
	c := &b.g.Calls[r.Call]
	if ins := len(c.Ins) - b.listed(c.At); r.Index >= ins {
		return at{c.At, maxIn + maxOut + r.Index - ins}
	}
	return at{c.At, r.Index}
}

// none selects no member.
func none(int) bool { return false }

// rowSide is element-wise work of a group: what comes before or after a row-wise call, or all that goes with a product or reductions.
type rowSide struct {
	types         []dtype.DType // of the inputs
	steps         []kernels.FusedStep
	numbers       []numberAt
	first         []int // the first result of every member of the group, as a value
	outs          []int
	written, read []int // indexes of the group's operands, outputs first
	value         []int // of each input of the group, or -1
}

// side returns the work of the members of s that has selects. What members that reads selects read is an input too. The results of the
// members given are the first inputs.
func (b *planning) side(s *fuse.Set, row int, has, reads func(k int) bool, given ...int) *rowSide {
	w := &rowSide{first: make([]int, len(s.Calls)), value: slices.Repeat([]int{-1}, len(s.Ins))}
	values, bias := 0, absent
	for _, k := range given {
		w.first[k] = values
		for _, v := range b.g.Calls[s.Calls[k]].Outs {
			w.types = append(w.types, v.DType)
			values++
		}
	}
	if row >= 0 && b.used(s, row, has) { // the call's result comes first
		c := &b.g.Calls[s.Calls[row]]
		w.types, values = []dtype.DType{c.Outs[0].DType}, 1
		if c.Apart {
			bias = len(c.Ins) - 1
		}
	}
	for k := range s.Calls {
		for j, f := range s.From[k] {
			own := j == bias && k == row
			if (has(k) || reads(k) || own) && f.Member < 0 && f.Index >= 0 && w.value[f.Index] < 0 {
				w.value[f.Index] = values
				values++
				r := s.Ins[f.Index]
				w.types = append(w.types, b.g.Calls[r.Call].Ins[r.Index].DType)
				w.read = append(w.read, len(s.Outs)+f.Index)
			}
		}
	}
	if bias != absent {
		w.steps = append(w.steps, kernels.BiasStep(w.types[0], w.value[s.From[row][bias].Index]))
		w.first[row] = values
		values++
	}
	for k, i := range s.Calls {
		if !has(k) {
			continue
		}
		c := &b.g.Calls[i]
		w.first[k] = values
		values += len(c.Outs)
		from := slices.Clone(s.From[k])
		for j, f := range from {
			if f.Member < 0 && f.Index >= 0 {
				from[j].Index = w.value[f.Index]
			}
		}
		w.steps = append(w.steps, b.body(c, from, w.first))
		w.numbers = append(w.numbers, b.points[c.At].numbers...)
	}
	for slot, r := range s.Outs {
		if k := slices.Index(s.Calls, r.Call); has(k) {
			w.outs = append(w.outs, w.first[k]+r.Index)
			w.written = append(w.written, slot)
		}
	}
	return w
}

// used reports whether a member that has selects reads the result of member row.
func (b *planning) used(s *fuse.Set, row int, has func(k int) bool) bool {
	for k := range s.Calls {
		if has(k) && slices.ContainsFunc(s.From[k], func(f fuse.Source) bool { return f.Member == row }) {
			return true
		}
	}
	return false
}

// runRows launches the kernel of a group with a row-wise call.
func (g *fusedGroup) runRows(f *frame) error {
	h := f.x.s.putOff.fusing.handles
	f.opers = append(append(f.opers[:0], g.operands...), g.rows.Operands...)
	for i, slots := range [][]int{g.slots, g.alone} {
		for k, slot := range slots {
			if o := &f.opers[i*len(g.slots)+k]; slot != absent {
				o.Ptr = h[slot].ptr()
			} else if i == 0 || k < g.rows.Outs() {
				o.Ptr = 0
			}
		}
	}
	outs, ins := g.rows.Counts()
	return g.rows.Run(f, f.x.s.putOff.fusing.numbers, f.opers[:outs], f.opers[outs:outs+ins], f.opers[outs+ins:])
}
