//go:build !tenon_sim && linux

package libcuda

import (
	"testing"

	"tenon.dev/internal/driver"
)

// TestVirtualMemoryCalls checks the arguments that the driver gets.
func TestVirtualMemoryCalls(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	const n = 4 << 20
	r, err := d.MemReserve(th, n)
	if err != nil {
		t.Fatal(err)
	}
	if a := f.args[procMemAddressReserve]; a[1] != n || a[2] != 0 || a[3] != 0 || a[4] != 0 {
		t.Errorf("cuMemAddressReserve(%v)", a[:5])
	}
	if err := d.MemMap(th, r, n); err != nil {
		t.Fatal(err)
	}
	if a := f.args[procMemCreate]; a[1] != n || a[3] != 0 {
		t.Errorf("cuMemCreate(%v)", a[:4])
	}
	if a := f.args[procMemMap]; a[0] != uintptr(r) || a[1] != n || a[2] != 0 || a[4] != 0 {
		t.Errorf("cuMemMap(%v)", a[:5])
	}
	if a := f.args[procMemSetAccess]; a[0] != uintptr(r) || a[1] != n || a[3] != 1 {
		t.Errorf("cuMemSetAccess(%v)", a[:4])
	}
	if err := d.MemUnmap(th, r, n); err != nil {
		t.Error(err)
	}
	if err := d.MemUnreserve(th, r, n); err != nil {
		t.Error(err)
	}
	if len(f.live) != 0 {
		t.Errorf("%d handles stay", len(f.live))
	}
}

// TestMapFails checks that a failing MemMap undoes its earlier steps.
func TestMapFails(t *testing.T) {
	for _, p := range []proc{procMemCreate, procMemMap, procMemSetAccess} {
		f := newFake(t)
		d := f.open()
		th := d.Enter()
		f.fail[p] = driver.OutOfMemory
		wantError(t, d.MemMap(th, 1<<30, 2<<20), "MemMap", driver.OutOfMemory)
		delete(f.fail, p)
		th.Leave()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if len(f.live) != 0 {
			t.Errorf("after a failing %s %d handles stay", procTable[p].name, len(f.live))
		}
	}
}

// TestCopiesOfMappedMemory checks that copies make the context current while memory is mapped: without it the driver refuses copies across
// mappings.
func TestCopiesOfMappedMemory(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	r, err := d.MemReserve(th, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	th.Leave()
	moves := []func() error{
		func() error { return d.CopyDtoD(1, 2, 3, 4) },
		func() error { return d.CopyHtoD(1, []byte{1}, 4) },
		func() error { return d.CopyDtoH([]byte{1}, 1, 4) },
		func() error { return d.Memset(1, 2, 1, 3, 4) },
	}
	entered := func(want int) {
		t.Helper()
		for i, move := range moves {
			before := f.count[procCtxGetCurrent]
			if err := move(); err != nil {
				t.Error(err)
			}
			if n := f.count[procCtxGetCurrent] - before; n != want {
				t.Errorf("move %d entered %d times, want %d", i, n, want)
			}
		}
	}
	entered(0)
	th = d.Enter()
	if err := d.MemMap(th, r, 2<<20); err != nil {
		t.Fatal(err)
	}
	entered(1)
	if err := d.MemUnmap(th, r, 2<<20); err != nil {
		t.Error(err)
	}
	th.Leave()
	entered(0)
}

func TestPoolCalls(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	if _, err := d.MemAllocAsync(th, 0, 1); err == nil {
		t.Error("0 bytes were allocated")
	}
	p, err := d.MemAllocAsync(th, 99, 7)
	if err != nil {
		t.Fatal(err)
	}
	if a := f.args[procMemAllocAsync]; a[1] != 99 || a[2] != 7 {
		t.Errorf("cuMemAllocAsync(%v)", a[:3])
	}
	if err := d.MemFreeAsync(th, p, 8); err != nil {
		t.Error(err)
	}
	if a := f.args[procMemFreeAsync]; a[0] != uintptr(p) || a[1] != 8 {
		t.Errorf("cuMemFreeAsync(%v)", a[:2])
	}
	if u, err := d.PoolUsage(th); err != nil || u != (driver.PoolUsage{Reserved: 105, ReservedPeak: 106, Used: 107, UsedPeak: 108}) {
		t.Errorf("usage %+v, %v", u, err)
	}
	if err := d.PoolKeep(th, 12345); err != nil || f.set[4] != 12345 {
		t.Errorf("threshold %d, %v", f.set[4], err)
	}
	f.set[6], f.set[8] = 1, 1
	if err := d.PoolResetPeaks(th); err != nil || f.set[6] != 0 || f.set[8] != 0 {
		t.Errorf("peaks set to %d and %d, %v", f.set[6], f.set[8], err)
	}
	if err := d.PoolTrim(th, 5); err != nil || f.args[procMemPoolTrimTo][0] != 0x900 ||
		f.args[procMemPoolTrimTo][1] != 5 {
		t.Errorf("cuMemPoolTrimTo(%v), %v", f.args[procMemPoolTrimTo][:2], err)
	}
}

// TestDeviceWithoutMemoryFeatures uses a device with neither virtual memory nor pools.
func TestDeviceWithoutMemoryFeatures(t *testing.T) {
	f := newFake(t)
	f.attributes = map[uintptr]int32{102: 0, 115: 0}
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	if d.Info().VirtualMemory || d.Info().PoolMemory || f.count[procDeviceGetDefaultMemPool] != 0 {
		t.Errorf("%+v", d.Info())
	}
	for call, err := range map[string]error{
		"MemReserve":     func() error { _, err := d.MemReserve(th, 1<<21); return err }(),
		"MemMap":         d.MemMap(th, 1, 1<<21),
		"MemAllocAsync":  func() error { _, err := d.MemAllocAsync(th, 1, 1); return err }(),
		"PoolTrim":       d.PoolTrim(th, 0),
		"PoolKeep":       d.PoolKeep(th, 0),
		"PoolUsage":      func() error { _, err := d.PoolUsage(th); return err }(),
		"PoolResetPeaks": d.PoolResetPeaks(th),
	} {
		wantError(t, err, call, driver.NotSupported, "Fake has no ")
	}
}
