// Package gpt2 is the language model GPT-2 with its training step and decoder, written as a user of nn and optim would write them. Tests
// and benchmarks of whole programs run it. Its weights are random.
package gpt2

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// Config is the size of a model.
type Config struct {
	// Layers is the number of blocks, Heads the number of heads in each, Width the length of a token's vector.
	Layers, Heads, Width int
	// Vocabulary is the number of tokens, Context the greatest number of positions.
	Vocabulary, Context int
}

// Base is the model of 124 million parameters. Its vocabulary of 50,257 tokens is padded to 50,304, a multiple of 128.
func Base() Config {
	return Config{Layers: 12, Heads: 12, Width: 768, Vocabulary: 50304, Context: 1024}
}

// Small is a model for the simulator.
func Small() Config { return Config{Layers: 2, Heads: 2, Width: 32, Vocabulary: 97, Context: 16} }

// Model maps tokens to the logits of the tokens that follow them.
type Model struct {
	// Tokens and Positions are the tables whose sum enters the first block. Tokens is the last layer's weight too.
	Tokens    *nn.Embedding `torch:"wte"`
	Positions *nn.Embedding `torch:"wpe"`
	// Blocks run one after the other, and Norm after them.
	Blocks []*Block      `torch:"h"`
	Norm   *nn.LayerNorm `torch:"ln_f"`

	config Config
}

// Block adds to each position the outputs of its attention and its perceptron.
type Block struct {
	// AttentionNorm and MLPNorm come before each.
	AttentionNorm *nn.LayerNorm `torch:"ln_1"`
	// QKV computes queries, keys and values, and Out combines the outputs of the heads.
	QKV     *nn.Linear    `torch:"attn.c_attn"`
	Out     *nn.Linear    `torch:"attn.c_proj"`
	MLPNorm *nn.LayerNorm `torch:"ln_2"`
	// MLP is a layer four times as wide with GELU, and one back.
	MLP nn.Sequential `torch:"mlp"`

	heads int
}

// New returns a model whose weights x's generator draws.
func New(x *tenon.Exec, c Config) *Model {
	norm := func() *nn.LayerNorm { return nn.NewLayerNorm(x, []int{c.Width}) }
	linear := func(in, out int) *nn.Linear {
		l := nn.NewLinear(x, in, out)
		nn.InitNormal(x, l.Weight.Tensor(), 0, 0.02)
		nn.InitConstant(x, l.Bias.Tensor(), 0)
		return l
	}
	table := func(count int) *nn.Embedding {
		e := nn.NewEmbedding(x, count, c.Width)
		nn.InitNormal(x, e.Weight.Tensor(), 0, 0.02)
		return e
	}
	m := &Model{Tokens: table(c.Vocabulary), Positions: table(c.Context), Norm: norm(), config: c}
	for range c.Layers {
		m.Blocks = append(m.Blocks, &Block{
			AttentionNorm: norm(), QKV: linear(c.Width, 3*c.Width), Out: linear(c.Width, c.Width), MLPNorm: norm(),
			MLP:   nn.Sequential{linear(c.Width, 4*c.Width), nn.GELU{Tanh: true}, linear(4*c.Width, c.Width)},
			heads: c.Heads,
		})
	}
	return m
}

// attend computes a block's attention from queries, keys and values, each [B, H, T, D], to a result with the queries' shape.
type attend func(x *tenon.Exec, block int, q, k, v *tenon.Tensor) *tenon.Tensor

// forward maps tokens [B, T] at positions [T] to logits [B, T, V].
func (m *Model) forward(x *tenon.Exec, tokens, positions *tenon.Tensor, f attend) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := x.Add(m.Tokens.Forward(x, tokens), m.Positions.Forward(x, positions))
		for i, b := range m.Blocks {
			h = x.Add(h, b.attention(x, b.AttentionNorm.Forward(x, h), func(x *tenon.Exec, q, k, v *tenon.Tensor) *tenon.Tensor {
				return f(x, i, q, k, v)
			}))
			h = x.Add(h, b.MLP.Forward(x, b.MLPNorm.Forward(x, h)))
		}
		return x.Linear(m.Norm.Forward(x, h), m.Tokens.Weight.Tensor(), nil)
	})
}

func (b *Block) attention(x *tenon.Exec, in *tenon.Tensor, f func(x *tenon.Exec, q, k, v *tenon.Tensor) *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		batch, length, width := in.Size(0), in.Size(1), in.Size(2)
		parts := x.Split(b.QKV.Forward(x, in), width, 2)
		for i, p := range parts {
			parts[i] = x.Transpose(x.View(p, batch, length, b.heads, width/b.heads), 1, 2)
		}
		y := f(x, parts[0], parts[1], parts[2])
		return b.Out.Forward(x, x.Reshape(x.Transpose(y, 1, 2), batch, length, width))
	})
}

// Loss returns the mean cross-entropy of the tokens want that follow those of tokens, both [B, T].
func (m *Model) Loss(x *tenon.Exec, tokens, want *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		positions := x.Arange(float64(tokens.Size(1)), tenon.Int64)
		logits := m.forward(x, tokens, positions, func(x *tenon.Exec, _ int, q, k, v *tenon.Tensor) *tenon.Tensor {
			return x.ScaledDotProductAttention(q, k, v, tenon.AttentionOpt{Causal: true})
		})
		return x.CrossEntropy(x.Flatten(logits, 0, 1), x.Flatten(want, 0, 1))
	})
}
