package drivertest

import (
	"math"
	"sync"

	"tenon.dev/internal/driver"
)

var nodeTests = []test{
	{"SetLaunch", false, testSetLaunch},
	{"Each", false, testSetEach},
	{"Forked", false, testSetForked},
	{"Shape", false, testSetShape},
	{"Kernel", false, testSetKernel},
	{"Copy", false, testSetCopy},
	{"Memset", false, testSetMemset},
	{"Pending", true, testSetPending},
	{"PendingMany", true, testSetPendingMany},
	{"Running", true, testSetRunning},
	{"ArgsCopied", true, testSetArgsCopied},
	{"TwoExecs", false, testSetTwoExecs},
	{"Errors", false, testSetErrors},
	{"NoNode", false, testNoNode},
	{"Goroutines", false, testSetGoroutines},
}

// node returns the node of the latest work on s.
func (f *fixture) node(s driver.Stream) driver.Node {
	f.Helper()
	n, err := f.d.CaptureNode(s)
	f.ok(err)
	if n == 0 {
		f.Fatal("a node's handle is zero")
	}
	return n
}

// launchNode launches l on its stream, which is being captured, and returns the node.
func (f *fixture) launchNode(l *driver.Launch) driver.Node {
	f.Helper()
	f.ok(f.d.Launch(l))
	return f.node(l.Stream)
}

// alter makes node n of e run l.
func (f *fixture) alter(e driver.GraphExec, n driver.Node, l *driver.Launch) {
	f.Helper()
	f.ok(f.d.GraphSetLaunch(f.th, e, n, l))
}

// adder is a graph of one saxpy node y += a*x over n elements, on a stream.
type adder struct {
	s    driver.Stream
	x, y driver.Ptr
	n    int
	node driver.Node
	g    driver.Graph
	e    driver.GraphExec
}

// adder returns y += x with x full of ones and y of zeros.
func (f *fixture) adder(n int) *adder {
	f.Helper()
	a := &adder{s: f.stream(), x: f.alloc(uint64(4 * n)), y: f.alloc(uint64(4 * n)), n: n}
	f.fill(a.x, 1, n)
	f.fill(a.y, 0, n)
	a.g = f.capture(a.s, driver.CaptureThreadLocal, func() { a.node = f.launchNode(f.saxpyLaunch(a.s, a.x, a.y, 1, n)) })
	a.e = f.instantiate(a.g)
	return a
}

// setTo makes a's node y += v*x.
func (f *fixture) setTo(a *adder, v float32) {
	f.Helper()
	f.alter(a.e, a.node, f.saxpyLaunch(0, a.x, a.y, v, a.n))
}

// run queues a run of a.
func (f *fixture) run(a *adder) {
	f.Helper()
	f.ok(f.d.GraphLaunch(a.e, a.s))
}

func testSetLaunch(f *fixture) {
	a := f.adder(1000)
	want := float32(0)
	f.run(a)
	want++
	f.want(a.s, a.y, want, a.n)
	for _, v := range []float32{2, 3, 0.5} {
		f.setTo(a, v)
		for range 2 {
			f.run(a)
			want += v
		}
		f.want(a.s, a.y, want, a.n)
	}
	f.setTo(a, 100) // never runs
	f.setTo(a, 1)
	f.run(a)
	f.want(a.s, a.y, want+1, a.n)
	z := f.alloc(uint64(4 * a.n))
	f.fill(z, 7, a.n)
	f.alter(a.e, a.node, f.saxpyLaunch(0, a.x, z, 2, a.n))
	f.run(a)
	f.want(a.s, z, 9, a.n)
	f.want(a.s, a.y, want+1, a.n)
}

// testSetEach changes each of many nodes, including work that is not a kernel, and checks that no other changes.
func testSetEach(f *fixture) {
	const n, count = 64, 100
	s, x := f.stream(), f.alloc(4*n)
	f.fill(x, 1, n)
	ys, nodes := make([]driver.Ptr, count), make([]driver.Node, count)
	for i := range ys {
		ys[i] = f.alloc(4 * n)
	}
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() {
		for i, y := range ys {
			f.ok(f.d.Memset(y, math.Float32bits(float32(i)), 4, n, s))
			fill := f.node(s)
			nodes[i] = f.launchNode(f.saxpyLaunch(s, x, y, 1, n))
			if nodes[i] == fill || i > 0 && nodes[i] == nodes[i-1] || f.node(s) != nodes[i] {
				f.Errorf("work %d has node %d, after %d", i, nodes[i], fill)
			}
		}
	}))
	add := make([]float32, count)
	for i := range add {
		add[i] = 1
	}
	check := func() {
		f.Helper()
		f.ok(f.d.GraphLaunch(e, s))
		for i, y := range ys {
			f.want(s, y, float32(i)+add[i], n)
		}
	}
	check()
	for _, i := range []int{0, count - 1, 37} {
		add[i] = float32(10 + i)
		f.alter(e, nodes[i], f.saxpyLaunch(0, x, ys[i], add[i], n))
		check()
	}
	for i := range nodes {
		add[i] = float32(2 * i)
		f.alter(e, nodes[i], f.saxpyLaunch(0, x, ys[i], add[i], n))
	}
	check()
}

// testSetForked checks that nodes of several streams have distinct handles.
func testSetForked(f *fixture) {
	const n = 64
	a, b, e := f.stream(), f.stream(), f.event(false)
	x, y, z := f.alloc(4*n), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	f.fill(z, 0, n)
	var first, onB, onA, last driver.Node
	g := f.capture(a, driver.CaptureThreadLocal, func() {
		first = f.launchNode(f.saxpyLaunch(a, x, y, 1, n))
		f.fork(a, e, b)
		onB = f.launchNode(f.saxpyLaunch(b, x, z, 1, n))
		onA = f.launchNode(f.saxpyLaunch(a, x, y, 1, n))
		f.fork(b, e, a)
		last = f.launchNode(f.saxpyLaunch(a, z, y, 1, n))
	})
	x1 := f.instantiate(g)
	f.alter(x1, onB, f.saxpyLaunch(0, x, z, 20, n))
	f.alter(x1, first, f.saxpyLaunch(0, x, y, 300, n))
	f.alter(x1, onA, f.saxpyLaunch(0, x, y, 4000, n))
	f.ok(f.d.GraphLaunch(x1, a))
	f.want(a, z, 20, n)
	f.want(a, y, 4320, n)
	f.alter(x1, last, f.saxpyLaunch(0, z, y, 0, n))
	f.ok(f.d.GraphLaunch(x1, a))
	f.want(a, y, 8620, n)
}

// testSetShape checks that grid, block and shared memory change along with the arguments.
func testSetShape(f *fixture) {
	const n = 4096
	a := f.adder(n)
	l := f.saxpyLaunch(0, a.x, a.y, 2, n)
	l.Grid, l.Block, l.Shared = [3]uint32{n / 64, 1, 1}, [3]uint32{64, 1, 1}, 1024
	f.alter(a.e, a.node, l)
	f.run(a)
	f.want(a.s, a.y, 2, n)
	f.alter(a.e, a.node, f.saxpyLaunch(0, a.x, a.y, 1, 128)) // fewer blocks
	f.run(a)
	f.want(a.s, a.y, 3, 128)
	f.want(a.s, a.y+4*128, 2, n-128)
}

// testSetKernel puts another kernel with its own arguments in the node's place.
func testSetKernel(f *fixture) {
	a := f.adder(256)
	l := &driver.Launch{Func: f.fn("spin"), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Args: []byte{1, 0, 0, 0, 0, 0, 0, 0}}
	f.alter(a.e, a.node, l)
	f.run(a)
	f.want(a.s, a.y, 0, a.n)
	f.setTo(a, 3)
	f.run(a)
	f.want(a.s, a.y, 3, a.n)
}

// testSetCopy changes both ends and the length of a captured copy.
func testSetCopy(f *fixture) {
	const n = 256
	s, p, q, r := f.stream(), f.alloc(4*n), f.alloc(4*n), f.alloc(4*n)
	f.fill(p, 1, n)
	f.fill(q, 2, n)
	f.fill(r, 3, n)
	var copied, filled driver.Node
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() {
		f.ok(f.d.CopyDtoD(r, p, 4*n, s))
		copied = f.node(s)
		f.ok(f.d.Memset(p, math.Float32bits(5), 4, n, s))
		filled = f.node(s)
	}))
	f.ok(f.d.GraphSetCopy(f.th, e, copied, r, q, 4*n))
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, r, 2, n)
	f.want(s, p, 5, n)
	f.ok(f.d.GraphSetCopy(f.th, e, copied, q+4*128, p, 4*64))
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, q, 2, 128)
	f.want(s, q+4*128, 5, 64)
	f.want(s, q+4*192, 2, 64)
	f.want(s, r, 2, n)
	f.code(f.d.GraphSetCopy(f.th, e, copied, q, p, 0), "GraphSetCopy", driver.InvalidValue)
	f.code(f.d.GraphSetCopy(f.th, e, filled, q, p, 4), "GraphSetCopy", driver.InvalidValue)
	f.code(f.d.GraphSetCopy(f.th, e, 0, q, p, 4), "GraphSetCopy", driver.InvalidValue)
}

// testSetMemset changes the address, value, width and length of a captured fill.
func testSetMemset(f *fixture) {
	const n = 256
	s, p, q := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(p, 1, n)
	f.fill(q, 2, n)
	var filled, launched driver.Node
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() {
		f.ok(f.d.Memset(p, 0, 1, 4*n, s))
		filled = f.node(s)
		launched = f.launchNode(f.saxpyLaunch(s, p, p, 0, n))
	}))
	f.ok(f.d.GraphSetMemset(f.th, e, filled, q, 0, 1, 4*64))
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, p, 1, n)
	f.want(s, q, 0, 64)
	f.want(s, q+4*64, 2, n-64)
	f.ok(f.d.GraphSetMemset(f.th, e, filled, q+4*64, 0, 1, 4*64))
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, q, 0, 128)
	f.want(s, q+4*128, 2, n-128)
	f.ok(f.d.GraphSetMemset(f.th, e, filled, p, 0x4040, 2, 2*n)) // 0x40404040
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, p, math.Float32frombits(0x40404040), n)
	f.ok(f.d.GraphSetMemset(f.th, e, filled, p, math.Float32bits(5), 4, n))
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, p, 5, n)
	for _, err := range []error{
		f.d.GraphSetMemset(f.th, e, filled, p, 0, 4, 0),
		f.d.GraphSetMemset(f.th, e, filled, p, 0, 3, 4),
		f.d.GraphSetMemset(f.th, e, launched, p, 0, 4, 4),
		f.d.GraphSetMemset(f.th, e, 0, p, 0, 4, 4),
	} {
		f.code(err, "GraphSetMemset", driver.InvalidValue)
	}
	f.ok(f.d.GraphLaunch(e, s))
	f.want(s, p, 5, n)
}

// testSetPending checks that a run that is queued but has not begun keeps what it was queued with.
func testSetPending(f *fixture) {
	a := f.adder(64)
	f.spin(a.s, 20)
	f.run(a)
	f.setTo(a, 10)
	f.run(a)
	f.run(a)
	f.setTo(a, 100)
	f.setTo(a, 1000)
	f.run(a)
	f.want(a.s, a.y, 1021, a.n)
	f.run(a)
	f.want(a.s, a.y, 2021, a.n)
}

// testSetPendingMany changes two nodes in turn between queued runs.
func testSetPendingMany(f *fixture) {
	const n, rounds = 64, 50
	s, x, y, z := f.stream(), f.alloc(4*n), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	f.fill(z, 0, n)
	var a, b driver.Node
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() {
		a = f.launchNode(f.saxpyLaunch(s, x, y, 1, n))
		b = f.launchNode(f.saxpyLaunch(s, x, z, 1, n))
	}))
	for round := range 3 {
		f.fill(y, 0, n)
		f.fill(z, 0, n)
		f.spin(s, 5)
		sum, other := 0, 0
		last := 1
		for i := 1; i <= rounds; i++ {
			f.alter(e, a, f.saxpyLaunch(0, x, y, float32(i), n))
			if i%3 == 0 || i == 1 {
				f.alter(e, b, f.saxpyLaunch(0, x, z, float32(-i), n))
				last = -i
			}
			f.ok(f.d.GraphLaunch(e, s))
			sum, other = sum+i, other+last
		}
		f.want(s, y, float32(sum), n)
		f.want(s, z, float32(other), n)
		if f.Failed() {
			f.Fatalf("in round %d", round)
		}
	}
}

// testSetRunning checks that a change affects neither a running run nor one queued behind it.
func testSetRunning(f *fixture) {
	const n = 64
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	entered, leave := make(chan bool, 3), make(chan bool)
	id := f.d.RegisterCallback(func() { entered <- true; <-leave })
	defer f.d.UnregisterCallback(id)
	var node driver.Node
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() {
		f.ok(f.d.Callback(s, id))
		node = f.launchNode(f.saxpyLaunch(s, x, y, 1, n))
	}))
	f.ok(f.d.GraphLaunch(e, s))
	f.ok(f.d.GraphLaunch(e, s))
	<-entered
	f.alter(e, node, f.saxpyLaunch(0, x, y, 10, n)) // does not wait for a run
	f.ok(f.d.GraphLaunch(e, s))
	close(leave)
	f.want(s, y, 12, n)
}

func testSetArgsCopied(f *fixture) {
	a := f.adder(64)
	l := f.saxpyLaunch(0, a.x, a.y, 3, a.n)
	f.alter(a.e, a.node, l)
	clear(l.Args)
	f.run(a)
	f.want(a.s, a.y, 3, a.n)
	f.spin(a.s, 10)
	f.run(a)
	copy(l.Args, f.saxpyLaunch(0, a.x, a.y, 5, a.n).Args)
	f.alter(a.e, a.node, l)
	clear(l.Args)
	f.run(a)
	f.want(a.s, a.y, 11, a.n)
}

// testSetTwoExecs checks that a change affects one executable: the graph and its other executables stay as they were.
func testSetTwoExecs(f *fixture) {
	a := f.adder(64)
	other := f.instantiate(a.g)
	for _, v := range []float32{7, 8, 9, 10} {
		f.setTo(a, v)
	}
	third := f.instantiate(a.g)
	f.run(a)
	f.want(a.s, a.y, 10, a.n)
	f.ok(f.d.GraphLaunch(other, a.s))
	f.ok(f.d.GraphLaunch(third, a.s))
	f.want(a.s, a.y, 12, a.n)
	f.alter(other, a.node, f.saxpyLaunch(0, a.x, a.y, 100, a.n))
	f.run(a)
	f.ok(f.d.GraphLaunch(other, a.s))
	f.ok(f.d.GraphLaunch(third, a.s))
	f.want(a.s, a.y, 123, a.n)
}

// testSetErrors checks that a refused change changes nothing.
func testSetErrors(f *fixture) {
	a, b := f.adder(128), f.adder(128)
	var filled driver.Node
	e := f.instantiate(f.capture(a.s, driver.CaptureThreadLocal, func() {
		f.ok(f.d.Memset(a.y, 0, 4, 128, a.s))
		filled = f.node(a.s)
	}))
	l := f.saxpyLaunch(0, a.x, a.y, 50, 128)
	for _, c := range []struct {
		name string
		err  error
	}{
		{"no node", f.d.GraphSetLaunch(f.th, a.e, 0, l)},
		{"another graph's", f.d.GraphSetLaunch(f.th, a.e, b.node, l)},
		{"no kernel", f.d.GraphSetLaunch(f.th, e, filled, l)},
		{"a kernel as a copy", f.d.GraphSetCopy(f.th, a.e, a.node, a.y, a.x, 4)},
		{"a copy of another's", f.d.GraphSetCopy(f.th, e, b.node, a.y, a.x, 4)},
		{"nothing of no node", f.d.GraphSetCopy(f.th, e, 0, a.y, a.x, 0)},
		{"no token", f.d.GraphSetLaunch(nil, a.e, a.node, l)},
		{"a kernel as a fill", f.d.GraphSetMemset(f.th, a.e, a.node, a.y, 0, 4, 4)},
		{"a fill, without token", f.d.GraphSetMemset(nil, e, filled, a.y, 0, 4, 4)},
		{"a copy, without token", f.d.GraphSetCopy(nil, a.e, a.node, a.y, a.x, 4)},
	} {
		if c.err == nil {
			f.Errorf("%s: no error", c.name)
		}
	}
	i := f.d.Info()
	for _, c := range []struct {
		name   string
		change func(l *driver.Launch)
	}{
		{"grid x 0", func(l *driver.Launch) { l.Grid[0] = 0 }},
		{"block x 0", func(l *driver.Launch) { l.Block[0] = 0 }},
		{"block too large", func(l *driver.Launch) { l.Block[0] = uint32(i.MaxThreadsPerBlock) + 1 }},
		{"shared too large", func(l *driver.Launch) { l.Shared = uint32(i.SharedPerBlockOptin) + 1 }},
	} {
		bad := f.saxpyLaunch(0, a.x, a.y, 50, 128)
		c.change(bad)
		if err := f.d.GraphSetLaunch(f.th, a.e, a.node, bad); codeOf(err) != driver.InvalidValue {
			f.Errorf("%s: %v, want invalid argument", c.name, err)
		}
	}
	f.run(a)
	f.want(a.s, a.y, 1, 128)
}

// testNoNode checks CaptureNode on streams without a latest node.
func testNoNode(f *fixture) {
	a, b, e, x := f.stream(), f.stream(), f.event(false), f.alloc(512)
	_, err := f.d.CaptureNode(a)
	f.code(err, "CaptureNode", driver.IllegalState)
	f.begin(a, driver.CaptureThreadLocal)
	_, err = f.d.CaptureNode(a)
	f.code(err, "CaptureNode", driver.IllegalState)
	f.ok(f.d.Memset(x, 0, 4, 1, a))
	f.fork(a, e, b)
	first := f.node(b) // all that it depends on
	f.ok(f.d.Memset(x, 0, 4, 1, a))
	if f.node(b) != first || f.node(a) == first {
		f.Error("the work of one stream moved another's node")
	}
	f.ok(f.d.Memset(x+256, 0, 4, 1, b))
	f.fork(b, e, a)
	_, err = f.d.CaptureNode(a)
	f.code(err, "CaptureNode", driver.IllegalState)
	f.code(f.d.StreamSynchronize(f.th, a), "StreamSynchronize", driver.StreamCaptureUnsupported)
	_, err = f.d.CaptureNode(b)
	f.code(err, "CaptureNode", driver.StreamCaptureInvalidated)
	f.endWith(a, driver.StreamCaptureInvalidated)
}

// testSetGoroutines has several goroutines change and run one executable in turn; each run must see the change before it.
func testSetGoroutines(f *fixture) {
	const rounds = 200
	a := f.adder(64)
	errs := make(chan error)
	var mu sync.Mutex
	run := func(t driver.Thread, l *driver.Launch) error {
		mu.Lock()
		defer mu.Unlock()
		if err := f.d.GraphSetLaunch(t, a.e, a.node, l); err != nil {
			return err
		}
		return f.d.GraphLaunch(a.e, a.s)
	}
	for v := range 3 {
		l := f.saxpyLaunch(0, a.x, a.y, float32(v+1), a.n)
		go func() {
			t := f.d.Enter()
			defer t.Leave()
			for range rounds {
				if err := run(t, l); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 3 {
		f.ok(<-errs)
	}
	f.want(a.s, a.y, rounds*(1+2+3), a.n)
}

func testSetAllocs(f *fixture) {
	a := f.adder(128)
	l := f.saxpyLaunch(0, a.x, a.y, 0, a.n)
	s, p := f.stream(), f.alloc(1024)
	var copied, filled driver.Node
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() {
		f.ok(f.d.CopyDtoD(p, p+512, 512, s))
		copied = f.node(s)
		f.ok(f.d.Memset(p, 0, 1, 512, s))
		filled = f.node(s)
	}))
	f.allocs(a.s, func() error { return f.d.GraphSetLaunch(f.th, a.e, a.node, l) })
	f.allocs(a.s, func() error {
		if err := f.d.GraphSetLaunch(f.th, a.e, a.node, l); err != nil {
			return err
		}
		return f.d.GraphLaunch(a.e, a.s)
	})
	f.allocs(s, func() error { return f.d.GraphSetMemset(f.th, e, filled, p, 0, 4, 100) })
	f.allocs(s, func() error { return f.d.GraphSetCopy(f.th, e, copied, p+512, p, 512) })
}
