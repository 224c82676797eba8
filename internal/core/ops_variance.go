package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// Variances and standard deviations; scalar 0 is the correction.
var rowVar, rowStd, rowVarMean *row

func init() {
	const takes = "t; correction; keepDim dims*"
	rowVar = define(withTakes(reduceRow("Var", "var", kernels.Var, varianceRule, in0, func(b *back) { b.set(0, b.deviation(b.grad(0))) }),
		takes))
	rowStd = define(withTakes(reduceRow("Std", "std", kernels.Std, varianceRule, in0|out0, func(b *back) {
		x, y := b.x, b.out(0)
		b.set(0, b.deviation(x.pick(x.EqS(y, 0), nil, 0, x.Div(b.grad(0), x.MulS(y, 2)), 0)))
	}), takes))
	r := reduceRow("VarMean", "var_mean", kernels.VarMean, varianceRule, in0, func(b *back) {
		var g *Tensor
		if b.g[0] != nil {
			g = b.deviation(b.g[0])
		}
		if b.g[1] != nil {
			mean := b.x.DivS(b.spread(b.g[1]), float64(b.reducedCount()))
			if g == nil {
				g = mean
			} else {
				g = b.x.Add(g, mean)
			}
		}
		b.set(0, g)
	})
	r.infer = func(f *frame) {
		f.compute, _ = varianceRule(f)
		for i := range 2 {
			f.newOut(i, f.compute, f.reducedShape(f.in[0]), nil)
		}
	}
	rowVarMean = define(withTakes(r, takes+" -> variance mean"))
}

func varianceRule(f *frame) (compute, out dtype.DType) {
	t := f.in[0].dt
	if !t.IsFloat() {
		f.fail(fault.Invalid, "%s: only floating point and complex dtypes are supported, not %v; convert the tensor with x.ToDType",
			f.row.Torch, t)
	}
	return t, t
}

// deviation returns the gradient of a variance's input from that of the variance. With no degrees of freedom it is infinite if all elements
// are reduced without dims, and NaN (infinity times 0) along given dimensions.
func (b *back) deviation(g *Tensor) *Tensor {
	x, in := b.x, b.in(0)
	n := float64(b.reducedCount()) - b.n.scalar[0].F
	if n == 0 && len(b.n.dims()) == 0 {
		return x.MulS(b.spread(g), math.Inf(1))
	}
	return x.Mul(x.MulS(b.kept(g), 2/n), x.Sub(in, x.Mean(in, b.n.dims(), SumOpt{KeepDim: true})))
}

// VarOpt are the options of variances and standard deviations.
type VarOpt struct {
	// KeepDim keeps the reduced dimensions with size 1.
	KeepDim bool
	// Correction is subtracted from the number of elements in the divisor; 0 gives the biased variance. The default is 1, for the unbiased
	// one.
	Correction Scalar
}

func (x *Exec) varOp(r *row, t *Tensor, dims []int, opt VarOpt) *Tensor {
	return x.varFrame(r, t, dims, opt).call1()
}

func (x *Exec) varFrame(r *row, t *Tensor, dims []int, opt VarOpt) *frame {
	correction := OrFinite(r.Name, "Correction", opt.Correction, 1)
	f := x.reduceOp(r, t, dims, opt.KeepDim)
	f.scalar[0] = kernels.FloatScalar(correction)
	return f
}

// Var returns the variance over dims; nil dims mean all. For a complex tensor it is real: the sum of the variances of its parts.
//
//tenon:into
func (x *Exec) Var(t *Tensor, dims []int, opt VarOpt) *Tensor {
	if !t.dt.IsComplex() {
		return x.varOp(rowVar, t, dims, opt)
	}
	return x.composite("Var", func(x *Exec) *Tensor {
		return x.Add(x.varOp(rowVar, x.RealPart(t), dims, opt), x.varOp(rowVar, x.ImagPart(t), dims, opt))
	})
}

// Std returns the standard deviation over dims, the square root of Var.
//
//tenon:into
func (x *Exec) Std(t *Tensor, dims []int, opt VarOpt) *Tensor {
	if !t.dt.IsComplex() {
		return x.varOp(rowStd, t, dims, opt)
	}
	return x.composite("Std", func(x *Exec) *Tensor { return x.Sqrt(x.Var(t, dims, opt)) })
}

// VarMean returns Var and the mean over dims, in one pass, or three for a complex tensor.
func (x *Exec) VarMean(t *Tensor, dims []int, opt VarOpt) (variance, mean *Tensor) {
	if t.dt.IsComplex() {
		return x.Var(t, dims, opt), x.Mean(t, dims, SumOpt{KeepDim: opt.KeepDim})
	}
	f := x.varFrame(rowVarMean, t, dims, opt)
	f.call()
	variance, mean = f.out[0], f.out[1]
	x.s.leave(f)
	return variance, mean
}
