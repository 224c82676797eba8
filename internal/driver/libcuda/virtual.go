//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"errors"
	"runtime"

	"tenon.dev/internal/driver"
)

// unsupported is the error of a call that the device's hardware or driver does not support.
func (d *Device) unsupported(op, what string) error {
	return &driver.Error{Call: op, Code: driver.NotSupported, Detail: d.info.Name + " has no " + what}
}

// MemReserve reserves addresses by cuMemAddressReserve.
func (d *Device) MemReserve(t driver.Thread, n uint64) (driver.Ptr, error) {
	th, err := d.token("MemReserve", t)
	if err != nil {
		return 0, err
	}
	if !d.info.VirtualMemory {
		return 0, d.unsupported("MemReserve", "virtual memory")
	}
	if err := d.do("MemReserve", procMemAddressReserve, th.out.at(0), uintptr(n), 0, 0, 0); err != nil {
		return 0, err
	}
	d.holdRange(heldRange, uintptr(th.out[0]), uintptr(n))
	return driver.Ptr(th.out[0]), nil
}

// MemUnreserve releases a range.
func (d *Device) MemUnreserve(t driver.Thread, p driver.Ptr, n uint64) error {
	if _, err := d.token("MemUnreserve", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.giveBack("MemUnreserve", resource{heldRange, uintptr(p), uintptr(n)}, procMemAddressFree, uintptr(p), uintptr(n))
}

// MemMap creates memory, maps it and gives the device read and write access. The memory's handle is kept until MemUnmap.
func (d *Device) MemMap(t driver.Thread, p driver.Ptr, n uint64) error {
	th, err := d.token("MemMap", t)
	if err != nil {
		return err
	}
	if !d.info.VirtualMemory {
		return d.unsupported("MemMap", "virtual memory")
	}
	w := wordsPool.Get().(*words)
	defer wordsPool.Put(w)
	// CUmemAllocationProp: type CU_MEM_ALLOCATION_TYPE_PINNED, handle types none, location, no flags.
	*w = words{1, locationOf(d.ordinal), 0, 0}
	if err := d.do("MemMap", procMemCreate, th.out.at(0), uintptr(n), w.at(0), 0); err != nil {
		return err
	}
	handle := uintptr(th.out[0])
	err = d.do("MemMap", procMemMap, uintptr(p), uintptr(n), 0, handle, 0)
	if err == nil {
		*w = accessOf(d.ordinal)
		if err = d.do("MemMap", procMemSetAccess, uintptr(p), uintptr(n), w.at(0), 1); err != nil {
			d.lib.call(procMemUnmap, uintptr(p), uintptr(n))
		}
	}
	runtime.KeepAlive(w)
	if err != nil {
		d.lib.call(procMemRelease, handle)
		return err
	}
	d.holdRange(heldMapping, uintptr(p), uintptr(n))
	d.mappings.Add(1)
	d.mu.Lock()
	d.physical[p] = handle
	d.mu.Unlock()
	d.admitAll(p, n)
	return nil
}

// MemUnmap removes a mapping and frees its memory.
func (d *Device) MemUnmap(t driver.Thread, p driver.Ptr, n uint64) error {
	if _, err := d.token("MemUnmap", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.unmap("MemUnmap", resource{heldMapping, uintptr(p), uintptr(n)})
}

// unmap removes a mapping and then frees the memory behind it.
func (d *Device) unmap(op string, r resource) error {
	if err := d.giveBack(op, r, procMemUnmap, r.handle, r.size); err != nil || d.lost.Load() != nil {
		return err
	}
	d.mappings.Add(-1)
	d.mu.Lock()
	handle := d.physical[driver.Ptr(r.handle)]
	delete(d.physical, driver.Ptr(r.handle))
	d.held[resource{kind: heldPhysical, handle: handle}] = struct{}{} // if the next call fails, Close tries again
	d.mu.Unlock()
	return d.release(op, heldPhysical, handle, procMemRelease)
}

// MemAllocAsync allocates by cuMemAllocAsync.
func (d *Device) MemAllocAsync(t driver.Thread, n uint64, s driver.Stream) (driver.Ptr, error) {
	th, err := d.token("MemAllocAsync", t)
	if err != nil {
		return 0, err
	}
	switch {
	case d.pool == 0:
		return 0, d.unsupported("MemAllocAsync", "memory pools")
	case n == 0:
		return 0, &driver.Error{Call: "MemAllocAsync", Code: driver.InvalidValue, Detail: "0 bytes asked for; ask for at least 1"}
	}
	if err := d.do("MemAllocAsync", procMemAllocAsync, th.out.at(0), uintptr(n), uintptr(s)); err != nil {
		return 0, err
	}
	d.hold(heldPoolMemory, uintptr(th.out[0]))
	return driver.Ptr(th.out[0]), nil
}

// MemFreeAsync frees by cuMemFreeAsync.
func (d *Device) MemFreeAsync(t driver.Thread, p driver.Ptr, s driver.Stream) error {
	if _, err := d.token("MemFreeAsync", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.giveBack("MemFreeAsync", resource{kind: heldPoolMemory, handle: uintptr(p)}, procMemFreeAsync, uintptr(p), uintptr(s))
}

// PoolTrim returns unused memory of the pool with cuMemPoolTrimTo.
func (d *Device) PoolTrim(t driver.Thread, keep uint64) error {
	if _, err := d.poolToken("PoolTrim", t); err != nil {
		return err
	}
	return d.do("PoolTrim", procMemPoolTrimTo, d.pool, uintptr(keep))
}

// The pool attributes in use, from CUmemPool_attribute in cuda.h.
const (
	poolReleaseThreshold = 4
	poolReservedCurrent  = 5
	poolReservedHigh     = 6
	poolUsedCurrent      = 7
	poolUsedHigh         = 8
)

// PoolKeep sets the pool's release threshold.
func (d *Device) PoolKeep(t driver.Thread, n uint64) error {
	th, err := d.poolToken("PoolKeep", t)
	if err != nil {
		return err
	}
	th.out[0] = n
	return d.do("PoolKeep", procMemPoolSetAttribute, d.pool, poolReleaseThreshold, th.out.at(0))
}

// PoolUsage reads the pool's attributes.
func (d *Device) PoolUsage(t driver.Thread) (driver.PoolUsage, error) {
	th, err := d.poolToken("PoolUsage", t)
	if err != nil {
		return driver.PoolUsage{}, err
	}
	for i, a := range [...]uintptr{poolReservedCurrent, poolReservedHigh, poolUsedCurrent, poolUsedHigh} {
		if err := d.do("PoolUsage", procMemPoolGetAttribute, d.pool, a, th.out.at(i)); err != nil {
			return driver.PoolUsage{}, err
		}
	}
	return driver.PoolUsage{Reserved: th.out[0], ReservedPeak: th.out[1], Used: th.out[2], UsedPeak: th.out[3]}, nil
}

// PoolResetPeaks sets the pool's high-water marks to 0, which resets them to the current values.
func (d *Device) PoolResetPeaks(t driver.Thread) error {
	th, err := d.poolToken("PoolResetPeaks", t)
	if err != nil {
		return err
	}
	th.out[0] = 0
	return errors.Join(d.do("PoolResetPeaks", procMemPoolSetAttribute, d.pool, poolReservedHigh, th.out.at(0)),
		d.do("PoolResetPeaks", procMemPoolSetAttribute, d.pool, poolUsedHigh, th.out.at(0)))
}

// poolToken is token for a call that needs the device's pool.
func (d *Device) poolToken(op string, t driver.Thread) (*thread, error) {
	th, err := d.token(op, t)
	if err == nil && d.pool == 0 {
		err = d.unsupported(op, "memory pools")
	}
	return th, err
}
