package zoo

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// seq2seq is torch.nn.Transformer, which normalises first, between tables of words and positions and a layer that tells the next word.
type seq2seq struct {
	classes

	Pos         *nn.Param       `torch:"pos"`
	Emb         *nn.Embedding   `torch:"emb"`
	Encoder     []*encoderLayer `torch:"tr.encoder.layers"`
	EncoderNorm *nn.LayerNorm   `torch:"tr.encoder.norm"`
	Decoder     []*decoderLayer `torch:"tr.decoder.layers"`
	DecoderNorm *nn.LayerNorm   `torch:"tr.decoder.norm"`
	Out         *nn.Linear      `torch:"out"`
}

type encoderLayer struct {
	Self    *multihead    `torch:"self_attn"`
	Linear1 *nn.Linear    `torch:"linear1"`
	Linear2 *nn.Linear    `torch:"linear2"`
	Norm1   *nn.LayerNorm `torch:"norm1"`
	Norm2   *nn.LayerNorm `torch:"norm2"`
}

type decoderLayer struct {
	Self    *multihead    `torch:"self_attn"`
	Cross   *multihead    `torch:"multihead_attn"`
	Linear1 *nn.Linear    `torch:"linear1"`
	Linear2 *nn.Linear    `torch:"linear2"`
	Norm1   *nn.LayerNorm `torch:"norm1"`
	Norm2   *nn.LayerNorm `torch:"norm2"`
	Norm3   *nn.LayerNorm `torch:"norm3"`
}

const (
	seqWords, seqPositions = 500, 64

	seqWidth, seqHeads, seqHidden, seqLayers = 128, 4, 256, 2
)

func newSeq2seq(x *tenon.Exec) Network {
	norm := func() *nn.LayerNorm { return nn.NewLayerNorm(x, []int{seqWidth}) }
	attention := func() *multihead { return newMultihead(x, seqWidth, seqHeads) }
	linear := func(in, out int) *nn.Linear {
		l := nn.NewLinear(x, in, out)
		nn.InitXavierUniform(x, l.Weight.Tensor())
		return l
	}
	m := &seq2seq{
		Pos: nn.NewParam(x.Zeros([]int{seqPositions, seqWidth}, tenon.Float32)), Emb: nn.NewEmbedding(x, seqWords, seqWidth),
		EncoderNorm: norm(), DecoderNorm: norm(), Out: nn.NewLinear(x, seqWidth, seqWords),
	}
	for range seqLayers {
		m.Encoder = append(m.Encoder, &encoderLayer{
			Self: attention(), Linear1: linear(seqWidth, seqHidden), Linear2: linear(seqHidden, seqWidth), Norm1: norm(), Norm2: norm(),
		})
		m.Decoder = append(m.Decoder, &decoderLayer{
			Self: attention(), Cross: attention(), Linear1: linear(seqWidth, seqHidden), Linear2: linear(seqHidden, seqWidth),
			Norm1: norm(), Norm2: norm(), Norm3: norm(),
		})
	}
	return m
}

// seq2seqInputs are a source and a target of 5/6 of its length.
func seq2seqInputs(x *tenon.Exec, batch, size int) ([]*tenon.Tensor, *tenon.Tensor) {
	target := size * 20 / 24
	return []*tenon.Tensor{ints(x, "src", seqWords, batch, size), ints(x, "tgt", seqWords, batch, target)},
		ints(x, "next", seqWords, batch, target)
}

func (m *seq2seq) Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		embed := func(ids *tenon.Tensor) *tenon.Tensor {
			return x.Add(m.Emb.Forward(x, ids), x.Narrow(m.Pos.Tensor(), 0, 0, ids.Size(1)))
		}
		source, target := embed(in[0]), embed(in[1])
		for _, l := range m.Encoder {
			source = l.forward(x, source)
		}
		source = m.EncoderNorm.Forward(x, source)
		for _, l := range m.Decoder {
			target = l.forward(x, target, source)
		}
		return m.Out.Forward(x, m.DecoderNorm.Forward(x, target))
	})
}

func (l *encoderLayer) forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := x.Add(in, l.Self.forward(x, l.Norm1.Forward(x, in), nil))
		return x.Add(h, l.Linear2.Forward(x, x.ReLU(l.Linear1.Forward(x, l.Norm2.Forward(x, h)))))
	})
}

func (l *decoderLayer) forward(x *tenon.Exec, in, memory *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := x.Add(in, l.Self.forward(x, l.Norm1.Forward(x, in), nil, tenon.AttentionOpt{Causal: true}))
		h = x.Add(h, l.Cross.forward(x, l.Norm2.Forward(x, h), memory))
		return x.Add(h, l.Linear2.Forward(x, x.ReLU(l.Linear1.Forward(x, l.Norm3.Forward(x, h)))))
	})
}
