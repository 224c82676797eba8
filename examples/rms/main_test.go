package main

import (
	"math"
	"testing"

	"tenon.dev"
	"tenon.dev/tenontest"
)

// Results and gradients equal those of RMSNorm, whatever part of a row remains for the threads' last iteration.
func TestFurthest(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		for _, columns := range []int{1, 31, 32, 33, 300} {
			distances, err := furthest(x, 5, columns)
			if err != nil {
				t.Fatal(err)
			}
			for i, d := range distances {
				if !(d < 1e-4) {
					t.Errorf("%d columns: %d lies %g away", columns, i, d)
				}
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
			out := normalize(x, inputs[0], inputs[1], eps)
			return item(t, x, x.Sum(x.Mul(out, weights), nil, tenon.SumOpt{DType: tenon.Float64}))
		}
		for i, in := range inputs {
			in.SetRequiresGrad(true)
			out := normalize(x, inputs[0], inputs[1], eps)
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
