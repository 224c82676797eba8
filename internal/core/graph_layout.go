package core

import (
	"slices"

	"tenon.dev/internal/rt"
)

// layout is what scan finds of the same calls each time.
type layout struct {
	n int
	// ops are those of the calls, and touched is how many storages they use.
	ops          []int32
	touched      int
	inputs       []layoutInput
	made, makers []int32
	// devices are those of the calls, valued the calls that may have numbers, and idle says that no call has work.
	devices []*rt.Device
	valued  []int32
	idle    bool
}

// layoutInput is an input by its slot, with its bounds counted from the byte that was used first.
type layoutInput struct {
	slot    int32
	written bool
	lo, hi  int
}

// maxLayouts is how many layouts are kept of segments that end with the same call and begin in different places.
const maxLayouts = 8

// scan finds the storages and draws of the calls.
func (g *Segment) scan() {
	d := g.d
	g.plans, g.report, d.fusing.stats = nil, nil, FusionStats{}
	g.inputs, g.open, g.draws, g.gapped = g.inputs[:0], g.open[:0], g.draws[:0], false
	for i := range d.more {
		if t := &d.more[i].drawn; t.to > t.at {
			g.draw(*t)
		}
	}
	last := d.thin[len(d.thin)-1].e
	if g.layout = last.layoutOf(d); g.layout != nil {
		for i := range g.layout.inputs {
			in := &g.layout.inputs[i]
			base := d.places[in.slot].base
			g.inputs = append(g.inputs, Input{st: d.touched[in.slot], Lo: base + in.lo, Hi: base + in.hi, Written: in.written})
		}
		g.made, g.makers = g.layout.made, g.layout.makers
	} else {
		g.scanCalls()
		for _, i := range g.makers {
			d.thin[i].e.dies = true
		}
		if l := g.newLayout(); l != nil {
			if len(last.layouts) == maxLayouts {
				last.layouts = slices.Delete(last.layouts, 0, 1)
			}
			last.layouts = append(last.layouts, l)
		}
	}
	for i, slot := range g.made {
		if d.touched[slot].others.Load() != abandoned {
			g.open = append(g.open, int32(i))
			if e := d.thin[g.makers[i]].e; !e.stays {
				e.stays, d.handles = true, nil // which would keep a handle that the program drops from being collected
			}
		}
	}
}

// layoutOf returns the layout of the calls, of which e is the last, or nil.
func (e *Expected) layoutOf(d *deferral) *layout {
	if d.mixed {
		return nil
	}
	for _, l := range e.layouts {
		if l.n == len(d.thin) && l.touched == len(d.touched) && slices.Equal(l.ops, d.ops) {
			return l
		}
	}
	return nil
}

// newLayout returns the layout of the calls, which were scanned, or nil if it may differ the next time.
func (g *Segment) newLayout() *layout {
	d := g.d
	if d.mixed || len(g.inputs)+len(g.made) != len(d.touched) {
		return nil
	}
	l := &layout{n: len(d.thin), ops: slices.Clone(d.ops), touched: len(d.touched), made: slices.Clone(g.made),
		makers: slices.Clone(g.makers), devices: g.devices(),
		idle: !slices.ContainsFunc(d.calls, func(c deferred) bool { return c.row.flags&flagIdle == 0 })}
	for i := range g.inputs {
		in := &g.inputs[i]
		slot := d.slotIn(in.st)
		base := d.places[slot].base
		l.inputs = append(l.inputs, layoutInput{slot, in.Written, in.Lo - base, in.Hi - base})
	}
	for i := range d.calls {
		if c := &d.calls[i]; len(c.row.sig.numbers) > 0 || c.holes != 0 {
			l.valued = append(l.valued, int32(i))
		}
	}
	return l
}

// full makes whole calls, and indexes their storages, for what a replay does not need.
func (g *Segment) full() {
	if g.layout == nil {
		return
	}
	g.layout = nil
	g.scanCalls()
}

// scanCalls is scan without what was found earlier.
func (g *Segment) scanCalls() {
	d := g.d
	d.expand()
	g.inputs, g.madeB, g.makersB, g.index = g.inputs[:0], g.madeB[:0], g.makersB[:0], g.index[:0]
	for range d.touched {
		g.index = append(g.index, unused)
	}
	for i := range d.calls {
		c := &d.calls[i]
		for j := range c.in {
			g.use(&c.in[j], -1)
		}
		for j := range c.many {
			g.use(&c.many[j], -1)
		}
		for j := range c.out {
			if c.dsts>>j&1 == 0 {
				g.use(&c.out[j], i)
			} else {
				g.use(&c.out[j], -1)
			}
		}
		for _, st := range c.wrote {
			if i := g.index[st.slot]; i >= 0 {
				g.inputs[i].Written = true
			}
		}
	}
	g.made, g.makers = g.madeB, g.makersB
}

// use notes a use of e. maker is the call that makes it, or -1.
func (g *Segment) use(e *element, maker int) {
	if e.st == nil {
		return
	}
	i := g.index[e.slot]
	if i == unused {
		if maker >= 0 {
			g.makersB = append(g.makersB, int32(maker))
			i = ^len(g.madeB)
			g.madeB = append(g.madeB, e.slot)
		} else {
			i = len(g.inputs)
			g.inputs = append(g.inputs, Input{st: e.st})
		}
		g.index[e.slot] = i
	}
	if i >= 0 && e.form.extent > 0 { // a tensor without elements may be a view beyond the end of its memory
		in, lo, hi := &g.inputs[i], e.offset*e.dt.Size(), (e.offset+e.form.extent)*e.dt.Size()
		if in.Lo < in.Hi {
			lo, hi = min(in.Lo, lo), max(in.Hi, hi)
		}
		in.Lo, in.Hi = lo, hi
	}
}
