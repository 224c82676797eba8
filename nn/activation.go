package nn

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// ReLU is max(0, x).
type ReLU struct{}

// Forward applies the function to every element of in.
func (ReLU) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.ReLU(in) }

// ReLU6 is min(max(0, x), 6).
type ReLU6 struct{}

// Forward applies the function to every element of in.
func (ReLU6) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Hardtanh(in, tenon.HardtanhOpt{Min: 0, Max: 6})
}

// Sigmoid is 1/(1+exp(-x)).
type Sigmoid struct{}

// Forward applies the function to every element of in.
func (Sigmoid) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.Sigmoid(in) }

// Tanh is the hyperbolic tangent.
type Tanh struct{}

// Forward applies the function to every element of in.
func (Tanh) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.Tanh(in) }

// GELU is x·Φ(x) with the normal distribution's Φ.
type GELU struct {
	// Tanh approximates Φ by the hyperbolic tangent.
	Tanh bool
}

// Forward applies the function to every element of in.
func (a GELU) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	if a.Tanh {
		return x.GELUTanh(in)
	}
	return x.GELU(in)
}

// SiLU is x·sigmoid(x).
type SiLU struct{}

// Forward applies the function to every element of in.
func (SiLU) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.SiLU(in) }

// LeakyReLU is x, or x times a small slope where x is negative.
type LeakyReLU struct {
	// Slope is the slope of the negative side; the default is 0.01.
	Slope tenon.Scalar
}

// Forward applies the function to every element of in.
func (a LeakyReLU) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.LeakyReLU(in, tenon.LeakyReLUOpt{Slope: a.Slope})
}

// PReLU is x, or x times a learned slope where x is negative.
type PReLU struct {
	// Weight holds the slopes: one, or one for each channel (dimension 1).
	Weight *Param `torch:"weight"`
}

// PReLUOpt are the options of NewPReLU. The zero value is PyTorch's default.
type PReLUOpt struct {
	// Init is the slopes' first value; the default is 0.25.
	Init tenon.Scalar
	// DType is the slopes' type; 0 is Float32.
	DType tenon.DType
}

// NewPReLU returns an activation with count slopes: 1, or the number of channels.
func NewPReLU(x *tenon.Exec, count int, opts ...PReLUOpt) *PReLU {
	opt := core.One("NewPReLU", opts)
	if count < 1 {
		fail("NewPReLU", "%d slopes were asked for; give 1 or the number of channels", count)
	}
	return &PReLU{Weight: NewParam(x.Full([]int{count}, core.Or("NewPReLU", "Init", opt.Init, 0.25), orFloat32(opt.DType)))}
}

// Forward applies the function to every element of in.
func (a *PReLU) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(a, "PReLU")
	return x.PReLU(in, a.Weight.Tensor())
}

// ELU is x, or α·(exp(x)-1) where x is negative.
type ELU struct {
	// Alpha is α; the default is 1.
	Alpha tenon.Scalar
}

// Forward applies the function to every element of in.
func (a ELU) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.ELU(in, tenon.ELUOpt{Alpha: a.Alpha})
}

// Hardtanh clamps x between Min and Max.
type Hardtanh struct {
	// Min and Max are the bounds, of which Max is larger; the defaults are -1 and 1.
	Min, Max tenon.Scalar
}

// Forward applies the function to every element of in.
func (a Hardtanh) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	lo, hi := core.Or("Hardtanh", "Min", a.Min, -1), core.Or("Hardtanh", "Max", a.Max, 1)
	if !(hi > lo) { // x.Hardtanh also takes equal bounds, as PyTorch's function does
		fail("Hardtanh", "Min is %v and Max is %v; give bounds where Max is larger than Min", lo, hi)
	}
	return x.Hardtanh(in, tenon.HardtanhOpt{Min: a.Min, Max: a.Max})
}

// Softplus is log(1+exp(β·x))/β, and x itself where β·x is above a threshold.
type Softplus struct {
	// Beta is β; the default is 1. The default of Threshold is 20.
	Beta, Threshold tenon.Scalar
}

// Forward applies the function to every element of in.
func (a Softplus) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Softplus(in, tenon.SoftplusOpt{Beta: a.Beta, Threshold: a.Threshold})
}

// LogSigmoid is log(sigmoid(x)).
type LogSigmoid struct{}

// Forward applies the function to every element of in.
func (LogSigmoid) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.LogSigmoid(in) }

// Softmax is exp(x) divided by its sum along a dimension.
type Softmax struct {
	// Dim is the dimension; negative ones count from the end.
	Dim int
}

// Forward applies the function to in along dimension Dim.
func (a Softmax) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Softmax(in, a.Dim)
}

// LogSoftmax is the logarithm of Softmax.
type LogSoftmax struct {
	// Dim is the dimension; negative ones count from the end.
	Dim int
}

// Forward applies the function to in along dimension Dim.
func (a LogSoftmax) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.LogSoftmax(in, a.Dim)
}
