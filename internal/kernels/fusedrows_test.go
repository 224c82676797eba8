package kernels

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// aroundOf returns an addition of a and b, whose sum is also written, and a product of the result with c, in type dt.
func aroundOf(dt dtype.DType) (before, after *PointOp) {
	two := []FusedIn{{Value: 0}, {Value: 1}}
	scaled := FusedStep{Op: Mul, Compute: dt, Ins: []FusedIn{{Value: 2}, {Value: ScalarIn}}, Outs: []FusedOut{{DType: dt}}}
	before = Fuse([]dtype.DType{dt, dt}, []FusedStep{{Op: Add, Compute: dt, Ins: two, Outs: []FusedOut{{DType: dt}}}, scaled}, []int{3, 2})
	after = Fuse([]dtype.DType{dt, dt}, []FusedStep{{Op: Mul, Compute: dt, Ins: two, Outs: []FusedOut{{DType: dt}}}}, []int{2})
	return before, after
}

// TestFusedRowsHaveTheBitsOfTheirSteps runs (a+b)·s, a row-wise operation and a product with c as one kernel and as four.
func TestFusedRowsHaveTheBitsOfTheirSteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.BFloat16, dtype.Float64} {
		for _, n := range []int{0, 1, 7, 32, 67, 256, 1000, 1001, 2048, 2056, 9001, 17000} {
			for _, rows := range []int{1, 5, 8} {
				for layout := range 5 {
					for kind, base := range []*rowOp{softmaxOp, logSoftmaxOp, layerNormOp, rmsNormOp} {
						if n > 100 && (layout+kind+rows)%4 != 0 {
							continue
						}
						fusedRowsCase(t, rng, dt, rows, n, layout, base)
					}
				}
			}
		}
	}
}

func fusedRowsCase(t *testing.T, rng *rand.Rand, dt dtype.DType, rows, n, layout int, base *rowOp) {
	t.Helper()
	h := newHost(t)
	name := fmt.Sprintf("%s %v [%d, %d] layout %d", base.name, dt, rows, n, layout)
	a, b, c := h.normal(rng, dt, rows, n), h.normal(rng, dt, rows, n), h.normal(rng, dt, rows, n)
	w := h.normal(rng, dt, n)
	switch layout {
	case 1:
		b = expanded(at(b.Ptr, dt, n), rows, n)
	case 2:
		b = expanded(at(b.Ptr, dt, rows, 1), rows, n)
	case 3: // not aligned for vectors
		o := h.normal(rng, dt, rows*n+1)
		b = at(o.Ptr+uint64(dt.Size()), dt, rows, n)
	case 4:
		c = permuted(h.normal(rng, dt, n, rows), 1, 0)
	}
	empty := func() Operand { return h.empty(dt, rows, n) }
	sum, x, y, z := empty(), empty(), empty(), empty()
	s, eps := FloatScalar(0.5), FloatScalar(1e-5)
	check(t, Pointwise(h, Add, dt, nil, []Operand{sum}, []Operand{a, b}))
	check(t, Pointwise(h, Mul, dt, []Scalar{s}, []Operand{x}, []Operand{sum, {}}))
	outs, ins := []Operand{y}, []Operand{x}
	var scalars []Scalar
	for range len(base.outs) - 1 {
		outs = append(outs, h.empty(opmath(dt), rows, 1))
	}
	for range len(base.ins) - 1 {
		ins = append(ins, expanded(w, rows, n))
	}
	if base.scalars > 0 {
		scalars = []Scalar{eps}
	}
	check(t, runRows(h, base, dt, scalars, outs, ins, 1))
	check(t, Pointwise(h, Mul, dt, nil, []Operand{z}, []Operand{y, c}))

	before, after := aroundOf(dt)
	op := fuseRows(base, before, after)
	if op == nil {
		t.Fatal(name, "is refused")
	}
	gotSum, got := empty(), empty()
	fouts, fins := []Operand{{}}, []Operand{a}
	for range outs[1:] {
		fouts = append(fouts, h.empty(opmath(dt), rows, 1))
	}
	fouts = append(fouts, gotSum, got)
	fins = append(append(fins, ins[1:]...), b, c)
	h.launches = 0
	ok, err := runFusedRows(h, op, dt, append([]Scalar{s}, scalars...), fouts, fins, 1, append(append([]Operand{}, outs...), ins...))
	check(t, err)
	if !ok {
		t.Fatal(name, "runs row by row")
	}
	if want := min(n, 1); h.launches != want {
		t.Fatalf("%s: %d launches, want %d", name, h.launches, want)
	}
	if n == 0 {
		return
	}
	same := func(what string, got, want Operand) {
		t.Helper()
		g, w := h.read(got), h.read(want)
		for i := range w {
			if g[i] != w[i] && (g[i] == g[i] || w[i] == w[i]) {
				t.Fatalf("%s: element %d of %s is %v, want %v", name, i, what, g[i], w[i])
			}
		}
	}
	same("the sum", gotSum, sum)
	same("the result", got, z)
	for i := range outs[1:] {
		size := rows * outs[1+i].DType.Size()
		if !bytes.Equal(h.view(fouts[1+i].Ptr)[:size], h.view(outs[1+i].Ptr)[:size]) {
			t.Fatalf("%s: output %d differs", name, 1+i)
		}
	}
	call := &FusedRows{newRowCall(base, dt, nil, outs, ins, 1), op}
	if layout == 4 || !call.Apart(a.Shape) { // c lies otherwise, or threads read what others write
		return
	}
	gotSum, got = a, c
	if rows > 1 {
		gotSum, got = c, a
	}
	fouts = append(fouts[:len(fouts)-2], gotSum, got)
	_, err = runFusedRows(h, op, dt, append([]Scalar{s}, scalars...), fouts, fins, 1, append(append([]Operand{}, outs...), ins...))
	check(t, err)
	same("the sum over an input", gotSum, sum)
	same("the result over an input", got, z)
}

// TestFusedRowsApart asks which outputs may be the same array as an input.
func TestFusedRowsApart(t *testing.T) {
	h, f := newHost(t), dtype.Float32
	_, after := aroundOf(f)
	for _, c := range []struct {
		rows, n int
		want    bool
	}{
		{8, 256, true}, {16, 1024, true}, {8, 128, false}, {8, 768, true}, {12, 256, false}, {12, 768, false}, {8, 1000, false},
		{1, 8192, true}, {3, 8200, false}, {3, 16384, true}, {3, 16385, true}, {5, 50304, true},
	} {
		y, x := h.empty(f, c.rows, c.n), h.empty(f, c.rows, c.n)
		r := FuseRows(newRowCall(softmaxOp, f, nil, []Operand{y}, []Operand{x}, 1), nil, after)
		if got := r.Apart(x.Shape); got != c.want {
			t.Errorf("%d rows of %d: %v", c.rows, c.n, got)
		}
		if r.Apart([]int{c.rows, 1}) {
			t.Errorf("%d rows of %d: an output with one element per row may be an input", c.rows, c.n)
		}
	}
}

// TestApartFromOthers: a kernel with sums loads rows while others are written, and what a reduction writes may be an input only if it has
// an element for each that is reduced.
func TestApartFromOthers(t *testing.T) {
	h, f := newHost(t), dtype.Float32
	_, after := aroundOf(f)
	x, each, w := h.empty(f, 4096, 1024), h.empty(f, 4096, 1), h.empty(f, 4096, 1024)
	w.Stride = []int{0, 1}
	for _, op := range []*rowOp{rmsNormBackwardOp, rmsNormBackwardWeight} {
		outs := []Operand{x, w}[:op.results()]
		r := FuseRows(newRowCall(op, f, nil, outs, []Operand{x, x, each, w}, 1), nil, after)
		if got := r.Apart(x.Shape); got != (op.sums == nil) {
			t.Errorf("%s: %v", op.name, got)
		}
	}
	step := FusedStep{Op: Exp, Compute: f, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: f}}}
	before := Fuse([]dtype.DType{f}, []FusedStep{step}, []int{1, 1})
	call := newReduceCall(Sum, f, nil, []Operand{h.empty(f, 1024)}, []Operand{x}, []bool{true, false})
	fused := func(before *PointOp, ins []Operand) *FusedReduce {
		round := ReduceRound{Before: PointWork{Op: before, From: []int{0}}, Calls: []*ReduceCall{call}, Results: []uint{1}}
		return FuseReduce([]ReduceRound{round}, PointWork{}, ins, &h.limits)
	}
	r := fused(before, []Operand{x, x})
	if r == nil || !r.Apart([]int{4096, 1024}) || !r.Apart([]int{4096 * 1024}) || r.Apart([]int{1024}) {
		t.Error("what a reduction writes is not kept apart from others as it should be")
	}
	alone := Fuse([]dtype.DType{f}, []FusedStep{step}, []int{1})
	if r := fused(alone, []Operand{x}); r == nil || r.Apart([]int{4096, 1024}) {
		t.Error("threads without an output read what others write")
	}
}

// roomPlanner notes how much workspace is asked for.
type roomPlanner struct {
	*planner
	asked int
}

func (p *roomPlanner) Workspace(n int) (uint64, error) {
	p.asked = n
	return p.planner.Workspace(n)
}

// TestWorkspaceOfSums: there is room for the sums of all blocks, and for results that nobody needs.
func TestWorkspaceOfSums(t *testing.T) {
	p, f := &roomPlanner{planner: newPlanner()}, dtype.Float32
	const rows, n = 8192, 768
	x, each, w := at(4096, f, rows, n), at(4096, f, rows), at(4096, f, n)
	check(t, LayerNormBackward(p, f, x, w, w, x, x, each, each, w))
	_, parts, _ := rowSumParts(p.Limits(), rows, n)
	if want := 2*4*parts*n + 8*n; parts < 132 || p.asked < want {
		t.Errorf("%d bytes for %d parts, want %d", p.asked, parts, want)
	}
}

// TestFuseRowsRefuses gives fuseRows and runFusedRows operations that cannot be one kernel.
func TestFuseRowsRefuses(t *testing.T) {
	h, f := newHost(t), dtype.Float32
	before, after := aroundOf(f)
	op := fuseRows(softmaxOp, before, after)
	if op != fuseRows(softmaxOp, before, after) {
		t.Error("the same parts give another operation")
	}
	types := []dtype.DType{f, f, f, f, f}
	many := Fuse(types, []FusedStep{{Op: Add, Compute: f, Ins: []FusedIn{{Value: 0}, {Value: 1}}, Outs: []FusedOut{{DType: f}}}}, []int{5})
	if fuseRows(layerNormOp, many, after) != nil {
		t.Error("there are more operands than a kernel has")
	}
	fill := Fuse(nil, []FusedStep{{Op: Copy, Compute: f, Ins: []FusedIn{{Value: ScalarIn}}, Outs: []FusedOut{{DType: f}}}}, []int{0})
	if fuseRows(softmaxOp, fill, nil) != nil {
		t.Error("what runs before reads nothing")
	}
	column := func() Operand { return permuted(h.empty(f, 6, 40), 1, 0) }
	x, y := column(), column()
	outs, ins := []Operand{{}, column(), column()}, []Operand{column(), column(), column()}
	h.launches = 0
	ok, err := runFusedRows(h, op, f, []Scalar{FloatScalar(1)}, outs, ins, 1, []Operand{y, x})
	check(t, err)
	if ok || h.launches != 0 {
		t.Error("rows whose elements lie apart are fused")
	}
	if _, err := runFusedRows(h, op, f, nil, outs, ins, 1, []Operand{y, x}); err == nil {
		t.Error("a scalar is missing")
	}
}

// TestFusedRowsOneSide runs before or after alone, and also writes the intermediate results.
func TestFusedRowsOneSide(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		h := newHost(t)
		a, c := h.normal(rng, dt, 3, 300), h.normal(rng, dt, 3, 300)
		empty := func() Operand { return h.empty(dt, 3, 300) }
		exp, x, y, z := empty(), empty(), empty(), empty()
		check(t, Pointwise(h, Tanh, dt, nil, []Operand{x}, []Operand{a}))
		check(t, runRows(h, softmaxOp, dt, nil, []Operand{exp}, []Operand{x}, 1))
		_, after := aroundOf(dt)
		before := Fuse([]dtype.DType{dt},
			[]FusedStep{{Op: Tanh, Compute: dt, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: dt}}}}, []int{1})
		alone := []Operand{exp, x}
		ok, err := runFusedRows(h, fuseRows(softmaxOp, before, nil), dt, nil, []Operand{y}, []Operand{a}, 1, alone)
		check(t, err)
		if !ok || !bytes.Equal(h.view(y.Ptr)[:900*dt.Size()], h.view(exp.Ptr)[:900*dt.Size()]) {
			t.Fatalf("%v: before alone differs", dt)
		}
		check(t, Pointwise(h, Mul, dt, nil, []Operand{z}, []Operand{exp, c}))
		got, kept := empty(), empty()
		ok, err = runFusedRows(h, fuseRows(softmaxOp, nil, after), dt, nil, []Operand{kept, got}, []Operand{x, c}, 1, alone)
		check(t, err)
		if !ok || !bytes.Equal(h.view(got.Ptr)[:900*dt.Size()], h.view(z.Ptr)[:900*dt.Size()]) {
			t.Fatalf("%v: after alone differs", dt)
		}
		if !bytes.Equal(h.view(kept.Ptr)[:900*dt.Size()], h.view(exp.Ptr)[:900*dt.Size()]) {
			t.Fatalf("%v: what lies in between differs", dt)
		}
	}
}
