package compile_test

import (
	"bytes"
	"math"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// TestLargeAnglesAmongSmallOnes: the sine of a large number takes a branch that the other elements of its thread do not need. Wherever it
// lies, in one kernel or several, its value is right, and those around it are the ones that they have without it.
func TestLargeAnglesAmongSmallOnes(t *testing.T) {
	x := openSim(t)
	ng := x.NoGrad()
	const rows, cols = 40, 67 // two tiles of 1024 elements, and a rest
	large := []float64{1 << 17, -3e5, 1e7, -1e22, 3e38, math.Inf(1), math.NaN()}
	small := make([]float32, rows*cols)
	for i := range small {
		small[i] = float32(i%41-20) / 3
	}
	mixed := append([]float32(nil), small...)
	for i := range large {
		mixed[i*331+5] = float32(large[i])
	}
	run := map[string]func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor{
		"sine":           func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(a) },
		"sine and sum":   func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(x.Sin(a), 1) },
		"two sines":      func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(x.Sin(a), x.Cos(a)) },
		"sine's sigmoid": func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sigmoid(x.Exp(x.Sin(a))) },
		"tangent":        func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Exp(x.Tanh(x.Tan(a))) },
		"transposed":     func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sigmoid(x.Cos(x.Transpose(a, 0, 1))) },
	}
	for name, f := range run {
		for _, dt := range []tenon.DType{tenon.Float32, tenon.Float64, tenon.BFloat16} {
			both := [2]*tenon.Tensor{ng.ToDType(tenon.From(x, mixed, rows, cols), dt), ng.ToDType(tenon.From(x, small, rows, cols), dt)}
			size := dt.Size()
			var eager [2][]byte
			for i, a := range both {
				y := ng.Contiguous(f(ng, a))
				b, err := x.Bytes(y)
				must(t, err)
				eager[i] = b
			}
			r := compile.New()
			for i, a := range both {
				for range 3 {
					var y *tenon.Tensor
					must(t, r.Do(ng, func(x *tenon.Exec) error { y = x.Keep(x.Contiguous(f(x, a))); return nil }))
					b, err := x.Bytes(y)
					must(t, err)
					if !bytes.Equal(b, eager[i]) {
						t.Errorf("%s, %v: the compiled call gives other bits than the eager one", name, dt)
					}
					y.Close()
				}
			}
			changed := 0
			for i := 0; i < len(small); i++ {
				if !bytes.Equal(eager[0][i*size:(i+1)*size], eager[1][i*size:(i+1)*size]) {
					changed++
				}
			}
			if changed > len(large) {
				t.Errorf("%s, %v: %d large numbers change %d results", name, dt, len(large), changed)
			}
		}
	}
	got, err := tenon.Read[float32](x, ng.Sin(tenon.From(x, mixed)))
	must(t, err)
	for i, v := range mixed {
		want := math.Sin(float64(v))
		if math.IsNaN(want) != math.IsNaN(float64(got[i])) || math.Abs(float64(got[i])-want) > 2e-7 {
			t.Errorf("sin %v is %v, not %v", v, got[i], want)
		}
	}
}
