package core

import (
	"slices"

	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// productRow is what groups need of a row whose calls are matrix products.
type productRow struct {
	// fits reports whether the call is one product with a result that can have an epilogue.
	fits func(c *deferred) bool
	// once reports whether a kernel on the device reads each element of the second operand, a matrix, once, so that the call can have a
	// prologue. It may be nil.
	once func(c *deferred, lim *kernels.Limits) bool
	// run runs the call with other work.
	run func(is kernels.Issuer, c *deferred, w *productWork) error
	// flops counts the call's operations.
	flops func(c *deferred) int64
	// apart says that the bias is added to the rounded product: the epilogue begins with that.
	apart bool
}

// productWork is a product with the work that its kernel includes.
type productWork struct {
	// a, b and bias are the operands of the call; an absent one is zero. If there is no epilogue, out is the result's address.
	a, b, bias kernels.Operand
	out        uint64
	epilogue   *kernels.Epilogue
	// prologue, if not nil, makes b.
	prologue *kernels.Prologue
}

// fusedProduct is the product of a group, whose other calls are its epilogue and its prologue.
type fusedProduct struct {
	call int
	// own, outs and ins are indexes of the group's operands, outputs first: the product's own, those that the epilogue writes, and those
	// that it reads besides the product. An absent one is negative. Without an epilogue the only output is the result.
	own       [3]int
	outs, ins []int
	// makes is the prologue, or nil, with that many of the group's numbers. made are its operands without their addresses, at indexes
	// makesOf, and matrix is what it makes.
	makes   *kernels.PointOp
	numbers int
	made    []kernels.Operand
	makesOf []int
	matrix  kernels.Operand
	flops   int64
}

// joins adds to call, which is call i, whether it is a product that can run with other calls.
func (b *planning) joins(call *fuse.Call, i int) {
	c := &b.d.calls[i]
	p := c.row.product
	if p == nil || !p.fits(c) {
		return
	}
	call.Product = true
	call.Apart = p.apart && c.in[c.ins-1].st != nil
	call.Once = p.once != nil && p.once(c, c.x.m.stream.Device().Limits())
}

// productGroup makes the group of s, whose member k is a product, or returns nil if no kernel can do it.
func (b *planning) productGroup(s *fuse.Set, k int) *fusedGroup {
	before := b.g.Before(s)
	w := b.side(s, k, func(m int) bool { return m != k && !before[m] }, none)
	call := &b.g.Calls[s.Calls[k]]
	p := &fusedProduct{call: call.At, outs: w.written, ins: w.read}
	g := &fusedGroup{product: p}
	if slot := slices.Index(s.Outs, fuse.Ref{Call: s.Calls[k]}); slot >= 0 { // the product is stored too
		w.outs, p.outs = slices.Insert(w.outs, 0, w.first[k]), slices.Insert(p.outs, 0, slot)
	}
	if slices.Contains(before, true) && !b.makes(s, before, g) {
		return nil
	}
	if len(w.steps) > 0 {
		if g.op = kernels.Fuse(w.types, w.steps, w.outs); g.op == nil {
			return nil
		}
		g.numbers = append(g.numbers, w.numbers...)
	}
	for j := range p.own {
		p.own[j] = absent
		if j < len(call.Ins) && s.From[k][j].Member < 0 && s.From[k][j].Index >= 0 {
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

// makes lets the product of g make its matrix as the members of s in before do, and reports whether a kernel can do that.
func (b *planning) makes(s *fuse.Set, before []bool, g *fusedGroup) bool {
	p := g.product
	w := b.side(s, absent, func(m int) bool { return before[m] }, none)
	f := s.From[b.g.Product(s)][1]
	p.makes = kernels.Fuse(w.types, w.steps, []int{w.first[f.Member] + f.Index})
	p.numbers, p.makesOf, g.numbers = len(w.numbers), w.read, w.numbers
	made := b.g.Calls[s.Calls[f.Member]].Outs[f.Index].Place
	e := b.element(at{p.call, 1})
	p.matrix = kernels.Operand{Ptr: uint64(e.offset * e.dt.Size()), DType: e.dt, Shape: e.form.shape, Stride: e.form.stride}
	for _, slot := range w.read {
		in := b.element(b.refOf(s, slot))
		o := kernels.Operand{DType: in.dt, Shape: e.form.shape, Stride: make([]int, len(made.Shape))}
		infer.BroadcastStrides(o.Stride, in.form.shape, in.form.stride, made.Shape)
		if e.form.stride[0] != made.Stride[0] { // the product reads the transpose
			slices.Reverse(o.Stride)
		}
		p.made = append(p.made, o)
	}
	return p.makes != nil
}

// runProduct launches the kernel of a group with a product.
func (g *fusedGroup) runProduct(f *frame) error {
	d, p := f.x.s.putOff, g.product
	ptr := func(slot int) uint64 { return d.fusing.handles[slot].ptr() }
	f.opers = f.opers[:0]
	for _, slots := range [][]int{p.own[:], p.outs, p.ins} {
		for _, slot := range slots {
			o := kernels.Operand{}
			if slot != absent {
				o = g.operands[slot]
				o.Ptr = ptr(slot)
			}
			f.opers = append(f.opers, o)
		}
	}
	f.opers = append(f.opers, p.made...)
	own, rest := len(p.own), f.opers[len(p.own)+len(p.outs)+len(p.ins):]
	for i, slot := range p.makesOf {
		rest[i].Ptr = ptr(slot)
	}
	w := &productWork{a: f.opers[0], b: f.opers[1], bias: f.opers[2]}
	if p.makes != nil {
		w.b = p.matrix
		w.prologue = &kernels.Prologue{Op: p.makes, Scalars: d.fusing.numbers[:p.numbers], Ins: rest}
	}
	if outs := f.opers[own:][:len(p.outs)]; g.op == nil {
		w.out = outs[0].Ptr
	} else {
		w.epilogue = &kernels.Epilogue{Op: g.op, Scalars: d.fusing.numbers[p.numbers:], Outs: outs,
			Ins: f.opers[own+len(outs):][:len(p.ins)]}
	}
	c := &d.calls[p.call]
	return c.row.product.run(f, c, w)
}

// name returns the name of the group's kernel for people.
func (p *fusedProduct) name(epilogue *kernels.PointOp) string {
	name := "product"
	if p.makes != nil {
		name += " of " + p.makes.Name
	}
	if epilogue != nil {
		name += " and " + epilogue.Name
	}
	return name
}
