package bench

import (
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/kernel"
)

var saxpyKernel = kernel.Build("saxpy", func(k *kernel.Builder) {
	a, n := k.Scalar("a", tenon.Float32), k.Scalar("n", tenon.Int64)
	x, y := k.Buffer("x", tenon.Float32), k.Buffer("y", tenon.Float32)
	k.ForEach(n, func(i kernel.Value) { y.Store(i, a.Mul(x.Load(i)).Add(y.Load(i))) })
})

// chainKernel is six operations: ((x*1.5 + 0.25) * x - 0.5) * 0.75 + x.
var chainKernel = kernel.Build("chain", func(k *kernel.Builder) {
	n := k.Scalar("n", tenon.Int64)
	x, y := k.Buffer("x", tenon.Float32), k.Buffer("y", tenon.Float32)
	k.ForEach(n, func(i kernel.Value) {
		v := x.Load(i)
		y.Store(i, v.Mul(k.F32(1.5)).Add(k.F32(0.25)).Mul(v).Sub(k.F32(0.5)).Mul(k.F32(0.75)).Add(v))
	})
})

// TestSimulator compares the CPU as a device with plain Go loops on one goroutine.
func TestSimulator(t *testing.T) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	const n = 16 << 20
	x.Scope(func(x *tenon.Exec) {
		a, b := x.Full([]int{n}, 1.5, tenon.Float32), x.Full([]int{n}, 0.25, tenon.Float32)
		gigabytes := func(seconds []float64, bytes float64) []float64 { return rate(seconds, bytes*1e3) }
		recordFigure("sim.saxpy", "GB/s", gigabytes(walled(t, x, 5, func(x *tenon.Exec) {
			x.Launch(saxpyKernel, tenon.Over(n), tenon.Number(0.5), tenon.Integer(n), tenon.In(a), tenon.Out(b))
		}), 12*n))
		recordFigure("sim.chain", "GB/s", gigabytes(walled(t, x, 5, func(x *tenon.Exec) {
			x.Launch(chainKernel, tenon.Over(n), tenon.Integer(n), tenon.In(a), tenon.Out(b))
		}), 8*n))
		recordFigure("sim.chain.eager", "GB/s", gigabytes(walled(t, x, 5, func(x *tenon.Exec) { sixOps(x.NoGrad(), a) }), 8*n))
		recordFigure("sim.chain.compiled", "GB/s", gigabytes(
			walled(t, x, 5, compiled(t, func(x *tenon.Exec) *tenon.Tensor { return sixOps(x.NoGrad(), a) })), 8*n))
		p, q := make([]float32, n), make([]float32, n)
		for i := range p {
			p[i], q[i] = 1.5, 0.25
		}
		recordFigure("sim.saxpy.loop", "GB/s", gigabytes(looped(func() {
			for i := range p {
				q[i] = float32(0.5*p[i]) + q[i]
			}
		}), 12*n))
		recordFigure("sim.chain.loop", "GB/s", gigabytes(looped(func() {
			for i, v := range p {
				q[i] = float32((float32((float32(v*1.5)+0.25)*v)-0.5)*0.75) + v
			}
		}), 8*n))
		c, d := noise(x, 1024, tenon.Float32), noise(x, 1024, tenon.Float32)
		recordFigure("sim.matmul", "GFLOP/s", gigabytes(walled(t, x, 3, func(x *tenon.Exec) { x.MM(c, d) }), 2*1024*1024*1024))
		v := x.Narrow(d, 0, 0, 1)
		recordFigure("sim.matvec", "GB/s", gigabytes(walled(t, x, 20, func(x *tenon.Exec) { x.Linear(v, c, nil) }), 4*1024*1024))
	})
}

func looped(f func()) []float64 {
	var out []float64
	for range 6 {
		start := time.Now()
		f()
		out = append(out, time.Since(start).Seconds())
	}
	return out[1:]
}

// walled returns the wall-clock seconds of single calls of f, including their work.
func walled(t *testing.T, x *tenon.Exec, reps int, f func(x *tenon.Exec)) []float64 {
	t.Helper()
	var out []float64
	for i := range reps + 2 {
		start := time.Now()
		x.Scope(f)
		if err := x.Synchronize(); err != nil {
			t.Fatal(err)
		}
		if i >= 2 {
			out = append(out, time.Since(start).Seconds())
		}
	}
	return out
}
