//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/knob"
)

// The compiler's options in use: CUjit_option of cuda.h.
const (
	jitInfoLogBuffer     = 3
	jitInfoLogBytes      = 4
	jitErrorLogBuffer    = 5
	jitErrorLogBytes     = 6
	jitGenerateLineInfo  = 13
	jitLogBytes          = 8 << 10
	jitMostOptionsPassed = 5
)

// LoadModule compiles and loads PTX text. If it fails, the error's detail is the compiler's log. The LineInfo knob keeps source lines in
// the code. A module is a library of the driver, since only libraries are compiled by several threads at a time.
func (d *Device) LoadModule(t driver.Thread, text []byte) (driver.Module, error) {
	th, err := d.token("LoadModule", t)
	if err != nil {
		return 0, err
	}
	if len(text) == 0 {
		return 0, &driver.Error{Call: "LoadModule", Code: driver.InvalidValue, Detail: "the image is empty"}
	}
	image := append(append(make([]byte, 0, len(text)+1), text...), 0)
	if err = d.loadLibrary(th, image, nil, nil); refused(err) {
		// Only now with logs, since the driver may keep the options of a library that it loads.
		info, failure := make([]byte, jitLogBytes), make([]byte, jitLogBytes)
		if d.loadLibrary(th, image, info, failure) == nil {
			_ = d.do("LoadModule", procLibraryUnload, uintptr(th.out[0]))
		}
		err = withLog(err, failure, info)
	}
	if err != nil {
		return 0, err
	}
	d.hold(heldModule, uintptr(th.out[0]))
	return driver.Module(th.out[0]), nil
}

// loadLibrary has the driver compile image and writes the library's handle to th. The logs may be nil.
func (d *Device) loadLibrary(th *thread, image, info, failure []byte) error {
	options := make([]int32, 0, jitMostOptionsPassed)
	values := make([]uintptr, 0, jitMostOptionsPassed)
	add := func(option int32, value uintptr) { options, values = append(options, option), append(values, value) }
	if len(info) > 0 {
		add(jitInfoLogBuffer, dl.Address(unsafe.Pointer(&info[0])))
		add(jitInfoLogBytes, jitLogBytes)
		add(jitErrorLogBuffer, dl.Address(unsafe.Pointer(&failure[0])))
		add(jitErrorLogBytes, jitLogBytes)
	}
	if knob.LineInfo.Get() {
		add(jitGenerateLineInfo, 1)
	}
	err := d.do("LoadModule", procLibraryLoadData, th.out.at(0), dl.Address(unsafe.Pointer(&image[0])),
		dl.Address(unsafe.Pointer(unsafe.SliceData(options))), dl.Address(unsafe.Pointer(unsafe.SliceData(values))), uintptr(len(options)),
		0, 0, 0)
	if err == nil {
		// The driver compiles in the call above. What it could not compile it reports when the device needs it, so it is asked for now.
		if err = d.do("LoadModule", procLibraryGetModule, th.out.at(1), uintptr(th.out[0])); err != nil {
			_ = d.do("LoadModule", procLibraryUnload, uintptr(th.out[0])) // err says more
		}
	}
	runtime.KeepAlive(image)
	runtime.KeepAlive(info)
	runtime.KeepAlive(failure)
	runtime.KeepAlive(options)
	runtime.KeepAlive(values)
	return err
}

// refused reports whether err says that the text cannot be compiled, for which the compiler's log has the reason.
func refused(err error) bool {
	e, ok := err.(*driver.Error)
	if !ok {
		return false
	}
	switch e.Code {
	case driver.InvalidImage, driver.InvalidPTX, driver.UnsupportedPTXVersion, driver.NoBinaryForGPU:
		return true
	}
	return false
}

// withLog puts the first non-empty log before the error's detail.
func withLog(err error, logs ...[]byte) error {
	e, ok := err.(*driver.Error)
	if !ok {
		return err
	}
	if e.Code == driver.InvalidImage {
		// Text that is not PTX at all has its own code, which says nothing more.
		e.Code = driver.InvalidPTX
	}
	for _, log := range logs {
		text, _, _ := strings.Cut(string(log), "\x00")
		if text = strings.TrimSpace(text); text != "" {
			e.Detail = text
			break
		}
	}
	return e
}

// UnloadModule releases m.
func (d *Device) UnloadModule(t driver.Thread, m driver.Module) error {
	if _, err := d.token("UnloadModule", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.release("UnloadModule", heldModule, uintptr(m), procLibraryUnload)
}

// Function finds the kernel called name and loads its code to the device; otherwise that would happen at its first launch.
func (d *Device) Function(t driver.Thread, m driver.Module, name string) (driver.Func, error) {
	th, err := d.token("Function", t)
	if err != nil {
		return 0, err
	}
	cName := append([]byte(name), 0)
	err = d.do("Function", procLibraryGetKernel, th.out.at(0), uintptr(m), dl.Address(unsafe.Pointer(&cName[0])))
	runtime.KeepAlive(cName)
	if err != nil {
		if e, ok := err.(*driver.Error); ok && e.Code == driver.NotFound {
			e.Detail = fmt.Sprintf("the module has no kernel %q", name)
		}
		return 0, err
	}
	if err := d.do("Function", procKernelGetFunction, th.out.at(0), uintptr(th.out[0])); err != nil {
		return 0, err
	}
	f := uintptr(th.out[0])
	if d.lib.procs[procFuncLoad] != 0 {
		if err := d.do("Function", procFuncLoad, f); err != nil {
			return 0, err
		}
	}
	return driver.Func(f), nil
}

// FuncInfo returns f's use of resources. The numbers are those of CUfunction_attribute in cuda.h.
func (d *Device) FuncInfo(t driver.Thread, f driver.Func) (driver.FuncInfo, error) {
	th, err := d.token("FuncInfo", t)
	if err != nil {
		return driver.FuncInfo{}, err
	}
	var info driver.FuncInfo
	for _, a := range []struct {
		number uintptr
		to     *int
	}{{0, &info.MaxThreads}, {1, &info.SharedBytes}, {3, &info.LocalBytes}, {4, &info.Registers}} {
		if err := d.do("FuncInfo", procFuncGetAttribute, th.out.at(0), a.number, uintptr(f)); err != nil {
			return driver.FuncInfo{}, err
		}
		*a.to = int(int32(th.out[0]))
	}
	return info, nil
}

// SetMaxShared allows f up to n bytes of dynamic shared memory.
func (d *Device) SetMaxShared(t driver.Thread, f driver.Func, n int) error {
	if _, err := d.token("SetMaxShared", t); err != nil {
		return err
	}
	const maxDynamicShared = 8 // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
	return d.do("SetMaxShared", procFuncSetAttribute, uintptr(f), maxDynamicShared, uintptr(uint32(int32(n))))
}
