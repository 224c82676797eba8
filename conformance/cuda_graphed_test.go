package conformance

import (
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/dtype"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// callablesNet is the four callables of PyTorch's test: two modules, one with an input that it does not use, an activation and a loss.
type callablesNet struct {
	First  nn.Sequential
	Second *nn.Linear
}

func newCallablesNet(x *tenon.Exec, n [3]int) *callablesNet {
	opt := nn.LinearOpt{Generator: nn.NewHostGenerator(5)}
	return &callablesNet{
		First:  nn.Sequential{nn.NewLinear(x, n[0], n[1], opt), nn.NewDropout(0.1), nn.NewLinear(x, n[1], n[1], opt), nn.NewDropout(0.2)},
		Second: nn.NewLinear(x, n[1], n[2], opt),
	}
}

// callable is a function of the network; unused is an input that it ignores.
func (m *callablesNet) callables(x *tenon.Exec, rows int, n [3]int) []nn.Callable {
	sample := func(grad bool, shape ...int) *tenon.Tensor {
		return x.RandN(shape, tenon.Float32).SetRequiresGrad(grad)
	}
	one := func(t *tenon.Tensor) []*tenon.Tensor { return []*tenon.Tensor{t} }
	return []nn.Callable{
		{Params: nn.Params(m.First), Samples: []*tenon.Tensor{sample(false, rows, n[0]), sample(true, rows, n[0])},
			Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor { return one(m.First.Forward(x, in[0])) }},
		{Params: nn.Params(m.Second), Samples: one(sample(true, rows, n[1])),
			Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor { return one(m.Second.Forward(x, in[0])) }},
		{Samples: one(sample(true, rows, n[2])),
			Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor { return one(x.ReLU(in[0])) }},
		{Samples: []*tenon.Tensor{sample(true, rows, n[2]), sample(false, rows, n[2])},
			Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor {
				return one(nn.MSELoss{}.Forward(x, in[0], in[1]))
			}},
	}
}

// testGraphCallables trains the network with graphed callables and with eager ones.
func testGraphCallables(t *testing.T, x *tenon.Exec) {
	rows, n := 640, [3]int{4096, 2048, 1024}
	if !onGPU() {
		rows, n = 8, [3]int{32, 24, 16}
	}
	for _, c := range []struct {
		name        string
		autocast    dtype.DType
		allowUnused bool
		refusal     string
	}{
		{"float32", dtype.Invalid, true, ""},
		{"autocast", tenon.Float16, true, ""},
		{"unused inputs are not allowed", dtype.Invalid, false,
			"One of the differentiated Tensors appears to not have been used in the graph"},
	} {
		x.Scope(func(x *tenon.Exec) {
			y := x.Autocast(c.autocast)
			train := func(graph bool) (params []float32, eval []float32) {
				net := newCallablesNet(x, n)
				defer nn.Close(net)
				fs := net.callables(x, rows, n)
				call := func(i int, x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor { return fs[i].Forward(x, in...)[0] }
				if graph {
					graphed, err := nn.GraphCallables(y, fs, nn.GraphOpt{AllowUnused: c.allowUnused})
					if c.refusal != "" {
						wantError(t, err, c.refusal)
						return nil, nil
					}
					must(t, err)
					defer func() {
						for _, g := range graphed {
							must(t, g.Close())
						}
					}()
					call = func(i int, x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor { return graphed[i].Call(x, in...)[0] }
				}
				opt, err := optim.NewSGD(nn.Params(net), optim.SGDOpt{LR: 0.1})
				must(t, err)
				defer opt.Close()
				must(t, x.Generator().SetSeed(5))
				unused := x.RandN([]int{rows, n[0]}, tenon.Float32)
				for range 10 {
					x.Scope(func(x *tenon.Exec) {
						y := x.Autocast(c.autocast)
						data, want := x.RandN([]int{rows, n[0]}, tenon.Float32), x.RandN([]int{rows, n[2]}, tenon.Float32)
						opt.ZeroGrad()
						out := call(2, y, call(1, y, call(0, y, data, unused)))
						must(t, x.Backward(call(3, y, out, want)))
						must(t, opt.Step(x))
					})
				}
				for _, p := range nn.Params(net) {
					params = append(params, testdevice.Read[float32](t, x, p.Tensor())...)
				}
				nn.Eval(net)
				eval = testdevice.Read[float32](t, x, x.ToDType(net.Second.Forward(x.NoGrad(), net.First.Forward(x.NoGrad(), unused)),
					tenon.Float32))
				return params, eval
			}
			graphed, graphedEval := train(true)
			if c.refusal != "" {
				return
			}
			params, eval := train(false)
			if !slices.Equal(graphed, params) {
				t.Errorf("%s: the parameters after ten graphed steps differ from those after ten steps", c.name)
			}
			if !slices.Equal(graphedEval, eval) {
				t.Errorf("%s: the outputs after training differ", c.name)
			}
		})
	}
}

func testGraphCallablesSamePool(t *testing.T, x *tenon.Exec) {
	pool := cuda.NewPoolID()
	build := func(seed uint64) nn.Sequential {
		opt := nn.LinearOpt{Generator: nn.NewHostGenerator(seed)}
		return nn.Sequential{nn.NewLinear(x, 32, 128, opt), nn.ReLU{}, nn.NewLinear(x, 128, 128, opt)}
	}
	var models []nn.Sequential
	var graphed []*nn.Graphed
	for i := range 3 {
		models = append(models, build(uint64(i)))
		m := build(uint64(i))
		g, err := nn.Graph(x, m, x.RandN([]int{64, 32}, tenon.Float32), nn.GraphOpt{Pool: pool})
		must(t, err)
		graphed = append(graphed, g)
	}
	defer func() {
		for i := range graphed {
			must(t, graphed[i].Close())
			nn.Close(graphed[i])
			nn.Close(models[i])
		}
	}()
	norm := func(a *tenon.Tensor) *tenon.Tensor { return x.Sqrt(x.Sum(x.Mul(a, a), nil)) }
	for i, model := range models {
		in := x.RandN([]int{64, 32}, tenon.Float32)
		y, yg := model.Forward(x, in), graphed[i].Forward(x, in)
		l, lg := norm(y), norm(yg)
		must(t, x.Backward(l))
		must(t, x.Backward(lg))
		if !equal(t, x, y, yg) || !equal(t, x, l, lg) {
			t.Errorf("model %d: the graphed output differs", i)
		}
		ps := map[string]*nn.Param{}
		for name, p := range nn.Params(model) {
			ps[name] = p
		}
		for name, pg := range nn.Params(graphed[i]) {
			p := ps[name]
			if p == nil || !equal(t, x, p.Tensor(), pg.Tensor()) || !equal(t, x, p.Grad(), pg.Grad()) {
				t.Fatalf("model %d: parameter %s or its gradient differs", i, name)
			}
			if p.Tensor().DataPtr() == pg.Tensor().DataPtr() || p.Grad().DataPtr() == pg.Grad().DataPtr() {
				t.Errorf("model %d: parameter %s shares memory", i, name)
			}
			delete(ps, name)
		}
		check(t, "parameters that the graphed module lacks", len(ps), 0)
	}
}
