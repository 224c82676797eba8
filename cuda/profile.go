package cuda

import (
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
	"tenon.dev/profile"
)

// ProfileOpt are the options of Device.Profile.
type ProfileOpt struct {
	// Bandwidth is the device's peak memory bandwidth in bytes per second, and Rates its peak floating-point operations per second, by
	// element type, such as "float32", or "tf32". The profile compares operations with them. If both are empty, it uses the figures that
	// Tenon reached on the device, if they were measured.
	Bandwidth float64
	Rates     map[string]float64
}

// Profiler records what runs on a device from Device.Profile to Stop. It is safe for concurrent use.
type Profiler struct {
	p   *rt.Profiler
	opt ProfileOpt
}

// usable returns why the profiler cannot be used, or nil.
func (p *Profiler) usable() error {
	if p == nil || p.p == nil {
		return fault.New(fault.Invalid, "the profiler is nil or a zero value; use one that Device.Profile returned")
	}
	return nil
}

// Profile starts to profile the device: the operations of all goroutines, the work that they launch, and the device's memory, until Stop.
// It waits for the work that the device has. Until Stop, graphs run their kernels one after the other, so that each has its time. A device
// has one profiler at a time. Without one, an operation only checks one word.
func (d *Device) Profile(opts ...ProfileOpt) (p *Profiler, err error) {
	defer returned(&err)
	opt, err := only(opts)
	if err != nil {
		return nil, err
	}
	bad := func(v float64) bool { return !(v >= 0) || v > 1e30 }
	wrong := bad(opt.Bandwidth)
	rates := map[string]float64{}
	//tenon:unordered a copy
	for k, v := range opt.Rates {
		wrong = wrong || bad(v)
		rates[k] = v
	}
	if wrong {
		return nil, fault.New(fault.Invalid, "a figure of the device is negative, no number or infinite; give them per second, or nothing")
	}
	r, err := d.rt().StartProfile()
	if err != nil {
		return nil, err
	}
	opt.Rates = rates
	return &Profiler{r, opt}, nil
}

// ProfileFunc runs f and returns a profile of the device from its beginning to its end; see Profile. If f fails, ProfileFunc returns the
// error with the profile until then.
func (d *Device) ProfileFunc(f func() error, opts ...ProfileOpt) (out *profile.Profile, err error) {
	defer returned(&err)
	d.rt() // refuses a nil device
	if f == nil {
		return nil, fault.New(fault.Invalid, "the function is nil; give it one")
	}
	p, err := d.Profile(opts...)
	if err != nil {
		return nil, err
	}
	defer func() {
		var stopped error
		if out, stopped = p.Stop(); err == nil {
			err = stopped
		}
	}()
	return nil, f()
}

// Stop waits for the device's work, ends the profiler and returns what it saw. Calls under way on other goroutines are in the profile up to
// the point that they have reached.
func (p *Profiler) Stop() (out *profile.Profile, err error) {
	defer returned(&err)
	if err := p.usable(); err != nil {
		return nil, err
	}
	out, err = p.p.Stop()
	if err == nil && (p.opt.Bandwidth > 0 || len(p.opt.Rates) > 0) {
		out.Device.Bandwidth, out.Device.Rates = p.opt.Bandwidth, p.opt.Rates
	}
	return out, err
}
