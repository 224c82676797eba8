package vexec

import (
	"errors"
	"fmt"
	"math/rand"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// matmul describes a kernel for c[m,n] = a[m,k] x b[k,n] with row-major c; a transposed operand is stored transposed.
type matmul struct {
	in, acc, out   dtype.DType
	bm, bn, bk     int
	transA, transB bool
	vec, outVec    int
}

func (q matmul) build(t testing.TB) *Kernel {
	return build(t, "matmul", func(k *kernel.Builder) {
		k.FixedThreads(128)
		a, b, c := k.BufferRO("a", q.in), k.BufferRO("b", q.in), k.Buffer("c", q.out)
		m, n, kk := k.Scalar("m", dtype.Int32), k.Scalar("n", dtype.Int32), k.Scalar("k", dtype.Int32)
		ta, tb, sum := k.Tile("ta", q.in, q.bm, q.bk), k.Tile("tb", q.in, q.bk, q.bn), k.Tile("sum", q.acc, q.bm, q.bn)
		row0, col0 := k.BlockIdx(kernel.Y).Mul(k.I32(q.bm)), k.BlockIdx(kernel.X).Mul(k.I32(q.bn))
		axis := map[bool]kernel.Groups{true: kernel.AlongRows, false: kernel.AlongCols}
		flat := func(r, c, rows, cols kernel.Value, trans bool) kernel.Value {
			if trans {
				return c.MulWide(rows).Add(r.Convert(dtype.Int64))
			}
			return r.MulWide(cols).Add(c.Convert(dtype.Int64))
		}
		sum.Zero()
		k.Pipelined(2, k.I32(0), kk, k.I32(q.bk), func(k0 kernel.Value) {
			ta.Load(axis[q.transA], q.vec, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				row, col := row0.Add(r), k0.Add(c)
				return a, flat(row, col, m, kk, q.transA), row.Lt(m).And(col.Lt(kk))
			})
			tb.Load(axis[q.transB], q.vec, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				row, col := k0.Add(r), col0.Add(c)
				return b, flat(row, col, kk, n, q.transB), row.Lt(kk).And(col.Lt(n))
			})
			sum.Dot(ta, tb, false)
		})
		sum.Each(q.outVec, func(r, cc kernel.Value, vs []kernel.Value) {
			row, col := row0.Add(r), col0.Add(cc)
			k.If(row.Lt(m).And(col.Lt(n)), func() {
				for i := range vs {
					vs[i] = vs[i].Convert(q.out)
				}
				c.StoreVec(row.MulWide(n).Add(col.Convert(dtype.Int64)), vs...)
			})
		})
	})
}

// encode returns a small integer as the bits of a type.
func encode(t dtype.DType, v int64) uint64 {
	if t.IsFloat() {
		return fromFloat(t, float64(v))
	}
	return trunc(t, uint64(v))
}

func decode(t dtype.DType, bits uint64) int64 {
	if t.IsFloat() {
		return int64(toFloat(t, bits))
	}
	return sint(t, bits)
}

// TestMatmul multiplies matrices of small integers, whose products are exact, for all layouts and operand types, with sizes that are and
// are not multiples of the tile.
func TestMatmul(t *testing.T) {
	types := [][3]dtype.DType{{dtype.Float32, dtype.Float32, dtype.Float32}, {dtype.Float64, dtype.Float64, dtype.Float64},
		{dtype.Float16, dtype.Float32, dtype.Float16},
		{dtype.BFloat16, dtype.Float32, dtype.Float32}, {dtype.Int8, dtype.Int32, dtype.Int32}}
	for _, ts := range types {
		for form := range 4 {
			for _, v := range []struct{ bm, bn, bk, vec, outVec, m, n, k int }{
				{32, 32, 16, 1, 1, 32, 32, 16}, {32, 48, 16, 1, 2, 70, 90, 40}, {64, 64, 32, 4, 4, 100, 132, 68},
				{16, 64, 16, 2, 1, 6, 130, 10}, {128, 128, 16, 4, 8, 128, 256, 36},
			} {
				if ts[0] == dtype.Float64 {
					v.vec = min(v.vec, 2)
				}
				q := matmul{in: ts[0], acc: ts[1], out: ts[2], bm: v.bm, bn: v.bn, bk: v.bk, transA: form&1 != 0, transB: form&2 != 0,
					vec: v.vec, outVec: v.outVec}
				if v.outVec*ts[2].Size() > 16 {
					q.outVec = 16 / ts[2].Size()
				}
				for v.n%q.outVec != 0 {
					q.outVec /= 2
				}
				checkMatmul(t, q, v.m, v.n, v.k)
			}
		}
	}
}

func checkMatmul(t *testing.T, q matmul, m, n, k int) {
	t.Helper()
	r := rand.New(rand.NewSource(int64(m*n + k)))
	matrix := func(rows, cols int, trans bool) (vs []int64, bits []uint64) {
		vs, bits = make([]int64, rows*cols), make([]uint64, rows*cols)
		for i := range rows {
			for j := range cols {
				v := int64(r.Intn(9) - 4)
				vs[i*cols+j] = v
				at := i*cols + j
				if trans {
					at = j*rows + i
				}
				bits[at] = encode(q.in, v)
			}
		}
		return vs, bits
	}
	av, ab := matrix(m, k, q.transA)
	bv, bb := matrix(k, n, q.transB)
	mem := newFlat()
	a, b, c := fillBits(mem, q.in, ab), fillBits(mem, q.in, bb), mem.alloc(m*n*q.out.Size())
	kern := q.build(t)
	grid := [3]uint32{uint32((n + q.bn - 1) / q.bn), uint32((m + q.bm - 1) / q.bm), 1}
	if err := kern.Run(&Env{Mem: mem}, grid, x(128), 0, pack(a, b, c, int32(m), int32(n), int32(k))); err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	got := readBits(mem, q.out, c, m*n)
	for i := range m {
		for j := range n {
			var want int64
			for l := range k {
				want += av[i*k+l] * bv[l*n+j]
			}
			if g := decode(q.out, got[i*n+j]); g != want {
				t.Fatalf("%+v, %dx%dx%d: c[%d,%d] = %d, want %d", q, m, n, k, i, j, g, want)
			}
		}
	}
}

// TestGatheredTile is a convolution. Positions in the input come from divisions and from shared memory, and half of the border is outside.
func TestGatheredTile(t *testing.T) {
	const (
		ch, h, w, out = 3, 9, 11, 5
		taps          = 9
	)
	for _, along := range []kernel.Groups{kernel.AlongCols, kernel.AlongRows} {
		for _, inLoop := range []bool{false, true} {
			k := build(t, "conv", func(k *kernel.Builder) {
				k.FixedThreads(64)
				src, wgt, dst := k.BufferRO("x", dtype.Float32), k.BufferRO("w", dtype.Float32), k.Buffer("y", dtype.Float32)
				ta, tb, sum := k.Tile("ta", dtype.Float32, 8, 16), k.Tile("tb", dtype.Float32, 16, 32), k.Tile("sum", dtype.Float32, 8, 32)
				n0 := k.BlockIdx(kernel.X).Mul(k.I32(32))
				ys := k.Shared("ys", dtype.Int32, 32)
				k.For(k.ThreadIdx(kernel.X), k.I32(32), k.I32(64), func(j kernel.Value) {
					ys.Store(j, n0.Add(j).Div(k.I32(w)).Sub(k.I32(1)))
				})
				k.Barrier()
				sum.Zero()
				within := func(v kernel.Value, n int) kernel.Value { return v.Bitcast(dtype.Uint32).Lt(k.U32(uint32(n))) }
				k.For(k.I32(0), k.I32(ch*taps), k.I32(16), func(k0 kernel.Value) {
					ta.Load(kernel.AlongCols, 1, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
						return wgt, r.Mul(k.I32(ch * taps)).Add(k0.Add(c)).Convert(dtype.Int64),
							r.Lt(k.I32(out)).And(k0.Add(c).Lt(k.I32(ch * taps)))
					})
					tb.Load(along, 1, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
						d, p := k0.Add(r), n0.Add(c)
						cc, tap := d.Div(k.I32(taps)), d.Rem(k.I32(taps))
						y := ys.Load(c).Add(tap.Div(k.I32(3)))
						xx := p.Rem(k.I32(w)).Sub(k.I32(1)).Add(tap.Rem(k.I32(3)))
						inside := p.Lt(k.I32(h * w)).And(d.Lt(k.I32(ch * taps))).And(within(y, h)).And(within(xx, w))
						if inLoop { // control flow in the region
							v := k.Var(y)
							k.If(inside.Not(), func() { v.Set(k.I32(0)) })
							y = v.Get()
						}
						return src, cc.Mul(k.I32(h)).Add(y).Mul(k.I32(w)).Add(xx).Convert(dtype.Int64), inside
					})
					sum.Dot(ta, tb, false)
				})
				sum.Each(1, func(r, c kernel.Value, vs []kernel.Value) {
					p := n0.Add(c)
					k.If(r.Lt(k.I32(out)).And(p.Lt(k.I32(h*w))), func() { dst.Store(r.Mul(k.I32(h*w)).Add(p), vs[0]) })
				})
			})
			m := newFlat()
			xs, ws := make([]float32, ch*h*w), make([]float32, out*ch*taps)
			for i := range xs {
				xs[i] = float32(i%13 - 6)
			}
			for i := range ws {
				ws[i] = float32(i%7 - 3)
			}
			xa, wa, ya := put(m, xs), put(m, ws), m.alloc(4*out*h*w)
			if err := k.Run(&Env{Mem: m}, x((h*w+31)/32), x(64), 0, pack(xa, wa, ya)); err != nil {
				t.Fatal(err)
			}
			got := get[float32](m, ya)
			for o := range out {
				for p := range h * w {
					var want float32
					for d := range ch * taps {
						y, xx := p/w-1+d%taps/3, p%w-1+d%3
						if y >= 0 && y < h && xx >= 0 && xx < w {
							want += ws[o*ch*taps+d] * xs[(d/taps*h+y)*w+xx]
						}
					}
					if got[o*h*w+p] != want {
						t.Fatalf("along %v, control flow %v: y[%d,%d] = %v, want %v", along, inLoop, o, p, got[o*h*w+p], want)
					}
				}
			}
		}
	}
}

// TestTileFault: an element outside memory stops the kernel, and the fault names the tile.
func TestTileFault(t *testing.T) {
	for _, far := range []bool{false, true} {
		k := build(t, "tilefault", func(k *kernel.Builder) {
			k.FixedThreads(32)
			src, dst := k.Buffer("x", dtype.Float32), k.Buffer("y", dtype.Float32)
			ta := k.Tile("ta", dtype.Float32, 8, 8)
			ta.Load(kernel.AlongCols, 1, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				i := r.Mul(k.I32(8)).Add(c)
				if far {
					i = i.Mul(i)
				}
				return src, i.Convert(dtype.Int64), k.Bool(true)
			})
			ta.Each(1, func(r, c kernel.Value, vs []kernel.Value) { dst.Store(r.Mul(k.I32(8)).Add(c), vs[0]) })
		})
		m := newFlat()
		xs, dst := m.alloc(4*60), m.alloc(4*64)
		err := k.Run(&Env{Mem: m}, x(1), x(32), 0, pack(xs, dst))
		var f *Fault
		if !errors.As(err, &f) || f.Code != 700 || f.Line == 0 {
			t.Fatalf("far %v: %v", far, err)
		}
		if want := fmt.Sprintf("invalid 4-byte global read at %#x for tile ta by block (0,0,0)", xs+4*60); !far && f.Detail != want {
			t.Errorf("detail %q, want %q", f.Detail, want)
		}
	}
}

func BenchmarkMatmul(b *testing.B) {
	const n = 1024
	for _, t := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float64} {
		b.Run(t.String(), func(b *testing.B) {
			q := matmul{in: t, acc: dtype.Float32, out: t, bm: 128, bn: 128, bk: 16, vec: 16 / t.Size(), outVec: 16 / t.Size()}
			if t == dtype.Float64 {
				q.acc = t
			}
			k := q.build(b)
			m := newFlat()
			args := pack(m.alloc(n*n*t.Size()), m.alloc(n*n*t.Size()), m.alloc(n*n*t.Size()), int32(n), int32(n), int32(n))
			for b.Loop() {
				if err := k.Run(&Env{Mem: m}, [3]uint32{n / 128, n / 128, 1}, x(128), 0, args); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(2*n*n*n/float64(b.Elapsed().Nanoseconds())*float64(b.N), "GFLOP/s")
		})
	}
}

// TestWarmTilesAllocateNothing covers loads, products and visits.
func TestWarmTilesAllocateNothing(t *testing.T) {
	const n = 96
	q := matmul{in: dtype.Float16, acc: dtype.Float32, out: dtype.Float32, bm: 32, bn: 32, bk: 16, transB: true, vec: 4, outVec: 4}
	k := q.build(t)
	m := newFlat()
	args := pack(m.alloc(2*n*n), m.alloc(2*n*n), m.alloc(4*n*n), int32(n), int32(n), int32(n))
	launch := func() {
		if err := k.Run(&Env{Mem: m, Workers: 2}, [3]uint32{n / 32, n / 32, 1}, x(128), 0, args); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		launch()
	}
	if got := testing.AllocsPerRun(20, launch); got != 0 {
		t.Errorf("%v allocations a launch", got)
	}
}
