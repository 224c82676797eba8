package tenon_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/profile"
	"tenon.dev/torchfile"
)

func TestFromPyTorchModes(t *testing.T) {
	m := &struct{ nn.Mode }{}
	nn.Eval(m)
	if m.Training() {
		t.Error("a custom module is in training mode after Eval")
	}
}

func TestFromPyTorchModules(t *testing.T) {
	x := openSim(t)
	m := nn.NewLinear(x, 64, 10)
	defer nn.Close(m)
	in := x.Ones([]int{5, 64}, tenon.Float32)
	if shape := m.Forward(x, in).Shape(); !slices.Equal(shape, []int{5, 10}) {
		t.Error(shape)
	}
	plain := nn.NewLinear(x, 64, 10, nn.LinearOpt{NoBias: true})
	defer nn.Close(plain)
	if plain.Bias != nil {
		t.Error("a layer without a bias has one")
	}
	d := map[string]*tenon.Tensor{}
	for name, v := range nn.StateDict(m) {
		d[name] = v
	}
	must(t, nn.Load(x, m, d))
	must(t, nn.Load(x, m, d, nn.LoadOpt{Partial: true}))
	nn.SetRequiresGrad(m, false)
	nn.SetRequiresGrad(m, true)
	f := filepath.Join(t.TempDir(), "m.safetensors")
	must(t, nn.SaveFile(x, m, f))
	must(t, nn.LoadFile(x, m, f))
	nn.Train(m)
	nn.Eval(m)
	for _, p := range nn.Params(m) {
		nn.InitUniform(x, p.Tensor(), -1, 1)
	}
	opt, err := optim.NewAdam(nn.Params(m), optim.AdamOpt{LR: 1e-3})
	must(t, err)
	defer opt.Close()
	if text := fmt.Sprint(opt); !strings.HasPrefix(text, "Adam (\nParameter Group 0\n    amsgrad: False\n    betas: (0.9, 0.999)\n") {
		t.Error(text)
	}
	opt.ZeroGrad()
	must(t, x.Backward(x.Sum(m.Forward(x, in), nil)))
	norm := nn.ClipGradNorm(x, nn.Params(m), 1)
	wantItem(t, x, x.GtS(norm, 1), 1)
	{
		err := opt.Step(x)
		must(t, err)
	}
	opt.SetLR(0, 1e-4)
	if opt.LR(0) != 1e-4 {
		t.Error(opt.LR(0))
	}
	sched, err := optim.NewSchedule(opt, optim.StepLR(30, 0.5))
	must(t, err)
	plateau, err := optim.NewReduceLROnPlateau(opt, 3)
	must(t, err)
	for range 30 {
		err := sched.Step()
		must(t, err)
	}
	for _, loss := range []float64{1, 2, 2, 2, 2} {
		err := plateau.Step(loss)
		must(t, err)
	}
	st, err := sched.State()
	must(t, err)
	{
		err := sched.SetState(st)
		must(t, err)
	}
	if opt.LR(0) != 1e-4*0.5*0.1 {
		t.Error(opt.LR(0))
	}
	{
		scaler, err := optim.NewGradScaler()
		must(t, err)
		defer scaler.Close()
		opt.ZeroGrad()
		loss := x.Sum(m.Forward(x, in), nil)
		must(t, x.Backward(scaler.Scale(x, loss)))
		must(t, scaler.Unscale(x, opt))
		must(t, scaler.Step(x, opt))
		must(t, scaler.Update(x))
		state, err := scaler.State(x)
		must(t, err)
		if state.Scale != 65536 || state.GrowthTracker != 1 {
			t.Errorf("%+v", state)
		}
		lr := x.Full(nil, 1e-3, tenon.Float32)
		must(t, opt.SetLRTensor(0, lr))
		must(t, opt.Step(x))
		{
			f := filepath.Join(t.TempDir(), "model.pt")
			must(t, torchfile.Save(x, f, map[string]any{"epoch": 3, "model": torchfile.Tensors(nn.StateDict(m))}))
			file, err := torchfile.Open(f)
			must(t, err)
			defer file.Close()
			if epoch, _ := file.Root().(*torchfile.Dict).Get("epoch"); epoch != int64(3) {
				t.Errorf("epoch %v", epoch)
			}
			state, err := file.StateDict(x, "model")
			must(t, err)
			must(t, nn.Load(x, m, state))
		}
		{
			f := filepath.Join(t.TempDir(), "checkpoint.pt")
			d, err := optim.StateDict(x, opt)
			must(t, err)
			must(t, torchfile.Save(x, f, map[string]any{"optimizer": d}))
			file, err := torchfile.Open(f)
			must(t, err)
			defer file.Close()
			must(t, optim.LoadStateDict(x, opt, file, "optimizer"))
			checkpoint := &optim.Checkpoint{Model: m, Optimizer: opt}
			must(t, checkpoint.Save(x, f))
			must(t, checkpoint.Load(x, f))
		}
		f := filepath.Join(t.TempDir(), "adam.safetensors")
		must(t, optim.SaveFile(x, opt, f))
		must(t, optim.LoadFile(x, opt, f))
	}
}

// What a program that classifies images needs besides its convolutions.
func TestFromPyTorchClassifier(test *testing.T) {
	x := openSim(test)
	norm, pool, flatten := nn.NewBatchNorm2d(x, 8), nn.AdaptiveAvgPool2d{Size: [2]int{1, 1}}, nn.Flatten{}
	m := nn.Sequential{norm, pool, flatten}
	defer nn.Close(m)
	if n := nn.NumParams(m); n != 16 {
		test.Errorf("%d parameters", n)
	}
	t, y := x.Ones([]int{3, 8, 2, 2}, tenon.Float32), tenon.From(x, []int{0, 1, 0})
	if shape := x.Flatten(t, 1).Shape(); !slices.Equal(shape, []int{3, 32}) {
		test.Error(shape)
	}
	p, err := x.Device().ProfileFunc(func() error {
		pred := m.Forward(x, t)
		right, err := x.Item(x.Sum(x.Eq(x.ArgMax(pred, []int{1}), y), nil))
		if right != 2 {
			test.Errorf("%v are right", right)
		}
		loss := x.CrossEntropy(pred, y)
		return errors.Join(err, x.Backward(x.DivS(loss, 2)))
	})
	must(test, err)
	err = p.WriteTable(os.Stdout, profile.ByOp, 20)
	must(test, err)
}

func TestFromPyTorchRecurrent(test *testing.T) {
	x := openSim(test)
	lstm := nn.NewLSTM(x, 3, 4, nn.RecurrentOpt{NumLayers: 2, BatchFirst: true})
	defer nn.Close(lstm)
	if text := nn.String(lstm); text != "LSTM(3, 4, num_layers=2, batch_first=True)" {
		test.Error(text)
	}
	t, lengths := x.Ones([]int{2, 5, 3}, tenon.Float32), tenon.From(x, []int64{2, 5})
	h, c := x.Zeros([]int{2, 2, 4}, tenon.Float32), x.Zeros([]int{2, 2, 4}, tenon.Float32)
	var out *tenon.Tensor
	out, h, c = lstm.Forward(x, t, nn.LSTMForwardOpt{Hidden: h, Cell: c})
	if fmt.Sprint(out.Shape(), h.Shape(), c.Shape()) != "[2 5 4] [2 2 4] [2 2 4]" {
		test.Error(out, h, c)
	}
	out, h, c = lstm.Forward(x, t, nn.LSTMForwardOpt{Lengths: lengths})
	last := x.Select(h, 0, 1) // of the second layer
	if fmt.Sprint(c.Shape()) != "[2 2 4]" {
		test.Error(c)
	}
	wantItem(test, x, x.Sum(x.Abs(x.Index(out, 0, tenon.Span(2, 5))), nil), 0)
	wantItem(test, x, x.Sum(x.Abs(x.Sub(x.Index(out, 0, 1), x.Select(last, 0, 0))), nil), 0)
	both := nn.NewLSTM(x, 3, 4, nn.RecurrentOpt{NumLayers: 2, Bidirectional: true})
	defer nn.Close(both)
	{
		lstm := both
		for name, p := range nn.Params(lstm) {
			if (name == "weight_hh_l1_reverse") != (p == lstm.Weights[1][1].WeightHH) {
				test.Error(name)
			}
		}
	}
}

func TestFromPyTorchAttention(test *testing.T) {
	x := openSim(test)
	mha := nn.NewMultiheadAttention(x, 8, 2, nn.MultiheadAttentionOpt{BatchFirst: true})
	defer nn.Close(mha)
	t, p := x.RandN([]int{2, 3, 8}, tenon.Float32), tenon.From(x, []bool{false, false, true, false, false, false}, 2, 3)
	padded := func() (out *tenon.Tensor) {
		out = mha.Forward(x, t, t, t, nn.MultiheadAttentionForwardOpt{KeyPadding: p})
		return out
	}()
	out, w := mha.ForwardWeights(x, t, t, t)
	wantItem(test, x, x.Sum(w, nil), 6)
	row := func(t *tenon.Tensor, i int) *tenon.Tensor { return x.Select(t, 0, i) }
	if near, err := x.Item(x.Max(x.Abs(x.Sub(row(out, 1), row(padded, 1))))); err != nil || near > 1e-6 {
		test.Error(near, err)
	}
	if apart, err := x.Item(x.Max(x.Abs(x.Sub(row(out, 0), row(padded, 0))))); err != nil || apart < 1e-3 {
		test.Error(apart, err)
	}
	six := []nn.Module{nn.ReLU{}, nn.ReLU6{}, nn.NewDropout(0.1)}[1]
	wantItem(test, x, six.Forward(x, x.Full(nil, 7, tenon.Float32)), 6)
}

func TestFromPyTorchScoped(t *testing.T) {
	x := openSim(t)
	held := x.Device().MemoryAllocated()
	x.Scope(func(x *tenon.Exec) {
		m := nn.Scoped(x, nn.NewLinear(x, 64, 10))
		err := nn.ToChannelsLast(x, m)
		must(t, err)
	})
	if n := x.Device().MemoryAllocated(); n != held {
		t.Errorf("the module holds %d bytes", n-held)
	}
	images := x.Ones([]int{1, 2, 2, 2}, tenon.Float32)
	if last := x.ChannelsLast(images); !slices.Equal(last.Stride(), []int{8, 1, 4, 2}) {
		t.Error(last.Stride())
	}
}

func TestFromPyTorchData(t *testing.T) {
	x := openSim(t)
	ds, err := data.NewTable(data.NewColumn(make([]float32, 640), 64))
	must(t, err)
	rows := rand.Perm(ds.Len())
	train, test := data.Subset{Of: ds, Rows: rows[:8]}, data.Subset{Of: ds, Rows: rows[8:]}
	if train.Len() != 8 || test.Len() != 2 {
		t.Error(train.Len(), test.Len())
	}
	loader, err := data.NewLoader(ds, data.LoaderOpt{BatchSize: 4, Shuffle: true, Workers: 2})
	must(t, err)
	batches := 0
	for b, err := range loader.Epoch(x) {
		must(t, err)
		batches += len(b.Tensors)
	}
	if batches != 3 {
		t.Error(batches)
	}
}

func TestFromPyTorchParameters(t *testing.T) {
	x := openSim(t)
	w := x.Empty([]int{2, 2}, tenon.Float32)
	nn.InitUniform(x, w, -1, 1)
	nn.InitNormal(x, w, 0, 0.02)
	nn.InitXavierUniform(x, w)
	nn.InitKaimingNormal(x, w, nn.KaimingOpt{FanOut: true, Nonlinearity: nn.GainReLU})
	nn.InitConstant(x, w, 0)
	wantItem(t, x, x.Sum(w, nil), 0)
	nn.InitEye(x, w)
	wantItem(t, x, x.Sum(w, nil), 2)
	embedding, head := nn.NewEmbedding(x, 5, 3), nn.NewLinear(x, 3, 5, nn.LinearOpt{NoBias: true})
	nn.Close(head)
	head.Weight = embedding.Weight
	tied := &struct{ Embedding, Head nn.Module }{embedding, head}
	defer nn.Close(tied)
	params, keys := 0, 0
	for range nn.Params(tied) {
		params++
	}
	for range nn.StateDict(tied) {
		keys++
	}
	if params != 1 || keys != 2 {
		t.Error(params, keys)
	}
}
