package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// Logical operations return bool, bitwise ones their operands' type; neither has a gradient.
var rowLogicalAnd, rowLogicalOr, rowLogicalXor, rowBitwiseAnd, rowBitwiseOr, rowBitwiseXor, rowLeftShift, rowRightShift *row

func init() {
	rowLogicalAnd = define(row{Name: "LogicalAnd", Torch: "logical_and", point: kernels.LogicalAnd, rule: boolean})
	rowLogicalOr = define(row{Name: "LogicalOr", Torch: "logical_or", point: kernels.LogicalOr, rule: boolean})
	rowLogicalXor = define(row{Name: "LogicalXor", Torch: "logical_xor", point: kernels.LogicalXor, rule: boolean})
	rowBitwiseAnd = define(row{Name: "BitwiseAnd", Torch: "bitwise_and", point: kernels.BitwiseAnd, rule: integral})
	rowBitwiseOr = define(row{Name: "BitwiseOr", Torch: "bitwise_or", point: kernels.BitwiseOr, rule: integral})
	rowBitwiseXor = define(row{Name: "BitwiseXor", Torch: "bitwise_xor", point: kernels.BitwiseXor, rule: integral})
	rowLeftShift = define(row{Name: "BitwiseLeftShift", Torch: "bitwise_left_shift", point: kernels.LeftShift, rule: shiftRule})
	rowRightShift = define(row{Name: "BitwiseRightShift", Torch: "bitwise_right_shift", point: kernels.RightShift, rule: shiftRule})
}

// shiftRule is same for integers only.
func shiftRule(f *frame) (compute, out dtype.DType) {
	p := f.promoted()
	if !p.IsInt() {
		f.fail(fault.Unsupported, "%s is defined for integer tensors only, not %v; convert them first with x.ToDType", f.row.Name, p)
	}
	return p, p
}

// LogicalAnd reports where both a and b are not zero, broadcast.
//
//tenon:into
func (x *Exec) LogicalAnd(a, b *Tensor) *Tensor { return x.op(rowLogicalAnd, a, b).call1() }

// LogicalOr reports where a or b is not zero, broadcast.
//
//tenon:into
func (x *Exec) LogicalOr(a, b *Tensor) *Tensor { return x.op(rowLogicalOr, a, b).call1() }

// LogicalXor reports where exactly one of a and b is not zero, broadcast.
//
//tenon:into
func (x *Exec) LogicalXor(a, b *Tensor) *Tensor { return x.op(rowLogicalXor, a, b).call1() }

// BitwiseAnd returns a & b, broadcast, for integers or bool.
//
//tenon:into
func (x *Exec) BitwiseAnd(a, b *Tensor) *Tensor { return x.op(rowBitwiseAnd, a, b).call1() }

// BitwiseOr returns a | b, broadcast, for integers or bool.
//
//tenon:into
func (x *Exec) BitwiseOr(a, b *Tensor) *Tensor { return x.op(rowBitwiseOr, a, b).call1() }

// BitwiseXor returns a ^ b, broadcast, for integers or bool.
//
//tenon:into
func (x *Exec) BitwiseXor(a, b *Tensor) *Tensor { return x.op(rowBitwiseXor, a, b).call1() }

// BitwiseLeftShift returns a << b, broadcast, for integers. If b is negative, or at least the number of bits, the result is 0.
//
//tenon:into
func (x *Exec) BitwiseLeftShift(a, b *Tensor) *Tensor { return x.op(rowLeftShift, a, b).call1() }

// BitwiseRightShift returns a >> b, broadcast, for integers; signed ones keep their sign. If b is negative, or at least the number of bits,
// the result is 0, or -1 for negative a.
//
//tenon:into
func (x *Exec) BitwiseRightShift(a, b *Tensor) *Tensor { return x.op(rowRightShift, a, b).call1() }
