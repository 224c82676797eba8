// Package nvtx labels what a program does, for the timelines of NVIDIA's profilers, Nsight Systems and Nsight Compute: ranges and marks, as
// in torch.cuda.nvtx. It must not depend on devices: it labels what the host does, and profilers show the launched work beside it.
//
// Nothing needs to be installed. A profiler names its library in NVTX_INJECTION64_PATH when it starts the program, and the first call of
// this package loads it. Without a profiler, a call costs a nanosecond or two. All functions are safe for concurrent use and do nothing to
// devices, streams and captures.
//
//	defer nvtx.Start("epoch").End()
package nvtx

import (
	"runtime"

	"tenon.dev/internal/lib/nvtx"
)

// Listening reports whether a profiler listens, for programs whose messages are expensive to build.
func Listening() bool { return nvtx.Listening() != nil }

// Mark puts a mark on the timeline at the current time.
func Mark(message string) {
	if t := nvtx.Listening(); t != nil {
		t.Mark(message)
	}
}

// Push begins a range within those that the goroutine has open. Profilers count them by thread, so the goroutine keeps its thread until
// Pop, which it must call itself; the thread is locked as by runtime.LockOSThread. depth is the number of ranges that were open; it is
// negative if no profiler listens.
func Push(message string) (depth int) {
	t := nvtx.Listening()
	if t == nil {
		return nvtx.NoTracking
	}
	runtime.LockOSThread()
	return t.Push(message)
}

// Pop ends the goroutine's latest range and returns the depth that Push returned for it. Every Pop needs its Push.
func Pop() (depth int) {
	t := nvtx.Listening()
	if t == nil {
		return nvtx.NoTracking
	}
	defer runtime.UnlockOSThread()
	return t.Pop()
}

// Range is a range that may begin and end on different goroutines and overlap others. The zero Range does nothing.
type Range struct{ id uint64 }

// Start begins a range.
func Start(message string) Range {
	if t := nvtx.Listening(); t != nil {
		return Range{t.Start(message)}
	}
	return Range{}
}

// End ends the range. Call it once.
func (r Range) End() {
	if t := nvtx.Listening(); t != nil && r.id != 0 {
		t.End(r.id)
	}
}
