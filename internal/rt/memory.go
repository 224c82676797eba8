package rt

import (
	"log/slog"
	"math"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/knob"
)

// newMemory makes the allocator. For GPUs, real and simulated, it takes the settings from the environment.
func (d *Device) newMemory() error {
	s := alloc.DefaultSettings()
	if !d.Host {
		text := knob.AllocConf.Get()
		var err error
		if s, err = alloc.ParseSettings(text); err != nil {
			return fault.Wrap(fault.Invalid, err, "%s is %q", knob.AllocConf.Name(), text)
		}
	}
	var b alloc.Backend = &backend{d}
	switch {
	case s.Backend == alloc.BackendAsync:
		if err := d.keepPool(); err != nil {
			return err
		}
		b = &orderedBackend{backend{d}}
	case d.info.VirtualMemory:
		b = &virtualBackend{backend{d}}
	}
	d.useMemory(alloc.New(b, alloc.Options{Index: d.info.Ordinal, Collect: d.collect, Settings: &s,
		Processes: func() []alloc.ProcessMemory {
			list, _ := d.Processes() // if they are unknown, the message leaves them out
			return list
		}}))
	d.mem.SetCaching(d.caches())
	d.checksOfEnvironment()
	d.applied(&s)
	return nil
}

// caches reports whether the environment leaves the device's cache on. A checker sees accesses beyond a tensor only if each tensor has a
// separate allocation.
func (d *Device) caches() bool {
	return (!d.info.Checked || knob.LookFor("cached")) && (d.Host || knob.NoCaching.Get() == "")
}

// keepPool makes the driver's pool keep its memory, as the caching allocator does.
func (d *Device) keepPool() error {
	if !d.info.PoolMemory {
		return fault.New(fault.Unsupported, "%s has no memory pool; take backend:cudaMallocAsync out of %s", d.info.Name,
			knob.AllocConf.Name())
	}
	t, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave(t)
	return wrap(d.dev.PoolKeep(t, math.MaxUint64), "the driver's memory pool could not be set up")
}

// applied applies the settings that are not the allocator's own, and warns of those without effect.
func (d *Device) applied(s *alloc.Settings) {
	d.PinnedMemory().SetRegister(s.PinnedHostRegister && !d.Host, s.PinnedRegisterThreads)
	if w := s.Warning(); w != "" {
		slog.Warn(w)
	}
}

// UpdateSettings changes the allocator's settings as text says, by PyTorch's rules; those of page-locked memory too.
func (d *Device) UpdateSettings(text string) error {
	s, err := d.mem.UpdateSettings(text)
	if err != nil {
		return err
	}
	d.applied(&s)
	return nil
}

// MemInfo returns the device's free and total memory in bytes, as the driver reports them.
func (d *Device) MemInfo() (free, total uint64, err error) {
	if err := d.Lost(); err != nil {
		return 0, 0, err
	}
	free, total, err = (&backend{d}).MemInfo()
	return free, total, d.Check(err, "the device's free memory could not be asked for")
}

// RawAlloc allocates memory for s that is known by its address alone; size 0 gives address 0.
func (d *Device) RawAlloc(size uint64, s *Stream) (uint64, error) {
	if err := s.Usable(); err != nil {
		return 0, err
	}
	if s.dev != d {
		return 0, apart(s.dev, d, "the stream is of another device, %s, than the memory, %s; give a stream of that device")
	}
	if err := d.Lost(); err != nil {
		return 0, err
	}
	addr, err := d.mem.RawAlloc(size, alloc.Stream(s.handle))
	if addr != 0 && err == nil {
		d.trace(memoryAllocation, addr, 0)
	}
	return addr, d.checkAlloc(err, "memory could not be allocated")
}

// SetMemoryFraction limits what the allocator holds to a fraction of the device's memory.
func (d *Device) SetMemoryFraction(f float64) error {
	return d.checkAlloc(d.mem.SetMemoryFraction(f), "the device's memory could not be asked for")
}

// RawFree gives back what RawAlloc returned. Errors of the driver are as in Free.
func (d *Device) RawFree(addr uint64) error {
	if d.traces.Load() != nil && d.mem.RawHeld(addr) {
		d.trace(memoryDeallocation, addr, 0)
	}
	return d.freed(d.mem.RawFree(addr))
}

// PinnedMemory is the cache of page-locked memory.
func (d *Device) PinnedMemory() *alloc.Host { return d.pinned.host(d) }

// EmptyHostCache returns unused cached page-locked memory to the system.
func (d *Device) EmptyHostCache() error {
	if err := d.pinned.freeForgotten(); err != nil {
		return err
	}
	return d.checkAlloc(d.PinnedMemory().EmptyCache(), "page-locked memory could not be given back")
}
