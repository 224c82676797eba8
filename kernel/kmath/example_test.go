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

// activation is the operation that combines them.
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

// swish returns the kernel of x / (1+e^-x) for elements of type t. It computes in Float32.
func swish(t tenon.DType) *kernel.Kernel {
	return kernel.Build("swish_"+t.String(), func(k *kernel.Builder) {
		x, y, n := k.BufferRO("x", t), k.Buffer("y", t), k.Scalar("n", tenon.Int64)
		k.ForEach(n, func(i kernel.Value) {
			v := x.Load(i).Convert(tenon.Float32)
			y.Store(i, v.Mul(kmath.Sigmoid(v)).Convert(t))
		})
	})
}

var swishes = map[tenon.DType]*kernel.Kernel{
	tenon.Float32:  swish(tenon.Float32),
	tenon.Float16:  swish(tenon.Float16),
	tenon.BFloat16: swish(tenon.BFloat16),
}

// A kernel for several types, among them half precision, which is computed in float32.
func Example_types() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	for _, t := range []tenon.DType{tenon.Float32, tenon.Float16, tenon.BFloat16} {
		p := x.ToDType(tenon.From(x, []float32{-1, 0, 1, 2}), t)
		q, n := x.EmptyLike(p), p.Numel()
		x.Launch(swishes[p.DType()], tenon.Over(n), tenon.In(p), tenon.Out(q), tenon.Integer(n))
		fmt.Println(tenon.Read[float32](x, x.ToDType(q, tenon.Float32)))
	}
	// Output:
	// [-0.26894143 0 0.7310586 1.7615942] <nil>
	// [-0.26904297 0 0.73095703 1.7617188] <nil>
	// [-0.26953125 0 0.73046875 1.7578125] <nil>
}
