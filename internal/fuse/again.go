package fuse

import "slices"

// Phase says when the kernel of a group with reductions does the work of a member.
type Phase uint8

const (
	// Before: for each element, before it is reduced, or whenever its result is needed.
	Before Phase = iota
	// Reducing: the member is a reduction.
	Reducing
	// OfRow: once for each row, with the results of reductions.
	OfRow
	// After: for each element of a row again, with what the row has.
	After
)

// Phases returns the phases of the members of s, or nil if there are no reductions, or no member reads the result of one.
func (g *Graph) Phases(s *Set) []Phase {
	first := g.Reduction(s)
	if first == nil || len(s.From) == 0 {
		return nil
	}
	phases, reads := make([]Phase, len(s.Calls)), false
	for k, i := range s.Calls {
		c := &g.Calls[i]
		result := slices.ContainsFunc(s.From[k], func(f Source) bool { return f.Member >= 0 && phases[f.Member] != Before })
		switch reads = reads || result; {
		case c.Reduce != 0:
			phases[k] = Reducing
		case result && slices.Equal(c.Outs[0].Shape, first.Ins[0].Shape):
			phases[k] = After
		case result:
			phases[k] = OfRow
		}
	}
	if !reads {
		return nil
	}
	return phases
}

// ofRows reports whether shape has one place for each row of an array of shape full, whose last dimension may be kept.
func ofRows(shape, full []int) bool {
	last := len(full) - 1
	return last >= 0 && (slices.Equal(shape, full[:last]) || wideRows(shape, full))
}

// wideRows reports whether shape is full with 1 in place of the last dimension.
func wideRows(shape, full []int) bool {
	last := len(full) - 1
	return len(shape) == len(full) && slices.Equal(shape[:last], full[:last]) && shape[last] == 1
}

// byAgain reports whether the kernel of a group with reductions can do the work of all phases: it goes through each row again. Members
// that go by rows read what is made for rows, and members after them that too, broadcast along the row, and what is made for elements.
func (a *grouping) byAgain(s *Set, phases []Phase) bool {
	full := a.g.Reduction(s).Ins[0].Shape
	last := len(full) - 1
	if last < 0 || full[last] < 2 {
		return false
	}
	for k, i := range s.Calls {
		c := &a.g.Calls[i]
		switch phases[k] {
		case Reducing:
			if !c.Again || c.Into != 0 || slices.ContainsFunc(c.Outs, func(v Value) bool { return !ofRows(v.Shape, full) }) {
				return false
			}
		case OfRow:
			if !ofRows(c.Outs[0].Shape, full) {
				return false
			}
		default:
			if !slices.Equal(c.Outs[0].Shape, full) {
				return false
			}
		}
		for j, f := range s.From[k] {
			if f.Member < 0 {
				if f.Index >= 0 && !a.seenAlike(s, s.Ins[f.Index], Ref{i, j}) {
					return false
				}
				continue
			}
			p, v := &a.g.Calls[s.Calls[f.Member]].Outs[f.Index].Place, &c.Ins[j]
			element := phases[f.Member] == Before || phases[f.Member] == After
			ok := false
			switch phases[k] {
			case Reducing:
				ok = phases[f.Member] == Before && p.alike(&v.Place)
			case OfRow:
				ok = !element && p.alike(&v.Place)
			default:
				ok = element && p.equal(&v.Place) || !element && p.alike(&v.Place) && wideRows(v.Shape, full)
			}
			if !ok {
				return false
			}
		}
	}
	return a.heavyAgain(s, phases) <= a.l.Heavy
}

// heavyAgain counts the heavy members of s, those twice that are computed again for members after the reductions.
func (a *grouping) heavyAgain(s *Set, phases []Phase) (n int) {
	of := func(p Phase) func(k int) bool { return func(k int) bool { return phases[k] == p } }
	again := s.Makers(of(After), of(Before))
	for k, i := range s.Calls {
		if a.g.Calls[i].Heavy {
			if n++; again(k) {
				n++
			}
		}
	}
	return n
}

// seenAlike reports whether r and q, inputs of members of s that read one value, are the same elements in the shape of what is reduced.
func (a *grouping) seenAlike(s *Set, r, q Ref) bool {
	if r == q {
		return true
	}
	x, ok := a.g.Reducible(s, r)
	y, also := a.g.Reducible(s, q)
	return ok && also && slices.Equal(x, y)
}

// joinResults merges the group of call i, a reduction, with all groups that read its results or what others make of these for rows, or
// with those of them with which it can be merged, and then with what only makes what they read.
func (a *grouping) joinResults(i int) {
	if !a.g.Calls[i].Again || a.of[i] == nil {
		return
	}
	full := a.g.Calls[i].Ins[0].Shape
	var groups []*Set
	seen, calls := map[*Set]bool{a.of[i]: true}, slices.Clone(a.of[i].Calls)
	for n := 0; n < len(calls); n++ {
		c := &a.g.Calls[calls[n]]
		if len(c.Outs) == 0 || !ofRows(c.Outs[0].Shape, full) {
			continue
		}
		for j := range c.Outs {
			for _, q := range a.users[c.Outs[j].Storage] {
				if s := a.of[q]; q > calls[n] && q-calls[0] < a.l.Span && s != nil && !seen[s] {
					seen[s], groups, calls = true, append(groups, s), append(calls, s.Calls...)
				}
			}
		}
	}
	if len(groups) > 0 && !a.replace(sorted(calls, nil), nil) {
		for _, s := range groups {
			if a.of[s.Calls[0]] == s {
				a.replace(sorted(a.of[i].Calls, s.Calls), nil)
			}
		}
	}
	if len(groups) > 0 {
		for _, k := range slices.Clone(a.of[i].Calls) {
			a.withMakers(a.of[i].Calls, k)
		}
	}
}
