package conformance

import (
	"errors"
	"iter"
	"math"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// optimTests are the behaviours of optimizers and of the gradient scaler in graphs.
var optimTests = []cudaTest{
	{name: "CUDA-110_test_graph_optims", run: testGraphOptims},
	{name: "CUDA-111_test_graph_optims_with_explicitly_capturable_param_groups", run: testGraphOptimGroups},
	{name: "CUDA-112_test_graph_scaling_fused_optimizers", run: testGraphScaling},
	{name: "CUDA-153_test_graph_optims_all", run: testGraphOptimsAll},
	{name: "CUDA-154_test_graph_scaling_fused_optimizers_all", run: testGraphScalingAll},
	{name: "CUDA-155_test_grad_scaling_autocast_fused_optimizers", run: testScalingAutocast},
	{name: "CUDA-157_test_graph_grad_scaling", run: testGraphGradScaling},
}

type namedParams = iter.Seq2[string, *nn.Param]

// maker makes an optimizer; a rate of 0 means the default.
type maker struct {
	name string
	make func(ps namedParams) (optim.Optimizer, error)
}

// someMakers returns the optimizers of the first of PyTorch's tests, with its betas.
func someMakers() (all []maker) {
	betas := []float64{.8, .7}
	for _, flag := range []bool{false, true} {
		all = append(all,
			maker{"NAdam", func(ps namedParams) (optim.Optimizer, error) {
				return optim.NewNAdam(ps, optim.NAdamOpt{LR: .1, Betas: betas, WeightDecay: .1, DecoupledWeightDecay: flag})
			}},
			maker{"Adam", func(ps namedParams) (optim.Optimizer, error) {
				return optim.NewAdam(ps, optim.AdamOpt{LR: .1, Betas: betas, AMSGrad: flag})
			}},
			maker{"AdamW", func(ps namedParams) (optim.Optimizer, error) {
				return optim.NewAdamW(ps, optim.AdamOpt{LR: .1, Betas: betas, AMSGrad: flag})
			}})
	}
	return all
}

// scaledMakers returns the optimizers that PyTorch scales on the device.
func scaledMakers() []maker {
	return []maker{
		{"Adam", func(ps namedParams) (optim.Optimizer, error) { return optim.NewAdam(ps, optim.AdamOpt{LR: .1}) }},
		{"AdamW", func(ps namedParams) (optim.Optimizer, error) { return optim.NewAdamW(ps, optim.AdamOpt{LR: .1}) }},
		{"SGD", func(ps namedParams) (optim.Optimizer, error) { return optim.NewSGD(ps, optim.SGDOpt{LR: .1}) }},
		{"SGD momentum", func(ps namedParams) (optim.Optimizer, error) {
			return optim.NewSGD(ps, optim.SGDOpt{LR: .1, Momentum: .9, Nesterov: true})
		}},
	}
}

// allMakers returns all optimizers, in several variants.
func allMakers() []maker {
	return append(append(someMakers(), scaledMakers()...),
		maker{"RAdam", func(ps namedParams) (optim.Optimizer, error) { return optim.NewRAdam(ps, optim.RAdamOpt{LR: .1}) }},
		maker{"RAdam decoupled", func(ps namedParams) (optim.Optimizer, error) {
			return optim.NewRAdam(ps, optim.RAdamOpt{LR: .1, WeightDecay: .1, DecoupledWeightDecay: true})
		}},
		maker{"Adamax", func(ps namedParams) (optim.Optimizer, error) { return optim.NewAdamax(ps, optim.AdamaxOpt{LR: .1}) }},
		maker{"Adagrad", func(ps namedParams) (optim.Optimizer, error) {
			return optim.NewAdagrad(ps, optim.AdagradOpt{LR: .1, LRDecay: .1})
		}},
		maker{"Adadelta", func(ps namedParams) (optim.Optimizer, error) { return optim.NewAdadelta(ps, optim.AdadeltaOpt{LR: .1}) }},
		maker{"ASGD", func(ps namedParams) (optim.Optimizer, error) { return optim.NewASGD(ps, optim.ASGDOpt{LR: .1, T0: 2}) }},
		maker{"RMSprop", func(ps namedParams) (optim.Optimizer, error) {
			return optim.NewRMSprop(ps, optim.RMSpropOpt{LR: .1, Centered: true, Momentum: .9})
		}},
		maker{"Rprop", func(ps namedParams) (optim.Optimizer, error) { return optim.NewRprop(ps, optim.RpropOpt{LR: .1}) }})
}

// run is an optimizer over parameters of given shapes, with the same initial values in every run.
type run struct {
	ps []*nn.Param
	o  optim.Optimizer
}

func newRun(t *testing.T, x *tenon.Exec, m maker, shapes ...[]int) *run {
	r := &run{}
	x.Generator().SetSeed(1)
	for _, s := range shapes {
		r.ps = append(r.ps, nn.NewParam(x.RandN(s, tenon.Float32)))
	}
	var err error
	r.o, err = m.make(listed(r.ps))
	must(t, err)
	return r
}

func listed(ps []*nn.Param) namedParams {
	return func(yield func(string, *nn.Param) bool) {
		for _, p := range ps {
			if !yield("p", p) {
				return
			}
		}
	}
}

func (r *run) close() {
	r.o.Close()
	for _, p := range r.ps {
		p.Close()
	}
}

// gradients sets the gradients of step i, times factor, in place if they exist.
func (r *run) gradients(x *tenon.Exec, i int, factor float64) {
	x.Generator().SetSeed(uint64(10 + i))
	for _, p := range r.ps {
		g := x.MulS(x.RandN(p.Tensor().Shape(), tenon.Float32), factor)
		if p.Grad() == nil {
			p.SetGrad(g)
		} else {
			x.CopyInto(p.Grad(), g)
		}
	}
}

func (r *run) read(t *testing.T, x *tenon.Exec) (all []float32) {
	for _, p := range r.ps {
		v, err := tenon.Read[float32](x, p.Tensor())
		must(t, err)
		all = append(all, v...)
	}
	return all
}

// captured captures f, which may fail.
func captured(t *testing.T, x *tenon.Exec, f func(x *tenon.Exec) error) *tenon.Graph {
	t.Helper()
	var failed error
	g, err := x.Capture(func(x *tenon.Exec) { failed = f(x) })
	must(t, errors.Join(err, failed))
	return g
}

// graphOptims: three steps and two replays of a captured one are five steps.
func graphOptims(t *testing.T, x *tenon.Exec, makers []maker, shapes ...[]int) {
	for _, m := range makers {
		plain, graphed := newRun(t, x, m, shapes...), newRun(t, x, m, shapes...)
		for i := range 5 {
			plain.gradients(x, i, 1)
			must(t, plain.o.Step(x))
		}
		for i := range 3 {
			graphed.gradients(x, i, 1)
			must(t, graphed.o.Step(x))
		}
		g := captured(t, x, graphed.o.Step)
		for i := 3; i < 5; i++ {
			graphed.gradients(x, i, 1)
			must(t, x.Replay(g))
		}
		if got, want := graphed.read(t, x), plain.read(t, x); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", m.name, got, want)
		}
		must(t, g.Close())
		plain.close()
		graphed.close()
	}
}

func testGraphOptims(t *testing.T, x *tenon.Exec) {
	graphOptims(t, x, someMakers(), []int{5, 5}, []int{6, 6}, nil)
}

func testGraphOptimsAll(t *testing.T, x *tenon.Exec) {
	graphOptims(t, x, allMakers(), []int{5, 5}, []int{6, 6}, nil)
}

// Two groups of one scalar each. Tenon has no groups that cannot be captured.
func testGraphOptimGroups(t *testing.T, x *tenon.Exec) {
	x.Generator().SetSeed(1)
	runs := [2]*run{}
	for i := range runs {
		a, b := nn.NewParam(x.Ones(nil, tenon.Float32)), nn.NewParam(x.Full(nil, 2, tenon.Float32))
		o, err := optim.NewNAdam(listed([]*nn.Param{a}), optim.NAdamOpt{LR: .1})
		must(t, err)
		must(t, o.Add(listed([]*nn.Param{b}), optim.NAdamOpt{LR: .3, DecoupledWeightDecay: true, WeightDecay: .1}))
		runs[i] = &run{[]*nn.Param{a, b}, o}
		defer runs[i].close()
	}
	step := func(r *run, from, to int, do func() error) {
		for i := from; i < to; i++ {
			r.gradients(x, i, 1)
			must(t, do())
		}
	}
	step(runs[0], 0, 5, func() error { return runs[0].o.Step(x) })
	step(runs[1], 0, 3, func() error { return runs[1].o.Step(x) })
	g := captured(t, x, runs[1].o.Step)
	step(runs[1], 3, 5, func() error { return x.Replay(g) })
	if got, want := runs[1].read(t, x), runs[0].read(t, x); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	must(t, g.Close())
}

// graphScaling: step and update in a graph, with gradients scaled by 128, one of which overflows.
func graphScaling(t *testing.T, x *tenon.Exec, makers []maker) {
	for _, m := range makers {
		var ends [2][]float32
		var states [2]optim.GradScalerState
		for i := range ends {
			r := newRun(t, x, m, []int{5, 5}, []int{6, 6}, nil)
			s, err := optim.NewGradScaler()
			must(t, err)
			must(t, s.SetState(x, optim.GradScalerState{Scale: 128, GrowthFactor: 2, BackoffFactor: .5, GrowthInterval: 3}))
			s.Scale(x, x.Ones(nil, tenon.Float32))
			update := func(x *tenon.Exec) error {
				if err := s.Step(x, r.o); err != nil {
					return err
				}
				return s.Update(x)
			}
			do := func() error { return update(x) }
			for step := range 6 {
				factor := 128.0
				if step == 4 {
					factor = math.Inf(1)
				}
				r.gradients(x, step, factor)
				if step == 3 && i == 1 {
					g := captured(t, x, update)
					defer func() { must(t, g.Close()) }()
					do = func() error { return x.Replay(g) }
				}
				must(t, do())
			}
			ends[i] = r.read(t, x)
			states[i], err = s.State(x)
			must(t, err)
			s.Close()
			r.close()
		}
		if !slices.Equal(ends[0], ends[1]) || states[0] != states[1] || states[0].Scale != 128 {
			t.Errorf("%s: got %v, %+v; want %v, %+v", m.name, ends[1], states[1], ends[0], states[0])
		}
	}
}

func testGraphScaling(t *testing.T, x *tenon.Exec)    { graphScaling(t, x, scaledMakers()) }
func testGraphScalingAll(t *testing.T, x *tenon.Exec) { graphScaling(t, x, allMakers()) }

// hostDecides hides that the device can skip the optimizer's step.
type hostDecides struct {
	optim.Optimizer
	ps []*nn.Param
}

func (o *hostDecides) Params() iter.Seq[*nn.Param] { return slices.Values(o.ps) }

// Under half-precision autocast, the device's decision to skip a step and the host's after reading the flag lead to the same losses,
// gradients and parameters, with and without a call of Unscale.
func testScalingAutocast(t *testing.T, x *tenon.Exec) {
	for _, m := range scaledMakers() {
		for _, unscale := range []bool{false, true} {
			var traces [2][]float32
			for i := range traces {
				r := newRun(t, x, m, []int{8, 8}, []int{8}, []int{8, 8}, []int{8})
				var o optim.Optimizer = r.o
				if i == 1 {
					o = &hostDecides{r.o, r.ps}
				}
				s, err := optim.NewGradScaler(optim.GradScalerOpt{InitScale: 128, GrowthInterval: 1})
				must(t, err)
				for step := range 4 {
					x.Scope(func(x *tenon.Exec) {
						ac := x.Autocast(tenon.Float16)
						in := x.Full([]int{8, 8}, float64(step+1), tenon.Float32)
						if step == 2 {
							in = x.Full([]int{8, 8}, math.Inf(1), tenon.Float32)
						}
						h := ac.ReLU(ac.Linear(in, r.ps[0].Tensor(), r.ps[1].Tensor()))
						out := ac.Linear(h, r.ps[2].Tensor(), r.ps[3].Tensor())
						loss := ac.MSELoss(out, x.ZerosLike(out))
						must(t, x.Backward(s.Scale(x, loss)))
						if unscale {
							must(t, s.Unscale(x, o))
						}
						must(t, s.Step(x, o))
						v, err := tenon.Read[float32](x, x.Contiguous(x.ToDType(loss, tenon.Float32)))
						must(t, err)
						traces[i] = append(traces[i], v...)
						for _, p := range r.ps {
							v, err := tenon.Read[float32](x, p.Grad())
							must(t, err)
							traces[i] = append(traces[i], v...)
						}
						must(t, s.Update(x))
						o.ZeroGrad()
					})
				}
				traces[i] = append(traces[i], r.read(t, x)...)
				st, err := s.State(x)
				must(t, err)
				traces[i] = append(traces[i], float32(st.Scale))
				s.Close()
				r.close()
			}
			same := func(a, b float32) bool { return a == b || a != a && b != b }
			if !slices.EqualFunc(traces[0], traces[1], same) {
				t.Errorf("%s, unscale %v: the device gives %v, the host %v", m.name, unscale, traces[0], traces[1])
			}
			if scale := traces[0][len(traces[0])-1]; scale != 128*4 { // grown three times and halved once
				t.Errorf("%s: the scale is %v", m.name, scale)
			}
		}
	}
}

// A captured backward pass whose half-precision gradients overflow in two of four replays.
func testGraphGradScaling(t *testing.T, x *tenon.Exec) {
	for _, m := range scaledMakers() {
		p := nn.NewParam(x.Ones([]int{100}, tenon.Float32))
		o, err := m.make(listed([]*nn.Param{p}))
		must(t, err)
		s, err := optim.NewGradScaler(optim.GradScalerOpt{InitScale: 4})
		must(t, err)
		in := x.Full([]int{100}, 5, tenon.Float16)
		backward := func(x *tenon.Exec) error {
			loss := x.Sum(x.Mul(x.ToDType(p.Tensor(), tenon.Float16), in), nil)
			return x.Backward(s.Scale(x, loss))
		}
		must(t, backward(x))
		o.ZeroGrad()
		g := captured(t, x, backward)
		for _, want := range []struct{ in, grad, scale, tracker float64 }{{5, 20, 4, 1}, {20000, math.Inf(1), 2, 0}, {5, 10, 2, 1},
			{40000, math.Inf(1), 1, 0}} {
			x.CopyInto(in, x.Full([]int{100}, want.in, tenon.Float16))
			must(t, x.Replay(g))
			v, err := tenon.Read[float32](x, p.Grad())
			must(t, err)
			must(t, s.Step(x, o))
			must(t, s.Update(x))
			st, err := s.State(x)
			must(t, err)
			check(t, m.name+", gradient", float64(v[0]), want.grad)
			check(t, m.name+", scale", st.Scale, want.scale)
			check(t, m.name+", tracker", float64(st.GrowthTracker), want.tracker)
		}
		must(t, g.Close())
		s.Close()
		o.Close()
		p.Close()
	}
}
