// Package rms normalizes rows with a custom kernel, whose derivative is a second kernel. It shows how both become one operation with a
// gradient; its tests compare that with the operation RMSNorm. It must not depend on anything but the public packages of Tenon.
//
//	go test ./examples/rms
package rms

import (
	"tenon.dev"
	"tenon.dev/kernel"
)

// threads is the number of threads that work on a row.
const threads = 128

// row is the work of a block: a row of this many columns.
type row struct {
	k       *kernel.Builder
	columns kernel.Value
}

// of returns the block's row of a matrix.
func (r row) of(matrix kernel.Buffer) kernel.Buffer {
	return matrix.Offset(r.k.BlockIdx(kernel.X).MulWide(r.columns))
}

// each calls f with every column, each in one thread.
func (r row) each(f func(column kernel.Value)) {
	r.k.For(r.k.ThreadIdx(kernel.X), r.columns, r.k.I32(threads), f)
}

// mean returns the mean of the terms of all columns.
func (r row) mean(term func(column kernel.Value) kernel.Value) kernel.Value {
	part := r.k.Var(r.k.F32(0))
	r.each(func(column kernel.Value) { part.Set(part.Get().Add(term(column))) })
	return r.k.BlockSum(part.Get()).Div(r.columns.Convert(tenon.Float32))
}

// forward computes out = in·scale·weight, with scale = 1/√(mean(in²) + eps) of the row.
var forward = kernel.Build("rms_forward", func(k *kernel.Builder) {
	k.FixedThreads(threads)
	r, eps := row{k, k.Scalar("columns", tenon.Int32)}, k.Scalar("eps", tenon.Float32)
	in, weight := r.of(k.BufferRO("in", tenon.Float32)), k.BufferRO("weight", tenon.Float32)
	out, scales := r.of(k.Buffer("out", tenon.Float32)), k.Buffer("scales", tenon.Float32)

	square := r.mean(func(column kernel.Value) kernel.Value { return in.Load(column).Mul(in.Load(column)) })
	scale := k.F32(1).Div(square.Add(eps).Sqrt())
	k.If(k.ThreadIdx(kernel.X).Eq(k.I32(0)), func() { scales.Store(k.BlockIdx(kernel.X), scale) })
	r.each(func(column kernel.Value) { out.Store(column, in.Load(column).Mul(scale).Mul(weight.Load(column))) })
})

// backward computes the gradient of in: scale·(grad·weight - normal·mean(grad·weight·normal)), with normal = in·scale.
var backward = kernel.Build("rms_backward", func(k *kernel.Builder) {
	k.FixedThreads(threads)
	r := row{k, k.Scalar("columns", tenon.Int32)}
	in, weight := r.of(k.BufferRO("in", tenon.Float32)), k.BufferRO("weight", tenon.Float32)
	scale := k.BufferRO("scales", tenon.Float32).Load(k.BlockIdx(kernel.X))
	grad, out := r.of(k.BufferRO("grad", tenon.Float32)), r.of(k.Buffer("out", tenon.Float32))

	normal := func(column kernel.Value) kernel.Value { return in.Load(column).Mul(scale) }
	weighted := func(column kernel.Value) kernel.Value { return grad.Load(column).Mul(weight.Load(column)) }
	mean := r.mean(func(column kernel.Value) kernel.Value { return weighted(column).Mul(normal(column)) })
	r.each(func(column kernel.Value) {
		out.Store(column, scale.Mul(weighted(column).Sub(normal(column).Mul(mean))))
	})
})

// each is a block for each row. With no rows it launches nothing.
func each(rows int) tenon.LaunchShape { return tenon.LaunchShape{Grid: [3]int{rows, 1, 1}} }

// function is the operation: the two kernels as a tenon.Function.
type function struct{ eps float64 }

func (f function) Forward(x *tenon.Exec, c *tenon.FunctionContext, inputs ...*tenon.Tensor) []*tenon.Tensor {
	columns := inputs[0].Size(-1)
	in, weight := x.Contiguous(inputs[0]), x.View(x.Contiguous(inputs[1]), columns) // which refuses another length
	rows := in.Numel() / max(columns, 1)
	out, scales := x.EmptyLike(in), x.Empty([]int{rows, 1}, tenon.Float32)
	x.Launch(forward, each(rows), tenon.Integer(columns), tenon.Number(f.eps), tenon.In(in), tenon.In(weight), tenon.Out(out),
		tenon.Out(scales))
	c.Save(in, weight, scales)
	return []*tenon.Tensor{out}
}

func (f function) Backward(x *tenon.Exec, c *tenon.FunctionContext, grads ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	in, weight, scales := c.Saved()[0], c.Saved()[1], c.Saved()[2]
	grad := x.Contiguous(grads[0])
	rows, columns := scales.Numel(), weight.Numel()
	var gradIn, gradWeight *tenon.Tensor
	if c.NeedsGrad(0) {
		gradIn = x.EmptyLike(in)
		x.Launch(backward, each(rows), tenon.Integer(columns), tenon.In(in), tenon.In(weight), tenon.In(scales), tenon.In(grad),
			tenon.Out(gradIn))
	}
	if c.NeedsGrad(1) {
		normal := x.Mul(x.View(in, rows, columns), scales)
		gradWeight = x.Sum(x.Mul(normal, x.View(grad, rows, columns)), []int{0})
	}
	return []*tenon.Tensor{gradIn, gradWeight}, nil
}

// Norm divides the rows of in, float32, by the root of the mean of their squares, and multiplies them by weight, one number a column.
func Norm(x *tenon.Exec, in, weight *tenon.Tensor, eps float64) *tenon.Tensor {
	return x.Apply(function{eps}, in, weight)[0]
}
