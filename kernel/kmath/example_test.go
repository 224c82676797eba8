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

// mishGrad is its derivative times g: with t = tanh(log(1+e^x)), t + x (1-t²) / (1+e^-x).
var mishGrad = kernel.Build("mish_grad", func(k *kernel.Builder) {
	x, g := k.BufferRO("x", tenon.Float32), k.BufferRO("g", tenon.Float32)
	y, n := k.Buffer("y", tenon.Float32), k.Scalar("n", tenon.Int64)
	k.ForEach(n, func(i kernel.Value) {
		v := x.Load(i)
		t := kmath.Tanh(kmath.Log1p(kmath.Exp(v)))
		slope := t.Add(v.Mul(v.Like(1).Sub(t.Mul(t))).Mul(kmath.Sigmoid(v)))
		y.Store(i, g.Load(i).Mul(slope))
	})
})

// activation is the operation that has both.
type activation struct{}

func (activation) Forward(x *tenon.Exec, c *tenon.FunctionContext, inputs ...*tenon.Tensor) []*tenon.Tensor {
	in := x.Contiguous(inputs[0])
	out, n := x.EmptyLike(in), in.Numel()
	x.Launch(mish, tenon.Over(n), tenon.In(in), tenon.Out(out), tenon.Integer(n))
	c.Save(in)
	return []*tenon.Tensor{out}
}

func (activation) Backward(x *tenon.Exec, c *tenon.FunctionContext, grads ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	in, grad := c.Saved()[0], x.Contiguous(grads[0])
	out, n := x.EmptyLike(in), in.Numel()
	x.Launch(mishGrad, tenon.Over(n), tenon.In(in), tenon.In(grad), tenon.Out(out), tenon.Integer(n))
	return []*tenon.Tensor{out}, nil
}

// An activation function as one kernel.
func Example() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	p := tenon.From(x, []float32{-1, 0, 1, 2})
	q := x.EmptyLike(p)
	x.Launch(mish, tenon.Over(p.Numel()), tenon.In(p), tenon.Out(q), tenon.Integer(p.Numel()))
	fmt.Println(tenon.Read[float32](x, q))
	// Output: [-0.30340147 0 0.86509836 1.943959] <nil>
}

// An activation function with a derivative, each one kernel.
func Example_derivative() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	p := tenon.From(x, []float32{-1, 0, 1, 2}).SetRequiresGrad(true)
	y := x.Apply(activation{}, p)[0]
	if err := x.Backward(x.Sum(y, nil)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(tenon.Read[float32](x, p.Grad()))
	// Output: [0.059216753 0.6 1.0490363 1.0693178] <nil>
}
