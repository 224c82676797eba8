package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
)

// recorder runs a program on its own allocator and records it.
type recorder struct {
	t      *testing.T
	d      *alloc.Device
	dev    *device
	stack  snapshot.StackID // of the current call
	stacks snapshot.Stacks
	live   []*alloc.Block
	held   []int // stand-ins that have not ended
}

func newRecorder(t *testing.T, conf string, memory uint64) *recorder {
	t.Helper()
	s, err := alloc.ParseSettings(conf)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{t: t, dev: newDevice(memory, 1<<40)}
	r.d = alloc.New(r.dev, alloc.Options{Settings: &s})
	r.ok(r.d.RecordHistory(alloc.History{Enabled: alloc.HistoryAll, Context: alloc.LevelAll, Collect: func() any { return r.stack }}))
	return r
}

func (r *recorder) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *recorder) at(function string) {
	r.stack = r.stacks.Add([]snapshot.Frame{{File: "train.go", Line: 7, Name: function}})
}

func (r *recorder) alloc(size uint64, s alloc.Stream) *alloc.Block {
	r.t.Helper()
	r.at("main.forward")
	b, err := r.d.Alloc(size, s)
	if fault.KindOf(err) == fault.OutOfMemory {
		return nil
	}
	r.ok(err)
	r.live = append(r.live, b)
	return b
}

// free frees a live block; held says that other streams use it.
func (r *recorder) free(i int, held bool) {
	r.t.Helper()
	r.at("main.drop")
	b := r.live[i]
	r.live = slices.Delete(r.live, i, i+1)
	if held {
		k := r.dev.borrow()
		r.held = append(r.held, k)
		r.ok(r.d.RecordStream(b, firstPseudo+alloc.Stream(k)))
	}
	r.ok(r.d.Free(b))
}

func (r *recorder) empty() {
	r.t.Helper()
	r.at("cuda.EmptyCache")
	r.ok(r.d.EmptyCache())
}

// snapshot returns the recording.
func (r *recorder) snapshot() *snapshot.Snapshot {
	r.at("main.snapshot")
	a := r.d.Snapshot()
	s := &snapshot.Snapshot{Stacks: &r.stacks, Traces: [][]snapshot.Event{nil},
		Settings: map[string]any{"PYTORCH_CUDA_ALLOC_CONF": a.Settings.Text}}
	for _, e := range a.Trace {
		id, _ := e.Context.(snapshot.StackID)
		s.Traces[0] = append(s.Traces[0], snapshot.Event{Action: snapshot.Action(e.Action), Addr: e.Addr, Size: e.Size,
			Stream: uint64(e.Stream), TimeUS: e.Time, Stack: id})
	}
	for _, g := range a.Segments {
		kind := "small"
		if g.Large {
			kind = "large"
		}
		w := snapshot.Segment{Addr: g.Addr, TotalSize: g.TotalSize, Allocated: g.Allocated, Active: g.Active, Requested: g.Requested,
			Stream: uint64(g.Stream), Type: kind, Pool: g.Pool, Expandable: g.Expandable}
		for _, b := range g.Blocks {
			w.Blocks = append(w.Blocks, snapshot.Block{Addr: b.Addr, Size: b.Size, Requested: b.Requested,
				State: snapshot.BlockState(b.State)})
		}
		s.Segments = append(s.Segments, w)
	}
	return s
}

// random is one step of a random program.
func (r *recorder) random(rnd *rand.Rand) {
	switch n := rnd.IntN(40); {
	case n < 18:
		r.alloc(uint64(1+rnd.IntN(1<<(8+rnd.IntN(18)))), alloc.Stream(rnd.IntN(3)))
	case n < 36:
		if len(r.live) > 0 {
			r.free(rnd.IntN(len(r.live)), n == 35)
		}
	case n < 38:
		if len(r.held) > 0 {
			i := rnd.IntN(len(r.held))
			r.dev.complete(r.held[i])
			r.held = slices.Delete(r.held, i, i+1)
		}
	case n == 38 && rnd.IntN(8) == 0:
		r.empty()
	}
}

// TestRecordings replays random programs that Tenon's own allocator recorded, most on devices that were too small. The replay is exact,
// except for a few programs short of memory: a trace does not tell which of the frees completed then were found done before the allocator
// searched its cache, and which it waited for afterwards.
func TestRecordings(t *testing.T) {
	const programs = 200
	pressed, failed, held, inexact, cut := 0, 0, 0, 0, 0
	for seed := range uint64(programs) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		conf := []string{"", "max_split_size_mb:32", "roundup_power2_divisions:4", "expandable_segments:True"}[seed%4]
		r := newRecorder(t, conf, uint64(80+rnd.IntN(120))*mib)
		for range 1500 {
			r.random(rnd)
		}
		recording := r.snapshot()
		p := program(t, recording)
		short := strings.Contains(strings.Join(p.Notes, " "), "for want of memory")
		if c := check(t, p); !c.Exact() {
			inexact++
			t.Logf("seed %d, %q: %q", seed, conf, c.Differences)
			if !short {
				t.Errorf("seed %d was not short of memory", seed)
			}
		}
		recording.Traces[0] = recording.Traces[0][len(recording.Traces[0])/2:]
		if c := check(t, program(t, recording)); c.Exact() {
			cut++
		}
		st := r.d.Stats()
		if p.Recorded.PeakRequested != uint64(st.RequestedBytes.All().Peak) ||
			p.Recorded.PeakReserved != uint64(st.ReservedBytes.All().Peak) ||
			p.Recorded.OOMs != int(st.OOMs) || p.Recorded.Settings != conf {
			t.Errorf("seed %d, %q: the trace says %+v, the allocator %v", seed, conf, p.Recorded, &st)
		}
		failed += p.Recorded.OOMs
		held += p.Recorded.Held
		if short {
			pressed++
		}
	}
	if inexact > programs/50 {
		t.Errorf("%d of %d programs are not exact", inexact, programs)
	}
	if cut < programs*9/10 {
		t.Errorf("only %d of %d programs are exact with the first half of their trace cut off", cut, programs)
	}
	if pressed < 20 || failed < 100 || held < 500 {
		t.Errorf("only %d programs were short of memory, %d allocations failed, %d frees waited", pressed, failed, held)
	}
}

// TestExpandablePools: the replay gives a private pool expandable segments if it had them, although the settings have none. If the setting
// was on, it decides for the pool too.
func TestExpandablePools(t *testing.T) {
	for _, conf := range []string{"", "expandable_segments:True"} {
		for _, memory := range []uint64{8 << 30, 40 << 30} {
			testExpandablePools(t, conf, memory)
		}
	}
}

func testExpandablePools(t *testing.T, conf string, memory uint64) {
	r := newRecorder(t, conf, memory)
	id := alloc.NewPoolID()
	if conf == "" {
		r.ok(r.d.NewExpandablePool(id))
	} else {
		r.ok(r.d.RetainPool(id))
	}
	for size := uint64(3); size < 90; size += 7 {
		r.at("main.step")
		b, err := r.d.AllocFrom(id, size*mib, 0)
		r.ok(err)
		r.alloc(size*mib, 0)
		r.ok(r.d.Free(b))
	}
	p := program(t, r.snapshot())
	if c := check(t, p); !c.Exact() {
		t.Errorf("%q, %d GiB: %q", conf, memory>>30, c.Differences)
	}
	if got := p.expandable(id); got != (conf == "") {
		t.Errorf("%q: the pool has expandable segments under all settings: %v", conf, got)
	}
}

// TestDifferences alters a recording and checks that the replay says where it differs.
func TestDifferences(t *testing.T) {
	recording := func() *snapshot.Snapshot {
		r := newRecorder(t, "", 1<<30)
		r.alloc(30*mib, 0)
		r.alloc(1000, 0)
		r.alloc(30*mib, 0)
		r.free(0, false)
		r.free(1, true)
		r.empty()
		r.alloc(12*mib, 1)
		return r.snapshot()
	}
	find := func(s *snapshot.Snapshot, a snapshot.Action, n int) *snapshot.Event {
		for i := range s.Traces[0] {
			if e := &s.Traces[0][i]; e.Action == a {
				if n--; n < 0 {
					return e
				}
			}
		}
		t.Fatalf("no such event")
		return nil
	}
	if c := check(t, program(t, recording())); !c.Exact() || c.Calls.Frees != 2 {
		t.Fatalf("%+v", c)
	}
	for name, c := range map[string]struct {
		change func(*snapshot.Snapshot)
		want   string
	}{
		"address": {func(s *snapshot.Snapshot) { find(s, snapshot.ActionAlloc, 1).Addr += 512 }, "1000 bytes at"},
		"size": {func(s *snapshot.Snapshot) {
			find(s, snapshot.ActionSegmentAlloc, 0).Size += 2 * mib
		}, "event 0 the replay leaves the recording: it asks for a segment of"},
		"kept": {func(s *snapshot.Snapshot) { find(s, snapshot.ActionSegmentFree, 0).Action = snapshot.ActionSnapshot },
			"which the recording keeps"},
		"final": {func(s *snapshot.Snapshot) { s.Segments[0].Blocks[0].Requested++ }, "at the end, block 0 of the segment at"},
		"state": {func(s *snapshot.Snapshot) { s.Segments[0].Allocated++ }, "bytes are allocated"},
		"type":  {func(s *snapshot.Snapshot) { s.Segments[0].Type = "large" }, "in the snapshot"},
		"missing": {func(s *snapshot.Snapshot) { s.Traces[0] = s.Traces[0][:len(s.Traces[0])-3] }, "after its last driver call the " +
			"replay leaves the recording: it returns the memory"},
		"oom": {func(s *snapshot.Snapshot) { find(s, snapshot.ActionFreeCompleted, 0).Action = snapshot.ActionOOM }, ""},
		"never": {func(s *snapshot.Snapshot) {
			find(s, snapshot.ActionAlloc, 3).Action = snapshot.ActionSnapshot
		}, "never comes to event"},
		"exhausted": {func(s *snapshot.Snapshot) { find(s, snapshot.ActionSegmentAlloc, 3).Action = snapshot.ActionSnapshot },
			"after its last driver call the replay leaves the recording: it returns"},
	} {
		t.Run(name, func(t *testing.T) {
			s := recording()
			c.change(s)
			have := check(t, program(t, s))
			if c.want == "" {
				return // it need only not crash
			}
			if have.Exact() || !strings.Contains(strings.Join(have.Differences, "\n"), c.want) {
				t.Errorf("the differences are %q, want %q", have.Differences, c.want)
			}
		})
	}
}

// TestNotes checks that there is a sentence for each thing that a trace does not tell.
func TestNotes(t *testing.T) {
	r := newRecorder(t, "", 100*mib)
	r.alloc(60*mib, 0)
	r.free(0, true)
	r.alloc(100, 0)
	r.dev.complete(r.held[0])
	r.alloc(90*mib, 0) // forces the 60 MiB out of the cache
	s := r.snapshot()
	want := func(s *snapshot.Snapshot, parts ...string) {
		t.Helper()
		notes := strings.Join(program(t, s).Notes, "\n")
		for _, w := range parts {
			if !strings.Contains(notes, w) {
				t.Errorf("nothing says %q in\n%s", w, notes)
			}
		}
		if n := strings.Count(notes, "\n") + 1; n != len(parts) {
			t.Errorf("%d notes, want %d:\n%s", n, len(parts), notes)
		}
	}
	want(s, "1 free waited for other streams", "returned cached memory once for want of memory")
	for i := range s.Traces[0] {
		s.Traces[0][i].Stack = 0
	}
	want(s, "1 free waited", "returned cached memory once", "went back to the driver once without a stack")
	s.Segments[0].Pool = [2]uint64{1, 0}
	want(s, "1 free waited", "1 private pool: held throughout", "1 segment went back before the snapshot", "returned cached memory once",
		"once without a stack")
	s.Traces[0] = append(s.Traces[0], snapshot.Event{Action: snapshot.ActionFreeRequested, Addr: 4096, Size: 100})
	want(s, "1 free waited", "1 private pool", "1 segment went back", "returned cached memory once", "once without a stack",
		"contradicts itself in ")
}

// TestSettings reads the recording's settings from the map if the string is not ours or is out of date.
func TestSettings(t *testing.T) {
	roundup := map[string]any{}
	for i := range 16 {
		roundup[fmt.Sprint(1<<i)] = int64(0)
	}
	roundup["64"] = int64(8)
	for want, m := range map[string]map[string]any{
		"":                     {},
		"max_split_size_mb:64": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": int64(64 * mib)},
		"expandable_segments:True": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,per_process_memory_fraction:0.5",
			"expandable_segments": true},
		"max_split_size_mb:128,garbage_collection_threshold:0.5": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": int64(128 * mib),
			"garbage_collection_threshold": 0.5},
		"roundup_power2_divisions:[1:0,2:0,4:0,8:0,16:0,32:0,64:8,128:0,256:0,512:0,1024:0,2048:0,4096:0,8192:0,16384:0,32768:0]": {
			"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4", "roundup_power2_divisions": roundup},
	} {
		if _, have := recordedSettings(m); have != want {
			t.Errorf("%v: %q, want %q", m, have, want)
		}
	}
}
