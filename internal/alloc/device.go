package alloc

import (
	"sync/atomic"

	"tenon.dev/fault"
)

// Allocator is a source of device memory. There are three strategies (caching, the device's own pool, none), and decorators that add
// checks to any: Guards and Leaks. It is safe for concurrent use.
type Allocator interface {
	// AllocFrom returns a block of at least size > 0 bytes for use on stream s, from the private pool id or, with the zero id, from none.
	AllocFrom(id PoolID, size uint64, s Stream) (*Block, error)
	// Free ends an allocation; b is not nil.
	Free(b *Block) error
	// EmptyCache returns the memory that is held and not in use to the device.
	EmptyCache() error
}

// strategy is an Allocator that is not a decorator.
type strategy interface {
	Allocator
	lacks(what string) error
	divert() error // these are called with the lock held
	endDivert()
	addOwn(s *Stats)
	resetPeaks()
}

// Options configure a Device. The zero value works.
type Options struct {
	// Index is the device's number in messages.
	Index int
	// Settings are the parsed settings string; nil means DefaultSettings.
	Settings *Settings
	// Collect asks the Go garbage collector to free what the program has dropped, and says whether memory may have become free. It is
	// called without the allocator's lock, never under a pool diversion or in a capture: before a new segment is asked for
	// (Pressure.Failing false; the callee decides whether it is worth it) and before an out-of-memory is reported (Failing true). nil means
	// never.
	Collect func(Pressure) bool
	// Processes lists the processes that use the device's memory, for the out-of-memory message; nil if that is not known.
	Processes func() []ProcessMemory
	// Table finds blocks by address for RawAlloc and RawFree; devices may share one. nil means a new Table.
	Table *Table
}

// Pressure is the state of the allocator that Collect gets.
type Pressure struct {
	Wanted   uint64 // bytes of the segment that the allocator needs
	Reserved uint64 // bytes it holds from the device
	Failing  bool   // an out-of-memory error follows unless memory becomes free
}

// ProcessMemory is one process's use of a device's memory.
type ProcessMemory struct {
	PID   int
	Bytes uint64
	Self  bool // this process
}

// OOMObserver is called when an allocation fails, without the allocator's lock: with the device's number, the segment size wanted, the
// allowed bytes (the device's total if no fraction is set) and the device's free bytes.
type OOMObserver func(device int, wanted, allowed, free uint64)

// Device is the memory of one device: an Allocator that passes each request to the strategy in force, and each freed block to the one that
// it came from. It is safe for concurrent use.
type Device struct {
	caching // the cache, private pools and segments; empty under cudaMallocAsync
	// strategy is the one that the settings chose when the Device was made. on holds it, off the one that SetCaching(false) uses instead,
	// and inForce points to one of the two.
	strategy strategy
	on, off  Allocator
	inForce  atomic.Pointer[Allocator]
}

// New returns an allocator over b that holds no memory yet. Settings that name the back end cudaMallocAsync need a b that is StreamOrdered.
func New(b Backend, o Options) *Device {
	d := &Device{}
	d.caching.init(b, o)
	d.strategy = &d.caching
	if pool, ok := b.(StreamOrdered); ok && d.settings.Backend == BackendAsync {
		d.strategy = newOrdered(&d.books, pool)
	}
	d.on, d.off = d.strategy, newDirect(&d.books, d.strategy)
	d.inForce.Store(&d.on)
	return d
}

// Alloc returns a block of at least size bytes for use on stream s; other streams that use it must be named by RecordStream. Under a pool
// diversion whose filter accepts s, it comes from that private pool. Size 0 gives a nil block, which Free accepts. If the device has no
// room after all caches are flushed the error is a *fault.Error of kind OutOfMemory with PyTorch's message; any other failure of the
// backend is returned as it is. The block stays live until Free.
func (d *Device) Alloc(size uint64, s Stream) (*Block, error) { return d.AllocFrom(PoolID{}, size, s) }

// AllocFrom is Alloc from the private pool id, which must be held, unless a diversion accepts s; the zero id is the default pool.
func (d *Device) AllocFrom(id PoolID, size uint64, s Stream) (*Block, error) {
	if size == 0 {
		return nil, nil
	}
	if size >= sizeLimit {
		return nil, fault.New(fault.OutOfMemory, "CUDA out of memory. Tried to allocate more than 1EB memory")
	}
	return (*d.inForce.Load()).AllocFrom(id, size, s)
}

// Free ends an allocation. The memory can be reused at once on the block's own stream, and never on another. If RecordStream named other
// streams, it is held back until the work that they have queued so far is complete, which later allocations check. b is dead from now on,
// even if an error is returned: the error is that of an event that could not be recorded, and the block is held back until a later call has
// recorded it. Freeing nil does nothing, freeing twice is an error.
func (d *Device) Free(b *Block) error {
	switch {
	case b == nil:
		return nil
	case b.seg != nil: // of the cache. Its silo and pool are not looked at without the lock: others write beside what would be read.
		return d.caching.Free(b)
	case b.silo == nil:
		return freedBefore(b)
	}
	return b.silo.pool.of.Free(b)
}

// EmptyCache waits for all outstanding events and returns every segment without a live block to the device: of the default
// pool and of private pools that no one holds. While a diversion is active it waits for nothing.
// After an error of the backend the segments not yet returned stay cached.
func (d *Device) EmptyCache() error { return (*d.inForce.Load()).EmptyCache() }

// SetCaching switches the cache off or on again. While it is off, allocations go straight to the device and back, and count in no
// statistics. Private pools still work, and PoolSegments lists them; memory that a capture allocated stays after its free until no one
// holds its pool. Each block is freed by the strategy that allocated it.
func (d *Device) SetCaching(on bool) {
	if on {
		d.inForce.Store(&d.on)
	} else {
		d.inForce.Store(&d.off)
	}
}

// Caching reports whether the cache is on.
func (d *Device) Caching() bool { return d.inForce.Load() == &d.on }

// SetMemoryFraction limits the bytes this allocator holds from the device to a fraction of the device's memory, 0 to 1.
// What it already holds stays.
func (d *Device) SetMemoryFraction(f float64) error {
	if !(f >= 0 && f <= 1) {
		return fault.New(fault.Invalid, "Invalid fraction value: %v. Allowed range: 0~1", f)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.setFraction(f); err != nil {
		return err
	}
	d.apply(d.settings)
	return nil
}

// Stats returns a copy of the statistics.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats.read()
	d.strategy.addOwn(&s)
	s.MaxSplitSize = int64(d.settings.MaxSplitSize)
	if d.settings.MaxSplitSize == infinite {
		s.MaxSplitSize = -1
	}
	return s
}

// ResetPeakStats sets every peak to the current value.
func (d *Device) ResetPeakStats() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.resetPeaks()
	d.strategy.resetPeaks()
}
