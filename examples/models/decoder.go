package main

import (
	"math"

	"tenon.dev"
	"tenon.dev/nn"
)

// layer is a layer of a decoder with Llama's parts, which finds the keys and values of earlier tokens in its cache.
type layer struct {
	Norm1, Norm2   *nn.RMSNorm
	Q, K, V, O     *nn.Linear
	Gate, Up, Down *nn.Linear

	keys, values *tenon.Tensor // [1, key heads, context, width of a head]
}

// place is the position of a token [1], its rotation, and the keys that it sees.
type place struct{ at, cos, sin, visible *tenon.Tensor }

// rotate rotates the pairs of t by the angles of the place.
func (p place) rotate(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
	half := x.Chunk(t, 2, -1)
	re := x.Sub(x.Mul(half[0], p.cos), x.Mul(half[1], p.sin))
	return x.Cat([]*tenon.Tensor{re, x.Add(x.Mul(half[1], p.cos), x.Mul(half[0], p.sin))}, -1)
}

func (l *layer) forward(x *tenon.Exec, in *tenon.Tensor, p place) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := l.Norm1.Forward(x, in)
		heads := func(m *nn.Linear) *tenon.Tensor {
			return x.Transpose(x.Unflatten(m.Forward(x, h), -1, -1, l.keys.Size(-1)), 1, 2)
		}
		x.IndexCopyInto(l.keys, l.keys, 2, p.at, p.rotate(x, heads(l.K)))
		x.IndexCopyInto(l.values, l.values, 2, p.at, heads(l.V))
		y := x.ScaledDotProductAttention(p.rotate(x, heads(l.Q)), l.keys, l.values,
			tenon.AttentionOpt{Mask: p.visible, GroupedHeads: true})
		out := x.Add(in, l.O.Forward(x, x.Flatten(x.Transpose(y, 1, 2), 2, 3)))
		h = l.Norm2.Forward(x, out)
		return x.Add(out, l.Down.Forward(x, x.Mul(x.SiLU(l.Gate.Forward(x, h)), l.Up.Forward(x, h))))
	})
}

// decoder replaces the token at position 30 by the one that most likely follows it, again and again.
func decoder(x *tenon.Exec, small bool) ([]work, error) {
	width, heads, keyHeads, hidden, layers, vocab, context := 2048, 32, 8, 8192, 16, 128256, 2048
	if small {
		width, heads, keyHeads, hidden, layers, vocab, context = 64, 8, 2, 128, 2, 100, 64
	}
	x = x.NoGrad()
	const dtype = tenon.BFloat16
	headWidth := width / heads
	linear := func(in, out int) *nn.Linear {
		return nn.NewLinear(x, in, out, nn.LinearOpt{NoBias: true, DType: dtype})
	}
	norm := func() *nn.RMSNorm { return nn.NewRMSNorm(x, []int{width}, nn.NormOpt{Eps: 1e-5, DType: dtype}) }
	cache := func() *tenon.Tensor { return x.Zeros([]int{1, keyHeads, context, headWidth}, dtype) }
	embed, last := nn.NewEmbedding(x, vocab, width, nn.EmbeddingOpt{DType: dtype}), norm()
	var all []*layer
	for range layers {
		all = append(all, &layer{norm(), norm(), linear(width, width), linear(width, keyHeads*headWidth), linear(width, keyHeads*headWidth),
			linear(width, width), linear(width, hidden), linear(width, hidden), linear(hidden, width), cache(), cache()})
	}
	pairs, positions := x.Arange(float64(headWidth/2), tenon.Float32), x.Arange(float64(context), tenon.Int64)
	speeds := x.Exp(x.MulS(pairs, -2*math.Log(500000)/float64(headWidth)))
	angles := x.Outer(x.ToDType(positions, tenon.Float32), speeds)
	cos, sin := x.ToDType(x.Cos(angles), dtype), x.ToDType(x.Sin(angles), dtype)
	token, at := x.Zeros([]int{1, 1}, tenon.Int64), x.Full([]int{1}, 30, tenon.Int64)
	scores := x.Zeros([]int{1, 1, vocab}, dtype)
	return []work{{"decoder, one token", scores, func(x *tenon.Exec) error {
		x = x.NoGrad()
		p := place{at, x.Index(cos, at), x.Index(sin, at), x.Le(positions, at)}
		h := embed.Forward(x, token)
		for _, l := range all {
			h = l.forward(x, h, p)
		}
		x.CopyInto(scores, x.Linear(last.Forward(x, h), embed.Weight.Tensor(), nil))
		x.CopyInto(token, x.ArgMax(scores, []int{-1}))
		return nil
	}}}, nil
}
