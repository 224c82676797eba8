package kernels

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// reduceCase is an input and the dimensions to reduce.
type reduceCase struct {
	name string
	in   Operand
	dims []bool
	// groups are the elements of each output, once they have been read.
	groups [][]complex128
}

func reduceCases(h *host, rng *rand.Rand, t dtype.DType) []reduceCase {
	r := func(shape ...int) Operand { return h.random(rng, t, shape...) }
	y, n := true, false
	return []reduceCase{
		{"0-d", r(), []bool{}, nil},
		{"one", r(1), []bool{y}, nil},
		{"few", r(5), []bool{y}, nil},
		{"all", r(100, 333), []bool{y, y}, nil},
		{"all odd", sliced(r(70001), 0, 1, 70000, 1), []bool{y}, nil},
		{"all large", sliced(r(200001), 0, 0, 199999, 1), []bool{y}, nil},
		{"all transposed", permuted(r(33, 64), 1, 0), []bool{y, y}, nil},
		{"all stepped", sliced(r(40001), 0, 0, 40001, 2), []bool{y}, nil},
		{"rows", r(70, 64), []bool{n, y}, nil},
		{"odd rows", r(70, 67), []bool{n, y}, nil},
		{"long rows", r(3, 9000), []bool{n, y}, nil},
		{"short rows", r(3000, 5), []bool{n, y}, nil},
		{"columns", r(100, 64), []bool{y, n}, nil},
		{"odd columns", r(100, 63), []bool{y, n}, nil},
		{"few columns", r(9000, 3), []bool{y, n}, nil},
		{"channels", r(8, 5, 6, 7), []bool{y, n, y, y}, nil},
		{"middle", r(6, 50, 8), []bool{n, y, n}, nil},
		{"outer", r(10, 12, 8), []bool{y, n, y}, nil},
		{"repeated", expanded(r(40, 1), 40, 50), []bool{n, y}, nil},
		{"six", permuted(r(2, 3, 4, 2, 3, 4), 5, 4, 3, 2, 1, 0), []bool{y, n, y, n, y, n}, nil},
		{"ten", permuted(r(2, 3, 2, 2, 2, 3, 2, 2, 2, 2), 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), []bool{y, n, y, n, y, n, y, n, n, n}, nil},
		{"nothing", r(4, 0), []bool{n, y}, nil},
		{"no outputs", r(0, 4), []bool{n, y}, nil},
	}
}

// outShape returns in's shape without the reduced dimensions.
func outShape(in Operand, dims []bool) []int {
	shape := []int{}
	for d, r := range dims {
		if !r {
			shape = append(shape, in.Shape[d])
		}
	}
	return shape
}

// groups returns, for every output, the elements reduced to it in row-major order.
func (h *host) groups(in Operand, dims []bool) [][]complex128 {
	out := [][]complex128{}
	n := 1
	for _, s := range outShape(in, dims) {
		n *= s
	}
	for range n {
		out = append(out, nil)
	}
	vs := h.readComplex(in)
	walkIndex(in.Shape, func(n int, ix []int) {
		at := 0
		for d, i := range ix {
			if !dims[d] {
				at = at*in.Shape[d] + i
			}
		}
		out[at] = append(out[at], vs[n])
	})
	return out
}

func reals(vs []complex128) []float64 {
	out := make([]float64, len(vs))
	for i, v := range vs {
		out[i] = real(v)
	}
	return out
}

func sumOf(vs []float64, f func(v float64) float64) float64 {
	s := 0.0
	for _, v := range vs {
		s += f(v)
	}
	return s
}

func varianceOf(vs []float64, correction float64) (mean, v float64) {
	n := float64(len(vs))
	mean = sumOf(vs, func(v float64) float64 { return v }) / n
	return mean, sumOf(vs, func(v float64) float64 { return (v - mean) * (v - mean) }) / math.Max(0, n-correction)
}

func extremeOf(vs []float64, better func(a, b float64) bool) (float64, float64) {
	at := 0
	for i, v := range vs {
		if vs[at] == vs[at] && (v != v || better(v, vs[at])) {
			at = i
		}
	}
	return vs[at], float64(at)
}

func greaterThan(a, b float64) bool { return a > b }
func lessThan(a, b float64) bool    { return a < b }

// realReferences are the expected results of reductions of real numbers.
var realReferences = map[string]func(vs []float64) []float64{
	"sum": func(vs []float64) []float64 { return []float64{sumOf(vs, func(v float64) float64 { return v })} },
	"mean": func(vs []float64) []float64 {
		return []float64{sumOf(vs, func(v float64) float64 { return v }) / float64(len(vs))}
	},
	"nansum": func(vs []float64) []float64 { return []float64{sumOf(vs, func(v float64) float64 { return v })} },
	"norm0": func(vs []float64) []float64 {
		return []float64{sumOf(vs, func(v float64) float64 {
			if v != 0 {
				return 1
			}
			return 0
		})}
	},
	"norm1": func(vs []float64) []float64 { return []float64{sumOf(vs, math.Abs)} },
	"norm2": func(vs []float64) []float64 {
		return []float64{math.Sqrt(sumOf(vs, func(v float64) float64 { return v * v }))}
	},
	"norminf": func(vs []float64) []float64 {
		m := 0.0
		for _, v := range vs {
			m = math.Max(m, math.Abs(v))
		}
		return []float64{m}
	},
	"normneginf": func(vs []float64) []float64 {
		m := math.Inf(1)
		for _, v := range vs {
			m = math.Min(m, math.Abs(v))
		}
		return []float64{m}
	},
	"var":       func(vs []float64) []float64 { _, v := varianceOf(vs, 1); return []float64{v} },
	"std":       func(vs []float64) []float64 { _, v := varianceOf(vs, 1); return []float64{math.Sqrt(v)} },
	"var_mean":  func(vs []float64) []float64 { m, v := varianceOf(vs, 1); return []float64{v, m} },
	"amax":      func(vs []float64) []float64 { v, _ := extremeOf(vs, greaterThan); return []float64{v} },
	"amin":      func(vs []float64) []float64 { v, _ := extremeOf(vs, lessThan); return []float64{v} },
	"argmax":    func(vs []float64) []float64 { _, i := extremeOf(vs, greaterThan); return []float64{i} },
	"argmin":    func(vs []float64) []float64 { _, i := extremeOf(vs, lessThan); return []float64{i} },
	"max_index": func(vs []float64) []float64 { v, i := extremeOf(vs, greaterThan); return []float64{v, i} },
	"min_index": func(vs []float64) []float64 { v, i := extremeOf(vs, lessThan); return []float64{v, i} },
	"normp":     func(vs []float64) []float64 { return []float64{sumOf(vs, math.Abs)} },
	"logsumexp": func(vs []float64) []float64 { return []float64{math.Log(sumOf(vs, math.Exp))} },
	"log_normalizer": func(vs []float64) []float64 {
		if len(vs) == 0 {
			return []float64{math.NaN()}
		}
		return []float64{math.Log(sumOf(vs, math.Exp))}
	},
	"all": func(vs []float64) []float64 {
		for _, v := range vs {
			if v == 0 {
				return []float64{0}
			}
		}
		return []float64{1}
	},
	"any": func(vs []float64) []float64 {
		for _, v := range vs {
			if v != 0 {
				return []float64{1}
			}
		}
		return []float64{0}
	},
}

// noIdentity reports whether op has no result for zero elements, so that callers report an error.
func noIdentity(op *ReduceOp) bool {
	switch op.Name {
	case "amax", "amin", "argmax", "argmin", "max_index", "min_index":
		return true
	}
	return false
}

func TestReduce(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.Float16, dtype.Int8, dtype.Int64, dtype.Bool} {
		for _, limit := range []int{1<<31 - 1, 50} {
			h := newHost(t)
			h.index32 = limit
			if dt != dtype.Float64 { // so that threads hold rows
				h.limits.Multiprocessors = fewMultiprocessors
			}
			cases := reduceCases(h, rand.New(rand.NewPCG(1, uint64(dt))), dt)
			for _, op := range ReduceOps() {
				ref := realReferences[op.Name]
				if ref == nil || !dt.IsFloat() && op.Scalars > 0 || !dt.IsFloat() &&
					(op.Name == "mean" || strings.HasPrefix(op.Name, "norm") || op == LogSumExp || op == LogNormalizer) || limit == 50 &&
					(dt != dtype.Float32 || op != Sum && op != MaxIndex) {
					continue
				}
				for i := range cases {
					c := &cases[i]
					if c.groups == nil {
						c.groups = h.groups(c.in, c.dims)
					}
					if dt != dtype.Float32 && op != Sum && (i+int(op.id))%4 != 0 {
						continue
					}
					if err := reduceOne(h, op, dt, c, ref); err != nil {
						t.Fatalf("%s %v of %s, limit %d: %v", op.Name, dt, c.name, limit, err)
					}
				}
			}
		}
	}
}

func reduceOne(h *host, op *ReduceOp, dt dtype.DType, c *reduceCase, ref func([]float64) []float64) error {
	compute, outType := dt, dt
	tol := 1e-5
	switch {
	case op.Name == "all" || op.Name == "any":
		outType = dtype.Bool
	case noIdentity(op):
	case !dt.IsFloat():
		compute, outType = dtype.Int64, dtype.Int64
	case dt == dtype.Float16:
		tol = 2e-3
	}
	var outs []Operand
	for i := range op.Outs {
		t := outType
		if op.Name[:3] == "arg" || i == 1 && op.Indexed {
			t = dtype.Int64
		}
		outs = append(outs, h.empty(t, outShape(c.in, c.dims)...))
	}
	var scalars []Scalar
	for range op.Scalars {
		scalars = append(scalars, IntScalar(1))
	}
	if err := Reduce(h, op, compute, scalars, outs, []Operand{c.in}, c.dims); err != nil {
		return err
	}
	got := make([][]float64, op.Outs)
	for i := range outs {
		got[i] = h.read(outs[i])
	}
	for o, vs := range c.groups {
		if len(vs) == 0 && noIdentity(op) {
			continue
		}
		for i, want := range ref(reals(vs)) {
			if want = rounded(outs[i].DType, want); !close(got[i][o], want, tol) {
				return fmt.Errorf("output %d of result %d is %v, want %v", o, i, got[i][o], want)
			}
		}
	}
	return nil
}

func TestReduceComplex(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Complex64, dtype.Complex128} {
		h := newHost(t)
		h.limits.Multiprocessors = fewMultiprocessors
		for _, c := range reduceCases(h, rand.New(rand.NewPCG(2, 2)), dt) {
			sum, count := h.empty(dt, outShape(c.in, c.dims)...), h.empty(dtype.Int64, outShape(c.in, c.dims)...)
			check(t, Reduce(h, Sum, dt, nil, []Operand{sum}, []Operand{c.in}, c.dims))
			check(t, Reduce(h, CountNonzero, dtype.Bool, nil, []Operand{count}, []Operand{c.in}, c.dims))
			sums, counts := h.readComplex(sum), h.read(count)
			for o, vs := range h.groups(c.in, c.dims) {
				var want complex128
				n := 0.0
				for _, v := range vs {
					want += v
					if v != 0 {
						n++
					}
				}
				if sums[o] != want || counts[o] != n {
					t.Fatalf("%v of %s: sum %v, count %v; want %v, %v", dt, c.name, sums[o], counts[o], want, n)
				}
			}
		}
	}
}

func TestReduceNaN(t *testing.T) {
	h := newHost(t)
	nan, inf := math.NaN(), math.Inf(1)
	vs := make([]float64, 3000)
	for i := range vs {
		vs[i] = float64(i % 7)
	}
	vs[1234], vs[2000], vs[10] = nan, nan, inf
	in := h.of(dtype.Float32, vs, len(vs))
	for _, op := range []*ReduceOp{MaxIndex, MinIndex} {
		v, at := h.empty(dtype.Float32), h.empty(dtype.Int64)
		check(t, Reduce(h, op, dtype.Float32, nil, []Operand{v, at}, []Operand{in}, []bool{true}))
		if h.read(v)[0] == h.read(v)[0] || h.read(at)[0] != 1234 {
			t.Errorf("%s: %v at %v, want NaN at 1234", op.Name, h.read(v)[0], h.read(at)[0])
		}
	}
	for _, op := range []*ReduceOp{AMax, AMin, NormInf, NormNegInf, Sum} {
		v := h.empty(dtype.Float32)
		check(t, Reduce(h, op, dtype.Float32, nil, []Operand{v}, []Operand{in}, []bool{true}))
		if h.read(v)[0] == h.read(v)[0] {
			t.Errorf("%s: %v, want NaN", op.Name, h.read(v)[0])
		}
	}
	v := h.empty(dtype.Float32)
	check(t, Reduce(h, NanSum, dtype.Float32, nil, []Operand{v}, []Operand{h.of(dtype.Float32, []float64{1, nan, 2}, 3)}, []bool{true}))
	if h.read(v)[0] != 3 {
		t.Errorf("nansum is %v", h.read(v)[0])
	}
	// An identity must not be mistaken for an element: the extremes of a type are values like any other.
	for _, c := range []struct {
		op *ReduceOp
		t  dtype.DType
		v  float64
	}{{MaxIndex, dtype.Uint8, 0}, {MinIndex, dtype.Uint8, 255}, {MaxIndex, dtype.Int64, math.MinInt64}, {MaxIndex, dtype.Float32, -inf},
		{MinIndex, dtype.Float32, inf}} {
		v, at := h.empty(c.t), h.empty(dtype.Int64)
		check(t, Reduce(h, c.op, c.t, nil, []Operand{v, at}, []Operand{h.of(c.t, []float64{c.v}, 1)}, []bool{true}))
		if h.read(v)[0] != c.v || h.read(at)[0] != 0 {
			t.Errorf("%s of %v %v: %v at %v", c.op.Name, c.t, c.v, h.read(v)[0], h.read(at)[0])
		}
	}
}

// Many rows have as many threads as hold them in registers, but on a device with few multiprocessors a warp each.
func TestThreadsPerRow(t *testing.T) {
	for _, c := range []struct {
		op              *ReduceOp
		t               dtype.DType
		n               int
		multiprocessors int
		wide            uint16
		chunks          uint8
	}{
		{Sum, dtype.Float32, 1024, fewMultiprocessors, 32, 8}, {Sum, dtype.Float32, 1028, fewMultiprocessors, 64, 5},
		{VarMean, dtype.BFloat16, 2048, fewMultiprocessors, 64, 4}, {Sum, dtype.BFloat16, 5000, fewMultiprocessors, 256, 3},
		{AMax, dtype.Float32, 16384, fewMultiprocessors, 512, 8}, {Sum, dtype.Float32, 20000, fewMultiprocessors, 512, 0},
		{Sum, dtype.Float32, 1001, fewMultiprocessors, 32, 32}, {Sum, dtype.Complex128, 1001, fewMultiprocessors, 32, 0},
		{ArgMax, dtype.Float32, 2048, fewMultiprocessors, 32, 0}, {LogSumExp, dtype.Float32, 2048, fewMultiprocessors, 32, 0},
		{Sum, dtype.Float32, 2048, fewMultiprocessors - 1, 32, 0},
	} {
		p := newPlanner()
		p.limits.Multiprocessors = c.multiprocessors
		outs := []Operand{at(1<<30, c.t, 600)}
		for range c.op.Outs - 1 {
			outs = append(outs, at(1<<29, c.t, 600))
		}
		check(t, Reduce(p, c.op, c.t, make([]Scalar, c.op.Scalars), outs, []Operand{at(4096, c.t, 600, c.n)}, []bool{false, true}))
		if r := p.l.Spec.Reduce; r.Wide != c.wide || r.Chunks != c.chunks {
			t.Errorf("%s of rows of %d %v, %d multiprocessors: %d threads share a row, and hold %d vectors", c.op.Name, c.n, c.t,
				c.multiprocessors, r.Wide, r.Chunks)
		}
	}
}

// A fused reduction holds rows in registers only if its inputs, except those with one element for a row, have room in them.
func TestFusedRowsHaveRegisters(t *testing.T) {
	for _, c := range []struct {
		t         dtype.DType
		n, inputs int
		rows      int // inputs with one element for a row
		held      bool
	}{
		{dtype.Float32, 1024, 4, 0, true}, {dtype.Float32, 1024, 5, 0, false}, {dtype.Float32, 1024, 4, 2, true},
		{dtype.Float32, 512, 8, 0, true}, {dtype.Float64, 1024, 2, 0, true}, {dtype.Float64, 1024, 3, 0, false},
		{dtype.BFloat16, 16384, 2, 1, true}, {dtype.BFloat16, 16384, 3, 0, false}, {dtype.BFloat16, 8192, 4, 0, true},
	} {
		p, types, from := newPlanner(), []dtype.DType{}, []int{}
		p.limits.Multiprocessors = fewMultiprocessors
		x, one := at(4096, c.t, 600, c.n), at(4096, c.t, 600, c.n)
		one.Stride = []int{1, 0}
		var ins []Operand
		var steps []FusedStep
		last := 0
		for i := range c.inputs + c.rows {
			if types, from = append(types, c.t), append(from, i); i < c.inputs {
				ins = append(ins, x)
			} else {
				ins = append(ins, one)
			}
		}
		for i := 1; i < len(ins); i++ {
			steps = append(steps, FusedStep{Op: Mul, Compute: opmath(c.t), Ins: []FusedIn{{Value: last}, {Value: i}},
				Outs: []FusedOut{{DType: c.t}}})
			last = len(ins) + i - 1
		}
		before := Fuse(types, steps, []int{last})
		call := newReduceCall(Sum, c.t, nil, []Operand{at(1<<30, c.t, 600)}, []Operand{x}, []bool{false, true})
		r := FuseReduce([]ReduceRound{{Before: PointWork{Op: before, From: from}, Calls: []*ReduceCall{call}, Results: []uint{1}}},
			PointWork{}, ins, &p.limits)
		if r == nil {
			t.Fatal("not one kernel")
		}
		check(t, r.Run(p, nil, call.Operands[:1], ins))
		if s := p.l.Spec.Reduce; s.Chunks > 0 != c.held {
			t.Errorf("rows of %d %v, %d inputs: a thread holds %d vectors", c.n, c.t, c.inputs, s.Chunks)
		}
	}
}

// A kernel that may write over its input reads no element twice: no thread has others' elements, or the row of another block.
func TestStoresInPlaceReadOnce(t *testing.T) {
	f := dtype.Float32
	exp := FusedStep{Op: Exp, Compute: f, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: f}}}
	before := Fuse([]dtype.DType{f}, []FusedStep{exp}, []int{1, 1})
	held := 0
	for _, n := range []int{256, 1000, 2000, 2048} {
		p := newPlanner()
		p.limits.Multiprocessors = fewMultiprocessors
		x := at(4096, f, 601, n)
		call := newReduceCall(Sum, f, nil, []Operand{at(1<<30, f, 601)}, []Operand{x}, []bool{false, true})
		r := FuseReduce([]ReduceRound{{Before: PointWork{Op: before, From: []int{0}}, Calls: []*ReduceCall{call}, Results: []uint{1}}},
			PointWork{}, []Operand{x, x}, &p.limits)
		if r == nil || !r.Apart(x.Shape) {
			t.Fatal("not one kernel, or not in place")
		}
		check(t, r.Run(p, nil, call.Operands[:1], []Operand{x, x}))
		s := p.l.Spec.Reduce
		if held += int(s.Chunks); s.Chunks > 0 && (!s.Exact || s.Wide == 32) {
			t.Errorf("rows of %d: %+v", n, s)
		}
	}
	if held == 0 {
		t.Error("no kernel holds rows in registers")
	}
	p := newPlanner()
	x := at(4096, f, 1, 40) // all inputs are the same for all reduced elements, and threads without a result load the last ones again
	call := newReduceCall(Sum, f, nil, []Operand{at(1<<30, f, 40)}, []Operand{x}, []bool{true, false})
	r := FuseReduce([]ReduceRound{{Before: PointWork{Op: before, From: []int{0}}, Calls: []*ReduceCall{call}, Results: []uint{1}}},
		PointWork{}, []Operand{x, x}, &p.limits)
	if r == nil || r.Apart(x.Shape) {
		t.Error("not one kernel, or one that reduces single elements writes over its input")
	}
}

// The bits of a reduction that says so do not depend on the order of the elements: they are those of any permutation, in any layout.
func TestUnorderedReductions(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	for _, op := range ReduceOps() {
		if !op.Unordered {
			continue
		}
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Int64, dtype.BFloat16} {
			for kind, some := range map[string][]float64{"numbers": {-2, -0.5, 1, 3}, "zeros": {0, math.Copysign(0, -1)},
				"NaNs": {0, 1, math.NaN(), math.Float64frombits(0xfff1 << 48), math.Float64frombits(0x7ff9 << 48)}} {
				if kind == "NaNs" && !dt.IsFloat() {
					continue
				}
				const n = 1200
				vs := make([]float64, n)
				for i := range vs {
					vs[i] = some[rng.IntN(len(some))]
				}
				var want []byte
				for run := range 8 {
					h := newHost(t)
					h.limits.Multiprocessors = []int{8, fewMultiprocessors}[run%2]
					rng.Shuffle(n, func(i, j int) { vs[i], vs[j] = vs[j], vs[i] })
					all := h.of(dt, append(make([]float64, run%3), vs...), n+run%3) // perhaps not aligned
					in := at(all.Ptr+uint64(run%3*dt.Size()), dt, 1, n)
					if run > 3 {
						in = permuted(at(in.Ptr, dt, n, 1), 1, 0)
					}
					out := h.empty(dt, 1)
					check(t, Reduce(h, op, dt, nil, []Operand{out}, []Operand{in}, []bool{false, true}))
					if got := h.view(out.Ptr)[:dt.Size()]; want == nil {
						want = bytes.Clone(got)
					} else if !bytes.Equal(got, want) {
						t.Errorf("%s of %s, %v: run %d has the bits %x, the first %x", op.Name, kind, dt, run, got, want)
					}
				}
			}
		}
	}
}

func TestReduceTwoInputs(t *testing.T) {
	h := newHost(t)
	rng := rand.New(rand.NewPCG(7, 8))
	a, b := h.random(rng, dtype.Float32, 50, 70), permuted(h.random(rng, dtype.Float32, 70, 50), 1, 0)
	x, y := h.read(a), h.read(b)
	squares, sum, smooth, slopes := 0.0, 0.0, 0.0, 0.0
	const bound = 0.75
	for i := range x {
		squares += (x[i] - y[i]) * (x[i] - y[i])
		sum += math.Abs(x[i] - y[i])
		smooth += smoothRef(x[i]-y[i], bound)
		slopes += x[i] * min(y[i], 0)
	}
	for op, want := range map[*ReduceOp]float64{SquaredErrorSum: squares, SquaredErrorMean: squares / 3500, AbsoluteErrorSum: sum,
		AbsoluteErrorMean: sum / 3500,
		SmoothL1Sum:       smooth, SmoothL1Mean: smooth / 3500, HuberSum: smooth * bound, HuberMean: smooth * bound / 3500,
		PReLUSlopeSum: slopes} {
		out := h.empty(dtype.Float32)
		check(t, Reduce(h, op, dtype.Float32, []Scalar{FloatScalar(bound)}[:op.Scalars], []Operand{out}, []Operand{a, b},
			[]bool{true, true}))
		if got := h.read(out)[0]; !close(got, want, 1e-6) {
			t.Errorf("%s is %v, want %v", op.Name, got, want)
		}
	}
	out := h.empty(dtype.Float64, 50)
	check(t, Reduce(h, NormP, dtype.Float64, []Scalar{FloatScalar(3)}, []Operand{out}, []Operand{a}, []bool{false, true}))
	for i, got := range h.read(out) {
		want := math.Cbrt(sumOf(x[70*i:70*i+70], func(v float64) float64 { return math.Abs(v * v * v) }))
		if !close(got, want, 1e-12) {
			t.Errorf("norm of order 3 is %v, want %v", got, want)
		}
	}
	inf := math.Inf(1)
	for want, vs := range map[float64][]float64{inf: {1, inf, 2}, -inf: {-inf, -inf}, 3: {3, -inf}} {
		out := h.empty(dtype.Float32)
		check(t, Reduce(h, LogSumExp, dtype.Float32, nil, []Operand{out}, []Operand{h.of(dtype.Float32, vs, len(vs))}, []bool{true}))
		if got := h.read(out)[0]; !close(got, want, 1e-6) {
			t.Errorf("logsumexp of %v is %v", vs, got)
		}
		check(t, Reduce(h, LogNormalizer, dtype.Float32, nil, []Operand{out}, []Operand{h.of(dtype.Float32, vs, len(vs))}, []bool{true}))
		if got := h.read(out)[0]; math.IsNaN(got) != math.IsInf(want, 0) {
			t.Errorf("the normalizer of %v is %v", vs, got)
		}
	}
}

func TestReduceHalf(t *testing.T) {
	h := newHost(t)
	ones := make([]float64, 65536)
	for i := range ones {
		ones[i] = 1
	}
	in := h.of(dtype.Float16, ones, len(ones))
	wide, mean := h.empty(dtype.Float32), h.empty(dtype.Float16)
	check(t, Reduce(h, Sum, dtype.Float32, nil, []Operand{wide}, []Operand{in}, []bool{true}))
	check(t, Reduce(h, Mean, dtype.Float16, nil, []Operand{mean}, []Operand{in}, []bool{true}))
	if h.read(wide)[0] != 65536 || h.read(mean)[0] != 1 {
		t.Errorf("sum %v, mean %v", h.read(wide)[0], h.read(mean)[0])
	}
	tiny := make([]float64, 25)
	for i := range tiny {
		tiny[i] = float64(i) / 1e8
	}
	norm := h.empty(dtype.Float16)
	check(t, Reduce(h, Norm2, dtype.Float16, nil, []Operand{norm}, []Operand{h.of(dtype.Float16, tiny, 25)}, []bool{true}))
	if h.read(norm)[0] <= 0 {
		t.Error("the norm of subnormals is 0")
	}
}

func TestReduceErrorsAndAllocations(t *testing.T) {
	h := newHost(t)
	x, y, z := h.empty(dtype.Float32, 4, 4), h.empty(dtype.Float32, 4), h.empty(dtype.Float32, 4, 4, 4)
	for name, err := range map[string]error{
		"counts": Reduce(h, Sum, dtype.Float32, nil, []Operand{y, y}, []Operand{x}, []bool{true, false}),
		"ranks":  Reduce(h, Sum, dtype.Float32, nil, []Operand{y}, []Operand{x}, []bool{true}),
		"output": Reduce(h, Sum, dtype.Float32, nil, []Operand{z}, []Operand{x}, []bool{true, false}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	p := newPlanner()
	in, out := at(1<<20, dtype.Float32, 1024, 1024), at(4096, dtype.Float32, 1024)
	all, one := []bool{true, true}, []bool{true, false}
	total := at(4096, dtype.Float32)
	run := func() {
		check(t, Reduce(p, Sum, dtype.Float32, nil, []Operand{out}, []Operand{in}, one))
		check(t, Reduce(p, Sum, dtype.Float32, nil, []Operand{total}, []Operand{in}, all))
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func BenchmarkReducePlan(b *testing.B) {
	p := newPlanner()
	in, out := at(1<<20, dtype.Float32, 256, 512), at(4096, dtype.Float32, 512)
	dims := []bool{true, false}
	for range b.N {
		Reduce(p, Sum, dtype.Float32, nil, []Operand{out}, []Operand{in}, dims)
	}
}

// TestReduceNarrowColumns: columns of few outputs are narrow, and many parts end in deep columns.
func TestReduceNarrowColumns(t *testing.T) {
	const rows = 40000
	for _, outputs := range []int{2, 6, 16, 64, 100} {
		h := newHost(t)
		h.limits.Multiprocessors = 64
		vs, want := make([]float64, rows*outputs), make([]float64, outputs)
		for i := range vs {
			vs[i] = float64(i*7%13 - 5)
			want[i%outputs] += vs[i]
		}
		x, y := h.of(dtype.BFloat16, vs, rows, outputs), h.empty(dtype.Float32, outputs)
		check(t, Reduce(h, Sum, dtype.Float32, nil, []Operand{y}, []Operand{x}, []bool{true, false}))
		for i, v := range h.read(y) {
			if v != want[i] {
				t.Errorf("%d outputs: sum %d is %v, want %v", outputs, i, v, want[i])
			}
		}
		s := &h.l.Spec.Reduce
		if s.Stage != reduceFinal {
			t.Errorf("%d outputs: the last stage is %d", outputs, s.Stage)
		}
		if outputs == 64 && s.Deep != 32 {
			t.Errorf("64 outputs: the last stage is %d deep", s.Deep)
		}
	}
}
