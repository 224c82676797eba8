package optim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// A Rule says how learning rates change from step to step. Functions such as [StepLR] return one, [SequentialLR] and [ChainedScheduler]
// combine several, and [NewSchedule] applies it to an optimizer and refuses one with bad arguments. Names and formulas are those of
// torch.optim.lr_scheduler. As there, most formulas compute a rate from the current one, so that a change by hand between two steps
// lasts. In their comments lr is the current rate, t the number of steps, 0 when the schedule is made, and initial the rate before the
// schedule.
type Rule struct {
	name string
	// bad says what is wrong with the arguments, if anything is.
	bad string
	// rate returns the learning rate at a place. momentum returns the momentum there; it is nil if the rule does not change the momentum.
	rate, momentum func(p place) float64
	// start, if not nil, replaces the initial rates, which are nil before the first rule.
	start func(initial []float64, groups int) []float64
	// total is the last step, or 0.
	total int
	// lists are the arguments that may have one value for each group.
	lists []list
	// onward is set if the rule continues from the current rate when a sequence reaches it; other rules start from the initial rate.
	onward bool
	// parts are the rules of a sequence if milestones is not nil, else those of a chain.
	parts      []Rule
	milestones []int
}

// String returns the names of the rule and its parts.
func (r Rule) String() string {
	if r.parts == nil {
		return cmp.Or(r.name, "no rule")
	}
	var names []string
	for _, p := range r.parts {
		names = append(names, p.String())
	}
	return fmt.Sprintf("%s(%s)", r.name, strings.Join(names, ", "))
}

// list is an argument with n values.
type list struct {
	name string
	n    int
}

// place is the step and group for which a rate is computed.
type place struct {
	step, group int
	// first is the step that makes the schedule.
	first bool
	// initial is the rate before the schedule, last the current rate.
	initial, last float64
}

// check refuses bad arguments.
func (r *Rule) check(groups int) error {
	if r.name == "" {
		return core.Refusal("Schedule", fault.Invalid, "the rule is a zero value; use one that a function such as StepLR returned")
	}
	if r.bad != "" {
		return core.Refusal(r.name, fault.Invalid, "%s", r.bad)
	}
	for _, l := range r.lists {
		if l.n != 1 && l.n != groups {
			return core.Refusal(r.name, fault.Invalid, "%s must have the same length as the optimizer's groups. It has %d values for %d "+
				"groups; give one for each, or one for all", l.name, l.n, groups)
		}
	}
	for i := range r.parts {
		if err := r.parts[i].check(groups); err != nil {
			return err
		}
	}
	return nil
}

// cycles reports whether the rule or a part of it changes the momentum.
func (r *Rule) cycles() bool {
	for i := range r.parts {
		if r.parts[i].cycles() {
			return true
		}
	}
	return r.momentum != nil
}

// of returns the value of a group, or the single value for all groups.
func of[T any](list []T, group int) T {
	if len(list) == 1 {
		return list[0]
	}
	return list[group]
}

// demand is a condition on an argument.
type demand struct {
	ok     bool
	format string
	args   []any
}

func need(ok bool, format string, args ...any) demand { return demand{ok, format, args} }

// unmet returns the sentence of the first demand that does not hold, or "".
func unmet(demands ...demand) string {
	for _, d := range demands {
		if !d.ok {
			return fmt.Sprintf(d.format, d.args...)
		}
	}
	return ""
}

func finite(vs ...float64) bool {
	for _, v := range vs {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

// factor demands a number by which rates can be multiplied.
func factor(name string, v float64) demand {
	return need(finite(v) && v >= 0, "%s is %v; give a finite number that is not negative", name, v)
}

// length demands a number of steps.
func length(name string, n int) demand {
	return need(n > 0, "Expected positive integer %s, but got %d; give the number of steps", name, n)
}

// LambdaLR sets the rate to a function of the number of steps: initial · f(t). It gets one function for all groups, or one for each.
func LambdaLR(f ...func(step int) float64) Rule {
	f = slices.Clone(f)
	return Rule{name: "LambdaLR", bad: functions(f), lists: []list{{"f", len(f)}},
		rate: func(p place) float64 { return p.initial * of(f, p.group)(p.step) }}
}

// MultiplicativeLR multiplies the rate by a function of the number of steps: lr · f(t), for t > 0. It gets one function for all groups,
// or one for each. When a sequence reaches it, it goes on from the current rate and multiplies that by f(0).
func MultiplicativeLR(f ...func(step int) float64) Rule {
	f = slices.Clone(f)
	return Rule{name: "MultiplicativeLR", bad: functions(f), lists: []list{{"f", len(f)}}, onward: true,
		rate: func(p place) float64 {
			if p.first {
				return p.last
			}
			return p.last * of(f, p.group)(p.step)
		}}
}

func functions(fs []func(int) float64) string {
	for i, f := range fs {
		if f == nil {
			return fmt.Sprintf("function %d is nil; give one", i)
		}
	}
	return ""
}

// optional returns the only value that was given for an argument, or otherwise the default, and demands that there is at most one.
func optional[T int | float64](name string, given []T, otherwise T) (v T, one demand) {
	v = otherwise
	if len(given) > 0 {
		v = given[0]
	}
	return v, need(len(given) <= 1, "%s has %d values; give one, or none for %v", name, len(given), otherwise)
}

// StepLR multiplies the rate by gamma every stepSize steps: lr · gamma if stepSize divides t > 0. Without gamma it is 0.1.
func StepLR(stepSize int, gamma ...float64) Rule {
	by, one := optional("gamma", gamma, 0.1)
	return Rule{name: "StepLR", bad: unmet(length("stepSize", stepSize), one, factor("gamma", by)),
		rate: func(p place) float64 {
			if p.step == 0 || p.step%stepSize != 0 {
				return p.last
			}
			return p.last * by
		}}
}

// MultiStepLR multiplies the rate by gamma at each milestone: lr · gamma^n, where t occurs n times in milestones. Without gamma it is 0.1.
func MultiStepLR(milestones []int, gamma ...float64) Rule {
	count := map[int]int{}
	by, one := optional("gamma", gamma, 0.1)
	bad := unmet(one, factor("gamma", by))
	for _, m := range milestones {
		count[m]++
		if m < 0 && bad == "" {
			bad = fmt.Sprintf("milestone %d is negative; give numbers of steps", m)
		}
	}
	return Rule{name: "MultiStepLR", bad: bad,
		rate: func(p place) float64 {
			if n := count[p.step]; n > 0 {
				return p.last * pow(by, float64(n))
			}
			return p.last
		}}
}

// ConstantLR multiplies the rate by factor for the first totalIters steps: lr · factor at t = 0, lr / factor at t = totalIters. Without
// totalIters it is 5. PyTorch's default of factor is 1/3.
func ConstantLR(factor float64, totalIters ...int) Rule {
	steps, one := optional("totalIters", totalIters, 5)
	return Rule{name: "ConstantLR", bad: unmet(one,
		need(0 <= factor && factor <= 1, "Constant multiplicative factor expected to be between 0 and 1. It is %v", factor),
		need(factor != 0, "the factor is 0, by which the rate cannot be divided at the end; give a small one"),
		length("totalIters", steps)),
		rate: func(p place) float64 {
			switch p.step {
			case 0:
				return p.last * factor
			case steps:
				return p.last * (1 / factor)
			}
			return p.last
		}}
}

// LinearLR multiplies the rate by a factor that goes from startFactor to endFactor in totalIters steps: lr · startFactor at t = 0, then
// lr · (1 + (endFactor - startFactor) / (totalIters·startFactor + (t - 1)(endFactor - startFactor))) to t = totalIters. Without
// totalIters it is 5. PyTorch's defaults of the factors are 1/3 and 1.
func LinearLR(startFactor, endFactor float64, totalIters ...int) Rule {
	steps, one := optional("totalIters", totalIters, 5)
	return Rule{name: "LinearLR", bad: unmet(one,
		need(0 < startFactor && startFactor <= 1,
			"Starting multiplicative factor expected to be greater than 0 and less or equal to 1. It is %v", startFactor),
		need(0 <= endFactor && endFactor <= 1, "Ending multiplicative factor expected to be between 0 and 1. It is %v", endFactor),
		length("totalIters", steps)),
		rate: func(p place) float64 {
			switch {
			case p.step == 0:
				return p.last * startFactor
			case p.step > steps:
				return p.last
			}
			rise := endFactor - startFactor
			return p.last * (1 + rise/(float64(float64(steps)*startFactor)+float64(float64(p.step-1)*rise)))
		}}
}

// ExponentialLR multiplies the rate by gamma in every step: lr · gamma.
func ExponentialLR(gamma float64) Rule {
	return Rule{name: "ExponentialLR", bad: unmet(factor("gamma", gamma)),
		rate: func(p place) float64 {
			if p.step == 0 {
				return p.last
			}
			return p.last * gamma
		}}
}

// PolynomialLR lowers the rate to 0 in totalIters steps as a polynomial: lr · ((1 - t/totalIters) / (1 - (t-1)/totalIters))^power, for 0
// < t ≤ totalIters. Without power it is 1. PyTorch's default of totalIters is 5.
func PolynomialLR(totalIters int, power ...float64) Rule {
	exponent, one := optional("power", power, 1)
	return Rule{name: "PolynomialLR", bad: unmet(length("totalIters", totalIters), one, factor("power", exponent)),
		rate: func(p place) float64 {
			if p.step == 0 || p.step > totalIters {
				return p.last
			}
			left := 1 - float64(p.step)/float64(totalIters)
			return p.last * pow(left/(1-float64(p.step-1)/float64(totalIters)), exponent)
		}}
}

// CosineAnnealingLR takes the rate from the initial one to etaMin in half a cosine wave of tMax steps, and then on along the wave (I.
// Loshchilov, F. Hutter, ICLR 2017, without restarts): etaMin + (lr - etaMin) · (1 + cos(πt/tMax)) / (1 + cos(π(t-1)/tMax)), and where the
// divisor is 0 lr + (initial - etaMin) · (1 - cos(π/tMax)) / 2. Without etaMin it is 0.
func CosineAnnealingLR(tMax int, etaMin ...float64) Rule {
	least, one := optional("etaMin", etaMin, 0)
	return Rule{name: "CosineAnnealingLR", bad: unmet(length("tMax", tMax), one, factor("etaMin", least)),
		rate: func(p place) float64 {
			wave := func(t int) float64 { return 1 + cos(math.Pi*float64(t)/float64(tMax)) }
			switch {
			case p.first:
				return p.last
			case p.step == 0:
				return least + (p.initial - least)
			case (p.step-1)%tMax == 0 && (p.step-1)/tMax%2 == 1:
				return p.last + float64((p.initial-least)*(1-cos(math.Pi/float64(tMax))))/2
			}
			return float64(wave(p.step)/wave(p.step-1)*(p.last-least)) + least
		}}
}

// CosineAnnealingWarmRestarts takes the rate from the initial one towards etaMin in half a cosine wave, again and again, first in t0
// steps and each time in tMult times as many (I. Loshchilov, F. Hutter, ICLR 2017): etaMin + (initial - etaMin) · (1 + cos(πc/n)) / 2,
// after c of a wave's n steps. Without etaMin it is 0. PyTorch's default of tMult is 1.
func CosineAnnealingWarmRestarts(t0, tMult int, etaMin ...float64) Rule {
	least, one := optional("etaMin", etaMin, 0)
	return Rule{name: "CosineAnnealingWarmRestarts", bad: unmet(one,
		need(t0 > 0, "Expected positive integer T_0, but got %d; give t0 a number of steps", t0),
		need(tMult > 0, "Expected integer T_mult >= 1, but got %d; give tMult a positive number", tMult),
		factor("etaMin", least)),
		rate: func(p place) float64 {
			c, n := p.step, t0
			if tMult == 1 {
				c %= n
			}
			for c >= n {
				c -= n
				n = int(min(float64(n)*float64(tMult), 1<<62)) // longer than any training
			}
			return least + float64((p.initial-least)*(1+cos(math.Pi*float64(c)/float64(n))))/2
		}}
}

// SequentialLR applies one rule after the other: the first until the number of steps reaches the first milestone, and so on. Each rule
// except [MultiplicativeLR] starts from the initial rate. It takes one milestone fewer than rules.
func SequentialLR(milestones []int, rules ...Rule) Rule {
	ms := append([]int{}, milestones...)
	bad := unmet(
		need(len(rules) > 0, "SequentialLR expects at least one scheduler, but got no scheduler; give it rules"),
		need(len(ms) == len(rules)-1, "Sequential Schedulers expects number of schedulers provided to be one more than the number of "+
			"milestone points, but got number of schedulers %d and the number of milestones to be equal to %d", len(rules), len(ms)))
	for i, m := range ms {
		if least := append([]int{1}, ms...)[i]; m < least && bad == "" {
			bad = fmt.Sprintf("milestone %d is %d; give positive numbers, none below the one before", i, m)
		}
	}
	return Rule{name: "SequentialLR", bad: bad, parts: slices.Clone(rules), milestones: ms}
}

// ChainedScheduler applies all rules in every step, each to the rate that the previous rule returned.
func ChainedScheduler(rules ...Rule) Rule {
	return Rule{name: "ChainedScheduler", parts: slices.Clone(rules),
		bad: unmet(
			need(len(rules) > 0, "ChainedScheduler expects at least one scheduler to be chained, but got no scheduler; give it rules"))}
}
