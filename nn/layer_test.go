package nn_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

func seq(x *tenon.Exec, shape ...int) *tenon.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i)
	}
	return tenon.From(x, v, shape...)
}

func TestActivations(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		in := tenon.From(x, []float32{-2, 0, 1.5}, 1, 3)
		e := func(v float64) float32 { return float32(math.Exp(v)) }
		sig := func(v float64) float32 { return float32(1 / (1 + math.Exp(-v))) }
		phi := func(v float64) float32 { return float32(v * (1 + math.Erf(v/math.Sqrt2)) / 2) }
		approx := func(v float64) float32 {
			return float32(v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))) / 2)
		}
		soft := func(b float64) func(float64) float32 {
			return func(v float64) float32 { return float32(math.Log1p(math.Exp(b*v)) / b) }
		}
		sum := e(-2) + 1 + e(1.5)
		each := func(f func(float64) float32) []float32 { return []float32{f(-2), f(0), f(1.5)} }
		for _, c := range []struct {
			name string
			m    nn.Module
			want []float32
		}{
			{"ReLU", nn.ReLU{}, []float32{0, 0, 1.5}},
			{"Sigmoid", nn.Sigmoid{}, each(sig)},
			{"Tanh", nn.Tanh{}, each(func(v float64) float32 { return float32(math.Tanh(v)) })},
			{"GELU", nn.GELU{}, each(phi)},
			{"GELU tanh", nn.GELU{Tanh: true}, each(approx)},
			{"SiLU", nn.SiLU{}, each(func(v float64) float32 { return float32(v) * sig(v) })},
			{"LeakyReLU", nn.LeakyReLU{}, []float32{-.02, 0, 1.5}},
			{"LeakyReLU slope", nn.LeakyReLU{Slope: .5}, []float32{-1, 0, 1.5}},
			{"ELU", nn.ELU{}, []float32{e(-2) - 1, 0, 1.5}},
			{"ELU alpha", nn.ELU{Alpha: 2}, []float32{2*e(-2) - 2, 0, 1.5}},
			{"Hardtanh", nn.Hardtanh{}, []float32{-1, 0, 1}},
			{"Hardtanh ends", nn.Hardtanh{Min: 0, Max: 6}, []float32{0, 0, 1.5}},
			{"ReLU6", nn.ReLU6{}, []float32{0, 0, 1.5}},
			{"Softplus", nn.Softplus{}, each(soft(1))},
			{"Softplus beta", nn.Softplus{Beta: 2}, each(soft(2))},
			{"Softplus threshold", nn.Softplus{Threshold: 1}, []float32{soft(1)(-2), soft(1)(0), 1.5}},
			{"LogSigmoid", nn.LogSigmoid{}, each(func(v float64) float32 { return -soft(1)(-v) })},
			{"Softmax", nn.Softmax{Dim: 1}, []float32{e(-2) / sum, 1 / sum, e(1.5) / sum}},
			{"LogSoftmax", nn.LogSoftmax{Dim: -1}, each(func(v float64) float32 { return float32(v - math.Log(float64(sum))) })},
			{"Identity", nn.Identity{}, []float32{-2, 0, 1.5}},
		} {
			t.Run(c.name, func(t *testing.T) { wantFloats(t, x, c.m.Forward(x, in), c.want...) })
		}
	})
}

func TestPReLU(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		in := tenon.From(x, []float32{-2, 1, -4, 3}, 1, 2, 2)
		one := nn.NewPReLU(x, 1)
		defer nn.Close(one)
		wantFloats(t, x, one.Forward(x, in), -.5, 1, -1, 3)
		each := nn.NewPReLU(x, 2, nn.PReLUOpt{Init: .5, DType: tenon.Float64})
		defer nn.Close(each)
		if err := nn.ToDType(x, each, tenon.Float32); err != nil {
			t.Fatal(err)
		}
		y := each.Forward(x, in)
		wantFloats(t, x, y, -1, 1, -2, 3)
		if err := x.Backward(x.Sum(y, nil)); err != nil {
			t.Fatal(err)
		}
		for name, p := range nn.Params(each) {
			if name != "weight" {
				t.Errorf("name %s", name)
			}
			wantFloats(t, x, p.Grad(), -2, -4)
		}
		wantError(t, func() { nn.NewPReLU(x, 0) }, "0 slopes were asked for")
	})
}

func TestPooling(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		in := seq(x, 1, 1, 4, 4)
		two := [2]int{2, 2}
		wantFloats(t, x, nn.MaxPool2d{Kernel: two}.Forward(x, in), 5, 7, 13, 15)
		wantFloats(t, x, nn.MaxPool2d{Kernel: two, Opt: tenon.MaxPoolOpt{Stride: [2]int{1, 2}}}.Forward(x, in), 5, 7, 9, 11, 13, 15)
		wantFloats(t, x, nn.AvgPool2d{Kernel: two}.Forward(x, in), 2.5, 4.5, 10.5, 12.5)
		wantFloats(t, x, nn.AdaptiveAvgPool2d{Size: [2]int{1, 2}}.Forward(x, in), 6.5, 8.5)
	})
}

func TestBatchNorm(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		b := nn.NewBatchNorm1d(x, 2, nn.BatchNormOpt{Eps: 1e-30})
		defer nn.Close(b)
		var names []string
		for name := range nn.StateDict(b) {
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != "weight bias running_mean running_var num_batches_tracked" {
			t.Errorf("names %s", got)
		}
		in := tenon.From(x, []float32{1, 10, 3, 30, 5, 50, 7, 70}, 4, 2)
		r := float32(3 / math.Sqrt(5))
		s := float32(1 / math.Sqrt(5))
		wantFloats(t, x, b.Forward(x, in), -r, -r, -s, -s, s, s, r, r)
		// One tenth of the batch's mean and unbiased variance.
		wantFloats(t, x, b.RunningMean.Tensor(), .4, 4)
		wantFloats(t, x, b.RunningVar.Tensor(), .9+20.0/30, .9+2000.0/30)
		if n, err := x.Item(b.NumBatchesTracked.Tensor()); err != nil || n != 1 {
			t.Errorf("%v batches, %v", n, err)
		}
		nn.Eval(nn.Sequential{b})
		one := tenon.From(x, []float32{.4, 4}, 1, 2)
		wantFloats(t, x, b.Forward(x, one), 0, 0)
		wantFloats(t, x, b.RunningMean.Tensor(), .4, 4)
		nn.Train(nn.Sequential{b})
		b.Forward(x, in)
		if n, err := x.Item(b.NumBatchesTracked.Tensor()); err != nil || n != 2 {
			t.Errorf("%v batches, %v", n, err)
		}
		wantError(t, func() { b.Forward(x, seq(x, 1, 2, 2, 2)) }, "expected 2D or 3D input (got 4D input)")
		wantError(t, func() { b.Forward(x, seq(x, 2, 3)) })
	})
}

// Statistics and count change together or not at all, and an empty batch counts.
func TestBatchNormCounts(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		b := nn.NewBatchNorm1d(x, 2)
		defer nn.Close(b)
		count := func(want float64) {
			t.Helper()
			if n, err := x.Item(b.NumBatchesTracked.Tensor()); err != nil || n != want {
				t.Errorf("%v batches, want %v, %v", n, want, err)
			}
		}
		b.Forward(x, seq(x, 0, 2))
		count(1)
		wantFloats(t, x, b.RunningMean.Tensor(), 0, 0)
		b.RunningVar.Tensor().Close()
		closed := func(b *nn.BatchNorm, parts ...string) {
			t.Helper()
			err := tenon.Try(func() { b.Forward(x, seq(x, 4, 2)) })
			for _, p := range append(parts, "closed") {
				if fault.KindOf(err) != fault.Closed || !strings.Contains(err.Error(), p) {
					t.Errorf("got error %v", err)
				}
			}
		}
		closed(b)
		count(1)
		wantFloats(t, x, b.RunningMean.Tensor(), 0, 0)
		c := nn.NewBatchNorm1d(x, 2)
		defer nn.Close(c)
		c.NumBatchesTracked.Tensor().Close()
		closed(c, "BatchNorm1d", "NumBatchesTracked")
		wantFloats(t, x, c.RunningMean.Tensor(), 0, 0)
	})
}

func TestBatchNormOptions(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		c := nn.NewBatchNorm2d(x, 1, nn.BatchNormOpt{Cumulative: true, NoAffine: true})
		defer nn.Close(c)
		if c.Weight.Tensor() != nil {
			t.Error("there is a weight")
		}
		c.Forward(x, x.Full([]int{1, 1, 1, 2}, 4, tenon.Float32))
		c.Forward(x, x.Full([]int{1, 1, 1, 2}, 8, tenon.Float32))
		c.Forward(x, x.Full([]int{1, 1, 1, 2}, 9, tenon.Float32))
		wantFloats(t, x, c.RunningMean.Tensor(), 7)
		wantError(t, func() { c.Forward(x, seq(x, 2, 1)) }, "expected 4D input (got 2D input)")
		free := nn.NewBatchNorm2d(x, 1, nn.BatchNormOpt{NoRunningStats: true})
		defer nn.Close(free)
		nn.Eval(free)
		wantFloats(t, x, free.Forward(x, tenon.From(x, []float32{1, 3}, 1, 1, 1, 2)), -.999995, .999995)
	})
}

func TestNorms(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		in := tenon.From(x, []float32{1, 3, 2, 6}, 1, 4)
		layer := nn.NewLayerNorm(x, []int{4})
		rms := nn.NewRMSNorm(x, []int{4})
		group := nn.NewGroupNorm(x, 2, 4, nn.NormOpt{NoBias: true})
		plain := nn.NewLayerNorm(x, []int{2, 2}, nn.NormOpt{NoAffine: true})
		all := []any{layer, rms, group, plain}
		defer nn.Close(all)
		var names []string
		for name := range nn.StateDict(all) {
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != "0.weight 0.bias 1.weight 2.weight" {
			t.Errorf("names %s", got)
		}
		d := float32(math.Sqrt(3.5))
		wantFloats(t, x, layer.Forward(x, in), -2/d, 0, -1/d, 3/d)
		q := float32(math.Sqrt(12.5))
		wantFloats(t, x, rms.Forward(x, in), 1/q, 3/q, 2/q, 6/q)
		wantFloats(t, x, group.Forward(x, in), -1, 1, -1, 1)
		wantFloats(t, x, plain.Forward(x, x.View(in, 1, 2, 2)), -2/d, 0, -1/d, 3/d)
		wantError(t, func() { nn.NewGroupNorm(x, 3, 4) }, "3 equal groups")
	})
}

func TestEmbedding(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		e := nn.NewEmbedding(x, 4, 2, nn.EmbeddingOpt{Lookup: tenon.EmbeddingOpt{Padding: true, PaddingIdx: -1},
			Generator: nn.NewHostGenerator(0)})
		defer nn.Close(e)
		w := floats(t, x, e.Weight.Tensor())
		out := e.Forward(x, tenon.From(x, []int64{2, 3, 0, 2}, 2, 2))
		if !slices.Equal(out.Shape(), []int{2, 2, 2}) {
			t.Fatalf("shape %v", out.Shape())
		}
		wantFloats(t, x, out, w[4], w[5], 0, 0, w[0], w[1], w[4], w[5])
		if err := x.Backward(x.Sum(out, nil)); err != nil {
			t.Fatal(err)
		}
		wantFloats(t, x, e.Weight.Grad(), 1, 1, 0, 0, 2, 2, 0, 0)
		wantError(t, func() {
			nn.NewEmbedding(x, 4, 2, nn.EmbeddingOpt{Lookup: tenon.EmbeddingOpt{Padding: true, PaddingIdx: 4}})
		}, "within num_embeddings")
	})
}

func TestDropout(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		d := nn.NewDropout(.25)
		in := x.Ones([]int{10000}, tenon.Float32)
		zeros := 0
		for _, v := range floats(t, x, d.Forward(x, in)) {
			switch v {
			case 0:
				zeros++
			case float32(1 / .75):
			default:
				t.Fatalf("an element is %v", v)
			}
		}
		if zeros < 2300 || zeros > 2700 {
			t.Errorf("%d of 10000 elements were dropped", zeros)
		}
		drawn := x.Generator().Offset()
		if nn.NewDropout(0).Forward(x, in) != in || x.Generator().Offset() != drawn {
			t.Error("with the probability 0 it does something")
		}
		nn.Eval(d)
		if d.Forward(x, in) != in {
			t.Error("in use it does something")
		}
		wantError(t, func() { nn.NewDropout(1.5) }, "between 0 and 1, but got 1.5")
		wantError(t, func() { new(nn.Dropout).Forward(x, in) }, "the module is a zero value; use one that NewDropout returned")
	})
}

// TestModeReachesEveryModule checks that Train and Eval reach a Mode wherever a module lies: behind a pointer, in a slice of structs, and
// in a module that another one embeds.
func TestModeReachesEveryModule(t *testing.T) {
	type block struct {
		nn.Mode
		Drop *nn.Dropout
	}
	type outer struct {
		block
		Blocks []block
		Other  any
	}
	m := &outer{block: block{Drop: nn.NewDropout(.5)}, Other: &block{},
		Blocks: []block{{Drop: nn.NewDropout(.5)}, {}}}
	modes := func() []bool {
		return []bool{m.Training(), m.Drop.Training(), m.Blocks[0].Training(), m.Blocks[0].Drop.Training(),
			m.Blocks[1].Training(), m.Other.(*block).Training()}
	}
	for _, on := range []bool{true, false, true} {
		if on {
			nn.Train(m)
		} else {
			nn.Eval(m)
		}
		for i, got := range modes() {
			if got != on {
				t.Errorf("mode %d is training: %v, want %v", i, got, on)
			}
		}
	}
}

// A Mode that lies in a copy cannot be set, and one in a hidden field is not found: both are errors, not a module that goes on training.
func TestModeOutOfReach(t *testing.T) {
	type block struct {
		nn.Mode
	}
	type net struct {
		Drop nn.Dropout
		Any  any
		Map  map[string]nn.Dropout
		Out  block `torch:"-"`
	}
	drop := nn.NewDropout(.5)
	for where, m := range map[string]any{
		"Mode of nn_test.block is held by value":            block{},
		"Drop.Mode of nn_test.net is held by value":         net{Drop: *drop},
		"Any.Mode of *nn_test.net is held by value":         &net{Any: block{}},
		"Map[\"a\"].Mode of *nn_test.net is held by value":  &net{Map: map[string]nn.Dropout{"a": *drop}},
		"[1].Mode of []interface {} is held by value":       []any{&block{}, block{}},
		"field drop of struct { drop *nn.Dropout } holds a": &struct{ drop *nn.Dropout }{drop},
	} {
		wantError(t, func() { nn.Eval(m) }, where)
		wantError(t, func() { nn.Train(m) }, where)
	}
	m := &net{Drop: *drop, Map: map[string]nn.Dropout{}}
	nn.Eval(m)
	if m.Drop.Training() {
		t.Error("a module held by value in a struct behind a pointer was not reached")
	}
}

func TestLosses(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		logits := tenon.From(x, []float32{0, 0, 1, 0}, 2, 2)
		classes := tenon.From(x, []int64{0, 1})
		weight := nn.NewBuffer(tenon.From(x, []float32{1, 3}))
		defer weight.Close()
		ln2, other := math.Log(2), math.Log1p(math.E)
		wantFloats(t, x, nn.CrossEntropyLoss{}.Forward(x, logits, classes), float32((ln2+other)/2))
		wantFloats(t, x, nn.CrossEntropyLoss{Weight: weight}.Forward(x, logits, classes), float32((ln2+3*other)/4))
		wantFloats(t, x, nn.CrossEntropyLoss{Opt: tenon.CrossEntropyOpt{Reduction: tenon.ReduceSum}}.Forward(x, logits, classes),
			float32(ln2+other))
		wantFloats(t, x, nn.NLLLoss{}.Forward(x, logits, classes), 0)
		a, b := tenon.From(x, []float32{1, 4}), tenon.From(x, []float32{3, 1})
		wantFloats(t, x, nn.MSELoss{}.Forward(x, a, b), 6.5)
		wantFloats(t, x, nn.L1Loss{Opt: tenon.LossOpt{Reduction: tenon.ReduceNone}}.Forward(x, a, b), 2, 3)
		wantFloats(t, x, nn.BCEWithLogitsLoss{}.Forward(x, tenon.From(x, []float32{0, 1}), tenon.From(x, []float32{1, 0})),
			float32((ln2+other)/2))
		wantFloats(t, x, nn.SmoothL1Loss{}.Forward(x, a, b), 2)
		wantFloats(t, x, nn.SmoothL1Loss{Beta: 4, Opt: tenon.LossOpt{Reduction: tenon.ReduceNone}}.Forward(x, a, b), .5, 9./8)
		wantFloats(t, x, nn.HuberLoss{Delta: 2}.Forward(x, a, b), 3)
		wantFloats(t, x, nn.HuberLoss{Opt: tenon.LossOpt{Reduction: tenon.ReduceSum}}.Forward(x, a, b), 4)
		half, yes := tenon.From(x, []float32{.5, .5}), tenon.From(x, []float32{1, 1})
		wantFloats(t, x, nn.BCELoss{}.Forward(x, half, yes), float32(ln2))
		wantFloats(t, x, nn.BCELoss{Weight: weight}.Forward(x, half, yes), float32(2*ln2))
		wantFloats(t, x, nn.KLDivLoss{Opt: tenon.KLDivOpt{Reduction: tenon.ReduceBatchMean}}.Forward(x, x.Log(half), yes), float32(ln2))
		for name := range nn.StateDict(nn.BCEWithLogitsLoss{PosWeight: weight}) {
			if name != "pos_weight" {
				t.Errorf("name %s", name)
			}
		}
	})
}

// Without a HostGenerator the device draws the numbers, from the Exec's generator.
func TestDeviceInit(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l := nn.NewLinear(x, 100, 50)
		defer nn.Close(l)
		most := float32(0)
		for _, v := range floats(t, x, l.Weight.Tensor()) {
			most = max(most, v, -v)
		}
		if most < .099 || most > .1 || !l.Weight.Tensor().IsLeaf() {
			t.Errorf("the largest weight is %v of at most 0.1", most)
		}
		w := x.Empty([]int{1000}, tenon.Float64)
		nn.InitNormal(x, w, 5, .001)
		mean, err := x.Item(x.Mean(w, nil))
		if err != nil || math.Abs(mean-5) > .001 {
			t.Errorf("mean %v, %v", mean, err)
		}
	})
}

// Without gradients a module leaves only its output.
func TestModulesCloseTemporaries(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		g := nn.NewHostGenerator(0)
		image, rows := []int{2, 4, 6, 6}, []int{3, 8}
		for _, c := range []struct {
			m     nn.Module
			shape []int
		}{
			{nn.NewLinear(x, 8, 5, nn.LinearOpt{Generator: g}), rows},
			{nn.NewConv2d(x, 4, 4, [2]int{3, 3}, nn.Conv2dOpt{Groups: 2, Generator: g}), image},
			{nn.NewConv1d(x, 3, 4, 3, nn.Conv1dOpt{Generator: g}), []int{2, 3, 7}},
			{nn.NewConvTranspose2d(x, 4, 6, [2]int{3, 3}, nn.ConvTranspose2dOpt{Groups: 2, Generator: g}), image},
			{nn.NewBatchNorm2d(x, 4), image}, {nn.NewBatchNorm1d(x, 8), rows},
			{nn.NewLayerNorm(x, []int{8}), rows}, {nn.NewRMSNorm(x, []int{8}), rows},
			{nn.NewGroupNorm(x, 2, 4), image}, {nn.NewDropout(.5), rows},
			{nn.MaxPool2d{Kernel: [2]int{2, 2}}, image}, {nn.AvgPool2d{Kernel: [2]int{2, 2}}, image},
			{nn.AdaptiveAvgPool2d{Size: [2]int{3, 2}}, image},
			{nn.Upsample{Scale: []float64{2}}, image}, {nn.Upsample{Size: []int{7, 5}, Mode: tenon.InterpolateBilinear}, image},
			{nn.Softmax{Dim: 1}, rows}, {nn.GELU{}, rows},
			{nn.Sequential{nn.Flatten{}, nn.NewLinear(x, 144, 3, nn.LinearOpt{Generator: g}), nn.ReLU{}}, image},
		} {
			x.NoGrad().Scope(func(x *tenon.Exec) {
				in := seq(x, c.shape...)
				before := testdevice.Storages()
				out := c.m.Forward(x, in)
				if n := core.LiveStorages() - before; n != 1 {
					t.Errorf("%T: %d storages are live after it, want 1", c.m, n)
				}
				out.Close()
			})
			nn.Close(c.m)
		}
	})
}
