package faults

import (
	"sync"

	"tenon.dev/internal/driver"
)

// Live counts what was made through a Device and not yet released.
type Live struct {
	// Blocks and Bytes are of device memory, including mapped memory, Ranges of reserved addresses, HostBlocks and HostBytes of page-locked
	// memory.
	Blocks, Ranges, HostBlocks int
	Bytes, HostBytes           uint64
	// The counts of handles.
	Streams, Events, Graphs, Execs, Modules, Callbacks int
}

// Device passes calls to another device and injects the requested failure. It implements driver.Device and is safe for concurrent use.
type Device struct {
	driver.Device

	noFaults bool // device faults are not injected

	mu     sync.Mutex
	live   Live
	blocks map[driver.Ptr]uint64
	count  int         // failable calls so far
	at     int         // the call to fail; 0: none
	pick   int         // which of its codes to return
	method string      // the method of the failed call
	code   driver.Code // and its code
	fault  driver.Code // the device fault that all calls return, once a sticky code was returned
	taken  int         // calls so far that allocate
	starve int         // the first of them that fails, with all later ones; 0: none
}

var _ driver.Device = (*Device)(nil)

// New returns a decorator of d that does not inject failures yet. Closing it closes d.
func New(d driver.Device) *Device {
	return &Device{Device: d, blocks: map[driver.Ptr]uint64{}}
}

// Arm makes the n-th failable call from now on (1 is the next) fail with the pick-th code listed for its method. A device fault is sticky:
// every later call fails with it, and frees return nil but do free. Arm(0, 0) disables failures and clears such a fault.
func (d *Device) Arm(n, pick int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count, d.at, d.pick, d.method, d.code, d.fault = 0, n, pick, "", driver.Success, driver.Success
	d.taken, d.starve = 0, 0
}

// Starve makes the n-th and every later call that allocates memory, or creates a stream or an event, fail with OutOfMemory, as on a device
// that is too small. Arm ends it.
func (d *Device) Starve(n int) {
	d.Arm(0, 0)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.starve = n
}

// SpareFaults leaves out the codes that are device faults, for programs that keep using the device.
func (d *Device) SpareFaults() { d.noFaults = true }

// Fired returns the method that failed since Arm and its code, or "" if that call was not reached or has no such code.
func (d *Device) Fired() (method string, code driver.Code) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.method, d.code
}

// Calls returns the number of failable calls since Arm.
func (d *Device) Calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

// Live returns how much is live now, of each kind.
func (d *Device) Live() Live {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live
}

// fail returns the error that the method must return, or nil to continue.
func (d *Device) fail(method string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault != driver.Success {
		return &driver.Error{Call: method, Code: d.fault, Detail: "injected earlier"}
	}
	var list []driver.Code
	for _, c := range codes[method] {
		if !d.noFaults || !c.Sticky() {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil
	}
	if list[0] == driver.OutOfMemory {
		if d.taken++; d.starve > 0 && d.taken >= d.starve {
			d.method, d.code = method, driver.OutOfMemory
			return &driver.Error{Call: method, Code: d.code, Detail: "injected"}
		}
	}
	d.count++
	if d.count != d.at || d.pick >= len(list) {
		return nil
	}
	d.method, d.code = method, list[d.pick]
	if d.code.Sticky() {
		d.fault = d.code
	}
	return &driver.Error{Call: method, Code: d.code, Detail: "injected"}
}

// note applies change to the live counts if err is nil, and returns err.
func (d *Device) note(err error, change func(l *Live)) error {
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		change(&d.live)
	}
	return err
}
