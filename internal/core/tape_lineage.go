package core

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// lineage ties a view to its base: the tensor that is not a view itself and whose elements the view shows. A recorded change of the view in
// place changes the base's history. After a change of the base or of any of its views, the other views derive their history again at their
// next use.
//
// A base's history lives as long as its handle or one of its views, whichever is closed last.
type lineage struct {
	base *Tensor
	kind viewKind
	// mu lets one goroutine at a time derive the view's history, which is in its handle.
	mu sync.Mutex
	// gen is the base's generation that the view's history was derived from.
	gen atomic.Uint32
}

// viewKind says how a view was made. As in PyTorch, only plain views can be changed in place while gradients are recorded.
type viewKind uint8

const (
	viewPlain viewKind = iota
	// viewNoGrad was made without recording gradients, so that it is unclear whether a change of it should be recorded.
	viewNoGrad
	// viewPart is one of several results of an operation.
	viewPart
	// viewFunction is a result of a user's function, whose derivative a new history would bypass.
	viewFunction
)

// viewed is a new view with its lineage, as one allocation.
type viewed struct {
	Tensor
	own lineage
}

// root returns the tensor whose history t's depends on: t, or the base of the view t.
func (t *Tensor) root() *Tensor {
	if t.view != nil {
		return t.view.base
	}
	return t
}

// sibling returns a new handle of t's storage and type, in no scope and with no history, that is a view of t's base.
func (t *Tensor) sibling(kind viewKind) *Tensor {
	n := &viewed{}
	v := &n.Tensor
	v.st, v.dt, v.offset, v.form = t.st, t.dt, t.offset, t.form
	t.st.retain()
	v.descend(&n.own, t, kind)
	return v
}

// descend makes v a view of t's base. A view of a view that is not plain is not plain either. Only views that continue t's history are as
// stale as t.
func (v *Tensor) descend(l *lineage, t *Tensor, kind viewKind) {
	l.base, l.kind = t.root(), kind
	gen := &l.base.gen
	if t.view != nil && (kind == viewPlain || kind == viewPart) {
		gen = &t.view.gen
		if kind == viewPlain {
			l.kind = t.view.kind
		}
	}
	l.gen.Store(gen.Load())
	l.base.views.Add(1)
	v.view = l
}

// unshare drops one holder of the base's history: its handle, or a view.
func (t *Tensor) unshare() {
	if t.views.Load() == 0 || t.views.Add(-1) < 0 {
		t.forget()
	}
}

// forget drops the history.
func (t *Tensor) forget() {
	if t.node != nil {
		t.node.release()
		t.node = nil
	}
}

// stale reports whether the base's history is newer than the one from which the history of the view t was derived.
func (t *Tensor) stale() bool { return t.view != nil && t.view.gen.Load() != t.view.base.gen.Load() }

// derive brings the history of t up to date: a stale view becomes a region of the base's new value. It fails for views whose history cannot
// be derived this way.
func (t *Tensor) derive() *fault.Error {
	if !t.stale() {
		return nil
	}
	l := t.view
	l.mu.Lock()
	defer l.mu.Unlock()
	gen := l.base.gen.Load()
	if l.gen.Load() == gen {
		return nil
	}
	if t.leaf != nil {
		return fault.New(fault.Invalid, "%s is a leaf that requires grad and a view, and its base or another view of its base has been "+
			"modified inplace; make the leaf from a Clone", describe(t))
	}
	if err := l.refusal("its base or another view of its base has been"); err != nil {
		return err
	}
	n := newNode(rowRegion, l.base.node.m)
	n.attrs = &attrs{structure: structure{opt: t.region()}}
	n.addEdge(l.base)
	n.addOutput(t)
	t.rebase(n, 0)
	l.gen.Store(gen)
	return nil
}

// refusal returns the error for a view that must not be changed in place, or no longer be used; what continues "the tensor is a view
// and", as in "is being". It returns nil for plain views.
func (l *lineage) refusal(what string) *fault.Error {
	switch l.kind {
	case viewNoGrad:
		return fault.New(fault.Invalid, "A view was created in no_grad mode and %s modified inplace with grad mode enabled. Given that "+
			"this use case is ambiguous and error-prone, it is forbidden; "+
			"do both the view and the change with NoGrad, or neither", what)
	case viewPart:
		return fault.New(fault.Invalid, "the tensor is a view and %s modified inplace. This view is the output of a function that "+
			"returns multiple views. Such functions do not allow the output views to be modified inplace; "+
			"use an operation that returns a new tensor, or make the view with Slice or Select", what)
	case viewFunction:
		return fault.New(fault.Invalid, "the tensor is a view and %s modified inplace. This view was created inside a custom Function "+
			"(or because an input was returned as-is), "+
			"whose Backward a new history would override; Clone the output of the Function", what)
	}
	return nil
}

// settle derives the history of a stale view for op, which reads it.
func (t *Tensor) settle(op string) {
	if e := t.derive(); e != nil {
		e.Op = op
		locate(e)
		panic(e)
	}
}

// rebase gives t's value a new history: output out of n. Its retained gradient follows t.
func (t *Tensor) rebase(n *node, out uint8) {
	old := t.node
	if old != nil {
		old.moveKept(t.out, n, out)
	}
	n.refs.Add(1)
	t.node, t.out = n, out
	if old != nil {
		old.release()
	}
}

// changed gives the destination t of a recorded call in place its new history, output out of n. If t is a view, its base becomes the old
// base with that output laid over the region of t.
func (t *Tensor) changed(n *node, out uint8) {
	b := t.root()
	if b != t {
		o := newNode(rowOverlay, n.m)
		o.attrs = &attrs{structure: structure{opt: t.region()}}
		o.addEdge(b)
		o.edges = append(o.edges, edge{node: n, out: out, dt: t.dt, form: t.form})
		n.refs.Add(1)
		o.addOutput(b)
		n, out = o, 0
	}
	b.rebase(n, out)
	b.gen.Add(1)
	if t.RetainsGrad() {
		// The retained gradient is that of the new value, even if nobody uses t before the backward pass. A plain view can be derived.
		_ = t.derive()
	}
}

// settle derives the history of the operand t if that is a stale view.
func (f *frame) settle(t *Tensor) {
	if t.stale() {
		if e := t.derive(); e != nil {
			f.stop(e)
		}
	}
}

// checkHistory refuses to change d in place if its gradient could not follow.
func (f *frame) checkHistory(d *Tensor) {
	b := d.root()
	if b != d && b.closed.Load() && b.views.Load() == 0 {
		// Nobody else sees these elements any more, so d becomes a base itself.
		f.settle(d)
		d.view = nil
		b.unshare()
		b = d
	}
	if b != d {
		if e := d.view.refusal("is being"); e != nil {
			f.stop(e)
		}
	}
	switch {
	case d.leaf != nil:
		f.fail(fault.Invalid, "a leaf that requires grad is being used in an in-place operation; use NoGrad, or an operation that "+
			"returns a new tensor")
	case b.leaf != nil, b.node == nil && d.node != nil:
		f.fail(fault.Invalid, "a view of a leaf that requires grad is being used in an in-place operation; use NoGrad, or an "+
			"operation that returns a new tensor")
	case f.row.back == nil && b.node != nil:
		f.fail(fault.Invalid, "%s has no gradient and would cut the destination's history; Detach it first", f.row.Name)
	case !distinct(d.shape, d.stride) || !distinct(b.shape, b.stride):
		f.fail(fault.Invalid, "elements of the destination, or of the tensor that it is a view of, may share memory, so that its "+
			"gradient cannot follow; Clone it first")
	case b != d && !d.region().inside():
		f.fail(fault.Invalid, "the destination reaches beyond the tensor that it is a view of, so that its gradient cannot follow; "+
			"Clone it first")
	}
}

// inherits reports whether t, the destination of a call in place, has a history or is a view of a tensor that has one.
func (t *Tensor) inherits() bool {
	return t.node != nil || t.leaf != nil || t.view != nil && (t.view.base.node != nil || t.view.base.leaf != nil)
}

// distinct reports whether every element of a tensor is sure to have its own place: the dimensions can be ordered so that each stride steps
// over all that the dimensions before it reach. This holds for every view of a dense tensor except expansions and AsStrided.
func distinct(shape, stride []int) bool {
	if infer.Numel(shape) == 0 {
		return true
	}
	var b [8]int
	order := b[:0]
	for i, n := range shape {
		if n > 1 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(stride[i], stride[j]) })
	reach := 0
	for _, i := range order {
		if stride[i] <= reach {
			return false
		}
		reach += (shape[i] - 1) * stride[i]
	}
	return true
}
