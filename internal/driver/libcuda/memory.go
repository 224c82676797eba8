//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
)

// MemAlloc returns n bytes of device memory by cuMemAlloc.
func (d *Device) MemAlloc(t driver.Thread, n uint64) (driver.Ptr, error) {
	th, err := d.token("MemAlloc", t)
	if err != nil {
		return 0, err
	}
	if err := d.do("MemAlloc", procMemAlloc, th.out.at(0), uintptr(n)); err != nil {
		return 0, err
	}
	d.hold(heldMemory, uintptr(th.out[0]))
	return driver.Ptr(th.out[0]), nil
}

// MemFree frees what MemAlloc returned.
func (d *Device) MemFree(t driver.Thread, p driver.Ptr) error {
	if _, err := d.token("MemFree", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.release("MemFree", heldMemory, uintptr(p), procMemFree)
}

// MemInfo returns free and total bytes.
func (d *Device) MemInfo(t driver.Thread) (free, total uint64, err error) {
	th, err := d.token("MemInfo", t)
	if err != nil {
		return 0, 0, err
	}
	if err := d.do("MemInfo", procMemGetInfo, th.out.at(0), th.out.at(1)); err != nil {
		return 0, 0, err
	}
	return th.out[0], th.out[1], nil
}

// HostAlloc returns n bytes of page-locked memory that every context of the process may use.
func (d *Device) HostAlloc(t driver.Thread, n uint64) ([]byte, error) {
	th, err := d.token("HostAlloc", t)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, &driver.Error{Call: "HostAlloc", Code: driver.InvalidValue, Detail: "0 bytes asked for; ask for at least 1"}
	}
	const portable = 1 // CU_MEMHOSTALLOC_PORTABLE
	if err := d.do("HostAlloc", procMemHostAlloc, th.out.at(0), uintptr(n), portable); err != nil {
		return nil, err
	}
	addr := uintptr(th.out[0])
	d.hold(heldHostMemory, addr)
	return dl.Bytes(addr, int(n)), nil
}

// HostFree frees what HostAlloc returned; b may be a shorter slice of the same start.
func (d *Device) HostFree(t driver.Thread, b []byte) error {
	if _, err := d.token("HostFree", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.release("HostFree", heldHostMemory, uintptr(unsafe.Pointer(unsafe.SliceData(b))), procMemFreeHost)
}
