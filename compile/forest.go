package compile

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/rt"
	"tenon.dev/internal/snapshot"
)

// forest is what PyTorch calls the manager of CUDA graph trees: the recordings of one session on one device, which share one private pool.
// A recording assumes that the outputs of the recordings before it that were in use then have the same addresses. So the recordings form
// trees, and each path from a root is an order in which they may run.
type forest struct {
	// mu guards the parts that a snapshot shows, since another goroutine may take one: pool, state, roots and children, path, stores and
	// warm, generation, and the descriptions of nodes. Only the session's goroutine changes these, and it reads them without the lock.
	mu sync.Mutex
	// session is the key of the session.
	session any
	dev     *rt.Device
	pool    *rt.MemPool
	// runs counts the runs of graphs in the pool, but not the first of each.
	runs *atomic.Uint64
	// on is the stream for recordings, and last the stream of the latest run.
	on, last *rt.Stream

	roots     []*recording
	functions int // which have numbers from 0 on
	graphs    int // recordings made, which have numbers from 0 on
	state     state
	// path lists the recordings that have run since the latest root, and warm the outputs of runs without a graph since then.
	path []*recording
	warm []output
	// spilled says that some of warm may lie outside the pool, which had no room for them.
	spilled bool
	// warmers lists the functions that have run without a graph in the pool.
	warmers []*function
	// ran lists the functions of the path, including warm-ups.
	ran []*function
	// generation is the path's generation. entered counts the calls of regions, and marked those of MarkStep, downwards; each of these
	// calls is a new generation.
	generation, entered, marked int
	// begun counts the paths that have begun, and gone lists the forgotten functions of which the forest still has something.
	begun int
	gone  []*function
	// pending lists the runs of functions through which no backward pass has gone. One may still come while their tapes exist.
	pending []*core.Span
	// rerecorded counts how often a function was recorded again after a recording because an address changed.
	rerecorded map[place]int
	warned     map[*function]bool

	// busy says that a recording is in progress.
	busy bool
	// frozen says that nothing new is recorded.
	frozen bool
	// disabled says that every call runs at once.
	disabled bool

	checkpoints, failures, skips, copied int
}

const frozenText = "Frozen allows no new recording"

type state string

const (
	idle      state = "idle"
	warmup    state = "warm-up"
	recorded  state = "recording"
	execution state = "execution"
)

// place is a function after a recording.
type place struct {
	after *recording
	f     *function
}

// output is memory of the pool that a run has made, with its function.
type output struct {
	core.Store
	f     *function
	maker *node
	about *snapshot.TreeOutput
}

// function is the calls between two places of a region.
type function struct {
	id    int
	fo    *forest
	t     *trace
	calls []*node
	last  *node
	kind  kind
	warm  bool
	// inputs are in the order of their first use.
	inputs []inputOf
	// wanted says of every storage that the calls make whether it was ever in use after them.
	wanted []bool
	// plain says why the function never runs as a graph, or is "".
	plain string
	told  map[string]bool
	// hushed says that another function has been warned of for the same reason.
	hushed bool
	// warmUps, recordings, replays and plains count how it ran. because is why it last ran without a graph, and again counts the reasons
	// why it was recorded again.
	warmUps, recordings, replays, plains int
	because                              string
	again                                map[string]int
	// building is how long runs waited for kernels, recording how long its recordings took without that and without planning.
	building, recording time.Duration
	timeline            timeline
	// omitted are the values that its latest run did not save.
	omitted []core.Omitted
	// about is what snapshots show of its runs without a graph in the forest's pool.
	about *snapshot.TreeNode
}

// inputOf describes a function's input.
type inputOf struct {
	// static inputs are read in place, others from copies.
	static bool
	// arg is the argument's number, or -1.
	arg     int
	written bool
	addr    uint64
}

// kind says how a function takes part in derivatives.
type kind string

const (
	inference kind = "inference"
	forward   kind = "forward"
	backward  kind = "backward"
)

// recording is a function that was recorded as a graph, after the recordings before it on its path.
type recording struct {
	id       int
	f        *function
	parent   *recording
	children []*recording
	g        *core.Recorded
	// inputs says where they come from.
	inputs []source
	// outputs lists the storages in use after the recording, by their number among those that the calls make; kept says the same for each
	// of these. stores are the outputs of the latest run, and makers the calls that make them.
	outputs []int
	kept    []bool
	makers  []*node
	stores  []core.Store
	// used is the number of the latest path that it was part of.
	used int
	// dead lists the outputs of the path that were closed before the recording's end, and ending those that its calls closed.
	dead, ending []Index
	checkpoint   *rt.PoolCheckpoint
	about        *snapshot.TreeNode
}

// Index names an output: by the depth of its recording below the root, and by its number there.
type Index [2]int

// source is where an input comes from: an output of the path, memory that stays where it is, or a copy.
type source struct {
	managed bool
	static  bool
	of      Index
}

// forestKey is the key of a device's forest in a session.
type forestKey struct{ dev *rt.Device }

// forestOf returns the session's forest on dev; nil if there is none and make is false.
func forestOf(x *core.Exec, dev *rt.Device, make bool) *forest {
	var create func() core.Attached
	if make {
		create = func() core.Attached {
			return &forest{session: core.SessionOf(x), dev: dev, state: idle, generation: 1, rerecorded: map[place]int{},
				warned: map[*function]bool{}}
		}
	}
	f, _ := core.Attach(x, forestKey{dev}, create).(*forest)
	return f
}

// Detach closes all graphs. Tensors in the pool's memory keep it.
func (fo *forest) Detach() (err error) {
	if fo.pool == nil {
		return nil
	}
	if fo.state == execution {
		c, _ := core.Claim(fo.session, fo.stores(), true) // storages that other sessions use stay where they are
		defer c.Release()
		if err := fo.reclaim(); err != nil {
			return err
		}
	}
	for _, r := range fo.roots {
		r.close()
	}
	fo.dev.EndLend(fo.pool.ID())
	err = errors.Join(err, fo.pool.Close())
	fo.dev.ReturnCaptureStream(fo.on)
	fo.mu.Lock()
	defer fo.mu.Unlock()
	for _, f := range fo.warmers {
		f.about = nil // of the runs in the next pool
	}
	fo.roots, fo.path, fo.warm, fo.warmers, fo.ran, fo.pool, fo.state = nil, nil, nil, nil, nil, nil, idle
	fo.spilled = false
	return err
}

func (r *recording) close() {
	for _, c := range r.children {
		c.close()
	}
	_ = r.g.Close() // an error is the device's, and the next call reports it
}

// open makes the pool and the stream, once.
func (fo *forest) open() error {
	if fo.pool != nil {
		return nil
	}
	pool, err := fo.dev.NewExpandablePool()
	if err != nil {
		return err
	}
	on, err := fo.dev.CaptureStream()
	if err != nil {
		return errors.Join(err, pool.Close())
	}
	fo.mu.Lock()
	fo.pool, fo.on = pool, on
	fo.mu.Unlock()
	fo.runs = fo.dev.Lend(pool.ID(), fo.tree)
	return nil
}

// now returns the generation that begins with the next run.
func (fo *forest) now() int {
	if fo.marked < 0 {
		return fo.marked
	}
	return fo.entered
}

// mayBegin reports whether the path may end though its outputs are in use.
func (fo *forest) mayBegin() bool {
	if fo.generation == fo.now() {
		return false
	}
	return fo.marked < 0 || !fo.isPending()
}

// isPending reports whether the backward pass of a function that has run may still come.
func (fo *forest) isPending() bool {
	fo.pending = slices.DeleteFunc(fo.pending, func(sp *core.Span) bool { return !sp.Taped() })
	return len(fo.pending) > 0
}

// live yields the outputs of the path that are in use.
func (fo *forest) live(yield func(output) bool) {
	for _, r := range fo.path {
		for i, s := range r.stores {
			if s.Alive() && !s.Moved() && !yield(output{s, r.f, r.makers[i], &r.about.Outputs[i]}) {
				return
			}
		}
	}
	for _, o := range fo.warm {
		if o.Alive() && !o.Moved() && !yield(o) {
			return
		}
	}
}

func (fo *forest) stores() (all []core.Store) {
	for o := range fo.live {
		all = append(all, o.Store)
	}
	return all
}

const overwrittenText = "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. Made at %s in %s. " +
	"To prevent overwriting, clone the tensor outside of the compiled function, or call compile.MarkStep before each step"

// end leaves the path. Later runs reuse the memory of tensors that are still in use: results of functions get an error when they are used,
// as does what a backward pass that is not to come would need, and others move out of the pool, as do tensors that g, calls of f, is about
// to read and the arguments of the function's present run, which may read them later.
func (fo *forest) end(g *core.Segment, f *function) error {
	var all []output
	for o := range fo.live {
		all = append(all, o)
	}
	taped := fo.isPending()
	if slices.ContainsFunc(all, func(o output) bool { return o.stays(taped) }) {
		return fo.leavePool(all, taped)
	}
	if _, ok := core.Claim(fo.session, fo.stores(), false); !ok { // until g has run
		return errInUse
	}
	defer g.EndMoves()
	for _, o := range all {
		var err error
		if _, arg := f.t.args[o.Number()]; o.passing(taped) && !arg && !g.Reads(o.Store) {
			err = core.Overwrite(o.Store, sprintf(overwrittenText, o.f.last.at, o.f.node().Name))
		} else {
			err = g.MoveOut(o.Store, &o.maker.From)
		}
		if fault.KindOf(err) == fault.OutOfMemory {
			return fo.leavePool(all, taped)
		}
		if err != nil {
			return err
		}
	}
	fo.forget()
	return nil
}

// passing reports whether o lasts no longer than its step: it is a result of a function or, if a backward pass may still come (taped), what
// that needs. Whatever else a function has left open is the program's state, such as that of an optimizer.
func (o output) passing(taped bool) bool {
	return o.f.t.callable && o.f.kind != backward && (o.Result() || taped && o.f.kind == forward)
}

// stays reports whether the program has the address of memory that would move out.
func (o output) stays(taped bool) bool { return !o.passing(taped) && o.Exposed() }

// errInUse says that another session is using memory that was about to be reused.
var errInUse = errors.New("another session was using an output")

// leavePool leaves the pool to the tensors that are in use, because there is no room to move one, or because the program has its address.
// The function that made this tensor runs without a graph from now on.
func (fo *forest) leavePool(all []output, taped bool) error {
	for _, o := range all {
		if o.stays(taped) {
			o.f.plain = "an output whose address the program has"
			fo.skip(o.f, o.f.plain)
		}
	}
	if err := fo.Detach(); err != nil {
		return err
	}
	return fo.open()
}

func (fo *forest) forget() {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	for _, r := range fo.path {
		clear(r.stores)
	}
	fo.path, fo.warm, fo.spilled, fo.ran, fo.state = fo.path[:0], nil, false, fo.ran[:0], idle
	fo.begun++
}

// tryEnd leaves the path if possible.
func (fo *forest) tryEnd(g *core.Segment, f *function) error {
	if fo.mayBegin() {
		return fo.end(g, f)
	}
	if len(fo.stores()) == 0 {
		fo.forget()
		return nil
	}
	if fo.state != execution {
		fo.warnPending(f)
	}
	return nil
}

const pendingText = "Unable to hit fast path of CUDAGraphs because of pending, uninvoked backwards. " +
	"That concerns the calls of %s from %s to %s. " +
	"Use an Exec of NoGrad where no gradient is needed, or call compile.MarkStep before each step"

// warnPending warns, once for a function that comes repeatedly in one path, that its graph cannot be used because a backward pass has not
// come.
func (fo *forest) warnPending(f *function) {
	if fo.generation == fo.now() || fo.warned[f] {
		return
	}
	seen := 0
	var after []*function // what f, and the path's last function, came after
	for i, r := range fo.ran {
		if r == f {
			seen++
		}
		if (r == f || i == len(fo.ran)-1) && i > 0 && !slices.Contains(after, fo.ran[i-1]) {
			after = append(after, fo.ran[i-1])
		}
	}
	if seen > 1 && len(after) != seen {
		fo.warned[f] = true
		slog.Warn(sprintf(pendingText, f.node().Name, f.calls[0].at, f.last.at))
	}
}

func (fo *forest) current() *recording {
	if len(fo.path) == 0 {
		return nil
	}
	return fo.path[len(fo.path)-1]
}

// run runs the calls of f.
func (fo *forest) run(f *function, g *core.Segment) error {
	fo.last = g.Stream()
	if err := fo.open(); err != nil {
		return err
	}
	if f.kind == forward {
		defer func() {
			if n := len(fo.pending); n == 0 || fo.pending[n-1] != f.t.span {
				fo.pending = append(fo.pending, f.t.span)
			}
		}()
	}
	err := fo.step(f, g)
	fo.sweep()
	if err == errInUse {
		return f.t.without(g, err.Error())
	}
	return err
}

func (fo *forest) step(f *function, g *core.Segment) error {
	if fo.state == recorded || fo.state == warmup {
		if err := fo.tryEnd(g, f); err != nil {
			return err
		}
	}
	if g.Gapped() {
		return f.t.eager(g, "somebody else drew from its generator between its draws")
	}
	if reason := fo.unmanaged(f, g); reason != "" {
		fo.skip(f, reason)
		return f.t.without(g, reason)
	}
	if fo.over(f) {
		return f.t.eager(g, "it was recorded too often because addresses changed; see Opt.RerecordLimit")
	}
	if fo.frozen && !f.warm {
		return f.t.eager(g, frozenText)
	}
	if !f.warm && !f.t.opt.NoWarmup || fo.state == warmup {
		return fo.warmUp(f, g)
	}
	if fo.frozen && fo.state != execution && fo.state != idle {
		return f.t.eager(g, frozenText)
	}
	if fo.state != recorded {
		ran, err := fo.execute(f, g)
		if ran || err != nil {
			return err
		}
	}
	return fo.record(f, g)
}

// execute runs a matching recording, or f without a graph. If it does neither, it leaves a state in which f can be recorded.
func (fo *forest) execute(f *function, g *core.Segment) (ran bool, err error) {
	var moved, other string
	at := fo.current()
	for _, r := range fo.children() {
		if r.f != f {
			continue
		}
		why, address := fo.mismatch(r, g)
		if why == "" && (g.SameValues(r.g) || g.Retune(r.g, fo.on)) {
			return true, fo.replay(r, g)
		}
		if other = why; why == "" {
			other = "a number could not be changed in the graph"
		}
		if address {
			moved = why
		}
	}
	if at != nil && fo.isRoot(f) {
		if err := fo.tryEnd(g, f); err != nil {
			return true, err
		}
		if fo.current() == nil {
			return true, fo.step(f, g)
		}
	}
	if moved == staticMoved && f.t.opt.FixedStatic {
		return true, fo.staticMoved(f, g)
	}
	if moved != "" {
		k := place{at, f}
		fo.rerecorded[k]++
		fo.unfix(f, g)
		if fo.over(f) {
			fo.skipWhole(f,
				sprintf("skipping cudagraph due to function %d exceeding max re-recording limit (=%d) on cudagraph node %s due to %s.",
					f.id, f.t.opt.limit(), at.name(), moved))
			return true, f.t.eager(g, moved)
		}
	}
	if fo.frozen {
		return true, f.t.eager(g, frozenText)
	}
	fo.failures++
	if other != "" {
		if f.again == nil {
			f.again = map[string]int{}
		}
		f.again[other]++
	}
	if err := fo.tryEnd(g, f); err != nil {
		return true, err
	}
	if fo.current() != nil {
		return false, fo.restore()
	}
	return false, nil
}

func (r *recording) name() string {
	if r == nil {
		//tenon:quoted what PyTorch logs of its trees
		return "None"
	}
	return sprintf("%d", r.id)
}

func (fo *forest) children() []*recording {
	if at := fo.current(); at != nil {
		return at.children
	}
	return fo.roots
}

func (fo *forest) isRoot(f *function) bool {
	return slices.ContainsFunc(fo.roots, func(r *recording) bool { return r.f == f })
}

// over reports whether f was recorded here too often because of changed addresses.
func (fo *forest) over(f *function) bool {
	limit := f.t.opt.limit()
	return limit >= 0 && fo.rerecorded[place{fo.current(), f}] > limit
}

// warmUp runs f without a graph, in the pool. This builds its kernels, and puts its outputs into pool memory for the next function.
func (fo *forest) warmUp(f *function, g *core.Segment) error {
	if fo.state == execution {
		if err := fo.restore(); err != nil {
			return err
		}
	}
	f.see(g)
	f.warm = true
	f.t.stats.WarmUps++
	f.warmUps++
	fo.ran = append(fo.ran, f)
	before := fo.reserved()
	fo.mu.Lock()
	fo.state, fo.generation = warmup, fo.now()
	fo.mu.Unlock()
	err := g.Eager(fo.pool)
	fo.dev.UsedLent(g.Stream().ID())
	if fault.KindOf(err) == fault.OutOfMemory {
		fo.spilled = true
		err = g.Eager(nil) // the rest, outside the pool
	}
	fo.warmed(f, g)
	fo.grew(f, before)
	if err != nil {
		return err
	}
	if f.t.opt.CheckPool && !fo.spilled {
		return fo.checkPool(g.Ending)
	}
	return nil
}

// warmed notes the storages that g has made without a graph, or before it failed.
func (fo *forest) warmed(f *function, g *core.Segment) {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	for i := range g.Made() {
		if o := g.Output(i); g.Wanted(i) && o.Alive() {
			about := f.outputOf(g, i)
			fo.warm = append(fo.warm, output{o, f, f.calls[g.MakerOf(i)], &about})
		}
	}
	fo.state = warmup
}

// see notes which storages f makes, and the addresses of its inputs.
func (f *function) see(g *core.Segment) {
	if f.wanted == nil {
		f.wanted = make([]bool, g.Made())
	}
	for i := range f.wanted {
		f.wanted[i] = f.wanted[i] || g.Wanted(i)
	}
	for i := range f.inputs {
		f.inputs[i].addr = g.Inputs()[i].Addr()
	}
}

// record records f after the current path, and runs it.
func (fo *forest) record(f *function, g *core.Segment) error {
	if f.t.counted && !allowed(part{Kind: "graph", Lines: linesOf(f.calls)}) {
		f.plain = "TENON_COMPILE_GRAPHS allows no further graph"
		return f.t.eager(g, f.plain)
	}
	fo.makeRoom(f)
	r := &recording{f: f, parent: fo.current(), used: fo.begun}
	copied := make([]bool, len(f.inputs))
	for i := range f.inputs {
		in := &g.Inputs()[i]
		if at, ok := fo.find(in); ok {
			r.inputs = append(r.inputs, source{managed: true, of: at})
			continue
		}
		k := &f.inputs[i]
		if k.static && k.arg < 0 && !f.t.callable && k.addr != 0 && k.addr != in.Addr() && !k.written {
			k.static = false // it is another tensor each time
		}
		copied[i] = !k.static
		r.inputs = append(r.inputs, source{static: k.static})
	}
	for d, p := range fo.path {
		for i, s := range p.stores {
			if s.Alive() && !s.Moved() && g.Ending(s) {
				r.ending = append(r.ending, Index{d, i})
			}
		}
	}
	f.see(g)
	before, plans := fo.reserved(), &f.last.plans
	start, other := time.Now(), plans.Took()+fo.dev.WaitedForKernels()
	rec, err := fo.recordOf(g, copied)
	f.recording += max(0, time.Since(start)-(plans.Took()+fo.dev.WaitedForKernels()-other))
	if err == errInUse {
		return err
	}
	if err != nil {
		f.plain = "a failed recording: " + err.Error()
		fo.skip(f, f.plain)
		return f.t.eager(g, f.plain)
	}
	f.t.stats.Recordings++
	if f.recordings++; f.recordings == 1 {
		f.t.warnVariants(f)
	}
	r.g, r.id = rec, fo.graphs
	fo.graphs++
	for _, c := range copied {
		if c {
			fo.copied++
		}
	}
	if err := g.Replay(rec, true, true); err != nil {
		fo.warmed(f, g)
		return errors.Join(err, rec.Close())
	}
	fo.dev.UsedLent(g.Stream().ID())
	r.outputs = f.t.outputs(g)
	r.kept = make([]bool, g.Made())
	for _, i := range r.outputs {
		r.kept[i] = true
		r.stores = append(r.stores, g.Output(i))
		r.makers = append(r.makers, f.calls[g.MakerOf(i)])
	}
	if r.checkpoint, err = fo.dev.CheckpointPool(fo.pool.ID()); err != nil {
		fo.warmed(f, g)
		return errors.Join(err, rec.Close())
	}
	r.noteDead(fo.path)
	r.about = fo.aboutOf(r, g, before)
	fo.mu.Lock()
	if p := r.parent; p != nil {
		p.children = append(p.children, r)
	} else {
		fo.roots = append(fo.roots, r)
	}
	fo.path, fo.ran = append(fo.path, r), append(fo.ran, f)
	fo.state, fo.generation = recorded, fo.now()
	r.about.Runs, r.about.Generation = 1, int64(fo.generation)
	fo.mu.Unlock()
	if f.t.opt.CheckPool {
		return fo.checkPool(g.Ending)
	}
	return nil
}

// recordOf is Record. If memory runs out, it empties the cache and tries again, and lets no memory rest.
func (fo *forest) recordOf(g *core.Segment, copied []bool) (rec *core.Recorded, err error) {
	fo.busy = true
	defer func() { fo.busy = false }()
	rec, err = fo.tryRecord(g, copied, core.MostResting)
	if fault.KindOf(err) == fault.OutOfMemory && fo.dev.EmptyCache() == nil {
		rec, err = fo.tryRecord(g, copied, 0)
	}
	return rec, err
}

// tryRecord is Record, but restores the pool if it fails: inputs that it had freed after their last use get their memory back.
func (fo *forest) tryRecord(g *core.Segment, copied []bool, resting uint64) (*core.Recorded, error) {
	if !slices.ContainsFunc(g.Inputs(), func(in core.Input) bool { return in.Ending() }) {
		return g.Record(fo.on, fo.pool, copied, resting)
	}
	if _, ok := core.Claim(fo.session, fo.stores(), false); !ok { // until g has run
		return nil, errInUse
	}
	before, err := fo.dev.CheckpointPool(fo.pool.ID())
	if err != nil {
		return nil, err
	}
	rec, err := g.Record(fo.on, fo.pool, copied, resting)
	if err != nil {
		core.Check("Do", core.Reclaim(before, fo.stores()))
	}
	return rec, err
}

// Relieve forgets all recordings and frees the unused memory of the pool.
func (fo *forest) Relieve() bool {
	if fo.pool == nil || fo.busy {
		return false
	}
	if fo.state == execution && fo.restore() != nil {
		return false
	}
	var all []output
	for o := range fo.live {
		all = append(all, o)
	}
	for _, r := range fo.roots {
		r.close()
	}
	fo.mu.Lock()
	fo.roots, fo.path, fo.warm, fo.ran = nil, nil, all, fo.ran[:0]
	for _, o := range all {
		fo.warmer(o.f)
	}
	if fo.state = warmup; len(all) == 0 {
		fo.state = idle
	}
	fo.mu.Unlock()
	if fo.dev.Synchronize() != nil {
		return false
	}
	return fo.dev.Memory().EmptyPool(fo.pool.ID()) == nil
}

// outputs returns the storages that g makes and that stay in use, by number: first the function's results, then those that its derivative
// needs.
func (t *trace) outputs(g *core.Segment) (all []int) {
	for i := range g.Made() {
		if g.Wanted(i) {
			all = append(all, i)
		}
	}
	rank := func(i int) int {
		if k := slices.Index(t.results, g.Output(i).Number()); k >= 0 {
			return k
		}
		return len(t.results)
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}

// find returns which output of the path the input is.
func (fo *forest) find(in *core.Input) (Index, bool) {
	n, addr := in.Number(), in.Base()
	for d, p := range fo.path {
		for i, s := range p.stores {
			if s.Number() == n && s.Addr() == addr {
				return Index{d, i}, true
			}
		}
	}
	return Index{}, false
}

// managed reports whether the input is an output of the path, including runs without a graph.
func (fo *forest) managed(in *core.Input) bool {
	_, ok := fo.find(in)
	return ok || slices.ContainsFunc(fo.warm, func(o output) bool { return o.Number() == in.Number() && o.Addr() == in.Addr() })
}
