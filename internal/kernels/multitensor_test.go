package kernels

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// TestMultiTensor: MultiTensor and MultiTensorRun over many tensors give the bits of Pointwise for each, in one launch per 32 tensors.
func TestMultiTensor(t *testing.T) {
	sizes := []int{1, 3, 40, 1024, 1025, 5000}
	for _, c := range []struct {
		name  string
		run   func(is Issuer, op *PointOp, compute dtype.DType, rows Rows, outs, ins [][]Operand) error
		sizes []int
		types []dtype.DType
	}{
		{"MultiTensor", MultiTensor, append(sizes, 0), []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16}},
		{"MultiTensorRun", multiRun, sizes, []dtype.DType{dtype.Float32}},
		{"MultiTensorRun with empty tensors", multiRun, append(sizes, 0), []dtype.DType{dtype.BFloat16}},
	} {
		for _, dt := range c.types {
			for _, op := range []*PointOp{SGD.PointOp, SGDMomentum.PointOp, SGDNesterov.PointOp, Adam.PointOp, AdamWAMS.PointOp,
				RMSpropCenteredMomentum.PointOp, Rprop.PointOp, Mul} {
				t.Run(c.name+" "+op.Name+" "+dt.String(), func(t *testing.T) {
					h := newHost(t)
					rows, outs, ins, wantOuts := multiCase(t, h, op, dt, c.sizes)
					h.launches = 0
					if err := c.run(h, op, dt, rows, outs, ins); err != nil {
						t.Fatal(err)
					}
					if h.launches != 2 { // of 60 tensors that are not empty
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
}

// multiCase returns the operands of op for ten tensors of each size, and outputs as Pointwise computes them.
func multiCase(t *testing.T, h *host, op *PointOp, dt dtype.DType, sizes []int) (rows Rows, outs, ins, wantOuts [][]Operand) {
	rng := rand.New(rand.NewPCG(1, uint64(dt)))
	scalars := []Scalar{FloatScalar(-1), FloatScalar(.25), FloatScalar(-.5), FloatScalar(.75), FloatScalar(.5),
		FloatScalar(-.125), FloatScalar(2), FloatScalar(1)}[:op.Scalars]
	rows.Ptr = h.rows(rowOf(scalars, 0)).Ptr
	for i := range 10 * len(sizes) {
		n := sizes[i%len(sizes)]
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
		check(t, Pointwise(h, op, dt, scalars, want, in))
		if i%2 == 0 { // in place, as in optimizers
			out[0] = in[0]
			for j := 1; j < op.Outs; j++ {
				out[j] = in[j+1]
			}
		}
		outs, ins, wantOuts = append(outs, out), append(ins, in), append(wantOuts, want)
		rows.Which = append(rows.Which, 1)
	}
	return rows, outs, ins, wantOuts
}

// multiRun is MultiTensorRun for operands that are listed as MultiTensor takes them.
func multiRun(is Issuer, op *PointOp, compute dtype.DType, rows Rows, outs, ins [][]Operand) error {
	var sizes []int
	for i := range ins {
		sizes = append(sizes, ins[i][0].Numel())
	}
	columns := func(list [][]Operand) []Column {
		cs := make([]Column, len(list[0]))
		for i := range list {
			for j, o := range list[i] {
				cs[j].Ptrs, cs[j].Types = append(cs[j].Ptrs, o.Ptr), append(cs[j].Types, o.DType)
			}
		}
		for j := range cs {
			if c := &cs[j]; len(slices.Compact(slices.Clone(c.Types))) == 1 {
				c.Types = c.Types[:1]
			}
		}
		return cs
	}
	return MultiTensorRun(is, op, compute, rows, sizes, columns(outs), columns(ins))
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
	for want, c := range map[string][2][]Operand{
		"takes 1 outputs and 2 inputs, got 1 and 1":   {f(dtype.Float32), f(dtype.Float32)},
		"which is not a multiple of its element size": {{odd}, pair(dtype.Float32)},
	} {
		err := multiRun(h, Mul, dtype.Float32, Rows{Which: []int32{0}}, [][]Operand{c[0]}, [][]Operand{c[1]})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
