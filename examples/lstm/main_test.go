package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
	"tenon.dev/tenontest"
)

// Both networks learn, and a compiled run, which uses graphs, prints the same.
func TestLSTM(t *testing.T) {
	for _, gru := range []bool{false, true} {
		t.Run(fmt.Sprint("gru ", gru), func(t *testing.T) {
			o := options{code: "../../nn/*.go", prose: "../../docs/*.md", lines: 64, length: 8, width: 12, epochs: 4, batch: 16, gru: gru}
			var eager, compiled strings.Builder
			tenontest.Run(t, func(x *tenon.Exec) {
				if err := train(x, o, &eager); err != nil {
					t.Fatal(err)
				}
				o.compile = true
				if err := train(x, o, &compiled); err != nil {
					t.Fatal(err)
				}
				if trees, ok := compile.TreesOf(x); !ok || trees.Graphs == 0 {
					t.Errorf("nothing ran as a graph: %+v", trees)
				}
				if err := compile.Reset(x); err != nil {
					t.Error(err)
				}
			}, tenon.Sim(0))
			if eager.String() != compiled.String() {
				t.Errorf("compiled it prints\n%swant\n%s", compiled.String(), eager.String())
			}
			var loss, right [4]float64
			for i, line := range strings.Split(strings.TrimSpace(eager.String()), "\n") {
				var epoch int
				if _, err := fmt.Sscanf(line, "epoch %d  loss %f  right %f", &epoch, &loss[i], &right[i]); err != nil {
					t.Fatal(err)
				}
			}
			if loss[3] > 0.9*loss[0] || right[3] < 0.7 {
				t.Errorf("it learns too little:\n%s", eager.String())
			}
		})
	}
}

// The logit equals the result of PyTorch's formulas in float64. A line ends at its first 0.
func TestClassifier(t *testing.T) {
	const length, width = 5, 4
	lines := []int64{66, 3, 120, 9, 30, 9, 40, 17, 0, 0}
	for _, gru := range []bool{false, true} {
		tenontest.Run(t, func(x *tenon.Exec) {
			x.Device().Generator().SetSeed(2)
			m := newClassifier(x, width, gru)
			defer nn.Close(m)
			values := map[string][]float32{}
			for name, p := range nn.Params(m) {
				values[name] = read(t, x, p.Tensor())
			}
			got := read(t, x, m.Forward(x, tenon.From(x, lines, len(lines)/length, length)))
			for row, g := range got {
				line := lines[row*length:][:length]
				if end := slices.Index(line, 0); end >= 0 {
					line = line[:end]
				}
				if want := reference(values, line, width, gru); math.Abs(float64(g)-want) > 1e-5 {
					t.Errorf("gru %v, row %d: got %g, want %g", gru, row, g, want)
				}
			}
		}, tenon.Sim(0))
	}
}

// reference computes the logit on the host.
func reference(values map[string][]float32, line []int64, width int, gru bool) float64 {
	logit := float64(values["Out.bias"][0])
	for direction, suffix := range []string{"", "_reverse"} {
		for i, h := range lastState(values, suffix, line, width, gru) {
			logit += float64(values["Out.weight"][direction*width+i]) * h
		}
		line = slices.Clone(line)
		slices.Reverse(line)
	}
	return logit
}

// lastState computes one direction's state after the line.
func lastState(values map[string][]float32, suffix string, line []int64, width int, gru bool) []float64 {
	key := func(name string) string {
		if gru {
			return "GRU." + name + "_l0" + suffix
		}
		return "LSTM." + name + "_l0" + suffix
	}
	wi, wh, bi, bh := values[key("weight_ih")], values[key("weight_hh")], values[key("bias_ih")], values[key("bias_hh")]
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	in := width / 2
	h, c := make([]float64, width), make([]float64, width)
	for _, character := range line {
		gate := func(g, i int) (a, b float64) { // the gate's terms from input and state
			n := g*width + i
			a, b = float64(bi[n]), float64(bh[n])
			for k := range in {
				a += float64(wi[n*in+k]) * float64(values["Characters.weight"][int(character)*in+k])
			}
			for k := range width {
				b += float64(wh[n*width+k]) * h[k]
			}
			return a, b
		}
		sum := func(g, i int) float64 { a, b := gate(g, i); return a + b }
		next := make([]float64, width)
		for i := range width {
			if gru {
				a, b := gate(2, i)
				n, z := math.Tanh(a+sigmoid(sum(0, i))*b), sigmoid(sum(1, i))
				next[i] = (1-z)*n + z*h[i]
				continue
			}
			c[i] = sigmoid(sum(1, i))*c[i] + sigmoid(sum(0, i))*math.Tanh(sum(2, i))
			next[i] = sigmoid(sum(3, i)) * math.Tanh(c[i])
		}
		h = next
	}
	return h
}

func read(t *testing.T, x *tenon.Exec, a *tenon.Tensor) []float32 {
	t.Helper()
	v, err := tenon.Read[float32](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
