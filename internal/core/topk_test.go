package core

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// TestTopK compares TopK along every dimension, for the greatest and the least elements, with a stable sort on the host. The elements are
// small integers, so that many are equal.
func TestTopK(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		shape := []int{4, 7, 5}
		r := rand.New(rand.NewPCG(1, 2))
		v := make([]float32, 4*7*5)
		for i := range v {
			v[i] = float32(r.IntN(9))
		}
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Int64, dtype.Int8, dtype.Uint8} {
			in := x.ToDType(From(x, v, shape...), dt)
			for dim, n := range shape {
				stride := []int{35, 5, 1}[dim]
				for _, smallest := range []bool{false, true} {
					for _, k := range []int{0, 1, n / 2, n} {
						var want []int64 // the lines in row-major order of the other dimensions, each with k indexes
						for first := range v {
							if first/stride%n != 0 {
								continue
							}
							places := make([]int64, n)
							for i := range places {
								places[i] = int64(i)
							}
							slices.SortStableFunc(places, func(a, b int64) int {
								c := cmp.Compare(v[first+int(a)*stride], v[first+int(b)*stride])
								if smallest {
									return c
								}
								return -c
							})
							want = append(want, places[:k]...)
						}
						values, at := x.TopK(in, k, TopKOpt{Dim: new(dim - 3), Smallest: smallest})
						order := append(slices.Delete([]int{0, 1, 2}, dim, dim+1), dim)
						got, err := Read[int64](x, x.Contiguous(x.Permute(at, order...)))
						if err != nil || !slices.Equal(got, want) {
							t.Errorf("%v, dim %d, k %d, smallest %v: %v, want %v (%v)", dt, dim, k, smallest, got, want, err)
						}
						if same, err := x.Equal(values, x.Gather(in, dim, at)); err != nil || !same || values.DType() != dt {
							t.Errorf("%v, dim %d, k %d: the values are not those at the indexes (%v)", dt, dim, k, err)
						}
					}
				}
			}
		}
		values, at := x.TopK(From(x, []float32{1, float32(math.NaN()), float32(math.Inf(1)), -2}), 3, TopKOpt{Dim: new(0)})
		want(t, x, x.NanToNum(values, NanToNumOpt{NaN: 99, PosInf: 88}), 99, 88, 1)
		want(t, x, x.ToDType(at, dtype.Float32), 1, 2, 0)
		values, at = x.TopK(x.Full(nil, 3, dtype.Float32), 1, TopKOpt{})
		want(t, x, values, 3)
		want(t, x, x.ToDType(at, dtype.Float32), 0)
		values, _ = x.TopK(x.Zeros([]int{0, 3}, dtype.Float32), 2, TopKOpt{Dim: new(1)})
		if !slices.Equal(values.shape, []int{0, 2}) {
			t.Error(values.shape)
		}
	})
}

// TestTopKRefused checks the errors of TopK.
func TestTopKRefused(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := x.Ones([]int{2, 3}, dtype.Float32)
		for _, k := range []int{-1, 4, math.MaxInt, math.MinInt} {
			err := Try(func() { x.TopK(a, k, TopKOpt{Dim: new(1)}) })
			wantError(t, err, fault.Invalid, "but dimension 1 has 3 element(s); give a k from 0 to 3", "topk_test.go:")
		}
		wantError(t, Try(func() { x.TopK(x.Ones(nil, dtype.Float32), 0, TopKOpt{Dim: new(0)}) }), fault.Invalid,
			"t has no dimensions; give a k of 1")
		wantError(t, Try(func() { x.TopK(a, 1, TopKOpt{Dim: new(2)}) }), fault.Invalid, "Dimension out of range")
		wantError(t, Try(func() { x.TopK(x.ToDType(a, dtype.Complex64), 1, TopKOpt{Dim: new(1)}) }), fault.Unsupported,
			"complex numbers have no order")
		wantError(t, Try(func() { x.TopK(x.ToDType(a, dtype.Bool), 1, TopKOpt{}) }), fault.Unsupported,
			"TopK is not defined for bool tensors; convert them first with x.ToDType")
	})
}
