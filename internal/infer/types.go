package infer

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// Promotion collects operands and finds the type that they promote to by PyTorch's rules: tensors with dimensions outrank 0-d tensors, and
// those outrank numbers; a lower rank counts only if its category is higher.
type Promotion struct{ dims, zero, number dtype.DType }

// Tensor adds a tensor of n dimensions.
func (p *Promotion) Tensor(dt dtype.DType, n int) {
	if n == 0 {
		p.zero = dtype.Promote(p.zero, dt)
	} else {
		p.dims = dtype.Promote(p.dims, dt)
	}
}

// Number adds a number: Int64 for an integer, Float32 or Complex64 for others.
func (p *Promotion) Number(dt dtype.DType) { p.number = dtype.Promote(p.number, dt) }

// Type returns the type that the operands promote to.
func (p Promotion) Type() dtype.DType { return higher(p.dims, higher(p.zero, p.number)) }

// higher returns a, unless b's category is above a's. If b is complex and a is a float, the result keeps a's precision.
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

// Floating returns dt, but float32 for integers and bool.
func Floating(dt dtype.DType) dtype.DType {
	if dt.IsInt() || dt == dtype.Bool {
		return dtype.Float32
	}
	return dt
}

// Counting returns dt, but int64 for integers and bool.
func Counting(dt dtype.DType) dtype.DType {
	if dt.IsInt() || dt == dtype.Bool {
		return dtype.Int64
	}
	return dt
}

// Accumulated returns the type in which values of dt are computed: float32 for the halves, else dt.
func Accumulated(dt dtype.DType) dtype.DType {
	if dt == dtype.Float16 || dt == dtype.BFloat16 {
		return dtype.Float32
	}
	return dt
}

// Numeric returns an error of the operation op if dt is bool.
func Numeric(op string, dt dtype.DType) error {
	if dt == dtype.Bool {
		return Refusal(fault.Unsupported, "%s is not defined for bool tensors; convert them first with x.ToDType", op)
	}
	return nil
}

// Real returns an error of the operation op if dt is complex.
func Real(op string, dt dtype.DType) error {
	if dt.IsComplex() {
		return Refusal(fault.Unsupported, "%s is not defined for complex tensors; convert them first with x.RealPart or x.ToDType", op)
	}
	return nil
}

// Integral returns an error of the operation op unless dt is an integer type or bool.
func Integral(op string, dt dtype.DType) error {
	if dt.IsFloat() || dt.IsComplex() {
		return Refusal(fault.Unsupported, "%s is defined for integer and bool tensors only, not %v; convert them first with x.ToDType", op,
			dt)
	}
	return nil
}

// RealFloat returns an error of the operation op unless dt is a real floating-point type.
func RealFloat(op string, dt dtype.DType) error {
	if !dt.IsFloat() {
		return Refusal(fault.Unsupported, "%s is defined for floating-point tensors only, not %v; convert them first with x.ToDType", op,
			dt)
	}
	return nil
}
