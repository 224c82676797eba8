package core

import (
	"sync/atomic"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// node is one operation of the tape: what its derivative needs, and the edges to the operations that made its inputs. Output handles and
// incoming edges hold references to it; the last one to go frees its saved tensors.
type node struct {
	row *row
	m   *mode
	*attrs
	seq   uint64
	refs  atomic.Int32
	outs  uint8
	spent bool

	edges []edge
	saved []slot
	first meta // of the first output; extra has the others
	extra *nodeExtra
	// custom is the user's function, if row is rowFunction.
	custom *functionState

	few [2]edge
	// span is the run of a compiled function that recorded the node, or nil.
	span *Span
}

// newNode returns a node without operands or outputs; nothing refers to it.
func newNode(r *row, m *mode) *node {
	var n *node
	if r.saves == 0 {
		n = &node{}
	} else {
		s := &savingNode{}
		n, s.saved = &s.node, s.two[:0]
	}
	n.row, n.m, n.attrs, n.seq, n.edges = r, m, &noAttrs, nodeSeq.Add(1), n.few[:0]
	return n
}

// savingNode is a node with room for saved tensors.
type savingNode struct {
	node
	two [2]slot
}

// addOutput records the type and form of t, the next output.
func (n *node) addOutput(t *Tensor) {
	if n.outs == 0 {
		n.first = metaOf(t)
	} else {
		e := n.more()
		e.outs = append(e.outs, metaOf(t))
	}
	n.outs++
}

// outputs returns how many outputs the node has.
func (n *node) outputs() int { return int(n.outs) }

// output returns the type and form of output i.
func (n *node) output(i int) meta {
	if i == 0 {
		return n.first
	}
	return n.extra.outs[i-1]
}

// dims returns the dimensions that were given to the call.
func (n *node) dims() []int { return n.list.ints() }

// edge leads from a node's input to its producer: another node's output, a leaf, or (both nil) nothing that needs a gradient. It keeps the
// input's type and form; an absent input has none.
type edge struct {
	node *node
	leaf *leaf
	form *form
	dt   dtype.DType
	out  uint8
}

// meta is the type and form of a tensor.
type meta struct {
	*form
	dt dtype.DType
}

func (e *edge) meta() meta { return meta{e.form, e.dt} }

func metaOf(t *Tensor) meta { return meta{t.form, t.dt} }

// columns reports whether the last two dimensions are transposed.
func (f *form) columns() bool {
	n := len(f.shape)
	return n >= 2 && f.stride[n-2] == 1 && f.stride[n-1] != 1
}

// slot is a saved tensor: a reference to its storage, in no scope.
type slot struct {
	st      *storage
	form    *form
	offset  int
	version uint32
	which   save
	dt      dtype.DType
}

// leaf accumulates the gradient of a tensor that the user made. Passes of several sessions may do so: each adds its gradients under
// accumulateMu, so that none is lost.
type leaf struct {
	owner  *Tensor
	grad   atomic.Pointer[Tensor]
	meta   meta
	hooks  []*gradHook
	after  []*leafHook
	stream atomic.Pointer[rt.Stream] // of the first operation that used it
}

var nodeSeq atomic.Uint64

// record puts the finished operation on the tape.
func (f *frame) record() {
	n := newNode(f.row, &f.x.m)
	n.attrs = f.keptAttrs()
	if sp := f.x.s.span; sp != nil {
		sp.add(n)
	}
	for i := 0; i < f.ins; i++ {
		n.addEdge(f.in[i])
	}
	for _, t := range f.many {
		n.addEdge(t)
	}
	if n.m.saved != nil {
		f.nested(func() { f.save(n) })
	} else {
		f.save(n)
	}
	for i := 0; i < f.outs; i++ {
		t := f.out[i]
		n.addOutput(t)
		if !t.dt.IsFloat() && !t.dt.IsComplex() {
			continue
		}
		if f.to(i) != nil {
			t.changed(n, uint8(i))
			continue
		}
		t.node, t.out = n, uint8(i)
		n.refs.Add(1)
	}
	if n.refs.Load() == 0 { // no output takes part, or there is none
		n.refs.Add(1)
		n.release()
	}
}

// save keeps the tensors that the derivative reads. If a hook fails, the node is dropped.
func (f *frame) save(n *node) {
	done := false
	defer func() {
		if !done {
			n.refs.Add(1)
			n.release()
		}
	}()
	for i := 0; i < f.ins; i++ {
		switch t := f.in[i]; {
		case !f.saving(i):
		case f.before[i] != nil:
			n.keep(f.x, in0<<i, f.before[i])
		default:
			n.keep(f.x, in0<<i, t)
		}
	}
	for i := 0; i < min(f.outs, maxOut); i++ {
		if f.row.saves&(out0<<i) != 0 {
			n.keep(f.x, out0<<i, f.out[i])
		}
	}
	done = true
}

// saving reports whether the derivative reads input i.
func (f *frame) saving(i int) bool {
	if f.in[i] == nil || f.row.saves&(in0<<i) == 0 {
		return false
	}
	if f.row.cross&(in0<<i) == 0 {
		return true
	}
	for j := 0; j < f.ins; j++ {
		if t := f.in[j]; j != i && t != nil && t.RequiresGrad() {
			return true
		}
	}
	return false
}

// keepBefore copies the inputs that the derivative reads and the call overwrites.
func (f *frame) keepBefore() {
	for i := 0; i < f.ins; i++ {
		if f.saving(i) && f.overwrites(f.in[i]) {
			f.nested(func() { f.before[i] = f.temp(f.x.noGrad().Autocast(dtype.Invalid).Clone(f.in[i])) })
		}
	}
}

// overwrites reports whether t begins where a destination does.
func (f *frame) overwrites(t *Tensor) bool {
	for i := 0; i < f.outs; i++ {
		if d := f.to(i); d != nil && d.st == t.st && d.offset*d.dt.Size() == t.offset*t.dt.Size() {
			return true
		}
	}
	return false
}

func (n *node) addEdge(t *Tensor) {
	var e edge
	if t != nil {
		e.dt, e.form = t.dt, t.form
		switch {
		case t.node != nil:
			e.node, e.out = t.node, t.out
			e.node.refs.Add(1)
		case t.leaf != nil:
			e.leaf = t.leaf
			if t.leaf.stream.Load() == nil && n.m.stream.Device() == t.st.dev && !n.m.stream.Recording() {
				t.leaf.stream.CompareAndSwap(nil, n.m.stream)
			}
		}
	}
	n.edges = append(n.edges, e)
}

func (n *node) keep(x *Exec, which save, t *Tensor) {
	if n.m.saved != nil {
		n.pack(x, which, t)
		return
	}
	t.st.retain()
	n.saved = append(n.saved, slot{t.st, t.form, t.offset, t.st.version.Load(), which, t.dt})
}

// release drops one reference. The walk down the edges is a loop, so that a long chain does not use the stack.
func (n *node) release() {
	var stack []*node
	for {
		if n.refs.Add(-1) == 0 {
			n.spend()
			if n.span != nil {
				n.span.nodes.Add(-1)
			}
			for i := range n.edges {
				if m := n.edges[i].node; m != nil {
					n.edges[i].node = nil
					stack = append(stack, m)
				}
			}
			if n.custom != nil {
				for _, e := range n.custom.history {
					if e.node != nil && e.node != n {
						stack = append(stack, e.node)
					}
				}
				n.custom.history = nil
			}
		}
		if len(stack) == 0 {
			return
		}
		n, stack = stack[len(stack)-1], stack[:len(stack)-1]
	}
}

// spend frees the saved tensors. A node that saved none can be passed again, for example the conversion of a parameter that several losses
// share.
func (n *node) spend() {
	n.spent = n.spent || len(n.saved) > 0 || n.custom != nil
	for i := range n.saved {
		if st := n.saved[i].st; st != nil {
			// A free can fail only on a lost device, which the next operation reports.
			_ = st.release()
		}
	}
	n.saved = nil
	n.dropPacked()
	n.custom.close()
}

// RequiresGrad reports whether a gradient flows to t.
func (t *Tensor) RequiresGrad() bool {
	return t.node != nil || t.leaf != nil || t.stale() && t.view.kind != viewNoGrad
}

// IsLeaf reports whether t was made by the user rather than by a recorded operation.
func (t *Tensor) IsLeaf() bool { return t.leaf != nil || !t.RequiresGrad() }

// SetRequiresGrad makes the leaf t accumulate a gradient, or no longer, and returns t. It fails for integer tensors and results of
// operations.
func (t *Tensor) SetRequiresGrad(on bool) *Tensor { return RequireGrad("SetRequiresGrad", t, on) }

// RequireGrad is SetRequiresGrad for the function op of a package above the face.
func RequireGrad(op string, t *Tensor, on bool) *Tensor {
	t.open(op)
	t.settle(op)
	switch {
	case !on && t.node == nil:
		t.leaf = nil
	case t.node != nil && !on:
		panicAt(op, fault.Invalid, "only leaf tensors can stop requiring grad; use Detach")
	case t.leaf != nil || t.node != nil:
	case !t.dt.IsFloat() && !t.dt.IsComplex():
		panicAt(op, fault.Invalid, "only tensors of floating point or complex dtype can require gradients, not %v; "+
			"convert it with x.ToDType", t.dt)
	default:
		t.leaf = &leaf{owner: t, meta: metaOf(t)}
	}
	return t
}

// Grad returns the accumulated gradient of a leaf, or the gradient that RetainGrad kept of another tensor; else nil. The tensor owns it.
func (t *Tensor) Grad() *Tensor {
	switch {
	case t.leaf != nil:
		return t.leaf.grad.Load()
	case t.node != nil:
		if k := t.node.keptOf(t.out); k != nil {
			return k.grad
		}
	}
	return nil
}

// SetGrad replaces the accumulated gradient; nil drops it. The leaf takes ownership of g.
func (t *Tensor) SetGrad(g *Tensor) {
	t.open("SetGrad")
	if t.leaf == nil {
		panicAt("SetGrad", fault.Invalid, "%s is not a leaf that requires grad", describe(t))
	}
	if g != nil {
		Given("SetGrad", 0, g)
		if !infer.Same(g.shape, t.shape) || g.st.dev != t.st.dev {
			panicAt("SetGrad", fault.Invalid, "the gradient %s on %s does not fit the tensor %s on %s; it must have the same shape and "+
				"device", describe(g), g.st.dev, describe(t), t.st.dev)
		}
		if sc := g.scope; sc != nil { // which g leaves
			sc.s.in("SetGrad")
			defer sc.s.out()
		}
	}
	accumulateMu.Lock()
	defer accumulateMu.Unlock()
	t.leaf.setGrad(g)
}

func (l *leaf) setGrad(g *Tensor) {
	if g != nil {
		g.own()
		g.st.marks.Or(ofLeaf)
		if !g.st.waits() { // else the call that makes it says so
			g.st.dev.BecameGradient(g.st.ptr)
		}
	}
	if old := l.grad.Swap(g); old != nil && old != g {
		old.close()
	}
}

// own takes a handle out of its scope: a struct of the library holds and closes it.
func (t *Tensor) own() {
	t.scope = nil
	t.st.loosen()
}
