package fuse

import (
	"cmp"
	"math"
	"slices"
)

const (
	// deepRepeat is the maximum number of calls in a row that a group does again.
	deepRepeat = 8
	// unreadable is the cost of a value that a group cannot read.
	unreadable = math.MaxInt / 4
)

// repeat lets groups do light element-wise calls again, in place of reading their results, where that saves bytes: the group reads what
// they read anyway, or nobody else needs a result, which is then never in memory. The calls that a group does again are inserted before
// its first one, with new storages for their results. A group with a product, a call by rows or one that puts its inputs side by side does
// none again, and neither does one that goes through its elements again.
func (a *grouping) repeat() {
	a.peak = a.usage().peak
	for i := 0; i < len(a.g.Calls); i++ {
		a.repeatForAll(i)
	}
	for i := 0; i < len(a.g.Calls); i++ {
		if s := a.of[i]; s == nil || i != s.Calls[len(s.Calls)-1] || !a.mayRepeat(s) {
			continue
		}
		for n := a.repeatFor(i); n > 0; n = a.repeatFor(i) {
			i += n
		}
	}
}

// forget takes the calls back that repeat others.
func (g *Graph) forget() {
	if len(g.repeats) == 0 {
		return
	}
	for i := range g.Calls {
		for j := range g.Calls[i].Ins {
			v := &g.Calls[i].Ins[j]
			if is, ok := g.repeats[v.Storage]; ok {
				v.Storage, v.Version = is[0], is[1]
			}
		}
	}
	g.Calls = slices.DeleteFunc(g.Calls, func(c Call) bool { return c.Again })
	for i := range g.Calls {
		g.Calls[i].Left = false
	}
	g.repeats = nil
}

// Repeats reports whether s does calls again.
func (g *Graph) Repeats(s *Set) bool {
	return slices.ContainsFunc(s.Calls, func(i int) bool { return g.Calls[i].Again })
}

// mayRepeat reports whether s may do calls again.
func (a *grouping) mayRepeat(s *Set) bool {
	other := func(i int) bool {
		c := &a.g.Calls[i]
		return c.NoAgain || c.Narrowed || c.Reduce == 0 && (!c.Point || c.Into != 0)
	}
	return !slices.ContainsFunc(s.Calls, other) && a.g.Phases(s) == nil
}

// repeatFor lets the group of call i do calls again to make one of the values that it reads, that which saves most. It returns how many
// calls it has inserted.
func (a *grouping) repeatFor(i int) int {
	s := a.of[i]
	ins := a.inputs(s)
	type choice struct {
		v     Value
		calls []int
		saves int
	}
	var all []choice
	for n, r := range ins {
		m := &making{a: a, s: s}
		for k, q := range ins {
			if k != n {
				m.read = append(m.read, &a.g.Calls[q.Call].Ins[q.Index])
			}
		}
		v := a.g.Calls[r.Call].Ins[r.Index]
		cost, calls := m.again(r, deepRepeat, unreadable)
		c := choice{v, calls, v.Bytes() - cost}
		if len(calls) > 0 && c.saves >= max(a.l.Saves, 1) && a.readsWhole(s, &v) {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(x, y choice) int { return cmp.Compare(y.saves, x.saves) })
	for _, c := range all {
		undo := a.keep()
		if a.insert(s, &c.v, c.calls) && a.asLow() {
			return len(c.calls)
		}
		undo()
	}
	return 0
}

// repeatForAll lets all groups that read the result of call i, which nobody else needs, do the call again, if that saves bytes in all. The
// call's own group then does not write it, or is left out if it writes nothing else.
func (a *grouping) repeatForAll(i int) {
	c, by := &a.g.Calls[i], a.of[i]
	if !c.light() || c.Again || a.by.alive[c.Outs[0].Storage] || by == nil {
		return
	}
	v, alone := c.Outs[0], len(by.From) == 0 || len(by.Outs) == 1
	if alone && slices.ContainsFunc(by.Calls, func(k int) bool { return !a.g.Calls[k].light() }) {
		return
	}
	readers, ok := a.readers(&v, i)
	if !ok || len(readers) == 0 {
		return
	}
	saves := v.Bytes()
	if alone {
		saves += a.reads(by)
	}
	for _, s := range readers {
		cost, calls := a.makes(s, &v)
		if saves += v.Bytes() - cost; len(calls) == 0 {
			return
		}
	}
	if saves < max(a.l.Saves, 1) {
		return
	}
	undo := a.keep()
	for len(readers) > 0 { // what they do again is inserted before them, so after this call
		if _, calls := a.makes(readers[0], &v); len(calls) == 0 || !a.insert(readers[0], &v, calls) {
			undo()
			return
		}
		if readers, ok = a.readers(&v, i); !ok {
			undo()
			return
		}
	}
	var own []int
	if alone {
		own = a.of[i].Calls
	}
	for _, k := range own {
		a.g.Calls[k].Left, a.of[k] = true, nil
	}
	if !a.asLow() {
		for _, k := range own {
			a.g.Calls[k].Left = false
		}
		undo()
	}
}

// asLow reports whether the peak of memory is no higher than before, and notes it.
func (a *grouping) asLow() bool {
	peak := a.usage().peak
	if peak > a.peak {
		return false
	}
	a.peak = peak
	return true
}

// readers returns the groups that read v, the result of call i, besides that call's own. It reports whether all of them can do calls again.
func (a *grouping) readers(v *Value, i int) (all []*Set, ok bool) {
	for _, q := range a.by.users[v.Storage] {
		s := a.of[q]
		switch {
		case a.g.Calls[q].Left || s != nil && (s == a.of[i] || slices.Contains(all, s)):
		case s == nil || !a.mayRepeat(s):
			return nil, false
		default:
			all = append(all, s)
		}
	}
	return all, true
}

// makes returns how many more bytes s reads if it makes v again, and which calls it does for that; none if it cannot.
func (a *grouping) makes(s *Set, v *Value) (cost int, calls []int) {
	m, r := &making{a: a, s: s}, Ref{-1, 0}
	for _, q := range a.inputs(s) {
		if w := &a.g.Calls[q.Call].Ins[q.Index]; w.Storage != v.Storage {
			m.read = append(m.read, w)
		} else if w.Version == v.Version {
			r = q
		}
	}
	if r.Call < 0 || !a.readsWhole(s, v) {
		return unreadable, nil
	}
	return m.again(r, deepRepeat, unreadable)
}

// inputs returns what s, which may be one call, reads.
func (a *grouping) inputs(s *Set) []Ref {
	if len(s.From) > 0 {
		return s.Ins
	}
	var all []Ref
	for j := range a.g.Calls[s.At].Ins {
		all = append(all, Ref{s.At, j})
	}
	return all
}

// reads is the number of bytes that s reads.
func (a *grouping) reads(s *Set) (n int) {
	for _, r := range a.inputs(s) {
		if v := &a.g.Calls[r.Call].Ins[r.Index]; v.Storage != 0 {
			n += v.Bytes()
		}
	}
	return n
}

// light reports whether groups may do the call again.
func (c *Call) light() bool {
	return c.Point && !c.Heavy && !c.Effect && !c.Checks && !c.Narrowed && c.Into == 0 && len(c.Outs) == 1
}

// making is how a group can make values again. read are those that it reads in any case.
type making struct {
	a    *grouping
	s    *Set
	read []*Value
}

// readsWhole reports whether all members of s that read v can have it from a member that makes it.
func (a *grouping) readsWhole(s *Set, v *Value) bool {
	for _, i := range s.Calls {
		for j := range a.g.Calls[i].Ins {
			if w := &a.g.Calls[i].Ins[j]; w.Storage == v.Storage && w.Version == v.Version {
				if _, ok := a.maker(i, j); !ok {
					return false
				}
			}
		}
	}
	return true
}

// cost returns how many more bytes the group reads to have r, the input of a call, and which calls it does again for that, in order, if it
// reads r itself or does at most deep calls in a row.
func (m *making) cost(r Ref, deep int) (bytes int, calls []int) {
	v := &m.a.g.Calls[r.Call].Ins[r.Index]
	if slices.ContainsFunc(m.read, v.equal) {
		return 0, nil
	}
	bytes = unreadable
	if m.inMemory(v) {
		bytes = v.Bytes()
	}
	if again, does := m.again(r, deep, bytes); again < bytes {
		return again, does
	}
	return bytes, nil
}

// again is cost without reading r, if that takes fewer than most bytes.
func (m *making) again(r Ref, deep, most int) (bytes int, calls []int) {
	g := m.a.g
	by, ok := m.a.maker(r.Call, r.Index)
	if !ok || deep == 0 || by.Call >= m.s.Calls[0] {
		return unreadable, nil
	}
	c := &g.Calls[by.Call]
	if !c.light() {
		return unreadable, nil
	}
	for j := range c.Ins {
		if c.Ins[j].Storage == 0 {
			continue
		}
		b, does := m.cost(Ref{by.Call, j}, deep-1)
		if bytes += b; bytes >= most {
			return unreadable, nil
		}
		calls = append(calls, does...)
	}
	calls = append(calls, by.Call)
	slices.Sort(calls)
	return bytes, slices.Compact(calls)
}

// inMemory reports whether the group finds v in memory where its first call is: somebody has written it by then, and nobody has changed it.
func (m *making) inMemory(v *Value) bool {
	a, first := m.a, m.s.Calls[0]
	for _, q := range a.by.users[v.Storage] {
		c := &a.g.Calls[q]
		later := func(w Value) bool { return w.Storage == v.Storage && w.Version > v.Version }
		if q < first && slices.ContainsFunc(c.Outs, later) {
			return false
		}
	}
	r, ok := a.by.maker(v.Storage, v.Version)
	if !ok {
		return v.Version == 0
	}
	t := a.of[r.Call]
	switch {
	case r.Call >= first || a.g.Calls[r.Call].Left:
		return false
	case t == nil || len(t.From) == 0:
		return true
	}
	return t.At < m.s.At && slices.Contains(t.Outs, r)
}

// insert makes a group of s and repeats of calls, which make v for it. If it reports that there is none, what it has done must be undone.
func (a *grouping) insert(s *Set, v *Value, calls []int) bool {
	before, top := s.Calls[0], a.by.top
	if top+len(calls) > MaxStorage {
		return false
	}
	if a.g.repeats == nil {
		a.g.repeats = map[int][2]int{}
	}
	var again []Call
	become := map[[2]int]int{}
	replaced := func(ins []Value) []Value {
		ins = slices.Clone(ins)
		for j := range ins {
			if to, ok := become[[2]int{ins[j].Storage, ins[j].Version}]; ok {
				ins[j].Storage, ins[j].Version = to, 1
			}
		}
		return ins
	}
	for n, i := range calls {
		c, out := a.g.Calls[i], a.g.Calls[i].Outs[0]
		to := top + 1 + n
		a.g.repeats[to] = [2]int{out.Storage, out.Version}
		c.Ins = replaced(c.Ins)
		become[a.g.repeats[to]] = to
		out.Storage, out.Version = to, 1
		c.Outs, c.Again = []Value{out}, true
		again = append(again, c)
	}
	made := [2]int{v.Storage, v.Version}
	become = map[[2]int]int{made: become[made]} // the group's own calls read nothing else of them
	of, ins := slices.Clone(a.of), make([][]Value, len(s.Calls))
	shift(a.of, before, len(calls))
	a.of = slices.Insert(a.of, before, make([]*Set, len(calls))...)
	a.g.Calls = slices.Insert(a.g.Calls, before, again...)
	members := upTo(before, before+len(calls))
	for k, i := range s.Calls {
		ins[k] = a.g.Calls[i].Ins
		a.g.Calls[i].Ins = replaced(ins[k])
		members = append(members, i)
	}
	a.undo = append(a.undo, func() {
		for k, i := range s.Calls {
			a.g.Calls[i].Ins = ins[k]
		}
		a.g.Calls = slices.Delete(a.g.Calls, before, before+len(again))
		shift(of, before+len(again), -len(again))
		for k := range again {
			delete(a.g.repeats, top+1+k)
		}
	})
	a.by.fill(a.g)
	a.late = true // the peak decides
	defer func() { a.late = false }()
	return a.regroup(members) && a.shrink(calls)
}

// upTo returns the numbers from first up to, but not including, end.
func upTo(first, end int) (all []int) {
	for i := first; i < end; i++ {
		all = append(all, i)
	}
	return all
}

// regroup makes a group of calls. It reports whether it could.
func (a *grouping) regroup(calls []int) bool {
	s := a.set(calls)
	if s == nil {
		return false
	}
	for _, i := range calls {
		a.of[i] = s
	}
	return true
}

// shrink lets the groups of calls no longer write what nobody else needs any more. It reports whether these groups still run in time.
func (a *grouping) shrink(calls []int) bool {
	for _, i := range calls {
		t := a.of[i]
		if t == nil || len(t.From) == 0 {
			continue
		}
		needed := func(r Ref) bool {
			v := &a.g.Calls[r.Call].Outs[r.Index]
			return a.by.alive[v.Storage] || slices.ContainsFunc(a.by.users[v.Storage], func(q int) bool { return a.of[q] != t })
		}
		n := 0
		for _, r := range t.Outs {
			if needed(r) {
				n++
			}
		}
		if n == len(t.Outs) || n == 0 {
			continue
		}
		if at := t.At; !a.regroup(t.Calls) {
			return false
		} else if now := a.of[i]; now.At > at && a.usedBefore(now) {
			return false
		}
	}
	return true
}

// usedBefore reports whether another group that runs before t reads what t writes.
func (a *grouping) usedBefore(t *Set) bool {
	return slices.ContainsFunc(t.Outs, func(r Ref) bool {
		return slices.ContainsFunc(a.by.users[a.g.Calls[r.Call].Outs[r.Index].Storage], func(q int) bool {
			s := a.of[q]
			return s != t && (s == nil && q < t.At || s != nil && s.At < t.At)
		})
	})
}

// shift moves call number from and those behind it by n places: the members of the groups that calls have.
func shift(of []*Set, from, n int) {
	move := func(i *int) {
		if *i >= from {
			*i += n
		}
	}
	seen := make(map[*Set]bool, len(of))
	for _, s := range of {
		if s == nil || seen[s] {
			continue
		}
		seen[s] = true
		move(&s.At)
		for k := range s.Calls {
			move(&s.Calls[k])
		}
		for _, list := range [][]Ref{s.Ins, s.Outs} {
			for k := range list {
				move(&list[k].Call)
			}
		}
	}
}

// keep returns a function that takes back what insert has done since.
func (a *grouping) keep() (restore func()) {
	of := slices.Clone(a.of)
	a.undo = a.undo[:0]
	return func() {
		for _, undo := range slices.Backward(a.undo) {
			undo()
		}
		a.of = of
		a.by.fill(a.g)
	}
}

// Internal reports whether a storage is that of a call that a group does again.
func (g *Graph) Internal(storage int) bool { return g.repeats[storage] != [2]int{} }
