// Package driver is the contract between the runtime and a device: small interfaces, typed handles and result codes. It must not depend on
// any device: libcuda and hostsim implement it independently.
//
// # Threads
//
// A CUDA context is bound to an operating-system thread; a goroutine is not. So every call that needs the context, or whose legality
// depends on which thread began a capture, takes a [Thread] token. Only [Device.Enter] makes a token, and it locks the goroutine to its
// thread until [Thread.Leave]. The hot calls (launch, event record, stream wait, asynchronous copy and memset on an explicit stream, graph
// launch) need no token and may be made from any goroutine.
//
// # Order
//
// "Stream-ordered" means that the call returns at once and its work runs after all earlier work of that stream. "Synchronous" means that
// the effect is complete when the call returns. [StreamLegacy], handle 0, is CUDA's legacy default stream: it waits for every blocking
// stream and they wait for it. The handle alone does not identify its device, so work may be queued on it only while the goroutine holds a
// token of that device; without one a CUDA device fails with InvalidContext.
//
// # Captures
//
// While a stream is being captured, no thread may wait for it, for its events or for the whole device. Calls that CUDA classes as
// potentially unsafe are illegal on the capturing thread, unless it captures under [CaptureRelaxed] or has switched its own mode to that.
// They are also illegal on all other threads while some thread captures under [CaptureGlobal]. These calls are MemAlloc, MemFree,
// HostAlloc, HostFree, StreamQuery, StreamSynchronize, EventQuery, EventSynchronize, GraphInstantiate, GraphExecDestroy, UnloadModule,
// PoolTrim, PoolKeep, PoolUsage, PoolResetPeaks, and MemAllocAsync and MemFreeAsync on streams that are not being captured. An illegal call
// fails with StreamCaptureUnsupported or the code of its cause, and invalidates the capture. drivertest/testdata/legality.txt lists the
// result of each call in each situation, as measured on an H200. It leaves out GraphChain, which is legal everywhere, and the GraphSet
// calls; treat those as unsafe, as the simulator does.
//
// # Errors
//
// Every failed call returns an *[Error] that names the call and holds a [Code] with CUDA's number, so errors.Is(err, OutOfMemory) works.
// After a device fault ([Code.Sticky]) every later call on that device returns the same code, except frees, which return no error.
package driver
