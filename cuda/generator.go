package cuda

import (
	"fmt"

	"tenon.dev/internal/rt"
)

// Generator is the state of a random number generator: a Philox seed and an offset. It is safe for concurrent use.
type Generator rt.Generator

func (g *Generator) rt() *rt.Generator { return receiver((*rt.Generator)(g)) }

// NewGenerator returns a generator with the given seed, at offset 0.
func NewGenerator(seed uint64) *Generator { return (*Generator)(rt.NewGenerator(seed)) }

// Seed returns the seed.
func (g *Generator) Seed() uint64 { return g.rt().Seed() }

// Clone returns a new generator that continues from g's seed and offset.
func (g *Generator) Clone() *Generator { return (*Generator)(g.rt().Clone()) }

// SetSeed sets the seed and resets the offset to 0. It fails only while a graph is captured that draws from g, and makes that capture fail
// too: seed before the capture, or before a replay, which draws from the generator's state at that time.
func (g *Generator) SetSeed(seed uint64) (err error) {
	defer returned(&err)
	return g.rt().SetSeed(seed)
}

// Offset returns how many words each thread has drawn, a multiple of 4. Draws that a capture records count when the graph runs.
func (g *Generator) Offset() uint64 { return g.rt().Offset() }

// String describes the generator, such as "cuda.Generator(seed 42, offset 0)".
func (g *Generator) String() string {
	if err := (*rt.Generator)(g).Usable(); err != nil {
		return fmt.Sprintf("cuda.Generator(%v)", err)
	}
	return fmt.Sprintf("cuda.Generator(seed %d, offset %d)", g.Seed(), g.Offset())
}

// State returns the state as PyTorch stores it: seed and offset, 8 bytes each, little-endian.
func (g *Generator) State() []byte { return g.rt().State() }

// SetState restores a state that State returned; 8 bytes set the seed and reset the offset to 0. During a capture that draws from g, it
// fails as SetSeed does.
func (g *Generator) SetState(b []byte) (err error) {
	defer returned(&err)
	return g.rt().SetState(b)
}

// Generator is the device's default generator.
func (d *Device) Generator() *Generator { return (*Generator)(d.rt().Generator()) }
