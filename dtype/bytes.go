package dtype

import (
	"encoding/binary"
	"math"
	"strconv"
	"unsafe"
)

// Float64At returns element i of little-endian data of type d as a float64; of a complex element the real part. It returns NaN if data
// has no such element or d is no type.
func Float64At(d DType, data []byte, i int) float64 {
	size := d.Size()
	if size == 0 || i < 0 || i >= len(data)/size {
		return math.NaN()
	}
	b := data[i*size:]
	le := binary.LittleEndian
	switch d {
	case Bool, Uint8:
		return float64(b[0])
	case Int8:
		return float64(int8(b[0]))
	case Int16:
		return float64(int16(le.Uint16(b)))
	case Uint16:
		return float64(le.Uint16(b))
	case Int32:
		return float64(int32(le.Uint32(b)))
	case Uint32:
		return float64(le.Uint32(b))
	case Int64:
		return float64(int64(le.Uint64(b)))
	case Uint64:
		return float64(le.Uint64(b))
	case Float16:
		return float64(F16(le.Uint16(b)).Float32())
	case BFloat16:
		return float64(BF16(le.Uint16(b)).Float32())
	case Float32, Complex64:
		return float64(math.Float32frombits(le.Uint32(b)))
	}
	return math.Float64frombits(le.Uint64(b))
}

// Element lists the Go types that stand for an element type; int stands for Int64, as Python's integers do in PyTorch.
type Element interface {
	bool | int | uint8 | int8 | int16 | int32 | int64 | uint16 | uint32 | uint64 | float32 | float64 | F16 | BF16 | complex64 | complex128
}

// AsBytes returns the memory of s: little-endian elements on every machine that Go programs with a GPU run on.
func AsBytes[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// Of returns the element type that T stands for. It is Uint16 for uint16, since F16 and BF16 are separate Go types, and Int64 for int, or
// Int32 where an int has 32 bits.
func Of[T Element]() DType {
	switch any(*new(T)).(type) {
	case bool:
		return Bool
	case uint8:
		return Uint8
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case int:
		if strconv.IntSize == 32 {
			return Int32
		}
		return Int64
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case float32:
		return Float32
	case float64:
		return Float64
	case F16:
		return Float16
	case BF16:
		return BFloat16
	case complex64:
		return Complex64
	}
	return Complex128
}
