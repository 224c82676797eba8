package fuse

import (
	"cmp"
	"slices"

	"tenon.dev/internal/infer"
)

// Set is a group of calls that run together.
type Set struct {
	// Calls are indexes into Graph.Calls, ascending. At is the one at whose position they run: the last one if Join is false, except that
	// reductions may follow which then run earlier.
	Calls []int
	At    int
	// Join says that the calls convert different arrays. Otherwise the calls are computed one after the other for each element.
	Join bool
	// Ins are the values that the group reads from memory. Each is listed once, as one of the operands that has it. Outs are those that it
	// writes to memory.
	Ins, Outs []Ref
	// From says for every member where its inputs come from.
	From [][]Source
	// Saves is how many fewer bytes the group reads and writes than its calls do separately.
	Saves int
}

// Makers returns which of the members of s that has selects are also selected by from, or make what a member selected by from reads,
// directly or through one another.
func (s *Set) Makers(from, has func(k int) bool) func(k int) bool {
	all := make([]bool, len(s.Calls))
	for k := len(s.Calls) - 1; k >= 0; k-- {
		if all[k] = all[k] || from(k); all[k] {
			for _, f := range s.From[k] {
				if f.Member >= 0 && has(f.Member) {
					all[f.Member] = true
				}
			}
		}
	}
	return func(k int) bool { return all[k] && has(k) }
}

// Ref is an input or an output of a call.
type Ref struct{ Call, Index int }

// Source is where a member of a group gets an input from: result Index of the member Member or, if Member is negative, input Index of the
// group. Both are negative if the input is absent. Part, if not 0, says that the input is only the part of the result that belongs to input
// Part-1 of a member that puts its inputs side by side.
type Source struct{ Member, Index, Part int }

// Limits bound groups.
type Limits struct {
	// Calls and Heavy are the maximum numbers of calls and of heavy calls per group, Operands of values read and written, Outs of values
	// written, and Values of scalars. States bounds what the reductions of a group have to keep.
	Calls, Heavy, Operands, Outs, Values, States int
	// Span is the maximum distance from the first call of a group to its last, in calls.
	Span int
	// Saves is the minimum number of bytes that a group must save; smaller groups cost more to build than they gain.
	Saves int
	// Joined is the maximum number of bytes that a conversion may read and write to be joined with others; a larger one fills the device
	// alone. Together is the number of conversions that one launch can make. Slack is the number of bytes by which all joined conversions
	// may raise the peak of memory, and what the results of reductions that run earlier may take in each group.
	Joined, Together, Slack int
}

// Group joins element-wise calls with those that made their operands. All calls of a group have one lane and one shape, unless they read
// the results of reductions or are joined by joinShapes or with a call that puts its inputs side by side, and each that reads a result of
// another reads the same elements in the same order. A chain is not joined through a broadcast, which would recompute it for every
// repetition. One call of a group may be row-wise, or some may be reductions, whose inputs have that shape. If a reduction's kernel can go
// through the rows again, calls that read its results are joined with it. At the end, groups without such calls are joined with products
// that they read, and products with the calls that only make a matrix that they read once. A group runs at the position of its last call,
// so no call in between may write what the group reads, or use what it writes; and while the group waits, it must not hold more memory for
// its operands than it saves by not writing results, unless there is room below the peak that memory has with the groups found so far. If
// reductions write more than their results, the last call is the last element-wise one, and reductions after it run earlier. Last, groups
// do calls again where that saves bytes, see repeat.
func (g *Graph) Group(l Limits) {
	g.forget()
	a := g.grouped(l)
	a.joinLate()
	a.joinShapes()
	a.repeat()
	g.Groups = nil
	for i, s := range a.of {
		if s == nil || len(s.From) == 0 || i != s.Calls[len(s.Calls)-1] {
			continue
		}
		narrowed := slices.ContainsFunc(s.Calls, func(k int) bool { return g.Calls[k].Narrowed })
		if narrowed || len(s.Calls) > 1 && s.Saves >= l.Saves {
			g.Groups = append(g.Groups, *s)
		}
	}
}

// grouped returns the groups that hold no memory while they wait.
func (g *Graph) grouped(l Limits) *grouping {
	a := &grouping{g: g, l: l, of: make([]*Set, len(g.Calls))}
	a.by.fill(g)
	for i := range g.Calls {
		switch c := &g.Calls[i]; {
		case c.Reduce != 0:
			a.joinReduce(i)
		case (c.Point || c.Row || c.Cat) && len(c.Outs) > 0:
			a.join(i)
		}
	}
	for i := range g.Calls {
		a.joinResults(i)
	}
	for i := range g.Calls {
		if g.Calls[i].Product {
			a.joinProduct(i)
		}
		if g.Calls[i].Once {
			a.joinMatrix(i)
		}
	}
	return a
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

// grouping is the state of one run of Group.
type grouping struct {
	g  *Graph
	l  Limits
	by index
	// of is the group of every call that may be in one.
	of []*Set
	// late says that groups may hold memory while they wait, as long as its peak is at most peak.
	late bool
	peak int
	// undo takes back what insert has done since keep, the latest last.
	undo []func()
}

// join starts a group with call i, and merges it with others.
func (a *grouping) join(i int) {
	a.of[i] = &Set{Calls: []int{i}, At: i}
	if a.g.Calls[i].Narrowed { // it must be a group, because its own kernel takes the operands as they were
		if s := a.set([]int{i}); s != nil {
			a.of[i] = s
		}
	}
	a.joinMakers(i)
}

// joinMakers merges the group of call i with those of its operands, the latest first, where the result is a valid group.
func (a *grouping) joinMakers(i int) {
	var makers []int
	for j := range a.g.Calls[i].Ins {
		if r, ok := a.maker(i, j); ok {
			makers = append(makers, r.Call)
		}
	}
	slices.SortFunc(makers, func(x, y int) int { return cmp.Compare(y, x) })
	for _, m := range makers {
		if a.of[m] == nil || a.of[m] == a.of[i] || a.late && !(a.g.alone(a.of[m]) && a.g.alone(a.of[i])) {
			continue
		}
		switch s := a.set(sorted(a.of[m].Calls, a.of[i].Calls)); {
		case s == nil:
		case a.late:
			a.replaceLate(s)
		default:
			for _, k := range s.Calls {
				a.of[k] = s
			}
		}
	}
}

// joinReduce makes a group of call i, a reduction, of the calls that only make its input, and of earlier reductions alike.
func (a *grouping) joinReduce(i int) {
	a.of[i] = &Set{Calls: []int{i}, At: i}
	c := &a.g.Calls[i]
	var alike []int // the latest first
	for j := i - 1; j >= 0 && i-j < a.l.Span; j-- {
		d := &a.g.Calls[j]
		if a.of[j] != nil && d.Reduce == c.Reduce && d.Lane == c.Lane && slices.Equal(d.Ins[0].Shape, c.Ins[0].Shape) {
			alike = append(alike, j)
		}
	}
	for _, j := range alike {
		if a.g.Calls[j].Ins[0].equal(&c.Ins[0]) && a.of[j] != a.of[i] && a.withMakers(sorted(a.of[j].Calls, a.of[i].Calls), i) {
			return
		}
	}
	a.withMakers(a.of[i].Calls, i)
	defer a.withGroups(i)
	for _, j := range alike {
		if a.of[j] != a.of[i] && a.share(a.of[j], a.of[i]) && a.replace(sorted(a.of[j].Calls, a.of[i].Calls), nil) {
			a.withMakers(a.of[i].Calls, i) // what made the value may now be for nobody else
		}
	}
}

// withGroups merges the group of call i, a reduction, with those that make what it reads, which others need too and which the kernel then
// writes. A group stays as it is if a product can include it, which saves more.
func (a *grouping) withGroups(i int) {
	for _, k := range a.of[i].Calls {
		for j := range a.g.Calls[k].Ins {
			if r, ok := a.maker(k, j); ok && a.of[r.Call] != nil && a.of[r.Call] != a.of[i] && !a.ofProduct(a.of[r.Call]) {
				a.replace(sorted(a.of[r.Call].Calls, a.of[i].Calls), nil)
			}
		}
	}
}

// ofProduct reports whether a product can include s.
func (a *grouping) ofProduct(s *Set) bool {
	for _, k := range s.Calls {
		for j := range a.g.Calls[k].Ins {
			v := &a.g.Calls[k].Ins[j]
			m, ok := a.by.maker(v.Storage, v.Version)
			if ok && a.g.Calls[m.Call].Product && a.set(sorted([]int{m.Call}, s.Calls)) != nil {
				return true
			}
		}
	}
	return false
}

// share reports whether two groups of reductions read one value.
func (a *grouping) share(s, t *Set) bool {
	reads := func(s *Set) (all []*Value) {
		if c := &a.g.Calls[s.At]; len(s.From) == 0 {
			for j := range c.Ins {
				all = append(all, &c.Ins[j])
			}
		}
		for _, r := range s.Ins {
			all = append(all, &a.g.Calls[r.Call].Ins[r.Index])
		}
		return all
	}
	for _, v := range reads(s) {
		if slices.ContainsFunc(reads(t), v.equal) {
			return true
		}
	}
	return false
}

// withMakers calls withMaker for every input of call i, and reports whether that saves bytes.
func (a *grouping) withMakers(calls []int, i int) (saves bool) {
	for j := range a.g.Calls[i].Ins {
		if a.withMaker(calls, i, j) {
			calls, saves = a.of[i].Calls, true
		}
	}
	return saves
}

// withMaker makes a group of calls and of those that only make what they read, among the ones that are in a group with the call that makes
// input j of call i. These leave their group, whose other calls stay together. It reports whether that saves bytes.
func (a *grouping) withMaker(calls []int, i, j int) bool {
	var rest []int
	if r, ok := a.maker(i, j); ok && a.of[r.Call] != nil && a.of[r.Call] != a.of[i] {
		member := map[int]int{}
		for _, k := range calls {
			member[k] = 0
		}
		for _, k := range slices.Backward(a.of[r.Call].Calls) {
			c := &a.g.Calls[k]
			if has(member, k) {
				continue
			}
			only := c.Point && !slices.ContainsFunc(c.Outs, func(v Value) bool {
				return a.by.alive[v.Storage] || a.usedBeside(v.Storage, k, member) || !a.usedBeside(v.Storage, k, nil)
			})
			if only {
				member[k] = 0
				calls = sorted(calls, []int{k})
			} else {
				rest = append(rest, k)
			}
		}
	}
	return a.replace(calls, sorted(rest, nil))
}

// replace makes groups of calls and of rest, if they can be groups and save more bytes than their present ones. It reports whether it did.
func (a *grouping) replace(calls, rest []int) bool {
	s, saved := a.set(calls), 0
	if s == nil {
		return false
	}
	seen := map[*Set]bool{}
	for _, k := range slices.Concat(calls, rest) {
		if t := a.of[k]; t != nil && !seen[t] {
			seen[t] = true
			saved += t.Saves
		}
	}
	saves := s.Saves
	var t *Set
	if len(rest) > 0 {
		if t = a.set(rest); t == nil {
			return false
		}
		saves += t.Saves
	}
	if saves <= saved {
		return false
	}
	for _, k := range s.Calls {
		a.of[k] = s
	}
	if t != nil {
		for _, k := range t.Calls {
			a.of[k] = t
		}
	}
	return true
}

// maker returns the output that is input j of call i, if it is made in the segment, has the shape in which the call computes, and is read
// in the layout in which it was made; a reduction may read it in another shape, and a product that reads a matrix once its transpose. Of
// row-wise calls, only the first input and the first output qualify.
func (a *grouping) maker(i, j int) (r Ref, ok bool) {
	c := &a.g.Calls[i]
	v := &c.Ins[j]
	if v.Storage == 0 || v.Version == 0 || c.Row && j > 0 {
		return r, false
	}
	r, ok = a.by.maker(v.Storage, v.Version)
	if !ok || r.Call >= i {
		return r, false
	}
	m := &a.g.Calls[r.Call]
	p := &m.Outs[r.Index].Place
	fits := p.equal(&v.Place) && slices.Equal(v.Shape, c.Outs[0].Shape)
	switch {
	case c.Cat:
		fits = p.same(&v.Place) || m.Point && c.partOf(p, &v.Place) > 0
	case c.Reduce != 0:
		fits = p.alike(&v.Place)
	case c.Once && j == 1:
		fits = p.turned(&v.Place)
	}
	return r, fits && !(m.Row && r.Index > 0) && m.Lane == c.Lane
}

// set returns the calls as a group, or nil if they cannot be one.
func (a *grouping) set(calls []int) *Set {
	s := &Set{Calls: calls, At: calls[len(calls)-1]}
	if len(calls) > a.l.Calls || calls[len(calls)-1]-calls[0] >= a.l.Span || !a.inPlace(s) {
		return nil
	}
	member := map[int]int{}
	for k, i := range calls {
		member[i] = k
	}
	a.sources(s, member)
	if !a.byRows(s) || !a.byProduct(s) || !a.byReduce(s) || !a.byCat(s) {
		return nil
	}
	a.results(s, member)
	if !a.byShape(s) || !a.byMatrix(s) || !a.byStores(s) || !a.inOrder(s) || !a.room(s) || !a.light(s, member) {
		return nil
	}
	return s
}

// room reports whether the kernel has room for the group.
func (a *grouping) room(s *Set) bool {
	steps, values, heavy, states := 0, 0, 0, 0
	cat, wide := a.g.Cat(s)
	for k, i := range s.Calls {
		c, n := &a.g.Calls[i], a.g.times(s, cat, wide, k)
		steps, values, states = steps+n, values+n*c.Values, states+c.States
		if c.Heavy {
			heavy += n
		}
	}
	return steps <= a.l.Calls && values <= a.l.Values && heavy <= a.l.Heavy && states <= a.l.States && len(s.Outs) <= a.l.Outs &&
		a.operands(s) <= a.l.Operands
}

// operands returns how many operands the kernel has. That of a row-wise call has all of its outputs but sums, also those that nobody
// needs. That of a product has the result and the bias of the product, and what the other members read and write, even if the product reads
// it too.
func (a *grouping) operands(s *Set) int {
	product := a.g.Product(s)
	if cat, wide := a.g.Cat(s); cat >= 0 {
		return a.g.catOperands(s, cat, wide)
	}
	if row, _ := a.g.Rows(s); row >= 0 {
		c, n := &a.g.Calls[s.Calls[row]], len(s.Ins)
		for _, r := range s.Outs {
			if r.Call != s.Calls[row] {
				n++
			}
		}
		return n + len(c.Outs) - c.Sums
	}
	if product < 0 {
		return len(s.Ins) + len(s.Outs)
	}
	var read [2]map[int]bool // by the work before the product and after it
	for i := range read {
		read[i] = map[int]bool{}
	}
	before := a.g.Before(s)
	for k, from := range s.From {
		for j, f := range from {
			apart := k == product && a.g.Calls[s.Calls[k]].Apart && j == len(s.From[k])-1
			switch {
			case k == product && !apart || f.Member >= 0 || f.Index < 0:
			case before[k]:
				read[0][f.Index] = true
			default:
				read[1][f.Index] = true
			}
		}
	}
	return 2 + len(read[0]) + len(read[1]) + len(s.Outs)
}

// Rows returns the row-wise member of s, or -1, and which members use its result; all others come before it.
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

// byRows reports whether the group can run row-wise if it has a row-wise member. There must be only one, and only its input 0 may come from
// the group. Members after it must not use results of members before it, which a thread no longer has. No memory may be modified, because
// threads that share a row may still read it.
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

// Reduction returns the first reduction of s, or nil.
func (g *Graph) Reduction(s *Set) *Call {
	k := slices.IndexFunc(s.Calls, func(i int) bool { return g.Calls[i].Reduce != 0 })
	if k < 0 {
		return nil
	}
	return &g.Calls[s.Calls[k]]
}

// byReduce reports whether the group can run in the kernel of a reduction if it has one. Then there are only reductions alike, and
// element-wise calls in the same lane that modify no memory, whose operands can be seen in the shape of what is reduced. Those that read no
// results of the reductions have one shape; byAgain has the conditions for the others. The group must not read these results from memory,
// because threads read elements that others write.
func (a *grouping) byReduce(s *Set) bool {
	first := a.g.Reduction(s)
	if first == nil {
		return true
	}
	written, phases := map[int]bool{}, a.g.Phases(s)
	shape := a.g.Shape(s)
	for k, i := range s.Calls {
		switch c := &a.g.Calls[i]; {
		case c.Lane != first.Lane, c.Reduce == 0 && (!c.Point || c.Into != 0):
			return false
		case c.Reduce == 0 && phases != nil && phases[k].Kind == OfRow:
		case c.Reduce == 0 && !slices.Equal(c.Outs[0].Shape, shape):
			return false
		case c.Reduce == 0:
		case c.Reduce != first.Reduce || !slices.Equal(c.Ins[0].Shape, first.Ins[0].Shape):
			return false
		default:
			for j := range c.Outs {
				if written[c.Outs[j].Storage] {
					return false
				}
				written[c.Outs[j].Storage] = true
			}
		}
	}
	for k, i := range s.Calls {
		for j, f := range s.From[k] {
			if written[a.g.Calls[i].Ins[j].Storage] && f.Member < 0 {
				return false
			}
		}
	}
	for _, r := range s.Ins {
		if _, ok := a.g.Reducible(s, r); !ok {
			return false
		}
	}
	return phases == nil || a.byAgain(s, phases)
}

// Shape returns the shape of the element-wise calls of s, a group with reductions, besides those that read their results, or that of what
// is reduced if there are none.
func (g *Graph) Shape(s *Set) []int {
	phases := g.Phases(s)
	for k, i := range s.Calls {
		if g.Calls[i].Reduce == 0 && (phases == nil || phases[k] == Phase{}) {
			return g.Calls[i].Outs[0].Shape
		}
	}
	return g.Reduction(s).Ins[0].Shape
}

// Reducible returns the strides of an input of s, a group with reductions, in the shape of what is reduced. It reports whether there are
// any.
func (g *Graph) Reducible(s *Set, r Ref) ([]int, bool) {
	c, to := &g.Calls[r.Call], g.Reduction(s).Ins[0].Shape
	v := &c.Ins[r.Index]
	if c.Reduce != 0 || slices.Equal(c.Outs[0].Shape, to) {
		stride := make([]int, len(to))
		infer.BroadcastStrides(stride, v.Shape, v.Stride, to)
		return stride, true
	}
	stride := make([]int, len(c.Outs[0].Shape))
	infer.BroadcastStrides(stride, v.Shape, v.Stride, c.Outs[0].Shape)
	if ofRows(c.Outs[0].Shape, to) {
		return append(stride[:len(to)-1], 0), true
	}
	return infer.ViewStrides(make([]int, 0, len(to)), c.Outs[0].Shape, stride, to)
}

// byStores reports whether the kernel of a group with reductions can write what else the group has to write: for rows, and arrays that lie
// like the input of the reductions. If no call reads their results, all reductions must allow it, and byStores sets At. Reductions that
// then run earlier than others make new memory of what the group makes, since a call before At may have been delayed beyond it.
func (a *grouping) byStores(s *Set) bool {
	first := a.g.Reduction(s)
	if first == nil {
		return true
	}
	at, stores, phases := -1, false, a.g.Phases(s)
	for _, i := range s.Calls {
		if a.g.Calls[i].Reduce == 0 {
			at = i
		}
	}
	for _, r := range s.Outs {
		c := &a.g.Calls[r.Call]
		if c.Reduce != 0 || phases != nil && phases[slices.Index(s.Calls, r.Call)].Kind == OfRow {
			continue
		}
		p, q := &c.Outs[r.Index].Place, &first.Ins[0].Place
		if stores = true; !(slices.Equal(p.Shape, q.Shape) && slices.Equal(p.Stride, q.Stride)) && !(p.flat() && q.flat()) {
			return false
		}
	}
	if phases != nil {
		return true
	}
	if !stores {
		return a.g.Calls[s.At].Reduce != 0
	}
	for k, i := range s.Calls {
		c := &a.g.Calls[i]
		earlier := i-at > k-slices.Index(s.Calls, at) // others are between them
		outside := slices.ContainsFunc(s.From[k], func(f Source) bool { return f.Member < 0 })
		if c.Reduce != 0 && (!c.Stores || earlier && (c.Into != 0 || outside)) {
			return false
		}
	}
	s.At = at
	return true
}

// inPlace reports whether the group uses every storage that it writes in a single layout, so that each element is read before it is
// written, and the last write is that of the last call.
func (a *grouping) inPlace(s *Set) bool {
	place, product := map[int]*Place{}, a.g.Product(s) >= 0
	cat, _ := a.g.Cat(s)
	plain := a.plain(s.Calls)
	var full *Place // what is reduced
	if first := a.g.Reduction(s); first != nil {
		full = &first.Ins[0].Place
	}
	for _, i := range s.Calls {
		for j := range a.g.Calls[i].Outs {
			place[a.g.Calls[i].Outs[j].Storage] = &a.g.Calls[i].Outs[j].Place
		}
	}
	for _, i := range s.Calls {
		c := &a.g.Calls[i]
		for j := range len(c.Ins) + len(c.Outs) {
			v := c.at(j)
			p := place[v.Storage]
			if p == nil || p.equal(&v.Place) {
				continue
			}
			ofRow := full != nil && p.numel() < full.numel()
			if !(plain && p.views(&v.Place)) && !((product || c.Reduce != 0 || ofRow) && p.alike(&v.Place)) &&
				!(c.Once && j == 1 && p.turned(&v.Place)) &&
				!(c.Cat && p.same(&v.Place)) && !(cat >= 0 && a.g.Calls[s.Calls[cat]].partOf(p, &v.Place) > 0) {
				return false
			}
		}
	}
	return true
}

// inOrder reports whether the whole group may run at its position.
func (a *grouping) inOrder(s *Set) bool {
	first, last, k := s.Calls[0], s.Calls[len(s.Calls)-1], 0
	for q := first; q < last; q++ {
		if s.Calls[k] == q {
			k++
			continue
		}
		passed := s.Calls[:k] // the members that q changes places with
		if q > s.At {
			passed = s.Calls[k:]
		}
		for _, p := range passed {
			if conflict(&a.g.Calls[p], &a.g.Calls[q]) {
				return false
			}
		}
	}
	return true
}

// sources fills in From and Ins, and adds the reads that the group avoids to Saves.
func (a *grouping) sources(s *Set, member map[int]int) {
	s.From = make([][]Source, len(s.Calls))
	cat, _ := a.g.Cat(s)
	for k, i := range s.Calls {
		c := &a.g.Calls[i]
		s.From[k] = make([]Source, len(c.Ins))
		for j := range c.Ins {
			v := &c.Ins[j]
			if v.Storage == 0 {
				s.From[k][j] = Source{Member: -1, Index: -1}
				continue
			}
			r, ok := a.by.maker(v.Storage, v.Version)
			if m, in := member[r.Call]; ok && in {
				s.From[k][j] = Source{Member: m, Index: r.Index}
				if cat >= 0 {
					s.From[k][j].Part = a.g.Calls[s.Calls[cat]].partOf(&a.g.Calls[r.Call].Outs[r.Index].Place, &v.Place)
				}
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
			s.From[k][j] = Source{Member: -1, Index: at}
		}
	}
}

// results fills in Outs: the group's last version of every storage that is live or that a call outside the group uses later. It adds the
// writes that the group avoids to Saves.
func (a *grouping) results(s *Set, member map[int]int) {
	for k, i := range s.Calls {
		c := &a.g.Calls[i]
		for j := range c.Outs {
			v := &c.Outs[j]
			if next, ok := a.by.maker(v.Storage, v.Version+1); ok && has(member, next.Call) {
				s.Saves += v.Bytes()
				continue
			}
			if a.by.alive[v.Storage] || a.usedBeside(v.Storage, s.Calls[k], member) {
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

// usedBeside reports whether a call outside the group uses the storage after call i.
func (a *grouping) usedBeside(storage, i int, member map[int]int) bool {
	return slices.ContainsFunc(a.by.users[storage], func(q int) bool { return q > i && !has(member, q) })
}

// last returns the last call that uses the storage.
func (a *grouping) last(storage int) int {
	users := a.by.users[storage]
	return users[len(users)-1]
}

// light reports whether delaying the group raises no peak of memory: at every call in between, the memory that its earlier members would
// have freed by then is at most the memory that they would have made and the group does not hold. What reductions make that run earlier may
// take l.Slack in each group.
func (a *grouping) light(s *Set, member map[int]int) bool {
	first, last := s.Calls[0], s.Calls[len(s.Calls)-1]
	if last-first == len(s.Calls)-1 {
		return true
	}
	at, early := member[s.At], 0
	for _, i := range s.Calls[at+1:] {
		for j := range a.g.Calls[i].Outs {
			early += a.g.Calls[i].Outs[j].Bytes()
		}
	}
	if early > a.l.Slack {
		return false
	}
	held := 0
	for k, i := range s.Calls[:at] {
		c := &a.g.Calls[i]
		for j := range c.Ins {
			if v := &c.Ins[j]; v.Storage != 0 && !a.by.alive[v.Storage] && a.last(v.Storage) == i && s.From[k][j].Member < 0 {
				held += v.Bytes()
			}
		}
		for j := range c.Outs {
			if v := &c.Outs[j]; !c.into(j) && (a.by.alive[v.Storage] || a.last(v.Storage) > i) {
				held -= v.Bytes()
			}
		}
		for j := range c.Ins { // what stayed in the group, and is not needed any more
			if v := &c.Ins[j]; s.From[k][j].Member >= 0 && a.last(v.Storage) == i {
				held += v.Bytes()
			}
		}
		if s.Calls[k+1] > i+1 && held > 0 && !a.late {
			return false
		}
	}
	return true
}
