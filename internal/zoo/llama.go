package zoo

import (
	"math"

	"tenon.dev"
	"tenon.dev/nn"
)

// llama is Hugging Face's LlamaForCausalLM with four layers, in which four heads of queries share one of keys and values.
type llama struct {
	following

	Words  *nn.Embedding `torch:"model.embed_tokens"`
	Layers []*llamaLayer `torch:"model.layers"`
	Norm   *nn.RMSNorm   `torch:"model.norm"`
	Head   *nn.Linear    `torch:"lm_head"`
	// Cos and Sin are those of the angles at all positions [Positions, width of a head / 2].
	Cos, Sin *nn.Buffer
}

type llamaLayer struct {
	Query         *nn.Linear  `torch:"self_attn.q_proj"`
	Key           *nn.Linear  `torch:"self_attn.k_proj"`
	Value         *nn.Linear  `torch:"self_attn.v_proj"`
	Out           *nn.Linear  `torch:"self_attn.o_proj"`
	Gate          *nn.Linear  `torch:"mlp.gate_proj"`
	Up            *nn.Linear  `torch:"mlp.up_proj"`
	Down          *nn.Linear  `torch:"mlp.down_proj"`
	AttentionNorm *nn.RMSNorm `torch:"input_layernorm"`
	Norm          *nn.RMSNorm `torch:"post_attention_layernorm"`
}

const (
	llamaWords, llamaPositions = 8000, 512

	llamaWidth, llamaHidden, llamaLayers = 512, 1376, 4

	llamaHeads, llamaKeyHeads, llamaHead = 8, 2, 64
)

func newLlama(x *tenon.Exec) Network {
	norm := func() *nn.RMSNorm { return nn.NewRMSNorm(x, []int{llamaWidth}, nn.NormOpt{Eps: 1e-6}) }
	linear := func(in, out int) *nn.Linear { return nn.NewLinear(x, in, out, nn.LinearOpt{NoBias: true}) }
	m := &llama{Words: nn.NewEmbedding(x, llamaWords, llamaWidth), Norm: norm(), Head: linear(llamaWidth, llamaWords)}
	for range llamaLayers {
		m.Layers = append(m.Layers, &llamaLayer{
			Query: linear(llamaWidth, llamaHeads*llamaHead), Key: linear(llamaWidth, llamaKeyHeads*llamaHead),
			Value: linear(llamaWidth, llamaKeyHeads*llamaHead), Out: linear(llamaHeads*llamaHead, llamaWidth),
			Gate: linear(llamaWidth, llamaHidden), Up: linear(llamaWidth, llamaHidden), Down: linear(llamaHidden, llamaWidth),
			AttentionNorm: norm(), Norm: norm(),
		})
	}
	x.Scope(func(x *tenon.Exec) {
		speeds := x.Exp(x.MulS(x.Arange(llamaHead/2, tenon.Float32), -2*math.Log(10000)/llamaHead))
		angles := x.Outer(x.Arange(llamaPositions, tenon.Float32), speeds)
		m.Cos = nn.NewBuffer(x.Keep(x.Cos(angles)), nn.BufferOpt{NonPersistent: true})
		m.Sin = nn.NewBuffer(x.Keep(x.Sin(angles)), nn.BufferOpt{NonPersistent: true})
	})
	return initNormal(x, m)
}

func llamaInputs(x *tenon.Exec, batch, size int) ([]*tenon.Tensor, *tenon.Tensor) {
	return textInputs(x, llamaWords, batch, size)
}

func (m *llama) Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		n := in[0].Size(1)
		cos, sin := x.Narrow(m.Cos.Tensor(), 0, 0, n), x.Narrow(m.Sin.Tensor(), 0, 0, n)
		h := m.Words.Forward(x, in[0])
		for _, l := range m.Layers {
			h = l.forward(x, h, cos, sin)
		}
		return m.Head.Forward(x, m.Norm.Forward(x, h))
	})
}

func (l *llamaLayer) forward(x *tenon.Exec, in, cos, sin *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := l.AttentionNorm.Forward(x, in)
		q := rotated(x, heads(x, l.Query.Forward(x, h), llamaHeads), cos, sin)
		k := rotated(x, heads(x, l.Key.Forward(x, h), llamaKeyHeads), cos, sin)
		v := heads(x, l.Value.Forward(x, h), llamaKeyHeads)
		y := x.ScaledDotProductAttention(q, k, v, tenon.AttentionOpt{Causal: true, GroupedHeads: true})
		out := x.Add(in, l.Out.Forward(x, joined(x, y)))
		h = l.Norm.Forward(x, out)
		return x.Add(out, l.Down.Forward(x, x.Mul(x.SiLU(l.Gate.Forward(x, h)), l.Up.Forward(x, h))))
	})
}

// rotated returns t [B, heads, T, D] with the pairs of elements i and i+D/2 rotated by the angles of their positions, in t's type.
func rotated(x *tenon.Exec, t, cos, sin *tenon.Tensor) *tenon.Tensor {
	half := x.Chunk(t, 2, -1)
	re := x.Sub(x.Mul(half[0], cos), x.Mul(half[1], sin))
	im := x.Add(x.Mul(half[1], cos), x.Mul(half[0], sin))
	return x.ToDType(x.Cat([]*tenon.Tensor{re, im}, -1), t.DType())
}
