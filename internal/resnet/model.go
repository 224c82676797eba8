// Package resnet is the convolutional network ResNet-50 with its training step and inference, written as a user of nn and optim would
// write them. Tests and benchmarks of whole programs run it. Its weights and images are random.
package resnet

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// Config is the size of a model.
type Config struct {
	// Blocks are the numbers of blocks of the four stages, and Width the number of channels of the first convolution.
	Blocks [4]int
	Width  int
	// Side is the height and width of the images, and Classes the number of classes.
	Side, Classes int
	// ChannelsLast lays images and the weights of convolutions with their channels innermost.
	ChannelsLast bool
}

// Base is ResNet-50 with 25,557,032 parameters, for images of 224 by 224.
func Base() Config {
	return Config{Blocks: [4]int{3, 4, 6, 3}, Width: 64, Side: 224, Classes: 1000, ChannelsLast: true}
}

// Small is a model for the simulator.
func Small() Config {
	return Config{Blocks: [4]int{2, 1, 1, 1}, Width: 8, Side: 64, Classes: 10, ChannelsLast: true}
}

// Model maps images [N, 3, H, W] to logits [N, classes] (K. He et al., Deep Residual Learning for Image Recognition, 2015). A block that
// halves height and width does so in its middle convolution. Names and order of the parameters are those of torchvision's resnet50.
type Model struct {
	// Conv1 and BN1 come before the stages, and FC after them.
	Conv1 *nn.Conv2d    `torch:"conv1"`
	BN1   *nn.BatchNorm `torch:"bn1"`
	// Layer1 to Layer4 are the stages.
	Layer1 []*Block   `torch:"layer1"`
	Layer2 []*Block   `torch:"layer2"`
	Layer3 []*Block   `torch:"layer3"`
	Layer4 []*Block   `torch:"layer4"`
	FC     *nn.Linear `torch:"fc"`

	config Config
}

// Block adds to its input the output of three convolutions: 1×1 to fewer channels, 3×3, and 1×1 to four times as many channels.
type Block struct {
	// The convolutions are each followed by a normalisation.
	Conv1 *nn.Conv2d    `torch:"conv1"`
	BN1   *nn.BatchNorm `torch:"bn1"`
	Conv2 *nn.Conv2d    `torch:"conv2"`
	BN2   *nn.BatchNorm `torch:"bn2"`
	Conv3 *nn.Conv2d    `torch:"conv3"`
	BN3   *nn.BatchNorm `torch:"bn3"`
	// Downsample gives the input the shape of the convolutions' output; it is empty if the shapes are equal.
	Downsample nn.Sequential `torch:"downsample"`
}

// New returns a model whose weights x's generator draws.
func New(x *tenon.Exec, c Config) *Model {
	m := &Model{Conv1: c.conv(x, 3, c.Width, 7, 2), BN1: nn.NewBatchNorm2d(x, c.Width), config: c}
	in := c.Width
	stage := func(number, stride int) (blocks []*Block) {
		width := c.Width << number
		for i := range c.Blocks[number] {
			if i > 0 {
				stride = 1
			}
			blocks = append(blocks, c.block(x, in, width, stride))
			in = 4 * width
		}
		return blocks
	}
	m.Layer1, m.Layer2, m.Layer3, m.Layer4 = stage(0, 1), stage(1, 2), stage(2, 2), stage(3, 2)
	m.FC = nn.NewLinear(x, in, c.Classes)
	return m
}

// conv returns a convolution with a square kernel and no bias, which divides the size by stride.
func (c Config) conv(x *tenon.Exec, in, out, kernel, stride int) *nn.Conv2d {
	pad := kernel / 2
	l := nn.NewConv2d(x, in, out, [2]int{kernel, kernel},
		nn.Conv2dOpt{Stride: [2]int{stride, stride}, Padding: [2]int{pad, pad}, NoBias: true})
	nn.InitKaimingNormal(x, l.Weight.Tensor(), nn.KaimingOpt{FanOut: true, Nonlinearity: nn.GainReLU})
	if c.ChannelsLast {
		l.Weight.Set(x.NoGrad().ChannelsLast(l.Weight.Tensor()))
		l.Weight.SetRequiresGrad(true)
	}
	return l
}

func (c Config) block(x *tenon.Exec, in, width, stride int) *Block {
	out := 4 * width
	b := &Block{
		Conv1: c.conv(x, in, width, 1, 1), BN1: nn.NewBatchNorm2d(x, width),
		Conv2: c.conv(x, width, width, 3, stride), BN2: nn.NewBatchNorm2d(x, width),
		Conv3: c.conv(x, width, out, 1, 1), BN3: nn.NewBatchNorm2d(x, out),
	}
	if stride > 1 || in != out {
		b.Downsample = nn.Sequential{c.conv(x, in, out, 1, stride), nn.NewBatchNorm2d(x, out)}
	}
	return b
}

// Forward returns the logits of images.
func (m *Model) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := x.ReLU(m.BN1.Forward(x, m.Conv1.Forward(x, in)))
		h = x.MaxPool2d(h, [2]int{3, 3}, tenon.MaxPoolOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}})
		for _, stage := range [][]*Block{m.Layer1, m.Layer2, m.Layer3, m.Layer4} {
			for _, b := range stage {
				h = b.Forward(x, h)
			}
		}
		return m.FC.Forward(x, x.Flatten(x.AdaptiveAvgPool2d(h, [2]int{1, 1}), 1, -1))
	})
}

// Forward returns the ReLU of in plus the convolutions' output.
func (b *Block) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := x.ReLU(b.BN1.Forward(x, b.Conv1.Forward(x, in)))
		h = x.ReLU(b.BN2.Forward(x, b.Conv2.Forward(x, h)))
		h = b.BN3.Forward(x, b.Conv3.Forward(x, h))
		same := in
		if len(b.Downsample) > 0 {
			same = b.Downsample.Forward(x, in)
		}
		return x.ReLU(x.Add(h, same))
	})
}

// images returns a random batch in the model's layout.
func (c Config) images(x *tenon.Exec, batch int) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		in := x.RandN([]int{batch, 3, c.Side, c.Side}, tenon.Float32)
		if c.ChannelsLast {
			return x.ChannelsLast(in)
		}
		return in
	})
}
