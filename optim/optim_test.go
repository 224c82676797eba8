package optim_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/safetensors"
)

// onDevices runs f in a scope on every kind of device there is, and checks that f, which closes its parameters and optimizers, left nothing.
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
			if n := core.LiveStorages() - before; n != 0 && !t.Failed() {
				t.Errorf("%d storages are left", n)
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// list yields parameters under numbers.
func list(ps ...*nn.Param) iter.Seq2[string, *nn.Param] {
	return func(yield func(string, *nn.Param) bool) {
		for i, p := range ps {
			if !yield(fmt.Sprint(i), p) {
				return
			}
		}
	}
}

// setup is a recorded set-up: hyper-parameters under PyTorch's names.
type setup struct {
	ID        int
	Optimizer string
	Hyper     struct {
		LR          float64
		Momentum    float64
		Dampening   float64
		WeightDecay float64 `json:"weight_decay"`
		Nesterov    bool
		Maximize    bool
		AMSGrad     bool
		Betas       [2]float64
		Eps         float64
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
		o, err = optim.NewSGD(list(ps...), optim.SGDOpt{LR: h.LR, Momentum: h.Momentum, Dampening: h.Dampening, WeightDecay: h.WeightDecay, Nesterov: h.Nesterov, Maximize: h.Maximize})
	case "Adam":
		o, err = optim.NewAdam(list(ps...), adam)
	case "AdamW":
		o, err = optim.NewAdamW(list(ps...), adam)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func openRecorded(t *testing.T) *safetensors.File {
	t.Helper()
	f, err := os.Open("../conformance/testdata/optims_a.safetensors.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	s, err := safetensors.New(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every recorded step of PyTorch's SGD, Adam and AdamW.
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
		if s.Optimizer != "SGD" && s.Optimizer != "Adam" && s.Optimizer != "AdamW" {
			continue // not offered
		}
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

// A parameter without a gradient in some steps keeps a count of its own, and groups have their own options.
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
		// With equal gradients Adam moves by the learning rate, whatever the count, if its bias correction has the right one.
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

// A gradient with other strides than the parameter's is used where it lies.
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

// One launch steps all parameters.
func TestOneLaunch(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		var ps []*nn.Param
		for i := range 20 {
			p := nn.NewParam(x.Zeros([]int{100 * i, 3}, tenon.Float32))
			defer p.Close()
			p.SetGrad(x.Ones(p.Tensor().Shape(), tenon.Float32))
			ps = append(ps, p)
		}
		o, err := optim.NewAdamW(list(ps...), optim.AdamOpt{})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		var launches [3]int64
		for i := range launches {
			if err := o.Step(x); err != nil {
				t.Fatal(err)
			}
			hits, built := (*core.Exec)(x).Device().KernelStats()
			launches[i] = hits + built
		}
		if n := launches[2] - launches[1]; n != 1 {
			t.Errorf("a step takes %d launches", n)
		}
	})
}

// SGD can be captured once its state is there; Adam cannot, since each step has its own bias correction.
func TestCapture(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		if x.Host().Device() == x.Device() {
			return // the processor has no graphs
		}
		p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
		defer p.Close()
		p.SetGrad(x.Ones([]int{1}, tenon.Float32))
		sgd, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 1, Momentum: .5})
		if err != nil {
			t.Fatal(err)
		}
		defer sgd.Close()
		adam, err := optim.NewAdam(list(p), optim.AdamOpt{})
		if err != nil {
			t.Fatal(err)
		}
		defer adam.Close()
		capture := func(o optim.Optimizer) (*tenon.Graph, error) {
			var failed error
			g, err := x.Capture(func(x *tenon.Exec) { failed = o.Step(x) }, tenon.CaptureOpt{})
			if failed != nil && g != nil {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}
			if err == nil {
				err = failed
			}
			return g, err
		}
		if _, err := capture(adam); fault.KindOf(err) != fault.Capture || !strings.Contains(err.Error(), "Attempting CUDA graph capture of step() for an instance of Adam") {
			t.Errorf("got %v", err)
		}
		if _, err := capture(sgd); fault.KindOf(err) != fault.Capture || !strings.Contains(err.Error(), "first step") {
			t.Errorf("got %v", err)
		}
		if err := sgd.Step(x); err != nil { // to -1, with a buffer of 1
			t.Fatal(err)
		}
		g, err := capture(sgd)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
		}
		if v, err := x.Item(p.Tensor()); err != nil || v != -1-1.5-1.75 {
			t.Errorf("got %v, %v", v, err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestErrors(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{2}, tenon.Float32))
		defer p.Close()
		sgd := func(ps iter.Seq2[string, *nn.Param], opt optim.SGDOpt) error {
			_, err := optim.NewSGD(ps, opt)
			return err
		}
		adam := func(opt optim.AdamOpt) error { _, err := optim.NewAdam(list(p), opt); return err }
		adamw := func(opt optim.AdamOpt) error { _, err := optim.NewAdamW(list(p), opt); return err }
		for want, err := range map[string]error{
			"Invalid learning rate: -1":                    sgd(list(p), optim.SGDOpt{LR: -1}),
			"Invalid momentum value: -1":                   sgd(list(p), optim.SGDOpt{Momentum: -1}),
			"Invalid weight_decay value: -1":               sgd(list(p), optim.SGDOpt{WeightDecay: -1}),
			"Nesterov momentum requires a momentum":        sgd(list(p), optim.SGDOpt{Nesterov: true}),
			"empty parameter list":                         sgd(list(), optim.SGDOpt{}),
			"more than one parameter group":                sgd(list(p, p), optim.SGDOpt{}),
			"Invalid learning rate: -2":                    adam(optim.AdamOpt{LR: -2}),
			"Invalid epsilon value: -1":                    adam(optim.AdamOpt{Eps: -1}),
			"Invalid beta parameter at index 1: 1":         adam(optim.AdamOpt{Betas: [2]float64{.9, 1}}),
			"Invalid weight_decay value: -3":               adamw(optim.AdamOpt{WeightDecay: -3}),
			"NoWeightDecay is set beside a WeightDecay of": adamw(optim.AdamOpt{NoWeightDecay: true, WeightDecay: 1}),
		} {
			var e *fault.Error
			if !errors.As(err, &e) || e.Kind != fault.Invalid || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			} else if e.Op == "" || !strings.HasSuffix(e.File, "optim_test.go") || e.Line == 0 {
				t.Errorf("%v names operation %q at %s:%d", err, e.Op, e.File, e.Line)
			}
		}
		o, err := optim.NewAdamW(list(p), optim.AdamOpt{})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		if err := o.Add(list(p), optim.AdamOpt{}); err == nil {
			t.Error("a parameter joined a second group")
		}
		p.SetGrad(x.Zeros([]int{2}, tenon.Float64))
		if err := o.Step(x); err == nil || !strings.Contains(err.Error(), "a gradient of type float64") {
			t.Errorf("got %v", err)
		}
		if err := tenon.Try(func() { p.SetGrad(x.Zeros([]int{3}, tenon.Float32)) }); err == nil || !strings.Contains(err.Error(), "it must have its shape") {
			t.Errorf("got %v", err)
		}
		p.SetGrad(x.Zeros([]int{2}, tenon.Float32))
		if h := x.Host(); h.Device() != x.Device() {
			if err := o.Step(h); err == nil || !strings.Contains(err.Error(), "does not lie on") {
				t.Errorf("got %v", err)
			}
		}
	})
}
