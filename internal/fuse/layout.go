package fuse

import (
	"slices"

	"tenon.dev/internal/infer"
)

// Lays says how a call takes the operands in Call.Laid if they have four dimensions and their channels, the second of these, may lie last.
type Lays uint8

const (
	// LaysFixed: operands must lie as they do.
	LaysFixed Lays = iota
	// LaysAlike: operands may lie in either way, but all in one.
	LaysAlike
	// LaysLast: operands may lie in either way, but for each whose channels do not lie last the call takes about as long again as a copy.
	LaysLast
	// LaysFirst: the same for each operand whose channels lie last.
	LaysFirst
	// LaysEqual: the operands, of which there are two, may lie in either way. If only the channels of one lie last, the call takes longer
	// as if it copied the other.
	LaysEqual
)

// LayOut lays values with their channels last if calls then copy fewer bytes, or take less time that is counted in such bytes. These values
// are whole new storages of four dimensions that nobody uses after the segment, and that all calls see as they are made. It returns their
// storages in ascending order. The sets of storages that must lie alike are the nodes of a graph, and a minimum cut divides those that
// stay as they are from the others. Of several such cuts it takes the one that changes least.
func (g *Graph) LayOut() []int {
	if !slices.ContainsFunc(g.Calls, func(c Call) bool { return c.Lays > LaysAlike }) {
		return nil
	}
	l := &layingOut{g: g, place: g.layable(), set: map[int]int{}, fixed: map[int]bool{}}
	for i := range g.Calls {
		l.tie(&g.Calls[i])
	}
	last := l.cut()
	if len(last) == 0 {
		return nil
	}
	for i := range g.Calls {
		c := &g.Calls[i]
		for j := range len(c.Ins) + len(c.Outs) {
			if v := c.at(j); v.Storage != 0 {
				if _, ok := slices.BinarySearch(last, v.Storage); ok {
					v.Stride = infer.ChannelsLastStrides(v.Shape)
				}
			}
		}
	}
	return last
}

// layingOut is the state of one run of LayOut.
type layingOut struct {
	g *Graph
	// place has the storages that may be laid out anew.
	place map[int]*Place
	// set joins those that must lie alike: it names another member, and that of the last one is its own. fixed are the last ones of sets
	// that stay as they are.
	set   map[int]int
	fixed map[int]bool
}

// layable returns the storages that may be laid out anew, and how they lie.
func (g *Graph) layable() map[int]*Place {
	place, live := map[int]*Place{}, g.live()
	for i := range g.Calls {
		c := &g.Calls[i]
		for j := range c.Outs {
			v := &c.Outs[j]
			if !c.into(j) && !live[v.Storage] && len(v.Shape) == 4 && v.bears() && v.Offset == 0 &&
				slices.Equal(v.Stride, rowMajor(v.Shape)) {
				place[v.Storage] = &v.Place
			}
		}
		for j := range len(c.Ins) + len(c.Outs) {
			v := c.at(j)
			if p := place[v.Storage]; p != nil && !p.equal(&v.Place) {
				delete(place, v.Storage)
			}
		}
	}
	return place
}

// bears reports whether it matters where the channels of an operand of four dimensions, or one that is broadcast to four, lie: there are
// several channels and several pixels.
func (p *Place) bears() bool {
	n := len(p.Shape)
	return n >= 3 && p.Shape[n-3] > 1 && p.Shape[n-2]*p.Shape[n-1] > 1
}

// root returns the last member of the storage's set.
func (l *layingOut) root(s int) int {
	for l.set[s] != 0 && l.set[s] != s {
		s = l.set[s]
	}
	return s
}

// join makes one set of those of s and t.
func (l *layingOut) join(s, t int) {
	s, t = l.root(s), l.root(t)
	l.set[s] = t
	l.fixed[t] = l.fixed[t] || l.fixed[s]
}

// operands calls f with the operands of c that may be laid out anew, and whether the call says how it takes them.
func (l *layingOut) operands(c *Call, f func(v *Value, laid bool)) {
	for j := range len(c.Ins) + len(c.Outs) {
		if v := c.at(j); v.Storage != 0 && l.place[v.Storage] != nil {
			f(v, c.lays(j))
		}
	}
}

// lays reports whether the call says how it takes operand j, counted like at's.
func (c *Call) lays(j int) bool { return c.Lays != LaysFixed && c.Laid>>j&1 != 0 }

// tie notes which operands of the call must lie as they do, and which must lie alike.
func (l *layingOut) tie(c *Call) {
	first, fixed := 0, c.Lays == LaysAlike && len(c.Outs[0].Shape) != 4
	for j := range len(c.Ins) + len(c.Outs) {
		v := c.at(j)
		fixed = fixed || c.Lays == LaysAlike && v.Storage != 0 && l.place[v.Storage] == nil && v.bears()
	}
	l.operands(c, func(v *Value, laid bool) {
		switch {
		case !laid || fixed:
			l.fixed[l.root(v.Storage)] = true
		case c.Lays != LaysAlike:
		case first == 0:
			first = v.Storage
		default:
			l.join(v.Storage, first)
		}
	})
}

// cut returns the storages that are to lie with their channels last, in ascending order.
func (l *layingOut) cut() (last []int) {
	var graph Cut
	nodes := map[int]int{}
	node := func(s int) int {
		r := l.root(s)
		n, ok := nodes[r]
		if !ok {
			n = CutNodes + len(nodes)
			if nodes[r] = n; l.fixed[r] {
				graph.From(n)
			}
		}
		return n
	}
	for i := range l.g.Calls {
		c := &l.g.Calls[i]
		switch c.Lays {
		case LaysLast, LaysFirst:
			l.operands(c, func(v *Value, laid bool) {
				switch {
				case !laid:
				case c.Lays == LaysLast:
					graph.Edge(node(v.Storage), cutSink, int64(v.Bytes()))
				default:
					graph.Edge(cutSource, node(v.Storage), int64(v.Bytes()))
				}
			})
		case LaysEqual:
			l.equal(&graph, c, node)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	_, behind := graph.Min()
	for s := range l.place { //tenon:unordered they are sorted
		if n, ok := nodes[l.root(s)]; ok && n < len(behind) && behind[n] {
			last = append(last, s)
		}
	}
	slices.Sort(last)
	return last
}

// equal adds what c, which is LaysEqual, costs if its two operands lie in different ways: a copy of the one whose channels are not last.
func (l *layingOut) equal(graph *Cut, c *Call, node func(s int) int) {
	var two []*Value
	for j := range len(c.Ins) + len(c.Outs) {
		if c.lays(j) {
			two = append(two, c.at(j))
		}
	}
	for k, v := range two {
		other := two[len(two)-1-k]
		may, also := l.place[v.Storage] != nil, l.place[other.Storage] != nil
		switch bytes := int64(v.Bytes()); {
		case may && also:
			graph.Edge(node(v.Storage), node(other.Storage), bytes)
		case may && other.bears() && !other.flat():
			graph.Edge(node(v.Storage), cutSink, bytes)
		case also && v.bears() && v.flat():
			graph.Edge(cutSource, node(other.Storage), bytes)
		}
	}
}
