package alloc

import (
	"errors"
	"math/bits"
	"slices"
	"sync"
	"time"

	"tenon.dev/fault"
)

// HostBlock is the handle of an allocation of pinned memory. After Free the handle is dead.
type HostBlock struct {
	addr, size, requested uint64
	allocated             bool
	events                int
	uses                  []Stream
}

// Addr returns the host address.
func (b *HostBlock) Addr() uint64 { return b.addr }

// Size returns the bytes the block spans, a power of two.
func (b *HostBlock) Size() uint64 { return b.size }

// Requested returns the bytes the caller asked for.
func (b *HostBlock) Requested() uint64 { return b.requested }

// HostStats are the statistics of pinned memory, in blocks of a power of two bytes.
type HostStats struct {
	Allocations    Stat // blocks held, in use or cached
	AllocatedBytes Stat
	ActiveRequests Stat // blocks in use or waiting for streams
	ActiveBytes    Stat
	HostAllocs     int64 // calls of the backend
	HostFrees      int64
	HostAllocTime  Duration
	HostFreeTime   Duration
}

// Duration is the time that calls of the backend took, in microseconds.
type Duration struct {
	Total, Max, Min int64 // of all calls, of the longest and of the shortest
	Count           int64
}

func (s *Duration) add(d time.Duration) {
	n := d.Microseconds()
	if s.Count == 0 || n < s.Min {
		s.Min = n
	}
	s.Total += n
	s.Max = max(s.Max, n)
	s.Count++
}

// Host is a caching allocator of pinned host memory. It rounds sizes to powers of two, never splits blocks, and reuses a freed block when
// the streams that copy from or to it are done. It is safe for concurrent use.
type Host struct {
	backend HostBackend

	mu      sync.Mutex
	threads int              // threads that touch the pages of registered memory; 0: memory is allocated page-locked
	free    [64][]*HostBlock // by the logarithm of the size
	blocks  map[uint64]*HostBlock
	pending []pendingHostEvent // in the order they were recorded
	unsent  []*HostBlock       // freed, with events that could not be recorded yet
	stats   HostStats
}

type pendingHostEvent struct {
	event Event
	block *HostBlock
}

// NewHost returns an allocator over b that holds no memory yet.
func NewHost(b HostBackend) *Host {
	return &Host{backend: b, blocks: map[uint64]*HostBlock{}}
}

// Alloc returns a block of at least size bytes of pinned memory with undefined content. Size 0 gives a nil block.
func (h *Host) Alloc(size uint64) (*HostBlock, error) {
	if size == 0 {
		return nil, nil
	}
	if size >= sizeLimit {
		return nil, fault.New(fault.OutOfMemory, "%s of pinned memory is more than any host has", FormatSize(size))
	}
	class := bits.Len64(size - 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.poll(); err != nil {
		return nil, err
	}
	var b *HostBlock
	if list := h.free[class]; len(list) > 0 {
		b = list[len(list)-1]
		h.free[class] = list[:len(list)-1]
	} else {
		var err error
		if b, err = h.newBlock(1 << class); err != nil {
			return nil, err
		}
	}
	b.allocated, b.requested = true, size
	h.stats.ActiveRequests.add(1)
	h.stats.ActiveBytes.add(int64(b.size))
	return b, nil
}

// newBlock gets a block from the backend. If there is no room, it empties the cache and tries once more. It drops the lock meanwhile.
func (h *Host) newBlock(size uint64) (*HostBlock, error) {
	addr, err := h.malloc(size)
	if isOutOfMemory(err) {
		if err := h.emptyCache(); err != nil {
			return nil, err
		}
		addr, err = h.malloc(size)
	}
	if isOutOfMemory(err) {
		return nil, fault.Wrap(fault.OutOfMemory, err, "no room for %s of pinned host memory", FormatSize(size))
	}
	if err != nil {
		return nil, err
	}
	b := &HostBlock{addr: addr, size: size}
	h.blocks[addr] = b
	h.stats.Allocations.add(1)
	h.stats.AllocatedBytes.add(int64(size))
	return b, nil
}

// SetRegister says how new blocks are made: page-locked from the start, or as ordinary memory that is page-locked after that many threads
// have touched its pages, each at least one. Cached blocks are reused in either case.
func (h *Host) SetRegister(on bool, threads int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.threads = 0
	if on {
		h.threads = max(threads, 1)
	}
}

func (h *Host) malloc(size uint64) (uint64, error) {
	threads := h.threads
	h.mu.Unlock()
	start := time.Now()
	addr, err := h.mallocBy(size, threads)
	took := time.Since(start)
	h.mu.Lock()
	if err == nil {
		h.stats.HostAllocs++
		h.stats.HostAllocTime.add(took)
	}
	return addr, err
}

func (h *Host) mallocBy(size uint64, threads int) (uint64, error) {
	r, ok := h.backend.(HostRegisterer)
	if threads == 0 || !ok {
		return h.backend.MallocHost(size)
	}
	const page = 4096
	if size < page*uint64(threads) {
		threads = 1
	}
	return r.RegisterHost(size, threads)
}

// RecordStream notes that work queued on s, such as a non-blocking copy, uses b, so that b is not reused before that work is done.
func (h *Host) RecordStream(b *HostBlock, s Stream) error {
	if b == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !b.allocated {
		return fault.New(fault.Invalid, "the pinned block at %#x is not allocated; record its streams before it is freed", b.addr)
	}
	if !slices.Contains(b.uses, s) {
		b.uses = append(b.uses, s)
	}
	return nil
}

// Find returns the live block that begins at addr.
func (h *Host) Find(addr uint64) (*HostBlock, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.blocks[addr]
	if b == nil || !b.allocated {
		return nil, false
	}
	return b, true
}

// Free ends an allocation. The memory is reused when the work that RecordStream named is complete. An error is that of an event that could
// not be recorded: the block is dead all the same, and held back until a later call has recorded it. Freeing nil does nothing.
func (h *Host) Free(b *HostBlock) error {
	if b == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !b.allocated {
		return fault.New(fault.Invalid, "the pinned block at %#x is not allocated; it was freed before", b.addr)
	}
	b.allocated = false
	err := h.recordEvents(b)
	if err != nil {
		h.unsent = append(h.unsent, b)
	} else if b.events == 0 {
		h.complete(b)
	}
	return err
}

func (h *Host) recordEvents(b *HostBlock) error {
	for len(b.uses) > 0 {
		n := len(b.uses) - 1
		e, err := h.backend.AcquireEvent()
		if err != nil {
			return err
		}
		if err := h.backend.RecordEvent(e, b.uses[n]); err != nil {
			h.backend.ReleaseEvent(e)
			return err
		}
		b.uses = b.uses[:n]
		b.events++
		h.pending = append(h.pending, pendingHostEvent{e, b})
	}
	return nil
}

// complete puts a block that nothing uses any more on its free list.
func (h *Host) complete(b *HostBlock) {
	class := bits.Len64(b.size - 1)
	h.free[class] = append(h.free[class], b)
	h.stats.ActiveRequests.sub(1)
	h.stats.ActiveBytes.sub(int64(b.size))
}

// poll frees the blocks whose events are complete, oldest first up to the first that is not.
func (h *Host) poll() error {
	for len(h.unsent) > 0 {
		b := h.unsent[0]
		if err := h.recordEvents(b); err != nil {
			return err
		}
		h.unsent = slices.Delete(h.unsent, 0, 1)
	}
	done := 0
	defer func() { h.pending = slices.Delete(h.pending, 0, done) }()
	for _, p := range h.pending {
		ok, err := h.backend.QueryEvent(p.event)
		if err != nil || !ok {
			return err
		}
		h.backend.ReleaseEvent(p.event)
		done++
		if p.block.events--; p.block.events == 0 {
			h.complete(p.block)
		}
	}
	return nil
}

// EmptyCache polls once and returns every free block to the system. A block that cannot be returned stays cached.
func (h *Host) EmptyCache() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.emptyCache()
}

func (h *Host) emptyCache() error {
	if err := h.poll(); err != nil {
		return err
	}
	var idle []*HostBlock
	for class := range h.free {
		idle = append(idle, h.free[class]...)
		h.free[class] = nil
	}
	for _, b := range idle {
		delete(h.blocks, b.addr)
	}
	var errs []error
	for _, b := range idle {
		took, err := h.release(b.addr)
		if err != nil {
			errs = append(errs, err)
			class := bits.Len64(b.size - 1)
			h.blocks[b.addr] = b
			h.free[class] = append(h.free[class], b)
			continue
		}
		h.stats.Allocations.sub(1)
		h.stats.AllocatedBytes.sub(int64(b.size))
		h.stats.HostFrees++
		h.stats.HostFreeTime.add(took)
	}
	return errors.Join(errs...)
}

// release calls the backend without the lock.
func (h *Host) release(addr uint64) (time.Duration, error) {
	h.mu.Unlock()
	defer h.mu.Lock()
	start := time.Now()
	err := h.backend.FreeHost(addr)
	return time.Since(start), err
}

// Stats returns a copy of the statistics.
func (h *Host) Stats() HostStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats
}

// ResetPeakStats sets every peak to the current value.
func (h *Host) ResetPeakStats() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.stats.all() {
		s.Peak = s.Current
	}
}

// ResetAccumulatedStats sets the sums of increases and decreases, the counters and the times to 0.
func (h *Host) ResetAccumulatedStats() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.stats.all() {
		s.Allocated, s.Freed = 0, 0
	}
	h.stats.HostAllocs, h.stats.HostFrees = 0, 0
	h.stats.HostAllocTime, h.stats.HostFreeTime = Duration{}, Duration{}
}

func (s *HostStats) all() [4]*Stat {
	return [...]*Stat{&s.Allocations, &s.AllocatedBytes, &s.ActiveRequests, &s.ActiveBytes}
}
