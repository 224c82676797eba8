package resnet_test

import (
	_ "embed"
	"encoding/json"
	"math"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/resnet"
	"tenon.dev/internal/testdevice"
	"tenon.dev/internal/zoo"
	"tenon.dev/nn"
)

//go:embed testdata/torch.json
var torchJSON []byte

// recorded describes PyTorch's network, and its results with the zoo's values.
type recorded struct {
	Params [][2]any `json:"params"`
	// Eval are evenly spaced logits of the first image, in float64, and Err32 is the error of PyTorch's own float32.
	Eval struct {
		Step   int       `json:"step"`
		Values []float64 `json:"values"`
	} `json:"eval"`
	Err32 float64 `json:"err32"`
}

func fromTorch(t *testing.T) (r recorded) {
	t.Helper()
	if err := json.Unmarshal(torchJSON, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// The parameters have PyTorch's names, shapes and order.
func TestParameters(t *testing.T) {
	x := testdevice.Open(t, tenon.Best())
	m := resnet.New(x, resnet.Base())
	defer nn.Close(m)
	var want []string
	for _, p := range fromTorch(t).Params {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, string(text))
	}
	var got []string
	for name, p := range nn.Params(m) {
		text, err := json.Marshal([2]any{name, p.Tensor().Shape()})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(text))
		if !p.Tensor().RequiresGrad() {
			t.Errorf("%s does not learn", name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the parameters are\n%v\nwant\n%v", got, want)
	}
	if n := nn.NumParams(m); n != 25_557_032 {
		t.Errorf("there are %d parameters", n)
	}
}

// The logits of an image are PyTorch's, in either layout.
func TestLogits(t *testing.T) {
	if testing.Short() {
		t.Skip("the interpreter takes seconds for an image")
	}
	want := fromTorch(t)
	for _, last := range []bool{false, true} {
		x := testdevice.Open(t, tenon.Best()).NoGrad()
		c := resnet.Base()
		c.ChannelsLast = last
		m := resnet.New(x, c)
		defer nn.Close(m)
		nn.Eval(m)
		x.Scope(func(x *tenon.Exec) {
			zoo.Fill(x, m)
			image := zoo.Images(x, 1, c.Side)
			if last {
				image = x.ChannelsLast(image)
			}
			got := testdevice.Read[float32](t, x, m.Forward(x, image))
			var square, most float64
			for i, v := range want.Eval.Values {
				square += v * v
				most = max(most, math.Abs(v-float64(got[i*want.Eval.Step])))
			}
			most /= math.Sqrt(square / float64(len(want.Eval.Values)))
			t.Logf("channels last %v: the greatest error is %.2g, PyTorch's own %.2g", last, most, want.Err32)
			if !(most <= 10*want.Err32) {
				t.Errorf("channels last %v: the greatest error is %.2g of the logits' size", last, most)
			}
		})
	}
}
