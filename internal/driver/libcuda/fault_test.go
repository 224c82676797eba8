//go:build !tenon_sim && linux

package libcuda

import (
	"errors"
	"math"
	"testing"

	"tenon.dev/internal/driver"
)

// contractCall is one method of the contract.
type contractCall struct {
	name string
	// bound is set if the method takes a token; frees are silent on a lost device.
	bound, frees bool
	call         func(d *Device, t driver.Thread) error
}

// contractCalls are all methods that can fail, with handles that need not exist.
func contractCalls() []contractCall {
	one := func(name string, call func(d *Device, t driver.Thread) error) contractCall {
		return contractCall{name, true, false, call}
	}
	free := func(name string, call func(d *Device, t driver.Thread) error) contractCall {
		return contractCall{name, true, true, call}
	}
	work := func(name string, call func(d *Device) error) contractCall {
		return contractCall{name, false, false, func(d *Device, _ driver.Thread) error { return call(d) }}
	}
	return []contractCall{
		one("Synchronize", func(d *Device, t driver.Thread) error { return d.Synchronize(t) }),
		one("MemAlloc", func(d *Device, t driver.Thread) error { _, err := d.MemAlloc(t, 1); return err }),
		free("MemFree", func(d *Device, t driver.Thread) error { return d.MemFree(t, 1) }),
		one("MemInfo", func(d *Device, t driver.Thread) error { _, _, err := d.MemInfo(t); return err }),
		one("MemReserve", func(d *Device, t driver.Thread) error { _, err := d.MemReserve(t, 1<<21); return err }),
		free("MemUnreserve", func(d *Device, t driver.Thread) error { return d.MemUnreserve(t, 1, 1<<21) }),
		one("MemMap", func(d *Device, t driver.Thread) error { return d.MemMap(t, 1, 1<<21) }),
		free("MemUnmap", func(d *Device, t driver.Thread) error { return d.MemUnmap(t, 1, 1<<21) }),
		one("MemAllocAsync", func(d *Device, t driver.Thread) error { _, err := d.MemAllocAsync(t, 1, 1); return err }),
		free("MemFreeAsync", func(d *Device, t driver.Thread) error { return d.MemFreeAsync(t, 1, 1) }),
		one("PoolTrim", func(d *Device, t driver.Thread) error { return d.PoolTrim(t, 1) }),
		one("PoolKeep", func(d *Device, t driver.Thread) error { return d.PoolKeep(t, 1) }),
		one("PoolUsage", func(d *Device, t driver.Thread) error { _, err := d.PoolUsage(t); return err }),
		one("PoolResetPeaks", func(d *Device, t driver.Thread) error { return d.PoolResetPeaks(t) }),
		one("HostAlloc", func(d *Device, t driver.Thread) error { _, err := d.HostAlloc(t, 1); return err }),
		free("HostFree", func(d *Device, t driver.Thread) error { return d.HostFree(t, []byte{1}) }),
		one("HostRegister", func(d *Device, t driver.Thread) error { return d.HostRegister(t, []byte{1}) }),
		free("HostUnregister", func(d *Device, t driver.Thread) error { return d.HostUnregister(t, []byte{1}) }),
		one("StreamCreate", func(d *Device, t driver.Thread) error { _, err := d.StreamCreate(t, true, 0); return err }),
		free("StreamDestroy", func(d *Device, t driver.Thread) error { return d.StreamDestroy(t, 1) }),
		one("StreamQuery", func(d *Device, t driver.Thread) error { _, err := d.StreamQuery(t, 1); return err }),
		one("StreamSynchronize", func(d *Device, t driver.Thread) error { return d.StreamSynchronize(t, 1) }),
		work("StreamWait", func(d *Device) error { return d.StreamWait(1, 1) }),
		one("EventCreate", func(d *Device, t driver.Thread) error { _, err := d.EventCreate(t, true); return err }),
		free("EventDestroy", func(d *Device, t driver.Thread) error { return d.EventDestroy(t, 1) }),
		work("EventRecord", func(d *Device) error { return d.EventRecord(1, 1) }),
		one("EventQuery", func(d *Device, t driver.Thread) error { _, err := d.EventQuery(t, 1); return err }),
		one("EventSynchronize", func(d *Device, t driver.Thread) error { return d.EventSynchronize(t, 1) }),
		one("EventElapsed", func(d *Device, t driver.Thread) error { _, err := d.EventElapsed(t, 1, 2); return err }),
		work("Launch", func(d *Device) error { return d.Launch(&driver.Launch{}) }),
		work("CopyDtoD", func(d *Device) error { return d.CopyDtoD(1, 2, 3, 4) }),
		work("CopyPeer", func(d *Device) error { return d.CopyPeer(1, 0, 2, 3, 4) }),
		work("CopyHtoD", func(d *Device) error { return d.CopyHtoD(1, []byte{1}, 4) }),
		work("CopyDtoH", func(d *Device) error { return d.CopyDtoH([]byte{1}, 1, 4) }),
		work("Memset", func(d *Device) error { return d.Memset(1, 2, 1, 3, 4) }),
		one("CaptureBegin", func(d *Device, t driver.Thread) error { return d.CaptureBegin(t, 1, driver.CaptureRelaxed) }),
		one("CaptureEnd", func(d *Device, t driver.Thread) error { _, err := d.CaptureEnd(t, 1); return err }),
		work("CaptureInfo", func(d *Device) error { _, _, err := d.CaptureInfo(1); return err }),
		work("CaptureNode", func(d *Device) error { _, err := d.CaptureNode(1); return err }),
		one("CaptureExchangeMode", func(d *Device, t driver.Thread) error { _, err := d.CaptureExchangeMode(t, 0); return err }),
		work("GraphNodes", func(d *Device) error { _, err := d.GraphNodes(1); return err }),
		one("GraphInstantiate", func(d *Device, t driver.Thread) error { _, err := d.GraphInstantiate(t, 1); return err }),
		work("GraphLaunch", func(d *Device) error { return d.GraphLaunch(1, 2) }),
		one("GraphSetLaunch", func(d *Device, t driver.Thread) error { return d.GraphSetLaunch(t, 1, 1, &driver.Launch{}) }),
		one("GraphSetCopy", func(d *Device, t driver.Thread) error { return d.GraphSetCopy(t, 1, 1, 1, 2, 3) }),
		one("GraphSetMemset", func(d *Device, t driver.Thread) error { return d.GraphSetMemset(t, 1, 1, 1, 2, 4, 3) }),
		one("GraphChain", func(d *Device, t driver.Thread) error {
			_, _, err := d.GraphChain(t, []driver.ChainWork{{Event: 1}})
			return err
		}),
		one("GraphSetEvent", func(d *Device, t driver.Thread) error { return d.GraphSetEvent(t, 1, 1, 1) }),
		free("GraphDestroy", func(d *Device, t driver.Thread) error { return d.GraphDestroy(t, 1) }),
		free("GraphExecDestroy", func(d *Device, t driver.Thread) error { return d.GraphExecDestroy(t, 1) }),
		one("GraphDot", func(d *Device, t driver.Thread) error { return d.GraphDot(t, 1, "x") }),
		one("LoadModule", func(d *Device, t driver.Thread) error { _, err := d.LoadModule(t, []byte("x")); return err }),
		free("UnloadModule", func(d *Device, t driver.Thread) error { return d.UnloadModule(t, 1) }),
		one("Function", func(d *Device, t driver.Thread) error { _, err := d.Function(t, 1, "kernel"); return err }),
		one("FuncInfo", func(d *Device, t driver.Thread) error { _, err := d.FuncInfo(t, 1); return err }),
		one("SetMaxShared", func(d *Device, t driver.Thread) error { return d.SetMaxShared(t, 1, 1) }),
	}
}

func TestTokenIsRequired(t *testing.T) {
	d := newFake(t).open()
	defer d.Close()
	for _, c := range contractCalls() {
		if c.bound {
			wantError(t, c.call(d, nil), c.name, driver.InvalidContext, "Enter")
		}
	}
}

// After a device fault every call returns it without reaching the driver, frees return nil, and Close reports nothing new.
func TestFaultIsSticky(t *testing.T) {
	for _, code := range []driver.Code{driver.IllegalAddress, driver.Assert, driver.LaunchFailed} {
		f := newFake(t)
		d := f.open()
		th := d.Enter()
		p, err := d.MemAlloc(th, 512)
		if err != nil {
			t.Fatal(err)
		}
		f.fail[procStreamSynchronize], f.pending = code, math.MaxInt
		wantError(t, d.StreamSynchronize(th, 1), "StreamSynchronize", code)
		before := f.count
		for _, c := range contractCalls() {
			if err := c.call(d, th); c.frees {
				if err != nil {
					t.Errorf("%s on a lost device: %v", c.name, err)
				}
			} else {
				wantError(t, err, c.name, code)
			}
		}
		if err := d.MemFree(th, p); err != nil {
			t.Error(err)
		}
		d.Enter().Leave()
		if f.count != before {
			t.Errorf("a call on a lost device reached the driver")
		}
		th.Leave()
		f.fail[procPrimaryCtxRelease] = code
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if f.count[procPrimaryCtxRelease] != 1 {
			t.Error("Close did not release the context")
		}
	}
}

// A fault first seen in a free is kept, and the free returns nil.
func TestFaultInFree(t *testing.T) {
	f := newFake(t)
	d := f.open()
	th := d.Enter()
	defer th.Leave()
	f.fail[procMemFree] = driver.IllegalAddress
	if err := d.MemFree(th, 1); err != nil {
		t.Errorf("MemFree: %v", err)
	}
	wantError(t, d.Memset(1, 1, 1, 1, 1), "Memset", driver.IllegalAddress)
	f.fail[procMemFree] = 0
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestClosedDevice(t *testing.T) {
	f := newFake(t)
	d := f.open()
	th := d.Enter()
	if _, err := d.MemAlloc(th, 512); err != nil {
		t.Fatal(err)
	}
	th.Leave()
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(f.live) != 0 || f.retains != 0 {
		t.Errorf("after Close %d handles live, %d contexts retained", len(f.live), f.retains)
	}
	th = d.Enter()
	defer th.Leave()
	for _, c := range contractCalls() {
		if err := c.call(d, th); !c.frees {
			wantError(t, err, c.name, driver.Deinitialized, "closed")
		} else if err != nil {
			t.Errorf("%s on a closed device: %v", c.name, err)
		}
	}
}

// wholeLife opens a device, uses its features and closes it, leaving some resources for Close to release.
func wholeLife(c *cudaDriver) (err error) {
	dev, err := c.Open(0)
	if err != nil {
		return err
	}
	d := dev.(*Device)
	t := d.Enter()
	defer func() {
		t.Leave()
		err = errors.Join(err, d.Close())
	}()
	s, err := d.StreamCreate(t, true, 0)
	if err != nil {
		return err
	}
	e, err := d.EventCreate(t, false)
	if err != nil {
		return err
	}
	p, err := d.MemAlloc(t, 512)
	if err != nil {
		return err
	}
	host, err := d.HostAlloc(t, 64)
	if err != nil {
		return err
	}
	end, err := poolLife(d, t, s)
	if err != nil {
		return err
	}
	m, err := d.LoadModule(t, []byte("x"))
	if err != nil {
		return err
	}
	fn, err := d.Function(t, m, "kernel")
	if err != nil {
		return err
	}
	if err := d.CaptureBegin(t, s, driver.CaptureThreadLocal); err != nil {
		return err
	}
	g, err := d.CaptureEnd(t, s)
	if err != nil {
		return err
	}
	x, err := d.GraphInstantiate(t, g)
	if err != nil {
		return err
	}
	chain, _, err := d.GraphChain(t, []driver.ChainWork{{Launch: &driver.Launch{Func: fn}}, {Event: e}})
	if err != nil {
		return err
	}
	id := d.RegisterCallback(func() {})
	_, infoErr := d.FuncInfo(t, fn)
	_, idErr := d.EventQuery(t, e)
	return errors.Join(infoErr, idErr, d.CopyHtoD(p, host, s), d.Launch(&driver.Launch{Func: fn, Stream: s}), d.EventRecord(e, s),
		d.Callback(s, id), d.GraphLaunch(x, s), d.StreamSynchronize(t, s), d.GraphDestroy(t, g), d.GraphDestroy(t, chain), d.MemFree(t, p),
		d.EventDestroy(t, e), end())
}

// poolLife uses virtual memory and pool memory; the function it returns frees one of each and leaves another to Close.
func poolLife(d *Device, t driver.Thread, s driver.Stream) (end func() error, err error) {
	const n = 2 << 20
	var p, r driver.Ptr
	for range 2 {
		if p, err = d.MemAllocAsync(t, n, s); err != nil {
			return nil, err
		}
		if r, err = d.MemReserve(t, n); err != nil {
			return nil, err
		}
		if err = d.MemMap(t, r, n); err != nil {
			return nil, err
		}
	}
	_, err = d.PoolUsage(t)
	err = errors.Join(err, d.PoolKeep(t, n), d.PoolResetPeaks(t), d.PoolTrim(t, 0))
	return func() error {
		return errors.Join(d.MemFreeAsync(t, p, s), d.MemUnmap(t, r, n), d.MemUnreserve(t, r, n))
	}, err
}

// TestFaultWalk fails each call of a device's life in turn. The failure must name the call and leak nothing, and the same program must then
// run. Only calls that Close makes to release resources, and set-up that may be missing, may fail silently.
func TestFaultWalk(t *testing.T) {
	for _, code := range []driver.Code{driver.OutOfMemory, driver.InvalidHandle, driver.IllegalAddress} {
		steps := 0
		for n := 1; ; n++ {
			f := newFake(t)
			c := f.driver()
			f.failAt, f.failCode = n, code
			lib, err := newLibrary("fake", f.symbol)
			if err == nil {
				c.load = func() (*library, error) { return lib, nil }
				err = wholeLife(c)
			}
			f.running.Wait()
			if f.failed < 0 {
				if err != nil {
					t.Errorf("with no failure: %v", err)
				}
				break
			}
			steps++
			name := procTable[f.failed].name
			_, frees := fakeFrees[f.failed]
			frees = frees || f.failed == procMemUnmap
			var silent bool
			switch f.failed {
			case procPrimaryCtxSetFlags, procLogsCurrent:
				silent = true
			case procPrimaryCtxRelease:
				silent = code.Sticky()
			case procCtxSetCurrent:
				silent = f.closing
			default:
				silent = frees && (f.closing || code.Sticky())
			}
			var e *driver.Error
			if silent {
				if err != nil {
					t.Errorf("call %d, %s fails with %d: the program returned %v, want nil", n, name, code, err)
				}
			} else if !errors.As(err, &e) || !errors.Is(err, code) || e.Call == "" {
				t.Errorf("call %d, %s fails with %d: the program returned %v", n, name, code, err)
			}
			if f.failed != procPrimaryCtxRelease && f.retains != 0 {
				t.Errorf("call %d, %s fails with %d: %d contexts stay retained", n, name, code, f.retains)
			}
			// A lost device keeps its handles, and so does a free that fails in Close: the context releases them.
			if !code.Sticky() && len(f.live) > 0 && !(frees && f.closing) {
				t.Errorf("call %d, %s fails with %d: %d handles stay", n, name, code, len(f.live))
			}
			f.failed = -1
			if err := wholeLife(f.driver()); err != nil {
				t.Errorf("after the failure of call %d, %s: %v", n, name, err)
			}
		}
		if steps < 50 {
			t.Errorf("only %d calls were failed", steps)
		}
		t.Logf("walk libcuda with code %d: %d", code, steps)
	}
}
