package optim_test

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// says checks that an error is Invalid and reads as given, after the name of its subject.
func says(t *testing.T, want string, err error) {
	t.Helper()
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.Invalid || e.Op+": "+e.Msg != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// SetLR refuses the rates that a constructor refuses, and then changes neither the rate nor the tensor that steps read it from. A schedule
// may set a rate below 0, as in PyTorch.
func TestSetLRRange(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
		defer p.Close()
		for name, make := range inert {
			o, err := make(p)
			ok(t, err)
			defer o.Close()
			lr := x.Full(nil, 0.25, tenon.Float32)
			ok(t, o.(interface {
				SetLRTensor(group int, t *tenon.Tensor) error
			}).SetLRTensor(0, lr))
			o.SetLR(0, 0.5)
			for _, v := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
				says(t, fmt.Sprintf("%s: Invalid learning rate: %v; give a finite number that is not negative", name, v),
					tenon.Try(func() { o.SetLR(0, v) }))
			}
			if got, err := x.Item(lr); o.LR(0) != 0.5 || got != 0.5 || err != nil {
				t.Errorf("%s: the rate is %v, its tensor %v, %v", name, o.LR(0), got, err)
			}
			o.SetLR(0, 0)
			if o.LR(0) != 0 {
				t.Errorf("%s: the rate is %v, not 0", name, o.LR(0))
			}
			o.SetLR(0, 0.5)
			s := schedule(t, o, optim.LambdaLR(func(step int) float64 { return 1 - 2*float64(step) }))
			ok(t, s.Step())
			if got, err := x.Item(lr); o.LR(0) != -0.5 || got != -0.5 || err != nil {
				t.Errorf("%s: the schedule's rate is %v, its tensor %v, %v", name, o.LR(0), got, err)
			}
			says(t, fmt.Sprintf("LambdaLR: the learning rate of group 0 would be NaN after 1 steps, from %v before; give the rule other "+
				"arguments, or fewer steps", o.LR(0)), func() error {
				s := schedule(t, o, optim.LambdaLR(func(step int) float64 { return []float64{1, math.NaN()}[step] }))
				return s.Step()
			}())
		}
	})
}

// SetMomentum refuses the momenta that a constructor refuses. A schedule whose momentum is refused changes nothing.
func TestSetMomentumRange(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
		defer p.Close()
		for name, make := range inert {
			made, err := make(p)
			ok(t, err)
			defer made.Close()
			o, sentence, bad := made.(optim.Momentum), "Invalid beta parameter at index 0: %v; give a number from 0 to below 1",
				[]float64{-0.5, math.NaN(), math.Inf(1), math.Inf(-1)}
			if name == "SGD" || name == "RMSprop" {
				sentence = "Invalid momentum value: %v; give a finite number that is not negative"
			} else {
				bad = append(bad, 1)
			}
			o.SetMomentum(0, 0.5)
			for _, v := range bad {
				says(t, fmt.Sprintf(name+": "+sentence, v), tenon.Try(func() { o.SetMomentum(0, v) }))
			}
			s := schedule(t, made, optim.CyclicLR([]float64{1}, []float64{2}, optim.CyclicOpt{StepSizeUp: 1,
				Scale: func(_, step int) float64 { return 1e6 * float64(step) }}))
			rate, momentum := made.LR(0), o.Momentum(0)
			if err := s.Step(); fault.KindOf(err) != fault.Invalid || made.LR(0) != rate || o.Momentum(0) != momentum {
				t.Errorf("%s: %v, and the rate %v became %v, the momentum %v became %v", name, err, rate, made.LR(0), momentum,
					o.Momentum(0))
			}
		}
	})
}

// Sentences about numbers that are not finite ask for finite ones.
func TestFiniteSentences(t *testing.T) {
	inf, one := math.Inf(1), []float64{1}
	o := newMoving(1)
	for want, r := range map[string]optim.Rule{
		"StepLR: gamma is +Inf; give a finite number that is not negative":        optim.StepLR(1, inf),
		"OneCycleLR: maxLR[0] is +Inf; give a finite number that is not negative": optim.OneCycleLR([]float64{inf}, 9),
		"OneCycleLR: DivFactor is +Inf; give a finite number": optim.OneCycleLR(one, 9,
			optim.OneCycleOpt{DivFactor: inf}),
		"OneCycleLR: DivFactor is 0; give a positive number": optim.OneCycleLR(one, 9,
			optim.OneCycleOpt{DivFactor: 0}),
		"CyclicLR: baseLR[0] is +Inf; give a finite number that is not negative":      optim.CyclicLR([]float64{inf}, one),
		"PolynomialLR: power is +Inf; give a finite number that is not negative":      optim.PolynomialLR(1, inf),
		"CosineAnnealingLR: etaMin is NaN; give a finite number that is not negative": optim.CosineAnnealingLR(1, math.NaN()),
	} {
		_, err := optim.NewSchedule(o, r)
		says(t, want, err)
	}
}

// A tensor as a learning rate is refused with the method that takes one.
func TestTensorAsRate(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
		defer p.Close()
		lr := x.Full(nil, 0.25, tenon.Float32)
		_, err := optim.NewSGD(list(p), optim.SGDOpt{LR: lr})
		says(t, "SGD: LR is a *tenon.Tensor; give a real number, and then the tensor to SetLRTensor", err)
		_, err = optim.NewAdam(list(p), optim.AdamOpt{Eps: lr})
		says(t, "Adam: Eps is a *tenon.Tensor; give a real number", err)
	})
}

// The errors of a type name it in one way, in its constructor too.
func TestSubjects(t *testing.T) {
	o := newMoving(1)
	_, err := optim.NewGradScaler(optim.GradScalerOpt{}, optim.GradScalerOpt{})
	says(t, "GradScaler: options are given 2 times; give one GradScalerOpt", err)
	_, err = optim.NewReduceLROnPlateau(o, 1, optim.PlateauOpt{}, optim.PlateauOpt{})
	says(t, "ReduceLROnPlateau: options are given 2 times; give one PlateauOpt", err)
	_, err = optim.NewSchedule(o, optim.Rule{})
	says(t, "Schedule: the rule is a zero value; use one that a function such as StepLR returned", err)
	_, err = optim.NewSchedule(newMoving(), optim.StepLR(1))
	says(t, "Schedule: the optimizer has no parameters; use one that its New function returned", err)
	_, err = optim.NewSchedule(nil, optim.StepLR(1))
	says(t, "Schedule: the optimizer is nil; look at the error of the function that was to make it", err)
}

// A state with the rate that a schedule computed can be loaded, also one that is below 0 by a rounding; the constructor refuses it.
func TestLoadNegativeRate(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for name, make := range inert {
			p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
			defer p.Close()
			o, err := make(p)
			ok(t, err)
			defer o.Close()
			s := schedule(t, o, optim.LinearLR(1./3, 0, 4))
			for range 4 {
				ok(t, s.Step())
			}
			rate, file := o.LR(0), filepath.Join(t.TempDir(), "o.safetensors")
			if !(rate < 0 && rate > -1e-12) {
				t.Fatalf("%s: the last rate is %v, not a little below 0", name, rate)
			}
			ok(t, optim.SaveFile(x, o, file))
			o.SetLR(0, 1)
			if err := optim.LoadFile(x, o, file); err != nil || o.LR(0) != rate {
				t.Errorf("%s: %v, and the rate is %v, not %v", name, err, o.LR(0), rate)
			}
		}
	})
}

// wrapped is an optimizer of a program, which passes on what it is told.
type wrapped struct{ optim.Optimizer }

// An optimizer that only passes rates on gets 0 where a schedule, or the state of one, is a rounding error below 0; the state itself keeps
// the rate. A rate that is really negative is refused, as by SetLR.
func TestRoundedRateForwarded(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
		defer p.Close()
		make := func() optim.Optimizer {
			o, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 1})
			ok(t, err)
			return o
		}
		plain, inner := make(), make()
		defer plain.Close()
		defer inner.Close()
		direct, passed := schedule(t, plain, optim.LinearLR(1./3, 0, 4)), schedule(t, wrapped{inner}, optim.LinearLR(1./3, 0, 4))
		for range 4 {
			ok(t, direct.Step())
			ok(t, passed.Step())
		}
		rate := plain.LR(0)
		if !(rate < 0 && rate > -1e-12) || inner.LR(0) != 0 || math.Signbit(inner.LR(0)) {
			t.Fatalf("the last rate is %v, and %v where it is passed on; want one a little below 0, and 0", rate, inner.LR(0))
		}
		st, err := direct.State()
		ok(t, err)
		inner.SetLR(0, 1)
		plain.SetLR(0, 1)
		ok(t, passed.SetState(st))
		ok(t, direct.SetState(st))
		if st.Rates[0] != rate || plain.LR(0) != rate || inner.LR(0) != 0 {
			t.Errorf("a state with the rate %v of %v gives %v, and %v where it is passed on", st.Rates[0], rate, plain.LR(0), inner.LR(0))
		}
		plateau, err := optim.NewReduceLROnPlateau(wrapped{plain}, 0)
		ok(t, err)
		ok(t, plateau.Step(1))
		ok(t, plateau.Step(1))
		if plain.LR(0) != 0 {
			t.Errorf("reduced from %v, a rate that is passed on is %v, want 0", rate, plain.LR(0))
		}
		inner.SetLR(0, 1)
		_, err = optim.NewSchedule(wrapped{inner}, optim.LambdaLR(func(int) float64 { return -1e-3 }))
		says(t, "SGD: Invalid learning rate: -0.001; give a finite number that is not negative", err)
	})
}

// If a program's own optimizer refuses the rate of one group, the other groups keep theirs too.
func TestRefusedRateChangesNothing(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		var ps []*nn.Param
		for range 2 {
			ps = append(ps, nn.NewParam(x.Zeros([]int{1}, tenon.Float32)))
			defer ps[len(ps)-1].Close()
		}
		inner, err := optim.NewSGD(list(ps[0]), optim.SGDOpt{LR: 1})
		ok(t, err)
		defer inner.Close()
		ok(t, inner.Add(list(ps[1]), optim.SGDOpt{LR: 1}))
		up, down := func(step int) float64 { return 0.5 + float64(step) }, func(step int) float64 { return 0.5 - float64(step) }
		s := schedule(t, wrapped{inner}, optim.LambdaLR(up, down))
		says(t, "SGD: Invalid learning rate: -0.5; give a finite number that is not negative", s.Step())
		if a, b := inner.LR(0), inner.LR(1); a != 0.5 || b != 0.5 {
			t.Errorf("after a step that was refused, the rates are %v and %v", a, b)
		}
	})
}
