package zoo

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// gpt2 is Hugging Face's GPT2LMHeadModel of 124 million parameters. The table of words is the last layer's weight too.
type gpt2 struct {
	following

	Words     *nn.Embedding `torch:"transformer.wte"`
	Positions *nn.Embedding `torch:"transformer.wpe"`
	Blocks    []*gpt2Block  `torch:"transformer.h"`
	Norm      *nn.LayerNorm `torch:"transformer.ln_f"`
}

type gpt2Block struct {
	Norm1 *nn.LayerNorm `torch:"ln_1"`
	QKV   *conv1D       `torch:"attn.c_attn"`
	Out   *conv1D       `torch:"attn.c_proj"`
	Norm2 *nn.LayerNorm `torch:"ln_2"`
	Up    *conv1D       `torch:"mlp.c_fc"`
	Down  *conv1D       `torch:"mlp.c_proj"`
}

// conv1D is Hugging Face's linear layer whose weight is [In, Out].
type conv1D struct {
	Weight *nn.Param `torch:"weight"`
	Bias   *nn.Param `torch:"bias"`
}

const (
	gpt2Words, gpt2Positions = 50257, 1024

	gpt2Width, gpt2Heads, gpt2Blocks = 768, 12, 12
)

func newGPT2(x *tenon.Exec) Network {
	norm := func() *nn.LayerNorm { return nn.NewLayerNorm(x, []int{gpt2Width}) }
	linear := func(in, out int) *conv1D {
		return &conv1D{nn.NewParam(x.Empty([]int{in, out}, tenon.Float32)), nn.NewParam(x.Zeros([]int{out}, tenon.Float32))}
	}
	m := &gpt2{
		Words: nn.NewEmbedding(x, gpt2Words, gpt2Width), Positions: nn.NewEmbedding(x, gpt2Positions, gpt2Width), Norm: norm(),
	}
	for range gpt2Blocks {
		m.Blocks = append(m.Blocks, &gpt2Block{
			Norm1: norm(), QKV: linear(gpt2Width, 3*gpt2Width), Out: linear(gpt2Width, gpt2Width),
			Norm2: norm(), Up: linear(gpt2Width, 4*gpt2Width), Down: linear(4*gpt2Width, gpt2Width),
		})
	}
	return initNormal(x, m)
}

func gpt2Inputs(x *tenon.Exec, batch, size int) ([]*tenon.Tensor, *tenon.Tensor) {
	return textInputs(x, gpt2Words, batch, size)
}

func (m *gpt2) Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := x.Add(m.Words.Forward(x, in[0]), m.Positions.Forward(x, x.Arange(float64(in[0].Size(1)), tenon.Int64)))
		for _, b := range m.Blocks {
			h = b.forward(x, h)
		}
		return x.Linear(m.Norm.Forward(x, h), m.Words.Weight.Tensor(), nil)
	})
}

func (b *gpt2Block) forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		parts := x.Chunk(b.QKV.forward(x, b.Norm1.Forward(x, in)), 3, -1)
		for i, p := range parts {
			parts[i] = heads(x, p, gpt2Heads)
		}
		y := x.ScaledDotProductAttention(parts[0], parts[1], parts[2], tenon.AttentionOpt{Causal: true})
		h := x.Add(in, b.Out.forward(x, joined(x, y)))
		up := x.GELUTanh(b.Up.forward(x, b.Norm2.Forward(x, h)))
		return x.Add(h, b.Down.forward(x, up))
	})
}

func (l *conv1D) forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Linear(in, x.T(l.Weight.Tensor()), l.Bias.Tensor())
}
