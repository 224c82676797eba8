package conformance

import "tenon.dev"

// Pointwise operations.

// unary offers an operation of one tensor.
func unary(name string, f func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor) {
	offer(name, func(a *args) any { return f(a.x, a.tensor(0, "input")) })
}

// binary offers an operation of two tensors.
func binary(name string, f func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor) {
	offer(name, func(a *args) any { return f(a.x, a.tensor(0, "input"), a.tensor(1, "other")) })
}

func init() {
	unary("neg", (*tenon.Exec).Neg)
	binary("mul", (*tenon.Exec).Mul)
}
