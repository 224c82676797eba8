package zoo

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// convNeXt is ConvNeXt (Z. Liu et al., A ConvNet for the 2020s, 2022) as torchvision has it, without stochastic depth.
type convNeXt struct {
	classes

	Features   nn.Sequential `torch:"features"`
	Classifier nn.Sequential `torch:"classifier"`
}

// convNeXtBlock adds to its input a scaled sequence of a convolution of every channel and two layers that work on every pixel.
type convNeXtBlock struct {
	LayerScale *nn.Param     `torch:"layer_scale"`
	Block      nn.Sequential `torch:"block"`
}

// layerNorm2d normalises every pixel of images over its channels.
type layerNorm2d struct{ *nn.LayerNorm }

var (
	channelsToEnd   = nn.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.Permute(in, 0, 2, 3, 1) })
	channelsFromEnd = nn.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.Permute(in, 0, 3, 1, 2) })
)

func newConvNeXtTiny(x *tenon.Exec) Network {
	widths, counts := []int{96, 192, 384, 768}, []int{3, 3, 9, 3}
	// patches returns a convolution of squares that do not overlap.
	patches := func(in, out, side int) *nn.Conv2d {
		return nn.NewConv2d(x, in, out, [2]int{side, side}, nn.Conv2dOpt{Stride: [2]int{side, side}})
	}
	m := &convNeXt{Features: nn.Sequential{nn.Sequential{patches(3, widths[0], 4), newLayerNorm2d(x, widths[0])}}}
	for i, width := range widths {
		if i > 0 {
			m.Features = append(m.Features, nn.Sequential{newLayerNorm2d(x, widths[i-1]), patches(widths[i-1], width, 2)})
		}
		var stage nn.Sequential
		for range counts[i] {
			stage = append(stage, newConvNeXtBlock(x, width))
		}
		m.Features = append(m.Features, stage)
	}
	m.Classifier = nn.Sequential{newLayerNorm2d(x, widths[3]), nn.Flatten{}, nn.NewLinear(x, widths[3], imageClasses)}
	return m
}

func newLayerNorm2d(x *tenon.Exec, channels int) layerNorm2d {
	return layerNorm2d{nn.NewLayerNorm(x, []int{channels}, nn.NormOpt{Eps: 1e-6})}
}

func newConvNeXtBlock(x *tenon.Exec, width int) *convNeXtBlock {
	return &convNeXtBlock{
		LayerScale: nn.NewParam(x.Full([]int{width, 1, 1}, 1e-6, tenon.Float32)),
		Block: nn.Sequential{
			nn.NewConv2d(x, width, width, [2]int{7, 7}, nn.Conv2dOpt{Padding: [2]int{3, 3}, Groups: width}),
			channelsToEnd,
			nn.NewLayerNorm(x, []int{width}, nn.NormOpt{Eps: 1e-6}),
			nn.NewLinear(x, width, 4*width),
			nn.GELU{},
			nn.NewLinear(x, 4*width, width),
			channelsFromEnd,
		},
	}
}

func (m *convNeXt) Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		return m.Classifier.Forward(x, x.AdaptiveAvgPool2d(m.Features.Forward(x, in[0]), [2]int{1, 1}))
	})
}

func (m *convNeXtBlock) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		return x.Add(x.Mul(m.LayerScale.Tensor(), m.Block.Forward(x, in)), in)
	})
}

func (n layerNorm2d) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		return channelsFromEnd(x, n.LayerNorm.Forward(x, channelsToEnd(x, in)))
	})
}
