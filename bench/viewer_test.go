package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"tenon.dev/internal/snapshot"
	"tenon.dev/memviz"
)

// TestViewer measures tenon memviz on a trace of 10 million events (with -long; otherwise a short one): reading the pickle and writing the
// column file, opening that file until the first picture can be drawn, and tiles of all levels, requested as a browser would.
func TestViewer(t *testing.T) {
	events, rounds, tiles := 100_000, 1, 30
	if *longFlag {
		events, rounds, tiles = 10_000_000, 3, 400
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "trace.pickle")
	size := writeTrace(t, path, events)
	var imports, first []float64
	for range rounds {
		folder, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		closeRecording(t, openRecording(t, path, folder))
		imports = append(imports, float64(size)/1e6/time.Since(start).Seconds())

		start = time.Now()
		rec := openRecording(t, path, folder)
		v := newViewer(t, rec)
		v.picture()
		first = append(first, time.Since(start).Seconds())
		v.close()
		closeRecording(t, rec)
	}
	rec := openRecording(t, path, dir)
	defer closeRecording(t, rec)
	v := newViewer(t, rec)
	defer v.close()
	i := v.picture()
	var slowest float64
	for k := range tiles {
		level := k % (i.TopLevel + 1)
		index := k * 7919 % ((i.States-1)/(memviz.TileColumns<<level) + 1)
		start := time.Now()
		v.get(fmt.Sprintf("tile?device=0&view=active&level=%d&index=%d", level, index))
		slowest = max(slowest, float64(time.Since(start).Nanoseconds())/1e6)
	}
	t.Logf("%d events, %d MB: import %.0f MB/s, first picture in %.2f s, slowest of %d tiles %.1f ms", i.Events, size/1e6,
		slices.Max(imports), slices.Min(first), tiles, slowest)
	if *longFlag {
		recordFigure("viewer.import", "MB/s", imports)
		recordFigure("viewer.reopen", "s", first)
		recordFigure("viewer.tile", "ms", []float64{slowest})
	}
}

// writeTrace writes a snapshot with a trace of about n events, with about 2,000 live allocations at a time, and returns its size in bytes.
func writeTrace(t *testing.T, path string, n int) int64 {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: []snapshot.Note{{}}, Traces: make([][]snapshot.Event, 1)}
	for i := range 300 {
		var fs []snapshot.Frame
		for d := range 5 + i%20 {
			fs = append(fs, snapshot.Frame{File: fmt.Sprintf("model%d.go", d), Line: i + 10*d, Name: fmt.Sprintf("layer%d.step%d", i, d)})
		}
		s.Stacks.Add(fs)
	}
	const slot = 1 << 26
	live := make([]snapshot.Event, 2000) // one per slot of the address space; Size 0 is free
	trace := make([]snapshot.Event, 0, n+2)
	for len(trace) < n {
		k := rng.IntN(len(live))
		e := live[k]
		if e.Size == 0 {
			e = snapshot.Event{Action: snapshot.ActionAlloc, Addr: uint64(k+1) * slot, Size: 512 << min(rng.IntN(17), rng.IntN(17)),
				Stack:  snapshot.StackID(1 + rng.IntN(300)),
				TimeUS: int64(len(trace))}
			trace, live[k] = append(trace, e), e
			continue
		}
		live[k].Size = 0
		e.TimeUS = int64(len(trace))
		e.Action = snapshot.ActionFreeRequested
		trace = append(trace, e)
		e.Action = snapshot.ActionFreeCompleted
		trace = append(trace, e)
	}
	s.Traces[0] = trace
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := s.Write(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

func openRecording(t *testing.T, path, folder string) *memviz.Recording {
	t.Helper()
	rec, err := memviz.Open(path, memviz.Options{Cache: folder})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func closeRecording(t *testing.T, rec *memviz.Recording) {
	t.Helper()
	if err := rec.Close(); err != nil {
		t.Error(err)
	}
}

// viewer sends requests to a server as the page does.
type viewer struct {
	t     *testing.T
	url   string
	close func()
}

func newViewer(t *testing.T, rec *memviz.Recording) *viewer {
	t.Helper()
	s, err := memviz.NewServer(rec, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	return &viewer{t, s.URL(), func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}}
}

func (v *viewer) get(request string) []byte {
	v.t.Helper()
	res, err := http.Get(v.url + request)
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		v.t.Fatalf("%s: %s %v %.200s", request, res.Status, err, b)
	}
	return b
}

// picture requests what the page draws first.
func (v *viewer) picture() memviz.DeviceInfo {
	v.t.Helper()
	var info memviz.Info
	if err := json.Unmarshal(v.get("info"), &info); err != nil {
		v.t.Fatal(err)
	}
	d := info.Devices[0]
	v.get(fmt.Sprintf("tile?device=0&view=active&level=%d&index=0", d.TopLevel))
	for i := range 2 {
		v.get(fmt.Sprintf("tile?device=0&view=active&level=%d&index=%d", d.TopLevel-1, i))
	}
	v.get(fmt.Sprintf("at?device=0&state=%d&top=50", d.PeakState))
	return d
}
