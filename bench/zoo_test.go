package bench

import (
	"math"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/zoo"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// zooCase is a model of the zoo with the size of its batches. Convolutional networks have their channels last.
type zooCase struct {
	name        string
	batch, size int
	last        bool
}

var zooCases = []zooCase{{"bert", 32, 512, false}, {"convnext_tiny", 64, 224, true}, {"mobilenet_v2", 64, 224, true},
	{"unet", 64, 128, true}, {"vit_b_16", 64, 224, false}}

// open returns the model's training step, with bf16 autocast and AdamW, the sum of its losses so far, and a function that closes the model.
// BERT drops a tenth of hidden elements and of weights.
func (c zooCase) open(x *tenon.Exec) (step program, total *tenon.Tensor, done func(), err error) {
	m := zoo.Models()[c.name]
	net := m.New(x)
	if b, ok := net.(*zoo.BERT); ok {
		b.Dropout = 0.1
	}
	in, target := m.Inputs(x, c.batch, c.size)
	if c.last {
		if err := nn.ToChannelsLast(x, net); err != nil {
			return nil, nil, nil, err
		}
		in[0] = x.ChannelsLast(in[0])
	}
	opt, err := optim.NewAdamW(nn.Params(net), optim.AdamOpt{LR: 1e-3})
	if err != nil {
		return nil, nil, nil, err
	}
	total = x.Zeros(nil, tenon.Float32)
	step = func(x *tenon.Exec) error {
		half := x.Autocast(tenon.BFloat16)
		loss := net.Loss(half, net.Forward(half, in), target)
		if err := x.Backward(loss); err != nil {
			return err
		}
		if err := opt.Step(x); err != nil {
			return err
		}
		opt.ZeroGrad()
		x.AddInto(total, total, x.Detach(loss))
		return nil
	}
	done = func() {
		opt.Close()
		nn.Close(net)
	}
	return step, total, done, nil
}

// train measures one way of the model's training step.
func (c zooCase) train(t *testing.T, x *tenon.Exec, way string, s sizes) (w worked) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	x.Scope(func(x *tenon.Exec) {
		must(x.Device().EmptyCache())
		must(x.Generator().SetSeed(1))
		step, total, done, err := c.open(x)
		must(err)
		defer done()
		x.Device().ResetPeakStats()
		w.ms = measure(t, x, way, s, step)
		w.peak = float64(x.Device().MaxMemoryAllocated()) / gib
		w.sum, err = x.Item(total)
		must(err)
		if !(w.sum > 0) || math.IsInf(w.sum, 0) {
			t.Errorf("the sum of the losses is %v", w.sum)
		}
	})
	return w
}

// TestZoo measures the training steps of well-known models, in a region and without.
func TestZoo(t *testing.T) {
	x := onGPU(t)
	for _, c := range zooCases {
		for _, way := range []string{"compiled", "eager"} {
			w := c.train(t, x, way, sizes{5, 6})
			recordFigure("zoo."+c.name+"."+way, "ms", w.ms)
			recordFigure("zoo."+c.name+"."+way+".peak", "GiB", []float64{w.peak})
		}
		if err := compile.Reset(x); err != nil {
			t.Fatal(err)
		}
	}
}

// The measurements of TestZoo also run on the simulator, with one model.
func TestZooWays(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	c := zooCase{"unet", 1, 16, true}
	for _, way := range []string{"eager", "compiled"} {
		if w := c.train(t, x, way, sizes{1, 2}); len(w.ms) != 2 || !(w.ms[1] > 0) || !(w.peak > 0) {
			t.Errorf("%s: %+v", way, w)
		}
	}
}
