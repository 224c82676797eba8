package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Conj is the complex conjugate; a real number is its own conjugate.
var Conj = unary("conj", func(_ *kernel.Builder, _ dtype.DType, x Num) Num {
	if x.IsComplex() {
		return Num{x.Re, x.Im.Neg()}
	}
	return x
})
