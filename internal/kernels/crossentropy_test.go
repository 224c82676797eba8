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

// entropyCase is a cross-entropy of rows with all its operands and the results of the definition.
type entropyCase struct {
	name        string
	p           NLL
	each, grads []float64
	lse, ws     []float64
	rows        Operand // weights of the rows; absent if classes have none
}

// entropies calls f for cross-entropies of rows with several lengths, types and layouts, with and without weights.
func entropies(t *testing.T, f func(h *host, c *entropyCase)) {
	rng := rand.New(rand.NewPCG(31, 32))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.BFloat16, dtype.Float64} {
		for _, size := range [][2]int{{3, 1}, {300, 2}, {13, 64}, {5, 67}, {2, 1000}, {3, 1024}, {2, 4096}, {2, 9001},
			{2, 20000}, {1, 60000}} {
			for form := range 4 {
				if size[1] > 5000 && form == 2 {
					continue
				}
				h := newHost(t)
				rows, n := size[0], size[1]
				c := &entropyCase{p: NLL{N: rows, C: n, S: 1, Ignore: 1 << 40}}
				c.name = fmt.Sprintf("%v [%d, %d] form %d", dt, rows, n, form)
				c.p.X = h.normal(rng, dt, rows, n)
				switch form {
				case 1: // rows that are parts of longer ones, not aligned for vectors
					c.p.X = sliced(h.normal(rng, dt, rows, n+9), 1, 3, n+3, 1)
				case 2:
					c.p.X = permuted(h.normal(rng, dt, n, rows), 1, 0)
					h.index32 = 10
				case 3: // aligned parts of longer rows
					c.p.X = sliced(h.normal(rng, dt, rows, n+16), 1, 8, n+8, 1)
				}
				c.p.LSE = h.empty(opmath(dt), rows)
				it := dtype.Int64
				c.p.Target = h.empty(it, rows)
				h.write(c.p.Target, func(i int) complex128 {
					if i%7 == 2 {
						return 1 << 40
					}
					return complex(float64(rng.IntN(n)), 0)
				})
				if form%2 == 1 {
					c.p.Weight, c.rows = h.empty(dt, n), h.empty(dt, rows)
					h.write(c.p.Weight, func(int) complex128 { return complex(float64(1+rng.IntN(8))/4, 0) })
				}
				c.define(h)
				f(h, c)
			}
		}
	}
}

// define computes the results of the definition.
func (c *entropyCase) define(h *host) {
	target, weights := h.read(c.p.Target), []float64(nil)
	if c.p.Weight.Ptr != 0 {
		weights = h.read(c.p.Weight)
	}
	for i, x := range h.rowsOf(c.p.X, 1) {
		m := math.Inf(-1)
		for _, v := range x {
			m = math.Max(m, v)
		}
		lse := m + math.Log(sumOf(x, func(v float64) float64 { return math.Exp(v - m) }))
		k, w, loss := int(target[i]), 0.0, 0.0
		if k != c.p.Ignore {
			if w = 1; weights != nil {
				w = weights[k]
			}
			loss = w * (lse - x[k])
		}
		for j, v := range x {
			g := math.Exp(v - lse)
			if j == k {
				g--
			}
			c.grads = append(c.grads, w*g)
		}
		c.each, c.lse, c.ws = append(c.each, loss), append(c.lse, lse), append(c.ws, w)
	}
	if c.rows.Ptr != 0 {
		h.write(c.rows, func(i int) complex128 { return complex(c.ws[i], 0) })
	}
}

func compareAll(t *testing.T, what string, got, want []float64, dt dtype.DType, tol float64) {
	t.Helper()
	compareRows(t, what, [][]float64{got}, [][]float64{want}, dt, tol)
}

func TestCrossEntropyRows(t *testing.T) {
	entropies(t, func(h *host, c *entropyCase) {
		p, wide := &c.p, opmath(c.p.X.DType)
		each, loss, total := h.empty(wide, p.N), h.empty(wide), h.empty(wide)
		check(t, p.CrossEntropyEach(h, each))
		compareAll(t, c.name+" normalizers", h.read(p.LSE), c.lse, wide, 2e-6)
		compareAll(t, c.name+" losses", h.read(each), c.each, wide, 2e-6)
		sum := sumOf(c.each, func(v float64) float64 { return v })
		weights := sumOf(c.ws, func(v float64) float64 { return v })
		for _, mean := range []bool{false, true} {
			check(t, p.CrossEntropySum(h, mean, loss, total))
			want := sum
			if mean {
				want /= weights
			}
			compareAll(t, c.name+" sum", append(h.read(loss), h.read(total)...), []float64{want, weights}, wide, 2e-6)
		}
		// The sum must be that of the losses in the order in which NLL adds them.
		plain := *p
		if p.X.Stride[0] == p.C && p.X.Stride[1] == 1 {
			other, before := h.empty(wide), h.empty(wide)
			check(t, plain.Sum(h, true, other, before))
			size := wide.Size()
			if !bytes.Equal(h.view(loss.Ptr)[:size], h.view(other.Ptr)[:size]) ||
				!bytes.Equal(h.view(total.Ptr)[:size], h.view(before.Ptr)[:size]) {
				t.Fatalf("%s: the mean is %v, in two passes %v", c.name, h.read(loss), h.read(other))
			}
		}
	})
}

func TestCrossEntropyRowsGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(33, 34))
	entropies(t, func(h *host, c *entropyCase) {
		p, dt := &c.p, c.p.X.DType
		wide := opmath(dt)
		check(t, p.CrossEntropyEach(h, h.empty(wide, p.N)))
		for _, each := range []bool{false, true} {
			g, total := h.normal(rng, dt, 1), h.of(dt, []float64{3}, 1)
			if each {
				g, total = h.normal(rng, dt, p.N), Operand{}
			}
			gs := h.read(g)
			want := make([]float64, len(c.grads))
			for i := range want {
				if want[i] = c.grads[i] * gs[i/p.C%len(gs)]; !each {
					want[i] /= 3
				}
			}
			dx := h.empty(dt, p.N, p.C)
			check(t, p.CrossEntropyGrad(h, dx, g, each, c.rows, total))
			compareAll(t, c.name+" gradient", h.read(dx), want, dt, 4e-6)

			// The gradient must equal that of the kernel for any layout, bit for bit.
			other := h.empty(dt, p.N, p.C)
			shape := []int{p.N, p.C}
			row := func(o Operand) Operand {
				return expanded(Operand{Ptr: o.Ptr, DType: o.DType, Shape: []int{p.N, 1}, Stride: []int{1, 0}}, shape...)
			}
			ins := []Operand{expanded(at(g.Ptr, dt, 1, 1), shape...), row(p.Target), {}, {}, p.X, row(p.LSE)}
			s := []Scalar{IntScalar(int64(p.C)), IntScalar(1), IntScalar(int64(p.Ignore))}
			if each {
				ins[0] = row(g)
			}
			if c.rows.Ptr != 0 {
				ins[2] = row(c.rows)
			} else {
				s = append(s, FloatScalar(1))
			}
			if !each {
				ins[3] = expanded(at(total.Ptr, dt, 1, 1), shape...)
			} else {
				s = append(s, FloatScalar(1))
			}
			check(t, Pointwise(h, CrossEntropyBackward, dt, s, []Operand{other}, ins))
			if size := p.N * p.C * dt.Size(); !bytes.Equal(h.view(dx.Ptr)[:size], h.view(other.Ptr)[:size]) {
				t.Fatalf("%s: the gradient has other bits than in the kernel for any layout", c.name)
			}
		}
	})
}

// TestCrossEntropyRowsEdges covers rows with infinities and NaN, targets of another type, and targets that are not a class.
func TestCrossEntropyRowsEdges(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, n := range []int{4, 1000, 9000, 30001} {
		for _, c := range []struct {
			fill, first, lse float64
		}{{-inf, 2, 2}, {-inf, -inf, nan}, {0, inf, nan}, {-inf, inf, nan}, {inf, inf, nan}, {1, nan, nan}, {nan, nan, nan},
			{-inf, nan, nan}, {-200, 100, 100}, {100, -inf, 100 + math.Log(float64(n-1))}} {
			for _, first := range []int{0, n / 2, n - 1} {
				h := newHost(t)
				vs := make([]float64, n)
				for i := range vs {
					vs[i] = c.fill
				}
				vs[first] = c.first
				p := NLL{N: 1, C: n, S: 1, Ignore: 1, X: h.of(dtype.Float32, vs, 1, n), LSE: h.empty(dtype.Float32, 1),
					Target: h.of(dtype.Int32, []float64{1}, 1)}
				each, dx := h.empty(dtype.Float32, 1), h.empty(dtype.Float32, 1, n)
				check(t, p.CrossEntropyEach(h, each))
				if v := h.read(p.LSE)[0]; !close(v, c.lse, 1e-6) {
					t.Errorf("%d of %v, but %v at %d: the normalizer is %v, want %v", n, c.fill, c.first, first, v, c.lse)
				}
				if v := h.read(each)[0]; v != 0 {
					t.Errorf("the loss of an ignored row is %v", v)
				}
				check(t, p.CrossEntropyGrad(h, dx, h.of(dtype.Float32, []float64{2}, 1), false, Operand{}, Operand{}))
				for i, v := range h.read(dx) {
					if v != 0 && (c.lse == c.lse || v == v) {
						t.Fatalf("%d of %v, but %v at %d: the gradient of %d in an ignored row is %v", n, c.fill, c.first, first, i, v)
					}
				}
			}
		}
	}
	for _, bad := range []float64{-1, 3, 1 << 33} {
		h := newHost(t)
		p := NLL{N: 1, C: 3, S: 1, Ignore: -100, X: h.of(dtype.Float32, []float64{1, 2, 4}, 1, 3), LSE: h.empty(dtype.Float32, 1),
			Target: h.of(dtype.Int64, []float64{bad}, 1)}
		err := p.CrossEntropyEach(h, h.empty(dtype.Float32, 1))
		if want := fmt.Sprintf("target %.0f is out of range for 3 classes", bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("target %v of 3 gives the error %v", bad, err)
		}
		// The gradient of such a row has no element to subtract one from.
		h = newHost(t)
		p.X, p.LSE, p.Target = h.of(dtype.Float32, []float64{0, 0, 0}, 1, 3), h.of(dtype.Float32, []float64{0}, 1),
			h.of(dtype.Int64, []float64{bad}, 1)
		dx := h.empty(dtype.Float32, 1, 3)
		check(t, p.CrossEntropyGrad(h, dx, h.of(dtype.Float32, []float64{1}, 1), false, Operand{}, Operand{}))
		if got := h.read(dx); got[0] != 1 || got[1] != 1 || got[2] != 1 {
			t.Errorf("target %v of 3 gives the gradient %v", bad, got)
		}
	}
}

// TestCrossEntropyRowsAreFused runs conversions around both kernels, fused and separately.
func TestCrossEntropyRowsAreFused(t *testing.T) {
	rng := rand.New(rand.NewPCG(35, 36))
	half, f := dtype.BFloat16, dtype.Float32
	cast := func(from, to dtype.DType) *PointOp {
		return Fuse([]dtype.DType{from}, []FusedStep{{Op: Copy, Compute: to, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: to}}}},
			[]int{1})
	}
	for _, n := range []int{64, 67, 4096, 20000} {
		h := newHost(t)
		const rows = 3
		x16, x := h.normal(rng, half, rows, n), h.empty(f, rows, n)
		column := func(t dtype.DType) Operand { return h.empty(t, rows, 1) }
		target, lse, loss, g := column(dtype.Int64), column(f), column(f), h.normal(rng, f, rows, 1)
		h.write(target, func(i int) complex128 { return complex(float64(rng.IntN(n)), 0) })
		s := []Scalar{IntScalar(-100)}
		check(t, Pointwise(h, Copy, f, nil, []Operand{x}, []Operand{x16}))
		check(t, runRows(h, crossEntropyOp, f, s, []Operand{lse, loss}, []Operand{x, target, {}}, 1))
		lse2, loss2 := column(f), column(f)
		alone := []Operand{lse, loss, x, target, {}}
		ok, err := runFusedRows(h, fuseRows(crossEntropyOp, cast(half, f), nil), f, s, []Operand{lse2, loss2},
			[]Operand{x16, target, {}}, 1, alone)
		check(t, err)
		same := func(what string, a, b Operand) {
			if size := a.Numel() * a.DType.Size(); !ok || !bytes.Equal(h.view(a.Ptr)[:size], h.view(b.Ptr)[:size]) {
				t.Fatalf("%d classes: %s differ", n, what)
			}
		}
		same("the normalizers", lse, lse2)
		same("the losses", loss, loss2)

		dx, dx16, got := h.empty(f, rows, n), h.empty(half, rows, n), h.empty(half, rows, n)
		ins := []Operand{x, lse, target, {}, {}, g}
		check(t, runRows(h, crossEntropyBackwardOp, f, s, []Operand{dx}, ins, 1))
		check(t, Pointwise(h, Copy, half, nil, []Operand{dx16}, []Operand{dx}))
		op := fuseRows(crossEntropyBackwardOp, cast(half, f), cast(f, half))
		alone = append([]Operand{dx}, ins...)
		ok, err = runFusedRows(h, op, f, s, []Operand{{}, got}, append([]Operand{x16}, ins[1:]...), 1, alone)
		check(t, err)
		same("the gradients", dx16, got)
	}
}

// TestCrossEntropyRowsAllocations checks that a call allocates nothing, and how wide the accesses to rows of halves are.
func TestCrossEntropyRowsAllocations(t *testing.T) {
	c := newCollector()
	x, v := at(4096, dtype.BFloat16, 64, 50304), at(4096, dtype.Float32, 64)
	p := NLL{N: 64, C: 50304, S: 1, Ignore: -100, X: x, LSE: v, Target: at(4096, dtype.Int64, 64)}
	run := func(is Issuer) {
		check(t, p.CrossEntropySum(is, true, v, v))
		check(t, p.CrossEntropyGrad(is, x, v, false, Operand{}, v))
	}
	run(c)
	for s := range c.specs {
		// The loss reads halves with the widths for float32, see halvesToo.
		if want := map[uint16]uint8{crossEntropyOp.id: 4, crossEntropyBackwardOp.id: 8}[s.Op]; s.Family == FamilyRows && s.Vec != want {
			t.Errorf("%s has accesses of %d elements", s.name("row"), s.Vec)
		}
	}
	is := newPlanner()
	run(is)
	if n := testing.AllocsPerRun(100, func() { run(is) }); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}
