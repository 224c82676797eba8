// Package layers belongs to a module whose path begins like the library's.
package layers

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// Twice adds.
type Twice struct{}

// Forward adds in and other.
func (Twice) Forward(x *tenon.Exec, in, other *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		return x.Add(in, other) // at layer
	})
}

// Each adds for each parameter of m.
func Each(x *tenon.Exec, m nn.Module, in, other *tenon.Tensor) {
	for range nn.Params(m) {
		x.Add(in, other) // at layer's loop
	}
}
