package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// reduceRow returns the row of a reduction over the frame's dims (none means all), which stay with size 1 if i[0] is 1. rule returns the
// types that it computes in and returns; f.dt is the requested type.
func reduceRow(name, torch string, op *kernels.ReduceOp, rule func(f *frame) (compute, out dtype.DType), saves save,
	back func(b *back)) row {
	return row{Name: name, Torch: torch, takes: "t;; keepDim dims*", rule: rule, saves: saves, back: back,
		infer: func(f *frame) {
			compute, out := rule(f)
			f.compute = compute
			for i := range op.Outs {
				dt := out
				if i > 0 {
					dt = dtype.Int64
				}
				f.newOut(i, dt, f.reducedShape(f.in[0]), nil)
			}
		},
		run: func(f *frame) error { return f.reduce(op) }, reduces: true,
	}
}

// reduced marks the frame's dims among n; no dims mark all.
func (f *frame) reduced(n int) []bool {
	m, err := infer.Over(f.marks[:0], f.dims, n)
	f.check(err)
	return m
}

func (f *frame) reducedShape(t *Tensor) []int {
	return infer.Reduced(f.lists[:0], t.shape, f.reduced(len(t.shape)), f.i[0] == 1)
}

func (f *frame) reduce(op *kernels.ReduceOp) error {
	if infer.Numel(f.out[0].shape) == 0 {
		return nil
	}
	f.opers = f.opers[:0]
	for i := 0; i < f.outs; i++ {
		f.opers = append(f.opers, operand(f.out[i]))
	}
	f.opers = append(f.opers, operand(f.in[0]))
	return kernels.Reduce(f, op, f.compute, f.scalar[:op.Scalars], f.opers[:f.outs], f.opers[f.outs:], f.reduced(len(f.in[0].shape)))
}

// sumRule sums integers and bool in int64; a requested type is both computed in and returned.
func sumRule(f *frame) (compute, out dtype.DType) {
	if f.dt != dtype.Invalid {
		return f.dt, f.dt
	}
	t := infer.Counting(f.in[0].dt)
	return t, t
}

func meanRule(f *frame) (compute, out dtype.DType) {
	t := f.dt
	if t == dtype.Invalid {
		t = f.in[0].dt
	}
	if t.IsInt() || t == dtype.Bool {
		f.fail(fault.Invalid, "could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: "+
			"%v; convert it with x.ToDType", t)
	}
	return t, t
}

// sameReal keeps the input's type, for operations that are not defined for complex numbers.
func sameReal(f *frame) (compute, out dtype.DType) {
	t := f.in[0].dt
	f.check(infer.Real(f.row.Name, t))
	return t, t
}

var rowSum, rowNanSum, rowMean, rowAMax, rowAMin *row

func init() {
	rowSum = define(withCast(typed(reduceRow("Sum", "sum", kernels.Sum, sumRule, 0, func(b *back) { b.set(0, b.spread(b.grad(0))) })),
		castResult))
	rowNanSum = define(typed(reduceRow("NanSum", "nansum", kernels.NanSum, sumRule, in0, func(b *back) {
		b.set(0, b.x.pick(b.x.IsNaN(b.in(0)), nil, 0, b.kept(b.grad(0)), 0))
	})))
	rowMean = define(typed(reduceRow("Mean", "mean", kernels.Mean, meanRule, 0, func(b *back) {
		n := b.reducedCount()
		b.set(0, b.x.DivS(b.spread(b.grad(0)), float64(n)))
	})))
	rowAMax = define(withElements(reduceRow("AMax", "amax", kernels.AMax, sameReal, in0|out0, backExtreme)))
	rowAMin = define(withElements(reduceRow("AMin", "amin", kernels.AMin, sameReal, in0|out0, backExtreme)))
}

func withCast(r row, c castClass) row {
	r.cast = c
	return r
}

// typed lets the caller of a reduction request a type.
func typed(r row) row {
	r.takes += " dtype"
	return r
}

func withTakes(r row, takes string) row {
	r.takes = takes
	return r
}

// reducedCount returns how many elements went into each result.
func (b *back) reducedCount() int {
	shape := b.shape(0)
	if len(b.n.dims()) == 0 {
		return infer.Numel(shape)
	}
	n := 1
	for _, d := range b.n.dims() {
		if len(shape) > 0 {
			n *= shape[(d+len(shape))%len(shape)]
		}
	}
	return n
}

// kept returns t, of the result's shape, with the reduced dimensions put back with size 1.
func (b *back) kept(t *Tensor) *Tensor {
	shape := b.shape(0)
	if b.n.i[0] == 1 || len(shape) == 0 {
		return t
	}
	to := append([]int(nil), shape...)
	for _, d := range b.n.dims() {
		to[(d+len(shape))%len(shape)] = 1
	}
	if len(b.n.dims()) == 0 {
		for i := range to {
			to[i] = 1
		}
	}
	return b.x.Reshape(t, to...)
}

// spread returns t, of the result's shape, expanded to the input's shape.
func (b *back) spread(t *Tensor) *Tensor { return b.x.Expand(b.kept(t), b.shape(0)...) }

// backExtreme shares the gradient evenly among the elements that equal the extreme.
func backExtreme(b *back) {
	x, in := b.x, b.in(0)
	hit := x.ToDType(x.Eq(in, b.kept(b.out(0))), in.dt)
	n := x.Sum(hit, b.n.dims(), SumOpt{KeepDim: true})
	b.set(0, x.Mul(x.Div(hit, n), b.kept(b.grad(0))))
}

// DimOpt are the options of reductions that have no others.
type DimOpt struct {
	// KeepDim keeps the reduced dimensions with size 1.
	KeepDim bool
}

// SumOpt are the options of sums, products and means, and of the nuclear norm.
type SumOpt struct {
	// KeepDim keeps the reduced dimensions with size 1.
	KeepDim bool
	// DType is the type to compute in and return; the zero value is the input's, int64 for integers and bool.
	DType dtype.DType
}

// reduceOp enters a frame of a reduction.
func (x *Exec) reduceOp(r *row, t *Tensor, dims []int, keep bool) *frame {
	f := x.op(r, t)
	f.dims = append(f.dims, dims...)
	if keep {
		f.i[0] = 1
	}
	return f
}

// Sum returns the sum over dims; nil dims mean all. Integers and bools give an int64: of a comparison, it counts the true elements.
//
//tenon:into
func (x *Exec) Sum(t *Tensor, dims []int, opt SumOpt) *Tensor {
	f := x.reduceOp(rowSum, t, dims, opt.KeepDim)
	f.dt = opt.DType
	return f.call1()
}

// NanSum returns the sum over dims of the elements that are not NaN; nil dims mean all.
//
//tenon:into
func (x *Exec) NanSum(t *Tensor, dims []int, opt SumOpt) *Tensor {
	f := x.reduceOp(rowNanSum, t, dims, opt.KeepDim)
	f.dt = opt.DType
	return f.call1()
}

// Mean returns the mean over dims; nil dims mean all. Integers need opt.DType.
//
//tenon:into
func (x *Exec) Mean(t *Tensor, dims []int, opt SumOpt) *Tensor {
	f := x.reduceOp(rowMean, t, dims, opt.KeepDim)
	f.dt = opt.DType
	return f.call1()
}

// AMax returns the greatest element over dims; nil dims mean all. Ties share the gradient.
//
//tenon:into
func (x *Exec) AMax(t *Tensor, dims []int, opt DimOpt) *Tensor {
	return x.reduceOp(rowAMax, t, dims, opt.KeepDim).call1()
}

// AMin returns the least element over dims; nil dims mean all. Ties share the gradient.
//
//tenon:into
func (x *Exec) AMin(t *Tensor, dims []int, opt DimOpt) *Tensor {
	return x.reduceOp(rowAMin, t, dims, opt.KeepDim).call1()
}
