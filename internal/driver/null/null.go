// Package null is a device whose calls succeed and do nothing, for no more than the cost of an interface call: what a program costs on it
// is the cost of the program's own code. It must not depend on kernels or host memory: addresses are made up and nothing is stored.
package null

import (
	"os"
	"sync"
	"sync/atomic"

	"tenon.dev/internal/driver"
)

// Driver is a machine of null devices. It implements driver.Driver.
type Driver struct {
	// Image is the format that the devices claim to load; "" is driver.FormatKIR.
	Image driver.Format
	// Devices is the number of devices; 0 means 1.
	Devices int
}

// Name returns "null".
func (Driver) Name() string { return "null" }

// Version returns the CUDA version of the contract.
func (Driver) Version() (int, error) { return 13000, nil }

// DeviceCount returns the number of devices.
func (d Driver) DeviceCount() (int, error) { return max(d.Devices, 1), nil }

// Open returns a new null device with that number.
func (d Driver) Open(ordinal int) (driver.Device, error) {
	if ordinal < 0 || ordinal >= max(d.Devices, 1) {
		return nil, &driver.Error{Call: "Open", Code: driver.InvalidDevice}
	}
	dev := New(d.Image)
	dev.info.Ordinal = ordinal
	return dev, nil
}

// Device is the null device. In everything that kernels are selected by it claims to be an H200. Handles are numbers, streams are always
// idle, captures are empty. Stream handles, page-locked memory and capture state are real enough for a runtime that keeps track of them. It
// implements driver.Device.
type Device struct {
	info driver.Info
	next atomic.Uint64 // the last handle
	addr atomic.Uint64 // the next address

	capturing sync.Map // driver.Stream to its capture's id
}

var _ driver.Device = (*Device)(nil)

// New returns a null device that claims to load the given format; "" is driver.FormatKIR.
func New(image driver.Format) *Device {
	if image == "" {
		image = driver.FormatKIR
	}
	d := &Device{info: driver.Info{
		Name: "Null device", Major: 9, Minor: 0, TotalMemory: 141 << 30, Multiprocessors: 132, MaxThreadsPerSM: 2048,
		MaxThreadsPerBlock: 1024, WarpSize: 32, SharedPerBlock: 48 << 10, SharedPerBlockOptin: 227 << 10, SharedPerSM: 228 << 10,
		L2Bytes: 50 << 20, ClockKHz: 1_980_000, Image: image, VirtualMemory: true, PoolMemory: true,
	}}
	d.addr.Store(1 << 47)
	return d
}

// handle returns a new handle.
func (d *Device) handle() uintptr { return uintptr(d.next.Add(1)) }

// thread is the token of all threads.
type thread struct{}

// ID returns 1.
func (thread) ID() uint64 { return 1 }

// Leave does nothing.
func (thread) Leave() {}

// Info describes the device.
func (d *Device) Info() *driver.Info { return &d.info }

// Enter returns a token without locking the goroutine.
func (d *Device) Enter() driver.Thread { return thread{} }

// Synchronize returns nil.
func (d *Device) Synchronize(driver.Thread) error { return nil }

// Close returns nil.
func (d *Device) Close() error { return nil }

// MemAlloc returns an address with no memory behind it, aligned to 2 MiB and never returned again.
func (d *Device) MemAlloc(_ driver.Thread, n uint64) (driver.Ptr, error) {
	const step = 2 << 20
	n = (n + step - 1) &^ (step - 1)
	return driver.Ptr(d.addr.Add(n) - n), nil
}

// MemFree returns nil.
func (d *Device) MemFree(driver.Thread, driver.Ptr) error { return nil }

// MemInfo reports all memory as free.
func (d *Device) MemInfo(driver.Thread) (free, total uint64, err error) {
	return d.info.TotalMemory, d.info.TotalMemory, nil
}

// MemReserve returns an address, as MemAlloc does.
func (d *Device) MemReserve(t driver.Thread, n uint64) (driver.Ptr, error) { return d.MemAlloc(t, n) }

// MemUnreserve returns nil.
func (d *Device) MemUnreserve(driver.Thread, driver.Ptr, uint64) error { return nil }

// MemMap returns nil.
func (d *Device) MemMap(driver.Thread, driver.Ptr, uint64) error { return nil }

// MemUnmap returns nil.
func (d *Device) MemUnmap(driver.Thread, driver.Ptr, uint64) error { return nil }

// MemAllocAsync returns an address, as MemAlloc does.
func (d *Device) MemAllocAsync(t driver.Thread, n uint64, _ driver.Stream) (driver.Ptr, error) {
	return d.MemAlloc(t, n)
}

// MemFreeAsync returns nil.
func (d *Device) MemFreeAsync(driver.Thread, driver.Ptr, driver.Stream) error { return nil }

// PoolTrim returns nil.
func (d *Device) PoolTrim(driver.Thread, uint64) error { return nil }

// PoolKeep returns nil.
func (d *Device) PoolKeep(driver.Thread, uint64) error { return nil }

// PoolUsage returns zeros.
func (d *Device) PoolUsage(driver.Thread) (driver.PoolUsage, error) { return driver.PoolUsage{}, nil }

// PoolResetPeaks returns nil.
func (d *Device) PoolResetPeaks(driver.Thread) error { return nil }

// HostAlloc returns n bytes of the Go heap.
func (d *Device) HostAlloc(_ driver.Thread, n uint64) ([]byte, error) { return make([]byte, n), nil }

// HostFree returns nil.
func (d *Device) HostFree(driver.Thread, []byte) error { return nil }

// HostRegister returns nil.
func (d *Device) HostRegister(driver.Thread, []byte) error { return nil }

// HostUnregister returns nil.
func (d *Device) HostUnregister(driver.Thread, []byte) error { return nil }

// StreamFailed returns nil.
func (d *Device) StreamFailed(driver.Stream) error { return nil }

// EventFailed returns nil.
func (d *Device) EventFailed(driver.Event) error { return nil }

// DeviceFailed returns nil.
func (d *Device) DeviceFailed() error { return nil }

// HostView returns nil.
func (d *Device) HostView(driver.Ptr, uint64) []byte { return nil }

// StreamCreate returns a handle.
func (d *Device) StreamCreate(driver.Thread, bool, int) (driver.Stream, error) {
	return driver.Stream(d.handle()), nil
}

// StreamDestroy returns nil.
func (d *Device) StreamDestroy(driver.Thread, driver.Stream) error { return nil }

// StreamQuery returns true.
func (d *Device) StreamQuery(driver.Thread, driver.Stream) (bool, error) { return true, nil }

// StreamSynchronize returns nil.
func (d *Device) StreamSynchronize(driver.Thread, driver.Stream) error { return nil }

// StreamWait returns nil.
func (d *Device) StreamWait(driver.Stream, driver.Event) error { return nil }

// EventCreate returns a handle.
func (d *Device) EventCreate(driver.Thread, bool) (driver.Event, error) {
	return driver.Event(d.handle()), nil
}

// EventDestroy returns nil.
func (d *Device) EventDestroy(driver.Thread, driver.Event) error { return nil }

// EventRecord returns nil.
func (d *Device) EventRecord(driver.Event, driver.Stream) error { return nil }

// EventQuery returns true.
func (d *Device) EventQuery(driver.Thread, driver.Event) (bool, error) { return true, nil }

// EventSynchronize returns nil.
func (d *Device) EventSynchronize(driver.Thread, driver.Event) error { return nil }

// EventElapsed returns 0.
func (d *Device) EventElapsed(driver.Thread, driver.Event, driver.Event) (float32, error) {
	return 0, nil
}

// Launch returns nil.
func (d *Device) Launch(*driver.Launch) error { return nil }

// CopyDtoD returns nil.
func (d *Device) CopyDtoD(driver.Ptr, driver.Ptr, uint64, driver.Stream) error { return nil }

// CopyPeer returns nil.
func (d *Device) CopyPeer(driver.Ptr, int, driver.Ptr, uint64, driver.Stream) error { return nil }

// CopyHtoD returns nil.
func (d *Device) CopyHtoD(driver.Ptr, []byte, driver.Stream) error { return nil }

// CopyDtoH leaves dst as it is.
func (d *Device) CopyDtoH([]byte, driver.Ptr, driver.Stream) error { return nil }

// Memset returns nil.
func (d *Device) Memset(driver.Ptr, uint32, int, uint64, driver.Stream) error { return nil }

// Callback returns nil; the function does not run.
func (d *Device) Callback(driver.Stream, driver.CallbackID) error { return nil }

// RegisterCallback returns an id.
func (d *Device) RegisterCallback(func()) driver.CallbackID { return driver.CallbackID(d.handle()) }

// UnregisterCallback does nothing.
func (d *Device) UnregisterCallback(driver.CallbackID) {}

// CaptureBegin marks s as captured.
func (d *Device) CaptureBegin(_ driver.Thread, s driver.Stream, _ driver.CaptureMode) error {
	d.capturing.Store(s, uint64(d.handle()))
	return nil
}

// CaptureEnd returns a graph without nodes.
func (d *Device) CaptureEnd(_ driver.Thread, s driver.Stream) (driver.Graph, error) {
	d.capturing.Delete(s)
	return driver.Graph(d.handle()), nil
}

// CaptureInfo reports whether s is between CaptureBegin and CaptureEnd.
func (d *Device) CaptureInfo(s driver.Stream) (driver.CaptureStatus, uint64, error) {
	if id, ok := d.capturing.Load(s); ok {
		return driver.CaptureActive, id.(uint64), nil
	}
	return driver.CaptureNone, 0, nil
}

// CaptureNode returns a handle.
func (d *Device) CaptureNode(driver.Stream) (driver.Node, error) {
	return driver.Node(d.handle()), nil
}

// CaptureExchangeMode returns the global mode.
func (d *Device) CaptureExchangeMode(driver.Thread, driver.CaptureMode) (driver.CaptureMode, error) {
	return driver.CaptureGlobal, nil
}

// GraphNodes returns 0.
func (d *Device) GraphNodes(driver.Graph) (int, error) { return 0, nil }

// GraphInstantiate returns a handle.
func (d *Device) GraphInstantiate(driver.Thread, driver.Graph) (driver.GraphExec, error) {
	return driver.GraphExec(d.handle()), nil
}

// GraphLaunch returns nil.
func (d *Device) GraphLaunch(driver.GraphExec, driver.Stream) error { return nil }

// GraphSetLaunch returns nil.
func (d *Device) GraphSetLaunch(driver.Thread, driver.GraphExec, driver.Node, *driver.Launch) error {
	return nil
}

// GraphSetCopy returns nil.
func (d *Device) GraphSetCopy(driver.Thread, driver.GraphExec, driver.Node, driver.Ptr, driver.Ptr, uint64) error {
	return nil
}

// GraphSetMemset returns nil.
func (d *Device) GraphSetMemset(driver.Thread, driver.GraphExec, driver.Node, driver.Ptr, uint32, int, uint64) error {
	return nil
}

// GraphChain returns handles.
func (d *Device) GraphChain(_ driver.Thread, work []driver.ChainWork) (driver.Graph, []driver.Node, error) {
	nodes := make([]driver.Node, len(work))
	for i := range nodes {
		nodes[i] = driver.Node(d.handle())
	}
	return driver.Graph(d.handle()), nodes, nil
}

// GraphSetEvent returns nil.
func (d *Device) GraphSetEvent(driver.Thread, driver.GraphExec, driver.Node, driver.Event) error {
	return nil
}

// GraphDestroy returns nil.
func (d *Device) GraphDestroy(driver.Thread, driver.Graph) error { return nil }

// GraphExecDestroy returns nil.
func (d *Device) GraphExecDestroy(driver.Thread, driver.GraphExec) error { return nil }

// GraphDot writes an empty graph.
func (d *Device) GraphDot(_ driver.Thread, _ driver.Graph, path string) error {
	if err := os.WriteFile(path, []byte("digraph graph_0 {\n}\n"), 0o644); err != nil {
		return &driver.Error{Call: "GraphDot", Code: driver.OperatingSystem, Detail: err.Error()}
	}
	return nil
}

// LoadModule returns a handle; the text is not read.
func (d *Device) LoadModule(driver.Thread, []byte) (driver.Module, error) {
	return driver.Module(d.handle()), nil
}

// UnloadModule returns nil.
func (d *Device) UnloadModule(driver.Thread, driver.Module) error { return nil }

// Function returns a handle for any name.
func (d *Device) Function(driver.Thread, driver.Module, string) (driver.Func, error) {
	return driver.Func(d.handle()), nil
}

// FuncInfo returns 32 registers and 1024 threads.
func (d *Device) FuncInfo(driver.Thread, driver.Func) (driver.FuncInfo, error) {
	return driver.FuncInfo{Registers: 32, MaxThreads: d.info.MaxThreadsPerBlock}, nil
}

// SetMaxShared returns nil.
func (d *Device) SetMaxShared(driver.Thread, driver.Func, int) error { return nil }
