package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// back is what a derivative sees: the node's attributes, the gradients of its outputs and the saved tensors.
type back struct {
	x   *Exec
	n   *node
	r   *run // nil if only the node is looked at
	g   []*Tensor
	res []*Tensor
	// unpacked holds what the unpack hooks returned, by slot.
	unpacked map[int]*Tensor
}

// need reports whether input i wants a gradient.
func (b *back) need(i int) bool {
	if i >= len(b.n.edges) {
		return false
	}
	e := &b.n.edges[i]
	if b.r == nil {
		return e.node != nil || e.leaf != nil
	}
	return b.r.wants(e)
}

// grad returns the gradient of output i, or zeros if none came.
func (b *back) grad(i int) *Tensor {
	if b.g[i] == nil {
		m := b.n.output(i)
		return b.x.Full(m.shape, 0, m.dt)
	}
	return b.g[i]
}

// in returns saved input i with its history, in the derivative's scope.
func (b *back) in(i int) *Tensor { return b.unpack(in0<<i, b.n.edges[i]) }

// out returns saved output i with its history.
func (b *back) out(i int) *Tensor { return b.unpack(out0<<i, edge{node: b.n, out: uint8(i)}) }

func (b *back) unpack(which save, e edge) *Tensor {
	for i := range b.n.saved {
		s := &b.n.saved[i]
		if s.which == which {
			return b.unpackSlot(i, e)
		}
	}
	return nil
}

// savedChanged is the error for a saved tensor that was changed.
const savedChanged = "one of the variables needed for gradient computation has been modified by an inplace operation: %s is at version " +
	"%d; expected version %d; change a Clone of it, or change it after the backward pass"

// unpackSlot returns a handle of a saved tensor with the history e, in the derivative's scope.
func (b *back) unpackSlot(i int, e edge) *Tensor {
	s := &b.n.saved[i]
	var t *Tensor
	if s.st == nil {
		if v, ok := b.n.extra.packed[i].(omitted); ok {
			t = v.again(b.x, s)
		} else {
			t = b.unpackHooked(i).alias()
		}
	} else {
		if v := s.st.version.Load(); v != s.version {
			panicAt(b.n.row.Name, fault.Invalid, savedChanged, s.dt.String()+infer.Clipped(s.form.shape), v, s.version)
		}
		t = handleOf(s.st, s.form, s.offset, s.dt)
	}
	if e.node != nil {
		t.node, t.out = e.node, e.out
		e.node.refs.Add(1)
	}
	t.leaf = e.leaf
	b.x.s.adopt(t)
	return t
}

// handleOf returns a handle of what was saved in st, in no scope.
func handleOf(st *storage, form *form, offset int, dt dtype.DType) *Tensor {
	st.retain()
	if st.lent() { // another session may have recorded it
		st.marks.Or(foreignUse)
	}
	return &Tensor{st: st, dt: dt, offset: offset, form: form}
}

// shape returns the shape of input i.
func (b *back) shape(i int) []int {
	if f := b.n.edges[i].form; f != nil {
		return f.shape
	}
	return nil
}

// set gives the gradient of input i: it sums g over broadcast dimensions and casts it to the input's type.
func (b *back) set(i int, g *Tensor) {
	if g == nil || !b.need(i) {
		return
	}
	m := &b.n.edges[i]
	if g.dt.IsComplex() && !m.dt.IsComplex() {
		g = b.x.RealPart(g)
	}
	g = b.x.sumTo(g, m.form.shape)
	if g.dt != m.dt {
		g = b.x.ToDType(g, m.dt)
	}
	b.res[i] = b.apart(g)
}

// apart returns g, or a second handle to it if g is already in use, as an incoming gradient or as the gradient of another input.
func (b *back) apart(g *Tensor) *Tensor {
	if slices.Contains(b.g, g) || slices.Contains(b.res, g) || g.scope != b.x.s.scope {
		c := g.twin()
		b.x.s.adopt(c)
		return c
	}
	return g
}
