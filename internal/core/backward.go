package core

import (
	"errors"
	"fmt"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

// BackwardOpt are the options of Backward and Grad.
type BackwardOpt struct {
	// RetainGraph keeps the saved tensors, so that backward can run again.
	RetainGraph bool
	// CreateGraph records the gradients' own operations, for higher derivatives. It implies RetainGraph.
	CreateGraph bool
	// AllowUnused lets Grad return nil for an input that the outputs do not depend on.
	AllowUnused bool
}

// Backward adds the gradients of t to its leaves. t has one element, or grad, of t's shape, weighs its elements. It returns an error that
// names the operation and, where it is known, the line of its forward call.
func (x *Exec) Backward(t, grad *Tensor, opt BackwardOpt) error {
	return Try(func() { x.backward("Backward", []*Tensor{t}, []*Tensor{grad}, nil, opt) })
}

// Grad returns the gradients of outputs, weighed by grads (nil entries mean 1 for one-element outputs), with respect to inputs; leaves
// accumulate nothing.
func (x *Exec) Grad(outputs, inputs, grads []*Tensor, opt BackwardOpt) (res []*Tensor, err error) {
	err = Try(func() {
		if len(grads) == 0 {
			grads = make([]*Tensor, len(outputs))
		}
		res = x.backward("Grad", outputs, grads, inputs, opt)
	})
	return res, err
}

// task is a node of one backward run with the gradients that have reached it.
type task struct {
	n *node
	g []*Tensor
}

// target is where Grad wants a gradient: a node's output or a leaf.
type target struct {
	n    *node
	out  uint8
	leaf *leaf
}

type run struct {
	x       *Exec
	opt     BackwardOpt
	tasks   map[*node]*task
	targets map[target]*Tensor // nil for Backward
	order   []*node
}

func (x *Exec) backward(op string, roots, grads, inputs []*Tensor, opt BackwardOpt) []*Tensor {
	s := x.s
	outer := s.scope
	s.push()
	defer s.popTo(outer)
	opt.RetainGraph = opt.RetainGraph || opt.CreateGraph
	r := &run{x: x, opt: opt, tasks: map[*node]*task{}}
	if inputs != nil {
		r.targets = map[target]*Tensor{}
		for _, in := range inputs {
			if !in.RequiresGrad() {
				x.fail(op, fault.Invalid, inputs, "one of the differentiated tensors does not require grad")
			}
			r.targets[target{in.node, in.out, in.leaf}] = nil
		}
	}
	for i, t := range roots {
		if t == nil || t.closed.Load() {
			x.fail(op, fault.Closed, nil, "the tensor to differentiate was closed")
		}
		if !t.RequiresGrad() {
			x.fail(op, fault.Invalid, []*Tensor{t}, "the tensor does not require grad and was not made by an operation that does")
		}
		r.visit(t.node)
		r.deliver(edge{node: t.node, out: t.out, leaf: t.leaf, meta: metaOf(t)}, r.seed(op, t, grads[i]))
	}
	slices.SortFunc(r.order, func(a, b *node) int {
		if a.seq > b.seq {
			return -1
		}
		return 1
	})
	for _, n := range r.order {
		r.step(op, n)
	}
	if inputs == nil {
		return nil
	}
	out := make([]*Tensor, len(inputs))
	for i, in := range inputs {
		g := r.targets[target{in.node, in.out, in.leaf}]
		if g == nil && !opt.AllowUnused {
			x.fail(op, fault.Invalid, []*Tensor{in}, "One of the differentiated Tensors appears to not have been used in the graph. Set AllowUnused if this is the desired behavior")
		}
		if g != nil {
			out[i] = g
			s.lift(g)
		}
	}
	return out
}

// seed returns the gradient of a root: the caller's, or 1.
func (r *run) seed(op string, t, g *Tensor) *Tensor {
	x := r.x
	if g != nil {
		if !sameShape(g.shape, t.shape) {
			x.fail(op, fault.Invalid, []*Tensor{t, g}, "the gradient has shape %v, but the tensor has shape %v", g.shape, t.shape)
		}
		return g
	}
	if t.Numel() != 1 {
		x.fail(op, fault.Invalid, []*Tensor{t}, "grad can be implicitly created only for scalar outputs; pass one of shape %v", t.shape)
	}
	return x.On(r.streamOf(t)).Full(t.shape, 1, t.dt)
}

// visit collects the nodes that roots depend on.
func (r *run) visit(n *node) {
	stack := []*node{n}
	for len(stack) > 0 {
		n, stack = stack[len(stack)-1], stack[:len(stack)-1]
		if n == nil || r.tasks[n] != nil {
			continue
		}
		r.tasks[n] = &task{n: n, g: make([]*Tensor, len(n.outs))}
		r.order = append(r.order, n)
		for i := range n.edges {
			stack = append(stack, n.edges[i].node)
		}
	}
}

// mode returns the Exec that runs n's derivative: n's stream, gradients recorded only for CreateGraph.
func (r *run) mode(n *node) *Exec {
	m := n.m
	m.noGrad, m.autocast = !r.opt.CreateGraph, 0
	return r.x.s.exec(m)
}

// step runs one node's derivative in a scope of its own and delivers the results.
func (r *run) step(op string, n *node) {
	t := r.tasks[n]
	some := false
	for i, g := range t.g {
		if g != nil {
			some = true
			if r.targets != nil {
				if _, ok := r.targets[target{n, uint8(i), nil}]; ok {
					r.targets[target{n, uint8(i), nil}] = g
				}
			}
		}
	}
	if !some {
		return
	}
	if n.spent {
		r.x.fail(op, fault.Invalid, nil, "Trying to backward through the graph a second time: %s has freed its saved tensors; set RetainGraph in the first call", n.row.Name)
	}
	x := r.mode(n)
	s := x.s
	outer := s.scope
	s.push()
	b := &back{x: x, n: n, g: t.g, res: make([]*Tensor, len(n.edges))}
	if err := Try(func() { n.row.back(b) }); err != nil {
		s.popTo(outer)
		panic(nodeError(op, n, err))
	}
	for i, g := range b.res {
		e := n.edges[i]
		if g == nil || e.node == nil && e.leaf == nil {
			continue
		}
		s.lift(g)
	}
	s.popTo(outer)
	// The node's own references go first, so that a leaf can take over a gradient that nobody else holds.
	for i, g := range t.g {
		if g != nil && r.targets == nil && g.scope == outer && outer != nil {
			g.Close()
		}
		t.g[i] = nil
	}
	if !r.opt.RetainGraph {
		n.spend()
	}
	for i, g := range b.res {
		if g != nil {
			r.deliver(n.edges[i], g)
		}
	}
}

// nodeError names the node in an error of its derivative.
func nodeError(op string, n *node, err error) *fault.Error {
	var cause *fault.Error
	if !errors.As(err, &cause) {
		cause = fault.Wrap(fault.Invalid, err, "it failed")
	}
	e := &fault.Error{Kind: cause.Kind, Op: op, Msg: fmt.Sprintf("the derivative of %s failed", n.row.Name), Cause: cause}
	e.File, e.Line = caller()
	return e
}

// deliver adds a gradient to where e leads.
func (r *run) deliver(e edge, g *Tensor) {
	if e.node != nil {
		t := r.tasks[e.node]
		if old := t.g[e.out]; old != nil {
			sum := r.mode(e.node).Add(old, g)
			if r.targets == nil {
				g.Close()
				if old.scope == sum.scope {
					old.Close()
				}
			}
			g = sum
		}
		t.g[e.out] = g
		return
	}
	if e.leaf == nil {
		return
	}
	if r.targets != nil {
		k := target{nil, 0, e.leaf}
		if old, ok := r.targets[k]; ok {
			if old != nil {
				g = r.accumulator(g).Add(old, g)
			}
			r.targets[k] = g
		}
		return
	}
	r.accumulate(e.leaf, g)
}

func (r *run) accumulator(g *Tensor) *Exec {
	m := r.x.m
	m.noGrad, m.autocast = !r.opt.CreateGraph, 0
	m.stream = r.streamOf(g)
	return r.x.s.exec(m)
}

// accumulate adds g to a leaf: the first gradient is taken over where nobody else holds it, later ones are added in place.
func (r *run) accumulate(l *leaf, g *Tensor) {
	x := r.accumulator(g)
	for _, h := range l.hooks {
		if n := h(x, g); n != nil {
			g = n
		}
	}
	switch {
	case l.grad == nil && g.st.refs.Load() == 1 && g.IsContiguous() && g.dt == l.meta.dt && g.scope == x.s.scope && g.scope != nil:
		l.setGrad(g)
	case l.grad == nil:
		c := x.Clone(g)
		l.setGrad(c)
	case r.opt.CreateGraph:
		l.setGrad(x.Add(l.grad, g))
	default:
		x.AddInto(l.grad, l.grad, g)
		if g.scope == x.s.scope && g.scope != nil {
			g.Close()
		}
	}
}

// back is what a derivative sees: the node's attributes, the gradients of its outputs and the saved tensors.
type back struct {
	x   *Exec
	n   *node
	g   []*Tensor
	res []*Tensor
}

// need reports whether input i wants a gradient.
func (b *back) need(i int) bool {
	return i < len(b.n.edges) && (b.n.edges[i].node != nil || b.n.edges[i].leaf != nil)
}

// grad returns the gradient of output i; zeros if none came.
func (b *back) grad(i int) *Tensor {
	if b.g[i] == nil {
		m := b.n.outs[i]
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
			return b.unpackSlot(s, e)
		}
	}
	return nil
}

// unpackSlot returns a handle of a saved tensor with the history e, in the derivative's scope.
func (b *back) unpackSlot(s *slot, e edge) *Tensor {
	if v := s.st.version.Load(); v != s.version {
		panicAt(b.n.row.Name, fault.Invalid, "one of the variables needed for gradient computation has been modified by an inplace operation: %v%v is at version %d; expected version %d",
			s.dt, s.shape, v, s.version)
	}
	t := &Tensor{st: s.st, dt: s.dt, offset: s.offset}
	t.setShape(s.shape, s.stride)
	s.st.retain()
	if e.node != nil {
		t.node, t.out = e.node, e.out
		e.node.refs.Add(1)
	}
	t.leaf = e.leaf
	b.x.s.adopt(t)
	return t
}

// shape is that of input i.
func (b *back) shape(i int) []int { return b.n.edges[i].meta.shape }

// set gives the gradient of input i: g is summed over broadcast dimensions and cast to the input's type.
func (b *back) set(i int, g *Tensor) {
	if g == nil || !b.need(i) {
		return
	}
	m := b.n.edges[i].meta
	if g.dt.IsComplex() && !m.dt.IsComplex() {
		g = b.x.RealPart(g)
	}
	g = b.x.sumTo(g, m.shape)
	if g.dt != m.dt {
		g = b.x.ToDType(g, m.dt)
	}
	b.res[i] = b.apart(g)
}

// apart returns g, or another handle of it where g is already somebody else's: an incoming gradient, or the gradient of another input.
func (b *back) apart(g *Tensor) *Tensor {
	if slices.Contains(b.g, g) || slices.Contains(b.res, g) || g.scope != b.x.s.scope {
		c := g.alias()
		c.setShape(g.shape, g.stride)
		if g.node != nil {
			c.node, c.out = g.node, g.out
			g.node.refs.Add(1)
		}
		c.leaf = g.leaf
		b.x.s.adopt(c)
		return c
	}
	return g
}

func (r *run) streamOf(t *Tensor) (st *rt.Stream) {
	if t.st.dev == r.x.m.stream.Device {
		if t.node != nil {
			return t.node.m.stream
		}
		return r.x.m.stream
	}
	return t.st.dev.DefaultStream()
}
