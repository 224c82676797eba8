package kernels

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// halved returns a copy of o, a float32 operand, in type t, and sets o to the values of the copy.
func (h *host) halved(o Operand, t dtype.DType) Operand {
	half := h.empty(t, o.Shape...)
	vs := h.readComplex(o)
	h.write(half, func(i int) complex128 { return vs[i] })
	vs = h.readComplex(half)
	h.write(o, func(i int) complex128 { return vs[i] })
	return half
}

// TestStepsScaleGradients: a step that is given a factor and gradients of several types has the bits of conversions to float32, Scale and
// the step, and launches once for every 32 tensors of one type.
func TestStepsScaleGradients(t *testing.T) {
	for _, op := range []*StepOp{SGD, AdamW, AdamAMSGrad, RMSpropCenteredMomentum} {
		t.Run(op.Name, func(t *testing.T) {
			h, rng := newHost(t), rand.New(rand.NewPCG(3, 4))
			scalars := []Scalar{FloatScalar(-1), FloatScalar(.25), FloatScalar(-.5), FloatScalar(.75), FloatScalar(.5),
				FloatScalar(-.125), FloatScalar(2), FloatScalar(1)}[:op.Scalars]
			factor := float64(float32(0.3))
			rows := Rows{Ptr: h.rows(rowOf(scalars, 0)).Ptr}
			scale := Rows{Ptr: h.rows(rowOf([]Scalar{FloatScalar(factor)}, 0)).Ptr + 8*RowLen}
			types := []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.BFloat16, dtype.Float16}
			var outs, ins, wantOuts, wantIns, wide [][]Operand
			for i := range 100 {
				n := []int{1, 3, 40, 1024, 1025, 5000, 0}[i%7]
				var in, out, want []Operand
				for j := range op.Ins {
					o := h.random(rng, dtype.Float32, n)
					if j >= 2 {
						h.write(o, func(int) complex128 { return complex(float64(rng.IntN(100)), 0) })
					}
					in = append(in, o)
				}
				wantIn := slices.Clone(in)
				if dt := types[i%len(types)]; dt != dtype.Float32 {
					in[1] = h.halved(in[1], dt)
				} else {
					wantIn[1] = h.empty(dtype.Float32, n)
					vs := h.readComplex(in[1])
					h.write(wantIn[1], func(i int) complex128 { return vs[i] })
				}
				for range op.Outs {
					out, want = append(out, h.empty(dtype.Float32, n)), append(want, h.empty(dtype.Float32, n))
				}
				outs, ins, wantOuts, wantIns = append(outs, out), append(ins, in), append(wantOuts, want), append(wantIns, wantIn)
				wide = append(wide, wantIn[1:2])
				rows.Which, scale.Which = append(rows.Which, 1), append(scale.Which, 0)
			}
			check(t, MultiTensor(h, Scale, dtype.Float32, scale, wide, wide))
			check(t, MultiTensor(h, op.PointOp, dtype.Float32, rows, wantOuts, wantIns))
			h.launches = 0
			rows.Factor = scale.Ptr
			check(t, multiRun(h, op.PointOp, dtype.Float32, rows, outs, ins))
			if h.launches != 4 { // 25 of float32, 50 of bfloat16 in two, 25 of float16
				t.Errorf("%d launches", h.launches)
			}
			for i := range outs {
				for o := range outs[i] {
					if got, want := h.read(outs[i][o]), h.read(wantOuts[i][o]); !slices.EqualFunc(got, want, same) {
						t.Fatalf("tensor %d, output %d: got %v, want %v", i, o, got, want)
					}
				}
			}
		})
	}
}

// TestMultiReduceReadsHalves: tensors in half types have the results of the same numbers in the type of the results, to the last bit.
func TestMultiReduceReadsHalves(t *testing.T) {
	sizes := []int{0, 1, 3, 128, 1000, 16384, 16385, 50001}
	for _, halves := range [][]dtype.DType{{dtype.BFloat16}, {dtype.Float32, dtype.BFloat16},
		{dtype.Float16, dtype.Float32, dtype.BFloat16, dtype.BFloat16}} {
		for _, off := range []int{0, 1} { // in elements, from where 16 bytes are aligned
			t.Run(fmt.Sprint(halves, off), func(t *testing.T) {
				h, rng := newHost(t), rand.New(rand.NewPCG(8, 9))
				var wide, narrow []Operand
				for i := range 140 {
					n := sizes[i%len(sizes)]
					if n > 20000 && i >= len(sizes) {
						n = 5
					}
					o := h.normal(rng, dtype.Float32, n+off)
					x := o
					if dt := halves[i%len(halves)]; dt != dtype.Float32 {
						x = h.halved(o, dt)
					}
					for _, o := range []*Operand{&o, &x} {
						o.Ptr += uint64(off * o.DType.Size())
						o.Shape = []int{n}
					}
					wide, narrow = append(wide, o), append(narrow, x)
				}
				got, want := h.empty(dtype.Float32, len(wide)), h.empty(dtype.Float32, len(wide))
				check(t, MultiReduce(h, Norm2, dtype.Float32, nil, want, wide))
				h.launches = 0
				check(t, MultiReduce(h, Norm2, dtype.Float32, nil, got, narrow))
				if h.launches != 4 {
					t.Errorf("%d launches", h.launches)
				}
				if got, want := h.read(got), h.read(want); !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			})
		}
	}
}
