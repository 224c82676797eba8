package rt

import (
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
	"tenon.dev/kernel"
)

// Func returns the loaded kernel of s, building it on first use.
func (d *Device) Func(s *kernels.Spec) (driver.Func, error) {
	if f, ok := (*d.funcs.Load())[*s]; ok {
		return f, nil
	}
	return d.build(s)
}

func (d *Device) build(s *kernels.Spec) (driver.Func, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.funcs.Load()
	if f, ok := old[*s]; ok {
		return f, nil
	}
	f, err := d.Load(kernels.Build(s))
	if err != nil {
		return 0, err
	}
	m := make(map[kernels.Spec]driver.Func, len(old)+1)
	for k, v := range old {
		m[k] = v
	}
	m[*s] = f
	d.funcs.Store(&m)
	d.stats.built.Add(1)
	return f, nil
}

// Load compiles k for the device and loads it; it stays loaded until Close. The caller holds d.mu or is the only user.
func (d *Device) Load(k *kernel.Kernel) (driver.Func, error) {
	p, err := k.Program()
	if err != nil {
		return 0, err
	}
	text, err := d.image(p)
	if err != nil {
		return 0, fault.Wrap(fault.Unsupported, err, "kernel %s cannot be compiled for %s", p.Name, d.info.Name)
	}
	t := d.dev.Enter()
	defer t.Leave()
	old, err := d.dev.CaptureExchangeMode(t, driver.CaptureRelaxed)
	if err != nil {
		return 0, wrap(err, "kernel "+p.Name+" could not be loaded")
	}
	defer d.dev.CaptureExchangeMode(t, old)
	m, err := d.dev.LoadModule(t, text)
	if err != nil {
		return 0, wrap(err, "kernel "+p.Name+" could not be loaded")
	}
	d.modules = append(d.modules, m)
	f, err := d.dev.Function(t, m, p.Name)
	return f, wrap(err, "kernel "+p.Name+" could not be loaded")
}

func (d *Device) image(p *kir.Program) ([]byte, error) {
	if d.info.Image == driver.FormatKIR {
		return kir.Print(p), nil
	}
	return ptx.Compile([]*kir.Program{p}, ptx.Target{Major: d.info.Major, Minor: d.info.Minor})
}
