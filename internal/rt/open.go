package rt

import (
	"errors"
	"fmt"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/driver/libcuda"
	"tenon.dev/internal/knob"
)

// Kind is a kind of device to open.
type Kind uint8

// The kinds: the first NVIDIA GPU, or the simulator where there is none; a GPU by number; a simulated GPU by number; the processor.
const (
	Best Kind = iota
	CUDA
	Sim
	CPU
)

// Selector names a device to open.
type Selector struct {
	Kind    Kind
	Ordinal int
	// Memory is the capacity of a simulated device in bytes; 0 is the default.
	Memory uint64
	// Wrap, if not nil, stands between the runtime and the driver's device: fault injection and call recording.
	Wrap func(driver.Device) driver.Device
}

// Open opens the device that sel names. A GPU whose driver is present but fails is an error that names the remedy; only where no
// NVIDIA device exists at all does Best take the simulator. An environment variable that does not parse is an error for every device.
func Open(sel Selector) (*Device, error) {
	if err := knob.Check(); err != nil {
		return nil, fault.New(fault.Invalid, "%v", err)
	}
	drv, host, err := driverOf(&sel)
	if err != nil {
		return nil, err
	}
	n, err := drv.DeviceCount()
	if errors.Is(err, driver.NoDevice) {
		return nil, fault.Wrap(fault.System, err, "there is no NVIDIA GPU with a driver here; choose the simulator, or best, which takes it then")
	}
	if err != nil {
		return nil, wrap(err, "the devices could not be counted")
	}
	if sel.Ordinal < 0 || sel.Ordinal >= n {
		return nil, fault.New(fault.Invalid, "there is no device %d: %s has %s", sel.Ordinal, drv.Name(), plural(n))
	}
	dev, err := drv.Open(sel.Ordinal)
	if err != nil {
		return nil, wrap(err, fmt.Sprintf("device %d of %s could not be opened", sel.Ordinal, drv.Name()))
	}
	if sel.Wrap != nil {
		dev = sel.Wrap(dev)
	}
	return newDevice(dev, host)
}

func plural(n int) string {
	switch n {
	case 0:
		return "none"
	case 1:
		return "1 device, number 0"
	}
	return fmt.Sprintf("%d devices, numbered from 0", n)
}

// processors is the machine that the processor's devices are of: one, so that all of them reach the same page-locked memory.
var processors = sync.OnceValue(hostsim.CPU)

func driverOf(sel *Selector) (drv driver.Driver, host bool, err error) {
	switch sel.Kind {
	case CPU:
		return processors(), true, nil
	case Sim:
		return hostsim.New(hostsim.Options{Devices: sel.Ordinal + 1, Capacity: sel.Memory}), false, nil
	}
	gpu := libcuda.New()
	if sel.Kind == CUDA {
		return gpu, false, nil
	}
	n, err := gpu.DeviceCount()
	switch {
	case err == nil && n > 0:
		return gpu, false, nil
	case err == nil || errors.Is(err, driver.NoDevice):
		return hostsim.New(hostsim.Options{Devices: sel.Ordinal + 1, Capacity: sel.Memory}), false, nil
	}
	return nil, false, wrap(err, "an NVIDIA GPU is there but cannot be used; mend its driver, or choose the simulator")
}

// Describe names the first GPU, or a simulated one where there is none, and the drivers: what run files say of the machine that a test binary ran on.
func Describe() (name, drivers string) {
	drivers = fmt.Sprint("libcuda and hostsim, GPUs ", GPUs())
	var all driver.Driver = libcuda.New()
	if GPUs() == 0 {
		all = hostsim.New(hostsim.Options{})
	}
	dev, err := all.Open(0)
	if err != nil {
		return "none", drivers
	}
	defer dev.Close()
	return dev.Info().Name, drivers
}

var host struct {
	mu  sync.Mutex
	dev *Device
}

// Host returns the process's device for the processor. It is never closed.
func Host() (*Device, error) {
	host.mu.Lock()
	defer host.mu.Unlock()
	if host.dev == nil {
		d, err := Open(Selector{Kind: CPU})
		if err != nil {
			return nil, err
		}
		host.dev = d
	}
	return host.dev, nil
}
