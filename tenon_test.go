package tenon_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/kernel"
)

// open runs f on the processor and on a simulated device.
func open(t *testing.T, f func(t *testing.T, x *tenon.Exec)) {
	devices := map[string]tenon.Selector{"cpu": tenon.CPU(), "sim": tenon.Sim(0)}
	if tenon.GPUs() > 0 {
		devices["cuda"] = tenon.CUDA(0)
	}
	for name, sel := range devices {
		t.Run(name, func(t *testing.T) {
			x, err := tenon.Open(sel)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			}()
			f(t, x)
		})
	}
}

func TestAdd(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		a := tenon.From(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
		b := tenon.From(x, []float32{10, 20, 30})
		got, err := tenon.Read[float32](x, x.Add(a, b))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []float32{11, 22, 33, 14, 25, 36} {
			if got[i] != want {
				t.Fatalf("got %v", got)
			}
		}
	})
}

func TestShapeError(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		err := tenon.Try(func() { x.Add(x.Zeros([]int{3, 1}, tenon.Float32), x.Zeros([]int{2, 1}, tenon.Float32)) })
		if err == nil ||
			!strings.Contains(err.Error(), "The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 0") {
			t.Fatal(err)
		}
		if !strings.Contains(err.Error(), "tenon_test.go") {
			t.Fatal(err)
		}
	})
}

func TestBackward(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		a := tenon.From(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3).SetRequiresGrad(true)
		w := tenon.From(x, []float32{1, 0, -1, 2, 1, 0}, 3, 2).SetRequiresGrad(true)
		loss := x.Within(func(x *tenon.Exec) *tenon.Tensor {
			y := x.MM(a, w)
			return x.Sum(x.Mul(y, y), nil)
		})
		if err := x.Backward(loss); err != nil {
			t.Fatal(err)
		}
		v, err := x.Item(loss)
		if err != nil {
			t.Fatal(err)
		}
		// y = [[2, 4], [5, 10]]
		if v != 4+16+25+100 {
			t.Fatalf("loss %v", v)
		}
		got, err := tenon.Read[float32](x, w.Grad())
		if err != nil {
			t.Fatal(err)
		}
		// 2 * aT * y
		want := []float32{2 * (1*2 + 4*5), 2 * (1*4 + 4*10), 2 * (2*2 + 5*5), 2 * (2*4 + 5*10), 2 * (3*2 + 6*5), 2 * (3*4 + 6*10)}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	})
}

var saxpy = kernel.Build("saxpy", func(k *kernel.Builder) {
	a, n := k.Scalar("a", tenon.Float32), k.Scalar("n", tenon.Int64)
	x, y := k.Buffer("x", tenon.Float32), k.Buffer("y", tenon.Float32)
	k.ForEach(n, func(i kernel.Value) { y.Store(i, a.Mul(x.Load(i)).Add(y.Load(i))) })
})

// A kernel written in Go gives the same bits on every device: a product and a sum, each rounded.
func TestSaxpy(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		const n = 1000
		v, w := make([]float32, n), make([]float32, n)
		for i := range v {
			v[i], w[i] = float32(i)/7, float32(i*i)/3
		}
		y := tenon.From(x, w)
		x.Launch(saxpy, tenon.Over(n), tenon.Number(1.1), tenon.Integer(n), tenon.In(tenon.From(x, v)), tenon.Out(y))
		got, err := tenon.Read[float32](x, y)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if want := float32(float32(1.1)*v[i]) + w[i]; got[i] != want {
				t.Fatalf("element %d is %v, want %v", i, got[i], want)
			}
		}
		err = tenon.Try(func() { x.Launch(saxpy, tenon.Over(n), tenon.Number(1)) })
		if err == nil || !strings.Contains(err.Error(), "kernel saxpy has 4 parameters, but 1 arguments were given; its "+
			"parameters are a float32, n int64, x buffer of float32, y buffer of float32") {
			t.Fatal(err)
		}
		y.SetRequiresGrad(true)
		write := func(x *tenon.Exec) error {
			return tenon.Try(func() {
				x.Launch(saxpy, tenon.Over(n), tenon.Number(1), tenon.Integer(n), tenon.In(tenon.From(x, v)), tenon.Out(y))
			})
		}
		if err := write(x); err == nil || !strings.Contains(err.Error(), "a leaf that requires grad is being used in an "+
			"in-place operation") || y.Version() != 1 {
			t.Errorf("a kernel that writes to a leaf: %v, version %d", err, y.Version())
		}
		if err := write(x.NoGrad()); err != nil || y.Version() != 2 {
			t.Errorf("without gradients: %v, version %d", err, y.Version())
		}
	})
}

// From and Read take Go's int, which is an int64, and the half types, without importing another package.
func TestFromReadTypes(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		a := tenon.From(x, []int{-7, 1 << 40, 3})
		got, err := tenon.Read[int](x, a)
		if a.DType() != tenon.Int64 || err != nil || !slices.Equal(got, []int{-7, 1 << 40, 3}) {
			t.Errorf("%v: %v, %v", a.DType(), got, err)
		}
		if wide, err := tenon.Read[int64](x, a); err != nil || wide[1] != 1<<40 {
			t.Errorf("as int64: %v, %v", wide, err)
		}
		_, asInt := tenon.Read[int](x, x.ToDType(a, tenon.Int32))
		_, asHalf := tenon.Read[tenon.BF16](x, x.ToDType(a, tenon.Float16))
		for want, err := range map[string]error{
			"type int32 and cannot be read as int, which stands for int64; read it as int32, or convert it with x.ToDType": asInt,
			"type float16 and cannot be read as tenon.BF16, which stands for bfloat16; read it as tenon.F16, or convert":   asHalf,
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		h := tenon.From(x, []tenon.F16{tenon.F16FromFloat32(1.5), tenon.F16FromFloat32(1e9)})
		halves, err := tenon.Read[tenon.F16](x, x.MulS(h, 2))
		if h.DType() != tenon.Float16 || err != nil || halves[0].Float32() != 3 || !math.IsInf(float64(halves[1].Float32()), 1) {
			t.Errorf("%v: %v, %v", h.DType(), halves, err)
		}
		b := tenon.From(x, []tenon.BF16{tenon.BF16FromFloat32(1.5), tenon.BF16FromFloat32(1e9)})
		brains, err := tenon.Read[tenon.BF16](x, x.MulS(b, 2))
		if b.DType() != tenon.BFloat16 || err != nil || brains[0].Float32() != 3 || brains[1].Float32() < 1.9e9 {
			t.Errorf("%v: %v, %v", b.DType(), brains, err)
		}
	})
}

// readsAs checks From, Read and Item for elements of a Go type, and the error of Item for several elements.
func readsAs[T interface {
	bool | int | uint8 | int8 | int16 | int32 | int64 | float32 | float64 | tenon.F16 | tenon.BF16 | complex64 | complex128
}](t *testing.T, x *tenon.Exec, dt tenon.DType, item float64, first, second T) {
	t.Helper()
	a := tenon.From(x, []T{first, second}, 2, 1)
	if a.DType() != dt || !slices.Equal(a.Shape(), []int{2, 1}) {
		t.Errorf("From %T makes %v", first, a)
	}
	if got, err := tenon.Read[T](x, a); err != nil || !slices.Equal(got, []T{first, second}) {
		t.Errorf("%T: read %v, %v", first, got, err)
	}
	if got, err := x.Item(x.Slice(a, 0, 1, 2, 1)); err != nil || got != item {
		t.Errorf("%T: Item is %v, %v, want %v", first, got, err, item)
	}
	if _, err := x.Item(a); err == nil || !strings.Contains(err.Error(), "a tensor with 2 elements cannot be converted to a scalar;") {
		t.Errorf("%T: Item of two elements: %v", first, err)
	}
}

// From, Read and Item agree for every element type, also for int and the half types, on every device.
func TestItemTypes(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		half, brain := tenon.F16FromFloat32, tenon.BF16FromFloat32
		readsAs(t, x, tenon.Int64, -1<<40, 3, -1<<40)
		readsAs[int64](t, x, tenon.Int64, -1<<40, 3, -1<<40)
		readsAs[int32](t, x, tenon.Int32, -5, 3, -5)
		readsAs[int16](t, x, tenon.Int16, -5, 3, -5)
		readsAs[int8](t, x, tenon.Int8, -5, 3, -5)
		readsAs[uint8](t, x, tenon.Uint8, 250, 3, 250)
		readsAs(t, x, tenon.Bool, 1, false, true)
		readsAs[float32](t, x, tenon.Float32, -2.5, 1, -2.5)
		readsAs(t, x, tenon.Float64, -0.1, 1, -0.1)
		readsAs(t, x, tenon.Float16, 1.0/1024, half(65504), half(1.0/1024))
		readsAs(t, x, tenon.BFloat16, 0x1p100, brain(1), brain(0x1p100))
		readsAs[complex64](t, x, tenon.Complex64, 2, 1i, 2-3i)
		readsAs[complex128](t, x, tenon.Complex128, 2, 1i, 2-3i)
	})
}
