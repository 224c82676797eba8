package drivertest

import (
	"bytes"
	"fmt"
	"testing"

	"tenon.dev/internal/driver"
)

// peerTests are the programs for two devices of one driver.
var peerTests = []struct {
	name string
	run  func(f, g *fixture)
}{
	{"Identity", testPeerIdentity},
	{"Copy", testPeerCopy},
	{"CopyErrors", testPeerCopyErrors},
	{"Wait", testPeerWait},
	{"Events", testPeerEvents},
	{"Memory", testPeerMemory},
	{"VirtualMemory", testPeerVirtual},
	{"PoolMemory", testPeerPool},
	{"Captured", testPeerCaptured},
	{"Tokens", testPeerTokens},
	{"CloseOne", testPeerClose},
}

// peers runs peerTests if there are two devices.
func (s *suite) peers(t *testing.T) {
	if s.pair == nil {
		t.Skip("the driver has one device")
	}
	for _, c := range peerTests {
		t.Run(c.name, func(t *testing.T) {
			a, b := s.pair(t)
			one := func(d driver.Device) *fixture {
				return newFixture(t, &suite{open: func(*testing.T) driver.Device { return d }, k: s.k})
			}
			c.run(one(a), one(b))
		})
	}
}

// number returns the device's number.
func (f *fixture) number() int { return f.d.Info().Ordinal }

func testPeerIdentity(f, g *fixture) {
	a, b := f.d.Info(), g.d.Info()
	if a.Ordinal == b.Ordinal || a.UUID == b.UUID {
		f.Errorf("two devices have numbers %d and %d, identities %x and %x", a.Ordinal, b.Ordinal, a.UUID, b.UUID)
	}
}

// testPeerCopy copies there and back, at an offset and across more than one step of memory.
func testPeerCopy(f, g *fixture) {
	const n, skip = 5 << 20, 4096
	want, got := make([]byte, n), make([]byte, n)
	for i := range want {
		want[i] = byte(i * 7)
	}
	s, u := f.stream(), g.stream()
	x, y, z := f.alloc(n), g.alloc(n+skip), f.alloc(n)
	f.ok(f.d.CopyHtoD(x, want, s))
	f.sync(s)
	g.ok(g.d.CopyPeer(y+skip, f.number(), x, n, u))
	g.ok(g.d.CopyPeer(y, f.number(), x, 0, u))
	g.sync(u)
	f.ok(f.d.CopyPeer(z, g.number(), y+skip, n, s))
	f.ok(f.d.CopyDtoH(got, z, s))
	f.sync(s)
	if !bytes.Equal(got, want) {
		f.Error("the bytes that came back are others")
	}
}

func testPeerCopyErrors(f, g *fixture) {
	s, x := f.stream(), f.alloc(512)
	for _, from := range []int{-1, 1 << 10} {
		f.code(f.d.CopyPeer(x, from, x, 512, s), "CopyPeer", driver.InvalidDevice)
	}
	f.ok(g.d.Close())
	f.code(f.d.CopyPeer(x, g.number(), x, 512, s), "CopyPeer", driver.InvalidDevice)
	f.ok(f.d.CopyPeer(x, f.number(), x, 0, s))
}

// testPeerWait has a stream wait for an event of the other device.
func testPeerWait(f, g *fixture) {
	const n = 1000
	s, u := f.stream(), g.stream()
	x, y, w := f.alloc(4*n), g.alloc(4*n), g.alloc(4*n)
	f.fill(x, 0, n)
	g.fill(w, 1, n)
	e, back := f.event(false), g.event(false)
	g.ok(g.d.CopyPeer(y, f.number(), x, 4*n, u)) // the first copy, and loading a kernel, may take longer than s is busy
	g.saxpy(u, w, y, 2, n)
	g.sync(u)
	f.spin(s, 20)
	f.set(s, x, 3, n)
	f.ok(f.d.EventRecord(e, s))
	g.ok(g.d.StreamWait(u, e))
	g.ok(g.d.CopyPeer(y, f.number(), x, 4*n, u))
	g.saxpy(u, w, y, 2, n)
	g.ok(g.d.EventRecord(back, u))
	g.query(u, false)
	f.ok(f.d.StreamWait(s, back))
	f.set(s, x, 9, n) // after the copy that reads it
	f.want(s, x, 9, n)
	g.query(u, true) // since s came after it
	g.want(u, y, 5, n)
}

// testPeerEvents uses events of the other device: any device may query them, but only their own may record them.
func testPeerEvents(f, g *fixture) {
	s, u := f.stream(), g.stream()
	a, b := f.event(true), g.event(true)
	f.spin(s, 5)
	f.ok(f.d.EventRecord(a, s))
	if done, err := g.d.EventQuery(g.th, a); done || err != nil {
		f.Errorf("the other device says of an event that spins: done %v, %v", done, err)
	}
	g.ok(g.d.EventSynchronize(g.th, a))
	f.queryEvent(a, true)
	f.code(f.d.EventRecord(b, s), "EventRecord", driver.InvalidHandle)
	g.ok(g.d.EventRecord(b, u))
	g.sync(u)
	if ms, err := f.d.EventElapsed(f.th, a, b); err == nil {
		f.Errorf("the time between events of two devices is %v, want an error", ms)
	}
}

// testPeerMemory checks that an allocation on one device does not affect the other.
func testPeerMemory(f, g *fixture) {
	free := func(f *fixture) uint64 {
		n, _, err := f.d.MemInfo(f.th)
		f.ok(err)
		return n
	}
	before, other := free(f), free(g)
	x, y := f.alloc(64<<20), g.alloc(512)
	if n := before - free(f); n < 64<<20 {
		f.Errorf("64 MiB took %d bytes", n)
	}
	if n := other - free(g); n > 4<<20 {
		f.Errorf("64 MiB of one device and 512 bytes of the other took %d bytes from that", n)
	}
	if x == y {
		f.Error("memory of two devices has one address")
	}
}

// testPeerVirtual copies memory mapped before and memory mapped after the first copy between the devices.
func testPeerVirtual(f, g *fixture) {
	if !f.d.Info().VirtualMemory || !g.d.Info().VirtualMemory {
		f.Skip("the devices have no virtual memory")
	}
	const size = 2 << 20
	r, err := f.d.MemReserve(f.th, 2*size)
	f.ok(err)
	f.Cleanup(func() { f.d.MemUnreserve(f.th, r, 2*size) })
	s, u, y := f.stream(), g.stream(), g.alloc(2*size)
	for i := range driver.Ptr(2) {
		p := r + i*size
		f.ok(f.d.MemMap(f.th, p, size))
		f.Cleanup(func() { f.d.MemUnmap(f.th, p, size) })
		f.set(s, p, float32(i+1), size/4)
		f.sync(s)
		g.ok(g.d.CopyPeer(y+i*size, f.number(), p, size, u))
		g.want(u, y+i*size, float32(i+1), size/4)
	}
	g.ok(g.d.CopyPeer(y, f.number(), r+size/2, size, u)) // across both mappings
	if got := g.floats(u, y, size/4); got[0] != 1 || got[size/4-1] != 2 {
		f.Errorf("across two mappings: %v and %v, want 1 and 2", got[0], got[size/4-1])
	}
}

// testPeerPool copies memory of the other device's pool.
func testPeerPool(f, g *fixture) {
	if !f.d.Info().PoolMemory {
		f.Skip("the device has no memory pool")
	}
	const n = 1000
	s, u, y := f.stream(), g.stream(), g.alloc(4*n)
	usage := func(f *fixture) driver.PoolUsage {
		p, err := f.d.PoolUsage(f.th)
		f.ok(err)
		return p
	}
	other := usage(g)
	p, err := f.d.MemAllocAsync(f.th, 4*n, s)
	f.ok(err)
	f.set(s, p, 4, n)
	f.sync(s)
	g.ok(g.d.CopyPeer(y, f.number(), p, 4*n, u))
	g.want(u, y, 4, n)
	if got := usage(g); got != other {
		f.Errorf("an allocation changed the other device's pool from %+v to %+v", other, got)
	}
	f.ok(f.d.MemFreeAsync(f.th, p, s))
	f.sync(s)
}

// testPeerCaptured checks that a copy between devices is refused while its stream is being captured, and works afterwards.
func testPeerCaptured(f, g *fixture) {
	const n = 1000
	s, u := f.stream(), g.stream()
	x, y := f.alloc(4*n), g.alloc(4*n)
	f.fill(x, 1, n)
	g.fill(y, 0, n)
	g.ok(g.d.CopyPeer(y, f.number(), x, 4*n, u)) // the devices now know each other
	g.sync(u)
	g.ok(g.d.CaptureBegin(g.th, u, driver.CaptureThreadLocal))
	g.code(g.d.CopyPeer(y, f.number(), x, 4*n, u), "CopyPeer", driver.StreamCaptureUnsupported)
	if gr, err := g.d.CaptureEnd(g.th, u); err == nil { // the capture may continue, or be invalid by now
		g.ok(g.d.GraphDestroy(g.th, gr))
	}
	f.fill(x, 5, n)
	f.sync(s)
	g.want(u, y, 1, n)
	g.ok(g.d.CopyPeer(y, f.number(), x, 4*n, u))
	g.want(u, y, 5, n)
}

// testPeerTokens allocates alternately under nested tokens of both devices.
func testPeerTokens(f, g *fixture) {
	for range 3 {
		a, b := f.d.Enter(), g.d.Enter()
		y, err := g.d.MemAlloc(b, 512)
		g.ok(err)
		b.Leave()
		x, err := f.d.MemAlloc(a, 512)
		f.ok(err)
		a.Leave()
		f.onThread(func(t driver.Thread) { f.ok(f.d.MemFree(t, x)) })
		g.onThread(func(t driver.Thread) { g.ok(g.d.MemFree(t, y)) })
	}
}

// testPeerClose closes one device while the other one is working.
func testPeerClose(f, g *fixture) {
	const n = 1000
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 1, n)
	e := g.event(false)
	u := g.stream()
	g.spin(u, 5)
	g.ok(g.d.EventRecord(e, u))
	f.ok(f.d.StreamWait(s, e))
	f.spin(s, 20)
	f.saxpy(s, x, y, 2, n)
	f.ok(g.d.Close())
	_, err := g.d.MemAlloc(g.th, 512)
	f.code(err, "MemAlloc", driver.Deinitialized)
	f.want(s, y, 3, n)
}

// peerRead copies memory that the other device has not yet written.
func peerRead(fs []*fixture, repaired bool) error {
	f, g := fs[0], fs[1]
	a, b := f.stream(), g.stream()
	x, y := f.alloc(4*orderN), g.alloc(4*orderN)
	f.fill(x, 1, orderN)
	f.set(a, x, 2, orderN)
	f.before(repaired, a, g, b)
	g.ok(g.d.CopyPeer(y, f.number(), x, 4*orderN, b))
	f.sync(a)
	return g.all(b, y, 2, orderN)
}

// peerOverwrite changes memory that the other device has not yet copied.
func peerOverwrite(fs []*fixture, repaired bool) error {
	f, g := fs[0], fs[1]
	a, b := f.stream(), g.stream()
	x, y := f.alloc(4*orderN), g.alloc(4*orderN)
	f.fill(x, 1, orderN)
	g.ok(g.d.CopyPeer(y, f.number(), x, 4*orderN, b))
	g.before(repaired, b, f, a)
	f.set(a, x, 2, orderN)
	f.sync(a)
	if err := g.all(b, y, 1, orderN); err != nil {
		return fmt.Errorf("the copy: %w", err)
	}
	return nil
}

// before makes stream u of g wait for the work queued on s of f so far, if repaired.
func (f *fixture) before(repaired bool, s driver.Stream, g *fixture, u driver.Stream) {
	f.Helper()
	if !repaired {
		return
	}
	e := f.event(false)
	f.ok(f.d.EventRecord(e, s))
	g.ok(g.d.StreamWait(u, e))
}
