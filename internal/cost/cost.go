// Package cost bounds the memory and time of a call, for tests of functions that read untrusted input. It must not depend on what it
// measures.
package cost

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

// patience is how long a call may take before it counts as endless: a thousand times as long as the slowest call.
const patience = 2 * time.Minute

// Within calls f and fails the test if f allocates more than most bytes, garbage included. It panics if f does not return in time. A call
// that seems to allocate too much is repeated and counted exactly.
func Within(t testing.TB, most int, f func()) {
	t.Helper()
	stuck := time.AfterFunc(patience, func() { panic("the input is small, and its reading does not end") })
	defer stuck.Stop()
	before := counted()
	f()
	if counted()-before <= uint64(most) {
		return
	}
	if n := Of(f); n > uint64(most) {
		t.Errorf("%d bytes were allocated, and at most %d may be", n, most)
	}
}

// Of returns how many bytes f allocates, garbage included. Allocations of other goroutines count too.
func Of(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// counted returns how many bytes the process has allocated, except in partly filled spans; it does not stop the world.
func counted() uint64 {
	s := [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s[:])
	return s[0].Value.Uint64()
}
