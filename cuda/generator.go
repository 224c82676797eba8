package cuda

import "tenon.dev/internal/rt"

// Generator is the state of a random number generator: a Philox seed and an offset. It is safe for concurrent use.
type Generator rt.Generator

// NewGenerator returns a generator with the given seed, at offset 0.
func NewGenerator(seed uint64) *Generator { return (*Generator)(rt.NewGenerator(seed)) }

// Seed returns the seed.
func (g *Generator) Seed() uint64 { return (*rt.Generator)(g).Seed() }

// SetSeed sets the seed and puts the offset to 0.
func (g *Generator) SetSeed(seed uint64) { (*rt.Generator)(g).SetSeed(seed) }

// Offset returns how many words each thread has drawn, a multiple of 4.
func (g *Generator) Offset() uint64 { return (*rt.Generator)(g).Offset() }

// State returns the state as PyTorch stores it: seed and offset, 8 bytes each, little-endian.
func (g *Generator) State() []byte { return (*rt.Generator)(g).State() }

// SetState sets what State returned; 8 bytes set the seed and put the offset to 0.
func (g *Generator) SetState(b []byte) error { return (*rt.Generator)(g).SetState(b) }

// Generator is the device's default generator.
func (d *Device) Generator() *Generator { return (*Generator)(d.rt().Generator()) }
