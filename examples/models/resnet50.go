package main

import (
	"fmt"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// residual is the ReLU of the sum of two branches; an empty branch is its input.
type residual struct{ Body, Skip nn.Sequential }

func (r residual) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		return x.ReLU(x.Add(r.Body.Forward(x, in), r.Skip.Forward(x, in)))
	})
}

// convolution returns a convolution with a square kernel and a batch norm.
func convolution(x *tenon.Exec, in, out, kernel, stride int) nn.Sequential {
	opt := nn.Conv2dOpt{Stride: [2]int{stride, stride}, Padding: [2]int{kernel / 2, kernel / 2}, NoBias: true}
	return nn.Sequential{nn.NewConv2d(x, in, out, [2]int{kernel, kernel}, opt), nn.NewBatchNorm2d(x, out)}
}

// newResNet returns a network with as many blocks in its stages as depths say.
func newResNet(x *tenon.Exec, depths []int, width int) nn.Sequential {
	pool := tenon.MaxPoolOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}}
	m := nn.Sequential{convolution(x, 3, width, 7, 2), nn.ReLU{}, nn.MaxPool2d{Kernel: [2]int{3, 3}, Opt: pool}}
	in := width
	for stage, depth := range depths {
		middle, stride := width<<stage, min(stage+1, 2)
		for range depth {
			r := residual{Body: nn.Sequential{convolution(x, in, middle, 1, 1), nn.ReLU{}, convolution(x, middle, middle, 3, stride),
				nn.ReLU{}, convolution(x, middle, 4*middle, 1, 1)}}
			if in != 4*middle {
				r.Skip = convolution(x, in, 4*middle, 1, stride)
			}
			m, in, stride = append(m, r), 4*middle, 1
		}
	}
	return append(m, nn.AdaptiveAvgPool2d{Size: [2]int{1, 1}}, nn.Flatten{}, nn.NewLinear(x, in, 1000))
}

// resnet50 trains ResNet-50 on random images and classifies others, with channels before the pixels and after them.
func resnet50(x *tenon.Exec, small bool) (all []work, err error) {
	depths, width, batch, side := []int{3, 4, 6, 3}, 64, 64, 224
	if small {
		depths, width, batch, side = []int{1, 2}, 4, 2, 32
	}
	labels := x.RandInt(1000, []int{batch}, tenon.Int64)
	for _, channels := range []string{"first", "last"} {
		name := "resnet50, channels " + channels + ", "
		images, m := x.RandN([]int{batch, 3, side, side}, tenon.Float32), newResNet(x, depths, width)
		if channels == "last" {
			images = x.ChannelsLast(images)
			if err := nn.ToChannelsLast(x, m); err != nil {
				return nil, err
			}
		}
		opt, err := optim.NewSGD(nn.Params(m), optim.SGDOpt{LR: 0.1, Momentum: 0.9})
		if err != nil {
			return nil, err
		}
		all = append(all, training(x, name+"training", opt, func(x *tenon.Exec) *tenon.Tensor {
			return x.CrossEntropy(m.Forward(x, images), labels)
		}))
		for _, n := range []int{1, batch} {
			some, scores := x.Index(images, tenon.Span(0, n)), x.Zeros([]int{n, 1000}, tenon.BFloat16)
			all = append(all, work{fmt.Sprint(name, "inference of ", n), scores, func(x *tenon.Exec) error {
				nn.Eval(m)
				x.CopyInto(scores, m.Forward(x.NoGrad().Autocast(tenon.BFloat16), some))
				return nil
			}})
		}
	}
	return all, nil
}
