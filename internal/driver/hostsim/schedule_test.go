package hostsim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
)

// kernel loads the suite's kernel with that name.
func kernel(t *testing.T, d *Device, th driver.Thread, text []byte, name string) driver.Func {
	t.Helper()
	m, err := d.LoadModule(th, text)
	must(t, err)
	f, err := d.Function(th, m, name)
	must(t, err)
	return f
}

// spinner returns a function that queues a spin of the given number of cycles.
func spinner(t *testing.T, d *Device, th driver.Thread) func(s driver.Stream, cycles uint64) {
	f := kernel(t, d, th, drivertest.KIR().Spin, "spin")
	return func(s driver.Stream, cycles uint64) {
		t.Helper()
		must(t, d.Launch(&driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
			Args: binary.LittleEndian.AppendUint64(nil, cycles)}))
	}
}

// streams returns n streams.
func streams(t *testing.T, d *Device, th driver.Thread, n int) []driver.Stream {
	t.Helper()
	ss := make([]driver.Stream, n)
	for i := range ss {
		var err error
		ss[i], err = d.StreamCreate(th, true, 0)
		must(t, err)
	}
	return ss
}

// TestVirtualTime checks that issuing takes no time, and waiting takes as long as the work.
func TestVirtualTime(t *testing.T) {
	d, th := open(t, Options{})
	spin := spinner(t, d, th)
	s := streams(t, d, th, 2)
	e := make([]driver.Event, 2)
	for i := range e {
		var err error
		e[i], err = d.EventCreate(th, true)
		must(t, err)
	}
	must(t, d.EventRecord(e[0], s[0]))
	spin(s[0], 50_000_000)
	must(t, d.EventRecord(e[1], s[0]))
	spin(s[1], 20_000_000)
	if now := d.Now(); now != 0 {
		t.Errorf("the clock is at %v before anything waited", now)
	}
	must(t, d.StreamSynchronize(th, s[1]))
	if now := d.Now(); now < 20*time.Millisecond || now > 21*time.Millisecond {
		t.Errorf("the clock is at %v after a spin of 20 ms", now)
	}
	must(t, d.StreamSynchronize(th, s[0])) // also began at 0
	if now := d.Now(); now < 50*time.Millisecond || now > 52*time.Millisecond {
		t.Errorf("the clock is at %v after a spin of 50 ms beside it", now)
	}
	ms, err := d.EventElapsed(th, e[0], e[1])
	must(t, err)
	if ms < 50 || ms > 52 {
		t.Errorf("elapsed %v ms for a spin of 50 ms", ms)
	}
}

func TestClockRate(t *testing.T) {
	d, th := open(t, Options{ClockKHz: 2_000_000})
	spin := spinner(t, d, th)
	s := streams(t, d, th, 1)
	spin(s[0], 20_000_000)
	must(t, d.StreamSynchronize(th, s[0]))
	if now := d.Now(); now < 10*time.Millisecond || now > 11*time.Millisecond {
		t.Errorf("20 million cycles of 2 GHz took %v", now)
	}
}

func TestAdvance(t *testing.T) {
	d, th := open(t, Options{})
	spin := spinner(t, d, th)
	s := streams(t, d, th, 1)
	spin(s[0], 5_000_000)
	d.Advance(time.Millisecond)
	if done, err := d.StreamQuery(th, s[0]); done || err != nil {
		t.Errorf("after 1 of 5 ms: %v, %v", done, err)
	}
	d.Advance(10 * time.Millisecond)
	if done, err := d.StreamQuery(th, s[0]); !done || err != nil {
		t.Errorf("after 11 of 5 ms: %v, %v", done, err)
	}
}

// TestGate checks that a held stream does not run, that others do, and that a wait for it lasts until the release.
func TestGate(t *testing.T) {
	for _, real := range []bool{false, true} {
		d, th := open(t, Options{RealTime: real})
		s := streams(t, d, th, 2)
		p := alloc(t, d, th, 8)
		release := d.Hold(s[0])
		must(t, d.Memset(p, 1, 4, 1, s[0]))
		must(t, d.Memset(p+4, 2, 4, 1, s[1]))
		must(t, d.StreamSynchronize(th, s[1]))
		for range 100 {
			if done, err := d.StreamQuery(th, s[0]); done || err != nil {
				t.Fatalf("held: %v, %v", done, err)
			}
		}
		if b := d.mem.bytes(p, 8); binary.LittleEndian.Uint32(b) != pattern || b[4] != 2 {
			t.Errorf("while held: % x", b)
		}
		go release()
		must(t, d.StreamSynchronize(th, s[0]))
		release() // a second call does nothing
		if b := d.mem.bytes(p, 8); b[0] != 1 {
			t.Errorf("after the release: % x", b)
		}
	}
}

func TestHoldOfAnotherStreamPanics(t *testing.T) {
	d, _ := open(t, Options{})
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	d.Hold(12345)
}

// trace returns the order in which three streams with three callbacks each run under a policy.
func trace(t *testing.T, policy func(s []driver.Stream) Policy) string {
	d, th := open(t, Options{})
	s := streams(t, d, th, 3)
	d.SetPolicy(policy(s))
	var mu sync.Mutex
	var b strings.Builder
	p := alloc(t, d, th, 16)
	for k := range 3 {
		for i := range s {
			id := d.RegisterCallback(func() {
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintf(&b, "%d", i)
			})
			must(t, d.Memset(p+driver.Ptr(4*i), uint32(k), 4, 1, s[i]))
			must(t, d.Callback(s[i], id))
		}
	}
	// One operation at a time, each callback to its end.
	m := d.m
	m.mu.Lock()
	for len(m.active) > 0 {
		served := m.served
		m.run(farFuture)
		for m.served == served {
			m.changed.Wait()
		}
	}
	m.mu.Unlock()
	return b.String()
}

func TestPolicies(t *testing.T) {
	if got := trace(t, func(s []driver.Stream) Policy { return Interleave() }); got != "012012012" {
		t.Errorf("interleave: %s", got)
	}
	if got := trace(t, func(s []driver.Stream) Policy { return Starve(s[1]) }); got != "020202111" {
		t.Errorf("starve the second: %s", got)
	}
	if got := trace(t, func(s []driver.Stream) Policy { return FIFO() }); got != "012012012" {
		t.Errorf("fifo: %s", got)
	}
	seen := map[string]bool{}
	for seed := range uint64(20) {
		random := func(s []driver.Stream) Policy { return Random(seed) }
		a, b := trace(t, random), trace(t, random)
		if a != b {
			t.Errorf("seed %d: %s, then %s", seed, a, b)
		}
		seen[a] = true
	}
	if len(seen) < 15 {
		t.Errorf("20 seeds give %d schedules", len(seen))
	}
}

// TestBackpressure checks that a stream takes any number of operations without the host waiting for it, and does not keep them all.
func TestBackpressure(t *testing.T) {
	d, th := open(t, Options{})
	s := streams(t, d, th, 1)
	p := alloc(t, d, th, 8)
	st := d.stream(s[0])
	for i := range uint32(20 * queueLimit) {
		must(t, d.Memset(p, i, 4, 1, s[0]))
		if n := len(st.queue) - st.first; n > queueLimit {
			t.Fatalf("%d operations are queued", n)
		}
	}
	if c := cap(st.queue); c > 4*queueLimit {
		t.Errorf("the queue has room for %d operations", c)
	}
	must(t, d.StreamSynchronize(th, s[0]))
	if v := binary.LittleEndian.Uint32(d.mem.bytes(p, 4)); v != 20*queueLimit-1 {
		t.Errorf("the last memset wrote %d", v)
	}
}

// TestBackpressureBesideARunner checks that a call that fills its stream waits while another goroutine runs work, but not for held work.
func TestBackpressureBesideARunner(t *testing.T) {
	for _, real := range []bool{false, true} {
		d, th := open(t, Options{RealTime: real})
		s := streams(t, d, th, 4)
		p := alloc(t, d, th, 16)
		e, err := d.EventCreate(th, false)
		must(t, err)
		st := d.stream(s[0])
		length := func() int {
			d.m.mu.Lock()
			defer d.m.mu.Unlock()
			return len(st.queue) - st.first
		}
		d.m.mapped.Lock() // work that has begun stays in progress
		must(t, d.Memset(p+4, 1, 4, 1, s[1]))
		runner, pusher := make(chan error, 1), make(chan int)
		go func() {
			th := d.Enter()
			defer th.Leave()
			runner <- d.StreamSynchronize(th, s[1])
		}()
		for began := false; !began; runtime.Gosched() {
			d.m.mu.Lock()
			began = d.m.running != 0
			d.m.mu.Unlock()
		}
		go func() {
			most := 0
			for i := range uint32(4 * queueLimit) {
				if err := d.Memset(p, i, 4, 1, s[0]); err != nil {
					t.Error(err)
				}
				most = max(most, length())
			}
			pusher <- most
		}()
		for length() < queueLimit {
			runtime.Gosched()
		}
		for range 10_000 {
			runtime.Gosched() // lets a call that does not wait proceed
		}
		if n := length(); n != queueLimit {
			t.Errorf("real time %v: %d operations are queued while another goroutine runs work, want %d", real, n, queueLimit)
		}
		d.m.mapped.Unlock()
		release := d.Hold(s[2])
		must(t, d.EventRecord(e, s[2]))
		must(t, d.StreamWait(s[3], e))
		for range 2 * queueLimit {
			must(t, d.Memset(p+8, 1, 4, 1, s[2])) // only this goroutine opens the gate
			must(t, d.Memset(p+12, 1, 4, 1, s[3]))
		}
		release()
		must(t, <-runner)
		if most := <-pusher; most > queueLimit {
			t.Errorf("real time %v: %d operations were queued", real, most)
		}
		must(t, d.StreamSynchronize(th, s[0]))
		if v := binary.LittleEndian.Uint32(d.mem.bytes(p, 4)); v != 4*queueLimit-1 {
			t.Errorf("the last memset wrote %d", v)
		}
	}
}

// TestBackpressureOfMany checks that the streams of goroutines that never wait stay within the limit under every policy.
func TestBackpressureOfMany(t *testing.T) {
	for _, o := range []Options{{}, {RealTime: true}, {Policy: Random(5)}, {Policy: Interleave()}} {
		d, th := open(t, o)
		p := alloc(t, d, th, 16)
		var wg sync.WaitGroup
		for i, s := range streams(t, d, th, 4) {
			st := d.stream(s)
			wg.Go(func() {
				for range 4 * queueLimit {
					if err := d.Memset(p+driver.Ptr(4*i), 1, 4, 1, s); err != nil {
						t.Error(err)
					}
					d.m.mu.Lock()
					n := len(st.queue) - st.first
					d.m.mu.Unlock()
					if n > queueLimit {
						t.Errorf("%+v: %d operations are queued", o, n)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}

// TestArgumentsSurviveCompaction checks that launches keep their arguments while the queue is moved.
func TestArgumentsSurviveCompaction(t *testing.T) {
	const n = 8 * queueLimit
	d, th := open(t, Options{})
	s := streams(t, d, th, 1)
	f := kernel(t, d, th, drivertest.KIR().Saxpy, "saxpy")
	x, y := alloc(t, d, th, 4), alloc(t, d, th, 4*n)
	must(t, d.Memset(x, 0x3f800000, 4, 1, s[0]))
	must(t, d.Memset(y, 0, 4, n, s[0]))
	args := make([]byte, 24)
	l := &driver.Launch{Func: f, Stream: s[0], Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Args: args}
	for i := range n {
		binary.LittleEndian.PutUint64(args, uint64(x))
		binary.LittleEndian.PutUint64(args[8:], uint64(y)+uint64(4*i))
		binary.LittleEndian.PutUint32(args[16:], 0x40400000) // 3
		binary.LittleEndian.PutUint32(args[20:], 1)
		must(t, d.Launch(l))
		clear(args)
	}
	b := make([]byte, 4*n)
	must(t, d.CopyDtoH(b, y, s[0]))
	if want := bytes.Repeat([]byte{0, 0, 0x40, 0x40}, n); !bytes.Equal(b, want) {
		t.Error("a launch ran with another's arguments")
	}
}

// TestCallbackWithoutHost checks that callbacks run without a further driver call, behind spins, copies and graphs.
func TestCallbackWithoutHost(t *testing.T) {
	for _, real := range []bool{false, true} {
		d, th := open(t, Options{RealTime: real})
		spin := spinner(t, d, th)
		s := streams(t, d, th, 2)
		ran := make(chan int, 10)
		cb := func(n int) driver.CallbackID { return d.RegisterCallback(func() { ran <- n }) }
		spin(s[0], 1_000_000)
		must(t, d.Callback(s[0], cb(1)))
		must(t, d.CaptureBegin(th, s[1], driver.CaptureThreadLocal))
		spin(s[1], 1_000_000)
		must(t, d.Callback(s[1], cb(2)))
		must(t, d.Callback(s[1], cb(3)))
		g, err := d.CaptureEnd(th, s[1])
		must(t, err)
		x, err := d.GraphInstantiate(th, g)
		must(t, err)
		must(t, d.GraphLaunch(x, s[1]))
		sum := 0
		for range 3 {
			sum += <-ran
		}
		if sum != 6 {
			t.Errorf("callbacks sum to %d, want 6", sum)
		}
	}
}

// TestUnregisteredCallbackDoesNothing checks that a queued callback whose function was unregistered is skipped.
func TestUnregisteredCallbackDoesNothing(t *testing.T) {
	for _, m := range []*Driver{New(Options{}), CPU()} {
		d, th := enter(t, m, 0)
		s := streams(t, d, th, 1)
		id := d.RegisterCallback(func() { t.Error("a forgotten callback ran") })
		must(t, d.CaptureBegin(th, s[0], driver.CaptureThreadLocal))
		must(t, d.Callback(s[0], id))
		g, err := d.CaptureEnd(th, s[0])
		must(t, err)
		x, err := d.GraphInstantiate(th, g)
		must(t, err)
		d.UnregisterCallback(id)
		must(t, d.GraphLaunch(x, s[0]))
		must(t, d.StreamSynchronize(th, s[0]))
	}
}

// TestCrossDeviceWait checks that an event of one device orders work of another.
func TestCrossDeviceWait(t *testing.T) {
	m := New(Options{Devices: 2})
	a, ath := enter(t, m, 0)
	b, bth := enter(t, m, 1)
	spin := spinner(t, a, ath)
	sa, sb := streams(t, a, ath, 1)[0], streams(t, b, bth, 1)[0]
	e, err := a.EventCreate(ath, false)
	must(t, err)
	spin(sa, 1_000_000)
	must(t, a.EventRecord(e, sa))
	must(t, b.StreamWait(sb, e))
	must(t, b.StreamSynchronize(bth, sb))
	if done, err := a.EventQuery(ath, e); !done || err != nil {
		t.Errorf("the other device's event: %v, %v", done, err)
	}
	want(t, b.EventRecord(e, sb), "EventRecord", driver.InvalidHandle)
	want(t, b.Memset(alloc(t, a, ath, 8), 0, 1, 8, sb), "Memset", driver.InvalidValue)
}

// TestGraphWaitsForItsTurn checks that two launches of one executable run in launch order, even if the first is delayed.
func TestGraphWaitsForItsTurn(t *testing.T) {
	d, th := open(t, Options{})
	s := streams(t, d, th, 2)
	p := alloc(t, d, th, 4)
	must(t, d.CaptureBegin(th, s[0], driver.CaptureThreadLocal))
	must(t, d.Memset(p, 5, 4, 1, s[0]))
	g, err := d.CaptureEnd(th, s[0])
	must(t, err)
	x, err := d.GraphInstantiate(th, g)
	must(t, err)
	release := d.Hold(s[0])
	must(t, d.GraphLaunch(x, s[0]))
	must(t, d.GraphLaunch(x, s[1]))
	for range 20 {
		if done, err := d.StreamQuery(th, s[1]); done || err != nil {
			t.Fatalf("the second launch ran before the first: %v, %v", done, err)
		}
	}
	release()
	must(t, d.StreamSynchronize(th, s[1]))
	if done, _ := d.StreamQuery(th, s[0]); !done {
		t.Error("the first launch is not done")
	}
}

// TestHostsTogether runs many goroutines on one device, each with its own stream, events, memory and graph.
func TestHostsTogether(t *testing.T) {
	for _, o := range []Options{{}, {RealTime: true}, {Policy: Random(3)}} {
		d, _ := open(t, o)
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				if err := host(d, byte(g+1)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// host writes v through a graph and a callback many times and checks the result.
func host(d *Device, v byte) error {
	th := d.Enter()
	defer th.Leave()
	s, err := d.StreamCreate(th, true, 0)
	if err != nil {
		return err
	}
	e, err := d.EventCreate(th, false)
	if err != nil {
		return err
	}
	p, err := d.MemAlloc(th, 1024)
	if err != nil {
		return err
	}
	ran := 0
	id := d.RegisterCallback(func() { ran++ })
	if err := d.CaptureBegin(th, s, driver.CaptureRelaxed); err != nil {
		return err
	}
	if err := d.Memset(p, uint32(v), 1, 1024, s); err != nil {
		return err
	}
	if err := d.Callback(s, id); err != nil {
		return err
	}
	g, err := d.CaptureEnd(th, s)
	if err != nil {
		return err
	}
	x, err := d.GraphInstantiate(th, g)
	if err != nil {
		return err
	}
	got := make([]byte, 1024)
	for range 50 {
		if err := d.Memset(p, 0, 1, 1024, s); err != nil {
			return err
		}
		if err := d.GraphLaunch(x, s); err != nil {
			return err
		}
		if err := d.EventRecord(e, s); err != nil {
			return err
		}
		if err := d.EventSynchronize(th, e); err != nil {
			return err
		}
		if err := d.CopyDtoH(got, p, s); err != nil {
			return err
		}
		if !bytes.Equal(got, bytes.Repeat([]byte{v}, 1024)) {
			return fmt.Errorf("host %d read another's bytes", v)
		}
	}
	if ran != 50 {
		return fmt.Errorf("the callback ran %d times, want 50", ran)
	}
	return d.MemFree(th, p)
}

// TestNoGoroutinesStay checks that no goroutine of a device is left after Close.
func TestNoGoroutinesStay(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, real := range []bool{false, true} {
		m := New(Options{RealTime: real})
		d, err := m.Device(0)
		must(t, err)
		if err := host(d, 1); err != nil {
			t.Error(err)
		}
		must(t, d.Close())
	}
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 1000 {
			t.Fatalf("%d goroutines, want %d", runtime.NumGoroutine(), before)
		}
		time.Sleep(time.Millisecond)
	}
}
