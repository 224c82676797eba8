package alloc

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
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
	Ops      [][]json.RawMessage `json:"ops"`
	Trace    [][]json.RawMessage `json:"trace"`
	Final    []torchSegment      `json:"final_segments"`
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
	return runs
}

// TestTorchFuzz replays the recorded runs: addresses and all statistics equal after every operation, segments and blocks at
// the end.
func TestTorchFuzz(t *testing.T) {
	files := []string{"testdata/fuzz.json.gz", "testdata/gates.json.gz"}
	if *torchFuzzFile != "" {
		files = []string{*torchFuzzFile}
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

// TestTorchFuzzNotices alters one figure at a time and wants the replay to fail there.
func TestTorchFuzzNotices(t *testing.T) {
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
			old := run.Ops[at][4+k]
			alter(fmt.Sprintf("op%d/%s", at, key), func() { run.Ops[at][4+k] = json.RawMessage("12345") },
				func() { run.Ops[at][4+k] = old }, fmt.Sprintf("operation %d ", at), key)
		}
	}
	old := run.Ops[0][4+len(run.Keys)]
	alter("address", func() { run.Ops[0][4+len(run.Keys)] = json.RawMessage("512") },
		func() { run.Ops[0][4+len(run.Keys)] = old }, "operation 0 ", "address")
	size := run.Final[3].Blocks[0][0]
	alter("final", func() { run.Final[3].Blocks[0][0] = json.RawMessage("512") },
		func() { run.Final[3].Blocks[0][0] = size }, "final segment 3")
}

// torchReplay is one replay under way.
type torchReplay struct {
	run    *torchRun
	fake   *fakeDevice
	d      *Device
	blocks map[int]*Block
	pools  map[int]PoolID
	quick  bool        // compare addresses alone
	allocs [][2]uint64 // address and size of the trace's segment_alloc and segment_map entries to come
}

// replayTorch returns how many operations were equal, and the first difference.
func replayTorch(run *torchRun) (int, error) {
	p, err := newTorchReplay(run)
	if err != nil {
		return 0, fmt.Errorf("run %q: %w", run.Conf, err)
	}
	for i, op := range run.Ops {
		if err := p.step(op); err != nil {
			return i, fmt.Errorf("run %q, operation %d %s: %w", run.Conf, i, op[0], err)
		}
	}
	if err := p.final(); err != nil {
		return len(run.Ops), fmt.Errorf("run %q: %w", run.Conf, err)
	}
	return len(run.Ops), nil
}

func newTorchReplay(run *torchRun) (*torchReplay, error) {
	p := &torchReplay{run: run, fake: newFakeDevice(run.Total), blocks: map[int]*Block{}, pools: map[int]PoolID{}}
	for _, e := range run.Trace {
		if a := text(e[0]); a == "segment_alloc" || a == "segment_map" {
			p.allocs = append(p.allocs, [2]uint64{number[uint64](e[1]), number[uint64](e[2])})
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

func text(m json.RawMessage) (s string) {
	if err := json.Unmarshal(m, &s); err != nil {
		panic(err)
	}
	return s
}

func number[T int | int64 | uint64](m json.RawMessage) (n T) {
	if err := json.Unmarshal(m, &n); err != nil {
		panic(err)
	}
	return n
}

func (p *torchReplay) step(op []json.RawMessage) error {
	var err error
	extra := op[4+len(p.run.Keys):]
	switch text(op[0]) {
	case "a":
		err = p.alloc(op, extra)
	case "oom":
		err = p.oom(op, text(extra[0]))
	case "f":
		err = p.free(number[int](op[1]))
	case "fm":
		var ids []int
		if err := json.Unmarshal(op[1], &ids); err != nil {
			return err
		}
		for _, id := range ids {
			if err := p.free(id); err != nil {
				return err
			}
		}
	case "r":
		err = p.d.RecordStream(p.blocks[number[int](op[1])], number64(op[3]))
	case "e":
		err = p.d.EmptyCache()
	case "gate":
		p.fake.OpenAll()
		p.fake.Shut(number64(op[1]))
	case "sync":
		p.fake.OpenAll()
	case "np":
		id := NewPoolID()
		p.pools[number[int](op[1])] = id
		err = p.d.RetainPool(id)
	case "dp":
		id := p.pools[number[int](op[1])]
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
		m := op[4+k]
		if string(m) == "null" {
			continue
		}
		if want := number[int64](m); have[key] != want {
			return fmt.Errorf("%s is %d, in PyTorch %d", key, have[key], want)
		}
	}
	return nil
}

func number64(m json.RawMessage) Stream { return Stream(number[uint64](m)) }

func (p *torchReplay) alloc(op, extra []json.RawMessage) error {
	s := number64(op[3])
	private := len(extra) > 1 && string(extra[1]) != "null"
	var id PoolID
	if private {
		id = p.pools[number[int](extra[1])]
		if err := p.d.BeginAllocateToPool(id, StreamFilter(s)); err != nil {
			return err
		}
	}
	b, err := p.d.Alloc(number[uint64](op[2]), s)
	if err != nil {
		return err
	}
	if private {
		if err := p.d.EndAllocateToPool(id); err != nil {
			return err
		}
		if err := p.d.ReleasePool(id); err != nil {
			return err
		}
	}
	p.blocks[number[int](op[1])] = b
	if want := number[uint64](extra[0]); b.Addr() != want {
		return fmt.Errorf("the address is %#x, in PyTorch %#x", b.Addr(), want)
	}
	return nil
}

// devicesOwn are the parts of an out-of-memory message that depend on what else used the device.
var devicesOwn = regexp.MustCompile(`of which \S+ \S+ is free|Including non-PyTorch memory, this process has \S+ \S+ memory in use\. `)

func (p *torchReplay) oom(op []json.RawMessage, want string) error {
	_, err := p.d.Alloc(number[uint64](op[2]), number64(op[3]))
	if err == nil {
		return errors.New("the allocation succeeded")
	}
	have, want := devicesOwn.ReplaceAllString(err.Error(), ""), devicesOwn.ReplaceAllString(want, "")
	if have != want {
		return fmt.Errorf("the message is\n%s\nin PyTorch\n%s", have, want)
	}
	return nil
}

func (p *torchReplay) free(id int) error {
	b := p.blocks[id]
	delete(p.blocks, id)
	return p.d.Free(b)
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
		size, requested, state := number[uint64](w.Blocks[i][0]), number[uint64](w.Blocks[i][1]), text(w.Blocks[i][2])
		if b.Size != size || b.Requested != requested || b.State.String() != state {
			return fmt.Errorf("block %d is [%d %d %s], in PyTorch [%d %d %s]", i, b.Size, b.Requested, b.State, size, requested, state)
		}
	}
	return nil
}
