package faults

import "tenon.dev/internal/driver"

// Synchronize may fail with a device fault.
func (d *Device) Synchronize(t driver.Thread) error {
	if err := d.fail("Synchronize"); err != nil {
		return err
	}
	return d.Device.Synchronize(t)
}

// MemAlloc may fail with OutOfMemory.
func (d *Device) MemAlloc(t driver.Thread, n uint64) (driver.Ptr, error) {
	if err := d.fail("MemAlloc"); err != nil {
		return 0, err
	}
	p, err := d.Device.MemAlloc(t, n)
	return p, d.note(err, func(l *Live) {
		d.blocks[p] = n
		l.Blocks++
		l.Bytes += n
	})
}

// MemFree never fails by injection.
func (d *Device) MemFree(t driver.Thread, p driver.Ptr) error {
	return d.note(d.Device.MemFree(t, p), func(l *Live) { d.forget(l, p) })
}

// MemInfo may fail with a device fault.
func (d *Device) MemInfo(t driver.Thread) (free, total uint64, err error) {
	if err := d.fail("MemInfo"); err != nil {
		return 0, 0, err
	}
	return d.Device.MemInfo(t)
}

// MemReserve may fail with OutOfMemory.
func (d *Device) MemReserve(t driver.Thread, n uint64) (driver.Ptr, error) {
	if err := d.fail("MemReserve"); err != nil {
		return 0, err
	}
	p, err := d.Device.MemReserve(t, n)
	return p, d.note(err, func(l *Live) { l.Ranges++ })
}

// MemUnreserve never fails by injection.
func (d *Device) MemUnreserve(t driver.Thread, p driver.Ptr, n uint64) error {
	return d.note(d.Device.MemUnreserve(t, p, n), func(l *Live) { l.Ranges-- })
}

// MemMap may fail with OutOfMemory.
func (d *Device) MemMap(t driver.Thread, p driver.Ptr, n uint64) error {
	if err := d.fail("MemMap"); err != nil {
		return err
	}
	return d.note(d.Device.MemMap(t, p, n), func(l *Live) {
		l.Blocks++
		l.Bytes += n
	})
}

// MemUnmap never fails by injection. After an injected device fault it waits for the device first: unlike one that has failed, that still
// runs its work.
func (d *Device) MemUnmap(t driver.Thread, p driver.Ptr, n uint64) error {
	d.mu.Lock()
	failed := d.fault != driver.Success
	d.mu.Unlock()
	if failed {
		_ = d.Device.Synchronize(t) // it may be illegal, in a capture
	}
	return d.note(d.Device.MemUnmap(t, p, n), func(l *Live) {
		l.Blocks--
		l.Bytes -= n
	})
}

// MemAllocAsync may fail with OutOfMemory.
func (d *Device) MemAllocAsync(t driver.Thread, n uint64, s driver.Stream) (driver.Ptr, error) {
	if err := d.fail("MemAllocAsync"); err != nil {
		return 0, err
	}
	p, err := d.Device.MemAllocAsync(t, n, s)
	return p, d.note(err, func(l *Live) {
		d.blocks[p] = n
		l.Blocks++
		l.Bytes += n
	})
}

// MemFreeAsync never fails by injection.
func (d *Device) MemFreeAsync(t driver.Thread, p driver.Ptr, s driver.Stream) error {
	return d.note(d.Device.MemFreeAsync(t, p, s), func(l *Live) { d.forget(l, p) })
}

// forget removes the block at p from the live ones.
func (d *Device) forget(l *Live, p driver.Ptr) {
	if n, ok := d.blocks[p]; ok {
		delete(d.blocks, p)
		l.Blocks--
		l.Bytes -= n
	}
}

// PoolTrim fails with an earlier device fault.
func (d *Device) PoolTrim(t driver.Thread, keep uint64) error {
	if err := d.fail("PoolTrim"); err != nil {
		return err
	}
	return d.Device.PoolTrim(t, keep)
}

// PoolKeep fails with an earlier device fault.
func (d *Device) PoolKeep(t driver.Thread, n uint64) error {
	if err := d.fail("PoolKeep"); err != nil {
		return err
	}
	return d.Device.PoolKeep(t, n)
}

// PoolUsage may fail with a device fault.
func (d *Device) PoolUsage(t driver.Thread) (driver.PoolUsage, error) {
	if err := d.fail("PoolUsage"); err != nil {
		return driver.PoolUsage{}, err
	}
	return d.Device.PoolUsage(t)
}

// PoolResetPeaks fails with an earlier device fault.
func (d *Device) PoolResetPeaks(t driver.Thread) error {
	if err := d.fail("PoolResetPeaks"); err != nil {
		return err
	}
	return d.Device.PoolResetPeaks(t)
}

// HostAlloc may fail with OutOfMemory.
func (d *Device) HostAlloc(t driver.Thread, n uint64) ([]byte, error) {
	if err := d.fail("HostAlloc"); err != nil {
		return nil, err
	}
	b, err := d.Device.HostAlloc(t, n)
	return b, d.note(err, func(l *Live) {
		l.HostBlocks++
		l.HostBytes += n
	})
}

// HostFree never fails by injection.
func (d *Device) HostFree(t driver.Thread, b []byte) error {
	return d.note(d.Device.HostFree(t, b), func(l *Live) {
		if len(b) > 0 {
			l.HostBlocks--
			l.HostBytes -= uint64(len(b))
		}
	})
}

// HostRegister may fail with OutOfMemory.
func (d *Device) HostRegister(t driver.Thread, b []byte) error {
	if err := d.fail("HostRegister"); err != nil {
		return err
	}
	return d.note(d.Device.HostRegister(t, b), func(l *Live) {
		l.HostBlocks++
		l.HostBytes += uint64(len(b))
	})
}

// HostUnregister never fails by injection.
func (d *Device) HostUnregister(t driver.Thread, b []byte) error {
	return d.note(d.Device.HostUnregister(t, b), func(l *Live) {
		l.HostBlocks--
		l.HostBytes -= uint64(len(b))
	})
}

// StreamCreate may fail with OutOfMemory.
func (d *Device) StreamCreate(t driver.Thread, nonBlocking bool, priority int) (driver.Stream, error) {
	if err := d.fail("StreamCreate"); err != nil {
		return 0, err
	}
	s, err := d.Device.StreamCreate(t, nonBlocking, priority)
	return s, d.note(err, func(l *Live) { l.Streams++ })
}

// StreamDestroy never fails by injection.
func (d *Device) StreamDestroy(t driver.Thread, s driver.Stream) error {
	return d.note(d.Device.StreamDestroy(t, s), func(l *Live) { l.Streams-- })
}

// StreamQuery may fail with a device fault.
func (d *Device) StreamQuery(t driver.Thread, s driver.Stream) (bool, error) {
	if err := d.fail("StreamQuery"); err != nil {
		return false, err
	}
	return d.Device.StreamQuery(t, s)
}

// StreamSynchronize may fail with a device fault.
func (d *Device) StreamSynchronize(t driver.Thread, s driver.Stream) error {
	if err := d.fail("StreamSynchronize"); err != nil {
		return err
	}
	return d.Device.StreamSynchronize(t, s)
}

// StreamWait may fail with a device fault.
func (d *Device) StreamWait(s driver.Stream, e driver.Event) error {
	if err := d.fail("StreamWait"); err != nil {
		return err
	}
	return d.Device.StreamWait(s, e)
}

// EventCreate may fail with OutOfMemory.
func (d *Device) EventCreate(t driver.Thread, timing bool) (driver.Event, error) {
	if err := d.fail("EventCreate"); err != nil {
		return 0, err
	}
	e, err := d.Device.EventCreate(t, timing)
	return e, d.note(err, func(l *Live) { l.Events++ })
}

// EventDestroy never fails by injection.
func (d *Device) EventDestroy(t driver.Thread, e driver.Event) error {
	return d.note(d.Device.EventDestroy(t, e), func(l *Live) { l.Events-- })
}

// EventRecord may fail with a device fault.
func (d *Device) EventRecord(e driver.Event, s driver.Stream) error {
	if err := d.fail("EventRecord"); err != nil {
		return err
	}
	return d.Device.EventRecord(e, s)
}

// EventQuery may fail with a device fault.
func (d *Device) EventQuery(t driver.Thread, e driver.Event) (bool, error) {
	if err := d.fail("EventQuery"); err != nil {
		return false, err
	}
	return d.Device.EventQuery(t, e)
}

// EventSynchronize may fail with a device fault.
func (d *Device) EventSynchronize(t driver.Thread, e driver.Event) error {
	if err := d.fail("EventSynchronize"); err != nil {
		return err
	}
	return d.Device.EventSynchronize(t, e)
}

// EventElapsed may fail with NotReady or InvalidHandle.
func (d *Device) EventElapsed(t driver.Thread, a, b driver.Event) (float32, error) {
	if err := d.fail("EventElapsed"); err != nil {
		return 0, err
	}
	return d.Device.EventElapsed(t, a, b)
}

// Launch may fail with InvalidValue, LaunchOutOfResources or a device fault.
func (d *Device) Launch(l *driver.Launch) error {
	if err := d.fail("Launch"); err != nil {
		return err
	}
	return d.Device.Launch(l)
}

// CopyDtoD may fail with InvalidValue or a device fault.
func (d *Device) CopyDtoD(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	if err := d.fail("CopyDtoD"); err != nil {
		return err
	}
	return d.Device.CopyDtoD(dst, src, n, s)
}

// CopyPeer may fail with InvalidValue or a device fault.
func (d *Device) CopyPeer(dst driver.Ptr, from int, src driver.Ptr, n uint64, s driver.Stream) error {
	if err := d.fail("CopyPeer"); err != nil {
		return err
	}
	return d.Device.CopyPeer(dst, from, src, n, s)
}

// CopyHtoD may fail with InvalidValue or a device fault.
func (d *Device) CopyHtoD(dst driver.Ptr, src []byte, s driver.Stream) error {
	if err := d.fail("CopyHtoD"); err != nil {
		return err
	}
	return d.Device.CopyHtoD(dst, src, s)
}

// CopyDtoH may fail with InvalidValue or a device fault.
func (d *Device) CopyDtoH(dst []byte, src driver.Ptr, s driver.Stream) error {
	if err := d.fail("CopyDtoH"); err != nil {
		return err
	}
	return d.Device.CopyDtoH(dst, src, s)
}

// Memset may fail with InvalidValue or a device fault.
func (d *Device) Memset(dst driver.Ptr, v uint32, width int, n uint64, s driver.Stream) error {
	if err := d.fail("Memset"); err != nil {
		return err
	}
	return d.Device.Memset(dst, v, width, n, s)
}

// Callback may fail with a device fault.
func (d *Device) Callback(s driver.Stream, id driver.CallbackID) error {
	if err := d.fail("Callback"); err != nil {
		return err
	}
	return d.Device.Callback(s, id)
}

// RegisterCallback counts the function as live.
func (d *Device) RegisterCallback(fn func()) driver.CallbackID {
	id := d.Device.RegisterCallback(fn)
	d.note(nil, func(l *Live) { l.Callbacks++ })
	return id
}

// UnregisterCallback removes id.
func (d *Device) UnregisterCallback(id driver.CallbackID) {
	d.Device.UnregisterCallback(id)
	d.note(nil, func(l *Live) { l.Callbacks-- })
}

// CaptureBegin may fail with StreamCaptureUnsupported.
func (d *Device) CaptureBegin(t driver.Thread, s driver.Stream, mode driver.CaptureMode) error {
	if err := d.fail("CaptureBegin"); err != nil {
		return err
	}
	return d.Device.CaptureBegin(t, s, mode)
}

// CaptureEnd may fail with StreamCaptureUnjoined or StreamCaptureInvalidated; the capture has still ended then.
func (d *Device) CaptureEnd(t driver.Thread, s driver.Stream) (driver.Graph, error) {
	injected := d.fail("CaptureEnd")
	g, err := d.Device.CaptureEnd(t, s)
	if injected != nil {
		if err == nil {
			d.Device.GraphDestroy(t, g)
		}
		return 0, injected
	}
	return g, d.note(err, func(l *Live) { l.Graphs++ })
}

// CaptureInfo fails with an earlier device fault.
func (d *Device) CaptureInfo(s driver.Stream) (driver.CaptureStatus, uint64, error) {
	if err := d.fail("CaptureInfo"); err != nil {
		return 0, 0, err
	}
	return d.Device.CaptureInfo(s)
}

// CaptureNode may fail with StreamCaptureInvalidated.
func (d *Device) CaptureNode(s driver.Stream) (driver.Node, error) {
	if err := d.fail("CaptureNode"); err != nil {
		return 0, err
	}
	return d.Device.CaptureNode(s)
}

// CaptureExchangeMode passes the call on, even after a device fault: a thread must be able to restore its mode.
func (d *Device) CaptureExchangeMode(t driver.Thread, mode driver.CaptureMode) (driver.CaptureMode, error) {
	return d.Device.CaptureExchangeMode(t, mode)
}

// GraphNodes fails with an earlier device fault.
func (d *Device) GraphNodes(g driver.Graph) (int, error) {
	if err := d.fail("GraphNodes"); err != nil {
		return 0, err
	}
	return d.Device.GraphNodes(g)
}

// GraphInstantiate may fail with OutOfMemory.
func (d *Device) GraphInstantiate(t driver.Thread, g driver.Graph) (driver.GraphExec, error) {
	if err := d.fail("GraphInstantiate"); err != nil {
		return 0, err
	}
	e, err := d.Device.GraphInstantiate(t, g)
	return e, d.note(err, func(l *Live) { l.Execs++ })
}

// GraphLaunch may fail with a device fault.
func (d *Device) GraphLaunch(e driver.GraphExec, s driver.Stream) error {
	if err := d.fail("GraphLaunch"); err != nil {
		return err
	}
	return d.Device.GraphLaunch(e, s)
}

// GraphSetLaunch may fail with InvalidValue, LaunchOutOfResources or a device fault.
func (d *Device) GraphSetLaunch(t driver.Thread, e driver.GraphExec, n driver.Node, l *driver.Launch) error {
	if err := d.fail("GraphSetLaunch"); err != nil {
		return err
	}
	return d.Device.GraphSetLaunch(t, e, n, l)
}

// GraphSetCopy may fail with InvalidValue or a device fault.
func (d *Device) GraphSetCopy(t driver.Thread, e driver.GraphExec, n driver.Node, dst, src driver.Ptr, bytes uint64) error {
	if err := d.fail("GraphSetCopy"); err != nil {
		return err
	}
	return d.Device.GraphSetCopy(t, e, n, dst, src, bytes)
}

// GraphSetMemset may fail with InvalidValue or a device fault.
func (d *Device) GraphSetMemset(t driver.Thread, e driver.GraphExec, n driver.Node, dst driver.Ptr, v uint32, width int,
	count uint64) error {
	if err := d.fail("GraphSetMemset"); err != nil {
		return err
	}
	return d.Device.GraphSetMemset(t, e, n, dst, v, width, count)
}

// GraphChain may fail with OutOfMemory, InvalidValue or a device fault.
func (d *Device) GraphChain(t driver.Thread, work []driver.ChainWork) (driver.Graph, []driver.Node, error) {
	if err := d.fail("GraphChain"); err != nil {
		return 0, nil, err
	}
	g, nodes, err := d.Device.GraphChain(t, work)
	return g, nodes, d.note(err, func(l *Live) { l.Graphs++ })
}

// GraphSetEvent may fail with InvalidValue or a device fault.
func (d *Device) GraphSetEvent(t driver.Thread, e driver.GraphExec, n driver.Node, ev driver.Event) error {
	if err := d.fail("GraphSetEvent"); err != nil {
		return err
	}
	return d.Device.GraphSetEvent(t, e, n, ev)
}

// GraphDestroy never fails by injection.
func (d *Device) GraphDestroy(t driver.Thread, g driver.Graph) error {
	return d.note(d.Device.GraphDestroy(t, g), func(l *Live) { l.Graphs-- })
}

// GraphExecDestroy never fails by injection.
func (d *Device) GraphExecDestroy(t driver.Thread, e driver.GraphExec) error {
	return d.note(d.Device.GraphExecDestroy(t, e), func(l *Live) { l.Execs-- })
}

// GraphDot may fail with OperatingSystem.
func (d *Device) GraphDot(t driver.Thread, g driver.Graph, path string) error {
	if err := d.fail("GraphDot"); err != nil {
		return err
	}
	return d.Device.GraphDot(t, g, path)
}

// LoadModule may fail with InvalidPTX or NoBinaryForGPU.
func (d *Device) LoadModule(t driver.Thread, text []byte) (driver.Module, error) {
	if err := d.fail("LoadModule"); err != nil {
		return 0, err
	}
	m, err := d.Device.LoadModule(t, text)
	return m, d.note(err, func(l *Live) { l.Modules++ })
}

// UnloadModule never fails by injection.
func (d *Device) UnloadModule(t driver.Thread, m driver.Module) error {
	return d.note(d.Device.UnloadModule(t, m), func(l *Live) { l.Modules-- })
}

// Function may fail with NotFound.
func (d *Device) Function(t driver.Thread, m driver.Module, name string) (driver.Func, error) {
	if err := d.fail("Function"); err != nil {
		return 0, err
	}
	return d.Device.Function(t, m, name)
}

// FuncInfo fails with an earlier device fault.
func (d *Device) FuncInfo(t driver.Thread, f driver.Func) (driver.FuncInfo, error) {
	if err := d.fail("FuncInfo"); err != nil {
		return driver.FuncInfo{}, err
	}
	return d.Device.FuncInfo(t, f)
}

// SetMaxShared may fail with InvalidValue.
func (d *Device) SetMaxShared(t driver.Thread, f driver.Func, n int) error {
	if err := d.fail("SetMaxShared"); err != nil {
		return err
	}
	return d.Device.SetMaxShared(t, f, n)
}
