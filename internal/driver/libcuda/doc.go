// Package libcuda implements the driver contract with NVIDIA's driver library, libcuda.so.1 or nvcuda.dll, which it loads at run time. It
// must not depend on the runtime above it, nor on the simulator: it only turns each method into driver calls.
//
// # Context
//
// A device is used through its primary context, because all libraries of the process (cuBLASLt, NCCL, ...) share it. Open retains it and
// Close releases it. Entry points come from cuGetProcAddress at version 12.0 with the legacy meaning of stream 0, so a newer driver still
// provides the same functions.
//
// # Several devices
//
// The first CopyPeer from a device requests direct access to its memory: cuCtxEnablePeerAccess once per context, and a separate call for
// each mapping and for the pool. Without direct access cuMemcpyPeerAsync itself copies through the host. One goroutine may hold tokens of
// several devices: each call makes the context of its own token's device current.
//
// # Hot calls
//
// Launch, EventRecord, StreamWait, copies, Memset, GraphLaunch and the queries allocate nothing. They pass stream, event and kernel handles
// that carry their context, so they work on a thread without a current context. StreamLegacy carries none: work on it fails with
// driver.InvalidContext unless the goroutine holds a token.
//
// # Copies from and to Go memory
//
// A Go slice is pageable memory. CopyHtoD stages the slice before it returns, so the slice may change at once; CopyDtoH to a slice returns
// when the bytes have arrived. Both first wait for the stream. A capture records the address itself, so the slice must stay reachable and
// in place for as long as the graph runs: Go's heap does not move, its stacks do.
//
// # Faults
//
// After a device fault every call of the device returns the fault's code without calling the driver, and frees return nil. The driver
// itself prints the message of a kernel's assert on the process's standard output or error; it cannot be read as text.
//
// With the build tag tenon_sim, and on systems without an NVIDIA driver, the package is a stub without devices.
package libcuda
