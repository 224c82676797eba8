package zoo

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// BERT is Hugging Face's BertForSequenceClassification with three classes, in the size of bert-base-uncased.
type BERT struct {
	classes
	nn.Mode

	// Words, Positions and Types are the tables whose sum, after Norm, enters the first layer.
	Words     *nn.Embedding `torch:"bert.embeddings.word_embeddings"`
	Positions *nn.Embedding `torch:"bert.embeddings.position_embeddings"`
	Types     *nn.Embedding `torch:"bert.embeddings.token_type_embeddings"`
	Norm      *nn.LayerNorm `torch:"bert.embeddings.LayerNorm"`
	// Layers run one after the other. Pooler and Classifier get the first word's vector.
	Layers     []*bertLayer `torch:"bert.encoder.layer"`
	Pooler     *nn.Linear   `torch:"bert.pooler.dense"`
	Classifier *nn.Linear   `torch:"classifier"`

	// Dropout is the probability that an element of a hidden vector or a weight of an attention is dropped in training. New sets it to 0.
	Dropout float64
}

type bertLayer struct {
	Query         *nn.Linear    `torch:"attention.self.query"`
	Key           *nn.Linear    `torch:"attention.self.key"`
	Value         *nn.Linear    `torch:"attention.self.value"`
	Out           *nn.Linear    `torch:"attention.output.dense"`
	AttentionNorm *nn.LayerNorm `torch:"attention.output.LayerNorm"`
	Up            *nn.Linear    `torch:"intermediate.dense"`
	Down          *nn.Linear    `torch:"output.dense"`
	Norm          *nn.LayerNorm `torch:"output.LayerNorm"`
}

const (
	bertWords, bertPositions, bertClasses = 30522, 512, 3

	bertWidth, bertHeads, bertLayers = 768, 12, 12
)

func newBERT(x *tenon.Exec) Network {
	const width = bertWidth
	norm := func() *nn.LayerNorm { return nn.NewLayerNorm(x, []int{width}, nn.NormOpt{Eps: 1e-12}) }
	m := &BERT{
		Words: nn.NewEmbedding(x, bertWords, width), Positions: nn.NewEmbedding(x, bertPositions, width),
		Types: nn.NewEmbedding(x, 2, width), Norm: norm(),
		Pooler: nn.NewLinear(x, width, width), Classifier: nn.NewLinear(x, width, bertClasses),
	}
	for range bertLayers {
		m.Layers = append(m.Layers, &bertLayer{
			Query: nn.NewLinear(x, width, width), Key: nn.NewLinear(x, width, width), Value: nn.NewLinear(x, width, width),
			Out: nn.NewLinear(x, width, width), AttentionNorm: norm(),
			Up: nn.NewLinear(x, width, 4*width), Down: nn.NewLinear(x, 4*width, width), Norm: norm(),
		})
	}
	return initNormal(x, m)
}

// bertInputs are words and, as bool, which of them are there: texts have 64, 40 and 17 of 64 words in turn.
func bertInputs(x *tenon.Exec, batch, size int) ([]*tenon.Tensor, *tenon.Tensor) {
	there := make([]bool, batch*size)
	for i := range there {
		there[i] = i%size < []int{64, 40, 17}[i/size%3]*size/64
	}
	return []*tenon.Tensor{ints(x, "ids", bertWords, batch, size), tenon.From(x, there, batch, size)}, ints(x, "label", bertClasses, batch)
}

// Forward maps words [B, S], and which of them are there, to logits [B, 3].
func (m *BERT) Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		p := 0.0
		if m.Training() {
			p = m.Dropout
		}
		ids, mask := in[0], x.Index(in[1], tenon.All, tenon.NewAxis, tenon.NewAxis)
		h := x.Add(m.Words.Forward(x, ids), m.Types.Forward(x, x.ZerosLike(ids)))
		h = x.Add(h, m.Positions.Forward(x, x.Arange(float64(ids.Size(1)), tenon.Int64)))
		h = x.Dropout(m.Norm.Forward(x, h), p)
		for _, l := range m.Layers {
			h = l.forward(x, h, mask, p)
		}
		first := x.Tanh(m.Pooler.Forward(x, x.Select(h, 1, 0)))
		return m.Classifier.Forward(x, x.Dropout(first, p))
	})
}

func (l *bertLayer) forward(x *tenon.Exec, in, mask *tenon.Tensor, p float64) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		part := func(m *nn.Linear) *tenon.Tensor { return heads(x, m.Forward(x, in), bertHeads) }
		y := x.ScaledDotProductAttention(part(l.Query), part(l.Key), part(l.Value), tenon.AttentionOpt{Mask: mask, Dropout: p})
		h := l.AttentionNorm.Forward(x, x.Add(x.Dropout(l.Out.Forward(x, joined(x, y)), p), in))
		out := l.Down.Forward(x, x.GELU(l.Up.Forward(x, h)))
		return l.Norm.Forward(x, x.Add(x.Dropout(out, p), h))
	})
}
