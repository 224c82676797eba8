// Package libcuda implements the driver contract over NVIDIA's driver library, libcuda.so.1 or nvcuda.dll, which it loads at run time.
// It must not depend on the runtime above it, nor on the simulator: it only turns each method into calls of the driver.
//
// # Context
//
// A device is used through its primary context, because every library of the process (cuBLASLt, NCCL, ...) shares that one. Open
// retains it and Close releases it. Entry points come from cuGetProcAddress at version 12.0 with the legacy meaning of stream 0, so
// a newer driver still serves the same functions.
//
// # Several devices
//
// The first CopyPeer from a device asks for direct access to its memory (cuCtxEnablePeerAccess), to memory that is mapped or comes from the
// pool one by one. Where there is none, cuMemcpyPeerAsync goes through the host by itself. Tokens of several devices may be held by one
// goroutine: each call makes the context of its own token's device current.
//
// # Hot calls
//
// Launch, EventRecord, StreamWait, copies, Memset, GraphLaunch and the queries allocate nothing. They pass stream, event and kernel
// handles that carry their context, so they work on a thread that has none current. StreamLegacy carries none: work on it fails with
// driver.InvalidContext unless the goroutine holds a token.
//
// # Copies from and to Go memory
//
// A Go slice is pageable memory. CopyHtoD of one stages it before it returns, so the slice may change at once; CopyDtoH to one
// returns when the bytes are there. Both first wait for the stream. In a capture the address itself is recorded, so the slice must
// stay reachable and in place as long as the graph runs: Go's heap does not move, its stacks do.
//
// # Faults
//
// After a device fault every call of the device returns the fault's code without asking the driver, and frees return nil. What a
// kernel's assert says is printed by the driver itself on the process's standard output or error; it cannot be had as text.
//
// With the build tag tenon_sim, and where NVIDIA has no driver, the package is a stub whose devices do not exist.
package libcuda
