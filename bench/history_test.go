package bench

import (
	"bytes"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/snapshot"
)

// TestHistory measures what recording adds to an allocator event 20 calls deep, and what a snapshot of 40,000 events costs: taking it,
// taking and writing it, and reading it.
func TestHistory(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	d, st := x.Device(), x.Stream()
	pairs := func(count int) {
		for range count {
			addr, err := d.RawAlloc(4096, st)
			if err == nil {
				err = d.RawFree(addr)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	const count, events = 50_000, 3 // alloc, free_requested, free_completed
	var off, on []float64
	deep(20, func() {
		for range 12 {
			for _, h := range []cuda.History{{Enabled: cuda.HistoryOff}, {MaxEntries: 40_000}} {
				if err := d.RecordMemoryHistory(h); err != nil {
					t.Fatal(err)
				}
				pairs(1000)
				start := time.Now()
				pairs(count)
				ns := float64(time.Since(start).Nanoseconds()) / count
				if h.Enabled == cuda.HistoryOff {
					off = append(off, ns)
				} else {
					on = append(on, (ns-off[len(off)-1])/events)
				}
			}
		}
	})
	recordFigure("history.event", "ns", on)

	for i := range 20_000 {
		deep(i%40, func() { pairs(1) })
	}
	if s, err := d.Snapshot(); err != nil || len(s.Trace(0)) != 40_000 {
		t.Fatal("there are not 40,000 events", err)
	}
	var file bytes.Buffer
	measure := func(f func() error) (ms []float64) {
		for range 12 {
			start := time.Now()
			if err := f(); err != nil {
				t.Fatal(err)
			}
			ms = append(ms, float64(time.Since(start).Nanoseconds())/1e6)
		}
		return ms
	}
	recordFigure("snapshot", "ms", measure(func() error {
		_, err := d.Snapshot()
		return err
	}))
	recordFigure("snapshot.write", "ms", measure(func() error {
		s, err := d.Snapshot()
		if err != nil {
			return err
		}
		file.Reset()
		return s.Write(&file)
	}))
	rate := measure(func() error {
		_, err := snapshot.Read(bytes.NewReader(file.Bytes()), snapshot.ReadOptions{Events: func(int, []snapshot.Event) error {
			return nil
		}})
		return err
	})
	for i, ms := range rate {
		rate[i] = float64(file.Len()) / 1e3 / ms
	}
	recordFigure("snapshot.read", "MB/s", rate)
}

//go:noinline
func deep(n int, f func()) {
	if n == 0 {
		f()
		return
	}
	deep(n-1, f)
}
