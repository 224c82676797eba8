package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
	"tenon.dev/tenontest"
)

// small are the options of a run of about a second.
var small = options{epochs: 4, planned: 4, batch: 4, seed: 1, model: config{context: 8, width: 16, heads: 2, layers: 2, dropout: 0.1}}

var text = []byte(strings.Repeat("the quick brown fox jumps over the lazy dog. ", 12))

// learned trains and returns the printed output, and the parameters' bits with the text that the model writes.
func learned(t *testing.T, o options) (printed, model string) {
	t.Helper()
	var out, b strings.Builder
	tenontest.Run(t, func(x *tenon.Exec) {
		training, err := newTraining(x, text, o)
		if err != nil {
			t.Fatal(err)
		}
		defer training.close()
		if err := training.run(x, o, &out); err != nil {
			t.Fatal(err)
		}
		if o.compile {
			trees, ok := compile.TreesOf(x)
			if !ok || trees.Graphs == 0 {
				t.Errorf("nothing ran as a graph: %+v", trees)
			}
			if err := compile.Reset(x); err != nil {
				t.Error(err)
			}
		}
		for name, p := range nn.Params(training.model) {
			bits, err := x.Bytes(p.Tensor())
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s %x\n", name, bits)
		}
		sample, err := training.write(x, text[:4], 4, 0.8, 3)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%q", sample)
	}, tenon.Sim(0))
	return out.String(), b.String()
}

// The loss falls, a run in two parts gives the same result as in one, and neither graphs nor recomputed blocks change a bit.
func TestGPT(t *testing.T) {
	printed, model := learned(t, small)
	var losses []float64
	for _, m := range regexp.MustCompile(`loss (.*)`).FindAllStringSubmatch(printed, -1) {
		loss, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss)
	}
	if len(losses) != 4 || losses[3] > 0.95*losses[0] {
		t.Errorf("the losses are %v", losses)
	}

	t.Run("resumed", func(t *testing.T) {
		o := small
		o.checkpoint = filepath.Join(t.TempDir(), "run.pt")
		o.epochs = 2
		first, _ := learned(t, o)
		o.epochs = 4
		rest, resumed := learned(t, o)
		if first+rest != printed || resumed != model {
			t.Errorf("it printed\n%s%swant\n%s", first, rest, printed)
		}
	})
	compiled, recomputed := small, small
	compiled.compile, recomputed.model.recompute = true, true
	for name, o := range map[string]options{"compiled": compiled, "recomputed": recomputed} {
		t.Run(name, func(t *testing.T) {
			if out, got := learned(t, o); out != printed || got != model {
				t.Errorf("it learns something else and printed\n%swant\n%s", out, printed)
			}
		})
	}
}
