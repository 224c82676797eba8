//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"errors"
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

// MemFree frees memory from MemAlloc.
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

// HostFree frees memory from HostAlloc; b may be a shorter slice with the same start.
func (d *Device) HostFree(t driver.Thread, b []byte) error {
	if _, err := d.token("HostFree", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.release("HostFree", heldHostMemory, hostAddress(b), procMemFreeHost)
}

// HostRegister page-locks b for every context of the process.
func (d *Device) HostRegister(t driver.Thread, b []byte) error {
	th, err := d.token("HostRegister", t)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		return &driver.Error{Call: "HostRegister", Code: driver.InvalidValue, Detail: "0 bytes given; give at least 1"}
	}
	const portable = 1 // CU_MEMHOSTREGISTER_PORTABLE
	addr := hostAddress(b)
	if err := d.do("HostRegister", procMemHostRegister, addr, uintptr(len(b)), portable); err != nil {
		return err
	}
	d.hold(heldRegistration, addr)
	err = d.do("HostRegister", procMemHostGetDevicePointer, th.out.at(0), addr, 0)
	if err == nil && uintptr(th.out[0]) != addr {
		err = &driver.Error{Call: "HostRegister", Code: driver.NotSupported, Detail: "the device sees registered memory at another " +
			"address than the host"}
	}
	if err != nil {
		return errors.Join(err, d.release("HostRegister", heldRegistration, addr, procMemHostUnregister))
	}
	return nil
}

// HostUnregister ends the registration that began at b's start. The driver does not wait for work that uses the memory, so this does.
func (d *Device) HostUnregister(t driver.Thread, b []byte) error {
	if _, err := d.token("HostUnregister", t); err != nil && d.lost.Load() == nil {
		return err
	}
	if d.lost.Load() == nil {
		if err := d.do("HostUnregister", procCtxSynchronize); err != nil && d.lost.Load() == nil {
			return err
		}
	}
	return d.release("HostUnregister", heldRegistration, hostAddress(b), procMemHostUnregister)
}

// StreamFailed returns nil: a GPU does not survive a failed assertion.
func (d *Device) StreamFailed(driver.Stream) error { return nil }

// EventFailed returns nil, likewise.
func (d *Device) EventFailed(driver.Event) error { return nil }

// DeviceFailed returns nil, likewise.
func (d *Device) DeviceFailed() error { return nil }

// HostView returns nil: the memory of a GPU is not the host's.
func (d *Device) HostView(driver.Ptr, uint64) []byte { return nil }

func hostAddress(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
