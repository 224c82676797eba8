package resnet_test

import (
	_ "embed"
	"encoding/json"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/resnet"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

//go:embed testdata/torch.json
var torchJSON []byte

// recorded describes PyTorch's network, and its results with the values of fill.
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

// uniform returns n numbers from 0 to 1 that depend only on the name (splitmix64 of a counter), as in the recording.
func uniform(name string, n int) []float64 {
	u := make([]float64, n)
	for i := range u {
		z := uint64(i) + uint64(crc32.ChecksumIEEE([]byte(name)))<<32 + 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		u[i] = float64((z^z>>31)>>11) * 0x1p-53
	}
	return u
}

// fill returns the values of a parameter or buffer.
func fill(name string, shape []int) []float32 {
	n := 1
	for _, s := range shape {
		n *= s
	}
	out := make([]float32, n)
	for i, u := range uniform(name, n) {
		v := 0.1 * (2*u - 1)
		switch {
		case strings.HasSuffix(name, "running_var"):
			v = 1 + 0.5*u
		case len(shape) >= 2:
			v = (2*u - 1) * math.Sqrt(3/float64(n/shape[0]))
		case strings.HasSuffix(name, "weight"):
			v++
		}
		out[i] = float32(v)
	}
	return out
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
			for name, a := range nn.StateDict(m) {
				if a.DType() == tenon.Float32 {
					x.CopyInto(a, tenon.From(x, fill(name, a.Shape()), a.Shape()...))
				}
			}
			in := make([]float32, 3*c.Side*c.Side) // the first of the recorded images
			for i, u := range uniform("image", len(in)) {
				in[i] = float32(2*u-1) * 1.7
			}
			image := tenon.From(x, in, 1, 3, c.Side, c.Side)
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
