package tenon_test

import (
	"testing"

	"tenon.dev"
)

// Hooks see and return the face's tensors.
func TestHooks(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		a := tenon.From(x, []float32{1, 2}).SetRequiresGrad(true)
		a.RegisterHook(func(x *tenon.Exec, g *tenon.Tensor) *tenon.Tensor { return x.MulS(g, 3) })
		stepped := false
		a.RegisterPostAccumulateGradHook(func(x *tenon.Exec, p *tenon.Tensor) { stepped = p == a })
		var loss *tenon.Tensor
		x.SavedTensorHooks(
			func(x *tenon.Exec, t *tenon.Tensor) any { return x.MulS(t, 2) },
			func(x *tenon.Exec, v any) *tenon.Tensor { return x.MulS(v.(*tenon.Tensor), 0.5) },
			func(x *tenon.Exec) { loss = x.Sum(x.Mul(a, a), nil) })
		if err := x.Backward(loss); err != nil {
			t.Fatal(err)
		}
		got, err := tenon.Read[float32](x, a.Grad())
		if err != nil || got[0] != 6 || got[1] != 12 || !stepped {
			t.Errorf("gradient %v, %v, stepped %v; want [6 12]", got, err, stepped)
		}
	})
}
