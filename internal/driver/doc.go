// Package driver is the contract between the runtime and a device: small interfaces, typed handles and result codes.
// It must not depend on any device: libcuda and hostsim implement it independently.
//
// # Threads
//
// A CUDA context is bound to an operating-system thread, and a goroutine is not. So every call that needs the context, or whose
// legality depends on a capture that some thread began, takes a [Thread] token; only [Device.Enter] makes one, and it locks the
// goroutine to its thread until [Thread.Leave]. The hot calls (launch, event record, stream wait, asynchronous copy and memset on
// an explicit stream, graph launch) take none and may be made from any goroutine.
//
// # Order
//
// "Stream-ordered" means: the call returns at once and its work happens after all earlier work of that stream. "Synchronous" means:
// the effect is complete when the call returns. [StreamLegacy], handle 0, is CUDA's legacy default stream: it waits for every
// blocking stream and they wait for it. The handle alone does not tell its device, so work on it is queued only while the goroutine
// holds a token of that device; without one a CUDA device fails with InvalidContext.
//
// # Captures
//
// While a stream is captured, waiting for it, for its events or for the whole device is illegal on every thread. Calls that CUDA names
// potentially unsafe are illegal on the thread that captures, unless it captures under [CaptureRelaxed] or has exchanged its own mode
// for it, and on all other threads while some thread captures under [CaptureGlobal]. They are MemAlloc, MemFree, HostAlloc, HostFree,
// StreamQuery, StreamSynchronize, EventQuery, EventSynchronize, GraphInstantiate, GraphExecDestroy, UnloadModule, PoolTrim, PoolKeep,
// PoolUsage, PoolResetPeaks, and MemAllocAsync and MemFreeAsync on streams that are not captured. An illegal call fails with
// StreamCaptureUnsupported or the code of its cause, and invalidates the capture. drivertest/testdata/legality.txt has the answer of each
// call in each situation, as an H200 gave it. GraphChain and the GraphSet calls are not in it: the first is legal everywhere; count the
// others among the unsafe ones, as the simulator does.
//
// # Errors
//
// Every failed call returns an *[Error] that names the call and holds a [Code] with CUDA's number, so errors.Is(err, OutOfMemory)
// works. After a device fault ([Code.Sticky]) every later call of that device returns the same code, except frees, which are silent.
package driver
