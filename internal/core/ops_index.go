package core

import (
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// Operations that address one dimension by an integer tensor. i[0] is the dimension. The row of scatters reads i[1], a ScatterMode. If i[2]
// is 1, negative indexes count from the end.
var rowGather, rowScatter *row

func init() {
	rowGather = define(row{Name: "Gather", takes: "t index;; dim - wrap", Torch: "gather", infer: inferGather, run: runGather, saves: in1,
		flags: flagAsserts, moves: movesOfPicks})
	rowScatter = define(row{Name: "Scatter", takes: "t index src;; dim mode wrap", flags: flagVaries | flagAsserts, Torch: "scatter",
		infer: inferScatter, run: runScatter, saves: in1, moves: movesOfScatter})
}

func init() {
	rowGather.back = func(b *back) {
		x, g := b.x, b.grad(0)
		b.set(0, x.sumAt(b.shape(0), b.n.i[0], b.in(1), g, b.n.i[2]))
	}
	rowScatter.back = func(b *back) {
		x, g, index, dim := b.x, b.grad(0), b.in(1), b.n.i[0]
		switch ScatterMode(b.n.i[1]) {
		case ScatterReplace:
			if b.need(0) {
				f := x.scatter(g, index, x.Expand(x.Zeros(nil, g.dt), index.shape...), dim, ScatterReplace)
				f.i[2] = b.n.i[2]
				b.set(0, f.call1())
			}
		case ScatterAdd:
			b.set(0, g)
		case ScatterMultiply:
			x.fail("Scatter", fault.Unsupported, nil, "a scatter that multiplies has no derivative; use scatters that set or add")
		}
		if b.need(2) {
			f := x.op(rowGather, g, index)
			f.i = [8]int{dim, 0, b.n.i[2]}
			b.set(2, f.call1())
		}
	}
}

// at1 returns the shape and strides of t; a 0-d tensor has those of one element in one dimension.
func at1(t *Tensor) (shape, stride []int) {
	if len(t.shape) == 0 {
		return []int{1}, []int{1}
	}
	return t.shape, t.stride
}

// indexDim checks the index of an operation along dimension i[0] of t and returns that dimension. The index may have any size along it.
func (f *frame) indexDim(t, index *Tensor) int {
	if index.dt != dtype.Int64 && index.dt != dtype.Int32 && index.Numel() > 0 {
		f.fail(fault.Invalid, "Expected dtype int32/int64 for index, but got %v; convert it with x.ToDType", index.dt)
	}
	d := f.dim(f.i[0], len(t.shape))
	if index.Numel() == 0 {
		return d
	}
	if max(len(t.shape), 1) != max(len(index.shape), 1) {
		f.fail(fault.Invalid, "Index tensor must have the same number of dimensions as input tensor, but they have %d and %d",
			len(index.shape), len(t.shape))
	}
	shape, _ := at1(t)
	ishape, _ := at1(index)
	for i, n := range ishape {
		if i != d && n > shape[i] {
			f.fail(fault.Invalid,
				"Size does not match at dimension %d expected index %v to be no larger than self %v apart from dimension %d", i,
				index.shape, t.shape, d)
		}
	}
	return d
}

func inferGather(f *frame) {
	f.indexDim(f.in[0], f.in[1])
	f.newOut(0, f.in[0].dt, f.in[1].shape, nil)
}

// indexed describes t for addressing along dimension i[0].
func (f *frame) indexed(t *Tensor) kernels.Indexed {
	d := f.dim(f.i[0], len(t.shape))
	shape, stride := at1(t)
	r := kernels.Indexed{Operand: operand(t), Step: stride[d], Size: shape[d], Wrap: f.i[2] == 1}
	st := append([]int(nil), stride...)
	st[d] = 0
	r.Stride = st
	return r
}

// operand1 is operand, but describes a 0-d tensor as having one dimension.
func operand1(t *Tensor) kernels.Operand {
	o := operand(t)
	o.Shape, o.Stride = at1(t)
	return o
}

func runGather(f *frame) error {
	if f.out[0].Numel() == 0 {
		return nil
	}
	return kernels.Gather(f, operand1(f.out[0]), operand1(f.in[1]), f.indexed(f.in[0]))
}

func inferScatter(f *frame) {
	t, index, src := f.in[0], f.in[1], f.in[2]
	d := f.indexDim(t, index)
	if shape, _ := at1(t); index.Numel() > 0 && shape[d] == 0 {
		f.fail(fault.Invalid, "dimension %d of the tensor %v has no elements, so every index is out of range; give an empty index", d,
			t.shape)
	}
	if src.dt != t.dt {
		f.fail(fault.Invalid, "the tensor is %v, but src is %v; convert src with x.ToDType", t.dt, src.dt)
	}
	if index.Numel() > 0 && !infer.Same(index.shape, src.shape) {
		f.fail(fault.Invalid, "Expected index %v to be no larger than src %v", index.shape, src.shape)
	}
	f.newOut(0, t.dt, t.shape, nil)
}

func runScatter(f *frame) error {
	out, t := f.out[0], f.in[0]
	if out.Numel() == 0 {
		return nil
	}
	if !identical(out, t) {
		outs, ins := f.operandsOf()
		if err := kernels.Pointwise(f, kernels.Copy, t.dt, nil, outs[:1], ins[:1]); err != nil {
			return err
		}
	}
	if f.in[1].Numel() == 0 {
		return nil
	}
	dst, index, src := f.indexed(out), operand1(f.in[1]), operand1(f.in[2])
	dim := f.dim(f.i[0], len(out.shape))
	switch ScatterMode(f.i[1]) {
	case ScatterAdd:
		return kernels.ScatterAdd(f, dst, index, src, dim)
	case ScatterMultiply:
		return kernels.ScatterMultiply(f, dst, index, src, dim)
	}
	return kernels.Scatter(f, dst, index, src)
}

// scatter enters a frame of a scatter. It uses the part of src that index covers.
func (x *Exec) scatter(t, index, src *Tensor, dim int, mode ScatterMode) *frame {
	f := x.op(rowScatter, t, index, src)
	f.i = [8]int{dim, int(mode)}
	return f
}

// scatterInto runs a scatter whose result goes to dst.
func (f *frame) scatterInto(dst *Tensor) {
	for i, name := range [...]string{"index", "src"} {
		if dst != nil && sharing(dst, f.in[1+i]) {
			f.fail(fault.Invalid, "the destination overlaps the operand %s, which is read while it changes; Clone one of them first", name)
		}
	}
	f.call1Into(dst)
}

// sumAt returns a tensor of zeros with src added at index along dim; with wrap 1 negative indexes count from the end.
func (x *Exec) sumAt(shape []int, dim int, index, src *Tensor, wrap int) *Tensor {
	t := x.Zeros(shape, src.dt)
	f := x.scatter(t, index, src, dim, ScatterAdd)
	f.i[2] = wrap
	f.call1Into(t)
	return t
}

// cover returns the part of src that index covers, starting at the first element of every dimension.
func (x *Exec) cover(op string, t, index, src *Tensor) *Tensor {
	if len(src.shape) != len(index.shape) || index.Numel() == 0 {
		return src
	}
	for d, n := range index.shape {
		if n > src.shape[d] {
			x.fail(op, fault.Invalid, []*Tensor{t, index, src}, "Expected index %v to be no larger than src %v", index.shape, src.shape)
		}
		if n < src.shape[d] {
			src = x.Slice(src, d, 0, n, 1)
		}
	}
	return src
}

// Gather returns a tensor of index's shape: at each position, the element of t at that position but with the index there along dimension
// dim. index is int64 or int32, in 0 … size-1; a number out of range fails as in AssertAsync.
//
//tenon:into
func (x *Exec) Gather(t *Tensor, dim int, index *Tensor) *Tensor {
	f := x.op(rowGather, t, index)
	f.i[0] = dim
	return f.call1()
}

// ScatterMode says what a scatter does with existing elements.
type ScatterMode uint8

// What a scatter does with an element: it replaces it, adds to it, or multiplies it.
const (
	ScatterReplace ScatterMode = iota
	ScatterAdd
	ScatterMultiply
)

// String returns PyTorch's name, such as "add"; PyTorch has no name for replacing.
func (m ScatterMode) String() string { return nameOf(m, "replace", "add", "multiply") }

// ScatterOpt are the options of scatters.
type ScatterOpt struct {
	// Reduce is ScatterReplace (the zero value), ScatterAdd or ScatterMultiply.
	Reduce ScatterMode
}

func (x *Exec) scatterMode(op string, opt ScatterOpt) ScatterMode {
	if opt.Reduce > ScatterMultiply {
		x.fail(op, fault.Invalid, nil,
			"reduce argument must be either add or multiply, not %v; it is ScatterReplace, ScatterAdd or ScatterMultiply", opt.Reduce)
	}
	return opt.Reduce
}

// Scatter returns a copy of t in which, at each position of index, the element with that index along dimension dim is src's element there.
// If two indexes name one element, either may win; with opt.Reduce they are applied in order.
func (x *Exec) Scatter(t *Tensor, dim int, index, src *Tensor, opt ScatterOpt) *Tensor {
	mode := x.scatterMode("Scatter", opt)
	return x.composite("Scatter", func(x *Exec) *Tensor {
		return x.scatter(t, index, x.cover("Scatter", t, index, src), dim, mode).call1()
	})
}

// ScatterS is Scatter with the value v.
//
//tenon:into
func (x *Exec) ScatterS(t *Tensor, dim int, index *Tensor, v float64, opt ScatterOpt) *Tensor {
	mode := x.scatterMode("Scatter", opt)
	return x.composite("Scatter", func(x *Exec) *Tensor {
		return x.scatter(t, index, x.Expand(x.Full(nil, v, t.dt), index.shape...), dim, mode).call1()
	})
}

// ScatterInto sets dst to Scatter of t; dst may be t.
func (x *Exec) ScatterInto(dst, t *Tensor, dim int, index, src *Tensor, opt ScatterOpt) {
	mode := x.scatterMode("Scatter", opt)
	x.scoped(func(x *Exec) { x.scatter(t, index, x.cover("Scatter", t, index, src), dim, mode).scatterInto(dst) })
}

// ScatterAdd returns a copy of t to which, at each position of index, src's element is added at that index along dimension dim. Sums are
// computed in order, so that results repeat.
func (x *Exec) ScatterAdd(t *Tensor, dim int, index, src *Tensor) *Tensor {
	return x.composite("ScatterAdd", func(x *Exec) *Tensor {
		return x.casting("ScatterAdd", castWidest, &t, &src).Scatter(t, dim, index, src, ScatterOpt{Reduce: ScatterAdd})
	})
}

// ScatterAddInto sets dst to ScatterAdd of t; dst may be t.
func (x *Exec) ScatterAddInto(dst, t *Tensor, dim int, index, src *Tensor) {
	x.ScatterInto(dst, t, dim, index, src, ScatterOpt{Reduce: ScatterAdd})
}

// TakeAlongDim is Gather with t and index broadcast against each other, except in dimension dim; without dim it takes from all of t, in
// row-major order, and returns a vector. Negative indexes count from the end.
//
//tenon:into
func (x *Exec) TakeAlongDim(t, index *Tensor, dim ...int) *Tensor {
	return x.composite("TakeAlongDim", func(x *Exec) *Tensor {
		if len(dim) == 0 {
			return x.take(x.Reshape(t, -1), 0, x.Reshape(index, -1))
		}
		f := x.op(rowGather, t, index)
		n := len(t.shape)
		if len(index.shape) != n {
			f.fail(fault.Invalid, "input and indices should have the same number of dimensions, but got %d dimensions "+
				"for input, and %d dimensions for indices", n, len(index.shape))
		}
		d := f.dim(Int("TakeAlongDim", "a dimension", dim, 0), n)
		x.s.leave(f)
		a, b := append([]int(nil), t.shape...), append([]int(nil), index.shape...)
		for i := range a {
			if i == d {
				continue
			}
			if a[i] == 1 {
				a[i] = b[i]
			}
			if b[i] == 1 {
				b[i] = a[i]
			}
			if a[i] != b[i] {
				x.refuse("TakeAlongDim", infer.Mismatch(a[i], b[i], i), t, index)
			}
		}
		return x.take(x.Expand(t, a...), d, x.Expand(index, b...))
	})
}

// take is Gather, but negative indexes count from the end.
func (x *Exec) take(t *Tensor, dim int, index *Tensor) *Tensor {
	f := x.op(rowGather, t, index)
	f.i = [8]int{dim, 0, 1}
	return f.call1()
}

// EmbeddingOpt are the options of Embedding.
type EmbeddingOpt struct {
	// Padding says that the row PaddingIdx (negative: from the end) gets no gradient.
	Padding    bool
	PaddingIdx int
	// MaxNorm, if it is given, rescales the rows that index selects, in place and before they are read, to at most that norm, of order
	// NormType, whose default is 2.
	MaxNorm, NormType Scalar
	// ScaleGradByFreq divides the gradient of each row by how often index selects it.
	ScaleGradByFreq bool
}

// embedding is the data that the gradient of an Embedding depends on: whether there is a row, index, that gets none, and whether rows'
// gradients are divided by how often they are selected.
type embedding struct {
	padding, scale bool
	index          int
}

// rowEmbedding reads the rows of input 0 [V, D] that the contiguous input 1 selects; opt is an embedding.
var rowEmbedding *row

func init() {
	rowEmbedding = define(row{Name: "Embedding", takes: "weight index;; options", Torch: "nn.functional.embedding", saves: in1,
		flags: flagAsserts, moves: movesOfPicks,
		infer: func(f *frame) {
			w, index := f.in[0], f.in[1]
			if index.dt != dtype.Int64 && index.dt != dtype.Int32 {
				f.fail(fault.Invalid, "the index is %v, but must be int64 or int32; convert it with x.ToDType", index.dt)
			}
			f.newOut(0, w.dt, append(append(f.lists[:0], index.shape...), w.shape[1]), nil)
		},
		run: func(f *frame) error {
			w, index, out := f.in[0], f.in[1], operand(f.out[0])
			if out.Numel() == 0 {
				return nil
			}
			i := operand(index)
			shape := []int{i.Numel(), w.shape[1]}
			out.Shape, out.Stride = shape, []int{shape[1], 1}
			i.Shape, i.Stride = shape, []int{1, 0}
			src := kernels.Indexed{Operand: operand(w), Step: w.stride[0], Size: w.shape[0]}
			src.Shape, src.Stride = shape, []int{0, w.stride[1]}
			return kernels.Gather(f, out, i, src)
		}})
}

func init() {
	rowEmbedding.back = func(b *back) {
		x, opt, d := b.x, b.n.opt.(embedding), b.shape(0)[1]
		index := x.Reshape(b.in(1), -1)
		g := x.Reshape(b.grad(0), -1, d)
		if opt.padding {
			keep := x.Ne(index, x.Full(nil, float64(opt.index), index.dt))
			g = x.Mul(g, x.Unsqueeze(x.ToDType(keep, g.dt), 1))
		}
		if opt.scale {
			counts := x.sumAt(b.shape(0)[:1], 0, index, x.Ones(index.shape, dtype.Int64), 0)
			g = x.Div(x.widened(g), x.Unsqueeze(x.Gather(counts, 0, index), 1)) // a half cannot hold large counts
		}
		rows := x.Expand(x.Unsqueeze(index, 1), index.Numel(), d)
		b.set(0, x.ToDType(x.sumAt(b.shape(0), 0, rows, g, 0), b.n.edges[0].dt))
	}
}

// Embedding returns the rows of weight [V, D] that index selects, in a tensor of index's shape and a last dimension D. index is int64 or
// int32, in 0 … V-1; a number out of range fails as in AssertAsync.
func (x *Exec) Embedding(index, weight *Tensor, opt EmbeddingOpt) *Tensor {
	x.wantDim("Embedding", "the weight", weight, 2)
	if opt.Padding {
		v := weight.shape[0]
		if opt.PaddingIdx < -v || opt.PaddingIdx >= v {
			x.fail("Embedding", fault.Invalid, []*Tensor{weight}, "Padding_idx must be within num_embeddings, %d, but is %d",
				v, opt.PaddingIdx)
		}
		if opt.PaddingIdx < 0 {
			opt.PaddingIdx += v
		}
	}
	maxNorm, order := Or("Embedding", "MaxNorm", opt.MaxNorm, 0), Or("Embedding", "NormType", opt.NormType, 2)
	if math.IsNaN(maxNorm) { // an infinite one limits nothing
		panicAt("Embedding", fault.Invalid, "MaxNorm is %v; give a number", maxNorm)
	}
	look := func(x *Exec) *Tensor {
		f := x.op(rowEmbedding, weight, x.Contiguous(index))
		f.opt = embedding{opt.Padding, opt.ScaleGradByFreq, opt.PaddingIdx}
		return f.call1()
	}
	return x.composite("Embedding", func(x *Exec) (out *Tensor) {
		if opt.MaxNorm == nil {
			return look(x)
		}
		x.together("Embedding", func(x *Exec) {
			x.noGrad().renorm(weight, index, maxNorm, order)
			out = look(x)
		})
		return out
	})
}

// renorm rescales the rows of weight that index selects to at most maxNorm, a norm of the given order.
func (x *Exec) renorm(weight, index *Tensor, maxNorm, order float64) {
	norm := x.PowS(x.Sum(x.PowS(x.Abs(weight), order), []int{1}, SumOpt{KeepDim: true}), 1/order)
	limit := x.Full(nil, maxNorm, norm.dt)
	index = x.Reshape(index, -1)
	// Counted, not marked: threads whose index names the same row must not write it at the same time.
	named := x.ScatterS(x.Zeros([]int{weight.shape[0]}, dtype.Int32), 0, index, 1, ScatterOpt{Reduce: ScatterAdd})
	over := x.LogicalAnd(x.Gt(norm, limit), x.Unsqueeze(x.GtS(named, 0), 1))
	scale := x.Div(limit, x.AddS(norm, 1e-7))
	x.CopyInto(weight, x.Where(over, x.Mul(weight, scale), weight))
}

func (embedding) param() {}

// movesOfPicks counts bytes for a result whose elements input 1 selects from input 0: it reads no more of input 0 than there is.
func movesOfPicks(f *frame) int64 {
	n := bytesOnce(f.out[0])
	return min(bytesOnce(f.in[0]), n) + bytesOnce(f.in[1]) + n
}

// movesOfSome counts bytes for operands and results of which each element is read or written once, except for input 0, of which at most so
// many elements are read.
func movesOfSome(elements func(f *frame) int) func(f *frame) int64 {
	return func(f *frame) int64 {
		n := min(bytesOnce(f.in[0]), int64(elements(f)*f.in[0].dt.Size()))
		for _, ts := range [][]*Tensor{f.in[1:f.ins], f.out[:f.outs]} {
			for _, t := range ts {
				if t != nil {
					n += bytesOnce(t)
				}
			}
		}
		return n
	}
}

// movesOfScatter counts bytes for elements of input 2 that go to elements of input 0, or of a copy of it.
func movesOfScatter(f *frame) int64 {
	moves := bytesOnce(f.in[1]) + bytesOnce(f.in[2])
	if !identical(f.out[0], f.in[0]) {
		return moves + bytesOnce(f.in[0]) + bytesOnce(f.out[0])
	}
	changed := min(int64(f.in[2].numel*f.in[2].dt.Size()), bytesOnce(f.out[0]))
	if ScatterMode(f.i[1]) != ScatterReplace {
		changed *= 2 // it also reads them
	}
	return moves + changed
}
