package torchfile

import (
	"fmt"
	"iter"
	"strings"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// The values in files are nil, bool, int64, *big.Int (beyond 64 bits), float64, string and []byte, []any for lists and sets, and the
// types below.

// Tuple is a tuple, or a torch.Size.
type Tuple []any

// Dict is a dict or an OrderedDict: keys and values in their order.
type Dict struct {
	// Keys are strings in most files.
	Keys []any
	// Values belong to the keys at the same places.
	Values []any
}

// Get returns the value of the last key that is this string, and false if there is none.
func (d *Dict) Get(key string) (any, bool) {
	if d == nil {
		return nil, false
	}
	for i := len(d.Keys) - 1; i >= 0; i-- {
		if s, ok := d.Keys[i].(string); ok && s == key {
			return d.Values[i], true
		}
	}
	return nil, false
}

// Set adds a key and its value, or replaces the value of one that is there.
func (d *Dict) Set(key string, value any) {
	if d == nil {
		core.Fail("Set", fault.Invalid, "the Dict is nil; use &torchfile.Dict{}")
	}
	for i, k := range d.Keys {
		if s, ok := k.(string); ok && s == key {
			d.Values[i] = value
			return
		}
	}
	d.Keys, d.Values = append(d.Keys, key), append(d.Values, value)
}

// Tensors is the Dict of named tensors, such as nn.StateDict yields.
func Tensors(seq iter.Seq2[string, *tenon.Tensor]) *Dict {
	if seq == nil {
		core.Fail("Tensors", fault.Invalid, "the tensors are nil; give those of a module with nn.StateDict")
	}
	d := &Dict{}
	for name, t := range seq {
		d.Keys, d.Values = append(d.Keys, name), append(d.Values, t)
	}
	return d
}

// Global names a class, function or constant of Python, such as torch.float32.
type Global struct {
	// Module and Name are its parts.
	Module, Name string
}

// String returns the name with its module.
func (g Global) String() string { return g.Module + "." + g.Name }

// Object stands for the result of calling a Python class or function, which is not called: an argument parser's namespace, a NumPy array,
// a whole module.
type Object struct {
	// Class is what Python would call, with Args.
	Class Global
	Args  Tuple
	// State is the state that the object would then get, and Items what it would be extended by.
	State any
	Items []any
}

// Tensor is a tensor of a file. A bare storage is a Tensor too: a vector of all its elements, of uint8 if it has no type.
type Tensor struct {
	// DType is the element type, or Invalid if Tenon does not have it, as for float8_e4m3fn. Type is PyTorch's name without the prefix.
	DType dtype.DType
	Type  string
	// Shape and Stride are in elements.
	Shape, Stride []int
	// RequiresGrad and Parameter say what the tensor was in the program that wrote it, and Device where it was, such as "cuda:0".
	RequiresGrad, Parameter bool
	Device                  string

	storage *storage
	offset  int // in elements
	size    int // of an element
}

// String describes the tensor, such as float32[3 4].
func (t *Tensor) String() string {
	if t == nil {
		return "nil"
	}
	return fmt.Sprintf("%s%v", t.Type, t.Shape)
}

// storage is an array of bytes in the file.
type storage struct {
	key string
	// at and n are its position and length in the file. n is -1 until a legacy file gives it.
	at, n int64
}

// types are the element types by PyTorch's names.
var types = map[string]struct {
	dt   dtype.DType
	size int
}{
	"float32": {dtype.Float32, 4}, "float64": {dtype.Float64, 8}, "float16": {dtype.Float16, 2}, "bfloat16": {dtype.BFloat16, 2},
	"int8": {dtype.Int8, 1}, "int16": {dtype.Int16, 2}, "int32": {dtype.Int32, 4}, "int64": {dtype.Int64, 8}, "uint8": {dtype.Uint8, 1},
	"uint16": {dtype.Uint16, 2}, "uint32": {dtype.Uint32, 4}, "uint64": {dtype.Uint64, 8}, "bool": {dtype.Bool, 1},
	"complex64": {dtype.Complex64, 8}, "complex128": {dtype.Complex128, 16},
	"float8_e4m3fn": {size: 1}, "float8_e5m2": {size: 1}, "float8_e4m3fnuz": {size: 1}, "float8_e5m2fnuz": {size: 1},
	"float8_e8m0fnu": {size: 1},
	"complex32":      {size: 4},
}

// storageTypes are the element types of torch's storage classes; UntypedStorage holds bytes.
var storageTypes = map[string]string{
	"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
	"CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32", "LongStorage": "int64", "ByteStorage": "uint8",
	"BoolStorage":         "bool",
	"ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128", "UntypedStorage": "",
}

// typeOfStorage returns the element type of a storage class of torch or torch.cuda.
func typeOfStorage(g Global) (string, bool) {
	if g.Module != "torch" && g.Module != "torch.storage" && !strings.HasPrefix(g.Module, "torch.cuda") {
		return "", false
	}
	t, ok := storageTypes[g.Name]
	return t, ok
}
