package core

import (
	"cmp"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/rt"
	"tenon.dev/profile"
)

// notes are the calls that a capture records and no profiler sees, for profiles of the graph's replays. They live as long as the work that
// refers to them. Every capture pays for them, so they are made in chunks, and what can be found later is found when a replay is profiled.
type notes struct {
	calls    []callNote
	operands []notedOperand
	// forward are the calls that have nodes, in the order of these.
	forward []notedNode
}

// callNote is a call as a capture notes it.
type callNote struct {
	row     *row
	within  string
	trail   rt.Trail
	forward *callNote // the call whose derivative it is a part of, or nil
	cost
	back     bool
	ins      int32 // as many of the operands; the others are results
	operands []notedOperand
}

type notedOperand struct {
	dt   dtype.DType
	form *form
}

type notedNode struct {
	seq  uint64
	note *callNote
}

// begin notes that f is called. A view has no work, and is noted only if the tape may record it, for the sake of its derivative.
func (n *notes) begin(f *frame) {
	s := f.x.s
	if f.row.flags&(flagView|flagIdle) != 0 && (s.run != nil || f.x.m.noGrad) {
		return
	}
	if len(n.calls) == 0 {
		n.calls = make([]callNote, 32)
	}
	c := &n.calls[0]
	n.calls = n.calls[1:]
	c.row, c.trail, c.back = f.row, rt.Here(), s.run != nil
	if s.run != nil && s.run.node != nil {
		c.forward = n.of(s.run.node)
	}
	f.note = c
}

// end completes the note of f.
func (n *notes) end(f *frame) {
	c, s := f.note, f.x.s
	if f.outs > 0 && f.out[0].node != nil && f.to(0) == nil && s.run == nil {
		n.forward = append(n.forward, notedNode{f.out[0].node.seq, c})
	}
	if c.within = f.Within(); len(s.doing) > 0 {
		c.within = s.doing[0]
	}
	c.cost = f.cost()
	count := f.ins + len(f.many) + f.outs + len(f.altered)
	if cap(n.operands)-len(n.operands) < count {
		n.operands = make([]notedOperand, 0, max(128, count))
	}
	from := len(n.operands)
	note := func(ts []*Tensor) {
		for _, t := range ts {
			if t != nil {
				n.operands = append(n.operands, notedOperand{t.dt, t.form})
			}
		}
	}
	note(f.in[:f.ins])
	note(f.many)
	c.ins = int32(len(n.operands) - from)
	note(f.out[:f.outs])
	note(f.altered)
	c.operands = n.operands[from:len(n.operands):len(n.operands)]
}

// of returns the note of the call that made m, or nil.
func (n *notes) of(m *node) *callNote {
	i, ok := slices.BinarySearchFunc(n.forward, m.seq, func(e notedNode, seq uint64) int { return cmp.Compare(e.seq, seq) })
	if !ok {
		return nil
	}
	return n.forward[i].note
}

// About describes the call to a profiler.
func (c *callNote) About(op *profile.Op) (rt.Trail, rt.Noted) {
	op.Name, op.Kind, op.Within, op.Phase = c.row.Name, profile.KindOp, c.within, profile.Forward
	if c.back {
		op.Phase = profile.Backward
	}
	c.tell(op)
	for i, t := range c.operands {
		list := &op.Inputs
		if i >= int(c.ins) {
			list = &op.Outputs
		}
		*list = append(*list, profile.Tensor{DType: t.dt.String(), Shape: t.form.shape})
	}
	if c.forward == nil {
		return c.trail, nil
	}
	return c.trail, c.forward
}
