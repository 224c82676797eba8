package cuda_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/nn"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

//go:noinline
func makeTensor(x *tenon.Exec, n int) *tenon.Tensor { return x.Rand([]int{n}, tenon.Float32) }

//go:noinline
func dropTensor(a *tenon.Tensor) { a.Close() }

// text returns a stack as lines.
func text(frames []cuda.Frame) string {
	var b strings.Builder
	for _, f := range frames {
		b.WriteString(f.Name + "\n")
	}
	return b.String()
}

// dump returns all stacks of a device's snapshot as text: those of the trace, and those of segments and blocks.
func dump(t testing.TB, d *cuda.Device) (trace, blocks string, s *cuda.Snapshot) {
	t.Helper()
	s, err := d.Snapshot()
	ok(t, err)
	for _, e := range s.Trace(d.Ordinal()) {
		trace += e.Action + "\n" + text(e.Frames)
	}
	for _, g := range s.Segments() {
		blocks += text(g.Frames)
		for _, b := range g.Blocks {
			blocks += text(b.Frames)
		}
	}
	return trace, blocks, s
}

// TestHistoryContexts checks which stacks each level keeps, and that operations are shown only if requested.
func TestHistoryContexts(t *testing.T) {
	for _, c := range []struct {
		h                           cuda.History
		maker, dropper, empty, kept bool
		operation                   bool
		entries                     int
	}{
		{cuda.History{}, true, true, true, true, true, 6},
		{cuda.History{Stacks: cuda.StacksGo}, true, true, true, true, false, 6},
		{cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextAlloc, Stacks: cuda.StacksAll}, true, false, false, true, true, 6},
		{cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextState, Stacks: "python"}, false, false, false, true, false, 6},
		{cuda.History{Context: cuda.ContextNone}, false, false, false, false, false, 6},
		{cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextAll}, false, false, true, true, true, 1},
		{cuda.History{Enabled: cuda.HistoryOff}, false, false, false, false, false, 0},
	} {
		x, d := open(t, 1<<30)
		ok(t, d.RecordMemoryHistory(c.h))
		a := makeTensor(x, 1<<20)
		_, blocks, s := dump(t, d)
		if got := strings.Contains(blocks, "cuda_test.makeTensor"); got != c.kept {
			t.Errorf("%+v: the maker in the blocks' stacks: %v, want %v", c.h, got, c.kept)
		}
		if n := len(s.Segments()); n != 1 {
			t.Errorf("%+v: %d segments", c.h, n)
		}
		dropTensor(a)
		ok(t, d.EmptyCache())
		trace, _, s := dump(t, d)
		for _, k := range []struct {
			text string
			want bool
		}{{"cuda_test.makeTensor", c.maker}, {"cuda_test.dropTensor", c.dropper}, {"(*Device).EmptyCache", c.empty},
			{"::rand", c.operation && c.maker}} {
			if got := strings.Contains(trace, k.text); got != k.want {
				t.Errorf("%+v: %q in the trace: %v, want %v\n%s", c.h, k.text, got, k.want, trace)
			}
		}
		if n := len(s.Trace(0)); n != c.entries {
			t.Errorf("%+v: %d entries, want %d", c.h, n, c.entries)
		}
		if strings.Contains(trace+blocks, "tenon.dev/internal") {
			t.Errorf("%+v: the stacks show the library's inside:\n%s", c.h, trace)
		}
	}
}

// TestHistoryStack checks one stack: the operation, the module that called it, the program.
func TestHistoryStack(t *testing.T) {
	x, d := open(t, 1<<30)
	x.Scope(func(x *tenon.Exec) {
		m := nn.NewLinear(x, 64, 32)
		ok(t, d.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextAlloc, MaxEntries: 1}))
		m.Forward(x, makeTensor(x, 64))
		trace, _, _ := dump(t, d)
		want := "alloc\ntenon::linear\ntenon.(*Exec).Linear\ntenon.dev/nn.(*Linear).Forward\ntenon.dev/cuda_test.TestHistoryStack."
		if !strings.HasPrefix(trace, want) || !strings.HasSuffix(trace, "tenon.dev/cuda_test.TestHistoryStack\ntesting.tRunner\n") {
			t.Errorf("the stack is\n%s", trace)
		}
		// An operation that consists of several functions is one call.
		x.Ones([]int{3}, tenon.Float32)
		trace, _, _ = dump(t, d)
		if want := "alloc\ntenon::full\ntenon::ones\ntenon.(*Exec).Ones\n"; !strings.HasPrefix(trace, want) {
			t.Errorf("the stack is\n%s", trace)
		}
	})
}

// TestHistoryPlumbing checks a stack through scopes and a list of modules: from the library it has only the operation and the modules.
func TestHistoryPlumbing(t *testing.T) {
	x, d := open(t, 1<<30)
	x.Scope(func(x *tenon.Exec) {
		m := nn.Sequential{nn.Sequential{nn.NewLinear(x, 64, 32)}}
		in := makeTensor(x, 64)
		ok(t, d.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextAlloc, MaxEntries: 1}))
		x.Scope(func(x *tenon.Exec) {
			x.Within(func(x *tenon.Exec) *tenon.Tensor { return m.Forward(x, in) })
		})
		trace, _, _ := dump(t, d)
		const test = "tenon.dev/cuda_test.TestHistoryPlumbing"
		want := "free_completed\ntenon::linear\ntenon.(*Exec).Linear\ntenon.dev/nn.(*Linear).Forward\ntenon.dev/nn.Sequential.Forward\n" +
			"tenon.dev/nn.Sequential.Forward\n" + test + ".func1.1.1\n" + test + ".func1.1\n" + test + ".func1\n" + test +
			"\ntesting.tRunner\n"
		if trace != want {
			t.Errorf("the stack is\n%s\nwant\n%s", trace, want)
		}
	})
}

func TestHistoryErrors(t *testing.T) {
	_, d := open(t, 1<<30)
	for _, c := range []struct {
		h    cuda.History
		want string
	}{
		{cuda.History{Enabled: "some"}, "expected state to be 'state', 'all', or empty"},
		{cuda.History{Enabled: cuda.HistoryAll, Context: "some"}, "expected context to be 'state', 'alloc', 'all', or empty"},
		{cuda.History{Enabled: cuda.HistoryAll, Stacks: "some"}, "expected stacks to be 'python', or 'all'"},
		{cuda.History{Enabled: cuda.HistoryAll, MaxEntries: -1}, "MaxEntries is -1"},
	} {
		err := d.RecordMemoryHistory(c.h)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want %q", c.h, err, c.want)
		}
	}
}

func TestSnapshotFiles(t *testing.T) {
	x, d := open(t, 1<<30)
	ok(t, d.RecordMemoryHistory())
	a := makeTensor(x, 311*411)
	defer a.Close()
	path := filepath.Join(t.TempDir(), "snapshot.pickle")
	ok(t, d.DumpSnapshot(path))
	s, err := cuda.ReadSnapshotFile(path)
	ok(t, err)
	trace := s.Trace(0)
	if n := len(trace); n == 0 || trace[n-1].Action != "alloc" || trace[n-1].Size != 311*411*4 || trace[n-1].Time.IsZero() {
		t.Fatalf("the trace is %+v", trace)
	}
	found := false
	for _, g := range s.Segments() {
		for _, b := range g.Blocks {
			found = found || b.Requested == 311*411*4 && b.State == "active_allocated" && strings.Contains(text(b.Frames), "makeTensor")
		}
	}
	if !found {
		t.Errorf("the block is not there: %+v", s.Segments())
	}
	if s.Settings()["max_split_size"] != int64(-1) || s.Settings()["roundup_power2_divisions"].(map[string]any)["32768"] != int64(0) {
		t.Errorf("the settings are %v", s.Settings())
	}
	if s.Trace(1) != nil || s.Trace(-1) != nil {
		t.Error("a device without a trace has one")
	}
	for _, bad := range []string{filepath.Join(path, "none"), filepath.Join(t.TempDir(), "none")} {
		if _, err := cuda.ReadSnapshotFile(bad); fault.KindOf(err) != fault.System {
			t.Errorf("reading %s: %v", bad, err)
		}
	}
	if err := d.DumpSnapshot(filepath.Join(path, "none")); fault.KindOf(err) != fault.System {
		t.Errorf("writing beneath a file: %v", err)
	}
	var b bytes.Buffer
	ok(t, s.Write(&b))
	data, err := os.ReadFile(path)
	ok(t, err)
	if !bytes.Equal(data, b.Bytes()) {
		t.Error("what was read is written differently")
	}
}

func TestDumpOnOutOfMemory(t *testing.T) {
	x, d := open(t, 64<<20)
	dir := t.TempDir()
	fail := func() {
		t.Helper()
		if err := tenon.Try(func() { makeTensor(x, 1<<26) }); fault.KindOf(err) != fault.OutOfMemory {
			t.Fatalf("the allocation that cannot succeed: %v", err)
		}
	}
	ok(t, d.RecordMemoryHistory())
	ok(t, d.DumpOnOutOfMemory(dir))
	fail()
	fail()
	ok(t, d.DumpOnOutOfMemory(filepath.Join(dir, "mine.pickle")))
	fail()
	ok(t, d.DumpOnOutOfMemory(""))
	fail()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	ok(t, err)
	for i, f := range files {
		files[i] = filepath.Base(f)
	}
	if got := strings.Join(files, " "); got != "mine.pickle oom-1.pickle oom-2.pickle" {
		t.Errorf("the files are %s", got)
	}
	s, err := cuda.ReadSnapshotFile(filepath.Join(dir, "oom-1.pickle"))
	ok(t, err)
	trace := s.Trace(0)
	last := trace[len(trace)-1]
	if last.Action != "oom" || last.Size != 1<<28 || !strings.Contains(text(last.Frames), "makeTensor") {
		t.Errorf("the last entry is %+v", last)
	}
	if err := d.DumpOnOutOfMemory(filepath.Join(dir, "none", "x")); fault.KindOf(err) != fault.System {
		t.Errorf("a missing folder: %v", err)
	}
	ok(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	ok(t, d.DumpOnOutOfMemory(filepath.Join(dir, "sub")))
	ok(t, os.Remove(filepath.Join(dir, "sub")))
	fail()
	if err := d.DumpOnOutOfMemory(""); fault.KindOf(err) != fault.System {
		t.Errorf("a file that could not be written: %v", err)
	}
	ok(t, d.DumpOnOutOfMemory(""))
}

// TestRecordingAllocates checks that recording an event with a known stack allocates nothing on Go's heap.
func TestRecordingAllocates(t *testing.T) {
	_, d := open(t, 1<<30)
	s, err := d.Stream()
	ok(t, err)
	ok(t, d.RecordMemoryHistory(cuda.History{MaxEntries: 100}))
	if n := testing.AllocsPerRun(100, func() {
		addr, err := d.RawAlloc(4096, s)
		ok(t, err)
		ok(t, d.RawFree(addr))
	}); n != 0 {
		t.Errorf("an allocation and its free, recorded, make %v objects", n)
	}
}

// TestHistoryAsync checks the errors of the back end cudaMallocAsync, which has no histories and snapshots.
func TestHistoryAsync(t *testing.T) {
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
	_, d := open(t, 1<<30)
	const want = "the cudaMallocAsync backend does not support histories and snapshots"
	if err := d.RecordMemoryHistory(cuda.History{Context: cuda.ContextNone}); fault.KindOf(err) != fault.Unsupported ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("recording: %v", err)
	}
	ok(t, d.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryOff}))
	if _, err := d.Snapshot(); fault.KindOf(err) != fault.Unsupported || !strings.Contains(err.Error(), want) {
		t.Errorf("a snapshot: %v", err)
	}
	path := filepath.Join(t.TempDir(), "snapshot.pickle")
	if err := d.DumpSnapshot(path); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("a file: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was left")
	}
}

// TestHistoryConcurrent switches the recording and takes snapshots while other goroutines allocate: each snapshot's segments add up, and
// its trace keeps its bound.
func TestHistoryConcurrent(t *testing.T) {
	_, d := open(t, 1<<30)
	s, err := d.Stream()
	ok(t, err)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for g := range 4 {
		wg.Go(func() {
			for i := uint64(1); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				addr, err := d.RawAlloc(i%100*512+uint64(g)+1, s)
				if err == nil {
					err = d.RawFree(addr)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 40 {
		h := cuda.History{Enabled: []cuda.HistoryMode{"all", "state", "all", "off"}[i%4],
			Context: []cuda.HistoryContext{"all", "state", "alloc"}[i%3], MaxEntries: 1000 * (i % 2)}
		ok(t, d.RecordMemoryHistory(h))
		snap, err := d.Snapshot()
		ok(t, err)
		for _, g := range snap.Segments() {
			var sum, active uint64
			for _, b := range g.Blocks {
				sum += b.Size
				if b.State != "inactive" {
					active += b.Size
				}
			}
			if sum != g.TotalSize || active != g.Active {
				t.Errorf("blocks of %d bytes, %d active, in %+v", sum, active, g)
			}
		}
		if n := len(snap.Trace(0)); h.MaxEntries > 0 && n > h.MaxEntries || h.Enabled == "" && n > 0 || h.Enabled == "state" && n > 1 {
			t.Errorf("%+v: %d entries", h, n)
		}
	}
	close(stop)
	wg.Wait()
}
