package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// Operations between one tensor and several: i[0] is the dimension; the list of rowSplit holds the sizes of the pieces.
var rowSplit, rowUnbind, rowCat *row

func init() {
	rowSplit = define(row{Name: "Split", takes: "t;; dim sizes* -> parts…", Torch: "split", flags: flagView | flagParts, infer: inferSplit})
	rowUnbind = define(row{Name: "Unbind", takes: "t;; dim -> parts…", Torch: "unbind", flags: flagView | flagParts, infer: inferUnbind})
	rowCat = define(row{Name: "Cat", takes: "tensors…;; dim", Torch: "cat", infer: inferCat, run: runCat, cats: true})
}

func init() {
	rowSplit.back = func(b *back) { b.set(0, b.joined(b.n.i[0])) }
	rowUnbind.back = func(b *back) { b.set(0, b.x.Stack(b.grads(), b.n.i[0])) }
	rowCat.back = func(b *back) {
		g, at := b.grad(0), 0
		d := b.n.i[0]
		if d < 0 {
			d += len(g.shape)
		}
		for i, e := range b.n.edges {
			if legacyEmpty(e.form.shape) {
				b.set(i, b.x.Zeros(e.form.shape, g.dt))
				continue
			}
			n := e.form.shape[d]
			if b.need(i) {
				b.set(i, b.x.Slice(g, d, at, at+n, 1))
			}
			at += n
		}
	}
}

// grads returns the gradients of all outputs, zeros for outputs without one.
func (b *back) grads() []*Tensor {
	out := make([]*Tensor, b.n.outputs())
	for i := range out {
		out[i] = b.grad(i)
	}
	return out
}

// joined returns the gradients side by side along dimension d. If they already are, as attention's are for queries, keys and values that
// were one tensor, they are not copied.
func (b *back) joined(d int) *Tensor {
	x, ts := b.x, b.grads()
	if x.GradEnabled() || !sideBySide(ts, d) {
		return x.Cat(ts, d)
	}
	shape := slices.Clone(ts[0].shape)
	for _, t := range ts[1:] {
		shape[d] += t.shape[d]
	}
	return x.AsStrided(ts[0], shape, ts[0].stride, ts[0].offset)
}

// sideBySide reports whether ts are pieces of one tensor along dimension d, in order and without gaps.
func sideBySide(ts []*Tensor, d int) bool {
	first := ts[0]
	at := first.offset
	for _, t := range ts {
		if t.st != first.st || t.dt != first.dt || t.offset != at || len(t.shape) != len(first.shape) || t.Numel() == 0 {
			return false
		}
		for i, n := range t.shape {
			if i != d && n != first.shape[i] || t.stride[i] != first.stride[i] {
				return false
			}
		}
		at += t.shape[d] * t.stride[d]
	}
	return len(ts) > 1 && first.stride[d] > 0
}

func inferSplit(f *frame) {
	t, at := f.in[0], 0
	for i, n := range f.dims {
		shape := append(f.lists[:0], t.shape...)
		shape[f.i[0]] = n
		f.viewOut(i, t.offset+at*t.stride[f.i[0]], t.dt, shape, t.stride)
		at += n
	}
}

func inferUnbind(f *frame) {
	t, d := f.in[0], f.i[0]
	for i := range t.shape[d] {
		g := f.selected(geometry{t.shape, t.stride, t.offset}, d, i)
		f.viewOut(i, g.offset, t.dt, g.shape, g.stride)
	}
}

// pieces is the most outputs that a node can number; longer lists are made view by view.
const pieces = 255

// SplitSizes returns the views of t's pieces of the given sizes along dimension dim, or 0 if that is left out.
func (x *Exec) SplitSizes(t *Tensor, sizes []int, dim ...int) []*Tensor {
	d := x.dimOf("Split", t, Int("Split", "a dimension", dim, 0))
	if len(t.shape) == 0 {
		x.fail("Split", fault.Invalid, []*Tensor{t}, "split expects at least a 1-dimensional tensor")
	}
	left, fits := t.shape[d], true
	for _, n := range sizes {
		if n < 0 {
			x.fail("Split", fault.Invalid, []*Tensor{t}, "split_with_sizes expects split_sizes have only non-negative entries, but got "+
				"split_sizes=%v", sizes)
		}
		if fits = fits && n <= left; fits { // the sum of sizes might overflow
			left -= n
		}
	}
	if !fits || left > 0 {
		x.fail("Split", fault.Invalid, []*Tensor{t}, "split_with_sizes expects split_sizes to sum exactly to %d (input tensor's size at "+
			"dimension %d), but got split_sizes=%v", t.shape[d], d, sizes)
	}
	if len(sizes) > pieces {
		out, at := make([]*Tensor, len(sizes)), 0
		for i, n := range sizes {
			out[i] = x.Slice(t, d, at, at+n, 1)
			at += n
		}
		return out
	}
	f := x.op(rowSplit, t)
	f.i[0], f.dims = d, append(f.dims, sizes...)
	return f.callMany()
}

// Split returns the views of t's pieces of the given size along dimension dim, or 0 if that is left out; the last may be
// smaller.
func (x *Exec) Split(t *Tensor, size int, dim ...int) []*Tensor {
	d := x.dimOf("Split", t, Int("Split", "a dimension", dim, 0))
	if len(t.shape) == 0 {
		x.fail("Split", fault.Invalid, []*Tensor{t}, "split expects at least a 1-dimensional tensor")
	}
	n := t.shape[d]
	if size < 0 || size == 0 && n > 0 {
		x.fail("Split", fault.Invalid, []*Tensor{t}, "split expects split_size be positive, but got split_size=%d", size)
	}
	sizes := []int{min(size, n)}
	if n > size {
		x.piecesFit("Split", t, (n-1)/size+1)
		for n -= size; n > 0; n -= size {
			sizes = append(sizes, min(size, n))
		}
	}
	return x.SplitSizes(t, sizes, d)
}

// Chunk returns the views of at most n pieces of t along dimension dim, or 0 if that is left out, all of the same size except perhaps the
// last.
func (x *Exec) Chunk(t *Tensor, n int, dim ...int) []*Tensor {
	d := x.dimOf("Chunk", t, Int("Chunk", "a dimension", dim, 0))
	if len(t.shape) == 0 {
		x.fail("Chunk", fault.Invalid, []*Tensor{t}, "chunk expects at least a 1-dimensional tensor")
	}
	if n <= 0 {
		x.fail("Chunk", fault.Invalid, []*Tensor{t}, "chunk expects `chunks` to be greater than 0, got: %d", n)
	}
	if t.shape[d] == 0 {
		x.piecesFit("Chunk", t, n)
		return x.SplitSizes(t, make([]int, n), d)
	}
	size := (t.shape[d]-1)/n + 1
	return x.Split(t, size, d)
}

// Unbind returns the views of t's elements along dimension dim, or 0 if that is left out, which is removed.
func (x *Exec) Unbind(t *Tensor, dim ...int) []*Tensor {
	along := Int("Unbind", "a dimension", dim, 0)
	d := x.dimOf("Unbind", t, along)
	if len(t.shape) == 0 {
		x.fail("Unbind", fault.Invalid, []*Tensor{t}, "Dimension specified as %d but tensor has no dimensions", along)
	}
	if n := t.shape[d]; n > pieces {
		x.piecesFit("Unbind", t, n)
		out := make([]*Tensor, n)
		for i := range out {
			out[i] = x.Select(t, d, i)
		}
		return out
	}
	f := x.op(rowUnbind, t)
	f.i[0] = d
	return f.callMany()
}

// legacyEmpty reports whether the shape is [0], which Cat skips whatever the other shapes, as PyTorch does.
func legacyEmpty(shape []int) bool { return len(shape) == 1 && shape[0] == 0 }

func inferCat(f *frame) {
	dt := f.catType()
	var first *Tensor
	last := true
	for _, t := range f.many {
		if legacyEmpty(t.shape) {
			continue
		}
		if first == nil {
			first = t
		}
		last = last && infer.ChannelsLast(t.shape, t.stride)
	}
	if first == nil {
		f.newOut(0, dt, []int{0}, nil)
		return
	}
	d := f.dim(f.i[0], len(first.shape))
	if len(first.shape) == 0 {
		f.fail(fault.Invalid, "zero-dimensional tensor (at position 0) cannot be concatenated")
	}
	shape := append([]int(nil), first.shape...)
	shape[d] = 0
	for i, t := range f.many {
		if legacyEmpty(t.shape) {
			continue
		}
		f.check(infer.Lengthen(shape, t.shape, d, i))
	}
	var stride []int
	if last {
		stride = infer.ChannelsLastStrides(shape)
	}
	f.newOut(0, dt, shape, stride)
}

// catType returns the type that the operands promote to: operands with dimensions outrank those without.
func (f *frame) catType() dtype.DType {
	var p infer.Promotion
	for _, t := range f.many {
		p.Tensor(t.dt, len(t.shape))
	}
	return p.Type()
}

func runCat(f *frame) error {
	out, at := f.out[0], 0
	if out.Numel() == 0 {
		return nil
	}
	d := f.dim(f.i[0], len(out.shape))
	for _, t := range f.many {
		if t.Numel() == 0 {
			continue
		}
		dst := operand(out)
		dst.Ptr += uint64(at * out.stride[d] * out.dt.Size())
		dst.Shape = t.shape
		if err := f.copyTo(dst, operand(t)); err != nil {
			return err
		}
		at += t.shape[d]
	}
	return nil
}

// copyTo copies and converts src to dst, of the same shape.
func (f *frame) copyTo(dst, src kernels.Operand) error {
	compute := src.DType
	if dst.DType.IsComplex() && !compute.IsComplex() {
		compute = dst.DType
	}
	return kernels.Pointwise(f, kernels.Copy, compute, nil, []kernels.Operand{dst}, []kernels.Operand{src})
}

// Cat concatenates the tensors, of equal shapes except in dimension dim, along dim, or 0 if that is left out, in the promoted type. Tensors
// of shape [0] are skipped.
//
//tenon:into
func (x *Exec) Cat(ts []*Tensor, dim ...int) *Tensor {
	if len(ts) == 0 {
		x.fail("Cat", fault.Invalid, nil, "the list of tensors is empty; give at least one")
	}
	along := Int("Cat", "a dimension", dim, 0)
	f := x.op(rowCat)
	f.many = append(f.many, ts...)
	f.i[0] = along
	return f.call1()
}

// Stack joins the tensors, of equal shapes, along a new dimension dim, or 0 if that is left out.
//
//tenon:into
func (x *Exec) Stack(ts []*Tensor, dim ...int) *Tensor {
	along := Int("Stack", "a dimension", dim, 0)
	if len(ts) == 0 {
		x.fail("Stack", fault.Invalid, nil, "stack expects a non-empty TensorList")
	}
	for i, t := range ts {
		Given("Stack", i, t)
		if !infer.Same(t.shape, ts[0].shape) {
			x.fail("Stack", fault.Invalid, ts, "stack expects each tensor to be equal size, but got %v at entry 0 and %v at entry %d",
				ts[0].shape, t.shape, i)
		}
	}
	return x.composite("Stack", func(x *Exec) *Tensor {
		views := make([]*Tensor, len(ts))
		for i, t := range ts {
			views[i] = x.Unsqueeze(t, along)
		}
		n := len(ts[0].shape) + 1
		if along < 0 {
			along += n
		}
		return x.Cat(views, along)
	})
}
