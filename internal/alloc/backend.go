package alloc

import "errors"

// Stream is the handle of a device stream; 0 is the default stream. Where an order of streams matters, it is that of their handles.
type Stream uint64

// Event is the handle of a device event without timing, as the Backend hands it out.
type Event uint64

// ErrOutOfMemory is what a Backend's error must match (errors.Is) when the device has no room. The allocator then frees memory and tries
// again; any other error of a Backend ends the call that got it.
var ErrOutOfMemory = errors.New("the device has no memory left")

// Events provides the events that tell when streams are done with a freed block.
type Events interface {
	// AcquireEvent takes an event from the backend's pool of events without timing.
	AcquireEvent() (Event, error)
	// ReleaseEvent returns an event to that pool. It cannot fail: an event that cannot be reused is dropped.
	ReleaseEvent(Event)
	// RecordEvent records e on stream s. A Device never calls it while a pool diversion is active.
	RecordEvent(e Event, s Stream) error
	// QueryEvent says whether the work recorded by e is complete. A Device never calls it while a pool diversion is active.
	QueryEvent(e Event) (done bool, err error)
	// SyncEvent waits until the work recorded by e is complete.
	SyncEvent(e Event) error
}

// Backend is what the allocator needs of one device. Its methods are called with the allocator's lock held (except Malloc under
// release_lock_on_cudamalloc, MemInfo at times, and Malloc and Free with caching off), so they must not call the allocator. All but
// AcquireEvent, ReleaseEvent and Capturing may be called while a stream is being captured, and must be legal then (PyTorch switches the
// thread to the relaxed capture mode around them).
type Backend interface {
	// Malloc allocates size bytes of device memory, synchronously. An error that matches ErrOutOfMemory means no room.
	Malloc(size uint64) (addr uint64, err error)
	// Free returns memory that Malloc gave. Like cudaFree it may wait for the device's work.
	Free(addr uint64) error
	// MemInfo returns the device's free and total memory in bytes.
	MemInfo() (free, total uint64, err error)

	Events

	// Capturing says whether s is being captured, and the id of that capture.
	Capturing(s Stream) (id uint64, ok bool)
}

// VirtualMemory is what a Backend offers in addition if the device can map physical pages into reserved address ranges.
// Without it the setting expandable_segments has no effect.
type VirtualMemory interface {
	// Reserve reserves size bytes of addresses without memory. size is a multiple of 2 MiB.
	Reserve(size uint64) (addr uint64, err error)
	// Unreserve returns a whole range that Reserve gave; nothing is mapped in it.
	Unreserve(addr, size uint64) error
	// MapPage maps new physical memory of size bytes (2 or 20 MiB) at addr, readable and writable by the device and its peers. An error
	// that matches ErrOutOfMemory means no room.
	MapPage(addr, size uint64) error
	// UnmapPage unmaps a page, with the address and size of its MapPage. The stream has been synchronised.
	UnmapPage(addr, size uint64) error
	// SyncStream waits for the work of s: unmapping, unlike freeing, does not wait by itself.
	SyncStream(s Stream) error
}

// Source provides a private pool's segments in place of the Backend. Its methods are called like Malloc and Free of a Backend, so they must
// not call the allocator.
type Source interface {
	// Malloc returns size bytes, a multiple of 2 MiB, for a segment of stream s. An error that matches ErrOutOfMemory means no room.
	Malloc(size uint64, s Stream) (addr uint64, err error)
	// Free takes back what Malloc gave. The work of s may still use it.
	Free(addr, size uint64, s Stream) error
}

// HostBackend is what the allocator of pinned host memory needs.
type HostBackend interface {
	// MallocHost allocates size bytes of page-locked host memory that every device can reach. An error that matches
	// ErrOutOfMemory means no room. It is called without the allocator's lock.
	MallocHost(size uint64) (addr uint64, err error)
	// FreeHost returns memory that MallocHost or RegisterHost gave. It is called without the allocator's lock.
	FreeHost(addr uint64) error

	Events
}

// HostRegisterer is what a HostBackend offers in addition if it can page-lock ordinary memory. Without it the setting
// pinned_use_cuda_host_register has no effect.
type HostRegisterer interface {
	// RegisterHost allocates size bytes of ordinary memory, has that many threads touch its pages if they are more than one, and page-locks
	// it for every device. Errors and locking are as for MallocHost.
	RegisterHost(size uint64, threads int) (addr uint64, err error)
}
