package core

import (
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
	if outs != int(c.outs) || len(r.Operands) != outs+1 || !infer.Same(c.in[0].form.shape, r.Operands[outs].Shape) {
		return nil
	}
	for k := range r.Operands {
		at := maxIn + k
		if k == outs {
			at = 0
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

// reduceGroup makes the group of s, whose last call is a reduction of what the others make, or returns nil if no kernel can do it.
func (b *planning) reduceGroup(s *fuse.Set) *fusedGroup {
	last := len(s.Calls) - 1
	c, from := &b.g.Calls[s.Calls[last]], s.From[last][0]
	p := b.points[c.At]
	if len(s.Outs) != p.reduce.Outs() { // somebody has no use for one of them
		return nil
	}
	w := b.side(s, -1, func(k int) bool { return k != last })
	op := kernels.Fuse(w.types, w.steps, []int{w.first[from.Member] + from.Index})
	if op == nil {
		return nil
	}
	g := &fusedGroup{numbers: w.numbers}
	for slot := range s.Outs {
		e := b.element(b.refOf(s, slot))
		g.operands = append(g.operands, kernels.Operand{DType: e.dt, Shape: e.form.shape, Stride: e.form.stride})
	}
	shape := c.Ins[0].Shape
	for _, slot := range w.read {
		e := b.element(b.refOf(s, slot))
		o := kernels.Operand{DType: e.dt, Shape: shape, Stride: make([]int, len(shape))}
		infer.BroadcastStrides(o.Stride, e.form.shape, e.form.stride, shape)
		g.operands, g.slots = append(g.operands, o), append(g.slots, slot)
	}
	limits := b.d.calls[c.At].x.m.stream.Device().Limits()
	if g.reduce = kernels.FuseReduce(p.reduce, op, g.operands[len(s.Outs):], limits); g.reduce == nil {
		return nil
	}
	g.numbers = append(g.numbers, p.numbers...)
	return g
}

// runReduce launches the kernel of a group with a reduction.
func (g *fusedGroup) runReduce(f *frame) error {
	h := f.x.s.putOff.fusing.handles
	f.opers = append(f.opers[:0], g.operands...)
	outs := len(g.outs)
	for i := range f.opers {
		slot := i
		if i >= outs {
			slot = g.slots[i-outs]
		}
		f.opers[i].Ptr = h[slot].ptr()
	}
	return g.reduce.Run(f, f.x.s.putOff.fusing.numbers, f.opers[:outs], f.opers[outs:])
}
