package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// draws returns what Draw draws from p [rows, n].
func (g *generator) draws(p Operand, samples int) []float64 {
	m := Multinomial{Rows: p.Shape[0], N: p.Shape[1], Samples: samples, P: p, Out: g.h.empty(dtype.Int64, p.Shape[0], samples)}
	t := g.h.t.(*testing.T)
	t.Helper()
	check(t, m.Draw(g.h, Philox{Seed: g.seed, Offset: g.offset}))
	g.offset += m.Advance()
	return g.h.read(m.Out)
}

// TestMultinomialIsPyTorchs compares with draws of PyTorch from the probabilities 0.1, 0.2, 0.3 and 0.4.
func TestMultinomialIsPyTorchs(t *testing.T) {
	r := loadRandom(t)
	for seed := range r.Cases {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64} {
			g := r.generator(t, seed)
			var want []float64
			r.get(t, seed, "multinomial_rep", &want)
			if got := g.draws(g.h.of(dt, []float64{.1, .2, .3, .4}, 1, 4), len(want)); !slices.Equal(got, want) {
				t.Errorf("seed %s, %v: drew %v, want %v", seed, dt, got, want)
			}
			if g.offset != 4 {
				t.Errorf("the offset is %d", g.offset)
			}
		}
	}
}

// TestMultinomialDraw compares with sums in order, and with uniform numbers from the same positions of the sequence.
func TestMultinomialDraw(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.Float16, dtype.BFloat16} {
		for _, size := range [][3]int{{1, 1, 5}, {1, 7, 300}, {3, 100, 130}, {2, multinomialPart, 50}, {2, multinomialPart + 1, 50},
			{1, 5*multinomialPart - 3, 400}, {multinomialGrid + 2, 2, 1}} {
			rows, n, samples := size[0], size[1], size[2]
			if rows > 3 && dt != dtype.Float32 {
				continue
			}
			r := &recordedRandom{SMs: 132, Threads: 2048}
			g := r.generator(t, "77")
			p := g.h.empty(dt, rows, n)
			g.h.write(p, func(i int) complex128 { // two out of three are 0
				if i%3 != rows%3 && n > 1 && !(n == 2 && i%2 == 1) {
					return 0
				}
				return complex(rng.ExpFloat64()+1e-3, 0)
			})
			got := g.draws(p, samples)
			if want := uint64(4 * ceilDiv(rows, min(rows, multinomialGrid))); g.offset != want {
				t.Fatalf("%v: the offset is %d, want %d", size, g.offset, want)
			}
			ps := g.h.read(p)
			apart := ceilDiv(samples, multinomialBlock) * multinomialBlock
			g.offset = 0
			first := g.uniform(dtype.Float32, min(rows*apart, 1<<18), 0, 1) // one for each of that many threads
			for row := range rows {
				sum, sums := 0.0, make([]float64, n)
				for c := range n {
					sum += ps[row*n+c]
					sums[c] = sum
				}
				for s := range samples {
					c := int(got[row*samples+s])
					if ps[row*n+c] == 0 {
						t.Fatalf("%v %v: row %d drew category %d of probability 0", dt, size, row, c)
					}
					if row*apart+s >= len(first) {
						continue
					}
					u := first[row*apart+s]
					if u == 0 { // as RandomUniform returns for 1
						u = 1
					}
					u *= sum
					if u > sums[c]*(1+1e-12) || u < (sums[c]-ps[row*n+c])*(1-1e-12) {
						t.Fatalf("%v %v: row %d drew category %d from %v to %v with %v", dt, size, row, c, sums[c]-ps[row*n+c], sums[c], u)
					}
				}
			}
		}
	}
}

// TestMultinomialRounding has a category of probability 0 whose running sum is greater than the preceding one.
func TestMultinomialRounding(t *testing.T) {
	h := newHost(t)
	m := Multinomial{Rows: 1, N: 3, Samples: 200, P: h.of(dtype.Float64, []float64{1, 0, 1}, 1, 3), Out: h.empty(dtype.Int64, 1, 200)}
	check(t, m.pick(h, h.of(dtype.Float64, []float64{1, 1.5, 2}, 3).Ptr, Philox{Seed: 1}))
	var drawn [3]int
	for _, c := range h.read(m.Out) {
		drawn[int(c)]++
	}
	if drawn[1] != 0 || drawn[0] < 130 || drawn[2] < 30 {
		t.Errorf("drew the categories %v times", drawn)
	}
}

func TestMultinomialRefuses(t *testing.T) {
	for _, bad := range []float64{-1, math.Inf(1), math.Inf(-1), math.NaN()} {
		h := newHost(t)
		m := Multinomial{Rows: 1, N: 3, Samples: 2, P: h.of(dtype.Float32, []float64{1, bad, 1}, 1, 3), Out: h.empty(dtype.Int64, 1, 2)}
		if err := m.Draw(h, Philox{}); err == nil || !strings.Contains(err.Error(),
			fmt.Sprintf("probability %v is negative, infinite or NaN", bad)) {
			t.Errorf("a probability of %v gives the error %v", bad, err)
		}
	}
	h := newHost(t)
	m := Multinomial{Rows: 2, N: 3, Samples: 2, P: h.of(dtype.Float32, []float64{1, 1, 1, 0, 0, 0}, 2, 3), Out: h.empty(dtype.Int64, 2, 2)}
	if err := m.Draw(h, Philox{}); err == nil || !strings.Contains(err.Error(), "are all 0") {
		t.Errorf("a row of zeros gives the error %v", err)
	}
}

// TestMultinomialGreatest compares with a stable sort.
func TestMultinomialGreatest(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64} {
		for _, size := range [][3]int{{1, 1, 1}, {1, 1000, 1000}, {5, 333, 20}, {300, 40, 7}} {
			rows, n, samples := size[0], size[1], size[2]
			h := newHost(t)
			p := h.empty(dt, rows, n)
			h.write(p, func(i int) complex128 {
				switch i % 10 {
				case 3:
					return complex(math.Copysign(0, -1), 0)
				case 4:
					return complex(math.Inf(1), 0)
				}
				return complex(math.Exp(20*rng.NormFloat64())/8*float64(rng.IntN(4)), 0)
			})
			out := h.empty(dtype.Int64, rows, samples)
			check(t, (&Multinomial{Rows: rows, N: n, Samples: samples, P: p, Out: out}).Greatest(h))
			ps, got := h.read(p), h.read(out)
			for row := range rows {
				order := make([]int, n)
				for i := range order {
					order[i] = i
				}
				own := ps[row*n:]
				slices.SortStableFunc(order, func(a, b int) int {
					switch {
					case own[a] > own[b]:
						return -1
					case own[a] < own[b]:
						return 1
					}
					return 0
				})
				for s := range samples {
					if int(got[row*samples+s]) != order[s] {
						t.Fatalf("%v %v: place %d of row %d is %v, want %d", dt, size, s, row, got[row*samples+s], order[s])
					}
				}
			}
		}
	}
}
