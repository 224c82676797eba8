package kernel

import (
	"encoding/binary"
	"math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// Buffer is device memory viewed as elements of one type. Indexes are Int32 or Int64 and count elements.
type Buffer struct {
	b     *Builder
	name  string // of the parameter
	addr  Value
	t     dtype.DType
	cache kir.Cache
}

// Buffer declares a parameter that is the address of elements of type t.
func (b *Builder) Buffer(name string, t dtype.DType) Buffer { return b.buffer(name, t, false) }

// BufferRO is Buffer with the promise that nobody writes the memory while the kernel runs or, if it calls [Builder.Wait], from then on.
func (b *Builder) BufferRO(name string, t dtype.DType) Buffer { return b.buffer(name, t, true) }

func (b *Builder) buffer(name string, t dtype.DType, readOnly bool) Buffer {
	i := b.param(kir.Param{Name: name, Kind: kir.ParamBuffer, Type: t, ReadOnly: readOnly})
	a := b.emit(&kir.Instr{Op: kir.OpParam, Type: dtype.Uint64, Sym: i}, dtype.Uint64)
	buf := Buffer{b: b, name: name, addr: a, t: t}
	if readOnly {
		buf.cache = kir.CacheReadOnly
	}
	return buf
}

// At returns the memory at address addr (Uint64), viewed as elements of type t.
func (b *Builder) At(addr Value, t dtype.DType) Buffer { return Buffer{b: b, addr: addr, t: t} }

// Streaming returns the same memory with the hint that each element is accessed once.
func (u Buffer) Streaming() Buffer {
	u.cache = kir.CacheStream
	return u
}

// Type returns the element type.
func (u Buffer) Type() dtype.DType { return u.t }

// Addr returns the address, Uint64.
func (u Buffer) Addr() Value { return u.addr }

// Offset returns the memory that begins n elements (Int64) later.
func (u Buffer) Offset(n Value) Buffer {
	bytes := n.Mul(n.Like(float64(u.t.Size())))
	u.addr = u.b.emit(&kir.Instr{Op: kir.OpPtrAdd, Type: dtype.Uint64, Args: u.b.ids(u.addr, bytes)}, dtype.Uint64)
	return u
}

// Load returns element i.
func (u Buffer) Load(i Value) Value { return u.LoadAt(i, 0) }

// LoadAt returns element i+off.
func (u Buffer) LoadAt(i Value, off int) Value {
	return u.b.emit(&kir.Instr{Op: kir.OpLoad, Type: u.t, Space: kir.Global, Cache: u.cache, Width: 1, Imm: uint64(int64(off)),
		Args: u.b.ids(u.addr, i)}, u.t)
}

// Prefetch asks for the cache line of element i (Int64), which must be in the buffer. It changes nothing but the time that a later load
// takes.
func (u Buffer) Prefetch(i Value) {
	at := u.Offset(i)
	u.b.add(&kir.Instr{Op: kir.OpPrefetch, Type: dtype.Uint64, Args: u.b.ids(at.addr)})
}

// Store sets element i to v.
func (u Buffer) Store(i, v Value) { u.StoreVec(i, v) }

// LoadVec returns the width adjacent elements that begin at i. Their address must be aligned to their total size. Width is 1, 2, 4, 8 or
// 16.
func (u Buffer) LoadVec(i Value, width int) []Value {
	in := &kir.Instr{Op: kir.OpLoad, Type: u.t, Space: kir.Global, Cache: u.cache, Width: width, Args: u.b.ids(u.addr, i)}
	return u.b.many(in, width, u.t)
}

// StoreVec sets the adjacent elements that begin at i. Their address must be aligned to their total size.
func (u Buffer) StoreVec(i Value, vs ...Value) {
	args := append(u.b.ids(u.addr, i), u.b.ids(vs...)...)
	for _, v := range vs {
		if v.t != u.t {
			u.b.fail("a value of type %v is stored to a buffer of %v; convert it", v.t, u.t)
			return
		}
	}
	c := u.cache
	if c == kir.CacheReadOnly {
		u.b.fail("buffer %s is stored to, but was declared read-only by BufferRO; declare it with Buffer", u.name)
	}
	u.b.add(&kir.Instr{Op: kir.OpStore, Type: u.t, Space: kir.Global, Cache: c, Width: len(vs), Args: args})
}

// maxWidth is the maximum number of elements of one access.
const maxWidth = 16

func (b *Builder) many(in *kir.Instr, n int, t dtype.DType) []Value {
	if n < 1 || n > maxWidth {
		b.fail("an access cannot take %d elements at once; give 1 to %d", n, maxWidth)
		n = 1
	}
	out := make([]Value, n)
	for j := range out {
		out[j] = b.value(t)
	}
	in.Res = b.ids(out...)
	b.add(in)
	return out
}

// Atomic names a read-modify-write operation.
type Atomic = kir.Sub

// The atomic operations.
const (
	AtomicAdd  = kir.AtomAdd
	AtomicMin  = kir.AtomMin
	AtomicMax  = kir.AtomMax
	AtomicAnd  = kir.AtomAnd
	AtomicOr   = kir.AtomOr
	AtomicXor  = kir.AtomXor
	AtomicExch = kir.AtomExch
)

// Atomic applies op with v to element i and returns the old value. The ordering is relaxed; the whole device sees the result.
func (u Buffer) Atomic(op Atomic, i, v Value) Value {
	return u.b.emit(&kir.Instr{Op: kir.OpAtomic, Sub: op, Type: u.t, Space: kir.Global, Args: u.b.ids(u.addr, i, v)}, u.t)
}

// CompareAndSwap stores v in element i if the element equals old, and returns the previous value.
func (u Buffer) CompareAndSwap(i, old, v Value) Value {
	return u.b.emit(&kir.Instr{Op: kir.OpAtomic, Sub: kir.AtomCAS, Type: u.t, Space: kir.Global, Args: u.b.ids(u.addr, i, old, v)}, u.t)
}

// Array is an array in shared, local, constant or parameter memory.
type Array struct {
	b     *Builder
	space kir.Space
	sym   int
	t     dtype.DType
}

// Shared declares an array of n elements that the threads of a block share. The arrays of a kernel may take 48 KiB. With n = -1 it is the
// launch's dynamic shared memory of LaunchShape.Shared bytes; with it, a block may take what the device has for one: 227 KiB on an H100 or
// H200 and on the simulator, and less on many other GPUs.
func (b *Builder) Shared(name string, t dtype.DType, n int) Array {
	b.own()
	b.prog.Shared = append(b.prog.Shared, kir.Array{Name: name, Type: t, Count: n})
	return Array{b, kir.Shared, len(b.prog.Shared) - 1, t}
}

// Local declares an array of n elements that each thread has for itself.
func (b *Builder) Local(name string, t dtype.DType, n int) Array {
	b.own()
	b.prog.Local = append(b.prog.Local, kir.Array{Name: name, Type: t, Count: n})
	return Array{b, kir.Local, len(b.prog.Local) - 1, t}
}

// Params declares a parameter that is an array of n elements, passed by value.
func (b *Builder) Params(name string, t dtype.DType, n int) Array {
	return Array{b, kir.ParamSpace, b.param(kir.Param{Name: name, Kind: kir.ParamArray, Type: t, Count: n}), t}
}

// Table returns constant data of type t, given as the bits of its elements. Tables of the same name are one table.
func (b *Builder) Table(name string, t dtype.DType, bits []uint64) Array {
	b.own()
	for i := range b.prog.Tables {
		if b.prog.Tables[i].Name == name {
			return Array{b, kir.Const, i, t}
		}
	}
	var data []byte
	for _, v := range bits {
		data = append(data, binary.LittleEndian.AppendUint64(nil, v)[:t.Size()]...)
	}
	b.prog.Tables = append(b.prog.Tables, kir.Table{Name: name, Type: t, Data: data})
	return Array{b, kir.Const, len(b.prog.Tables) - 1, t}
}

// TableF32 is Table for float32 values.
func (b *Builder) TableF32(name string, vs []float32) Array {
	bits := make([]uint64, len(vs))
	for i, v := range vs {
		bits[i] = uint64(math.Float32bits(v))
	}
	return b.Table(name, dtype.Float32, bits)
}

// TableF64 is Table for float64 values.
func (b *Builder) TableF64(name string, vs []float64) Array {
	bits := make([]uint64, len(vs))
	for i, v := range vs {
		bits[i] = math.Float64bits(v)
	}
	return b.Table(name, dtype.Float64, bits)
}

// Load returns element i (Int32 or Int64).
func (a Array) Load(i Value) Value {
	return a.b.emit(&kir.Instr{Op: kir.OpLoad, Type: a.t, Space: a.space, Sym: a.sym, Width: 1, Args: a.b.ids(i)}, a.t)
}

// Get returns element i.
func (a Array) Get(i int) Value { return a.Load(a.b.I32(i)) }

// Store sets element i (Int32 or Int64); only shared and local arrays can be written.
func (a Array) Store(i, v Value) {
	args := a.b.ids(i, v)
	if v.t != a.t {
		a.b.fail("a value of type %v is stored to an array of %v; convert it", v.t, a.t)
		return
	}
	a.b.add(&kir.Instr{Op: kir.OpStore, Type: a.t, Space: a.space, Sym: a.sym, Width: 1, Args: args})
}

// LoadVec returns the n adjacent elements of a shared array that begin at i (Int32 or Int64). n is 1, 2, 4, 8 or 16, an access has at most
// 16 bytes, and i must be a multiple of n.
func (a Array) LoadVec(i Value, n int) []Value {
	a.wide()
	in := &kir.Instr{Op: kir.OpLoad, Type: a.t, Space: a.space, Sym: a.sym, Width: n, Args: a.b.ids(i)}
	return a.b.many(in, n, a.t)
}

// StoreVec sets the adjacent elements of a shared array that begin at i, under the conditions of LoadVec.
func (a Array) StoreVec(i Value, vs ...Value) {
	a.wide()
	args := append(a.b.ids(i), a.b.ids(vs...)...)
	for _, v := range vs {
		if v.t != a.t {
			a.b.fail("a value of type %v is stored to an array of %v; convert it", v.t, a.t)
			return
		}
	}
	a.b.add(&kir.Instr{Op: kir.OpStore, Type: a.t, Space: a.space, Sym: a.sym, Width: len(vs), Args: args})
}

func (a Array) wide() {
	if a.space != kir.Shared {
		a.b.fail("only shared arrays have accesses to several elements; load or store one at a time")
	}
}

// Atomic applies op with v to element i of a shared array and returns the old value.
func (a Array) Atomic(op Atomic, i, v Value) Value {
	return a.b.emit(&kir.Instr{Op: kir.OpAtomic, Sub: op, Type: a.t, Space: a.space, Sym: a.sym, Args: a.b.ids(i, v)}, a.t)
}
