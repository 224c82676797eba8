package tenon_test

import (
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
		if err == nil || !strings.Contains(err.Error(), "The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 0") {
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
		loss := tenon.Within(x, func(x *tenon.Exec) *tenon.Tensor {
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
		if err == nil || !strings.Contains(err.Error(), "kernel saxpy has 4 parameters, but 1 arguments were given") {
			t.Fatal(err)
		}
		y.SetRequiresGrad(true)
		write := func(x *tenon.Exec) error {
			return tenon.Try(func() {
				x.Launch(saxpy, tenon.Over(n), tenon.Number(1), tenon.Integer(n), tenon.In(tenon.From(x, v)), tenon.Out(y))
			})
		}
		if err := write(x); err == nil || !strings.Contains(err.Error(), "a leaf Variable that requires grad is being used in an in-place operation") || y.Version() != 1 {
			t.Errorf("a kernel that writes to a leaf: %v, version %d", err, y.Version())
		}
		if err := write(x.NoGrad()); err != nil || y.Version() != 2 {
			t.Errorf("without gradients: %v, version %d", err, y.Version())
		}
	})
}
