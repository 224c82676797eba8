package memviz

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tenon.dev/internal/snapshot"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output of the text tests")

// A history test is a file of directives: a command, its input lines, a line ----, its output, an empty line. The commands are
//
//	history        the input is a snapshot: "setting key value", "segment addr size kind stream pool", "block addr size requested state
//	               stack", and events, "action addr size stream stack"; the output is its lives
//	get REQUEST    the answer
type directive struct {
	command, input, output string
}

func readDirectives(t *testing.T, path string) []directive {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []directive
	for _, part := range strings.Split(string(b), "\n\n") {
		head, output, ok := strings.Cut(strings.Trim(part, "\n")+"\n", "----\n")
		if !ok {
			t.Fatalf("%s: no ---- in %q", path, part)
		}
		command, input, _ := strings.Cut(head, "\n")
		out = append(out, directive{command, input, output})
	}
	return out
}

// parseHistory reads the input of history.
func parseHistory(t *testing.T, text string) *snapshot.Snapshot {
	t.Helper()
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: []snapshot.Note{{}}, Traces: make([][]snapshot.Event, 1),
		Settings: map[string]any{}}
	number := func(w string) uint64 {
		n, err := strconv.ParseUint(w, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	stack := func(name string) snapshot.StackID {
		if name == "-" {
			return 0
		}
		return s.Stacks.Add([]snapshot.Frame{{File: "/src/main.go", Line: 10 + len(name), Name: name},
			{File: "/src/main.go", Line: 3, Name: "main"}})
	}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		w := strings.Fields(line)
		switch w[0] {
		case "setting":
			s.Settings[w[1]] = int64(number(w[2]))
		case "segment":
			g := snapshot.Segment{Addr: number(w[1]), TotalSize: number(w[2]), Type: strings.TrimPrefix(w[3], "expandable-"),
				Stream: number(w[4]), Pool: [2]uint64{0, number(w[5])}}
			g.Expandable = w[3] != g.Type
			s.Segments = append(s.Segments, g)
		case "block":
			states := map[string]snapshot.BlockState{"inactive": snapshot.Inactive, "allocated": snapshot.ActiveAllocated,
				"pending": snapshot.ActivePendingFree}
			g := &s.Segments[len(s.Segments)-1]
			g.Blocks = append(g.Blocks, snapshot.Block{Addr: number(w[1]), Size: number(w[2]), Requested: number(w[3]),
				State: states[w[4]], Stack: stack(w[5])})
		default:
			e := snapshot.Event{Addr: number(w[1]), Size: number(w[2]), Stream: number(w[3]), Stack: stack(w[4]),
				TimeUS: int64(1000 + 10*len(s.Traces[0]))}
			for e.Action.String() != w[0] {
				if e.Action++; e.Action > 20 {
					t.Fatalf("no action %q", w[0])
				}
			}
			s.Traces[0] = append(s.Traces[0], e)
		}
	}
	return s
}

// recordingOf makes a recording of a snapshot.
func recordingOf(t testing.TB, s *snapshot.Snapshot) *Recording {
	t.Helper()
	var b bytes.Buffer
	if err := importSnapshot(func(snapshot.ReadOptions) (*snapshot.Snapshot, error) { return s, nil }, &b, source{}); err != nil {
		t.Fatal(err)
	}
	rec, err := load("test", bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// describeLives writes the lives of a recording.
func describeLives(rec *Recording) string {
	var b strings.Builder
	for _, d := range rec.devices {
		row := func(what string, l *lives, i int, rest string) {
			fmt.Fprintf(&b, "%s %d: %x+%x stream %d [%d,%d) freed %d %s %s\n", what, i, l.addr[i], l.size[i], d.entry.Streams[l.stream[i]],
				l.start[i], l.end[i], l.freed[i],
				rec.text.label(l.stack[i]), rest)
		}
		for i := range d.cached.start {
			row("segment", &d.cached, i, fmt.Sprintf("pool %q kind %q", d.pools[d.pool[i]], rec.kind(d, uint32(i))))
		}
		for i := range d.active.start {
			in := "in no segment"
			if g := d.active.segment[i]; g != none {
				in = fmt.Sprintf("in segment %d", g)
			}
			row("allocation", &d.active, i, in)
		}
	}
	return b.String()
}

func TestHistories(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			var rec *Recording
			var text strings.Builder
			for _, d := range readDirectives(t, path) {
				got := ""
				if d.command == "history" {
					rec = recordingOf(t, parseHistory(t, d.input))
					got = describeLives(rec)
				} else {
					body, err := answerText(&viewer{rec: rec}, strings.TrimPrefix(d.command, "get "))
					got = strings.NewReplacer(`,"`, ",\n \"", "},{", "},\n{").Replace(string(body)) + "\n"
					if err != nil {
						got = "error: " + err.Error() + "\n"
					}
				}
				fmt.Fprintf(&text, "%s\n%s----\n%s\n", d.command, d.input, got)
				if !*rewrite && got != d.output {
					t.Errorf("%s gives\n%s\nwant\n%s", d.command, got, d.output)
				}
			}
			if *rewrite {
				if err := os.WriteFile(path, []byte(strings.TrimSuffix(text.String(), "\n")), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// The viewer's last state of PyTorch's snapshots agrees with the snapshots themselves.
func TestRecordedSums(t *testing.T) {
	for _, name := range []string{"resnet50", "gpt2_amp_graph", "extra_expandable", "extra_streams"} {
		t.Run(name, func(t *testing.T) {
			rec, err := Open(recordedPath(name))
			if err != nil {
				t.Fatal(err)
			}
			defer rec.Close()
			s, err := snapshot.Read(recorded(t, name), snapshot.ReadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range rec.devices {
				checkLast(t, rec, d, s)
				if d.index < len(s.Traces) {
					checkWalk(t, rec, d, s.Traces[d.index])
				}
			}
		})
	}
}

// checkLast compares the last state with the snapshot's segments.
func checkLast(t *testing.T, rec *Recording, d *device, s *snapshot.Snapshot) {
	t.Helper()
	m := rec.blocks(d, d.entry.Events)
	if len(m.Strays) != 0 {
		t.Errorf("%d allocations lie in no segment", len(m.Strays))
	}
	var cached, active uint64
	i := 0
	segs := slices.Clone(s.Segments)
	slices.SortFunc(segs, func(a, b snapshot.Segment) int { return int(int64(a.Addr - b.Addr)) })
	for _, g := range segs {
		if g.Device != d.index {
			continue
		}
		cached += g.TotalSize
		if i >= len(m.Segments) {
			t.Fatalf("segment %x is missing", g.Addr)
		}
		got := m.Segments[i]
		i++
		if got.Addr != addrText(g.Addr) || got.Size != g.TotalSize || got.Kind != g.Type || d.entry.Streams[got.Stream] != g.Stream ||
			got.Expandable != g.Expandable ||
			d.pools[got.Pool] != fmt.Sprintf("(%d,%d)", g.Pool[0], g.Pool[1]) {
			t.Fatalf("segment %+v of the snapshot is shown as %+v", g, got)
		}
		var want []Block
		for _, b := range g.Blocks {
			if b.State != snapshot.Inactive {
				active += b.Requested
				want = append(want, Block{Offset: b.Addr - g.Addr, Size: b.Size, Pending: b.State == snapshot.ActivePendingFree})
			}
		}
		var have []Block
		for _, b := range got.Blocks {
			have = append(have, Block{Offset: b.Offset, Size: b.Size, Pending: b.Pending})
		}
		if !slices.Equal(have, want) {
			t.Fatalf("blocks of %x:\n%+v\nwant\n%+v", g.Addr, have, want)
		}
	}
	if i != len(m.Segments) || d.cachedLine.last != cached || d.activeLine.last != active {
		t.Errorf("%d segments, %d bytes cached, %d active; the snapshot has %d, %d, %d", len(m.Segments), d.cachedLine.last,
			d.activeLine.last, i, cached, active)
	}
}

// checkWalk compares events and the course of the totals with the trace.
func checkWalk(t *testing.T, rec *Recording, d *device, trace []snapshot.Event) {
	t.Helper()
	if len(trace) != d.entry.Events {
		t.Fatalf("%d events, the trace has %d", d.entry.Events, len(trace))
	}
	total, cached := int64(d.activeLine.total(0)), int64(d.cachedLine.total(0))
	for i, e := range trace {
		got, err := rec.event(d, i)
		if err != nil || got.Event != e {
			t.Fatalf("event %d is %+v (%v), want %+v", i, got.Event, err, e)
		}
		switch e.Action {
		case snapshot.ActionAlloc:
			total += int64(e.Size)
		case snapshot.ActionFreeCompleted:
			total -= int64(e.Size)
		case snapshot.ActionSegmentAlloc, snapshot.ActionSegmentMap:
			cached += int64(e.Size)
		case snapshot.ActionSegmentFree, snapshot.ActionSegmentUnmap:
			cached -= int64(e.Size)
		}
		if i%37 == 0 && (total != int64(d.activeLine.total(i+1)) || cached != int64(d.cachedLine.total(i+1))) {
			t.Fatalf("state %d: %d active, %d cached; want %d, %d", i+1, d.activeLine.total(i+1), d.cachedLine.total(i+1), total, cached)
		}
	}
}

// FuzzHistory imports histories that no allocator would write. Whatever the history, the columns can be read again, the totals agree with
// the lives, and every request is answered.
func FuzzHistory(f *testing.F) {
	f.Add([]byte{3, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 2, 0, 1, 4, 0, 1}, uint64(0))
	f.Add([]byte{5, 0, 8, 5, 4, 8, 6, 2, 4, 0, 2, 1, 6, 9, 1, 5, 3, 3, 8, 1, 1, 10, 0, 4, 11, 1, 2}, uint64(1)<<63)
	f.Fuzz(func(t *testing.T, program []byte, base uint64) {
		s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: []snapshot.Note{{}}, Traces: make([][]snapshot.Event, 1)}
		for op := range slices.Chunk(program[:min(len(program), 600)], 3) {
			if len(op) < 3 {
				break
			}
			addr, size := base+uint64(op[1]%16)<<9, uint64(op[2])<<8
			switch {
			case op[0] < 10:
				s.Traces[0] = append(s.Traces[0], snapshot.Event{Action: snapshot.Action(op[0]), Addr: addr, Size: size,
					Stream: uint64(op[1] >> 6)})
			case op[0]%2 == 0:
				s.Segments = append(s.Segments, snapshot.Segment{Addr: addr, TotalSize: size, Type: "small", Expandable: op[0]%4 == 0})
			case len(s.Segments) > 0:
				g := &s.Segments[len(s.Segments)-1]
				g.Blocks = append(g.Blocks, snapshot.Block{Addr: addr, Size: size, Requested: uint64(op[2]),
					State: snapshot.BlockState(op[0] / 2 % 3)})
			}
		}
		rec := recordingOf(t, s)
		for _, d := range rec.devices {
			for _, line := range []*timeline{d.activeLine, d.cachedLine} {
				for state := range line.states {
					if got, want := line.total(state), plainTotal(line, state); got != want {
						t.Fatalf("state %d: %d, want %d", state, got, want)
					}
				}
			}
		}
		if err := useAll(rec); err != nil {
			t.Error(err)
		}
	})
}

func TestImpossibleDevice(t *testing.T) {
	for _, d := range []int{-1, maxDevice + 1} {
		s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Segments: []snapshot.Segment{{Device: d}}}
		err := importSnapshot(func(snapshot.ReadOptions) (*snapshot.Snapshot, error) { return s, nil }, &bytes.Buffer{}, source{})
		if err == nil || !strings.Contains(err.Error(), "which cannot be") {
			t.Errorf("device %d: %v", d, err)
		}
	}
}
