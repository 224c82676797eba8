package core

import (
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// rowPart is the view of the real (i[0] = 0) or imaginary (1) parts; rowFromPart returns the complex tensor with its input as that part and
// zero as the other. Each is the other's derivative.
var rowPart, rowFromPart, rowConj *row

func init() {
	rowPart = define(row{Name: "Part", takes: "t;; part", flags: flagView, infer: inferPart})
	rowFromPart = define(row{Name: "FromPart", takes: "t;; part",
		infer: func(f *frame) { f.newOut(0, f.in[0].dt.Complex(), f.in[0].shape, nil) }, run: runFromPart})
	rowConj = define(row{Name: "Conj", Torch: "conj", point: kernels.Conj, rule: same,
		back: func(b *back) { b.set(0, b.x.conjugate(b.grad(0))) }})
}

func init() {
	rowPart.back = func(b *back) { b.set(0, b.x.partOp(rowFromPart, b.grad(0), b.n.i[0])) }
	rowFromPart.back = func(b *back) { b.set(0, b.x.partOp(rowPart, b.grad(0), b.n.i[0])) }
}

func inferPart(f *frame) {
	t := f.in[0]
	if !t.dt.IsComplex() {
		f.fail(fault.Invalid, "real and imaginary parts are views of complex tensors only, not of %v", t.dt)
	}
	stride := make([]int, len(t.stride))
	for i, s := range t.stride {
		stride[i] = 2 * s
	}
	f.viewOut(0, 2*t.offset+f.i[0], t.dt.Real(), t.shape, stride)
}

func runFromPart(f *frame) error {
	out := f.out[0]
	if out.st.bytes == 0 {
		return nil
	}
	if err := f.Memset(out.ptr(), 0, out.st.bytes); err != nil {
		return err
	}
	r := out.dt.Real()
	st := make([]int, len(out.stride))
	for i, s := range out.stride {
		st[i] = 2 * s
	}
	dst := kernels.Operand{Ptr: out.ptr() + uint64(f.i[0]*r.Size()), DType: r, Shape: out.shape, Stride: st}
	return kernels.Pointwise(f, kernels.Copy, r, nil, []kernels.Operand{dst}, []kernels.Operand{operand(f.in[0])})
}

func (x *Exec) partOp(r *row, t *Tensor, part int) *Tensor {
	f := x.op(r, t)
	f.i[0] = part
	return f.call1()
}

// RealPart returns the view of the real parts of a complex tensor.
func (x *Exec) RealPart(t *Tensor) *Tensor { return x.partOp(rowPart, t, 0) }

// ImagPart returns the view of the imaginary parts of a complex tensor.
func (x *Exec) ImagPart(t *Tensor) *Tensor { return x.partOp(rowPart, t, 1) }

// Conj returns the complex conjugate; a real tensor's is a copy.
//
//tenon:into
func (x *Exec) Conj(t *Tensor) *Tensor { return x.op(rowConj, t).call1() }
