package record

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
	"tenon.dev/internal/driver/hostsim"
)

var rewrite = flag.Bool("rewrite", false, "write the golden recording")

// open returns a recorder of a simulated device.
func open(t *testing.T, except ...string) *Device {
	d, err := hostsim.New(hostsim.Options{}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return New(d, except...)
}

// TestTransparent runs the conformance suite on a recorded device.
func TestTransparent(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) driver.Device {
		return open(t)
	}, drivertest.KIR(), drivertest.Decorated(), drivertest.Pair(func(t *testing.T) (a, b driver.Device) {
		a, b = drivertest.OpenPair(t, hostsim.New(hostsim.Options{Devices: 2}))
		return New(a), New(b)
	}))
}

// TestText compares the recording of one call of each method with golden text.
func TestText(t *testing.T) {
	d := open(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	th := d.Enter()
	defer th.Leave()
	m, err := d.LoadModule(th, drivertest.KIR().Spin)
	ok(err)
	f, err := d.Function(th, m, "spin")
	ok(err)
	_, err = d.FuncInfo(th, f)
	ok(err)
	ok(d.SetMaxShared(th, f, 2048))
	p, err := d.MemAlloc(th, 4096)
	ok(err)
	q, err := d.MemAlloc(th, 512)
	ok(err)
	_, _, err = d.MemInfo(th)
	ok(err)
	h, err := d.HostAlloc(th, 512)
	ok(err)
	own := make([]byte, 256)
	ok(d.HostRegister(th, own))
	s, err := d.StreamCreate(th, true, -1)
	ok(err)
	s2, err := d.StreamCreate(th, false, 0)
	ok(err)
	e, err := d.EventCreate(th, true)
	ok(err)
	e2, err := d.EventCreate(th, true)
	ok(err)
	r, err := d.MemReserve(th, 4<<20)
	ok(err)
	ok(d.MemMap(th, r+2<<20, 2<<20))
	ok(d.MemUnmap(th, r+2<<20, 2<<20))
	ok(d.MemUnreserve(th, r, 4<<20))
	a, err := d.MemAllocAsync(th, 512, s)
	ok(err)
	ok(d.PoolKeep(th, 1<<20))
	ok(d.PoolResetPeaks(th))
	_, err = d.PoolUsage(th)
	ok(err)
	ok(d.MemFreeAsync(th, a, s))
	ok(d.PoolTrim(th, 0))
	id := d.RegisterCallback(func() {})
	ok(d.CopyHtoD(p+1024, h[16:], s))
	ok(d.CopyDtoD(q, p, 512, s))
	ok(d.CopyPeer(q, 0, p, 64, s))
	ok(d.CopyDtoH(make([]byte, 32), q, s))
	ok(d.Memset(p, 0xff, 2, 8, driver.StreamLegacy))
	l := &driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Shared: 64, Args: make([]byte, 8)}
	ok(d.Launch(l))
	ok(d.Callback(s, id))
	ok(d.EventRecord(e, s))
	ok(d.StreamWait(s2, e))
	ok(d.EventRecord(e2, s2))
	_, err = d.StreamQuery(th, s)
	ok(err)
	ok(d.StreamSynchronize(th, s2))
	_, err = d.EventQuery(th, e)
	ok(err)
	ok(d.EventSynchronize(th, e))
	_, err = d.EventElapsed(th, e, e2)
	ok(err)
	x := recordGraph(t, d, th, s, l, p, q)
	recordChain(t, d, th, s, l, p, q, e)
	ok(d.Synchronize(th))
	ok(d.GraphExecDestroy(th, x))
	d.UnregisterCallback(id)
	ok(d.EventDestroy(th, e))
	ok(d.StreamDestroy(th, s2))
	ok(d.HostUnregister(th, own))
	ok(d.HostFree(th, h))
	ok(d.MemFree(th, p))
	if d.MemFree(th, p) == nil {
		t.Error("an allocation was freed twice")
	}
	if d.StreamDestroy(th, s2) == nil {
		t.Error("a stream was destroyed twice")
	}
	ok(d.UnloadModule(th, m))
	ok(d.Close())
	golden := filepath.Join("testdata", "program.txt")
	if *rewrite {
		ok(os.MkdirAll("testdata", 0o755))
		ok(os.WriteFile(golden, []byte(d.Text()), 0o644))
	}
	want, err := os.ReadFile(golden)
	ok(err)
	if got := d.Text(); got != string(want) {
		t.Errorf("recorded\n%s\nwant\n%s", got, want)
	}
	if n := d.Count("Launch"); n != 2 {
		t.Errorf("%d launches are recorded, want 2", n)
	}
	d.Reset()
	if n := len(d.Calls()); n != 0 {
		t.Errorf("%d calls are left after Reset", n)
	}
}

// recordGraph captures, changes and launches a graph, and returns its executable.
func recordGraph(t *testing.T, d *Device, th driver.Thread, s driver.Stream, l *driver.Launch, p, q driver.Ptr) driver.GraphExec {
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	old, err := d.CaptureExchangeMode(th, driver.CaptureRelaxed)
	ok(err)
	ok(d.CaptureBegin(th, s, driver.CaptureThreadLocal))
	_, _, err = d.CaptureInfo(s)
	ok(err)
	l.Shared = 0
	ok(d.Launch(l))
	kernel, err := d.CaptureNode(s)
	ok(err)
	ok(d.CopyDtoD(q, p, 512, s))
	move, err := d.CaptureNode(s)
	ok(err)
	ok(d.Memset(q, 0, 1, 16, s))
	fill, err := d.CaptureNode(s)
	ok(err)
	g, err := d.CaptureEnd(th, s)
	ok(err)
	_, err = d.CaptureExchangeMode(th, old)
	ok(err)
	_, err = d.GraphNodes(g)
	ok(err)
	ok(d.GraphDot(th, g, filepath.Join(t.TempDir(), "g.dot")))
	x, err := d.GraphInstantiate(th, g)
	ok(err)
	l.Shared = 32
	ok(d.GraphSetLaunch(th, x, kernel, l))
	ok(d.GraphSetCopy(th, x, move, q, p+16, 8))
	ok(d.GraphSetMemset(th, x, fill, q, 0xff, 2, 8))
	ok(d.GraphDestroy(th, g))
	ok(d.GraphLaunch(x, s))
	return x
}

// recordChain makes and runs a graph without a capture.
func recordChain(t *testing.T, d *Device, th driver.Thread, s driver.Stream, l *driver.Launch, p, q driver.Ptr, e driver.Event) {
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	g, nodes, err := d.GraphChain(th, []driver.ChainWork{{Launch: l}, {Dst: q, Src: p, N: 8}, {Dst: p, N: 16, Value: 3}, {Event: e}})
	ok(err)
	x, err := d.GraphInstantiate(th, g)
	ok(err)
	ok(d.GraphSetEvent(th, x, nodes[3], e))
	ok(d.GraphLaunch(x, s))
	ok(d.GraphExecDestroy(th, x))
	ok(d.GraphDestroy(th, g))
}

func TestExcept(t *testing.T) {
	d := open(t, "MemAlloc")
	th := d.Enter()
	defer th.Leave()
	p, err := d.MemAlloc(th, 64)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.MemFree(th, p); err != nil {
		t.Fatal(err)
	}
	if got, want := d.Text(), "MemFree mem1\n"; got != want {
		t.Errorf("recorded %q, want %q", got, want)
	}
}
