package kernels

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// againOps returns the work of TestReductionsGoAgain on x of type t. before: the squares in float32, twice, and a third time if they are
// made for others; row: rsqrt(mean + s) · scale, and that root plus the greatest; each: (x · row, rounded) · w + y, and whether that
// exceeds s.
func againOps(t dtype.DType, made bool) (before, row, each *PointOp) {
	f := dtype.Float32
	before = Fuse([]dtype.DType{t}, []FusedStep{
		{Op: Mul, Compute: f, Ins: []FusedIn{{Value: 0, Via: f}, {Value: 0, Via: f}}, Outs: []FusedOut{{DType: f}}}},
		map[bool][]int{false: {1, 1}, true: {1, 1, 1}}[made])
	row = Fuse([]dtype.DType{f, f, f}, []FusedStep{
		{Op: Add, Compute: f, Ins: []FusedIn{{Value: 0}, {Value: ScalarIn}}, Outs: []FusedOut{{DType: f}}},
		{Op: Rsqrt, Compute: f, Ins: []FusedIn{{Value: 3}}, Outs: []FusedOut{{DType: f}}},
		{Op: Mul, Compute: f, Ins: []FusedIn{{Value: 4}, {Value: 2}}, Outs: []FusedOut{{DType: f}}},
		{Op: Add, Compute: f, Ins: []FusedIn{{Value: 4}, {Value: 1}}, Outs: []FusedOut{{DType: f}}},
	}, []int{5, 6})
	each = Fuse([]dtype.DType{f, t, t, f}, []FusedStep{
		{Op: Mul, Compute: f, Ins: []FusedIn{{Value: 1, Via: f}, {Value: 0}}, Outs: []FusedOut{{DType: t}}},
		{Op: Mul, Compute: t, Ins: []FusedIn{{Value: 4}, {Value: 2}}, Outs: []FusedOut{{DType: t}}},
		{Op: Add, Compute: f, Ins: []FusedIn{{Value: 5, Via: f}, {Value: 3}}, Outs: []FusedOut{{DType: f}}},
		{Op: Gt, Compute: f, Ins: []FusedIn{{Value: 6}, {Value: ScalarIn}}, Outs: []FusedOut{{DType: dtype.Bool}}},
	}, []int{6, 7})
	return before, row, each
}

// TestReductionsGoAgain: a kernel that goes through the elements again once it has the results of its reductions gives the bits of separate
// kernels.
func TestReductionsGoAgain(t *testing.T) {
	f := dtype.Float32
	for _, c := range []struct {
		t       dtype.DType
		rows, n int
		off     int  // elements by which the second input is off alignment
		mean    bool // the mean is stored too
		each    bool // there is work for each element
		made    bool // what is reduced is stored too
	}{
		{dtype.BFloat16, 600, 1024, 0, false, true, false},
		{dtype.BFloat16, 601, 1032, 0, true, true, false},
		{dtype.BFloat16, 603, 384, 0, true, true, false}, // several rows for each block, whose threads have different numbers of vectors
		{f, 602, 256, 0, true, true, false},              // or the same
		{f, 600, 768, 0, true, false, true},
		{f, 600, 1000, 0, false, false, true},
		{f, 600, 4096, 0, false, false, true},
		{dtype.BFloat16, 77, 1030, 0, true, true, false},
		{dtype.BFloat16, 300, 4096, 1, false, true, false},
		{dtype.Float16, 33, 20001, 0, true, true, false},
		{dtype.BFloat16, 33, 32768, 0, false, true, false},
		{f, 130, 2048, 0, false, true, false},
		{f, 9, 1001, 0, true, true, false},
		{dtype.BFloat16, 1, 1029, 0, true, true, false}, // with a rest beyond the last vector
		{f, 1000, 132, 3, true, false, false},
		{f, 1000, 132, 0, false, false, true},
		{f, 600, 70, 0, false, true, false}, // one element per access
	} {
		for _, multiprocessors := range []int{8, fewMultiprocessors} {
			t.Run(fmt.Sprint(c, multiprocessors), func(t *testing.T) {
				h, rng := newHost(t), rand.New(rand.NewPCG(3, 4))
				h.limits.Multiprocessors, h.limits.SharedPerBlock = multiprocessors, 227<<10
				before, row, each := againOps(c.t, c.made)
				x, w, y, scale := h.normal(rng, c.t, c.rows, c.n), h.normal(rng, c.t, c.n), h.normal(rng, f, c.off+c.rows*c.n),
					h.normal(rng, f, c.rows)
				y.Ptr += uint64(4 * c.off)
				y.Shape, y.Stride = []int{c.rows, c.n}, []int{c.n, 1}
				w.Shape, w.Stride = x.Shape, []int{0, 1}
				wide := func(o Operand) Operand { // an element for each row, in the shape of x
					o.Shape, o.Stride = x.Shape, []int{1, 0}
					return o
				}
				square, mean, most := h.empty(f, c.rows, c.n), h.empty(f, c.rows, 1), h.empty(f, c.rows, 1)
				factor, sum, out, positive := h.empty(f, c.rows, 1), h.empty(f, c.rows, 1), h.empty(f, c.rows, c.n),
					h.empty(dtype.Bool, c.rows, c.n)
				dims, eps, bound := []bool{false, true}, FloatScalar(1e-3), FloatScalar(0.1)
				wideX := Operand{Ptr: x.Ptr, DType: c.t, Via: f, Shape: x.Shape, Stride: x.Stride}
				check(t, Pointwise(h, Mul, f, nil, []Operand{square}, []Operand{wideX, wideX}))
				check(t, Reduce(h, Mean, f, nil, []Operand{mean}, []Operand{square}, dims))
				check(t, Reduce(h, AMax, f, nil, []Operand{most}, []Operand{square}, dims))
				scale.Shape, scale.Stride = []int{c.rows, 1}, []int{1, 1}
				check(t, Pointwise(h, row, f, []Scalar{eps}, []Operand{factor, sum}, []Operand{mean, most, scale}))
				check(t, Pointwise(h, each, f, []Scalar{bound}, []Operand{out, positive}, []Operand{wide(factor), x, w, y}))

				calls := []*ReduceCall{newReduceCall(Mean, f, nil, []Operand{mean}, []Operand{square}, dims),
					newReduceCall(AMax, f, nil, []Operand{most}, []Operand{square}, dims)}
				for _, call := range calls {
					if !call.Again(&h.limits) {
						t.Fatal("the reduction cannot go again")
					}
				}
				round := ReduceRound{Before: PointWork{Op: before, From: []int{0}}, Calls: calls, Results: []uint{0, 0},
					Row: PointWork{Op: row, From: []int{1}}, Given: 1, Outs: []Operand{h.empty(f, c.rows, 1)}}
				ins, scalars := []Operand{x, wide(scale)}, []Scalar{eps}
				if c.made {
					ins = append(ins, h.empty(f, c.rows, c.n))
				}
				want := []Operand{sum}
				if !c.each {
					round.Given, round.Outs = 0, []Operand{h.empty(f, c.rows, 1), h.empty(f, c.rows, 1)}
					want = []Operand{factor, sum}
				}
				outs, after := round.Outs, PointWork{}
				if c.mean {
					round.Results[0] = 1
					outs, want = append([]Operand{h.empty(f, c.rows, 1)}, outs...), append([]Operand{mean}, want...)
				}
				if c.each {
					after = PointWork{Op: each, From: []int{0, 2, 3}}
					ins, scalars = append(ins, w, y, h.empty(f, c.rows, c.n), h.empty(dtype.Bool, c.rows, c.n)), append(scalars, bound)
					want = append(want, out, positive)
				}
				r := FuseReduce([]ReduceRound{round}, after, ins, &h.limits)
				large := multiprocessors >= fewMultiprocessors
				longest := rowHeld * reduceRowThreads
				if !large && c.rows >= 16*multiprocessors {
					longest = rowHeld * 32
				}
				fits := c.n <= longest && c.rows > 1 // otherwise too long, or with a rest
				if !runAsOne(t, h, r, large || fits || !c.each || c.n >= shortRow, scalars, outs, ins) {
					return
				}
				shared, registers := false, false
				for s := range h.kernels {
					if s.Family == FamilyReduce && reduceOpOf(&s).fused != nil {
						shared, registers = shared || s.Reduce.Held != 0, registers || s.Reduce.Chunks > 0
					}
				}
				if registers != fits || shared != (large && c.each && !fits) {
					t.Errorf("rows are held in registers: %v, in shared memory: %v", registers, shared)
				}
				got := slices.Clone(outs)
				if c.made {
					got, want = append(got, ins[2]), append(want, square)
				}
				if c.each {
					got = append(got, ins[len(ins)-2:]...)
				}
				for o := range want {
					if g, w := h.read(got[o]), h.read(want[o]); !slices.EqualFunc(g, w, same) {
						t.Errorf("output %d: got %v, want %v", o, g[:3], w[:3])
					}
				}
				if r.Apart(x.Shape) {
					t.Error("what is written may lie in place of what is read twice")
				}
			})
		}
	}
}

// runAsOne runs r, which there must be if want says so, and checks that it is one kernel. It returns want.
func runAsOne(t *testing.T, h *host, r *FusedReduce, want bool, scalars []Scalar, outs, ins []Operand) bool {
	t.Helper()
	if (r != nil) != want {
		t.Fatalf("one kernel: %v", r != nil)
	}
	if want {
		h.launches = 0
		if check(t, r.Run(h, scalars, outs, ins)); h.launches != 1 {
			t.Errorf("%d launches", h.launches)
		}
	}
	return want
}

// TestReductionsInRounds: a kernel with two rounds of reductions, the second of what is made with the results of the first, gives the bits
// of separate kernels.
func TestReductionsInRounds(t *testing.T) {
	f := dtype.Float32
	value := func(i int) FusedIn { return FusedIn{Value: i, Via: f} }
	step := func(op *PointOp, to dtype.DType, ins ...FusedIn) FusedStep {
		return FusedStep{Op: op, Compute: f, Ins: ins, Outs: []FusedOut{{DType: to}}}
	}
	for _, c := range []struct {
		t       dtype.DType
		rows, n int
		each    bool // there is work for each element
		keep    bool // the second round keeps something for it
	}{
		{dtype.BFloat16, 600, 1024, true, false}, {dtype.BFloat16, 77, 1030, true, true}, {dtype.Float16, 33, 20001, true, false},
		{f, 130, 2048, true, false}, {f, 130, 2048, true, true}, {f, 1, 1029, true, false}, {f, 1, 1029, true, true},
		{dtype.BFloat16, 1, 1029, true, true}, {dtype.BFloat16, 1, 1029, false, false}, {f, 600, 70, true, false}, {f, 600, 70, true, true},
		{f, 1000, 132, false, false}, {dtype.BFloat16, 33, 20000, false, false},
	} {
		for _, multiprocessors := range []int{8, fewMultiprocessors} {
			t.Run(fmt.Sprint(c, multiprocessors), func(t *testing.T) {
				h, rng := newHost(t), rand.New(rand.NewPCG(5, 6))
				h.limits.Multiprocessors, h.limits.SharedPerBlock = multiprocessors, 227<<10
				// x and its mean, rounded; then x - mean, and the greatest of its size and the sum of its products with y; and then those
				// three with one another, and a number for each row.
				first := Fuse([]dtype.DType{c.t}, nil, []int{0})
				center := Fuse([]dtype.DType{f, f}, []FusedStep{step(Mul, c.t, value(0), value(1)), step(Add, f, value(0), value(1))},
					[]int{2, 3})
				second := Fuse([]dtype.DType{c.t, c.t, f}, []FusedStep{step(Sub, f, value(1), value(0)), step(Abs, f, value(3)),
					step(Mul, f, value(3), value(2))}, []int{4, 5})
				row := Fuse([]dtype.DType{c.t, f, f, f}, []FusedStep{step(Add, f, value(1), FusedIn{Value: ScalarIn}),
					step(Div, f, value(2), value(4)), step(Sub, f, value(5), value(3))}, []int{0, 5, 6})
				last := Fuse([]dtype.DType{c.t, f, c.t, f}, []FusedStep{step(Sub, f, value(2), value(0)),
					step(Mul, c.t, value(4), value(1)), step(Add, f, value(5), value(3))}, []int{6})

				full, one, dims := []int{c.rows, c.n}, []int{c.rows, 1}, []bool{false, true}
				x, y, scale := h.normal(rng, c.t, full...), h.normal(rng, f, full...), h.normal(rng, f, one...)
				wide := func(o Operand) Operand {
					o.Shape, o.Stride = full, []int{1, 0}
					return o
				}
				via := func(o Operand) Operand {
					o.Via = f
					return o
				}
				mean, centers, moved := h.empty(f, one...), h.empty(c.t, one...), h.empty(f, one...)
				size, product, most, sum := h.empty(f, full...), h.empty(f, full...), h.empty(f, one...), h.empty(f, one...)
				again, factor, number, out := h.empty(c.t, one...), h.empty(f, one...), h.empty(f, one...), h.empty(f, full...)
				copied, eps := h.empty(f, full...), []Scalar{FloatScalar(1e-3)}
				check(t, Pointwise(h, Copy, f, nil, []Operand{copied}, []Operand{via(x)}))
				check(t, Reduce(h, Mean, f, nil, []Operand{mean}, []Operand{copied}, dims)) // in the order of the others
				check(t, Pointwise(h, center, f, nil, []Operand{centers, moved}, []Operand{mean, scale}))
				check(t, Pointwise(h, second, f, nil, []Operand{size, product}, []Operand{wide(centers), x, y}))
				check(t, Reduce(h, AMax, f, nil, []Operand{most}, []Operand{size}, dims))
				check(t, Reduce(h, Sum, f, nil, []Operand{sum}, []Operand{product}, dims))
				check(t, Pointwise(h, row, f, eps, []Operand{again, factor, number}, []Operand{centers, most, sum, scale}))
				check(t, Pointwise(h, last, f, nil, []Operand{out}, []Operand{wide(again), wide(factor), x, y}))

				call := func(op *ReduceOp, out, in Operand) *ReduceCall {
					return newReduceCall(op, f, nil, []Operand{out}, []Operand{in}, dims)
				}
				rounds := []ReduceRound{
					{Before: PointWork{Op: first, From: []int{0}}, Calls: []*ReduceCall{call(Mean, mean, copied)}, Results: []uint{1},
						Row: PointWork{Op: center, From: []int{1}}, Given: 1, Outs: []Operand{moved}},
					{Before: PointWork{Op: second, From: []int{0, 2}},
						Calls: []*ReduceCall{call(AMax, most, size), call(Sum, sum, product)}, Results: []uint{0, 1},
						Row: PointWork{Op: row, From: []int{1}}, Given: 2, Outs: []Operand{number}},
				}
				want := []Operand{mean, moved, sum, number}
				var outs []Operand
				for range want {
					outs = append(outs, h.empty(f, one...))
				}
				ins, each := []Operand{x, wide(scale), y}, PointWork{}
				if c.each {
					ins, want, each = append(ins, h.empty(f, full...)), append(want, out), PointWork{Op: last, From: []int{0, 2}}
				} else {
					rounds[1].Row.Op, rounds[1].Given = Fuse(row.InTypes, []FusedStep{step(Add, f, value(1), FusedIn{Value: ScalarIn}),
						step(Div, f, value(2), value(4)), step(Sub, f, value(5), value(3))}, []int{6}), 0
				}
				if c.keep {
					rounds[1].Before.Op = Fuse(second.InTypes, []FusedStep{step(Sub, f, value(1), value(0)), step(Abs, f, value(3)),
						step(Mul, f, value(3), value(2))}, []int{4, 5, 3})
					rounds[1].Keeps = []dtype.DType{f}
					each = PointWork{Op: Fuse([]dtype.DType{c.t, f, f, f}, []FusedStep{step(Mul, c.t, value(2), value(1)),
						step(Add, f, value(4), value(3))}, []int{5}), Kept: []int{0}, From: []int{2}}
				}
				r := FuseReduce(rounds, each, ins, &h.limits)
				long := c.n >= shortRow || c.rows*c.n <= smallRows
				if !runAsOne(t, h, r, multiprocessors >= fewMultiprocessors || !c.keep && long, eps, outs, ins) {
					return
				}
				got := outs
				if c.each {
					got = append(got, ins[3])
				}
				for o := range want {
					if g, w := h.read(got[o]), h.read(want[o]); !slices.EqualFunc(g, w, same) {
						t.Errorf("output %d: got %v, want %v", o, g[:min(3, len(g))], w[:min(3, len(w))])
					}
				}
			})
		}
	}
}

// TestRoundsHaveRoomForTheirArguments: three rounds with 32 scalars each, and as many after them, the most operands and many dimensions of
// float64 take no more than a kernel's 4096 bytes of parameters.
func TestRoundsHaveRoomForTheirArguments(t *testing.T) {
	const rounds, values, reads = 3, 32, maxOperands - 1
	f, h, shape := dtype.Float64, newPlanner(), []int{2, 3, 4, 5, 264}
	h.index32 = 1
	x := Operand{Ptr: 1 << 20, DType: f, Shape: shape, Stride: []int{65536, 16384, 2048, 300, 1}} // no two dimensions merge
	number := func(i int) FusedIn { return FusedIn{Value: i} }
	// work adds up all scalars, as many inputs as given, and ins of the kernel.
	work := func(given, ins int) PointWork {
		var types []dtype.DType
		for range given + ins {
			types = append(types, f)
		}
		var steps []FusedStep
		sum := given
		add := func(with FusedIn) {
			steps = append(steps, FusedStep{Op: Add, Compute: f, Ins: []FusedIn{number(sum), with}, Outs: []FusedOut{{DType: f}}})
			sum = given + ins + len(steps) - 1
		}
		for range values {
			add(FusedIn{Value: ScalarIn})
		}
		for i := range given {
			add(number(i))
		}
		for i := 1; i < ins; i++ {
			add(number(given + i))
		}
		w := PointWork{Op: Fuse(types, steps, []int{sum})}
		if w.Op == nil {
			t.Fatal("that is too much work")
		}
		for i := range ins {
			w.From = append(w.From, i)
		}
		return w
	}
	var all []ReduceRound
	for n := range rounds {
		call := newReduceCall(Sum, f, nil, []Operand{at(4096, f, 2, 3, 4, 5, 1)}, []Operand{x}, []bool{false, false, false, false, true})
		var types []dtype.DType
		var gives []int
		for i := range n + 1 {
			types, gives = append(types, f), append(gives, i)
		}
		all = append(all, ReduceRound{Before: work(n, reads-n), Calls: []*ReduceCall{call}, Results: []uint{0},
			Row: PointWork{Op: Fuse(types, nil, gives)}, Given: n + 1})
	}
	var ins []Operand
	for range maxOperands {
		ins = append(ins, x)
	}
	r := FuseReduce(all, work(rounds, reads-rounds), ins, &h.limits)
	if r == nil {
		t.Fatal("that is not one kernel")
	}
	var scalars []Scalar
	for range (rounds + 1) * values {
		scalars = append(scalars, FloatScalar(1))
	}
	check(t, r.Run(h, scalars, nil, ins))
	if n := len(h.l.Args); n > 4096 || n < 3500 {
		t.Errorf("%d bytes of parameters", n)
	}
}
