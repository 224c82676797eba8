package optim_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// inert makes an optimizer of each type for a parameter that is 0 and has the gradient 1, with default options except for a rate of 1.
var inert = map[string]func(p *nn.Param) (optim.Optimizer, error){
	"SGD":     func(p *nn.Param) (optim.Optimizer, error) { return optim.NewSGD(list(p), optim.SGDOpt{LR: 1}) },
	"RMSprop": func(p *nn.Param) (optim.Optimizer, error) { return optim.NewRMSprop(list(p), optim.RMSpropOpt{LR: 1}) },
	"Adam":    func(p *nn.Param) (optim.Optimizer, error) { return optim.NewAdam(list(p), optim.AdamOpt{LR: 1}) },
	"AdamW": func(p *nn.Param) (optim.Optimizer, error) {
		return optim.NewAdamW(list(p), optim.AdamOpt{LR: 1, WeightDecay: 0})
	},
	"Adamax": func(p *nn.Param) (optim.Optimizer, error) { return optim.NewAdamax(list(p), optim.AdamaxOpt{LR: 1}) },
	"NAdam":  func(p *nn.Param) (optim.Optimizer, error) { return optim.NewNAdam(list(p), optim.NAdamOpt{LR: 1}) },
	"RAdam":  func(p *nn.Param) (optim.Optimizer, error) { return optim.NewRAdam(list(p), optim.RAdamOpt{LR: 1}) },
}

// Steps use the momentum that is set: here 0.9 in the first step and 0.5 in the second, with gradients of 1.
func TestMomentumOfOptimizers(t *testing.T) {
	// The mean of the gradient is 0.1 after the first step and 0.55 after the second, whose bias correction is 1 - 0.5². NAdam has
	// products of momenta in place of the power.
	mu1, mu2 := 0.9*(1-0.5*math.Pow(0.96, 0.004)), 0.5*(1-0.5*math.Pow(0.96, 0.008))
	mu2next, mu3 := 0.9*(1-0.5*math.Pow(0.96, 0.008)), 0.5*(1-0.5*math.Pow(0.96, 0.012))
	nadam := (mu2next*0.1/(1-mu1*mu2next) + (1-mu1)/(1-mu1)) + (mu3*0.55/(1-mu1*mu2*mu3) + (1-mu2)/(1-mu1*mu2))
	want := map[string]float64{"SGD": 1 + 1.5, "RMSprop": 10 + (0.5*10 + 1/math.Sqrt(1-0.99*0.99)), "Adam": 1 + 0.55/0.75,
		"AdamW":  1 + 0.55/0.75,
		"Adamax": 1 + 0.55/0.75, "RAdam": 1 + 0.55/0.75, "NAdam": nadam}
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for name, make := range inert {
			p := nn.NewParam(tenon.From(x, []float32{0}))
			defer p.Close()
			made, err := make(p)
			if err != nil {
				t.Fatal(err)
			}
			defer made.Close()
			o := made.(optim.Momentum)
			if m := o.Momentum(0); m != 0 && m != 0.9 {
				t.Errorf("%s begins with %v", name, m)
			}
			for _, m := range []float64{0.9, 0.5} {
				if o.SetMomentum(0, m); o.Momentum(0) != m {
					t.Errorf("%s: got %v, want %v", name, o.Momentum(0), m)
				}
				p.SetGrad(x.Ones([]int{1}, tenon.Float32))
				if err := made.Step(x); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := x.Item(p.Tensor()); err != nil || math.Abs(got+want[name]) > 1e-5*want[name] {
				t.Errorf("%s: got %v, %v, want %v", name, got, err, -want[name])
			}
		}
	})
}

func TestMomentumErrors(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		fails := func(want string, f func()) {
			t.Helper()
			err := tenon.Try(f)
			if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		for name, make := range inert {
			p := nn.NewParam(x.Ones([]int{1}, tenon.Float32))
			defer p.Close()
			made, err := make(p)
			if err != nil {
				t.Fatal(err)
			}
			defer made.Close()
			o := made.(optim.Momentum)
			fails(name+": there is no group 1", func() { o.SetMomentum(1, 0.5) })
			fails(name+": there is no group -1", func() { o.Momentum(-1) })
			if o.Momentum(0) != 0 {
				continue
			}
			p.SetGrad(x.Ones([]int{1}, tenon.Float32))
			for _, m := range []float64{0, 0.5} {
				o.SetMomentum(0, 0.25) // allowed before the first step, which makes the state
				o.SetMomentum(0, m)
				if err := made.Step(x); err != nil {
					t.Fatal(err)
				}
				other := 0.5 - m
				fails(fmt.Sprintf("%s: the momentum of group 0 cannot go from %v to %v after its first step", name, m, other),
					func() { o.SetMomentum(0, other) })
				if o.Momentum(0) != m {
					t.Errorf("%s: %v", name, o.Momentum(0))
				}
				if m == 0 {
					o.SetMomentum(0, 0)
				} else {
					o.SetMomentum(0, 0.75)
				}
				if err := made.Step(x); err != nil {
					t.Fatal(err)
				}
				made.Close()
				if made, err = make(p); err != nil {
					t.Fatal(err)
				}
				defer made.Close()
				o = made.(optim.Momentum)
			}
		}
		p := nn.NewParam(x.Ones([]int{1}, tenon.Float32))
		defer p.Close()
		o, err := optim.NewSGD(list(p), optim.SGDOpt{Momentum: 0.5, Nesterov: true})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		fails("Nesterov momentum requires a momentum", func() { o.SetMomentum(0, 0) })
	})
}
