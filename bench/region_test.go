package bench

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
	"tenon.dev/internal/rt"
)

// onNull returns an Exec of a driver that does nothing: all time that a program takes there is its own. That driver's graphs are empty;
// warnings about that are suppressed.
func onNull(t testing.TB) *tenon.Exec {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device { return null.New(d.Info().Image) }})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { slog.SetDefault(log) })
	return (*tenon.Exec)(core.New(dev, host))
}

// regionOf calls f in a region until its graph is replayed. It returns a function that runs the region once more and returns the time of
// f's calls, including their handles, and of the whole run. Without fusion calls run though nobody needs their results.
func regionOf(t testing.TB, x *tenon.Exec, f func(x *tenon.Exec)) func() (calls, all time.Duration) {
	r := compile.New(compile.Opt{NoFusion: true})
	var calls time.Duration
	body := func(x *tenon.Exec) error {
		start := time.Now()
		x.Scope(f)
		calls = time.Since(start)
		return nil
	}
	run := func() (_, all time.Duration) {
		start := time.Now()
		if err := r.Do(x, body); err != nil {
			t.Fatal(err)
		}
		return calls, time.Since(start)
	}
	for range 4 {
		run()
	}
	if s := r.Stats(x); s.Recordings != 1 || s.Replays != 2 {
		t.Fatalf("the region does not replay: %+v", s)
	}
	return run
}

// adds calls Add n times.
func adds(n int, x *tenon.Exec, a, b *tenon.Tensor) {
	for range n {
		x.Add(a, b)
	}
}

// TestGoRegion measures the Go part of a region: a deferred call, and the cost of a replay besides its calls.
func TestGoRegion(t *testing.T) {
	x := onNull(t)
	ng := x.NoGrad()
	a, b := x.Ones([]int{16}, tenon.Float32), x.Ones([]int{16}, tenon.Float32)
	g := x.Ones([]int{16}, tenon.Float32).SetRequiresGrad(true)
	measure := func(n int, f func(x *tenon.Exec)) (call, beside, all []float64) {
		run := regionOf(t, x, f)
		count := max(10, 2000/n)
		for i := range 15 {
			var in, sum time.Duration
			for range count {
				c, d := run()
				in, sum = in+c, sum+d
			}
			if i >= 3 {
				us := func(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(n) }
				call, beside, all = append(call, us(in, count*n)), append(beside, us(sum-in, count)), append(all, us(sum, count))
			}
		}
		return call, beside, all
	}
	call, _, _ := measure(50, func(*tenon.Exec) { adds(50, ng, a, b) })
	recordFigure("region.go.call", "µs", call)
	call, _, _ = measure(50, func(x *tenon.Exec) { adds(50, x, g, b) })
	recordFigure("region.go.call.grad", "µs", call)
	one := func(*tenon.Exec) { adds(1, ng, a, b) }
	_, _, all := measure(1, one)
	recordFigure("region.go.1", "µs", all)
	run := regionOf(t, x, one)
	recordFigure("region.go.1.allocs", "allocs/op", []float64{testing.AllocsPerRun(200, func() { run() })})
	_, beside, _ := measure(62, func(*tenon.Exec) { adds(62, ng, a, b) })
	recordFigure("region.go.64", "µs", beside)
	_, beside, _ = measure(1500, func(*tenon.Exec) { adds(1500, ng, a, b) })
	recordFigure("region.go.1500", "µs", beside)
}

// BenchmarkRegion runs regions with different numbers of additions as graphs on the driver that does nothing; the time is per call.
func BenchmarkRegion(b *testing.B) {
	x := onNull(b)
	v, w := x.Ones([]int{16}, tenon.Float32), x.Ones([]int{16}, tenon.Float32)
	g := x.Ones([]int{16}, tenon.Float32).SetRequiresGrad(true)
	for _, c := range []struct {
		name string
		n    int
		x    *tenon.Exec
	}{{"1", 1, x.NoGrad()}, {"50", 50, x.NoGrad()}, {"1500", 1500, x.NoGrad()}, {"50grad", 50, x}} {
		b.Run(c.name, func(b *testing.B) {
			n, first := c.n, v
			if c.x == x {
				first = g
			}
			run := regionOf(b, c.x, func(x *tenon.Exec) { adds(n, x, first, w) })
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += n {
				run()
			}
		})
	}
}

// TestInputs measures calls of a callable that joins tensors of 4 KiB, which are copied to the graph's memory first.
func TestInputs(t *testing.T) {
	x := onGPU(t).NoGrad()
	for _, n := range []int{1, 2, 8, 32} {
		var in []*tenon.Tensor
		for range n {
			in = append(in, x.Ones([]int{1024}, tenon.Float32))
		}
		f := compile.Func(func(x *tenon.Exec, all []*tenon.Tensor) *tenon.Tensor { return x.Cat(all, 0) })
		call := func() { f.Call(x, in).Close() }
		for range 5 {
			call()
		}
		if s := f.Stats(x); s.Replays < 2 {
			t.Fatalf("the callable does not replay: %+v", s)
		}
		perCall(t, fmt.Sprintf("inputs.%d", n), 200, false, x.Device().Synchronize, call)
	}
}
