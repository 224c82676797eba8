package bench

import (
	"fmt"
	"testing"

	"tenon.dev"
)

// TestAttention measures attention in bfloat16, forward and backward. Floating-point operations are counted as those of two products
// forward and five backward, half of that if causal. The longest sequences come last, since they lower the device's clock for a while.
func TestAttention(t *testing.T) {
	x := onGPU(t)
	for _, c := range []struct {
		b, h, t, d int
		causal     bool
	}{{8, 12, 1024, 64, true}, {4, 16, 2048, 64, false}, {8, 16, 1024, 80, false}, {2, 8, 1024, 160, false}, {2, 8, 2048, 256, true},
		{4, 32, 4096, 128, true}} {
		x.Scope(func(x *tenon.Exec) {
			name := fmt.Sprintf("%dx%dx%dx%d", c.b, c.h, c.t, c.d)
			work := 4 * float64(c.b*c.h*c.t) * float64(c.t*c.d)
			if c.causal {
				name, work = name+".causal", work/2
			}
			var ts [4]*tenon.Tensor
			for i := range ts {
				ts[i] = x.NoGrad().Transpose(x.NoGrad().RandN([]int{c.b, c.t, c.h, c.d}, tenon.BFloat16), 1, 2)
			}
			attend := func(x *tenon.Exec) *tenon.Tensor {
				return x.ScaledDotProductAttention(ts[0], ts[1], ts[2], tenon.AttentionOpt{Causal: c.causal})
			}
			rate := func(name string, products float64, f func(x *tenon.Exec)) {
				const inner = 10
				values := perRun(timed(t, x, 10, repeated(inner, func(x *tenon.Exec) { x.Scope(f) })), inner)
				for i, ms := range values {
					values[i] = work * products / 2 / ms / 1e9
				}
				recordFigure(name, "TFLOP/s", values)
			}
			rate("attention."+name, 2, func(x *tenon.Exec) { attend(x.NoGrad()) })
			leaves := ts[:3]
			for _, a := range leaves {
				a.SetRequiresGrad(true)
			}
			y := attend(x)
			rate("attention.backward."+name, 5, func(x *tenon.Exec) {
				if _, err := x.Grad([]*tenon.Tensor{y}, leaves, tenon.GradOpt{Gradients: []*tenon.Tensor{ts[3]},
					RetainGraph: true}); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestMaskedAttention measures attention as BERT trains it, forward and backward: under a mask that hides what fills up a batch of texts of
// 512, 320 and 136 words, with dropout, with both, and with a bias for each pair that is learned as in T5.
func TestMaskedAttention(t *testing.T) {
	x := onGPU(t)
	const b, h, n, d, inner = 32, 12, 512, 64, 10
	var ts [4]*tenon.Tensor
	for i := range ts {
		ts[i] = x.NoGrad().Transpose(x.NoGrad().RandN([]int{b, n, h, d}, tenon.BFloat16), 1, 2)
	}
	lengths := make([]int64, b)
	for i := range lengths {
		lengths[i] = []int64{512, 320, 136}[i%3]
	}
	padding := x.Lt(x.Arange(n, tenon.Int64), tenon.From(x, lengths, b, 1, 1, 1))
	bias := x.NoGrad().RandN([]int{1, h, n, n}, tenon.BFloat16).SetRequiresGrad(true)
	for _, c := range []struct {
		name string
		opt  tenon.AttentionOpt
	}{{"none", tenon.AttentionOpt{}}, {"bias", tenon.AttentionOpt{Mask: bias}}, {"padding", tenon.AttentionOpt{Mask: padding}},
		{"dropout", tenon.AttentionOpt{Dropout: 0.1}}, {"both", tenon.AttentionOpt{Mask: padding, Dropout: 0.1}}} {
		measure := func(name string, f func(x *tenon.Exec)) {
			runs := timed(t, x, 10, repeated(inner, func(x *tenon.Exec) { x.Scope(f) }))
			recordFigure("attention.bert."+name+c.name, "ms", perRun(runs, inner))
		}
		attend := func(x *tenon.Exec) *tenon.Tensor { return x.ScaledDotProductAttention(ts[0], ts[1], ts[2], c.opt) }
		measure("", func(x *tenon.Exec) { attend(x.NoGrad()) })
		leaves := ts[:3:3]
		for _, a := range leaves {
			a.SetRequiresGrad(true)
		}
		if c.opt.Mask == bias {
			leaves = append(leaves, bias)
		}
		y := attend(x)
		measure("backward.", func(x *tenon.Exec) {
			opt := tenon.GradOpt{Gradients: []*tenon.Tensor{ts[3]}, RetainGraph: true}
			if _, err := x.Grad([]*tenon.Tensor{y}, leaves, opt); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestFewQueries measures attention of one query to the caches of a model that writes text, under a mask that hides the last keys, each
// repeated in a graph.
func TestFewQueries(t *testing.T) {
	x := onGPU(t).NoGrad()
	const calls = 20
	for _, c := range []struct{ b, h, kv, s, d int }{{1, 12, 12, 1024, 64}, {1, 32, 8, 8192, 128}, {32, 32, 8, 2048, 128}} {
		x.Scope(func(x *tenon.Exec) {
			q := x.RandN([]int{c.b, c.h, 1, c.d}, tenon.BFloat16)
			k, v := x.RandN([]int{c.b, c.kv, c.s, c.d}, tenon.BFloat16), x.RandN([]int{c.b, c.kv, c.s, c.d}, tenon.BFloat16)
			visible := x.LtS(x.Arange(float64(c.s), tenon.Int64), float64(c.s-5))
			opt := tenon.AttentionOpt{Mask: visible, GroupedHeads: true}
			s := replayed(t, x, calls, func(x *tenon.Exec, _ int) { x.ScaledDotProductAttention(q, k, v, opt) })
			recordFigure(fmt.Sprintf("attention.few.%dx%dx%dx%dx%d", c.b, c.h, c.kv, c.s, c.d), "µs", microseconds(s, calls))
		})
	}
}
