package memviz

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/internal/snapshot"
)

func TestWrongRequests(t *testing.T) {
	rec := synthetic(t, 1, 2000)
	v := &viewer{rec: rec}
	for request, want := range map[string]string{
		"at?device=0&state=99999999":                  `the parameter state is "99999999"; it must be a number from 0 to`,
		"at?device=5&state=0":                         "synthetic has no device 5",
		"at?device=x":                                 `the parameter device is "x"`,
		"at?device=0&state=-1":                        `the parameter state is "-1"`,
		"at?device=0&filter=size>x":                   `"size>x" is not a search word`,
		"blocks?device=0&state=a":                     "the parameter state",
		"events?device=0&count=100000000":             "the parameter count",
		"tile?device=9":                               "has no device 9",
		"tile?device=0":                               `there is no view ""`,
		"tile?device=0&view=state":                    "the views with tiles are active and cached",
		"tile?device=0&view=active&level=40":          "the parameter level",
		"tile?device=0&view=active&index=99":          "the parameter index",
		"tile?device=0&view=active&min=x":             "the parameter min",
		"tile?device=0&view=cached&filter=size>":      `"size>" is not a search word`,
		"alloc?device=0&view=active&id=99999":         "the parameter id",
		"alloc?device=0&view=active":                  "there is no number",
		"alloc?device=0&view=x":                       `there is no view "x"`,
		"search?device=0&q=id:x":                      `"id:x" is not a search word: after id: comes a number`,
		"search?device=0&limit=x":                     "the parameter limit",
		"oom?device=0&index=77":                       "there is no number 77",
		"oom?device=0&index=x":                        "the parameter index",
		"diff?device=0&at=end":                        "nothing to compare with",
		"stack?id=1,99999":                            `"99999" is not a stack`,
		"stack?id=":                                   `"" is not a stack`,
		"stack?id=" + strings.Repeat("1,", maxStacks): "at most 10000 stacks",
		"what?": `there is no request "what"`,
	} {
		body, err := answerText(v, request)
		if err == nil || !strings.Contains(err.Error(), want) || body != nil {
			t.Errorf("%.60s: %v, want %q", request, err, want)
		}
	}
	if _, err := answerText(&viewer{rec: rec, before: rec}, "diff?device=0&at=noon"); err == nil ||
		!strings.Contains(err.Error(), `at end or peak, not at "noon"`) {
		t.Error(err)
	}
}

// searchFixture has allocations of known sizes, stacks, streams and pools.
func searchFixture(t testing.TB) *Recording {
	t.Helper()
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: []snapshot.Note{{}, {UserMetadata: "step 3"}},
		Traces: make([][]snapshot.Event, 1)}
	conv := s.Stacks.Add([]snapshot.Frame{{File: "/lib/nn/Conv.go", Line: 12, Name: "Conv.Forward"},
		{File: "/src/main.go", Line: 5, Name: "train loop"}})
	adam := s.Stacks.Add([]snapshot.Frame{{Name: "interpreter"}, {File: "/lib/optim/adam.go", Line: 80, Name: "Adam.Step"}})
	s.Segments = []snapshot.Segment{{Addr: 0x1000000, TotalSize: 1 << 24, Type: "large", Pool: [2]uint64{1, 2}},
		{Addr: 0x8000000, TotalSize: 1 << 24, Type: "large", Stream: 9}}
	add := func(a snapshot.Action, addr, size, stream uint64, stack snapshot.StackID, c snapshot.Category) {
		s.Traces[0] = append(s.Traces[0], snapshot.Event{Action: a, Addr: addr, Size: size, Stream: stream, Stack: stack,
			Category: c, Note: 1})
	}
	add(snapshot.ActionAlloc, 0x1000000, 512, 0, conv, snapshot.CategoryActivation)
	add(snapshot.ActionAlloc, 0x1000200, 2048, 0, adam, snapshot.CategoryOptimizerState)
	add(snapshot.ActionAlloc, 0x8000000, 3<<20, 9, conv, snapshot.CategoryGradient)
	add(snapshot.ActionFreeRequested, 0x8000000, 3<<20, 9, conv, snapshot.CategoryGradient)
	add(snapshot.ActionAlloc, 0x8400000, 100, 9, 0, snapshot.CategoryNone)
	add(snapshot.ActionFreeCompleted, 0x8000000, 3<<20, 9, conv, snapshot.CategoryGradient)
	add(snapshot.ActionUserDefined, 0, 0, 0, 0, snapshot.CategoryNone)
	return recordingOf(t, s)
}

func TestSearch(t *testing.T) {
	rec := searchFixture(t)
	for query, want := range map[string][]uint32{
		"":                                   {2, 1, 0, 3},
		"conv":                               {2, 0},
		"CONV.go:12":                         {2, 0},
		`"train loop"`:                       {2, 0},
		"train loop":                         {2, 0},
		"-conv":                              {1, 3},
		"size>2k":                            {2},
		"size>=2KiB":                         {2, 1},
		"size<512":                           {3},
		"size<=512b":                         {0, 3},
		"size=2048":                          {1},
		"size:100":                           {3},
		"size>=1.5MiB":                       {2},
		"stream:9":                           {2, 3},
		"stream:1":                           {},
		"pool:1,2":                           {1, 0},
		"pool:(0,0)":                         {2, 3},
		"category:gradient":                  {2},
		"addr:0x1000201":                     {1},
		"addr:16777728":                      {1},
		"state:3 -state:6":                   {2},
		"event:2 -event:5":                   {2},
		"id:1":                               {1},
		"stack:0":                            {3},
		"stack:2":                            {1},
		"adam stream:0 size>1":               {1},
		"adam conv":                          {},
		"interpreter":                        {1},
		"-stream:9 -stack:1":                 {1},
		"   ":                                {2, 1, 0, 3},
		"- conv":                             {2, 0},
		`"`:                                  {2, 1, 0, 3},
		"size":                               {},
		"colon:in:word":                      {},
		"Adam.Step category:optimizer_state": {1},
	} {
		var r SearchResult
		b, err := json.Marshal(must(rec.search(rec.devices[0], query, 10)))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		got := []uint32{}
		for _, x := range r.Results {
			got = append(got, x.ID)
		}
		if !slices.Equal(got, want) || r.Count != len(want) {
			t.Errorf("%q finds %v (%d), want %v", query, got, r.Count, want)
		}
	}
	for _, wrong := range []string{"size>", "size>1x", "size>99999999999999999999999", "addr:here", "event:", "size=1kk"} {
		if _, err := rec.search(rec.devices[0], wrong, 1); err == nil || !strings.Contains(err.Error(), "is not a search word") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	for query, want := range map[string]int{"": 2, "pool:1,2": 1, "stream:9": 1, "size>1": 2, "category:none": 0, "category:parameter": 0,
		"addr:0x8000010": 1, "conv": 0} {
		if got := must(rec.line(rec.devices[0], ViewCached, query)); len(got.start) != want {
			t.Errorf("%q finds %d segments, want %d", query, len(got.start), want)
		}
	}
	r := must(rec.search(rec.devices[0], "", 2))
	if len(r.Results) != 2 || r.Count != 4 || r.Bytes != 512+2048+3<<20+100 || r.Groups[0].Stack != 1 || r.Groups[0].Count != 2 {
		t.Errorf("%+v", r)
	}
	for range keptFilters + 2 { // filters are cached, and the oldest evicted
		must(rec.line(rec.devices[0], ViewActive, "conv"))
		must(rec.line(rec.devices[0], ViewActive, strings.Repeat("x", len(rec.filters))))
	}
	if len(rec.filters) != keptFilters {
		t.Errorf("%d filters are kept", len(rec.filters))
	}
}

// must returns v; it panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestCategoriesAndNotes(t *testing.T) {
	rec := searchFixture(t)
	var info Info
	if err := json.Unmarshal(get(t, &viewer{rec: rec}, "info"), &info); err != nil {
		t.Fatal(err)
	}
	if !info.Categorised || info.Categories[snapshot.CategoryGradient] != "gradient" {
		t.Errorf("%+v", info)
	}
	p := parseTile(t, get(t, &viewer{rec: rec}, "tile?device=0&view=active&level=0&index=0&min=1"))
	for i, want := range []uint32{1<<8 | 3<<16 | 1<<25, 1<<8 | 6<<16 | 1<<25, 1 | 2<<8 | 2<<16 | 1<<26, 1 | 2<<8 | 1<<25} {
		if p.marks[i] != want {
			t.Errorf("allocation %d has marks %x, want %x", i, p.marks[i], want)
		}
	}
	plain := &lives{start: []uint32{1}, freed: []uint32{4}, end: []uint32{5}}
	if m := lifeMarks(plain, 0, 9); m != 0 {
		t.Errorf("what is freed at once has marks %x", m)
	}
	x := rec.allocation(rec.devices[0], ViewActive, 2)
	if x.Category != "gradient" || x.Pool != "(0,0)" || x.Freed != 4 || x.End != 6 {
		t.Errorf("%+v", x)
	}
	e := must(rec.describeEvent(rec.devices[0], 6))
	if e.Action != "user_defined" || e.Note != "step 3" || e.Label != "no stack recorded" {
		t.Errorf("%+v", e)
	}
	if l := rec.text.label(2); l != "adam.go:80:Adam.Step" {
		t.Errorf("label %q", l)
	}
}

// TestTelling: frames of package tenon say nothing about a program, but those of a module whose path begins like tenon's do.
func TestTelling(t *testing.T) {
	for name, want := range map[string]bool{
		"tenon.(*Exec).Add": false, "tenon.From[...]": false, "tenon.dev/nn.(*Linear).Forward": true, "tenon.development/x.F": true,
		"main.main": true,
	} {
		if got := telling(snapshot.Frame{File: "/x/f.go", Line: 1, Name: name}); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestDiff(t *testing.T) {
	before := searchFixture(t)
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: []snapshot.Note{{}}, Traces: make([][]snapshot.Event, 1)}
	s.Stacks.Add([]snapshot.Frame{{Name: "other"}}) // so that the numbers differ
	adam := s.Stacks.Add([]snapshot.Frame{{Name: "interpreter"}, {File: "/lib/optim/adam.go", Line: 80, Name: "Adam.Step"}})
	s.Segments = []snapshot.Segment{{Addr: 0x1000000, TotalSize: 1 << 24, Type: "large"},
		{Addr: 0x9000000, TotalSize: 1 << 21, Type: "small", Blocks: []snapshot.Block{
			{Addr: 0x9000000, Size: 1024, Requested: 1000, State: snapshot.ActiveAllocated, Stack: adam}}}}
	s.Traces[0] = []snapshot.Event{{Action: snapshot.ActionAlloc, Addr: 0x1000000, Size: 4096, Stack: adam}}
	after := recordingOf(t, s)
	d := must(compare(before, after, 0, atEnd))
	if d.BeforeActive != 512+2048+100 || d.AfterActive != 5096 || d.BeforeCached != 1<<25 || d.AfterCached != 1<<24+1<<21 {
		t.Errorf("%+v", d)
	}
	if g := d.Groups[0]; g.Label != "adam.go:80:Adam.Step" || g.BeforeBytes != 2048 || g.AfterBytes != 5096 || g.BeforeCount != 1 ||
		g.AfterCount != 2 || len(g.Frames) != 2 {
		t.Errorf("%+v", g)
	}
	if g := d.Groups[1]; g.BeforeBytes != 512 || g.AfterBytes != 0 {
		t.Errorf("%+v", g)
	}
	if len(d.Groups) != 3 || d.Rest.BeforeCount != 0 {
		t.Errorf("%d groups, rest %+v", len(d.Groups), d.Rest)
	}
	if len(d.OnlyBefore) != 1 || d.OnlyBefore[0].Addr != "0x8000000" || len(d.OnlyAfter) != 1 || d.OnlyAfter[0].Addr != "0x9000000" {
		t.Errorf("only before %+v, only after %+v", d.OnlyBefore, d.OnlyAfter)
	}
	if d := must(compare(before, after, 0, atPeak)); d.BeforeActive != before.devices[0].activeLine.max {
		t.Errorf("at the peak: %+v", d)
	}
	for _, c := range [][2]*Recording{{before, recordingOf(t, &snapshot.Snapshot{Stacks: &snapshot.Stacks{}})},
		{recordingOf(t, &snapshot.Snapshot{Stacks: &snapshot.Stacks{}}), after}} {
		if _, err := compare(c[0], c[1], 0, atEnd); err == nil || !strings.Contains(err.Error(), "has no device 0") {
			t.Error(err)
		}
	}
	other := must(
		compare(before, recordingOf(t, &snapshot.Snapshot{Stacks: &snapshot.Stacks{},
			Segments: []snapshot.Segment{{Device: 3, Addr: 1 << 30, TotalSize: 1 << 21, Type: "small"}}}), 3, atEnd))
	if other.BeforeDevice != 0 || other.AfterDevice != 3 || other.BeforeActive != d.BeforeActive || other.AfterCached != 1<<21 {
		t.Errorf("device 0 against device 3: %+v", other)
	}
	many := &Diff{}
	for i := range maxDiffGroups + 7 {
		many.Groups = append(many.Groups, DiffGroup{BeforeBytes: uint64(i), BeforeCount: 1})
	}
	many.finish()
	if len(many.Groups) != maxDiffGroups || many.Rest.BeforeCount != 7 || many.Rest.BeforeBytes != 0+1+2+3+4+5+6 {
		t.Errorf("rest %+v", many.Rest)
	}
}

func TestFlameGraph(t *testing.T) {
	var b strings.Builder
	in := "main;train;conv 3000\nmain;train;adam 1000\nmain;<gaps> -5\nmain;load & go 96\nidle 0\n"
	if err := WriteFlameGraph(&b, strings.NewReader(in), "a < b"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a &lt; b", "<title>all: 4.0KiB (100.0%)</title>", "<title>train: 3.9KiB (97.7%)</title>",
		"load &amp; go: 96.0B (2.3%)", `data-d="3"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "gaps") || strings.Contains(b.String(), "idle") {
		t.Error("what has no bytes is drawn")
	}
	for _, wrong := range []string{"abc", "main 1\nmain;x y\n", "main;x 1.5"} {
		if err := WriteFlameGraph(&b, strings.NewReader(wrong), ""); err == nil ||
			!strings.Contains(err.Error(), "does not end in a number of bytes") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	b.Reset()
	if err := WriteFlameGraph(&b, strings.NewReader(""), "nothing"); err != nil || !strings.Contains(b.String(), "0.0B") {
		t.Errorf("%v %s", err, b.String())
	}
}

// Whatever names functions have, the picture is valid XML.
func TestFlameGraphNames(t *testing.T) {
	var b strings.Builder
	names := "a\x00\x1b[31m <b> & \"c\" ']]>';\xff\xfe\uffff\U0010ffff;operator<<(std::ostream&)"
	if err := WriteFlameGraph(&b, strings.NewReader(names+" 4096\n"), names); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for n := 0; ; n++ {
		_, err := d.Token()
		if err == io.EOF {
			if n < 20 {
				t.Errorf("%d tokens", n)
			}
			return
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, b.String())
		}
	}
}

// The lines of WriteHolders add up to the peak.
func TestHolders(t *testing.T) {
	rec := must(Open(recordedPath("gpt2_amp_graph")))
	var b bytes.Buffer
	if err := WriteHolders(&b, rec, 0, atPeak); err != nil {
		t.Fatal(err)
	}
	root := &flame{}
	for line := range strings.Lines(b.String()) {
		name, bytes, _ := strings.Cut(strings.TrimSpace(line), " ")
		n := uint64(0)
		for _, c := range bytes[strings.LastIndexByte(bytes, ' ')+1:] {
			n = 10*n + uint64(c-'0')
		}
		root.add(strings.Split(name, ";"), n)
	}
	if root.bytes != rec.devices[0].activeLine.max {
		t.Errorf("the lines hold %d bytes, the peak %d", root.bytes, rec.devices[0].activeLine.max)
	}
	if got := rec.Devices(); !slices.Equal(got, []int{0}) {
		t.Errorf("devices %v", got)
	}
	if err := WriteHolders(&b, rec, 3, atPeak); err == nil {
		t.Error("there is no device 3")
	}
	if err := WriteHolders(&b, rec, 0, "noon"); err == nil {
		t.Error("there is no such moment")
	}
}

func TestReportErrors(t *testing.T) {
	bad := func() *strings.Reader { return strings.NewReader("nonsense") }
	for name, err := range map[string]error{
		"stats":    WriteStats(&bytes.Buffer{}, bad(), "x.pickle"),
		"trace":    WriteTrace(&bytes.Buffer{}, bad(), "x.pickle"),
		"segments": WriteSegments(&bytes.Buffer{}, bad(), "x.pickle"),
		"before":   WriteCompare(&bytes.Buffer{}, bad(), bad(), "x.pickle", "y"),
		"after":    WriteCompare(&bytes.Buffer{}, recorded(t, "extra_streams"), bad(), "y", "x.pickle"),
	} {
		if err == nil || !strings.Contains(err.Error(), "x.pickle: the snapshot cannot be read") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPythonString(t *testing.T) {
	for s, want := range map[string]string{
		"plain": `'plain'`, "it's": `"it's"`, `it's "x"`: `'it\'s "x"'`, "a\\b\n\t\r": `'a\\b\n\t\r'`,
		"\x01é\u200b\U000e0001": `'\x01é\u200b\U000e0001'`,
	} {
		if got := pythonString(s); got != want {
			t.Errorf("%q is %s, want %s", s, got, want)
		}
	}
}

func TestLargest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	size := make([]uint64, 20000)
	ids := make([]uint32, len(size))
	for i := range size {
		size[i], ids[i] = uint64(rng.IntN(300)), uint32(i)
	}
	want := slices.Clone(ids)
	slices.SortStableFunc(want, func(a, b uint32) int { return int(size[b]) - int(size[a]) })
	for _, n := range []int{0, 1, 100, 5000, 30000} {
		if got := largest(ids, size, n); !slices.Equal(got, want[:min(n, len(want))]) {
			t.Errorf("the %d largest of %d are wrong", n, len(ids))
		}
	}
}

// FuzzQuery asks any query text; a negated word finds what the word does not.
func FuzzQuery(f *testing.F) {
	rec := searchFixture(f)
	for _, q := range []string{"conv size>=1k", "-stream:9", `"train loop" pool:1,2`, "addr:0x10 id:1 event:2 stack:1",
		"category:gradient", "size<", "size:=5", "graph:0", "tree:w1"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := rec.search(rec.devices[0], text, 3); err == nil && (r.Count > 4 || len(r.Results) > 3) {
			t.Errorf("%q finds %d of 4", text, r.Count)
		}
		if strings.ContainsAny(text, " \"") || strings.HasPrefix(text, "-") || text == "" {
			return
		}
		with, err := rec.line(rec.devices[0], ViewActive, text)
		without, err2 := rec.line(rec.devices[0], ViewActive, "-"+text)
		if (err == nil) != (err2 == nil) || err == nil && len(with.start)+len(without.start) != 4 {
			t.Errorf("%q finds %d, its opposite %d of 4 (%v, %v)", text, len(with.start), len(without.start), err, err2)
		}
	})
}
