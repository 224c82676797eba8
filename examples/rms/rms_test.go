package rms

import (
	"math"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/tenontest"
)

// The result and the gradients equal those of RMSNorm, whatever part of a row remains for the threads' last iteration, and also if only one
// gradient is needed.
func TestRMSNorm(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		for _, columns := range []int{1, 31, 32, 33, 300} {
			both := []*tenon.Tensor{x.RandN([]int{3, 5, columns}, tenon.Float32), x.RandN([]int{columns}, tenon.Float32)}
			opt := tenon.GradOpt{Gradients: []*tenon.Tensor{x.RandN([]int{3, 5, columns}, tenon.Float32)}}
			for _, of := range [][]*tenon.Tensor{both, both[:1], both[1:]} {
				for _, leaf := range of {
					leaf.SetRequiresGrad(true)
				}
				own, op := Norm(x, both[0], both[1], 1e-5), x.RMSNorm(both[0], both[1], []int{columns}, tenon.NormOpt{Eps: 1e-5})
				got, err := x.Grad([]*tenon.Tensor{own}, of, opt)
				if err != nil {
					t.Fatal(err)
				}
				want, err := x.Grad([]*tenon.Tensor{op}, of, opt)
				if err != nil {
					t.Fatal(err)
				}
				for i, g := range append(got, own) {
					tenontest.AssertClose(t, x, g, append(want, op)[i], tenontest.Tolerance{Absolute: 1e-4})
				}
				for _, leaf := range of {
					leaf.SetRequiresGrad(false)
				}
			}
		}
	}, tenon.Sim(0))
}

// A matrix without rows, for which there are no blocks, has a result and gradients without rows.
func TestNoRows(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		in, weight := x.Zeros([]int{0, 32}, tenon.Float32), x.Ones([]int{32}, tenon.Float32)
		in.SetRequiresGrad(true)
		out := Norm(x, in, weight, 1e-5)
		if err := x.Backward(x.Sum(out, nil)); err != nil {
			t.Fatal(err)
		}
		tenontest.AssertEqual(t, x, out, in)
		tenontest.AssertEqual(t, x, in.Grad(), in)
	}, tenon.Sim(0))
}

// Rows without columns have a result and gradients without elements, and a weight of another length is refused.
func TestOtherWeights(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		in, weight := x.Zeros([]int{3, 0}, tenon.Float32), x.Ones([]int{0}, tenon.Float32)
		in.SetRequiresGrad(true)
		weight.SetRequiresGrad(true)
		out := Norm(x, in, weight, 1e-5)
		if err := x.Backward(x.Sum(out, nil)); err != nil {
			t.Fatal(err)
		}
		tenontest.AssertEqual(t, x, out, in)
		tenontest.AssertEqual(t, x, in.Grad(), in)
		tenontest.AssertEqual(t, x, weight.Grad(), x.Zeros([]int{0}, tenon.Float32))
		for _, columns := range []int{0, 1, 2, 9} {
			weight := x.Ones([]int{columns}, tenon.Float32)
			if err := tenon.Try(func() { Norm(x, x.Ones([]int{3, 3}, tenon.Float32), weight, 1e-5) }); fault.KindOf(err) != fault.Invalid {
				t.Errorf("a weight of %d columns for a matrix of 3: %v", columns, err)
			}
		}
	}, tenon.Sim(0))
}

// The gradients equal central differences of the result.
func TestNumericGradient(t *testing.T) {
	const rows, columns, eps, step = 2, 35, 1e-3, 1e-2
	tenontest.Run(t, func(x *tenon.Exec) {
		x.Device().Generator().SetSeed(1)
		inputs := []*tenon.Tensor{x.RandN([]int{rows, columns}, tenon.Float32), x.RandN([]int{columns}, tenon.Float32)}
		weights := x.RandN([]int{rows, columns}, tenon.Float32)
		sum := func() float64 {
			out := Norm(x, inputs[0], inputs[1], eps)
			return item(t, x, x.Sum(x.Mul(out, weights), nil, tenon.SumOpt{DType: tenon.Float64}))
		}
		for i, in := range inputs {
			in.SetRequiresGrad(true)
			out := Norm(x, inputs[0], inputs[1], eps)
			gradients, err := x.Grad([]*tenon.Tensor{out}, []*tenon.Tensor{in}, tenon.GradOpt{Gradients: []*tenon.Tensor{weights}})
			if err != nil {
				t.Fatal(err)
			}
			in.SetRequiresGrad(false)
			for n := 0; n < in.Numel(); n += 7 {
				element := x.Narrow(x.Flatten(in, 0, -1), 0, n, 1)
				x.AddSInto(element, element, step)
				above := sum()
				x.AddSInto(element, element, -2*step)
				slope := (above - sum()) / (2 * step)
				x.AddSInto(element, element, step)
				got := item(t, x, x.Index(x.Flatten(gradients[0], 0, -1), n))
				if math.Abs(got-slope) > 2e-3*(1+math.Abs(slope)) {
					t.Errorf("input %d, element %d: got %g, want %g", i, n, got, slope)
				}
			}
		}
	}, tenon.Sim(0))
}

func item(t *testing.T, x *tenon.Exec, a *tenon.Tensor) float64 {
	t.Helper()
	v, err := x.Item(a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
