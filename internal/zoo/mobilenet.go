package zoo

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// mobileNet is MobileNetV2 (M. Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018) as torchvision has it.
type mobileNet struct {
	classes

	Features   nn.Sequential `torch:"features"`
	Classifier nn.Sequential `torch:"classifier"`
}

// invertedResidual widens its input by a 1×1 convolution, filters every channel by a 3×3 one, and narrows it by a 1×1 one. It adds its
// input if the shapes are equal.
type invertedResidual struct {
	Conv nn.Sequential `torch:"conv"`
	add  bool
}

func newMobileNet(x *tenon.Exec) Network {
	m := &mobileNet{Features: nn.Sequential{convNormReLU6(x, 3, 32, 3, 2, 1)}}
	in := 32
	for _, c := range []struct{ widen, out, count, stride int }{
		{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1},
	} {
		for i := range c.count {
			stride := c.stride
			if i > 0 {
				stride = 1
			}
			m.Features = append(m.Features, newInvertedResidual(x, in, c.out, stride, c.widen))
			in = c.out
		}
	}
	m.Features = append(m.Features, convNormReLU6(x, in, 1280, 1, 1, 1))
	m.Classifier = nn.Sequential{nn.NewDropout(0), nn.NewLinear(x, 1280, imageClasses)}
	return m
}

// convNormReLU6 returns a convolution without a bias, its normalisation, and a ReLU limited to 6.
func convNormReLU6(x *tenon.Exec, in, out, kernel, stride, groups int) nn.Sequential {
	pad := kernel / 2
	return nn.Sequential{
		nn.NewConv2d(x, in, out, [2]int{kernel, kernel},
			nn.Conv2dOpt{Stride: [2]int{stride, stride}, Padding: [2]int{pad, pad}, Groups: groups, NoBias: true}),
		nn.NewBatchNorm2d(x, out),
		nn.Hardtanh{Min: 0, Max: 6},
	}
}

func newInvertedResidual(x *tenon.Exec, in, out, stride, widen int) *invertedResidual {
	m := &invertedResidual{add: stride == 1 && in == out}
	wide := in * widen
	if widen > 1 {
		m.Conv = append(m.Conv, convNormReLU6(x, in, wide, 1, 1, 1))
	}
	m.Conv = append(m.Conv, convNormReLU6(x, wide, wide, 3, stride, wide),
		nn.NewConv2d(x, wide, out, [2]int{1, 1}, nn.Conv2dOpt{NoBias: true}), nn.NewBatchNorm2d(x, out))
	return m
}

func (m *mobileNet) Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		return m.Classifier.Forward(x, x.Mean(m.Features.Forward(x, in[0]), []int{2, 3}))
	})
}

func (m *invertedResidual) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := m.Conv.Forward(x, in)
		if m.add {
			h = x.Add(in, h)
		}
		return h
	})
}
