package optim_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// trainingFailings are the calls of training other than steps.
//
//tenon:table one call and its world each
func trainingFailings() []*failing {
	var fs []*failing
	for _, f := range []struct {
		name  string
		begin func(t *testing.T, x *tenon.Exec) *world
		act   func(x *tenon.Exec, w *world) error
	}{
		{"ClipGradNorm", stepped("SGD", 34, 0), func(x *tenon.Exec, w *world) error {
			nn.ClipGradNorm(x, list(w.params...), 1)
			return nil
		}},
		{"ClipGradNormOfMaxima", stepped("SGD", 2, 0), func(x *tenon.Exec, w *world) error {
			nn.ClipGradNorm(x, list(w.params...), 1, nn.ClipOpt{Norm: math.Inf(1)})
			return nil
		}},
		{"ClipGradValue", stepped("SGD", 2, 0), func(x *tenon.Exec, w *world) error {
			nn.ClipGradValue(x, list(w.params...), .5)
			return nil
		}},
		{"ScaleFirst", scaled(false, 0), func(x *tenon.Exec, w *world) error {
			w.scaler.Scale(x, x.Ones(nil, tenon.Float32))
			return nil
		}},
		{"Unscale", scaled(true, 0), func(x *tenon.Exec, w *world) error { return w.scaler.Unscale(x, w.opt) }},
		{"ScalerStepFirst", scaled(true, 0), func(x *tenon.Exec, w *world) error { return w.scaler.Step(x, w.opt) }},
		{"ScalerStepLater", scaled(true, 1), func(x *tenon.Exec, w *world) error { return w.scaler.Step(x, w.opt) }},
		{"ScalerUpdate", func(t *testing.T, x *tenon.Exec) *world {
			w := scaled(true, 0)(t, x)
			mustAll(t, w.scaler.Step(x, w.opt))
			return w
		}, func(x *tenon.Exec, w *world) error { return w.scaler.Update(x) }},
		{"ScalerSetScale", scaled(true, 1), func(x *tenon.Exec, w *world) error { return w.scaler.SetScale(x, 8) }},
		{"BackwardFirst", layered(false), forwardBackward},
		{"BackwardLater", layered(true), forwardBackward},
		{"BackwardTwoStreams", layered(true), func(x *tenon.Exec, w *world) error {
			st, err := x.Device().Stream()
			if err != nil {
				return err
			}
			a, b := w.params[0].Tensor(), w.params[1].Tensor()
			loss := x.Add(x.Sum(x.Mul(a, a), nil), x.On(st).Sum(x.On(st).Exp(b), nil))
			return x.Backward(loss)
		}},
		{"BackwardCreateGraph", layered(true), func(x *tenon.Exec, w *world) error {
			return x.Backward(loss(x, w), tenon.BackwardOpt{CreateGraph: true})
		}},
		{"Checkpoint", layered(true), func(x *tenon.Exec, w *world) error {
			y := x.Checkpoint(func(x *tenon.Exec, ins []*tenon.Tensor) []*tenon.Tensor {
				return []*tenon.Tensor{x.Tanh(x.Exp(ins[0]))}
			}, w.params[1].Tensor())[0]
			return x.Backward(x.Sum(y, nil))
		}},
		{"BatchNorm", normed(nn.BatchNormOpt{}), forwardNorm},
		{"BatchNormCumulative", normed(nn.BatchNormOpt{Cumulative: true}), forwardNorm},
		{"EmbeddingMaxNorm", tables, func(x *tenon.Exec, w *world) error {
			x.NoGrad().Embedding(tenon.From(x, []int64{0, 2}), w.params[0].Tensor(), tenon.EmbeddingOpt{MaxNorm: 1})
			return nil
		}},
		{"Dropout", tables, func(x *tenon.Exec, w *world) error {
			x.Dropout(w.params[0].Tensor(), .5)
			return nil
		}},
		{"Multinomial", tables, func(x *tenon.Exec, w *world) error {
			x.Multinomial(w.buffers["b"], 2)
			return nil
		}},
		{"MultinomialReplaced", tables, func(x *tenon.Exec, w *world) error {
			x.Multinomial(w.buffers["b"], 2, tenon.MultinomialOpt{Replacement: true})
			return nil
		}},
		{"BernoulliOfHalves", tables, func(x *tenon.Exec, w *world) error {
			x.Bernoulli(w.buffers["h"])
			return nil
		}},
		{"Draws", tables, func(x *tenon.Exec, w *world) error {
			x.NormalInto(w.buffers["a"], 0, 1)
			return nil
		}},
		{"AddInto", tables, func(x *tenon.Exec, w *world) error {
			x.AddInto(w.buffers["a"], w.buffers["a"], w.buffers["b"])
			return nil
		}},
		{"MatMulInto", tables, func(x *tenon.Exec, w *world) error {
			x.CopyInto(w.buffers["a"], x.MM(w.buffers["a"], x.Transpose(w.buffers["b"], 0, 1)))
			return nil
		}},
		{"ScatterInto", tables, func(x *tenon.Exec, w *world) error {
			x.ScatterAddInto(w.buffers["a"], w.buffers["b"], 0, x.Zeros([]int{3, 3}, tenon.Int64), w.buffers["b"])
			return nil
		}},
		{"CopyFromHost", tables, func(x *tenon.Exec, w *world) error {
			x.CopyInto(w.buffers["a"], x.Host().Full([]int{3, 3}, 4, tenon.Float32))
			return nil
		}},
		{"Recorded", tables, func(x *tenon.Exec, w *world) error {
			y := x.Mul(w.params[0].Tensor(), w.buffers["a"])
			x.MulInto(y, y, w.buffers["b"])
			return x.Backward(x.Sum(y, nil))
		}},
		{"Capture", drawing, captureAndClose},
		{"CaptureFirstGradient", func(t *testing.T, x *tenon.Exec) *world {
			w := drawing(t, x)
			w.params[len(w.params)-1].SetGrad(nil)
			return w
		}, captureAndClose},
		{"Replay", func(t *testing.T, x *tenon.Exec) *world {
			w := drawing(t, x)
			g, err := capture(x, w)
			mustAll(t, err)
			w.more, w.own = g, func() { mustAll(t, g.Close()) }
			return w
		}, func(x *tenon.Exec, w *world) error { return x.Replay(w.more.(*tenon.Graph)) }},
		{"ScheduleStep", scheduled, func(_ *tenon.Exec, w *world) error { return w.sched.Step() }},
		{"LoadFile", saved, func(x *tenon.Exec, w *world) error {
			return nn.LoadFile(x, w.more, w.file+".safetensors")
		}},
		{"LoadTorch", saved, func(x *tenon.Exec, w *world) error {
			f, err := torchfile.Open(w.file + ".pt")
			if err != nil {
				return err
			}
			defer f.Close()
			state, err := f.StateDict(x, "model")
			if err != nil {
				return err
			}
			return nn.Load(x, w.more, state)
		}},
		{"LoadOptimizer", saved, func(x *tenon.Exec, w *world) error { return optim.LoadFile(x, w.opt, w.file+".optimizer") }},
		{"LoadOptimizerTorch", saved, func(x *tenon.Exec, w *world) error {
			f, err := torchfile.Open(w.file + ".pt")
			if err != nil {
				return err
			}
			defer f.Close()
			return optim.LoadStateDict(x, w.opt, f, "optimizer")
		}},
		{"LoadCheckpoint", checkpointed, func(x *tenon.Exec, w *world) error { return w.checkpoint().Load(x, w.file) }},
		{"SaveCheckpoint", checkpointed, func(x *tenon.Exec, w *world) error { return w.checkpoint().Save(x, w.file) }},
		{"Save", saved, func(x *tenon.Exec, w *world) error { return nn.SaveFile(x, w.more, w.file+".safetensors") }},
		{"SaveOptimizer", saved, func(x *tenon.Exec, w *world) error { return optim.SaveFile(x, w.opt, w.file+".optimizer") }},
		{"SaveTorch", saved, func(x *tenon.Exec, w *world) error {
			return torchfile.Save(x, w.file+".pt", map[string]any{"model": torchfile.Tensors(nn.StateDict(w.more))})
		}},
	} {
		fs = append(fs, &failing{name: f.name, begin: f.begin, act: f.act, ownMemory: f.name == "CaptureFirstGradient"})
	}
	return fs
}

func captureAndClose(x *tenon.Exec, w *world) error {
	g, err := capture(x, w)
	if err != nil {
		return err
	}
	return g.Close()
}

func mustAll(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// drawing makes a world for a step that draws random numbers, scales and clips.
func drawing(t *testing.T, x *tenon.Exec) *world {
	w := scaled(true, 1)(t, x)
	w.gen, w.buffers["noise"] = seeded(t, x), x.Zeros([]int{5}, tenon.Float32)
	p := nn.NewParam(x.Zeros([]int{5}, tenon.Float32)) // not in the optimizer
	p.SetGrad(x.Ones([]int{5}, tenon.Float32))
	w.params = append(w.params, p)
	return w
}

// capture records an iteration with w's gradients.
func capture(x *tenon.Exec, w *world) (*tenon.Graph, error) {
	var failed error
	g, err := x.Capture(func(x *tenon.Exec) {
		x.NormalInto(w.buffers["noise"], 0, 1)
		y := x.Mul(x.Sum(x.Mul(w.params[0].Tensor(), w.buffers["noise"]), nil), x.Sum(w.params[len(w.params)-1].Tensor(), nil))
		failed = x.Backward(w.scaler.Scale(x, y))
		if failed == nil {
			failed = w.scaler.Unscale(x, w.opt)
		}
		nn.ClipGradNorm(x, list(w.params...), 1)
		if failed == nil {
			failed = w.scaler.Step(x, w.opt)
		}
		if failed == nil {
			failed = w.scaler.Update(x)
		}
		if failed != nil {
			panic(failed)
		}
	})
	return g, err
}

// seeded returns the device's generator in a known state.
func seeded(t *testing.T, x *tenon.Exec) *cuda.Generator {
	g := x.Generator()
	mustAll(t, g.SetSeed(3))
	return g
}

// scaled makes a world with a scaler and gradients to unscale, after the given number of iterations.
func scaled(used bool, iterations int) func(t *testing.T, x *tenon.Exec) *world {
	return func(t *testing.T, x *tenon.Exec) *world {
		w := stepped("Adam", 1, 0)(t, x)
		s, err := optim.NewGradScaler(optim.GradScalerOpt{InitScale: 4, GrowthInterval: 1})
		mustAll(t, err)
		w.scaler = s
		if used {
			s.Scale(x, x.Ones(nil, tenon.Float32))
		}
		for range iterations {
			mustAll(t, s.Step(x, w.opt), s.Update(x))
		}
		return w
	}
}

// layered makes two layers' parameters, one of them used twice, with gradients or without.
func layered(grads bool) func(t *testing.T, x *tenon.Exec) *world {
	return func(t *testing.T, x *tenon.Exec) *world {
		w := &world{gen: seeded(t, x), buffers: map[string]*tenon.Tensor{"in": x.Full([]int{3, 2}, .5, tenon.Float32)}}
		for i, shape := range [][]int{{4, 2}, {4}, {4, 4}} {
			p := nn.NewParam(x.Full(shape, float64(i+1)/8, tenon.Float32))
			if grads {
				p.SetGrad(x.Full(shape, 2, tenon.Float32))
			}
			w.params = append(w.params, p)
		}
		return w
	}
}

func loss(x *tenon.Exec, w *world) *tenon.Tensor {
	y := x.Tanh(x.Linear(w.buffers["in"], w.params[0].Tensor(), w.params[1].Tensor()))
	for range 2 {
		y = x.Tanh(x.Linear(y, w.params[2].Tensor(), w.params[1].Tensor()))
	}
	return x.Mean(y, nil)
}

func forwardBackward(x *tenon.Exec, w *world) error {
	return x.Backward(loss(x, w))
}

func normed(opt nn.BatchNormOpt) func(t *testing.T, x *tenon.Exec) *world {
	return func(t *testing.T, x *tenon.Exec) *world {
		b := nn.NewBatchNorm1d(x, 3, opt)
		w := &world{params: []*nn.Param{b.Weight, b.Bias}, more: b, buffers: map[string]*tenon.Tensor{
			"in": x.Reshape(x.Arange(12, tenon.Float32), 4, 3), "mean": b.RunningMean.Tensor(), "var": b.RunningVar.Tensor(),
			"n": b.NumBatchesTracked.Tensor()}}
		w.own = func() { nn.Close(b) }
		return w
	}
}

func forwardNorm(x *tenon.Exec, w *world) error {
	w.more.(*nn.BatchNorm).Forward(x, w.buffers["in"])
	return nil
}

func tables(t *testing.T, x *tenon.Exec) *world {
	m := func(scale float64) *tenon.Tensor {
		return x.MulS(x.Reshape(x.Arange(10, tenon.Float32, tenon.ArangeOpt{Start: 1}), 3, 3), scale)
	}
	return &world{gen: seeded(t, x), params: []*nn.Param{nn.NewParam(m(1))}, buffers: map[string]*tenon.Tensor{"a": m(1), "b": m(.5),
		"h": x.ToDType(m(1./16), tenon.Float16)}}
}

func scheduled(t *testing.T, x *tenon.Exec) *world {
	w := stepped("Momentum", 1, 1)(t, x)
	s, err := optim.NewSchedule(w.opt, optim.CyclicLR([]float64{.125}, []float64{.5}, optim.CyclicOpt{StepSizeUp: 3}))
	mustAll(t, err)
	w.sched = s
	return w
}

// saved makes a world whose files hold its state before two changes.
func saved(t *testing.T, x *tenon.Exec) *world {
	l := nn.Sequential{nn.NewLinear(x, 2, 3, nn.LinearOpt{Generator: nn.NewHostGenerator(1)}), nn.NewBatchNorm1d(x, 3)}
	w := &world{file: filepath.Join(t.TempDir(), "files", "f"), more: l,
		buffers: map[string]*tenon.Tensor{"rate": x.Full(nil, .5, tenon.Float64)}}
	mustAll(t, os.Mkdir(filepath.Dir(w.file), 0o755))
	w.own = func() { nn.Close(l) }
	for key, a := range nn.StateDict(l) {
		w.buffers[key] = a
	}
	var ps []*nn.Param
	for _, p := range nn.Params(l) {
		p.SetGrad(x.OnesLike(p.Tensor()))
		ps = append(ps, p)
	}
	o, err := optim.NewAdam(list(ps...), optim.AdamOpt{LR: .25})
	mustAll(t, err)
	w.opt = o
	mustAll(t, o.Step(x))
	d, err := optim.StateDict(x, o)
	mustAll(t, err, nn.SaveFile(x, l, w.file+".safetensors"), optim.SaveFile(x, o, w.file+".optimizer"),
		torchfile.Save(x, w.file+".pt", map[string]any{"model": torchfile.Tensors(nn.StateDict(l)), "optimizer": d}),
		o.Step(x), o.SetLRTensor(0, w.buffers["rate"]))
	return w
}

// checkpoint returns a Checkpoint of everything in the world.
func (w *world) checkpoint() *optim.Checkpoint {
	return &optim.Checkpoint{Model: w.more, Optimizer: w.opt, Schedule: w.sched, Scaler: w.scaler, Loader: w.loader, Extra: &w.extra}
}

// checkpointed makes a world whose file holds its state before everything changed.
func checkpointed(t *testing.T, x *tenon.Exec) *world {
	w := saved(t, x)
	w.file += ".checkpoint"
	w.gen = seeded(t, x)
	var err error
	w.sched, err = optim.NewSchedule(w.opt, optim.OneCycleLR([]float64{.5}, 10))
	mustAll(t, err)
	w.scaler, err = optim.NewGradScaler(optim.GradScalerOpt{InitScale: 4, GrowthInterval: 1})
	mustAll(t, err)
	table, err := data.NewTable(data.NewColumn([]float32{1, 2, 3, 4, 5}))
	mustAll(t, err)
	w.loader, err = data.NewLoader(table, data.LoaderOpt{BatchSize: 2, Shuffle: true})
	mustAll(t, err)
	change := func() {
		w.scaler.Scale(x, x.Ones(nil, tenon.Float32))
		mustAll(t, w.scaler.Step(x, w.opt), w.scaler.Update(x), w.sched.Step())
		x.NoGrad().AddSInto(w.buffers["0.weight"], w.buffers["0.weight"], 1)
		x.RandN([]int{3}, tenon.Float32)
		for range w.loader.Epoch(x) {
		}
		w.extra.Losses = append(w.extra.Losses, 1)
	}
	change()
	mustAll(t, w.checkpoint().Save(x, w.file))
	change()
	st, err := w.scaler.State(x)
	st.GrowthFactor = 3
	mustAll(t, err, w.scaler.SetState(x, st))
	return w
}
