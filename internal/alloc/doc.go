// Package alloc holds the allocators of device and pinned host memory, which cache by PyTorch's policy, decision for decision.
// It knows blocks, pools and streams, and must not depend on CUDA, drivers, tensors or dtypes: all it needs of a device is a Backend.
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
// An Allocator is a source of device memory: AllocFrom, Free, EmptyCache. There are three, and nothing in one asks for another:
//
//   - caching (caching.go, and all that knows segments) keeps what is freed, by PyTorch's policy;
//   - ordered (ordered.go) leaves that to the device's own pool: the back end cudaMallocAsync;
//   - direct (direct.go) takes each block from the device, so that a memory checker sees it.
//
// What they share are the books (books.go): the lock, statistics, history, fraction, private pools, and the report of an out-of-memory. A
// Device is the face. Its settings choose between caching and ordered when it is made, SetCaching puts direct in the place of either and
// takes it away again. A request goes to the strategy in force, a block back to the one that its pool names, so blocks keep the way they
// were allocated.
//
// Guards and Leaks are Allocators over any Allocator. Neither knows what it stands on, so each works with the other.
//
// # How it works
//
// Memory comes from the device in segments (20 MiB for most requests) that are split into blocks. A block belongs to the
// stream its segment was made for: memory freed by the host is reused on that stream at once, because the stream runs in
// order, and by other streams never. Every pool (small requests, large ones; default, private) keeps per stream a tree of
// free blocks by size and address, and takes the best fit, the lowest address on ties. Freed blocks merge with free neighbours.
// Segments go back only when the device has no more room, or on EmptyCache.
//
// When no free block fits, the request climbs a ladder: registered callbacks, garbage collection of old cached blocks, a new
// segment, release of oversize blocks, wait for all events and release of everything cached; only then is it an out-of-memory.
//
// Under the back end cudaMallocAsync the Device only counts, orders frees after further streams, and keeps the fraction; it needs a Backend
// that is StreamOrdered.
//
// # Concurrency
//
// All methods may be called from any goroutine. One lock per device is held throughout a call, also over the device's own
// allocation and release, as in PyTorch; it is dropped around Options.Collect, free-memory callbacks and observers, and around
// the device's malloc under release_lock_on_cudamalloc. A block's owner must order RecordStream before Free.
//
// # Errors
//
// After any error of the backend the allocator is consistent and a later call can succeed: what the device kept stays
// cached, what it did not give is not counted, blocks whose events could not be recorded stay held back.
package alloc
