package optim

import "tenon.dev"

// States returns the state of all parameters of o.
func States(o Optimizer) []*tenon.Tensor { return o.(interface{ all() []*tenon.Tensor }).all() }

func (o *optimizer[O]) all() (all []*tenon.Tensor) {
	for _, g := range o.groups {
		for _, s := range g.states {
			all = append(all, s...)
		}
	}
	return all
}
