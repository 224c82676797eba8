//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/knob"
)

// Device is one opened GPU. All methods are safe for concurrent use.
type Device struct {
	lib     *library
	info    driver.Info
	ordinal uintptr // CUdevice
	ctx     uintptr // the primary context
	pool    uintptr // the device's default memory pool; 0 if it has none
	// lost holds the first device fault, or the fact that the device was closed. Once set, no call reaches the driver.
	lost atomic.Pointer[driver.Error]

	closing sync.Once
	mu      sync.Mutex
	held    map[resource]struct{}
	// mappings is the number of mappings.
	mappings atomic.Int64
	// physical are the handles of mapped memory, by the address of the mapping.
	physical map[driver.Ptr]uintptr
	// readers are the devices that read this one's memory directly; both mu and the peers' mu are held to change them. reads are the
	// devices whose memory this one has asked to read; the peers' mu alone guards them.
	readers, reads []uintptr
	logs           words // word 0: how far the driver's error log has been read
}

// resource is something that Close releases if its owner did not.
type resource struct {
	kind   resourceKind
	handle uintptr
	size   uintptr // for resources named by address and size
}

type resourceKind uint8

// The kinds, in the order in which Close releases them.
const (
	heldGraphExec resourceKind = iota
	heldGraph
	heldModule
	heldEvent
	heldStream
	heldHostMemory
	heldRegistration
	heldMemory
	heldPoolMemory
	heldMapping
	heldPhysical
	heldRange
	heldCallback
)

// openDevice retains the primary context of a device and describes it.
func openDevice(lib *library, ordinal int) (*Device, error) {
	w := new(words)
	if code := lib.call(procDeviceGet, w.at(0), uintptr(ordinal)); code != driver.Success {
		return nil, lib.failure("Open", code)
	}
	d := &Device{lib: lib, ordinal: uintptr(uint32(w[0])), held: map[resource]struct{}{}, physical: map[driver.Ptr]uintptr{}}
	if err := d.describe(ordinal); err != nil {
		return nil, err
	}
	// Waits poll briefly and then block, so the context's own waits need not spin on a core. If another library has already fixed the
	// flags, that does no harm.
	const scheduleBlockingSync = 4
	lib.call(procPrimaryCtxSetFlags, d.ordinal, scheduleBlockingSync)
	if code := lib.call(procPrimaryCtxRetain, w.at(1), d.ordinal); code != driver.Success {
		err := lib.failure("Open", code)
		if code.Sticky() {
			err.Detail = fmt.Sprintf("device %d was lost to this process by an earlier fault; start a new one", ordinal)
		}
		return nil, err
	}
	d.ctx = uintptr(w[1])
	if logs := lib.procs[procLogsCurrent]; logs != 0 {
		logs.CallKept(d.logs.at(0), 0)
	}
	lib.peers.join(d)
	return d, nil
}

// describe fills d.info.
func (d *Device) describe(ordinal int) error {
	buf, w := make([]byte, 256), new(words)
	bufAt := dl.Address(unsafe.Pointer(&buf[0]))
	defer runtime.KeepAlive(buf)
	text := func() string { s, _, _ := strings.Cut(string(buf), "\x00"); return s }
	in := &d.info
	in.Ordinal, in.Image = ordinal, driver.FormatPTX

	if code := d.lib.call(procDeviceGetName, bufAt, uintptr(len(buf)), d.ordinal); code != driver.Success {
		return d.lib.failure("Open", code)
	}
	in.Name = text()
	if code := d.lib.call(procDeviceGetPCIBusID, bufAt, uintptr(len(buf)), d.ordinal); code != driver.Success {
		return d.lib.failure("Open", code)
	}
	in.PCIBusID = text()
	if code := d.lib.call(procDeviceGetUUID, bufAt, d.ordinal); code != driver.Success {
		return d.lib.failure("Open", code)
	}
	copy(in.UUID[:], buf)
	if code := d.lib.call(procDeviceTotalMem, w.at(0), d.ordinal); code != driver.Success {
		return d.lib.failure("Open", code)
	}
	in.TotalMemory = w[0]
	return d.attributes(w)
}

// attributes reads the device's limits into d.info. The numbers are those of CUdevice_attribute in cuda.h.
func (d *Device) attributes(w *words) error {
	in := &d.info
	var integrated, virtual, pools int
	for _, a := range []struct {
		number uintptr
		to     *int
	}{
		{1, &in.MaxThreadsPerBlock}, {8, &in.SharedPerBlock}, {10, &in.WarpSize}, {13, &in.ClockKHz}, {16, &in.Multiprocessors},
		{18, &integrated}, {102, &virtual}, {115, &pools}, {38, &in.L2Bytes}, {39, &in.MaxThreadsPerSM}, {75, &in.Major}, {76, &in.Minor},
		{81, &in.SharedPerSM},
		{97, &in.SharedPerBlockOptin},
	} {
		if code := d.lib.call(procDeviceGetAttribute, w.at(0), a.number, d.ordinal); code != driver.Success {
			return d.lib.failure("Open", code)
		}
		*a.to = int(int32(w[0]))
	}
	in.Integrated, in.VirtualMemory = integrated != 0, virtual != 0
	if pools != 0 {
		if code := d.lib.call(procDeviceGetDefaultMemPool, w.at(0), d.ordinal); code != driver.Success {
			return d.lib.failure("Open", code)
		}
		d.pool, in.PoolMemory = uintptr(w[0]), true
	}
	return nil
}

// Info describes the device.
func (d *Device) Info() *driver.Info { return &d.info }

// Synchronize blocks until all work of the context is done, including work of other libraries in the process.
func (d *Device) Synchronize(t driver.Thread) error {
	if _, err := d.token("Synchronize", t); err != nil {
		return err
	}
	return d.do("Synchronize", procCtxSynchronize)
}

// hold records a resource that Close must release, unless release comes first.
func (d *Device) hold(kind resourceKind, handle uintptr) { d.holdRange(kind, handle, 0) }

func (d *Device) holdRange(kind resourceKind, handle, size uintptr) {
	d.mu.Lock()
	d.held[resource{kind, handle, size}] = struct{}{}
	d.mu.Unlock()
}

// release is the last step of every free: it calls p and removes the resource. If the device is lost, it returns nil.
func (d *Device) release(op string, kind resourceKind, handle uintptr, p proc) error {
	return d.giveBack(op, resource{kind: kind, handle: handle}, p, handle)
}

// giveBack is release with explicit arguments for the call.
func (d *Device) giveBack(op string, r resource, p proc, args ...uintptr) error {
	// Removed before the call: after it the driver may give the same number to another goroutine.
	d.mu.Lock()
	_, known := d.held[r]
	delete(d.held, r)
	d.mu.Unlock()
	if d.lost.Load() != nil {
		return nil
	}
	if !known && r.size > 0 { // the driver accepts such calls without an error
		return &driver.Error{Call: op, Code: driver.InvalidValue, Detail: "nothing with this address and size is live"}
	}
	code := d.lib.call(p, args...)
	if code == driver.Success {
		return nil
	}
	if known {
		d.holdRange(r.kind, r.handle, r.size)
	}
	if err := d.failure(op, code); d.lost.Load() == nil {
		return err
	}
	return nil
}

// Close waits for all work, releases what the device still holds and then the primary context. It returns the first fault of work that no
// earlier call has reported.
func (d *Device) Close() error {
	var err error
	d.closing.Do(func() {
		err = d.close()
	})
	return err
}

func (d *Device) close() error {
	d.lib.peers.leave(d)
	t := d.Enter()
	defer t.Leave()
	var err error
	if d.lost.Load() == nil {
		err = d.Synchronize(t)
	}
	d.mu.Lock()
	rest := slices.SortedFunc(maps.Keys(d.held), func(a, b resource) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.handle, b.handle))
	})
	d.mu.Unlock()
	for _, r := range rest {
		if r.kind == heldCallback {
			d.UnregisterCallback(driver.CallbackID(r.handle))
			continue
		}
		if r.kind == heldMemory && knob.LookFor("leaks") {
			continue // released with the context below; and a checker that looks for leaks sees what was never freed
		}
		// If this fails, the context below still releases it, unless it is a module, which belongs to no context.
		if r.kind == heldMapping {
			d.unmap("Close", r)
			continue
		}
		d.giveBack("Close", r, releaseProcs[r.kind], r.handle, r.size)
	}
	d.lost.CompareAndSwap(nil, &driver.Error{Code: driver.Deinitialized, Detail: fmt.Sprintf("device %d was closed", d.info.Ordinal)})
	d.lib.call(procCtxSetCurrent, 0)
	if code := d.lib.call(procPrimaryCtxRelease, d.ordinal); code != driver.Success && !code.Sticky() && err == nil {
		err = d.lib.failure("Close", code)
	}
	return err
}

var releaseProcs = [...]proc{
	heldGraphExec:    procGraphExecDestroy,
	heldGraph:        procGraphDestroy,
	heldModule:       procLibraryUnload,
	heldEvent:        procEventDestroy,
	heldStream:       procStreamDestroy,
	heldHostMemory:   procMemFreeHost,
	heldRegistration: procMemHostUnregister,
	heldMemory:       procMemFree,
	heldPoolMemory:   procMemFree,
	heldMapping:      procMemUnmap,
	heldPhysical:     procMemRelease,
	heldRange:        procMemAddressFree,
}

// do makes a call that returns only a code.
func (d *Device) do(op string, p proc, args ...uintptr) error {
	if lost := d.lost.Load(); lost != nil {
		return &driver.Error{Call: op, Code: lost.Code, Detail: lost.Detail}
	}
	if code := d.lib.call(p, args...); code != driver.Success {
		return d.failure(op, code)
	}
	return nil
}

// failure turns a code into the error of a call, adds what the driver's log says about it, and remembers a device fault.
func (d *Device) failure(op string, code driver.Code) error {
	e := d.lib.failure(op, code)
	if e.Detail == "" {
		e.Detail = d.log()
	}
	if code.Sticky() {
		d.lost.CompareAndSwap(nil, e)
	}
	return e
}

// log returns what the driver wrote to its error log since the last failure, or "" if this driver has no log.
func (d *Device) log() string {
	dump := d.lib.procs[procLogsDumpToMemory]
	if dump == 0 || d.lib.procs[procLogsCurrent] == 0 {
		return ""
	}
	buf, w := make([]byte, 4096), new(words)
	w[0] = uint64(len(buf))
	d.mu.Lock()
	defer d.mu.Unlock()
	code := dump.CallKept(d.logs.at(0), dl.Address(unsafe.Pointer(&buf[0])), w.at(0), 0)
	runtime.KeepAlive(w)
	runtime.KeepAlive(buf)
	if driver.Code(int32(code)) != driver.Success {
		return ""
	}
	text, _, _ := strings.Cut(string(buf), "\x00")
	return plainLog(text)
}

// plainLog extracts the sentences of a driver log: its lines are "[time][thread][CUDA][E] sentence", and some only repeat the code.
func plainLog(text string) string {
	var sentences []string
	for line := range strings.Lines(text) {
		if _, after, ok := strings.Cut(line, "[E] "); ok {
			line = after
		}
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "Returning ") || line == "Sticky error detected" || slices.Contains(sentences, line) {
			continue
		}
		sentences = append(sentences, line)
	}
	return strings.Join(sentences, "; ")
}

// failure turns a code into the error of a call.
func (l *library) failure(op string, code driver.Code) *driver.Error {
	e := &driver.Error{Call: op, Code: code}
	if code.Known() {
		return e
	}
	w := new(words)
	if l.call(procGetErrorName, uintptr(uint32(code)), w.at(0)) == driver.Success {
		l.call(procGetErrorString, uintptr(uint32(code)), w.at(1))
		e.Detail = dl.String(uintptr(w[0])) + ": " + dl.String(uintptr(w[1]))
	}
	return e
}
