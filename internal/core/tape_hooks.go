package core

import (
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// gradHook is a user's function that sees, and may replace, the gradient of one output of a node or of a leaf.
type gradHook struct {
	out uint8
	f   func(x *Exec, g *Tensor) *Tensor
}

// leafHook is a user's function that runs after a leaf accumulated.
type leafHook struct {
	f func(x *Exec, t *Tensor)
}

// kept is the gradient of one output of a node that RetainGrad keeps.
type kept struct {
	out   uint8
	owner *Tensor // closing it drops the gradient
	grad  *Tensor
}

// nodeExtra holds what few nodes have: hooks, retained gradients, and the results of the saved-tensor hooks, by slot.
type nodeExtra struct {
	hooks  []*gradHook
	kept   []*kept
	packed []any
	outs   []meta // all but the first
	op     *rt.ProfiledOp
}

func (n *node) more() *nodeExtra {
	if n.extra == nil {
		n.extra = &nodeExtra{}
	}
	return n.extra
}

// keptOf returns what RetainGrad keeps for an output, or nil.
func (n *node) keptOf(out uint8) *kept {
	if n.extra == nil {
		return nil
	}
	for _, k := range n.extra.kept {
		if k.out == out {
			return k
		}
	}
	return nil
}

// without returns list without its element h.
func without[T comparable](list []T, h T) []T {
	i := slices.Index(list, h)
	if i < 0 {
		return list
	}
	return slices.Concat(list[:i], list[i+1:])
}

// RegisterHook makes every backward pass call h with the gradient of t once it is complete, before it flows on or accumulates. If h returns
// a tensor, that replaces the gradient; nil keeps it. Hooks run in the order of registration, on the stream of t's operation, and the
// gradient that they see is valid during the call. remove unregisters h. t must require grad. A hook belongs to t's current value: it still
// sees the gradient of that value after t is changed in place.
func (t *Tensor) RegisterHook(h func(x *Exec, g *Tensor) *Tensor) (remove func()) {
	t.open("RegisterHook")
	t.settle("RegisterHook")
	switch {
	case t.node != nil:
		n, k := t.node, &gradHook{t.out, h}
		n.more().hooks = append(n.extra.hooks, k)
		return func() { n.extra.hooks = without(n.extra.hooks, k) }
	case t.leaf != nil:
		l, k := t.leaf, &gradHook{0, h}
		l.hooks = append(l.hooks, k)
		return func() { l.hooks = without(l.hooks, k) }
	}
	panicAt("RegisterHook", fault.Invalid, "cannot register a hook on %s, a tensor that doesn't require gradient", describe(t))
	return nil
}

// RegisterPostAccumulateGradHook makes every backward pass call h with the leaf t after t's gradient was accumulated, so that an optimizer
// can use the gradient and drop it at once. remove unregisters h.
func (t *Tensor) RegisterPostAccumulateGradHook(h func(x *Exec, t *Tensor)) (remove func()) {
	t.open("RegisterPostAccumulateGradHook")
	switch {
	case t.node != nil:
		panicAt("RegisterPostAccumulateGradHook", fault.Invalid,
			"post accumulate grad hooks cannot be registered on non-leaf tensors such as %s", describe(t))
	case t.leaf == nil:
		panicAt("RegisterPostAccumulateGradHook", fault.Invalid, "cannot register a hook on %s, a tensor that doesn't require gradient",
			describe(t))
	}
	l, k := t.leaf, &leafHook{h}
	l.after = append(l.after, k)
	return func() { l.after = without(l.after, k) }
}

// RetainGrad makes Grad return the gradient of t, which is not a leaf, after a backward pass too; several passes add up. The gradient is
// the one that the hooks of t return; it follows t through changes in place, and is closed with t. On a leaf RetainGrad does nothing. t
// must require grad.
func (t *Tensor) RetainGrad() {
	t.open("RetainGrad")
	t.settle("RetainGrad")
	switch {
	case t.node != nil:
		if t.node.keptOf(t.out) == nil {
			t.node.more().kept = append(t.node.extra.kept, &kept{out: t.out, owner: t})
		}
	case t.leaf == nil:
		panicAt("RetainGrad", fault.Invalid, "%s does not require grad and gets no gradient to retain; call SetRequiresGrad "+
			"before it is used", describe(t))
	}
}

// RetainsGrad reports whether t is not a leaf and keeps its gradient.
func (t *Tensor) RetainsGrad() bool { return t.node != nil && t.node.keptOf(t.out) != nil }

// dropKept closes what is retained for t.
func (n *node) dropKept(t *Tensor) {
	if k := n.keptOf(t.out); k != nil && k.owner == t {
		n.extra.kept = without(n.extra.kept, k)
		k.grad.close()
	}
}

// moveKept moves the retained gradient of an output to the node that replaces it in place.
func (n *node) moveKept(out uint8, to *node, at uint8) {
	if k := n.keptOf(out); k != nil {
		n.extra.kept = without(n.extra.kept, k)
		k.out = at
		to.more().kept = append(to.extra.kept, k)
	}
}

// QueueCallback makes the current backward pass call f once when it is done, on the Exec of that pass's caller: by then the leaves have
// their gradients, and the stream is ordered after all work that made them. Tensors that f makes are closed with the pass, unless Keep
// keeps them. It is for hooks and derivatives; outside of a backward pass it fails.
func (x *Exec) QueueCallback(f func(x *Exec)) {
	if x.s.run == nil {
		x.fail("QueueCallback", fault.Invalid, nil, "Final callbacks can only be installed during backward pass")
	}
	x.s.run.callbacks = append(x.s.run.callbacks, f)
}

// observe runs the hooks of n's outputs, keeps retained gradients and collects targets.
func (r *run) observe(n *node, t *task) {
	if n.extra != nil {
		x := r.exec(*n.m)
		for _, h := range slices.Clone(n.extra.hooks) {
			if g := t.g[h.out]; g != nil {
				t.g[h.out] = r.hook(x, h, n.row.Name, g)
			}
		}
		for _, k := range n.extra.kept {
			if g := t.g[k.out]; g != nil {
				h := g.twin()
				x.s.adopt(h)
				r.retained = append(r.retained, retained{x: x, k: k, g: h})
			}
		}
	}
	if r.targets == nil {
		return
	}
	for i, g := range t.g {
		k := target{n, uint8(i), nil}
		if _, ok := r.targets[k]; ok && g != nil {
			r.targets[k] = g
			r.join(r.exec(*n.m))
		}
	}
}

// hook calls h with the gradient g and returns the gradient that replaces it. Errors call the owner of g what.
func (r *run) hook(x *Exec, h *gradHook, what string, g *Tensor) *Tensor {
	s := x.s
	m := s.mark()
	s.push()
	var res *Tensor
	err := Try(func() {
		if s.outside(r.op, func() { res = h.f(x, g) }); res == nil {
			return
		}
		switch {
		case res.closed.Load():
			panicAt("RegisterHook", fault.Closed, "the hook returned a tensor that was closed")
		case res.dt != g.dt || res.st.dev != g.st.dev:
			panicAt("RegisterHook", fault.Invalid, "the hook has changed the type of value (was %s got %s)", g, res)
		case !infer.Same(res.form.shape, g.shape):
			panicAt("RegisterHook", fault.Invalid, "the hook has changed the size of value (was %v got %v)", g.shape, res.form.shape)
		}
	})
	if err != nil {
		s.restore(m)
		panic(r.failed("a hook of "+what, err))
	}
	s.lift(res)
	s.restore(m)
	if res == nil || res == g {
		return g
	}
	r.done(g)
	return res
}

// savedHooks are the functions of one SavedTensorHooks.
type savedHooks struct {
	pack   func(x *Exec, t *Tensor) any
	unpack func(x *Exec, v any) *Tensor
	// ours says that the functions are the library's.
	ours bool
}

// call calls one of the functions through f.
func (h *savedHooks) call(s *session, op string, f func()) {
	if h.ours {
		f()
	} else {
		s.outside(op, f)
	}
}

// SavedTensorHooks runs f with an Exec whose operations save tensors for backward through pack, which gets each of them, without its
// history, and returns what is kept in its place: a copy on another device, bytes, a file's name. Backward calls unpack with that value, to
// get a tensor of the same type and shape. A tensor that pack returns belongs to the graph and is closed with it; pack must not change its
// argument, nor keep it in any other way. Both run without recording gradients. Nested hooks replace the outer ones. Tensors that went
// through hooks are not checked for changes in place.
func (x *Exec) SavedTensorHooks(pack func(x *Exec, t *Tensor) any, unpack func(x *Exec, v any) *Tensor, f func(x *Exec)) {
	m := x.m
	m.saved = &savedHooks{pack: pack, unpack: unpack}
	y := x.with(m)
	x.s.outside("SavedTensorHooks", func() { f(y) })
}

// pack saves t through the hooks of n's mode.
func (n *node) pack(x *Exec, which save, t *Tensor) {
	s, m := x.s, x.m
	m.noGrad, m.saved = true, nil
	defer s.restore(s.mark())
	s.push()
	h := t.alias()
	s.adopt(h)
	version := t.st.version.Load()
	y := x.with(m)
	var v any
	n.m.saved.call(s, n.row.Name, func() { v = n.m.saved.pack(y, h) })
	if t.st.version.Load() != version {
		panicAt(n.row.Name, fault.Invalid, "A saved tensor pack hook is modifying its input in place; Clone it first")
	}
	if p, ok := v.(*Tensor); ok && p != nil {
		if p.closed.Load() {
			panicAt(n.row.Name, fault.Closed, "the pack hook returned a tensor that was closed")
		}
		if p.scope == s.scope {
			p.own()
		} else {
			v = p.twin()
		}
	}
	n.setPacked(len(n.saved), v)
	n.saved = append(n.saved, slot{which: which, dt: t.dt, form: t.form})
}

// setPacked makes v what stands for saved slot i.
func (n *node) setPacked(i int, v any) {
	for len(n.more().packed) <= i {
		n.extra.packed = append(n.extra.packed, nil)
	}
	n.extra.packed[i] = v
}

// unpackHooked returns the tensor of saved slot i, by the unpack hook.
func (b *back) unpackHooked(i int) *Tensor {
	if t := b.unpacked[i]; t != nil {
		return t
	}
	x, s := b.x, &b.n.saved[i]
	m := x.m
	m.noGrad = true
	y := x.with(m)
	var t *Tensor
	b.n.m.saved.call(x.s, b.n.row.Name, func() { t = b.n.m.saved.unpack(y, b.n.extra.packed[i]) })
	switch {
	case t == nil || t.closed.Load():
		panicAt(b.n.row.Name, fault.Closed, "the unpack hook returned no tensor, or one that was closed")
	case t.dt != s.dt || !infer.Same(t.shape, s.form.shape) || t.st.dev != x.m.stream.Device():
		panicAt(b.n.row.Name, fault.Invalid, "the unpack hook returned %s for a saved %v%v of %s", t, s.dt, s.form.shape,
			x.m.stream.Device())
	}
	if b.unpacked == nil {
		b.unpacked = map[int]*Tensor{}
	}
	b.unpacked[i] = t
	return t
}

// dropPacked closes the tensors that pack hooks made.
func (n *node) dropPacked() {
	if n.extra == nil {
		return
	}
	for _, v := range n.extra.packed {
		switch v := v.(type) {
		case *Tensor:
			v.close()
		case recomputed:
			v.drop()
		case omitted:
			v.drop()
		}
	}
	n.extra.packed = nil
}

// twin returns another handle of t with the same history, in no scope. For changes in place it counts as a view of t.
func (t *Tensor) twin() *Tensor {
	c := t.sibling(viewPlain)
	if t.node != nil {
		c.node, c.out = t.node, t.out
		t.node.refs.Add(1)
	}
	c.leaf = t.leaf
	c.own()
	return c
}
