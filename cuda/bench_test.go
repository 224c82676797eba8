package cuda_test

import (
	"io"
	"testing"

	"tenon.dev/cuda"
)

// pairs allocates and frees memory 20 calls deep: three events each.
func pairs(b *testing.B, d *cuda.Device, s *cuda.Stream) {
	deep(20, func() {
		for b.Loop() {
			addr, err := d.RawAlloc(4096, s)
			if err == nil {
				err = d.RawFree(addr)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

//go:noinline
func deep(n int, f func()) {
	if n == 0 {
		f()
		return
	}
	deep(n-1, f)
}

// BenchmarkRecording measures an allocation and its free, three events, with the history off and on.
func BenchmarkRecording(b *testing.B) {
	for _, c := range []struct {
		name string
		h    cuda.History
	}{
		{"off", cuda.History{Enabled: cuda.HistoryOff}},
		{"state", cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextState}},
		{"alloc", cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextAlloc, MaxEntries: 100_000}},
		{"all", cuda.History{MaxEntries: 100_000}},
		{"unbounded", cuda.History{}},
	} {
		b.Run(c.name, func(b *testing.B) {
			_, d := open(b, 1<<30)
			s, err := d.Stream()
			ok(b, err)
			ok(b, d.RecordMemoryHistory(c.h))
			b.ReportAllocs()
			pairs(b, d, s)
		})
	}
}

// BenchmarkSnapshot takes, and then writes, a snapshot of 40,000 events with 50 different stacks of about 25 calls.
func BenchmarkSnapshot(b *testing.B) {
	_, d := open(b, 1<<30)
	s, err := d.Stream()
	ok(b, err)
	ok(b, d.RecordMemoryHistory(cuda.History{MaxEntries: 40_000}))
	for i := range 20_000 {
		deep(5+i%25, func() {
			addr, err := d.RawAlloc(4096, s)
			ok(b, err)
			ok(b, d.RawFree(addr))
		})
	}
	b.Run("take", func(b *testing.B) {
		for b.Loop() {
			_, err := d.Snapshot()
			ok(b, err)
		}
	})
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			snap, err := d.Snapshot()
			ok(b, err)
			ok(b, snap.Write(io.Discard))
		}
	})
}
