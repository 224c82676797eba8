package tenon_test

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/data"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// Options are left out, or given once; 0 is 0 where leaving the option out means another number.
func TestOptions(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	a := tenon.From(x, []float32{1, 2, 4}, 3).SetRequiresGrad(true)
	if err := x.Backward(x.Sum(x.Softmax(a, -1), nil)); err != nil {
		t.Error(err)
	}
	for want, f := range map[string]func() error{
		"Softmax: options are given 2 times; give one SoftmaxOpt": func() error {
			return tenon.Try(func() {
				x.Softmax(a, -1, tenon.SoftmaxOpt{DType: tenon.Float32}, tenon.SoftmaxOpt{DType: tenon.Float64})
			})
		},
		"Backward: options are given 2 times; give one": func() error {
			return x.Backward(x.Sum(a, nil), tenon.BackwardOpt{RetainGraph: true}, tenon.BackwardOpt{RetainGraph: true})
		},
		"NewLinear: options are given 2 times; give one LinearOpt": func() error {
			return tenon.Try(func() { nn.NewLinear(x, 1, 1, nn.LinearOpt{NoBias: true}, nn.LinearOpt{NoBias: true}) })
		},
		"NewLoader: options are given 2 times; give one LoaderOpt": func() error {
			_, err := data.NewLoader(data.Subset{}, data.LoaderOpt{Workers: 2}, data.LoaderOpt{})
			return err
		},
		"NewMemPool: options are given 2 times; give one cuda.MemPoolOpt": func() error {
			_, err := cuda.NewMemPool(x.Device(), cuda.MemPoolOpt{}, cuda.MemPoolOpt{})
			return err
		},
		"NewEvent: options are given 2 times; give one cuda.EventOpt": func() error {
			return tenon.Try(func() { x.Device().NewEvent(cuda.EventOpt{}, cuda.EventOpt{}) })
		},
		"MemorySummary: options are given 2 times; give one cuda.SummaryOpt": func() error {
			return tenon.Try(func() { x.Device().MemorySummary(cuda.SummaryOpt{}, cuda.SummaryOpt{}) })
		},
		"InitKaimingUniform: options are given 2 times; give one KaimingOpt": func() error {
			return tenon.Try(func() { nn.InitKaimingUniform(x, a, nn.KaimingOpt{}, nn.KaimingOpt{}) })
		},
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "options_test.go") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	p := nn.NewParam(tenon.From(x, []float32{1}))
	p.Tensor().SetGrad(x.Ones([]int{1}, tenon.Float32))
	for _, c := range []struct {
		opt  optim.AdamOpt
		want float64
	}{{optim.AdamOpt{LR: 0}, 1}, {optim.AdamOpt{LR: 1, WeightDecay: 0}, 0}} {
		o, err := optim.NewAdamW(func(yield func(string, *nn.Param) bool) { yield("p", p) }, c.opt)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Step(x); err != nil {
			t.Fatal(err)
		}
		// decay takes 1e-2 of the parameter
		if got := testdevice.Read[float32](t, x, p.Tensor())[0]; math.Abs(float64(got)-c.want) > 1e-3 {
			t.Errorf("a step with %+v ends at %v, want %v", c.opt, got, c.want)
		}
	}
	pos, neg := tenon.From(x, []float32{0}, 1), tenon.From(x, []float32{3}, 1)
	loss, err := x.Item(x.TripletMarginLoss(pos, pos, neg, tenon.TripletMarginLossOpt{Margin: 0, Eps: 0}))
	if err != nil || loss != 0 {
		t.Errorf("a margin of 0 gives %v (%v)", loss, err)
	}
}

// Do returns the error of its function, or an operation's error unchanged, and closes what was made.
func TestDo(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	live := testdevice.Storages()
	own := errors.New("ours")
	if err := x.Do(func(x *tenon.Exec) error { x.Ones([]int{2}, tenon.Float32); return own }); err != own {
		t.Errorf("%v, want %v", err, own)
	}
	var e *tenon.Error
	err := x.Do(func(x *tenon.Exec) error {
		x.Add(x.Ones([]int{2}, tenon.Float32), x.Ones([]int{3}, tenon.Float32))
		return own
	})
	if !errors.As(err, &e) || e.Op != "Add" || errors.Is(err, own) {
		t.Errorf("%v is no error of Add", err)
	}
	if err := x.Do(func(x *tenon.Exec) error { return nil }); err != nil {
		t.Error(err)
	}
	if err := x.Do(nil); !errors.As(err, &e) || e.Op != "Do" {
		t.Errorf("no function: %v", err)
	}
	if err := (*tenon.Exec)(nil).Do(func(x *tenon.Exec) error { return nil }); !errors.As(err, &e) {
		t.Errorf("no Exec: %v", err)
	}
	if n := core.LiveStorages() - live; n != 0 {
		t.Errorf("%d tensors are left", n)
	}
}

// Parallel gives every goroutine an Exec of its own with the caller's modes, waits for all of them, returns their errors and closes what
// they made.
func TestParallel(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	live := testdevice.Storages()
	sums, own := make([]float64, 8), errors.New("ours")
	in := x.Ones([]int{3}, tenon.Float32)
	var met sync.WaitGroup
	met.Add(len(sums))
	err := x.NoGrad().Parallel(len(sums), func(y *tenon.Exec, worker int) (err error) {
		met.Done()
		met.Wait() // all of them run at once
		if y.GradEnabled() || y.Stream() == x.Stream() {
			t.Errorf("worker %d has other modes, or the caller's stream", worker)
		}
		switch sums[worker], err = y.Item(y.Sum(y.MulS(in, float64(worker)), nil)); worker {
		case 2:
			return own
		case 5:
			y.Add(in, y.Ones([]int{2}, tenon.Float32))
		}
		return err
	})
	var e *tenon.Error
	if !errors.Is(err, own) || !errors.As(err, &e) || e.Op != "Add" {
		t.Errorf("%v is not both errors", err)
	}
	for worker, sum := range sums {
		if sum != float64(3*worker) {
			t.Errorf("worker %d got %g", worker, sum)
		}
	}
	in.Close()
	if n := core.LiveStorages() - live; n != 0 {
		t.Errorf("%d tensors are left", n)
	}
	if err := x.Parallel(1, func(*tenon.Exec, int) error { return nil }); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"no function":   x.Parallel(1, nil),
		"no goroutines": x.Parallel(0, func(*tenon.Exec, int) error { return nil }),
		"too many":      x.Parallel(1025, func(*tenon.Exec, int) error { return nil }),
		"no Exec":       (*tenon.Exec)(nil).Parallel(1, func(*tenon.Exec, int) error { return nil }),
	} {
		if !errors.As(err, &e) || e.Op != "Parallel" {
			t.Errorf("%s: %v", what, err)
		}
	}
	x.Close()
	if err := x.Parallel(2, func(*tenon.Exec, int) error { return nil }); !errors.As(err, &e) || e.Kind != tenon.Closed {
		t.Errorf("a closed Exec: %v", err)
	}
}
