package conformance

import (
	"math"
	"testing"

	"tenon.dev"
)

// logitCase is a function of logits with infinities and NaNs, its result and, for a gradient of ones, their gradient, recorded from
// PyTorch 2.11 on an H200. T are targets, W weights, P probabilities, Red the reduction and S the label smoothing.
type logitCase struct {
	Name, Red    string
	X, Out, Grad recordedBits
	T            []int64
	W, P         *recordedBits
	S            float64
	Spatial      bool
}

func (c *logitCase) call(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	var weight, target *tenon.Tensor
	if c.W != nil {
		weight = c.W.tensor(x)
	}
	if c.T != nil {
		target = tenon.From(x, c.T)
	}
	reduction, _ := choiceOf[tenon.Reduction](c.Red) // only losses have a reduction
	opt := tenon.CrossEntropyOpt{Weight: weight, Reduction: reduction, LabelSmoothing: c.S}
	switch c.Name {
	case "log_softmax":
		return x.LogSoftmax(in, 1)
	case "softmax":
		return x.Softmax(in, 1)
	case "logsumexp":
		return x.LogSumExp(in, []int{1})
	case "nll_loss":
		return x.NLLLoss(in, target, tenon.NLLLossOpt{Weight: weight, Reduction: reduction})
	case "cross_entropy_prob":
		return x.CrossEntropy(in, c.P.tensor(x), opt)
	}
	if c.Spatial {
		return x.CrossEntropy(x.Unsqueeze(x.Transpose(in, 0, 1), 0), x.Unsqueeze(target, 0), opt)
	}
	return x.CrossEntropy(in, target, opt)
}

// near fails if got and the recorded numbers differ by more than rounding, or if only one of them is infinite or NaN.
func (c *logitCase) near(t *testing.T, x *tenon.Exec, what string, got *tenon.Tensor, recorded *recordedBits) {
	read := func(u *tenon.Tensor) []float32 {
		v, err := tenon.Read[float32](x, x.ToDType(u, tenon.Float32))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	want := read(recorded.tensor(x))
	tolerance := map[string]float64{"f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}[c.X.D]
	for i, g := range read(got) {
		g, w := float64(g), float64(want[i])
		if math.IsNaN(g) != math.IsNaN(w) || g == g && g != w && !(math.Abs(g-w) <= tolerance*(1+math.Abs(w))) {
			t.Errorf("%s of %s, reduction %q, smoothing %v, weighted %v: the %s's element %d is %v, want %v", c.Name, c.X.D, c.Red, c.S,
				c.W != nil, what, i, g, w)
			return
		}
	}
}

// TestInfiniteLogits checks for PyTorch's infinities and NaNs in softmax and likelihoods, and in their gradients.
func TestInfiniteLogits(t *testing.T) {
	var cases []logitCase
	readRecorded(t, "testdata/logits.json.gz", &cases)
	x := open(t)
	for i := range cases {
		c := &cases[i]
		x.Scope(func(x *tenon.Exec) {
			in := c.X.tensor(x).SetRequiresGrad(true)
			y := c.call(x, in)
			c.near(t, x, "result", y, &c.Out)
			if err := x.Backward(y, tenon.BackwardOpt{Gradient: x.OnesLike(y)}); err != nil {
				t.Fatal(err)
			}
			c.near(t, x, "gradient", in.Grad(), &c.Grad)
		})
	}
	t.Logf("infinite logits: %d cases", len(cases))
}
