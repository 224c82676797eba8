package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// rowBCE is the element-wise binary cross-entropy: its inputs are probabilities and targets. rowBCEGrad is the gradient of the
// probabilities; its inputs are the loss's gradient and the same two.
var rowBCE, rowBCEGrad *row

func init() {
	rowBCE = define(row{Name: "BCE", takes: "p target", Torch: "nn.functional.binary_cross_entropy", point: kernels.BCE, rule: realFloat,
		flags: flagAsserts, saves: in0 | in1})
	rowBCEGrad = define(row{Name: "BCEBackward", takes: "g p target", point: kernels.BCEBackward, rule: realFloat, saves: in0 | in1 | in2})
}

// leastVariance replaces p(1-p) where that is less, in derivatives, as in PyTorch.
const leastVariance = 1e-12

func init() {
	rowBCE.back = func(b *back) {
		x, g, p := b.x, b.grad(0), b.in(0)
		if b.need(0) {
			b.set(0, x.op(rowBCEGrad, g, p, b.in(1)).call1())
		}
		if b.need(1) {
			b.set(1, x.Mul(g, x.Sub(x.Log(x.RSubS(p, 1)), x.Log(p)))) // not clamped, nor in PyTorch
		}
	}
	// The derivatives of g·(p-y)/(p(1-p)): by p it is g·(p² - 2py + y)/(p(1-p))², by y -g/(p(1-p)).
	rowBCEGrad.back = func(b *back) {
		x, u, g, p, y := b.x, b.grad(0), b.in(0), b.in(1), b.in(2)
		if b.need(0) {
			b.set(0, x.op(rowBCEGrad, u, p, y).call1())
		}
		if !b.need(1) && !b.need(2) {
			return
		}
		ug := x.Mul(u, g)
		if b.need(1) {
			v := x.Mul(x.AddS(p, leastVariance), x.AddS(x.RSubS(p, 1), leastVariance))
			top := x.Add(x.Mul(p, x.Sub(p, x.MulS(y, 2))), y)
			b.set(1, x.Mul(ug, x.Div(top, x.Mul(v, v))))
		}
		if b.need(2) {
			b.set(2, x.Neg(x.Div(ug, x.ClampMinS(x.Mul(p, x.RSubS(p, 1)), leastVariance))))
		}
	}
}

// BCEOpt are the options of BCE.
type BCEOpt struct {
	// Weight, which broadcasts to the input, multiplies each loss; nil means 1.
	Weight *Tensor
	// Reduction is ReduceMean (the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// BCE returns the binary cross-entropy of the probabilities t, from 0 to 1, against target, probabilities of t's shape and type. Logarithms
// are clamped at -100, so that a certain mistake costs 100; a number in t or target that is not from 0 to 1 fails as in AssertAsync. It is
// refused under autocast, where a sigmoid before it would overflow: use BCEWithLogits instead.
func (x *Exec) BCE(t, target *Tensor, opt BCEOpt) *Tensor {
	weight := opt.Weight
	how, both := x.reductionOf("BCE", opt.Reduction), []*Tensor{t, target}
	switch {
	case x.m.autocast != dtype.Invalid:
		//tenon:quoted the recorded table of autocast
		x.fail("BCE", fault.Unsupported, both, "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. "+
			"Use BCEWithLogits, which takes what goes into the sigmoid")
	case !infer.Same(t.shape, target.shape):
		x.fail("BCE", fault.Invalid, both, "Using a target size (%v) that is different to the input size (%v) is deprecated; ensure "+
			"they have the same size", target.shape, t.shape)
	case t.dt != target.dt:
		x.fail("BCE", fault.Invalid, both, "the target is %v, but the input is %v; convert the target with x.ToDType", target.dt, t.dt)
	}
	if weight != nil {
		x.wantBroadcast("BCE", weight, t.shape...)
	}
	return x.composite("BCE", func(x *Exec) *Tensor {
		y := x.op(rowBCE, t, target).call1()
		if t.dt.Size() == 2 {
			// PyTorch rounds halves at every step.
			v := x.noGrad()
			no, yes := v.ClampMinS(v.Log1p(v.Neg(t)), -100), v.ClampMinS(v.Log(t), -100)
			steps := v.Sub(v.Mul(v.SubS(target, 1), no), v.Mul(target, yes))
			y = x.Add(y, v.Sub(steps, y))
		}
		if weight != nil {
			y = x.Mul(y, weight)
		}
		return x.reduceLoss(y, how)
	})
}

// KLDivOpt are the options of KLDiv.
type KLDivOpt struct {
	// Reduction is ReduceMean over all elements (the zero value), ReduceBatchMean (the sum divided by the size of dimension 0, as the
	// divergence is defined), ReduceSum or ReduceNone.
	Reduction Reduction
	// LogTarget says that the target holds logarithms of probabilities.
	LogTarget bool
}

// KLDiv returns the Kullback-Leibler divergence of t, logarithms of probabilities, from target: the mean (or the reduction in opt) of
// target·(log(target) - t), 0 where target is 0; broadcast, in the promoted type.
func (x *Exec) KLDiv(t, target *Tensor, opt KLDivOpt) *Tensor {
	batch := opt.Reduction == ReduceBatchMean
	if batch {
		opt.Reduction = ReduceSum
	}
	how := x.reductionOf("KLDiv", opt.Reduction)
	return x.composite("KLDiv", func(x *Exec) *Tensor {
		x = x.casting("KLDiv", castFloat32, &t, &target)
		var y *Tensor
		if opt.LogTarget {
			y = x.Mul(x.Exp(target), x.Sub(target, t))
		} else {
			x.check("KLDiv", infer.Real("KLDiv", target.dt))
			entropy := x.pick(x.EqS(target, 0), nil, 0, x.Mul(target, x.Log(target)), 0)
			y = x.Sub(entropy, x.Mul(target, t))
		}
		y = x.reduceLoss(y, how)
		if batch && len(t.shape) > 0 {
			y = x.DivS(y, float64(t.shape[0]))
		}
		return y
	})
}

// widened returns t, converted to float32 if it has a half type.
func (x *Exec) widened(t *Tensor) *Tensor {
	if t.dt != infer.Accumulated(t.dt) {
		return x.ToDType(t, infer.Accumulated(t.dt))
	}
	return t
}
