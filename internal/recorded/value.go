// Package recorded reads recorded results of PyTorch from files and compares other results with them: op cases, a training run, random
// numbers. It must not depend on tensors or devices: a tensor here is bytes with a dtype, a shape and strides, and callers convert their
// own to that.
package recorded

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/safetensors"
)

// Value is one recorded value: nil, bool, int64, float64, complex128, string, dtype.DType, MemoryFormat, *Tensor, List or Dict.
type Value = any

// List is a recorded list or tuple.
type List []Value

// Dict is a recorded dictionary.
type Dict map[string]Value

// MemoryFormat is PyTorch's name for a memory format, without the prefix, such as "channels_last".
type MemoryFormat string

// Tensor is a tensor's content and metadata.
type Tensor struct {
	// DType is the element type; TypeName is PyTorch's name for it, which also covers types that dtype lacks (then DType is Invalid).
	DType    dtype.DType
	TypeName string
	// Shape and Strides count elements; both have one entry per dimension. Data does not follow Strides: it is always row-major.
	Shape, Strides []int
	// Grad is set if a gradient is required.
	Grad bool
	// Data holds the elements in row-major order, little-endian; a complex element is its real part, then its imaginary part.
	Data []byte
}

// Elements returns the number of elements.
func (t *Tensor) Elements() int {
	n := 1
	for _, e := range t.Shape {
		n *= e
	}
	return n
}

// String returns the metadata, such as "float32[2 3] strides [3 1]".
func (t *Tensor) String() string {
	return fmt.Sprintf("%s%v strides %v", t.TypeName, t.Shape, t.Strides)
}

// Real returns element i, counted in row-major order, of a tensor that is not complex, as a float64. Integers beyond 2^53 are rounded.
func (t *Tensor) Real(i int) float64 {
	switch b := t.Data; t.DType {
	case dtype.Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	case dtype.Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	case dtype.Float16:
		return float64(dtype.F16(binary.LittleEndian.Uint16(b[2*i:])).Float32())
	case dtype.BFloat16:
		return float64(dtype.BF16(binary.LittleEndian.Uint16(b[2*i:])).Float32())
	}
	return float64(t.Int(i))
}

// Int returns element i, counted in row-major order, of an integer or bool tensor.
func (t *Tensor) Int(i int) int64 {
	switch b := t.Data; t.DType {
	case dtype.Bool, dtype.Uint8:
		return int64(b[i])
	case dtype.Int8:
		return int64(int8(b[i]))
	case dtype.Int16:
		return int64(int16(binary.LittleEndian.Uint16(b[2*i:])))
	case dtype.Uint16:
		return int64(binary.LittleEndian.Uint16(b[2*i:]))
	case dtype.Int32:
		return int64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	case dtype.Uint32:
		return int64(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
}

// Complex returns element i, counted in row-major order, as a complex number, for any type.
func (t *Tensor) Complex(i int) complex128 {
	parts := Tensor{DType: t.DType.Real(), Data: t.Data}
	if !t.DType.IsComplex() {
		return complex(parts.Real(i), 0)
	}
	return complex(parts.Real(2*i), parts.Real(2*i+1))
}

// rowMajor returns the strides of a contiguous tensor, as in PyTorch: extents below 1 count as 1.
func rowMajor(shape []int) []int {
	strides := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= max(1, shape[i])
	}
	return strides
}

func invalid(format string, args ...any) error { return fault.New(fault.Invalid, format, args...) }

// decode turns a parsed JSON value (numbers as json.Number) into a Value; tensors take their data from the accompanying file.
func decode(v any, tensors *safetensors.File) (Value, error) {
	switch v := v.(type) {
	case nil, bool, string:
		return v, nil
	case json.Number:
		return number(v)
	case []any:
		return decodeList(v, tensors)
	case map[string]any:
		return decodeTagged(v, tensors)
	}
	return nil, invalid("a recorded value has type %T", v)
}

// number keeps Python's distinction between int and float: a float has a point or an exponent in its text.
func number(n json.Number) (Value, error) {
	if strings.ContainsAny(string(n), ".eE") {
		f, err := n.Float64()
		if err != nil {
			return nil, invalid("a recorded float is %s", n)
		}
		return f, nil
	}
	i, err := n.Int64()
	if err != nil {
		return nil, invalid("a recorded integer is %s, beyond 64 bits", n)
	}
	return i, nil
}

func decodeList(v []any, tensors *safetensors.File) (Value, error) {
	l := make(List, len(v))
	for i := range v {
		var err error
		if l[i], err = decode(v[i], tensors); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// decodeTagged decodes an object whose type is given by its one key that starts with a dollar sign.
func decodeTagged(m map[string]any, tensors *safetensors.File) (Value, error) {
	for tag, v := range m {
		if tag == "$t" {
			return decodeTensor(m, tensors)
		}
		if len(m) != 1 {
			continue
		}
		switch v := v.(type) {
		case []any:
			if tag == "$l" {
				return decodeList(v, tensors)
			}
			if tag == "$c" && len(v) == 2 {
				return decodeComplex(v, tensors)
			}
		case map[string]any:
			if tag == "$k" {
				return decodeDict(v, tensors)
			}
		case string:
			switch tag {
			case "$f":
				return specialFloat(v)
			case "$d":
				if d, ok := dtype.Parse(v); ok {
					return d, nil
				}
				return nil, invalid("a recorded dtype is %q", v)
			case "$m":
				return MemoryFormat(strings.TrimPrefix(v, "torch.")), nil
			}
		}
	}
	return nil, invalid("a recorded object has the unknown form %v", m)
}

func specialFloat(name string) (Value, error) {
	switch name {
	case "inf":
		return math.Inf(1), nil
	case "-inf":
		return math.Inf(-1), nil
	case "nan":
		return math.NaN(), nil
	}
	return nil, invalid("a recorded special float is %q", name)
}

func decodeComplex(parts []any, tensors *safetensors.File) (Value, error) {
	var f [2]float64
	for i, p := range parts {
		v, err := decode(p, tensors)
		if err != nil {
			return nil, err
		}
		switch v := v.(type) {
		case float64:
			f[i] = v
		case int64:
			f[i] = float64(v)
		default:
			return nil, invalid("a part of a recorded complex number is %v", v)
		}
	}
	return complex(f[0], f[1]), nil
}

func decodeDict(m map[string]any, tensors *safetensors.File) (Value, error) {
	d := Dict{}
	for k, v := range m {
		var err error
		if d[k], err = decode(v, tensors); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// decodeTensor decodes a tensor's object and its data, which is stored with the same element type; for a complex type, with an extra last
// dimension of 2.
func decodeTensor(m map[string]any, tensors *safetensors.File) (Value, error) {
	key, ok1 := m["$t"].(string)
	name, ok2 := m["dtype"].(string)
	grad, ok3 := m["grad"].(bool)
	shape, ok4 := ints(m["shape"])
	strides, ok5 := ints(m["stride"])
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || len(shape) != len(strides) {
		return nil, invalid("a recorded tensor has the unknown form %v", m)
	}
	t := &Tensor{TypeName: name, Shape: shape, Strides: strides, Grad: grad}
	t.DType, _ = dtype.Parse(name)
	info, err := tensors.Lookup(key)
	if err != nil {
		return nil, err
	}
	if t.DType.Valid() {
		stored := append([]int{}, shape...)
		if t.DType.IsComplex() {
			stored = append(stored, 2)
		}
		if info.DType != t.DType.Real() || !slices.Equal(info.Shape, stored) {
			return nil, invalid("recorded tensor %s is %v, but its data are %v", key, t, info)
		}
	}
	t.Data, err = tensors.Read(key)
	return t, err
}

func ints(v any) ([]int, bool) {
	l, ok := v.([]any)
	out := make([]int, len(l))
	for i, e := range l {
		n, isNumber := e.(json.Number)
		k, err := n.Int64()
		if !isNumber || err != nil {
			return nil, false
		}
		out[i] = int(k)
	}
	return out, ok
}
