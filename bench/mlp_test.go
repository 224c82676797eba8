package bench

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/record"
	"tenon.dev/internal/rt"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// mlp is the training step shown on the page: 784-512-256-10 with ReLU, batch 256, cross-entropy, Adam.
type mlp struct {
	net  nn.Sequential
	opt  *optim.Adam
	in   *tenon.Tensor
	want *tenon.Tensor
}

func newMLP(t testing.TB, x *tenon.Exec) *mlp {
	opt := nn.LinearOpt{}
	m := &mlp{net: nn.Sequential{nn.NewLinear(x, 784, 512, opt), nn.ReLU{}, nn.NewLinear(x, 512, 256, opt), nn.ReLU{},
		nn.NewLinear(x, 256, 10, opt)}}
	var err error
	if m.opt, err = optim.NewAdam(nn.Params(m.net)); err != nil {
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

func (m *mlp) step(t testing.TB, x *tenon.Exec) {
	x.Scope(func(x *tenon.Exec) {
		if err := m.learn(x); err != nil {
			t.Fatal(err)
		}
	})
}

// learn is a step in the caller's scope.
func (m *mlp) learn(x *tenon.Exec) error {
	m.opt.ZeroGrad()
	loss := nn.CrossEntropyLoss{}.Forward(x, m.net.Forward(x, m.in), m.want)
	if err := x.Backward(loss); err != nil {
		return err
	}
	return m.opt.Step(x)
}

// mlpSteps are the ways to run the step.
var mlpSteps = []struct {
	name    string
	prepare func(t testing.TB, x *tenon.Exec, m *mlp) (step func())
}{
	{"eager", func(t testing.TB, x *tenon.Exec, m *mlp) func() { return func() { m.step(t, x) } }},
	{"graph", func(t testing.TB, x *tenon.Exec, m *mlp) func() {
		graph, err := x.Capture(func(x *tenon.Exec) { m.step(t, x) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { graph.Close() })
		return func() {
			if err := x.Replay(graph); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"compiled", func(t testing.TB, x *tenon.Exec, m *mlp) func() {
		r := compile.New()
		step := func() {
			if err := r.Do(x, m.learn); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			step()
		}
		if s := r.Stats(x); s.Replays == 0 || s.Plain > 0 {
			t.Fatalf("the step does not replay: %+v", s)
		}
		return step
	}},
}

// runMLP measures the step in every way, count calls at a time.
func runMLP(t *testing.T, x *tenon.Exec, before, after string, count int) {
	for _, way := range mlpSteps {
		m := newMLP(t, x)
		for range 3 { // creates the optimizer's state
			m.step(t, x)
		}
		perCall(t, before+"mlp."+way.name+after, count, false, x.Synchronize, way.prepare(t, x, m))
		m.close()
	}
}

func (m *mlp) close() {
	m.opt.Close()
	nn.Close(m.net)
	m.in.Close()
	m.want.Close()
}

func TestMLP(t *testing.T) { runMLP(t, onGPU(t), "", "", 100) }

// TestGoMLP measures the CPU time of the step, on a driver that does nothing.
func TestGoMLP(t *testing.T) { runMLP(t, onNull(t), "", ".go", 20) }

// BenchmarkGoMLP is TestGoMLP for profiles and counts of allocations.
func BenchmarkGoMLP(b *testing.B) {
	x := onNull(b)
	m := newMLP(b, x)
	for range 3 {
		m.step(b, x)
	}
	for _, way := range mlpSteps {
		b.Run(way.name, func(b *testing.B) {
			step := way.prepare(b, x, m)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				step()
			}
		})
	}
}

func TestSimMLP(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	runMLP(t, x, "sim.", "", 1)
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
	if n > 28 { // two exact products each copy an operand, which is faster
		t.Errorf("%d launches a step, want at most 28\n%s", n, rec.Text())
	}
}
