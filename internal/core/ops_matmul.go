package core

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// rowProduct is the row of all matrix products: its inputs are a [..., M, K] and b [..., K, N] with equal batch dimensions, and a bias that
// broadcasts to the result, or nil. The result is scalar[0]*(a x b) + scalar[1]*bias.
var rowProduct *row

func init() {
	rowProduct = define(row{Name: "MatMul", takes: "a b bias?; alpha! beta!", Torch: "matmul", cast: castLow, infer: inferProduct,
		run: runProduct, flops: flopsOfProduct, saves: in0 | in1,
		product: &productRow{fits: fitsEpilogue, once: readsOnce, run: runProductWith, flops: flopsOfDeferred}})
}

func init() { rowProduct.back = backProduct }

func inferProduct(f *frame) {
	a, b := f.in[0], f.in[1]
	if a.dt != b.dt {
		f.fail(fault.Invalid, "expected m1 and m2 to have the same dtype, but got: %v != %v; convert one with x.ToDType", a.dt, b.dt)
	}
	if c := f.in[2]; c != nil && c.dt != a.dt {
		f.fail(fault.Invalid, "expected the bias to have the dtype %v of the matrices, but got %v; convert it with x.ToDType", a.dt, c.dt)
	}
	if !a.dt.IsFloat() && !a.dt.IsComplex() {
		f.fail(fault.Unsupported, "matrix products are not defined for %v; convert to a floating-point type first", a.dt)
	}
	shape, err := infer.Product(f.lists[:0], a.shape, b.shape)
	f.check(err)
	if c := f.in[2]; c != nil {
		f.check(infer.FitsInto("the bias", c.shape, shape))
	}
	f.newOut(0, a.dt, shape, nil)
}

func runProduct(f *frame) error {
	out, a, b := operand(f.out[0]), operand(f.in[0]), operand(f.in[1])
	if out.Numel() == 0 {
		return nil
	}
	var bias kernels.Operand
	if t := f.in[2]; t != nil {
		bias = operand(t)
	}
	opt := productOpt(&f.attrs, f.x.m.tf32, bias, out.Shape)
	if !a.DType.IsComplex() {
		return kernels.Matmul(f, out, a, b, opt)
	}
	return complexProduct(f, out, a, b, opt)
}

// productOpt returns the options of a product with a result of that shape; bias may be zero.
func productOpt(a *attrs, tf32 bool, bias kernels.Operand, shape []int) kernels.MatmulOpt {
	opt := kernels.MatmulOpt{Alpha: a.scalar[0].F, Beta: a.scalar[1].F, TF32: tf32}
	if bias.Ptr != 0 && opt.Beta != 0 { // 0 times the bias is 0, also for NaN
		st := make([]int, len(shape))
		infer.BroadcastStrides(st, bias.Shape, bias.Stride, shape)
		opt.Bias = kernels.Operand{Ptr: bias.Ptr, DType: bias.DType, Shape: shape, Stride: st}
	}
	return opt
}

// epilogueMost is the number of bytes of a product's result up to which it has an epilogue, which takes time in which the matrix units do
// nothing. On an H200 a higher limit, or none, changed neither an MLP's step nor GPT-2's.
const epilogueMost = 4 << 20

// fitsEpilogue: the call is one product of matrices with a new result of at least two columns.
func fitsEpilogue(c *deferred) bool {
	f := c.out[0].form
	return c.dsts == 0 && len(f.shape) == 2 && f.plain && f.numel > 0 && f.shape[1] > 1 && c.out[0].dt.IsFloat() &&
		f.numel*c.out[0].dt.Size() <= epilogueMost
}

// readsOnce: the product of the matrices has few rows.
func readsOnce(c *deferred, lim *kernels.Limits) bool {
	operand := func(e *element) kernels.Operand {
		return kernels.Operand{Ptr: uint64(e.offset * e.dt.Size()), DType: e.dt, Shape: e.form.shape, Stride: e.form.stride}
	}
	return kernels.MakesMatrix(lim, operand(&c.out[0]), operand(&c.in[0]), operand(&c.in[1]), kernels.MatmulOpt{TF32: c.x.m.tf32})
}

func runProductWith(is kernels.Issuer, c *deferred, w *productWork) error {
	f := c.out[0].form
	opt := productOpt(c.attrs, c.x.m.tf32, w.bias, f.shape)
	opt.Epilogue, opt.Prologue = w.epilogue, w.prologue
	return kernels.Matmul(is, kernels.Operand{Ptr: w.out, DType: c.out[0].dt, Shape: f.shape, Stride: f.stride}, w.a, w.b, opt)
}

func flopsOfDeferred(c *deferred) int64 {
	return 2 * int64(c.out[0].form.numel) * int64(c.in[0].form.shape[1])
}

// complexProduct computes a complex product as four real ones over the parts, whose strides are doubled.
func complexProduct(f *frame, out, a, b kernels.Operand, opt kernels.MatmulOpt) error {
	part := func(o kernels.Operand, im int) kernels.Operand {
		if o.DType == dtype.Invalid {
			return o
		}
		r := o.DType.Real()
		st := make([]int, len(o.Stride))
		for i, s := range o.Stride {
			st[i] = 2 * s
		}
		return kernels.Operand{Ptr: o.Ptr + uint64(im*r.Size()), DType: r, Shape: o.Shape, Stride: st}
	}
	for im := range 2 {
		dst := part(out, im)
		first := opt
		first.Bias = part(opt.Bias, im)
		if err := kernels.Matmul(f, dst, part(a, 0), part(b, im), first); err != nil {
			return err
		}
		second := kernels.MatmulOpt{Alpha: opt.Alpha, Beta: 1, Bias: dst, TF32: opt.TF32}
		if im == 0 {
			second.Alpha = -opt.Alpha
		}
		if err := kernels.Matmul(f, dst, part(a, 1), part(b, 1-im), second); err != nil {
			return err
		}
	}
	return nil
}

func backProduct(b *back) {
	x, g := b.x, b.grad(0)
	alpha := b.n.scalar[0].F
	if b.need(0) {
		b.set(0, x.productLike(b.n.edges[0].form, g, x.adjoint(b.in(1)), alpha))
	}
	if b.need(1) {
		b.set(1, x.productLike(b.n.edges[1].form, x.adjoint(b.in(0)), g, alpha))
	}
	if b.need(2) {
		if beta := b.n.scalar[1].F; beta != 1 {
			g = x.MulS(g, beta)
		}
		b.set(2, g)
	}
}

// productLike returns the product a x b in the memory order of the operand whose gradient it is: the gradient of a transposed weight then
// has the weight's own order.
func (x *Exec) productLike(m *form, a, b *Tensor, alpha float64) *Tensor {
	if !m.columns() {
		return x.product(a, b, nil, alpha, 0)
	}
	return x.turned(x.product(x.turned(b), x.turned(a), nil, alpha, 0))
}

// turned returns t with its last two dimensions swapped. Where nothing is recorded it makes the handle without a call: a derivative makes
// several for each product, and a call takes five times as long.
func (x *Exec) turned(t *Tensor) *Tensor {
	if !x.m.noGrad || len(t.shape) < 2 {
		return x.Transpose(t, -2, -1)
	}
	v := t.alias()
	v.form = x.s.made.turned(t.form)
	x.s.adopt(v)
	return v
}

// adjoint returns the conjugate transpose of the last two dimensions.
func (x *Exec) adjoint(t *Tensor) *Tensor { return x.conjugate(x.turned(t)) }

// product runs rowProduct.
func (x *Exec) product(a, b, bias *Tensor, alpha, beta float64) *Tensor {
	f := x.op(rowProduct, a, b, bias)
	f.scalar[0], f.scalar[1] = kernels.FloatScalar(alpha), kernels.FloatScalar(beta)
	return f.call1()
}

// wantDim fails unless t has n dimensions.
func (x *Exec) wantDim(op, name string, t *Tensor, n int) {
	if len(t.shape) != n {
		x.fail(op, fault.Invalid, []*Tensor{t}, "%s must be a %d-D tensor, got %d-D", name, n, len(t.shape))
	}
}

// MM returns the product of matrices a [M, K] and b [K, N].
//
//tenon:into
func (x *Exec) MM(a, b *Tensor) *Tensor {
	x.wantDim("MM", "a", a, 2)
	x.wantDim("MM", "b", b, 2)
	return x.product(a, b, nil, 1, 0)
}

// BMM returns the products of the matrices of a [B, M, K] and b [B, K, N].
//
//tenon:into
func (x *Exec) BMM(a, b *Tensor) *Tensor {
	x.wantDim("BMM", "batch1", a, 3)
	x.wantDim("BMM", "batch2", b, 3)
	return x.product(a, b, nil, 1, 0)
}

// MV returns the product of matrix a [M, K] and vector v [K].
//
//tenon:into
func (x *Exec) MV(a, v *Tensor) *Tensor {
	x.wantDim("MV", "a", a, 2)
	x.wantDim("MV", "v", v, 1)
	return x.MatMul(a, v)
}

// Dot returns the sum of the products of the elements of vectors a and b; complex elements are not conjugated. Under autocast it stays in
// the wider of its operands' types.
//
//tenon:into
func (x *Exec) Dot(a, b *Tensor) *Tensor {
	x.wantDim("Dot", "a", a, 1)
	x.wantDim("Dot", "b", b, 1)
	return x.composite("Dot", func(x *Exec) *Tensor { return x.casting("Dot", castWidest, &a, &b).MatMul(a, b) })
}

// Outer returns the products of every element of vector a [M] with every element of b [N], shape [M, N].
//
//tenon:into
func (x *Exec) Outer(a, b *Tensor) *Tensor {
	x.wantDim("Outer", "a", a, 1)
	x.wantDim("Outer", "b", b, 1)
	return x.composite("Outer", func(x *Exec) *Tensor { return x.Mul(x.Unsqueeze(a, 1), b) })
}

// AddMMOpt are the options of the products to which another tensor is added. The zero value is PyTorch's default.
type AddMMOpt struct {
	// Beta is the factor of that tensor, Alpha that of the product; the default of both is 1.
	Beta, Alpha Scalar
}

func (o AddMMOpt) factors(op string) (beta, alpha float64) {
	return Or(op, "Beta", o.Beta, 1), Or(op, "Alpha", o.Alpha, 1)
}

// AddMM returns beta*in + alpha*(a x b) for a [M, K], b [K, N] and in broadcast to [M, N]. If Beta is 0, in is not read.
//
//tenon:into
func (x *Exec) AddMM(in, a, b *Tensor, opt AddMMOpt) *Tensor {
	beta, alpha := opt.factors("AddMM")
	x.wantDim("AddMM", "mat1", a, 2)
	x.wantDim("AddMM", "mat2", b, 2)
	x.wantBroadcast("AddMM", in, a.shape[0], b.shape[1])
	return x.product(a, b, in, alpha, beta)
}

// BAddBMM returns beta*in + alpha*(a x b) for a [B, M, K], b [B, K, N] and in broadcast to [B, M, N]. If Beta is 0, in is not read.
//
//tenon:into
func (x *Exec) BAddBMM(in, a, b *Tensor, opt AddMMOpt) *Tensor {
	beta, alpha := opt.factors("BAddBMM")
	x.wantDim("BAddBMM", "batch1", a, 3)
	x.wantDim("BAddBMM", "batch2", b, 3)
	x.wantBroadcast("BAddBMM", in, a.shape[0], a.shape[1], b.shape[2])
	return x.product(a, b, in, alpha, beta)
}

func (x *Exec) wantBroadcast(op string, in *Tensor, shape ...int) {
	x.refuse(op, infer.ExpandsTo(in.shape, shape), in)
}

// MatMul returns the matrix product of a and b as PyTorch defines it: for vectors the inner product, for a matrix and a vector their
// product, and for more dimensions the products of the matrices in the last two, with the other dimensions broadcast.
//
//tenon:into
func (x *Exec) MatMul(a, b *Tensor) *Tensor {
	na, nb := len(a.shape), len(b.shape)
	if na == 0 || nb == 0 {
		x.fail("MatMul", fault.Invalid, []*Tensor{a, b}, "both arguments to matmul need to be at least 1D, but they are %dD and %dD", na,
			nb)
	}
	if na == 2 && nb == 2 {
		return x.product(a, b, nil, 1, 0)
	}
	return x.composite("MatMul", func(x *Exec) *Tensor {
		x = x.casting("MatMul", castLow, &a, &b)
		ka, kb := a.shape[na-1], b.shape[max(nb-2, 0)]
		if ka != kb {
			x.fail("MatMul", fault.Invalid, []*Tensor{a, b}, "mat1 and mat2 shapes cannot be multiplied (%v and %v)", a.shape, b.shape)
		}
		l, r := a, b
		if na == 1 {
			l = x.Unsqueeze(a, 0)
		}
		if nb == 1 {
			r = x.Unsqueeze(b, 1)
		}
		var y *Tensor
		switch {
		case len(l.shape) > 2 && len(r.shape) == 2:
			lead := l.shape[:len(l.shape)-1]
			y = x.product(x.Reshape(l, infer.Numel(lead), ka), r, nil, 1, 0)
			y = x.View(y, append(append([]int(nil), lead...), r.shape[1])...)
		case len(l.shape) == 2 && len(r.shape) == 2:
			y = x.product(l, r, nil, 1, 0)
		default:
			y = x.batched(l, r)
		}
		if na == 1 {
			y = x.Select(y, -2, 0)
		}
		if nb == 1 {
			y = x.Select(y, -1, 0)
		}
		return y
	})
}

// batched broadcasts the leading dimensions of l and r and multiplies.
func (x *Exec) batched(l, r *Tensor) *Tensor {
	nl, nr := len(l.shape)-2, len(r.shape)-2
	batch, err := infer.Broadcast(nil, l.shape[:nl], r.shape[:nr])
	x.refuse("MatMul", err, l, r)
	fit := func(t *Tensor) *Tensor {
		return x.Expand(t, append(append([]int(nil), batch...), t.shape[len(t.shape)-2:]...)...)
	}
	return x.product(fit(l), fit(r), nil, 1, 0)
}

// linearRemedy says how an input of that shape does not fit a weight that takes so many features.
func linearRemedy(in []int, features int) string {
	if len(in) == 0 {
		return fmt.Sprintf("; the input has no dimensions, but the weight takes a last dimension of %d", features)
	}
	remedy := fmt.Sprintf("; the input's last dimension is %d, but the weight takes %d", in[len(in)-1], features)
	if len(in) > 2 && infer.Numel(in[1:]) == features {
		remedy += ": flatten the input with x.Flatten(in, 1, -1)"
	}
	return remedy
}

// Linear returns in [..., In] times the transpose of w [Out, In], plus b [Out] if it is not nil. With w of shape [In], and b of shape [],
// there is one output without a dimension for it.
//
//tenon:into
func (x *Exec) Linear(in, w, b *Tensor) *Tensor {
	if len(w.shape) != 1 {
		x.wantDim("Linear", "the weight", w, 2)
	}
	if len(in.shape) == 0 || in.shape[len(in.shape)-1] != w.shape[len(w.shape)-1] {
		x.fail("Linear", fault.Invalid, []*Tensor{in, w}, "mat1 and mat2 shapes cannot be multiplied (%v and %v transposed)%s",
			in.shape, w.shape, linearRemedy(in.shape, w.shape[len(w.shape)-1]))
	}
	return x.composite("Linear", func(x *Exec) *Tensor {
		x = x.casting("Linear", castLow, &in, &w, &b)
		if len(w.shape) == 1 {
			if b != nil {
				x.wantDim("Linear", "the bias of a weight with one dimension", b, 0)
				return x.Add(x.MatMul(in, w), b)
			}
			return x.MatMul(in, w)
		}
		wt := x.Transpose(w, 0, 1)
		if len(in.shape) == 2 {
			return x.product(in, wt, b, 1, 1)
		}
		lead := in.shape[:len(in.shape)-1]
		y := x.product(x.Reshape(in, infer.Numel(lead), w.shape[1]), wt, b, 1, 1)
		return x.View(y, append(append([]int(nil), lead...), w.shape[0])...)
	})
}

// flopsOfProduct counts two operations for each element of the result and each of the depth, or eight for complex numbers.
func flopsOfProduct(f *frame) int64 {
	a := f.in[0]
	n := 2 * int64(infer.Numel(f.out[0].shape)) * int64(a.shape[len(a.shape)-1])
	if a.dt.IsComplex() {
		n *= 4
	}
	return n
}
