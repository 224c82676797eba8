// Package alloc holds the caching allocators of device and pinned host memory: PyTorch's policy, decision for decision.
// It knows blocks, pools and streams, and may not know CUDA, drivers, tensors or dtypes: all it needs of a device is a Backend.
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
// Settings: ParseSettings, Settings.Update, SetSettings, SetMemoryFraction, SetCaching. Figures: Stats, Stats.Flatten,
// ResetPeakStats, ResetAccumulatedStats. Private pools: NewPoolID, NewPool, AllocFrom, RetainPool, BeginAllocateToPool, EndAllocateToPool,
// EmptyPool, ReleasePool, PoolLive, Checkpoint, Restore. History: RecordHistory, Snapshot. Out of memory:
// Options.Collect, AddFreeMemoryCallback, AddOOMObserver. Pinned memory: NewHost, with Alloc, RecordStream, Free, EmptyCache.
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
// Settings that name the back end cudaMallocAsync leave caching to the device's own pool, which allocates in the order of streams
// (StreamOrdered); the Device then only counts, orders frees after further streams, and keeps the fraction.
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
