// Package cost bounds the memory and time of a call, for tests of functions that read untrusted input. It must not depend on what it
// measures.
package cost

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

// patience is how long a call may take before it counts as one that does not end: a thousand times what the longest of them takes.
const patience = 2 * time.Minute

// Within calls f and fails the test where f allocates more than most bytes, garbage included. It panics where f does not end. A call that
// seems to have taken too much is made once more, and counted exactly.
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

// Of returns how many bytes f allocates, garbage included. Other goroutines' count too.
func Of(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// counted returns how many bytes the process has allocated, without those of spans that are being filled; it stops nothing.
func counted() uint64 {
	s := [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s[:])
	return s[0].Value.Uint64()
}
