package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// Random numbers come from the Exec's generator, which is the device's own unless WithGenerator names another. They are the numbers that
// PyTorch draws on a device with the same number of multiprocessors and threads.

// WithGenerator returns the Exec that draws random numbers from g; nil is the device's own generator. Another device's own is refused.
func (x *Exec) WithGenerator(g *rt.Generator) *Exec {
	x.usable("WithGenerator")
	if g != nil && g.Device() != nil && g.Device() != x.Device() {
		here, there := rt.Apart(x.Device(), g.Device())
		x.fail("WithGenerator", fault.Invalid, nil, "the generator is the default one of %s, and this Exec works on %s; give one of "+
			"NewGenerator or Clone, or that device's", there, here)
	}
	m := x.m
	m.generator = g
	return x.with(m)
}

// philox takes the call's draw from the frame's generator, or returns the earlier draw if the call was deferred.
func (f *frame) philox() kernels.Philox {
	if !f.again {
		n := f.row.draws(f)
		if c := f.x.s.capture; c != nil {
			return c.generator(f.x.Generator()).take(n)
		}
		f.drawn = take(f.x.Generator(), n)
	} else if l := f.x.s.lent; l != nil && (l.notes != nil || l.graphed) {
		return l.philox(f)
	}
	return kernels.Philox{Seed: f.drawn.seed, Offset: f.drawn.at}
}

var rowRandom, rowBernoulli, rowDropout, rowDropoutBackward *row

func init() {
	// The result depends on nothing, so the derivative does nothing: a tensor that is overwritten loses its former history.
	rowRandom = define(row{Name: "Random", takes: "; p0 p1 p2; shape* dtype options", draws: wordsOfRandom, run: runRandom,
		back: func(*back) {}, infer: func(f *frame) {
			if f.dst[0] != nil {
				f.newOut(0, f.dst[0].dt, f.dst[0].shape, nil)
				return
			}
			f.newOut(0, f.dt, f.dims, nil)
		}})
	rowBernoulli = define(row{Name: "Bernoulli", takes: "p", draws: wordsOfBernoulli, Torch: "bernoulli", run: runBernoulli, back: flat,
		flags: flagAsserts,
		infer: func(f *frame) {
			t := f.in[0]
			if !t.dt.IsFloat() {
				f.fail(fault.Invalid, "Bernoulli needs floating-point probabilities, not %v; convert them with x.ToDType", t.dt)
			}
			f.newOut(0, t.dt, t.shape, nil)
		}})
	rowDropout = define(row{Name: "Dropout", takes: "t; p -> y mask", draws: wordsOfDropout, Torch: "nn.functional.dropout",
		run: runDropout, saves: out1, remake: remakeDropout, infer: func(f *frame) {
			t := f.in[0]
			if !t.dt.IsFloat() {
				f.fail(fault.Invalid, "Dropout needs a floating-point tensor, not %v; convert it with x.ToDType", t.dt)
			}
			f.newOut(0, t.dt, t.shape, f.layout(t.shape))
			f.newOut(1, dtype.Bool, t.shape, f.layout(t.shape))
		}, back: func(b *back) {
			b.set(0, b.x.dropoutBackward(b.grad(0), b.out(1), kernels.FloatScalar(1/(1-b.n.scalar[0].F))))
		}})
	// Inputs are the gradient and the mask; scalar 0 multiplies the elements that the mask keeps.
	rowDropoutBackward = define(row{Name: "DropoutBackward", takes: "g mask; scale", point: kernels.MaskedScale, rule: realFloat,
		saves: in1, back: func(b *back) {
			b.set(0, b.x.dropoutBackward(b.grad(0), b.in(1), b.n.scalar[0]))
		}})
}

func remakeDropout(a *attrs, dt dtype.DType) *row {
	a.scalar = [4]kernels.Scalar{kernels.FloatScalar(kernels.DropoutScale(dt, a.scalar[0].F))}
	return rowDropoutBackward
}

func (x *Exec) dropoutBackward(g, mask *Tensor, scale kernels.Scalar) *Tensor {
	f := x.op(rowDropoutBackward, g, mask)
	f.scalar[0] = scale
	return f.call1()
}

func wordsOfRandom(f *frame) uint64 {
	return f.opt.(distribution).Advance(f.Limits(), f.out[0].dt, infer.Numel(f.out[0].shape))
}

func wordsOfBernoulli(f *frame) uint64 {
	if infer.Numel(f.out[0].shape) == 0 {
		return 0
	}
	return kernels.BernoulliAdvance
}

func wordsOfDropout(f *frame) uint64 {
	n := infer.Numel(f.in[0].shape)
	if n == 0 {
		return 0
	}
	return kernels.DropoutAdvance(f.Limits(), n)
}

func runRandom(f *frame) error {
	op, t := f.opt.(distribution).RandomOp, f.out[0]
	if infer.Numel(t.shape) == 0 {
		return nil
	}
	return kernels.Random(f, op, f.scalar[:op.Scalars()], operand(t), f.philox())
}

func runBernoulli(f *frame) error {
	out, p := f.out[0], f.in[0]
	if infer.Numel(out.shape) == 0 {
		return nil
	}
	return kernels.Bernoulli(f, operand(out), operand(p), f.philox())
}

func runDropout(f *frame) error {
	in, out, mask := f.in[0], f.out[0], f.out[1]
	if infer.Numel(in.shape) == 0 {
		return nil
	}
	return kernels.Dropout(f, in.dt, f.scalar[0].F, operand(out), operand(mask), operand(in), f.philox())
}

// random draws from a distribution into dst, or into a new tensor.
func (x *Exec) random(op *kernels.RandomOp, dst *Tensor, shape []int, dt dtype.DType, scalars ...kernels.Scalar) *Tensor {
	f := x.op(rowRandom)
	f.opt, f.dt = distribution{op}, dt
	f.dims = append(f.dims, shape...)
	copy(f.scalar[:], scalars)
	if dst != nil {
		f.call1Into(dst)
		return dst
	}
	return f.call1()
}

// wantFloat fails unless dt is a real floating-point type.
func (x *Exec) wantFloat(op string, dt dtype.DType) {
	if !dt.IsFloat() {
		x.fail(op, fault.Unsupported, nil, "%s draws floating-point numbers, not %v; draw those and convert them with x.ToDType, or "+
			"whole numbers with RandInt", op, dt)
	}
}

// uniformScalars returns low, high - low and high.
func uniformScalars(low, high float64) []kernels.Scalar {
	return []kernels.Scalar{kernels.FloatScalar(low), kernels.FloatScalar(high - low), kernels.FloatScalar(high)}
}

// Rand returns a tensor of uniform random numbers in [0, 1).
//
//tenon:into
func (x *Exec) Rand(shape []int, dt dtype.DType) *Tensor {
	x.wantFloat("Rand", dt)
	return x.random(kernels.RandomUniform, nil, shape, dt, uniformScalars(0, 1)...)
}

// RandN returns a tensor of normal random numbers of mean 0 and variance 1.
//
//tenon:into
func (x *Exec) RandN(shape []int, dt dtype.DType) *Tensor {
	x.wantFloat("RandN", dt)
	return x.random(kernels.RandomNormal, nil, shape, dt, kernels.FloatScalar(0), kernels.FloatScalar(1))
}

// RandIntOpt are the options of RandInt. The zero value is PyTorch's default.
type RandIntOpt struct {
	// Low is the least number.
	Low int64
}

// RandInt returns a tensor of uniform random integers in [low, high).
//
//tenon:into
func (x *Exec) RandInt(high int64, shape []int, dt dtype.DType, opt RandIntOpt) *Tensor {
	low := opt.Low
	if high <= low {
		x.fail("RandInt", fault.Invalid, nil, "there is no number from %d to below %d; give a high that is greater than low", low, high)
	}
	op := kernels.RandomInt32
	if uint64(high-low) >= 1<<32 {
		op = kernels.RandomInt64
	}
	return x.random(op, nil, shape, dt, kernels.IntScalar(high-low), kernels.IntScalar(low))
}

// UniformRange refuses bounds of random numbers of a type that are in the wrong order, or too far apart for it.
func UniformRange(dt dtype.DType, low, high float64) error {
	switch {
	case !(low <= high):
		return infer.Refusal(fault.Invalid, "there is no number from %v to %v; give a low that is at most high", low, high)
	case !(high-low <= greatest(dt)):
		return infer.Refusal(fault.Invalid, "%v cannot hold the distance from %v to %v; give bounds that are closer", dt, low, high)
	}
	return nil
}

// UniformInto fills dst with uniform random numbers in [low, high).
func (x *Exec) UniformInto(dst *Tensor, low, high float64) {
	x.wantFloat("UniformInto", dst.dt)
	x.refuse("UniformInto", UniformRange(dst.dt, low, high), dst)
	x.random(kernels.RandomUniform, dst, nil, dst.dt, uniformScalars(low, high)...)
}

// NormalInto fills dst with normal random numbers of the given mean and standard deviation.
func (x *Exec) NormalInto(dst *Tensor, mean, std float64) {
	x.wantFloat("NormalInto", dst.dt)
	if !(std >= 0) {
		x.fail("NormalInto", fault.Invalid, []*Tensor{dst}, "the standard deviation is %v; give one that is not negative", std)
	}
	x.random(kernels.RandomNormal, dst, nil, dst.dt, kernels.FloatScalar(mean), kernels.FloatScalar(std))
}

// BernoulliSInto sets each element of dst to 1 with probability p, else to 0.
func (x *Exec) BernoulliSInto(dst *Tensor, p float64) {
	if !(p >= 0 && p <= 1) {
		x.fail("BernoulliSInto", fault.Invalid, []*Tensor{dst}, "the probability is %v; give one from 0 to 1", p)
	}
	x.random(kernels.RandomBernoulli, dst, nil, dst.dt, kernels.FloatScalar(p))
}

// LogNormalInto fills dst with e to the power of normal random numbers of the given mean and standard deviation.
func (x *Exec) LogNormalInto(dst *Tensor, mean, std float64) {
	x.wantFloat("LogNormalInto", dst.dt)
	if !(std > 0) {
		x.fail("LogNormalInto", fault.Invalid, []*Tensor{dst}, "the standard deviation is %v; give a positive one", std)
	}
	x.random(kernels.RandomLogNormal, dst, nil, dst.dt, kernels.FloatScalar(mean), kernels.FloatScalar(std))
}

// ExponentialInto fills dst with exponentially distributed random numbers of the given rate (mean 1/rate); none of them is 0.
func (x *Exec) ExponentialInto(dst *Tensor, rate float64) {
	x.wantFloat("ExponentialInto", dst.dt)
	if !(rate > 0) {
		x.fail("ExponentialInto", fault.Invalid, []*Tensor{dst}, "the rate is %v; give a positive one", rate)
	}
	x.random(kernels.RandomExponential, dst, nil, dst.dt, kernels.FloatScalar(rate))
}

// CauchyInto fills dst with random numbers from the Cauchy distribution with the given median and scale.
func (x *Exec) CauchyInto(dst *Tensor, median, scale float64) {
	x.wantFloat("CauchyInto", dst.dt)
	if !(scale > 0) {
		x.fail("CauchyInto", fault.Invalid, []*Tensor{dst}, "the scale is %v; give a positive one", scale)
	}
	x.random(kernels.RandomCauchy, dst, nil, dst.dt, kernels.FloatScalar(median), kernels.FloatScalar(scale))
}

// GeometricInto fills dst, of any real type but bool, with the number of trials with success probability p up to the first success, 1 at
// least.
func (x *Exec) GeometricInto(dst *Tensor, p float64) {
	if !(p > 0 && p < 1) {
		x.fail("GeometricInto", fault.Invalid, []*Tensor{dst}, "the probability is %v; give one between 0 and 1", p)
	}
	if dst.dt == dtype.Bool || dst.dt.IsComplex() {
		x.fail("GeometricInto", fault.Unsupported, []*Tensor{dst}, "GeometricInto draws real numbers, not %v; give it a "+
			"destination of another type", dst.dt)
	}
	x.random(kernels.RandomGeometric, dst, nil, dst.dt, kernels.FloatScalar(p))
}

// Bernoulli returns a tensor of p's type that is 1 with the probability in p's element, else 0. A number in p that is not from 0 to 1 fails
// as in AssertAsync.
//
//tenon:into
func (x *Exec) Bernoulli(p *Tensor) *Tensor {
	if p.dt != dtype.Float16 && p.dt != dtype.BFloat16 {
		return x.op(rowBernoulli, p).call1()
	}
	return x.composite("Bernoulli", func(x *Exec) (drawn *Tensor) { // halves are compared as float32
		x.together("Bernoulli", func(x *Exec) { drawn = x.ToDType(x.op(rowBernoulli, x.ToDType(p, dtype.Float32)).call1(), p.dt) })
		return drawn
	})
}

// Dropout sets each element of t to 0 with probability p, and multiplies the others by 1/(1-p). If p is 0, it returns t and draws nothing.
func (x *Exec) Dropout(t *Tensor, p float64) *Tensor {
	switch {
	case !(p >= 0 && p <= 1):
		x.fail("Dropout", fault.Invalid, []*Tensor{t}, "dropout probability has to be between 0 and 1, but got %v", p)
	case p == 0 && t != nil && t.dt.IsFloat(): // a draw of exactly 1 would drop an element
		return t
	case p == 1 && t != nil && t.dt.IsFloat():
		return x.MulS(t, 0)
	}
	f := x.op(rowDropout, t)
	f.scalar[0] = kernels.FloatScalar(p)
	f.call()
	y, mask := f.out[0], f.out[1]
	x.s.leave(f)
	mask.close()
	return y
}

type distribution struct{ *kernels.RandomOp }

func (distribution) param() {}
