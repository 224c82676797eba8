package optim

import (
	"slices"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// Momentum is implemented by optimizers whose momentum [OneCycleLR] and [CyclicLR] can change: it is the momentum of SGD and RMSprop, and
// the first beta of Adam, AdamW, Adamax, NAdam and RAdam. A captured step keeps the momentum that it was captured with.
type Momentum interface {
	// Momentum returns the momentum of a group.
	Momentum(group int) float64
	// SetMomentum sets the momentum of a group from the next step on, and refuses one that the constructor refuses. Steps without momentum
	// keep less state, so SGD's and RMSprop's can change to or from 0 only before the first step.
	SetMomentum(group int, m float64)
}

var _ = []Momentum{(*SGD)(nil), (*RMSprop)(nil), (*Adam)(nil), (*AdamW)(nil), (*Adamax)(nil), (*NAdam)(nil), (*RAdam)(nil)}

// Momentum returns the momentum of a group.
func (o *SGD) Momentum(group int) float64 { return num(o.at(group).opt.Momentum) }

// SetMomentum sets the momentum of a group from the next step on, see [Momentum].
func (o *SGD) SetMomentum(group int, m float64) {
	opt := &o.at(group).opt
	if opt.Nesterov && m == 0 {
		core.Fail(o.name, fault.Invalid, "Nesterov momentum requires a momentum; set one other than 0")
	}
	o.setBuffered(group, &opt.Momentum, m)
}

// Momentum returns the momentum of a group.
func (o *RMSprop) Momentum(group int) float64 { return num(o.at(group).opt.Momentum) }

// SetMomentum sets the momentum of a group from the next step on, see [Momentum].
func (o *RMSprop) SetMomentum(group int, m float64) {
	o.setBuffered(group, &o.at(group).opt.Momentum, m)
}

// Momentum returns the first of a group's betas.
func (o *Adam) Momentum(group int) float64 { return o.at(group).opt.Betas[0] }

// SetMomentum sets the first of a group's betas from the next step on.
func (o *Adam) SetMomentum(group int, m float64) { o.setBeta(&o.at(group).opt.Betas[0], m) }

// Momentum returns the first of a group's betas.
func (o *AdamW) Momentum(group int) float64 { return o.at(group).opt.Betas[0] }

// SetMomentum sets the first of a group's betas from the next step on.
func (o *AdamW) SetMomentum(group int, m float64) { o.setBeta(&o.at(group).opt.Betas[0], m) }

// Momentum returns the first of a group's betas.
func (o *Adamax) Momentum(group int) float64 { return o.at(group).opt.Betas[0] }

// SetMomentum sets the first of a group's betas from the next step on.
func (o *Adamax) SetMomentum(group int, m float64) { o.setBeta(&o.at(group).opt.Betas[0], m) }

// Momentum returns the first of a group's betas.
func (o *NAdam) Momentum(group int) float64 { return o.at(group).opt.Betas[0] }

// SetMomentum sets the first of a group's betas from the next step on.
func (o *NAdam) SetMomentum(group int, m float64) { o.setBeta(&o.at(group).opt.Betas[0], m) }

// Momentum returns the first of a group's betas.
func (o *RAdam) Momentum(group int) float64 { return o.at(group).opt.Betas[0] }

// SetMomentum sets the first of a group's betas from the next step on.
func (o *RAdam) SetMomentum(group int, m float64) { o.setBeta(&o.at(group).opt.Betas[0], m) }

// at returns group i, and fails as LR does if it does not exist.
func (o *optimizer[O]) at(i int) *group[O] {
	o.rate(i)
	return o.groups[i]
}

// setBeta sets the first of a group's betas.
func (o *optimizer[O]) setBeta(beta *float64, m float64) {
	core.Check(o.name, checkBeta(0, m, o.refuse))
	*beta = m
}

// setBuffered sets a momentum of group i that needs a state tensor unless it is 0.
func (o *optimizer[O]) setBuffered(i int, momentum *tenon.Scalar, m float64) {
	core.Check(o.name, notNegative(o.refuse, "momentum value", m))
	begun := slices.ContainsFunc(o.at(i).states, func(s []*tenon.Tensor) bool { return s != nil })
	if begun && (num(*momentum) == 0) != (m == 0) {
		core.Fail(o.name, fault.Invalid, "the momentum of group %d cannot go from %v to %v after its first step; set it before", i,
			*momentum, m)
	}
	*momentum = m
}
