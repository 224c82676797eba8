package linalg

import (
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

var rowVecDot = core.Define(core.Op{Name: "VecDot", Torch: "linalg.vecdot", Package: "linalg", Takes: "a b;; dim", Saves: "a b",
	Cast: core.CastLow, Infer: inferVecDot, Run: runVecDot})

func vecDot(x *core.Exec, a, b *core.Tensor, dim int) *core.Tensor {
	f := core.Begin(x, rowVecDot, a, b)
	f.SetWhole(0, dim)
	return f.Do()
}

func inferVecDot(f *core.Frame) {
	a, b := f.In(0), f.In(1)
	shape, d, err := products(a.Shape(), b.Shape(), f.Whole(0))
	f.Check(err)
	switch dt := a.DType(); {
	case !dt.IsFloat() && !dt.IsComplex():
		f.Check(fault.New(fault.Unsupported, "Expected a floating point or complex tensor as input. Got %v; convert it "+
			"with x.ToDType", dt))
	case dt != b.DType():
		f.Check(
			fault.New(fault.Invalid, "Expected x and y to have the same dtype, but found x of type %v and y of type %v; "+
				"convert one with x.ToDType", dt, b.DType()))
	}
	f.NewOut(0, a.DType(), append(append([]int(nil), shape[:d]...), shape[d+1:]...), nil)
}

// runVecDot multiplies and sums in one kernel.
func runVecDot(f *core.Frame) error {
	a, b := core.ElementsOf(f.In(0)), core.ElementsOf(f.In(1))
	shape, d, err := products(a.Shape, b.Shape, f.Whole(0))
	if err != nil {
		return err
	}
	for _, o := range []*kernels.Operand{&a, &b} {
		stride := make([]int, len(shape))
		infer.BroadcastStrides(stride, o.Shape, o.Stride, shape)
		o.Shape, o.Stride = shape, stride
	}
	along := make([]bool, len(shape))
	along[d] = true
	return kernels.Reduce(f, kernels.VecDot, a.DType, nil, []kernels.Operand{core.ElementsOf(f.Out(0))}, []kernels.Operand{a, b}, along)
}

func init() {
	// The gradient of an element is the other factor, conjugated where PyTorch conjugates.
	rowVecDot.SetBack(func(b *core.Back) {
		x := b.Exec()
		shape, dim, err := products(b.In(0).Shape(), b.In(1).Shape(), b.Whole(0))
		core.Check("VecDot", err)
		g := x.Expand(x.Unsqueeze(b.Grad(0), dim), shape...)
		if b.Needs(0) {
			b.Set(0, x.Mul(conjugate(x, g), b.In(1)))
		}
		if b.Needs(1) {
			b.Set(1, x.Mul(g, b.In(0)))
		}
	})
}

// products returns the shape of the products of arrays of shapes a and b, and their dimension dim, counted from the beginning.
func products(a, b []int, dim int) ([]int, int, error) {
	shape, err := infer.Broadcast(nil, a, b)
	if err != nil {
		return nil, 0, err
	}
	n := len(shape)
	if dim < -n || dim >= n { // an array without dimensions has none
		return nil, 0, infer.OutOfRange(dim, n)
	}
	if dim < 0 {
		dim += n
	}
	return shape, dim, nil
}
