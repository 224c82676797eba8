package alloc

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"tenon.dev/fault"
)

// TestAdopt adopts the segments that random programs leave, and frees their blocks as the programs' own allocators do.
func TestAdopt(t *testing.T) {
	live, ranges := 0, 0
	for seed := range uint64(40) {
		p, err := newProgram(randomCode(rand.New(rand.NewPCG(seed, 9)), 600), 1<<40, programConfs[seed%5])
		if err != nil {
			t.Fatal(err)
		}
		for len(p.code) > 0 {
			if err := p.step(p.byte()); err != nil {
				t.Fatal(err)
			}
		}
		p.f.OpenAll()
		if err := p.d.EmptyCache(); err != nil {
			t.Fatal(err)
		}
		want := p.d.Segments()
		f := newFakeDevice(1 << 40)
		for i := range want {
			s := &want[i]
			s.Allocated = s.Active // Adopt treats blocks pending free as live
			for k := range s.Blocks {
				if s.Blocks[k].State == ActivePendingFree {
					s.Blocks[k].State = ActiveAllocated
				}
			}
			f.used += s.TotalSize
			if !s.Expandable {
				f.segments[s.Addr] = s.TotalSize
				continue
			}
			page := uint64(smallBuffer)
			if s.Large {
				page = largeBuffer
			}
			for at := s.Addr; at < s.Addr+s.TotalSize; at += page {
				f.pages[at] = page
			}
		}
		settings := p.d.Settings()
		d := New(f, Options{Settings: &settings})
		blocks, err := d.Adopt(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range d.segments {
			if g.page != 0 {
				f.ranges[g.addr] = g.size
				ranges++
			}
		}
		for i, have := range d.Segments() {
			if !reflect.DeepEqual(have, want[i]) {
				t.Fatalf("seed %d: adopted\n%+v\nof\n%+v", seed, have, want[i])
			}
		}
		if err := check(d, f); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		have, theirs := d.Stats(), p.d.Stats()
		for i, a := range have.families() {
			for k := range a {
				if familyNames[i] != "allocation" && familyNames[i] != "allocated_bytes" &&
					a[k].Current != theirs.families()[i][k].Current {
					t.Errorf("seed %d: %s is %d, was %d", seed, familyNames[i], a[k].Current, theirs.families()[i][k].Current)
				}
			}
		}
		live += len(blocks)
		for _, b := range blocks {
			if err := d.Free(b); err != nil {
				t.Fatal(err)
			}
			if err := check(d, f); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		for _, q := range slices.Clone(d.private) {
			if err := d.ReleasePool(q.id); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.EmptyCache(); err != nil {
			t.Fatal(err)
		}
		if len(d.segments) != 0 || len(f.segments) != 0 || len(d.private) != 0 {
			t.Fatalf("seed %d: %d segments stay", seed, len(d.segments))
		}
	}
	if live < 500 || ranges < 20 {
		t.Errorf("only %d blocks and %d ranges were adopted", live, ranges)
	}
}

func TestAdoptErrors(t *testing.T) {
	good := func() SegmentInfo {
		return SegmentInfo{Addr: 1 << 30, TotalSize: 2 * mib, Blocks: []BlockInfo{
			{Addr: 1 << 30, Size: mib, Requested: 100, State: ActiveAllocated}, {Addr: 1<<30 + mib, Size: mib}}}
	}
	for name, c := range map[string]struct {
		change func(*SegmentInfo)
		part   string
	}{
		"gap":       {func(s *SegmentInfo) { s.Blocks[1].Addr += 512 }, "does not fit into the segment at 0x40000000"},
		"odd":       {func(s *SegmentInfo) { s.Blocks[0].Size = 100 }, "does not fit"},
		"empty":     {func(s *SegmentInfo) { s.Blocks[0].Size = 0 }, "does not fit"},
		"requested": {func(s *SegmentInfo) { s.Blocks[0].Requested = 2 * mib }, "does not fit"},
		"nothing":   {func(s *SegmentInfo) { s.Blocks[0].Requested = 0 }, "does not fit"},
		"short":     {func(s *SegmentInfo) { s.TotalSize *= 2 }, "hold 2097152 bytes, the segment 4194304"},
		"blockless": {func(s *SegmentInfo) { s.Blocks = nil }, "hold 0 bytes"},
		"pool":      {func(s *SegmentInfo) { s.Pool = PoolID{1, 1} }, "the pool id (1, 1)"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1<<30, "", Options{})
			s := good()
			c.change(&s)
			_, err := b.Adopt([]SegmentInfo{s})
			b.fails(err, fault.Invalid, c.part)
		})
	}
	for _, by := range []int64{0, mib, -mib} {
		b := newBench(t, 1<<30, "", Options{})
		first, second := good(), good()
		b.f.segments[first.Addr], b.f.used = first.TotalSize, first.TotalSize
		second.Addr += uint64(by)
		for i := range second.Blocks {
			second.Blocks[i].Addr += uint64(by)
		}
		live, err := b.Adopt([]SegmentInfo{first, second})
		b.fails(err, fault.Invalid, "overlaps another")
		if len(live) != 1 {
			t.Errorf("%d live blocks before the error", len(live))
		}
	}
	// The runs of one expandable segment, which are adopted together, must not overlap either.
	page := uint64(2 * mib)
	for _, by := range []uint64{0, page, 3 * page} {
		b := newBench(t, 1<<30, "", Options{})
		run := func(addr uint64) SegmentInfo {
			return SegmentInfo{Addr: addr, TotalSize: 4 * page, Expandable: true, Blocks: []BlockInfo{{Addr: addr, Size: 4 * page}}}
		}
		for _, runs := range [][]SegmentInfo{{run(1 << 30), run(1<<30 + by)}, {run(1<<30 + by), run(1 << 30)}} {
			live, err := b.Adopt(runs)
			b.fails(err, fault.Invalid, "overlaps another")
			if len(live) != 0 || len(b.Segments()) != 0 {
				t.Errorf("%d live blocks in %d segments are left", len(live), len(b.Segments()))
			}
		}
	}
}
