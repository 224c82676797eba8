package optim

import (
	"fmt"
	"math"
	"strconv"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// PlateauMode says whether lower or higher metrics are better.
type PlateauMode uint8

// The plateau modes: a lower metric is better, such as a loss, or a higher one, such as an accuracy.
const (
	PlateauMin PlateauMode = iota
	PlateauMax
)

// ThresholdMode says how a threshold is measured.
type ThresholdMode uint8

// The threshold modes: a fraction of the best metric, or an absolute difference from it.
const (
	ThresholdRel ThresholdMode = iota
	ThresholdAbs
)

// PlateauOpt are the options of ReduceLROnPlateau. The zero value is PyTorch's default.
type PlateauOpt struct {
	// Mode is PlateauMin (the zero value) if lower is better, PlateauMax if higher is.
	Mode PlateauMode
	// Factor multiplies the rates; the default is 0.1.
	Factor tenon.Scalar
	// Threshold is the improvement over the best metric that counts; the default is 1e-4, and 0 means any improvement.
	Threshold tenon.Scalar
	// ThresholdMode is ThresholdRel (the zero value) for a threshold that is a fraction of the best metric, ThresholdAbs for an absolute
	// difference.
	ThresholdMode ThresholdMode
	// Cooldown is the number of steps after a reduction in which none counts as bad.
	Cooldown int
	// MinLR is the lower bound of the rates, one for all groups or one for each; empty means 0.
	MinLR []float64
	// Eps is the difference that a reduction must exceed to be made; the default is 1e-8.
	Eps tenon.Scalar
}

// ReduceLROnPlateau multiplies the learning rates of an optimizer by a factor when a metric has not improved for more steps than its
// patience, as torch.optim.lr_scheduler.ReduceLROnPlateau does: lr becomes max(lr · Factor, MinLR). With PlateauMin a metric is better than
// the best so far if it is below best · (1 - Threshold), or below best - Threshold; with PlateauMax if it is above best · (1 + Threshold),
// or above best + Threshold. NaN is never better. Only one goroutine may use it at a time.
type ReduceLROnPlateau struct {
	o        Optimizer
	patience int
	opt      PlateauOpt
	best     float64
	// bad counts the steps since the best metric, cooldown the steps left to wait.
	bad, cooldown int
}

// NewReduceLROnPlateau returns a schedule of o's learning rates that reduces them after more than patience bad steps in a row. PyTorch's
// default is 10.
func NewReduceLROnPlateau(o Optimizer, patience int, opts ...PlateauOpt) (*ReduceLROnPlateau, error) {
	const name = "ReduceLROnPlateau"
	opt, err := core.Only(name, opts)
	if err != nil {
		return nil, err
	}
	if err := schedulable(name, o); err != nil {
		return nil, err
	}
	bad := numbers(&opt)
	opt.Factor, opt.Threshold, opt.Eps = or(opt.Factor, 0.1), or(opt.Threshold, 1e-4), or(opt.Eps, 1e-8)
	if len(opt.MinLR) == 0 {
		opt.MinLR = []float64{0}
	}
	bad = unmet(need(bad == "", "%s", bad),
		need(patience >= 0, "patience is %d; give a number of steps, 0 or more", patience),
		need(opt.Cooldown >= 0, "Cooldown is %d; give a number of steps, 0 or more", opt.Cooldown),
		need(num(opt.Factor) < 1, "Factor should be < 1.0. It is %v", opt.Factor),
		factor("Factor", num(opt.Factor)), factor("Threshold", num(opt.Threshold)), factor("Eps", num(opt.Eps)),
		rates("MinLR", opt.MinLR),
		need(opt.Mode <= PlateauMax, "mode %d is unknown; give PlateauMin or PlateauMax", opt.Mode),
		need(opt.ThresholdMode <= ThresholdAbs, "threshold mode %d is unknown; give ThresholdRel or ThresholdAbs", opt.ThresholdMode))
	if bad != "" {
		return nil, core.Refusal(name, fault.Invalid, "%s", bad)
	}
	s := &ReduceLROnPlateau{o: o, patience: patience, opt: opt, best: math.Inf(1)}
	if opt.Mode == PlateauMax {
		s.best = math.Inf(-1)
	}
	if err := s.usable(); err != nil {
		return nil, err
	}
	return s, nil
}

// String describes the schedule: the best metric so far, the steps since, and the learning rates of the groups.
func (s *ReduceLROnPlateau) String() string {
	if s == nil || s.o == nil {
		return "nil ReduceLROnPlateau"
	}
	return fmt.Sprintf("ReduceLROnPlateau (best %s, %d steps since, lr %s)", core.Decimal(s.best), s.bad, ratesText(s.o))
}

func (s *ReduceLROnPlateau) refuse(format string, args ...any) error {
	return core.Refusal("ReduceLROnPlateau", fault.Invalid, format, args...)
}

func (s *ReduceLROnPlateau) usable() error {
	if s == nil || s.o == nil {
		return s.refuse("the schedule is nil or a zero value; use one that NewReduceLROnPlateau returned")
	}
	if n, groups := len(s.opt.MinLR), s.o.Groups(); n != 1 && n != groups {
		return s.refuse("expected %d min_lrs, got %d; give MinLR one number for each group, or one for all", groups, n)
	}
	return nil
}

// better reports whether a metric is better than the best so far.
func (s *ReduceLROnPlateau) better(metric float64) bool {
	best, t := s.best, num(s.opt.Threshold)
	switch abs := s.opt.ThresholdMode == ThresholdAbs; {
	case s.opt.Mode == PlateauMax && abs:
		return metric > best+t
	case s.opt.Mode == PlateauMax:
		return metric > float64(best*(t+1))
	case abs:
		return metric < best-t
	}
	return metric < float64(best*(1-t))
}

// Step takes the metric of an epoch, such as the loss over the validation data, and reduces the rates if it is time. It returns an error
// for a schedule that NewReduceLROnPlateau did not return, for groups added since if MinLR has one number for each, and for rates that
// cannot be set. An error changes nothing.
func (s *ReduceLROnPlateau) Step(metric float64) error {
	if err := s.usable(); err != nil {
		return err
	}
	best, bad, cooldown := s.best, s.bad+1, s.cooldown
	if s.better(metric) {
		best, bad = metric, 0
	}
	if cooldown > 0 {
		cooldown--
		bad = 0
	}
	if bad > s.patience {
		rates := make([]float64, s.o.Groups())
		for g := range rates {
			rates[g] = s.o.LR(g)
			if lr := max(float64(rates[g]*num(s.opt.Factor)), of(s.opt.MinLR, g)); rates[g]-lr > num(s.opt.Eps) {
				rates[g] = lr
			}
		}
		if err := setRates(s.o, rates); err != nil {
			return err
		}
		cooldown, bad = s.opt.Cooldown, 0
	}
	s.best, s.bad, s.cooldown = best, bad, cooldown
	return nil
}

// PlateauState is the state of a [ReduceLROnPlateau] between steps, including the rates that it set, in a form that encoding/json and
// encoding/gob keep to the bit.
type PlateauState struct {
	// Best is the best metric as text, since it is infinite before the first one, which JSON cannot express as a number.
	Best string `torch:"best"`
	// Bad counts the bad steps since the best metric, Cooldown the coming steps that will not count.
	Bad      int `torch:"num_bad_epochs"`
	Cooldown int `torch:"cooldown_counter"`
	// Rates are the optimizer's learning rates.
	Rates []float64 `torch:"lrs"`
}

// State returns the state that training needs to resume from here.
func (s *ReduceLROnPlateau) State() (PlateauState, error) {
	if err := s.usable(); err != nil {
		return PlateauState{}, err
	}
	st := PlateauState{Best: strconv.FormatFloat(s.best, 'g', -1, 64), Bad: s.bad, Cooldown: s.cooldown}
	for g := range s.o.Groups() {
		st.Rates = append(st.Rates, s.o.LR(g))
	}
	return st, nil
}

// SetState restores a state of a schedule with the same options, and sets the optimizer's rates. All later rates are those that the other
// schedule would have set. An error changes nothing.
func (s *ReduceLROnPlateau) SetState(st PlateauState) error {
	if err := s.usable(); err != nil {
		return err
	}
	best, err := s.fits(st)
	if err != nil {
		return err
	}
	if err := setRates(s.o, st.Rates); err != nil {
		return err
	}
	s.best, s.bad, s.cooldown = best, st.Bad, st.Cooldown
	return nil
}

// fits refuses a state that does not fit this schedule, and returns its best metric.
func (s *ReduceLROnPlateau) fits(st PlateauState) (best float64, err error) {
	best, err = strconv.ParseFloat(st.Best, 64)
	switch {
	case err != nil || math.IsNaN(best):
		return 0, s.refuse("the state's best metric is %q; give a state that State returned", st.Best)
	case st.Bad < 0 || st.Cooldown < 0:
		return 0, s.refuse("the state counts %d and %d steps; give one that State returned", st.Bad, st.Cooldown)
	case len(st.Rates) != s.o.Groups():
		return 0, s.refuse("the state is of an optimizer with %d groups, this one has %d; give it as many", len(st.Rates), s.o.Groups())
	case !finite(st.Rates...):
		return 0, s.refuse("the state has the rates %v; give one that State returned", st.Rates)
	}
	return best, nil
}
