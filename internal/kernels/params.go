package kernels

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// params goes through the parameters of a kernel, in order. When a launch is packed, it appends the host's values to the arguments; when
// the kernel is built, it declares the parameters and sets their values in the kernel. Each family lists its parameters once, in a method
// layout that runs both ways, so that launch and kernel cannot disagree. The list may depend only on the Spec, which both have.
type params struct {
	s *Spec
	// l is the launch that is packed, k the kernel that is built; one of them is nil.
	l *Launch
	k *kernel.Builder
}

// packing returns the params that append to l, whose Spec must be complete.
func packing(l *Launch) params { return params{s: &l.Spec, l: l} }

// declaring returns the params that declare those of the kernel of s.
func declaring(k *kernel.Builder, s *Spec) params { return params{s: s, k: k} }

// The types of arguments. Each holds the host's value and embeds the kernel's.
type (
	intArg struct {
		host int
		kernel.Value
	}
	floatArg struct {
		host float64
		kernel.Value
	}
	scalarArg struct {
		host Scalar
		Num
	}
	// arrayArg and bufferArg are addresses.
	arrayArg struct {
		host uint64
		array
	}
	bufferArg struct {
		host uint64
		kernel.Buffer
	}
	// floatsArg is several float64, whose number depends on the operation.
	floatsArg struct {
		host   []float64
		values []kernel.Value
	}
	// listArg is passed by value as a whole.
	listArg[T int | int32 | uint64] struct {
		host []T
		kernel.Array
	}
	// dividerArg holds the divider of a number, without the number itself.
	dividerArg struct {
		host         int
		magic, shift kernel.Value
	}
	mapArg struct {
		host kir.TensorMap
		kernel.TensorMap
	}
)

func (a *dividerArg) divide(n, d kernel.Value) (q, r kernel.Value) {
	return divide(n, d, a.magic, a.shift)
}

// operandArgs are the arrays of a kernel whose number depends on the operation, and scalarArgs such scalars. The host sets the first field,
// the kernel gets the second.
type operandArgs struct {
	host   *[maxOperands]uint64
	arrays *[maxOperands]array
}

type scalarArgs struct {
	host []Scalar
	nums []Num
}

// number returns the name of parameter i of those called name.
func (p params) number(name string, i int) string {
	if p.k == nil {
		return ""
	}
	return name + strconv.Itoa(i)
}

func (p params) i64(a *intArg, name string) {
	if p.k != nil {
		a.Value = p.k.Scalar(name, dtype.Int64)
		return
	}
	p.l.u64(uint64(a.host))
}

func (p params) u64(a *intArg, name string) {
	if p.k != nil {
		a.Value = p.k.Scalar(name, dtype.Uint64)
		return
	}
	p.l.u64(uint64(a.host))
}

func (p params) i32(a *intArg, name string) {
	if p.k != nil {
		a.Value = p.k.Scalar(name, dtype.Int32)
		return
	}
	p.l.u32(uint32(int32(a.host)))
}

// i64s and i32s declare several integers, whose names are listed in names; packing takes one call for all of them.
func (p params) i64s(names string, as ...*intArg) {
	if p.k != nil {
		p.integers(names, dtype.Int64, as)
		return
	}
	p.l.pad(8)
	b := p.l.room(8 * len(as))
	for _, a := range as {
		binary.LittleEndian.PutUint64(b, uint64(a.host))
		b = b[8:]
	}
}

func (p params) i32s(names string, as ...*intArg) {
	if p.k != nil {
		p.integers(names, dtype.Int32, as)
		return
	}
	p.l.pad(4)
	b := p.l.room(4 * len(as))
	for _, a := range as {
		binary.LittleEndian.PutUint32(b, uint32(int32(a.host)))
		b = b[4:]
	}
}

func (p params) integers(names string, t dtype.DType, as []*intArg) {
	for i, name := range strings.Fields(names) {
		as[i].Value = p.k.Scalar(name, t)
	}
}

// index declares an integer with the width of the kernel's indexes.
func (p params) index(a *intArg, name string) {
	if p.s.Index == 64 {
		p.i64(a, name)
	} else {
		p.i32(a, name)
	}
}

// indexes declares several integers with the width of the kernel's indexes, see i64s.
func (p params) indexes(names string, as ...*intArg) {
	if p.s.Index == 64 {
		p.i64s(names, as...)
	} else {
		p.i32s(names, as...)
	}
}

// wide declares an Int64 that the kernel uses as an index.
func (p params) wide(a *intArg, name string) {
	if p.k != nil {
		a.Value = p.k.Scalar(name, dtype.Int64).Convert(indexType(int(p.s.Index)))
		return
	}
	p.l.u64(uint64(a.host))
}

func (p params) f64(a *floatArg, name string) {
	if p.k != nil {
		a.Value = p.k.Scalar(name, dtype.Float64)
		return
	}
	p.l.u64(math.Float64bits(a.host))
}

// f64s declares n parameters called name.
func (p params) f64s(a *floatsArg, name string, n int) {
	if p.k != nil {
		a.values = make([]kernel.Value, n)
	}
	for i := range n {
		if p.k != nil {
			a.values[i] = p.k.Scalar(p.number(name, i), dtype.Float64)
			continue
		}
		p.l.u64(math.Float64bits(a.host[i]))
	}
}

// scalar declares a number of type t, which must not be a half. Integers and bool are passed as int64.
func (p params) scalar(a *scalarArg, name string, t dtype.DType) {
	if p.k != nil {
		a.Num = declareScalar(p.k, name, t)
		return
	}
	p.l.scalar(&a.host, t)
}

func declareScalar(k *kernel.Builder, name string, t dtype.DType) Num {
	switch {
	case t.IsComplex():
		return Num{Re: k.Scalar(name, t.Real()), Im: k.Scalar(name+"_im", t.Real())}
	case t.IsFloat():
		return Num{Re: k.Scalar(name, t)}
	}
	return Num{Re: k.Scalar(name, dtype.Int64).Convert(t)}
}

// scalarAt declares scalar i of a.
func (p params) scalarAt(a *scalarArgs, i int, name string, t dtype.DType) {
	if p.k != nil {
		a.nums[i] = declareScalar(p.k, name, t)
		return
	}
	p.l.scalar(&a.host[i], t)
}

func (p params) array(a *arrayArg, name string, t dtype.DType) {
	if p.k != nil {
		a.array = declareArray(p.k, name, t)
		return
	}
	p.l.u64(a.host)
}

func declareArray(k *kernel.Builder, name string, t dtype.DType) array {
	return array{k.Buffer(name, t.Real()), t}
}

// operand declares operand i of a, with its type in the Spec.
func (p params) operand(a *operandArgs, i int, name string) {
	if p.k != nil {
		a.arrays[i] = declareArray(p.k, name, p.s.DTypes[i])
		return
	}
	p.l.u64(a.host[i])
}

// operandRO is operand for an input that nobody writes while the kernel runs.
func (p params) operandRO(a *operandArgs, i int, name string) {
	if t := p.s.DTypes[i]; p.k != nil {
		a.arrays[i] = array{p.k.BufferRO(name, t.Real()), t}
		return
	}
	p.l.u64(a.host[i])
}

// operands declares the operands in set, with their types in the Spec.
func (p params) operands(a *operandArgs, set operandSet) {
	for ; set != 0; set &= set - 1 {
		i := bits.TrailingZeros16(uint16(set))
		switch outs := int(p.s.Outs); {
		case p.k == nil:
			p.l.u64(a.host[i])
		case i < outs:
			a.arrays[i] = declareArray(p.k, p.number("out", i), p.s.DTypes[i])
		default:
			a.arrays[i] = declareArray(p.k, p.number("in", i-outs), p.s.DTypes[i])
		}
	}
}

func (p params) buffer(a *bufferArg, name string, t dtype.DType) {
	if p.k != nil {
		a.Buffer = p.k.Buffer(name, t)
		return
	}
	p.l.u64(a.host)
}

// bufferRO declares a buffer that nobody writes while the kernel runs.
func (p params) bufferRO(a *bufferArg, name string, t dtype.DType) {
	if p.k != nil {
		a.Buffer = p.k.BufferRO(name, t)
		return
	}
	p.l.u64(a.host)
}

// list declares n elements of T; if the host gives fewer, zeros follow.
func list[T int | int32 | uint64](p params, a *listArg[T], name string, n int) {
	if p.k != nil {
		a.Array = p.k.Params(name, listType[T](), n)
		return
	}
	host := a.host[:min(n, len(a.host))]
	if T(1)<<31<<1 == 0 {
		p.l.pad(4)
		b := p.l.room(4 * n)
		for _, v := range host {
			binary.LittleEndian.PutUint32(b, uint32(v))
			b = b[4:]
		}
		clear(b)
		return
	}
	p.l.pad(8)
	b := p.l.room(8 * n)
	for _, v := range host {
		binary.LittleEndian.PutUint64(b, uint64(v))
		b = b[8:]
	}
	clear(b)
}

// lists declares lists of n elements each, called name with their numbers.
func lists[T int | uint64](p params, as []listArg[T], name string, n int) {
	if p.k != nil {
		for i := range as {
			list(p, &as[i], p.number(name, i), n)
		}
		return
	}
	p.l.pad(8)
	b := p.l.room(8 * n * len(as))
	clear(b)
	for i := range as {
		for j, v := range as[i].host[:min(n, len(as[i].host))] {
			binary.LittleEndian.PutUint64(b[8*j:], uint64(v))
		}
		b = b[8*n:]
	}
}

func listType[T int | int32 | uint64]() dtype.DType {
	switch any(T(0)).(type) {
	case int32:
		return dtype.Int32
	case uint64:
		return dtype.Uint64
	}
	return dtype.Int64
}

// divider declares what is needed to divide numbers below 2^31 by a.host.
func (p params) divider(a *dividerArg, magic, shift string) {
	if p.k != nil {
		a.magic, a.shift = p.k.Scalar(magic, dtype.Uint32), p.k.Scalar(shift, dtype.Uint32)
		return
	}
	d := newDivider(a.host)
	p.l.u32(d.magic)
	p.l.u32(d.shift)
}

// tensorMap declares a map for tiles of matrices; plain says that plain arithmetic reads them.
func (p params) tensorMap(a *mapArg, name string, plain bool) {
	switch {
	case p.k == nil:
		a.host.Tile.Plain = plain
		for len(p.l.Args)%kir.MapAlign != kir.MapPlace {
			p.l.Args = append(p.l.Args, 0)
		}
		p.l.Args = a.host.Append(p.l.Args)
	case plain:
		a.TensorMap = p.k.PlainTensorMap(name)
	default:
		a.TensorMap = p.k.TensorMap(name)
	}
}

// striderArg is a space of the host and, in the kernel, the strider that turns its items into the operands' indexes.
type striderArg struct {
	host *space
	*strider
}

// strider declares a strider with dims dimensions, a result of dimsClass or reduceClass, and indexes of the given width in bits. The
// operands are those in slots; an item is vec elements along the innermost dimension.
func (p params) strider(a *striderArg, name string, dims, vec, index int, slots operandSet) {
	words, t := 3, dtype.Uint32 // a size and its divider
	if index == 64 {
		words, t = 1, dtype.Int64
	}
	sizes, strides := words*(dims-1), slots.count()*dims
	if p.k == nil {
		if dims == maxDims {
			p.l.u32(uint32(a.host.nd))
		}
		a.host.packSizes(p.l, sizes/words, vec, index)
		a.host.packStrides(p.l, dims, vec, index, slots)
		return
	}
	a.strider = &strider{k: p.k, ix: indexType(index), dims: dims, slots: slots.count()}
	if dims == maxDims {
		a.nd = p.k.Scalar(name+"_dims", dtype.Int32)
	}
	if sizes > 0 {
		a.sizes = p.k.Params(name+"_sizes", t, sizes)
	}
	a.strides = p.k.Params(name+"_strides", a.ix, strides)
}
