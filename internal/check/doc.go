// Package check watches the memory of simulated devices for defects that may leave results right by luck: accesses outside of allocations
// or to freed ones, reads of memory that was never written, races between threads of a kernel and between streams, leaks. It must not
// depend on any driver: whoever runs kernels reports memory, order and accesses to it, and it keeps shadow memory for them.
//
// # Shadow
//
// Each touched page of device memory has one bit per byte, set once the byte is written, and a cell for every four bytes (for every byte in
// pages with smaller accesses): the epoch, thread and source line of the last write and read. Epochs number the intervals between barriers,
// of all blocks of all launches, and every copy and fill. Two accesses in one epoch by different threads race; so do accesses of different
// blocks of a launch, unless the kernel has atomic operations on global memory, through which blocks may order themselves.
//
// # Streams
//
// Each stream has a vector clock: for every other stream, the last operation known to come before. Events and the host's waits join clocks.
// Two accesses of different operations race if neither is in the other's past. The host's knowledge is one clock for all goroutines, and a
// graph's launch is one operation: both may hide races but never invent them.
//
// A stream-ordered allocation counts as a write of all its bytes, which leaves them unwritten, and its free as another.
package check
