package alloc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tenon.dev/fault"
)

// actions returns the trace as text: action, size and context.
func actions(entries []TraceEntry) []string {
	var s []string
	for _, e := range entries {
		s = append(s, fmt.Sprint(e.Action, " ", e.Size, " ", e.Context))
	}
	return s
}

func (b bench) trace(want ...string) {
	b.t.Helper()
	if have := actions(b.Snapshot().Trace); !slices.Equal(have, want) {
		b.t.Errorf("the trace is %q, want %q", have, want)
	}
}

func TestTraceOrder(t *testing.T) {
	b := newBench(t, 100*mib, "", Options{})
	b.ok(b.RecordHistory(History{Enabled: HistoryAll}))
	start := time.Now().UnixMicro()
	k := b.alloc(1000, 3)
	at := k.Addr()
	b.free(k)
	b.ok(b.EmptyCache())
	_, err := b.Alloc(500*mib, 3)
	b.fails(err, fault.OutOfMemory, "")
	s := b.Snapshot()
	want := []TraceEntry{{ActionSegmentAlloc, at, 2 * mib, 3, 0, nil}, {ActionAlloc, at, 1000, 3, 0, nil},
		{ActionFreeRequested, at, 1000, 3, 0, nil},
		{ActionFreeCompleted, at, 1000, 3, 0, nil}, {ActionSegmentFree, at, 2 * mib, 3, 0, nil},
		{ActionOOM, 100 * mib, 500 * mib, 3, 0, nil}}
	if len(s.Trace) != len(want) {
		t.Fatalf("the trace is %q", actions(s.Trace))
	}
	for i, e := range s.Trace {
		if e.Time < start || e.Time > time.Now().UnixMicro() {
			t.Errorf("entry %d is of %d", i, e.Time)
		}
		if e.Time = 0; e != want[i] {
			t.Errorf("entry %d is %+v, want %+v", i, e, want[i])
		}
	}
	b.trace(append(actions(s.Trace), "snapshot 0 <nil>")...)
}

func TestTraceExpandable(t *testing.T) {
	b := newBench(t, 1<<30, "expandable_segments:True", Options{})
	b.ok(b.RecordHistory(History{Enabled: HistoryAll}))
	b.free(b.alloc(25*mib, 0))
	b.ok(b.EmptyCache())
	b.trace(fmt.Sprint("segment_map ", 40*mib, " <nil>"), fmt.Sprint("alloc ", 25*mib, " <nil>"),
		fmt.Sprint("free_requested ", 25*mib, " <nil>"),
		fmt.Sprint("free_completed ", 25*mib, " <nil>"), fmt.Sprint("segment_unmap ", 40*mib, " <nil>"))
}

// TestContexts is the matrix of CUDA-127 and 129: which level shows which contexts.
func TestContexts(t *testing.T) {
	for level, want := range map[Level][]string{
		LevelNever: {"segment_alloc 2097152 <nil>", "alloc 100 <nil>", "free_requested 100 <nil>", "free_completed 100 <nil>",
			"segment_free 2097152 <nil>"},
		LevelState: {"segment_alloc 2097152 <nil>", "alloc 100 <nil>", "free_requested 100 <nil>", "free_completed 100 <nil>",
			"segment_free 2097152 <nil>"},
		LevelAlloc: {"segment_alloc 2097152 make", "alloc 100 make", "free_requested 100 make", "free_completed 100 make",
			"segment_free 2097152 make"},
		LevelAll: {"segment_alloc 2097152 make", "alloc 100 make", "free_requested 100 drop", "free_completed 100 drop",
			"segment_free 2097152 empty"},
	} {
		b := newBench(t, 1<<30, "", Options{})
		where := "make"
		b.ok(b.RecordHistory(History{Enabled: HistoryAll, Context: level, Collect: func() any { return where }}))
		k := b.alloc(100, 0)
		kept := any("make")
		if level == LevelNever {
			kept = nil
		}
		if info := b.Segments()[0]; k.Context() != kept || info.Context != kept || info.Blocks[0].Context != kept ||
			info.Blocks[1].Context != nil {
			t.Errorf("level %d: the block's context is %v, the segment's %v", level, k.Context(), info.Context)
		}
		where = "drop"
		b.free(k)
		where = "empty"
		b.ok(b.EmptyCache())
		b.trace(want...)
	}
}

func TestHistoryRing(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{})
	b.ok(b.RecordHistory(History{Enabled: HistoryAll, MaxEntries: 3}))
	for i := range uint64(5) {
		b.alloc(i+1, 0)
	}
	have := actions(b.ring.read())
	if want := []string{"alloc 3 <nil>", "alloc 4 <nil>", "alloc 5 <nil>"}; !slices.Equal(have, want) {
		t.Errorf("the ring holds %q", have)
	}
	b.ok(b.RecordHistory(History{Enabled: HistoryAll, MaxEntries: 2, Context: LevelAlloc, Collect: func() any { return "here" }}))
	b.alloc(6, 0)
	b.trace("alloc 5 <nil>", "alloc 6 here") // switching the context keeps the entries
	b.ok(b.RecordHistory(History{Enabled: HistoryState}))
	b.alloc(7, 0)
	b.trace("alloc 7 <nil>")
	b.ok(b.RecordHistory(History{}))
	b.alloc(8, 0)
	b.trace()
	b.fails(b.RecordHistory(History{Enabled: HistoryAll, MaxEntries: -1}), fault.Invalid, "MaxEntries is -1")
	b.fails(b.RecordHistory(History{Enabled: HistoryAll, Context: LevelAll}), fault.Invalid, "needs a Collect function")
}

func TestParseHistory(t *testing.T) {
	for _, c := range []struct {
		enabled, context string
		want             History
		err              string
	}{
		{"", "", History{}, ""},
		{"state", "state", History{Enabled: HistoryState, Context: LevelState}, ""},
		{"all", "alloc", History{Enabled: HistoryAll, Context: LevelAlloc}, ""},
		{"all", "all", History{Enabled: HistoryAll, Context: LevelAll}, ""},
		{"some", "", History{}, "expected state to be 'state', 'all', or empty"},
		{"all", "some", History{}, "expected context to be 'state', 'alloc', 'all', or empty"},
	} {
		h, err := ParseHistory(c.enabled, c.context)
		if (err != nil) != (c.err != "") || err != nil && err.Error() != c.err {
			t.Errorf("%q, %q: error %v, want %q", c.enabled, c.context, err, c.err)
		}
		if err == nil && (h.Enabled != c.want.Enabled || h.Context != c.want.Context) {
			t.Errorf("%q, %q: %+v", c.enabled, c.context, h)
		}
	}
}

// TestSnapshot frees 1000 blocks in a random order and finds a live one by its size, as CUDA-122 does.
func TestSnapshot(t *testing.T) {
	b := newBench(t, 1<<30, "", Options{Index: 1})
	d, live := b.Device, []*Block(nil)
	for range 1000 {
		live = append(live, b.alloc(512, 0))
	}
	k := b.alloc(311*411*4, 0)
	for i := range live {
		b.free(live[i*617%1000])
	}
	id := NewPoolID()
	b.into(id, 5, func() { b.alloc(2560, 5) })
	s := d.Snapshot()
	found := false
	var total, active uint64
	for _, g := range s.Segments {
		if g.Device != 1 || g.Large || g.Expandable || g.TotalSize != 2*mib {
			t.Errorf("segment %+v", g)
		}
		if (g.Stream == 5) != (g.Pool == id) {
			t.Errorf("a segment of stream %d and pool %v", g.Stream, g.Pool)
		}
		total, active = total+g.TotalSize, active+g.Active
		for _, i := range g.Blocks {
			if i.Requested == 311*411*4 {
				found = i.Addr == k.Addr() && i.State == ActiveAllocated
			}
		}
	}
	if !found {
		t.Error("the block is not in the snapshot")
	}
	b.want("reserved_bytes.all.current", int64(total))
	b.want("active_bytes.all.current", int64(active))
	if s.Settings != DefaultSettings() {
		t.Errorf("settings %+v", s.Settings)
	}
}

// TestHistoryLong fills rings of several chunks, and bounds one later.
func TestHistoryLong(t *testing.T) {
	for _, limit := range []int{0, 1, ringChunk - 1, ringChunk, ringChunk + 1, 5*ringChunk + 7} {
		const n = 12*ringChunk + 5
		r := ring{limit: limit}
		for i := range uint64(n) {
			r.add(TraceEntry{Size: i})
		}
		have := r.read()
		want := n
		if limit > 0 {
			want = limit
		}
		if len(have) != want {
			t.Fatalf("limit %d: %d entries, want %d", limit, len(have), want)
		}
		for i, e := range have {
			if e.Size != uint64(n-want+i) {
				t.Fatalf("limit %d: entry %d is number %d", limit, i, e.Size)
			}
		}
	}
	b := newBench(t, 1<<30, "", Options{})
	b.ok(b.RecordHistory(History{Enabled: HistoryAll}))
	for range 1500 {
		b.free(b.alloc(100, 0))
	}
	b.ok(b.RecordHistory(History{Enabled: HistoryAll, MaxEntries: 1200}))
	b.alloc(200, 0)
	have := b.ring.read()
	if len(have) != 1200 || have[1199].Size != 200 || have[1198].Action != ActionFreeCompleted {
		t.Errorf("%d entries remain, the last are %v", len(have), have[len(have)-2:])
	}
}
