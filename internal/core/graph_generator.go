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

// Kernels that were captured read a generator's seed and offset from device memory, so that captured and eager draws interleave as if all
// were eager. A graph itself moves the offset on at its end, and a replay fills the memory only where something else drew or seeded since:
// replays alone need no work besides.

// generatorState is what the graphs of a device that draw from a generator share.
type generatorState struct {
	g   *rt.Generator
	dev *rt.Device
	// seed and offset are int64 tensors of one element, two blocks as PyTorch has them.
	seed, offset *Tensor

	// Under generatorMu.
	graphs int
	// known says that the tensors will hold the following once all queued work is done.
	known    bool
	at, from uint64 // seed and offset
}

// generatorMu is held while graphs join and leave states, and while a run of a graph that draws is queued.
var generatorMu sync.Mutex

// stateOf returns the state of g on dev for one graph more.
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

// leave says that a graph is gone; the last one takes the state along.
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

// newWord returns an int64 of its own outside of any scope or capture.
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
	// advance is by how much one run moves the offset on.
	advance uint64
	// drawn is what the run that is being queued takes from the generator.
	drawn taken
}

// known returns what the graph has of g, or nil.
func (c *capture) known(g *rt.Generator) *captured {
	if i := slices.IndexFunc(c.generators, func(r *captured) bool { return r.state.g == g }); i >= 0 {
		return c.generators[i]
	}
	return nil
}

// generator is known, of a g that may be new to the graph.
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

// leaveGenerators ends the capture's hold on its generators, and on their states too if there is to be no graph. The error is that of a
// generator that was to be changed meanwhile.
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

// take returns the state for a kernel of the graph in which each thread draws n words.
func (r *captured) take(n uint64) kernels.Philox {
	ph := kernels.Philox{SeedPtr: r.state.seed.ptr(), OffsetPtr: r.state.offset.ptr(), Offset: r.advance}
	r.advance += (n + 3) &^ 3
	return ph
}

// advance makes the graph move the offsets on at its end. Nothing is ordered by it now: the runs are.
func (c *capture) advance() {
	for _, r := range c.generators {
		if r.idle() {
			continue
		}
		x := c.x.NoGrad().ManualStreams()
		x.AddSInto(r.state.offset, r.state.offset, float64(r.advance))
		if !c.linear {
			c.touch(r.state.seed.st, false)
		}
	}
}

// refill makes the device's numbers those of the generator for the run that is queued next, and moves the generator on.
func (r *captured) refill(x *Exec) {
	s := r.state
	seed, offset := s.g.Take(r.advance)
	r.drawn = taken{s.g, seed, offset, offset + r.advance}
	r.fill(x, seed, offset)
}

// fill makes the device's numbers seed and offset for the run that is queued next.
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

// setWord queues the filling of an int64 of one element.
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

// take takes from g what a launch needs in which each thread draws n words.
func take(g *rt.Generator, n uint64) taken {
	seed, offset := g.Take(n)
	return taken{g, seed, offset, offset + (n+3)&^3}
}
