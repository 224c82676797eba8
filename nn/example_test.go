package nn_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/nn"
)

// A network is a container of modules, or a struct with modules as its fields. Parameters have the names that they have in PyTorch.
func ExampleSequential() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	g := nn.NewHostGenerator(0) // torch.manual_seed(0)
	net := nn.Sequential{
		nn.NewLinear(x, 4, 3, nn.LinearOpt{Generator: g}), nn.ReLU{},
		nn.NewLinear(x, 3, 2, nn.LinearOpt{Generator: g, NoBias: true}),
	}
	defer nn.Close(net)
	x.Scope(func(x *tenon.Exec) {
		out := net.Forward(x, x.Ones([]int{5, 4}, tenon.Float32))
		fmt.Println(out.Shape())
	})
	for name, p := range nn.Params(net) {
		fmt.Println(name, p.Tensor().Shape())
	}
	// Output:
	// [5 2]
	// 0.weight [3 4]
	// 0.bias [3]
	// 2.weight [2 3]
}
