package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// normal allocates an array of numbers with about two digits, which every float type represents approximately.
func (h *host) normal(rng *rand.Rand, t dtype.DType, shape ...int) Operand {
	o := h.empty(t, shape...)
	h.write(o, func(int) complex128 { return complex(rng.NormFloat64(), 0) })
	return o
}

// rowsOf returns the rows along dim for every other index, in row-major order.
func (h *host) rowsOf(o Operand, dim int) [][]float64 {
	dims := make([]bool, len(o.Shape))
	dims[dim] = true
	var out [][]float64
	for _, g := range h.groups(o, dims) {
		out = append(out, reals(g))
	}
	return out
}

func softmaxRef(x []float64, log bool) []float64 {
	m := math.Inf(-1)
	for _, v := range x {
		m = math.Max(m, v)
	}
	s := sumOf(x, func(v float64) float64 { return math.Exp(v - m) })
	out := make([]float64, len(x))
	for i, v := range x {
		if out[i] = math.Exp(v-m) / s; log {
			out[i] = v - m - math.Log(s)
		}
	}
	return out
}

func compareRows(t *testing.T, what string, got, want [][]float64, dt dtype.DType, tol float64) {
	t.Helper()
	if dt.Size() == 2 {
		tol = math.Max(tol, 1e-2)
	}
	for r := range want {
		for i := range want[r] {
			if !close(got[r][i], want[r][i], tol) {
				t.Fatalf("%s %v: element %d of row %d is %v, want %v", what, dt, i, r, got[r][i], want[r][i])
			}
		}
	}
}

func TestSoftmax(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	type layout struct {
		make func(h *host, dt dtype.DType) Operand
		dim  int
	}
	dense := func(dim int, shape ...int) layout {
		return layout{func(h *host, dt dtype.DType) Operand { return h.normal(rng, dt, shape...) }, dim}
	}
	layouts := map[string]layout{
		"vector": dense(0, 10), "one": dense(1, 9, 1), "rows": dense(1, 13, 64), "odd": dense(1, 13, 67), "held": dense(2, 2, 3, 1000),
		"middle": dense(1, 3, 20, 33), "few": dense(1, 2, 2048), "few, with a rest": dense(1, 2, 1048),
		"outer": dense(0, 40, 6), "block": dense(1, 3, 5000), "long": dense(1, 2, 20001), "four": dense(3, 2, 3, 4, 5),
		"transposed": {func(h *host, dt dtype.DType) Operand { return permuted(h.normal(rng, dt, 7, 30), 1, 0) }, 1},
		"stepped":    {func(h *host, dt dtype.DType) Operand { return sliced(h.normal(rng, dt, 7, 300), 1, 0, 300, 3) }, 1},
		"empty":      dense(1, 3, 0),
	}
	for _, limit := range []int{1<<31 - 1, 10} {
		for name, l := range layouts {
			for _, dt := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.Float64} {
				if limit == 10 && dt != dtype.Float32 {
					continue
				}
				h := newHost(t)
				h.index32 = limit
				x := l.make(h, dt)
				for _, log := range []bool{false, true} {
					y, g, dx := h.empty(dt, x.Shape...), h.normal(rng, dt, x.Shape...), h.empty(dt, x.Shape...)
					check(t, Softmax(h, log, dt, y, x, l.dim))
					xs, ys := h.rowsOf(x, l.dim), h.rowsOf(y, l.dim)
					var want [][]float64
					for _, r := range xs {
						want = append(want, softmaxRef(r, log))
					}
					compareRows(t, "softmax "+name, ys, want, dt, 1e-6)
					check(t, SoftmaxBackward(h, log, dt, dx, g, y, l.dim))
					var grads [][]float64
					gs := h.rowsOf(g, l.dim)
					for i := range ys {
						sum := 0.0
						for j := range ys[i] {
							if log {
								sum += gs[i][j]
							} else {
								sum += gs[i][j] * ys[i][j]
							}
						}
						row := make([]float64, len(ys[i]))
						for j := range row {
							if row[j] = (gs[i][j] - sum) * ys[i][j]; log {
								row[j] = gs[i][j] - math.Exp(ys[i][j])*sum
							}
						}
						grads = append(grads, row)
					}
					compareRows(t, "softmax backward "+name, h.rowsOf(dx, l.dim), grads, dt, 1e-4)
				}
			}
		}
	}
}

func TestSoftmaxInfinities(t *testing.T) {
	h := newHost(t)
	inf := math.Inf(1)
	for _, n := range []int{4, 20000} {
		vs := make([]float64, n)
		for i := range vs {
			vs[i] = -inf
		}
		vs[1], vs[2] = 2, 2
		y := h.empty(dtype.Float32, n)
		check(t, Softmax(h, false, dtype.Float32, y, h.of(dtype.Float32, vs, n), 0))
		if got := h.read(y); got[0] != 0 || got[1] != 0.5 || got[2] != 0.5 {
			t.Errorf("n = %d: %v", n, got[:4])
		}
		vs[1], vs[2] = -inf, -inf
		check(t, Softmax(h, false, dtype.Float32, y, h.of(dtype.Float32, vs, n), 0))
		if got := h.read(y); got[0] == got[0] {
			t.Errorf("n = %d: a row of -inf gives %v, want NaN", n, got[0])
		}
	}
}

// The longer a row, the more threads share it.
func TestRowsAreShared(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for _, c := range []struct {
		n          int
		half, full uint16
	}{{1024, 32, 32}, {1032, 64, 64}, {2048, 64, 256}, {2056, 128, 128}, {4096, 256, 256}, {8192, 256, 256}, {8200, 512, 512}} {
		for dt, want := range map[dtype.DType]uint16{dtype.BFloat16: c.half, dtype.Float32: c.full} {
			h := newHost(t)
			x := h.normal(rng, dt, 3, c.n)
			check(t, Softmax(h, false, dt, h.empty(dt, 3, c.n), x, 1))
			if len(h.kernels) != 1 {
				t.Fatalf("softmax has %d kernels", len(h.kernels))
			}
			for s := range h.kernels {
				if s.Rows.Group != want {
					t.Errorf("rows of %d %v have %d threads each, want %d", c.n, dt, s.Rows.Group, want)
				}
			}
		}
	}
}

func TestNorms(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	for _, size := range [][2]int{{5, 64}, {7, 33}, {3, 1024}, {2, 1048}, {2, 2048}, {130, 12}, {2, 9001}, {1, 1}} {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float64} {
			for _, affine := range []bool{true, false} {
				h := newHost(t)
				rows, n := size[0], size[1]
				st := opmath(dt)
				x, dy := h.normal(rng, dt, rows, n), h.normal(rng, dt, rows, n)
				var w, b, dw, db Operand
				if affine {
					w, b, dw, db = h.normal(rng, dt, n), h.normal(rng, dt, n), h.empty(dt, n), h.empty(dt, n)
				}
				y, dx, mean, rstd := h.empty(dt, rows, n), h.empty(dt, rows, n), h.empty(st, rows), h.empty(st, rows)
				const eps = 1e-5
				check(t, LayerNorm(h, dt, y, mean, rstd, x, w, b, eps))
				check(t, LayerNormBackward(h, dt, dx, dw, db, dy, x, mean, rstd, w))
				ref := normReference(h, x, dy, w, b, eps, true)
				what := "layer norm"
				compareRows(t, what, h.rowsOf(y, 1), ref.y, dt, 1e-4)
				compareRows(t, what+" mean", [][]float64{h.read(mean)}, [][]float64{ref.mean}, dt, 1e-5)
				compareRows(t, what+" rstd", [][]float64{h.read(rstd)}, [][]float64{ref.rstd}, dt, 1e-5)
				compareRows(t, what+" dx", h.rowsOf(dx, 1), ref.dx, dt, 1e-3)
				if affine {
					compareRows(t, what+" dweight", [][]float64{h.read(dw)}, [][]float64{ref.dw}, dt, 1e-3)
					compareRows(t, what+" dbias", [][]float64{h.read(db)}, [][]float64{ref.db}, dt, 1e-3)
				}
				check(t, RMSNorm(h, dt, y, rstd, x, w, eps))
				check(t, RMSNormBackward(h, dt, dx, dw, dy, x, rstd, w))
				ref = normReference(h, x, dy, w, Operand{}, eps, false)
				what = "rms norm"
				compareRows(t, what, h.rowsOf(y, 1), ref.y, dt, 1e-4)
				compareRows(t, what+" dx", h.rowsOf(dx, 1), ref.dx, dt, 1e-3)
				if affine {
					compareRows(t, what+" dweight", [][]float64{h.read(dw)}, [][]float64{ref.dw}, dt, 1e-3)
				}
			}
		}
	}
}

// TestNormsWithSums: where many rows fill the device, one kernel and one that combines its sums compute all gradients of a normalisation.
func TestNormsWithSums(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 26))
	for _, c := range []struct {
		rows, n, missing int // missing says which of the gradients of weight and bias is not wanted
		dt               dtype.DType
	}{{1040, 64, 0, dtype.Float32}, {1100, 33, 0, dtype.BFloat16}, {1030, 12, 2, dtype.Float64}, {517, 768, 0, dtype.BFloat16},
		{530, 768, 1, dtype.Float32}, {520, 1000, 2, dtype.BFloat16}, {301, 1048, 0, dtype.Float32}, {259, 4100, 0, dtype.BFloat16},
		{257, 8192, 0, dtype.Float32}, {260, 8193, 3, dtype.Float32}, {100, 2048, 3, dtype.Float32}} {
		h := newHost(t)
		h.limits.Multiprocessors = fewMultiprocessors
		rows, n, dt, st := c.rows, c.n, c.dt, opmath(c.dt)
		x, dy, w := h.normal(rng, dt, rows, n), h.normal(rng, dt, rows, n), h.normal(rng, dt, n)
		y, dx, mean, rstd := h.empty(dt, rows, n), h.empty(dt, rows, n), h.empty(st, rows), h.empty(st, rows)
		dw, db := h.empty(st, n), h.empty(st, n)
		if c.missing == 1 {
			dw = Operand{}
		}
		if c.missing == 2 {
			db = Operand{}
		}
		const eps = 1e-5
		name := fmt.Sprintf("%d rows of %d %v", rows, n, dt)
		summed := func(run func()) (one bool) {
			clear(h.kernels)
			run()
			for s := range h.kernels {
				one = one || s.Family == FamilyRows && rowOpOf(&s).sums != nil
			}
			return one
		}
		check(t, LayerNorm(h, dt, y, mean, rstd, x, w, Operand{}, eps))
		one := summed(func() { check(t, LayerNormBackward(h, dt, dx, dw, db, dy, x, mean, rstd, w)) })
		if one == (c.missing == 3) {
			t.Errorf("layer norm of %s: one kernel: %v", name, one)
		}
		ref := normReference(h, x, dy, w, Operand{}, eps, true)
		compareRows(t, "dx of "+name, h.rowsOf(dx, 1), ref.dx, dt, 1e-3)
		if dw.Ptr != 0 {
			compareRows(t, "dweight of "+name, [][]float64{h.read(dw)}, [][]float64{ref.dw}, st, 1e-2)
		}
		if db.Ptr != 0 {
			compareRows(t, "dbias of "+name, [][]float64{h.read(db)}, [][]float64{ref.db}, st, 1e-2)
		}
		if dw.Ptr == 0 {
			continue
		}
		check(t, RMSNorm(h, dt, y, rstd, x, w, eps))
		one = summed(func() { check(t, RMSNormBackward(h, dt, dx, dw, dy, x, rstd, w)) })
		if one == (c.missing == 3) {
			t.Errorf("RMS norm of %s: one kernel: %v", name, one)
		}
		ref = normReference(h, x, dy, w, Operand{}, eps, false)
		compareRows(t, "RMS norm's dx of "+name, h.rowsOf(dx, 1), ref.dx, dt, 1e-3)
		compareRows(t, "RMS norm's dweight of "+name, [][]float64{h.read(dw)}, [][]float64{ref.dw}, st, 1e-2)
	}
}

type normRef struct {
	y, dx              [][]float64
	mean, rstd, dw, db []float64
}

// normReference computes layer norm (centred) or RMS norm of rows, with all gradients.
func normReference(h *host, x, dy, w, b Operand, eps float64, centred bool) normRef {
	xs, gs := h.rowsOf(x, 1), h.rowsOf(dy, 1)
	n := float64(x.Shape[1])
	ws, bs := make([]float64, x.Shape[1]), make([]float64, x.Shape[1])
	for i := range ws {
		ws[i] = 1
	}
	if w.Ptr != 0 {
		ws = h.read(w)
	}
	if b.Ptr != 0 {
		bs = h.read(b)
	}
	r := normRef{dw: make([]float64, x.Shape[1]), db: make([]float64, x.Shape[1])}
	for i, row := range xs {
		mean := 0.0
		if centred {
			mean = sumOf(row, func(v float64) float64 { return v }) / n
		}
		rstd := 1 / math.Sqrt(sumOf(row, func(v float64) float64 { return (v - mean) * (v - mean) })/n+eps)
		y, dx := make([]float64, len(row)), make([]float64, len(row))
		a, c := 0.0, 0.0
		for j, v := range row {
			hat := (v - mean) * rstd
			y[j] = hat*ws[j] + bs[j]
			g := gs[i][j] * ws[j]
			if centred {
				a += g / n
			}
			c += g * hat / n
			r.dw[j] += gs[i][j] * hat
			r.db[j] += gs[i][j]
		}
		for j, v := range row {
			dx[j] = rstd * (gs[i][j]*ws[j] - a - (v-mean)*rstd*c)
		}
		r.y, r.dx, r.mean, r.rstd = append(r.y, y), append(r.dx, dx), append(r.mean, mean), append(r.rstd, rstd)
	}
	return r
}

func TestRowsErrorsAndAllocations(t *testing.T) {
	h := newHost(t)
	x, y := h.empty(dtype.Float32, 3, 4), h.empty(dtype.Float32, 12)
	if Softmax(h, false, dtype.Float32, x, x, 2) == nil {
		t.Error("a dimension that does not exist is taken")
	}
	if Softmax(h, false, dtype.Float32, x, y, 1) == nil {
		t.Error("operands of other ranks are taken")
	}
	if runRows(h, softmaxOp, dtype.Float32, nil, []Operand{x}, nil, 1) == nil {
		t.Error("a missing operand is taken")
	}
	p := newPlanner()
	a, w, s := at(4096, dtype.Float32, 64, 512), at(4096, dtype.Float32, 512), at(4096, dtype.Float32, 64)
	many, each := at(4096, dtype.Float32, 8192, 512), at(4096, dtype.Float32, 8192)
	run := func() {
		check(t, Softmax(p, false, dtype.Float32, a, a, 1))
		check(t, LayerNorm(p, dtype.Float32, a, s, s, a, w, w, 1e-5))
		check(t, LayerNormBackward(p, dtype.Float32, a, w, w, a, a, s, s, w))
		check(t, LayerNormBackward(p, dtype.Float32, many, w, w, many, many, each, each, w))
		check(t, RMSNormBackward(p, dtype.Float32, many, w, many, many, each, w))
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// TestRowsAhead: rows have the same bits whether their threads load all inputs first, as those of few rows do, or not.
func TestRowsAhead(t *testing.T) {
	h, rng := newHost(t), rand.New(rand.NewPCG(8, 9))
	h.limits.Multiprocessors = 8
	half, f := dtype.BFloat16, dtype.Float32
	for _, n := range []int{100, 768, 3000} {
		const few, many = 3, 60
		x, w, b := h.normal(rng, half, many, n), h.normal(rng, half, n), h.normal(rng, half, n)
		run := func(rows int) []float64 {
			in, y := x, h.empty(half, rows, n)
			in.Shape = []int{rows, n}
			across := func(o Operand) Operand {
				o.Shape, o.Stride = []int{rows, n}, []int{0, 1}
				return o
			}
			clear(h.kernels)
			check(t, LayerNorm(h, f, y, h.empty(f, rows, 1), h.empty(f, rows, 1), in, across(w), across(b), 1e-5))
			for s := range h.kernels {
				if ahead := s.Rows.Ahead == 1; ahead != (rows == few) {
					t.Errorf("%d rows of %d: loads ahead: %v", rows, n, ahead)
				}
			}
			return h.read(y)[:few*n]
		}
		if got, want := run(few), run(many); !slices.EqualFunc(got, want, same) {
			t.Errorf("rows of %d have other bits", n)
		}
	}
}
