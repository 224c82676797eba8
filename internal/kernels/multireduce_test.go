package kernels

import (
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// TestMultiReduce: MultiReduce gives the results of Reduce for each tensor, except for the order of additions, in two launches for every
// 128.
func TestMultiReduce(t *testing.T) {
	sizes := []int{0, 1, 3, 128, 1000, 16384, 16385, 50001}
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Float16} {
		for _, c := range []struct {
			op      *ReduceOp
			scalars []Scalar
		}{{Norm2, nil}, {Norm1, nil}, {Norm0, nil}, {NormInf, nil}, {NormP, []Scalar{FloatScalar(3)}}} {
			t.Run(c.op.Name+" "+dt.String(), func(t *testing.T) {
				h, rng := newHost(t), rand.New(rand.NewPCG(7, uint64(dt)))
				const count = 140
				var ins []Operand
				for i := range count {
					n := sizes[i%len(sizes)]
					if n > 20000 && i >= len(sizes) {
						n = 5
					}
					o := h.normal(rng, dt, n+i%3)
					ins = append(ins, Operand{Ptr: o.Ptr + uint64(i%3*dt.Size()), DType: dt, Shape: []int{n}, Stride: []int{1}})
				}
				out, want := h.empty(dt, count), h.empty(dt, count)
				for i := range ins {
					one := at(want.Ptr+uint64(i*dt.Size()), dt, 1)
					if ins[i].Shape[0] == 0 {
						h.write(one, func(int) complex128 { return 0 })
						continue
					}
					check(t, Reduce(h, c.op, dt, c.scalars, []Operand{one}, []Operand{ins[i]}, []bool{true}))
				}
				for _, list := range [][]Operand{ins, ins[:2], ins[3:4]} { // aligned in the last list
					h.launches = 0
					check(t, MultiReduce(h, c.op, dt, c.scalars, out, list))
					if most := 2 * ceilDiv(len(list), multiReduceTensors); h.launches > most {
						t.Errorf("%d launches for %d tensors", h.launches, len(list))
					}
					got, want := h.read(out), h.read(want)
					from := 0
					if len(list) == 1 {
						from = 3
					}
					for i := range list {
						a, b := got[i], want[from+i]
						if limit := 1e-5 * math.Abs(b); math.Abs(a-b) > limit && (dt.Size() > 2 || math.Abs(a-b) > 1e-2*math.Abs(b)) ||
							math.IsNaN(a) {
							t.Errorf("tensor %d of %v: %v, want %v", i, list[i].Shape, a, b)
						}
					}
				}
			})
		}
	}
	h := newHost(t)
	a, b := h.empty(dtype.Float32, 4), h.empty(dtype.Float64, 4)
	if MultiReduce(h, Norm2, dtype.Float32, nil, a, []Operand{a, b}) == nil ||
		MultiReduce(h, NormP, dtype.Float32, nil, a, []Operand{a}) == nil {
		t.Error("tensors of two types, or a missing number, are taken")
	}
}
