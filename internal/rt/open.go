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

// The kinds: the first NVIDIA GPU, or the simulator if there is none; a GPU by number; a simulated GPU by number; the processor.
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
	// Machine is the simulated machine that has the device; nil is the one that TENON_SIM_DEVICES describes.
	Machine *Machine
	// Wrap, if not nil, stands between the runtime and the driver's device: fault injection and call recording.
	Wrap func(driver.Device) driver.Device
}

// String returns the text of the selector, with its number where it is not the first.
func (sel Selector) String() string {
	text := [...]string{Best: "best", CUDA: "cuda", Sim: "sim", CPU: "cpu"}[sel.Kind]
	switch {
	case sel.Kind == CUDA && sel.Ordinal != 0:
		return fmt.Sprintf("cuda:%d", sel.Ordinal)
	case sel.Machine != nil:
		text = fmt.Sprintf("sim machine of %d", sel.Machine.devices)
	case sel.Memory != 0:
		text += ":" + capacity(sel.Memory)
	}
	if sel.Ordinal != 0 {
		text += fmt.Sprintf(", device %d", sel.Ordinal)
	}
	return text
}

// capacity returns a number of bytes in the largest unit that divides it.
func capacity(bytes uint64) string {
	units := []string{" bytes", "KiB", "MiB", "GiB"}
	i := 0
	for ; i < len(units)-1 && bytes%1024 == 0; i++ {
		bytes /= 1024
	}
	return fmt.Sprint(bytes, units[i])
}

// Open opens the device that sel names. A GPU whose driver is present but fails is an error that names the remedy; Best takes the simulator
// only if there is no NVIDIA device at all. An environment variable that does not parse is an error for every device.
func Open(sel Selector) (*Device, error) {
	if err := knob.Check(); err != nil {
		return nil, fault.New(fault.Invalid, "%v", err)
	}
	drv, n, err := count(&sel)
	if err != nil {
		return nil, err
	}
	if sel.Ordinal < 0 || sel.Ordinal >= n {
		remedy := ""
		if sel.simulated(drv) {
			remedy = fmt.Sprintf("; set %s to have more", knob.SimDevices.Name())
		}
		return nil, fault.New(fault.Invalid, "there is no device %d: %s has %s%s", sel.Ordinal, drv.Name(), plural(n), remedy)
	}
	dev, err := drv.Open(sel.Ordinal)
	if err != nil {
		return nil, wrap(err, fmt.Sprintf("device %d of %s could not be opened", sel.Ordinal, drv.Name()))
	}
	if sel.Wrap != nil {
		dev = sel.Wrap(dev)
	}
	d, err := newDevice(dev, sel.Kind == CPU)
	if d != nil {
		d.of = drv
		d.list()
	}
	return d, err
}

// Count returns how many devices can be opened with sel by changing its Ordinal alone.
func Count(sel Selector) (int, error) {
	if err := knob.Check(); err != nil {
		return 0, fault.New(fault.Invalid, "%v", err)
	}
	_, n, err := count(&sel)
	return n, err
}

// count returns sel's driver and the number of its devices.
func count(sel *Selector) (driver.Driver, int, error) {
	drv, err := driverOf(sel)
	if err != nil {
		return nil, 0, err
	}
	n, err := drv.DeviceCount()
	if errors.Is(err, driver.NoDevice) {
		return nil, 0,
			fault.Wrap(fault.System, err, "there is no NVIDIA GPU with a driver here; open tenon.Sim(0), the simulator, or tenon.Best(), "+
				"which takes it where there is no GPU")
	}
	return drv, n, wrap(err, "the devices could not be counted")
}

// simulated reports whether sel means the simulated machine that the environment describes.
func (sel *Selector) simulated(drv driver.Driver) bool {
	return sel.Machine == nil && (sel.Kind == Sim || sel.Kind == Best && drv != libcuda.New())
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

func driverOf(sel *Selector) (driver.Driver, error) {
	switch sel.Kind {
	case CPU:
		return processors(), nil
	case Sim:
		return simulator(sel)
	}
	gpu := libcuda.New()
	if sel.Kind == CUDA {
		return gpu, nil
	}
	n, err := gpu.DeviceCount()
	switch {
	case err == nil && n > 0:
		return gpu, nil
	case err == nil || errors.Is(err, driver.NoDevice):
		return simulator(sel)
	}
	return nil, wrap(err, "an NVIDIA GPU is there but cannot be used; mend its driver, or open tenon.Sim(0), the simulator")
}

// Machine is a simulated machine, whose devices share one clock and one schedule.
type Machine struct {
	devices int
	drv     *hostsim.Driver
}

// NewMachine returns a machine with that many devices, each with the given capacity in bytes; 0 means the default. Open refuses one whose
// number of devices is not from 1 to 8.
func NewMachine(devices int, memory uint64) *Machine {
	m := &Machine{devices: devices}
	if devices >= 1 && devices <= knob.MaxSimDevices {
		m.drv = hostsim.New(hostsim.Options{Devices: devices, Capacity: memory})
	}
	return m
}

// machines are the ones that the environment describes, by number of devices and capacity.
var machines struct {
	mu  sync.Mutex
	all map[[2]uint64]*Machine
}

// simulator returns the machine of a simulated device.
func simulator(sel *Selector) (driver.Driver, error) {
	m := sel.Machine
	if n := knob.SimDevices.Get(); m == nil && n == 1 {
		m = NewMachine(1, sel.Memory)
	} else if m == nil {
		machines.mu.Lock()
		defer machines.mu.Unlock()
		key := [2]uint64{uint64(n), sel.Memory}
		if m = machines.all[key]; m == nil {
			if machines.all == nil {
				machines.all = map[[2]uint64]*Machine{}
			}
			m = NewMachine(n, sel.Memory)
			machines.all[key] = m
		}
	}
	if m.drv == nil {
		return nil, fault.New(fault.Invalid, "a simulated machine cannot have %d devices; give it 1 to %d", m.devices, knob.MaxSimDevices)
	}
	return m.drv, nil
}

// Describe names the first GPU, or a simulated one if there is none, and the drivers, for the files that record a test binary's runs.
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
		d.lasting = true
		host.dev = d
	}
	return host.dev, nil
}

// Processor opens another device for the processor, with the kernels of Host's: building them again would take a small test longer than
// all it does.
func Processor() (*Device, error) {
	host, err := Host()
	if err != nil {
		return nil, err
	}
	d, err := Open(Selector{Kind: CPU})
	if err != nil {
		return nil, err
	}
	d.library = host
	return d, nil
}
