package cuda

import "tenon.dev/internal/rt"

// TraceCallbacks are the functions that Trace registers. They get the handles that Event.Handle and Stream.Handle return, or the address of
// memory. Nil functions are not called.
//
// The library's own actions are reported if they concern the order of work: when an operation makes a stream wait for another, an event is
// created, recorded, waited for and deleted; copies from and to page-locked memory have an event at their end. The events by which the
// allocator learns that freed memory is idle are not reported. In a capture, actions are reported when they are recorded, and replays
// report nothing.
type TraceCallbacks struct {
	// EventCreated is called when an event gets its handle, which is at its first Record; NewEvent does not create it yet.
	EventCreated func(event uint64)
	// EventDeleted is called before an event gives its handle back: in Close or, if the event became garbage, on a goroutine of the Go
	// runtime. Another event may get the handle afterwards.
	EventDeleted func(event uint64)
	// EventRecorded is called after each Record.
	EventRecorded func(event, stream uint64)
	// EventWaited is called after a stream was made to wait for an event that was recorded, even on the same stream.
	EventWaited func(event, stream uint64)
	// MemoryAllocated is called after the allocator handed out a block of device memory, cached or new: to a tensor, to an operation for
	// its own use, or to RawAlloc.
	MemoryAllocated func(ptr uint64)
	// MemoryFreed is called before a block is given back, which is when its last user closes it or, for garbage, with a later allocation.
	// Memory that the allocator returns to the driver is not reported.
	MemoryFreed func(ptr uint64)
	// StreamCreated is called after a stream was created for Device.Stream or a capture. Streams that they reuse are not reported.
	StreamCreated func(stream uint64)
	// DeviceSynchronized is called before the host waits for the whole device. A capture also begins with such a wait.
	DeviceSynchronized func()
	// StreamSynchronized is called before the host waits for a stream, as it does to read a tensor.
	StreamSynchronized func(stream uint64)
	// EventSynchronized is called before the host waits for an event that was recorded.
	EventSynchronized func(event uint64)
}

// Trace makes the device call c's functions at each of these actions from now on, until remove is called. They are called on the goroutine
// that acts, and so possibly on several at once, after the functions of earlier calls of Trace. They must not use the device. If one
// panics, that is logged with log/slog, and the action and the other functions continue. While nothing is registered, an action only checks
// one word. Trace and remove may be called at any time, and remove more than once; an action under way on another goroutine may still call
// a function that was just removed.
func (d *Device) Trace(c TraceCallbacks) (remove func()) { return d.rt().AddTrace(rt.Trace(c)) }
