package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// Extremes of all elements or along a dimension. A NaN counts as greater and as less than any number; of equal elements the first is used.
var rowMax, rowMin, rowMaxDim, rowMinDim, rowArgMax, rowArgMin *row

func init() {
	rowMax = define(withElements(reduceRow("Max", "max", kernels.AMax, sameReal, in0|out0, backEvenly)))
	rowMin = define(withElements(reduceRow("Min", "min", kernels.AMin, sameReal, in0|out0, backEvenly)))
	rowMaxDim = define(withTakes(withElements(reduceRow("MaxDim", "max", kernels.MaxIndex, sameReal, out1, backPlace)),
		"t;; keepDim dims* -> y places"))
	rowMinDim = define(withTakes(withElements(reduceRow("MinDim", "min", kernels.MinIndex, sameReal, out1, backPlace)),
		"t;; keepDim dims* -> y places"))
	rowArgMax = define(withElements(reduceRow("ArgMax", "argmax", kernels.ArgMax, placeRule, 0, nil)))
	rowArgMin = define(withElements(reduceRow("ArgMin", "argmin", kernels.ArgMin, placeRule, 0, nil)))
}

// placeRule computes in the input's type and returns int64.
func placeRule(f *frame) (compute, out dtype.DType) {
	compute, _ = sameReal(f)
	return compute, dtype.Int64
}

// withElements makes a reduction refuse to reduce no elements.
func withElements(r row) row {
	meta := r.infer
	r.infer = func(f *frame) {
		shape := f.in[0].shape
		for i, reduced := range f.reduced(len(shape)) {
			switch {
			case !reduced || shape[i] != 0:
			case len(f.dims) == 0:
				f.fail(fault.Invalid, "Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "+
					"in dims")
			default:
				f.fail(fault.Invalid, "Expected reduction dim %d to have non-zero size", i)
			}
		}
		meta(f)
	}
	return r
}

// backEvenly shares the gradient evenly among the elements that equal the extreme, or are NaN where it is.
func backEvenly(b *back) {
	x, in := b.x, b.in(0)
	y := b.kept(b.out(0))
	hit := x.LogicalOr(x.Eq(in, y), x.LogicalAnd(x.IsNaN(in), x.IsNaN(y)))
	share := x.Div(b.kept(b.grad(0)), x.ToDType(x.Sum(hit, b.n.dims(), SumOpt{KeepDim: true}), in.dt))
	b.set(0, x.pick(hit, share, 0, nil, 0))
}

// backPlace gives the gradient to the element that was selected.
func backPlace(b *back) {
	shape := b.shape(0)
	if len(shape) == 0 {
		b.set(0, b.grad(0))
		return
	}
	zero := b.x.Full(shape, 0, b.n.edges[0].dt)
	b.set(0, b.x.Scatter(zero, b.n.dims()[0], b.kept(b.out(1)), b.kept(b.grad(0)), ScatterOpt{}))
}

func (x *Exec) placeOp(r *row, t *Tensor, dim int, keepDim bool) *frame {
	f := x.op(r, t)
	f.dims = append(f.dims, dim)
	if keepDim {
		f.i[0] = 1
	}
	return f
}

// call2 runs the operation and returns its first two outputs.
func (f *frame) call2() (a, b *Tensor) {
	f.call()
	a, b = f.out[0], f.out[1]
	f.x.s.leave(f)
	return a, b
}

// Max returns the largest element of t. If several elements are equal to it, the gradient is divided equally among them.
//
//tenon:into
func (x *Exec) Max(t *Tensor) *Tensor { return x.op(rowMax, t).call1() }

// Min returns the smallest element of t. If several elements are equal to it, the gradient is divided equally among them.
//
//tenon:into
func (x *Exec) Min(t *Tensor) *Tensor { return x.op(rowMin, t).call1() }

// MaxDim returns the greatest elements along dim and their indices, as int64. Of equal elements the first is returned and gets the
// gradient.
//
//tenon:into
func (x *Exec) MaxDim(t *Tensor, dim int, opt DimOpt) (values, indices *Tensor) {
	return x.placeOp(rowMaxDim, t, dim, opt.KeepDim).call2()
}

// MinDim returns the least elements along dim and their indices, as int64. Of equal elements the first is returned and gets the gradient.
//
//tenon:into
func (x *Exec) MinDim(t *Tensor, dim int, opt DimOpt) (values, indices *Tensor) {
	return x.placeOp(rowMinDim, t, dim, opt.KeepDim).call2()
}

// ArgMax returns the indices of the greatest elements along dims, as int64; nil dims mean all, and the index is then row-major. Of equal
// elements the first counts.
//
//tenon:into
func (x *Exec) ArgMax(t *Tensor, dims []int, opt DimOpt) *Tensor {
	return x.reduceOp(rowArgMax, t, dims, opt.KeepDim).call1()
}

// ArgMin returns the indices of the least elements along dims, like ArgMax.
//
//tenon:into
func (x *Exec) ArgMin(t *Tensor, dims []int, opt DimOpt) *Tensor {
	return x.reduceOp(rowArgMin, t, dims, opt.KeepDim).call1()
}
