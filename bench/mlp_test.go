package bench

import (
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/record"
	"tenon.dev/internal/rt"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// mlp is the training step of the page: 784-512-256-10 with ReLU, batch 256, cross-entropy, Adam.
type mlp struct {
	net  nn.Sequential
	opt  *optim.Adam
	in   *tenon.Tensor
	want *tenon.Tensor
}

func newMLP(t *testing.T, x *tenon.Exec) *mlp {
	opt := nn.LinearOpt{}
	m := &mlp{net: nn.Sequential{nn.NewLinear(x, 784, 512, opt), nn.ReLU{}, nn.NewLinear(x, 512, 256, opt), nn.ReLU{}, nn.NewLinear(x, 256, 10, opt)}}
	var err error
	if m.opt, err = optim.NewAdam(nn.Params(m.net), optim.AdamOpt{}); err != nil {
		t.Fatal(err)
	}
	v := make([]float32, 256*784)
	for i := range v {
		v[i] = float32(i%97)/97 - 0.5
	}
	w := make([]int64, 256)
	for i := range w {
		w[i] = int64(i % 10)
	}
	m.in, m.want = tenon.From(x, v, 256, 784), tenon.From(x, w)
	return m
}

func (m *mlp) step(t *testing.T, x *tenon.Exec) {
	x.Scope(func(x *tenon.Exec) {
		m.opt.ZeroGrad()
		loss := nn.CrossEntropyLoss{}.Forward(x, m.net.Forward(x, m.in), m.want)
		if err := x.Backward(loss, nil, tenon.BackwardOpt{}); err != nil {
			t.Fatal(err)
		}
		if err := m.opt.Step(x); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMLP(t *testing.T) {
	x := onGPU(t)
	m := newMLP(t, x)
	perCall(t, "mlp.eager", 100, false, x.Synchronize, func() { m.step(t, x) })
}

// The number of operations that a step queues does not depend on the device.
func TestMLPLaunches(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	var rec *record.Device
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device {
		rec = record.New(d)
		return rec
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	x := (*tenon.Exec)(core.New(dev, host))
	m := newMLP(t, x)
	m.step(t, x)
	m.step(t, x)
	rec.Reset()
	m.step(t, x)
	n := rec.Count("Launch") + rec.Count("Memset") + rec.Count("CopyDtoD")
	recordFigure("mlp.launches", "launches", []float64{float64(n)})
	if n > 26 {
		t.Errorf("%d launches a step, want at most 26\n%s", n, rec.Text())
	}
}
