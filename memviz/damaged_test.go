package memviz

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/internal/snapshot"
	"tenon.dev/memviz/replay"
)

// TestDamagedPrograms changes snapshots of random programs in a few places, as no allocator would write them: whatever the damage, each
// part reports an error or works with the data, within bounded memory.
func TestDamagedPrograms(t *testing.T) {
	programs := uint64(60)
	if *long {
		programs = 3000
	}
	confs := []string{"", "expandable_segments:True", "max_split_size_mb:24"}
	for seed := range programs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := drive(t, seed, confs[seed%3])
			p.record(0)
			for range 300 {
				p.step()
			}
			s := p.snapshot()
			rng := rand.New(rand.NewPCG(seed, 5))
			for range 1 + rng.IntN(6) {
				damageTrace(s, rng)
			}
			if rng.IntN(2) == 0 {
				damageSegment(s, rng)
			}
			if rec := recordingOf(t, s); useAll(rec) != nil {
				t.Errorf("a request is refused: %v", useAll(rec))
			}
			var raw bytes.Buffer
			if err := s.Write(&raw); err != nil {
				t.Fatal(err)
			}
			if program, err := replay.Read(bytes.NewReader(raw.Bytes())); err == nil {
				_, _ = program.Check() // contradictions are errors
				for _, conf := range confs {
					if r, err := program.Run(replay.Options{Settings: conf, Memory: 200 << 20}); err == nil &&
						(r.Fragmentation < 0 || r.Fragmentation > 1) {
						t.Errorf("%q: %+v", conf, r)
					}
				}
			}
			for _, write := range []func(io.Writer, io.Reader, string) error{WriteStats, WriteSegments, WriteMemory, WriteTrace} {
				if err := write(io.Discard, bytes.NewReader(raw.Bytes()), "damaged"); err != nil {
					t.Error(err)
				}
			}
			if err := s.WriteTrace(io.Discard); err != nil {
				t.Error(err)
			}
			if err := s.WriteProfile(io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
}

// anyNumber returns a random number of random length.
func anyNumber(rng *rand.Rand) uint64 { return rng.Uint64() >> rng.IntN(64) }

// damageTrace changes one event.
func damageTrace(s *snapshot.Snapshot, rng *rand.Rand) {
	trace := s.Traces[0]
	i, o := rng.IntN(len(trace)), trace[rng.IntN(len(trace))]
	switch e := &trace[i]; rng.IntN(8) {
	case 0:
		trace = slices.Delete(trace, i, i+1)
	case 1:
		trace = slices.Insert(trace, i, o)
	case 2:
		e.Addr = o.Addr
	case 3:
		e.Size = o.Size
	case 4:
		e.Stream = o.Stream
	case 5:
		e.Action = o.Action
	case 6:
		e.Size = anyNumber(rng)
	case 7:
		e.Addr = anyNumber(rng)
	}
	s.Traces[0] = trace
}

// damageSegment changes one segment.
func damageSegment(s *snapshot.Snapshot, rng *rand.Rand) {
	if len(s.Segments) == 0 {
		return
	}
	g := &s.Segments[rng.IntN(len(s.Segments))]
	b := &g.Blocks[rng.IntN(len(g.Blocks))]
	switch rng.IntN(6) {
	case 0:
		g.Addr += 512
	case 1:
		g.TotalSize = anyNumber(rng)
	case 2:
		g.Blocks = g.Blocks[:len(g.Blocks)/2]
	case 3:
		g.Expandable = !g.Expandable
	case 4:
		b.Size = anyNumber(rng)
	case 5:
		b.Requested = anyNumber(rng)
	}
}
