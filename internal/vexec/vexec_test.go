package vexec

import (
	"encoding/binary"
	"math"
	"testing"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// flat is a Memory with allocations at made-up addresses.
type flat struct {
	allocs []*allocation
	next   uint64
}

type allocation struct {
	addr  uint64
	bytes []byte
	words []uint64
}

func newFlat() *flat { return &flat{next: 0x7f0000000000} }

func (m *flat) Resolve(addr uint64) ([]byte, uint64, bool) {
	for _, a := range m.allocs {
		if addr-a.addr < uint64(len(a.bytes)) {
			return a.bytes, a.addr, true
		}
	}
	return nil, 0, false
}

// alloc returns the address of n new bytes, with a gap before the next allocation.
func (m *flat) alloc(n int) uint64 {
	words := make([]uint64, (n+7)/8+1)
	a := &allocation{addr: m.next, words: words, bytes: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)}
	m.allocs = append(m.allocs, a)
	m.next += uint64(n+1<<20) &^ 4095
	return a.addr
}

func (m *flat) at(addr uint64) *allocation {
	for _, a := range m.allocs {
		if a.addr == addr {
			return a
		}
	}
	panic("no such allocation")
}

// put allocates memory and fills it with vs.
func put[T any](m *flat, vs []T) uint64 {
	addr := m.alloc(len(vs) * int(unsafe.Sizeof(vs[0])))
	copy(get[T](m, addr), vs)
	return addr
}

func get[T any](m *flat, addr uint64) []T {
	a := m.at(addr)
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(&a.words[0])), len(a.bytes)/int(unsafe.Sizeof(z)))
}

// pack lays out arguments, ints and floats of sized types, in order.
func pack(args ...any) []byte {
	var b []byte
	align := func(n int) {
		for len(b)%n != 0 {
			b = append(b, 0)
		}
	}
	le := binary.LittleEndian
	for _, a := range args {
		switch v := a.(type) {
		case uint8:
			b = append(b, v)
		case int32:
			align(4)
			b = le.AppendUint32(b, uint32(v))
		case uint32:
			align(4)
			b = le.AppendUint32(b, v)
		case float32:
			align(4)
			b = le.AppendUint32(b, math.Float32bits(v))
		case int64:
			align(8)
			b = le.AppendUint64(b, uint64(v))
		case uint64:
			align(8)
			b = le.AppendUint64(b, v)
		case float64:
			align(8)
			b = le.AppendUint64(b, math.Float64bits(v))
		default:
			panic("pack")
		}
	}
	return b
}

// build compiles a program through its text, as the simulator does.
func build(t testing.TB, name string, f func(k *kernel.Builder)) *Kernel {
	t.Helper()
	p, err := kernel.Build(name, f).Program()
	if err != nil {
		t.Fatal(err)
	}
	m, err := Load(kir.Print(p))
	if err != nil {
		t.Fatal(err)
	}
	k, ok := m.Kernel(name)
	if !ok {
		t.Fatalf("no kernel %s", name)
	}
	return k
}

func x(n int) [3]uint32 { return [3]uint32{uint32(n), 1, 1} }

func buildSaxpy(t testing.TB) *Kernel {
	return build(t, "saxpy", func(k *kernel.Builder) {
		a, n := k.Scalar("a", dtype.Float32), k.Scalar("n", dtype.Int64)
		x, y := k.Buffer("x", dtype.Float32), k.Buffer("y", dtype.Float32)
		k.ForEach(n, func(i kernel.Value) { y.Store(i, a.Mul(x.Load(i)).Add(y.Load(i))) })
	})
}

func TestSaxpy(t *testing.T) {
	k := buildSaxpy(t)
	for _, n := range []int{1, 5, 127, 128, 1000, 1024, 5000, 100003} {
		for _, threads := range []int{1, 32, 100, 128, 256, 1024} {
			m := newFlat()
			xs, ys := make([]float32, n), make([]float32, n)
			for i := range xs {
				xs[i], ys[i] = float32(i)*0.37, float32(n-i)*1.1
			}
			xa, ya := put(m, xs), put(m, ys)
			for _, seed := range []uint64{0, 7} {
				copy(get[float32](m, ya), ys)
				if err := k.Run(&Env{Mem: m, Seed: seed}, x((n+threads-1)/threads), x(threads), 0,
					pack(float32(2.5), int64(n), xa, ya)); err != nil {
					t.Fatal(err)
				}
				for i, v := range get[float32](m, ya) {
					if want := float32(2.5*xs[i]) + ys[i]; v != want {
						t.Fatalf("n=%d threads=%d seed=%d: y[%d] = %v, want %v", n, threads, seed, i, v, want)
					}
				}
			}
		}
	}
}

func BenchmarkSaxpy(b *testing.B) {
	const n = 16 << 20
	m := newFlat()
	xa, ya := m.alloc(4*n), m.alloc(4*n)
	k := buildSaxpy(b)
	args := pack(float32(2.5), int64(n), xa, ya)
	b.Run("vexec", func(b *testing.B) {
		b.SetBytes(12 * n)
		for b.Loop() {
			if err := k.Run(&Env{Mem: m, Workers: 1}, x(n/256), x(256), 0, args); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("loop", func(b *testing.B) {
		xs, ys := get[float32](m, xa), get[float32](m, ya)
		b.SetBytes(12 * n)
		for b.Loop() {
			for i := range ys {
				ys[i] = 2.5*xs[i] + ys[i]
			}
		}
	})
}
