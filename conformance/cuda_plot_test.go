package conformance

import (
	"bytes"
	"compress/gzip"
	"io"
	"strconv"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	form "tenon.dev/internal/snapshot"
	"tenon.dev/memviz"
)

// plotTests are the behaviours of memory plots and of their contents by the level of recording.
var plotTests = []cudaTest{
	{name: "CUDA-125_test_memory_profiler_viz", run: testMemoryProfile},
	{name: "CUDA-126_test_memory_plots", run: testMemoryPlots},
	{name: "CUDA-127_test_memory_plots_free_stack", run: testPlotsFreeStack},
	{name: "CUDA-128_test_memory_plots_history_context", run: testPlotsContext},
	{name: "CUDA-129_test_memory_plots_free_segment_stack", run: testPlotsSegmentStack},
}

// testMemoryProfile: Tenon has no profiler of operations. The live memory by Go stack is a pprof profile, and categories come with the
// snapshots that PyTorch makes of its profiles, which are read, written and shown.
func testMemoryProfile(t *testing.T, x *tenon.Exec) {
	keepHistory(t, x, cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextAlloc})
	a := x.Rand([]int{128, 128}, tenon.Float32)
	x.Add(x.Mul(a, a), x.Mul(a, a))
	var b bytes.Buffer
	must(t, snapshot(t, x).WriteProfile(&b))
	z, err := gzip.NewReader(&b)
	must(t, err)
	profile, err := io.ReadAll(z)
	must(t, err)
	for _, part := range []string{"cuda_plot_test.go", "testMemoryProfile", "bytes"} {
		check(t, part+" in the profile", bytes.Contains(profile, []byte(part)), true)
	}

	s := &form.Snapshot{Stacks: &form.Stacks{}, Traces: make([][]form.Event, 1)}
	who := s.Stacks.AddCalls([]form.FrameID{s.Stacks.AddFrame(form.Frame{File: "none", Name: "test_memory_profiler_viz"})})
	for i, c := range []form.Category{form.CategoryParameter, form.CategoryGradient, form.CategoryTemporary} {
		s.Traces[0] = append(s.Traces[0], form.Event{Action: form.ActionAlloc, Addr: uint64(0x1000 * (i + 1)), Size: 512,
			Stack: who, Category: c})
	}
	b.Reset()
	must(t, s.Write(&b))
	if !bytes.Contains(b.Bytes(), []byte("category")) || !bytes.Contains(b.Bytes(), []byte("test_memory_profiler_viz")) {
		t.Error("the snapshot of a profile lacks its categories or names")
	}
	file := b.Bytes()
	back, err := form.Read(bytes.NewReader(file), form.ReadOptions{})
	must(t, err)
	for i, e := range back.Traces[0] {
		check(t, "category", e.Category, s.Traces[0][i].Category)
	}
	plot(t, file, memviz.ViewActive)
}

// plot draws a snapshot's file as one page and returns it.
func plot(t *testing.T, file []byte, view memviz.View) string {
	t.Helper()
	rec, err := memviz.Import(bytes.NewReader(file), "snapshot.pickle", memviz.Options{NoCache: true})
	must(t, err)
	defer rec.Close()
	var page bytes.Buffer
	must(t, memviz.WriteStatic(&page, rec, nil, memviz.StaticOptions{View: view}))
	if s := page.String(); !strings.Contains(s, "<html") || !strings.Contains(s, `"first":"`+string(view)+`"`) {
		t.Errorf("the page for %s is\n%.200s", view, s)
	}
	return page.String()
}

func testMemoryPlots(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	for _, c := range []struct {
		context cuda.HistoryContext
		stacks  cuda.HistoryStacks
	}{{"all", "all"}, {"all", "go"}, {cuda.ContextNone, "go"}} {
		settle(t, dev)
		keepHistory(t, x, cuda.History{Enabled: cuda.HistoryAll, Context: c.context, Stacks: c.stacks})
		x.Scope(func(x *tenon.Exec) {
			a := x.Rand([]int{128, 128}, tenon.Float32)
			x.Add(x.Mul(a, a), x.Mul(a, a))
		})
		s, err := dev.Snapshot()
		must(t, err)
		var b bytes.Buffer
		must(t, s.Write(&b))
		for _, view := range []memviz.View{memviz.ViewActive, memviz.ViewCached, memviz.ViewState} {
			plot(t, b.Bytes(), view)
		}
		text := snapshotText(x, s)
		what := "context " + strconv.Quote(string(c.context)) + ", stacks " + string(c.stacks) + ": "
		check(t, what+"this test's name", strings.Contains(text, "testMemoryPlots"), c.context != cuda.ContextNone)
		check(t, what+"the operation's name", strings.Contains(text, "::rand"), c.stacks == "all")
		check(t, what+"the size", strings.Contains(text, strconv.Itoa(128*128*4)), true)
		must(t, dev.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryOff}))
	}
}

//go:noinline
func theAlloc(x *tenon.Exec) *tenon.Tensor { return x.Rand([]int{3, 4}, tenon.Float32) }

//go:noinline
func theFree(a *tenon.Tensor) { a.Close() }

func testPlotsFreeStack(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	x.Empty([]int{1}, tenon.Float32) // holds a segment; otherwise the segment's stack would be in the text
	for _, context := range []cuda.HistoryContext{"alloc", "all", "state"} {
		settle(t, dev)
		keepHistory(t, x, cuda.History{Enabled: cuda.HistoryAll, Context: context})
		theFree(theAlloc(x))
		text := snapshotText(x, snapshot(t, x))
		check(t, "context "+string(context)+": who freed", strings.Contains(text, "theFree"), context == "all")
		check(t, "context "+string(context)+": who allocated", strings.Contains(text, "theAlloc"), context != "state")
		must(t, dev.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryOff}))
	}
}

//go:noinline
func shouldCapture1(x *tenon.Exec) *tenon.Tensor { return x.Rand([]int{4, 4}, tenon.Float32) }

//go:noinline
func shouldNotCapture(x *tenon.Exec) *tenon.Tensor { return x.Rand([]int{3, 4}, tenon.Float32) }

//go:noinline
func shouldCapture2(x *tenon.Exec) *tenon.Tensor { return x.Rand([]int{4, 4}, tenon.Float32) }

func testPlotsContext(t *testing.T, x *tenon.Exec) {
	settle(t, x.Device())
	keepHistory(t, x, cuda.History{Stacks: cuda.StacksGo})
	shouldCapture1(x)
	keepHistory(t, x, cuda.History{Context: cuda.ContextNone, Stacks: cuda.StacksGo})
	shouldNotCapture(x)
	keepHistory(t, x, cuda.History{Stacks: cuda.StacksGo})
	shouldCapture2(x)
	s := snapshot(t, x)
	text := snapshotText(x, s)
	check(t, "the first", strings.Contains(text, "shouldCapture1"), true)
	check(t, "the second, without context", strings.Contains(text, "shouldNotCapture"), false)
	check(t, "the third", strings.Contains(text, "shouldCapture2"), true)
	allocs := 0
	for _, e := range s.Trace(x.Device().Ordinal()) {
		if e.Action == "alloc" {
			allocs++
		}
	}
	check(t, "allocations in the trace", allocs, 3)
}

func testPlotsSegmentStack(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	for _, context := range []cuda.HistoryContext{"alloc", "all", "state"} {
		settle(t, dev)
		keepHistory(t, x, cuda.History{Enabled: cuda.HistoryAll, Context: context})
		x.Rand([]int{3, 4}, tenon.Float32).Close()
		must(t, dev.EmptyCache())
		s := snapshot(t, x)
		check(t, "context "+string(context)+": who emptied the cache", strings.Contains(snapshotText(x, s), "EmptyCache"), context == "all")
		check(t, "the last action", lastAction(t, x, s).Action, "segment_free")
		must(t, dev.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryOff}))
	}
}
