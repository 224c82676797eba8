package nn

import (
	"math"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// The initialisers set the elements of t, which has any floating-point type, and record no gradient. With a generator the numbers come
// from the host; without one x's generator draws them on the device. They follow PyTorch's torch.nn.init.

// InitOpt are the options of InitUniform and InitNormal.
type InitOpt struct {
	// Generator draws the numbers; nil stands for the Exec's own generator.
	Generator *HostGenerator
}

// InitUniform draws from the uniform distribution between low and high.
func InitUniform(x *tenon.Exec, t *tenon.Tensor, low, high float64, opts ...InitOpt) {
	drawUniform("InitUniform", x, t, low, high, core.One("InitUniform", opts).Generator)
}

// drawUniform is InitUniform for the call op.
func drawUniform(op string, x *tenon.Exec, t *tenon.Tensor, low, high float64, g *HostGenerator) {
	core.Check(op, core.UniformRange(t.DType(), low, high))
	set(x, t, func(x *tenon.Exec) *tenon.Tensor { return g.uniform(x, t.Shape(), t.DType(), low, high) })
}

// InitNormal draws from the normal distribution.
func InitNormal(x *tenon.Exec, t *tenon.Tensor, mean, std float64, opts ...InitOpt) {
	drawNormal("InitNormal", x, t, mean, std, core.One("InitNormal", opts).Generator)
}

// drawNormal is InitNormal for the call op.
func drawNormal(op string, x *tenon.Exec, t *tenon.Tensor, mean, std float64, g *HostGenerator) {
	if !(std >= 0) {
		fail(op, "the standard deviation is %v; give one that is not negative", std)
	}
	set(x, t, func(x *tenon.Exec) *tenon.Tensor { return g.normal(x, t.Shape(), t.DType(), mean, std) })
}

// InitConstant sets every element to v.
func InitConstant(x *tenon.Exec, t *tenon.Tensor, v float64) {
	set(x, t, func(x *tenon.Exec) *tenon.Tensor { return x.Full(t.Shape(), v, t.DType()) })
}

// InitEye sets a matrix to ones on the diagonal and zeros elsewhere.
func InitEye(x *tenon.Exec, t *tenon.Tensor) {
	if t.Dim() != 2 {
		fail("InitEye", "Only tensors with 2 dimensions are supported, not shape %v", t.Shape())
	}
	v := make([]float32, t.Numel())
	for i := range min(t.Size(0), t.Size(1)) {
		v[i*t.Size(1)+i] = 1
	}
	set(x, t, func(x *tenon.Exec) *tenon.Tensor { return as(x, v, t.Shape(), t.DType()) })
}

// XavierOpt are the options of the Xavier initialisers. The zero value is PyTorch's default.
type XavierOpt struct {
	// Gain is the factor of the numbers, such as [Gain] of the function that follows the layer; the default is 1.
	Gain tenon.Scalar
	// Generator draws the numbers; nil stands for the Exec's own generator.
	Generator *HostGenerator
}

// gain returns the factor, which sets how wide the numbers spread.
func (o XavierOpt) gain(op string) float64 {
	gain := core.OrFinite(op, "Gain", o.Gain, 1)
	if gain < 0 {
		fail(op, "Gain is %v; give a number that is not negative", gain)
	}
	return gain
}

// InitXavierUniform draws uniformly with the bound gain·√(6/(fanIn+fanOut)) (X. Glorot, Y. Bengio, AISTATS 2010).
func InitXavierUniform(x *tenon.Exec, t *tenon.Tensor, opts ...XavierOpt) {
	opt := core.One("InitXavierUniform", opts)
	in, out := fans("InitXavierUniform", t.Shape())
	bound := math.Sqrt(3) * opt.gain("InitXavierUniform") * math.Sqrt(2/float64(in+out))
	drawUniform("InitXavierUniform", x, t, -bound, bound, opt.Generator)
}

// InitXavierNormal draws from the normal distribution of standard deviation gain·√(2/(fanIn+fanOut)).
func InitXavierNormal(x *tenon.Exec, t *tenon.Tensor, opts ...XavierOpt) {
	opt := core.One("InitXavierNormal", opts)
	in, out := fans("InitXavierNormal", t.Shape())
	drawNormal("InitXavierNormal", x, t, 0, opt.gain("InitXavierNormal")*math.Sqrt(2/float64(in+out)), opt.Generator)
}

// KaimingOpt are the options of the Kaiming initialisers. The zero value is PyTorch's default.
type KaimingOpt struct {
	// A is the negative slope of the leaky ReLU that follows, if Nonlinearity is GainLeakyReLU.
	A float64
	// FanOut keeps the variance of the backward pass instead of the forward pass.
	FanOut bool
	// Nonlinearity is the function that follows the layer; the zero value is GainLeakyReLU.
	Nonlinearity Nonlinearity
	// Generator draws the numbers; nil stands for the Exec's own generator.
	Generator *HostGenerator
}

// std returns the standard deviation gain/√fan.
func (o KaimingOpt) std(op string, shape []int) float64 {
	fan, out := fans(op, shape)
	if o.FanOut {
		fan = out
	}
	gain := gainOf(o.Nonlinearity, o.A)
	if math.IsNaN(gain) {
		fail(op, "A is NaN; give the slope of the leaky ReLU that follows")
	}
	return gain / math.Sqrt(float64(fan))
}

// InitKaimingUniform draws uniformly with the bound gain·√(3/fan) (K. He et al., ICCV 2015). A tensor without elements stays as it is.
func InitKaimingUniform(x *tenon.Exec, t *tenon.Tensor, opts ...KaimingOpt) {
	core.Made((*core.Exec)(x), "InitKaimingUniform")
	opt := core.One("InitKaimingUniform", opts)
	core.MadeTensor((*core.Tensor)(t), "InitKaimingUniform")
	if t.Numel() == 0 {
		return
	}
	bound := math.Sqrt(3) * opt.std("InitKaimingUniform", t.Shape())
	drawUniform("InitKaimingUniform", x, t, -bound, bound, opt.Generator)
}

// InitKaimingNormal draws from the normal distribution of standard deviation gain/√fan. A tensor without elements stays as it is.
func InitKaimingNormal(x *tenon.Exec, t *tenon.Tensor, opts ...KaimingOpt) {
	core.Made((*core.Exec)(x), "InitKaimingNormal")
	opt := core.One("InitKaimingNormal", opts)
	core.MadeTensor((*core.Tensor)(t), "InitKaimingNormal")
	if t.Numel() == 0 {
		return
	}
	drawNormal("InitKaimingNormal", x, t, 0, opt.std("InitKaimingNormal", t.Shape()), opt.Generator)
}

// Nonlinearity is the function that follows a layer, which determines the scale of its initial weights.
type Nonlinearity uint8

// The nonlinearities that [Gain] knows: the leaky ReLU, none at all (a linear layer or a convolution alone), the sigmoid, tanh, ReLU and
// SELU.
const (
	GainLeakyReLU Nonlinearity = iota
	GainLinear
	GainSigmoid
	GainTanh
	GainReLU
	GainSELU
)

// GainOpt are the options of Gain. The zero value is PyTorch's default.
type GainOpt struct {
	// A is the negative slope of GainLeakyReLU; the default is 0.01.
	A tenon.Scalar
}

// Gain returns the factor by which the weights before a nonlinearity should be larger, as torch.nn.init.calculate_gain does: 1 for
// GainLinear and GainSigmoid, 5/3 for GainTanh, √2 for GainReLU, √(2/(1+a²)) for GainLeakyReLU with the negative slope a, 3/4 for
// GainSELU.
func Gain(nonlinearity Nonlinearity, opts ...GainOpt) float64 {
	return gainOf(nonlinearity, core.Or("Gain", "A", core.One("Gain", opts).A, 0.01))
}

func gainOf(nonlinearity Nonlinearity, a float64) float64 {
	switch nonlinearity {
	case GainLinear, GainSigmoid:
		return 1
	case GainTanh:
		return 5.0 / 3
	case GainReLU:
		return math.Sqrt2
	case GainLeakyReLU:
		return math.Sqrt(2 / (1 + a*a))
	case GainSELU:
		return 0.75
	}
	fail("Gain", "Unsupported nonlinearity %d; give one such as GainReLU", nonlinearity)
	return 0
}

// fans returns how many inputs an output of the weight depends on, and how many outputs depend on an input.
func fans(op string, shape []int) (in, out int) {
	if len(shape) < 2 {
		fail(op, "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions, such as shape %v", shape)
	}
	field := numel(shape[2:])
	return shape[1] * field, shape[0] * field
}

// set copies what make returns to t.
func set(x *tenon.Exec, t *tenon.Tensor, make func(x *tenon.Exec) *tenon.Tensor) {
	x.NoGrad().Scope(func(x *tenon.Exec) { x.CopyInto(t, make(x)) })
}

// layer holds how a constructor makes parameters: their type and generator.
type layer struct {
	dt tenon.DType
	g  *HostGenerator
}

// orFloat32 returns dt, or Float32 if dt is 0.
func orFloat32(dt tenon.DType) tenon.DType {
	if dt == 0 {
		return tenon.Float32
	}
	return dt
}

// param returns a parameter of uniform numbers within ±bound.
func (l layer) param(x *tenon.Exec, bound float64, shape ...int) *Param {
	return NewParam(l.g.uniform(x, shape, orFloat32(l.dt), -bound, bound))
}

// weightAndBias returns the initial parameters of PyTorch's Linear and convolutions: the weight has Kaiming's uniform bound with slope
// √5, and the bias, one element for each of the outputs, the bound 1/√fanIn.
func (l layer) weightAndBias(x *tenon.Exec, noBias bool, outputs int, shape ...int) (weight, bias *Param) {
	fanIn := numel(shape[1:])
	bound := 0.0
	if fanIn > 0 {
		bound = 1 / math.Sqrt(float64(fanIn))
	}
	weight = l.param(x, math.Sqrt(3)*gainOf(GainLeakyReLU, math.Sqrt(5))*bound, shape...)
	if !noBias {
		bias = l.param(x, bound, outputs)
	}
	return weight, bias
}
