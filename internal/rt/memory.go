package rt

import (
	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/knob"
)

// newMemory makes the allocator with the settings of the environment, which are those of GPUs, real and simulated.
func (d *Device) newMemory() error {
	o := alloc.Options{Index: d.info.Ordinal, Collect: d.collect}
	if !d.Host {
		text := knob.AllocConf.Get()
		s, err := alloc.ParseSettings(text)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "%s is %q", knob.AllocConf.Name(), text)
		}
		o.Settings = &s
	}
	d.mem = alloc.New(&backend{d}, o)
	if !d.Host {
		d.mem.SetCaching(knob.NoCaching.Get() == "")
	}
	return nil
}

// UpdateSettings changes the allocator's settings as text says, by PyTorch's rules; those of page-locked memory too.
func (d *Device) UpdateSettings(text string) error {
	_, err := d.mem.UpdateSettings(text)
	return err
}

// MemInfo returns the device's free and total memory in bytes, as its driver tells them.
func (d *Device) MemInfo() (free, total uint64, err error) {
	if err := d.Lost(); err != nil {
		return 0, 0, err
	}
	free, total, err = (&backend{d}).MemInfo()
	return free, total, d.Check(err, "the device's free memory could not be asked for")
}

// RawAlloc takes memory by its address alone; size 0 gives address 0.
func (d *Device) RawAlloc(size uint64, s *Stream) (uint64, error) {
	if s.Device != d {
		return 0, fault.New(fault.Invalid, "the stream belongs to another device; memory is allocated for a stream of its own device")
	}
	if err := d.Lost(); err != nil {
		return 0, err
	}
	addr, err := d.mem.RawAlloc(size, alloc.Stream(s.Handle))
	return addr, d.checkAlloc(err, "memory could not be allocated")
}

// RawFree gives back what RawAlloc returned. Errors of the driver are as in Free.
func (d *Device) RawFree(addr uint64) error { return d.freed(d.mem.RawFree(addr)) }

// PinnedMemory is the cache of page-locked memory.
func (d *Device) PinnedMemory() *alloc.Host { return d.pinned.host(d) }

// EmptyHostCache returns cached page-locked memory that nothing uses to the system.
func (d *Device) EmptyHostCache() error {
	if err := d.pinned.freeForgotten(); err != nil {
		return err
	}
	return d.checkAlloc(d.PinnedMemory().EmptyCache(), "page-locked memory could not be given back")
}
