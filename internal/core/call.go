package core

import (
	"encoding/binary"
	"math"
	"unique"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// attrs are the attributes of a call besides its operands: a plain value that can be copied, compared and kept. Nothing in it points to memory of the
// device or of a frame.
type attrs struct {
	scalar [4]kernels.Scalar
	// hole holds the scalars that stand for absent inputs of pointwise operations; holes has their bits, holeFloat those that are not integers.
	hole      [4]kernels.Scalar
	holes     uint8
	holeFloat uint8
	dt        dtype.DType
	i         [8]int
	list      *intList
	opt       param
}

// param is an attribute that a row defines for itself. Its types are comparable and consist of numbers, forms, lists and things that there is one of, such
// as rows, devices and the operations of kernels.
type param interface{ param() }

type (
	conv         struct{ kernels.Conv }
	distribution struct{ *kernels.RandomOp }
	ofDevice     struct{ *rt.Device }
	onStream     struct{ *rt.Stream }
)

func (conv) param()           {}
func (pooling) param()        {}
func (norm) param()           {}
func (normGrad) param()       {}
func (likelihood) param()     {}
func (likelihoodGrad) param() {}
func (distribution) param()   {}
func (*distance) param()      {}
func (region) param()         {}
func (unviewed) param()       {}
func (EmbeddingOpt) param()   {}
func (ofDevice) param()       {}
func (onStream) param()       {}
func (foreach) param()        {}
func (advance) param()        {}
func (updateScale) param()    {}
func (launching) param()      {}

// form returns the form of that shape and those strides; nil strides mean contiguous. Most often it is an operand's.
func (f *frame) form(shape, stride []int) *form {
	for i := 0; i < f.ins; i++ {
		t := f.in[i]
		if t == nil || t.form == nil || !sameShape(t.shape, shape) {
			continue
		}
		if stride == nil && t.contiguous && len(shape) > 0 || stride != nil && sameShape(t.stride, stride) {
			return t.form
		}
	}
	return f.x.s.made.form(shape, stride)
}

// keptAttrs returns the attributes for a node.
func (f *frame) keptAttrs() *attrs {
	f.list = f.x.s.made.list(f.dims)
	if f.attrs == noAttrs {
		return &noAttrs
	}
	a := f.attrs
	return &a
}

// numberList is a list of numbers, compared by what they are.
type numberList struct{ h unique.Handle[string] }

// numbersOf returns the list of those numbers.
func numbersOf(v []float64) numberList {
	b := make([]byte, 0, 8*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return numberList{unique.Make(string(b))}
}

func (n numberList) floats() []float64 {
	s := n.h.Value()
	out := make([]float64, len(s)/8)
	for i := range out {
		out[i] = math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[8*i : 8*i+8])))
	}
	return out
}

// scalarsOf returns the list of those scalars, of which each becomes a float and the bits of an integer.
func scalarsOf(v []kernels.Scalar) numberList {
	out := make([]float64, 0, 2*len(v))
	for _, s := range v {
		out = append(out, s.F, math.Float64frombits(uint64(s.I)))
	}
	return numbersOf(out)
}

// scalar returns scalar i of scalarsOf's list.
func (n numberList) scalars() []kernels.Scalar {
	f := n.floats()
	out := make([]kernels.Scalar, len(f)/2)
	for i := range out {
		out[i] = kernels.Scalar{F: f[2*i], I: int64(math.Float64bits(f[2*i+1]))}
	}
	return out
}
