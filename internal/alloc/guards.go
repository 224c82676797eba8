package alloc

import (
	"errors"
	"sync"
	"sync/atomic"

	"tenon.dev/fault"
)

// Inspected is what Guards need of a device.
type Inspected interface {
	// Capturing is Backend's.
	Capturing(s Stream) (id uint64, ok bool)
	// Fill queues on s to set n bytes from addr on to v.
	Fill(addr uint64, v byte, n uint64, s Stream) error
	// Inspect calls f when all work of the device is complete. It does nothing where that cannot be waited for: on a device that is lost,
	// or while a stream is captured.
	Inspect(f func() error) error
	// Read copies the bytes at addr to p, within Inspect.
	Read(p []byte, addr uint64, s Stream) error
	// Poison sets n words of 4 bytes from addr on to v, within Inspect.
	Poison(addr uint64, v uint32, n uint64, s Stream) error
}

// The zone is at least guardBytes long, and no more than guardMost of it are looked at. poison is NaN in every floating-point type.
const (
	guardBytes = 512
	guardMost  = 4096
	guardByte  = 0xA5
	poison     = 0x7FFF_7FFF
)

// Guards is an Allocator that finds misuse of memory: with guards on, it puts a zone behind every allocation and looks at it when the
// memory is freed; with poison on, it fills freed memory with NaNs. Either makes every free wait for the device, but while a stream is
// captured, when nothing is looked at.
type Guards struct {
	Allocator
	dev           Inspected
	line          func(context any) string
	poison, guard atomic.Bool

	mu      sync.Mutex
	zones   map[uint64]uint64 // address of each guarded block to the bytes before its zone
	defects []error           // found and not told yet
}

// NewGuards returns guards of what a gives, which are off. line names the line of the program in a block's context, or is empty.
func NewGuards(a Allocator, dev Inspected, line func(context any) string) *Guards {
	return &Guards{Allocator: a, dev: dev, line: line, zones: map[uint64]uint64{}}
}

// Set switches zones on or off for memory that is allocated from now on, and poison for what is freed from now on.
func (g *Guards) Set(poison, guard bool) {
	g.poison.Store(poison)
	g.guard.Store(guard)
}

// Defects returns what was found since it was called last, or nil.
func (g *Guards) Defects() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := errors.Join(g.defects...)
	g.defects = nil
	return err
}

// AllocFrom returns a block with a zone behind the size bytes. What was found and not told yet is its error.
func (g *Guards) AllocFrom(id PoolID, size uint64, s Stream) (*Block, error) {
	if err := g.Defects(); err != nil {
		return nil, err
	}
	if _, capturing := g.dev.Capturing(s); !g.guard.Load() || capturing {
		return g.Allocator.AllocFrom(id, size, s)
	}
	b, err := g.Allocator.AllocFrom(id, size+guardBytes, s)
	if err != nil {
		return nil, err
	}
	if err := g.dev.Fill(b.addr+size, guardByte, zoneBytes(b, size), s); err != nil {
		return nil, errors.Join(err, g.Allocator.Free(b))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.zones[b.addr] = size
	return b, nil
}

// zoneBytes is how much of the zone behind size bytes is looked at.
func zoneBytes(b *Block, size uint64) uint64 { return min(b.size-size, guardMost) }

// Free looks at the zone of a block, poisons it, and frees it whatever comes of that.
func (g *Guards) Free(b *Block) error {
	return errors.Join(g.freeing(b), g.Allocator.Free(b))
}

func (g *Guards) freeing(b *Block) error {
	if b == nil {
		return nil
	}
	g.mu.Lock()
	size, guarded := g.zones[b.addr]
	delete(g.zones, b.addr)
	g.mu.Unlock()
	if !guarded && !g.poison.Load() {
		return nil
	}
	return g.dev.Inspect(func() error {
		if guarded {
			zone := make([]byte, zoneBytes(b, size))
			if err := g.dev.Read(zone, b.addr+size, b.Stream()); err != nil {
				return err
			}
			g.look(b, size, zone)
		}
		if g.poison.Load() {
			return g.dev.Poison(b.addr, poison, b.size/4, b.Stream())
		}
		return nil
	})
}

// look notes a zone that was written.
func (g *Guards) look(b *Block, size uint64, zone []byte) {
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
	if line := g.line(b.context); line != "" {
		where = "it was allocated at " + line
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.defects = append(g.defects, fault.New(fault.Invalid,
		"memory was written past its end: behind the %d bytes at %#x, %d bytes changed, the first %d bytes behind the end; %s",
		size, b.addr, count, first, where))
}

// Forget drops the zones of what was freed at these addresses past the guards, as Restore does.
func (g *Guards) Forget(addrs []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range addrs {
		delete(g.zones, a)
	}
}
