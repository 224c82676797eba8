package optim_test

import (
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// Rules with options twice are refused like those with other bad arguments, and half types are numbers.
func TestOptionsOfRules(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	m := nn.NewLinear(x, 2, 2)
	o, err := optim.NewSGD(nn.Params(m), optim.SGDOpt{LR: tenon.BF16FromFloat32(0.5)})
	if err != nil || o.LR(0) != 0.5 {
		t.Fatalf("the rate is %v (%v), want 0.5", o.LR(0), err)
	}
	for _, r := range []optim.Rule{optim.CyclicLR([]float64{0}, []float64{1}, optim.CyclicOpt{}, optim.CyclicOpt{}),
		optim.OneCycleLR([]float64{1}, 10, optim.OneCycleOpt{}, optim.OneCycleOpt{})} {
		if _, err := optim.NewSchedule(o, r); err == nil || !strings.Contains(err.Error(), "options are given 2 times; give one ") {
			t.Errorf("%v: %v", r, err)
		}
	}
}
