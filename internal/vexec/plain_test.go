package vexec

import (
	"math/rand"
	"testing"
	"unsafe"

	"tenon.dev/dtype"
)

// plainly runs f with the plain Go kernels instead of this machine's.
func plainly(t *testing.T, f func(t *testing.T)) {
	ops, cvts, gs, ts := laneOps, laneCvts, gathers, turns
	ds := map[dtype.DType]dotFunc{}
	for k, v := range dots {
		ds[k] = v
	}
	laneOps, laneCvts = plainOps, plainCvts
	gathers[4] = [2]gatherFunc{gather[uint32, int32], gather[uint32, int64]}
	dots[dtype.Float32], dots[dtype.Float64] = dotPlain[float32], dotPlain[float64]
	turns[4], turns[8] = turnPlain[uint32], turnPlain[uint64]
	defer func() {
		laneOps, laneCvts, gathers, turns = ops, cvts, gs, ts
		for k, v := range ds {
			dots[k] = v
		}
	}()
	f(t)
}

// TestPlain repeats the tests that use kernels, without machine code, as on other processors.
func TestPlain(t *testing.T) {
	plainly(t, func(t *testing.T) {
		t.Run("ops", TestOps)
		t.Run("matmul", TestMatmul)
		t.Run("gathered tile", TestGatheredTile)
		t.Run("random programs", func(t *testing.T) {
			for seed := int64(100000); seed < 100100; seed++ {
				if !checkRandom(t, seed) {
					return
				}
			}
		})
	})
}

// checkDot compares a product with its definition on small integers, whose products are exact, for both layouts of the left operand.
func checkDot[T float32 | float64 | int32](t *testing.T, name string, dot dotFunc) {
	t.Helper()
	r := rand.New(rand.NewSource(3))
	fill := func(n int) []T {
		out := make([]T, n)
		for i := range out {
			out[i] = T(r.Intn(9) - 4)
		}
		return out
	}
	for _, s := range [][3]int{{64, 64, 16}, {8, 32, 1}, {128, 48, 5}, {7, 13, 3}, {1, 1, 1}, {9, 17, 40}, {20, 40, 8}, {12, 8, 4}} {
		for _, byCols := range []bool{false, true} {
			m, n, k := s[0], s[1], s[2]
			a, b, c := fill(m*k), fill(k*n), fill(m*n)
			want := append([]T(nil), c...)
			rs, cs := k, 1
			if byCols {
				rs, cs = 1, m
			}
			for i := range m {
				for j := range n {
					for l := range k {
						want[i*n+j] += a[i*rs+l*cs] * b[l*n+j]
					}
				}
			}
			dot(unsafe.Pointer(&c[0]), unsafe.Pointer(&a[0]), unsafe.Pointer(&b[0]), m, n, k, rs, cs)
			for i := range c {
				if c[i] != want[i] {
					t.Fatalf("%s %dx%dx%d, by columns %v: element %d is %v, want %v", name, m, n, k, byCols, i, c[i], want[i])
				}
			}
		}
	}
}

func TestDotPlain(t *testing.T) {
	checkDot[float32](t, "float32", dotPlain[float32])
	checkDot[float64](t, "float64", dotPlain[float64])
	checkDot[int32](t, "int32", dotPlain[int32])
}

// checkTurn compares a transposition with its definition, for matrices with and without gaps between rows. It must not write into gaps.
func checkTurn[T raw](t *testing.T, name string, turn turnFunc) {
	t.Helper()
	for _, s := range [][4]int{{32, 64, 32, 64}, {8, 8, 8, 8}, {4, 4, 4, 4}, {1, 1, 1, 1}, {7, 13, 9, 20}, {40, 3, 40, 3}, {3, 40, 5, 44},
		{17, 33, 18, 33}, {64, 16, 64, 1024}} {
		rows, cols, ldd, lda := s[0], s[1], s[2], s[3]
		a, d := make([]T, rows*lda), make([]T, cols*ldd)
		for i := range a {
			a[i] = T(i + 1)
		}
		turn(unsafe.Pointer(&d[0]), unsafe.Pointer(&a[0]), rows, cols, ldd, lda)
		for j := range cols {
			for i := range ldd {
				want := T(0)
				if i < rows {
					want = a[i*lda+j]
				}
				if d[j*ldd+i] != want {
					t.Fatalf("%s %v: element (%d, %d) is %d, want %d", name, s, j, i, d[j*ldd+i], want)
				}
			}
		}
	}
}

func TestTurnPlain(t *testing.T) {
	checkTurn[uint32](t, "4 bytes", turnPlain[uint32])
	checkTurn[uint64](t, "8 bytes", turnPlain[uint64])
}
