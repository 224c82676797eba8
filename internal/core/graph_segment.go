package core

import (
	"errors"
	"math"
	"slices"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// Runner is a Tap that decides how deferred calls run.
type Runner interface {
	Tap
	// Cut reports that an operation, such as "Dropout", cannot be deferred and needs the calls that were. "Read" is a read, within the
	// operation called within if that is not "".
	Cut(cause, within string)
	// RunSegment runs g: by g.Eager, or by g.Record and g.Replay.
	RunSegment(g *Segment) error
}

// Segment holds the calls of a session that were deferred and are about to run. It is valid until RunSegment returns.
type Segment struct {
	d *deferral
	// inputs are the storages from outside, and made the slots of those that the calls make, each in the order of first use. open lists
	// those of made that had holders when the calls began to run.
	inputs []Input
	made   []int32
	open   []int32
	// layout is what the segment was found by, if it was seen before, until whole calls are needed. From then on index has an entry for
	// every slot: i for input i, ^i for made i, unused if no call uses it; madeB is made's then.
	layout *layout
	index  []int
	madeB  []int32
	// makers are the calls that make what is in made.
	makers, makersB []int32
	// draws are the calls' draws from generators, and gapped says that others drew in between.
	draws  []taken
	gapped bool
	// plans keeps the plan by which the calls run; if it is nil, they run one by one. report is what Compare was told.
	plans  *Plans
	report func(s PlannedStep, what string) error
}

// Input is a storage from outside that a segment uses.
type Input struct {
	st *storage
	// Lo and Hi bound the bytes that the calls use.
	Lo, Hi int
	// Written says that the calls change it.
	Written bool
}

// Addr returns the address of the first byte that the calls use.
func (in *Input) Addr() uint64 { return in.st.ptr + uint64(in.Lo) }

// Base returns the address of the input's memory.
func (in *Input) Base() uint64 { return in.st.ptr }

// Number returns the number of the input's storage.
func (in *Input) Number() uint64 { return in.st.number() }

// Ending reports whether nothing but the segment uses the input.
func (in *Input) Ending() bool { return in.st.unheld() }

const unused = math.MinInt

// forget drops the references to storages, which may be garbage from now on.
func (g *Segment) forget() {
	clear(g.inputs)
	clear(g.draws)
	g.layout, g.made, g.makers = nil, nil, nil
}

// draw notes a call's draw from a generator.
func (g *Segment) draw(t taken) {
	i := slices.IndexFunc(g.draws, func(o taken) bool { return o.g == t.g })
	if i < 0 {
		g.draws = append(g.draws, t)
		return
	}
	o := &g.draws[i]
	g.gapped = g.gapped || o.seed != t.seed || o.to != t.at
	o.to = t.to
}

// Gapped reports whether others have drawn from a generator between the calls, so that no graph can draw the same numbers.
func (g *Segment) Gapped() bool { return g.gapped }

// indexOf returns the index of a storage that the calls use: i for input i, ^i for made i.
func (g *Segment) indexOf(st *storage) int { return g.index[g.d.slotIn(st)] }

// madeAt returns storage i of those that the calls make.
func (g *Segment) madeAt(i int) *storage { return g.d.touched[g.made[i]] }

// Len returns how many calls the segment has.
func (g *Segment) Len() int { return len(g.d.thin) }

// On reports whether all calls were deferred on the present run of p.
func (g *Segment) On(p *Path) bool { return g.d.on(p) && !g.d.mixed }

// Call returns what the path knows of call i.
func (g *Segment) Call(i int) *Expected { return g.d.thin[i].e }

// Works reports whether any of the calls has work for the device. None has if nobody needs their results.
func (g *Segment) Works() bool {
	if l := g.layout; l != nil {
		return !l.idle && !g.d.needless(g.plans)
	}
	return !g.d.needless(g.plans) && slices.ContainsFunc(g.d.calls, func(c deferred) bool { return c.row.flags&flagIdle == 0 })
}

// Op returns the operation name of call i.
func (g *Segment) Op(i int) string { return g.d.thin[i].e.row.Name }

// WriterOf returns the index of the last call that changes input i.
func (g *Segment) WriterOf(i int) int {
	g.full()
	for k := len(g.d.calls) - 1; k > 0; k-- {
		c := &g.d.calls[k]
		if slices.Contains(c.wrote, g.inputs[i].st) {
			return k
		}
	}
	return 0
}

// UserOf returns the index of the first call that uses input i.
func (g *Segment) UserOf(i int) int {
	g.full()
	return slices.IndexFunc(g.d.calls, func(c deferred) bool {
		uses := func(e element) bool { return e.st == g.inputs[i].st }
		return slices.ContainsFunc(c.in[:c.ins], uses) || slices.ContainsFunc(c.many, uses) || slices.ContainsFunc(c.out[:c.outs], uses)
	})
}

// Inputs returns the storages from outside, in the order of their first use.
func (g *Segment) Inputs() []Input { return g.inputs }

// Reads reports whether the calls use the memory of s and do not make it.
func (g *Segment) Reads(s Store) bool {
	return slices.ContainsFunc(g.inputs, func(in Input) bool { return in.st.number() == s.number })
}

// Made returns how many storages the calls make.
func (g *Segment) Made() int { return len(g.made) }

// Wanted reports whether storage i of those that the calls make is still wanted after they have run, and has bytes.
func (g *Segment) Wanted(i int) bool {
	st := g.madeAt(i)
	return st.bytes > 0 && st.others.Load() != abandoned
}

// Open lists the storages of those that the calls make which may be wanted; all others are not.
func (g *Segment) Open() []int32 { return g.open }

// Output names the memory of storage i of those that the calls make. It has an address once the calls have run.
func (g *Segment) Output(i int) Store { return storeOf(g.madeAt(i)) }

// Stream returns the stream of the first call.
func (g *Segment) Stream() *rt.Stream { return g.d.thin[0].x.m.stream }

// Exec returns the Exec of the first call.
func (g *Segment) Exec() *Exec { return g.d.thin[0].x }

// Devices returns the devices of the calls, in the order of first use.
func (g *Segment) Devices() (all []*rt.Device) {
	if l := g.layout; l != nil {
		return l.devices
	}
	return g.devices()
}

func (g *Segment) devices() (all []*rt.Device) {
	for i := range g.d.thin {
		if d := g.d.thin[i].x.m.stream.Device(); !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

// Fuse lets the calls run by the plans in p, which is shared by all segments of the same calls.
func (g *Segment) Fuse(p *Plans, allow func(PlannedStep) bool) { g.plans, g.d.fusing.allow = p, allow }

// Fusion returns what happened to the calls.
func (g *Segment) Fusion() FusionStats { return g.d.fusing.stats }

// Eager runs the calls, or those that a failed Eager has left. If pool is not nil, their memory comes from it, for work on the segment's
// stream, on which all of them run.
func (g *Segment) Eager(pool *rt.MemPool) error {
	g.full()
	d := g.d
	end, err := g.beginComparison()
	if err != nil {
		return err
	}
	defer end()
	if pool != nil {
		if err := g.awaitLent(); err != nil {
			return err
		}
		d.s.lent = &lending{run: g.Stream(), of: g.Stream(), pool: pool}
		defer func() { d.s.lent = nil }()
	}
	mark := d.s.mark()
	var freed error
	err = Try(func() {
		d.prepare(g.plans)
		freed = d.runAll(nil)
	})
	if err != nil {
		d.s.restore(mark)
	}
	return errors.Join(err, freed)
}

// awaitLent orders work of the segment's stream after other uses of the memory that it may overwrite.
func (g *Segment) awaitLent() error {
	st := g.Stream()
	seq, err := st.Begin(opReplayed, nil)
	if err != nil {
		return err
	}
	defer st.Issued(seq)
	if err := st.Device().AwaitLent(st); err != nil {
		return err
	}
	for i := range g.inputs {
		if in := &g.inputs[i]; in.reused() {
			if err := in.st.beforeWrite(st); err != nil {
				return err
			}
		}
	}
	return nil
}

// reused reports whether the calls may overwrite the input after its last use, though they do not write it.
func (in *Input) reused() bool { return in.Ending() && in.st.lent() }

// Recorded is a segment as a graph, with the addresses that it uses.
type Recorded struct {
	g *rt.Graph
	// inputs has an address for each input: where its bytes from Lo on were, or the address that they are copied to.
	inputs []uint64
	copied []bool
	// made are the addresses of the storages that the calls make, 0 for those that were not wanted.
	made []uint64
	// generators are those that the graph draws from.
	generators []*captured
	// plan is how the calls run; if it is nil, they run one by one. kernels counts the kernels, and lanes the rows that they run in.
	plan           *plan
	kernels, lanes int
	// values are the numbers of every call that decide nothing, and notes its other data; a group uses those of its last call.
	values []*values
	notes  []callNotes
	// addrs are the addresses of all storages that the calls make.
	addrs []uint64
	// uses are what the graph uses of the pool's memory, and units the number of the plan's units.
	uses  []poolUse
	units int
	// changes holds changes of launches, for reuse. stale says that some are not in the graph yet.
	changes []rt.Change
	stale   bool
}

// values are a call's numbers; nil means it has none.
type values struct{ scalar, hole [4]kernels.Scalar }

func valuesOf(a *attrs) *values {
	if a == &noAttrs {
		return nil
	}
	return &values{a.scalar, a.hole}
}

// SameValues reports whether the calls have the same numbers as r.
func (g *Segment) SameValues(r *Recorded) bool {
	if r.stale {
		return false
	}
	if l := g.layout; l != nil {
		return !slices.ContainsFunc(l.valued, func(i int32) bool { return !g.sameValues(r, int(i)) })
	}
	for i := range r.values {
		if !g.sameValues(r, i) {
			return false
		}
	}
	return true
}

func (g *Segment) sameValues(r *Recorded, i int) bool {
	a, v := g.d.thin[i].attrs, r.values[i]
	if v == nil || a == &noAttrs {
		return (v == nil) == (a == &noAttrs)
	}
	for k := range a.scalar {
		if numberOf(&a.scalar[k]) != numberOf(&v.scalar[k]) || numberOf(&a.hole[k]) != numberOf(&v.hole[k]) {
			return false
		}
	}
	return true
}

// Lanes returns how many rows of work the graph has.
func (r *Recorded) Lanes() int { return r.lanes }

// Copied reports whether input i is copied before each run.
func (r *Recorded) Copied(i int) bool { return r.copied[i] }

// Input returns the address that the graph uses for input i.
func (r *Recorded) Input(i int) uint64 { return r.inputs[i] }

// Made returns the address of storage i of those that the calls make, or 0.
func (r *Recorded) Made(i int) uint64 { return r.made[i] }

// Nodes returns how many operations the graph has.
func (r *Recorded) Nodes() int { return r.g.Nodes() }

// Close releases the graph.
func (r *Recorded) Close() error {
	for _, c := range r.generators {
		c.state.leave()
	}
	r.generators = nil
	return r.g.Close()
}

// opReplayed and opCopied name the work of segments in the launch ring.
var (
	opReplayed = rt.RegisterOp("compiled region")
	opCopied   = rt.RegisterOp("inputs of a compiled region")
)

// copyAlign is the alignment in bytes to which the addresses of a copied input and of its copy agree.
const copyAlign = 512

// Record records the calls as a graph whose memory comes from pool, on the stream on, which nobody else uses. Inputs with a true entry in
// copied are read from copies in the pool. At most the given number of bytes rests. Nothing has run when it returns; outputs that are
// wanted have their memory. After an error the segment is as before, but inputs of the pool that only the segment uses may have lost their
// memory.
func (g *Segment) Record(on *rt.Stream, pool *rt.MemPool, copied []bool, resting uint64) (r *Recorded, err error) {
	g.full()
	d, s, dev := g.d, g.d.s, on.Device()
	st := g.Stream()
	d.prepare(g.plans)
	defer d.unrepresent()
	r = &Recorded{plan: d.plan, copied: slices.Clone(copied), inputs: make([]uint64, len(g.inputs)), made: make([]uint64, len(g.made))}
	for i := range d.calls {
		r.values = append(r.values, valuesOf(d.calls[i].attrs))
	}
	rec := &recording{g: g, pool: pool, copies: make([]*alloc.Block, len(g.inputs)), begun: make([]bool, len(g.made)),
		mostResting: resting}
	made := r
	defer func() {
		if err != nil {
			rec.takeBack()
			for _, c := range made.generators {
				c.state.leave()
			}
		}
	}()
	for i := range g.inputs {
		in := &g.inputs[i]
		r.inputs[i] = in.Addr()
		if !copied[i] || in.Hi == in.Lo {
			continue
		}
		b, err := pool.Alloc(uint64(in.Hi-in.Lo+in.Lo%copyAlign), alloc.Stream(st.Handle()))
		if err != nil {
			return nil, err
		}
		rec.copies[i] = b
		r.inputs[i] = b.Addr() + uint64(in.Lo%copyAlign)
	}
	if err := g.fill(r, st); err != nil {
		return nil, err
	}
	r.notes, r.addrs = make([]callNotes, len(d.calls)), make([]uint64, len(g.made))
	rc, err := dev.BeginCapture(on, rt.CaptureSpec{Pool: pool.ID(), Track: true})
	if err != nil {
		return nil, err
	}
	c := &capture{x: d.s.first(on), rc: rc, pool: rc.Pool(), linear: true}
	s.capture, s.lent = c, &lending{run: on, of: st, pool: pool, manual: true}
	ended := false
	defer func() {
		s.capture, s.lent = nil, nil
		if !ended {
			_ = errors.Join(c.leaveGenerators(true), rc.Abort())
		}
	}()
	mark, launches := s.mark(), s.launches
	err = Try(func() {
		rec.run(r, rc)
		c.advance()
	})
	r.kernels = int(s.launches - launches)
	if err != nil {
		s.restore(mark)
		return nil, err
	}
	ended = true
	if err = c.leaveGenerators(false); err != nil {
		return nil, errors.Join(err, rc.Abort())
	}
	r.generators = c.generators
	if r.g, err = rc.End(); err != nil {
		return nil, err
	}
	r.lanes = 1
	s.capture, s.lent = nil, nil
	if err = g.recordLanes(r, on, pool); err != nil {
		return nil, errors.Join(err, r.g.Close())
	}
	for i := range g.made {
		if g.Wanted(i) {
			r.made[i] = g.madeAt(i).ptr
		}
	}
	return r, nil
}

// first returns an Exec of the session on st.
func (s *session) first(st *rt.Stream) *Exec {
	return (&Exec{s: s, kin: s.derived}).with(mode{stream: st})
}

// recording is a segment that is being recorded.
type recording struct {
	g      *Segment
	pool   *rt.MemPool
	copies []*alloc.Block
	// uses are those so far, and unit is the unit under way. begun has an entry for each storage that the calls make.
	uses  []poolUse
	unit  int
	begun []bool
	// resting is memory of the pool that is not used any more, oldest first, restingBytes its size, and mostResting its maximum.
	resting                   []*alloc.Block
	restingBytes, mostResting uint64
}

// MostResting is the maximum number of bytes that rest in a recording: memory that it does not use any more, and that would be given out
// again. Work that writes to memory comes after the work that used it before, so lanes have less to run side by side if memory is given out
// again at once. It rests only where the peak grows by no more than a part in restingPart, workspaces aside. RATIONALE.md has the figures.
const MostResting, restingPart = 128 << 20, 32

// run runs the calls under the capture, on copies of inputs that have them. Memory of the pool is freed after its last use.
func (c *recording) run(r *Recorded, rc *rt.Capture) {
	d := c.g.d
	stands := make([]*storage, len(c.copies))
	for i, b := range c.copies {
		if b == nil {
			continue
		}
		in := &c.g.inputs[i]
		c.uses = append(c.uses, poolUse{b.Addr(), b.Size(), -1, -1, i, 0, stays})
		stands[i] = &storage{dev: in.st.dev, bytes: in.st.bytes, ptr: r.inputs[i] - uint64(in.Lo)}
	}
	d.s.lent.stand = func(st *storage) *storage {
		if i := c.g.indexOf(st); i >= 0 && stands[i] != nil {
			return stands[i]
		}
		return st
	}
	for _, a := range r.plan.idle() {
		c.used(a.of(d.calls))
	}
	held, peak := c.held(r.plan)
	peak += peak / restingPart
	for step, i := range r.plan.units(len(d.calls)) {
		n := &r.notes[i]
		c.wake(min(c.mostResting, peak-min(peak, held[c.unit])))
		n.from, d.s.lent.notes = rc.Tracked(), n
		d.runUnit(step, i)
		n.to = rc.Tracked()
		calls := []int{i}
		if step != nil {
			calls = step.calls
		}
		c.begins(n, calls...)
		for e := range d.ends(step, i) {
			c.used(e)
		}
		c.unit++
	}
	c.wake(0)
	r.uses, r.units = c.uses, c.unit
	for i := range c.g.made {
		r.addrs[i] = c.g.madeAt(i).ptr
	}
	for _, m := range d.fusing.moved {
		r.addrs[^c.g.indexOf(m.from)] = m.to.ptr
	}
}

// used frees memory that was used for the last time: copies, and memory of the pool that nobody else wants.
func (c *recording) used(e *element) {
	st, i := e.st, c.g.indexOf(e.st)
	if i >= 0 && c.copies[i] != nil {
		b := c.copies[i]
		c.copies[i] = nil
		c.ends(-1, i, c.unit)
		Check("Do", st.dev.Free(b))
	}
	if !st.unheld() || st.block != nil && i >= 0 && st.dev.PoolOf(st.block) != c.pool.ID() {
		return
	}
	b := st.block
	if b == nil { // an output of the unit took it over
		c.ends(^i, -1, c.unit-1)
		return
	}
	st.tighten()
	st.block = nil
	live.Add(-1)
	c.ends(^i, -1, c.unit)
	c.resting = append(c.resting, b)
	c.restingBytes += b.Size()
}

// wake frees memory until at most the given number of bytes rests.
func (c *recording) wake(most uint64) {
	for c.restingBytes > most {
		b := c.resting[0]
		c.resting = c.resting[1:]
		c.restingBytes -= b.Size()
		Check("Do", c.pool.Device().Free(b))
	}
}

// takeBack frees what a failed recording has allocated.
func (c *recording) takeBack() {
	for _, b := range slices.Concat(c.copies, c.resting) {
		if b != nil {
			_ = c.pool.Device().Free(b) // the recording's error is reported
		}
	}
	for i := range c.g.made {
		st := c.g.madeAt(i)
		if b := st.block; b != nil {
			st.block, st.ptr = nil, 0
			live.Add(-1)
			_ = st.dev.Free(b)
		}
	}
}

// Retune replaces the numbers of r by those of the calls, from the next Replay on, and reports whether it could. on is a stream that nobody
// else uses.
func (g *Segment) Retune(r *Recorded, on *rt.Stream) bool {
	g.full()
	d := g.d
	if r.plan.replaces() {
		d.apply(r.plan)
		defer d.unapply()
	}
	stands := g.stands(r)
	clear(r.changes)
	r.changes = r.changes[:0]
	next, end := 0, 0
	on.Divert(func(c rt.Change) error {
		if next == end {
			return fault.New(fault.Invalid, "a recorded call has more work than it had")
		}
		c.Node = next
		if c.Launch != nil {
			l := *c.Launch
			l.Args = slices.Clone(l.Args)
			c.Launch = &l
		}
		r.changes = append(r.changes, c)
		next++
		return nil
	})
	stand := func(st *storage) *storage { return stands[d.slotIn(st)] }
	d.s.lent = &lending{run: on, of: g.Stream(), manual: true, fixed: true, stand: stand}
	defer func() {
		on.Divert(nil)
		d.s.lent = nil
	}()
	mark := d.s.mark()
	whole := true
	err := Try(func() {
		for step, i := range r.plan.units(len(d.calls)) {
			same := func(i int) bool { return !r.stale && g.sameValues(r, i) }
			if step == nil && same(i) || step != nil && !slices.ContainsFunc(slices.Concat(step.calls, step.again),
				func(i int) bool { return !same(i) }) {
				continue
			}
			n := &r.notes[i]
			n.works = 0
			next, end = n.from, n.to
			d.s.lent.notes = n
			d.runUnit(step, i)
			whole = whole && next == end && n.works == len(n.work)
		}
	})
	if err != nil {
		d.s.restore(mark)
	}
	if err != nil || !whole {
		r.changes = r.changes[:0]
		return false
	}
	for i := range d.calls {
		r.values[i] = valuesOf(d.calls[i].attrs)
	}
	r.stale = true // until Replay
	return true
}

// stands returns storages at the addresses of r, by slot.
func (g *Segment) stands(r *Recorded) []*storage {
	all := make([]*storage, len(g.index))
	for slot, i := range g.index {
		if i == unused {
			continue
		}
		var st *storage
		addr := uint64(0)
		if i >= 0 {
			st, addr = g.inputs[i].st, r.inputs[i]-uint64(g.inputs[i].Lo)
		} else {
			st, addr = g.madeAt(^i), r.addrs[^i]
		}
		all[slot] = &storage{dev: st.dev, bytes: st.bytes, ptr: addr}
	}
	return all
}

// Replay queues a run of r, which was recorded from the same calls, and gives the outputs that are wanted r's addresses. Inputs that r
// copies are copied, unless fresh says that they have just been. If owned is true, the outputs have that memory already.
func (g *Segment) Replay(r *Recorded, fresh, owned bool) (err error) {
	d, st := g.d, g.Stream()
	var began time.Time // only for a profiler
	if st.Device().Profiler() != nil {
		began = time.Now()
	}
	if len(r.generators) > 0 {
		generatorMu.Lock()
		defer generatorMu.Unlock()
		defer func() { r.doubt(err) }()
		if err := g.fillGenerators(r, st); err != nil {
			return err
		}
	}
	seq, err := st.Begin(opReplayed, nil)
	if err != nil {
		return err
	}
	defer st.Issued(seq)
	if err := st.Device().AwaitLent(st); err != nil {
		return err
	}
	if !fresh {
		if err := g.copyInputs(r, st, seq); err != nil {
			return err
		}
	}
	for i := range g.inputs {
		in := &g.inputs[i]
		switch {
		case r.copied[i]:
		case in.Written, in.reused():
			err = in.st.beforeWrite(st)
		default:
			err = in.st.beforeRead(st)
		}
		if err != nil {
			return err
		}
	}
	if err := r.g.LaunchFor(g.ownersOf(r), st, seq, true, r.changes...); err != nil {
		return err
	}
	r.changes, r.stale = r.changes[:0], false
	for _, c := range r.generators {
		c.state.seed.st.didRead(st, seq)
		c.state.offset.st.didWrite(st, seq)
	}
	for i := range g.inputs {
		switch in := &g.inputs[i]; {
		case r.copied[i]:
		case in.Written:
			in.st.didWrite(st, seq)
		default:
			in.st.didRead(st, seq)
		}
	}
	for _, i := range g.open {
		if !g.Wanted(int(i)) {
			continue
		}
		m := g.madeAt(int(i))
		if !owned {
			m.ptr = r.made[i]
		}
		m.writer.Store(pack(st.ID(), seq))
	}
	g.tellMemory(r, began, owned)
	d.ran, d.settled = len(d.thin), g.layout != nil
	d.fusing.stats.Kernels += r.kernels
	d.countPlan(r.plan)
	return nil
}

// ForceWithin is Force for callers inside a call of the session.
func ForceWithin(x *Exec) (err error) {
	stopped := Try(func() { err = x.s.force("") })
	return errors.Join(err, stopped)
}

// WithinMany is Exec.WithinMany for packages above the face.
func WithinMany(x *Exec, op string, f func(x *Exec) []*Tensor) []*Tensor {
	Enter(x, op)
	defer Leave(x)
	return x.WithinMany(f)
}

// fillGenerators sets the generators' numbers on the device to those that the calls have drawn.
func (g *Segment) fillGenerators(r *Recorded, st *rt.Stream) error {
	x := g.d.s.first(st)
	return Try(func() {
		for i, c := range r.generators { // a stand-in may draw for another generator: a checkpoint makes its own
			c.fill(x, g.draws[i].seed, g.draws[i].at)
			x.check("Do", c.state.seed.st.beforeRead(st))
			x.check("Do", c.state.offset.st.beforeWrite(st))
		}
	})
}

// OnHost reports whether the call runs on the processor's device.
func (f *frame) OnHost() bool { return f.x.m.stream.Device().Host }

// Makes reports whether the call makes or changes elements: a view does not, nor does a call without elements.
func (f *frame) Makes() bool {
	for i := range f.outs {
		if d := f.to(i); d != nil && d.form.extent > 0 || d == nil && f.specs[i].kind != outView && f.specs[i].form.extent > 0 {
			return true
		}
	}
	return false
}

// OnHost reports whether the input is memory of the processor's device.
func (in *Input) OnHost() bool { return in.st.dev.Host }
