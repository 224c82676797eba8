package bench

import (
	"testing"

	"tenon.dev"
	"tenon.dev/internal/benchrun"
)

// TestProductSizes multiplies matrices of many sizes, replayed from a graph, so that small ones do not wait for the host.
func TestProductSizes(t *testing.T) {
	x := onGPU(t).NoGrad()
	x.Device().Generator().SetSeed(3)
	for _, p := range benchrun.Products() {
		dt := map[string]tenon.DType{"bf16": tenon.BFloat16, "f16": tenon.Float16}[p.Type]
		if p.Type == "f32" || p.Type == "tf32" {
			dt = tenon.Float32
		}
		x.TF32(p.Type == "tf32").Scope(func(x *tenon.Exec) {
			a, b := x.RandN([]int{p.M, p.K}, dt), x.RandN([]int{p.K, p.N}, dt)
			work := 2 * float64(p.M) * float64(p.K) * float64(p.N)
			calls := max(1, min(20, int(4e11/work)))
			s := replayed(t, x, calls, func(x *tenon.Exec, _ int) { x.MM(a, b) })
			recordFigure(p.Name(), "TFLOP/s", rate(s, work*float64(calls)))
		})
	}
}

// TestModelProducts measures the products of GPT-2's layers, forward and both gradients, each repeated in a graph.
func TestModelProducts(t *testing.T) {
	x := onGPU(t).NoGrad()
	x.Device().Generator().SetSeed(3)
	for _, p := range benchrun.ModelProducts() {
		x.Scope(func(x *tenon.Exec) {
			in, w := x.RandN([]int{benchrun.ModelRows, p.K}, tenon.BFloat16), x.RandN([]int{p.N, p.K}, tenon.BFloat16)
			grad := x.RandN([]int{benchrun.ModelRows, p.N}, tenon.BFloat16)
			work := 2 * float64(benchrun.ModelRows) * float64(p.K) * float64(p.N)
			calls := max(1, min(20, int(4e11/work)))
			for i, f := range []func(x *tenon.Exec) *tenon.Tensor{
				func(x *tenon.Exec) *tenon.Tensor { return x.Linear(in, w, nil) },
				func(x *tenon.Exec) *tenon.Tensor { return x.MM(grad, w) },
				func(x *tenon.Exec) *tenon.Tensor { return x.MM(x.T(grad), in) },
			} {
				s := replayed(t, x, calls, func(x *tenon.Exec, _ int) { f(x) })
				recordFigure(p.Name(benchrun.ModelDirections[i]), "TFLOP/s", rate(s, work*float64(calls)))
			}
		})
	}
}

// TestRowProducts measures products of one row, each repeated in a graph.
func TestRowProducts(t *testing.T) {
	x := onGPU(t).NoGrad()
	x.Device().Generator().SetSeed(3)
	for _, p := range benchrun.RowProducts() {
		x.Scope(func(x *tenon.Exec) {
			in := x.RandN([]int{1, p.K}, tenon.BFloat16)
			matrices := make([]*tenon.Tensor, max(2, benchrun.RowBytes/(2*p.K*p.N)))
			for i := range matrices {
				matrices[i] = x.RandN([]int{p.N, p.K}, tenon.BFloat16)
			}
			calls := len(matrices) * (1 + 64/len(matrices)) // enough for the start of a graph not to count
			s := replayed(t, x, calls, func(x *tenon.Exec, i int) { x.Linear(in, matrices[i%len(matrices)], nil) })
			for i := range s {
				s[i] *= 1e6 / float64(calls)
			}
			recordFigure(p.Name(), "µs", s)
		})
	}
}
