package conformance

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/stack"
	"tenon.dev/memviz"
)

// historyTests are the behaviours of the history's recording and of snapshots.
var historyTests = []cudaTest{
	{name: "CUDA-122_test_memory_snapshot", run: testMemorySnapshot},
	{name: "CUDA-123_test_direct_traceback", run: testDirectTraceback},
	{name: "CUDA-124_test_memory_snapshot_with_cpp", run: testSnapshotOperations},
	{name: "CUDA-130_test_memory_snapshot_script", run: testSnapshotScript},
	{name: "CUDA-132_test_cycles", run: testCycles},
	{name: "CUDA-134_test_cpp_memory_snapshot_pickle", run: testSnapshotPickle},
}

// special is a shape whose size is easy to tell from others: 511284 bytes of float32.
var special = []int{311, 411}

const specialBytes = 311 * 411 * 4

// keepHistory starts the recording of history and ends it with the test.
func keepHistory(t *testing.T, x *tenon.Exec, h cuda.History) {
	t.Helper()
	dev := x.Device()
	must(t, dev.RecordMemoryHistory(h))
	t.Cleanup(func() { must(t, dev.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryOff})) })
}

// snapshot returns the device's snapshot after a round trip through a file.
func snapshot(t *testing.T, x *tenon.Exec) *cuda.Snapshot {
	t.Helper()
	s, err := x.Device().Snapshot()
	must(t, err)
	var b bytes.Buffer
	must(t, s.Write(&b))
	s, err = cuda.ReadSnapshot(&b)
	must(t, err)
	return s
}

// framesText returns a stack as lines of file, line and name.
func framesText(frames []cuda.Frame) string {
	var b strings.Builder
	for _, f := range frames {
		fmt.Fprintf(&b, "%s:%d:%s\n", f.File, f.Line, f.Name)
	}
	return b.String()
}

// snapshotText returns everything in a snapshot as text, like json.dumps in PyTorch's test.
func snapshotText(x *tenon.Exec, s *cuda.Snapshot) string {
	var b strings.Builder
	for _, g := range s.Segments() {
		fmt.Fprintf(&b, "segment %d\n%s", g.TotalSize, framesText(g.Frames))
		for _, k := range g.Blocks {
			fmt.Fprintf(&b, "block %s %d %d\n%s", k.State, k.Size, k.Requested, framesText(k.Frames))
		}
	}
	for _, e := range s.Trace(x.Device().Ordinal()) {
		fmt.Fprintf(&b, "%s %d\n%s", e.Action, e.Size, framesText(e.Frames))
	}
	return b.String()
}

// find returns the block with the given number of requested bytes.
func find(t *testing.T, s *cuda.Snapshot, requested uint64) cuda.Block {
	t.Helper()
	for _, g := range s.Segments() {
		for _, b := range g.Blocks {
			if b.Requested == requested && b.State == "active_allocated" {
				return b
			}
		}
	}
	t.Fatalf("the snapshot has no live block of %d bytes", requested)
	return cuda.Block{}
}

// lastAction returns the latest entry of a trace.
func lastAction(t *testing.T, x *tenon.Exec, s *cuda.Snapshot) cuda.TraceEntry {
	t.Helper()
	trace := s.Trace(x.Device().Ordinal())
	if len(trace) == 0 {
		t.Fatal("the trace is empty")
	}
	return trace[len(trace)-1]
}

const thisFile = "cuda_history_test.go"

func testMemorySnapshot(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	settle(t, dev)
	keepHistory(t, x, cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextAll, Stacks: cuda.StacksGo})
	random := func(shape ...int) *tenon.Tensor { return x.Rand(shape, tenon.Float32) }
	// a is the second block of its segment.
	random(2*311, 411).Close()
	unused := random(310, 410)
	a := random(special...)
	// Many blocks of the least size, which tile a segment, are freed in random order: their histories are merged.
	var many []*tenon.Tensor
	for range 1000 {
		many = append(many, random(128))
	}
	r := rand.New(rand.NewPCG(1, 2))
	for len(many) > 0 {
		i := r.IntN(len(many))
		many[i].Close()
		many = slices.Delete(many, i, i+1)
	}
	random(128 * 5).Close()

	s := snapshot(t, x)
	b := find(t, s, specialBytes)
	check(t, "the block's address", b.Addr, a.DataPtr())
	if !strings.Contains(framesText(b.Frames), thisFile) {
		t.Errorf("the block's stack is\n%s", framesText(b.Frames))
	}
	for _, g := range s.Segments() {
		if !strings.Contains(framesText(g.Frames), thisFile) {
			t.Errorf("the segment at %#x has the stack\n%s", g.Addr, framesText(g.Frames))
		}
		at, active := g.Addr, uint64(0)
		for _, k := range g.Blocks {
			check(t, "where a block begins", k.Addr, at)
			at += k.Size
			if k.State != "inactive" {
				active += k.Size
			}
		}
		check(t, "where the blocks end", at, g.Addr+g.TotalSize)
		check(t, "active bytes", g.Active, active)
	}
	var file, usage bytes.Buffer
	must(t, s.Write(&file))
	must(t, memviz.WriteSegments(&usage, &file, "snapshot"))
	if !strings.Contains(usage.String(), thisFile) || !strings.Contains(usage.String(), "active_allocated") {
		t.Errorf("the segments' usage does not name this file:\n%s", usage.String())
	}
	unused.Close()
	a.Close()
	settle(t, dev)
	if got := lastAction(t, x, snapshot(t, x)).Action; got != "segment_free" && got != "segment_unmap" {
		t.Errorf("the last action is %s", got)
	}
}

// testDirectTraceback: Go has one kind of frames. A stack that is captured cheaply and symbolised late equals the runtime's own.
func testDirectTraceback(t *testing.T, x *tenon.Exec) {
	var table stack.Table
	gather, other := func() *stack.Stack { return table.Capture() }, func() *stack.Stack { return table.Capture() }
	s, o := gather(), other()
	if s == o {
		t.Error("two stacks are one")
	}
	for range 2 { // one call site has one stack
		if again := gather(); again == s || again == o {
			t.Error("the stack of another line is the same")
		}
	}
	check(t, "different stacks", table.Len(), 3)
	var names []string
	var files []string
	for f := range s.All() {
		names, files = append(names, f.Function), append(files, path.Base(f.File))
	}
	if !slices.Contains(files, thisFile) || !strings.Contains(strings.Join(names, "\n"), "conformance.testDirectTraceback") {
		t.Errorf("the stack is %v in %v", names, files)
	}
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	var want []string
	for {
		f, more := frames.Next()
		if f.Function != "runtime.goexit" {
			want = append(want, f.Function)
		}
		if !more {
			break
		}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == "runtime.goexit" })
	if !slices.Equal(names[len(names)-len(want):], want) {
		t.Errorf("the stack is\n%v\nthe runtime's\n%v", names, want)
	}
}

func testSnapshotOperations(t *testing.T, x *tenon.Exec) {
	settle(t, x.Device())
	for stacks, operations := range map[cuda.HistoryStacks]bool{"all": true, "go": false} {
		keepHistory(t, x, cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextAll, Stacks: stacks})
		a := x.Rand(special, tenon.Float32)
		text := framesText(find(t, snapshot(t, x), specialBytes).Frames)
		check(t, "the operation in the block's stack, stacks "+string(stacks), strings.Contains(text, "::rand"), operations)
		check(t, "this function in the block's stack", strings.Contains(text, "testSnapshotOperations"), true)
		a.Close()
	}
}

// testSnapshotScript: a Go function is compiled, and appears under its own name. It comes above the library's functions, which it called.
func testSnapshotScript(t *testing.T, x *tenon.Exec) {
	keepHistory(t, x, cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextAll, Stacks: cuda.StacksGo})
	foo(x)
	frames := find(t, snapshot(t, x), specialBytes).Frames
	own := slices.IndexFunc(frames, func(f cuda.Frame) bool { return path.Base(f.File) == thisFile })
	if own < 0 || !strings.HasSuffix(frames[own].Name, "conformance.foo") {
		t.Fatalf("the stack is\n%s", framesText(frames))
	}
	for _, f := range frames[:own] {
		if !strings.HasPrefix(f.Name, "tenon.") {
			t.Errorf("%s stands below the program's function", f.Name)
		}
	}
}

//go:noinline
func foo(x *tenon.Exec) *tenon.Tensor { return x.Rand(special, tenon.Float32) }

// testCycles: Go's collector finds cycles like any other garbage, so they leak nothing and need no observer. The history names the code
// that made the collected tensors.
func testCycles(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	y, err := x.Fork() // another session, so not in the test's scope
	must(t, err)
	must(t, dev.Synchronize())
	keepHistory(t, x, cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextAlloc, Stacks: cuda.StacksGo})
	before := dev.MemoryAllocated()
	knot(y)
	check(t, "allocated bytes with the cycle", dev.MemoryAllocated()-before, 512)
	for range 1000 {
		runtime.GC()
		must(t, dev.EmptyCache()) // frees what the collector found
		if dev.MemoryAllocated() == before {
			break
		}
		runtime.Gosched() // to the cleanup, which has a goroutine of the runtime's
	}
	check(t, "allocated bytes after the collection", dev.MemoryAllocated(), before)
	for _, e := range snapshot(t, x).Trace(dev.Ordinal()) {
		if e.Action == "free_completed" {
			if text := framesText(e.Frames); !strings.Contains(text, "conformance.knot") {
				t.Errorf("the stack of what was collected is\n%s", text)
			}
			return
		}
	}
	t.Error("the trace shows no free")
}

// knot drops a closure that refers to itself and to a tensor.
//
//go:noinline
func knot(x *tenon.Exec) {
	a := x.Empty([]int{3, 4}, tenon.Float32)
	var f func(again bool) *tenon.Tensor
	f = func(again bool) *tenon.Tensor {
		if again {
			return f(false)
		}
		return a
	}
	f(true)
}

func testSnapshotPickle(t *testing.T, x *tenon.Exec) {
	for _, context := range []cuda.HistoryContext{cuda.ContextNone, "alloc"} {
		keepHistory(t, x, cuda.History{Enabled: cuda.HistoryAll, Context: context, Stacks: cuda.StacksAll, MaxEntries: 10})
		for range 20 {
			x.Empty([]int{8}, tenon.Float32).Close() // more than the ring holds
		}
		a := foo(x)
		s := snapshot(t, x)
		text := framesText(find(t, s, specialBytes).Frames)
		for _, part := range []string{"::rand", "conformance.foo", thisFile} {
			check(t, "context "+string(context)+": "+part+" in the block's stack", strings.Contains(text, part),
				context != cuda.ContextNone)
		}
		last := lastAction(t, x, s)
		check(t, "the last action", last.Action, "alloc")
		check(t, "its size", last.Size, specialBytes)
		check(t, "entries", len(s.Trace(x.Device().Ordinal())), 10)
		a.Close()
		must(t, x.Device().RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryOff}))
		check(t, "entries after the end", len(snapshot(t, x).Trace(x.Device().Ordinal())), 0)
	}
}
