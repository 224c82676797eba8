package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// Activations with their own kernels, and the rows of their derivatives, whose first operand is the gradient of the result.
var (
	rowSigmoid, rowTanh, rowReLU, rowGELU, rowGELUTanh, rowSiLU, rowLeakyReLU, rowELU, rowHardtanh, rowSoftplus,
	rowLogSigmoid, rowPReLU *row

	rowSigmoidBackward, rowTanhBackward, rowThresholdBackward, rowGELUBackward, rowGELUTanhBackward, rowSiLUBackward *row
	rowLeakyReLUBackward, rowELUBackward, rowHardtanhBackward, rowSoftplusBackward, rowLogSigmoidBackward            *row

	rowPReLUBackward, rowPReLUSlope *row
)

func init() {
	rowSigmoid = define(row{Name: "Sigmoid", Torch: "sigmoid", point: kernels.Sigmoid, rule: floating, saves: out0,
		back: viaResult(&rowSigmoidBackward)})
	rowTanh = define(row{Name: "Tanh", Torch: "tanh", point: kernels.Tanh, rule: floating, saves: out0, back: viaResult(&rowTanhBackward)})
	rowReLU = define(row{Name: "ReLU", Torch: "relu", point: kernels.ReLU, rule: rounded, saves: out0,
		back: viaResult(&rowThresholdBackward)})
	rowGELU = define(row{Name: "GELU", Torch: "gelu", point: kernels.GELU, rule: realFloat, saves: in0, back: viaInput(&rowGELUBackward)})
	rowGELUTanh = define(row{Name: "GELUTanh", Torch: "gelu", point: kernels.GELUTanh, rule: realFloat, saves: in0,
		back: viaInput(&rowGELUTanhBackward)})
	rowSiLU = define(row{Name: "SiLU", Torch: "silu", point: kernels.SiLU, rule: divided, saves: in0, back: backSiLU})
	rowLeakyReLU = define(row{Name: "LeakyReLU", takes: "t; slope", Torch: "leaky_relu", point: kernels.LeakyReLU, rule: realFloat,
		saves: in0, back: viaInput(&rowLeakyReLUBackward)})
	rowELU = define(row{Name: "ELU", takes: "t; alpha scale inputScale", Torch: "elu", point: kernels.ELU, rule: realFloat, saves: in0,
		back: viaInput(&rowELUBackward)})
	rowHardtanh = define(row{Name: "Hardtanh", takes: "t lo# hi#", Torch: "hardtanh", point: kernels.Clamp, infer: inferHardtanh,
		saves: in0, back: backHardtanh})
	rowSoftplus = define(row{Name: "Softplus", takes: "t; beta threshold", Torch: "softplus", point: kernels.Softplus, rule: realFloat,
		cast: castFloat32, saves: in0, back: viaInput(&rowSoftplusBackward)})
	rowLogSigmoid = define(row{Name: "LogSigmoid", Torch: "logsigmoid", point: kernels.LogSigmoid, rule: realFloat, saves: in0,
		back: viaInput(&rowLogSigmoidBackward)})
	rowPReLU = define(row{Name: "PReLU", takes: "t slopes", Torch: "prelu", point: kernels.PReLU, rule: realFloat, saves: in0 | in1,
		back: backPReLU})
}

func init() {
	rowPReLUBackward = define(row{Name: "PReLUBackward", takes: "g t slopes", point: kernels.PReLUBackward, rule: realFloat})
	// rowPReLUSlope is the gradient of the slopes: its inputs are gradient and input; dims is the slopes' shape, with the input's number of
	// dimensions or one element.
	rowPReLUSlope = define(row{Name: "PReLUSlopeBackward", takes: "g t;; shape*",
		infer: func(f *frame) { f.newOut(0, f.in[1].dt, f.dims, nil) }, run: runPReLUSlope})
}

func runPReLUSlope(f *frame) error {
	t, sum := f.in[1], operand(f.out[0])
	all := make([]bool, len(t.shape))
	if n := f.out[0].Numel(); n == 0 {
		return nil
	} else if n == 1 {
		sum.Shape, sum.Stride = nil, nil
	}
	for i := range all {
		all[i] = sum.Shape == nil || sum.Shape[i] == 1
	}
	f.opers = append(f.opers[:0], sum, operand(f.in[0]), operand(t))
	return kernels.Reduce(f, kernels.PReLUSlopeSum, t.dt, nil, f.opers[:1], f.opers[1:], all)
}

// The derivatives of the derivatives. These are linear in the gradient; their own slopes are second derivatives of the functions.
func init() {
	rowSigmoidBackward = define(row{Name: "SigmoidBackward", takes: "g y", point: kernels.SigmoidBackward, rule: same, saves: in0 | in1,
		back: again(&rowSigmoidBackward,
			func(x *Exec, _ *node, y *Tensor) *Tensor { return x.RSubS(x.MulS(x.conjugate(y), 2), 1) })})
	rowTanhBackward = define(row{Name: "TanhBackward", takes: "g y", point: kernels.TanhBackward, rule: same, saves: in0 | in1,
		back: again(&rowTanhBackward,
			func(x *Exec, _ *node, y *Tensor) *Tensor { return x.MulS(x.conjugate(y), -2) })})
	rowThresholdBackward = define(row{Name: "ThresholdBackward", takes: "g y; threshold", point: kernels.ThresholdBackward, rule: realFloat,
		saves: in1, back: again(&rowThresholdBackward, nil)})
	rowLeakyReLUBackward = define(row{Name: "LeakyReLUBackward", takes: "g t; slope", point: kernels.LeakyReLUBackward, rule: realFloat,
		saves: in1, back: again(&rowLeakyReLUBackward, nil)})
	rowHardtanhBackward = define(row{Name: "HardtanhBackward", takes: "g t; lo hi", point: kernels.HardtanhBackward, rule: realFloat,
		saves: in1, back: again(&rowHardtanhBackward, nil)})
	rowGELUBackward = define(row{Name: "GELUBackward", takes: "g t", point: kernels.GELUBackward, rule: realFloat, saves: in0 | in1,
		back: again(&rowGELUBackward, slopeGELU)})
	rowGELUTanhBackward = define(row{Name: "GELUTanhBackward", takes: "g t", point: kernels.GELUTanhBackward, rule: realFloat,
		saves: in0 | in1, back: again(&rowGELUTanhBackward, slopeGELUTanh)})
	rowSiLUBackward = define(row{Name: "SiLUBackward", takes: "g t", point: kernels.SiLUBackward, rule: realFloat, saves: in0 | in1,
		back: again(&rowSiLUBackward, slopeSiLU)})
	rowELUBackward = define(row{Name: "ELUBackward", takes: "g t; alpha scale inputScale", point: kernels.ELUBackward, rule: realFloat,
		saves: in0 | in1, back: again(&rowELUBackward, slopeELU)})
	rowSoftplusBackward = define(row{Name: "SoftplusBackward", takes: "g t; beta threshold", point: kernels.SoftplusBackward,
		rule: realFloat, saves: in0 | in1, back: again(&rowSoftplusBackward, slopeSoftplus)})
	rowLogSigmoidBackward = define(row{Name: "LogSigmoidBackward", takes: "g t", point: kernels.LogSigmoidBackward, rule: realFloat,
		saves: in0 | in1, back: again(&rowLogSigmoidBackward,
			func(x *Exec, _ *node, z *Tensor) *Tensor {
				s := x.Sigmoid(z)
				return x.Mul(s, x.SubS(s, 1))
			})})
}

// viaResult returns a derivative that runs *r on the gradient and the result, with the activation's scalars.
func viaResult(r **row) func(b *back) {
	return func(b *back) { b.set(0, b.slopeOp(*r, b.grad(0), b.out(0))) }
}

// viaInput returns a derivative that runs *r on the gradient and the input, with the activation's scalars.
func viaInput(r **row) func(b *back) {
	return func(b *back) { b.set(0, b.slopeOp(*r, b.grad(0), b.in(0))) }
}

func (b *back) slopeOp(r *row, g, t *Tensor) *Tensor {
	f := b.x.op(r, g, t)
	f.scalar = b.n.scalar
	return f.call1()
}

// again returns the derivative of a derivative *r of gradient g and argument t: *r again with respect to g, and g times second with respect
// to t (zero if second is nil).
func again(r **row, second func(x *Exec, n *node, t *Tensor) *Tensor) func(b *back) {
	return func(b *back) {
		x, u, t := b.x, b.grad(0), b.in(1)
		if b.need(0) {
			b.set(0, b.slopeOp(*r, u, x.conjugate(t)))
		}
		if !b.need(1) {
			return
		}
		if second == nil {
			b.set(1, x.Full(b.shape(1), 0, b.n.edges[1].dt))
			return
		}
		b.set(1, x.Mul(x.Mul(x.conjugate(u), b.in(0)), second(x, b.n, b.in(1))))
	}
}

// slopeGELU is (x·Φ(x))″ = φ(x)·(2 - x²).
func slopeGELU(x *Exec, _ *node, z *Tensor) *Tensor {
	q := x.Mul(z, z)
	return x.MulS(x.Mul(x.Exp(x.MulS(q, -0.5)), x.RSubS(q, 2)), 1/math.Sqrt(2*math.Pi))
}

// slopeGELUTanh is y″ = s·u′·(1 - x·u′·tanh u) + x·s·u″/2 for y = x(1+tanh u)/2 with u = c(x + a·x³) and s = 1 - tanh² u.
func slopeGELUTanh(x *Exec, _ *node, z *Tensor) *Tensor {
	const c, a = 0.7978845608028653558798921198687637369517172623298693, 0.044715 // √(2/π), and the cubic's factor of the approximation
	q := x.Mul(z, z)
	t := x.Tanh(x.MulS(x.Mul(z, x.AddS(x.MulS(q, a), 1)), c))
	s := x.RSubS(x.Mul(t, t), 1)
	d := x.AddS(x.MulS(q, 3*a*c), c)
	first := x.Mul(d, x.RSubS(x.Mul(x.Mul(z, d), t), 1))
	return x.Mul(s, x.Add(first, x.MulS(q, 3*a*c)))
}

// slopeSiLU is (x·s)″ = s(1-s)·(2 + x(1-2s)) for s = sigmoid(x).
func slopeSiLU(x *Exec, _ *node, z *Tensor) *Tensor {
	s := x.Sigmoid(z)
	inner := x.AddS(x.Mul(z, x.RSubS(x.MulS(s, 2), 1)), 2)
	return x.Mul(x.Mul(s, x.RSubS(s, 1)), inner)
}

// slopeELU is 0 for x ≥ 0, else a·s·i²·e^(i·x).
func slopeELU(x *Exec, n *node, z *Tensor) *Tensor {
	a, s, i := n.scalar[0].F, n.scalar[1].F, n.scalar[2].F
	return x.pick(x.GeS(z, 0), nil, 0, x.MulS(x.Exp(x.MulS(z, i)), a*s*i*i), 0)
}

// slopeSoftplus is 0 from the threshold on, else b·s(1-s) for s = sigmoid(b·x).
func slopeSoftplus(x *Exec, n *node, z *Tensor) *Tensor {
	bz := x.MulS(z, n.scalar[0].F)
	s := x.Sigmoid(bz)
	return x.pick(x.GeS(bz, n.scalar[1].F), nil, 0, x.MulS(x.Mul(s, x.RSubS(s, 1)), n.scalar[0].F), 0)
}

func backSiLU(b *back) {
	x, z := b.x, b.in(0)
	if !z.dt.IsComplex() {
		b.set(0, b.slopeOp(rowSiLUBackward, b.grad(0), z))
		return
	}
	s := x.Sigmoid(z)
	d := x.Mul(s, x.AddS(x.Mul(z, x.RSubS(s, 1)), 1))
	b.set(0, x.Mul(b.grad(0), x.Conj(d)))
}

// inferHardtanh gives the bounds the input's type, so that they are truncated for integers.
func inferHardtanh(f *frame) {
	t := f.in[0]
	if !t.dt.IsFloat() && (!t.dt.IsInt() || !t.dt.IsSigned()) {
		f.fail(fault.Unsupported, "Hardtanh is not defined for %v tensors; convert them first with x.ToDType", t.dt)
	}
	f.compute = t.dt
	f.newOut(0, t.dt, t.shape, f.layout(t.shape))
}

func backHardtanh(b *back) {
	f := b.x.op(rowHardtanhBackward, b.grad(0), b.in(0))
	f.scalar[0], f.scalar[1] = b.n.hole[1], b.n.hole[2]
	b.set(0, f.call1())
}

func (x *Exec) scalarsOp(r *row, t *Tensor, s ...float64) *frame {
	f := x.op(r, t)
	for i, v := range s {
		f.scalar[i] = kernels.FloatScalar(v)
	}
	return f
}

// Sigmoid returns 1/(1+exp(-t)); integers become float32.
//
//tenon:into
func (x *Exec) Sigmoid(t *Tensor) *Tensor { return x.op(rowSigmoid, t).call1() }

// Tanh returns the hyperbolic tangent; integers become float32.
//
//tenon:into
func (x *Exec) Tanh(t *Tensor) *Tensor { return x.op(rowTanh, t).call1() }

// ReLU returns max(t, 0), for any real type but bool; a NaN stays.
func (x *Exec) ReLU(t *Tensor) *Tensor { return x.op(rowReLU, t).call1() }

// ReLUInto sets dst to max(t, 0); dst may be t.
func (x *Exec) ReLUInto(dst, t *Tensor) { x.op(rowReLU, t).call1Into(dst) }

// GELU returns t·Φ(t), Φ being the standard normal distribution function; for floating-point tensors.
//
//tenon:into
func (x *Exec) GELU(t *Tensor) *Tensor { return x.op(rowGELU, t).call1() }

// GELUTanh returns GELU's approximation by the hyperbolic tangent; for floating-point tensors.
//
//tenon:into
func (x *Exec) GELUTanh(t *Tensor) *Tensor { return x.op(rowGELUTanh, t).call1() }

// SiLU returns t·sigmoid(t); for floating-point and complex tensors.
func (x *Exec) SiLU(t *Tensor) *Tensor { return x.op(rowSiLU, t).call1() }

// LeakyReLUOpt are the options of LeakyReLU. The zero value is PyTorch's default.
type LeakyReLUOpt struct {
	// Slope is the factor of numbers that are not positive; the default is 0.01.
	Slope Scalar
}

// LeakyReLU returns t where it is positive, else slope·t; for floating-point tensors.
func (x *Exec) LeakyReLU(t *Tensor, opt LeakyReLUOpt) *Tensor {
	return x.scalarsOp(rowLeakyReLU, t, Or("LeakyReLU", "Slope", opt.Slope, 0.01)).call1()
}

// ELUOpt are the options of ELU. The zero value is PyTorch's default.
type ELUOpt struct {
	// Alpha is the factor of exp(t)-1; the default is 1.
	Alpha Scalar
}

// ELU returns t where it is positive, else alpha·(exp(t)-1); for floating-point tensors.
func (x *Exec) ELU(t *Tensor, opt ELUOpt) *Tensor {
	return x.scalarsOp(rowELU, t, Or("ELU", "Alpha", opt.Alpha, 1), 1, 1).call1()
}

// HardtanhOpt are the options of Hardtanh. The zero value is PyTorch's default.
type HardtanhOpt struct {
	// Min and Max are the bounds; the defaults are -1 and 1.
	Min, Max Scalar
}

// Hardtanh returns t limited to the range from opt.Min to opt.Max, with gradient 0 at the bounds; for floating-point tensors and signed
// integers.
func (x *Exec) Hardtanh(t *Tensor, opt HardtanhOpt) *Tensor {
	lo, hi := Or("Hardtanh", "Min", opt.Min, -1), Or("Hardtanh", "Max", opt.Max, 1)
	if lo > hi {
		panicAt("Hardtanh", fault.Invalid, "Min is %v and Max is %v; give bounds where Min is not larger than Max", lo, hi)
	}
	f := x.op(rowHardtanh, t)
	f.setHole(1, lo)
	f.setHole(2, hi)
	return f.call1()
}

// SoftplusOpt are the options of Softplus. The zero value is PyTorch's default.
type SoftplusOpt struct {
	// Beta is the factor of t; the default is 1. Threshold is the product beta·t above which the result is t; the default is 20.
	Beta, Threshold Scalar
}

// Softplus returns log(1+exp(beta·t))/beta, and t where beta·t is above the threshold; for floating-point tensors.
//
//tenon:into
func (x *Exec) Softplus(t *Tensor, opt SoftplusOpt) *Tensor {
	return x.scalarsOp(rowSoftplus, t, Or("Softplus", "Beta", opt.Beta, 1), Or("Softplus", "Threshold", opt.Threshold, 20)).call1()
}

// LogSigmoid returns log(1/(1+exp(-t))); for floating-point tensors.
//
//tenon:into
func (x *Exec) LogSigmoid(t *Tensor) *Tensor { return x.op(rowLogSigmoid, t).call1() }

// backPReLU uses the slope w at 0 too, where the gradient of w is t.
func backPReLU(b *back) {
	x, g, t, w := b.x, b.grad(0), b.in(0), b.in(1)
	if !x.GradEnabled() {
		if b.need(0) {
			b.set(0, x.op(rowPReLUBackward, g, t, w).call1())
		}
		if b.need(1) {
			f := x.op(rowPReLUSlope, g, t)
			f.dims = append(f.dims, w.shape...)
			b.set(1, f.call1())
		}
		return
	}
	above := x.GtS(t, 0)
	if b.need(0) {
		b.set(0, x.pick(above, g, 0, x.Mul(g, w), 0))
	}
	if b.need(1) {
		b.set(1, x.pick(above, nil, 0, x.Mul(g, t), 0))
	}
}

// PReLU returns t where it is positive, else slopes·t. slopes has one element, or is a vector with one for each channel, that is, for each
// index in dimension 1 of t. Both have the same floating-point type, except under autocast.
func (x *Exec) PReLU(t, slopes *Tensor) *Tensor {
	if x.m.autocast != dtype.Invalid {
		return x.composite("PReLU", func(x *Exec) *Tensor { return x.casting("PReLU", castLow, &t, &slopes).PReLU(t, slopes) })
	}
	both := []*Tensor{t, slopes}
	if t.dt != slopes.dt {
		x.fail("PReLU", fault.Invalid, both, "the input is %v, but the slopes are %v; convert one with x.ToDType", t.dt, slopes.dt)
	}
	if len(slopes.shape) > 1 {
		x.fail("PReLU", fault.Invalid, both, "prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = %d", len(slopes.shape))
	}
	n := slopes.Numel()
	if n == 1 && len(t.shape) > 0 && len(slopes.shape) == 1 {
		return x.op(rowPReLU, t, slopes).call1()
	}
	return x.composite("PReLU", func(x *Exec) *Tensor {
		if n == 1 {
			return x.op(rowPReLU, t, x.Reshape(slopes)).call1()
		}
		channels := 1
		switch len(t.shape) {
		case 0:
			x.fail("PReLU", fault.Invalid, both, "Not allow zero-dim input tensor: it has no channels")
		case 1:
		default:
			channels = t.shape[1]
		}
		if n != channels {
			x.fail("PReLU", fault.Invalid, both, "Mismatch of parameter numbers and input channel size. Found parameter numbers = %d "+
				"and channel size = %d", n, channels)
		}
		return x.op(rowPReLU, t, x.classes(slopes, len(t.shape), 1)).call1()
	})
}
