package infer

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// Promotion collects operands and finds the type that they promote to, as PyTorch's rules have it: tensors with dimensions come before 0-d
// tensors, and those before numbers; the lower standing counts only where its category is higher.
type Promotion struct{ dims, zero, number dtype.DType }

// Tensor adds a tensor of n dimensions.
func (p *Promotion) Tensor(dt dtype.DType, n int) {
	if n == 0 {
		p.zero = dtype.Promote(p.zero, dt)
	} else {
		p.dims = dtype.Promote(p.dims, dt)
	}
}

// Number adds a number: Int64 stands for an integer, Float32 and Complex64 for others.
func (p *Promotion) Number(dt dtype.DType) { p.number = dtype.Promote(p.number, dt) }

// Type returns what the operands promote to.
func (p Promotion) Type() dtype.DType { return higher(p.dims, higher(p.zero, p.number)) }

// higher returns a, unless b's category is above a's. A complex b over a float a keeps the precision of a.
func higher(a, b dtype.DType) dtype.DType {
	switch {
	case a == dtype.Invalid:
		return b
	case b == dtype.Invalid || b.Category() <= a.Category():
		return a
	case b.IsComplex() && a.IsFloat():
		if a == dtype.Float64 {
			return dtype.Complex128
		}
		return dtype.Complex64
	}
	return b
}

// Floating is dt, but float32 for integers and bool.
func Floating(dt dtype.DType) dtype.DType {
	if dt.IsInt() || dt == dtype.Bool {
		return dtype.Float32
	}
	return dt
}

// Counting is dt, but int64 for integers and bool.
func Counting(dt dtype.DType) dtype.DType {
	if dt.IsInt() || dt == dtype.Bool {
		return dtype.Int64
	}
	return dt
}

// Accumulated is the type in which values of dt are computed: float32 for the halves.
func Accumulated(dt dtype.DType) dtype.DType {
	if dt == dtype.Float16 || dt == dtype.BFloat16 {
		return dtype.Float32
	}
	return dt
}

// Numeric returns an error of the operation op where dt is bool.
func Numeric(op string, dt dtype.DType) error {
	if dt == dtype.Bool {
		return Refusal(fault.Unsupported, "%s is not defined for bool tensors; convert them first", op)
	}
	return nil
}

// Real returns an error of the operation op where dt is complex.
func Real(op string, dt dtype.DType) error {
	if dt.IsComplex() {
		return Refusal(fault.Unsupported, "%s is not defined for complex tensors", op)
	}
	return nil
}

// Integral returns an error of the operation op unless dt is an integer type or bool.
func Integral(op string, dt dtype.DType) error {
	if dt.IsFloat() || dt.IsComplex() {
		return Refusal(fault.Unsupported, "%s is defined for integer and bool tensors only, not %v", op, dt)
	}
	return nil
}

// RealFloat returns an error of the operation op unless dt is a real floating-point type.
func RealFloat(op string, dt dtype.DType) error {
	if !dt.IsFloat() {
		return Refusal(fault.Unsupported, "%s is defined for floating-point tensors only, not %v", op, dt)
	}
	return nil
}
