package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// viewRow returns the row of an operation whose result is a view of its input, selected by the frame's attributes i and dims. Its
// derivative writes the gradient into the same view of zeros, and the derivative of that is the view again.
func viewRow(name, torch, takes string, view func(f *frame, g geometry) geometry) row {
	return row{Name: name, Torch: torch, takes: takes, flags: flagView, back: backView, view: view, infer: func(f *frame) {
		t := f.in[0]
		g := view(f, geometry{t.shape, t.stride, t.offset})
		f.viewOut(0, g.offset, t.dt, g.shape, g.stride)
	}}
}

func backView(b *back) {
	f := b.x.op(rowUnview, b.grad(0))
	f.opt, f.i = unviewed{b.n.row, b.n.edges[0].form}, b.n.i
	f.dims = append(f.dims, b.n.dims()...)
	b.set(0, f.call1())
}

// unviewed is the attribute of rowUnview: the row of the view and the form of its base.
type unviewed struct {
	row  *row
	form *form
}

// rowUnview returns zeros of the base's shape, with the input in the view.
var rowUnview *row

func init() {
	rowUnview = define(row{Name: "ViewBackward", takes: "g;; view0 view1 view2 view3 viewDims* options", infer: func(f *frame) {
		f.newOut(0, f.in[0].dt, f.opt.(unviewed).form.shape, nil)
	},
		run: func(f *frame) error {
			out, u := f.out[0], f.opt.(unviewed)
			if out.st.bytes == 0 {
				return nil
			}
			g := u.row.view(f, geometry{out.shape, out.stride, out.offset})
			if infer.Numel(g.shape) != infer.Numel(out.shape) || !infer.Dense(g.shape, g.stride) {
				if err := f.Memset(out.ptr(), 0, out.st.bytes); err != nil {
					return err
				}
			}
			if infer.Numel(g.shape) == 0 {
				return nil
			}
			dst := kernels.Operand{Ptr: out.st.ptr + uint64(g.offset*out.dt.Size()), DType: out.dt, Shape: g.shape, Stride: g.stride}
			return kernels.Pointwise(f, kernels.Copy, out.dt, nil, []kernels.Operand{dst}, []kernels.Operand{operand(f.in[0])})
		}})
}

func init() {
	rowUnview.back = func(b *back) {
		u := b.n.opt.(unviewed)
		f := b.x.op(u.row, b.grad(0))
		f.i, f.dims = b.n.i, append(f.dims, b.n.dims()...)
		b.set(0, f.call1())
	}
}

// scratch returns an empty geometry at offset, whose lists use the frame's memory if they are short.
func (f *frame) scratch(offset int) geometry {
	n := len(f.lists) / 2
	return geometry{f.lists[:0:n], f.lists[n:n], offset}
}

// dim converts a dimension number, which may count from the end, to 0 … n-1.
func (f *frame) dim(d, n int) int {
	d, err := infer.Dim(d, n)
	if err != nil {
		f.check(err)
	}
	return d
}

var rowPermute, rowNarrow, rowSelect, rowDiag, rowStrided, rowView, rowExpand, rowDetach *row

func init() {
	rowPermute = define(viewRow("Permute", "permute", "t;; dims*", viewPermute))
	rowPermute.back = backPermute
	rowNarrow = define(viewRow("Slice", "slice", "t;; dim start end step", viewSlice))
	rowSelect = define(viewRow("Select", "select", "t;; dim index", viewSelect))
	rowDiag = define(viewRow("Diagonal", "diagonal", "t;; offset dim1 dim2", viewDiagonal))
	rowStrided = define(row{Name: "AsStrided", takes: "t;; offset inputOffset shapeThenStrides*", Torch: "as_strided", flags: flagView,
		infer: inferStrided, back: backStrided})
	rowView = define(row{Name: "View", takes: "t;; shape*", Torch: "view", flags: flagView, infer: inferView,
		back: func(b *back) { b.set(0, b.x.Reshape(b.grad(0), b.shape(0)...)) }})
	rowExpand = define(row{Name: "Expand", takes: "t;; shape*", Torch: "expand", flags: flagView, infer: inferExpand,
		back: func(b *back) { b.set(0, b.grad(0)) }})
	rowDetach = define(row{Name: "Detach", takes: "t", Torch: "detach", flags: flagView, infer: func(f *frame) {
		t := f.in[0]
		f.viewOut(0, t.offset, t.dt, t.shape, t.stride)
	}})
}

func viewPermute(f *frame, g geometry) geometry {
	n := len(g.shape)
	if len(f.dims) != n {
		f.fail(fault.Invalid, "permute: %d dimensions were given for a tensor of %d", len(f.dims), n)
	}
	out := f.scratch(g.offset)
	var seen uint64
	for _, d := range f.dims {
		d = f.dim(d, n)
		if seen&(1<<d) != 0 {
			f.fail(fault.Invalid, "permute: dimension %d is given twice", d)
		}
		seen |= 1 << d
		out.shape, out.stride = append(out.shape, g.shape[d]), append(out.stride, g.stride[d])
	}
	return out
}

// backPermute returns a view, so that a gradient with the input's layout is not copied.
func backPermute(b *back) {
	n := len(b.n.dims())
	var few [8]int
	inverse := append(few[:0], b.n.dims()...)
	for i, d := range b.n.dims() {
		inverse[(d+n)%n] = i
	}
	if n == 2 && inverse[0] == 1 {
		b.set(0, b.x.turned(b.grad(0)))
		return
	}
	b.set(0, b.x.Permute(b.grad(0), inverse...))
}

// viewSlice reads i: dim, start, end, step.
func viewSlice(f *frame, g geometry) geometry {
	if len(g.shape) == 0 {
		f.fail(fault.Invalid, "Slice cannot be applied to a 0-dim tensor")
	}
	d := f.dim(f.i[0], len(g.shape))
	start, end, step, n := f.i[1], f.i[2], f.i[3], g.shape[d]
	if step <= 0 {
		f.fail(fault.Invalid, "slice step must be positive, not %d", step)
	}
	if start < 0 {
		start += n
	}
	if end < 0 {
		end += n
	}
	start = min(max(start, 0), n)
	end = min(max(end, start), n)
	out := f.scratch(g.offset + start*g.stride[d])
	out.shape, out.stride = append(out.shape, g.shape...), append(out.stride, g.stride...)
	out.shape[d] = (end - start + step - 1) / step
	out.stride[d] *= step
	return out
}

// viewSelect reads i: dim, index.
func viewSelect(f *frame, g geometry) geometry {
	if len(g.shape) == 0 {
		f.fail(fault.Invalid, "Select cannot be applied to a 0-dim tensor")
	}
	return f.selected(g, f.dim(f.i[0], len(g.shape)), f.i[1])
}

// selected returns g without dimension d, at its index at.
func (f *frame) selected(g geometry, d, at int) geometry {
	n := g.shape[d]
	if at < -n || at >= n {
		f.fail(fault.Invalid, "index %d out of range for tensor of size %v at dimension %d", at, g.shape, d)
	}
	if at < 0 {
		at += n
	}
	out := f.scratch(g.offset + at*g.stride[d])
	for i := range g.shape {
		if i != d {
			out.shape, out.stride = append(out.shape, g.shape[i]), append(out.stride, g.stride[i])
		}
	}
	return out
}

// viewDiagonal reads i: offset, dim1, dim2.
func viewDiagonal(f *frame, g geometry) geometry {
	n := len(g.shape)
	d1, d2 := f.dim(f.i[1], n), f.dim(f.i[2], n)
	if d1 == d2 {
		f.fail(fault.Invalid, "diagonal dimensions cannot be identical %d, %d", f.i[1], f.i[2])
	}
	out := f.scratch(g.offset)
	for i := range g.shape {
		if i != d1 && i != d2 {
			out.shape, out.stride = append(out.shape, g.shape[i]), append(out.stride, g.stride[i])
		}
	}
	rows, cols := g.shape[d1], g.shape[d2]
	k := f.i[0]
	size := max(min(rows, cols-k), 0)
	if k < 0 {
		size = max(min(rows+k, cols), 0)
	}
	if size > 0 {
		if k >= 0 {
			out.offset += k * g.stride[d2]
		} else {
			out.offset -= k * g.stride[d1]
		}
	}
	out.shape, out.stride = append(out.shape, size), append(out.stride, g.stride[d1]+g.stride[d2])
	return out
}

// inferStrided reads dims, the shape and then the strides, and i[0], the offset. The derivative also reads i[1], the input's offset.
func inferStrided(f *frame) {
	n := len(f.dims) / 2
	f.viewOut(0, f.i[0], f.in[0].dt, f.dims[:n], f.dims[n:])
}

func backStrided(b *back) {
	dims, in := b.n.dims(), b.n.edges[0].form
	n := len(dims) / 2
	b.set(0, b.x.stridedGrad(b.grad(0), geometry{in.shape, in.stride, b.n.i[1]}, geometry{dims[:n], dims[n:], b.n.i[0]}))
}

// stridedGrad returns the gradient of an input whose storage is viewed as out, with the gradient g. It adds up the gradients of all
// elements of out at their positions in storage, and gathers from there those of the input's elements; where several elements of the input
// are one position, they share its gradient evenly.
func (x *Exec) stridedGrad(g *Tensor, in, out geometry) *Tensor {
	first := min(in.offset, out.offset)
	size := max(in.offset+infer.Extent(in.shape, in.stride), out.offset+infer.Extent(out.shape, out.stride)) - first
	places := x.noGrad().Arange(float64(size), dtype.Int64, ArangeOpt{})
	at := func(g geometry) *Tensor { return x.Reshape(x.AsStrided(places, g.shape, g.stride, g.offset-first), -1) }
	all := x.sumAt([]int{size}, 0, at(out), x.Reshape(g, -1), 0)
	d := x.Gather(all, 0, at(in))
	if infer.Numel(in.shape) > 0 && !infer.Dense(in.shape, in.stride) {
		ones := x.Ones([]int{infer.Numel(in.shape)}, g.dt)
		counts := x.sumAt([]int{size}, 0, at(in), ones, 0)
		d = x.Div(d, x.Gather(counts, 0, at(in)))
	}
	return x.Reshape(d, in.shape...)
}

func inferView(f *frame) {
	t := f.in[0]
	shape, err := infer.View(f.lists[len(f.lists)/2:][:0], f.dims, t.Numel())
	f.check(err)
	stride, ok := infer.ViewStrides(f.lists[:0:len(f.lists)/2], t.shape, t.stride, shape)
	if !ok {
		f.fail(fault.Invalid, "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "+
			"contiguous subspaces); use Reshape")
	}
	f.viewOut(0, t.offset, t.dt, shape, stride)
}

func inferExpand(f *frame) {
	t := f.in[0]
	to := append(f.lists[:0], f.dims...)
	stride, err := infer.Expand(to, t.shape, t.stride)
	f.check(err)
	f.viewOut(0, t.offset, t.dt, to, stride)
}

// dimsOp runs a view operation whose attribute is a list.
func (x *Exec) dimsOp(r *row, t *Tensor, dims []int) *Tensor {
	f := x.op(r, t)
	f.dims = append(f.dims, dims...)
	return f.call1()
}

// View returns t's elements in another shape over the same memory; one size may be -1. It fails if that needs a copy.
func (x *Exec) View(t *Tensor, shape ...int) *Tensor { return x.dimsOp(rowView, t, shape) }

// Permute returns a view whose dimension i is t's dimension dims[i].
func (x *Exec) Permute(t *Tensor, dims ...int) *Tensor { return x.dimsOp(rowPermute, t, dims) }

// Expand returns a view in which dimensions of size 1 are repeated to the given sizes; -1 keeps a size; new dimensions come first.
func (x *Exec) Expand(t *Tensor, shape ...int) *Tensor { return x.dimsOp(rowExpand, t, shape) }

// Detach returns a view of t without its history. Changes of the view in place are visible in t, but t's history does not include them;
// tensors saved from t for backward then count as modified.
func (x *Exec) Detach(t *Tensor) *Tensor { return x.op(rowDetach, t).call1() }

// Slice returns the view of elements start, start+step, … before end of dimension dim. Negative start and end count from the end, and both
// are clamped to the dimension.
func (x *Exec) Slice(t *Tensor, dim, start, end, step int) *Tensor {
	f := x.op(rowNarrow, t)
	f.i = [8]int{dim, start, end, step}
	return f.call1()
}

// Select returns the view of element index of dimension dim, which is removed.
func (x *Exec) Select(t *Tensor, dim, index int) *Tensor {
	f := x.op(rowSelect, t)
	f.i = [8]int{dim, index}
	return f.call1()
}

// DiagonalOpt are the options of Diagonal. The zero value is PyTorch's default.
type DiagonalOpt struct {
	// Offset is how far the diagonal is above the main one.
	Offset int
	// Dims are the dimensions of the matrices; the zero value means 0 and 1.
	Dims [2]int
}

// Diagonal returns the view of a diagonal of the matrices in two dimensions; it becomes the last dimension.
func (x *Exec) Diagonal(t *Tensor, opt DiagonalOpt) *Tensor {
	if opt.Dims == [2]int{} {
		opt.Dims[1] = 1
	}
	f := x.op(rowDiag, t)
	f.i = [8]int{opt.Offset, opt.Dims[0], opt.Dims[1]}
	return f.call1()
}

// Transpose returns the view with dimensions a and b swapped.
func (x *Exec) Transpose(t *Tensor, a, b int) *Tensor {
	n := len(t.shape)
	f := x.op(rowPermute, t)
	for i := range n {
		f.dims = append(f.dims, i)
	}
	if n == 0 {
		f.dim(a, n)
		f.dim(b, n)
		return f.call1()
	}
	a, b = f.dim(a, n), f.dim(b, n)
	f.dims[a], f.dims[b] = b, a
	return f.call1()
}

var rowUnsqueeze, rowSqueeze *row

func init() {
	rowUnsqueeze = define(viewRow("Unsqueeze", "unsqueeze", "t;; dim", func(f *frame, g geometry) geometry {
		d := f.dim(f.i[0], len(g.shape)+1)
		step := 1
		if d < len(g.shape) {
			step = g.shape[d] * g.stride[d]
		}
		return geometry{slices.Insert(slices.Clone(g.shape), d, 1), slices.Insert(slices.Clone(g.stride), d, step), g.offset}
	}))
	rowSqueeze = define(viewRow("Squeeze", "squeeze", "t;; dims*", func(f *frame, g geometry) geometry {
		out := f.scratch(g.offset)
		var drop uint64
		for _, d := range f.dims {
			drop |= 1 << f.dim(d, len(g.shape))
		}
		for i, n := range g.shape {
			if n != 1 || len(f.dims) > 0 && drop&(1<<i) == 0 {
				out.shape, out.stride = append(out.shape, n), append(out.stride, g.stride[i])
			}
		}
		return out
	}))
}

// Unsqueeze returns the view with a dimension of size 1 inserted at dim.
func (x *Exec) Unsqueeze(t *Tensor, dim int) *Tensor {
	f := x.op(rowUnsqueeze, t)
	f.i[0] = dim
	return f.call1()
}

// Squeeze returns the view without those of the given dimensions that have size 1, or without all dimensions of size 1 if none are given.
func (x *Exec) Squeeze(t *Tensor, dims ...int) *Tensor { return x.dimsOp(rowSqueeze, t, dims) }

// AsStrided returns the view of t's storage with the given shape, strides and offset, all counted in elements from the storage's start;
// without offset the view begins where t does. It fails if the view reaches beyond the storage.
func (x *Exec) AsStrided(t *Tensor, shape, stride []int, offset ...int) *Tensor {
	from := Int("AsStrided", "an offset", offset, t.offset)
	f := x.op(rowStrided, t)
	if len(shape) != len(stride) {
		f.fail(fault.Invalid, "mismatch in length of strides and shape: %v and %v", stride, shape)
	}
	for i, d := range shape {
		if d < 0 {
			f.fail(fault.Invalid, "the shape %v has a negative dimension", shape)
		}
		if stride[i] < 0 {
			f.fail(fault.Invalid, "the stride %d is negative; x.Flip reverses a dimension", stride[i])
		}
	}
	if n := t.st.bytes / t.dt.Size(); from < 0 || !reachesWithin(shape, stride, from, n) {
		f.fail(fault.Invalid, "shape %v with strides %v from element %d on reaches beyond the storage, which has %d elements", shape,
			stride, from, n)
	}
	f.dims, f.i[0], f.i[1] = append(append(f.dims, shape...), stride...), from, t.offset
	return f.call1()
}

// reachesWithin reports whether every element of a view from offset on is among the first n of its storage, without overflow.
func reachesWithin(shape, stride []int, offset, n int) bool {
	if slices.Contains(shape, 0) {
		return offset <= n
	}
	left := n - offset - 1 // elements after the view's first
	for i, d := range shape {
		if left < 0 || d > 1 && stride[i] > left/(d-1) {
			return false
		}
		left -= (d - 1) * stride[i]
	}
	return left >= 0
}

func (unviewed) param() {}
