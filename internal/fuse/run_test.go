package fuse

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// memory is the elements of storages, by number. Absent storages have not been written or allocated.
type memory map[int][]uint64

const lost = 0xbad

func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9e3779b97f4a7c15
	return h ^ h>>31
}

// at returns the position of element e (row-major) of shape in a value that is broadcast to shape.
func (p *Place) at(e int, shape []int) int {
	at, lead := p.Offset, len(shape)-len(p.Shape)
	for d := len(shape) - 1; d >= 0; d-- {
		if i := e % shape[d]; d >= lead && p.Shape[d-lead] != 1 {
			at += i * p.Stride[d-lead]
		}
		e /= shape[d]
	}
	return at
}

func numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// load returns element i of storage s, or lost if the storage was never written.
func (m memory) load(s, i int) uint64 {
	if m[s] == nil {
		return lost
	}
	return m[s][i]
}

func (m memory) store(v *Value, into bool, i int, x uint64) {
	if m[v.Storage] == nil {
		if into {
			panic(fmt.Sprintf("s%d is changed and was never made", v.Storage))
		}
		m[v.Storage] = slices.Repeat([]uint64{lost}, size)
	}
	m[v.Storage][i] = x
}

// size is the number of elements of every storage.
const size = 32

// result is element e of output o of the call, computed from elements that load reads.
func (c *Call) result(o, e int, load func(j, e int) uint64) uint64 {
	last := len(c.Ins) - 1
	scaled := func(j, e int) uint64 { return mix(mix(77, load(j, e)), load(last, 0)) }
	switch {
	case c.Cat:
		return load(c.piece(e))
	case c.Widens:
		return load(0, e)
	case c.Scales:
		return scaled(o, e)
	case c.Factored:
		plain, read := *c, load
		plain.Factored, plain.Ins = false, c.Ins[:last]
		return plain.result(o, e, func(j, e int) uint64 {
			if c.Scaled.has(j) {
				return scaled(j, e)
			}
			return read(j, e)
		})
	}
	h := mix(uint64(len(c.Op)), uint64(c.Op[0])<<32|uint64(c.Attrs))
	h = mix(h, uint64(o))
	for j := range c.Ins {
		if c.Point {
			h = mix(h, load(j, e))
			continue
		}
		for k := range numel(c.Ins[j].Shape) {
			h = mix(h, load(j, k))
		}
		h = mix(h, uint64(e))
	}
	return h
}

// piece returns which input of c, which puts them side by side, has element e of the output, and which element of it that is.
func (c *Call) piece(e int) (j, of int) {
	at, stride := 0, 1
	for d := len(c.Outs[0].Shape) - 1; d >= 0; d-- {
		i, n := e%c.Outs[0].Shape[d], c.Ins[0].Shape[d]
		if d == c.Dim {
			j, i = i/n, i%n
		}
		at, stride = at+i*stride, stride*n
		e /= c.Outs[0].Shape[d]
	}
	return j, at
}

func (m memory) run(c *Call) {
	type write struct {
		v    *Value
		into bool
		i    int
		x    uint64
	}
	var writes []write
	for o := range c.Outs {
		for e := range numel(c.Outs[o].Shape) {
			x := c.result(o, e, func(j, e int) uint64 {
				shape := c.Ins[j].Shape
				if c.Point {
					shape = c.Outs[0].Shape
				}
				return m.load(c.Ins[j].Storage, c.Ins[j].at(e, shape))
			})
			writes = append(writes, write{&c.Outs[o], c.into(o), c.Outs[o].at(e, c.Outs[o].Shape), x})
		}
	}
	for _, w := range writes {
		m.store(w.v, w.into, w.i, w.x)
	}
}

// runGroup does what a kernel does: it reads, computes and writes one element after the other, in any order.
func (m memory) runGroup(g *Graph, s *Set, rng *rand.Rand) {
	shape := g.Calls[s.At].Outs[0].Shape
	for _, r := range s.Outs { // the group's first write to a storage may be a modification of a result that it keeps to itself
		if v := &g.Calls[r.Call].Outs[r.Index]; m[v.Storage] == nil {
			m[v.Storage] = slices.Repeat([]uint64{lost}, size)
		}
	}
	if row, _ := g.Rows(s); row >= 0 {
		m.runRows(g, s, row)
		return
	}
	if g.Reduction(s) != nil {
		m.runReduce(g, s)
		return
	}
	if cat, wide := g.Cat(s); cat >= 0 {
		m.runCat(g, s, cat, wide)
		return
	}
	product, before := g.Product(s), g.Before(s)
	var sums []uint64 // computed before anything is stored
	if product >= 0 {
		made := maps.Clone(m) // with what the group makes for the product alone
		for k, i := range s.Calls {
			if before[k] {
				made.run(&g.Calls[i])
			}
		}
		c := &g.Calls[s.Calls[product]]
		for e := range numel(shape) {
			sums = append(sums, c.result(0, e, func(j, e int) uint64 {
				return made.load(c.Ins[j].Storage, c.Ins[j].at(e, c.Ins[j].Shape))
			}))
		}
	}
	for _, e := range rng.Perm(numel(shape)) {
		ins := make([]uint64, len(s.Ins))
		for k, r := range s.Ins {
			v := &g.Calls[r.Call].Ins[r.Index]
			for q, from := range s.From {
				seen := shape
				if product < 0 {
					seen = g.Calls[s.Calls[q]].Outs[0].Shape
				}
				if q != product && !before[q] && slices.Contains(from, Source{Member: -1, Index: k}) {
					ins[k] = m.load(v.Storage, v.at(e, seen))
				}
			}
		}
		results := map[[2]int]uint64{}
		for k, i := range s.Calls {
			c := &g.Calls[i]
			if before[k] {
				continue
			}
			if k == product {
				results[[2]int{i, 0}] = sums[e]
				continue
			}
			for o := range c.Outs {
				results[[2]int{i, o}] = c.result(o, e, func(j, _ int) uint64 {
					if f := s.From[k][j]; f.Member >= 0 {
						return results[[2]int{s.Calls[f.Member], f.Index}]
					} else {
						return ins[f.Index]
					}
				})
			}
		}
		for _, r := range s.Outs {
			v := &g.Calls[r.Call].Outs[r.Index]
			m.store(v, true, v.at(e, v.Shape), results[[2]int{r.Call, r.Index}])
		}
	}
}

// runRows does what the kernel of a row-wise call does: it runs the members before the call for every element, then the call, then the
// members after it.
func (m memory) runRows(g *Graph, s *Set, row int) {
	shape := g.Calls[s.Calls[0]].Outs[0].Shape
	_, after := g.Rows(s)
	results := map[[3]int]uint64{}
	run := func(k, e int) {
		i := s.Calls[k]
		c := &g.Calls[i]
		for o := range c.Outs {
			results[[3]int{i, o, e}] = c.result(o, e, func(j, e int) uint64 {
				f := s.From[k][j]
				switch {
				case f.Member < 0:
					v, shape := &c.Ins[j], shape
					if !c.Point {
						shape = v.Shape
					}
					return m.load(v.Storage, v.at(e, shape))
				case k == row && j > 0, f.Member == row && f.Index > 0, after[k] && f.Member != row && !after[f.Member]:
					return lost // what no thread has
				}
				return results[[3]int{s.Calls[f.Member], f.Index, e}]
			})
		}
	}
	for _, last := range []bool{false, true} {
		for k := range s.Calls {
			for e := range numel(shape) {
				if k != row && after[k] == last {
					run(k, e)
				}
			}
		}
		for e := range numel(shape) {
			if !last {
				run(row, e)
			}
		}
	}
	for _, r := range s.Outs {
		v := &g.Calls[r.Call].Outs[r.Index]
		for e := range numel(v.Shape) {
			m.store(v, true, v.at(e, v.Shape), results[[3]int{r.Call, r.Index, e}])
		}
	}
}

// runReduce does what the kernel of a reduction does: it computes what the other members make of each element, and stores only what the
// reduction makes of that.
func (m memory) runReduce(g *Graph, s *Set) {
	results, phases := map[[3]int]uint64{}, g.Phases(s)
	for k, i := range s.Calls {
		c := &g.Calls[i]
		for o := range c.Outs {
			for e := range numel(c.Outs[o].Shape) {
				x := c.result(o, e, func(j, e int) uint64 {
					f, shape := s.From[k][j], c.Ins[j].Shape
					if c.Point {
						shape = c.Outs[o].Shape
					}
					if f.Member < 0 {
						return m.load(c.Ins[j].Storage, c.Ins[j].at(e, shape))
					}
					if p := phases; p != nil && p[k].Kind == Element && p[f.Member].Kind != Element {
						e /= shape[len(shape)-1] // it is broadcast along the row
					}
					return results[[3]int{s.Calls[f.Member], f.Index, e}]
				})
				if results[[3]int{i, o, e}] = x; slices.Contains(s.Outs, Ref{i, o}) {
					m.store(&c.Outs[o], true, c.Outs[o].at(e, c.Outs[o].Shape), x)
				}
			}
		}
	}
}

// runCat does what the kernel of a call does that puts its inputs side by side: for every element of an input it runs the narrow
// members, and the wide ones for every input, of which it reads and writes only the parts.
func (m memory) runCat(g *Graph, s *Set, cat int, wide []bool) {
	c := &g.Calls[s.Calls[cat]]
	part := c.Ins[0].Shape
	type write struct {
		v *Value
		i int
		x uint64
	}
	var writes []write
	for e := range numel(part) {
		results := map[[3]int]uint64{} // by member, output and input of the call
		run := func(k, of int) {
			i := s.Calls[k]
			for o := range g.Calls[i].Outs {
				results[[3]int{k, o, of}] = g.Calls[i].result(o, e, func(j, _ int) uint64 {
					switch f := s.From[k][j]; {
					case f.Member < 0 && wide[k]:
						p, _ := c.Part(&g.Calls[i].Ins[j].Place, of)
						return m.load(g.Calls[i].Ins[j].Storage, p.at(e, part))
					case f.Member < 0:
						return m.load(g.Calls[i].Ins[j].Storage, g.Calls[i].Ins[j].at(e, part))
					case f.Part > 0:
						return results[[3]int{f.Member, f.Index, f.Part - 1}]
					case wide[k] != (f.Member == cat || wide[f.Member]):
						return lost // the kernel does not have it
					default:
						return results[[3]int{f.Member, f.Index, of}]
					}
				})
			}
		}
		for k := range s.Calls {
			for of := range c.Ins {
				switch f := s.From[k]; {
				case k != cat:
					run(k, of)
				case f[of].Member < 0:
					results[[3]int{k, 0, of}] = m.load(c.Ins[of].Storage, c.Ins[of].at(e, part))
				case f[of].Part > 0:
					results[[3]int{k, 0, of}] = results[[3]int{f[of].Member, f[of].Index, f[of].Part - 1}]
				default:
					results[[3]int{k, 0, of}] = results[[3]int{f[of].Member, f[of].Index, 0}]
				}
			}
		}
		for of := range c.Ins {
			for _, r := range s.Outs {
				k, p := slices.Index(s.Calls, r.Call), g.Calls[r.Call].Outs[r.Index].Place
				if k == cat || wide[k] {
					p, _ = c.Part(&p, of)
				}
				writes = append(writes, write{&g.Calls[r.Call].Outs[r.Index], p.at(e, part), results[[3]int{k, r.Index, of}]})
			}
		}
	}
	for _, w := range writes {
		m.store(w.v, true, w.i, w.x)
	}
}

func (m memory) runAll(g *Graph, rng *rand.Rand) {
	of := g.groupOf()
	for i := range g.Calls {
		switch s := of[i]; {
		case g.Calls[i].Left:
		case s == nil:
			m.run(&g.Calls[i])
		case i == s.At && s.Join:
			for _, i := range slices.Backward(s.Calls) { // the order must not matter
				m.run(&g.Calls[i])
			}
		case i == s.At:
			m.runGroup(g, s, rng)
		}
	}
}

// held returns the peak number of bytes of the storages that the calls make, without those inside a group.
func held(g *Graph) (peak int) {
	of, live := g.groupOf(), g.live()
	type use struct{ i, storage int }
	var steps [][]use
	size, inside := map[int]int{}, map[int]bool{}
	for i := range g.Calls {
		calls := []int{i}
		if g.Calls[i].Left {
			continue
		}
		if s := of[i]; s != nil {
			if i != s.At {
				continue
			}
			calls = s.Calls
			for _, i := range calls {
				for o := range g.Calls[i].Outs {
					v := g.Calls[i].Outs[o].Storage
					inside[v] = !slices.ContainsFunc(s.Outs, func(r Ref) bool { return g.Calls[r.Call].Outs[r.Index].Storage == v })
				}
			}
		}
		var step []use
		for _, i := range calls {
			c := &g.Calls[i]
			for o := range c.Outs {
				if v := &c.Outs[o]; !c.into(o) {
					size[v.Storage] = 0
				}
			}
			for j := range len(c.Ins) + len(c.Outs) {
				step = append(step, use{i, c.at(j).Storage})
			}
		}
		steps = append(steps, step)
	}
	first, last := map[int]int{}, map[int]int{}
	for n, step := range steps {
		for _, u := range step {
			if _, ok := first[u.storage]; !ok {
				first[u.storage] = n
			}
			last[u.storage] = n
			if live[u.storage] {
				last[u.storage] = len(steps) - 1
			}
		}
	}
	for i := range g.Calls {
		for j := range len(g.Calls[i].Ins) + len(g.Calls[i].Outs) {
			v := g.Calls[i].at(j)
			if b, ok := size[v.Storage]; ok {
				size[v.Storage] = max(b, v.Bytes())
			}
		}
	}
	for n := range steps {
		sum := 0
		for s, b := range size {
			if !inside[s] && first[s] <= n && n <= last[s] {
				sum += b
			}
		}
		peak = max(peak, sum)
	}
	return peak
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestRandomGraphs: after all passes a segment leaves the same contents in live storages as before, and Join does not raise the peak of
// memory.
func TestRandomGraphs(t *testing.T) {
	grouped, elided, gone, byRows, products, convolutions, narrowed, folded, early, late, slack := 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
	reductions, storing, sooner, matrices, again, ofRow, rounds, cats, both, pieces, shaped, repeated := 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
	for seed := range uint64(25000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		g, m := randomGraph(rng, 2+rng.IntN(14))
		if err := g.Number(); err != nil {
			t.Fatal(err)
		}
		before, n := g.Print(), len(g.Calls)
		want := memory{}
		for s, v := range m {
			want[s] = slices.Clone(v)
		}
		want.runAll(g, rng)
		g.Dead()
		g.Common()
		folded += len(g.Fold())
		narrowed += len(g.Narrow())
		l := Limits{Calls: 8, Span: 10, Heavy: 8, Operands: 8, Outs: 4, Values: 8, States: 4, Saves: 1, Joined: 1 << 10,
			Slack: rng.IntN(3) * 128}
		a := g.grouped(l)
		peak := a.usage().peak
		if a.joinLate(); a.usage().peak > peak {
			t.Fatalf("seed %d: late groups raise the peak of memory from %d to %d\n%s", seed, peak, a.usage().peak, before)
		}
		a.joinShapes()
		peak = a.usage().peak
		if a.repeat(); a.usage().peak > peak {
			t.Fatalf("seed %d: calls that are done again raise the peak of memory from %d to %d\n%s", seed, peak, a.usage().peak, before)
		}
		g.Group(l)
		peak = held(g)
		l = Limits{Joined: 1 << 10, Together: 3, Slack: rng.IntN(3) * 64}
		g.Join(l)
		if now := held(g); now > peak+l.Slack {
			t.Fatalf("seed %d: the peak of memory is %d, and was %d\n%s\n%s", seed, now, peak, before, g.Print())
		} else if now > peak {
			slack++
		}
		for i := range g.Calls {
			repeated += b2i(g.Calls[i].Again)
		}
		gone += n - len(g.Calls)
		m.runAll(g, rng)
		for _, s := range g.Live {
			if !slices.Equal(m[s], want[s]) {
				t.Fatalf("seed %d: s%d is %x, want %x\n%s\n%s", seed, s, m[s], want[s], before, g.Print())
			}
		}
		for _, s := range g.Groups {
			if s.Join {
				for _, i := range s.Calls {
					early += min(1, max(0, i-s.At))
					late += min(1, max(0, s.At-i))
				}
				continue
			}
			grouped += len(s.Calls)
			if lane := g.Calls[s.At].Lane; !s.Join && slices.ContainsFunc(s.Calls, func(i int) bool { return g.Calls[i].Lane != lane }) {
				t.Fatalf("seed %d: a group of two lanes\n%s", seed, g.Print())
			}
			if row, _ := g.Rows(&s); row >= 0 {
				byRows++
			}
			shaped += b2i(slices.ContainsFunc(s.Calls, func(i int) bool {
				return len(g.Calls[i].Outs[0].Shape) != len(g.Calls[s.At].Outs[0].Shape) && g.SeenIn(&s) != nil
			}))
			if cat, wide := g.Cat(&s); cat >= 0 {
				cats++
				for _, from := range s.From {
					pieces += b2i(slices.ContainsFunc(from, func(f Source) bool { return f.Part > 0 }))
				}
				both += b2i(slices.Contains(wide, true) && slices.Contains(wide[:cat], false))
			}
			if g.Reduction(&s) != nil {
				reductions++
				storing += min(1, len(slices.DeleteFunc(slices.Clone(s.Outs), func(r Ref) bool { return g.Calls[r.Call].Reduce != 0 })))
				sooner += min(1, s.Calls[len(s.Calls)-1]-s.At)
				phases := g.Phases(&s)
				again += b2i(slices.ContainsFunc(phases, func(p Phase) bool { return p.Kind == Element && p.Round > 0 }))
				ofRow += b2i(slices.ContainsFunc(phases, func(p Phase) bool { return p.Kind == OfRow }))
				rounds += b2i(Rounds(phases) > 1)
			}
			if k := g.Product(&s); k >= 0 {
				products++
				matrices += b2i(slices.Contains(g.Before(&s), true))
				if len(g.Calls[s.Calls[k]].Outs[0].Shape) == 4 {
					convolutions++
				}
			}
			elided += len(s.Calls) - len(s.Outs)
		}
	}
	t.Logf("%d groups put values side by side, %d of them with work before and after that; %d calls read a part; %d change the shape",
		cats, both, pieces, shaped)
	t.Logf("%d calls are done again", repeated)
	t.Logf("%d groups go through elements again, %d do work for rows, %d have several rounds of reductions", again, ofRow, rounds)
	t.Logf("%d calls were grouped, %d of their results not written, %d groups go by rows, %d have reductions, "+
		"%d of them write more, %d run earlier, %d have a product, %d make its matrix, %d have a convolution, %d inputs narrowed, "+
		"%d factors folded, %d calls removed, and %d conversions run earlier, %d later; %d peaks are higher",
		grouped, elided, byRows, reductions, storing, sooner, products, matrices, convolutions, narrowed, folded, gone, early, late, slack)
	if early < 200 || slack < 100 || folded < 500 || late < 300 || grouped < 10000 || elided < 5000 || byRows < 1000 ||
		products < 500 || reductions < 400 || storing < 200 || sooner < 50 || matrices < 200 || again < 150 || ofRow < 200 || rounds < 50 ||
		convolutions < 200 || cats < 500 || both < 100 || pieces < 50 || shaped < 200 || repeated < 500 || narrowed < 500 || gone < 10000 {
		t.Error("the passes did too little")
	}
}

// BenchmarkPasses measures the passes on a segment of 2,000 calls.
func BenchmarkPasses(b *testing.B) {
	l := Limits{Calls: 32, Heavy: 8, Span: 128, Operands: 10, Outs: 4, Values: 32, States: 6, Saves: 1}
	for b.Loop() {
		g, _ := randomGraph(rand.New(rand.NewPCG(1, 7)), 2000)
		if err := g.Number(); err != nil {
			b.Fatal(err)
		}
		g.Dead()
		g.Common()
		g.Group(l)
	}
}
