//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/knob"
)

// The options of the compiler in use: CUjit_option of cuda.h.
const (
	jitInfoLogBuffer     = 3
	jitInfoLogBytes      = 4
	jitErrorLogBuffer    = 5
	jitErrorLogBytes     = 6
	jitGenerateLineInfo  = 13
	jitLogBytes          = 8 << 10
	jitMostOptionsPassed = 5
	jitInputPTX          = 1 // of CUjitInputType
)

// compilation is what the compiler reads and writes.
type compilation struct {
	image, info, failure []byte
	options              []int32
	values               []uintptr
}

// newCompilation prepares to compile PTX text. The LineInfo knob keeps source lines in the code.
func newCompilation(text []byte) (*compilation, error) {
	if len(text) == 0 {
		return nil, &driver.Error{Call: "LoadModule", Code: driver.InvalidValue, Detail: "the image is empty"}
	}
	c := &compilation{image: append(append(make([]byte, 0, len(text)+1), text...), 0),
		info: make([]byte, jitLogBytes), failure: make([]byte, jitLogBytes),
		options: make([]int32, 0, jitMostOptionsPassed), values: make([]uintptr, 0, jitMostOptionsPassed)}
	add := func(option int32, value uintptr) {
		c.options, c.values = append(c.options, option), append(c.values, value)
	}
	add(jitInfoLogBuffer, dl.Address(unsafe.Pointer(&c.info[0])))
	add(jitInfoLogBytes, jitLogBytes)
	add(jitErrorLogBuffer, dl.Address(unsafe.Pointer(&c.failure[0])))
	add(jitErrorLogBytes, jitLogBytes)
	if knob.LineInfo.Get() {
		add(jitGenerateLineInfo, 1)
	}
	return c, nil
}

// keepAlive is called when the driver does not use c any more.
func (c *compilation) keepAlive() {
	runtime.KeepAlive(c.image)
	runtime.KeepAlive(c.info)
	runtime.KeepAlive(c.failure)
	runtime.KeepAlive(c.options)
	runtime.KeepAlive(c.values)
}

// LoadModule compiles and loads PTX text. If it fails, the error's detail is the compiler's log.
func (d *Device) LoadModule(t driver.Thread, text []byte) (driver.Module, error) {
	th, err := d.token("LoadModule", t)
	if err != nil {
		return 0, err
	}
	c, err := newCompilation(text)
	if err != nil {
		return 0, err
	}
	err = d.do("LoadModule", procModuleLoadData, th.out.at(0), dl.Address(unsafe.Pointer(&c.image[0])), uintptr(len(c.options)),
		dl.Address(unsafe.Pointer(&c.options[0])), dl.Address(unsafe.Pointer(&c.values[0])))
	c.keepAlive()
	if err != nil {
		return 0, withLog(err, c.failure, c.info)
	}
	d.hold(heldModule, uintptr(th.out[0]))
	return driver.Module(th.out[0]), nil
}

// LoadModuleBeside has the driver's linker compile, since it lets threads do so side by side: on the host of an H200, 60 kernels took one
// thread 3.1 s and eight 0.47 s. With cuModuleLoadDataEx they took 3.3 and 4.3 s. The linker stays until the module is unloaded: nothing
// says that the driver does not read the machine code after loading it.
func (d *Device) LoadModuleBeside(t driver.Thread, text []byte) (driver.Module, error) {
	th, err := d.token("LoadModule", t)
	if err != nil {
		return 0, err
	}
	c, err := newCompilation(text)
	if err != nil {
		return 0, err
	}
	name := []byte("kernel\x00")
	err = d.do("LoadModule", procLinkCreate, uintptr(len(c.options)), dl.Address(unsafe.Pointer(&c.options[0])),
		dl.Address(unsafe.Pointer(&c.values[0])), th.out.at(0))
	if err != nil {
		return 0, err
	}
	state := uintptr(th.out[0])
	d.mu.Lock()
	d.held[resource{kind: heldLinker, handle: state}] = struct{}{}
	d.linkers[state] = c // the linker may still write to its logs
	d.mu.Unlock()
	err = d.do("LoadModule", procLinkAddData, state, jitInputPTX, dl.Address(unsafe.Pointer(&c.image[0])), uintptr(len(c.image)),
		dl.Address(unsafe.Pointer(&name[0])), 0, 0, 0)
	runtime.KeepAlive(name)
	if err == nil {
		err = d.do("LoadModule", procLinkComplete, state, th.out.at(1), th.out.at(2))
	}
	if err == nil {
		err = d.do("LoadModule", procModuleLoadData, th.out.at(0), uintptr(th.out[1]), 0, 0, 0)
	}
	if err != nil {
		err = withLog(err, c.failure, c.info)
		if e := d.endLinker(state); e != nil {
			err = errors.Join(err, e)
		}
		return 0, err
	}
	m := uintptr(th.out[0])
	d.hold(heldModule, m)
	d.mu.Lock()
	d.linkerOf[m] = state
	d.mu.Unlock()
	return driver.Module(m), nil
}

// endLinker releases a linker.
func (d *Device) endLinker(state uintptr) error {
	if err := d.release("UnloadModule", heldLinker, state, procLinkDestroy); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.linkers, state)
	return nil
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
	err := d.release("UnloadModule", heldModule, uintptr(m), procModuleUnload)
	d.mu.Lock()
	state, linked := d.linkerOf[uintptr(m)]
	delete(d.linkerOf, uintptr(m))
	d.mu.Unlock()
	if linked && err == nil {
		err = d.endLinker(state)
	}
	return err
}

// Function finds the kernel called name and loads its code to the device; otherwise that would happen at its first launch.
func (d *Device) Function(t driver.Thread, m driver.Module, name string) (driver.Func, error) {
	th, err := d.token("Function", t)
	if err != nil {
		return 0, err
	}
	cName := append([]byte(name), 0)
	err = d.do("Function", procModuleGetFunction, th.out.at(0), uintptr(m), dl.Address(unsafe.Pointer(&cName[0])))
	runtime.KeepAlive(cName)
	if err != nil {
		if e, ok := err.(*driver.Error); ok && e.Code == driver.NotFound {
			e.Detail = fmt.Sprintf("the module has no kernel %q", name)
		}
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
