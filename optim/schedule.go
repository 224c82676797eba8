package optim

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// Schedule changes the learning rates of an optimizer's groups by a [Rule]: when it is made, and with every step. Only one goroutine may
// use it at a time. To use two rules for one optimizer, combine them with [ChainedScheduler], which gives both the initial rates. A
// captured step of the optimizer keeps the rate that it was captured with, unless it reads a tensor, which the schedule fills; see
// SetLRTensor.
type Schedule struct {
	o Optimizer
	// momentum is o if the rule cycles the momentum.
	momentum Momentum
	root     *node
	// nodes are the root and those below it, each before its parts.
	nodes []*node
	// rates and momenta are those of the step in progress.
	rates, momenta []float64
}

// node is a rule in use.
type node struct {
	Rule
	// step is PyTorch's last_epoch.
	step int
	// initial holds the rate of each group before the schedule.
	initial []float64
	parts   []*node
}

// NewSchedule returns a schedule of o's learning rates, which starts from o's current rates, and sets those of the first training step.
// Call it after adding the last group.
func NewSchedule(o Optimizer, r Rule) (*Schedule, error) {
	if err := schedulable("Schedule", o); err != nil {
		return nil, err
	}
	if err := r.check(o.Groups()); err != nil {
		return nil, err
	}
	s := &Schedule{o: o, rates: make([]float64, o.Groups())}
	if r.cycles() {
		m, ok := o.(Momentum)
		if !ok {
			return nil, core.Refusal(r.name, fault.Invalid, "optimizer must support momentum or beta1 with cycled momentum; set "+
				"NoMomentum, or use one with the methods of optim.Momentum")
		}
		s.momentum, s.momenta = m, make([]float64, len(s.rates))
	}
	s.get()
	var initial []float64
	s.root = s.attach(r, &initial)
	if r.milestones != nil {
		copy(s.rates, initial)
	}
	if err := s.root.begin(s); err != nil {
		return nil, err
	}
	if err := s.set(); err != nil {
		return nil, err
	}
	return s, nil
}

// schedulable refuses an optimizer without groups.
func schedulable(op string, o Optimizer) error {
	if isNil(o) {
		return missing(op)
	}
	if o.Groups() == 0 {
		return core.Refusal(op, fault.Invalid, "the optimizer has no parameters; use one that its New function returned")
	}
	if s, ok := o.(filed); ok {
		return s.open(op)
	}
	return nil
}

// attach makes a rule's nodes in the order of the rules, in which PyTorch makes its schedulers too. They share the initial rates, and
// [OneCycleLR] and [CyclicLR] change those for the rules after them.
func (s *Schedule) attach(r Rule, initial *[]float64) *node {
	n := &node{Rule: r}
	s.nodes = append(s.nodes, n)
	for _, p := range r.parts {
		n.parts = append(n.parts, s.attach(p, initial))
	}
	if r.start != nil {
		*initial = r.start(*initial, len(s.rates))
	}
	if *initial == nil {
		*initial = slices.Clone(s.rates)
	}
	n.initial = *initial
	if r.momentum != nil {
		for g := range s.momenta {
			s.momenta[g] = r.momentum(place{group: g, first: true})
		}
	}
	return n
}

// get reads the rates and momenta of the optimizer; set writes them.
func (s *Schedule) get() {
	for g := range s.rates {
		s.rates[g] = s.o.LR(g)
		if s.momentum != nil {
			s.momenta[g] = s.momentum.Momentum(g)
		}
	}
}

// An error leaves the optimizer as it was.
func (s *Schedule) set() error {
	if s.momentum == nil {
		return setRates(s.o, s.rates)
	}
	undo, err := assign(s.momenta, s.momentum.Momentum, s.momentum.SetMomentum)
	if err == nil {
		err = setRates(s.o, s.rates)
	}
	if err != nil {
		undo()
	}
	return err
}

// assign sets a number of each group with set, until one is refused. undo gives the groups their former numbers back.
func assign(numbers []float64, get func(group int) float64, set func(group int, v float64)) (undo func(), err error) {
	var former []float64
	err = tenon.Try(func() {
		for g, v := range numbers {
			was := get(g)
			set(g, v)
			former = append(former, was)
		}
	})
	return func() {
		for g, v := range former {
			set(g, v)
		}
	}, err
}

// rated is an optimizer whose rates can all be set in one call.
type rated interface {
	setRates(rates []float64) error
}

// setRates sets the rates of all groups. Those that are a rounding error below 0 are 0 to a program's own optimizer, whose SetLR may pass
// them on to one that refuses what is negative.
func setRates(o Optimizer, rates []float64) error {
	if r, ok := o.(rated); ok {
		return r.setRates(rates)
	}
	rates = slices.Clone(rates)
	for g, lr := range rates {
		if lr < 0 && lr > -1e-12 {
			rates[g] = 0
		}
	}
	undo, err := assign(rates, o.LR, o.SetLR)
	if err != nil {
		undo()
	}
	return err
}

// Step sets the rates of the next training step. Call it after the optimizer's step, once per epoch or once per batch, whichever the rule
// counts. It returns an error after the end of [OneCycleLR], if a rate overflows, and if a group was added. An error changes nothing.
func (s *Schedule) Step() error {
	if err := s.usable(); err != nil {
		return err
	}
	s.get()
	before := s.steps()
	err := s.root.next(s)
	if err == nil {
		err = s.set()
	}
	if err != nil {
		for i, n := range s.nodes {
			n.step = before[i]
		}
	}
	return err
}

func (s *Schedule) usable() error {
	if s == nil || s.root == nil {
		return core.Refusal("Schedule", fault.Invalid, "the schedule is nil or a zero value; use one that NewSchedule returned")
	}
	if n := s.o.Groups(); n != len(s.rates) {
		return core.Refusal(s.root.name, fault.Invalid, "the optimizer has %d groups and had %d when the schedule was made; make it "+
			"after the last one was added", n, len(s.rates))
	}
	return nil
}

func (s *Schedule) steps() []int {
	steps := make([]int, len(s.nodes))
	for i, n := range s.nodes {
		steps[i] = n.step
	}
	return steps
}

// begin takes the first step.
func (n *node) begin(s *Schedule) error {
	switch {
	case n.milestones != nil:
		return n.parts[0].begin(s)
	case n.parts != nil:
		return n.each(s, (*node).begin)
	}
	return n.apply(s, true)
}

// next takes a later step.
func (n *node) next(s *Schedule) error {
	n.step++
	switch {
	case n.milestones != nil:
		i := sort.SearchInts(n.milestones, n.step+1)
		if i > 0 && n.milestones[i-1] == n.step {
			return n.parts[i].enter(s)
		}
		return n.parts[i].next(s)
	case n.parts != nil:
		return n.each(s, (*node).next)
	}
	return n.apply(s, false)
}

// enter takes the first step when a sequence reaches n. A sequence or a chain, for which PyTorch does not define this, starts over.
func (n *node) enter(s *Schedule) error {
	if !n.onward {
		copy(s.rates, n.initial)
	}
	if n.parts != nil {
		return n.begin(s)
	}
	return n.apply(s, false)
}

func (n *node) each(s *Schedule, do func(*node, *Schedule) error) error {
	for _, p := range n.parts {
		if err := do(p, s); err != nil {
			return err
		}
	}
	return nil
}

// apply computes the rates of a step by one formula.
func (n *node) apply(s *Schedule, first bool) error {
	if n.total > 0 && n.step > n.total {
		return core.Refusal(n.name, fault.Invalid,
			"Tried to step %d times. The specified number of total steps is %d; give it more, or stop", n.step, n.total)
	}
	for g, last := range s.rates {
		p := place{step: n.step, group: g, first: first, initial: n.initial[g], last: last}
		lr := n.rate(p)
		if math.IsNaN(lr) || math.IsInf(lr, 0) {
			return core.Refusal(n.name, fault.Invalid, "the learning rate of group %d would be %v after %d steps, from %v before; give "+
				"the rule other arguments, or fewer steps", g, lr, n.step, last)
		}
		s.rates[g] = lr
		if n.momentum != nil {
			s.momenta[g] = n.momentum(p)
		}
	}
	return nil
}

// ScheduleState is the state of a [Schedule] between steps, including the rates that it set, in a form that encoding/json and
// encoding/gob keep to the bit.
type ScheduleState struct {
	// Rule is the name of the rule and, in parentheses, of its parts.
	Rule string `torch:"rule"`
	// Steps counts the steps, and Initial holds the groups' initial rates, for the rule and its parts in the order of Rule.
	Steps   []int       `torch:"steps"`
	Initial [][]float64 `torch:"initial_lrs"`
	// Rates are the optimizer's learning rates, Momenta its momenta where the rule cycles them.
	Rates   []float64 `torch:"lrs"`
	Momenta []float64 `json:",omitempty" torch:"momenta"`
}

// State returns the state that training needs to resume from here.
func (s *Schedule) State() (ScheduleState, error) {
	if err := s.usable(); err != nil {
		return ScheduleState{}, err
	}
	s.get()
	st := ScheduleState{Rule: s.root.String(), Steps: s.steps(), Rates: slices.Clone(s.rates), Momenta: slices.Clone(s.momenta)}
	for _, n := range s.nodes {
		st.Initial = append(st.Initial, slices.Clone(n.initial))
	}
	return st, nil
}

// SetState restores a state of a schedule with the same rule, and sets the optimizer's rates. All later rates are those that the other
// schedule would have set. An error changes nothing.
func (s *Schedule) SetState(st ScheduleState) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.fits(st); err != nil {
		return err
	}
	copy(s.rates, st.Rates)
	copy(s.momenta, st.Momenta)
	if err := s.set(); err != nil {
		return err
	}
	s.adopt(st)
	return nil
}

// adopt takes the counts and initial rates of a state that fits.
func (s *Schedule) adopt(st ScheduleState) {
	for i, n := range s.nodes {
		n.step, n.initial = st.Steps[i], slices.Clone(st.Initial[i])
	}
}

// fits refuses a state that does not fit this schedule.
func (s *Schedule) fits(st ScheduleState) error {
	refuse := func(format string, args ...any) error {
		return core.Refusal(s.root.name, fault.Invalid, format, args...)
	}
	if is := s.root.String(); st.Rule != is {
		return refuse("the state is of the rule %q, the schedule has %q; make it with the same rule", st.Rule, is)
	}
	if len(st.Steps) != len(s.nodes) || len(st.Initial) != len(s.nodes) {
		return refuse("the state has %d counts and %d lists of initial rates for %d rules; give one that State returned", len(st.Steps),
			len(st.Initial), len(s.nodes))
	}
	for _, v := range append([][]float64{st.Rates}, st.Initial...) {
		if len(v) != len(s.rates) {
			return refuse("the state is of an optimizer with %d groups, this one has %d; give it as many", len(v), len(s.rates))
		}
		if !finite(v...) {
			return refuse("the state has the rates %v; give one that State returned", v)
		}
	}
	if len(st.Momenta) != len(s.momenta) || !finite(st.Momenta...) {
		return refuse("the state has the momenta %v, the schedule cycles %d; give one that State returned, with NoMomentum as it was",
			st.Momenta, len(s.momenta))
	}
	if least := slices.Min(st.Steps); least < 0 {
		return refuse("the state counts %d steps; give one that State returned", least)
	}
	return nil
}

// String describes the schedule: its rule, the steps so far and the learning rates of the groups.
func (s *Schedule) String() string {
	if s == nil || s.root == nil {
		return "nil Schedule"
	}
	return fmt.Sprintf("%v (step %d, lr %s)", s.root, s.root.step, ratesText(s.o))
}
