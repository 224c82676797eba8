package optim_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// A line is fitted to four points.
func ExampleSGD() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	line := nn.NewLinear(x, 1, 1, nn.LinearOpt{Generator: nn.NewHostGenerator(0)})
	defer nn.Close(line)
	sgd, err := optim.NewSGD(nn.Params(line), optim.SGDOpt{LR: 0.05, Momentum: 0.9})
	if err != nil {
		log.Fatal(err)
	}
	defer sgd.Close()
	x.Scope(func(x *tenon.Exec) {
		in := tenon.From(x, []float32{0, 1, 2, 3}, 4, 1)
		target := tenon.From(x, []float32{1, 3, 5, 7}, 4, 1)
		for range 300 {
			x.Scope(func(x *tenon.Exec) {
				loss := x.MSELoss(line.Forward(x, in), target, tenon.LossOpt{})
				sgd.ZeroGrad()
				if err := x.Backward(loss, nil, tenon.BackwardOpt{}); err != nil {
					log.Fatal(err)
				}
				if err := sgd.Step(x); err != nil {
					log.Fatal(err)
				}
			})
		}
	})
	slope, err := x.Item(line.Weight.Tensor())
	if err != nil {
		log.Fatal(err)
	}
	offset, err := x.Item(line.Bias.Tensor())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.2f x + %.2f\n", slope, offset)
	// Output: 2.00 x + 1.00
}
