package fuse

import (
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// layoutCost returns what the calls cost if the storages in last have their channels last, in bytes. It reports whether all calls allow
// that.
func layoutCost(g *Graph, place map[int]*Place, last map[int]bool) (cost int, ok bool) {
	for i := range g.Calls {
		c := &g.Calls[i]
		lies := func(v *Value) (is, bears bool) { return last[v.Storage], v.Storage != 0 && v.bears() }
		var ways []bool
		for j := range len(c.Ins) + len(c.Outs) {
			v := c.at(j)
			is, bears := lies(v)
			if is && (place[v.Storage] == nil || !c.lays(j)) {
				return 0, false
			}
			if bears && c.lays(j) {
				ways = append(ways, is)
			}
			switch {
			case c.lays(j) && bears && (c.Lays == LaysLast && !is || c.Lays == LaysFirst && is):
				cost += v.Bytes()
			case c.Lays == LaysEqual && c.lays(j) && bears && !is:
				other := c.at(len(c.Ins))
				if other == v {
					other = &c.Ins[0]
				}
				if other, bears := lies(other); other && bears {
					cost += v.Bytes()
				}
			}
		}
		if c.Lays == LaysAlike && slices.Contains(ways, true) && slices.Contains(ways, false) {
			return 0, false
		}
	}
	return cost, true
}

// randomConvolutions returns a graph of calls that take values whose channels may lie last.
func randomConvolutions(rng *rand.Rand) *Graph {
	image := func(channels int) Place {
		s := []int{2, channels, 3, 3}
		return Place{DType: dtype.Float32, Shape: s, Stride: rowMajor(s)}
	}
	g := &Graph{}
	values, next := []Value{{Storage: 1, Place: image(2)}, {Storage: 2, Place: image(5)}}, 3
	for i := range 3 + rng.IntN(8) {
		in := values[rng.IntN(len(values))]
		out := Value{Storage: next, Place: image([]int{2, 5, 1, 8}[rng.IntN(4)])}
		c := Call{At: i, Op: "A", Lays: Lays(rng.IntN(5)), Laid: 1<<2 - 1, Ins: []Value{in}}
		if c.Lays == LaysAlike {
			out.Place = image(in.Shape[1])
			if other := values[rng.IntN(len(values))]; slices.Equal(other.Shape, in.Shape) {
				c.Ins, c.Laid = append(c.Ins, other), 1<<3-1
			}
		}
		if c.Outs = []Value{out}; c.Lays == LaysFixed && rng.IntN(3) > 0 {
			c.Lays, c.Laid = LaysLast, 1<<2-1
		}
		if next++; rng.IntN(8) == 0 {
			g.Live = append(g.Live, out.Storage)
		}
		g.Calls, values = append(g.Calls, c), append(values, out)
	}
	return g
}

// LayOut finds the least cost, changes no value that must stay, and lays all uses of a value in one way.
func TestLayOutFindsTheLeastCost(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	changed := 0
	for trial := range 3000 {
		g := randomConvolutions(rng)
		if err := g.Number(); err != nil {
			t.Fatal(err)
		}
		before, place := g.Print(), g.layable()
		was := &Graph{Calls: make([]Call, len(g.Calls)), Live: g.Live}
		for i, c := range g.Calls {
			c.Ins, c.Outs = slices.Clone(c.Ins), slices.Clone(c.Outs)
			was.Calls[i] = c
		}
		var may []int
		for s := range place { //tenon:unordered they are sorted
			may = append(may, s)
		}
		slices.Sort(may)
		least := -1
		for mask := range 1 << len(may) {
			last := map[int]bool{}
			for k, s := range may {
				last[s] = mask>>k&1 != 0
			}
			if cost, ok := layoutCost(was, place, last); ok && (least < 0 || cost < least) {
				least = cost
			}
		}
		last := map[int]bool{}
		for _, s := range g.LayOut() {
			last[s] = true
		}
		if cost, ok := layoutCost(was, place, last); !ok || cost != least {
			t.Fatalf("trial %d: cost %d, allowed %v; the least is %d\n%s\n%s", trial, cost, ok, least, before, g.Print())
		}
		if len(last) > 0 {
			changed++
		}
		for i := range g.Calls {
			c := &g.Calls[i]
			for j := range len(c.Ins) + len(c.Outs) {
				if v := c.at(j); last[v.Storage] != !slices.Equal(v.Stride, rowMajor(v.Shape)) {
					t.Fatalf("trial %d: an operand lies in another way than its storage\n%s", trial, g.Print())
				}
			}
		}
	}
	if changed < 300 {
		t.Errorf("values were laid out anew in only %d graphs", changed)
	}
}
