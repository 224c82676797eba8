package drivertest

import (
	"tenon.dev/internal/driver"
)

var captureTests = []test{
	{"RunsNothing", false, testCaptureRunsNothing},
	{"Info", false, testCaptureInfo},
	{"Legacy", false, testCaptureLegacy},
	{"ForkJoin", false, testForkJoin},
	{"Unjoined", false, testUnjoined},
	{"JoinWithoutWork", false, testJoinWithoutWork},
	{"Unmatched", false, testUnmatched},
	{"NotCapturing", false, testEndNotCapturing},
	{"WrongThread", false, testWrongThread},
	{"Merge", false, testMerge},
	{"Isolation", false, testIsolation},
	{"Invalidated", false, testInvalidated},
	{"EventForgets", false, testCapturedEventForgets},
	{"TwoThreads", false, testTwoCaptures},
	{"ExchangeMode", false, testExchangeMode},
	{"LegacyLaunchIsSilent", false, testSilentLegacy},
}

// begin starts a capture on s.
func (f *fixture) begin(s driver.Stream, mode driver.CaptureMode) {
	f.Helper()
	f.ok(f.d.CaptureBegin(f.th, s, mode))
}

// end ends the capture on s and returns its graph, which is destroyed when the test ends.
func (f *fixture) end(s driver.Stream) driver.Graph {
	f.Helper()
	g, err := f.d.CaptureEnd(f.th, s)
	f.ok(err)
	f.Cleanup(func() { f.d.GraphDestroy(f.th, g) })
	return g
}

// endWith ends the capture on s, requires the code, and checks that s is then out of the capture and works.
func (f *fixture) endWith(s driver.Stream, want driver.Code) {
	f.Helper()
	_, err := f.d.CaptureEnd(f.th, s)
	f.code(err, "CaptureEnd", want)
	f.status(s, driver.CaptureNone)
	f.sync(s)
}

// capture captures the work that fn queues on s, and returns its graph.
func (f *fixture) capture(s driver.Stream, mode driver.CaptureMode, fn func()) driver.Graph {
	f.Helper()
	f.begin(s, mode)
	fn()
	return f.end(s)
}

// instantiate returns g's executable, which is destroyed when the test ends.
func (f *fixture) instantiate(g driver.Graph) driver.GraphExec {
	f.Helper()
	e, err := f.d.GraphInstantiate(f.th, g)
	f.ok(err)
	f.Cleanup(func() { f.d.GraphExecDestroy(f.th, e) })
	return e
}

// status checks s's capture state and returns the capture's id.
func (f *fixture) status(s driver.Stream, want driver.CaptureStatus) uint64 {
	f.Helper()
	st, id, err := f.d.CaptureInfo(s)
	f.ok(err)
	if st != want {
		f.Errorf("capture status %d, want %d", st, want)
	}
	if (st == driver.CaptureActive) != (id != 0) {
		f.Errorf("capture status %d with id %d", st, id)
	}
	return id
}

// nodes checks g's number of nodes.
func (f *fixture) nodes(g driver.Graph, want int) {
	f.Helper()
	n, err := f.d.GraphNodes(g)
	f.ok(err)
	if n != want {
		f.Errorf("graph has %d nodes, want %d", n, want)
	}
}

// fork makes s wait for e recorded on from.
func (f *fixture) fork(from driver.Stream, e driver.Event, s driver.Stream) {
	f.Helper()
	f.ok(f.d.EventRecord(e, from))
	f.ok(f.d.StreamWait(s, e))
}

func testCaptureRunsNothing(f *fixture) {
	const n = 1000
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	for _, mode := range []driver.CaptureMode{driver.CaptureGlobal, driver.CaptureThreadLocal, driver.CaptureRelaxed} {
		g := f.capture(s, mode, func() {
			for range 10 {
				f.saxpy(s, x, y, 1, n)
			}
		})
		f.nodes(g, 10)
	}
	f.want(s, y, 0, n)
}

func testCaptureInfo(f *fixture) {
	s, other := f.stream(), f.stream()
	f.status(s, driver.CaptureNone)
	f.status(driver.StreamLegacy, driver.CaptureNone)
	f.begin(s, driver.CaptureThreadLocal)
	first := f.status(s, driver.CaptureActive)
	f.status(other, driver.CaptureNone)
	e := f.event(false)
	f.fork(s, e, other)
	if id := f.status(other, driver.CaptureActive); id != first {
		f.Errorf("a forked stream has capture id %d, its origin %d", id, first)
	}
	f.fork(other, e, s)
	f.end(s)
	f.status(s, driver.CaptureNone)
	f.status(other, driver.CaptureNone)
	f.begin(s, driver.CaptureThreadLocal)
	if id := f.status(s, driver.CaptureActive); id == first {
		f.Errorf("two captures have one id %d", id)
	}
	f.nodes(f.end(s), 0)
}

func testCaptureLegacy(f *fixture) {
	err := f.d.CaptureBegin(f.th, driver.StreamLegacy, driver.CaptureThreadLocal)
	f.code(err, "CaptureBegin", driver.StreamCaptureUnsupported)
	f.status(driver.StreamLegacy, driver.CaptureNone)
}

func testForkJoin(f *fixture) {
	const n = 500
	a, b := f.stream(), f.stream()
	x, y, z := f.alloc(4*n), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	f.fill(z, 0, n)
	e := f.event(false)
	g := f.capture(a, driver.CaptureThreadLocal, func() {
		f.saxpy(a, x, y, 1, n)
		f.fork(a, e, b)
		f.saxpy(a, x, y, 1, n)
		f.saxpy(b, x, z, 3, n)
		f.fork(b, e, a)
		f.saxpy(a, z, y, 1, n)
	})
	f.nodes(g, 4)
	x1 := f.instantiate(g)
	f.ok(f.d.GraphLaunch(x1, a))
	f.want(a, y, 5, n)
	f.want(a, z, 3, n)
	f.ok(f.d.GraphLaunch(x1, b))
	f.want(b, y, 13, n)
}

func testUnjoined(f *fixture) {
	a, b, e, x := f.stream(), f.stream(), f.event(false), f.alloc(512)
	f.begin(a, driver.CaptureThreadLocal)
	f.fork(a, e, b)
	f.saxpy(b, x, x, 0, 1)
	f.endWith(a, driver.StreamCaptureUnjoined)
	f.status(b, driver.CaptureNone)
	f.sync(b)
	// Work after the join is also unjoined.
	f.begin(a, driver.CaptureThreadLocal)
	f.fork(a, e, b)
	f.saxpy(b, x, x, 0, 1)
	f.fork(b, e, a)
	f.saxpy(b, x, x, 0, 1)
	f.endWith(a, driver.StreamCaptureUnjoined)
}

func testJoinWithoutWork(f *fixture) {
	a, b, e, x := f.stream(), f.stream(), f.event(false), f.alloc(512)
	f.begin(a, driver.CaptureThreadLocal)
	f.saxpy(a, x, x, 0, 1)
	f.fork(a, e, b)
	f.saxpy(b, x, x, 0, 1)
	f.fork(b, e, a)
	f.nodes(f.end(a), 2)
}

func testUnmatched(f *fixture) {
	a, b, e := f.stream(), f.stream(), f.event(false)
	f.begin(a, driver.CaptureThreadLocal)
	f.fork(a, e, b)
	_, err := f.d.CaptureEnd(f.th, b)
	f.code(err, "CaptureEnd", driver.StreamCaptureUnmatched)
	f.d.CaptureEnd(f.th, a)
	f.status(a, driver.CaptureNone)
	f.status(b, driver.CaptureNone)
}

func testEndNotCapturing(f *fixture) {
	s := f.stream()
	_, err := f.d.CaptureEnd(f.th, s)
	f.code(err, "CaptureEnd", driver.IllegalState)
	f.sync(s)
}

func testWrongThread(f *fixture) {
	s := f.stream()
	for _, mode := range []driver.CaptureMode{driver.CaptureGlobal, driver.CaptureThreadLocal} {
		f.begin(s, mode)
		f.onThread(func(t driver.Thread) {
			_, err := f.d.CaptureEnd(t, s)
			f.code(err, "CaptureEnd", driver.StreamCaptureWrongThread)
		})
		f.d.CaptureEnd(f.th, s)
		f.status(s, driver.CaptureNone)
	}
	f.begin(s, driver.CaptureRelaxed)
	f.onThread(func(t driver.Thread) {
		g, err := f.d.CaptureEnd(t, s)
		if err != nil {
			f.Errorf("a relaxed capture may end on any thread: %v", err)
			return
		}
		f.d.GraphDestroy(t, g)
	})
	f.status(s, driver.CaptureNone)
}

func testMerge(f *fixture) {
	a, b, ea, x := f.stream(), f.stream(), f.event(false), f.alloc(512)
	f.begin(a, driver.CaptureRelaxed)
	f.begin(b, driver.CaptureRelaxed)
	f.saxpy(a, x, x, 0, 1)
	f.ok(f.d.EventRecord(ea, a))
	f.code(f.d.StreamWait(b, ea), "StreamWait", driver.StreamCaptureMerge)
	f.status(a, driver.CaptureInvalidated)
	f.status(b, driver.CaptureInvalidated)
	f.endWith(a, driver.StreamCaptureInvalidated)
	f.endWith(b, driver.StreamCaptureInvalidated)
}

func testIsolation(f *fixture) {
	a, b, e := f.stream(), f.stream(), f.event(false)
	f.ok(f.d.EventRecord(e, b))
	f.sync(b)
	f.begin(a, driver.CaptureThreadLocal)
	f.code(f.d.StreamWait(a, e), "StreamWait", driver.StreamCaptureIsolation)
	f.status(a, driver.CaptureInvalidated)
	f.endWith(a, driver.StreamCaptureInvalidated)
}

func testInvalidated(f *fixture) {
	a, b, e, x := f.stream(), f.stream(), f.event(false), f.alloc(512)
	f.begin(a, driver.CaptureThreadLocal)
	f.fork(a, e, b)
	f.code(f.d.StreamSynchronize(f.th, a), "StreamSynchronize", driver.StreamCaptureUnsupported)
	f.status(a, driver.CaptureInvalidated)
	f.status(b, driver.CaptureInvalidated)
	for _, s := range []driver.Stream{a, b} {
		f.code(f.d.Launch(f.saxpyLaunch(s, x, x, 0, 1)), "Launch", driver.StreamCaptureInvalidated)
		f.code(f.d.Memset(x, 0, 1, 4, s), "Memset", driver.StreamCaptureInvalidated)
		f.code(f.d.EventRecord(e, s), "EventRecord", driver.StreamCaptureInvalidated)
	}
	f.endWith(a, driver.StreamCaptureInvalidated)
	f.status(b, driver.CaptureNone)
	f.saxpy(a, x, x, 0, 1)
	f.sync(a)
	f.saxpy(b, x, x, 0, 1)
	f.sync(b)
}

// testCapturedEventForgets checks the uses of an event recorded in a capture, after the capture and after a plain record.
func testCapturedEventForgets(f *fixture) {
	a, b, e := f.stream(), f.stream(), f.event(false)
	f.begin(a, driver.CaptureThreadLocal)
	f.ok(f.d.EventRecord(e, a))
	_, err := f.d.EventQuery(f.th, e)
	f.code(err, "EventQuery", driver.CapturedEvent)
	f.d.CaptureEnd(f.th, a)
	f.ok(f.d.EventRecord(e, b))
	f.ok(f.d.EventSynchronize(f.th, e))
	f.queryEvent(e, true)
}

func testTwoCaptures(f *fixture) {
	const n = 64
	x := f.alloc(4 * n)
	f.fill(x, 1, n)
	type capture struct {
		s driver.Stream
		y driver.Ptr
		l *driver.Launch
		g driver.Graph
	}
	cs := make([]capture, 3)
	for i := range cs {
		c := &cs[i]
		c.s, c.y = f.stream(), f.alloc(4*n)
		f.fill(c.y, 0, n)
		c.l = f.saxpyLaunch(c.s, x, c.y, float32(i+1), n)
	}
	errs := make(chan error)
	for i := range cs {
		go func() {
			c, t := &cs[i], f.d.Enter()
			defer t.Leave()
			errs <- func() error {
				if err := f.d.CaptureBegin(t, c.s, driver.CaptureThreadLocal); err != nil {
					return err
				}
				for range 20 {
					if err := f.d.Launch(c.l); err != nil {
						return err
					}
				}
				var err error
				c.g, err = f.d.CaptureEnd(t, c.s)
				return err
			}()
		}()
	}
	for range cs {
		f.ok(<-errs)
	}
	for i, c := range cs {
		f.nodes(c.g, 20)
		f.ok(f.d.GraphLaunch(f.instantiate(c.g), c.s))
		f.want(c.s, c.y, float32(20*(i+1)), n)
		f.ok(f.d.GraphDestroy(f.th, c.g))
	}
}

func testExchangeMode(f *fixture) {
	old, err := f.d.CaptureExchangeMode(f.th, driver.CaptureRelaxed)
	f.ok(err)
	if old != driver.CaptureGlobal {
		f.Errorf("a thread's first mode is %d, want global", old)
	}
	s := f.stream()
	f.begin(s, driver.CaptureGlobal)
	p, err := f.d.MemAlloc(f.th, 512)
	f.ok(err)
	f.status(s, driver.CaptureActive)
	old, err = f.d.CaptureExchangeMode(f.th, old)
	f.ok(err)
	if old != driver.CaptureRelaxed {
		f.Errorf("the exchanged mode is %d, want relaxed", old)
	}
	f.end(s)
	f.ok(f.d.MemFree(f.th, p))
}

// testSilentLegacy checks that a launch on the legacy stream while a non-blocking stream is being captured runs at once, uncaptured,
// without an error.
func testSilentLegacy(f *fixture) {
	const n = 64
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	g := f.capture(s, driver.CaptureThreadLocal, func() { f.saxpy(driver.StreamLegacy, x, y, 4, n) })
	f.nodes(g, 0)
	f.want(driver.StreamLegacy, y, 4, n)
}
