package core

import (
	"math"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// Operations on the slices of one dimension that a vector of indexes selects. They are gathers and scatters whose index is a view of the
// vector, expanded to the shape of the slices, so no memory holds it.

// sliceIndex returns dimension dim of t and the vector index, expanded to the shape of the slices that it selects; a 0-d tensor t is like
// one of one element.
func (x *Exec) sliceIndex(op string, t *Tensor, dim int, index *Tensor) (at *Tensor, d int) {
	if len(index.shape) > 1 {
		x.fail(op, fault.Invalid, []*Tensor{t, index}, "Index is supposed to be a vector, but got dim: %d; give a vector "+
			"or one number", len(index.shape))
	}
	if index.dt != dtype.Int32 && index.dt != dtype.Int64 {
		x.fail(op, fault.Invalid, []*Tensor{t, index}, "Expected dtype int32 or int64 for index, but got %v; convert it "+
			"with x.ToDType", index.dt)
	}
	d = x.dimOf(op, t, dim)
	whole, _ := at1(t)
	shape, line := slices.Clone(whole), slices.Repeat([]int{1}, len(whole))
	shape[d], line[d] = index.Numel(), index.Numel()
	return x.Expand(x.Reshape(index, line...), shape...), d
}

// putSlices enters a frame of a scatter of src to the slices of t that index selects.
func (x *Exec) putSlices(op string, t *Tensor, dim int, index, src *Tensor, mode ScatterMode) *frame {
	at, d := x.sliceIndex(op, t, dim, index)
	if shape, _ := at1(src); !infer.Same(shape, at.shape) {
		x.fail(op, fault.Invalid, []*Tensor{t, index, src}, "src has shape %v, but index selects slices of shape %v; give src "+
			"that shape", src.shape, at.shape)
	}
	given := src
	if len(src.shape) == 0 {
		src = x.Reshape(src, 1)
	}
	f := x.scatter(t, at, src, d, mode)
	f.blame = blaming("", t, index, given)
	return f
}

// fillSlices enters a frame of a scatter of v to the slices of t that index selects.
func (x *Exec) fillSlices(op string, t *Tensor, dim int, index *Tensor, v float64) *frame {
	at, d := x.sliceIndex(op, t, dim, index)
	f := x.scatter(t, at, x.Expand(x.Full(nil, v, t.dt), at.shape...), d, ScatterReplace)
	f.i[2] = 1
	return f
}

// maskSlices enters a frame that fills the slices with v by a mask, so that v's gradient has each slice once, even if indexes are equal.
func (x *Exec) maskSlices(op string, t *Tensor, dim int, index, v *Tensor) *frame {
	if len(v.shape) != 0 {
		x.fail(op, fault.Invalid, []*Tensor{t, index, v}, "v has shape %v, but must be 0-d; give one number, or use "+
			"x.IndexCopy", v.shape)
	}
	_, d := x.sliceIndex(op, t, dim, index)
	line := slices.Repeat([]int{1}, len(t.shape))
	if len(line) > 0 {
		line[d] = t.shape[d]
	}
	mask := x.Zeros(line, dtype.Bool)
	x.fillSlices(op, mask, dim, index, 1).call1Into(mask)
	return x.op(rowMaskedFill, mask, v, t)
}

// IndexSelect returns the slices of t along dimension dim that index, a vector or one number, selects.
//
//tenon:into
func (x *Exec) IndexSelect(t *Tensor, dim int, index *Tensor) *Tensor {
	return x.composite("IndexSelect", func(x *Exec) *Tensor {
		at, d := x.sliceIndex("IndexSelect", t, dim, index)
		if len(t.shape) == 0 {
			if n := index.Numel(); n != 1 {
				x.fail("IndexSelect", fault.Invalid, []*Tensor{t, index},
					"Index to scalar can have only 1 value, got %d value(s)", n)
			}
			at = x.Reshape(at)
		}
		f := x.op(rowGather, t, at)
		f.i[0], f.blame = d, blaming("", t, index)
		return f.call1()
	})
}

// IndexCopy returns a copy of t in which the slices along dimension dim that index, a vector or one number, selects are those of src, in
// order. src has t's type, and t's shape with as many slices as there are indexes. index is int64 or int32, in 0 … size-1; a number out of
// range fails as in AssertAsync. If two indexes are equal, either slice may win, element by element.
func (x *Exec) IndexCopy(t *Tensor, dim int, index, src *Tensor) *Tensor {
	return x.composite("IndexCopy", func(x *Exec) *Tensor {
		return x.putSlices("IndexCopy", t, dim, index, src, ScatterReplace).call1()
	})
}

// IndexCopyInto sets dst to IndexCopy of t. dst may be t: then it is one kernel, which writes only the slices.
func (x *Exec) IndexCopyInto(dst, t *Tensor, dim int, index, src *Tensor) {
	x.composite("IndexCopyInto", func(x *Exec) *Tensor {
		x.putSlices("IndexCopyInto", t, dim, index, src, ScatterReplace).scatterInto(dst)
		return nil
	})
}

// IndexFill returns a copy of t in which the slices along dimension dim that index, a vector or one number, selects are filled with the 0-d
// tensor v, converted to t's type. index is int64 or int32, in -size … size-1, and negative ones count from the end; a number out of range
// fails as in AssertAsync.
func (x *Exec) IndexFill(t *Tensor, dim int, index, v *Tensor) *Tensor {
	return x.composite("IndexFill", func(x *Exec) *Tensor { return x.maskSlices("IndexFill", t, dim, index, v).call1() })
}

// IndexFillInto sets dst to IndexFill of t; dst may be t.
func (x *Exec) IndexFillInto(dst, t *Tensor, dim int, index, v *Tensor) {
	x.composite("IndexFillInto", func(x *Exec) *Tensor {
		x.maskSlices("IndexFillInto", t, dim, index, v).call1Into(dst)
		return nil
	})
}

// IndexFillS is IndexFill with the value v.
func (x *Exec) IndexFillS(t *Tensor, dim int, index *Tensor, v float64) *Tensor {
	return x.composite("IndexFillS", func(x *Exec) *Tensor {
		return x.fillSlices("IndexFillS", t, dim, index, v).call1()
	})
}

// IndexFillSInto sets dst to IndexFillS of t; dst may be t.
func (x *Exec) IndexFillSInto(dst, t *Tensor, dim int, index *Tensor, v float64) {
	x.composite("IndexFillSInto", func(x *Exec) *Tensor {
		x.fillSlices("IndexFillSInto", t, dim, index, v).scatterInto(dst)
		return nil
	})
}

// IndexAddOpt are the options of IndexAdd.
type IndexAddOpt struct {
	// Alpha multiplies src; the default is 1. It must be whole for integers and bools.
	Alpha Scalar
}

// addSlices enters a frame of a scatter that adds opt.Alpha times src to the slices of t that index selects.
func (x *Exec) addSlices(op string, t *Tensor, dim int, index, src *Tensor, opt IndexAddOpt) *frame {
	alpha := Or(op, "Alpha", opt.Alpha, 1)
	if !src.dt.IsFloat() && !src.dt.IsComplex() && (alpha != math.Trunc(alpha) || math.IsInf(alpha, 0)) {
		x.fail(op, fault.Invalid, []*Tensor{t, index, src}, "For integral input tensors, argument alpha must not be a "+
			"floating point number, but Alpha is %v; give a whole number", alpha)
	}
	if alpha != 1 {
		src = x.ToDType(x.MulS(src, alpha), src.dt) // a bool times a number is a number
	}
	return x.putSlices(op, t, dim, index, src, ScatterAdd)
}

// IndexAdd returns a copy of t to whose slices along dimension dim that index, a vector or one number, selects those of src are added, in
// order, so that results repeat, also where indexes are equal. src has t's type, and t's shape with as many slices as there are indexes.
// index is int64 or int32, in 0 … size-1; a number out of range fails as in AssertAsync.
func (x *Exec) IndexAdd(t *Tensor, dim int, index, src *Tensor, opt IndexAddOpt) *Tensor {
	return x.composite("IndexAdd", func(x *Exec) *Tensor { return x.addSlices("IndexAdd", t, dim, index, src, opt).call1() })
}

// IndexAddInto sets dst to IndexAdd of t; dst may be t.
func (x *Exec) IndexAddInto(dst, t *Tensor, dim int, index, src *Tensor, opt IndexAddOpt) {
	x.composite("IndexAddInto", func(x *Exec) *Tensor {
		x.addSlices("IndexAddInto", t, dim, index, src, opt).scatterInto(dst)
		return nil
	})
}
