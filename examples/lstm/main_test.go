package main

import (
	"fmt"
	"math"
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

// The state equals the result of PyTorch's formulas in float64, in both directions, and data after a row's end does not change it.
func TestRecurrent(t *testing.T) {
	const length, in, width = 5, 3, 4
	ends := []int{5, 3}
	for _, kind := range []struct{ gru, reverse bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		tenontest.Run(t, func(x *tenon.Exec) {
			x.Device().Generator().SetSeed(2)
			r := newRecurrent(x, in, width, kind.gru, kind.reverse)
			defer nn.Close(r)
			inputs := x.RandN([]int{len(ends), length, in}, tenon.Float32)
			valid := x.Lt(x.Arange(0, length, 1, tenon.Int64), tenon.From(x, []int64{5, 3}, 2, 1))
			got := read(t, x, r.Forward(x, inputs, valid))
			rows := read(t, x, inputs)
			for row, end := range ends {
				want := reference(t, x, r, rows[row*length*in:][:end*in], in, width)
				for i, w := range want {
					if g := float64(got[row*width+i]); math.Abs(g-w) > 1e-5 {
						t.Errorf("%+v, row %d, element %d: got %g, want %g", kind, row, i, g, w)
					}
				}
			}
		}, tenon.Sim(0))
	}
}

// reference computes the last state on the host.
func reference(t *testing.T, x *tenon.Exec, r *recurrent, inputs []float32, in, width int) []float64 {
	wi, wh := read(t, x, r.WeightIH.Tensor()), read(t, x, r.WeightHH.Tensor())
	bi, bh := read(t, x, r.BiasIH.Tensor()), read(t, x, r.BiasHH.Tensor())
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	h, c := make([]float64, width), make([]float64, width)
	for step := range len(inputs) / in {
		if r.reverse {
			step = len(inputs)/in - 1 - step
		}
		gate := func(g, i int) (a, b float64) { // the gate's terms from input and state
			n := g*width + i
			a, b = float64(bi[n]), float64(bh[n])
			for k := range in {
				a += float64(wi[n*in+k]) * float64(inputs[step*in+k])
			}
			for k := range width {
				b += float64(wh[n*width+k]) * h[k]
			}
			return a, b
		}
		sum := func(g, i int) float64 { a, b := gate(g, i); return a + b }
		next := make([]float64, width)
		for i := range width {
			if r.gru {
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
