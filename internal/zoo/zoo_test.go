package zoo_test

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/testdevice"
	"tenon.dev/internal/zoo"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

//go:embed testdata/zoo.json.gz
var recording []byte

// sample is a tensor of the recording: every step-th element up to some number of them, and the norm of all.
type sample struct {
	Shape  []int     `json:"shape"`
	Norm   float64   `json:"norm"`
	Step   int       `json:"step"`
	Values []float64 `json:"values"`
}

// recorded is what PyTorch computes for a model, in float64. Err32 holds the errors of PyTorch's own float32 relative to the root mean
// square.
type recorded struct {
	Eval    sample            `json:"eval"`
	Train   sample            `json:"train"`
	Loss    float64           `json:"loss"`
	Grads   map[string]sample `json:"grads"`
	Buffers map[string]sample `json:"buffers"`
	Losses  []float64         `json:"losses"`
	Params  parameters        `json:"params"`
	Err32   struct {
		Eval   float64            `json:"eval"`
		Train  float64            `json:"train"`
		Grads  map[string]float64 `json:"grads"`
		Losses []float64          `json:"losses"`
	} `json:"err32"`
}

// parameters are names and shapes in PyTorch's order.
type parameters []string

func (p *parameters) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil { // the opening brace
		return err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var shape []int
		if err := d.Decode(&shape); err != nil {
			return err
		}
		*p = append(*p, fmt.Sprint(name, shape))
	}
	return nil
}

func fromTorch(t *testing.T) map[string]recorded {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(recording))
	must(t, err)
	var all struct {
		Models map[string]recorded `json:"models"`
	}
	must(t, json.NewDecoder(r).Decode(&all))
	return all.Models
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var (
	only = flag.String("model", "", "test only this model")
	long = flag.Bool("long", false, "test the large models too, whose steps take about a minute each on the simulator")
)

// each runs f for every model that is to be tested, with its weights filled.
func each(t *testing.T, f func(t *testing.T, x *tenon.Exec, m zoo.Model, net zoo.Network, want recorded)) {
	torch := fromTorch(t)
	models := zoo.Models()
	for _, name := range slices.Sorted(maps.Keys(models)) {
		large := models[name].Size == 224 || name == "bert" || name == "gpt2"
		if *only != "" && *only != name || *only == "" && large && !*long {
			continue
		}
		t.Run(name, func(t *testing.T) {
			x := testdevice.Open(t, tenon.Best())
			net := models[name].New(x)
			defer nn.Close(net)
			zoo.Fill(x, net)
			f(t, x, models[name], net, torch[name])
		})
	}
}

// errorOf returns the greatest error of a's samples relative to the root mean square.
func errorOf(t *testing.T, x *tenon.Exec, a *tenon.Tensor, want sample) float64 {
	t.Helper()
	if !slices.Equal(a.Shape(), want.Shape) {
		t.Errorf("the shape is %v, want %v", a.Shape(), want.Shape)
		return math.Inf(1)
	}
	got := testdevice.Read[float32](t, x, a)
	square, most := 0.0, 0.0
	for _, v := range got {
		square += float64(v) * float64(v)
	}
	size := want.Norm / math.Sqrt(float64(len(got)))
	most = math.Abs(math.Sqrt(square)-want.Norm) / math.Sqrt(float64(len(got)))
	for i, v := range want.Values {
		most = max(most, math.Abs(v-float64(got[i*want.Step])))
	}
	if size == 0 {
		return most
	}
	return most / size
}

// near reports an error that is much greater than PyTorch's own. Where that is large, the result depends on rounding, and says nothing.
func near(t *testing.T, what string, err, own float64) {
	t.Helper()
	if own < 1e-2 && !(err <= 20*own+2e-5) {
		t.Errorf("%s: the greatest error is %.2g, PyTorch's own %.2g", what, err, own)
	}
}

// Parameters have PyTorch's names, shapes and order, and outputs, gradients and statistics its values.
func TestResults(t *testing.T) {
	each(t, func(t *testing.T, x *tenon.Exec, m zoo.Model, net zoo.Network, want recorded) {
		var params parameters
		for name, p := range nn.Params(net) {
			params = append(params, fmt.Sprint(name, p.Tensor().Shape()))
		}
		if !slices.Equal(params, want.Params) {
			t.Fatalf("the parameters are\n%v\nwant\n%v", params, want.Params)
		}
		must(t, x.Do(func(x *tenon.Exec) error {
			in, target := m.Inputs(x, m.Batch, m.Size)
			nn.Eval(net)
			near(t, "output of inference", errorOf(t, x, net.Forward(x.NoGrad(), in), want.Eval), want.Err32.Eval)
			nn.Train(net)
			out := net.Forward(x, in)
			near(t, "output in training", errorOf(t, x, out, want.Train), want.Err32.Train)
			loss := net.Loss(x, out, target)
			v, err := x.Item(loss)
			must(t, err)
			near(t, "loss", math.Abs(v-want.Loss)/want.Loss, want.Err32.Losses[0])
			return x.Backward(loss)
		}))
		for name, p := range nn.Params(net) {
			near(t, "gradient of "+name, errorOf(t, x, p.Grad(), want.Grads[name]), want.Err32.Grads[name])
		}
		for name, a := range nn.StateDict(net) {
			if s, ok := want.Buffers[name]; ok {
				near(t, name, errorOf(t, x, a, s), want.Err32.Train)
			}
		}
	})
}

// Five steps of AdamW have PyTorch's losses, in a region those of eager execution, bit by bit, and there they are one graph.
func TestSteps(t *testing.T) {
	losses := map[string][]float64{}
	each(t, func(t *testing.T, x *tenon.Exec, m zoo.Model, net zoo.Network, want recorded) {
		for _, way := range []string{"eager", "compiled"} {
			zoo.Fill(x, net)
			opt, err := optim.NewAdamW(nn.Params(net), optim.AdamOpt{LR: 1e-3, WeightDecay: 0.01})
			must(t, err)
			defer opt.Close()
			in, target := m.Inputs(x, m.Batch, m.Size)
			r := compile.New()
			do := x.Do
			if way == "compiled" {
				do = func(f func(x *tenon.Exec) error) error { return r.Do(x, f) }
			}
			losses[way] = nil
			for range want.Losses {
				var loss *tenon.Tensor
				must(t, do(func(x *tenon.Exec) error {
					loss = x.Keep(net.Loss(x, net.Forward(x, in), target))
					if err := x.Backward(loss); err != nil {
						return err
					}
					if err := opt.Step(x); err != nil {
						return err
					}
					opt.ZeroGrad()
					return nil
				}))
				v, err := x.Item(loss)
				must(t, err)
				loss.Close()
				losses[way] = append(losses[way], v)
			}
			for _, a := range append(in, target) {
				a.Close()
			}
			if s := r.Stats(x); way == "compiled" && (s.Recordings != 1 || s.Replays == 0 || s.Plain+s.Eager+s.Forced+s.Unknown > 0) {
				t.Errorf("the step is not one graph that replays: %+v", s)
			}
		}
		for i, v := range want.Losses {
			near(t, "loss", math.Abs(losses["eager"][i]-v)/v, want.Err32.Losses[i])
		}
		if !slices.Equal(losses["eager"], losses["compiled"]) {
			t.Errorf("compiled steps have the losses %v, eager ones %v", losses["compiled"], losses["eager"])
		}
	})
}
