package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Num is a number in a kernel: real if Im is the zero Value, otherwise complex with parts of equal type.
type Num struct{ Re, Im kernel.Value }

// IsComplex reports whether n has an imaginary part.
func (n Num) IsComplex() bool { return n.Im.Builder() != nil }

// realNum returns a Num without an imaginary part.
func realNum(v kernel.Value) Num { return Num{Re: v} }

// Type returns the element type.
func (n Num) Type() dtype.DType {
	if n.IsComplex() {
		return n.Re.Type().Complex()
	}
	return n.Re.Type()
}

// Convert returns n as type t with PyTorch's semantics: complex to real drops the imaginary part, and anything to bool is n != 0.
func (n Num) Convert(t dtype.DType) Num {
	switch {
	case t.IsComplex() && n.IsComplex():
		return Num{convertValue(n.Re, t.Real()), convertValue(n.Im, t.Real())}
	case t.IsComplex():
		re := convertValue(n.Re, t.Real())
		return Num{re, re.Like(0)}
	case n.IsComplex() && t == dtype.Bool:
		return Num{Re: n.Re.Ne(n.Re.Like(0)).Or(n.Im.Ne(n.Im.Like(0)))}
	}
	return Num{Re: convertValue(n.Re, t)}
}

// convertValue converts between real types. Conversions from and to halves go through float32, as for PyTorch's half types. Floats become
// uint8 through int64, and int8 and int16 through int32, so that out-of-range values wrap as they do in PyTorch on a GPU.
func convertValue(v kernel.Value, t dtype.DType) kernel.Value {
	from := v.Type()
	switch {
	case from == t:
		return v
	case opmath(from) != from:
		return convertValue(v.Convert(dtype.Float32), t)
	case opmath(t) != t:
		return v.Convert(dtype.Float32).Convert(t)
	case from.IsFloat() && t == dtype.Uint8:
		return v.Convert(dtype.Int64).Convert(t)
	case from.IsFloat() && t.IsInt() && t.Size() < 4:
		return v.Convert(dtype.Int32).Convert(t)
	}
	return v.Convert(t)
}

// array is an operand in a kernel. Complex elements are pairs of reals.
type array struct {
	buf kernel.Buffer
	t   dtype.DType
}

// offset returns the array that begins n elements (Int64) later.
func (a array) offset(n kernel.Value) array {
	if a.t.IsComplex() {
		n = n.Add(n)
	}
	a.buf = a.buf.Offset(n)
	return a
}

// load returns the vec adjacent elements at i.
func (a array) load(i kernel.Value, vec int) []Num {
	out := make([]Num, vec)
	if !a.t.IsComplex() {
		for j, v := range a.buf.LoadVec(i, vec) {
			out[j] = Num{Re: v}
		}
		return out
	}
	vs := a.buf.LoadVec(pairAt(i), 2*vec)
	for j := range out {
		out[j] = Num{vs[2*j], vs[2*j+1]}
	}
	return out
}

// prefetch asks for the cache line of element i.
func (a array) prefetch(i kernel.Value) {
	if a.t.IsComplex() {
		i = pairAt(i)
	}
	a.buf.Prefetch(i.Convert(dtype.Int64))
}

// store sets adjacent elements at i and converts them to a's type.
func (a array) store(i kernel.Value, ns ...Num) {
	if !a.t.IsComplex() {
		vs := make([]kernel.Value, len(ns))
		for j, n := range ns {
			vs[j] = n.Convert(a.t).Re
		}
		a.buf.StoreVec(i, vs...)
		return
	}
	var vs []kernel.Value
	for _, n := range ns {
		c := n.Convert(a.t)
		vs = append(vs, c.Re, c.Im)
	}
	a.buf.StoreVec(pairAt(i), vs...)
}

// pairAt returns the index of the first part of complex element i. It may need more than 32 bits even if i does not.
func pairAt(i kernel.Value) kernel.Value {
	if i.Type() == dtype.Int32 {
		return i.MulWide(i.Like(2))
	}
	return i.Add(i)
}

// constant returns c as a Num of type t.
func constant(k *kernel.Builder, t dtype.DType, c float64) Num {
	if t.IsComplex() {
		return Num{k.Const(t.Real(), c), k.Const(t.Real(), 0)}
	}
	return Num{Re: k.Const(t, c)}
}
