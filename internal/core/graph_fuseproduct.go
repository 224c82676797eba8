package core

import (
	"slices"

	"tenon.dev/internal/fuse"
	"tenon.dev/internal/kernels"
)

// productRow is what groups need of a row whose calls are matrix products.
type productRow struct {
	// fits reports whether the call is one product with a result that can have an epilogue.
	fits func(c *deferred) bool
	// run runs the call with an epilogue. The operands are those of the call; an absent one is zero.
	run func(is kernels.Issuer, c *deferred, a, b, bias kernels.Operand, e *kernels.Epilogue) error
	// flops counts the call's operations.
	flops func(c *deferred) int64
	// apart says that the bias is added to the rounded product: the epilogue begins with that.
	apart bool
}

// fusedProduct is the product of a group, whose other calls are its epilogue.
type fusedProduct struct {
	call int
	// own, outs and ins are indexes of the group's operands, outputs first: the product's own, those that the epilogue writes, and those
	// that it reads besides the product. An absent one is negative.
	own       [3]int
	outs, ins []int
	flops     int64
}

// productGroup makes the group of s, whose member k is a product, or returns nil if no kernel can do it.
func (b *planning) productGroup(s *fuse.Set, k int) *fusedGroup {
	w := b.side(s, k, func(m int) bool { return m != k }, none)
	call := &b.g.Calls[s.Calls[k]]
	p := &fusedProduct{call: call.At, outs: w.written, ins: w.read}
	if slot := slices.Index(s.Outs, fuse.Ref{Call: s.Calls[k]}); slot >= 0 { // the product is stored too
		w.outs, p.outs = slices.Insert(w.outs, 0, w.first[k]), slices.Insert(p.outs, 0, slot)
	}
	g := &fusedGroup{op: kernels.Fuse(w.types, w.steps, w.outs), numbers: w.numbers, product: p}
	if g.op == nil {
		return nil
	}
	for j := range p.own {
		p.own[j] = absent
		if j < len(call.Ins) && s.From[k][j].Index >= 0 {
			p.own[j] = len(s.Outs) + s.From[k][j].Index
		}
	}
	for slot := range len(s.Outs) + len(s.Ins) {
		e := b.element(b.refOf(s, slot))
		g.operands = append(g.operands, kernels.Operand{DType: e.dt, Shape: e.form.shape, Stride: e.form.stride})
	}
	c := &b.d.calls[p.call]
	p.flops = c.row.product.flops(c)
	return g
}

// runProduct launches the kernel of a group with a product.
func (g *fusedGroup) runProduct(f *frame) error {
	d, p := f.x.s.putOff, g.product
	f.opers = f.opers[:0]
	for _, slots := range [][]int{p.own[:], p.outs, p.ins} {
		for _, slot := range slots {
			o := kernels.Operand{}
			if slot != absent {
				o = g.operands[slot]
				o.Ptr = d.fusing.handles[slot].ptr()
			}
			f.opers = append(f.opers, o)
		}
	}
	c, rest := &d.calls[p.call], f.opers[len(p.own):]
	return c.row.product.run(f, c, f.opers[0], f.opers[1], f.opers[2], &kernels.Epilogue{Op: g.op, Scalars: d.fusing.numbers,
		Outs: rest[:len(p.outs)], Ins: rest[len(p.outs):]})
}
