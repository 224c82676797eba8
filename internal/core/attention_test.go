package core

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
)

// attended returns the results of an attention: the output and the gradients of queries, keys and values, in float64.
func attended(t *testing.T, x *Exec, q, k, v, g *Tensor, opt AttentionOpt, further bool) [4][]float64 {
	t.Helper()
	var leaves []*Tensor
	for _, a := range []*Tensor{q, k, v} {
		a = x.Detach(a)
		a.SetRequiresGrad(true)
		leaves = append(leaves, a)
	}
	y := x.ScaledDotProductAttention(leaves[0], leaves[1], leaves[2], opt)
	grads, err := x.Grad([]*Tensor{y}, leaves, GradOpt{Gradients: []*Tensor{g}, CreateGraph: further})
	if err != nil {
		t.Fatal(err)
	}
	return [4][]float64{doubles(t, x, y), doubles(t, x, grads[0]), doubles(t, x, grads[1]), doubles(t, x, grads[2])}
}

// wantClose compares with a tolerance relative to the greatest element.
func wantClose(t *testing.T, what string, got, want []float64, tolerance float64) {
	t.Helper()
	scale := 0.02
	for _, w := range want {
		scale = math.Max(scale, math.Abs(w))
	}
	for i, w := range want {
		if !(math.Abs(got[i]-w) <= tolerance*scale) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, got[i], w)
		}
	}
}

// TestAttentionSizes compares the attention kernels, the composite for halves and further derivatives with the composite in float64.
func TestAttentionSizes(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(5, 6))
		type size struct{ b, h, kv, t, s, d int }
		sizes := []size{
			{1, 1, 1, 1, 1, 16}, {2, 3, 3, 70, 70, 64}, {1, 4, 2, 33, 130, 32}, {1, 2, 2, 150, 140, 128}, {2, 2, 1, 257, 64, 64},
			{1, 2, 2, 20, 20, 24}, {2, 2, 1, 130, 90, 40}, {1, 1, 1, 70, 1100, 80}, {1, 2, 2, 20, 30, 20}, {1, 8, 2, 1, 300, 80},
			{1, 1, 1, 70, 66, 8}, {1, 1, 1, 70, 66, 136}, {1, 1, 1, 70, 66, 248},
			{1, 2, 1, 70, 130, 256}, {1, 1, 1, 150, 90, 160}, {1, 8, 1, 1, 300, 200}, {1, 1, 1, 20, 30, 264},
			{1, 2, 1, 520, 300, 64}, {1, 1, 1, 130, 1030, 128}, {1, 1, 1, 70, 4100, 64}, // wide steps
		}
		if strings.HasSuffix(t.Name(), "/cuda") {
			sizes = append(sizes, size{2, 4, 4, 1024, 1024, 64}, size{1, 4, 2, 1000, 1500, 128}, size{1, 4, 2, 1000, 1500, 88},
				size{2, 4, 4, 777, 1024, 40}, size{2, 4, 2, 1000, 1500, 256}, size{2, 4, 4, 777, 1024, 160})
		}
		for _, c := range sizes {
			for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
				for form := range 4 {
					x.Scope(func(x *Exec) {
						opt := AttentionOpt{Causal: form&1 != 0, GroupedHeads: c.h != c.kv}
						q, _ := randomOf(x, r, dt, c.b, c.t, c.h, c.d)
						q = x.Transpose(q, 1, 2)
						k, _ := randomOf(x, r, dt, c.b, c.kv, c.s, c.d)
						v, _ := randomOf(x, r, dt, c.b, c.kv, c.s, c.d)
						g, _ := randomOf(x, r, dt, c.b, c.h, c.t, c.d)
						if form&2 != 0 { // vectors whose elements are not adjacent, and a gradient that no tensor map can describe
							v = x.Transpose(x.Contiguous(x.Transpose(v, 2, 3)), 2, 3)
							g = x.Expand(x.Slice(g, 2, 0, 1, 1), c.b, c.h, c.t, c.d)
						}
						wide := func(a *Tensor) *Tensor { return x.ToDType(a, dtype.Float64) }
						want := attended(t, x, wide(q), wide(k), wide(v), wide(g), opt, false)
						tolerance := 3.0 / 256
						if dt == dtype.Float16 {
							tolerance = 3.0 / 2048
						}
						for _, further := range []bool{false, true} {
							got := attended(t, x, q, k, v, g, opt, further)
							for i, r := range []struct {
								name string
								loss float64
							}{{"y", 1}, {"dq", 3}, {"dk", 3}, {"dv", 1}} {
								if further { // every operation rounds
									r.loss *= 2
								}
								what := fmt.Sprintf("%v %v form %d further %v: %s", c, dt, form, further, r.name)
								wantClose(t, what, got[i], want[i], tolerance*r.loss)
							}
						}
					})
				}
			}
		}
	})
}

// TestAttentionOptions compares masks, scales and further forms with their definitions.
func TestAttentionOptions(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(7, 8))
		q, _ := randomOf(x, r, dtype.BFloat16, 2, 3, 20, 32)
		k, _ := randomOf(x, r, dtype.BFloat16, 2, 3, 30, 32)
		v, _ := randomOf(x, r, dtype.BFloat16, 2, 3, 30, 32)
		mask := x.Ge(x.Unsqueeze(x.Arange(20, dtype.Int64, ArangeOpt{}), 1), x.Arange(30, dtype.Int64, ArangeOpt{}))
		causal := doubles(t, x, x.ScaledDotProductAttention(q, k, v, AttentionOpt{Causal: true}))
		wantClose(t, "a mask of bool", doubles(t, x, x.ScaledDotProductAttention(q, k, v, AttentionOpt{Mask: mask})), causal, 1.0/64)
		added := x.MaskedFillS(x.Zeros([]int{20, 30}, dtype.BFloat16), x.LogicalNot(mask), math.Inf(-1))
		wantClose(t, "a mask that is added", doubles(t, x, x.ScaledDotProductAttention(q, k, v, AttentionOpt{Mask: added})), causal, 1.0/64)
		half := doubles(t, x, x.ScaledDotProductAttention(x.MulS(q, 2), k, v, AttentionOpt{Scale: 0.25}))
		wantClose(t, "a scale", doubles(t, x, x.ScaledDotProductAttention(q, k, v, AttentionOpt{Scale: 0.5})), half, 1.0/64)
		one := x.ScaledDotProductAttention(x.Select(q, 0, 1), x.Select(k, 0, 1), x.Select(v, 0, 1), AttentionOpt{Causal: true})
		wantClose(t, "three dimensions", doubles(t, x, one), causal[len(causal)/2:], 1.0/64)
		dropped := x.ScaledDotProductAttention(q, k, v, AttentionOpt{Dropout: 1})
		if len(dropped.shape) != 4 || doubles(t, x, x.AMax(x.Abs(dropped), nil, DimOpt{}))[0] != 0 {
			t.Error("with all weights dropped something is left")
		}
		poisoned := x.Contiguous(q)
		x.FillInto(x.Select(x.Select(poisoned, 2, 7), 2, 3), math.NaN())
		for i, y := range doubles(t, x, x.ScaledDotProductAttention(poisoned, k, v, AttentionOpt{})) {
			if row := i / 32 % 20; (row == 7) != math.IsNaN(y) {
				t.Fatalf("with a NaN in query 7, query %d gives %v", row, y)
			}
		}
		wide := x.ToDType(q, dtype.Float32)
		for _, c := range []struct {
			want    string
			q, k, v *Tensor
			opt     AttentionOpt
		}{
			{"the queries are float32, but operand 1 is bfloat16", wide, k, v, AttentionOpt{}},
			{"have 32 elements and the keys' 16", q, x.Slice(k, 3, 0, 16, 1), v, AttentionOpt{}},
			{"30 keys and 29 values", q, k, x.Slice(v, 2, 0, 29, 1), AttentionOpt{}},
			{"Causal and Mask are both given", q, k, v, AttentionOpt{Causal: true, Mask: mask}},
			{"between 0 and 1, but got 2", q, k, v, AttentionOpt{Dropout: 2}},
			{"the mask is int64", q, k, v, AttentionOpt{Mask: x.ToDType(mask, dtype.Int64)}},
			{"GroupedHeads wants", q, x.Slice(k, 1, 0, 2, 1), x.Slice(v, 1, 0, 2, 1), AttentionOpt{GroupedHeads: true}},
			{"tensor b (3) at non-singleton dimension 1; the 6 heads of queries are a multiple of the 3 of keys: " +
				"AttentionOpt{GroupedHeads: true} lets",
				x.Cat([]*Tensor{q, q}, 1), k, v, AttentionOpt{}},
			{"(bfloat16[2 3 20 32], bfloat16[2 2 30 32], bfloat16[2 3 30 32]): The size of tensor a (3) must match the size of tensor " +
				"b (2)",
				q, x.Slice(k, 1, 0, 2, 1), v, AttentionOpt{}},
			{"the mask of shape [7 30] does not broadcast to the scores, of shape [2 3 20 30]", q, k, v,
				AttentionOpt{Mask: x.Ones([]int{7, 30}, dtype.Bool)}},
			{"at least 2 dimensions", x.Reshape(q, -1), k, v, AttentionOpt{}},
		} {
			if err := Try(func() { x.ScaledDotProductAttention(c.q, c.k, c.v, c.opt) }); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v; want %q", err, c.want)
			}
		}
	})
}

// TestAttentionMasks compares attention under masks with float64, and further derivatives. A query that sees no key gets zeros, and no
// gradient is NaN.
func TestAttentionMasks(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(13, 14))
		const b, h, kv, n, s, d = 2, 4, 2, 70, 90, 32
		blind := func(query int) bool { return query%9 == 4 }
		for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.Float32} {
			q, _ := randomOf(x, r, dt, b, h, n, d)
			k, _ := randomOf(x, r, dt, b, kv, s, d)
			v, _ := randomOf(x, r, dt, b, kv, s, d)
			g, _ := randomOf(x, r, dt, b, h, n, d)
			random, _ := randomOf(x, r, dtype.Float32, b, 1, n, s)
			rows := x.Unsqueeze(x.Arange(n, dtype.Int64, ArangeOpt{}), 1)
			pairs := x.LogicalAnd(x.LtS(random, 0.5), x.NeS(x.RemainderS(rows, 9), 4))
			added := x.MaskedFillS(x.ToDType(random, dt), x.LogicalNot(pairs), math.Inf(-1))
			keys := x.Contiguous(x.Narrow(pairs, 2, 0, 1))
			for _, c := range []struct {
				name string
				mask *Tensor
			}{{"keys", keys}, {"pairs", pairs}, {"added", added}, {"one matrix", x.Select(x.Select(pairs, 0, 0), 0, 0)},
				{"turned", x.Transpose(x.Contiguous(x.Transpose(added, 2, 3)), 2, 3)}} {
				wide := func(a *Tensor) *Tensor { return x.ToDType(a, dtype.Float64) }
				opt := AttentionOpt{Mask: c.mask, GroupedHeads: true}
				wideOpt := opt
				if c.mask.dt != dtype.Bool {
					wideOpt.Mask = wide(c.mask)
				}
				want := attended(t, x, wide(q), wide(k), wide(v), wide(g), wideOpt, false)
				tolerance := map[dtype.DType]float64{dtype.BFloat16: 3.0 / 256, dtype.Float16: 3.0 / 2048, dtype.Float32: 1e-5}[dt]
				for _, further := range []bool{false, true} {
					got := attended(t, x, q, k, v, g, opt, further)
					for i, name := range []string{"y", "dq", "dk", "dv"} {
						wantClose(t, fmt.Sprint(dt, c.name, further, name), got[i], want[i], tolerance*6)
					}
					for i, y := range got[0] {
						if c.name != "keys" && blind(i/d%n) && (y != 0 || got[1][i] != 0) {
							t.Fatalf("%v %s: query %d sees no key and gets %v, its gradient %v", dt, c.name, i/d%n, y, got[1][i])
						}
					}
				}
			}
		}
	})
}

// TestAttentionDropout compares attention whose weights are dropped with that of float32, which draws the same numbers, and further
// derivatives.
func TestAttentionDropout(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(17, 18))
		for _, c := range []struct{ h, kv, n, s, d int }{{2, 2, 20, 64, 32}, {4, 2, 33, 70, 32}, {3, 1, 7, 33, 32}, {4, 2, 70, 300, 40},
			{1, 1, 130, 1100, 128}, {2, 1, 70, 130, 256}} {
			const b = 2
			d := c.d
			q, _ := randomOf(x, r, dtype.BFloat16, b, c.h, c.n, d)
			k, _ := randomOf(x, r, dtype.BFloat16, b, c.kv, c.s, d)
			v, _ := randomOf(x, r, dtype.BFloat16, b, c.kv, c.s, d)
			g, _ := randomOf(x, r, dtype.BFloat16, b, c.h, c.n, d)
			scores, _ := randomOf(x, r, dtype.Float32, b, 1, 1, c.s)
			keys := x.Arange(float64(c.s), dtype.Int64, ArangeOpt{})
			for _, opt := range []AttentionOpt{{}, {Causal: true}, {Mask: x.LtS(scores, 0.5)}, {Mask: x.LtS(keys, float64(c.s-20))}} {
				opt.Dropout, opt.GroupedHeads = 0.25, true
				run := func(dt dtype.DType, further bool) [4][]float64 {
					if err := x.Generator().SetSeed(99); err != nil {
						t.Fatal(err)
					}
					to := func(a *Tensor) *Tensor { return x.ToDType(a, dt) }
					return attended(t, x, to(q), to(k), to(v), to(g), opt, further)
				}
				want := run(dtype.Float32, false)
				next := x.Generator().State()
				for _, further := range []bool{false, true} {
					got := run(dtype.BFloat16, further)
					for i, name := range []string{"y", "dq", "dk", "dv"} {
						wantClose(t, fmt.Sprint(c, opt.Causal, opt.Mask != nil, further, name), got[i], want[i], 18.0/256)
					}
					if !bytes.Equal(x.Generator().State(), next) {
						t.Errorf("%v: the generator has another state", c)
					}
				}
			}
		}
	})
}

// TestAttentionPadding compares attention under a mask of padding, which leaves out what all queries do not see, with that under an equal
// mask that has a row for each query. All bits are the same.
func TestAttentionPadding(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(19, 20))
		for _, c := range []struct{ h, kv, n, s, d int }{{4, 2, 100, 600, 64}, {2, 2, 70, 1100, 128}, {2, 2, 300, 256, 160}} {
			ends := [][]int64{{0, 0, 100, int64(c.s) - 1, 0}, {int64(c.s), 90, 256, int64(c.s), 0}}
			b := len(ends[0])
			q, _ := randomOf(x, r, dtype.BFloat16, b, c.h, c.n, c.d)
			k, _ := randomOf(x, r, dtype.BFloat16, b, c.kv, c.s, c.d)
			v, _ := randomOf(x, r, dtype.BFloat16, b, c.kv, c.s, c.d)
			g, _ := randomOf(x, r, dtype.BFloat16, b, c.h, c.n, c.d)
			keys := x.Arange(float64(c.s), dtype.Int64, ArangeOpt{})
			end := func(i int) *Tensor { return From(x, ends[i], b, 1, 1, 1) }
			span := x.LogicalAnd(x.Ge(keys, end(0)), x.Lt(keys, end(1)))
			gaps := x.LogicalAnd(span, x.NeS(x.RemainderS(keys, 7), 3))
			added := x.MaskedFillS(x.Zeros(span.Shape(), dtype.BFloat16), x.LogicalNot(span), math.Inf(-1))
			for m, mask := range []*Tensor{span, gaps, added} {
				for _, p := range []float64{0, 0.25} {
					run := func(mask *Tensor) [4][]float64 {
						if err := x.Generator().SetSeed(99); err != nil {
							t.Fatal(err)
						}
						return attended(t, x, q, k, v, g, AttentionOpt{Mask: mask, Dropout: p, GroupedHeads: true}, false)
					}
					got, want := run(mask), run(x.Contiguous(x.Expand(mask, b, 1, c.n, c.s)))
					for i, name := range []string{"y", "dq", "dk", "dv"} {
						for j, w := range want[i] {
							if got[i][j] != w {
								t.Fatalf("%v, mask %d, dropout %v: %s %d is %v, want %v", c, m, p, name, j, got[i][j], w)
							}
						}
					}
				}
			}
		}
	})
}

// TestAttentionMaskGrad compares the gradient of a mask that is added, such as a bias that a model learns, with that of float32: of masks
// that broadcast or do not, with lines of any length, hidden keys and dropout, and where further derivatives are recorded.
func TestAttentionMaskGrad(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(21, 22))
		for _, c := range []struct {
			h, kv, n, s, d int
			mask           []int
		}{{3, 3, 49, 49, 32, []int{1, 3, 49, 49}}, {2, 1, 70, 130, 64, []int{70, 130}}, {2, 2, 33, 301, 40, []int{2, 1, 1, 301}},
			{2, 2, 20, 71, 160, []int{2, 2, 20, 71}}, {2, 2, 1, 64, 16, []int{2, 1, 1, 64}}} {
			const b = 2
			for _, p := range []float64{0, 0.25} {
				q, _ := randomOf(x, r, dtype.BFloat16, b, c.h, c.n, c.d)
				k, _ := randomOf(x, r, dtype.BFloat16, b, c.kv, c.s, c.d)
				v, _ := randomOf(x, r, dtype.BFloat16, b, c.kv, c.s, c.d)
				g, _ := randomOf(x, r, dtype.BFloat16, b, c.h, c.n, c.d)
				mask, _ := randomOf(x, r, dtype.BFloat16, c.mask...)
				keys := x.Arange(float64(c.s), dtype.Int64, ArangeOpt{})
				mask = x.MaskedFillS(mask, x.EqS(x.RemainderS(keys, 11), 3), math.Inf(-1))
				run := func(dt dtype.DType, further bool) (all [5][]float64) {
					if err := x.Generator().SetSeed(99); err != nil {
						t.Fatal(err)
					}
					var leaves []*Tensor
					for _, a := range []*Tensor{q, k, v, mask} {
						leaf := x.Clone(x.ToDType(a, dt))
						leaf.SetRequiresGrad(true)
						leaves = append(leaves, leaf)
					}
					opt := AttentionOpt{Mask: leaves[3], Dropout: p, GroupedHeads: true}
					y := x.ScaledDotProductAttention(leaves[0], leaves[1], leaves[2], opt)
					grads, err := x.Grad([]*Tensor{y}, leaves, GradOpt{Gradients: []*Tensor{x.ToDType(g, dt)}, CreateGraph: further})
					if err != nil {
						t.Fatal(err)
					}
					if !infer.Same(grads[3].shape, mask.shape) || !grads[3].IsContiguous() {
						t.Fatalf("the gradient of a mask %v is %v with strides %v", mask.shape, grads[3].shape, grads[3].stride)
					}
					for i, a := range append([]*Tensor{y}, grads...) {
						all[i] = doubles(t, x, a)
					}
					return all
				}
				want := run(dtype.Float32, false)
				for _, further := range []bool{false, true} {
					got := run(dtype.BFloat16, further)
					for i, name := range []string{"y", "dq", "dk", "dv", "dmask"} {
						wantClose(t, fmt.Sprint(c, p, further, name), got[i], want[i], 18.0/256)
					}
				}
			}
		}
	})
}

// TestAttentionKeptScale: with equal scores and values of 1, a query gets the number of weights that are kept over S·(1-p), to the last
// bit.
func TestAttentionKeptScale(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		const keys, p = 64, 0.25
		q := x.Zeros([]int{1, 2, 40, 32}, dtype.Float16)
		ones := x.Ones([]int{1, 2, keys, 32}, dtype.Float16)
		if err := x.Generator().SetSeed(5); err != nil {
			t.Fatal(err)
		}
		got := doubles(t, x, x.ScaledDotProductAttention(q, ones, ones, AttentionOpt{Dropout: p}))
		if err := x.Generator().SetSeed(5); err != nil {
			t.Fatal(err)
		}
		kept := doubles(t, x, x.Sum(x.Dropout(x.Ones([]int{1, 2, 40, keys}, dtype.Float32), p), []int{-1}, SumOpt{}))
		for i, y := range got {
			if want := kept[i/32] / keys; math.Abs(y-want) > want/1024 {
				t.Fatalf("element %d is %v, want %v", i, y, want)
			}
		}
	})
}

// TestAttentionMaskForms: autocast converts a mask that is added, a mask that is learned gets its gradient, one number or size broadcasts,
// and a mask may make the result larger than the queries.
func TestAttentionMaskForms(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(15, 16))
		q, _ := randomOf(x, r, dtype.Float32, 1, 2, 20, 32)
		bias, _ := randomOf(x, r, dtype.Float32, 2, 20, 20)
		want := doubles(t, x, x.ScaledDotProductAttention(q, q, q, AttentionOpt{Mask: bias}))
		half := x.Autocast(dtype.BFloat16).ScaledDotProductAttention(q, q, q, AttentionOpt{Mask: bias})
		if half.dt != dtype.BFloat16 {
			t.Errorf("under autocast the result is %v", half.dt)
		}
		wantClose(t, "autocast", doubles(t, x, half), want, 1.0/32)
		for _, dt := range []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float64} {
			y := x.Autocast(dtype.BFloat16).ScaledDotProductAttention(q, q, q, AttentionOpt{Mask: x.ToDType(bias, dt)})
			wantClose(t, fmt.Sprint("autocast of a mask of ", dt), doubles(t, x, y), want, 1.0/32)
		}
		grads := map[dtype.DType][]float64{}
		for _, dt := range []dtype.DType{dtype.Float64, dtype.BFloat16} {
			leaf := x.ToDType(bias, dt)
			leaf = x.Detach(leaf)
			leaf.SetRequiresGrad(true)
			a := x.ToDType(q, dt)
			y := x.ScaledDotProductAttention(a, a, a, AttentionOpt{Mask: leaf})
			if err := x.Backward(x.Sum(x.Mul(y, y), nil, SumOpt{}), BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			grads[dt] = doubles(t, x, leaf.Grad())
		}
		wantClose(t, "the gradient of a bias", grads[dtype.BFloat16], grads[dtype.Float64], 1.0/32)
		low := x.ToDType(q, dtype.BFloat16)
		plain := doubles(t, x, x.ScaledDotProductAttention(low, low, low, AttentionOpt{}))
		for name, mask := range map[string]*Tensor{
			"one bool": x.Ones(nil, dtype.Bool), "one number": x.Full(nil, 3, dtype.BFloat16), "a column": x.Ones([]int{20, 1}, dtype.Bool),
		} {
			wantClose(t, name, doubles(t, x, x.ScaledDotProductAttention(low, low, low, AttentionOpt{Mask: mask})), plain, 1.0/64)
		}
		none := x.ScaledDotProductAttention(low, low, low, AttentionOpt{Mask: x.Zeros(nil, dtype.Bool)})
		if got := doubles(t, x, x.AMax(x.Abs(none), nil, DimOpt{}))[0]; got != 0 {
			t.Errorf("with everything hidden the result reaches %v", got)
		}
		least := x.Full([]int{1, 20}, -3.3895313892515355e38, dtype.BFloat16) // bfloat16's least number, with which models hide keys
		for _, a := range []*Tensor{low, x.Narrow(low, 2, 0, 5), q} {
			y := x.ScaledDotProductAttention(a, x.ToDType(low, a.dt), x.ToDType(low, a.dt), AttentionOpt{Mask: x.ToDType(least, a.dt)})
			if got := doubles(t, x, x.AMax(x.Abs(y), nil, DimOpt{}))[0]; got != 0 {
				t.Errorf("%d queries of %v, all hidden by the least number, give up to %v", a.shape[2], a.dt, got)
			}
		}
		one := x.Narrow(low, 2, 0, 1)
		for _, s := range [][]int{{20, 5}, {20, 0}, {7, 1}} {
			if err := Try(func() { x.ScaledDotProductAttention(low, one, one, AttentionOpt{Mask: x.Ones(s, dtype.Bool)}) }); err == nil ||
				!strings.Contains(err.Error(), "does not broadcast to the scores, of shape [1 2 20 1]") {
				t.Errorf("a mask of shape %v for one key: %v", s, err)
			}
		}
		more := x.ScaledDotProductAttention(low, low, low, AttentionOpt{Mask: x.Ones([]int{3, 1, 1, 20}, dtype.Bool)})
		if fmt.Sprint(more.shape) != "[3 2 20 32]" {
			t.Errorf("a mask of three batches gives the shape %v", more.shape)
		}
	})
}

// TestAttentionCaptured replays attention and its gradients, and compares the bits with eager execution.
func TestAttentionCaptured(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(9, 10))
		var ts []*Tensor
		for range 4 {
			a, _ := randomOf(x, r, dtype.BFloat16, 1, 2, 70, 64)
			ts = append(ts, a)
		}
		var grads []*Tensor
		run := func(x *Exec) {
			for _, a := range ts[:3] {
				a.SetRequiresGrad(true)
			}
			y := x.ScaledDotProductAttention(ts[0], ts[1], ts[2], AttentionOpt{Causal: true})
			g, err := x.Grad([]*Tensor{y}, ts[:3], GradOpt{Gradients: []*Tensor{ts[3]}})
			if err != nil {
				t.Fatal(err)
			}
			grads = append([]*Tensor{y}, g...)
		}
		run(x)
		var want [][]float64
		for _, g := range grads {
			want = append(want, doubles(t, x, g))
		}
		g, err := x.Capture(run, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			for i, y := range grads {
				got := doubles(t, x, y)
				for j, w := range want[i] {
					if got[j] != w {
						t.Fatalf("result %d of a replay has %v at %d, eager has %v", i, got[j], j, w)
					}
				}
			}
		}
		g.Close()
	})
}

// TestAttentionPacked checks that the gradients of queries, keys and values that are pieces of one tensor come out as one tensor, with the
// same bits as separate ones.
func TestAttentionPacked(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(11, 12))
		const b, n, h, d = 2, 40, 3, 16
		all, _ := randomOf(x, r, dtype.BFloat16, b, n, 3*h*d)
		g, _ := randomOf(x, r, dtype.BFloat16, b, n, h*d)
		run := func(name string, copied bool, order []int) []float64 {
			leaf := x.Detach(all)
			leaf.SetRequiresGrad(true)
			parts := x.Split(leaf, h*d, 2)
			var ts []*Tensor
			for _, i := range order {
				p := parts[i]
				if copied {
					p = x.Contiguous(p)
				}
				ts = append(ts, x.Transpose(x.View(p, b, n, h, d), 1, 2))
			}
			y := x.ScaledDotProductAttention(ts[0], ts[1], ts[2], AttentionOpt{Causal: true})
			launches := x.s.launches
			grads, err := x.Grad([]*Tensor{x.Reshape(x.Transpose(y, 1, 2), b, n, h*d)}, []*Tensor{leaf}, GradOpt{Gradients: []*Tensor{g}})
			if err != nil {
				t.Fatal(err)
			}
			if n := x.s.launches - launches; (n == 3) != (name == "packed") {
				t.Errorf("%s: %d launches", name, n)
			}
			return doubles(t, x, grads[0])
		}
		packed, apart := run("packed", false, []int{0, 1, 2}), run("apart", true, []int{0, 1, 2})
		for i := range packed {
			if packed[i] != apart[i] {
				t.Fatalf("element %d is %v in one tensor and %v apart", i, packed[i], apart[i])
			}
		}
		run("keys first", false, []int{1, 0, 2})
	})
}

// TestSplitGradientIsOwn checks that the caller's gradient is not added to later if its pieces become a leaf's gradient without a copy.
func TestSplitGradientIsOwn(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		leaf := x.Ones([]int{2, 6}, dtype.Float32)
		leaf.SetRequiresGrad(true)
		g := x.Full([]int{2, 6}, 3, dtype.Float32)
		for range 2 {
			if err := x.Backward(x.Cat(x.Split(leaf, 2, 1), 1), BackwardOpt{Gradient: g}); err != nil {
				t.Fatal(err)
			}
		}
		for i, v := range doubles(t, x, leaf.Grad()) {
			if given := doubles(t, x, g)[i]; v != 6 || given != 3 {
				t.Fatalf("element %d of the gradient is %v, and %v of what was given; want 6 and 3", i, v, given)
			}
		}
	})
}
