package bench

import (
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/gpt2"
	"tenon.dev/internal/llama"
	"tenon.dev/nn"
)

const gib = 1 << 30

// compiledUntilReplay runs step in a region until it is replayed, and returns the seconds that this took.
func compiledUntilReplay(t *testing.T, x *tenon.Exec, r *compile.Region, step func(x *tenon.Exec) error) float64 {
	t.Helper()
	began := time.Now()
	for range 6 {
		if err := r.Do(x, step); err != nil {
			t.Fatal(err)
		}
		if err := x.Synchronize(); err != nil {
			t.Fatal(err)
		}
		if r.Stats(x).Replays > 0 {
			return time.Since(began).Seconds()
		}
	}
	t.Fatalf("the step does not replay: %+v", r.Stats(x))
	return 0
}

// oneGraph checks that r's work is one graph, and that all runs since before were replays of it.
func oneGraph(t *testing.T, x *tenon.Exec, r *compile.Region, before compile.Stats) {
	t.Helper()
	s := r.Stats(x)
	if runs := s.Runs - before.Runs; s.Recordings != 1 || s.Replays-before.Replays != runs || s.Plain+s.Eager+s.Forced+s.Unknown > 0 {
		t.Errorf("the step is not one graph that replays: %+v, and %+v before", s, before)
	}
}

// measureTraining records the figures of one way to train on a batch: time, peak and what is taken from the device. prepare returns the way
// to run a step, and what is checked at the end. measureTraining returns the medians of time and peak.
func measureTraining(t *testing.T, x *tenon.Exec, name string, open func(x *tenon.Exec) (*gpt2.Training, error),
	prepare func(w *gpt2.Training) (step, check func())) (ms, peak float64) {
	t.Helper()
	const warm, steps, samples = 3, 5, 6
	x.Scope(func(x *tenon.Exec) {
		if err := x.Device().EmptyCache(); err != nil {
			t.Fatal(err)
		}
		if err := x.Generator().SetSeed(1); err != nil {
			t.Fatal(err)
		}
		w, err := open(x)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		x.Device().ResetPeakStats()
		step, check := prepare(w)
		for range warm {
			step()
		}
		values := make([]float64, samples)
		for i := range values {
			if err := x.Synchronize(); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for range steps {
				step()
			}
			if err := x.Synchronize(); err != nil {
				t.Fatal(err)
			}
			values[i] = time.Since(began).Seconds() * 1e3 / steps
		}
		check()
		ms = recordFigure(name, "ms", values)
		peak = recordFigure(name+".peak", "GiB", []float64{float64(x.Device().MaxMemoryAllocated()) / gib})
		recordFigure(name+".reserved", "GiB", []float64{float64(x.Device().MaxMemoryReserved()) / gib})
		loss, err := x.Item(w.Loss)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: the loss is %v", name, loss)
	})
	return ms, peak
}

// inRegion returns the way to run step in a region, and the check that it is one graph. name, if not empty, is the figure of the time until
// that is replayed.
func inRegion(t *testing.T, x *tenon.Exec, name string, step program) (run, check func()) {
	t.Helper()
	r := compile.New()
	if seconds := compiledUntilReplay(t, x, r, step); name != "" {
		recordFigure(name, "s", []float64{seconds})
	}
	before := r.Stats(x)
	run = func() {
		if err := r.Do(x, step); err != nil {
			t.Fatal(err)
		}
	}
	return run, func() {
		oneGraph(t, x, r, before)
		t.Logf("%+v", r.Stats(x))
	}
}

// asCallable returns the way to run a step whose forward pass is a callable with these statistics, and the check that it is one graph.
func asCallable(t *testing.T, x *tenon.Exec, stats func(x *tenon.Exec) compile.Stats, step program) (run, check func()) {
	return func() { step.eager(t, x) }, func() {
		s := stats(x)
		if t.Logf("%+v", s); s.Recordings != 1 || s.Plain+s.Eager+s.Forced+s.Unknown > 0 {
			t.Errorf("the forward pass is not one graph: %+v", s)
		}
	}
}

// TestGPT2 measures the training step of GPT-2 with 124 million parameters, with and without a region.
func TestGPT2(t *testing.T) {
	x := onGPU(t)
	measure := func(name string, prepare func(w *gpt2.Training) (step, check func())) (ms, peak float64) {
		open := func(x *tenon.Exec) (*gpt2.Training, error) { return gpt2.NewTraining(x, gpt2.Base(), 8) }
		return measureTraining(t, x, "gpt2."+name, open, prepare)
	}
	compiled, most := measure("compiled", func(w *gpt2.Training) (step, check func()) { // first, so that its kernels are built in it
		return inRegion(t, x, "gpt2.compile", w.Step)
	})
	if err := compile.Reset(x); err != nil {
		t.Fatal(err)
	}
	for name, opt := range map[string]compile.Opt{"callable": {}, "callable.saved": {NoRecompute: true}} { //tenon:unordered apart
		measure(name, func(w *gpt2.Training) (step, check func()) {
			forward := compile.Func(w.Forward, opt)
			return asCallable(t, x, forward.Stats, func(x *tenon.Exec) error { return w.StepWith(x, forward.Call) })
		})
		if err := compile.Reset(x); err != nil {
			t.Fatal(err)
		}
	}
	eager, peak := measure("eager", func(w *gpt2.Training) (step, check func()) {
		return func() { program(w.Step).eager(t, x) }, func() {}
	})
	recordFigure("gpt2.speed", "times", []float64{eager / compiled})
	recordFigure("gpt2.memory", "times", []float64{most / peak})
}

// TestLlama measures the training step of a model with Llama's parts and 201 million parameters, with and without a region.
func TestLlama(t *testing.T) {
	x := onGPU(t)
	measure := func(name string, prepare func(w *gpt2.Training) (step, check func())) {
		open := func(x *tenon.Exec) (*gpt2.Training, error) { return llama.NewTraining(x, llama.Base(), 8) }
		measureTraining(t, x, "llama."+name, open, prepare)
	}
	measure("compiled", func(w *gpt2.Training) (step, check func()) { return inRegion(t, x, "", w.Step) })
	if err := compile.Reset(x); err != nil {
		t.Fatal(err)
	}
	measure("callable", func(w *gpt2.Training) (step, check func()) {
		forward := compile.Func(w.Forward)
		return asCallable(t, x, forward.Stats, func(x *tenon.Exec) error { return w.StepWith(x, forward.Call) })
	})
	if err := compile.Reset(x); err != nil {
		t.Fatal(err)
	}
	measure("eager", func(w *gpt2.Training) (step, check func()) {
		return func() { program(w.Step).eager(t, x) }, func() {}
	})
}

// TestDecode measures one token of the same model in bf16 with caches of 1,024 positions; the program reads no token.
func TestDecode(t *testing.T) { runDecode(t, onGPU(t), "") }

// TestGoDecode measures the Go part of it, on a driver that does nothing.
func TestGoDecode(t *testing.T) { runDecode(t, onNull(t), ".go") }

// runDecode measures a token of GPT-2, eager and compiled; part is the end of the figures' names.
func runDecode(t *testing.T, x *tenon.Exec, part string) {
	const tokens, samples = 50, 12
	x.Scope(func(x *tenon.Exec) {
		m := gpt2.New(x, gpt2.Base())
		defer nn.Close(m)
		if err := nn.ToDType(x, m, tenon.BFloat16); err != nil {
			t.Fatal(err)
		}
		measure := func(name string, prepare func(d *gpt2.Decoder) (step func(), check func())) {
			d := gpt2.NewDecoder(x, m, 11)
			defer d.Close()
			step, check := prepare(d)
			us := make([]float64, samples)
			for i := range us {
				if err := x.Synchronize(); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for range tokens {
					step()
				}
				if err := x.Synchronize(); err != nil {
					t.Fatal(err)
				}
				us[i] = time.Since(began).Seconds() * 1e6 / tokens
			}
			check()
			recordFigure("decode."+name+part, "µs", us[2:])
		}
		measure("eager", func(d *gpt2.Decoder) (step, check func()) {
			step = func() {
				x.Scope(func(x *tenon.Exec) {
					if err := d.Step(x); err != nil {
						t.Fatal(err)
					}
				})
			}
			return step, func() {}
		})
		measure("compiled", func(d *gpt2.Decoder) (step, check func()) {
			r := compile.New()
			compiledUntilReplay(t, x, r, d.Step)
			before := r.Stats(x)
			step = func() {
				if err := r.Do(x, d.Step); err != nil {
					t.Fatal(err)
				}
			}
			return step, func() { oneGraph(t, x, r, before) }
		})
	})
}
