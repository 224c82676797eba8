package cuda_test

import (
	"math"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// overrun is a kernel that writes n numbers to y, which may be shorter.
var overrun = kernel.Build("overrun", func(k *kernel.Builder) {
	n := k.Scalar("n", dtype.Int64)
	y := k.Buffer("y", dtype.Float32)
	k.ForEach(n, func(i kernel.Value) { y.Store(i, k.Const(dtype.Float32, 1)) })
})

func TestGuardZones(t *testing.T) {
	x, d := open(t, 1<<30)
	d.SetMemoryChecks(cuda.MemoryChecks{Guard: true})
	write := func(n int64) error {
		y := x.Zeros([]int{256}, tenon.Float32)
		x.Launch(overrun, tenon.Over(int(n)), tenon.Integer(n), tenon.Out(y))
		y.Close()
		return d.MemoryDefects()
	}
	if err := write(256); err != nil {
		t.Errorf("writing within: %v", err)
	}
	err := write(260)
	if err == nil || !strings.Contains(err.Error(), "memory was written past its end: behind the 1024 bytes at 0x") ||
		!strings.Contains(err.Error(), "16 bytes changed, the first of which is byte 1 past the end; record the memory history") {
		t.Errorf("writing past the end: %v", err)
	}
	if err := d.MemoryDefects(); err != nil {
		t.Errorf("told twice: %v", err)
	}
	if err := d.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextState}); err != nil {
		t.Fatal(err)
	}
	if err := write(257); err == nil || !strings.Contains(err.Error(), "checks_test.go:") {
		t.Errorf("with history: %v", err)
	}
	y := x.Zeros([]int{256}, tenon.Float32)
	x.Launch(overrun, tenon.Over(300), tenon.Integer(300), tenon.Out(y))
	y.Close()
	if err := tenon.Try(func() { x.Zeros([]int{4}, tenon.Float32) }); err == nil || !strings.Contains(err.Error(), "written past its end") {
		t.Errorf("the next allocation: %v", err)
	}
	g, err := x.Capture(func(x *tenon.Exec) { x.Add(y0(x), y0(x)).Close() })
	if err != nil {
		t.Fatalf("a capture with guard zones: %v", err)
	}
	if err := x.Replay(g); err != nil {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	d.SetMemoryChecks(cuda.MemoryChecks{})
	if err := write(256); err != nil {
		t.Error(err)
	}
}

func y0(x *tenon.Exec) *tenon.Tensor { return x.Ones([]int{4}, tenon.Float32) }

func TestPoison(t *testing.T) {
	t.Setenv("TENON_POISON", "1")
	x, d := open(t, 1<<30)
	a := x.Ones([]int{256}, tenon.Float32)
	a.Close()
	b := x.Empty([]int{256}, tenon.Float32)
	v, err := tenon.Read[float32](x, b)
	if err != nil || !math.IsNaN(float64(v[0])) || !math.IsNaN(float64(v[255])) {
		t.Errorf("freed memory holds %v, %v", v[:4], err)
	}
	d.SetMemoryChecks(cuda.MemoryChecks{})
	c := x.Ones([]int{256}, tenon.Float32)
	c.Close()
	e := x.Empty([]int{256}, tenon.Float32)
	if v, err := tenon.Read[float32](x, e); err != nil || v[0] != 1 {
		t.Errorf("without poison freed memory holds %v, %v", v[:4], err)
	}
}
