//go:build planted

package sanitize

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// These tests plant accesses one element outside of a tensor that fills its memory to the last byte and has neighbours on both sides, in
// each way in which a program runs kernels.

// edge is the number of elements of each tensor.
const edge = 256

// shifted is a kernel that copies edge elements to positions shifted by by elements.
func shifted(t *testing.T, name string) (k *kernel.Kernel, line int) {
	k = kernel.Build(name, func(k *kernel.Builder) {
		k.Threads(edge)
		y, a, by := k.Buffer("y", dtype.Float32), k.Buffer("a", dtype.Float32), k.Buffer("by", dtype.Int32)
		i := k.ThreadIdx(kernel.X)
		v, d := a.Load(i), by.Load(k.I32(0))
		line = here() + 1
		y.Store(i.Add(d), v)
	})
	if _, err := k.Program(); err != nil {
		t.Fatal(err)
	}
	return k, line
}

// prepared returns a function that repeats a step.
type prepared = func(x *tenon.Exec, step func(x *tenon.Exec)) (again func() error, err error)

// edgeTest runs a kernel twice correctly, and then shifted by by elements.
func edgeTest(t *testing.T, name string, by int, prepare prepared) {
	x := session(t)
	off, again, line := edges(t, x, name, prepare)
	x.FillInto(off, float64(by))
	plantsIn("edges_test.go", "out-of-bounds", name, line)
	if err := again(); err != nil {
		t.Log(err)
	}
	if err := x.Synchronize(); err == nil {
		t.Error("the device does not know of it")
	}
}

// edges prepares a step that runs the kernel on a tensor between two others, shifted by the number of elements in off, and runs it twice.
func edges(t *testing.T, x *tenon.Exec, name string, prepare prepared) (off *tenon.Tensor, again func() error, line int) {
	k, line := shifted(t, name)
	off = x.Zeros([]int{1}, dtype.Int32)
	a, b := x.Ones([]int{edge}, dtype.Float32), x.Ones([]int{edge}, dtype.Float32)
	again, err := prepare(x, func(x *tenon.Exec) {
		before := x.Add(a, b)
		y := x.Zeros([]int{edge}, dtype.Float32)
		after := x.Mul(a, b)
		x.Launch(k, tenon.Over(edge), tenon.Out(y), tenon.In(a), tenon.In(off))
		x.AddInto(y, before, after)
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := again(); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Synchronize(); err != nil {
		t.Fatal(err)
	}
	return off, again, line
}

func eagerly(x *tenon.Exec, step func(x *tenon.Exec)) (func() error, error) {
	return func() error { return x.Do(func(x *tenon.Exec) error { step(x); return nil }) }, nil
}

func captured(x *tenon.Exec, step func(x *tenon.Exec)) (func() error, error) {
	g, err := x.Capture(step)
	return func() error { return x.Replay(g) }, err
}

func compiled(x *tenon.Exec, step func(x *tenon.Exec)) (func() error, error) {
	r := compile.New()
	return func() error { return r.Do(x, func(x *tenon.Exec) error { step(x); return nil }) }, nil
}

func TestTensorsOnePast(t *testing.T)           { edgeTest(t, "one_past", 1, eagerly) }
func TestTensorsOneBefore(t *testing.T)         { edgeTest(t, "one_before", -1, eagerly) }
func TestTensorsOnePastCaptured(t *testing.T)   { edgeTest(t, "one_past_captured", 1, captured) }
func TestTensorsOneBeforeCaptured(t *testing.T) { edgeTest(t, "one_before_captured", -1, captured) }
func TestTensorsOnePastCompiled(t *testing.T)   { edgeTest(t, "one_past_compiled", 1, compiled) }
func TestTensorsOneBeforeCompiled(t *testing.T) { edgeTest(t, "one_before_compiled", -1, compiled) }

// TestRepairedTensorsEdges runs the same without a bug, more often.
func TestRepairedTensorsEdges(t *testing.T) {
	for name, prepare := range map[string]prepared{"eager": eagerly, "captured": captured, "compiled": compiled} {
		x := session(t)
		_, again, _ := edges(t, x, name, prepare)
		for range 3 {
			if err := again(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := x.Synchronize(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRepairedTensorsMust runs a region that must be a graph; with the checker it need not be.
func TestRepairedTensorsMust(t *testing.T) {
	x := session(t)
	a, out := x.Ones([]int{edge}, dtype.Float32), x.Zeros([]int{edge}, dtype.Float32)
	r := compile.New(compile.Opt{Must: true})
	for range 3 {
		if err := r.Do(x, func(x *tenon.Exec) error { x.AddInto(out, x.Mul(x.AddS(a, 1), a), out); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := tenon.Read[float32](x, out); err != nil || got[edge-1] != 6 {
		t.Errorf("%v, %v", got[edge-1:], err)
	}
}
