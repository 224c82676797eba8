package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// Softmax and its logarithm along dimension i[0]. The gradients take the result's gradient and the result.
var rowSoftmax, rowLogSoftmax, rowSoftmaxGrad, rowLogSoftmaxGrad *row

func init() {
	rowSoftmax = define(row{Name: "Softmax", takes: "t;; dim", Torch: "softmax", cast: castFloat32, saves: out0, infer: inferSoftmax,
		run: runSoftmax(false), byRows: true})
	rowLogSoftmax = define(row{Name: "LogSoftmax", takes: "t;; dim", Torch: "log_softmax", cast: castFloat32, saves: out0,
		infer: inferSoftmax, run: runSoftmax(true), byRows: true})
	rowSoftmaxGrad = define(row{Name: "SoftmaxBackward", takes: "g y;; dim", saves: in0 | in1, infer: inferSoftmaxGrad,
		run: runSoftmaxGrad(false), byRows: true})
	rowLogSoftmaxGrad = define(row{Name: "LogSoftmaxBackward", takes: "g y;; dim", saves: in0 | in1, infer: inferSoftmaxGrad,
		run: runSoftmaxGrad(true), byRows: true})
}

func init() {
	rowSoftmax.back = func(b *back) { b.set(0, b.x.softmaxOp(rowSoftmaxGrad, b.n.i[0], b.grad(0), b.out(0))) }
	rowLogSoftmax.back = func(b *back) { b.set(0, b.x.softmaxOp(rowLogSoftmaxGrad, b.n.i[0], b.grad(0), b.out(0))) }
	// The gradients are y*(g - sum(g*y)) and g - exp(y)*sum(g).
	rowSoftmaxGrad.back = func(b *back) {
		x, u, g, y := b.x, b.grad(0), b.in(0), b.in(1)
		dims, keep := []int{b.n.i[0]}, SumOpt{KeepDim: true}
		uy := x.Sum(x.Mul(u, y), dims, keep)
		b.set(0, x.Mul(y, x.Sub(u, uy)))
		if b.need(1) {
			gy := x.Sum(x.Mul(g, y), dims, keep)
			b.set(1, x.Sub(x.Mul(u, x.Sub(g, gy)), x.Mul(g, uy)))
		}
	}
	rowLogSoftmaxGrad.back = func(b *back) {
		x, u, g := b.x, b.grad(0), b.in(0)
		dims, keep := []int{b.n.i[0]}, SumOpt{KeepDim: true}
		p := x.Exp(b.in(1))
		up := x.Mul(u, p)
		b.set(0, x.Sub(u, x.Sum(up, dims, keep)))
		if b.need(1) {
			b.set(1, x.Neg(x.Mul(up, x.Sum(g, dims, keep))))
		}
	}
}

func inferSoftmax(f *frame) {
	t := f.in[0]
	if !t.dt.IsFloat() {
		f.fail(fault.Unsupported, "%s is not implemented for %v; give a floating-point DType", f.row.Torch, t.dt)
	}
	f.newOut(0, t.dt, t.shape, nil)
}

func runSoftmax(log bool) func(f *frame) error {
	return func(f *frame) error {
		if f.out[0].Numel() == 0 {
			return nil
		}
		return kernels.Softmax(f, log, f.out[0].dt, operand1(f.out[0]), operand1(f.in[0]), f.i[0])
	}
}

func inferSoftmaxGrad(f *frame) { f.newOut(0, f.in[1].dt, f.in[1].shape, f.layout(f.in[1].shape)) }

func runSoftmaxGrad(log bool) func(f *frame) error {
	return func(f *frame) error {
		if f.out[0].Numel() == 0 {
			return nil
		}
		return kernels.SoftmaxBackward(f, log, f.out[0].dt, operand1(f.out[0]), operand1(f.in[0]), operand1(f.in[1]), f.i[0])
	}
}

func (x *Exec) softmaxOp(r *row, dim int, ins ...*Tensor) *Tensor {
	f := x.op(r, ins...)
	f.i[0] = f.dim(dim, len(ins[len(ins)-1].shape))
	return f.call1()
}

// SoftmaxOpt are the options of softmaxes.
type SoftmaxOpt struct {
	// DType is the floating-point type to convert to first; the zero value keeps the input's.
	DType dtype.DType
}

// softmax converts t and runs one of the two.
func (x *Exec) softmax(r *row, t *Tensor, dim int, opt SoftmaxOpt) *Tensor {
	if opt.DType != dtype.Invalid {
		x = x.uncast()
	}
	if opt.DType == dtype.Invalid || opt.DType == t.dt {
		return x.softmaxOp(r, dim, t)
	}
	return x.composite(r.Name, func(x *Exec) *Tensor { return x.softmaxOp(r, dim, x.ToDType(t, opt.DType)) })
}

// Softmax returns exp(t) divided by its sum along dimension dim.
//
//tenon:into
func (x *Exec) Softmax(t *Tensor, dim int, opt SoftmaxOpt) *Tensor {
	return x.softmax(rowSoftmax, t, dim, opt)
}

// LogSoftmax returns the logarithm of Softmax.
//
//tenon:into
func (x *Exec) LogSoftmax(t *Tensor, dim int, opt SoftmaxOpt) *Tensor {
	return x.softmax(rowLogSoftmax, t, dim, opt)
}
