package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// attentionRef computes attention and its gradients in float64. All arrays are [B, H, T, D], flattened.
func attentionRef(q, k, v, g []float64, b, h, kv, t, s, d int, opt AttentionOpt) (out, lse, dq, dk, dv []float64) {
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
				top = math.Max(top, p[j])
			}
			sum := 0.0
			for j := range p {
				p[j] = math.Exp(p[j] - top)
				sum += p[j]
			}
			lse = append(lse, (top+math.Log(sum))*math.Log2E)
			delta := 0.0
			for j := range p {
				p[j] /= sum
				for e := range d {
					out[at+e] += p[j] * V[j*d+e]
				}
			}
			for e := range d {
				delta += out[at+e] * g[at+e]
			}
			for j := range p {
				dp := 0.0
				for e := range d {
					dp += g[at+e] * V[j*d+e]
					DV[j*d+e] += p[j] * g[at+e]
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
					wantOut, wantLSE, wantQ, wantK, wantV := attentionRef(h.read(q), h.read(k), h.read(v), h.read(g), c.b, c.h, c.kv,
						c.t, c.s, c.d, opt)
					for _, x := range []struct {
						name string
						got  Operand
						want []float64
						eps  float64
					}{{"out", out, wantOut, 1}, {"lse", lse, wantLSE, 0.01}, {"dq", dq, wantQ, 3}, {"dk", dk, wantK, 3},
						{"dv", dv, wantV, 1}} {
						got, scale := h.read(x.got), 0.0
						for _, w := range x.want {
							scale = math.Max(scale, math.Abs(w))
						}
						unit := 0.008
						if dt == dtype.Float16 {
							unit = 0.001
						}
						for i, w := range x.want {
							if e := math.Abs(got[i] - w); !(e <= x.eps*unit*(scale+0.02)) {
								t.Fatalf("%s element %d is %g; want %g", x.name, i, got[i], w)
							}
						}
					}
				})
			}
		}
	}
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
