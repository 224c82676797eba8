package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// Copies with the elements rearranged. rowFlip reverses the frame's dims; rowRoll shifts along the first half of dims by the second half;
// rowTriangle keeps a triangle of matrices, the upper if i[0] is 1, with diagonal i[1]; rowPad pads dimensions from the last one on by
// dims, a pair each, with scalar 0.
var rowFlip, rowRoll, rowTriangle, rowPad, rowOneHot *row

func init() {
	rowFlip = define(row{Name: "Flip", takes: "t;; dims*", Torch: "flip", infer: inferFlip, run: runFlip,
		back: func(b *back) { b.set(0, b.x.Flip(b.grad(0), b.n.dims()...)) }})
	rowRoll = define(row{Name: "Roll", takes: "t;; dimsThenShifts*", Torch: "roll", infer: func(f *frame) {
		f.newOut(0, f.in[0].dt, f.in[0].shape, nil)
	}, run: runRoll, back: func(b *back) {
		n := len(b.n.dims()) / 2
		back := append([]int(nil), b.n.dims()...)
		for i := n; i < 2*n; i++ {
			back[i] = -back[i]
		}
		b.set(0, b.x.dimsOp(rowRoll, b.grad(0), back))
	}})
	rowTriangle = define(row{Name: "Triangle", takes: "t;; upper diagonal", infer: inferTriangle, run: runTriangle,
		back: func(b *back) { b.set(0, b.x.triangle(b.grad(0), b.n.i[0], b.n.i[1])) }})
	rowPad = define(row{Name: "ConstantPad", takes: "t; value; pad*", Torch: "constant_pad_nd", infer: inferPad, run: runPad,
		back: func(b *back) {
			back := make([]int, len(b.n.dims()))
			for i, p := range b.n.dims() {
				back[i] = -p
			}
			b.set(0, b.x.constantPad(b.grad(0), back, 0))
		}})
	rowOneHot = define(row{Name: "OneHot", takes: "t;; classes", Torch: "nn.functional.one_hot", infer: inferOneHot, run: runOneHot})
}

func inferFlip(f *frame) {
	t := f.in[0]
	_, err := infer.Marks(f.marks[:0], f.dims, len(t.shape))
	f.check(err)
	f.newOut(0, t.dt, t.shape, f.layout(t.shape))
}

func runFlip(f *frame) error {
	out, src := operand(f.out[0]), operand(f.in[0])
	if out.Numel() == 0 {
		return nil
	}
	src.Stride = append([]int(nil), src.Stride...)
	for _, d := range f.dims {
		if len(src.Shape) == 0 {
			continue
		}
		d = f.dim(d, len(src.Shape))
		src.Ptr += uint64((src.Shape[d] - 1) * src.Stride[d] * src.DType.Size())
		src.Stride[d] = -src.Stride[d]
	}
	return f.copyTo(out, src)
}

// Flip returns a copy of t with the order of the elements along the given dimensions reversed.
func (x *Exec) Flip(t *Tensor, dims ...int) *Tensor { return x.dimsOp(rowFlip, t, dims) }

// runRoll copies the parts that move together: two per dimension.
func runRoll(f *frame) error {
	out, src := operand(f.out[0]), operand(f.in[0])
	if out.Numel() == 0 {
		return nil
	}
	return f.rollFrom(0, out, src)
}

func (f *frame) rollFrom(i int, out, src kernels.Operand) error {
	n := len(f.dims) / 2
	if i == n {
		return f.copyTo(out, src)
	}
	d, size := f.dims[i], src.Shape[f.dims[i]]
	shift := ((f.dims[n+i] % size) + size) % size
	for _, part := range [...]struct{ from, to, length int }{{0, shift, size - shift}, {size - shift, 0, shift}} {
		if part.length == 0 {
			continue
		}
		o, s := out, src
		o.Ptr += uint64(part.to * out.Stride[d] * out.DType.Size())
		s.Ptr += uint64(part.from * src.Stride[d] * src.DType.Size())
		shape := append([]int(nil), src.Shape...)
		shape[d] = part.length
		o.Shape, s.Shape = shape, shape
		if err := f.rollFrom(i+1, o, s); err != nil {
			return err
		}
	}
	return nil
}

// Roll returns a copy of t whose elements are shifted by shifts[i] along dimension dims[i]; elements shifted beyond the end reappear at the
// start. With no dims, all of t is shifted by shifts[0] in row-major order.
func (x *Exec) Roll(t *Tensor, shifts []int, dims ...int) *Tensor {
	if len(dims) == 0 && len(shifts) == 1 {
		return x.composite("Roll", func(x *Exec) *Tensor {
			return x.View(x.Roll(x.Reshape(t, -1), shifts, 0), t.shape...)
		})
	}
	if len(shifts) != len(dims) || len(shifts) == 0 {
		x.fail("Roll", fault.Invalid, []*Tensor{t}, "shifts and dimensions must align. shifts: %d, dims: %d", len(shifts), len(dims))
	}
	// If a dimension is named twice, its shifts add up.
	where := make([]int, 0, 2*len(dims))
	sums := make([]int, len(t.shape))
	for i, d := range dims {
		d = x.dimOf("Roll", t, d)
		if len(t.shape) == 0 {
			return x.Clone(t)
		}
		sums[d] += shifts[i]
	}
	var by []int
	for d, s := range sums {
		if s != 0 {
			where, by = append(where, d), append(by, s)
		}
	}
	return x.dimsOp(rowRoll, t, append(where, by...))
}

func inferTriangle(f *frame) {
	t := f.in[0]
	if len(t.shape) < 2 {
		f.fail(fault.Invalid, "input tensor must have at least 2 dimensions")
	}
	f.newOut(0, t.dt, t.shape, nil)
}

func runTriangle(f *frame) error {
	t := f.in[0]
	if t.Numel() == 0 {
		return nil
	}
	op, n := kernels.Tril, len(t.shape)
	if f.i[0] == 1 {
		op = kernels.Triu
	}
	sc := append(f.scalarB[:0], kernels.IntScalar(int64(t.shape[n-2])), kernels.IntScalar(int64(t.shape[n-1])),
		kernels.IntScalar(int64(f.i[1])))
	outs, ins := f.operandsOf()
	return kernels.Pointwise(f, op, t.dt, sc, outs, ins)
}

func (x *Exec) triangle(t *Tensor, upper, diagonal int) *Tensor {
	f := x.op(rowTriangle, t)
	f.i = [8]int{upper, diagonal}
	return f.call1()
}

// Tril returns a copy of the matrices in t's last two dimensions with zeros above the given diagonal; 0 is the main one, which may be
// left out.
//
//tenon:into
func (x *Exec) Tril(t *Tensor, diagonal ...int) *Tensor {
	return x.triangle(t, 0, Int("Tril", "a diagonal", diagonal, 0))
}

// Triu returns a copy of the matrices in t's last two dimensions with zeros below the given diagonal; 0 is the main one, which may be
// left out.
//
//tenon:into
func (x *Exec) Triu(t *Tensor, diagonal ...int) *Tensor {
	return x.triangle(t, 1, Int("Triu", "a diagonal", diagonal, 0))
}

func inferPad(f *frame) {
	t := f.in[0]
	shape := append([]int(nil), t.shape...)
	if len(f.dims)%2 != 0 || len(f.dims)/2 > len(shape) {
		f.fail(fault.Invalid, "Length of pad should be even and no more than twice the number of dimensions of the input. Pad length is "+
			"%d while the input has %d dimensions", len(f.dims), len(shape))
	}
	for i := 0; i < len(f.dims); i += 2 {
		d := len(shape) - 1 - i/2
		shape[d] += f.dims[i] + f.dims[i+1]
		if shape[d] < 0 {
			f.fail(fault.Invalid, "The input size %d, plus negative padding %d and %d, resulted in a negative output size, which is "+
				"invalid. Check dimension %d of your input", t.shape[d], f.dims[i], f.dims[i+1], d)
		}
	}
	var stride []int
	if infer.ChannelsLast(t.shape, t.stride) {
		stride = infer.ChannelsLastStrides(shape)
	}
	f.newOut(0, t.dt, shape, stride)
}

// runPad fills the result and copies the part of the input that is inside it.
func runPad(f *frame) error {
	out, src := operand(f.out[0]), operand(f.in[0])
	if out.Numel() == 0 {
		return nil
	}
	dst, shape, grown := out, append([]int(nil), src.Shape...), false
	for i := 0; i < len(f.dims); i += 2 {
		d := len(shape) - 1 - i/2
		before, after := f.dims[i], f.dims[i+1]
		grown = grown || before > 0 || after > 0
		shape[d] += min(before, 0) + min(after, 0)
		dst.Ptr += uint64(max(before, 0) * out.Stride[d] * out.DType.Size())
		src.Ptr += uint64(max(-before, 0) * src.Stride[d] * src.DType.Size())
	}
	if grown {
		if err := kernels.Pointwise(f, kernels.Fill, out.DType, f.scalar[:1], []kernels.Operand{out}, nil); err != nil {
			return err
		}
	}
	for _, n := range shape {
		if n <= 0 {
			return nil
		}
	}
	dst.Shape, src.Shape = shape, shape
	return f.copyTo(dst, src)
}

func (x *Exec) constantPad(t *Tensor, pad []int, v complex128) *Tensor {
	f := x.op(rowPad, t)
	f.dims = append(f.dims, pad...)
	f.scalar[0] = fillScalar(v, t.dt)
	return f.call1()
}

// PadC is Pad with a complex constant.
func (x *Exec) PadC(t *Tensor, pad []int, v complex128) *Tensor { return x.constantPad(t, pad, v) }

// PadMode says which elements Pad adds.
type PadMode uint8

// The elements that Pad adds: a constant, the elements mirrored at the border elements, the border elements, or the elements from the other
// end.
const (
	PadConstant PadMode = iota
	PadReflect
	PadReplicate
	PadCircular
)

// String returns PyTorch's name, such as "reflect".
func (m PadMode) String() string { return nameOf(m, "constant", "reflect", "replicate", "circular") }

// PadOpt are the options of Pad.
type PadOpt struct {
	// Mode is PadConstant (the zero value), PadReflect, PadReplicate or PadCircular.
	Mode PadMode
	// Value is the constant.
	Value float64
}

// Pad returns t with elements added around it: pad holds a pair of numbers, before and after, for the last dimension, then the one before
// it, and so on. Negative numbers remove elements. All modes except the constant need one or two dimensions more than there are pairs.
func (x *Exec) Pad(t *Tensor, pad []int, opt PadOpt) *Tensor {
	switch {
	case opt.Mode == PadConstant:
		return x.constantPad(t, pad, complex(opt.Value, 0))
	case opt.Mode > PadCircular:
		x.fail("Pad", fault.Invalid, []*Tensor{t},
			"Unrecognised padding mode %v; it is PadConstant, PadReflect, PadReplicate or PadCircular",
			opt.Mode)
	}
	if opt.Value != 0 {
		x.fail("Pad", fault.Invalid, []*Tensor{t}, "Padding mode %v doesn't take in value argument", opt.Mode)
	}
	pairs, n := len(pad)/2, len(t.shape)
	if len(pad)%2 != 0 || pairs < 1 || pairs > 3 || n != pairs+1 && n != pairs+2 {
		x.fail("Pad", fault.Unsupported, []*Tensor{t}, "Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now")
	}
	return x.composite("Pad", func(x *Exec) *Tensor {
		for i := range pairs {
			t = x.padDim(t, n-1-i, pad[2*i], pad[2*i+1], opt.Mode)
		}
		return t
	})
}

// padDim pads one dimension: it selects elements by their indexes in it.
func (x *Exec) padDim(t *Tensor, d, before, after int, mode PadMode) *Tensor {
	if mode == PadCircular && min(before, after) < 0 {
		// Elements are removed first.
		t = x.Slice(t, d, max(-before, 0), t.shape[d]+min(after, 0), 1)
		before, after = max(before, 0), max(after, 0)
	}
	n := t.shape[d]
	if before == 0 && after == 0 {
		return t
	}
	length := n + before + after
	switch {
	case mode == PadReflect && (before >= n || after >= n):
		x.fail("Pad", fault.Invalid, []*Tensor{t}, "Padding size should be less than the corresponding input dimension, but got: "+
			"padding (%d, %d) at dimension %d of input %v", before, after, d, t.shape)
	case mode == PadCircular && (before > n || after > n):
		x.fail("Pad", fault.Invalid, []*Tensor{t}, "Padding value causes wrapping around more than once")
	case length < 0 || length < 1 && mode != PadCircular:
		x.fail("Pad", fault.Invalid, []*Tensor{t},
			"input (%d) is too small: the output of padding (%d, %d) at dimension %d would have size %d", n, before, after, d, length)
	}
	ng := x.noGrad()
	at := ng.Arange(float64(n+after), dtype.Int64, ArangeOpt{Start: float64(-before)})
	switch last := float64(n - 1); mode {
	case PadReflect:
		at = ng.RSubS(ng.Abs(ng.RSubS(ng.Abs(at), last)), last)
	case PadReplicate:
		at = ng.ClampS(at, 0, last)
	case PadCircular:
		at = ng.RemainderS(at, float64(n))
	}
	return x.IndexSelect(t, d, at)
}

func inferOneHot(f *frame) {
	t := f.in[0]
	if t.dt != dtype.Int64 && t.dt != dtype.Int32 {
		f.fail(fault.Invalid, "the indexes of one_hot must be int64, not %v; convert them with x.ToDType", t.dt)
	}
	if f.i[0] < 1 {
		f.fail(fault.Invalid, "the number of classes must be positive, not %d", f.i[0])
	}
	f.newOut(0, dtype.Int64, append(append(f.lists[:0], t.shape...), f.i[0]), nil)
}

func runOneHot(f *frame) error {
	out, src := operand(f.out[0]), operand(f.in[0])
	if out.Numel() == 0 {
		return nil
	}
	src.Shape, src.Stride = out.Shape, append(append([]int(nil), src.Stride...), 0)
	sc := append(f.scalarB[:0], kernels.IntScalar(int64(f.i[0])))
	return kernels.Pointwise(f, kernels.OneHot, src.DType, sc, []kernels.Operand{out}, []kernels.Operand{src})
}

// OneHot returns a tensor with a new last dimension of size classes, with 1 at the index of each class in t and 0 elsewhere, as int64. A
// number that is not a class gives only zeros.
func (x *Exec) OneHot(t *Tensor, classes int) *Tensor {
	f := x.op(rowOneHot, t)
	f.i[0] = classes
	return f.call1()
}
