package core

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// Reductions over the elements that are not zero. They have no gradient.
var rowAll, rowAny, rowCountNonzero *row

func init() {
	rowAll = define(reduceRow("All", "all", kernels.All, truthRule, 0, nil))
	rowAny = define(reduceRow("Any", "any", kernels.Any, truthRule, 0, nil))
	rowCountNonzero = define(reduceRow("CountNonzero", "count_nonzero", kernels.CountNonzero, func(*frame) (compute, out dtype.DType) {
		return dtype.Bool, dtype.Int64
	}, 0, nil))
}

// truthRule returns bool, but uint8 for uint8.
func truthRule(f *frame) (compute, out dtype.DType) {
	if f.in[0].dt == dtype.Uint8 {
		return dtype.Bool, dtype.Uint8
	}
	return dtype.Bool, dtype.Bool
}

// All reports whether no element along dims is zero, as bool (uint8 for uint8); nil dims mean all. For no elements it is true.
//
//tenon:into
func (x *Exec) All(t *Tensor, dims []int, opt DimOpt) *Tensor {
	return x.reduceOp(rowAll, t, dims, opt.KeepDim).call1()
}

// Any reports whether an element along dims is not zero, as bool (uint8 for uint8); nil dims mean all. For no elements it is false.
//
//tenon:into
func (x *Exec) Any(t *Tensor, dims []int, opt DimOpt) *Tensor {
	return x.reduceOp(rowAny, t, dims, opt.KeepDim).call1()
}

// CountNonzero returns how many elements along dims are not zero, as int64; nil dims mean all.
func (x *Exec) CountNonzero(t *Tensor, dims []int) *Tensor {
	return x.reduceOp(rowCountNonzero, t, dims, false).call1()
}

// Equal reports whether a and b have the same shape and equal elements, in the promoted type; a NaN equals nothing. It waits for the work
// that computes them.
func (x *Exec) Equal(a, b *Tensor) (same bool, err error) {
	for _, t := range []*Tensor{a, b} {
		if t.st.dev != x.Device() {
			here, there := rt.Apart(x.Device(), t.st.dev)
			return false,
				x.refusal("Equal", t, "Expected all tensors to be on the same device, %s, but this one is on %s; move it with x.To", here,
					there)
		}
	}
	if !infer.Same(a.shape, b.shape) {
		return false, nil
	}
	err = Try(func() {
		x.noGrad().scoped(func(x *Exec) {
			v, err := x.Item(x.All(x.Eq(a, b), nil, DimOpt{}))
			x.check("Equal", err)
			same = v != 0
		})
	})
	return same, err
}
