// Package alloc holds the allocators of device and pinned host memory, which cache by PyTorch's policy, decision for decision. It knows
// blocks, pools and streams, and must not depend on CUDA, drivers, tensors or dtypes: all it needs is a Backend.
//
// # Use
//
//	d := alloc.New(backend, alloc.Options{Index: 0})
//	b, err := d.Alloc(bytes, stream)  // *Block: Addr, Size, Requested, Stream, Pool
//	err = d.RecordStream(b, other)    // other streams that use it
//	err = d.Free(b)                   // reused at once on its stream, elsewhere after its events
//	addr, err := d.RawAlloc(bytes, stream); err = d.RawFree(addr)
//	err = d.EmptyCache()
//
//	g := alloc.NewGuards(d, inspected, line)  // zones behind every block, poison: an Allocator over an Allocator
//	l := alloc.NewLeaks(g)                    // what is live: l.AllocFrom, l.Free, l.Close
//
// Settings: ParseSettings, Settings.Update, SetSettings, SetMemoryFraction, SetCaching. Figures: Stats, Stats.Flatten,
// ResetPeakStats, ResetAccumulatedStats. Private pools: NewPoolID, NewPool, AllocFrom, RetainPool, BeginAllocateToPool, EndAllocateToPool,
// EmptyPool, ReleasePool, PoolSegments, PoolLive, Checkpoint, Restore. History: RecordHistory, Snapshot. Out of memory:
// Options.Collect, AddFreeMemoryCallback, AddOOMObserver. Pinned memory: NewHost, with Alloc, RecordStream, Free, EmptyCache.
//
// # Three strategies and two decorators
//
// An Allocator is a source of device memory: AllocFrom, Free, EmptyCache. There are three, and none depends on another:
//
//   - caching (caching.go, and all files about segments) keeps freed memory, by PyTorch's policy;
//   - ordered (ordered.go) leaves that to the device's own pool: the back end cudaMallocAsync;
//   - direct (direct.go) takes each block from the device, so that a memory checker sees it.
//
// They share the books (books.go): the lock, statistics, history, fraction, private pools, and the report of an out-of-memory. A Device is
// the public interface. Its settings choose between caching and ordered when it is made; SetCaching(false) replaces either by direct until
// SetCaching(true). A request goes to the strategy in force, a freed block to the one that its pool names, which is the one that allocated
// it.
//
// Guards and Leaks are Allocators over any Allocator. Neither knows the Allocator below it, so each works over the other.
//
// # How it works
//
// Memory comes from the device in segments (20 MiB for most requests) that are split into blocks. A block belongs to the stream its segment
// was made for: memory freed by the host is reused on that stream at once, because the stream runs in order, and never by other streams.
// Every pool (small requests, large ones; default, private) keeps per stream a tree of free blocks by size and address, and takes the best
// fit, the lowest address on ties. Freed blocks merge with free neighbours. Segments go back only when the device has no more room, or on
// EmptyCache.
//
// When no free block fits, the request climbs a ladder: registered callbacks, garbage collection of old cached blocks, a new segment,
// release of oversize blocks, wait for all events and release of everything cached; only then does it fail with an out-of-memory error.
//
// Under the back end cudaMallocAsync the Device only counts, orders frees after further streams, and keeps the fraction; it needs a Backend
// that is StreamOrdered.
//
// # Concurrency
//
// All methods may be called from any goroutine. One lock per device is held throughout a call, even during the device's own allocation and
// release, as in PyTorch; it is dropped around Options.Collect, free-memory callbacks and observers, and around the device's malloc under
// release_lock_on_cudamalloc. A block's owner must order RecordStream before Free.
//
// # Errors
//
// After any error of the backend the allocator is consistent and a later call can succeed: memory that the device did not take back stays
// cached, memory that it did not give is not counted, and blocks whose events could not be recorded stay held back.
package alloc
