package hostsim

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"tenon.dev/internal/check"
	"tenon.dev/internal/driver"
)

// Options describe the simulated machine. The zero value is one device "Simulated GPU" of 80 GiB in virtual time.
type Options struct {
	// Devices is the number of devices; 0 means 1.
	Devices int
	// Name is each device's name; "" means "Simulated GPU".
	Name string
	// Capacity is each device's memory in bytes; 0 means 80 GiB.
	Capacity uint64
	// Multiprocessors is each device's number of SMs; 0 means 132.
	Multiprocessors int
	// ClockKHz is the rate of the device clock that kernels read; 0 means 1,000,000: one cycle is one nanosecond.
	ClockKHz int
	// RealTime makes the device clock follow the host's, and work run without a wait.
	RealTime bool
	// Policy orders work of different streams; the zero value is FIFO.
	Policy Policy
	// Addresses decides which addresses MemAlloc returns; the zero value reuses freed ones.
	Addresses Addresses
}

// Driver is a simulated machine. Its devices share one clock and one schedule, so events order work across them. It implements
// driver.Driver.
type Driver struct {
	m *machine

	mu sync.Mutex // held while a device is opened or closed
}

var _ driver.Driver = (*Driver)(nil)

// New returns a machine of simulated GPUs.
func New(o Options) *Driver {
	o.Devices = max(o.Devices, 1)
	if o.Name == "" {
		o.Name = "Simulated GPU"
	}
	if o.Capacity == 0 {
		o.Capacity = 80 << 30
	}
	if o.Multiprocessors == 0 {
		o.Multiprocessors = 132
	}
	if o.ClockKHz == 0 {
		o.ClockKHz = 1_000_000
	}
	return newDriver(o, false)
}

// CPU returns the inline configuration: one device, the host itself, that runs each call before the call returns, in real time.
func CPU() *Driver {
	return newDriver(Options{Devices: 1, Name: "CPU", Multiprocessors: runtime.NumCPU(), ClockKHz: 1_000_000, RealTime: true}, true)
}

// newDriver returns a machine with complete options.
func newDriver(o Options, inline bool) *Driver {
	m := &machine{inline: inline, began: time.Now(), policy: o.Policy}
	log, err := check.Open()
	if m.checkErr = err; log != nil {
		m.watched(log)
		m.check.Lasting = inline // the CPU device is never closed
		if len(o.Addresses.script) == 0 {
			o.Addresses = NeverReuse() // so that a stale address never belongs to another allocation
		}
	}
	m.opts = o
	m.changed.L = &m.mu
	m.rng = rand.New(rand.NewPCG(o.Policy.seed, 0))
	m.wake, m.timer, m.drainer = make(chan struct{}, 1), time.NewTimer(time.Hour), m.drain
	m.assistant = time.AfterFunc(time.Hour, m.assist)
	m.assistant.Stop()
	m.callbacks = map[driver.CallbackID]func(){}
	m.devices = make([]*device, o.Devices)
	return &Driver{m: m}
}

// Name returns "hostsim".
func (d *Driver) Name() string { return "hostsim" }

// Version returns the CUDA version whose rules the simulator follows.
func (d *Driver) Version() (int, error) { return 13000, nil }

// DeviceCount returns the number of devices.
func (d *Driver) DeviceCount() (int, error) { return d.m.opts.Devices, nil }

// Open opens device ordinal. Opening an open device returns another handle of the same device.
func (d *Driver) Open(ordinal int) (driver.Device, error) {
	dev, err := d.Device(ordinal)
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// Device is Open with the simulator's own type, which has hooks for tests.
func (d *Driver) Device(ordinal int) (*Device, error) {
	if ordinal < 0 || ordinal >= d.m.opts.Devices {
		return nil, fail("Open", driver.InvalidDevice, fmt.Sprintf("ordinal %d of %d devices", ordinal, d.m.opts.Devices))
	}
	if err := d.m.checkErr; err != nil {
		return nil, fail("Open", driver.InvalidValue, err.Error())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	dev := d.m.devices[ordinal]
	if dev == nil {
		dev = newDevice(d.m, ordinal)
		d.m.put(ordinal, dev)
	}
	dev.opened++
	return &Device{device: dev, drv: d}, nil
}

// release releases one handle of dev and closes dev with the last one.
func (d *Driver) release(dev *device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev.opened--; dev.opened == 0 {
		dev.close()
		d.m.put(dev.info.Ordinal, nil)
	}
}

// fail returns a call's error.
func fail(call string, code driver.Code, detail string) error {
	return &driver.Error{Call: call, Code: code, Detail: detail}
}
