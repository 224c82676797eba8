package core

import (
	"bytes"
	"weak"

	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// A checkpointed segment saves only its inputs. Its operations are recorded like any others, so that gradients flow as they would without a
// checkpoint, but each saved tensor is replaced by a number: the first derivative that asks for one of these tensors runs the segment
// again, which saves the same tensors in the same order.

// checkpoint is a segment and a record of its first run.
type checkpoint struct {
	f func(x *Exec, ins []*Tensor) []*Tensor
	m mode
	// inputs holds the inputs as a node holds saved tensors, through the hooks outside of the segment; needs marks those that want a
	// gradient.
	inputs *node
	needs  []bool
	rng    draws
	// saved are the tensors that the first run saved.
	saved []forgotten
	left  int // how many of them the graph still holds
	// running says that the first run has not ended: a backward pass within the segment asks for what it has saved so far.
	running bool
}

// forgotten is a tensor that the first run saved.
type forgotten struct {
	// st is its storage, which may be freed by now, and version the storage's version then.
	st      weak.Pointer[storage]
	version uint32
	meta    meta
	dropped bool
	// again is the tensor that the last run saved in its place, or nil.
	again *Tensor
}

// recomputed is what a node keeps in place of saved tensor i.
type recomputed struct {
	c *checkpoint
	i int
}

// drop notes that the graph no longer needs the tensor.
func (r recomputed) drop() {
	s := &r.c.saved[r.i]
	s.again.close()
	s.again, s.dropped = nil, true
	if r.c.left--; r.c.left == 0 {
		r.c.inputs.release()
	}
}

// rowCheckpoint names segments in errors; it is not an operation.
var rowCheckpoint = &row{Name: "Checkpoint"}

// Checkpoint runs f on the inputs, which are on x's device, and returns f's results. Of the tensors that f's operations save for backward,
// only the inputs are kept; the backward pass runs f again, once, to compute the rest, and frees that as it goes. Gradients, also those of
// parameters that f uses, are the same bit for bit as without Checkpoint. A sequence of segments then needs device memory for its inputs
// and for one segment at a time, at the cost of one more forward pass.
//
// f gets the Exec that it must use. In the second run that Exec has the same stream, autocast and other modes, and draws the same random
// numbers if they come from the Exec's own generator; the two runs together advance a generator only once. f must do the same both times:
// it must not depend on anything that has changed since, and tensors that it uses besides the inputs must be open in the backward pass. Its
// other side effects, such as collected statistics, happen twice. If an input, or another tensor that f saved and did not make, was changed
// in place since, the backward pass fails; it also fails if the second run saves another number of tensors, or different ones. With
// RetainGraph each pass runs f again. Segments nest. A backward pass within f runs f again too, and comes again each time f runs; use Grad
// there, since Backward would add to gradients more than once. In a graph, a segment with random numbers must have its backward pass in the
// graph too.
func (x *Exec) Checkpoint(f func(x *Exec, ins []*Tensor) []*Tensor, ins ...*Tensor) []*Tensor {
	if x.m.noGrad {
		return x.WithinMany(func(x *Exec) []*Tensor { return f(x, ins) })
	}
	c := &checkpoint{f: f, m: x.m, inputs: newNode(rowCheckpoint, &x.m), left: 1}
	c.inputs.refs.Add(1)
	defer recomputed{c, c.first()}.drop()
	for i, t := range ins {
		Given("Checkpoint", i, t)
		if dev := x.Device(); t.st.dev != dev {
			here, there := rt.Apart(dev, t.st.dev)
			x.fail("Checkpoint", fault.Invalid, ins, "input %d is on %s, but the segment runs on %s; move it with x.To", i, there, here)
		}
		t.settle("Checkpoint")
		c.needs = append(c.needs, t.RequiresGrad())
		c.inputs.keep(x, 0, t)
	}
	c.rng.begin(x)
	m := x.m
	m.saved = &savedHooks{pack: c.pack, unpack: c.unpack, ours: true}
	c.running = true
	outs := x.with(m).WithinMany(func(x *Exec) []*Tensor { return f(x, ins) })
	c.running = false
	c.rng.end()
	return outs
}

// first adds an entry that stands for the first run itself, so that the inputs are kept until it ends.
func (c *checkpoint) first() int {
	c.saved = append(c.saved, forgotten{})
	return 0
}

func (c *checkpoint) pack(_ *Exec, t *Tensor) any {
	c.saved = append(c.saved, forgotten{st: weak.Make(t.st), version: t.st.version.Load(), meta: metaOf(t)})
	c.left++
	return recomputed{c, len(c.saved) - 1}
}

func (c *checkpoint) unpack(x *Exec, v any) *Tensor {
	s := &c.saved[v.(recomputed).i]
	if s.again == nil {
		c.again(x)
	}
	return s.again
}

// again runs the segment again and keeps the tensors that it saves until the backward pass under way ends.
func (c *checkpoint) again(x *Exec) {
	s, m, n := x.s, c.m, 1
	m.noGrad, m.pool = false, x.m.pool
	done := false
	defer func() {
		if !done {
			c.forget()
		}
	}()
	m.saved = &savedHooks{ours: true, pack: func(_ *Exec, t *Tensor) any {
		c.collect(n, t)
		n++
		return t // for a backward pass within the segment
	}, unpack: func(_ *Exec, v any) *Tensor { return v.(*Tensor) }}
	c.rng.drew = c.rng.drew || c.running // later, perhaps
	m.generator = c.rng.rewind(x, m.generator)
	defer c.rng.wind(x)
	x.with(m).scoped(func(x *Exec) {
		b := &back{x: x, n: c.inputs}
		ins := make([]*Tensor, len(c.needs))
		for i := range ins {
			ins[i] = b.unpackSlot(i, edge{})
			if t := ins[i]; c.needs[i] {
				// It stands for a tensor that need not be a leaf, and is not a parameter.
				t.leaf = &leaf{owner: &Tensor{st: t.st, dt: t.dt, form: t.form}, meta: metaOf(t)}
			}
		}
		s.outside("Checkpoint", func() { c.f(x, ins) })
	})
	if n < len(c.saved) || n > len(c.saved) && !c.running {
		c.differ("it saved %d tensors for backward, and %d before", n-1, len(c.saved)-1)
	}
	done = true
	if s.run != nil {
		s.run.callbacks = append(s.run.callbacks, func(*Exec) { c.forget() })
	}
}

// collect takes t, which the new run saves as tensor i.
func (c *checkpoint) collect(i int, t *Tensor) {
	if i >= len(c.saved) || c.saved[i].dropped {
		return
	}
	old := &c.saved[i]
	if t.dt != old.meta.dt || !infer.Same(t.shape, old.meta.shape) {
		c.differ("tensor %d that it saved for backward is %s, and was %v%v before", i, describe(t), old.meta.dt, old.meta.shape)
	}
	if old.st.Value() == t.st && t.st.version.Load() != old.version {
		panicAt("Checkpoint", fault.Invalid, savedChanged, describe(t), t.st.version.Load(), old.version)
	}
	k := t.alias()
	k.own()
	old.again.close()
	old.again = k
}

// forget closes the tensors that the last run saved and nobody has used.
func (c *checkpoint) forget() {
	for i := range c.saved {
		c.saved[i].again.close()
		c.saved[i].again = nil
	}
}

// differ fails because the second run differs from the first.
func (c *checkpoint) differ(format string, args ...any) {
	e := fault.New(fault.Invalid, format, args...)
	panicAt("Checkpoint", fault.Invalid, "the function did not do the same when it was run again for backward: %s", e.Msg)
}

// draws is the state of a generator at the beginning of a segment.
type draws struct {
	g *rt.Generator
	// state is the generator's state; in a graph, capture and advance say how far the graph's run had advanced the generator.
	state   []byte
	capture *capture
	advance uint64
	drew    bool
	// now is the advance outside of a segment that runs again.
	now uint64
}

func (d *draws) begin(x *Exec) {
	d.g, d.capture = x.Generator(), x.s.capture
	d.state, d.advance = d.g.State(), d.advanced()
}

func (d *draws) end() {
	d.drew = d.advanced() != d.advance || d.capture == nil && !bytes.Equal(d.g.State(), d.state)
}

// captured returns the generator's state in the graph, or nil.
func (d *draws) captured() *captured {
	if d.capture == nil {
		return nil
	}
	return d.capture.known(d.g)
}

// advanced returns how far one run of the graph advances the generator.
func (d *draws) advanced() uint64 {
	if st := d.captured(); st != nil {
		return st.advance
	}
	return 0
}

// rewind returns the generator from which the segment draws the same numbers again; g is x's own.
func (d *draws) rewind(x *Exec, g *rt.Generator) *rt.Generator {
	if !d.drew {
		return g
	}
	if d.capture != x.s.capture {
		panicAt("Checkpoint", fault.Capture, "the segment drew random numbers, and was not run in the graph, or outside of it, where "+
			"its backward pass is; capture both or neither")
	}
	if st := d.captured(); st != nil {
		d.now, st.advance = st.advance, d.advance
		return g
	}
	c := rt.NewGenerator(0)
	if err := c.SetState(d.state); err != nil {
		x.fail("Checkpoint", fault.Invalid, nil, "the generator's state cannot be set: %v", err)
	}
	return c
}

// wind undoes rewind.
func (d *draws) wind(x *Exec) {
	if st := d.captured(); d.drew && st != nil && d.capture == x.s.capture {
		st.advance = d.now
	}
}
