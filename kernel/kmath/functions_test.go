package kmath_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/kernel"
	"tenon.dev/kernel/kmath"
)

// functions are those of one operand with the operations of the same name.
var functions = []struct {
	name string
	f    func(x kernel.Value) kernel.Value
	op   func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor
}{
	{"Exp", kmath.Exp, (*tenon.Exec).Exp},
	{"Exp2", kmath.Exp2, (*tenon.Exec).Exp2},
	{"Expm1", kmath.Expm1, (*tenon.Exec).Expm1},
	{"Log", kmath.Log, (*tenon.Exec).Log},
	{"Log2", kmath.Log2, (*tenon.Exec).Log2},
	{"Log10", kmath.Log10, (*tenon.Exec).Log10},
	{"Log1p", kmath.Log1p, (*tenon.Exec).Log1p},
	{"Rsqrt", kmath.Rsqrt, (*tenon.Exec).Rsqrt},
	{"Sin", kmath.Sin, (*tenon.Exec).Sin},
	{"Cos", kmath.Cos, (*tenon.Exec).Cos},
	{"Tan", kmath.Tan, (*tenon.Exec).Tan},
	{"Tanh", kmath.Tanh, (*tenon.Exec).Tanh},
	{"Sigmoid", kmath.Sigmoid, (*tenon.Exec).Sigmoid},
	{"Erf", kmath.Erf, (*tenon.Exec).Erf},
	{"Erfc", kmath.Erfc, (*tenon.Exec).Erfc},
}

// arguments returns numbers of every size, and those at which functions change.
func arguments[T float32 | float64](number func(bits uint64) T) []T {
	rng := rand.New(rand.NewPCG(1, 2))
	inf := math.Inf(1)
	var out []T
	for _, v := range []float64{0, 1, 0.5, 2, 0.25, math.Pi, 20, 40, 88.7, 104, 709.7, 745.2, 1e10, 0x1p-149,
		0x1p-1022, inf} {
		out = append(out, T(v), T(-v))
	}
	out = append(out, T(math.NaN()))
	for range 2000 {
		out = append(out, number(rng.Uint64()), T(rng.NormFloat64()*3), T(rng.Float64()*2-1))
	}
	return out
}

func single(bits uint64) float32 { return math.Float32frombits(uint32(bits)) }

// same reports the first element in which two results differ in their bits, of which NaN has any.
func same[T float32 | float64](t *testing.T, x *tenon.Exec, name string, got, want *tenon.Tensor) {
	t.Helper()
	a, err := tenon.Read[T](x, got)
	b, err2 := tenon.Read[T](x, want)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	for i := range a {
		if a[i] != b[i] && (a[i] == a[i] || b[i] == b[i]) || math.Signbit(float64(a[i])) != math.Signbit(float64(b[i])) && a[i] == a[i] {
			t.Fatalf("%s: element %d is %v, and %v of the operation", name, i, a[i], b[i])
		}
	}
}

// TestSameBits: each function gives the bits of the operation of the same name, in both types.
func TestSameBits(t *testing.T) {
	devices := []tenon.Selector{tenon.CPU(), tenon.Sim(1 << 26)}
	if tenon.GPUs() > 0 {
		devices = append(devices, tenon.CUDA(0))
	}
	for _, device := range devices {
		x, err := tenon.Open(device)
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		narrow, wide := arguments(single), arguments(math.Float64frombits)
		a, b := tenon.From(x, narrow), tenon.From(x, wide)
		run := func(name string, f func(v kernel.Value) kernel.Value, p *tenon.Tensor) *tenon.Tensor {
			k := kernel.Build(name, func(k *kernel.Builder) {
				in, out, n := k.BufferRO("in", p.DType()), k.Buffer("out", p.DType()), k.Scalar("n", tenon.Int64)
				k.ForEach(n, func(i kernel.Value) { out.Store(i, f(in.Load(i))) })
			})
			q := x.EmptyLike(p)
			x.Launch(k, tenon.Over(p.Numel()), tenon.In(p), tenon.Out(q), tenon.Integer(p.Numel()))
			return q
		}
		for _, c := range functions {
			same[float32](t, x, c.name, run(c.name, c.f, a), c.op(x, a))
			same[float64](t, x, c.name, run(c.name, c.f, b), c.op(x, b))
		}
		for _, y := range []float64{-2, -0.5, 0, 0.3, 1, 3, 100, math.Inf(1), math.NaN()} {
			pow := func(v kernel.Value) kernel.Value { return kmath.Pow(v, v.Like(y)) }
			same[float32](t, x, "Pow", run("Pow", pow, a), x.Pow(a, x.Full([]int{len(narrow)}, y, tenon.Float32)))
			same[float64](t, x, "Pow", run("Pow", pow, b), x.Pow(b, x.Full([]int{len(wide)}, y, tenon.Float64)))
		}
	}
}

// TestMistakes: what a function cannot take is a mistake at the program's line, and so is what its own parts find.
func TestMistakes(t *testing.T) {
	_, _, line, _ := runtime.Caller(0)
	for i, c := range []struct {
		build func(k *kernel.Builder)
		want  string
	}{
		{func(k *kernel.Builder) { kmath.Exp(k.I32(1)) }, "Exp works on float32 and float64, not on int32; convert the value"},
		{func(k *kernel.Builder) { kmath.Pow(k.F32(1), k.F64(1)) }, "the operands of Pow have types float32 and float64; convert one"},
		{func(k *kernel.Builder) { kmath.Log(kernel.Value{}) }, "is a zero value"},
		{func(k *kernel.Builder) {
			var v kernel.Value
			k.If(k.Bool(true), func() { v = k.F32(1) })
			kmath.Tanh(v)
		}, "a value is used outside the If"},
		{func(k *kernel.Builder) {
			var v kernel.Value
			kernel.Build("other", func(o *kernel.Builder) { v = o.F32(1) })
			kmath.Pow(k.F32(1), v)
		}, "belongs to kernel other"},
		{func(k *kernel.Builder) { kmath.Pow(k.F32(1), kernel.Value{}) }, "is a zero value"},
	} {
		_, err := kernel.Build("k", c.build).Program()
		e, ok := errors.AsType[*fault.Error](err)
		at := line + []int{5, 6, 7, 11, 16, 18}[i]
		if !ok || !strings.Contains(e.Msg, c.want) || filepath.Base(e.File) != "functions_test.go" || e.Line != at {
			t.Errorf("got %v, want %s at line %d", err, c.want, at)
		}
	}
}
