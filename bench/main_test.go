package bench

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/core"
	"tenon.dev/internal/rt"
)

var deviceFlag = flag.String("device", "best", "the device to measure: best, cuda or sim")

func TestMain(m *testing.M) {
	os.Exit(benchrun.Main(m, "bench", func() (name, driver string) {
		x, err := open()
		if err != nil {
			return "none", err.Error()
		}
		defer x.Close()
		return x.Device().Name(), fmt.Sprint("libcuda and hostsim, GPUs ", rt.GPUs())
	}))
}

func selector() tenon.Selector {
	switch *deviceFlag {
	case "cuda":
		return tenon.CUDA(0)
	case "sim":
		return tenon.Sim(0)
	}
	return tenon.Best()
}

func open() (*tenon.Exec, error) { return tenon.Open(selector()) }

// onGPU opens the device, and skips the test if figures would not be of a GPU.
func onGPU(t *testing.T) *tenon.Exec {
	if rt.GPUs() == 0 || *deviceFlag == "sim" {
		t.Skip("no GPU to measure")
	}
	x, err := tenon.Open(tenon.CUDA(0))
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

// perOp is perCall for functions that perform ops operations per call.
func perOp(t *testing.T, name string, ops, count int, issue bool, sync func() error, f func()) float64 {
	t.Helper()
	return recordFigure(name, "µs", samples(t, ops*count, count, issue, sync, f))
}

// perCall repeatedly times count calls of f followed by sync, and records the time of one call in µs, without the sync if issue is true.
func perCall(t *testing.T, name string, count int, issue bool, sync func() error, f func()) float64 {
	t.Helper()
	return recordFigure(name, "µs", samples(t, count, count, issue, sync, f))
}

func samples(t *testing.T, parts, count int, issue bool, sync func() error, f func()) []float64 {
	t.Helper()
	var values []float64
	for i := range 15 {
		if err := sync(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for range count {
			f()
		}
		d := time.Since(start)
		if err := sync(); err != nil {
			t.Fatal(err)
		}
		if !issue {
			d = time.Since(start)
		}
		if i >= 3 {
			values = append(values, float64(d.Nanoseconds())/1e3/float64(parts))
		}
	}
	return values
}

func recordFigure(name, unit string, values []float64) float64 {
	s := benchrun.Summarize(values)
	benchrun.Record(benchrun.Figure{Name: name, Unit: unit, Sample: s})
	fmt.Printf("%-20s %10.4g %s  (%.4g … %.4g)\n", name, s.Median, unit, s.Min, s.Max)
	return s.Median
}

func coreExec(x *tenon.Exec) *core.Exec { return (*core.Exec)(x) }
