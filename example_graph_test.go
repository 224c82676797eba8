package tenon_test

import (
	"errors"
	"fmt"
	"log"

	"tenon.dev"
)

// A graph is recorded once and replayed on new input: the input's tensor is filled, the result's tensor is read.
func ExampleExec_Capture() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	in := x.Zeros([]int{3}, tenon.Float32)
	var out *tenon.Tensor
	graph, err := x.Capture(func(x *tenon.Exec) { out = x.AddS(x.MulS(in, 2), 1) })
	if err != nil {
		log.Fatal(err)
	}
	defer graph.Close()
	for i := range 2 {
		x.CopyInto(in, tenon.From(x, []float32{1, 2, float32(3 + i)}))
		if err := x.Replay(graph); err != nil {
			log.Fatal(err)
		}
		fmt.Println(tenon.Read[float32](x, out))
	}
	// Output:
	// [3 5 7] <nil>
	// [3 5 9] <nil>
}

// sign returns the sign of its input and takes the derivative as 1 near zero: the straight-through estimator.
type sign struct{}

func (sign) Forward(x *tenon.Exec, c *tenon.FunctionContext, inputs ...*tenon.Tensor) []*tenon.Tensor {
	c.Save(inputs[0])
	return []*tenon.Tensor{x.Sign(inputs[0])}
}

func (sign) Backward(x *tenon.Exec, c *tenon.FunctionContext, grads ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	near := x.LeS(x.Abs(c.Saved()[0]), 1)
	return []*tenon.Tensor{x.Mul(grads[0], near)}, nil
}

// An operation with a derivative of its own.
func ExampleFunction() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	a := tenon.From(x, []float32{-3, -0.5, 0.5, 3}).SetRequiresGrad(true)
	out := x.Apply(sign{}, a)[0]
	if err := x.Backward(x.Sum(out, nil)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(tenon.Read[float32](x, out))
	fmt.Println(tenon.Read[float32](x, a.Grad()))
	// Output:
	// [-1 -1 1 1] <nil>
	// [0 1 1 0] <nil>
}

// Operations panic, so that they chain; Try turns that into an error.
func ExampleTry() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	err = tenon.Try(func() {
		x.Add(x.Ones([]int{3}, tenon.Float32), x.Ones([]int{4}, tenon.Float32))
	})
	var e *tenon.Error
	if errors.As(err, &e) {
		fmt.Println(e.Kind == tenon.Invalid, e.Op, e.Operands, e.Line > 0)
		fmt.Println(e.Msg)
	}
	// Output:
	// true Add [float32[3] float32[4]] true
	// The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0
}

// Work on two streams runs side by side; when one reads what the other made, Tenon orders them.
func ExampleExec_On() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	stream, err := x.Device().Stream()
	if err != nil {
		log.Fatal(err)
	}
	side := x.On(stream)
	a := side.Full([]int{3}, 2, tenon.Float32)
	b := x.Full([]int{3}, 5, tenon.Float32)
	fmt.Println(tenon.Read[float32](x, x.Mul(a, b)))
	// Output: [10 10 10] <nil>
}

// A scope closes what was made in it; Keep takes a tensor out.
func ExampleExec_Scope() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	var kept *tenon.Tensor
	x.Scope(func(x *tenon.Exec) {
		a := x.Ones([]int{1000}, tenon.Float32)
		kept = x.Keep(x.Sum(x.MulS(a, 2), nil))
	})
	v, err := x.Item(kept)
	fmt.Println(v, err, x.Device().MemoryAllocated(), "bytes")
	kept.Close()
	fmt.Println(x.Device().MemoryAllocated(), "bytes")
	// Output:
	// 2000 <nil> 512 bytes
	// 0 bytes
}
