package rt

import (
	"errors"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
	"tenon.dev/kernel"
)

// Func is a loaded kernel.
type Func struct {
	Handle driver.Func
	// Shared is the dynamic shared memory in bytes that every launch needs in addition to its own.
	Shared uint32
	// Asserts says that the kernel has assertions.
	Asserts bool
	// Waits says that the kernel itself waits for the work before it.
	Waits bool
}

// Func returns the loaded kernel of s, building it on first use.
func (d *Device) Func(s *kernels.Spec) (Func, error) {
	if f, ok := d.built(s); ok {
		return f, nil
	}
	if d.library != nil {
		return d.library.Func(s)
	}
	return d.build(s)
}

// built returns the kernel of s if it is loaded.
func (d *Device) built(s *kernels.Spec) (Func, bool) {
	d.funcsMu.RLock()
	defer d.funcsMu.RUnlock()
	f, ok := d.funcs[*s]
	return f, ok
}

// Load compiles k for the device and loads it; it stays loaded until Close.
func (d *Device) Load(k *kernel.Kernel) (Func, error) {
	im, err := d.image(k)
	if err != nil {
		return Func{}, err
	}
	return d.load(im)
}

// image is a kernel in the form that the driver loads.
type image struct {
	name string
	text []byte
	// shared is the dynamic shared memory that its tiles take.
	shared  int
	asserts bool
	// dynamic says that the kernel uses the launch's own dynamic shared memory.
	dynamic bool
}

func (d *Device) image(k *kernel.Kernel) (im image, err error) {
	p, err := k.Program()
	if err != nil {
		return im, err
	}
	im.name, im.asserts = p.Name, p.Asserts()
	im.dynamic = slices.ContainsFunc(p.Shared, func(a kir.Array) bool { return a.Count < 0 })
	if d.info.Image == driver.FormatKIR {
		im.text = kir.Print(p)
		return im, nil
	}
	target := d.target()
	if im.shared, err = ptx.DynamicShared(p, target); err == nil {
		im.text, err = ptx.Compile([]*kir.Program{p}, target)
	}
	if err != nil {
		return im, fault.Wrap(fault.Unsupported, err, "kernel %s cannot be compiled for %s", p.Name, d.info.Name)
	}
	return im, nil
}

// target is what PTX for a GPU of d's compute capability is compiled for.
func (d *Device) target() ptx.Target {
	return ptx.Target{Major: d.info.Major, Minor: d.info.Minor, Arch: true, Meet: d.checked("racecheck")}
}

// PTX returns the text of k for a GPU of d's compute capability, which d itself need not be.
func (d *Device) PTX(k *kernel.Kernel) (string, error) {
	p, err := k.Program()
	if err != nil {
		return "", err
	}
	text, err := ptx.Compile([]*kir.Program{p}, d.target())
	return string(text), err
}

func (d *Device) load(im image) (Func, error) {
	f, err := d.loadHeld(im)
	return f, d.Check(err, "kernel "+im.name+" could not be loaded")
}

// loadHeld is load without a look at the error.
func (d *Device) loadHeld(im image) (f Func, err error) {
	t, err := d.enter()
	if err != nil {
		return f, err
	}
	defer d.leave(t)
	err = d.relaxed(t, func() (err error) {
		f, err = d.loadBy(t, im)
		return err
	})
	return f, err
}

// relaxed calls f in relaxed capture mode, in which f may do what captures forbid to a thread.
func (d *Device) relaxed(t driver.Thread, f func() error) (err error) {
	old, err := d.dev.CaptureExchangeMode(t, driver.CaptureRelaxed)
	if err != nil {
		return err
	}
	defer func() {
		if _, e := d.dev.CaptureExchangeMode(t, old); err == nil {
			err = e
		}
	}()
	return f()
}

// loadBy is loadHeld on thread t.
func (d *Device) loadBy(t driver.Thread, im image) (f Func, err error) {
	m, err := d.dev.LoadModule(t, im.text)
	if err != nil {
		return f, err
	}
	f.Shared, f.Asserts = uint32(im.shared), im.asserts
	f.Waits = d.info.Image == driver.FormatPTX && ptx.Waits(d.info.Major)
	if f.Handle, err = d.dev.Function(t, m, im.name); err == nil {
		err = d.allowShared(t, f.Handle, im)
	}
	if err != nil {
		return f, errors.Join(err, d.dev.UnloadModule(t, m))
	}
	d.modulesMu.Lock()
	d.modules = append(d.modules, m)
	d.modulesMu.Unlock()
	d.kernels.Store(f.Handle, im.name)
	return f, nil
}

// allowShared allows launches of f the dynamic shared memory that they may bring.
func (d *Device) allowShared(t driver.Thread, f driver.Func, im image) error {
	most := im.shared
	if im.dynamic {
		info, err := d.dev.FuncInfo(t, f)
		if err != nil {
			return err
		}
		most = d.info.SharedPerBlockOptin - info.SharedBytes
	}
	if most == 0 {
		return nil
	}
	return d.dev.SetMaxShared(t, f, most)
}

// KernelName returns the name of a kernel that was loaded.
func (d *Device) KernelName(f driver.Func) string {
	if d.library != nil {
		return d.library.KernelName(f)
	}
	name, _ := d.kernels.Load(f)
	s, _ := name.(string)
	return s
}

// User returns the loaded form of a user's kernel, building it on first use.
func (d *Device) User(k *kernel.Kernel) (Func, error) {
	if d.library != nil {
		return d.library.User(k)
	}
	if f, ok := d.users.Load(k); ok {
		return f.(Func), nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if f, ok := d.users.Load(k); ok {
		return f.(Func), nil
	}
	f, err := d.Load(k)
	if err == nil {
		d.users.Store(k, f)
	}
	return f, err
}
