// Package llama is a language model with Llama's parts and its training step, written as a user of nn and optim would write them. Tests and
// benchmarks of whole programs run it. Its weights are random.
package llama

import (
	"math"

	"tenon.dev"
	"tenon.dev/nn"
)

// Config is the size of a model.
type Config struct {
	// Layers is the number of blocks, Heads the number of heads of queries in each, and KeyHeads that of keys and values. Width is the
	// length of a token's vector, and Hidden that of the perceptrons' vectors.
	Layers, Heads, KeyHeads, Width, Hidden int
	// Vocabulary is the number of tokens, Context the greatest number of positions.
	Vocabulary, Context int
}

// Base is a model of 201 million parameters.
func Base() Config {
	return Config{Layers: 12, Heads: 16, KeyHeads: 4, Width: 1024, Hidden: 2816, Vocabulary: 32000, Context: 1024}
}

// Small is a model for the simulator.
func Small() Config {
	return Config{Layers: 2, Heads: 4, KeyHeads: 2, Width: 32, Hidden: 48, Vocabulary: 97, Context: 16}
}

// Model maps tokens to the logits of the tokens that follow them.
type Model struct {
	// Tokens is the table of vectors that enter the first block. Blocks run one after the other, and Norm and Head after them.
	Tokens *nn.Embedding `torch:"embed_tokens"`
	Blocks []*Block      `torch:"layers"`
	Norm   *nn.RMSNorm   `torch:"norm"`
	Head   *nn.Linear    `torch:"lm_head"`
	// Cos and Sin are those of the rotations at all positions [Context, width of a head / 2].
	Cos, Sin *nn.Buffer
}

// Block adds to each position the outputs of its attention and its perceptron.
type Block struct {
	// AttentionNorm and MLPNorm come before each.
	AttentionNorm *nn.RMSNorm `torch:"input_layernorm"`
	// Q, K and V compute queries, keys and values, and Out combines the outputs of the heads.
	Q       *nn.Linear  `torch:"self_attn.q_proj"`
	K       *nn.Linear  `torch:"self_attn.k_proj"`
	V       *nn.Linear  `torch:"self_attn.v_proj"`
	Out     *nn.Linear  `torch:"self_attn.o_proj"`
	MLPNorm *nn.RMSNorm `torch:"post_attention_layernorm"`
	// Down maps the products of what Gate, after SiLU, and Up compute.
	Gate           *nn.Linear `torch:"mlp.gate_proj"`
	Up             *nn.Linear `torch:"mlp.up_proj"`
	Down           *nn.Linear `torch:"mlp.down_proj"`
	heads, keyHead int
}

// New returns a model whose weights x's generator draws.
func New(x *tenon.Exec, c Config) *Model {
	head := c.Width / c.Heads
	linear := func(in, out int) *nn.Linear {
		l := nn.NewLinear(x, in, out, nn.LinearOpt{NoBias: true})
		nn.InitNormal(x, l.Weight.Tensor(), 0, 0.02)
		return l
	}
	norm := func() *nn.RMSNorm { return nn.NewRMSNorm(x, []int{c.Width}, nn.NormOpt{Eps: 1e-5}) }
	m := &Model{Tokens: nn.NewEmbedding(x, c.Vocabulary, c.Width), Norm: norm(), Head: linear(c.Width, c.Vocabulary)}
	nn.InitNormal(x, m.Tokens.Weight.Tensor(), 0, 0.02)
	for range c.Layers {
		m.Blocks = append(m.Blocks, &Block{
			AttentionNorm: norm(), Q: linear(c.Width, c.Width), K: linear(c.Width, c.KeyHeads*head), V: linear(c.Width, c.KeyHeads*head),
			Out: linear(c.Width, c.Width), MLPNorm: norm(), Gate: linear(c.Width, c.Hidden), Up: linear(c.Width, c.Hidden),
			Down: linear(c.Hidden, c.Width), heads: c.Heads, keyHead: c.KeyHeads,
		})
	}
	x.Scope(func(x *tenon.Exec) {
		buffer := func(t *tenon.Tensor) *nn.Buffer { return nn.NewBuffer(x.Keep(t), nn.BufferOpt{NonPersistent: true}) }
		speeds := x.Exp(x.MulS(x.Arange(float64(head/2), tenon.Float32), -2*math.Log(10000)/float64(head)))
		angles := x.Outer(x.Arange(float64(c.Context), tenon.Float32), speeds)
		m.Cos, m.Sin = buffer(x.Cos(angles)), buffer(x.Sin(angles))
	})
	return m
}

// Loss returns the mean cross-entropy of the tokens want that follow those of tokens, both [B, T].
func (m *Model) Loss(x *tenon.Exec, tokens, want *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		cos, sin := x.Narrow(m.Cos.Tensor(), 0, 0, tokens.Size(1)), x.Narrow(m.Sin.Tensor(), 0, 0, tokens.Size(1))
		h := m.Tokens.Forward(x, tokens)
		for _, b := range m.Blocks {
			h = b.forward(x, h, cos, sin)
		}
		logits := m.Head.Forward(x, m.Norm.Forward(x, h))
		return x.CrossEntropy(x.Flatten(logits, 0, 1), x.Flatten(want, 0, 1))
	})
}

func (b *Block) forward(x *tenon.Exec, in, cos, sin *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := b.AttentionNorm.Forward(x, in)
		heads := func(m *nn.Linear, n int) *tenon.Tensor { // [B, heads, T, width of a head]
			return x.Transpose(x.Unflatten(m.Forward(x, h), -1, n, -1), 1, 2)
		}
		q, k, v := rotate(x, heads(b.Q, b.heads), cos, sin), rotate(x, heads(b.K, b.keyHead), cos, sin), heads(b.V, b.keyHead)
		y := x.ScaledDotProductAttention(q, k, v, tenon.AttentionOpt{Causal: true, GroupedHeads: true})
		out := x.Add(in, b.Out.Forward(x, x.Flatten(x.Transpose(y, 1, 2), 2, 3)))
		h = b.MLPNorm.Forward(x, out)
		return x.Add(out, b.Down.Forward(x, x.Mul(x.SiLU(b.Gate.Forward(x, h)), b.Up.Forward(x, h))))
	})
}

// rotate rotates the pairs of t [B, heads, T, D] by the angles of their positions. The result has t's type.
func rotate(x *tenon.Exec, t, cos, sin *tenon.Tensor) *tenon.Tensor {
	half := x.Chunk(t, 2, -1)
	re := x.Sub(x.Mul(half[0], cos), x.Mul(half[1], sin))
	im := x.Add(x.Mul(half[1], cos), x.Mul(half[0], sin))
	return x.ToDType(x.Cat([]*tenon.Tensor{re, im}, -1), t.DType())
}
