package optim_test

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// still is an optimizer with only rates; moving has momenta too.
type still struct{ lr []float64 }

func (o *still) Step(*tenon.Exec) error      { return nil }
func (o *still) ZeroGrad()                   {}
func (o *still) Close()                      {}
func (o *still) Groups() int                 { return len(o.lr) }
func (o *still) LR(group int) float64        { return o.lr[group] }
func (o *still) SetLR(group int, lr float64) { o.lr[group] = lr }

type moving struct {
	still
	momenta []float64
}

func (o *moving) Momentum(group int) float64       { return o.momenta[group] }
func (o *moving) SetMomentum(group int, m float64) { o.momenta[group] = m }

func newMoving(lr ...float64) *moving { return &moving{still{lr}, make([]float64, len(lr))} }

func schedule(t *testing.T, o optim.Optimizer, r optim.Rule) *optim.Schedule {
	t.Helper()
	s, err := optim.NewSchedule(o, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// follow returns the rates of all groups after 0 to n steps.
func follow(t *testing.T, r optim.Rule, n int, lr ...float64) [][]float64 {
	t.Helper()
	o := newMoving(slices.Clone(lr)...)
	s := schedule(t, o, r)
	got := [][]float64{slices.Clone(o.lr)}
	for range n {
		if err := s.Step(); err != nil {
			t.Fatal(err)
		}
		got = append(got, slices.Clone(o.lr))
	}
	return got
}

// Each group has its own value.
func TestScheduleGroups(t *testing.T) {
	half, third := func(int) float64 { return 0.5 }, func(int) float64 { return 1. / 3 }
	for name, c := range map[string]struct {
		rule optim.Rule
		want []float64 // after a step from 0.1 and 0.2
	}{
		"lambda":         {optim.LambdaLR(half, third), []float64{0.1 * 0.5, 0.2 * (1. / 3)}},
		"multiplicative": {optim.MultiplicativeLR(half, third), []float64{0.1 * 0.5, 0.2 * (1. / 3)}},
		"one cycle":      {optim.OneCycleLR([]float64{1, 3}, 2, optim.OneCycleOpt{PctStart: 1}), []float64{1, 3}},
		"cyclic":         {optim.CyclicLR([]float64{0, 1}, []float64{4, 9}, optim.CyclicOpt{StepSizeUp: 2}), []float64{2, 5}},
		"one base":       {optim.CyclicLR([]float64{1}, []float64{4, 9}, optim.CyclicOpt{StepSizeUp: 2}), []float64{2.5, 5}},
	} {
		if got := follow(t, c.rule, 1, 0.1, 0.2)[1]; !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Formulas that use the current rate build on a rate set by hand; the others forget it. Doubling a rate is exact.
func TestScheduleByHand(t *testing.T) {
	ramp := func(t int) float64 { return 1 / (1 + float64(t)) }
	for name, c := range map[string]struct {
		rule  optim.Rule
		lasts bool
	}{
		"StepLR":           {optim.StepLR(2, 0.7), true},
		"MultiStepLR":      {optim.MultiStepLR([]int{1, 4, 6}, 0.7), true},
		"ConstantLR":       {optim.ConstantLR(0.3, 5), true},
		"LinearLR":         {optim.LinearLR(0.3, 0.9, 7), true},
		"ExponentialLR":    {optim.ExponentialLR(0.7), true},
		"PolynomialLR":     {optim.PolynomialLR(9, 1.3), true},
		"CosineAnnealing":  {optim.CosineAnnealingLR(9, 0), true},
		"MultiplicativeLR": {optim.MultiplicativeLR(ramp), true},
		"chain":            {optim.ChainedScheduler(optim.StepLR(2, 0.7), optim.LinearLR(0.3, 0.9, 7)), true},
		"LambdaLR":         {optim.LambdaLR(ramp), false},
		"WarmRestarts":     {optim.CosineAnnealingWarmRestarts(3, 2, 0.01), false},
		"OneCycleLR":       {optim.OneCycleLR([]float64{1}, 10), false},
		"CyclicLR":         {optim.CyclicLR([]float64{1}, []float64{2}, optim.CyclicOpt{StepSizeUp: 3}), false},
	} {
		untouched := follow(t, c.rule, 8, 0.1, 0.1)
		o := newMoving(0.1, 0.1)
		s := schedule(t, o, c.rule)
		for i := 1; i <= 8; i++ {
			if i == 4 {
				o.SetLR(1, 2*o.LR(1))
			}
			if err := s.Step(); err != nil {
				t.Fatal(err)
			}
			want := untouched[i][1]
			if c.lasts && i >= 4 {
				want *= 2
			}
			if o.lr[0] != untouched[i][0] || o.lr[1] != want {
				t.Errorf("%s: %v after %d steps, want %v and %v", name, o.lr, i, untouched[i][0], want)
			}
		}
	}
}

// In a sequence the initial rates are those before the sequence, or those of a cycle that sets its own. MultiplicativeLR goes on from the
// current rate.
func TestScheduleHandover(t *testing.T) {
	half := func(int) float64 { return 0.5 }
	cyclic := optim.CyclicLR([]float64{2}, []float64{4}, optim.CyclicOpt{StepSizeUp: 2})
	one := optim.OneCycleLR([]float64{50}, 4)
	for name, c := range map[string]struct {
		rule optim.Rule
		want []float64
	}{
		"goes on": {optim.SequentialLR([]int{2}, optim.ConstantLR(0.25, 9), optim.MultiplicativeLR(half)),
			[]float64{2, 2, 1, 0.5}},
		"starts again":     {optim.SequentialLR([]int{2}, optim.ConstantLR(0.25, 9), optim.ExponentialLR(0.5)), []float64{2, 2, 8, 4}},
		"cycle first":      {optim.SequentialLR([]int{1}, cyclic, optim.ExponentialLR(0.5)), []float64{2, 2, 1, 0.5}},
		"cycle second":     {optim.SequentialLR([]int{2}, optim.ExponentialLR(0.5), cyclic), []float64{8, 4, 2, 3}},
		"one cycle second": {optim.SequentialLR([]int{2}, optim.ExponentialLR(0.5), one), []float64{2, 1, 2}},
	} {
		got := follow(t, c.rule, len(c.want)-1, 8)
		for i, want := range c.want {
			if got[i][0] != want {
				t.Errorf("%s: %v, want %v", name, got, c.want)
				break
			}
		}
	}
}

// A cosine that starts in a sequence is rounded as its formula is.
func TestScheduleHandoverRounds(t *testing.T) {
	r := optim.SequentialLR([]int{1}, optim.ConstantLR(0.5, 9), optim.CosineAnnealingLR(4, 0.07))
	if got, want := follow(t, r, 1, 0.02)[1][0], 0.020000000000000004; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// The momentum moves opposite to the rate, by the same formula.
func TestScheduleMomentum(t *testing.T) {
	for name, c := range map[string]struct {
		rule       optim.Rule
		low, high  float64 // rates
		base, most float64 // momenta
	}{
		"one cycle": {optim.OneCycleLR([]float64{1}, 31, optim.OneCycleOpt{ThreePhase: true, PctStart: 0.5}), 0.04, 1, 0.85, 0.95},
		"linear": {optim.OneCycleLR([]float64{1}, 31, optim.OneCycleOpt{ThreePhase: true, PctStart: 0.5, AnnealStrategy: optim.AnnealLinear,
			BaseMomentum: 0.2, MaxMomentum: 0.5}), 0.04, 1, 0.2, 0.5},
		"cyclic": {optim.CyclicLR([]float64{1}, []float64{3}, optim.CyclicOpt{StepSizeUp: 7, StepSizeDown: 4}), 1, 3, 0.8, 0.9},
		"exp_range": {optim.CyclicLR([]float64{1}, []float64{3}, optim.CyclicOpt{StepSizeUp: 7, Mode: optim.CyclicExpRange, Gamma: 0.9,
			BaseMomentum: 0.1, MaxMomentum: 0.7}), 1, 3, 0.1, 0.7},
	} {
		o := newMoving(0.1, 0.1)
		s := schedule(t, o, c.rule)
		for i := range 29 {
			for g := range o.lr {
				if want := c.most - (c.most-c.base)*(o.lr[g]-c.low)/(c.high-c.low); math.Abs(o.momenta[g]-want) > 1e-14 {
					t.Errorf("%s: rate %v and momentum %v after %d steps, want %v", name, o.lr[g], o.momenta[g], i, want)
				}
			}
			if err := s.Step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A later cycle in a sequence sets its first momentum when the sequence is made, and then again when its turn comes.
	o := newMoving(0.1)
	s := schedule(t, o, optim.SequentialLR([]int{2}, optim.StepLR(1, 0.5),
		optim.CyclicLR([]float64{1}, []float64{2}, optim.CyclicOpt{StepSizeUp: 2})))
	for i, want := range []float64{0.9, 0.9, 0.9, 0.85, 0.8} {
		if math.Abs(o.momenta[0]-want) > 1e-15 {
			t.Errorf("momentum %v after %d steps, want %v", o.momenta[0], i, want)
		}
		if err := s.Step(); err != nil {
			t.Fatal(err)
		}
	}
	// Momenta that no rule cycles stay.
	o.momenta[0] = 0.3
	for _, r := range []optim.Rule{optim.StepLR(1, 0.5), optim.OneCycleLR([]float64{1}, 9, optim.OneCycleOpt{NoMomentum: true}),
		optim.CyclicLR([]float64{1}, []float64{2}, optim.CyclicOpt{NoMomentum: true})} {
		if err := schedule(t, o, r).Step(); err != nil || o.momenta[0] != 0.3 {
			t.Errorf("%v, %v", o.momenta, err)
		}
	}
	if err := schedule(t, &still{[]float64{1}}, optim.OneCycleLR([]float64{1}, 9, optim.OneCycleOpt{NoMomentum: true})).Step(); err != nil {
		t.Error(err)
	}
}

// rules returns rules of every kind.
func rules() map[string]optim.Rule {
	ramp := func(t int) float64 { return 1 / (1 + float64(t)) }
	near := func(t int) float64 { return 1 - float64(t)/64 }
	return map[string]optim.Rule{
		"LambdaLR": optim.LambdaLR(ramp, near), "MultiplicativeLR": optim.MultiplicativeLR(near), "StepLR": optim.StepLR(3, 0.7),
		"MultiStepLR": optim.MultiStepLR([]int{3, 7, 7, 11}, 0.7), "ConstantLR": optim.ConstantLR(1./3, 5),
		"LinearLR":      optim.LinearLR(0.1, 0.9, 7),
		"ExponentialLR": optim.ExponentialLR(0.9), "PolynomialLR": optim.PolynomialLR(9, 0.9),
		"CosineAnnealingLR":           optim.CosineAnnealingLR(7, 0.001),
		"CosineAnnealingWarmRestarts": optim.CosineAnnealingWarmRestarts(3, 2, 0.001),
		"OneCycleLR":                  optim.OneCycleLR([]float64{1, 2}, 20),
		"OneCycleLR three": optim.OneCycleLR([]float64{1}, 20, optim.OneCycleOpt{ThreePhase: true,
			AnnealStrategy: optim.AnnealLinear, NoMomentum: true}),
		"CyclicLR": optim.CyclicLR([]float64{0.1}, []float64{1}, optim.CyclicOpt{StepSizeUp: 3, StepSizeDown: 2,
			Mode: optim.CyclicExpRange, Gamma: 0.9}),
		"CyclicLR 2": optim.CyclicLR([]float64{0.1}, []float64{1}, optim.CyclicOpt{StepSizeUp: 3,
			Mode: optim.CyclicTriangular2}),
		"SequentialLR": optim.SequentialLR([]int{4, 9}, optim.LinearLR(0.1, 1, 4), optim.MultiplicativeLR(near), optim.CosineAnnealingLR(6,
			0.001)),
		"SequentialLR cycles": optim.SequentialLR([]int{4, 12}, optim.ExponentialLR(0.9), optim.OneCycleLR([]float64{1}, 9),
			optim.CyclicLR([]float64{0.1}, []float64{1}, optim.CyclicOpt{StepSizeUp: 3})),
		"ChainedScheduler": optim.ChainedScheduler(optim.LinearLR(0.1, 1, 4), optim.StepLR(3, 0.7),
			optim.SequentialLR([]int{5}, optim.ConstantLR(0.3, 2), optim.MultiplicativeLR(near))),
	}
}

// A schedule that stops after any step resumes with the same bits, in an optimizer with other rates, through JSON and gob.
func TestScheduleResumes(t *testing.T) {
	const steps = 18
	for name, r := range rules() {
		o := newMoving(0.1, 0.02)
		s := schedule(t, o, r)
		var states []optim.ScheduleState
		var lrs, momenta [][]float64
		advance := func(o *moving, s *optim.Schedule, i int) {
			if i == 5 {
				o.SetLR(0, 1.7*o.LR(0)) // set by hand; the state keeps it too
			}
			if err := s.Step(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for i := range steps {
			st, err := s.State()
			if err != nil {
				t.Fatal(err)
			}
			states, lrs, momenta = append(states, st), append(lrs, slices.Clone(o.lr)), append(momenta, slices.Clone(o.momenta))
			advance(o, s, i)
		}
		for stop, st := range states {
			b, err := json.Marshal(st)
			if err != nil {
				t.Fatal(err)
			}
			var parsed optim.ScheduleState
			if err := json.Unmarshal(b, &parsed); err != nil {
				t.Fatal(err)
			}
			var buf bytes.Buffer
			if err := gob.NewEncoder(&buf).Encode(parsed); err != nil {
				t.Fatal(err)
			}
			parsed = optim.ScheduleState{}
			if err := gob.NewDecoder(&buf).Decode(&parsed); err != nil {
				t.Fatal(err)
			}
			o := newMoving(0.7, 0.007)
			s := schedule(t, o, r)
			if err := s.SetState(parsed); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for i := stop; i < steps; i++ {
				if !slices.Equal(o.lr, lrs[i]) || slices.Max(momenta[i]) > 0 && !slices.Equal(o.momenta, momenta[i]) {
					t.Fatalf("%s: %v and %v after %d steps with a stop at %d, want %v and %v", name, o.lr, o.momenta, i, stop,
						lrs[i], momenta[i])
				}
				advance(o, s, i)
			}
		}
	}
}

// State and SetState copy.
func TestScheduleStateIsACopy(t *testing.T) {
	o := newMoving(1)
	s := schedule(t, o, optim.LambdaLR(func(int) float64 { return 0.5 }))
	st, err := s.State()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		st.Initial[0][0], st.Rates[0], st.Steps[0] = 9, 9, 9
		if err := s.Step(); err != nil || o.lr[0] != 0.5 {
			t.Errorf("%v, %v", o.lr, err)
		}
		if st, err = s.State(); err != nil {
			t.Fatal(err)
		}
		if err := s.SetState(st); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever the rule, rates are finite and not negative, except in chains: after a rule that sets rates below a wave's minimum, the wave
// may continue downwards.
func TestScheduleRatesAreNumbers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	unit := func() float64 { return []float64{0.01, 0.1, 1. / 3, 0.5, 0.9, 0.999, 1}[rnd.IntN(7)] }
	least := func() float64 { return []float64{0, 1e-9, 1e-3}[rnd.IntN(3)] }
	n := func() int { return []int{1, 2, 3, 5, 10, 64, 1000}[rnd.IntN(7)] }
	const steps = 400
	var leaf func(in int) optim.Rule
	leaf = func(in int) optim.Rule {
		kind := rnd.IntN(14 - 2*min(in, 1))
		switch kind {
		case 0:
			return optim.LambdaLR(func(t int) float64 { return 1 / float64(t+1) })
		case 1:
			return optim.MultiplicativeLR(func(t int) float64 { return 1 / float64(t+1) })
		case 2:
			return optim.StepLR(n(), unit())
		case 3:
			return optim.MultiStepLR([]int{n(), n()}, unit())
		case 4:
			return optim.ConstantLR(unit(), n())
		case 5:
			return optim.LinearLR(unit(), []float64{0, unit()}[rnd.IntN(2)], n())
		case 6:
			return optim.ExponentialLR(unit())
		case 7:
			return optim.PolynomialLR(n(), 3*unit())
		case 8:
			return optim.CosineAnnealingLR(n(), least())
		case 9:
			return optim.CosineAnnealingWarmRestarts(n(), 1+rnd.IntN(3), least())
		case 10:
			return optim.OneCycleLR([]float64{unit()}, steps+1+n(), optim.OneCycleOpt{PctStart: unit(), ThreePhase: rnd.IntN(2) == 0,
				AnnealStrategy: optim.AnnealStrategy(rnd.IntN(2))})
		case 11:
			mode := optim.CyclicMode(rnd.IntN(3))
			return optim.CyclicLR([]float64{least()}, []float64{unit()}, optim.CyclicOpt{StepSizeUp: n(), StepSizeDown: n(),
				Mode: mode, Gamma: unit()})
		case 12:
			first := n()
			return optim.SequentialLR([]int{first, first + n()}, leaf(in+1), leaf(in+1), leaf(in+1))
		}
		return optim.ChainedScheduler(leaf(in+1), leaf(in+1))
	}
	for range 500 {
		o := newMoving(unit(), least(), 0)
		s := schedule(t, o, leaf(0))
		st, err := s.State()
		if err != nil {
			t.Fatal(err)
		}
		// A falling cosine wave may end a rounding error below 0.
		lowest := -1e-15
		if strings.Contains(st.Rule, "Chained") {
			lowest = -1e3
		}
		for i := range steps {
			for g, lr := range o.lr {
				if !(lr >= lowest) || lr > 1e3 || !(o.momenta[g] >= 0 && o.momenta[g] < 1) {
					t.Fatalf("%s: rate %v and momentum %v of group %d after %d steps", st.Rule, lr, o.momenta[g], g, i)
				}
			}
			if err := s.Step(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A step that fails leaves everything as it was.
func TestScheduleEnds(t *testing.T) {
	for name, c := range map[string]struct {
		rule  optim.Rule
		steps int
		want  string
	}{
		"one cycle": {optim.OneCycleLR([]float64{1}, 7), 7,
			"OneCycleLR: Tried to step 8 times. The specified number of total steps is 7"},
		"in a chain": {optim.ChainedScheduler(optim.ExponentialLR(0.9), optim.OneCycleLR([]float64{1}, 7), optim.StepLR(2, 0.5)), 7,
			"Tried to step 8 times"},
		"in turn": {optim.SequentialLR([]int{2}, optim.ExponentialLR(0.9), optim.OneCycleLR([]float64{1}, 7)), 9,
			"Tried to step 8 times"},
		"NaN": {optim.LambdaLR(func(t int) float64 { return []float64{1, 2, math.NaN()}[t] }), 1,
			"the learning rate of group 0 would be NaN after 2 steps"},
		"far too much": {optim.ExponentialLR(1e200), 1, "the learning rate of group 0 would be +Inf after 2 steps"},
	} {
		o := newMoving(0.1, 0.2)
		s := schedule(t, o, c.rule)
		for range c.steps {
			if err := s.Step(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		before, err := s.State()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Step(); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", name, err, c.want)
			}
		}
		if after, err := s.State(); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: %v, %v, was %v", name, after, err, before)
		}
	}
}

// A captured step reads its rate from a tensor, which the schedule fills between replays.
func TestScheduleOfCapturedSteps(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
		defer p.Close()
		p.SetGrad(x.Ones([]int{1}, tenon.Float32))
		o, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		s := schedule(t, o, optim.ExponentialLR(0.5))
		rate := x.Full(nil, o.LR(0), tenon.Float64)
		if err := o.SetLRTensor(0, rate); err != nil {
			t.Fatal(err)
		}
		if err := o.Step(x); err != nil { // makes the state
			t.Fatal(err)
		}
		g, err := x.Capture(func(x *tenon.Exec) {
			if err := o.Step(x); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := s.Step(); err != nil {
				t.Fatal(err)
			}
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := x.Item(p.Tensor()); err != nil || got != -(1+0.5+0.25+0.125) {
			t.Errorf("%v, %v", got, err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestCapturedStepsFollowTheirTensor checks that a graph follows the learning rate though the optimizer was given another tensor since, or
// none: its step goes on reading the tensor of the capture.
func TestCapturedStepsFollowTheirTensor(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for name, next := range map[string]*tenon.Tensor{"another": x.Full(nil, 9, tenon.Float64), "none": nil} {
			p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
			defer p.Close()
			p.SetGrad(x.Ones([]int{1}, tenon.Float32))
			o, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer o.Close()
			s := schedule(t, o, optim.ExponentialLR(0.5))
			rate := x.Full(nil, o.LR(0), tenon.Float64)
			mustAll(t, o.SetLRTensor(0, rate), o.Step(x))
			g, err := x.Capture(func(x *tenon.Exec) { mustAll(t, o.Step(x)) })
			if err != nil {
				t.Fatal(err)
			}
			mustAll(t, o.SetLRTensor(0, next), s.Step(), x.Replay(g))
			o.SetLR(0, 0.125)
			mustAll(t, x.Replay(g))
			if got, err := x.Item(p.Tensor()); err != nil || got != -(1+0.5+0.125) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			mustAll(t, o.Step(x))
			if got, err := x.Item(p.Tensor()); err != nil || got != -(1+0.5+0.125+0.125) {
				t.Errorf("%s, a step outside the graph: %v, %v", name, got, err)
			}
			mustAll(t, g.Close())
			rate.Close()
			mustAll(t, s.Step()) // the closed tensor is no longer filled
		}
	})
}

// TestFailedCapturesFillNothing checks that only steps that became a part of a graph keep their learning-rate tensor filled, and that a
// state that could not be loaded leaves a usable list of them.
func TestFailedCapturesFillNothing(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Zeros([]int{1}, tenon.Float32))
		defer p.Close()
		p.SetGrad(x.Ones([]int{1}, tenon.Float32))
		o, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		rate := x.Full(nil, 1, tenon.Float64)
		mustAll(t, o.SetLRTensor(0, rate), o.Step(x))
		if _, err := x.Capture(func(y *tenon.Exec) {
			mustAll(t, o.Step(y))
			y.Item(rate) // which cannot be captured
		}); err == nil {
			t.Fatal("the capture did not fail")
		}
		mustAll(t, o.SetLRTensor(0, nil))
		o.SetLR(0, 0.25)
		if v, err := x.Item(rate); err != nil || v != 1 {
			t.Errorf("the tensor of a capture that failed is filled with %v, %v", v, err)
		}
		mustAll(t, o.SetLRTensor(0, rate))
		g, err := x.Capture(func(y *tenon.Exec) { mustAll(t, o.Step(y)) })
		if err != nil {
			t.Fatal(err)
		}
		mustAll(t, g.Close())
		file := filepath.Join(t.TempDir(), "run.pt")
		c := &optim.Checkpoint{Optimizer: o}
		mustAll(t, c.Save(x, file))
		rate.Close()
		if err := c.Load(x, file); err == nil {
			t.Error("a closed learning-rate tensor is filled")
		}
		mustAll(t, o.SetLRTensor(0, nil))
		o.SetLR(0, 0.5)
		mustAll(t, c.Load(x, file))
	})
}

// SGD that started without momentum has no state tensor for it.
func TestScheduleMomentumRefused(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		p := nn.NewParam(x.Ones([]int{1}, tenon.Float32))
		defer p.Close()
		o, err := optim.NewSGD(list(p), optim.SGDOpt{LR: 0.5})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		p.SetGrad(x.Ones([]int{1}, tenon.Float32))
		if err := o.Step(x); err != nil {
			t.Fatal(err)
		}
		s, err := optim.NewSchedule(o, optim.OneCycleLR([]float64{1}, 9))
		refused(t, "SGD: the momentum of group 0 cannot go from 0 to 0.95 after its first step", s == nil, err)
		if o.LR(0) != 0.5 || o.Momentum(0) != 0 {
			t.Error(o.LR(0), o.Momentum(0))
		}
		schedule(t, o, optim.OneCycleLR([]float64{1}, 9, optim.OneCycleOpt{NoMomentum: true}))
	})
}

//tenon:table of rules and the errors that they end in
func TestScheduleErrors(t *testing.T) {
	nan := math.NaN()
	one := []float64{1}
	f := func(int) float64 { return 1 }
	for want, r := range map[string]optim.Rule{
		"the rule is a zero value":                                             {},
		"LambdaLR: f must have the same length":                                optim.LambdaLR(),
		"It has 3 values for 2 groups":                                         optim.MultiplicativeLR(f, f, f),
		"LambdaLR: function 1 is nil":                                          optim.LambdaLR(f, nil),
		"MultiplicativeLR: function 0 is nil":                                  optim.MultiplicativeLR(nil),
		"StepLR: Expected positive integer stepSize":                           optim.StepLR(0, 0.5),
		"StepLR: gamma has 2 values; give one, or none for 0.1":                optim.StepLR(1, .1, .2),
		"ConstantLR: totalIters has 2 values; give one, or none for 5":         optim.ConstantLR(1, 2, 3),
		"LinearLR: totalIters has 2 values; give one, or none for 5":           optim.LinearLR(1, 1, 2, 3),
		"WarmRestarts: etaMin has 2 values; give one, or none for 0":           optim.CosineAnnealingWarmRestarts(1, 1, 0, 0),
		"StepLR: gamma is -1":                                                  optim.StepLR(1, -1),
		"MultiStepLR: gamma is NaN":                                            optim.MultiStepLR([]int{1}, nan),
		"milestone -2 is negative":                                             optim.MultiStepLR([]int{1, -2}, 1),
		"between 0 and 1. It is 1.5":                                           optim.ConstantLR(1.5, 3),
		"between 0 and 1. It is NaN":                                           optim.ConstantLR(nan, 3),
		"the factor is 0":                                                      optim.ConstantLR(0, 3),
		"ConstantLR: Expected positive integer totalIters":                     optim.ConstantLR(1, 0),
		"greater than 0 and less or equal to 1. It is 0":                       optim.LinearLR(0, 1, 3),
		"Ending multiplicative factor expected to be between 0 and 1. It is 2": optim.LinearLR(1, 2, 3),
		"LinearLR: Expected positive integer totalIters, but got -1":           optim.LinearLR(1, 1, -1),
		"ExponentialLR: gamma is +Inf":                                         optim.ExponentialLR(math.Inf(1)),
		"PolynomialLR: Expected positive integer totalIters":                   optim.PolynomialLR(0, 1),
		"PolynomialLR: power is -1":                                            optim.PolynomialLR(1, -1),
		"CosineAnnealingLR: Expected positive integer tMax":                    optim.CosineAnnealingLR(0, 0),
		"CosineAnnealingLR: etaMin is NaN":                                     optim.CosineAnnealingLR(1, nan),
		"Expected positive integer T_0, but got 0":                             optim.CosineAnnealingWarmRestarts(0, 1, 0),
		"Expected integer T_mult >= 1, but got 0":                              optim.CosineAnnealingWarmRestarts(1, 0, 0),
		"CosineAnnealingWarmRestarts: etaMin is -1":                            optim.CosineAnnealingWarmRestarts(1, 1, -1),
		"SequentialLR expects at least one scheduler":                          optim.SequentialLR(nil),
		"number of schedulers 2 and the number of milestones to be equal to 0": optim.SequentialLR(nil, optim.StepLR(1, 1),
			optim.StepLR(1, 1)),
		"milestone 0 is 0": optim.SequentialLR([]int{0}, optim.StepLR(1, 1), optim.StepLR(1, 1)),
		"milestone 1 is 2; give positive numbers, none below": optim.SequentialLR([]int{3, 2}, optim.StepLR(1, 1),
			optim.StepLR(1, 1), optim.StepLR(1, 1)),
		"StepLR: Expected positive integer stepSize, but got -3": optim.SequentialLR([]int{1}, optim.StepLR(1, 1),
			optim.ChainedScheduler(optim.StepLR(-3, 1))),
		"ChainedScheduler expects at least one scheduler":  optim.ChainedScheduler(),
		"OneCycleLR: Expected positive integer totalSteps": optim.OneCycleLR(one, 0),
		"Expected float between 0 and 1 PctStart, but got 1.5": optim.OneCycleLR(one, 9,
			optim.OneCycleOpt{PctStart: 1.5}),
		"PctStart is 0.125, which is one step of 8": optim.OneCycleLR(one, 8,
			optim.OneCycleOpt{PctStart: 0.125}),
		"AnnealStrategy must be AnnealCos or AnnealLinear, instead got 7": optim.OneCycleLR(one, 9,
			optim.OneCycleOpt{AnnealStrategy: 7}),
		"DivFactor is -1; give a positive number": optim.OneCycleLR(one, 9,
			optim.OneCycleOpt{DivFactor: -1}),
		"FinalDivFactor is NaN": optim.OneCycleLR(one, 9,
			optim.OneCycleOpt{FinalDivFactor: nan}),
		"OneCycleLR: BaseMomentum is -1": optim.OneCycleLR(one, 9,
			optim.OneCycleOpt{BaseMomentum: -1}),
		"OneCycleLR: MaxMomentum is -1": optim.OneCycleLR(one, 9,
			optim.OneCycleOpt{MaxMomentum: -1}),
		"OneCycleLR: maxLR is empty":                   optim.OneCycleLR(nil, 9),
		"OneCycleLR: maxLR[1] is -1":                   optim.OneCycleLR([]float64{1, -1}, 9),
		"OneCycleLR: maxLR must have the same length":  optim.OneCycleLR([]float64{1, 1, 1}, 9),
		"CyclicLR: mode 7 is invalid and Scale is nil": optim.CyclicLR(one, one, optim.CyclicOpt{Mode: 7}),
		"CyclicLR: Expected positive integer StepSizeUp, but got -1": optim.CyclicLR(one, one,
			optim.CyclicOpt{StepSizeUp: -1}),
		"CyclicLR: Expected positive integer StepSizeDown, but got -1": optim.CyclicLR(one, one, optim.CyclicOpt{StepSizeDown: -1}),
		"CyclicLR: Gamma is -1": optim.CyclicLR(one, one, optim.CyclicOpt{Gamma: -1}),
		"CyclicLR: BaseMomentum is -1": optim.CyclicLR(one, one,
			optim.CyclicOpt{BaseMomentum: -1}),
		"CyclicLR: MaxMomentum is NaN": optim.CyclicLR(one, one,
			optim.CyclicOpt{MaxMomentum: nan}),
		"CyclicLR: baseLR is empty":                  optim.CyclicLR(nil, one),
		"CyclicLR: maxLR[0] is NaN":                  optim.CyclicLR(one, []float64{nan}),
		"CyclicLR: baseLR must have the same length": optim.CyclicLR([]float64{1, 1, 1}, one),
		"CyclicLR: maxLR must have the same length":  optim.CyclicLR(one, []float64{1, 1, 1}),
		"the learning rate of group 0 would be -Inf after 0 steps, from 1 before": optim.LambdaLR(func(int) float64 {
			return math.Inf(-1)
		}),
	} {
		o := newMoving(1, 2)
		s, err := optim.NewSchedule(o, r)
		refused(t, want, s == nil, err)
		if o.lr[0] != 1 || o.lr[1] != 2 || o.momenta[0] != 0 {
			t.Errorf("%v left the rates %v", err, o.lr)
		}
	}
	for want, o := range map[string]optim.Optimizer{"the optimizer is nil": (*optim.SGD)(nil),
		"the optimizer has no parameters": new(optim.AdamW)} {
		s, err := optim.NewSchedule(o, optim.StepLR(1, 1))
		refused(t, want, s == nil, err)
	}
	s, err := optim.NewSchedule(nil, optim.StepLR(1, 1))
	refused(t, "the optimizer is nil", s == nil, err)
	for _, r := range []optim.Rule{optim.OneCycleLR(one, 9), optim.ChainedScheduler(optim.CyclicLR(one, one))} {
		s, err := optim.NewSchedule(&still{[]float64{1}}, r)
		refused(t, "optimizer must support momentum or beta1", s == nil, err)
	}
	for _, s := range []*optim.Schedule{nil, new(optim.Schedule)} {
		refused(t, "the schedule is nil", true, s.Step())
		refused(t, "the schedule is nil", true, s.SetState(optim.ScheduleState{}))
		_, err := s.State()
		refused(t, "the schedule is nil", true, err)
	}

	o := newMoving(1, 2)
	s = schedule(t, o, optim.ChainedScheduler(optim.StepLR(1, 0.5), optim.OneCycleLR(one, 9)))
	good, err := s.State()
	if err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(st *optim.ScheduleState){
		`the state is of the rule "StepLR", the schedule has "ChainedScheduler(StepLR, OneCycleLR)"`: func(st *optim.ScheduleState) {
			st.Rule = "StepLR"
		},
		"the state has 2 counts and 3 lists":                      func(st *optim.ScheduleState) { st.Steps = st.Steps[:2] },
		"the state has 3 counts and 2 lists":                      func(st *optim.ScheduleState) { st.Initial = st.Initial[:2] },
		"the state is of an optimizer with 1 groups":              func(st *optim.ScheduleState) { st.Rates = st.Rates[:1] },
		"the state is of an optimizer with 0 groups":              func(st *optim.ScheduleState) { st.Initial[2] = nil },
		"the state has the rates [NaN 2]":                         func(st *optim.ScheduleState) { st.Initial[1] = []float64{nan, 2} },
		"the state has the momenta [], the schedule cycles 2":     func(st *optim.ScheduleState) { st.Momenta = nil },
		"the state has the momenta [NaN 1]":                       func(st *optim.ScheduleState) { st.Momenta[0], st.Momenta[1] = nan, 1 },
		"the state counts -1 steps; give one that State returned": func(st *optim.ScheduleState) { st.Steps[2] = -1 },
	} {
		st, err := s.State()
		if err != nil {
			t.Fatal(err)
		}
		st.Steps[0] = 5
		spoil(&st)
		refused(t, want, true, s.SetState(st))
		if after, err := s.State(); err != nil || fmt.Sprint(after) != fmt.Sprint(good) {
			t.Errorf("%s: %v, %v", want, after, err)
		}
	}
	o.lr, o.momenta = append(o.lr, 1), append(o.momenta, 1)
	refused(t, "the optimizer has 3 groups and had 2", true, s.Step())
}

// refused checks that an error is Invalid, contains want, and names operation and line; ok says that no result came with it.
func refused(t *testing.T, want string, ok bool, err error) {
	t.Helper()
	e, is := err.(*fault.Error)
	switch {
	case !ok:
		t.Errorf("%v came with a value", err)
	case !is || e.Kind != fault.Invalid || !strings.Contains(err.Error(), want):
		t.Errorf("got %v, want %q", err, want)
	case e.Op == "" || !strings.HasSuffix(e.File, "_test.go") || e.Line == 0:
		t.Errorf("%v names operation %q at %s:%d", err, e.Op, e.File, e.Line)
	}
}
