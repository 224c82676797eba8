package replay

import (
	"cmp"
	"fmt"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
)

// Options are the conditions under which a program is replayed.
type Options struct {
	// Settings is the settings string, in the grammar of PYTORCH_CUDA_ALLOC_CONF; "" means the defaults.
	Settings string
	// Memory is the device memory available to the program, in bytes; 0 means unlimited.
	Memory uint64
	// Fraction is the part of Memory that the allocator may hold, above 0 and up to 1; 0 means no limit.
	Fraction float64
}

// Result is the cost of a replay, in bytes unless stated otherwise.
type Result struct {
	Settings      string  `json:"settings"`            // the settings string
	Recorded      bool    `json:"recorded"`            // these are the recording's settings, or have the same effect
	PeakAllocated uint64  `json:"peak_allocated"`      // most bytes of blocks in use
	PeakRequested uint64  `json:"peak_requested"`      // most bytes requested for blocks in use or pending free
	PeakReserved  uint64  `json:"peak_reserved"`       // most bytes held from the driver
	EndReserved   uint64  `json:"end_reserved"`        // bytes held from the driver at the end
	Fragmentation float64 `json:"fragmentation"`       // 1 - PeakAllocated / PeakReserved
	DriverCalls   int64   `json:"driver_calls"`        // Calls.Total
	Calls         Calls   `json:"calls"`               // calls of the driver by kind
	Retries       int64   `json:"retries"`             // times the cache was emptied for lack of memory
	OOMs          int64   `json:"ooms"`                // allocations that failed, in the recording or not
	FirstOOM      *OOM    `json:"first_oom,omitempty"` // the first of them; nil if there is none
	Rescued       int64   `json:"rescued"`             // allocations that failed in the recording, and do not here
}

// OOM is an allocation that failed in a replay.
type OOM struct {
	Event   int    `json:"event"`   // of the trace
	Bytes   uint64 `json:"bytes"`   // requested
	Message string `json:"message"` // the allocator's
}

// Check is the outcome of a replay under the recording's own settings.
type Check struct {
	Result
	// Allocs is the number of allocations of the trace, Equal the number of those that got the recording's address.
	Allocs int `json:"allocs"`
	Equal  int `json:"equal"`
	// DriverSteps is the number of times that the trace's allocator called the driver (memory returned in one go counts once), Followed
	// the number of these that the replay repeated in order before the first difference.
	DriverSteps int `json:"driver_steps"`
	Followed    int `json:"followed"`
	// Segments is the number of segments in the snapshot, and FinalEqual says whether the replay ends with the same, block for block.
	Segments   int  `json:"segments"`
	FinalEqual bool `json:"final_equal"`
	// Differences are sentences, one for each respect in which the replay differs from the recording; none if it is exact.
	Differences []string `json:"differences"`
}

// Exact reports whether the replay took every decision of the recording.
func (c Check) Exact() bool { return len(c.Differences) == 0 }

// replay is one run in progress.
type replay struct {
	p       *Program
	d       *alloc.Device
	dev     *device
	blocks  []*alloc.Block
	waits   map[uint32]int // stand-ins of the blocks held
	limited bool
	result  Result
	check   *Check // nil in a free run
}

// effect returns the part of s that affects device memory, so that two strings with the same effect compare equal.
func effect(s alloc.Settings) alloc.Settings {
	s.Text, s.ReleaseLock = "", false
	s.PinnedHostRegister, s.PinnedRegisterThreads, s.PinnedBackgroundThreads = false, 0, false
	return s
}

func (p *Program) usable() error {
	if p == nil || p.pools == nil {
		return fault.New(fault.Invalid, "the program is nil or a zero value; use one that Read returned")
	}
	return nil
}

// expandable reports whether the private pool id had expandable segments in the recording although the settings have none, as the pools of
// compiled regions do.
func (p *Program) expandable(id alloc.PoolID) bool {
	if p.settings.ExpandableSegments {
		return false
	}
	return slices.ContainsFunc(p.final, func(g snapshot.Segment) bool { return g.Expandable && alloc.PoolID(g.Pool) == id }) ||
		slices.ContainsFunc(p.start, func(g alloc.SegmentInfo) bool { return g.Expandable && g.Pool == id })
}

// begin makes an empty allocator.
func (p *Program) begin(o Options) (*replay, error) {
	s, err := alloc.ParseSettings(o.Settings)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "the settings %q", o.Settings)
	}
	if s.Backend != alloc.BackendNative {
		return nil, fault.New(fault.Invalid, "the settings %q choose the driver's own allocator, whose decisions cannot be replayed; "+
			"compare backend:native", o.Settings)
	}
	total := o.Memory
	if total == 0 {
		total = Unlimited
	}
	r := &replay{p: p, dev: newDevice(total, p.base+1<<40), blocks: make([]*alloc.Block, p.blocks), waits: map[uint32]int{},
		limited: o.Memory != 0}
	r.d = alloc.New(r.dev, alloc.Options{Index: p.Device, Settings: &s})
	r.result.Settings, r.result.Recorded = o.Settings, o.Settings == p.Recorded.Settings || effect(s) == effect(p.settings)
	if o.Fraction != 0 {
		if err := r.d.SetMemoryFraction(o.Fraction); err != nil {
			return nil, err
		}
	}
	for _, id := range p.pools[1:] {
		hold := r.d.RetainPool
		if p.expandable(id) {
			hold = r.d.NewExpandablePool
		}
		if err := hold(id); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Run replays the program. Settings that do not parse are an error; allocations that fail are part of the result. A run under the
// recording's settings begins with the recorded segments; any other begins by allocating the live blocks anew.
func (p *Program) Run(opts ...Options) (Result, error) {
	o, err := only("Program.Run", opts)
	if err != nil {
		return Result{}, err
	}
	if err := p.usable(); err != nil {
		return Result{}, err
	}
	r, err := p.begin(o)
	if err != nil {
		return Result{}, err
	}
	if r.result.Recorded {
		err = r.adopt()
	} else {
		err = r.allocStart()
	}
	if err == nil {
		err = r.run()
	}
	if err != nil {
		return Result{}, err
	}
	return r.result, nil
}

// Check replays the program under the recording's settings, on a device that gives the recording's addresses and is full where the
// recording's was.
func (p *Program) Check() (Check, error) {
	if err := p.usable(); err != nil {
		return Check{}, err
	}
	r, err := p.begin(Options{Settings: p.settings.Text})
	if err != nil {
		return Check{}, err
	}
	c := &Check{Allocs: p.Recorded.Allocs, DriverSteps: len(p.steps), Segments: len(p.final)}
	r.check = c
	r.result.Settings, r.result.Recorded = p.Recorded.Settings, true
	steps := slices.Clone(p.steps)
	for i := range steps {
		steps[i].back = slices.Clone(steps[i].back)
	}
	r.dev.script = newScript(steps)
	r.dev.reported = rangeMemory(p.start, p.steps)
	if err := r.adopt(); err != nil {
		return Check{}, err
	}
	if err := r.run(); err != nil {
		return Check{}, err
	}
	r.conclude()
	return *c, nil
}

// adopt begins with the recorded segments.
func (r *replay) adopt() error {
	live, err := r.d.Adopt(r.p.start)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "the segments before the trace contradict each other")
	}
	copy(r.blocks, live)
	for i := range r.p.start {
		g := &r.p.start[i]
		r.dev.held[g.Addr] = max(g.TotalSize, 1)
		r.dev.used += g.TotalSize
		if g.Expandable {
			_, total, _ := r.dev.MemInfo()
			size := total / 8 * 9
			if i+1 < len(r.p.start) {
				size = min(size, r.p.start[i+1].Addr-g.Addr)
			}
			r.dev.addRange(g.Addr, size)
		}
	}
	return nil
}

// allocStart begins by allocating the live blocks.
func (r *replay) allocStart() error {
	for i, b := range r.p.live {
		if err := r.alloc(&op{block: uint32(i), size: b.Requested, stream: r.p.streams[i], pool: r.p.startIn[i]}); err != nil {
			return err
		}
	}
	return nil
}

// run carries out the operations and gathers the figures.
func (r *replay) run() error {
	for i := range r.p.ops {
		if err := r.step(&r.p.ops[i]); err != nil {
			return fault.Wrap(fault.System, err, "event %d of the trace cannot be replayed under %q", r.p.ops[i].event, r.result.Settings)
		}
	}
	st := r.d.Stats()
	res := &r.result
	res.PeakAllocated, res.PeakRequested = uint64(st.AllocatedBytes.All().Peak), uint64(st.RequestedBytes.All().Peak)
	res.PeakReserved, res.EndReserved = uint64(st.ReservedBytes.All().Peak), uint64(st.ReservedBytes.All().Current)
	if res.PeakReserved > 0 {
		res.Fragmentation = 1 - float64(res.PeakAllocated)/float64(res.PeakReserved)
	}
	res.Retries, res.Calls, res.DriverCalls = st.AllocRetries, r.dev.calls, r.dev.calls.Total()
	return nil
}

func (r *replay) step(o *op) error {
	switch o.kind {
	case opAlloc:
		return r.alloc(o)
	case opTry:
		return r.try(o)
	case opFree:
		return r.d.Free(r.take(o.block))
	case opHold:
		b := r.take(o.block)
		if b == nil {
			return nil
		}
		i := r.dev.borrow()
		r.waits[o.block] = i
		if err := r.d.RecordStream(b, firstPseudo+alloc.Stream(i)); err != nil {
			return err
		}
		return r.d.Free(b)
	case opDone:
		if i, ok := r.waits[o.block]; ok {
			delete(r.waits, o.block)
			r.dev.complete(i)
		}
	case opEmpty:
		return r.d.EmptyCache()
	}
	return nil
}

// take returns a block to be freed, or nil if its allocation failed here.
func (r *replay) take(id uint32) *alloc.Block {
	b := r.blocks[id]
	r.blocks[id] = nil
	return b
}

// malloc allocates in a pool. A nil block without an error means out of memory.
func (r *replay) malloc(o *op) (*alloc.Block, error) {
	b, err := r.diverted(o)
	if fault.KindOf(err) != fault.OutOfMemory {
		return b, err
	}
	if r.dev.script.following() && o.kind == opAlloc { // the recording's allocation succeeded: go on without the script
		r.dev.script.leave("no cached block is found for %d bytes, and no new segment is taken", o.size)
		if b, err = r.diverted(o); fault.KindOf(err) != fault.OutOfMemory {
			return b, err
		}
	}
	r.result.OOMs++
	if r.result.FirstOOM == nil {
		r.result.FirstOOM = &OOM{Event: int(o.event), Bytes: o.size, Message: err.Error()}
	}
	return nil, nil
}

// diverted allocates in the operation's pool.
func (r *replay) diverted(o *op) (*alloc.Block, error) {
	if s := r.dev.script; s != nil {
		s.stream, s.large = o.stream, o.size > smallSize
	}
	if o.pool == 0 {
		return r.d.Alloc(o.size, o.stream)
	}
	id := r.p.pools[o.pool]
	if err := r.d.BeginAllocateToPool(id, alloc.StreamFilter(o.stream)); err != nil {
		return nil, err
	}
	b, err := r.d.Alloc(o.size, o.stream)
	if e := r.d.EndAllocateToPool(id); e != nil {
		return nil, e
	}
	if e := r.d.ReleasePool(id); e != nil { // the use of this diversion
		return nil, e
	}
	return b, err
}

func (r *replay) alloc(o *op) error {
	b, err := r.malloc(o)
	r.blocks[o.block] = b
	if r.check != nil && b != nil {
		switch {
		case b.Addr() == o.addr:
			r.check.Equal++
		case len(r.check.Differences) == 0:
			r.differ("event %d: %d bytes at %#x, in the recording at %#x", o.event, o.size, b.Addr(), o.addr)
		}
	}
	return err
}

// try repeats an allocation that failed in the recording. On an unlimited device it would show nothing.
func (r *replay) try(o *op) error {
	if r.check == nil && !r.limited {
		return nil
	}
	if s := r.dev.script; s != nil {
		s.failing = int(o.event)
		defer func() { s.failing = 0 }()
	}
	b, err := r.malloc(o)
	if b != nil {
		r.result.Rescued++
		return r.d.Free(b)
	}
	return err
}

func (r *replay) differ(format string, args ...any) {
	r.check.Differences = append(r.check.Differences, fmt.Sprintf(format, args...))
}

// conclude compares the end with the snapshot's.
func (r *replay) conclude() {
	c, s, rec := r.check, r.dev.script, &r.p.Recorded
	c.Result = r.result
	c.Followed = s.at
	if s.left != "" && s.event < 0 {
		r.differ("after its last driver call the replay leaves the recording: %s", s.left)
	} else if s.left != "" {
		r.differ("at event %d the replay leaves the recording: %s", s.event, s.left)
	} else if n := s.next(); n != nil {
		r.differ("the replay never comes to event %d, where the recording calls the driver", n.event)
	}
	if c.PeakReserved != rec.PeakReserved {
		r.differ("peak reserved is %s, in the recording %s", sizes(c.PeakReserved, rec.PeakReserved)...)
	}
	if c.PeakRequested != rec.PeakRequested {
		r.differ("peak requested is %s, in the recording %s", sizes(c.PeakRequested, rec.PeakRequested)...)
	}
	if int(c.OOMs) != rec.OOMs {
		r.differ("%d allocations fail, in the recording %d", c.OOMs, rec.OOMs)
	}
	have := r.d.Segments()
	c.FinalEqual = true
	for i := range min(len(have), len(r.p.final)) {
		if err := sameSegment(&have[i], &r.p.final[i]); err != nil {
			c.FinalEqual = false
			r.differ("at the end, %v", err)
			break
		}
	}
	if len(have) != len(r.p.final) {
		c.FinalEqual = false
		r.differ("it ends with %d segments, the recording with %d", len(have), len(r.p.final))
	}
}

// sizes writes two numbers of bytes with units, or in full if units would hide their difference.
func sizes(a, b uint64) []any {
	if x, y := alloc.FormatSize(a), alloc.FormatSize(b); x != y {
		return []any{x, y}
	}
	return []any{fmt.Sprintf("%d bytes", a), fmt.Sprint(b)}
}

// sameSegment compares a segment with the snapshot's. It does not compare the former request of a free block, since a trace that begins
// in the middle does not tell it, nor whether the segment could grow.
func sameSegment(h *alloc.SegmentInfo, w *snapshot.Segment) error {
	kind := "small"
	if h.Large {
		kind = "large"
	}
	switch {
	case h.Addr != w.Addr || h.TotalSize != w.TotalSize || kind != w.Type || uint64(h.Stream) != w.Stream || h.Pool != alloc.PoolID(w.Pool):
		return fmt.Errorf(
			"a %s segment of %d bytes at %#x, stream %d, pool %v is a %s one of %d at %#x, stream %d, pool %v in the snapshot",
			kind, h.TotalSize, h.Addr, h.Stream, h.Pool, w.Type, w.TotalSize, w.Addr, w.Stream, w.Pool)
	case h.Allocated != w.Allocated || h.Active != w.Active || h.Requested != w.Requested:
		return fmt.Errorf("of the segment at %#x %d bytes are allocated, %d active, %d requested; %d, %d, %d in the snapshot",
			h.Addr, h.Allocated, h.Active, h.Requested, w.Allocated, w.Active, w.Requested)
	case len(h.Blocks) != len(w.Blocks):
		return fmt.Errorf("the segment at %#x has %d blocks, %d in the snapshot", h.Addr, len(h.Blocks), len(w.Blocks))
	}
	for i, b := range h.Blocks {
		v := w.Blocks[i]
		if b.Addr != v.Addr || b.Size != v.Size || b.State.String() != v.State.String() || b.State != alloc.Inactive &&
			b.Requested != v.Requested {
			return fmt.Errorf("block %d of the segment at %#x is %d bytes, %d requested, %s; %d, %d, %s in the snapshot",
				i, h.Addr, b.Size, b.Requested, b.State, v.Size, v.Requested, v.State)
		}
	}
	return nil
}

// Sort orders results: fewest failures first, then the least memory reserved, then the fewest calls of the driver.
func Sort(results []Result) {
	slices.SortStableFunc(results, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.OOMs, b.OOMs), cmp.Compare(a.PeakReserved, b.PeakReserved), cmp.Compare(a.DriverCalls, b.DriverCalls),
			cmp.Compare(len(a.Settings), len(b.Settings)))
	})
}

// Fit returns the smallest memory, in bytes and a multiple of 2 MiB, on which the program runs under the settings without failures other
// than the recording's. It replays the program about a dozen times.
func (p *Program) Fit(settings string, fraction float64) (uint64, error) {
	const step = smallPage
	free, err := p.Run(Options{Settings: settings})
	if err != nil {
		return 0, err
	}
	low, high := free.PeakAllocated/step, (free.PeakReserved+step-1)/step // low fails or is unknown, high succeeds
	for low < high {
		middle := (low + high) / 2
		r, err := p.Run(Options{Settings: settings, Memory: middle * step, Fraction: fraction})
		if err != nil {
			return 0, err
		}
		if int(r.OOMs) > p.Recorded.OOMs {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return high * step, nil
}
