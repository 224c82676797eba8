// Package hostsim is the embedded simulated device: it keeps CUDA's rules of streams, events, captures, memory and faults, and runs
// kernel IR programs on the host. It must not depend on tensors, allocators or libcuda; its users see only the driver contract and the
// hooks for tests on [Device].
//
// # Time
//
// The device has a clock of its own. In virtual time, the default, it moves only while the host waits (a Synchronize, a copy to
// pageable memory, a free) and by half a microsecond at each query that finds work pending. Queued work runs then, on the waiting
// goroutine, in an order that the [Policy] decides and a seed repeats: a schedule is a function of the program and the seed alone. A
// kernel that spins on the clock moves it, so that a spin of 50 ms takes no time, and a query between it and the next wait says "not
// ready" with certainty. Host callbacks run on goroutines of their own; while one is queued and the host does nothing for 10 ms, the
// device proceeds to it by itself, since the host may be waiting for the callback outside the driver.
//
// In real time a goroutine, started on demand, runs queued work at once, and a spin takes as long as its clock says.
//
// # Memory
//
// Device addresses lie above all host addresses, so that one cannot be taken for the other. Fresh memory holds the pattern FF 7F,
// which is a NaN in every float format; nothing is touched before it is used, so a simulated 140 GiB costs nothing.
//
// Virtual memory is addresses of the host set aside, of which MemMap makes parts accessible; it needs Linux. The pool of stream-ordered
// memory hands what was freed on a stream to that stream at once and to others when the stream got there; what it holds stays accessible,
// as on a GPU. Under a memory checker it takes each allocation from the device, at addresses of its own. Memory that a capture allocates is
// accessible until its graph is gone, where a GPU has none behind it before the first launch.
//
// # Several devices
//
// The devices of a machine have memory, streams and faults of their own, and addresses 8 TiB apart. Clock and schedule are the machine's,
// so a stream may wait for an event of another device, and a CopyPeer reads that device's memory when its stream gets there.
//
// # Faults
//
// A failed assertion ends its kernel alone. The failure follows the order of streams, and the methods of driver.Failures tell of it, once,
// whoever asks for a point after it. Any other fault loses the device, as a GPU's.
//
// # Inline
//
// [CPU] is the inline configuration: each call runs before it returns, there is no capacity, and a kernel's fault is the error of
// the call that launched it and of no other.
package hostsim
