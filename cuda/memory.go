package cuda

import (
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/rt"
)

// MemInfo returns the device's free and total memory in bytes, over all processes, as the driver reports them. Memory that the allocator
// caches is not free.
func (d *Device) MemInfo() (free, total uint64, err error) {
	defer returned(&err)
	d.memory("MemInfo")
	return d.rt().MemInfo()
}

// memory returns the device's memory for op, once the work that compiled regions have deferred has taken its part of it.
func (d *Device) memory(op string) *alloc.Device {
	dev := d.rt()
	_ = dev.RunDeferred(op, true)
	return dev.Memory()
}

// MemoryAllocated returns the bytes of live allocations: Stats' "allocated_bytes.all.current". A device that was closed has none.
func (d *Device) MemoryAllocated() int64 {
	if d.rt().Closing() {
		return 0
	}
	s := d.memory("MemoryAllocated").Stats()
	return s.AllocatedBytes.All().Current
}

// MaxMemoryAllocated returns the peak of live bytes since the last ResetPeakStats.
func (d *Device) MaxMemoryAllocated() int64 {
	s := d.memory("MaxMemoryAllocated").Stats()
	return s.AllocatedBytes.All().Peak
}

// MemoryReserved returns the bytes that the allocator holds from the driver, in use or cached: Stats' "reserved_bytes.all.current". A
// device that was closed holds none.
func (d *Device) MemoryReserved() int64 {
	if d.rt().Closing() {
		return 0
	}
	s := d.memory("MemoryReserved").Stats()
	return s.ReservedBytes.All().Current
}

// MaxMemoryReserved returns the peak of the bytes that the allocator held since the last ResetPeakStats.
func (d *Device) MaxMemoryReserved() int64 {
	s := d.memory("MaxMemoryReserved").Stats()
	return s.ReservedBytes.All().Peak
}

// Stats returns the allocator's statistics under PyTorch's names, such as "allocated_bytes.all.current".
func (d *Device) Stats() map[string]int64 {
	s := d.memory("Stats").Stats()
	return s.Flatten()
}

// ResetPeakStats sets every peak to the current value.
func (d *Device) ResetPeakStats() { d.memory("ResetPeakStats").ResetPeakStats() }

// ResetAccumulatedStats sets the sums of all increases and decreases, and the counters of retries, failures and driver calls, to 0.
func (d *Device) ResetAccumulatedStats() { d.memory("ResetAccumulatedStats").ResetAccumulatedStats() }

// SummaryOpt are the options of MemorySummary.
type SummaryOpt struct {
	// Abbreviated leaves out the rows of the small and large pools.
	Abbreviated bool
}

// MemorySummary returns the statistics as a readable table, in the form of torch.cuda.memory_summary.
func (d *Device) MemorySummary(opts ...SummaryOpt) string {
	opt, err := only(opts)
	if err != nil {
		panic(err)
	}
	s := d.memory("MemorySummary").Stats()
	return s.Summary(d.Ordinal(), opt.Abbreviated)
}

// EmptyCache returns cached memory that no tensor uses to the driver.
func (d *Device) EmptyCache() (err error) {
	defer returned(&err)
	return d.open().EmptyCache()
}

// SetMemoryFraction limits the memory that the allocator may hold to fraction f of the device's memory, 0 to 1. Memory that it already
// holds stays. An allocation beyond the limit fails as if the device had no more memory.
func (d *Device) SetMemoryFraction(f float64) (err error) {
	defer returned(&err)
	return d.open().SetMemoryFraction(f)
}

// MemoryFraction returns what SetMemoryFraction set, 1 at first.
func (d *Device) MemoryFraction() float64 { return d.rt().Memory().MemoryFraction() }

// SetAllocatorSettings changes the settings of the caching allocator from now on. text has the form of PYTORCH_CUDA_ALLOC_CONF:
// comma-separated key:value pairs from this list:
//
//	max_split_size_mb:N                  blocks of N MiB or more are never split; N > 20
//	roundup_power2_divisions:D           sizes are rounded up to one of D steps between powers of two; or [64:8,128:4,>:1], by MiB
//	garbage_collection_threshold:F       above the share F of the memory fraction, old cached blocks are given back first
//	max_non_split_rounding_mb:N          a block that is never split serves requests less than N MiB smaller; N > 20, 20 at first
//	expandable_segments:True             segments are address ranges that grow page by page
//	release_lock_on_cudamalloc:True      the allocator's lock is dropped while the driver allocates
//	pinned_use_cuda_host_register:True   page-locked memory is ordinary memory, locked after the fact
//	pinned_num_register_threads:N        threads that touch its pages before; a power of two up to 128
//	pinned_use_background_threads:True   taken, and without effect: the allocator itself looks for page-locked memory that is idle again
//	backend:native                       cannot change; cudaMallocAsync is chosen by the environment when the device is opened
//
// As in PyTorch, the first three go back to their defaults in every call that does not name them, and the others keep their values; errors
// have PyTorch's texts. An invalid text changes nothing.
func (d *Device) SetAllocatorSettings(text string) (err error) {
	defer returned(&err)
	return d.open().UpdateSettings(text)
}

// AllocatorBackend returns "native", the caching allocator, or "cudaMallocAsync", the driver's stream-ordered one.
func (d *Device) AllocatorBackend() string { return d.rt().Memory().Settings().Backend }

// SetCaching switches the cache of device memory off or on again. While it is off, every allocation goes to the driver, every free waits
// for the device and gives the memory back, and Stats counts neither. Pools still work: each allocation is a separate segment, from the
// pool's Allocator if it has one. Memory that a capture allocates goes back when the graphs of its pool are closed, even if it is freed
// earlier. Memory is freed the way it was allocated.
func (d *Device) SetCaching(on bool) { d.rt().Memory().SetCaching(on) }

// MemoryChecks are modes that find misuse of device memory by kernels. With either of them on, every free waits for the device, except
// while a graph is captured, when nothing is checked. Memory that a capture allocates gets no zone, and the memory in which graphs of a
// compiled region run is not poisoned.
type MemoryChecks struct {
	// Poison fills memory with NaNs when it is freed, so that a use after the free shows in results.
	Poison bool
	// Guard puts a zone of at least 512 bytes behind every tensor, which Stats then counts as requested bytes, and checks it when the
	// memory is freed.
	Guard bool
}

// SetMemoryChecks switches memory checks on or off for the memory of tensors that is allocated, or freed, from now on. The environment
// switches them on for every device: TENON_POISON=1, TENON_GUARD=1. A third mode, memory without a cache, is SetCaching.
func (d *Device) SetMemoryChecks(c MemoryChecks) { d.rt().SetMemoryChecks(rt.MemoryChecks(c)) }

// MemoryDefects returns what the memory checks found since the last call, or nil: for each allocation that was written past its end, an
// error with its address, its size and, if RecordMemoryHistory is on, the line that allocated it. Defects that nobody asked for are the
// error of the next allocation, or of closing the device.
func (d *Device) MemoryDefects() (err error) {
	defer returned(&err)
	return d.rt().MemoryDefects()
}

// SetGarbageCollection says whether the allocator may run Go's garbage collector to find dropped tensors before it grows or fails. By
// default it may.
func (d *Device) SetGarbageCollection(on bool) { d.rt().Loose().SetCollection(on) }

// RawAlloc returns the address of size bytes of device memory from the caching allocator, for work on s; 0 bytes give address 0. Their
// content is undefined. RawFree gives them back.
func (d *Device) RawAlloc(size uint64, s *Stream) (addr uint64, err error) {
	defer returned(&err)
	return d.rt().RawAlloc(size, (*rt.Stream)(s))
}

// RawFree gives back memory of RawAlloc, of any device; address 0 does nothing. Work queued on the stream of RawAlloc may still use the
// memory; work on other streams must be complete.
func (d *Device) RawFree(addr uint64) (err error) {
	defer returned(&err)
	return d.rt().RawFree(addr)
}

// OOM is an allocation that failed for lack of memory.
type OOM struct {
	Device  int    // the device's number
	Wanted  uint64 // bytes that the allocator asked the device for
	Allowed uint64 // bytes that it may hold: the memory fraction, or all of the device's memory
	Free    uint64 // the device's free bytes
}

// OnOutOfMemory calls f for every allocation that fails from now on, on the allocating goroutine, before it gets its error. f must not
// allocate on the device.
func (d *Device) OnOutOfMemory(f func(OOM)) {
	d.rt().Memory().AddOOMObserver(func(device int, wanted, allowed, free uint64) { f(OOM{device, wanted, allowed, free}) })
}

// Stat tracks one quantity.
type Stat struct {
	Current, Peak    int64 // now, and the most since the peaks were reset
	Allocated, Freed int64 // the sums of all increases and of all decreases
}

// Timing is the time that some calls took, in microseconds.
type Timing struct {
	Count           int64 // calls
	Total, Max, Min int64 // of all calls, of the longest and of the shortest
}

// HostStats are the statistics of page-locked host memory. The memory is handed out in blocks whose sizes are powers of two.
type HostStats struct {
	Allocations    Stat   // blocks held, in use or cached
	AllocatedBytes Stat   // their bytes
	ActiveRequests Stat   // blocks in use, or freed while a copy still uses them
	ActiveBytes    Stat   // their bytes
	HostAllocs     int64  // driver calls that allocated
	HostFrees      int64  // driver calls that freed
	HostAllocTime  Timing // of the calls that allocated
	HostFreeTime   Timing // of the calls that freed
}

// Flatten returns the statistics under PyTorch's names, such as "active_bytes.peak" and "host_alloc_time.total".
func (s HostStats) Flatten() map[string]int64 {
	m := map[string]int64{"num_host_alloc": s.HostAllocs, "num_host_free": s.HostFrees}
	//tenon:unordered the result is a map
	for key, v := range map[string]Stat{"allocations": s.Allocations, "allocated_bytes": s.AllocatedBytes,
		"active_requests": s.ActiveRequests, "active_bytes": s.ActiveBytes} {
		m[key+".current"], m[key+".peak"] = v.Current, v.Peak
		m[key+".allocated"], m[key+".freed"] = v.Allocated, v.Freed
	}
	//tenon:unordered the result is a map
	for key, v := range map[string]Timing{"host_alloc_time": s.HostAllocTime, "host_free_time": s.HostFreeTime} {
		m[key+".total"], m[key+".max"], m[key+".min"], m[key+".count"] = v.Total, v.Max, v.Min, v.Count
		m[key+".avg"] = v.Total / max(v.Count, 1)
	}
	return m
}

// HostStats returns the statistics of the page-locked memory that this device's copies use.
func (d *Device) HostStats() HostStats {
	s := d.rt().PinnedMemory().Stats()
	timing := func(d alloc.Duration) Timing { return Timing{d.Count, d.Total, d.Max, d.Min} }
	return HostStats{Stat(s.Allocations), Stat(s.AllocatedBytes), Stat(s.ActiveRequests), Stat(s.ActiveBytes), s.HostAllocs, s.HostFrees,
		timing(s.HostAllocTime), timing(s.HostFreeTime)}
}

// ResetPeakHostStats sets every peak of HostStats to the current value.
func (d *Device) ResetPeakHostStats() { d.rt().PinnedMemory().ResetPeakStats() }

// ResetAccumulatedHostStats sets the sums, counters and times of HostStats to 0.
func (d *Device) ResetAccumulatedHostStats() { d.rt().PinnedMemory().ResetAccumulatedStats() }

// EmptyHostCache returns cached page-locked memory to the system, except memory that a copy still uses.
func (d *Device) EmptyHostCache() (err error) {
	defer returned(&err)
	return d.open().EmptyHostCache()
}
