package zoo

import (
	"tenon.dev"
	"tenon.dev/nn"
)

// unet maps an image to another of the same size: it halves the image twice and doubles it twice, and each way up joins what the way down
// had at that size.
type unet struct {
	D1  nn.Sequential       `torch:"d1"`
	D2  nn.Sequential       `torch:"d2"`
	Mid nn.Sequential       `torch:"mid"`
	U2  *nn.ConvTranspose2d `torch:"u2"`
	C2  nn.Sequential       `torch:"c2"`
	C1  nn.Sequential       `torch:"c1"`
	Out *nn.Conv2d          `torch:"out"`
}

func newUNet(x *tenon.Exec) Network {
	block := func(in, out int) nn.Sequential {
		conv := func(in int) *nn.Conv2d {
			return nn.NewConv2d(x, in, out, [2]int{3, 3}, nn.Conv2dOpt{Padding: [2]int{1, 1}})
		}
		return nn.Sequential{conv(in), nn.NewGroupNorm(x, 8, out), nn.SiLU{}, conv(out), nn.NewGroupNorm(x, 8, out), nn.SiLU{}}
	}
	return &unet{
		D1: block(3, 32), D2: block(32, 64), Mid: block(64, 128),
		U2: nn.NewConvTranspose2d(x, 128, 64, [2]int{2, 2}, nn.ConvTranspose2dOpt{Stride: [2]int{2, 2}}),
		C2: block(128, 64), C1: block(64+32, 32),
		Out: nn.NewConv2d(x, 32, 3, [2]int{1, 1}),
	}
}

func unetInputs(x *tenon.Exec, batch, size int) ([]*tenon.Tensor, *tenon.Tensor) {
	return []*tenon.Tensor{Images(x, batch, size)}, real(x, "target", batch, 3, size, size)
}

func (m *unet) Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		a := m.D1.Forward(x, in[0])
		b := m.D2.Forward(x, x.MaxPool2d(a, [2]int{2, 2}))
		h := m.Mid.Forward(x, x.AvgPool2d(b, [2]int{2, 2}))
		h = m.C2.Forward(x, x.Cat([]*tenon.Tensor{m.U2.Forward(x, h), b}, 1))
		h = x.Interpolate(h, tenon.InterpolateOpt{Scale: []float64{2}, Mode: tenon.InterpolateBilinear})
		return m.Out.Forward(x, m.C1.Forward(x, x.Cat([]*tenon.Tensor{h, a}, 1)))
	})
}

func (m *unet) Loss(x *tenon.Exec, out, target *tenon.Tensor) *tenon.Tensor {
	return x.MSELoss(out, target)
}
