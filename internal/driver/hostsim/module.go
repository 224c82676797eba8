package hostsim

import (
	"tenon.dev/internal/driver"
	"tenon.dev/internal/vexec"
)

// module is a loaded image.
type module struct {
	code     *vexec.Module
	funcs    map[string]driver.Func
	unloaded bool
}

// function is one kernel of a module.
type function struct {
	mod       *module
	name      string
	k         *vexec.Kernel
	info      driver.FuncInfo
	maxShared int
}

// LoadModule loads the kernel IR's text.
func (d *device) LoadModule(t driver.Thread, text []byte) (driver.Module, error) {
	const call = "LoadModule"
	if _, err := d.lockThread(call, t); err != nil {
		return 0, err
	}
	d.m.mu.Unlock()
	if len(text) == 0 {
		return 0, fail(call, driver.InvalidValue, "an empty image")
	}
	code, err := vexec.Load(text)
	if err != nil {
		d.refuseModule(err)
		return 0, fail(call, driver.InvalidPTX, err.Error())
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return driver.Module(d.modules.add(&module{code: code, funcs: map[string]driver.Func{}})), nil
}

// UnloadModule releases m and its functions; a graph that still launches one faults.
func (d *device) UnloadModule(t driver.Thread, m driver.Module) error {
	if d.lost() {
		return nil
	}
	if err := d.lockUnsafe("UnloadModule", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	mod := d.modules.get(uintptr(m))
	if mod == nil {
		return fail("UnloadModule", driver.InvalidHandle, "")
	}
	d.m.await(target{dev: d, seq: d.m.seq})
	d.modules.remove(uintptr(m))
	mod.unloaded = true
	//tenon:unordered each is removed separately
	for _, f := range mod.funcs {
		d.funcs.remove(uintptr(f))
	}
	return nil
}

// Function finds a kernel by name.
func (d *device) Function(t driver.Thread, m driver.Module, name string) (driver.Func, error) {
	const call = "Function"
	if _, err := d.lockThread(call, t); err != nil {
		return 0, err
	}
	defer d.m.mu.Unlock()
	mod := d.modules.get(uintptr(m))
	if mod == nil {
		return 0, fail(call, driver.InvalidHandle, "")
	}
	if f, ok := mod.funcs[name]; ok {
		return f, nil
	}
	k, ok := mod.code.Kernel(name)
	if !ok {
		return 0, fail(call, driver.NotFound, "no kernel "+name)
	}
	fn := &function{mod: mod, name: name, k: k, info: funcInfo(k)}
	if fn.info.MaxThreads == 0 || fn.info.MaxThreads > d.info.MaxThreadsPerBlock {
		fn.info.MaxThreads = d.info.MaxThreadsPerBlock
	}
	f := driver.Func(d.funcs.add(fn))
	mod.funcs[name] = f
	return f, nil
}

// FuncInfo returns f's use of resources.
func (d *device) FuncInfo(t driver.Thread, f driver.Func) (driver.FuncInfo, error) {
	if _, err := d.lockThread("FuncInfo", t); err != nil {
		return driver.FuncInfo{}, err
	}
	defer d.m.mu.Unlock()
	fn := d.funcs.get(uintptr(f))
	if fn == nil {
		return driver.FuncInfo{}, fail("FuncInfo", driver.InvalidHandle, "")
	}
	return fn.info, nil
}

// SetMaxShared allows f up to n bytes of dynamic shared memory.
func (d *device) SetMaxShared(t driver.Thread, f driver.Func, n int) error {
	if _, err := d.lockThread("SetMaxShared", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	fn := d.funcs.get(uintptr(f))
	switch {
	case fn == nil:
		return fail("SetMaxShared", driver.InvalidHandle, "")
	case n < 0 || n+fn.info.SharedBytes > d.info.SharedPerBlockOptin:
		return fail("SetMaxShared", driver.InvalidValue, "more than SharedPerBlockOptin")
	}
	fn.maxShared = n
	return nil
}
