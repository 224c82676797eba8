package rt

import (
	"fmt"
	"sync/atomic"

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
	// Guard puts a guard zone behind every allocation and checks it when the memory is freed.
	Guard bool
}

// SetMemoryChecks switches the checks on or off for memory that is allocated and freed from now on. Once they have been on, tensors' memory
// goes through the guards for good, so that existing zones are checked.
func (d *Device) SetMemoryChecks(m MemoryChecks) {
	d.checksMu.Lock()
	defer d.checksMu.Unlock()
	if d.guards.Load() == nil {
		if m == (MemoryChecks{}) {
			return
		}
		d.decorate(d.newGuards())
	}
	d.guards.Load().Set(m.Poison, m.Guard)
}

// checksOfEnvironment switches on what the environment asks for.
func (d *Device) checksOfEnvironment() {
	d.SetMemoryChecks(MemoryChecks{Poison: knob.Poison.Get(), Guard: knob.Guard.Get()})
}

// useMemory makes m the device's memory.
func (d *Device) useMemory(m *alloc.Device) {
	d.mem = m
	d.decorate(m)
	if knob.LookFor("leaks") {
		d.WatchLeaks()
	}
}

// newGuards returns guards of the device's memory, which are off.
func (d *Device) newGuards() *alloc.Guards {
	g := alloc.NewGuards(d.mem, &inspected{backend{d}}, allocatedAt)
	d.guards.Store(g)
	return g
}

// decorate makes a the allocator that tensors use.
func (d *Device) decorate(a alloc.Allocator) { d.blocks.Store(&a) }

// MemoryDefects returns what the memory checks found and no other call has returned yet.
func (d *Device) MemoryDefects() error {
	if g := d.guards.Load(); g != nil {
		return g.Defects()
	}
	return nil
}

// inspected is the device as guards see it.
type inspected struct{ backend }

// Recorded says so of the streams that are captured, and of the pools that captures use: a captured call may take memory of the pool for
// another stream, on which its graph will run.
func (b *inspected) Recorded(id alloc.PoolID, s alloc.Stream) bool {
	_, captured := b.Capturing(s)
	return captured || b.d.mem.DivertedTo(id)
}

func (b *inspected) Runs(id alloc.PoolID) *atomic.Uint64 { return b.d.runsLent(id) }

func (b *inspected) Fill(addr uint64, v byte, n uint64, s alloc.Stream) error {
	if err := b.d.gate.enter(); err != nil {
		return err
	}
	defer b.d.gate.leave()
	return b.d.dev.Memset(driver.Ptr(addr), uint32(v), 1, n, driver.Stream(s))
}

func (b *inspected) Inspect(f func() error) error {
	if b.lost() || b.d.mem.Diverted() {
		return nil
	}
	t, err := b.d.enter()
	if err != nil {
		return err
	}
	defer b.d.leave(t)
	if err := b.d.wait(t); err != nil {
		return err
	}
	return f()
}

func (b *inspected) Read(p []byte, addr uint64, s alloc.Stream) error {
	return b.d.dev.CopyDtoH(p, driver.Ptr(addr), driver.Stream(s))
}

func (b *inspected) Poison(addr uint64, v uint32, n uint64, s alloc.Stream) error {
	return b.d.dev.Memset(driver.Ptr(addr), v, 4, n, driver.Stream(s))
}

// allocatedAt returns the first call outside the library in the context of an allocation, as file and line, or "".
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
