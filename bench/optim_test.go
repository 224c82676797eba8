package bench

import (
	"fmt"
	"iter"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// params makes n parameters with the given number of elements, and their gradients.
func params(t *testing.T, x *tenon.Exec, n, elements int) iter.Seq2[string, *nn.Param] {
	t.Helper()
	ps := make([]*nn.Param, n)
	for i := range ps {
		ps[i] = nn.NewParam(x.Full([]int{elements}, 1, tenon.Float32))
		ps[i].SetGrad(x.Full([]int{elements}, 1e-3, tenon.Float32))
		t.Cleanup(ps[i].Close)
	}
	return func(yield func(string, *nn.Param) bool) {
		for i, p := range ps {
			if !yield(fmt.Sprint(i), p) {
				return
			}
		}
	}
}

// TestOptimizers measures steps on 2²⁸ elements, which are limited by memory, and on 200 small tensors, which are limited by issuing.
func TestOptimizers(t *testing.T) {
	x := onGPU(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const many, elements = 64, 1 << 22
	large := params(t, x, many, elements)
	adam, err := optim.NewAdamW(large)
	ok(err)
	defer adam.Close()
	// Parameter, gradient and two means are read, and all but the gradient are written.
	recordFigure("adamw.large", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { ok(adam.Step(x)) }), 7*4*many*elements))
	sgd, err := optim.NewSGD(large, optim.SGDOpt{Momentum: 0.9})
	ok(err)
	defer sgd.Close()
	recordFigure("sgd.large", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { ok(sgd.Step(x)) }), 5*4*many*elements))

	small, scaled := smallSteps(t, x)
	// Steps follow each other without a wait, as in training: the time of one is that of the host or the device, whichever is longer.
	steps := func(name string, step func()) {
		const reps = 50
		var us []float64
		for range 10 {
			ok(x.Synchronize())
			began := time.Now()
			for range reps {
				step()
			}
			ok(x.Synchronize())
			us = append(us, time.Since(began).Seconds()*1e6/reps)
		}
		recordFigure(name, "µs", us[2:])
	}
	steps("adamw.small", small)
	steps("adamw.scaled", scaled)
}

// TestGoOptimizers measures the Go part of the steps on small tensors, on a driver that does nothing.
func TestGoOptimizers(t *testing.T) {
	x := onNull(t)
	step, scaled := smallSteps(t, x)
	perCall(t, "adamw.go", 50, true, x.Synchronize, step)
	perCall(t, "adamw.go.scaled", 50, true, x.Synchronize, scaled)
}

// smallSteps returns a step of AdamW over 200 tensors of 1,000 elements, and one whose gradients a GradScaler scaled, with its update.
func smallSteps(t *testing.T, x *tenon.Exec) (step, scaled func()) {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	o, err := optim.NewAdamW(params(t, x, 200, 1000))
	ok(err)
	t.Cleanup(o.Close)
	scaler, err := optim.NewGradScaler(optim.GradScalerOpt{GrowthInterval: 1 << 30})
	ok(err)
	t.Cleanup(scaler.Close)
	x.Scope(func(x *tenon.Exec) { scaler.Scale(x, x.Ones(nil, tenon.Float32)) })
	step = func() { ok(o.Step(x)) }
	scaled = func() {
		ok(scaler.Step(x, o))
		ok(scaler.Update(x))
	}
	step()
	scaled() // the first ones make the state
	return step, scaled
}
