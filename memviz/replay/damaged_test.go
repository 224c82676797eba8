package replay

import (
	"math/rand/v2"
	"testing"

	"tenon.dev/internal/snapshot"
)

// TestDamaged replays recordings with entries lost, repeated, exchanged and altered. Whatever a file contains, the answer is a result or
// an error.
func TestDamaged(t *testing.T) {
	failed, inexact := 0, 0
	for _, name := range []string{"extra_streams", "extra_expandable", "small_p4"} {
		whole := open(t, name)
		for seed := range uint64(150) {
			rnd := rand.New(rand.NewPCG(seed, 6))
			s := *whole
			s.Traces = [][]snapshot.Event{damage(rnd, whole.Traces[0])}
			s.Segments = damageSegments(rnd, whole.Segments)
			p, err := newProgram(&s, nil)
			if err != nil {
				failed++
				continue
			}
			c, err := p.Check()
			if err != nil {
				failed++
			} else if !c.Exact() {
				inexact++
			}
			for _, o := range []Options{{}, {Settings: "expandable_segments:True"}, {Settings: "max_split_size_mb:32", Memory: 300 * mib}} {
				if _, err := p.Run(o); err != nil {
					failed++
				}
			}
		}
	}
	t.Logf("%d damaged recordings give a replay that is another; %d replays fail", inexact, failed)
	if inexact < 200 {
		t.Error("too few are another: the damage is too small to prove anything")
	}
}

var oddNumbers = []uint64{0, 1, 511, 512, 1 << 20, 1<<20 + 1, 20 << 20, 1 << 40, 1 << 59, 1 << 60, 1 << 63, 1<<64 - 1, 1<<64 - 512}

// damage returns a copy of a trace with a few entries changed.
func damage(rnd *rand.Rand, trace []snapshot.Event) []snapshot.Event {
	events := append([]snapshot.Event(nil), trace...)
	for range 1 + rnd.IntN(6) {
		i, k := rnd.IntN(len(events)), rnd.IntN(len(events))
		switch rnd.IntN(7) {
		case 0:
			events = append(events[:i], events[i+1:]...)
		case 1:
			events[i] = events[k]
		case 2:
			events[i], events[k] = events[k], events[i]
		case 3:
			events[i].Size = oddNumbers[rnd.IntN(len(oddNumbers))]
		case 4:
			events[i].Addr = oddNumbers[rnd.IntN(len(oddNumbers))]
		case 5:
			events[i].Action = snapshot.Action(rnd.IntN(12))
		case 6:
			events[i].Stream = uint64(rnd.IntN(3))
		}
	}
	return events
}

// damageSegments returns a copy of the segments, changed half of the time.
func damageSegments(rnd *rand.Rand, segments []snapshot.Segment) []snapshot.Segment {
	out := append([]snapshot.Segment(nil), segments...)
	if rnd.IntN(2) == 0 {
		return out
	}
	g := &out[rnd.IntN(len(out))]
	g.Blocks = append([]snapshot.Block(nil), g.Blocks...)
	b := &g.Blocks[rnd.IntN(len(g.Blocks))]
	odd := oddNumbers[rnd.IntN(len(oddNumbers))]
	switch rnd.IntN(8) {
	case 0:
		g.Addr = odd
	case 1:
		g.TotalSize = odd
	case 2:
		g.Pool = [2]uint64{odd, odd % 2}
	case 3:
		g.Type = "other"
	case 4:
		g.Blocks = nil
	case 5:
		b.Addr = odd
	case 6:
		b.Size, b.Requested = odd, odd/2
	case 7:
		b.State = snapshot.BlockState(odd % 4)
	}
	return out
}
