package core

import (
	"slices"

	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
)

// relaying gives an operand a form with its channels last. All operands in its storage get one.
type relaying struct {
	what at
	form *form
}

// lays adds to call how it takes operands whose channels lie last.
func (b *planning) lays(call *fuse.Call) {
	c, p := &b.d.calls[call.At], b.points[call.At]
	switch {
	case call.Effect || call.Cat:
	case call.Point && p.given == nil:
		call.Lays, call.Laid = fuse.LaysAlike, 1<<(len(call.Ins)+len(call.Outs))-1
	case c.row.lays != nil && c.dsts == 0:
		call.Lays, call.Laid = c.row.lays(c)
	}
}

// layOut gives the calls the forms that the graph's LayOut asks for, and notes these in p. It returns what gives the calls their own forms
// back, since they may yet run by another plan.
func (b *planning) layOut(p *plan) (back func()) {
	last := b.g.LayOut()
	p.anew = len(last)
	for i := range b.g.Calls {
		call, from := &b.g.Calls[i], len(p.laid)
		lay := func(v *fuse.Value, what at) {
			if _, ok := slices.BinarySearch(last, v.Storage); ok && v.Storage != 0 {
				shape := what.of(b.d.calls).form.shape
				p.laid = append(p.laid, relaying{what, b.d.s.made.form(shape, infer.ChannelsLastStrides(shape))})
			}
		}
		for j := range call.Ins {
			lay(&call.Ins[j], at{call.At, j})
		}
		for j := range call.Outs {
			lay(&call.Outs[j], at{call.At, maxIn + j})
		}
		if from < len(p.laid) {
			b.relay(call, p.laid[from:])
		}
	}
	return func() {
		for i := range p.laid {
			p.laid[i].swap(b.d.calls)
		}
	}
}

// swap exchanges the operand's form with that of r.
func (r *relaying) swap(calls []deferred) {
	e := r.what.of(calls)
	e.form, r.form = r.form, e.form
}

// relay gives operands of call their new forms, and describes it again.
func (b *planning) relay(call *fuse.Call, laid []relaying) {
	for i := range laid {
		laid[i].swap(b.d.calls)
	}
	b.points[call.At] = b.d.describe(call.At)
	was := *call
	*call = b.call(was.At)
	if len(was.Ins) != len(call.Ins) || len(was.Outs) != len(call.Outs) {
		b.broken = true
		return
	}
	for j := range call.Ins { // Common may have renamed them
		call.Ins[j].Storage, call.Ins[j].Version = was.Ins[j].Storage, was.Ins[j].Version
	}
	for j := range call.Outs {
		call.Outs[j].Storage, call.Outs[j].Version = was.Outs[j].Storage, was.Outs[j].Version
	}
}
