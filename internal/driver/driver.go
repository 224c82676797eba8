package driver

// Format names the text format of a kernel image that a driver loads.
type Format string

// The image formats.
const (
	// FormatPTX is NVIDIA's PTX assembly text.
	FormatPTX Format = "ptx"
	// FormatKIR is the kernel IR's own text, as package kir prints it.
	FormatKIR Format = "kir"
)

// Driver opens the devices of one kind.
type Driver interface {
	// Name returns "libcuda" or "hostsim".
	Name() string
	// Version returns the driver's version as CUDA numbers it (13000 = 13.0).
	Version() (int, error)
	// DeviceCount returns how many devices can be opened.
	DeviceCount() (int, error)
	// Open opens device ordinal and retains its primary context until Close. Codes: NoDevice, InvalidDevice, OutOfMemory.
	Open(ordinal int) (Device, error)
}

// Thread is the right to make context-bound and capture-sensitive calls. It belongs to the goroutine that entered, which stays on one
// operating-system thread until Leave. Tokens of one thread nest.
type Thread interface {
	// ID identifies the thread for the capture rules: two tokens of one thread have equal ids. Call it, like any use of the token, on the
	// goroutine that entered.
	ID() uint64
	// Leave gives up the right. Call it on the goroutine that entered; tokens leave in reverse order of entry.
	Leave()
}

// Device is one opened device.
type Device interface {
	Context
	Memory
	VirtualMemory
	PoolMemory
	HostMemory
	Streams
	Events
	Work
	Capture
	Graphs
	Modules
	Failures
}

// Context is the device itself.
type Context interface {
	// Info describes the device. After Open it makes no driver call.
	Info() *Info
	// Enter locks the goroutine to its thread, makes the device's context current there and returns the token.
	Enter() Thread
	// Synchronize blocks until all work of the device is done and returns any fault of that work. Illegal in a capture.
	Synchronize(t Thread) error
	// Close waits for all work, frees what the device still holds and releases the context. A second call does nothing.
	Close() error
}

// Info describes a device.
type Info struct {
	// Name is the vendor's name, such as "NVIDIA H200"; the simulator's begins with "Simulated".
	Name string
	// Ordinal is the device's number in its driver.
	Ordinal int
	// UUID is the device's 16 bytes.
	UUID [16]byte
	// PCIBusID is "domain:bus:device.function", or "" if there is none.
	PCIBusID string
	// Major and Minor are the compute capability.
	Major, Minor int
	// TotalMemory is in bytes.
	TotalMemory uint64
	// Multiprocessors is the number of SMs, MaxThreadsPerSM the most threads resident on one.
	Multiprocessors, MaxThreadsPerSM int
	// MaxThreadsPerBlock and WarpSize are in threads.
	MaxThreadsPerBlock, WarpSize int
	// SharedPerBlock is the shared memory that a block may use, in bytes, and SharedPerBlockOptin its limit after SetMaxShared.
	SharedPerBlock, SharedPerBlockOptin, SharedPerSM int
	// L2Bytes is the size of the last-level cache.
	L2Bytes int
	// ClockKHz is the peak SM clock and the rate of the kernel IR's clock.
	ClockKHz int
	// Image is the format that LoadModule takes.
	Image Format
	// Integrated is set if device memory is host memory.
	Integrated bool
	// VirtualMemory and PoolMemory are set if the device supports the interfaces of these names.
	VirtualMemory, PoolMemory bool
	// Recovers is set if a failed assertion ends only its kernel: the device keeps working, and Failures reports the assertion. Otherwise
	// the device is lost, unless it is Inline.
	Recovers bool
	// Inline is set if each call runs its work before it returns: nothing is ever pending, and a kernel's fault is the error of the call
	// that launched it, not of a later one.
	Inline bool
	// Checked is set if a memory checker watches the device. The checker knows the bounds of MemAlloc's allocations, but no smaller ones.
	Checked bool
}

// Ptr is an address in device memory. It is not a Go pointer, and Go code must not use it as a host address.
type Ptr uint64

// Memory is device memory.
type Memory interface {
	// MemAlloc returns n > 0 bytes, aligned to at least 512; contents are undefined. Synchronous. While a stream is being captured, it is
	// legal on other threads unless the mode is CaptureGlobal, and on the capturing thread only under CaptureRelaxed; a thread that has set
	// its own mode to relaxed (CaptureExchangeMode) may always call it. Otherwise it fails with StreamCaptureUnsupported and invalidates
	// the capture. Codes: OutOfMemory, InvalidValue.
	MemAlloc(t Thread, n uint64) (Ptr, error)
	// MemFree frees memory from MemAlloc and waits for work that uses it. Synchronous. Returns no error after a device fault.
	MemFree(t Thread, p Ptr) error
	// MemInfo returns free and total bytes.
	MemInfo(t Thread) (free, total uint64, err error)
}

// VirtualMemory is device memory whose addresses are reserved separately from the memory behind them. If Info.VirtualMemory is false, every
// method fails with NotSupported. All methods are synchronous and legal in a capture.
type VirtualMemory interface {
	// MemReserve reserves n addresses with no memory behind them; n and the first address are multiples of 2 MiB. Codes: OutOfMemory,
	// InvalidValue.
	MemReserve(t Thread, n uint64) (Ptr, error)
	// MemUnreserve releases a whole range in which nothing is mapped. Codes: InvalidValue. Returns no error after a device fault.
	MemUnreserve(t Thread, p Ptr, n uint64) error
	// MemMap maps new memory at the n unmapped addresses from p on, within one reserved range; n and p are multiples of 2 MiB. The device
	// can read and write the memory; its contents are undefined. Codes: OutOfMemory, InvalidValue.
	MemMap(t Thread, p Ptr, n uint64) error
	// MemUnmap undoes one MemMap with the same p and n. It waits for nothing: work that uses the memory must be complete. Codes:
	// InvalidValue. Returns no error after a device fault.
	MemUnmap(t Thread, p Ptr, n uint64) error
}

// PoolUsage is what the device's memory pool has reserved from the device and how much of that is allocated, now and at the peak, in bytes.
type PoolUsage struct {
	Reserved, ReservedPeak uint64
	Used, UsedPeak         uint64
}

// PoolMemory is device memory that is allocated and freed in stream order, from the device's default pool. If Info.PoolMemory is false,
// every method fails with NotSupported.
type PoolMemory interface {
	// MemAllocAsync returns n > 0 bytes for work queued on s from now on, and for work ordered after it; contents are undefined. On a
	// capturing stream the graph allocates at each launch, always at this address, which nothing may access before; while another stream is
	// being captured, the call is legal where MemAlloc is. Codes: OutOfMemory, InvalidValue.
	MemAllocAsync(t Thread, n uint64, s Stream) (Ptr, error)
	// MemFreeAsync frees memory from MemAllocAsync once s gets there; other streams must have finished with it by then. On a capturing
	// stream p must come from that capture; while another stream is being captured, the call is legal where MemAlloc is. Memory that a
	// graph allocates and does not free may be freed after a launch; each launch frees what the previous one left. Codes: InvalidValue.
	// Returns no error after a device fault.
	MemFreeAsync(t Thread, p Ptr, s Stream) error
	// PoolTrim returns unallocated memory to the device until at most keep bytes are held. Frees that their stream has not reached yet
	// count as allocated. Like the following methods, it is legal where MemAlloc is.
	PoolTrim(t Thread, keep uint64) error
	// PoolKeep sets how many bytes the pool may keep when the host waits for the device. The default is 0: all free memory is returned
	// then.
	PoolKeep(t Thread, n uint64) error
	// PoolUsage returns what the pool holds.
	PoolUsage(t Thread) (PoolUsage, error)
	// PoolResetPeaks resets the peaks of PoolUsage to the current values.
	PoolResetPeaks(t Thread) error
}

// HostMemory is page-locked host memory that the device can read and write directly.
type HostMemory interface {
	// HostAlloc returns n > 0 bytes of page-locked memory. Synchronous. Legal where MemAlloc is. Codes: OutOfMemory, InvalidValue.
	HostAlloc(t Thread, n uint64) ([]byte, error)
	// HostFree frees memory from HostAlloc.
	HostFree(t Thread, b []byte) error
	// HostRegister page-locks existing memory: until HostUnregister, which must come before the memory is freed, it behaves as if HostAlloc
	// had returned it. Memory of the Go heap must stay reachable. Legal where MemAlloc is. Codes: InvalidValue (no bytes),
	// HostMemoryRegistered (b overlaps page-locked memory), OutOfMemory, NotSupported (the device would see b at another address).
	HostRegister(t Thread, b []byte) error
	// HostUnregister undoes HostRegister; b must begin at the same address. It waits for work that uses the memory. Codes:
	// HostMemoryNotRegistered. Returns no error after a device fault.
	HostUnregister(t Thread, b []byte) error
	// HostView returns the n bytes at p of device memory as host memory, or nil if the host cannot access them or they do not lie in one
	// allocation. It makes no driver call.
	HostView(p Ptr, n uint64) []byte
}

// Stream is an in-order queue of work. The zero handle is the legacy default stream.
type Stream uintptr

// StreamLegacy is the legacy default stream. To queue work on it, the calling goroutine must hold a token: the handle alone does not
// identify its device.
const StreamLegacy Stream = 0

// Streams creates and observes streams.
type Streams interface {
	// StreamCreate returns a stream; if nonBlocking, it does not synchronise with the legacy stream. Lower priority numbers are served
	// first; 0 is the default. Codes: OutOfMemory.
	StreamCreate(t Thread, nonBlocking bool, priority int) (Stream, error)
	// StreamDestroy releases the handle at once; its outstanding work still completes.
	StreamDestroy(t Thread, s Stream) error
	// StreamQuery reports whether all work of s is done. Illegal on a capturing stream; while another is being captured, legal where
	// MemAlloc is.
	StreamQuery(t Thread, s Stream) (bool, error)
	// StreamSynchronize blocks until all work of s is done. Legal where StreamQuery is.
	StreamSynchronize(t Thread, s Stream) error
	// StreamWait makes later work of s wait for the most recent record of e at the time of this call. Stream-ordered; legal in a capture,
	// where waiting for a captured event joins s to that capture. e may belong to another device of the same driver.
	StreamWait(s Stream, e Event) error
}

// Event marks a point in a stream.
type Event uintptr

// Events creates and observes events.
type Events interface {
	// EventCreate returns an event; one with timing costs more to record. Codes: OutOfMemory.
	EventCreate(t Thread, timing bool) (Event, error)
	// EventDestroy releases the handle; pending work is not disturbed.
	EventDestroy(t Thread, e Event) error
	// EventRecord records e after all work queued on s so far. Stream-ordered.
	EventRecord(e Event, s Stream) error
	// EventQuery reports whether the work before e's most recent record is done; true if e was never recorded. While a stream is being
	// captured, it is legal where MemAlloc is. For an event recorded in a capture it fails with CapturedEvent and invalidates that capture.
	EventQuery(t Thread, e Event) (bool, error)
	// EventSynchronize blocks until that work is done. Legal where EventQuery is.
	EventSynchronize(t Thread, e Event) error
	// EventElapsed returns the milliseconds from a to b. Codes: InvalidHandle (never recorded, or created without timing), NotReady.
	EventElapsed(t Thread, a, b Event) (float32, error)
}

// Func is a kernel of a loaded module.
type Func uintptr

// Launch is one kernel launch. It lives on the heap and is reused from call to call, so that launching allocates nothing.
type Launch struct {
	// Func is the kernel, Stream the stream that it runs on.
	Func   Func
	Stream Stream
	// Grid is in blocks and Block in threads: x, y, z, each at least 1.
	Grid, Block [3]uint32
	// Shared is the dynamic shared memory in bytes.
	Shared uint32
	// Args holds the parameters packed in declaration order, each at its natural alignment, little-endian. The driver copies them before it
	// returns.
	Args []byte
	// Origin is where the launch comes from, as given by the caller, for the error of a failed assertion. Drivers that do not recover from
	// failed assertions ignore it.
	Origin any
	// Waits is set if the kernel itself waits for the earlier work of its stream before it accesses memory. The device may then start the
	// kernel before that work is complete.
	Waits bool
	// Scratch is for the driver's own use.
	Scratch [13]uintptr
}

// CallbackID names a registered host function.
type CallbackID uint64

// Work is what streams execute. All methods are stream-ordered, need no token and, except for CopyPeer, are legal in a capture.
type Work interface {
	// Launch queues a kernel. Codes: InvalidValue, LaunchOutOfResources, InvalidHandle, and the device's fault.
	Launch(l *Launch) error
	// CopyDtoD copies n bytes between device addresses of this device.
	CopyDtoD(dst, src Ptr, n uint64, s Stream) error
	// CopyPeer copies n bytes from address src of device number from, which is open in the same driver, to address dst of this device. s is
	// a stream of this device. The bytes go directly from device to device if the hardware can do that, otherwise through the host. Only s
	// orders the copy: use events to order it with work of the other device on src. It cannot be captured; what happens to the capture is
	// unspecified. Codes: InvalidDevice (from is not open), StreamCaptureUnsupported.
	CopyPeer(dst Ptr, from int, src Ptr, n uint64, s Stream) error
	// CopyHtoD copies src to the device. If src is not page-locked, the call returns only after src was read. src must not change until the
	// copy is done.
	CopyHtoD(dst Ptr, src []byte, s Stream) error
	// CopyDtoH copies to dst, which must stay reachable until the copy is done. With a pageable dst the call is synchronous.
	CopyDtoH(dst []byte, src Ptr, s Stream) error
	// Memset fills n elements of width 1, 2 or 4 bytes with the low bytes of v.
	Memset(dst Ptr, v uint32, width int, n uint64, s Stream) error
	// Callback runs a registered function on a goroutine of the runtime when s gets there; the stream waits until it returns. The function
	// must not call the driver. Codes: InvalidValue (id is not registered).
	Callback(s Stream, id CallbackID) error
	// RegisterCallback makes fn callable by Callback until UnregisterCallback; a captured callback runs at every replay.
	RegisterCallback(fn func()) CallbackID
	// UnregisterCallback removes id.
	UnregisterCallback(id CallbackID)
}

// CaptureMode says where a capture forbids unsafe calls: on all threads, on the capturing thread, or nowhere.
type CaptureMode int

// The capture modes, with CUDA's numbers.
const (
	CaptureGlobal CaptureMode = iota
	CaptureThreadLocal
	CaptureRelaxed
)

// CaptureStatus is a stream's capture state.
type CaptureStatus int

// The capture states, with CUDA's numbers.
const (
	CaptureNone CaptureStatus = iota
	CaptureActive
	CaptureInvalidated
)

// Capture turns the work of streams into graphs.
type Capture interface {
	// CaptureBegin starts a capture on s. t must be held until CaptureEnd. Codes: StreamCaptureUnsupported on StreamLegacy.
	CaptureBegin(t Thread, s Stream, mode CaptureMode) error
	// CaptureEnd ends the capture and returns the graph. Codes: StreamCaptureUnmatched, StreamCaptureUnjoined, StreamCaptureInvalidated,
	// StreamCaptureWrongThread, IllegalState (s is not being captured). After any of the StreamCapture codes except StreamCaptureUnmatched
	// the stream is out of the capture; StreamCaptureUnmatched invalidates the capture, which its origin stream must still end.
	CaptureEnd(t Thread, s Stream) (Graph, error)
	// CaptureInfo returns the state of s and the id of its capture (0 if none). Legal anywhere, needs no token.
	CaptureInfo(s Stream) (CaptureStatus, uint64, error)
	// CaptureNode returns the node of the work last queued on s, for the Set methods of Graphs. Call it right after queuing the work,
	// before s waits for an event. Legal anywhere, needs no token. Codes: IllegalState (s is not being captured, has no work yet, or has
	// waited since), StreamCaptureInvalidated.
	CaptureNode(s Stream) (Node, error)
	// CaptureExchangeMode sets the thread's own mode, which decides what it may call while others capture, and returns the old one.
	CaptureExchangeMode(t Thread, mode CaptureMode) (CaptureMode, error)
}

// Graph is recorded work and GraphExec its executable form. Node is one piece of a graph's work; it is destroyed with the graph.
type (
	Graph     uintptr
	GraphExec uintptr
	Node      uintptr
)

// ChainWork is one piece of work of a graph built by GraphChain.
type ChainWork struct {
	// Launch is a kernel. Its Stream and Waits are ignored: it starts when the previous piece is complete.
	Launch *Launch
	// If Launch is nil and N > 0, N bytes are copied from Src to Dst or, if Src is 0, N bytes at Dst are filled with Value.
	Dst, Src Ptr
	N        uint64
	Value    byte
	// If Launch is nil and N is 0, Event is recorded.
	Event Event
}

// Graphs instantiates, changes and runs recorded work.
type Graphs interface {
	// GraphNodes returns the number of nodes.
	GraphNodes(g Graph) (int, error)
	// GraphInstantiate makes an executable graph. The source, with its nodes, may be destroyed afterwards. Codes: OutOfMemory.
	GraphInstantiate(t Thread, g Graph) (GraphExec, error)
	// GraphLaunch queues one run on s. Stream-ordered; launches of one GraphExec run one after the other. It cannot be captured: on a
	// capturing stream it fails with StreamCaptureUnsupported and invalidates the capture.
	GraphLaunch(e GraphExec, s Stream) error
	// GraphSetLaunch makes later launches of e run l in place of the kernel captured as node n. It may change the arguments, grid, block,
	// shared memory, Origin and the kernel, which must be of the same device; l.Stream is ignored. Args are copied. Launches already
	// queued, running or not, are not affected. It waits for nothing. GraphLaunch and the GraphSet calls for one executable must be made
	// one at a time, from any thread. n must belong to the graph that e was made from, which must not have been destroyed. Codes: those of
	// Launch, and InvalidValue (n is not a kernel, belongs to another graph, or its graph was destroyed).
	GraphSetLaunch(t Thread, e GraphExec, n Node, l *Launch) error
	// GraphSetCopy does the same for a node captured from CopyDtoD: from then on it copies bytes > 0 bytes from src to dst.
	GraphSetCopy(t Thread, e GraphExec, n Node, dst, src Ptr, bytes uint64) error
	// GraphSetMemset does the same for a node captured from Memset: from then on it fills count > 0 elements, as Memset does.
	GraphSetMemset(t Thread, e GraphExec, n Node, dst Ptr, v uint32, width int, count uint64) error
	// GraphChain builds a graph without a capture, each piece of work after the previous one, and returns the nodes of the pieces, for the
	// Set methods. Arguments are copied. A run of the graph records an event when it gets to the event's node; until then the event keeps
	// its last record. Legal in a capture. Codes: OutOfMemory, InvalidValue, InvalidHandle, and those of Launch, which may be reported only
	// by GraphInstantiate.
	GraphChain(t Thread, work []ChainWork) (Graph, []Node, error)
	// GraphSetEvent makes later launches of e record ev in a node that records an event. Runs already queued record the old event. Codes:
	// InvalidValue (n records no event, belongs to another graph, or its graph was destroyed), InvalidHandle.
	GraphSetEvent(t Thread, e GraphExec, n Node, ev Event) error
	// GraphDestroy and GraphExecDestroy release the handles; a running launch completes.
	GraphDestroy(t Thread, g Graph) error
	// GraphExecDestroy releases the executable.
	GraphExecDestroy(t Thread, e GraphExec) error
	// GraphDot writes the graph to a file in DOT format, for debugging.
	GraphDot(t Thread, g Graph, path string) error
}

// Failures reports assertions that failed on a device that Recovers. Each is reported once, to the first call about a later point; other
// devices always return nil. Of several unreported failures on one stream the first is reported, since the others may follow from it. The
// methods wait for nothing and need no token.
type Failures interface {
	// StreamFailed returns what failed in the work that s has reached.
	StreamFailed(s Stream) error
	// EventFailed returns what failed in the work before e's most recent record, if that work is done.
	EventFailed(e Event) error
	// DeviceFailed returns what failed on any stream.
	DeviceFailed() error
}

// Module is loaded kernel code.
type Module uintptr

// FuncInfo describes a kernel's use of resources.
type FuncInfo struct {
	// Registers per thread, static shared and local bytes, and the most threads that a block may have.
	Registers, SharedBytes, LocalBytes, MaxThreads int
}

// Modules loads kernel images.
type Modules interface {
	// LoadModule loads text of the format in Info().Image; it may hold many kernels. Codes: InvalidPTX, UnsupportedPTXVersion,
	// NoBinaryForGPU, with the compiler's log as detail. Synchronous; legal in a capture. Several threads may compile at a time.
	LoadModule(t Thread, text []byte) (Module, error)
	// UnloadModule unloads m; its functions must not be running.
	UnloadModule(t Thread, m Module) error
	// Function finds the kernel called name and prepares it, so that its first launch loads nothing. Codes: NotFound.
	Function(t Thread, m Module, name string) (Func, error)
	// FuncInfo returns f's use of resources.
	FuncInfo(t Thread, f Func) (FuncInfo, error)
	// SetMaxShared allows f up to n bytes of dynamic shared memory.
	SetMaxShared(t Thread, f Func, n int) error
}
