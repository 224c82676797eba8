package kernel_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/kernel"
)

// A kernel is built once and runs on every device.
var saxpy = kernel.Build("saxpy", func(k *kernel.Builder) {
	a, n := k.Scalar("a", tenon.Float32), k.Scalar("n", tenon.Int64)
	x, y := k.Buffer("x", tenon.Float32), k.Buffer("y", tenon.Float32)
	k.ForEach(n, func(i kernel.Value) { y.Store(i, a.Mul(x.Load(i)).Add(y.Load(i))) })
})

func ExampleBuild() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	p, q := tenon.From(x, []float32{1, 2, 3}), tenon.From(x, []float32{10, 10, 10})
	n := p.Numel()
	x.Launch(saxpy, tenon.Over(n), tenon.Number(2), tenon.Integer(int64(n)), tenon.In(p), tenon.Out(q))
	fmt.Println(tenon.Read[float32](x, q))
	// Output: [12 14 16] <nil>
}
