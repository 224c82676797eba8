// Package dtype defines the element types of tensors and kernels, PyTorch's promotion between them, and the half-precision formats.
// It must not depend on tensors, devices or kernels.
package dtype

import "fmt"

// DType is an element type.
type DType uint8

// The element types. Their order is that of PyTorch's promotion within a category.
const (
	Invalid DType = iota
	Bool
	Uint8
	Int8
	Int16
	Int32
	Int64
	Float16
	BFloat16
	Float32
	Float64
	Complex64
	Complex128
	// Uint16, Uint32 and Uint64 are for kernels; tensors of these types can only be stored and copied.
	Uint16
	Uint32
	Uint64
	count
)

type info struct {
	name     string
	size     int
	category Category
	short    string
}

// Category orders the types for promotion: a higher category wins over a lower one.
type Category uint8

// The categories, lowest first.
const (
	CategoryBool Category = iota + 1
	CategoryInt
	CategoryFloat
	CategoryComplex
)

var infos = [count]info{
	Bool:       {"bool", 1, CategoryBool, "b"},
	Uint8:      {"uint8", 1, CategoryInt, "u8"},
	Int8:       {"int8", 1, CategoryInt, "i8"},
	Int16:      {"int16", 2, CategoryInt, "i16"},
	Int32:      {"int32", 4, CategoryInt, "i32"},
	Int64:      {"int64", 8, CategoryInt, "i64"},
	Float16:    {"float16", 2, CategoryFloat, "f16"},
	BFloat16:   {"bfloat16", 2, CategoryFloat, "bf16"},
	Float32:    {"float32", 4, CategoryFloat, "f32"},
	Float64:    {"float64", 8, CategoryFloat, "f64"},
	Complex64:  {"complex64", 8, CategoryComplex, "c64"},
	Complex128: {"complex128", 16, CategoryComplex, "c128"},
	Uint16:     {"uint16", 2, CategoryInt, "u16"},
	Uint32:     {"uint32", 4, CategoryInt, "u32"},
	Uint64:     {"uint64", 8, CategoryInt, "u64"},
}

// String returns PyTorch's name without the prefix, such as "float32".
func (d DType) String() string {
	if d > Invalid && d < count {
		return infos[d].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Short returns the short name used in kernel names and in the kernel IR, such as "f32".
func (d DType) Short() string {
	if d > Invalid && d < count {
		return infos[d].short
	}
	return "invalid"
}

// Parse returns the type with the given name, long or short.
func Parse(name string) (DType, bool) {
	for d := Invalid + 1; d < count; d++ {
		if infos[d].name == name || infos[d].short == name {
			return d, true
		}
	}
	return Invalid, false
}

// info describes d; a value that is no type is treated as Invalid.
func (d DType) info() *info {
	if d >= count {
		d = Invalid
	}
	return &infos[d]
}

// Size returns the bytes of one element, 0 if d is no type.
func (d DType) Size() int { return d.info().size }

// Category returns the promotion category, 0 if d is no type.
func (d DType) Category() Category { return d.info().category }

// Valid reports whether d is a type.
func (d DType) Valid() bool { return d > Invalid && d < count }

// IsFloat reports whether d is a real floating-point type.
func (d DType) IsFloat() bool { return d.info().category == CategoryFloat }

// IsComplex reports whether d is complex.
func (d DType) IsComplex() bool { return d.info().category == CategoryComplex }

// IsInt reports whether d is an integer type; Bool is not.
func (d DType) IsInt() bool { return d.info().category == CategoryInt }

// IsSigned reports whether d holds negative numbers.
func (d DType) IsSigned() bool {
	switch d {
	case Bool, Uint8, Uint16, Uint32, Uint64, Invalid:
		return false
	}
	return true
}

// Real returns the type of the real and imaginary parts of a complex type, and d itself otherwise.
func (d DType) Real() DType {
	switch d {
	case Complex64:
		return Float32
	case Complex128:
		return Float64
	}
	return d
}

// Complex returns the complex type whose parts have type d; Complex64 for the half types, since no complex half type exists.
func (d DType) Complex() DType {
	switch d {
	case Float64, Complex128:
		return Complex128
	}
	return Complex64
}

// Accumulate returns the type in which sums of d are kept: float32 for the half types, int64 for integers and bool, else d.
func (d DType) Accumulate() DType {
	switch {
	case d == Float16 || d == BFloat16:
		return Float32
	case d.IsInt() || d == Bool:
		return Int64
	}
	return d
}

// Promote returns the type of a result of operands a and b of equal standing (both tensors with dimensions), as
// torch.promote_types does. Invalid is the identity.
func Promote(a, b DType) DType {
	if a == b || b == Invalid {
		return a
	}
	if a == Invalid {
		return b
	}
	ca, cb := a.Category(), b.Category()
	if ca < cb {
		a, b, ca, cb = b, a, cb, ca
	}
	switch {
	case ca == CategoryComplex:
		if a == Complex128 || b == Complex128 || b == Float64 {
			return Complex128
		}
		return Complex64
	case ca != cb:
		return a
	case ca == CategoryFloat:
		if (a == Float16 && b == BFloat16) || (a == BFloat16 && b == Float16) {
			return Float32
		}
		return max(a, b)
	case a == Uint8 || b == Uint8:
		if o := a ^ b ^ Uint8; o == Int8 {
			return Int16
		}
		return a ^ b ^ Uint8
	}
	return max(a, b)
}
