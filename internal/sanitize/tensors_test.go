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

// copyKernel copies one element per thread.
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

// TestTensorsPastExact writes one element past a tensor that fills its memory to the last byte, with another tensor allocated after it.
func TestTensorsPastExact(t *testing.T) {
	x := session(t)
	y, next, a := x.Zeros([]int{128}, dtype.Float32), x.Zeros([]int{128}, dtype.Float32), x.Ones([]int{256}, dtype.Float32)
	defer next.Close()
	var line int
	k := copyKernel("tensor_past_exact", &line)
	x.Launch(k, tenon.Over(256), tenon.Out(y), tenon.In(a))
	plantsIn("tensors_test.go", "out-of-bounds", "tensor_past_exact", line)
	if err := x.Synchronize(); err == nil {
		t.Error("the device does not know of it")
	}
}

// TestTensorsPastCaptured writes past a tensor that a capture allocated.
func TestTensorsPastCaptured(t *testing.T) {
	x := session(t)
	a := x.Ones([]int{256}, dtype.Float32)
	var line int
	k := copyKernel("tensor_past_captured", &line)
	g, err := x.Capture(func(x *tenon.Exec) {
		y := x.Zeros([]int{128}, dtype.Float32)
		x.Launch(k, tenon.Over(256), tenon.Out(y), tenon.In(a))
	})
	if err != nil {
		t.Fatal(err)
	}
	plantsIn("tensors_test.go", "out-of-bounds", "tensor_past_captured", line)
	if err := x.Replay(g); err != nil {
		t.Fatal(err)
	}
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

// TestRepairedTensors does the same correctly, and leaves tensors to Close.
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

// TestRepairedTensorsGraph captures and replays steps that allocate, in which the checker must find nothing, not even leaks.
func TestRepairedTensorsGraph(t *testing.T) {
	x := session(t)
	in := x.Ones([]int{128}, dtype.Float32)
	for _, keep := range []bool{false, true} {
		var out *tenon.Tensor
		g, err := x.Capture(func(x *tenon.Exec) {
			b := x.AddS(in, 1)
			out = x.Mul(b, b)
			b.Close()
			if keep {
				x.Keep(out)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			x.CopyInto(in, x.Full([]int{128}, float64(i), dtype.Float32))
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			if got, err := tenon.Read[float32](x, out); err != nil || got[127] != float32((i+1)*(i+1)) {
				t.Errorf("run %d: %v, %v", i, got, err)
			}
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if keep {
			if got, err := tenon.Read[float32](x, out); err != nil || got[127] != 9 {
				t.Errorf("kept: %v, %v", got, err)
			}
			out.Close()
		}
	}
}

// TestRepairedTensorsGraphLeft leaves a graph to the device's Close.
func TestRepairedTensorsGraphLeft(t *testing.T) {
	x := session(t)
	a := x.Ones([]int{128}, dtype.Float32)
	g, err := x.Capture(func(x *tenon.Exec) { x.Mul(x.AddS(a, 1), a) })
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Replay(g); err != nil {
		t.Error(err)
	}
}
