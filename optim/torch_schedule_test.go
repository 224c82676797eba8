package optim_test

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tenon.dev/internal/recorded"
	"tenon.dev/optim"
)

// recordedSchedules are what PyTorch 2.11 made of the learning rates of two groups, 0.1 and 0.02, and of momenta of 0.9
// (conformance/testdata/schedules.json.gz, recorded by schedules.py beside it).
type recordedSchedules struct {
	Torch string
	Runs  []struct {
		// Made is the scheduler in Python, where o is the optimizer.
		Made string
		// Optimizer is SGD, AdamW or Adagrad, which has no momentum.
		Optimizer string
		// Hand multiplies the first rate by By before the steps in At.
		Hand struct {
			At []int
			By float64
		}
		// Rates and Momenta are those after 0, 1, … steps, up to the one that failed with Error, if any did.
		Rates, Momenta [][]float64
		Error          string
	}
	Plateau []struct {
		Made    string
		Metrics []string
		Rates   [][]float64
		Bad     []int
		Best    []string
	}
}

func openRecordedSchedules(t *testing.T) (d recordedSchedules) {
	t.Helper()
	b, err := recorded.File("../conformance/testdata/schedules.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// torchRules are the recorded schedulers as rules.
//
//tenon:table of PyTorch's expressions and ours
func torchRules() map[string]optim.Rule {
	half := func(t int) float64 { return math.Pow(0.5, float64(t/4)) }
	ramp := func(t int) float64 { return 1 / (1 + float64(t)) }
	nearly := func(t int) float64 { return 1 - float64(t)/64 }
	falls := func(t int) float64 { return 1 / float64(t) }
	return map[string]optim.Rule{
		`StepLR(o, 3, 0.5)`:                            optim.StepLR(3, 0.5),
		`StepLR(o, 4)`:                                 optim.StepLR(4),
		`StepLR(o, 1, 0.97)`:                           optim.StepLR(1, 0.97),
		`MultiStepLR(o, [2, 5])`:                       optim.MultiStepLR([]int{2, 5}),
		`MultiStepLR(o, [5, 2, 5, 9], 0.3)`:            optim.MultiStepLR([]int{5, 2, 5, 9}, 0.3),
		`ConstantLR(o)`:                                optim.ConstantLR(1. / 3),
		`ConstantLR(o, 0.3, 4)`:                        optim.ConstantLR(0.3, 4),
		`ConstantLR(o, 1.0, 3)`:                        optim.ConstantLR(1, 3),
		`LinearLR(o)`:                                  optim.LinearLR(1./3, 1),
		`LinearLR(o, 0.25, 1.0, 4)`:                    optim.LinearLR(0.25, 1, 4),
		`LinearLR(o, 1.0, 0.0, 10)`:                    optim.LinearLR(1, 0, 10),
		`LinearLR(o, 0.001, 1.0, 100)`:                 optim.LinearLR(0.001, 1, 100),
		`LinearLR(o, 0.7, 0.1, 7)`:                     optim.LinearLR(0.7, 0.1, 7),
		`ExponentialLR(o, 0.9)`:                        optim.ExponentialLR(0.9),
		`ExponentialLR(o, 1.01)`:                       optim.ExponentialLR(1.01),
		`PolynomialLR(o)`:                              optim.PolynomialLR(5),
		`PolynomialLR(o, 10, 1.0)`:                     optim.PolynomialLR(10, 1),
		`PolynomialLR(o, 10, 2.0)`:                     optim.PolynomialLR(10, 2),
		`PolynomialLR(o, 50, 0.9)`:                     optim.PolynomialLR(50, 0.9),
		`PolynomialLR(o, 6, 0.0)`:                      optim.PolynomialLR(6, 0),
		`PolynomialLR(o, 100, 0.5)`:                    optim.PolynomialLR(100, 0.5),
		`PolynomialLR(o, 20, 3.0)`:                     optim.PolynomialLR(20, 3),
		`PolynomialLR(o, 20, 2.5)`:                     optim.PolynomialLR(20, 2.5),
		`CosineAnnealingLR(o, 5, 0.01)`:                optim.CosineAnnealingLR(5, 0.01),
		`CosineAnnealingLR(o, 1)`:                      optim.CosineAnnealingLR(1),
		`CosineAnnealingLR(o, 2, 0.001)`:               optim.CosineAnnealingLR(2, 0.001),
		`CosineAnnealingLR(o, 100)`:                    optim.CosineAnnealingLR(100),
		`CosineAnnealingLR(o, 7, 0.05)`:                optim.CosineAnnealingLR(7, 0.05),
		`CosineAnnealingLR(o, 1000, 1e-5)`:             optim.CosineAnnealingLR(1000, 1e-05),
		`CosineAnnealingWarmRestarts(o, 3, 2)`:         optim.CosineAnnealingWarmRestarts(3, 2),
		`CosineAnnealingWarmRestarts(o, 1)`:            optim.CosineAnnealingWarmRestarts(1, 1),
		`CosineAnnealingWarmRestarts(o, 10, 1, 0.003)`: optim.CosineAnnealingWarmRestarts(10, 1, 0.003),
		`CosineAnnealingWarmRestarts(o, 7, 3, 1e-4)`:   optim.CosineAnnealingWarmRestarts(7, 3, 0.0001),
		`LambdaLR(o, half)`:                            optim.LambdaLR(half),
		`LambdaLR(o, [half, ramp])`:                    optim.LambdaLR(half, ramp),
		`MultiplicativeLR(o, near)`:                    optim.MultiplicativeLR(nearly),
		`MultiplicativeLR(o, [near, falls])`:           optim.MultiplicativeLR(nearly, falls),
		`SequentialLR(o, [ConstantLR(o, 0.1, 20), ExponentialLR(o, 0.9)], [20])`:                                                                         optim.SequentialLR([]int{20}, optim.ConstantLR(0.1, 20), optim.ExponentialLR(0.9)),
		`SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), CosineAnnealingLR(o, 20)], [5])`:                                                                     optim.SequentialLR([]int{5}, optim.LinearLR(0.1, 1, 5), optim.CosineAnnealingLR(20, 0)),
		`SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), CosineAnnealingLR(o, 20, 0.001)], [3])`:                                                              optim.SequentialLR([]int{3}, optim.LinearLR(0.1, 1, 5), optim.CosineAnnealingLR(20, 0.001)),
		`SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), CosineAnnealingWarmRestarts(o, 4, 2)], [6])`:                                                         optim.SequentialLR([]int{6}, optim.LinearLR(0.1, 1, 5), optim.CosineAnnealingWarmRestarts(4, 2, 0)),
		`SequentialLR(o, [StepLR(o, 2, 0.5), LambdaLR(o, ramp), MultiStepLR(o, [2], 0.3)], [5, 9])`:                                                      optim.SequentialLR([]int{5, 9}, optim.StepLR(2, 0.5), optim.LambdaLR(ramp), optim.MultiStepLR([]int{2}, 0.3)),
		`SequentialLR(o, [StepLR(o, 2, 0.5), MultiplicativeLR(o, near), PolynomialLR(o, 5, 2.0)], [5, 9])`:                                               optim.SequentialLR([]int{5, 9}, optim.StepLR(2, 0.5), optim.MultiplicativeLR(nearly), optim.PolynomialLR(5, 2)),
		`SequentialLR(o, [ExponentialLR(o, 0.9), ConstantLR(o, 0.5, 3), LinearLR(o, 0.5, 1.0, 4)], [4, 8])`:                                              optim.SequentialLR([]int{4, 8}, optim.ExponentialLR(0.9), optim.ConstantLR(0.5, 3), optim.LinearLR(0.5, 1, 4)),
		`SequentialLR(o, [ExponentialLR(o, 0.9), ConstantLR(o, 0.5, 3), StepLR(o, 2, 0.5)], [4, 4])`:                                                     optim.SequentialLR([]int{4, 4}, optim.ExponentialLR(0.9), optim.ConstantLR(0.5, 3), optim.StepLR(2, 0.5)),
		`SequentialLR(o, [ExponentialLR(o, 0.9), MultiplicativeLR(o, falls)], [3])`:                                                                      optim.SequentialLR([]int{3}, optim.ExponentialLR(0.9), optim.MultiplicativeLR(falls)),
		`SequentialLR(o, [ConstantLR(o, 0.1, 2), SequentialLR(o, [ExponentialLR(o, 0.9), LinearLR(o, 0.5, 1.0, 4)], [3])], [2])`:                         optim.SequentialLR([]int{2}, optim.ConstantLR(0.1, 2), optim.SequentialLR([]int{3}, optim.ExponentialLR(0.9), optim.LinearLR(0.5, 1, 4))),
		`SequentialLR(o, [SequentialLR(o, [ExponentialLR(o, 0.9), LinearLR(o, 0.5, 1.0, 4)], [3]), ConstantLR(o, 0.1, 2)], [6])`:                         optim.SequentialLR([]int{6}, optim.SequentialLR([]int{3}, optim.ExponentialLR(0.9), optim.LinearLR(0.5, 1, 4)), optim.ConstantLR(0.1, 2)),
		`SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), ChainedScheduler([ExponentialLR(o, 0.9), StepLR(o, 2, 0.5)])], [3])`:                                 optim.SequentialLR([]int{3}, optim.LinearLR(0.1, 1, 5), optim.ChainedScheduler(optim.ExponentialLR(0.9), optim.StepLR(2, 0.5))),
		`ChainedScheduler([ConstantLR(o, 0.1, 20), ExponentialLR(o, 0.9)])`:                                                                              optim.ChainedScheduler(optim.ConstantLR(0.1, 20), optim.ExponentialLR(0.9)),
		`ChainedScheduler([LinearLR(o, 0.1, 1.0, 5), StepLR(o, 4, 0.5), MultiStepLR(o, [3, 7], 0.7)])`:                                                   optim.ChainedScheduler(optim.LinearLR(0.1, 1, 5), optim.StepLR(4, 0.5), optim.MultiStepLR([]int{3, 7}, 0.7)),
		`ChainedScheduler([ConstantLR(o, 0.5, 5), CosineAnnealingLR(o, 8, 0.01)])`:                                                                       optim.ChainedScheduler(optim.ConstantLR(0.5, 5), optim.CosineAnnealingLR(8, 0.01)),
		`ChainedScheduler([CosineAnnealingLR(o, 8, 0.01), ConstantLR(o, 0.5, 5)])`:                                                                       optim.ChainedScheduler(optim.CosineAnnealingLR(8, 0.01), optim.ConstantLR(0.5, 5)),
		`ChainedScheduler([ConstantLR(o, 0.5, 5), LambdaLR(o, ramp)])`:                                                                                   optim.ChainedScheduler(optim.ConstantLR(0.5, 5), optim.LambdaLR(ramp)),
		`ChainedScheduler([LinearLR(o, 0.1, 1.0, 5), SequentialLR(o, [ExponentialLR(o, 0.9), StepLR(o, 2, 0.5)], [3])])`:                                 optim.ChainedScheduler(optim.LinearLR(0.1, 1, 5), optim.SequentialLR([]int{3}, optim.ExponentialLR(0.9), optim.StepLR(2, 0.5))),
		`OneCycleLR(o, 1.0, total_steps=12)`:                                                                                                             optim.OneCycleLR([]float64{1}, 12),
		`OneCycleLR(o, 1.0, total_steps=100)`:                                                                                                            optim.OneCycleLR([]float64{1}, 100),
		`OneCycleLR(o, [1.0, 0.3], total_steps=40, three_phase=True)`:                                                                                    optim.OneCycleLR([]float64{1, 0.3}, 40, optim.OneCycleOpt{ThreePhase: true}),
		`OneCycleLR(o, 0.7, total_steps=30, anneal_strategy='linear')`:                                                                                   optim.OneCycleLR([]float64{0.7}, 30, optim.OneCycleOpt{AnnealStrategy: optim.AnnealLinear}),
		`OneCycleLR(o, 0.7, total_steps=30, anneal_strategy='linear', three_phase=True, pct_start=0.4)`:                                                  optim.OneCycleLR([]float64{0.7}, 30, optim.OneCycleOpt{AnnealStrategy: optim.AnnealLinear, ThreePhase: true, PctStart: 0.4}),
		`OneCycleLR(o, 2.0, epochs=4, steps_per_epoch=5, pct_start=0.25, div_factor=10.0, final_div_factor=100.0, base_momentum=0.7, max_momentum=0.99)`: optim.OneCycleLR([]float64{2}, 20, optim.OneCycleOpt{PctStart: 0.25, DivFactor: 10, FinalDivFactor: 100, BaseMomentum: 0.7, MaxMomentum: 0.99}),
		`OneCycleLR(o, 2.0, total_steps=20, pct_start=1.0)`:                                                                                              optim.OneCycleLR([]float64{2}, 20, optim.OneCycleOpt{PctStart: 1}),
		`OneCycleLR(o, 2.0, total_steps=20, pct_start=1e-300)`:                                                                                           optim.OneCycleLR([]float64{2}, 20, optim.OneCycleOpt{PctStart: 1e-300}),
		`OneCycleLR(o, 1.0, total_steps=1)`:                                                                                                              optim.OneCycleLR([]float64{1}, 1),
		`OneCycleLR(o, 1.0, total_steps=2)`:                                                                                                              optim.OneCycleLR([]float64{1}, 2),
		`OneCycleLR(o, 1.0, total_steps=3)`:                                                                                                              optim.OneCycleLR([]float64{1}, 3),
		`OneCycleLR(o, 1.0, total_steps=10)`:                                                                                                             optim.OneCycleLR([]float64{1}, 10),
		`OneCycleLR(o, 1.0, total_steps=10, three_phase=True, pct_start=0.5)`:                                                                            optim.OneCycleLR([]float64{1}, 10, optim.OneCycleOpt{ThreePhase: true, PctStart: 0.5}),
		`OneCycleLR(o, 1.0, total_steps=10, three_phase=True, pct_start=0.8)`:                                                                            optim.OneCycleLR([]float64{1}, 10, optim.OneCycleOpt{ThreePhase: true, PctStart: 0.8}),
		`OneCycleLR(o, 1.0, total_steps=50, cycle_momentum=False)`:                                                                                       optim.OneCycleLR([]float64{1}, 50, optim.OneCycleOpt{NoMomentum: true}),
		`CyclicLR(o, 0.01, 0.1, step_size_up=5)`:                                                                                                         optim.CyclicLR([]float64{0.01}, []float64{0.1}, optim.CyclicOpt{StepSizeUp: 5}),
		`CyclicLR(o, [0.01, 0.001], [0.1, 0.05], step_size_up=5, step_size_down=3, mode='triangular2')`:                                                  optim.CyclicLR([]float64{0.01, 0.001}, []float64{0.1, 0.05}, optim.CyclicOpt{StepSizeUp: 5, StepSizeDown: 3, Mode: optim.CyclicTriangular2}),
		`CyclicLR(o, 0.01, 0.1, step_size_up=10, mode='exp_range', gamma=0.99)`:                                                                          optim.CyclicLR([]float64{0.01}, []float64{0.1}, optim.CyclicOpt{StepSizeUp: 10, Mode: optim.CyclicExpRange, Gamma: 0.99}),
		`CyclicLR(o, 0.01, 0.1, step_size_up=7, step_size_down=2, mode='exp_range', gamma=0.5, base_momentum=0.6, max_momentum=0.95)`:                    optim.CyclicLR([]float64{0.01}, []float64{0.1}, optim.CyclicOpt{StepSizeUp: 7, StepSizeDown: 2, Mode: optim.CyclicExpRange, Gamma: 0.5, BaseMomentum: 0.6, MaxMomentum: 0.95}),
		`CyclicLR(o, 0.01, 0.1)`: optim.CyclicLR(
			[]float64{0.01}, []float64{0.1}),
		`CyclicLR(o, 0.01, 0.1, step_size_up=1, step_size_down=1)`: optim.CyclicLR([]float64{0.01},
			[]float64{0.1}, optim.CyclicOpt{StepSizeUp: 1, StepSizeDown: 1}),
		`CyclicLR(o, 0.01, 0.1, step_size_up=5, cycle_momentum=False)`: optim.CyclicLR([]float64{0.01},
			[]float64{0.1}, optim.CyclicOpt{StepSizeUp: 5, NoMomentum: true}),
		`SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), CyclicLR(o, 0.01, 0.1, step_size_up=5)], [5])`: optim.SequentialLR([]int{5},
			optim.LinearLR(0.1, 1, 5), optim.CyclicLR([]float64{0.01}, []float64{0.1}, optim.CyclicOpt{StepSizeUp: 5})),
		`SequentialLR(o, [LinearLR(o, 0.1, 1.0, 5), OneCycleLR(o, 1.0, total_steps=20)], [5])`: optim.SequentialLR([]int{5},
			optim.LinearLR(0.1, 1, 5), optim.OneCycleLR([]float64{1}, 20)),
		`SequentialLR(o, [OneCycleLR(o, 1.0, total_steps=8), ConstantLR(o, 0.5, 3)], [8])`: optim.SequentialLR([]int{8},
			optim.OneCycleLR([]float64{1}, 8), optim.ConstantLR(0.5, 3)),
		`SequentialLR(o, [CyclicLR(o, 0.01, 0.1, step_size_up=3), ExponentialLR(o, 0.9)], [7])`: optim.SequentialLR([]int{7},
			optim.CyclicLR([]float64{0.01}, []float64{0.1}, optim.CyclicOpt{StepSizeUp: 3}), optim.ExponentialLR(0.9)),
		`ChainedScheduler([OneCycleLR(o, 1.0, total_steps=12), StepLR(o, 4, 0.5)])`: optim.ChainedScheduler(
			optim.OneCycleLR([]float64{1}, 12), optim.StepLR(4, 0.5)),
		`ChainedScheduler([LinearLR(o, 0.1, 1.0, 5), CyclicLR(o, 0.01, 0.1, step_size_up=3)])`: optim.ChainedScheduler(
			optim.LinearLR(0.1, 1, 5), optim.CyclicLR([]float64{0.01}, []float64{0.1}, optim.CyclicOpt{StepSizeUp: 3})),
	}
}

// unlike are the recorded schedulers whose rates differ here: a sequence within another or within a chain.
var unlike = map[string]string{
	"SequentialLR(o, [SequentialLR(o, [ExponentialLR(o, 0.9), LinearLR(o, 0.5, 1.0, 4)], [3]), " +
		"ConstantLR(o, 0.1, 2)], [6])": "there the inner one is a step ahead",
	"ChainedScheduler([LinearLR(o, 0.1, 1.0, 5), " +
		"SequentialLR(o, [ExponentialLR(o, 0.9), StepLR(o, 2, 0.5)], [3])])": "there it resets the first rate of the chain",
}

// near reports whether two numbers are equal to 1e-15. Nearly all are equal to the bit; the C library's cos and pow do not round every
// value to nearest.
func near(got, want float64) bool { return got == want || math.Abs(got-want) <= 1e-15*math.Abs(want) }

func TestTorchSchedules(t *testing.T) {
	recorded := openRecordedSchedules(t)
	if recorded.Torch != "2.11.0+cu130" || len(recorded.Runs) < 150 {
		t.Fatalf("%d runs of PyTorch %s", len(recorded.Runs), recorded.Torch)
	}
	rules := torchRules()
	exact, rounded := 0, 0
	for _, run := range recorded.Runs {
		if unlike[run.Made] != "" {
			continue
		}
		o := newMoving(0.1, 0.02)
		o.momenta[0], o.momenta[1] = 0.9, 0.9
		s := schedule(t, o, rules[run.Made])
		for i, want := range run.Rates {
			if i > 0 {
				if slices.Contains(run.Hand.At, i) {
					o.SetLR(0, o.LR(0)*run.Hand.By)
				}
				if err := s.Step(); err != nil {
					t.Fatalf("%s: %v", run.Made, err)
				}
			}
			got := o.lr
			if run.Momenta != nil {
				got, want = slices.Concat(got, o.momenta), slices.Concat(want, run.Momenta[i])
			}
			for k := range want {
				if !near(got[k], want[k]) {
					t.Fatalf("%s with %s: rates and momenta %v after %d steps, want %v", run.Made, run.Optimizer, got, i, want)
				}
				if exact++; got[k] != want[k] {
					rounded++
				}
			}
		}
		// A sequence or a chain as a later part fails in PyTorch, but not here.
		if fails := run.Error != "" && !strings.HasPrefix(run.Error, "NotImplementedError"); fails {
			what, text, _ := strings.Cut(run.Error, ": ")
			if err := s.Step(); err == nil || what == "ValueError" && !strings.Contains(err.Error(), text) {
				t.Errorf("%s: got %v, want %s", run.Made, err, run.Error)
			}
		}
	}
	if rounded > exact/1000 {
		t.Errorf("%d of %d numbers are not equal to the bit", rounded, exact)
	}
}

func TestTorchPlateau(t *testing.T) {
	type made struct {
		patience int
		opt      optim.PlateauOpt
	}
	schedulers := map[string]made{
		"ReduceLROnPlateau(o)":                         {10, optim.PlateauOpt{}},
		"ReduceLROnPlateau(o, patience=2)":             {2, optim.PlateauOpt{}},
		"ReduceLROnPlateau(o, patience=0, factor=0.5)": {0, optim.PlateauOpt{Factor: 0.5}},
		"ReduceLROnPlateau(o, mode='max', patience=1)": {1,
			optim.PlateauOpt{Mode: optim.PlateauMax}},
		"ReduceLROnPlateau(o, patience=1, threshold_mode='abs', threshold=0.01, cooldown=2)": {1,
			optim.PlateauOpt{ThresholdMode: optim.ThresholdAbs, Threshold: 0.01, Cooldown: 2}},
		"ReduceLROnPlateau(o, mode='max', threshold_mode='abs', patience=2, cooldown=1, factor=0.3)": {2,
			optim.PlateauOpt{Mode: optim.PlateauMax, ThresholdMode: optim.ThresholdAbs, Cooldown: 1, Factor: 0.3}},
		"ReduceLROnPlateau(o, patience=1, min_lr=0.005)":          {1, optim.PlateauOpt{MinLR: []float64{0.005}}},
		"ReduceLROnPlateau(o, patience=1, min_lr=[0.01, 0.0001])": {1, optim.PlateauOpt{MinLR: []float64{0.01, 0.0001}}},
		"ReduceLROnPlateau(o, patience=0, eps=0.01)":              {0, optim.PlateauOpt{Eps: 0.01}},
	}
	number := func(text string) float64 {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, run := range openRecordedSchedules(t).Plateau {
		m, ok := schedulers[run.Made]
		if !ok {
			t.Fatalf("%s is recorded and not compared", run.Made)
		}
		o := newMoving(0.1, 0.02)
		s := plateau(t, o, m.patience, m.opt)
		for i, metric := range run.Metrics {
			if err := s.Step(number(metric)); err != nil {
				t.Fatal(err)
			}
			st, err := s.State()
			if err != nil {
				t.Fatal(err)
			}
			if want := run.Rates[i+1]; !slices.Equal(o.lr, want) || st.Bad != run.Bad[i] || number(st.Best) != number(run.Best[i]) {
				t.Fatalf("%s: rates %v and state %v after step %d of %v, want %v, %d bad ones and %s", run.Made, o.lr, st, i+1,
					run.Metrics, want, run.Bad[i], run.Best[i])
			}
		}
	}
}
