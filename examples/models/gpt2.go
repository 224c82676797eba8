package main

import (
	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// block is a layer of GPT-2.
type block struct {
	Norm1    *nn.LayerNorm
	QKV, Out *nn.Linear
	MLP      nn.Sequential

	heads int
}

func (b *block) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		parts := x.Unflatten(b.QKV.Forward(x, b.Norm1.Forward(x, in)), -1, 3, b.heads, -1) // [batch, time, 3, heads, width of a head]
		qkv := x.Unbind(x.Permute(parts, 2, 0, 3, 1, 4), 0)
		y := x.ScaledDotProductAttention(qkv[0], qkv[1], qkv[2], tenon.AttentionOpt{Causal: true})
		h := x.Add(in, b.Out.Forward(x, x.Flatten(x.Transpose(y, 1, 2), 2, 3)))
		return x.Add(h, b.MLP.Forward(x, h))
	})
}

// gpt2 trains GPT-2 on random tokens.
func gpt2(x *tenon.Exec, small bool) ([]work, error) {
	vocab, width, heads, layers, context, batch := 50304, 768, 12, 12, 1024, 8
	if small {
		vocab, width, heads, layers, context, batch = 100, 32, 2, 2, 16, 2
	}
	norm := func() *nn.LayerNorm { return nn.NewLayerNorm(x, []int{width}) }
	tokens, positions := nn.NewEmbedding(x, vocab, width), nn.NewEmbedding(x, context, width)
	var blocks nn.Sequential
	for range layers {
		blocks = append(blocks, &block{norm(), nn.NewLinear(x, width, 3*width), nn.NewLinear(x, width, width), nn.Sequential{
			norm(), nn.NewLinear(x, width, 4*width), nn.GELU{Tanh: true}, nn.NewLinear(x, 4*width, width)}, heads})
	}
	body := append(blocks, norm(), &nn.Linear{Weight: tokens.Weight})
	opt, err := optim.NewAdamW(nn.Params([]nn.Module{tokens, positions, body}), optim.AdamOpt{LR: 3e-4})
	draw := func(shape ...int) *tenon.Tensor { return x.RandInt(int64(vocab), shape, tenon.Int64) }
	in, want := draw(batch, context), draw(batch*context)
	numbers := x.Arange(float64(context), tenon.Int64)
	return []work{training(x, "gpt2, training", opt, func(x *tenon.Exec) *tenon.Tensor {
		logits := body.Forward(x, x.Add(tokens.Forward(x, in), positions.Forward(x, numbers)))
		return x.CrossEntropy(x.Flatten(logits, 0, 1), want)
	})}, err
}
