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
	Norm1     *nn.LayerNorm `torch:"ln_1"`
	Attention *multihead    `torch:"self_attention"`
	Norm2     *nn.LayerNorm `torch:"ln_2"`
	MLP       nn.Sequential `torch:"mlp"`
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
			Attention: newMultihead(x, vitWidth, vitHeads),
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
		h := x.Add(m.Attention.forward(x, m.Norm1.Forward(x, in), nil), in)
		return x.Add(h, m.MLP.Forward(x, m.Norm2.Forward(x, h)))
	})
}
