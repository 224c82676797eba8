package drivertest

import (
	"encoding/binary"
	"path/filepath"

	"tenon.dev/internal/driver"
)

// contextRows are the calls on the device and its memory.
func contextRows() []legalityRow {
	return []legalityRow{
		{name: "Synchronize", call: func(c *legalityCell) error { return c.d.Synchronize(c.t) }},
		{name: "MemAlloc", call: func(c *legalityCell) error {
			p, err := c.d.MemAlloc(c.t, 4096)
			if err == nil {
				c.later(func() { c.d.MemFree(c.th, p) })
			}
			return err
		}},
		{name: "MemFree", setup: func(c *legalityCell) {
			var err error
			c.mem, err = c.d.MemAlloc(c.th, 4096)
			c.ok(err)
		}, call: func(c *legalityCell) error {
			err := c.d.MemFree(c.t, c.mem)
			if err != nil {
				c.later(func() { c.d.MemFree(c.th, c.mem) })
			}
			return err
		}},
		{name: "MemInfo", call: func(c *legalityCell) error { _, _, err := c.d.MemInfo(c.t); return err }},
		{name: "HostAlloc", call: func(c *legalityCell) error {
			b, err := c.d.HostAlloc(c.t, 4096)
			if err == nil {
				c.later(func() { c.d.HostFree(c.th, b) })
			}
			return err
		}},
		{name: "HostFree", setup: func(c *legalityCell) {
			var err error
			c.host, err = c.d.HostAlloc(c.th, 4096)
			c.ok(err)
		}, call: func(c *legalityCell) error {
			err := c.d.HostFree(c.t, c.host)
			if err != nil {
				c.later(func() { c.d.HostFree(c.th, c.host) })
			}
			return err
		}},
		{name: "HostRegister", call: func(c *legalityCell) error {
			b := make([]byte, 4096)
			err := c.d.HostRegister(c.t, b)
			if err == nil {
				c.later(func() { c.d.HostUnregister(c.th, b) })
			}
			return err
		}},
	}
}

// streamRows are the calls on streams.
func streamRows() []legalityRow {
	query := func(s driver.Stream, c *legalityCell) error { _, err := c.d.StreamQuery(c.t, s); return err }
	return []legalityRow{
		{name: "StreamCreate", call: func(c *legalityCell) error {
			s, err := c.d.StreamCreate(c.t, true, 0)
			if err == nil {
				c.later(func() { c.d.StreamDestroy(c.th, s) })
			}
			return err
		}},
		{name: "StreamDestroy(idle)", setup: func(c *legalityCell) {
			s, err := c.d.StreamCreate(c.th, true, 0)
			c.ok(err)
			c.extra = uintptr(s)
		}, call: func(c *legalityCell) error { return c.d.StreamDestroy(c.t, driver.Stream(c.extra)) }},
		{name: "StreamQuery(s)", call: func(c *legalityCell) error { return query(c.s, c) }},
		{name: "StreamQuery(idle)", call: func(c *legalityCell) error { return query(c.idle, c) }},
		{name: "StreamQuery(legacy)", call: func(c *legalityCell) error { return query(driver.StreamLegacy, c) }},
		{name: "StreamQuery(legacy), s blocking", blocking: true, call: func(c *legalityCell) error {
			return query(driver.StreamLegacy, c)
		}},
		{name: "StreamSynchronize(s)", call: func(c *legalityCell) error { return c.d.StreamSynchronize(c.t, c.s) }},
		{name: "StreamSynchronize(idle)", call: func(c *legalityCell) error { return c.d.StreamSynchronize(c.t, c.idle) }},
		{name: "StreamSynchronize(legacy)", call: func(c *legalityCell) error { return c.d.StreamSynchronize(c.t, driver.StreamLegacy) }},
		{name: "StreamSynchronize(legacy), s blocking", blocking: true,
			call: func(c *legalityCell) error { return c.d.StreamSynchronize(c.t, driver.StreamLegacy) }},
		{name: "StreamWait(s, plain)", call: func(c *legalityCell) error { return c.d.StreamWait(c.s, c.plain) }},
		{name: "StreamWait(s, never recorded)", call: func(c *legalityCell) error { return c.d.StreamWait(c.s, c.never) }},
		{name: "StreamWait(s, captured)", call: func(c *legalityCell) error { return c.d.StreamWait(c.s, c.captured) }},
		{name: "StreamWait(idle, plain)", call: func(c *legalityCell) error { return c.d.StreamWait(c.idle, c.plain) }},
		{name: "StreamWait(idle, captured)", call: func(c *legalityCell) error { return c.d.StreamWait(c.idle, c.captured) }},
		{name: "StreamWait(legacy, captured)", call: func(c *legalityCell) error {
			return c.d.StreamWait(driver.StreamLegacy, c.captured)
		}},
	}
}

// eventRows are the calls on events.
func eventRows() []legalityRow {
	query := func(e driver.Event, c *legalityCell) error { _, err := c.d.EventQuery(c.t, e); return err }
	return []legalityRow{
		{name: "EventCreate", call: func(c *legalityCell) error {
			e, err := c.d.EventCreate(c.t, false)
			if err == nil {
				c.later(func() { c.d.EventDestroy(c.th, e) })
			}
			return err
		}},
		{name: "EventDestroy(plain)", setup: func(c *legalityCell) {
			e, err := c.d.EventCreate(c.th, false)
			c.ok(err)
			c.extra = uintptr(e)
		}, call: func(c *legalityCell) error { return c.d.EventDestroy(c.t, driver.Event(c.extra)) }},
		{name: "EventDestroy(captured)", setup: func(c *legalityCell) {
			e, err := c.d.EventCreate(c.th, false)
			c.ok(err)
			c.extra = uintptr(e)
		}, in: func(c *legalityCell) { c.ok(c.d.EventRecord(driver.Event(c.extra), c.s)) },
			call: func(c *legalityCell) error { return c.d.EventDestroy(c.t, driver.Event(c.extra)) }},
		{name: "EventRecord(never recorded, s)", call: func(c *legalityCell) error { return c.d.EventRecord(c.never, c.s) }},
		{name: "EventRecord(plain, s)", call: func(c *legalityCell) error { return c.d.EventRecord(c.plain, c.s) }},
		{name: "EventRecord(plain, idle)", call: func(c *legalityCell) error { return c.d.EventRecord(c.plain, c.idle) }},
		{name: "EventRecord(captured, idle)", call: func(c *legalityCell) error { return c.d.EventRecord(c.captured, c.idle) }},
		{name: "EventQuery(plain)", call: func(c *legalityCell) error { return query(c.plain, c) }},
		{name: "EventQuery(never recorded)", call: func(c *legalityCell) error { return query(c.never, c) }},
		{name: "EventQuery(captured)", call: func(c *legalityCell) error { return query(c.captured, c) }},
		{name: "EventSynchronize(plain)", call: func(c *legalityCell) error { return c.d.EventSynchronize(c.t, c.plain) }},
		{name: "EventSynchronize(never recorded)", call: func(c *legalityCell) error { return c.d.EventSynchronize(c.t, c.never) }},
		{name: "EventSynchronize(captured)", call: func(c *legalityCell) error { return c.d.EventSynchronize(c.t, c.captured) }},
		{name: "EventElapsed(plain, plain)", call: func(c *legalityCell) error {
			_, err := c.d.EventElapsed(c.t, c.timedA, c.timedB)
			return err
		}},
		{name: "EventElapsed(plain, captured)", in: func(c *legalityCell) { c.ok(c.d.EventRecord(c.timedB, c.s)) },
			call: func(c *legalityCell) error { _, err := c.d.EventElapsed(c.t, c.timedA, c.timedB); return err }},
	}
}

// workRows are the calls that queue work.
func workRows(fn driver.Func) []legalityRow {
	callback := func(s func(c *legalityCell) driver.Stream) func(c *legalityCell) error {
		return func(c *legalityCell) error {
			id := c.d.RegisterCallback(func() {})
			c.later(func() { c.d.UnregisterCallback(id) })
			return c.d.Callback(s(c), id)
		}
	}
	onS := func(c *legalityCell) driver.Stream { return c.s }
	onIdle := func(c *legalityCell) driver.Stream { return c.idle }
	return []legalityRow{
		{name: "Launch(s)", call: func(c *legalityCell) error { return c.launch(fn, c.s) }},
		{name: "Launch(idle)", call: func(c *legalityCell) error { return c.launch(fn, c.idle) }},
		{name: "Launch(legacy)", call: func(c *legalityCell) error { return c.launch(fn, driver.StreamLegacy) }},
		{name: "Launch(legacy), s blocking", blocking: true,
			call: func(c *legalityCell) error { return c.launch(fn, driver.StreamLegacy) }},
		{name: "CopyDtoD(s)", call: func(c *legalityCell) error { return c.d.CopyDtoD(c.p, c.q, 64, c.s) }},
		{name: "CopyHtoD(pinned, s)", call: func(c *legalityCell) error { return c.d.CopyHtoD(c.p, c.pinned, c.s) }},
		{name: "CopyHtoD(pageable, s)", call: func(c *legalityCell) error { return c.d.CopyHtoD(c.p, c.page, c.s) }},
		{name: "CopyHtoD(pinned, idle)", call: func(c *legalityCell) error { return c.d.CopyHtoD(c.q, c.pinned, c.idle) }},
		{name: "CopyHtoD(pageable, idle)", call: func(c *legalityCell) error { return c.d.CopyHtoD(c.q, c.page, c.idle) }},
		{name: "CopyDtoH(pinned, s)", call: func(c *legalityCell) error { return c.d.CopyDtoH(c.pinned, c.p, c.s) }},
		{name: "CopyDtoH(pageable, s)", call: func(c *legalityCell) error { return c.d.CopyDtoH(c.page, c.p, c.s) }},
		{name: "CopyDtoH(pinned, idle)", call: func(c *legalityCell) error { return c.d.CopyDtoH(c.pinned, c.q, c.idle) }},
		{name: "CopyDtoH(pageable, idle)", call: func(c *legalityCell) error { return c.d.CopyDtoH(c.page, c.q, c.idle) }},
		{name: "Memset(s)", call: func(c *legalityCell) error { return c.d.Memset(c.p, 1, 4, 4, c.s) }},
		{name: "Memset(idle)", call: func(c *legalityCell) error { return c.d.Memset(c.q, 1, 4, 4, c.idle) }},
		{name: "Callback(s)", call: callback(onS)},
		{name: "Callback(idle)", call: callback(onIdle)},
	}
}

// launch launches saxpy over one element on s.
func (c *legalityCell) launch(fn driver.Func, s driver.Stream) error {
	args := binary.LittleEndian.AppendUint64(nil, uint64(c.p))
	args = binary.LittleEndian.AppendUint64(args, uint64(c.p))
	args = binary.LittleEndian.AppendUint32(args, 0)
	args = binary.LittleEndian.AppendUint32(args, 1)
	return c.d.Launch(&driver.Launch{Func: fn, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Args: args})
}

// graphRows are the calls on captures and graphs.
func graphRows() []legalityRow {
	return []legalityRow{
		{name: "CaptureBegin(s)", call: func(c *legalityCell) error { return c.d.CaptureBegin(c.t, c.s, driver.CaptureThreadLocal) }},
		{name: "CaptureBegin(idle)", call: func(c *legalityCell) error {
			err := c.d.CaptureBegin(c.t, c.second, driver.CaptureRelaxed)
			if err == nil {
				if g, err := c.d.CaptureEnd(c.t, c.second); err == nil {
					c.later(func() { c.d.GraphDestroy(c.th, g) })
				}
			}
			return err
		}},
		{name: "CaptureEnd(s)", call: func(c *legalityCell) error {
			g, err := c.d.CaptureEnd(c.t, c.s)
			if err == nil {
				c.later(func() { c.d.GraphDestroy(c.th, g) })
			}
			return err
		}},
		{name: "CaptureEnd(joined)", in: func(c *legalityCell) { c.ok(c.d.StreamWait(c.second, c.captured)) },
			call: func(c *legalityCell) error { _, err := c.d.CaptureEnd(c.t, c.second); return err }},
		{name: "CaptureEnd(idle)", call: func(c *legalityCell) error { _, err := c.d.CaptureEnd(c.t, c.idle); return err }},
		{name: "CaptureInfo(s)", call: func(c *legalityCell) error { _, _, err := c.d.CaptureInfo(c.s); return err }},
		{name: "CaptureInfo(legacy)", call: func(c *legalityCell) error { _, _, err := c.d.CaptureInfo(driver.StreamLegacy); return err }},
		{name: "CaptureInfo(legacy), s blocking", blocking: true,
			call: func(c *legalityCell) error { _, _, err := c.d.CaptureInfo(driver.StreamLegacy); return err }},
		{name: "GraphNodes", call: func(c *legalityCell) error { _, err := c.d.GraphNodes(c.graph); return err }},
		{name: "GraphInstantiate", call: func(c *legalityCell) error {
			e, err := c.d.GraphInstantiate(c.t, c.graph)
			if err == nil {
				c.later(func() { c.d.GraphExecDestroy(c.th, e) })
			}
			return err
		}},
		{name: "GraphLaunch(s)", call: func(c *legalityCell) error { return c.d.GraphLaunch(c.exec, c.s) }},
		{name: "GraphLaunch(idle)", call: func(c *legalityCell) error { return c.d.GraphLaunch(c.exec, c.idle) }},
		{name: "GraphDestroy", setup: func(c *legalityCell) {
			c.begin(c.idle, driver.CaptureRelaxed)
			g, err := c.d.CaptureEnd(c.th, c.idle)
			c.ok(err)
			c.extra = uintptr(g)
		}, call: func(c *legalityCell) error { return c.d.GraphDestroy(c.t, driver.Graph(c.extra)) }},
		{name: "GraphExecDestroy", setup: func(c *legalityCell) {
			e, err := c.d.GraphInstantiate(c.th, c.graph)
			c.ok(err)
			c.extra = uintptr(e)
		}, call: func(c *legalityCell) error { return c.d.GraphExecDestroy(c.t, driver.GraphExec(c.extra)) }},
		{name: "GraphDot", call: func(c *legalityCell) error {
			return c.d.GraphDot(c.t, c.graph, filepath.Join(c.TempDir(), "g.dot"))
		}},
	}
}

// moduleRows are the calls on kernel images.
func moduleRows(fn driver.Func) []legalityRow {
	return []legalityRow{
		{name: "LoadModule", call: func(c *legalityCell) error {
			m, err := c.d.LoadModule(c.t, c.fixture.s.k.Saxpy)
			if err == nil {
				c.later(func() { c.d.UnloadModule(c.th, m) })
			}
			return err
		}},
		{name: "UnloadModule", setup: func(c *legalityCell) {
			m, err := c.d.LoadModule(c.th, c.fixture.s.k.Saxpy)
			c.ok(err)
			c.extra = uintptr(m)
		}, call: func(c *legalityCell) error {
			err := c.d.UnloadModule(c.t, driver.Module(c.extra))
			if err != nil {
				c.later(func() { c.d.UnloadModule(c.th, driver.Module(c.extra)) })
			}
			return err
		}},
		{name: "Function", call: func(c *legalityCell) error { _, err := c.d.Function(c.t, c.module, "saxpy"); return err }},
		{name: "FuncInfo", call: func(c *legalityCell) error { _, err := c.d.FuncInfo(c.t, fn); return err }},
		{name: "SetMaxShared", call: func(c *legalityCell) error { return c.d.SetMaxShared(c.t, fn, 1024) }},
	}
}

// invalidatedRows are calls after the capture was invalidated by waiting for its stream.
func invalidatedRows(fn driver.Func) []legalityRow {
	spoil := func(c *legalityCell) {
		c.code(c.d.StreamSynchronize(c.th, c.s), "StreamSynchronize", driver.StreamCaptureUnsupported)
	}
	return []legalityRow{
		{name: "invalidated: Launch(s)", in: spoil, call: func(c *legalityCell) error { return c.launch(fn, c.s) }},
		{name: "invalidated: Launch(idle)", in: spoil, call: func(c *legalityCell) error { return c.launch(fn, c.idle) }},
		{name: "invalidated: MemAlloc", in: spoil, call: func(c *legalityCell) error {
			p, err := c.d.MemAlloc(c.t, 4096)
			if err == nil {
				c.later(func() { c.d.MemFree(c.th, p) })
			}
			return err
		}},
		{name: "invalidated: Synchronize", in: spoil, call: func(c *legalityCell) error { return c.d.Synchronize(c.t) }},
		{name: "invalidated: StreamSynchronize(s)", in: spoil, call: func(c *legalityCell) error {
			return c.d.StreamSynchronize(c.t, c.s)
		}},
		{name: "invalidated: StreamQuery(s)", in: spoil, call: func(c *legalityCell) error {
			_, err := c.d.StreamQuery(c.t, c.s)
			return err
		}},
		{name: "invalidated: StreamWait(s, captured)", in: spoil, call: func(c *legalityCell) error {
			return c.d.StreamWait(c.s, c.captured)
		}},
		{name: "invalidated: StreamWait(s, plain)", in: spoil, call: func(c *legalityCell) error { return c.d.StreamWait(c.s, c.plain) }},
		{name: "invalidated: StreamWait(idle, captured)", in: spoil,
			call: func(c *legalityCell) error { return c.d.StreamWait(c.idle, c.captured) }},
		{name: "invalidated: EventRecord(plain, s)", in: spoil, call: func(c *legalityCell) error { return c.d.EventRecord(c.plain, c.s) }},
		{name: "invalidated: EventQuery(captured)", in: spoil,
			call: func(c *legalityCell) error { _, err := c.d.EventQuery(c.t, c.captured); return err }},
		{name: "invalidated: EventQuery(plain)", in: spoil,
			call: func(c *legalityCell) error { _, err := c.d.EventQuery(c.t, c.plain); return err }},
		{name: "invalidated: CaptureBegin(s)", in: spoil,
			call: func(c *legalityCell) error { return c.d.CaptureBegin(c.t, c.s, driver.CaptureThreadLocal) }},
		{name: "invalidated: CaptureEnd(s)", in: spoil, call: func(c *legalityCell) error {
			_, err := c.d.CaptureEnd(c.t, c.s)
			return err
		}},
	}
}
