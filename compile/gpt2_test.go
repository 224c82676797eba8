package compile_test

import (
	"bytes"
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/gpt2"
	"tenon.dev/nn"
)

// gpt2Training returns a small model in training, the same on every call.
func gpt2Training(t *testing.T, x *tenon.Exec) *gpt2.Training {
	t.Helper()
	must(t, x.Generator().SetSeed(11))
	w, err := gpt2.NewTraining(x, gpt2.Small(), 2)
	must(t, err)
	t.Cleanup(w.Close)
	return w
}

// weights returns the weights of the model in training.
func weights(t *testing.T, x *tenon.Exec, w *gpt2.Training) (out string) {
	t.Helper()
	for name, p := range nn.Params(w.Model) {
		b, err := x.Bytes(p.Tensor())
		must(t, err)
		out += fmt.Sprintf("%s: %s\n", name, digest(b))
	}
	return out
}

// A training step of GPT-2 is one graph, with the same losses and weights as without a region, while the schedule changes the rate.
func TestGPT2Step(t *testing.T) {
	const steps = 6
	run := func(r *compile.Region) (out string, peak int64) {
		x := open(t)
		w := gpt2Training(t, x)
		x.Device().ResetPeakStats()
		for i := range steps {
			if r == nil {
				x.Scope(func(x *tenon.Exec) { must(t, w.Step(x)) })
			} else {
				must(t, r.Do(x, w.Step))
			}
			loss, err := x.Item(w.Loss)
			must(t, err)
			rate, err := x.Item(w.Rate)
			must(t, err)
			out += fmt.Sprintf("step %d: loss %v, rate %v\n", i, loss, rate)
		}
		peak = x.Device().MaxMemoryAllocated()
		out += weights(t, x, w)
		if r == nil {
			return out, peak
		}
		s := r.Stats(x)
		if s.Recordings != 1 || s.Replays < steps-3 || s.Eager != 0 || s.Forced != 0 || s.Plain != 0 || s.Unknown != 0 {
			t.Errorf("the step is not one graph: %+v", s)
		}
		return out, peak
	}
	want, peak := run(nil)
	got, most := run(compile.New())
	if got != want {
		t.Errorf("in a region the steps give\n%.2000s\nwant\n%.2000s", got, want)
	}
	t.Logf("the peak is %d bytes, %d without a region", most, peak)
	if most > peak {
		t.Errorf("the peak is %d bytes, %d without a region", most, peak)
	}
}

// A GPT-2 whose forward pass is a callable trains like one without, and needs less memory if it does not save what it can compute again.
func TestGPT2Callable(t *testing.T) {
	const steps = 5
	run := func(forward func(w *gpt2.Training) *compile.Callable[gpt2Forward]) (out string, held int64) {
		x := open(t)
		w := gpt2Training(t, x)
		f := &compile.Callable[gpt2Forward]{Call: w.Forward}
		if forward != nil {
			f = forward(w)
		}
		for range steps {
			x.Scope(func(x *tenon.Exec) {
				must(t, w.StepWith(x, func(x *tenon.Exec, tokens, want *tenon.Tensor) *tenon.Tensor {
					before := x.Device().MemoryAllocated()
					loss := f.Call(x, tokens, want)
					held = x.Device().MemoryAllocated() - before
					return loss
				}))
			})
			loss, err := x.Item(w.Loss)
			must(t, err)
			out += fmt.Sprintln(loss)
		}
		out += weights(t, x, w)
		return out, held
	}
	want, eager := run(nil)
	held := map[bool]int64{}
	for _, saves := range []bool{true, false} {
		got, n := run(func(w *gpt2.Training) *compile.Callable[gpt2Forward] {
			return compile.Func(w.Forward, compile.Opt{NoRecompute: saves, NoGraphs: true})
		})
		if held[saves] = n; got != want {
			t.Errorf("with NoRecompute %v: the steps give\n%.2000s\nwant\n%.2000s", saves, got, want)
		}
		got, _ = run(func(w *gpt2.Training) *compile.Callable[gpt2Forward] {
			return compile.Func(w.Forward, compile.Opt{NoRecompute: saves})
		})
		if got != want {
			t.Errorf("as graphs, with NoRecompute %v: the steps give\n%.2000s\nwant\n%.2000s", saves, got, want)
		}
	}
	t.Logf("between the passes %d bytes are held, %d if all is saved, %d without compile", held[false], held[true], eager)
	if held[false]*4 > held[true]*3 || held[true] > eager {
		t.Error("too much is held")
	}
}

type gpt2Forward = func(x *tenon.Exec, tokens, want *tenon.Tensor) *tenon.Tensor

// gpt2Launches returns the number of operations that the fifth step queues, without graphs.
func gpt2Launches(t *testing.T, r *compile.Region) int {
	t.Helper()
	x, rec := openRecorded(t)
	w := gpt2Training(t, x)
	for range 5 {
		rec.Reset()
		if r == nil {
			x.Scope(func(x *tenon.Exec) { must(t, w.Step(x)) })
		} else {
			must(t, r.Do(x, w.Step))
		}
	}
	return rec.Count("Launch") + rec.Count("Memset") + rec.Count("CopyDtoD")
}

// A region needs fewer launches for the step than its calls need one by one.
func TestGPT2Launches(t *testing.T) {
	r := compile.New(compile.Opt{NoGraphs: true})
	eager, fused := gpt2Launches(t, nil), gpt2Launches(t, r)
	t.Logf("%d launches eager, %d in a region", eager, fused)
	if fused >= eager {
		t.Errorf("%d launches in a region, %d without", fused, eager)
	}
}

// A decoder that changes its caches in place runs entirely in one graph from the third token on, and its output is the same as without a
// region.
func TestGPT2Decoder(t *testing.T) {
	const tokens = 40
	c := gpt2.Small()
	c.Context = tokens
	run := func(r *compile.Region) (out []int64, bits [][]byte) {
		x := open(t)
		must(t, x.Generator().SetSeed(12))
		m := gpt2.New(x, c)
		t.Cleanup(func() { nn.Close(m) })
		must(t, nn.ToDType(x, m, tenon.BFloat16))
		for _, p := range nn.Params(m) { // large enough that tokens differ
			x.NoGrad().MulSInto(p.Tensor(), p.Tensor(), 20)
		}
		d := gpt2.NewDecoder(x, m, 5)
		t.Cleanup(d.Close)
		look := func(a *tenon.Tensor) {
			b, err := x.Bytes(a)
			must(t, err)
			bits = append(bits, b)
		}
		for range tokens {
			if r == nil {
				x.Scope(func(x *tenon.Exec) { must(t, d.Step(x)) })
			} else {
				must(t, r.Do(x, d.Step))
			}
			v, err := x.Item(d.Token)
			must(t, err)
			out = append(out, int64(v))
			look(d.Logits)
		}
		for _, a := range d.Caches() {
			look(a)
		}
		if r != nil {
			s := r.Stats(x)
			if s.WarmUps != 1 || s.Recordings != 1 || s.Replays != tokens-2 || s.Plain+s.Eager+s.Forced+s.Unknown != 0 {
				t.Errorf("the tokens are not all in graphs: %+v", s)
			}
			t.Logf("%+v", s)
		}
		return out, bits
	}
	want, bits := run(nil)
	got, mine := run(compile.New())
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("in a region the tokens are %v, want %v", got, want)
	}
	for i := range bits {
		if !bytes.Equal(bits[i], mine[i]) {
			t.Fatalf("in a region the bits of tensor %d differ", i)
		}
	}
	distinct := map[int64]bool{}
	for _, v := range want {
		distinct[v] = true
	}
	if len(distinct) < 5 {
		t.Errorf("the tokens say little: %v", want)
	}
}

// The step of the model of 124 million parameters, with eight rows, never needs more memory than PyTorch's compiled one takes on an H200:
// when it is recorded, and in the runs before that. The device computes nothing, but allocates as a GPU does.
func TestGPT2Peak(t *testing.T) {
	const gib, pytorch = 1 << 30, 5.115 // PyTorch's peak in GiB
	x := openNull(t)
	w, err := gpt2.NewTraining(x, gpt2.Base(), 8)
	must(t, err)
	t.Cleanup(w.Close)
	r := compile.New()
	for i := range 5 {
		x.Device().ResetPeakStats()
		must(t, r.Do(x, w.Step))
		peak, reserved := float64(x.Device().MaxMemoryAllocated())/gib, float64(x.Device().MaxMemoryReserved())/gib
		t.Logf("run %d: the peak is %.3f GiB, %.3f GiB are reserved", i, peak, reserved)
		if peak > pytorch {
			t.Errorf("run %d: the peak is %.3f GiB", i, peak)
		}
	}
	if s := r.Stats(x); s.Recordings != 1 || s.WarmUps != 2 || s.Replays != 2 {
		t.Errorf("%+v", s)
	}
}
