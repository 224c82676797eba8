package memviz_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/internal/browser"
	"tenon.dev/internal/snapshot"
	"tenon.dev/memviz"
)

const mib = 1 << 20

// twoDevices returns a snapshot of two devices. Device 0 has a history with categories, two streams, a private pool and a failed
// allocation, for which three pieces of memory were free but could not be used. Device 1 has only segments.
func twoDevices() *snapshot.Snapshot {
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: make([]snapshot.Note, 1),
		Settings: map[string]any{"max_split_size": int64(-1)}, Traces: make([][]snapshot.Event, 2)}
	stack := func(name string, line int) snapshot.StackID {
		return s.Stacks.Add([]snapshot.Frame{{File: "/src/model.go", Line: line, Name: name},
			{File: "/src/main.go", Line: 7, Name: "main.main"}})
	}
	weights, grads, work, fails := stack("model.weights", 12), stack("model.backward", 40), stack("model.forward", 31),
		stack("model.attention", 55)
	at := int64(1_700_000_000_000_000)
	event := func(a snapshot.Action, addr, size, stream uint64, st snapshot.StackID, c snapshot.Category) {
		at += 250
		s.Traces[0] = append(s.Traces[0], snapshot.Event{Action: a, Addr: addr, Size: size, Stream: stream, Stack: st,
			Category: c, TimeUS: at})
	}
	free := func(addr, size, stream uint64) {
		event(snapshot.ActionFreeRequested, addr, size, stream, 0, 0)
		event(snapshot.ActionFreeCompleted, addr, size, stream, 0, 0)
	}
	const a, b, c = 0x7f0000000000, 0x7f0004000000, 0x7f0008000000
	event(snapshot.ActionSegmentAlloc, a, 20*mib, 0, weights, 0)
	event(snapshot.ActionAlloc, a, 6*mib, 0, weights, snapshot.CategoryParameter)
	event(snapshot.ActionAlloc, a+6*mib, 6*mib, 0, work, snapshot.CategoryActivation)
	event(snapshot.ActionSegmentAlloc, b, 20*mib, 9, work, 0)
	event(snapshot.ActionAlloc, b, 12*mib, 9, work, snapshot.CategoryTemporary)
	event(snapshot.ActionSegmentAlloc, c, 32*mib, 0, work, 0)
	event(snapshot.ActionAlloc, c, 14*mib, 0, work, snapshot.CategoryActivation)
	event(snapshot.ActionAlloc, a+12*mib, 6*mib, 0, grads, snapshot.CategoryGradient)
	free(a+6*mib, 6*mib, 0)
	free(b, 12*mib, 9)
	free(c, 14*mib, 0)
	event(snapshot.ActionOOM, 3*mib, 10*mib, 0, fails, 0)
	block := func(addr, size uint64, st snapshot.StackID) snapshot.Block {
		if st == 0 {
			return snapshot.Block{Addr: addr, Size: size}
		}
		return snapshot.Block{Addr: addr, Size: size, Requested: size, State: snapshot.ActiveAllocated, Stack: st}
	}
	s.Segments = []snapshot.Segment{
		{Addr: a, TotalSize: 20 * mib, Allocated: 12 * mib, Active: 12 * mib, Requested: 12 * mib, Type: "large", Stack: weights,
			Blocks: []snapshot.Block{block(a, 6*mib, weights), block(a+6*mib, 6*mib, 0), block(a+12*mib, 6*mib, grads),
				block(a+18*mib, 2*mib, 0)}},
		{Addr: b, TotalSize: 20 * mib, Stream: 9, Type: "large", Stack: work, Blocks: []snapshot.Block{block(b, 20*mib, 0)}},
		{Addr: c, TotalSize: 32 * mib, Type: "large", Pool: [2]uint64{1, 0}, Stack: work, Blocks: []snapshot.Block{block(c, 32*mib, 0)}},
		{Device: 1, Addr: a, TotalSize: 2 * mib, Allocated: 1024, Active: 1024, Requested: 1000, Type: "small", Stack: weights,
			Blocks: []snapshot.Block{block(a, 1024, weights), block(a+1024, 2*mib-1024, 0)}},
	}
	return s
}

// opened writes a snapshot to a file and opens it.
func opened(t *testing.T, s *snapshot.Snapshot) *memviz.Recording {
	t.Helper()
	path := filepath.Join(t.TempDir(), "made.pickle")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	rec, err := memviz.Open(path, memviz.Options{NoCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rec.Close() })
	return rec
}

// pageDevices shows a snapshot of two devices, one of them without a history, and the colours by category.
func pageDevices(t *testing.T, b *browser.Browser) {
	rec := opened(t, twoDevices())
	v := serve(t, b, rec, nil)
	v.equal("devices to choose from", v.number("byId('device').options.length"), 2)
	v.equal("the peak", v.of(".fact b"), "44 MiB")
	v.do("byId('colour').value = 'category', byId('colour').dispatchEvent(new Event('change'))")
	v.equal("colours at the peak",
		v.number("new Set(timelines.active.stripsAt(markerState()).map(s => rgbText(colourRGB(colourKey(s.t, s.i))))).size"), 4)
	v.press("5")
	for _, why := range []string{"other stream", "other pool", "too small"} {
		if text := v.of(".oom-view .list"); !strings.Contains(text, why) {
			t.Errorf("the reasons %q lack %q", text, why)
		}
	}
	v.press("3")
	v.equal("the private pool's title", v.text("views.state.titles.filter(t => t.g.private).map(t => t.g.pool).join()"), "(1,0)")
	v.do("byId('device').value = '1', byId('device').dispatchEvent(new Event('change'))")
	if text := v.of(".state-view .facts"); !strings.Contains(text, "2 MiB") || !strings.Contains(text, "without a trace") {
		t.Errorf("the block map of device 1 says %q", text)
	}
	v.press("1")
	picture := v.tab.Picture()
	words, ground := 0, v.colour("css('--plot')")
	for x := 300.0; x < 900; x++ { // one sentence in the middle
		for y := 460.0; y < 500; y++ {
			if far(pixel(picture, x, y), ground) > 60 {
				words++
			}
		}
	}
	if words < 300 {
		t.Errorf("an empty trace is not explained: %d pixels of text", words)
	}
	dots := 0
	for x := 80.0; x < 1000; x++ { // the small map shows nothing of the other device
		if y := pageHeight - 60.0; far(pixel(picture, x, y), ground) > 60 {
			dots++
		}
	}
	v.equal("pixels in the small map", dots, 0)
	v.press("2", "4", "5", "6", "7", "ArrowRight", "1", "Enter", "p", "z", ".", "f", "+")
	v.clean(v.origin)
}
