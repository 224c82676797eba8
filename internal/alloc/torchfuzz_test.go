package alloc

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var torchFuzzFile = flag.String("torchfuzz", "", "replay this `file` of recorded runs instead of testdata's")

// torchRun is a run recorded from PyTorch: operations, the statistics after each, and its history.
type torchRun struct {
	Conf     string              `json:"conf"`
	Fraction *float64            `json:"fraction"`
	Total    uint64              `json:"total_memory"`
	Keys     []string            `json:"keys"`
	RawOps   [][]json.RawMessage `json:"ops"`
	RawTrace [][]json.RawMessage `json:"trace"`
	Final    []torchSegment      `json:"final_segments"`

	Ops   []torchOp    `json:"-"`
	Trace []torchEvent `json:"-"`
}

// torchOp is one operation.
type torchOp struct {
	kind    string // a, f, fm, r, e, oom, gate, sync, np, dp
	id      int    // of a block or, for np and dp, of a pool
	ids     []int  // for fm
	bytes   uint64
	stream  Stream
	stats   []torchStat // by the run's keys, after the operation
	addr    uint64      // of a
	pool    int         // of a; -1 is the default pool
	message string      // of oom
}

// torchStat is one figure; PyTorch 2.11 reports some as null.
type torchStat struct {
	value int64
	null  bool
}

// torchEvent is an entry of PyTorch's own history.
type torchEvent struct {
	action     string
	addr, size uint64
	stream     Stream
}

type torchSegment struct {
	Address   uint64               `json:"address"`
	TotalSize uint64               `json:"total_size"`
	Stream    *int                 `json:"stream"` // 0, or 1 for any other
	Type      *string              `json:"segment_type"`
	Allocated *uint64              `json:"allocated_size"`
	Active    *uint64              `json:"active_size"`
	Expand    *bool                `json:"is_expandable"`
	Pool      *int                 `json:"pool"` // 0, or 1 for any private one
	Blocks    [][3]json.RawMessage `json:"blocks"`
}

func loadTorchRuns(t testing.TB, file string) []torchRun {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var runs []torchRun
	if err := json.NewDecoder(z).Decode(&runs); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for i := range runs {
		if err := runs[i].decode(); err != nil {
			t.Fatalf("%s, run %d: %v", file, i, err)
		}
	}
	return runs
}

// decode turns the raw operations and events into typed ones, so that replays do not decode JSON.
func (r *torchRun) decode() error {
	for i, raw := range r.RawOps {
		op, err := decodeTorchOp(raw, len(r.Keys))
		if err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
		r.Ops = append(r.Ops, op)
	}
	for i, raw := range r.RawTrace {
		var e torchEvent
		if err := fields(raw, &e.action, &e.addr, &e.size, &e.stream); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
		r.Trace = append(r.Trace, e)
	}
	r.RawOps, r.RawTrace = nil, nil
	return nil
}

func decodeTorchOp(raw []json.RawMessage, keys int) (torchOp, error) {
	op := torchOp{pool: -1, stats: make([]torchStat, keys)}
	if err := fields(raw, &op.kind); err != nil {
		return op, err
	}
	var id any = &op.id
	if op.kind == "fm" {
		id = &op.ids
	}
	to := []any{&op.kind, id, &op.bytes, &op.stream}
	for k := range op.stats {
		if 4+k < len(raw) && string(raw[4+k]) == "null" {
			op.stats[k].null = true
		}
		to = append(to, &op.stats[k].value)
	}
	switch op.kind {
	case "a":
		to = append(to, &op.addr)
		if len(raw) > len(to) && string(raw[len(to)]) != "null" {
			to = append(to, &op.pool)
		}
	case "oom":
		to = append(to, &op.message)
	}
	return op, fields(raw, to...)
}

// fields decodes the first elements of a JSON array.
func fields(raw []json.RawMessage, to ...any) error {
	if len(raw) < len(to) {
		return fmt.Errorf("%d fields, %d wanted", len(raw), len(to))
	}
	for i, v := range to {
		if err := json.Unmarshal(raw[i], v); err != nil {
			return fmt.Errorf("field %d: %w", i, err)
		}
	}
	return nil
}

// TestTorchFuzz replays the recorded runs: addresses and all statistics equal after every operation, then the history, and
// segments and blocks at the end.
func TestTorchFuzz(t *testing.T) {
	files := []string{"testdata/fuzz.json.gz", "testdata/gates.json.gz"}
	if *torchFuzzFile != "" {
		files = []string{fromRoot(*torchFuzzFile)}
	}
	for _, file := range files {
		for i, run := range loadTorchRuns(t, file) {
			n, err := replayTorch(&run)
			fmt.Printf("%s: %d/%d equal\n", run.Conf, n, len(run.Ops))
			if err != nil {
				t.Errorf("%s, run %d: %v", file, i, err)
			}
		}
	}
}

// fromRoot resolves a name that is not a file in the package's folder below the module's root.
func fromRoot(name string) string {
	if _, err := os.Stat(name); err != nil && !filepath.IsAbs(name) {
		return filepath.Join("..", "..", name)
	}
	return name
}

// TestAlteredRecording alters one figure at a time: the replay must fail there.
func TestAlteredRecording(t *testing.T) {
	runs := loadTorchRuns(t, "testdata/gates.json.gz")
	run := &runs[1]
	alter := func(name string, change, back func(), want ...string) {
		t.Run(name, func(t *testing.T) {
			change()
			defer back()
			_, err := replayTorch(run)
			if err == nil {
				t.Fatal("the replay noticed nothing")
			}
			for _, w := range append(want, fmt.Sprintf("%q", run.Conf)) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error %q does not name %q", err, w)
				}
			}
		})
	}
	for _, at := range []int{0, 417, len(run.Ops) - 1} {
		for k, key := range run.Keys {
			s := &run.Ops[at].stats[k]
			old := *s
			alter(fmt.Sprintf("op%d/%s", at, key), func() { s.value, s.null = old.value+1, false }, func() { *s = old },
				fmt.Sprintf("operation %d ", at), key)
		}
	}
	alter("address", func() { run.Ops[0].addr += 512 }, func() { run.Ops[0].addr -= 512 }, "operation 0 ", "address")
	alter("history", func() { run.Trace[700].size++ }, func() { run.Trace[700].size-- }, "event 700 ")
	size := run.Final[3].Blocks[0][0]
	alter("final", func() { run.Final[3].Blocks[0][0] = json.RawMessage("512") },
		func() { run.Final[3].Blocks[0][0] = size }, "final segment 3")
}

// TestAlteredRecordingFile runs the test binary itself with -torchfuzz and a copy of the recorded file with one figure altered.
func TestAlteredRecordingFile(t *testing.T) {
	const run, op, key = 2, 1000, 3 // in the second file: roundup_power2_divisions:4, inactive_split_bytes.all.current
	file := filepath.Join(t.TempDir(), "altered.json.gz")
	writeAltered(t, file, func(runs []map[string]json.RawMessage) {
		var ops [][]json.RawMessage
		if err := json.Unmarshal(runs[run]["ops"], &ops); err != nil {
			t.Fatal(err)
		}
		var n int64
		if err := fields(ops[op][4+key:], &n); err != nil {
			t.Fatal(err)
		}
		ops[op][4+key] = fmt.Append(nil, n+512)
		runs[run]["ops"], _ = json.Marshal(ops)
	})
	out, err := exec.Command(os.Args[0], "-test.run", "^TestTorchFuzz$", "-torchfuzz", file).CombinedOutput()
	if err == nil {
		t.Fatalf("the altered file passes:\n%s", out)
	}
	for _, want := range []string{
		"\nroundup_power2_divisions:4: 1000/1173 equal\n", "\nmax_split_size_mb:32: 1171/1171 equal\n",
		"\nexpandable_segments:True: 1175/1175 equal\n",
		`run "roundup_power2_divisions:4", operation 1000 `, "inactive_split_bytes.all.current is ",
	} {
		if !strings.Contains("\n"+string(out), want) {
			t.Errorf("nothing says %q in\n%s", want, out)
		}
	}
}

// writeAltered writes a changed copy of gates.json.gz.
func writeAltered(t *testing.T, file string, change func([]map[string]json.RawMessage)) {
	t.Helper()
	f, err := os.Open("testdata/gates.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var runs []map[string]json.RawMessage
	if err := json.NewDecoder(z).Decode(&runs); err != nil {
		t.Fatal(err)
	}
	change(runs)
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if err := json.NewEncoder(w).Encode(runs); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
}

// torchReplay is one replay under way.
type torchReplay struct {
	run    *torchRun
	fake   *fakeDevice
	d      *Device
	blocks map[int]*Block
	pools  map[int]PoolID
	quick  bool        // check only addresses
	allocs [][2]uint64 // address and size of the trace's segment_alloc and segment_map entries to come
}

// replayTorch returns how many operations were equal, and the first difference.
func replayTorch(run *torchRun) (int, error) {
	p, err := newTorchReplay(run)
	if err != nil {
		return 0, fmt.Errorf("run %q: %w", run.Conf, err)
	}
	if err := p.d.RecordHistory(History{Enabled: HistoryAll}); err != nil {
		return 0, err
	}
	for i := range run.Ops {
		if err := p.step(&run.Ops[i]); err != nil {
			return i, fmt.Errorf("run %q, operation %d %q: %w", run.Conf, i, run.Ops[i].kind, err)
		}
	}
	if err := p.history(); err != nil {
		return len(run.Ops), fmt.Errorf("run %q: %w", run.Conf, err)
	}
	if err := p.final(); err != nil {
		return len(run.Ops), fmt.Errorf("run %q: %w", run.Conf, err)
	}
	return len(run.Ops), nil
}

func newTorchReplay(run *torchRun) (*torchReplay, error) {
	p := &torchReplay{run: run, fake: newFakeDevice(run.Total), blocks: map[int]*Block{}, pools: map[int]PoolID{}}
	for _, e := range run.Trace {
		if e.action == "segment_alloc" || e.action == "segment_map" {
			p.allocs = append(p.allocs, [2]uint64{e.addr, e.size})
		}
	}
	p.fake.malloc = func(size uint64) (uint64, error) {
		if len(p.allocs) == 0 {
			return 0, errors.New("the recorded run has no further segment")
		}
		e := p.allocs[0]
		p.allocs = p.allocs[1:]
		if e[1] != size {
			return 0, fmt.Errorf("a segment of %d bytes, PyTorch took %d", size, e[1])
		}
		return e[0], nil
	}
	p.fake.reserve = func(uint64) (uint64, error) {
		if len(p.allocs) == 0 {
			return 0, errors.New("the recorded run has no further segment")
		}
		return p.allocs[0][0], nil
	}
	p.fake.onPage = func(addr, size uint64) error {
		if len(p.allocs) == 0 || p.allocs[0][0] != addr || p.allocs[0][1] < size {
			return fmt.Errorf("page %#x is not what PyTorch mapped", addr)
		}
		e := &p.allocs[0]
		e[0], e[1] = e[0]+size, e[1]-size
		if e[1] == 0 {
			p.allocs = p.allocs[1:]
		}
		return nil
	}
	s, err := ParseSettings(run.Conf)
	if err != nil {
		return nil, err
	}
	p.d = New(p.fake, Options{Settings: &s})
	if run.Fraction != nil {
		if err := p.d.SetMemoryFraction(*run.Fraction); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *torchReplay) step(op *torchOp) error {
	var err error
	switch op.kind {
	case "a":
		err = p.alloc(op)
	case "oom":
		err = p.oom(op)
	case "f":
		err = p.free(op.id)
	case "fm":
		for _, id := range op.ids {
			if err := p.free(id); err != nil {
				return err
			}
		}
	case "r":
		err = p.d.RecordStream(p.blocks[op.id], op.stream)
	case "e":
		err = p.d.EmptyCache()
	case "gate":
		p.fake.OpenAll()
		p.fake.Shut(Stream(op.id))
	case "sync":
		p.fake.OpenAll()
	case "np":
		id := NewPoolID()
		p.pools[op.id] = id
		err = p.d.RetainPool(id)
	case "dp":
		id := p.pools[op.id]
		if err = p.d.EmptyPool(id); err == nil {
			err = p.d.ReleasePool(id)
		}
	default:
		err = errors.New("unknown operation")
	}
	if err != nil || p.quick {
		return err
	}
	if err := check(p.d, p.fake); err != nil {
		return err
	}
	stats := p.d.Stats()
	have := stats.Flatten()
	for k, key := range p.run.Keys {
		if want := op.stats[k]; !want.null && have[key] != want.value {
			return fmt.Errorf("%s is %d, in PyTorch %d", key, have[key], want.value)
		}
	}
	return nil
}

func (p *torchReplay) alloc(op *torchOp) error {
	var id PoolID
	if op.pool >= 0 {
		id = p.pools[op.pool]
		if err := p.d.BeginAllocateToPool(id, StreamFilter(op.stream)); err != nil {
			return err
		}
	}
	b, err := p.d.Alloc(op.bytes, op.stream)
	if err != nil {
		return err
	}
	if op.pool >= 0 {
		if err := p.d.EndAllocateToPool(id); err != nil {
			return err
		}
		if err := p.d.ReleasePool(id); err != nil {
			return err
		}
	}
	p.blocks[op.id] = b
	if b.Addr() != op.addr {
		return fmt.Errorf("the address is %#x, in PyTorch %#x", b.Addr(), op.addr)
	}
	return nil
}

// devicesOwn matches the parts of an out-of-memory message that depend on what else used the device.
var devicesOwn = regexp.MustCompile(`of which \S+ \S+ is free|Including non-PyTorch memory, this process has \S+ \S+ memory in use\. `)

func (p *torchReplay) oom(op *torchOp) error {
	_, err := p.d.Alloc(op.bytes, op.stream)
	if err == nil {
		return errors.New("the allocation succeeded")
	}
	if p.quick {
		return nil
	}
	have, want := devicesOwn.ReplaceAllString(err.Error(), ""), devicesOwn.ReplaceAllString(op.message, "")
	if !slices.Equal(sizesIn(have), sizesIn(want)) {
		return fmt.Errorf("the message is\n%s\nin PyTorch\n%s", have, want)
	}
	return nil
}

func (p *torchReplay) free(id int) error {
	b := p.blocks[id]
	delete(p.blocks, id)
	return p.d.Free(b)
}

// history compares the whole trace. For streams, PyTorch's trace says only whether they are the default one; for a failed allocation it has
// the free bytes of a device that others used too. Within a run of completed frees, or of returned segments, any order is accepted:
// PyTorch's is that of the streams' handles, which the recording does not have.
func (p *torchReplay) history() error {
	var have []torchEvent
	for _, e := range p.d.Snapshot().Trace {
		have = append(have, torchEvent{e.Action.String(), e.Addr, e.Size, min(e.Stream, 1)})
	}
	want := slices.Clone(p.run.Trace)
	if len(have) != len(want) {
		return fmt.Errorf("%d events, in PyTorch %d", len(have), len(want))
	}
	sortRuns(have)
	sortRuns(want)
	for i, w := range want {
		h := have[i]
		if h.action == "oom" {
			h.addr, w.addr = 0, 0
		}
		w.stream = min(w.stream, 1)
		if h != w {
			return fmt.Errorf("event %d is %+v, in PyTorch %+v", i, h, w)
		}
	}
	return nil
}

// sortRuns sorts by address each run of consecutive events whose order does not matter.
func sortRuns(events []torchEvent) {
	class := func(e torchEvent) int {
		switch e.action {
		case "free_completed":
			return 1
		case "segment_free", "segment_unmap":
			return 2
		}
		return 0
	}
	for from := 0; from < len(events); {
		to := from + 1
		for c := class(events[from]); c != 0 && to < len(events) && class(events[to]) == c; {
			to++
		}
		slices.SortFunc(events[from:to], func(a, b torchEvent) int { return cmp.Compare(a.addr, b.addr) })
		from = to
	}
}

func (p *torchReplay) final() error {
	have := p.d.Segments()
	if len(have) != len(p.run.Final) {
		return fmt.Errorf("%d final segments, in PyTorch %d", len(have), len(p.run.Final))
	}
	for i, want := range p.run.Final {
		if err := want.equal(&have[i]); err != nil {
			return fmt.Errorf("final segment %d: %w", i, err)
		}
	}
	if len(p.allocs) > 0 {
		return fmt.Errorf("PyTorch took %d further segments", len(p.allocs))
	}
	return nil
}

func (w *torchSegment) equal(s *SegmentInfo) error {
	kind := "small"
	if s.Large {
		kind = "large"
	}
	switch {
	case s.Addr != w.Address || s.TotalSize != w.TotalSize:
		return fmt.Errorf("%d bytes at %#x, in PyTorch %d at %#x", s.TotalSize, s.Addr, w.TotalSize, w.Address)
	case w.Stream != nil && (s.Stream != 0) != (*w.Stream != 0), w.Type != nil && kind != *w.Type,
		w.Allocated != nil && s.Allocated != *w.Allocated, w.Active != nil && s.Active != *w.Active,
		w.Expand != nil && s.Expandable != *w.Expand, w.Pool != nil && (s.Pool != PoolID{}) != (*w.Pool != 0):
		return fmt.Errorf("its fields %+v differ", *s)
	case len(s.Blocks) != len(w.Blocks):
		return fmt.Errorf("%d blocks, in PyTorch %d", len(s.Blocks), len(w.Blocks))
	}
	for i, b := range s.Blocks {
		var size, requested uint64
		var state string
		if err := fields(w.Blocks[i][:], &size, &requested, &state); err != nil {
			return err
		}
		if b.Size != size || b.Requested != requested || b.State.String() != state {
			return fmt.Errorf("block %d is [%d %d %s], in PyTorch [%d %d %s]", i, b.Size, b.Requested, b.State, size, requested, state)
		}
	}
	return nil
}
