//go:build !tenon_sim && linux

package libcuda

import (
	"slices"
	"testing"

	"tenon.dev/internal/driver"
)

// fakePair opens both devices of a fake.
func fakePair(t *testing.T, f *fakeCUDA) (a, b *Device) {
	t.Helper()
	lib, err := newLibrary("fake", f.symbol)
	if err != nil {
		t.Fatal(err)
	}
	var devs [2]*Device
	for i := range devs {
		if devs[i], err = openDevice(lib, i); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { devs[i].Close() })
	}
	return devs[0], devs[1]
}

// The copy names both contexts; the reader gets access once, and again after the other device is closed and reopened.
func TestCopyPeer(t *testing.T) {
	f := newFake(t)
	a, b := fakePair(t, f)
	for range 2 {
		if err := b.CopyPeer(0x100, 0, 0x200, 64, 9); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := f.args[procMemcpyPeer], [6]uintptr{0x100, fakeContext + 1, 0x200, fakeContext, 64, 9}; [6]uintptr(got[:6]) != want {
		t.Errorf("cuMemcpyPeerAsync got %#x, want %#x", got[:6], want)
	}
	if f.count[procCtxEnablePeerAccess] != 1 || f.args[procCtxEnablePeerAccess][0] != fakeContext {
		t.Errorf("%d contexts were let read, the last of them %#x", f.count[procCtxEnablePeerAccess], f.args[procCtxEnablePeerAccess][0])
	}
	if err := b.CopyPeer(0x100, 0, 0x200, 0, 9); err != nil || f.count[procMemcpyPeer] != 2 {
		t.Errorf("an empty copy: %v, %d copies", err, f.count[procMemcpyPeer])
	}
	if err := a.CopyPeer(0x200, 0, 0x300, 64, 9); err != nil || f.count[procCtxEnablePeerAccess] != 1 {
		t.Errorf("a copy from itself: %v, %d contexts were let read", err, f.count[procCtxEnablePeerAccess])
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, b.CopyPeer(0x100, 0, 0x200, 64, 9), "CopyPeer", driver.InvalidDevice, "device 0 is not open")
	again, err := openDevice(b.lib, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := b.CopyPeer(0x100, 0, 0x200, 64, 9); err != nil || f.count[procCtxEnablePeerAccess] != 2 {
		t.Errorf("after the device was opened again: %v, %d contexts were let read", err, f.count[procCtxEnablePeerAccess])
	}
}

// Each mapping and the pool are made accessible separately, including later mappings and those of another opening of the device.
func TestPeerAccess(t *testing.T) {
	f := newFake(t)
	a, b := fakePair(t, f)
	th := a.Enter()
	mapped := func(d *Device) uintptr {
		p, err := d.MemReserve(th, 2<<20)
		if err == nil {
			err = d.MemMap(th, p, 2<<20)
		}
		if err != nil {
			t.Fatal(err)
		}
		return uintptr(p)
	}
	first := mapped(a)
	if err := b.CopyPeer(0x100, 0, 0x200, 64, 9); err != nil {
		t.Fatal(err)
	}
	second := mapped(a)
	th.Leave()
	twin, err := openDevice(a.lib, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer twin.Close()
	th = twin.Enter()
	third := mapped(twin)
	th.Leave()
	for i, p := range []uintptr{first, second, third} {
		if !slices.Equal(f.admitted[p], []uint64{0, 1}) {
			t.Errorf("mapping %d may be used by the devices %d, want 0 and 1", i, f.admitted[p])
		}
	}
	if !slices.Equal(f.admitted[a.pool], []uint64{1}) {
		t.Errorf("the pool was opened to the devices %d, want 1", f.admitted[a.pool])
	}
}

// If there is no direct access, or the driver refuses it, the copy still works.
func TestPeerAccessRefused(t *testing.T) {
	for _, code := range []driver.Code{driver.Success, driver.InvalidValue, peerAccessAlreadyEnabled} {
		t.Run(code.Error(), func(t *testing.T) {
			f := newFake(t)
			f.blind = code == driver.Success
			f.fail[procCtxEnablePeerAccess] = code
			_, b := fakePair(t, f)
			if err := b.CopyPeer(0x100, 0, 0x200, 64, 9); err != nil || f.count[procMemcpyPeer] != 1 {
				t.Errorf("%v, %d copies", err, f.count[procMemcpyPeer])
			}
			if got, want := len(f.admitted[0x900]) == 1, code == peerAccessAlreadyEnabled; got != want {
				t.Errorf("the pool was opened: %v, want %v", got, want)
			}
			if n := f.count[procCtxEnablePeerAccess]; f.blind && n != 0 {
				t.Errorf("access was asked for %d times where there can be none", n)
			}
		})
	}
}

// A token's calls go to its device, even while a token of another device is held; a token of a closed device gives the thread back.
func TestTokensByTurns(t *testing.T) {
	f := newFake(t)
	a, b := fakePair(t, f)
	outer, inner := a.Enter(), b.Enter()
	for range 2 {
		for d, th := range map[*Device]driver.Thread{a: outer, b: inner} {
			if _, err := d.MemAlloc(th, 512); err != nil {
				t.Fatal(err)
			}
			if got := f.current[th.ID()]; got != d.ctx {
				t.Errorf("device %d allocated with context %#x, want %#x", d.info.Ordinal, got, d.ctx)
			}
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	inner.Leave()
	if got := f.current[outer.ID()]; got != a.ctx {
		t.Errorf("after the other device was closed the context is %#x, want %#x", got, a.ctx)
	}
	outer.Leave()
}
