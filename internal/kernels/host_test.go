package kernels

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"tenon.dev/dtype"
	memory "tenon.dev/internal/check"
	"tenon.dev/internal/vexec"
)

// host is an Issuer that runs kernels on host memory.
type host struct {
	t       testing.TB
	l       Launch
	limits  Limits
	index32 int
	kernels map[Spec]*vexec.Kernel
	memory  []region
	next    uint64
	// launches counts the launches since the last reset.
	launches int
	// check is not nil if the environment asks for a memory checker; order is the stream of all launches.
	check *memory.Checker
	order *memory.Stream
	// viewed is what view found last: tests read tensors element by element.
	viewed region
}

type region struct {
	base  uint64
	bytes []byte
}

func newHost(t testing.TB) *host {
	h := &host{t: t, index32: 1<<31 - 1, kernels: map[Spec]*vexec.Kernel{}, next: 1 << 20,
		limits: Limits{Multiprocessors: 2, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 48 << 10, Major: 9}}
	log, err := memory.Open()
	if err != nil {
		t.Fatal(err)
	}
	if log != nil {
		h.check = memory.New(log, func(uint64, uint64) bool { return false })
		h.order = h.check.Stream()
	}
	return h
}

// written tells the checker that the test wrote n bytes at ptr; 0 means possibly all of the allocation.
func (h *host) written(ptr uint64, n int) {
	if h.check != nil {
		h.check.Written(ptr, uint64(n))
	}
}

func (h *host) Resolve(addr uint64) ([]byte, uint64, bool) {
	i := sort.Search(len(h.memory), func(i int) bool { return h.memory[i].base > addr }) - 1
	if i < 0 || addr-h.memory[i].base >= uint64(len(h.memory[i].bytes)) {
		return nil, 0, false
	}
	return h.memory[i].bytes, h.memory[i].base, true
}

// place puts bytes at an address, in the order of addresses.
func (h *host) place(base uint64, b []byte) {
	i := len(h.memory)
	for i > 0 && h.memory[i-1].base > base {
		i--
	}
	h.memory = slices.Insert(h.memory, i, region{base, b})
}

func (h *host) alloc(n int) uint64 {
	base := h.next
	b := make([]byte, max(n, 16))
	for i := range b {
		b[i] = 0xa5
	}
	h.place(base, b[:n])
	h.next += uint64(n+8191) &^ 4095
	if h.check != nil {
		h.check.Alloc(base, uint64(n))
	}
	return base
}

func (h *host) NewLaunch() *Launch {
	h.l.Reset()
	return &h.l
}

func (h *host) Issue(l *Launch) error {
	k := h.kernels[l.Spec]
	if k == nil {
		p, err := Build(&l.Spec).Program()
		if err != nil {
			h.t.Fatalf("%+v: %v", l.Spec, err)
		}
		if _, size := p.ArgLayout(); size != len(l.Args) {
			h.t.Fatalf("%s: %d bytes of arguments, the kernel wants %d", p.Name, len(l.Args), size)
		}
		if k, err = vexec.Compile(p); err != nil {
			h.t.Fatalf("%s: %v", p.Name, err)
		}
		h.kernels[l.Spec] = k
	}
	h.launches++
	e := vexec.Env{Mem: h}
	if h.check != nil {
		w := h.check.Launch(h.order.Enqueue("launch"), k, l.Block)
		defer w.End()
		e.Watch = w
	}
	return k.Run(&e, l.Grid, l.Block, l.Shared, l.Args)
}

func (h *host) Workspace(n int) (uint64, error) { return h.alloc(n), nil }
func (h *host) Limits() *Limits                 { return &h.limits }
func (h *host) Index32() int                    { return h.index32 }
func (h *host) Memset(ptr uint64, b byte, n int) error {
	mem, base, ok := h.Resolve(ptr)
	if !ok {
		h.t.Fatalf("memset of %#x", ptr)
	}
	for i := range n {
		mem[ptr-base+uint64(i)] = b
	}
	h.written(ptr, n)
	return nil
}

// view returns the memory from ptr on for reading. Callers that write must report it by written.
func (h *host) view(ptr uint64) []byte {
	if m := &h.viewed; ptr-m.base >= uint64(len(m.bytes)) {
		mem, base, ok := h.Resolve(ptr)
		if !ok {
			h.t.Fatalf("nothing lies at %#x", ptr)
		}
		*m = region{base, mem}
	}
	return h.viewed.bytes[ptr-h.viewed.base:]
}

func putReal(b []byte, t dtype.DType, v float64) {
	le := binary.LittleEndian
	switch t {
	case dtype.Bool:
		b[0] = 0
		if v != 0 {
			b[0] = 1
		}
	case dtype.Uint8, dtype.Int8:
		b[0] = byte(int64(v))
	case dtype.Int16, dtype.Uint16:
		le.PutUint16(b, uint16(int64(v)))
	case dtype.Int32, dtype.Uint32:
		le.PutUint32(b, uint32(int64(v)))
	case dtype.Int64, dtype.Uint64:
		le.PutUint64(b, uint64(int64(v)))
	case dtype.Float16:
		le.PutUint16(b, uint16(dtype.F16FromFloat32(float32(v))))
	case dtype.BFloat16:
		le.PutUint16(b, uint16(dtype.BF16FromFloat32(float32(v))))
	case dtype.Float32:
		le.PutUint32(b, math.Float32bits(float32(v)))
	case dtype.Float64:
		le.PutUint64(b, math.Float64bits(v))
	}
}

func realAt(b []byte, t dtype.DType) float64 {
	le := binary.LittleEndian
	switch t {
	case dtype.Bool, dtype.Uint8:
		return float64(b[0])
	case dtype.Int8:
		return float64(int8(b[0]))
	case dtype.Int16:
		return float64(int16(le.Uint16(b)))
	case dtype.Uint16:
		return float64(le.Uint16(b))
	case dtype.Int32:
		return float64(int32(le.Uint32(b)))
	case dtype.Uint32:
		return float64(le.Uint32(b))
	case dtype.Int64:
		return float64(int64(le.Uint64(b)))
	case dtype.Float16:
		return float64(dtype.F16(le.Uint16(b)).Float32())
	case dtype.BFloat16:
		return float64(dtype.BF16(le.Uint16(b)).Float32())
	case dtype.Float32:
		return float64(math.Float32frombits(le.Uint32(b)))
	}
	return math.Float64frombits(le.Uint64(b))
}

// rounded returns v as rounded to type t.
func rounded(t dtype.DType, v float64) float64 {
	var b [8]byte
	putReal(b[:], t, v)
	return realAt(b[:], t)
}

// walkIndex calls f with every index of shape, in row-major order, and its number.
func walkIndex(shape []int, f func(n int, ix []int)) {
	ix := make([]int, len(shape))
	total := 1
	for _, s := range shape {
		total *= s
	}
	for n := range total {
		f(n, ix)
		for d := len(ix) - 1; d >= 0; d-- {
			if ix[d]++; ix[d] < shape[d] {
				break
			}
			ix[d] = 0
		}
	}
}

func offsetOf(o *Operand, ix []int) int {
	at := 0
	for d, i := range ix {
		at += i * o.Stride[d]
	}
	return at
}

// write sets the elements of o in row-major order.
func (h *host) write(o Operand, f func(n int) complex128) {
	size := o.DType.Size()
	walkIndex(o.Shape, func(n int, ix []int) {
		at := o.Ptr + uint64(offsetOf(&o, ix)*size)
		b := h.view(at)
		h.written(at, size)
		v := f(n)
		if o.DType.IsComplex() {
			putReal(b, o.DType.Real(), realPart(v))
			putReal(b[size/2:], o.DType.Real(), imagPart(v))
			return
		}
		putReal(b, o.DType, realPart(v))
	})
}

func realPart(v complex128) float64 { return real(v) }
func imagPart(v complex128) float64 { return imag(v) }

// readComplex returns the elements of o in row-major order.
func (h *host) readComplex(o Operand) []complex128 {
	size := o.DType.Size()
	out := make([]complex128, 0, o.Numel())
	walkIndex(o.Shape, func(n int, ix []int) {
		b := h.view(o.Ptr + uint64(offsetOf(&o, ix)*size))
		if o.DType.IsComplex() {
			out = append(out, complex(realAt(b, o.DType.Real()), realAt(b[size/2:], o.DType.Real())))
			return
		}
		out = append(out, complex(realAt(b, o.DType), 0))
	})
	return out
}

func (h *host) read(o Operand) []float64 {
	values := h.readComplex(o)
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = real(v)
	}
	return out
}

// empty allocates a dense array.
func (h *host) empty(t dtype.DType, shape ...int) Operand {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return at(h.alloc(n*t.Size()), t, shape...)
}

// of allocates an array and fills it.
func (h *host) of(t dtype.DType, vs []float64, shape ...int) Operand {
	o := h.empty(t, shape...)
	h.write(o, func(n int) complex128 { return complex(vs[n], 0) })
	return o
}

// random allocates an array of numbers that t represents exactly: halves of small integers for floats, small integers, bools.
func (h *host) random(rng *rand.Rand, t dtype.DType, shape ...int) Operand {
	o := h.empty(t, shape...)
	h.write(o, func(int) complex128 { return complex(sample(rng, t), sample(rng, t)) })
	return o
}

func sample(rng *rand.Rand, t dtype.DType) float64 {
	switch {
	case t == dtype.Bool:
		return float64(rng.IntN(2))
	case t.IsFloat() || t.IsComplex():
		return float64(rng.IntN(129)-64) / 8
	case t.IsSigned():
		return float64(rng.IntN(100) - 50)
	}
	return float64(rng.IntN(100))
}

// permuted returns o with its dimensions in another order.
func permuted(o Operand, perm ...int) Operand {
	v := Operand{Ptr: o.Ptr, DType: o.DType}
	for _, d := range perm {
		v.Shape = append(v.Shape, o.Shape[d])
		v.Stride = append(v.Stride, o.Stride[d])
	}
	return v
}

// expanded returns o broadcast to the given shape: dimensions of size 1 are repeated.
func expanded(o Operand, shape ...int) Operand {
	v := Operand{Ptr: o.Ptr, DType: o.DType, Shape: shape, Stride: make([]int, len(shape))}
	lead := len(shape) - len(o.Shape)
	for d := range o.Shape {
		if o.Shape[d] == shape[lead+d] {
			v.Stride[lead+d] = o.Stride[d]
		}
	}
	return v
}

// sliced returns o[..., begin:end:step, ...] along dimension d; a negative step begins at end-1.
func sliced(o Operand, d, begin, end, step int) Operand {
	v := Operand{Ptr: o.Ptr, DType: o.DType, Shape: append([]int(nil), o.Shape...), Stride: append([]int(nil), o.Stride...)}
	first := begin
	v.Shape[d] = (end - begin + abs(step) - 1) / abs(step)
	if step < 0 {
		first = end - 1
	}
	v.Ptr += uint64(first * o.Stride[d] * o.DType.Size())
	v.Stride[d] *= step
	return v
}

func same(a, b float64) bool {
	return a == b || a != a && b != b
}

func close(a, b, tol float64) bool {
	return same(a, b) || math.Abs(a-b) <= tol*math.Max(1, math.Max(math.Abs(a), math.Abs(b)))
}
