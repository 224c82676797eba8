package snapshot_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// ofDevice makes the snapshot of one device, with a stack that all have and one of its own.
func ofDevice(device int, addr uint64) *snapshot.Snapshot {
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: []snapshot.Note{{}, {UserMetadata: "step"}},
		Traces:   make([][]snapshot.Event, device+1),
		Settings: map[string]any{"max_split_size": int64(device)}}
	own := s.Stacks.Add([]snapshot.Frame{{File: "own.go", Line: device, Name: "own"}})
	shared := s.Stacks.Add([]snapshot.Frame{{File: "main.go", Line: 1, Name: "main"}})
	s.Segments = []snapshot.Segment{{Device: device, Addr: addr, TotalSize: 1024, Allocated: 512, Active: 512, Requested: 500,
		Type: "small", Stack: shared,
		Blocks: []snapshot.Block{{Addr: addr, Size: 512, Requested: 500, State: snapshot.ActiveAllocated, Stack: own},
			{Addr: addr + 512, Size: 512}}}}
	s.Traces[device] = []snapshot.Event{{Action: snapshot.ActionAlloc, Addr: addr, Size: 500, Stack: own, Note: 1, TimeUS: int64(addr)}}
	s.Trees = []snapshot.Tree{{Device: device, Pool: [2]uint64{0, 9}, State: "idle"}}
	s.Annotations = []snapshot.Annotation{{Stage: "START", Name: "step", Device: device, TimeUS: int64(100 - device)}}
	return s
}

// TestJoin joins snapshots of devices 0 and 2, and reads back what is written of that.
func TestJoin(t *testing.T) {
	a, b := ofDevice(0, 1<<40), ofDevice(2, 1<<30)
	whole, err := snapshot.Join([]*snapshot.Snapshot{a, b})
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := whole.Write(&file); err != nil {
		t.Fatal(err)
	}
	again, err := snapshot.Read(&file, snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*snapshot.Snapshot{whole, again} {
		if len(s.Segments) != 2 || s.Segments[0].Device != 2 || s.Segments[1].Device != 0 || len(s.Traces) != 3 || len(s.Traces[1]) != 0 ||
			s.Stacks.Len() != 4 ||
			s.Settings["max_split_size"] != int64(0) || len(s.Annotations) != 2 || s.Annotations[0].Device != 2 ||
			len(s.Trees) != 2 || s.Trees[0].Device != 0 || s.Trees[1].Device != 2 {
			t.Errorf("%+v", s)
		}
		for i, part := range []*snapshot.Snapshot{b, a} {
			g, device := s.Segments[i], part.Segments[0].Device
			e := s.Traces[device][0]
			if got := s.Stacks.Frames(g.Blocks[0].Stack); len(got) != 1 || got[0].Line != device || s.Stacks.Frames(g.Stack)[0].Name !=
				"main" || g.Blocks[1].Stack != 0 {
				t.Errorf("device %d: stacks %v, %v", device, got, s.Stacks.Frames(g.Stack))
			}
			if e.Stack != g.Blocks[0].Stack || s.Notes[e.Note].UserMetadata != "step" || e.TimeUS != int64(g.Addr) {
				t.Errorf("device %d: event %+v", device, e)
			}
		}
	}
	if old := ofDevice(0, 1<<40); !reflect.DeepEqual(a.Segments, old.Segments) || !reflect.DeepEqual(a.Traces, old.Traces) {
		t.Error("a part was changed")
	}
	for _, parts := range [][]*snapshot.Snapshot{{a, a}, {a, b, ofDevice(0, 7)},
		{a, {Stacks: &snapshot.Stacks{}, Traces: a.Traces, Notes: a.Notes}}} {
		if _, err := snapshot.Join(parts); fault.KindOf(err) != fault.Invalid ||
			!strings.Contains(err.Error(), "two of the snapshots are of device 0") {
			t.Errorf("%d parts: %v", len(parts), err)
		}
	}
	many := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: make([]snapshot.Note, 1<<16),
		Traces: [][]snapshot.Event{nil, {{Note: 1<<16 - 1}}}}
	if s, err := snapshot.Join([]*snapshot.Snapshot{a, many}); err != nil || len(s.Notes) != 1<<16 || s.Traces[1][0].Note != 0 {
		t.Errorf("more notes than have room: %v", err)
	}
	if s, err := snapshot.Join(nil); err != nil || len(s.Segments) != 0 {
		t.Errorf("nothing joined: %v", err)
	}
}
