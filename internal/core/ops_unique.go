package core

import (
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// rowUniqueSort sorts a vector and returns the index that each sorted element comes from, and where new values begin; if i[0] is not 0, the
// elements are integers from 0 to 1<<i[0] - 1. rowUniqueRanks returns each element's index among the distinct values, and rowUnique the
// i[0] distinct values and the count of each.
var rowUniqueSort, rowUniqueRanks, rowUnique *row

func init() {
	rowUniqueSort = define(row{Name: "UniqueSort", takes: "t;; bits -> order heads",
		infer: func(f *frame) {
			f.newOut(0, dtype.Int64, f.in[0].shape, nil)
			f.newOut(1, dtype.Bool, f.in[0].shape, nil)
		},
		run: func(f *frame) error {
			return (&kernels.Unique{X: operand(f.in[0]), Order: operand(f.out[0]), Heads: operand(f.out[1]), Bits: f.i[0]}).Sort(f)
		}})
	rowUniqueRanks = define(row{Name: "UniqueRanks", takes: "heads order starts", flags: flagAsserts,
		infer: func(f *frame) { f.newOut(0, dtype.Int64, f.in[0].shape, nil) },
		run: func(f *frame) error {
			if f.out[0].Numel() == 0 {
				return nil
			}
			return f.compaction(f.in[0], f.in[2]).Ranks(f, operand(f.out[0]), operand(f.in[1]))
		}})
	rowUnique = define(row{Name: "Unique", takes: "t order heads starts;; count -> values counts", Torch: "unique",
		flags: flagWaits | flagSized | flagAsserts,
		infer: func(f *frame) {
			f.newOut(0, f.in[0].dt, []int{f.i[0]}, nil)
			f.newOut(1, dtype.Int64, []int{f.i[0]}, nil)
		},
		run: runUnique})
}

// runUnique gathers the elements that differ from the one before, and computes the counts as the distances from each to the next; the last
// one's distance is to the end.
func runUnique(f *frame) error {
	count := f.i[0]
	if count == 0 {
		return nil
	}
	ws, err := f.Workspace(8 * (2*count + 1))
	if err != nil {
		return err
	}
	vector := func(from int) kernels.Operand {
		return kernels.Operand{Ptr: ws + 8*uint64(from), DType: dtype.Int64, Shape: []int{count}, Stride: []int{1}}
	}
	first, next, from := vector(0), vector(1), vector(count+1)
	places, end := first, vector(count)
	places.Shape, places.Stride, end.Shape = []int{count, 1}, []int{1, 1}, []int{1}
	if err := f.compaction(f.in[2], f.in[3]).Places(f, places); err != nil {
		return err
	}
	if err := kernels.Pointwise(f, kernels.Fill, dtype.Int64, []kernels.Scalar{kernels.IntScalar(int64(f.in[0].shape[0]))},
		[]kernels.Operand{end}, nil); err != nil {
		return err
	}
	if err := kernels.Pointwise(f, kernels.Sub, dtype.Int64, nil, []kernels.Operand{operand(f.out[1])},
		[]kernels.Operand{next, first}); err != nil {
		return err
	}
	of := func(t *Tensor) kernels.Indexed {
		o := operand(t)
		step := o.Stride[0]
		o.Stride = []int{0}
		return kernels.Indexed{Operand: o, Step: step, Size: t.shape[0]}
	}
	if err := kernels.Gather(f, from, first, of(f.in[1])); err != nil {
		return err
	}
	return kernels.Gather(f, operand(f.out[0]), from, of(f.in[0]))
}

// Unique returns the distinct elements of t as a vector, in ascending order. The two zeros of floats count as one value; each NaN counts as
// a separate one, and NaNs come last. The length depends on t, so the call waits for t and cannot be captured. It has no derivative, and
// does not support complex numbers.
func (x *Exec) Unique(t *Tensor) *Tensor {
	values, inverse, counts := x.UniqueWithInverse(t)
	inverse.close()
	counts.close()
	return values
}

// UniqueWithInverse is Unique with two more results, as int64: inverse, of t's shape, has the index of each element in values, and counts
// how often each of values occurs in t.
func (x *Exec) UniqueWithInverse(t *Tensor) (values, inverse, counts *Tensor) {
	const op = "Unique"
	if t.dt.IsComplex() {
		x.fail(op, fault.Unsupported, []*Tensor{t}, "complex numbers have no order; take x.Unique of their parts, or of a number for each")
	}
	out := x.noGrad().compositeMany(op, func(x *Exec) []*Tensor {
		flat := x.Reshape(t, -1)
		order, heads, starts, inverse := x.different(flat, 0)
		count := x.last(op, starts)
		f := x.op(rowUnique, flat, order, heads, starts)
		f.i[0] = count
		f.call()
		values, counts := f.out[0], f.out[1]
		x.s.leave(f)
		return []*Tensor{values, x.View(inverse, t.shape...), counts}
	})
	return out[0], out[1], out[2]
}

// sorted runs rowUniqueSort; see different for wide.
func (x *Exec) sorted(t *Tensor, wide int) (order, heads *Tensor) {
	f := x.op(rowUniqueSort, t)
	f.i[0] = wide
	return f.call2()
}

// different finds the distinct elements of the vector t; if wide is not 0, t holds integers below 1<<wide. It returns the order that sorts
// t, whether a new value begins at each sorted element, the starts of rowNonzeroStarts for that, and each element's index among the
// distinct values.
func (x *Exec) different(t *Tensor, wide int) (order, heads, starts, inverse *Tensor) {
	order, heads = x.sorted(t, wide)
	starts = x.op(rowNonzeroStarts, heads).call1()
	return order, heads, starts, x.op(rowUniqueRanks, heads, order, starts).call1()
}

// TopKOpt are the options of TopK. The zero value is PyTorch's default.
type TopKOpt struct {
	// Dim is the dimension; nil means the last.
	Dim *int
	// Smallest selects the least elements, in ascending order, instead of the greatest.
	Smallest bool
}

// TopK returns the k greatest elements of t along a dimension, in descending order, and their indices, as int64. A NaN counts as greater
// than any number, and of equal elements the first comes first. The gradient of values goes to the selected elements. TopK sorts all of t.
// It supports neither complex numbers nor bool.
//
//tenon:into
func (x *Exec) TopK(t *Tensor, k int, opt TopKOpt) (values, indices *Tensor) {
	const op = "TopK"
	if t.dt.IsComplex() {
		x.fail(op, fault.Unsupported, []*Tensor{t}, "complex numbers have no order; take x.TopK of x.Abs or of a part of them")
	}
	x.check(op, infer.Numeric(op, t.dt))
	out := x.compositeMany(op, func(x *Exec) []*Tensor {
		d := x.dimOf(op, t, whole(opt.Dim, -1))
		shape, _ := at1(t)
		switch n := shape[d]; {
		case len(t.shape) == 0 && k != 1:
			x.fail(op, fault.Invalid, []*Tensor{t}, "k is %d, but t has no dimensions; give a k of 1", k)
		case k < 0 || k > n:
			x.fail(op, fault.Invalid, []*Tensor{t}, "k is %d, but dimension %d has %d element(s); give a k from 0 to %d", k, d, n, n)
		}
		at := x.noGrad().topPlaces(x.Reshape(t, shape...), k, d, opt.Smallest)
		if len(t.shape) == 0 {
			at = x.Reshape(at)
		}
		return []*Tensor{x.Gather(t, d, at), at}
	})
	return out[0], out[1]
}

// topPlaces returns the indices of TopK. The elements are sorted, and then, since the sort is stable, by their lines along dim. For the
// greatest elements both sorts run over t in reverse, and so do the results, so that equal elements end up in their order.
func (x *Exec) topPlaces(t *Tensor, k, dim int, smallest bool) *Tensor {
	turned := x.Transpose(t, dim, -1)
	n, shape := t.shape[dim], slices.Clone(turned.shape)
	shape[len(shape)-1] = k
	all := t.Numel()
	if k == 0 || all == 0 {
		return x.Transpose(x.Zeros(shape, dtype.Int64), dim, -1)
	}
	flat := x.Reshape(turned, all)
	if !smallest {
		flat = x.Flip(flat, 0)
	}
	order, _ := x.sorted(flat, 0)
	lines := all / n
	if lines > 1 {
		byLine, _ := x.sorted(x.FloorDivideS(order, float64(n)), bits.Len(uint(lines-1)))
		order = x.Gather(order, 0, byLine)
	}
	grid := x.View(order, lines, n)
	if smallest {
		grid = x.Slice(grid, 1, 0, k, 1)
	} else {
		grid = x.RSubS(x.Flip(x.Slice(grid, 1, n-k, n, 1), 0, 1), float64(all-1))
	}
	return x.Contiguous(x.Transpose(x.Reshape(x.RemainderS(grid, float64(n)), shape...), dim, -1))
}
