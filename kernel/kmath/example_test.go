package kmath_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/kernel"
	"tenon.dev/kernel/kmath"
)

// mish is x tanh(log(1+e^x)).
var mish = kernel.Build("mish", func(k *kernel.Builder) {
	x, y, n := k.BufferRO("x", tenon.Float32), k.Buffer("y", tenon.Float32), k.Scalar("n", tenon.Int64)
	k.ForEach(n, func(i kernel.Value) {
		v := x.Load(i)
		y.Store(i, v.Mul(kmath.Tanh(kmath.Log1p(kmath.Exp(v)))))
	})
})

// An activation function as one kernel.
func Example() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	p := tenon.From(x, []float32{-1, 0, 1, 2})
	q := x.EmptyLike(p)
	x.Launch(mish, tenon.Over(p.Numel()), tenon.In(p), tenon.Out(q), tenon.Integer(int64(p.Numel())))
	fmt.Println(tenon.Read[float32](x, q))
	// Output: [-0.30340147 0 0.86509836 1.943959] <nil>
}
