package kernels

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// TestMultiTensor: MultiTensor over many tensors gives the bits of Pointwise for each, in one launch per 32 dense tensors.
func TestMultiTensor(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16} {
		for _, op := range []*PointOp{SGD.PointOp, SGDMomentum.PointOp, SGDNesterov.PointOp, Adam.PointOp, AdamWAMS.PointOp,
			RMSpropCenteredMomentum.PointOp, Rprop.PointOp, Mul} {
			t.Run(op.Name+" "+dt.String(), func(t *testing.T) {
				h := newHost(t)
				rng := rand.New(rand.NewPCG(1, uint64(dt)))
				scalars := []Scalar{FloatScalar(-1), FloatScalar(.25), FloatScalar(-.5), FloatScalar(.75), FloatScalar(.5),
					FloatScalar(-.125), FloatScalar(2), FloatScalar(1)}[:op.Scalars]
				rows := Rows{Ptr: h.rows(rowOf(scalars, 0)).Ptr}
				var outs, ins, wantOuts [][]Operand
				for i := range 70 {
					n := []int{1, 3, 40, 1024, 1025, 5000, 0}[i%7]
					var in, out, want []Operand
					for j := range op.Ins {
						o := h.random(rng, dt, n+1)
						if j >= 2 && op != SGDMomentum.PointOp && op != SGDNesterov.PointOp {
							h.write(o, func(int) complex128 { return complex(float64(rng.IntN(100)), 0) })
						}
						o.Shape, o.Stride = []int{n}, []int{1}
						in = append(in, o)
					}
					for range op.Outs {
						out, want = append(out, h.empty(dt, in[0].Shape...)), append(want, h.empty(dt, in[0].Shape...))
					}
					if err := Pointwise(h, op, dt, scalars, want, in); err != nil {
						t.Fatal(err)
					}
					if i%2 == 0 { // in place, as in optimizers
						out[0] = in[0]
						for j := 1; j < op.Outs; j++ {
							out[j] = in[j+1]
						}
					}
					outs, ins, wantOuts = append(outs, out), append(ins, in), append(wantOuts, want)
					rows.Which = append(rows.Which, 1)
				}
				h.launches = 0
				if err := MultiTensor(h, op, dt, rows, outs, ins); err != nil {
					t.Fatal(err)
				}
				if h.launches != 2 { // every seventh is empty
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
}

func TestMultiTensorErrors(t *testing.T) {
	h := newHost(t)
	f := func(dt dtype.DType) []Operand { return []Operand{h.empty(dt, 4)} }
	pair := func(dt dtype.DType) []Operand { return append(f(dt), f(dt)...) }
	odd := h.empty(dtype.Float32, 4)
	odd.Ptr++
	for _, c := range []struct {
		op        *PointOp
		outs, ins [][]Operand
		want      string
	}{
		{Mul, [][]Operand{f(dtype.Float32)}, nil, "1 lists of outputs and 0 rows for 0"},
		{Mul, [][]Operand{f(dtype.Float32)}, [][]Operand{f(dtype.Float32)}, "takes 1 outputs and 2 inputs"},
		{Mul, [][]Operand{f(dtype.Float32), nil}, [][]Operand{pair(dtype.Float32), pair(dtype.Float32)}, "got 0 and 2"},
		{Mul, [][]Operand{f(dtype.Float32), f(dtype.Float32)},
			[][]Operand{pair(dtype.Float32), slices.Repeat(f(dtype.Float32), maxOperands+1)}, "got 1 and 11"},
		{Mul, [][]Operand{{sliced(h.empty(dtype.Float32, 8), 0, 0, 4, 2)}}, [][]Operand{pair(dtype.Float32)},
			"of tensor 0 do not lie alike"},
		{Arange, nil, nil, "no meaning over several tensors"},
		{Mul, [][]Operand{f(dtype.Float32), f(dtype.Float64)}, [][]Operand{pair(dtype.Float32), pair(dtype.Float32)},
			"of tensor 1 is float64"},
		{Add, [][]Operand{f(dtype.Float32), f(dtype.Float32), f(dtype.Float32), f(dtype.Float32), f(dtype.Float32)},
			[][]Operand{pair(dtype.Float32), pair(dtype.Float64), pair(dtype.BFloat16), pair(dtype.Float16), pair(dtype.Int64)},
			"the inputs of 5 tensors have more than 4 combinations of types"},
		{Mul, [][]Operand{{odd}}, [][]Operand{pair(dtype.Float32)}, "not a multiple of its element size"},
	} {
		err := MultiTensor(h, c.op, dtype.Float32, Rows{Which: make([]int32, len(c.ins))}, c.outs, c.ins)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}
