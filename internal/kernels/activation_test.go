package kernels

import (
	"math"
	"testing"

	"tenon.dev/dtype"
)

// TestGELUTanhAndSiLU compares both functions and their gradients with the definitions, over the whole range of arguments and at its
// extremes.
func TestGELUTanhAndSiLU(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	var xs []float64
	for x := -30.0; x <= 30; x += 1.0 / 64 {
		xs = append(xs, x)
	}
	xs = append(xs, 0, math.Copysign(0, -1), 1e-30, -1e-30, 1e-42, -1e-42, 100, -100, 1e9, -1e9, 1e13, -1e13, 3e38, -3e38, inf, -inf, nan)
	gelu := func(x float64) float64 {
		u := math.Sqrt(2/math.Pi) * (x + geluCubic*x*x*x)
		return x / (1 + math.Exp(-2*u))
	}
	geluSlope := func(x float64) float64 {
		u, d := math.Sqrt(2/math.Pi)*(x+geluCubic*x*x*x), math.Sqrt(2/math.Pi)*(1+3*geluCubic*x*x)
		s, r := 1/(1+math.Exp(-2*u)), 1/(1+math.Exp(2*u))
		if s*r == 0 && math.Abs(x) < inf {
			return s
		}
		return s + 2*x*s*r*d
	}
	silu := func(x float64) float64 { return x * sigmoidRef(x) }
	siluSlope := func(x float64) float64 { return sigmoidRef(x) * (1 + x*(1-sigmoidRef(x))) }
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64} {
		tol := map[dtype.DType]float64{dtype.Float32: 1e-6, dtype.Float64: 1e-14}[dt]
		for _, c := range []struct {
			op       *PointOp
			f        func(x float64) float64
			finite   bool // huge arguments are outside the range of the derivative's formula
			gradient bool
		}{{GELUTanh, gelu, false, false}, {GELUTanhBackward, geluSlope, true, true}, {SiLU, silu, false, false},
			{SiLUBackward, siluSlope, true, true}} {
			h := newHost(t)
			x := h.of(dt, xs, len(xs))
			ins, out := []Operand{x}, h.empty(dt, len(xs))
			if c.gradient {
				ones := make([]float64, len(xs))
				for i := range ones {
					ones[i] = 1
				}
				ins = []Operand{h.of(dt, ones, len(xs)), x}
			}
			check(t, Pointwise(h, c.op, dt, nil, []Operand{out}, ins))
			got := h.read(out)
			for i, v := range h.read(x) {
				if c.finite && math.Abs(v) > 1e18 && v == v {
					continue
				}
				if want := c.f(v); !close(got[i], want, tol) {
					t.Fatalf("%s of %v in %v is %v, want %v", c.op.Name, v, dt, got[i], want)
				}
				if !c.gradient && v == 0 && math.Signbit(got[i]) != math.Signbit(v) {
					t.Errorf("%s of %v is %v", c.op.Name, v, got[i])
				}
			}
		}
	}
}
