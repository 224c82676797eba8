package main

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// config is the size of a GPT.
type config struct {
	vocab, context, width, heads, layers int
	dropout                              float64
	recompute                            bool // blocks keep only their inputs for the backward pass, which runs them again
}

type attention struct {
	QKV  *nn.Linear `torch:"c_attn"`
	Proj *nn.Linear `torch:"c_proj"`

	heads int
}

func (a *attention) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		batch, time, width := in.Size(0), in.Size(1), in.Size(2)
		qkv := x.View(a.QKV.Forward(x, in), batch, time, 3, a.heads, width/a.heads)
		parts := x.Unbind(x.Permute(qkv, 2, 0, 3, 1, 4), 0) // three of [batch, heads, time, width/heads]
		out := x.ScaledDotProductAttention(parts[0], parts[1], parts[2], tenon.AttentionOpt{Causal: true})
		return a.Proj.Forward(x, x.Reshape(x.Transpose(out, 1, 2), batch, time, width))
	})
}

type block struct {
	Norm1     *nn.LayerNorm `torch:"ln_1"`
	Attention *attention    `torch:"attn"`
	Norm2     *nn.LayerNorm `torch:"ln_2"`
	MLP       nn.Sequential `torch:"mlp"`
	Dropout   *nn.Dropout
}

func newBlock(x *tenon.Exec, c config) *block {
	return &block{
		Norm1:     nn.NewLayerNorm(x, []int{c.width}),
		Attention: &attention{QKV: nn.NewLinear(x, c.width, 3*c.width), Proj: nn.NewLinear(x, c.width, c.width), heads: c.heads},
		Norm2:     nn.NewLayerNorm(x, []int{c.width}),
		MLP:       nn.Sequential{nn.NewLinear(x, c.width, 4*c.width), nn.GELU{}, nn.NewLinear(x, 4*c.width, c.width)},
		Dropout:   nn.NewDropout(c.dropout),
	}
}

func (b *block) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := x.Add(in, b.Dropout.Forward(x, b.Attention.Forward(x, b.Norm1.Forward(x, in))))
		return x.Add(h, b.Dropout.Forward(x, b.MLP.Forward(x, b.Norm2.Forward(x, h))))
	})
}

type gpt struct {
	Tokens    *nn.Embedding `torch:"wte"`
	Positions *nn.Embedding `torch:"wpe"`
	Blocks    []*block      `torch:"h"`
	Norm      *nn.LayerNorm `torch:"ln_f"`
	Head      *nn.Linear    `torch:"lm_head"`

	config config
}

func newGPT(x *tenon.Exec, c config) *gpt {
	m := &gpt{
		Tokens:    nn.NewEmbedding(x, c.vocab, c.width),
		Positions: nn.NewEmbedding(x, c.context, c.width),
		Norm:      nn.NewLayerNorm(x, []int{c.width}),
		config:    c,
	}
	for range c.layers {
		m.Blocks = append(m.Blocks, newBlock(x, c))
	}
	m.Head = &nn.Linear{Weight: m.Tokens.Weight} // the two share their weight
	for _, p := range nn.Params(m) {
		if p.Tensor().Dim() > 1 {
			nn.InitNormal(x, p.Tensor(), 0, 0.02)
		}
	}
	return m
}

// Forward returns the logits [batch, time, vocab] of the tokens that follow each of in [batch, time].
func (m *gpt) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		positions := x.Arange(float64(in.Size(1)), tenon.Int64)
		h := x.Add(m.Tokens.Forward(x, in), m.Positions.Forward(x, positions))
		for _, b := range m.Blocks {
			if m.config.recompute {
				h = nn.Checkpoint(x, b, h)
			} else {
				h = b.Forward(x, h)
			}
		}
		return m.Head.Forward(x, m.Norm.Forward(x, h))
	})
}
