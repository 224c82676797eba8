package rt

import (
	"errors"
	"maps"

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
	// Shared is the dynamic shared memory in bytes that every launch needs besides its own.
	Shared uint32
	// Asserts says that the kernel has assertions.
	Asserts bool
}

// Func returns the loaded kernel of s, building it on first use.
func (d *Device) Func(s *kernels.Spec) (Func, error) {
	if f, ok := (*d.funcs.Load())[*s]; ok {
		return f, nil
	}
	return d.build(s)
}

func (d *Device) build(s *kernels.Spec) (Func, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.funcs.Load()
	if f, ok := old[*s]; ok {
		return f, nil
	}
	f, err := d.Load(kernels.Build(s))
	if err != nil {
		return Func{}, err
	}
	m := make(map[kernels.Spec]Func, len(old)+1)
	maps.Copy(m, old)
	m[*s] = f
	d.funcs.Store(&m)
	d.stats.built.Add(1)
	return f, nil
}

// Load compiles k for the device and loads it; it stays loaded until Close. The caller holds d.mu or is the only user.
func (d *Device) Load(k *kernel.Kernel) (Func, error) {
	p, err := k.Program()
	if err != nil {
		return Func{}, err
	}
	text, shared, err := d.image(p)
	if err != nil {
		return Func{}, fault.Wrap(fault.Unsupported, err, "kernel %s cannot be compiled for %s", p.Name, d.info.Name)
	}
	f, err := d.loadImage(p, text, shared)
	return f, d.Check(err, "kernel "+p.Name+" could not be loaded")
}

func (d *Device) loadImage(p *kir.Program, text []byte, shared int) (f Func, err error) {
	t, err := d.enter()
	if err != nil {
		return f, err
	}
	defer d.leave(t)
	err = d.relaxed(t, func() (err error) {
		f, err = d.loadBy(t, p, text, shared)
		return err
	})
	return f, err
}

// relaxed calls f, which may then do what captures forbid to a thread.
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

// loadBy is loadImage by a thread.
func (d *Device) loadBy(t driver.Thread, p *kir.Program, text []byte, shared int) (f Func, err error) {
	m, err := d.dev.LoadModule(t, text)
	if err != nil {
		return f, err
	}
	f.Shared, f.Asserts = uint32(shared), p.Asserts()
	if f.Handle, err = d.dev.Function(t, m, p.Name); err == nil && shared > 0 {
		err = d.dev.SetMaxShared(t, f.Handle, shared)
	}
	if err != nil {
		return f, errors.Join(err, d.dev.UnloadModule(t, m))
	}
	d.modules = append(d.modules, m)
	d.kernels.Store(f.Handle, p.Name)
	return f, nil
}

// image returns the kernel's image in the form that the driver loads, and the dynamic shared memory that its tiles take.
func (d *Device) image(p *kir.Program) (text []byte, shared int, err error) {
	if d.info.Image == driver.FormatKIR {
		return kir.Print(p), 0, nil
	}
	target := ptx.Target{Major: d.info.Major, Minor: d.info.Minor, Arch: true}
	if shared, err = ptx.DynamicShared(p, target); err != nil {
		return nil, 0, err
	}
	text, err = ptx.Compile([]*kir.Program{p}, target)
	return text, shared, err
}

// KernelName returns the name of a kernel that was loaded.
func (d *Device) KernelName(f driver.Func) string {
	name, _ := d.kernels.Load(f)
	s, _ := name.(string)
	return s
}

// User returns the loaded form of a user's kernel, building it on first use.
func (d *Device) User(k *kernel.Kernel) (Func, error) {
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
