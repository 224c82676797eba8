package core

import (
	"errors"
	"slices"
	"sync"

	"tenon.dev/dtype"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// Captured kernels read a generator's seed and offset from device memory, so that captured and eager draws interleave as if all were eager.
// A graph itself advances the offset at its end, and a replay writes the memory only if something else drew or seeded since: consecutive
// replays need no extra work.

// generatorState is the state that a device's graphs share if they draw from the same generator.
type generatorState struct {
	g   *rt.Generator
	dev *rt.Device
	// seed and offset are int64 tensors of one element, in two blocks as in PyTorch.
	seed, offset *Tensor

	// Under generatorMu.
	graphs int
	// known says that the tensors will hold the following once all queued work is done.
	known    bool
	at, from uint64 // seed and offset
}

// generatorMu is held while graphs join and leave states, and while a run of a graph that draws is queued.
var generatorMu sync.Mutex

// stateOf returns the state of g on dev, and counts one more graph.
func stateOf(g *rt.Generator, dev *rt.Device) (*generatorState, error) {
	generatorMu.Lock()
	defer generatorMu.Unlock()
	s, _ := g.Kept(dev).(*generatorState)
	if s == nil {
		s = &generatorState{g: g, dev: dev}
		var err error
		if s.seed, err = newWord(dev); err == nil {
			s.offset, err = newWord(dev)
		}
		if err != nil {
			s.close()
			return nil, err
		}
		g.Keep(dev, s)
	}
	s.graphs++
	return s, nil
}

// leave notes that a graph is gone; the last one closes the state.
func (s *generatorState) leave() {
	generatorMu.Lock()
	defer generatorMu.Unlock()
	if s.graphs--; s.graphs == 0 {
		s.g.Keep(s.dev, nil)
		s.close()
	}
}

func (s *generatorState) close() {
	for _, t := range []*Tensor{s.seed, s.offset} {
		if t != nil {
			t.Close()
		}
	}
}

// newWord returns a new int64 tensor of one element, outside of any scope or capture.
func newWord(dev *rt.Device) (*Tensor, error) {
	const bytes = 8
	b, err := dev.Alloc(bytes, alloc.Stream(dev.DefaultStream().Handle()))
	if err != nil {
		return nil, err
	}
	n := &fresh{}
	t := &n.Tensor
	t.dt, t.st = dtype.Int64, &n.own
	t.form = formOf([]int{1}, nil)
	n.own.dev, n.own.bytes, n.own.block, n.own.ptr = dev, bytes, b, b.Addr()
	live.Add(1)
	t.own()
	return t, nil
}

// captured is a generator in a graph.
type captured struct {
	state *generatorState
	// advance is how far one run advances the offset.
	advance uint64
	// drawn is the draw of the run that is being queued.
	drawn taken
}

// known returns the graph's entry for g, or nil.
func (c *capture) known(g *rt.Generator) *captured {
	if i := slices.IndexFunc(c.generators, func(r *captured) bool { return r.state.g == g }); i >= 0 {
		return c.generators[i]
	}
	return nil
}

// generator is known, but adds g if it is new to the graph.
func (c *capture) generator(g *rt.Generator) *captured {
	if r := c.known(g); r != nil {
		return r
	}
	state, err := stateOf(g, c.x.Device())
	c.x.check("Capture", err)
	g.BeginCapture()
	r := &captured{state: state}
	c.generators = append(c.generators, r)
	return r
}

// leaveGenerators ends the capture's use of its generators, and of their states too if there will be no graph. The error is about a
// generator that somebody tried to change meanwhile.
func (c *capture) leaveGenerators(abandon bool) (err error) {
	for _, r := range c.generators {
		err = errors.Join(err, r.state.g.EndCapture())
	}
	if abandon || err != nil {
		for _, r := range c.generators {
			r.state.leave()
		}
		c.generators = nil
	}
	return err
}

// idle reports whether the graph draws nothing from the generator.
func (r *captured) idle() bool { return r.advance == 0 }

// take returns the generator state for a kernel of the graph in which each thread draws n words.
func (r *captured) take(n uint64) kernels.Philox {
	ph := kernels.Philox{SeedPtr: r.state.seed.ptr(), OffsetPtr: r.state.offset.ptr(), Offset: r.advance}
	r.advance += (n + 3) &^ 3
	return ph
}

// advance makes the graph advance the offsets at its end. Nothing is ordered here, because the runs are ordered.
func (c *capture) advance() {
	for _, r := range c.generators {
		if r.idle() {
			continue
		}
		x := c.x.noGrad().ManualStreams()
		x.AddSInto(r.state.offset, r.state.offset, float64(r.advance))
		if !c.linear {
			c.touch(r.state.seed, false)
		}
	}
}

// refill sets the device's seed and offset to the generator's for the run that is queued next, and advances the generator.
func (r *captured) refill(x *Exec) {
	s := r.state
	seed, offset := s.g.Take(r.advance)
	r.drawn = taken{s.g, seed, offset, offset + r.advance}
	r.fill(x, seed, offset)
}

// fill sets the device's seed and offset for the run that is queued next.
func (r *captured) fill(x *Exec, seed, offset uint64) {
	s := r.state
	known := s.known
	s.known = false
	if !known || s.at != seed {
		x.setWord(s.seed, seed)
	}
	if !known || s.from != offset {
		x.setWord(s.offset, offset)
	}
	s.known, s.at, s.from = true, seed, offset+r.advance
}

// doubt notes, if a run of r failed, that the device may not have the states that it was to leave.
func (r *Recorded) doubt(err error) {
	if err == nil {
		return
	}
	for _, c := range r.generators {
		c.state.known = false
	}
}

// setWord queues a write of v to t, an int64 of one element.
func (x *Exec) setWord(t *Tensor, v uint64) {
	f := x.op(rowFill)
	f.scalar[0] = kernels.IntScalar(int64(v))
	f.call1Into(t)
}

// Generator returns the generator that x draws random numbers from.
func (x *Exec) Generator() *rt.Generator {
	if x.m.generator != nil {
		return x.m.generator
	}
	return x.m.stream.Device().Generator()
}

// take draws from g for a launch in which each thread draws n words.
func take(g *rt.Generator, n uint64) taken {
	seed, offset := g.Take(n)
	return taken{g, seed, offset, offset + (n+3)&^3}
}
