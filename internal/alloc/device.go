package alloc

import (
	"slices"
	"sync"
	"sync/atomic"

	"tenon.dev/fault"
)

// Options are the parts of a Device that its maker supplies. The zero value works.
type Options struct {
	// Index is the device's number in messages.
	Index int
	// Settings are the parsed settings string; nil means DefaultSettings.
	Settings *Settings
	// Collect asks the Go garbage collector to free what the program has dropped, and says whether memory may have come
	// free. It is called without the allocator's lock, never under a pool diversion or in a capture: before a new segment is
	// asked for (Pressure.Failing false; the callee decides whether it is worth it) and before an out-of-memory is reported
	// (Failing true). nil means never.
	Collect func(Pressure) bool
	// Processes tells who uses the device's memory, for the out-of-memory message; nil where that is not known.
	Processes func() []ProcessMemory
	// Table finds blocks by address for RawAlloc and RawFree; devices may share one. nil means a Table of its own.
	Table *Table
}

// Pressure is what Collect is told.
type Pressure struct {
	Wanted   uint64 // bytes of the segment that the allocator needs
	Reserved uint64 // bytes it holds from the device
	Failing  bool   // an out-of-memory error follows unless something comes free
}

// ProcessMemory is what one process uses of a device.
type ProcessMemory struct {
	PID   int
	Bytes uint64
	Self  bool // this process
}

// OOMObserver is called when an allocation fails, without the allocator's lock: with the device's number, the segment size
// wanted, the allowed bytes (the device's total where no fraction is set) and the device's free bytes.
type OOMObserver func(device int, wanted, allowed, free uint64)

// Device is the caching allocator of one device. It is safe for concurrent use.
type Device struct {
	backend Backend
	virtual VirtualMemory // nil where the backend has none
	async   StreamOrdered // nil under the native back end
	options Options

	collector atomic.Pointer[collector]
	uncached  atomic.Bool

	mu          sync.Mutex
	settings    Settings
	gc          bool // garbage collection can run: threshold and fraction are set
	expand      bool // new memory comes in expandable segments: the setting is on and the backend can
	stats       Stats
	reserved    uint64 // bytes held from the device
	total       uint64 // the device's memory, 0 until asked for
	fraction    float64
	fractionSet bool
	allowed     uint64 // bytes; only with fractionSet

	small, large pool
	private      []*privatePool // by id
	diversions   []diversion
	segments     []*segment // by address

	queues      []*eventQueue // by stream
	outstanding int           // events in the queues
	deferred    []*Block      // freed, events to be recorded at the next poll outside diversions

	callbacks []func() bool
	observers []OOMObserver
	ring      ring
	spare     *Block // dead blocks for reuse, linked by next
	ranks     uint64 // state of drawRank
}

// New returns an allocator over b that holds no memory yet. Settings that name the back end cudaMallocAsync need a b that is StreamOrdered.
func New(b Backend, o Options) *Device {
	d := &Device{backend: b, options: o, fraction: 1}
	d.virtual, _ = b.(VirtualMemory)
	if o.Settings != nil {
		d.apply(*o.Settings)
	} else {
		d.apply(DefaultSettings())
	}
	if d.settings.Backend == BackendAsync {
		d.async, _ = b.(StreamOrdered)
	}
	if d.options.Table == nil {
		d.options.Table = new(Table)
	}
	d.small = pool{kind: smallPool}
	d.large = pool{kind: largePool}
	return d
}

// Alloc returns a block of at least size bytes for use on stream s; other streams that use it must be named by RecordStream.
// Under a pool diversion whose filter takes s it comes from that private pool. Size 0 gives a nil block, which Free takes.
// If the device has no room after all caches are flushed the error is a *fault.Error of kind OutOfMemory with PyTorch's
// message; any other failure of the backend is returned as it is. The block stays live until Free.
func (d *Device) Alloc(size uint64, s Stream) (*Block, error) { return d.AllocFrom(PoolID{}, size, s) }

// AllocFrom is Alloc from the private pool id, which must be held, unless a diversion takes s; the zero id is the default pool.
func (d *Device) AllocFrom(id PoolID, size uint64, s Stream) (*Block, error) {
	if size == 0 {
		return nil, nil
	}
	if size >= sizeLimit {
		return nil, fault.New(fault.OutOfMemory, "CUDA out of memory. Tried to allocate more than 1EB memory")
	}
	context := d.gather(LevelState)
	if d.uncached.Load() {
		return d.allocUncached(size, s, context)
	}
	if d.async != nil {
		return d.allocAsync(size, s, context)
	}
	b, failed, err := d.alloc(id, size, s, context)
	if failed != nil {
		return nil, failed.report(d.options.Index)
	}
	return b, err
}

// alloc is AllocFrom but for the report of a failure. It takes the lock, which it may drop in between; whatever function of the program it calls
// may panic, and leaves the allocator usable.
func (d *Device) alloc(id PoolID, requested uint64, s Stream, context any) (*Block, *outOfMemory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.outstanding+len(d.deferred) > 0 {
		if err := d.poll(context); err != nil {
			return nil, nil, err
		}
	}
	size := d.settings.round(requested)
	p, err := d.choosePool(id, size, s)
	if err != nil {
		return nil, nil, err
	}
	l := p.silo(s)
	b := d.takeFree(l, size)
	if b == nil {
		var failed *outOfMemory
		r := request{size: size, segment: segmentSize(size), silo: l, context: context}
		if b, failed, err = d.climb(&r); b == nil {
			return nil, failed, err
		}
	}
	return d.handOut(b, size, requested, context), nil, nil
}

// takeFree takes the best fitting free block of the silo out of its list: the smallest that is large enough, at the lowest
// address. It returns nil if there is none, or if the limits of oversize blocks forbid it.
func (d *Device) takeFree(l *silo, size uint64) *Block {
	if d.gc {
		l.pool.lookups++
	}
	link := l.free.find(size)
	if link == nil {
		return nil
	}
	b := *link
	if b.expandable() {
		if b = d.fitExpandable(l, b); b == nil {
			return nil
		}
	}
	if limit := d.settings.MaxSplitSize; limit != infinite {
		if size < limit && b.size >= limit || size >= limit && b.size >= size+d.settings.MaxNonSplitRounding {
			return nil
		}
	}
	if b == *link {
		unlink(link)
	} else {
		l.free.remove(b)
	}
	return b
}

// splits says whether block b is split to serve size bytes.
func (d *Device) splits(b *Block, size uint64) bool {
	rest := b.size - size
	if b.silo.pool.kind == smallPool || d.expand {
		return rest >= minBlockSize
	}
	return size < d.settings.MaxSplitSize && rest > smallSize
}

// handOut makes an allocation of b, which is in no list, returning the rest to its list if b is split.
func (d *Device) handOut(b *Block, size, requested uint64, context any) *Block {
	return d.carve(b, size, requested, d.splits(b, size), context)
}

// carve is handOut with the decision to split made by the caller.
func (d *Device) carve(b *Block, size, requested uint64, split bool, context any) *Block {
	kind := b.silo.pool.kind
	wasSplit := b.isSplit()
	if split {
		rest := b
		b = d.splitFront(rest, size)
		rest.silo.insertFree(rest)
	}
	st := &d.stats
	if !b.expandable() {
		switch {
		case wasSplit && split:
			st.InactiveSplitBytes.sub(kind, int64(size))
		case split:
			st.InactiveSplitBytes.add(kind, int64(b.next.size))
			st.InactiveSplit.add(kind, 1)
		case wasSplit:
			st.InactiveSplitBytes.sub(kind, int64(b.size))
			st.InactiveSplit.sub(kind, 1)
		}
	}
	b.allocated = true
	b.oversize = b.size >= d.settings.MaxSplitSize
	b.requested = requested
	b.context = context
	d.record(ActionAlloc, b.addr, requested, b.silo.stream, context)
	n := int64(b.size)
	st.Allocation.add(kind, 1)
	st.AllocatedBytes.add(kind, n)
	st.Active.add(kind, 1)
	st.ActiveBytes.add(kind, n)
	st.RequestedBytes.add(kind, int64(requested))
	if b.oversize {
		st.OversizeAllocations.add(1)
	}
	return b
}

// Free ends an allocation. The memory is reused at once on the block's own stream, and elsewhere never; if RecordStream named
// other streams it is held back until the work they have queued so far is complete, which later allocations find out.
// b is dead from now on, even if an error is returned: that error is a failing event, and the block stays held back until a
// later call has recorded it. Freeing nil does nothing, freeing twice is an error.
func (d *Device) Free(b *Block) error {
	if b == nil {
		return nil
	}
	if b.async {
		return d.freeAsync(b)
	}
	context := d.gather(LevelAll)
	if b.seg == nil && b.allocated {
		return d.freeUncached(b)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.free(b, context)
}

func (d *Device) free(b *Block, context any) error {
	if !b.allocated {
		return fault.New(fault.Invalid, "invalid device pointer: %#x is not allocated; it was freed before", b.addr)
	}
	d.forgetRaw(b)
	kind := b.silo.pool.kind
	b.allocated = false
	d.stats.Allocation.sub(kind, 1)
	d.stats.AllocatedBytes.sub(kind, int64(b.size))
	if b.oversize {
		d.stats.OversizeAllocations.sub(1)
	}
	d.record(ActionFreeRequested, b.addr, b.requested, b.silo.stream, either(context, b.context))
	if len(b.uses) == 0 {
		d.complete(b, context)
		return nil
	}
	if len(d.diversions) > 0 {
		d.deferred = append(d.deferred, b)
		return nil
	}
	err := d.recordEvents(b)
	if err != nil {
		d.deferred = append(d.deferred, b)
	}
	return err
}

// either returns the first context that is one.
func either(a, b any) any {
	if a != nil {
		return a
	}
	return b
}

// complete returns a block that nothing uses any more to its free list, merged with its free neighbours.
func (d *Device) complete(b *Block, context any) {
	d.record(ActionFreeCompleted, b.addr, b.requested, b.silo.stream, either(context, b.context))
	b.context = nil
	kind := b.silo.pool.kind
	size, requested := int64(b.size), int64(b.requested)
	var blocks, bytes int64 // change of inactive split blocks
	if n := d.absorb(b, b.prev); n > 0 {
		blocks, bytes = blocks-1, bytes-int64(n)
	}
	if n := d.absorb(b, b.next); n > 0 {
		blocks, bytes = blocks-1, bytes-int64(n)
	}
	b.silo.insertFree(b)
	if b.isSplit() {
		blocks, bytes = blocks+1, bytes+int64(b.size)
	}
	st := &d.stats
	if !b.expandable() {
		st.InactiveSplit.change(kind, blocks)
		st.InactiveSplitBytes.change(kind, bytes)
	}
	st.Active.sub(kind, 1)
	st.ActiveBytes.sub(kind, size)
	st.RequestedBytes.sub(kind, requested)
}

// RecordStream tells that work queued on s uses b, so that Free waits for it. b's own stream is ignored, as is nil.
func (d *Device) RecordStream(b *Block, s Stream) error {
	if b == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !b.allocated {
		return fault.New(fault.Invalid, "invalid device pointer: %#x is not allocated; record its streams before it is freed", b.addr)
	}
	if s == b.silo.stream || slices.Contains(b.uses, s) {
		return nil
	}
	b.uses = append(b.uses, s)
	if len(d.diversions) > 0 {
		if _, captured := d.backend.Capturing(s); captured {
			b.captureUses = append(b.captureUses, s)
		}
	}
	return nil
}

// EmptyCache waits for all outstanding events and returns every segment without a live block to the device: of the default
// pool and of private pools that no one holds. While a diversion is active it waits for nothing.
// After an error of the backend the segments not yet returned stay cached.
func (d *Device) EmptyCache() error {
	context := d.gather(LevelAll)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.async != nil {
		return d.emptyAsync()
	}
	return d.flush(context)
}

// SetSettings replaces the settings from now on. Blocks and segments stay as they are.
func (d *Device) SetSettings(s Settings) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.apply(s)
}

func (d *Device) apply(s Settings) {
	d.settings = s
	d.gc = d.fractionSet && s.GCThreshold > 0
	d.expand = s.ExpandableSegments && d.virtual != nil
}

// UpdateSettings changes the settings as text says, by PyTorch's rules (Settings.Update). A text that is wrong changes nothing.
func (d *Device) UpdateSettings(text string) (Settings, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.settings.Update(text)
	if err != nil {
		return Settings{}, err
	}
	d.apply(s)
	return s, nil
}

// Settings returns the settings in force.
func (d *Device) Settings() Settings {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settings
}

// SetMemoryFraction limits the bytes this allocator holds from the device to a fraction of the device's memory, 0 to 1.
// What it already holds stays.
func (d *Device) SetMemoryFraction(f float64) error {
	if !(f >= 0 && f <= 1) {
		return fault.New(fault.Invalid, "Invalid fraction value: %v. Allowed range: 0~1", f)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	total, err := d.deviceTotal()
	if err != nil {
		return err
	}
	d.fraction, d.fractionSet = f, true
	d.allowed = uint64(f * float64(total))
	d.gc = d.settings.GCThreshold > 0
	return nil
}

// MemoryFraction returns what SetMemoryFraction set, or 1.
func (d *Device) MemoryFraction() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fraction
}

func (d *Device) deviceTotal() (uint64, error) {
	if d.total == 0 {
		_, total, err := d.backend.MemInfo()
		if err != nil {
			return 0, err
		}
		d.total = total
	}
	return d.total, nil
}

// AddFreeMemoryCallback adds a function that is asked to free memory when no cached block fits, before the device is asked
// for a new segment. It is called without the allocator's lock and says whether it freed something.
func (d *Device) AddFreeMemoryCallback(f func() bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.callbacks = append(d.callbacks, f)
}

// AddOOMObserver adds an observer of failing allocations.
func (d *Device) AddOOMObserver(f OOMObserver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.observers = append(d.observers, f)
}
