//go:build !tenon_sim && linux

package libcuda

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
)

// wantError fails the test unless err is a *driver.Error of that call and code whose text holds each of words.
func wantError(t *testing.T, err error, call string, code driver.Code, words ...string) {
	t.Helper()
	var e *driver.Error
	if !errors.As(err, &e) || e.Call != call || e.Code != code {
		t.Errorf("error is %v, want %s: %v (%d)", err, call, code, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

func TestProcTable(t *testing.T) {
	seen := map[string]bool{}
	for p, row := range procTable {
		if !strings.HasPrefix(row.name, "cu") || row.purpose == "" || seen[row.name] || row.since != 0 && row.since <= abiVersion {
			t.Errorf("row %d: %+v", p, row)
		}
		seen[row.name] = true
	}
}

func TestNoDriver(t *testing.T) {
	t.Setenv("TENON_LIBCUDA", "/nowhere/libcuda.so.1")
	if _, err := os.Stat(deviceFile); err == nil {
		t.Skipf("%s exists", deviceFile)
	}
	c := &cudaDriver{load: loadLibrary}
	for _, err := range []error{
		func() error { _, err := c.Version(); return err }(),
		func() error { _, err := c.DeviceCount(); return err }(),
		func() error { _, err := c.Open(0); return err }(),
	} {
		wantError(t, err, "Load", driver.NoDevice, "no NVIDIA driver found", "/nowhere/libcuda.so.1")
	}
	if New().Name() != "libcuda" {
		t.Errorf("Name() = %q", New().Name())
	}
}

// A library that loads but is not the driver.
func TestNotTheDriver(t *testing.T) {
	t.Setenv("TENON_LIBCUDA", "libc.so.6")
	_, err := loadLibrary()
	wantError(t, err, "Load", driver.NotFound, "not NVIDIA's driver", "libc.so.6")
}

func TestDeviceWithoutLibrary(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nvidia0")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wantError(t, absent(errors.New("gone"), file), "Load", driver.SystemNotReady, file, "gone", "NVIDIA_DRIVER_CAPABILITIES")
	wantError(t, absent(errors.New("gone"), ""), "Load", driver.NoDevice, "no NVIDIA driver found", "gone")
}

func TestLoadFailures(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	for code, words := range map[driver.Code]string{
		driver.NoDevice:             "finds no GPU",
		driver.StubLibrary:          "stub",
		driver.OperatingSystem:      "/dev/nvidia",
		driver.SystemNotReady:       "nvidia-fabricmanager",
		driver.SystemDriverMismatch: "reboot",
		driver.CompatNotSupported:   "forward-compatibility",
		driver.Unknown:              "nvidia-modprobe",
		driver.OutOfMemory:          "nvidia-smi",
	} {
		f := newFake(t)
		f.fail[procInit] = code
		_, err := newLibrary("fake", f.symbol)
		wantError(t, err, "Load", code, words)
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "7")
	f := newFake(t)
	f.fail[procInit] = driver.NoDevice
	_, err := newLibrary("fake", f.symbol)
	wantError(t, err, "Load", driver.NoDevice, "CUDA_VISIBLE_DEVICES", `"7"`)

	f = newFake(t)
	f.version = 11040
	_, err = newLibrary("fake", f.symbol)
	wantError(t, err, "Load", driver.NotSupported, "11.4", "525")

	f = newFake(t)
	f.fail[procDriverGetVersion] = driver.StubLibrary
	_, err = newLibrary("fake", f.symbol)
	wantError(t, err, "Load", driver.StubLibrary, "stub")

	f = newFake(t)
	f.absent[procGraphLaunch] = true
	_, err = newLibrary("fake", f.symbol)
	wantError(t, err, "Load", driver.NotFound, "cuGraphLaunch", "reinstall")

	_, err = newLibrary("fake", func(string) (dl.Proc, error) { return 0, errors.New("no symbols") })
	wantError(t, err, "Load", driver.NotFound, "not NVIDIA's driver")
}

// Functions that came after the oldest driver may be missing.
func TestOptionalFunctions(t *testing.T) {
	for _, old := range []bool{true, false} {
		f := newFake(t)
		if old {
			f.version = abiVersion
		} else {
			f.absent = map[proc]bool{procFuncLoad: true, procLogsCurrent: true, procLogsDumpToMemory: true}
		}
		d := f.open()
		th := d.Enter()
		m, err := d.LoadModule(th, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Function(th, m, "kernel"); err != nil {
			t.Error(err)
		}
		f.fail[procMemAlloc] = driver.OutOfMemory
		_, err = d.MemAlloc(th, 1)
		wantError(t, err, "MemAlloc", driver.OutOfMemory)
		th.Leave()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenDescribes(t *testing.T) {
	f := newFake(t)
	c := f.driver()
	if n, err := c.DeviceCount(); n != 2 || err != nil {
		t.Errorf("DeviceCount() = %d, %v", n, err)
	}
	if v, err := c.Version(); v != 13000 || err != nil {
		t.Errorf("Version() = %d, %v", v, err)
	}
	dev, err := c.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	want := driver.Info{Name: "Fake", Ordinal: 1, UUID: [16]byte([]byte("0123456789abcdef")), PCIBusID: "0:1:2.0", Major: 1075, Minor: 1076,
		TotalMemory: 1 << 40, Multiprocessors: 1016, MaxThreadsPerSM: 1039, MaxThreadsPerBlock: 1001, WarpSize: 1010, SharedPerBlock: 1008,
		SharedPerBlockOptin: 1097, SharedPerSM: 1081, L2Bytes: 1038, ClockKHz: 1013, Image: driver.FormatPTX, Integrated: true,
		VirtualMemory: true, PoolMemory: true}
	if got := *dev.Info(); got != want {
		t.Errorf("Info = %+v, want %+v", got, want)
	}
	if err := dev.Close(); err != nil || f.retains != 0 {
		t.Errorf("Close: %v, %d retained", err, f.retains)
	}
	for _, ordinal := range []int{2, -1} {
		_, err = c.Open(ordinal)
		wantError(t, err, "Open", driver.InvalidDevice)
	}
	f.fail[procPrimaryCtxRetain] = driver.Assert // as the driver does after a fault, released or not
	_, err = c.Open(0)
	wantError(t, err, "Open", driver.Assert, "start a new one")
	f.fail[procPrimaryCtxRetain] = 0
	f.fail[procDeviceGetCount] = driver.NotInitialized
	_, err = c.DeviceCount()
	wantError(t, err, "DeviceCount", driver.NotInitialized)
}

func TestLaunchPacksArguments(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	l := &driver.Launch{Func: 11, Stream: 12, Grid: [3]uint32{1, 2, 3}, Block: [3]uint32{4, 5, 6}, Shared: 7, Args: []byte("parameters")}
	for range 2 {
		if err := d.Launch(l); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(f.params, l.Args) {
			t.Errorf("the driver read %q", f.params)
		}
	}
	if got, want := [10]uintptr(f.args[procLaunchKernel][:10]), [10]uintptr{11, 1, 2, 3, 4, 5, 6, 7, 12, 0}; got != want {
		t.Errorf("arguments %v, want %v", got, want)
	}
	l.Waits = true
	if err := d.Launch(l); err != nil || !bytes.Equal(f.params, l.Args) {
		t.Errorf("a kernel that waits: %v, the driver read %q", err, f.params)
	}
	if a := f.args[procLaunchKernelEx]; a[1] != 11 || a[2] != 0 {
		t.Errorf("a kernel that waits: arguments %v", a[:4])
	}
	f.config.attributes = 0
	if want := (launchConfig{[3]uint32{1, 2, 3}, [3]uint32{4, 5, 6}, 7, 12, 0, 1}); f.config != want || f.attribute.id != 6 ||
		f.attribute.value != [64]byte{1} {
		t.Errorf("a kernel that waits: %+v with %v, want %+v", f.config, f.attribute, want)
	}
	l.Args = nil
	if err := d.Launch(l); err != nil || f.params != nil {
		t.Errorf("no parameters: %v, the driver read %q", err, f.params)
	}
}

func TestMemset(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	for width, p := range map[int]proc{1: procMemsetD8, 2: procMemsetD16, 4: procMemsetD32} {
		if err := d.Memset(16, 0x01020304, width, 5, 9); err != nil {
			t.Error(err)
		}
		want := uintptr(0x01020304) & (1<<(8*width) - 1)
		if a := f.args[p]; a[0] != 16 || a[1] != want || a[2] != 5 || a[3] != 9 {
			t.Errorf("width %d: arguments %v", width, a[:4])
		}
	}
	wantError(t, d.Memset(16, 0, 3, 1, 9), "Memset", driver.InvalidValue, "1, 2 or 4")
	// Empty copies and fills make no call.
	for _, err := range []error{d.Memset(16, 0, 4, 0, 9), d.CopyDtoD(16, 32, 0, 9), d.CopyHtoD(16, nil, 9), d.CopyDtoH(nil, 16, 9)} {
		if err != nil {
			t.Error(err)
		}
	}
	if f.count[procMemsetD32] != 1 || f.count[procMemcpyDtoD]+f.count[procMemcpyDtoH]+f.count[procMemcpyHtoD] != 0 {
		t.Error("an empty copy or fill reached the driver")
	}
}

// Waits poll first and block only if the work takes longer.
func TestWait(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	f.pending = 2
	if err := d.StreamSynchronize(th, 5); err != nil || f.count[procStreamQuery] != 3 {
		// On a slow machine the polling time may be over sooner.
		if err != nil || f.count[procStreamSynchronize] != 1 {
			t.Errorf("%v after %d queries", err, f.count[procStreamQuery])
		}
	}
	f.pending = 1 << 30
	if err := d.EventSynchronize(th, 5); err != nil || f.count[procEventSynchronize] != 1 {
		t.Errorf("%v: blocked %d times, want 1", err, f.count[procEventSynchronize])
	}
	if done, err := d.EventQuery(th, 5); done || err != nil {
		t.Errorf("EventQuery = %v, %v", done, err)
	}
}

// Tokens of two devices nest: leaving the inner restores the outer's context.
func TestTokensOfTwoDevices(t *testing.T) {
	f := newFake(t)
	c := f.driver()
	a, err := c.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	outer := a.Enter()
	inner := b.Enter()
	if got := f.current[outer.ID()]; got != fakeContext+1 {
		t.Errorf("within the inner token the context is %#x", got)
	}
	if outer.ID() != inner.ID() {
		t.Error("one thread has two ids")
	}
	again := b.Enter()
	again.Leave()
	wantError(t, a.Synchronize(inner), "Synchronize", driver.InvalidContext)
	wantError(t, b.Synchronize(again), "Synchronize", driver.InvalidContext)
	if got := f.current[outer.ID()]; got != fakeContext+1 {
		t.Errorf("after a nested token of the same device the context is %#x", got)
	}
	inner.Leave()
	if got := f.current[outer.ID()]; got != fakeContext {
		t.Errorf("after the inner token the context is %#x", got)
	}
	sets := f.count[procCtxSetCurrent]
	a.Enter().Leave()
	if f.count[procCtxSetCurrent] != sets {
		t.Error("Enter set a context that was current")
	}
	outer.Leave()
	for _, d := range []driver.Device{a, b} {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if f.retains != 0 {
		t.Errorf("%d contexts retained after Close", f.retains)
	}
}

func TestCallback(t *testing.T) {
	f := newFake(t)
	d := f.open()
	ran := make(chan string, 2)
	a := d.RegisterCallback(func() { ran <- "a" })
	b := d.RegisterCallback(func() { ran <- "b"; runtime.Goexit() })
	for _, id := range []driver.CallbackID{a, b} {
		if err := d.Callback(5, id); err != nil {
			t.Fatal(err)
		}
	}
	f.running.Wait() // the stream continues although b ended its goroutine
	if x, y := <-ran, <-ran; x == y {
		t.Errorf("ran %s and %s", x, y)
	}
	d.UnregisterCallback(a)
	wantError(t, d.Callback(5, a), "Callback", driver.InvalidValue, "no callback")
	runCallback(uintptr(a)) // queued before it was unregistered: nothing happens
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if lookupCallback(b) != nil {
		t.Error("Close left a callback registered")
	}
}

// The detail of a failed call: the driver's log if the code says little, and the name of a code that the contract lacks.
func TestDetail(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	f.log = "[00:28:40.215][139][CUDA][E] One or more of block dimensions exceeds\n[00:28:40.215][139][CUDA][E] Returning 1 from " +
		"cuLaunchKernel\n"
	f.fail[procLaunchKernel] = driver.InvalidValue
	err := d.Launch(&driver.Launch{})
	wantError(t, err, "Launch", driver.InvalidValue)
	if want := "Launch: invalid argument (1): One or more of block dimensions exceeds"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	f.fail[procLaunchKernel] = 12345
	wantError(t, d.Launch(&driver.Launch{}), "Launch", 12345, "CUDA_ERROR_NEW: a new error")
	m, err := d.LoadModule(th, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Function(th, m, "missing")
	wantError(t, err, "Function", driver.NotFound, `no kernel "missing"`)
	f.jitLog = "line 3: not a name\n"
	libraries := f.liveOf(procLibraryLoadData)
	for _, p := range []proc{procLibraryLoadData, procLibraryGetModule} { // the driver compiles in the first, and the second reports
		f.fail[p] = driver.InvalidImage
		_, err = d.LoadModule(th, []byte("x"))
		wantError(t, err, "LoadModule", driver.InvalidPTX, "(218): line 3: not a name")
		f.fail[p] = driver.OutOfMemory
		_, err = d.LoadModule(th, []byte("x"))
		wantError(t, err, "LoadModule", driver.OutOfMemory, "")
		f.fail[p] = driver.Success
		if n := f.liveOf(procLibraryLoadData); n != libraries {
			t.Errorf("%d libraries are live, and %d were before the loads that failed", n, libraries)
		}
	}
	_, err = d.LoadModule(th, nil)
	wantError(t, err, "LoadModule", driver.InvalidValue, "empty")
	f.fail[procLogsDumpToMemory] = driver.InvalidValue
	f.log = "[E] unread\n"
	f.fail[procMemAlloc] = driver.OutOfMemory
	_, err = d.MemAlloc(th, 1)
	if wantError(t, err, "MemAlloc", driver.OutOfMemory); strings.Contains(err.Error(), "unread") {
		t.Error("a log that could not be read was printed")
	}
}

// The LineInfo knob is passed to the compiler as its option.
func TestLineInfo(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	for _, v := range []string{"0", "1"} {
		t.Setenv("TENON_LINE_INFO", v)
		if _, err := d.LoadModule(th, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, on := f.options[jitGenerateLineInfo]; on != (v == "1") {
			t.Errorf("TENON_LINE_INFO=%s: line information is %v", v, on)
		}
	}
}

// Results are read from where the driver writes them.
func TestResults(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	if free, total, err := d.MemInfo(th); free != 7 || total != 9 || err != nil {
		t.Errorf("MemInfo = %d, %d, %v", free, total, err)
	}
	if ms, err := d.EventElapsed(th, 1, 2); ms != 1.5 || err != nil {
		t.Errorf("EventElapsed = %v, %v", ms, err)
	}
	if status, id, err := d.CaptureInfo(1); status != driver.CaptureActive || id != 77 || err != nil {
		t.Errorf("CaptureInfo = %v, %d, %v", status, id, err)
	}
	if mode, err := d.CaptureExchangeMode(th, driver.CaptureThreadLocal); mode != driver.CaptureThreadLocal || err != nil {
		t.Errorf("CaptureExchangeMode = %v, %v", mode, err)
	}
	if n, err := d.GraphNodes(1); n != 3 || err != nil {
		t.Errorf("GraphNodes = %d, %v", n, err)
	}
	if info, err := d.FuncInfo(th, 1); info != (driver.FuncInfo{Registers: 14, SharedBytes: 11, LocalBytes: 13, MaxThreads: 10}) ||
		err != nil {
		t.Errorf("FuncInfo = %+v, %v", info, err)
	}
	b, err := d.HostAlloc(th, 64)
	if err != nil || len(b) != 64 {
		t.Fatalf("HostAlloc: %d bytes, %v", len(b), err)
	}
	b[63] = 1
	if err := d.HostFree(th, b[:8]); err != nil {
		t.Error(err)
	}
	_, err = d.HostAlloc(th, 0)
	wantError(t, err, "HostAlloc", driver.InvalidValue, "at least 1")
	if err := d.HostRegister(th, b[32:]); err != nil {
		t.Error(err)
	}
	if err := d.HostUnregister(th, b[32:33]); err != nil {
		t.Error(err)
	}
	wantError(t, d.HostRegister(th, nil), "HostRegister", driver.InvalidValue, "at least 1")
	f.apart = 8
	wantError(t, d.HostRegister(th, b), "HostRegister", driver.NotSupported, "another address")
	f.apart = 0
	if err := d.HostRegister(th, b); err != nil { // the failed one was undone
		t.Error(err)
	}
	if d.HostView(8, 8) != nil {
		t.Error("the host sees a GPU's memory")
	}
}

func TestPlainLog(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"[1][2][CUDA][E] Returning 700 (X) from cuStreamSynchronize\n[1][2][CUDA][E] Sticky error detected\n": "",
		"[1][2][CUDA][E] One\n[1][2][CUDA][E] Two\n[1][2][CUDA][E] One\n":                                     "One; Two",
		"words without a prefix": "words without a prefix",
	} {
		if got := plainLog(text); got != want {
			t.Errorf("plainLog(%q) = %q, want %q", text, got, want)
		}
	}
}

// Covers every path that the simulator cannot take: hot calls allocate nothing, on any device.
func TestHotCallsAllocateNothing(t *testing.T) {
	if raceDetector {
		t.Skip("under the race detector a sync.Pool drops things at random")
	}
	d := newFake(t).open()
	defer d.Close()
	c, err := dl.Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	yield, err := c.Symbol("sched_yield") // takes no arguments and returns 0, which is success
	if err != nil {
		t.Fatal(err)
	}
	th := d.Enter()
	defer th.Leave()
	real := d.lib.procs
	defer func() { d.lib.procs = real }()
	for p := range d.lib.procs {
		d.lib.procs[p] = yield
	}
	l := &driver.Launch{Func: 1, Stream: 2, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Args: make([]byte, 32)}
	page := make([]byte, 64)
	for name, call := range map[string]func(){
		"Launch": func() { d.Launch(l) },
		"Launch of a kernel that waits": func() {
			l.Waits = true
			d.Launch(l)
			l.Waits = false
		},
		"EventRecord": func() { d.EventRecord(1, 2) },
		"StreamWait":  func() { d.StreamWait(1, 2) },
		"CopyDtoD":    func() { d.CopyDtoD(1, 2, 3, 4) },
		"CopyHtoD":    func() { d.CopyHtoD(1, page, 4) },
		"CopyDtoH":    func() { d.CopyDtoH(page, 1, 4) },
		"Memset":      func() { d.Memset(1, 2, 4, 3, 4) },
		"GraphLaunch": func() { d.GraphLaunch(1, 2) },
		"StreamQuery": func() { d.StreamQuery(th, 1) },
		"EventQuery":  func() { d.EventQuery(th, 1) },
		"CaptureInfo": func() { d.CaptureInfo(1) },
		"GraphSet": func() {
			d.GraphSetLaunch(th, 1, 2, l)
			d.GraphSetCopy(th, 1, 2, 3, 4, 5)
			d.GraphSetMemset(th, 1, 2, 3, 4, 4, 5)
		},
		"MemAlloc and MemFree": func() {
			p, _ := d.MemAlloc(th, 512)
			d.MemFree(th, p)
		},
		"Enter and Leave": func() { d.Enter().Leave() },
	} {
		if n := testing.AllocsPerRun(200, call); n != 0 {
			t.Errorf("%s makes %v allocations a call", name, n)
		}
	}
}
