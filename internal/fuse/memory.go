package fuse

import "iter"

// usage is the number of bytes of new storages in use at every position, and their maximum.
type usage struct {
	held []int
	peak int
}

// span is when a new storage is in use, and its size; made tells it from a storage that the calls do not make.
type span struct {
	made              bool
	born, last, bytes int
}

// memory returns how much memory is in use, and by number when each storage is that the calls make, if every call runs at its place and the
// storages that stay inside one of the groups need no memory.
func (g *Graph) memory(place []int, groups iter.Seq[*Set]) (usage, []span) {
	n, top := len(g.Calls), g.top()
	made, live, inside := make([]span, top+1), g.alive(top), make([]bool, top+1)
	for i := range g.Calls {
		if c := &g.Calls[i]; c.Left {
			inside[c.Outs[0].Storage] = true
		}
	}
	for s := range groups {
		for _, i := range s.Calls {
			for o := range g.Calls[i].Outs {
				inside[g.Calls[i].Outs[o].Storage] = true
			}
		}
		for _, r := range s.Outs {
			inside[g.Calls[r.Call].Outs[r.Index].Storage] = false
		}
	}
	for i := range g.Calls {
		c := &g.Calls[i]
		for o := range c.Outs {
			if s := c.Outs[o].Storage; !c.into(o) && !inside[s] {
				made[s] = span{true, place[i], place[i], 0}
			}
		}
		for k := range len(c.Ins) + len(c.Outs) {
			v := c.at(k)
			if m := &made[v.Storage]; m.made {
				m.last, m.bytes = max(m.last, place[i]), max(m.bytes, v.Bytes())
				if live[v.Storage] {
					m.last = n - 1
				}
			}
		}
	}
	m := usage{held: make([]int, n+1)}
	for _, s := range made {
		if s.made {
			m.held[s.born] += s.bytes
			m.held[s.last+1] -= s.bytes
		}
	}
	for p := range n {
		if p > 0 {
			m.held[p] += m.held[p-1]
		}
		m.peak = max(m.peak, m.held[p])
	}
	return m, made
}

// alone reports whether s has neither products nor reductions.
func (g *Graph) alone(s *Set) bool { return g.Product(s) < 0 && g.Reduction(s) == nil }

// joinLate joins calls with groups that would hold memory while they wait, if the peak of memory, with the groups that there are, is no
// higher for it. Groups with products or reductions stay as they are.
func (a *grouping) joinLate() {
	a.late, a.peak = true, a.usage().peak
	for i := range a.g.Calls {
		if c := &a.g.Calls[i]; a.of[i] != nil && (c.Point || c.Row || c.Cat) {
			a.joinMakers(i)
		}
	}
	a.late = false
}

// usage returns how much memory is in use with the groups found so far.
func (a *grouping) usage() usage {
	place := make([]int, len(a.g.Calls))
	for i := range place {
		place[i] = i
		if s := a.of[i]; s != nil {
			place[i] = s.At
		}
	}
	m, _ := a.g.memory(place, func(yield func(s *Set) bool) {
		for i, s := range a.of {
			if s != nil && i == s.Calls[0] && len(s.From) > 0 && !yield(s) {
				return
			}
		}
	})
	return m
}

// replaceLate makes s a group, unless the peak of memory is higher with it.
func (a *grouping) replaceLate(s *Set) {
	old := make([]*Set, len(s.Calls))
	for k, i := range s.Calls {
		old[k], a.of[i] = a.of[i], s
	}
	if a.usage().peak > a.peak {
		for k, i := range s.Calls {
			a.of[i] = old[k]
		}
	}
}
