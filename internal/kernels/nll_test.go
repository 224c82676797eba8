package kernels

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

func TestNLL(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.Float64} {
		for _, size := range [][3]int{{1, 3, 1}, {7, 5, 1}, {4, 3, 6}, {nllBlock + 100, 2, 2}} {
			for form := range 4 {
				h := newHost(t)
				n, c, s := size[0], size[1], size[2]
				p := NLL{N: n, C: c, S: s, Ignore: 1, X: h.random(rng, dt, n, c, s), Target: h.empty(dtype.Int64, n, s)}
				h.write(p.Target, func(int) complex128 { return complex(float64(rng.IntN(c)), 0) })
				if form&1 != 0 {
					p.Weight = h.of(dt, []float64{1, 2, .5, .25, 3}[:c], c)
				}
				if form&2 != 0 {
					p.LSE = h.random(rng, opmath(dt), n, s)
				}
				checkNLL(t, h, &p)
			}
		}
	}
}

// checkNLL compares with the definition.
func checkNLL(t *testing.T, h *host, p *NLL) {
	dt := p.X.DType
	x, target := h.read(p.X), h.read(p.Target)
	want := make([]float64, p.N*p.S)
	sum, total := 0.0, 0.0
	for i := range want {
		k := int(target[i])
		if k == p.Ignore {
			continue
		}
		w := 1.0
		if p.Weight.Ptr != 0 {
			w = h.read(p.Weight)[k]
		}
		v := -x[(i/p.S*p.C+k)*p.S+i%p.S]
		if p.LSE.Ptr != 0 {
			v += h.read(sliced(Operand{Ptr: p.LSE.Ptr, DType: p.LSE.DType, Shape: []int{p.N * p.S}, Stride: []int{1}}, 0, i, i+1, 1))[0]
		}
		want[i] = w * v
		sum += want[i]
		total += w
	}
	tol := map[dtype.DType]float64{dtype.Float32: 2e-6, dtype.Float64: 1e-13, dtype.Float16: 2e-3}[dt]
	each, loss, weights := h.empty(dt, p.N, p.S), h.empty(dt), h.empty(dt)
	check(t, p.Each(h, each))
	for i, v := range h.read(each) {
		if !close(v, want[i], tol) {
			t.Fatalf("%v: loss %d is %v, want %v", dt, i, v, want[i])
		}
	}
	check(t, p.Sum(h, true, loss, weights))
	if v := h.read(loss)[0]; !close(v, sum/total, tol) {
		t.Fatalf("%v: the mean of %d rows is %v, want %v", dt, p.N, v, sum/total)
	}
	if dt == dtype.Float16 && p.N > 1000 {
		return // sums exceed the type's range
	}
	check(t, p.Sum(h, false, loss, weights))
	if v, w := h.read(loss)[0], h.read(weights)[0]; !close(v, sum, tol) || !close(w, total, tol) {
		t.Fatalf("%v: the sums of %d rows are %v and %v, want %v and %v", dt, p.N, v, w, sum, total)
	}
}

func TestNLLEdges(t *testing.T) {
	h := newHost(t)
	p := NLL{N: 1, C: 2, S: 1, Ignore: -100, X: h.of(dtype.Float32, []float64{1, 2}, 1, 2, 1),
		Target: h.of(dtype.Int64, []float64{2}, 1, 1)}
	loss, total := h.empty(dtype.Float32), h.empty(dtype.Float32)
	if err := p.Sum(h, true, loss, total); err == nil || !strings.Contains(err.Error(), "target 2 is out of range for 2 classes") {
		t.Errorf("target 2 of 2 gives the error %v", err)
	}
	// Only ignored rows, or no rows: 0/0.
	p.Ignore = 2
	check(t, p.Sum(h, true, loss, total))
	if v := h.read(loss)[0]; !math.IsNaN(v) {
		t.Errorf("the mean of no rows is %v", v)
	}
	p.N = 0
	check(t, p.Each(h, Operand{DType: dtype.Float32, Shape: []int{0, 1}, Stride: []int{1, 1}}))
	check(t, p.Sum(h, false, loss, total))
	if v := h.read(loss)[0]; v != 0 {
		t.Errorf("the sum of no rows is %v", v)
	}
}
