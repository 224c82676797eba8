// Package hostsim is the embedded simulated device: it follows CUDA's rules for streams, events, captures, memory and faults, and runs
// kernel IR programs on the host. It must not depend on tensors, allocators or libcuda; its users see only the driver contract and the test
// hooks of [Device].
//
// # Time
//
// The device has its own clock. In virtual time, the default, the clock advances only while the host waits (a Synchronize, a copy to
// pageable memory, a free) and by half a microsecond at each query that finds work pending. Queued work then runs on the waiting goroutine,
// in an order decided by the [Policy] and reproduced by its seed: a schedule depends only on the program and the seed. A kernel that spins
// on the clock advances it, so that a spin of 50 ms takes no time, and a query between it and the next wait always says "not ready". Host
// callbacks run on their own goroutines; if one is queued and the host does nothing for 10 ms, the device proceeds to it by itself, since
// the host may be waiting for the callback outside the driver.
//
// In real time a goroutine, started on demand, runs queued work at once, and a spin takes as long as its clock says.
//
// # Memory
//
// Device addresses lie above all host addresses, so that the two cannot be confused. Fresh memory holds the pattern FF 7F, which is a NaN
// in every float format; memory is not touched before it is used, so a simulated 140 GiB costs nothing.
//
// Virtual memory is a reserved range of host addresses, parts of which MemMap makes accessible; it needs Linux. The stream-ordered pool
// gives memory freed on a stream back to that stream at once, and to other streams when the stream gets there; what the pool holds stays
// accessible, as on a GPU. Under a memory checker the pool takes each allocation from the device, at addresses never used before. Memory
// allocated in a capture is accessible until its graph is destroyed; on a GPU it has no memory behind it before the first launch.
//
// # Several devices
//
// Each device of a machine has its own memory, streams and faults, and addresses 8 TiB apart. Clock and schedule belong to the machine, so
// a stream may wait for an event of another device, and a CopyPeer reads that device's memory when its stream gets there.
//
// # Faults
//
// A failed assertion ends only its kernel. The failure follows the order of streams, and the methods of driver.Failures report it once, to
// the first call about a later point. Any other fault loses the device, as on a GPU.
//
// # Inline
//
// [CPU] is the inline configuration: each call runs before it returns, its capacity is the machine's memory, and a kernel's fault is the
// error of the call that launched it, and of no other.
package hostsim
