package alloc

import (
	"errors"
	"sync"
	"sync/atomic"

	"tenon.dev/fault"
)

// Inspected is what Guards need of a device.
type Inspected interface {
	// Recorded reports whether memory of private pool id for work on s is for a graph that is being captured: its work does not run now.
	Recorded(id PoolID, s Stream) bool
	// Runs counts the runs of graphs that write to private pool id, whoever has memory there; nil means that there are none.
	Runs(id PoolID) *atomic.Uint64
	// Fill queues work on s that sets the n bytes that begin at addr to v.
	Fill(addr uint64, v byte, n uint64, s Stream) error
	// Inspect calls f when all work of the device is complete. It does nothing if it cannot wait: on a device that is lost, or while a
	// stream is captured.
	Inspect(f func() error) error
	// Read copies the bytes at addr to p, within Inspect.
	Read(p []byte, addr uint64, s Stream) error
	// Poison sets the n words of 4 bytes that begin at addr to v, within Inspect.
	Poison(addr uint64, v uint32, n uint64, s Stream) error
}

// A guard zone is at least guardBytes long, and at most guardMost bytes of it are checked. poison is NaN in every floating-point type.
const (
	guardBytes = 512
	guardMost  = 4096
	guardByte  = 0xA5
	poison     = 0x7FFF_7FFF
)

// Guards is an Allocator that finds misuse of memory: with guards on, it puts a guard zone behind every allocation and checks it when the
// memory is freed; with poison on, it fills freed memory with NaNs. Either makes every free wait for the device. While a stream is
// captured, nothing is checked, and its graph's memory gets no zones: the graph may use the same place for something else before. Where
// graphs write whoever has the memory, nothing is poisoned, and no zone is checked that is older than the last run.
type Guards struct {
	Allocator
	dev           Inspected
	line          func(context any) string
	poison, guard atomic.Bool

	mu      sync.Mutex
	zones   map[uint64]zone // by the address of each guarded block
	defects []error         // found and not reported yet
}

// zone is behind the first size bytes of a block. Once runs is no longer ran, a graph may have overwritten it.
type zone struct {
	size, ran uint64
	runs      *atomic.Uint64
}

// newZone returns the zone behind size bytes of b.
func (g *Guards) newZone(b *Block, size uint64) zone {
	z := zone{size: size, runs: g.dev.Runs(b.Pool())}
	if z.runs != nil {
		z.ran = z.runs.Load()
	}
	return z
}

// overwritten reports whether a graph may have written to the zone.
func (z *zone) overwritten() bool { return z.runs != nil && z.runs.Load() != z.ran }

// NewGuards returns guards over a, which are off. line returns the program's line in a block's context, or "".
func NewGuards(a Allocator, dev Inspected, line func(context any) string) *Guards {
	return &Guards{Allocator: a, dev: dev, line: line, zones: map[uint64]zone{}}
}

// Set switches zones on or off for memory that is allocated from now on, and poison for what is freed from now on.
func (g *Guards) Set(poison, guard bool) {
	g.poison.Store(poison)
	g.guard.Store(guard)
}

// Defects returns the defects found since it was last called, or nil.
func (g *Guards) Defects() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := errors.Join(g.defects...)
	g.defects = nil
	return err
}

// AllocFrom returns a block with a zone behind the size bytes. Defects that were not reported yet are its error.
func (g *Guards) AllocFrom(id PoolID, size uint64, s Stream) (*Block, error) {
	if err := g.Defects(); err != nil {
		return nil, err
	}
	if !g.guard.Load() || g.dev.Recorded(id, s) {
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
	g.zones[b.addr] = g.newZone(b, size)
	return b, nil
}

// zoneBytes returns how many bytes of the zone behind size bytes are checked.
func zoneBytes(b *Block, size uint64) uint64 { return min(b.size-size, guardMost) }

// Free checks the zone of a block, poisons the block, and frees it even if one of these fails.
func (g *Guards) Free(b *Block) error {
	return errors.Join(g.freeing(b), g.Allocator.Free(b))
}

func (g *Guards) freeing(b *Block) error {
	if b == nil {
		return nil
	}
	g.mu.Lock()
	z, guarded := g.zones[b.addr]
	delete(g.zones, b.addr)
	g.mu.Unlock()
	poisoned := g.poison.Load() && g.dev.Runs(b.Pool()) == nil // a graph may have written its results there by now
	if !guarded && !poisoned {
		return nil
	}
	return g.dev.Inspect(func() error {
		if guarded {
			read := make([]byte, zoneBytes(b, z.size))
			if err := g.dev.Read(read, b.addr+z.size, b.Stream()); err != nil {
				return err
			}
			if !z.overwritten() {
				g.look(b, z.size, read)
			}
		}
		if poisoned {
			return g.dev.Poison(b.addr, poison, b.size/4, b.Stream())
		}
		return nil
	})
}

// look adds a defect if the zone was written.
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
		"memory was written past its end: behind the %d bytes at %#x, %d bytes changed, the first of which is byte %d past the end; %s",
		size, b.addr, count, first+1, where))
}

// Forget drops the zones of blocks at these addresses that were freed without the guards, as Restore does.
func (g *Guards) Forget(addrs []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range addrs {
		delete(g.zones, a)
	}
}
