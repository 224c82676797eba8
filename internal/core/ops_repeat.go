package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// rowRepeatSums returns the running sums of a vector of integers. rowRepeatIndex returns each index of that vector as often as the element
// there says, i[0] numbers in all, which may have been read from the last sum.
var rowRepeatSums, rowRepeatIndex *row

func init() {
	rowRepeatSums = define(row{Name: "RepeatSums", takes: "repeats -> sums", flags: flagAsserts,
		infer: func(f *frame) { f.newOut(0, dtype.Int64, f.in[0].shape, nil) },
		run: func(f *frame) error {
			if f.out[0].Numel() == 0 {
				return nil
			}
			return kernels.RunningSums(f, operand(f.out[0]), operand(f.in[0]))
		}})
	rowRepeatIndex = define(row{Name: "RepeatIndex", takes: "sums;; count", Torch: "repeat_interleave", flags: flagSized | flagAsserts,
		infer: func(f *frame) { f.newOut(0, dtype.Int64, []int{f.i[0]}, nil) },
		run: func(f *frame) error {
			if f.in[0].Numel() == 0 {
				return nil
			}
			return kernels.RepeatIndex(f, operand(f.out[0]), operand(f.in[0]))
		}})
}

// RepeatInterleaveOpt are the options of RepeatInterleave.
type RepeatInterleaveOpt struct {
	// Dim is the dimension whose slices are repeated; nil repeats the elements, in row-major order, and the result is a vector.
	Dim *int
	// OutputSize, if it is not 0, is the sum of the repeats, which is then not read: the call does not wait, and can be captured. A wrong
	// sum fails as in AssertAsync.
	OutputSize int
}

// RepeatInterleave returns t with each slice repeated as often as repeats says: int64 or int32, a vector as long as the dimension, or one
// number for all. The result's length is their sum, so the call waits for it and cannot be captured, unless opt.OutputSize gives it. A
// negative number fails as in AssertAsync.
func (x *Exec) RepeatInterleave(t, repeats *Tensor, opt RepeatInterleaveOpt) *Tensor {
	const op = "RepeatInterleave"
	refuse := func(text string, args ...any) { x.fail(op, fault.Invalid, []*Tensor{t, repeats}, text, args...) }
	switch {
	case repeats.dt != dtype.Int32 && repeats.dt != dtype.Int64:
		refuse("repeats has to be int32 or int64, not %v; convert it with x.ToDType", repeats.dt)
	case len(repeats.shape) > 1:
		refuse("repeat_interleave only accept 0D or 1D vector as repeat")
	case opt.OutputSize < 0:
		refuse("the output size is negative: %d", opt.OutputSize)
	}
	return x.composite(op, func(x *Exec) *Tensor {
		t, d := x.repeated(op, t, opt)
		n := t.shape[d]
		if repeats.Numel() != 1 && repeats.Numel() != n {
			refuse("repeats must have the same size as input along dim, but got repeats.size(0) = %d and input.size(%d) = %d",
				repeats.Numel(), d, n)
		}
		if n == 0 && opt.OutputSize > 0 {
			refuse("there is nothing to be repeated %d times in all", opt.OutputSize)
		}
		sums := x.noGrad().op(rowRepeatSums, x.Expand(x.Reshape(repeats, -1), n)).call1()
		count := opt.OutputSize
		if count == 0 && n > 0 {
			count = x.last(op, sums)
		}
		return x.IndexSelect(t, d, x.sized(rowRepeatIndex, count, sums))
	})
}

// RepeatInterleaveS returns t with each slice repeated n times.
func (x *Exec) RepeatInterleaveS(t *Tensor, n int, opt RepeatInterleaveOpt) *Tensor {
	const op = "RepeatInterleave"
	if n < 0 {
		x.fail(op, fault.Invalid, []*Tensor{t}, "Repeats must be non-negative, but is %d", n)
	}
	return x.composite(op, func(x *Exec) *Tensor {
		t, d := x.repeated(op, t, opt)
		wide := append(append(append([]int(nil), t.shape[:d+1]...), n), t.shape[d+1:]...)
		whole := append([]int(nil), t.shape...)
		if whole[d] *= n; opt.OutputSize != 0 && opt.OutputSize != whole[d] {
			x.fail(op, fault.Invalid, []*Tensor{t}, "the output size is %d, but %d slices are repeated %d times",
				opt.OutputSize, t.shape[d], n)
		}
		return x.View(x.copyAs(x.Expand(x.Unsqueeze(t, d+1), wide...), t.dt, true), whole...)
	})
}

// repeated returns the tensor whose slices are repeated, and the dimension.
func (x *Exec) repeated(op string, t *Tensor, opt RepeatInterleaveOpt) (_ *Tensor, dim int) {
	if opt.Dim == nil {
		return x.Reshape(t, -1), 0
	}
	dim = x.dimOf(op, t, *opt.Dim)
	if len(t.shape) == 0 {
		t = x.View(t, 1)
	}
	return t, dim
}
