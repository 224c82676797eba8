package drivertest

import (
	"bytes"
	"os"
	"path/filepath"

	"tenon.dev/internal/driver"
)

var graphTests = []test{
	{"Replay", false, testReplay},
	{"Empty", false, testEmptyGraph},
	{"SourceDestroyed", false, testSourceDestroyed},
	{"DestroyPending", true, testExecDestroyPending},
	{"ArgsCopied", false, testGraphArgsCopied},
	{"CopyNodes", false, testCopyNodes},
	{"Callback", false, testGraphCallback},
	{"SameExecSerialises", true, testSameExecSerialises},
	{"ExecsOverlap", true, testExecsOverlap},
	{"LaunchInCapture", false, testLaunchInCapture},
	{"Legacy", false, testGraphOnLegacy},
	{"EventAround", true, testEventAroundGraph},
	{"Dot", false, testGraphDot},
}

func testReplay(f *fixture) {
	const n = 1000
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 7, n)
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() {
		f.ok(f.d.Memset(y, 0, 4, n, s))
		for range 10 {
			f.saxpy(s, x, y, 1, n)
		}
	}))
	for range 3 {
		f.ok(f.d.GraphLaunch(e, s))
		f.want(s, y, 10, n)
	}
	f.fill(x, 2, n)
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, y, 20, n)
}

func testEmptyGraph(f *fixture) {
	s := f.stream()
	g := f.capture(s, driver.CaptureThreadLocal, func() {})
	f.nodes(g, 0)
	f.ok(f.d.GraphLaunch(f.instantiate(g), s))
	f.sync(s)
}

func testSourceDestroyed(f *fixture) {
	const n = 64
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	f.begin(s, driver.CaptureThreadLocal)
	f.saxpy(s, x, y, 1, n)
	g, err := f.d.CaptureEnd(f.th, s)
	f.ok(err)
	a, b := f.instantiate(g), f.instantiate(g)
	f.ok(f.d.GraphDestroy(f.th, g))
	f.ok(f.d.GraphLaunch(a, s))
	f.ok(f.d.GraphLaunch(b, s))
	f.want(s, y, 2, n)
}

func testExecDestroyPending(f *fixture) {
	const n = 64
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	g := f.capture(s, driver.CaptureThreadLocal, func() { f.saxpy(s, x, y, 1, n) })
	e, err := f.d.GraphInstantiate(f.th, g)
	f.ok(err)
	f.spin(s, 20)
	f.ok(f.d.GraphLaunch(e, s))
	f.ok(f.d.GraphExecDestroy(f.th, e))
	f.want(s, y, 1, n)
}

func testGraphArgsCopied(f *fixture) {
	const n = 64
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	l := f.saxpyLaunch(s, x, y, 3, n)
	g := f.capture(s, driver.CaptureThreadLocal, func() {
		f.ok(f.d.Launch(l))
		clear(l.Args)
	})
	f.ok(f.d.GraphLaunch(f.instantiate(g), s))
	f.want(s, y, 3, n)
}

// testCopyNodes checks that a captured copy reads and writes page-locked memory at each replay.
func testCopyNodes(f *fixture) {
	s, p, q := f.stream(), f.alloc(512), f.alloc(512)
	in, out := f.host(512), f.host(512)
	g := f.capture(s, driver.CaptureThreadLocal, func() {
		f.ok(f.d.CopyHtoD(p, in, s))
		f.ok(f.d.CopyDtoD(q, p, 512, s))
		f.ok(f.d.CopyDtoH(out, q, s))
	})
	f.nodes(g, 3)
	e := f.instantiate(g)
	for v := range byte(3) {
		copy(in, bytes.Repeat([]byte{v + 1}, 512))
		f.ok(f.d.GraphLaunch(e, s))
		f.sync(s)
		if !bytes.Equal(out, in) {
			f.Errorf("replay %d did not read its source anew", v)
		}
	}
}

func testGraphCallback(f *fixture) {
	s, p, b := f.stream(), f.alloc(512), f.host(512)
	var seen []byte
	id := f.d.RegisterCallback(func() { seen = append(seen, b[0]) })
	defer f.d.UnregisterCallback(id)
	g := f.capture(s, driver.CaptureThreadLocal, func() {
		f.ok(f.d.CopyDtoH(b, p, s))
		f.ok(f.d.Callback(s, id))
	})
	f.nodes(g, 2)
	e := f.instantiate(g)
	if len(seen) != 0 {
		f.Error("capturing ran the callback")
	}
	for v := range uint32(3) {
		f.ok(f.d.Memset(p, v+1, 1, 512, s))
		f.ok(f.d.GraphLaunch(e, s))
	}
	f.sync(s)
	if !bytes.Equal(seen, []byte{1, 2, 3}) {
		f.Errorf("the replays' callback saw %v, want [1 2 3]", seen)
	}
}

// testSameExecSerialises checks that two launches of one executable on two streams run one after the other.
func testSameExecSerialises(f *fixture) {
	a, b := f.stream(), f.stream()
	e := f.instantiate(f.capture(a, driver.CaptureThreadLocal, func() { f.spin(a, 30) }))
	f.spin(a, 1)
	f.sync(a)
	start, end := f.event(true), f.event(true)
	f.ok(f.d.EventRecord(start, a))
	f.ok(f.d.GraphLaunch(e, a))
	f.ok(f.d.GraphLaunch(e, b))
	f.ok(f.d.EventRecord(end, b))
	f.sync(b)
	ms, err := f.d.EventElapsed(f.th, start, end)
	f.ok(err)
	if ms < 50 {
		f.Errorf("two runs of one 30 ms graph took %v ms: they overlapped", ms)
	}
	f.sync(a)
}

// testExecsOverlap checks that two executables of one graph on two streams run concurrently.
func testExecsOverlap(f *fixture) {
	a, b := f.stream(), f.stream()
	g := f.capture(a, driver.CaptureThreadLocal, func() { f.spin(a, 100) })
	e1, e2 := f.instantiate(g), f.instantiate(g)
	f.ok(f.d.GraphLaunch(e1, a))
	f.sync(a)
	start, end, joined := f.event(true), f.event(true), f.event(false)
	f.ok(f.d.EventRecord(start, a))
	f.ok(f.d.GraphLaunch(e1, a))
	f.ok(f.d.GraphLaunch(e2, b))
	f.fork(b, joined, a)
	f.ok(f.d.EventRecord(end, a))
	f.sync(a)
	ms, err := f.d.EventElapsed(f.th, start, end)
	f.ok(err)
	if ms > 180 {
		f.Errorf("two 100 ms graphs on two streams took %v ms: they did not overlap", ms)
	}
}

// testLaunchInCapture checks that the launch of an executable graph cannot be captured, as in CUDA.
func testLaunchInCapture(f *fixture) {
	s, x := f.stream(), f.alloc(512)
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() { f.ok(f.d.Memset(x, 0, 4, 128, s)) }))
	f.begin(s, driver.CaptureThreadLocal)
	f.code(f.d.GraphLaunch(e, s), "GraphLaunch", driver.StreamCaptureUnsupported)
	f.endWith(s, driver.StreamCaptureInvalidated)
	f.ok(f.d.GraphLaunch(e, s))
	f.sync(s)
}

func testGraphOnLegacy(f *fixture) {
	const n = 64
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() { f.saxpy(s, x, y, 1, n) }))
	f.ok(f.d.GraphLaunch(e, driver.StreamLegacy))
	f.want(driver.StreamLegacy, y, 1, n)
}

func testEventAroundGraph(f *fixture) {
	s, e := f.stream(), f.event(false)
	x := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() { f.spin(s, 50) }))
	f.ok(f.d.GraphLaunch(x, s))
	f.ok(f.d.EventRecord(e, s))
	f.queryEvent(e, false)
	f.ok(f.d.EventSynchronize(f.th, e))
	f.query(s, true)
}

func testGraphDot(f *fixture) {
	s, x := f.stream(), f.alloc(512)
	g := f.capture(s, driver.CaptureThreadLocal, func() {
		f.saxpy(s, x, x, 0, 1)
		f.ok(f.d.Memset(x, 0, 4, 128, s))
	})
	path := filepath.Join(f.TempDir(), "graph.dot")
	f.ok(f.d.GraphDot(f.th, g, path))
	b, err := os.ReadFile(path)
	f.ok(err)
	if !bytes.Contains(b, []byte("digraph")) || !bytes.Contains(b, []byte("saxpy")) {
		f.Errorf("the file is not a graph in DOT form that names its kernel:\n%s", b)
	}
}
