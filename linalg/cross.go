package linalg

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

var rowCross = core.Define(core.Op{Name: "Cross", Torch: "linalg.cross", Package: "linalg", Takes: "a b;; dim", Saves: "a b",
	Cast: core.CastWidest, Infer: inferCross, Run: runCross})

func cross(x *core.Exec, a, b *core.Tensor, dim int) *core.Tensor {
	f := core.Begin(x, rowCross, a, b)
	f.SetWhole(0, dim)
	return f.Do()
}

func inferCross(f *core.Frame) {
	a, b := f.In(0).Shape(), f.In(1).Shape()
	if len(a) != len(b) {
		f.Check(fault.New(fault.Invalid, "inputs must have the same number of dimensions, but have shapes %v and %v", a, b))
	}
	d, err := infer.Dim(f.Whole(0), len(a))
	f.Check(err)
	if len(a) == 0 || a[d] != 3 || b[d] != 3 {
		f.Check(fault.New(fault.Invalid, "inputs dimension %d must have length 3. Got %v and %v", f.Whole(0), a, b))
	}
	shape, err := infer.Broadcast(nil, a, b)
	f.Check(err)
	dt := f.Promoted()
	f.Check(infer.Numeric(f.Op(), dt))
	f.NewOut(0, dt, shape, nil)
}

// runCross passes the three parts of the vectors to the kernel as separate operands.
func runCross(f *core.Frame) error {
	out := core.ElementsOf(f.Out(0))
	if out.Numel() == 0 {
		return nil
	}
	d, err := infer.Dim(f.Whole(0), len(out.Shape))
	if err != nil {
		return err
	}
	parts := func(o kernels.Operand) (p []kernels.Operand) {
		stride := make([]int, len(out.Shape))
		infer.BroadcastStrides(stride, o.Shape, o.Stride, out.Shape)
		shape := append([]int(nil), out.Shape...)
		shape[d] = 1
		for i := range 3 {
			p = append(p, kernels.Operand{Ptr: o.Ptr + uint64(i*stride[d]*o.DType.Size()), DType: o.DType, Shape: shape, Stride: stride})
		}
		return p
	}
	op := kernels.Cross
	switch out.DType {
	case dtype.Float16:
		op = kernels.CrossF16
	case dtype.BFloat16:
		op = kernels.CrossBF16
	}
	ins := append(parts(core.ElementsOf(f.In(0))), parts(core.ElementsOf(f.In(1)))...)
	return kernels.Pointwise(f, op, out.DType, nil, parts(out), ins)
}

func init() {
	// A cross product is linear in both factors: g·(da x b) = da·(b x g), and g·(a x db) = db·(g x a).
	rowCross.SetBack(func(b *core.Back) {
		x, g, dim := b.Exec(), b.Grad(0), b.Whole(0)
		if b.Needs(0) {
			b.Set(0, cross(x, conjugate(x, b.In(1)), g, dim))
		}
		if b.Needs(1) {
			b.Set(1, cross(x, g, conjugate(x, b.In(0)), dim))
		}
	})
}
