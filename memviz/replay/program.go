// Package replay reruns the trace of a memory snapshot through Tenon's caching allocator, on a simulated device of any size and under any
// settings, to compare their memory use. It must not depend on drivers, tensors or how results are shown.
//
// A Program is the requests of the traced program to its allocator: allocations, frees, calls that empty the cache. Run replays it under
// given settings. Check replays it under the recording's own, on a device that puts every segment where the recording's did, and reports
// whether the replay then takes the same decisions: each block at its address, each driver call in the same order, the same segments at
// the end.
//
// # What a trace does not tell
//
//   - What was before it. A trace that begins in the middle (a ring that was full, or a recording that was switched on late) says which
//     blocks were live then, since they are freed in it or still live at its end, and which segments. Check begins with exactly these; Run
//     under other settings allocates the live blocks anew, in the order of their addresses.
//   - Which streams used a block besides its own; only when it was freed at last. Replays hold the block until then.
//   - Which pool a segment was of that was returned before the snapshot: it counts as the default pool. A private pool is held throughout.
//   - Whether the program emptied the cache or the allocator did because memory ran out. Stacks tell where they were recorded; without
//     them, memory that goes back right before a new segment comes counts as the allocator's, which a replay on another device may not do.
//   - What the program would have done without an allocation that failed, or with one that now succeeds. A failed one is repeated on a
//     device whose size is given, and freed at once if it succeeds; the blocks that fail in a replay are left out of it.
//   - The size of the device, and what else used it.
package replay

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
)

type opKind uint8

const (
	opAlloc opKind = iota // block
	opTry                 // an allocation that failed in the recording
	opFree                // block
	opHold                // block is freed, and held until opDone
	opDone                // block is used by no stream any more
	opEmpty               // the cache is emptied
)

// op is one request to the allocator.
type op struct {
	size   uint64
	addr   uint64 // where the recording placed the block
	stream alloc.Stream
	block  uint32
	event  uint32 // of the trace
	pool   uint16 // index of Program.pools
	kind   opKind
}

// Program is the requests of a trace to an allocator. It is immutable: replays may run concurrently.
type Program struct {
	// Device is the device's number in the snapshot.
	Device int
	// Traces are all traces of the snapshot, by device.
	Traces []Trace
	// Recorded are the figures of the trace itself.
	Recorded Recorded
	// Notes are sentences about what this trace does not tell.
	Notes []string

	settings alloc.Settings // the recording's
	start    []alloc.SegmentInfo
	live     []alloc.BlockInfo // of start, in order; they have the lowest numbers
	streams  []alloc.Stream    // of live
	startIn  []uint16          // pools of live
	pools    []alloc.PoolID    // the first is the default pool
	ops      []op
	blocks   int // numbered
	steps    []driverStep
	final    []snapshot.Segment
	base     uint64 // above every recorded address
}

// Trace is the history of one device.
type Trace struct {
	Device int `json:"device"` // its number
	Events int `json:"events"` // entries
}

// Recorded are the figures of a trace itself, without any replay. Bytes of blocks are requested bytes: a trace has no others.
type Recorded struct {
	Settings      string        `json:"settings"`       // the settings string, as Tenon writes it
	Events        int           `json:"events"`         // entries of the trace
	Span          time.Duration `json:"span_ns"`        // from the first to the last
	Allocs        int           `json:"allocs"`         // allocations that succeeded
	AllocBytes    uint64        `json:"alloc_bytes"`    // their sum
	Frees         int           `json:"frees"`          // frees that completed
	FreeBytes     uint64        `json:"free_bytes"`     // their sum
	PeakRequested uint64        `json:"peak_requested"` // most bytes in use, including blocks pending free
	PeakReserved  uint64        `json:"peak_reserved"`  // most bytes held from the driver
	DriverAllocs  int           `json:"driver_allocs"`  // segments allocated, runs of pages mapped
	DriverFrees   int           `json:"driver_frees"`   // segments freed, runs of pages unmapped
	OOMs          int           `json:"ooms"`           // allocations that failed
	LiveAtStart   int           `json:"live_at_start"`  // blocks in use when the trace begins
	StartBytes    uint64        `json:"start_bytes"`    // requested for them
	StartReserved uint64        `json:"start_reserved"` // bytes held from the driver then
	EndReserved   uint64        `json:"end_reserved"`   // bytes held from the driver at the end
	Private       int           `json:"private_pools"`  // private pools that the trace shows
	Held          int           `json:"held"`           // frees that waited for other streams
}

// ReadOptions are the options of Read.
type ReadOptions struct {
	// Device is the number of the device whose trace is read; nil means the one with the most events.
	Device *int
	// Progress, if not nil, is called now and then with the number of bytes read.
	Progress func(read int64)
}

// Read reads a memory snapshot, a pickle as torch.cuda.memory._dump_snapshot or Tenon's DumpSnapshot writes it, plain or compressed with
// gzip, and returns the program in the trace of one of its devices. A file that is not a snapshot is an error that says why, one without a
// trace of the device an error that says how to record it.
func Read(r io.Reader, opts ...ReadOptions) (*Program, error) {
	o, err := only("Read", opts)
	if err != nil {
		return nil, err
	}
	s, err := snapshot.Read(r, snapshot.ReadOptions{Progress: o.Progress})
	if err != nil {
		return nil, err
	}
	return newProgram(s, o.Device)
}

func newProgram(s *snapshot.Snapshot, wanted *int) (*Program, error) {
	var traces []Trace
	var with []string
	device, longest := 0, 0
	for i, t := range s.Traces {
		if len(t) > 0 {
			traces = append(traces, Trace{i, len(t)})
			with = append(with, fmt.Sprint(i))
		}
		if len(t) > longest {
			device, longest = i, len(t)
		}
	}
	if longest == 0 {
		return nil, fault.New(fault.Invalid, "the snapshot holds no trace; record the history, with RecordMemoryHistory and Enabled "+
			"\"all\", before the work whose memory is of interest")
	}
	if wanted != nil {
		if device = *wanted; !slices.ContainsFunc(traces, func(t Trace) bool { return t.Device == device }) {
			return nil, fault.New(fault.Invalid, "the snapshot has no trace of device %d, but of %s; choose one of these", device,
				strings.Join(with, ", "))
		}
	}
	p := &Program{Device: device, Traces: traces, pools: []alloc.PoolID{{}}}
	p.settings, p.Recorded.Settings = recordedSettings(s.Settings)
	events := s.Traces[device]
	r := reader{p: p, s: s, events: events, addr: map[uint64]uint32{}, poolOf: map[int]uint16{},
		held: map[uint64]uint32{}, waiting: map[uint32]bool{}, index: map[alloc.PoolID]uint16{{}: 0}, empty: map[snapshot.StackID]bool{}}
	r.backward()
	if err := r.forward(); err != nil {
		return nil, err
	}
	for i := range s.Segments {
		if s.Segments[i].Device == device {
			p.final = append(p.final, s.Segments[i])
			p.Recorded.EndReserved += s.Segments[i].TotalSize
		}
	}
	slices.SortFunc(p.final, func(a, b snapshot.Segment) int {
		if a.Addr < b.Addr {
			return -1
		}
		return 1
	})
	p.Recorded.Private = len(p.pools) - 1
	p.Recorded.Events = len(events)
	p.Recorded.Span = time.Duration(events[len(events)-1].TimeUS-events[0].TimeUS) * time.Microsecond
	r.notes()
	return p, nil
}

// reader turns a trace into a Program.
type reader struct {
	p       *Program
	s       *snapshot.Snapshot
	events  []snapshot.Event
	poolOf  map[int]uint16 // of allocations in private pools, by event
	index   map[alloc.PoolID]uint16
	addr    map[uint64]uint32 // live blocks
	sizes   []uint64          // requested, by block
	held    map[uint64]uint32 // freed blocks that other streams use
	waiting map[uint32]bool   // blocks freed before the trace began, live in the replay until the trace says that they are free
	odd     int               // events that contradict others

	// whether the allocator waited for the run of completed frees up to event upTo; by stack, whether it empties the cache
	upTo   int
	waited bool
	empty  map[snapshot.StackID]bool

	late            []op // operations to append after the next allocation
	pressed, unsure int  // runs of memory returned for lack of memory, and those whose reason only their position tells
	returned        int  // segments returned
	inUse, reserved uint64
}

// pool returns the index of a pool.
func (r *reader) pool(id alloc.PoolID) uint16 {
	i, ok := r.index[id]
	if !ok {
		i = uint16(len(r.p.pools))
		r.index[id] = i
		r.p.pools = append(r.p.pools, id)
	}
	return i
}

// backward finds the state when the trace began.
func (r *reader) backward() {
	p := r.p
	l := newLayout(r.s, p.Device)
	for i := len(r.events) - 1; i >= 0; i-- {
		if id := l.undo(&r.events[i]); id != (alloc.PoolID{}) {
			r.poolOf[i] = r.pool(id)
		}
	}
	p.start = addBegins(l.segments(p.settings.Round, p.settings.MaxSplitSize, l.ends(r.events)), r.events)
	r.odd += l.odd
	for i := range p.start {
		g := &p.start[i]
		r.reserved += g.TotalSize
		for _, b := range g.Blocks {
			if b.State == alloc.Inactive {
				continue
			}
			id := uint32(len(p.live))
			if l.live[b.Addr].pending {
				r.held[b.Addr] = id
				r.waiting[id] = true
			} else {
				r.addr[b.Addr] = id
			}
			p.live = append(p.live, b)
			p.streams = append(p.streams, g.Stream)
			p.startIn = append(p.startIn, r.pool(g.Pool))
			r.sizes = append(r.sizes, b.Requested)
			r.inUse += b.Requested
		}
		p.base = max(p.base, g.Addr+g.TotalSize)
	}
	p.Recorded.LiveAtStart, p.Recorded.StartBytes, p.Recorded.StartReserved = len(p.live), r.inUse, r.reserved
	p.Recorded.PeakRequested, p.Recorded.PeakReserved = r.inUse, r.reserved
}

// forward makes the operations.
func (r *reader) forward() error {
	rec := &r.p.Recorded
	for i := range r.events {
		e := &r.events[i]
		if e.Action != snapshot.ActionOOM { // the address of an OOM event is a size
			r.p.base = max(r.p.base, e.Addr+e.Size)
		}
		switch e.Action {
		case snapshot.ActionAlloc:
			if err := r.alloc(i, e); err != nil {
				return err
			}
		case snapshot.ActionFreeRequested:
			r.free(i, e)
		case snapshot.ActionFreeCompleted:
			r.done(i, e)
		case snapshot.ActionSegmentAlloc, snapshot.ActionSegmentMap:
			rec.DriverAllocs++
			r.reserved += e.Size
			rec.PeakReserved = max(rec.PeakReserved, r.reserved)
			r.p.steps = append(r.p.steps, driverStep{event: i, addr: e.Addr, size: e.Size, stream: alloc.Stream(e.Stream),
				mapped: e.Action == snapshot.ActionSegmentMap})
		case snapshot.ActionSegmentFree, snapshot.ActionSegmentUnmap:
			rec.DriverFrees++
			r.returned++
			r.reserved -= min(e.Size, r.reserved)
			if i > 0 && takesBack(r.events[i-1].Action) {
				continue // takenBack has handled it
			}
			r.takenBack(i)
		case snapshot.ActionOOM:
			rec.OOMs++
			r.emit(op{kind: opTry, size: e.Size, stream: alloc.Stream(e.Stream), event: uint32(i)})
			r.flush()
		}
	}
	r.p.blocks = len(r.sizes)
	var pending []op // throughout
	for _, id := range slices.Sorted(maps.Keys(r.waiting)) {
		pending = append(pending, op{kind: opHold, block: id})
	}
	r.p.ops = slices.Insert(r.p.ops, 0, pending...)
	return nil
}

func takesBack(a snapshot.Action) bool {
	return a == snapshot.ActionSegmentFree || a == snapshot.ActionSegmentUnmap
}

func (r *reader) alloc(i int, e *snapshot.Event) error {
	if e.Size == 0 || e.Size > Unlimited {
		return fault.New(fault.Invalid, "event %d of the trace allocates %d bytes: the file is damaged", i, e.Size)
	}
	if old, ok := r.addr[e.Addr]; ok { // its free is missing
		r.odd++
		r.emit(op{kind: opFree, block: old, event: uint32(i)})
		r.inUse -= r.sizes[old]
	}
	id := uint32(len(r.sizes))
	r.addr[e.Addr] = id
	r.sizes = append(r.sizes, e.Size)
	r.emit(op{kind: opAlloc, block: id, size: e.Size, addr: e.Addr, stream: alloc.Stream(e.Stream), pool: r.poolOf[i], event: uint32(i)})
	r.flush()
	rec := &r.p.Recorded
	rec.Allocs++
	rec.AllocBytes += e.Size
	r.inUse += e.Size
	rec.PeakRequested = max(rec.PeakRequested, r.inUse)
	return nil
}

func (r *reader) emit(o op) { r.p.ops = append(r.p.ops, o) }

// free frees a block, immediately or when the trace says that other streams are done with it.
func (r *reader) free(i int, e *snapshot.Event) {
	id, ok := r.addr[e.Addr]
	if !ok {
		r.odd++
		return
	}
	delete(r.addr, e.Addr)
	if i+1 < len(r.events) && r.events[i+1].Action == snapshot.ActionFreeCompleted && r.events[i+1].Addr == e.Addr {
		r.emit(op{kind: opFree, block: id, event: uint32(i)})
		return
	}
	r.p.Recorded.Held++
	r.held[e.Addr] = id
	r.emit(op{kind: opHold, block: id, event: uint32(i)})
}

// done handles a completed free.
func (r *reader) done(i int, e *snapshot.Event) {
	rec := &r.p.Recorded
	rec.Frees++
	rec.FreeBytes += e.Size
	r.inUse -= min(e.Size, r.inUse)
	if i > 0 && r.events[i-1].Action == snapshot.ActionFreeRequested && r.events[i-1].Addr == e.Addr {
		return
	}
	id, ok := r.held[e.Addr]
	if !ok {
		r.odd++
		return
	}
	o := op{kind: opDone, block: id, event: uint32(i)}
	late := r.waitedFor(i)
	delete(r.held, e.Addr)
	if r.waiting[id] {
		o.kind = opFree
		delete(r.waiting, id)
	}
	if late {
		r.late = append(r.late, o)
	} else {
		r.emit(o)
	}
}

// waitedFor reports whether the frees that complete from event i on did so because the allocator, short of memory, waited for all of
// them. It had then already searched its cache in vain, so the next allocation of the replay must not find these blocks by querying
// events.
func (r *reader) waitedFor(i int) bool {
	if i >= r.upTo {
		r.upTo, r.waited = i, false
		for r.upTo < len(r.events) && r.events[r.upTo].Action == snapshot.ActionFreeCompleted {
			r.upTo++
		}
		if r.upTo < len(r.events) {
			a := r.events[r.upTo].Action
			r.waited = a == snapshot.ActionOOM
			if takesBack(a) {
				_, asked, _ := r.run(r.upTo)
				r.waited = !asked
			}
		}
	}
	return r.waited && r.upTo-i >= len(r.held)
}

// flush frees the blocks that the allocator waited for, after the allocation that made it wait.
func (r *reader) flush() {
	r.p.ops = append(r.p.ops, r.late...)
	r.late = r.late[:0]
}

// run returns the end of the run of returned memory from event i on, whether the program asked for it, and whether stacks tell so.
func (r *reader) run(i int) (end int, asked, told bool) {
	for end = i; end < len(r.events) && takesBack(r.events[end].Action); end++ {
		e := &r.events[end]
		told = told || e.Stack != 0
		asked = asked || e.Stack != 0 && r.empties(e.Stack)
	}
	if asked || end == len(r.events) {
		return end, true, told
	}
	switch r.events[end].Action {
	// for lack of memory: new memory or the failure follows
	case snapshot.ActionSegmentAlloc, snapshot.ActionSegmentMap, snapshot.ActionOOM:
		return end, false, told
	}
	return end, true, told
}

// takenBack records the run of memory returned to the driver from event i on, and whether the program or the allocator caused it.
func (r *reader) takenBack(i int) {
	end, asked, told := r.run(i)
	step := driverStep{event: i, asked: asked}
	for _, e := range r.events[i:end] {
		step.back = append(step.back, span{e.Addr, e.Size})
	}
	r.p.steps = append(r.p.steps, step)
	if !told {
		r.unsure++
	}
	if asked {
		r.emit(op{kind: opEmpty, event: uint32(i)})
	} else {
		r.pressed++
	}
}

// empties reports whether a stack is that of a call to empty the cache.
func (r *reader) empties(id snapshot.StackID) bool {
	if is, ok := r.empty[id]; ok {
		return is
	}
	is := false
	for f := range r.s.Stacks.All(id) {
		is = is || strings.Contains(f.Name, "empty_cache") || strings.Contains(f.Name, "emptyCache") ||
			strings.Contains(f.Name, "EmptyCache")
	}
	r.empty[id] = is
	return is
}

// notes records what the trace does not tell.
func (r *reader) notes() {
	rec := &r.p.Recorded
	note := func(format string, args ...any) { r.p.Notes = append(r.p.Notes, fmt.Sprintf(format, args...)) }
	if rec.StartReserved > 0 {
		note("The trace begins in the middle: %s for %s requested in segments of %s were there before. Under the recording's settings "+
			"the replay begins with these segments; under others it begins by allocating the blocks anew.",
			count(rec.LiveAtStart, "live block"), alloc.FormatSize(rec.StartBytes), alloc.FormatSize(rec.StartReserved))
	}
	if rec.Held > 0 {
		note("%s waited for other streams. The trace does not say for which, only how long; the replay holds the blocks as long.",
			count(rec.Held, "free"))
	}
	if rec.Private > 0 {
		note("%s: held throughout the replay, since a trace does not say when a graph is dropped.", count(rec.Private, "private pool"))
		if r.returned > 0 {
			note("%s went back before the snapshot, of pools that are not known; the replay takes them as the default pool's.",
				count(r.returned, "segment"))
		}
	}
	if r.unsure > 0 {
		note("Memory went back to the driver %s without a stack: where a new segment followed at once it is taken as want of memory, "+
			"else as a call to empty the cache.", times(r.unsure))
	}
	if r.pressed > 0 {
		note("The recording's allocator returned cached memory %s for want of memory; a replay does so only if its own device is full.",
			times(r.pressed))
	}
	if r.odd > 0 {
		note("The trace contradicts itself in %s, since entries are missing; the replay makes the best of it.", count(r.odd, "event"))
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// only returns the options of a function, which takes them once or not at all.
func only[T any](name string, opts []T) (opt T, err error) {
	if len(opts) > 1 {
		return opt, fault.New(fault.Invalid, "%s: options are given %d times; give one %T", name, len(opts), opt)
	}
	if len(opts) == 1 {
		opt = opts[0]
	}
	return opt, nil
}
