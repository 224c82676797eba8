package optim

import (
	"fmt"
	"math"
	"slices"

	"tenon.dev"
)

// AnnealStrategy is the shape of the curve between two rates.
type AnnealStrategy uint8

// The anneal strategies: half a cosine wave, or a straight line.
const (
	AnnealCos AnnealStrategy = iota
	AnnealLinear
)

// OneCycleOpt are the options of OneCycleLR. The zero value is PyTorch's default.
type OneCycleOpt struct {
	// PctStart is the fraction of the steps in which the rate rises; the default is 0.3.
	PctStart tenon.Scalar
	// AnnealStrategy is AnnealCos (the zero value) or AnnealLinear.
	AnnealStrategy AnnealStrategy
	// ThreePhase lets the rate fall for as many steps as it rose, and then further to the last rate. Otherwise it falls to the last rate in
	// one phase.
	ThreePhase bool
	// DivFactor is the largest rate divided by the first; the default is 25. FinalDivFactor is the first divided by the last; the default
	// is 1e4.
	DivFactor, FinalDivFactor tenon.Scalar
	// NoMomentum leaves the momentum alone, which otherwise goes from MaxMomentum to BaseMomentum and back, opposite to the rate. It is
	// required for an optimizer without the methods of [Momentum].
	NoMomentum bool
	// BaseMomentum is the lowest momentum, and MaxMomentum the largest; the defaults are 0.85 and 0.95.
	BaseMomentum, MaxMomentum tenon.Scalar
}

// OneCycleLR takes the rate from maxLR / DivFactor up to maxLR and down to maxLR / DivFactor / FinalDivFactor, over all the steps of
// training (L. Smith, N. Topin, "Super-Convergence", 2017). maxLR has one rate for all groups, or one for each; the optimizer's own rates
// do not count. It is meant for one step per batch, and a step after the last is an error.
func OneCycleLR(maxLR []float64, totalSteps int, opts ...OneCycleOpt) Rule {
	opt, bad := oneOf(opts)
	maxLR = slices.Clone(maxLR)
	pct, div, final := num(or(opt.PctStart, 0.3)), num(or(opt.DivFactor, 25)), num(or(opt.FinalDivFactor, 1e4))
	base, most := num(or(opt.BaseMomentum, 0.85)), num(or(opt.MaxMomentum, 0.95))
	steps := float64(totalSteps)
	// The first phase ends at step up. Each phase ends at one of a pair of rates or momenta; turn is its index, 0 or 1.
	up := float64(pct*steps) - 1
	ends, turn := []float64{0, up, steps - 1}, [][2]int{{0, 0}, {1, 1}, {2, 0}}
	if opt.ThreePhase {
		ends, turn = []float64{0, up, float64(2*pct*steps) - 2, steps - 1}, [][2]int{{0, 0}, {1, 1}, {0, 0}, {2, 0}}
	}
	anneal := func(step int, at func(end int) float64) float64 {
		t, i := float64(step), 1
		for i < len(ends)-1 && t > ends[i] {
			i++
		}
		part, a, b := (t-ends[i-1])/(ends[i]-ends[i-1]), at(i-1), at(i)
		if opt.AnnealStrategy == AnnealLinear {
			return float64((b-a)*part) + a
		}
		return b + float64((a-b)/2*(cos(math.Pi*part)+1))
	}
	r := Rule{name: "OneCycleLR", total: totalSteps, lists: []list{{"maxLR", len(maxLR)}},
		bad: unmet(need(bad == "", "%s", bad), length("totalSteps", totalSteps),
			need(0 <= pct && pct <= 1, "Expected float between 0 and 1 PctStart, but got %v", pct),
			need(up != 0, "PctStart is %v, which is one step of %d and leaves the rise no length; give another", pct, totalSteps),
			need(opt.AnnealStrategy <= AnnealLinear, "AnnealStrategy must be AnnealCos or AnnealLinear, instead got %d",
				opt.AnnealStrategy),
			positive("DivFactor", div), positive("FinalDivFactor", final), factor("BaseMomentum", base), factor("MaxMomentum", most),
			rates("maxLR", maxLR)),
		start: func(_ []float64, groups int) []float64 {
			initial := make([]float64, groups)
			for g := range initial {
				initial[g] = of(maxLR, g) / div
			}
			return initial
		},
		rate: func(p place) float64 {
			top := of(maxLR, p.group)
			corner := [3]float64{top / div, top, top / div / final}
			return anneal(p.step, func(end int) float64 { return corner[turn[end][0]] })
		},
	}
	if !opt.NoMomentum {
		r.momentum = func(p place) float64 {
			return anneal(p.step, func(end int) float64 { return [2]float64{most, base}[turn[end][1]] })
		}
	}
	return r
}

// CyclicMode says how high the cycles of CyclicLR rise.
type CyclicMode uint8

// The cyclic modes: each cycle rises to the largest rate, or half as far as the one before, or by Gamma^t of the way at step t.
const (
	CyclicTriangular CyclicMode = iota
	CyclicTriangular2
	CyclicExpRange
)

// CyclicOpt are the options of CyclicLR. The zero value is PyTorch's default.
type CyclicOpt struct {
	// StepSizeUp is the number of steps in which the rate rises; 0 is 2000. StepSizeDown is the number in which it falls; 0 is StepSizeUp.
	// Both are at least 1, since a cycle cannot rise or fall in zero steps.
	StepSizeUp, StepSizeDown int
	// Mode is CyclicTriangular (the zero value), where each cycle reaches maxLR, CyclicTriangular2, where each rises half as far as the one
	// before, or CyclicExpRange, where the rise is multiplied by Gamma^t at step t.
	Mode CyclicMode
	// Gamma is the factor of CyclicExpRange; the default is 1.
	Gamma tenon.Scalar
	// Scale, if not nil, is the factor of the rise in place of Mode's. Cycles count from 1, steps from 0.
	Scale func(cycle, step int) float64
	// NoMomentum leaves the momentum alone, which otherwise goes from MaxMomentum to BaseMomentum and back, opposite to the rate. It is
	// required for an optimizer without the methods of [Momentum].
	NoMomentum bool
	// BaseMomentum is the lowest momentum, and MaxMomentum the largest; the defaults are 0.8 and 0.9.
	BaseMomentum, MaxMomentum tenon.Scalar
}

// CyclicLR takes the rate from baseLR up to maxLR and back in straight lines, again and again (L. Smith, WACV 2017). baseLR and maxLR
// have one rate for all groups, or one for each; the optimizer's own rates do not count. It is meant for one step per batch.
func CyclicLR(baseLR, maxLR []float64, opts ...CyclicOpt) Rule {
	opt, bad := oneOf(opts)
	baseLR, maxLR = slices.Clone(baseLR), slices.Clone(maxLR)
	up := opt.StepSizeUp
	if up == 0 {
		up = 2000
	}
	down := opt.StepSizeDown
	if down == 0 {
		down = up
	}
	gamma, least, most := num(or(opt.Gamma, 1)), num(or(opt.BaseMomentum, 0.8)), num(or(opt.MaxMomentum, 0.9))
	scale := opt.Scale
	switch {
	case scale != nil:
	case opt.Mode == CyclicTriangular:
		scale = func(int, int) float64 { return 1 }
	case opt.Mode == CyclicTriangular2:
		scale = func(cycle, _ int) float64 { return math.Ldexp(1, 1-cycle) }
	case opt.Mode == CyclicExpRange:
		scale = func(_, step int) float64 { return pow(gamma, float64(step)) }
	default:
		bad = fmt.Sprintf("mode %d is invalid and Scale is nil; give CyclicTriangular, CyclicTriangular2 or CyclicExpRange", opt.Mode)
	}
	// height returns the fraction of the rise at a step.
	height := func(step int) (float64, float64) {
		total := float64(up) + float64(down)
		ratio := float64(up) / total
		t := 1 + float64(step)/total
		cycle := math.Floor(t)
		x := t - cycle
		if x <= ratio {
			return x / ratio, scale(int(cycle), step)
		}
		return (x - 1) / (ratio - 1), scale(int(cycle), step)
	}
	r := Rule{name: "CyclicLR", lists: []list{{"baseLR", len(baseLR)}, {"maxLR", len(maxLR)}},
		bad: unmet(need(bad == "", "%s", bad), length("StepSizeUp", up), length("StepSizeDown", down), factor("Gamma", gamma),
			factor("BaseMomentum", least), factor("MaxMomentum", most), rates("baseLR", baseLR), rates("maxLR", maxLR)),
		start: func(initial []float64, groups int) []float64 {
			if initial != nil {
				return initial
			}
			for g := range groups {
				initial = append(initial, of(baseLR, g))
			}
			return initial
		},
		rate: func(p place) float64 {
			if p.first {
				return p.initial // baseLR, except in a chain after other rules, as in PyTorch
			}
			h, s := height(p.step)
			low := of(baseLR, p.group)
			return low + float64((of(maxLR, p.group)-low)*h*s)
		},
	}
	if !opt.NoMomentum {
		r.momentum = func(p place) float64 {
			h, s := height(p.step)
			return most - float64((most-least)*h*s)
		}
	}
	return r
}

// positive demands a positive number, to divide rates by.
func positive(name string, v float64) demand {
	return need(v > 0, "%s is %v; give a positive number", name, v)
}

// rates demands learning rates.
func rates(name string, vs []float64) demand {
	for i, v := range vs {
		if !finite(v) || v < 0 {
			return need(false, "%s[%d] is %v; give a finite number that is not negative", name, i, v)
		}
	}
	return need(len(vs) > 0, "%s is empty; give a learning rate for all groups, or one for each", name)
}
