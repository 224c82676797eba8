//go:build planted

package sanitize

import (
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// These tests plant bugs as a user of tensors would, on the simulator.

// session opens a simulated device and closes it after the test.
func session(t *testing.T) *tenon.Exec {
	t.Helper()
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// copyKernel copies an element a thread.
func copyKernel(name string, line *int) *kernel.Kernel {
	return kernel.Build(name, func(k *kernel.Builder) {
		k.Threads(256)
		y, a := k.Buffer("y", dtype.Float32), k.Buffer("a", dtype.Float32)
		i := k.ThreadIdx(kernel.X)
		v := a.Load(i)
		*line = here() + 1
		y.Store(i, v)
	})
}

func TestTensorsPast(t *testing.T) {
	x := session(t)
	y, a := x.Zeros([]int{255}, dtype.Float32), x.Ones([]int{256}, dtype.Float32)
	var line int
	k := copyKernel("tensor_past", &line)
	x.Launch(k, tenon.Over(256), tenon.Out(y), tenon.In(a))
	plantsIn("tensors_test.go", "out-of-bounds", "tensor_past", line)
	if err := x.Synchronize(); err == nil {
		t.Error("the device does not know of it")
	}
}

func TestTensorsUnordered(t *testing.T) {
	x := session(t).ManualStreams()
	s, err := x.Device().Stream()
	if err != nil {
		t.Fatal(err)
	}
	var line, other int
	first, second := copyKernel("tensor_first", &other), copyKernel("tensor_second", &line)
	y, a := x.Zeros([]int{256}, dtype.Float32), x.Ones([]int{256}, dtype.Float32)
	if err := x.Synchronize(); err != nil {
		t.Fatal(err)
	}
	x.Launch(first, tenon.Over(256), tenon.Out(y), tenon.In(a))
	x.On(s).Launch(second, tenon.Over(256), tenon.Out(y), tenon.In(a))
	plantsIn("tensors_test.go", "stream-race", "tensor_second", line)
	if err := x.Synchronize(); err != nil {
		t.Error(err)
	}
}

func TestTensorsNeverClosed(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	plantsIn("tensors_test.go", "leak", "-", here()+1)
	x.Zeros([]int{100}, dtype.Float32)
}

func TestTensorsRaw(t *testing.T) {
	d := session(t).Device()
	plantsIn("tensors_test.go", "leak", "-", here()+1)
	if _, err := d.Malloc(1000); err != nil {
		t.Error(err)
	}
}

// TestRepairedTensors does the same right, and leaves tensors to Close.
func TestRepairedTensors(t *testing.T) {
	x := session(t)
	s, err := x.Device().Stream()
	if err != nil {
		t.Fatal(err)
	}
	var line int
	k := copyKernel("tensor_copy", &line)
	y, a := x.Zeros([]int{256}, dtype.Float32), x.Ones([]int{256}, dtype.Float32)
	x.Launch(k, tenon.Over(256), tenon.Out(y), tenon.In(a))
	x.On(s).Launch(k, tenon.Over(256), tenon.Out(y), tenon.In(a))
	got, err := tenon.Read[float32](x, x.MatMul(x.Reshape(y, 16, 16), x.Reshape(a, 16, 16)))
	if err != nil || got[0] != 16 {
		t.Errorf("%v, %v", got[:1], err)
	}
}
