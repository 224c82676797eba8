package core

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// BackwardOpt are the options of Backward.
type BackwardOpt struct {
	// Gradient, of the tensor's shape, weights its elements; nil means 1, for a tensor of one element.
	Gradient *Tensor
	// RetainGraph keeps the saved tensors, so that backward can run again.
	RetainGraph bool
	// CreateGraph records the gradients' own operations, for higher derivatives. It implies RetainGraph.
	CreateGraph bool
}

// GradOpt are the options of Grad.
type GradOpt struct {
	// Gradients weight the outputs, one for each; nil means 1, for an output of one element. No entries mean 1 for every output.
	Gradients []*Tensor
	// RetainGraph keeps the saved tensors, so that backward can run again.
	RetainGraph bool
	// CreateGraph records the gradients' own operations, for higher derivatives. It implies RetainGraph.
	CreateGraph bool
	// AllowUnused returns nil for an input that the outputs do not depend on.
	AllowUnused bool
}

// Backward adds the gradients of t to its leaves. t has one element, or the options give the gradient of t. An error names the operation,
// and of a [Function] the line of its call; the leaves then have the gradients that they had, except those with post-accumulate hooks that
// have run. New gradients are added to existing ones at the end of the pass, which holds them until then.
func (x *Exec) Backward(t *Tensor, opt BackwardOpt) error {
	return x.spoil(Try(func() {
		x.backward("Backward", []*Tensor{t}, nil, GradOpt{Gradients: []*Tensor{opt.Gradient}, RetainGraph: opt.RetainGraph,
			CreateGraph: opt.CreateGraph})
	}))
}

// Grad returns the gradients of outputs with respect to inputs; leaves accumulate nothing.
func (x *Exec) Grad(outputs, inputs []*Tensor, opt GradOpt) (res []*Tensor, err error) {
	err = Try(func() {
		grads := opt.Gradients
		switch len(grads) {
		case 0:
			grads = make([]*Tensor, len(outputs))
		case len(outputs):
		default:
			x.fail("Grad", fault.Invalid, outputs, "got %d tensors and %d gradients; give one for each tensor, nil for 1, or none at all",
				len(outputs), len(grads))
		}
		opt.Gradients = grads
		res = x.backward("Grad", outputs, inputs, opt)
	})
	return res, x.spoil(err)
}

// task is a node of one backward pass with the gradients that have reached it.
type task struct {
	n   *node
	g   []*Tensor
	one [1]*Tensor // the backing array of most
	// needed says that the node leads to something that wants a gradient; other nodes do not run.
	needed bool
}

// leafTask collects the gradient of a leaf: its hooks and its accumulation wait until no edge that leads to it is left.
type leafTask struct {
	g    *Tensor
	left int
}

// target is where Grad wants a gradient: a node's output or a leaf.
type target struct {
	n    *node
	out  uint8
	leaf *leaf
}

// run is one backward pass. Runs nest: a derivative may start another one. The session reuses them, so that a pass over a small graph
// allocates little besides its gradients.
type run struct {
	x         *Exec
	last      *Exec // the Exec with owned values that exec returned last
	op        string
	opt       GradOpt
	tasks     map[*node]*task
	leaves    map[*leaf]*leafTask
	targets   map[target]*Tensor // nil for Backward
	order     []*node            // newest first
	callbacks []func(x *Exec)
	// complete holds the gradients of leaves that have fully arrived, and retained those that RetainGrad keeps for other tensors. The pass
	// hands them over together, when nothing else can fail.
	complete []completed
	retained []retained
	outer    *run
	// node is the node whose derivative is under way, or nil, and back is what it sees.
	node *node
	back back
	// stack is the list of visit. spareTasks and spareLeaves are for reuse.
	stack       []*node
	spareTasks  []*task
	spareLeaves []*leafTask
}

// keptNodes is the number of nodes of the largest pass whose run is kept for reuse: emptying a map takes time in proportion to the most
// that it ever held.
const keptNodes = 4096

// newRun returns an empty run.
func (s *session) newRun() *run {
	if n := len(s.spareRuns); n > 0 {
		r := s.spareRuns[n-1]
		s.spareRuns[n-1], s.spareRuns = nil, s.spareRuns[:n-1]
		return r
	}
	return &run{tasks: map[*node]*task{}, leaves: map[*leaf]*leafTask{}}
}

// recycle empties r for another pass of the session.
func (r *run) recycle(s *session) {
	if len(r.order) > keptNodes {
		return
	}
	for i, n := range r.order {
		t := r.tasks[n]
		clear(t.g)
		t.n, t.g, t.needed = nil, t.g[:0], false
		r.spareTasks = append(r.spareTasks, t)
		r.order[i] = nil
	}
	//tenon:unordered all are emptied alike
	for _, t := range r.leaves {
		*t = leafTask{}
		r.spareLeaves = append(r.spareLeaves, t)
	}
	clear(r.tasks)
	clear(r.leaves)
	clear(r.callbacks)
	clear(r.complete)
	clear(r.retained)
	clear(r.back.res[:cap(r.back.res)])
	clear(r.stack[:cap(r.stack)])
	*r = run{tasks: r.tasks, leaves: r.leaves, order: r.order[:0], callbacks: r.callbacks[:0], complete: r.complete[:0],
		retained: r.retained[:0], back: back{res: r.back.res[:0]}, stack: r.stack[:0], spareTasks: r.spareTasks, spareLeaves: r.spareLeaves}
	s.spareRuns = append(s.spareRuns, r)
}

// completed is the gradient g of leaf l; taken becomes l's gradient, or is nil if g is added to the existing one.
type completed struct {
	x        *Exec
	l        *leaf
	g, taken *Tensor
}

// retained is the gradient g of a tensor that k keeps; taken becomes k's gradient.
type retained struct {
	x        *Exec
	k        *kept
	g, taken *Tensor
}

func (x *Exec) backward(op string, roots, inputs []*Tensor, opt GradOpt) []*Tensor {
	s, grads := x.s, opt.Gradients
	if c, st := x.recording(), x.m.stream; c != nil && st == c.outer && s.run == nil && !c.rc.Records(st) {
		c.outside(func(kind fault.Kind, format string, args ...any) { x.fail(op, kind, roots, format, args...) }, st)
	}
	opt.RetainGraph = opt.RetainGraph || opt.CreateGraph
	r := s.newRun()
	r.x, r.last, r.op, r.opt, r.outer = x, x, op, opt, s.run
	r.check(roots, inputs)
	x.check(op, s.apart("a backward pass cannot run"))
	for _, t := range roots {
		if t.node != nil { // user code that runs in between may close the roots
			t.node.refs.Add(1)
			defer t.node.release()
		}
	}
	defer s.restore(s.mark())
	s.push()
	s.run = r
	defer func() {
		if !s.torn() {
			s.run = r.outer
			r.recycle(s)
		}
	}()
	r.plan(roots)
	for i, t := range roots {
		r.start(t, r.seed(t, grads[i]))
	}
	r.steps()
	r.accumulate()
	for i := 0; i < len(r.callbacks); i++ { // one may add others
		f := r.callbacks[i]
		s.outside(op, func() { f(x) })
	}
	if inputs == nil {
		return nil
	}
	return r.results(inputs)
}

// steps runs all nodes. The nodes of a span run between its Begin and its end.
func (r *run) steps() {
	var in *Span
	var end func() error
	leave := func() {
		if end != nil {
			f := end
			end = nil
			r.x.check(r.op, f())
		}
	}
	defer func() {
		if end != nil { // a panic goes on
			_ = end()
		}
	}()
	for i, n := range r.order {
		if n.span != in {
			leave()
			if in = n.span; in != nil {
				end = in.Begin(r.x, r.incoming(r.order[i:]))
			}
		}
		r.step(n)
	}
	leave()
}

// incoming returns the storage numbers of the gradients that have reached the first nodes, those of one span.
func (r *run) incoming(nodes []*node) (all []uint64) {
	for _, n := range nodes {
		if n.span != nodes[0].span {
			break
		}
		for _, g := range r.tasks[n].g {
			if g != nil {
				all = append(all, g.st.number())
			}
		}
	}
	return all
}

// check refuses roots and inputs that cannot be differentiated.
func (r *run) check(roots, inputs []*Tensor) {
	x := r.x
	if inputs != nil {
		r.targets = map[target]*Tensor{}
	}
	for _, in := range inputs {
		if in == nil || in.closed.Load() {
			x.fail(r.op, fault.Closed, nil, "a differentiated tensor was closed")
		}
		in.settle(r.op)
		if !in.RequiresGrad() {
			x.fail(r.op, fault.Invalid, inputs, "one of the differentiated tensors does not require grad")
		}
		r.targets[target{in.node, in.out, in.leaf}] = nil
	}
	for _, t := range roots {
		if t == nil || t.closed.Load() {
			x.fail(r.op, fault.Closed, nil, "the tensor to differentiate was closed")
		}
		t.settle(r.op)
		if !t.RequiresGrad() {
			x.fail(r.op, fault.Invalid, []*Tensor{t}, "the tensor does not require grad and was not made by an operation that does; "+
				"was it made under NoGrad, or by Grad without CreateGraph? A kernel's Launch records nothing either: wrap it in a Function")
		}
	}
}

// results returns the gradients of the inputs and moves them out of the pass.
func (r *run) results(inputs []*Tensor) []*Tensor {
	out := make([]*Tensor, len(inputs))
	for i, in := range inputs {
		g := r.targets[target{in.node, in.out, in.leaf}]
		if g == nil && !r.opt.AllowUnused {
			r.x.fail(r.op, fault.Invalid, []*Tensor{in}, "One of the differentiated Tensors appears to not have been used in the graph. "+
				"Set AllowUnused if this is the desired behavior")
		}
		if g != nil {
			out[i] = g
			r.x.s.lift(g)
		}
	}
	return out
}

// seed returns the gradient of a root: the caller's, or 1.
func (r *run) seed(t, g *Tensor) *Tensor {
	x := r.x
	if g != nil {
		if !infer.Same(g.shape, t.shape) {
			x.fail(r.op, fault.Invalid, []*Tensor{t, g}, "the gradient has shape %v, but the tensor has shape %v", g.shape, t.shape)
		}
		return g
	}
	if t.Numel() != 1 {
		as := "BackwardOpt{Gradient: …}"
		if r.op == "Grad" {
			as = "GradOpt{Gradients: …}"
		}
		x.fail(r.op, fault.Invalid, []*Tensor{t}, "grad can be implicitly created only for scalar outputs; pass one of shape %v as %s, or "+
			"reduce the tensor to one element, such as by Sum", t.shape, as)
	}
	return r.mode(t).Full(t.shape, 1, t.dt)
}

// plan collects the nodes that the roots depend on, newest first, finds those that lead to a target, and counts the edges to each leaf.
func (r *run) plan(roots []*Tensor) {
	for _, t := range roots {
		r.visit(t.node)
		if t.leaf != nil {
			r.leaf(t.leaf).left++
		}
	}
	slices.SortFunc(r.order, func(a, b *node) int { return cmp.Compare(b.seq, a.seq) })
	for _, n := range slices.Backward(r.order) {
		t := r.tasks[n]
		for i := range n.edges {
			if e := &n.edges[i]; r.wants(e) {
				t.needed = true
				if e.leaf != nil {
					r.leaf(e.leaf).left++
				}
			}
		}
	}
}

// visit collects the nodes that n depends on.
func (r *run) visit(n *node) {
	stack := append(r.stack[:0], n)
	for len(stack) > 0 {
		n, stack = stack[len(stack)-1], stack[:len(stack)-1]
		if n == nil || r.tasks[n] != nil {
			continue
		}
		r.tasks[n] = r.newTask(n)
		r.order = append(r.order, n)
		for i := range n.edges {
			stack = append(stack, n.edges[i].node)
		}
	}
	r.stack = stack
}

// newTask returns the task of n without gradients.
func (r *run) newTask(n *node) *task {
	var t *task
	if i := len(r.spareTasks) - 1; i >= 0 {
		t, r.spareTasks = r.spareTasks[i], r.spareTasks[:i]
	} else {
		t = &task{}
		t.g = t.one[:0]
	}
	t.n = n
	t.g = slices.Grow(t.g, n.outputs())[:n.outputs()]
	return t
}

func (r *run) leaf(l *leaf) *leafTask {
	t := r.leaves[l]
	if t == nil {
		if i := len(r.spareLeaves) - 1; i >= 0 {
			t, r.spareLeaves = r.spareLeaves[i], r.spareLeaves[:i]
		} else {
			t = &leafTask{}
		}
		r.leaves[l] = t
	}
	return t
}

// wants reports whether a gradient along e is needed.
func (r *run) wants(e *edge) bool {
	if e.node == nil && e.leaf == nil {
		return false
	}
	if r.targets == nil {
		return true
	}
	if _, ok := r.targets[target{e.node, e.out, e.leaf}]; ok {
		return true
	}
	return e.node != nil && r.tasks[e.node].needed
}

// exec returns the Exec that runs work of the forward mode m: on its stream, recording gradients only for CreateGraph, with memory from the
// caller's pool, since the forward call's may be closed.
func (r *run) exec(m mode) *Exec {
	m.noGrad, m.autocast, m.casts, m.saved, m.pool = !r.opt.CreateGraph, 0, nil, r.x.m.saved, r.x.m.pool
	// The pass itself crosses streams, even where the forward calls ordered them manually.
	m.manual = false
	// In a capture, operations that were recorded on the tape outside of it have a stream that does not belong to the graph.
	if c := r.x.recording(); c != nil && m.stream.Device() == r.x.Device() && !c.rc.Records(m.stream) {
		m.stream = c.rc.Stream()
	}
	x := r.last.with(m)
	if x.m.owned != (owned{}) {
		r.last = x
	}
	return x
}

// mode returns the Exec that works on the gradient of t: on the stream of t's operation or, for a leaf, of its first use.
func (r *run) mode(t *Tensor) *Exec {
	switch {
	case t.node != nil:
		return r.exec(*t.node.m)
	case t.leaf != nil:
		return r.leafMode(t.leaf)
	}
	return r.exec(r.x.m)
}

func (r *run) leafMode(l *leaf) *Exec {
	m := r.x.m
	if st := l.stream.Load(); st != nil {
		m.stream = st
	} else if dev := l.owner.st.dev; m.stream.Device() != dev {
		m.stream = dev.DefaultStream()
	}
	return r.exec(m)
}

// start delivers a root's gradient. If the program orders streams itself, the stream of the root's derivative first waits for the caller's
// stream, which makes the gradient.
func (r *run) start(t, g *Tensor) {
	if to := r.mode(t).m.stream; r.x.m.manual && to.Device() == r.x.m.stream.Device() {
		r.x.check(r.op, to.WaitIn(r.x.m.stream, r.x.recording().rt()))
	}
	r.deliver(edge{node: t.node, out: t.out, leaf: t.leaf, dt: t.dt, form: t.form}, g)
	if t.leaf != nil {
		r.arrived(t.leaf)
	}
}

// step runs one node's derivative in its own scope and delivers the results.
func (r *run) step(n *node) {
	t := r.tasks[n]
	if slices.ContainsFunc(t.g, func(g *Tensor) bool { return g != nil }) {
		r.observe(n, t)
		if t.needed {
			r.derive(n, t)
		}
	}
	for i := range n.edges {
		if e := &n.edges[i]; e.leaf != nil && r.wants(e) {
			r.arrived(e.leaf)
		}
	}
}

// derive runs n's derivative and delivers its results.
func (r *run) derive(n *node, t *task) {
	if n.spent {
		r.x.fail(r.op, fault.Invalid, nil, "Trying to backward through the graph a second time: %s has freed its saved tensors; set "+
			"RetainGraph in the first call", n.row.Name)
	}
	x := r.exec(*n.m)
	s := x.s
	outer := s.mark()
	s.push()
	b := &r.back
	clear(b.res)
	*b = back{x: x, n: n, r: r, g: t.g, res: slices.Grow(b.res[:0], len(n.edges))[:len(n.edges)]}
	err := Try(func() {
		r.node = n
		if !r.addWithin(n, t.g) {
			n.row.back(b)
		}
	})
	r.node = nil
	if err != nil {
		s.restore(outer)
		name := n.row.Name
		if n.custom != nil {
			name += " " + functionName(n.custom.fn)
		}
		panic(r.failed("the derivative of "+name, err))
	}
	for i, g := range b.res {
		if g != nil && r.wants(&n.edges[i]) {
			s.lift(g)
		}
	}
	s.restore(outer)
	// The node's own references go first, so that a leaf can take over a gradient that nobody else holds.
	for i, g := range t.g {
		r.done(g)
		t.g[i] = nil
	}
	if !r.opt.RetainGraph {
		n.spend()
	}
	for i, g := range b.res {
		if g != nil && r.wants(&n.edges[i]) {
			r.deliver(n.edges[i], g)
		}
	}
}

// addWithin adds the gradient of the view n directly to the gradient of its base, if there is one that may be overwritten. This takes time
// in proportion to the view's elements, not the base's. It runs in the scope of n's derivative.
func (r *run) addWithin(n *node, g []*Tensor) bool {
	u, region := n.opt.(region)
	region = region && n.row == rowRegion
	if len(g) != 1 || !region && n.row.view == nil {
		return false
	}
	e := &n.edges[0]
	var x *Exec
	var old *Tensor
	if e.node != nil {
		x, old = r.exec(*e.node.m), r.tasks[e.node].g[e.out]
	} else {
		x, old = r.leafMode(e.leaf), r.leaf(e.leaf).g
	}
	if old == nil || g[0].dt != old.dt || 2*g[0].Numel() > old.Numel() || !r.own(old) || !distinct(old.shape, old.stride) {
		return false
	}
	var part *Tensor
	switch {
	case !region:
		f := x.op(n.row, old)
		f.i, f.dims = n.i, append(f.dims, n.dims()...)
		part = f.call1()
	case u.part.dt == u.base.dt && u.lies(old) && u.inside() && distinct(u.part.shape, u.part.stride):
		part = old.alias()
		part.offset += u.offset
		part.form = u.part.form
		x.s.adopt(part)
	default:
		return false
	}
	x.AddInto(part, part, g[0])
	return true
}

// own reports whether only the pass holds g, a gradient that has reached a node or a leaf, and nobody looks at it any more, so that it may
// be overwritten. It is called in the scope of a derivative.
func (r *run) own(g *Tensor) bool {
	if r.opt.CreateGraph || g.scope == nil || g.scope != r.x.s.scope.parent || !g.st.sole() {
		return false
	}
	//tenon:unordered it looks for one of them
	for _, kept := range r.targets {
		if kept == g {
			return false
		}
	}
	return true
}

// done closes a gradient that the pass made and nobody needs any more.
func (r *run) done(g *Tensor) {
	if g == nil || g.scope == nil || g.scope != r.x.s.scope {
		return
	}
	//tenon:unordered it looks for one of them
	for _, kept := range r.targets {
		if kept == g {
			return
		}
	}
	g.close()
}

// failed names the part of the pass in which err occurred.
func (r *run) failed(what string, err error) *fault.Error {
	var cause *fault.Error
	if !errors.As(err, &cause) {
		cause = fault.Wrap(fault.Invalid, err, "it failed")
	}
	e := &fault.Error{Kind: cause.Kind, Op: r.op, Msg: what + " failed", Cause: cause}
	locate(e)
	return e
}

// sum adds two gradients on x, and closes them if nobody else needs them.
func (r *run) sum(x *Exec, old, g *Tensor) *Tensor {
	if old == nil {
		return g
	}
	sum := x.Add(old, g)
	r.done(old)
	r.done(g)
	return sum
}

// deliver adds a gradient at the end of e.
func (r *run) deliver(e edge, g *Tensor) {
	if e.node != nil {
		t := r.tasks[e.node]
		t.g[e.out] = r.sum(r.exec(*e.node.m), t.g[e.out], g)
		return
	}
	t := r.leaf(e.leaf)
	t.g = r.sum(r.leafMode(e.leaf), t.g, g)
}

// arrived notes that one of the edges to a leaf is done. After the last one the leaf's hooks see the whole gradient and it accumulates.
func (r *run) arrived(l *leaf) {
	t := r.leaf(l)
	if t.left--; t.left > 0 || t.g == nil {
		return
	}
	x, g := r.leafMode(l), t.g
	t.g = nil
	for _, h := range slices.Clone(l.hooks) {
		g = r.hook(x, h, "a leaf", g)
	}
	if r.targets != nil {
		r.targets[target{nil, 0, l}] = g
		r.join(x)
		return
	}
	r.complete = append(r.complete, completed{x: x, l: l, g: g})
	if len(l.after) == 0 {
		return
	}
	r.accumulate() // so that the hooks see the gradient
	for _, h := range slices.Clone(l.after) {
		if err := Try(func() { x.Scope(func(x *Exec) { h.f(x, l.owner) }) }); err != nil {
			panic(r.failed("a post-accumulate hook", err))
		}
	}
	r.join(x)
}

// join makes the caller's stream wait for x's stream, on which a gradient for the caller is ready. The automatic ordering would do so at
// the gradient's first use, but the caller may order streams manually.
func (r *run) join(x *Exec) {
	if st := x.m.stream; r.x.m.manual && st.Device() == r.x.m.stream.Device() {
		r.x.check(r.op, r.x.s.force(""))
		r.x.check(r.op, r.x.m.stream.WaitIn(st, r.x.recording().rt()))
	}
}

// accumulateMu is held while a pass adds to the gradients of leaves, which other sessions' passes may share, and while a program replaces
// one. So the gradients of passes add up in the order in which the passes end.
var accumulateMu sync.Mutex

func (s *session) beginAccumulating() {
	accumulateMu.Lock()
	s.accumulates = true
}

func (s *session) endAccumulating() {
	s.accumulates = false
	accumulateMu.Unlock()
}

// accumulate gives leaves their gradients: the first one is taken over if nobody else holds it, later ones are added in place. Either all
// leaves get theirs or none does: work that needs memory comes first. A leaf that was closed gets none.
func (r *run) accumulate() {
	r.x.s.beginAccumulating()
	defer r.x.s.endAccumulating()
	r.awaitOthers()
	for i := range r.complete {
		c := &r.complete[i]
		switch l, g := c.l, c.g; {
		case l.owner.closed.Load():
		case l.grad.Load() == nil && g.st.sole() && l.meta.takes(g) && g.scope == c.x.s.scope && g.scope != nil:
			c.taken = g
		case l.grad.Load() == nil:
			c.taken = c.x.Clone(g)
			r.done(g)
		case r.opt.CreateGraph:
			c.taken = c.x.Add(l.grad.Load(), g)
		}
	}
	for i := range r.retained {
		if c := &r.retained[i]; c.k.grad == nil {
			c.taken = c.g
		} else {
			c.taken = c.x.Add(c.k.grad, c.g)
		}
	}
	if r.x.m.manual { // joining below must not fail for want of an event
		r.x.check(r.op, r.x.Device().KeepEvent())
	}
	add := func(*Exec) {
		var added map[*storage]*Exec // parts of one storage are added to on one stream
		for i := range r.complete {
			c := &r.complete[i]
			if c.taken != nil || c.l.owner.closed.Load() {
				continue
			}
			grad := c.l.grad.Load()
			st := grad.st
			x := added[st]
			if x == nil {
				if added == nil {
					added = map[*storage]*Exec{}
				}
				x, added[st] = c.x, c.x
			}
			x.AddInto(grad, grad, c.g)
		}
	}
	if slices.ContainsFunc(r.complete, func(c completed) bool { return c.taken == nil }) {
		r.x.together(r.op, add)
	}
	if r.opt.CreateGraph && slices.ContainsFunc(r.complete, func(c completed) bool { return c.l.grad.Load() != nil }) {
		r.x.check(r.op, r.x.s.force("")) // gradients that are replaced cannot be restored
	}
	for i := range r.complete {
		c := &r.complete[i]
		if c.taken != nil {
			c.l.take(c.x.s, c.taken)
		}
		if c.taken != c.g {
			r.done(c.g)
		}
		r.join(c.x)
	}
	for i := range r.retained {
		c := &r.retained[i]
		c.k.grad.close()
		c.taken.own()
		c.k.grad = c.taken
	}
	clear(r.complete)
	clear(r.retained)
	r.complete, r.retained = r.complete[:0], r.retained[:0]
}

// takes reports whether g can be the gradient of a leaf described by m as it is: contiguous, or without gaps and laid out like the leaf.
func (m *meta) takes(g *Tensor) bool {
	return g.dt == m.dt && (g.IsContiguous() || g.extent == g.numel && g.form.lies(m.form))
}

// awaitOthers returns, with accumulateMu held, once no other session has deferred a use of a gradient that the pass adds to: passes in
// regions of several sessions may share leaves. A session that waits here has deferred nothing, so there is no deadlock.
func (r *run) awaitOthers() {
	for i := 0; ; i++ {
		d := r.otherUser()
		if d == nil {
			return
		}
		func() {
			r.x.s.endAccumulating() // so that calls which run now take the lock where they need it
			defer r.x.s.beginAccumulating()
			r.x.check(r.op, r.x.s.force(""))
			if !d.runFor() {
				pause(i)
			}
		}()
	}
}

// otherUser returns the deferral of another session whose calls use a gradient that the pass adds to, or nil.
func (r *run) otherUser() *deferral {
	own := uint64(0)
	if d := r.x.s.putOff; d != nil {
		own = d.number
	}
	for i := range r.complete {
		c := &r.complete[i]
		if g := c.l.grad.Load(); g != nil && !c.l.owner.closed.Load() {
			if d := g.st.by(own); d != nil {
				return d
			}
		}
	}
	return nil
}

// take makes g the leaf's gradient, and takes it back if the capture fails or the deferred calls do not run: nothing computes it then.
func (l *leaf) take(s *session, g *Tensor) {
	l.setGrad(g)
	c := s.capture
	if c == nil && !g.st.waits() {
		return
	}
	back := func() {
		if l.grad.CompareAndSwap(g, nil) {
			g.close()
		}
	}
	if c != nil {
		c.undo = append(c.undo, back)
	} else {
		s.putOff.undoLater(back)
	}
}
