package core

import (
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// rowNormGather computes mean, reciprocal deviation and unbiased variance of whole batches. Its inputs are the means and reciprocal
// deviations [W, C] of parts, and their numbers of elements, [W] or 0-d; scalar 0 is eps.
var rowNormGather *row

func init() {
	rowNormGather = define(row{Name: "BatchNormGatherStats", takes: "mean rstd count; eps -> mean rstd variance",
		Torch: "batch_norm_gather_stats_with_counts",
		infer: func(f *frame) {
			for i := range 3 {
				f.newOut(i, infer.Accumulated(f.in[0].dt), f.in[0].shape[1:], nil)
			}
		},
		run: func(f *frame) error {
			count := operand(f.in[2])
			stride := [2]int{}
			if len(count.Stride) > 0 {
				stride[0] = count.Stride[0]
			}
			count.Shape, count.Stride = f.in[0].shape, stride[:]
			return kernels.BatchNormGather(f, f.in[0].dt, operand(f.out[0]), operand(f.out[1]), operand(f.out[2]), operand(f.in[0]),
				operand(f.in[1]), count, f.scalar[0].F)
		}})
}

// BatchNormGatherStats combines the statistics of the W parts of a batch, for example from several devices: mean and invStd [W, C] are the
// means and 1/√(biased variance + eps) of the parts' channels, of a real floating-point type, and count, a vector [W] or one number for all
// parts, is how many elements a channel has in each part. It returns both for the whole batch, vectors [C], in float32 for halves.
// runningMean and runningVar [C] may be nil; otherwise they become old*(1-momentum) + new*momentum, in place, where the new variance is the
// unbiased one. It has no derivative.
func (x *Exec) BatchNormGatherStats(mean, invStd, count, runningMean, runningVar *Tensor, momentum, eps float64) (wholeMean,
	wholeInvStd *Tensor) {
	const op = "BatchNormGatherStats"
	both := []*Tensor{mean, invStd}
	switch {
	case !mean.dt.IsFloat() || invStd.dt != mean.dt:
		x.fail(op, fault.Invalid, both, "statistics are of one real floating-point type, not %v and %v; convert one with x.ToDType",
			mean.dt, invStd.dt)
	case len(mean.shape) != 2 || !infer.Same(mean.shape, invStd.shape):
		x.fail(op, fault.Invalid, both, "statistics are matrices [parts, channels] of one shape, not %v and %v", mean.shape, invStd.shape)
	case len(count.shape) > 0 && !infer.Same(count.shape, mean.shape[:1]):
		x.fail(op, fault.Invalid, []*Tensor{mean, count}, "counts are one number, or one for each of the %d parts, not of shape %v",
			mean.shape[0], count.shape)
	}
	for _, r := range []*Tensor{runningMean, runningVar} {
		if r != nil && !infer.Same(r.shape, mean.shape[1:]) {
			x.fail(op, fault.Invalid, []*Tensor{mean, r}, "running statistics are vectors of %d channels, not of shape %v",
				mean.shape[1], r.shape)
		}
	}
	x.bothRunning(op, runningMean, runningVar)
	momentum, eps = finite(op, "momentum", momentum), finite(op, "eps", eps)
	out := x.noGrad().compositeMany(op, func(x *Exec) []*Tensor {
		f := x.op(rowNormGather, mean, invStd, x.ToDType(count, infer.Accumulated(mean.dt)))
		f.scalar[0] = kernels.FloatScalar(eps)
		f.call()
		m, s, variance := f.out[0], f.out[1], f.out[2]
		x.s.leave(f)
		x.moveStats(runningMean, runningVar, m, variance, momentum)
		return []*Tensor{m, s}
	})
	return out[0], out[1]
}
