package optim_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"tenon.dev/optim"
)

func plateau(t *testing.T, o optim.Optimizer, patience int, opt optim.PlateauOpt) *optim.ReduceLROnPlateau {
	t.Helper()
	s, err := optim.NewReduceLROnPlateau(o, patience, opt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The steps after which the rates fall, counted by hand from the definition.
func TestPlateau(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, c := range map[string]struct {
		patience int
		opt      optim.PlateauOpt
		metrics  []float64
		falls    []int // numbers of the steps, from 1
	}{
		"better all the time": {0, optim.PlateauOpt{}, []float64{5, 4, 3, 2}, nil},
		"no patience":         {0, optim.PlateauOpt{}, []float64{5, 5, 5, 4, 4.5}, []int{2, 3, 5}},
		"patience 2":          {2, optim.PlateauOpt{}, []float64{5, 6, 6, 6, 6, 6, 6, 6}, []int{4, 7}},
		"better resets":       {2, optim.PlateauOpt{}, []float64{5, 6, 6, 4, 6, 6, 6}, []int{7}},
		"too small a gain":    {1, optim.PlateauOpt{}, []float64{1, 0.99995, 0.9999, 0.9998}, []int{3}},
		"a gain at the edge":  {0, optim.PlateauOpt{Threshold: 0.5}, []float64{1, 0.5, 0.25}, []int{2}},
		"a difference": {0, optim.PlateauOpt{Threshold: 0.5, ThresholdMode: optim.ThresholdAbs}, []float64{9, 8.5, 8.25, 7.75},
			[]int{2, 4}},
		"any gain":            {0, optim.PlateauOpt{Threshold: 1e-300}, []float64{1, math.Nextafter(1, 0), math.Nextafter(1, 0)}, []int{3}},
		"more is better":      {0, optim.PlateauOpt{Mode: optim.PlateauMax}, []float64{1, 2, 2, 1, 3}, []int{3, 4}},
		"much more is better": {0, optim.PlateauOpt{Mode: optim.PlateauMax, Threshold: 1}, []float64{1, 2, 2.5, 5, 5.5}, []int{2, 4}},
		"a difference upwards": {0, optim.PlateauOpt{Mode: optim.PlateauMax, Threshold: 1, ThresholdMode: optim.ThresholdAbs},
			[]float64{1, 2,
				2.5, 3.5, 3.75}, []int{2, 4}},
		"cooldown":              {0, optim.PlateauOpt{Cooldown: 2}, []float64{5, 6, 6, 6, 6, 6, 6, 6}, []int{2, 5, 8}},
		"cooldown and patience": {1, optim.PlateauOpt{Cooldown: 2}, []float64{5, 6, 6, 6, 6, 6, 6, 6}, []int{3, 7}},
		"NaN is never better":   {1, optim.PlateauOpt{}, []float64{nan, nan, nan, 5, nan, nan}, []int{2, 6}},
		"infinite":              {0, optim.PlateauOpt{}, []float64{inf, 5, -inf, -inf, -1e300}, []int{1, 4, 5}},
		"less than 0":           {0, optim.PlateauOpt{Threshold: 0.1}, []float64{-1, -0.95, -1.05, -0.8}, []int{4}},
		"named defaults": {0, optim.PlateauOpt{Mode: optim.PlateauMin, ThresholdMode: optim.ThresholdRel, Threshold: 1e-4, Factor: 0.1,
			Eps: 1e-8}, []float64{5, 5}, []int{2}},
	} {
		o := newMoving(1, 0.5)
		s := plateau(t, o, c.patience, c.opt)
		lr := []float64{1, 0.5}
		for i, m := range c.metrics {
			if err := s.Step(m); err != nil {
				t.Fatal(err)
			}
			if slices.Contains(c.falls, i+1) {
				lr[0] *= 0.1
				lr[1] *= 0.1
			}
			if !slices.Equal(o.lr, lr) {
				t.Fatalf("%s: %v after step %d, want %v", name, o.lr, i+1, lr)
			}
		}
	}
}

// Rates do not fall below MinLR or by less than Eps.
func TestPlateauLeastRates(t *testing.T) {
	for name, c := range map[string]struct {
		opt  optim.PlateauOpt
		want []float64
	}{
		"factor":         {optim.PlateauOpt{Factor: 0.5}, []float64{0.25, 0.125}},
		"one for all":    {optim.PlateauOpt{Factor: 0.5, MinLR: []float64{0.2}}, []float64{0.25, 0.2}},
		"one for each":   {optim.PlateauOpt{Factor: 0.5, MinLR: []float64{0.375, 0.25}}, []float64{0.375, 0.25}},
		"above the rate": {optim.PlateauOpt{Factor: 0.5, MinLR: []float64{3, 0}}, []float64{1, 0.125}},
		"less than Eps":  {optim.PlateauOpt{Factor: 0.5, Eps: 0.3}, []float64{0.5, 0.5}},
		"as much as Eps": {optim.PlateauOpt{Factor: 0.5, Eps: 0.25}, []float64{0.5, 0.5}},
	} {
		o := newMoving(1, 0.5)
		s := plateau(t, o, 0, c.opt)
		for range 3 { // two bad steps
			if err := s.Step(1); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(o.lr, c.want) {
			t.Errorf("%s: %v, want %v", name, o.lr, c.want)
		}
	}
}

func TestPlateauResumes(t *testing.T) {
	metrics := []float64{math.NaN(), 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0.5, 2, 2, 2, 2, math.Inf(-1), 0, 0, 0}
	for _, opt := range []optim.PlateauOpt{{Cooldown: 1, Factor: 0.7}, {Mode: optim.PlateauMax, Factor: 0.7}} {
		o := newMoving(0.1, 0.02)
		s := plateau(t, o, 1, opt)
		var states []string
		var lrs [][]float64
		advance := func(o *moving, s *optim.ReduceLROnPlateau, i int) {
			if i == 5 {
				o.SetLR(0, 1.7*o.LR(0))
			}
			if err := s.Step(metrics[i]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range metrics {
			st, err := s.State()
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(st)
			if err != nil {
				t.Fatal(err)
			}
			states, lrs = append(states, string(b)), append(lrs, slices.Clone(o.lr))
			advance(o, s, i)
		}
		for stop, text := range states {
			var st optim.PlateauState
			if err := json.Unmarshal([]byte(text), &st); err != nil {
				t.Fatal(err)
			}
			o := newMoving(0.7, 0.007)
			s := plateau(t, o, 1, opt)
			if err := s.SetState(st); err != nil {
				t.Fatal(err)
			}
			for i := stop; i < len(metrics); i++ {
				if !slices.Equal(o.lr, lrs[i]) {
					t.Fatalf("%v after %d steps with a stop at %d, want %v", o.lr, i, stop, lrs[i])
				}
				advance(o, s, i)
			}
		}
	}
}

func TestPlateauErrors(t *testing.T) {
	nan := math.NaN()
	for want, opt := range map[string]optim.PlateauOpt{
		"Factor should be < 1.0. It is 1": {Factor: 1},
		"Factor is NaN":                   {Factor: nan},
		"Factor is -1":                    {Factor: -1},
		"Cooldown is -1":                  {Cooldown: -1},
		"Threshold is -1":                 {Threshold: -1},
		"Eps is NaN":                      {Eps: nan},
		"MinLR[1] is -1":                  {MinLR: []float64{0, -1}},
		"expected 2 min_lrs, got 3":       {MinLR: []float64{0, 0, 0}},
		"mode 7 is unknown; give PlateauMin or PlateauMax":               {Mode: 7},
		"threshold mode 7 is unknown; give ThresholdRel or ThresholdAbs": {ThresholdMode: 7},
	} {
		s, err := optim.NewReduceLROnPlateau(newMoving(1, 2), 1, opt)
		refused(t, want, s == nil, err)
	}
	s, err := optim.NewReduceLROnPlateau(newMoving(1, 2), -1)
	refused(t, "patience is -1", s == nil, err)
	s, err = optim.NewReduceLROnPlateau(nil, 1)
	refused(t, "the optimizer is nil", s == nil, err)
	s, err = optim.NewReduceLROnPlateau(new(optim.SGD), 1)
	refused(t, "the optimizer has no parameters", s == nil, err)
	for _, s := range []*optim.ReduceLROnPlateau{nil, new(optim.ReduceLROnPlateau)} {
		refused(t, "the schedule is nil", true, s.Step(1))
		refused(t, "the schedule is nil", true, s.SetState(optim.PlateauState{}))
		_, err := s.State()
		refused(t, "the schedule is nil", true, err)
	}

	o := newMoving(1, 2)
	s = plateau(t, o, 1, optim.PlateauOpt{MinLR: []float64{0, 1}})
	if err := s.Step(5); err != nil {
		t.Fatal(err)
	}
	good, err := s.State()
	if err != nil {
		t.Fatal(err)
	}
	for want, st := range map[string]optim.PlateauState{
		`the state's best metric is ""`:                              {Rates: []float64{1, 1}},
		`the state's best metric is "NaN"`:                           {Best: "NaN", Rates: []float64{1, 1}},
		"the state counts -1 and 0 steps":                            {Best: "1", Bad: -1, Rates: []float64{1, 1}},
		"the state counts 0 and -1 steps":                            {Best: "1", Cooldown: -1, Rates: []float64{1, 1}},
		"the state is of an optimizer with 1 groups, this one has 2": {Best: "1", Rates: []float64{1}},
		"the state has the rates [1 NaN]":                            {Best: "1", Rates: []float64{1, nan}},
	} {
		refused(t, want, true, s.SetState(st))
		if after, err := s.State(); err != nil || fmt.Sprint(after) != fmt.Sprint(good) {
			t.Errorf("%s: %v, %v", want, after, err)
		}
	}
	o.lr = append(o.lr, 1)
	refused(t, "expected 3 min_lrs, got 2", true, s.Step(1))

	// A single MinLR also holds for a group added later.
	o = newMoving(1)
	s = plateau(t, o, 0, optim.PlateauOpt{MinLR: []float64{0.5}})
	o.lr = append(o.lr, 1)
	for range 2 {
		if err := s.Step(1); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(o.lr, []float64{0.5, 0.5}) {
		t.Error(o.lr)
	}
}
