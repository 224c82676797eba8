package rt

import (
	"encoding/binary"
	"sync"

	"tenon.dev/fault"
)

// DefaultSeed is the seed of generators that nobody seeded, PyTorch's.
const DefaultSeed = 67280421310721

// Generator is the state of a random number generator: a Philox seed, and an offset that counts the words each thread has drawn, a multiple
// of 4. It is safe for concurrent use.
type Generator struct {
	mu           sync.Mutex
	seed, offset uint64
}

// NewGenerator returns a generator with the given seed, at offset 0.
func NewGenerator(seed uint64) *Generator { return &Generator{seed: seed} }

// Generator is the device's default generator.
func (d *Device) Generator() *Generator { return &d.generator }

// Usable returns why the generator cannot be used, or nil.
func (g *Generator) Usable() error {
	if g == nil {
		return fault.New(fault.Invalid, "the generator is nil; use one that NewGenerator or a device's Generator returned")
	}
	return nil
}

// Seed returns the seed.
func (g *Generator) Seed() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seed
}

// SetSeed sets the seed and puts the offset to 0.
func (g *Generator) SetSeed(seed uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seed, g.offset = seed, 0
}

// Offset returns how many words each thread has drawn.
func (g *Generator) Offset() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.offset
}

// Take returns the state for a launch in which each thread draws n words, and moves the offset on by n rounded up to a multiple of 4.
func (g *Generator) Take(n uint64) (seed, offset uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	seed, offset = g.seed, g.offset
	g.offset += (n + 3) &^ 3
	return seed, offset
}

// State returns the state as PyTorch stores it: seed and offset, 8 bytes each, little-endian.
func (g *Generator) State() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, g.seed), g.offset)
}

// SetState sets what State returned; 8 bytes set the seed and put the offset to 0.
func (g *Generator) SetState(b []byte) error {
	if len(b) != 8 && len(b) != 16 {
		return fault.New(fault.Invalid, "RNG state is wrong size: it has 16 bytes, not %d", len(b))
	}
	offset := uint64(0)
	if len(b) == 16 {
		offset = binary.LittleEndian.Uint64(b[8:])
	}
	if offset%4 != 0 {
		return fault.New(fault.Invalid, "RNG offset must be a multiple of 4, not %d", offset)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seed, g.offset = binary.LittleEndian.Uint64(b), offset
	return nil
}
