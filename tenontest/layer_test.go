package tenontest_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/tenontest"
)

func TestLinear(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		layer := nn.NewLinear(x, 2, 1)
		defer nn.Close(layer)
		nn.InitConstant(x, layer.Weight.Tensor(), 0.5)
		nn.InitConstant(x, layer.Bias.Tensor(), 1)

		out := layer.Forward(x, tenon.From(x, []float32{1, 2, 3, 4}, 2, 2))
		tenontest.AssertClose(t, x, out, tenon.From(x, []float32{2.5, 4.5}, 2, 1))
	})
}

func TestSoftmaxOnEveryDevice(t *testing.T) {
	devices := map[string]tenon.Selector{"cpu": tenon.CPU(), "simulator": tenon.Sim(0)}
	if tenon.GPUs() > 0 {
		devices["gpu"] = tenon.CUDA(0)
	}
	for name, device := range devices {
		t.Run(name, func(t *testing.T) {
			tenontest.Run(t, func(x *tenon.Exec) {
				in := tenon.From(x, []float32{0, 1, 2, 3})
				by := x.DivS(x.Exp(in), 31.192873)
				got := x.Softmax(in, 0)
				tenontest.AssertClose(t, x, got, by)
				tenontest.AssertClose(t, x, x.ToDType(got, tenon.Float16), x.ToDType(by, tenon.Float16),
					tenontest.Tolerance{Absolute: 1e-3})
			}, device)
		})
	}
}
