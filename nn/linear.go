package nn

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// Linear is in·Wᵀ + b.
type Linear struct {
	// Weight is [Out, In]; Bias is [Out], or nil for none.
	Weight *Param `torch:"weight"`
	Bias   *Param `torch:"bias"`
}

// LinearOpt are the options of NewLinear. The zero value is PyTorch's default.
type LinearOpt struct {
	// NoBias leaves the bias out.
	NoBias bool
	// DType is the parameters' type; 0 is Float32.
	DType tenon.DType
	// Generator draws the initial values; nil is x's own generator, on the device.
	Generator *HostGenerator
}

// NewLinear returns a layer from in to out features with PyTorch's initial values: uniform within ±1/√in.
func NewLinear(x *tenon.Exec, in, out int, opts ...LinearOpt) *Linear {
	opt := core.One("NewLinear", opts)
	if in < 0 || out < 0 {
		fail("NewLinear", "a layer from %d to %d features cannot be; give numbers that are not negative", in, out)
	}
	l := &Linear{}
	l.Weight, l.Bias = layer{opt.DType, opt.Generator}.weightAndBias(x, opt.NoBias, out, out, in)
	return l
}

// Forward maps in [..., In] to [..., Out].
func (l *Linear) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(l, "Linear")
	return x.Linear(in, l.Weight.Tensor(), l.Bias.Tensor())
}
