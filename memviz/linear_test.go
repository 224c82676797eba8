package memviz

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"tenon.dev/internal/snapshot"
)

// Segments that are allocated and freed in any order take time in proportion to their number: a second here, while moving everything
// above each would take a quarter of an hour.
func TestManySegments(t *testing.T) {
	const n, gone, size = 1 << 20, 1 << 16, 2 << 20
	f := newFollower(0, newColumnWriter(io.Discard))
	var events []snapshot.Event
	for i := range uint64(n) {
		events = append(events, snapshot.Event{Action: snapshot.ActionSegmentAlloc, Addr: (n - i) * size, Size: size})
	}
	for i := range uint64(gone) {
		events = append(events, snapshot.Event{Action: snapshot.ActionSegmentFree, Addr: (i + 1) * size, Size: size})
	}
	if err := f.follow(events); err != nil {
		t.Fatal(err)
	}
	if f.held.Len() != n-gone || f.segments.len() != n || f.segmentsBefore.len() != 0 {
		t.Errorf("at the end %d are held, of %d and %d before", f.held.Len(), f.segments.len(), f.segmentsBefore.len())
	}
	for i := range gone {
		if got, want := f.segments.end[n-1-i], uint32(n+i+1); got != want {
			t.Fatalf("segment %d ends in state %d, want %d", i, got, want)
		}
	}
}

// The first range that holds an address is found, however the ranges overlap.
func TestCover(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		c := newCover()
		var ranges [][2]uint64
		for n := range 40 {
			addr, size := rnd.Uint64N(300), rnd.Uint64N(1+seed%60)
			c.add(addr, size, n)
			ranges = append(ranges, [2]uint64{addr, addr + size})
			for a := range uint64(400) {
				want := -1
				for i, r := range ranges {
					if a >= r[0] && a < r[1] {
						want = i
						break
					}
				}
				if got, ok := c.find(a); ok != (want >= 0) || ok && got != want {
					t.Fatalf("seed %d: %d lies in range %d, want %d of %v", seed, a, got, want, ranges)
				}
			}
		}
	}
}

// Nested calls do not exhaust Go's stack, however deep they are.
func TestDeepStack(t *testing.T) {
	var out strings.Builder
	if err := WriteFlameGraph(&out, strings.NewReader(strings.Repeat("a;", 3_000_000)+"b 1000\na;c 10\n"), "deep"); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), `<g class="f"`); n != flameDeep+2 { // and "all", and c
		t.Errorf("%d frames are drawn", n)
	}
}

// A setting that is not a finite number is shown by its name, since JSON has no such number.
func TestOddSettings(t *testing.T) {
	rec := recordingOf(t, &snapshot.Snapshot{Stacks: &snapshot.Stacks{},
		Traces: [][]snapshot.Event{{{Action: snapshot.ActionAlloc, Addr: 512, Size: 512}}},
		Settings: map[string]any{"nan": math.NaN(), "more": map[string]any{"inf": math.Inf(1), "less": math.Inf(-1)}, "one": 1.5,
			"two": int64(2)}})
	body, _, err := (&viewer{rec: rec}).answer("info", url.Values{})
	if err != nil {
		t.Fatal(err)
	}
	var info Info
	if err := json.Unmarshal(body, &info); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(info.Settings), "map[more:map[inf:+Inf less:-Inf] nan:NaN one:1.5 two:2]"; got != want {
		t.Errorf("the settings are %s, want %s", got, want)
	}
}

// A connection does not stay open forever, whatever its other end does.
func TestServerLimits(t *testing.T) {
	s, err := NewServer(synthetic(t, 1, 10), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.listener.Close()
	if h := &s.http; h.ReadHeaderTimeout <= 0 || h.ReadTimeout <= 0 || h.WriteTimeout <= 0 || h.IdleTimeout <= 0 || h.MaxHeaderBytes <= 0 {
		t.Errorf("the server waits %v for headers, %v for requests, %v for answers to be taken, %v for the next request, and takes "+
			"headers of %d bytes",
			h.ReadHeaderTimeout, h.ReadTimeout, h.WriteTimeout, h.IdleTimeout, h.MaxHeaderBytes)
	}
}
