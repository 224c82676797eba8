package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// reduceCase is an input and the dimensions to reduce.
type reduceCase struct {
	name string
	in   Operand
	dims []bool
}

func reduceCases(h *host, rng *rand.Rand, t dtype.DType) []reduceCase {
	r := func(shape ...int) Operand { return h.random(rng, t, shape...) }
	y, n := true, false
	return []reduceCase{
		{"0-d", r(), []bool{}},
		{"one", r(1), []bool{y}},
		{"few", r(5), []bool{y}},
		{"all", r(100, 333), []bool{y, y}},
		{"all odd", sliced(r(70001), 0, 1, 70000, 1), []bool{y}},
		{"all transposed", permuted(r(33, 64), 1, 0), []bool{y, y}},
		{"all stepped", sliced(r(40001), 0, 0, 40001, 2), []bool{y}},
		{"rows", r(70, 64), []bool{n, y}},
		{"odd rows", r(70, 67), []bool{n, y}},
		{"long rows", r(3, 9000), []bool{n, y}},
		{"short rows", r(3000, 5), []bool{n, y}},
		{"columns", r(100, 64), []bool{y, n}},
		{"odd columns", r(100, 63), []bool{y, n}},
		{"few columns", r(9000, 3), []bool{y, n}},
		{"channels", r(8, 5, 6, 7), []bool{y, n, y, y}},
		{"middle", r(6, 50, 8), []bool{n, y, n}},
		{"outer", r(10, 12, 8), []bool{y, n, y}},
		{"repeated", expanded(r(40, 1), 40, 50), []bool{n, y}},
		{"six", permuted(r(2, 3, 4, 2, 3, 4), 5, 4, 3, 2, 1, 0), []bool{y, n, y, n, y, n}},
		{"ten", permuted(r(2, 3, 2, 2, 2, 3, 2, 2, 2, 2), 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), []bool{y, n, y, n, y, n, y, n, n, n}},
		{"nothing", r(4, 0), []bool{n, y}},
		{"no outputs", r(0, 4), []bool{n, y}},
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

// realReferences are what reductions of real numbers should give.
var realReferences = map[string]func(vs []float64) []float64{
	"sum": func(vs []float64) []float64 { return []float64{sumOf(vs, func(v float64) float64 { return v })} },
	"mean": func(vs []float64) []float64 {
		return []float64{sumOf(vs, func(v float64) float64 { return v }) / float64(len(vs))}
	},
	"sum_squares": func(vs []float64) []float64 { return []float64{sumOf(vs, func(v float64) float64 { return v * v })} },
	"nansum":      func(vs []float64) []float64 { return []float64{sumOf(vs, func(v float64) float64 { return v })} },
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
	"std_mean":  func(vs []float64) []float64 { m, v := varianceOf(vs, 1); return []float64{math.Sqrt(v), m} },
	"amax":      func(vs []float64) []float64 { v, _ := extremeOf(vs, greaterThan); return []float64{v} },
	"amin":      func(vs []float64) []float64 { v, _ := extremeOf(vs, lessThan); return []float64{v} },
	"argmax":    func(vs []float64) []float64 { _, i := extremeOf(vs, greaterThan); return []float64{i} },
	"argmin":    func(vs []float64) []float64 { _, i := extremeOf(vs, lessThan); return []float64{i} },
	"max_index": func(vs []float64) []float64 { v, i := extremeOf(vs, greaterThan); return []float64{v, i} },
	"min_index": func(vs []float64) []float64 { v, i := extremeOf(vs, lessThan); return []float64{v, i} },
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

// noIdentity names the ops whose result for no elements is an error to the caller.
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
			cases := reduceCases(h, rand.New(rand.NewPCG(1, uint64(dt))), dt)
			for _, op := range ReduceOps() {
				ref := realReferences[op.Name]
				if ref == nil || !dt.IsFloat() && op.Scalars > 0 || !dt.IsFloat() && op.Name == "mean" || limit == 50 && (dt != dtype.Float32 || op != Sum && op != MaxIndex) {
					continue
				}
				for _, c := range cases {
					if err := reduceOne(h, op, dt, c, ref); err != nil {
						t.Fatalf("%s %v of %s, limit %d: %v", op.Name, dt, c.name, limit, err)
					}
				}
			}
		}
	}
}

func reduceOne(h *host, op *ReduceOp, dt dtype.DType, c reduceCase, ref func([]float64) []float64) error {
	compute, outType := dt, dt
	tol := 1e-5
	switch {
	case op.Name == "all" || op.Name == "any":
		outType = dtype.Bool
	case noIdentity(op):
	case !dt.IsFloat():
		compute, outType = dtype.Int64, dtype.Int64
		if op.Name == "norm2" {
			return nil
		}
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
	for o, vs := range h.groups(c.in, c.dims) {
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
