package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// mostCat is the maximum number of tensors that a group puts side by side: the kernel has operands, and work, for each of them.
const mostCat = 4

// cats describes call i for the graph if it puts tensors of one type and shape side by side, in new memory.
func (b *planning) cats(call *fuse.Call, i int) {
	c := &b.d.calls[i]
	if !c.row.cats || c.dsts != 0 || len(c.many) < 2 || len(c.many) > mostCat || c.out[0].form.numel == 0 {
		return
	}
	first := &c.many[0]
	other := func(e element) bool { return e.dt != c.out[0].dt || !infer.Same(e.form.shape, first.form.shape) }
	if slices.ContainsFunc(c.many, other) {
		return
	}
	call.Cat, call.Dim = true, c.i[0]
	if call.Dim < 0 {
		call.Dim += len(first.form.shape)
	}
}

// catPiece is what the kernel of a group that puts tensors side by side reads or writes: operand slot of the group from element offset on,
// with strides in the shape of one of these tensors.
type catPiece struct {
	slot, offset int
	stride       []int
	dt           dtype.DType
}

// pieceOf returns what member k of s has of operand slot, for the tensor with number part.
func (b *planning) pieceOf(s *fuse.Set, cat int, wide []bool, slot, k, part int) catPiece {
	c, e := &b.g.Calls[s.Calls[cat]], b.element(b.refOf(s, slot))
	p := fuse.Place{DType: e.dt, Shape: e.form.shape, Stride: e.form.stride}
	if wide[k] || k == cat && slot < len(s.Outs) {
		p, _ = c.Part(&p, part)
		stride := make([]int, len(c.Ins[0].Shape))
		infer.BroadcastStrides(stride, p.Shape, p.Stride, c.Ins[0].Shape)
		return catPiece{slot, p.Offset, stride, e.dt}
	}
	shape := b.g.Calls[s.Calls[k]].Outs[0].Shape
	if k == cat {
		shape = c.Ins[0].Shape
	}
	stride := make([]int, len(shape))
	infer.BroadcastStrides(stride, p.Shape, p.Stride, shape)
	return catPiece{slot, 0, fuse.Spread(stride, shape, c.Ins[0].Shape), e.dt}
}

// catGroup makes the group of s, one of whose calls, member cat, puts tensors side by side. The kernel goes through the elements of one of
// them. It returns nil if no kernel can do it.
func (b *planning) catGroup(s *fuse.Set, cat int, wide []bool) *fusedGroup {
	c := &b.g.Calls[s.Calls[cat]]
	g, parts := &fusedGroup{}, len(c.Ins)
	var types []dtype.DType
	var ins, outs []catPiece
	// read returns the number of an input of the kernel: of operand index of the group's inputs, as member k reads it for a tensor.
	read := func(index, k, part int) int {
		p := b.pieceOf(s, cat, wide, len(s.Outs)+index, k, part)
		at := slices.IndexFunc(ins, func(q catPiece) bool {
			return p.slot == q.slot && p.offset == q.offset && slices.Equal(p.stride, q.stride)
		})
		if at < 0 {
			at = len(ins)
			ins, types = append(ins, p), append(types, p.dt)
		}
		return at
	}
	for part := range parts {
		for k, from := range s.From {
			for _, f := range from {
				if f.Member < 0 && f.Index >= 0 {
					read(f.Index, k, part)
				}
			}
		}
	}
	// made has the first result of every member, for each part.
	made, next := make([][]int, parts), len(types)
	for part := range made {
		made[part] = make([]int, len(s.Calls))
	}
	// valueOf returns the value that f, an input of member k, is for a tensor.
	valueOf := func(k int, f fuse.Source, part int) int {
		switch {
		case f.Part > 0:
			return made[f.Part-1][f.Member] + f.Index
		case f.Member >= 0:
			return made[part][f.Member] + f.Index
		}
		return read(f.Index, k, part)
	}
	var steps []kernels.FusedStep
	run := func(k, part int) {
		m := &b.g.Calls[s.Calls[k]]
		from := slices.Clone(s.From[k])
		for j, f := range from {
			if f.Member >= 0 || f.Index >= 0 {
				from[j] = fuse.Source{Member: -1, Index: valueOf(k, f, part)}
			}
		}
		made[part][k] = next
		next += len(m.Outs)
		steps = append(steps, b.body(m, from, nil))
		g.numbers = append(g.numbers, b.points[m.At].numbers...)
	}
	for k := range s.Calls {
		for part := range parts {
			switch {
			case k == cat:
				made[part][k] = valueOf(k, s.From[k][part], part)
			case wide[k] || part == 0:
				run(k, part)
			default:
				made[part][k] = made[0][k]
			}
		}
	}
	var results []int
	for slot, r := range s.Outs {
		k, n := slices.Index(s.Calls, r.Call), 1
		if k == cat || wide[k] {
			n = parts
		}
		for part := range n {
			results = append(results, made[part][k]+r.Index)
			outs = append(outs, b.pieceOf(s, cat, wide, slot, k, part))
		}
	}
	if g.op = kernels.Fuse(types, steps, results); g.op == nil {
		return nil
	}
	g.results = len(outs)
	for _, p := range slices.Concat(outs, ins) {
		g.operands = append(g.operands, kernels.Operand{DType: p.dt, Shape: c.Ins[0].Shape, Stride: p.stride})
		g.slots, g.offsets = append(g.slots, p.slot), append(g.offsets, uint64(p.offset*p.dt.Size()))
	}
	return g
}

// runCat launches the kernel of a group that puts tensors side by side.
func (g *fusedGroup) runCat(f *frame) error {
	f.opers = append(f.opers[:0], g.operands...)
	for i, slot := range g.slots {
		f.opers[i].Ptr = f.x.s.putOff.fusing.handles[slot].ptr() + g.offsets[i]
	}
	return kernels.Pointwise(f, g.op, dtype.Float32, f.x.s.putOff.fusing.numbers, f.opers[:g.results], f.opers[g.results:])
}
