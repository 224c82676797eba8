package optim_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/recorded"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/safetensors"
)

// onDevices runs f in a scope on every available kind of device, and checks that f, which closes its parameters and optimizers, left
// nothing behind.
func onDevices(t *testing.T, f func(t *testing.T, x *tenon.Exec)) {
	t.Helper()
	devices := map[string]tenon.Selector{"cpu": tenon.CPU(), "sim": tenon.Sim(0)}
	if tenon.GPUs() > 0 {
		devices["cuda"] = tenon.CUDA(0)
	}
	for name, sel := range devices {
		t.Run(name, func(t *testing.T) {
			x, err := tenon.Open(sel)
			if err != nil {
				t.Fatal(err)
			}
			before := core.LiveStorages()
			x.Scope(func(x *tenon.Exec) { f(t, x) })
			if n := core.LiveStorages() - before; n > 0 && !t.Failed() {
				t.Errorf("%d storages are left", n)
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// list yields parameters, named by their numbers.
func list(ps ...*nn.Param) iter.Seq2[string, *nn.Param] {
	return func(yield func(string, *nn.Param) bool) {
		for i, p := range ps {
			if !yield(fmt.Sprint(i), p) {
				return
			}
		}
	}
}

// setup is a recorded configuration: hyper-parameters under PyTorch's names.
type setup struct {
	ID        int
	Optimizer string
	Hyper     struct {
		LR          tenon.Scalar
		Momentum    tenon.Scalar
		Dampening   tenon.Scalar
		WeightDecay tenon.Scalar `json:"weight_decay"`
		Nesterov    bool
		Maximize    bool
		AMSGrad     bool
		Betas       []float64
		Eps         tenon.Scalar
		Decoupled   bool         `json:"decoupled_weight_decay"`
		LRDecay     tenon.Scalar `json:"lr_decay"`
		Initial     tenon.Scalar `json:"initial_accumulator_value"`
		Rho         tenon.Scalar
		T0          tenon.Scalar
		Alpha       tenon.Scalar
		Centered    bool
		Etas        []float64
		StepSizes   []float64 `json:"step_sizes"`
	}
	Steps, Params int
}

func (s *setup) make(t *testing.T, ps []*nn.Param) optim.Optimizer {
	h := s.Hyper
	adam := optim.AdamOpt{LR: h.LR, Betas: h.Betas, Eps: h.Eps, WeightDecay: h.WeightDecay, AMSGrad: h.AMSGrad, Maximize: h.Maximize}
	var o optim.Optimizer
	var err error
	switch s.Optimizer {
	case "SGD":
		o, err = optim.NewSGD(list(ps...), optim.SGDOpt{LR: h.LR, Momentum: h.Momentum, Dampening: h.Dampening, WeightDecay: h.WeightDecay,
			Nesterov: h.Nesterov, Maximize: h.Maximize})
	case "Adam":
		o, err = optim.NewAdam(list(ps...), adam)
	case "AdamW":
		o, err = optim.NewAdamW(list(ps...), adam)
	case "NAdam":
		o, err = optim.NewNAdam(list(ps...), optim.NAdamOpt{LR: h.LR, Betas: h.Betas, WeightDecay: h.WeightDecay,
			DecoupledWeightDecay: h.Decoupled})
	case "RAdam":
		o, err = optim.NewRAdam(list(ps...), optim.RAdamOpt{LR: h.LR, WeightDecay: h.WeightDecay})
	case "Adamax":
		o, err = optim.NewAdamax(list(ps...), optim.AdamaxOpt{LR: h.LR, WeightDecay: h.WeightDecay})
	case "Adagrad":
		o, err = optim.NewAdagrad(list(ps...), optim.AdagradOpt{LR: h.LR, LRDecay: h.LRDecay, WeightDecay: h.WeightDecay,
			InitialAccumulator: h.Initial})
	case "Adadelta":
		o, err = optim.NewAdadelta(list(ps...), optim.AdadeltaOpt{LR: h.LR, Rho: h.Rho, WeightDecay: h.WeightDecay})
	case "ASGD":
		o, err = optim.NewASGD(list(ps...), optim.ASGDOpt{LR: h.LR, T0: h.T0})
	case "RMSprop":
		o, err = optim.NewRMSprop(list(ps...), optim.RMSpropOpt{LR: h.LR, Alpha: h.Alpha, Centered: h.Centered, Momentum: h.Momentum,
			WeightDecay: h.WeightDecay})
	case "Rprop":
		o, err = optim.NewRprop(list(ps...), optim.RpropOpt{LR: h.LR, Etas: h.Etas, StepSizes: h.StepSizes})
	default:
		t.Fatalf("there is no optimizer %s", s.Optimizer)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func openRecorded(t *testing.T) *safetensors.File {
	t.Helper()
	b, err := recorded.File("../conformance/testdata/optims_a.safetensors.gz")
	if err != nil {
		t.Fatal(err)
	}
	s, err := safetensors.New(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every recorded step of PyTorch's optimizers.
func TestTorchSteps(t *testing.T) {
	file := openRecorded(t)
	var setups []setup
	if err := json.Unmarshal([]byte(file.Metadata()["manifest"]), &setups); err != nil {
		t.Fatal(err)
	}
	read := func(t *testing.T, format string, args ...any) ([]byte, safetensors.Info) {
		t.Helper()
		info, err := file.Lookup(fmt.Sprintf(format, args...))
		if err != nil {
			t.Fatal(err)
		}
		b, err := file.Read(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		return b, info
	}
	for _, s := range setups {
		t.Run(fmt.Sprintf("%d %s", s.ID, s.Optimizer), func(t *testing.T) {
			onDevices(t, func(t *testing.T, x *tenon.Exec) {
				tensor := func(format string, args ...any) *tenon.Tensor {
					b, info := read(t, format, args...)
					return x.FromBytes(b, info.DType, info.Shape...)
				}
				var ps []*nn.Param
				for i := range s.Params {
					ps = append(ps, nn.NewParam(tensor("%d.init.%d", s.ID, i)))
				}
				defer func() {
					for _, p := range ps {
						p.Close()
					}
				}()
				o := s.make(t, ps)
				defer o.Close()
				for step := range s.Steps {
					for i, p := range ps {
						p.SetGrad(tensor("%d.grad%d.%d", s.ID, step, i))
					}
					if err := o.Step(x); err != nil {
						t.Fatal(err)
					}
					o.ZeroGrad()
					for i, p := range ps {
						if p.Grad() != nil {
							t.Fatalf("parameter %d has a gradient after ZeroGrad", i)
						}
						got, err := x.Bytes(p.Tensor())
						if err != nil {
							t.Fatal(err)
						}
						want, info := read(t, "%d.step%d.%d", s.ID, step, i)
						for e := range len(want) / info.DType.Size() {
							g, w := dtype.Float64At(info.DType, got, e), dtype.Float64At(info.DType, want, e)
							if math.Abs(g-w) > 1e-6*max(0.1, math.Abs(w)) {
								t.Fatalf("step %d, parameter %d, element %d: got %v, want %v", step, i, e, g, w)
							}
						}
					}
				}
			})
		})
	}
}

// A parameter that has no gradient in some steps keeps its own count, and groups have their own options.
func TestGroups(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		one := func() *nn.Param { return nn.NewParam(tenon.From(x, []float32{1})) }
		a, b, c, frozen := one(), one(), one(), one()
		defer func() {
			for _, p := range []*nn.Param{a, b, c, frozen} {
				p.Close()
			}
		}()
		frozen.SetRequiresGrad(false)
		o, err := optim.NewAdam(list(a, b, frozen), optim.AdamOpt{LR: .1})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		if err := o.Add(list(c), optim.AdamOpt{LR: 10}); err != nil {
			t.Fatal(err)
		}
		if o.Groups() != 2 || o.LR(0) != .1 || o.LR(1) != 10 {
			t.Fatalf("%d groups with rates %v and %v", o.Groups(), o.LR(0), o.LR(1))
		}
		o.SetLR(1, 0)
		step := func(ps ...*nn.Param) {
			for _, p := range ps {
				p.SetGrad(tenon.From(x, []float32{5}))
			}
			if err := o.Step(x); err != nil {
				t.Fatal(err)
			}
			o.ZeroGrad()
		}
		step(a, c)
		step(a, b, c)
		// With equal gradients Adam moves by the learning rate in every step if its bias correction uses the right count.
		for p, want := range map[*nn.Param]float64{a: .8, b: .9, c: 1, frozen: 1} {
			got, err := x.Item(p.Tensor())
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(got-want) > 1e-6 {
				t.Errorf("got %v, want %v", got, want)
			}
		}
	})
}

// A gradient with other strides than the parameter's is used without a copy.
func TestStrides(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{2, 3}, tenon.Float32))
		defer p.Close()
		p.SetGrad(x.Transpose(tenon.From(x, []float32{1, 2, 3, 4, 5, 6}, 3, 2), 0, 1))
		o, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 1, Momentum: .5})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		if err := o.Step(x); err != nil {
			t.Fatal(err)
		}
		got, err := tenon.Read[float32](x, p.Tensor())
		if err != nil || !slices.Equal(got, []float32{-1, -3, -5, -2, -4, -6}) {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

// Two launches step all parameters: one increments the counts, one changes the parameters.
func TestTwoLaunches(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		var ps []*nn.Param
		for i := range 20 {
			p := nn.NewParam(x.Zeros([]int{100 * i, 3}, tenon.Float32))
			defer p.Close()
			p.SetGrad(x.Ones(p.Tensor().Shape(), tenon.Float32))
			ps = append(ps, p)
		}
		o, err := optim.NewAdamW(list(ps...))
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		var launches [3]int64
		for i := range launches {
			if err := o.Step(x); err != nil {
				t.Fatal(err)
			}
			launches[i] = core.KernelLaunches((*core.Exec)(x))
		}
		if n := launches[2] - launches[1]; n != 2 {
			t.Errorf("a step takes %d launches", n)
		}
	})
}

// makers make an optimizer of each type and variant.
var makers = map[string]func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error){
	"SGD": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewSGD(ps, optim.SGDOpt{LR: .1})
	},
	"SGD momentum": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewSGD(ps, optim.SGDOpt{LR: .1, Momentum: .9, Dampening: .5})
	},
	"SGD Nesterov": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewSGD(ps, optim.SGDOpt{LR: .1, Momentum: .9, Nesterov: true})
	},
	"Adam": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewAdam(ps, optim.AdamOpt{LR: .1, Betas: []float64{.8, .7}})
	},
	"Adam AMSGrad": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewAdam(ps, optim.AdamOpt{LR: .1, AMSGrad: true})
	},
	"AdamW": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewAdamW(ps, optim.AdamOpt{LR: .1})
	},
	"AdamW AMSGrad": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewAdamW(ps, optim.AdamOpt{LR: .1, AMSGrad: true})
	},
	"NAdam": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewNAdam(ps, optim.NAdamOpt{LR: .1, WeightDecay: .1})
	},
	"NAdam decoupled": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewNAdam(ps, optim.NAdamOpt{LR: .1, WeightDecay: .1, DecoupledWeightDecay: true})
	},
	"RAdam": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewRAdam(ps, optim.RAdamOpt{LR: .1})
	},
	"RAdam decoupled": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewRAdam(ps, optim.RAdamOpt{LR: .1, WeightDecay: .1, DecoupledWeightDecay: true, Maximize: true})
	},
	"Adamax": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewAdamax(ps, optim.AdamaxOpt{LR: .1})
	},
	"Adagrad": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewAdagrad(ps, optim.AdagradOpt{LR: .1, LRDecay: .1, InitialAccumulator: .5})
	},
	"Adadelta": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewAdadelta(ps)
	},
	"ASGD": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewASGD(ps, optim.ASGDOpt{LR: .1, T0: 3})
	},
	"RMSprop": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewRMSprop(ps, optim.RMSpropOpt{LR: .1})
	},
	"RMSprop momentum": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewRMSprop(ps, optim.RMSpropOpt{LR: .1, Momentum: .5})
	},
	"RMSprop centered": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewRMSprop(ps, optim.RMSpropOpt{LR: .1, Centered: true})
	},
	"RMSprop both": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewRMSprop(ps, optim.RMSpropOpt{LR: .1, Centered: true, Momentum: .5})
	},
	"Rprop": func(ps iter.Seq2[string, *nn.Param]) (optim.Optimizer, error) {
		return optim.NewRprop(ps, optim.RpropOpt{LR: .1})
	},
}

// training is an optimizer over three parameters, one a transposed matrix. The last gradient of each step is 0-d.
type training struct {
	ps []*nn.Param
	o  optim.Optimizer
}

func newTraining(t testing.TB, x *tenon.Exec, kind string) *training {
	t.Helper()
	tr := &training{}
	x.Generator().SetSeed(7)
	for _, v := range []*tenon.Tensor{x.RandN([]int{5, 5}, tenon.Float32), x.Transpose(x.RandN([]int{6, 3}, tenon.Float32), 0, 1),
		x.RandN(nil, tenon.Float32)} {
		tr.ps = append(tr.ps, nn.NewParam(v))
	}
	var err error
	if tr.o, err = makers[kind](list(tr.ps...)); err != nil {
		t.Fatal(err)
	}
	return tr
}

func (tr *training) close() {
	tr.o.Close()
	for _, p := range tr.ps {
		p.Close()
	}
}

// gradient sets the gradients of step i, in place if they exist.
func (tr *training) gradient(x *tenon.Exec, i int) {
	x.Generator().SetSeed(uint64(100 + i))
	for _, p := range tr.ps {
		g := x.RandN(p.Tensor().Shape(), tenon.Float32)
		if p.Grad() == nil {
			p.SetGrad(g)
		} else {
			x.CopyInto(p.Grad(), g)
		}
	}
}

func (tr *training) values(t *testing.T, x *tenon.Exec) (all []float32) {
	t.Helper()
	for _, p := range tr.ps {
		v, err := tenon.Read[float32](x, p.Tensor())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v...)
	}
	return all
}

// Every optimizer's step can be captured once the first step has made its state, and each replay then equals an eager step.
func TestCapture(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for kind := range makers {
			plain, captured := newTraining(t, x, kind), newTraining(t, x, kind)
			const warm, steps = 2, 7
			for i := range steps {
				plain.gradient(x, i)
				if err := plain.o.Step(x); err != nil {
					t.Fatal(err)
				}
			}
			capture := func() (*tenon.Graph, error) {
				return x.Capture(func(x *tenon.Exec) { _ = captured.o.Step(x) }) // the capture returns its error
			}
			captured.gradient(x, 0)
			if _, err := capture(); fault.KindOf(err) != fault.Capture || !strings.Contains(err.Error(), "first step") {
				t.Errorf("%s: got %v", kind, err)
			}
			for i := range warm {
				captured.gradient(x, i)
				if err := captured.o.Step(x); err != nil {
					t.Fatal(err)
				}
			}
			g, err := capture()
			if err != nil {
				t.Fatal(err)
			}
			for i := warm; i < steps; i++ {
				captured.gradient(x, i)
				if err := x.Replay(g); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := captured.values(t, x), plain.values(t, x); !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", kind, got, want)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			plain.close()
			captured.close()
		}
	})
}

// A learning rate in a tensor is read at every step and every replay.
func TestLRTensor(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{2}, tenon.Float32))
		defer p.Close()
		p.SetGrad(x.Ones([]int{2}, tenon.Float32))
		o, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		at := func(want float64) {
			t.Helper()
			if got, err := tenon.Read[float32](x, p.Tensor()); err != nil || float64(got[0]) != want || float64(got[1]) != want {
				t.Errorf("at %v, %v, want %v", got, err, want)
			}
		}
		step := func() {
			t.Helper()
			if err := o.Step(x); err != nil {
				t.Fatal(err)
			}
		}
		step()
		at(-1)
		rate := x.Full(nil, .5, tenon.Float64)
		if err := o.SetLRTensor(0, rate); err != nil {
			t.Fatal(err)
		}
		step()
		at(-1.5)
		x.CopyInto(rate, x.Full(nil, .25, tenon.Float64))
		step()
		at(-1.75)
		if x.Host().Device() != x.Device() {
			g, err := x.Capture(func(x *tenon.Exec) { err = o.Step(x) })
			if err != nil {
				t.Fatal(err)
			}
			x.CopyInto(rate, x.Full(nil, 1, tenon.Float64))
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			at(-2.75)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		} else {
			x.CopyInto(rate, x.Full(nil, 1, tenon.Float64))
			step()
		}
		o.SetLR(0, .25)
		step()
		at(-3)
		for _, bad := range []*tenon.Tensor{x.Zeros([]int{2}, tenon.Float32), x.Zeros(nil, tenon.Int64)} {
			if err := o.SetLRTensor(0, bad); err == nil || !strings.Contains(err.Error(), "one floating-point number") {
				t.Errorf("got %v", err)
			}
		}
		if v, err := x.Item(rate); v != .25 || err != nil {
			t.Errorf("SetLR left %v in the tensor, %v", v, err)
		}
		x.CopyInto(rate, x.Full(nil, 4, tenon.Float64))
		if err := o.SetLRTensor(0, nil); err != nil {
			t.Error(err)
		}
		step() // with the number that LR returns again
		at(-3.25)
	})
}

// The errors of a step name the optimizer, also those of the operations that make its state.
func TestStepErrorsNameTheOptimizer(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(100 << 20))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	p := nn.NewParam(x.Zeros([]int{5 << 20}, tenon.Float32))
	defer p.Close()
	p.SetGrad(x.Ones([]int{5 << 20}, tenon.Float32))
	o, err := optim.NewAdam(list(p), optim.AdamOpt{LR: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	fails := func(text string) {
		t.Helper()
		if err := o.Step(x); err == nil || !strings.HasPrefix(err.Error(), "Adam") || !strings.Contains(err.Error(), text) {
			t.Errorf("the step gives %v", err)
		}
	}
	full := x.Zeros([]int{10 << 20}, tenon.Float32)
	fails("does not fit")
	full.Close()
	rate := x.Full(nil, .5, tenon.Float64)
	if err := o.SetLRTensor(0, rate); err != nil {
		t.Fatal(err)
	}
	rate.Close()
	fails("was closed")
}

// A schedule fills the tensor that a captured step reads its rate from, so that graph and eager steps agree; closing the tensor is an error
// and changes nothing.
func TestScheduleFillsLRTensor(t *testing.T) {
	run := func(graph bool) (weights []float32) {
		x, err := tenon.Open(tenon.Sim(1 << 30))
		mustAll(t, err)
		defer func() { mustAll(t, x.Close()) }()
		x.Scope(func(x *tenon.Exec) {
			p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
			defer p.Close()
			p.SetGrad(x.Ones([]int{1}, tenon.Float32))
			o, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 1})
			mustAll(t, err)
			defer o.Close()
			s, err := optim.NewSchedule(o, optim.ExponentialLR(.5))
			mustAll(t, err)
			lr := x.Full(nil, o.LR(0), tenon.Float64)
			mustAll(t, o.SetLRTensor(0, lr))
			var g *tenon.Graph
			for i := range 5 {
				switch {
				case graph && i == 1:
					g, err = x.Capture(func(x *tenon.Exec) { mustAll(t, o.Step(x)) })
					mustAll(t, err, x.Replay(g))
				case g != nil:
					mustAll(t, x.Replay(g))
				default:
					mustAll(t, o.Step(x))
				}
				mustAll(t, s.Step())
				w, err := tenon.Read[float32](x, p.Tensor())
				mustAll(t, err)
				weights = append(weights, w[0])
			}
			if g != nil {
				mustAll(t, g.Close())
			}
			lr.Close()
			before, _ := s.State()
			if err := s.Step(); fault.KindOf(err) != fault.Closed {
				t.Errorf("a step that cannot fill the tensor: %v", err)
			}
			if after, _ := s.State(); !reflect.DeepEqual(before, after) {
				t.Errorf("it left %v, was %v", after, before)
			}
		})
		return weights
	}
	want := []float32{-1, -1.5, -1.75, -1.875, -1.9375}
	if eager, graph := run(false), run(true); !slices.Equal(eager, want) || !slices.Equal(graph, want) {
		t.Errorf("eager %v, graph %v, want %v", eager, graph, want)
	}
}

// The first step on devices of growing size: if its state does not fit, nothing changes, and the step succeeds once memory is free.
func TestFirstStepOnSmallDevices(t *testing.T) {
	const size, count = 1 << 17, 4 // 512 KiB each
	var want string
	tried, failed := 0, 0
	for memory := uint64(36 << 20); memory >= 20<<20; memory -= 2 << 20 {
		x, err := tenon.Open(tenon.Sim(memory))
		mustAll(t, err)
		x.Scope(func(x *tenon.Exec) {
			w := &world{}
			defer func() { w.close() }()
			var activations *tenon.Tensor
			if tenon.Try(func() {
				for i := range count {
					p := nn.NewParam(x.Full([]int{size}, float64(i), tenon.Float32))
					w.params = append(w.params, p)
					p.SetGrad(x.Ones([]int{size}, tenon.Float32))
				}
				activations = x.Zeros([]int{1 << 20}, tenon.Float32)
			}) != nil {
				return // too small for the work before the step
			}
			w.opt, err = optimizers["Adam"](w.params...)
			mustAll(t, err)
			tried++
			before := w.look(t, x)
			err := w.opt.Step(x)
			if want == "" { // the largest device
				want = w.look(t, x)
			}
			if err != nil {
				failed++
				if fault.KindOf(err) != tenon.OutOfMemory {
					t.Errorf("%d MiB: %v", memory>>20, err)
				}
				same(t, "a failed step", w.look(t, x), before)
				activations.Close()
				if err := w.opt.Step(x); err != nil {
					t.Errorf("%d MiB: the second step: %v", memory>>20, err)
				}
			}
			same(t, "a step", w.look(t, x), want)
		})
		mustAll(t, x.Close())
	}
	if failed == 0 || failed == tried {
		t.Errorf("%d of %d steps failed", failed, tried)
	}
}

func TestErrors(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{2}, tenon.Float32))
		defer p.Close()
		plain := &struct{ Weight *tenon.Tensor }{x.Ones([]int{2}, tenon.Float32)}
		sgd := func(ps iter.Seq2[string, *nn.Param], opt ...optim.SGDOpt) error {
			_, err := optim.NewSGD(ps, opt...)
			return err
		}
		adam := func(opt optim.AdamOpt) error { _, err := optim.NewAdam(list(p), opt); return err }
		adamw := func(opts ...optim.AdamOpt) error { _, err := optim.NewAdamW(list(p), opts...); return err }
		for want, err := range map[string]error{
			"Invalid learning rate: -1":             sgd(list(p), optim.SGDOpt{LR: -1}),
			"Invalid momentum value: -1":            sgd(list(p), optim.SGDOpt{Momentum: -1}),
			"Invalid weight_decay value: -1":        sgd(list(p), optim.SGDOpt{WeightDecay: -1}),
			"Nesterov momentum requires a momentum": sgd(list(p), optim.SGDOpt{Nesterov: true}),
			"empty parameter list; parameters of a module are exported fields of type *nn.Param": sgd(nn.Params(plain)),
			"more than one parameter group":               sgd(list(p, p)),
			"Invalid learning rate: -2":                   adam(optim.AdamOpt{LR: -2}),
			"Invalid epsilon value: -1":                   adam(optim.AdamOpt{Eps: -1}),
			"Invalid beta parameter at index 1: 1":        adam(optim.AdamOpt{Betas: []float64{.9, 1}}),
			"Invalid weight_decay value: -3":              adamw(optim.AdamOpt{WeightDecay: -3}),
			"options are given 2 times; give one AdamOpt": adamw(optim.AdamOpt{LR: 1}, optim.AdamOpt{LR: 2}),
		} {
			var e *fault.Error
			if !errors.As(err, &e) || e.Kind != fault.Invalid || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			} else if e.Op == "" || !strings.HasSuffix(e.File, "optim_test.go") || e.Line == 0 {
				t.Errorf("%v names operation %q at %s:%d", err, e.Op, e.File, e.Line)
			}
		}
		o, err := optim.NewAdamW(list(p))
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		if err := o.Add(list(p)); err == nil {
			t.Error("a parameter joined a second group")
		}
		p.SetGrad(x.Zeros([]int{2}, tenon.Float64))
		if err := o.Step(x); err == nil || !strings.Contains(err.Error(), "a gradient of type float64") {
			t.Errorf("got %v", err)
		}
		if err := tenon.Try(func() { p.SetGrad(x.Zeros([]int{3}, tenon.Float32)) }); err == nil ||
			!strings.Contains(err.Error(), "it must have the same shape") {
			t.Errorf("got %v", err)
		}
		p.SetGrad(x.Zeros([]int{2}, tenon.Float32))
		if h := x.Host(); h.Device() != x.Device() {
			if err := o.Step(h); err == nil || !strings.Contains(err.Error(), "a float32 parameter of shape [2] is on ") {
				t.Errorf("got %v", err)
			}
		}
	})
}

// A step allocates nothing for a parameter, and neither does one of a scaler for a gradient.
func TestStepAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools drop objects on purpose, so allocations cannot be counted")
	}
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	allocations := func(n int) (step, scaled float64) {
		var ps []*nn.Param
		for range n {
			p := nn.NewParam(x.Ones([]int{3}, tenon.Float32))
			defer p.Close()
			p.SetGrad(x.Ones([]int{3}, tenon.Float32))
			ps = append(ps, p)
		}
		o, err := optim.NewAdamW(list(ps...))
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		s, err := optim.NewGradScaler()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.Scale(x, x.Ones(nil, tenon.Float32)).Close()
		return testing.AllocsPerRun(20, func() { ok(t, o.Step(x)) }),
			testing.AllocsPerRun(20, func() { ok(t, s.Step(x, o), s.Update(x)) })
	}
	few, fewScaled := allocations(2)
	more, moreScaled := allocations(32)
	if more > few || moreScaled > fewScaled {
		t.Errorf("%v allocations for 2 parameters, %v with a scaler; %v and %v for 32", few, fewScaled, more, moreScaled)
	}
}
