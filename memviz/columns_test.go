package memviz

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tenon.dev/internal/cost"
	"tenon.dev/internal/snapshot"
)

// columnBytes returns the column file of a small program.
func columnBytes(t testing.TB, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	err := importSnapshot(func(o snapshot.ReadOptions) (*snapshot.Snapshot, error) {
		s, err := newProgram(5, n, func(batch []snapshot.Event) error { return o.Events(0, batch) }).run()
		if err == nil {
			plantTree(s)
		}
		return s, err
	}, &b, source{})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// plantTree gives s a tree in the pool of its first segment.
func plantTree(s *snapshot.Snapshot) {
	g := &s.Segments[0]
	s.Trees = []snapshot.Tree{{Device: g.Device, Pool: g.Pool, State: "execution", Nodes: []snapshot.TreeNode{
		{ID: 0, Parent: -1, Runs: 2, Spans: [][2]uint64{{g.Addr, 512}, {g.Addr + 1024, g.TotalSize}},
			Outputs: []snapshot.TreeOutput{{Addr: g.Addr, Size: 512, Op: "Sin", At: "a.go:1", Live: true}}},
		{ID: 1, Place: -1, Spans: [][2]uint64{{0, 512}}}}}}
}

// useAll asks a recording for everything once.
func useAll(rec *Recording) error {
	v := &viewer{rec: rec, before: rec}
	for _, d := range rec.devices {
		dev := "?device=" + decimal(d.index)
		last := decimal(d.entry.Events)
		for _, r := range []string{"info", "tile" + dev + "&view=active", "tile" + dev + "&view=cached&level=" +
			decimal(d.cachedLine.topTile()), "at" + dev + "&state=" + last,
			"blocks" + dev + "&state=" + last, "events" + dev + "&count=50", "search" + dev + "&q=size>=1k", "oom" + dev, "diff" + dev +
				"&at=peak", "alloc" + dev + "&view=active&id=0", "trees" + dev, "search" + dev + "&q=tree:0"} {
			if _, err := answerText(v, r); err != nil && strings.Contains(err.Error(), "damaged") {
				return err
			}
		}
	}
	return nil
}

// A column file with any one byte changed is refused when it is opened or when the damaged events are read, or else gives the same
// answers.
func TestColumnDamage(t *testing.T) {
	whole := columnBytes(t, 4500)
	rec, err := load("whole", bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	n := rec.devices[0].entry.Events
	step := 401
	if *long {
		step = 1
	}
	for at := 0; at < len(whole); at += step {
		b := slices.Clone(whole)
		b[at] ^= 0x40
		rec, err := load("damaged", bytes.NewReader(b), int64(len(b)))
		if err == nil {
			_, err = rec.event(rec.devices[0], n/2)
		}
		if err == nil && at >= len(columnMagic) { // the first bytes are not read
			t.Fatalf("byte %d of %d changed: no error", at, len(b))
		}
	}
	for _, cut := range []int{0, 1, 31, len(whole) / 2, len(whole) - 1} {
		if _, err := load("cut", bytes.NewReader(whole[:cut]), int64(cut)); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("cut to %d bytes: %v", cut, err)
		}
	}
}

func TestColumnVersion(t *testing.T) {
	b := columnBytes(t, 100)
	b[len(b)-12]++
	if _, err := load("newer", bytes.NewReader(b), int64(len(b))); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("version %d, this program reads %d", columnVersion+1, columnVersion)) {
		t.Error(err)
	}
}

// TestColumnTrees checks that damaged trees are refused, here one with a node that is its own parent.
func TestColumnTrees(t *testing.T) {
	b := columnBytes(t, 100)
	c, err := newColumnReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := newColumnWriter(&out)
	w.write(b[len(columnMagic):])
	w.dir = c.dir
	w.dir.Trees[0].Nodes[1].ID = -1
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	if _, err := load("planted", bytes.NewReader(out.Bytes()), int64(out.Len())); err == nil ||
		!strings.Contains(err.Error(), "node -1 of a graph tree occurs twice") {
		t.Error(err)
	}
}

// TestTreesListFewSegments checks that nodes which all need all segments list a bounded number of addresses together.
func TestTreesListFewSegments(t *testing.T) {
	const many = 2000
	tree := snapshot.Tree{Pool: [2]uint64{0, 1}}
	var segments []snapshot.Segment
	for i := range many {
		tree.Nodes = append(tree.Nodes, snapshot.TreeNode{ID: int64(i), Parent: -1, Spans: [][2]uint64{{1 << 20, many << 20}}})
		segments = append(segments, snapshot.Segment{Addr: uint64(i+1) << 20, TotalSize: 1 << 20, Pool: tree.Pool})
	}
	n := 0
	for _, p := range treesOf([]snapshot.Tree{tree, tree}, segments, 0) {
		for _, x := range p.Nodes {
			n += len(x.Segments)
		}
	}
	if n != maxListed {
		t.Errorf("%d addresses are listed, want %d", n, maxListed)
	}
}

// TestPoolBytes checks the bytes of a pool and of its nodes: in use, written by graphs, and neither.
func TestPoolBytes(t *testing.T) {
	pool := [2]uint64{0, 1}
	segments := []snapshot.Segment{
		{Addr: 5000, TotalSize: 1000, Pool: pool}, {Addr: 1000, TotalSize: 1000, Pool: pool, Blocks: []snapshot.Block{
			{Addr: 1000, Size: 200, State: snapshot.ActiveAllocated}, {Addr: 1200, Size: 800}}},
		{Addr: 9000, TotalSize: 100, Pool: [2]uint64{0, 2}},
	}
	tree := snapshot.Tree{Pool: pool, Nodes: []snapshot.TreeNode{
		{ID: -2, Parent: -1, WarmUp: true, Outputs: []snapshot.TreeOutput{{Addr: 1000, Size: 100, Live: true}}},
		{ID: 0, Parent: -1, Spans: [][2]uint64{{1100, 300}, {5000, 100}}, Outputs: []snapshot.TreeOutput{
			{Addr: 1100, Size: 50, Live: true}, {Addr: 1300, Size: 100}, {Addr: 5000, Size: 40, Live: true}}},
		{ID: 3, Parent: 0, Spans: [][2]uint64{{1300, 200}}},
	}}
	p := treesOf([]snapshot.Tree{tree}, segments, 0)[0]
	if p.Segments != 2 || p.Reserved != 2000 || p.Allocated != 200 || p.Live != 100+50+40 || p.Used != 400+100 || p.Idle != 500+900 {
		t.Errorf("%+v", p)
	}
	for i, want := range []GraphNode{
		{ID: "0", Live: 90, Count: 2, Segments: []string{addrText(1000), addrText(5000)}},
		{ID: "3", Root: "0", Depth: 1, Segments: []string{addrText(1000)}},
		{ID: "w0", Live: 100, Count: 1, Segments: []string{addrText(1000)}},
	} {
		if n := p.Nodes[i]; n.ID != want.ID || n.Live != want.Live || n.Count != want.Count || n.Depth != want.Depth ||
			!slices.Equal(n.Segments, want.Segments) {
			t.Errorf("%+v, want %+v", n, want)
		}
	}
}

// usingBytes returns the bytes that loading a file of size bytes and asking for everything may allocate.
func usingBytes(size int) int { return 16<<20 + 1000*size }

// FuzzColumns opens damaged column files with correct checksums, so that only the reader's own checks protect it.
func FuzzColumns(f *testing.F) {
	whole := columnBytes(f, 200)
	c, err := newColumnReader(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		f.Fatal(err)
	}
	for i := range c.dir.Sections {
		f.Add(uint8(i), uint32(1), uint64(1), uint8(0))
	}
	f.Fuzz(func(t *testing.T, section uint8, at uint32, value uint64, cut uint8) {
		b := slices.Clone(whole)
		c, err := newColumnReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		s := &c.dir.Sections[int(section)%len(c.dir.Sections)]
		if s.Length > 0 {
			for i := range 8 {
				b[s.Offset+(int64(at)+int64(i))%s.Length] ^= byte(value >> (8 * i))
			}
			s.Length -= int64(cut) % s.Length
		}
		// Rewritten with correct checksums, as an attacker would do.
		var out bytes.Buffer
		w := newColumnWriter(&out)
		w.write(b[len(columnMagic):])
		w.dir = c.dir
		for i := range w.dir.Sections {
			x := &w.dir.Sections[i]
			x.CRC = crc32.Checksum(b[x.Offset:x.Offset+x.Length], castagnoli)
		}
		if err := w.finish(); err != nil {
			t.Fatal(err)
		}
		cost.Within(t, usingBytes(out.Len()), func() {
			if rec, err := load("fuzzed", bytes.NewReader(out.Bytes()), int64(out.Len())); err == nil {
				useAll(rec)
			}
		})
	})
}

// FuzzColumnFile opens anything.
func FuzzColumnFile(f *testing.F) {
	f.Add(columnBytes(f, 200))
	f.Add([]byte(columnMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		cost.Within(t, usingBytes(len(b)), func() {
			if rec, err := load("fuzzed", bytes.NewReader(b), int64(len(b))); err == nil {
				useAll(rec)
			}
		})
	})
}

// FuzzImport reads anything as a snapshot file, plain or compressed. Whatever it accepts can be viewed.
func FuzzImport(f *testing.F) {
	var b bytes.Buffer
	var trace []snapshot.Event
	s, err := newProgram(1, 60, func(b []snapshot.Event) error { trace = append(trace, b...); return nil }).run()
	if err != nil {
		f.Fatal(err)
	}
	s.Traces[0] = trace
	plantTree(s)
	if err := s.Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b.Bytes()); err != nil {
		f.Fatal(err)
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(z.Bytes())
	f.Add([]byte("(dVdevice_traces\n(l(l(dVaction\nValloc\nsVaddr\nI1\nsVsize\nI1\nsaas."))
	f.Fuzz(func(t *testing.T, b []byte) {
		// eight times the memory that the snapshot's reader may hold; growing slices leave most as garbage
		cost.Within(t, 128<<20+4096*len(b), func() {
			rec, err := Import(bytes.NewReader(b), "fuzzed", Options{NoCache: true})
			if err != nil {
				return
			}
			if err := errors.Join(useAll(rec), rec.Close()); err != nil {
				t.Error(err)
			}
		})
	})
}

// bigSnapshot writes a snapshot that is large enough for its columns to be kept.
func bigSnapshot(t *testing.T, path string, seed uint64) {
	t.Helper()
	var trace []snapshot.Event
	s, err := newProgram(seed, 400_000, func(b []snapshot.Event) error { trace = append(trace, b...); return nil }).run()
	if err != nil {
		t.Fatal(err)
	}
	s.Traces[0] = trace
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := s.Write(f); err != nil {
		t.Fatal(err)
	}
	if st, _ := f.Stat(); st.Size() < keptFrom {
		t.Fatalf("the snapshot has only %d bytes", st.Size())
	}
}

// pack compresses a file.
func pack(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	w := must(gzip.NewWriterLevel(&z, gzip.BestSpeed))
	w.Write(b)
	w.Close()
	if z.Len() < keptFromPacked || z.Len() >= keptFrom {
		t.Fatalf("packed it has %d bytes", z.Len())
	}
	if err := os.WriteFile(to, z.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenCache(t *testing.T) {
	dir := t.TempDir()
	path, cache := filepath.Join(dir, "big.pickle"), filepath.Join(dir, "cache")
	bigSnapshot(t, path, 1)
	old := filepath.Join(cache, "old.columns")
	os.MkdirAll(cache, 0o700)
	os.WriteFile(old, nil, 0o600)
	long := time.Now().Add(-2 * forgetAfter)
	os.Chtimes(old, long, long)
	read := int64(0)
	open := func(o Options) *Recording {
		t.Helper()
		read = 0
		o.Progress = func(n, total int64) {
			if n < read || n > total {
				t.Errorf("progress went from %d to %d of %d", read, n, total)
			}
			read = n
		}
		rec, err := Open(path, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rec.Close() })
		return rec
	}
	first := open(Options{Cache: cache})
	if read == 0 {
		t.Error("no progress")
	}
	kept := columnFiles(t, cache)
	if len(kept) != 1 || kept[0] == old {
		t.Fatalf("the cache holds %v", kept)
	}
	again := open(Options{Cache: cache})
	if read != 0 {
		t.Error("the second time the pickle was read")
	}
	if a, b := get(t, &viewer{rec: first}, "info"), get(t, &viewer{rec: again}, "info"); !bytes.Equal(a, b) {
		t.Errorf("the second time it says\n%s\nfirst\n%s", b, a)
	}
	// Damage, or another file under the same name, is noticed.
	b, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-trailerSize-10] ^= 1
	if err := os.WriteFile(kept[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if open(Options{Cache: cache}); read == 0 {
		t.Error("a damaged column file was used")
	}
	bigSnapshot(t, path, 2)
	if other := open(Options{Cache: cache}); read == 0 || bytes.Equal(get(t, &viewer{rec: other}, "info"),
		get(t, &viewer{rec: first}, "info")) {
		t.Error("the column file of another snapshot was used")
	}
	// A column file that cannot be moved to its place is used once and removed.
	for _, f := range columnFiles(t, cache) {
		os.Remove(f)
	}
	if err := os.MkdirAll(filepath.Join(kept[0], "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	rec := open(Options{Cache: cache})
	if err := rec.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*.partial")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	os.RemoveAll(kept[0])
	// An import that fails leaves nothing either.
	bad := filepath.Join(dir, "bad.pickle")
	if err := os.WriteFile(bad, make([]byte, keptFrom), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(bad, Options{Cache: cache}); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	// A compressed file is kept from a smaller size on.
	packed := filepath.Join(dir, "packed.pickle.gz")
	pack(t, path, packed)
	if rec, err := Open(packed, Options{Cache: cache}); err != nil {
		t.Error(err)
	} else {
		rec.Close()
	}
	if kept := columnFiles(t, cache); len(kept) != 1 || !strings.Contains(kept[0], "packed") {
		t.Errorf("the cache holds %v", kept)
	}
	for _, f := range columnFiles(t, cache) {
		os.Remove(f)
	}
	// Nothing is left behind.
	for _, f := range columnFiles(t, cache) {
		os.Remove(f)
	}
	rec = open(Options{Cache: cache, NoCache: true})
	if len(columnFiles(t, cache)) != 0 {
		t.Error("NoCache left a column file")
	}
	name := rec.file.(*os.File).Name()
	if err := rec.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(name); err == nil {
		t.Errorf("%s is left", name)
	}
	// If the cache cannot be written, the file still opens.
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open(Options{Cache: filepath.Join(dir, "file", "below")})
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	cut := filepath.Join(dir, "cut.pickle.gz")
	b, err := os.ReadFile(recordedPath("extra_streams"))
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(cut, b[:len(b)/2], 0o600)
	text := filepath.Join(dir, "text.pickle")
	os.WriteFile(text, []byte("these are not the bytes of a pickle"), 0o600)
	empty := filepath.Join(dir, "empty.pickle")
	os.WriteFile(empty, nil, 0o600)
	for path, want := range map[string]string{
		filepath.Join(dir, "absent"): "cannot open the snapshot",
		dir:                          "it is a folder; name a file",
		cut:                          "cut.pickle.gz: the snapshot cannot be read",
		text:                         "text.pickle: the snapshot cannot be read",
		empty:                        "empty.pickle: the snapshot cannot be read",
	} {
		rec, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if rec != nil {
			t.Errorf("%s: there is a recording", path)
		}
	}
	// A stream of unknown length goes through a temporary file, which vanishes.
	rec, err := Import(bytes.NewReader(b), "pipe")
	if err != nil {
		t.Fatal(err)
	}
	name := rec.file.(*os.File).Name()
	if err := useAll(rec); err != nil {
		t.Error(err)
	}
	if err := rec.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(name); err == nil {
		t.Errorf("%s is left", name)
	}
	if _, err := Import(strings.NewReader("nothing"), "pipe"); err == nil ||
		!strings.Contains(err.Error(), "pipe: the snapshot cannot be read") {
		t.Error(err)
	}
}

// Events are read back unchanged, across chunks, and times find their states.
func TestEvents(t *testing.T) {
	var trace []snapshot.Event
	var b bytes.Buffer
	err := importSnapshot(func(o snapshot.ReadOptions) (*snapshot.Snapshot, error) {
		return newProgram(9, 150_000, func(batch []snapshot.Event) error {
			trace = append(trace, batch...)
			return o.Events(3, batch)
		}).run()
	}, &b, source{})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := load("events", bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	d, err := rec.device(3)
	if err != nil || d.entry.Events != len(trace) || len(d.entry.Chunks) != 3 {
		t.Fatalf("%v, %d events of %d", err, d.entry.Events, len(trace))
	}
	look := []int{0, 1, chunkEvents - 1, chunkEvents, chunkEvents + 1, 2*chunkEvents - 1, 2 * chunkEvents, len(trace) - 1}
	for i := 0; i < len(trace); i += 997 {
		look = append(look, i)
	}
	for _, i := range look {
		e, err := rec.event(d, i)
		if err != nil || e.Event != trace[i] {
			t.Fatalf("event %d is %+v (%v), want %+v", i, e, err, trace[i])
		}
		if got := rec.timeOf(d, i+1); got != trace[i].TimeUS {
			t.Errorf("state %d is at %d, want %d", i+1, got, trace[i].TimeUS)
		}
		if got := d.coarseTime(i + 1); got > trace[i].TimeUS || got < trace[max(0, i-timeEvery)].TimeUS {
			t.Errorf("state %d is at about %d, want %d", i+1, got, trace[i].TimeUS)
		}
		if got := rec.stateAt(d, trace[i].TimeUS); got != i+1 {
			t.Errorf("time %d is state %d, want %d", trace[i].TimeUS, got, i+1)
		}
	}
	if got := rec.stateAt(d, trace[0].TimeUS-5); got != 1 {
		t.Errorf("before the trace is state %d", got)
	}
	if got := rec.stateAt(d, trace[len(trace)-1].TimeUS+5); got != len(trace) {
		t.Errorf("after the trace is state %d", got)
	}
}

// Each device has its own history, also one without segments or without a trace; marks belong to their device.
func TestDevicesAndMarks(t *testing.T) {
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: []snapshot.Note{{}}, Traces: make([][]snapshot.Event, 3)}
	for d := range 2 {
		for i := range 10 {
			s.Traces[d] = append(s.Traces[d], snapshot.Event{Action: snapshot.ActionAlloc, Addr: uint64(4096 * (i + 1)),
				Size: uint64(100 * (d + 1)), TimeUS: int64(1000*d + 10*i)})
		}
	}
	s.Segments = []snapshot.Segment{{Device: 2, Addr: 1 << 20, TotalSize: 2 << 20, Type: "small",
		Blocks: []snapshot.Block{{Addr: 1 << 20, Size: 2 << 20, Requested: 700, State: snapshot.ActiveAllocated}}}}
	for _, a := range []struct {
		stage, name string
		device      int
		us          int64
	}{{"START", "step", 0, 15}, {"START", "inner", 0, 20}, {"START", "step", 0, 30}, {"END", "step", 0, 45}, {"START", "other", 1, 1000},
		{"END", "inner", 0, 50},
		{"END", "step", 0, 60}, {"END", "never begun", 0, 70}, {"START", "late", 0, 2000}} {
		s.Annotations = append(s.Annotations, snapshot.Annotation{Stage: a.stage, Name: a.name, Device: a.device, TimeUS: a.us})
	}
	rec := recordingOf(t, s)
	if got := rec.MainDevice(); got != 0 {
		t.Errorf("the longest trace is that of device %d", got)
	}
	if got := rec.Devices(); !slices.Equal(got, []int{0, 1, 2}) {
		t.Fatalf("devices %v", got)
	}
	for i, want := range []uint64{1000, 2000, 700} {
		if d := rec.devices[i]; d.activeLine.max != want || d.activeLine.last != want {
			t.Errorf("device %d holds %d, at most %d; want %d", i, d.activeLine.last, d.activeLine.max, want)
		}
	}
	if err := useAll(rec); err != nil {
		t.Error(err)
	}
	want := []Mark{{"step", 3, 7}, {"inner", 3, 6}, {"step", 4, 6}, {"late", 10, 11}}
	if got := rec.devices[0].marks; !slices.Equal(got, want) {
		t.Errorf("marks %v, want %v", got, want)
	}
	if got := rec.devices[1].marks; !slices.Equal(got, []Mark{{"other", 1, 11}}) {
		t.Errorf("marks of device 1: %v", got)
	}
}
