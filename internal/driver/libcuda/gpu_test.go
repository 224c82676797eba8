//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
)

var (
	//go:embed testdata/saxpy.ptx
	saxpyPTX []byte
	//go:embed testdata/spin.ptx
	spinPTX []byte
	//go:embed testdata/illegal.ptx
	illegalPTX []byte
	//go:embed testdata/assert.ptx
	assertPTX []byte
)

var testKernels = drivertest.Kernels{Saxpy: saxpyPTX, Spin: spinPTX, Illegal: illegalPTX, Assert: assertPTX}

// openGPU opens the first GPU until the test ends, or skips the test if there is none.
func openGPU(t testing.TB) *Device {
	t.Helper()
	d, err := New().Open(0)
	if errors.Is(err, driver.NoDevice) {
		t.Skipf("needs an NVIDIA GPU: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d.(*Device)
}

func TestConformance(t *testing.T) {
	if err := openGPU(t).Close(); err != nil { // or skip the whole suite
		t.Fatal(err)
	}
	drivertest.Run(t, func(t *testing.T) driver.Device {
		return openGPU(t)
	}, testKernels, drivertest.Pair(func(t *testing.T) (a, b driver.Device) {
		return drivertest.OpenPair(t, New())
	}))
}

// gpu is an open device with a stream, an event and a kernel of each kind.
type gpu struct {
	testing.TB
	*Device
	th     driver.Thread
	s      driver.Stream
	e      driver.Event
	mem    driver.Ptr
	pinned []byte
}

func newGPU(t testing.TB) *gpu {
	g := &gpu{TB: t, Device: openGPU(t)}
	g.th = g.Enter()
	t.Cleanup(g.th.Leave)
	var err error
	g.s, err = g.StreamCreate(g.th, true, 0)
	g.ok(err)
	g.e, err = g.EventCreate(g.th, false)
	g.ok(err)
	g.mem, err = g.MemAlloc(g.th, 1<<20)
	g.ok(err)
	g.pinned, err = g.HostAlloc(g.th, 1<<16)
	g.ok(err)
	return g
}

func (g *gpu) ok(err error) {
	g.Helper()
	if err != nil {
		g.Fatal(err)
	}
}

func (g *gpu) fn(text []byte, name string) driver.Func {
	g.Helper()
	m, err := g.LoadModule(g.th, text)
	g.ok(err)
	f, err := g.Function(g.th, m, name)
	g.ok(err)
	return f
}

// saxpy is a launch over n elements of x at mem and of y behind it.
func (g *gpu) saxpy(n int) *driver.Launch {
	args := binary.LittleEndian.AppendUint64(nil, uint64(g.mem))
	args = binary.LittleEndian.AppendUint64(args, uint64(g.mem)+uint64(4*n))
	args = binary.LittleEndian.AppendUint32(args, math.Float32bits(2))
	args = binary.LittleEndian.AppendUint32(args, uint32(n))
	return &driver.Launch{Func: g.fn(saxpyPTX, "saxpy"), Stream: g.s, Grid: [3]uint32{uint32(n+127) / 128, 1, 1},
		Block: [3]uint32{128, 1, 1}, Args: args}
}

func (g *gpu) spin(cycles uint64) *driver.Launch {
	return &driver.Launch{Func: g.fn(spinPTX, "spin"), Stream: g.s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
		Args: binary.LittleEndian.AppendUint64(nil, cycles)}
}

// graph captures body on the gpu's stream and returns its executable.
func (g *gpu) graph(body func()) driver.GraphExec {
	g.Helper()
	g.ok(g.CaptureBegin(g.th, g.s, driver.CaptureThreadLocal))
	body()
	graph, err := g.CaptureEnd(g.th, g.s)
	g.ok(err)
	x, err := g.GraphInstantiate(g.th, graph)
	g.ok(err)
	return x
}

func TestSaxpy(t *testing.T) {
	g := newGPU(t)
	in := g.Info()
	t.Logf("%+v", *in)
	if in.Name == "" || in.Major < 5 || in.TotalMemory == 0 || in.WarpSize != 32 || in.ClockKHz == 0 || in.UUID == [16]byte{} ||
		in.PCIBusID == "" {
		t.Errorf("Info is incomplete: %+v", *in)
	}
	const n = 1000
	l := g.saxpy(n)
	for i := range 2 * n {
		binary.LittleEndian.PutUint32(g.pinned[4*i:], math.Float32bits(float32(i)))
	}
	g.ok(g.CopyHtoD(g.mem, g.pinned[:8*n], g.s))
	g.ok(g.Launch(l))
	out := make([]byte, 4*n)
	g.ok(g.CopyDtoH(out, g.mem+4*n, g.s))
	g.ok(g.StreamSynchronize(g.th, g.s))
	for i := range n {
		if got, want := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])), float32(3*i+n); got != want {
			t.Fatalf("y[%d] = %v, want %v", i, got, want)
		}
	}
}

// The contract's token-free calls must work on a thread that has no context; the log shows what the others do there.
func TestNoCurrentContext(t *testing.T) {
	g := newGPU(t)
	l := g.saxpy(16)
	x := g.graph(func() { g.ok(g.Launch(l)) })
	timed, err := g.EventCreate(g.th, true)
	g.ok(err)
	g.ok(g.EventRecord(timed, g.s))
	g.ok(g.StreamSynchronize(g.th, g.s))
	page := make([]byte, 64)
	graph, err := func() (driver.Graph, error) {
		g.ok(g.CaptureBegin(g.th, g.s, driver.CaptureThreadLocal))
		return g.CaptureEnd(g.th, g.s)
	}()
	g.ok(err)
	ran := make(chan struct{}, 1)
	id := g.RegisterCallback(func() { ran <- struct{}{} })
	free := []struct {
		name string
		call func() error
	}{
		{"Launch", func() error { return g.Launch(l) }},
		{"EventRecord", func() error { return g.EventRecord(g.e, g.s) }},
		{"EventRecord timed", func() error { return g.EventRecord(timed, g.s) }},
		{"StreamWait", func() error { return g.StreamWait(g.s, g.e) }},
		{"CopyDtoD", func() error { return g.CopyDtoD(g.mem, g.mem+64, 64, g.s) }},
		{"CopyHtoD pinned", func() error { return g.CopyHtoD(g.mem, g.pinned[:64], g.s) }},
		{"CopyHtoD pageable", func() error { return g.CopyHtoD(g.mem, page, g.s) }},
		{"CopyDtoH pinned", func() error { return g.CopyDtoH(g.pinned[:64], g.mem, g.s) }},
		{"CopyDtoH pageable", func() error { return g.CopyDtoH(page, g.mem, g.s) }},
		{"Memset 1", func() error { return g.Memset(g.mem, 1, 1, 64, g.s) }},
		{"Memset 2", func() error { return g.Memset(g.mem, 1, 2, 32, g.s) }},
		{"Memset 4", func() error { return g.Memset(g.mem, 1, 4, 16, g.s) }},
		{"GraphLaunch", func() error { return g.GraphLaunch(x, g.s) }},
		{"Callback", func() error { return g.Callback(g.s, id) }},
		{"CaptureInfo", func() error { _, _, err := g.CaptureInfo(g.s); return err }},
		{"GraphNodes", func() error { _, err := g.GraphNodes(graph); return err }},
	}
	w := new(words)
	raw := []struct {
		name string
		call func() driver.Code
	}{
		{"cuStreamQuery", func() driver.Code { return g.lib.call(procStreamQuery, uintptr(g.s)) }},
		{"cuEventQuery", func() driver.Code { return g.lib.call(procEventQuery, uintptr(g.e)) }},
		{"cuStreamSynchronize", func() driver.Code { return g.lib.call(procStreamSynchronize, uintptr(g.s)) }},
		{"cuEventSynchronize", func() driver.Code { return g.lib.call(procEventSynchronize, uintptr(g.e)) }},
		{"cuEventCreate", func() driver.Code { return g.lib.call(procEventCreate, w.at(0), 2) }},
		{"cuMemAlloc", func() driver.Code { return g.lib.call(procMemAlloc, w.at(0), 512) }},
		{"cuMemGetInfo", func() driver.Code { return g.lib.call(procMemGetInfo, w.at(0), w.at(1)) }},
		{"cuFuncGetAttribute", func() driver.Code { return g.lib.call(procFuncGetAttribute, w.at(0), 0, uintptr(l.Func)) }},
		{"cuGraphInstantiate", func() driver.Code { return g.lib.call(procGraphInstantiate, w.at(0), uintptr(graph), 1) }},
		{"cuLaunchKernel null stream", func() driver.Code {
			return codeOf(g.Launch(&driver.Launch{Func: l.Func, Grid: l.Grid, Block: l.Block, Args: l.Args}))
		}},
		{"cuStreamGetCaptureInfo null stream", func() driver.Code { _, _, err := g.CaptureInfo(driver.StreamLegacy); return codeOf(err) }},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if code := g.lib.call(procCtxSetCurrent, 0); code != driver.Success {
			t.Error(code)
		}
		for _, c := range free {
			if err := c.call(); err != nil {
				t.Errorf("%s without a current context: %v", c.name, err)
			}
		}
		for _, c := range raw {
			t.Logf("without a current context %s returns %d", c.name, c.call())
		}
	}()
	<-done
	g.ok(g.StreamSynchronize(g.th, g.s))
	<-ran
}

func codeOf(err error) driver.Code {
	var e *driver.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return driver.Success
}

// Instantiates graphs of kernels that wait by themselves on a device without spare memory: a graph that does not fit is an error, and the
// others run.
func TestInstantiateOnFullDevice(t *testing.T) {
	g := newGPU(t)
	l := g.saxpy(16)
	l.Waits = true
	g.ok(g.CaptureBegin(g.th, g.s, driver.CaptureThreadLocal))
	for range 2000 {
		g.ok(g.Launch(l))
	}
	graph, err := g.CaptureEnd(g.th, g.s)
	g.ok(err)
	var held []driver.Ptr
	for n := uint64(1 << 36); n >= 1<<20; {
		p, err := g.MemAlloc(g.th, n)
		if err != nil {
			n /= 2
			continue
		}
		held = append(held, p)
	}
	var made []driver.GraphExec
	for range 300 {
		e, err := g.GraphInstantiate(g.th, graph)
		if err == nil {
			err = g.GraphLaunch(e, g.s)
			made = append(made, e)
		}
		if err != nil {
			if codeOf(err) != driver.OutOfMemory {
				t.Errorf("graph %d: %v", len(made), err)
			}
			break
		}
	}
	t.Logf("%d graphs of 2000 kernels beside %d allocations", len(made), len(held))
	g.ok(g.StreamSynchronize(g.th, g.s))
	for _, e := range made {
		g.ok(g.GraphExecDestroy(g.th, e))
	}
	for _, p := range held {
		g.ok(g.MemFree(g.th, p))
	}
	g.ok(g.GraphDestroy(g.th, graph))
}

func TestEnter(t *testing.T) {
	g := newGPU(t)
	inner := g.Enter()
	if inner.ID() != g.th.ID() || inner.ID() == 0 {
		t.Errorf("nested tokens have ids %d and %d", g.th.ID(), inner.ID())
	}
	other := make(chan uint64)
	go func() {
		th := g.Enter()
		defer th.Leave()
		other <- th.ID()
	}()
	if id := <-other; id == inner.ID() {
		t.Error("a second thread has the id of the first")
	}
	inner.Leave()
	if _, err := g.MemAlloc(inner, 16); codeOf(err) != driver.InvalidContext {
		t.Errorf("a token that was left: %v", err)
	}
	if _, err := g.MemAlloc(nil, 16); codeOf(err) != driver.InvalidContext {
		t.Errorf("no token: %v", err)
	}
	g.ok(g.MemFree(g.th, g.mem))
}

func TestCompilerLog(t *testing.T) {
	g := newGPU(t)
	_, err := g.LoadModule(g.th, []byte(strings.Replace(string(saxpyPTX), "fma.rn.f32", "fmad.rn.f32", 1)))
	if codeOf(err) != driver.InvalidPTX || !strings.Contains(err.Error(), "fmad") {
		t.Errorf("PTX with an unknown instruction: %v; want InvalidPTX and the compiler's words", err)
	}
	t.Log(err)
	_, err = g.LoadModule(g.th, []byte(strings.Replace(string(saxpyPTX), ".version 6.3", ".version 99.0", 1)))
	if codeOf(err) != driver.UnsupportedPTXVersion {
		t.Errorf("PTX of the future: %v", err)
	}
	t.Log(err)
	_, err = g.LoadModule(g.th, []byte("no PTX"))
	t.Log(err)
	if err == nil {
		t.Error("text that is not PTX was loaded")
	}
	t.Setenv("TENON_LINE_INFO", "1")
	g.fn(saxpyPTX, "saxpy")
}

// What the driver says about calls with bad arguments, if it keeps a log.
func TestErrorDetail(t *testing.T) {
	g := newGPU(t)
	l := g.saxpy(16)
	l.Block[0] = 4096
	err := g.Launch(l)
	if codeOf(err) != driver.InvalidValue {
		t.Errorf("a block of 4096 threads: %v", err)
	}
	t.Log(err)
	_, err = g.MemAlloc(g.th, 1<<50)
	if codeOf(err) != driver.OutOfMemory {
		t.Errorf("2^50 bytes: %v", err)
	}
	t.Log(err)
	t.Log(g.Memset(g.mem, 0, 3, 1, g.s))
}

func TestDot(t *testing.T) {
	g := newGPU(t)
	l := g.saxpy(16)
	g.ok(g.CaptureBegin(g.th, g.s, driver.CaptureThreadLocal))
	g.ok(g.Launch(l))
	graph, err := g.CaptureEnd(g.th, g.s)
	g.ok(err)
	path := filepath.Join(t.TempDir(), "graph.dot")
	g.ok(g.GraphDot(g.th, graph, path))
	text, err := os.ReadFile(path)
	g.ok(err)
	if !strings.Contains(string(text), "digraph") || !strings.Contains(string(text), "saxpy") {
		t.Errorf("the drawing names neither digraph nor kernel:\n%s", text)
	}
}

// A closed device can be opened again, and everything the first opening left is released.
func TestReopen(t *testing.T) {
	g := newGPU(t)
	before, _, err := g.MemInfo(g.th)
	g.ok(err)
	for range 3 {
		d, err := New().Open(0)
		g.ok(err)
		th := d.Enter()
		_, err = d.MemAlloc(th, 64<<20)
		g.ok(err)
		_, err = d.StreamCreate(th, true, 0)
		g.ok(err)
		th.Leave()
		g.ok(d.Close())
		g.ok(d.Close())
		th = d.Enter()
		if _, err := d.MemAlloc(th, 16); codeOf(err) != driver.Deinitialized {
			t.Errorf("MemAlloc on a closed device: %v", err)
		}
		th.Leave()
	}
	again := g.Enter()
	defer again.Leave()
	after, _, err := g.MemInfo(again)
	g.ok(err)
	if before-after > 32<<20 && before > after {
		t.Errorf("free memory fell from %d to %d", before, after)
	}
}

func TestCallbackManyStreams(t *testing.T) {
	g := newGPU(t)
	var n atomic.Int64
	id := g.RegisterCallback(func() { n.Add(1) })
	for range 8 {
		s, err := g.StreamCreate(g.th, true, 0)
		g.ok(err)
		for range 16 {
			g.ok(g.Callback(s, id))
		}
	}
	g.ok(g.Synchronize(g.th))
	if n.Load() != 128 {
		t.Errorf("%d callbacks ran, want 128", n.Load())
	}
}

// run is b.Run with a token of the sub-benchmark's own goroutine in g.th.
func (g *gpu) run(b *testing.B, name string, body func(b *testing.B)) {
	b.Run(name, func(b *testing.B) {
		outer := g.th
		g.th = g.Enter()
		defer func() { g.th.Leave(); g.th = outer }()
		body(b)
	})
}

// batch runs call in timed batches that fit the driver's queue, and drains it untimed.
func (g *gpu) batch(b *testing.B, call func() error) {
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := call(); err != nil {
			b.Fatal(err)
		}
		if n++; n%256 == 0 {
			b.StopTimer()
			g.ok(g.StreamSynchronize(g.th, g.s))
			b.StartTimer()
		}
	}
	g.ok(g.StreamSynchronize(g.th, g.s))
}

func BenchmarkWork(b *testing.B) {
	g := newGPU(b)
	l := g.saxpy(16)
	x := g.graph(func() { g.ok(g.Launch(l)) })
	timed, err := g.EventCreate(g.th, true)
	g.ok(err)
	g.ok(g.EventRecord(g.e, g.s))
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"Launch", func() error { return g.Launch(l) }},
		{"EventRecord", func() error { return g.EventRecord(g.e, g.s) }},
		{"EventRecordTiming", func() error { return g.EventRecord(timed, g.s) }},
		{"EventQuery", func() error { _, err := g.EventQuery(g.th, g.e); return err }},
		{"StreamQuery", func() error { _, err := g.StreamQuery(g.th, g.s); return err }},
		{"StreamWait", func() error { return g.StreamWait(g.s, g.e) }},
		{"CopyDtoD", func() error { return g.CopyDtoD(g.mem, g.mem+4096, 64, g.s) }},
		{"CopyHtoDPinned", func() error { return g.CopyHtoD(g.mem, g.pinned[:64], g.s) }},
		{"Memset", func() error { return g.Memset(g.mem, 0, 4, 16, g.s) }},
		{"GraphLaunch1", func() error { return g.GraphLaunch(x, g.s) }},
		{"CaptureInfo", func() error { _, _, err := g.CaptureInfo(g.s); return err }},
		{"MemInfo", func() error { _, _, err := g.MemInfo(g.th); return err }},
	} {
		g.run(b, c.name, func(b *testing.B) { g.batch(b, c.call) })
	}
}

func BenchmarkEnter(b *testing.B) {
	g := newGPU(b)
	w := new(words)
	for _, c := range []struct {
		name string
		call func()
	}{
		{"EnterLeave", func() { g.Enter().Leave() }},
		{"cuCtxGetCurrent", func() { g.lib.call(procCtxGetCurrent, w.at(0)) }},
		{"cuCtxSetCurrent", func() { g.lib.call(procCtxSetCurrent, g.ctx) }},
		{"ThreadID", func() { threadID() }},
		{"LockOSThread", func() { runtime.LockOSThread(); runtime.UnlockOSThread() }},
	} {
		g.run(b, c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.call()
			}
		})
	}
}

func BenchmarkMemAllocFree(b *testing.B) {
	g := newGPU(b)
	for _, n := range []uint64{512, 2 << 20, 64 << 20, 1 << 30} {
		g.run(b, fmt.Sprint(n>>10, "KiB"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p, err := g.MemAlloc(g.th, n)
				g.ok(err)
				g.ok(g.MemFree(g.th, p))
			}
		})
	}
}

func BenchmarkLoadModule(b *testing.B) {
	g := newGPU(b)
	load := func(text []byte) {
		m, err := g.LoadModule(g.th, text)
		g.ok(err)
		_, err = g.Function(g.th, m, "saxpy")
		g.ok(err)
		g.ok(g.UnloadModule(g.th, m))
	}
	g.run(b, "cached", func(b *testing.B) {
		load(saxpyPTX)
		for b.Loop() {
			load(saxpyPTX)
		}
	})
	g.run(b, "new", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n++
			load([]byte(strings.Replace(string(saxpyPTX), "mul.wide.u32 %offset, %i, 4;",
				fmt.Sprintf("mul.wide.u32 %%offset, %%i, 4;\n\tadd.u64 %%offset, %%offset, %d;", n+int(time.Now().UnixNano()%1e9)*1000),
				1)))
		}
	})
}

// How much longer a wait takes than the work itself, measured with a spin of known length.
func BenchmarkWait(b *testing.B) {
	g := newGPU(b)
	for _, us := range []int{0, 10, 100, 1000} {
		l := g.spin(uint64(us) * uint64(g.Info().ClockKHz) / 1000)
		g.run(b, fmt.Sprint(us, "us"), func(b *testing.B) {
			for b.Loop() {
				g.ok(g.Launch(l))
				g.ok(g.EventRecord(g.e, g.s))
				g.ok(g.EventSynchronize(g.th, g.e))
			}
		})
		g.run(b, fmt.Sprint(us, "us/blocking"), func(b *testing.B) {
			for b.Loop() {
				g.ok(g.Launch(l))
				g.ok(g.EventRecord(g.e, g.s))
				g.ok(g.do("EventSynchronize", procEventSynchronize, uintptr(g.e)))
			}
		})
	}
}
