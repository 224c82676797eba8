package record

import (
	"fmt"
	"strings"
	"unsafe"

	"tenon.dev/internal/driver"
)

// hostPtr returns the address of host memory, for its name.
func hostPtr(b []byte) driver.Ptr { return driver.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// host returns the name and length of page-locked memory, or "pageable" and the length.
func (d *Device) host(b []byte) string {
	p := hostPtr(b)
	for _, k := range d.blocks {
		if p >= k.p && uint64(p-k.p) < k.n {
			return fmt.Sprintf("%s[%d]", d.ptr(p), len(b))
		}
	}
	return fmt.Sprintf("pageable[%d]", len(b))
}

// Synchronize is recorded without arguments.
func (d *Device) Synchronize(t driver.Thread) error {
	err := d.Device.Synchronize(t)
	d.add("Synchronize", err, func() string { return "" })
	return err
}

// Close is recorded without arguments.
func (d *Device) Close() error {
	err := d.Device.Close()
	d.add("Close", err, func() string { return "" })
	return err
}

// MemAlloc is recorded with the size and the new name.
func (d *Device) MemAlloc(t driver.Thread, n uint64) (driver.Ptr, error) {
	p, err := d.Device.MemAlloc(t, n)
	d.add("MemAlloc", err, func() string { return fmt.Sprint(n) + d.alloc("mem", p, n, err) })
	return p, err
}

// MemFree is recorded with the block.
func (d *Device) MemFree(t driver.Thread, p driver.Ptr) error {
	d.mu.Lock()
	name := d.ptr(p)
	d.free(p) // before the call, since another goroutine may get the address right after it
	d.mu.Unlock()
	err := d.Device.MemFree(t, p)
	d.add("MemFree", err, func() string { return name })
	return err
}

// MemInfo is recorded without its results, which depend on the device.
func (d *Device) MemInfo(t driver.Thread) (free, total uint64, err error) {
	free, total, err = d.Device.MemInfo(t)
	d.add("MemInfo", err, func() string { return "" })
	return free, total, err
}

// MemReserve is recorded with the size and the new name.
func (d *Device) MemReserve(t driver.Thread, n uint64) (driver.Ptr, error) {
	p, err := d.Device.MemReserve(t, n)
	d.add("MemReserve", err, func() string { return fmt.Sprint(n) + d.alloc("range", p, n, err) })
	return p, err
}

// MemUnreserve is recorded with the range.
func (d *Device) MemUnreserve(t driver.Thread, p driver.Ptr, n uint64) error {
	d.mu.Lock()
	name := d.ptr(p)
	d.free(p)
	d.mu.Unlock()
	err := d.Device.MemUnreserve(t, p, n)
	d.add("MemUnreserve", err, func() string { return name })
	return err
}

// MemMap is recorded with the address in its range and the size.
func (d *Device) MemMap(t driver.Thread, p driver.Ptr, n uint64) error {
	err := d.Device.MemMap(t, p, n)
	d.add("MemMap", err, func() string { return fmt.Sprintf("%s, %d", d.ptr(p), n) })
	return err
}

// MemUnmap is recorded as MemMap is.
func (d *Device) MemUnmap(t driver.Thread, p driver.Ptr, n uint64) error {
	err := d.Device.MemUnmap(t, p, n)
	d.add("MemUnmap", err, func() string { return fmt.Sprintf("%s, %d", d.ptr(p), n) })
	return err
}

// MemAllocAsync is recorded with the size, the stream and the new name.
func (d *Device) MemAllocAsync(t driver.Thread, n uint64, s driver.Stream) (driver.Ptr, error) {
	p, err := d.Device.MemAllocAsync(t, n, s)
	d.add("MemAllocAsync", err, func() string { return fmt.Sprintf("%d, %s", n, d.stream(s)) + d.alloc("mem", p, n, err) })
	return p, err
}

// MemFreeAsync is recorded with the block and the stream.
func (d *Device) MemFreeAsync(t driver.Thread, p driver.Ptr, s driver.Stream) error {
	d.mu.Lock()
	name := d.ptr(p)
	d.free(p)
	d.mu.Unlock()
	err := d.Device.MemFreeAsync(t, p, s)
	d.add("MemFreeAsync", err, func() string { return name + ", " + d.stream(s) })
	return err
}

// PoolTrim is recorded with the bytes kept.
func (d *Device) PoolTrim(t driver.Thread, keep uint64) error {
	err := d.Device.PoolTrim(t, keep)
	d.add("PoolTrim", err, func() string { return fmt.Sprint(keep) })
	return err
}

// PoolKeep is recorded with the bytes.
func (d *Device) PoolKeep(t driver.Thread, n uint64) error {
	err := d.Device.PoolKeep(t, n)
	d.add("PoolKeep", err, func() string { return fmt.Sprint(n) })
	return err
}

// PoolUsage is recorded without its results, which depend on the device.
func (d *Device) PoolUsage(t driver.Thread) (driver.PoolUsage, error) {
	u, err := d.Device.PoolUsage(t)
	d.add("PoolUsage", err, func() string { return "" })
	return u, err
}

// PoolResetPeaks is recorded without arguments.
func (d *Device) PoolResetPeaks(t driver.Thread) error {
	err := d.Device.PoolResetPeaks(t)
	d.add("PoolResetPeaks", err, func() string { return "" })
	return err
}

// HostAlloc is recorded with the size and the new name.
func (d *Device) HostAlloc(t driver.Thread, n uint64) ([]byte, error) {
	b, err := d.Device.HostAlloc(t, n)
	d.add("HostAlloc", err, func() string { return fmt.Sprint(n) + d.alloc("host", hostPtr(b), n, err) })
	return b, err
}

// HostFree is recorded with the block.
func (d *Device) HostFree(t driver.Thread, b []byte) error {
	d.mu.Lock()
	name := d.host(b)
	d.free(hostPtr(b))
	d.mu.Unlock()
	err := d.Device.HostFree(t, b)
	d.add("HostFree", err, func() string { return name })
	return err
}

// HostRegister is recorded with the size and the new name.
func (d *Device) HostRegister(t driver.Thread, b []byte) error {
	err := d.Device.HostRegister(t, b)
	d.add("HostRegister", err, func() string { return fmt.Sprint(len(b)) + d.alloc("host", hostPtr(b), uint64(len(b)), err) })
	return err
}

// HostUnregister is recorded with the block.
func (d *Device) HostUnregister(t driver.Thread, b []byte) error {
	d.mu.Lock()
	name := d.host(b)
	d.free(hostPtr(b))
	d.mu.Unlock()
	err := d.Device.HostUnregister(t, b)
	d.add("HostUnregister", err, func() string { return name })
	return err
}

// StreamCreate is recorded with its arguments and the new name.
func (d *Device) StreamCreate(t driver.Thread, nonBlocking bool, priority int) (driver.Stream, error) {
	s, err := d.Device.StreamCreate(t, nonBlocking, priority)
	d.add("StreamCreate", err, func() string {
		kind := "blocking"
		if nonBlocking {
			kind = "nonblocking"
		}
		return fmt.Sprintf("%s, priority %d", kind, priority) + d.made("stream", uintptr(s), err)
	})
	return s, err
}

// StreamDestroy is recorded with the stream.
func (d *Device) StreamDestroy(t driver.Thread, s driver.Stream) error {
	err := d.Device.StreamDestroy(t, s)
	d.add("StreamDestroy", err, func() string { return d.stream(s) })
	return err
}

// StreamQuery is recorded with the stream and the result.
func (d *Device) StreamQuery(t driver.Thread, s driver.Stream) (bool, error) {
	done, err := d.Device.StreamQuery(t, s)
	d.add("StreamQuery", err, func() string { return fmt.Sprintf("%s -> %v", d.stream(s), done) })
	return done, err
}

// StreamSynchronize is recorded with the stream.
func (d *Device) StreamSynchronize(t driver.Thread, s driver.Stream) error {
	err := d.Device.StreamSynchronize(t, s)
	d.add("StreamSynchronize", err, func() string { return d.stream(s) })
	return err
}

// StreamWait is recorded with the stream and the event.
func (d *Device) StreamWait(s driver.Stream, e driver.Event) error {
	err := d.Device.StreamWait(s, e)
	d.add("StreamWait", err, func() string { return d.stream(s) + ", " + d.name("event", uintptr(e)) })
	return err
}

// EventCreate is recorded with its argument and the new name.
func (d *Device) EventCreate(t driver.Thread, timing bool) (driver.Event, error) {
	e, err := d.Device.EventCreate(t, timing)
	d.add("EventCreate", err, func() string { return fmt.Sprintf("timing %v", timing) + d.made("event", uintptr(e), err) })
	return e, err
}

// EventDestroy is recorded with the event.
func (d *Device) EventDestroy(t driver.Thread, e driver.Event) error {
	err := d.Device.EventDestroy(t, e)
	d.add("EventDestroy", err, func() string { return d.name("event", uintptr(e)) })
	return err
}

// EventRecord is recorded with the event and the stream.
func (d *Device) EventRecord(e driver.Event, s driver.Stream) error {
	err := d.Device.EventRecord(e, s)
	d.add("EventRecord", err, func() string { return d.name("event", uintptr(e)) + ", " + d.stream(s) })
	return err
}

// EventQuery is recorded with the event and the result.
func (d *Device) EventQuery(t driver.Thread, e driver.Event) (bool, error) {
	done, err := d.Device.EventQuery(t, e)
	d.add("EventQuery", err, func() string { return fmt.Sprintf("%s -> %v", d.name("event", uintptr(e)), done) })
	return done, err
}

// EventSynchronize is recorded with the event.
func (d *Device) EventSynchronize(t driver.Thread, e driver.Event) error {
	err := d.Device.EventSynchronize(t, e)
	d.add("EventSynchronize", err, func() string { return d.name("event", uintptr(e)) })
	return err
}

// EventElapsed is recorded with the events, without the time.
func (d *Device) EventElapsed(t driver.Thread, a, b driver.Event) (float32, error) {
	ms, err := d.Device.EventElapsed(t, a, b)
	d.add("EventElapsed", err, func() string { return d.name("event", uintptr(a)) + ", " + d.name("event", uintptr(b)) })
	return ms, err
}

// Launch is recorded with the kernel's name, its stream and its shape.
func (d *Device) Launch(l *driver.Launch) error {
	err := d.Device.Launch(l)
	d.add("Launch", err, func() string { return d.name("func", uintptr(l.Func)) + ", " + d.stream(l.Stream) + shape(l) })
	return err
}

// shape returns a launch's shape as the end of a line.
func shape(l *driver.Launch) string {
	s := fmt.Sprintf(", grid %v, block %v", l.Grid, l.Block)
	if l.Shared > 0 {
		s += fmt.Sprintf(", shared %d", l.Shared)
	}
	return s
}

// CopyDtoD is recorded with its arguments.
func (d *Device) CopyDtoD(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	err := d.Device.CopyDtoD(dst, src, n, s)
	d.add("CopyDtoD", err, func() string { return fmt.Sprintf("%s, %s, %d, %s", d.ptr(dst), d.ptr(src), n, d.stream(s)) })
	return err
}

// CopyPeer is recorded with its arguments. The other device's address appears as a number, since its name is known only on that device.
func (d *Device) CopyPeer(dst driver.Ptr, from int, src driver.Ptr, n uint64, s driver.Stream) error {
	err := d.Device.CopyPeer(dst, from, src, n, s)
	d.add("CopyPeer", err, func() string {
		return fmt.Sprintf("%s, device %d, %#x, %d, %s", d.ptr(dst), from, uint64(src), n, d.stream(s))
	})
	return err
}

// CopyHtoD is recorded with its arguments.
func (d *Device) CopyHtoD(dst driver.Ptr, src []byte, s driver.Stream) error {
	err := d.Device.CopyHtoD(dst, src, s)
	d.add("CopyHtoD", err, func() string { return fmt.Sprintf("%s, %s, %s", d.ptr(dst), d.host(src), d.stream(s)) })
	return err
}

// CopyDtoH is recorded with its arguments.
func (d *Device) CopyDtoH(dst []byte, src driver.Ptr, s driver.Stream) error {
	err := d.Device.CopyDtoH(dst, src, s)
	d.add("CopyDtoH", err, func() string { return fmt.Sprintf("%s, %s, %s", d.host(dst), d.ptr(src), d.stream(s)) })
	return err
}

// Memset is recorded with its arguments.
func (d *Device) Memset(dst driver.Ptr, v uint32, width int, n uint64, s driver.Stream) error {
	err := d.Device.Memset(dst, v, width, n, s)
	d.add("Memset", err, func() string { return fmt.Sprintf("%s, %#x, width %d, %d, %s", d.ptr(dst), v, width, n, d.stream(s)) })
	return err
}

// Callback is recorded with the stream and the function's name.
func (d *Device) Callback(s driver.Stream, id driver.CallbackID) error {
	err := d.Device.Callback(s, id)
	d.add("Callback", err, func() string { return d.stream(s) + ", " + d.name("callback", uintptr(id)) })
	return err
}

// RegisterCallback is recorded with the new name.
func (d *Device) RegisterCallback(fn func()) driver.CallbackID {
	id := d.Device.RegisterCallback(fn)
	d.add("RegisterCallback", nil, func() string { return d.made("callback", uintptr(id), nil)[1:] })
	return id
}

// UnregisterCallback is recorded with the function's name.
func (d *Device) UnregisterCallback(id driver.CallbackID) {
	d.Device.UnregisterCallback(id)
	d.add("UnregisterCallback", nil, func() string { return d.name("callback", uintptr(id)) })
}

var modeNames = map[driver.CaptureMode]string{driver.CaptureGlobal: "global", driver.CaptureThreadLocal: "thread-local",
	driver.CaptureRelaxed: "relaxed"}

// CaptureBegin is recorded with the stream and the mode.
func (d *Device) CaptureBegin(t driver.Thread, s driver.Stream, mode driver.CaptureMode) error {
	err := d.Device.CaptureBegin(t, s, mode)
	d.add("CaptureBegin", err, func() string { return d.stream(s) + ", " + modeNames[mode] })
	return err
}

// CaptureEnd is recorded with the stream and the graph's new name.
func (d *Device) CaptureEnd(t driver.Thread, s driver.Stream) (driver.Graph, error) {
	g, err := d.Device.CaptureEnd(t, s)
	d.add("CaptureEnd", err, func() string { return d.stream(s) + d.made("graph", uintptr(g), err) })
	return g, err
}

// CaptureInfo is recorded with the stream and its status.
func (d *Device) CaptureInfo(s driver.Stream) (driver.CaptureStatus, uint64, error) {
	st, id, err := d.Device.CaptureInfo(s)
	d.add("CaptureInfo", err, func() string {
		return d.stream(s) + " -> " + [...]string{"none", "active", "invalidated"}[st]
	})
	return st, id, err
}

// CaptureNode is recorded with the stream and the node's new name.
func (d *Device) CaptureNode(s driver.Stream) (driver.Node, error) {
	n, err := d.Device.CaptureNode(s)
	d.add("CaptureNode", err, func() string { return d.stream(s) + d.made("node", uintptr(n), err) })
	return n, err
}

// CaptureExchangeMode is recorded with both modes.
func (d *Device) CaptureExchangeMode(t driver.Thread, mode driver.CaptureMode) (driver.CaptureMode, error) {
	old, err := d.Device.CaptureExchangeMode(t, mode)
	d.add("CaptureExchangeMode", err, func() string { return modeNames[mode] + " -> " + modeNames[old] })
	return old, err
}

// GraphNodes is recorded with the graph and the number of nodes.
func (d *Device) GraphNodes(g driver.Graph) (int, error) {
	n, err := d.Device.GraphNodes(g)
	d.add("GraphNodes", err, func() string { return fmt.Sprintf("%s -> %d", d.name("graph", uintptr(g)), n) })
	return n, err
}

// GraphInstantiate is recorded with the graph and the new name.
func (d *Device) GraphInstantiate(t driver.Thread, g driver.Graph) (driver.GraphExec, error) {
	e, err := d.Device.GraphInstantiate(t, g)
	d.add("GraphInstantiate", err, func() string { return d.name("graph", uintptr(g)) + d.made("exec", uintptr(e), err) })
	return e, err
}

// GraphLaunch is recorded with the executable and the stream.
func (d *Device) GraphLaunch(e driver.GraphExec, s driver.Stream) error {
	err := d.Device.GraphLaunch(e, s)
	d.add("GraphLaunch", err, func() string { return d.name("exec", uintptr(e)) + ", " + d.stream(s) })
	return err
}

// GraphSetLaunch is recorded with the executable, the node, the kernel's name and its shape.
func (d *Device) GraphSetLaunch(t driver.Thread, e driver.GraphExec, n driver.Node, l *driver.Launch) error {
	err := d.Device.GraphSetLaunch(t, e, n, l)
	d.add("GraphSetLaunch", err, func() string {
		return fmt.Sprintf("%s, %s, %s%s", d.name("exec", uintptr(e)), d.name("node", uintptr(n)), d.name("func", uintptr(l.Func)),
			shape(l))
	})
	return err
}

// GraphSetCopy is recorded with its arguments.
func (d *Device) GraphSetCopy(t driver.Thread, e driver.GraphExec, n driver.Node, dst, src driver.Ptr, bytes uint64) error {
	err := d.Device.GraphSetCopy(t, e, n, dst, src, bytes)
	d.add("GraphSetCopy", err, func() string {
		return fmt.Sprintf("%s, %s, %s, %s, %d", d.name("exec", uintptr(e)), d.name("node", uintptr(n)), d.ptr(dst), d.ptr(src), bytes)
	})
	return err
}

// GraphSetMemset is recorded with its arguments.
func (d *Device) GraphSetMemset(t driver.Thread, e driver.GraphExec, n driver.Node, dst driver.Ptr, v uint32, width int,
	count uint64) error {
	err := d.Device.GraphSetMemset(t, e, n, dst, v, width, count)
	d.add("GraphSetMemset", err, func() string {
		return fmt.Sprintf("%s, %s, %s, %#x, width %d, %d", d.name("exec", uintptr(e)), d.name("node", uintptr(n)),
			d.ptr(dst), v, width, count)
	})
	return err
}

// GraphChain is recorded with the work and the new names of the graph and its nodes.
func (d *Device) GraphChain(t driver.Thread, work []driver.ChainWork) (driver.Graph, []driver.Node, error) {
	g, nodes, err := d.Device.GraphChain(t, work)
	d.add("GraphChain", err, func() string {
		var parts []string
		for i := range work {
			part := d.piece(&work[i])
			if err == nil {
				part += d.made("node", uintptr(nodes[i]), nil)
			}
			parts = append(parts, part)
		}
		return "[" + strings.Join(parts, "; ") + "]" + d.made("graph", uintptr(g), err)
	})
	return g, nodes, err
}

// piece describes a piece of a chain.
func (d *Device) piece(w *driver.ChainWork) string {
	switch {
	case w.Launch != nil:
		return d.name("func", uintptr(w.Launch.Func)) + shape(w.Launch)
	case w.N > 0 && w.Src != 0:
		return fmt.Sprintf("copy %s, %s, %d", d.ptr(w.Dst), d.ptr(w.Src), w.N)
	case w.N > 0:
		return fmt.Sprintf("fill %s, %#x, %d", d.ptr(w.Dst), w.Value, w.N)
	}
	return d.name("event", uintptr(w.Event))
}

// GraphSetEvent is recorded with its arguments.
func (d *Device) GraphSetEvent(t driver.Thread, e driver.GraphExec, n driver.Node, ev driver.Event) error {
	err := d.Device.GraphSetEvent(t, e, n, ev)
	d.add("GraphSetEvent", err, func() string {
		return fmt.Sprintf("%s, %s, %s", d.name("exec", uintptr(e)), d.name("node", uintptr(n)), d.name("event", uintptr(ev)))
	})
	return err
}

// GraphDestroy is recorded with the graph.
func (d *Device) GraphDestroy(t driver.Thread, g driver.Graph) error {
	err := d.Device.GraphDestroy(t, g)
	d.add("GraphDestroy", err, func() string { return d.name("graph", uintptr(g)) })
	return err
}

// GraphExecDestroy is recorded with the executable.
func (d *Device) GraphExecDestroy(t driver.Thread, e driver.GraphExec) error {
	err := d.Device.GraphExecDestroy(t, e)
	d.add("GraphExecDestroy", err, func() string { return d.name("exec", uintptr(e)) })
	return err
}

// GraphDot is recorded with the graph, without the path.
func (d *Device) GraphDot(t driver.Thread, g driver.Graph, path string) error {
	err := d.Device.GraphDot(t, g, path)
	d.add("GraphDot", err, func() string { return d.name("graph", uintptr(g)) })
	return err
}

// LoadModule is recorded with the new name.
func (d *Device) LoadModule(t driver.Thread, text []byte) (driver.Module, error) {
	m, err := d.Device.LoadModule(t, text)
	d.add("LoadModule", err, func() string { return fmt.Sprintf("%d bytes", len(text)) + d.made("module", uintptr(m), err) })
	return m, err
}

// UnloadModule is recorded with the module.
func (d *Device) UnloadModule(t driver.Thread, m driver.Module) error {
	err := d.Device.UnloadModule(t, m)
	d.add("UnloadModule", err, func() string { return d.name("module", uintptr(m)) })
	return err
}

// Function is recorded with the module and the kernel's name, which later launches are recorded by.
func (d *Device) Function(t driver.Thread, m driver.Module, name string) (driver.Func, error) {
	f, err := d.Device.Function(t, m, name)
	d.add("Function", err, func() string {
		if err == nil {
			d.names[handle{"func", uint64(f)}] = name
		}
		return d.name("module", uintptr(m)) + ", " + name
	})
	return f, err
}

// FuncInfo is recorded with the kernel's name.
func (d *Device) FuncInfo(t driver.Thread, f driver.Func) (driver.FuncInfo, error) {
	i, err := d.Device.FuncInfo(t, f)
	d.add("FuncInfo", err, func() string { return d.name("func", uintptr(f)) })
	return i, err
}

// SetMaxShared is recorded with the kernel's name and the limit.
func (d *Device) SetMaxShared(t driver.Thread, f driver.Func, n int) error {
	err := d.Device.SetMaxShared(t, f, n)
	d.add("SetMaxShared", err, func() string { return fmt.Sprintf("%s, %d", d.name("func", uintptr(f)), n) })
	return err
}
