package core

import (
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// LossOpt are the options of element-wise losses.
type LossOpt struct {
	// Reduction is ReduceMean (the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// distance is a loss of the difference of two tensors of one shape and type: i[0] is the reduction, scalar 0 the bound of losses that have
// one. The row of the gradient of input 0 takes the loss's gradient and both inputs; input 1's gradient is the negative.
type distance struct {
	each, gradient *kernels.PointOp
	sum, mean      *kernels.ReduceOp
	// factor is the constant factor of the derivative with respect to the difference; slope computes the rest of it, with Exec operations.
	factor float64
	slope  func(x *Exec, d *Tensor, bound float64) *Tensor
}

var rowMSE, rowL1, rowSmoothL1, rowHuber, rowDistanceGrad *row

func init() {
	squared := &distance{each: kernels.SquaredError, gradient: kernels.SquaredErrorBackward, sum: kernels.SquaredErrorSum,
		mean: kernels.SquaredErrorMean, factor: 2,
		slope: func(_ *Exec, d *Tensor, _ float64) *Tensor { return d }}
	absolute := &distance{each: kernels.AbsoluteError, gradient: kernels.AbsoluteErrorBackward, sum: kernels.AbsoluteErrorSum,
		mean: kernels.AbsoluteErrorMean, factor: 1,
		slope: func(x *Exec, d *Tensor, _ float64) *Tensor { return x.Sign(d) }}
	smooth := &distance{each: kernels.SmoothL1, gradient: kernels.SmoothL1Backward, sum: kernels.SmoothL1Sum,
		mean: kernels.SmoothL1Mean, factor: 1,
		slope: func(x *Exec, d *Tensor, beta float64) *Tensor { return x.DivS(x.held(d, beta), beta) }}
	huber := &distance{each: kernels.Huber, gradient: kernels.HuberBackward, sum: kernels.HuberSum, mean: kernels.HuberMean, factor: 1,
		slope: (*Exec).held}
	rowMSE = define(distanceRow("MSELoss", "nn.functional.mse_loss", squared))
	rowL1 = define(distanceRow("L1Loss", "nn.functional.l1_loss", absolute))
	rowSmoothL1 = define(distanceRow("SmoothL1Loss", "nn.functional.smooth_l1_loss", smooth))
	rowHuber = define(distanceRow("HuberLoss", "nn.functional.huber_loss", huber))
	rowDistanceGrad = define(row{Name: "LossBackward", takes: "g t target; factor bound; options",
		infer: func(f *frame) { f.newOut(0, f.in[1].dt, f.in[1].shape, f.layout(f.in[1].shape)) }, run: runDistanceGrad, points: true})
}

// held returns d clamped to ±bound. At the bounds it has derivative 0, unlike Clamp, because the loss is straight there already.
func (x *Exec) held(d *Tensor, bound float64) *Tensor {
	return x.pick(x.GeS(x.Abs(d), bound), x.MulS(x.Sign(d), bound), 0, d, 0)
}

func distanceRow(name, torch string, d *distance) row {
	takes := "t target;; reduction"
	if d.each.Scalars > 0 {
		takes = "t target; bound; reduction"
	}
	return row{Name: name, Torch: torch, takes: takes, saves: in0 | in1, back: func(b *back) { backDistance(b, d) },
		infer: func(f *frame) {
			t := f.in[0]
			if Reduction(f.i[0]) == ReduceNone {
				f.newOut(0, t.dt, t.shape, f.layout(t.shape))
			} else {
				f.newOut(0, t.dt, nil, nil)
			}
		},
		run: func(f *frame) error {
			n := f.in[0].Numel()
			if Reduction(f.i[0]) == ReduceNone {
				if n == 0 {
					return nil
				}
				outs, ins := f.operandsOf()
				return f.pointwise(d.each, f.in[0].dt, f.scalar[:d.each.Scalars], outs, ins)
			}
			op := d.mean
			if Reduction(f.i[0]) == ReduceSum {
				op = d.sum
			}
			f.opers = append(f.opers[:0], operand(f.out[0]), operand(f.in[0]), operand(f.in[1]))
			return kernels.Reduce(f, op, f.in[0].dt, f.scalar[:op.Scalars], f.opers[:1], f.opers[1:], f.reduced(len(f.in[0].shape)))
		}, reduces: true}
}

func runDistanceGrad(f *frame) error {
	if f.out[0].Numel() == 0 {
		return nil
	}
	outs, ins := f.operandsOf()
	op := f.opt.(lossGrad).op
	return f.pointwise(op, f.out[0].dt, f.scalar[:op.Scalars], outs, ins)
}

func backDistance(b *back, d *distance) {
	x, g, t, u := b.x, b.grad(0), b.in(0), b.in(1)
	factor, bound := d.factor, b.n.scalar[0]
	if Reduction(b.n.i[0]) == ReduceMean {
		factor /= float64(t.Numel())
	}
	if !x.GradEnabled() {
		for i, c := range []float64{factor, -factor} {
			if b.need(i) {
				f := x.op(rowDistanceGrad, g, t, u)
				f.opt, f.scalar[0], f.scalar[1] = lossGrad{d.gradient}, kernels.FloatScalar(c), bound
				b.set(i, f.call1())
			}
		}
		return
	}
	y := x.Mul(x.MulS(d.slope(x, x.Sub(t, u), bound.F), factor), g)
	b.set(0, y)
	if b.need(1) {
		b.set(1, x.Neg(y))
	}
}

// distanceLoss converts both tensors to one shape and type and runs the row.
func (x *Exec) distanceLoss(r *row, t, target *Tensor, bound float64, opt LossOpt) *Tensor {
	how := x.reductionOf(r.Name, opt.Reduction)
	return x.composite(r.Name, func(x *Exec) *Tensor {
		x = x.casting(r.Name, castFloat32, &t, &target)
		t, target := x.alike(t, target)
		if !t.dt.IsFloat() {
			x.fail(r.Name, fault.Unsupported, []*Tensor{t, target}, "%s is not defined for %v; convert to a floating-point type first",
				r.Name, t.dt)
		}
		f := x.op(r, t, target)
		f.i[0], f.scalar[0] = int(how), kernels.FloatScalar(bound)
		return f.call1()
	})
}

// alike returns a and b broadcast to one shape and converted to the type they promote to.
func (x *Exec) alike(a, b *Tensor) (c, d *Tensor) {
	f := x.op(rowMSE, a, b)
	dt := f.promoted()
	shape := a.shape
	if !infer.Same(a.shape, b.shape) {
		shape = f.broadcast(nil)
	}
	x.s.leave(f)
	if !infer.Same(a.shape, shape) {
		a = x.Expand(a, shape...)
	}
	if !infer.Same(b.shape, shape) {
		b = x.Expand(b, shape...)
	}
	return x.ToDType(a, dt), x.ToDType(b, dt)
}

// MSELoss returns the mean (or the reduction in opt) of the squares of t - target, broadcast, in the promoted type.
func (x *Exec) MSELoss(t, target *Tensor, opt LossOpt) *Tensor {
	return x.distanceLoss(rowMSE, t, target, 0, opt)
}

// L1Loss returns the mean (or the reduction in opt) of |t - target|, broadcast, in the promoted type; for complex tensors in the type of
// their parts.
func (x *Exec) L1Loss(t, target *Tensor, opt LossOpt) *Tensor {
	if t.dt.IsComplex() || target.dt.IsComplex() {
		how := x.reductionOf("L1Loss", opt.Reduction)
		return x.composite("L1Loss", func(x *Exec) *Tensor {
			x = x.casting("L1Loss", castFloat32, &t, &target)
			return x.reduceLoss(x.Abs(x.Sub(t, target)), how)
		})
	}
	return x.distanceLoss(rowL1, t, target, 0, opt)
}

// SmoothL1LossOpt are the options of SmoothL1Loss. The zero value is PyTorch's default.
type SmoothL1LossOpt struct {
	// Beta is the difference below which the loss is quadratic; the default is 1.
	Beta Scalar
	// Reduction is ReduceMean (the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// SmoothL1Loss returns the mean (or the reduction in opt) of d²/(2·beta) where d = |t - target| is below beta, and of d - beta/2 elsewhere,
// broadcast, in the promoted floating-point type. beta must not be negative; with 0 it is L1Loss.
func (x *Exec) SmoothL1Loss(t, target *Tensor, opt SmoothL1LossOpt) *Tensor {
	beta, plain := Or("SmoothL1Loss", "Beta", opt.Beta, 1), LossOpt{Reduction: opt.Reduction}
	if !(beta >= 0) {
		x.fail("SmoothL1Loss", fault.Invalid, []*Tensor{t, target}, "smooth_l1_loss does not support negative values for beta, got %v",
			beta)
	}
	if beta == 0 {
		return x.L1Loss(t, target, plain)
	}
	return x.distanceLoss(rowSmoothL1, t, target, beta, plain)
}

// HuberLossOpt are the options of HuberLoss. The zero value is PyTorch's default.
type HuberLossOpt struct {
	// Delta is the difference below which the loss is quadratic; the default is 1.
	Delta Scalar
	// Reduction is ReduceMean (the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// HuberLoss returns the mean (or the reduction in opt) of d²/2 where d = |t - target| is below delta, and of delta·(d - delta/2) elsewhere,
// broadcast, computed in the promoted floating-point type and returned in t's. delta must be positive.
func (x *Exec) HuberLoss(t, target *Tensor, opt HuberLossOpt) *Tensor {
	delta := Or("HuberLoss", "Delta", opt.Delta, 1)
	if !(delta > 0) {
		x.fail("HuberLoss", fault.Invalid, []*Tensor{t, target}, "huber_loss does not support non-positive values for delta, got %v", delta)
	}
	return x.composite("HuberLoss", func(x *Exec) *Tensor {
		x = x.casting("HuberLoss", castFloat32, &t, &target)
		y := x.distanceLoss(rowHuber, t, target, delta, LossOpt{Reduction: opt.Reduction})
		if y.dt != t.dt {
			y = x.ToDType(y, t.dt)
		}
		return y
	})
}

// rowBCELogits is the element-wise loss: its inputs are logits, targets and weights of positives or nil, of one shape. rowBCELogitsGrad is
// the gradient of the logits; its inputs are the loss's gradient and the same three.
var rowBCELogits, rowBCELogitsGrad *row

func init() {
	rowBCELogits = define(row{Name: "BCEWithLogits", takes: "t target positive#", Torch: "nn.functional.binary_cross_entropy_with_logits",
		point: kernels.BCEWithLogits, rule: realFloat,
		saves: in0 | in1 | in2})
	rowBCELogitsGrad = define(row{Name: "BCEWithLogitsBackward", takes: "g t target positive#", point: kernels.BCEWithLogitsBackward,
		rule: realFloat})
}

func init() {
	rowBCELogits.back = func(b *back) {
		x, g, t, y, w := b.x, b.grad(0), b.in(0), b.in(1), b.in(2)
		if b.need(0) && !x.GradEnabled() {
			b.set(0, x.withPositives(rowBCELogitsGrad, w, g, t, y).call1())
		} else if b.need(0) {
			// (1 + (w-1)*y)*sigmoid(t) - w*y
			d := x.Sigmoid(t)
			if w == nil {
				d = x.Sub(d, y)
			} else {
				wy := x.Mul(w, y)
				d = x.Sub(x.Mul(d, x.AddS(x.Sub(wy, y), 1)), wy)
			}
			b.set(0, x.Mul(g, d))
		}
		if b.need(1) {
			d := x.Neg(t)
			if w != nil {
				d = x.Sub(d, x.Mul(x.SubS(w, 1), x.LogSigmoid(t)))
			}
			b.set(1, x.Mul(g, d))
		}
	}
}

// withPositives enters a frame whose last operand is w, or 1.
func (x *Exec) withPositives(r *row, w *Tensor, ins ...*Tensor) *frame {
	f := x.op(r, append(ins, w)...)
	if w == nil {
		f.setHole(len(ins), 1)
	}
	return f
}

// BCEWithLogitsOpt are the options of BCEWithLogits.
type BCEWithLogitsOpt struct {
	// Weight, which broadcasts to the input, multiplies each loss, and PositiveWeight the part of the positives; nil means 1.
	Weight, PositiveWeight *Tensor
	// Reduction is ReduceMean (the zero value), ReduceSum or ReduceNone.
	Reduction Reduction
}

// BCEWithLogits returns the binary cross-entropy of the logits t against target, probabilities of t's shape, computed without overflow.
func (x *Exec) BCEWithLogits(t, target *Tensor, opt BCEWithLogitsOpt) *Tensor {
	weight, positive := opt.Weight, opt.PositiveWeight
	how := x.reductionOf("BCEWithLogits", opt.Reduction)
	if !infer.Same(t.shape, target.shape) {
		x.fail("BCEWithLogits", fault.Invalid, []*Tensor{t, target}, "Target size (%v) must be the same as input size (%v)",
			target.shape, t.shape)
	}
	for _, w := range []*Tensor{weight, positive} {
		if w != nil {
			x.wantBroadcast("BCEWithLogits", w, t.shape...)
		}
	}
	return x.composite("BCEWithLogits", func(x *Exec) *Tensor {
		x = x.casting("BCEWithLogits", castFloat32, &t, &target, &weight, &positive)
		y := x.logitLoss(t, target, positive)
		if weight != nil {
			y = x.Mul(y, weight)
		}
		return x.reduceLoss(y, how)
	})
}

// logitLoss returns the element-wise losses. Losses of halves are rounded at every step, as in PyTorch.
func (x *Exec) logitLoss(t, target, positive *Tensor) *Tensor {
	if t.dt.Size() > 2 {
		return x.withPositives(rowBCELogits, positive, t, target).call1()
	}
	l := x.LogSigmoid(t)
	if positive != nil {
		l = x.Mul(x.AddS(x.Mul(x.SubS(positive, 1), target), 1), l)
	}
	return x.Sub(x.Mul(x.RSubS(target, 1), t), l)
}

// lossGrad is the attribute of a call of rowDistanceGrad.
type lossGrad struct{ op *kernels.PointOp }

func (lossGrad) param() {}
