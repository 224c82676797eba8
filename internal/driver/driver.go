package driver

// Format names the text form of a kernel image that a driver loads.
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
	// Open opens device ordinal: its primary context is retained until Close. Codes: NoDevice, InvalidDevice, OutOfMemory.
	Open(ordinal int) (Device, error)
}

// Thread is the right to make context-bound and capture-sensitive calls. It belongs to the goroutine that entered, which stays on
// one operating-system thread until Leave. Tokens of one thread nest.
type Thread interface {
	// ID identifies the thread for capture rules: two tokens of one thread have equal ids. Like every use of the token it belongs on
	// the goroutine that entered.
	ID() uint64
	// Leave gives the right back. It must be called on the goroutine that entered, last entered first.
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
	// Info describes the device. It makes no driver call after Open.
	Info() *Info
	// Enter locks the goroutine to its thread, makes the device's context current there and returns the token.
	Enter() Thread
	// Synchronize blocks until all work of the device is done and returns a fault of that work, if any. Illegal in a capture.
	Synchronize(t Thread) error
	// Close waits for all work, frees what the device still holds and releases the context. The second call does nothing.
	Close() error
}

// Info describes a device.
type Info struct {
	// Name as the vendor gives it, such as "NVIDIA H200"; the simulator's begins with "Simulated".
	Name string
	// Ordinal is the device's number in its driver.
	Ordinal int
	// UUID is the device's 16 bytes.
	UUID [16]byte
	// PCIBusID is "domain:bus:device.function", or "" where there is none.
	PCIBusID string
	// Major and Minor are the compute capability.
	Major, Minor int
	// TotalMemory in bytes.
	TotalMemory uint64
	// Multiprocessors (SMs), and the most threads resident on one.
	Multiprocessors, MaxThreadsPerSM int
	// MaxThreadsPerBlock and WarpSize in threads.
	MaxThreadsPerBlock, WarpSize int
	// SharedPerBlock is the shared memory a block may use, in bytes; SharedPerBlockOptin is the limit after SetMaxShared.
	SharedPerBlock, SharedPerBlockOptin, SharedPerSM int
	// L2Bytes is the size of the last-level cache.
	L2Bytes int
	// ClockKHz is the peak SM clock, and the rate of the kernel IR's clock.
	ClockKHz int
	// Image is the format that LoadModule takes.
	Image Format
	// Integrated says that device memory is host memory.
	Integrated bool
	// VirtualMemory and PoolMemory say that the device has what the interfaces of these names offer.
	VirtualMemory, PoolMemory bool
	// Recovers says that a failed assertion ends its kernel alone: the device goes on, and Failures tells of it. Elsewhere the device is
	// lost, unless it is Inline.
	Recovers bool
	// Inline says that each call runs before it returns: nothing is ever pending, and a kernel's fault is the error of the call that
	// launched it and of no later one.
	Inline bool
	// Checked says that a memory checker watches the device, which knows the bounds of what MemAlloc returns and of nothing smaller.
	Checked bool
}

// Ptr is an address in device memory. It is not a Go pointer and never a host address that Go code may use.
type Ptr uint64

// Memory is device memory.
type Memory interface {
	// MemAlloc returns n > 0 bytes, aligned to at least 512; contents are undefined. Synchronous. While any stream is captured, legal
	// on other threads unless the mode is CaptureGlobal, and on the capturing thread only under CaptureRelaxed; a thread that has set
	// its own mode to relaxed (CaptureExchangeMode) may always. Else it fails with StreamCaptureUnsupported and invalidates the
	// capture. Codes: OutOfMemory, InvalidValue.
	MemAlloc(t Thread, n uint64) (Ptr, error)
	// MemFree frees what MemAlloc returned; it waits for work that uses it. Synchronous. Silent after a device fault.
	MemFree(t Thread, p Ptr) error
	// MemInfo returns free and total bytes.
	MemInfo(t Thread) (free, total uint64, err error)
}

// VirtualMemory is device memory whose addresses are reserved apart from the memory behind them. Where Info.VirtualMemory is false every
// method fails with NotSupported. All methods are synchronous and legal in a capture.
type VirtualMemory interface {
	// MemReserve reserves n addresses, a multiple of 2 MiB, that begin at such a multiple. No memory is behind them. Codes: OutOfMemory,
	// InvalidValue.
	MemReserve(t Thread, n uint64) (Ptr, error)
	// MemUnreserve gives a whole range back, in which nothing is mapped. Codes: InvalidValue. Silent after a device fault.
	MemUnreserve(t Thread, p Ptr, n uint64) error
	// MemMap puts fresh memory behind the n addresses from p on, both multiples of 2 MiB within one reserved range, where none is yet. The
	// device reads and writes it; contents are undefined. Codes: OutOfMemory, InvalidValue.
	MemMap(t Thread, p Ptr, n uint64) error
	// MemUnmap takes back what one MemMap put there, p and n the same. It waits for nothing: work that uses the memory must be complete.
	// Codes: InvalidValue. Silent after a device fault.
	MemUnmap(t Thread, p Ptr, n uint64) error
}

// PoolUsage is what the device's memory pool holds from the device, and what of that is allocated, now and at most, in bytes.
type PoolUsage struct {
	Reserved, ReservedPeak uint64
	Used, UsedPeak         uint64
}

// PoolMemory is device memory that is allocated and freed in the order of streams, from the device's default pool. Where Info.PoolMemory is
// false every method fails with NotSupported.
type PoolMemory interface {
	// MemAllocAsync returns n > 0 bytes for work queued on s from now on, and for work that comes after; contents are undefined. On a
	// capturing stream the graph allocates at each launch, always at this address, which no one may touch before; while another is captured
	// it is legal where MemAlloc is. Codes: OutOfMemory, InvalidValue.
	MemAllocAsync(t Thread, n uint64, s Stream) (Ptr, error)
	// MemFreeAsync frees what MemAllocAsync returned once s gets there; other streams must have finished with it by then. On a capturing
	// stream p must come from that capture; while another is captured it is legal where MemAlloc is. Memory of a graph that the graph does
	// not free may be freed after a launch; each launch frees what the last one left. Codes: InvalidValue. Silent after a device fault.
	MemFreeAsync(t Thread, p Ptr, s Stream) error
	// PoolTrim gives memory that is not allocated back to the device until at most keep bytes are held. Frees that no stream has reached
	// yet count as allocated. Legal where MemAlloc is, as are the following.
	PoolTrim(t Thread, keep uint64) error
	// PoolKeep sets how many bytes the pool may hold while the host waits for the device; at first 0, so that what is free goes back
	// then.
	PoolKeep(t Thread, n uint64) error
	// PoolUsage returns what the pool holds.
	PoolUsage(t Thread) (PoolUsage, error)
	// PoolResetPeaks makes the peaks of PoolUsage the present values.
	PoolResetPeaks(t Thread) error
}

// HostMemory is page-locked host memory that the device reads and writes directly.
type HostMemory interface {
	// HostAlloc returns n > 0 bytes of page-locked memory. Synchronous. Codes: OutOfMemory, InvalidValue. Legal where MemAlloc is. Codes:
	// OutOfMemory, InvalidValue.
	HostAlloc(t Thread, n uint64) ([]byte, error)
	// HostFree frees what HostAlloc returned.
	HostFree(t Thread, b []byte) error
	// HostRegister page-locks memory that exists already: it acts from then on as if HostAlloc had returned it, until HostUnregister, which
	// must come before the memory goes. Memory of the Go heap must stay reachable. Legal where MemAlloc is. Codes: InvalidValue (no bytes),
	// HostMemoryRegistered (b meets page-locked memory), OutOfMemory, NotSupported (the device would see b at another address).
	HostRegister(t Thread, b []byte) error
	// HostUnregister ends what HostRegister began; b begins where it began. It waits for work that uses it. Codes:
	// HostMemoryNotRegistered. Silent after a device fault.
	HostUnregister(t Thread, b []byte) error
	// HostView returns the n bytes at p of device memory that is the host's own, and nil where the host cannot reach it or they do not lie
	// in one allocation. It makes no driver call.
	HostView(p Ptr, n uint64) []byte
}

// Stream is an in-order queue of work. The zero handle is the legacy default stream.
type Stream uintptr

// StreamLegacy is the legacy default stream. Work on it needs a token in effect on the calling goroutine: the handle alone does not
// tell its device.
const StreamLegacy Stream = 0

// Streams makes and observes streams.
type Streams interface {
	// StreamCreate returns a stream that does not synchronise with the legacy stream if nonBlocking. Lower priority numbers are served
	// first; 0 is the default. Codes: OutOfMemory.
	StreamCreate(t Thread, nonBlocking bool, priority int) (Stream, error)
	// StreamDestroy releases the handle at once; its outstanding work still completes.
	StreamDestroy(t Thread, s Stream) error
	// StreamQuery reports whether all work of s is done. Illegal on a capturing stream; while another is captured, legal where MemAlloc
	// is.
	StreamQuery(t Thread, s Stream) (bool, error)
	// StreamSynchronize blocks until all work of s is done. Legal where StreamQuery is.
	StreamSynchronize(t Thread, s Stream) error
	// StreamWait makes later work of s wait for what e recorded last at the time of this call. Stream-ordered; legal in a capture,
	// where waiting for a captured event joins s to that capture. e may belong to another device of the same driver.
	StreamWait(s Stream, e Event) error
}

// Event marks a point in a stream.
type Event uintptr

// Events makes and observes events.
type Events interface {
	// EventCreate returns an event; one with timing costs more to record. Codes: OutOfMemory.
	EventCreate(t Thread, timing bool) (Event, error)
	// EventDestroy releases the handle; pending work is not disturbed.
	EventDestroy(t Thread, e Event) error
	// EventRecord records e after all work queued on s so far. Stream-ordered.
	EventRecord(e Event, s Stream) error
	// EventQuery reports whether the work that e last recorded is done; true if e was never recorded. While a stream is captured it
	// is legal where MemAlloc is; for an event recorded in a capture it fails with CapturedEvent, which invalidates that capture.
	EventQuery(t Thread, e Event) (bool, error)
	// EventSynchronize blocks until it is. Legal where EventQuery is.
	EventSynchronize(t Thread, e Event) error
	// EventElapsed returns the milliseconds from a to b. Codes: InvalidHandle (never recorded, or without timing), NotReady.
	EventElapsed(t Thread, a, b Event) (float32, error)
}

// Func is a kernel of a loaded module.
type Func uintptr

// Launch is one kernel launch. It lives on the heap and is reused from call to call, so that launching allocates nothing.
type Launch struct {
	// Func is the kernel; Stream where it runs.
	Func   Func
	Stream Stream
	// Grid in blocks and Block in threads: x, y, z, each at least 1.
	Grid, Block [3]uint32
	// Shared is the dynamic shared memory in bytes.
	Shared uint32
	// Args holds the parameters packed in declaration order, each at its natural alignment, little-endian. The driver copies it
	// before it returns.
	Args []byte
	// Origin is the caller's word on where the launch is from, for the error of a failed assertion. Drivers that do not recover from one
	// ignore it.
	Origin any
	// Waits says that the kernel waits by itself for the work before it in its stream, before it touches memory. The device may then start
	// it before that work is complete.
	Waits bool
	// Scratch is the driver's own.
	Scratch [13]uintptr
}

// CallbackID names a registered host function.
type CallbackID uint64

// Work is what streams do. All methods are stream-ordered, need no token, and are legal in a capture, but for CopyPeer.
type Work interface {
	// Launch queues a kernel. Codes: InvalidValue, LaunchOutOfResources, InvalidHandle, and the device's fault.
	Launch(l *Launch) error
	// CopyDtoD copies n bytes between device addresses of this device.
	CopyDtoD(dst, src Ptr, n uint64, s Stream) error
	// CopyPeer copies n bytes from address src of device number from, which is open in the same driver, to address dst of this one, whose
	// stream s is. The bytes go straight from device to device where the hardware can, else through the host. Only s orders it: work of
	// the other device on src is ordered by events. It cannot be captured: what becomes of the capture is left open. Codes: InvalidDevice
	// (from is not open), StreamCaptureUnsupported.
	CopyPeer(dst Ptr, from int, src Ptr, n uint64, s Stream) error
	// CopyHtoD copies src to the device. src must be page-locked, or the call returns only after src was read. It must stay
	// unchanged until the copy is done.
	CopyHtoD(dst Ptr, src []byte, s Stream) error
	// CopyDtoH copies to dst, which must stay reachable until the copy is done; pageable dst makes the call synchronous.
	CopyDtoH(dst []byte, src Ptr, s Stream) error
	// Memset fills n elements of width 1, 2 or 4 bytes with the low bytes of v.
	Memset(dst Ptr, v uint32, width int, n uint64, s Stream) error
	// Callback runs a registered function on a goroutine of the runtime when s gets there; the stream waits for its return. The
	// function may not call the driver. Codes: InvalidValue (id is not registered).
	Callback(s Stream, id CallbackID) error
	// RegisterCallback makes fn callable by Callback until UnregisterCallback; a captured callback runs at every replay.
	RegisterCallback(fn func()) CallbackID
	// UnregisterCallback forgets id.
	UnregisterCallback(id CallbackID)
}

// CaptureMode says which calls a capture forbids: on any thread, on the capturing thread, or none.
type CaptureMode int

// The capture modes, numbered as CUDA's.
const (
	CaptureGlobal CaptureMode = iota
	CaptureThreadLocal
	CaptureRelaxed
)

// CaptureStatus is a stream's state.
type CaptureStatus int

// The capture states, numbered as CUDA's.
const (
	CaptureNone CaptureStatus = iota
	CaptureActive
	CaptureInvalidated
)

// Capture turns the work of streams into graphs.
type Capture interface {
	// CaptureBegin starts a capture on s. t must be held until CaptureEnd. Codes: StreamCaptureUnsupported on StreamLegacy.
	CaptureBegin(t Thread, s Stream, mode CaptureMode) error
	// CaptureEnd ends it and returns the graph. Codes: StreamCaptureUnmatched, StreamCaptureUnjoined, StreamCaptureInvalidated,
	// StreamCaptureWrongThread; the stream is out of the capture after any of them but StreamCaptureUnmatched, which invalidates the
	// capture for its origin to end. IllegalState if s is not captured.
	CaptureEnd(t Thread, s Stream) (Graph, error)
	// CaptureInfo returns s's state and the id of its capture (0 if none). Legal anywhere, needs no token.
	CaptureInfo(s Stream) (CaptureStatus, uint64, error)
	// CaptureNode returns the node that the work queued on s last has become, for the Set methods of Graphs; asked at once, before s
	// waits for an event. Legal anywhere, needs no token. Codes: IllegalState (s is not captured, or has no work yet, or has waited since),
	// StreamCaptureInvalidated.
	CaptureNode(s Stream) (Node, error)
	// CaptureExchangeMode sets the thread's own mode, which decides what it may call while others capture, and returns the old one.
	CaptureExchangeMode(t Thread, mode CaptureMode) (CaptureMode, error)
}

// Graph is recorded work; GraphExec is its executable form. Node is one piece of a graph's work; it goes with the graph.
type (
	Graph     uintptr
	GraphExec uintptr
	Node      uintptr
)

// ChainWork is one piece of work of a graph that GraphChain makes.
type ChainWork struct {
	// Launch is a kernel. Its Stream means nothing, nor does Waits: it begins when the piece before it is complete.
	Launch *Launch
	// Where Launch is nil and N > 0, N bytes are copied from Src to Dst or, where Src is 0, N bytes at Dst are filled with Value.
	Dst, Src Ptr
	N        uint64
	Value    byte
	// Where Launch is nil and N is 0, Event is recorded.
	Event Event
}

// Graphs runs recorded work.
type Graphs interface {
	// GraphNodes returns the number of nodes.
	GraphNodes(g Graph) (int, error)
	// GraphInstantiate makes an executable graph. The source may be destroyed after it, and its nodes go with it. Codes: OutOfMemory.
	GraphInstantiate(t Thread, g Graph) (GraphExec, error)
	// GraphLaunch queues one run on s. Stream-ordered; launches of one GraphExec run one after the other. It cannot be captured: on a
	// capturing stream it fails with StreamCaptureUnsupported, which invalidates the capture.
	GraphLaunch(e GraphExec, s Stream) error
	// GraphSetLaunch makes later launches of e run l in place of the kernel that its node n was captured as: arguments, grid, block, shared
	// memory, Origin, and another kernel of the device too; l.Stream means nothing. Args are copied. Launches that were queued before,
	// running or not, are not disturbed. It waits for nothing. GraphLaunch and the GraphSet calls for one executable are made one at a
	// time, by whichever threads. n is of the graph that e was made from, which must not have been destroyed. Codes: those of Launch, and
	// InvalidValue (n is no kernel, of another graph, or its graph was destroyed).
	GraphSetLaunch(t Thread, e GraphExec, n Node, l *Launch) error
	// GraphSetCopy does the same for a node that CopyDtoD was captured as: from then on it copies bytes from src to dst, at least one.
	GraphSetCopy(t Thread, e GraphExec, n Node, dst, src Ptr, bytes uint64) error
	// GraphSetMemset does it for a node that Memset was captured as: from then on it fills count elements, at least one, as Memset does.
	GraphSetMemset(t Thread, e GraphExec, n Node, dst Ptr, v uint32, width int, count uint64) error
	// GraphChain makes a graph of work without a capture, each piece after the one before it, and returns the pieces' nodes, for the Set
	// methods. Arguments are copied. A run of the graph records an event when it gets to its node; until then the event has what it
	// recorded last. Legal in a capture. Codes: OutOfMemory, InvalidValue, InvalidHandle, and those of Launch, which GraphInstantiate may
	// be the first to find.
	GraphChain(t Thread, work []ChainWork) (Graph, []Node, error)
	// GraphSetEvent makes later launches of e record ev in a node that records an event. Runs that were queued before record theirs. Codes:
	// InvalidValue (n records no event, is of another graph, or its graph was destroyed), InvalidHandle.
	GraphSetEvent(t Thread, e GraphExec, n Node, ev Event) error
	// GraphDestroy and GraphExecDestroy release the handles; a running launch completes.
	GraphDestroy(t Thread, g Graph) error
	// GraphExecDestroy releases the executable.
	GraphExecDestroy(t Thread, e GraphExec) error
	// GraphDot writes the graph in DOT form to a file, for people.
	GraphDot(t Thread, g Graph, path string) error
}

// Failures tells of assertions that failed on a device that Recovers, each once, to the first call for a point that comes after it; other
// devices always say nil. Of several on one stream that nobody was told of, the first counts, since the others may follow from it. The
// methods wait for nothing and need no token.
type Failures interface {
	// StreamFailed returns what failed in the work that s has come to.
	StreamFailed(s Stream) error
	// EventFailed returns what failed in the work that e last recorded, if that is done.
	EventFailed(e Event) error
	// DeviceFailed returns what failed on any stream.
	DeviceFailed() error
}

// Module is loaded kernel code.
type Module uintptr

// FuncInfo tells what a kernel uses.
type FuncInfo struct {
	// Registers per thread, static shared and local bytes, and the most threads a block may have.
	Registers, SharedBytes, LocalBytes, MaxThreads int
}

// Modules loads kernel images.
type Modules interface {
	// LoadModule loads text of the format that Info().Image names; it may hold many kernels. Codes: InvalidPTX,
	// UnsupportedPTXVersion, NoBinaryForGPU, with the compiler's log as detail. Synchronous; legal in a capture.
	LoadModule(t Thread, text []byte) (Module, error)
	// UnloadModule releases it; its functions may not be running.
	UnloadModule(t Thread, m Module) error
	// Function finds the kernel named name and makes it ready, so that its first launch does no loading. Codes: NotFound.
	Function(t Thread, m Module, name string) (Func, error)
	// FuncInfo tells what f uses.
	FuncInfo(t Thread, f Func) (FuncInfo, error)
	// SetMaxShared allows f up to n bytes of dynamic shared memory.
	SetMaxShared(t Thread, f Func, n int) error
}
