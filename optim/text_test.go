package optim_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// fmt prints an optimizer as PyTorch does, but for the options that do not exist here, and schedules and scalers in a line.
func TestTexts(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	m := nn.NewLinear(x, 2, 1)
	defer nn.Close(m)
	weights, biases := nn.SplitParams(nn.Params(m), func(name string, p *nn.Param) bool { return name == "weight" })
	adamw, err := optim.NewAdamW(weights)
	if err == nil {
		err = adamw.Add(biases, optim.AdamOpt{LR: 2, WeightDecay: 0, AMSGrad: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer adamw.Close()
	schedule, err := optim.NewSchedule(adamw, optim.ChainedScheduler(optim.StepLR(1, 0.5), optim.ExponentialLR(1)))
	if err == nil {
		err = schedule.Step()
	}
	if err != nil {
		t.Fatal(err)
	}
	plateau, err := optim.NewReduceLROnPlateau(adamw, 3)
	if err != nil {
		t.Fatal(err)
	}
	scaler, err := optim.NewGradScaler()
	if err != nil {
		t.Fatal(err)
	}
	off, err := optim.NewGradScaler(optim.GradScalerOpt{Disabled: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		v    any
		want string
	}{
		{adamw, `AdamW (
Parameter Group 0
    amsgrad: False
    betas: (0.9, 0.999)
    eps: 1e-08
    lr: 0.0005
    maximize: False
    weight_decay: 0.01

Parameter Group 1
    amsgrad: True
    betas: (0.9, 0.999)
    eps: 1e-08
    lr: 1.0
    maximize: False
    weight_decay: 0
)`},
		{schedule, "ChainedScheduler(StepLR, ExponentialLR) (step 1, lr [0.0005 1.0])"},
		{optim.StepLR(30, 0.1), "StepLR"}, {optim.Rule{}, "no rule"},
		{plateau, "ReduceLROnPlateau (best inf, 0 steps since, lr [0.0005 1.0])"},
		{scaler, "GradScaler (init_scale: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000)"},
		{off, "GradScaler (disabled)"},
		{new(optim.SGD), "Optimizer ()"}, {new(optim.Schedule), "nil Schedule"}, {(*optim.Schedule)(nil), "nil Schedule"},
		{new(optim.GradScaler), "nil GradScaler"}, {new(optim.ReduceLROnPlateau), "nil ReduceLROnPlateau"},
	} {
		if got := fmt.Sprint(c.v); got != c.want {
			t.Errorf("%.300s\nwant %s", got, c.want)
		}
	}
}
