// Package cuda is what users see of a device: its properties, streams, events and memory.
// It may not know tensors.
package cuda

import "tenon.dev/internal/rt"

// Device is an opened device. Its methods are safe for concurrent use.
type Device rt.Device

func (d *Device) rt() *rt.Device { return (*rt.Device)(d) }

// Name returns the name that the vendor gave the device, such as "NVIDIA H200"; a simulated device's begins with "Simulated".
func (d *Device) Name() string { return d.rt().Info().Name }

// Ordinal returns the device's number.
func (d *Device) Ordinal() int { return d.rt().Info().Ordinal }

// Capability returns the compute capability.
func (d *Device) Capability() (major, minor int) { return d.rt().Info().Major, d.rt().Info().Minor }

// TotalMemory returns the device's memory in bytes.
func (d *Device) TotalMemory() uint64 { return d.rt().Info().TotalMemory }

// Multiprocessors returns the number of streaming multiprocessors.
func (d *Device) Multiprocessors() int { return d.rt().Info().Multiprocessors }

// Synchronize waits for all work of the device and returns a fault of it, if any.
func (d *Device) Synchronize() error { return d.rt().Synchronize() }

// EmptyCache returns cached memory that no tensor uses to the driver.
func (d *Device) EmptyCache() error { return d.rt().EmptyCache() }

// SetMemoryFraction limits what the allocator may hold to fraction f of the device's memory, 0 to 1.
func (d *Device) SetMemoryFraction(f float64) error { return d.rt().Memory().SetMemoryFraction(f) }

// SetGarbageCollection says whether the allocator may run Go's garbage collector to find dropped tensors before it grows or fails; it
// may at first.
func (d *Device) SetGarbageCollection(on bool) { d.rt().Loose().SetCollection(on) }

// Stats are the allocator's counters under PyTorch's names, such as "allocated_bytes.all.current".
func (d *Device) Stats() map[string]int64 {
	s := d.rt().Memory().Stats()
	return s.Flatten()
}

// ResetPeakStats sets every peak to the present value.
func (d *Device) ResetPeakStats() { d.rt().Memory().ResetPeakStats() }
