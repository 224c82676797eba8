package agree

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// A product describes a matrix product kernel: c[m,n] = a[m,k] x b[k,n] with row-major c. A transposed operand is column-major.
type product struct {
	in, acc, out    kir.Type
	bm, bn, bk      int
	threads, stages int
	transA, transB  bool
	tf32            bool
	loadVec, outVec int
	group           int // blocks of rows that run together, for better cache use
	parts           int // of the sum, 0 for one
}

func (q product) name() string {
	return fmt.Sprintf("matmul_%s_%s_%dx%dx%d_%d_%d_t%d%d_v%d_%d_x%d_p%d", q.in.Short(), q.acc.Short(), q.bm, q.bn, q.bk, q.threads,
		q.stages, b2i(q.transA), b2i(q.transB), q.loadVec, q.outVec, b2i(q.tf32), q.parts)
}

// build returns the kernel; its parameters are a, b, c, m, n, k. Rows and columns beyond the matrix are masked; the vector widths promise
// that the lengths are multiples of them.
func (q product) build() (*kir.Program, error) {
	return kernel.Build(q.name(), func(k *kernel.Builder) {
		k.FixedThreads(q.threads)
		a, b, c := k.BufferRO("a", q.in), k.BufferRO("b", q.in), k.Buffer("c", q.out)
		m, n, kk := k.Scalar("m", dtype.Int32), k.Scalar("n", dtype.Int32), k.Scalar("k", dtype.Int32)
		ta, tb := k.Tile("ta", q.in, q.bm, q.bk), k.Tile("tb", q.in, q.bk, q.bn)
		sum := k.TileInParts("sum", q.acc, q.bm, q.bn, max(1, q.parts))
		sum.Zero()
		row0, col0 := q.place(k, m, n)
		axis := func(along bool) kernel.Groups {
			if along {
				return kernel.AlongRows
			}
			return kernel.AlongCols
		}
		flat := func(r, c, rows, cols kernel.Value, trans bool) kernel.Value {
			if trans {
				return c.MulWide(rows).Add(r.Convert(dtype.Int64))
			}
			return r.MulWide(cols).Add(c.Convert(dtype.Int64))
		}
		k.Pipelined(q.stages, k.I32(0), kk, k.I32(q.bk), func(k0 kernel.Value) {
			ta.Load(axis(q.transA), q.loadVec, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				row, col := row0.Add(r), k0.Add(c)
				return a, flat(row, col, m, kk, q.transA), row.Lt(m).And(col.Lt(kk))
			})
			tb.Load(axis(q.transB), q.loadVec, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				row, col := k0.Add(r), col0.Add(c)
				return b, flat(row, col, kk, n, q.transB), row.Lt(kk).And(col.Lt(n))
			})
			sum.Dot(ta, tb, q.tf32)
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
	}).Program()
}

// place returns the first row and column of the block. Blocks run down groups of rows, so that those that run together share operands.
func (q product) place(k *kernel.Builder, m, n kernel.Value) (row, col kernel.Value) {
	bx := k.BlockIdx(kernel.X)
	down := m.Add(k.I32(q.bm - 1)).Div(k.I32(q.bm))
	across := n.Add(k.I32(q.bn - 1)).Div(k.I32(q.bn))
	per := across.Mul(k.I32(q.group))
	first := bx.Div(per).Mul(k.I32(q.group))
	size := down.Sub(first).Min(k.I32(q.group))
	in := bx.Rem(per)
	return first.Add(in.Rem(size)).Mul(k.I32(q.bm)), in.Div(size).Mul(k.I32(q.bn))
}

// products are the variants that are tested and measured.
func products() []product {
	var ps []product
	for _, ta := range []bool{false, true} {
		for _, tb := range []bool{false, true} {
			ps = append(ps,
				product{in: dtype.BFloat16, acc: dtype.Float32, out: dtype.BFloat16, bm: 128, bn: 128, bk: 64, threads: 128, stages: 3,
					loadVec: 8, outVec: 8, transA: ta, transB: tb, group: 8},
				product{in: dtype.Float16, acc: dtype.Float32, out: dtype.Float16, bm: 128, bn: 256, bk: 32, threads: 256, stages: 4,
					loadVec: 8, outVec: 8, transA: ta, transB: tb, group: 8},
				product{in: dtype.Float32, acc: dtype.Float32, out: dtype.Float32, bm: 128, bn: 128, bk: 32, threads: 128, stages: 3,
					loadVec: 4, outVec: 4, transA: ta, transB: tb, tf32: true, group: 8},
				product{in: dtype.Float32, acc: dtype.Float32, out: dtype.Float32, bm: 128, bn: 128, bk: 16, threads: 256, stages: 3,
					loadVec: 4, outVec: 4, transA: ta, transB: tb, group: 8},
				product{in: dtype.Float64, acc: dtype.Float64, out: dtype.Float64, bm: 64, bn: 64, bk: 16, threads: 128, stages: 3,
					loadVec: 2, outVec: 2, transA: ta, transB: tb, group: 8},
				product{in: dtype.Int8, acc: dtype.Int32, out: dtype.Int32, bm: 64, bn: 64, bk: 32, threads: 128, stages: 2, loadVec: 16,
					outVec: 4, transA: ta, transB: tb, group: 8},
				product{in: dtype.BFloat16, acc: dtype.Float32, out: dtype.Float32, bm: 64, bn: 32, bk: 32, threads: 64, stages: 1,
					loadVec: 1, outVec: 1, transA: ta, transB: tb, group: 1},
				product{in: dtype.Float16, acc: dtype.Float32, out: dtype.Float32, bm: 16, bn: 8, bk: 16, threads: 64, stages: 2,
					loadVec: 2, outVec: 2, transA: ta, transB: tb, group: 1},
				product{in: dtype.Float32, acc: dtype.Float32, out: dtype.Float32, bm: 48, bn: 24, bk: 12, threads: 128, stages: 1,
					loadVec: 1, outVec: 1, transA: ta, transB: tb, group: 1},
				product{in: dtype.Float32, acc: dtype.Float32, out: dtype.Float32, bm: 32, bn: 32, bk: 64, threads: 128, stages: 3,
					loadVec: 4, outVec: 4, transA: ta, transB: tb, group: 8, parts: 4},
				product{in: dtype.BFloat16, acc: dtype.Float32, out: dtype.Float32, bm: 48, bn: 24, bk: 24, threads: 128, stages: 2,
					loadVec: 1, outVec: 1, transA: ta, transB: tb, group: 1, parts: 2},
				product{in: dtype.Float64, acc: dtype.Float64, out: dtype.Float64, bm: 32, bn: 64, bk: 16, threads: 256, stages: 2,
					loadVec: 2, outVec: 2, transA: ta, transB: tb, group: 8, parts: 8},
				product{in: dtype.Float32, acc: dtype.Float32, out: dtype.Float32, bm: 64, bn: 1, bk: 16, threads: 128, stages: 2,
					loadVec: 1, outVec: 1, transA: ta, transB: tb, group: 1},
				product{in: dtype.Float32, acc: dtype.Float32, out: dtype.Float32, bm: 64, bn: 1, bk: 16, threads: 128, stages: 2,
					loadVec: 1, outVec: 1, transA: ta, transB: tb, group: 1, parts: 4},
				product{in: dtype.Int8, acc: dtype.Int32, out: dtype.Int32, bm: 64, bn: 32, bk: 96, threads: 64, stages: 2, loadVec: 16,
					outVec: 1, transA: ta, transB: tb, group: 1, parts: 2},
			)
		}
	}
	return ps
}

// launch makes the case of an m x k by k x n product of small integers, whose sums every format holds exactly or rounds once, and the
// expected result.
func (q product) launch(t testing.TB, rng *rand.Rand, m, n, k int) (c kernelCase, want []byte) {
	t.Helper()
	p, err := q.build()
	if err != nil {
		t.Fatal(err)
	}
	var as, bs []int
	small := func(count int, numbers *[]int) []byte {
		var b []byte
		for range count {
			x := rng.IntN(7) - 3
			*numbers = append(*numbers, x)
			b = put(b, q.in, integer(q.in, x))
		}
		return b
	}
	a, b := small(m*k, &as), small(k*n, &bs)
	for i := range m {
		for j := range n {
			sum := 0
			for l := range k {
				x, y := as[i*k+l], bs[l*n+j]
				if q.transA {
					x = as[l*m+i]
				}
				if q.transB {
					y = bs[j*k+l]
				}
				sum += x * y
			}
			want = put(want, q.out, integer(q.out, sum))
		}
	}
	grid := ((m + q.bm - 1) / q.bm) * ((n + q.bn - 1) / q.bn)
	return kernelCase{prog: p, grid: grid, block: q.threads, args: []argument{buffer(q.in, a), buffer(q.in, b), zeros(q.out, m*n),
		scalar(dtype.Int32, uint64(m)), scalar(dtype.Int32, uint64(n)), scalar(dtype.Int32, uint64(k))}}, want
}

// testProducts checks products of matrices that fill their tiles and of some that do not.
func testProducts(t *testing.T, m *machine) {
	rng := rand.New(rand.NewPCG(3, 5))
	for _, q := range products() {
		for i, size := range [][3]int{{208, 176, 80}, {256, 256, 192}, {16, 16, 16}} {
			c, want := q.launch(t, rng, size[0], size[1], size[2])
			if i == 0 {
				m.load(t, []*kir.Program{c.prog})
			}
			got, err := m.run(c)
			if err != nil {
				t.Fatalf("%s %v: %v", q.name(), size, err)
			}
			if text := differ(q.out, want, got[2]); text != "" {
				t.Errorf("%s %v: %s", q.name(), size, text)
			}
		}
	}
}

func TestProductsOnGPU(t *testing.T) { testProducts(t, openGPU(t)) }
func TestPortableProductsOnGPU(t *testing.T) {
	m := openGPU(t)
	m.portable = true
	testProducts(t, m)
}
func TestProductsOnSimulator(t *testing.T) { testProducts(t, openSim(t)) }

// integer returns the bits of n in type t.
func integer(t kir.Type, n int) uint64 {
	switch t {
	case dtype.Float16:
		return uint64(dtype.F16FromFloat64(float64(n)))
	case dtype.BFloat16:
		return uint64(dtype.BF16FromFloat64(float64(n)))
	case dtype.Float32:
		return uint64(math.Float32bits(float32(n)))
	case dtype.Float64:
		return math.Float64bits(float64(n))
	}
	return uint64(n)
}
