package kernels

import (
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

func TestFlatIndex(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, sizes := range [][]int{{}, {1}, {1 << 40}, {7, 5}, {3, 1 << 20, 4, 2}} {
		for _, n := range []int{0, 1, 700} {
			for _, turned := range []bool{false, true} {
				h := newHost(t)
				index := h.empty(dtype.Int64, len(sizes), n)
				if turned {
					index = permuted(h.empty(dtype.Int64, n, len(sizes)), 1, 0)
				}
				want := make([]float64, n)
				walk := 0
				h.write(index, func(int) complex128 {
					d, i := walk/n, walk%n
					walk++
					at := rng.IntN(sizes[d])
					want[i] = want[i]*float64(sizes[d]) + float64(at)
					return complex(float64(at), 0)
				})
				out := h.empty(dtype.Int64, n)
				check(t, FlatIndex(h, out, index, sizes))
				for i, v := range h.read(out) {
					if v != want[i] {
						t.Fatalf("%v: place %d is %v, want %v", sizes, i, v, want[i])
					}
				}
				check(t, FlatIndex(h, Operand{}, index, sizes))
			}
		}
	}
	for _, bad := range []float64{-1, 5} {
		h := newHost(t)
		for _, out := range []Operand{{}, h.empty(dtype.Int64, 2)} {
			err := FlatIndex(h, out, h.of(dtype.Int64, []float64{1, 2, 0, bad}, 2, 2), []int{7, 5})
			if err == nil || !strings.Contains(err.Error(), "is out of range for size 5") {
				t.Errorf("the index %v gives the error %v", bad, err)
			}
		}
	}
	if err := FlatIndex(newHost(t), Operand{}, Operand{Shape: []int{33, 1}, Stride: []int{1, 1}}, make([]int, 33)); err == nil {
		t.Error("33 sizes are accepted")
	}
}
