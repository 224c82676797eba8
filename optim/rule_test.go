package optim_test

import (
	"math"
	"testing"

	"tenon.dev/optim"
)

// definition is a rule, a number of steps, and a closed formula of the rate after t steps.
type definition struct {
	rule  optim.Rule
	steps int
	want  func(t int, lr float64) float64
}

func compare(t *testing.T, defined map[string]definition) {
	t.Helper()
	for name, c := range defined {
		lrs := []float64{0.1, 0.02, 3}
		for i, got := range follow(t, c.rule, c.steps, lrs...) {
			for g, lr := range lrs {
				// A recursion loses a few bits, most where a wave ends near 0.
				if want := c.want(i, lr); math.Abs(got[g]-want) > 1e-12*math.Abs(want)+1e-13*lr {
					t.Errorf("%s: %v after %d steps from %v, want %v", name, got[g], i, lr, want)
				}
			}
		}
	}
}

// half returns half a cosine wave from 1 to 0.
func half(part float64) float64 { return (1 + math.Cos(math.Pi*part)) / 2 }

func inverse(t int) float64 { return 1 / (1 + float64(t)) }

func linear(start, end float64, total int) func(t int, lr float64) float64 {
	return func(t int, lr float64) float64 { return lr * (start + (end-start)*min(1, float64(t)/float64(total))) }
}

// triangle returns the height of a cycle of up and down steps at step t.
func triangle(t, up, down int) float64 {
	if t %= up + down; t <= up {
		return float64(t) / float64(up)
	}
	return float64(up+down-t) / float64(down)
}

func TestRules(t *testing.T) {
	compare(t, map[string]definition{
		"step":     {optim.StepLR(7, 0.5), 100, func(t int, lr float64) float64 { return lr * math.Pow(0.5, math.Floor(float64(t)/7)) }},
		"step 1":   {optim.StepLR(1, 0.9), 20, func(t int, lr float64) float64 { return lr * math.Pow(0.9, float64(t)) }},
		"exponent": {optim.ExponentialLR(1.01), 100, func(t int, lr float64) float64 { return lr * math.Pow(1.01, float64(t)) }},
		"milestones": {optim.MultiStepLR([]int{30, 3, 30, 12}, 0.3), 50, func(t int, lr float64) float64 {
			for _, m := range []int{3, 12, 30, 30} {
				if t >= m {
					lr *= 0.3
				}
			}
			return lr
		}},
		"milestone 0": {optim.MultiStepLR([]int{0, 2}, 0.5), 3, func(t int, lr float64) float64 {
			return []float64{lr / 2, lr / 2, lr / 4, lr / 4}[t]
		}},
		"no milestone": {optim.MultiStepLR(nil, 0.5), 3, func(t int, lr float64) float64 { return lr }},
		"constant": {optim.ConstantLR(0.3, 4), 12, func(t int, lr float64) float64 {
			if t < 4 {
				return lr * 0.3
			}
			return lr
		}},
		"rise": {optim.LinearLR(0.001, 1, 100), 150, linear(0.001, 1, 100)},
		"fall": {optim.LinearLR(1, 0, 13), 20, linear(1, 0, 13)},
		"polynomial": {optim.PolynomialLR(30, 0.9), 40, func(t int, lr float64) float64 {
			return lr * math.Pow(1-min(1, float64(t)/30), 0.9)
		}},
		"square":  {optim.PolynomialLR(30, 2), 40, func(t int, lr float64) float64 { return lr * math.Pow(1-min(1, float64(t)/30), 2) }},
		"power 0": {optim.PolynomialLR(3, 0), 6, func(t int, lr float64) float64 { return lr }},
		"cosine": {optim.CosineAnnealingLR(17, 0.001), 170, func(t int, lr float64) float64 {
			return 0.001 + (lr-0.001)*half(float64(t)/17)
		}},
		"cosine 1": {optim.CosineAnnealingLR(1, 0), 9, func(t int, lr float64) float64 { return lr * float64((t+1)%2) }},
		"cosine 2": {optim.CosineAnnealingLR(2, 0), 9, func(t int, lr float64) float64 { return lr * []float64{1, 0.5, 0, 0.5}[t%4] }},
		"restarts": {optim.CosineAnnealingWarmRestarts(4, 3, 0.001), 200, func(t int, lr float64) float64 {
			n := 4
			for ; t >= n; n *= 3 {
				t -= n
			}
			return 0.001 + (lr-0.001)*half(float64(t)/float64(n))
		}},
		"one restart": {optim.CosineAnnealingWarmRestarts(3, math.MaxInt, 0), 20, func(t int, lr float64) float64 {
			return lr * []float64{1, 0.75, 0.25, 1}[min(t, 3)]
		}},
		"equal restarts": {optim.CosineAnnealingWarmRestarts(4, 1, 0), 50, func(t int, lr float64) float64 {
			return lr * half(float64(t%4)/4)
		}},
		"lambda":         {optim.LambdaLR(inverse), 30, func(t int, lr float64) float64 { return lr * inverse(t) }},
		"multiplicative": {optim.MultiplicativeLR(inverse), 10, func(t int, lr float64) float64 { return lr / math.Gamma(float64(t+2)) }},
	})
}

func TestCycles(t *testing.T) {
	compare(t, map[string]definition{
		"one cycle": {optim.OneCycleLR([]float64{2}, 41, optim.OneCycleOpt{PctStart: 11. / 41, AnnealStrategy: optim.AnnealLinear,
			DivFactor: 10, FinalDivFactor: 100}), 40, func(t int, _ float64) float64 {
			if t <= 10 {
				return 0.2 + 1.8*float64(t)/10
			}
			return 2 - (2-0.002)*float64(t-10)/30
		}},
		"one cosine cycle": {optim.OneCycleLR([]float64{2}, 41, optim.OneCycleOpt{PctStart: 11. / 41}), 40, func(t int, _ float64) float64 {
			if t <= 10 {
				return 2 - (2-2./25)*half(float64(t)/10)
			}
			return 2./25/1e4 + (2-2./25/1e4)*half(float64(t-10)/30)
		}},
		"three phases": {optim.OneCycleLR([]float64{2}, 44, optim.OneCycleOpt{PctStart: 11. / 44, AnnealStrategy: optim.AnnealLinear,
			ThreePhase: true, DivFactor: 10, FinalDivFactor: 100}), 43, func(t int, _ float64) float64 {
			switch {
			case t <= 10:
				return 0.2 + 1.8*float64(t)/10
			case t <= 20:
				return 2 - 1.8*float64(t-10)/10
			}
			return 0.2 - (0.2-0.002)*float64(t-20)/23
		}},
		"triangular": {optim.CyclicLR([]float64{0.01}, []float64{0.5}, optim.CyclicOpt{StepSizeUp: 6, StepSizeDown: 3}), 50,
			func(t int, _ float64) float64 { return 0.01 + 0.49*triangle(t, 6, 3) }},
		"triangular2": {optim.CyclicLR([]float64{0.01}, []float64{0.5}, optim.CyclicOpt{StepSizeUp: 6, Mode: optim.CyclicTriangular2}), 50,
			func(t int, _ float64) float64 {
				return 0.01 + 0.49*triangle(t, 6, 6)*math.Pow(0.5, math.Floor(float64(t)/12))
			}},
		"exp_range": {optim.CyclicLR([]float64{0.01}, []float64{0.5}, optim.CyclicOpt{StepSizeUp: 6, StepSizeDown: 2,
			Mode: optim.CyclicExpRange, Gamma: 0.97}), 50, func(t int, _ float64) float64 {
			return 0.01 + 0.49*triangle(t, 6, 2)*math.Pow(0.97, float64(t))
		}},
		"slow cycle": {optim.CyclicLR([]float64{0}, []float64{1}), 4100, func(t int, _ float64) float64 { return triangle(t, 2000, 2000) }},
		"scaled cycle": {optim.CyclicLR([]float64{0}, []float64{1}, optim.CyclicOpt{StepSizeUp: 2, Scale: func(cycle, step int) float64 {
			return float64(100*cycle + step)
		}}), 20, func(t int, _ float64) float64 {
			return triangle(t, 2, 2) * float64(100*(t/4+1)+t)
		}},
	})
}

func TestRulesOfRules(t *testing.T) {
	compare(t, map[string]definition{
		"warm-up": {optim.SequentialLR([]int{5}, optim.LinearLR(0.1, 1, 5), optim.CosineAnnealingLR(20, 0)), 25,
			func(t int, lr float64) float64 {
				if t < 5 {
					return linear(0.1, 1, 5)(t, lr)
				}
				return lr * half(float64(t-5)/20)
			}},
		"three in turn": {optim.SequentialLR([]int{3, 7}, optim.ConstantLR(0.1, 99), optim.StepLR(2, 0.5), optim.LambdaLR(inverse)), 20,
			func(t int, lr float64) float64 {
				switch {
				case t < 3:
					return lr * 0.1
				case t < 7:
					return lr * math.Pow(0.5, float64((t-3)/2))
				}
				return lr * inverse(t-7)
			}},
		"one after itself": {optim.SequentialLR([]int{4, 4}, optim.ExponentialLR(0.9), optim.ConstantLR(0.5, 3), optim.StepLR(2, 0.5)), 9,
			func(t int, lr float64) float64 {
				if t < 4 {
					return lr * math.Pow(0.9, float64(t))
				}
				return lr * math.Pow(0.5, float64((t-4)/2))
			}},
		"a sequence in a sequence": {optim.SequentialLR([]int{2}, optim.ConstantLR(0.1, 9),
			optim.SequentialLR([]int{3}, optim.ExponentialLR(0.9), optim.LinearLR(0.5, 1, 4))), 12, func(t int, lr float64) float64 {
			switch {
			case t < 2:
				return lr * 0.1
			case t < 5:
				return lr * math.Pow(0.9, float64(t-2))
			}
			return linear(0.5, 1, 4)(t-5, lr)
		}},
		"a chain in a sequence": {optim.SequentialLR([]int{2}, optim.ConstantLR(0.1, 9), optim.ChainedScheduler(optim.ExponentialLR(0.9),
			optim.StepLR(2, 0.5))), 12, func(t int, lr float64) float64 {
			if t < 2 {
				return lr * 0.1
			}
			return lr * math.Pow(0.9, float64(t-2)) * math.Pow(0.5, float64((t-2)/2))
		}},
		"chain": {optim.ChainedScheduler(optim.ConstantLR(0.1, 20), optim.ExponentialLR(0.9), optim.MultiStepLR([]int{3}, 0.5)), 40,
			func(t int, lr float64) float64 {
				if t < 20 {
					lr *= 0.1
				}
				if t >= 3 {
					lr *= 0.5
				}
				return lr * math.Pow(0.9, float64(t))
			}},
	})
}
