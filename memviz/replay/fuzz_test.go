package replay

import (
	"slices"
	"testing"

	"tenon.dev/internal/cost"
	"tenon.dev/internal/snapshot"
)

// FuzzReplay replays recordings that no allocator would make, under the recording's settings and others: each replay returns a result or
// an error, and takes memory in proportion to the events.
func FuzzReplay(f *testing.F) {
	f.Add([]byte{5, 0, 8, 0, 0, 2, 2, 0, 2, 1, 0, 2, 0, 1, 3, 6, 0, 8}, uint64(1)<<40, "")
	f.Add([]byte{7, 0, 10, 0, 0, 9, 2, 0, 9, 4, 0, 1, 12, 0, 9, 13, 0, 9, 8, 0, 10}, uint64(0), "expandable_segments:True")
	f.Add([]byte{5, 0, 8, 0, 65, 2, 2, 65, 2, 1, 65, 2, 9, 1, 1}, uint64(1)<<63, "max_split_size_mb:32")
	f.Fuzz(func(t *testing.T, program []byte, base uint64, settings string) {
		s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: []snapshot.Note{{}}, Traces: make([][]snapshot.Event, 1)}
		if len(settings) > 0 && settings[0] == 'S' {
			s.Settings = map[string]any{"expandable_segments": true, "PYTORCH_CUDA_ALLOC_CONF": settings[1:]}
		}
		for op := range slices.Chunk(program[:min(len(program), 600)], 3) {
			if len(op) < 3 {
				break
			}
			shift := op[2] % 64
			// refused only if the device's memory is known; one page for each 20 MiB takes a while
			if 1<<shift > 64<<30 && 1<<shift <= Unlimited {
				shift -= 20
			}
			addr, size := base+uint64(op[1]%32)<<9, uint64(1)<<shift+uint64(op[2]/64)<<9
			switch {
			case op[0] < 12:
				s.Traces[0] = append(s.Traces[0], snapshot.Event{Action: snapshot.Action(op[0]), Addr: addr, Size: size,
					Stream: uint64(op[1] >> 6), TimeUS: int64(len(s.Traces[0]))})
			case op[0]%2 == 0:
				s.Segments = append(s.Segments, snapshot.Segment{Addr: addr, TotalSize: size, Type: "small", Expandable: op[0]%4 == 0,
					Stream: uint64(op[1] >> 6)})
			case len(s.Segments) > 0:
				g := &s.Segments[len(s.Segments)-1]
				g.Blocks = append(g.Blocks, snapshot.Block{Addr: addr, Size: size, Requested: uint64(op[2]),
					State: snapshot.BlockState(op[0] / 2 % 3)})
			}
		}
		cost.Within(t, 16<<20+len(program)<<19, func() {
			p, err := newProgram(s, nil)
			if err != nil {
				return
			}
			if c, err := p.Check(); err == nil && c.Exact() && len(s.Traces[0]) == 0 {
				t.Error("nothing was replayed exactly")
			}
			for _, o := range []Options{{}, {Settings: settings}, {Settings: settings, Memory: 300 * mib, Fraction: .5}} {
				if r, err := p.Run(o); err == nil && r.PeakReserved < r.PeakAllocated {
					t.Errorf("%d bytes are held, of which %d are in use", r.PeakReserved, r.PeakAllocated)
				}
			}
		})
	})
}
