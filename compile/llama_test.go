package compile_test

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/gpt2"
	"tenon.dev/internal/llama"
)

// A model with Llama's parts trains with the same bits in a region, and with its forward pass as a callable. The rotations of queries and
// keys, forward and backward, are one kernel each.
func TestLlamaStep(t *testing.T) {
	const steps = 5
	run := func(step func(x *tenon.Exec, w *gpt2.Training) error) (out string) {
		x := open(t)
		must(t, x.Generator().SetSeed(5))
		w, err := llama.NewTraining(x, llama.Small(), 2)
		must(t, err)
		defer w.Close()
		for range steps {
			must(t, step(x, w))
			loss, err := x.Item(w.Loss)
			must(t, err)
			out += fmt.Sprintln(loss)
		}
		return out + weights(t, x, w)
	}
	want := run(func(x *tenon.Exec, w *gpt2.Training) error { return x.Do(w.Step) })
	r, text := compile.New(), ""
	got := run(func(x *tenon.Exec, w *gpt2.Training) error {
		defer func() { text = r.Explain(x).String() }()
		return r.Do(x, w.Step)
	})
	if got != want {
		t.Errorf("in a region the steps give\n%.2000s\nwant\n%.2000s", got, want)
	}
	if strings.Contains(text, "  Cat") {
		t.Errorf("tensors are copied side by side:\n%s", text)
	}
	var f *compile.Callable[gpt2Forward]
	got = run(func(x *tenon.Exec, w *gpt2.Training) error {
		if f == nil {
			f = compile.Func(gpt2Forward(w.Forward))
		}
		return x.Do(func(x *tenon.Exec) error { return w.StepWith(x, f.Call) })
	})
	if got != want {
		t.Errorf("with a callable the steps give\n%.2000s\nwant\n%.2000s", got, want)
	}
}
