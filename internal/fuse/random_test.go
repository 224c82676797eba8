package fuse

import (
	"math/rand/v2"
	"slices"

	"tenon.dev/dtype"
)

// places are views of at most 16 elements of a storage.
var places = []Place{
	{dtype.Float32, []int{4, 4}, []int{4, 1}, 0}, {dtype.Float32, []int{4, 4}, []int{4, 1}, 0},
	{dtype.Float32, []int{4, 4}, []int{4, 1}, 0},
	{dtype.Float32, []int{4, 4}, []int{1, 4}, 0}, {dtype.Float32, []int{4, 4}, []int{4, 1}, 16}, {dtype.Float32, []int{4}, []int{1}, 4},
	{dtype.Float32, []int{1, 4}, []int{4, 1}, 8}, {dtype.Float32, []int{4, 1}, []int{4, 1}, 2},
	{dtype.Float32, []int{4, 4}, []int{5, 1}, 3}, {dtype.Float32, []int{2, 2, 4}, []int{8, 4, 1}, 0},
}

// spans are sets of inputs.
var spans = []Span{{}, {0, 1}, {1, 2}, {0, 2}}

// randomScaling returns a call that scales one or two results, or one that may scale what it reads.
func randomScaling(rng *rand.Rand, scaled *[]Value, recent []Value, next *int) Call {
	some := func() Value {
		if len(recent) > 0 && rng.IntN(2) == 0 {
			return Value{Storage: recent[len(recent)-1-rng.IntN(min(3, len(recent)))].Storage, Place: places[0]}
		}
		return Value{Storage: 1 + rng.IntN(*next-1), Place: places[0]}
	}
	c := Call{Op: "T", Attrs: 1}
	if len(*scaled) == 0 || rng.IntN(4) == 0 {
		c.Op, c.Scales, *scaled = "S", true, nil
		factor := some()
		for range 1 + rng.IntN(2) {
			v := some()
			if v.Storage == factor.Storage || slices.ContainsFunc(*scaled, func(w Value) bool { return w.Storage == v.Storage }) {
				continue
			}
			*scaled = append(*scaled, v)
		}
		if len(*scaled) > 0 {
			c.Outs, c.Into = *scaled, 3
			c.Ins = append(slices.Clone(c.Outs), factor)
			return c
		}
		c.Op, c.Scales = "T", false
	}
	c.Ins = []Value{some()}
	for k := 1 + rng.IntN(2); k > 0 && len(*scaled) > 0; k-- {
		c.Ins, *scaled = append(c.Ins, (*scaled)[0]), (*scaled)[1:]
	}
	c.Scaled = Span{1, len(c.Ins)}
	if rng.IntN(4) == 0 {
		c.Ins = append(c.Ins, some())
	}
	c.Narrow = Span{rng.IntN(2), len(c.Ins)}
	c.Outs = []Value{{Storage: *next, Place: places[0]}}
	if rng.IntN(2) == 0 {
		c.Outs[0], c.Into = c.Ins[0], 1
	} else {
		*next++
	}
	return c
}

// lastChannels is the layout of a convolution's result.
var lastChannels = Place{dtype.Float32, []int{2, 2, 2, 2}, []int{8, 1, 4, 2}, 0}

// randomGraph returns a segment of n calls that read a few storages from outside, and the contents of those storages.
func randomGraph(rng *rand.Rand, n int) (*Graph, memory) {
	g, m := &Graph{}, memory{}
	const outside = 3
	for s := 1; s <= outside; s++ {
		m[s] = make([]uint64, size)
		for i := range m[s] {
			m[s][i] = mix(uint64(s), uint64(i))
		}
	}
	var rows []Value
	next, recent, many, scaled := outside+1, []Value{}, rng.IntN(4) == 0, []Value{}
	for i := range n {
		if len(rows) > 0 && rng.IntN(4) == 0 {
			c := randomRow(rng, rows, &next)
			g.Calls, rows = append(g.Calls, c), append(rows, c.Outs[0])
			continue
		}
		if rng.IntN(5) == 0 {
			c := randomScaling(rng, &scaled, recent, &next)
			c.At = i
			g.Calls = append(g.Calls, c)
			continue
		}
		c := Call{At: i, Op: []string{"A", "B", "C"}[rng.IntN(3)], Attrs: 1 + rng.IntN(2), Point: rng.IntN(5) > 0,
			Effect: rng.IntN(12) == 0, Lane: max(0, rng.IntN(12)-10)}
		if !c.Point {
			c.Op += "ll"
		}
		byRows := !c.Point && rng.IntN(2) > 0
		for range 1 + rng.IntN(2) {
			if len(recent) > 0 && rng.IntN(3) > 0 {
				c.Ins = append(c.Ins, recent[len(recent)-1-rng.IntN(min(4, len(recent)))])
				continue
			}
			c.Ins = append(c.Ins, Value{Storage: 1 + rng.IntN(next-1), Place: places[rng.IntN(len(places)-1)]})
		}
		if len(rows) > 0 && rng.IntN(2) == 0 {
			c.Ins = append(c.Ins, rows[len(rows)-1-rng.IntN(min(2, len(rows)))])
		}
		for o := range 1 + rng.IntN(8)/7 {
			v := Value{Storage: next, Place: places[0]}
			if rng.IntN(6) == 0 && o == 0 { // in place, but not on an operand that it reads otherwise
				v = Value{Storage: 1 + rng.IntN(next-1), Place: places[rng.IntN(5)]}
				clash := slices.ContainsFunc(c.Ins, func(w Value) bool { return w.Storage == v.Storage && !w.Place.equal(&v.Place) })
				if clash {
					v = Value{Storage: next, Place: places[0]}
				} else {
					c.Into |= 1
				}
			}
			if v.Storage == next {
				next++
			}
			c.Outs = append(c.Outs, v)
			recent = append(recent, v)
		}
		if wide := &c.Outs[0]; c.Point && rng.IntN(4) == 0 && c.Into == 0 && len(c.Outs) == 1 && c.Ins[0].Place.equal(&wide.Place) {
			c.Op, c.Widens, c.Ins = "W", true, c.Ins[:1]
			wide.DType = dtype.Float64
			recent = append(recent, *wide, *wide, *wide)
		} else if rng.IntN(2) == 0 {
			c.Narrow = spans[rng.IntN(len(spans))]
		}
		if many && !c.Widens && rng.IntN(2) == 0 && c.Into == 0 && len(c.Outs) == 1 {
			in := Value{Storage: 1 + rng.IntN(next-2), Place: places[0]}
			if len(recent) > 0 && rng.IntN(3) == 0 {
				in.Storage = recent[len(recent)-1].Storage
			}
			if c.Outs[0].Storage == in.Storage {
				in.Storage = 1
			}
			c = Call{At: i, Op: "C", Attrs: 1, Point: rng.IntN(4) == 0, Converts: true, Ins: []Value{in}, Outs: c.Outs}
			if rng.IntN(2) == 0 { // another type, so that sets of two kinds move past each other
				c.Outs[0].DType = dtype.Int32
			}
			if !c.Point {
				c.Op += "ll"
			}
		}
		c.Row = byRows && !c.Converts && slices.Equal(c.Ins[0].Shape, c.Outs[0].Shape)
		switch {
		case c.Point || c.Row || c.Converts:
		case rng.IntN(2) > 0:
			if c.reduce(rng, recent); c.Rounds > 0 {
				recent, rows = recent[:len(recent)-1], append(rows, c.Outs[0])
			}
		case len(c.Outs) == 1 && c.Into == 0 && rng.IntN(2) == 0:
			c.Product = true
		}
		if c.Product && rng.IntN(2) == 0 { // of a matrix that may be made for it
			p, made := randomMatrix(rng, recent, &next)
			g.Calls, recent = append(g.Calls, p), append(recent, p.Outs[0])
			c.Ins, c.Once = append(c.Ins[:1], made), true
		}
		g.Calls = append(g.Calls, c)
		for c.Rounds > 0 && rng.IntN(2) == 0 {
			var p Call
			p, c = randomRound(rng, &c, &next)
			g.Calls, recent, rows = append(g.Calls, p, c), append(recent, p.Outs[0]), append(rows, c.Outs[0])
		}
		if len(recent) > 0 && rng.IntN(24) == 0 {
			g.Calls = append(g.Calls, randomCat(rng, recent, &next)...)
		}
		if len(recent) > 0 && rng.IntN(16) == 0 {
			all := randomShapes(rng, recent, &next)
			g.Calls, recent = append(g.Calls, all...), append(recent, all[len(all)-1].Outs[0])
		}
		if c.Product && rng.IntN(3) > 0 {
			p := randomReader(rng, &c, &next)
			g.Calls, recent = append(g.Calls, p), append(recent, p.Outs[0])
		}
	}
	g.settle(rng, outside, next)
	return g, m
}

// settle numbers the calls, and lets the storages from outside live, and some of those below next.
func (g *Graph) settle(rng *rand.Rand, outside, next int) {
	for i := range g.Calls {
		g.Calls[i].At = i
	}
	for s := 1; s < next; s++ {
		if s <= outside || rng.IntN(4) == 0 {
			g.Live = append(g.Live, s)
		}
	}
}

// randomReader returns a call that reads the result of c, a product, whose channels it may put last, or as an array of another shape.
func randomReader(rng *rand.Rand, c *Call, next *int) Call {
	place, others := places[len(places)-1], []Place{places[len(places)-1], places[5]}
	if rng.IntN(2) == 0 {
		place = lastChannels
		c.Outs[0].Place = place // that of the call in the graph too
		others = []Place{place, {dtype.Float32, []int{2, 1, 1}, []int{1, 0, 0}, 3}, {dtype.Float32, []int{2}, []int{1}, 0},
			{dtype.Float32, []int{2, 2, 2, 2}, []int{8, 4, 2, 1}, 0}}
	}
	p := Call{At: -1, Op: "E", Attrs: 1, Point: true, Ins: []Value{{Storage: c.Outs[0].Storage, Place: place}},
		Outs: []Value{{Storage: *next, Place: place}}}
	if rng.IntN(3) > 0 {
		p.Ins = append(p.Ins, Value{Storage: 1 + rng.IntN(*next-1), Place: others[rng.IntN(len(others))]})
	}
	*next++
	return p
}

// randomCat returns a call that puts values side by side, after one that may make another of these, and calls that read its result.
func randomCat(rng *rand.Rand, recent []Value, next *int) (all []Call) {
	some := func() Value {
		v := recent[len(recent)-1-rng.IntN(min(3, len(recent)))]
		v.Place = places[0]
		return v
	}
	dim := rng.IntN(2)
	wide := Place{dtype.Float32, []int{8, 4}, []int{4, 1}, 0}
	others := []Place{wide, {dtype.Float32, []int{4}, []int{1}, 3}, {dtype.Float32, []int{8, 1}, []int{3, 1}, 2},
		{dtype.Float32, []int{8, 4}, []int{1, 8}, 0}}
	if dim == 1 {
		wide = Place{dtype.Float32, []int{4, 8}, []int{8, 1}, 0}
		others = []Place{wide, {dtype.Float32, []int{8}, []int{1}, 3}, {dtype.Float32, []int{4, 1}, []int{3, 1}, 2},
			{dtype.Float32, []int{4, 8}, []int{1, 4}, 0}}
	}
	made := func(c Call, p Place) Value {
		v := Value{Storage: *next, Place: p}
		*next++
		c.At, c.Outs = -1, []Value{v}
		all = append(all, c)
		return v
	}
	ins := []Value{some(), some()}
	if rng.IntN(3) == 0 { // parts of a wide value
		v := made(Call{Op: "H", Attrs: 1, Point: true, Ins: []Value{{Storage: 1 + rng.IntN(3), Place: wide}}}, wide)
		c := Call{Dim: dim, Ins: make([]Value, 2), Outs: []Value{v}}
		c.Ins[0].Shape = []int{4, 4}
		for k := range ins {
			if rng.IntN(3) > 0 {
				ins[k] = v
				ins[k].Place, _ = c.Part(&wide, k^rng.IntN(2))
				if rng.IntN(2) == 0 {
					ins[k] = made(Call{Op: "K", Attrs: 1, Point: true, Ins: []Value{ins[k]}}, places[0])
				}
			}
		}
	}
	if rng.IntN(2) == 0 {
		ins[rng.IntN(2)] = made(Call{Op: "F", Attrs: 1, Point: true, Ins: []Value{some(), some()}}, places[0])
	}
	last := []Value{made(Call{Op: "cat", Attrs: 1 + dim, Cat: true, Dim: dim, Ins: ins}, wide)}
	if rng.IntN(2) == 0 {
		from := Value{Storage: 1 + rng.IntN(3), Place: wide}
		last = append(last, made(Call{Op: "B", Attrs: 1, Point: true, Ins: []Value{from}}, wide))
	}
	for range rng.IntN(3) {
		c := Call{Op: "G", Attrs: 1 + rng.IntN(2), Point: true, Ins: []Value{last[max(0, rng.IntN(len(last)+1)-1)]}}
		if rng.IntN(2) == 0 {
			c.Ins = append(c.Ins, Value{Storage: 1 + rng.IntN(3), Place: others[rng.IntN(len(others))]})
		}
		if rng.IntN(3) == 0 {
			c.Ins = append(c.Ins, last[rng.IntN(len(last))])
		}
		last = append(last, made(c, wide))
	}
	return all
}

// randomShapes returns a call that reads a recent value in another shape, and one that reads its result as a matrix again.
func randomShapes(rng *rand.Rand, recent []Value, next *int) []Call {
	cube := places[len(places)-1]
	from := recent[len(recent)-1-rng.IntN(min(3, len(recent)))]
	from.Place = cube
	p := Call{At: -1, Op: "U", Attrs: 1, Point: true, Ins: []Value{from}, Outs: []Value{{Storage: *next, Place: cube}}}
	others := []Place{cube, {dtype.Float32, []int{2, 1, 1}, []int{1, 0, 0}, 3}, {dtype.Float32, []int{4}, []int{1}, 2},
		{dtype.Float32, []int{2, 2, 4}, []int{1, 2, 4}, 0}, {dtype.Float32, []int{2, 1}, []int{4, 1}, 1}}
	if rng.IntN(2) == 0 {
		p.Ins = append(p.Ins, Value{Storage: 1 + rng.IntN(3), Place: others[rng.IntN(len(others))]})
	}
	q := Call{At: -1, Op: "V", Attrs: 1, Point: true, Ins: []Value{{Storage: *next, Place: places[0]}},
		Outs: []Value{{Storage: *next + 1, Place: places[0]}}}
	if rng.IntN(2) == 0 {
		q.Ins = append(q.Ins, Value{Storage: 1 + rng.IntN(3), Place: places[rng.IntN(len(places)-1)]})
	}
	*next += 2
	return []Call{p, q}
}

// randomMatrix returns a call that makes a matrix, and the matrix or its transpose.
func randomMatrix(rng *rand.Rand, recent []Value, next *int) (p Call, made Value) {
	made = Value{Storage: *next, Place: places[0]}
	p = Call{At: -1, Op: "M", Attrs: 1, Point: true, Outs: []Value{made}}
	for range 1 + rng.IntN(2) {
		p.Ins = append(p.Ins, Value{Storage: 1 + rng.IntN(*next-2), Place: places[rng.IntN(len(places)-1)]})
	}
	if len(recent) > 1 && rng.IntN(2) == 0 {
		p.Ins[0] = recent[len(recent)-2]
	}
	if *next++; rng.IntN(2) == 0 {
		made.Shape, made.Stride = []int{made.Shape[1], made.Shape[0]}, []int{made.Stride[1], made.Stride[0]}
	}
	return p, made
}

// reduce makes the call a reduction, usually of a recent value, which it may see in another shape.
func (c *Call) reduce(rng *rand.Rand, recent []Value) {
	c.Reduce, c.States, c.Stores, c.Narrow = 1+rng.IntN(2), 1+rng.IntN(2), rng.IntN(2) == 0, Span{}
	if k := len(recent) - 1 - len(c.Outs); k >= 0 {
		c.Ins[0] = recent[k]
	}
	if cube := &places[len(places)-1]; cube.alike(&c.Ins[0].Place) && rng.IntN(2) == 0 {
		c.Ins[0].Shape, c.Ins[0].Stride = cube.Shape, cube.Stride
	}
	if !c.alike() {
		c.Ins = c.Ins[:1]
	}
	if rng.IntN(2) == 0 && len(c.Outs) == 1 && c.Into == 0 && slices.Equal(c.Ins[0].Shape, []int{4, 4}) {
		c.Rounds, c.Outs[0].Place = 1+rng.IntN(3), rowPlace
	}
}

// randomRound returns a call that reads what c, a reduction, makes for each row, and a reduction of the result.
func randomRound(rng *rand.Rand, c *Call, next *int) (p, r Call) {
	p = Call{At: -1, Op: "P", Attrs: 1, Point: true, Lane: c.Lane, Ins: []Value{c.Ins[0], c.Outs[0]},
		Outs: []Value{{Storage: *next, Place: places[0]}}}
	if rng.IntN(3) == 0 {
		p.Ins[0] = Value{Storage: 1 + rng.IntN(*next-1), Place: places[0]}
	}
	r = *c
	r.At, r.Attrs, r.Rounds = -1, 1+rng.IntN(2), 1+rng.IntN(3)
	r.Ins, r.Outs = []Value{p.Outs[0]}, []Value{{Storage: *next + 1, Place: rowPlace}}
	*next += 2
	return p, r
}

// rowPlace is how what there is for each row lies.
var rowPlace = Place{dtype.Float32, []int{4, 1}, []int{1, 1}, 0}

// randomRow returns a call that computes something for each row.
func randomRow(rng *rand.Rand, rows []Value, next *int) Call {
	c := Call{At: -1, Op: "R", Attrs: 1 + rng.IntN(2), Point: true, Outs: []Value{{Storage: *next, Place: rowPlace}},
		Ins: []Value{rows[len(rows)-1-rng.IntN(min(3, len(rows)))]}}
	switch rng.IntN(4) {
	case 0:
		c.Ins = append(c.Ins, rows[rng.IntN(len(rows))])
	case 1:
		c.Ins = append(c.Ins, Value{Storage: 1 + rng.IntN(*next-1), Place: places[7]})
	}
	*next++
	return c
}
