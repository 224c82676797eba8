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
	// dev is the device whose default generator it is, or nil.
	dev *Device

	mu           sync.Mutex
	seed, offset uint64

	// captures counts the captures under way that draw from it; refused is the error of the first change that was refused meanwhile.
	captures int
	refused  error
	// kept is what the tensor line stores here, by device, for graphs that draw from it.
	kept map[*Device]any
}

// NewGenerator returns a generator with the given seed, at offset 0.
func NewGenerator(seed uint64) *Generator { return &Generator{seed: seed} }

// Generator is the device's default generator.
func (d *Device) Generator() *Generator { return &d.generator }

// Device returns the device whose default generator g is, or nil.
func (g *Generator) Device() *Device { return g.dev }

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

// Clone returns a new generator that continues from g's seed and offset.
func (g *Generator) Clone() *Generator {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &Generator{seed: g.seed, offset: g.offset}
}

// SetSeed sets the seed and resets the offset to 0. While a capture draws from g, it returns an error and changes nothing.
func (g *Generator) SetSeed(seed uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.change("set_current_seed"); err != nil {
		return err
	}
	g.seed, g.offset = seed, 0
	return nil
}

// change returns an error, under the name of PyTorch's call, while a capture draws from g: recorded work draws from the generator's state
// at each replay.
func (g *Generator) change(call string) error {
	if g.captures == 0 {
		return nil
	}
	//tenon:quoted PyTorch's text, which its test of a generator in a capture looks for
	err := fault.New(fault.Capture, "Cannot call CUDAGeneratorImpl::%s during CUDA graph capture: a replay draws from where the "+
		"generator is then; set it before the capture or before a Replay", call)
	if g.refused == nil {
		g.refused = err
	}
	return err
}

// BeginCapture says that a capture draws from g from now on.
func (g *Generator) BeginCapture() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.captures == 0 {
		g.refused = nil
	}
	g.captures++
}

// EndCapture says that the capture is over. It returns the error of the first change of g that was refused meanwhile, or nil.
func (g *Generator) EndCapture() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.captures--
	return g.refused
}

// Kept returns what Keep kept for d, or nil.
func (g *Generator) Kept(d *Device) any {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kept[d]
}

// Keep keeps v for d; nil forgets it.
func (g *Generator) Keep(d *Device, v any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v == nil {
		delete(g.kept, d)
		return
	}
	if g.kept == nil {
		g.kept = map[*Device]any{}
	}
	g.kept[d] = v
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

// Untake undoes a Take for a launch that failed: it moves the offset from left back to at, unless somebody else has drawn or seeded since.
func (g *Generator) Untake(seed, at, left uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seed == seed && g.offset == left {
		g.offset = at
	}
}

// State returns the state as PyTorch stores it: seed and offset, 8 bytes each, little-endian.
func (g *Generator) State() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, g.seed), g.offset)
}

// SetState restores a state that State returned; 8 bytes set the seed and reset the offset to 0. While a capture draws from g, it returns
// an error.
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
	if err := g.change("set_state"); err != nil {
		return err
	}
	g.seed, g.offset = binary.LittleEndian.Uint64(b), offset
	return nil
}
