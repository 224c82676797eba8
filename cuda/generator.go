package cuda

import "tenon.dev/internal/rt"

// Generator is the state of a random number generator: a Philox seed and an offset. It is safe for concurrent use.
type Generator rt.Generator

func (g *Generator) rt() *rt.Generator { return receiver((*rt.Generator)(g)) }

// NewGenerator returns a generator with the given seed, at offset 0.
func NewGenerator(seed uint64) *Generator { return (*Generator)(rt.NewGenerator(seed)) }

// Seed returns the seed.
func (g *Generator) Seed() uint64 { return g.rt().Seed() }

// SetSeed sets the seed and puts the offset to 0.
func (g *Generator) SetSeed(seed uint64) { g.rt().SetSeed(seed) }

// Offset returns how many words each thread has drawn, a multiple of 4.
func (g *Generator) Offset() uint64 { return g.rt().Offset() }

// State returns the state as PyTorch stores it: seed and offset, 8 bytes each, little-endian.
func (g *Generator) State() []byte { return g.rt().State() }

// SetState sets what State returned; 8 bytes set the seed and put the offset to 0.
func (g *Generator) SetState(b []byte) (err error) {
	defer returned(&err)
	return g.rt().SetState(b)
}

// Generator is the device's default generator.
func (d *Device) Generator() *Generator { return (*Generator)(d.rt().Generator()) }
