package compile

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/rt"
)

// trace is a region's memory of one session: a tree of calls, each below the call before it. It is the session's tap while the region runs.
type trace struct {
	opt *Opt
	// name is the name of the program's function.
	name string
	// dev is the device that the region was called on, and of the session's forest there.
	dev *rt.Device
	of  *forest
	// began is when the current run began.
	began time.Time
	// session is the key of the session. callable says that Func made the region. kind is the kind of the current run, and back is the
	// trace of its backward passes. Other sessions that pass through its runs have traces of their own in others, which mu guards.
	session  any
	callable bool
	kind     kind
	back     *trace
	mu       sync.Mutex
	others   map[any]*trace
	// ahead is set in a trace of backward passes: it is the trace of their forward passes. fixed lists the storages, by number, that the
	// latest forward pass read in place; its backward pass reads them in place too.
	ahead *trace
	fixed []uint64
	// incoming lists the storages, by number, of the gradients that a backward pass is given.
	incoming []uint64
	// plain says that this run has no graphs, and skipped is set once a part of it was skipped.
	plain   bool
	skipped *bool
	// omitted are the values that the run does not save; its last segment makes them.
	omitted []core.Omitted
	// span is the function's run.
	span *core.Span
	// args maps the number of a storage to the number of the argument that uses it.
	args map[uint64]int
	// hostArg is the number of the first argument in the processor's memory, or -1. told has the ends of segments that were warned about,
	// and cutSkips the warnings.
	hostArg  int
	told     map[cutAt]bool
	cutSkips []Reason
	// sized is the line and the name of the operation that has just read the size of its result.
	sized string
	// fresh lists the storages, by number, that this run's calls have made without being deferred.
	fresh []uint64
	// results lists the storages, by number, that the function returns. shapes groups its segments by their operations.
	results []uint64
	shapes  map[string]*varieties

	root *node
	// path is at the last call that was matched or remembered; nowhere in a run that has a call which is not remembered.
	path core.Path
	// open lists the depths of the calls in progress, the innermost last. A call that is made meanwhile is part of the innermost.
	open  []int
	outer core.Tap
	stats Stats
	// now is the running segment.
	now *function
	// counted says that groups and graphs are counted, and thrashed that work was forgotten that may be needed again. differed lists the
	// lines of calls of which a warning said that they differ.
	counted, thrashed bool
	// compares says that fused kernels are compared with their calls.
	compares bool
	differed []string
	// unknownAt is the line of the first call that was not remembered, and forgottenFor that of the latest one that needed room.
	unknownAt, forgottenFor string
}

// node is a call that a region made.
type node struct {
	// Expected has the call, and the branch that was taken last. From is the call of the program that made it first.
	core.Expected
	// at is From's line, and within what it is a part of, as Frame.Within returns it. before is the call before it.
	at, within string
	before     *node
	next       []*node
	// ends lists the functions whose last call this is, and plans are their fusion plans.
	ends  []*function
	plans core.Plans
	// built says that the kernels of a segment that ends with this call have been built, or begun.
	built bool
	// alone is the segment that ends with this call and never had a graph. cuts lists the causes that ended segments after it.
	alone *function
	cuts  []Cut
}

// Stats counts a region's calls over all of its runs in one session. Region.Stats leaves out backward passes outside of the runs; those in
// an Explanation have them.
type Stats struct {
	// Runs counts calls of Do, or of the callable. New counts the operations' calls that were seen for the first time, Deferred those that
	// were deferred, and Eager those that ran at once. Views are not counted.
	Runs, New, Deferred, Eager int
	// Unknown counts calls that ran at once because Opt.Branches had been reached in Frozen, where nothing is forgotten.
	Unknown int
	// Forgotten counts the branches of calls, and the recordings, that made room for others because of Opt.Branches.
	Forgotten int
	// WarmUps, Recordings, Replays and Plain count the runs of segments, which are calls that ran together. Plain ones ran without a graph.
	WarmUps, Recordings, Replays, Plain int
	// Forced is how often deferred calls ran before the function's end, because something needed their results.
	Forced int
	// Kernels counts the built-in kernels that ran for deferred calls, in graphs too. Fused counts the calls that ran in kernels of several
	// calls, and Dropped those that did not run because nobody needed their results, because another call had made the same result, or
	// because the readers of the result read their operand instead.
	Kernels, Fused, Dropped int
	// Recomputed counts the values that runs of a function did not save for a backward pass, which computes them again if it comes.
	Recomputed int
	// Compared counts the fusion plans that were compared with their calls, because of TENON_COMPILE=compare.
	Compared int
}

// count adds what became of a segment.
func (s *Stats) count(f core.FusionStats) {
	s.Kernels += f.Kernels
	s.Fused += f.Fused
	s.Dropped += f.Dropped
	s.Compared += f.Compared
}

func (t *trace) begin(x *core.Exec, dev *rt.Device, outer core.Tap) {
	t.dev, t.outer = dev, outer
	t.open, t.fresh, t.fixed, t.omitted = t.open[:0], t.fresh[:0], t.fixed[:0], nil
	t.stats.Runs++
	t.began = time.Now()
	t.path.Begin(&t.root.Expected, t.stats.Runs, dev, outer != nil)
	if fo := forestOf(x, dev, true); fo != t.of { // there was a Reset
		t.of, t.shapes, t.told = fo, nil, nil
	}
}

// ownForward returns the trace of the forward passes that t's passes go back through, if they are of the same session. Those of another
// session may be running.
func (t *trace) ownForward() *trace {
	if t.ahead == nil || t.ahead.session != t.session {
		return nil
	}
	return t.ahead
}

// newNode returns an empty node.
func newNode() *node {
	n := &node{}
	n.Node = n
	return n
}

// Path returns the path of the run, along which core may defer calls that are expected.
func (t *trace) Path() *core.Path { return &t.path }

// at returns the last call that was matched or remembered, or nil.
func (t *trace) at() *node {
	e := t.path.At()
	if e == nil {
		return nil
	}
	return e.Node.(*node)
}

// Before compares the call with those that came here in earlier runs, and defers it if possible.
func (t *trace) Before(f *core.Frame) bool {
	depth := f.Depth()
	for len(t.open) > 0 && t.open[len(t.open)-1] >= depth { // it failed, so After did not come
		t.open = t.open[:len(t.open)-1]
	}
	inside := len(t.open) > 0
	t.open = append(t.open, depth)
	if t.outer != nil && t.outer.Before(f) {
		return true
	}
	if inside { // the calls within an operation follow from its own call
		return false
	}
	deferrable := !t.of.disabled && f.Deferrable()
	if f.Views() || !deferrable && !f.Works() { // the operands of later calls show what it did
		return false
	}
	if t.path.At() == nil {
		t.stats.Unknown++
		t.must(f, "there are too many different calls, and Frozen forgets none; see Opt.Branches")
		return false
	}
	if !t.match(f) && !t.remember(f) {
		t.must(f, "there are too many different calls, and Frozen forgets none; see Opt.Branches")
		return false
	}
	if f.OnHost() && !t.dev.Host {
		if f.Makes() {
			t.must(f, "it runs on the processor")
			t.Cut(hostCall, "")
			t.stats.Eager++
		}
		return false
	}
	if deferrable && f.Defer(&t.path) {
		return true
	}
	if f.Works() {
		t.must(f, cmp.Or(f.Hindrance(), "calls that another session deferred use an operand of it"))
		t.stats.Eager++
	}
	return false
}

// must stops a call that would run without a graph if Opt.Must forbids that.
func (t *trace) must(f *core.Frame, reason string) {
	if t.opt.Must && !t.of.disabled && f.Works() {
		core.Fail(f.Op(), fault.Unsupported, mustText, advised(reason, "call it in compile.Disable, or leave out Opt.Must"))
	}
}

const mustText = "this work cannot run as a graph, which Opt.Must asks for: %s"

// eager runs g without a graph for that reason, or returns an error if Opt.Must forbids that.
func (t *trace) eager(g *core.Segment, reason string) error {
	if t.opt.Must {
		op := "Do"
		if t.callable {
			op = "Func"
		}
		return core.Refusal(op, fault.Unsupported, mustText,
			advised(reason, cmp.Or(remedy(reason), "leave out Opt.Must there")))
	}
	t.because(reason)
	return g.Eager(nil)
}

// because counts a run without a graph.
func (t *trace) because(reason string) {
	t.stats.Plain++
	if t.now != nil {
		t.now.plains, t.now.because = t.now.plains+1, reason
	}
}

// nodeOf returns the node of call i of g.
func nodeOf(g *core.Segment, i int) *node { return g.Call(i).Node.(*node) }

// nodesOf returns the nodes of g's calls.
func nodesOf(g *core.Segment) []*node {
	all := make([]*node, g.Len())
	for i := range all {
		all[i] = nodeOf(g, i)
	}
	return all
}

// alone returns g as a segment without a graph, or nil if a function ends with its last call.
func (t *trace) alone(g *core.Segment) *function {
	n := nodeOf(g, g.Len()-1)
	if len(n.ends) > 0 {
		return nil
	}
	if n.alone == nil {
		n.alone = &function{id: -1, t: t, calls: nodesOf(g), last: n, kind: t.kind}
	}
	return n.alone
}

// match moves to the branch of f's call, if there is one.
func (t *trace) match(f *core.Frame) bool {
	n := t.at()
	last := n.Next()
	if last != nil && f.Matches(last, &t.path) {
		t.path.Move(last)
		return true
	}
	for _, c := range n.next {
		if &c.Expected != last && f.Matches(&c.Expected, &t.path) {
			n.Expect(&c.Expected)
			t.path.Move(&c.Expected)
			return true
		}
	}
	return false
}

// remember makes a branch for f's call. If there are too many, it forgets others, unless Frozen forbids that.
func (t *trace) remember(f *core.Frame) bool {
	n, c := t.at(), newNode()
	c.Call, c.From, c.within = f.Key(&t.path), f.Whence(), f.Within()
	c.at = c.From.String()
	if !t.makeRoom(n, c) {
		t.path.Move(nil)
		t.unknownAt = cmp.Or(t.unknownAt, c.at)
		t.stats.Unknown++
		return false
	}
	c.before = n
	n.next = append(n.next, c)
	n.Expect(&c.Expected)
	t.path.Move(&c.Expected)
	t.stats.New++
	return true
}

// After adds the storages that the call made to those of the run.
func (t *trace) After(f *core.Frame) {
	t.open = t.open[:len(t.open)-1]
	if t.outer != nil {
		t.outer.After(f)
	}
	if len(t.open) == 0 && t.path.At() != nil {
		f.Made(&t.path)
		t.fresh = f.MadeNow(t.fresh)
	}
}

// RunSegment runs the deferred calls.
func (t *trace) RunSegment(g *core.Segment) error {
	began, whole := time.Now(), g.On(&t.path)
	if t.callable && t.kind == inference && t.path.Recorded() {
		t.kind = forward
	}
	dev := g.Stream().Device()
	waited := dev.WaitedForKernels()
	defer func() {
		t.stats.count(g.Fusion())
		if t.now != nil {
			t.now.omitted = t.omitted
			t.now.building += dev.WaitedForKernels() - waited
			t.now.ran(began)
		}
	}()
	if whole && !t.opt.NoFusion {
		g.Fuse(&nodeOf(g, g.Len()-1).plans, t.allowing(g))
		if t.compares {
			g.Compare(t.differing(g))
		}
	}
	if t.now = nil; whole {
		t.now = t.alone(g)
	}
	if !g.Works() { // nothing runs, in no way
		return g.Eager(nil)
	}
	if whole && !t.compares { // which runs each call by itself before the plan is applied
		if n := nodeOf(g, g.Len()-1); !n.built {
			n.built = true
			g.BuildAhead(!t.opt.NoGraphs)
		}
	}
	switch {
	case t.opt.NoGraphs:
		return t.eager(g, "Opt.NoGraphs")
	case t.plain:
		return t.eager(g, "the forward pass ran without a graph")
	case !whole:
		return t.eager(g, "calls from outside of the region were deferred with it")
	}
	switch {
	case t.dev.Host || dev.Host:
		return t.eager(g, "compile uses no graphs on the processor")
	case !core.HasPools(dev):
		return t.eager(g, "the device's allocator has no private pools, which graphs need")
	}
	if !dev.Memory().Caching() { // a replay needs its memory to stay in the pool
		t.because("device memory is not cached")
		return g.Eager(nil)
	}
	fo := forestOf(g.Exec(), dev, true)
	f := t.function(fo, g)
	t.now = f
	if t.callable && t.ahead == nil {
		for i := range f.inputs {
			if f.inputs[i].static {
				t.fixed = append(t.fixed, g.Inputs()[i].Number())
			}
		}
	}
	if devs := g.Devices(); len(devs) > 1 {
		fo.skip(f, devicesText(devs))
		err := t.without(g, devicesText(devs))
		fo.sweep()
		return err
	}
	return fo.run(f, g)
}

// without runs the deferred calls without a graph. Their derivatives will run without one too.
func (t *trace) without(g *core.Segment, reason string) error {
	if t.skipped != nil {
		*t.skipped = true
	}
	return t.eager(g, reason)
}

// function returns the function that consists of g's calls, and makes it in their first run.
func (t *trace) function(fo *forest, g *core.Segment) *function {
	first, last := nodeOf(g, 0), nodeOf(g, g.Len()-1)
	last.ends = slices.DeleteFunc(last.ends, func(f *function) bool { return f.fo != fo }) // from before a Reset
	for _, f := range last.ends {
		if f.calls[0] == first && f.kind == t.kind {
			return f
		}
	}
	f := &function{id: fo.functions, fo: fo, t: t, calls: nodesOf(g), last: last, kind: t.kind}
	fo.functions++
	for i := range g.Inputs() {
		in := &g.Inputs()[i]
		k := inputOf{static: true, arg: -1, written: in.Written}
		if t.callable && slices.Contains(t.fresh, in.Number()) { // its address differs in each run
			k.static = in.Written
		}
		if t.ahead != nil {
			ahead := t.ownForward()
			k.static = (ahead != nil && slices.Contains(ahead.fixed, in.Number()) || in.Written && !in.Ending()) && // a hook may change it
				!slices.Contains(t.incoming, in.Number())
		}
		if a, ok := t.args[in.Number()]; ok {
			k.arg = a
			k.static = t.opt.isStatic(a) && in.Addr()%16 == 0 // parameters are aligned; an unaligned view can have any address
		}
		f.inputs = append(f.inputs, k)
	}
	last.ends = append(last.ends, f)
	t.countShape(f)
	return f
}

const shapesText = "CUDAGraph supports dynamic shapes by recording a new graph for each distinct input size. Recording too many " +
	"CUDAGraphs may lead to extra overhead. We have observed %d distinct sizes. Please consider the following options for better " +
	"performance: a) padding inputs to a few fixed number of shapes; or b) set compile.Opt.SkipDynamic. The sizes differ first at %s. " +
	"A negative DynamicLimit silences this warning."

const variantsText = "A compiled region has recorded %d graphs of the same operations on the same sizes, since a number, an option or " +
	"a place of a call changed: %s, at %s. Recording takes time and memory. To avoid it, %s. A negative DynamicLimit silences this warning."

// varieties are the functions with the same operations: a list for each of their sizes. told says that it was warned of one that runs
// without a graph, toldVariants that there were too many of the same sizes.
type varieties struct {
	sizes              [][]*function
	told, toldVariants bool
}

// opsOf names the operations of f's calls.
func opsOf(f *function) string {
	var b strings.Builder
	for _, c := range f.calls {
		b.WriteString(c.Call.Op())
		b.WriteByte(' ')
	}
	return b.String()
}

// countShape adds f to the functions of its operations, and warns if they have too many sizes.
func (t *trace) countShape(f *function) {
	if t.shapes == nil {
		t.shapes = map[string]*varieties{}
	}
	ops := opsOf(f)
	v := t.shapes[ops]
	if v == nil {
		v = &varieties{}
		t.shapes[ops] = v
	}
	at := slices.IndexFunc(v.sizes, func(same []*function) bool { return f.sameSizes(same[0]) })
	if at < 0 {
		at = len(v.sizes)
		v.sizes = append(v.sizes, nil)
	}
	v.sizes[at] = append(v.sizes[at], f)
	switch limit := t.opt.shapes(); {
	case t.opt.SkipDynamic && at > 0:
		f.plain = "graph with symbolic shapes inputs. Found from : \n " + sourceOf(f.resized(v.sizes[0][0]))
		f.hushed, v.told = v.told, true
	case limit >= 0 && at == limit && len(v.sizes[at]) == 1:
		first := v.sizes[0][0]
		if _, is := parting(first, f); t.tells(is.at) {
			slog.Warn(fmt.Sprintf(shapesText, at+1, f.resized(first)))
		}
	}
}

// warnVariants warns, after the first recording of f, if too many functions of the same operations on the same sizes have been recorded.
func (t *trace) warnVariants(f *function) {
	v, limit := t.shapes[opsOf(f)], t.opt.shapes()
	if v == nil || limit < 0 || v.toldVariants {
		return
	}
	i := slices.IndexFunc(v.sizes, func(same []*function) bool { return slices.Contains(same, f) })
	if i < 0 || len(v.sizes[i]) <= limit {
		return
	}
	var recorded []*function
	for _, g := range v.sizes[i] {
		alike := func(o *function) bool { return slices.Equal(o.calls, g.calls) } // another kind of function
		if g.recordings > 0 && !slices.ContainsFunc(recorded, alike) {
			recorded = append(recorded, g)
		}
	}
	if len(recorded) <= limit {
		return
	}
	v.toldVariants = true
	other := slices.IndexFunc(recorded, func(g *function) bool { return !slices.Equal(g.calls, f.calls) })
	if was, is := parting(recorded[other], f); t.tells(is.at) {
		differs := was.Call.Differs(is.Call)
		help := cmp.Or(remedy(differs), "give the call the same number in every run, or let it take the number from a tensor")
		slog.Warn(fmt.Sprintf(variantsText, len(recorded), differs, is.at, help))
	}
}

// parting returns the first calls in which the ways from a region's beginning to the ends of a and b differ.
func parting(a, b *function) (was, is *node) {
	way := func(n *node) (all []*node) {
		for ; n != nil; n = n.before {
			all = append(all, n)
		}
		slices.Reverse(all)
		return all
	}
	from, to := way(a.last), way(b.last)
	for i := range min(len(from), len(to)) {
		if from[i] != to[i] {
			return from[i], to[i]
		}
	}
	return a.last, b.last
}

// tells reports whether a warning that calls differ at a line is the first. What differs there may exceed several limits, and makes the
// backward passes differ too.
func (t *trace) tells(at string) bool {
	if ahead := t.ownForward(); ahead != nil && len(ahead.differed) > 0 || slices.Contains(t.differed, at) {
		return false
	}
	t.differed = append(t.differed, at)
	return true
}

// uncountShape takes countShape back.
func (t *trace) uncountShape(f *function) {
	ops := opsOf(f)
	v := t.shapes[ops]
	if v == nil { // it was from before a Reset
		return
	}
	for i := range v.sizes {
		v.sizes[i] = slices.DeleteFunc(v.sizes[i], func(g *function) bool { return g == f })
	}
	if v.sizes = slices.DeleteFunc(v.sizes, func(same []*function) bool { return len(same) == 0 }); len(v.sizes) == 0 {
		delete(t.shapes, ops)
	}
}

// resized returns the line of f's first call that has other sizes than that of g, whose calls are of the same operations.
func (f *function) resized(g *function) string {
	for i, c := range f.calls {
		if c != g.calls[i] && !c.Call.SameSizes(g.calls[i].Call) {
			return c.at
		}
	}
	return f.last.at
}

// sameSizes reports whether the calls of g, which are of the same operations, have operands of f's sizes.
func (f *function) sameSizes(g *function) bool {
	for i, c := range f.calls {
		if c != g.calls[i] && !c.Call.SameSizes(g.calls[i].Call) {
			return false
		}
	}
	return true
}

// Stats returns the counts of x's session.
func (r *Region) Stats(x *tenon.Exec) Stats {
	if r == nil || r.traces == nil {
		core.Fail("Stats", fault.Invalid, notMade)
	}
	core.Made((*core.Exec)(x), "Stats")
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.traces[core.SessionOf((*core.Exec)(x))]; t != nil {
		return t.counts()
	}
	return Stats{}
}

// counts returns the counts so far.
func (t *trace) counts() Stats {
	s := t.stats
	s.Deferred = t.path.Deferred()
	return s
}

// enter begins a new generation of the session's graphs.
func (t *trace) enter(x *core.Exec) {
	if fo := forestOf(x, x.Device(), true); fo != nil {
		fo.entered++
	}
}

// hostCall is the cause of cuts by calls on the processor.
const hostCall = "cpu device"

// incompatible maps operations that read the length of their result from the device, which no graph can do, to PyTorch's names.
var incompatible = map[string]string{"Nonzero": "nonzero", "MaskedSelect": "masked_select", "Unique": "unique", "BinCount": "bincount",
	"RepeatInterleave": "repeat_interleave"}

// Cut counts the end of a function's segment for a cause that cannot be part of a graph: an incompatible operation once for each place in
// the tree of calls, any other cause once for each line.
func (t *trace) Cut(cause, within string) {
	t.noteCut(cause, within)
	if !t.callable || t.opt.NoGraphs || cause != "Read" && cause != hostCall {
		return
	}
	file, line := origin.Here()
	at := fmt.Sprintf("%s:%d", file, line)
	if op, ok := incompatible[within]; ok && cause == "Read" { // it reads the size of its result and then goes on
		cause, t.sized = within, at+op
	} else if op, ok := incompatible[cause]; ok && t.sized == at+op {
		t.sized = ""
		return
	}
	key, text := cutAt{at: at + cause}, ""
	op, ok := incompatible[within]
	switch {
	case cause == hostCall:
		text = "cpu device (" + t.hostArgument() + "). Found from : \n " + sourceOf(at)
	case !ok:
		text = "cpu device (_local_scalar_dense). Found from : \n " + sourceOf(at)
	case t.opt.NoFusion:
		key.after, text = t.at(), "incompatible op ("+op+")"
	default:
		key.after, text = t.at(), "['incompatible ops']"
	}
	if !t.told[key] {
		if t.told == nil {
			t.told = map[cutAt]bool{}
		}
		t.told[key] = true
		t.skipCut("skipping cudagraphs due to "+text, at)
	}
}

// cutAt is the end of a segment: its line and cause, and the call after which it came if each place in the tree of calls counts.
type cutAt struct {
	at    string
	after *node
}

// skipCut counts a warning about the end of a segment at a line.
func (t *trace) skipCut(text, at string) {
	t.of.warn(t, text)
	if !strings.Contains(text, at) {
		text += " at " + at
	}
	i := slices.IndexFunc(t.cutSkips, func(r Reason) bool { return r.Text == text })
	if i < 0 {
		i, t.cutSkips = len(t.cutSkips), append(t.cutSkips, Reason{Text: text, Remedy: remedy(text)})
	}
	t.cutSkips[i].Times++
}

// noteCut counts a cut for Explain. It looks up the line the first time only.
func (t *trace) noteCut(cause, within string) {
	n := t.at()
	if n == nil || !t.path.Waits() {
		return
	}
	for i := range n.cuts {
		if c := &n.cuts[i]; c.Cause == cause && c.within == within {
			c.Times++
			return
		}
	}
	name, file, line := origin.Call()
	c := Cut{Cause: cause, Within: within, At: fmt.Sprintf("%s:%d", file, line), Times: 1, within: within}
	if cause == "Read" && within == "" {
		c.Within = name // such as Item
	}
	n.cuts = append(n.cuts, c)
}

// hostArgument names the function's first argument that lies in the processor's memory.
func (t *trace) hostArgument() string {
	if t.hostArg >= 0 {
		return fmt.Sprintf("arg%d", t.hostArg)
	}
	return "a tensor of the processor"
}

func devicesText(devs []*rt.Device) string {
	names := make([]string, len(devs))
	names[0] = devs[0].String()
	for i, d := range devs[1:] {
		_, names[i+1] = rt.Apart(devs[0], d)
	}
	return "multiple devices: " + strings.Join(names, ", ")
}
