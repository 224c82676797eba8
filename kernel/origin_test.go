package kernel_test

import (
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// derived are kernels with buffers a and b, and the buffers that they write, through whatever address.
var derived = []struct {
	name, writes string
	build        func(k *kernel.Builder, a, b kernel.Buffer)
}{
	{"nothing", "", func(k *kernel.Builder, a, b kernel.Buffer) { a.Offset(k.I64(1)).Load(k.I32(0)) }},
	{"itself", "a", func(k *kernel.Builder, a, b kernel.Buffer) { set(k, a) }},
	{"offset", "a", func(k *kernel.Builder, a, b kernel.Buffer) { set(k, a.Offset(k.I64(1)).Offset(k.I64(-1))) }},
	{"atomic", "b", func(k *kernel.Builder, a, b kernel.Buffer) {
		b.Offset(k.I64(0)).Atomic(kernel.AtomicAdd, k.I32(0), k.F32(1))
	}},
	{"sum", "a", func(k *kernel.Builder, a, b kernel.Buffer) {
		set(k, k.At(k.U64(16).Add(a.Addr()).Sub(k.U64(16)), dtype.Float32))
	}},
	{"as a signed number", "a", func(k *kernel.Builder, a, b kernel.Buffer) {
		n := a.Addr().Bitcast(dtype.Int64).Add(k.I64(4)).Convert(dtype.Uint64)
		set(k, k.At(n, dtype.Float32))
	}},
	{"aligned down", "a", func(k *kernel.Builder, a, b kernel.Buffer) {
		set(k, k.At(a.Addr().And(k.U64(16).Neg()), dtype.Float32))
	}},
	{"tagged", "a", func(k *kernel.Builder, a, b kernel.Buffer) {
		set(k, k.At(a.Addr().Or(k.U64(1)).Xor(k.U64(1)), dtype.Float32))
	}},
	{"select", "a b", func(k *kernel.Builder, a, b kernel.Buffer) { set(k, either(k, a, b)) }},
	{"the greater", "a b", func(k *kernel.Builder, a, b kernel.Buffer) { set(k, k.At(a.Addr().Max(b.Addr()), dtype.Float32)) }},
	{"branch", "a b", func(k *kernel.Builder, a, b kernel.Buffer) {
		v := k.Var(a.Addr())
		k.If(k.ThreadIdx(kernel.X).Eq(k.I32(0)), func() { v.Set(b.Addr()) })
		set(k, k.At(v.Get(), dtype.Float32))
	}},
	{"walk", "a", func(k *kernel.Builder, a, b kernel.Buffer) {
		v := k.Var(a.Addr())
		k.For(k.I32(0), k.I32(4), k.I32(1), func(kernel.Value) {
			set(k, k.At(v.Get(), dtype.Float32))
			v.Set(v.Get().Add(k.U64(4)))
		})
	}},
	{"set later in the loop", "a b", func(k *kernel.Builder, a, b kernel.Buffer) {
		v, w := k.Var(a.Addr()), k.Var(a.Addr())
		k.For(k.I32(0), k.I32(4), k.I32(1), func(kernel.Value) {
			set(k, k.At(v.Get(), dtype.Float32))
			v.Set(w.Get())
			w.Set(b.Addr())
		})
	}},
	{"counter", "a", func(k *kernel.Builder, a, b kernel.Buffer) {
		n := a.Addr().Bitcast(dtype.Int64)
		k.For(n, n.Add(k.I64(16)), k.I64(4), func(i kernel.Value) { set(k, k.At(i.Bitcast(dtype.Uint64), dtype.Float32)) })
	}},
	{"in an array", "b", func(k *kernel.Builder, a, b kernel.Buffer) {
		l := k.Local("l", dtype.Uint64, 2)
		l.Store(k.I32(0), b.Addr())
		set(k, k.At(l.Get(0), dtype.Float32))
	}},
	{"in a shared array", "a", func(k *kernel.Builder, a, b kernel.Buffer) {
		s, other := k.Shared("s", dtype.Uint64, 2), k.Shared("other", dtype.Uint64, 1)
		other.Store(k.I32(0), b.Addr())
		s.Atomic(kernel.AtomicExch, k.I32(0), a.Addr())
		k.Barrier()
		set(k, k.At(s.Get(0), dtype.Float32))
	}},
	{"shuffled", "a", func(k *kernel.Builder, a, b kernel.Buffer) { set(k, k.At(a.Addr().Shuffle(k.I32(0)), dtype.Float32)) }},
	{"in a tile", "b", func(k *kernel.Builder, a, b kernel.Buffer) {
		k.FixedThreads(32)
		t := k.Tile("t", dtype.Float32, 16, 16)
		t.Zero()
		t.Each(1, func(r, c kernel.Value, v []kernel.Value) { b.Offset(k.I64(3)).Store(r, v[0]) })
	}},
	// The result of arithmetic on an address need not be an address.
	{"at a distance", "b", func(k *kernel.Builder, a, b kernel.Buffer) {
		set(k, k.At(b.Addr().Add(a.Addr().Sub(a.Offset(k.I64(2)).Addr())), dtype.Float32))
	}},
	{"by the other's alignment", "b", func(k *kernel.Builder, a, b kernel.Buffer) {
		set(k, b.Offset(a.Addr().And(k.U64(15)).Shr(k.I32(2)).Convert(dtype.Int64)))
	}},
	{"by the other's remainder", "b", func(k *kernel.Builder, a, b kernel.Buffer) {
		set(k, k.At(b.Addr().Add(a.Addr().Rem(k.U64(16))), dtype.Float32))
	}},
	{"by the other's element", "b", func(k *kernel.Builder, a, b kernel.Buffer) {
		set(k, b.Offset(a.Load(k.I32(0)).Convert(dtype.Int64)))
	}},
	{"the address itself", "b", func(k *kernel.Builder, a, b kernel.Buffer) {
		k.At(b.Addr(), dtype.Uint64).Store(k.I32(0), a.Addr())
	}},
}

func set(k *kernel.Builder, u kernel.Buffer) { u.Store(k.I32(0), k.F32(1)) }

func either(k *kernel.Builder, a, b kernel.Buffer) kernel.Buffer {
	return k.At(k.ThreadIdx(kernel.X).Eq(k.I32(0)).Select(a.Addr(), b.Addr()), dtype.Float32)
}

// TestWrites: a program knows which buffers it may write, whatever it does with their addresses, and is rejected if it may write a buffer
// declared read-only.
func TestWrites(t *testing.T) {
	for _, c := range derived {
		p, err := kernel.Build("k", func(k *kernel.Builder) {
			c.build(k, k.Buffer("a", dtype.Float32), k.Buffer("b", dtype.Float32))
		}).Program()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for i, w := range p.Writes() {
			if w {
				got = append(got, p.Params[i].Name)
			}
		}
		if strings.Join(got, " ") != c.writes {
			t.Errorf("%s: writes %q, want %q", c.name, got, c.writes)
		}
		for _, name := range []string{"a", "b"} {
			_, err := kernel.Build("k", func(k *kernel.Builder) {
				buffer := func(s string) kernel.Buffer {
					if s == name {
						return k.At(k.BufferRO(s, dtype.Float32).Addr(), dtype.Float32)
					}
					return k.Buffer(s, dtype.Float32)
				}
				c.build(k, buffer("a"), buffer("b"))
			}).Program()
			if strings.Contains(c.writes, name) != (err != nil) || err != nil &&
				(!strings.Contains(err.Error(), `the buffer "`+name+`" is declared read-only`) ||
					!strings.Contains(err.Error(), "origin_test.go")) {
				t.Errorf("%s: with %s read-only: %v", c.name, name, err)
			}
		}
	}
}
