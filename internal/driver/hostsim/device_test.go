package hostsim

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
)

func TestDriver(t *testing.T) {
	m := New(Options{Devices: 3, Capacity: 1 << 30, Multiprocessors: 7})
	if n, err := m.DeviceCount(); n != 3 || err != nil {
		t.Errorf("DeviceCount() = %d, %v", n, err)
	}
	if v, err := m.Version(); v < 12000 || err != nil {
		t.Errorf("Version() = %d, %v", v, err)
	}
	if m.Name() != "hostsim" {
		t.Errorf("Name() = %q", m.Name())
	}
	for _, ordinal := range []int{-1, 3} {
		_, err := m.Open(ordinal)
		want(t, err, "Open", driver.InvalidDevice)
	}
	a, _ := enter(t, m, 0)
	b, _ := enter(t, m, 2)
	i := b.Info()
	if i.Name != "Simulated GPU" || i.Ordinal != 2 || i.UUID == a.Info().UUID || i.TotalMemory != 1<<30 || i.Multiprocessors != 7 ||
		i.Image != driver.FormatKIR || i.Inline {
		t.Errorf("%+v", *i)
	}
	c, th := enter(t, CPU(), 0)
	if i := c.Info(); i.Name != "CPU" || !i.Inline || !i.Integrated {
		t.Errorf("%+v", *i)
	}
	if _, total, err := c.MemInfo(th); err != nil || total != c.Info().TotalMemory {
		t.Errorf("CPU memory %d, %v", total, err)
	}
}

// TestInvalidHandles passes invalid handles, destroyed ones, and those of other devices to every call that takes one.
func TestInvalidHandles(t *testing.T) {
	m := New(Options{Devices: 2})
	d, th := enter(t, m, 0)
	other, oth := enter(t, m, 1)
	gone, err := d.StreamCreate(th, true, 0)
	must(t, err)
	must(t, d.StreamDestroy(th, gone))
	s, err := d.StreamCreate(th, true, 0) // in the slot of gone
	must(t, err)
	if s == gone {
		t.Error("a destroyed handle was handed out again")
	}
	p, e := alloc(t, d, th, 64), driver.Event(77)
	_, err = other.StreamCreate(oth, true, 0)
	must(t, err)
	for _, bad := range []driver.Stream{gone, 99, 1 << 40, s + 1<<32} {
		for call, err := range map[string]error{
			"StreamDestroy":     d.StreamDestroy(th, bad),
			"StreamQuery":       second(d.StreamQuery(th, bad)),
			"StreamSynchronize": d.StreamSynchronize(th, bad),
			"StreamWait":        d.StreamWait(bad, e),
			"EventRecord":       d.EventRecord(e, bad),
			"Launch":            d.Launch(&driver.Launch{Stream: bad}),
			"CopyDtoD":          d.CopyDtoD(p, p, 8, bad),
			"CopyHtoD":          d.CopyHtoD(p, make([]byte, 8), bad),
			"CopyDtoH":          d.CopyDtoH(make([]byte, 8), p, bad),
			"Memset":            d.Memset(p, 0, 1, 8, bad),
			"Callback":          d.Callback(bad, 1),
			"CaptureBegin":      d.CaptureBegin(th, bad, driver.CaptureRelaxed),
			"CaptureEnd":        second(d.CaptureEnd(th, bad)),
			"CaptureInfo":       third(d.CaptureInfo(bad)),
			"CaptureNode":       second(d.CaptureNode(bad)),
			"GraphLaunch":       d.GraphLaunch(1, bad),
			"MemAllocAsync":     second(d.MemAllocAsync(th, 8, bad)),
			"MemFreeAsync":      d.MemFreeAsync(th, p, bad),
		} {
			want(t, err, call, driver.InvalidHandle)
		}
	}
	for call, err := range map[string]error{
		"StreamWait":       d.StreamWait(s, e),
		"EventDestroy":     d.EventDestroy(th, e),
		"EventRecord":      d.EventRecord(e, s),
		"EventQuery":       second(d.EventQuery(th, e)),
		"EventSynchronize": d.EventSynchronize(th, e),
		"EventElapsed":     second(d.EventElapsed(th, e, e)),
		"Launch":           d.Launch(&driver.Launch{Stream: s, Func: 5}),
		"GraphNodes":       second(d.GraphNodes(5)),
		"GraphInstantiate": second(d.GraphInstantiate(th, 5)),
		"GraphLaunch":      d.GraphLaunch(5, s),
		"GraphSetLaunch":   d.GraphSetLaunch(th, 5, 1, &driver.Launch{}),
		"GraphSetCopy":     d.GraphSetCopy(th, 5, 1, p, p, 1),
		"GraphSetMemset":   d.GraphSetMemset(th, 5, 1, p, 0, 1, 1),
		"GraphDestroy":     d.GraphDestroy(th, 5),
		"GraphExecDestroy": d.GraphExecDestroy(th, 5),
		"GraphDot":         d.GraphDot(th, 5, "x"),
		"UnloadModule":     d.UnloadModule(th, 5),
		"Function":         second(d.Function(th, 5, "x")),
		"FuncInfo":         second(d.FuncInfo(th, 5)),
		"SetMaxShared":     d.SetMaxShared(th, 5, 0),
	} {
		want(t, err, call, driver.InvalidHandle)
	}
	want(t, d.CaptureBegin(th, s, 3), "CaptureBegin", driver.InvalidValue)
	_, err = d.CaptureExchangeMode(th, -1)
	want(t, err, "CaptureExchangeMode", driver.InvalidValue)
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }

// TestInvalidTokens makes every call that takes a token without one, with one after its Leave, and with another device's.
func TestInvalidTokens(t *testing.T) {
	m := New(Options{Devices: 2})
	d, _ := enter(t, m, 0)
	_, foreign := enter(t, m, 1)
	done := make(chan driver.Thread)
	go func() {
		th := d.Enter()
		th.Leave()
		done <- th
	}()
	left := <-done
	for _, th := range []driver.Thread{nil, left, foreign} {
		for call, err := range map[string]error{
			"Synchronize":         d.Synchronize(th),
			"MemAlloc":            second(d.MemAlloc(th, 1)),
			"MemFree":             d.MemFree(th, 1),
			"MemInfo":             third(d.MemInfo(th)),
			"MemReserve":          second(d.MemReserve(th, step)),
			"MemUnreserve":        d.MemUnreserve(th, step, step),
			"MemMap":              d.MemMap(th, step, step),
			"MemUnmap":            d.MemUnmap(th, step, step),
			"MemAllocAsync":       second(d.MemAllocAsync(th, 1, 0)),
			"MemFreeAsync":        d.MemFreeAsync(th, 1, 0),
			"PoolTrim":            d.PoolTrim(th, 0),
			"PoolKeep":            d.PoolKeep(th, 0),
			"PoolUsage":           second(d.PoolUsage(th)),
			"PoolResetPeaks":      d.PoolResetPeaks(th),
			"HostAlloc":           second(d.HostAlloc(th, 1)),
			"HostFree":            d.HostFree(th, nil),
			"GraphSetLaunch":      d.GraphSetLaunch(th, 5, 1, &driver.Launch{}),
			"GraphSetCopy":        d.GraphSetCopy(th, 5, 1, 1, 2, 1),
			"GraphSetMemset":      d.GraphSetMemset(th, 5, 1, 1, 0, 1, 1),
			"StreamCreate":        second(d.StreamCreate(th, true, 0)),
			"StreamDestroy":       d.StreamDestroy(th, 1),
			"StreamQuery":         second(d.StreamQuery(th, 0)),
			"StreamSynchronize":   d.StreamSynchronize(th, 0),
			"EventCreate":         second(d.EventCreate(th, true)),
			"EventDestroy":        d.EventDestroy(th, 1),
			"EventQuery":          second(d.EventQuery(th, 1)),
			"EventSynchronize":    d.EventSynchronize(th, 1),
			"EventElapsed":        second(d.EventElapsed(th, 1, 1)),
			"CaptureBegin":        d.CaptureBegin(th, 1, 0),
			"CaptureEnd":          second(d.CaptureEnd(th, 1)),
			"CaptureExchangeMode": second(d.CaptureExchangeMode(th, 0)),
			"GraphInstantiate":    second(d.GraphInstantiate(th, 1)),
			"GraphDestroy":        d.GraphDestroy(th, 1),
			"GraphExecDestroy":    d.GraphExecDestroy(th, 1),
			"GraphDot":            d.GraphDot(th, 1, "x"),
			"LoadModule":          second(d.LoadModule(th, nil)),
			"UnloadModule":        d.UnloadModule(th, 1),
			"Function":            second(d.Function(th, 1, "x")),
			"FuncInfo":            second(d.FuncInfo(th, 1)),
			"SetMaxShared":        d.SetMaxShared(th, 1, 0),
		} {
			want(t, err, call, driver.InvalidContext)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a second Leave is silent")
		}
	}()
	left.Leave()
}

// TestLegacyNeedsAToken checks that work on the legacy stream from a goroutine that holds no token has no device.
func TestLegacyNeedsAToken(t *testing.T) {
	d, th := open(t, Options{})
	p := alloc(t, d, th, 64)
	e, err := d.EventCreate(th, false)
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		want(t, d.Memset(p, 0, 1, 64, driver.StreamLegacy), "Memset", driver.InvalidContext)
		want(t, d.StreamWait(driver.StreamLegacy, e), "StreamWait", driver.InvalidContext)
	}()
	<-done
	must(t, d.Memset(p, 0, 1, 64, driver.StreamLegacy))
}

// TestFault checks that a fault ends the queued work of its device, names kernel and line, and does not affect other devices.
func TestFault(t *testing.T) {
	m := New(Options{Devices: 2})
	d, th := enter(t, m, 0)
	other, oth := enter(t, m, 1)
	s := streams(t, d, th, 3)
	so := streams(t, other, oth, 1)[0]
	illegal := kernel(t, d, th, drivertest.KIR().Illegal, "illegal")
	p, q := alloc(t, d, th, 64), alloc(t, other, oth, 64)
	e, err := d.EventCreate(th, true)
	must(t, err)
	id := d.RegisterCallback(func() {})

	must(t, d.CaptureBegin(th, s[2], driver.CaptureRelaxed))
	must(t, d.Callback(s[2], id))
	must(t, d.Memset(p, 1, 1, 1, s[2]))
	g, err := d.CaptureEnd(th, s[2])
	must(t, err)
	x, err := d.GraphInstantiate(th, g)
	must(t, err)
	release := d.Hold(s[2])
	defer release()
	must(t, d.GraphLaunch(x, s[2]))
	must(t, d.Callback(s[2], id))

	must(t, d.Launch(&driver.Launch{Func: illegal, Stream: s[0], Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
		Args: binary.LittleEndian.AppendUint64(nil, 64)}))
	must(t, d.Memset(p, 9, 1, 1, s[0]))
	must(t, d.EventRecord(e, s[0]))
	must(t, d.StreamWait(s[1], e))
	must(t, other.StreamWait(so, e))
	must(t, other.Memset(q, 3, 1, 64, so))
	must(t, other.StreamSynchronize(oth, so)) // its wait ends with the device

	err = d.StreamSynchronize(th, s[1])
	want(t, err, "StreamSynchronize", driver.IllegalAddress)
	if err == nil || !strings.Contains(err.Error(), "kernel illegal at illegal.go:7") {
		t.Errorf("the fault does not name its kernel and line: %v", err)
	}
	want(t, second(d.EventQuery(th, e)), "EventQuery", driver.IllegalAddress)
	want(t, second(d.EventElapsed(th, e, e)), "EventElapsed", driver.IllegalAddress)
	if d.mem.bytes(p, 1)[0] == 9 {
		t.Error("work behind the fault ran")
	}
	if other.mem.bytes(q, 1)[0] != 3 {
		t.Error("the other device's work did not run")
	}
	if d.m.unheard != 0 || len(d.m.active) != 0 {
		t.Errorf("left: %d callbacks, %d streams", d.m.unheard, len(d.m.active))
	}
	d.UnregisterCallback(id)
	must(t, d.Close())
}

// TestFaultWhileACallbackRuns checks a callback that returns after its stream was dropped.
func TestFaultWhileACallbackRuns(t *testing.T) {
	for _, graph := range []bool{false, true} {
		d, th := open(t, Options{})
		s := streams(t, d, th, 2)
		illegal := kernel(t, d, th, drivertest.KIR().Illegal, "illegal")
		entered, release, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
		id := d.RegisterCallback(func() { close(entered); <-release; close(left) })
		if graph {
			must(t, d.CaptureBegin(th, s[0], driver.CaptureRelaxed))
		}
		must(t, d.Callback(s[0], id))
		if graph {
			g, err := d.CaptureEnd(th, s[0])
			must(t, err)
			x, err := d.GraphInstantiate(th, g)
			must(t, err)
			must(t, d.GraphLaunch(x, s[0]))
		}
		<-entered
		must(t, d.Launch(&driver.Launch{Func: illegal, Stream: s[1], Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
			Args: binary.LittleEndian.AppendUint64(nil, 64)}))
		want(t, d.StreamSynchronize(th, s[1]), "StreamSynchronize", driver.IllegalAddress)
		close(release)
		<-left
		want(t, d.Synchronize(th), "Synchronize", driver.IllegalAddress)
	}
}

// TestKernelMeetsFreedMemory checks that a launch after its buffer was freed faults.
func TestKernelMeetsFreedMemory(t *testing.T) {
	d, th := open(t, Options{Addresses: NeverReuse()})
	s := streams(t, d, th, 1)[0]
	f := kernel(t, d, th, drivertest.KIR().Illegal, "illegal")
	p := alloc(t, d, th, 64)
	l := &driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
		Args: binary.LittleEndian.AppendUint64(nil, uint64(p))}
	must(t, d.Launch(l))
	must(t, d.StreamSynchronize(th, s))
	must(t, d.MemFree(th, p))
	must(t, d.Launch(l))
	want(t, d.StreamSynchronize(th, s), "StreamSynchronize", driver.IllegalAddress)
}

// TestGraphMeetsFreedMemory checks that each kind of captured copy faults at a replay after its memory was freed.
func TestGraphMeetsFreedMemory(t *testing.T) {
	host := make([]byte, 64)
	for name, call := range map[string]func(d *Device, p driver.Ptr, s driver.Stream) error{
		"CopyDtoD": func(d *Device, p driver.Ptr, s driver.Stream) error { return d.CopyDtoD(p, p+32, 16, s) },
		"CopyHtoD": func(d *Device, p driver.Ptr, s driver.Stream) error { return d.CopyHtoD(p, host, s) },
		"CopyDtoH": func(d *Device, p driver.Ptr, s driver.Stream) error { return d.CopyDtoH(host, p, s) },
		"Memset":   func(d *Device, p driver.Ptr, s driver.Stream) error { return d.Memset(p, 0, 1, 64, s) },
	} {
		for _, m := range []*Driver{New(Options{}), CPU()} {
			d, th := enter(t, m, 0)
			s := streams(t, d, th, 1)[0]
			p := alloc(t, d, th, 64)
			must(t, d.CaptureBegin(th, s, driver.CaptureRelaxed))
			must(t, call(d, p, s))
			g, err := d.CaptureEnd(th, s)
			must(t, err)
			x, err := d.GraphInstantiate(th, g)
			must(t, err)
			must(t, d.MemFree(th, p))
			err = d.GraphLaunch(x, s)
			if !d.Info().Inline {
				must(t, err)
				err = d.Synchronize(th)
			}
			if !errors.Is(err, driver.IllegalAddress) || !strings.Contains(err.Error(), "freed") {
				t.Errorf("%s on %s: %v", name, d.Info().Name, err)
			}
		}
	}
}

// TestUnloadedModule checks that the functions of an unloaded module are invalid, and that a graph that launches one faults.
func TestUnloadedModule(t *testing.T) {
	d, th := open(t, Options{})
	s := streams(t, d, th, 1)[0]
	m, err := d.LoadModule(th, drivertest.KIR().Spin)
	must(t, err)
	f, err := d.Function(th, m, "spin")
	must(t, err)
	again, err := d.Function(th, m, "spin")
	must(t, err)
	if again != f {
		t.Error("one kernel has two handles")
	}
	l := &driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Args: make([]byte, 8)}
	must(t, d.CaptureBegin(th, s, driver.CaptureRelaxed))
	must(t, d.Launch(l))
	g, err := d.CaptureEnd(th, s)
	must(t, err)
	x, err := d.GraphInstantiate(th, g)
	must(t, err)
	must(t, d.Launch(l))
	must(t, d.UnloadModule(th, m))
	want(t, d.Launch(l), "Launch", driver.InvalidHandle)
	must(t, d.GraphLaunch(x, s))
	err = d.Synchronize(th)
	want(t, err, "Synchronize", driver.LaunchFailed)
	if err == nil || !strings.Contains(err.Error(), "spin") {
		t.Errorf("the fault does not name the kernel: %v", err)
	}
}

func TestLaunchOutOfResources(t *testing.T) {
	d, th := open(t, Options{})
	s := streams(t, d, th, 1)[0]
	f := kernel(t, d, th, drivertest.KIR().Spin, "spin")
	err := d.Launch(&driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{64, 1, 1}, Args: make([]byte, 8)})
	want(t, err, "Launch", driver.LaunchOutOfResources)
}

// TestShortArguments checks launches that the back end refuses: an error of the call on an inline device, a fault of the launch elsewhere.
func TestShortArguments(t *testing.T) {
	for _, m := range []*Driver{New(Options{}), CPU()} {
		d, th := enter(t, m, 0)
		s := streams(t, d, th, 1)[0]
		f := kernel(t, d, th, drivertest.KIR().Spin, "spin")
		err := d.Launch(&driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}})
		if d.Info().Inline {
			want(t, err, "Launch", driver.InvalidValue)
			continue
		}
		must(t, err)
		want(t, d.StreamSynchronize(th, s), "StreamSynchronize", driver.LaunchFailed)
	}
}

// TestDestroyWhileCaptured checks that destroying a captured stream invalidates the capture, and destroying its origin ends it.
func TestDestroyWhileCaptured(t *testing.T) {
	d, th := open(t, Options{})
	s := streams(t, d, th, 2)
	e, err := d.EventCreate(th, false)
	must(t, err)
	must(t, d.CaptureBegin(th, s[0], driver.CaptureThreadLocal))
	must(t, d.EventRecord(e, s[0]))
	must(t, d.StreamWait(s[1], e))
	must(t, d.StreamDestroy(th, s[1]))
	if st, _, err := d.CaptureInfo(s[0]); st != driver.CaptureInvalidated || err != nil {
		t.Errorf("status %v, %v", st, err)
	}
	must(t, d.StreamDestroy(th, s[0]))
	must(t, d.Synchronize(th)) // no capture is left
	want(t, d.StreamWait(driver.StreamLegacy, e), "StreamWait", driver.CapturedEvent)
	want(t, d.EventSynchronize(th, e), "EventSynchronize", driver.InvalidValue)
	// A device that is closed while one of its streams is being captured.
	s = streams(t, d, th, 1)
	must(t, d.CaptureBegin(th, s[0], driver.CaptureThreadLocal))
	must(t, d.Close())
}

func TestGraphDot(t *testing.T) {
	d, th := open(t, Options{})
	s := streams(t, d, th, 1)[0]
	f := kernel(t, d, th, drivertest.KIR().Spin, "spin")
	p := alloc(t, d, th, 64)
	id := d.RegisterCallback(func() {})
	must(t, d.CaptureBegin(th, s, driver.CaptureThreadLocal))
	must(t, d.Launch(&driver.Launch{Func: f, Stream: s, Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{1, 1, 1}, Args: make([]byte, 8)}))
	must(t, d.Memset(p, 0, 1, 64, s))
	must(t, d.Callback(s, id))
	g, err := d.CaptureEnd(th, s)
	must(t, err)
	path := filepath.Join(t.TempDir(), "g.dot")
	must(t, d.GraphDot(th, g, path))
	b, err := os.ReadFile(path)
	must(t, err)
	const text = `digraph graph_0 {
	n0 [label="kernel spin grid [2 1 1] block [1 1 1]"];
	n1 [label="Memset 64"];
	n0 -> n1;
	n2 [label="Callback"];
	n1 -> n2;
}
`
	if string(b) != text {
		t.Errorf("got\n%s\nwant\n%s", b, text)
	}
	want(t, d.GraphDot(th, g, filepath.Join(path, "x")), "GraphDot", driver.OperatingSystem)
}

// TestInlineGraph runs nodes of every kind on the CPU.
func TestInlineGraph(t *testing.T) {
	d, th := enter(t, CPU(), 0)
	s := streams(t, d, th, 1)[0]
	p := alloc(t, d, th, 64)
	b := make([]byte, 64)
	ran := 0
	id := d.RegisterCallback(func() { ran++ })
	must(t, d.CaptureBegin(th, s, driver.CaptureThreadLocal))
	must(t, d.Memset(p, 7, 1, 32, s))
	must(t, d.CopyDtoD(p+32, p, 32, s))
	must(t, d.CopyDtoH(b, p, s))
	must(t, d.Callback(s, id))
	g, err := d.CaptureEnd(th, s)
	must(t, err)
	x, err := d.GraphInstantiate(th, g)
	must(t, err)
	must(t, d.GraphLaunch(x, s))
	must(t, d.GraphLaunch(x, s))
	if ran != 2 || b[0] != 7 || b[63] != 7 {
		t.Errorf("the callback ran %d times, the copy holds % x", ran, b)
	}
	must(t, d.Callback(s, id))
	if ran != 3 {
		t.Errorf("the callback ran %d times", ran)
	}
}
