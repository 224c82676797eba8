package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/cost"
	"tenon.dev/internal/pickle"
	"tenon.dev/internal/snapshot"
)

// recorded are PyTorch's snapshots, with what Python counts in them.
var recorded = []struct {
	name                                       string
	segments, blocks, events, annotations      int
	allocs, frees, segmentAllocs, oom, pending int
	stacked, frames, blockFrames               int // entries with a stack, and calls in the stacks of entries, and of segments and blocks
}{
	{"resnet50", 126, 903, 7985, 12, 3159, 2350, 126, 0, 0, 7985, 286032, 36210},
	{"gpt2_amp_graph", 45, 361, 15198, 20, 5215, 4896, 116, 1, 0, 6411, 74172, 2659},
	{"extra_expandable", 6, 115, 542, 0, 206, 136, 57, 0, 0, 541, 940, 139},
	{"extra_streams", 71, 138, 549, 0, 206, 135, 71, 0, 1, 548, 954, 169},
}

func unpacked(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".pickle.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func open(t testing.TB, name string) *snapshot.Snapshot {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".pickle.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := snapshot.Read(f, snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRecorded reads PyTorch's snapshots in full: the counts are Python's, and every segment's sums are those of its blocks.
func TestRecorded(t *testing.T) {
	for _, c := range recorded {
		s := open(t, c.name)
		var allocs, frees, segmentAllocs, ooms, pending, blocks, stacked, frames, blockFrames int
		for _, e := range s.Traces[0] {
			switch e.Action {
			case snapshot.ActionAlloc:
				allocs++
			case snapshot.ActionFreeCompleted:
				frees++
			case snapshot.ActionSegmentAlloc, snapshot.ActionSegmentMap:
				segmentAllocs++
			case snapshot.ActionOOM:
				ooms++
			}
			if e.Stack != 0 {
				stacked++
			}
			frames += len(s.Stacks.Calls(e.Stack))
			if e.TimeUS < 1_795_000_000_000_000 || s.Notes[e.Note].CompileContext != "N/A" {
				t.Fatalf("%s: entry %+v, note %+v", c.name, e, s.Notes[e.Note])
			}
		}
		for _, g := range s.Segments {
			blocks += len(g.Blocks)
			pending += sums(t, c.name, &g)
			blockFrames += len(s.Stacks.Calls(g.Stack))
			for _, b := range g.Blocks {
				blockFrames += len(s.Stacks.Calls(b.Stack))
			}
		}
		got := []int{len(s.Segments), blocks, len(s.Traces[0]), len(s.Annotations), allocs, frees, segmentAllocs, ooms, pending, stacked,
			frames, blockFrames}
		if want := []int{c.segments, c.blocks, c.events, c.annotations, c.allocs, c.frees, c.segmentAllocs, c.oom, c.pending, c.stacked,
			c.frames, c.blockFrames}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
		if len(s.Traces) != 1 || s.Settings["max_split_size"] == nil || s.Stacks.Len() < 5 {
			t.Errorf("%s: %d traces, settings %v, %d stacks", c.name, len(s.Traces), s.Settings, s.Stacks.Len())
		}
	}
	s := open(t, "extra_expandable")
	if s.Settings["max_split_size"] != int64(64<<20) || s.Settings["expandable_segments"] != true ||
		s.Settings["garbage_collection_threshold"] != 0.0 ||
		s.Settings["roundup_power2_divisions"].(map[string]any)["64"] != int64(0) || !s.Segments[0].Expandable {
		t.Errorf("the settings are %v", s.Settings)
	}
	if last := s.Traces[0][len(s.Traces[0])-1]; s.Notes[last.Note].UserMetadata != "phase two" || last.Action != snapshot.ActionSnapshot {
		t.Errorf("the last entry is %+v", last)
	}
	want := []snapshot.Frame{{"snap.py", 10, "work"}, {"snap.py", 16, "<module>"}}
	if got := s.Stacks.Frames(s.Traces[0][1].Stack); !slices.Equal(got, want) {
		t.Errorf("a stack is %v, want %v", got, want)
	}
}

// sums compares a segment's sums with those of its blocks, which fill it, and returns how many are pending.
func sums(t *testing.T, name string, g *snapshot.Segment) (pending int) {
	t.Helper()
	var total, allocated, active, requested uint64
	for _, b := range g.Blocks {
		if b.Addr != g.Addr+total {
			t.Errorf("%s: a block begins at %#x, not at %#x", name, b.Addr, g.Addr+total)
		}
		total += b.Size
		if b.State == snapshot.ActiveAllocated {
			allocated += b.Size
		}
		if b.State != snapshot.Inactive {
			active += b.Size
			requested += b.Requested
		}
		if b.State == snapshot.ActivePendingFree {
			pending++
		}
	}
	if total != g.TotalSize || allocated != g.Allocated || active != g.Active || requested != g.Requested {
		t.Errorf("%s: the blocks of the segment at %#x sum up to %d %d %d %d, it says %+v", name, g.Addr, total, allocated,
			active, requested, *g)
	}
	return pending
}

// TestProtocols reads one snapshot in every protocol that Python writes.
func TestProtocols(t *testing.T) {
	want := open(t, "small_p4")
	if len(want.Segments) != 30 || len(want.Traces[0]) != 400 {
		t.Fatalf("%d segments, %d entries", len(want.Segments), len(want.Traces[0]))
	}
	for _, p := range []int{0, 1, 2, 3, 5} {
		equal(t, fmt.Sprint("protocol ", p), open(t, fmt.Sprint("small_p", p)), want)
	}
}

// equal compares two snapshots, whose stacks may be numbered differently.
func equal(t *testing.T, name string, a, b *snapshot.Snapshot) {
	t.Helper()
	plain := func(s *snapshot.Snapshot) (out []any) {
		for _, g := range s.Segments {
			blocks := slices.Clone(g.Blocks)
			for i := range blocks {
				out = append(out, s.Stacks.Frames(blocks[i].Stack))
				blocks[i].Stack = 0
			}
			out = append(out, s.Stacks.Frames(g.Stack))
			g.Stack, g.Blocks = 0, blocks
			out = append(out, g)
		}
		for _, trace := range s.Traces {
			out = append(out, len(trace))
			for _, e := range trace {
				out = append(out, s.Stacks.Frames(e.Stack), s.Notes[e.Note])
				e.Stack, e.Note = 0, 0
				out = append(out, e)
			}
		}
		return append(out, s.Settings, len(s.Annotations), s.Annotations)
	}
	x, y := plain(a), plain(b)
	if len(x) != len(y) {
		t.Fatalf("%s: %d and %d parts", name, len(x), len(y))
	}
	for i := range x {
		if !reflect.DeepEqual(x[i], y[i]) && fmt.Sprint(x[i]) != fmt.Sprint(y[i]) { // nil and empty are the same
			t.Fatalf("%s: %+v\nand %+v", name, x[i], y[i])
		}
	}
}

// TestStream gives the events to a function in batches, and reports progress.
func TestStream(t *testing.T) {
	whole := open(t, "gpt2_amp_graph")
	data := unpacked(t, "gpt2_amp_graph")
	var events []snapshot.Event
	var last int64
	s, err := snapshot.Read(bytes.NewReader(data), snapshot.ReadOptions{
		Events: func(device int, batch []snapshot.Event) error {
			if device != 0 || len(batch) == 0 {
				t.Errorf("%d events of device %d", len(batch), device)
			}
			events = append(events, batch...)
			return nil
		},
		Progress: func(n int64) {
			if n < last {
				t.Errorf("%d bytes were read after %d", n, last)
			}
			last = n
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Traces) != 1 || len(s.Traces[0]) != 0 || last != int64(len(data)) {
		t.Errorf("%d traces; progress ended at %d of %d", len(s.Traces), last, len(data))
	}
	s.Traces[0] = events
	equal(t, "streamed", s, whole)
	stop := errors.New("enough")
	calls := 0
	if _, err := snapshot.Read(bytes.NewReader(data), snapshot.ReadOptions{Events: func(int, []snapshot.Event) error {
		calls++
		return stop
	}}); err != stop || calls != 1 {
		t.Errorf("the error of Events became %v after %d calls", err, calls)
	}
}

// TestDevices reads traces of several devices, some of them empty, in the orders and batches that picklers use.
func TestDevices(t *testing.T) {
	entry := func(p *pickle.Writer, n int) {
		p.EmptyDict()
		p.Mark()
		p.String("action")
		p.String("alloc")
		p.String("addr")
		p.Int(int64(n))
		p.String("size")
		p.Int(1)
		p.SetItems()
	}
	for _, lens := range [][]int{{3}, {0, 2, 0, 1}, {1, 1}, {2500, 0, 1}, {0, 0}, {}} {
		var b bytes.Buffer
		p := pickle.NewWriter(&b)
		p.EmptyDict()
		p.Mark()
		p.String("device_traces")
		p.EmptyList()
		p.Mark()
		for d, n := range lens {
			p.EmptyList()
			p.Memoize()
			for i := 0; i < n; i += 1000 {
				p.Mark()
				for k := i; k < min(i+1000, n); k++ {
					entry(p, 10000*d+k)
				}
				p.Appends()
			}
		}
		p.Appends()
		p.SetItems()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := snapshot.Read(&b, snapshot.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for d, trace := range s.Traces {
			got = append(got, len(trace))
			for i, e := range trace {
				if e.Addr != uint64(10000*d+i) {
					t.Fatalf("%v: entry %d of device %d is %+v", lens, i, d, e)
				}
			}
		}
		if !slices.Equal(got, lens) {
			t.Errorf("traces of %v entries, want %v", got, lens)
		}
	}
	// Items added one by one, as protocols 0 and 1 may: [[], [e], [], [e, e]].
	const e = "(dVaction\nValloc\nsVaddr\nI1\nsVsize\nI1\ns"
	s, err := snapshot.Read(strings.NewReader("(dVdevice_traces\n(l(la(l"+e+"aa(la(l"+e+"a"+e+"aas."), snapshot.ReadOptions{})
	if err != nil || len(s.Traces) != 4 || len(s.Traces[1]) != 1 || len(s.Traces[3]) != 2 {
		t.Errorf("one by one: %v, %v", s, err)
	}
}

// TestForms reads the forms that other versions of PyTorch write.
func TestForms(t *testing.T) {
	// The short form is the list of segments; old blocks have no addresses.
	const short = "(l(dVaddress\nI1000\nsVtotal_size\nI30\nsVstream\nI-1\nsVsegment_type\nVsmall\nsVframes\nNsVblocks\n" +
		"(l(dVsize\nI10\nsVstate\nVactive_awaiting_free\nsa(dVsize\nI20\nsVstate\nVinactive\nsasa."
	s, err := snapshot.Read(strings.NewReader(short), snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []snapshot.Segment{{Addr: 1000, TotalSize: 30, Stream: 1<<64 - 1, Type: "small",
		Blocks: []snapshot.Block{{Addr: 1000, Size: 10, State: snapshot.ActivePendingFree}, {Addr: 1010, Size: 20}}}}
	if !reflect.DeepEqual(s.Segments, want) {
		t.Errorf("the short form: %+v", s.Segments)
	}
	const profile = "(dVsegments\n(lsVdevice_traces\n(l(l(dVaction\nValloc\nsVsize\nI5\nsVcategory\nVgradient\n" +
		"sVframes\n(lsa(dVaction\nVoom\nsVdevice_free\n" +
		"I7\nsVsize\nI5\nsVcategory\nVnovel\nsaasVexternal_annotations\n(ls."
	s, err = snapshot.Read(strings.NewReader(profile), snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.Traces, s.Traces[0][0].Category, s.Annotations != nil); got != "[[{0 5 0 0 0 0 alloc gradient} {7 5 0 0 0 0 "+
		"oom unknown}]] gradient true" {
		t.Errorf("categories: %s", got)
	}
	if len(s.Segments) != 0 {
		t.Errorf("segments: %v", s.Segments)
	}
}

// TestProfile reads a profiler's time line in the form of a snapshot: entries with categories, blocks without addresses.
func TestProfile(t *testing.T) {
	s := open(t, "profile")
	counts := map[snapshot.Category]int{}
	for _, trace := range s.Traces {
		for _, e := range trace {
			counts[e.Category]++
		}
	}
	want := map[snapshot.Category]int{snapshot.CategoryNone: 100, snapshot.CategoryOptimizerState: 24, snapshot.CategoryUnknown: 16,
		snapshot.CategoryActivation: 6, snapshot.CategoryGradient: 4, snapshot.CategoryParameter: 4, snapshot.CategoryTemporary: 2}
	if !reflect.DeepEqual(counts, want) || len(s.Traces) != 2 || len(s.Traces[0]) != 124 {
		t.Errorf("categories %v, traces %d", counts, len(s.Traces))
	}
	g := s.Segments[0]
	if len(s.Segments) != 2 || g.TotalSize != 1135616 || g.Blocks[1].Addr != g.Addr+16384 {
		t.Errorf("%d segments, the first %+v", len(s.Segments), g)
	}
}

// TestStacks adds many stacks twice.
func TestStacks(t *testing.T) {
	var s snapshot.Stacks
	add := func(i int) snapshot.StackID {
		return s.Add([]snapshot.Frame{{File: "f", Line: i % 7, Name: "a"}, {Name: fmt.Sprint(i)}, {File: "f", Line: i % 7, Name: "a"}}[:1+
			i%3])
	}
	ids := map[snapshot.StackID]string{}
	for range 2 {
		for i := range 5000 {
			id := add(i)
			text := fmt.Sprint(s.Frames(id))
			if old, ok := ids[id]; ok && old != text {
				t.Fatalf("stack %d is %s and %s", id, old, text)
			}
			ids[id] = text
		}
	}
	texts := map[string]bool{}
	for _, text := range ids {
		texts[text] = true
	}
	if len(texts) != len(ids) || s.Len() != len(ids)+1 {
		t.Errorf("%d stacks have %d IDs, Len is %d", len(texts), len(ids), s.Len())
	}
	if s.Add(nil) != 0 || s.Frames(0) != nil || s.Frames(snapshot.StackID(s.Len())) != nil || s.FrameCount() < 3000 {
		t.Error("the empty stack is none, or a stack beyond the last is one")
	}
}

// TestReadErrors reads what is no snapshot.
func TestReadErrors(t *testing.T) {
	one := func(fields string) string { return "(dVdevice_traces\n(l(l(dVaction\nValloc\ns" + fields + "aas." }
	// A dict of 200 keys with these values, of which the last stands for all further ones.
	many := func(values ...string) string {
		var b strings.Builder
		for i := range 200 {
			fmt.Fprintf(&b, "V%d\n%s", i, values[min(i, len(values)-1)])
		}
		return b.String()
	}
	for _, c := range []struct {
		data, want string
		kind       fault.Kind
	}{
		{"", "it is not a pickle, as DumpSnapshot writes, but empty; save or download it again", fault.Invalid},
		{"\x1f\x8bnonsense", "gzip", fault.Invalid},
		{"cos\nsystem\n(S'rm'\ntR.", "os.system", fault.Invalid},
		{"].", "neither segments nor device_traces", fault.Invalid}, {"}.", "neither segments nor device_traces", fault.Invalid},
		{"K\x01.", "neither segments nor device_traces", fault.Invalid},
		{"(dVsegments\nI1\ns.", "segments is of type int", fault.Invalid},
		{"(dVsegments\n(lI1\nas.", "a segment is of type int", fault.Invalid},
		{"(dVdevice_traces\nI1\ns.", "device_traces is of type int", fault.Invalid},
		{"(dVdevice_traces\n(lsVallocator_settings\nI1\ns.", "allocator_settings is of type int", fault.Invalid},
		{"(dVdevice_traces\n(lsVallocator_settings\n(dI1\nI2\nss.", "the name of a setting is of type int", fault.Invalid},
		{"(dVdevice_traces\n(lsVallocator_settings\n(dVa\n(lss.", "a setting is of type", fault.Invalid},
		{"(dVdevice_traces\n(lsVallocator_settings\n(dVa\n(dVa\n(dVa\n(dVa\n(dsssss.", "a setting is of type dict", fault.Invalid},
		{"(dVdevice_traces\n(lsVallocator_settings\n(d" + many("(d"+many("I1\ns")+"p9\ns", "g9\ns") + "s.",
			"more than 16384 values", fault.Invalid},
		{"(dVdevice_traces\n(lsVexternal_annotations\n(lI1\nas.", "an annotation is of type int", fault.Invalid},
		{"(dVdevice_traces\n(l(l(dVaction\nVnovel\nsaas.", `action is "novel"`, fault.Invalid},
		{one("Vsize\nVx\ns"), "a trace entry's size is of type string", fault.Invalid},
		{one("Vaddr\nI-1\ns"), "a trace entry's addr is of type int", fault.Invalid},
		{one("Vstream\nNs"), "a trace entry's stream is of type nil", fault.Invalid},
		{one("Vtime_us\nVx\ns"), "a trace entry's time_us", fault.Invalid},
		{one("Vframes\nI1\ns"), "a trace entry's frames is of type int", fault.Invalid},
		{one("Vframes\n(lI1\nas"), "a trace entry's frames is of type list", fault.Invalid},
		{"(l(dVfilename\nI1\nsa.", "a frame's filename is of type int", fault.Invalid},
		{"(l(dVfilename\nVa\nsVname\nI1\nsa.", "a frame's name is of type int", fault.Invalid},
		{"(l(dVfilename\nVa\nsVline\nVa\nsa.", "a frame's line is of type string", fault.Invalid},
		{"(l(dVstate\nVnovel\nsa.", `state is "novel"`, fault.Invalid},
		{"(l(dVstate\nVinactive\nsVsize\nNsa.", "a block's size is of type nil", fault.Invalid},
		{"(l(dVblocks\nI1\nsa.", "a segment's blocks is of type int", fault.Invalid},
		{"(l(dVblocks\n(lI1\nasa.", "a segment's blocks is of type list", fault.Invalid},
		{"(l(dVblocks\n(lsVdevice\nI-5\nsa.", "a segment's device is of type int", fault.Invalid},
		{"(l(dVblocks\n(lsVsegment_pool_id\nI5\nsa.",
			"a segment's segment_pool_id", fault.Invalid},
		{"(dVdevice_traces\n(l" + strings.Repeat("(la", 5000) + "(l(dVaction\nValloc\nsaas.", "more than 4096 devices", fault.Invalid},
	} {
		_, err := snapshot.Read(strings.NewReader(c.data), snapshot.ReadOptions{})
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.KindOf(err) != c.kind {
			t.Errorf("%q: error %v, want %q", c.data[:min(len(c.data), 60)], err, c.want)
		}
	}
	if _, err := snapshot.Read(bytes.NewReader(unpacked(t, "resnet50")), snapshot.ReadOptions{MaxMemory: 100 << 10}); fault.KindOf(err) !=
		fault.OutOfMemory {
		t.Errorf("a file for which there is no memory: %v", err)
	}
	// Memo entries far apart take a page each, and a thousand of gzip's bytes become a million; neither takes what a large file may.
	for _, data := range []string{"N" + strided(8000) + "0.", packed("(" + strings.Repeat("]", 8<<20))} {
		var err error
		n := cost.Of(func() { _, err = snapshot.Read(strings.NewReader(data), snapshot.ReadOptions{}) })
		if fault.KindOf(err) != fault.OutOfMemory || n > 128<<20 {
			t.Errorf("a file of %d bytes took %d: %v", len(data), n, err)
		}
	}
	for _, c := range []struct{ data, want string }{
		{`{"traceEvents": []}`, "but JSON; "}, {packed(`[{"a": 1}]`), "but JSON; "}, {"<!doctype html>", "but HTML or XML; "},
		{"PK\x03\x04archive/data.pkl", "but a zip archive, as .pt files are; "},
		{packed(string(unpacked(t, "extra_streams")))[:3000], "the compressed file ends in the middle"},
	} {
		if _, err := snapshot.Read(strings.NewReader(c.data), snapshot.ReadOptions{}); fault.KindOf(err) != fault.Invalid ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q", c.data[:min(len(c.data), 20)], err, c.want)
		}
	}
	data := unpacked(t, "extra_streams")
	for n := 0; n < len(data); n += 997 {
		if _, err := snapshot.Read(bytes.NewReader(data[:n]), snapshot.ReadOptions{}); fault.KindOf(err) != fault.Invalid {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
}

// strided puts the top of the stack into n entries of the memo, each as far from the one before as the memo's pages are long.
func strided(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteByte('r')
		var at [4]byte
		binary.LittleEndian.PutUint32(at[:], uint32(i)*4095)
		b.Write(at[:])
	}
	return b.String()
}

// packed compresses with gzip.
func packed(s string) string {
	var b strings.Builder
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return b.String()
}

// TestHonest reads a snapshot that says much in few bytes: a stack and names that a hundred thousand events share, compressed.
func TestHonest(t *testing.T) {
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: make([]snapshot.Note, 1), Traces: make([][]snapshot.Event, 1)}
	var fs []snapshot.Frame
	for i := range 100 {
		fs = append(fs, snapshot.Frame{File: "model.py", Line: i, Name: strings.Repeat("f", 100)})
	}
	id := s.Stacks.Add(fs)
	for range 100_000 {
		s.Traces[0] = append(s.Traces[0], snapshot.Event{Action: snapshot.ActionAlloc, Addr: 1 << 40, Size: 512, Stack: id, TimeUS: 1})
	}
	var b strings.Builder
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{b.String(), packed(b.String())} {
		got, err := snapshot.Read(strings.NewReader(data), snapshot.ReadOptions{})
		if err != nil || len(got.Traces[0]) != 100_000 || len(got.Stacks.Frames(got.Traces[0][99_999].Stack)) != 100 {
			t.Errorf("a file of %d bytes: %v", len(data), err)
		}
	}
}

// FuzzRead reads any bytes as a snapshot, within a small multiple of the memory that it may take, and what could be read a second time as
// it is written.
func FuzzRead(f *testing.F) {
	f.Add(unpacked(f, "small_p4")[:4000])
	f.Add([]byte("(dVdevice_traces\n(l(l(dVaction\nValloc\nsVaddr\nI1\nsVsize\nI1\nsaas."))
	f.Add([]byte("(l(dVaddress\nI1000\nsVtotal_size\nI30\nsVblocks\n(l(dVsize\nI10\nsVstate\nVinactive\nsasa."))
	f.Add([]byte("(dVsegments\n(lsVallocator_settings\n(dVa\nF1.5\nss."))
	var trees bytes.Buffer
	if err := planted().Write(&trees); err != nil {
		f.Fatal(err)
	}
	f.Add(trees.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		const memory = 4 << 20 // less than a file of any length may take
		var s *snapshot.Snapshot
		var err error
		cost.Within(t, 8*memory+32*len(data), func() {
			s, err = snapshot.Read(bytes.NewReader(data), snapshot.ReadOptions{MaxMemory: memory})
		})
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := s.Write(&b); err != nil {
			return // a setting may be None in it, which is written, or an integer beyond 64 bits, which became a float
		}
		again, err := snapshot.Read(&b, snapshot.ReadOptions{})
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if len(again.Segments) != len(s.Segments) || len(again.Traces) != len(s.Traces) || again.Stacks.Len() > s.Stacks.Len() {
			t.Errorf("%d segments and %d traces became %d and %d", len(s.Segments), len(s.Traces), len(again.Segments), len(again.Traces))
		}
	})
}
