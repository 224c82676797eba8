package cuda

import "tenon.dev/internal/rt"

// TraceCallbacks are what Trace has called, with the handles that Event.Handle and Stream.Handle give, or with the address of memory. Nil
// functions are left out.
//
// What the library does by itself counts as far as it has to do with the order of work: where the tensor line makes a stream wait for
// another, an event is created, recorded, waited for and deleted; copies from and to page-locked memory have an event at their end. What
// the allocator does to know when freed memory is idle does not count. In a capture actions are told when they are recorded, and replays
// tell nothing of them.
type TraceCallbacks struct {
	// EventCreated is called when an event gets its handle, which is by its first Record; NewEvent makes nothing yet.
	EventCreated func(event uint64)
	// EventDeleted is called before an event gives its handle back, with Close, or when the garbage collector found it, on a goroutine of
	// the runtime's. Another event may have the handle afterwards.
	EventDeleted func(event uint64)
	// EventRecorded is called after each Record.
	EventRecorded func(event, stream uint64)
	// EventWaited is called after a stream was made to wait for an event that was recorded, be it on the same stream.
	EventWaited func(event, stream uint64)
	// MemoryAllocated is called after the allocator gave a block of device memory, from its cache or fresh: to a tensor, to an operation
	// for its own use, or to RawAlloc.
	MemoryAllocated func(ptr uint64)
	// MemoryFreed is called before a block is given back, which is when its last user closes it or, for garbage, with a later allocation.
	// When the allocator returns memory to the driver is not told.
	MemoryFreed func(ptr uint64)
	// StreamCreated is called after a stream was made for Device.Stream or a capture, which hand out again what they have made.
	StreamCreated func(stream uint64)
	// DeviceSynchronized is called before the host waits for the whole device. A capture begins with that too.
	DeviceSynchronized func()
	// StreamSynchronized is called before the host waits for a stream, as it does to read a tensor.
	StreamSynchronized func(stream uint64)
	// EventSynchronized is called before the host waits for an event that was recorded.
	EventSynchronized func(event uint64)
}

// Trace has c's functions called at each of these actions of the device from now on, until remove is called: on the goroutine that acts,
// and so on several at once where several act, after those of earlier calls of Trace. They may not use the device. One that panics is
// logged, with log/slog, and the action and the other functions go on. While nothing is registered this costs the actions a look at one
// word. Trace and remove may be called at any time, and remove more than once; an action under way on another goroutine may still call a
// function that was just removed.
func (d *Device) Trace(c TraceCallbacks) (remove func()) { return d.rt().AddTrace(rt.Trace(c)) }
