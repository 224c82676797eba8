package drivertest

import (
	"bytes"
	"runtime"

	"tenon.dev/internal/driver"
)

const mib = 1 << 20

var virtualTests = []test{
	{"Map", false, testMap},
	{"Across", false, testMapAcross},
	{"UnmapEnd", false, testUnmapEnd},
	{"WithoutToken", false, testMapWithoutToken},
	{"Errors", false, testMapErrors},
	{"OutOfMemory", false, testMapOutOfMemory},
}

var poolTests = []test{
	{"Alloc", false, testPoolAlloc},
	{"Errors", false, testPoolErrors},
	{"Order", true, testPoolOrder},
	{"Usage", false, testPoolUsage},
	{"OutOfMemory", false, testPoolOutOfMemory},
	{"Graph", false, testPoolGraph},
	{"GraphErrors", false, testPoolGraphErrors},
}

// reserve returns a range of addresses until the test ends.
func (f *fixture) reserve(n uint64) driver.Ptr {
	f.Helper()
	p, err := f.d.MemReserve(f.th, n)
	f.ok(err)
	f.Cleanup(func() { f.ok(f.d.MemUnreserve(f.th, p, n)) })
	if p%(2*mib) != 0 {
		f.Errorf("the range begins at %#x, no multiple of 2 MiB", uint64(p))
	}
	return p
}

// testMap maps, uses and unmaps a part of a range that is far larger than the memory behind it.
func testMap(f *fixture) {
	f.fill(f.alloc(4096), 1, 1024) // the first use of a stream may allocate memory permanently
	free, total, err := f.d.MemInfo(f.th)
	f.ok(err)
	r := f.reserve((total + total/8) &^ (2*mib - 1))
	if now, _, err := f.d.MemInfo(f.th); err != nil || now != free {
		f.Errorf("a reservation took %d bytes, %v", free-now, err)
	}
	at := r + 40*mib
	f.ok(f.d.MemMap(f.th, at, 20*mib))
	if now, _, err := f.d.MemInfo(f.th); err != nil || free-now != 20*mib {
		f.Errorf("20 MiB mapped took %d bytes, %v", free-now, err)
	}
	f.fill(at, 2.5, 5*mib)
	f.want(f.stream(), at+10*mib, 2.5, 64)
	f.ok(f.d.Synchronize(f.th))
	f.ok(f.d.MemUnmap(f.th, at, 20*mib))
	const tables = 4 * mib // page tables, which a device may keep
	if now, _, err := f.d.MemInfo(f.th); err != nil || now < free-tables {
		f.Errorf("%d bytes stay after the unmap, %v", free-now, err)
	}
	f.ok(f.d.MemMap(f.th, at, 2*mib))
	f.fill(at, 1, 64)
	f.want(f.stream(), at, 1, 64)
	f.ok(f.d.Synchronize(f.th))
	f.ok(f.d.MemUnmap(f.th, at, 2*mib))
}

// testMapAcross uses memory that several calls mapped at adjacent addresses as one block.
func testMapAcross(f *fixture) {
	r := f.reserve(8 * mib)
	for _, at := range []driver.Ptr{2 * mib, 6 * mib, 0, 4 * mib} {
		f.ok(f.d.MemMap(f.th, r+at, 2*mib))
	}
	f.fill(r, 3, 2*mib)
	s := f.stream()
	x := f.alloc(4096)
	f.fill(x, 1, 1024)
	f.saxpy(s, x, r+2*mib-2048, 2, 1024) // across the boundary
	f.want(s, r+2*mib-2048, 5, 1024)
	f.ok(f.d.Synchronize(f.th))
	f.ok(f.d.MemUnmap(f.th, r+4*mib, 2*mib))
	f.want(s, r+2*mib-2048, 5, 1024)
	f.want(s, r+6*mib, 3, 1024)
	f.ok(f.d.Synchronize(f.th))
	for _, at := range []driver.Ptr{0, 2 * mib, 6 * mib} {
		f.ok(f.d.MemUnmap(f.th, r+at, 2*mib))
	}
}

// testUnmapEnd copies across the boundary of two mappings after the mappings behind them were removed.
func testUnmapEnd(f *fixture) {
	const piece = 20 * mib
	r := f.reserve(5 * piece)
	for i := range driver.Ptr(5) {
		f.ok(f.d.MemMap(f.th, r+i*piece, piece))
	}
	s := f.stream()
	f.fill(r, 2, 5*piece/4)
	f.ok(f.d.Synchronize(f.th))
	for i := range driver.Ptr(3) {
		f.ok(f.d.MemUnmap(f.th, r+(2+i)*piece, piece))
	}
	f.ok(f.d.Memset(r+15*mib, 0x3f800000, 4, 15*mib/4, s))
	f.want(s, r+15*mib, 1, 15*mib/4)
	f.want(s, r, 2, 1024)
	f.ok(f.d.Synchronize(f.th))
	f.ok(f.d.MemUnmap(f.th, r, piece))
	f.ok(f.d.MemUnmap(f.th, r+piece, piece))
}

// testMapWithoutToken copies across boundaries of mappings on threads that never had a context.
func testMapWithoutToken(f *fixture) {
	const piece = 2 * mib
	r := f.reserve(4 * piece)
	for i := range driver.Ptr(4) {
		f.ok(f.d.MemMap(f.th, r+i*piece, piece))
	}
	s, x := f.stream(), f.alloc(3*piece)
	host := f.host(3 * piece)
	for i := range host {
		host[i] = byte(i % 251)
	}
	got := make([]byte, 3*piece)
	at := r + piece/2
	for _, move := range []func() error{
		func() error { return f.d.Memset(at, 0, 1, 3*piece, s) },
		func() error { return f.d.CopyHtoD(at, host, s) },
		func() error { return f.d.CopyDtoD(x, at, 3*piece, s) },
		func() error { return f.d.CopyDtoD(at, x, 3*piece, s) },
		func() error { return f.d.CopyDtoH(got, at, s) },
	} {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			done <- move()
		}()
		f.ok(<-done)
	}
	f.sync(s)
	if !bytes.Equal(got, host) {
		f.Error("what came back is not what was copied")
	}
	f.ok(f.d.Synchronize(f.th))
	for i := range driver.Ptr(4) {
		f.ok(f.d.MemUnmap(f.th, r+i*piece, piece))
	}
}

func testMapErrors(f *fixture) {
	_, err := f.d.MemReserve(f.th, 0)
	f.code(err, "MemReserve", driver.InvalidValue)
	_, err = f.d.MemReserve(f.th, 2*mib+512)
	f.code(err, "MemReserve", driver.InvalidValue)
	r := f.reserve(8 * mib)
	f.code(f.d.MemMap(f.th, r+512, 2*mib), "MemMap", driver.InvalidValue)
	f.code(f.d.MemMap(f.th, r, mib), "MemMap", driver.InvalidValue)
	f.ok(f.d.MemMap(f.th, r, 4*mib))
	if err := f.d.MemMap(f.th, r+2*mib, 4*mib); err == nil {
		f.Error("addresses were mapped twice")
	}
	f.code(f.d.MemUnmap(f.th, r+4*mib, 2*mib), "MemUnmap", driver.InvalidValue)
	f.ok(f.d.MemUnmap(f.th, r, 4*mib))
	f.code(f.d.MemUnmap(f.th, r, 4*mib), "MemUnmap", driver.InvalidValue)
}

func testMapOutOfMemory(f *fixture) {
	_, total, err := f.d.MemInfo(f.th)
	f.ok(err)
	n := (total + total/8) &^ (2*mib - 1)
	r := f.reserve(n)
	f.code(f.d.MemMap(f.th, r, n), "MemMap", driver.OutOfMemory)
	f.ok(f.d.MemMap(f.th, r, 2*mib))
	f.ok(f.d.MemUnmap(f.th, r, 2*mib))
}

// testWithout replaces the tests of a feature that the device lacks: its calls must fail with NotSupported.
func testWithout(f *fixture) {
	i := f.d.Info()
	if !i.VirtualMemory {
		_, err := f.d.MemReserve(f.th, 2*mib)
		f.code(err, "MemReserve", driver.NotSupported)
		f.code(f.d.MemMap(f.th, 2*mib, 2*mib), "MemMap", driver.NotSupported)
	}
	if !i.PoolMemory {
		_, err := f.d.MemAllocAsync(f.th, 4096, driver.StreamLegacy)
		f.code(err, "MemAllocAsync", driver.NotSupported)
		f.code(f.d.PoolTrim(f.th, 0), "PoolTrim", driver.NotSupported)
		f.code(f.d.PoolKeep(f.th, 0), "PoolKeep", driver.NotSupported)
		_, err = f.d.PoolUsage(f.th)
		f.code(err, "PoolUsage", driver.NotSupported)
		f.code(f.d.PoolResetPeaks(f.th), "PoolResetPeaks", driver.NotSupported)
	}
}

// async returns n bytes of the pool, which the test must free.
func (f *fixture) async(n uint64, s driver.Stream) driver.Ptr {
	f.Helper()
	p, err := f.d.MemAllocAsync(f.th, n, s)
	f.ok(err)
	return p
}

func testPoolAlloc(f *fixture) {
	s := f.stream()
	type span struct{ p, n uint64 }
	var live []span
	for _, n := range []uint64{1, 4, 512, 513, 4096, mib, 3*mib + 5, 64 * mib} {
		p := f.async(n, s)
		if p == 0 || uint64(p)%256 != 0 {
			f.Errorf("%d bytes at %#x: not aligned to 256", n, uint64(p))
		}
		for _, o := range live {
			if uint64(p) < o.p+o.n && o.p < uint64(p)+n {
				f.Errorf("%d bytes at %#x overlap %d bytes at %#x", n, uint64(p), o.n, o.p)
			}
		}
		f.ok(f.d.Memset(p, 7, 1, n, s))
		live = append(live, span{uint64(p), n})
	}
	got := make([]byte, 4096)
	f.ok(f.d.CopyDtoH(got, driver.Ptr(live[4].p), s))
	f.sync(s)
	if got[0] != 7 || got[4095] != 7 {
		f.Errorf("read %d and %d", got[0], got[4095])
	}
	for _, o := range live {
		f.ok(f.d.MemFreeAsync(f.th, driver.Ptr(o.p), s))
	}
	f.sync(s)
}

func testPoolErrors(f *fixture) {
	s := f.stream()
	_, err := f.d.MemAllocAsync(f.th, 0, s)
	f.code(err, "MemAllocAsync", driver.InvalidValue)
	f.code(f.d.MemFreeAsync(f.th, 0xdead00, s), "MemFreeAsync", driver.InvalidValue)
	p := f.async(4096, s)
	f.ok(f.d.MemFreeAsync(f.th, p, s))
	f.code(f.d.MemFreeAsync(f.th, p, s), "MemFreeAsync", driver.InvalidValue)
	f.sync(s)
}

// testPoolOrder frees memory while work on it is pending. The memory's own stream may get it again at once, another stream only when the
// work is done, and work queued before must still be right.
func testPoolOrder(f *fixture) {
	a, b := f.stream(), f.stream()
	f.ok(f.d.PoolKeep(f.th, 1<<40))
	defer f.d.PoolKeep(f.th, 0)
	const n = 4096
	p := f.async(4*n, a)
	seen := f.alloc(4 * n)
	f.ok(f.d.Memset(p, 0x3f800000, 4, n, a)) // 1
	f.spin(a, 20)
	f.ok(f.d.CopyDtoD(seen, p, 4*n, a))
	f.ok(f.d.MemFreeAsync(f.th, p, a))
	q := f.async(4*n, b)
	f.ok(f.d.Memset(q, 0x40000000, 4, n, b)) // 2
	again := f.async(4*n, a)
	f.ok(f.d.Memset(again, 0x40400000, 4, n, a)) // 3
	f.want(a, seen, 1, n)
	f.want(b, q, 2, n)
	f.want(a, again, 3, n)
	f.ok(f.d.MemFreeAsync(f.th, again, a))
	f.ok(f.d.MemFreeAsync(f.th, q, b))
	f.sync(a)
	f.sync(b)
}

func testPoolUsage(f *fixture) {
	s := f.stream()
	f.ok(f.d.Synchronize(f.th))
	f.ok(f.d.PoolTrim(f.th, 0))
	f.ok(f.d.PoolKeep(f.th, 1<<40))
	f.ok(f.d.PoolResetPeaks(f.th))
	before, err := f.d.PoolUsage(f.th)
	f.ok(err)
	if before.Used != before.UsedPeak || before.Reserved != before.ReservedPeak {
		f.Errorf("after the reset of the peaks: %+v", before)
	}
	p := f.async(48*mib, s)
	during, err := f.d.PoolUsage(f.th)
	f.ok(err)
	if during.Used-before.Used != 48*mib || during.Reserved < 48*mib || during.UsedPeak != during.Used ||
		during.ReservedPeak != during.Reserved {
		f.Errorf("with 48 MiB: %+v, before %+v", during, before)
	}
	f.ok(f.d.MemFreeAsync(f.th, p, s))
	f.ok(f.d.Synchronize(f.th))
	kept, err := f.d.PoolUsage(f.th)
	f.ok(err)
	if kept.Used != before.Used || kept.Reserved != during.Reserved || kept.UsedPeak != during.UsedPeak {
		f.Errorf("after the free: %+v", kept)
	}
	f.ok(f.d.PoolTrim(f.th, 0))
	trimmed, err := f.d.PoolUsage(f.th)
	f.ok(err)
	if trimmed.Reserved != before.Reserved {
		f.Errorf("after the trim: %+v, before %+v", trimmed, before)
	}
	f.ok(f.d.PoolKeep(f.th, 0))
	f.ok(f.d.MemFreeAsync(f.th, f.async(48*mib, s), s))
	f.ok(f.d.Synchronize(f.th))
	after, err := f.d.PoolUsage(f.th)
	f.ok(err)
	if after.Reserved != before.Reserved {
		f.Errorf("with nothing to keep, %d bytes stay after a wait for the device", after.Reserved)
	}
}

func testPoolOutOfMemory(f *fixture) {
	s := f.stream()
	_, err := f.d.MemAllocAsync(f.th, 1<<50, s)
	f.code(err, "MemAllocAsync", driver.OutOfMemory)
	p := f.async(4096, s)
	f.ok(f.d.Memset(p, 0, 1, 4096, s))
	f.ok(f.d.MemFreeAsync(f.th, p, s))
	f.sync(s)
}

// testPoolGraph allocates in a capture, frees some of it there, and runs the graph twice: the address is the same each time.
func testPoolGraph(f *fixture) {
	s := f.stream()
	out := f.alloc(4096)
	var kept driver.Ptr
	g := f.capture(s, driver.CaptureThreadLocal, func() {
		p := f.async(4096, s)
		f.ok(f.d.Memset(p, 0x3f800000, 4, 1024, s))
		kept = f.async(4096, s)
		f.ok(f.d.CopyDtoD(kept, p, 4096, s))
		f.ok(f.d.MemFreeAsync(f.th, p, s))
		f.saxpy(s, kept, out, 1, 1024)
	})
	n, err := f.d.GraphNodes(g)
	f.ok(err)
	if n != 6 {
		f.Errorf("the graph has %d nodes, want 6", n)
	}
	e := f.instantiate(g)
	f.fill(out, 1, 1024)
	for i := range 3 {
		f.ok(f.d.GraphLaunch(e, s))
		f.want(s, out, float32(i+2), 1024)
		f.want(s, kept, 1, 1024)
	}
	f.ok(f.d.MemFreeAsync(f.th, kept, s)) // left by the graph
	f.sync(s)
}

func testPoolGraphErrors(f *fixture) {
	s := f.stream()
	p := f.async(4096, s)
	f.begin(s, driver.CaptureThreadLocal)
	f.code(f.d.MemFreeAsync(f.th, p, s), "MemFreeAsync", driver.InvalidValue)
	f.end(s) // the capture continues
	f.ok(f.d.MemFreeAsync(f.th, p, s))
	f.begin(s, driver.CaptureThreadLocal)
	f.async(4096, s)
	f.code(f.d.Synchronize(f.th), "Synchronize", driver.StreamCaptureUnsupported)
	f.endWith(s, driver.StreamCaptureInvalidated)
}

// memoryRows are the calls on virtual memory and on the pool.
func memoryRows() []legalityRow {
	row := func(name string, call func(c *legalityCell) error) legalityRow {
		return legalityRow{name: name, call: call}
	}
	var r driver.Ptr
	reserved := func(c *legalityCell) {
		var err error
		r, err = c.d.MemReserve(c.th, 4*mib)
		c.ok(err)
		c.later(func() { c.d.MemUnreserve(c.th, r, 4*mib) })
	}
	mapped := func(c *legalityCell) {
		reserved(c)
		c.ok(c.d.MemMap(c.th, r, 2*mib))
		c.later(func() { c.d.MemUnmap(c.th, r, 2*mib) })
	}
	pooled := func(c *legalityCell) {
		var err error
		c.mem, err = c.d.MemAllocAsync(c.th, 4096, c.idle)
		c.ok(err)
		c.later(func() { c.d.MemFreeAsync(c.th, c.mem, c.idle) })
	}
	alloc := func(c *legalityCell, s driver.Stream, captured bool) error {
		p, err := c.d.MemAllocAsync(c.t, 4096, s)
		if err == nil && !captured {
			c.later(func() { c.d.MemFreeAsync(c.th, p, c.idle) })
		}
		return err
	}
	return []legalityRow{
		row("MemReserve", func(c *legalityCell) error {
			p, err := c.d.MemReserve(c.t, 2*mib)
			if err == nil {
				c.later(func() { c.d.MemUnreserve(c.th, p, 2*mib) })
			}
			return err
		}),
		{name: "MemMap", setup: reserved, call: func(c *legalityCell) error {
			err := c.d.MemMap(c.t, r, 2*mib)
			if err == nil {
				c.later(func() { c.d.MemUnmap(c.th, r, 2*mib) })
			}
			return err
		}},
		{name: "MemUnmap", setup: mapped, call: func(c *legalityCell) error { return c.d.MemUnmap(c.t, r, 2*mib) }},
		{name: "MemUnreserve", setup: reserved, call: func(c *legalityCell) error { return c.d.MemUnreserve(c.t, r, 4*mib) }},
		row("MemAllocAsync(s)", func(c *legalityCell) error { return alloc(c, c.s, true) }),
		row("MemAllocAsync(idle)", func(c *legalityCell) error { return alloc(c, c.idle, false) }),
		{name: "MemFreeAsync(plain, s)", setup: pooled, call: func(c *legalityCell) error { return c.d.MemFreeAsync(c.t, c.mem, c.s) }},
		{name: "MemFreeAsync(plain, idle)", setup: pooled, call: func(c *legalityCell) error {
			return c.d.MemFreeAsync(c.t, c.mem, c.idle)
		}},
		row("PoolTrim", func(c *legalityCell) error { return c.d.PoolTrim(c.t, 0) }),
		row("PoolKeep", func(c *legalityCell) error { return c.d.PoolKeep(c.t, 0) }),
		row("PoolUsage", func(c *legalityCell) error { _, err := c.d.PoolUsage(c.t); return err }),
		row("PoolResetPeaks", func(c *legalityCell) error { return c.d.PoolResetPeaks(c.t) }),
	}
}
