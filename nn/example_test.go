package nn_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

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

// What one network has learned is saved and loaded into another of the same shape.
func ExampleSaveFile() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "model.safetensors")

	learned, fresh := nn.NewLinear(x, 2, 1, nn.LinearOpt{}), nn.NewLinear(x, 2, 1, nn.LinearOpt{})
	defer nn.Close(learned)
	defer nn.Close(fresh)
	nn.InitConstant(x, learned.Weight.Tensor(), 0.5)
	if err := nn.SaveFile(x, learned, file); err != nil {
		log.Fatal(err)
	}
	if err := nn.LoadFile(x, fresh, file, nn.LoadOpt{}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(tenon.Read[float32](x, fresh.Weight.Tensor()))
	// Output: [0.5 0.5] <nil>
}
