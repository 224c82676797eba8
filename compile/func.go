package compile

import (
	"errors"
	"reflect"
	"slices"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/rt"
)

// Callable is a function that Func has made from another one. Stats and Explain tell what became of its calls.
type Callable[F any] struct {
	// Call has the type of the function that Func was given, and is called like it.
	Call F
	*Region
}

// Func returns a function that does what f does, but as a region: the work of f's calls runs together when f returns, from the third run on
// as a graph. f's first parameter is an Exec. Its other parameters and its results may have any types. Tensors in them are arguments and
// results of the function, also in slices, arrays, structs and maps (by key), up to 32 levels deep. Tensors behind pointers, such as a
// module's parameters, count as captured: they should stay where they are. Of the tensors that f makes, only the returned ones are kept.
//
// The function's next call reuses the memory of the results and of what their derivatives need. A call begins a new step, unless a backward
// pass of an earlier call is still to come, and using a result of an earlier step is an error. Clone results that must last longer, or call
// MarkStep before each step. The call's own arguments last until it ends. What the function leaves open besides its results, such as
// gradients or an optimizer's state, stays valid. So do the gradients that backward passes through the function leave, which are recorded
// too.
func Func[F any](f F, opts ...Opt) *Callable[F] {
	opt := core.One("Func", opts)
	opt.check("Func")
	v := reflect.ValueOf(f)
	if v.Kind() == reflect.Func && v.IsNil() {
		core.Fail("Func", fault.Invalid, "the function is nil; give it one")
	}
	if v.Kind() != reflect.Func || v.Type().NumIn() == 0 || v.Type().In(0) != reflect.TypeFor[*tenon.Exec]() {
		core.Fail("Func", fault.Invalid, "got %T; give a function whose first parameter is a *tenon.Exec", f)
	}
	c := &Callable[F]{Region: New(opt)}
	c.name = nameOf(f)
	c.Call = reflect.MakeFunc(v.Type(), func(in []reflect.Value) (out []reflect.Value) {
		x := in[0].Interface().(*tenon.Exec)
		core.Usable((*core.Exec)(x), "Func")
		c.call((*core.Exec)(x), tensorsOf(in[1:]), func() []*core.Tensor {
			if v.Type().IsVariadic() {
				out = v.CallSlice(in)
			} else {
				out = v.Call(in)
			}
			return tensorsOf(out)
		})
		return out
	}).Interface().(F)
	return c
}

// call runs f, which returns the tensors to keep.
func (r *Region) call(x *core.Exec, args []*core.Tensor, f func() []*core.Tensor) {
	for _, i := range r.opt.Static {
		if i >= len(args) {
			core.Fail("Func", fault.Invalid, "Static names tensor argument %d, but the call has %d tensors, counted from 0; the Exec and "+
				"nil do not count", i, len(args))
		}
	}
	within, plainly := r.outerOf(x, "Func")
	if !within && plainly {
		core.WithinMany(x, "Func", func(*core.Exec) []*core.Tensor { return f() })
		return
	}
	if r.opt.Must && r.opt.NoGraphs {
		core.Fail("Func", fault.Invalid, mustNoGraphs)
	}
	t := r.trace(x, nil)
	keep := func(x *core.Exec) []*core.Tensor {
		ts := f()
		core.Inside(x, "Func", func() {
			t.results = t.results[:0]
			for _, r := range ts {
				t.results = append(t.results, core.StorageNumber(r))
			}
		})
		return ts
	}
	if within {
		core.WithinMany(x, "Func", keep)
		return
	}
	t.run(x, args, func() {
		core.WithinMany(x, "Func", func(x *core.Exec) []*core.Tensor {
			ts := keep(x)
			for _, r := range ts {
				core.MarkResult(r)
			}
			return ts
		})
	})
}

// run runs f with t as the session's tap. What f records on the tape belongs to this run.
func (t *trace) run(x *core.Exec, args []*core.Tensor, f func()) {
	dev := x.Device()
	var span *core.Span
	old := core.BeginTap(x, "Func", t, func(old core.Tap) {
		alone(old, "Func")
		t.callable = true
		t.enter(x)
		t.begin(x, dev, old)
		t.beginCall(dev, args)
		span = core.SetSpan(x, t.span)
	})
	done := false
	defer func() {
		core.SetSpan(x, span)
		core.SwapTap(x, "Func", old)
		if !done { // the panic of f goes on
			_ = core.Force(x)
		}
	}()
	f()
	omitted, err := core.Recompute(x, t.span, func(number uint64) bool {
		i, arg := t.args[number]
		return arg && !(args[i].IsLeaf() && args[i].RequiresGrad()) || slices.Contains(t.fresh, number)
	})
	core.Check("Func", err)
	t.omitted = omitted
	t.stats.Recomputed += len(omitted)
	done = true
	core.Check("Func", core.Force(x))
}

// beginCall begins a call of a callable with these arguments.
func (t *trace) beginCall(dev *rt.Device, args []*core.Tensor) {
	t.kind = inference
	if t.args == nil {
		t.args = map[uint64]int{}
	}
	clear(t.args)
	t.hostArg = slices.IndexFunc(args, core.OnHost)
	for i, a := range args {
		if _, ok := t.args[core.StorageNumber(a)]; !ok {
			t.args[core.StorageNumber(a)] = i
		}
	}
	skipped := new(bool)
	t.skipped = skipped
	span := &core.Span{Lists: !t.opt.NoRecompute}
	span.Begin = func(x *core.Exec, incoming []uint64) func() error {
		return t.backward(x, dev, span, *skipped, incoming)
	}
	t.span = span
}

// backward begins the backward pass through one run of the function on dev, with gradients of the storages incoming. It runs without a
// graph if the run did.
func (t *trace) backward(x *core.Exec, dev *rt.Device, run *core.Span, skipped bool, incoming []uint64) (end func() error) {
	old := core.SetTap(x, nil)
	outer, within := old.(*trace)
	done := func() {
		if fo := forestOf(x, dev, false); fo != nil && !(within && outer.span == run) { // a run may take a gradient of its own
			fo.pending = slices.DeleteFunc(fo.pending, func(sp *core.Span) bool { return sp == run })
		}
	}
	if within {
		core.SetTap(x, old)
		return func() error { done(); return nil }
	}
	back := t.backOf(x)
	err := core.ForceWithin(x)
	back.begin(x, dev, old)
	back.kind, back.plain, back.incoming = backward, skipped, incoming
	core.SetTap(x, back)
	return func() error {
		core.SetTap(x, old)
		defer done()
		return errors.Join(err, core.ForceWithin(x))
	}
}

// backOf returns the trace of the backward passes in x's session through runs of t. Several sessions may pass through one run at once.
func (t *trace) backOf(x *core.Exec) *trace {
	key := core.SessionOf(x)
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.others[key]
	if key == t.session {
		b = t.back
	}
	if b != nil {
		return b
	}
	b = &trace{opt: t.opt, session: key, root: newNode(), kind: backward, callable: true, ahead: t, counted: t.counted,
		compares: t.compares}
	if key == t.session {
		t.back = b
		return b
	}
	for k := range t.others { //tenon:unordered each is looked at alone
		if core.SessionEnded(k) {
			delete(t.others, k)
		}
	}
	if t.others == nil {
		t.others = map[any]*trace{}
	}
	t.others[key] = b
	return b
}

// Trees describes what a session has recorded on a device.
type Trees struct {
	// Roots are the recordings that begin a path.
	Roots []Tree
	// State is "idle", "warm-up", "recording" or "execution".
	State string
	// Functions, Graphs and Copied count the functions, the recordings, and the inputs of recordings that are copied, with those that were
	// forgotten. Checkpoints counts how often the pool was restored to its state after a recording, and Skips the reasons that were given
	// for runs without a graph.
	Functions, Graphs, Copied, Checkpoints, Skips int
	// Pending says that a backward pass may still come: a function has run since the last one, and its tape still exists.
	Pending bool
	// Live counts the blocks of the pool that are in use, and Memory their bytes.
	Live   int
	Memory int64
}

// Tree is a recording with the recordings that run after it.
type Tree struct {
	// ID and Function are the numbers of the recording and of its function, from 0 on.
	ID, Function int
	// Kind is "forward", "backward" or "inference".
	Kind string
	// Children are the recordings that run right after it.
	Children []Tree
	// Outputs are the addresses of the outputs in the latest run, or 0 for those that are closed.
	Outputs []uint64
	// DeadBefore and DeadAfter are the outputs of the path that were closed before the recording, and those that were closed during it.
	DeadBefore, DeadAfter []Index
	// Nodes counts the operations of the graph.
	Nodes int
}

// Descendants counts the recordings below t. It is 0 for nil.
func (t *Tree) Descendants() int {
	if t == nil {
		return 0
	}
	n := len(t.Children)
	for i := range t.Children {
		n += t.Children[i].Descendants()
	}
	return n
}

// TreesOf returns the recordings of x's session on its device. ok is false if the session never had work for a graph there; then only
// Skips is set.
func TreesOf(x *tenon.Exec) (trees Trees, ok bool) {
	c := (*core.Exec)(x)
	core.Made(c, "TreesOf")
	fo := forestOf(c, c.Device(), false)
	if fo == nil {
		return Trees{}, false
	}
	if fo.pool == nil && fo.functions == 0 {
		return Trees{Skips: fo.skips}, false
	}
	trees = Trees{Roots: treesOf(fo.roots), State: string(fo.state), Functions: fo.functions, Graphs: fo.graphs, Copied: fo.copied,
		Checkpoints: fo.checkpoints, Skips: fo.skips, Pending: fo.isPending()}
	if fo.pool != nil {
		trees.Live, trees.Memory = core.LiveBlocks(fo.dev, fo.pool.ID())
	}
	return trees, true
}

func treesOf(rs []*recording) (all []Tree) {
	for _, r := range rs {
		t := Tree{ID: r.id, Function: r.f.id, Kind: string(r.f.kind), Children: treesOf(r.children), Nodes: r.g.Nodes(),
			DeadBefore: slices.Clone(r.dead), DeadAfter: slices.Clone(r.ending)}
		for _, s := range r.stores {
			if s.Alive() && !s.Moved() {
				t.Outputs = append(t.Outputs, s.Addr())
			} else {
				t.Outputs = append(t.Outputs, 0)
			}
		}
		all = append(all, t)
	}
	return all
}

// Reset forgets the recordings of x's session on its device and frees their memory. Tensors in that memory move out of it. For recordings
// on another device, give it the session's Exec there, such as x.On with a stream of that device.
func Reset(x *tenon.Exec) (err error) {
	c := (*core.Exec)(x)
	stopped := core.Try(func() {
		core.Usable(c, "Reset")
		fo := forestOf(c, c.Device(), false)
		err = core.Detach(c, forestKey{c.Device()})
		if fo != nil && (fo.frozen || fo.disabled) {
			now := forestOf(c, c.Device(), true)
			now.frozen, now.disabled = fo.frozen, fo.disabled
		}
	})
	return errors.Join(stopped, err)
}
