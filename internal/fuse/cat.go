package fuse

import "slices"

// Cat returns the member of s that puts its inputs side by side, and which of the others are wide: their results have the shape of the
// member's. If there is no such member, it returns -1 and nil.
func (g *Graph) Cat(s *Set) (cat int, wide []bool) {
	if cat = slices.IndexFunc(s.Calls, func(i int) bool { return g.Calls[i].Cat }); cat < 0 {
		return cat, nil
	}
	wide = make([]bool, len(s.Calls))
	for k, i := range s.Calls {
		wide[k] = k != cat && slices.Equal(g.Calls[i].Outs[0].Shape, g.Calls[s.Calls[cat]].Outs[0].Shape)
	}
	return cat, wide
}

// cats reports whether the call has several inputs of one shape, all present, and one new output in which they lie side by side along
// dimension Dim.
func (c *Call) cats() bool {
	if c.Point || c.Row || c.Product || c.Reduce != 0 || c.Into != 0 || len(c.Outs) != 1 || len(c.Ins) < 2 || !c.alike() {
		return false
	}
	in, out := &c.Ins[0], &c.Outs[0]
	if len(in.Shape) != len(out.Shape) || c.Dim >= len(in.Shape) {
		return false
	}
	for d, n := range in.Shape {
		if d == c.Dim {
			n *= len(c.Ins)
		}
		if out.Shape[d] != n {
			return false
		}
	}
	return !slices.ContainsFunc(c.Ins, func(v Value) bool { return v.DType != out.DType })
}

// Part returns the part of p, a value that is broadcast to the result of c, that belongs to input k of c, which puts its inputs side by
// side. It reports whether every input has a part of its own.
func (c *Call) Part(p *Place, k int) (part Place, own bool) {
	d := c.Dim - len(c.Outs[0].Shape) + len(p.Shape)
	if d < 0 || p.Shape[d] == 1 {
		return *p, false
	}
	part = *p
	part.Shape = slices.Clone(p.Shape)
	part.Shape[d] = c.Ins[0].Shape[c.Dim]
	part.Offset += k * part.Shape[d] * p.Stride[d]
	return part, true
}

// partOf returns the number, from 1 on, of the input of c, which puts its inputs side by side, to which q belongs, a part of p, which has
// the shape of the result. It returns 0 if q is no such part.
func (c *Call) partOf(p, q *Place) int {
	if !slices.Equal(p.Shape, c.Outs[0].Shape) {
		return 0
	}
	for k := range c.Ins {
		if part, _ := c.Part(p, k); part.same(q) {
			return k + 1
		}
	}
	return 0
}

// byCat reports whether the group can run in one kernel if one of its calls puts its inputs side by side. That kernel goes through the
// elements of one input, and does the work of wide members for each input, and that of the others once. All are element-wise and modify no
// memory. Wide ones use nothing of the others except through the call, and the others of wide ones only the part that belongs to one input.
// The others have the shape of an input, perhaps without dimensions of size 1.
func (a *grouping) byCat(s *Set) bool {
	cat, wide := a.g.Cat(s)
	if cat < 0 {
		return true
	}
	c := &a.g.Calls[s.Calls[cat]]
	part := squeezed(c.Ins[0].Shape)
	for k, i := range s.Calls {
		m := &a.g.Calls[i]
		if k != cat && (!m.Point || m.Into != 0 || m.Lane != c.Lane || !wide[k] && !slices.Equal(squeezed(m.Outs[0].Shape), part)) {
			return false
		}
		for _, f := range s.From[k] {
			if f.Member >= 0 && (wide[k] || f.Part > 0) != (f.Member == cat || wide[f.Member]) || wide[k] && f.Part > 0 {
				return false
			}
		}
	}
	return true
}

// times returns how often the kernel of s has member k, where cat and wide are those of Cat.
func (g *Graph) times(s *Set, cat int, wide []bool, k int) int {
	if cat >= 0 && wide[k] {
		return len(g.Calls[s.Calls[cat]].Ins)
	}
	return 1
}

// catOperands returns how many operands the kernel of s has, one of whose calls puts its inputs side by side: a part for each of these of
// what wide members read or write.
func (g *Graph) catOperands(s *Set, cat int, wide []bool) (n int) {
	c := &g.Calls[s.Calls[cat]]
	for k := range s.Ins {
		v := &g.Calls[s.Ins[k].Call].Ins[s.Ins[k].Index]
		whole, parts := false, false
		for q, from := range s.From {
			if slices.Contains(from, Source{Member: -1, Index: k}) {
				_, own := c.Part(&v.Place, 0)
				parts = parts || wide[q] && own
				whole = whole || !(wide[q] && own)
			}
		}
		if whole {
			n++
		}
		if parts {
			n += len(c.Ins)
		}
	}
	for _, r := range s.Outs {
		if k := slices.Index(s.Calls, r.Call); k == cat || wide[k] {
			n += len(c.Ins)
		} else {
			n++
		}
	}
	return n
}
