package drivertest

import (
	"math"

	"tenon.dev/internal/driver"
)

var chainTests = []test{
	{"Work", false, testChain},
	{"Empty", false, testEmptyChain},
	{"ArgsCopied", false, testChainArgsCopied},
	{"Times", false, testChainTimes},
	{"Set", false, testChainSet},
	{"SetEventPending", true, testSetEventPending},
	{"InCapture", false, testChainInCapture},
	{"Waits", false, testChainWaits},
	{"Many", false, testChainMany},
	{"Errors", false, testChainErrors},
}

// chain makes a graph of work and its executable; both live until the test ends.
func (f *fixture) chain(work ...driver.ChainWork) (driver.GraphExec, []driver.Node) {
	f.Helper()
	g, nodes, err := f.d.GraphChain(f.th, work)
	f.ok(err)
	f.Cleanup(func() { f.d.GraphDestroy(f.th, g) })
	if len(nodes) != len(work) {
		f.Fatalf("%d pieces of work have %d nodes", len(work), len(nodes))
	}
	seen := map[driver.Node]bool{0: true}
	for _, n := range nodes {
		if seen[n] {
			f.Fatalf("the nodes %v are zero or not all different", nodes)
		}
		seen[n] = true
	}
	f.nodes(g, len(work))
	return f.instantiate(g), nodes
}

// testChain checks that each piece sees the effects of the previous one.
func testChain(f *fixture) {
	const n = 1000
	s, x, y, z := f.stream(), f.alloc(4*n), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 9, n)
	e, _ := f.chain(
		driver.ChainWork{Dst: y, N: 4 * n},
		driver.ChainWork{Launch: f.saxpyLaunch(0, x, y, 2, n)},
		driver.ChainWork{Launch: f.saxpyLaunch(0, y, y, 3, n)},
		driver.ChainWork{Dst: z, Src: y, N: 4 * n},
		driver.ChainWork{Dst: y, N: 4 * n, Value: 0x40},
	)
	for range 2 {
		f.ok(f.d.GraphLaunch(e, s))
		f.want(s, z, 8, n)
		f.want(s, y, math.Float32frombits(0x40404040), n)
	}
}

func testEmptyChain(f *fixture) {
	s := f.stream()
	e, _ := f.chain()
	f.ok(f.d.GraphLaunch(e, s))
	f.sync(s)
}

func testChainArgsCopied(f *fixture) {
	const n = 64
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	l := f.saxpyLaunch(0, x, y, 3, n)
	e, _ := f.chain(driver.ChainWork{Launch: l})
	clear(l.Args)
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, y, 3, n)
}

// testChainTimes checks that events between kernels measure how long each took, consistent with events around the graph.
func testChainTimes(f *fixture) {
	const ms = 3
	s, before, after := f.stream(), f.event(true), f.event(true)
	marks := []driver.Event{f.event(true), f.event(true), f.event(true)}
	spin := func(ms int) *driver.Launch {
		args := make([]byte, 8)
		for i, v := 0, uint64(ms)*uint64(f.d.Info().ClockKHz); i < 8; i++ {
			args[i] = byte(v >> (8 * i))
		}
		return &driver.Launch{Func: f.fn("spin"), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Args: args}
	}
	e, _ := f.chain(driver.ChainWork{Event: marks[0]}, driver.ChainWork{Launch: spin(ms)}, driver.ChainWork{Event: marks[1]},
		driver.ChainWork{Launch: spin(3 * ms)}, driver.ChainWork{Event: marks[2]})
	_, err := f.d.EventElapsed(f.th, marks[0], marks[1])
	f.code(err, "EventElapsed", driver.InvalidHandle)
	inShare := false // a loaded machine can delay either kernel, so one round of several must show 1 : 3
	for round := 0; round < 2 || !inShare && round < 20; round++ {
		f.ok(f.d.EventRecord(before, s))
		f.ok(f.d.GraphLaunch(e, s))
		f.ok(f.d.EventRecord(after, s))
		f.sync(s)
		took := func(a, b driver.Event) float32 {
			f.Helper()
			v, err := f.d.EventElapsed(f.th, a, b)
			f.ok(err)
			return v
		}
		first, second, all := took(marks[0], marks[1]), took(marks[1], marks[2]), took(before, after)
		// The cycle counter need not run at the rate in Info.
		if first < 0.5*ms || second < 1.5*ms || first+second > all*1.001 || took(before, marks[0]) < 0 || took(marks[2], after) < 0 {
			f.Errorf("kernels of %d and %d ms took %v and %v of %v ms", ms, 3*ms, first, second, all)
		}
		inShare = inShare || second >= 2*first && second <= 5*first
	}
	if !inShare {
		f.Errorf("in 20 rounds kernels of %d and %d ms never took about 1 : 3", ms, 3*ms)
	}
}

// testChainSet checks that the Set methods change pieces of a chain like nodes of a captured graph.
func testChainSet(f *fixture) {
	const n = 64
	s, x, y, z := f.stream(), f.alloc(4*n), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	mark, other := f.event(true), f.event(true)
	e, nodes := f.chain(driver.ChainWork{Dst: y, N: 4 * n}, driver.ChainWork{Launch: f.saxpyLaunch(0, x, y, 2, n)},
		driver.ChainWork{Dst: z, Src: x, N: 4 * n}, driver.ChainWork{Event: mark})
	f.alter(e, nodes[1], f.saxpyLaunch(0, x, y, 5, n))
	f.ok(f.d.GraphSetMemset(f.th, e, nodes[0], y, math.Float32bits(10), 4, n))
	f.ok(f.d.GraphSetCopy(f.th, e, nodes[2], z, y, 4*n))
	f.ok(f.d.GraphSetEvent(f.th, e, nodes[3], other))
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, z, 15, n)
	f.ok(f.d.EventRecord(mark, s))
	f.sync(s)
	if v, err := f.d.EventElapsed(f.th, other, mark); err != nil || v < 0 {
		f.Errorf("the event that the node was set to record: %v, %v", v, err)
	}
}

// testSetEventPending checks that each queued run records the events that it was queued with.
func testSetEventPending(f *fixture) {
	s, p := f.stream(), f.alloc(512)
	marks := []driver.Event{f.event(true), f.event(true), f.event(true)}
	e, nodes := f.chain(driver.ChainWork{Dst: p, N: 512}, driver.ChainWork{Event: marks[0]})
	f.spin(s, 5)
	for i, m := range marks {
		if i > 0 {
			f.ok(f.d.GraphSetEvent(f.th, e, nodes[1], m))
		}
		f.ok(f.d.GraphLaunch(e, s))
		f.spin(s, 2)
	}
	f.sync(s)
	for i := range 2 {
		if v, err := f.d.EventElapsed(f.th, marks[i], marks[i+1]); err != nil || v < 0.5 {
			f.Errorf("run %d came %v ms after the one before it, %v", i+1, v, err)
		}
	}
}

// testChainInCapture checks that a capture neither forbids a chain nor records it.
func testChainInCapture(f *fixture) {
	const n = 64
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	f.begin(s, driver.CaptureGlobal)
	g, _, err := f.d.GraphChain(f.th, []driver.ChainWork{{Launch: f.saxpyLaunch(0, x, y, 3, n)}})
	f.ok(err)
	f.status(s, driver.CaptureActive)
	f.nodes(f.end(s), 0)
	f.ok(f.d.GraphLaunch(f.instantiate(g), s))
	f.want(s, y, 3, n)
	f.ok(f.d.GraphDestroy(f.th, g))
}

// testChainWaits checks that a kernel that waits by itself still comes after the previous piece.
func testChainWaits(f *fixture) {
	const n = 1 << 16
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	l := f.saxpyLaunch(0, x, y, 1, n)
	l.Waits = true
	work := []driver.ChainWork{{Dst: y, N: 4 * n}}
	for range 20 {
		work = append(work, driver.ChainWork{Launch: l})
	}
	e, _ := f.chain(work...)
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, y, 20, n)
}

// testChainMany checks a chain like that of a training step: about a thousand kernels with an event around each.
func testChainMany(f *fixture) {
	const n, count = 64, 1000
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	events := make([]driver.Event, count+1)
	for i := range events {
		events[i] = f.event(true)
	}
	work := []driver.ChainWork{{Event: events[0]}}
	for i := range count {
		work = append(work, driver.ChainWork{Launch: f.saxpyLaunch(0, x, y, 1, n)}, driver.ChainWork{Event: events[i+1]})
	}
	e, _ := f.chain(work...)
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, y, count, n)
	for i := range count {
		if v, err := f.d.EventElapsed(f.th, events[i], events[i+1]); err != nil || v < 0 {
			f.Fatalf("kernel %d took %v, %v", i, v, err)
		}
	}
}

func testChainErrors(f *fixture) {
	const n = 128
	s, x, y, mark := f.stream(), f.alloc(4*n), f.alloc(4*n), f.event(true)
	l := f.saxpyLaunch(0, x, y, 1, n)
	bad := *l
	bad.Block[0] = 0
	good := driver.ChainWork{Launch: l}
	for _, c := range []struct {
		name string
		work driver.ChainWork
	}{{"a launch without threads", driver.ChainWork{Launch: &bad}}, {"no event", driver.ChainWork{}}} {
		g, _, err := f.d.GraphChain(f.th, []driver.ChainWork{good, c.work, good})
		if err == nil {
			_, err = f.d.GraphInstantiate(f.th, g)
			f.ok(f.d.GraphDestroy(f.th, g))
		}
		if codeOf(err) == driver.Success {
			f.Errorf("%s: no error", c.name)
		}
	}
	if _, _, err := f.d.GraphChain(nil, nil); err == nil {
		f.Error("a chain without a token: no error")
	}
	e, nodes := f.chain(good, driver.ChainWork{Event: mark})
	other, others := f.chain(driver.ChainWork{Event: mark})
	for _, c := range []struct {
		name string
		err  error
	}{
		{"an event in a kernel's place", f.d.GraphSetEvent(f.th, e, nodes[0], mark)},
		{"no node", f.d.GraphSetEvent(f.th, e, 0, mark)},
		{"another graph's node", f.d.GraphSetEvent(f.th, e, others[0], mark)},
		{"no token", f.d.GraphSetEvent(nil, other, others[0], mark)},
		{"a kernel in an event's place", f.d.GraphSetLaunch(f.th, e, nodes[1], l)},
	} {
		if c.err == nil {
			f.Errorf("%s: no error", c.name)
		}
	}
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, y, 1, n)
}
