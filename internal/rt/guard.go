package rt

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/knob"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/stack"
)

// MemoryChecks are modes that find misuse of device memory. They make every free wait for the device.
type MemoryChecks struct {
	// Poison fills freed memory with NaNs.
	Poison bool
	// Guard puts a zone behind every allocation and looks at it when the memory is freed.
	Guard bool
}

// The zone is at least guardBytes long, and no more than guardMost of it are looked at. poison is NaN in every floating-point type.
const (
	guardBytes = 512
	guardMost  = 4096
	guardByte  = 0xA5
	poison     = 0x7FFF_7FFF
)

// checks is the state of a device's memory checks, made when one is first switched on.
type checks struct {
	dev           *Device
	poison, guard atomic.Bool

	mu      sync.Mutex
	zones   map[*alloc.Block]uint64 // bytes of each guarded block before its zone
	defects []error                 // found and not told yet
}

// SetMemoryChecks switches the checks on or off for memory that is allocated and freed from now on.
func (d *Device) SetMemoryChecks(m MemoryChecks) {
	c := d.checks.Load()
	if c == nil {
		if m == (MemoryChecks{}) {
			return
		}
		d.checks.CompareAndSwap(nil, &checks{dev: d, zones: map[*alloc.Block]uint64{}})
		c = d.checks.Load()
	}
	c.poison.Store(m.Poison)
	c.guard.Store(m.Guard)
}

// checksOfEnvironment switches on what the environment asks for.
func (d *Device) checksOfEnvironment() {
	d.SetMemoryChecks(MemoryChecks{Poison: knob.Poison.Get(), Guard: knob.Guard.Get()})
}

// told returns what was found since it was called last.
func (c *checks) told() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := errors.Join(c.defects...)
	c.defects = nil
	return err
}

// MemoryDefects returns what the memory checks found and no other call has returned yet.
func (d *Device) MemoryDefects() error {
	if c := d.checks.Load(); c != nil {
		return c.told()
	}
	return nil
}

// alloc is allocFrom with a guard zone.
func (c *checks) alloc(pool alloc.PoolID, n uint64, s alloc.Stream) (*alloc.Block, error) {
	if err := c.told(); err != nil {
		return nil, err
	}
	d := c.dev
	if _, capturing := (&backend{d}).Capturing(s); !c.guard.Load() || capturing {
		return d.mem.AllocFrom(pool, n, s)
	}
	b, err := d.mem.AllocFrom(pool, n+guardBytes, s)
	if err != nil {
		return nil, err
	}
	zone := min(b.Size()-n, guardMost)
	if err := d.gate.enter(); err != nil {
		return nil, err
	}
	defer d.gate.leave()
	if err := d.dev.Memset(driver.Ptr(b.Addr()+n), guardByte, 1, zone, driver.Stream(s)); err != nil {
		return nil, errors.Join(err, d.mem.Free(b))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.zones[b] = n
	return b, nil
}

// freeing looks at the zone of a block that is about to be freed, and poisons it. While a stream is captured nothing is looked at: waiting
// for the device would end the capture.
func (c *checks) freeing(b *alloc.Block) error {
	if b == nil {
		return nil
	}
	d := c.dev
	c.mu.Lock()
	n, guarded := c.zones[b]
	delete(c.zones, b)
	c.mu.Unlock()
	if !guarded && !c.poison.Load() || d.lost.Load() != nil || d.mem.Diverted() {
		return nil
	}
	t, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave(t)
	if err := d.wait(t); err != nil {
		return err
	}
	s := driver.Stream(b.Stream())
	if guarded {
		zone := make([]byte, min(b.Size()-n, guardMost))
		if err := d.dev.CopyDtoH(zone, driver.Ptr(b.Addr()+n), s); err != nil {
			return err
		}
		c.look(b, n, zone)
	}
	if c.poison.Load() {
		return d.dev.Memset(driver.Ptr(b.Addr()), poison, 4, b.Size()/4, s)
	}
	return nil
}

// look notes a zone that was written.
func (c *checks) look(b *alloc.Block, n uint64, zone []byte) {
	first, count := 0, 0
	for i := len(zone) - 1; i >= 0; i-- {
		if zone[i] != guardByte {
			first = i
			count++
		}
	}
	if count == 0 {
		return
	}
	where := "record the memory history to see where it was allocated"
	if line := allocatedAt(b.Context()); line != "" {
		where = "it was allocated at " + line
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.defects = append(c.defects, fault.New(fault.Invalid, "memory was written past its end: behind the %d bytes at %#x, %d bytes changed, the first %d bytes behind the end; %s",
		n, b.Addr(), count, first, where))
}

// allocatedAt names the first call outside of the library in the context of an allocation, or "".
func allocatedAt(context any) string {
	s, ok := context.(*stack.Stack)
	if a, is := context.(*annotated); is {
		s, ok = (*stack.Stack)(a), true
	}
	if !ok {
		return ""
	}
	for f := range s.All() {
		if side, _ := origin.Of(f.Function, f.File); side == origin.Program {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
	return ""
}
