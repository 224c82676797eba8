package kernels

import (
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// planned returns the plan of the dense product of m x k by k x n.
func planned(t dtype.DType, tf32, columns bool, m, k, n, multiprocessors int) (tile gemmTile, splits, depth int) {
	return plannedWith(nil, t, tf32, columns, m, k, n, multiprocessors)
}

// plannedWith is planned with an epilogue.
func plannedWith(e *Epilogue, t dtype.DType, tf32, columns bool, m, k, n, multiprocessors int) (tile gemmTile, splits, depth int) {
	p := product{m: m, k: k, n: n, opt: MatmulOpt{Epilogue: e}}
	p.a.DType, p.b.DType, p.out.DType = t, t, t
	p.s = [4][2]int{{n, 1}, {k, 1}, {1, n}}
	if columns { // b lies along the depth
		p.s[2] = [2]int{k, 1}
	}
	s := &Spec{}
	s.Product.TF32 = tf32
	s.Product.Left, s.Product.Right = p.layoutOf(1, &p.a, m), p.layoutOf(2, &p.b, n)
	return p.plan(&Limits{Multiprocessors: multiprocessors, SharedPerBlock: 227 << 10, Major: 9}, s, tf32)
}

// TestProductTiles compares the chosen tiles with those that were fastest on an H200.
func TestProductTiles(t *testing.T) {
	for _, c := range []struct {
		t          dtype.DType
		tf32, cols bool
		m, k, n    int
		rows       int
		across     int
		splits     int
	}{
		{dtype.BFloat16, false, false, 512, 512, 512, 64, 64, 1},
		{dtype.BFloat16, false, false, 1024, 1024, 1024, 64, 128, 1},
		{dtype.BFloat16, false, true, 1536, 1536, 1536, 128, 192, 1},
		{dtype.Float16, false, false, 2048, 2048, 2048, 128, 256, 1},
		{dtype.Float16, false, false, 3072, 3072, 3072, 128, 192, 1},
		{dtype.BFloat16, false, false, 4096, 1024, 4096, 128, 256, 1},
		{dtype.Float32, true, true, 1024, 1024, 1024, 64, 128, 1},
		{dtype.Float32, true, false, 1536, 1536, 1536, 192, 128, 1},
		{dtype.Float32, true, false, 4096, 4096, 4096, 256, 128, 1},
		{dtype.Float32, false, false, 128, 4096, 4096, 64, 128, 4},
		{dtype.BFloat16, false, false, 200704, 144, 24, 128, 32, 1},
		{dtype.BFloat16, false, true, 802816, 40, 32, 128, 32, 1},
		{dtype.BFloat16, false, false, 802816, 200, 64, 128, 64, 1},
		{dtype.BFloat16, false, false, 12544, 384, 64, 64, 64, 1}, // too few rows to stream
	} {
		if tile, splits, _ := planned(c.t, c.tf32, c.cols, c.m, c.k, c.n, 132); tile.rows != c.rows || tile.cols != c.across ||
			splits != c.splits {
			t.Errorf("%v, tf32 %v, %d x %d x %d: a tile of %dx%d, %d parts; want %dx%d, %d", c.t, c.tf32, c.m, c.k, c.n, tile.rows,
				tile.cols, splits, c.rows, c.across, c.splits)
		}
	}
}

// TestEpiloguesKeepParts: if an epilogue has operands, another tile may be better, but the depth is divided as without it.
func TestEpiloguesKeepParts(t *testing.T) {
	loads := &Epilogue{Ins: []Operand{{}}}
	tiles, divided := 0, 0
	for _, m := range []int{256, 512, 784, 3136, 12544, 50176, 200704} {
		for _, n := range []int{64, 128, 192, 256, 512, 1024, 2048} {
			for _, k := range []int{64, 256, 1024, 2048, 8192} {
				tile, splits, depth := planned(dtype.BFloat16, false, true, m, k, n, notional)
				with, s, d := plannedWith(loads, dtype.BFloat16, false, true, m, k, n, notional)
				if s != splits || d != depth {
					t.Errorf("%d x %d x %d: %d parts of %d with an epilogue, %d of %d without", m, k, n, s, d, splits, depth)
				}
				if with != tile {
					tiles++
				}
				if splits > 1 {
					divided++
				}
			}
		}
	}
	if tiles < 5 || divided < 5 {
		t.Errorf("only %d tiles differ, and only %d products are divided", tiles, divided)
	}
}

// TestPartsDependOnTheProduct checks that depths are divided alike for devices of many sizes: the bits of a result follow from the parts.
func TestPartsDependOnTheProduct(t *testing.T) {
	divided := 0
	for _, c := range [][3]int{{128, 4096, 4096}, {64, 65536, 64}, {256, 16384, 128}, {768, 768, 768}, {1536, 1536, 1536}} {
		for _, kind := range []struct {
			t    dtype.DType
			tf32 bool
		}{{dtype.BFloat16, false}, {dtype.Float32, true}, {dtype.Float32, false}} {
			_, splits, depth := planned(kind.t, kind.tf32, true, c[0], c[1], c[2], notional)
			if splits > 1 {
				divided++
			}
			for _, n := range []int{2, 20, 78, 144} {
				if _, s, d := planned(kind.t, kind.tf32, true, c[0], c[1], c[2], n); s != splits || d != depth {
					t.Errorf("%v, tf32 %v, %v: %d parts of %d on %d multiprocessors, %d of %d on %d", kind.t, kind.tf32, c, s, d, n,
						splits, depth, notional)
				}
			}
		}
	}
	if divided < 5 {
		t.Errorf("only %d products were divided", divided)
	}
}

// TestFlatTilesKeepSums checks that the tiles for few rows add up as higher ones do: rows have the same bits in a product of 20 rows.
func TestFlatTilesKeepSums(t *testing.T) {
	h := newHost(t)
	h.limits.SharedPerBlock = 227 << 10
	rng := rand.New(rand.NewPCG(4, 5))
	const most, n = 20, 100
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16} {
		for _, k := range []int{3, 70, 200, 1000} {
			if dt == dtype.BFloat16 && k > 200 { // its parts depend on the number of rows too
				continue
			}
			for _, columns := range []bool{false, true} {
				a, b := h.normal(rng, dt, most, k), h.normal(rng, dt, k, n)
				if columns {
					b.Stride = []int{1, k}
				}
				product := func(m int) []float64 {
					out, rows := h.empty(accumulator(dt), m, n), a
					rows.Shape = []int{m, k}
					clear(h.kernels)
					check(t, Matmul(h, out, rows, b, MatmulOpt{Alpha: 1}))
					for s := range h.kernels {
						if high := int(s.Product.Tile.Rows) > 16; s.Family == FamilyMatmul && high != (m == most) {
							t.Errorf("%v, %d rows of %d: a tile of %d rows", dt, m, k, s.Product.Tile.Rows)
						}
					}
					return h.read(out)
				}
				all := product(most)
				for _, m := range []int{1, 8, 9, 16} {
					if got := product(m); !slices.Equal(got, all[:m*n]) {
						t.Errorf("%v, %d rows of %d, b lies along the depth: %v: other sums than those of %d rows", dt, m, k, columns, most)
					}
				}
			}
		}
	}
}
