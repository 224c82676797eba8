package rt

import (
	"bytes"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/origin"
	"tenon.dev/profile"
)

// Profiler records a device's work from StartProfile to Stop. Meanwhile operations report to it and pass it their launches, around which it
// records events. It gets the allocator's actions as a Trace does.
type Profiler struct {
	dev    *Device
	began  time.Time
	where  string       // the program's line that started it, or ""
	base   driver.Event // 0 on a device that runs each call before it returns
	remove func()       // from the device's traces

	mu     sync.Mutex
	ended  bool
	ops    []*ProfiledOp
	work   []timedWork           // work whose times are not known yet, in the order of recording
	last   map[int]point         // by stream: the latest event whose time is known
	frames map[profile.Frame]int // by number
	list   []profile.Frame
	live   map[uint64]*profiledBlock
	blocks []*profiledBlock // in the order of their allocation
	err    error            // of times that cannot be read
	marks  int              // events in twins whose times are not known yet
	twins  []*Graph         // graphs that have twins for it

	segments segmentLog
}

// ProfiledOp is an operation that a Profiler sees. A nil ProfiledOp stands for no operation: Index and Work accept it.
type ProfiledOp struct {
	p     *Profiler
	index int
	// op is under p.mu, as is recorded, which says that autograd records its outputs.
	op       profile.Op
	recorded bool
	// forward is the operation whose derivative it is, and fused the entry whose kernel did its work; both under p.mu.
	forward, fused *ProfiledOp
}

// timedWork is work between the two events a and b.
type timedWork struct {
	of     *ProfiledOp
	kernel int
	stream int
	a, b   driver.Event
	// begin is when the work began, on a device that runs each call before it returns.
	begin time.Duration
	// marks are the events in a twin: before the first part, between the parts and after the last.
	marks []driver.Event
	parts []part
}

// part is a kernel of an operation.
type part struct {
	of     *ProfiledOp
	kernel int
}

// point is an event and its time on the device.
type point struct {
	e  driver.Event
	at time.Duration
}

// profiledBlock is a block of the allocator.
type profiledBlock struct {
	addr, size uint64
	at, freed  time.Duration // freed is -1 while it is in use
	maker      *ProfiledOp
	// before says that the block was live when the profiler started, copied that bytes of the host went there; the others say how
	// operations used it.
	before, copied, used, parameter, gradient, state, activation bool
	// lent says that a graph uses the memory without the allocator.
	lent bool
}

// mostPending is the most pieces of work that may wait for their times to be read.
const mostPending = 4096

// StartProfile waits for the device's work and starts a Profiler of the device.
func (d *Device) StartProfile() (*Profiler, error) {
	p := &Profiler{dev: d, last: map[int]point{}, frames: map[profile.Frame]int{}, live: map[uint64]*profiledBlock{}}
	if file, line := origin.Here(); line > 0 {
		p.where = file + ":" + strconv.Itoa(line)
	}
	if first := d.profiler.Load(); first != nil {
		return nil, d.profiled(first)
	}
	if err := d.Synchronize(); err != nil {
		return nil, err
	}
	if !d.info.Inline {
		if err := p.mark(); err != nil {
			return nil, err
		}
	}
	p.began = time.Now()
	p.mu.Lock() // what is allocated meanwhile comes after the blocks that exist
	defer p.mu.Unlock()
	p.remove = d.AddTrace(Trace{}) // so that actions are traced at all
	if !d.profiler.CompareAndSwap(nil, p) {
		p.remove()
		p.release()
		return nil, d.profiled(d.profiler.Load())
	}
	d.mem.WithSegments(func(all []alloc.SegmentInfo) {
		p.before(all)
		p.segments.before(all)
	})
	return p, nil
}

// profiled returns the error for a second profiler. first is nil if the first profiler has stopped meanwhile.
func (d *Device) profiled(first *Profiler) error {
	where := ""
	if first != nil && first.where != "" {
		where = " by the profiler that was started at " + first.where
	}
	return fault.New(fault.Invalid, "%s is being profiled already%s; stop that profiler first", d, where)
}

// mark records the event from which the device's times are counted.
func (p *Profiler) mark() error {
	d, s := p.dev, p.dev.DefaultStream()
	v, err := s.take()
	if err != nil {
		return err
	}
	defer s.giveBack(v)
	if p.base, err = d.AcquireEvent(true); err != nil {
		return err
	}
	if err = d.dev.EventRecord(p.base, s.handle); err != nil {
		d.ReleaseEvent(p.base, true)
	}
	return d.Check(err, "the profiler could not mark its beginning")
}

// before adds the blocks that exist already.
func (p *Profiler) before(segments []alloc.SegmentInfo) {
	for _, g := range segments {
		for _, b := range g.Blocks {
			if alloc.BlockState(b.State) == alloc.ActiveAllocated && p.live[b.Addr] == nil {
				p.add(&profiledBlock{addr: b.Addr, size: b.Size, before: true})
			}
		}
	}
}

func (p *Profiler) add(b *profiledBlock) {
	b.freed = -1
	p.live[b.addr] = b
	p.blocks = append(p.blocks, b)
}

// Profiler returns the device's profiler, or nil.
func (d *Device) Profiler() *Profiler { return d.profiler.Load() }

// memory records an action of the allocator; only memoryAllocation has a size.
func (p *Profiler) memory(a action, addr, size uint64) {
	if a != memoryAllocation && a != memoryDeallocation {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	b, now := p.live[addr], time.Since(p.began)
	switch {
	case a == memoryDeallocation && b != nil && b.lent: // what the allocator had there has been overwritten
	case a == memoryDeallocation:
		p.retire(addr, now)
	case b != nil && !b.lent: // it was allocated while before ran
		b.before, b.at = false, now
	default:
		p.retire(addr, now)
		p.add(&profiledBlock{addr: addr, size: size, at: now})
	}
}

// Begin adds an operation that begins now on s, with the caller's stack.
func (p *Profiler) Begin(name string, kind profile.Kind, phase profile.Phase, s *Stream) *ProfiledOp {
	o := &ProfiledOp{p: p, op: profile.Op{Name: name, Kind: kind, Phase: phase, Parent: -1, Forward: -1, Fused: -1, Stream: s.id,
		Captured: s.Recording()}}
	o.op.Goroutine = goroutine()
	way := origin.Way()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.came(&o.op, way)
	o.index = len(p.ops)
	if !p.ended {
		p.ops = append(p.ops, o)
	}
	o.op.Begin = time.Since(p.began)
	o.op.End = -1
	return o
}

// came sets the calls from the program to op. The caller holds p.mu.
func (p *Profiler) came(op *profile.Op, way origin.Path) {
	op.Module = strings.Join(way.Modules, "/")
	if op.Phase == profile.Forward && slices.Contains(way.Above, "optim") {
		op.Phase = profile.Optimizer
	}
	for _, f := range way.Calls {
		op.Calls = append(op.Calls, p.frame(profile.Frame(f)))
	}
}

// frame returns the number of f. The caller holds p.mu.
func (p *Profiler) frame(f profile.Frame) int {
	i, ok := p.frames[f]
	if !ok {
		i = len(p.list)
		p.frames[f] = i
		p.list = append(p.list, f)
	}
	return i
}

// goroutine returns the number of the calling goroutine.
func goroutine() int64 {
	var b [64]byte
	text, _, _ := bytes.Cut(bytes.TrimPrefix(b[:runtime.Stack(b[:], false)], []byte("goroutine ")), []byte(" "))
	n, _ := strconv.ParseInt(string(text), 10, 64)
	return n
}

// Describe lets f complete the operation, unless the profiler has stopped. recorded says that autograd records its outputs.
func (o *ProfiledOp) Describe(recorded bool, f func(op *profile.Op)) {
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	o.recorded = o.recorded || recorded
	if !o.p.ended {
		f(&o.op)
	}
}

// Index returns the operation's number in p's profile, or -1 if it is not in there.
func (o *ProfiledOp) Index(p *Profiler) int {
	if o == nil || o.p != p {
		return -1
	}
	return o.index
}

// Profiler returns the profiler that the operation belongs to.
func (o *ProfiledOp) Profiler() *Profiler { return o.p }

// Stands makes from the forward operation of o and copies its module.
func (o *ProfiledOp) Stands(from *ProfiledOp) {
	if from.Index(o.p) < 0 {
		return
	}
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	o.op.Forward, o.op.Module, o.forward = from.index, from.op.Module, from
}

// End notes that the call returned.
func (o *ProfiledOp) End() {
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	if !o.p.ended {
		o.op.End = time.Since(o.p.began)
	}
}

// Work calls do, which queues work of the operation on s, and times that work on the device. The caller has the turn of s. Work that a
// graph records has no time.
func (o *ProfiledOp) Work(s *Stream, name string, do func() error) error {
	if c := s.capture.Load(); o != nil && c != nil && s.divert == nil {
		return o.recordedBy(c, s, name, do)
	}
	switch p := o.of(s); {
	case p == nil || s.divert != nil:
		return do()
	case s.dev.info.Inline:
		begin := time.Since(p.began)
		err := do()
		return o.note(err, profile.Kernel{Name: name, Begin: begin, End: time.Since(p.began), Timed: true})
	default:
		return o.timed(s, name, do)
	}
}

// recordedBy is Work that c records: it notes in c that the work is o's.
func (o *ProfiledOp) recordedBy(c *Capture, s *Stream, name string, do func() error) error {
	from := c.recorded()
	err := do()
	if err == nil {
		c.own(from, o)
	}
	if o.of(s) == nil {
		return err
	}
	o.Describe(false, func(op *profile.Op) { op.Captured = true }) // a deferred call did not know that
	return o.note(err, profile.Kernel{Name: name})
}

// of returns o's profiler if it is running and s is a stream of its device, or nil.
func (o *ProfiledOp) of(s *Stream) *Profiler {
	if o == nil || o.p.dev != s.dev || s.dev.profiler.Load() != o.p {
		return nil
	}
	return o.p
}

// note adds kernel k, unless err is set, and returns err.
func (o *ProfiledOp) note(err error, k profile.Kernel) error {
	if err != nil {
		return err
	}
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	if !o.p.ended {
		o.op.Kernels = append(o.op.Kernels, k)
	}
	return nil
}

// timed is Work between two events. If there are no events, the work is done without a time.
func (o *ProfiledOp) timed(s *Stream, name string, do func() error) error {
	d, p := s.dev, o.p
	w := timedWork{of: o, stream: s.id}
	var err error
	if w.a, err = d.AcquireEvent(true); err == nil {
		if w.b, err = d.AcquireEvent(true); err != nil {
			d.ReleaseEvent(w.a, true)
		}
	}
	if err != nil {
		return o.note(do(), profile.Kernel{Name: name})
	}
	marked := d.dev.EventRecord(w.a, s.handle)
	err = do()
	if err == nil && marked == nil {
		marked = d.dev.EventRecord(w.b, s.handle)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || marked != nil || p.ended {
		p.giveBack(&w)
		return err
	}
	w.kernel = len(o.op.Kernels)
	o.op.Kernels = append(o.op.Kernels, profile.Kernel{Name: name})
	p.work = append(p.work, w)
	if len(p.work) >= mostPending {
		p.read()
	}
	return nil
}

// read reads the times of work that is complete. It measures each from the stream's last event with a known time, since the driver reports
// long times less exactly. The caller holds p.mu.
func (p *Profiler) read() {
	d := p.dev
	t, err := d.enter()
	if err != nil {
		p.err = err
		return
	}
	defer d.leave(t)
	since := func(a point, b driver.Event) (time.Duration, error) {
		ms, err := d.dev.EventElapsed(t, a.e, b)
		return a.at + time.Duration(float64(ms)*1e6), err
	}
	done := 0
	for i := range p.work {
		w := &p.work[i]
		from, ok := p.last[w.stream]
		if !ok {
			from = point{e: p.base}
		}
		begin, err := w.begin, error(nil)
		if !d.info.Inline {
			begin, err = since(from, w.a)
		}
		end := begin
		if err == nil {
			end, err = since(point{w.a, begin}, w.b)
		}
		if err == nil {
			err = w.readParts(func(e driver.Event) (time.Duration, error) { return since(point{w.a, begin}, e) })
		}
		if err != nil {
			if c, _ := codeOf(err); c != driver.NotReady {
				p.err = d.Check(err, "the profiler could not read the device's times")
			}
			break
		}
		k := &w.of.op.Kernels[w.kernel]
		k.Begin, k.End, k.Timed = begin, end, true
		d.ReleaseEvent(w.a, true)
		d.releaseEvents(w.marks)
		p.marks -= len(w.marks)
		if ok {
			d.ReleaseEvent(from.e, true)
		}
		p.last[w.stream] = point{w.b, end}
		done++
	}
	n := copy(p.work, p.work[done:])
	clear(p.work[n:])
	p.work = p.work[:n]
}

// readParts reads the times of all parts, or of none. All are measured from one event, so that no part ends after the whole.
func (w *timedWork) readParts(when func(e driver.Event) (time.Duration, error)) error {
	at := make([]time.Duration, len(w.marks))
	for i, e := range w.marks {
		var err error
		if at[i], err = when(e); err != nil {
			return err
		}
	}
	for i, r := range w.parts {
		k := &r.of.op.Kernels[r.kernel]
		k.Begin, k.End, k.Timed = at[i], at[i+1], true
	}
	return nil
}

// giveBack gives the events of w back. The run of a twin records its events as it reaches them, so giveBack waits for the run first: else
// the run could overwrite the record of an event's next user. The wait fails only on a device that is lost or closed, which records
// nothing.
func (p *Profiler) giveBack(w *timedWork) {
	d := p.dev
	if len(w.marks) > 0 {
		_ = (&backend{d}).relaxed(func(t driver.Thread) error { return d.dev.EventSynchronize(t, w.b) })
	}
	d.ReleaseEvent(w.a, true)
	d.ReleaseEvent(w.b, true)
	d.releaseEvents(w.marks)
}

// release gives the events back.
func (p *Profiler) release() {
	d := p.dev
	if p.base != 0 {
		d.ReleaseEvent(p.base, true)
		p.base = 0
	}
	for i := range p.work {
		p.giveBack(&p.work[i])
	}
	//tenon:unordered the pool has no order that anybody sees
	for _, e := range p.last {
		d.ReleaseEvent(e.e, true)
	}
	p.work, p.last, p.marks = nil, nil, 0
}

// Stop waits for the device's work, ends the profiler and returns what it saw.
func (p *Profiler) Stop() (*profile.Profile, error) {
	waited := p.dev.Synchronize()
	out, err := p.stop(waited)
	if e := p.dropTwins(); err == nil && e != nil {
		return nil, e
	}
	return out, err
}

// stop is Stop without the twins; waited is the error of waiting for the device.
func (p *Profiler) stop(waited error) (*profile.Profile, error) {
	d, err := p.dev, waited
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		if e := d.Lost(); e != nil {
			return nil, e
		}
		return nil, fault.New(fault.Invalid, "the profiler was stopped before; start another")
	}
	took := time.Since(p.began)
	if err == nil {
		p.read()
		err = p.err
	}
	ops := p.ops
	if err != nil {
		p.end()
		return nil, err
	}
	memory, segments := p.history(), p.segments.end()
	p.end()
	out := &profile.Profile{Format: 1, Device: profile.DeviceOf(d.info.Name), Began: p.began, Duration: took, Frames: slices.Clip(p.list),
		Memory: memory, Segments: segments}
	out.Device.Ordinal = d.info.Ordinal
	for _, o := range ops {
		if o.op.End < 0 {
			o.op.End = took
		}
		out.Ops = append(out.Ops, o.op)
	}
	return out, nil
}

// end ends the profiler. The caller holds p.mu.
func (p *Profiler) end() {
	p.ended = true
	p.dev.profiler.CompareAndSwap(p, nil)
	p.remove()
	p.release()
	p.ops, p.blocks, p.live = nil, nil, nil // graphs may keep its operations, and so p, alive
}

// endProfile ends the profiler of a device that is being closed.
func (d *Device) endProfile() {
	if p := d.profiler.Load(); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.ended {
			p.end()
		}
	}
}
