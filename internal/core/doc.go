// Package core holds the tensors: Exec and Tensor, the table of operations with their derivatives, the funnel that every call passes,
// scopes, views and the tape. It must not depend on modules, optimizers or the compiler, which stand above it, nor on the drivers, which
// stand below package rt.
//
// The names of its files begin with the room that they belong to. From the bottom up:
//
//	tensor   a handle, its shape and strides, the storage behind it and the accesses that later work waits for
//	session  who may call: Exec and its modes, the gate that one goroutine passes at a time, scopes, errors, Close
//	call     one call as a value: frame, row, operands and attributes, the funnel, autocast, order on streams, launches
//	tape     gradients: nodes, views and their bases, hooks, checkpointed segments, the backward pass
//	graph    calls that run later: captures, deferred calls, segments, fusion, the numbers of generators
//	ops      the operations, one family a file
//	seam     what packages above core use besides the face: rows of their own, taps, what tensors hold
//
// A file uses its own room and those below. Calls back up, such as the funnel's record on the tape, are listed in internal/lint/rooms.go.
package core
