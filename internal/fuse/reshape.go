package fuse

import (
	"slices"

	"tenon.dev/internal/infer"
)

// joinShapes merges groups that are element-wise alone across a change of shape: one reads a view of a result of the other, in another
// shape. It comes last, since kernels of rows, reductions and products do not see elements in several shapes.
func (a *grouping) joinShapes() {
	for i := range a.g.Calls {
		c := &a.g.Calls[i]
		if !c.Point || a.of[i] == nil || !a.plain(a.of[i].Calls) {
			continue
		}
		for j := range c.Ins {
			v := &c.Ins[j]
			r, ok := a.by.maker(v.Storage, v.Version)
			if v.Storage == 0 || !ok || r.Call >= i || a.of[r.Call] == nil || a.of[r.Call] == a.of[i] || !a.plain(a.of[r.Call].Calls) {
				continue
			}
			m := &a.g.Calls[r.Call]
			if p := &m.Outs[r.Index].Place; m.Lane != c.Lane || p.equal(&v.Place) || !p.views(&v.Place) || v.numel() != c.Outs[0].numel() {
				continue
			}
			if s := a.set(sorted(a.of[r.Call].Calls, a.of[i].Calls)); s != nil {
				for _, k := range s.Calls {
					a.of[k] = s
				}
			}
		}
	}
}

// plain reports whether all calls are element-wise and modify no memory.
func (a *grouping) plain(calls []int) bool {
	return !slices.ContainsFunc(calls, func(i int) bool { return !a.g.Calls[i].Point || a.g.Calls[i].Into != 0 })
}

// byShape reports whether the elements of the group can be seen in one shape, if its element-wise calls have several. Then there are no
// other calls.
func (a *grouping) byShape(s *Set) bool {
	same := func(i int) bool { return slices.Equal(a.g.Calls[i].Outs[0].Shape, a.g.Calls[s.Calls[0]].Outs[0].Shape) }
	if !a.plain(s.Calls) || !slices.ContainsFunc(s.Calls, func(i int) bool { return !same(i) }) {
		return true
	}
	return a.g.SeenIn(s) != nil
}

// SeenIn returns the shape in which the kernel of s, whose calls are all element-wise, sees their elements: that of one of the calls. It
// returns nil if there is none.
func (g *Graph) SeenIn(s *Set) []int {
	for _, i := range s.Calls {
		shape := g.Calls[i].Outs[0].Shape
		fits := true
		for _, r := range s.Outs {
			_, ok := g.Calls[r.Call].Outs[r.Index].viewed(shape)
			fits = fits && ok
		}
		seen := make([][]int, len(s.Ins))
		for k, from := range s.From {
			for j, f := range from {
				if f.Member >= 0 || f.Index < 0 {
					continue
				}
				stride, ok := g.Seen(s.Calls[k], j, shape)
				fits = fits && ok && (seen[f.Index] == nil || slices.Equal(seen[f.Index], stride))
				seen[f.Index] = stride
			}
		}
		if fits {
			return shape
		}
	}
	return nil
}

// Stored returns the strides of r, a result, in a shape in which the kernel of its group sees it.
func (g *Graph) Stored(r Ref, shape []int) []int {
	stride, _ := g.Calls[r.Call].Outs[r.Index].viewed(shape)
	return stride
}

// Seen returns the strides of input j of call i in shape, which has as many elements as the call's results. It reports whether there are
// any.
func (g *Graph) Seen(i, j int, shape []int) ([]int, bool) {
	c := &g.Calls[i]
	v := &c.Ins[j]
	stride := make([]int, len(c.Outs[0].Shape))
	infer.BroadcastStrides(stride, v.Shape, v.Stride, c.Outs[0].Shape)
	if slices.Equal(c.Outs[0].Shape, shape) {
		return stride, true
	}
	return infer.ViewStrides(make([]int, 0, len(shape)), c.Outs[0].Shape, stride, shape)
}
