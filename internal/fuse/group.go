package fuse

import (
	"cmp"
	"slices"
)

// Set is a group of calls that run together.
type Set struct {
	// Calls are places in Graph.Calls, ascending, and At is the one where they run, that of the last if Join is false.
	Calls []int
	At    int
	// Join says that the calls convert different arrays. Otherwise they compute one element after the other.
	Join bool
	// Ins are the values that the group reads from memory, each once, by an operand that has it, and Outs those that it writes there.
	Ins, Outs []Ref
	// From says for every member what its inputs are.
	From [][]Source
	// Saves is how many bytes the group reads and writes less than its calls do alone.
	Saves int
}

// Ref is an input or an output of a call.
type Ref struct{ Call, Index int }

// Source is where a member of a group has an input from: result Index of the member Member or, where Member is less than 0, input Index of
// the group. Both are less than 0 where the input is absent.
type Source struct{ Member, Index int }

// Limits bound groups.
type Limits struct {
	// Calls and Heavy are the most calls, and heavy ones among them, that a group may have, Operands the most values read and written, Outs
	// the most written, and Values the most numbers.
	Calls, Heavy, Operands, Outs, Values int
	// Span is how many calls may lie from the first of a group to its last.
	Span int
	// Saves is the least number of bytes that a group must save: what saves less costs more to build than it gains.
	Saves int
	// Joined is the most bytes that a conversion may read and write to be joined with others: one of more fills the device alone.
	Joined int
}

// Group joins calls that compute element by element with those that made their operands: all have one shape and one lane, and whoever
// reads what another of the group made reads the same elements in the same order. A chain is not joined through a broadcast, which would
// compute it again for every repetition. One call of a group may go by rows. A group runs at the place of its last call, so no call in
// between may write what it reads, or use what it writes; and while it waits it may hold no more memory for its operands than it saves by
// what it does not write.
func (g *Graph) Group(l Limits) {
	a := &grouping{g: g, l: l, live: g.live(), made: g.writers(), users: map[int][]int{}, of: make([]*Set, len(g.Calls))}
	for i := range g.Calls {
		g.Calls[i].uses(func(s int, _ bool) { a.users[s] = append(a.users[s], i) })
	}
	for i := range g.Calls {
		if c := &g.Calls[i]; (c.Point || c.Row) && len(c.Outs) > 0 {
			a.join(i)
		}
	}
	g.Groups = nil
	for i, s := range a.of {
		if s == nil || len(s.From) == 0 || i != s.Calls[len(s.Calls)-1] {
			continue
		}
		narrowed := slices.ContainsFunc(s.Calls, func(k int) bool { return g.Calls[k].Narrowed != 0 })
		if narrowed || len(s.Calls) > 1 && s.Saves >= l.Saves {
			g.Groups = append(g.Groups, *s)
		}
	}
}

// groupOf returns the group of every call, or nil.
func (g *Graph) groupOf() []*Set {
	of := make([]*Set, len(g.Calls))
	for k := range g.Groups {
		for _, i := range g.Groups[k].Calls {
			of[i] = &g.Groups[k]
		}
	}
	return of
}

// grouping is a run of Group.
type grouping struct {
	g    *Graph
	l    Limits
	live map[int]bool
	made map[[2]int]Ref
	// users are the calls that use a storage, in their order.
	users map[int][]int
	// of is the group of every call that may have one.
	of []*Set
}

// join begins a group of call i and joins it with those of its operands, the latest first, as far as the result is a group.
func (a *grouping) join(i int) {
	a.of[i] = &Set{Calls: []int{i}, At: i}
	if a.g.Calls[i].Narrowed != 0 { // it must be a group, for its own kernel takes the operands as they were
		if s := a.set([]int{i}); s != nil {
			a.of[i] = s
		}
	}
	var makers []int
	for j := range a.g.Calls[i].Ins {
		if r, ok := a.maker(i, j); ok {
			makers = append(makers, r.Call)
		}
	}
	slices.SortFunc(makers, func(x, y int) int { return cmp.Compare(y, x) })
	for _, m := range makers {
		if a.of[m] == nil || a.of[m] == a.of[i] {
			continue
		}
		if s := a.set(sorted(a.of[m].Calls, a.of[i].Calls)); s != nil {
			for _, k := range s.Calls {
				a.of[k] = s
			}
		}
	}
}

// maker returns the output that input j of call i is, if it is made in the segment, in the shape in which the call computes, and read as it
// was made. Of calls that go by rows it knows the first input and output.
func (a *grouping) maker(i, j int) (r Ref, ok bool) {
	c := &a.g.Calls[i]
	v := &c.Ins[j]
	if v.Storage == 0 || v.Version == 0 || c.Row && j > 0 {
		return r, false
	}
	r, ok = a.made[[2]int{v.Storage, v.Version}]
	if !ok || r.Call >= i {
		return r, false
	}
	m := &a.g.Calls[r.Call]
	return r, !(m.Row && r.Index > 0) && m.Lane == c.Lane && m.Outs[r.Index].Place.equal(&v.Place) && slices.Equal(v.Shape, c.Outs[0].Shape)
}

// set returns those calls as a group, or nil if they can be none.
func (a *grouping) set(calls []int) *Set {
	s := &Set{Calls: calls, At: calls[len(calls)-1]}
	if len(calls) > a.l.Calls || calls[len(calls)-1]-calls[0] >= a.l.Span || !a.inPlace(s) || !a.inOrder(s) {
		return nil
	}
	member, values, heavy := map[int]int{}, 0, 0
	for k, i := range calls {
		member[i] = k
		values += a.g.Calls[i].Values
		if a.g.Calls[i].Heavy {
			heavy++
		}
	}
	a.sources(s, member)
	if !a.byRows(s) {
		return nil
	}
	a.results(s, member)
	if values > a.l.Values || heavy > a.l.Heavy || len(s.Outs) > a.l.Outs || len(s.Ins)+len(s.Outs) > a.l.Operands || !a.light(s, member) {
		return nil
	}
	return s
}

// Rows returns the member of s that goes by rows, or -1, and which members use its result; those that do not come before it.
func (g *Graph) Rows(s *Set) (row int, after []bool) {
	row = slices.IndexFunc(s.Calls, func(i int) bool { return g.Calls[i].Row })
	after = make([]bool, len(s.Calls))
	for k, from := range s.From {
		for _, f := range from {
			after[k] = after[k] || row >= 0 && f.Member >= 0 && (f.Member == row || after[f.Member])
		}
	}
	return row, after
}

// byRows reports whether the group can run by rows, if a member goes by rows. There is one such member, and only its input 0 comes from the
// group. Members after it use nothing from those before: a thread has forgotten those elements. No memory is changed: threads that share a
// row may still read it.
func (a *grouping) byRows(s *Set) bool {
	row, after := a.g.Rows(s)
	if row < 0 {
		return true
	}
	for k, i := range s.Calls {
		if k != row && a.g.Calls[i].Row || a.g.Calls[i].Into != 0 {
			return false
		}
		for j, f := range s.From[k] {
			switch m := f.Member; {
			case m < 0:
			case k == row && j > 0, m == row && f.Index > 0, after[k] && m != row && !after[m]:
				return false
			}
		}
	}
	return true
}

// inPlace reports whether every storage that the group writes is used by it in one way alone, so that each element is read before it is
// written, and written last by the last call.
func (a *grouping) inPlace(s *Set) bool {
	place := map[int]*Place{}
	for _, i := range s.Calls {
		for j := range a.g.Calls[i].Outs {
			place[a.g.Calls[i].Outs[j].Storage] = &a.g.Calls[i].Outs[j].Place
		}
	}
	for _, i := range s.Calls {
		c := &a.g.Calls[i]
		for j := range len(c.Ins) + len(c.Outs) {
			v := c.at(j)
			if p := place[v.Storage]; p != nil && !p.equal(&v.Place) {
				return false
			}
		}
	}
	return true
}

// inOrder reports whether all of the group may run at the place of its last call.
func (a *grouping) inOrder(s *Set) bool {
	first, last, k := s.Calls[0], s.Calls[len(s.Calls)-1], 0
	for q := first; q < last; q++ {
		if s.Calls[k] == q {
			k++
			continue
		}
		for _, p := range s.Calls[:k] {
			if conflict(&a.g.Calls[p], &a.g.Calls[q]) {
				return false
			}
		}
	}
	return true
}

// sources fills in From and Ins, and counts what is not read again.
func (a *grouping) sources(s *Set, member map[int]int) {
	s.From = make([][]Source, len(s.Calls))
	for k, i := range s.Calls {
		c := &a.g.Calls[i]
		s.From[k] = make([]Source, len(c.Ins))
		for j := range c.Ins {
			v := &c.Ins[j]
			if v.Storage == 0 {
				s.From[k][j] = Source{-1, -1}
				continue
			}
			r, ok := a.made[[2]int{v.Storage, v.Version}]
			if m, in := member[r.Call]; ok && in {
				s.From[k][j] = Source{m, r.Index}
				s.Saves += v.Bytes()
				continue
			}
			at := slices.IndexFunc(s.Ins, func(r Ref) bool { return a.g.Calls[r.Call].Ins[r.Index].equal(v) })
			if at < 0 {
				at = len(s.Ins)
				s.Ins = append(s.Ins, Ref{i, j})
			} else {
				s.Saves += v.Bytes()
			}
			s.From[k][j] = Source{-1, at}
		}
	}
}

// results fills in Outs: the last version in the group of every storage that is live or that another call uses later. It counts what is not
// written.
func (a *grouping) results(s *Set, member map[int]int) {
	for k, i := range s.Calls {
		c := &a.g.Calls[i]
		for j := range c.Outs {
			v := &c.Outs[j]
			if next, ok := a.made[[2]int{v.Storage, v.Version + 1}]; ok && has(member, next.Call) {
				s.Saves += v.Bytes()
				continue
			}
			if a.live[v.Storage] || a.usedBeside(v.Storage, s.Calls[k], member) {
				s.Outs = append(s.Outs, Ref{i, j})
			} else {
				s.Saves += v.Bytes()
			}
		}
	}
}

func has(m map[int]int, i int) bool {
	_, ok := m[i]
	return ok
}

// usedBeside reports whether a call outside of the group uses the storage after call i.
func (a *grouping) usedBeside(storage, i int, member map[int]int) bool {
	return slices.ContainsFunc(a.users[storage], func(q int) bool { return q > i && !has(member, q) })
}

// last returns the last call that uses the storage.
func (a *grouping) last(storage int) int {
	users := a.users[storage]
	return users[len(users)-1]
}

// light reports whether the group's wait raises no peak of memory: at every call in between, what its earlier members would have freed by
// then is no more than what they would have made and the group does not hold.
func (a *grouping) light(s *Set, member map[int]int) bool {
	first, last := s.Calls[0], s.Calls[len(s.Calls)-1]
	if last-first == len(s.Calls)-1 {
		return true
	}
	held := 0
	for k, i := range s.Calls[:len(s.Calls)-1] {
		c := &a.g.Calls[i]
		for j := range c.Ins {
			if v := &c.Ins[j]; v.Storage != 0 && !a.live[v.Storage] && a.last(v.Storage) == i && s.From[k][j].Member < 0 {
				held += v.Bytes()
			}
		}
		for j := range c.Outs {
			if v := &c.Outs[j]; !c.into(j) && (a.live[v.Storage] || a.last(v.Storage) > i) {
				held -= v.Bytes()
			}
		}
		if s.Calls[k+1] > i+1 && held > 0 {
			return false
		}
		for j := range c.Ins { // what a later member of the group needed last
			if v := &c.Ins[j]; s.From[k][j].Member >= 0 && a.last(v.Storage) == i {
				held += v.Bytes()
			}
		}
	}
	return true
}
