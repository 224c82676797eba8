package hostsim

import (
	"sync"
	"time"

	"tenon.dev/internal/driver"
)

// device is one simulated device. Its fields are guarded by the machine's mu, except mem, which has its own lock.
type device struct {
	m      *machine
	info   driver.Info
	mem    *memory
	pool   pool
	legacy *stream
	opened int

	fault  *driver.Error // the device fault, once one happened
	closed bool
	// failures are the failed assertions that may still be unreported, oldest first.
	failures []*assertFailure
	tokens   map[uint64]*token
	spare    []*token // tokens after Leave, for the next Enter
	// When all work that has run is complete: for the device, and for its blocking streams.
	latest, blocking int64
	ordered          []*stream // those that a checker has asked about

	streams table[stream]
	modules table[module]
	funcs   table[function]
	graphs  table[graph]
	execs   table[graphExec]
}

// Device is an opened device with the simulator's hooks for tests. It implements driver.Device.
type Device struct {
	*device
	drv  *Driver
	once sync.Once
}

var _ driver.Device = (*Device)(nil)

// newDevice returns device ordinal of m.
func newDevice(m *machine, ordinal int) *device {
	o := &m.opts
	d := &device{m: m, tokens: map[uint64]*token{}, pool: pool{blocks: map[uint64]poolBlock{}}}
	d.info = driver.Info{
		Name: o.Name, Ordinal: ordinal, UUID: [16]byte{'h', 'o', 's', 't', 's', 'i', 'm', 15: byte(ordinal)}, Major: 9, Minor: 0,
		TotalMemory: o.Capacity, Multiprocessors: o.Multiprocessors, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, WarpSize: 32,
		SharedPerBlock: 48 << 10, SharedPerBlockOptin: 227 << 10, SharedPerSM: 228 << 10, L2Bytes: 50 << 20, ClockKHz: o.ClockKHz,
		Image: driver.FormatKIR, Integrated: m.inline, Inline: m.inline, Recovers: !m.inline,
		VirtualMemory: virtualMemory && !m.inline, PoolMemory: !m.inline, Checked: m.check != nil,
	}
	if m.inline {
		d.info.TotalMemory = hostMemoryBytes()
	}
	d.mem = newMemory(o, ordinal, m)
	d.legacy = &stream{dev: d, legacy: true}
	return d
}

// Info describes the device.
func (d *device) Info() *driver.Info { return &d.info }

// lock locks the machine for a call of this device. On error the lock is not held.
func (d *device) lock(call string) error {
	d.m.mu.Lock()
	if d.fault != nil || d.closed {
		err := d.gone(call)
		d.m.mu.Unlock()
		return err
	}
	return nil
}

// gone returns the error of a call on a closed or faulted device, or nil; mu is held.
func (d *device) gone(call string) error {
	if d.closed {
		return fail(call, driver.Deinitialized, "the device was closed")
	}
	if d.fault != nil {
		return &driver.Error{Call: call, Code: d.fault.Code, Detail: d.fault.Detail, Kernel: d.fault.Kernel}
	}
	return nil
}

// lockThread is lock for a call that takes a token.
func (d *device) lockThread(call string, t driver.Thread) (*token, error) {
	if err := d.lock(call); err != nil {
		return nil, err
	}
	tok, ok := t.(*token)
	if !ok || tok.dev != d || tok.depth == 0 {
		d.m.mu.Unlock()
		return nil, fail(call, driver.InvalidContext, "the token is not this device's, or Leave was called")
	}
	return tok, nil
}

// lockUnsafe is lockThread for a call that CUDA classes as potentially unsafe, and so a capture may forbid.
func (d *device) lockUnsafe(call string, t driver.Thread) error {
	tok, err := d.lockThread(call, t)
	if err != nil {
		return err
	}
	if code := d.m.forbidden(tok); code != driver.Success {
		d.m.mu.Unlock()
		return fail(call, code, "")
	}
	return nil
}

// Synchronize blocks until all work of the device is done.
func (d *device) Synchronize(t driver.Thread) error {
	if _, err := d.lockThread("Synchronize", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	if code := d.m.capturingDevice(d); code != driver.Success {
		return fail("Synchronize", code, "")
	}
	d.m.await(target{dev: d, seq: d.m.seq})
	if d.pool.usage.Reserved > d.pool.keep {
		d.trim(d.pool.keep)
	}
	return d.gone("Synchronize")
}

// poison loses the device to a fault of its work: its queues are dropped, and waits for them end; mu is held.
func (d *device) poison(f *driver.Error) {
	m := d.m
	if d.fault == nil {
		d.forget(true)
		d.fault = f
	}
	for i := len(m.active) - 1; i >= 0; i-- {
		if s := m.active[i]; s.dev == d {
			s.drop(m)
		}
	}
	m.changed.Broadcast()
}

// Close waits for all work and releases what the device holds. A second call does nothing.
func (d *Device) Close() error {
	d.once.Do(func() { d.drv.release(d.device) })
	return nil
}

// close waits for the device's work and frees its memory.
func (d *device) close() {
	m := d.m
	m.mu.Lock()
	for _, s := range m.active {
		if s.dev == d {
			s.held = 0
		}
	}
	m.poke()
	m.await(target{dev: d, seq: m.seq})
	d.closed = true
	d.forget(d.fault != nil)
	for i := 0; i < len(m.captures); {
		if c := m.captures[i]; c.dev == d {
			m.leave(c)
		} else {
			i++
		}
	}
	m.mu.Unlock()
	m.mapped.Lock()
	defer m.mapped.Unlock()
	d.mem.close()
	for _, b := range m.host.removeAll(d) {
		unmapHost(b)
	}
}

// Hold keeps s from running until release is called: a gate for tests, instead of sleeping.
func (d *Device) Hold(s driver.Stream) (release func()) {
	m := d.m
	m.mu.Lock()
	defer m.mu.Unlock()
	st := d.stream(s)
	if st == nil {
		panic("hostsim: Hold of a stream that is not the device's")
	}
	st.held++
	var once sync.Once
	return func() {
		once.Do(func() {
			m.mu.Lock()
			st.held--
			m.poke()
			m.mu.Unlock()
		})
	}
}

// Now returns the device clock.
func (d *Device) Now() time.Duration {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return time.Duration(d.m.clock())
}

// Advance moves virtual time by dt and runs the work due by then. In real time it does nothing.
func (d *Device) Advance(dt time.Duration) {
	m := d.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.opts.RealTime {
		m.now += int64(dt)
		m.runDue()
	}
}

// SetPolicy changes the schedule of the whole machine from now on.
func (d *Device) SetPolicy(p Policy) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	d.m.setPolicy(p)
}
