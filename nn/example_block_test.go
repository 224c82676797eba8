package nn_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/nn"
)

// Block is a residual block.
type Block struct {
	Conv     *nn.Conv2d    `torch:"conv"`
	Norm     *nn.BatchNorm `torch:"bn"`
	Shortcut nn.Sequential `torch:"shortcut"` // empty where the shapes agree
}

func NewBlock(x *tenon.Exec, in, out, stride int) *Block {
	b := &Block{Conv: nn.NewConv2d(x, in, out, [2]int{3, 3}, nn.Conv2dOpt{Stride: [2]int{stride, stride}, Padding: [2]int{1, 1}}),
		Norm: nn.NewBatchNorm2d(x, out)}
	if in != out || stride != 1 {
		b.Shortcut = nn.Sequential{nn.NewConv2d(x, in, out, [2]int{1, 1}, nn.Conv2dOpt{Stride: [2]int{stride, stride}})}
	}
	return b
}

func (b *Block) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := b.Norm.Forward(x, b.Conv.Forward(x, in))
		return x.ReLU(x.Add(h, b.Shortcut.Forward(x, in)))
	})
}

// A module of one's own is a struct of modules with a method Forward.
func ExampleModule() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	net := nn.Sequential{NewBlock(x, 3, 8, 2), NewBlock(x, 8, 8, 1), nn.AdaptiveAvgPool2d{Size: [2]int{1, 1}}, nn.Flatten{}}
	defer nn.Close(net)
	out := net.Forward(x, x.Ones([]int{2, 3, 8, 8}, tenon.Float32))
	fmt.Println(out.Shape(), nn.NumParams(net))
	for name := range nn.Params(net[0]) {
		fmt.Println(name)
	}
	// Output:
	// [2 8] 872
	// conv.weight
	// conv.bias
	// bn.weight
	// bn.bias
	// shortcut.0.weight
	// shortcut.0.bias
}
