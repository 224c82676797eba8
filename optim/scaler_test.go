package optim_test

import (
	"encoding/json"
	"iter"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

func newScaler(t *testing.T, opt ...optim.GradScalerOpt) *optim.GradScaler {
	t.Helper()
	s, err := optim.NewGradScaler(opt...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ok fails the test with the first error.
func ok(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func state(t *testing.T, x *tenon.Exec, s *optim.GradScaler) optim.GradScalerState {
	t.Helper()
	st, err := s.State(x)
	ok(t, err)
	return st
}

// The trace recorded from PyTorch's scaler through infinite and NaN gradients, with both kinds of optimizers: one of this package, whose
// steps the device skips, and another.
func TestScalerTrace(t *testing.T) {
	text, err := os.ReadFile("../conformance/testdata/grad_scaler.json")
	ok(t, err)
	var trace []struct {
		Factor  string
		Scale   float64
		Tracker int `json:"growth_tracker"`
		W       []float32
	}
	ok(t, json.Unmarshal(text, &trace))
	near := func(a, b float32) bool { return math.Abs(float64(a-b)) < 1e-7 } // PyTorch's processor fuses products and sums
	for _, foreign := range []bool{false, true} {
		t.Run(strconv.FormatBool(foreign), func(t *testing.T) {
			onDevices(t, func(t *testing.T, x *tenon.Exec) {
				p := nn.NewParam(x.Ones([]int{4}, tenon.Float32))
				defer p.Close()
				sgd, err := optim.NewSGD(list(p), optim.SGDOpt{LR: .1})
				ok(t, err)
				defer sgd.Close()
				var o optim.Optimizer = sgd
				if foreign {
					o = &another{Optimizer: sgd, params: []*nn.Param{p}}
				}
				s := newScaler(t, optim.GradScalerOpt{InitScale: 4, GrowthInterval: 3})
				defer s.Close()
				for i, want := range trace {
					factor, err := strconv.ParseFloat(want.Factor, 64)
					ok(t, err)
					x.Scope(func(x *tenon.Exec) {
						loss := s.Scale(x, x.Sum(x.MulS(p.Tensor(), factor), nil))
						ok(t, x.Backward(loss), s.Step(x, o), s.Update(x))
						o.ZeroGrad()
					})
					w, err := tenon.Read[float32](x, p.Tensor())
					ok(t, err)
					if st := state(t, x, s); st.Scale != want.Scale || st.GrowthTracker != want.Tracker ||
						!slices.EqualFunc(w, want.W, near) {
						t.Errorf("step %d, factor %s: scale %v, tracker %d, %v; want %v, %d, %v", i, want.Factor, st.Scale,
							st.GrowthTracker, w, want.Scale, want.Tracker, want.W)
					}
				}
			})
		})
	}
}

// another is an optimizer that is not of the package.
type another struct {
	optim.Optimizer
	params []*nn.Param
	steps  int
}

func (o *another) Params() iter.Seq[*nn.Param] { return slices.Values(o.params) }

// byValue cannot be compared.
type byValue struct {
	optim.Optimizer
	params []*nn.Param
}

func (o *another) Step(x *tenon.Exec) error {
	o.steps++
	return o.Optimizer.Step(x)
}

// A scaled backward pass runs in a graph, whose half-precision gradients are infinite in some replays, and the step and the update run in
// another graph or in none. The scale and its count follow, and a skipped step changes nothing and is not counted.
func TestScalerInGraphs(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for _, kind := range []string{"Adam", "AdamW", "SGD", "NAdam"} {
			for _, stepInGraph := range []bool{false, true} {
				p := nn.NewParam(x.Ones([]int{100}, tenon.Float32))
				o, err := makers[kind](list(p))
				ok(t, err)
				s := newScaler(t, optim.GradScalerOpt{InitScale: 4})
				input := x.Full([]int{100}, 5, tenon.Float16)
				backward := func(x *tenon.Exec) error {
					loss := x.Sum(x.Mul(x.ToDType(p.Tensor(), tenon.Float16), input), nil)
					return x.Backward(s.Scale(x, loss))
				}
				// An iteration before makes all state; then it is undone.
				ok(t, backward(x), s.Step(x, o), s.Update(x))
				ok(t, s.SetState(x, optim.GradScalerState{Scale: 4, GrowthFactor: 2, BackoffFactor: .5, GrowthInterval: 2000}))
				x.NoGrad().CopyInto(p.Tensor(), x.Ones([]int{100}, tenon.Float32))
				o.ZeroGrad()
				capture := func(f func(x *tenon.Exec) error) *tenon.Graph {
					var failed error
					g, err := x.Capture(func(x *tenon.Exec) { failed = f(x) })
					ok(t, err, failed)
					return g
				}
				graphs := []*tenon.Graph{capture(backward)}
				update := func(x *tenon.Exec) error {
					if err := s.Step(x, o); err != nil {
						return err
					}
					return s.Update(x)
				}
				if stepInGraph {
					graphs = append(graphs, capture(update))
				}
				before := 1.0
				for i, want := range []struct{ in, grad, scale, tracker float64 }{{5, 20, 4, 1}, {20000, math.Inf(1), 2, 0}, {5, 10, 2, 1},
					{40000, math.Inf(1), 1, 0}} {
					x.CopyInto(input, x.Full([]int{100}, want.in, tenon.Float16))
					ok(t, x.Replay(graphs[0]))
					grad, err := tenon.Read[float32](x, p.Grad())
					ok(t, err)
					if stepInGraph {
						ok(t, x.Replay(graphs[1]))
					} else {
						ok(t, update(x))
					}
					w, err := tenon.Read[float32](x, p.Tensor())
					ok(t, err)
					st := state(t, x, s)
					if float64(grad[7]) != want.grad || st.Scale != want.scale || float64(st.GrowthTracker) != want.tracker {
						t.Errorf("%s, %v, replay %d: gradient %v, scale %v, tracker %d; want %+v", kind, stepInGraph, i, grad[7], st.Scale,
							st.GrowthTracker, want)
					}
					if skipped := math.IsInf(want.grad, 1); (float64(w[7]) == before) != skipped {
						t.Errorf("%s, %v, replay %d: the parameter went from %v to %v", kind, stepInGraph, i, before, w[7])
					}
					before = float64(w[7])
				}
				for _, g := range graphs {
					ok(t, g.Close())
				}
				s.Close()
				o.Close()
				p.Close()
			}
		}
	})
}

// Several optimizers share a scaler: the gradients of each, of every type and layout, are unscaled, and memory between them stays as it
// is. A skipped step does not keep the other optimizer from its step, but shrinks the scale.
func TestScalerUnscale(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		a, b, c := nn.NewParam(x.Zeros([]int{2, 3}, tenon.Float32)), nn.NewParam(x.Zeros([]int{2}, tenon.Float64)),
			nn.NewParam(x.Zeros([]int{2}, tenon.BFloat16))
		for _, p := range []*nn.Param{a, b, c} {
			defer p.Close()
		}
		one, err := optim.NewSGD(list(a, b), optim.SGDOpt{LR: 1})
		ok(t, err)
		defer one.Close()
		two, err := optim.NewSGD(list(c), optim.SGDOpt{LR: 1})
		ok(t, err)
		defer two.Close()
		s := newScaler(t, optim.GradScalerOpt{InitScale: 8, GrowthInterval: 1})
		defer s.Close()
		s.Scale(x, x.Ones(nil, tenon.Float32))
		wide := x.Full([]int{2, 6}, 16, tenon.Float32)
		a.SetGrad(x.Slice(wide, 1, 0, 6, 2))
		b.SetGrad(x.Full([]int{2}, 24, tenon.Float64))
		c.SetGrad(x.ToDType(tenon.From(x, []float32{8, float32(math.NaN())}), tenon.BFloat16))
		ok(t, s.Unscale(x, one))
		is := func(what *tenon.Tensor, want ...float32) {
			t.Helper()
			got, err := tenon.Read[float32](x, x.ToDType(what, tenon.Float32))
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("got %v, %v, want %v", got, err, want)
			}
		}
		is(wide, 2, 16, 2, 16, 2, 16, 2, 16, 2, 16, 2, 16)
		is(b.Grad(), 3, 3)
		ok(t, s.Step(x, one), s.Step(x, two))
		is(a.Tensor(), -2, -2, -2, -2, -2, -2)
		is(b.Tensor(), -3, -3)
		is(c.Tensor(), 0, 0)
		ok(t, s.Update(x))
		if st := state(t, x, s); st.Scale != 4 {
			t.Errorf("the scale is %v", st.Scale)
		}
		// The flags are cleared.
		c.SetGrad(x.Full([]int{2}, 4, tenon.BFloat16))
		ok(t, s.Step(x, two), s.Update(x))
		is(c.Tensor(), -1, -1)
		if st := state(t, x, s); st.Scale != 8 {
			t.Errorf("the scale is %v", st.Scale)
		}
		// The scale does not grow beyond float32.
		ok(t, s.SetScale(x, math.MaxFloat32/1.5), s.Step(x, two), s.Update(x))
		if st := state(t, x, s); st.Scale != float64(float32(math.MaxFloat32/1.5)) || st.GrowthTracker != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Calls in the wrong order and invalid arguments fail with PyTorch's messages.
func TestScalerErrors(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for want, opt := range map[string]optim.GradScalerOpt{
			"The growth factor must be > 1.0":  {GrowthFactor: 1},
			"The backoff factor must be < 1.0": {BackoffFactor: 1},
			"growth interval is -1":            {GrowthInterval: -1},
			"the scale is -1":                  {InitScale: -1},
			"the scale is 1e+39":               {InitScale: 1e39},
		} {
			if _, err := optim.NewGradScaler(opt); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		p := nn.NewParam(x.Ones([]int{2}, tenon.Float32))
		defer p.Close()
		o, err := optim.NewSGD(list(p))
		ok(t, err)
		defer o.Close()
		s := newScaler(t)
		defer s.Close()
		fails := func(err error, want string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		fails(s.Unscale(x, o), "outputs earlier in the iteration: the scale is made by the first Scale; pass the loss to that")
		fails(s.Update(x), "No inf checks were recorded prior to update")
		s.Scale(x, x.Ones(nil, tenon.Float32))
		fails(s.Step(x, o), "No inf checks were recorded for this optimizer")
		ok(t, s.SetScale(x, 2)) // starts a new iteration
		p.SetGrad(x.Ones([]int{2}, tenon.Float32))
		ok(t, s.Unscale(x, o))
		fails(s.Unscale(x, o), "Unscale has already been called")
		ok(t, s.Step(x, o))
		fails(s.Step(x, o), "Step has already been called since the last update; call Update after")
		fails(s.Unscale(x, o), "Unscale is being called after Step")
		ok(t, s.Update(x))
		fails(s.Update(x), "No inf checks were recorded prior to update")
		fails(s.Step(x, struct{ optim.Optimizer }{o}), "does not say which parameters it has")
		fails(s.Step(x, nil), "the optimizer is nil")
		fails(s.Unscale(x, (*optim.Adam)(nil)), "the optimizer is nil")
		fails(s.Step(x, byValue{Optimizer: o, params: []*nn.Param{p}}),
			"optim_test.byValue cannot be told from another; give a pointer to it")
		half := nn.NewParam(x.Ones([]int{2}, tenon.Float16))
		defer half.Close()
		half.SetGrad(x.Ones([]int{2}, tenon.Float16))
		h, err := optim.NewSGD(list(half))
		ok(t, err)
		defer h.Close()
		fails(s.Step(x, h), "Attempting to unscale FP16 gradients")
		fails(s.SetState(x, optim.GradScalerState{}), "The source state dict is empty")
		fails(s.SetState(x, optim.GradScalerState{Scale: 1, GrowthFactor: 2, BackoffFactor: 2, GrowthInterval: 1}),
			"The backoff factor must be < 1.0")
		if x.Host().Device() != x.Device() {
			fresh := newScaler(t)
			var failed error
			g, err := x.Capture(func(x *tenon.Exec) {
				failed = tenon.Try(func() { fresh.Scale(x, p.Tensor()) })
			})
			fails(failed, "the first use makes the scaler's state")
			if err == nil {
				ok(t, g.Close())
			}
			fresh.Close()
		}
	})
}

// A disabled scaler changes nothing.
func TestScalerDisabled(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		s := newScaler(t, optim.GradScalerOpt{Disabled: true})
		defer s.Close()
		p := nn.NewParam(x.Ones([]int{2}, tenon.Float32))
		defer p.Close()
		o, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 1})
		ok(t, err)
		defer o.Close()
		loss := x.Ones(nil, tenon.Float32)
		if s.Scale(x, loss) != loss || s.Enabled() {
			t.Error("a disabled scaler scales")
		}
		p.SetGrad(x.Full([]int{2}, math.Inf(1), tenon.Float32))
		ok(t, s.Unscale(x, o), s.Step(x, o), s.Update(x), s.SetScale(x, 3), s.SetState(x, optim.GradScalerState{}))
		if v, err := tenon.Read[float32](x, p.Tensor()); err != nil || !math.IsInf(float64(v[0]), -1) {
			t.Errorf("%v, %v", v, err)
		}
		if st := state(t, x, s); st != (optim.GradScalerState{}) {
			t.Errorf("%+v", st)
		}
	})
}

// A state survives JSON with PyTorch's keys, before and after the first use.
func TestScalerState(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for _, used := range []bool{false, true} {
			s := newScaler(t)
			if used {
				s.Scale(x, x.Ones(nil, tenon.Float32))
			}
			var st optim.GradScalerState
			ok(t,
				json.Unmarshal(
					[]byte(`{"scale": 12, "growth_factor": 3, "backoff_factor": 0.25, "growth_interval": 7, "_growth_tracker": 5}`), &st))
			ok(t, s.SetState(x, st))
			if got := state(t, x, s); got != st {
				t.Errorf("got %+v, want %+v", got, st)
			}
			if v, err := x.Item(s.Scale(x, x.Ones(nil, tenon.Float32))); err != nil || v != 12 {
				t.Errorf("scaled by %v, %v", v, err)
			}
			if got := state(t, x, s); got != st {
				t.Errorf("got %+v, want %+v", got, st)
			}
			s.Close()
		}
	})
}
