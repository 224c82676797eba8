package bench

import (
	"errors"
	"math"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/resnet"
)

// program is a step that is measured in several ways: in its own scope, as a graph, in a region.
type program func(x *tenon.Exec) error

// ways are the ways by name. Each returns a function that runs the step once more, and one that checks afterwards that it ran in that way.
var ways = []struct {
	name    string
	prepare func(t *testing.T, x *tenon.Exec, step program) (again, check func())
}{
	{"compiled", func(t *testing.T, x *tenon.Exec, step program) (again, check func()) { // first, so that its kernels are built in it
		if err := compile.Reset(x); err != nil {
			t.Fatal(err)
		}
		r := compile.New()
		compiledUntilReplay(t, x, r, step)
		before := r.Stats(x)
		again = func() {
			if err := r.Do(x, step); err != nil {
				t.Fatal(err)
			}
		}
		return again, func() { oneGraph(t, x, r, before) }
	}},
	{"eager", func(t *testing.T, x *tenon.Exec, step program) (again, check func()) {
		return func() { step.eager(t, x) }, func() {}
	}},
	{"graph", func(t *testing.T, x *tenon.Exec, step program) (again, check func()) {
		for range 2 { // creates the optimizer's state
			step.eager(t, x)
		}
		return step.graph(t, x)
	}},
}

// graph captures step, and returns a function that replays the graph and one that closes it.
func (step program) graph(t *testing.T, x *tenon.Exec) (again, done func()) {
	var failed error
	g, err := x.Capture(func(x *tenon.Exec) { failed = step(x) })
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	again = func() {
		if err := x.Replay(g); err != nil {
			t.Fatal(err)
		}
	}
	return again, func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (step program) eager(t *testing.T, x *tenon.Exec) {
	x.Scope(func(x *tenon.Exec) {
		if err := step(x); err != nil {
			t.Fatal(err)
		}
	})
}

// sizes give the extent of a measurement: samples samples of runs runs each.
type sizes struct{ runs, samples int }

// measure returns the milliseconds per run of step in the named way.
func measure(t *testing.T, x *tenon.Exec, way string, s sizes, step program) []float64 {
	t.Helper()
	for _, w := range ways {
		if w.name != way {
			continue
		}
		again, check := w.prepare(t, x, step)
		ms := make([]float64, 0, s.samples)
		for i := range s.samples + 1 {
			if err := x.Synchronize(); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for range s.runs {
				again()
			}
			if err := x.Synchronize(); err != nil {
				t.Fatal(err)
			}
			if i > 0 { // the first one is a warm-up
				ms = append(ms, time.Since(began).Seconds()*1e3/float64(s.runs))
			}
		}
		check()
		return ms
	}
	t.Fatalf("there is no way %q to run a step", way)
	return nil
}

// worked is the measurement of a program: the milliseconds per run, its peak memory in GiB, and the sum of its results.
type worked struct {
	ms        []float64
	peak, sum float64
}

// resNetWork measures one way of ResNet-50's training or inference.
func resNetWork(t *testing.T, x *tenon.Exec, c resnet.Config, batch int, train bool, way string, s sizes) (w worked) {
	t.Helper()
	x.Scope(func(x *tenon.Exec) {
		if err := x.Device().EmptyCache(); err != nil {
			t.Fatal(err)
		}
		if err := x.Generator().SetSeed(1); err != nil {
			t.Fatal(err)
		}
		var step program
		var result func() *tenon.Tensor
		if train {
			m, err := resnet.NewTraining(x, c, batch)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			step, result = m.Step, func() *tenon.Tensor { return m.Loss }
		} else {
			m := resnet.NewInference(x, c, batch)
			defer m.Close()
			step, result = m.Step, func() *tenon.Tensor { return m.Logits }
		}
		x.Device().ResetPeakStats()
		w.ms = measure(t, x, way, s, step)
		w.peak = float64(x.Device().MaxMemoryAllocated()) / gib
		var err error
		if w.sum, err = x.Item(x.Sum(result(), nil)); err != nil {
			t.Fatal(err)
		}
		if math.IsNaN(w.sum) {
			t.Errorf("%s with %d images gives no numbers", way, batch)
		}
		t.Logf("%s with %d images: the results' sum is %v", way, batch, w.sum)
	})
	return w
}

// TestResNet measures ResNet-50 as PyTorch's script runs it: the training step on 64 images, inference on 1 and on 64. It also measures
// the compiled ones with channels first.
func TestResNet(t *testing.T) {
	x := onGPU(t)
	layout := func(c resnet.Config, way, name string) {
		w := resNetWork(t, x, c, 64, true, way, sizes{5, 6})
		recordFigure("resnet.train."+name, "ms", w.ms)
		recordFigure("resnet.train."+name+".peak", "GiB", []float64{w.peak})
		recordFigure("resnet.infer.1."+name, "ms", resNetWork(t, x, c, 1, false, way, sizes{50, 10}).ms)
		recordFigure("resnet.infer.64."+name, "ms", resNetWork(t, x, c, 64, false, way, sizes{20, 8}).ms)
	}
	for _, w := range ways {
		layout(resnet.Base(), w.name, w.name)
	}
	c := resnet.Base()
	c.ChannelsLast = false
	layout(c, "compiled", "compiled.first")
}

// The measurements of TestResNet also run on the simulator, in all ways.
func TestResNetWays(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, train := range []bool{true, false} {
		var first worked
		for _, way := range ways {
			w := resNetWork(t, x, resnet.Small(), 2, train, way.name, sizes{1, 2})
			if len(w.ms) != 2 || !(w.ms[0] > 0) || !(w.peak > 0) {
				t.Errorf("%s, training %v: %+v", way.name, train, w)
			}
			if first.ms == nil {
				first = w
			}
			if !train && w.sum != first.sum {
				t.Errorf("%s: the logits' sum is %v, and %v compiled", way.name, w.sum, first.sum)
			}
		}
	}
}
