package core

import (
	"math/cmplx"
	"math/rand/v2"
	"testing"
)

// TestComplexFunctions compares functions of complex numbers with math/cmplx in every quadrant, near the unit circle and far from it.
func TestComplexFunctions(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(3, 4))
		var z, w []complex128
		for _, size := range []float64{0.05, 1, 1 + 1e-6, 4, 30} {
			for range 40 {
				z = append(z, cmplx.Rect(size*(1+0.1*r.Float64()*r.Float64()), 6.3*r.Float64()))
				w = append(w, complex(4*r.Float64()-2, 4*r.Float64()-2))
			}
		}
		z32, w32 := make([]complex64, len(z)), make([]complex64, len(z))
		for i := range z {
			z32[i], w32[i] = complex64(z[i]), complex64(w[i])
		}
		a, b, a32, b32 := From(x, z), From(x, w), From(x, z32), From(x, w32)
		for name, c := range map[string]struct {
			f    func(a, b *Tensor) *Tensor
			want func(a, b complex128) complex128
		}{
			"log":   {func(a, _ *Tensor) *Tensor { return x.Log(a) }, func(a, _ complex128) complex128 { return cmplx.Log(a) }},
			"sqrt":  {func(a, _ *Tensor) *Tensor { return x.Sqrt(a) }, func(a, _ complex128) complex128 { return cmplx.Sqrt(a) }},
			"atanh": {func(a, _ *Tensor) *Tensor { return x.Atanh(a) }, func(a, _ complex128) complex128 { return cmplx.Atanh(a) }},
			"atan":  {func(a, _ *Tensor) *Tensor { return x.Atan(a) }, func(a, _ complex128) complex128 { return cmplx.Atan(a) }},
			"asin":  {func(a, _ *Tensor) *Tensor { return x.Asin(a) }, func(a, _ complex128) complex128 { return cmplx.Asin(a) }},
			"acos":  {func(a, _ *Tensor) *Tensor { return x.Acos(a) }, func(a, _ complex128) complex128 { return cmplx.Acos(a) }},
			"acosh": {func(a, _ *Tensor) *Tensor { return x.Acosh(a) }, func(a, _ complex128) complex128 { return cmplx.Acosh(a) }},
			"tanh":  {func(a, _ *Tensor) *Tensor { return x.Tanh(a) }, func(a, _ complex128) complex128 { return cmplx.Tanh(a) }},
			"exp":   {func(a, _ *Tensor) *Tensor { return x.Exp(a) }, func(a, _ complex128) complex128 { return cmplx.Exp(a) }},
			"div":   {x.Div, func(a, b complex128) complex128 { return a / b }},
			"pow":   {x.Pow, cmplx.Pow},
			"pow 0": {func(a, _ *Tensor) *Tensor { return x.PowS(a, 0) }, func(complex128, complex128) complex128 { return 1 }},
			"0 pow": {func(_, b *Tensor) *Tensor {
				return x.Pow(x.MulS(b, 0), x.AddS(b, 2.5))
			}, func(complex128, complex128) complex128 { return 0 }},
			"sigmoid": {func(a, _ *Tensor) *Tensor {
				return x.Sigmoid(a)
			}, func(a, _ complex128) complex128 { return 1 / (1 + cmplx.Exp(-a)) }},
		} {
			got, err := Read[complex128](x, c.f(a, b))
			if err != nil {
				t.Fatal(err)
			}
			got32, err := Read[complex64](x, c.f(a32, b32))
			if err != nil {
				t.Fatal(err)
			}
			for i := range z {
				if w := c.want(z[i], w[i]); cmplx.Abs(got[i]-w) > 1e-12*(cmplx.Abs(w)+1e-3) {
					t.Errorf("%s of (%v, %v) in complex128 is %v, want %v", name, z[i], w, got[i], w)
				}
				p, q := complex128(z32[i]), complex128(w32[i])
				if w := c.want(p, q); cmplx.Abs(complex128(got32[i])-w) > 2e-5*(cmplx.Abs(w)+1e-3) {
					t.Errorf("%s of (%v, %v) in complex64 is %v, want %v", name, p, q, got32[i], w)
				}
			}
		}
	})
}
