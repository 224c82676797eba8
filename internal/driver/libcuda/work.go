//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
)

// The keys of cuLaunchKernel's extra list, from cuda.h.
const (
	launchParamEnd           = 0
	launchParamBufferPointer = 1
	launchParamBufferSize    = 2
)

// launchAttribute is cuda.h's CUlaunchAttribute, 72 bytes.
type launchAttribute struct {
	id, _ uint32
	value [64]byte
}

// startsEarly is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION (6), set: the kernel may start when all blocks of the previous
// kernel have ended, while their writes are still in flight, or have said that it may.
var startsEarly = launchAttribute{id: 6, value: [64]byte{1}}

// Launch queues a kernel; l.Args go to the driver as one packed buffer, which it copies. In a capture, the edge between two kernels that
// wait by themselves is a programmatic one.
func (d *Device) Launch(l *driver.Launch) error {
	extra := extraOf(l)
	if l.Waits {
		c := l.Scratch[6:] // cuda.h's CUlaunchConfig, 56 bytes
		c[0] = uintptr(l.Grid[0]) | uintptr(l.Grid[1])<<32
		c[1] = uintptr(l.Grid[2]) | uintptr(l.Block[0])<<32
		c[2] = uintptr(l.Block[1]) | uintptr(l.Block[2])<<32
		c[3], c[4] = uintptr(l.Shared), uintptr(l.Stream)
		c[5], c[6] = dl.Address(unsafe.Pointer(&startsEarly)), 1
		err := d.do("Launch", procLaunchKernelEx, dl.Address(unsafe.Pointer(&c[0])), uintptr(l.Func), 0, extra)
		runtime.KeepAlive(l)
		return err
	}
	err := d.do("Launch", procLaunchKernel, uintptr(l.Func), uintptr(l.Grid[0]), uintptr(l.Grid[1]), uintptr(l.Grid[2]),
		uintptr(l.Block[0]), uintptr(l.Block[1]), uintptr(l.Block[2]), uintptr(l.Shared), uintptr(l.Stream), 0, extra)
	runtime.KeepAlive(l)
	return err
}

// extraOf returns the address of the extra list through which the driver finds l.Args, or 0 if there are none. The list lies in l.
func extraOf(l *driver.Launch) uintptr {
	if len(l.Args) == 0 {
		return 0
	}
	s := &l.Scratch
	s[0], s[1] = launchParamBufferPointer, dl.Address(unsafe.Pointer(unsafe.SliceData(l.Args)))
	s[2], s[3] = launchParamBufferSize, dl.Address(unsafe.Pointer(&s[5]))
	s[4], s[5] = launchParamEnd, uintptr(len(l.Args))
	return dl.Address(unsafe.Pointer(&s[0]))
}

// move is do for a copy or a fill. Without a current context the driver sees only the first of several mappings as allocated ("Copy range
// not fully allocated"), so while memory is mapped the context is made current.
func (d *Device) move(op string, p proc, args ...uintptr) error {
	if d.mappings.Load() > 0 {
		t := d.Enter()
		defer t.Leave()
		if _, err := d.token(op, t); err != nil {
			return err
		}
	}
	return d.do(op, p, args...)
}

// CopyDtoD copies n bytes on the device; 0 bytes queue nothing.
func (d *Device) CopyDtoD(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	if n == 0 {
		return nil
	}
	return d.move("CopyDtoD", procMemcpyDtoD, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}

// CopyHtoD copies src to the device; no bytes queue nothing.
func (d *Device) CopyHtoD(dst driver.Ptr, src []byte, s driver.Stream) error {
	if len(src) == 0 {
		return nil
	}
	err := d.move("CopyHtoD", procMemcpyHtoD, uintptr(dst), dl.Address(unsafe.Pointer(unsafe.SliceData(src))),
		uintptr(len(src)), uintptr(s))
	runtime.KeepAlive(src)
	return err
}

// CopyDtoH copies len(dst) bytes from the device; no bytes queue nothing.
func (d *Device) CopyDtoH(dst []byte, src driver.Ptr, s driver.Stream) error {
	if len(dst) == 0 {
		return nil
	}
	err := d.move("CopyDtoH", procMemcpyDtoH, dl.Address(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(src),
		uintptr(len(dst)), uintptr(s))
	runtime.KeepAlive(dst)
	return err
}

// Memset fills n elements of width bytes; 0 elements queue nothing.
func (d *Device) Memset(dst driver.Ptr, v uint32, width int, n uint64, s driver.Stream) error {
	var p proc
	switch width {
	case 1:
		p, v = procMemsetD8, v&0xff
	case 2:
		p, v = procMemsetD16, v&0xffff
	case 4:
		p = procMemsetD32
	default:
		return badWidth("Memset", width)
	}
	if n == 0 {
		return nil
	}
	return d.move("Memset", p, uintptr(dst), uintptr(v), uintptr(n), uintptr(s))
}

// badWidth is the error of a fill with an unsupported element size.
func badWidth(call string, width int) error {
	return &driver.Error{Call: call, Code: driver.InvalidValue, Detail: fmt.Sprintf("width is %d bytes; it must be 1, 2 or 4", width)}
}
