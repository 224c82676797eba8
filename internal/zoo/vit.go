package zoo

import (
	"fmt"

	"tenon.dev"
	"tenon.dev/nn"
)

// vit is the vision transformer ViT-B/16 (A. Dosovitskiy et al., An Image is Worth 16×16 Words, 2020) as torchvision has it. It sees an
// image as a sequence of patches after a token that gathers what tells the classes apart.
type vit struct {
	classes

	ClassToken *nn.Param   `torch:"class_token"`
	ConvProj   *nn.Conv2d  `torch:"conv_proj"`
	Encoder    *vitEncoder `torch:"encoder"`
	Heads      struct {
		Head *nn.Linear `torch:"head"`
	} `torch:"heads"`
}

type vitEncoder struct {
	PosEmbedding *nn.Param            `torch:"pos_embedding"`
	Layers       map[string]*vitLayer `torch:"layers"`
	Norm         *nn.LayerNorm        `torch:"ln"`
}

type vitLayer struct {
	Norm1     *nn.LayerNorm  `torch:"ln_1"`
	Attention *selfAttention `torch:"self_attention"`
	Norm2     *nn.LayerNorm  `torch:"ln_2"`
	MLP       nn.Sequential  `torch:"mlp"`
}

// selfAttention is attention of several heads, with the parameters of PyTorch's nn.MultiheadAttention.
type selfAttention struct {
	InWeight *nn.Param  `torch:"in_proj_weight"`
	InBias   *nn.Param  `torch:"in_proj_bias"`
	Out      *nn.Linear `torch:"out_proj"`
	heads    int
}

const vitImage, vitPatch, vitWidth, vitLayers, vitHeads = 224, 16, 768, 12, 12

func newViT(x *tenon.Exec) Network {
	m := &vit{
		ClassToken: nn.NewParam(x.Zeros([]int{1, 1, vitWidth}, tenon.Float32)),
		ConvProj: nn.NewConv2d(x, 3, vitWidth, [2]int{vitPatch, vitPatch},
			nn.Conv2dOpt{Stride: [2]int{vitPatch, vitPatch}}),
		Encoder: &vitEncoder{
			PosEmbedding: nn.NewParam(x.Zeros([]int{1, 1 + vitImage/vitPatch*vitImage/vitPatch, vitWidth}, tenon.Float32)),
			Layers:       map[string]*vitLayer{},
			Norm:         vitNorm(x),
		},
	}
	nn.InitNormal(x, m.Encoder.PosEmbedding.Tensor(), 0, 0.02)
	for i := range vitLayers {
		m.Encoder.Layers[vitLayerName(i)] = &vitLayer{
			Norm1:     vitNorm(x),
			Attention: newSelfAttention(x, vitWidth, vitHeads),
			Norm2:     vitNorm(x),
			MLP: nn.Sequential{
				nn.NewLinear(x, vitWidth, 4*vitWidth), nn.GELU{}, nn.NewDropout(0),
				nn.NewLinear(x, 4*vitWidth, vitWidth), nn.NewDropout(0),
			},
		}
	}
	m.Heads.Head = nn.NewLinear(x, vitWidth, imageClasses)
	return m
}

func vitNorm(x *tenon.Exec) *nn.LayerNorm {
	return nn.NewLayerNorm(x, []int{vitWidth}, nn.NormOpt{Eps: 1e-6})
}

func vitLayerName(i int) string { return fmt.Sprintf("encoder_layer_%d", i) }

func newSelfAttention(x *tenon.Exec, width, heads int) *selfAttention {
	m := &selfAttention{
		InWeight: nn.NewParam(x.Zeros([]int{3 * width, width}, tenon.Float32)),
		InBias:   nn.NewParam(x.Zeros([]int{3 * width}, tenon.Float32)),
		Out:      nn.NewLinear(x, width, width),
		heads:    heads,
	}
	nn.InitXavierUniform(x, m.InWeight.Tensor())
	nn.InitConstant(x, m.Out.Bias.Tensor(), 0)
	return m
}

func (m *vit) Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		patches := x.Transpose(x.Flatten(m.ConvProj.Forward(x, in[0]), 2), 1, 2)
		token := x.Expand(m.ClassToken.Tensor(), in[0].Shape()[0], -1, -1)
		h := m.Encoder.Forward(x, x.Cat([]*tenon.Tensor{token, patches}, 1))
		return m.Heads.Head.Forward(x, x.Index(h, tenon.All, 0))
	})
}

func (m *vitEncoder) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := x.Add(in, m.PosEmbedding.Tensor())
		for i := range len(m.Layers) {
			h = m.Layers[vitLayerName(i)].Forward(x, h)
		}
		return m.Norm.Forward(x, h)
	})
}

func (m *vitLayer) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := x.Add(m.Attention.Forward(x, m.Norm1.Forward(x, in)), in)
		return x.Add(h, m.MLP.Forward(x, m.Norm2.Forward(x, h)))
	})
}

// Forward returns what the elements of the sequences in [N, T, width] take from each other.
func (m *selfAttention) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		all := x.Unflatten(x.Linear(in, m.InWeight.Tensor(), m.InBias.Tensor()), -1, 3, m.heads, -1)
		qkv := x.Unbind(x.Permute(all, 2, 0, 3, 1, 4))
		out := x.ScaledDotProductAttention(qkv[0], qkv[1], qkv[2])
		return m.Out.Forward(x, x.Flatten(x.Transpose(out, 1, 2), 2))
	})
}
