package core

import (
	"encoding/binary"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// Operations on the elements that are not zero. rowNonzeroStarts counts for the others; they read the last number of its result, which is
// the length of their own, and get it in i[0]. Masks have the shape of their tensor.
var rowNonzeroStarts, rowNonzero, rowMaskedSelect, rowMaskedScatter, rowMaskedScatterBackward *row

func init() {
	rowNonzeroStarts = define(row{Name: "NonzeroStarts", takes: "t -> starts",
		infer: func(f *frame) { f.newOut(0, dtype.Int64, []int{kernels.CompactStarts(f.in[0].Numel())}, nil) },
		run:   func(f *frame) error { return f.compaction(f.in[0], f.out[0]).Count(f) }})
	rowNonzero = define(row{Name: "Nonzero", takes: "t starts;; count", Torch: "nonzero", flags: flagWaits | flagSized,
		infer: func(f *frame) { // column-major, so that adjacent threads write adjacent elements
			f.newOut(0, dtype.Int64, []int{f.i[0], len(f.in[0].shape)}, []int{1, max(f.i[0], 1)})
		},
		run: func(f *frame) error {
			if f.out[0].Numel() == 0 {
				return nil
			}
			return f.compaction(f.in[0], f.in[1]).Places(f, operand(f.out[0]))
		}})
	rowMaskedSelect = define(row{Name: "MaskedSelect", takes: "t mask starts;; count", Torch: "masked_select",
		flags: flagWaits | flagSized, saves: in1 | in2, moves: movesOfSome(func(f *frame) int { return f.out[0].Numel() }),
		infer: func(f *frame) { f.newOut(0, f.in[0].dt, []int{f.i[0]}, nil) },
		run: func(f *frame) error {
			if f.out[0].Numel() == 0 {
				return nil
			}
			return f.compaction(f.in[1], f.in[2]).Take(f, operand(f.out[0]), operand(f.in[0]))
		}})
	// The source of rowMaskedScatter is a vector.
	rowMaskedScatter = define(row{Name: "MaskedScatter", takes: "t mask source starts", Torch: "masked_scatter", saves: in1 | in3,
		flags: flagAsserts,
		infer: func(f *frame) { f.newOut(0, f.in[0].dt, f.in[0].shape, f.layout(f.in[0].shape)) },
		run: func(f *frame) error {
			if f.out[0].Numel() == 0 {
				return nil
			}
			return f.compaction(f.in[1], f.in[3]).Spread(f, operand(f.out[0]), operand(f.in[0]), operand(f.in[2]))
		}})
	// rowMaskedScatterBackward is rowMaskedSelect for a source, a vector of length i[0], of which the mask may need only a part.
	rowMaskedScatterBackward = define(row{Name: "MaskedScatterBackward", takes: "g mask starts;; length", saves: in1 | in2,
		infer: func(f *frame) { f.newOut(0, f.in[0].dt, []int{f.i[0]}, nil) },
		run: func(f *frame) error {
			out := operand(f.out[0])
			if out.Numel() == 0 {
				return nil
			}
			if err := kernels.Pointwise(f, kernels.Fill, out.DType, []kernels.Scalar{{}}, []kernels.Operand{out}, nil); err != nil {
				return err
			}
			return f.compaction(f.in[1], f.in[2]).Take(f, out, operand(f.in[0]))
		}})
}

func init() {
	spread := func(b *back) { // the gradient goes to where the elements came from
		zeros := b.x.Expand(b.x.Zeros(nil, b.grad(0).dt), b.shape(0)...)
		b.set(0, b.x.op(rowMaskedScatter, zeros, b.in(1), b.grad(0), b.in(2)).call1())
	}
	rowMaskedSelect.back, rowMaskedScatterBackward.back = spread, spread
	rowMaskedScatter.back = func(b *back) {
		x, g := b.x, b.grad(0)
		if b.need(0) {
			b.set(0, x.MaskedFillS(g, b.in(1), 0))
		}
		if b.need(2) {
			b.set(2, x.sized(rowMaskedScatterBackward, b.shape(2)[0], g, b.in(1), b.in(3)))
		}
	}
}

// compaction describes work on the elements of mask that are not zero.
func (f *frame) compaction(mask, starts *Tensor) *kernels.Compaction {
	return &kernels.Compaction{Mask: operand(mask), Starts: operand(starts)}
}

// sized runs an operation whose result has length n along its first dimension.
func (x *Exec) sized(r *row, n int, ins ...*Tensor) *Tensor {
	f := x.op(r, ins...)
	f.i[0] = n
	return f.call1()
}

// last reads the last of the numbers in starts, for the operation op.
func (x *Exec) last(op string, starts *Tensor) int {
	b, err := x.bytesFor(op, x.Select(starts, 0, starts.shape[0]-1))
	x.check(op, err)
	return int(binary.LittleEndian.Uint64(b))
}

// Nonzero returns the indexes of the elements of t that are not zero, in row-major order, as int64 [n, dimensions of t]; a NaN is not zero.
// The indexes along one dimension, a column, are contiguous. Their number depends on t, so the call waits for t and cannot be captured.
//
//tenon:into
func (x *Exec) Nonzero(t *Tensor) *Tensor {
	return x.noGrad().composite("Nonzero", func(x *Exec) *Tensor {
		starts := x.op(rowNonzeroStarts, t).call1()
		return x.sized(rowNonzero, x.last("Nonzero", starts), t, starts)
	})
}

// MaskedSelect returns a vector of the elements of t, broadcast with mask, at which the bool tensor mask is true, in row-major order. Their
// number depends on mask, so the call waits for mask and cannot be captured.
//
//tenon:into
func (x *Exec) MaskedSelect(t, mask *Tensor) *Tensor {
	const op = "MaskedSelect"
	return x.composite(op, func(x *Exec) *Tensor {
		t, mask := x.maskedWith(op, t, mask)
		starts := x.op(rowNonzeroStarts, mask).call1()
		return x.sized(rowMaskedSelect, x.last(op, starts), t, mask, starts)
	})
}

// MaskedScatter returns a copy of t, broadcast with mask, in which the elements at which the bool tensor mask is true are replaced by those
// of source, in the row-major order of both. A source with too few elements fails as in AssertAsync.
func (x *Exec) MaskedScatter(t, mask, source *Tensor) *Tensor {
	const op = "MaskedScatter"
	if source.dt != t.dt {
		x.fail(op, fault.Invalid, []*Tensor{t, source}, "masked_scatter: expected self and source to have same dtypes but got %v and "+
			"%v; convert source with x.ToDType", t.dt, source.dt)
	}
	return x.composite(op, func(x *Exec) *Tensor {
		t, mask := x.maskedWith(op, t, mask)
		return x.op(rowMaskedScatter, t, mask, x.Reshape(source, -1), x.op(rowNonzeroStarts, mask).call1()).call1()
	})
}

// maskedWith broadcasts t and mask to one shape.
func (x *Exec) maskedWith(op string, t, mask *Tensor) (_, _ *Tensor) {
	if mask.dt != dtype.Bool {
		x.fail(op, fault.Invalid, []*Tensor{t, mask}, "the mask is %v, but must be bool; make one with a comparison, such as "+
			"x.NeS(mask, 0)", mask.dt)
	}
	shape, err := infer.Broadcast(nil, t.shape, mask.shape)
	x.refuse(op, err, t, mask)
	return x.Expand(t, shape...), x.Expand(mask, shape...)
}
