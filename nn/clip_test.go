package nn_test

import (
	"math"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
)

// clipped is a module of three parameters, of which the last has no gradient.
type clipped struct{ A, B, C *nn.Param }

func TestClipGrad(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		zeros := func(dt tenon.DType, n int) *nn.Param { return nn.NewParam(x.Zeros([]int{n}, dt)) }
		m := clipped{zeros(tenon.Float32, 2), zeros(tenon.BFloat16, 1), zeros(tenon.Float32, 1)}
		defer nn.Close(&m)
		set := func() {
			m.A.SetGrad(tenon.From(x, []float32{3, -4}))
			m.B.SetGrad(x.Full([]int{1}, 12, tenon.BFloat16))
		}
		want := func(norm *tenon.Tensor, of float64, a0, a1, b float32) {
			t.Helper()
			wantFloats(t, x, x.ToDType(norm, tenon.Float32), float32(of))
			wantFloats(t, x, m.A.Grad(), a0, a1)
			wantFloats(t, x, x.ToDType(m.B.Grad(), tenon.Float32), b)
		}
		params := func(yield func(string, *nn.Param) bool) { _ = yield("A", m.A) && yield("B", m.B) && yield("C", m.C) }
		set()
		want(nn.ClipGradNorm(x, params, 100), 13, 3, -4, 12)
		want(nn.ClipGradNorm(x, params, 6.5), 13, 1.5, -2, 6)
		set()
		want(nn.ClipGradNorm(x, params, 6, nn.ClipOpt{Norm: math.Inf(1)}), 12, 1.5, -2, 6)
		set()
		want(nn.ClipGradNorm(x, params, 9.5, nn.ClipOpt{Norm: 1}), 19, 1.5, -2, 6)
		nn.ClipGradValue(x, params, 1.75)
		want(x.Zeros(nil, tenon.Float32), 0, 1.5, -1.75, 1.75)
		wantFloats(t, x, nn.ClipGradNorm(x, func(yield func(string, *nn.Param) bool) { yield("C", m.C) }, 1), 0)
		if m.C.Grad() != nil {
			t.Error("a parameter without a gradient has got one")
		}
		wantError(t, func() { nn.ClipGradNorm(x, nil, 1) }, "the parameters are nil")
		wantError(t, func() { nn.ClipGradValue(x, nil, 1) }, "the parameters are nil")
		wantError(t, func() { nn.ClipGradNorm(x, params, -1) }, "ClipGradNorm", "at most -1")
		wantError(t, func() { nn.ClipGradNorm(x, params, math.NaN()) }, "not negative")
		wantError(t, func() { nn.ClipGradValue(x, params, math.NaN()) }, "ClipGradValue")
	})
}
