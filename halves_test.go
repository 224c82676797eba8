package tenon_test

import (
	"math"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
)

// TestHalfFunctions compares functions that are shorter for half types with correctly rounded results, at all arguments: a few of them
// differ, by one unit in the last place.
func TestHalfFunctions(t *testing.T) {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	gelu := func(x float64) float64 {
		return x * sigmoid(2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))
	}
	functions := []struct {
		name string
		f    func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor
		want func(x float64) float64
	}{
		{"exp", (*tenon.Exec).Exp, math.Exp},
		{"sigmoid", (*tenon.Exec).Sigmoid, sigmoid},
		{"silu", (*tenon.Exec).SiLU, func(x float64) float64 { return x * sigmoid(x) }},
		{"gelu tanh", (*tenon.Exec).GELUTanh, gelu},
		{"derivative of silu", derivative((*tenon.Exec).SiLU), func(x float64) float64 {
			s := sigmoid(x)
			return s * (1 + x*(1-s))
		}},
		{"derivative of gelu tanh", derivative((*tenon.Exec).GELUTanh), func(x float64) float64 {
			if math.Abs(x) >= 0x1p64 {
				return math.NaN() // as in PyTorch: 0 times the square, which is infinite in float32
			}
			s := sigmoid(2 * math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x))
			return s + x*s*(1-s)*2*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
		}},
	}
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, f := range functions {
		bf16 := make([]dtype.BF16, 1<<16)
		f16 := make([]dtype.F16, 1<<16)
		for i := range bf16 {
			bf16[i], f16[i] = dtype.BF16(i), dtype.F16(i)
		}
		results := read[dtype.BF16](t, x, f.f(x, tenon.From(x, bf16, 1<<16)))
		halfTable(t, f.name+" bf16", bf16, results, f.want, dtype.BF16FromFloat64)
		results16 := read[dtype.F16](t, x, f.f(x, tenon.From(x, f16, 1<<16)))
		halfTable(t, f.name+" f16", f16, results16, f.want, dtype.F16FromFloat64)
	}
}

// derivative returns the derivative of f by its backward pass.
func derivative(f func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor) func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
	return func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		a.SetRequiresGrad(true)
		if err := x.Backward(f(x, a), tenon.BackwardOpt{Gradient: x.OnesLike(a)}); err != nil {
			panic(err)
		}
		return a.Grad()
	}
}

func halfTable[T interface {
	~uint16
	Float32() float32
}](t *testing.T, name string, args, got []T, f func(float64) float64, round func(float64) T) {
	t.Helper()
	wrong, worse := 0, 0
	for i, a := range args {
		want := round(f(float64(a.Float32())))
		g, w := got[i].Float32(), want.Float32()
		if g == w || g != g && w != w { // zeros of either sign
			continue
		}
		wrong++
		if d := int(got[i]) - int(want); d != 1 && d != -1 {
			if worse++; worse < 10 {
				t.Errorf("%s of %v is %v, want %v", name, a.Float32(), g, w)
			}
		}
	}
	t.Logf("%s: %d of 65536 results are not correctly rounded", name, wrong)
	if wrong > 30 {
		t.Errorf("%s: %d of 65536 results are not correctly rounded", name, wrong)
	}
}

func read[T dtype.Element](t *testing.T, x *tenon.Exec, a *tenon.Tensor) []T {
	t.Helper()
	out, err := tenon.Read[T](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
