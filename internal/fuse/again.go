package fuse

import "slices"

// Phase says when the kernel of a group with reductions does the work of a member. There may be several rounds of reductions, counted from
// 0: those of a round need results of the one before.
type Phase struct {
	Kind  PhaseKind
	Round int
}

// PhaseKind is the kind of work that the kernel of a group with reductions does for a member.
type PhaseKind uint8

const (
	// Element: the work is done for each element of a row, before the reductions of the phase's round or after all rounds, and again
	// whenever its result is needed later.
	Element PhaseKind = iota
	// Reducing: the member is a reduction of the phase's round.
	Reducing
	// OfRow: the work is done once for each row, after the reductions of the phase's round.
	OfRow
)

// Phases returns the phases of the members of s, or nil if there are no reductions, or no member reads the result of one.
func (g *Graph) Phases(s *Set) []Phase {
	first := g.Reduction(s)
	if first == nil || len(s.From) == 0 {
		return nil
	}
	phases, reads := make([]Phase, len(s.Calls)), false
	for k, i := range s.Calls {
		c, p := &g.Calls[i], &phases[k]
		for _, f := range s.From[k] {
			switch {
			case f.Member < 0:
			case phases[f.Member].Kind == Element:
				p.Round = max(p.Round, phases[f.Member].Round)
			default:
				p.Round, reads = max(p.Round, phases[f.Member].Round+1), true
			}
		}
		switch {
		case c.Reduce != 0:
			p.Kind = Reducing
		case p.Round > 0 && !slices.Equal(c.Outs[0].Shape, first.Ins[0].Shape):
			p.Kind = OfRow
			p.Round--
		}
	}
	if !reads {
		return nil
	}
	return phases
}

// Rounds returns the number of rounds of reductions among phases.
func Rounds(phases []Phase) (n int) {
	for _, p := range phases {
		if p.Kind == Reducing {
			n = max(n, p.Round+1)
		}
	}
	return n
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
	full, rounds := a.g.Reduction(s).Ins[0].Shape, Rounds(phases)
	last := len(full) - 1
	if last < 0 || full[last] < 2 {
		return false
	}
	for k, i := range s.Calls {
		c := &a.g.Calls[i]
		switch phases[k].Kind {
		case Reducing:
			if c.Rounds < rounds || c.Into != 0 || slices.ContainsFunc(c.Outs, func(v Value) bool { return !ofRows(v.Shape, full) }) {
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
			element, ok := phases[f.Member].Kind == Element, false
			switch phases[k].Kind {
			case Reducing:
				ok = element && p.alike(&v.Place)
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

// heavyAgain counts the heavy members of s, and counts them once more for each further round that needs them. It does not know yet which of
// them are written or kept.
func (a *grouping) heavyAgain(s *Set, phases []Phase) (n int) {
	times := make([]int, len(phases))
	rounds := Rounds(phases)
	for round := range rounds + 1 {
		needs := s.Makers(func(k int) bool {
			return phases[k] == Phase{Reducing, round} || round == rounds && phases[k] == Phase{Element, round}
		}, func(k int) bool { return phases[k].Kind == Element })
		for k := range times {
			if needs(k) {
				times[k]++
			}
		}
	}
	for k, i := range s.Calls {
		if a.g.Calls[i].Heavy {
			n += max(1, times[k])
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

// joinResults merges the group of call i, a reduction, with all groups that read its results, or what others make of these for rows, and
// with reductions alike of what others make of these for elements, and so on; or with those of them with which it can be merged. Then it
// merges it with what only makes what they read.
func (a *grouping) joinResults(i int) {
	if a.g.Calls[i].Rounds == 0 || a.of[i] == nil {
		return
	}
	full, reduce := a.g.Calls[i].Ins[0].Shape, a.g.Calls[i].Reduce
	var groups []*Set
	seen, calls := map[*Set]bool{a.of[i]: true}, slices.Clone(a.of[i].Calls)
	for n := 0; n < len(calls); n++ {
		c := &a.g.Calls[calls[n]]
		for j := range c.Outs {
			rows := ofRows(c.Outs[0].Shape, full)
			for _, q := range a.by.users[c.Outs[j].Storage] {
				reads := q > calls[n] && q-calls[0] < a.l.Span && (rows || a.g.Calls[q].Reduce == reduce)
				if s := a.of[q]; reads && s != nil && !seen[s] {
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
