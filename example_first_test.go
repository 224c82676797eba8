package tenon_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// A network learns which points lie within a circle.
func Example_firstModel() {
	x, err := tenon.Open(tenon.Best()) // the first NVIDIA GPU, or the simulator where there is none
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	points := x.RandN([]int{512, 2}, tenon.Float32)
	labels := x.ToDType(x.LtS(x.VectorNorm(points, []int{-1}), 1.2), tenon.Int64)
	model := nn.Sequential{nn.NewLinear(x, 2, 64), nn.ReLU{}, nn.NewLinear(x, 64, 2)}
	adamw, err := optim.NewAdamW(nn.Params(model), optim.AdamOpt{LR: 0.01})
	if err != nil {
		log.Fatal(err)
	}
	for range 100 {
		if err := x.Do(func(x *tenon.Exec) error { // what a step makes is closed with it, and a failed operation is its error
			adamw.ZeroGrad()
			loss := x.CrossEntropy(model.Forward(x, points), labels)
			if err := x.Backward(loss); err != nil {
				return err
			}
			return adamw.Step(x)
		}); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(model)
	// Output:
	// Sequential(
	//   (0): Linear(in_features=2, out_features=64, bias=True)
	//   (1): ReLU()
	//   (2): Linear(in_features=64, out_features=2, bias=True)
	// )
}
