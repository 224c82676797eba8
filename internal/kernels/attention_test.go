package kernels

import (
	"fmt"
	"math"
	mathbits "math/bits"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// attentionRef computes attention and its gradients in float64. All arrays are [B, H, T, D], flattened; mask, unless it is nil, holds what
// is added to the scores [B, H, T, S], and kept what multiplies the weights.
func attentionRef(q, k, v, g, mask, kept []float64, b, h, kv, t, s, d int, opt AttentionOpt) (out, lse, dq, dk, dv []float64) {
	out, dq = make([]float64, len(q)), make([]float64, len(q))
	dk, dv = make([]float64, len(k)), make([]float64, len(k))
	for n := range b * h {
		m := n/h*kv + n%h/(h/kv)
		K, V, DK, DV := k[m*s*d:(m+1)*s*d], v[m*s*d:(m+1)*s*d], dk[m*s*d:(m+1)*s*d], dv[m*s*d:(m+1)*s*d]
		for i := range t {
			at := (n*t + i) * d
			seen := s
			if opt.Causal {
				seen = min(s, i+1)
			}
			p, top := make([]float64, seen), math.Inf(-1)
			for j := range p {
				for e := range d {
					p[j] += q[at+e] * K[j*d+e] * opt.Scale
				}
				if mask != nil {
					p[j] += mask[(n*t+i)*s+j]
				}
				top = math.Max(top, p[j])
			}
			if math.IsInf(top, -1) {
				lse = append(lse, math.Inf(1))
				continue
			}
			sum := 0.0
			for j := range p {
				p[j] = math.Exp(p[j] - top)
				sum += p[j]
			}
			lse = append(lse, (top+math.Log(sum))*math.Log2E)
			delta := 0.0
			factor := func(j int) float64 {
				if kept == nil {
					return 1
				}
				return kept[(n*t+i)*s+j]
			}
			for j := range p {
				p[j] /= sum
				for e := range d {
					out[at+e] += p[j] * factor(j) * V[j*d+e]
				}
			}
			for e := range d {
				delta += out[at+e] * g[at+e]
			}
			for j := range p {
				dp := 0.0
				for e := range d {
					dp += g[at+e] * factor(j) * V[j*d+e]
					DV[j*d+e] += p[j] * factor(j) * g[at+e]
				}
				ds := p[j] * (dp - delta) * opt.Scale
				for e := range d {
					dq[at+e] += ds * K[j*d+e]
					DK[j*d+e] += ds * q[at+e]
				}
			}
		}
	}
	return out, lse, dq, dk, dv
}

// TestAttention compares attention with float64, forward and backward: sizes that do not fill a tile, heads that share keys, operands that
// do not suit tensor maps, one key, one query.
func TestAttention(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for _, c := range []struct{ b, h, kv, t, s, d int }{
		{1, 1, 1, 1, 1, 16}, {2, 3, 3, 70, 70, 64}, {1, 4, 2, 33, 130, 32}, {2, 4, 1, 129, 65, 16}, {1, 2, 2, 200, 190, 128},
		{1, 2, 2, 1, 300, 64}, {1, 1, 1, 300, 1, 64},
		{1, 5, 5, 600, 520, 16},
		// few queries: in one part or some, for one or more heads of keys, of more rows than a block has
		{2, 8, 2, 1, 700, 128}, {1, 3, 3, 2, 1100, 32}, {1, 6, 2, 5, 200, 64}, {3, 4, 4, 15, 140, 16}, {1, 8, 1, 1, 129, 64},
		{40, 4, 2, 3, 70, 16},
		// vectors that do not fill a tile
		{2, 3, 3, 70, 70, 40}, {1, 2, 1, 70, 100, 8}, {1, 2, 2, 200, 190, 80}, {1, 2, 2, 65, 70, 120}, {1, 4, 2, 1, 700, 80},
		{1, 3, 3, 2, 300, 24}, {1, 6, 2, 5, 200, 104}, {1, 2, 2, 1, 90, 8},
		// and such that need two tiles
		{1, 2, 1, 70, 100, 256}, {1, 2, 2, 130, 190, 160}, {1, 1, 1, 65, 70, 136}, {1, 8, 1, 1, 300, 256}, {1, 4, 2, 2, 700, 200},
	} {
		for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
			for _, causal := range []bool{false, true} {
				t.Run(fmt.Sprint(c, dt, causal), func(t *testing.T) {
					if dt == dtype.Float16 { // two heads of queries form a section
						defer func(n int) { sectionBytes = n }(sectionBytes)
						sectionBytes = 8 * c.d * c.s * c.kv / c.h
					}
					h := newHost(t)
					h.limits.SharedPerBlock = 227 << 10
					opt := AttentionOpt{Scale: 1 / math.Sqrt(float64(c.d)), Causal: causal}
					q := permuted(h.normal(rng, dt, c.b, c.t, c.h, c.d), 0, 2, 1, 3)
					k, v := h.normal(rng, dt, c.b, c.kv, c.s, c.d), permuted(h.normal(rng, dt, c.b, c.kv, c.d, c.s), 0, 1, 3, 2)
					g := h.normal(rng, dt, c.b, c.h, c.t, c.d)
					out, lse := h.empty(dt, c.b, c.h, c.t, c.d), h.empty(dtype.Float32, c.b, c.h, c.t)
					check(t, Attention(h, out, lse, q, k, v, opt))
					dq, dk, dv := permuted(h.empty(dt, c.b, c.t, c.h, c.d), 0, 2, 1, 3), h.empty(dt, c.b, c.kv, c.s, c.d),
						h.empty(dt, c.b, c.kv, c.s, c.d)
					check(t, AttentionBackward(h, dq, dk, dv, g, out, lse, q, k, v, opt))
					wantOut, wantLSE, wantQ, wantK, wantV := attentionRef(h.read(q), h.read(k), h.read(v), h.read(g), nil, nil, c.b, c.h,
						c.kv, c.t, c.s, c.d, opt)
					wantAttention(t, h, dt, [5]Operand{out, lse, dq, dk, dv}, [5][]float64{wantOut, wantLSE, wantQ, wantK, wantV})
				})
			}
		}
	}
}

// wantAttention compares the result, the logarithms and the gradients of queries, keys and values.
func wantAttention(t *testing.T, h *host, dt dtype.DType, got [5]Operand, want [5][]float64) {
	t.Helper()
	unit := 0.008
	if dt == dtype.Float16 {
		unit = 0.001
	}
	for n, eps := range [...]float64{1, 0.01, 3, 3, 1} {
		name, values, scale := [...]string{"out", "lse", "dq", "dk", "dv"}[n], h.read(got[n]), 0.0
		for _, w := range want[n] {
			if !math.IsInf(w, 0) {
				scale = math.Max(scale, math.Abs(w))
			}
		}
		for i, w := range want[n] {
			if e := math.Abs(values[i] - w); values[i] != w && !(e <= eps*unit*(scale+0.02)) {
				t.Fatalf("%s element %d is %g; want %g", name, i, values[i], w)
			}
		}
	}
}

// TestAttentionMask compares attention with masks with float64: masks that say which keys are seen and masks that are added, of all forms,
// some of which hide all keys of a query or all queries of a key.
func TestAttentionMask(t *testing.T) {
	rng := rand.New(rand.NewPCG(35, 36))
	hidden := math.Inf(-1)
	for _, c := range []struct{ b, h, kv, t, s, d int }{
		{1, 1, 1, 1, 1, 16}, {2, 3, 3, 70, 70, 64}, {2, 4, 2, 33, 130, 32}, {2, 2, 1, 129, 65, 16}, {1, 2, 2, 200, 190, 128},
		{1, 2, 2, 1, 300, 64}, {2, 1, 1, 300, 1, 64}, {1, 3, 3, 70, 600, 64},
		{1, 2, 1, 70, 100, 40},
		{2, 8, 2, 1, 700, 128}, {1, 6, 2, 5, 200, 64}, {2, 3, 3, 11, 1100, 16},
	} {
		for _, form := range []struct {
			name   string
			shape  [4]bool // the dimensions that do not broadcast
			across bool    // queries lie innermost
		}{{"keys", [4]bool{true, false, false, true}, false}, {"pairs", [4]bool{false, false, true, true}, false},
			{"all", [4]bool{true, true, true, true}, true}, {"queries", [4]bool{false, true, true, false}, false}} {
			for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
				for _, kind := range []dtype.DType{dtype.Bool, dt} {
					t.Run(fmt.Sprint(c, form.name, dt, kind), func(t *testing.T) {
						h := newHost(t)
						h.limits.SharedPerBlock = 227 << 10
						shape := []int{c.b, c.h, c.t, c.s}
						own, values := append([]int(nil), shape...), []float64(nil)
						for d, on := range form.shape {
							if !on {
								own[d] = 1
							}
						}
						n := own[0] * own[1] * own[2] * own[3]
						for i := range n {
							seen := rng.IntN(3) > 0 && i/own[3]%5 != 2 && i%own[3]%7 != 3
							switch {
							case kind == dtype.Bool && seen:
								values = append(values, 1)
							case kind == dtype.Bool:
								values = append(values, 0)
							case seen:
								values = append(values, float64(rng.IntN(16)-8)/4)
							default:
								values = append(values, hidden)
							}
						}
						mask := h.of(kind, values, own...)
						if form.across {
							mask = permuted(h.of(kind, swapped(values, c.t, c.s), c.b, c.h, c.s, c.t), 0, 1, 3, 2)
						}
						full := make([]float64, c.b*c.h*c.t*c.s)
						for i := range full {
							at := 0
							for d, left := 0, len(full); d < 4; d++ {
								left /= shape[d]
								at = at*own[d] + i/left%shape[d]%own[d]
							}
							full[i] = values[at]
							if kind == dtype.Bool {
								full[i] = 0
								if values[at] == 0 {
									full[i] = hidden
								}
							}
						}
						opt := AttentionOpt{Scale: 1 / math.Sqrt(float64(c.d)), Mask: expanded(mask, shape...)}
						q := permuted(h.normal(rng, dt, c.b, c.t, c.h, c.d), 0, 2, 1, 3)
						k, v := h.normal(rng, dt, c.b, c.kv, c.s, c.d), h.normal(rng, dt, c.b, c.kv, c.s, c.d)
						g := h.normal(rng, dt, c.b, c.h, c.t, c.d)
						out, lse := h.empty(dt, c.b, c.h, c.t, c.d), h.empty(dtype.Float32, c.b, c.h, c.t)
						check(t, Attention(h, out, lse, q, k, v, opt))
						dq, dk, dv := h.empty(dt, c.b, c.h, c.t, c.d), h.empty(dt, c.b, c.kv, c.s, c.d), h.empty(dt, c.b, c.kv, c.s, c.d)
						check(t, AttentionBackward(h, dq, dk, dv, g, out, lse, q, k, v, opt))
						wantOut, wantLSE, wantQ, wantK, wantV := attentionRef(h.read(q), h.read(k), h.read(v), h.read(g), full, nil, c.b,
							c.h, c.kv, c.t, c.s, c.d, opt)
						wantAttention(t, h, dt, [5]Operand{out, lse, dq, dk, dv}, [5][]float64{wantOut, wantLSE, wantQ, wantK, wantV})
					})
				}
			}
		}
	}
}

// TestAttentionDropout compares attention whose weights are dropped with float64, with and without a mask and causal.
func TestAttentionDropout(t *testing.T) {
	rng := rand.New(rand.NewPCG(37, 38))
	for _, c := range []struct{ b, h, kv, t, s, d int }{
		{1, 1, 1, 7, 5, 16}, {2, 3, 3, 70, 70, 64}, {2, 4, 2, 33, 130, 32}, {1, 2, 2, 200, 190, 128}, {1, 3, 3, 70, 600, 64},
		{1, 2, 1, 70, 100, 40},
	} {
		for form := range 3 {
			for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
				t.Run(fmt.Sprint(c, form, dt), func(t *testing.T) {
					h := newHost(t)
					h.limits.SharedPerBlock = 227 << 10
					const p = 0.25
					wide, height := DropoutBitsShape(c.t, c.s)
					bits := h.empty(dtype.Uint32, c.b, c.h, wide, height)
					check(t, DropoutBits(h, p, bits, c.t, c.s, Philox{Seed: 7, Offset: 8}))
					kept, words := make([]float64, c.b*c.h*c.t*c.s), h.read(bits)
					for i := range kept {
						head, row, j := i/c.s/c.t, i/c.s%c.t, i%c.s
						if uint32(words[(head*wide+j/32)*height+row])>>(j%32)&1 != 0 {
							kept[i] = 1 / (1 - p)
						}
					}
					opt := AttentionOpt{Scale: 1 / math.Sqrt(float64(c.d)), Kept: bits, KeptScale: 1 / (1 - p), Causal: form == 1}
					var full []float64
					if form == 2 {
						var seen []float64
						for i := range c.b * c.s {
							seen = append(seen, float64(i*7%5&1))
						}
						opt.Mask = expanded(h.of(dtype.Bool, seen, c.b, 1, 1, c.s), c.b, c.h, c.t, c.s)
						for i := range kept {
							full = append(full, math.Log(seen[i/(c.h*c.t*c.s)*c.s+i%c.s]))
						}
					}
					q, g := h.normal(rng, dt, c.b, c.h, c.t, c.d), h.normal(rng, dt, c.b, c.h, c.t, c.d)
					k, v := h.normal(rng, dt, c.b, c.kv, c.s, c.d), h.normal(rng, dt, c.b, c.kv, c.s, c.d)
					out, lse := h.empty(dt, c.b, c.h, c.t, c.d), h.empty(dtype.Float32, c.b, c.h, c.t)
					check(t, Attention(h, out, lse, q, k, v, opt))
					dq, dk, dv := h.empty(dt, c.b, c.h, c.t, c.d), h.empty(dt, c.b, c.kv, c.s, c.d), h.empty(dt, c.b, c.kv, c.s, c.d)
					check(t, AttentionBackward(h, dq, dk, dv, g, out, lse, q, k, v, opt))
					wantOut, wantLSE, wantQ, wantK, wantV := attentionRef(h.read(q), h.read(k), h.read(v), h.read(g), full, kept, c.b, c.h,
						c.kv, c.t, c.s, c.d, opt)
					wantAttention(t, h, dt, [5]Operand{out, lse, dq, dk, dv}, [5][]float64{wantOut, wantLSE, wantQ, wantK, wantV})
				})
			}
		}
	}
}

// TestDropoutBits compares the bits with the mask of Dropout: rows that fill words and steps of a thread or do not, and more elements than
// threads take in a step.
func TestDropoutBits(t *testing.T) {
	for _, c := range [][3]int{{1, 1, 1}, {1, 3, 7}, {2, 1, 7}, {5, 1, 32}, {2, 2, 33}, {1, 2, 50}, {2, 35, 64}, {3, 2, 100}, {8, 125, 129},
		{7, 43, 200}, {6, 150, 66}} {
		for _, captured := range []bool{false, true} {
			h := newHost(t)
			h.limits.Multiprocessors, h.limits.MaxThreadsPerSM = 2, 512
			if captured {
				h.index32 = 1
			}
			heads, rows, length := c[0], c[1], c[2]
			ph := Philox{Seed: 1234567890123, Offset: 12}
			if captured {
				state := h.of(dtype.Int64, []float64{42, 16}, 2)
				ph = Philox{SeedPtr: state.Ptr, OffsetPtr: state.Ptr + 8, Offset: 4}
			}
			in := h.of(dtype.Float32, make([]float64, heads*rows*length), heads, rows, length)
			out := h.empty(dtype.Float32, heads, rows, length)
			wide, height := DropoutBitsShape(rows, length)
			mask, bits := h.empty(dtype.Bool, heads, rows, length), h.empty(dtype.Uint32, 1, heads, wide, height)
			check(t, Dropout(h, dtype.Float32, 0.3, out, mask, in, ph))
			check(t, DropoutBits(h, 0.3, bits, rows, length, ph))
			words := h.read(bits)
			kept, ones := h.read(mask), 0.0
			for i, want := range kept {
				head, row, j := i/length/rows, i/length%rows, i%length
				if got := float64(uint32(words[(head*wide+j/32)*height+row]) >> (j % 32) & 1); got != want {
					t.Fatalf("%v: element %d is %v, want %v", c, i, got, want)
				}
				ones += want
			}
			for _, w := range words {
				ones -= float64(mathbits.OnesCount32(uint32(w)))
			}
			if ones != 0 {
				t.Errorf("%v: there are bits beyond the rows", c)
			}
		}
	}
}

// swapped returns matrices of rows by cols with rows and columns swapped.
func swapped(values []float64, rows, cols int) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		at := i % (rows * cols)
		out[i-at+at%cols*rows+at/cols] = v
	}
	return out
}

// TestAttentionUnseenKeys checks that a NaN in the sum of the last query leaves the gradients of keys that no query sees at 0, although the
// last tile of queries has rows beyond it.
func TestAttentionUnseenKeys(t *testing.T) {
	const queries, keys, width = 70, 130, 64
	h, rng, dt := newHost(t), rand.New(rand.NewPCG(33, 34)), dtype.BFloat16
	h.limits.SharedPerBlock = 227 << 10
	opt := AttentionOpt{Scale: 0.1, Causal: true}
	q, k, v := h.normal(rng, dt, 1, 1, queries, width), h.normal(rng, dt, 1, 1, keys, width), h.normal(rng, dt, 1, 1, keys, width)
	g, out, lse := h.normal(rng, dt, 1, 1, queries, width), h.empty(dt, 1, 1, queries, width), h.empty(dtype.Float32, 1, 1, queries)
	check(t, Attention(h, out, lse, q, k, v, opt))
	sums := h.read(lse)
	sums[queries-1] = math.NaN()
	lse = h.of(dtype.Float32, sums, 1, 1, queries)
	dq, dk, dv := h.empty(dt, 1, 1, queries, width), h.empty(dt, 1, 1, keys, width), h.empty(dt, 1, 1, keys, width)
	check(t, AttentionBackward(h, dq, dk, dv, g, out, lse, q, k, v, opt))
	for name, got := range map[string][]float64{"dk": h.read(dk), "dv": h.read(dv)} {
		for i, x := range got {
			if seen := i/width < queries; seen != math.IsNaN(x) || !seen && x != 0 {
				t.Fatalf("%s of key %d is %g", name, i/width, x)
			}
		}
	}
}

// TestAttentionSpans compares masks of padding, whose hidden tiles are left out, with equal masks that have a row for each query: all bits
// are the same. Texts end or begin somewhere, have gaps, one word or none.
func TestAttentionSpans(t *testing.T) {
	rng := rand.New(rand.NewPCG(39, 40))
	for _, c := range []struct{ h, kv, t, s, d int }{{2, 2, 70, 256, 64}, {4, 2, 33, 330, 40}, {1, 1, 300, 300, 80},
		{1, 1, 65, 1100, 64}} {
		spans := [][2]int{{0, c.s}, {0, 77}, {c.s - 130, c.s}, {100, 200}, {0, 0}, {64, 128}, {c.s - 1, c.s}, {0, 256}}
		const gaps = 6 // the last two have gaps
		seen := make([]float64, len(spans)*c.s)
		for b, span := range spans {
			for j := span[0]; j < span[1]; j++ {
				if b < gaps || j%9 != 5 {
					seen[b*c.s+j] = 1
				}
			}
		}
		for _, dt := range []dtype.DType{dtype.Bool, dtype.BFloat16} {
			for _, drop := range []bool{false, true} {
				t.Run(fmt.Sprint(c, dt, drop), func(t *testing.T) {
					h := newHost(t)
					h.limits.SharedPerBlock = 227 << 10
					mask := seen
					if dt != dtype.Bool {
						mask = nil
						for _, s := range seen {
							mask = append(mask, math.Log(s))
						}
					}
					b := len(spans)
					opt := AttentionOpt{Scale: 0.2, Mask: expanded(h.of(dt, mask, b, 1, 1, c.s), b, c.h, c.t, c.s)}
					if drop {
						words, height := DropoutBitsShape(c.t, c.s)
						opt.Kept, opt.KeptScale = h.empty(dtype.Uint32, b, c.h, words, height), 4./3
						check(t, DropoutBits(h, 0.25, opt.Kept, c.t, c.s, Philox{Seed: 3}))
					}
					bf := dtype.BFloat16
					q, g := h.normal(rng, bf, b, c.h, c.t, c.d), h.normal(rng, bf, b, c.h, c.t, c.d)
					k, v := h.normal(rng, bf, b, c.kv, c.s, c.d), h.normal(rng, bf, b, c.kv, c.s, c.d)
					run := func(opt AttentionOpt) (all [5]Operand) {
						out, lse := h.empty(bf, b, c.h, c.t, c.d), h.empty(dtype.Float32, b, c.h, c.t)
						check(t, Attention(h, out, lse, q, k, v, opt))
						dq, dk, dv := h.empty(bf, b, c.h, c.t, c.d), h.empty(bf, b, c.kv, c.s, c.d), h.empty(bf, b, c.kv, c.s, c.d)
						check(t, AttentionBackward(h, dq, dk, dv, g, out, lse, q, k, v, opt))
						return [5]Operand{out, lse, dq, dk, dv}
					}
					h.launches = 0
					got := run(opt)
					n := h.launches
					opt.Mask = h.of(dt, h.read(opt.Mask), opt.Mask.Shape...)
					want := run(opt)
					if more := 2*n - h.launches; more != 2 {
						t.Errorf("the spans took %d launches, want 2", more)
					}
					for i := range got {
						a, b := h.read(got[i]), h.read(want[i])
						for j := range a {
							if math.Float64bits(a[j]) != math.Float64bits(b[j]) {
								t.Fatalf("result %d: element %d is %g, want %g", i, j, a[j], b[j])
							}
						}
					}
				})
			}
		}
	}
}

// TestFewQueriesInfiniteKey: an infinite element at the end of a key whose vector does not fill the lanes makes its score infinite, not
// NaN.
func TestFewQueriesInfiniteKey(t *testing.T) {
	for _, width := range []int{8, 40, 64, 200} {
		h, dt := newHost(t), dtype.BFloat16
		q, k, v := make([]float64, width), make([]float64, 2*width), make([]float64, 2*width)
		for i := range q {
			q[i], v[i], v[width+i] = -1, 2, 3
		}
		k[width-1] = math.Inf(1)
		h.limits.SharedPerBlock = 227 << 10
		out, lse := h.empty(dt, 1, 1, 1, width), h.empty(dtype.Float32, 1, 1, 1)
		check(t, Attention(h, out, lse, h.of(dt, q, 1, 1, 1, width), h.of(dt, k, 1, 1, 2, width), h.of(dt, v, 1, 1, 2, width),
			AttentionOpt{Scale: 1}))
		for i, y := range h.read(out) {
			if y != 3 {
				t.Fatalf("width %d: element %d is %g, want that of the other key, 3", width, i, y)
			}
		}
	}
}
