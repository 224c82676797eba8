package bench

import (
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/gpt2"
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

// TestGPT2 measures the training step of GPT-2 with 124 million parameters, with and without a region.
func TestGPT2(t *testing.T) {
	x := onGPU(t)
	const batch, warm, steps, samples = 8, 3, 5, 6
	// measure records the figures of one way to run the step, as set up by prepare, and returns the medians of time and peak.
	measure := func(name string, prepare func(w *gpt2.Training) (step func(), check func())) (ms, peak float64) {
		x.Scope(func(x *tenon.Exec) {
			if err := x.Device().EmptyCache(); err != nil {
				t.Fatal(err)
			}
			if err := x.Generator().SetSeed(1); err != nil {
				t.Fatal(err)
			}
			w, err := gpt2.NewTraining(x, gpt2.Base(), batch)
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
			ms = recordFigure("gpt2."+name, "ms", values)
			peak = recordFigure("gpt2."+name+".peak", "GiB", []float64{float64(x.Device().MaxMemoryAllocated()) / gib})
			recordFigure("gpt2."+name+".reserved", "GiB", []float64{float64(x.Device().MaxMemoryReserved()) / gib})
			loss, err := x.Item(w.Loss)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: the loss is %v", name, loss)
		})
		return ms, peak
	}
	compiled, most := measure("compiled", func(w *gpt2.Training) (step, check func()) { // first, so that its kernels are built in it
		r := compile.New()
		recordFigure("gpt2.compile", "s", []float64{compiledUntilReplay(t, x, r, w.Step)})
		before := r.Stats(x)
		step = func() {
			if err := r.Do(x, w.Step); err != nil {
				t.Fatal(err)
			}
		}
		return step, func() {
			oneGraph(t, x, r, before)
			t.Logf("%+v", r.Stats(x))
		}
	})
	if err := compile.Reset(x); err != nil {
		t.Fatal(err)
	}
	for name, opt := range map[string]compile.Opt{"callable": {}, "callable.saved": {NoRecompute: true}} { //tenon:unordered apart
		measure(name, func(w *gpt2.Training) (step, check func()) {
			forward := compile.Func(w.Forward, opt)
			step = func() {
				x.Scope(func(x *tenon.Exec) {
					if err := w.StepWith(x, forward.Call); err != nil {
						t.Fatal(err)
					}
				})
			}
			return step, func() {
				if s := forward.Stats(x); s.Recordings != 1 || s.Plain+s.Eager+s.Forced+s.Unknown > 0 {
					t.Errorf("the forward pass is not one graph: %+v", s)
				}
				t.Logf("%+v", forward.Stats(x))
			}
		})
		if err := compile.Reset(x); err != nil {
			t.Fatal(err)
		}
	}
	eager, peak := measure("eager", func(w *gpt2.Training) (step, check func()) {
		step = func() {
			x.Scope(func(x *tenon.Exec) {
				if err := w.Step(x); err != nil {
					t.Fatal(err)
				}
			})
		}
		return step, func() {}
	})
	recordFigure("gpt2.speed", "times", []float64{eager / compiled})
	recordFigure("gpt2.memory", "times", []float64{most / peak})
}

// TestDecode measures one token of the same model in bf16 with caches of 1,024 positions; the program reads no token.
func TestDecode(t *testing.T) {
	x := onGPU(t)
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
			recordFigure("decode."+name, "µs", us[2:])
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
