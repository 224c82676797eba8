package kernels

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// TestUniqueSort compares with a stable sort, for all types, with few and many different elements.
func TestUniqueSort(t *testing.T) {
	special := []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(math.NaN(), -1), 1, -1,
		0x1p-14, -0x1p-14}
	for _, dt := range compactTypes {
		if dt.IsComplex() {
			continue
		}
		for _, n := range []int{1, 2, 100, 5000} {
			for _, index32 := range []int{1<<31 - 1, 10} {
				for _, plain := range []bool{false, true} {
					if plain && (dt.IsFloat() || dt == dtype.Bool) {
						continue
					}
					h, rng := newHost(t), rand.New(rand.NewPCG(uint64(n), uint64(dt)))
					h.index32 = index32
					whole := h.empty(dt, 2*n)
					h.write(whole, func(i int) complex128 {
						switch {
						case plain:
							return complex(float64(rng.IntN(64)), 0)
						case dt.IsFloat() && rng.IntN(3) == 0:
							return complex(special[rng.IntN(len(special))], 0)
						case i%5 == 0 && dt.IsInt():
							return complex(float64(int64(rng.Uint64())>>(64-8*dt.Size())), 0)
						}
						return complex(sample(rng, dt), 0)
					})
					u := Unique{X: sliced(whole, 0, 0, 2*n, 2), Order: h.empty(dtype.Int64, n), Heads: h.empty(dtype.Bool, n)}
					if plain {
						u.Bits = 6
					}
					check(t, u.Sort(h))
					x, want := h.read(u.X), make([]float64, n)
					for i := range want {
						want[i] = float64(i)
					}
					slices.SortStableFunc(want, func(a, b float64) int {
						va, vb := x[int(a)], x[int(b)]
						if va != va || vb != vb {
							return cmp.Compare(btoi(va != va), btoi(vb != vb))
						}
						return cmp.Compare(va, vb)
					})
					if order := h.read(u.Order); !slices.Equal(order, want) {
						t.Fatalf("%v, %d elements: the order is wrong", dt, n)
					}
					for i, head := range h.read(u.Heads) {
						if is := i == 0 || x[int(want[i])] != x[int(want[i-1])]; btoi(is) != int(head) {
							t.Fatalf("%v, %d elements: head %d is %v", dt, n, i, head)
						}
					}
				}
			}
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
