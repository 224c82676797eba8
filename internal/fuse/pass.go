package fuse

import "slices"

// Dead removes calls that have no effect and whose outputs nobody needs, neither a later call nor anything after the segment.
func (g *Graph) Dead() {
	needed := g.live()
	keep := make([]bool, len(g.Calls))
	for i := len(g.Calls) - 1; i >= 0; i-- {
		c := &g.Calls[i]
		keep[i] = c.Effect || c.Checks
		for j := range c.Outs {
			keep[i] = keep[i] || needed[c.Outs[j].Storage]
		}
		if keep[i] {
			c.uses(func(s int, _ bool) { needed[s] = true })
		}
	}
	g.keep(keep)
}

// live returns the live storages as a set.
func (g *Graph) live() map[int]bool {
	m := make(map[int]bool, len(g.Live))
	for _, s := range g.Live {
		m[s] = true
	}
	return m
}

func (g *Graph) keep(which []bool) {
	n := 0
	for i := range g.Calls {
		if which[i] {
			g.Calls[n] = g.Calls[i]
			n++
		}
	}
	g.Calls = g.Calls[:n]
}

// Common removes calls that repeat an earlier one: the same operation and attributes on the same operands, without values. Users of their
// outputs use the earlier call's instead; if a later output is live, the earlier call makes it. Outputs stay separate if either is modified
// later or both are live.
func (g *Graph) Common() {
	live, writes := g.live(), map[int]int{}
	for i := range g.Calls {
		for j := range g.Calls[i].Outs {
			writes[g.Calls[i].Outs[j].Storage]++
		}
	}
	type key struct{ op, attrs, lane, ins, outs int }
	ops := map[string]int{}
	seen := map[key][]int{}
	keep := make([]bool, len(g.Calls))
	become := map[int]int{} // storages that another one replaces
	for i := range g.Calls {
		c := &g.Calls[i]
		keep[i] = true
		g.rename(c, become)
		if c.Attrs == 0 || c.Effect || c.Values > 0 || c.Into != 0 || len(c.Outs) == 0 {
			continue
		}
		if ops[c.Op] == 0 {
			ops[c.Op] = len(ops) + 1
		}
		k := key{ops[c.Op], c.Attrs, c.Lane, len(c.Ins), len(c.Outs)}
		for _, e := range seen[k] {
			if g.again(&g.Calls[e], c, live, writes) {
				g.replace(&g.Calls[e], c, i, live, become)
				keep[i] = false
				break
			}
		}
		if keep[i] {
			seen[k] = append(seen[k], i)
		}
	}
	g.keep(keep)
}

// again reports whether c, with the operation and attributes of e, repeats e and can be left out.
func (g *Graph) again(e, c *Call, live map[int]bool, writes map[int]int) bool {
	for i := range c.Ins {
		if !c.Ins[i].equal(&e.Ins[i]) {
			return false
		}
	}
	for i := range c.Outs {
		a, b := &e.Outs[i], &c.Outs[i]
		if !a.Place.equal(&b.Place) || live[a.Storage] && live[b.Storage] || writes[a.Storage] > 1 || writes[b.Storage] > 1 {
			return false
		}
	}
	return true
}

// Fold removes calls that scale operands in place if every result has one reader, which can scale it instead while it reads it, and nobody
// needs the results afterwards. The readers get the factor as one more input, and scale all that they can scale. It returns the removed
// call for each of them; both are given by Call.At.
func (g *Graph) Fold() map[int]int {
	if !slices.ContainsFunc(g.Calls, func(c Call) bool { return c.Scales }) {
		return nil
	}
	by, live := map[int]int{}, g.live()
	readers, writers := g.users()
	keep := slices.Repeat([]bool{true}, len(g.Calls))
	for i := range g.Calls {
		c := &g.Calls[i]
		if !c.Scales {
			continue
		}
		n := len(c.Ins) - 1
		takers := g.takers(i, live, readers, writers)
		for _, k := range takers {
			t := &g.Calls[k]
			t.Ins, t.Factored = append(slices.Clip(t.Ins), c.Ins[n]), true
			for j := t.Scaled.From; j < t.Scaled.To; j++ {
				t.Ins[j].Version--
			}
			by[t.At] = c.At
			keep[i] = false
		}
	}
	g.keep(keep)
	return by
}

// takers returns the calls that can scale instead of call i, or nil.
func (g *Graph) takers(i int, live map[int]bool, readers map[int][]Ref, writers map[int][]int) (takers []int) {
	c := &g.Calls[i]
	n := len(c.Ins) - 1
	changed := func(s, before int) bool {
		return slices.ContainsFunc(writers[s], func(k int) bool { return k > i && k <= before })
	}
	of := map[int]int{} // how many results each taker reads
	for j := range n {
		s := c.Ins[j].Storage
		later := slices.DeleteFunc(slices.Clone(readers[s]), func(r Ref) bool { return r.Call <= i })
		if live[s] || len(later) != 1 || changed(s, len(g.Calls)) {
			return nil
		}
		t := &g.Calls[later[0].Call]
		in := &t.Ins[later[0].Index]
		if !t.Scaled.has(later[0].Index) || t.Factored || t.Lane != c.Lane || !in.Place.equal(&c.Ins[j].Place) {
			return nil
		}
		if of[later[0].Call] == 0 {
			takers = append(takers, later[0].Call)
		}
		of[later[0].Call]++
	}
	for _, k := range takers {
		if t := &g.Calls[k]; of[k] != t.Scaled.To-t.Scaled.From || changed(c.Ins[n].Storage, k) {
			return nil
		}
	}
	return takers
}

// Narrow removes widening calls whose readers can all read the original operand instead. Nothing may have modified that operand. It
// returns, for each input that was replaced, the removed call; both calls are given by Call.At.
func (g *Graph) Narrow() map[Ref]int {
	by, live := map[Ref]int{}, g.live()
	readers, writers := g.users()
	keep := slices.Repeat([]bool{true}, len(g.Calls))
	for i := range g.Calls {
		w := &g.Calls[i]
		if !w.Widens || w.Narrowed {
			continue
		}
		from, to := &w.Ins[0], &w.Outs[0]
		if !slices.Equal(from.Shape, to.Shape) || live[to.Storage] || len(writers[to.Storage]) > 1 {
			continue
		}
		all := readers[to.Storage]
		may := len(all) > 0
		for _, r := range all {
			c := &g.Calls[r.Call]
			changed := slices.ContainsFunc(writers[from.Storage], func(k int) bool { return k > i && k <= r.Call })
			may = may && within(&c.Ins[r.Index].Place, &to.Place) && r.Call > i && c.Narrow.has(r.Index) && c.Lane == w.Lane && !changed
		}
		if !may {
			continue
		}
		for _, r := range all {
			c := &g.Calls[r.Call]
			v := &c.Ins[r.Index]
			v.Storage, v.Version, v.DType, v.Offset = from.Storage, from.Version, from.DType, from.Offset+v.Offset-to.Offset
			c.Narrowed = true
			by[Ref{c.At, r.Index}] = w.At
		}
		keep[i] = false
	}
	g.keep(keep)
	return by
}

// users returns the inputs that read each storage, and the calls that write it.
func (g *Graph) users() (readers map[int][]Ref, writers map[int][]int) {
	readers, writers = map[int][]Ref{}, map[int][]int{}
	for i := range g.Calls {
		for j := range g.Calls[i].Ins {
			s := g.Calls[i].Ins[j].Storage
			readers[s] = append(readers[s], Ref{i, j})
		}
		for j := range g.Calls[i].Outs {
			s := g.Calls[i].Outs[j].Storage
			writers[s] = append(writers[s], i)
		}
	}
	return readers, writers
}

// within reports whether the elements of v lie between the first and the last element of w.
func within(v, w *Place) bool {
	ends := func(p *Place) (first, last int) {
		first, last = p.Offset, p.Offset
		for d, n := range p.Shape {
			if n > 1 && p.Stride[d] < 0 {
				first += (n - 1) * p.Stride[d]
			} else if n > 1 {
				last += (n - 1) * p.Stride[d]
			}
		}
		return first, last
	}
	a, b := ends(v)
	c, d := ends(w)
	return c <= a && b <= d
}

// replace gives the outputs of e and c, which is call i, one storage: that of e, or that of c if c's is live.
func (g *Graph) replace(e, c *Call, i int, live map[int]bool, become map[int]int) {
	for j := range c.Outs {
		from, to := c.Outs[j].Storage, e.Outs[j].Storage
		if live[from] {
			from, to = to, from
		}
		become[from] = to
		for k := range g.Calls[:i] {
			g.rename(&g.Calls[k], become)
		}
	}
}

func (g *Graph) rename(c *Call, become map[int]int) {
	for i := range len(c.Ins) + len(c.Outs) {
		v := c.at(i)
		for to, ok := become[v.Storage]; ok; to, ok = become[v.Storage] {
			v.Storage = to
		}
	}
}

// sorted returns the members of a and b in ascending order.
func sorted(a, b []int) []int {
	out := append(append(make([]int, 0, len(a)+len(b)), a...), b...)
	slices.Sort(out)
	return out
}
