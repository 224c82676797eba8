package vexec

import (
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// buildChain makes a chain of six operations: y = ((x*a + b)*x - c)*x + |x|.
func buildChain(t testing.TB, vec int) *Kernel {
	return build(t, "chain", func(k *kernel.Builder) {
		n := k.Scalar("n", dtype.Int64)
		in, out := k.Buffer("x", dtype.Float32), k.Buffer("y", dtype.Float32)
		f := func(x kernel.Value) kernel.Value {
			return x.Mul(k.F32(1.5)).Add(k.F32(0.25)).Mul(x).Sub(k.F32(3)).Mul(x).Add(x.Abs())
		}
		if vec == 1 {
			k.ForEach(n, func(i kernel.Value) { out.Store(i, f(in.Load(i))) })
			return
		}
		k.ForEach(n.Div(k.I64(int64(vec))), func(i kernel.Value) {
			i = i.Mul(k.I64(int64(vec)))
			vs := in.LoadVec(i, vec)
			for j := range vs {
				vs[j] = f(vs[j])
			}
			out.StoreVec(i, vs...)
		})
	})
}

func BenchmarkChain(b *testing.B) {
	b.Run("64MiB", func(b *testing.B) { benchmarkChain(b, 16<<20) })
	b.Run("128KiB", func(b *testing.B) { benchmarkChain(b, 32<<10) })
}

func benchmarkChain(b *testing.B, n int) {
	m := newFlat()
	xa, ya := m.alloc(4*n), m.alloc(4*n)
	args := pack(int64(n), xa, ya)
	xs, ys := get[float32](m, xa), get[float32](m, ya)
	for i := range xs {
		xs[i] = float32(i&1023) * 0.01
	}
	for _, vec := range []int{1, 4} {
		k := buildChain(b, vec)
		for _, workers := range []int{1, 2} {
			b.Run(map[int]string{1: "scalar", 4: "vec4"}[vec]+map[int]string{1: "/1", 2: "/2"}[workers], func(b *testing.B) {
				b.SetBytes(int64(8 * n))
				for b.Loop() {
					if err := k.Run(&Env{Mem: m, Workers: workers}, x(n/256/vec), x(256), 0, args); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	b.Run("loop", func(b *testing.B) {
		b.SetBytes(int64(8 * n))
		for b.Loop() {
			for i, x := range xs {
				v := float32(float32(float32(float32(x*1.5)+0.25)*x)-3) * x
				if x < 0 {
					x = -x
				}
				ys[i] = float32(v) + x
			}
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(int64(8 * n))
		for b.Loop() {
			copy(ys, xs)
		}
	})
}

// BenchmarkSmallLaunch measures a launch with next to no work.
func BenchmarkSmallLaunch(b *testing.B) {
	m := newFlat()
	args := pack(float32(2), int64(10), m.alloc(40), m.alloc(40))
	k := buildSaxpy(b)
	e := &Env{Mem: m}
	for b.Loop() {
		if err := k.Run(e, x(1), x(256), 0, args); err != nil {
			b.Fatal(err)
		}
	}
}
