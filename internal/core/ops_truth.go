package core

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// Reductions of what is not zero. They have no gradient.
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

// All reports whether no element along dims is zero, as bool (of uint8 as uint8); nil dims mean all. Of no elements it is true.
func (x *Exec) All(t *Tensor, dims []int, keepDim bool) *Tensor {
	return x.reduceOp(rowAll, t, dims, keepDim).call1()
}

// Any reports whether an element along dims is not zero, as bool (of uint8 as uint8); nil dims mean all. Of no elements it is false.
func (x *Exec) Any(t *Tensor, dims []int, keepDim bool) *Tensor {
	return x.reduceOp(rowAny, t, dims, keepDim).call1()
}

// CountNonzero returns how many elements along dims are not zero, as int64; nil dims mean all.
func (x *Exec) CountNonzero(t *Tensor, dims []int) *Tensor {
	return x.reduceOp(rowCountNonzero, t, dims, false).call1()
}
